"""Integrated gradients: what each token's embedding adds to a logit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, is_float, shown, whole_number
from qkv.circuits.checks import check_logit, check_words
from qkv.circuits.results import Result, words_of
from qkv.models.model import Model
from qkv.models.tasks.gradient import word_id

_CALL = "integrated_gradients"
TOKENS = 2**11  # whose gradients are taken at once, or those of one text


def integrated_gradients(
    model: Model, text: Any, *, of: tuple[Any, ...], baseline: Any = None, steps: int = 50
) -> Result:
    """Integrated gradients: shares of a logit that the embeddings of a text have.

    On the straight way from a baseline to the embeddings of the tokens the gradient of the logit is
    averaged, and multiplied by how far it is. The shares sum to what the logit is above that of the
    baseline, which a gradient at one place does not. Positions stay as they are all the way.

    Args:
        model: with a head over words, in float32 or float64.
        text: one text, or the ids of its tokens.
        of: (place, token) for that logit, or (place, token, other token) for how far it is above
            another. A place counts from the end with -1; a token is an id, or a string that is one.
        baseline: what says nothing: a token, by its id or a string, which then stands at every
            place ("[PAD]", "[MASK]"); vectors (D,) or (T, D) in the place of embeddings; or None
            for vectors of 0. Where a norm is all that comes between embeddings and the first layer
            (Llama), those near 0 are as large as any behind it, so that a token is the better one.
        steps: at how many points the gradient is taken, those of Gauss and Legendre.

    Returns:
        (T, D), float64; its sum over D is the share of each token.

    Warns:
        UserWarning: the shares miss their sum by over a twentieth of it, so that there are too few
            steps for this baseline.

    Raises:
        TypeError: an argument is of a wrong type, or the model is in half precision.
        ValueError: the model gives no logits over words; `text` is several; there is no such place
            or token; `baseline` has another shape; `steps` is below 1.

    Source:
        Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", equation 1; the
        sum is its axiom of completeness.

    >>> import qkv
    >>> model = qkv.load()
    >>> found = integrated_gradients(model, "The sun [MASK].", of=(3, "the"), baseline="[PAD]")
    >>> logits = model.trace("The sun [MASK].", logits=True)["logits"]
    >>> found.shape == (logits.shape[1], model.dim)
    True
    """
    model = check_words(model, _CALL)
    steps = whole_number(steps, call=_CALL, name="steps", least=1)
    trace = model.trace(text, names="embed", logits=True)
    if len(trace) > 1:
        raise ValueError(f"{_CALL}: text is {len(trace)} texts: give one")
    ids, end = trace[0].ids, trace["embed"][0].astype(np.float64)  # (T, D)
    logit = check_logit(of, model, len(end), _CALL, "of")
    start = _baseline(model, baseline, end.shape)
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # between -1 and 1
    mean = np.zeros_like(end)
    at_once = max(1, TOKENS // len(end))
    for first in range(0, steps, at_once):
        part = slice(first, first + at_once)
        way = start + (nodes[part, None, None] + 1) / 2 * (end - start)  # (n, T, D)
        slopes = model.gradient([ids] * len(way), of=of, edit={"embed": way})["embed"]
        mean += np.einsum("n,ntd->td", weights[part] / 2, slopes.astype(np.float64))
    found: Array = (end - start) * mean
    before = model.trace(ids, names=[], logits=True, edit={"embed": start[None]})
    low, high = (float(logit.of(run["logits"][0, logit.place])) for run in (before, trace))
    missing = abs(found.sum() - (high - low))
    if missing > 0.05 * abs(high - low) + 1e-4 * max(abs(low), abs(high)):
        warnings.warn(
            f"{_CALL}: the shares sum to {found.sum():.4g}, and the logit is {high - low:.4g} "
            f"above that of the baseline: give more steps than {steps}, or another baseline",
            stacklevel=2,
        )
    return Result(
        found,
        ("token", "D"),
        of="share of the logit",
        title="Integrated gradients",
        words={"token": words_of(trace[0])},
    )


def _baseline(model: Model, given: Any, shape: tuple[int, ...]) -> Array:
    """The vectors (T, D) that a baseline stands for, float64."""
    if given is None:
        return np.zeros(shape)
    if isinstance(given, str) or np.ndim(given) == 0:
        token = word_id(
            given,
            len(model.embedding.table),
            model.tokenizer,
            model.prepared,
            model.name,
            call=_CALL,
            given="baseline",
        )
        alone = model.trace(np.full(shape[0], token), names="embed")["embed"][0]
        return np.asarray(alone, np.float64)
    array = as_array(given, call=_CALL, name="baseline")
    if not is_float(array.dtype):
        raise TypeError(
            f"{_CALL}: baseline is {shown(given)}: give a token, or floats {shape[1:]} or {shape}"
        )
    if array.shape not in (shape, shape[1:]):
        raise ValueError(
            f"{_CALL}: baseline has shape {array.shape} and the embeddings have {shape}: give "
            f"that, or {shape[1:]} for the same at every place"
        )
    return np.array(np.broadcast_to(array, shape), np.float64)
