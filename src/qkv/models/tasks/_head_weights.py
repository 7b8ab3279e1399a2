"""The weight matrices of each head of a layer, and their products."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, compute_type, is_whole_number, quote
from qkv.models._model_base import ModelBase
from qkv.trace.names import no_layer


@dataclass(frozen=True, eq=False)
class Factored:
    """A (D, D) matrix for each head, stored as the product of two smaller matrices.

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
        """Return `left @ right`, (Hq, D, D)."""
        product: Array = self.left @ self.right
        return product

    @property
    def eigenvalues(self) -> Array:
        """The eigenvalues of `full()` that may be nonzero, (Hq, d), complex128, the largest first.

        The eigenvalues are computed in float64, from the small product `right @ left` (d, d).
        """
        small = self.right.astype(np.float64) @ self.left.astype(np.float64)
        values = np.linalg.eigvals(small).astype(np.complex128)
        return np.take_along_axis(values, np.argsort(-np.abs(values), axis=-1, kind="stable"), -1)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weights of each head of a layer, and the model's tables, named as in TransformerLens.

    No norm is folded into a matrix, no mean is subtracted from a matrix, and rotary positions are
    ignored. If query heads share a key/value head, its weights are repeated for each query head. A
    missing bias is 0.

    Attributes:
        W_Q: (Hq, D, d), turns vectors into queries.
        W_K: (Hq, D, d).
        W_V: (Hq, D, dv).
        W_O: (Hq, dv, D), turns weighted values into the head's output.
        b_Q: (Hq, d).
        b_K: (Hq, d).
        b_V: (Hq, dv).
        b_O: (D,), added once to the sum of all heads' outputs.
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
        """The token table, (V, D), without Gemma's scaling of the rows."""
        table = self._end("embed")
        assert table is not None
        return table

    @property
    def W_pos(self) -> Array | None:
        """The table of positions, (rows, D); None for models without this table (rotary, ALiBi)."""
        return self._end("positions")

    @property
    def W_U(self) -> Array | None:
        """The matrix that turns vectors into logits, (D, V); None if the model predicts no words.

        A masked-LM head has further layers; `model.unembed` applies all of them.
        """
        return self._end("unembed")

    @property
    def b_U(self) -> Array | None:
        """The bias of the logits, (V,); None if `W_U` is None."""
        unembed, bias = self._ends["unembed"], self._end("bias")
        if unembed is None or bias is not None:
            return bias
        return np.zeros(unembed.shape[1], compute_type(unembed.dtype))

    def _end(self, name: str) -> Array | None:
        """Return a table, converted to the type of the computation."""
        table = self._ends[name]
        return None if table is None else _cast(table)

    def __repr__(self) -> str:
        heads, dim, size = self.W_Q.shape
        return f"HeadWeights({heads} heads of {size}, vectors of {dim})"

    @property
    def qk(self) -> Factored:
        """`W_Q @ W_K.T`: `x @ full() @ y` is the unscaled score of query `x` and key `y`."""
        return Factored(self.W_Q, np.swapaxes(self.W_K, -1, -2))

    @property
    def ov(self) -> Factored:
        """`W_V @ W_O`: `x @ full()` is the head's output if all its attention is on `x`."""
        return Factored(self.W_V, self.W_O)


@public_call("head_weights")
def head_weights(model: ModelBase, layer: int) -> HeadWeights:
    """Return the raw weights of each head of a layer, without norms and rotary positions.

    Args:
        layer: the number of the layer; -1 is the last layer. In an encoder-decoder model,
            `layer` counts the layers of the encoder.

    Returns:
        The matrices are `.W_Q`, `.W_K`, `.W_V` (Hq, D, d) and `.W_O` (Hq, d, D).
        If query heads share a key/value head, its weights are repeated for each query head.
        The biases are `.b_Q`, `.b_K`, `.b_V` (Hq, d) and `.b_O` (D,); missing biases are 0.
        The products `.qk` and `.ov` have the factors `.left` (Hq, D, d) and `.right` (Hq, d, D).
        For a product, `.full()` returns the (Hq, D, D) matrices; `.eigenvalues` are (Hq, d).
        The remaining D - d eigenvalues of each (D, D) matrix are 0, and are not in `.eigenvalues`.
        The model's tables are the same in every layer: `.W_E` (V, D) and `.W_pos` (rows, D).
        `.W_U` (D, V) and `.b_U` (V,) compute logits; they are None if the model predicts no words.
        `.W_pos` is None if the model has no table of positions.
        The type is float32, or float64 for a float64 model.

    Raises:
        TypeError: `layer` is not an integer.
        ValueError: the layer does not exist.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".

    >>> import qkv
    >>> heads = qkv.load("random").head_weights(0)
    >>> heads.W_Q.shape, heads.ov.full().shape, heads.qk.eigenvalues.shape
    ((2, 8, 4), (2, 8, 8), (2, 4))
    """
    count = model.num_layers
    if not is_whole_number(layer):
        raise type_error(f"layer is {quote(layer)}: give a whole number")
    if not -count <= layer < count:
        raise value_error(no_layer(layer, count))
    network = model.network
    attn, head = network.layers[layer].attn, network.head
    parameters: Mapping[str, Any] = head.parameters if head is not None and head.predicts else {}
    ends = {
        "embed": network.embedding.table,
        "positions": network.embedding.positions,
        "unembed": parameters.get("head.out_proj.weight"),
        "bias": parameters.get("head.out_proj.bias"),
    }

    def split_heads(name: str, heads: int) -> tuple[Array, Array]:
        """Return a projection (D, heads * size) and its bias as (Hq, D, size) and (Hq, size)."""
        weight = _cast(attn.parameters[f"{name}.weight"])
        stored = attn.parameters.get(f"{name}.bias")
        bias = np.zeros(weight.shape[1], weight.dtype) if stored is None else _cast(stored)
        parts = weight.reshape(len(weight), heads, -1).swapaxes(0, 1), bias.reshape(heads, -1)
        repeats = attn.num_heads // heads
        return np.repeat(parts[0], repeats, 0), np.repeat(parts[1], repeats, 0)

    W_Q, b_Q = split_heads("q_proj", attn.num_heads)
    W_K, b_K = split_heads("k_proj", attn.num_kv_heads)
    W_V, b_V = split_heads("v_proj", attn.num_kv_heads)
    out = _cast(attn.parameters["out_proj.weight"])  # (Hq * dv, D)
    stored = attn.parameters.get("out_proj.bias")
    b_O = np.zeros(out.shape[1], out.dtype) if stored is None else _cast(stored)
    W_O = out.reshape(attn.num_heads, -1, out.shape[-1])
    return HeadWeights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, ends)


def _cast(array: Array) -> Array:
    return array.astype(compute_type(array.dtype), copy=False)
