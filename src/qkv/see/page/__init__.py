"""A view as a page: the data, the scripts and the HTML."""
