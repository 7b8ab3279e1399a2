"""Run a learner's file in a process of its own, within limits of time and memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.arrays import whole_number
from qkv.marking.errors import type_name, words_of
from qkv.marking.files.remote import Remotes
from qkv.marking.files.verdicts import failed, listed, names_of, not_marked
from qkv.marking.files.watch import answers
from qkv.marking.isolated import Ended, Isolated
from qkv.marking.marker import check, task_of
from qkv.marking.raised import RAISES
from qkv.marking.result import CheckResult
from qkv.marking.tasks import TASKS, Task
from qkv.marking.tasks.task import SECONDS

MEGABYTES = 2048
_CELL = 6  # times as long may a cell of a notebook take: some lessons train a model

_WORDS = re.compile(r"\w+")


def check_file(
    path: str | os.PathLike[str],
    task: str | None = None,
    *,
    seed: int = 0,
    seconds: float | None = None,
    megabytes: int = MEGABYTES,
    waiting: Callable[[], None] = lambda: None,
) -> tuple[CheckResult, ...]:
    r"""Mark what a Python file or a Jupyter notebook has for the tasks, in a process of its own.

    A notebook of a lesson is marked for the tasks of that lesson, and for nothing that its page
    defines. The code cells run in order, without magics; one that fails is named, and the next
    ones still run.

    The file's functions are called in that process, and what they return is judged in this one, by
    a code that the file cannot change. Where qkv, torch or scipy answers for the student, there are
    no points, and `helped_by` names the functions that did.

    The process ends when a task takes too long, and may take so much memory. That holds off
    accidents, such as an endless loop, and no malice: it is no sandbox, and the file may do
    whatever whoever runs this may do. What it prints is not shown, `input()` has nobody to answer;
    a syntax error, an end by `sys.exit`, a function that is missing and the like are found like any
    other mistake. Where the file makes the marker itself fail, the verdict is `"not-marked"` and
    says why.

    Args:
        path: the file.
        task: the name of a task, or of its function; None for each whose function the file has.
        seed: draws the inputs, as for `check`.
        seconds: how long reading the file and each task may take; None for what each task says, 10
            for most. A cell of a notebook may take six times as long as the longest of its tasks,
            since some lessons train a model. All may take longer where other programs keep the
            processors busy.
        megabytes: how much memory it may take beyond what libraries bring (not on Windows).
        waiting: is called several times a second.

    Returns:
        A verdict for each task. Where the file could not be read there is one alone, whose `task`
        is the one that was asked for.

    Raises:
        ValueError: there is no such task, a limit is not above 0, or a seed is below 0.
        FileNotFoundError: there is no such file; other errors of the system likewise.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "mine.py")
    >>> _ = file.write_text("def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)")
    >>> [(result.task, result.mistakes) for result in check_file(file)]
    [('softmax', ('no-exp',))]
    """
    if task is not None:
        task_of(task)
    if (seconds is not None and not seconds > 0) or not megabytes > 0:
        least = f"megabytes={megabytes}" if not megabytes > 0 else f"seconds={seconds}"
        raise ValueError(f"check_file: {least}, which must be above 0")
    whole_number(seed, call="check_file", name="seed", least=0)
    with open(path, "rb"):  # an error where it is a folder, or may not be read
        pass
    file = str(Path(path).resolve())

    def limit(tasks: Sequence[str]) -> float:
        """How many seconds the longest of these tasks may take."""
        known = [one for one in TASKS.values() if {one.name, *one.looks_for} & {*tasks}]
        return seconds or max((one.seconds for one in known), default=SECONDS)

    results: list[tuple[CheckResult, str]] = []
    left: list[str] | None = [] if task is None else [task]
    while True:
        with Isolated(
            "qkv.marking.files.child",
            [file, str(megabytes)],
            seconds=_CELL * limit([*TASKS]),
            waiting=waiting,
            call="check_file",
        ) as process:
            done, left = _marked(process, file, left or [], seed, limit)
        results += done
        if not left:
            return tuple(_named(result, task) for result in _without_helpers(results))


def _without_helpers(marked: list[tuple[CheckResult, str]]) -> list[CheckResult]:
    """The verdicts but for those on helpers, which the first of the others names."""
    answers = [result for result, helper in marked if not helper]
    if not answers:
        return [result for result, _ in marked]
    said = "".join(
        f"\nNot marked for {result.task}, whose parameters are others: {helper}."
        for result, helper in marked
        if helper
    )
    first, *others = answers
    return [replace(first, message=first.message + said), *others]


def _named(result: CheckResult, task: str | None) -> CheckResult:
    """A verdict on the file is one on the task that was asked for."""
    if result.task is not None or task is None:
        return result
    return replace(result, task=task_of(task).name)


def _marked(
    process: Isolated,
    file: str,
    tasks: list[str],
    seed: int,
    limit: Callable[[Sequence[str]], float],
) -> tuple[list[tuple[CheckResult, str]], list[str]]:
    """The verdicts on a file, and the tasks left for another process where this one ended.

    With each comes the function, if it seems to be a helper that has its name by chance.
    """
    results: list[tuple[CheckResult, str]] = []
    try:
        read = process.ask(
            {"do": "read", "tasks": tasks},
            limit(tasks),
            lambda cell: _CELL * limit([*map(str, cell)]),
        )
        if "result" in read:
            return [(_of_file(read["result"]), "")], []
        tasks = [task if task in tasks else task_of(task).name for task in read["tasks"]]
        failures, own = [*map(str, read["failures"])], [*map(str, read["own"])]
    except Ended as end:
        return [(not_marked(end.key, end.shows, None), "")], []
    for number, name in enumerate(tasks):
        remotes = Remotes(process.ask)
        process.begin(limit([name]))
        try:
            result, helper = _verdict(remotes, name, own, file, seed)
        except Ended as end:
            results.append((not_marked(end.key, end.shows, name), ""))
            return results, tasks[number + 1 :]
        task = task_of(name)
        helped_by = () if task.may_use else answers(remotes.helped, task.name)
        result = _without_help(result, helped_by)
        if failures:
            result = replace(result, message="\n".join([result.message, *failures]))
        results.append((result, helper))
    return results, []


def _verdict(
    remotes: Remotes, name: str, own: list[str], file: str, seed: int
) -> tuple[CheckResult, str]:
    """The verdict on what the file has for a task, whatever its things do."""
    try:
        task = task_of(name)
        if task.values:
            return _of_values(task, remotes.values(task.values), own), ""
        by_task = name == task.name  # else one function was asked for by its name
        found = remotes.find([*task.looks_for, *task.also] if by_task else [name])
        asked = names_of(task) if by_task else name
        if found is None:
            about = {"name": asked, "signature": task.signature}
            return not_marked("missing-function", f"it has {listed(own)}", name, **about), ""
        there, function, parameters = found
        result = _judged(task, there, function, parameters, name, seed)
        return result, _helper(task, there, parameters, result)
    except Exception as error:  # not the student's, whose errors are part of the verdict
        return failed(error, file, name), ""


def _of_values(task: Task, values: tuple[Any, ...] | str, own: list[str]) -> CheckResult:
    """The verdict on values, or on one that is missing."""
    if isinstance(values, str):
        about = {"name": values, "signature": task.signature}
        return not_marked("missing-function", f"it has {listed(own)}", task.name, **about)
    return check(values, task=task.name)


def _judged(
    task: Task, there: str, function: Any, parameters: str, name: str, seed: int
) -> CheckResult:
    """The verdict on a function, called in the first way that it may be called in."""
    about = {"name": there, "signature": task.signature}
    if not callable(function):
        return not_marked("not-a-function", f"it is a {type_name(function)}", name, **about)
    for way in task.ways:
        try:
            return check(function, way or "qkv", task=name, seed=seed)
        except TypeError as error:
            if not words_of(error).startswith("check: "):
                raise
    return not_marked("wrong-parameters", f"it is {there}{parameters}", name, **about)


def _helper(task: Task, there: str, parameters: str, result: CheckResult) -> str:
    """The function with its parameters, if it looks like one that has its name by chance."""
    if there not in task.everyday:
        return ""
    given = f"{there}{parameters}"
    another = not {*_WORDS.findall(given)} & {*_WORDS.findall(task.signature)} - {there}
    raises = len(result.mistakes) == 1 and result.mistake in RAISES
    return given if (raises and another) or result.mistakes == ("wrong-parameters",) else ""


def _without_help(result: CheckResult, helped_by: tuple[str, ...]) -> CheckResult:
    """A verdict on a function that a library answers for: no points."""
    if not helped_by:
        return result
    shows = f"it calls {', '.join(helped_by)}"
    about = not_marked("answered-by-library", shows, result.task)
    return replace(
        result,
        message=f"{about.message}\n{result.message}",
        mistakes=(*about.mistakes, *result.mistakes),
        points=0,
        hint=about.hint,
        helped_by=helped_by,
    )


def _of_file(told: Mapping[str, Any]) -> CheckResult:
    """A verdict on a file that could not be read, as its process tells it."""
    return CheckResult(
        str(told["message"]),
        tuple(map(str, told["mistakes"])),
        points=0,
        task=None,
        hint=tuple(map(str, told["hint"])),
    )
