"""Read a student's Python file or Jupyter notebook."""

import ast
import io
import json
import linecache
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType

from qkv_marking._errors import in_words
from qkv_marking._outcome import RAISED
from qkv_marking.files._shell import TooLong, open_shell, parses, to_python
from qkv_marking.tasks import TASKS

NOTEBOOK = ".ipynb"
_CALL = re.compile(r"\w\(([^()]+)\)")  # The parameters in the signature of a task.
# The tags of notebook cells that do not run: they show a page, or need a training run or its text.
_OMITTED = ("live", "training")
# the first line of a cell in a Python file that Jupyter or an editor has written
_CELL = re.compile(r"^# (?:In\[[ \d]*\]:|%%(.*))$", re.MULTILINE)


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


def find_repeated(parts: Sequence[tuple[str, int, bytes]]) -> dict[str, str]:
    r"""Return the places of each top-level function or class that is defined more than once.

    Args:
        parts: tuples `(what, number, source)`, such as ("code cell", 3, b"...") for a cell. If the
            number is 0, the place is the line number.

    >>> find_repeated([("line", 0, b"def f(): return 1\ndef f(): ...")])
    {'f': 'line 1 and line 2'}
    """
    places: dict[str, list[str]] = {}
    for what, number, source in parts:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for node in ast.parse(source).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    places.setdefault(node.name, []).append(f"{what} {number or node.lineno}")
    return {name: " and ".join(where) for name, where in places.items() if len(where) > 1}


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
    """Return the tasks whose signature fits the names of a function's parameters."""
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
        cells: the code cells in order, each as `(number, code)`; numbers start at 1. Cells with a
            tag in `_OMITTED` are left out.
        tasks: the tasks, or the names of functions, that the notebook's metadata lists; None if the
            metadata has no list.
    """

    cells: tuple[tuple[int, str], ...]
    tasks: tuple[str, ...] | None = None

    def run(self, module: ModuleType, name: str, done: Callable[[], None]) -> list[str]:
        """Run the cells in a module as IPython does; if a cell fails, continue with the next cell.

        Args:
            module: the module.
            name: the name of the notebook.
            done: a function that is called after each cell.

        Returns:
            One message per failed cell.
        """
        failed = []
        with open_shell(vars(module)) as execute:
            for number, source in self.cells:
                file = f"{name}, code cell {number}"
                python = to_python(source)
                linecache.cache[file] = (len(python), None, python.splitlines(keepends=True), file)
                try:
                    execute(python, file)
                except RAISED as error:
                    failed.append(f"Code cell {number} fails: {in_words(error)}")
                except TooLong:
                    failed.append(f"Code cell {number} does not end within its time limit.")
                done()
        return failed

    def places(self) -> list[tuple[str, int, bytes]]:
        """Return each cell as arguments of `find_repeated`."""
        return [("code cell", number, to_python(cell).encode()) for number, cell in self.cells]

    def python(self) -> str:
        """Return the code of the Python cells."""
        sources = (to_python(source) for _, source in self.cells)
        return "\n".join(source for source in sources if parses(source))


def read_notebook(text: bytes) -> Notebook:
    r"""Read a notebook in format 4, which is JSON.

    Raises:
        SyntaxError: the content is not a notebook.

    >>> read_notebook(b'{"cells": [{"cell_type": "code", "source": ["%time\\n", "x = 1"]}]}')
    Notebook(cells=((1, '%time\nx = 1'),), tasks=None)
    """
    try:
        book = json.loads(text)
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        cells = tuple(
            (number, "".join(cell["source"]))
            for number, cell in enumerate(code, start=1)
            if not any(tag in ((cell.get("metadata") or {}).get("tags") or []) for tag in _OMITTED)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SyntaxError(f"it is not a Jupyter notebook of format 4: {in_words(error)}") from error
    try:
        tasks = book["metadata"]["qkv"]["tasks"]
    except (KeyError, TypeError, IndexError):  # an editor has changed the metadata
        tasks = None
    return Notebook(cells, tuple(map(str, tasks)) if isinstance(tasks, list) else None)


def split_cells(source: bytes) -> Notebook | None:
    r"""Read a Python file that Jupyter or an editor has divided into cells, or return None.

    >>> split_cells(b"# coding: utf-8\n# In[1]:\nx = 1\n# %% [markdown]\n# Text\n# %%\ny = 2")
    Notebook(cells=((1, 'x = 1'), (2, 'y = 2')), tasks=None)
    """
    text = source.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    first, *parts = _CELL.split(text)  # titles and cells take turns
    if not parts:
        return None
    cells = [("", first), *zip(parts[::2], parts[1::2], strict=True)]
    code = [cell.strip("\n") for title, cell in cells if "[markdown]" not in (title or "")]
    lines = [[line for line in cell.splitlines() if line.strip()] for cell in code]
    written = [c for c, ls in zip(code, lines, strict=True) if not all(x[0] == "#" for x in ls)]
    return Notebook(tuple(enumerate(written, start=1)))
