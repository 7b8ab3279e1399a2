"""The linear layer, its gradients, and matrix products in blocks."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays, DType, common_type, compute_type, is_float
from qkv.ops import kernel
from qkv.ops._blocks import BlockMatrix
from qkv.ops._int8_rows import multiply_int8
from qkv.ops.activation import activate_in_numpy, activation_named
from qkv.ops.packing import kernel_product, packed_once, weight_kind
from qkv.ops.threads import matmul_alone, run_all

# State: a training step calls `linear` through layers that do not know about mixed precision. The
# value is set only within a `with` block of one thread.
_narrow: ContextVar[DType | None] = ContextVar("_narrow", default=None)


@contextmanager
def products_in_bfloat16() -> Iterator[None]:
    """Inside the `with` block, let the kernel round float32 factors to bfloat16.

    The rounding affects the result of `linear`, and the gradient for `x` in `linear_grad`. Sums and
    results stay float32. Without the kernel, nothing is rounded.

    Source:
        Micikevicius et al. 2018, "Mixed Precision Training"; Kalamkar et al. 2019, "A Study of
        BFLOAT16 for Deep Learning Training".
    """
    from ml_dtypes import bfloat16

    token = _narrow.set(np.dtype(bfloat16))
    try:
        yield
    finally:
        _narrow.reset(token)


def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
    wide: bool = False,
) -> Array:
    """Compute `activation(x @ weight + bias) * gate + residual`.

    Before the product, the kernel packs the weight into its own layout. A frozen weight (read-only,
    see `is_frozen`) is packed only once, and its packed copy is kept as long as the weight exists.

    Args:
        x: `(..., in)`.
        weight: `(in, out)`, with any strides. For an `int8_weight` and a float32 `x`, the product
            is computed in int8: each column of the weight, and each row of `x`, is rounded to whole
            numbers and a scale (`ops/_int8_rows.py`).
        bias: `(out,)`.
        activation: a name that `activate` accepts.
        gate: `(..., out)`, the numbers by which the activation's result is multiplied.
        residual: `(..., out)`, added last.
        wide: whether the result is float32 if the inputs have half precision.

    Returns:
        `(..., out)`, in `common_type` of `x` and `weight`.
        Half-precision inputs are summed in float32. Unless `wide` is True, the sums are rounded at
        the end.

    >>> linear(np.ones((1, 2)), np.array([[1.0], [2.0]]), np.array([-4.0]), activation="relu")
    array([[0.]])
    """
    code = 0 if activation is None else activation_named(activation).code
    floats = is_float(x.dtype) and is_float(weight.dtype)
    kind = common_type(x.dtype, weight.dtype) if floats else None
    factors = _narrow.get() or kind if kind == kernel.FLOAT32 else kind
    if isinstance(weight, BlockMatrix):
        factors = kind
        if not weight.transposed or kind != kernel.FLOAT32 or kernel.variant() is None:
            weight = weight.read()
    # if the shapes do not fit, the NumPy code at the end raises the error
    fits = weight.ndim == 2 and x.shape[-1:] == weight.shape[:1]
    chosen, threads, rows = kernel.rows_of(x, factors if fits else None)
    if chosen is not None and kind is not None and factors is not None:
        shape, result = (*x.shape[:-1], weight.shape[1]), kernel.FLOAT32 if wide else kind
        y = np.empty((len(rows), weight.shape[1]), kernel.bits_type(result))
        added = None if bias is None else np.require(bias, kernel.FLOAT32, ["C", "A"])
        product, packed = kernel_product(weight, chosen, factors, threads)
        product(
            rows, packed, added, code,
            _rows_of_result(gate, shape, result), _rows_of_result(residual, shape, result),
            y, threads,
        )  # fmt: skip
        return y.view(result).reshape(shape)
    digits = (kernel.ONE_DIGIT, kernel.INT8)
    in_int8 = fits and kind is not None and weight_kind(weight, kind) in digits
    if kind is not None:
        work = compute_type(kind)
        x, weight = x.astype(work, copy=False), weight.astype(work, copy=False)
    in_numpy = multiply_int8 if in_int8 else multiply
    y = x @ weight if kind is None else in_numpy(x, weight)  # (..., out)
    if bias is not None:
        y += bias
    if activation is not None:
        y = activate_in_numpy(y, activation)
    if gate is not None:
        y *= gate
    if residual is not None:
        y += residual
    return y if kind is None or wide else y.astype(kind, copy=False)


def project(
    x: Array, parameters: Arrays, name: str, *, dtype: DType | None = None, **more: Any
) -> Array:
    """Apply a linear layer: (..., in) -> (..., out). `more` holds options of `linear`.

    In half precision, a float32 residual gives a float32 result. Otherwise, the result is converted
    to `dtype`, if given.
    """
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    wide = is_wide(more.get("residual"))
    out = linear(x, weight, bias, wide=wide, **more)
    return out if wide or dtype is None else out.astype(dtype, copy=False)


def project_wide(x: Array, parameters: Arrays, name: str) -> Array:
    """Apply a linear layer; the result is float32 for weights in half precision."""
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    return linear(kernel.to_bfloat16(x, weight), weight, bias, wide=True)


def is_wide(residual: Array | None) -> bool:
    """Return whether adding this residual makes a half-precision result float32."""
    return residual is not None and residual.dtype == np.float32


def project_back(
    x: Array, parameters: Arrays, name: str, grad: Array, gradients: dict[str, Array] | None
) -> Array:
    """Return the gradient for the input of `project`, and store the parameters' gradients."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    if gradients is None:
        return input_grad(parameters[weight], grad)
    grad_x, gradients[weight], grad_bias = linear_grad(
        x, parameters[weight], grad, bias=bias in parameters
    )
    if grad_bias is not None:
        gradients[bias] = grad_bias
    return grad_x


def _rows_of_result(x: Array | None, shape: tuple[int, ...], kind: DType) -> Array | None:
    """Broadcast a gate or a residual to the result's shape, as rows for the kernel."""
    if x is None:
        return None
    whole = x if x.shape == shape else np.broadcast_to(x, shape)
    return kernel.as_rows(whole, math.prod(shape[:-1]), shape[-1], kind)


def linear_grad(
    x: Array, weight: Array, grad: Array, *, bias: bool
) -> tuple[Array, Array, Array | None]:
    """Compute the gradients of `x @ weight + bias`.

    Args:
        x: `(..., in)`.
        weight: `(in, out)`, with any strides.
        grad: `(..., out)`, the gradient with respect to the result.
        bias: whether the layer has a bias.

    Returns:
        The gradients for `x` `(..., in)`, `weight` `(in, out)` and the bias `(out,)` (or None).
        If `weight` is in Fortran order, the gradient for `weight` is in Fortran order too.

    >>> x, weight, grad = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([[10.0]])
    >>> for gradient in linear_grad(x, weight, grad, bias=True):
    ...     print(gradient.tolist())
    [[30.0, 40.0]]
    [[10.0], [20.0]]
    [10.0]
    """
    x, weight, grad = kernel.working(x, weight, grad)
    depth, width = weight.shape
    count = math.prod(x.shape[:-1])
    rows, grad = x.reshape(count, depth), grad.reshape(count, width)
    transposed = weight.flags.f_contiguous and not weight.flags.c_contiguous
    grad_x = input_grad(weight, grad).reshape(x.shape)
    chosen = kernel.variant_for(x) if x.size and grad.size else None
    if chosen is None:
        grad_weight = multiply(grad.T, rows).T if transposed else multiply(rows.T, grad)
        return grad_x, grad_weight, grad.sum(0) if bias else None
    rows, grad = kernel.as_rows(rows, count, depth), kernel.as_rows(grad, count, width)
    threads = kernel.get_num_threads()
    grad_bias = np.empty(width, x.dtype) if bias else None
    if transposed:
        grad_weight = np.empty((width, depth), x.dtype).T
        kernel.compiled.outer(chosen, grad, rows, grad_weight.T, grad_bias, None, threads)
    else:
        grad_weight = np.empty((depth, width), x.dtype)
        kernel.compiled.outer(chosen, rows, grad, grad_weight, None, grad_bias, threads)
    return grad_x, grad_weight, grad_bias


def input_grad(weight: Array, grad: Array) -> Array:
    """Compute the gradient `(..., in)` for `x` from the gradient `(..., out)` for `x @ weight`.

    >>> input_grad(np.array([[3.0], [4.0]]), np.array([[10.0]])).tolist()
    [[30.0, 40.0]]
    """
    weight, grad = kernel.working(weight, grad)
    depth, width = weight.shape
    chosen = kernel.variant_for(grad) if weight.size and grad.size else None
    if chosen is None:
        return multiply(grad, weight.T)
    count, threads = grad.size // width, kernel.get_num_threads()
    kind = _narrow.get() or kernel.FLOAT32
    grad_x = np.empty((count, depth), grad.dtype)
    rows = kernel.as_rows(grad.reshape(count, width), count, width, kind)
    weights = packed_once(weight.T, chosen, kind, threads)
    kernel.compiled.linear(chosen, rows, weights, None, 0, None, None, grad_x, threads)
    return grad_x.reshape(*grad.shape[:-1], depth)


def multiply(left: Array, right: Array) -> Array:
    """Multiply floats `left (..., in) @ right (in, out)` block by block with NumPy.

    The blocks depend only on the shapes, so the result does not depend on the number of threads.
    """
    if right.ndim != 2 or left.shape[-1:] != right.shape[:1]:
        return np.asarray(left @ right)  # NumPy raises the error
    depth, columns = right.shape
    flat = left.reshape(-1, depth) if left.size else np.empty((0, depth), left.dtype)
    rows = math.prod(left.shape[:-1])
    y = np.zeros((rows, columns), np.result_type(left, right))
    high, wide = _piece(rows, columns, depth)
    cases = [
        (flat[i : i + high], right[:, j : j + wide], y[i : i + high, j : j + wide])
        for i in range(0, len(flat), high)
        for j in range(0, columns, wide)
    ]
    run_all(matmul_alone, cases)
    return y.reshape(*left.shape[:-1], columns)


def _piece(rows: int, columns: int, depth: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of the blocks into which a product is divided."""
    # Reading the matrix `right` takes about as long as computing 8 rows of the product.
    work = (rows + 8) * columns * depth
    pieces = max(min(8, work >> 24), work >> 28)
    high, wide = max(rows, 1), max(columns, 1)
    while high * wide * pieces > rows * columns and max(high, wide) > 128:
        if high > wide:
            high = -(-high // 2)
        else:
            wide = -(-wide // 2)
    return high, wide
