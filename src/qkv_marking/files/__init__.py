"""Mark the functions and values of a file, whose code runs in a separate process."""
