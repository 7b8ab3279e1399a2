"""Run a learner's file in a process of its own, within limits of time and memory."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from qkv.marking.files.child import UNTOLD
from qkv.marking.files.found import not_marked
from qkv.marking.marker import task_of
from qkv.marking.result import CheckResult

SECONDS = 10.0  # that a task may take, of which a right solution takes a hundredth
MEGABYTES = 2048
_START = 60.0  # seconds that Python and NumPy may take to load on a busy machine
_PATIENCE = 20  # times as long may pass where other programs take the processors
_TICK = 0.1
_LINE = 1 << 26  # bytes of a line that is told; no verdict has so many

_ALONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def check_file(
    path: str | os.PathLike[str],
    task: str | None = None,
    *,
    seconds: float = SECONDS,
    megabytes: int = MEGABYTES,
    waiting: Callable[[], None] = lambda: None,
) -> tuple[CheckResult, ...]:
    r"""Mark what a Python file or a Jupyter notebook has for the tasks, in a process of its own.

    A notebook of a lesson is marked for the tasks of that lesson, and for nothing that its page
    defines. The code cells run in order, without magics; one that fails is named, and the next
    ones still run.

    The process ends after `seconds` for each task and may take so much memory. That holds off
    accidents, such as an endless loop, and no malice: the file may do whatever whoever runs this
    may do. What it prints is not shown, `input()` has nobody to answer; a syntax error, an end by
    `sys.exit`, a function that is missing and the like are found like any other mistake. Where the
    file makes the marker itself fail, the verdict is `"not-marked"` and says why.

    Args:
        path: the file.
        task: the name of a task, or of its function; None for each whose function the file has.
        seconds: how long reading the file, each cell of a notebook, and each task may take; longer
            where other programs take the processors.
        megabytes: how much memory it may take beyond what libraries bring (not on Windows).
        waiting: is called several times a second.

    Returns:
        A verdict for each task. Where the file could not be read there is one alone, whose `task`
        is the one that was asked for.

    Raises:
        ValueError: there is no such task, or a limit is not above 0.
        FileNotFoundError: there is no such file; other errors of the system likewise.

    >>> file = Path(tempfile.mkdtemp(), "mine.py")
    >>> _ = file.write_text("def softmax(x):\n    return x / x.sum(axis=-1, keepdims=True)")
    >>> [(result.task, result.mistakes) for result in check_file(file)]
    [('softmax', ('no-exp',))]
    """
    if task is not None:
        task_of(task)
    if not (seconds > 0 and megabytes > 0):
        limit = f"seconds={seconds}" if seconds <= 0 else f"megabytes={megabytes}"
        raise ValueError(f"check_file: {limit}, which must be above 0")
    with open(path, "rb"):  # an error where it is a folder, or may not be read
        pass
    file = str(Path(path).resolve())
    results: list[tuple[CheckResult, str]] = []
    left = [] if task is None else [task]
    while True:
        with _Process(file, left, seconds, megabytes) as process:
            done, left = _marked(process, left, seconds, waiting)
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
    process: _Process, tasks: list[str], seconds: float, waiting: Callable[[], None]
) -> tuple[list[tuple[CheckResult, str]], list[str]]:
    """The verdicts that a process gives before it ends, and the tasks left for another one.

    With each comes the function, if it seems to be a helper that has its name by chance.
    """
    results: list[tuple[CheckResult, str]] = []
    tasks, imported = list(tasks), False
    failures: list[str] = []
    process.hear(_START, waiting)
    while True:
        told = process.hear(seconds, waiting)
        if told is None or told == "":
            task = tasks[0] if imported else None
            key, shows = ("endless-loop", _over(seconds)) if told == "" else process.ended(seconds)
            results.append((not_marked(key, shows, task), ""))
            return results, tasks[1:] if imported else []
        assert isinstance(told, Mapping)
        if "tasks" in told:
            tasks = list(told["tasks"])
        imported = imported or "imported" in told
        failures = told.get("failures", failures)
        if "result" in told and (told["task"] is None or told["task"] in tasks):
            result = told["result"]
            if failures:
                result = replace(result, message="\n".join([result.message, *failures]))
            results.append((result, told["helper"]))
            if told["task"] is None:
                return results, []
            tasks.remove(told["task"])
        if imported and not tasks:
            return results, []


def _over(seconds: float) -> str:
    return f"it was ended after {seconds:g} s"


class _Process:
    """A child that marks one file, and is gone at the end of `with`, whatever happens."""

    def __init__(self, file: str, tasks: list[str], seconds: float, megabytes: int) -> None:
        alarm = min(_START + _PATIENCE * seconds * 20, 1e6)  # more than any run takes
        program = "from qkv.marking.files.child import main; main()"
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        # -P: nothing of the folder that this is run in takes the place of a library
        command = [sys.executable, "-P", "-B", "-c", program, file, str(megabytes), str(alarm)]
        try:
            self._child = subprocess.Popen(
                [*command, *tasks],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=os.environ | dict.fromkeys(_ALONE, "1"),
                start_new_session=True,  # Ctrl-C is for us, who end it
            )
        except BaseException:
            self._said.close()
            raise
        self._lines: queue.Queue[Mapping[str, Any] | str | None] = queue.Queue()
        self._worker = 0  # the process that the file runs in, a child of that child
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def _listen(self) -> None:
        """Put what each line says into the queue, and None at the end."""
        assert self._child.stdout is not None
        with self._child.stdout as told:
            while line := told.readline(_LINE):
                with suppress(Exception):  # it is not ours: the file may write here too
                    self._lines.put(_heard(line))
        self._lines.put(None)

    def hear(self, seconds: float, waiting: Callable[[], None]) -> Mapping[str, Any] | str | None:
        """The next thing that is told; None if it ended before, "" if it takes too long."""
        begin, (_, before) = time.monotonic(), self._processor()
        while True:
            try:
                told = self._lines.get(timeout=min(_TICK, seconds))
                break
            except queue.Empty:
                waiting()
                passed = time.monotonic() - begin
                waits, used = self._processor()
                # on a busy machine it may not have had its time yet, and that is not its fault
                held_up = waits and used - before < seconds / 2 and passed < _PATIENCE * seconds
                if passed >= seconds and not held_up:
                    told = ""
                    break
        if not self._worker and not isinstance(told, Mapping):
            self._said.seek(0)
            why = self._said.read().decode(errors="replace").strip() or "it took too long"
            raise RuntimeError(f"check_file: Python did not start: {why.splitlines()[-1]}")
        if not self._worker and isinstance(told, Mapping):
            self._worker = told["process"]
        return told

    def _processor(self) -> tuple[bool, float]:
        return processor(self._worker or self._child.pid)

    def ended(self, seconds: float) -> tuple[str, str]:
        """How a process ended that told nothing: what it is called, and how it shows."""
        try:
            code = self._child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return "not-marked", "it goes on, and has closed the file in which its process tells"
        if code == UNTOLD:
            return "not-marked", "its process could not tell what was found"
        if code >= 0:
            return "exits", f"the process ended with the exit code {code}"
        with suppress(ValueError):
            return "process-died", f"the process was ended by {signal.Signals(-code).name}"
        return "process-died", f"the process was ended by signal {-code}"

    def __enter__(self) -> _Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if hasattr(os, "killpg"):
            ends = [(os.killpg, self._child.pid)]
            if self._worker and self._child.poll() is None:  # it may have left the group
                ends.append((os.kill, self._worker))
            for end, number in ends:
                with suppress(ProcessLookupError, PermissionError):  # it is gone already
                    end(number, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        self._ear.join(_TICK)  # it ends with the child, if that has left no other process behind
        self._said.close()


def processor(pid: int) -> tuple[bool, float]:
    """Does a process run or wait for a processor, and how many seconds has it had?

    Where the system does not say (Linux does): that it does neither.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state == "R", sum(map(int, rest[10:12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return False, 0.0


def _heard(line: bytes) -> Mapping[str, Any]:
    """What a line of the child tells; any error where somebody else has written it."""
    told = json.loads(line)
    if "result" in told:
        return {
            "task": told["task"],
            "result": _unpacked(told["result"]),
            "helper": str(told["helper"]),
        }
    if "cell" in told:  # of a notebook: the time begins anew
        return {"cell": True}
    if "failures" in told:
        return {"failures": [*map(str, told["failures"])]}
    if "tasks" in told:
        return {"tasks": [task_of(name).name for name in told["tasks"]]}
    return (
        {"process": int(told["process"])} if "process" in told else {"imported": told["imported"]}
    )


def _unpacked(packed: dict[str, Any]) -> CheckResult:
    """A verdict as the child gave it."""
    lists = {name: tuple(it) for name, it in packed.items() if isinstance(it, list)}
    example = {name: _array(value) for name, value in packed["example"].items()}
    return CheckResult(**packed | lists | {"example": example})


def _array(value: Any) -> Any:
    if isinstance(value, dict):
        return np.array(value["numbers"], dtype=value["dtype"]).reshape(value["shape"])
    return value
