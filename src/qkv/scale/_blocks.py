"""Divide attention on dask arrays into blocks, each with its own arrays and options."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays, DType, Shape, as_array
from qkv.attend import FAR, Visibility
from qkv.attend.arguments import Call, Options, check_call, clamp, plan_of
from qkv.extras import need

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
