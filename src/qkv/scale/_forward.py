"""Attention on dask arrays: compute pairs of query and key blocks, then join the results."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array, Arrays, DType, Shape, as_array
from qkv.attend import FAR, Visibility, check_flag, group_call, log_sums, merge_attention
from qkv.attend.arguments import Call, Options, check_call, check_options, clamp, plan_of, round_to
from qkv.attend.attention import solve
from qkv.extras import need
from qkv.ops.kernel import one_thread

Pieces = tuple[int, ...]  # The sizes of the blocks along one axis.
Index = tuple[int, ...]  # A block's position along (*lead, heads, key heads, queries, keys).
CELLS, PER_HEAD, PER_ROW = (
    ("attn_mask", "bias"),
    ("alibi_slopes", "sinks"),
    ("q_offset", "query_lengths", "key_lengths"),
)


class Rules(NamedTuple):
    """The arguments of a call on one block, except the arrays.

    Positions and lengths are counted from the first query and the first key of the block.
    """

    offset: int | Array
    query_lengths: Array | None
    key_lengths: Array | None
    left: int | None
    right: int | None
    softcap: float | None
    scale: float

    def call(self, arrays: Arrays) -> Call:
        """Return the attention `Call` for the arrays of a block."""
        query, key, value = (arrays[name] for name in ("query", "key", "value"))
        shapes, types = (query.shape, key.shape, value.shape), (query.dtype, key.dtype, value.dtype)
        plan = plan_of(*shapes, *types)
        slopes, sinks = (
            np.require(clamp(arrays[name], plan.kind), requirements=["C", "A"])
            if name in arrays and arrays[name].size
            else None
            for name in PER_HEAD
        )
        return Call(
            plan=plan,
            query=query,
            key=key,
            value=value,
            mask=arrays.get("attn_mask"),
            bias=arrays.get("bias"),
            slopes=slopes,
            sinks=None if sinks is None else sinks.reshape(plan.heads, -1),
            **{name: _align(x) for name, x in self._asdict().items()},
        )


class Operand(NamedTuple):
    """A dask array whose chunks fit the blocks of the call."""

    array: Any
    # One entry per axis of `array`: the number of the entry in an `Index` that holds the block's
    # position along this axis, or None if the axis is not cut into blocks.
    axes: tuple[int | None, ...]

    def chunk(self, index: Index) -> tuple[int, ...]:
        """Return the index of the chunk that the block with this index reads."""
        follows = zip(self.axes, self.array.numblocks, strict=True)
        return tuple(0 if axis is None or n == 1 else index[axis] for axis, n in follows)

    def ref(self, index: Index) -> Any:
        """Return a reference to the chunk that the block with this index reads."""
        from dask.task_spec import TaskRef

        return TaskRef((self.array.name, *self.chunk(index)))


@dataclass(frozen=True)
class Tasks:
    """A layer of a Dask graph: its tasks, and the arrays and other layers that the tasks read."""

    name: str
    below: Sequence[Any]  # inputs of the tasks: dask arrays, and other layers of the graph
    tasks: dict[Any, Any] = field(default_factory=dict)
    whole: dict[tuple[Any, ...], Any] = field(
        default_factory=dict
    )  # joined results, keyed by index

    def add(self, at: tuple[Any, ...], work: Callable[..., Any], /, *args: Any, **more: Any) -> Any:
        """Add a task at the index `at`; return a reference to its result."""
        from dask.task_spec import Task, TaskRef

        key = (self.name, *at)
        self.tasks[key] = Task(key, work, *args, **more)
        return TaskRef(key)

    def add_tree(self, index: tuple[Any, ...], refs: list[Any], join: Callable[..., Any]) -> Any:
        """Add tasks that join the results of `refs` pairwise, in a fixed order."""
        level = 0
        while len(refs) > 1:
            pairs = [refs[n : n + 2] for n in range(0, len(refs), 2)]
            refs = [
                self.add((*index, level, n), join, *pair) if len(pair) == 2 else pair[0]
                for n, pair in enumerate(pairs)
            ]
            level += 1
        return refs[0]

    def graph(self) -> Any:
        """Return a Dask graph of this layer and of all layers whose results it reads."""
        from dask.highlevelgraph import HighLevelGraph

        layers, needs = {}, {}
        # blocks without a visible key read nothing, and Dask rejects layers that are not read
        read = {key[0] for task in self.tasks.values() for key in task.dependencies} - {self.name}
        for other in (layer for layer in self.below if layer.name in read):
            graph = other.graph() if isinstance(other, Tasks) else other.__dask_graph__()
            layers.update(graph.layers)
            needs.update(graph.dependencies)
        return HighLevelGraph({**layers, self.name: self.tasks}, {**needs, self.name: read})

    def array(self, chunks: tuple[Pieces, ...], kind: DType) -> Any:
        """Return the dask array whose chunks are the results of these tasks."""
        meta = np.empty((0,) * len(chunks), kind)
        return need("dask.array", "scale").Array(self.graph(), self.name, chunks, meta=meta)


@dataclass(frozen=True)
class Blocks:
    """A checked call on dask arrays, cut into blocks."""

    call: Call  # The checked call; its arrays have the right shapes and dtypes, but no data.
    operands: dict[str, Operand]  # The arrays of the call, keyed by argument name.
    pieces: tuple[Pieces, ...]  # The sizes of blocks along the axes of an `Index`.
    key_heads: tuple[int, ...]  # Block `h` of the heads uses block `key_heads[h]` of the key heads.
    is_flat: bool  # Whether a head axis was added to 2-D arrays.
    token: str  # A checksum of the call. The names of the call's tasks contain this checksum.

    @property
    def arrays(self) -> list[Any]:
        """All dask arrays that the blocks read."""
        return [operand.array for operand in self.operands.values()]

    @property
    def chunks(self) -> tuple[Pieces, ...]:
        """The chunks of a result `(*lead, Hq, L)`."""
        return (*self.pieces[:-3], self.pieces[-2])

    def tasks(self, name: str, below: Sequence[Any]) -> Tasks:
        """Return an empty layer of a Dask graph; its name joins `name` and the call's checksum."""
        return Tasks(f"{name}-{self.token}", below)

    def in_result(self, index: Index) -> tuple[int, ...]:
        """Return the index of the result chunk `(*lead, Hq, L)` for the block with this index."""
        return (*index[:-3], index[-2])

    def as_given(self, array: Any) -> Any:
        """Return a result with the axes of the inputs: for 2-D inputs, remove the head axis."""
        return array[0] if self.is_flat else array

    def rows(self) -> Iterator[tuple[Index, list[Index]]]:
        """Yield `(first, seen)` for each block of queries.

        An `Index` identifies a block of queries and a block of keys. `first` is one `Index`, which
        identifies this block of queries and the first block of keys. `seen` is a list with one
        `Index` for each block of keys that the queries may see.
        """
        *_, queries, keys = (_starts(pieces) for pieces in self.pieces)
        lead = range(len(self.pieces) - 4)
        for *row, i in product(*(range(len(self.pieces[axis])) for axis in (*lead, -2))):
            start, stop = self._keys_seen(tuple(row), slice(queries[i], queries[i + 1]))
            seen = [j for j, (a, b) in enumerate(pairwise(keys)) if max(a, start) < min(b, stop)]
            for h, key_head in enumerate(self.key_heads):
                here = (*row, h, key_head, i)
                yield (*here, 0), [(*here, j) for j in seen]

    def shape(self, operand: str, index: Index) -> Shape:
        """Return the shape of the chunk that the block with this index reads from an operand."""
        array = self.operands[operand].array
        chunk = self.operands[operand].chunk(index)
        return tuple(pieces[n] for pieces, n in zip(array.chunks, chunk, strict=True))

    def rules(self, index: Index) -> Rules:
        """Return the `Rules` of the block with this index."""
        call, rows = self.call, self._rows_at(index[:-4])
        i, j = (_starts(self.pieces[axis])[index[axis]] for axis in (-2, -1))
        length, keys = (self.pieces[axis][index[axis]] for axis in (-2, -1))

        def within(lengths: Array | None, start: int, most: int) -> Array | None:
            return None if lengths is None else np.asarray(np.clip(lengths[rows] - start, 0, most))

        offset = (call.offset if isinstance(call.offset, int) else call.offset[rows]) + i - j
        return Rules(
            min(max(offset, -FAR), FAR) if isinstance(offset, int) else np.clip(offset, -FAR, FAR),
            within(call.query_lengths, i, length),
            within(call.key_lengths, j, keys),
            call.left,
            call.right,
            call.softcap,
            call.scale,
        )

    def inputs(self, index: Index, *names: str) -> dict[str, Any]:
        """Return references to the chunks of a block, keyed by name; omit missing arguments."""
        return {name: self.operands[name].ref(index) for name in names if name in self.operands}

    def _rows_at(self, row: tuple[int, ...]) -> tuple[slice, ...]:
        starts = [_starts(pieces) for pieces in self.pieces[: len(row)]]
        return tuple(slice(at[n], at[n + 1]) for at, n in zip(starts, row, strict=True))

    def _keys_seen(self, row: tuple[int, ...], queries: slice) -> tuple[int, int]:
        """Return the range of keys that these queries may see."""
        call, plan = self.call, self.call.plan
        lead = plan.lead or (1,)
        query_lengths, key_lengths = (
            None if x is None else x.reshape(lead) for x in (call.query_lengths, call.key_lengths)
        )
        offset = np.broadcast_to(np.asarray(call.offset, np.int64), plan.lead).reshape(lead)
        rules = Visibility(
            length=plan.length,
            keys=plan.keys,
            offset=offset,
            left=call.left,
            right=call.right,
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            allowed=None,
            numbers=(),
        )
        return rules.key_range(self._rows_at(row), queries)


def cut(call: str, query: Any, key: Any, value: Any, attn_mask: Any, options: Options) -> Blocks:
    """Check the shapes and types of a call on dask arrays, and divide it at chunk boundaries."""
    names = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
    names |= {name: options.get(name) for name in ("bias", *PER_HEAD)}
    arrays = {name: _as_dask(x, call=call, name=name) for name, x in names.items() if x is not None}
    for name in PER_ROW:
        if _is_dask(options.get(name)):
            raise TypeError(
                f"{call}: {name} is a dask array, but its values decide which blocks are "
                f"skipped; pass {name}.compute()"
            )
    # pass a mask in memory unchanged, so that `check_call` can warn if it contains only 0.0 and 1.0
    stand_ins = {
        name: _stand_in(array) if name != "attn_mask" or _is_dask(attn_mask) else attn_mask
        for name, array in arrays.items()
    }
    checked = check_call(**dict(options) | stand_ins)
    is_flat = arrays["query"].ndim == 2
    if is_flat:
        arrays |= {name: arrays[name][None] for name in ("query", "key", "value")}
    return _cut(checked, arrays, is_flat)


def _as_dask(x: Any, *, call: str, name: str) -> Any:
    """Return `x` as a dask array; an array in memory becomes one chunk."""
    if not _is_dask(x):
        array = as_array(x, call=call, name=name)
        return need("dask.array", "scale").from_array(array, chunks=-1)
    if any(map(math.isnan, x.shape)):
        raise ValueError(
            f"{call}: {name} has shape {x.shape}, and some of these sizes are unknown: "
            f"call {name}.compute_chunk_sizes() first"
        )
    return x


def _rechunk(array: Any, axes: tuple[int | None, ...], pieces: tuple[Pieces, ...]) -> Operand:
    """Rechunk a dask array to match the blocks.

    An axis that broadcasts, or whose entry in `axes` is None, becomes a single chunk.
    """
    chunks = tuple(
        (size,) if axis is None or sum(pieces[axis]) != size else pieces[axis]
        for axis, size in zip(axes, array.shape, strict=True)
    )
    return Operand(array.rechunk(chunks), axes)


def _cut(call: Call, arrays: dict[str, Any], is_flat: bool) -> Blocks:
    """Cut a call at every chunk boundary of query, key and value; rechunk all arrays to match."""
    plan = call.plan
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    front = len(plan.lead)
    lead = []
    for axis, size in enumerate(plan.lead):
        parts = [(x, axis - front + x.ndim - 3) for x in (query, key, value)]
        lead.append(_merge(*(x.chunks[n] for x, n in parts if n >= 0 and x.shape[n] == size)))
    heads, kv_heads, key_heads = _cut_heads(
        query.chunks[-3], _merge(key.chunks[-3], value.chunks[-3])
    )
    pieces = (*lead, heads, kv_heads, query.chunks[-2], _merge(key.chunks[-2], value.chunks[-2]))
    h, kv, i, j = range(front, front + 4)
    axes: dict[str, tuple[int | None, ...]] = {
        "query": (*range(front), h, i, None),
        "key": (*range(front), kv, j, None),
        "value": (*range(front), kv, j, None),
        "attn_mask": (*range(front), h, i, j),
        "bias": (*range(front), h, i, j),
        "alibi_slopes": (h,),
        "sinks": (h, None)[: arrays["sinks"].ndim if "sinks" in arrays else 0],
    }
    operands = {
        name: _rechunk(x, axes[name][len(axes[name]) - x.ndim :], pieces)
        for name, x in arrays.items()
    }
    names = {name: operand.array.name for name, operand in operands.items()}
    token = need("dask.base", "scale").tokenize(names, call[8:], pieces)
    return Blocks(call, operands, pieces, key_heads, is_flat, token)


def _cut_heads(heads: Pieces, kv_heads: Pieces) -> tuple[Pieces, Pieces, tuple[int, ...]]:
    """Return the block sizes of heads and of key heads, and `Blocks.key_heads`."""
    group = sum(heads) // max(1, sum(kv_heads))
    cuts = [*_starts(heads), *(group * start for start in _starts(kv_heads))]
    for start, stop in pairwise(sorted({*cuts})):
        if group and stop // group > start // group:  # spans several groups
            cuts += [-(-start // group) * group, stop // group * group]
    starts = sorted({*cuts})
    if len(starts) == 1:  # there are no heads
        return (0,), (sum(kv_heads),), (0,)
    reads = [start // group for start in starts[:-1]]
    kv_starts = sorted({*reads, sum(kv_heads)})
    return _sizes(starts), _sizes(kv_starts), tuple(kv_starts.index(head) for head in reads)


def _merge(*pieces: Pieces) -> Pieces:
    """Cut an axis at every block boundary that occurs in `pieces`; return the block sizes.

    Each of `pieces` contains the block sizes of one way to cut this axis.
    """
    return _sizes(sorted({start for sizes in pieces for start in _starts(sizes)})) or (0,)


def _starts(pieces: Pieces) -> list[int]:
    """Return the start of each block along an axis, and the end of the last block."""
    return [0, *accumulate(pieces)]


def _sizes(starts: list[int]) -> Pieces:
    return tuple(stop - start for start, stop in pairwise(starts))


def _stand_in(array: Any) -> Array:
    """Return an array with the shape and dtype of a dask array, for checks of the arguments.

    Every number of the array is 2, because all checks accept this number.
    """
    return np.broadcast_to(np.full((), 2, array.dtype), array.shape)


def _align(x: Any) -> Any:
    """Align an array for the kernel: an array received from a worker may begin at any byte."""
    return np.require(x, requirements=["C", "A"]) if isinstance(x, np.ndarray) else x


def _is_dask(x: Any) -> bool:
    return hasattr(x, "__dask_graph__") and hasattr(x, "chunks")


# The arrays that the task of each block reads. For each block of queries, one of the tasks also
# reads the sinks.
_READ = ("query", "key", "value", "attn_mask", "bias", "alibi_slopes")
_ROUNDED = 1e8  # Above this number, the rounding error of a float64 log-sum-exp is too large.


class Partial(NamedTuple):
    """The result of attention over some keys."""

    out: Array  # (*lead, Hq, L, dv), in the dtype of the computation.
    lse: Array  # (*lead, Hq, L), float64.
    rest: Array | None  # The exact log-sum-exp is `lse + rest`, or `lse` if `rest` is None.


@public_call("scale.attention")
def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
    """Compute `qkv.attention` on dask arrays with any chunks along batch, head and sequence axes.

    Each task computes one block of queries with one block of keys. Results over different keys are
    joined pairwise, as in `qkv.merge_attention`. A pair of blocks has no task if all its cells are
    masked by the causal mask, the window or the lengths. Nothing is computed until `compute` is
    called on a result. Each task uses one thread.

    Args:
        query: `(..., Hq, L, d)`, a dask array or anything that `qkv.attention` accepts.
        key: `(..., Hkv, S, d)`, as for `query`.
        value: `(..., Hkv, S, dv)`, as for `query`.
        attn_mask: as for `qkv.attention`, in memory or as a dask array. The mask is cut into the
            same blocks as the scores.
        options: the options of `qkv.attention`, except `out`. `bias`, `sinks` and `alibi_slopes`
            may be dask arrays too. `q_offset`, `query_lengths` and `key_lengths` must be in memory,
            because they determine which blocks are masked.

    Returns:
        The results of `qkv.attention` as dask arrays.
        Each result is cut into chunks wherever `query` is cut. The batch and head axes of a result
        are also cut wherever `key` or `value` is cut. The last axis of the weights is the axis of
        the keys, S. It is cut wherever `key` or `value` is cut along S. Rounding errors are at most
        twice the rounding errors of `qkv.attention`.

    Raises:
        ValueError: shapes, lengths or numbers of heads are incompatible; or a size is unknown.
        TypeError: types are incompatible, or an option is unknown.
        ImportError: Dask is not installed.

    Source:
        Dao et al. 2022, FlashAttention, section 3.1.

    >>> import dask.array as da
    >>> words = da.random.default_rng(0).normal(size=(1, 600, 8), chunks=(1, 200, 8))
    >>> out = attention(words, words, words, is_causal=True)
    >>> out.chunks
    ((1,), (200, 200, 200), (8,))
    >>> from qkv import attention as in_memory
    >>> x = words.compute()
    >>> bool(np.allclose(out, in_memory(x, x, x, is_causal=True)))
    True
    """
    name = "scale.attention"
    check_options(options, without=("out",), why=": Dask decides where results are kept")
    returns = {which: options.pop(f"return_{which}", False) for which in ("weights", "lse")}
    for which, wanted in returns.items():
        check_flag(f"return_{which}", wanted)
    blocks = cut(name, query, key, value, attn_mask, options)
    parts = _attention_tasks(blocks)
    results = [_output(blocks, parts)]
    results += [_weights(blocks, parts)] if returns["weights"] else []
    results += [_log_sum_exp(blocks, parts)] if returns["lse"] else []
    results = [blocks.as_given(x) for x in results]
    return tuple(results) if len(results) > 1 else results[0]


def _attention_tasks(blocks: Blocks) -> Tasks:
    """Return tasks that compute the `Partial` over all keys for each block of queries."""
    tasks = blocks.tasks("attention-parts", blocks.arrays)
    for row, seen in blocks.rows():
        at, refs = blocks.in_result(row), []
        for index in seen:
            sinks = ("sinks",) if index is seen[0] else ()  # only one part may add the sinks
            read = blocks.inputs(index, *_READ, *sinks)
            refs.append(tasks.add((*at, index[-1]), _attend, blocks.rules(index), **read))
        if not seen:
            shapes = [blocks.shape(which, row) for which in ("query", "key", "value")]
            kind, read = blocks.call.plan.dtype, blocks.inputs(row, "sinks")
            rules = blocks.rules(row)
            refs.append(tasks.add((*at, 0), _attend_nothing, rules, shapes, kind, **read))
        tasks.whole[at] = tasks.add_tree(at, refs, join_parts)
    return tasks


def _output(blocks: Blocks, parts: Tasks) -> Any:
    """Return the output of attention, a dask array `(*lead, Hq, L, dv)`."""
    plan, tasks = blocks.call.plan, blocks.tasks("attention", [parts])
    for at, part in parts.whole.items():
        tasks.add((*at, 0), _out, part, plan.dtype)
    return tasks.array((*blocks.chunks, plan.out[-1:]), plan.dtype)


def _log_sum_exp(blocks: Blocks, parts: Tasks) -> Any:
    """Return the log-sum-exp of each row, a dask array `(*lead, Hq, L)`."""
    plan, tasks = blocks.call.plan, blocks.tasks("attention-lse", [parts])
    for at, part in parts.whole.items():
        tasks.add(at, _lse, part, plan.kind)
    return tasks.array(blocks.chunks, plan.kind)


def _weights(blocks: Blocks, parts: Tasks) -> Any:
    """Return the weights `(*lead, Hq, L, S)`, a dask array with a chunk for each pair of blocks."""
    kind, keys = blocks.call.plan.kind, blocks.pieces[-1]
    tasks = blocks.tasks("attention-weights", [parts, *blocks.arrays])
    for row, seen in blocks.rows():
        at = blocks.in_result(row)
        for index in seen:
            read = blocks.inputs(index, *(name for name in _READ if name != "value"))
            read |= {"values": blocks.shape("value", index), "part": parts.whole[at]}
            tasks.add((*at, index[-1]), _weigh, blocks.rules(index), **read)
        for j in {*range(len(keys))} - {index[-1] for index in seen}:
            shape = [pieces[n] for pieces, n in zip(blocks.chunks, at, strict=True)]
            tasks.add((*at, j), np.broadcast_to, kind.type(0), (*shape, keys[j]))
    return tasks.array((*blocks.chunks, keys), kind)


def _attend(rules: Rules, **inputs: Array) -> Partial:
    """Compute attention over some keys."""
    with one_thread():
        return _solve(rules.call(inputs))[0]


def _attend_nothing(rules: Rules, shapes: list[Shape], kind: DType, **inputs: Array) -> Partial:
    """Return the result of attention, a `Partial`, for queries that see no keys.

    `shapes` holds the shapes of query, key and value.
    """
    query, key, value = shapes
    none = [query, (*key[:-2], 0, key[-1]), (*value[:-2], 0, value[-1])]
    arrays = dict(zip(("query", "key", "value"), (np.zeros(x, kind) for x in none), strict=True))
    return _attend(rules._replace(key_lengths=None), **arrays, **inputs)


def _solve(call: Call, *, weights: bool = False) -> tuple[Partial, Array | None]:
    """Compute a `Partial` and, if requested, weights that sum to 1 over the keys of this part."""
    [(out, lse, pattern)] = solve([call], weights=weights, lse=True)
    assert lse is not None
    out, rest = out.astype(call.plan.kind, copy=False), None
    if np.abs(lse).max(initial=0, where=np.isfinite(lse)) > _ROUNDED:
        lse, rest = (x.reshape(lse.shape)[..., 0] for x in log_sums(group_call(call)))
        return _tidy(out, lse, rest), pattern
    return Partial(out, lse[..., 0], rest), pattern


def _tidy(out: Array, lse: Array, rest: Array) -> Partial:
    """Return a `Partial`; in rows without visible keys, its `lse` is -inf and its `rest` is 0."""
    blind = np.isneginf(rest)
    return Partial(out, np.where(blind, rest, lse), np.where(blind, 0, rest))


def join_parts(part: Partial, other: Partial) -> Partial:
    """Join the results of two parts over different keys."""
    if part.rest is other.rest is None:
        return Partial(*merge_attention(part.out, part.lse, other.out, other.lse), None)
    with np.errstate(all="ignore"):
        top = np.maximum(part.lse, other.lse)
        top = np.where(np.isneginf(top), 0, top)
        a, b = (x.lse - top + (0 if x.rest is None else x.rest) for x in (part, other))
    out, rest = merge_attention(part.out, a, other.out, b)
    return _tidy(out, top, rest)


def _out(part: Partial, kind: DType) -> Array:
    return round_to(part.out, kind)


def _lse(part: Partial, kind: DType) -> Array:
    return round_to(part.lse if part.rest is None else part.lse + part.rest, kind)


def _weigh(rules: Rules, *, part: Partial, values: Shape, **inputs: Array) -> Array:
    """Return the weights of a block of keys, normalized over all keys.

    First, compute weights that sum to 1 over the keys of the block. Then multiply these weights by
    the block's share of the sum over all keys: `exp(lse of the block - lse of all keys)`.

    Args:
        rules: the rules of the block.
        part: the result over all keys.
        values: the shape of the block's values.
        inputs: the other arrays of the block.
    """
    nothing = np.zeros((*values[:-1], 1), inputs["query"].dtype)
    with one_thread():
        alone, weights = _solve(rules.call({**inputs, "value": nothing}), weights=True)
    assert weights is not None
    with np.errstate(all="ignore"):
        share = alone.lse - part.lse  # a logarithm
        share += (0 if alone.rest is None else alone.rest) - (0 if part.rest is None else part.rest)
        share = np.exp(np.where(np.isneginf(alone.lse), -np.inf, share))
        return round_to(weights * share[..., None], weights.dtype)
