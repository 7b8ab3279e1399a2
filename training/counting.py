"""Measure two models that only count words: `python -m training.counting BOOKS`.

The first model guesses the word in a gap, or the next word of a text. It searches the books for the
same context: the words around the gap, or the last words of the text. Its guesses are the words
that occur in the books in this context; words from longer contexts come first. The second model is
an interpolated Kneser-Ney model with n-grams of up to five words. Both models read the training
books of the included models.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.arrays import Array
from training import command
from training.books import read
from training.fits import FIVE, GAPS, OPENINGS, PARTS, Asked, Said, asked, shown

ORDER = 5  # the number of words in the longest n-grams
WIDEST = 8  # the maximum number of context words on each side of the word to guess
LEAST = 2  # the minimum number of occurrences of a known word in the books
END, UNKNOWN = 0, 1  # ids of the end of a sentence, and of an unknown word

TOKEN = re.compile(r"[^\W_]+(?:['-][^\W_]+)*|[.,;:?!\u2014]")


def tokens(text: str) -> list[str]:
    """Split a text into lower-case words and punctuation.

    >>> tokens('"Late!" he said.')
    ['late', '!', 'he', 'said', '.']
    """
    return TOKEN.findall(text.casefold())


def numbered(cut: Iterable[Sequence[str]]) -> dict[str, int]:
    """Number the words of tokenized sentences, as in `Corpus.vocabulary`.

    >>> numbered(map(tokens, ["a cat.", "a dog.", "the cat"]))
    {'': 0, '?': 1, 'a': 2, 'cat': 3, '.': 4}
    """
    counts = Counter(word for one in cut for word in one)
    known = [word for word, count in counts.items() if count >= LEAST and word != "?"]
    return {word: number for number, word in enumerate(["", "?", *known])}


@dataclass(frozen=True)
class Corpus:
    """The words of many sentences in one array.

    Attributes:
        vocabulary: each word's number; `END` and `UNKNOWN` come first.
        words: (N,) int32, with `END` before the first sentence and after each sentence.
    """

    vocabulary: dict[str, int]
    words: Array

    @classmethod
    def of(cls, sentences: Iterable[str], vocabulary: dict[str, int] | None = None) -> Corpus:
        """Make a corpus of sentences; by default, words that occur `LEAST` times or more are known.

        >>> corpus = Corpus.of(["a cat.", "a dog.", "the cat"])
        >>> list(corpus.vocabulary), corpus.words.tolist()
        (['', '?', 'a', 'cat', '.'], [0, 2, 3, 4, 0, 2, 1, 4, 0, 1, 3, 0])
        """
        cut = [tokens(one) for one in sentences]
        if vocabulary is None:
            vocabulary = numbered(cut)
        numbers = [END]
        for one in cut:
            numbers += [vocabulary.get(word, UNKNOWN) for word in one]
            numbers.append(END)
        return cls(vocabulary, np.array(numbers, np.int32))


class LookUp:
    """A look-up that guesses the word in a gap.

    The guesses are words that occur in the same context in a corpus. A context is the words before
    the gap, the words after the gap, or both.

    Words from longer contexts come first; in one context, more frequent words come first.

    >>> corpus = Corpus.of(["he ate a pear", "he ate a pear", "she ate a plum", "she saw a plum"])
    >>> LookUp(corpus).guesses(["she", "ate", "a"], [])
    ['plum', 'pear']
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._names = list(corpus.vocabulary)
        self._order = np.argsort(corpus.words, kind="stable")
        self._starts = np.searchsorted(
            corpus.words[self._order], np.arange(len(corpus.vocabulary) + 1)
        )

    def guesses(self, before: Sequence[str], behind: Sequence[str], count: int = FIVE) -> list[str]:
        """Return words that occur in these contexts; words of longer contexts come first."""
        vocabulary, words = self._corpus.vocabulary, self._corpus.words
        left = [vocabulary.get(word, UNKNOWN) for word in before][::-1][:WIDEST]
        right = [vocabulary.get(word, UNKNOWN) for word in behind][:WIDEST]
        sizes = [(one, two) for one in range(len(left) + 1) for two in range(len(right) + 1)]
        found: list[str] = []
        for near, far in sorted(sizes[1:], key=lambda one: (-sum(one), abs(one[0] - one[1]))):
            if UNKNOWN in left[:near] or UNKNOWN in right[:far]:
                continue
            nearest, offset = (left[0], 1) if near else (right[0], -1)
            positions = self._order[self._starts[nearest] : self._starts[nearest + 1]] + offset
            positions = positions[(positions >= near) & (positions < len(words) - far)]
            for steps, context in ((-1, left[:near]), (1, right[:far])):
                for distance, word in enumerate(context, 1):
                    positions = positions[words[positions + steps * distance] == word]
            standing = Counter(words[positions].tolist())
            for number, _ in sorted(standing.items(), key=lambda one: (-one[1], one[0])):
                name = self._names[number]
                if name[:1].isalpha() and name not in found:
                    found.append(name)
            if len(found) >= count:
                break
        return found[:count]


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length n, and their counts.

    Attributes:
        keys: (G,) the key of each n-gram, sorted; a key is `V * context + word`, where `context`
            and `word` are the numbers of the n-gram's context and last word.
        counts: (G,) the count of each n-gram.
        totals: for each context, the sum of its counts.
        kept: for each context, the probability mass that the discounts pass on to shorter contexts.
        discounts: (3,) the numbers that are subtracted from counts of 1, of 2, and of 3 or more.
    """

    keys: Array
    counts: Array
    totals: Array
    kept: Array
    discounts: Array


class KneserNey:
    """An interpolated Kneser-Ney model with three discounts for each order.

    Source:
        Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling".

    Args:
        corpus: the text to count.
        order: the maximum number of words of an n-gram.
    """

    def __init__(self, corpus: Corpus, order: int = ORDER) -> None:
        self.vocabulary = corpus.vocabulary
        words = corpus.words.astype(np.int64)
        size = len(corpus.vocabulary)
        self._size = size
        # Two arrays for each n. The first array holds the key of each different n-gram, sorted. The
        # second array holds a number for each position at which an n-gram begins: the index of the
        # n-gram's key in the first array.
        grams: list[tuple[Array, Array]] = []
        counted: list[Array] = []
        for n in range(1, order + 1):
            before = grams[-1][1][:-1] if grams else np.zeros(len(words), np.int64)
            keys, firsts, numbers, counts = np.unique(
                before * size + words[n - 1 :],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if grams:  # the count of a shorter n-gram is the number of different words before it
                endings = grams[-1][1][firsts + 1]
                counted[-1] = np.bincount(endings, minlength=len(grams[-1][0]))
            grams.append((keys, numbers))
            counted.append(counts)
        self._orders = [
            _order(keys, counts, size) for (keys, _), counts in zip(grams, counted, strict=True)
        ]

    def probabilities(self, words: Array) -> Array:
        """Return the probability of each word given the words before it, (N,)."""
        words = words.astype(np.int64)
        probability = np.full(len(words), 1 / self._size)
        before = np.zeros(len(words), np.int64)
        known = np.ones(len(words), bool)
        for one in self._orders:
            keys = before * self._size + words
            place = np.minimum(np.searchsorted(one.keys, keys), len(one.keys) - 1)
            is_there = known & (one.keys[place] == keys)
            counts = np.where(is_there, one.counts[place], 0)
            discount = np.where(counts > 0, one.discounts[np.clip(counts, 1, 3) - 1], 0)
            at = np.where(known & (before < len(one.totals)), before, 0)
            total = np.where(known, one.totals[at], 0)
            seen = total > 0
            own = np.divide(counts - discount, total, where=seen, out=np.zeros(len(words)))
            probability = np.where(
                seen, own + np.where(seen, one.kept[at], 1) * probability, probability
            )
            known = np.concatenate([[False], is_there[:-1]])
            before = np.concatenate([[0], place[:-1]])
        return probability


def _order(keys: Array, counts: Array, size: int) -> _Order:
    """Make an `_Order` from n-grams and their counts."""
    before = keys // size
    many = [np.bincount(before, counts == n).astype(float) for n in (1, 2)]
    many.append(np.bincount(before, counts > 2).astype(float))
    n1, n2, n3, n4 = (max(1, int((counts == n).sum())) for n in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2)
    found = [1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3]
    discounts = np.clip(found, 0, [1, 2, 3])
    totals = np.bincount(before, counts).astype(float)
    left = sum(d * n for d, n in zip(discounts, many, strict=True))
    kept = np.divide(left, totals, where=totals > 0, out=np.ones(len(totals)))
    return _Order(keys, counts, totals, kept, discounts)


def perplexity(model: KneserNey, corpus: Corpus) -> float:
    """Return the perplexity per known word of a corpus, except punctuation and sentence ends."""
    names = np.array([name[:1].isalpha() for name in corpus.vocabulary])
    names[UNKNOWN] = False
    probabilities = model.probabilities(corpus.words)[names[corpus.words]]
    return float(np.exp(-np.log(probabilities).mean()))


def beginning(passages: Iterable[Sequence[str]], words: int) -> list[Sequence[str]]:
    """Return a book's first passages, until they have at least `words` words; 0 returns all.

    >>> beginning([["A cat sat."], ["It ate.", "It slept."], ["The end."]], 4)
    [['A cat sat.'], ['It ate.', 'It slept.']]
    """
    found, count = [], 0
    for passage in passages:
        if words and count >= words:
            break
        found.append(passage)
        count += sum(len(sentence.split()) for sentence in passage)
    return found


def looked_up(model: LookUp, questions: Sequence[Asked]) -> list[Said]:
    """Use the look-up to guess the words in gaps, and the next words of texts without a gap."""
    found = []
    for one in questions:
        before, gap, behind = one.text.partition("_")
        right = tokens(behind) + ([] if behind.rstrip()[-1:] in ".?!" else [""]) * bool(gap)
        found.append(Said(one, tuple(model.guesses(["", *tokens(before)], right))))
    return found


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure both models."""
    parser = argparse.ArgumentParser(prog="python -m training.counting", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("books", type=Path, help="a clone of the repository, or an archive")
    parser.add_argument(
        "--choose", action="store_true", help="measure on the part kept for choosing models"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="words of each book on which to measure perplexity"
    )
    given = parser.parse_args(arguments)
    part = PARTS[given.choose]
    books = read(given.books, ["train"])
    corpus = Corpus.of(one for _, runs in books for run in runs for one in run)
    model = LookUp(corpus)
    for name, path in (("gaps", GAPS), ("openings", OPENINGS)):
        say(shown(f"looked up, {name}", looked_up(model, asked(path, part))))
    held_out = Corpus.of(
        (
            one
            for _, runs in read(given.books, [part])
            for run in beginning(runs, given.first)
            for one in run
        ),
        corpus.vocabulary,
    )
    found = perplexity(KneserNey(corpus), held_out)
    say(f"Kneser-Ney of {ORDER} words: perplexity {found:.1f} per known word")


if __name__ == "__main__":
    command(main)
