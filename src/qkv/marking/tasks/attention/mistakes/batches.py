"""The ways to be right for one text and wrong for two."""

from __future__ import annotations

from qkv.marking.mistake import Steps, mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import SCALE, WEIGHTS
from qkv.marking.tasks.attention.mistakes.softmax import over

_ALONG_THE_SECOND: Steps = {"normalise": lambda e: e / e.sum(axis=-1)[:, None]}

BATCHES = mended(
    WEIGHTS,
    mistake(
        "batch-transpose",
        "right for one text (L, d), wrong for a batch (B, L, d): K.T turns all the axes round",
        "it fails, or mixes the texts of the batch with each other where the shapes happen to fit",
        {"score": lambda q, k: q @ k.T},
        remedy=SCALE,
        nudge="Print (2, 3, 4) before and after the transpose.",
    ),
    mistake(
        "batch-axis",
        "right for one text (L, d), wrong for a batch (B, L, d): softmax names an axis that is the"
        " last one only for one text",
        "the rows of the weights do not sum to 1",
        *over(1),
        {"shift": lambda s: s - s.max(axis=-1)[:, None], **_ALONG_THE_SECOND},
        _ALONG_THE_SECOND,
        nudge="Give it two texts at once, and add up the weights of each row.",
    ),
    where="every axis and transpose that is counted from the front",
)

ONE_TEXT = mistake(
    "one-text-only",
    "it takes one text (L, d) at a time, and batches (B, L, d) are asked for",
    "a batch fails, or comes out misshapen",
    remedy=SCALE,
    nudge="Give it two texts at once, q (2, 3, 4): which line fails first?",
    where="every axis and transpose that is counted from the front, and each loop over rows",
)
