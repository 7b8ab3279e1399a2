"""Send arrays and other objects as JSON between the marker and the student's process.

Numbers, texts, arrays, lists, tuples and mappings are sent by value. Each object from the student's
process also has a number. If the marker passes such an object (for example, a cache) to a later
call, only the number is sent, and the student's function receives the original object.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import DType
from qkv_marking._errors import type_name
from qkv_marking._outcome import Elsewhere, numbers

Packed = dict[str, Any]
MAX_VALUES = 1 << 16  # The maximum number of values in an array, and of list elements in a message.
_LONGEST = 10_000  # The maximum length of a text in a message.
_DEEPEST = 20
_WHOLE = 1 << 63


class Packer:
    """Encodes the objects of one message.

    Args:
        known: a function that takes an object and returns the object's number in the student's
            process, or None if the object has no number.
        most: the maximum number of values in an array.
    """

    def __init__(self, known: Callable[[Any], int | None], most: int = MAX_VALUES) -> None:
        self.known, self.most, self.count = known, most, 0

    def pack(self, thing: Any, depth: int = 0) -> Packed:
        """Pack an object as JSON.

        Raises:
            MemoryError: an array has more than `most` values, or the message has more than
                `MAX_VALUES` elements; right answers are smaller.
        """
        self.count += 1
        kind = type(thing)
        if thing is None or kind in (bool, float) or (kind is int and abs(thing) < _WHOLE):
            return {"v": thing}
        if kind is str:
            return {"v": thing[:_LONGEST].encode("utf-8", "backslashreplace").decode()}
        if kind is np.ndarray and thing.size > self.most:
            raise MemoryError(f"the output has {thing.size:,} numbers")
        if issubclass(kind, tuple | list | dict) and self.count + len(thing) > MAX_VALUES:
            raise MemoryError(f"the output has {len(thing):,} elements")
        packed: Packed = {"r": self.known(thing)}
        if issubclass(kind, Elsewhere):
            return packed
        if depth < _DEEPEST and issubclass(kind, tuple | list):
            name = "t" if issubclass(kind, tuple) else "l"
            return packed | {name: [self.pack(element, depth + 1) for element in (*thing,)]}
        if depth < _DEEPEST and issubclass(kind, dict):
            items = [*dict.items(thing)]
            return packed | {"d": [[self.pack(k, depth + 1), self.pack(v, depth + 1)]
                                 for k, v in items]}  # fmt: skip
        try:
            a = numbers(thing)
        except (Exception, SystemExit):
            if not depth:  # this is the whole object, not a part of it
                raise
            a = None
        if a is None:
            return packed | {"o": type_name(thing), "calls": callable(thing)}
        if a.size > self.most:
            raise MemoryError(f"the output has {a.size:,} numbers")
        a = a.astype(np.float64) if a.dtype.itemsize > np.dtype(np.float64).itemsize else a
        data = base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()
        name = "n" if issubclass(kind, np.generic) else "a"
        return packed | {name: [a.dtype.str, [*a.shape], data]}


def unpack(packed: Mapping[str, Any], held: Callable[[int, Any], Any]) -> Any:
    """Unpack an object.

    Args:
        packed: the result of `Packer.pack`.
        held: a function `held(number, thing)`, called for each object with a number. The number
            identifies the object in the student's process. In the result, the object that `held`
            returns replaces `thing`. `thing` is the unpacked object. If `packed` contains only the
            object's number, `thing` is None. If the object cannot be sent by value, `thing` is an
            `Opaque`.
    """
    if "v" in packed:
        return packed["v"]
    thing: Any = None
    if "t" in packed:
        thing = tuple(unpack(element, held) for element in packed["t"])
    elif "l" in packed:
        thing = [unpack(element, held) for element in packed["l"]]
    elif "d" in packed:
        thing = {unpack(k, held): unpack(v, held) for k, v in packed["d"]}
    elif "a" in packed or "n" in packed:
        kind, shape, data = packed.get("a") or packed["n"]
        thing = np.frombuffer(base64.b64decode(data), dtype=_numbers_only(kind)).reshape(shape)
        thing = thing[()] if "n" in packed else thing.copy()
    elif "o" in packed:
        thing = Opaque(str(packed["o"]), bool(packed["calls"]))
    number = packed["r"]
    return thing if number is None else held(int(number), thing)


@dataclass(frozen=True)
class Opaque:
    """A student's object that cannot be sent by value, such as an object of a class in the file.

    Attributes:
        kind: the name of the object's type.
        calls: whether the object can be called.
    """

    kind: str
    calls: bool


def _numbers_only(kind: str) -> DType:
    dtype = np.dtype(kind)
    if dtype.kind not in "biuf":
        raise ValueError(f"the dtype {kind} is not numeric")
    return dtype
