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
    rows: Array  # (T, K), the row of each of these tokens.
    seen: Array  # (T, K), whether this token exists; otherwise its vector is 0.


class Convolution(base.Layer):
    """A layer that computes each token's vector from the K tokens around it, then an activation.

    Args:
        parameters: "weight" (D, D / groups, K) and "bias" (D,), as in torch; K is odd.
        activation: "tanh", or an activation of `MLP`.
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

        Args:
            x: (..., T, D), or packed rows (total, D) with `cu`.
            cu: (B + 1,), the index of each packed text's first row, then the number of rows.
            real: (total,), False for masked tokens, which other tokens do not read.
            residual: added to the result.
            record: unused; a convolution records nothing.
            save: whether to return the values for `backward`.
        """
        x, dtype = base.promote(x, self.parameters)
        length = x.shape[-2]
        index = np.arange(length)[:, None] + np.arange(self._size) - self._size // 2
        seen = (index >= 0) & (index < length)
        index = index.clip(0, max(length - 1, 0))
        if cu is not None:
            text = np.repeat(np.arange(len(cu) - 1), np.diff(cu))
            seen &= text[index] == text[:, None]
        if real is not None:
            seen &= real[index]
        near = np.where(seen[..., None], x[..., index, :], x.dtype.type(0))
        parts = [linear(part, weight, wide=True) for part, weight in self._groups(near)]
        pre = np.concatenate(parts, axis=-1) + self.parameters["bias"]
        out = np.tanh(pre) if self.activation == "tanh" else activate(pre, self.activation)
        out = out if residual is None else out + residual
        saved = ConvolutionSaved(pre, near, index, seen) if save else None
        return out if is_wide(residual) else out.astype(dtype, copy=False), saved

    def _groups(self, near: Array) -> list[tuple[Array, Array]]:
        """Return the inputs (..., T, K * d) and the weight (K * d, out) of each group."""
        weight, count = self.parameters["weight"], self.dim // self._depth
        inputs = np.split(near, count, axis=-1)
        weights = np.split(weight.transpose(2, 1, 0), count, axis=-1)
        wide = self._size * self._depth
        return [
            (part.reshape(*part.shape[:-2], wide), one.reshape(wide, -1))
            for part, one in zip(inputs, weights, strict=True)
        ]

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
        backs = [linear_grad(part, one, share, bias=False) for (part, one), share in pairs]
        shape = (*near.shape[:-1], self._depth)
        grad_near = np.concatenate([back[0].reshape(shape) for back in backs], axis=-1)
        shape = (self._size, self._depth, -1)
        weight = np.concatenate([back[1].reshape(shape) for back in backs], axis=-1)
        x = np.zeros_like(pre)
        for number in range(self._size):
            these = seen[:, number]
            x[..., rows[these, number], :] += grad_near[..., these, number, :]
        bias = change.reshape(-1, self.dim).sum(0)
        return base.Gradient(x, {"weight": weight.transpose(2, 1, 0), "bias": bias})
