"""The ways to get several heads wrong, beside those of `attention`."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, mended, mistake
from qkv.marking.tasks.attention.mistakes import IN_TURN, of_output, rejoin_in_turn
from qkv.marking.tasks.attention.steps import flip, softmax

SPLIT = "q = np.swapaxes(q.reshape(T, num_heads, d), 0, 1)  # (T, H * d) -> (H, T, d)"
JOIN = "out = np.swapaxes(out, 0, 1).reshape(T, num_heads * d)  # (H, T, d) -> (T, H * d)"
OUTPUT = "return joined @ w_o"


def _side_by_side(a: Array) -> Array:
    """(..., H, T, d) -> (..., T, H * d)."""
    a = np.swapaxes(a, -3, -2)
    return a.reshape(*a.shape[:-2], -1)


HEADS = mended(
    JOIN,
    IN_TURN,
    mistake(
        "heads-join-interleaved",
        "the heads are joined column by column in turn, not one head's columns after another's",
        "the numbers are right and stand in other columns, where w_o does not look for them",
        {"join": rejoin_in_turn},
        nudge="Put the number of its head into every cell: in which order does a row hold them?",
        where="the transpose before the last reshape",
    ),
    mistake(
        "heads-reversed",
        "the heads are joined in the reverse order",
        "the numbers are right and stand in other columns",
        {"join": lambda a: _side_by_side(a[..., ::-1, :, :])},
        nudge="Put the number of its head into every cell: in which order does a row hold them?",
        where="the loop over heads, or the order in np.concatenate",
    ),
    mistake(
        "heads-summed",
        "the outputs of the heads are added up or averaged, not joined",
        "a row of the output has as many numbers as one head's",
        {"join": lambda a: a.sum(axis=-3)},
        {"join": lambda a: a.mean(axis=-3)},
        nudge="Print the shape of the output: how many numbers should a word have?",
        where="what is done with the heads' outputs",
    ),
    mistake(
        "heads-one-returned",
        "the output of one head is returned, not of all",
        "a row of the output has as many numbers as one head's",
        {"join": lambda a: a[..., 0, :, :]},
        {"join": lambda a: a[..., -1, :, :]},
        nudge="Print the shape of the output: how many numbers should a word have?",
        where="the return statement, or an assignment in the loop that forgets the heads before",
    ),
    mistake(
        "heads-one-repeated",
        "every head's place holds the output of the same head",
        "the columns of the heads are equal",
        {"join": lambda a: _side_by_side(np.broadcast_to(a[..., :1, :, :], a.shape))},
        {"join": lambda a: _side_by_side(np.broadcast_to(a[..., -1:, :, :], a.shape))},
        nudge="Print the output: do its columns repeat?",
        where="the index of the head inside the loop",
    ),
    mistake(
        "heads-share-weights",
        "all the heads use the weights of the first",
        "what one head looks at, all do",
        {"weigh": lambda w, v, n: (w[..., :1, :, :] if w.ndim > 2 else w) @ v},
        remedy="weights = softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(d))  # (H, T, T)",
        nudge="Print the weights of each head: are they the same?",
        where="the weights: is there a head's index too few?",
    ),
    mistake(
        "heads-weights-averaged",
        "the weights are averaged over the heads before they meet the values",
        "what one head looks at, all do",
        {"weigh": lambda w, v, n: (w.mean(axis=-3, keepdims=True) if w.ndim > 2 else w) @ v},
        remedy="out = weights @ v  # (H, T, T) @ (H, T, d)",
        nudge="Print the weights of each head: are they the same?",
        where="what is done with the weights before the product with the values",
    ),
    mistake(
        "heads-softmax-over-heads",
        "softmax runs over the heads, not over the keys",
        "the weights that the heads give one key sum to 1, and those of a row do not",
        {
            "shift": lambda s: s - s.max(axis=-3, keepdims=True) if s.ndim > 2 else s,
            "normalise": lambda e: e / e.sum(axis=-3 if e.ndim > 2 else -1, keepdims=True),
        },
        remedy="weights = softmax(scores)  # axis=-1",
        nudge="Add up the weights of one row of one head.",
        where="the axis of softmax: 0 is the heads, -1 is the keys",
    ),
    mistake(
        "heads-softmax-twice",
        "softmax is taken of the heads' outputs too",
        "the outputs are between 0 and 1",
        {"join": lambda a: softmax(_side_by_side(a))},
        nudge="May an output be below zero?",
        where="what is done after the heads are joined",
    ),
)

PROJECTED = mended(
    OUTPUT,
    mistake(
        "output-missing",
        "the output projection w_o is not used",
        "the heads stand side by side, and never meet",
        {"output": lambda out, w_o: out},
        nudge="Change a number of w_o: does the output change?",
        where="the return statement",
    ),
    mistake(
        "output-transposed",
        "w_o is used transposed: it is (in, out), so joined @ w_o projects",
        "it fails where w_o is not square and is silently wrong where it is",
        {"output": lambda out, w_o: out @ flip(w_o)},
        nudge="Give it a w_o of 4 rows and 3 columns.",
        where="the product with w_o",
    ),
    mistake(
        "output-from-the-left",
        "w_o is multiplied from the left: it mixes words, not columns",
        "it fails where there are not as many words as columns",
        {"output": lambda out, w_o: w_o @ out},
        nudge="Print the shapes: which of the two sizes of the joined heads meets w_o?",
        where="the product with w_o",
    ),
    mistake(
        "output-added",
        "the result of w_o is added to the heads, not put in their place",
        "the output has the joined heads in it, as a residual connection would",
        {"output": lambda out, w_o: out + out @ w_o},
        nudge="Let w_o be all zeros: what should come out?",
        where="the return statement",
    ),
    of_output("output", OUTPUT)[0],
)

ONE_TEXT = Mistake(
    "heads-one-text",
    "it takes one text (T, D) at a time, and no batch (B, T, D)",
    "a batch fails, or comes out misshapen",
    "q = np.swapaxes(q.reshape(*q.shape[:-1], num_heads, d), -3, -2)  # (..., H, T, d);"
    " out = np.swapaxes(out, -3, -2); out = out.reshape(*out.shape[:-2], -1)  # (..., T, H * d)",
    "fragile",
    nudge="Give it two texts at once, x (2, T, D).",
    where="the split and the join: what they count from the front would have to count from the end",
)
