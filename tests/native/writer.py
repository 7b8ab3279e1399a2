"""Writer of case files for driver.cpp: arguments of a variant, and results of the float64 formula.

The fields are in the order in which the constructors of the cases in C++ read them.
"""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from attend import exact
from attend.drawn import Case
from attend.support import BFLOAT16, HALF_ROUNDING, Array, tolerances
from qkv.attend import gradient
from qkv.attend._grouped import Grouped, group_call
from qkv.attend._native import Outputs
from qkv.attend.arguments import Call, check_call
from qkv.ops import activation
from qkv.ops._blocks import BlockMatrix

TYPES = {
    np.dtype(bool): 0,
    np.dtype(np.float16): 1,
    BFLOAT16: 2,
    np.dtype(np.float32): 3,
    np.dtype(np.float64): 4,
    np.dtype(np.int64): 5,
}
_BY_CODE = {one.code: name for name, one in reversed(activation.ACTIVATIONS.items())}
ACTIVATIONS = (None, *(_BY_CODE[code] for code in sorted(_BY_CODE)))
FAR = 2**62


def whole(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def real(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def block(data: Any = b"", dtype: Any = None) -> bytes:
    if not isinstance(data, bytes):
        data = np.ascontiguousarray(data, dtype).tobytes()
    return whole(len(data)) + data


def heading(kind: int, name: str) -> bytes:
    return whole(kind, len(name.encode())) + name.encode()


class Placed:
    """An array over (row, key head, group, i, j), with the offsets and strides for the kernel."""

    def __init__(self, array: Array, axes: Sequence[int | None], rows: Any, lengths: Any) -> None:
        """Store an array, its axes, the offsets of its rows, and the lengths of the axes.

        `axes` has four items, in the order key head, group, i, j. Each item is the number of an
        axis of the array, or None if the array does not have the axis.

        `rows` has the offset of each row, in elements. `lengths` has four items, in the order of
        `axes`. Each item is the number of elements that the kernel may read along one axis. An item
        is an integer for all rows, or an array with an integer for each row.
        """
        self.array = array
        self.rows = np.asarray(rows, np.int64)
        self.steps = [
            0 if axis is None or array.shape[axis] == 1 else array.strides[axis] // array.itemsize
            for axis in axes
        ]
        self.lengths = [np.broadcast_to(x, self.rows.shape) for x in lengths]

    def pack(self) -> bytes:
        first, last = self.rows.copy(), self.rows.copy()
        for step, length in zip(self.steps, self.lengths, strict=True):
            away = (length - 1) * step
            first += np.minimum(away, 0)
            last += np.maximum(away, 0)
        read = np.logical_and.reduce([length > 0 for length in self.lengths])
        low, high = (first[read].min(), last[read].max() + 1) if read.any() else (0, 0)
        size = self.array.itemsize
        address = self.array.ctypes.data + int(low) * size
        memory = ctypes.string_at(address, int(high - low) * size) if high > low else b""
        return (
            whole(TYPES[self.array.dtype])
            + block(memory)
            + whole(-int(low))
            + block(self.rows)
            + whole(*self.steps)
        )


NONE = whole(-1)


def _rows(array: Array, inner: int) -> Array:
    """Return the offset of each row in the array, in elements.

    A row is a subarray over the last axes of the array. `inner` is the number of these axes.
    """
    begins = np.zeros(array.shape[: array.ndim - inner], np.int64)
    for axis, length in enumerate(begins.shape):
        along = np.arange(length) * (array.strides[axis] // array.itemsize)
        begins += along.reshape([-1 if k == axis else 1 for k in range(begins.ndim)])
    return begins.reshape(-1)


def _native(array: Array) -> Array:
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _unit(array: Array) -> Array:
    """Make the last axis contiguous: the kernel requires this for the query, key and value."""
    array = _native(array)
    if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        return np.ascontiguousarray(array)
    return array


def _output(shape: tuple[int, ...], dtype: Any, gap: int, fill: Any = 7) -> Array:
    """Return an array for results, with `gap` other elements after each row."""
    return np.full((*shape[:-1], shape[-1] + gap), fill, dtype)[..., : shape[-1]]


def _grouped_as_given(call: Call) -> list[Array]:
    """Return query, key and value of a call with grouped heads, in their original types."""
    plan = call.plan
    views = []
    for array, heads in (
        (call.query, plan.heads),
        (call.key, plan.kv_heads),
        (call.value, plan.kv_heads),
    ):
        spread = np.broadcast_to(_unit(array), (*plan.lead, heads, *array.shape[-2:]))
        views.append(plan.group(spread) if array is call.query else plan.grouped_keys(spread))
    return views


def attention_case(
    name: str,
    case: Case,
    *,
    weights: bool = False,
    top_k: int = 0,
    trim: bool = False,
    lse: bool = True,
    gap: int = 0,
) -> bytes:
    """Return the bytes of one call; `trim` ends the arrays where the padding begins."""
    judged = exact.attention(*case.arrays, **case.options)
    options = {name: x for name, x in case.options.items() if x is not None}
    call = check_call(*case.arrays, **options)
    plan, wide = call.plan, group_call(call)
    *lead, kv_heads, group, L, d = wide.query.shape
    S, dv = wide.value.shape[-2:]
    rows = int(np.prod(lead))
    seen = wide.visibility
    real_queries = L if seen.query_lengths is None else seen.query_lengths.reshape(-1)
    real_keys = S if seen.key_lengths is None else seen.key_lengths.reshape(-1)

    def placed(x: Array | None, lengths: tuple[Any, ...]) -> bytes:
        return NONE if x is None else Placed(x, (-4, -3, -2, -1), _rows(x, 4), lengths).pack()

    query, key, value = _grouped_as_given(call)
    keys_read, queries_read = (real_keys, real_queries) if trim else (S, L)
    out, sums, given_weights = (
        _output((*wide.shape, dv), plan.dtype, gap),
        _output((*wide.shape, 1), np.float64, 0) if lse or top_k else None,
        _output((*wide.shape, S), np.float32, gap, 0) if weights else None,
    )
    arrays = [
        placed(query, (kv_heads, group, queries_read, d)),
        placed(key, (kv_heads, 1, keys_read, d)),
        placed(value, (kv_heads, 1, keys_read, dv)),
        *(
            placed(None if x is None else _native(x), (kv_heads, group, L, S))
            for x in (wide.mask if seen.allowed is None else seen.allowed, wide.bias)
        ),
        placed(out, (kv_heads, group, L, dv)),
        placed(sums, (kv_heads, group, L, 1)),
        placed(given_weights, (kv_heads, group, L, S)),
        *_summary(wide, top_k, placed),
    ]
    per_row = [
        np.broadcast_to(x, rows) for x in (L, S, real_queries, real_keys, seen.offset.reshape(-1))
    ]
    cells = None
    if weights or top_k:
        cells = (judged.loops.weights, judged.loops.visible)
    return _attention(name, call, per_row, top_k, arrays, [judged], cells)


def _summary(call: Grouped, top_k: int, placed: Any) -> list[bytes]:
    if not top_k:
        return [NONE] * 3
    *_, kv_heads, group, L = call.shape
    ranks = (*call.shape, top_k)
    received = np.zeros((*call.shape[:-1], 1, call.keys))
    return [
        placed(np.full(ranks, -1, np.int64), (kv_heads, group, L, top_k)),
        placed(np.zeros(ranks, np.float32), (kv_heads, group, L, top_k)),
        placed(received, (kv_heads, group, 1, call.keys)),
    ]


def gradient_case(name: str, case: Case, seed: int) -> bytes:
    """Return the bytes of a call with finite numbers only, with NumPy's gradients in float64."""
    call = check_call(*case.arrays, **case.options)
    exactly = check_call(*(x.astype(np.float64) for x in case.arrays), **case.options)
    plan, wide = call.plan, group_call(call)
    *lead, kv_heads, group, L, d = wide.query.shape
    S, dv = wide.value.shape[-2:]
    rows = int(np.prod(lead))
    seen = wide.visibility
    judged = exact.attention(*case.arrays, **case.options)
    out = judged.loops.out.astype(plan.dtype).reshape(plan.out)
    lse = np.ascontiguousarray(judged.loops.lse, np.float64).reshape(*plan.rows, 1)
    rng = np.random.default_rng(seed)
    upstream = rng.standard_normal(out.shape).astype(plan.dtype)
    results = Outputs(upstream.astype(np.float64), out.astype(np.float64), lse, gradient.EXACT)
    truth = gradient._gradients(exactly, results)

    def placed(x: Array | None, lengths: tuple[Any, ...]) -> bytes:
        return NONE if x is None else Placed(x, (-4, -3, -2, -1), _rows(x, 4), lengths).pack()

    mask = wide.mask if seen.allowed is None else seen.allowed
    query, key, value = _grouped_as_given(call)
    inputs = [
        placed(query, (kv_heads, group, L, d)),
        placed(key, (kv_heads, 1, S, d)),
        placed(value, (kv_heads, 1, S, dv)),
        *(
            placed(None if x is None else _native(x), (kv_heads, group, L, S))
            for x in (mask, wide.bias)
        ),
        placed(plan.group(out), (kv_heads, group, L, dv)),
        placed(plan.group(lse), (kv_heads, group, L, 1)),
        *[NONE] * 4,
    ]
    real_queries = L if seen.query_lengths is None else seen.query_lengths.reshape(-1)
    real_keys = S if seen.key_lengths is None else seen.key_lengths.reshape(-1)
    per_row = [
        np.broadcast_to(x, rows) for x in (L, S, real_queries, real_keys, seen.offset.reshape(-1))
    ]
    sinks = 0 if call.sinks is None else call.sinks.shape[-1]
    expected = [truth.query, truth.key, truth.value, truth.bias, truth.slopes, truth.sinks]
    for number, given in ((3, call.bias), (4, call.slopes), (5, call.sinks)):
        if given is None:
            expected[number] = np.zeros(0)

    def fresh(shape: Sequence[int], fill: float) -> Array:
        return np.full(shape, fill, np.float32)

    heads = rows * kv_heads * group
    own = None
    if call.bias is not None:  # allocated as large as the bias; repeated axes have step 0
        own = plan.group(np.broadcast_to(fresh(truth.bias.shape, 0), (*plan.rows, S)))
    outputs = [
        placed(plan.group(upstream), (kv_heads, group, L, dv)),
        placed(fresh((*lead, kv_heads, group, L, d), 7), (kv_heads, group, L, d)),
        placed(fresh((*lead, kv_heads, 1, S, d), 7), (kv_heads, 1, S, d)),
        placed(fresh((*lead, kv_heads, 1, S, dv), 7), (kv_heads, 1, S, dv)),
        placed(own, (kv_heads, group, L, S)),
        block(np.zeros(heads if call.slopes is not None else 0)),
        block(np.zeros(heads * sinks)),
        block(np.zeros(rows * kv_heads, bool)),
        real(gradient.EXACT),
    ]
    for number, array in enumerate(expected):
        largest = max(1.0, float(np.abs(array).max(initial=0)))
        # The gradient of an ALiBi slope is a sum of products: the gradient of a score times the
        # distance between query and key. Positive and negative products cancel, so we
        # allow more error.
        more = S if number == 4 else 1
        outputs += [block(array, np.float64), real(1e-5 * largest * more)]
    asked = _attention(name, call, per_row, 0, inputs, [judged], None)
    return heading(2, name) + asked[len(heading(0, name)) :] + b"".join(outputs)


def packed_case(
    name: str, arrays: Sequence[Array], lengths: Array, key_lengths: Array, **options: Any
) -> bytes:
    """Return the bytes of a call with packed sequences: arrays of (total, heads, size)."""
    query, key, value = arrays
    starts, key_starts = (
        np.concatenate([[0], np.cumsum(x)]).astype(np.int64) for x in (lengths, key_lengths)
    )
    offset = options.pop("q_offset", None)
    offset = key_lengths - lengths if isinstance(offset, str) else np.zeros_like(lengths)
    judged = []
    for row, (at, key_at) in enumerate(zip(starts[:-1], key_starts[:-1], strict=True)):
        q = query[at : at + lengths[row]]
        k, v = (x[key_at : key_at + key_lengths[row]] for x in (key, value))
        one = (x.swapaxes(0, 1) for x in (q, k, v))
        judged.append(exact.attention(*one, q_offset=int(offset[row]), **options))
    heads, kv_heads = query.shape[1], key.shape[1]
    group = heads // kv_heads
    call = check_call(*(x.swapaxes(0, 1) for x in arrays), q_offset=0, **options)

    def placed(x: Array, begins: Array, grouped: bool, counts: Array) -> bytes:
        rows = begins[:-1] * (x.strides[0] // x.itemsize)
        if grouped:
            x = x.reshape(len(x), kv_heads, group, -1)
            return Placed(x, (1, 2, 0, 3), rows, (kv_heads, group, counts, x.shape[-1])).pack()
        return Placed(x, (1, None, 0, 2), rows, (kv_heads, 1, counts, x.shape[-1])).pack()

    out = np.full((len(query), heads, value.shape[-1]), 7, query.dtype)
    lse = np.full((len(query), heads, 1), 7.0)
    written = [
        placed(query, starts, True, lengths),
        placed(key, key_starts, False, key_lengths),
        placed(value, key_starts, False, key_lengths),
        NONE,
        NONE,
        placed(out, starts, True, lengths),
        placed(lse, starts, True, lengths),
        *[NONE] * 4,
    ]
    per_row = [lengths, key_lengths, lengths, key_lengths, offset]
    return _attention(name, call, per_row, 0, written, judged, None)


def _attention(
    name: str,
    call: Call,
    per_row: Sequence[Any],
    top_k: int,
    arrays: Sequence[bytes],
    judged: Sequence[exact.Exact],
    cells: tuple[Array, Array] | None,
) -> bytes:
    (*_, kv_heads, group), d = call.plan.groups, call.plan.size
    score = max(x.loops.largest_score for x in judged)
    loosest = judged[0].loops._replace(
        largest_score=score, largest_value=max(x.loops.largest_value for x in judged)
    )
    out, weight, relative = tolerances(loosest, call.plan.dtype)
    sinks = np.zeros((call.plan.heads, 0)) if call.sinks is None else call.sinks

    def joined(parts: Any, dtype: Any) -> bytes:
        return block(b"".join(np.ascontiguousarray(x, dtype).tobytes() for x in parts))

    return b"".join(
        [
            heading(0, name),
            whole(len(per_row[0]), kv_heads, group, d, call.plan.out[-1]),
            *(whole(FAR if side is None else side) for side in (call.left, call.right)),
            whole(sinks.shape[-1], top_k),
            real(call.softcap or 0.0, call.scale),
            real(out, weight, relative, float(np.finfo(np.float32).eps) * score),
            *(block(x, np.int64) for x in per_row),
            block() if call.slopes is None else block(call.slopes, np.float32),
            block(sinks, np.float32),
            *arrays,
            joined((x.loops.out for x in judged), np.float64),
            joined((x.out for x in judged), np.uint8),
            joined((x.loops.lse for x in judged), np.float64),
            joined((x.rows for x in judged), np.uint8),
            block() if cells is None else block(cells[0], np.float64),
            block() if cells is None else block(cells[1], np.uint8),
        ]
    )


def linear_case(
    name: str,
    x: Array,
    weight: Array | BlockMatrix,
    *,
    bias: Array | None = None,
    activation: str | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
    expected: Array,
    allowed: Array,
    gap: int = 0,
    more: Array | None = None,
    scales: Array | None = None,
) -> bytes:
    """Return the bytes of a call that computes `activation(x @ weight + bias) * gate + residual`.

    If `weight` is int8, `more` holds its second digits, or is None if all are 0, and `scales` holds
    the scales of its columns. A weight in blocks is written as it is packed.

    The shape of `x` is `(rows, in)`. The shape of `weight` is `(in, out)`, with any strides. The
    shape of `bias` is `(out,)`. All other arrays have the shape `(rows, out)`.
    """

    def step(array: Array | None, axis: int = 0) -> int:
        return 0 if array is None else array.strides[axis] // array.itemsize

    def memory(array: Array | None) -> bytes:
        return block() if array is None else block(_memory(array))

    y = _output((len(x), weight.shape[1]), x.dtype, gap)
    kind, plain, steps = -1, weight, (0, 0)
    if isinstance(weight, BlockMatrix):
        kind, plain = weight.code, weight.packed
    else:
        steps = step(weight, 0), step(weight, 1)
    return b"".join(
        [
            heading(1, name),
            whole(*x.shape, weight.shape[1], *steps),
            whole(*(step(array) for array in (x, gate, residual, y)), kind),
            whole(TYPES[x.dtype], ACTIVATIONS.index(activation)),
            *(memory(array) for array in (plain, x, bias, gate, residual, y)),
            block(expected, np.float64),
            block(allowed, np.float64),
            memory(more),
            memory(scales),
        ]
    )


def training_case(
    name: str,
    which: str,
    sizes: Sequence[int],
    given: Sequence[Array | None],
    found: Sequence[Array],
    expected: Sequence[Array],
    *,
    settings: Sequence[float] = (),
) -> bytes:
    """Return the bytes of a training call.

    The call overwrites the arrays in `found` with its results. The values in `found` are the values
    of these arrays before the call.
    """
    largest = max((np.abs(array).max(initial=1) for array in expected), default=1)
    return b"".join(
        [
            heading(3, name),
            block(which.encode()),
            whole(len(sizes), *sizes),
            whole(len(settings)),
            real(*settings),
            whole(len(given)),
            *(block() if array is None else block(_memory(array)) for array in given),
            whole(len(found)),
            *(block(array, np.float32) for array in found),
            *(block(array, np.float64) for array in expected),
            real(1e-5 * float(largest)),
        ]
    )


def _memory(array: Array) -> bytes:
    """Return the memory from the first element to the last, including any gaps between rows."""
    if not array.size:
        return b""
    ends = zip(array.shape, array.strides, strict=True)
    return ctypes.string_at(array.ctypes.data, array.itemsize + sum((n - 1) * s for n, s in ends))


def linear_rounding(dtype: np.dtype[Any]) -> float:
    """Return the relative rounding error of results of a type."""
    return HALF_ROUNDING.get(dtype, 2.0**-24)
