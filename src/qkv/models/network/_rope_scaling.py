"""Scalings of rotary positions, for texts longer than in training.

Rotary positions rotate each pair of dimensions at its own speed; a scaling changes the speeds.
"""

import math
from dataclasses import dataclass

import numpy as np

from qkv.arrays import Array
from qkv.embed.rotary import rotary_speeds

# All speeds are computed in float64. Most libraries round speeds, angles and cosines to float32.
# Their results differ from qkv's only by this rounding.


@dataclass(frozen=True)
class Linear:
    """Linear scaling: divide all speeds by one factor, as if all distances were shorter.

    Source:
        Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
        Interpolation", equation 4.
    """

    factor: float

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return each pair's rotation speed, and a factor for queries and keys."""
        return rotary_speeds(base, dims) / self.factor, 1.0


@dataclass(frozen=True)
class Dynamic:
    """Dynamic scaling: for texts longer than those in training, the base grows with the length.

    The base is multiplied by `s**(dims / (dims - 2))`, where
    `s = factor * length / limit - (factor - 1)`. If `length` is below `limit`, s is 1. The first
    pair keeps its speed; the speed of the last pair is divided by s.

    Each text is scaled by its own length, so results do not depend on other texts in the batch.
    `model(ids)` and `generate` are exceptions: they scale all texts by the length of the longest
    text in the batch, as transformers does. Cached keys keep the rotation of the call that computed
    them. For a text longer than `limit`, one call with the whole text therefore gives different
    results from one call per token. In qkv, a call computes the base only from its own texts; in
    transformers, the base also depends on earlier calls.

    Source:
        "NTK-aware" scaling by bloc97, made dynamic by emozilla (2023); Peng et al. 2023, YaRN,
        section 3.3.
    """

    factor: float
    limit: int

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return each pair's rotation speed, and a factor for queries and keys."""
        stretch = self.factor * max(length, self.limit) / self.limit - (self.factor - 1)
        return rotary_speeds(base * stretch ** (dims / (dims - 2)), dims), 1.0


@dataclass(frozen=True)
class Yarn:
    """YaRN: divide the speeds of slow pairs by a factor, keep fast pairs, and blend in between.

    The original context length is `limit` tokens. In a text of `limit` tokens, pair i makes
    `n = limit * base**(-2i / dims) / (2 pi)` turns. Pairs with more than `fast` turns keep their
    speed; the speed of pairs with fewer than `slow` turns is divided by the factor. If `truncate`
    is True, the indices of the first and the last blended pair are rounded outwards to integers, so
    that more pairs are blended.

    Source:
        Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models",
        section 3.2 and equation 22; `scale` is the paper's square root of 1/t.
    """

    factor: float
    limit: int
    scale: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return each pair's rotation speed, and a factor for queries and keys."""
        first, last = (
            dims * math.log(self.limit / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        if first == last:
            last += 0.001  # Prevents a division by zero in `ramp`.
        ramp = np.clip((np.arange(dims // 2) - first) / (last - first), 0, 1)
        fast = rotary_speeds(base, dims)
        return fast * (1 - ramp) + fast / self.factor * ramp, self.scale


@dataclass(frozen=True)
class LongRope:
    """LongRoPE: divide each pair's speed by a factor; short and long texts have different factors.

    A text is long if it has more tokens than the original context length `limit`. Each text
    of a batch gets the factors for its own length. `model(ids)` and `generate` are exceptions: all
    texts get the factors for the length of the longest text. Cached keys keep the rotation of the
    call that computed them, unless `renews` is True: then `generate` computes the caches again at
    the first token past `limit`, as transformers does for Phi-3. With edits, it does not.

    Source:
        Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
        section 3.1.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    limit: int
    scale: float
    renews: bool = False

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return each pair's rotation speed, and a factor for queries and keys."""
        factors = self.long if length > self.limit else self.short
        return rotary_speeds(base, dims) / np.array(factors), self.scale


@dataclass(frozen=True)
class Llama3:
    """Llama 3: divide the speeds of slow pairs by a factor, and keep the speeds of fast pairs.

    Let n be the number of turns that a pair of dimensions makes over the original context length.
    If n is at least `high`, the pair keeps its speed. If n is at most `low`, the speed is divided
    by the factor. Between `low` and `high`, the speed is blended in proportion to n.

    Source:
        Llama 3.1 (Dubey et al. 2024, section 3.4.2), and `apply_scaling` in Meta's published code.
    """

    factor: float
    low: float
    high: float
    limit: int

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return each pair's rotation speed, and a factor for queries and keys."""
        fast = rotary_speeds(base, dims)
        turns = self.limit * fast / (2 * np.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return fast * share + fast / self.factor * (1 - share), 1.0


@dataclass(frozen=True)
class Proportional:
    """Rotate only the first pairs, at their usual speeds divided by `factor`.

    Source:
        transformers, where this `rope_type` is "proportional"; Gemma 4 uses it.
    """

    part: float
    factor: float

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """Return each pair's rotation speed, and a factor for queries and keys."""
        rotated = int(self.part * dims // 2)
        fast = rotary_speeds(base, dims)
        return np.where(np.arange(dims // 2) < rotated, fast, 0) / self.factor, 1.0
