"""The activations between linear layers, in NumPy; native/activation.h has those of the kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qkv.arrays import Array


def activate(x: Array, name: str) -> Array:
    """Apply the activation `name` to each number of `x`, float32 or float64.

    `gelu` is `x / 2 * (1 + erf(x / sqrt(2)))` and `gelu_tanh` its approximation (Hendrycks and
    Gimpel 2016), `silu` is `x * sigmoid(x)`, `relu` is `max(x, 0)`. `gelu_bloom` is `gelu_tanh`
    with `sqrt(2 / pi)` rounded to eight digits, which shows in float64 alone.

    >>> activate(np.array([-1.0, 0.0, 2.0]), "relu")
    array([0., 0., 2.])
    """
    check_activation(name, call="activate")
    function = ACTIVATIONS[name]
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, flat.size, _CHUNK):
            out[start : start + _CHUNK] = function(flat[start : start + _CHUNK])
    return out.reshape(x.shape)


def check_activation(name: str, *, call: str) -> None:
    """An error that lists the names there are unless `name` is one of them."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{call}: there is no activation {name!r}: choose {', '.join(ACTIVATIONS)}"
        )


_CHUNK = 1 << 14  # numbers at a time, so that what lies between two steps stays in the cache


def _gelu(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + erf(x * math.sqrt(0.5)))
    return y


def _gelu_tanh(x: Array, factor: float = math.sqrt(2 / math.pi)) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(factor * (x + 0.044715 * x * x * x)))
    return y


def _gelu_bloom(x: Array) -> Array:
    return _gelu_tanh(x, 0.79788456)


def _silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-x))
    return y


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "relu": _relu,
    "gelu_bloom": _gelu_bloom,
}

# erf(x) = tanh(x * P(x * x)) for |x| <= 4.2, where float32 has reached 1, highest power first:
# fitted by weighted least squares to atanh(erf(x)) / x on Chebyshev points, within 9.1e-8 of erf.
_ERF = (
    1.5361411e-10, -7.4093776e-09, 1.3827980e-07, -1.1327262e-06, 5.6051601e-07,
    7.1455099e-05, -5.9857761e-04, -2.0412552e-04, 1.0277134e-01, 1.1283792e00,
)  # fmt: skip


def erf(x: Array) -> Array:
    """The error function of float32 or float64 in one piece."""
    if x.dtype == np.float64:
        return np.fromiter(map(math.erf, x.tolist()), np.float64, x.size)
    x = np.clip(x, -4.2, 4.2)
    square = x * x
    p = np.full_like(x, _ERF[0])
    for coefficient in _ERF[1:]:
        p *= square
        p += x.dtype.type(coefficient)
    p *= x
    return np.tanh(p, out=p)
