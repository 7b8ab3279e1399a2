"""Which token comes next: how it is chosen from logits, and what they say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array, real_number, shown, whole_number


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits, as `transformers` does it, in this order.

    Attributes:
        temperature: what logits are divided by; 0 takes the largest.
        top_k: how many of the largest may be chosen, and what is as large as the last of them.
        top_p: the likeliest tokens may be chosen until their probabilities sum to this.

    Raises:
        TypeError: one is not a number.
        ValueError: one makes no sense.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        temperature = real_number(self.temperature, call="generate", name="temperature")
        if not 0 <= temperature < math.inf:
            raise ValueError(
                f"generate: temperature is {temperature}: it must be finite, and 0 or above"
            )
        if self.top_k is not None:
            whole_number(self.top_k, call="generate", name="top_k", least=1)
        if self.top_p is not None:
            top_p = real_number(self.top_p, call="generate", name="top_p")
            if not 0 < top_p <= 1:
                raise ValueError(f"generate: top_p is {top_p}: it must be above 0 and at most 1")

    def check_draws(self, seed: int | None) -> None:
        """Raise ValueError where an option of drawing is given and no token is drawn."""
        given = {"top_k": self.top_k, "top_p": self.top_p, "seed": seed}
        named = [f"{name} is {shown(value)}" for name, value in given.items() if value is not None]
        if named and self.temperature == 0:
            raise ValueError(
                f"generate: {', '.join(named)} and temperature is 0, which takes the likeliest "
                "token each time and draws none: give a temperature above 0, say 1, or leave out "
                f"{' and '.join(one.split()[0] for one in named)}"
            )

    def allowed(self, logits: Array) -> tuple[Array, Array]:
        """Which of the tokens (V,) may be chosen, and their probabilities.

        >>> ids, probabilities = Sampling(1.0, top_k=2).allowed(np.log([0.1, 0.6, 0.3]))
        >>> ids, probabilities.round(2)
        (array([1, 2]), array([0.67, 0.33]))
        """
        with np.errstate(over="ignore"):
            wide = logits.astype(np.float64)
            scores = (wide - wide.max()) / (self.temperature or 1.0)
        ids = np.arange(len(scores))
        if self.top_k is not None and self.top_k < len(scores):
            least = np.partition(scores, -self.top_k)[-self.top_k]
            ids = np.flatnonzero(scores >= least)
        probabilities = np.exp(scores[ids])
        probabilities /= probabilities.sum()
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            likelier = np.cumsum(probabilities[order]) - probabilities[order]
            kept = np.sort(order[likelier < self.top_p])
            ids, probabilities = ids[kept], probabilities[kept] / probabilities[kept].sum()
        return ids, probabilities

    def __call__(self, logits: Array, rng: np.random.Generator) -> int:
        """One token, drawn from logits (V,)."""
        if self.temperature == 0:
            return int(logits.argmax())
        ids, probabilities = self.allowed(logits)
        sums = np.cumsum(probabilities)
        return int(ids[np.searchsorted(sums, rng.random() * sums[-1], side="right")])


class Measured(NamedTuple):
    """What the model made of one token, before any temperature.

    Attributes:
        logit: of the token.
        log_probability: the same after the softmax, in nats.
        top: the likeliest tokens in its place and their log probabilities, the likeliest first.
    """

    logit: float
    log_probability: float
    top: list[tuple[int, float]]


def measured(logits: Array, token: int, top: int = 0) -> Measured:
    """What logits (V,) say of a token, and of so many of the likeliest.

    >>> found = measured(np.log([0.1, 0.6, 0.3]), 2, top=2)
    >>> round(found.log_probability, 4), [(token, round(log, 4)) for token, log in found.top]
    (-1.204, [(1, -0.5108), (2, -1.204)])
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    logs = wide - np.log(np.exp(wide).sum())
    top = min(top, len(logs))
    if not top:
        return Measured(float(logits[token]), float(logs[token]), [])
    ids = np.flatnonzero(logs >= np.partition(logs, -top)[-top])
    ids = ids[np.argsort(-logs[ids], kind="stable")][:top]
    likeliest = list(zip(ids.tolist(), logs[ids].tolist(), strict=True))
    return Measured(float(logits[token]), float(logs[token]), likeliest)
