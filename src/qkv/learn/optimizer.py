"""AdamW for the parameters of a network, and schedules of the learning rate."""

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from qkv.arrays import Array
from qkv.learn._network import Network
from qkv.ops import adamw, gradient_norm


@dataclass(eq=False, repr=False)
class AdamW:
    """Adam with decoupled weight decay for matrices; biases and norms do not decay.

    Args:
        network: the network to train.
        betas: the decay rate of `mean`, and the decay rate of `square`.
        eps: a small number that is added to the root of the mean squared gradient.
        decay: the weight decay; each step multiplies the matrices by `1 - decay * rate`.
        clip: the maximum norm of the whole gradient; a larger gradient is scaled to this norm.
            `math.inf` for no limit.

    Attributes:
        mean, square: (n,), the running means of gradients and of squared gradients.
        count: the number of steps.

    Raises:
        ValueError: a number is out of range.

    Source:
        Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
    """

    network: Network
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"AdamW: betas are {self.betas}; pass two numbers, at least 0 and below 1"
            )
        for name, value in (("eps", self.eps), ("decay", self.decay)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"AdamW: {name} is {value}: it must be finite and not negative")
        if not self.clip > 0:
            problem = f"AdamW: clip is {self.clip}: it must be above 0"
            raise ValueError(f"{problem}; pass math.inf for no limit")
        self.mean, self.square = np.zeros_like(self.network.flat), np.zeros_like(self.network.flat)
        self.count = 0

    def length(self) -> float:
        """Return the norm of the gradient; infinite or NaN if an entry is infinite or NaN."""
        return gradient_norm(self.network.gradient)

    def step(self, rate: float, length: float | None = None) -> None:
        """Update the parameters; `length` is the gradient's norm, or None to compute it."""
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


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule; a point in a run is a number from 0 (start) to 1 (end).

    Attributes:
        rate: the highest rate.
        warmup: the fraction of the run in which the rate rises, such as 0.1.
        fall: how the rate falls after the warmup: "linear", "cosine", or "none" for a constant
            rate.
        least: the final rate, as a fraction of the highest rate.

    >>> schedule = Schedule(1.0, warmup=0.5)
    >>> [schedule(share) for share in (0.25, 0.5, 0.75, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """

    rate: float
    warmup: float = 0.05
    fall: str = "linear"
    least: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ValueError(f"Schedule: rate is {self.rate}: it must be a finite number above 0")
        if not 0 <= self.warmup < 1:
            raise ValueError(
                f"Schedule: warmup is {self.warmup}: it must be at least 0 and below 1"
            )
        if not 0 <= self.least <= 1:
            raise ValueError(f"Schedule: `least` is {self.least}: it must be from 0 to 1")
        if self.fall not in ("linear", "cosine", "none"):
            raise ValueError(f"Schedule: `fall` is {self.fall!r}: choose linear, cosine or none")

    def __call__(self, share: float) -> float:
        """Return the learning rate at a point of the run: 0 is its start, 1 is its end."""
        share = min(max(share, 0.0), 1.0)
        if share < self.warmup:
            return self.rate * share / self.warmup
        left = (1 - share) / (1 - self.warmup)
        if self.fall == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        elif self.fall == "none":
            left = 1.0
        return self.rate * (self.least + (1 - self.least) * left)
