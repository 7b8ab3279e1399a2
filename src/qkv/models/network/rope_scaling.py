"""Rotary positions for longer texts than a model was made for: how fast each pair is rotated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array
from qkv.embed.rotary import rotary_speeds

# All that follows is computed in float64. Most libraries round the speeds, the angles and their
# cosines to float32 one after the other; what is published is the formula, and float64 stays within
# their own rounding.


@dataclass(frozen=True)
class Linear:
    """All speeds divided by one factor, as if positions lay closer together.

    Source:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
        Interpolation", equation 4.
    """

    factor: float

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Those of each pair, and what queries and keys are multiplied by."""
        return rotary_speeds(base, dims) / self.factor, 1.0


@dataclass(frozen=True)
class Dynamic:
    """A base that grows with the text, once that is longer than the model was made for.

    With s = factor * length / limit - (factor - 1), where a shorter length counts as the limit,
    the base is multiplied by `s**(dims / (dims - 2))`: the first pair keeps its speed, the last
    one is divided by s.

    The length is that of the text: what a text gives does not depend on what it runs beside. In
    `model(ids)` and while generating it is that of the longest text of the batch, and keys in a
    cache stay as they were rotated when they came in, so that texts beyond the limit read word by
    word differ from the same texts read at once; both as transformers does it. It also keeps the
    base of the longest text it has seen until it sees a short one; here each call counts its own
    texts only.

    Source:
        "NTK-aware" scaling by bloc97, made dynamic by emozilla (2023); Peng et al. 2023, YaRN,
        section 3.3.
    """

    factor: float
    limit: int

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Those of each pair, and what queries and keys are multiplied by."""
        stretch = self.factor * max(length, self.limit) / self.limit - (self.factor - 1)
        return rotary_speeds(base * stretch ** (dims / (dims - 2)), dims), 1.0


@dataclass(frozen=True)
class Yarn:
    """Fast pairs as they are, slow ones divided by a factor, and a ramp between the two.

    Pair i goes through `n = limit * base**(-2i / dims) / (2 pi)` whole turns in a text as long as
    the model was first made for. The ramp runs over the pairs' numbers, from that which makes
    `fast` turns to that which makes `slow` turns; `truncate` widens it to whole numbers.

    Source:
        Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models",
        section 3.2 and equation 22; `scale` is its square root of 1/t.
    """

    factor: float
    limit: int
    scale: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Those of each pair, and what queries and keys are multiplied by."""
        first, last = (
            dims * math.log(self.limit / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        if first == last:
            last += 0.001  # a step, where there is no room for a ramp
        ramp = np.clip((np.arange(dims // 2) - first) / (last - first), 0, 1)
        fast = rotary_speeds(base, dims)
        return fast * (1 - ramp) + fast / self.factor * ramp, self.scale


@dataclass(frozen=True)
class LongRope:
    """Each pair divided by a number of its own, of one list for short texts or one for long ones.

    Long is what has more tokens than the model was first made for, counted as for `Dynamic`; keys
    in a cache stay as they were rotated.

    Source:
        Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
        section 3.1.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    limit: int
    scale: float

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Those of each pair, and what queries and keys are multiplied by."""
        factors = self.long if length > self.limit else self.short
        return rotary_speeds(base, dims) / np.array(factors), self.scale


@dataclass(frozen=True)
class Llama3:
    """Pairs that rotate fast as they are, slow ones divided by a factor.

    A pair that goes through n whole turns in a text as long as the model was first made for keeps
    its speed from n = high on, is divided by the factor below n = low, and is between the two in
    between, in proportion to n.

    Source:
        Llama 3.1 (Dubey et al. 2024, section 3.4.2), `apply_scaling` of Meta's published code.
    """

    factor: float
    low: float
    high: float
    limit: int

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Those of each pair, and what queries and keys are multiplied by."""
        fast = rotary_speeds(base, dims)
        turns = self.limit * fast / (2 * np.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return fast * share + fast / self.factor * (1 - share), 1.0


@dataclass(frozen=True)
class Proportional:
    """The first pairs are rotated as if all were, the rest stay where they are.

    Source:
        `rope_type` "proportional" of transformers, as Gemma 4 has it.
    """

    part: float
    factor: float

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Those of each pair, and what queries and keys are multiplied by."""
        rotated = int(self.part * dims // 2)
        fast = rotary_speeds(base, dims)
        return np.where(np.arange(dims // 2) < rotated, fast, 0) / self.factor, 1.0
