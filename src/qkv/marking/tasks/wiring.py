"""How attention, an MLP and two norms are wired to a block: right, and as learners get it wrong.

A rule is given x and the four parts, and gives the block's output.
"""

from __future__ import annotations

from collections.abc import Callable

from qkv.arrays import Array
from qkv.marking.mistake import Steps

Part = Callable[[Array], Array]
Rule = Callable[[Array, Part, Part, Part, Part], Array]


def wire(rule: Rule) -> Steps:
    """The steps of a block that is wired by this rule."""
    return {"wire": rule}


def pre_norm(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    """The right one: each part reads the norm of x, and is added to x."""
    x = x + attend(norm1(x))
    return x + mlp(norm2(x))


def post_norm(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    """As in the first transformer."""
    x = norm1(x + attend(x))
    return norm2(x + mlp(x))


def _same(x: Array) -> Array:
    return x


def _both_lost(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return mlp(norm2(attend(norm1(x))))


def _first_lost(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = attend(norm1(x))
    return x + mlp(norm2(x))


def _second_lost(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return mlp(norm2(x + attend(norm1(x))))


def _normed_twice(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = norm1(x)
    x = norm2(x + attend(x))
    return x + mlp(x)


def _normed_first(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = norm1(x)
    x = x + attend(x)
    return x + mlp(norm2(x))


def _normed_second(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = norm2(x + attend(norm1(x)))
    return x + mlp(x)


def _without_first(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return pre_norm(x, attend, mlp, _same, norm2)


def _without_second(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return pre_norm(x, attend, mlp, norm1, _same)


def _without_both(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return pre_norm(x, attend, mlp, _same, _same)


def _kept(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    normed = norm1(x)
    return x + attend(normed) + mlp(normed)


def _first_for_both(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return pre_norm(x, attend, mlp, norm1, norm1)


def _second_for_both(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return pre_norm(x, attend, mlp, norm2, norm2)


def _exchanged(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    return pre_norm(x, attend, mlp, norm2, norm1)


NO_RESIDUAL = (wire(_both_lost), wire(_first_lost), wire(_second_lost))
NORMED_STREAM = (wire(_normed_twice), wire(_normed_first), wire(_normed_second))
NO_NORM = (wire(_without_first), wire(_without_second), wire(_without_both))
ONE_NORM_TWICE = (wire(_first_for_both), wire(_second_for_both))
NORMS_EXCHANGED = (wire(_exchanged),)
NORM_KEPT = (wire(_kept),)
