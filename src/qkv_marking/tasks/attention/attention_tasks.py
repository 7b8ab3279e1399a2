"""The attention tasks, and the order of their tests."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv_marking._engine import Group, Marking, reproduces
from qkv_marking._findings import Symptom, changed_inputs, of_mistake
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome
from qkv_marking._result import CheckResult
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import pick, task
from qkv_marking.tasks.attention import mistakes, steps, symptoms
from qkv_marking.tasks.attention.mistakes import BATCHES, LARGE, ONE_TEXT, SHAPES, core

MAX_LENGTH = 131  # the largest tested number of keys or queries, more than a block of 128 keys
_TEXTS = Table(__package__, "attention_tasks")
ONE_AT_A_TIME = "It takes one text at a time: a batch fails, or its output is wrong."
_PLANTED = {"heads-reshape", "causal-upper"}  # mistakes that lesson 10 hides in its function


class AttentionMarking(Marking):
    """The tests of one attention function."""

    call: steps.Learner

    def __init__(self, task: str, call: steps.Learner, signature: str, batches: bool) -> None:
        super().__init__(
            task, call.name, call, steps.compute, mistakes.FORMULA.lines, returns=symptoms.RETURN
        )
        self.needs_batches = batches
        self.signature, self.cases = signature, steps.cases(signature)
        self.of_weight_one = self.cases["one key"]

    def on(self, test: str, call: steps.Learner | None = None) -> list[Outcome]:
        """Call the function, or `call` if it is given, with the inputs of a test."""
        return self.run(self.cases[test], call)

    def choose(self, ways: Iterable[steps.Learner]) -> None:
        """Try the ways to call the function; use the first way that gives only right results."""
        right = (way for way in ways if all(run.is_right for run in self.on(steps.CORE, way)))
        self.call = next(right, self.call)

    def ask(self, test: str, known: Sequence[Mistake] = (), **options: Any) -> None:
        """Run the test with this name; `options` are fields of `Group`, such as `may_refuse`."""
        self.test(Group(test, self.cases[test], known, **options))

    def at_last(self) -> Symptom | None:
        """Report a function that changes inputs, overwrites outputs, or returns wrong weights."""
        return super().at_last() or symptoms.second_output(self.runs)

    def report_odd(self, runs: list[Outcome], what: str) -> Symptom:
        """Describe a wrong result: the sizes for which it occurs, or its properties."""
        odd = symptoms.odd_shape(runs) if what == steps.SIZES[self.signature] else None
        return odd or symptoms.report_odd(self.call, runs, what)

    def test_all(self) -> None:
        """Run the tests in order, and skip some tests after the first wrong result."""
        options = self.call.options
        self.first_calls()
        if self.wrong:
            return
        one_head = mistakes.ONE_HEAD if "heads" in options else ()
        tiles = mistakes.TILES if self.task == "tiles" else ()
        self.ask(steps.CORE, (*core(self.signature), *one_head, *tiles))
        if tiles and not self.wrong:
            self.test(Group("several tiles", steps.long_ones(7), tiles))
        if not self.wrong:
            self.ask(steps.SIZES[self.signature], SHAPES)
        self.ask("scores of 1000", LARGE, otherwise=symptoms.large_scores)
        if not self.wrong:
            self.find(changed_inputs(self.runs))
        if not self.wrong:
            (whole,) = self.cases["whole numbers"]
            self.whole_numbers(whole, steps.FLOATS)
        if not self.wrong and self.signature == "qkv":
            self._try_long_ones()
        batches = not self.wrong and self.takes_batches()

        each_pair = "mask" in options and self.try_masks(batches)
        self.try_causal(each_pair, batches)
        if "causal" in options and "q_offset" in options and "q_offset" in self.cases:
            self.ask("q_offset", mistakes.OFFSET)
        if "heads" in options and "two heads" in self.cases:
            self.ask("two heads", (*mistakes.HEADS, mistakes.IN_TURN, *mistakes.JOINED))
        all_options = {"mask", "causal", "q_offset" if self.signature == "qkv" else "heads"}
        known = steps.OPTIONS.items()
        self.untried += [names[0] for option, names in known if option in all_options - {*options}]

    def first_calls(self) -> None:
        """Determine how to call the function; check that identical calls give equal arrays."""
        if any(run.error is not None for run in self.on(steps.CORE)):
            self.choose(replace(self.call, rank=rank) for rank in (3, 4))
            if (rank := self.call.rank) > 2:
                self.limits.append(
                    f"It takes only arrays of {rank} dimensions, not a single text (L, d)."
                )
        if "mask" in self.call.needed:
            # masks that mask no key: all True, all 0 (for functions that add the mask to the
            # scores), or all False (for functions that invert the mask)
            shapes = product((False, True), (True, 0.0, False))
            self.choose(
                replace(self.call, unmasked=value, per_key=per_key) for per_key, value in shapes
            )
        runs, known = self.on(steps.CORE), core(self.signature)
        swapped = replace(self.call, weights_first=True)
        if runs[0].second is not None and self.explains_more(
            self.on(steps.CORE, swapped), runs, known
        ):
            self.find(_TEXTS.finding("tuple-order", runs[0]))
            self.call = swapped
        self.first_call(self.cases[steps.CORE][0])

    def _try_long_ones(self) -> None:
        """Check texts that are longer than a block, and report the shortest length that fails."""
        self.tried.append(f"{MAX_LENGTH} keys and {MAX_LENGTH} queries")
        if all(run.is_right for run in self.run(steps.long_ones(MAX_LENGTH))):
            self._try_large_ones()
            return
        cases = (case for length in range(4, MAX_LENGTH + 1) for case in steps.long_ones(length))
        wrong = next(run for run in map(self.call, cases) if not run.is_right)
        self.find(symptoms.some_lengths(wrong, [run for run in self.runs if run.is_right]))

    def _try_large_ones(self) -> None:
        """Use scores of 1000 and 2000 to find a wrong maximum over blocks of keys."""
        if any(finding.kind == "fragile" for finding in self.findings):
            return
        self.tried.append(f"scores of 1000 and 2000 for {MAX_LENGTH} keys")
        if not self.call(steps.large_ones(MAX_LENGTH)).is_right:
            runs = map(self.call, map(steps.large_ones, range(2, MAX_LENGTH + 1)))
            self.find(symptoms.large_ones(next(run for run in runs if not run.is_right)))

    def try_masks(self, batches: bool, needed: bool = False) -> bool:
        """Test boolean masks, or masks of 0 and -inf if the function seems to expect numbers.

        Args:
            batches: whether to test a mask on a batch.
            needed: whether the task asks for a mask.

        Returns:
            True if the function takes masks of shape (L, S), False if it does not.
        """
        if self.steps is None:
            return False
        known = (*mistakes.MASK, *mistakes.HIDING, *(mistakes.WEAK if needed else ()))
        adding = replace(self.call, adds_mask=True, unmasked=0.0)
        as_bool = self.on("a mask")
        (nothing,) = self.on("a row masked out", adding)
        for_numbers = self.call.number_as_mask or is_made_for_numbers(nothing)
        if adds_its_mask(self, (as_bool, self.on("a mask", adding)), known, for_numbers):
            self.call = adding
        elif self.explain(as_bool, known) is None:
            runs = self.on("a mask of keys")
            if all(run.is_right for run in runs):
                per_key = _TEXTS.mistake("mask-per-key")
                if needed:
                    per_key = replace(per_key, kind="wrong")
                self.find(of_mistake(per_key, runs[0]))
                self.tried.append("a mask of keys")
                return False
        self.ask("a mask", (*known, *mistakes.EMPTY))
        if self.call.adds_mask:
            self._try_numbers()
        self.ask("a row masked out", mistakes.EMPTY, otherwise=symptoms.empty_row)
        if batches:
            self.ask("a mask on a batch", may_refuse=not self.needs_batches)
        return True

    def _try_numbers(self) -> None:
        """Test a mask with finite numbers, which must be added to the scores."""
        test, known = "a mask of numbers", pick(mistakes.MASK, "mask-inverted")
        runs = self.on(test)
        selects = {**(self.steps or {}), "added": "pass"}
        if not all(run.is_right for run in runs) and all(
            reproduces(run, selects, self.compute) for run in runs
        ):
            self.limits.append(
                "It only tests which numbers of a mask are -inf; it adds no numbers."
            )
        else:
            self.ask(test, known)

    def try_causal(self, each_pair: bool, batches: bool = False) -> None:
        """If the function has a causal option, test it: alone, on a batch, and with a mask."""
        if "causal" not in self.call.options:
            return
        hiding = (*mistakes.HIDING, *mistakes.WEAK)
        self.ask("a causal mask", (*mistakes.CAUSAL, *hiding, *mistakes.EMPTY))
        if batches:
            self.ask("a causal mask on a batch", may_refuse=True)
        if each_pair:
            self.ask("both masks together", mistakes.BOTH, may_refuse=True)

    def takes_batches(self) -> bool:
        """Test a batch of two texts, and return whether the function accepts batches."""
        if not self.needs_batches:
            if all(run.is_right for run in self.on("batches")):
                self.tried.append("batches")
                return True
            self.limits.append(ONE_AT_A_TIME)
            return False
        refused = self.refused_batch()
        if refused is not None:
            self.find(of_mistake(ONE_TEXT, refused))
            return False
        self.ask("batches", BATCHES, otherwise=symptoms.wrong_batch)
        return not self.wrong

    def refused_batch(self) -> Outcome | None:
        """Call the function with batches, and return the first call that fails.

        Return None if no call fails, or if a known mistake explains the results.
        """
        runs = self.on("batches")
        refused = [run for run in runs if run.out is None or run.out.shape != run.right.shape]
        return refused[0] if refused and self.explain(runs, BATCHES) is None else None


def adds_its_mask(
    m: Marking, runs: Sequence[list[Outcome]], known: Sequence[Mistake], for_numbers: bool
) -> bool:
    """Return whether a function expects a mask of 0 and -inf, and adds the mask to the scores.

    The marker calls the function with both kinds of mask, and keeps the kind that reveals fewer
    mistakes. Adding a boolean mask to the scores (1 for True, 0 for False) is a mistake, unless the
    function clearly expects a mask of numbers.

    Args:
        m: the marking of the function.
        runs: the calls with boolean masks, and the calls with masks of 0 and -inf.
        known: the possible mistakes.
        for_numbers: whether the function clearly expects a mask of numbers.
    """
    as_bool, added = runs
    # `where(mask, -inf, scores)` hides a key if its mask value is true. In a boolean mask, True
    # means visible, so this code inverts the mask. The code is right for a mask of 0 and -inf,
    # because -inf counts as true
    inverted = m.explain(as_bool, (*pick(known, "mask-inverted"), *mistakes.EMPTY))
    if (inverted and pick(inverted[1], "mask-inverted")) or not m.explains_more(
        added, as_bool, known
    ):
        return False
    # `where(mask, scores, -inf)` is right for a boolean mask, but inverts a mask of 0 and -inf
    explained = m.explain(added, known)
    if explained and any(mistake.key == "mask-inverted" for mistake in explained[1]):
        return False
    adds_bools = m.explain(as_bool, pick(known, "mask-added"))
    if adds_bools and adds_bools[1] and not for_numbers:
        return False
    m.limits.append(
        "It expects a mask of 0 and -inf to add to the scores, not a mask of True and False."
    )
    return True


def is_made_for_numbers(nothing: Outcome) -> bool:
    """Return whether fully masked rows give an output without nan; plain softmax gives nan."""
    return nothing.out is not None and not np.isnan(nothing.out).any()


def _mark(task: str, function: Function, signature: str, batches: bool = False) -> CheckResult:
    """Mark an attention function; if `batches` is True, the task requires batches."""
    m = AttentionMarking(task, steps.learner(function, signature), signature, batches)
    m.test_all()
    return m.result()


def _mark_mended(function: Function, signature: str) -> CheckResult:
    """Mark the function of lesson 10: 0 points if it still contains both planted mistakes."""
    result = _mark("self-attention", function, signature)
    if {*result.mistakes} != _PLANTED:
        return result
    return replace(result, points=0, reason="Both mistakes of the function are still there.")


ATTENTION = task("attention", lambda function, way: _mark("attention", function, way))
BATCHED_ATTENTION = task(
    "batched-attention", lambda function, way: _mark("batched-attention", function, way, True)
)
TILES = task("tiles", lambda function, way: _mark("tiles", function, way, True))
MENDED = task("self-attention", _mark_mended)
