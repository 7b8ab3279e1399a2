"""How the parts of a block are wired, each with its norm: right, and as learners get it wrong.

A rule is given x, the parts (attention, then the MLP) and the norm of each, and gives the block's
output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from qkv.arrays import Array
from qkv.marking.mistake import Steps

Part = Callable[[Array], Array]
Rule = Callable[[Array, Sequence[Part], Sequence[Part]], Array]


def pre_norm(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Return the right output: each part reads the norm of x, and is added to x."""
    for part, norm in zip(parts, norms, strict=True):
        x = x + part(norm(x))
    return x


def wire(rule: Rule) -> Steps:
    """Return the steps of a block that is wired by this rule."""
    return {"wire": rule}


def some_parts(numbers: Collection[int], other: Callable[[Array, Part, Part], Array]) -> Steps:
    """Wire the parts of these numbers in another way, and the other parts rightly."""

    def rule(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
        for number, (part, norm) in enumerate(zip(parts, norms, strict=True)):
            x = other(x, part, norm) if number in numbers else x + part(norm(x))
        return x

    return wire(rule)


def _each_part(other: Callable[[Array, Part, Part], Array]) -> list[Steps]:
    """Wire both parts in another way, then the first alone, then the second alone."""
    return [some_parts(numbers, other) for numbers in ((0, 1), (0,), (1,))]


def _normed_by(first: int, second: int) -> Steps:
    """Give the two parts the norms of these numbers."""
    return wire(lambda x, parts, norms: pre_norm(x, parts, (norms[first], norms[second])))


def _norm_kept(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Both parts read the norm that the first part reads."""
    attend, mlp = parts
    normed = norms[0](x)
    return x + attend(normed) + mlp(normed)


POST_NORM = some_parts((0, 1), lambda x, part, norm: norm(x + part(x)))
NORM_OF_RESULT = some_parts((0, 1), lambda x, part, norm: x + norm(part(x)))
NO_RESIDUAL = _each_part(lambda x, part, norm: part(norm(x)))
NORMED_STREAM = _each_part(lambda x, part, norm: norm(x) + part(norm(x)))
NO_NORM = _each_part(lambda x, part, norm: x + part(x))
ONE_NORM_TWICE = (_normed_by(0, 0), _normed_by(1, 1))
NORMS_EXCHANGED = (_normed_by(1, 0),)
NORM_KEPT = (wire(_norm_kept),)
