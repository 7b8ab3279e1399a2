"""The way back: gradients of what layers compute, and the step that learns from them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.ops import activation as activations
from qkv.ops.activation import check_activation, erf
from qkv.ops.kernel import ACTIVATION_CODES, body, get_num_threads, kernel, multiply, packed_once


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
        That of a transposed weight is transposed too: it stands in memory as the weight does.

    >>> x, weight, grad = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([[10.0]])
    >>> for found in linear_grad(x, weight, grad, bias=True):
    ...     print(found.tolist())
    [[30.0, 40.0]]
    [[10.0], [20.0]]
    [10.0]
    """
    x, weight, grad = _working(x, weight, grad)
    depth, width = weight.shape
    count = math.prod(x.shape[:-1])
    rows, above = x.reshape(count, depth), grad.reshape(count, width)
    turned = weight.flags.f_contiguous and not weight.flags.c_contiguous
    here = _kernel_for(x) if x.size and grad.size else None
    if here is None:
        grad_weight = multiply(above.T, rows).T if turned else multiply(rows.T, above)
        grad_x = multiply(above, weight.T)
        return grad_x.reshape(x.shape), grad_weight, above.sum(0) if bias else None
    rows, above = _whole_rows(rows), _whole_rows(above)
    grad_x, threads = np.empty(rows.shape, x.dtype), get_num_threads()
    packed = packed_once(weight.T, here, threads)
    kernel.linear(here, above, packed, None, 0, None, None, grad_x, threads)
    grad_bias = np.empty(width, x.dtype) if bias else None
    if turned:
        other = np.empty((width, depth), x.dtype)
        kernel.outer(here, above, rows, other, grad_bias, None, threads)
        return grad_x.reshape(x.shape), other.T, grad_bias
    grad_weight = np.empty((depth, width), x.dtype)
    kernel.outer(here, rows, above, grad_weight, None, grad_bias, threads)
    return grad_x.reshape(x.shape), grad_weight, grad_bias


def activate(x: Array, name: str) -> Array:
    """The activation `name` of each number of `x`, float32 or float64; see `qkv.activations`.

    >>> activate(np.array([-1.0, 2.0]), "relu")
    array([0., 2.])
    """
    check_activation(name, call="activate")
    here = _kernel_for(x)
    return activations.activate(x, name) if here is None else _mapped(here, name, x, None)


def _mapped(here: int, name: str, x: Array, grad: Array | None) -> Array:
    x = np.require(x, None, ["C", "A"])
    if grad is not None:
        grad = np.require(grad, None, ["C", "A"])
    y = np.empty_like(x)
    kernel.map(here, ACTIVATION_CODES[name], x, grad, y, get_num_threads())
    return y


def activation_grad(x: Array, grad: Array, name: str) -> Array:
    """`grad` times the derivative of the activation `name` at `x`, of the same shape.

    >>> activation_grad(np.array([-1.0, 2.0]), np.array([5.0, 5.0]), "relu")
    array([0., 5.])
    """
    check_activation(name, call="activation_grad")
    x, grad = _working(x, grad)
    if (here := _kernel_for(x)) is not None:
        return _mapped(here, name, x, grad)
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
    size = x.shape[-1]
    if (here := _kernel_for(x)) is not None and size:
        rows, above = (_whole_rows(each.reshape(-1, size)) for each in (x, grad))
        grad_x, grad_weight = np.empty(x.shape, x.dtype), np.empty(size, x.dtype)
        grad_bias = np.empty(size, x.dtype) if bias else None
        kernel.norm_grad(
            here, rows, _plain(weight), _plain(scale), above, centred,
            grad_x, grad_weight, grad_bias, get_num_threads(),
        )  # fmt: skip
        return grad_x, grad_weight, grad_bias
    if centred:
        x = x - x.mean(-1, keepdims=True)
    normal = x / scale
    above = grad * weight
    grad_x = above - normal * (above * normal).mean(-1, keepdims=True)
    if centred:
        grad_x -= grad_x.mean(-1, keepdims=True)
    grad_x /= scale
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
    _check_targets(logits, targets, weights)
    (logits,) = _working(logits)
    factor = None if weights is None else weights.astype(logits.dtype, copy=False)
    if (here := _kernel_for(logits)) is not None:
        logits, targets = _whole_rows(logits), _plain(targets.astype(np.int64, copy=False))
        losses, grad = np.empty(len(logits), logits.dtype), np.empty(logits.shape, logits.dtype)
        factor = None if factor is None else _plain(factor)
        kernel.cross_entropy(here, logits, targets, factor, losses, grad, get_num_threads())
        return losses, grad
    with np.errstate(invalid="ignore"):
        return _cross_entropy(logits, targets, factor)


def _cross_entropy(logits: Array, targets: Array, factor: Array | None) -> tuple[Array, Array]:
    at = np.arange(len(targets)), targets
    grad = logits - logits.max(-1, keepdims=True, initial=-math.inf)
    losses = -grad[at]
    np.exp(grad, out=grad)
    total = grad.sum(-1)
    losses += np.log(total)
    grad /= total[:, None]
    grad[at] -= 1
    if factor is not None:
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
    size, root = rate / (1 - first**step), 1 / math.sqrt(1 - second**step)
    arrays = [parameters, gradient, mean, square]
    decays, same = (decay, 0.0) if isinstance(decay, np.ndarray) else (None, decay)
    if decays is not None:
        arrays.append(decays)
    if (here := _kernel_for(*arrays)) is not None and all(_is_plain(it) for it in arrays):
        kernel.adamw(
            here, parameters, gradient, mean, square, decays, same,
            rate, factor, eps, first, 1 - first, second, 1 - second, size, root, get_num_threads(),
        )  # fmt: skip
        return
    kind = parameters.dtype.type
    for start in range(0, len(parameters), _CHUNK):
        part = slice(start, start + _CHUNK)
        p, m, s = parameters[part], mean[part], square[part]
        g = gradient[part] * kind(factor)
        m *= first
        m += (1 - first) * g
        s *= second
        s += (1 - second) * g * g
        p -= p * (kind(rate) * (kind(same) if decays is None else decays[part]))
        p -= size * m / (np.sqrt(s) * root + eps)


def norm(x: Array) -> float:
    """The root of the sum of all squares, summed in float64.

    >>> norm(np.array([3.0, 4.0], np.float32))
    5.0
    """
    flat = x.reshape(-1)
    if (here := _kernel_for(x)) is not None:
        return math.sqrt(kernel.squares(here, _plain(flat), get_num_threads()))
    parts = (flat[k : k + _CHUNK].astype(np.float64) for k in range(0, flat.size, _CHUNK))
    return math.sqrt(math.fsum(np.square(part).sum() for part in parts))


_CHUNK = 1 << 14  # numbers at a time, so that what lies between two steps stays in the cache


def _working(*arrays: Array) -> tuple[Array, ...]:
    """All in the one type that they are computed in: float32 or float64."""
    kind = compute_type(np.result_type(*arrays))
    return tuple(array.astype(kind, copy=False) for array in arrays)


def _kernel_for(*arrays: Array) -> int | None:
    """The kernel's body where it computes these: all are float32."""
    plain = all(array.dtype == np.float32 and array.dtype.isnative for array in arrays)
    return body() if plain else None


def _is_plain(array: Array) -> bool:
    return array.flags.c_contiguous and array.flags.aligned


def _plain(array: Array) -> Array:
    """In one piece."""
    return np.require(array, None, ["C", "A"])


def _whole_rows(array: Array) -> Array:
    """Rows (n, size) whose numbers stand together each."""
    together = array.strides[1] == array.itemsize and array.flags.aligned
    return array if together else _plain(array)


def _check_targets(logits: Array, targets: Array, weights: Array | None) -> None:
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"cross_entropy: logits have shape {logits.shape} and targets {targets.shape}: "
            "give (N, V) and (N,)"
        )
    if weights is not None and weights.shape != targets.shape:
        raise ValueError(
            f"cross_entropy: weights have shape {weights.shape} and targets {targets.shape}: "
            "give one for each"
        )
    if targets.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are {targets.dtype}: give whole numbers")
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
