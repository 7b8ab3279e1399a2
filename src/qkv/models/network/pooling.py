"""The pooling of a text's vectors, and the modules after it: linear layers, norms, scaling."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.layers import LayerNorm
from qkv.ops.activation import activate_in_numpy
from qkv.ops.linear import linear, multiply


def _mean_sqrt(rows: Array) -> Array:
    """Return the sum of rows, divided by the square root of the number of rows."""
    pooled: Array = rows.sum(0) / np.sqrt(rows.dtype.type(len(rows)))
    return pooled


def _weighted_mean(rows: Array, first: int) -> Array:
    """Return the mean of rows, weighted by their positions, which are counted from 1."""
    weights = np.arange(first + 1, first + len(rows) + 1, dtype=rows.dtype)
    pooled: Array = multiply(weights, rows) / weights.sum()
    return pooled


# Functions that pool a text's vectors. The second argument is the number of vectors of a prompt at
# the beginning of the text; pooling leaves these vectors out. If an old config enables several
# poolings, the pooled vectors are joined in the order of this table.
POOLING: Mapping[str, Callable[[Array, int], Array]] = {
    "cls": lambda rows, unread: rows[unread],
    "max": lambda rows, unread: rows[unread:].max(0),
    "mean": lambda rows, unread: rows[unread:].mean(0),
    "mean_sqrt_len_tokens": lambda rows, unread: _mean_sqrt(rows[unread:]),
    "weightedmean": lambda rows, unread: _weighted_mean(rows[unread:], unread),
    "lasttoken": lambda rows, unread: rows[-1],
}
# The poolings of a text without vectors after the prompt, as in sentence-transformers.
EMPTY: Mapping[str, Callable[[Array, int], Array]] = {
    **dict.fromkeys(POOLING, lambda rows, unread: np.zeros(rows.shape[1], rows.dtype)),
    "cls": lambda rows, unread: rows[0],
}

_SELU = 1.6732632423543772, 1.0507009873554805  # Alpha and scale of SELU (Klambauer et al. 2017).
EPS = 1e-5  # The default `eps` of LayerNorm in torch.


def _exponential(x: Array, alpha: float = 1.0) -> Array:
    """Return `x` where `x` is positive; elsewhere `alpha * (exp(x) - 1)`."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))).astype(x.dtype, copy=False)


def _softplus(x: Array) -> Array:
    """Return log(1 + exp(x))."""
    softplus: Array = np.logaddexp(x, x.dtype.type(0))
    return softplus


# Activations that `qkv.layers.MLP` does not have. Each function uses torch's default options. The
# keys are the names of torch's classes in lower case.
_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(-_softplus(-x)),
    "logsigmoid": lambda x: -_softplus(-x),
    "leakyrelu": lambda x: np.where(x > 0, x, x * x.dtype.type(0.01)),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * (np.clip(x + 3, 0, 6) / 6),
    "elu": _exponential,
    "celu": _exponential,
    "selu": lambda x: x.dtype.type(_SELU[1]) * _exponential(x, _SELU[0]),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "tanhshrink": lambda x: x - np.tanh(x),
}
ACTIVATIONS = (*_ACTIVATIONS, "relu", "gelu", "silu")


def activate(x: Array, activation: str) -> Array:
    """Apply one of `ACTIVATIONS`, in the dtype of `x`.

    >>> activate(np.array([-2.0, 0.5]), "leakyrelu").tolist()
    [-0.02, 0.5]
    """
    if activation in _ACTIVATIONS:
        with np.errstate(over="ignore"):
            return _ACTIVATIONS[activation](x).astype(x.dtype, copy=False)
    active = activate_in_numpy(x.astype(compute_type(x.dtype), copy=False), activation)
    return active.astype(x.dtype, copy=False)


@dataclass(frozen=True)
class Splade:
    """The pooling of a SPLADE model: one weight for each word of the vocabulary, mostly 0.

    Attributes:
        pool: "max" or "sum", over tokens.
        times: how many times the logarithm of 1 + x is applied.

    Source:
        Formal et al. 2021, "SPLADE v2", equations 1 and 6.

    >>> Splade("max", 1)(np.array([[-3.0, 0.0], [-1.0, np.e - 1]]))
    array([0., 1.])
    """

    pool: str
    times: int

    def __call__(self, logits: Array) -> Array:
        """Return the weights (V,) of a text, given the logits (T, V) of its tokens."""
        weights = np.maximum(logits, 0)
        for _ in range(self.times):
            weights = np.log1p(weights)
        pooled: Array = getattr(weights, self.pool)(0)
        return pooled


def to_length_one(vectors: Array) -> Array:
    """Scale vectors (n, width) to length 1; zero vectors do not change."""
    scaled: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


@dataclass(frozen=True)
class Extra:
    """The base class of modules after the pooling.

    A module of this class returns its input unchanged, like Dropout in inference.

    Attributes:
        home: the folder of the module's files, inside the model's folder.
    """

    home: str
    size_key: ClassVar[str] = ""  # the key of the input size in the module's file

    def __call__(self, x: Array) -> Array:
        """Apply the module to `x` (n, in), and return (n, out) in the dtype of `x`."""
        return x

    @property
    def sizes(self) -> tuple[int, int] | None:
        """The sizes of input and output; None if any size is allowed."""
        return None

    def arrays(self) -> dict[str, Array]:
        """Return the module's arrays, keyed by their names in the module's file."""
        return {}


class LengthOne(Extra):
    """A module that scales vectors to length 1."""

    def __call__(self, x: Array) -> Array:
        """Scale vectors to length 1."""
        return to_length_one(x)


@dataclass(frozen=True)
class Dense(Extra):
    """A linear layer over pooled vectors, and its activation.

    Attributes:
        weight: the weight, (in, out).
        bias: the bias, (out,), or None.
        activation: one of `ACTIVATIONS`, or None.
        residual: whether the input is added to the output.
        through: (in, out), the weight that projects the input before the addition; None if input
            and output have the same size.
    """

    weight: Array
    bias: Array | None
    activation: str | None
    residual: bool = False
    through: Array | None = None
    size_key = "in_features"

    def __call__(self, x: Array) -> Array:
        """Apply the module to `x` (n, in), and return (n, out) in the dtype of `x`."""
        y = linear(x, self.weight.astype(x.dtype, copy=False), self.bias)
        y = y if self.activation is None else activate(y, self.activation)
        if not self.residual:
            return y
        if self.through is not None:
            x = linear(x, self.through.astype(x.dtype, copy=False), None)
        return y + x

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes of input and output."""
        inputs, outputs = self.weight.shape
        return inputs, outputs

    def arrays(self) -> dict[str, Array]:
        """Return the module's arrays, keyed by their names in the module's file."""
        arrays = {"linear.weight": self.weight.T, "linear.bias": self.bias}
        arrays["residual.weight"] = None if self.through is None else self.through.T
        return {name: array for name, array in arrays.items() if array is not None}


@dataclass(frozen=True)
class Norm(Extra):
    """A LayerNorm over pooled vectors.

    Attributes:
        weight: (D,), the weight of the norm.
        bias: (D,), the bias of the norm.
    """

    weight: Array
    bias: Array
    size_key = "dimension"

    def __call__(self, x: Array) -> Array:
        """Normalise vectors, in the dtype of `x`."""
        parameters = {"weight": self.weight, "bias": self.bias}
        normed, _ = LayerNorm.from_parameters(parameters, eps=EPS).run(x)
        return normed.astype(x.dtype, copy=False)

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes of input and output."""
        return len(self.weight), len(self.weight)

    def arrays(self) -> dict[str, Array]:
        """Return the module's arrays, keyed by their names in the module's file."""
        return {"norm.weight": self.weight, "norm.bias": self.bias}
