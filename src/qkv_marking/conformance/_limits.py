"""Find the sizes that a function takes, and adapt cases to these sizes."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from qkv_marking.conformance._runs import CaseResult
from qkv_marking.conformance.read_cases import POSITIONAL, Case

_LENGTHS = (*range(1, 9), 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 256, 257)
# the sizes to try, keyed by the field of `Case`
_TRIED = MappingProxyType(
    {
        "d": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256),
        "B": (1, 2, 3),
        "L": _LENGTHS,
        "S": _LENGTHS,
    }
)
_TOGETHER = MappingProxyType({"d": ("d", "dv"), "B": ("B",), "L": ("L",), "S": ("S",)})
# a function that takes all of these sizes (B, L, S, d) has no limits
_FIRST = (
    *((1, 1, 1, 1), (2, 5, 5, 8), (3, 3, 7, 3), (2, 7, 3, 6), (1, 4, 257, 40), (1, 129, 5, 128)),
    *((1, 2, 33, 96), (1, 3, 2, 256)),
)
_LONGEST = 1024  # a case is not made square beyond this length, to save time
_USUAL_D = (64, 128, 32, 16, 8, 256, 96, 4, 1)
_USUAL = ((64, 64), (128, 128), (256, 256), (16, 16), (1, 64), (1, 128), (8, 8), (4, 4), (1, 1))


class _Sizes(NamedTuple):
    """Those of the tried sizes that a function accepts."""

    accepted: tuple[int, ...]
    tried: tuple[int, ...]

    @property
    def step(self) -> int:
        """The number whose multiples in the accepted range are all accepted, or 0."""
        step, low, top = math.gcd(*self.accepted), min(self.accepted), max(self.accepted)
        between = [n for n in self.tried if n % step == 0 and low <= n <= top]
        return step if between == [*self.accepted] and len(between) > 4 else 0

    def nearest(self, size: int) -> int:
        """Return the smallest accepted size of at least `size`; if there is none, the largest."""
        low, top = min(self.accepted), max(self.accepted)
        if not self.step:
            return min((n for n in self.accepted if n >= size), default=top)
        size = max(low, -(-size // self.step) * self.step)
        has_top = any(n > top and n % self.step == 0 for n in self.tried)
        return min(size, top) if has_top else size

    def says(self, name: str) -> str:
        """Describe the sizes, for example "d is a multiple of 8"."""
        if not self.step:
            *some, last = map(str, self.accepted)
            return f"{name} is {', '.join(some)} or {last}" if some else f"{name} is {last}"
        low, top = min(self.accepted), max(self.accepted)
        words = [f"a multiple of {self.step}"] if self.step > 1 else []
        words += [f"at least {low}"] if low > self.step else []
        words += [f"at most {top}"] if self.nearest(top + 1) == top else []
        return f"{name} is {' and '.join(words)}"


class Limits(NamedTuple):
    """The limits of a function: the sizes that it accepts, and whether L must equal S."""

    sizes: Mapping[str, _Sizes]
    square: bool = False

    def fit(self, case: Case) -> Case:
        """Return the case with sizes that the function takes; sizes of 0 stay 0."""
        L, S = case.L, case.S
        if L and S and self.square:
            L = S = max(min(L, S), min(max(L, S), _LONGEST))
        sizes: dict[str, Any] = {"B": case.B, "L": L, "S": S, "d": case.d, "dv": case.dv}
        for name, size in sizes.items():
            accepted = self.sizes.get(name[0])
            if accepted is not None and size:
                sizes[name] = accepted.nearest(size)
        options = dict(case.options)
        if case.L == case.S and sizes["L"] != sizes["S"] and {*options} & {*POSITIONAL}:
            options.setdefault("q_offset", "aligned")
        return replace(case, options=options, **sizes)

    def says(self) -> tuple[str, ...]:
        """Describe the limits, for example `("d is 64, 96 or 128", "L = S")`."""
        sizes = (sizes.says(name) for name, sizes in self.sizes.items())
        return (*sizes, *["L = S"] * self.square)


def find_limits(run: Callable[[Case], CaseResult], dtype: str) -> Limits | None:
    """Find the limits of a function; return None if it refuses every call.

    Args:
        run: a function that runs a case.
        dtype: the dtype of the calls.
    """

    def takes(case: Case) -> bool:
        return run(case).status != "refused"

    def call(B: int, L: int, S: int, d: int) -> Case:
        return Case("plain", "limits", B=B, L=L, S=S, d=d, dv=d, dtype=dtype)

    for sizes in _FIRST:
        result = run(call(*sizes))
        if result.status == "refused":
            break
        if result.ended:  # do not wait for further calls that crash or hang
            return Limits({})
    else:
        return Limits({})
    usual = (call(B, *n, d) for d, B, n in itertools.product(_USUAL_D, (2, 1), _USUAL))
    base = next(filter(takes, usual), None)
    if base is None:
        return None

    def find_accepted(*names: str) -> _Sizes:
        tried = _TRIED[names[0]]
        cases = {n: replace(base, **cast(Any, dict.fromkeys(names, n))) for n in tried}
        return _Sizes(tuple(n for n, case in cases.items() if takes(case)), tried)

    found = {name: find_accepted(*names) for name, names in _TOGETHER.items()}
    square = found["L"].accepted == found["S"].accepted == (base.L,)
    if square:
        found["L"] = found["S"] = find_accepted("L", "S")
    limited = {name: sizes for name, sizes in found.items() if sizes.accepted != sizes.tried}
    return Limits(limited, square)
