"""AdamW over one long array."""

from __future__ import annotations

import math

import numpy as np

from qkv.arrays import Array
from qkv.learn.network import Network
from qkv.ops.adamw import adamw, gradient_norm


class AdamW:
    """Adam with decoupled weight decay, which matrices have and biases and norms have not.

    Args:
        network: what learns.
        betas: how much of the running means of gradients, and of their squares, stays each step.
        eps: added to the root of the second.
        decay: by how much of itself, times the rate, each number of a matrix shrinks.
        clip: the most that the whole gradient's length may be; a longer one is scaled down, none
            where this is `math.inf`.

    Attributes:
        mean, square: (n,) the running means.
        count: the steps that were made.

    Raises:
        ValueError: a number is out of range.

    Source:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
    """

    def __init__(
        self,
        network: Network,
        *,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        decay: float = 0.01,
        clip: float = 1.0,
    ) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"AdamW: betas are {betas}: give two, from 0 to below 1")
        for name, value in (("eps", eps), ("decay", decay)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"AdamW: {name} is {value}: it must be finite and not negative")
        if not clip > 0:
            raise ValueError(f"AdamW: clip is {clip}: it must be above 0, math.inf for no limit")
        self.network, self.betas, self.eps = network, betas, eps
        self.decay, self.clip = decay, clip
        self.mean, self.square = np.zeros_like(network.flat), np.zeros_like(network.flat)
        self.count = 0

    def length(self) -> float:
        """The length of the gradient; not finite where one of its numbers is not."""
        return gradient_norm(self.network.gradient)

    def step(self, rate: float, length: float | None = None) -> None:
        """Let the parameters take one step against the gradient, whose length may be given."""
        length = self.length() if length is None else length
        if not math.isfinite(length):
            raise FloatingPointError("AdamW: a gradient is not finite")
        self.count += 1
        network, cut = self.network, self.network.matrices
        for part, decay in ((slice(cut), self.decay), (slice(cut, None), 0.0)):
            arrays: list[Array] = [network.flat, network.gradient, self.mean, self.square]
            adamw(
                *(array[part] for array in arrays),
                rate=rate,
                betas=self.betas,
                eps=self.eps,
                decay=decay,
                step=self.count,
                factor=min(1.0, self.clip / length) if length > 0 else 1.0,
            )
