"""The attention tasks, and the order of their tests."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.marking.engine import Group, Marking
from qkv.marking.findings import Finding, changed_inputs, of_mistake
from qkv.marking.mistake import Mistake
from qkv.marking.outcome import Outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention import findings, steps
from qkv.marking.tasks.attention.learner import OPTIONS, Learner, learner
from qkv.marking.tasks.mistakes import heads, masks
from qkv.marking.tasks.mistakes.formula import BATCHES, LARGE, ONE_TEXT, SHAPES, core
from qkv.marking.tasks.task import Texts, pick, task

MOST = 131  # maximum number of keys or queries, enough for more than one block
_TEXTS = Texts(__name__)
PER_KEY = _TEXTS.mistake("mask-per-key")


class AttentionMarking(Marking):
    """The test results of one attention function so far."""

    call: Learner

    def __init__(self, task: str, call: Learner, signature: str, *, batches: bool = False) -> None:
        super().__init__(task, call.name, call, steps.compute, steps.RIGHT, returns=findings.RETURN)
        self.needs_batches = batches
        self.signature, self.cases = signature, steps.cases(signature)
        self.of_weight_one = self.cases["one key"]

    def on(self, test: str, call: Learner | None = None) -> list[Outcome]:
        """Call the function, or `call` if given, with the inputs of a test."""
        return self.run(self.cases[test], call)

    def choose(self, ways: Iterable[Learner]) -> None:
        """Call the function in the first of these ways that gives only right results, if any."""
        right = (way for way in ways if all(run.is_right for run in self.on(steps.CORE, way)))
        self.call = next(right, self.call)

    def ask(
        self,
        test: str,
        known: Sequence[Mistake] = (),
        otherwise: Callable[[Outcome], Finding | None] = lambda wrong: None,
        *,
        may_refuse: bool = False,
    ) -> None:
        """Run the test with this name."""
        self.test(Group(test, self.cases[test], known, otherwise, may_refuse))

    def at_last(self) -> Finding | None:
        """Report inputs that the function changed, or wrong weights next to a right output."""
        return super().at_last() or findings.second_output(self.runs)

    def unexplained(self, runs: list[Outcome], what: str) -> Finding:
        """Describe a wrong result: the sizes that cause it, or else its properties."""
        odd = findings.odd_shape(runs) if what == steps.SIZES[self.signature] else None
        finding = odd or findings.unexplained(self.call, runs, what)
        self.explained = self.explained or finding.key in ("scale-wrong", "some-lengths")
        return finding


def _marks(task: str, *, batches: bool = False) -> Callable[[Callable[..., Any], str], CheckResult]:
    """Return the marker of an attention task, which takes a function and a signature."""
    return lambda function, signature: _mark(
        AttentionMarking(task, learner(function, signature), signature, batches=batches)
    )


ATTENTION = task("attention", _marks("attention"))
_PLANTED = {"heads-reshape", "causal-upper"}  # mistakes that lesson 10 hides in its function


def _mended(result: CheckResult) -> CheckResult:
    """Set the points to 0 if the function still has exactly the planted mistakes."""
    return replace(result, points=0) if {*result.mistakes} == _PLANTED else result


BATCHED_ATTENTION = task("batched-attention", _marks("batched-attention", batches=True))
TILES = task("tiles", _marks("tiles", batches=True))
MENDED = task(
    "self-attention", lambda function, way: _mended(_marks("self-attention")(function, way))
)


def _mark(m: AttentionMarking) -> CheckResult:
    """Run the tests in order, and skip some tests after the first wrong result."""
    options = m.call.options
    first_calls(m)
    if m.wrong:
        return m.result()
    one_head = heads.ONE_HEAD if "heads" in options else ()
    m.ask(steps.CORE, (*core(m.signature), *one_head))
    if not m.wrong:
        m.ask(steps.SIZES[m.signature], SHAPES)
    m.ask("scores of 1000", LARGE, findings.large_scores)
    if not m.wrong:
        m.find(changed_inputs(m.runs))
    if not m.wrong:
        (whole,) = m.cases["whole numbers"]
        m.whole_numbers(whole, steps.FLOATS)
    if not m.wrong and m.signature == "qkv":
        _try_long_ones(m)
    batches = not m.wrong and takes_batches(m)

    each_pair = "mask" in options and try_masks(m, batches)
    try_causal(m, each_pair, batches)
    if "causal" in options and "q_offset" in options and "q_offset" in m.cases:
        m.ask("q_offset", masks.OFFSET)
    if "heads" in options and "two heads" in m.cases:
        m.ask("two heads", (*heads.HEADS, heads.IN_TURN))
    asked = {"mask", "causal", "q_offset" if m.signature == "qkv" else "heads"}
    m.untried += [OPTIONS[option][0] for option in OPTIONS if option in asked - {*options}]
    return m.result()


def first_calls(m: AttentionMarking) -> None:
    """Find out how to call the function, and whether two calls share a result array."""
    if any(run.error is not None for run in m.on(steps.CORE)):
        m.choose(replace(m.call, rank=rank) for rank in (3, 4))
        if m.call.rank > 2:
            m.limits.append(
                f"It takes only arrays of {m.call.rank} dimensions, not a single text (L, d)."
            )
    if "mask" in m.call.needed:
        # a mask that hides no key: True, 0 if it is added, or False if it is inverted
        shapes = product((False, True), (True, 0.0, False))
        m.choose(replace(m.call, unmasked=value, per_key=per_key) for per_key, value in shapes)
    runs, known = m.on(steps.CORE), core(m.signature)
    swapped = replace(m.call, weights_first=True)
    if runs[0].second is not None and m.explains_more(m.on(steps.CORE, swapped), runs, known):
        m.find(_TEXTS.finding("tuple-order", runs[0]))
        m.call = swapped
    m.first_call(m.cases[steps.CORE][0])


def _try_long_ones(m: AttentionMarking) -> None:
    """Test texts longer than a block, and report the shortest length that fails."""
    m.tried.append(f"{MOST} keys and {MOST} queries")
    if all(run.is_right for run in m.run(steps.long_ones(MOST))):
        _try_large_ones(m)
        return
    cases = (case for length in range(4, MOST + 1) for case in steps.long_ones(length))
    wrong = next(run for run in map(m.call, cases) if not run.is_right)
    m.find(findings.some_lengths(wrong, [run for run in m.runs if run.is_right]))


def _try_large_ones(m: AttentionMarking) -> None:
    """Test large scores, for which a function needs the maximum over all earlier blocks."""
    if any(finding.kind == "fragile" for finding in m.found):
        return
    m.tried.append(f"scores of 1000 and 2000 for {MOST} keys")
    if not m.call(steps.large_ones(MOST)).is_right:
        runs = map(m.call, map(steps.large_ones, range(2, MOST + 1)))
        m.find(findings.large_ones(next(run for run in runs if not run.is_right)))


def try_masks(
    m: AttentionMarking, batches: bool, more: Sequence[Mistake] = (), per_key: Mistake = PER_KEY
) -> bool:
    """Test boolean masks, or masks of 0 and -inf if the function seems to expect numbers.

    Return whether the function takes a mask (L, S).
    """
    if m.steps is None:
        return False
    known = (*masks.MASK, *masks.HIDING, *more)
    adding = replace(m.call, adds_mask=True, unmasked=0.0)
    as_bool = m.on("a mask")
    (nothing,) = m.on("a row masked out", adding)
    for_numbers = m.call.number_as_mask or is_made_for_numbers(nothing)
    if adds_its_mask(m, as_bool, m.on("a mask", adding), known, for_numbers):
        m.call = adding
    elif m.explain(as_bool, known) is None:
        runs = m.on("a mask of keys")
        if all(run.is_right for run in runs):
            m.find(of_mistake(per_key, runs[0]))
            m.tried.append("a mask of keys")
            return False
    m.ask("a mask", known)
    m.ask("a row masked out", masks.EMPTY, findings.empty_row)
    if batches:
        m.ask("a mask on a batch", may_refuse=not m.needs_batches)
    return True


def try_causal(m: AttentionMarking, each_pair: bool, batches: bool = False) -> None:
    """Test a causal mask alone, on a batch and with another mask, if the function takes one."""
    if "causal" not in m.call.options:
        return
    m.ask("a causal mask", (*masks.CAUSAL, *masks.HIDING, *masks.EMPTY))
    if batches:
        m.ask("a causal mask on a batch", may_refuse=True)
    if each_pair:
        m.ask("both masks together", masks.BOTH, may_refuse=True)


def adds_its_mask(
    m: Marking,
    as_bool: list[Outcome],
    added: list[Outcome],
    known: Sequence[Mistake],
    for_numbers: bool,
) -> bool:
    """Tell whether the function expects a mask of 0 and -inf, and adds it to the scores.

    Compare its results for both kinds of mask: it expects the kind for which fewer mistakes
    explain the results. Adding a boolean mask (1 for True, 0 for False) to the scores counts as a
    mistake, unless the function clearly expects a mask of numbers.
    """
    # where(mask, -inf, scores) inverts a boolean mask, but is right for a mask of 0 and -inf
    inverted = m.explain(as_bool, pick(known, "mask-inverted"))
    if (inverted and inverted[1]) or not m.explains_more(added, as_bool, known):
        return False
    # where(mask, scores, -inf) needs a boolean mask: in a mask of 0 and -inf, it masks the zeros
    explained = m.explain(added, known)
    if explained and any(mistake.key == "mask-inverted" for mistake in explained[1]):
        return False
    adds_bools = m.explain(as_bool, pick(known, "mask-added"))
    if adds_bools and adds_bools[1] and not for_numbers:
        return False
    m.limits.append("It takes its mask as 0 and -inf to add, not as True and False.")
    return True


def is_made_for_numbers(nothing: Outcome) -> bool:
    """Tell whether a function handles a fully masked row, for which plain softmax gives nan."""
    return nothing.out is not None and not np.isnan(nothing.out).any()


def takes_batches(m: AttentionMarking) -> bool:
    """Test a batch of two texts. Only tasks that ask for batches require a result."""
    refused = refused_batch(m)
    if refused is not None:
        if m.needs_batches:
            m.find(of_mistake(ONE_TEXT, refused))
        else:
            m.limits.append(
                "It takes one text at a time: a batch fails, or its output has a wrong shape."
            )
        return False
    m.ask("batches", BATCHES, findings.wrong_batch)
    return not m.wrong


def refused_batch(m: AttentionMarking) -> Outcome | None:
    """Return a batch that gives an error or a wrong shape; None if this is a known mistake."""
    runs = m.on("batches")
    refused = [run for run in runs if run.out is None or run.out.shape != run.right.shape]
    return refused[0] if refused and m.explain(runs, BATCHES) is None else None
