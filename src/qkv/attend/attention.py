"""The public call of attention, and its trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array, check_out
from qkv.attend.call import RETURNS, Call, check_call, check_options, narrow, rounded
from qkv.attend.formula import Steps, formula, weigh, weights_of
from qkv.attend.grouped import grouped
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
    """Compute scaled dot-product attention: for each query the weighted mean of the values.

    The steps are `scores = query @ key.T * scale`, softcap, bias and ALiBi, mask, softmax (with
    the sinks in its denominator) and `weights @ value`. Source: Vaswani et al. 2017, equation 1.

    Args:
        query: `(..., Hq, L, d)`, or `(L, d)` for one head. float16, bfloat16, float32 or float64,
            the same for all three. Leading dimensions broadcast.
        key: `(..., Hkv, S, d)`, `Hq` a multiple of `Hkv`: head h reads key head `h // (Hq // Hkv)`.
        value: `(..., Hkv, S, dv)`.
        attn_mask: bool, True = may attend; or float, added to the scores, where -inf masks.
            Broadcasts to `(..., Hq, L, S)`.
        is_causal: key j is visible to query i where `j <= i + q_offset`.
        q_offset: the position of query 0 among the keys: a whole number, one for each row,
            `"start"` (0) or `"end"` (S - L, the KV-cache case). Causal, window and ALiBi need it if
            L and S differ.
        window: `(left, right)`: how many keys before and after its own position a query sees, None
            for no bound.
        bias: float, added before masking; -inf masks. Broadcasts like `attn_mask`.
        alibi_slopes: `(Hq,)`: adds `-slope * abs(i + q_offset - j)` (Press et al. 2022).
        softcap: `softcap * tanh(scores / softcap)` (Gemma 2, 2024).
        sinks: `(Hq,)` or `(Hq, n)` logits that take weight but have no value (GPT-OSS, 2025).
        scale: the factor of the scores, `1 / sqrt(d)` unless given.
        query_lengths: the number of real queries in each row; the rest is never read.
        key_lengths: the number of real keys and values in each row.
        return_weights: also return the weights `(..., Hq, L, S)`.
        return_lse: also return the natural log of each row's sum of exponentials `(..., Hq, L)`.
        out: the array for the result, of its exact shape and type.

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
        query, key, value, attn_mask, is_causal=is_causal, q_offset=q_offset, window=window,
        bias=bias, alibi_slopes=alibi_slopes, softcap=softcap, sinks=sinks, scale=scale,
        query_lengths=query_lengths, key_lengths=key_lengths,
    )  # fmt: skip
    if out is not None:
        arrays = (query, key, value, attn_mask, bias, alibi_slopes, sinks)
        rows = (q_offset, query_lengths, key_lengths)
        check_out(out, call.plan.out, call.plan.dtype, (*arrays, *rows), call="attention")
    results = answer(call, weights=return_weights, lse=return_lse, out=out)
    return results if len(results) > 1 else results[0]


def trace_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any
) -> Trace:
    """Compute attention and keep every intermediate result, by name and in order.

    The options are those of `qkv.attention`, except `return_weights`, `return_lse` and `out`.

    Returns:
        A trace with `scores_raw` (query @ key.T), `scores_scaled`, `scores_capped`,
        `scores_biased`, `scores` (masked, -inf where hidden), `pattern` (the weights), each
        `(..., Hq, L, S)`, and `out (..., Hq, L, dv)`. A step without its option repeats the step
        before.

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
    """Return the weights of a checked call whose scores were edited, both `(*lead, Hq, L, S)`.

    Padding stays masked.
    """
    plan, wide = call.plan, grouped(call)
    own = plan.grouped(without_padding(call, scores, -np.inf).astype(plan.kind, copy=False))
    return plan.ungrouped(weights_of(own, ~np.isneginf(own), wide.sinks)[0])


def weighed(call: Call, pattern: Array) -> Array:
    """Return the output `(*lead, Hq, L, dv)` of a checked call whose weights were edited.

    Padding never affects the output.
    """
    plan, wide = call.plan, grouped(call)
    own = plan.grouped(without_padding(call, pattern, 0).astype(plan.kind, copy=False))
    with one_blas_thread(), np.errstate(all="ignore"):
        return rounded(plan.ungrouped(weigh(own, wide.value, own != 0)), plan.dtype)


def without_padding(call: Call, cells: Array, nothing: float) -> Array:
    """Replace the scores or weights of padded queries and keys by the number `nothing`."""
    return np.asarray(np.where(_real(call), cells, nothing), cells.dtype)


def _real(call: Call) -> Array:
    """Return booleans `(*lead or 1, 1, L or 1, S or 1)`: True if query and key are real."""
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
    return Trace({n: rounded(plan.ungrouped(array), kinds[n]) for n, array in steps.items()})


def scores_and_weights(call: Call) -> tuple[Array, Array]:
    """Return the scores and weights of a checked call, both `(*lead, Hq, L, S)`."""
    plan, steps = call.plan, _steps(call)
    scores, weights = plan.ungrouped(steps.scores), plan.ungrouped(steps.pattern)
    return rounded(scores, plan.kind), rounded(weights, plan.kind)


def _steps(call: Call) -> Steps:
    """Compute the steps of a checked call."""
    plan, wide = call.plan, grouped(call)
    i, j = slice(0, plan.length), slice(0, plan.keys)
    bias = None if wide.bias is None else narrow(wide.bias, plan.kind)
    if wide.slopes is not None:
        distance = wide.visibility.distance((), i, j).astype(plan.kind)
        bias = (0 if bias is None else bias) - wide.slopes * distance
    with one_blas_thread():
        return formula(
            wide.query, wide.key, wide.value, scale=wide.scale, softcap=wide.softcap, bias=bias,
            mask=None if wide.mask is None else narrow(wide.mask, plan.kind),
            visible=wide.visibility.block((), (), i, j), sinks=wide.sinks,
        )  # fmt: skip
