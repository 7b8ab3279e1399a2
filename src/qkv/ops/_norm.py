"""LayerNorm and RMSNorm, and their gradients."""

import math

import numpy as np

from qkv.arrays import Array
from qkv.ops import kernel


def normalize(
    x: Array, weight: Array, bias: Array | None, *, eps: float, centred: bool
) -> tuple[Array, Array]:
    """Compute LayerNorm if `centred` is True, otherwise RMSNorm.

    Args:
        x: (..., D), float32, float64, or bfloat16 if `stays_bfloat16`.
        weight: (D,), of any float dtype.
        bias: (D,), of any float dtype.
        eps: a number added to the mean square.
        centred: whether the mean of each vector is subtracted first.

    Returns:
        The normalised vectors, multiplied by `weight` and shifted by `bias`.
        The divisors (..., 1).

    >>> normalize(np.array([[1.0, 5.0]]), np.ones(2), None, eps=0.0, centred=True)
    (array([[-1.,  1.]]), array([[2.]]))
    """
    kind = x.dtype
    chosen, threads, rows = kernel.rows_of(x, kind if x.shape[-1] else None)
    if chosen is not None:
        y, scale = np.empty(rows.shape, kernel.bits_type(kind)), np.empty(len(rows), np.float32)
        if bias is not None:
            bias = np.require(bias, kernel.FLOAT32, ["C", "A"])
        weight = np.require(weight, kernel.FLOAT32, ["C", "A"])
        kernel.compiled.norm(chosen, rows, weight, bias, eps, centred, y, scale, threads)
        return y.view(kind).reshape(x.shape), scale.reshape(*x.shape[:-1], 1)
    if centred:
        # Compute the variance from centred numbers. The formula "mean of squares minus square of
        # the mean" would lose all digits if the mean is large.
        x = x - x.mean(-1, keepdims=True)
    scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + kind.type(eps))  # (..., 1)
    y = x / scale
    y *= weight.astype(kind, copy=False)
    if bias is not None:
        y += bias.astype(kind, copy=False)
    return y, scale


def norm_grad(
    x: Array, weight: Array, scale: Array, grad: Array, *, centred: bool, bias: bool
) -> tuple[Array, Array, Array | None]:
    """Compute the gradients of LayerNorm if `centred` is True, otherwise of RMSNorm.

    Args:
        x: `(..., D)`, the input of the norm.
        weight: `(D,)`.
        scale: `(..., 1)`, the numbers by which `normalize` divided the vectors.
        grad: `(..., D)`, the gradient with respect to the result.
        centred: whether the mean of each vector was subtracted first.
        bias: whether the norm has a bias.

    Returns:
        The gradients for `x` `(..., D)`, for `weight` `(D,)` and for the bias `(D,)` (or None).

    >>> x, one = np.array([[3.0, 3.0]]), np.ones(2)
    >>> norm_grad(x, one, np.array([[3.0]]), np.array([[6.0, 0.0]]), centred=False, bias=False)
    (array([[ 1., -1.]]), array([6., 0.]), None)
    """
    x, weight, scale, grad = kernel.working(x, weight, scale, grad)
    size = x.shape[-1]
    if (chosen := kernel.variant_for(x)) is not None and size:
        count = math.prod(x.shape[:-1])
        grad_x, grad_weight = np.empty(x.shape, x.dtype), np.empty(size, x.dtype)
        grad_bias = np.empty(size, x.dtype) if bias else None
        kernel.compiled.norm_grad(
            chosen, kernel.as_rows(x, count, size), kernel.contiguous(weight),
            kernel.contiguous(scale), kernel.as_rows(grad, count, size), centred,
            grad_x, grad_weight, grad_bias, kernel.get_num_threads(),
        )  # fmt: skip
        return grad_x, grad_weight, grad_bias
    if centred:
        x = x - x.mean(-1, keepdims=True)
    normal = x / scale
    weighted = grad * weight
    grad_x = weighted - normal * (weighted * normal).mean(-1, keepdims=True)
    if centred:
        grad_x -= grad_x.mean(-1, keepdims=True)
    grad_x /= scale
    grad_weight = (grad * normal).reshape(-1, size).sum(0)
    return grad_x, grad_weight, grad.reshape(-1, size).sum(0) if bias else None
