"""What the model learns beside masked words: a word's sense, from sentences that use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.layers.packed import starts_of
from qkv.learn import Masked, Words, words_loss
from qkv.learn.network import Network
from qkv.ops.loss import cross_entropy
from qkv.see.analysis.words import is_function_word
from qkv.text import Tokenizer
from qkv.trace.recorder import places
from training.neighbours import Neighbours
from training.wordnet import WordNet

HIDDEN_OF_ENTRIES = 0.5  # of a definition behind its word


class Stateless:
    """An objective that has no state of its own: what it draws is the generator's."""

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class Unseen(Masked):
    """Name the words that were hidden, and leave those alone that are in sight.

    Where all that is alike is hidden together, no word that is in sight is hidden too; a model
    that goes by what a text is about names one all the same. So while it learns something is added
    to the logits of the content words in sight, which it then gives that much less by itself.

    Args:
        source, tokenizer, named: as for `Masked`.
        in_sight: what is added.
        marks: whether punctuation is hidden too; without, only words are ever named.
        little: how likely a function word is chosen before a content word, as a share of how likely
            it is the other way round: what a word is about tells more of content words.
    """

    def __init__(
        self,
        source: Any,
        tokenizer: Tokenizer,
        *,
        in_sight: float,
        marks: bool = True,
        little: float = 1.0,
        **named: Any,
    ) -> None:
        super().__init__(source, tokenizer, **named)
        if not marks:
            for name, index in tokenizer.vocabulary.items():
                self._special[index] |= not any(letter.isalnum() for letter in name)
        self.in_sight, self.little = in_sight, little
        self.content = np.zeros(len(tokenizer), bool)
        self.content[
            [
                index
                for name, index in tokenizer.vocabulary.items()
                if name.isalpha() and not is_function_word(name)
            ]
        ] = True

    def _order(self, words: Array, ids: Array, rng: np.random.Generator) -> Array:
        """The numbers of words in the order in which they are chosen: content words sooner."""
        if self.little == 1:
            return super()._order(words, ids, rng)
        weights = np.full(int(words.max()) + 1, self.little)
        weights[words[self.content[ids]]] = 1.0
        order: Array = np.argsort(rng.exponential(size=len(weights)) / weights)
        return order

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """The mean loss of a batch and its tokens; the gradient is added to the network's."""
        return words_loss(network, batch, (*self.seen(batch), self.in_sight)), len(batch.ids)

    def seen(self, batch: Words) -> tuple[Array, Array]:
        """(m,) numbers of targets, and (m,) content words that are in sight in their texts."""
        of_text = np.searchsorted(batch.at, batch.cu_lengths)
        numbers, tokens = [], []
        for (begin, end), (first, last) in zip(
            pairwise(batch.cu_lengths), pairwise(of_text), strict=True
        ):
            seen = np.unique(batch.ids[begin:end])
            seen = seen[self.content[seen]]
            number, token = (
                np.repeat(np.arange(first, last), len(seen)),
                np.tile(seen, last - first),
            )
            own = token == batch.targets[number]
            numbers.append(number[~own])
            tokens.append(token[~own])
        return np.concatenate(numbers), np.concatenate(tokens)


class Taught:
    """Name the words that were hidden as a teacher does, which guesses with counts.

    The teacher's guess is the product of what a model before and counts say. Of the words that are
    to be given, it is one part and the hidden word the other. It gives no content word in sight.

    Args:
        objective: says which words are hidden.
        before: the model, which stays as it is.
        weight: what its logits are multiplied by.
        neighbours: the counts.
        told: the hidden word's part.

    Source:
        Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", section 2.
    """

    name = Unseen.name

    def __init__(
        self,
        objective: Unseen,
        before: Network,
        weight: float,
        neighbours: Neighbours,
        told: float,
    ) -> None:
        self.objective, self.before, self.weight = objective, before, weight
        self.neighbours, self.told = neighbours, told
        self.batch, self.state, self.restore = objective.batch, objective.state, objective.restore

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """The mean loss of a batch and its tokens; the gradient is added to the network's."""
        prior = (*self.objective.seen(batch), self.objective.in_sight)
        soft = self._given(batch, prior[0], prior[1])
        return words_loss(network, batch, prior, soft), len(batch.ids)

    def _given(self, batch: Words, numbers: Array, tokens: Array) -> Array:
        """(n, V) the probabilities to be learned."""
        given = self.neighbours.logits(batch)
        given += self.weight * logits_of(self.before, batch)
        given[numbers, tokens] = -np.inf
        given -= given.max(-1, keepdims=True)
        np.exp(given, out=given)
        given *= (1 - self.told) / given.sum(-1, keepdims=True)
        given[np.arange(len(given)), batch.targets] += self.told
        return given


class Guessed(Stateless):
    """Name the one hidden word of a text, where that is a word that can be guessed.

    Most words that are hidden at random cannot: a name, a number, one adjective of many. Somebody
    who leaves a gap for others to fill does not choose those.

    Args:
        gaps: texts with their special tokens, and the place of the word in each.
        objective: says how large a step is, and what is added to words in sight.
    """

    name = "guessed"

    def __init__(self, gaps: Sequence[tuple[Array, int]], objective: Unseen) -> None:
        self.gaps, self.objective = gaps, objective

    def batch(self, step: int, rng: np.random.Generator) -> Words:
        """Texts drawn at random, each with its gap."""
        texts: list[Array] = []
        at: list[int] = []
        count = 0
        while count < self.objective.tokens_per_step:
            ids, place = self.gaps[int(rng.integers(len(self.gaps)))]
            texts.append(ids)
            at.append(count + place)
            count += len(ids)
        ids = np.concatenate(texts).astype(np.int64)
        targets = ids[at]
        ids[at] = self.objective.mask
        return Words(ids, starts_of(map(len, texts)), np.array(at), targets)

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """The mean loss of a batch and its tokens; the gradient is added to the network's."""
        return self.objective(network, batch)


def logits_of(network: Network, batch: Words) -> Array:
    """(n, V) at the targets of a batch."""
    head = network.transformer.head
    assert head is not None
    _, place = places(batch.cu_lengths)
    rows, _ = network.transformer.training_forward(batch.ids, place, batch.cu_lengths)
    logits, _ = head.training_forward(rows[batch.at], np.array([0, len(batch.at)]))
    return logits


@dataclass(frozen=True)
class Sentence:
    """A use as token ids.

    Attributes:
        ids: (T,) of the sentence, special tokens included.
        begin: the first token of the word.
        end: the one behind its last.
        synset: the sense.
        wrong: the word's other senses, as this part of speech.
        synonyms: words that may stand in its place: their ids, and their own other senses.
    """

    ids: Array
    begin: int
    end: int
    synset: int
    wrong: tuple[int, ...]
    synonyms: tuple[tuple[Array, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Uses:
    """What one step learns from: sentences, and behind them definitions, laid end to end.

    Attributes:
        ids: (total,) tokens.
        cu_lengths: (B + 1,) where each text begins and the last one ends.
        spans: (B, 2) the rows whose mean is a text's vector: a sentence's word, or all of a
            definition.
        targets: (U,) for each of the U sentences which of the definitions is right.
        priors: (U, M) for each of them how much likelier each of the M definitions is drawn as the
            right one than its word's most common sense, as a logarithm; 0 for those of other words.
    """

    ids: Array
    cu_lengths: Array
    spans: Array
    targets: Array
    priors: Array


class Senses(Stateless):
    """Pull a word in its sentence towards the definition of its sense, away from all others.

    Most senses have no sentence to learn from, and their definitions would be met as wrong ones
    alone. So some of the draws are of a word before its own definition, half of which is hidden;
    and how often each sense of a word is drawn is added to its logits, so that the vectors need
    not learn it.

    Args:
        sentences: the uses to draw from.
        definitions: token ids of the definition of each synset that they name.
        entries: words before their definitions, to draw from in their place.
        mask: the id that hides a token.
        uses: U, how many sentences a step has.
        wrong: how many other senses of each word have their definitions there too, at most.
        temperature: what cosines are divided by.
        replaced: in this share of the draws a synonym stands in the word's place, if there is one.
        hidden: the share of a sentence's other tokens that is hidden.
        defined: the share of the draws that are of entries.
        prior: how many times the logarithm of how often a sense is drawn is added; above 1 senses
            that are seldom drawn are drawn to their words more strongly.
        used: how likely another use of a sense stands in place of its definition, if there is one.
        name: what the loss is called.

    Source:
        van den Oord et al. 2018, "Representation Learning with Contrastive Predictive Coding",
        equation 4; what is added: Menon et al. 2021, "Long-tail learning via logit adjustment",
        equation 10.
    """

    def __init__(
        self,
        sentences: Sequence[Sentence],
        definitions: dict[int, Array],
        entries: Sequence[Sentence] = (),
        *,
        mask: int,
        uses: int = 64,
        wrong: int = 3,
        temperature: float = 0.07,
        replaced: float = 0.2,
        hidden: float = 0.15,
        defined: float = 0.3,
        prior: float = 1.0,
        used: float = 0.0,
        name: str = "senses",
    ) -> None:
        if not sentences:
            raise ValueError("Senses: there is no sentence: give at least one")
        self.sentences, self.definitions, self.entries = sentences, definitions, entries
        self.mask, self.uses, self.wrong = mask, uses, wrong
        self.temperature, self.replaced = temperature, replaced
        self.hidden, self.defined = hidden, defined if entries else 0.0
        self.prior, self.used, self.name = prior, used, name
        self._uses_of: dict[int, list[Sentence]] = {}
        for one in sentences:
            self._uses_of.setdefault(one.synset, []).append(one)
        self._rates: dict[int, float] = {}  # how often a draw has this sense
        for source, share in ((sentences, 1 - self.defined), (entries, self.defined)):
            for one in source:
                self._rates[one.synset] = self._rates.get(one.synset, 0.0) + share / len(source)

    @property
    def settings(self) -> dict[str, Any]:
        """What makes it another objective than one that is like it."""
        names = ("uses", "wrong", "temperature", "replaced", "hidden", "defined", "prior", "used")
        return {name: getattr(self, name) for name in names}

    def batch(self, step: int, rng: np.random.Generator) -> Uses:
        """Some sentences, and the definitions of their words' senses, each once."""
        texts: list[Array] = []
        spans: list[tuple[int, int]] = []
        columns: dict[int, int] = {}  # synset -> its place among the definitions
        targets: list[int] = []
        own: list[list[int]] = []  # the senses of each word
        drawn: list[Sentence] = []
        for is_entry in rng.random(self.uses) < self.defined:
            source = self.entries if is_entry else self.sentences
            one = source[int(rng.integers(len(source)))]
            drawn.append(one)
            ids, end, wrong = one.ids, one.end, one.wrong
            if rng.random() < self.replaced and one.synonyms:
                word, wrong = one.synonyms[rng.integers(len(one.synonyms))]
                ids = np.concatenate([ids[: one.begin], word, ids[one.end :]])
                end = one.begin + len(word)
            hidden = rng.random(len(ids)) < (HIDDEN_OF_ENTRIES if is_entry else self.hidden)
            hidden[[0, *range(one.begin, end), -1]] = False  # the word, and special tokens
            texts.append(np.where(hidden, self.mask, ids))
            spans.append((one.begin, end))
            targets.append(columns.setdefault(one.synset, len(columns)))
            others = rng.permutation(wrong)[: self.wrong].tolist()
            for other in others:
                columns.setdefault(other, len(columns))
            own.append([one.synset, *others])
        for synset in columns:
            text, span = self._meaning(synset, drawn, rng)
            texts.append(text)
            spans.append(span)
        starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
        return Uses(
            np.concatenate(texts).astype(np.int64),
            starts,
            np.array(spans, np.int64) + starts[:-1, None],
            np.array(targets, np.int64),
            self._priors(own, columns),
        )

    def _meaning(
        self, synset: int, drawn: Sequence[Sentence], rng: np.random.Generator
    ) -> tuple[Array, tuple[int, int]]:
        """A text that has a sense, and where: its definition, or a use that is not drawn."""
        if self.used and rng.random() < self.used:
            others = [
                one for one in self._uses_of.get(synset, []) if all(one is not it for it in drawn)
            ]
            if others:
                one = others[int(rng.integers(len(others)))]
                return one.ids, (one.begin, one.end)
        return self.definitions[synset], (0, len(self.definitions[synset]))

    def _priors(self, own: Sequence[Sequence[int]], columns: dict[int, int]) -> Array:
        priors = np.zeros((len(own), len(columns)), np.float32)
        least = min(self._rates.values())
        for row, senses in zip(priors, own, strict=True):
            rates = np.log([self._rates.get(sense, least) for sense in senses])
            row[[columns[sense] for sense in senses]] = self.prior * (rates - rates.max())
        return priors

    def __call__(self, network: Network, batch: Uses) -> tuple[float, int]:
        """The mean loss of a batch and its tokens; the gradient is added to the network's."""
        lengths = np.diff(batch.cu_lengths)
        places = np.arange(len(batch.ids)) - np.repeat(batch.cu_lengths[:-1], lengths)
        rows, saved = network.transformer.training_forward(  # (total, D)
            batch.ids, places, batch.cu_lengths
        )
        loss, grad = nearest(rows, batch.spans, batch.targets, self.temperature, batch.priors)
        network.add(network.transformer.backward(grad, saved))
        return loss, len(batch.ids)


def nearest(
    rows: Array, spans: Array, targets: Array, temperature: float, priors: Array | float = 0.0
) -> tuple[float, Array]:
    """How far words are from having their own definition as the nearest, and the gradient.

    With u a word's vector, d the definitions' and t the right one, the mean over words of
    `-log(softmax(cos(u, d) / temperature + prior)[t])`.

    Args:
        rows: (total, D), the vectors of all tokens.
        spans: (U + M, 2), the rows of each of U words and M definitions, whose mean is its vector.
        targets: (U,) the right definition of each word.
        temperature: what cosines are divided by.
        priors: (U, M), what is added to that.

    Returns:
        The loss, and its gradient of the shape of `rows`.

    >>> rows = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    >>> loss, grad = nearest(rows, np.array([[0, 1], [1, 2], [2, 3]]), np.array([0]), 1.0)
    >>> round(loss, 3), grad.round(3).tolist()
    (0.313, [[0.0, 0.134], [0.0, 0.0], [0.09, 0.0]])
    """
    counts = np.diff(spans, axis=1).astype(rows.dtype)  # (U + M, 1)
    means = np.stack([rows[begin:end].sum(0) for begin, end in spans]) / counts
    lengths = np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    unit = means / lengths
    words, definitions = unit[: len(targets)], unit[len(targets) :]
    logits = words @ definitions.T / temperature + priors  # (U, M)
    losses, of_logits = cross_entropy(logits, targets)
    of_logits /= temperature * len(targets)
    back = np.concatenate([of_logits @ definitions, of_logits.T @ words])
    back -= unit * (back * unit).sum(1, keepdims=True)  # a vector's length changes no cosine
    back /= lengths * counts
    grad = np.zeros_like(rows)
    for (begin, end), row in zip(spans, back, strict=True):
        grad[begin:end] += row
    return float(losses.mean(dtype=np.float64)), grad


def sentences(
    wordnet: WordNet, tokenizer: Tokenizer, limit: int
) -> tuple[list[Sentence], dict[int, Array]]:
    """All uses that may be learned from, as token ids, and the definitions that they need.

    A use whose word stands behind the limit is left out, a definition is cut there. A word has
    synonyms where it stands as it is spelled: they are the other words of its synset, of one word
    each.
    """
    uses = list(wordnet.uses())
    before, after = around(tokenizer)
    single = sorted(
        {word.lower() for use in uses for word in wordnet.synsets[use.synset].lemmas if _one(word)}
    )
    pieces = dict(zip(single, tokenizer.ids_batch(single), strict=True))
    found: list[Sentence] = []
    needed: set[int] = set()
    texts = tokenizer.tokenize_batch([use.sentence for use in uses])
    for use, text in zip(uses, texts, strict=True):
        synset = wordnet.synsets[use.synset]
        at = [k for k, (a, b) in enumerate(text.offsets) if a < use.end and b > use.start]
        if not at or at[-1] >= limit - len(after):
            continue
        plain = use.sentence[use.start : use.end].lower() == use.lemma
        others = [word.lower() for word in synset.lemmas if _one(word)] if plain else []
        one = Sentence(
            cut(text.ids, limit, after),
            at[0],
            at[-1] + 1,
            use.synset,
            _others(wordnet, use.lemma, use.synset),
            tuple(
                (pieces[word], _others(wordnet, word, use.synset))
                for word in dict.fromkeys(others)
                if word != use.lemma
                and len(text) + len(pieces[word]) <= limit + len(at)  # it still fits
            ),
        )
        found.append(one)
        needed.update((one.synset, *one.wrong), *(wrong for _, wrong in one.synonyms))
    order = sorted(needed)
    ids = tokenizer.ids_batch([wordnet.synsets[number].definition for number in order])
    whole = (np.concatenate([before, one, after]) for one in ids)
    definitions = {number: cut(one, limit, after) for number, one in zip(order, whole, strict=True)}
    return found, definitions


def entries(
    wordnet: WordNet, tokenizer: Tokenizer, limit: int
) -> tuple[list[Sentence], dict[int, Array]]:
    """Each word of several senses before the definition of each, and the definitions.

    The senses are those of one part of speech. An entry that is too long for the limit is cut.
    """
    before, after = around(tokenizer)
    several = {key: senses for key, senses in wordnet.index.items() if len(senses) > 1}
    needed = sorted({number for senses in several.values() for number in senses})
    ids = tokenizer.ids_batch([wordnet.synsets[number].definition for number in needed])
    bare = dict(zip(needed, ids, strict=True))
    words = tokenizer.ids_batch([f"{word}:" for word, _ in several])
    found = []
    for senses, word in zip(several.values(), words, strict=True):
        for number in senses:
            whole = np.concatenate([before, word, bare[number], after])
            end = len(before) + len(word) - 1  # the colon is no part of it
            others = tuple(other for other in senses if other != number)
            found.append(Sentence(cut(whole, limit, after), len(before), end, number, others, ()))
    definitions = {
        number: cut(np.concatenate([before, one, after]), limit, after)
        for number, one in bare.items()
    }
    return found, definitions


def pieces_of(documents: Iterable[str], tokenizer: Tokenizer, limit: int) -> list[Array]:
    """Documents as token ids with the special ones; one that is too long in several pieces."""
    before, after = around(tokenizer)
    most = limit - len(before) - len(after)
    return [
        np.concatenate([before, ids[begin : begin + most], after])
        for ids in tokenizer.ids_batch(documents)
        for begin in range(0, len(ids), most)
    ]


def around(tokenizer: Tokenizer) -> tuple[Array, Array]:
    """The ids that a tokenizer puts before a text, and those behind it."""
    about = tokenizer.tokenize("a")
    real = [k for k, special in enumerate(about.special) if not special]
    return about.ids[: real[0]].astype(np.int32), about.ids[real[-1] + 1 :].astype(np.int32)


def cut(ids: Array, limit: int, after: Array) -> Array:
    """A text's first tokens, and those that end it.

    >>> cut(np.array([2, 7, 8, 9, 3]), 4, np.array([3]))
    array([2, 7, 8, 3], dtype=int32)
    """
    if len(ids) > limit:
        ids = np.concatenate([ids[: limit - len(after)], after])
    return ids.astype(np.int32)


def _others(wordnet: WordNet, lemma: str, synset: int) -> tuple[int, ...]:
    part = wordnet.synsets[synset].part
    return tuple(number for number in wordnet.senses(lemma, part) if number != synset)


def _one(word: str) -> bool:
    return word.isalpha()
