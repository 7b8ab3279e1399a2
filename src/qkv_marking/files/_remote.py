"""Proxies for a student's functions and objects; calls run in the student's process."""

import builtins
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv_marking._errors import RaisedElsewhere
from qkv_marking._isolated import Ended
from qkv_marking._mistake import Mistake
from qkv_marking._outcome import RAISED, Elsewhere, Unread
from qkv_marking.files.wire import Opaque, Packed, Packer, unpack


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
