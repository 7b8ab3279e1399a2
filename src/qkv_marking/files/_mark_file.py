"""Mark a student's file, whose code runs in a separate process with time and memory limits."""

import builtins
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, whole_number
from qkv.files import StrPath, ordinary
from qkv_marking._check_function import check, task_of
from qkv_marking._errors import RaisedElsewhere, WrongParameters, type_name
from qkv_marking._isolated import SECONDS, Ended, Isolated
from qkv_marking._library_calls import answers, withhold_points
from qkv_marking._mistake import Mistake
from qkv_marking._outcome import RAISED, Elsewhere, Unread
from qkv_marking._points import ALL_POINTS
from qkv_marking._raised import RAISES
from qkv_marking._result import CheckResult
from qkv_marking.files._own_folder import copy_folder
from qkv_marking.files.verdicts import (
    describe_found,
    join_names,
    kind_of_file,
    names_of,
    not_marked,
    report_error,
)
from qkv_marking.files.wire import Opaque, Packed, Packer, unpack
from qkv_marking.tasks import TASKS, Task


class StudentFunction(NamedTuple):
    """A function of a student's file: its name, its proxy, and its signature as text."""

    name: str
    function: Any
    signature: str


class Remotes:
    """The marker's proxies for objects in a student's process.

    Args:
        ask: a function that sends a request and returns the reply.

    Attributes:
        helped: the names of all library functions that the student's functions have called.
    """

    def __init__(self, ask: Callable[[Packed], Packed]) -> None:
        self._ask = ask
        self._things: dict[int, Any] = {}  # Objects by their number in the student's process.
        self._numbers: dict[int, int] = {}  # The objects' numbers, keyed by `id(object)`.
        self.helped: set[str] = set()

    def call(self, thing: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a student's function; return its result or raise its error.

        The function gets copies of the arguments. If it changes a copy, this method then makes the
        same change to the argument in this process.
        """
        packer = Packer(lambda value: self._numbers.get(id(value)))
        sent = {
            "given": [packer.pack(value) for value in positional],
            "named": {name: packer.pack(value) for name, value in named.items()},
        }
        reply = self._ask({"do": "call", "of": self._numbers[id(thing)], **sent})
        for number, packed in reply.get("stale", ()):
            _write(self._things[int(number)], self._read(packed))
        for argument, packed in reply.get("after", ()):
            _write(
                named[argument] if isinstance(argument, str) else positional[argument],
                self._read(packed),
            )
        self.helped.update(map(str, reply.get("called", ())))
        if isinstance(sys.stdout, Unread):
            sys.stdout.lines += int(reply.get("printed", 0))
        return self._read(_good(reply)["value"])

    def ask(self, do: str, thing: Any, **more: Any) -> Any:
        """Send a request (other than a call) about an object; return the value in the reply."""
        return self._value({"do": do, "of": self._numbers[id(thing)], **more})

    def _value(self, request: Packed) -> Any:
        return _good(self._ask(request))["value"]

    def get(self, thing: Any, name: str) -> Any:
        """Return an attribute of an object."""
        return self._read(self.ask("get", thing, name=name))

    def find(self, names: Sequence[str]) -> StudentFunction | None:
        """Return the first function in `names` that the file defines, or None."""
        row = self._value({"do": "find", "names": [*names]})
        if row is None:
            return None
        return StudentFunction(str(row[0]), self._read(row[1]), f"{row[0]}{row[2]}")

    def values(self, names: Sequence[str]) -> tuple[Any, ...] | str:
        """Return the values of these names. If a name is undefined, return that name instead."""
        packed = self._value({"do": "values", "names": [*names]})
        return packed if isinstance(packed, str) else tuple(map(self._read, packed))

    def arrays(self, thing: Any) -> list[tuple[str, Array]]:
        """List the arrays inside an object, each with its path, such as ".w_q"."""
        rows = [(str(path), self._read(packed)) for path, packed in self.ask("arrays", thing)]
        return [(path, a) for path, a in rows if isinstance(a, np.ndarray)]

    def _read(self, packed: Packed) -> Any:
        return unpack(packed, self._copy_into)

    def _copy_into(self, number: int, thing: Any) -> Any:
        """Copy the contents of `thing` into the object with the number `number`; return the object.

        If `thing` is None or the object is a proxy, the object stays unchanged. If the contents
        cannot be copied, another object gets the number and is returned. This other object is a new
        proxy if `thing` is an `Opaque`; otherwise it is `thing` itself.
        """
        before = self._things.get(number)
        if thing is None or isinstance(before, Elsewhere) or _write(before, thing):
            return before
        if isinstance(thing, Opaque):  # the proxy's type gets the name of the object's type
            base: Any = RemoteFunction if thing.calls else Remote
            thing = type(thing.kind, (base,), {})(self)
        self._things[number] = thing
        self._numbers[id(thing)] = number
        return thing


class Remote(Elsewhere):
    """A proxy for an object in the student's process.

    Args:
        remotes: an object that sends requests to the student's process.
    """

    def __init__(self, remotes: Remotes) -> None:
        self._remotes = remotes

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":
            return str(self._remotes.ask("name", self))
        if name.startswith("_"):  # NumPy looks for attributes such as __array__
            raise AttributeError(name)
        return self._remotes.get(self, name)

    def __str__(self) -> str:
        return str(self._remotes.ask("words", self))

    __repr__ = __str__

    def held_arrays(self) -> list[tuple[str, Array]]:
        """List the arrays inside the object, each with its path, such as ".w_q"."""
        return self._remotes.arrays(self)

    def is_stub(self) -> bool:
        """Return whether the object is a stub, which the student has not filled in yet."""
        return bool(self._remotes.ask("stub", self))


class RemoteFunction(Remote):
    """A proxy for a callable object in the student's process."""

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Call the object in the student's process."""
        return self._remotes.call(self, positional, named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature([*map(_parameter, self._remotes.ask("signature", self))])


def _write(target: Any, new: Any) -> bool:
    """Copy the contents of an array, list or mapping into `target`; return False on failure."""
    if type(target) is not type(new):
        return False
    if isinstance(target, np.ndarray):
        if target.dtype != new.dtype:
            return False
        with suppress(ValueError):  # some arrays are read-only, and views cannot be resized
            if target.shape != new.shape:
                target.resize(new.shape, refcheck=False)
            target[...] = new
            return True
        return False
    if isinstance(target, list):
        target[:] = new
    elif isinstance(target, dict):
        target.clear()
        target.update(new)
    else:
        return False
    return True


def _parameter(packed: Mapping[str, Any]) -> inspect.Parameter:
    default = packed["default"]
    return inspect.Parameter(
        str(packed["name"]),
        tuple(inspect._ParameterKind)[int(packed["kind"])],
        default=inspect.Parameter.empty if default == "" else default,
    )


def _good(reply: Packed) -> Packed:
    """Return a reply, or raise the student's error that the reply describes."""
    if "error" not in reply:
        return reply
    packed = reply["error"]
    words, names = str(packed["words"]), [str(name) for name in packed["mro"]]
    known = [there for name in names if isinstance(there := getattr(builtins, name, None), type)]
    base = next((builtin for builtin in known if issubclass(builtin, BaseException)), Exception)
    if not issubclass(base, RAISED):
        raise Ended("exits", str(packed["in_words"]))
    subclasses = names[: names.index(base.__name__)] if base.__name__ in names else []
    members = {"__str__": lambda self: words, "__init__": lambda self, *positional: None}
    kind: Any = base
    for name in [*reversed(subclasses)] or [base.__name__]:
        kind = type(name, (kind,), members)
    error = type(kind.__name__, (RaisedElsewhere, kind), members)()
    error.args = tuple(map(str, packed["args"]))
    error.line = str(packed["line"])
    error.likely = None if packed["likely"] is None else Mistake(**packed["likely"])
    raise error


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
                {"do": "read", "tasks": tasks}, lambda cell: _CELL * self.limit([*map(str, cell)])
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
