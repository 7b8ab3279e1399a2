"""The ways to get a cache wrong: each replaces a step of the right computation."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import mended, mistake
from qkv.marking.tasks.kv_cache.steps import Kept, after


def _before(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """The new rows before those that are kept."""
    return np.concatenate([k, kept.key]), np.concatenate([v, kept.value])


def _twice(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """The new rows after those that are kept, and once more."""
    return np.concatenate([kept.key, k, k]), np.concatenate([kept.value, v, v])


def _twice_at_first(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """The new rows are the first cache too, and come after it."""
    return after(kept if len(kept.key) else Kept(k, v), k, v)


def _only_new(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return k, v


def _only_kept(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return kept.key, kept.value


def _only_kept_but_first(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return (kept.key, kept.value) if len(kept.key) else (k, v)


def _only_keys_joined(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return np.concatenate([kept.key, k]), v


def _only_values_joined(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return k, np.concatenate([kept.value, v])


def _summed(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    """The new rows added to those that are kept, number by number."""
    return (kept.key + k, kept.value + v) if len(kept.key) else (k, v)


def _counts_kept(kept: int, keys: int, new: int) -> int:
    """The new words stand after what was kept, though they are not among the keys."""
    return kept


_KEEP = "k = np.concatenate([cache[0], k]); v = np.concatenate([cache[1], v])"
_SEES = "visible = np.arange(len(k)) <= before + np.arange(n)[:, None]  # before = len(cache[0])"
_PLACES = "x = x + positions[before : before + len(x)]  # before = len(cache[0])"

CACHING = (
    mistake(
        "cache-unused",
        "a word does not see what the cache holds: it attends to the words of its own call alone",
        "handed over one by one, every word takes its own value and nothing else",
        {"reads": _only_new},
        remedy=_KEEP,
        nudge="Hand over two words one by one: does the second output depend on the first word?",
        where="the line that puts old and new keys together, before the scores",
    ),
    mistake(
        "cache-overwritten",
        "the cache keeps the newest keys and values alone; those before them are overwritten",
        "from the third call on a word no longer sees the first",
        {"keeps": _only_new},
        remedy=f"{_KEEP}; return out, (k, v)",
        nudge="How many rows has the cache after three calls of one word each?",
        where="what is returned as the cache",
    ),
    mistake(
        "cache-twice",
        "what is new comes into the cache twice",
        "the same key twice takes the weight of two",
        {"keeps": _twice},
        {"reads": _twice},
        {"reads": _twice, "keeps": _twice},
        remedy=f"{_KEEP}; return out, (k, v)  # joined once",
        nudge="How many rows has the cache after three calls of one word each?",
        where="the lines that append to the cache: there are two of them",
    ),
    mistake(
        "cache-twice-at-first",
        "the first call puts its keys and values into the cache, and then behind themselves",
        "the words of the first call count twice; with cache None there is nothing in front",
        {"reads": _twice_at_first, "keeps": _twice_at_first},
        remedy="if cache is not None: k, v = np.concatenate([cache[0], k]), ...",
        nudge="How many rows has the cache after a first call of one word?",
        where="the line that makes the first cache",
    ),
    mistake(
        "cache-one-of-two",
        "of keys and values only one goes on from the cache; the other is of the new words alone",
        "from the second call on there are not as many values as keys",
        {"reads": _only_keys_joined, "keeps": _only_keys_joined},
        {"reads": _only_values_joined, "keeps": _only_values_joined},
        remedy=_KEEP,
        nudge="Print the shapes of keys and values in the second call, before the scores.",
        where="the lines that put old and new together: are there two of them?",
    ),
    mistake(
        "cache-summed",
        "the new keys and values are added to those in the cache, number by number, with +",
        "handed over one by one, all words together have one key and one value, their sums",
        {"reads": _summed, "keeps": _summed},
        remedy=_KEEP,
        nudge="How many rows has the cache after three calls of one word each?",
        where="the line that puts old and new keys together: what does + do to two arrays?",
    ),
    mistake(
        "cache-late",
        "a word does not see itself: attention runs before its own key and value are there",
        "the newest word takes nothing of its own value, and the first one has nothing to see",
        {"reads": _only_kept, "first": _counts_kept},
        {"reads": _only_kept_but_first, "first": _counts_kept},
        remedy=f"{_KEEP}  # before the scores",
        nudge="Which words does the newest word see in the whole causal run?",
        where="the order of two lines: the one that appends and the one that makes the scores",
    ),
)

# for a step whose first cache is None again: what it gives is as with the cache unused
NOT_FILLED = mistake(
    "cache-not-filled",
    "the cache that comes back is None, as it came in: keys and values are never put into it",
    "handed over one by one, every word takes its own value and nothing else",
    {"keeps": _only_kept},
    remedy=f"{_KEEP}; return out, (k, v)",
    nudge="Print the cache that the first call gives back.",
    where="what is returned as the cache",
)

# shown by projections that are others in a later call: what was kept is of the earlier ones
RECOMPUTED = mistake(
    "cache-recomputed",
    "the words are kept and projected again in every call; keys and values should be kept",
    "nothing is saved: for 1,000 words one by one that is 500,500 keys, where 1,000 would do",
    {"recalls": lambda kept, said, w_k, w_v: (said @ w_k, said @ w_v)},
    {"recalls": lambda kept, said, w_k, w_v: (said @ w_k, kept.value)},
    {"recalls": lambda kept, said, w_k, w_v: (kept.key, said @ w_v)},
    remedy=f"{_KEEP}; return out, (k, v)  # not x",
    nudge="How many rows does your function multiply by w_k in the third call of one word?",
    where="what is kept from call to call, and which rows are projected",
)

MASKING = mended(
    _SEES,
    mistake(
        "cache-no-mask",
        "words that come in one call see each other's future: the causal mask is missing",
        "right word by word, wrong for a prompt",
        {"sees": lambda i, j, first: j >= 0},
    ),
    mistake(
        "cache-mask-first-call",
        "only the words of the first call are masked; several that come later in one call see each"
        " other's future",
        "right for a prompt and for single words after it, wrong for two words after it",
        {"sees": lambda i, j, first: (j <= i) | (first > 0)},
    ),
    mistake(
        "cache-mask-no-first",
        "the words of the first call are not masked, and see each other's future",
        "wrong for a prompt of several words, right for what comes after it",
        {"sees": lambda i, j, first: (j <= first + i) | (first == 0)},
    ),
    mistake(
        "cache-mask-upper",
        "the causal mask is the wrong way round: each word sees those after it, not those before",
        "the last word sees nothing but itself",
        {"sees": lambda i, j, first: j >= first + i},
    ),
    mistake(
        "cache-mask-row",
        "the places of the new words lie in a row; beside the keys they should stand in a column",
        "right word by word; of several words none is masked, or the shapes do not fit",
        {"sees": lambda i, j, first: j <= (first + i).T},
    ),
    mistake(
        "cache-counts-arrays",
        "the mask counts 2 words in every cache: len(cache) counts its arrays, a key and a value",
        "right where two words came before, and by chance in some other calls",
        {"first": lambda kept, keys, new: 2 if kept else 0},
    ),
    mistake(
        "cache-mask-start",
        "the causal mask counts from the first key, though the new words stand after the cache",
        "right for a first call; later words do not see all that came before them",
        {"sees": lambda i, j, first: j <= i},
    ),
    mistake(
        "cache-mask-diagonal",
        "the causal mask is off by one: a word may see itself too",
        "the first word sees nothing at all",
        {"sees": lambda i, j, first: j < first + i},
    ),
    mistake(
        "cache-mask-ahead",
        "the causal mask is off by one: a word may not see the one after it",
        "in a call of several words each sees one of the future",
        {"sees": lambda i, j, first: j <= first + i + 1},
    ),
    mistake(
        "cache-front",
        "the new keys stand before those in the cache, where the mask expects them after",
        "right word by word, since softmax knows no order; wrong where a mask counts the places",
        {"reads": _before, "keeps": _before},
        remedy=_KEEP,
        nudge="Print the keys after the second call: in which order do the words stand?",
    ),
    nudge="Print which keys each new word sees, in a first call of three words and in the next.",
    where="the mask: key j is visible to new word i where j <= before + i",
)


def _exchanged(kept: Kept, k: Array, v: Array) -> tuple[Array, Array]:
    return after(kept, k, v)[::-1]


EXCHANGED = mistake(
    "cache-exchanged",
    "keys and values change places in the cache: what is kept as keys comes back as values",
    "right for a first call; from the second on words are compared with values",
    {"keeps": _exchanged},
    remedy="return out, (k, v)  # and k, v = cache, in the same order",
    nudge="Print the first part of the cache after a call: are those the keys?",
    where="the line that takes the cache apart, and the one that returns it",
    alone=True,
)

PLACING = mended(
    _PLACES,
    mistake(
        "cache-positions-restart",
        "the places start from 0 in each call; a new word stands after those in the cache",
        "every word that comes alone gets the position of the first",
        {"places": lambda new, before, calls: np.arange(new)},
    ),
    mistake(
        "cache-positions-calls",
        "the place of a word is counted in calls, not in words",
        "right word by word; after a prompt of several words the next one stands too early",
        {"places": lambda new, before, calls: calls + np.arange(new)},
    ),
    mistake(
        "cache-positions-off",
        "the places are off: the first word stands at place 0",
        "the cache is counted after the new words have come into it",
        {"places": lambda new, before, calls: before + 1 + np.arange(new)},
        {"places": lambda new, before, calls: before + new + np.arange(new)},
    ),
    mistake(
        "cache-positions-ignored",
        "positions make no difference",
        "two equal words at different places give the same",
        {"places": lambda new, before, calls: np.full(new, -1)},  # the last row is zeros
        nudge="Give the same word twice: may its two rows be equal?",
    ),
    nudge="Print the places that the second call gives its words.",
    where="the line that adds positions to x: which rows of the table belong to these words?",
)
