"""The verdicts on a class: points by file and task, and its commonest mistakes."""

from __future__ import annotations

import csv
import html
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv.files import replacing
from qkv.marking.files.notebook import SUFFIX
from qkv.marking.files.students import Students, by_file
from qkv.marking.result import CheckResult
from qkv.marking.tasks import TASKS

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>qkv check</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #8886; text-align: left; }}
.points {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
<h1>{rows_in_all}, {passed} of {verdicts} passed</h1>
<div tabindex="0" role="region" aria-label="Points by {noun} and task">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<h2>Commonest mistakes</h2>
{commonest}
</html>
"""


class ClassTable:
    """What a class handed in, marked.

    Args:
        marked: each file's name, and its verdicts.
        students: whose files they are; None for a row for each file.

    Attributes:
        columns: the names of the columns that say whose a row is: file, student, or id and name.
        marked: each file's name, and its verdicts; of a student without files, one verdict that
            says so.
    """

    def __init__(
        self,
        marked: Sequence[tuple[str, Sequence[CheckResult]]],
        students: Students | None = None,
    ) -> None:
        marks = dict(marked)
        students = students or by_file([*marks])
        self.columns = students.columns
        self._rows = [(student.names, student.marked(marks)) for student in students.rows]
        self.marked = [one for _, files in self._rows for one in files]

    @property
    def tasks(self) -> list[str]:
        """The tasks that any file was marked in, in the order of the course."""
        there = {result.task for _, results in self.marked for result in results}
        return [name for name in TASKS if name in there]

    @property
    def commonest(self) -> list[tuple[int, str, str]]:
        """How many verdicts name a mistake, its task, and its name: the commonest first."""
        counted = Counter(
            (result.task or "file", key)
            for _, results in self.marked
            for result in results
            for key in (*result.mistakes, *result.fragile)
        )
        order = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
        return [(count, task, key) for (task, key), count in order]

    def rows(self) -> Iterator[tuple[tuple[str, ...], list[int | None], int, str]]:
        """Whose row it is, the points in each task, their sum, and the mistakes.

        Where several files of a student are marked in a task, the best counts.
        """
        for names, files in self._rows:
            best: dict[str | None, Sequence[CheckResult]] = {}
            for _, results in files:
                for task in dict.fromkeys(result.task for result in results):
                    there = [result for result in results if result.task == task]
                    if task not in best or _points(there) > _points(best[task]):
                        best[task] = there
            counted = {task: _points(results) for task, results in best.items()}
            keys = (key for results in best.values() for one in results for key in one.mistakes)
            points = [counted.get(task) for task in self.tasks]
            yield names, points, sum(counted.values()), " ".join(keys)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a line for each row: whose it is, points in each task, their sum, and mistakes.

        Raises:
            OSError: it cannot be written.
        """
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow([*self.columns, *self.tasks, "points", "mistakes"])
        for names, points, total, mistakes in self.rows():
            shown = ["" if one is None else one for one in points]
            lines.writerow([*map(_plain, names), *shown, total, mistakes])
        with replacing(path) as out:
            out.write(text.getvalue().encode("utf-8", "replace"))

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write the same as a page, with the commonest mistakes.

        Raises:
            OSError: it cannot be written.
        """
        verdicts = [result for _, results in self.marked for result in results]
        noun = "file" if self.columns == ("file",) else "student"
        rows = "\n".join(self._row(*row) for row in self.rows())
        common = "".join(
            f'<tr><td class="points">{count}</td><td>{html.escape(task)}</td><td>{key}</td></tr>'
            for count, task, key in self.commonest
        )
        page = _PAGE.format(
            rows_in_all=f"{len(self._rows)} {noun}{'s' if len(self._rows) != 1 else ''}",
            noun=noun,
            passed=sum(result.passed for result in verdicts),
            verdicts=len(verdicts),
            head="".join(
                [
                    *(f'<th scope="col">{name}</th>' for name in self.columns),
                    *(f'<th scope="col" class="points">{task}</th>' for task in self.tasks),
                    '<th scope="col" class="points">points</th><th scope="col">mistakes</th>',
                ]
            ),
            rows=rows,
            commonest=f"<table>{common}</table>" if common else "<p>None.</p>",
        )
        with replacing(path) as out:
            out.write(page.encode("utf-8", "replace"))

    def _row(
        self, names: tuple[str, ...], points: list[int | None], total: int, mistakes: str
    ) -> str:
        cells = ["" if one is None else str(one) for one in (*points, total)]
        heads = "".join(f'<th scope="row">{html.escape(name)}</th>' for name in names)
        numbers = "".join(f'<td class="points">{cell}</td>' for cell in cells)
        return f"<tr>{heads}{numbers}<td>{mistakes}</td></tr>"


def _points(results: Sequence[CheckResult]) -> int:
    """The points of a file in one task; the fewest, where several functions answer it."""
    return min(result.points for result in results)


def _plain(name: str) -> str:
    """A name that a spreadsheet does not take for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def files_in(folder: str | os.PathLike[str]) -> list[str]:
    """The Python files and notebooks in a folder and below, by name; hidden ones are left out.

    Links that lead nowhere are among them.

    Raises:
        FileNotFoundError: there is none.
    """
    found = [
        str(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix in (".py", SUFFIX)
        and _handed_in(path)
        and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise FileNotFoundError(f"{folder} has no Python files and no notebooks")
    return found


def _handed_in(path: Path) -> bool:
    """A file, or what was to be one and cannot be read; no folders, pipes and devices."""
    try:
        return path.is_file() or (path.is_symlink() and not path.exists())
    except OSError:
        return True
