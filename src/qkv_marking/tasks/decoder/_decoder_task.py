"""The task `decoder`: known mistakes in a decoder, and tests of its logits and generated words.

The lines of the right computation and of the mistakes are in `decoder_task.toml`.
"""

import difflib
import re
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking import _findings
from qkv_marking._engine import Group, Marking, by_seed, generator, per_seed
from qkv_marking._errors import words_of
from qkv_marking._findings import Symptom, describe, of_mistake
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome, numbers, options_of
from qkv_marking.tasks._task import Computation, StepwiseMarking, make_task
from qkv_marking.tasks.attention import mistakes
from qkv_marking.tasks.decoder import _steps
from qkv_marking.tasks.decoder._steps import TABLE


def _of_groups(mistake: Mistake) -> Mistake:
    """Adapt the lines of a mistake in heads to queries and keys with different numbers of heads."""
    variants = tuple(
        {
            name: line.replace("num_heads", "n")
            .replace("for a in (q, k, v)", "for a, n in ((q, heads), (k, groups), (v, groups))")
            .replace("w_q", "q_proj")
            for name, line in way.items()
        }
        for way in mistake.variants
    )
    return replace(mistake, variants=variants)


# omit two mistakes, whose lines do not fit grouped-query attention
_SPLITTING = tuple(
    _of_groups(one) for one in mistakes.HEADS if one.key not in ("heads-size", "heads-ignored")
)
# join heads by a transpose and a reshape to (1, -1), which is right only for one word
_IN_ONE_ROW = {"join": "out = np.swapaxes(out, -3, -2).reshape(1, -1)"}
# mistakes that are visible only in a model with a separate LM head, `lm_head.weight`
UNTIED = TABLE.group("untied", "decoder-written-down")
# mistakes of decoders that return only the logits after the last word
LAST_ROW, LAST_POSITION = TABLE.group("last-row")
KNOWN = (
    *TABLE.group("rotation", "rotated", "angles", "heads", "masks", "mlp", "norms", "wiring"),
    *TABLE.group("ends", "decoder-transposed"),
    *mistakes.TABLE.group("softmax", "softmax-rows", "key-not-transposed", "scaling"),
    *_SPLITTING,
    *TABLE.group("rotary-slips", "projections", "norm-slips", "mlp-slips"),
    # two mistakes at once: the heads are split wrongly, and joined in one row
    *(
        replace(one, variants=tuple({**way, **_IN_ONE_ROW} for way in one.variants))
        for one in _SPLITTING
        if one.key in ("heads-reshape", "heads-swap-forgotten")
    ),
    *mistakes.SLIPS,
    *mistakes.OF_CAUSAL,
)
# in a text of one word, the word attends only to itself; two words reveal errors in positions
_TEXT_IDS = ([3], [3, 5], [1, 4, 2], [7, 1, 7, 3, 0, 10])
ANOTHER_WORD = _steps.Text(np.array([8]))
_OTHER_IDS = ([3], [3, 5], [12, 4, 2])
ANOTHER_MODEL = Group(
    "a model of other sizes with lm_head.weight",
    [_steps.Text(np.array(ids), tied=False) for ids in _OTHER_IDS],
    UNTIED,
)
WRITTEN = Group(
    "words that are generated one after the other", [_steps.Text(np.array([2, 9]), write=8)]
)


@per_seed
def texts() -> list[_steps.Text]:
    """Return the texts of the first test; the ids of their words depend on the seed."""
    others = generator(1).permutation(11) if by_seed() else np.arange(11)
    return [_steps.Text(others[ids]) for ids in _TEXT_IDS]


class _Decoding:
    """A student's decoder, called with a small model's weights and config.

    Args:
        decoder: the function.
    """

    def __init__(self, decoder: Function) -> None:
        self.decoder = decoder
        # whether the decoder takes only ids (1, T)
        self.batched = False
        # weights that the decoder changed or removed
        self.changed: dict[str, Any] = {}

    def __call__(self, case: _steps.Text) -> Any:
        """Return the logits for the ids of a case, or the ids that the decoder generates."""
        if case.write:
            return _steps.greedy(case.ids, case.write, lambda ids: self._rows(ids, case.tied))
        returned = self._call_function(case.ids, case.tied)
        if isinstance(returned, tuple) or (isinstance(returned, list) and not self.batched):
            return returned  # a tuple is always wrong; a list is wrong unless ids are (1, T)
        logits = numbers(returned)
        return returned if logits is None else _without_batch(logits)

    def _call_function(self, ids: Array, tied: bool) -> Any:
        weights, config = _steps.small_model(tied)
        copies = {name: a.copy() for name, a in weights.items()}
        returned = self.decoder(ids[None] if self.batched else ids, copies, dict(config))
        for name, a in weights.items():
            if not np.array_equal(copies.get(name, np.nan), a):
                self.changed[f'weights["{name}"]'] = copies.get(name, "nothing")
        return returned

    def _rows(self, ids: Array, tied: bool) -> Array:
        """Return the logits as rows; the last row predicts the next word."""
        logits = numbers(self._call_function(ids, tied))
        if logits is None:
            raise TypeError("the decoder returned no logits")
        return np.atleast_2d(_without_batch(logits))


def _without_batch(logits: Array) -> Array:
    """Reshape logits (1, T, V) to (T, V)."""
    return logits[0] if logits.ndim == 3 and len(logits) == 1 else logits


def _unknown_name(wrong: Outcome) -> Symptom | None:
    """Report a name that is neither in the weights nor in config."""
    if not isinstance(wrong.error, KeyError):
        return None
    weights, config = _steps.small_model(wrong.case.tied)
    key = words_of(wrong.error.args[0] if wrong.error.args else "")
    of_layers = {name.split(".", 3)[-1] for name in weights if name.startswith("model.layers.")}
    name, remedy = "decoder-no-such-name", ""
    if "lm_head" in key:
        name = "decoder-no-head"
    elif re.search(r"layers\.\d+\.", key) or {key, f"{key}.weight"} & of_layers:
        name = "decoder-no-such-layer"
    elif near := difflib.get_close_matches(key, [*weights, *config], 1):
        (remedy,) = near
    layers = config["num_hidden_layers"]
    finding = TABLE.finding(name, wrong, asked=repr(key), error=describe(wrong), layers=layers)
    return replace(finding, remedy=finding.remedy or remedy)


class _DecoderMarking(StepwiseMarking):
    """The tests of one decoder."""

    def report_odd(self, runs: list[Outcome], what: str) -> Symptom:
        """Describe a wrong result; add a hint if only texts of two or more words are wrong."""
        hints = []
        if runs[0].is_right and len(runs[0].case.ids) == 1:
            hints.append("right for one word, so the mistake is in attention between words")
        return _findings.report_odd(runs, what, self.returns, hints)


def _mark(function: Function) -> Marking:
    """Test a decoder."""
    options_of(function, ("ids", "weights", "config"), {})
    call, known = _Decoding(function), KNOWN
    right = Computation("decoder", _steps.compute, _steps.RIGHT, "return logits  # (T, V)")
    m = _DecoderMarking(right, function, call)
    first = m.call(texts()[1])
    if first.error is not None:
        call.batched = True
        first = m.call(texts()[1])
        call.batched = first.error is None
    last_row = first.out is not None and first.out.shape == (_steps.CONFIG["vocab_size"],)
    if last_row:
        known = (*KNOWN, LAST_POSITION)
        m.right = m.steps = {**_steps.RIGHT, "rows": "out = logits[-1]"}
    if call.batched:
        m.limits.append("It takes only ids (1, T), not (T,).")
    m.first_call(texts()[0])
    if m.wrong:
        return m
    m.test(Group("logits", texts(), known, _unknown_name))
    m.run([ANOTHER_WORD])
    for group in (WRITTEN, ANOTHER_MODEL):
        m.test(replace(group, if_right=True))
    if not m.wrong:
        m.find(_findings.changed_inputs([replace(m.runs[0], changed=call.changed)]))
    if last_row and LAST_POSITION.key not in {finding.key for finding in m.findings}:
        m.find(of_mistake(LAST_ROW, m.call(texts()[1])))
    return m


DECODER = make_task("decoder", _mark)
