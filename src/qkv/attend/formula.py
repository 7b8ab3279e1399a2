"""The attention formula in plain NumPy, against which the tests check the faster code."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Steps(NamedTuple):
    """The results of the formula's steps, in order of computation."""

    scores_raw: Array
    scores_scaled: Array
    scores_capped: Array
    scores_biased: Array
    scores: Array
    pattern: Array
    out: Array
    lse: Array


@np.errstate(all="ignore")  # do not warn about NaN and infinity, which are valid here
def formula(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    visible: Array | None = None,
    sinks: Array | None = None,
    matmul: Callable[[Array, Array], Array] = np.matmul,
) -> Steps:
    """Compute scaled dot-product attention (Vaswani et al. 2017, equation 1) with its extensions.

    Args:
        query: `(..., L, d)`; the leading axes of all arrays broadcast.
        key: `(..., S, d)`.
        value: `(..., S, dv)`.
        scale: the factor by which scores are multiplied, usually `1 / sqrt(d)`.
        softcap: a number c; the scores become `c * tanh(scores / c)` (Gemma 2, 2024).
        bias: numbers that are added to the scores, including the ALiBi terms
            `-slope * abs(i + q_offset - j)`.
        mask: numbers that are added to the scores after the bias.
        visible: bool, `(..., L, S)`, True where a query may see a key.
        sinks: `(..., 1, n)` logits that take part in the softmax but have no value (GPT-OSS, 2025).
        matmul: the function that multiplies two matrices.

    >>> x = np.eye(2)
    >>> formula(x, x, x, scale=1.0).pattern.round(2)
    array([[0.73, 0.27],
           [0.27, 0.73]])
    """
    # scores: how well each key fits each query
    raw = matmul(query, np.swapaxes(key, -1, -2))  # (..., L, S).
    scaled = raw * scale
    capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
    biased = capped if bias is None else capped + bias
    masked = biased if mask is None else biased + mask
    seen = np.broadcast_to(True if visible is None else visible, masked.shape)
    scores = np.where(seen, masked, -np.inf).astype(raw.dtype, copy=False)

    pattern, lse = weights_of(scores, seen, sinks)
    # context: pattern @ value; masked values have no effect, even if they are NaN
    out = weigh(pattern, value, seen, matmul)  # (..., L, dv).
    return Steps(raw, scaled, capped, biased, scores, pattern, out, lse)


@np.errstate(all="ignore")
def weights_of(scores: Array, seen: Array, sinks: Array | None) -> tuple[Array, Array]:
    """Apply softmax to each row of scores, with the sinks in the denominator.

    Args:
        scores: `(..., L, S)`, -inf where masked.
        seen: bool, `(..., L, S)`, False where masked.
        sinks: `(..., 1, n)`.

    Returns:
        The weights `(..., L, S)`, and the log of each row's sum of exponentials `(..., L)`.
    """
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)  # (..., L, 1)
    if sinks is not None:
        top = np.maximum(top, sinks.max(axis=-1, keepdims=True))
    top = np.where(np.isneginf(top), 0, top)  # in a row of only -inf, subtract 0 to avoid NaN
    exps = np.exp(scores - top)
    total = exps.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top).sum(axis=-1, keepdims=True)

    pattern = np.where(seen, exps / total, 0).astype(scores.dtype, copy=False)
    return pattern, (top + np.log(total))[..., 0]  # (..., L)


def weigh(
    weights: Array,
    value: Array,
    visible: Array | None,
    matmul: Callable[[Array, Array], Array] = np.matmul,
) -> Array:
    """Compute `weights @ value`; masked values have no effect, even if they are NaN or infinite."""
    out = matmul(weights, value)
    if visible is None or np.isfinite(out).all():
        return out
    used = np.swapaxes(visible.any(axis=-2, keepdims=True), -1, -2)  # (..., S, 1).
    value = np.where(used, value, 0)  # Values that no query sees become 0.
    finite = np.isfinite(value)
    out = matmul(weights, np.where(finite, value, 0))
    for j in np.flatnonzero(~finite.all(axis=(*range(value.ndim - 2), -1))):
        rest = np.where(finite[..., j, :], 0, value[..., j, :])[..., None, :]  # (..., 1, dv)
        out = out + np.where(visible[..., j, None], weights[..., j, None] * rest, 0)
    return out
