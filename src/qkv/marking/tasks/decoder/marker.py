"""Mark a decoder: compare its logits and its generated words for a small model."""

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking import findings
from qkv.marking.engine import Group, Marking, by_seed, generator, per_seed
from qkv.marking.errors import words_of
from qkv.marking.findings import Finding, of_mistake, told
from qkv.marking.outcome import Outcome, name_of, numbers, options_of, outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.decoder import mistakes
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
from qkv.marking.tasks.task import Texts, task

_TEXTS = Texts(__name__)
# omits two mistakes whose steps differ in grouped-query attention
_SPLITTING = tuple(one for one in SPLITTING if one.key not in ("heads-size", "heads-ignored"))
KNOWN = (
    *mistakes.ROTARY,
    *mistakes.HEADS,
    *mistakes.LAYER,
    *mistakes.ENDS,
    *mistakes.TRANSPOSED,
    *SOFTMAX,
    *SCORES,
    *SCALING,
    *_SPLITTING,
    *mistakes.SLIPS,
    *OF_ATTENTION,
    *OF_CAUSAL,
)
# one word attends only to itself; two words also show relative positions
_TEXT_IDS = ([3], [3, 5], [1, 4, 2], [7, 1, 7, 3, 0, 10])
ANOTHER_WORD = Text(np.array([8]))  # a text of one word, like the first text
_OTHER_IDS = ([3], [3, 5], [12, 4, 2])
ANOTHER_MODEL = Group(
    "a model of other sizes with lm_head.weight",
    [Text(np.array(ids), tied=False) for ids in _OTHER_IDS],
    mistakes.UNTIED,
)
WRITTEN = Group("words that are written one after the other", [Text(np.array([2, 9]), write=8)])


@per_seed
def texts() -> list[Text]:
    """Return the texts of the first test; the ids of their words depend on the seed."""
    others = generator(1).permutation(11) if by_seed() else np.arange(11)
    return [Text(others[ids]) for ids in _TEXT_IDS]


class _Decoding:
    """A student's decoder, called with a small model's weights and config.

    Args:
        decoder: the function.
    """

    def __init__(self, decoder: Callable[..., Any]) -> None:
        self.decoder = decoder
        # whether the decoder takes only ids (1, T)
        self.batched = False
        # weights that the decoder changed or removed
        self.changed: dict[str, Any] = {}

    def __call__(self, case: Text) -> Any:
        """Return the logits for the ids of a case, or the ids that the decoder generates."""
        if case.write:
            return greedy(case.ids, case.write, lambda ids: self._rows(ids, case.tied))
        returned = self._returned(case.ids, case.tied)
        if isinstance(returned, tuple) or (isinstance(returned, list) and not self.batched):
            return returned  # items of a tuple or list have no batch axis
        logits = numbers(returned)
        return returned if logits is None else _without_batch(logits)

    def _returned(self, ids: Array, tied: bool) -> Any:
        weights, config = small_model(tied)
        copies = {name: a.copy() for name, a in weights.items()}
        returned = self.decoder(ids[None] if self.batched else ids, copies, dict(config))
        for name, a in weights.items():
            if not np.array_equal(copies.get(name, np.nan), a):
                self.changed[f'weights["{name}"]'] = copies.get(name, "nothing")
        return returned

    def _rows(self, ids: Array, tied: bool) -> Array:
        """Return the logits as rows; the last row predicts the next word."""
        logits = numbers(self._returned(ids, tied))
        if logits is None:
            raise TypeError("the decoder returned no logits")
        return np.atleast_2d(_without_batch(logits))


def _without_batch(logits: Array) -> Array:
    """Reshape logits (1, T, V) to (T, V)."""
    return logits[0] if logits.ndim == 3 and len(logits) == 1 else logits


def _unknown_name(wrong: Outcome) -> Finding | None:
    """Report a name that is neither in the weights nor in config."""
    if not isinstance(wrong.error, KeyError):
        return None
    weights, config = small_model(wrong.case.tied)
    asked = words_of(wrong.error.args[0] if wrong.error.args else "")
    of_layers = {name.split(".", 3)[-1] for name in weights if name.startswith("model.layers.")}
    name, remedy = "decoder-no-such-name", ""
    if "lm_head" in asked:
        name = "decoder-no-head"
    elif re.search(r"layers\.\d+\.", asked) or {asked, f"{asked}.weight"} & of_layers:
        name = "decoder-no-such-layer"
    elif near := difflib.get_close_matches(asked, [*weights, *config], 1):
        (remedy,) = near
    layers = config["num_hidden_layers"]
    finding = _TEXTS.finding(name, wrong, asked=repr(asked), error=told(wrong), layers=layers)
    return replace(finding, remedy=finding.remedy or remedy)


class _DecoderMarking(Marking):
    """The test results of one decoder so far."""

    def unexplained(self, runs: list[Outcome], what: str) -> Finding:
        """Add a hint if only texts of more than one word are wrong."""
        hints = []
        if runs[0].is_right and len(runs[0].case.ids) == 1:
            hints.append("right for one word, so the mistake is in attention between words")
        return findings.unexplained(runs, what, self.returns, hints)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a decoder."""
    options_of(function, ("ids", "weights", "config"), {})
    call = _Decoding(function)

    def run(case: Text, steps: Any = RIGHT) -> Outcome:
        return outcome(case, call, compute(case, steps))

    first, known, right = run(texts()[1]), KNOWN, RIGHT
    if first.error is not None:
        call.batched = True
        first = run(texts()[1])
        call.batched = first.error is None
    last_row = first.out is not None and first.out.shape == (CONFIG["vocab_size"],)
    if last_row:
        known, right = (
            (*KNOWN, mistakes.LAST_POSITION),
            {**RIGHT, "rows": lambda logits: logits[-1]},
        )
    m = _DecoderMarking(
        "decoder",
        name_of(function),
        lambda case: run(case, right),
        compute,
        right,
        returns="return logits  # (T, V)",
    )
    if call.batched:
        m.limits.append("It takes only ids (1, T), not (T,).")
    m.first_call(texts()[0])
    if m.wrong:
        return m.result()
    m.test(Group("logits", texts(), known, _unknown_name))
    m.run([ANOTHER_WORD])
    for group in (WRITTEN, ANOTHER_MODEL):
        m.test(replace(group, if_right=True))
    if not m.wrong:
        m.find(findings.changed_inputs([replace(m.runs[0], changed=call.changed)]))
    if last_row and mistakes.LAST_POSITION.key not in {finding.key for finding in m.found}:
        m.find(of_mistake(mistakes.LAST_ROW, run(texts()[1], right)))
    return m.result()


DECODER = task("decoder", _mark)
