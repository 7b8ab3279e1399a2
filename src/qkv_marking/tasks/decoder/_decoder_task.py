"""The task `decoder`: known mistakes in a decoder, and tests of its logits and generated words.

Each mistake replaces a step of the right computation in `steps.py`.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking import _findings
from qkv_marking._engine import Group, Marking, by_seed, generator, per_seed
from qkv_marking._errors import words_of
from qkv_marking._findings import Symptom, describe, of_mistake
from qkv_marking._mistake import Function, Steps
from qkv_marking._outcome import Outcome, numbers, options_of
from qkv_marking.tasks import _block
from qkv_marking.tasks._task import Computation, Phrases, StepwiseMarking, make_task, without
from qkv_marking.tasks.attention.steps import flip, same, softmax
from qkv_marking.tasks.decoder import _steps
from qkv_marking.tasks.mistakes import formula
from qkv_marking.tasks.mistakes.heads import HEADS as SPLITTING

_TEXTS = Phrases(__name__)

# mistakes in the steps before, between and after the layers
ENDS = _TEXTS.mistakes(
    {
        "decoder-final-norm": [{"final_norm": lambda x, norm: x}],
        "decoder-probabilities": [
            {"head": lambda x, table: softmax(x @ table.T)},
            {"head": lambda x, table: np.log(softmax(x @ table.T))},
        ],
        "decoder-embedding-scaled": [
            {"embed": lambda table, ids: table[ids] * table.shape[1] ** 0.5}
        ],
        "decoder-layers": [
            lambda n: range(1),
            lambda n: [0] * n,
            lambda n: [n - 1] * n,
            lambda n: reversed(range(n)),
            lambda n: range(1, n),
        ],
    },
    step="layers",
)


def _speeds(base: float, d: int) -> Array:
    """Return the rotation angle per position for each pair of numbers."""
    return base ** (-np.arange(0, d, 2) / d)


# mistakes that are visible only in a model with a separate LM head, `lm_head.weight`
UNTIED = _TEXTS.mistakes(
    {
        "decoder-head-tied": [lambda embeddings, head: (embeddings, embeddings)],
        "decoder-head-embeds": [lambda embeddings, head: (head, head)],
        "decoder-tables-exchanged": [lambda embeddings, head: (head, embeddings)],
        "decoder-written-down": [
            {"normalize": lambda x, eps: _block.rms_norm(x, eps=1e-6)},
            {"speeds": lambda base, d, width: _speeds(500.0, d)},
            {"layers": lambda n: range(2)},
            {"counts": lambda heads, groups: (4, 2)},
        ],
    },
    step="tables",
)
# mistakes of decoders that return only the logits after the last word
LAST_ROW, LAST_POSITION = _TEXTS.mistakes(
    {
        "decoder-last-row": [],
        "decoder-last-place": [
            lambda logits: logits[0],
            lambda logits: logits[max(-2, -len(logits))],
        ],
    },
    step="rows",
)


def _counts(heads: int, groups: int) -> Steps:
    """Return steps that use these numbers of heads instead of those in the config."""
    return {"counts": lambda *config: (heads, groups)}


HEADS = (
    *_TEXTS.mistakes(
        {
            "groups-missing": [lambda a, times: a],
            "groups-axis": [
                lambda a, times: np.repeat(a, times, axis=1),
                lambda a, times: np.repeat(a, times, axis=2),
            ],
            "groups-split": [{"counts": lambda heads, groups: (heads, heads)}],
            "heads-written-down": [
                *(_counts(6, 2), _counts(6, 6), _counts(8, 2), _counts(2, 2), _counts(3, 1)),
                *(lambda a, times, n=n: np.repeat(a, n, axis=0) for n in (3, 4, 6, 8)),
            ],
            "groups-tiled": [lambda a, times: np.concatenate([a] * times)],
        },
        step="repeat",
    ),
    *_TEXTS.mistakes(
        {
            "decoder-no-mask": [lambda i, j, first: (i >= 0) & (j >= 0)],
            "decoder-mask-ahead": [lambda i, j, first: j <= i + 1],
            "decoder-mask-diagonal": [lambda i, j, first: j < i],
        },
        step="sees",
    ),
)

LAYER = (
    *_TEXTS.mistakes(
        {
            "gate-up-swapped": [lambda gate, up: gate * up * _block.sigmoid(up)],
            "gate-missing": [
                lambda gate, up: gate * up,
                lambda gate, up: gate * _block.sigmoid(gate),
                lambda gate, up: up * _block.sigmoid(up),
                lambda gate, up: gate * _block.sigmoid(gate) + up,
                lambda gate, up: gate * up * _block.sigmoid(gate * up),
            ],
            "gate-other-activation": [
                lambda gate, up: np.maximum(gate, 0) * up,
                lambda gate, up: _block.sigmoid(gate) * up,
            ],
        },
        step="gate",
    ),
    *_TEXTS.mistakes(
        {
            "decoder-layer-norm": [
                lambda x, eps: _block.rms_norm(x - x.mean(axis=-1, keepdims=True), eps=eps)
            ],
            "decoder-norm-weight": [
                {"norm_weight": same},
                {"norm_weight": lambda x, weight: x * (1 + weight)},
            ],
            "decoder-norm-root": [
                lambda x, eps: x / (_block.mean_square(x) + eps),
                lambda x, eps: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps),
            ],
            "decoder-eps": [lambda x, eps: _block.rms_norm(x, eps=1e-5)],
        },
        step="normalize",
    ),
    *_TEXTS.mistakes(
        {
            "decoder-no-residual": _block.NO_RESIDUAL,
            "decoder-norm-place": [_block.POST_NORM, *_block.NORMED_STREAM],
            "decoder-no-norm": _block.NO_NORM,
            "decoder-norm-kept": _block.NORM_KEPT,
            "decoder-norm-shared": _block.ONE_NORM_TWICE,
            "decoder-norms-exchanged": _block.NORMS_EXCHANGED,
        },
    ),
)


def _one_ahead(a: Array, rotate: Callable[[Array], Array]) -> Array:
    """Rotate each row of (..., T, d) as if its position were larger by 1."""
    return rotate(np.concatenate([np.zeros_like(a[..., :1, :]), a], axis=-2))[..., 1:, :]


ROTARY = (
    *_TEXTS.mistakes(
        {
            "rotary-neighbours": [
                {"pairs": _steps.neighbours, "unpair": _steps.joined_neighbours},
                {"pairs": _steps.neighbours},
            ],
            "rotary-sign": [
                lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos),
                lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin),
                lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin),
            ],
        },
        step="turn",
    ),
    *_TEXTS.mistakes(
        {
            "rotary-missing": [lambda q, k, v, rotate: (q, k, v)],
            "rotary-one": [
                lambda q, k, v, rotate: (rotate(q), k, v),
                lambda q, k, v, rotate: (q, rotate(k), v),
            ],
            "rotary-apart": [
                lambda q, k, v, rotate: (_one_ahead(q, rotate), rotate(k), v),
                lambda q, k, v, rotate: (rotate(q), _one_ahead(k, rotate), v),
            ],
            "rotary-values": [lambda q, k, v, rotate: (rotate(q), rotate(k), rotate(v))],
            "rotary-before-split": [{"in_order": lambda split, rotate, *qkv: split(*rotate(*qkv))}],
        },
        step="rotates",
    ),
    *_TEXTS.mistakes(
        {
            "rotary-speed": [
                lambda base, d, width: base ** (-np.arange(d // 2) / d),
                lambda base, d, width: base ** (-2 * np.arange(0, d, 2) / d),
                lambda base, d, width: base ** (-np.arange(0, d, 2) / width),
                lambda base, d, width: base ** (np.arange(0, d, 2) / d),
                lambda base, d, width: np.ones(d // 2),
            ],
            "rotary-base": [lambda base, d, width: _speeds(10000.0, d)],
        },
        step="speeds",
    ),
)

_SOME = (
    *(("q_proj",), ("k_proj",), ("v_proj",), ("o_proj",)),
    *(("gate_proj",), ("up_proj",), ("down_proj",)),
    ("q_proj", "k_proj", "v_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("gate_proj", "up_proj"),
    ("gate_proj", "up_proj", "down_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)


TRANSPOSED = _TEXTS.mistakes(
    {
        "decoder-transposed": [
            *(
                {"linear": lambda x, w, name, some=some: x @ (w if name in some else w.T)}
                for some in _SOME
            ),
            {"head": lambda x, table: x @ table},
        ]
    },
)


def _rotate(a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    return a * cos - b * sin, a * sin + b * cos


def _pair_forgotten(at: int) -> list[Function]:
    """Return two wrong rotations: one zeroes the pair with index `at`, one does not rotate it."""
    return [
        lambda *pairs: tuple(without(a, at, -1) for a in _rotate(*pairs)),
        lambda a, b, cos, sin: _rotate(a, b, without(cos, at, -1, 1), without(sin, at, -1)),
    ]


def _pairs(d: int) -> Array:
    return np.arange(d // 2)


def _choose(names: str) -> Steps:
    """Return steps that use other projections as q, k and v; "kqv" swaps q and k."""
    return {"choose": lambda *qkv: [qkv["qkv".index(name)] for name in names]}


def _in_one_row(a: Array) -> Array:
    """Join heads by a transpose and a reshape to (1, -1), which is right only for one word."""
    return np.swapaxes(a, -3, -2).reshape(1, -1)


SLIPS = (
    *_TEXTS.mistakes(
        {
            "floor-division-of-angles": [
                {"angle": lambda position, speeds: np.floor(position * speeds)}
            ],
            "floor-division-of-exponents": [
                lambda base, d, width: base ** (-np.arange(0, d, 2) // d)
            ],
            "rotary-degrees": [
                {"angle": lambda position, speeds: np.deg2rad(position * speeds)},
                {"angle": lambda position, speeds: np.rad2deg(position * speeds)},
            ],
            "rotary-power": [
                lambda base, d, width: base ** -(2.0 * _pairs(d)) * d,
                lambda base, d, width: base ** -(2.0 * _pairs(d)) / d,
                lambda base, d, width: base ** -(1.0 * _pairs(d)) * d,
                lambda base, d, width: base ** -(1.0 * _pairs(d)) / d,
                lambda base, d, width: base**-2 * _pairs(d) / d,
                lambda base, d, width: base**-2 * 2 * _pairs(d) / d,
            ],
            "integer-table": [{"unpair": lambda a, b: np.trunc(_steps.joined_halves(a, b))}],
            "last-pair-forgotten": [{"turn": turn} for turn in _pair_forgotten(-1)],
            "first-pair-forgotten": [{"turn": turn} for turn in _pair_forgotten(0)],
        },
        step="speeds",
    ),
    *_TEXTS.mistakes(
        {
            "query-key-swapped": [{"score": lambda q, k: k @ flip(q)}],
            "projections-qvk": [_choose("qvk")],
            "projections-kqv": [_choose("kqv")],
            "projections-vqk": [_choose("vqk")],
        },
    ),
    *_TEXTS.mistakes(
        {
            "norm-floor-division": [
                lambda x, eps: x // np.sqrt(_block.mean_square(x) + eps),
                lambda x, eps: x / np.sqrt(np.floor(_block.mean_square(x)) + eps),
            ],
            "norm-power": [
                lambda x, eps: x / ((_block.mean_square(x) + eps) / 2),
                lambda x, eps: x / (_block.mean_square(x) + eps) / 2,
            ],
        },
        step="normalize",
    ),
    *_TEXTS.mistakes(
        {
            "mlp-floor-division": [lambda gate, up: gate // (1 + np.exp(-gate)) * up],
            "gate-brackets": [
                lambda gate, up: (gate + np.exp(-gate)) * up,
                lambda gate, up: gate * (1 + np.exp(-gate)) * up,
            ],
        },
        step="gate",
    ),
    # two mistakes at once: the heads are split wrongly, and `_in_one_row` joins them wrongly
    *(
        replace(one, variants=tuple({**variant, "join": _in_one_row} for variant in one.variants))
        for one in SPLITTING
        if one.key in ("heads-reshape", "heads-swap-forgotten")
    ),
)


# omit two mistakes, whose steps do not fit grouped-query attention
_SPLITTING = tuple(one for one in SPLITTING if one.key not in ("heads-size", "heads-ignored"))
KNOWN = (
    *ROTARY,
    *HEADS,
    *LAYER,
    *ENDS,
    *TRANSPOSED,
    *formula.SOFTMAX,
    *formula.SCORES,
    *formula.SCALING,
    *_SPLITTING,
    *SLIPS,
    *formula.SLIPS,
    *formula.OF_CAUSAL,
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
    finding = _TEXTS.finding(name, wrong, asked=repr(key), error=describe(wrong), layers=layers)
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
        m.right = m.steps = {**_steps.RIGHT, "rows": lambda logits: logits[-1]}
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
