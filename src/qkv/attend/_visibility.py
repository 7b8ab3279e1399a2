"""The keys that a query may see.

One rule combines the causal limit, the window, the lengths and the mask.
"""

import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import type_error, value_error
from qkv.arrays import Array, Shape, as_array, quote

Index = tuple[Any, ...]  # Integers and slices along the leading axes.
FAR = 2**60  # The limit for offsets and window sizes. It is larger than every sequence length.


class Visibility(NamedTuple):
    """The masking rules of a call: a query sees only the keys that every rule allows.

    Query i of a row is at position `i + offset` among the keys. The query sees key j if
    `i + offset - left <= j <= i + offset + right`, `j < key_length`, `i < query_length`,
    `allowed[..., i, j]` is True and no array in `numbers` is -inf at `[..., i, j]`. The offset and
    the lengths are arrays `(*lead,)` with one number for each row.
    """

    length: int
    keys: int
    offset: Array
    left: int | None
    right: int | None
    query_lengths: Array | None
    key_lengths: Array | None
    allowed: Array | None  # bool, (*lead, Hkv, G, L, S).
    numbers: tuple[Array, ...]  # float, (*lead, Hkv, G, L, S).

    def key_range(self, rows: Index, i: slice) -> tuple[int, int]:
        """Return the range (first, end) of the keys that any of the queries `i` may see."""
        start, stop = 0, self.keys
        if self.query_lengths is not None and self.query_lengths[rows].max(initial=0) <= i.start:
            return 0, 0
        if self.key_lengths is not None:
            stop = min(stop, int(self.key_lengths[rows].max(initial=0)))
        offset = self.offset[rows]
        if self.left is not None:
            start = max(start, i.start + int(offset.min(initial=FAR)) - self.left)
        if self.right is not None:
            stop = min(stop, i.stop + int(offset.max(initial=-FAR)) + self.right)
        return start, max(start, stop)

    def block(self, index: Index, rows: Index, i: slice, j: slice) -> Array | None:
        """Return a mask of the keys `j` that queries `i` see; None if all queries see all keys.

        `rows` selects rows from `(*lead,)`, and `index` selects heads from `(*lead, Hkv, G)`. The
        result broadcasts to the shape of the selected heads, followed by `(queries, keys)`.
        """
        rules: list[Array] = []
        query = np.arange(i.start, i.stop)[:, None]  # (l, 1)
        key = np.arange(j.start, j.stop)  # (s,)
        offset = self.offset[rows]
        if self.right is not None and j.stop - 1 > i.start + offset.min(initial=FAR) + self.right:
            rules.append(key <= query + _front(offset) + self.right)
        if self.left is not None and j.start < i.stop - 1 + offset.max(initial=-FAR) - self.left:
            rules.append(key >= query + _front(offset) - self.left)
        if self.key_lengths is not None:
            lengths = self.key_lengths[rows]
            if lengths.min(initial=self.keys) < j.stop:
                rules.append(key < _front(lengths))
        if self.query_lengths is not None:
            lengths = self.query_lengths[rows]
            if lengths.min(initial=self.length) < i.stop:
                rules.append(query < _front(lengths))
        if self.allowed is not None:
            rules.append(self.allowed[index][..., i, j])
        rules += [~np.isneginf(numbers[index][..., i, j]) for numbers in self.numbers]
        return functools.reduce(np.bitwise_and, rules) if rules else None

    def distance(self, rows: Index, i: slice, j: slice) -> Array:
        """Return the distance of each key from each query's position, `abs(i + offset - j)`."""
        query = np.arange(i.start, i.stop)[:, None]
        return np.asarray(abs(query + _front(self.offset[rows]) - np.arange(j.start, j.stop)))


def _front(per_row: Array) -> Array:
    """Add four axes to an array (*lead,), so that it broadcasts to (*lead, Hkv, G, L, S)."""
    return per_row[..., None, None, None, None]


def check_window(window: Any, is_causal: bool) -> tuple[int | None, int | None]:
    """Return the left and right sides of `window`; if `is_causal`, the right side is 0."""
    left = right = None
    if is_causal is not True and is_causal is not False:
        check_flag("is_causal", is_causal)
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise value_error(
                f"window is {quote(window)}; pass (left, right), each a number or None; "
                "for a sliding window of the last W keys, pass (W - 1, 0)"
            )
        left, right = (_side(side) for side in window)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    return left, right


def check_flag(name: str, value: Any) -> None:
    """Raise an error unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise type_error(f"{name} is {quote(value)}; pass True or False")


def _side(side: Any) -> int | None:
    if side is None:
        return None
    if isinstance(side, (bool, np.bool_)):
        raise type_error(f"a side of `window` is {side}; pass a number of keys or None")
    try:
        keys = operator.index(side)
    except TypeError:
        raise type_error(
            f"a side of `window` is {type(side).__name__}; pass a whole number or None"
        ) from None
    if keys < 0:
        raise value_error(f"a side of `window` is {quote(keys)}: it must be 0 or more, or None")
    return min(keys, FAR)


def check_offset(
    q_offset: Any, length: int, keys: int, lead: Shape, *, needed: bool
) -> int | Array:
    """Return query 0's position among the keys: one int, or one per row in an array `(*lead,)`."""
    if q_offset is None:
        if needed and length != keys:
            raise value_error(
                f"query has {length} rows and key has {keys}, so causal, window and ALiBi "
                'need q_offset; pass "start" if query 0 is at key 0, "end" if the last query is at '
                "the last key (a KV cache), or the position of query 0 as a number"
            )
        return 0
    if isinstance(q_offset, str):
        if q_offset not in ("start", "end"):
            raise value_error(f'q_offset is {quote(q_offset)}; pass "start", "end" or a number')
        return 0 if q_offset == "start" else keys - length
    if type(q_offset) is int:
        return max(-FAR, min(FAR, q_offset))
    offsets = np.clip(check_per_row("q_offset", q_offset, lead), -FAR, FAR)
    return offsets if lead else int(offsets)


def check_lengths(name: str, lengths: Any, most: int, lead: Shape) -> Array:
    """Return the lengths of the rows `(*lead,)`, each from 0 to `most`."""
    checked = check_per_row(name, lengths, lead)
    wrong = (checked < 0) | (checked > most)
    if wrong.any():
        array = "query" if name.startswith("query") else "key"
        raise value_error(
            f"{name} contains {checked[wrong].flat[0]}, but {array} has {most} rows: "
            f"each length must lie between 0 and {most}"
        )
    return checked


def check_per_row(name: str, value: Any, lead: Shape) -> Array:
    """Return an argument with one integer per row as an array `(*lead,)`."""
    array = as_array(value, name=name)
    if array.dtype.kind not in "iu":
        raise type_error(f"{name} is {array.dtype}; pass whole numbers")
    if array.size and array.max() > 2**62:
        raise value_error(
            f"{name} contains {array.max()}, which is too large; pass a smaller number"
        )
    try:
        return np.broadcast_to(array.astype(np.int64), lead).copy()
    except ValueError:
        rows = f"the leading dimensions are {lead}" if lead else "2-D input takes one number"
        raise value_error(
            f"{name} has shape {array.shape}, but {rows}; "
            "pass one number" + f", or numbers that broadcast to {lead}" * bool(lead)
        ) from None
