"""The ways to get the layer wrong: in its steps, and in the weights that it is built with."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, mended, mistake
from qkv.marking.tasks.mistakes.formula import core
from qkv.marking.tasks.mistakes.heads import HEADS, ONE_HEAD
from qkv.marking.tasks.mistakes.slips import of_output

_OUT = "out = np.swapaxes(out, 0, 1).reshape(T, embed_dim) @ self.w_o"
_REFUSE = 'if embed_dim % num_heads: raise ValueError("embed_dim must divide by num_heads")'
_DRAWN = "self.w_q = rng.normal(size=(embed_dim, embed_dim)) / embed_dim**0.5"


def _interleaved(a: Array, heads: int) -> Array:
    """(..., T, d * H) -> (..., H, T, d), where neighbours belong to different heads."""
    return np.moveaxis(a.reshape(*a.shape[:-1], -1, heads), -1, -3)


def _interleaved_again(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, d * H)."""
    a = np.moveaxis(a, -3, -1)
    return a.reshape(*a.shape[:-2], -1)


def _backwards(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, H * d), the last head first."""
    a = np.swapaxes(a[..., ::-1, :, :], -3, -2)
    return a.reshape(*a.shape[:-2], -1)


LAYER = (
    mistake(
        "class-no-output-projection",
        "what the heads give is not multiplied by W_O",
        "each head writes to columns of its own, and none sees what the others found",
        {"output": lambda out, w_o: out},
        remedy=_OUT,
        nudge="Double w_o: does the output double?",
        where="the end of the call, after the heads are joined",
    ),
    mistake(
        "class-residual-inside",
        "x is added to the output: the residual connection belongs to the block around the layer",
        "with all weights zero x comes out, where zeros should",
        {"around": lambda out, x: out + x},
        remedy=f"return {_OUT.partition(' = ')[2]}",
        nudge="Set all weights to zero: what should come out?",
        where="the return statement",
    ),
    mistake(
        "class-heads-backwards",
        "the heads are joined in another order than that in which they were split",
        "the rows of w_o meet the numbers of other heads",
        {"join": _backwards},
        remedy=_OUT,
        where="the line that joins the heads",
        nudge="Put the number of its head into every cell: in which order does a row hold them?",
    ),
    *mended(
        "q = np.swapaxes((x @ self.w_q).reshape(T, num_heads, d), 0, 1)  # (H, T, d)",
        mistake(
            "class-heads-interleaved",
            "neighbouring columns belong to different heads; in most models a head has a run of"
            " columns",
            "as good for a layer that is trained so; weights from elsewhere will not fit",
            {"split": _interleaved, "join": _interleaved_again},
            nudge="Put the number of its column into every cell: which columns does head 0 get?",
        ),
        where="the line that splits the heads",
        kind="convention",
    ),
)
KNOWN = (
    *LAYER,
    *HEADS,
    *ONE_HEAD,
    *core("x,w_q,w_k,w_v"),
    *of_output(_OUT),
)

# what is found in the weights themselves, or in how the layer is built

ONE_WEIGHT = Mistake(
    "class-one-weight",
    "all heads share one matrix; each head needs its own",
    "every head looks at the same words, so that many heads see no more than one",
    f"{_DRAWN}  # the columns of all heads side by side",
    nudge="How do two heads of the layer differ?",
    where="the line that makes the weights: their shape",
)
SAME_HEADS = Mistake(
    "class-heads-identical",
    "every head has the same weights",
    "every head looks at the same words, so that many heads see no more than one",
    f"rng = np.random.default_rng(seed); {_DRAWN}  # one rng for all that is drawn",
    nudge="Compare the weights of two heads.",
    where="where the generator is made: a new one with the same seed draws the same numbers",
)
SAME_PROJECTIONS = Mistake(
    "class-projections-identical",
    "two of W_Q, W_K and W_V hold the same numbers",
    "a word always fits itself best, or gives what it asks for",
    f"rng = np.random.default_rng(seed); {_DRAWN}  # one rng for all that is drawn",
    nudge="Compare w_q, w_k and w_v.",
    where="where the generator is made: a new one with the same seed draws the same numbers",
)
CONSTANT = Mistake(
    "class-weights-constant",
    "a projection holds one number only",
    "all columns of what it gives are equal, and training keeps them so",
    _DRAWN,
    nudge="Print the weights of a new layer.",
    where="the line that makes the weights",
)
SLICES = Mistake(
    "class-slices",
    "each head reads its own slice of the word vector; a head should read all of it",
    "what stands in the first columns never reaches the scores of the second head",
    f"{_DRAWN}; q = x @ self.w_q  # (T, embed_dim), and only then split into heads",
    nudge="Change the last number of every word: do the weights of the first head change?",
    where="the order of two steps: the projection and the split into heads",
)
NO_OUTPUT = LAYER[0]
OUTPUT_SIZE = Mistake(
    "class-output-size",
    "W_O has another number of rows than the heads, joined, have numbers",
    "the last product fails as soon as there are two heads, or W_O is used on each head alone",
    "self.w_o = rng.normal(size=(embed_dim, embed_dim)) / embed_dim**0.5",
    nudge="Print the shape of the joined heads, and that of w_o.",
    where="the line that makes w_o, or the heads, which have to be joined before",
)
PER_CALL = Mistake(
    "class-weights-per-call",
    "two calls with the same x differ: the weights are drawn in the call",
    "what is learned would be lost with the next call",
    f"{_DRAWN}  # in __init__",
    nudge="Call the layer twice with the same words.",
    where="where the weights are made: in __init__, not in the call (or is a dropout left on?)",
)
NOT_REFUSED = Mistake(
    "class-not-divisible",
    "embed_dim=5 with num_heads=2 is not refused: 5 numbers make no two heads of equal size",
    "a number is lost, or the layer fails later and far from the reason",
    _REFUSE,
    nudge="Build SelfAttention(5, 2).",
    where="the first lines of __init__",
)
REFUSED_OTHERWISE = Mistake(
    "class-refused-otherwise",
    "embed_dim=5 with num_heads=2 is refused by another error; the task asks for a ValueError",
    "whoever expects a ValueError does not catch it, and assert is left out by python -O",
    _REFUSE,
    nudge="Build SelfAttention(5, 2) between try and except ValueError.",
    where="the first lines of __init__",
)
NOT_CALLED = Mistake(
    "class-not-called",
    "a layer cannot be called: it has no __call__",
    "layer(x) is a TypeError",
    "def __call__(self, x): ...",
    nudge="Build a layer, and call it: layer(x).",
    where="the name of the method that computes: __call__, with two underscores on each side",
)
SEED_IGNORED, SEED_UNUSED = (
    Mistake(
        "class-seed-ignored",
        says,
        shows,
        f"rng = np.random.default_rng(seed); {_DRAWN}",
        nudge="Build two layers with the same seed, and one with another: which are equal?",
        where="where the generator is made: what is it given?",
    )
    for says, shows in (
        ("the seed makes no difference", "SelfAttention(4, 2, seed=1) and seed=2 are one layer"),
        (
            "two layers of the same seed differ: their weights are not drawn from it",
            "nobody can draw the same layer again",
        ),
    )
)
HIDDEN = Mistake(
    "class-weights-hidden",
    "its weights have other names than w_q, w_k, w_v and w_o, which the task asks for, so that its"
    " numbers were not checked",
    "shapes and symmetries are right",
    "self.w_q, self.w_k, self.w_v, self.w_o = ...  # in __init__",
    where="the names of the attributes",
    nudge="Print vars(layer): what are its arrays called?",
)
UNSCALED = Mistake(
    "class-weights-unscaled",
    "the weights are drawn at another size than the task asks for: from words of variance 1 they"
    " should make queries, keys and values of variance 1",
    "queries and keys grow with embed_dim, and softmax lets one word win",
    _DRAWN,
    nudge="Build a layer of 64 numbers and one of 1024: how large are their queries?",
    where="the line that draws the weights",
)
ORDER = Mistake(
    "class-order-matters",
    "the same words in another order give other vectors; self-attention alone knows no order",
    "a mask, a position, or a mixture of rows stands inside",
    nudge="Turn the words round: what should come out?",
    where="what treats one row of x otherwise than another",
)
ALONE = Mistake(
    "class-no-mixing",
    "no word's output depends on another word",
    "each word is treated by itself, which is no attention",
    nudge="Change one word: which rows of the output change?",
    where="the product of the weights with the values",
)
