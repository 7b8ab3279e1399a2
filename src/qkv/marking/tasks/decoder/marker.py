"""Mark a decoder: does it give the logits of a small model, and write the same words?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking import findings
from qkv.marking.draws import by_seed, generator, per_seed
from qkv.marking.engine import Group, Marking
from qkv.marking.errors import words_of
from qkv.marking.findings import Finding, of_mistake, told
from qkv.marking.functions import options_of
from qkv.marking.outcome import Outcome, name_of, numbers, outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.decoder.mistakes import (
    ENDS,
    HEADS,
    LAST_POSITION,
    LAST_ROW,
    LAYER,
    ROTARY,
    SLIPS,
    TRANSPOSED,
    UNTIED,
)
from qkv.marking.tasks.decoder.steps import (
    CONFIG,
    RIGHT,
    Text,
    compute,
    greedy,
    small_model,
)
from qkv.marking.tasks.mistakes.formula import SCALING, SCORES, SOFTMAX
from qkv.marking.tasks.mistakes.heads import HEADS as SPLITTING
from qkv.marking.tasks.mistakes.slips import OF_CAUSAL
from qkv.marking.tasks.mistakes.slips import SLIPS as OF_ATTENTION
from qkv.marking.tasks.task import task

# of attention, what is no other thing where key heads are shared
_SPLITTING = tuple(one for one in SPLITTING if one.key not in ("heads-size", "heads-ignored"))
KNOWN = (
    *ROTARY,
    *HEADS,
    *LAYER,
    *ENDS,
    *TRANSPOSED,
    *SOFTMAX,
    *SCORES,
    *SCALING,
    *_SPLITTING,
    *SLIPS,
    *OF_ATTENTION,
    *OF_CAUSAL,
)
# one word has nobody else to attend to; of two the second knows a distance
_TEXTS = ([3], [3, 5], [1, 4, 2], [7, 1, 7, 3, 0, 10])
ANOTHER_WORD = Text(np.array([8]))  # as many logits as those of the first text
_IDS = ([3], [3, 5], [12, 4, 2])
ANOTHER_MODEL = Group(
    "a model of other sizes, with lm_head.weight of its own",
    [Text(np.array(ids), tied=False) for ids in _IDS],
    UNTIED,
)
WRITTEN = Group("words written one after the other", [Text(np.array([2, 9]), write=8)])


@per_seed
def texts() -> list[Text]:
    """The ids that logits are asked for; a seed gives each word another id."""
    others = generator(1).permutation(11) if by_seed() else np.arange(11)
    return [Text(others[ids]) for ids in _TEXTS]


class _Decoding:
    """Somebody's decoder, called with a small model's weights and config.

    Args:
        decoder: the function.
    """

    def __init__(self, decoder: Callable[..., Any]) -> None:
        self.decoder = decoder
        self.batched = False  # it takes ids (1, T) only
        self.changed: dict[str, Any] = {}  # weights that it has written to, or taken away

    def __call__(self, case: Text) -> Any:
        """What it returns for the ids of a case, or the words that it writes."""
        if case.write:
            return greedy(case.ids, case.write, lambda ids: self._rows(ids, case.tied))
        returned = self._returned(case.ids, case.tied)
        if isinstance(returned, tuple) or (isinstance(returned, list) and not self.batched):
            return returned  # what is in it has no batch to be taken out of
        logits = numbers(returned)
        return returned if logits is None else _without_batch(logits)

    def _returned(self, ids: Array, tied: bool) -> Any:
        weights, config = small_model(tied)
        given = {name: a.copy() for name, a in weights.items()}
        returned = self.decoder(ids[None] if self.batched else ids, given, dict(config))
        for name, a in weights.items():
            if not np.array_equal(given.get(name, np.nan), a):
                self.changed[f'weights["{name}"]'] = given.get(name, "nothing")
        return returned

    def _rows(self, ids: Array, tied: bool) -> Array:
        """Its logits as rows, of which the last is for the word to come."""
        logits = numbers(self._returned(ids, tied))
        if logits is None:
            raise TypeError("it returned no logits")
        return np.atleast_2d(_without_batch(logits))


def _without_batch(logits: Array) -> Array:
    """(1, T, V) as (T, V)."""
    return logits[0] if logits.ndim == 3 and len(logits) == 1 else logits


_LAYER = re.compile(r"layers\.(\d+)\.")


def _fails(wrong: Outcome) -> Finding | None:
    """A name that is in neither weights nor config."""
    if not isinstance(wrong.error, KeyError):
        return None
    weights, config = small_model(wrong.case.tied)
    name = words_of(wrong.error.args[0] if wrong.error.args else "")
    key, says = "decoder-no-such-name", f"it asks for {name!r}, which this model has not"
    where, remedy = "the names of the weights, and of what is read from config", ""
    parts = {one.partition(".")[2].partition(".")[2].partition(".")[2] for one in weights}
    number = _LAYER.search(name)
    if "lm_head" in name:
        key = "decoder-no-head"
        remedy = 'head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])'
    elif number or {name, f"{name}.weight"} & parts:
        key = "decoder-layers"
        says += f": it has {config['num_hidden_layers']} layers"
        remedy = 'for layer in range(config["num_hidden_layers"]): ...'
    elif near := difflib.get_close_matches(name, [*weights, *config], 1):
        remedy = near[0]
    nudge = "Print the names of the weights, and config."
    shows = told(wrong)
    return Finding(key, says, shows, remedy, nudge=nudge, where=where, run=wrong)


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

    limits, known, right, last_row = [], KNOWN, RIGHT, False
    if run(texts()[1]).error is not None:
        call.batched = True
        if run(texts()[1]).error is None:
            limits.append("It takes ids (1, T) only, not (T,).")
        else:
            call.batched = False
    out = run(texts()[1]).out
    if out is not None and out.shape == (CONFIG["vocab_size"],):
        last_row = True
        known, right = (*KNOWN, LAST_POSITION), {**RIGHT, "rows": lambda logits: logits[-1]}
    m = DecoderMarking(
        "decoder",
        name_of(function),
        lambda case: run(case, right),
        compute,
        right,
        returns="return logits  # (T, V)",
    )
    m.limits += limits
    m.first_call(texts()[0])
    if m.wrong:
        return m.result()
    m.test(Group("logits", texts(), known, _fails))
    m.run([ANOTHER_WORD])
    if not m.wrong:
        m.test(WRITTEN)
    if not m.wrong:
        m.test(ANOTHER_MODEL)
    if not m.wrong:
        m.find(findings.changed_inputs([replace(m.runs[0], changed=call.changed)]))
    if last_row and LAST_POSITION.key not in {one.key for one in m.found}:
        m.find(of_mistake(LAST_ROW, run(texts()[1], right)))
    return m.result()


DECODER = task("decoder", _mark)
