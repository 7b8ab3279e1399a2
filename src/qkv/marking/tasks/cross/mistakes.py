"""The ways to get cross-attention wrong: each replaces a step of the right computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.mistakes.formula import BATCHES as ATTENTION_BATCHES
from qkv.marking.tasks.mistakes.formula import core
from qkv.marking.tasks.mistakes.masks import HIDING, MASK
from qkv.marking.tasks.mistakes.masks import TEXTS as TEXTS_OF_A_BATCH

PROJECT = "q = x @ w_q; k = context @ w_k; v = context @ w_v"
HIDE = "scores = np.where(mask[..., None, :], scores, -np.inf)  # (..., L, S)"

TEXTS = mended(
    PROJECT,
    mistake(
        "cross-keys-from-x",
        "the keys are made of x, the text that asks; they belong to the context",
        "the words of x are compared with each other, and the weights fall on the context",
        {"texts": lambda x, context: (x, x, context)},
        nudge="Change one word of the context: do the weights change?",
    ),
    mistake(
        "cross-values-from-x",
        "the values are made of x, the text that asks; they belong to the context",
        "what comes back is made of the words that asked, and not of those that were found",
        {"texts": lambda x, context: (x, context, x)},
        nudge="Let all the words of the context be equal: what may the output depend on?",
    ),
    mistake(
        "cross-self",
        "keys and values are made of x: that is self-attention, and the context is not read",
        "the output does not depend on the context at all",
        {"texts": lambda x, context: (x, x, x)},
        nudge="Change one word of the context: does the output change?",
    ),
    mistake(
        "cross-queries-from-context",
        "the queries are made of the context; they belong to x, the text that asks",
        "the output has a row for each word of the context",
        {"texts": lambda x, context: (context, context, context)},
        nudge="Print the shape of the output: whose words should have a row?",
    ),
    mistake(
        "cross-texts-exchanged",
        "the two texts have changed places: the context asks, and x is asked",
        "the output has a row for each word of the context",
        {"texts": lambda x, context: (context, x, x)},
        nudge="Print the shape of the output: whose words should have a row?",
    ),
    where="the lines that make q, k and v: from which of the two texts does each come?",
)

CAUSAL = (
    mistake(
        "cross-causal",
        "a causal mask hides words of the context; all of it is there before the first word is"
        " written",
        "the first word sees the first word of the context alone",
        {"not_causal": lambda i, j: j <= i},
        {"not_causal": lambda i, j: j <= i + j.max() - i.max()},  # counted from the end
        remedy=f"{HIDE}  # no np.tri, no np.tril",
        nudge="Change the last word of the context: which rows of the output change?",
        where="the mask of the scores: which words of the context may the first word of x see?",
    ),
)

_AXES = "the place where the mask meets the scores: does it have an axis for the queries?"
_SHAPES = "Print the shapes of the scores and of the mask: which axes meet?"
_INVERTED, _IGNORED = MASK[:2]
_LOW: Steps = {"mask": np.logical_not, "hide": lambda s, visible: np.where(visible, s, -1e9)}
INVERTED = replace(_INVERTED, variants=(*_INVERTED.variants, _LOW))  # of nothing to see no nan
PADDING = (
    *mended(HIDE, INVERTED, _IGNORED, *HIDING),
    mistake(
        "cross-mask-on-queries",
        "the mask is put on the rows of the scores, which are words of x; it says which words of"
        " the context are there",
        "it fails where the two texts differ in length, and hides nothing of the context",
        {"keys": lambda mask: mask[..., :, None]},
        remedy=HIDE,
        nudge=_SHAPES,
        where=_AXES,
    ),
)

BATCHES = (
    mistake(
        "cross-mask-on-batch",
        "the mask (B, S) meets the scores (B, L, S) without an axis for the queries, so that its"
        " texts are taken for words",
        "right for one text; for several it fails, or masks word i as text i should be",
        {"keys": lambda mask: mask},
        remedy=HIDE,
        nudge=_SHAPES,
        where=_AXES,
    ),
    *TEXTS_OF_A_BATCH,
    *ATTENTION_BATCHES,
)

# of one attention; where there are two, exchanged roles are not sought beside a second mistake
_ROLES = ("query-key-swapped", "key-as-value", "projections-swapped", "projections-shared")
CORE = tuple(one for one in core("x,w_q,w_k,w_v") if one.key != "causal-always")
CORE_OF_TWO = tuple(replace(one, alone=one.alone or one.key in _ROLES) for one in CORE)

KNOWN = (*TEXTS, *CAUSAL, *PADDING, *CORE)


def projections_exchanged(key: str, *, remedy: str, alone: bool = False) -> Mistake:
    """One of a decoder's two attentions has the projections of the other."""
    return mistake(
        key,
        "the projections of self-attention and of cross-attention have changed places, or one set"
        " serves both",
        "the shapes fit, and the numbers were learned for the other part",
        {"projections": lambda own, cross: (cross, own)},
        {"projections": lambda own, cross: (own, own)},
        {"projections": lambda own, cross: (cross, cross)},
        remedy=remedy,
        nudge="Change each parameter in turn: which part does it reach first?",
        where="the names of the parameters that each attention is given",
        alone=alone,
    )
