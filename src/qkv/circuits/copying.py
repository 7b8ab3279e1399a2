"""Whether heads raise the logits of the tokens that they look at, by their weights alone."""

from __future__ import annotations

import numpy as np

from qkv.circuits.checks import check_words
from qkv.circuits.lens import has_linear_head, unembedding
from qkv.circuits.results import Result
from qkv.models.model import Model

_CALL = "copying_scores"


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
    model = check_words(model, _CALL)
    if not has_linear_head(model):
        raise ValueError(
            f"{_CALL}: the head of {model.name} has a layer of its own before the last matrix, so "
            "what a head adds to logits is no product of matrices: take a decoder"
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
