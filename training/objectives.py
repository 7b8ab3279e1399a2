"""Training objectives: masked words, guesses of a teacher, gaps, and senses of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.layers.base import starts_of
from qkv.learn import Masked, Words, words_loss
from qkv.learn._network import Network
from qkv.models.network.batch import PackedIds
from qkv.ops._training import cross_entropy
from qkv.see.analysis._words import is_function_word
from qkv.text import Tokenizer
from qkv.trace.recorder import texts_and_positions
from training.neighbours import Neighbours
from training.wordnet import WordNet

# If a text is a word and its definition, this share of the definition's tokens is masked.
HIDDEN_OF_ENTRIES = 0.5


class Stateless:
    """An objective without a state: its random draws depend only on the generator."""

    def state(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class Unseen(Masked):
    """Predict masked words, and do not repeat visible content words.

    If all occurrences of a word are masked together, a visible word of the text is never the right
    guess. The model still predicts words that are visible elsewhere in the text, because they fit
    its topic. So training adds a constant to the logits of visible content words. To compensate,
    the model learns to make these logits smaller.

    Args:
        source, tokenizer, named: as for `Masked`.
        in_sight: the constant that is added to the logits of visible content words.
        marks: whether to mask punctuation as well as words.
        little: the odds of masking a function word instead of a content word. Content words are
            masked more often, because they depend more on their context.
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
        """Shuffle the indices of all words, so that content words tend to come first.

        `batch` masks the first words of this order.
        """
        if self.little == 1:
            return super()._order(words, ids, rng)
        weights = np.full(int(words.max()) + 1, self.little)
        weights[words[self.content[ids]]] = 1.0
        order: Array = np.argsort(rng.exponential(size=len(weights)) / weights)
        return order

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""
        return words_loss(network, batch, (*self.seen(batch), self.in_sight)), len(batch.ids)

    def seen(self, batch: Words) -> tuple[Array, Array]:
        """Pair each target with each visible content word of its text; return two arrays (m,).

        The first array contains the indices of the targets, and the second array contains the ids
        of the words.
        """
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
    """Learn a teacher's guesses for masked words.

    The teacher's guess is the product of a model's probabilities and the probabilities that
    `training.neighbours` computes from counts of neighbouring words. Visible content words get
    probability 0. The target distribution is a mixture of the teacher's guess and the masked word.

    Args:
        objective: the objective that chooses the masked words.
        before: the teacher's model, which training does not change.
        weight: the factor by which the logits of this model are multiplied.
        neighbours: the counts.
        told: the share of the masked word in the mixture.

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
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""
        prior = (*self.objective.seen(batch), self.objective.in_sight)
        soft = self._given(batch, prior[0], prior[1])
        return words_loss(network, batch, prior, soft), len(batch.ids)

    def _given(self, batch: Words, numbers: Array, tokens: Array) -> Array:
        """Return the target probabilities (n, V)."""
        given = self.neighbours.logits(batch)
        given += self.weight * logits_of(self.before, batch)
        given[numbers, tokens] = -np.inf
        given -= given.max(-1, keepdims=True)
        np.exp(given, out=given)
        given *= (1 - self.told) / given.sum(-1, keepdims=True)
        given[np.arange(len(given)), batch.targets] += self.told
        return given


class Guessed(Stateless):
    """Predict one masked word in each text; only words that are easy to guess are masked.

    A word is easy to guess if counts of neighbouring words (`training.neighbours`) predict it. A
    word that is chosen at random can rarely be guessed: it may be a name, a number or one of many
    possible adjectives. A person who writes a gap for others to fill does not choose such a word.

    Args:
        gaps: texts with their special tokens, each with the position of the masked word.
        objective: the objective that provides the loss, the tokens per step and the mask token.
    """

    name = "guessed"

    def __init__(self, gaps: Sequence[tuple[Array, int]], objective: Unseen) -> None:
        self.gaps, self.objective = gaps, objective

    def batch(self, step: int, rng: np.random.Generator) -> Words:
        """Draw texts at random, each with its gap."""
        texts: list[Array] = []
        at: list[int] = []
        count = 0
        while count < self.objective.tokens_per_step:
            ids, position = self.gaps[int(rng.integers(len(self.gaps)))]
            texts.append(ids)
            at.append(count + position)
            count += len(ids)
        ids = np.concatenate(texts).astype(np.int64)
        targets = ids[at]
        ids[at] = self.objective.mask
        return Words(ids, starts_of(map(len, texts)), np.array(at), targets)

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""
        return self.objective(network, batch)


def logits_of(network: Network, batch: Words) -> Array:
    """Return the logits (n, V) at the targets of a batch."""
    head = network.transformer.head
    assert head is not None
    _, position = texts_and_positions(batch.cu_lengths)
    packed = PackedIds(batch.ids, batch.cu_lengths, position)
    rows, _ = network.transformer.run(packed)
    logits, _ = head.training_forward(rows[batch.at], np.array([0, len(batch.at)]))
    return logits


@dataclass(frozen=True)
class Sentence:
    """A use of a word in a sentence, as token ids.

    Attributes:
        ids: (T,) the tokens of the sentence, including special tokens.
        begin: the index of the word's first token.
        end: the index after the word's last token.
        synset: the sense.
        wrong: the word's other senses of the same part of speech.
        synonyms: for each synonym that can replace the word, its token ids and its other senses.
    """

    ids: Array
    begin: int
    end: int
    synset: int
    wrong: tuple[int, ...]
    synonyms: tuple[tuple[Array, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Uses:
    """The batch of one step: U sentences, then M definitions, end to end.

    Attributes:
        ids: (total,) tokens.
        cu_lengths: (B + 1,) the index of each text's first row, then the number of rows.
        spans: (B, 2) for each text, a slice `begin:end` of the rows. The mean of the slice is the
            text's vector. The slice of a sentence covers the word whose sense is trained. The
            slice of a definition covers the whole definition.
        targets: (U,) the index of the right definition of each sentence.
        priors: (U, M), a number for each pair of a sentence and a definition. Training adds this
            number to the logit of the pair. If the definition defines a sense of the sentence's
            word, the number is `prior * log(a / b)`; otherwise, it is 0. Here `a` is the rate at
            which `Senses` draws this sense, and `b` is the highest rate among the senses of the
            word in the batch.
    """

    ids: Array
    cu_lengths: Array
    spans: Array
    targets: Array
    priors: Array


class Senses(Stateless):
    """Pull a word's vector towards the definition of its sense, and away from other definitions.

    Most senses have no example sentence. If each step drew only example sentences, the definition
    of a sense without examples could be a wrong answer, but never the right answer. Therefore some
    draws consist of a word and its own definition, with half of the definition masked. Training
    adds the log frequency of each drawn sense to the logits, so that the vectors need not learn
    this frequency.

    Args:
        sentences: the uses from which a step draws.
        definitions: token ids of the definition of each synset in `sentences` and `entries`.
        entries: texts that consist of a word and its definition. Some draws use such a text instead
            of a sentence.
        mask: the id of the mask token.
        uses: U, the number of sentences in a step.
        wrong: the maximum number of wrong definitions for each word. A wrong definition defines
            another sense of the word.
        temperature: the divisor of the cosines.
        replaced: the share of the draws in which a synonym replaces the word, if it has a synonym.
        hidden: the probability of masking a token of a sentence. The word itself and the special
            tokens are never masked.
        defined: the share of the draws that come from `entries`.
        prior: the factor by which the log frequency of a sense is multiplied. A factor above 1
            pulls rarely drawn senses more strongly towards their words.
        used: the probability that a definition is replaced by another sentence that uses a word in
            the defined sense. If there is no such sentence, the definition stays.
        name: the name of the loss.

    Source:
        van den Oord et al. 2018, "Representation Learning with Contrastive Predictive Coding",
        equation 4, for the loss; Menon et al. 2021, "Long-tail learning via logit adjustment",
        equation 10, for the added log frequency.
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
            raise ValueError("Senses: the list of sentences is empty; pass at least one")
        self.sentences, self.definitions, self.entries = sentences, definitions, entries
        self.mask, self.uses, self.wrong = mask, uses, wrong
        self.temperature, self.replaced = temperature, replaced
        self.hidden, self.defined = hidden, defined if entries else 0.0
        self.prior, self.used, self.name = prior, used, name
        self._uses_of: dict[int, list[Sentence]] = {}
        for one in sentences:
            self._uses_of.setdefault(one.synset, []).append(one)
        self._rates: dict[int, float] = {}  # the frequency of each sense among the draws
        for source, share in ((sentences, 1 - self.defined), (entries, self.defined)):
            for one in source:
                self._rates[one.synset] = self._rates.get(one.synset, 0.0) + share / len(source)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of this objective, which a resumed run must repeat."""
        names = ("uses", "wrong", "temperature", "replaced", "hidden", "defined", "prior", "used")
        return {name: getattr(self, name) for name in names}

    def batch(self, step: int, rng: np.random.Generator) -> Uses:
        """Draw sentences and the definitions of their words' senses, each definition once."""
        texts: list[Array] = []
        spans: list[tuple[int, int]] = []
        columns: dict[int, int] = {}  # synset -> index of its definition
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
            # Never mask the tokens of the word whose sense is trained, nor the special tokens.
            hidden[[0, *range(one.begin, end), -1]] = False
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
        """Return a text for the sense, and the span of tokens whose vectors are averaged.

        The text is the definition of the sense, or another sentence that uses the sense.
        """
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
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""
        lengths = np.diff(batch.cu_lengths)
        positions = np.arange(len(batch.ids)) - np.repeat(batch.cu_lengths[:-1], lengths)
        packed = PackedIds(batch.ids, batch.cu_lengths, positions)
        rows, saved = network.transformer.run(packed, save=True)  # (total, D)
        loss, grad = nearest(rows, batch.spans, batch.targets, self.temperature, batch.priors)
        network.add(network.transformer.backward(grad, saved))
        return loss, len(batch.ids)


def nearest(
    rows: Array, spans: Array, targets: Array, temperature: float, priors: Array | float = 0.0
) -> tuple[float, Array]:
    """Compute a contrastive loss between words and their definitions, and its gradient.

    The loss is the mean over words of `-log(softmax(cos(u, d) / temperature + prior)[t])`. Here u
    is the vector of the word, d are the vectors of the definitions, and t is the index of the right
    definition.

    Args:
        rows: (total, D), the vectors of all tokens.
        spans: (U + M, 2), for each of U words and M definitions, a slice `begin:end` of `rows`. The
            mean of the slice is the vector of the word or definition.
        targets: (U,) the right definition of each word.
        temperature: the divisor of the cosines.
        priors: (U, M), numbers that are added to the cosines after the division by the temperature.

    Returns:
        The loss, and its gradient with the shape of `rows`.

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
    back -= unit * (back * unit).sum(
        1, keepdims=True
    )  # the length of a vector does not change cosines
    back /= lengths * counts
    grad = np.zeros_like(rows)
    for (begin, end), row in zip(spans, back, strict=True):
        grad[begin:end] += row
    return float(losses.mean(dtype=np.float64)), grad


def sentences(
    wordnet: WordNet, tokenizer: Tokenizer, limit: int
) -> tuple[list[Sentence], dict[int, Array]]:
    """Return the training sentences that use a word in a known sense, and the senses' definitions.

    All texts are token ids. A text with more than `limit` tokens is cut. A sentence is left out if
    the cut would remove the word whose sense is known. The synonyms of an uninflected word are the
    other words of its synset, without compounds.
    """
    uses = list(wordnet.uses())
    before, after = around(tokenizer)
    single = sorted(
        {word.lower() for use in uses for word in wordnet.synsets[use.synset].lemmas if _one(word)}
    )
    subwords = dict(zip(single, tokenizer.ids_batch(single), strict=True))
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
                (subwords[word], _others(wordnet, word, use.synset))
                for word in dict.fromkeys(others)
                if word != use.lemma
                # the text with the synonym is not too long
                and len(text) + len(subwords[word]) <= limit + len(at)
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
    """Return token ids of each word that has several senses, and of the definition of each sense.

    Only senses of the same part of speech count. An entry with more than `limit` tokens is cut.
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
            end = len(before) + len(word) - 1  # the colon is not part of the word
            others = tuple(other for other in senses if other != number)
            found.append(Sentence(cut(whole, limit, after), len(before), end, number, others, ()))
    definitions = {
        number: cut(np.concatenate([before, one, after]), limit, after)
        for number, one in bare.items()
    }
    return found, definitions


def pieces_of(documents: Iterable[str], tokenizer: Tokenizer, limit: int) -> list[Array]:
    """Return documents as token ids with special tokens; split long documents."""
    before, after = around(tokenizer)
    most = limit - len(before) - len(after)
    return [
        np.concatenate([before, ids[begin : begin + most], after])
        for ids in tokenizer.ids_batch(documents)
        for begin in range(0, len(ids), most)
    ]


def around(tokenizer: Tokenizer) -> tuple[Array, Array]:
    """Return the ids that a tokenizer puts before and after a text."""
    about = tokenizer.tokenize("a")
    real = [k for k, special in enumerate(about.special) if not special]
    return about.ids[: real[0]].astype(np.int32), about.ids[real[-1] + 1 :].astype(np.int32)


def cut(ids: Array, limit: int, after: Array) -> Array:
    """Cut a text to its first tokens and the final special tokens.

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
