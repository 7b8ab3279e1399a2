"""Attention on dask arrays: compute pairs of query and key blocks, then join the results."""

from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array, DType, Shape
from qkv.attend import check_flag, group_call, log_sums, merge_attention
from qkv.attend.arguments import Call, check_options, round_to
from qkv.attend.attention import solve
from qkv.ops.kernel import one_thread
from qkv.scale._blocks import Blocks, Rules, Tasks, cut

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
