"""Mark a file's functions and values for the tasks, in a process of their own."""

from qkv.marking.files.process import check_file

__all__ = ["check_file"]
