"""Training objectives, which draw batches and compute a model's loss and its gradient."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np

from qkv._argument_errors import public_method
from qkv.arrays import Array, whole_number
from qkv.layers.base import starts_of
from qkv.learn._corpus import Source
from qkv.learn._network import Network
from qkv.models.network.batch import PackedIds
from qkv.ops import cross_entropy
from qkv.text import Tokenizer
from qkv.text.gaps import MASKS
from qkv.text.tokenized import is_piece, plain_tokens
from qkv.trace.recorder import texts_and_positions

_LOGITS_AT_ONCE = 1 << 23
_MOST_BARREN = 10_000
Prior = tuple[Array, Array, float]  # The argument `prior` of `words_loss`.


class Objective(Protocol):
    """A training objective; several objectives can be combined."""

    @property
    def name(self) -> str:
        """The name of the objective's loss in the metrics."""

    def batch(self, step: int, rng: np.random.Generator) -> Any:
        """Return the batch of a step. Equal generators and states must give equal batches."""

    def __call__(self, network: Network, batch: Any) -> tuple[float, int]:
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""

    def state(self) -> dict[str, Any]:
        """Return the current state in a form that JSON can store."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""


@dataclass(frozen=True)
class Part:
    """An objective, with its weight in the sum of all losses.

    Attributes:
        objective: the objective.
        weight: the factor by which the loss is multiplied, or a function that computes this factor.
            The argument of the function is 0 at the start of the run and 1 at its end.
        begin: when the objective begins, from 0 (the start of the run) to 1 (its end).
    """

    objective: Objective
    weight: float | Callable[[float], float] = 1.0
    begin: float = 0.0

    def at(self, share: float) -> float:
        """Return the weight of the objective; `share` is 0.5 halfway through the run."""
        if share < self.begin:
            return 0.0
        return self.weight(share) if callable(self.weight) else self.weight


@dataclass(frozen=True)
class Words:
    """A batch of packed texts (one row per token), and the tokens to predict at some rows.

    Attributes:
        ids: (total,), the tokens.
        cu_lengths: (B + 1,), the index of each text's first row, followed by the number of rows.
        at: (n,), the rows at which the model should predict a token, without duplicates.
        targets: (n,), the tokens to predict at the rows `at`.
    """

    ids: Array
    cu_lengths: Array
    at: Array
    targets: Array


def words_loss(
    network: Network, batch: Words, prior: Prior | None = None, soft: Array | None = None
) -> float:
    """Return the mean cross-entropy over the targets, and add its gradient to `network.gradient`.

    The LM head runs only on rows that have a target, a few thousand rows at a time.

    Args:
        network: the network to train.
        batch: the texts and targets.
        prior: `(indices, tokens, number)`, with two integer arrays (m,). For example, `([0, 2], [7,
            5], 1.5)` adds 1.5 to the logit of token 7 at target 0, and to the logit of token 5 at
            target 2. All pairs (index, token) must be different, and the indices must be
            in ascending order. The prior is added only in training. Therefore a positive `number`
            makes the model learn lower logits for the tokens in the prior.
        soft: (n, V), the probabilities that the model should predict. If `soft` is given, the
            gradient is that of the cross-entropy with `soft` instead of the targets.

    Returns:
        The mean cross-entropy with the targets; `soft` does not change this number.

    Raises:
        ValueError: the model has no LM head, or the batch does not fit the model.

    Source:
        Menon et al. 2021, "Long-tail learning via logit adjustment", equation 10, for the prior;
        Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", for soft targets.
    """
    head = network.transformer.head
    if head is None or not head.predicts:
        raise ValueError(
            f"{network.source.name} has no LM head, so it cannot predict words: "
            "choose a model with an LM head"
        )
    _check_words(network, batch)
    _, positions = texts_and_positions(batch.cu_lengths)
    packed = PackedIds(batch.ids, batch.cu_lengths, positions)
    rows, saved = network.transformer.run(packed, save=True)  # (total, D)
    grad, total, count = np.zeros_like(rows), 0.0, len(batch.at)
    together = max(1, _LOGITS_AT_ONCE // network.design.vocabulary)
    for begin in range(0, count, together):
        at = batch.at[begin : begin + together]
        logits, head_saved = head.training_forward(rows[at], np.array([0, len(at)]))  # (n, V)
        if prior is not None:
            number, token, by = prior
            here = slice(*np.searchsorted(number, [begin, begin + together]))
            logits[number[here] - begin, token[here]] += by
        losses, back = cross_entropy(logits, batch.targets[begin : begin + together])
        total += float(losses.sum(dtype=np.float64))
        if soft is not None:
            back[np.arange(len(at)), batch.targets[begin : begin + together]] += 1
            back -= soft[begin : begin + together]
        back *= back.dtype.type(1 / count)
        grads = head.backward(back, head_saved)
        grad[at] = grads.x
        network.add(grads.parameters)
    network.add(network.transformer.backward(grad, saved))
    return total / count


def _check_words(network: Network, batch: Words) -> None:
    """Raise an error if tokens or lengths do not fit the model, or if `at` contains a row twice."""
    longest = int(np.diff(batch.cu_lengths).max(initial=0))
    most, vocabulary = network.transformer.embedding.max_positions, network.design.vocabulary
    if most is not None and longest > most:
        raise ValueError(
            f"words_loss: a text has {longest} tokens, but {network.source.name} takes at most "
            f"{most}: shorten the text, or use a model with more positions"
        )
    ids = batch.ids
    if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary):
        raise ValueError(
            f"words_loss: ids run from {ids.min()} to {ids.max()} and {network.source.name} has "
            f"{vocabulary} tokens: use the tokenizer of the model"
        )
    if not len(batch.at):
        raise ValueError("words_loss: `at` is empty, so there is no target; list at least one row")
    if np.bincount(batch.at).max() > 1:
        raise ValueError("words_loss: `at` lists a row twice: list each row once")


@dataclass(eq=False, repr=False)
class _Filled:
    """The base class of `Masked` and `Causal`; a batch has at least `tokens_per_step` tokens."""

    source: Source
    _: KW_ONLY
    tokens_per_step: int = 8192

    @public_method
    def __post_init__(self) -> None:
        name = "tokens_per_step"
        self.tokens_per_step = whole_number(self.tokens_per_step, name=name, least=1)

    def __call__(self, network: Network, batch: Words) -> tuple[float, int]:
        """Add the loss's gradient to the network; return the mean loss and the number of tokens."""
        return words_loss(network, batch), len(batch.ids)

    def _sequences(self, usable: Callable[[Array], Any]) -> list[Array]:
        """Draw sequences that `usable` accepts, until they hold `tokens_per_step` tokens in all."""
        sequences: list[Array] = []
        count = barren = 0
        while count < self.tokens_per_step:
            sequence = self.source.take()
            if usable(sequence):
                sequences.append(sequence)
                count += len(sequence)
            elif (barren := barren + 1) == _MOST_BARREN:
                raise ValueError(f"{type(self).__name__}: no sequence has a token to predict")
        return sequences

    def state(self) -> dict[str, Any]:
        """Return the state of the source."""
        return self.source.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self.source.restore(state)


class Causal(_Filled):
    """Predict the next token at each position.

    Args:
        source: the source of sequences. The model reads all tokens except the last, and predicts
            all tokens except the first.
        tokens_per_step: the minimum number of tokens in a step.

    >>> from qkv.learn import Sequences
    >>> batch = Causal(Sequences([[5, 6, 7]]), tokens_per_step=3).batch(0, np.random.default_rng(0))
    >>> batch.ids.tolist(), batch.targets.tolist()
    ([5, 6], [6, 7])
    """

    name = "causal"

    def batch(self, step: int, rng: np.random.Generator) -> Words:
        """Return sequences without their last tokens. Each token's target is the next token."""
        texts = self._sequences(lambda text: len(text) > 1)
        ids = np.concatenate([text[:-1] for text in texts]).astype(np.int64)
        targets = np.concatenate([text[1:] for text in texts]).astype(np.int64)
        return Words(ids, starts_of(len(text) - 1 for text in texts), np.arange(len(ids)), targets)


@dataclass(eq=False, repr=False)
class Masked(_Filled):
    """Predict the tokens that were masked.

    Some non-special tokens are chosen at random, and the model must predict all chosen tokens. In
    the input, 80% of the chosen tokens are replaced by the mask token, 10% are replaced by a
    different token, and 10% stay unchanged. If `alike` is given, words are chosen instead of
    tokens. If a word is chosen, all its occurrences in the text are chosen, because a visible
    occurrence would reveal a masked one. Each punctuation mark is chosen separately.

    Args:
        source: the source of sequences; the sequences include special tokens.
        tokenizer: the tokenizer, which defines the special tokens and the mask token.
        share: the fraction of tokens that the model must predict, such as 0.15.
        tokens_per_step: the minimum number of tokens in a step.
        alike: a function that maps words to keys. Two words are treated as equal if their keys are
            equal. With `str.casefold`, words that differ only in case are treated as equal.

    Raises:
        ValueError: the tokenizer has no mask token, or `share` is not between 0 and 1.

    Source:
        Devlin et al. 2019, "BERT", section 3.1.
    """

    name = "masked"

    tokenizer: Tokenizer
    _: KW_ONLY
    share: float = 0.2
    alike: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        tokenizer = self.tokenizer
        if not 0 < self.share < 1:
            raise ValueError(f"Masked: `share` is {self.share}: it must be between 0 and 1")
        if tokenizer.mask is None:
            raise ValueError(
                f"Masked: the tokenizer has no mask token ({' or '.join(MASKS)}): choose "
                "another tokenizer, or train one"
            )
        self.mask = tokenizer.vocabulary[tokenizer.mask]
        self._names = {index: name for name, index in tokenizer.vocabulary.items()}
        self._special = np.array([tokenizer.is_special(token) for token in range(len(tokenizer))])
        self._special[self.mask] = True
        self._others = np.flatnonzero(~self._special)

    def batch(self, step: int, rng: np.random.Generator) -> Words:
        """Return sequences with masked tokens, and the original tokens as targets."""
        texts = self._sequences(lambda text: not self._special[text].all())
        ids = np.concatenate(texts).astype(np.int64)
        free = np.flatnonzero(~self._special[ids])
        count = max(1, round(self.share * free.size))
        if self.alike is None:
            at = np.sort(rng.choice(free, count, replace=False))
            luck = rng.random(count)
        else:
            words = self._words(texts, self.alike)  # (free.size,)
            order = self._order(words, ids[free], rng)
            enough = np.searchsorted(np.cumsum(np.bincount(words)[order]), count)
            fates = np.full(len(order), np.nan)
            fates[order[: enough + 1]] = rng.random(enough + 1)
            at, luck = free[~np.isnan(fates[words])], fates[words]
            luck = luck[~np.isnan(luck)]
        targets = ids[at]
        others = rng.choice(self._others, len(at))
        ids[at] = np.where(luck < 0.8, self.mask, np.where(luck < 0.9, others, targets))
        return Words(ids, starts_of(map(len, texts)), at, targets)

    def _order(self, words: Array, ids: Array, rng: np.random.Generator) -> Array:
        """Return all word numbers in a random order. `batch` masks the first words of this order.

        Args:
            words: (n,), the word number of each token.
            ids: (n,), the tokens.
            rng: the generator that draws the order.
        """
        return rng.permutation(int(words.max()) + 1)

    def _words(self, texts: Sequence[Array], alike: Callable[[str], str]) -> Array:
        """Return a number for each non-special token; tokens of equal words get equal numbers."""
        numbers: list[int] = []
        count = 0
        for ids in texts:
            special = self._special[ids].tolist()
            tokens = plain_tokens([self._names.get(token, "") for token in ids.tolist()], special)
            known: dict[str, int] = {}
            words: list[list[str]] = []
            for token, is_apart in zip(tokens, special, strict=True):
                if is_apart:
                    words.append([])  # the next token begins a word
                elif is_piece(token) and words and words[-1]:
                    words[-1].append(token[2:])
                else:
                    words.append([token])
            for word in filter(None, words):
                spelled = "".join(word)
                is_word = any(letter.isalnum() for letter in spelled)
                number = known.setdefault(alike(spelled), count) if is_word else count
                count += number == count
                numbers += [number] * len(word)
        return np.array(numbers)
