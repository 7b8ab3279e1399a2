"""Mark what a file has for the tasks, in a process of its own."""

from qkv.marking.files.process import check_file

__all__ = ["check_file"]
