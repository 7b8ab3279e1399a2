"""What heads move: between tokens by their attention, to other heads by their parameters."""

from __future__ import annotations

from typing import Literal

import numpy as np

from qkv.arrays import Array, is_whole_number, shown
from qkv.circuits.checks import check_model, check_trace, check_words, kept
from qkv.circuits.logits import has_linear_head, unembedding
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


_KINDS = ("q", "k", "v")


def composition(model: Model, kind: Literal["q", "k", "v"]) -> Result:
    """How much of what an earlier head writes is what a later head reads.

    With `OV` of the one that writes and `QK` or `OV` of the one that reads, as
    `model.head_weights(layer)` has them (`x @ OV` is what is written), a score is

    - "q", its queries: `|OV @ QK| / (|OV| |QK|)`,
    - "k", its keys: `|OV @ QK.T| / (|OV| |QK|)`,
    - "v", its values: `|OV @ OV'| / (|OV| |OV'|)`,

    where `|M|` is the root of the sum of squares. Even random matrices have scores above 0, the
    higher the smaller D is: compare with those of other heads.

    The weights are raw: no norm is folded in (TransformerLens does that when it loads a model, so
    that its scores differ by the norm's weight), rotary positions and norms of queries and keys are
    left out. Where norms stand behind the parts of a block (BERT), what is written is scaled anew
    before it is read, and the score knows nothing of that. In a parallel block (GPT-NeoX) the MLP
    of the layer that writes does not read it either, which no score here is of.

    Args:
        model: an encoder or decoder that `qkv.load` has read.
        kind: by what the later head reads.

    Returns:
        (layers, Hq, layers, Hq), float64, between 0 and 1, with the axes "layer", "head",
        "reader_layer" and "reader_head". `[l, h, m, n]` is of head `h` of layer
        `l`, which writes, and head `n` of layer `m`, which reads; 0 where `m` is not later than
        `l`. Key heads that several query heads share are repeated.

    Raises:
        TypeError: `model` is none.
        ValueError: `kind` is another, or the model reads one text and writes another, or images.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Two-Layer
        Attention-Only Transformers".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> found = composition(model, "v")
    >>> one, other = model.head_weights(0).ov.full()[1], model.head_weights(3).ov.full()[2]
    >>> norm = np.linalg.norm
    >>> bool(np.isclose(found[0, 1, 3, 2], norm(one @ other) / (norm(one) * norm(other))))
    True
    """
    model = check_model(model, "composition")
    if kind not in _KINDS:
        raise ValueError(f"composition: kind is {shown(kind)}: choose among q, k and v")
    layers, heads = model.num_layers, model.num_heads
    write, read = [], []
    for layer in range(layers):
        weights = model.head_weights(layer)
        q, k, v, o = (
            part.astype(np.float64) for part in (weights.W_Q, weights.W_K, weights.W_V, weights.W_O)
        )
        write.append(_triangle(v) @ o)  # (Hq, d, D), as long as OV
        first, second = {"q": (q, np.swapaxes(k, 1, 2)), "k": (k, np.swapaxes(q, 1, 2))}.get(
            kind, (v, o)
        )
        read.append(first @ np.swapaxes(_triangle(np.swapaxes(second, 1, 2)), 1, 2))  # (Hq, D, d)
    found = np.zeros((layers, heads, layers, heads))
    for later in range(1, layers):
        right = np.concatenate(read[later], axis=1)  # (D, Hq * d)
        for early in range(later):
            product = write[early] @ right  # (Hq, d, Hq * d)
            squares = np.square(product).reshape(*product.shape[:2], heads, -1)
            lengths = np.multiply.outer(_lengths(write[early]), _lengths(read[later]))
            score = np.sqrt(squares.sum((1, 3)))
            found[early, :, later] = np.divide(
                score, lengths, out=np.zeros_like(score), where=lengths > 0
            )
    axes = "layer", "head", "reader_layer", "reader_head"
    return Result(found, axes, of="score", title=f"{kind.upper()}-composition")


def _triangle(tall: Array) -> Array:
    """What stays of thin matrices (H, D, d) without their orthogonal parts, (H, d, d).

    A product with it is as long as one with the whole.
    """
    return np.asarray(np.linalg.qr(tall, mode="r"))


def _lengths(matrices: Array) -> Array:
    """The root of the sum of squares of each, (H,)."""
    found: Array = np.linalg.norm(matrices, axis=(1, 2))
    return found


def copying_scores(model: Model) -> Result:
    """How far each head raises the logits of the tokens that it looks at: copying.

    A head that looks at a token alone adds a row of `W_E @ OV @ W_U` (V, V) to the logits, with
    `OV` as `model.head_weights(layer)` has it. Of the eigenvalues of that matrix the score is the
    sum over the sum of their sizes: 1 where all are positive, so that the head raises what it
    reads, -1 where all are negative, and about 0 where they point anywhere.

    The weights are raw: no norm is folded in, and what positions and MLPs add to embeddings is left
    out.

    Args:
        model: with a head over words that is a norm and a matrix.

    Returns:
        (layers, Hq), float64, between -1 and 1; NaN for a head that writes nothing to the logits.

    Raises:
        TypeError: `model` is none.
        ValueError: the model gives no logits over words, or its head is not linear (BERT's has a
            layer and an activation).

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Copying".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> found = copying_scores(model)
    >>> found.shape == (model.num_layers, model.num_heads), bool(abs(found).max() <= 1)
    (True, True)
    """
    model = check_words(model, "copying_scores")
    if not has_linear_head(model):
        raise ValueError(
            f"copying_scores: the output head of {model.name} has a layer before its last matrix, "
            "so what a head adds to logits is no product of matrices: take a decoder"
        )
    embed, out = model.parameters["embed.weight"], unembedding(model)  # (V, D), (D, V)
    there_and_back = out.astype(np.float64) @ embed.astype(np.float64)  # (D, D)
    found = np.empty((model.num_layers, model.num_heads))
    for layer in range(model.num_layers):
        ov = model.head_weights(layer).ov
        # those of (V, V) other than 0 are those of the small product (Hq, d, d)
        values = np.linalg.eigvals(ov.right.astype(np.float64) @ there_and_back @ ov.left)
        size = np.abs(values).sum(-1)
        found[layer] = np.divide(
            values.sum(-1).real, size, out=np.full_like(size, np.nan), where=size > 0
        )
    return Result(found, ("layer", "head"), of="score", title="Copying")
