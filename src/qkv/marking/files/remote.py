"""A student's functions and objects as the marker holds them: each call runs in their process."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.errors import RaisedElsewhere
from qkv.marking.files.wire import Opaque, Packed, Packer, unpack
from qkv.marking.isolated import Ended
from qkv.marking.mistake import Mistake
from qkv.marking.outcome import RAISED, Elsewhere, Unread

Reply = Mapping[str, Any]


class Remotes:
    """The things of a student's process that the marker holds.

    Args:
        ask: sends a request, and gives the reply.

    Attributes:
        helped: the functions of libraries that were called since this was emptied.
    """

    def __init__(self, ask: Callable[[Packed], Reply]) -> None:
        self._ask = ask
        self._things: dict[int, Any] = {}  # by the number that they have there
        self._numbers: dict[int, int] = {}  # by their id here, which stays theirs: they are kept
        self.helped: set[str] = set()

    def call(self, thing: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What a function of the student's returns; this raises what that raises.

        Arrays, lists and mappings that the function writes to are written to here too.
        """
        packer = Packer(self._known)
        sent = {
            "given": [packer.pack(one) for one in given],
            "named": {name: packer.pack(one) for name, one in named.items()},
        }
        reply = self._ask({"do": "call", "of": self._numbers[id(thing)], **sent})
        for number, told in reply.get("stale", ()):
            _write(self._things[int(number)], self._read(told))
        for place, told in reply.get("after", ()):
            _write(named[place] if isinstance(place, str) else given[place], self._read(told))
        self.helped.update(map(str, reply.get("called", ())))
        if isinstance(sys.stdout, Unread):
            sys.stdout.lines += int(reply.get("printed", 0))
        return self._read(_good(reply)["value"])

    def ask(self, what: str, thing: Any, **more: Any) -> Any:
        """The value that the reply to another request has."""
        return _good(self._ask({"do": what, "of": self._numbers[id(thing)], **more}))["value"]

    def get(self, thing: Any, name: str) -> Any:
        """An attribute of a thing of the student's."""
        return self._read(self.ask("get", thing, name=name))

    def find(self, names: Sequence[str]) -> tuple[str, Any, str] | None:
        """The first of these names that the file has, what that is, and its parameters in words."""
        found = _good(self._ask({"do": "find", "names": [*names]}))["value"]
        return None if found is None else (str(found[0]), self._read(found[1]), str(found[2]))

    def values(self, names: Sequence[str]) -> tuple[Any, ...] | str:
        """The values of these names, or the first name that the file does not have."""
        told = _good(self._ask({"do": "values", "names": [*names]}))["value"]
        return told if isinstance(told, str) else tuple(map(self._read, told))

    def arrays(self, thing: Any) -> list[tuple[str, Array]]:
        """The arrays that an object holds, with the way to each."""
        found = [(str(path), self._read(told)) for path, told in self.ask("arrays", thing)]
        return [(path, a) for path, a in found if isinstance(a, np.ndarray)]

    def _known(self, thing: Any) -> int | None:
        return self._numbers.get(id(thing))

    def _read(self, told: Packed) -> Any:
        return unpack(told, self._held)

    def _held(self, number: int, thing: Any) -> Any:
        """The thing that has this number there; one that came again is the same one here."""
        before = self._things.get(number)
        if thing is None or isinstance(before, Elsewhere) or _write(before, thing):
            return before
        if isinstance(thing, Opaque):
            thing = _remote(thing, self)
        self._things[number] = thing
        self._numbers[id(thing)] = number
        return thing


class Remote(Elsewhere):
    """An object of the student's.

    Args:
        remotes: what asks its process.
    """

    def __init__(self, remotes: Remotes) -> None:
        self._remotes = remotes

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":
            return str(self._remotes.ask("name", self))
        if name.startswith("_"):  # what NumPy and inspect look for
            raise AttributeError(name)
        return self._remotes.get(self, name)

    def __str__(self) -> str:
        return str(self._remotes.ask("words", self))

    __repr__ = __str__

    def held_arrays(self) -> list[tuple[str, Array]]:
        """The arrays that it holds, with the way to each."""
        return self._remotes.arrays(self)

    def is_stub(self) -> bool:
        """Is it as a lesson hands it out, with nothing filled in?"""
        return bool(self._remotes.ask("stub", self))


class RemoteFunction(Remote):
    """Something of the student's that may be called."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call it in its process."""
        return self._remotes.call(self, given, named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature([*map(_parameter, self._remotes.ask("signature", self))])


def _remote(told: Opaque, remotes: Remotes) -> Remote:
    """What stands here for an object; the name of its type is that of the object's."""
    base = RemoteFunction if told.calls else Remote
    made: Remote = type(told.kind, (base,), {})(remotes)
    return made


def _write(target: Any, new: Any) -> bool:
    """Give an array, a list or a mapping the contents of another; False where that cannot be."""
    if type(target) is not type(new):
        return False
    if isinstance(target, np.ndarray):
        if target.dtype != new.dtype:
            return False
        with suppress(ValueError):  # it is a view, or may not be written to
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


def _parameter(told: Mapping[str, Any]) -> inspect.Parameter:
    default = told["default"]
    return inspect.Parameter(
        str(told["name"]),
        tuple(inspect._ParameterKind)[int(told["kind"])],
        default=inspect.Parameter.empty if default == "" else default,
    )


def _good(reply: Reply) -> Reply:
    """A reply that is no error; what the student's code raised is raised here."""
    if "error" not in reply:
        return reply
    told = reply["error"]
    words, names = str(told["words"]), [str(name) for name in told["mro"]]
    known = [it for name in names if isinstance(it := getattr(builtins, name, None), type)]
    base = next((it for it in known if issubclass(it, BaseException)), Exception)
    if not issubclass(base, RAISED):
        raise Ended("exits", str(told["in_words"]))
    mine = names[: names.index(base.__name__)] if base.__name__ in names else []
    members = {"__str__": lambda self: words, "__init__": lambda self, *given: None}
    made: Any = base
    for name in [*reversed(mine)] or [base.__name__]:
        made = type(name, (made,), members)
    error = type(made.__name__, (RaisedElsewhere, made), members)()
    error.args = tuple(map(str, told["args"]))
    error.line = str(told["line"])
    error.likely = None if told["likely"] is None else Mistake(**told["likely"])
    raise error
