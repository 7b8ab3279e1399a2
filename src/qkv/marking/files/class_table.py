"""A table of the verdicts on a class's files: points by task, and the commonest mistakes."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from qkv.files import replacing
from qkv.marking.files.notebook import SUFFIX
from qkv.marking.files.students import Marked, Students, by_file
from qkv.marking.result import CheckResult
from qkv.marking.tasks import TASKS


class ClassTable:
    """The marked files of a class.

    Args:
        marked: each file's name, and its verdicts.
        students: the students and their files; if None, each file has its own row.

    Attributes:
        columns: the names of the columns that identify a row: file, student, or id and name.
        marked: each file's name, and its verdicts; for a student without files, one verdict that
            says so.
    """

    def __init__(self, marked: Sequence[Marked], students: Students | None = None) -> None:
        marks = dict(marked)
        students = students or by_file([*marks])
        self.columns = students.columns
        self._rows = [(student.names, student.marked(marks)) for student in students.rows]
        self.marked = [mark for _, marks_of_row in self._rows for mark in marks_of_row]

    @property
    def tasks(self) -> list[str]:
        """The tasks for which any file was marked, in the order of the course."""
        marked = {result.task for result in self._results()}
        return [name for name in TASKS if name in marked]

    @property
    def commonest(self) -> list[tuple[int, str, str]]:
        """Each mistake as `(number of verdicts, task, name)`, the commonest mistake first."""
        counted = Counter(
            (result.task or "file", key)
            for result in self._results()
            for key in (*result.mistakes, *result.fragile)
        )
        order = sorted(counted.items(), key=lambda row: (-row[1], row[0]))
        return [(count, task, key) for (task, key), count in order]

    def _results(self) -> list[CheckResult]:
        return [result for _, results in self.marked for result in results]

    def rows(self) -> Iterator[tuple[tuple[str, ...], list[int | None], int, str]]:
        """Yield the names of each row, the points in each task, their sum, and the mistakes.

        If several files of a student are marked for a task, the best file counts.
        """
        for names, marks in self._rows:
            best: dict[str | None, Sequence[CheckResult]] = {}
            for _, results in marks:
                for task in dict.fromkeys(result.task for result in results):
                    of_task = [result for result in results if result.task == task]
                    if task not in best or _points(of_task) > _points(best[task]):
                        best[task] = of_task
            counted = {task: _points(results) for task, results in best.items()}
            keys = (key for results in best.values() for each in results for key in each.mistakes)
            points = [counted.get(task) for task in self.tasks]
            yield names, points, sum(counted.values()), " ".join(keys)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a line for each row: its names, points in each task, their sum, and mistakes.

        Raises:
            OSError: the file cannot be written.
        """
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow([*self.columns, *self.tasks, "points", "mistakes"])
        for names, points, total, mistakes in self.rows():
            lines.writerow([*map(_plain, names), *points, total, mistakes])  # None: empty
        with replacing(path) as out:
            out.write(text.getvalue().encode("utf-8", "replace"))

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the table as a page, with the commonest mistakes.

        Raises:
            OSError: the file cannot be written.
        """
        results = self._results()
        noun = "file" if self.columns == ("file",) else "student"
        points = ' class="points"'
        heads = [_cell("th", name, ' scope="col"') for name in self.columns]
        heads += [_cell("th", name, f' scope="col"{points}') for name in (*self.tasks, "points")]
        common = "".join(
            f"<tr>{_cell('td', count, points)}{_cell('td', task)}{_cell('td', key)}</tr>"
            for count, task, key in self.commonest
        )
        page = files(__package__).joinpath("class_table.html").read_text("utf-8")
        text = Template(page).substitute(
            counted=f"{len(self._rows)} {noun}{'s' if len(self._rows) != 1 else ''}",
            noun=noun,
            passed=sum(result.passed for result in results),
            verdicts=len(results),
            heads="".join([*heads, _cell("th", "mistakes", ' scope="col"')]),
            rows="\n".join(_row(*row) for row in self.rows()),
            commonest=f"<table>{common}</table>" if common else "<p>None.</p>",
        )
        with replacing(path) as out:
            out.write(text.encode("utf-8", "replace"))


def _row(names: tuple[str, ...], points: list[int | None], total: int, mistakes: str) -> str:
    cells = [_cell("th", name, ' scope="row"') for name in names]
    cells += [_cell("td", "" if n is None else n, ' class="points"') for n in (*points, total)]
    return f"<tr>{''.join(cells)}{_cell('td', mistakes)}</tr>"


def _cell(tag: str, content: object, attributes: str = "") -> str:
    return f"<{tag}{attributes}>{escape(str(content))}</{tag}>"


def _points(results: Sequence[CheckResult]) -> int:
    """Return a file's points in one task: the lowest points of the functions for the task."""
    return min(result.points for result in results)


def _plain(name: str) -> str:
    """Mark a name as text, so that no spreadsheet takes it for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def files_in(folder: str | os.PathLike[str]) -> list[str]:
    """List the Python files and notebooks in a folder and its subfolders, sorted by name.

    Hidden files are left out; broken links are included.

    Raises:
        FileNotFoundError: the folder has no such file.
    """
    paths = [
        str(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix in (".py", SUFFIX)
        and _handed_in(path)
        and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise FileNotFoundError(f"{folder} has no Python files and no notebooks")
    return paths


def _handed_in(path: Path) -> bool:
    """Is the path a file, or unreadable? Return False for a folder, a pipe or a device."""
    try:
        return path.is_file() or (path.is_symlink() and not path.exists())
    except OSError:
        return True
