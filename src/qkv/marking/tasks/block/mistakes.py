"""The ways to get a block wrong: each replaces a step of the right computation."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.tasks import wiring
from qkv.marking.tasks.attention.steps import same
from qkv.marking.tasks.block.steps import (
    EPS,
    gelu,
    gelu_tanh,
    layer_norm,
    mean_square,
    mlp_of,
    rms_norm,
    sigmoid,
)
from qkv.marking.tasks.mistakes.slips import of_output
from qkv.marking.tasks.texts import Texts

_TEXTS = Texts(__name__)


def _variance(x: Array) -> Any:
    return x.var(axis=-1, keepdims=True)


def _centred(x: Array) -> Any:
    return x - x.mean(axis=-1, keepdims=True)


WIRING = _TEXTS.mistakes(
    {
        "block-no-residual": wiring.NO_RESIDUAL,
        "block-normed-stream": wiring.NORMED_STREAM,
        "block-from-start": [
            lambda x, parts, norms: x + parts[1](norms[1](x + parts[0](norms[0](x))))
        ],
        "block-mlp-first": [lambda x, parts, norms: wiring.pre_norm(x, parts[::-1], norms[::-1])],
        "block-no-norm": wiring.NO_NORM,
        "block-norm-kept": wiring.NORM_KEPT,
        "block-norms-exchanged": wiring.NORMS_EXCHANGED,
        "block-post-norm": [wiring.POST_NORM],
        "block-norm-of-part": [wiring.NORM_OF_RESULT],
        "block-parallel": [
            lambda x, parts, norms: x + parts[0](norms[0](x)) + parts[1](norms[1](x))
        ],
    },
    step="wire",
)

NORMS = _TEXTS.mistakes(
    {
        "norm-tokens": [lambda x: layer_norm(x, -2), lambda x: rms_norm(x, -2)],
        "norm-whole": [lambda x: layer_norm(x, (-1, -2)), lambda x: rms_norm(x, (-1, -2))],
        "norm-no-root": [
            lambda x: _centred(x) / (_variance(x) + EPS),
            lambda x: x / (mean_square(x) + EPS),
        ],
        "norm-ddof": [lambda x: layer_norm(x, ddof=1)],
        "norm-no-mean": [lambda x: x / np.sqrt(_variance(x) + EPS)],
        "norm-no-division": [_centred],
        "norm-affine": [
            {"affine": lambda x, scale, shift: x},
            {"affine": lambda x, scale, shift: x + shift},
            {"affine": lambda x, scale, shift: x * scale},
            {"affine": lambda x, scale, shift: (x + shift) * scale},
        ],
        "norm-shared": wiring.ONE_NORM_TWICE,
    },
    step="normalize",
)
EMPTY = _TEXTS.mistakes(
    {"norm-no-eps": [lambda x: layer_norm(x, eps=0.0), lambda x: rms_norm(x, eps=0.0)]},
    step="normalize",
)
MLPS = _TEXTS.mistakes(
    {
        "mlp-no-activation": [{"activation": same}],
        "mlp-activation-late": [
            lambda x, p, act: act((x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"])
        ],
        "mlp-activation-twice": [lambda x, p, act: act(mlp_of(x, p, act))],
        "mlp-no-bias": [
            lambda x, p, act: act(x @ p["w_in"]) @ p["w_out"],
            lambda x, p, act: act(x @ p["w_in"] + p["b_in"]) @ p["w_out"],
            lambda x, p, act: act(x @ p["w_in"]) @ p["w_out"] + p["b_out"],
        ],
        "mlp-other-activation": [
            {"activation": lambda x: np.maximum(x, 0)},
            {"activation": lambda x: x * sigmoid(x)},
            {"activation": lambda x: x * sigmoid(1.702 * x)},
        ],
        "block-no-output-projection": [{"output": lambda out, w_o: out}],
    },
    step="mlp",
)


def _whole_mean(x: Array) -> Any:
    """Return a mean whose sum is divided with //."""
    return x.sum(axis=-1, keepdims=True) // x.shape[-1]


def _mean_divided(x: Array) -> Any:
    """Subtract the mean of `x`, dividing the mean alone by the deviation."""
    return x - (x - _centred(x)) / np.sqrt(_variance(x) + EPS)


def _by_whole_means(x: Array) -> Any:
    centred = x - _whole_mean(x)
    return centred / np.sqrt(_whole_mean(centred**2) + EPS)


SLIPS = (
    *_TEXTS.mistakes(
        {
            "norm-floor-division": [
                lambda x: _centred(x) // np.sqrt(_variance(x) + EPS),
                lambda x: x // np.sqrt(mean_square(x) + EPS),
                _by_whole_means,
                lambda x: _centred(x) / np.sqrt(_whole_mean(_centred(x) ** 2) + EPS),
                lambda x: x / np.sqrt(_whole_mean(x * x) + EPS),
            ],
            "norm-integer-table": [
                {"affine": lambda x, scale, shift: np.trunc(x * scale + shift)},
                {"affine": lambda x, scale, shift: np.trunc(x * scale)},
                lambda x: np.trunc(layer_norm(x)),
                lambda x: np.trunc(rms_norm(x)),
            ],
            "norm-power": [
                lambda x: _centred(x) / ((_variance(x) + EPS) / 2),
                lambda x: _centred(x) / (_variance(x) + EPS) / 2,
                lambda x: x / ((mean_square(x) + EPS) / 2),
                lambda x: x / (mean_square(x) + EPS) / 2,
            ],
            "norm-brackets": [
                _mean_divided,
                {
                    "normalize": same,
                    "affine": lambda x, scale, shift: x - (x - _mean_divided(x)) * scale + shift,
                },
            ],
        },
        step="normalize",
    ),
    *_TEXTS.mistakes(
        {
            "mlp-floor-division": [
                {"activation": lambda x: gelu(x) / x * 2 * (x // 2)},
                {"activation": lambda x: gelu_tanh(x) / x * 2 * (x // 2)},
                {"activation": lambda x: x * ((gelu(x) / x * 2) // 2)},
                {"activation": lambda x: x * ((gelu_tanh(x) / x * 2) // 2)},
                {"activation": lambda x: gelu(x) * 2 // 2},
                {"activation": lambda x: gelu_tanh(x) * 2 // 2},
            ],
            "mlp-integer-table": [
                {"activation": lambda x: np.trunc(gelu(x))},
                {"activation": lambda x: np.trunc(gelu_tanh(x))},
            ],
            "product-elementwise": [
                lambda x, p, act: act(x * p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"],
                lambda x, p, act: act(x @ p["w_in"] + p["b_in"]) * p["w_out"] + p["b_out"],
            ],
            "product-order": [
                lambda x, p, act: act(p["w_in"] @ x + p["b_in"]) @ p["w_out"] + p["b_out"],
                lambda x, p, act: p["w_out"] @ act(x @ p["w_in"] + p["b_in"]) + p["b_out"],
            ],
        },
        step="mlp",
    ),
    *of_output("x = x + out @ w_o"),
)
