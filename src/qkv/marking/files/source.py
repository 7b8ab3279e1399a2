"""Find the functions and classes of a file without running the file."""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator

from qkv.marking.tasks import TASKS


def defined(source: bytes, file: str = "the file") -> set[str]:
    r"""Return the top-level functions and classes of a file, except imports.

    Raises:
        SyntaxError: the source is not Python, or has bytes that are invalid in its encoding.

    >>> sorted(defined(b"import os\nif os:\n    def f(x): ...\nsoftmax = f\nlogits = f(4)"))
    ['f', 'softmax']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
            source.decode(encoding)  # Python's parser does not decode comments
            tree = ast.parse(source, file)
        # ValueError: null bytes, or bytes that are invalid in the encoding.
        # RecursionError or MemoryError: a thousand nested brackets.
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deeply nested") from error
    return {*_names(tree.body)}


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define, including those inside if, try, with and loops."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        another = ast.Lambda | ast.Name | ast.Attribute  # such as softmax = f
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
    asked = {name: task for name, task in TASKS.items() if not task.by_name}
    return [name for name, task in asked.items() if names.intersection(task.looks_for)]
