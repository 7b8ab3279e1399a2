"""The weights of a layer's heads, one by one, and the products that they only act through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """The weights of each head of a layer, and those at both ends, as TransformerLens names them.

    The numbers are the model's own: no norm is folded in, no mean is taken out, and rotary
    positions, which come between queries and keys, are left out. Key heads that several query heads
    share are repeated. A bias that the model does not have is 0.

    Attributes:
        W_Q: (Hq, D, d), from vectors to queries.
        W_K: (Hq, D, d).
        W_V: (Hq, D, dv).
        W_O: (Hq, dv, D), from weighted values to what the head adds.
        b_Q: (Hq, d).
        b_K: (Hq, d).
        b_V: (Hq, dv).
        b_O: (D,), which the layer adds once, not each head.
    """

    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array
    b_Q: Array
    b_K: Array
    b_V: Array
    b_O: Array
    _ends: Mapping[str, Array | None] = field(repr=False)

    @property
    def W_E(self) -> Array:
        """The token table, (V, D), without the scale that Gemma multiplies its rows by."""
        found = self._end("embed")
        assert found is not None
        return found

    @property
    def W_pos(self) -> Array | None:
        """The table of positions, (rows, D); None for a model without one (rotary, ALiBi)."""
        return self._end("positions")

    @property
    def W_U(self) -> Array | None:
        """From vectors to logits over words, (D, V); None for a model that gives none.

        A masked-LM head has more than this matrix: `model.unembed` is all of it.
        """
        return self._end("unembed")

    @property
    def b_U(self) -> Array | None:
        """The bias of the logits, (V,); None where `W_U` is."""
        unembed, bias = self._ends["unembed"], self._end("bias")
        if unembed is None or bias is not None:
            return bias
        return np.zeros(unembed.shape[1], compute_type(unembed.dtype))

    def _end(self, name: str) -> Array | None:
        """A table in the type that is computed with, converted when it is asked for."""
        found = self._ends[name]
        return found if found is None else found.astype(compute_type(found.dtype), copy=False)

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


def head_weights(attn: MultiHeadAttention, ends: Mapping[str, Array | None]) -> HeadWeights:
    """The weights of an attention layer with an output projection, head by head.

    `ends` are the tables "embed", "positions", "unembed" and its "bias", None for what is not
    there.
    """

    def computed(array: Array) -> Array:
        return array.astype(compute_type(array.dtype), copy=False)

    def each(name: str, heads: int) -> tuple[Array, Array]:
        """A projection (D, heads * size) and its bias as (Hq, D, size) and (Hq, size)."""
        weight = computed(attn.parameters[f"{name}.weight"])
        given = attn.parameters.get(f"{name}.bias")
        bias = np.zeros(weight.shape[1], weight.dtype) if given is None else computed(given)
        parts = weight.reshape(len(weight), heads, -1).swapaxes(0, 1), bias.reshape(heads, -1)
        if heads == attn.num_heads:
            return parts
        return np.repeat(parts[0], groups, 0), np.repeat(parts[1], groups, 0)

    groups = attn.num_heads // attn.num_kv_heads
    W_Q, b_Q = each("q_proj", attn.num_heads)
    W_K, b_K = each("k_proj", attn.num_kv_heads)
    W_V, b_V = each("v_proj", attn.num_kv_heads)
    out = computed(attn.parameters["out_proj.weight"])  # (Hq * dv, D)
    given = attn.parameters.get("out_proj.bias")
    b_O = np.zeros(out.shape[1], out.dtype) if given is None else computed(given)
    W_O = out.reshape(attn.num_heads, -1, out.shape[-1])
    return HeadWeights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, ends)
