"""Rules that choose sentences and heads for the cards of the live page (`play_cards`).

Most cards use the *lesson's sentence*. Such a sentence is made from a frame, which contains a gap
for the missing word, and a filler, which replaces {} in the frame. `stories.txt` lists families of
frames and fillers. In some head, the missing word attends to a content word of the filler with a
weight of 0.5 or more. This is the missing word's largest weight in the head, and the content word
is not a neighbour of the missing word. Masking the content word changes the first guess, and so
does ablating the head. If several sentences qualify, the rule prefers sentences that have both
*neighbour* and *other* (see below). Of these sentences, it chooses the sentence with the most
probable first guess. If no sentence has both *neighbour* and *other*, the rule chooses the sentence
with the largest weight. If a change gives a new first guess, this guess counts only if it
consists of letters, is not a function word, and is not in the sentence. Its probability must be 2%
or more, and exceed the second guess's probability by at least 0.0005. Each rule first searches
sentences whose first guess has a probability of 5% or more, and then all other sentences.

- *second*: a sentence for the card about masking a word. This sentence and the lesson's sentence
  come from different families in `stories.txt`. The word that the missing word attends to is also
  different in the two sentences. Of such qualifying sentences, the rule chooses the sentence with
  the largest weight. No other card may use *second*.
- *neighbour*: the head with the largest mean weight on the previous or the next token, over the
  pool. In the lesson's sentence, the query is a neighbour of the filler's content word. In this
  head, the query attends to that content word. The rule also chooses a replacement word. It takes
  this word from the filler of a sentence that belongs to another family in `stories.txt`. If
  the replacement word replaces the filler's content word, the weight must change by less than 0.08.
- *other*: another head for the lesson's sentence. In this head, the missing word attends most to
  another content word, with a weight of 0.4 or more. The head is not the head of *neighbour*. The
  rule prefers heads in the layer of the lesson's head, and then the head with the largest weight.
- *causal*: a sentence in which a content word comes after the missing word. This content word is
  part of the filler (the words that replace {} in the frame). A causal mask changes the model's
  first guess in the sentence. Of these sentences, the rule chooses the sentence in which the
  original first guess loses the largest share of its probability.
- *equal*: a content word and two heads. In both heads, the missing word attends most to this
  content word. Both weights are 0.4 or more, and they differ by at most 0.01. But ablating one
  of the two heads moves at least 0.1 more probability than ablating the other head. The rule first
  prefers pairs in which only one ablation changes the first guess. Of the remaining pairs, it
  chooses the pair whose two ablations differ most in how much probability they move.
- *worth*: two words, each of which occurs once in the sentence. The second word is a content word
  of the sentence's filler. The mean weight of all heads on the first word is at least 1.2 times the
  mean weight on the second word. But masking the second word moves at least 1.3 times as much
  probability as masking the first word, and at least 0.1 more. If several pairs qualify,
  the rule prefers pairs in which the most probable guess changes if the second word is masked, but
  not if the first word is masked. Of the remaining pairs, the rule chooses the pair with the
  largest difference in effect. The effect of a word is the amount of probability that moves when
  the word is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models import Model
from qkv.see.analysis._words import is_function_word
from qkv.text import Tokenized
from training.frames import MASK, Candidate

Card = dict[str, Any]
Edit = dict[str, Any]
Head = tuple[int, int]

# A first guess must have a probability of LEAST or more. The rules prefer sentences whose first
# guess has a probability of SURE or more.
SURE, LEAST = 0.05, 0.02
# LARGE and LARGE_TOO are minimum weights. A query's largest weight must exceed the query's other
# weights by APART. If a rule compares two changes, one change must move at least APART more
# probability than the other.
LARGE, LARGE_TOO, APART = 0.5, 0.4, 0.1
AHEAD = 0.0005  # the minimum difference in probability between the first and the second guess
# A swap must change a weight by less than STAYS. The weights of two heads may differ by at most
# ALIKE.
STAYS, ALIKE = 0.08, 0.01
MORE_WEIGHT, MORE_MOVED = 1.2, 1.3


@dataclass(frozen=True, eq=False)
class Sentence:
    """The tokens of a sentence with a missing word, and runs of a model on it.

    Attributes:
        model: the model.
        spelled: the sentence.
        text: the tokens of the sentence; each token is a whole word.
        position: the position of the missing word.
        candidate: the origin of the sentence, if it is from `stories.txt`.
    """

    model: Model
    spelled: str
    text: Tokenized
    position: int
    candidate: Candidate | None = None
    _kept: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, sentence: str, candidate: Candidate | None = None) -> Sentence:
        """Make a `Sentence`."""
        text = model.tokenize(sentence)
        return cls(model, sentence, text, text.tokens.index(MASK), candidate)

    def run(self, edits: Sequence[Edit]) -> tuple[Array, Array]:
        """Return the weights (layers, H, T, T) and the probabilities (V) at the gap."""
        key = repr(edits)
        if key not in self._kept:
            self._kept[key] = self._run(edits)
        return self._kept[key]

    def _run(self, edits: Sequence[Edit]) -> tuple[Array, Array]:
        ids = self.text.ids.tolist()
        hide: list[Any] = []
        change: dict[Any, Any] = {}
        for edit in edits:
            if edit["op"] == "swap":
                ids[edit["token"]] = self.vocabulary[edit["with"]]
            elif edit["op"] == "causal":
                hide += list(combinations(range(len(ids)), 2))
            elif edit["op"] == "hide":
                hide.append(edit["token"])
            elif edit["op"] == "scale":
                times = edit["value"] * (self.model.dim / self.model.num_heads) ** 0.5
                for layer in range(self.model.num_layers):
                    change["attn_scores", layer] = lambda scores, by=times: scores * by
        ablate = [(edit["layer"], edit["head"]) for edit in edits if edit["op"] == "ablate"]
        trace = self.model.trace(
            [ids], names=["pattern"], logits=True, ablate=ablate, hide=hide, edit=change
        )
        logits = trace["logits"][0, self.position].astype(np.float64)
        probabilities = np.exp(logits - logits.max())
        return np.array(trace.attentions)[:, 0], probabilities / probabilities.sum()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Return the id of each word of the vocabulary."""
        assert self.model.tokenizer is not None
        return self.model.tokenizer.vocabulary

    @property
    def words(self) -> dict[str, list[int]]:
        """Return all words except the missing word, with their positions."""
        own: dict[str, list[int]] = {}
        for position, token in enumerate(self.text.tokens):
            if token.isalpha():
                own.setdefault(token, []).append(position)
        return own

    @property
    def looks(self) -> Array:
        """Return the weights from the missing word: (layers, H, T)."""
        return self.run([])[0][:, :, self.position]

    def guesses(self, edits: Sequence[Edit], count: int = 1) -> list[tuple[str, float]]:
        """Return the most probable words with their probabilities."""
        _, probabilities = self.run(edits)
        assert self.model.tokenizer is not None
        best = np.argsort(-probabilities, kind="stable")[:count]
        return [(self.model.tokenizer.token(int(k)) or "", float(probabilities[k])) for k in best]

    def becomes(self, edits: Sequence[Edit]) -> str | None:
        """Return the first guess after edits; None if this guess is unchanged or unfit for use."""
        (word, probability), (_, next_one) = self.guesses(edits, 2)
        counts = (
            probability >= max(LEAST, next_one + AHEAD)
            and is_content(word)
            and word not in self.words
        )
        return word if counts and word != self.guesses([])[0][0] else None

    def moved(self, edits: Sequence[Edit]) -> float:
        """Return how much probability the edits move: half the sum of all absolute differences."""
        return float(abs(self.run(edits)[1] - self.run([])[1]).sum() / 2)

    def hidden(self, word: str) -> list[Edit]:
        """Return the edits that mask a word in all heads."""
        return [{"op": "hide", "token": position} for position in self.words[word]]

    def top(self, head: Head) -> tuple[str, float]:
        """Return the token that gets a head's largest weight, and this weight.

        The query is the missing word.
        """
        row = self.looks[head]
        return self.text.tokens[int(row.argmax())], float(row.max())

    def clear(self, head: Head, word: str, query: int | None = None) -> bool:
        """Return whether a query's weight on a word exceeds the query's other weights by 0.1."""
        row = self.run([])[0][head][self.position if query is None else query]
        own = {name: float(row[at].sum()) for name, at in self.words.items()}
        return all(own[word] >= x + APART for name, x in own.items() if name != word)


@dataclass(frozen=True)
class Examples:
    """The examples for the cards; an example that was not found is None.

    Attributes:
        sentence: the lesson's sentence.
        head: the head that attends to `word` in the lesson's sentence.
        word: the filler's word that the head attends to.
        second: another qualifying sentence, with its head and word.
        neighbour: (head, distance from query to key, query, second query, replacement word).
        other: a second head, and the word that the second head attends to.
        causal: a sentence, a head, and the word that this head attends to.
        equal: a sentence; a word that gets almost equal weights in two heads; the head with less
            effect on the guess; and the head with more effect.
        worth: a sentence, the word with more weight, and the word with more effect.
    """

    sentence: Sentence
    head: Head
    word: str
    second: tuple[Sentence, Head, str] | None
    neighbour: tuple[Head, int, int, int, str] | None
    other: tuple[Head, str] | None
    causal: tuple[Sentence, Head, str] | None
    equal: tuple[Sentence, str, Head, Head] | None
    worth: tuple[Sentence, str, str] | None


def is_content(word: str) -> bool:
    """Return whether a word consists of letters and is not a function word."""
    return word.isalpha() and len(word) > 1 and not is_function_word(word)


def pool(model: Model, given: Sequence[Candidate]) -> list[Sentence]:
    """Return the sentences for which a model's first guess is right."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.mask != MASK or model([[0, 1]]).logits is None:
        return []
    kept = []
    for one in given:
        text = model.tokenize(one.sentence)
        if all(x.isalpha() or x in (MASK, ".", ",") for x in text.tokens[1:-1]):
            [[(word, probability)]] = model.predict(one.sentence, top_k=1)
            if word in one.right and probability >= LEAST:
                kept.append(Sentence.of(model, one.sentence, one))
    return kept


def found(sentences: Sequence[Sentence]) -> Examples | None:
    """Find the examples for the cards; return None if no sentence qualifies for the lesson."""
    sure = [one for one in sentences if one.guesses([])[0][1] >= SURE]
    large, lessons = _lessons(sure)
    if not lessons:
        large, lessons = _lessons(sentences)
    if not lessons:
        return None
    surest = sorted(lessons, key=lambda one: -one[0].guesses([])[0][1])
    for sentence, head, word in [*surest, lessons[0]]:
        others = [one for one in large if _family(one[1]) != _family(sentence) and one[3] != word]
        neighbour = _neighbour(sentences, sentence, word, [one[3] for one in others])
        other = _other(sentence, [head, *(neighbour or [])[:1]], word)
        if neighbour is not None and other is not None:
            break
    told = [_best(search, sure, sentences) for search in (_causal, _equal, _worth)]
    used = [one[0] for one in told if one is not None]
    second = [one[1:] for one in others if one[1:] in lessons and one[1] not in used]
    return Examples(
        sentence,
        head,
        word,
        second[0] if second else None,
        neighbour,
        other,
        *told,
    )


def _serves(sentence: Sentence, head: Head, word: str) -> bool:
    """Return whether masking the word and ablating the head each change the first guess."""
    removed = [{"op": "ablate", "layer": head[0], "head": head[1]}]
    return bool(sentence.becomes(sentence.hidden(word)) and sentence.becomes(removed))


def _lessons(sentences: Sequence[Sentence]) -> tuple[list[Any], list[Any]]:
    """Return all large weights, the largest first, and the weights that qualify for the lesson."""
    large = sorted(_large(sentences), key=lambda one: -one[0])
    return large, [one[1:] for one in large if _serves(*one[1:])]


def _best(search: Callable[..., Iterator[tuple[Any, ...]]], *pools: Sequence[Sentence]) -> Any:
    """Return the best item of the first non-empty pool; leave out the item's sort key."""
    for sentences in pools:
        best = max(search(sentences), key=lambda one: one[0], default=None)
        if best is not None:
            return best[1:]
    return None


def _family(sentence: Sentence) -> str:
    return "" if sentence.candidate is None else sentence.candidate.family


def _cue(sentence: Sentence) -> set[str]:
    """Return the content words of the filler."""
    cue = set() if sentence.candidate is None else set(sentence.candidate.cue)
    return {word for word in cue & sentence.words.keys() if is_content(word)}


def _large(sentences: Sequence[Sentence]) -> Iterator[tuple[float, Sentence, Head, str]]:
    """Yield the large weights whose query is the missing word and whose key is in the filler."""
    for sentence in sentences:
        for head in np.ndindex(*sentence.looks.shape[:2]):
            word, weight = sentence.top(head)
            if weight < LARGE or word not in _cue(sentence) or not sentence.clear(head, word):
                continue
            if all(abs(position - sentence.position) > 1 for position in sentence.words[word]):
                yield weight, sentence, head, word


def _neighbour(
    sentences: Sequence[Sentence], sentence: Sentence, word: str, fillers: Sequence[str]
) -> tuple[Head, int, int, int, str] | None:
    """Find the head that attends to neighbours, and the examples for the card about this head.

    The result contains the head, the distance from query to key, two queries and a replacement
    word. The result is None if the lesson's sentence has no such examples.
    """
    means = {by: np.mean([_aside(one, by) for one in sentences], axis=0) for by in (-1, 1)}
    by = max(means, key=lambda which: means[which].max())
    layer, number = np.unravel_index(int(means[by].argmax()), means[by].shape)
    head = int(layer), int(number)
    pattern, _ = sentence.run([])
    own = [position for at in sentence.words.values() for position in at]
    pairs = [q for q in own if q + by in own and pattern[head][q, q + by] >= LARGE]
    queries = [q for q in pairs if sentence.text.tokens[q + by] == word]
    queries = [q for q in queries if sentence.clear(head, word, q)]
    if not queries or len(pairs) < 2:
        return None
    query = queries[0]
    shown = next(q for q in pairs[::-1] if q != query)
    for put in fillers:
        swapped, _ = sentence.run([{"op": "swap", "token": query + by, "with": put}])
        change = abs(float(swapped[head][query, query + by] - pattern[head][query, query + by]))
        if put not in sentence.words and change < STAYS:
            return head, by, query, shown, put
    return None


def _aside(sentence: Sentence, by: int) -> Array:
    """Return the mean weight of each head on the token at a given distance: (layers, H)."""
    pattern, _ = sentence.run([])
    return np.asarray(pattern.diagonal(by, 2, 3).mean(-1))


def _other(sentence: Sentence, heads: Sequence[Head], word: str) -> tuple[Head, str] | None:
    """Find a head that attends to another content word than `word`; return the head and its word.

    The head is not in `heads`. Heads in the layer of `heads[0]` are preferred.
    """
    best = None
    for other in np.ndindex(*sentence.looks.shape[:2]):
        name, weight = sentence.top(other)
        fits = is_content(name) and name != word and weight >= LARGE_TOO and other not in heads
        rank = other[0] == heads[0][0], weight
        if fits and sentence.clear(other, name) and (best is None or rank > best[0]):
            best = rank, other, name
    return None if best is None else best[1:]


def _causal(sentences: Sequence[Sentence]) -> Iterator[tuple[float, Sentence, Head, str]]:
    for sentence in sentences:
        later = [x for x in _cue(sentence) if min(sentence.words[x]) > sentence.position]
        if not later or not sentence.becomes([{"op": "causal"}]):
            continue
        looks = {x: sentence.looks[:, :, sentence.words[x]].sum(-1) for x in sorted(later)}
        word = max(looks, key=lambda x: looks[x].max())
        layer, head = np.unravel_index(int(looks[word].argmax()), looks[word].shape)
        first = sentence.vocabulary[sentence.guesses([])[0][0]]
        before, after = (sentence.run(edits)[1][first] for edits in ([], [{"op": "causal"}]))
        yield float(np.log(before / after)), sentence, (int(layer), int(head)), word


def _equal(
    sentences: Sequence[Sentence],
) -> Iterator[tuple[tuple[bool, float], Sentence, str, Head, Head]]:
    for sentence in sentences:
        tops = {head: sentence.top(head) for head in np.ndindex(*sentence.looks.shape[:2])}
        large = [x for x, (word, w) in tops.items() if w >= LARGE_TOO and is_content(word)]
        for pair in combinations(large, 2):
            (word, one), (other, two) = (tops[head] for head in pair)
            if word != other or abs(one - two) > ALIKE:
                continue
            removed = [[{"op": "ablate", "layer": layer, "head": h}] for layer, h in pair]
            moved = [sentence.moved(edits) for edits in removed]
            less, more = (pair[k] for k in np.argsort(moved, kind="stable"))
            stays, turns = (removed[k] for k in np.argsort(moved, kind="stable"))
            if max(moved) - min(moved) >= APART:
                rank = _turns(sentence, stays, turns), max(moved) - min(moved)
                yield rank, sentence, word, less, more


def _worth(
    sentences: Sequence[Sentence],
) -> Iterator[tuple[tuple[bool, float], Sentence, str, str]]:
    for sentence in sentences:
        mean = sentence.looks.mean((0, 1))
        once = {word: at[0] for word, at in sentence.words.items() if len(at) == 1}
        for seen, used in permutations(once, 2):
            if used not in _cue(sentence) or mean[once[seen]] < MORE_WEIGHT * mean[once[used]]:
                continue
            stays, turns = sentence.hidden(seen), sentence.hidden(used)
            less, more = sentence.moved(stays), sentence.moved(turns)
            if more >= MORE_MOVED * less and more >= less + APART:
                yield (_turns(sentence, stays, turns), more - less), sentence, seen, used


def _turns(sentence: Sentence, stays: Sequence[Edit], turns: Sequence[Edit]) -> bool:
    """Return whether the first edit keeps the first guess and the second edit changes the guess."""
    [(first, _)], [(still, _)] = sentence.guesses([]), sentence.guesses(stays)
    return first == still and sentence.becomes(turns) is not None
