"""A view as a page: what it reads, its script, its HTML."""
