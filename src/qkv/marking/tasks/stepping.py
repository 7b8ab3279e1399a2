"""Functions that go on from call to call with a cache: how they are called, and what is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.engine import Compute, Group, Marking
from qkv.marking.findings import Finding, nothing_returned, of_mistake, overwritten
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, differ, first_wrong, kind_of, name_of, numbers, outcome


@dataclass(frozen=True)
class Run:
    """One text, handed over in parts: word vectors (T, D), and how many go into each call."""

    arrays: dict[str, Array]
    parts: tuple[int, ...]
    positions: Array | None = None
    later: dict[str, Array] | None = None  # other projections, from the second call on

    def pieces(self) -> list[Array]:
        """The word vectors of each call."""
        return np.split(self.arrays["x"], np.cumsum(self.parts)[:-1])

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make these calls by hand."""
        ends = np.cumsum(self.parts).tolist()
        calls = [f"x[{end - part}:{end}]" for part, end in zip(self.parts, ends, strict=True)]
        table = {} if self.positions is None else {"positions": self.positions}
        later = {f"{name} from the second call on": a for name, a in (self.later or {}).items()}
        return self.arrays | later | table | {"the calls, in order": ", ".join(calls)}


class Stepping:
    """Somebody's step function, called part by part.

    Args:
        step: the function.
        call: calls it for a case, with the words of this call and a cache.
    """

    def __init__(self, step: Callable[..., Any], call: Callable[..., Any]) -> None:
        self.step, self.call = step, call
        self.first: Callable[[], Any] = lambda: None  # makes the cache of the first call
        self.cache_first = False
        self.given_back: list[tuple[Array, Array]] = []  # copies, and the arrays of which they are

    def __call__(self, case: Run) -> Any:
        """The outputs of all calls below each other, or what is no output."""
        outs, cache = [], self.first()
        for x in case.pieces():
            out, cache = self.one(case, x, cache)
            if (rows := numbers(out)) is None:
                return out
            self.given_back.append((rows.copy(), rows))
            outs.append(np.atleast_2d(self.given_back[-1][0]))
            if case.later is not None:
                case = replace(case, arrays=case.arrays | case.later)
        return np.concatenate(outs)

    def alone(self, case: Run) -> Any:
        """What one call returns for all the words, as a function without a cache gives them."""
        returned = self.call(self.step, case, case.arrays["x"], self.first())
        return returned[0] if isinstance(returned, tuple) and returned else returned

    def one(self, case: Run, x: Array, cache: Any) -> tuple[Any, Any]:
        """One call: the output and the cache for the next."""
        returned = self.call(self.step, case, x, cache)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise NoCacheError(returned)
        out, cache = returned[::-1] if self.cache_first else returned
        return out, cache


class NoCacheError(TypeError):
    """A step that does not return an output and a cache.

    Args:
        returned: what it returned.
    """

    def __init__(self, returned: Any) -> None:
        self.returned = returned
        what = "None" if returned is None else kind_of(returned)
        number = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        super().__init__(f"it returns {what}{number}, not (out, cache)")


class StepMarking(Marking):
    """A step function on its way through the tests.

    Args:
        task: its name.
        function: somebody's step function.
        call: calls it for a case, with the words of this call and a cache.
        compute: what a case gives if it is computed by some steps.
        steps: the right ones.
        returns: the statement that returns what should be.
        smallest: two calls of one word each.
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
        """Is there an output and then a cache, and does a second text begin anew?"""
        first = self.call(self.smallest)
        if first.error is not None and not isinstance(first.error, NoCacheError):
            first = self._with_another_first_cache() or first
        again = self.call(self.smallest)
        if isinstance(first.error, NoCacheError):
            self.find(self._no_cache(first, first.error))
            whole = replace(self.smallest, parts=(sum(self.smallest.parts),))
            if not outcome(whole, self.stepping.alone, first.right).is_right:
                self.steps = None  # what it gives is no output either
        elif not first.is_right and self._right_in_other_order():
            self.find(self._cache_first(first))
        elif first.is_right and differ(first.out, again.out):
            self.find(_remembers(first, again))
        else:
            self.first_call(self.smallest)

    def _with_another_first_cache(self) -> Outcome | None:
        """The first run in which an empty cache is no error, where None is one."""
        for make in (dict, list):
            self.stepping.first = make
            if (other := self.call(self.smallest)).error is None:
                self.limits.append(f"It wants the first cache as {make()}, not as None.")
                return other
        self.stepping.first = lambda: None
        return None

    def test_in_parts(
        self, single: Sequence[Run], more: Sequence[Run], known: Sequence[Mistake]
    ) -> None:
        """Calls of single words and of several, apart, or together where that tells more.

        Args:
            single: one word in each call.
            more: several words in a call.
            known: mistakes that may show.
        """
        one, several = "one word at a time", "several in one call"
        if self._told_together(self.run(single), self.run(more), known):
            self.test(Group(f"{one}, and {several}", (*single, *more), known))
        else:
            self.test(Group(one, single, known))
            self.test(Group(several, more, known))

    def _told_together(
        self, single: list[Outcome], more: list[Outcome], known: Sequence[Mistake]
    ) -> bool:
        """Do all calls together tell what goes wrong better than those of single words first?"""
        if all(run.error is not None for run in single):
            return True  # many a mistake raises the same
        together, first = self.explain([*single, *more], known), self.explain(single, known)
        if together is None:
            return False
        # of two mistakes the one that single words show is told first, in calls that show it
        made = together[1]
        return len(made) < 2 or first is None or any(one not in made for one in first[1])

    def last_calls(self, others: Sequence[Run], recomputed: Sequence[Mistake]) -> None:
        """Of a step that is right so far: is what it kept used, and is it left alone?

        Args:
            others: texts with other projections from the second call on.
            recomputed: mistakes that show in them, where what was kept is made again.
        """
        if self.wrong:
            return
        self.tried.append("keys and values of earlier calls")
        runs = self.run(others)
        for one in (self.explain(runs, recomputed) or (None, []))[1]:
            self.find(of_mistake(one, first_wrong(runs)))
        given_back = tuple(self.stepping.given_back)
        self.find(overwritten([replace(self.runs[0], given_back=given_back)]))
        if not self.wrong and self._writes_to_cache():
            self.limits.append(
                "It writes to the cache it is given: to go on from one in two ways needs a copy."
            )

    @property
    def gives_none(self) -> bool:
        """Is None what the first call gives back as the cache?"""
        call = self.stepping

        def first_cache(given: Run) -> Array:
            return np.array(call.one(given, given.pieces()[0], call.first())[1] is None)

        return outcome(self.smallest, first_cache, np.array(True)).is_right

    def _right_in_other_order(self) -> bool:
        """Is it right if the cache comes back first, and the output second?"""
        self.stepping.cache_first = True
        run = self.call(self.smallest)
        self.stepping.cache_first = False
        return run.is_right

    def _writes_to_cache(self) -> bool:
        """Does a text that goes on twice from the same cache differ the second time, or fail?"""
        call = self.stepping

        def second_time(given: Run) -> Any:
            first, last = given.pieces()
            _, cache = call.one(given, first, call.first())
            call.one(given, last, cache)
            return call.one(given, last, cache)[0]

        right = self.call(self.smallest).right[-1:]
        return not outcome(self.smallest, second_time, right).is_right

    def _no_cache(self, run: Outcome, error: NoCacheError) -> Finding:
        yours = {"yours": str(error).removeprefix("it returns ")}
        if error.returned is None:
            return replace(nothing_returned(run, str(error), self.returns), more=yours)
        shows, nudge = (
            "the next call cannot know what came before",
            "What does the next call need to know?",
        )
        if isinstance(error.returned, tuple | list) and len(error.returned) > 2:
            shows = "the cache is one thing: the second of two, and the next call is handed it"
            nudge = "How many things come back, and which one of them is the next call handed?"
        return Finding(
            "cache-not-returned",
            str(error),
            shows,
            self.returns,
            nudge=nudge,
            where="the return statement",
            run=run,
            more=yours,
        )

    def _cache_first(self, run: Outcome) -> Finding:
        return Finding(
            "cache-first",
            "the cache comes back first and the output second",
            "the next call is handed the output as its cache",
            self.returns,
            nudge="Print both things that come back: which has a row for each new word alone?",
            where="the return statement",
            run=run,
        )


def _remembers(run: Outcome, again: Outcome) -> Finding:
    return Finding(
        "cache-shared",
        "a second text sees the words of the first: the cache lives outside the function",
        "with cache=None a text begins anew; what an earlier call kept is still there",
        "if cache is None: cache = (np.zeros((0, d)), np.zeros((0, dv)))  # inside the function",
        nudge="Run the same text twice, each time from cache=None.",
        where="the place where the first cache is made: a global list, or a default argument",
        run=again,
        more={"yours the first time": run.out},
    )
