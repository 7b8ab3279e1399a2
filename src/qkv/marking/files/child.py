"""The process that a student's file runs in: reads the file, and calls its functions when asked.

What they return is judged elsewhere.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from qkv.marking.errors import in_words, line_of, type_name, words_of
from qkv.marking.files import notebook
from qkv.marking.files.source import defined, tasks_in
from qkv.marking.files.verdicts import no_function, of_error
from qkv.marking.files.watch import Watch
from qkv.marking.files.wire import Packed, Packer, unpack
from qkv.marking.functions import is_number, is_stub, takes_tensors
from qkv.marking.isolated import leave, serve
from qkv.marking.outcome import getpid, name_of, nobody_there
from qkv.marking.raised import known
from qkv.marking.result import CheckResult
from qkv.marking.tasks.self_attention_class.layers import arrays_of

NAME = "submission"
_LONGEST = 1000  # letters of what a function's parameters are
_WATCHED = 64  # arrays that were returned last: does a later call write to them?


def main() -> None:
    """Read the file that is named first, and answer what is asked."""
    file, megabytes, seconds = sys.argv[1:]
    serve(lambda: _Submission(file).answer, int(megabytes), float(seconds))


class _Submission:
    """A student's file, and the things in it that were asked for.

    Args:
        file: the path.
    """

    def __init__(self, file: str) -> None:
        self.file, self.module = file, ModuleType(NAME)
        self.things: list[Any] = []  # by their numbers; kept, so that their ids stay theirs
        self.numbers: dict[int, int] = {}
        self.returned: dict[int, tuple[np.ndarray[Any, Any], bytes]] = {}
        self.callable: dict[int, Callable[..., Any]] = {}

    def answer(self, request: Packed, tell: Callable[[list[str]], None]) -> Packed:
        """The reply to a request; what the student's code raises is one.

        Args:
            request: what is asked.
            tell: is told before the first cell of a notebook, and after each, which tasks it has.
        """
        process = getpid()
        try:
            if request["do"] == "read":
                return self._read(request["tasks"], tell)
            if request["do"] == "find":
                return {"value": self._find(request["names"])}
            if request["do"] == "values":
                return {"value": self._values(request["names"])}
            thing = self.things[request["of"]]
            if request["do"] == "call":
                return self._call(thing, request)
            ask = getattr(self, f"_{request['do']}")
            return {"value": ask(thing, request)}
        except BaseException as error:
            return {"error": _told(error)}
        finally:
            if getpid() != process:  # the file has forked: one process is enough to mark it
                leave(0)

    def _read(self, tasks: list[str], tell: Callable[[list[str]], None]) -> Packed:
        """Run the file as a module; the tasks that it has, or a verdict on the file."""
        failures: list[str] = []
        try:
            source, book = Path(self.file).read_bytes(), None
            if self.file.lower().endswith(notebook.SUFFIX):
                book = notebook.read(source)
                source = "\n".join(notebook.python(book)).encode()
            names = defined(source, Path(self.file).name)
            made_for = book.tasks if book is not None else None
            tasks = tasks or ([*made_for] if made_for is not None else tasks_in(names))
            loader = SourceFileLoader(NAME, self.file)  # whatever the name ends in
            self.module = _module(self.file, loader)
            if book is None:
                loader.exec_module(self.module)
            else:
                cells_of = [*tasks, *(made_for or ())]
                tell(cells_of)
                failures = book.run(self.module, Path(self.file).name, lambda: tell(cells_of))
            if not tasks:  # only now, since it may have ended before it defined anything
                return {"result": _verdict(no_function(names))}
        except BaseException as error:
            return {"result": _verdict(of_error(error, self.file))}
        return {"tasks": tasks, "failures": failures, "own": _own(self.module)}

    def _values(self, names: list[str]) -> list[Packed] | str:
        """The values that have these names, or the first name that the file does not have."""
        for name in names:
            if not hasattr(self.module, name):
                return name
        return [self._packed(getattr(self.module, name)) for name in names]

    def _find(self, names: list[str]) -> list[Any] | None:
        """The first of these names, its thing, and its parameters in words."""
        name = next((one for one in names if hasattr(self.module, one)), None)
        if name is None:
            return None
        thing = getattr(self.module, name)
        told = {"r": self._number(thing), "o": type_name(thing), "calls": callable(thing)}
        return [name, told, _parameters(thing)]

    def _call(self, thing: Any, request: Packed) -> Packed:
        """Call a function; also what it has written to, called and printed."""
        number = request["of"]
        function = self.callable.setdefault(number, takes_tensors(thing))
        given = [unpack(one, self._held) for one in request["given"]]
        named = {name: unpack(one, self._held) for name, one in request["named"].items()}
        watch = Watch()
        reply: Packed = {}
        with warnings.catch_warnings(), np.errstate(all="ignore"), nobody_there() as unread:
            warnings.simplefilter("ignore")
            try:
                with watch.on():
                    value = function(*given, **named)
                reply["value"] = self._packed(value)
            except BaseException as error:
                reply["error"] = _told(error)
        sent = [*enumerate(request["given"]), *request["named"].items()]
        now = {**dict(enumerate(given)), **named}
        reply["after"] = [
            [place, self._plain(now[place])]
            for place, told in sent
            if told.get("r") is None and self._plain(now[place]) != told
        ]
        reply["stale"] = self._stale()
        reply["called"], reply["printed"] = sorted(watch.called), unread.lines
        return reply

    def _get(self, thing: Any, request: Packed) -> Packed:
        return self._packed(getattr(thing, request["name"]))

    def _arrays(self, thing: Any, request: Packed) -> list[Any]:
        return [[path, self._packed(a)] for path, a in arrays_of(thing)]

    def _signature(self, thing: Any, request: Packed) -> list[Packed]:
        return [
            {
                "name": one.name,
                "kind": int(one.kind),
                "default": ""
                if one.default is one.empty
                else one.default
                if is_number(one.default)
                else None,
            }
            for one in inspect.signature(thing).parameters.values()
        ]

    def _stub(self, thing: Any, request: Packed) -> bool:
        return is_stub(thing)

    def _name(self, thing: Any, request: Packed) -> str:
        return name_of(thing)

    def _words(self, thing: Any, request: Packed) -> str:
        return words_of(thing)[:_LONGEST]

    def _packed(self, thing: Any) -> Packed:
        """A thing on its way out; what it holds is known by numbers from now on."""
        return Packer(self._number).pack(thing)

    def _plain(self, thing: Any) -> Packed:
        """An argument as it is now, as it came."""
        return Packer(lambda _: None).pack(thing)

    def _number(self, thing: Any) -> int:
        number = self.numbers.get(id(thing))
        if number is None:
            number = self.numbers[id(thing)] = len(self.things)
            self.things.append(thing)
        if type(thing) is np.ndarray and thing.dtype.kind in "biuf":
            self.returned.pop(number, None)
            self.returned[number] = thing, thing.tobytes()
        return number

    def _held(self, number: int, thing: Any) -> Any:
        return self.things[number]

    def _stale(self) -> list[Any]:
        """The arrays that were returned before and have been written to since."""
        changed = [n for n, (a, sent) in self.returned.items() if a.tobytes() != sent]
        told = [[number, self._packed(self.things[number])] for number in changed]
        for number in [*self.returned][:-_WATCHED]:
            del self.returned[number]
        return told


def _told(error: BaseException) -> Packed:
    """What the marker is told of an exception."""
    try:
        words = str.__str__(str(error))
    except BaseException:
        words = "(its own words raise an error)"
    likely = None
    with suppress(Exception):  # whatever the things that the error is about do
        likely = known(error)
    return {
        "words": words[:_LONGEST].encode("utf-8", "backslashreplace").decode(),
        "in_words": in_words(error),
        "mro": [one.__name__ for one in type.__dict__["__mro__"].__get__(type(error))],
        "args": [words_of(one)[:_LONGEST] for one in error.args],
        "line": line_of(error),
        "likely": likely and {name: it for name, it in vars(likely).items() if name != "variants"},
    }


def _verdict(result: CheckResult) -> Packed:
    """A verdict on a file, which has no arrays."""
    return {name: it for name, it in vars(result).items() if name != "example"}


def _module(file: str, loader: SourceFileLoader) -> ModuleType:
    """A module for the file, not run yet, which finds what lies beside it."""
    sys.path.insert(0, str(Path(file).parent))
    module = importlib.util.module_from_spec(ModuleSpec(NAME, loader, origin=file))
    module.__file__ = file
    sys.modules[NAME] = module
    return module


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
