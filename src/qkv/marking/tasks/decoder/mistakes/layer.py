"""The ways to get a layer wrong: its MLP, its norms, and how they are wired."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.attention.steps import same
from qkv.marking.tasks.decoder.steps import rms_norm, silu
from qkv.marking.tasks.wiring import (
    NO_NORM,
    NO_RESIDUAL,
    NORM_KEPT,
    NORMED_STREAM,
    NORMS_EXCHANGED,
    ONE_NORM_TWICE,
    post_norm,
    wire,
)

_MLP = "(silu(x @ gate.T) * (x @ up.T)) @ down.T"
_NORM = "x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight"
_WIRES = "x = x + attend(norm(x, input_layernorm)); x = x + mlp(norm(x, post_attention_layernorm))"
LONELY = "What should a text of one word give, where attention has nothing to choose from?"

LAYER = (
    *mended(
        _MLP,
        mistake(
            "gate-up-swapped",
            "gate and up have changed places: SiLU is taken of the gate",
            "right shapes, wrong numbers",
            {"gate": lambda gate, up: gate * silu(up)},
        ),
        mistake(
            "gate-missing",
            "the MLP is not silu(gate) * up: the activation or one of the two is missing",
            "a matrix of the file makes no difference, or the MLP does not choose",
            {"gate": lambda gate, up: gate * up},
            {"gate": lambda gate, up: silu(gate)},
            {"gate": lambda gate, up: silu(up)},
            {"gate": lambda gate, up: silu(gate) + up},
            {"gate": lambda gate, up: silu(gate * up)},
        ),
        mistake(
            "gate-other-activation",
            "the gate's activation is another than SiLU, x / (1 + exp(-x))",
            'config["hidden_act"] says what the weights were trained with',
            {"gate": lambda gate, up: np.maximum(gate, 0) * up},
            {"gate": lambda gate, up: up / (1 + np.exp(-gate))},
        ),
        nudge=LONELY,
        where="the line of the MLP",
    ),
    *mended(
        _NORM,
        mistake(
            "decoder-layer-norm",
            "the norm takes the mean away, as LayerNorm does; these weights want RMSNorm",
            "a word's numbers sum to 0 where they should not",
            {"normalize": lambda x, eps: rms_norm(x - x.mean(axis=-1, keepdims=True), eps)},
        ),
        mistake(
            "decoder-norm-weight",
            "the weights of the norms are not used, or 1 is added to them",
            "the numbers that were learned for the norms do not do what they did in training",
            {"norm_weight": same},
            {"norm_weight": lambda x, weight: x * (1 + weight)},
        ),
        mistake(
            "decoder-norm-root",
            "the norm divides by another number than the root of the mean square",
            "the root is missing, or a sum stands for the mean",
            {"normalize": lambda x, eps: x / ((x * x).mean(axis=-1, keepdims=True) + eps)},
            {"normalize": lambda x, eps: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)},
        ),
        nudge="What is the mean square of a row after the norm, before its weight?",
        where="the function of the norm",
    ),
    *mended(
        f'eps = config["rms_norm_eps"]; {_NORM}',
        mistake(
            "decoder-eps",
            "the norm adds 1e-5 to the mean square, whatever config says: this model has 1e-6",
            "right for models that were trained with 1e-5",
            {"normalize": lambda x, eps: rms_norm(x, 1e-5)},
            nudge="Which numbers of config does your function read, and which does it leave out?",
        ),
        where="the function of the norm",
        kind="fragile",
    ),
    *mended(
        _WIRES,
        mistake(
            "decoder-no-residual",
            "nothing is added to what was there, around attention or around the MLP",
            "what the word was before is lost",
            *NO_RESIDUAL,
        ),
        mistake(
            "decoder-norm-place",
            "the norms stand elsewhere than before attention and before the MLP",
            "these weights were trained with input_layernorm before attention and"
            " post_attention_layernorm before the MLP",
            wire(post_norm),
            *NORMED_STREAM,
        ),
        mistake(
            "decoder-no-norm",
            "a norm is missing: attention or the MLP gets x as it is",
            "input_layernorm or post_attention_layernorm makes no difference",
            *NO_NORM,
        ),
        mistake(
            "decoder-norm-kept",
            "the norm that attention read goes into the MLP too: post_attention_layernorm is"
            " missing",
            "the MLP does not see what attention has added",
            *NORM_KEPT,
        ),
        mistake(
            "decoder-norm-shared",
            "one norm is used twice: input_layernorm in place of post_attention_layernorm, or the"
            " other way round",
            "the weights of the other make no difference",
            *ONE_NORM_TWICE,
        ),
        mistake(
            "decoder-norms-exchanged",
            "the norms have changed places: post_attention_layernorm is used before attention, and"
            " input_layernorm before the MLP",
            "each part reads numbers that were scaled for the other",
            *NORMS_EXCHANGED,
        ),
        nudge=LONELY,
        where="the lines that call attention and the MLP",
    ),
)


def _mean_square(x: Array) -> Array:
    out: Array = (x * x).mean(axis=-1, keepdims=True)
    return out


SLIPS = (
    *mended(
        _NORM,
        mistake(
            "floor-division",
            "a division in the norm is made with //, which rounds down to whole numbers",
            "the numbers of a word are whole after the norm, or their mean square is",
            {"normalize": lambda x, eps: x // np.sqrt(_mean_square(x) + eps)},
            {"normalize": lambda x, eps: x / np.sqrt(np.floor(_mean_square(x)) + eps)},
        ),
        mistake(
            "norm-power",
            "the norm divides by half the mean square, or by twice as much: ** 1/2 is (** 1) / 2",
            "large word vectors come out small, and small ones large",
            {"normalize": lambda x, eps: x / ((_mean_square(x) + eps) / 2)},
            {"normalize": lambda x, eps: x / (_mean_square(x) + eps) / 2},
            where="the power, or the root: what is computed first?",
        ),
        nudge="What is the mean square of a row after the norm, before its weight?",
        where="the function of the norm",
        alone=True,
    ),
    *mended(
        _MLP,
        mistake(
            "floor-division",
            "the gate is divided with //, which rounds down to whole numbers",
            "the gate of a small number is 0 or -1",
            {"gate": lambda gate, up: gate // (1 + np.exp(-gate)) * up},
        ),
        mistake(
            "gate-brackets",
            "the brackets around 1 + exp(-x) are missing: / comes before +",
            "the gate is x + exp(-x), or 1 / 1 + exp(-x)",
            {"gate": lambda gate, up: (gate + np.exp(-gate)) * up},
            {"gate": lambda gate, up: gate * (1 + np.exp(-gate)) * up},
        ),
        nudge="Put 0 and 1 through your activation alone.",
        where="the activation of the gate",
        alone=True,
    ),
)
