"""The child process, which runs a student's file and calls the file's functions on request.

Another process, the marker, judges the results.
"""

import importlib.util
import inspect
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from qkv_marking._errors import in_words, line_of, type_name, words_of
from qkv_marking._isolated import leave, serve
from qkv_marking._library_calls import Watch
from qkv_marking._outcome import (
    PrintFlood,
    Unread,
    getpid,
    is_number,
    is_stub,
    mute,
    name_of,
    takes_tensors,
)
from qkv_marking._raised import find_cause
from qkv_marking._result import CheckResult
from qkv_marking.files._own_folder import PREFIX
from qkv_marking.files._source import (
    NOTEBOOK,
    find_names,
    find_repeated,
    read_notebook,
    split_cells,
    tasks_for,
    tasks_in,
)
from qkv_marking.files.verdicts import no_function, of_error
from qkv_marking.files.wire import Packed, Packer, unpack
from qkv_marking.tasks.self_attention_class.layers import arrays_of

NAME = "submission"
_LONGEST = 1000  # The maximum length of a text in a reply, such as a list of parameters.
# The number of recent arrays that are checked again: the student's code may change an array after
# returning it.
_WATCHED = 64


# A call of this function is no call of qkv. The student's functions may call it with any arguments.
_RIGHT_SOFTMAX = """
def softmax(x, *given, axis=None, dim=None, **_):
    axes = [axis, dim, *given]
    axis = next((a for a in axes if isinstance(a, int)), -1)
    x = np.asarray(x, float)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)
"""


def main() -> None:
    """Run the file named by the first argument, then answer requests."""
    file, megabytes, seconds = sys.argv[1:]
    folder = Path(file).parent
    os.chdir(folder)
    is_copy = folder.parent.name.startswith(PREFIX)
    if is_copy:
        os.environ["TMPDIR"] = str(folder.parent / "tmp")

    def clean_up() -> None:
        if is_copy:
            shutil.rmtree(folder.parent, ignore_errors=True)

    serve(lambda: _Submission(file).answer, int(megabytes), float(seconds), clean_up)


class _Submission:
    """A student's file and its objects, each with a number that the marker uses in requests.

    Args:
        file: the path of the file.
    """

    def __init__(self, file: str) -> None:
        self.file, self.module = file, ModuleType(NAME)
        self.things: list[Any] = []  # kept alive: Python reuses the ids of deleted objects
        self.numbers: dict[int, int] = {}
        self.returned: dict[int, tuple[np.ndarray[Any, Any], bytes]] = {}
        self.callable: dict[int, Callable[..., Any]] = {}
        self.flood: Packed | None = None
        self.in_threads = Watch()  # records the calls in threads that the file itself starts

    def answer(self, request: Packed, tell: Callable[[list[str]], None]) -> Packed:
        """Return the reply to a request; an error of the student's code is also a reply.

        Args:
            request: the request.
            tell: a function that is called with a notebook's tasks before the first cell and after
                each cell.
        """
        process = getpid()
        try:
            if request["do"] == "read":
                return self._read(request["tasks"], tell)
            if request["do"] == "call":
                return self._call(self.things[request["of"]], request)
            return {"value": self._value(request)}
        except BaseException as error:
            return {"error": _packed_error(error)}
        finally:
            if getpid() != process:  # this process is a child that the student's code forked
                leave(0)

    def _read(self, tasks: list[str], tell: Callable[[list[str]], None]) -> Packed:
        """Run the file as a module; return its tasks, or a verdict if the file cannot be run."""
        failures: list[str] = []
        try:
            source, book = Path(self.file).read_bytes(), None
            if self.file.lower().endswith(NOTEBOOK):
                book = read_notebook(source)
            else:
                book = split_cells(source)
            if book is not None:
                source = book.python().encode()
            names = find_names(source, Path(self.file).name)
            made_for = book.tasks if book is not None else None
            tasks = tasks or ([*made_for] if made_for is not None else tasks_in(names))
            loader = SourceFileLoader(NAME, self.file)  # accepts any file extension
            self.module = _module(self.file, loader)
            sys.stdout = Unread()
            self.in_threads.watch_new_threads()
            if book is None:
                loader.exec_module(self.module)
            else:
                cells_of = [*tasks, *(made_for or ())]
                tell(cells_of)
                failures = book.run(self.module, Path(self.file).name, lambda: tell(cells_of))
        except BaseException as error:
            return {"result": _verdict(of_error(error, self.file))}
        objects = {k: v for k, v in vars(self.module).items() if _is_of_the_file(v)}
        lone = [name for name, thing in objects.items() if type(thing) is FunctionType]
        if made_for or len(lone) > 1 or len(tasks) > 1 or tasks_in({*lone}):
            lone = []  # only a file's single function may have a name that no task looks for
        elif lone and not tasks and len(fitting := tasks_for(objects[lone[0]])) == 1:
            tasks = fitting
        again = find_repeated([("line", 0, source)] if book is None else book.places())
        if not tasks:  # the file defines no function that a task asks for
            return {"result": _verdict(no_function(names))}
        return {
            "tasks": tasks,
            "failures": failures,
            "own": [*objects],
            "lone": lone,
            "again": again,
        }

    def _value(self, request: Packed) -> Any:
        """Return information about the file or about one of its objects."""
        match request["do"]:
            case "find":
                return self._find(request["names"])
            case "values":
                return self._values(request["names"])
            case "mend":
                return self._mend(request["names"])
        thing = self.things[request["of"]]
        match request["do"]:
            case "get":
                return self._pack(getattr(thing, request["name"]))
            case "arrays":
                return [[path, self._pack(a)] for path, a in arrays_of(thing)]
            case "signature":
                return [*map(_parameter, inspect.signature(thing).parameters.values())]
            case "stub":
                return is_stub(thing)
            case "name":
                return name_of(thing)
            case "words":
                return words_of(thing)[:_LONGEST]

    def _values(self, names: list[str]) -> list[Packed] | str:
        """Return the values of these names. If a name is undefined, return only the name."""
        for name in names:
            if not hasattr(self.module, name):
                return name
        return [self._pack(getattr(self.module, name)) for name in names]

    def _mend(self, names: list[str]) -> bool:
        """Replace the file's softmax by a right one; return False if the file has none."""
        right: dict[str, Any] = {"np": np}
        exec(compile(_RIGHT_SOFTMAX, "a right softmax", "exec"), right)
        own = {*names} & {*vars(self.module)}
        vars(self.module).update(dict.fromkeys(own, right["softmax"]))
        return bool(own)

    def _find(self, names: list[str]) -> list[Any] | None:
        """Find the first of these names in the file; return name, object and parameters."""
        name = next((name for name in names if hasattr(self.module, name)), None)
        if name is None:
            return None
        thing = getattr(self.module, name)
        packed = {"r": self._number(thing), "o": type_name(thing), "calls": callable(thing)}
        return [name, packed, _parameters(thing)]

    def _call(self, thing: Any, request: Packed) -> Packed:
        """Call a function; record changed inputs, library calls and printed lines."""
        function = self.callable.setdefault(request["of"], takes_tensors(thing))
        sent: dict[int | str, Packed] = {**dict(enumerate(request["given"])), **request["named"]}
        values = {
            argument: unpack(packed, lambda number, _: self.things[number])
            for argument, packed in sent.items()
        }
        positional = [values[number] for number in range(len(request["given"]))]
        named = {name: values[name] for name in request["named"]}
        watch = Watch()
        reply: Packed = {}
        if self.flood is not None:  # each further call would print as much
            return {"error": self.flood}
        with warnings.catch_warnings(), np.errstate(all="ignore"), mute() as unread:
            warnings.simplefilter("ignore")
            self.in_threads.called.clear()
            try:
                with watch.on():
                    value = function(*positional, **named)
                    if hasattr(type(value), "__array__"):
                        with suppress(Exception):
                            np.asarray(value)  # the conversion may call a library, too
                reply["value"] = self._pack(value)
            except BaseException as error:
                reply["error"] = _packed_error(error)
                if isinstance(error, PrintFlood):
                    self.flood = reply["error"]
        inputs = [argument for argument, packed in sent.items() if packed.get("r") is None]
        after = [(argument, Packer(lambda _: None).pack(values[argument])) for argument in inputs]
        reply["after"] = [[argument, now] for argument, now in after if now != sent[argument]]
        reply["stale"] = self._stale()
        called = watch.called | self.in_threads.called
        reply["called"], reply["printed"] = sorted(called), unread.lines
        return reply

    def _pack(self, thing: Any) -> Packed:
        """Pack an object for the marker, with numbers that identify the object and its parts."""
        return Packer(self._number).pack(thing)

    def _number(self, thing: Any) -> int:
        number = self.numbers.get(id(thing))
        if number is None:
            number = self.numbers[id(thing)] = len(self.things)
            self.things.append(thing)
        if type(thing) is np.ndarray and thing.dtype.kind in "biuf":
            self.returned.pop(number, None)
            self.returned[number] = thing, thing.tobytes()
        return number

    def _stale(self) -> list[Any]:
        """Pack arrays that the student's code returned earlier and has changed since then."""
        changed = [n for n, (a, sent) in self.returned.items() if a.tobytes() != sent]
        stale = [[number, self._pack(self.things[number])] for number in changed]
        for number in [*self.returned][:-_WATCHED]:
            del self.returned[number]
        return stale


def _packed_error(error: BaseException) -> Packed:
    """Pack an exception for the marker."""
    try:
        words = str.__str__(str(error))
    except BaseException:
        words = "(the message cannot be read)"
    likely = None
    with suppress(Exception):  # reading an attribute of a student's object may fail
        likely = find_cause(error)
    texts = likely and {name: text for name, text in vars(likely).items() if name != "variants"}
    return {
        "words": words[:_LONGEST].encode("utf-8", "backslashreplace").decode(),
        "in_words": in_words(error),
        "mro": [kind.__name__ for kind in type.__dict__["__mro__"].__get__(type(error))],
        "args": [words_of(argument)[:_LONGEST] for argument in error.args],
        "line": line_of(error),
        "likely": texts,
    }


def _verdict(result: CheckResult) -> Packed:
    """Pack a verdict on a file: all fields except `example`."""
    return {name: value for name, value in vars(result).items() if name != "example"}


def _module(file: str, loader: SourceFileLoader) -> ModuleType:
    """Create a module for the file without running it; allow imports from the file's folder."""
    sys.path.insert(0, str(Path(file).parent))
    module = importlib.util.module_from_spec(ModuleSpec(NAME, loader, origin=file))
    module.__file__ = file
    sys.modules[NAME] = module
    return module


def _parameter(parameter: inspect.Parameter) -> Packed:
    """Pack a parameter of a function.

    A missing default is packed as "", and a default that is not a number is packed as None.
    """
    default = parameter.default if is_number(parameter.default) else None
    if parameter.default is parameter.empty:
        default = ""
    return {"name": parameter.name, "kind": int(parameter.kind), "default": default}


def _parameters(function: Callable[..., Any]) -> str:
    """Return the parameters of a function as in its definition."""
    try:
        return str(inspect.signature(function))[:_LONGEST]
    except Exception:  # compiled code has no signature, and some default values cannot be printed
        return "(...)"


def _is_of_the_file(thing: Any) -> bool:
    """Return whether the object is a function or a class that the file defines."""
    try:
        return bool(thing.__module__ == NAME)
    except Exception:  # `__module__` may be missing, and reading it may raise any error
        return False
