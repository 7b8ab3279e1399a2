"""Call and mark step functions, which pass a cache from one call to the next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import Compute, Group, Marking
from qkv.marking.findings import Finding, nothing_returned, of_mistake, overwritten
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, differ, first_wrong, kind_of, name_of, numbers, outcome
from qkv.marking.tasks.task import Texts

_TEXTS = Texts(__name__)


@dataclass(frozen=True)
class Run:
    """One text in parts: word vectors (T, D), and the number of words in each call."""

    arrays: dict[str, Array]
    parts: tuple[int, ...]
    positions: Array | None = None
    later: dict[str, Array] | None = None  # projections after the first call, if different

    def pieces(self) -> list[Array]:
        """Return the word vectors of each call."""
        return np.split(self.arrays["x"], np.cumsum(self.parts)[:-1])

    def shown(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat these calls."""
        ends = np.cumsum(self.parts).tolist()
        calls = [f"x[{end - part}:{end}]" for part, end in zip(self.parts, ends, strict=True)]
        table = {} if self.positions is None else {"positions": self.positions}
        later = {f"{name} from the second call on": a for name, a in (self.later or {}).items()}
        return self.arrays | later | table | {"the calls, in order": ", ".join(calls)}


class Stepping:
    """A learner's step function, called for one part of a text at a time.

    Args:
        step: the function.
        call: a function that takes `step`, a case, the words of this call and a cache.
    """

    def __init__(self, step: Callable[..., Any], call: Callable[..., Any]) -> None:
        self.step, self.call = step, call
        self.first: Callable[[], Any] = lambda: None  # the cache for the first call
        self.cache_first = False
        self.given_back: list[tuple[Array, Array]] = []  # (copy, array) of each output

    def __call__(self, case: Run) -> Any:
        """Return the outputs of all calls as one array, or the first output of another type."""
        outs, cache = [], self.first()
        for x in case.pieces():
            out, cache = self.make_call(case, x, cache)
            if (rows := numbers(out)) is None:
                return out
            self.given_back.append((rows.copy(), rows))
            outs.append(np.atleast_2d(self.given_back[-1][0]))
            if case.later is not None:
                case = replace(case, arrays=case.arrays | case.later)
        return np.concatenate(outs)

    def alone(self, case: Run) -> Any:
        """Return the output of one call with all words, as if the function had no cache."""
        returned = self.call(self.step, case, case.arrays["x"], self.first())
        return returned[0] if isinstance(returned, tuple) and returned else returned

    def make_call(self, case: Run, x: Array, cache: Any) -> tuple[Any, Any]:
        """Make one call, and return the output and the cache for the next call."""
        returned = self.call(self.step, case, x, cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise NoCacheError(returned)
        out, cache = returned[::-1] if self.cache_first else returned
        return out, cache


class NoCacheError(TypeError):
    """The error for a step that does not return an output and a cache.

    Args:
        returned: the returned object.
    """

    def __init__(self, returned: Any) -> None:
        self.returned = returned
        kind = "None" if returned is None else kind_of(returned)
        number = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        super().__init__(f"it returns {kind}{number}, not (out, cache)")


class StepMarking(Marking):
    """The test results of one step function so far.

    Args:
        task: the task's name.
        function: a learner's step function.
        call: a function that takes `function`, a case, the words of this call and a cache.
        compute: a function that computes the output of a case with given steps.
        steps: the right steps.
        returns: the right return statement.
        smallest: a case with two calls of one word each.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        call: Callable[..., Any],
        compute: Compute,
        steps: Steps,
        *,
        returns: str,
        smallest: Run,
    ) -> None:
        stepping = Stepping(function, call)
        super().__init__(
            task,
            name_of(function),
            lambda case: outcome(case, stepping, compute(case, steps)),
            compute,
            steps,
            returns=returns,
        )
        self.stepping, self.smallest = stepping, smallest

    def first_calls(self) -> None:
        """Check that a call returns an output and a cache, and that texts do not share a cache."""
        first = self.call(self.smallest)
        if first.error is not None and not isinstance(first.error, NoCacheError):
            first = self._with_another_first_cache() or first
        again = self.call(self.smallest)
        if isinstance(first.error, NoCacheError):
            self.find(self._no_cache(first, first.error))
            whole = replace(self.smallest, parts=(sum(self.smallest.parts),))
            if not outcome(whole, self.stepping.alone, first.right).is_right:
                self.steps = None  # wrong even without a cache
        elif not first.is_right and self._right_in_other_order():
            self.find(_TEXTS.finding("cache-first", first, remedy=self.returns))
        elif first.is_right and differ(first.out, again.out):
            more = {"yours the first time": first.out}
            self.find(_TEXTS.finding("cache-shared", again, more))
        else:
            self.first_call(self.smallest)

    def _with_another_first_cache(self) -> Outcome | None:
        """Try {} and [] as the first cache instead of None, and return the first run that works."""
        for make in (dict, list):
            self.stepping.first = make
            if (other := self.call(self.smallest)).error is None:
                self.limits.append(f"The cache of its first call has to be {make()}, not None.")
                return other
        self.stepping.first = lambda: None
        return None

    def test_in_parts(
        self, single: Sequence[Run], more: Sequence[Run], known: Sequence[Mistake]
    ) -> None:
        """Test calls with one word and calls with several words, separately or in one group.

        Args:
            single: cases with one word in each call.
            more: cases with several words in at least one call.
            known: possible mistakes.
        """
        alone, several = "one word in each call", "several words in one call"
        if self._told_together(self.run(single), self.run(more), known):
            self.test(Group(f"{alone}, and {several}", (*single, *more), known))
        else:
            self.test(Group(alone, single, known))
            self.test(Group(several, more, known))

    def _told_together(
        self, single: list[Outcome], more: list[Outcome], known: Sequence[Mistake]
    ) -> bool:
        """Tell whether the errors in all calls are better explained together than in two groups."""
        if all(run.error is not None for run in single):
            return True  # many mistakes raise the same error
        together, first = self.explain([*single, *more], known), self.explain(single, known)
        if together is None:
            return False
        # if two mistakes explain all calls, first report the one that calls with one word reveal
        mistakes = together[1]
        return len(mistakes) < 2 or first is None or any(m not in mistakes for m in first[1])

    def last_calls(self, others: Sequence[Run], recomputed: Sequence[Mistake]) -> None:
        """If no call was wrong so far, check that the step uses its cache and does not modify it.

        Args:
            others: texts whose projections change after the first call.
            recomputed: the mistake that cached rows are computed again, in several variants.
        """
        if self.wrong:
            return
        self.tried.append("keys and values of earlier calls")
        runs = self.run(others)
        for mistake in (self.explain(runs, recomputed) or (None, []))[1]:
            self.find(of_mistake(mistake, first_wrong(runs)))
        given_back = tuple(self.stepping.given_back)
        self.find(overwritten([replace(self.runs[0], given_back=given_back)]))
        if not self.wrong and self._writes_to_cache():
            self.limits.append(
                "It writes to its cache: before you continue from a cache in two ways, copy it."
            )

    @property
    def gives_none(self) -> bool:
        """Whether the first call returns None as the cache."""
        call = self.stepping

        def first_cache(run: Run) -> Array:
            return np.array(call.make_call(run, run.pieces()[0], call.first())[1] is None)

        return outcome(self.smallest, first_cache, np.array(True)).is_right

    def _right_in_other_order(self) -> bool:
        """Tell whether the step is right if it returns (cache, out) instead of (out, cache)."""
        self.stepping.cache_first = True
        run = self.call(self.smallest)
        self.stepping.cache_first = False
        return run.is_right

    def _writes_to_cache(self) -> bool:
        """Tell whether a second call with the same cache gives a different output or an error."""
        call = self.stepping

        def second_time(run: Run) -> Any:
            first, last = run.pieces()
            _, cache = call.make_call(run, first, call.first())
            call.make_call(run, last, cache)
            return call.make_call(run, last, cache)[0]

        right = self.call(self.smallest).right[-1:]
        return not outcome(self.smallest, second_time, right).is_right

    def _no_cache(self, run: Outcome, error: NoCacheError) -> Finding:
        yours = {"yours": str(error).removeprefix("it returns ")}
        if error.returned is None:
            return replace(nothing_returned(run, str(error), self.returns), more=yours)
        long = isinstance(error.returned, tuple | list) and len(error.returned) > 2
        name = "cache-not-one-object" if long else "cache-not-returned"
        return _TEXTS.finding(name, run, yours, error=error, remedy=self.returns)
