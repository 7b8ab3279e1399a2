"""Right and wrong ways to connect the parts of a block and their norms.

A rule takes x, the parts (attention, then the MLP) and the norm of each part, and returns the
output of the block.
"""

from collections.abc import Callable, Collection, Sequence

from qkv.arrays import Array
from qkv.marking.mistake import Steps

Part = Callable[[Array], Array]
Rule = Callable[[Array, Sequence[Part], Sequence[Part]], Array]


def pre_norm(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Connect the parts in the right way: each part reads the normalized x, and adds to x."""
    for part, norm in zip(parts, norms, strict=True):
        x = x + part(norm(x))
    return x


def wire(rule: Rule) -> Steps:
    """Return steps that connect the parts of a block with this rule."""
    return {"wire": rule}


def some_parts(numbers: Collection[int], other: Callable[[Array, Part, Part], Array]) -> Steps:
    """Return steps that use `other` for these parts, and connect the rest in the right way."""

    def rule(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
        for number, (part, norm) in enumerate(zip(parts, norms, strict=True)):
            x = other(x, part, norm) if number in numbers else x + part(norm(x))
        return x

    return wire(rule)


def _each_part(other: Callable[[Array, Part, Part], Array]) -> list[Steps]:
    """Return three variants: use `other` for both parts, only the first, or only the second."""
    return [some_parts(numbers, other) for numbers in ((0, 1), (0,), (1,))]


def _normed_by(first: int, second: int) -> Steps:
    """Return steps in which the parts use the norms with these two indices."""
    return wire(lambda x, parts, norms: pre_norm(x, parts, (norms[first], norms[second])))


def _norm_kept(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Let both parts read the normalized input of the first part."""
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
