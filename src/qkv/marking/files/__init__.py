"""Mark the functions and values of a file, whose code runs in a separate process."""

from qkv.marking.files.process import check_file

__all__ = ["check_file"]
