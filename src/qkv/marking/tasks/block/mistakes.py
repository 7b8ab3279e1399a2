"""The ways to get a block wrong: each replaces a step of the right computation."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.attention.steps import same
from qkv.marking.tasks.block.steps import (
    EPS,
    gelu,
    gelu_tanh,
    layer_norm,
    mlp_of,
    rms_norm,
    sigmoid,
)
from qkv.marking.tasks.mistakes.slips import of_output
from qkv.marking.tasks.wiring import (
    NO_NORM,
    NO_RESIDUAL,
    NORM_KEPT,
    NORMED_STREAM,
    NORMS_EXCHANGED,
    ONE_NORM_TWICE,
    Part,
    post_norm,
    wire,
)

_WIRES = "x = x + attend(norm1(x)); x = x + mlp(norm2(x))"
_NORM = (
    "mean = x.mean(axis=-1, keepdims=True); var = x.var(axis=-1, keepdims=True);"
    " x = (x - mean) / np.sqrt(var + 1e-5) * scale + shift"
)
_MLP = "gelu(x @ w_in + b_in) @ w_out + b_out"


def _norm_of_part(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = x + norm1(attend(x))
    return x + norm2(mlp(x))


def _mlp_before(x: Array, attend: Part, mlp: Part, norm1: Part, norm2: Part) -> Array:
    x = x + mlp(norm2(x))
    return x + attend(norm1(x))


def _variance(x: Array) -> Array:
    out: Array = x.var(axis=-1, keepdims=True)
    return out


def _centred(x: Array) -> Array:
    out: Array = x - x.mean(axis=-1, keepdims=True)
    return out


WIRING = (
    *mended(
        _WIRES,
        mistake(
            "block-no-residual",
            "nothing is added to what was there, around attention or around the MLP: a residual"
            " connection is missing",
            "what the word was before is lost, and only what the part computed is left",
            *NO_RESIDUAL,
            nudge="Set w_o and w_out to zero: what should come out?",
        ),
        mistake(
            "block-normed-stream",
            "x is replaced by its norm, and the parts are added to that instead of to x",
            "the size of a word vector is lost in each block",
            *NORMED_STREAM,
            remedy=f"{_WIRES}  # the norm goes into the part alone",
            nudge="Set w_o and w_out to zero: what should come out?",
        ),
        mistake(
            "block-from-start",
            "the MLP's part is added to the x from before attention",
            "what attention found reaches the output only through the MLP",
            wire(lambda x, attend, mlp, norm1, norm2: x + mlp(norm2(x + attend(norm1(x))))),
            nudge="Set w_out to zero: what should come out?",
        ),
        mistake(
            "block-mlp-first",
            "the MLP comes before attention",
            "attention reads word vectors that the MLP has changed",
            wire(_mlp_before),
            nudge="Set w_o to zero, then w_out: which part reads what the other has added?",
        ),
        mistake(
            "block-no-norm",
            "a norm is missing: attention or the MLP gets x as it is",
            "large word vectors make large scores, and one key takes nearly all the weight",
            *NO_NORM,
            nudge="Multiply x by 10: may what attention and the MLP add change?",
        ),
        mistake(
            "block-norm-kept",
            "the norm that attention read goes into the MLP too: the second norm is missing",
            "the MLP does not see what attention has added",
            *NORM_KEPT,
            nudge="Change norm2_scale: does the output change?",
        ),
        mistake(
            "block-norms-exchanged",
            "the two norms have changed places: norm2 stands before attention, norm1 before the"
            " MLP",
            "each part reads numbers that were scaled for the other",
            *NORMS_EXCHANGED,
            nudge="Change each parameter in turn: which part does it reach first?",
        ),
        where="the lines that call attention and the MLP: what goes in, and what is added to what?",
    ),
    *mended(
        _WIRES,
        mistake(
            "block-post-norm",
            "the norm comes after the residual is added; the task asks for a norm before each part",
            "what the block gives is normed itself, as in the first transformer and in BERT",
            wire(post_norm),
            nudge="Set w_o and w_out to zero: does x come out as it went in?",
        ),
        mistake(
            "block-norm-of-part",
            "the norm is taken of what attention and the MLP give; the task asks for a norm of what"
            " they get",
            "as in OLMo 2; in most models since GPT-2 the norm is of what goes in",
            wire(_norm_of_part),
            nudge="Double w_o: does what attention adds double?",
        ),
        mistake(
            "block-parallel",
            "attention and the MLP stand side by side and read the same x; the task asks for an MLP"
            " that reads what attention has added to",
            "as in GPT-J; in most models the MLP comes after attention",
            wire(lambda x, attend, mlp, norm1, norm2: x + attend(norm1(x)) + mlp(norm2(x))),
            nudge="Change w_o: does what the MLP adds change, too?",
        ),
        where="the lines that call attention and the MLP: where does the norm stand?",
    ),
)

NORMS = mended(
    _NORM,
    mistake(
        "norm-tokens",
        "the norm runs over the words, not over the numbers of each word",
        "one word alone comes out as zeros: it is its own mean",
        {"normalize": lambda x: layer_norm(x, -2)},
        {"normalize": lambda x: rms_norm(x, -2)},
        nudge="Change one word: which rows of the norm change?",
    ),
    mistake(
        "norm-whole",
        "the norm runs over the whole matrix, not over each word's own numbers",
        "right for one word, wrong for two",
        {"normalize": lambda x: layer_norm(x, (-1, -2))},
        {"normalize": lambda x: rms_norm(x, (-1, -2))},
        nudge="Change one word: which rows of the norm change?",
    ),
    mistake(
        "norm-no-root",
        "the norm divides by the variance; the root is missing",
        "large word vectors come out small, and small ones large",
        {"normalize": lambda x: _centred(x) / (_variance(x) + EPS)},
        {"normalize": lambda x: x / ((x * x).mean(axis=-1, keepdims=True) + EPS)},
        nudge="What is the variance of a row after the norm?",
    ),
    mistake(
        "norm-ddof",
        "the variance is divided by D - 1, as torch.var does it and ddof=1; LayerNorm divides by D",
        "every number is a little too small, the more so the fewer there are in a row",
        {"normalize": lambda x: layer_norm(x, ddof=1)},
        nudge="What is the variance of a row after the norm?",
    ),
    mistake(
        "norm-no-mean",
        "the norm divides by the standard deviation, but does not take the mean away first",
        "the numbers of a word do not sum to 0",
        {"normalize": lambda x: x / np.sqrt(_variance(x) + EPS)},
        nudge="What is the mean of a row after the norm?",
    ),
    mistake(
        "norm-no-division",
        "the norm takes the mean away and does not divide by the standard deviation",
        "the size of a word vector is what it was",
        {"normalize": _centred},
        nudge="What is the variance of a row after the norm?",
    ),
    mistake(
        "norm-affine",
        "scale or shift of the norm is left out, or the shift is added before the scale is applied",
        "the numbers that were learned for the norm do not do what they did in training",
        {"affine": lambda x, scale, shift: x},
        {"affine": lambda x, scale, shift: x + shift},
        {"affine": lambda x, scale, shift: x * scale},
        {"affine": lambda x, scale, shift: (x + shift) * scale},
        nudge="Set norm1_scale to zeros and norm1_shift to ones: what should the norm give?",
    ),
    mistake(
        "norm-shared",
        "one norm is used twice: norm1 in place of norm2, or the other way round",
        "two of norm1_scale, norm1_shift, norm2_scale and norm2_shift make no difference",
        *ONE_NORM_TWICE,
        where="the names of the parameters that each norm is given",
        remedy='norm(x, parameters["norm2_scale"], parameters["norm2_shift"])',
        nudge="Change each parameter in turn: does every one of them make a difference?",
    ),
    where="the function of the norm: over which axis, divided by what?",
)

EMPTY = mended(
    _NORM,
    mistake(
        "norm-no-eps",
        "the norm divides by 0 where all numbers of a word are equal",
        "0 / 0 is nan, and attention carries it to every word",
        {"normalize": lambda x: layer_norm(x, eps=0.0)},
        {"normalize": lambda x: x / np.sqrt((x * x).mean(axis=-1, keepdims=True))},
        nudge="What does the norm give for a word of zeros?",
    ),
    where="the division in the norm",
    kind="fragile",
)

MLPS = (
    *mended(
        _MLP,
        mistake(
            "mlp-no-activation",
            "the MLP has no activation: two matrices in a row are no more than one matrix",
            "doubling what goes into the MLP doubles what it adds, but for the biases",
            {"activation": same},
            nudge="Double what goes into the MLP, with no biases: may what it adds just double?",
        ),
        mistake(
            "mlp-activation-late",
            "the activation comes after the second matrix; it belongs between the two",
            "the MLP adds hardly anything below zero",
            {"mlp": lambda x, p, act: act((x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"])},
            nudge="Which numbers can the MLP add to a word? Can they be far below zero?",
        ),
        mistake(
            "mlp-activation-twice",
            "there is an activation after the second matrix too; one stands between the two",
            "the MLP adds hardly anything below zero",
            {"mlp": lambda x, p, act: act(mlp_of(x, p, act))},
            nudge="Which numbers can the MLP add to a word? Can they be far below zero?",
        ),
        mistake(
            "mlp-no-bias",
            "a bias of the MLP is left out",
            "b_in or b_out makes no difference",
            {"mlp": lambda x, p, act: act(x @ p["w_in"]) @ p["w_out"]},
            {"mlp": lambda x, p, act: act(x @ p["w_in"] + p["b_in"]) @ p["w_out"]},
            {"mlp": lambda x, p, act: act(x @ p["w_in"]) @ p["w_out"] + p["b_out"]},
            nudge="Change each parameter in turn: does every one of them make a difference?",
        ),
        where="the line of the MLP",
    ),
    *mended(
        _MLP,
        mistake(
            "mlp-other-activation",
            "the activation is another than GELU, which the task asks for: ReLU, SiLU, or GELU by a"
            " logistic function",
            "right only where the weights were trained with it",
            {"activation": lambda x: np.maximum(x, 0)},
            {"activation": lambda x: x * sigmoid(x)},
            {"activation": lambda x: x * sigmoid(1.702 * x)},
            nudge="Put -1 and 1 through your activation alone, and through GELU.",
        ),
        where="the line of the MLP",
    ),
    mistake(
        "block-no-output-projection",
        "what the heads give is not multiplied by w_o",
        "w_o makes no difference",
        {"output": lambda out, w_o: out},
        remedy="out = weights @ v @ w_o",
        nudge="Change each parameter in turn: does every one of them make a difference?",
        where="the end of attention",
    ),
)


def _over(x: Array, by: Array) -> Array:
    """Divided with //."""
    out: Array = x // by
    return out


def _square(x: Array) -> Array:
    out: Array = (x * x).mean(axis=-1, keepdims=True)
    return out


def _whole_mean(x: Array) -> Array:
    """A mean whose sum is divided with //."""
    out: Array = x.sum(axis=-1, keepdims=True) // x.shape[-1]
    return out


def _mean_divided(x: Array) -> Array:
    """Subtract the mean of `x`, dividing the mean alone by the deviation."""
    return x - (x - _centred(x)) / np.sqrt(_variance(x) + EPS)


def _by_whole_means(x: Array) -> Array:
    centred = x - _whole_mean(x)
    return centred / np.sqrt(_whole_mean(centred**2) + EPS)


SLIPS = mended(
    "",
    *mended(
        _NORM,
        mistake(
            "floor-division",
            "a division in the norm is made with //, which rounds down to whole numbers",
            "the numbers of a word are whole after the norm, or their mean or variance is",
            {"normalize": lambda x: _over(_centred(x), np.sqrt(_variance(x) + EPS))},
            {"normalize": lambda x: _over(x, np.sqrt(_square(x) + EPS))},
            {"normalize": _by_whole_means},
            {"normalize": lambda x: _centred(x) / np.sqrt(_whole_mean(_centred(x) ** 2) + EPS)},
            {"normalize": lambda x: x / np.sqrt(_whole_mean(x * x) + EPS)},
            nudge="What is the variance of a row after the norm?",
        ),
        mistake(
            "integer-table",
            "what the norm gives is stored in an array of integers, which cuts off its fractions",
            "the numbers of a word are whole after the norm",
            {"affine": lambda x, scale, shift: np.trunc(x * scale + shift)},
            {"affine": lambda x, scale, shift: np.trunc(x * scale)},
            {"normalize": lambda x: np.trunc(layer_norm(x))},
            {"normalize": lambda x: np.trunc(rms_norm(x))},
            remedy="out = np.zeros(x.shape)  # of floats: no dtype=int, no np.full(..., 0)",
            nudge="Print the dtype of what the norm gives.",
            where="the array that the norm is written to: which numbers can it hold?",
        ),
        mistake(
            "norm-power",
            "the norm divides by half the variance, or by twice as much: ** 1/2 is (** 1) / 2",
            "large word vectors come out small, and small ones large",
            {"normalize": lambda x: _centred(x) / ((_variance(x) + EPS) / 2)},
            {"normalize": lambda x: _centred(x) / (_variance(x) + EPS) / 2},
            {"normalize": lambda x: x / ((_square(x) + EPS) / 2)},
            {"normalize": lambda x: x / (_square(x) + EPS) / 2},
            nudge="What is the variance of a row after the norm?",
            where="the power, or the root: what is computed first?",
        ),
        mistake(
            "norm-brackets",
            "only the mean is divided, and not x - mean: the brackets around it are missing",
            "the size of a word vector is what it was",
            {"normalize": _mean_divided},
            {
                "normalize": same,
                "affine": lambda x, scale, shift: x - (x - _mean_divided(x)) * scale + shift,
            },
            nudge="What is the variance of a row after the norm?",
            where="the division in the norm: what is divided?",
        ),
        where="the function of the norm: over which axis, divided by what?",
    ),
    *mended(
        _MLP,
        mistake(
            "floor-division",
            "a division in the activation is made with //, which rounds down to whole numbers",
            "small numbers become 0 or -1 on their way through the activation",
            {"activation": lambda x: gelu(x) / x * 2 * (x // 2)},
            {"activation": lambda x: gelu_tanh(x) / x * 2 * (x // 2)},
            {"activation": lambda x: x * ((gelu(x) / x * 2) // 2)},
            {"activation": lambda x: x * ((gelu_tanh(x) / x * 2) // 2)},
            {"activation": lambda x: gelu(x) * 2 // 2},
            {"activation": lambda x: gelu_tanh(x) * 2 // 2},
            nudge="Put 0.5 and 1 through your activation alone.",
            where="the divisions in the activation",
        ),
        mistake(
            "integer-table",
            "what the activation gives is stored in an array of integers",
            "small numbers become 0 on their way through the activation",
            {"activation": lambda x: np.trunc(gelu(x))},
            {"activation": lambda x: np.trunc(gelu_tanh(x))},
            remedy="hidden = np.zeros(...)  # of floats: no dtype=int, no np.full(..., 0)",
            nudge="Put 0.5 and 1 through your activation alone.",
            where="the array that the activation is written to: which numbers can it hold?",
        ),
        mistake(
            "product-elementwise",
            "a product of the MLP is made number by number; it is x @ w_in, and hidden @ w_out",
            "it fails, or gives other numbers where the shapes happen to fit",
            {"mlp": lambda x, p, act: act(x * p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]},
            {"mlp": lambda x, p, act: act(x @ p["w_in"] + p["b_in"]) * p["w_out"] + p["b_out"]},
            nudge="Print the shapes of both sides of each product.",
        ),
        mistake(
            "product-order",
            "in a product of the MLP the weights stand first; it is x @ w_in, and hidden @ w_out",
            "it fails, or mixes words where there are as many of them as numbers in one",
            {"mlp": lambda x, p, act: act(p["w_in"] @ x + p["b_in"]) @ p["w_out"] + p["b_out"]},
            {"mlp": lambda x, p, act: p["w_out"] @ act(x @ p["w_in"] + p["b_in"]) + p["b_out"]},
            nudge="Print the shapes of both sides of each product.",
        ),
        where="the line of the MLP",
    ),
    *of_output("x = x + out @ w_o"),
    alone=True,
)
