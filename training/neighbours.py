"""Guess the word in a gap from counts of the words around it.

To learn which words go together, a small network needs far more text than these books. For counts,
one pass over these books is enough. So the encoder learns from the counts. Both the counts and the
starting network give each word a probability. The encoder's target comes from the product of these
two probabilities (`training.objectives.Taught`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from qkv.arrays import Array
from qkv.learn import Words

DISCOUNT = 0.75
FAR = 10  # the maximum distance, in tokens, between two neighbouring words
SKIPS = (-3, -2, -1, 1, 2, 3)
PAIRS = ((-2, -1), (-1, 1), (1, 2))
_BREAK = 3  # zeros between texts: as many as the maximum distance


class Table:
    """The log ratio of each word's probability in a context to its overall frequency.

    Args:
        contexts: (n,) the index of each word's context.
        words: (n,) the words.
        often: (V,) each word's share of all words.

    A context has N different words, and one of them occurs c times. For this word, the ratio is
    `log(1 + (c - D) / (D N often))`, where D is the discount. The ratio is 0 for a word that does
    not occur in the context.

    Source:
        Ney, Essen and Kneser 1994, "On structuring probabilistic dependences in stochastic language
        modelling", section 2, from which the discount comes.
    """

    def __init__(self, contexts: Array, words: Array, often: Array) -> None:
        size = len(often)
        keys, counts = np.unique(contexts.astype(np.int64) * size + words, return_counts=True)
        self.words: Array = keys % size
        keys //= size
        self._contexts, starts = np.unique(keys, return_index=True)
        self._starts = np.append(starts, len(keys))
        types = np.diff(self._starts)
        self._once = 1 / (
            DISCOUNT * types
        )  # the weight of an additional occurrence, before the division by `often`
        self._often = often
        rates = (counts - DISCOUNT) * np.repeat(self._once, types) / often[self.words]
        self.values: Array = np.log1p(rates).astype(np.float32)

    def row(self, context: int, target: int | None = None) -> tuple[Array, Array, float] | None:
        """Return the words that occur in a context, their log ratios, and a term for `target`.

        The term must be added to the log ratio of the word `target`. It removes one occurrence of
        this word, because the counts include the text that is being learned.
        """
        at = int(np.searchsorted(self._contexts, context))
        if at == len(self._contexts) or self._contexts[at] != context:
            return None
        here = slice(self._starts[at], self._starts[at + 1])
        words, values, less = self.words[here], self.values[here], 0.0
        if target is not None:
            place = int(np.searchsorted(words, target))
            if place < len(words) and words[place] == target:
                value = float(values[place])
                rate = np.expm1(value) - self._once[at] / self._often[target]
                less = float(np.log1p(max(rate, 0.0))) - value
        return words, values, less


class Neighbours:
    """A log-linear model of a word, given the words before and after this word.

    The logit of a word is a weighted sum of scores. The scores come from the word's frequency, from
    each of the three words on either side, from pairs of these words, and from each content word
    nearby.

    Args:
        texts: the token ids of each text, without special tokens.
        content: (V,) True for content words.

    Attributes:
        weights: (1 + tables,), the weights of `features` in order; all weights are 1 at first.

    Source:
        Klakow 1998, "Log-linear interpolation of language models", from which the weighted sum of
        scores comes.
    """

    def __init__(self, texts: Iterable[Array], content: Array) -> None:
        gap = np.zeros(_BREAK, np.int32)
        flat = np.concatenate([part for text in texts for part in (text, gap)]).astype(np.int32)
        size = len(content)
        counts = np.bincount(flat, minlength=size) + 0.5
        counts[0] = 0.5
        self.often: Array = counts / counts.sum()
        self.common: Array = np.log(self.often).astype(np.float32)
        self.content = content
        self.tables = [
            *(self._of_skip(flat, skip) for skip in SKIPS),
            *(self._of_pair(flat, pair) for pair in PAIRS),
            self._of_far(flat),
        ]
        self.weights: Array = np.ones(1 + len(self.tables), np.float32)

    def _of_skip(self, flat: Array, skip: int) -> Table:
        words, contexts = (flat[-skip:], flat[:skip]) if skip < 0 else (flat[:-skip], flat[skip:])
        text = np.cumsum(flat == 0)
        apart = abs(skip)
        both = (words > 0) & (contexts > 0) & (text[apart:] == text[:-apart])
        return Table(contexts[both], words[both], self.often)

    def _of_pair(self, flat: Array, pair: tuple[int, int]) -> Table:
        first = min(*pair, 0)
        length = len(flat) - (max(*pair, 0) - first)
        word, a, b = (flat[k - first : k - first + length] for k in (0, *pair))
        all_three = (word > 0) & (a > 0) & (b > 0)
        contexts = a[all_three].astype(np.int64) * len(self.often) + b[all_three]
        return Table(contexts, word[all_three], self.often)

    def _of_far(self, flat: Array) -> Table:
        text = np.cumsum(flat == 0)
        is_content = self.content[flat] & (flat > 0)
        found: list[tuple[Array, Array]] = []
        for apart in range(1, FAR + 1):
            both = is_content[apart:] & is_content[:-apart] & (text[apart:] == text[:-apart])
            found.append((flat[:-apart][both], flat[apart:][both]))
        before, behind = (np.concatenate(side) for side in zip(*found, strict=True))
        return Table(np.concatenate([before, behind]), np.concatenate([behind, before]), self.often)

    def _rows(
        self, ids: Sequence[int], at: int, target: int | None
    ) -> Iterator[tuple[int, tuple[Array, Array, float]]]:
        """Yield pairs `(k, row)` for a position; `weights[k]` is the weight of the row's scores."""

        def there(skip: int) -> int:
            return ids[at + skip] if 0 <= at + skip < len(ids) else 0

        size = len(self.often)
        asked: list[tuple[int, int]] = [
            *((k, there(skip)) for k, skip in enumerate(SKIPS)),
            *((len(SKIPS) + k, there(a) * size + there(b)) for k, (a, b) in enumerate(PAIRS)),
        ]
        for place in range(max(at - FAR, 0), min(at + FAR + 1, len(ids))):
            if place != at and self.content[ids[place]]:
                asked.append((len(self.tables) - 1, ids[place]))
        for number, context in asked:
            row = self.tables[number].row(context, target) if context else None
            if row is not None:
                yield number + 1, row

    def features(self, ids: Sequence[int], at: int) -> Array:
        """Return the terms of the sum before they are weighted, (1 + tables, V)."""
        found = np.zeros((1 + len(self.tables), len(self.often)), np.float32)
        found[0] = self.common
        for number, (words, values, _) in self._rows(ids, at, None):
            found[number, words] += values
        return found

    def logits(self, batch: Words) -> Array:
        """Return logits (n, V) for the targets of a batch, from counts that exclude the targets."""
        found = np.tile(self.weights[0] * self.common, (len(batch.at), 1))
        ids, of_text = batch.ids.tolist(), np.searchsorted(batch.cu_lengths, batch.at, "right") - 1
        cu_lengths, targets = batch.cu_lengths.tolist(), batch.targets.tolist()
        for logits, at, number, target in zip(
            found, batch.at.tolist(), of_text.tolist(), targets, strict=True
        ):
            begin, end = cu_lengths[number], cu_lengths[number + 1]
            for which, (words, values, less) in self._rows(ids[begin:end], at - begin, target):
                logits[words] += self.weights[which] * values
                logits[target] += self.weights[which] * less
        return found

    def probabilities(self, texts: Sequence[Array], places: Sequence[int]) -> Array:
        """Return the probability (n,) of words at positions, from counts that exclude these words.

        Content words that are visible in the text have probability 0.
        """
        found = np.empty(len(texts), np.float32)
        for number, (ids, place) in enumerate(zip(texts, places, strict=True)):
            target = ids[place : place + 1]
            gap = Words(ids, np.array([0, len(ids)]), np.array([place]), target)
            [logits] = self.logits(gap)
            others = np.delete(ids, place)
            logits[others[self.content[others]]] = -np.inf
            shares = np.exp(logits - logits.max())
            found[number] = shares[target[0]] / shares.sum()
        return found


def fitted(features: Array, targets: Array, *, steps: int = 25, rate: float = 0.05) -> Array:
    """Fit weights so that the weighted sum of the features predicts the targets best.

    Args:
        features: (n, F, V).
        targets: (n,).
        steps: the number of Adam steps.
        rate: the learning rate of the first step.

    Returns:
        (F,) float32.
    """
    weights = np.full(features.shape[1], 0.3, np.float32)
    mean, square = np.zeros((2, len(weights)))
    for step in range(1, steps + 1):
        grad = np.zeros(len(weights))
        for one, target in zip(features, targets, strict=True):
            values = one.astype(np.float32)
            logits = weights @ values
            shares = np.exp(logits - logits.max())
            grad += values @ (shares / shares.sum()) - values[:, target]
        grad /= len(targets)
        mean, square = 0.8 * mean + 0.2 * grad, 0.95 * square + 0.05 * grad**2
        move = mean / (1 - 0.8**step) / np.sqrt(square / (1 - 0.95**step) + 1e-12)
        weights -= (rate * (1 - (step - 1) / steps) * move).astype(np.float32)
    return weights
