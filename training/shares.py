"""Shares of successful tries, and their confidence intervals."""

from __future__ import annotations

import math

_SIGMAS = 1.959964  # the quantile of a normal distribution that bounds its central 95%


def wilson(right: int, tries: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a share.

    Source:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    >>> low, high = wilson(10, 100)
    >>> round(low, 4), round(high, 4)
    (0.0552, 0.1744)
    >>> wilson(0, 0)
    (0.0, 1.0)
    """
    if not tries:
        return 0.0, 1.0
    share, of_one = right / tries, _SIGMAS**2 / tries
    middle = (share + of_one / 2) / (1 + of_one)
    half = _SIGMAS * math.sqrt(share * (1 - share) / tries + of_one / 4 / tries) / (1 + of_one)
    return max(0.0, middle - half), min(1.0, middle + half)


def in_words(right: int, tries: int) -> str:
    """Format a share and its confidence interval.

    >>> in_words(10, 100)
    '10.0% (5.5 to 17.4)'
    """
    low, high = wilson(right, tries)
    return f"{right / max(tries, 1):.1%} ({100 * low:.1f} to {100 * high:.1f})"
