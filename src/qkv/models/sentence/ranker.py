"""Which documents answer a query best: both are read together, and the pair is scored."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files.sentence import Sentence
from qkv.models.files.sentence_files import ACTIVATIONS
from qkv.models.network.head import BuiltHead
from qkv.models.network.pooling import activated
from qkv.models.run.truncation import Truncator, callers
from qkv.models.sentence.encoder import LETTERS, TEXTS, TOKENS, by_length
from qkv.text import Tokenizer
from qkv.text.tokenizer import parts_of

# Where config.json says what follows the logits: before sentence-transformers 4 by the second key.
_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_IDENTITY = "torch.nn.modules.linear.Identity"

Activation = str | Callable[[Array], Array] | None


@dataclass(frozen=True)
class Pair:
    """Two texts as a model reads them together.

    Attributes:
        ids: (T,)
        segments: (T,) which of two parts each token is of.
        whole: whether nothing was cut.
    """

    ids: Array
    segments: Array
    whole: bool = True

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Frame:
    """What a tokenizer puts around two texts, and between them.

    Attributes:
        around: the ids before, between and behind them.
        segments: which part each of the five pieces is of, those three and the texts, in their
            order.
    """

    around: tuple[Array, Array, Array]
    segments: tuple[int, int, int, int, int]

    def __len__(self) -> int:
        return sum(map(len, self.around))

    def pair(self, first: Array, second: Array, limit: int | None) -> Pair:
        """Two texts by their ids, in so many tokens: the longer one is cut first."""
        room = (math.inf if limit is None else limit) - len(self)
        sizes = shortened(len(first), len(second), room)
        before, between, behind = self.around
        pieces = (before, first[: sizes[0]], between, second[: sizes[1]], behind)
        segments = np.repeat(self.segments, [len(piece) for piece in pieces])
        whole = sizes == (len(first), len(second))
        return Pair(np.concatenate(pieces), segments, whole)


def shortened(first: int, second: int, room: float) -> tuple[int, int]:
    """How many tokens are left of two texts where there is room for so many: as many as can be.

    The longer one loses its end until both are alike, then each has half, and the odd one is the
    longer one's, as in the `tokenizers` package.

    >>> shortened(3, 9, 12), shortened(3, 9, 8), shortened(5, 9, 8), shortened(9, 5, 7)
    ((3, 9), (3, 5), (4, 4), (4, 3))
    """
    if first + second <= room:
        return first, second
    room = int(room)
    least = min(first, second, room // 2)
    return (least, room - least) if first <= second else (room - least, least)


def frame_of(tokenizer: Tokenizer, text: str, name: str, call: str) -> Frame:
    """What a tokenizer puts around two texts, which a text of at least one token shows.

    Raises:
        ValueError: the text has no token, or two texts do not stand one behind the other.
    """
    ids, segments, parts = tokenizer.pair(text, text)
    mine = [[place for place, part in enumerate(parts) if part == which] for which in (0, 1)]
    if not all(mine):
        raise ValueError(f"{call}: the query is empty: there is no token in it")
    (a, b), (c, d) = ((places[0], places[-1] + 1) for places in mine)
    if b - a + d - c != sum(map(len, mine)) or b > c:
        raise ValueError(
            f"{call}: the tokenizer of {name} does not put two texts behind each other"
        )
    pieces = (slice(0, a), slice(a, b), slice(b, c), slice(c, d), slice(d, None))
    kinds = [set(segments[piece].tolist()) or {0} for piece in pieces]
    if max(map(len, kinds)) > 1:
        raise ValueError(f"{call}: the tokenizer of {name} gives parts of a text several segments")
    before, between, behind = (ids[piece] for piece in pieces[::2])
    one, two, three, four, five = (kind.pop() for kind in kinds)
    return Frame((before, between, behind), (one, two, three, four, five))


@dataclass(frozen=True)
class Ranker:
    """What `Model.rank` scores with.

    Attributes:
        call: who is named in an error.
        name: the model's, for errors.
        tokenizer: the model's.
        sentence: what its files say about texts.
        before: the prompt, which goes before the first text.
        limit: the most tokens of a pair.
        run: from the ids of texts to the vectors of their tokens, end to end, and where each
            begins; `Transformer.packed`.
        head: from these vectors to the logits of each text.
        tells_texts_apart: whether it is told which tokens are of the second text.
        activation: what follows the logits: the name of one of `ACTIVATIONS`, a function of an
            array, or None for nothing.
    """

    call: str
    name: str
    tokenizer: Tokenizer
    sentence: Sentence
    before: str
    limit: int | None
    run: Callable[..., tuple[Array, Array]]
    head: BuiltHead
    tells_texts_apart: bool
    activation: Activation

    def pairs(self, query: str, documents: Sequence[str]) -> list[Pair]:
        """A query with each of these documents, cut at the limit.

        Raises:
            ValueError: the query has no token, or the limit leaves none of it.
        """
        return [pair for part in self.parts_of_pairs(query, documents) for pair in part]

    def parts_of_pairs(self, query: str, documents: Sequence[str]) -> Iterator[list[Pair]]:
        """The same, some documents at a time."""
        query = self._whole(query)
        frame = self._frame(query)
        # whole, since which of two is longer decides which is cut
        truncator = Truncator(self.tokenizer, None)
        [first] = self._ids(truncator, [query])
        for part in parts_of(documents, LETTERS):
            yield [frame.pair(first, second, self.limit) for second in self._ids(truncator, part)]

    def each(self, firsts: Sequence[str], seconds: Sequence[str]) -> list[Pair]:
        """Each text with the one in its place, cut at the limit.

        Raises:
            ValueError: no text has a token, or the limit leaves none.
        """
        firsts = [self._whole(text) for text in firsts]
        known = (text for text in (*firsts, *seconds) if text.strip())
        frame = self._frame(next(known, ""))
        truncator, found = Truncator(self.tokenizer, None), list[Pair]()
        for start in range(0, len(firsts), TEXTS):
            part = slice(start, start + TEXTS)
            one, other = (self._ids(truncator, texts[part]) for texts in (firsts, seconds))
            found += [frame.pair(a, b, self.limit) for a, b in zip(one, other, strict=True)]
        return found

    def _whole(self, text: str) -> str:
        """The first of two texts, behind the prompt."""
        return self.sentence.prepared((self.before + text).strip())

    def _frame(self, text: str) -> Frame:
        """What stands around two texts, which leaves room for both."""
        frame = frame_of(self.tokenizer, text, self.name, self.call)
        if self.limit is not None and self.limit < len(frame) + 2:
            raise ValueError(
                f"{self.call}: max_seq_length is {self.limit}, and a query and a document have "
                f"{len(frame)} special tokens around them: give {len(frame) + 2} or more"
            )
        return frame

    def _ids(self, truncator: Truncator, texts: Sequence[str]) -> list[Array]:
        """The ids of texts (T,), without special tokens."""
        tokens = truncator([self.sentence.prepared(text.strip()) for text in texts])
        return [text.ids[~np.array(text.special, bool)] for text in tokens]

    def parts(self, pairs: Sequence[Pair], batch_size: int) -> Iterator[list[int]]:
        """The numbers of pairs that are run together: those of like length."""
        return by_length(pairs, batch_size * TOKENS)

    def scores(self, pairs: Sequence[Pair]) -> Array:
        """The scores of each of these pairs, run together: (n,), or (n, C) for C classes."""
        options = {}
        if self.tells_texts_apart:
            options["segments"] = [pair.segments for pair in pairs]
        rows, cu_lengths = self.run([pair.ids for pair in pairs], **options)
        logits = self.head(rows, cu_lengths)
        scores = applied(self.activation, logits, self.call)
        return scores[:, 0] if self.classes == 1 else scores

    @property
    def classes(self) -> int:
        """C, how many numbers a pair gets."""
        return self.head.steps.outputs

    def all(self, pairs: Sequence[Pair], batch_size: int, advance: Callable[[int], None]) -> Array:
        """The scores (n,) or (n, C) of any number of pairs; `advance` is told how many are done."""
        shape = (len(pairs),) if self.classes == 1 else (len(pairs), self.classes)
        found = np.empty(shape, np.float64)
        for numbers in self.parts(pairs, batch_size):
            found[numbers] = self.scores([pairs[number] for number in numbers])
            advance(len(numbers))
        return found

    def warn(self, pairs: Sequence[Pair], what: str = "documents, with the query,") -> None:
        """Say how many pairs were cut, if any was."""
        count = sum(not pair.whole for pair in pairs)
        if count:
            warnings.warn(
                f"{count} of {len(pairs)} {what} were cut to {self.limit} tokens",
                UserWarning,
                stacklevel=callers(),
            )


def best(
    scores: Array, documents: Sequence[str], top_k: int | None, with_documents: bool
) -> list[dict[str, Any]]:
    """The documents by their scores, the best first, those alike in their order.

    >>> best(np.array([0.25, 0.5, 0.5]), ["a", "b", "c"], 2, True)
    [{'corpus_id': 1, 'score': 0.5, 'text': 'b'}, {'corpus_id': 2, 'score': 0.5, 'text': 'c'}]
    """
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [
        {"corpus_id": number, "score": float(scores[number])}
        | ({"text": documents[number]} if with_documents else {})
        for number in order
    ]


def need_ranking(head: BuiltHead | None, name: str) -> BuiltHead:
    """A head that gives each text one number, or an error that says what a model has instead."""
    if head is None or not head.pools:
        has = "no head" if head is None else "a head for each token"
    elif head.steps.embeds:
        has = "a head for vectors"
    elif head.steps.outputs != 1:
        has = f"a head for {head.steps.outputs} classes"
    else:
        return head
    raise ValueError(
        f"rank: {name} has {has} and does not rank: load a cross-encoder (architectures in its "
        "config.json says ...ForSequenceClassification, with one label), or compare vectors of "
        "encode"
    )


def applied(activation: Activation, logits: Array, call: str) -> Array:
    """What follows logits (n, C): as many numbers.

    Raises:
        TypeError: a function gives something else.
    """
    if activation is None:
        return logits
    if isinstance(activation, str):
        return activated(logits, activation)
    found = activation(logits)
    if not isinstance(found, np.ndarray) or found.shape != logits.shape:
        about = found.shape if isinstance(found, np.ndarray) else type(found).__name__
        raise TypeError(
            f"{call}: activation_fn gives {about}: it must give an array {logits.shape}, as it gets"
        )
    return found


def given_activation(function: Any, call: str) -> Activation:
    """What somebody wants behind the logits: a module of torch that we know, or a function.

    Raises:
        TypeError: it is neither.
    """
    kind = type(function)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    if not callable(function) or kind.__module__.startswith("torch."):
        raise TypeError(
            f"{call}: activation_fn is {name}: give a function of an array, or one of torch.nn's "
            f"{', '.join(dict.fromkeys(one.rpartition('.')[2] for one in ACTIVATIONS))}"
        )
    made: Callable[[Array], Array] = function
    return made


def activation_of(
    sentence: Sentence, config: Mapping[str, Any], name: str, classes: int, call: str
) -> str | None:
    """What follows the logits of a cross-encoder, as its files say it.

    Else a sigmoid where there is one class, and nothing where there are several. As in
    sentence-transformers, what config_sentence_transformers.json says comes first, and a function
    that is not torch's is not run.

    Raises:
        ValueError: it is none that we know.
    """
    inner = config.get(_KEYS[0])
    older = [inner.get("activation_fn") if isinstance(inner, Mapping) else None]
    said = [sentence.activation, *older, config.get(_KEYS[1])]
    own = [one for one in said if isinstance(one, str) and one.startswith("torch.")]
    function = own[0] if own else _SIGMOID if classes == 1 else _IDENTITY
    if function not in ACTIVATIONS:
        raise ValueError(
            f"{call}: what follows the logits of {name} is {function:.80}: qkv knows "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[function]
