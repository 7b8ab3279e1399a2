"""Choose the next token from logits, and measure the probability of a token."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array, quote, real_number, whole_number
from qkv.models.tasks.predict import largest, log_softmax


@dataclass(frozen=True)
class Sampling:
    """The rules that choose a token from logits.

    As in `transformers`, the rules apply in this order: `temperature`, `top_k`, `top_p`.

    Attributes:
        temperature: divides the logits; 0 chooses the token with the largest logit.
        top_k: only the tokens with the `top_k` largest logits may be chosen. Tokens whose logit
            ties with the smallest of these logits may be chosen too.
        top_p: only the most likely tokens may be chosen: the smallest set whose total probability
            is `top_p` or more.

    Raises:
        TypeError: a value is not a number.
        ValueError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        temperature = real_number(self.temperature, name="temperature")
        if not 0 <= temperature < math.inf:
            raise value_error(f"temperature is {temperature}: it must be finite, and 0 or above")
        if self.top_k is not None:
            whole_number(self.top_k, name="top_k", least=1)
        if self.top_p is not None:
            top_p = real_number(self.top_p, name="top_p")
            if not 0 < top_p <= 1:
                raise value_error(f"top_p is {top_p}: it must be above 0 and at most 1")

    def check_draws(self, seed: int | None) -> None:
        """Raise a ValueError if a sampling option is given at temperature 0."""
        options = {"top_k": self.top_k, "top_p": self.top_p, "seed": seed}
        named = [
            f"{name} is {quote(value)}" for name, value in options.items() if value is not None
        ]
        if named and self.temperature == 0:
            raise value_error(
                f"{', '.join(named)} and temperature is 0, which always takes the most "
                "likely token; pass a temperature above 0, for example 1, or omit"
                f" {' and '.join(text.split()[0] for text in named)}"
            )

    def allowed_tokens(self, logits: Array) -> tuple[Array, Array]:
        """Return `(tokens, probabilities)` of the tokens that may be chosen, given logits (V,).

        >>> ids, probabilities = Sampling(1.0, top_k=2).allowed_tokens(np.log([0.1, 0.6, 0.3]))
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
            indices = np.sort(order[likelier < self.top_p])
            ids, probabilities = ids[indices], probabilities[indices] / probabilities[indices].sum()
        return ids, probabilities

    def __call__(self, logits: Array, rng: np.random.Generator) -> int:
        """Choose a token from logits (V,)."""
        if self.temperature == 0:
            return int(logits.argmax())
        ids, probabilities = self.allowed_tokens(logits)
        sums = np.cumsum(probabilities)
        return int(ids[np.searchsorted(sums, rng.random() * sums[-1], side="right")])


class Measured(NamedTuple):
    """The logit and probability of a token, before the temperature is applied.

    Attributes:
        logit: the logit of the token.
        log_probability: the logarithm of the token's probability, in nats.
        top: the most likely tokens at the same position with their log probabilities, most likely
            first.
    """

    logit: float
    log_probability: float
    top: list[tuple[int, float]]


def measure_token(logits: Array, token: int, top: int = 0) -> Measured:
    """Measure how likely a token is, given logits (V,); also find the `top` most likely tokens.

    >>> result = measure_token(np.log([0.1, 0.6, 0.3]), 2, top=2)
    >>> round(result.log_probability, 4), [(token, round(log, 4)) for token, log in result.top]
    (-1.204, [(1, -0.5108), (2, -1.204)])
    """
    logs = log_softmax(logits)
    return Measured(float(logits[token]), float(logs[token]), largest(logs, min(top, len(logs))))
