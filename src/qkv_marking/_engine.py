"""Test a function on random inputs, give it points, and describe the findings in text."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, combinations
from typing import Any, TypeVar

import numpy as np

from qkv.arrays import Array
from qkv_marking import _findings
from qkv_marking._errors import alike, clash, in_words, sentence
from qkv_marking._findings import Symptom, of_mistake
from qkv_marking._formula import Diff, Lines
from qkv_marking._mistake import Mistake
from qkv_marking._outcome import Outcome, Sample, close, differ, first_wrong
from qkv_marking._points import ALL_POINTS, rate_results
from qkv_marking._result import CheckResult

_T = TypeVar("_T")
# State: the tasks make their inputs in functions without arguments. The seed holds in the `with`
# block of one thread.
_SEED: ContextVar[int] = ContextVar("seed", default=0)
# A verdict begins with the function's name and these words, which depend on the kind of the first
# finding. The kinds are ordered from the worst to the mildest.
_LEAD = {
    "wrong": "",
    "fragile": " is right, but fragile",
    "convention": " is right, but follows another convention",
}
# "Also fragile: ..." introduces a fragile finding if the first finding is a mistake
_ALSO = {"fragile": " fragile", "convention": " another convention"}
# a function that computes the result of a case from the given steps of the computation
Compute = Callable[[Any, Lines], Array]
Runs = list[Outcome]
# the steps that reproduce a function's wrong results, and the known mistakes in these steps; None
# if no known mistakes reproduce the results
Explanation = tuple[Lines, list[Mistake]] | None
NO_FIT = (ValueError, IndexError)  # errors about shapes that do not match


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Set the random seed of test inputs in a `with` block; with seed 0, many inputs are short."""
    before = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(before)


def by_seed() -> bool:
    """Return whether the random seed of the test inputs is nonzero."""
    return _SEED.get() != 0


def generator(number: int) -> np.random.Generator:
    """Return the random generator for test input number `number`.

    >>> bool(generator(3).integers(9) == np.random.default_rng(3).integers(9))
    True
    """
    return np.random.default_rng((_SEED.get(), number) if by_seed() else number)


def per_seed(make: Callable[[], _T]) -> Callable[[], _T]:
    """Decorate a function that makes test inputs: cache the inputs for each random seed."""
    of_seed = functools.lru_cache(maxsize=8)(lambda seed: make())

    @functools.wraps(make)
    def of_this_seed() -> _T:
        return of_seed(_SEED.get())

    return of_this_seed


def reproduces(run: Outcome, steps: Lines, compute: Compute, exactly: bool = False) -> bool:
    """Return whether these steps give the same result, or the same error, as the call `run`.

    Args:
        run: the call of the student's function, with its result.
        steps: the steps of the computation.
        compute: a function that applies given steps to a case and returns the output.
        exactly: whether two errors must have the same message. If false, it is enough that both
            messages report the same mismatched sizes, such as 12 and 24.
    """
    try:
        predicted = compute(run.case, steps)
    except NO_FIT as error:
        return run.error is not None and alike(error, run.error, exactly)
    return run.out is not None and close(run.out, predicted)


def _can_be_reproduced(run: Outcome) -> bool:
    """Return whether the call gave an array, or an error of a kind that known mistakes cause."""
    if run.error is None:
        return run.out is not None
    return isinstance(run.error, NO_FIT) or bool(clash(run.error))


def explain(runs: Runs, steps: Lines, known: Sequence[Mistake], compute: Compute) -> Explanation:
    """Find the fewest mistakes (at most two) that explain the results of all runs.

    Returns:
        `(steps, mistakes)`: the wrong steps, and the mistakes in these steps. None if the results
        cannot be explained by at most two known mistakes.
    """
    if not all(map(_can_be_reproduced, runs)):
        return None
    singles = [([mistake], variant) for mistake in known for variant in mistake.variants]
    paired = [candidate for candidate in singles if not candidate[0][0].alone]
    pairs = (
        ([*one, *other], {**first, **second})
        for (one, first), (other, second) in combinations(paired, 2)
        if one != other and not first.keys() & second.keys()
    )
    none: list[tuple[list[Mistake], Lines]] = [([], {})]
    searches = [(False, chain(none, singles, pairs))]
    # first search for mistakes that raise an error with the same message
    if any(run.error is not None for run in runs):
        searches = [(True, chain(none, singles)), *searches]
    for exactly, candidates in searches:
        for mistakes, variant in candidates:
            done = {**steps, **variant}
            if all(reproduces(run, done, compute, exactly) for run in runs):
                return done, mistakes
    return None


def nothing_known(wrong: Outcome) -> Symptom | None:
    """Return no finding; this is the default of `Group.otherwise`."""
    return None


@dataclass(frozen=True)
class Group:
    """A test: its calls, and the mistakes that these calls may reveal.

    Attributes:
        what: the inputs of the test in a few words, such as "scores of 1000".
        cases: the calls, smallest first.
        known: mistakes that this test can reveal, but earlier tests cannot.
        otherwise: a function that creates a finding from the first wrong call if no known mistake
            explains that call.
        may_refuse: whether the function may raise an error for these inputs.
        if_right: whether to run the test only if all earlier tests passed.
    """

    what: str
    cases: Sequence[Sample]
    known: Sequence[Mistake] = ()
    otherwise: Callable[[Outcome], Symptom | None] = nothing_known
    may_refuse: bool = False
    if_right: bool = False


@dataclass(eq=False)
class Marking:
    """A student's function, the completed tests, and the findings of these tests.

    Args:
        task: the name of the task.
        name: the name of the function.
        call: a function that calls the student's function on a case.
        compute: a function that applies given steps to a case and returns the output.
        steps: the right steps.
        returns: the statement that returns the right result.
        nothing_done: a function that creates a finding if the student's function returns its input
            unchanged, or the same number for every input.
    """

    task: str
    name: str
    call: Callable[[Any], Outcome]
    compute: Compute
    steps: Lines | None  # None if no known steps give the function's results
    _: KW_ONLY
    returns: str = "return the result"
    nothing_done: Callable[[Runs], Symptom | None] = _findings.nothing_done
    # cases with one key, whose weight is always 1: here code that truncates weights to integers
    # gives the right result
    of_weight_one: Sequence[Sample] = field(default=(), init=False)
    tests: dict[str, Runs] = field(default_factory=dict, init=False)  # the calls of each test
    varied: Collection[str] | None = field(default=None, init=False)  # see `rate_results`
    empty: bool = field(default=False, init=False)  # whether the function does nothing
    # whether known lines gave the same array as the student's function; it is not enough that both
    # raised the same exception
    explained: bool = field(default=False, init=False)
    # whether each mistake costs points; if not, points depend on what works in the tests
    by_mistakes: bool = field(default=False, init=False)
    repeated: int = field(default=0, init=False)  # how often mistakes occur again: 1 point each
    findings: list[Symptom] = field(default_factory=list, init=False)
    runs: Runs = field(default_factory=list, init=False)
    tried: list[str] = field(default_factory=list, init=False)
    limits: list[str] = field(default_factory=list, init=False)
    untried: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.right = self.steps or {}  # the right lines

    @property
    def wrong(self) -> bool:
        """Whether a test has found a mistake, which is a finding of the kind "wrong"."""
        return any(finding.kind == "wrong" for finding in self.findings)

    def run(self, cases: Sequence[Sample], call: Callable[[Any], Outcome] | None = None) -> Runs:
        """Call the student's function on each case, through `call` (default: `self.call`)."""
        return [(call or self.call)(case) for case in cases]

    def find(self, finding: Symptom | None) -> None:
        """Add a finding; ignore None."""
        if finding is not None:
            self.findings.append(finding)

    def explain(self, runs: Runs, known: Sequence[Mistake]) -> Explanation:
        """Find mistakes that, together with those found earlier, explain these results."""
        return None if self.steps is None else explain(runs, self.steps, known, self.compute)

    def explains_more(self, runs: Runs, others: Runs, known: Sequence[Mistake]) -> bool:
        """Return whether fewer known mistakes are needed to explain `runs` than `others`."""
        explained, other = (self.explain(group, known) for group in (runs, others))
        return explained is not None and (other is None or len(explained[1]) < len(other[1]))

    def first_call(self, case: Sample) -> None:
        """Report a function whose result is not an array, or changes if a call is repeated."""
        run, again = self.call(case), self.call(case)
        if run.error is None and run.out is None:
            self.find(_findings.no_array(run, self.returns))
            self.steps = None
        elif differ(run.out, again.out):
            more = {"yours the second time": again.out}
            self.find(of_mistake(_findings.RANDOM, run, more))
            self.steps = None

    def test(self, group: Group) -> None:
        """Run a test; if a result is wrong, find the known mistakes that explain it."""
        if group.if_right and self.wrong:
            return
        runs = self.tests[group.what] = self.run(group.cases)
        error = next((run.error for run in runs if run.error is not None), None)
        if group.may_refuse and error is not None and not isinstance(error, NameError):
            self.limits.append(sentence(f"The function refuses {group.what}: {in_words(error)}"))
            del self.tests[group.what]
            return
        if self.steps is None:
            return  # an earlier test found an error of unknown cause, which may also occur here
        self.runs += runs
        nothing = None if self.tried else self.nothing_done(runs)
        self.tried.append(group.what)
        if nothing is not None and not self._cuts_off(runs, group.known):
            self.find(nothing)
            self.steps, self.empty = None, True
            return
        explained, wrong = self.explain(runs, group.known), first_wrong(runs)
        if explained is not None:
            self.steps, mistakes = explained
            self.explained = self.explained or any(run.error is None for run in runs)
            keys = {finding.key for finding in self.findings}  # mistakes that were found earlier
            self.findings += [
                of_mistake(new, wrong, diff=self._diff(new))
                for new in mistakes
                if new.key not in keys
            ]
        elif not self.wrong:
            self.find(group.otherwise(wrong) or self.report_odd(runs, group.what))
            if self.wrong:
                self.steps = None

    def _diff(self, mistake: Mistake) -> Diff:
        """Return the lines that a mistake in `self.steps` replaces."""
        done = self.steps or {}
        made = next(way for way in mistake.variants if way.items() <= done.items())
        pairs = ((self.right.get(name, line), line) for name, line in made.items())
        return tuple((right, line) for right, line in pairs if right != line)

    def _cuts_off(self, runs: Runs, known: Sequence[Mistake]) -> bool:
        """Return whether all outputs are 0 because a known mistake truncates the weights."""
        zeros = all(run.out is not None and not run.out.any() for run in runs)
        ones = self.run(self.of_weight_one) if zeros else []
        right = bool(ones) and all(run.is_right for run in ones)
        return right and self.explain(runs, known) is not None

    def whole_numbers(self, case: Sample, remedy: str) -> None:
        """Test integer inputs: a function may refuse them, but must not truncate its results."""
        run = self.call(case)
        # `out += x` with an integer `out` raises a UFuncTypeError; this is a mistake, not a refusal
        kinds = [kind.__name__ for kind in type(run.error).__mro__]
        if run.error is not None and "UFuncTypeError" not in kinds:
            error = in_words(run.error)
            self.limits.append(sentence(f"The function refuses whole numbers: {error}"))
            return
        self.runs.append(run)
        self.tried.append("whole numbers")
        self.find(_findings.whole_numbers(run, remedy))

    def report_odd(self, runs: list[Outcome], what: str) -> Symptom:
        """Report wrong results without a known cause."""
        return _findings.report_odd(runs, what, self.returns, [])

    def at_last(self) -> Symptom | None:
        """Report a function that overwrites its inputs or earlier outputs."""
        return _findings.changed_inputs(self.runs) or _findings.overwritten(self.runs)

    def result(self) -> CheckResult:
        """Return the verdict with all findings, worst first."""
        if not self.wrong:
            self.find(self.at_last())
        if not self.wrong:
            self.find(_findings.prints(self.runs))
        ordered = sorted(self.findings, key=lambda finding: list(_LEAD).index(finding.kind))
        wrong, fragile, conventions = (
            tuple(dict.fromkeys(finding.key for finding in ordered if finding.kind == kind))
            for kind in _LEAD
        )
        points, reason = ALL_POINTS - len(fragile), "All results are right."
        if fragile:
            reason = "Each fragile finding costs 1 point."
        if wrong and self.tests:
            rated, reason = rate_results([*self.tests.values()], self.call, self.varied)
            # known lines give all results, so the other lines are right
            least = 6 - 2 * len(wrong) if self.steps is not None and self.explained else 0
            if least > rated:
                reason = "The right solution with "
                reason += "this one mistake" if len(wrong) == 1 else "these mistakes"
                reason += f" gives all your results: you get at least {least} points."
            points = min(points, max(rated, least))
        elif wrong and self.by_mistakes:
            points = max(0, points - 4 * len(wrong) - self.repeated)
            reason = "Each mistake costs 4 points, and 1 for each time it occurs again."
        elif wrong:
            points, reason = 0, "No result could be compared."
        if self.empty:
            points, reason = 0, "Nothing is computed."
        return CheckResult(
            message="\n".join([*self._findings(ordered), *([] if wrong else self._tests())]),
            mistakes=wrong,
            fragile=fragile,
            conventions=conventions,
            says={finding.key: f"{finding.says}." for finding in ordered},
            diffs={finding.key: finding.diff for finding in ordered if finding.diff},
            points=points,
            example=ordered[0].example() if ordered else {},
            task=self.task,
            hint=ordered[0].hint if ordered else (),
            reason=reason,
        )

    def _findings(self, ordered: Sequence[Symptom]) -> Iterator[str]:
        """Yield the findings as sentences."""
        if not ordered:
            yield f"{self.name} is right."
            return
        first, *others = ordered
        yield f"{self.name}{_LEAD[first.kind]}: {first.says}."
        yield sentence(f"It shows: {first.shows}")
        if first.variants and first.run is not None and first.run.error is not None:
            yield f"It raises {_findings.describe(first.run)}."
        if first.remedy:
            yield f"Correction: {first.remedy}"
        for other in others:
            yield f"Also{'' if other.kind == first.kind else _ALSO[other.kind]}: {other.says}."
            if other.remedy != first.remedy:
                yield f"Correction: {other.remedy}"

    def _tests(self) -> Iterator[str]:
        """Yield sentences about the completed tests and the tests that could not run."""
        yield f"Tried: {', '.join(self.tried)}."
        yield from self.limits
        if self.untried:
            untried = ", ".join(self.untried)
            yield f"Not tried, because the function has no such parameter: {untried}."


def mark_values(
    task: str, name: str, tried: str, mistakes: Iterable[Mistake], unread: Collection[str]
) -> CheckResult:
    """Return the verdict on a student's values, given the mistakes in these values.

    Args:
        task: the name of the task.
        name: the name of the values.
        tried: a short description of the test inputs, such as "three sentences".
        mistakes: the mistakes in the values.
        unread: the keys of mistakes that make the values impossible to test. If one of these
            mistakes is found, the values get 0 points.
    """
    m = Marking(task, name, lambda case: case, lambda case, steps: case, {})
    m.tried = [tried]
    found = [*mistakes]
    known = {mistake.key: mistake for mistake in found}
    m.findings = [of_mistake(mistake, None) for mistake in known.values()]
    m.repeated = len(found) - len(known)
    m.empty, m.by_mistakes = bool(known.keys() & {*unread}), True
    return m.result()
