"""Assign files to the students of a class: by a roster, by folders, or one file per student."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.marking.files.verdicts import not_marked
from qkv.marking.result import CheckResult

Marked = tuple[str, Sequence[CheckResult]]  # a file's name, and its verdicts
_COLUMNS = ("id", "name")


@dataclass(frozen=True)
class Student:
    """One row of the table of a class.

    Attributes:
        names: the first cells of the row: a file, a student's folder, or the id and the name in a
            roster. If a file belongs to nobody in the roster, the id is empty and the name is the
            file's path.
        files: the files of that student.
    """

    names: tuple[str, ...]
    files: tuple[str, ...] = ()

    def marked(self, marks: dict[str, Sequence[CheckResult]]) -> list[Marked]:
        """Return the verdicts on each file; without files, return one verdict that says so."""
        if not self.files:
            shows = f"no file or folder is named after {' or '.join(filter(None, self.names))}"
            return [(self.names[0], (not_marked("nothing-handed-in", shows, None),))]
        return [(file, marks[file]) for file in self.files]


@dataclass(frozen=True)
class Students:
    """The rows of a class's table, and the names of the columns that identify a row."""

    columns: tuple[str, ...]
    rows: tuple[Student, ...]


def read_roster(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Read the ids and names of a class from a CSV file with the columns id and name.

    Other columns and lines without an id are ignored.

    Raises:
        ValueError: a column is missing, an id occurs twice, or the file is not CSV in UTF-8.
        OSError: the file cannot be read.
    """
    with open(path, newline="", encoding="utf-8-sig") as lines:
        try:
            reader = csv.DictReader(lines)
            named = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
            if missing := [name for name in _COLUMNS if name not in named]:
                columns = ", ".join(filter(None, named)) or "none"
                raise ValueError(
                    f"{path} has no column {' and no column '.join(missing)}: a roster begins with"
                    f" the line id,name (its columns are {columns})"
                )
            cells = [[(row[named[name]] or "").strip() for name in _COLUMNS] for row in reader]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    names: dict[str, str] = {}
    for identity, name in cells:
        if identity and identity in names:
            raise ValueError(f"{path} has the id {identity} twice: each student needs their own")
        names[identity] = name
    names.pop("", None)
    return [*names.items()]


def by_file(files: Sequence[str], folders: Sequence[str] = ()) -> Students:
    """Make a row for each file; if every file is in a student's folder, make a row per student."""
    owners = {file: _owner(file, folders) for file in files}
    if not folders or None in owners.values():
        return Students(("file",), tuple(Student((file,), (file,)) for file in files))
    return Students(("student",), _grouped([(owner,) for owner in owners.values()], files))


def by_roster(
    roster: Sequence[tuple[str, str]], files: Sequence[str], folders: Sequence[str] = ()
) -> Students:
    """Make a row for each student of the roster, then a row for each file that belongs to nobody.

    A file belongs to a student if the student's id is a word in the file's name, or in the name of
    a folder between the file and the folder that was given. For example, the id `s12` is a word in
    `s12_lesson3.ipynb`, but not in `s123.ipynb`. If no id is found, the student's name is searched.
    If several ids are found, the longest id wins.
    """
    keys = [_finder(identity) for identity, _ in roster], [_finder(name) for _, name in roster]
    owners = [_belongs(_names_above(file, folders), roster, keys) or ("", file) for file in files]
    grouped = {student.names: student for student in _grouped(owners, files)}
    listed = [grouped.pop(student, Student(student)) for student in roster]
    return Students(_COLUMNS, (*listed, *grouped.values()))


def _grouped(owners: Sequence[tuple[str | None, ...]], files: Sequence[str]) -> tuple[Student, ...]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for owner, file in zip(owners, files, strict=True):
        groups.setdefault(tuple(map(str, owner)), []).append(file)
    return tuple(Student(names, tuple(group)) for names, group in groups.items())


def _owner(file: str, folders: Sequence[str]) -> str | None:
    """Return the student's folder that contains a file, if any."""
    for folder in folders:
        if Path(file).is_relative_to(folder):
            first, *below = Path(file).relative_to(folder).parts or ("",)
            return str(Path(folder, first)) if below else None
    return None


def _names_above(file: str, folders: Sequence[str]) -> list[str]:
    """List the names that may contain a student's id: the file's name and its folders' names."""
    path = Path(file)
    above = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
    inside = path.relative_to(above)
    return [Path(above).resolve().name, *inside.parts[:-1], inside.stem]


def _belongs(
    names: Sequence[str],
    roster: Sequence[tuple[str, str]],
    keys: tuple[list[Callable[[str], bool]], list[Callable[[str], bool]]],
) -> tuple[str, str] | None:
    for column, finders in enumerate(keys):  # ids, then names
        owners = [
            student
            for student, is_in in zip(roster, finders, strict=True)
            if any(map(is_in, names))
        ]
        longest = max((len(student[column]) for student in owners), default=0)
        owners = [student for student in owners if len(student[column]) == longest]
        if len(owners) == 1:
            return owners[0]
    return None


def _finder(name: str) -> Callable[[str], bool]:
    """Return a function that finds the words of a name in a text, also with other words between."""
    words = [re.escape(word) for word in re.findall(r"[^\W_]+", name)]
    joined = r"[\W_]+".join(words)
    pattern = re.compile(rf"(?<![^\W_]){joined}(?![^\W_])", re.IGNORECASE)
    return lambda text: bool(words) and pattern.search(text) is not None
