"""The cross-entropy loss and its gradient."""

import math

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, without_tiny
from qkv.ops import kernel


@public_call("cross_entropy")
def cross_entropy(
    logits: Array, targets: Array, weights: Array | None = None
) -> tuple[Array, Array]:
    """Compute the cross entropy of each row of `logits`, and its gradient.

    Args:
        logits: `(N, V)`.
        targets: `(N,)` integers from 0 to V - 1.
        weights: `(N,)`, the numbers by which the losses and their gradients are multiplied.

    Returns:
        The losses `-log(softmax(logits)[target])`, `(N,)`, and their gradients `(N, V)`.

    >>> losses, grad = cross_entropy(np.log([[0.5, 0.25, 0.25]]), np.array([1]))
    >>> losses, grad
    (array([1.38629436]), array([[ 0.5 , -0.75,  0.25]]))
    """
    _check_targets(logits, targets, weights)
    (logits,) = kernel.working(logits)
    factor = None if weights is None else weights.astype(logits.dtype, copy=False)
    if (chosen := kernel.variant_for(logits)) is not None:
        logits = kernel.as_rows(logits, *logits.shape)
        targets = kernel.contiguous(targets.astype(np.int64, copy=False))
        losses, grad = np.empty(len(logits), logits.dtype), np.empty(logits.shape, logits.dtype)
        factor = None if factor is None else kernel.contiguous(factor)
        kernel.compiled.cross_entropy(
            chosen, logits, targets, factor, losses, grad, kernel.get_num_threads()
        )
        return losses, grad
    at = np.arange(len(targets)), targets
    with np.errstate(invalid="ignore"):
        grad = logits - logits.max(-1, keepdims=True, initial=-math.inf)
        losses = -grad[at]
        without_tiny(np.exp(grad, out=grad), 100)
        total = grad.sum(-1)
        losses += np.log(total)
        grad /= total[:, None]
        grad[at] -= 1
        if factor is not None:
            losses *= factor
            grad *= factor[:, None]
        without_tiny(grad)
    return losses, grad


def _check_targets(logits: Array, targets: Array, weights: Array | None) -> None:
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise value_error(
            f"logits have shape {logits.shape} and targets {targets.shape}; pass (N, V) and (N,)"
        )
    if weights is not None and weights.shape != targets.shape:
        raise value_error(
            f"weights have shape {weights.shape} and targets {targets.shape}; "
            "pass one weight per target"
        )
    if targets.dtype.kind not in "iu":
        raise type_error(f"targets are {targets.dtype}; pass whole numbers")
    if targets.size and not (targets.min() >= 0 and targets.max() < logits.shape[1]):
        raise value_error(
            f"targets run from {targets.min()} to {targets.max()}, "
            f"but logits have {logits.shape[1]} columns: each target must be the index of a column"
        )
