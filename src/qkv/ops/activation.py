"""Activation functions between linear layers, and their derivatives."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv._suggest import nearest
from qkv.arrays import Array
from qkv.ops.kernel import CHUNK, compiled, contiguous, get_num_threads, variant_for, working


def activate(x: Array, name: str) -> Array:
    """Apply the activation `name` to each number of `x`, float32 or float64.

    `gelu` is `x / 2 * (1 + erf(x / sqrt(2)))`, `silu` is `x * sigmoid(x)`, and `relu` is
    `max(x, 0)`. `gelu_tanh` approximates `gelu` with tanh, and `quick_gelu` approximates `gelu` by
    `x * sigmoid(1.702 x)` (Hendrycks and Gimpel 2016). `gelu_bloom` is `gelu_tanh` with
    `sqrt(2 / pi)` rounded to eight digits; the rounding matters only in float64.

    >>> activate(np.array([-1.0, 0.0, 2.0]), "relu")
    array([0., 0., 2.])
    """
    code, chosen = activation_named(name).code, variant_for(x)
    return activate_in_numpy(x, name) if chosen is None else _map(chosen, code, x, None)


def activate_in_numpy(x: Array, name: str) -> Array:
    """Apply an activation with NumPy, so that the backend does not affect the result."""
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, flat.size, CHUNK):
            part = slice(start, start + CHUNK)
            out[part] = ACTIVATIONS[name].function(flat[part])
    return out.reshape(x.shape)


def activation_grad(x: Array, grad: Array, name: str) -> Array:
    """Multiply `grad` by the derivative of the activation `name` at `x`; the shapes must match.

    >>> activation_grad(np.array([-1.0, 2.0]), np.array([5.0, 5.0]), "relu")
    array([0., 5.])
    """
    activation = activation_named(name)
    x, grad = working(x, grad)
    if (chosen := variant_for(x)) is not None:
        return _map(chosen, activation.code, x, grad)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return activation.gradient(x.reshape(-1), grad.reshape(-1)).reshape(x.shape)


def activation_named(name: str) -> "Activation":
    """Return the activation `name`, or raise an error that lists the known names."""
    if name not in ACTIVATIONS:
        near = nearest(name, ACTIVATIONS, 1)
        meant = f"did you mean {near[0]!r}? Choose from " if near else "choose from "
        raise value_error(f"there is no activation {name!r}: {meant}{', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _map(chosen: int, code: int, x: Array, grad: Array | None) -> Array:
    """Compute the activation of `x` in the kernel, or its gradient if `grad` is given."""
    x = contiguous(x)
    y, grad = np.empty_like(x), None if grad is None else contiguous(grad)
    compiled.map(chosen, code, x, grad, y, get_num_threads())
    return y


# For |x| above this number, the derivative of every activation equals its limit at infinity.
_BEYOND = 50.0
_LARGEST = 87.0  # a larger exponent would make x * sigmoid(x) subnormal in float32


def _gelu_grad(x: Array, grad: Array) -> Array:
    x = np.clip(x, -13.0, 13.0)  # beyond 13, exp would become subnormal
    below = 0.5 * (1 + _erf(x * math.sqrt(0.5)))
    return np.asarray(grad * (below + x * np.exp(-0.5 * x * x) * math.sqrt(0.5 / math.pi)))


def _gelu_tanh(x: Array, factor: float = math.sqrt(2 / math.pi)) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(factor * (x + 0.044715 * x * x * x))))


def _gelu_tanh_grad(x: Array, grad: Array, factor: float = math.sqrt(2 / math.pi)) -> Array:
    x = np.clip(x, -_BEYOND, _BEYOND)
    square = x * x
    t = np.tanh(factor * x * (1 + 0.044715 * square))
    slope = factor * x * (1 + 3 * 0.044715 * square)
    return np.asarray(grad * 0.5 * ((1 + t) + (1 - t * t) * slope))


def _times_sigmoid(x: Array, rate: float = 1.0) -> Array:
    return np.asarray(x / (1 + np.exp(np.minimum(-rate * x, _LARGEST))))


def _times_sigmoid_grad(x: Array, grad: Array, rate: float = 1.0) -> Array:
    x = np.clip(x, -_BEYOND, _BEYOND)
    s = 1 / (1 + np.exp(-rate * x))
    return np.asarray(grad * s * (1 + rate * x * (1 - s)))


class Activation(NamedTuple):
    """An activation function.

    Attributes:
        function: the function.
        gradient: a function that multiplies a gradient by the derivative.
        code: the number of the function in native/activation.h, from 1.
        names: the names of the function in a config.json.
    """

    function: Callable[[Array], Array]
    gradient: Callable[[Array, Array], Array]
    code: int
    names: tuple[str, ...] = ()


_TANH_NAMES = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")
ACTIVATIONS = {
    "gelu": Activation(
        lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))), _gelu_grad, 1, ("gelu", "gelu_python")
    ),
    "gelu_tanh": Activation(_gelu_tanh, _gelu_tanh_grad, 2, _TANH_NAMES),
    "silu": Activation(_times_sigmoid, _times_sigmoid_grad, 3, ("silu", "swish")),
    "relu": Activation(
        lambda x: np.maximum(x, 0),
        lambda x, grad: np.where(x <= 0, x.dtype.type(0), grad),
        4,
        ("relu",),
    ),
    "gelu_bloom": Activation(  # sqrt(2 / pi), rounded to eight digits
        partial(_gelu_tanh, factor=0.79788456), partial(_gelu_tanh_grad, factor=0.79788456), 2
    ),
    "quick_gelu": Activation(
        partial(_times_sigmoid, rate=1.702),
        partial(_times_sigmoid_grad, rate=1.702),
        5,
        ("quick_gelu",),
    ),
}
# Maps names in a config.json to the names of the functions here.
CONFIG_NAMES = {name: key for key, one in ACTIVATIONS.items() for name in one.names}

# The coefficients of a polynomial P, from the highest power down. For |x| <= 4.2, erf(x) is
# tanh(x * P(x * x)) with an error of at most 9.1e-8. For larger x, erf(x) is 1 in float32. P was
# fitted to atanh(erf(x)) / x by weighted least squares on Chebyshev points.
_ERF = (
    1.5361411e-10, -7.4093776e-09, 1.3827980e-07, -1.1327262e-06, 5.6051601e-07,
    7.1455099e-05, -5.9857761e-04, -2.0412552e-04, 1.0277134e-01, 1.1283792e00,
)  # fmt: skip


def _erf(x: Array) -> Array:
    """Compute the error function of a float32 array, or of a contiguous float64 array."""
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
