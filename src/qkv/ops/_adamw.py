"""One step of AdamW, and the norm of a gradient."""

import math

import numpy as np

from qkv.arrays import Array
from qkv.ops import kernel


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
