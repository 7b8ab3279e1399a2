"""Mark a decoder: does it give the logits of a small model, and write the same words?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking import findings
from qkv.marking.engine import Group, Marking
from qkv.marking.errors import in_words
from qkv.marking.findings import Finding, changed_inputs
from qkv.marking.outcome import Outcome, name_of, numbers, outcome
from qkv.marking.parameters import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.attention import mistakes as attention
from qkv.marking.tasks.decoder.mistakes import HEADS, LAST, PARTS, ROTARY
from qkv.marking.tasks.decoder.steps import RIGHT, Text, compute, greedy, small_model
from qkv.marking.tasks.task import Task

# of attention, what does not fail where there are heads, and key heads are shared
_SOFTMAX = tuple(one for one in attention.SOFTMAX if one.key != "softmax-keepdims")
_SPLITTING = tuple(
    replace(one, variants=one.variants[:2])
    for one in attention.HEADS
    if one.key in ("heads-reshape", "heads-join", "heads-scale")
)
KNOWN = (*ROTARY, *HEADS, *PARTS, *_SOFTMAX, *attention.SCALING, *_SPLITTING)
# one word has nobody else to attend to; of two the second knows a distance
TEXTS = [Text(np.array(ids)) for ids in ([3], [3, 5], [1, 4, 2], [7, 1, 7, 3, 0, 10])]
WRITTEN = Group("words written one after the other", [Text(np.array([2, 9]), write=8)])


class _Decoding:
    """Somebody's decoder, called with the small model's weights and config.

    Args:
        decoder: the function.
    """

    def __init__(self, decoder: Callable[..., Any]) -> None:
        self.decoder = decoder
        self.weights, self.config = small_model()
        self.batched = False  # it takes ids (1, T) only

    def __call__(self, case: Text) -> Any:
        """What it returns for the ids of a case, or the words that it writes."""
        if case.write:
            return greedy(case.ids, case.write, self._rows)
        returned = self._returned(case.ids)
        logits = numbers(returned)
        return returned if logits is None else _without_batch(logits)

    def _returned(self, ids: Array) -> Any:
        weights = {name: a.copy() for name, a in self.weights.items()}
        return self.decoder(ids[None] if self.batched else ids, weights, dict(self.config))

    def _rows(self, ids: Array) -> Array:
        """Its logits as rows, of which the last is for the word to come."""
        logits = numbers(self._returned(ids))
        if logits is None:
            raise TypeError("it returned no logits")
        return np.atleast_2d(_without_batch(logits))


def _without_batch(logits: Array) -> Array:
    """(1, T, V) as (T, V)."""
    return logits[0] if logits.ndim == 3 and len(logits) == 1 else logits


def _fails(wrong: Outcome) -> Finding | None:
    """A product whose shapes do not fit is nearly always one with a weight that is (out, in)."""
    error = in_words(wrong.error).lower()
    if wrong.error is None or not ("matmul" in error or "not aligned" in error):
        return None
    return Finding(
        "decoder-transposed",
        "a matrix product fails; the weights of these files are (out, in)",
        in_words(wrong.error),
        "q = x @ q_proj.T  # (T, in) @ (in, out); logits = x @ embed_tokens.T",
        nudge="Print the shapes of both sides of the product that fails.",
        where="the products with weights of the file",
        run=wrong,
    )


class DecoderMarking(Marking):
    """A decoder on its way through the tests."""

    def unexplained(self, runs: list[Outcome], what: str) -> Finding:
        """What a text of one word tells, where attention has nothing to choose from."""
        hints = []
        if runs[0].is_right and len(runs[0].case.ids) == 1:
            hints.append("right for one word, so what is wrong is in attention between words")
        return findings.unexplained(runs, what, self.returns, hints)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a decoder."""
    options_of(function, ("ids", "weights", "config"), {})
    call = _Decoding(function)

    def run(case: Text, steps: Any = RIGHT) -> Outcome:
        return outcome(case, call, compute(case, steps))

    limits, known, right = [], KNOWN, RIGHT
    if run(TEXTS[1]).error is not None:
        call.batched = True
        if run(TEXTS[1]).error is None:
            limits.append("It takes ids (1, T) only, not (T,).")
        else:
            call.batched = False
    out = run(TEXTS[1]).out
    if out is not None and out.shape == (call.config["vocab_size"],):
        limits.append("It gives the logits after the last word alone.")
        known, right = (*KNOWN, *LAST), {**RIGHT, "rows": lambda logits: logits[-1]}
    m = DecoderMarking(
        "decoder",
        name_of(function),
        lambda case: run(case, right),
        compute,
        right,
        returns="return logits  # (T, V)",
    )
    m.limits += limits
    m.first_call(TEXTS[0])
    if m.wrong:
        return m.result()
    m.test(Group("logits", TEXTS, known, _fails))
    if not m.wrong:
        m.test(WRITTEN)
    if not m.wrong:
        m.find(changed_inputs(m.runs))
    return m.result()


DECODER = Task(
    name="decoder",
    looks_for=("decoder", "my_decoder"),
    signature="decoder(ids, weights, config) -> logits (T, V)",
    asks="the logits after each of the ids (T,), by the weights of a file as Llama has them, each"
    " (out, in) under its name there, and config.json as a dict",
    mark=_mark,
)
