"""Assign the files that students handed in to the students, and write a table of the verdicts."""

import csv
import functools
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from qkv.files import StrPath, replacing
from qkv_marking._points import ALL_POINTS
from qkv_marking._result import BY_TEACHER, CheckResult
from qkv_marking.files._plan import Column, Plan, find_lesson, find_task, read_columns
from qkv_marking.files._source import NOTEBOOK
from qkv_marking.files.page import element, write_page
from qkv_marking.files.verdicts import describe_found, kind_of_file, not_marked
from qkv_marking.tasks import TASKS

Marked = tuple[str, Sequence[CheckResult]]  # the name and the verdicts of a file
_COLUMNS = ("id", "name")
_NOTHING = "nothing-handed-in"
_ABSENT = ("missing-function", "no-function")  # the mistakes of a file that has none of the tasks
# The start of a cell, also after a semicolon, and the sign of a formula, also in full width.
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r])")


@dataclass(frozen=True)
class Student:
    """A row of a class table.

    Attributes:
        names: the first cells of the row: a file, a student's folder, or a student's id and name.
            For a file without a student, the id is empty and the name is the file's path.
        files: the student's files.
        others: other files and empty folders, for a student without Python files and notebooks.
        graded: the grades that a teacher gave.
    """

    names: tuple[str, ...]
    files: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    graded: tuple[Marked, ...] = ()

    def pick_verdicts(self, marks: dict[str, Sequence[CheckResult]]) -> list[Marked]:
        """Return each file and its verdicts, or one verdict that says that there are no files."""
        if not self.files:
            shows = f"no file or folder is named after {' or '.join(filter(None, self.names))}"
            if self.others:
                shows = describe_found(self.others)
            return [(self.names[0], (not_marked(_NOTHING, shows, None),)), *self.graded]
        return [*((file, marks[file]) for file in self.files), *self.graded]


@dataclass(frozen=True)
class Students:
    """The rows of a class table, and the names of the columns that identify a row."""

    columns: tuple[str, ...]
    rows: tuple[Student, ...]

    def select(self, chosen: Callable[[Sequence[str]], tuple[str, ...]]) -> "Students":
        """Keep only some files of each student; `chosen` selects among the files of one student."""
        rows = (replace(student, files=chosen(student.files)) for student in self.rows)
        return replace(self, rows=tuple(rows))


class Row(NamedTuple):
    """A row of a class table.

    Attributes:
        names: the cells that identify the row.
        points: the points for each task, or None.
        total: the sum of the points.
        best: for each task, the file and the verdicts that count; the key None stands for whole
            files.
        marks: all files of the row, and their verdicts.
        take: which of several files counts, "best" or "latest".
    """

    names: tuple[str, ...]
    points: list[float | None]
    total: float
    best: Mapping[Column | None, Marked]
    marks: Sequence[Marked]
    take: str

    @property
    def files(self) -> list[Marked]:
        """The files that were handed in, and their verdicts."""
        firsts = ((mark, mark[1][0]) for mark in self.marks)
        return [mark for mark, r in firsts if not r.by_teacher and r.mistake != _NOTHING]

    @property
    def counted(self) -> list[str]:
        """The files that count for a task; if there are none, the files that could not be read."""
        handed_in = {file for file, _ in self.files}
        counted = {column: file for column, (file, _) in self.best.items() if file in handed_in}
        files = [file for column, file in counted.items() if column is not None]
        return [*dict.fromkeys(files or counted.values())]

    @property
    def note(self) -> str:
        """The files that count, if there are several; otherwise ""."""
        names = ", ".join(Path(file).name for file in self.counted)
        return f"{self.take} of {len(self.files)}: {names}" if len(self.files) > 1 else ""

    @property
    def results(self) -> list[CheckResult]:
        """The verdicts that count."""
        return [*dict.fromkeys(result for _, results in self.best.values() for result in results)]

    @property
    def mistakes(self) -> str:
        """The short names of the mistakes that count."""
        return " ".join(key for result in self.results for key in result.mistakes)


def read_roster(path: StrPath) -> list[tuple[str, str]]:
    """Read the ids and names of students from a CSV file with the columns `id` and `name`.

    Other columns and lines without an id are ignored.

    Raises:
        ValueError: a column is missing, an id occurs twice, or the file is not CSV in UTF-8.
        OSError: the file cannot be read.
    """
    names: dict[str, str] = {}
    for _, row in read_columns(path, *_COLUMNS):
        identity, name = row.values()
        if identity and identity in names:
            raise ValueError(
                f"{path} has the id {identity} twice: give each student a different id"
            )
        names[identity] = name
    names.pop("", None)
    return [*names.items()]


def add_grades(path: StrPath, students: Students, plan: Plan) -> tuple[Students, Plan]:
    """Add a teacher's grades to students; if a plan lists its tasks, add the graded tasks.

    Args:
        path: a CSV file with the columns `id`, `task`, `points` and, optionally, `comment`. The
            grade of a task that is also marked replaces the marker's points. Lines without points
            are ignored.
        students: the students.
        plan: the chosen tasks and the points for each task.

    Raises:
        ValueError: an id or a task is unknown or occurs twice, or the points are out of range.
        OSError: the file cannot be read.
    """
    owners = {name: row for row in students.rows for name in _ids(row.names[0], students.columns)}
    graded: dict[tuple[str, ...], dict[str, CheckResult]] = {}
    columns: dict[str, Column] = {}
    for number, cells in read_columns(path, "id", "task", "points", optional=("comment",)):
        where, (identity, name, given, comment) = f"{path}, line {number}", cells.values()
        if not given:
            continue
        if identity not in owners:
            raise ValueError(f"{where}: the id {identity} is unknown: use an id from the table")
        try:
            task, points = find_task(name), float(given)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        column = columns[task] = plan.column(task)
        of_student = graded.setdefault(owners[identity].names, {})
        if not 0 <= points <= column.most:
            raise ValueError(
                f"{where}: points is {given}; choose a number from 0 to {column.most:g}, or change"
                " the maximum with --points"
            )
        if task in of_student:
            raise ValueError(f"{where}: {identity} has a second grade for {task}: remove one")
        share = points / column.most if column.most else 0
        of_student[task] = CheckResult(
            comment, points=ALL_POINTS * share, task=task, reason=BY_TEACHER
        )
    rows = tuple(
        replace(row, graded=((f"{path}: {row.names[0]}", (*found.values(),)),))
        if (found := graded.get(row.names))
        else row
        for row in students.rows
    )
    known = {column.task for column in plan.columns}
    more = tuple(column for task, column in columns.items() if task not in known and known)
    return replace(students, rows=rows), replace(plan, columns=(*plan.columns, *more))


def _ids(name: str, columns: tuple[str, ...]) -> set[str]:
    """Return the ids of a row: an id of the roster, or the name of a file or folder."""
    return {name} if columns == _COLUMNS else {name, Path(name).name, Path(name).stem}


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
    names are searched: "Last, First" and "First Last" are the same name. If several ids are found,
    the file belongs to the student with the longest id.
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
    names = [unicodedata.normalize("NFC", name) for name in names]
    for column, loosely in ((0, False), (1, False), (1, True)):
        texts = [*map(_plain_letters, names)] if loosely else names
        owners = [s for s in roster if any(map(_pattern(s[column], loosely).search, texts))]
        lengths = [sum(map(str.isalnum, student[column])) for student in owners]
        longest = max(lengths, default=0)
        owners = [s for s, length in zip(owners, lengths, strict=True) if length == longest]
        if len(owners) == 1:
            return owners[0]
    return None


def _plain_letters(name: str) -> str:
    """Remove the accents of letters."""
    letters = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


@functools.lru_cache(4096)
def _pattern(name: str, loosely: bool) -> re.Pattern[str]:
    """Return a pattern that finds a name in a text, with any separators between its words.

    If `loosely` is True, the last words may come first ("Berg, Anna"), separators may be missing,
    and letters have no accents.
    """
    name = _plain_letters(name) if loosely else unicodedata.normalize("NFC", name)
    words = [re.escape(word) for word in re.findall(r"[^\W_]+", name)]
    orders = [words[at:] + words[:at] for at in range(max(1, len(words)))] if loosely else [words]
    separator = r"[\W_]*" if loosely else r"[\W_]+"
    joined = "|".join(separator.join(order) for order in orders) or "(?!)"  # (?!) never matches
    return re.compile(rf"(?<![^\W_])(?:{joined})(?![^\W_])", re.IGNORECASE)


class ClassTable:
    """The marked files of a class of students.

    Args:
        marked: the name and the verdicts of each file.
        students: the students and their files; if None, each file has its own row.
        plan: the chosen tasks and the points of each task.
        take: which file of a student counts for a task, "best" or "latest". The latest file was
            modified last; among files modified at the same time, it has the highest number in its
            name. Files without any of the tasks are skipped.

    Attributes:
        columns: the names of the columns that identify a row: file, student, or id and name.
        tasks: a column for each task of the plan, or else for each marked task.
        marked: the name and the verdicts of each file. A student without files has one verdict,
            which says that no file was handed in.
    """

    def __init__(
        self,
        marked: Sequence[Marked],
        students: Students | None = None,
        plan: Plan | None = None,
        take: str = "best",
    ) -> None:
        marks, self.plan, self.take = dict(marked), plan or Plan(), take
        students = students or by_file([*marks])
        self.columns = students.columns
        self._marks = [(student.names, student.pick_verdicts(marks)) for student in students.rows]
        self.marked = [mark for _, marks_of_row in self._marks for mark in marks_of_row]
        found = (result.task for _, results in self.marked for result in results if result.task)
        names = dict.fromkeys(found)
        ordered = sorted(names, key=lambda name: [*TASKS, name].index(name))
        tasks = [self.plan.column(name) for name in ordered]
        self.tasks = self.plan.columns or tuple(tasks)
        self._lessons = {file: self.plan.lesson_of(file) for file, _ in self.marked}

    @property
    def headings(self) -> list[str]:
        """The headings of the tasks and of the sum, each with its maximum number of points."""
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
        """Return the verdicts of the marker."""
        return [r for _, results in self.marked for r in results if not r.by_teacher]

    @functools.cached_property
    def rows(self) -> list[Row]:
        """The rows.

        If several files of a student are marked for a task, the best file counts, or the latest
        file if `take` is "latest". If the plan lists the tasks, a task without a verdict gets 0
        points.
        """
        return [self._row(names, marks) for names, marks in self._marks]

    def _row(self, names: tuple[str, ...], marks: Sequence[Marked]) -> Row:
        none = 0 if self.plan.columns else None
        best = self.pick_best(marks)
        points = [
            column.weigh(_points(best[column][1])) if column in best else none
            for column in self.tasks
        ]
        return Row(names, points, round(sum(filter(None, points)), 2), best, marks, self.take)

    def pick_best(self, marks: Sequence[Marked]) -> dict[Column | None, Marked]:
        """Return the file and verdicts that count in each column; None stands for whole files."""
        best: dict[Column | None, Marked] = {}
        for file, results in self._latest(marks) if self.take == "latest" else marks:
            fitting = [column for column in self.tasks if column.fits(self._lessons[file])]
            for column in (*fitting, None):
                task = column and column.task
                of_task = [result for result in results if result.task == task]
                if of_task and of_task[0].by_teacher and column in best:
                    best[column] = best[column][0], [_regrade(best[column][1][0], of_task[0])]
                elif of_task and (
                    column not in best or _points(of_task) > _points(best[column][1])
                ):
                    best[column] = file, of_task
        return best

    def _latest(self, marks: Sequence[Marked]) -> list[Marked]:
        """Return the latest file of each lesson, and the grades of the teacher."""
        graded = [mark for mark in marks if mark[1][0].by_teacher]
        files = [mark for mark in marks if mark not in graded]
        answers = [
            mark for mark in files if any(result.mistake not in _ABSENT for result in mark[1])
        ]
        lesson_of = self._lessons.get if self.plan.columns else find_lesson
        latest = {lesson_of(mark[0]): mark for mark in sorted(answers or files, key=_by_time)}
        return [*latest.values(), *graded]

    @property
    def notes(self) -> list[str]:
        """The heading of the cells that say which files count, if students have several files."""
        return ["files"] * any(row.note for row in self.rows)

    def write_csv(self, path: StrPath) -> None:
        """Write a CSV file. Each line has names, points per task, total points and mistakes.

        Raises:
            OSError: the file cannot be written.
        """
        text = io.StringIO()
        lines = csv.writer(text)
        notes = self.notes
        lines.writerow([*self.columns, *self.headings, *notes, "mistakes"])
        for row in self.rows:
            cells = [*map(_show, (*row.points, row.total)), *map(_plain, [row.note] * len(notes))]
            lines.writerow([*map(_plain, row.names), *cells, row.mistakes])
        with replacing(path) as out:
            out.write(text.getvalue().encode("utf-8", "replace"))

    def write_html(self, path: StrPath, links: Sequence[str] = ()) -> None:
        """Write the table as an HTML page with the most common mistakes.

        Args:
            path: the file to write.
            links: the addresses of the rows' feedback pages, as `write_feedback` returns them.

        Raises:
            OSError: the file cannot be written.
        """
        results, said = self._results(), self._count_texts()
        noun = "file" if self.columns == ("file",) else "student"
        counted = f"{len(self._marks)} {noun}{'s' if len(self._marks) != 1 else ''}"
        heads = [element("th", name, scope="col") for name in self.columns]
        heads += [element("th", name, scope="col", class_="points") for name in self.headings]
        heads += [element("th", name, scope="col") for name in (*self.notes, "mistakes")]
        rows = map(_html_row, self.rows, chain(links, repeat("")), repeat(len(self.notes)))
        common = "".join(
            f"<tr>{element('td', count, class_='points')}{element('td', task)}"
            f"{element('td', _commonest(said[task, key]))}</tr>"
            for count, task, key in self.commonest
        )
        passed = sum(result.passed for result in results)
        write_page(
            path,
            f"{counted}, {passed} of {len(results)} passed",
            f'<div tabindex="0" role="region" aria-label="Points by {noun} and task">\n<table>',
            f"<thead><tr>{''.join(heads)}</tr></thead>",
            "<tbody>",
            *rows,
            "</tbody></table></div>\n<h2>Most common mistakes</h2>",
            f"<table>{common}</table>" if common else "<p>None.</p>",
        )


def _html_row(row: Row, link: str, notes: int) -> str:
    names = [element("th", name, scope="row") for name in row.names]
    if link:
        shown = element("a", row.names[-1] or row.names[0], href=link)
        names[-1] = f'<th scope="row">{shown}</th>'
    cells = [element("td", _show(n), class_="points") for n in (*row.points, row.total)]
    sentences = "".join(
        element("p", f"{result.task}: " * bool(result.task) + result.says.get(key, key))
        for result in row.results
        for key in result.mistakes
    )
    cells += [element("td", row.note)] * notes
    return f"<tr>{''.join((*names, *cells))}<td>{sentences}</td></tr>"


def _show(points: float | None) -> str:
    return "" if points is None else f"{points:g}"


def _commonest(said: Counter[str]) -> str:
    """Return the most common sentence; add "for example" if there are different sentences."""
    ((sentence, _),) = said.most_common(1)
    return sentence if len(said) == 1 else f"for example: {sentence}"


def _regrade(result: CheckResult, grade: CheckResult) -> CheckResult:
    """Return a verdict with the points and the comment of a teacher."""
    message = "\n".join(filter(None, (grade.message, result.message)))
    return replace(result, points=grade.points, reason=grade.reason, message=message)


def _by_time(mark: Marked) -> tuple[float, list[Any]]:
    """Return a key that sorts files by modification time, then by the numbers in their names."""
    words = re.split(r"(\d+)", Path(mark[0]).stem)
    name = [int(word) if word.isdecimal() else word for word in words]
    try:
        return Path(mark[0]).stat().st_mtime, name
    except OSError:
        return 0, name


def _points(results: Sequence[CheckResult]) -> float:
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
