"""How much each head reads of what earlier heads write, by their weights alone."""

from __future__ import annotations

from typing import Literal

import numpy as np

from qkv.arrays import Array, shown
from qkv.circuits.checks import check_model
from qkv.circuits.results import Result
from qkv.models.model import Model

_CALL = "composition"
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
    model = check_model(model, _CALL)
    if kind not in _KINDS:
        raise ValueError(f"{_CALL}: kind is {shown(kind)}: choose among q, k and v")
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
