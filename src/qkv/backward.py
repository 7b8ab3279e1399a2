"""The way back: gradients of what layers compute, and the step that learns from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qkv.activations import activate as activate
from qkv.activations import check_activation, erf
from qkv.arrays import Array, compute_type


def linear_grad(
    x: Array, weight: Array, grad: Array, *, bias: bool
) -> tuple[Array, Array, Array | None]:
    """The gradients of `x @ weight + bias`.

    Args:
        x: `(..., in)`.
        weight: `(in, out)`, in any strides.
        grad: `(..., out)`, the gradient of the result.
        bias: whether there is one.

    Returns:
        The gradients of `x` `(..., in)`, of `weight` `(in, out)` and of the bias `(out,)` or None.

    >>> x, weight, grad = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([[10.0]])
    >>> for found in linear_grad(x, weight, grad, bias=True):
    ...     print(found.tolist())
    [[30.0, 40.0]]
    [[10.0], [20.0]]
    [10.0]
    """
    x, weight, grad = _working(x, weight, grad)
    depth, width = weight.shape
    rows, above = x.reshape(-1, depth), grad.reshape(-1, width)
    grad_x = (above @ weight.T).reshape(x.shape)
    return grad_x, rows.T @ above, above.sum(0) if bias else None


def activation_grad(x: Array, grad: Array, name: str) -> Array:
    """`grad` times the derivative of the activation `name` at `x`, of the same shape.

    >>> activation_grad(np.array([-1.0, 2.0]), np.array([5.0, 5.0]), "relu")
    array([0., 5.])
    """
    check_activation(name, call="activation_grad")
    x, grad = _working(x, grad)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return _DERIVATIVES[name](x.reshape(-1), grad.reshape(-1)).reshape(x.shape)


def norm_grad(
    x: Array, weight: Array, scale: Array, grad: Array, *, centred: bool, bias: bool
) -> tuple[Array, Array, Array | None]:
    """The gradients of LayerNorm (`centred`) or RMSNorm.

    Args:
        x: `(..., D)`, what was normalised.
        weight: `(D,)`, as it was multiplied by.
        scale: `(..., 1)`, what the forward pass divided by.
        grad: `(..., D)`, the gradient of the result.
        centred: whether the mean was taken from each vector first.
        bias: whether there is one.

    Returns:
        The gradients of `x` `(..., D)`, of `weight` `(D,)` and of the bias `(D,)` or None.

    >>> x, one = np.array([[3.0, 3.0]]), np.ones(2)
    >>> norm_grad(x, one, np.array([[3.0]]), np.array([[6.0, 0.0]]), centred=False, bias=False)
    (array([[ 1., -1.]]), array([6., 0.]), None)
    """
    x, weight, scale, grad = _working(x, weight, scale, grad)
    if centred:
        x = x - x.mean(-1, keepdims=True)
    normal = x / scale
    above = grad * weight
    grad_x = above - normal * (above * normal).mean(-1, keepdims=True)
    if centred:
        grad_x -= grad_x.mean(-1, keepdims=True)
    grad_x /= scale
    size = x.shape[-1]
    grad_weight = (grad * normal).reshape(-1, size).sum(0)
    return grad_x, grad_weight, grad.reshape(-1, size).sum(0) if bias else None


def cross_entropy(
    logits: Array, targets: Array, weights: Array | None = None
) -> tuple[Array, Array]:
    """What each row of `logits` loses by not being sure of its target, and the gradient of that.

    Args:
        logits: `(N, V)`.
        targets: `(N,)` integers, each at least 0 and below V.
        weights: `(N,)` factors of the losses, and of the gradients with them.

    Returns:
        The losses `(N,)`, `-log(softmax(logits)[target])`, and `(N, V)` the gradient of each row's.

    >>> losses, grad = cross_entropy(np.log([[0.5, 0.25, 0.25]]), np.array([1]))
    >>> losses, grad
    (array([1.38629436]), array([[ 0.5 , -0.75,  0.25]]))
    """
    _check_targets(logits, targets)
    (logits,) = _working(logits)
    at = np.arange(len(targets)), targets
    grad = logits - logits.max(-1, keepdims=True, initial=-math.inf)
    losses = -grad[at]
    np.exp(grad, out=grad)
    total = grad.sum(-1)
    losses += np.log(total)
    grad /= total[:, None]
    grad[at] -= 1
    if weights is not None:
        factor = weights.astype(logits.dtype, copy=False)
        losses *= factor
        grad *= factor[:, None]
    return losses, grad


def adamw(
    parameters: Array,
    gradient: Array,
    mean: Array,
    square: Array,
    *,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    decay: float | Array,
    step: int,
    factor: float = 1.0,
) -> None:
    """One step of AdamW, in place: `parameters`, `mean` and `square` are written to.

    Args:
        parameters: `(n,)` float32 or float64.
        gradient: `(n,)`.
        mean: `(n,)`, the running mean of gradients; zeros before the first step.
        square: `(n,)`, that of their squares.
        rate: the learning rate.
        betas: how much of the two means stays at each step.
        eps: added to the root of the mean square.
        decay: by how much of itself, times `rate`, each parameter shrinks: a number or `(n,)`.
        step: counts from 1.
        factor: what the gradient is multiplied by first.

    Source:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.

    >>> parameters, mean, square = np.ones(1), np.zeros(1), np.zeros(1)
    >>> adamw(parameters, np.array([3.0]), mean, square,
    ...       rate=0.1, betas=(0.9, 0.999), eps=0.0, decay=0.5, step=1)
    >>> parameters.round(12)
    array([0.85])
    """
    first, second = betas
    root = math.sqrt(1 - second**step)
    size = rate / (1 - first**step)
    shrink = 1 - rate * np.asarray(decay, parameters.dtype)
    for start in range(0, len(parameters), _CHUNK):
        part = slice(start, start + _CHUNK)
        p, m, s = parameters[part], mean[part], square[part]
        g = gradient[part] * parameters.dtype.type(factor)
        p *= shrink[part] if shrink.ndim else shrink
        m *= first
        m += (1 - first) * g
        s *= second
        g *= g
        s += (1 - second) * g
        p -= size * m / (np.sqrt(s) / root + eps)


def norm(x: Array) -> float:
    """The root of the sum of all squares, summed in float64.

    >>> norm(np.array([3.0, 4.0], np.float32))
    5.0
    """
    flat = x.reshape(-1)
    parts = (flat[k : k + _CHUNK].astype(np.float64) for k in range(0, flat.size, _CHUNK))
    return math.sqrt(math.fsum(np.square(part).sum() for part in parts))


_CHUNK = 1 << 14  # numbers at a time, so that what lies between two steps stays in the cache


def _working(*arrays: Array) -> tuple[Array, ...]:
    """All in the one type that they are computed in: float32 or float64."""
    kind = compute_type(np.result_type(*arrays))
    return tuple(array.astype(kind, copy=False) for array in arrays)


def _check_targets(logits: Array, targets: Array) -> None:
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"cross_entropy: logits have shape {logits.shape} and targets {targets.shape}: "
            "give (N, V) and (N,)"
        )
    if targets.size and not (targets.min() >= 0 and targets.max() < logits.shape[1]):
        raise ValueError(
            f"cross_entropy: targets run from {targets.min()} to {targets.max()} "
            f"and there are {logits.shape[1]} columns: each must be one of them"
        )


# At BEYOND and -BEYOND each activation's derivative is that at infinity.
_BEYOND = 50.0


def _gelu_grad(x: Array, grad: Array) -> Array:
    x = np.clip(x, -_BEYOND, _BEYOND)
    below = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    y: Array = grad * (below + x * np.exp(-0.5 * x * x) * math.sqrt(0.5 / math.pi))
    return y


def _gelu_tanh_grad(x: Array, grad: Array, factor: float = math.sqrt(2 / math.pi)) -> Array:
    x = np.clip(x, -_BEYOND, _BEYOND)
    square = x * x
    t = np.tanh(factor * x * (1 + 0.044715 * square))
    slope = factor * x * (1 + 3 * 0.044715 * square)
    y: Array = grad * 0.5 * ((1 + t) + (1 - t * t) * slope)
    return y


def _gelu_bloom_grad(x: Array, grad: Array) -> Array:
    return _gelu_tanh_grad(x, grad, 0.79788456)


def _silu_grad(x: Array, grad: Array) -> Array:
    x = np.clip(x, -_BEYOND, _BEYOND)
    s = 1 / (1 + np.exp(-x))
    y: Array = grad * s * (1 + x * (1 - s))
    return y


def _relu_grad(x: Array, grad: Array) -> Array:
    return np.where(x <= 0, x.dtype.type(0), grad)


_DERIVATIVES: dict[str, Callable[[Array, Array], Array]] = {
    "gelu": _gelu_grad,
    "gelu_tanh": _gelu_tanh_grad,
    "silu": _silu_grad,
    "relu": _relu_grad,
    "gelu_bloom": _gelu_bloom_grad,
}
