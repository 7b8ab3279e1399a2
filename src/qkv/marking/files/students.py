"""Whose files are whose: a roster, one folder a student, or a file each."""

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
        names: what the row is called: a file, a student's folder, or the id and the name of a
            roster. Files that belong to nobody in the roster have no id, and the file as the name.
        files: the files of that student, as they are found.
    """

    names: tuple[str, ...]
    files: tuple[str, ...] = ()

    def marked(self, marks: dict[str, Sequence[CheckResult]]) -> list[Marked]:
        """The verdicts on each file; where there is no file, one verdict that says so."""
        if not self.files:
            shows = f"no file or folder is named after {' or '.join(filter(None, self.names))}"
            return [(self.names[0], (not_marked("nothing-handed-in", shows, None),))]
        return [(file, marks[file]) for file in self.files]


@dataclass(frozen=True)
class Students:
    """The rows of the table of a class, and the names of the columns that say whose they are."""

    columns: tuple[str, ...]
    rows: tuple[Student, ...]


def read_roster(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """The ids and names of a class, from a CSV file with the columns id and name.

    Other columns are left alone, and so are lines without an id.

    Raises:
        ValueError: a column is missing, an id stands twice, or the file is not CSV in UTF-8.
        OSError: it cannot be read.
    """
    with open(path, newline="", encoding="utf-8-sig") as lines:
        try:
            reader = csv.DictReader(lines)
            named = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
            if missing := [name for name in _COLUMNS if name not in named]:
                there = ", ".join(filter(None, named)) or "none"
                raise ValueError(
                    f"{path} has no column {' and no column '.join(missing)}: a roster begins with"
                    f" the line id,name (its columns are {there})"
                )
            cells = [[(row[named[name]] or "").strip() for name in _COLUMNS] for row in reader]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    found: dict[str, str] = {}
    for identity, name in cells:
        if identity and identity in found:
            raise ValueError(f"{path} has the id {identity} twice: each student needs their own")
        found[identity] = name
    found.pop("", None)
    return [*found.items()]


def by_file(files: Sequence[str], folders: Sequence[str] = ()) -> Students:
    """A row for each file, or where every file of the folders lies in one a student, for those."""
    owners = {file: _owner(file, folders) for file in files}
    if not folders or None in owners.values():
        return Students(("file",), tuple(Student((file,), (file,)) for file in files))
    return Students(("student",), _grouped([(owner,) for owner in owners.values()], files))


def by_roster(
    roster: Sequence[tuple[str, str]], files: Sequence[str], folders: Sequence[str] = ()
) -> Students:
    """A row for each student of the roster, then one for each file that belongs to nobody.

    A file belongs to the student whose id stands in its name or in that of a folder above it, at
    most up to the folder that was named, as a word of its own (`s12` in `s12_lesson3.ipynb` and not
    in `s123.ipynb`); where no id does, to the one whose name does. The longest id wins.
    """
    keys = [_finder(identity) for identity, _ in roster], [_finder(name) for _, name in roster]
    owners = [_belongs(_places(file, folders), roster, keys) or ("", file) for file in files]
    found = {student.names: student for student in _grouped(owners, files)}
    listed = [found.pop(student, Student(student)) for student in roster]
    return Students(_COLUMNS, (*listed, *found.values()))


def _grouped(owners: Sequence[tuple[str | None, ...]], files: Sequence[str]) -> tuple[Student, ...]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for owner, file in zip(owners, files, strict=True):
        groups.setdefault(tuple(map(str, owner)), []).append(file)
    return tuple(Student(names, tuple(those)) for names, those in groups.items())


def _owner(file: str, folders: Sequence[str]) -> str | None:
    """The folder of one student that a file lies in, if it lies in one."""
    for folder in folders:
        if Path(file).is_relative_to(folder):
            first, *below = Path(file).relative_to(folder).parts or ("",)
            return str(Path(folder, first)) if below else None
    return None


def _places(file: str, folders: Sequence[str]) -> list[str]:
    """The names that may hold a student's id: of the folders above the file, then of the file."""
    path = Path(file)
    above = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
    inside = path.relative_to(above)
    return [Path(above).resolve().name, *inside.parts[:-1], inside.stem]


def _belongs(
    places: Sequence[str],
    roster: Sequence[tuple[str, str]],
    keys: tuple[list[Callable[[str], bool]], list[Callable[[str], bool]]],
) -> tuple[str, str] | None:
    for part, finders in enumerate(keys):  # ids, then names
        held = [
            student
            for student, is_in in zip(roster, finders, strict=True)
            if any(map(is_in, places))
        ]
        longest = max((len(student[part]) for student in held), default=0)
        held = [student for student in held if len(student[part]) == longest]
        if len(held) == 1:
            return held[0]
    return None


def _finder(name: str) -> Callable[[str], bool]:
    """Does a text hold this name as words of its own, whatever stands between them?"""
    words = [re.escape(word) for word in re.findall(r"[^\W_]+", name)]
    if not words:
        return lambda text: False
    joined = r"[\W_]+".join(words)
    pattern = re.compile(rf"(?<![^\W_]){joined}(?![^\W_])", re.IGNORECASE)
    return lambda text: pattern.search(text) is not None
