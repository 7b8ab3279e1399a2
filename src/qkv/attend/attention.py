"""The public call: check once, choose a path."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array, check_out
from qkv.attend.call import Call, check_call, narrow, rounded
from qkv.attend.formula import Steps, formula, weigh, weights_of
from qkv.attend.grouped import grouped
from qkv.attend.options import RETURNS, check_options
from qkv.attend.solve import answer
from qkv.attend.visibility import check_flag
from qkv.ops.threads import one_blas_thread
from qkv.trace import Trace


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
    """Scaled dot-product attention: each query's weighted mean of the values.

    In this order: `scores = query @ key.T * scale`, softcap, bias and ALiBi, mask, softmax (with
    the sinks in its denominator), `@ value`. Source: Vaswani et al. 2017, equation 1.

    Args:
        query: `(..., Hq, L, d)`, or `(L, d)` for one head. float16, bfloat16, float32 or float64,
            the same for all three. Leading dimensions broadcast.
        key: `(..., Hkv, S, d)`, `Hq` a multiple of `Hkv`: head h reads key head `h // (Hq // Hkv)`.
        value: `(..., Hkv, S, dv)`.
        attn_mask: bool, True = may attend; or float, added to the scores, -inf hides. Broadcasts
            to `(..., Hq, L, S)`.
        is_causal: key j is visible to query i where `j <= i + q_offset`.
        q_offset: the place of query 0 among the keys: a whole number, one for each row, `"start"`
            (0) or `"end"` (S - L, the KV-cache case). Needed by causal, window and ALiBi where L
            and S differ.
        window: `(left, right)` keys that are visible beside a query's own place, both inclusive,
            None for no bound.
        bias: float, added before masking, broadcasts like `attn_mask`; -inf hides.
        alibi_slopes: `(Hq,)`: adds `-slope * abs(i + q_offset - j)` (Press et al. 2022).
        softcap: `softcap * tanh(scores / softcap)` (Gemma 2, 2024).
        sinks: `(Hq,)` or `(Hq, n)` logits that take weight and give no value (GPT-OSS, 2025).
        scale: what the scores are multiplied by, `1 / sqrt(d)` unless given.
        query_lengths: for each row how many queries are real; the rest is never read.
        key_lengths: for each row how many keys and values are real.
        return_weights: also give the weights `(..., Hq, L, S)`.
        return_lse: also give the natural log of each row's sum of exponentials `(..., Hq, L)`.
        out: where the result goes: an array of its exact shape and type.

    Returns:
        `out (..., Hq, L, dv)` of the inputs' type, or `(out, weights)`, `(out, lse)`,
        `(out, weights, lse)`; weights and lse are float32, float64 for float64. A query that sees
        no key has output 0, weights 0 and lse -inf (with sinks, their log-sum-exp).

    Raises:
        ValueError: shapes, lengths or heads that do not fit.
        TypeError: types that do not fit, a mask of integers.

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
    if not (type(return_weights) is type(return_lse) is bool):
        check_flag("attention", "return_weights", return_weights)
        check_flag("attention", "return_lse", return_lse)
    call = check_call(
        query,
        key,
        value,
        attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        bias=bias,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    if out is not None:
        given = (query, key, value, attn_mask, bias, alibi_slopes, sinks)
        rows = (q_offset, query_lengths, key_lengths)
        check_out(out, call.plan.out, call.plan.dtype, (*given, *rows), call="attention")
    found = answer(call, weights=return_weights, lse=return_lse, out=out)
    return found if len(found) > 1 else found[0]


def trace_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any
) -> Trace:
    """Run attention and keep every intermediate, by name and in order.

    Takes what `qkv.attention` takes, but for `return_weights`, `return_lse` and `out`.

    Returns:
        A trace with `scores_raw` (query @ key.T), `scores_scaled`, `scores_capped`,
        `scores_biased`, `scores` (masked, -inf where hidden), `pattern` (the weights), each
        `(..., Hq, L, S)`, and `out (..., Hq, L, dv)`. A step that is not asked for repeats the
        one before it.

    >>> import numpy as np
    >>> trace = trace_attention(np.eye(2), np.eye(2), np.eye(2), is_causal=True)
    >>> trace["scores"].round(2)
    array([[0.71, -inf],
           [0.  , 0.71]])
    """
    name = "trace_attention"
    check_options(options, call=name, without=RETURNS, why=": the trace holds it all")
    return trace_call(check_call(query, key, value, attn_mask, call=name, **options))


def softmax_of(call: Call, scores: Array) -> Array:
    """The weights that a checked call would give by other scores, both `(*lead, Hq, L, S)`.

    What is padding stays so.
    """
    plan, wide = call.plan, grouped(call)
    own = plan.grouped(without_padding(call, scores, -np.inf).astype(plan.kind, copy=False))
    return plan.ungrouped(weights_of(own, ~np.isneginf(own), wide.sinks)[0])


def weighed(call: Call, pattern: Array) -> Array:
    """The values of a checked call, weighed by other weights: `(*lead, Hq, L, dv)`.

    What is padding counts as nothing.
    """
    plan, wide = call.plan, grouped(call)
    own = plan.grouped(without_padding(call, pattern, 0).astype(plan.kind, copy=False))
    with one_blas_thread(), np.errstate(all="ignore"):
        return rounded(plan.ungrouped(weigh(own, wide.value, own != 0)), plan.dtype)


def without_padding(call: Call, cells: Array, nothing: float) -> Array:
    """Scores or weights of a checked call, `nothing` where the query or the key is padding."""
    found: Array = np.where(_real(call), cells, nothing)
    return found.astype(cells.dtype, copy=False)


def _real(call: Call) -> Array:
    """Which cells belong to a real query and a real key, `(*lead or 1, 1, L or 1, S or 1)`."""
    lead, real = call.plan.lead, np.array(True)
    if call.query_lengths is not None:
        lengths = np.broadcast_to(call.query_lengths, lead)[..., None, None, None]
        real = real & (np.arange(call.plan.length)[:, None] < lengths)
    if call.key_lengths is not None:
        lengths = np.broadcast_to(call.key_lengths, lead)[..., None, None, None]
        real = real & (np.arange(call.plan.keys) < lengths)
    return real


def trace_call(call: Call) -> Trace:
    """The trace of a checked call."""
    plan, steps = call.plan, _steps(call)
    kinds = {"out": plan.dtype}
    return Trace(
        {
            name: rounded(plan.ungrouped(array), kinds.get(name, plan.kind))
            for name, array in steps._asdict().items()
            if name != "lse"
        }
    )


def scores_and_weights(call: Call) -> tuple[Array, Array]:
    """Those of the trace of a checked call, both `(*lead, Hq, L, S)`."""
    plan, steps = call.plan, _steps(call)
    scores, weights = plan.ungrouped(steps.scores), plan.ungrouped(steps.pattern)
    return rounded(scores, plan.kind), rounded(weights, plan.kind)


def _steps(call: Call) -> Steps:
    """What a checked call goes through."""
    plan, wide = call.plan, grouped(call)
    i, j = slice(0, plan.length), slice(0, plan.keys)
    bias = None if wide.bias is None else narrow(wide.bias, plan.kind)
    if wide.slopes is not None:
        distance = wide.visibility.distance((), i, j).astype(plan.kind)
        bias = (0 if bias is None else bias) - wide.slopes * distance
    with one_blas_thread():
        return formula(
            wide.query,
            wide.key,
            wide.value,
            scale=wide.scale,
            softcap=wide.softcap,
            bias=bias,
            mask=None if wide.mask is None else narrow(wide.mask, plan.kind),
            visible=wide.visibility.block((), (), i, j),
            sinks=wide.sinks,
        )
