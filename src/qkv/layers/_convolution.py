"""A convolution over the tokens of a text, as in DeBERTa v2."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array, ArrayLike
from qkv.layers import base
from qkv.ops.activation import activate, activation_grad
from qkv.ops.linear import is_wide, linear, linear_grad
from qkv.trace import Recorder


class ConvolutionSaved(NamedTuple):
    """Values that the forward pass of a convolution saves for its backward pass."""

    pre: Array  # (..., T, D), the input of the activation.
    near: Array  # (..., T, K, D), the vectors of the K tokens around each token.
    rows: Array  # (T, K), the rows of the K tokens around each token.
    seen: Array  # (T, K), whether each of the K tokens exists; if not, its vector is 0.


class Convolution(base.Layer):
    """A layer that applies an activation to a weighted sum of the K tokens around each token.

    Args:
        parameters: "weight" (D, D / groups, K) and "bias" (D,), as in torch; K is odd.
        activation: "tanh", or an activation that `MLP` accepts.
    """

    def __init__(self, parameters: Mapping[str, ArrayLike], activation: str) -> None:
        self.parameters, self.activation = base.check_parameters(parameters), activation
        self.dim, self._depth, self._size = self.parameters["weight"].shape

    def run(
        self,
        x: Array,
        *,
        cu: Array | None = None,
        real: Array | None = None,
        residual: Array | None = None,
        record: Recorder | None = None,
        save: bool = False,
    ) -> tuple[Array, ConvolutionSaved | None]:
        """Run the forward pass without checks; if `save`, also return the values for `backward`.

        `x` is (..., T, D), or rows (total, D) of texts that begin at `cu`. `real` (total,) is False
        for tokens that other tokens do not read. `record` is unused.
        """
        x, dtype = base.promote(x, self.parameters)
        length = x.shape[-2]
        rows = np.arange(length)[:, None] + np.arange(self._size) - self._size // 2
        seen = (rows >= 0) & (rows < length)
        rows = rows.clip(0, max(length - 1, 0))
        if cu is not None:
            text = np.repeat(np.arange(len(cu) - 1), np.diff(cu))
            seen &= text[rows] == text[:, None]
        if real is not None:
            seen &= real[rows]
        near = np.where(seen[..., None], x[..., rows, :], x.dtype.type(0))
        parts = [linear(part, weight, wide=True) for part, weight in self._groups(near)]
        pre = np.concatenate(parts, axis=-1) + self.parameters["bias"]
        out = np.tanh(pre) if self.activation == "tanh" else activate(pre, self.activation)
        out = out if residual is None else out + residual
        saved = ConvolutionSaved(pre, near, rows, seen) if save else None
        return out if is_wide(residual) else out.astype(dtype, copy=False), saved

    def _groups(self, near: Array) -> list[tuple[Array, Array]]:
        """Return the inputs (..., T, K * d) and the weight (K * d, out) of each group."""
        count, wide = self.dim // self._depth, self._size * self._depth
        weights = np.split(self.parameters["weight"].transpose(2, 1, 0), count, axis=-1)
        pairs = zip(np.split(near, count, axis=-1), weights, strict=True)
        return [(x.reshape(*x.shape[:-2], wide), one.reshape(wide, -1)) for x, one in pairs]

    @base.public
    def backward(
        self, grad: ArrayLike, saved: ConvolutionSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * convolution(x))`; `record` is unused."""
        pre, near, rows, seen = saved
        change = base.upstream(grad, pre.shape, pre.dtype)
        if self.activation == "tanh":
            change = change * (1 - np.square(np.tanh(pre)))
        else:
            change = activation_grad(pre, change, self.activation)
        groups = self._groups(near)
        pairs = zip(groups, np.split(change, len(groups), axis=-1), strict=True)
        backs = [linear_grad(*group, share, bias=False)[:2] for group, share in pairs]
        shapes = (*near.shape[:-1], self._depth), (self._size, self._depth, -1)
        of_near, weight = (
            np.concatenate([array.reshape(shape) for array in arrays], axis=-1)
            for arrays, shape in zip(zip(*backs, strict=True), shapes, strict=True)
        )
        x = np.zeros_like(pre)
        for number, these in enumerate(seen.T):
            x[..., rows[these, number], :] += of_near[..., these, number, :]
        bias = change.reshape(-1, self.dim).sum(0)
        return base.Gradient(x, {"weight": weight.transpose(2, 1, 0), "bias": bias})
