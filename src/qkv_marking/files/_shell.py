"""Run the cells of a notebook as IPython runs them."""

import ast
import functools
import importlib
import inspect
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

_PYTHON = ("time", "timeit", "capture", "prun")  # magics that run Python
_CELL_MAGIC = re.compile(r"\s*%%(\w+)(.*)\n?")
# The forms of IPython, each with its Python; used if IPython is not installed.
_FORMS = (
    (r"(.*=[ \t]*|)%(\w+)[ \t]*(.*)", "{0}get_ipython().run_line_magic({1!r}, {2!r})"),
    (r"(.*=[ \t]*|)!(.*)", "{0}get_ipython().getoutput({1!r})"),
    (r"\?.*|[\w.]+\?\??[ \t]*", "pass"),
)
_OPTIONS = re.compile(r"(?:-\w+(?: \d+)? +)*")


class TooLong(BaseException):
    """Raised in a cell that does not end within its time limit."""


class Shell:
    """The object that `get_ipython()` returns in a marked notebook.

    Magics that time Python code run the code once. Other magics and shell commands do nothing.

    Args:
        names: the notebook's namespace.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.user_ns = names

    def run_line_magic(self, name: str, line: str, *_: Any) -> Any:
        """Run a line of Python that is timed; return its value."""
        if name not in _PYTHON:
            return None
        line = _OPTIONS.sub("", line.strip(), count=1)
        try:
            code = compile(line, f"%{name}", "eval")
        except SyntaxError:
            code = compile(line, f"%{name}", "exec")
        return eval(code, self.user_ns)

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """Write the cell to a file, if its magic is `%%writefile`."""
        if name == "writefile":
            *options, file = line.split()
            with Path(file).open("a" if "-a" in options else "w", encoding="utf-8") as out:
                out.write(cell)

    def getoutput(self, *_: Any, **_options: Any) -> list[str]:
        """Return an empty list; do not run the shell command."""
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **_options: None


@functools.lru_cache(256)
def to_python(source: str) -> str:
    r"""Translate a cell with IPython's syntax into Python.

    >>> to_python("%%time\nx = 1")
    'x = 1'
    """
    magic = _CELL_MAGIC.match(source)
    if magic:
        name, line, cell = magic[1], magic[2].strip(), source[magic.end() :]
        call = f"get_ipython().run_cell_magic({name!r}, {line!r}, {cell!r})"
        return to_python(cell) if name in _PYTHON else call
    if parses(source):  # in valid Python, lines that begin with % are inside a string
        return source
    try:
        ipython = importlib.import_module("IPython.core.inputtransformer2")
        return str(ipython.TransformerManager().transform_cell(source))
    except Exception:  # it is not installed
        return "\n".join(map(_line_to_python, source.split("\n")))


def _line_to_python(line: str) -> str:
    text = line.lstrip(" \t")
    margin = line[: len(line) - len(text)]
    for pattern, python in _FORMS:
        if found := re.fullmatch(pattern, text):
            return margin + python.format(*found.groups())
    return line


def parses(source: str) -> bool:
    """Return whether the source is valid Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


@contextmanager
def open_shell(names: dict[str, Any]) -> Iterator[Callable[[str, str], None]]:
    """Yield a function `execute(source, file)`, which runs the Python code of a cell.

    In the `with` block, SIGINT raises `TooLong` in the running cell.

    Args:
        names: the notebook's namespace; `display` and `get_ipython` are added.
    """
    shell = Shell(names)
    names |= {"display": lambda *_things, **_options: None, "get_ipython": lambda: shell}
    running, loop = False, None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if running:
            raise TooLong

    def execute(source: str, file: str) -> None:
        nonlocal running, loop
        code = compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = True
        try:
            awaited = eval(code, names)
            if code.co_flags & inspect.CO_COROUTINE:
                import asyncio

                loop = loop or asyncio.new_event_loop()
                loop.run_until_complete(awaited)
        finally:
            running = False

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield execute
    finally:
        signal.signal(signal.SIGINT, before)
        if loop is not None:
            loop.close()
