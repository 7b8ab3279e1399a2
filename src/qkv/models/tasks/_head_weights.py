"""The weight matrices of each head of a layer, and their products."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike, compute_type, index_per_axis, is_whole_number, quote
from qkv.models._model_base import ModelBase
from qkv.trace.names import no_layer


@dataclass(frozen=True, eq=False)
class Factored:
    """Matrices (..., A, B), usually one for each head, stored as products of smaller matrices.

    A `Factored` can be multiplied with `@`, transposed with `.T` and indexed like the array of the
    products; these operations do not compute that array.

    Attributes:
        left: (..., A, d).
        right: (..., d, B).

    >>> one = Factored(np.array([[[1.0], [2.0]]]), np.array([[[3.0, 4.0]]]))
    >>> one.full().tolist(), one.eigenvalues.tolist()
    ([[[3.0, 4.0], [6.0, 8.0]]], [[(11+0j)]])
    >>> one.shape, float(one[0, 1, 0]), (one @ one.T)[0].full().tolist()
    ((1, 2, 2), 6.0, [[25.0, 50.0], [50.0, 100.0]])
    """

    left: Array
    right: Array
    __array_ufunc__ = None  # lets `array @ factored` call `__rmatmul__`

    def __post_init__(self) -> None:
        shapes = np.shape(self.left), np.shape(self.right)
        if min(map(len, shapes)) < 2 or shapes[0][-1] != shapes[1][-2]:
            raise ValueError(
                f"Factored: `left` {shapes[0]} and `right` {shapes[1]} cannot be multiplied; "
                "pass (..., A, d) and (..., d, B)"
            )

    def __repr__(self) -> str:
        return f"Factored({self.left.shape} @ {self.right.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `full()`."""
        heads = np.broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return (*heads, self.left.shape[-2], self.right.shape[-1])

    @property
    def T(self) -> "Factored":
        """The transposed matrices, (..., B, A)."""
        return Factored(np.swapaxes(self.right, -1, -2), np.swapaxes(self.left, -1, -2))

    def __matmul__(self, other: "ArrayLike | Factored") -> "Array | Factored":
        """Multiply by matrices (..., B, C), or by a vector (B,); a vector gives an array."""
        if isinstance(other, Factored):
            middle = self.right @ other.left
            if middle.shape[-1] < middle.shape[-2]:
                return Factored(self.left @ middle, other.right)
            return Factored(self.left, middle @ other.right)
        array = np.asarray(other)
        if array.ndim == 1:
            return np.asarray(self.left @ (self.right @ array)[..., None])[..., 0]
        return Factored(self.left, self.right @ array)

    def __rmatmul__(self, other: ArrayLike) -> "Array | Factored":
        """Multiply matrices (..., C, A), or a vector (A,), by `self`; a vector gives an array."""
        array = np.asarray(other)
        product = array @ self.left
        if array.ndim == 1:
            return np.asarray(product[..., None, :] @ self.right)[..., 0, :]
        return Factored(product, self.right)

    def __getitem__(self, key: Any) -> "Array | Factored":
        """Index like the array of the products; a whole number for a row or column gives an array.

        >>> Factored(np.ones((2, 5, 3)), np.ones((2, 3, 7)))[0, :2].shape
        (2, 7)
        """
        size = len(self.shape)
        keys = index_per_axis(key, size)
        if len(keys) > size:
            raise IndexError(
                f"Factored: {len(keys)} indices are given for an array of shape {self.shape}; "
                f"pass at most {size}"
            )
        heads, ends = keys[:-2], keys[-2:]
        lengths = [is_whole_number(one) for one in ends]
        row, column = ([one] if whole else one for one, whole in zip(ends, lengths, strict=True))
        shape = self.shape[:-2]
        left = np.broadcast_to(self.left, (*shape, *self.left.shape[-2:]))[heads][..., row, :]
        right = np.broadcast_to(self.right, (*shape, *self.right.shape[-2:]))[heads][..., column]
        chosen = Factored(left, right)
        if not any(lengths):
            return chosen
        return chosen.full()[(..., *(0 if whole else slice(None) for whole in lengths))]

    def full(self) -> Array:
        """Return `left @ right`, (..., A, B)."""
        product: Array = self.left @ self.right
        return product

    def norm(self) -> Array:
        """Return the Frobenius norm of each matrix, (...,), float64."""
        left, right = self._exact()
        squares = (np.swapaxes(left, -1, -2) @ left) * (right @ np.swapaxes(right, -1, -2))
        total: Array = np.maximum(squares.sum((-2, -1)), 0.0)
        return np.sqrt(total)

    def svd(self) -> tuple[Array, Array, Array]:
        """Return the singular value decomposition `(U, S, Vh)` of each matrix, in float64.

        Returns:
            `U` (..., A, n), `S` (..., n) with the largest value first, and `Vh` (..., n, B), where
            n is min(A, d, B). The other singular values are 0. For each i, the matrix maps between
            the direction in column i of `U` and the direction in row i of `Vh`, with the factor
            `S[i]`.

        >>> one = Factored(np.array([[3.0], [4.0]]), np.array([[0.0, 2.0]]))
        >>> one.svd()[1].round(9).tolist(), round(float(one.norm()), 9)
        ([10.0], 10.0)
        """
        left, right = self._exact()
        Q_left, R_left = np.linalg.qr(left)
        Q_right, R_right = np.linalg.qr(np.swapaxes(right, -1, -2))
        small = R_left @ np.swapaxes(R_right, -1, -2)
        U, S, Vh = np.linalg.svd(small, full_matrices=False)
        return Q_left @ U, S, Vh @ np.swapaxes(Q_right, -1, -2)

    @property
    def eigenvalues(self) -> Array:
        """The eigenvalues of `full()` that may be nonzero, (..., d), complex128, largest first.

        The eigenvalues are computed in float64, from the small product `right @ left` (d, d).
        """
        if self.shape[-1] != self.shape[-2]:
            raise ValueError(
                f"eigenvalues: the matrices are {self.shape[-2:]}, not square; call svd()"
            )
        left, right = self._exact()
        values = np.linalg.eigvals(right @ left).astype(np.complex128)
        return np.take_along_axis(values, np.argsort(-np.abs(values), axis=-1, kind="stable"), -1)

    def _exact(self) -> tuple[Array, Array]:
        return self.left.astype(np.float64), self.right.astype(np.float64)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weights of each head of a layer, and the model's tables, named as in TransformerLens.

    No norm is folded into a matrix, no mean is subtracted from a matrix, and rotary positions are
    ignored. If query heads share a key/value head, its weights are repeated for each query head. A
    missing bias is 0.

    Attributes:
        W_Q: (Hq, D, d), turns vectors into queries.
        W_K: (Hq, D, d), turns vectors into keys.
        W_V: (Hq, D, dv), turns vectors into values.
        W_O: (Hq, dv, D), turns weighted values into the head's output.
        b_Q: (Hq, d), the bias of the queries.
        b_K: (Hq, d), the bias of the keys.
        b_V: (Hq, dv), the bias of the values.
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
        """The matrix that turns vectors into logits, (D, V); None for a model without logits.

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
        `.W_U` (D, V) and `.b_U` (V,) compute logits; they are None if the model does not predict
        words. `.W_pos` is None if the model has no table of positions. The type is float32, or
        float64 for a float64 model.

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
        raise type_error(f"layer is {quote(layer)}; pass a whole number")
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
