"""What flows from word to word: weights through all layers, and weights beside what they carry."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array, is_whole_number, shown
from qkv.circuits.checks import check_model, check_trace, kept
from qkv.circuits.results import Result, words_of
from qkv.models.model import Model
from qkv.trace import Trace


def rollout(trace: Trace) -> Result:
    """Attention rollout: how much of each token's vector comes from each token of the text.

    In each layer the weights are averaged over the heads, the residual connection counts as much as
    the attention, `(weights + 1) / (sum of the row)`, and layers are multiplied. It follows weights
    alone: what MLPs and values do with what is looked at is left out, so that a block whose MLP
    stands beside its attention (GPT-NeoX) is followed as any other.

    Args:
        trace: of one text, with the "pattern" of all layers; of any model, images included.

    Returns:
        (layers, T, T), float64, whose rows sum to 1. `[l, i, j]` is what the vector of place `i`
        behind layer `l` has of place `j`. The last is that of the whole model.

    Raises:
        TypeError: `trace` is none.
        ValueError: it is of several texts, or queries and keys are not the same tokens.
        KeyError: it lacks the pattern of a layer.

    Source:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3, equation 1.

    >>> weights = np.array([[[[1.0, 0.0], [0.5, 0.5]]]])
    >>> rollout(Trace({f"blocks.{n}.attn.hook_pattern": weights for n in range(2)}))[-1]
    array([[1.    , 0.    ],
           [0.4375, 0.5625]])
    """
    trace = check_trace(trace, "rollout")
    found: list[Array] = []
    for layer in range(trace.num_layers):
        weights = kept(trace, "rollout", ("pattern", layer)).astype(np.float64)  # (Hq, T, T)
        if weights.shape[-1] != weights.shape[-2]:
            raise ValueError(
                f"rollout: layer {layer} has {weights.shape[-2]} queries and {weights.shape[-1]} "
                "keys: take a trace whose queries and keys are the same tokens"
            )
        mixed = weights.mean(0) + np.eye(weights.shape[-1])
        mixed /= mixed.sum(-1, keepdims=True)
        found.append(mixed @ found[-1] if found else mixed)
    return Result(
        found,
        ("layer", "query", "key"),
        of="weight",
        title="Attention rollout",
        words=_words(trace),
    )


def value_weighted(trace: Trace, layer: int, *, model: Model | None = None) -> Result:
    """Weights times the length of what they carry: a large weight on a short vector is little.

    A head that has nothing to say looks at a token whose value is near 0 ([CLS], the first word):
    its weight is large, and what comes of it is not.

    Args:
        trace: of one text, with "pattern" and "v" of the layer.
        layer: counted from 0, or from the end with -1.
        model: the model of the trace: then a value is measured behind its head's part of the output
            projection, as what the head adds to the residual stream, which is the source's measure.
            Without it values are measured as the head mixes them.

    Returns:
        (Hq, T, T), float64: `[h, i, j]` is the length of `weight * value`, for query `i` and key
        `j`; with `model` of `weight * value @ W_O`.

    Raises:
        TypeError: `trace` or `model` is none, or `layer` is not a whole number.
        ValueError: the trace is of several texts or of another model, or there is no such layer.
        KeyError: the trace lacks pattern or values of the layer.

    Source:
        Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector
        Norms", equations 3 to 5: with `model`, the norm of `weight * f(x)`.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> trace = model.trace("I love you")
    >>> lengths = np.linalg.norm(trace["v", 0][0], axis=-1)  # (T, H)
    >>> found = value_weighted(trace, 0)
    >>> bool(np.allclose(found, trace["pattern", 0][0] * lengths.T[:, None]))
    True
    >>> value_weighted(trace, 0, model=model).shape
    (2, 3, 3)
    """
    call = "value_weighted"
    if model is not None:
        model = check_model(model, call)
    trace = check_trace(trace, call, model)
    count = trace.num_layers
    if not is_whole_number(layer):
        raise TypeError(f"{call}: layer is {shown(layer)}: give a whole number")
    if not -count <= layer < count:
        raise ValueError(
            f"{call}: there is no layer {layer}: the trace has {count}, 0 to {count - 1}"
        )
    weights = kept(trace, call, ("pattern", layer)).astype(np.float64)  # (Hq, Q, K)
    values = np.swapaxes(kept(trace, call, ("v", layer)), 0, 1).astype(np.float64)  # (Hkv, K, dv)
    values = np.repeat(values, len(weights) // len(values), 0)  # (Hq, K, dv)
    if model is not None:
        out = model.layers[layer].attn.parameters["out_proj.weight"].astype(np.float64)
        values = values @ out.reshape(len(weights), -1, out.shape[-1])  # (Hq, K, D)
    return Result(
        weights * np.linalg.norm(values, axis=-1)[:, None],
        ("head", "query", "key"),
        of="length",
        title=f"Value-weighted attention of layer {layer % count}",
        words=_words(trace),
    )


def _words(trace: Trace) -> dict[str, list[str]]:
    """The tokens as queries and as keys."""
    return dict.fromkeys(("query", "key"), words_of(trace))
