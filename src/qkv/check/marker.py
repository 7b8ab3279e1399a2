"""Run a learner's attention function and say in words which mistake it made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.check import findings, inputs, mistakes
from qkv.check.compare import answer, differ, explain, first_wrong, is_right, reproduces
from qkv.check.findings import Finding
from qkv.check.inputs import Case
from qkv.check.mistakes import Mistake
from qkv.check.result import CheckResult
from qkv.check.run import NAMES, Learner, Run, learner
from qkv.check.steps import RIGHT, Steps


def check(function: Callable[..., Any], signature: str = "qkv") -> CheckResult:
    """Mark somebody's own attention function: which mistake did it make, or is it right?

    It is run on small inputs, smallest first, and what it gives is compared with the right answer
    and with what each known mistake would give. Where it takes a mask (`mask`, `attn_mask` or
    `attention_mask`: bool, True = may attend), a causal mask (`is_causal` or `causal`), `q_offset`
    or `num_heads`, these are tried too. What it prints is not shown; its warnings are ignored.

    Args:
        function: arrays in, array out (or `(out, weights)`). It is called with float64 arrays of
            two dimensions, with integers, with batches, and with scores of 1000.
        signature: `"qkv"`: function(query (L, d), key (S, d), value (S, dv)) -> (L, dv);
            `"x,w_q,w_k,w_v"`: function(x (T, D), w_q (D, d), w_k (D, d), w_v (D, dv)) -> (T, dv),
            with `num_heads` weights of (D, heads * size).

    Returns:
        A `CheckResult`: true where the function is right; print it for the words.

    Raises:
        TypeError: `function` cannot be called, or not with these arrays.
        ValueError: an unknown signature.

    >>> def mine(q, k, v):
    ...     scores = q @ k.T / np.sqrt(q.shape[-1])
    ...     weights = np.exp(scores) / np.exp(scores).sum()
    ...     return weights @ v
    >>> result = check(mine)
    >>> result.passed, result.mistake
    (False, 'softmax-whole-matrix')
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


class _Marking:
    """One function on its way through the tests: what was tried, found and set aside."""

    def __init__(self, call: Learner, signature: str) -> None:
        self.call, self.signature = call, signature
        self.rank = 2  # the dimensions of a single text, 3 or 4 where only batches are taken
        self.steps: Steps | None = RIGHT  # what the function does, as far as known
        self.found: list[Finding] = []
        self.runs: list[Run] = []
        self.tried: list[str] = []
        self.limits: list[str] = []

    def run(self, cases: Iterable[Case]) -> list[Run]:
        return [self.call(case.at_rank(self.rank)) for case in cases]

    def find(self, finding: Finding | None) -> None:
        if finding is not None:
            self.found.append(finding)

    def test(
        self,
        what: str,
        runs: list[Run],
        known: Sequence[Mistake],
        otherwise: Callable[[list[Run]], Finding | None] = lambda runs: None,
    ) -> None:
        """Where the runs went wrong find out why, given what was found before."""
        if self.steps is None:
            return  # nothing can be told apart from what was found and not explained
        self.runs += runs
        self.tried.append(what)
        if reproduces(runs, self.steps):
            return
        pair = None if self.found else findings.swapped_pair(runs)
        explained = None if pair else explain(runs, self.steps, known)
        if explained is not None:
            self.steps, made = explained
            self.found += [findings.of_mistake(mistake, first_wrong(runs)) for mistake in made]
        elif not self.found:
            self.steps = None
            finding = pair or otherwise(runs) or findings.unexplained(self.call, runs, what)
            self.found.append(finding)

    def result(self) -> CheckResult:
        if not self.found:
            lines = [f"{self.call.name} is right. Tried: {', '.join(self.tried)}.", *self.limits]
            return CheckResult(True, None, "\n".join(lines))
        first, *others = self.found
        lines = [f"{self.call.name}: {first.says}.", f"It shows: {first.shows}."]
        if first.remedy:
            lines.append(f"What mends it: {first.remedy}")
        for other in others:
            lines.append(f"Also: {other.says}.")
            if other.remedy != first.remedy:
                lines.append(f"What mends it: {other.remedy}")
        keys = tuple(finding.key for finding in self.found)
        return CheckResult(False, keys[0], "\n".join(lines), first.example(), keys)


def _mark(marking: _Marking) -> CheckResult:
    """All the tests in their order; some are worth it only for a function right so far."""
    m, options, take = marking, marking.call.options, marking.signature
    _first_calls(m)
    if m.found:
        return m.result()
    m.test("scores, scaling, softmax, values", m.run(inputs.core(take)), mistakes.core(take))
    if not m.found:
        what = "other lengths and sizes" if take == "qkv" else "values of another size"
        m.test(what, m.run(inputs.shapes(take)), mistakes.SHAPES, findings.odd_shape)
    m.test("scores of 1000", m.run(inputs.large(take)), mistakes.LARGE, findings.overflow)
    if not m.found:
        m.find(findings.changed_inputs(m.runs))
    if not m.found:
        _whole_numbers(m)
    batches = not m.found and _takes_batches(m)

    hiding = (*mistakes.HIDING, *mistakes.EMPTY)
    if "mask" in options:
        m.test("a mask", m.run(inputs.masks(take)), (*mistakes.MASK, *mistakes.HIDING))
        m.test("a row masked out", m.run(inputs.empty_rows(take)), mistakes.EMPTY)
        if batches:
            m.test("a mask on a batch", m.run(inputs.masked_batches(take)), ())
    if "causal" in options:
        m.test("a causal mask", m.run(inputs.causal(take)), (*mistakes.CAUSAL, *hiding))
        if batches:
            m.test("a causal mask on a batch", m.run(inputs.causal_batches(take)), ())
    if "causal" in options and "mask" in options:
        m.test("both masks together", m.run(inputs.mask_and_causal(take)), mistakes.BOTH)
    if "causal" in options and "q_offset" in options and take == "qkv":
        m.test("q_offset", m.run(inputs.offsets(take)), mistakes.OFFSET)
    if "heads" in options and take != "qkv":
        m.test("two heads", m.run(inputs.heads(take)), mistakes.HEADS)
    if not m.found:
        m.find(findings.changed_inputs(m.runs) or findings.second_output(m.runs))
    return m.result()


def _first_calls(m: _Marking) -> None:
    """How many dimensions does the function take, and is its output an array, twice the same?"""
    cases = inputs.core(m.signature)
    if any(run.error is not None for run in m.run(cases)):
        for rank in (3, 4):
            if all(is_right(m.call(case.at_rank(rank))) for case in cases):
                m.rank = rank
                m.limits.append(
                    f"It takes arrays of {rank} dimensions only, not a single text (L, d)."
                )
                break
    if "mask" in m.call.needed:
        inverted = replace(m.call, seen=False)
        if all(is_right(inverted(case.at_rank(m.rank))) for case in cases):
            m.call = inverted  # right but for the mask, which is tried later
    run, again = m.run([cases[0], cases[0]])
    if run.error is None and run.out is None:
        m.find(findings.no_array(run))
    elif differ(run.out, again.out):
        m.find(findings.drawn_anew(run, again))


def _whole_numbers(m: _Marking) -> None:
    """Integers: a function may refuse them, but not cut off the fractions of its results."""
    run = m.run(inputs.whole_numbers(m.signature))[0]
    kinds = [kind.__name__ for kind in type(run.error).__mro__]
    if run.error is not None and "UFuncTypeError" not in kinds:  # a float put into an int array
        m.limits.append(f"It refuses whole numbers: {findings.in_words(run.error)}.")
        return
    m.runs.append(run)
    m.tried.append("whole numbers")
    m.find(findings.whole_numbers(run))


def _takes_batches(m: _Marking) -> bool:
    """Two texts at once: a function may refuse them, but not mix them up."""
    runs = m.run(inputs.batches(m.signature))
    refused = any(run.out is None or run.out.shape != answer(run.case)[0].shape for run in runs)
    if refused and explain(runs, RIGHT, mistakes.BATCHES) is None:
        m.limits.append("It takes one text at a time: a batch fails, or comes out misshapen.")
        return False
    m.test("batches", runs, mistakes.BATCHES, findings.wrong_batch)
    return not m.found
