"""Mistakes in a decoder. Each mistake replaces a step of the right computation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks import wiring
from qkv.marking.tasks.attention.steps import flip, same, softmax
from qkv.marking.tasks.block import mean_square, rms_norm, sigmoid
from qkv.marking.tasks.decoder.steps import joined_halves, joined_neighbours, neighbours
from qkv.marking.tasks.mistakes.heads import HEADS as SPLITTING
from qkv.marking.tasks.task import Texts, without

_TEXTS = Texts(__name__)

# mistakes before, between and after the layers
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
    """Return the angle by which each pair rotates per position."""
    return base ** (-np.arange(0, d, 2) / d)


# for a model that has lm_head.weight
UNTIED = _TEXTS.mistakes(
    {
        "decoder-head-tied": [lambda embeddings, head: (embeddings, embeddings)],
        "decoder-head-embeds": [lambda embeddings, head: (head, head)],
        "decoder-tables-exchanged": [lambda embeddings, head: (head, embeddings)],
        "decoder-written-down": [
            {"normalize": lambda x, eps: rms_norm(x, eps=1e-6)},
            {"speeds": lambda base, d, width: _speeds(500.0, d)},
            {"layers": lambda n: range(2)},
            {"counts": lambda heads, groups: (4, 2)},
        ],
    },
    step="tables",
)
# for a decoder that returns only the logits after the last word
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
    """Return the steps of a decoder with hard-coded numbers of heads."""
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
            "gate-up-swapped": [lambda gate, up: gate * up * sigmoid(up)],
            "gate-missing": [
                lambda gate, up: gate * up,
                lambda gate, up: gate * sigmoid(gate),
                lambda gate, up: up * sigmoid(up),
                lambda gate, up: gate * sigmoid(gate) + up,
                lambda gate, up: gate * up * sigmoid(gate * up),
            ],
            "gate-other-activation": [
                lambda gate, up: np.maximum(gate, 0) * up,
                lambda gate, up: sigmoid(gate) * up,
            ],
        },
        step="gate",
    ),
    *_TEXTS.mistakes(
        {
            "decoder-layer-norm": [
                lambda x, eps: rms_norm(x - x.mean(axis=-1, keepdims=True), eps=eps)
            ],
            "decoder-norm-weight": [
                {"norm_weight": same},
                {"norm_weight": lambda x, weight: x * (1 + weight)},
            ],
            "decoder-norm-root": [
                lambda x, eps: x / (mean_square(x) + eps),
                lambda x, eps: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps),
            ],
            "decoder-eps": [lambda x, eps: rms_norm(x, eps=1e-5)],
        },
        step="normalize",
    ),
    *_TEXTS.mistakes(
        {
            "decoder-no-residual": wiring.NO_RESIDUAL,
            "decoder-norm-place": [wiring.POST_NORM, *wiring.NORMED_STREAM],
            "decoder-no-norm": wiring.NO_NORM,
            "decoder-norm-kept": wiring.NORM_KEPT,
            "decoder-norm-shared": wiring.ONE_NORM_TWICE,
            "decoder-norms-exchanged": wiring.NORMS_EXCHANGED,
        },
    ),
)


def _one_ahead(a: Array, rotate: Callable[[Array], Array]) -> Array:
    """Rotate (..., T, d) as if the first row had position 1."""
    return rotate(np.concatenate([np.zeros_like(a[..., :1, :]), a], axis=-2))[..., 1:, :]


ROTARY = (
    *_TEXTS.mistakes(
        {
            "rotary-neighbours": [
                {"pairs": neighbours, "unpair": joined_neighbours},
                {"pairs": neighbours},
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


def _untransposed(names: Sequence[str]) -> Steps:
    """Return steps that do not transpose the weights with these names."""
    return {"linear": lambda x, weight, name: x @ (weight if name in names else weight.T)}


TRANSPOSED = _TEXTS.mistakes(
    {"decoder-transposed": [*map(_untransposed, _SOME), {"head": lambda x, table: x @ table}]},
)


def _turned(a: Array, b: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    return a * cos - b * sin, a * sin + b * cos


def _pair_forgotten(at: int) -> list[Callable[..., Any]]:
    """Set a pair to 0, or leave the pair unrotated."""
    return [
        lambda *pairs: tuple(without(a, at, -1) for a in _turned(*pairs)),
        lambda a, b, cos, sin: _turned(a, b, without(cos, at, -1, 1), without(sin, at, -1)),
    ]


def _pairs(d: int) -> Array:
    return np.arange(d // 2)


def _chosen(names: str) -> Steps:
    """Take q, k and v from the projections with these names."""
    return {"choose": lambda *qkv: [qkv["qkv".index(name)] for name in names]}


def _in_one_row(a: Array) -> Array:
    """Join the heads of one word with a transpose and a reshape to (1, -1)."""
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
            "integer-table": [{"unpair": lambda a, b: np.trunc(joined_halves(a, b))}],
            "last-pair-forgotten": [{"turn": turn} for turn in _pair_forgotten(-1)],
            "first-pair-forgotten": [{"turn": turn} for turn in _pair_forgotten(0)],
        },
        step="speeds",
    ),
    *_TEXTS.mistakes(
        {
            "query-key-swapped": [{"score": lambda q, k: k @ flip(q)}],
            "projections-qvk": [_chosen("qvk")],
            "projections-kqv": [_chosen("kqv")],
            "projections-vqk": [_chosen("vqk")],
        },
    ),
    *_TEXTS.mistakes(
        {
            "norm-floor-division": [
                lambda x, eps: x // np.sqrt(mean_square(x) + eps),
                lambda x, eps: x / np.sqrt(np.floor(mean_square(x)) + eps),
            ],
            "norm-power": [
                lambda x, eps: x / ((mean_square(x) + eps) / 2),
                lambda x, eps: x / (mean_square(x) + eps) / 2,
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
    # two mistakes, combined with a wrong join that works only in texts of one word
    *(
        replace(one, variants=tuple({**steps, "join": _in_one_row} for steps in one.variants))
        for one in SPLITTING
        if one.key in ("heads-reshape", "heads-swap-forgotten")
    ),
)
