"""Scores between tokens and relative positions, as in DeBERTa: forward and backward."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.attend import join_heads, split_heads
from qkv.ops.linear import project_back, project_wide


class Relative(NamedTuple):
    """The relative positions of the tokens of a text, for one call of an attention layer.

    Attributes:
        rows: (n, D), the vectors of relative positions.
        at: (T, T), the index in `rows` for each pair of query and key.
        projections: maps "q" or "k" to the layer's projection of `rows` that is multiplied by the
            queries or the keys, such as {"q": "pos_k_proj"}.
        scale: the factor by which the scores are multiplied.

    Source:
        He et al. 2021, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", section 3.1.
    """

    rows: Array
    at: Array
    projections: Mapping[str, str]
    scale: float

    def bias(self, parameters: Arrays, heads: Mapping[str, Array]) -> Array:
        """Return the bias (B, H, T, T) of the scores.

        Args:
            parameters: the parameters of the layer.
            heads: "q" and "k", the queries and keys (B, H, T, d).
        """
        total: Array = np.zeros((), heads["q"].dtype)
        for name, projection in self.projections.items():
            table = self._table(parameters, projection, heads[name])
            scores = heads[name] @ np.swapaxes(table, -2, -1)  # (B, H, T, n)
            at = np.broadcast_to(self._at(name), (*scores.shape[:-1], len(self.at)))
            chosen = np.take_along_axis(scores, at, -1)
            total = total + (chosen if name == "q" else np.swapaxes(chosen, -2, -1))
        total *= total.dtype.type(self.scale)
        return total

    def backward(
        self, grad: Array, parameters: Arrays, heads: Mapping[str, Array]
    ) -> tuple[dict[str, Array], Array, dict[str, Array]]:
        """Turn the gradient for the bias into the gradients for `heads`, `rows` and parameters."""
        grad = grad * grad.dtype.type(self.scale)
        grad_rows, of_heads = np.zeros_like(self.rows), dict[str, Array]()
        gradients: dict[str, Array] = {}
        for name, projection in self.projections.items():
            part = heads[name]
            table = self._table(parameters, projection, part)
            by_token = grad if name == "q" else np.swapaxes(grad, -2, -1)
            rows = np.arange(len(self.rows))
            scores = np.stack(
                [
                    by_token[..., token, :] @ (at[:, None] == rows).astype(part.dtype)
                    for token, at in enumerate(self._at(name))
                ],
                axis=-2,
            )  # (B, H, T, n)
            of_heads[name] = scores @ table
            of_table = (np.swapaxes(scores, -2, -1) @ part).sum(0)  # (H, n, d)
            of_table = join_heads(of_table)
            grad_rows += project_back(self.rows, parameters, projection, of_table, gradients)
        return of_heads, grad_rows, gradients

    def _table(self, parameters: Arrays, projection: str, heads: Array) -> Array:
        """Return the projected rows (H, n, d)."""
        return split_heads(project_wide(self.rows, parameters, projection), heads.shape[-3])

    def _at(self, name: str) -> Array:
        """Return the row for each query and key (T, T); axis 0 counts the queries or the keys."""
        return self.at if name == "q" else self.at.T
