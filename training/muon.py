"""Muon, an optimizer whose steps have the same length in every direction of a matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.learn import AdamW, Network
from qkv.ops._training import adamw

_FACTORS = 3.4445, -4.7750, 2.0315
_TURNS = 5
_LIKE_ADAM = 0.2  # the root mean square of a step's changes, divided by the learning rate


class Muon(AdamW):
    """Muon for the matrices within blocks, AdamW for all other parameters.

    Let U S V^T be the singular value decomposition of the running mean of a matrix's gradient. The
    step of the matrix is approximately U V^T, scaled to the usual size of a step of AdamW. So Muon
    and AdamW can use the same rate.

    Args:
        network: the network to train.
        momentum: the share of the old running mean in the new running mean.
        named: as for `AdamW`.

    Source:
        Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", for the
        steps; Liu et al. 2025, "Muon is Scalable for LLM Training", equation 4, for their size.
    """

    def __init__(self, network: Network, *, momentum: float = 0.95, **named: Any) -> None:
        super().__init__(network, **named)
        self.momentum = momentum
        self._turned = [
            name
            for name, array in network.parameters.items()
            if array.ndim == 2 and name.startswith("blocks.")
        ]

    def step(self, rate: float, length: float | None = None) -> None:
        """Update the parameters by one step; `length` is the gradient's norm, or None."""
        length = self.length() if length is None else length
        if not math.isfinite(length):
            raise FloatingPointError("Muon: a gradient is not finite")
        self.count += 1
        network = self.network
        factor = min(1.0, self.clip / length) if length > 0 else 1.0
        arrays = [network.flat, network.gradient, self.mean, self.square]
        for name, place in network.slices.items():
            if name in self._turned:
                self._turn(name, place, rate, factor)
                continue
            adamw(
                *(array[place] for array in arrays),
                rate=rate,
                betas=self.betas,
                eps=self.eps,
                decay=self.decay if network.parameters[name].ndim >= 2 else 0.0,
                step=self.count,
                factor=factor,
            )

    def _turn(self, name: str, place: slice, rate: float, factor: float) -> None:
        matrix, stays = self.network.parameters[name], self.momentum
        gradient = self.network.gradients[name] * np.float32(factor)
        mean = self.mean[place].reshape(matrix.shape)
        mean *= stays
        mean += (1 - stays) * gradient
        step = orthogonal(stays * mean + (1 - stays) * gradient)
        matrix *= 1 - rate * self.decay
        matrix -= rate * _LIKE_ADAM * math.sqrt(max(matrix.shape)) * step


def orthogonal(matrix: Array) -> Array:
    """Convert a matrix U S V^T approximately to U V^T: all singular values become about 1.

    The method is five iterations of a polynomial of degree five (Newton-Schulz).

    >>> found = orthogonal(np.random.default_rng(0).standard_normal((4, 6)))
    >>> bool((abs(np.linalg.svd(found)[1] - 1) < 0.4).all())
    True
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    found: Array = wide / (np.linalg.norm(wide) + 1e-7)
    a, b, c = _FACTORS
    for _ in range(_TURNS):
        product = found @ found.T
        found = a * found + (b * product + c * product @ product) @ found
    return found if matrix.shape[0] <= matrix.shape[1] else found.T
