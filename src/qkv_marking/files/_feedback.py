"""Write a feedback page for each student, copies of the notebooks, and a page of all labels."""

import ast
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkv.files import StrPath, named_folder, replacing
from qkv_marking._errors import sentence
from qkv_marking._mistake import read_rows
from qkv_marking._result import CheckResult, Section
from qkv_marking.files._class_table import ClassTable, Row
from qkv_marking.files._plan import Column
from qkv_marking.files._shell import to_python
from qkv_marking.files._source import NOTEBOOK, find_names, read_notebook
from qkv_marking.files.page import element, mark_diff, write_page
from qkv_marking.tasks import TASKS

_LABELS = "labels"
_TAG = "qkv-feedback"  # the tag of a notebook's cells of feedback
_LONGEST = 50  # the maximum length of a file name, before the suffix
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)")  # names of devices on Windows
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#$|~&])")  # characters with a meaning in Markdown
# the fields of a mistake on the page of labels
_EXPLAINED = {"says": "", "shows": "It shows: ", "where": "Where to look: "}
_NOTHING = "Nothing was handed in for this task."
_UNREAD = "This task was not marked, because the file could not be read or run."


def write_feedback(folder: StrPath, table: ClassTable, hints: int = 1) -> list[Path]:
    """For each row of a table, write a page, and copies of the row's notebooks with feedback.

    The files are named after the rows. The page `labels.html` explains each mistake's short
    name.

    Args:
        folder: the folder for the files; it is created if it does not exist.
        table: the marked files of the class.
        hints: the number of hints, from 0 to 3. With 3, the files show the right lines.

    Returns:
        The path of each row's page.

    Raises:
        OSError: a file cannot be written.
    """
    folder = named_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_page(folder / f"{_LABELS}.html", "The labels of qkv check", *_explain_labels())
    taken = {_LABELS}
    return [_write_row(folder, row, table, hints, taken) for row in table.rows]


def _write_row(folder: Path, row: Row, table: ClassTable, hints: int, taken: set[str]) -> Path:
    identity = "\0".join(row.names)
    listed = table.columns == ("id", "name") and row.names[0]
    name = _safe_name(row.names[0] if listed else Path(row.names[-1]).stem, identity, taken)
    handed_in, copy = [], ""
    for file, results in row.files:
        about = escape(Path(file).name)
        if book := _annotate(file, results, table, hints):
            copy = _safe_name(f"{name}-{Path(file).stem}", identity + file, taken) if copy else name
            with replacing(folder / f"{copy}{NOTEBOOK}") as out:
                out.write(book)
            about = element("a", Path(file).name, href=f"{copy}{NOTEBOOK}") + " with feedback"
        handed_in.append(about if file in row.counted else f"{about} (does not count)")
    page = folder / f"{name}.html"
    columns: list[Column | None] = [*table.tasks]
    verdicts = [(column, row.best[column][1]) for column in [None, *columns] if column in row.best]
    missing = [column for column in table.plan.columns if column not in row.best]
    why = _UNREAD if None in row.best and row.files else _NOTHING
    most = sum(column.most for column in table.tasks)
    write_page(
        page,
        " ".join(filter(None, row.names)),
        f"<p><b>{row.total:g} of {most:g} points.</b>",
        f"Handed in: {', '.join(handed_in) or 'nothing'}.</p>",
        *(_section(column, result, hints) for column, results in verdicts for result in results),
        *(
            f"<section>{element('h2', _head(column, 0))}{element('p', why)}</section>"
            for column in missing
        ),
    )
    return page


def _safe_name(wanted: str, identity: str, taken: set[str]) -> str:
    """Return a file name without suffix that fits all file systems; add it to `taken`.

    If characters must be replaced, or if the name is taken, the name gets a hash of `identity`.
    """
    clean = re.sub(r"[^\w.-]+", "-", unicodedata.normalize("NFC", wanted)).strip("-.")[:_LONGEST]
    key = unicodedata.normalize("NFKC", clean).casefold()
    if clean != wanted or key in taken or _RESERVED.match(key):
        digest = sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        clean, key = f"{clean}-{digest}".strip("-"), f"{key}-{digest}"
    taken.add(key)
    return clean


def _parts(result: CheckResult, hints: int) -> Iterator[Section]:
    """Yield the parts of the feedback on a task."""
    if result.task in TASKS:
        task = TASKS[result.task]
        yield Section("words", "", [f"Asked: {task.signature}: {task.asks}."])
    yield from result.sections(hints)
    about = [f"Points: {result.reason}"]
    if result.helped_by:
        about.append(f"Computed by: {', '.join(result.helped_by)}.")
    yield Section("words", "", about)


def _head(column: Column | None, points: float) -> str:
    return "The file" if column is None else f"{column.title}: {points:g} of {column.most:g} points"


def _section(column: Column | None, result: CheckResult, hints: int) -> str:
    """Write the feedback on a task as HTML."""
    parts = [element("h2", _head(column, column.weigh(result.points) if column else 0))]
    for kind, heading, lines in _parts(result, hints):
        if heading:
            parts.append(element("h3", heading))
            parts.append(f"<pre>{chr(10).join(map(mark_diff, lines))}</pre>")
        else:
            parts += [element("p", line, class_=kind) for line in lines]
    keys = (*result.mistakes, *result.fragile, *result.conventions)
    links = ", ".join(element("a", key, href=f"{_LABELS}.html#{key}") for key in keys)
    return f"<section>{chr(10).join(parts)}{f'<p>Labels: {links}</p>' * bool(keys)}</section>"


def _markdown(column: Column | None, result: CheckResult, hints: int) -> str:
    """Write the feedback on a task as Markdown."""
    head = _head(column, column.weigh(result.points) if column else 0)
    parts = [f"#### Feedback: {head}"]
    for kind, heading, lines in _parts(result, hints):
        if heading:
            text = "\n".join(lines)
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            parts.append(
                f"{heading}\n\n{fence}{'diff' if kind == 'diff' else 'text'}\n{text}\n{fence}"
            )
        else:
            parts += [_SPECIAL.sub(r"\\\1", line) for line in lines]
    return "\n\n".join(parts)


def _annotate(
    file: str, results: Sequence[CheckResult], table: ClassTable, hints: int
) -> bytes | None:
    """Add a feedback cell under each task of a notebook; return None if it is not a notebook."""
    if not file.lower().endswith(NOTEBOOK):
        return None
    try:
        text = Path(file).read_bytes()
        read_notebook(text)
        book = json.loads(text)
        old = [cell for cell in book["cells"] if _TAG not in _tags(cell)]
        minor = book.get("nbformat_minor", 0)
        with_ids = book.get("nbformat", 4) == 4 and isinstance(minor, int) and minor >= 5
    except (SyntaxError, OSError):
        return None
    after: dict[int, list[dict[str, Any]]] = {}
    places = _places(old)
    for number, result in enumerate(results, start=1):
        column = table.plan.column(result.task, file) if result.task else None
        source = _markdown(column, result, hints)
        cell = {"cell_type": "markdown", "metadata": {"tags": [_TAG]}, "source": source}
        names = (result.task, *(TASKS[result.task].looks_for if result.task in TASKS else ()))
        at = next((places[name] for name in names if name in places), len(old) - 1)
        named = {"id": f"{_TAG}-{number}"} if with_ids else {}
        after.setdefault(at if result.task else -1, []).append({**cell, **named})
    cells = after.get(-1, [])
    for number, cell in enumerate(old):
        cells += [cell, *after.get(number, [])]
    return json.dumps({**book, "cells": cells}, indent=1).encode() + b"\n"


def _tags(cell: Mapping[str, Any]) -> Sequence[str]:
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return tags if isinstance(tags, list) else ()


def _places(cells: Sequence[Mapping[str, Any]]) -> dict[str | None, int]:
    """Return the number of the last cell that checks a task, or that defines a function."""
    defines: dict[str | None, int] = {}
    checks: dict[str | None, int] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            source = to_python("".join(cell["source"]))
            defines |= dict.fromkeys(find_names(source.encode()), number)
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Assign):
                    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
                    defines |= dict.fromkeys(names, number)
                elif isinstance(node, ast.keyword) and node.arg == "task":
                    checks[getattr(node.value, "value", None)] = number
    return defines | checks


def _explain_labels() -> Iterator[str]:
    """Yield an HTML explanation of each mistake's short name, sorted by name."""
    labels: dict[str, dict[str, None]] = {}
    for path in sorted(Path(str(files("qkv_marking"))).rglob("*.toml")):
        if "conformance" in path.parts:
            continue
        for _, row, fields in read_rows(tomllib.loads(path.read_text("utf-8")), {}):
            if "says" in fields and row not in ("lines", "when"):
                told = [
                    sentence(label + fields[name])
                    for name, label in _EXPLAINED.items()
                    if name in fields
                ]
                text = re.sub(r"\{\w+\}", "…", " ".join(told))
                labels.setdefault(fields.get("key", row), {})[text] = None
    for key, texts in sorted(labels.items()):
        yield element("h3", key, id=key) + "".join(element("p", text) for text in texts)
