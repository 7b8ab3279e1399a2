"""The ways to get a step of writing wrong: each replaces a step of the right computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps, mended, mistake
from qkv.marking.tasks.cross.mistakes import CORE_OF_TWO, projections_exchanged
from qkv.marking.tasks.cross.writing import once
from qkv.marking.tasks.kv_cache import CACHING, EXCHANGED, MASKING, Kept
from qkv.marking.tasks.mistakes.slips import OF_CAUSAL
from qkv.marking.tasks.wiring import Part

_ONCE = (
    'if cache is None: source = context @ p["cross_k"], context @ p["cross_v"]'
    "  # else it is in the cache"
)
_WIRES = "x = x + self_attention(x); out = x + cross_attention(x, context)"


def _both(made: Kept) -> tuple[Kept, Kept]:
    """Read, and kept."""
    return made, made


def _joined(one: Kept, k: Array, v: Array) -> Kept:
    return Kept(np.concatenate([one.key, k]), np.concatenate([one.value, v]))


def _with_words(kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array) -> tuple[Kept, Kept]:
    """Keys and values of the new words come behind those of the context."""
    made, _ = once(kept, context, x, w_k, w_v)
    return _both(_joined(made, x @ w_k, x @ w_v))


def _words_later(kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array) -> tuple[Kept, Kept]:
    """The same, but in the first call."""
    return (_with_words if len(kept.key) else once)(kept, context, x, w_k, w_v)


def _exchanged(kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array) -> tuple[Kept, Kept]:
    made, _ = once(kept, context, x, w_k, w_v)
    return made, Kept(made.value, made.key)


def _own_later(x: Array, own: Part, cross: Part, calls: int) -> Array:
    """The context is read in the first call alone."""
    x = x + own(x)
    return x if calls else x + cross(x)


def _no_residual(x: Array, own: Part, cross: Part, calls: int) -> Array:
    return cross(own(x))


def _first_lost(x: Array, own: Part, cross: Part, calls: int) -> Array:
    x = own(x)
    return x + cross(x)


def _second_lost(x: Array, own: Part, cross: Part, calls: int) -> Array:
    return cross(x + own(x))


def _cross_first(x: Array, own: Part, cross: Part, calls: int) -> Array:
    x = x + cross(x)
    return x + own(x)


def _parallel(x: Array, own: Part, cross: Part, calls: int) -> Array:
    return x + own(x) + cross(x)


WIRING = mended(
    _WIRES,
    mistake(
        "writing-order",
        "cross-attention comes before self-attention, or both read the same x; cross-attention"
        " reads what self-attention has added to",
        "what a word looks for in the context does not depend on the words before it",
        {"wire": _cross_first},
        {"wire": _parallel},
        nudge="Change self_v: may what cross-attention looks for stay the same?",
    ),
    mistake(
        "writing-no-residual",
        "nothing is added to what was there: a residual connection is missing",
        "what the word was before is lost, and only what attention found is left",
        {"wire": _no_residual},
        {"wire": _first_lost},
        {"wire": _second_lost},
        nudge="Set self_v and cross_v to zero: what should come out?",
        alone=True,
    ),
    mistake(
        "writing-context-at-first",
        "cross-attention runs in the first call alone; every new word reads the context",
        "from the second call on nothing comes from the context",
        {"wire": _own_later},
        nudge="Change the context in both runs: does the output of the last call change?",
    ),
    mistake(
        "writing-self-alone",
        "cross-attention is missing",
        "the output does not depend on the context at all",
        {"wire": lambda x, own, cross, calls: x + own(x)},
        nudge="Change one word of the context: does the output change?",
    ),
    where="the lines that call both attentions: what goes in, and what is added to what?",
)


def _of_words(*sources: Callable[..., Any]) -> Iterator[Steps]:
    """Keys or values made of the words written, after self-attention or before it."""
    for source in sources:
        yield {"source": source}
        yield {"source": source, "words": lambda x, before: before}


def _words_alone(kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array) -> tuple[Kept, Kept]:
    return _both(Kept(x @ w_k, x @ w_v))


def _words_so_far(
    kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array
) -> tuple[Kept, Kept]:
    return _both(_joined(kept, x @ w_k, x @ w_v))


def _keys_of_words(
    kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array
) -> tuple[Kept, Kept]:
    return _both(Kept(x @ w_k, context @ w_v))


def _values_of_words(
    kept: Kept, context: Array, x: Array, w_k: Array, w_v: Array
) -> tuple[Kept, Kept]:
    return _both(Kept(context @ w_k, x @ w_v))


SOURCE = mended(
    _ONCE,
    mistake(
        "cross-cache-grows",
        "keys and values of the new words are put into the cache of cross-attention; it holds the"
        " context alone, and never grows",
        "cross-attention finds the words that were written among those of the context",
        *_of_words(_with_words, _words_later),
        nudge="How many rows have the keys of cross-attention after three calls, and how many has"
        " the context?",
    ),
    mistake(
        "cross-self",
        "keys and values of cross-attention are made of the words that are written, not of the"
        " context",
        "the output does not depend on the context at all",
        *_of_words(_words_alone, _words_so_far),
        nudge="Change one word of the context: does the output change?",
    ),
    mistake(
        "cross-keys-from-x",
        "the keys of cross-attention are made of x; they belong to the context",
        "the words of x are compared with each other, and the weights fall on the context",
        *_of_words(_keys_of_words),
        nudge="Change one word of the context: do the weights change?",
    ),
    mistake(
        "cross-values-from-x",
        "the values of cross-attention are made of x; they belong to the context",
        "what comes back is made of the words that asked, and not of those that were found",
        *_of_words(_values_of_words),
        nudge="Let all the words of the context be equal: what may cross-attention add?",
    ),
    mistake(
        "cross-cache-exchanged",
        "keys and values of the context change places in the cache",
        "right for a first call; from the second on words are compared with values",
        {"source": _exchanged},
        nudge="Print the keys of cross-attention in two calls: are they the same?",
    ),
    mistake(
        "cross-reads-own-cache",
        "cross-attention reads the keys and values of self-attention: two caches are needed",
        "nothing comes from the context",
        {"found": lambda cross, own: own},
        nudge="Print the shapes of both pairs of keys: how many rows should each have?",
    ),
    where="the place where keys and values of the context are made and kept",
)

SEES = (
    mistake(
        "cross-causal",
        "a causal mask hides words of the context; all of it is there before the first word is"
        " written",
        "the first word sees the first word of the context alone",
        {"source_sees": lambda i, j, before: j <= before + i},
        {"source_sees": lambda i, j, before: j <= i},
        remedy="cross-attention needs no mask here",
        nudge="Change the last word of the context: which rows of the output change?",
        where="the mask of cross-attention: which words of the context may the first word see?",
    ),
    projections_exchanged(
        "writing-projections",
        remedy='q = x @ parameters["self_q"]  # and cross_q, cross_k, cross_v for the next',
        alone=True,
    ),
)

# shown by projections that are others in a later call: what was kept is of the earlier ones
RECOMPUTED = mended(
    _ONCE,
    mistake(
        "cross-recomputed",
        "keys and values of the context are projected again in every call; they never change",
        "nothing is saved: for a context of 1,000 words and 100 steps that is 100,000 keys, where"
        " 1,000 would do",
        {"source": lambda kept, context, x, w_k, w_v: _both(Kept(context @ w_k, context @ w_v))},
        {
            "source": lambda kept, context, x, w_k, w_v: _both(
                Kept(context @ w_k, kept.value if len(kept.key) else context @ w_v)
            )
        },
        {
            "source": lambda kept, context, x, w_k, w_v: _both(
                Kept(kept.key if len(kept.key) else context @ w_k, context @ w_v)
            )
        },
        nudge="How many rows does your function multiply by cross_k in the third call?",
    ),
    mistake(
        "cross-appended",
        "keys and values of the context are projected again in every call, and appended to those"
        " that are there",
        "no number shows it, since each key has its double; the cache grows for nothing",
        {
            "source": lambda kept, context, x, w_k, w_v: _both(
                _joined(kept, context @ w_k, context @ w_v)
            )
        },
        nudge="How many rows have the keys of cross-attention after three calls, and how many has"
        " the context?",
    ),
    where="the line that makes keys and values of the context: in which calls does it run?",
)

KNOWN = (
    *CACHING,
    *MASKING,
    *WIRING,
    *SOURCE,
    *SEES,
    *CORE_OF_TWO,
    *OF_CAUSAL,
    EXCHANGED,
)
