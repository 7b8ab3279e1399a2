"""From the vectors of a text's tokens to one vector: pooling, and the linear layers behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.ops.activation import activate_in_numpy
from qkv.ops.linear import linear, multiply


def _mean_sqrt(rows: Array) -> Array:
    """The sum, divided by the root of how many there are."""
    pooled: Array = rows.sum(0) / np.sqrt(rows.dtype.type(len(rows)))
    return pooled


def _weighted_mean(rows: Array, first: int) -> Array:
    """The mean, weighted by the place of a token in its text: 1 for the first one, then 2."""
    weights = np.arange(first + 1, first + len(rows) + 1, dtype=rows.dtype)
    pooled: Array = multiply(weights, rows) / weights.sum()
    return pooled


# They are given a text's vectors, and how many at its beginning belong to a prompt and are not to
# be read. In the order in which sentence-transformers joins them, where there are several.
POOLING: Mapping[str, Callable[[Array, int], Array]] = {
    "cls": lambda rows, unread: rows[0],
    "max": lambda rows, unread: rows[unread:].max(0),
    "mean": lambda rows, unread: rows[unread:].mean(0),
    "mean_sqrt_len_tokens": lambda rows, unread: _mean_sqrt(rows[unread:]),
    "weightedmean": lambda rows, unread: _weighted_mean(rows[unread:], unread),
    "lasttoken": lambda rows, unread: rows[-1],
}


def activated(x: Array, activation: str) -> Array:
    """What "tanh", "sigmoid" or an activation that `MLP` knows gives, in the type of `x`."""
    if activation == "tanh":
        return np.tanh(x)
    if activation == "sigmoid":
        return 1 / (1 + np.exp(-x))
    active = activate_in_numpy(x.astype(compute_type(x.dtype), copy=False), activation)
    return active.astype(x.dtype, copy=False)


@dataclass(frozen=True)
class Dense:
    """A linear layer over pooled vectors, and its activation.

    Attributes:
        home: the folder of its files inside the model's folder.
        weight: (in, out).
        bias: (out,), where there is one.
        activation: "tanh", "sigmoid" or what `MLP` knows; None for none.
    """

    home: str
    weight: Array
    bias: Array | None
    activation: str | None

    def __call__(self, x: Array) -> Array:
        """From (n, in) to (n, out), in the type of `x`."""
        y = linear(x, self.weight.astype(x.dtype, copy=False), self.bias)
        return y if self.activation is None else activated(y, self.activation)

    def to_file(self) -> bytes:
        """Its numbers as safetensors."""
        from safetensors.numpy import save

        arrays = {"linear.weight": np.ascontiguousarray(self.weight.T)}
        if self.bias is not None:
            arrays["linear.bias"] = self.bias
        return save(arrays)
