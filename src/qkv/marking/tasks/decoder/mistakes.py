"""The ways to get a decoder wrong: each replaces a step of the right computation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.attention.steps import same
from qkv.marking.tasks.attention.steps import softmax as _softmax
from qkv.marking.tasks.decoder.steps import (
    joined_neighbours,
    neighbours,
    pre_norm,
    rms_norm,
    silu,
)

Part = Callable[[Array], Array]


def _post_norm(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = norm1(x + attend(x))
    return norm2(x + mlp(x))


def _normed_stream(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = norm1(x)
    x = norm2(x + attend(x))
    return x + mlp(x)


_ROTATE = (
    "a, b = x[..., : d // 2], x[..., d // 2 :];"
    " x = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)"
)
_ANGLE = "angle = np.arange(T)[:, None] * theta ** (-np.arange(0, d, 2) / d)"
_REPEAT = "k, v = (np.repeat(a, heads // groups, axis=0) for a in (k, v))"
_MASK = "scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)"
_MLP = "(silu(x @ gate.T) * (x @ up.T)) @ down.T"
_NORM = "x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight"
_WIRES = "x = x + attend(norm(x, input_layernorm)); x = x + mlp(norm(x, post_attention_layernorm))"
_HEAD = 'logits = norm(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T'

_LONELY = "What should a text of one word give, where attention has nothing to choose from?"
_ORDER = "Change the order of the first words: does the last row of logits change, as it should?"

ROTARY = (
    *mended(
        _ROTATE,
        mistake(
            "rotary-neighbours",
            "rotary positions turn number 2i with 2i + 1, as in the paper; the weights of these"
            " files want halves: number i with i + d / 2",
            "each pair is a true rotation, of numbers that do not belong together",
            {"pairs": neighbours, "unpair": joined_neighbours},
            {"pairs": neighbours},
        ),
        mistake(
            "rotary-sign",
            "a sign of the rotation is wrong: (a, b) becomes (a cos - b sin, a sin + b cos)",
            "it turns backwards, or is no rotation and changes the length of a vector",
            {"turn": lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)},
            {"turn": lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin)},
            {"turn": lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin)},
        ),
        nudge="Rotate [1, 0, 0, 0] at place 1: which two numbers should not be 0?",
        where="the function that rotates",
    ),
    *mended(
        "q, k = rotate(q), rotate(k)  # v stays as it is",
        mistake(
            "rotary-missing",
            "queries and keys are not rotated: rotary positions are missing",
            "attention knows no distances between words",
            {"rotates": lambda q, k, v, turn: (q, k, v)},
            nudge=_ORDER,
        ),
        mistake(
            "rotary-one",
            "of queries and keys one is rotated and the other is not",
            "scores depend on a word's place, not on the distance between two",
            {"rotates": lambda q, k, v, turn: (turn(q), k, v)},
            {"rotates": lambda q, k, v, turn: (q, turn(k), v)},
        ),
        mistake(
            "rotary-values",
            "the values are rotated too",
            "what a word gives depends on its place",
            {"rotates": lambda q, k, v, turn: (turn(q), turn(k), turn(v))},
        ),
        where="the line that rotates queries and keys",
    ),
    mistake(
        "rotary-speed",
        "the pairs turn at other speeds: from place to place pair i turns by theta ** (-2i / d)",
        "the exponent is off: its 2, its sign, or d, which is the size of one head",
        {"speeds": lambda base, d, width: base ** (-np.arange(d // 2) / d)},
        {"speeds": lambda base, d, width: base ** (-2 * np.arange(0, d, 2) / d)},
        {"speeds": lambda base, d, width: base ** (-np.arange(0, d, 2) / width)},
        {"speeds": lambda base, d, width: base ** (np.arange(0, d, 2) / d)},
        {"speeds": lambda base, d, width: np.ones(d // 2)},
        remedy=_ANGLE,
        nudge="Print the angles of place 1: the first is 1, and the others are ever smaller.",
        where="the line that makes the angles",
    ),
    *mended(
        f'theta = config["rope_theta"]; {_ANGLE}',
        mistake(
            "rotary-base",
            "the pairs turn by powers of 10000, whatever config says: this model's base is 500",
            "right for models that were trained with 10000",
            {"speeds": lambda base, d, width: 10000.0 ** (-np.arange(0, d, 2) / d)},
        ),
        where="the line that makes the angles",
        kind="fragile",
    ),
)

HEADS = (
    mistake(
        "groups-tiled",
        "the key and value heads are repeated as 0 1 0 1; query heads 0 and 1 share key head 0, so"
        " it is 0 0 1 1",
        "query heads read keys that were made for others",
        {"repeat": lambda a, times: np.concatenate([a] * times)},
        remedy=_REPEAT,
        nudge="Which key head does query head 1 read, of 4 query heads and 2 key heads?",
        where="the line that repeats keys and values: np.tile is not np.repeat",
    ),
    *mended(
        _MASK,
        mistake(
            "decoder-no-mask",
            "words see what comes after them: the causal mask is missing",
            "right for one word; the logits of a place change when a word is added behind it",
            {"sees": lambda i, j: (i >= 0) & (j >= 0)},
        ),
        mistake(
            "decoder-mask-ahead",
            "the causal mask is off by one: a word may not see the one after it",
            "the model sees the word that it is to guess",
            {"sees": lambda i, j: j <= i + 1},
        ),
        mistake(
            "decoder-mask-diagonal",
            "the causal mask is off by one: a word may see itself too",
            "the first word sees nothing at all",
            {"sees": lambda i, j: j < i},
        ),
        nudge="Add a word at the end: which rows of the logits may change?",
        where="the mask",
    ),
)

PARTS = (
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
        nudge=_LONELY,
        where="the line of the MLP",
    ),
    *mended(
        _NORM,
        mistake(
            "decoder-layer-norm",
            "the norm takes the mean away, as LayerNorm does; these weights want RMSNorm",
            "a word's numbers sum to 0 where they should not",
            {"normalize": lambda x: rms_norm(x - x.mean(axis=-1, keepdims=True))},
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
            {"normalize": lambda x: x / ((x * x).mean(axis=-1, keepdims=True) + 1e-6)},
            {"normalize": lambda x: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)},
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
            {"normalize": lambda x: rms_norm(x, 1e-5)},
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
            {"wire": lambda x, attend, mlp, norm1, norm2: mlp(norm2(attend(norm1(x))))},
            {"wire": lambda x, attend, mlp, norm1, norm2: (h := attend(norm1(x))) + mlp(norm2(h))},
            {"wire": lambda x, attend, mlp, norm1, norm2: mlp(norm2(x + attend(norm1(x))))},
        ),
        mistake(
            "decoder-norm-place",
            "the norms stand elsewhere than before attention and before the MLP, or in each other's"
            " place",
            "these weights were trained with input_layernorm before attention and"
            " post_attention_layernorm before the MLP",
            {"wire": _post_norm},
            {"wire": _normed_stream},
            {"wire": lambda x, attend, mlp, norm1, norm2: pre_norm(x, attend, mlp, norm2, norm1)},
            {"wire": lambda x, attend, mlp, norm1, norm2: pre_norm(x, attend, mlp, norm1, same)},
            {"wire": lambda x, attend, mlp, norm1, norm2: pre_norm(x, attend, mlp, same, norm2)},
        ),
        nudge=_LONELY,
        where="the lines that call attention and the MLP",
    ),
    *mended(
        _HEAD,
        mistake(
            "decoder-final-norm",
            "the last norm is missing: model.norm stands before the logits",
            "the sizes of the logits are those of the last word vectors",
            {"final_norm": lambda x, norm: x},
        ),
        nudge=_LONELY,
        where="what comes after the last layer",
    ),
    mistake(
        "decoder-probabilities",
        "softmax is taken of the logits already, and probabilities come out, or their logarithms",
        "the largest of a row is the same word; a temperature would be applied twice",
        {"head": lambda x, embed: _softmax(x @ embed.T)},
        {"head": lambda x, embed: np.log(_softmax(x @ embed.T))},
        remedy="return logits",
        where="the return statement",
        kind="convention",
    ),
    mistake(
        "decoder-embedding-scaled",
        "the word vectors are multiplied by the root of their size; Llama's are not",
        "the layers' parts count too little beside them",
        {"embed": lambda table, ids: table[ids] * table.shape[1] ** 0.5},
        remedy='x = weights["model.embed_tokens.weight"][ids]',
        nudge=_LONELY,
        where="the line that looks the words up",
    ),
    mistake(
        "decoder-layers",
        "not every layer is run once, in the order of their numbers",
        "a layer is left out, or one is run twice, or they run backwards",
        {"layers": lambda n: range(1)},
        {"layers": lambda n: [0] * n},
        {"layers": lambda n: [n - 1] * n},
        {"layers": lambda n: reversed(range(n))},
        {"layers": lambda n: range(1, n)},
        remedy='for layer in range(config["num_hidden_layers"]): ...',
        nudge="Print the layer's number inside the loop, and the name of a weight that it reads.",
        where="the loop over the layers",
    ),
)

# of a decoder that gives the logits after the last word alone
LAST = (
    mistake(
        "decoder-last-place",
        "the row of logits that comes out is not the last one",
        "it guesses a word that is there already",
        {"rows": lambda logits: logits[0]},
        {"rows": lambda logits: logits[max(-2, -len(logits))]},
        remedy="return logits[-1]",
        nudge="Which row of x knows about all the words?",
        where="the return statement",
    ),
)
