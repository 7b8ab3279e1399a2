"""Arrays and other things as JSON, on their way between the marker and the student's process.

Numbers, texts, arrays, lists, tuples and mappings go by value. Whatever comes from the student's
process is also known by a number there: where the marker hands it back (a cache, say), the number
goes, and the student's function gets the very thing that it returned.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkv.marking.errors import type_name
from qkv.marking.outcome import Elsewhere, numbers

Packed = dict[str, Any]
MOST = 1 << 16  # numbers of an array, or elements of all lists, that are sent
_LONGEST = 10_000  # letters of a text that are sent
_DEEPEST = 20
_WHOLE = 1 << 63


class Packer:
    """Packs one message.

    Args:
        known: the number by which the other side knows a thing, or None.
    """

    def __init__(self, known: Callable[[Any], int | None]) -> None:
        self.known, self.count = known, 0

    def pack(self, thing: Any, depth: int = 0) -> Packed:
        """A thing as what JSON holds.

        Raises:
            MemoryError: it has too many numbers, which no right answer has.
        """
        self.count += 1
        kind = type(thing)
        if thing is None or kind in (bool, float) or (kind is int and abs(thing) < _WHOLE):
            return {"v": thing}
        if kind is str:
            return {"v": thing[:_LONGEST].encode("utf-8", "backslashreplace").decode()}
        if kind is np.ndarray and thing.size > MOST:
            raise MemoryError(f"the output has {thing.size:,} numbers")
        if issubclass(kind, tuple | list | dict) and self.count + len(thing) > MOST:
            raise MemoryError(f"the output has {len(thing):,} elements")
        told: Packed = {"r": self.known(thing)}
        if issubclass(kind, Elsewhere):
            return told
        if depth < _DEEPEST and issubclass(kind, tuple | list):
            name = "t" if issubclass(kind, tuple) else "l"
            return told | {name: [self.pack(one, depth + 1) for one in (*thing,)]}
        if depth < _DEEPEST and issubclass(kind, dict):
            items = [*dict.items(thing)]
            return told | {"d": [[self.pack(k, depth + 1), self.pack(v, depth + 1)]
                                 for k, v in items]}  # fmt: skip
        try:
            a = numbers(thing)
        except (Exception, SystemExit):
            if not depth:  # what a function returns is looked at as its caller would
                raise
            a = None
        if a is None:
            return told | {"o": type_name(thing), "calls": callable(thing)}
        if a.size > MOST:
            raise MemoryError(f"the output has {a.size:,} numbers")
        a = a.astype(np.float64) if a.dtype.itemsize > np.dtype(np.float64).itemsize else a
        data = base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()
        one = issubclass(kind, np.generic)
        return told | {"n" if one else "a": [a.dtype.str, [*a.shape], data]}


def unpack(told: Mapping[str, Any], held: Callable[[int, Any], Any]) -> Any:
    """A thing as it was packed.

    Args:
        told: what came.
        held: given the number of a thing and the thing as it came, gives the thing to use. The
            thing is None where the number came alone, and a tuple (type name, may be called) where
            it cannot be sent.
    """
    if "v" in told:
        return told["v"]
    thing: Any = None
    if "t" in told:
        thing = tuple(unpack(one, held) for one in told["t"])
    elif "l" in told:
        thing = [unpack(one, held) for one in told["l"]]
    elif "d" in told:
        thing = {unpack(k, held): unpack(v, held) for k, v in told["d"]}
    elif "a" in told or "n" in told:
        kind, shape, data = told.get("a") or told["n"]
        thing = np.frombuffer(base64.b64decode(data), dtype=_numbers_only(kind)).reshape(shape)
        thing = thing[()] if "n" in told else thing.copy()
    elif "o" in told:
        thing = Opaque(str(told["o"]), bool(told["calls"]))
    number = told["r"]
    return thing if number is None else held(int(number), thing)


class Opaque:
    """A thing of the student's that is no number, text, array or container.

    Args:
        kind: the name of its type.
        calls: may it be called?
    """

    def __init__(self, kind: str, calls: bool) -> None:
        self.kind, self.calls = kind, calls


def _numbers_only(kind: str) -> np.dtype[Any]:
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf":
        raise ValueError(f"{kind} are no numbers")
    return dtype
