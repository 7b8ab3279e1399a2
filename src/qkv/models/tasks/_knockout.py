"""What an answer loses when attention to some tokens is masked: the numbers of `Model.why`."""

import math
import unicodedata
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array
from qkv.attend import KVCache
from qkv.attend.cache import fork
from qkv.edits import Edits
from qkv.models._model_base import ModelBase
from qkv.models.network.batch import Batch
from qkv.models.run.batches import POSITIONS
from qkv.models.run.edited_run import At, EditedRun, EditStep, MaskedKey
from qkv.models.tasks._spelling import Spelling, decode_function
from qkv.models.tasks.predict import in_words, likeliest, log_softmax
from qkv.text import Tokenized
from qkv.text.tokenized import without_blanks

Span = tuple[int, int]  # [first, stop) of tokens
Masked = Sequence[MaskedKey]  # the masked keys of one copy of the text; `text` is not used
_LONGEST = 16  # the maximum number of tokens of a guessed word
# With fewer queries, the kernel adds the products of attention in another order, and probabilities
# differ from those of `predict` by more than 1e-6.
_QUERIES = 13
_INSIDE = "'\N{RIGHT SINGLE QUOTATION MARK}-."  # marks that do not end a word before a letter


class Outcome(NamedTuple):
    """The result of one run.

    Attributes:
        log_probability: the logarithm of the answer's probability.
        instead: the best guess in this run, completed to a whole word, and its probability; None
            if it was not asked for.
    """

    log_probability: float
    instead: tuple[str, float] | None


@dataclass
class Knockout:
    """Runs copies of one text, in each of which attention to some tokens is masked.

    A decoder computes only what follows the first masked token of a copy; the keys and values
    before it come from the caches of the whole text.

    Attributes:
        model: a model that predicts words.
        tokens: the text.
        position: the position of the guess: a mask token or, for a decoder, the last token.
        edits: edits of every run, including the run in which nothing is masked.
        answer: the ids of the answer; [] stands for the best guess.
    """

    model: ModelBase
    tokens: Tokenized
    position: int
    edits: Edits = field(default_factory=Edits)
    answer: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(getattr(layer, "conv", None) for layer in self.model.layers):
            raise value_error(
                f"{self.model.name} has a convolution, which also carries a word that no token "
                "attends to: use a model without a convolution"
            )
        self._heads = [layer.attn.num_heads for layer in self.model.layers]
        one = Batch([self.tokens])
        self._means = self.model.with_means(self.model.check_edits(self.edits, one)[1], one)
        self._caches: list[KVCache] = []
        if self.model.generates and not self.edits:
            ids = np.asarray(self.tokens.ids)[None]
            self._caches = self._empty()
            # With a mask, attention rounds in another way, so the caches are computed with one.
            masks = dict.fromkeys(range(len(self._heads)), np.ones((1, 1, 1, ids.size), bool))
            self.model.network.step(ids, self._caches, masks=masks)

    @property
    def answer_positions(self) -> range:
        """The positions whose vectors predict the tokens of the answer."""
        return range(self.position, self.position + max(1, len(self.answer)))

    def start(self, first: int) -> int:
        """Return where a run begins so that it gives the numbers of `predict`."""
        return max(0, min(first, len(self.tokens) - _QUERIES))

    def run(
        self,
        copies: Sequence[tuple[int, Masked]],
        *,
        instead: bool = False,
        advance: Callable[[int], None] = lambda _: None,
    ) -> list[Outcome]:
        """Run a copy of the text for each `(first, masked)`, and return the outcomes in order.

        Args:
            copies: the masked keys of each copy, and the first position at which they matter.
            instead: whether to complete the best guess of each run to a whole word.
            advance: receives the number of copies that are done.
        """
        size = max(1, POSITIONS // len(self.tokens))
        order = sorted(range(len(copies)), key=lambda at: copies[at][0])
        found: dict[int, Outcome] = {}
        for begin in range(0, len(order), size):
            part = order[begin : begin + size]
            masked = [copies[at][1] for at in part]
            run = self._decode if self.model.generates else self._fill
            outcomes = run(masked, copies[part[0]][0], instead)
            found |= dict(zip(part, outcomes, strict=True))
            advance(len(part))
        return [found[at] for at in range(len(copies))]

    def attention(self) -> Array:
        """Return what `position` attends to, (T,), averaged over all layers and heads."""
        total = np.zeros(len(self.tokens))

        def add(pattern: Array, at: At) -> Array:
            keys = pattern.shape[-1]  # a layer with a window may keep only the last keys
            row = pattern[0, :, at.positions[0] == self.position]  # (1, H, keys)
            total[len(total) - keys :] += row.sum((0, 1), dtype=np.float64)
            return pattern

        names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(len(self._heads))]
        recorded = dict(self._means.recorded)
        for name in names:
            recorded[name] = [*recorded.get(name, ()), EditStep(add, add)]
        edited = replace(self._means, recorded=recorded, user_edits={"edit": names})
        if self.model.generates:
            self._step_through(edited, 1, self.position)
        else:
            self.model.network.run(Batch([self.tokens]), edited)
        return total / sum(self._heads)

    def _empty(self) -> list[KVCache]:
        """Return an empty cache for each layer."""
        options, dtype = self.model.network.options, self.model.cache_dtype
        return [KVCache(option.get("window"), dtype=dtype) for option in options]

    def _interventions(self, copies: Sequence[Masked]) -> EditedRun:
        """Return the interventions in copies of the text."""
        edited = EditedRun()
        if self.edits:
            batch = Batch([self.tokens] * len(copies))
            checked = self.model.check_edits(self.edits, batch)[1]
            edited = replace(checked, ablated=self._means.ablated)
        masked = [key._replace(text=row) for row, keys in enumerate(copies) for key in keys]
        shown = {"hide": ["tokens"]} if masked else {}
        return replace(
            edited,
            masked=[*edited.masked, *masked],
            heads=self._heads,
            user_edits={**edited.user_edits, **shown},
        )

    def _fill(self, copies: Sequence[Masked], first: int, instead: bool) -> list[Outcome]:
        """Run an encoder on copies of a text with a mask token."""
        batch, edited = Batch([self.tokens] * len(copies)), self._interventions(copies)
        rows, _ = self.model.network.run(batch, edited)
        logits = self.model.network.logits(rows[batch.cu[:-1] + self.position])  # (n, V)
        best = likeliest(logits, 1, edited.why)
        self.answer = self.answer or [best[0][0][0]]
        shares = log_softmax(logits)[:, self.answer[0]]
        before = [self.tokens.tokens[max(0, self.position - 1) : self.position]] * len(copies)
        words = in_words(best, before, self.model.tokenizer)
        return [
            Outcome(float(share), guesses[0] if instead else None)
            for share, guesses in zip(shares, words, strict=True)
        ]

    def _decode(self, copies: Sequence[Masked], first: int, instead: bool) -> list[Outcome]:
        """Run a decoder on copies of a text and of the answer after it."""
        edited, count = self._interventions(copies), len(copies)
        caches, logits = self._step_through(edited, count, first)
        words: Sequence[tuple[str, float] | None] = [None] * count
        if instead or not self.answer:
            words, ids = self._complete(deepcopy(caches), edited, logits)
            self.answer = self.answer or ids[0]
        shares = log_softmax(logits)[:, self.answer[0]]
        for number, (last, token) in enumerate(pairwise(self.answer), 1):
            logits = self._step(caches, edited, np.full((count, 1), last), number)
            shares = shares + log_softmax(logits)[:, token]
        return [Outcome(float(share), word) for share, word in zip(shares, words, strict=True)]

    def _step_through(
        self, edited: EditedRun, count: int, first: int
    ) -> tuple[list[KVCache], Array]:
        """Run copies of a decoder's text; return their caches, and the logits (n, V) after them."""
        extra = len(self.tokens) - first + max(_LONGEST, len(self.answer))
        forks = (fork(cache, count, first, extra) for cache in self._caches)
        caches = [cache for cache in forks if cache is not None]
        if len(caches) < len(self._heads):  # with edits, or after a window has dropped keys
            caches, first = self._empty(), 0
        ids = np.tile(self.tokens.ids[first:], (count, 1))
        return caches, self._step(caches, edited, ids, 0)

    def _step(self, caches: list[KVCache], edited: EditedRun, ids: Array, number: int) -> Array:
        """Add tokens (n, T) to the rows of the caches; return the logits (n, V) after them."""
        count, length = ids.shape
        seen = np.zeros(count, np.int64) + (caches[0].lengths if caches else 0)
        options = edited.step(number, seen, np.full(count, length), length)
        x = self.model.network.step(ids, caches, **options)
        return self.model.network.logits(x[:, -1])

    def _complete(
        self, caches: list[KVCache], edited: EditedRun, logits: Array
    ) -> tuple[list[tuple[str, float]], list[list[int]]]:
        """Complete the best guess of each row greedily to a whole word; return words and ids."""
        rows = [
            _Guess(Spelling(decode_function(self.model.tokenizer), self.tokens.ids.tolist()))
            for _ in logits
        ]
        for number in range(1, _LONGEST + 1):
            best = [ranked[0][0] for ranked in likeliest(logits, 1, edited.why)]
            shares = log_softmax(logits)[range(len(rows)), best]
            for row, token, share in zip(rows, best, shares, strict=True):
                row.add(token, float(share), ends=self._ends(token))
            if all(row.done for row in rows):
                break
            logits = self._step(caches, edited, np.array(best)[:, None], number)
        names = in_words(
            [[(row.ids[0], 1.0)] for row in rows], [[]] * len(rows), self.model.tokenizer
        )
        words = [row.text.strip() or name for row, [(name, _)] in zip(rows, names, strict=True)]
        found = [math.exp(row.log_probability) for row in rows]
        return list(zip(words, found, strict=True)), [row.ids for row in rows]

    def _ends(self, token: int) -> bool:
        """Return whether a token ends the text, or is another special token."""
        tokenizer = self.model.tokenizer
        special = tokenizer is not None and tokenizer.is_special(token)
        return special or token in self.model.eos_ids


@dataclass
class _Guess:
    """A guessed word, to which tokens are added until it is whole."""

    spelling: Spelling
    ids: list[int] = field(default_factory=list)
    text: str = ""
    log_probability: float = 0.0
    open: bool = True  # whether the last token ends inside a character
    done: bool = False

    def add(self, token: int, log_probability: float, *, ends: bool) -> None:
        """Add the next token, unless the word is whole without it."""
        piece = self.spelling.text_of(token)
        self.done = self.done or (not self.open and (ends or not _goes_on(self.text, piece)))
        if self.done:
            return
        new = self.spelling.add(token)
        self.ids.append(token)
        self.text, self.log_probability = self.text + new, self.log_probability + log_probability
        self.open, self.done = not new, ends


def _goes_on(word: str, piece: str) -> bool:
    """Return whether a token continues a word, as "ris" continues "Pa" and "'t" continues "don".

    >>> [_goes_on("Pa", piece) for piece in ("ris", " is", ".", "'s", "")]
    [True, False, False, True, False]
    >>> _goes_on("天", "气")  # in writing without spaces, each token is a word
    False
    """
    if not word or not piece or without_blanks(word[-1] + piece[0]):
        return False
    mark = 1 if piece[0] in _INSIDE else 0
    return all(
        unicodedata.category(letter)[0] in "LMN" for letter in (word[-1], piece[mark:][:1] or " ")
    )
