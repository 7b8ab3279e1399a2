"""Read a student's Python file or Jupyter notebook."""

import ast
import io
import json
import linecache
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType

from qkv_marking._errors import in_words
from qkv_marking._outcome import RAISED
from qkv_marking.tasks import TASKS

NOTEBOOK = ".ipynb"
_CALL = re.compile(r"\w\(([^()]+)\)")  # The parameters in the signature of a task.
_LIVE = "live"  # The tag of notebook cells that only show a page.
_PYTHON = re.compile(r"%%(time|timeit|capture|prun)\b")  # Cell magics that run the cell as Python.
_MAGIC = re.compile(r"^([ \t]*)(?:[%!].*|\?.*|[\w.]+\?\??[ \t]*)$", re.MULTILINE)


def find_names(source: bytes, file: str = "the file") -> set[str]:
    r"""Return the names of a file's top-level functions and classes, without imported names.

    Raises:
        SyntaxError: the source is not Python, or has bytes that are invalid in its encoding.

    >>> sorted(find_names(b"import os\nif os:\n    def f(x): ...\nsoftmax = f\nlogits = f(4)"))
    ['f', 'softmax']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
            source.decode(encoding)  # ast.parse does not check comments
            tree = ast.parse(source, file)
        # A ValueError is raised for null bytes, and for bytes that are invalid in the encoding. A
        # RecursionError or a MemoryError is raised for a thousand nested brackets.
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deeply nested") from error
    return {*_names(tree.body)}


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define, even inside `if`, `try`, `with` or a loop."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        # In `softmax = f`, the right side must have one of these types.
        another = ast.Lambda | ast.Name | ast.Attribute
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(
            statement.value, another
        ):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        for part in ("body", "orelse", "finalbody"):
            yield from _names(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _names(handler.body)


def tasks_in(names: set[str]) -> list[str]:
    """Return the tasks whose functions are among these names, in the order of the course.

    >>> tasks_in({"softmax", "helper"})
    ['softmax']
    """
    tasks = {name: task for name, task in TASKS.items() if not task.by_name}
    return [name for name, task in tasks.items() if names.intersection(task.looks_for)]


def tasks_for(function: FunctionType) -> list[str]:
    """Return the tasks that give a function all parameters it has, and need no others."""
    code = function.__code__
    names = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}

    def fits(call: str) -> bool:
        needed = {name for name in call.split(", ") if "=" not in name}
        return needed <= names <= {name.partition("=")[0] for name in call.split(", ")}

    tasks = {name: task for name, task in TASKS.items() if not task.by_name}
    return [name for name, task in tasks.items() if any(map(fits, _CALL.findall(task.signature)))]


@dataclass(frozen=True)
class Notebook:
    """The content of a notebook.

    Attributes:
        cells: the code cells in order, each as `(number, code)`; numbers start at 1. Magics are
            removed, and cells that only show a live page are omitted.
        tasks: the tasks, or the names of functions, that the notebook's metadata lists; None if the
            metadata has no list.
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

    def python(self) -> str:
        """Return the code of the Python cells."""
        return "\n".join(source for _, source in self.cells if _parses(source))


def read_notebook(text: bytes) -> Notebook:
    r"""Read a notebook in format 4, which is JSON.

    Raises:
        SyntaxError: the content is not a notebook.

    >>> book = read_notebook(b'{"cells": [{"cell_type": "code", "source": ["%time\\n", "x = 1"]}]}')
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


def _plain(source: str) -> str:
    """Remove IPython syntax from a cell; return "" for a cell in another language."""
    if source.lstrip().startswith("%%"):
        first, _, rest = source.lstrip().partition("\n")
        source = rest if _PYTHON.match(first) else ""
    # in valid Python, lines that begin with % are inside a string: keep these lines
    return source if _parses(source) else _MAGIC.sub(r"\1pass", source)


def _parses(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
