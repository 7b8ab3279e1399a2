"""What the words around a gap say about the word in it, by counts alone.

A small network needs far more text than these books to learn which words go together; counts know
it after one reading. So counts teach it: the product of their guess and of what the network said
before is what the encoder learns to give (`training.objectives.Taught`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from qkv.arrays import Array
from qkv.learn import Words

DISCOUNT = 0.75
FAR = 10  # tokens between two words that are counted as met
SKIPS = (-3, -2, -1, 1, 2, 3)
PAIRS = ((-2, -1), (-1, 1), (1, 2))
_BREAK = 3  # zeros between texts, as many as the farthest skip


class Table:
    """How much likelier each word is behind a context than it is anywhere, as a logarithm.

    Args:
        contexts: (n,) a number of what stands around each word.
        words: (n,) the words.
        often: (V,) the share of all words that each has.

    With N of a context's n words being different ones, and c the times that a word is met, it is
    `log(1 + (c - D) / (D N often))`: 0 for a word that is not met there.

    Source:
        Ney, Essen and Kneser 1994, "On structuring probabilistic dependences in stochastic language
        modelling", section 2, for the discount.
    """

    def __init__(self, contexts: Array, words: Array, often: Array) -> None:
        size = len(often)
        keys, counts = np.unique(contexts.astype(np.int64) * size + words, return_counts=True)
        self.words: Array = keys % size
        keys //= size
        self._contexts, starts = np.unique(keys, return_index=True)
        self._starts = np.append(starts, len(keys))
        types = np.diff(self._starts)
        self._once = 1 / (DISCOUNT * types)  # what once more weighs, but for `often`
        self._often = often
        rates = (counts - DISCOUNT) * np.repeat(self._once, types) / often[self.words]
        self.values: Array = np.log1p(rates).astype(np.float32)

    def row(self, context: int, target: int | None = None) -> tuple[Array, Array, float] | None:
        """The words that are met there, their values, and what to add to the target's.

        That makes it what it were if the target had been met once less: where a text teaches that
        was counted too.
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
    """A log-linear model of a word from those around it.

    It adds up, each with a weight: how common a word is, what each of the three words on either
    side says about it, what two of them say together, and what each content word near it says.

    Args:
        texts: token ids without special tokens, each text by itself.
        content: (V,) which tokens are content words.

    Attributes:
        weights: (1 + tables,), of `features` in their order; ones, until they are set.

    Source:
        Klakow 1998, "Log-linear interpolation of language models", for the sum.
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
        """What says something of the word at a place of a text, by the number of its weight."""

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
        """(1 + tables, V): what is added up, before weights."""
        found = np.zeros((1 + len(self.tables), len(self.often)), np.float32)
        found[0] = self.common
        for number, (words, values, _) in self._rows(ids, at, None):
            found[number, words] += values
        return found

    def logits(self, batch: Words) -> Array:
        """(n, V) for each target of a batch, as if it had not been counted in its text."""
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

    def chances(self, texts: Sequence[Array], places: Sequence[int]) -> Array:
        """(n,) how likely the word at a place of each text is, as if it had not been counted there.

        Content words that are in sight cannot be it.
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
    """The weights with which sums of features name the targets best.

    Args:
        features: (n, F, V).
        targets: (n,).
        steps: of Adam.
        rate: of the first.

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
