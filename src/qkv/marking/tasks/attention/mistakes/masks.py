"""The ways to get masks wrong: those that are given, the causal one, and its offset."""

from __future__ import annotations

import numpy as np

from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import (
    HIDE,
    SEES,
)
from qkv.marking.tasks.attention.steps import flip, same

HIDING = mended(
    HIDE,
    mistake(
        "mask-multiplied",
        "a hidden place gets the score 0, as where the mask is multiplied on the scores",
        "hidden keys still take weight, since exp(0) is 1",
        {"hide": lambda s, visible: s * visible, "blank": same},
        nudge="Which weight does the score 0 get?",
    ),
    mistake(
        "mask-added",
        "the mask is added to the scores as it is: True counts as 1, and False as 0",
        "a hidden place only loses a factor e against a visible one",
        {"hide": lambda s, visible: s + visible, "blank": same},
        remedy="scores = scores + np.where(mask, 0.0, -np.inf)",
        nudge="Print the weight of a hidden key: is it 0?",
    ),
    mistake(
        "mask-after-softmax",
        "the mask is applied after softmax, and the weights that are left no longer sum to 1",
        "the output shrinks towards 0 where much is hidden",
        {"hide": same, "blank": lambda w, visible: w * visible},
        remedy=f"{HIDE}  # before softmax",
        nudge="Add up the weights of a row with a hidden key.",
    ),
    where="the line that puts the mask on the scores: before softmax, with which number?",
)

MASK = mended(
    HIDE,
    mistake(
        "mask-inverted",
        "the mask is read the wrong way round: True means that the query may attend",
        "each query sees what was hidden from it, and nothing else",
        {"mask": np.logical_not},
        nudge="Let a mask be True in one place only: which key takes all the weight?",
    ),
    mistake(
        "mask-ignored",
        "the mask makes no difference",
        "hidden keys take their full weight",
        {"mask": np.ones_like},
        nudge="Hide a key and change its value: does the output change?",
    ),
    mistake(
        "mask-transposed",
        "the mask is used transposed: its rows are the queries, its columns the keys",
        "it fails where there are more keys than queries and is silently wrong where not",
        {"mask": flip},
        nudge="Give it one query and three keys, with a mask (1, 3).",
    ),
    where="the place where the mask is read: rows are queries, columns keys, True = may attend",
)

EMPTY = mended(
    SEES,
    mistake(
        "masked-row-nan",
        "a query that may attend to nothing gives nan; its output should be zeros",
        "softmax of a row of -inf alone is 0 / 0",
        {"blank": same},
        nudge="Hide every key from one query: what is its output?",
    ),
    mistake(
        "masked-row-uniform",
        "a query that may attend to nothing still attends; its output should be zeros",
        "a large negative number in place of -inf hides a key only beside one that is visible",
        {"hide": lambda s, visible: np.where(visible, s, -1e9), "blank": same},
        {"hide": lambda s, visible: s + np.where(visible, 0.0, -1e9), "blank": same},
        nudge="Hide every key from one query: what is its output?",
    ),
    kind="fragile",
    where="what softmax makes of a row in which everything is hidden",
)

CAUSAL = mended(
    "visible = np.tril(np.ones((L, L), dtype=bool)); scores = np.where(visible, scores, -np.inf)",
    mistake(
        "causal-diagonal",
        "the causal mask is off by one: a token may attend to itself too",
        "the diagonal is hidden, and the first query sees nothing at all",
        {"causal": lambda i, j, offset, ahead: j < i + offset},
        nudge="What does the first word see?",
    ),
    mistake(
        "causal-ahead",
        "the causal mask is off by one: a token may not attend to the one after it",
        "each query sees one key of the future",
        {"causal": lambda i, j, offset, ahead: j <= i + offset + 1},
        nudge="What does the first word see?",
    ),
    mistake(
        "causal-upper",
        "the causal mask is the upper triangle: each token sees the future and not the past",
        "the last query sees nothing of what came before it",
        {"causal": lambda i, j, offset, ahead: j >= i + offset},
        {"causal": lambda i, j, offset, ahead: j > i + offset},
        nudge="Rows are queries, columns are keys: what does the last row see?",
    ),
    mistake(
        "causal-ignored",
        "asking for a causal mask makes no difference",
        "each query sees the future too",
        {"causal": lambda i, j, offset, ahead: (i >= 0) & (j >= 0)},
        nudge="With the causal mask, change the last value: does the first output change?",
    ),
    where="the comparison of places, or np.tril and np.triu and their k",
)

BOTH = mended(
    "visible = mask & np.tril(np.ones((L, L), dtype=bool))",
    mistake(
        "mask-or-causal",
        "of a mask and a causal mask together one is obeyed; a key is visible where both allow",
        "one of the two makes no difference beside the other",
        {"both": lambda given, allowed: given},
        {"both": lambda given, allowed: allowed},
        {"both": np.logical_or},
        nudge="Hide with the mask what the causal mask shows, and the other way round.",
    ),
    where="the line where the two masks meet",
)

OFFSET = mended(
    "visible = np.arange(S) <= np.arange(L)[:, None] + q_offset",
    mistake(
        "causal-offset",
        "q_offset is not where query 0 stands among the keys: key j is visible where"
        " j <= i + q_offset",
        "with a cache the new token does not see all the tokens before it, or sees later ones",
        {"causal": lambda i, j, offset, ahead: j <= i},
        {"causal": lambda i, j, offset, ahead: j <= i - offset},
        {"causal": lambda i, j, offset, ahead: j <= i + ahead},
        nudge="Let one query stand at place 2 of three keys: which of them does it see?",
    ),
    where="the comparison of places: query i stands at i + q_offset",
)
