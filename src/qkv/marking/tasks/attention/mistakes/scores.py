"""The ways to get the scores wrong: the product, what it is divided by, and when."""

from __future__ import annotations

import numpy as np

from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import SCALE
from qkv.marking.tasks.attention.steps import same

SCORES = (
    mistake(
        "key-not-transposed",
        "the keys are not transposed: q @ k.T has a score for each query and key, q @ k has not",
        "it fails where there are not as many keys as numbers in a key, and is silently wrong where"
        " there are",
        {"score": lambda q, k: q @ k},
        remedy=SCALE,
        nudge="Print the shapes of q and k: which two sizes meet in the product?",
        where="the product of queries and keys",
    ),
)

SCALING = mended(
    SCALE,
    mistake(
        "no-scaling",
        "the scores are not scaled: the division by sqrt(d) is missing",
        "the weights are too sharp, the more so the larger d is",
        {"scale": same},
        nudge="Make d four times as large: how much larger do the scores get?",
    ),
    mistake(
        "scale-d",
        "the scores are divided by d, not by sqrt(d): either the root is missing, or sqrt(d) is"
        " divided by twice",
        "the weights are too even",
        {"scale": lambda s, n: s / n.d},
        remedy=f"{SCALE}  # once",
        nudge="Let d be 4: by which number should the scores be divided?",
    ),
    mistake(
        "scale-multiplied",
        "the scores are multiplied by sqrt(d) where they should be divided by it",
        "the weights are far too sharp",
        {"scale": lambda s, n: s * np.sqrt(n.d)},
        nudge="Let d be 4: by which number should the scores be divided?",
    ),
    mistake(
        "scale-tokens",
        "the scores are divided by the root of the number of tokens, not of the head size d",
        "the same two words score differently in a longer sentence",
        {"scale": lambda s, n: s / np.sqrt(n.tokens)},
        nudge="Add a word that nobody looks at: do the other scores change?",
    ),
    mistake(
        "scale-after-softmax",
        "the weights are divided by sqrt(d) after softmax, where the scores should be before it",
        "the weights of a row sum to 1/sqrt(d)",
        {"scale": same, "weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        {"weigh": lambda w, v, n: w @ v / np.sqrt(n.d)},
        remedy=f"{SCALE}  # before softmax; the weights stay as they are",
        nudge="Add up the weights of a row: what should they give?",
    ),
    where="the line of the scores: what are they divided by, and when?",
)

SHAPES = mended(
    SCALE,
    mistake(
        "scale-value-size",
        "the scores are divided by the root of the size of the values, not of the queries and keys",
        "the weights change with the number of columns of the values",
        {"scale": lambda s, n: s / np.sqrt(n.dv)},
        nudge="Give the values another column: do the weights change?",
    ),
    where="the size under the root: of which array is it?",
)
