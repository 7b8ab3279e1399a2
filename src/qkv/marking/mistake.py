"""A mistake that is known: what it is, how it shows, what mends it, and how it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkv.marking.errors import sentence

Kind = Literal["wrong", "fragile", "convention"]

# a computation, each step by its name
Steps = Mapping[str, Callable[..., Any]]

_NO_NUDGE = "Work the smallest input out by hand: from which step on are your numbers others?"
_NO_LINE = "The example says what should come out: work back from there, step by step."


@dataclass(frozen=True)
class Mistake:
    """One way to get a task wrong.

    Attributes:
        key: its short name.
        says: what is wrong, in words.
        shows: what it does to the result.
        remedy: the line that mends it.
        kind: wrong, fragile (right until numbers get large, or a row sees nothing), or a habit.
        variants: the steps that it puts in the place of the right ones, in each way it is written.
        nudge: what to try or to look at, which does not give the mistake away.
        where: the place in the code where to look.
        alone: it is told only where it explains everything. Two mistakes together are looked for
            among the others, or by chance too many pairs would fit.
    """

    key: str
    says: str
    shows: str
    remedy: str = ""
    kind: Kind = "wrong"
    variants: tuple[Steps, ...] = ()
    nudge: str = ""
    where: str = ""
    alone: bool = False

    @property
    def hint(self) -> tuple[str, ...]:
        """Three grades: a nudge, where to look, the line that mends it."""
        where = self.where or sentence(f"{self.says[:1].upper()}{self.says[1:]}")
        return self.nudge or _NO_NUDGE, where, self.remedy or _NO_LINE


def mistake(
    key: str,
    says: str,
    shows: str,
    *variants: Steps,
    remedy: str = "",
    nudge: str = "",
    where: str = "",
    kind: Kind = "wrong",
    alone: bool = False,
) -> Mistake:
    """A mistake that is written in these ways."""
    return Mistake(key, says, shows, remedy, kind, variants, nudge, where, alone)


def mended(
    remedy: str,
    *mistakes: Mistake,
    nudge: str = "",
    where: str = "",
    kind: Kind = "wrong",
    alone: bool = False,
) -> tuple[Mistake, ...]:
    """Mistakes that one line mends, at one place, but where one has words of its own."""
    return tuple(
        replace(
            one,
            remedy=one.remedy or remedy,
            nudge=one.nudge or nudge,
            where=one.where or where,
            kind=kind if one.kind == "wrong" else one.kind,
            alone=alone or one.alone,
        )
        for one in mistakes
    )
