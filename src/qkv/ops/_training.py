"""The cross-entropy loss and its gradient, one step of AdamW, and the norm of a gradient."""

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
    """Run one step of AdamW, which changes `parameters`, `mean` and `square` in place.

    Args:
        parameters: `(n,)` float32 or float64.
        gradient: `(n,)`.
        mean: `(n,)`, the running mean of gradients; zeros before the first step.
        square: `(n,)`, the running mean of squared gradients.
        rate: the learning rate.
        betas: the decay rates of the two means.
        eps: a number added to the root of the mean square.
        decay: the weight decay, a number or `(n,)`; each step subtracts
            `rate * decay * parameters`.
        step: the number of the step; the first step is 1.
        factor: a number by which the gradient is multiplied before the step.

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
    if (chosen := kernel.variant_for(*arrays)) is not None and all(
        map(kernel.is_contiguous, arrays)
    ):
        kernel.compiled.adamw(
            chosen, parameters, gradient, mean, square, decays, same,
            rate, factor, eps, first, 1 - first, second, 1 - second, size, root,
            kernel.get_num_threads(),
        )  # fmt: skip
        return
    kind = parameters.dtype.type
    for start in range(0, len(parameters), kernel.CHUNK):
        part = slice(start, start + kernel.CHUNK)
        p, m, s = parameters[part], mean[part], square[part]
        g = gradient[part] * kind(factor)
        m *= first
        m += (1 - first) * g
        s *= second
        s += (1 - second) * g * g
        p -= p * (kind(rate) * (kind(same) if decays is None else decays[part]))
        p -= size * m / (np.sqrt(s) * root + eps)


def gradient_norm(x: Array) -> float:
    """Return the Euclidean norm of all numbers, computed in float64.

    >>> gradient_norm(np.array([3.0, 4.0], np.float32))
    5.0
    """
    flat = x.reshape(-1)
    if (chosen := kernel.variant_for(x)) is not None:
        return math.sqrt(
            kernel.compiled.squares(chosen, kernel.contiguous(flat), kernel.get_num_threads())
        )
    parts = (
        flat[k : k + kernel.CHUNK].astype(np.float64) for k in range(0, flat.size, kernel.CHUNK)
    )
    return math.sqrt(math.fsum(np.square(part).sum() for part in parts))
