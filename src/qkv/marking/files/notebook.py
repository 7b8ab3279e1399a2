"""Read the code cells and the tasks of a student's Jupyter notebook."""

import ast
import json
import linecache
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from qkv.marking.errors import in_words
from qkv.marking.outcome import RAISED

SUFFIX = ".ipynb"
_LIVE = "live"  # The tag of cells that only show a page.
_PYTHON = re.compile(r"%%(time|timeit|capture|prun)\b")  # Cell magics that run the cell as Python.
_MAGIC = re.compile(r"^([ \t]*)(?:[%!].*|\?.*|[\w.]+\?\??[ \t]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Notebook:
    """The content of a notebook.

    Attributes:
        cells: the code cells in order, each as `(number, code)`; numbers start at 1. Magics are
            removed, and cells that only show a live page are omitted.
        tasks: the tasks (or function names) that the notebook lists for marking; None if it lists
            none.
    """

    cells: tuple[tuple[int, str], ...]
    tasks: tuple[str, ...] | None

    def run(self, module: ModuleType, name: str, done: Callable[[], None]) -> list[str]:
        """Run the cells in a module; if a cell fails, continue with the next cell.

        Args:
            module: the module.
            name: the name of the notebook.
            done: a function that is called after each cell.

        Returns:
            One message per failed cell.
        """
        vars(module)["display"] = lambda *_things, **_options: None  # replaces IPython's display()
        failed = []
        for number, source in self.cells:
            file = f"{name}, code cell {number}"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            try:
                exec(compile(source, file, "exec"), vars(module))
            except RAISED as error:
                failed.append(f"Code cell {number} fails: {in_words(error)}")
            done()
        return failed


def read(text: bytes) -> Notebook:
    r"""Read a notebook in format 4, which is JSON.

    Raises:
        SyntaxError: the content is not a notebook.

    >>> book = read(b'{"cells": [{"cell_type": "code", "source": ["%time\\n", "x = 1"]}]}')
    >>> book.cells, book.tasks
    (((1, 'pass\nx = 1'),), None)
    """
    try:
        book = json.loads(text)
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        cells = tuple(
            (number, _plain("".join(cell["source"])))
            for number, cell in enumerate(code, start=1)
            if _LIVE not in cell.get("metadata", {}).get("tags", [])
        )
        tasks = book.get("metadata", {}).get("qkv", {}).get("tasks")
        return Notebook(cells, None if tasks is None else tuple(map(str, tasks)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SyntaxError(f"it is not a Jupyter notebook of format 4: {in_words(error)}") from error


def python(notebook: Notebook) -> Iterator[str]:
    """Yield the Python cells."""
    for _, source in notebook.cells:
        if _parses(source):
            yield source


def _plain(source: str) -> str:
    """Remove IPython syntax from a cell; return "" for a cell in another language."""
    if source.lstrip().startswith("%%"):
        first, _, rest = source.lstrip().partition("\n")
        source = rest if _PYTHON.match(first) else ""
    # valid Python is not changed, because a line inside a string may begin with %
    return source if _parses(source) else _MAGIC.sub(r"\1pass", source)


def _parses(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
