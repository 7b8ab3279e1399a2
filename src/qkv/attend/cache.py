"""The key/value cache: keys and values of earlier tokens, kept for later queries."""

from copy import copy
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array, as_array, float_type
from qkv.attend._visibility import check_lengths, check_window
from qkv.attend.arguments import check_types

BLOCK = 256  # the memory grows by multiples of this number of keys


class KVCache:
    """The keys and values of one layer; each decoding step appends new keys and values.

    `append` returns arguments of `qkv.attention` for the queries of the new tokens; the caller adds
    `is_causal`. With a window, the cache drops keys that no later query can see, so that memory
    stays bounded. The rows of a batch may have different lengths.

    Args:
        window: `(left, right)`, as in `qkv.attention`; None to keep all keys.
        dtype: the dtype in which keys and values are stored; by default, the dtype of the first
            keys. float16 and bfloat16 take half the memory of float32. `qkv.attention` requires
            queries with the keys' dtype, so convert the queries to this dtype.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 2, 5, 4))  # one text, two heads, five tokens
    >>> from qkv import attention
    >>> cache = KVCache()
    >>> steps = []
    >>> for new in (slice(0, 3), slice(3, 4), slice(4, 5)):  # a prompt of three, then one by one
    ...     arguments = cache.append(k[:, :, new], v[:, :, new])
    ...     steps.append(attention(q[:, :, new], is_causal=True, **arguments))
    >>> bool(np.allclose(np.concatenate(steps, axis=2), attention(q, k, v, is_causal=True)))
    True
    """

    @public_call("KVCache")
    def __init__(
        self, window: tuple[int | None, int | None] | None = None, *, dtype: Any = None
    ) -> None:
        self._left, _ = check_window(window, False)
        self.window = window
        self._dtype = None if dtype is None else float_type(dtype)
        self._arrays: list[Array] = []
        self._lead: tuple[int, ...] = ()
        # `_size` is the number of keys that each row stores. `_seen` is the number of keys that
        # were appended to each row. If all rows have the same number, an int replaces the array.
        self._size: Array | int = 0
        self._seen: Array | int = 0

    @property
    def lengths(self) -> Array:
        """The number of tokens appended to each row `(*lead,)`; dropped tokens count too."""
        return np.full(self._lead, self._seen) if isinstance(self._seen, int) else self._seen

    @public_call("KVCache.append")
    def append(self, key: Any, value: Any, lengths: Any = None) -> dict[str, Any]:
        """Append keys and values.

        Args:
            key: `(..., Hkv, n, d)`, or `(n, d)`.
            value: `(..., Hkv, n, dv)`.
            lengths: the number of real keys in each row, up to n; the default is n.

        Returns:
            Arguments of `qkv.attention` for the queries of the n appended tokens. The dict always
            has `key`, `value` and `q_offset`. If needed, the dict also has `key_lengths`,
            `query_lengths` and `window`. The arrays are views, which are valid until the next
            `append`.
        """
        key, value = as_array(key, name="key"), as_array(value, name="value")
        check_types({"key": key.dtype, "value": value.dtype})
        self._check_shapes(key, value)
        if lengths is not None:
            *lead, _, count, _ = key.shape
            lengths = check_lengths("lengths", lengths, count, tuple(lead))
        with np.errstate(over="ignore"):  # a number that is too large for float16 becomes infinite
            return self._put(key, value, lengths)

    def _put(self, key: Array, value: Array, lengths: Array | None = None) -> dict[str, Any]:
        if not self._arrays:
            self._arrays = [
                np.empty((*x.shape[:-2], 0, x.shape[-1]), self._dtype or x.dtype)
                for x in (key, value)
            ]
            self._lead = key.shape[:-3]
        count = key.shape[-2]
        if _most(self._size) + count > self._arrays[0].shape[-2]:
            self._make_room(count)
        offset, added = self._size, count if lengths is None else _unify(lengths)
        for buffer, fresh in zip(self._arrays, (key, value), strict=True):
            if isinstance(offset, int) and isinstance(added, int):
                buffer[..., offset : offset + added, :] = fresh[..., :added, :]
            else:
                _store(buffer, fresh, *np.broadcast_arrays(offset, added))
        self._size = _unify(offset + added)
        self._seen = _unify(self._seen + added)
        return self._arguments(offset, lengths)

    def _arguments(self, offset: Array | int, real: Array | None) -> dict[str, Any]:
        longest = _most(self._size)
        key, value = self._arrays
        arguments: dict[str, Any] = {
            "key": key[..., :longest, :],
            "value": value[..., :longest, :],
            "q_offset": offset,
        }
        if not isinstance(self._size, int):
            arguments["key_lengths"] = self._size
        if real is not None:
            arguments["query_lengths"] = real
        if self.window is not None:
            arguments["window"] = self.window
        return arguments

    def _make_room(self, count: int) -> None:
        """Allocate memory for `count` more keys, and drop keys that no later query will see."""
        keep = self._size if self._left is None else _unify(np.minimum(self._size, self._left))
        needed = _most(keep) + count
        capacity = self._arrays[0].shape[-2]
        if needed > capacity:
            wanted = max(needed, 2 * capacity) if self._left is None else 2 * needed
            capacity = -(-wanted // BLOCK) * BLOCK
        moved = []
        for buffer in self._arrays:
            fresh = np.empty((*buffer.shape[:-2], capacity, buffer.shape[-1]), buffer.dtype)
            if isinstance(self._size, int) and isinstance(keep, int):
                fresh[..., :keep, :] = buffer[..., self._size - keep : self._size, :]
            else:
                stops, sizes = np.broadcast_arrays(self._size, keep)
                for row in np.ndindex(stops.shape):
                    stop, size = int(stops[row]), int(sizes[row])
                    fresh[row][..., :size, :] = buffer[row][..., stop - size : stop, :]
            moved.append(fresh)
        self._arrays, self._size = moved, keep

    def _check_shapes(self, key: Array, value: Array) -> None:
        if key.ndim < 2 or key.shape[:-1] != value.shape[:-1]:
            raise value_error(
                f"key is {key.shape} and value {value.shape}: "
                "both must be (..., Hkv, n, size), and they may differ only in the last axis, size"
            )
        for name, old, new in zip(("key", "value"), self._arrays, (key, value), strict=False):
            same = old.shape[:-2] == new.shape[:-2] and old.shape[-1] == new.shape[-1]
            if not same or old.dtype != (self._dtype or new.dtype):
                raise value_error(
                    f"{name} is {new.shape} {new.dtype}, but the cache holds "
                    f"leading dimensions {old.shape[:-2]}, size {old.shape[-1]} and {old.dtype}: "
                    "only the number of tokens may differ"
                )


def shorten(cache: KVCache, seen: int, length: int) -> bool:
    """Keep the first `length` of the `seen` tokens of each row; return False if this is impossible.

    This is impossible if the cache has seen more or fewer than `seen` tokens, or has dropped keys
    that a query after the first `length` tokens can see.
    """
    if not isinstance(cache._size, int) or cache._seen != seen or not 0 <= length <= seen:
        return False
    size = cache._size - (seen - length)
    if size < (length if cache._left is None else min(length, cache._left)):
        return False
    cache._size, cache._seen = size, length
    return True


def fork(cache: KVCache, count: int, length: int, extra: int) -> KVCache | None:
    """Return a cache of `count` rows, which copy the only row's first `length` tokens.

    The result has memory for `extra` more tokens. If `shorten` could not shorten the cache, the
    result is None.
    """
    copied, seen = copy(cache), cache._seen
    if not isinstance(seen, int) or not shorten(copied, seen, length):
        return None
    size = _most(copied._size)
    copied._lead, copied._arrays = (count,), []
    for array in cache._arrays:
        shape = (count, array.shape[1], size + extra, array.shape[3])
        copied._arrays.append(np.empty(shape, array.dtype))
        copied._arrays[-1][:, :, :size] = array[:, :, :size]
    return copied


def keep_rows(cache: KVCache, rows: Array) -> None:
    """Keep only the rows of a batch with these indices (n,), in this order."""
    cache._arrays = [array[rows] for array in cache._arrays]
    cache._lead = (len(rows),)
    cache._size, cache._seen = (
        count if isinstance(count, int) else _unify(count[rows])
        for count in (cache._size, cache._seen)
    )


def put(cache: KVCache, key: Array, value: Array, lengths: Array | None = None) -> dict[str, Any]:
    """Append keys and values as `KVCache.append` does, without checking the arrays."""
    return cache._put(key, value, lengths)


def _most(count: Array | int) -> int:
    return count if isinstance(count, int) else int(count.max(initial=0))


def _unify(counts: Any) -> Any:
    """Return one int if all entries of `counts` are equal; otherwise return `counts`."""
    if isinstance(counts, int):
        return counts
    if not counts.size:
        return 0
    first = int(counts.flat[0])
    return first if (counts == first).all() else counts


def _store(buffer: Array, fresh: Array, starts: Array, sizes: Array) -> None:
    """Copy the first `sizes` keys of each row of `fresh` to `buffer`, beginning at `starts`."""
    if fresh.shape[-2] == 1:
        rows: tuple[Any, ...] = np.nonzero(sizes)
        buffer[(*rows, slice(None), starts[rows])] = fresh[(*rows, slice(None), 0)]
        return
    for row in np.ndindex(starts.shape):
        start, size = int(starts[row]), int(sizes[row])
        buffer[row][..., start : start + size, :] = fresh[row][..., :size, :]
