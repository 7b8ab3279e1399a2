"""The process that a learner's file runs in: marks it, and tells what it finds, a line each."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qkv.marking.errors import in_words
from qkv.marking.files.found import names_of, no_function, not_marked, of_error
from qkv.marking.files.source import defined, tasks_in
from qkv.marking.marker import check, task_of
from qkv.marking.result import CheckResult

NAME = "submission"
_WORDS = re.compile(r"\w+")
_MOST = 10_000  # numbers, or letters, of an example


def main() -> None:
    """Mark the file that is named first for the tasks that follow, or for those it has."""
    file, megabytes, seconds, *tasks = sys.argv[1:]
    tell = _private_output()
    _set_limits(int(megabytes), float(seconds))
    tell({"ready": True})
    module, tasks = _read(file, tasks, tell)
    if module is not None:
        for name in tasks:
            try:
                result = _marked(module, name)
            except MemoryError as error:  # there is an output, and no room to compare it
                result = not_marked("out-of-memory", in_words(error), name)
            except Exception as error:  # not the learner's, whose errors are part of the verdict
                tell({"failure": f"{name}: {in_words(error)}"})
                break
            except BaseException as error:  # KeyboardInterrupt, and others that say: end
                result = not_marked("exits", in_words(error), name)
            helper = _helper(module, name, result)
            tell({"task": name, "result": packed(result), "helper": helper})
    os._exit(0)  # whatever threads and exit functions the file has left behind


def _private_output() -> Callable[[dict[str, Any]], None]:
    """Standard output for this file alone: nobody sees what the learner's prints."""
    ours = os.dup(1)
    nobody = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nobody, number)

    def tell(what: dict[str, Any]) -> None:
        line = json.dumps(what).encode() + b"\n"
        while line:
            line = line[os.write(ours, line) :]

    return tell


def _set_limits(megabytes: int, seconds: float) -> None:
    """A bound on memory, and an alarm in case that nobody is there any more to end this process."""
    try:
        import resource
        import signal
    except ImportError:  # Windows has neither
        return
    size = megabytes << 20
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
        wanted = size if limit == resource.RLIMIT_DATA else 0
        with suppress(ValueError, OSError):  # a lower one was set outside
            resource.setrlimit(limit, (wanted, resource.getrlimit(limit)[1]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds))


def _read(
    file: str, tasks: list[str], tell: Callable[[dict[str, Any]], None]
) -> tuple[ModuleType | None, list[str]]:
    """Run the file as a module; tell what goes wrong."""
    try:
        names = defined(Path(file).read_bytes(), Path(file).name)
        tasks = tasks or tasks_in(names)
        tell({"tasks": tasks})
        module = _imported(file)
        if not tasks:  # only now, since it may have ended before it defined anything
            tell({"task": None, "result": packed(no_function(names))})
            return None, tasks
    except BaseException as error:
        tell({"task": None, "result": packed(of_error(error, file))})
        return None, tasks
    tell({"imported": True})
    return module, tasks


def _imported(file: str) -> ModuleType:
    """The file as a module, which finds what lies beside it."""
    sys.path.insert(0, str(Path(file).parent))
    loader = SourceFileLoader(NAME, file)  # whatever the name ends in
    module = importlib.util.module_from_spec(ModuleSpec(NAME, loader, origin=file))
    module.__file__ = file
    sys.modules[NAME] = module
    loader.exec_module(module)
    return module


def _marked(module: ModuleType, name: str) -> CheckResult:
    """The verdict on what the module has for a task."""
    task = task_of(name)
    there = [one for one in (*task.looks_for, *task.also) if hasattr(module, one)]
    about = {"name": there[0] if there else names_of(task), "signature": task.signature}
    if not there:
        has = ", ".join(sorted(_own(module))) or "nothing"
        return not_marked("missing-function", f"it has {has}", name, **about)
    function = getattr(module, there[0])
    if not callable(function):
        shows = f"it is a {type(function).__name__}"
        return not_marked("not-a-function", shows, name, **about)
    for way in task.ways:
        try:
            return check(function, way or "qkv", task=name)
        except TypeError as error:
            if not str(error).startswith("check: "):
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
    raises = result.mistakes == ("raises",) and another
    return given if raises or result.mistakes == ("wrong-parameters",) else ""


def _parameters(function: Callable[..., Any]) -> str:
    """As it was defined."""
    try:
        return str(inspect.signature(function))
    except ValueError:  # some of compiled code do not say
        return "(...)"


def _own(module: ModuleType) -> list[str]:
    """The functions and classes that a module defines."""
    found = vars(module).items()
    return [name for name, it in found if getattr(it, "__module__", None) == NAME]


def packed(result: CheckResult) -> dict[str, Any]:
    """A verdict for JSON, arrays by their types and numbers."""
    example = {name: _packed(value) for name, value in result.example.items()}
    return vars(result) | {"example": example}


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size <= _MOST:
        return {"dtype": str(value.dtype), "shape": value.shape, "numbers": value.tolist()}
    if isinstance(value, bool | int | float):
        return value
    try:
        return str(value)[:_MOST]
    except Exception:  # an object of the learner's that cannot be printed
        return f"a {type(value).__name__}"
