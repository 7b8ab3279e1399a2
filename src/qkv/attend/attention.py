"""The function `attention`, its traced and summarised variants, and the choice of a backend."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import add_name, public_call
from qkv.arrays import Array, check_out, whole_number, without_tiny
from qkv.attend import _native, _tiled
from qkv.attend._grouped import Grouped, group_call
from qkv.attend._visibility import check_flag
from qkv.attend.arguments import RETURNS, Call, check_call, check_options, clamp, round_to
from qkv.attend.formula import Steps, formula, weigh, weights_of
from qkv.ops.kernel import variant
from qkv.ops.threads import matmul_alone, run_all
from qkv.trace import Recorder, Trace
from qkv.trace.activations import PATTERN, SCORES, SUMMARY, WEIGHTS

FAR = 1e9  # If a log-sum-exp exceeds this number, its rounding error makes the weights wrong.
# The queries are split into this number of ranges. Each key's weights are first summed over the
# queries of each range. Then the sums of all ranges are added.
SHARES = 8


class Solution(NamedTuple):
    """The arrays that an attention call returns."""

    out: Array  # (*lead, Hq, L, dv). The dtype is `Plan.dtype` or `Plan.kind`.
    lse: Array | None  # (*lead, Hq, L, 1), always float64; None unless requested.
    weights: Array | None  # (*lead, Hq, L, S); None unless requested.


class Weighed(NamedTuple):
    """The output of attention, and the weights (B, Hq, L, S) before and after edits."""

    z: Array  # (B, Hq, L, dv).
    softmax: Array  # The softmax of the scores.
    pattern: Array  # The weights that multiply the values: `softmax`, or its edited copy.


def answer(
    call: Call, *, weights: bool = False, lse: bool = False, out: Array | None = None
) -> tuple[Array, ...]:
    """Return a tuple: the output of `call`, then the weights and the log-sum-exp if requested.

    If `out` is given, the output is written to `out`.
    """
    result, sums, pattern, cases = _begin(call, weights, lse, out)
    if cases:
        run_all(_tiled.attend, cases)
    result = round_to(result, call.plan.dtype)
    if out is not None and result is not out:
        out[...] = result
        result = out
    extra = () if pattern is None else (pattern,)
    if sums is None:
        return result, *extra
    return result, *extra, round_to(sums[..., 0], call.plan.kind)


def solve(
    calls: Sequence[Call], *, weights: bool = False, lse: bool = False, exact: bool = False
) -> list[Solution]:
    """Compute checked calls with the kernel if possible, otherwise with NumPy.

    The kernel computes one call after another. NumPy computes the tiles of all calls in parallel.
    If `exact` is true, the output is never rounded to half precision: its dtype is `plan.kind`.
    """
    outs = (np.empty(call.plan.out, call.plan.kind) if exact else None for call in calls)
    begun = [_begin(call, weights, lse, out) for call, out in zip(calls, outs, strict=True)]
    run_all(_tiled.attend, [case for *_, cases in begun for case in cases])
    return [Solution(out, sums, pattern) for out, sums, pattern, _ in begun]


def _begin(
    call: Call, weights: bool, lse: bool, out: Array | None
) -> tuple[Array, Array | None, Array | None, Sequence[tuple[Any, ...]]]:
    """Return the three arrays of a `Solution`, and the calls of `tiled.attend` that will fill them.

    Each call is a tuple of arguments. If the kernel or `tiled.attend_one_block` has already filled
    the arrays, the list of calls is empty. The kernel writes directly to `out` if the memory layout
    of `out` allows it.
    """
    # `variant` raises an error if the backend that QKV_BACKEND names is unavailable.
    plan, chosen = call.plan, variant()
    sums = np.empty((*plan.rows, 1), np.float64) if lse else None
    pattern = np.zeros((*plan.rows, plan.keys), plan.kind) if weights else None
    if chosen is not None and plan.is_native:
        if out is None or not _native.is_contiguous(out):
            out = np.empty(plan.out, plan.dtype)
        _native.attend_native(chosen, call, out, sums, pattern)
        return out, sums, pattern, ()
    out = np.empty(plan.out, plan.kind)
    if pattern is None and _tiled.is_one_block(call) and _tiled.attend_one_block(call, out, sums):
        return out, sums, None, ()
    cut = _tiled.tiles(wide := group_call(call), plan.keys if weights else _tiled.KEYS)
    views = [None if x is None else plan.group(x) for x in (out, sums, pattern)]
    return out, sums, pattern, [(wide, tile, *views) for tile in cut]


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *,
    is_causal: bool = False,
    q_offset: Any = None,
    window: tuple[int | None, int | None] | None = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    query_lengths: Any = None,
    key_lengths: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
) -> Any:
    """Compute scaled dot-product attention: for each query, the weighted mean of the values.

    The steps are `scores = query @ key.T * scale`, softcap, bias and ALiBi, mask, softmax (with
    the sinks in its denominator) and `weights @ value`. Source: Vaswani et al. 2017, equation 1.

    Args:
        query: `(..., Hq, L, d)`, or `(L, d)` for one head. The dtype is float16, bfloat16, float32
            or float64, the same for query, key and value. Leading dimensions broadcast.
        key: `(..., Hkv, S, d)`. Query head h uses key head `h // (Hq // Hkv)`, so `Hq` must be a
            multiple of `Hkv`.
        value: `(..., Hkv, S, dv)`.
        attn_mask: a mask that broadcasts to `(..., Hq, L, S)`. A bool mask is False where a key is
            masked. A float mask is added to the scores, and is -inf where a key is masked.
        is_causal: if True, query i sees only keys j with `j <= i + q_offset`.
        q_offset: the position of query 0 among the keys, as an integer or as one integer per row of
            the batch. `"start"` means 0. `"end"` means S - L, as with a KV cache. If L and S
            differ, `is_causal`, `window` and `alibi_slopes` require `q_offset`.
        window: `(left, right)`, how many keys a query sees before and after its own position; None
            means no limit.
        bias: floats that broadcast to `(..., Hq, L, S)` and are added to the scores before masking;
            -inf masks a key.
        alibi_slopes: `(Hq,)`; `-slope * abs(i + q_offset - j)` is added to the score of query i and
            key j (ALiBi, Press et al. 2022).
        softcap: a number c; the scores become `c * tanh(scores / c)` (Gemma 2, 2024).
        sinks: `(Hq,)` or `(Hq, n)` logits that take part in the softmax but have no value (GPT-OSS,
            2025).
        scale: the factor by which scores are multiplied; the default is `1 / sqrt(d)`.
        query_lengths: the number of real queries in each row. Padding is never read.
        key_lengths: the number of real keys in each row. Padded keys and values are never read.
        return_weights: also return the weights `(..., Hq, L, S)`.
        return_lse: also return the natural log of each row's sum of exponentials `(..., Hq, L)`.
        out: an array to which the result is written; it must have the result's shape and dtype.

    Returns:
        `out (..., Hq, L, dv)`, or a tuple `(out, weights)`, `(out, lse)` or `(out, weights, lse)`.
        `out` has the dtype of the inputs. Weights and lse are float64 if the inputs are float64,
        otherwise float32.
        If a query sees no key, its output and weights are 0, and its lse is -inf, or the
        log-sum-exp of the sinks if there are sinks.

    Raises:
        ValueError: the shapes, lengths or numbers of heads are incompatible.
        TypeError: the dtypes are incompatible, or the mask contains integers.

    >>> import numpy as np
    >>> words = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> out, weights = attention(words, words, words, is_causal=True, return_weights=True)
    >>> weights.round(2)
    array([[1.  , 0.  , 0.  ],
           [0.33, 0.67, 0.  ],
           [0.25, 0.25, 0.5 ]])
    >>> (weights @ words == out).all()
    np.True_
    """
    try:  # faster than the decorator `public_call`
        if not (type(return_weights) is type(return_lse) is bool):
            check_flag("return_weights", return_weights)
            check_flag("return_lse", return_lse)
        call = check_call(
            query, key, value, attn_mask, is_causal=is_causal, q_offset=q_offset, window=window,
            bias=bias, alibi_slopes=alibi_slopes, softcap=softcap, sinks=sinks, scale=scale,
            query_lengths=query_lengths, key_lengths=key_lengths,
        )  # fmt: skip
        if out is not None:
            arrays = (query, key, value, attn_mask, bias, alibi_slopes, sinks)
            rows = (q_offset, query_lengths, key_lengths)
            check_out(out, call.plan.out, call.plan.dtype, (*arrays, *rows))
    except Exception as error:
        add_name(error, "attention")
        raise
    results = answer(call, weights=return_weights, lse=return_lse, out=out)
    return results if len(results) > 1 else results[0]


@public_call("trace_attention")
def trace_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any
) -> Trace:
    """Compute attention, and return every intermediate result in a trace.

    The options are those of `qkv.attention`, except `return_weights`, `return_lse` and `out`.

    Returns:
        A trace with the arrays of all steps.
        `scores_raw` (query @ key.T), `scores_scaled`, `scores_capped`, `scores_biased`, `scores`
        (-inf where masked) and `pattern` (the weights) are `(..., Hq, L, S)`.
        `out` is `(..., Hq, L, dv)`.
        If the option of a step, such as `softcap`, is not given, the step's array equals the array
        of the previous step.

    >>> import numpy as np
    >>> trace = trace_attention(np.eye(2), np.eye(2), np.eye(2), is_causal=True)
    >>> trace["scores"].round(2)
    array([[0.71, -inf],
           [0.  , 0.71]])
    """
    check_options(options, without=RETURNS, why=": the trace holds every result")
    return trace_call(check_call(query, key, value, attn_mask, **options))


def softmax_of(call: Call, scores: Array) -> Array:
    """Compute the softmax of edited scores `(*lead, Hq, L, S)` of a call; padding stays masked."""
    plan, wide = call.plan, group_call(call)
    scores = plan.group(without_padding(call, scores, -np.inf).astype(plan.kind, copy=False))
    return plan.ungroup(weights_of(scores, ~np.isneginf(scores), wide.sinks)[0])


def weigh_values(call: Call, pattern: Array) -> Array:
    """Compute the output `(*lead, Hq, L, dv)` of a call from edited weights, with 0 for padding."""
    plan, wide = call.plan, group_call(call)
    pattern = plan.group(without_padding(call, pattern, 0).astype(plan.kind, copy=False))
    with np.errstate(all="ignore"):
        return plan.ungroup(weigh(pattern, wide.value, pattern != 0, matmul_alone), plan.dtype)


def without_padding(call: Call, cells: Array, nothing: float) -> Array:
    """Overwrite the scores or weights of padded queries and keys.

    The new value is the argument `nothing`: -inf for scores, 0 for weights.
    """
    return np.asarray(np.where(_real(call), cells, nothing), cells.dtype)


def _real(call: Call) -> Array:
    """Return a mask that is False for padded queries and keys.

    The mask's shape is `(*lead, 1, L, S)`. If the call has no `query_lengths`, the axis L has size
    1. If the call has no `key_lengths`, the axis S has size 1. If the call has neither, the mask is
    a scalar True.
    """
    lead, real = call.plan.lead, np.array(True)
    if call.query_lengths is not None:
        lengths = np.broadcast_to(call.query_lengths, lead)[..., None, None, None]
        real = real & (np.arange(call.plan.length)[:, None] < lengths)
    if call.key_lengths is not None:
        lengths = np.broadcast_to(call.key_lengths, lead)[..., None, None, None]
        real = real & (np.arange(call.plan.keys) < lengths)
    return real


def trace_call(call: Call) -> Trace:
    """Return the trace of a checked call."""
    plan, steps = call.plan, _steps(call)._asdict()
    del steps["lse"]
    kinds = dict.fromkeys(steps, plan.kind) | {"out": plan.dtype}
    return Trace({n: plan.ungroup(array, kinds[n]) for n, array in steps.items()})


def scores_and_weights(call: Call) -> tuple[Array, Array]:
    """Return the scores and weights of a checked call, both `(*lead, Hq, L, S)`."""
    plan, steps = call.plan, _steps(call)
    return plan.ungroup(steps.scores, plan.kind), plan.ungroup(steps.pattern, plan.kind)


def _steps(call: Call) -> Steps:
    """Compute the steps of a checked call."""
    plan, wide = call.plan, group_call(call)
    i, j = slice(0, plan.length), slice(0, plan.keys)
    bias = None if wide.bias is None else clamp(wide.bias, plan.kind)
    if wide.slopes is not None:
        distance = wide.visibility.distance((), i, j).astype(plan.kind)
        bias = (0 if bias is None else bias) - wide.slopes * distance
    return formula(
        wide.query, wide.key, wide.value, scale=wide.scale, softcap=wide.softcap, bias=bias,
        mask=None if wide.mask is None else clamp(wide.mask, plan.kind),
        visible=wide.visibility.block((), (), i, j), sinks=wide.sinks, matmul=matmul_alone,
    )  # fmt: skip


class AttentionSummary(NamedTuple):
    """The result of `summarize_attention`."""

    out: Array
    lse: Array
    top_indices: Array
    top_weights: Array
    received: Array


@public_call("summarize_attention")
def summarize_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, *, top_k: int = 8, **options: Any
) -> AttentionSummary:
    """Compute attention and a summary of its weights in O(L * top_k + S) memory.

    The options are those of `qkv.attention`, except `return_weights`, `return_lse` and `out`.

    Args:
        query: `(..., Hq, L, d)`.
        key: `(..., Hkv, S, d)`.
        value: `(..., Hkv, S, dv)`.
        attn_mask: as in `qkv.attention`.
        top_k: the number of weights to keep for each query.
        **options: the other options of `qkv.attention`.

    Returns:
        `.out` and `.lse`, as `qkv.attention` returns them.
        `.top_indices` and `.top_weights` `(..., Hq, L, top_k)`, with the largest weights first.
        Keys with equal weights keep their order.
        If fewer than `top_k` keys are visible, the other indices are -1, and their weights are 0.
        `.received (..., Hq, S)`, the sum of each key's weights over all queries.

    >>> words = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> summary = summarize_attention(words, words, words, top_k=2, is_causal=True)
    >>> summary.top_indices
    array([[ 0, -1],
           [ 1,  0],
           [ 2,  0]])
    >>> summary.received.round(2)
    array([1.43, 0.72, 0.85])
    """
    check_options(options, without=RETURNS)
    top_k = whole_number(top_k, name="top_k", least=1, most=2**31 - 1)
    return summarize_call(check_call(query, key, value, attn_mask, **options), top_k)


def summarize_call(call: Call, top_k: int) -> AttentionSummary:
    """Summarise a checked call."""
    plan, chosen = call.plan, variant()
    indices = np.full((*plan.rows, top_k), -1, np.int64)
    weights = np.zeros((*plan.rows, top_k), plan.kind)
    if chosen is not None and plan.is_native:
        out, lse = np.empty(plan.out, plan.dtype), np.empty((*plan.rows, 1))
        received = np.zeros((*plan.rows[:-1], 1, plan.keys))
        _native.summarize(chosen, call, out, lse, indices, weights, received)
    else:
        [(out, sums, _)] = solve([call], lse=True)
        assert sums is not None
        lse = sums
        received = _pass_again(group_call(call), *map(plan.group, (lse, indices, weights)))
        received = received.reshape(*plan.rows[:-1], 1, plan.keys)
    return AttentionSummary(
        round_to(out, plan.dtype),
        round_to(lse[..., 0], plan.kind),
        indices,
        weights,
        round_to(received[..., 0, :], plan.kind),
    )


def _pass_again(call: Grouped, lse: Array, indices: Array, weights: Array) -> Array:
    """Return the sum of each key's weights, `(*lead, Hkv, G, S)`.

    Each query's largest weights and their keys are written to `weights` and `indices`.
    """
    received = np.zeros((SHARES, *call.shape[:-1], call.keys))

    def share(tile: _tiled.Tile) -> tuple[Any, int]:
        return tile.index, tile.queries.start * SHARES // max(1, call.shape[-1])

    def summarize(tiles: list[_tiled.Tile], sums: Array) -> None:
        """Compute the weights of `tiles` again, and add each key's weights to `sums`."""
        top_k = indices.shape[-1]
        with np.errstate(all="ignore"):
            for tile in tiles:
                exact = np.where(np.isneginf(lse[tile.at]), 0, lse[tile.at])
                base = exact.astype(call.kind)
                # `base` is the log-sum-exp, rounded to `call.kind`. Multiplying the weights by
                # `rest` corrects the rounding error.
                rest = np.exp(base - exact).astype(call.kind)
                far = np.abs(exact) > FAR
                if far.any():
                    rest = np.where(far, 1 / _tiled.exp_sums(call, tile, base), rest)
                best, positions = weights[tile.at] - 1, indices[tile.at]  # -1 means no key yet
                for j in _tiled.key_blocks(call, tile):
                    scores, visible = _tiled.scores_of(call, tile, j)
                    block = without_tiny(np.exp(scores - base) * rest)  # (texts, heads, G, l, s)
                    if visible is not None:
                        block = np.where(visible, block, 0)
                    sums[(*tile.index, slice(None), j)] += block.sum(axis=-2, dtype=np.float64)
                    if visible is not None:
                        block[~visible] = -1  # masked keys are never chosen
                    keys = np.broadcast_to(np.arange(j.start, j.stop), block.shape)
                    best, positions = _largest(
                        np.concatenate([best, block], axis=-1),
                        np.concatenate([positions, keys], axis=-1),
                        top_k,
                    )
                indices[tile.at] = np.where(best < 0, -1, positions)
                weights[tile.at] = np.where(best < 0, 0, best)

    shares = groupby(_tiled.tiles(call), share)
    run_all(summarize, [(list(tiles), received[number]) for (_, number), tiles in shares])
    return np.asarray(received.sum(axis=0))


def _largest(weights: Array, positions: Array, count: int) -> tuple[Array, Array]:
    """Return the `count` largest numbers of each row, and their positions.

    Equal numbers keep their order.
    """
    largest = np.empty((*weights.shape[:-1], count), weights.dtype)
    chosen = np.empty(largest.shape, np.int64)
    for rank in range(count):
        at = weights.argmax(axis=-1)[..., None]
        largest[..., rank : rank + 1] = np.take_along_axis(weights, at, axis=-1)
        chosen[..., rank : rank + 1] = np.take_along_axis(positions, at, axis=-1)
        np.put_along_axis(weights, at, -2, axis=-1)
    return largest, chosen


def record_weights(call: Call, record: Recorder, top_k: int | None) -> Weighed | None:
    """Record the requested arrays of a call: the scores and weights, or a summary of the weights.

    Returns:
        A `Weighed`, which holds the output of attention, and the weights before and after edits.
        None if the caller must still compute the output.
    """
    changed = record.changes(*WEIGHTS)
    if top_k is not None and not changed and record.wants(*SUMMARY):
        summary = summarize_call(call, top_k)
        for name in SUMMARY:
            record.keep(name, getattr(summary, name))
    if not changed and (top_k is not None or not record.wants(*WEIGHTS)):
        return None
    if not changed and not record.keeps and not record.wants(SCORES):
        # If only the weights are recorded, `answer` computes the weights, twice as fast as
        # `formula`. In a trace, `formula` always computes the weights, so that the weights are the
        # same with and without recorded scores.
        out, pattern = answer(call, weights=True)
        record.keep(PATTERN, pattern)
        return Weighed(out, pattern, pattern)
    computed, pattern = scores_and_weights(call)
    if not changed:
        record.keep(SCORES, computed)
        record.keep(PATTERN, pattern)
        return None
    scores = record.change(SCORES, computed)
    if scores is not computed:
        scores = without_padding(call, scores, -np.inf)
        pattern = softmax_of(call, scores)
    record.keep(SCORES, scores)
    edited = record.change(PATTERN, pattern)
    used = pattern if edited is pattern else without_padding(call, edited, 0)
    record.keep(PATTERN, used)
    return Weighed(weigh_values(call, used), pattern, used)
