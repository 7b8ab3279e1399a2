"""Mark a student's file, whose code runs in a separate process with time and memory limits."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from qkv.arrays import whole_number
from qkv.files import StrPath, ordinary
from qkv_marking._check_function import check, task_of
from qkv_marking._errors import WrongParameters, type_name
from qkv_marking._isolated import SECONDS, Ended, Isolated
from qkv_marking._library_calls import answers, withhold_points
from qkv_marking._points import ALL_POINTS
from qkv_marking._raised import RAISES
from qkv_marking._result import CheckResult
from qkv_marking.files._own_folder import copy_folder
from qkv_marking.files._remote import Remotes, StudentFunction
from qkv_marking.files.verdicts import (
    describe_found,
    join_names,
    kind_of_file,
    names_of,
    not_marked,
    report_error,
)
from qkv_marking.tasks import TASKS, Task

MEGABYTES = 2048
_CELL = 6  # a notebook cell may train a model: its time limit is this multiple of a task's limit

_DEFINED_AGAIN = "This function is defined in {}: only the last definition counts."
_SOFTMAX = TASKS["softmax"]
_COUNTED = (
    "Marked with a right softmax: the mistake of your softmax is counted in the task softmax."
)
_WORDS = re.compile(r"\w+")
# A pair: the verdict on a function, and the signature of the function if it is probably only a
# helper. For any other function, the second value is "".
_Verdict = tuple[CheckResult, str]


def check_file(
    path: StrPath,
    task: str | Sequence[str] | None = None,
    *,
    seed: int = 0,
    seconds: float | None = None,
    megabytes: int = MEGABYTES,
    waiting: Callable[[], None] = lambda: None,
) -> tuple[CheckResult, ...]:
    r"""Mark the functions of a Python file or a Jupyter notebook in a separate process.

    If the file has a single function, the function may have any name, provided that `task` is given
    or that the parameters fit only one task.

    A lesson's notebook is marked only for the tasks of the lesson. Functions that the lesson itself
    defines are not marked. The code cells run in order, but magics such as `%time` are removed. If
    a cell fails, the verdict names the cell, and the following cells still run.

    The file's functions run in the separate process. The calling process judges the results, with
    code that the file cannot change. If a function of qkv, torch or another library computes the
    answer, the file gets no points, and `helped_by` names the function.

    The file runs in a copy of its folder, which is deleted after the marking. On Linux, all
    processes that the file has started are then ended.

    The memory of the separate process is limited, and the process is ended if a task takes too
    long. The limits protect against accidents, such as an endless loop, but not against malicious
    code: the process is not a sandbox, and the file has all rights of the user who runs
    `check_file`. The file's output is not shown, and `input()` raises an EOFError. Syntax errors,
    calls to `sys.exit` and missing functions are reported like other mistakes. If the file causes
    an error in `check_file` itself, the verdict is `"not-marked"` with the reason.

    Args:
        path: the file.
        task: the name of a task, or of the function that a task expects, or several names. None
            selects all tasks whose functions are in the file, or all tasks that a lesson's notebook
            lists.
        seed: the random seed for the inputs, as for `check`.
        seconds: the time limit for reading the file and for each task. If it is None, each task
            keeps its default limit, which is 10 seconds for most tasks. A notebook cell may take
            six times the longest limit of the notebook's tasks, because some lessons train a model.
            While other programs keep the processors busy, all limits are extended.
        megabytes: the memory limit, in addition to the memory of the libraries. Windows has no
            limit.
        waiting: a function to call several times per second during the run.

    Returns:
        One verdict per task, or a single verdict if the file cannot be read.

    Raises:
        ValueError: the task is unknown, a limit is not positive, or the seed is negative.
        OSError: the file cannot be read; FileNotFoundError if it does not exist.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "mine.py")
    >>> _ = file.write_text("def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)")
    >>> [(result.task, result.mistakes) for result in check_file(file)]
    [('softmax', ('no-exp',))]
    """
    chosen = [task] if isinstance(task, str) else [*(task or ())]
    names = [task_of(name).name for name in chosen]
    for name, limit in (("seconds", seconds), ("megabytes", megabytes)):
        if limit is not None and not limit > 0:
            raise ValueError(f"check_file: {name} is {limit}; pass a positive number")
    whole_number(seed, call="check_file", name="seed", least=0)
    with open(ordinary(path), "rb"):  # `open` raises an error if the path is a folder or unreadable
        pass
    if kind_of_file(path):
        only = names[0] if len(names) == 1 else None
        return (not_marked("nothing-handed-in", describe_found([str(path)]), only),)
    results: list[_Verdict] = []
    left = chosen
    with copy_folder(Path(path).resolve()) as (copy, folder):
        file = _File(str(copy), seed, seconds)
        while True:
            with Isolated(
                ["qkv_marking.files._child", file.path, str(megabytes)],
                seconds=_CELL * file.limit([*TASKS]),
                waiting=waiting,
                call="check_file",
                folder=folder,
            ) as process:
                done, left = file.mark(process, left)
            results += done
            if not left:
                break
    verdicts = _without_helpers(results)
    if len(names) == 1:  # if the file cannot run, `result.task` is None
        verdicts = [replace(result, task=result.task or names[0]) for result in verdicts]
    return tuple(verdicts)


def _without_helpers(marked: list[_Verdict]) -> list[CheckResult]:
    """Remove verdicts on helper functions; list these functions in the first remaining verdict."""
    answers = [result for result, helper in marked if not helper]
    if not answers:
        return [result for result, _ in marked]
    helpers = "".join(
        f"\nNot marked for the task {result.task}, because the parameters of this function do not "
        f"fit the task: {helper}."
        for result, helper in marked
        if helper
    )
    first, *others = answers
    return [replace(first, message=first.message + helpers), *others]


class _File(NamedTuple):
    """A student's file, and the options of `check_file` for it."""

    path: str
    seed: int
    seconds: float | None

    def limit(self, names: Sequence[str]) -> float:
        """Return the longest time limit of these tasks, in seconds."""
        tasks = [task for task in TASKS.values() if {task.name, *task.looks_for} & {*names}]
        return self.seconds or max((task.seconds for task in tasks), default=SECONDS)

    def mark(self, process: Isolated, tasks: list[str]) -> tuple[list[_Verdict], list[str]]:
        """Run the file; return `(verdicts, left)`.

        If the process ends early, `left` lists the tasks that are not marked yet.
        """
        results: list[_Verdict] = []
        process.begin(self.limit(tasks))
        try:
            read = process.ask(
                {"do": "read", "tasks": tasks},
                lambda cell: _CELL * self.limit([*map(str, cell)]),
            )
            if "result" in read:
                return [(_unpack_verdict(read["result"]), "")], []
            tasks = [task if task in tasks else task_of(task).name for task in read["tasks"]]
            again = {str(name): str(where) for name, where in dict(read["again"]).items()}
            failures, names, lone = ([*map(str, read[key])] for key in ("failures", "own", "lone"))
        except Ended as end:
            return [(not_marked(end.key, end.shows, None), "")], []

        def mark(name: str) -> _Verdict:
            remotes = Remotes(process.ask)
            process.begin(self.limit([name]))
            result, helper = self._verdict(remotes, name, names, lone)
            task = task_of(name)
            helped_by = () if task.may_use else answers(remotes.helped, task.name)
            result = withhold_points(result, helped_by)
            where = [again[n] for n in task.looks_for if n in again and not result.passed]
            return _add_lines(result, [_DEFINED_AGAIN.format(place) for place in where]), helper

        for number, name in enumerate(tasks):
            try:
                results.append(mark(name))
            except Ended as end:
                results.append((not_marked(end.key, end.shows, name), ""))
                return results, tasks[number + 1 :]
        with suppress(Ended):
            _mark_again(process, mark, tasks, results)
        return [(_add_lines(result, failures), helper) for result, helper in results], []

    def _verdict(self, remotes: Remotes, name: str, names: list[str], lone: list[str]) -> _Verdict:
        """Mark a function or values for a task; if the marker fails, the verdict reports this."""
        try:
            task = task_of(name)
            if task.values:
                values = remotes.values(task.values)
                if isinstance(values, str):  # the first missing name
                    return _missing(task, values, task.name, names), ""
                return check(values, task=task.name), ""
            by_task = name == task.name  # `name` is the name of a task or of a function
            wanted = [*task.looks_for, *task.also] if by_task else [name]
            target = remotes.find([*wanted, *lone])
            if target is None:
                return _missing(task, names_of(task) if by_task else name, name, names), ""
            result = self._check_function(task, target, name)
            return result, _helper(task, target, result)
        except Exception as error:  # an error of the marker, not of the student's code
            return report_error(error, self.path, name), ""

    def _check_function(self, task: Task, target: StudentFunction, name: str) -> CheckResult:
        """Check a function, using the first of the task's signatures that the function accepts."""
        about = {"name": target.name, "signature": task.signature}
        if not callable(target.function):
            shows = f"it is a {type_name(target.function)}"
            return not_marked("not-a-function", shows, name, **about)
        for way in task.ways:
            try:
                return check(target.function, way or "qkv", task=name, seed=self.seed)
            except WrongParameters:
                continue
        return not_marked("wrong-parameters", f"it is {target.signature}", name, **about)


def _mark_again(
    process: Isolated, mark: Callable[[str], _Verdict], tasks: list[str], results: list[_Verdict]
) -> None:
    """Mark wrong functions again with a right softmax, if the file's own softmax is wrong.

    The mistakes of softmax cost points only in the task softmax.
    """
    by_task = {result.task: result for result, _ in results}
    softmax = by_task.get(_SOFTMAX.name)
    wrong = [
        number
        for number, (result, helper) in enumerate(results)
        if result.task != _SOFTMAX.name and result.points < ALL_POINTS and not helper
    ]
    if softmax is None or softmax.points == ALL_POINTS or not wrong:
        return
    process.begin()
    if process.ask({"do": "mend", "names": [*_SOFTMAX.looks_for]}).get("value"):
        for number in wrong:
            result, _ = mark(tasks[number])
            if result.points > results[number][0].points:
                results[number] = (_add_lines(result, [_COUNTED]), "")


def _add_lines(result: CheckResult, lines: Sequence[str]) -> CheckResult:
    return replace(result, message="\n".join([result.message, *lines])) if lines else result


def _missing(task: Task, missing: str, name: str, names: list[str]) -> CheckResult:
    """Report that the file does not define a function or a value."""
    shows = f"it has {join_names(names)}"
    return not_marked("missing-function", shows, name, name=missing, signature=task.signature)


def _helper(task: Task, target: StudentFunction, result: CheckResult) -> str:
    """Return the signature of a function that is probably only a helper, otherwise ""."""
    if target.name not in task.everyday:
        return ""
    expected = {*_WORDS.findall(task.signature)} - {target.name}
    raises = len(result.mistakes) == 1 and result.mistake in RAISES
    is_other = raises and not expected & {*_WORDS.findall(target.signature)}
    return target.signature if is_other or result.mistakes == ("wrong-parameters",) else ""


def _unpack_verdict(packed: Mapping[str, Any]) -> CheckResult:
    """Unpack the verdict on an unreadable file."""
    mistakes, hint = (tuple(map(str, packed[name])) for name in ("mistakes", "hint"))
    says = {str(key): str(text) for key, text in packed["says"].items()}
    return CheckResult(str(packed["message"]), mistakes, says=says, points=0, task=None, hint=hint)
