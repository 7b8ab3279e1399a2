"""Take a function through tests, and gather what is found, in points and in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

from qkv.arrays import Array
from qkv.marking import findings
from qkv.marking.errors import alike, clash, in_words, sentence
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Case, Outcome, close, differ, first_wrong, outcome
from qkv.marking.result import CheckResult

# what is said before a finding, by its kind, the worst first; and before one of another kind
_LEAD = {
    "wrong": "",
    "fragile": " is right, but fragile",
    "convention": " is right, by another habit than the field's",
}
_ALSO = {"fragile": " fragile", "convention": " another habit than the field's"}

# what a case gives if it is computed by these steps
Compute = Callable[[Any, Steps], Array]
NO_FIT = (ValueError, IndexError)  # of shapes


def reproduces(run: Outcome, steps: Steps, compute: Compute, exactly: bool = False) -> bool:
    """Do these steps give what a call of the function gave, or fail for the same reason?

    Args:
        run: the call.
        steps: how it may have been computed.
        compute: computes by steps.
        exactly: an error must have the same words; else the same sizes have to clash.
    """
    try:
        predicted = compute(run.case, steps)
    except NO_FIT as error:
        return run.error is not None and alike(error, run.error, exactly)
    return run.out is not None and close(run.out, predicted)


def _can_be_reproduced(run: Outcome) -> bool:
    """Did it give numbers, or an error as arithmetic with other steps could raise?"""
    if run.error is None:
        return run.out is not None
    return isinstance(run.error, NO_FIT) or bool(clash(run.error))


def explain(
    runs: list[Outcome], steps: Steps, known: Sequence[Mistake], compute: Compute
) -> tuple[Steps, list[Mistake]] | None:
    """No mistake if these steps reproduce every run, or the first one that does, or else two."""
    if not all(map(_can_be_reproduced, runs)):
        return None
    each = [([mistake], variant) for mistake in known for variant in mistake.variants]
    paired = [way for way in each if not way[0][0].alone]
    pairs = (
        ([*one, *other], {**first, **second})
        for (one, first), (other, second) in combinations(paired, 2)
        if one != other and not first.keys() & second.keys()
    )
    none: list[tuple[list[Mistake], Steps]] = [([], {})]
    ways = [(False, chain(none, each, pairs))]
    if any(run.error is not None for run in runs):  # the same words tell more than the same sizes
        ways = [(True, chain(none, each)), *ways]
    for exactly, found in ways:
        for made, variant in found:
            done = {**steps, **variant}
            if all(reproduces(run, done, compute, exactly) for run in runs):
                return done, made
    return None


def nothing_known(wrong: Outcome) -> Finding | None:
    """Nothing special is known of what goes wrong here."""
    return None


@dataclass(frozen=True)
class Group:
    """One test: the calls that are made, smallest first, and what may go wrong in them.

    Attributes:
        what: is tested, as in "Tried: one row, scores of 1000".
        cases: the calls.
        known: mistakes that show here and in no group before.
        otherwise: what else is known of the first call that went wrong, or None.
        may_refuse: an error is no mistake here, but something that the function does not take.
        if_right: the test is worth it only for a function that is right so far.
    """

    what: str
    cases: Sequence[Case]
    known: Sequence[Mistake] = ()
    otherwise: Callable[[Outcome], Finding | None] = nothing_known
    may_refuse: bool = False
    if_right: bool = False


class Marking:
    """One function on its way through the tests: what was tried, found and set aside.

    Args:
        task: its name.
        name: what the function is called.
        call: makes the call of a case.
        compute: what a case gives if it is computed by some steps.
        steps: the right ones.
        returns: the statement that returns what should be.
    """

    def __init__(
        self,
        task: str,
        name: str,
        call: Callable[[Any], Outcome],
        compute: Compute,
        steps: Steps,
        *,
        returns: str = "return the result",
    ) -> None:
        self.task, self.name, self.call, self.compute = task, name, call, compute
        self.returns = returns
        self.steps: Steps | None = steps  # what the function does, as far as known
        self.nothing_done = findings.nothing_done
        self.of_weight_one: Sequence[Case] = ()  # right too for what cuts weights off to 0 and 1
        self.explained = False  # was any test, by an output and not by errors alone?
        self.found: list[Finding] = []
        self.runs: list[Outcome] = []
        self.tried: list[str] = []
        self.limits: list[str] = []
        self.untried: list[str] = []

    @property
    def wrong(self) -> bool:
        """Is anything wrong so far? What is fragile, or a habit, is not."""
        return any(finding.kind == "wrong" for finding in self.found)

    def run(
        self, cases: Sequence[Case], call: Callable[[Any], Outcome] | None = None
    ) -> list[Outcome]:
        """Call the function, or call it in another way."""
        return [(call or self.call)(case) for case in cases]

    def find(self, finding: Finding | None) -> None:
        """Note what was found, if anything was."""
        if finding is not None:
            self.found.append(finding)

    def explain(
        self, runs: list[Outcome], known: Sequence[Mistake]
    ) -> tuple[Steps, list[Mistake]] | None:
        """Which of these mistakes, beside what was found before, gives these runs?"""
        return None if self.steps is None else explain(runs, self.steps, known, self.compute)

    def explains_more(
        self, runs: list[Outcome], others: list[Outcome], known: Sequence[Mistake]
    ) -> bool:
        """Are the runs right, or wrong by fewer mistakes than the others?"""
        one, other = (self.explain(each, known) for each in (runs, others))
        return one is not None and (other is None or len(one[1]) < len(other[1]))

    def first_call(self, case: Case) -> None:
        """Is there an array, and is it twice the same?"""
        run, again = self.call(case), self.call(case)
        if run.error is None and run.out is None:
            self.find(findings.no_array(run, self.returns))
            self.steps = None
        elif differ(run.out, again.out):
            more = {"yours the second time": again.out}
            self.find(of_mistake(findings.RANDOM, run, more))
            self.steps = None

    def test(self, group: Group) -> None:
        """Where the function goes wrong find out why, given what was found before."""
        if group.if_right and self.wrong:
            return
        runs = self.run(group.cases)
        error = next((run.error for run in runs if run.error is not None), None)
        if group.may_refuse and error is not None and not isinstance(error, NameError):
            self.limits.append(sentence(f"It refuses {group.what}: {in_words(error)}"))
            return
        if self.steps is None:
            return  # nothing can be told apart from what was found and not explained
        self.runs += runs
        nothing = None if self.tried else self.nothing_done(runs)
        self.tried.append(group.what)
        if nothing is not None and not self._cuts_off(runs, group.known):
            self.find(nothing)
            self.steps = None
            return
        explained, wrong = self.explain(runs, group.known), first_wrong(runs)
        if explained is not None:
            self.steps, made = explained
            self.explained = self.explained or any(run.error is None for run in runs)
            told = {finding.key for finding in self.found}  # a later test may see more of one
            self.found += [of_mistake(one, wrong) for one in made if one.key not in told]
        elif not self.wrong:
            self.find(group.otherwise(wrong) or self.unexplained(runs, group.what))
            if self.wrong:
                self.steps = None

    def _cuts_off(self, runs: list[Outcome], known: Sequence[Mistake]) -> bool:
        """Does it give zeros for a reason that is known, and not because nothing was done?"""
        zeros = all(run.out is not None and not run.out.any() for run in runs)
        ones = self.run(self.of_weight_one) if zeros else []
        right = bool(ones) and all(run.is_right for run in ones)
        return right and self.explain(runs, known) is not None

    def whole_numbers(self, case: Case, remedy: str) -> None:
        """Integers: a function may refuse them, but not cut off the fractions of its results."""
        run = self.call(case)
        kinds = [kind.__name__ for kind in type(run.error).__mro__]
        if run.error is not None and "UFuncTypeError" not in kinds:  # a float put into an int array
            self.limits.append(sentence(f"It refuses whole numbers: {in_words(run.error)}"))
            return
        self.runs.append(run)
        self.tried.append("whole numbers")
        self.find(findings.whole_numbers(run, remedy))

    def unexplained(self, runs: list[Outcome], what: str) -> Finding:
        """What is said where nothing special is known."""
        return findings.unexplained(runs, what, self.returns, [])

    def at_last(self) -> Finding | None:
        """What is looked for where nothing is wrong: inputs or outputs that were written to."""
        return findings.changed_inputs(self.runs) or findings.overwritten(self.runs)

    def result(self) -> CheckResult:
        """All that was found, what is wrong first."""
        if not self.wrong:
            self.find(self.at_last())
        if not self.wrong:
            self.find(findings.prints(self.runs))
        found = sorted(self.found, key=lambda finding: list(_LEAD).index(finding.kind))
        wrong, fragile, habits = (
            tuple(dict.fromkeys(finding.key for finding in found if finding.kind == kind))
            for kind in _LEAD
        )
        return CheckResult(
            message="\n".join([*self._said(found), *([] if wrong else self._tried())]),
            mistakes=wrong,
            fragile=fragile,
            conventions=habits,
            points=self._points(len(wrong), len(fragile)),
            example=found[0].example() if found else {},
            task=self.task,
            hint=found[0].hint if found else (),
        )

    def _points(self, wrong: int, fragile: int) -> int:
        """None where nothing that came out could be explained."""
        nothing = not self.explained if self.tried else self.steps is None
        return 0 if nothing else max(0, 10 - 4 * wrong - fragile)

    def _said(self, found: Sequence[Finding]) -> Iterator[str]:
        """What was found, in words."""
        if not found:
            yield f"{self.name} is right."
            return
        first, *others = found
        yield f"{self.name}{_LEAD[first.kind]}: {first.says}."
        yield sentence(f"It shows: {first.shows}")
        if first.variants and first.run is not None and first.run.error is not None:
            yield f"It raises {findings.told(first.run)}."
        if first.remedy:
            yield f"What mends it: {first.remedy}"
        for other in others:
            yield f"Also{'' if other.kind == first.kind else _ALSO[other.kind]}: {other.says}."
            if other.remedy != first.remedy:
                yield f"What mends it: {other.remedy}"

    def _tried(self) -> Iterator[str]:
        """What was tried, and what could not be."""
        yield f"Tried: {', '.join(self.tried)}."
        yield from self.limits
        if self.untried:
            yield f"Not tried, since it has no such parameter: {', '.join(self.untried)}."


def mark_values(
    task: str, name: str, tried: str, found: Iterable[Mistake], unread: Collection[str]
) -> CheckResult:
    """The verdict on values, by what is found of them, each once.

    Args:
        task: the task.
        name: what the values are called.
        tried: what was looked at.
        found: the mistakes.
        unread: keys of those with which the values could not be looked at.
    """
    m = Marking(task, name, lambda case: case, lambda case, steps: case, {})
    m.tried = [tried]
    known = {one.key: one for one in found}
    m.found = [of_mistake(one, None) for one in known.values()]
    m.explained = not known.keys() & {*unread}
    return m.result()


def mark_in_steps(
    task: str,
    name: str,
    call: Callable[[Any], Any],
    compute: Compute,
    steps: Steps,
    groups: Sequence[Group],
    *,
    returns: str = "return the result",
) -> CheckResult:
    """Mark a function by a computation in steps, of which mistakes replace some.

    Args:
        task: its name.
        name: what the function is called.
        call: calls the function with what a case holds, and gives what it returned.
        compute: what a case gives if it is computed by some steps.
        steps: the right ones.
        groups: the tests, in order; the first case of the first is the smallest there is.
        returns: the statement that returns what should be.
    """
    m = Marking(
        task,
        name,
        lambda case: outcome(case, call, compute(case, steps)),
        compute,
        steps,
        returns=returns,
    )
    m.first_call(groups[0].cases[0])
    if m.wrong:
        return m.result()
    for group in groups:
        m.test(group)
    return m.result()
