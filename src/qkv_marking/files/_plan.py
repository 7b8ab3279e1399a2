"""The tasks that a teacher chose, and the points of each task."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from qkv.files import StrPath, ordinary
from qkv_marking._check_function import task_of
from qkv_marking._points import ALL_POINTS
from qkv_marking.files._source import NOTEBOOK, read_notebook

# The name and the tasks of each lesson; `tests/course` compares them with the lessons' notebooks.
LESSONS = MappingProxyType({
    1: ("why-attention", ("recurrence-table", "score-needed")),
    2: ("by-hand", ("ids", "projections", "batched-attention", "calm-query")),
    3: ("one-function", ("softmax", "batched-attention")),
    4: ("order", ("positions", "rotation")),
    5: ("masks-and-batches", ("batched-mask", "kv-cache")),
    6: ("many-heads", ("heads", "self-attention-class")),
    7: ("real-weights", ("neighbour-score", "closeness")),
    8: ("the-rest", ("block", "decoder")),
    9: ("how-projections-are-learned", ("softmax-back", "gradients", "adjectives")),
    10: ("ways-to-get-it-wrong", ("self-attention", "tiles")),
    11: ("cross-attention", ("cross-attention", "decoder-block", "writing-step")),
    12: (
        "capstone",
        ("story", "story-model", "induction-score", "induction-head", "head-removed"),
    ),
    13: ("real-text", ("next-token-loss", "learning-rate", "top-k", "top-p")),
})  # fmt: skip
_LESSON = re.compile(r"(?<![^\W_])lesson[\W_]*0*(\d+)(?!\d)", re.IGNORECASE)
_QUESTION = re.compile(r"([1-9]\d*)\.[1-3]")  # the lesson and the number in the question bank
_SENTENCES = "sentences"  # the five sentences at the end of the capstone
Weights = Mapping[tuple[int | None, str], float]


class Column(NamedTuple):
    """A task in a class table.

    Attributes:
        task: the name of the task.
        most: the points for a right answer.
        lesson: the number of the task's lesson, if the table has tasks of several lessons.
        asked: the name for `check_file`: the task, or a function of the task; "" if only a teacher
            grades the task.
    """

    task: str
    most: float = ALL_POINTS
    lesson: int | None = None
    asked: str = ""

    @property
    def title(self) -> str:
        """The name of the task, preceded by the number of its lesson."""
        return self.task if self.lesson is None else f"{self.lesson} {self.task}"

    def weigh(self, points: float) -> float:
        """Scale points out of 10 to the maximum of this column.

        >>> Column("softmax", 5).weigh(9)
        4.5
        """
        return points if self.most == ALL_POINTS else round(points * self.most / ALL_POINTS, 2)

    def fits(self, lesson: int | None) -> bool:
        """Return whether a file of this lesson, or of an unknown lesson, counts in this column."""
        return None in (self.lesson, lesson) or self.lesson == lesson


@dataclass(frozen=True)
class Plan:
    """The tasks to mark, and their points.

    Attributes:
        columns: the chosen tasks; empty if each file decides for which tasks it is marked.
        lessons: the numbers of the chosen lessons.
        weights: the points for a right answer, keyed by `(lesson, task)`; the lesson may be None.
    """

    columns: tuple[Column, ...] = ()
    lessons: tuple[int, ...] = ()
    weights: Weights = field(default_factory=dict)

    def select(self, files: Sequence[str]) -> tuple[str, ...]:
        """Omit the files of other lessons; if a student has no other files, keep all files."""
        own = [
            file for file in files if not self.lessons or find_lesson(file) in (None, *self.lessons)
        ]
        return tuple(own or files)

    def lesson_of(self, file: StrPath) -> int | None:
        """Return the chosen lesson to which a file belongs, or None if it is unknown."""
        lesson = find_lesson(file) if len(self.lessons) > 1 else None
        return lesson if lesson in self.lessons else None

    def tasks_of(self, file: StrPath) -> tuple[str, ...] | None:
        """Return the tasks for which a file is marked; None if the file decides."""
        lesson = self.lesson_of(file)
        asked = [column.asked for column in self.columns if column.fits(lesson)]
        return tuple(dict.fromkeys(filter(None, asked))) or None

    def column(self, task: str, file: StrPath = "") -> Column:
        """Return the column in which a verdict on a file counts."""
        lesson = self.lesson_of(file)
        chosen = (column for column in self.columns if column.task == task and column.fits(lesson))
        return next(chosen, Column(task, self.weights.get((None, task), ALL_POINTS)))

    def most(self, task: str | None, file: StrPath) -> float:
        """Return the maximum points of a verdict; without a task, those of the whole file."""
        if task is not None:
            return self.column(task, file).most
        lesson = self.lesson_of(file)
        asked = [column.most for column in self.columns if column.asked and column.fits(lesson)]
        return sum(asked) if self.columns else ALL_POINTS


def plan_tasks(
    tasks: Sequence[str] = (),
    lessons: Sequence[int] = (),
    released: StrPath | None = None,
    points: StrPath | None = None,
) -> Plan:
    """Choose tasks by their names, by lessons, and by the notebook that was handed out.

    Args:
        tasks: names of tasks.
        lessons: numbers of lessons. A file that belongs to one lesson counts only for this lesson.
        released: the notebook that was handed out.
        points: a CSV file with the columns `task` and `points`, and optionally `lesson`. Other
            tasks are worth 10 points.

    Raises:
        ValueError: a task or a lesson is unknown, or a file has the wrong format.
        OSError: a file cannot be read.
    """
    weights = {} if points is None else _read_points(points)
    lessons = tuple(dict.fromkeys(lessons))
    of_lessons = [(name, lesson) for lesson in lessons for name in _tasks(lesson)]
    named = [*(() if released is None else _read_released(released)), *tasks]
    columns: dict[tuple[str, int | None], Column] = {}
    for name, lesson in [*of_lessons, *((name, None) for name in named)]:
        task = task_of(name).name
        most = weights.get((lesson, task), weights.get((None, task), ALL_POINTS))
        shown = lesson if len(lessons) > 1 else None  # one lesson needs no number in each title
        columns.setdefault((task, shown), Column(task, most, shown, name))
    return Plan(tuple(columns.values()), lessons, weights)


def _tasks(lesson: int) -> tuple[str, ...]:
    if lesson not in LESSONS:
        raise ValueError(
            f"lesson {lesson} does not exist: choose a number from 1 to {len(LESSONS)}"
        )
    return LESSONS[lesson][1]


def _read_released(path: StrPath) -> tuple[str, ...]:
    """Read the tasks of a notebook of the course."""
    with open(ordinary(path), "rb") as file:
        try:
            tasks = read_notebook(file.read()).tasks
        except SyntaxError as error:
            raise ValueError(f"{path}: {error}") from error
    if not tasks:
        raise ValueError(f"{path} lists no tasks; pass a notebook of the course, or use --task")
    return tasks


def _read_points(path: StrPath) -> Weights:
    weights: dict[tuple[int | None, str], float] = {}
    for number, row in read_columns(path, "task", "points", optional=("lesson",)):
        try:
            lesson = int(row["lesson"]) if row["lesson"] else None
            task, points = find_task(row["task"]), float(row["points"])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if not 0 <= points < inf:
            raise ValueError(f"{path}, line {number}: points is {points:g}; it must be 0 or more")
        weights[lesson, task] = points
    return weights


def read_columns(
    path: StrPath, *columns: str, optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each line of a CSV file, and its cells, keyed by the names of columns.

    Other columns are ignored. An optional column that is missing has empty cells.

    Raises:
        ValueError: a column is missing, or the file is not CSV in UTF-8.
        OSError: the file cannot be read.
    """
    with open(ordinary(path), newline="", encoding="utf-8-sig") as lines:
        try:
            reader = csv.DictReader(lines)
            named = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}
            if missing := [name for name in columns if name not in named]:
                raise ValueError(
                    f"{path} has no column {' and no column '.join(missing)}: the file must begin"
                    f" with the line {','.join(columns)}, but its columns are"
                    f" {', '.join(filter(None, named)) or 'none'}"
                )
            for row in reader:
                names = (*columns, *optional)
                yield reader.line_num, {n: (row.get(named.get(n, n)) or "").strip() for n in names}
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error


def find_task(name: str) -> str:
    """Return the name of a task, of a question of the question bank, or "sentences".

    A teacher grades the answers to questions, and the sentences at the end of the capstone.

    Raises:
        ValueError: the task is unknown.

    >>> find_task("to_ids"), find_task("3.2"), find_task("sentences")
    ('ids', '3.2', 'sentences')
    """
    question = _QUESTION.fullmatch(name)
    if name == _SENTENCES or (question and int(question[1]) in LESSONS):
        return name
    try:
        return task_of(name).name
    except ValueError as error:
        raise ValueError(f"{error}, {_SENTENCES}, or a question, such as 3.2") from None


def find_lesson(path: StrPath) -> int | None:
    """Return the lesson to which a file belongs, judging by its name or its list of tasks.

    >>> find_lesson("anna/3-one-function-student.ipynb"), find_lesson("s12_lesson5.py")
    (3, 5)
    """
    name = Path(path).name
    words = "-".join(["", *re.findall(r"[^\W_]+", name.lower()), ""])
    for number, (lesson, _) in LESSONS.items():
        if f"-{number}-{lesson}-" in words:
            return number
    if (found := _LESSON.search(name)) and int(found[1]) in LESSONS:
        return int(found[1])
    if name.lower().endswith(NOTEBOOK):
        try:
            tasks = read_notebook(Path(path).read_bytes()).tasks
        except (SyntaxError, OSError):
            return None
        return next((n for n, (_, known) in LESSONS.items() if known == tasks), None)
    return None
