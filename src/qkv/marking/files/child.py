"""The process that a learner's file runs in: marks it, and tells what it finds, a line each."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qkv.marking.errors import in_words, type_name, words_of
from qkv.marking.files import notebook
from qkv.marking.files.found import failed, listed, names_of, no_function, not_marked, of_error
from qkv.marking.files.source import defined, tasks_in
from qkv.marking.marker import check, task_of
from qkv.marking.outcome import getpid
from qkv.marking.raised import RAISES
from qkv.marking.result import CheckResult

NAME = "submission"
UNTOLD = 70  # the exit code of a process that could not tell what it had to
_WORDS = re.compile(r"\w+")
_MOST = 10_000  # numbers, or letters, of an example
_LONGEST = 1000  # letters of what a function's parameters are
_DOUBLE = 8  # bytes: JSON has no longer numbers
_leave = os._exit  # as it is before the file is read


def main() -> None:
    """Mark the file that is named first for the tasks that follow, or for those it has."""
    file, megabytes, seconds, *tasks = sys.argv[1:]
    _set_limits(int(megabytes))
    _go_on_in_a_child()
    _set_alarm(float(seconds))
    tell = _private_output()
    code = UNTOLD
    try:
        tell({"ready": True, "process": os.getpid()})
        module, tasks = _read(file, tasks, tell)
        if module is not None:
            for name in tasks:
                tell(_verdict(module, name, file))
        code = 0
    finally:
        _leave(code)  # whatever threads and exit functions the file has left behind


def _verdict(module: ModuleType, name: str, file: str) -> dict[str, Any]:
    """What is told of a task, whatever the module does."""
    try:
        result = _marked(module, name)
        return _told(result, _helper(module, name, result))
    except MemoryError as error:  # there is an output, and no room to compare it
        result = not_marked("out-of-memory", in_words(error), name)
    except Exception as error:  # not the learner's, whose errors are part of the verdict
        result = failed(error, file, name)
    except BaseException as error:  # KeyboardInterrupt, and others that say: end
        result = not_marked("exits", in_words(error), name)
    return _told(result)


def _told(result: CheckResult, helper: str = "") -> dict[str, Any]:
    return {"task": result.task, "result": packed(result), "helper": helper}


def _go_on_in_a_child() -> None:
    """Fork, and wait for the child: a file that ends its parent ends this process alone.

    This process then ends as the child did.
    """
    if not hasattr(os, "fork"):  # Windows
        return
    child = os.fork()
    if not child:
        return
    for number in (0, 1, 2):  # whoever reads us hears of the child's end
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    _leave(abs(code))


def _private_output() -> Callable[[dict[str, Any]], None]:
    """Standard output for this file alone: nobody sees what the learner's prints."""
    ours, process = os.dup(1), getpid()
    nobody = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nobody, number)

    def tell(what: dict[str, Any]) -> None:
        if getpid() != process:  # the file has forked: one process is enough to mark it
            _leave(0)
        line = json.dumps(what).encode() + b"\n"
        while line:
            line = line[os.write(ours, line) :]

    return tell


def _set_limits(megabytes: int) -> None:
    """A bound on memory, and no files of crashes."""
    try:
        import resource
    except ImportError:  # Windows has none
        return
    size = megabytes << 20
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
        wanted = size if limit == resource.RLIMIT_DATA else 0
        with suppress(ValueError, OSError):  # a lower one was set outside
            resource.setrlimit(limit, (wanted, resource.getrlimit(limit)[1]))


def _set_alarm(seconds: float) -> None:
    """An end, in case that nobody is there any more to end this process."""
    if hasattr(signal, "alarm"):  # not on Windows
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds))


def _read(
    file: str, tasks: list[str], tell: Callable[[dict[str, Any]], None]
) -> tuple[ModuleType | None, list[str]]:
    """Run the file as a module; tell what goes wrong."""
    try:
        source, book = Path(file).read_bytes(), None
        if file.lower().endswith(notebook.SUFFIX):
            book = notebook.read(source)
            source = "\n".join(notebook.python(book)).encode()
        names = defined(source, Path(file).name)
        made_for = book.tasks if book is not None else None
        tasks = tasks or ([*made_for] if made_for is not None else tasks_in(names))
        tell({"tasks": tasks})
        loader = SourceFileLoader(NAME, file)  # whatever the name ends in
        module = _module(file, loader)
        if book is None:
            loader.exec_module(module)
        else:
            failures = book.run(module, Path(file).name, lambda: tell({"cell": True}))
            tell({"failures": failures})
        if not tasks:  # only now, since it may have ended before it defined anything
            tell(_told(no_function(names)))
            return None, tasks
    except BaseException as error:
        tell(_told(of_error(error, file)))
        return None, tasks
    tell({"imported": True})
    return module, tasks


def _module(file: str, loader: SourceFileLoader) -> ModuleType:
    """A module for the file, not run yet, which finds what lies beside it."""
    sys.path.insert(0, str(Path(file).parent))
    module = importlib.util.module_from_spec(ModuleSpec(NAME, loader, origin=file))
    module.__file__ = file
    sys.modules[NAME] = module
    return module


def _marked(module: ModuleType, name: str) -> CheckResult:
    """The verdict on what the module has for a task."""
    task = task_of(name)
    by_task = name == task.name  # else one function was asked for by its name
    names = (*task.looks_for, *task.also) if by_task else (name,)
    there = [one for one in names if hasattr(module, one)]
    asked = names_of(task) if by_task else name
    about = {"name": there[0] if there else asked, "signature": task.signature}
    if not there:
        return not_marked("missing-function", f"it has {listed(_own(module))}", name, **about)
    function = getattr(module, there[0])
    if not callable(function):
        shows = f"it is a {type_name(function)}"
        return not_marked("not-a-function", shows, name, **about)
    for way in task.ways:
        try:
            return check(function, way or "qkv", task=name)
        except TypeError as error:
            if not words_of(error).startswith("check: "):
                raise
    return not_marked("wrong-parameters", f"it is {there[0]}{_parameters(function)}", name, **about)


def _helper(module: ModuleType, name: str, result: CheckResult) -> str:
    """The function with its parameters, if it looks like one that has its name by chance."""
    task = task_of(name)
    there = next((one for one in task.looks_for if hasattr(module, one)), "")
    if there not in task.everyday:
        return ""
    given = f"{there}{_parameters(getattr(module, there))}"
    another = not {*_WORDS.findall(given)} & {*_WORDS.findall(task.signature)} - {there}
    raises = len(result.mistakes) == 1 and result.mistake in RAISES
    return given if (raises and another) or result.mistakes == ("wrong-parameters",) else ""


def _parameters(function: Callable[..., Any]) -> str:
    """As it was defined."""
    try:
        return str(inspect.signature(function))[:_LONGEST]
    except Exception:  # some of compiled code do not say, and defaults may not be printed
        return "(...)"


def _own(module: ModuleType) -> list[str]:
    """The functions and classes that a module defines."""
    return [name for name, it in vars(module).items() if _is_of_the_file(it)]


def _is_of_the_file(thing: Any) -> bool:
    try:
        return bool(thing.__module__ == NAME)
    except Exception:  # most have no module; others raise what they like
        return False


def packed(result: CheckResult) -> dict[str, Any]:
    """A verdict for JSON, arrays by their types and numbers."""
    example = {name: _packed(value) for name, value in result.example.items()}
    return vars(result) | {"example": example}


def _packed(value: Any) -> Any:
    if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.size <= _MOST:
        a = value.astype(np.float64) if value.dtype.itemsize > _DOUBLE else value
        return {"dtype": str(a.dtype), "shape": a.shape, "numbers": a.tolist()}
    if type(value) in (bool, float) or (type(value) is int and abs(value) < 1 << 64):
        return value
    return words_of(value)[:_MOST]
