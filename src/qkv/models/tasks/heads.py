"""The weights of a layer's heads, one by one, and the products that they only act through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.layers import MultiHeadAttention


@dataclass(frozen=True, eq=False)
class Factored:
    """A matrix (D, D) of each head as the product of two thin ones.

    Attributes:
        left: (Hq, D, d).
        right: (Hq, d, D).

    >>> one = Factored(np.array([[[1.0], [2.0]]]), np.array([[[3.0, 4.0]]]))
    >>> one.full().tolist(), one.eigenvalues.tolist()
    ([[[3.0, 4.0], [6.0, 8.0]]], [[(11+0j)]])
    """

    left: Array
    right: Array

    def __repr__(self) -> str:
        heads, dim, size = self.left.shape
        return f"Factored({heads} heads, {dim} x {size} times {size} x {dim})"

    def full(self) -> Array:
        """`left @ right`, (Hq, D, D)."""
        found: Array = self.left @ self.right
        return found

    @property
    def eigenvalues(self) -> Array:
        """Those of `full()` that may be other than 0, (Hq, d), complex128, the largest first.

        They are those of the small product `right @ left` (d, d), computed in float64.
        """
        small = self.right.astype(np.float64) @ self.left.astype(np.float64)
        found = np.linalg.eigvals(small).astype(np.complex128)
        return np.take_along_axis(found, np.argsort(-np.abs(found), axis=-1, kind="stable"), -1)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """What each head of a layer multiplies by, as TransformerLens names it.

    The numbers are the model's own: no norm is folded in, biases stand apart
    (`model.parameters["blocks.3.attn.q_proj.bias"]`), and rotary positions, which come between
    queries and keys, are left out. Key heads that several query heads share are repeated.

    Attributes:
        W_Q: (Hq, D, d), from vectors to queries.
        W_K: (Hq, D, d).
        W_V: (Hq, D, dv).
        W_O: (Hq, dv, D), from weighted values to what the head adds.
    """

    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array

    def __repr__(self) -> str:
        heads, dim, size = self.W_Q.shape
        return f"HeadWeights({heads} heads of {size}, vectors of {dim})"

    @property
    def qk(self) -> Factored:
        """`W_Q @ W_K.T`: `x @ full() @ y` is the score of `x` for `y`, but for the scale."""
        return Factored(self.W_Q, np.swapaxes(self.W_K, -1, -2))

    @property
    def ov(self) -> Factored:
        """`W_V @ W_O`: `x @ full()` is what the head adds where it looks at `x` alone."""
        return Factored(self.W_V, self.W_O)


def head_weights(attn: MultiHeadAttention) -> HeadWeights:
    """The weights of an attention layer with an output projection, head by head."""

    def each(name: str, heads: int) -> Array:
        """A projection (D, heads * size) as (Hq, D, size)."""
        weight = attn.parameters[f"{name}.weight"]
        weight = weight.astype(compute_type(weight.dtype), copy=False)
        found = np.swapaxes(weight.reshape(len(weight), heads, -1), 0, 1)
        return found if heads == attn.num_heads else np.repeat(found, attn.num_heads // heads, 0)

    out = attn.parameters["out_proj.weight"]  # (Hq * dv, D)
    out = out.astype(compute_type(out.dtype), copy=False)
    return HeadWeights(
        each("q_proj", attn.num_heads),
        each("k_proj", attn.num_kv_heads),
        each("v_proj", attn.num_kv_heads),
        out.reshape(attn.num_heads, -1, out.shape[-1]),
    )
