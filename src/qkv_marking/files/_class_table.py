"""Assign the files that students handed in to the students, and write a table of the verdicts."""

import csv
import functools
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from itertools import starmap
from pathlib import Path
from string import Template

from qkv.files import StrPath, ordinary, replacing
from qkv_marking._result import CheckResult
from qkv_marking.files._plan import Column, Plan
from qkv_marking.files._source import NOTEBOOK
from qkv_marking.files.verdicts import describe_found, kind_of_file, not_marked
from qkv_marking.tasks import TASKS

Marked = tuple[str, Sequence[CheckResult]]  # the name and the verdicts of a file
_COLUMNS = ("id", "name")
# The start of a cell, also after a semicolon, and the sign of a formula, also in full width.
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])")


@dataclass(frozen=True)
class Student:
    """A row of a class table.

    Attributes:
        names: the first cells of the row: a file, a student's folder, or a student's id and name.
            For a file without a student, the id is empty and the name is the file's path.
        files: the student's files.
        others: other files and empty folders of a student without Python files and notebooks.
    """

    names: tuple[str, ...]
    files: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def pick_verdicts(self, marks: dict[str, Sequence[CheckResult]]) -> list[Marked]:
        """Return each file and its verdicts, or one verdict that says that there are no files."""
        if not self.files:
            shows = f"no file or folder is named after {' or '.join(filter(None, self.names))}"
            if self.others:
                shows = describe_found(self.others)
            return [(self.names[0], (not_marked("nothing-handed-in", shows, None),))]
        return [(file, marks[file]) for file in self.files]


@dataclass(frozen=True)
class Students:
    """The rows of a class table, and the names of the columns that identify a row."""

    columns: tuple[str, ...]
    rows: tuple[Student, ...]

    def select(self, chosen: Callable[[Sequence[str]], tuple[str, ...]]) -> "Students":
        """Keep only some files of each student; `chosen` selects among the files of one student."""
        rows = (replace(student, files=chosen(student.files)) for student in self.rows)
        return replace(self, rows=tuple(rows))


def read_roster(path: StrPath) -> list[tuple[str, str]]:
    """Read the ids and names of students from a CSV file with the columns `id` and `name`.

    Other columns and lines without an id are ignored.

    Raises:
        ValueError: a column is missing, an id occurs twice, or the file is not CSV in UTF-8.
        OSError: the file cannot be read.
    """
    with open(ordinary(path), newline="", encoding="utf-8-sig") as lines:
        try:
            reader = csv.DictReader(lines)
            named = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
            if missing := [name for name in _COLUMNS if name not in named]:
                columns = ", ".join(filter(None, named)) or "none"
                raise ValueError(
                    f"{path} has no column {' and no column '.join(missing)}: a roster must begin"
                    f" with the line id,name, but its columns are {columns}"
                )
            cells = [[(row[named[name]] or "").strip() for name in _COLUMNS] for row in reader]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    names: dict[str, str] = {}
    for identity, name in cells:
        if identity and identity in names:
            raise ValueError(f"{path} has the id {identity} twice: give each student another id")
        names[identity] = name
    names.pop("", None)
    return [*names.items()]


def by_file(files: Sequence[str], folders: Sequence[str] = ()) -> Students:
    """Create a row per file, or a row per student if every file is in a student's folder."""
    owners = {file: _owner(file, folders) for file in files}
    if not folders or None in owners.values():
        others = [file for file in _others_in(folders) if kind_of_file(file)]
        alone = [Student((file,), (file,)) for file in files]
        return Students(("file",), (*alone, *(Student((file,), (), (file,)) for file in others)))
    rows = _group([(owner,) for owner in owners.values()], files)
    others = [
        _owner(file, folders) or file * (Path(file).is_dir() or bool(kind_of_file(file)))
        for file in _others_in(folders)
    ]
    empty = [owner for owner in dict.fromkeys(filter(None, others)) if owner not in owners.values()]
    return Students(("student",), (*rows, *(Student((owner,), (), (owner,)) for owner in empty)))


def by_roster(
    roster: Sequence[tuple[str, str]], files: Sequence[str], folders: Sequence[str] = ()
) -> Students:
    """Create a row for each student in the roster, then for each file without a student.

    A file belongs to a student if the student's id is a word in the name of the file, or in the
    name of a folder on the path from the given folder to the file. For example, the id `s12` is a
    word in `s12_lesson3.ipynb`, but not in `s123.ipynb`. If no student's id is found, the students'
    names are searched. If several ids are found, the file belongs to the student with the longest
    id.
    """
    owners = [_owner_in(roster, _names_above(file, folders)) or ("", file) for file in files]
    grouped = {student.names: student for student in _group(owners, files)}
    others: dict[tuple[str, ...], list[str]] = {}
    for file in _others_in(folders):
        owner = _owner_in(roster, _names_above(file, folders)) or ("", "")
        others.setdefault(owner, []).append(file)
    listed = [
        grouped.pop(student, Student(student, (), tuple(others.get(student, ()))))
        for student in roster
    ]
    return Students(_COLUMNS, (*listed, *grouped.values()))


def _group(owners: Sequence[tuple[str | None, ...]], files: Sequence[str]) -> tuple[Student, ...]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for owner, file in zip(owners, files, strict=True):
        groups.setdefault(tuple(map(str, owner)), []).append(file)
    return tuple(Student(names, tuple(group)) for names, group in groups.items())


def _others_in(folders: Sequence[str]) -> list[str]:
    """List the files that are neither Python nor a notebook, and the empty folders."""
    below = [(folder, path) for folder in folders for path in sorted(Path(folder).rglob("*"))]
    return [
        str(path)
        for folder, path in below
        if path.suffix not in (".py", NOTEBOOK)
        and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        and (path.is_file() or (path.is_dir() and not any(path.iterdir())))
    ]


def _owner(file: str, folders: Sequence[str]) -> str | None:
    """Return the student's folder that contains a file, if any."""
    for folder in folders:
        if Path(file).is_relative_to(folder):
            first, *below = Path(file).relative_to(folder).parts or ("",)
            return str(Path(folder, first)) if below else None
    return None


def _names_above(file: str, folders: Sequence[str]) -> list[str]:
    """Return the names that may contain a student's id: the file's name and its folders' names."""
    path = Path(file)
    above = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
    inside = path.relative_to(above)
    return [Path(above).resolve().name, *inside.parts[:-1], inside.stem]


def _owner_in(roster: Sequence[tuple[str, str]], names: list[str]) -> tuple[str, str] | None:
    """Return the student whose id or name is in these names; None if no single student fits."""
    for column in range(2):  # search for ids, then for names
        owners = [
            student for student in roster if any(map(_pattern(student[column]).search, names))
        ]
        longest = max((len(student[column]) for student in owners), default=0)
        owners = [student for student in owners if len(student[column]) == longest]
        if len(owners) == 1:
            return owners[0]
    return None


@functools.lru_cache(4096)
def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern that finds a name in a text, with any separators between its words."""
    words = [re.escape(word) for word in re.findall(r"[^\W_]+", name)]
    joined = r"[\W_]+".join(words) or "(?!)"  # (?!) never matches
    return re.compile(rf"(?<![^\W_]){joined}(?![^\W_])", re.IGNORECASE)


class ClassTable:
    """The marked files of a class of students.

    Args:
        marked: the name and the verdicts of each file.
        students: the students and their files; if None, each file has its own row.
        plan: the chosen tasks and the points of each task.

    Attributes:
        columns: the names of the columns that identify a row: file, student, or id and name.
        tasks: the columns of the tasks: the tasks of the plan, or else the marked tasks.
        marked: the name and the verdicts of each file. A student without files has one verdict,
            which says that no file was handed in.
    """

    def __init__(
        self, marked: Sequence[Marked], students: Students | None = None, plan: Plan | None = None
    ) -> None:
        marks, self.plan = dict(marked), plan or Plan()
        students = students or by_file([*marks])
        self.columns = students.columns
        self._rows = [(student.names, student.pick_verdicts(marks)) for student in students.rows]
        self.marked = [mark for _, marks_of_row in self._rows for mark in marks_of_row]
        names = {result.task for result in self._results()}
        tasks = [self.plan.column(name) for name in TASKS if name in names]
        self.tasks = self.plan.columns or tuple(tasks)
        self._lessons = {file: self.plan.lesson_of(file) for file, _ in self.marked}

    @property
    def headings(self) -> list[str]:
        """The headings of the tasks and of the sum, each with the maximum of its points."""
        sums = [*((column.title, column.most) for column in self.tasks)]
        sums.append(("points", sum(column.most for column in self.tasks)))
        return [f"{title} ({most:g})" for title, most in sums]

    @property
    def commonest(self) -> list[tuple[int, str, str]]:
        """The mistakes, most common first, as tuples `(number of verdicts, task, name)`."""
        counted = [(said.total(), task, key) for (task, key), said in self._count_texts().items()]
        return sorted(counted, key=lambda row: (-row[0], *row[1:]))

    def _count_texts(self) -> dict[tuple[str, str], Counter[str]]:
        """Count the sentences about each mistake, by the task and the name of the mistake."""
        said: dict[tuple[str, str], Counter[str]] = {}
        for result in self._results():
            for key in (*result.mistakes, *result.fragile):
                sentences = said.setdefault((result.task or "file", key), Counter())
                sentences[result.says.get(key, key)] += 1
        return said

    def _results(self) -> list[CheckResult]:
        return [result for _, results in self.marked for result in results]

    def rows(self) -> Iterator[tuple[tuple[str, ...], list[float | None], float, str]]:
        """Yield each row's names, points per task, total points and mistakes.

        If several files of a student are marked for a task, the best file counts. If the plan lists
        the tasks, a task without a verdict has 0 points.
        """
        none = 0 if self.plan.columns else None
        for names, marks in self._rows:
            best = self.pick_best(marks)
            points = [
                column.weigh(_points(best[column])) if column in best else none
                for column in self.tasks
            ]
            keys = " ".join(key for result in _distinct(best) for key in result.mistakes)
            yield names, points, round(sum(filter(None, points)), 2), keys

    def pick_best(self, marks: Sequence[Marked]) -> dict[Column | None, Sequence[CheckResult]]:
        """Return the verdicts that count in each column; None is the column of whole files."""
        best: dict[Column | None, Sequence[CheckResult]] = {}
        for file, results in marks:
            fitting = [column for column in self.tasks if column.fits(self._lessons[file])]
            for column in (*fitting, None):
                task = column and column.task
                of_task = [result for result in results if result.task == task]
                if of_task and (column not in best or _points(of_task) > _points(best[column])):
                    best[column] = of_task
        return best

    def write_csv(self, path: StrPath) -> None:
        """Write a CSV file. Each line has names, points per task, total points and mistakes.

        Raises:
            OSError: the file cannot be written.
        """
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow([*self.columns, *self.headings, "mistakes"])
        for names, points, total, mistakes in self.rows():
            lines.writerow([*map(_plain, names), *map(_show, (*points, total)), mistakes])
        with replacing(path) as out:
            out.write(text.getvalue().encode("utf-8", "replace"))

    def write_html(self, path: StrPath) -> None:
        """Write the table as an HTML page with the most common mistakes.

        Raises:
            OSError: the file cannot be written.
        """
        results, said = self._results(), self._count_texts()
        noun = "file" if self.columns == ("file",) else "student"
        points = ' class="points"'
        heads = [_cell("th", name, ' scope="col"') for name in self.columns]
        heads += [_cell("th", name, f' scope="col"{points}') for name in self.headings]
        common = "".join(
            f"<tr>{_cell('td', count, points)}{_cell('td', task)}"
            f"{_cell('td', _commonest(said[task, key]))}</tr>"
            for count, task, key in self.commonest
        )
        page = files(__package__).joinpath("class_table.html").read_text("utf-8")
        text = Template(page).substitute(
            counted=f"{len(self._rows)} {noun}{'s' if len(self._rows) != 1 else ''}",
            noun=noun,
            passed=sum(result.passed for result in results),
            verdicts=len(results),
            heads="".join([*heads, _cell("th", "mistakes", ' scope="col"')]),
            rows="\n".join(starmap(_html_row, zip(self.rows(), self._rows_best(), strict=True))),
            commonest=f"<table>{common}</table>" if common else "<p>None.</p>",
        )
        with replacing(path) as out:
            out.write(text.encode("utf-8", "replace"))

    def _rows_best(self) -> Iterator[list[CheckResult]]:
        return (_distinct(self.pick_best(marks)) for _, marks in self._rows)


def _distinct(best: Mapping[Column | None, Sequence[CheckResult]]) -> list[CheckResult]:
    return [*dict.fromkeys(result for results in best.values() for result in results)]


def _show(points: float | None) -> str:
    return "" if points is None else f"{points:g}"


def _html_row(
    row: tuple[tuple[str, ...], list[float | None], float, str], results: list[CheckResult]
) -> str:
    names, points, total, _ = row
    cells = [_cell("th", name, ' scope="row"') for name in names]
    cells += [_cell("td", _show(n), ' class="points"') for n in (*points, total)]
    sentences = "".join(
        _cell("p", f"{result.task}: " * bool(result.task) + result.says.get(key, key))
        for result in results
        for key in result.mistakes
    )
    return f"<tr>{''.join(cells)}<td>{sentences}</td></tr>"


def _commonest(said: Counter[str]) -> str:
    """Return the most common sentence, marked if there are other sentences."""
    ((sentence, _),) = said.most_common(1)
    return sentence if len(said) == 1 else f"for example: {sentence}"


def _cell(tag: str, content: object, attributes: str = "") -> str:
    return f"<{tag}{attributes}>{escape(str(content))}</{tag}>"


def _points(results: Sequence[CheckResult]) -> int:
    """Return a file's points in a task: the points of the worst function for the task."""
    return min(result.points for result in results)


def _plain(name: str) -> str:
    """Put a `'` before each part of a name that a spreadsheet might treat as a formula."""
    return _FORMULA.sub(r"\1'", name)


def files_in(folder: StrPath) -> list[str]:
    """List the Python files and notebooks in a folder and its subfolders, sorted by name.

    Hidden files are omitted; broken links are included.

    Raises:
        FileNotFoundError: the folder has no Python files and no notebooks.
    """
    paths = [
        str(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix in (".py", NOTEBOOK)
        and _handed_in(path)
        and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise FileNotFoundError(f"{folder} has no Python files and no notebooks")
    return paths


def _handed_in(path: Path) -> bool:
    """Return True for files, broken links and unreadable paths; other paths are not marked."""
    try:
        return path.is_file() or (path.is_symlink() and not path.exists())
    except OSError:
        return True
