"""Run a learner's attention function and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.marking import findings, mistakes
from qkv.marking.compare import answer, differ, explain, first_wrong, is_right
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.inputs import CORE, NAMES, cases
from qkv.marking.learner import OPTIONS, Learner, Outcome, learner
from qkv.marking.mistakes import Mistake
from qkv.marking.result import CheckResult
from qkv.marking.steps import RIGHT, Steps


def check(function: Callable[..., Any], signature: str = "qkv") -> CheckResult:
    """Mark somebody's own attention function: which mistake did it make, or is it right?

    It is run on small inputs, smallest first, and what it gives is compared with the right answer
    and with what each known mistake would give. Where it takes a mask (`mask`, `attn_mask` or
    `attention_mask`, (L, S): bool, True = may attend, or if it is not made for that 0 and -inf to
    add), a causal mask (`is_causal` or `causal`), `q_offset` or `num_heads`, these are tried too.
    What it prints is not shown; its warnings are ignored.

    Args:
        function: arrays in, array out (or `(out, weights)`). It is called with float64 arrays of
            two dimensions, with integers, with batches, and with scores of 1000.
        signature: `"qkv"`: function(query (L, d), key (S, d), value (S, dv)) -> (L, dv);
            `"x,w_q,w_k,w_v"`: function(x (T, D), w_q (D, d), w_k (D, d), w_v (D, dv)) -> (T, dv),
            with `num_heads` weights of (D, heads * size).

    Returns:
        A `CheckResult`: true where nothing is wrong; print it for the words. What is wrong, what
        is right only until numbers get large or a row sees nothing, and what is right but another
        habit than the field's are kept apart.

    Raises:
        TypeError: `function` cannot be called, or not with these arrays.
        ValueError: an unknown signature.

    >>> def mine(q, k, v):
    ...     scores = q @ k.T / np.sqrt(q.shape[-1])
    ...     weights = np.exp(scores) / np.exp(scores).sum()
    ...     return weights @ v
    >>> result = check(mine)
    >>> result.passed, result.mistakes, result.fragile
    (False, ('softmax-whole-matrix',), ('softmax-no-max',))
    >>> print(result.message.splitlines()[0])
    mine: softmax runs over the whole matrix, not over each row.
    """
    names = signature.replace(" ", "") if isinstance(signature, str) else signature
    if names not in tuple(NAMES):
        known = " or ".join(f'"{s}"' for s in NAMES)
        raise ValueError(f"check: signature is {signature!r}, it must be {known}")
    if not callable(function):
        raise TypeError(
            f"check: function is a {type(function).__name__}, it must be something to call:"
            " check(my_attention), without brackets after its name"
        )
    with np.errstate(all="ignore"):  # wrong formulas overflow and divide by zero: that is the point
        return _mark(_Marking(learner(function, names), names))


# what is said before a finding, by its kind, the worst first; and before one of another kind
_LEAD = {
    "wrong": "",
    "fragile": " is right, but fragile",
    "convention": " is right, by another habit than the field's",
}
_ALSO = {"fragile": " fragile", "convention": " another habit than the field's"}


class _Marking:
    """One function on its way through the tests: what was tried, found and set aside."""

    def __init__(self, call: Learner, signature: str) -> None:
        self.call, self.signature, self.cases = call, signature, cases(signature)
        self.steps: Steps | None = RIGHT  # what the function does, as far as known
        self.found: list[Finding] = []
        self.runs: list[Outcome] = []
        self.tried: list[str] = []
        self.limits: list[str] = []

    def run(self, what: str, call: Learner | None = None) -> list[Outcome]:
        """Call the function, or call it in another way, on the inputs of a test."""
        return [(call or self.call)(case) for case in self.cases[what]]

    def choose(self, ways: Iterable[Learner]) -> None:
        """Call the function in the first of these ways in which it is right, if there is one."""
        right = (way for way in ways if all(map(is_right, self.run(CORE, way))))
        self.call = next(right, self.call)

    @property
    def wrong(self) -> bool:
        """Is anything wrong so far? What is fragile, or a habit, is not."""
        return any(finding.kind == "wrong" for finding in self.found)

    def find(self, finding: Finding | None) -> None:
        """Note what was found, if anything was."""
        if finding is not None:
            self.found.append(finding)

    def test(
        self,
        what: str,
        known: Sequence[Mistake] = (),
        otherwise: Callable[[Outcome], Finding | None] = lambda wrong: None,
        *,
        may_refuse: bool = False,
    ) -> None:
        """Where the function goes wrong find out why, given what was found before.

        Where rules meet it may refuse them with an error, but not give something wrong.
        """
        runs = self.run(what)
        error = next((run.error for run in runs if run.error is not None), None)
        if may_refuse and error is not None:
            self.limits.append(f"It refuses {what}: {findings.in_words(error)}.")
            return
        if self.steps is None:
            return  # nothing can be told apart from what was found and not explained
        self.runs += runs
        self.tried.append(what)
        explained, wrong = explain(runs, self.steps, known), first_wrong(runs)
        if explained is not None:
            self.steps, made = explained
            self.found += [of_mistake(mistake, wrong) for mistake in made]
        elif not self.wrong:
            finding = otherwise(wrong) or findings.unexplained(self.call, runs, what)
            self.found.append(finding)
            if self.wrong:
                self.steps = None

    def result(self) -> CheckResult:
        """All that was found, what is wrong first."""
        found = sorted(self.found, key=lambda finding: list(_LEAD).index(finding.kind))
        wrong, fragile, habits = (
            tuple(finding.key for finding in found if finding.kind == kind) for kind in _LEAD
        )
        points = 0 if self.steps is None else max(0, 10 - 4 * len(wrong) - len(fragile))
        example = found[0].example() if found else {}
        message = "\n".join([*self._said(found), *([] if wrong else self._tried())])
        return CheckResult(message, wrong, fragile, habits, points, example)

    def _said(self, found: Sequence[Finding]) -> Iterator[str]:
        """What was found, in words."""
        if not found:
            yield f"{self.call.name} is right."
            return
        first, *others = found
        yield f"{self.call.name}{_LEAD[first.kind]}: {first.says}."
        yield f"It shows: {first.shows}."
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
        asked = {"mask", "causal", "q_offset" if self.signature == "qkv" else "heads"}
        left = [OPTIONS[option][0] for option in OPTIONS if option in asked - {*self.call.options}]
        if left:
            yield f"Not tried, since it has no such parameter: {', '.join(left)}."


def _mark(m: _Marking) -> CheckResult:
    """All the tests in their order; some are worth it only for a function right so far."""
    options = m.call.options
    _first_calls(m)
    if m.wrong:
        return m.result()
    m.test(CORE, mistakes.core(m.signature))
    if not m.wrong:
        what = "other lengths and sizes" if m.signature == "qkv" else "values of another size"
        m.test(what, mistakes.SHAPES, findings.odd_shape)
    m.test("scores of 1000", mistakes.LARGE, findings.large_scores)
    if not m.wrong:
        m.find(findings.changed_inputs(m.runs))
    if not m.wrong:
        _whole_numbers(m)
    batches = not m.wrong and _takes_batches(m)

    each_pair = "mask" in options and _test_masks(m, batches)
    if "causal" in options:
        m.test("a causal mask", (*mistakes.CAUSAL, *mistakes.HIDING, *mistakes.EMPTY))
        if batches:
            m.test("a causal mask on a batch", may_refuse=True)
        if each_pair:
            m.test("both masks together", mistakes.BOTH, may_refuse=True)
        if "q_offset" in options and "q_offset" in m.cases:
            m.test("q_offset", mistakes.OFFSET)
    if "heads" in options and "two heads" in m.cases:
        m.test("two heads", mistakes.HEADS)
    if not m.wrong:
        m.find(findings.changed_inputs(m.runs) or findings.second_output(m.runs))
    return m.result()


def _first_calls(m: _Marking) -> None:
    """How many dimensions does the function take, and is its output an array, twice the same?"""
    if any(run.error is not None for run in m.run(CORE)):
        m.choose(replace(m.call, rank=rank) for rank in (3, 4))
        if m.call.rank > 2:
            told = f"It takes arrays of {m.call.rank} dimensions only, not a single text (L, d)."
            m.limits.append(told)
    assert m.steps is not None
    if "mask" in m.call.needed:  # which hides nothing as True, or 0, or if it is inverted as False
        shapes = product((False, True), (True, 0.0, False))
        m.choose(replace(m.call, unmasked=value, per_key=per_key) for per_key, value in shapes)
    runs, known = m.run(CORE), mistakes.core(m.signature)
    swapped = replace(m.call, weights_first=True)
    if runs[0].second is not None and _explains_more(m.run(CORE, swapped), runs, m.steps, known):
        m.find(of_mistake(mistakes.WEIGHTS_FIRST, runs[0]))
        m.call = swapped
    run, again = m.run(CORE)[0], m.run(CORE)[0]
    if run.error is None and run.out is None:
        m.find(findings.no_array(run))
    elif differ(run.out, again.out):
        m.find(of_mistake(mistakes.RANDOM, run, {"yours the second time": again.out}))


def _test_masks(m: _Marking, batches: bool) -> bool:
    """A mask as bool, or as 0 and -inf if that explains more; is it one for each query and key?"""
    if m.steps is None:
        return False
    known = (*mistakes.MASK, *mistakes.HIDING)
    adding = replace(m.call, adds_mask=True, unmasked=0.0)
    as_bool, added = m.run("a mask"), m.run("a mask", adding)
    # where(mask, -inf, scores) is inverted, and hides what is -inf too
    inverted = explain(as_bool, m.steps, [one for one in known if one.key == "mask-inverted"])
    if not (inverted and inverted[1]) and _explains_more(added, as_bool, m.steps, known):
        m.call = adding
        m.limits.append("It takes its mask as 0 and -inf to add, not as True and False.")
    elif explain(as_bool, m.steps, known) is None:
        runs = m.run("a mask of keys")
        if all(map(is_right, runs)):
            m.find(of_mistake(mistakes.PER_KEY, runs[0]))
            m.tried.append("a mask of keys")
            return False
    m.test("a mask", known)
    m.test("a row masked out", mistakes.EMPTY, findings.empty_row)
    if batches:
        m.test("a mask on a batch", may_refuse=True)
    return True


def _explains_more(
    runs: list[Outcome], others: list[Outcome], steps: Steps, known: Sequence[Mistake]
) -> bool:
    """Are the runs right, or wrong by fewer mistakes than the others?"""
    one, other = (explain(each, steps, known) for each in (runs, others))
    return one is not None and (other is None or len(one[1]) < len(other[1]))


def _whole_numbers(m: _Marking) -> None:
    """Integers: a function may refuse them, but not cut off the fractions of its results."""
    (run,) = m.run("whole numbers")
    kinds = [kind.__name__ for kind in type(run.error).__mro__]
    if run.error is not None and "UFuncTypeError" not in kinds:  # a float put into an int array
        m.limits.append(f"It refuses whole numbers: {findings.in_words(run.error)}.")
        return
    m.runs.append(run)
    m.tried.append("whole numbers")
    m.find(findings.whole_numbers(run))


def _takes_batches(m: _Marking) -> bool:
    """Two texts at once: a function may refuse them, but not mix them up."""
    runs = m.run("batches")
    refused = any(run.out is None or run.out.shape != answer(run.case).out.shape for run in runs)
    if refused and explain(runs, m.steps or RIGHT, mistakes.BATCHES) is None:
        m.limits.append("It takes one text at a time: a batch fails, or comes out misshapen.")
        return False
    m.test("batches", mistakes.BATCHES, findings.wrong_batch)
    return not m.wrong
