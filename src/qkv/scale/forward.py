"""Attention on dask arrays: blocks of queries meet blocks of keys, and what they give is joined."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.attend.call import Call, rounded
from qkv.attend.grouped import grouped
from qkv.attend.merge import merge_attention
from qkv.attend.options import check_options
from qkv.attend.solve import solve
from qkv.attend.tiled import log_sums
from qkv.attend.visibility import check_flag
from qkv.ops.kernel import one_thread
from qkv.scale.blocks import Blocks, Rules, Tasks, cut

_READ = ("query", "key", "value", "attn_mask", "bias", "alibi_slopes")  # by each block
_ROUNDED = 1e8  # a log-sum-exp beyond it loses, in float64, digits that weights need


class Part(NamedTuple):
    """What attention over some keys gave."""

    out: Array  # (*lead, Hq, L, dv), in the type of the work
    lse: Array  # (*lead, Hq, L), float64
    rest: Array | None  # what rounding took from `lse`, to be added to it; None for nothing


def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
    """`qkv.attention` on dask arrays, in any chunks along batch, heads, queries and keys.

    A block of queries meets a block of keys in one task, and what it gives is joined with that of
    other keys two by two, as `qkv.merge_attention` does. Blocks that causality, window or lengths
    hide make no task. Nothing is computed before the result is. Each task computes on one thread.

    Args:
        query: `(..., Hq, L, d)`, a dask array as a rule, or anything that `qkv.attention` takes.
        key: `(..., Hkv, S, d)`, likewise.
        value: `(..., Hkv, S, dv)`, likewise.
        attn_mask: as for `qkv.attention`, in memory or a dask array; it is cut as the blocks are.
        options: those of `qkv.attention`, but for `out`. `bias`, `sinks` and `alibi_slopes` may be
            dask arrays too; `q_offset`, `query_lengths` and `key_lengths` are numbers, since they
            say which blocks are hidden.

    Returns:
        What `qkv.attention` gives, as dask arrays, chunked as query is (finer along leading
        dimensions and heads where key and value are), weights along keys as key and value are.
        Errors are at most twice those that `qkv.attention` allows itself.

    Raises:
        ValueError: shapes, lengths or heads that do not fit; sizes that are not known yet.
        TypeError: types that do not fit, or an option that there is not.
        ImportError: Dask is not installed.

    Source:
        Dao et al. 2022, FlashAttention, section 3.1, for how parts are joined.

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
    check_options(options, call=name, without=("out",), why=": Dask decides where results go")
    returns = {which: options.pop(f"return_{which}", False) for which in ("weights", "lse")}
    for which, wanted in returns.items():
        check_flag(name, f"return_{which}", wanted)
    blocks = cut(name, query, key, value, attn_mask, options)
    parts = _attended(blocks)
    results = [_output(blocks, parts)]
    results += [_weights(blocks, parts)] if returns["weights"] else []
    results += [_log_sum_exp(blocks, parts)] if returns["lse"] else []
    results = [blocks.as_given(x) for x in results]
    return tuple(results) if len(results) > 1 else results[0]


def _attended(blocks: Blocks) -> Tasks:
    """For each block of queries, by its place in `(*lead, Hq, L)`, the `Part` that all keys are."""
    found = blocks.tasks("attention-parts", blocks.arrays)
    for row, seen in blocks.rows():
        at, refs = blocks.in_result(row), []
        for place in seen:
            sinks = ("sinks",) if place is seen[0] else ()  # in one part, or they count twice
            read = blocks.inputs(place, *_READ, *sinks)
            refs.append(found.add((*at, place[-1]), _attend, blocks.rules(place), **read))
        if not seen:
            shapes = [blocks.shape(which, row) for which in ("query", "key", "value")]
            kind, read = blocks.call.plan.dtype, blocks.inputs(row, "sinks")
            refs.append(
                found.add((*at, 0), _attend_nothing, blocks.rules(row), shapes, kind, **read)
            )
        found.whole[at] = found.add_tree(at, refs, joined)
    return found


def _output(blocks: Blocks, parts: Tasks) -> Any:
    """The result of attention, a dask array `(*lead, Hq, L, dv)`."""
    plan, found = blocks.call.plan, blocks.tasks("attention", [parts])
    for at, part in parts.whole.items():
        found.add((*at, 0), _out, part, plan.dtype)
    return found.array((*blocks.chunks, plan.out[-1:]), plan.dtype)


def _log_sum_exp(blocks: Blocks, parts: Tasks) -> Any:
    """That of each row, a dask array `(*lead, Hq, L)`."""
    plan, found = blocks.call.plan, blocks.tasks("attention-lse", [parts])
    for at, part in parts.whole.items():
        found.add(at, _lse, part, plan.kind)
    return found.array(blocks.chunks, plan.kind)


def _weights(blocks: Blocks, parts: Tasks) -> Any:
    """The weights, a dask array `(*lead, Hq, L, S)`: a block of queries and one of keys each."""
    kind, keys = blocks.call.plan.kind, blocks.pieces[-1]
    found = blocks.tasks("attention-weights", [parts, *blocks.arrays])
    for row, seen in blocks.rows():
        at = blocks.in_result(row)
        for place in seen:
            read = blocks.inputs(place, *(name for name in _READ if name != "value"))
            read |= {"values": blocks.shape("value", place), "part": parts.whole[at]}
            found.add((*at, place[-1]), _weigh, blocks.rules(place), **read)
        for j in {*range(len(keys))} - {place[-1] for place in seen}:
            shape = (*blocks.shape_in_result(at), keys[j])
            found.add((*at, j), np.broadcast_to, kind.type(0), shape)
    return found.array((*blocks.chunks, keys), kind)


def _attend(rules: Rules, **given: Array) -> Part:
    """Attention over some keys."""
    with one_thread():
        return _solved(rules.call(given))[0]


def _attend_nothing(
    rules: Rules, shapes: list[tuple[int, ...]], kind: np.dtype[Any], **given: Array
) -> Part:
    """Attention over no keys at all; `shapes` are those of a query, a key and a value."""
    query, key, value = shapes
    none = [query, (*key[:-2], 0, key[-1]), (*value[:-2], 0, value[-1])]
    arrays = dict(zip(("query", "key", "value"), (np.zeros(x, kind) for x in none), strict=True))
    return _attend(rules._replace(key_lengths=None), **arrays, **given)


def _solved(call: Call, *, weights: bool = False) -> tuple[Part, Array | None]:
    """A part by the call that it is, and its own weights where wanted."""
    [(out, lse, shown)] = solve([call], weights=weights, lse=True)
    assert lse is not None
    out, rest = out.astype(call.plan.kind, copy=False), None
    if np.abs(lse).max(initial=0, where=np.isfinite(lse)) > _ROUNDED:
        lse, rest = (x.reshape(lse.shape)[..., 0] for x in log_sums(grouped(call)))
        return _tidy(out, lse, rest), shown
    return Part(out, lse[..., 0], rest), shown


def _tidy(out: Array, lse: Array, rest: Array) -> Part:
    """A part whose rows that saw nothing have a log-sum-exp of -inf and no rest."""
    blind = np.isneginf(rest)
    return Part(out, np.where(blind, rest, lse), np.where(blind, 0, rest))


def joined(one: Part, other: Part) -> Part:
    """Two parts over different keys as one."""
    if one.rest is other.rest is None:
        return Part(*merge_attention(one.out, one.lse, other.out, other.lse), None)
    with np.errstate(all="ignore"):
        top = np.maximum(one.lse, other.lse)
        top = np.where(np.isneginf(top), 0, top)
        a, b = (x.lse - top + (0 if x.rest is None else x.rest) for x in (one, other))
    out, rest = merge_attention(one.out, a, other.out, b)
    return _tidy(out, top, rest)


def _out(part: Part, kind: np.dtype[Any]) -> Array:
    return rounded(part.out, kind)


def _lse(part: Part, kind: np.dtype[Any]) -> Array:
    return rounded(part.lse if part.rest is None else part.lse + part.rest, kind)


def _weigh(rules: Rules, *, part: Part, values: tuple[int, ...], **given: Array) -> Array:
    """The weights of some keys; `part` is all keys'.

    A part's own weights sum to 1: they take the share that its log-sum-exp has of the whole.
    """
    alone, weights = _without_values(rules, values, given, weights=True)
    assert weights is not None
    with np.errstate(all="ignore"):
        share = np.exp(_log_share(alone, part))
        return rounded(weights * share[..., None], weights.dtype)


def _without_values(
    rules: Rules, values: tuple[int, ...], given: dict[str, Array], *, weights: bool = False
) -> tuple[Part, Array | None]:
    """A part with nothing in `out`, and its own weights where wanted; `values` is a shape."""
    nothing = np.zeros((*values[:-1], 1), given["query"].dtype)
    with one_thread():
        part, shown = _solved(rules.call({**given, "value": nothing}), weights=weights)
    return part._replace(out=part.out[..., :0]), shown


def _log_share(part: Part, whole: Part) -> Array:
    """The log of what the keys of `part` weigh together among all."""
    found = part.lse - whole.lse
    if part.rest is not None:
        found += part.rest
    if whole.rest is not None:
        found -= whole.rest
    return np.where(np.isneginf(part.lse), -np.inf, found)
