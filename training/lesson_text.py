"""The texts of the live page's cards, for the examples that `training.lesson` finds.

A card shows a picture, announces a change, and asks a question. A reader needs about fifteen
seconds for a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.lesson import Card, Edit, Examples, Head, Sentence

WORDS, GUESSES = 6, 4  # the number of options of a question
TIMES = 4  # the temperature on the card about temperature
NAMES = ["weight", "sum", "back", "position", "swap", "heads"]  # the names of the cards, in order
NAMES += ["mask", "temperature", "hide", "remove", "equal", "worth"]


def write(examples: Examples | None) -> list[Card]:
    """Return the cards in order, without the cards whose examples were not found."""
    if examples is None:
        return []
    cards = [_weight(examples), _sum(examples), _back(examples), *_neighbour(examples)]
    cards += [_other(examples), _causal(examples), _temperature(examples)]
    cards += [_hide(examples), _remove(examples), _equal(examples), _worth(examples)]
    return [card for card in cards if card is not None]


# ---- one token's weights


def _weight(given: Examples) -> Card:
    one, head, word = given.sentence, given.head, given.word
    query = next(iter(one.words.values()))[0]
    return {
        "name": "weight",
        "read": f"Each word reads the others: a thick line is a large weight. You see what "
        f"*{one.text.tokens[query]}* attends to. The gap is the missing word.",
        "ask": "What will the gap attend to most?",
        **_words(one, head, one.position),
        "told": f"*{word}* has the largest weight. The weight is a share: it says how much "
        f"of what the gap reads in this head comes from *{word}*.",
        "before": _state(one, head, query),
        "after": _state(one, head),
    }


def _sum(given: Examples) -> Card:
    one, head, word = given.sentence, given.head, given.word
    every, hidden = list(range(len(one.text))), one.hidden(word)
    return {
        "name": "sum",
        "read": f"The gap gives *{word}* {{0}} of its weight. Now *{word}* is hidden: nothing can "
        "attend to it.",
        "ask": f"What happens to the weight of *{word}*?",
        "options": [
            "It is lost: less than 100% is left",
            "Other words get it: still 100%",
            "All words get more: over 100%",
        ],
        "probes": [
            _probe(head, one.position, one.words[word]),
            _probe(head, one.position, every),
            _probe(head, one.position, every, hidden),
        ],
        "right": {"of": "change", "from": 1, "to": 2},
        "told": "The weights of the gap summed to {1} before, and sum to {2} now: the softmax "
        "always makes them sum to one.",
        "before": _state(one, head),
        "after": _state(one, head, edits=hidden),
    }


def _back(given: Examples) -> Card:
    one, head, word = given.sentence, given.head, given.word
    place = one.words[word][0]
    return {
        "name": "back",
        "read": f"The gap attends to *{word}* with a weight of {{0}}. The gap has a "
        f"query, and *{word}* has a key.",
        "ask": f"And how much does *{word}* attend to the gap?",
        "options": ["Much less", "About as much", "Much more"],
        "probes": [
            _probe(head, one.position, one.words[word]),
            _probe(head, place, [one.position]),
        ],
        "right": {"of": "change", "from": 0, "to": 1},
        "told": "{1}. Each word has a query and a key with different numbers: what a word searches "
        "for differs from what it offers.",
        "before": _state(one, head),
        "after": _state(one, head, place),
    }


# ---- positions and heads


def _neighbour(given: Examples) -> list[Card | None]:
    if given.neighbour is None:
        return []
    one, word = given.sentence, given.word
    head, by, query, shown, put = given.neighbour
    names = one.text.tokens
    side = "before" if by < 0 else "after"
    swap = [{"op": "swap", "token": query + by, "with": put}]
    position = {
        "name": "position",
        "read": f"This is another head, {_name(head)}. In it, *{names[shown]}* attends to "
        f"*{names[shown + by]}*.",
        "ask": f"What will *{names[query]}* attend to most?",
        **_words(one, head, query),
        "told": f"It attends most to *{word}*, the word {side} it. This head finds the "
        "word by its position, which every token's vector contains.",
        "before": _state(one, head, shown),
        "after": _state(one, head, query),
    }
    swapped = {
        "name": "swap",
        "read": f"*{names[query]}* attends to *{word}* with a weight of {{0}}. Now we write "
        f"*{put}* at that position.",
        "ask": f"How much will *{names[query]}* attend to *{put}*?",
        "options": ["Much less", "About as much", "Much more"],
        "probes": [_probe(head, query, [query + by]), _probe(head, query, [query + by], swap)],
        "right": {"of": "change", "from": 0, "to": 1},
        "told": "{1}, and it was {0}. For this head, the position of a word matters, not the word.",
        "before": _state(one, head, query),
        "after": _state(one, head, query, edits=swap),
    }
    return [position, swapped]


def _other(given: Examples) -> Card | None:
    if given.other is None:
        return None
    one, (head, word) = given.sentence, given.other
    return {
        "name": "heads",
        "read": f"In head {_name(given.head)} the gap attends to *{given.word}*. Head "
        f"{_name(head)} reads the same words, with its own numbers.",
        "ask": f"What does the gap attend to most in head {_name(head)}?",
        **_words(one, head, one.position),
        "told": f"It attends most to *{word}*, and in head {_name(given.head)} to *{given.word}*. "
        "Different heads can search for different words, and the model combines what all heads "
        "find.",
        "before": _state(one, given.head),
        "after": _state(one, head),
    }


# ---- masks and temperature


def _causal(given: Examples) -> Card | None:
    if given.causal is None:
        return None
    one, head, word = given.causal
    edits: list[Edit] = [{"op": "causal"}]
    first, was, now, guesses = _guesses(one, edits)
    return {
        "name": "mask",
        "read": f"The model says *{first}*, because *{word}* comes later. Now a mask hides later "
        "words from each word. Models that write text use this mask.",
        "ask": "What will it say for the gap now?",
        **guesses,
        "told": f"*{first}* falls from {was} to {now}. Masked words have weight 0, as if they "
        "were not there.",
        "before": _state(one, head),
        "after": _state(one, head, edits=edits),
    }


def _temperature(given: Examples) -> Card:
    one, head, word = given.sentence, given.head, given.word
    size = one.model.dim / one.model.num_heads
    edits = [{"op": "scale", "value": 1 / (TIMES * size**0.5)}]
    return {
        "name": "temperature",
        "read": f"Before the softmax there are scores. We divide them all by {TIMES}, which is "
        f"called temperature {TIMES}. Before, *{word}* has the weight {{0}}.",
        "ask": f"What happens to the weight on *{word}*?",
        "options": ["It gets smaller", "It stays about the same", "It gets larger"],
        "probes": [
            _probe(head, one.position, one.words[word]),
            _probe(head, one.position, one.words[word], edits),
        ],
        "right": {"of": "change", "from": 0, "to": 1},
        "told": "{1}, and it was {0}. A high temperature makes weights even; a low temperature "
        "favours the largest score.",
        "before": _state(one, head),
        "after": _state(one, head, edits=edits),
    }


# ---- hidden words, removed heads


def _hide(given: Examples) -> Card | None:
    if given.second is None:
        return None
    one, head, word = given.second
    edits = one.hidden(word)
    first, was, now, guesses = _guesses(one, edits)
    return {
        "name": "hide",
        "read": f"For the gap the model says *{first}*. Now *{word}* is hidden from all heads.",
        "ask": "What will it say?",
        **guesses,
        "told": f"*{first}* falls from {was} to {now}: this guess came from *{word}*. Hide a "
        "word to see what it contributed.",
        "before": _state(one, head, tab="result"),
        "after": _state(one, head, edits=edits, tab="result"),
    }


def _remove(given: Examples) -> Card:
    one, head, word = given.sentence, given.head, given.word
    edits = _removed(head)
    first, was, now, guesses = _guesses(one, edits)
    return {
        "name": "remove",
        "read": f"All words are visible again. Now we remove head {_name(head)}, in which "
        f"the gap attends to *{word}*.",
        "ask": "What will the model say?",
        **guesses,
        "told": f"*{first}* falls from {was} to {now}. *{word}* is still in the text, and "
        "other heads see it, but this head carried its information to the gap.",
        "before": _state(one, head, tab="result"),
        "after": _state(one, head, edits=edits, tab="result"),
    }


# ---- what weights do not mean


def _equal(given: Examples) -> Card | None:
    if given.equal is None:
        return None
    one, word, less, more = given.equal
    heads = sorted([less, more])
    keys = one.words[word]
    probes = [_probe(head, one.position, keys) for head in heads]
    probes += [{"of": "moved", "edits": _removed(head)} for head in heads]
    at = {head: f"{{{2 + heads.index(head)}}}" for head in heads}
    return {
        "name": "equal",
        "read": f"Two heads give *{word}* about the same weight: {{0}} in head "
        f"{_name(heads[0])} and {{1}} in head {_name(heads[1])}.",
        "ask": "Without which head will the guess for the gap change more?",
        "options": [f"Head {_name(head)}" for head in heads],
        "probes": probes,
        "right": {"of": "largest", "among": [2, 3]},
        "told": f"Without head {_name(less)}, {_first(one, _removed(less))} ({at[less]} of the "
        f"probability goes to other words). Without head {_name(more)}, "
        f"{_first(one, _removed(more))} ({at[more]}). Equal weights, unequal effects: "
        "a weight does not say what the head read.",
        "before": _state(one, heads[0]),
        "after": _state(one, more, edits=_removed(more), tab="result"),
    }


def _worth(given: Examples) -> Card | None:
    if given.worth is None:
        return None
    one, seen, used = given.worth
    words = sorted([seen, used], key=lambda word: one.words[word])
    probes = [_probe(None, one.position, one.words[word]) for word in words]
    probes += [{"of": "moved", "edits": one.hidden(word)} for word in words]
    at = {word: f"{{{2 + words.index(word)}}}" for word in words}
    head = _strongest(one, used)
    return {
        "name": "worth",
        "read": f"Averaged over all heads, the gap gives {{0}} of its weight to *{words[0]}*, "
        f"and {{1}} to *{words[1]}*.",
        "ask": "Which word, once hidden, will change the guess more?",
        "options": [f"*{word}*" for word in words],
        "probes": probes,
        "right": {"of": "largest", "among": [2, 3]},
        "told": f"Without *{seen}*, {_first(one, one.hidden(seen))} ({at[seen]} of the probability "
        f"goes to other words). Without *{used}*, {_first(one, one.hidden(used))} ({at[used]}). "
        "A weight says what a head attended to, not how much the word mattered. To see that, hide "
        "the word.",
        "before": _state(one, head, tab="result"),
        "after": _state(one, head, edits=one.hidden(used), tab="result"),
    }


# ---- parts of a card


def _state(one: Sentence, head: Head, query: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a state of the page that shows a head; the missing word is the default query."""
    own = {"text": one.spelled, "edits": [], "position": one.position}
    own |= {"query": one.position if query is None else query, "layer": head[0], "head": head[1]}
    return own | {"inside": False, "colouring": "pattern", "tab": "heads"} | more


def _probe(
    head: Head | None, query: int, keys: Sequence[int], edits: Sequence[Edit] = ()
) -> dict[str, Any]:
    """Return a probe for a query's total weight on keys, in one head or averaged over heads."""
    own = {} if head is None else {"layer": head[0], "head": head[1]}
    return {"of": "weight", "edits": list(edits), **own, "query": query, "keys": list(keys)}


def _words(one: Sentence, head: Head, query: int) -> dict[str, Any]:
    """Return the options of a question: those words of a sentence that get the largest weights."""
    row = one.run([])[0][head][query]
    largest = sorted(one.words, key=lambda word: -float(row[one.words[word]].sum()))[:WORDS]
    words = [word for word in one.words if word in largest]
    return {
        "options": [f"*{word}*" for word in words],
        "probes": [_probe(head, query, one.words[word]) for word in words],
        "right": {"of": "largest", "among": list(range(len(words)))},
    }


def _guesses(one: Sentence, edits: list[Edit]) -> tuple[str, str, str, dict[str, Any]]:
    """Return the options for the gap: the first guess before and after the edit, and other guesses.

    Returns:
        `(guess, before, after, options)`: `guess` is the likeliest word without the edit. `before`
            and `after` are placeholders, such as `{4}`, for the probability of `guess` without and
            with the edit. `options` is a dict with the options and probes of a card.
    """
    before = [word for word, _ in one.guesses([], 8) if word.isalpha() and word not in one.words]
    now = one.guesses(edits)[0][0]
    words = sorted({now, *[word for word in before if word != now][: GUESSES - 1]})
    probes = [{"of": "probability", "edits": edits, "word": word} for word in words]
    own = {
        "options": [f"*{word}*" for word in words],
        "probes": [*probes, {"of": "probability", "edits": [], "word": before[0]}],
        "right": {"of": "largest", "among": list(range(len(words)))},
    }
    return before[0], f"{{{len(words)}}}", f"{{{words.index(before[0])}}}", own


def _removed(head: Head) -> list[Edit]:
    return [{"op": "ablate", "layer": head[0], "head": head[1]}]


def _first(one: Sentence, edits: Sequence[Edit]) -> str:
    """Return a phrase that names the first guess after edits."""
    [(before, _)], [(after, _)] = one.guesses([]), one.guesses(edits)
    return f"*{after}* stays first" if after == before else f"*{after}* comes first"


def _strongest(one: Sentence, word: str) -> Head:
    """Return the head with the largest weight from the missing word to `word`."""
    weights = one.looks[:, :, one.words[word]].sum(-1)
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    return layer, head


def _name(head: Head) -> str:
    return f"{head[0]}.{head[1]}"
