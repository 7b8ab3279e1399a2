"""Compare vectors, and score pairs of texts: `similarity` and `rank`."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv._progress import progress
from qkv.arrays import Array, ArrayLike, whole_number
from qkv.models._model_base import ModelBase
from qkv.models.files.sentence import ACTIVATIONS, Sentence
from qkv.models.network.batch import PackedIds
from qkv.models.network.head import BuiltHead
from qkv.models.network.pooling import activate
from qkv.models.run.batches import LETTERS
from qkv.models.run.text_reader import check_device
from qkv.models.run.truncation import Truncator, callers
from qkv.models.sentence import vectors
from qkv.models.sentence.encode import TEXTS, TOKENS, by_length, chosen_prompt
from qkv.text import Tokenizer
from qkv.text.tokenizer import check_text, check_texts, parts_of

# Keys of config.json whose values are names of activations. Versions of sentence-transformers
# before 4 write the second of these keys.
_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_IDENTITY = "torch.nn.modules.linear.Identity"

Activation = str | Callable[[Array], Array] | None


@dataclass(frozen=True)
class Pair:
    """The tokens of two texts that a model reads together.

    Attributes:
        ids: (T,).
        segments: (T,), the segment of each token, 0 or 1.
        whole: whether both texts are complete.
    """

    ids: Array
    segments: Array
    whole: bool = True

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Frame:
    """The special tokens around two texts, and between them.

    Attributes:
        around: the ids before, between and after the texts.
        segments: the segments, each 0 or 1, of five groups of ids, in this order: the ids before
            the texts, the first text, the ids between the texts, the second text, and the ids after
            the texts.
        left: whether cutting a text removes its first tokens instead of its last.
    """

    around: tuple[Array, Array, Array]
    segments: tuple[int, int, int, int, int]
    left: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.around))

    def pair(self, first: Array, second: Array, limit: int | None) -> Pair:
        """Join two texts, given as ids, into `limit` tokens at most; the longer is cut first."""
        free = (math.inf if limit is None else limit) - len(self)
        sizes = fit_lengths(len(first), len(second), free)
        before, between, after = self.around
        texts = zip((first, second), sizes, strict=True)
        one, two = (ids[len(ids) - n :] if self.left else ids[:n] for ids, n in texts)
        sections = (before, one, between, two, after)
        segments = np.repeat(self.segments, [len(section) for section in sections])
        whole = sizes == (len(first), len(second))
        return Pair(np.concatenate(sections), segments, whole)


def fit_lengths(first: int, second: int, free: float) -> tuple[int, int]:
    """Return how many tokens to keep of each of two texts, so that both together fit into `free`.

    As in the `tokenizers` package, the longer text is cut first. If both texts have more than
    `free / 2` tokens, `free / 2` tokens of each text are kept. If `free` is odd, one more token of
    the longer text is kept.

    >>> fit_lengths(3, 9, 12), fit_lengths(3, 9, 8), fit_lengths(5, 9, 8), fit_lengths(9, 5, 7)
    ((3, 9), (3, 5), (4, 4), (4, 3))
    """
    if first + second <= free:
        return first, second
    free = int(free)
    least = min(first, second, free // 2)
    return (least, free - least) if first <= second else (free - least, least)


def frame_of(tokenizer: Tokenizer, text: str, name: str) -> Frame:
    """Return the special tokens around two texts, found by pairing a text with itself.

    Raises:
        ValueError: the text has no token, or the tokenizer mixes the tokens of the two texts.
    """
    ids, segments, parts = tokenizer.pair(text, text)
    sides = [[i for i, part in enumerate(parts) if part == which] for which in (0, 1)]
    if not all(sides):
        raise value_error("the query is empty; pass a query with at least one token")
    (a, b), (c, d) = ((positions[0], positions[-1] + 1) for positions in sides)
    if b - a + d - c != sum(map(len, sides)) or b > c:
        raise value_error(f"the tokenizer of {name} mixes the tokens of the two texts")
    sections = (slice(0, a), slice(a, b), slice(b, c), slice(c, d), slice(d, None))
    kinds = [set(segments[section].tolist()) or {0} for section in sections]
    if max(map(len, kinds)) > 1:
        raise value_error(f"the tokenizer of {name} assigns several segments to one text")
    before, between, after = (ids[section] for section in sections[::2])
    one, two, three, four, five = (kind.pop() for kind in kinds)
    return Frame((before, between, after), (one, two, three, four, five), tokenizer.cuts_left)


@dataclass
class Ranker:
    """An object that checks the options of `Model.rank` and computes the scores of pairs.

    Attributes:
        model: a model whose head gives each text a score, or a score for each class.
        prompt_name: as in `Model.rank`.
        prompt: as in `Model.rank`.
        activation_fn: as in `Model.rank`.
        tokenizer: the model's tokenizer.
        before: the prompt before the first text.
        limit: the maximum number of tokens in a pair.
        tells_texts_apart: whether the network reads segments, which say for each token whether it
            belongs to the first or to the second text.
        activation: the function that turns logits into scores, or its name in `ACTIVATIONS`; None
            if the logits are the scores.

    Raises:
        TypeError: an option has the wrong type for `Model.rank`.
        ValueError: an option has a value that `Model.rank` rejects, or the model has no tokenizer.
    """

    model: ModelBase
    prompt_name: str | None = None
    prompt: str | None = None
    activation_fn: Any = None

    def __post_init__(self) -> None:
        model, sentence = self.model, self.model.sentence
        limits = filter(None, (model.max_seq_length, sentence.pair_limit))
        self.limit = min(limits, default=None)
        self.activation = (
            activation_of(sentence, model.config, model.name, self.classes)
            if self.activation_fn is None
            else given_activation(self.activation_fn)
        )
        self.tokenizer = model.reader.need_tokenizer()
        self.before = chosen_prompt(sentence, self.prompt, self.prompt_name, name=model.name)
        types = model.embedding.token_types
        self.tells_texts_apart = types is not None and len(types) > 1 and sentence.tells_texts_apart

    @property
    def head(self) -> BuiltHead:
        """The model's head, which turns token vectors into logits for each pair."""
        assert self.model.head is not None  # the caller has checked this
        return self.model.head

    @property
    def classes(self) -> int:
        """C, the number of scores of a pair."""
        return self.head.steps.outputs

    def pairs(self, query: str, documents: Sequence[str]) -> list[Pair]:
        """Pair a query with each document, and truncate the pairs to the limit.

        Raises:
            ValueError: the query has no token, or the limit is too small for the query.
        """
        return [pair for part in self.parts_of_pairs(query, documents) for pair in part]

    def parts_of_pairs(self, query: str, documents: Sequence[str]) -> Iterator[list[Pair]]:
        """Pair the query with each document, and yield the pairs in groups, to save memory."""
        query = self.before + query
        frame = self._frame(query)
        # the truncator has no limit, because `Frame.pair` truncates the longer of the two texts
        truncator = self._truncator()
        [first] = self._ids(truncator, [query])
        for part in parts_of(documents, LETTERS):
            yield [frame.pair(first, second, self.limit) for second in self._ids(truncator, part)]

    def each(self, firsts: Sequence[str], seconds: Sequence[str]) -> list[Pair]:
        """Pair each text with the text at the same index, and truncate the pairs to the limit.

        Raises:
            ValueError: no text has a token, or the limit is too small for a token.
        """
        firsts = [self.before + text for text in firsts]
        known = (text for text in (*firsts, *seconds) if len(self.tokenizer.ids_batch([text])[0]))
        frame = self._frame(next(known, ""))
        truncator, pairs = self._truncator(), list[Pair]()
        for start in range(0, len(firsts), TEXTS):
            part = slice(start, start + TEXTS)
            one, other = (self._ids(truncator, texts[part]) for texts in (firsts, seconds))
            pairs += [frame.pair(a, b, self.limit) for a, b in zip(one, other, strict=True)]
        return pairs

    def _truncator(self) -> Truncator:
        return self.model.reader.truncator(None, fills_gaps=False)

    def _frame(self, text: str) -> Frame:
        """Return the special tokens around two texts.

        Raises:
            ValueError: the limit is too small for the special tokens and one token of each text.
        """
        frame = frame_of(self.tokenizer, text, self.model.name)
        if self.limit is not None and self.limit < len(frame) + 2:
            raise value_error(
                f"max_seq_length is {self.limit}, but a query and a document are read with "
                f"{len(frame)} special tokens; pass {len(frame) + 2} or more"
            )
        return frame

    def _ids(self, truncator: Truncator, texts: Sequence[str]) -> list[Array]:
        """Return the ids (T,) of each text, without special tokens."""
        return [text.ids[~np.array(text.special, bool)] for text in truncator(texts)]

    def scores(self, pairs: Sequence[Pair]) -> Array:
        """Run pairs together, and return their scores: (n,), or (n, C) for C classes."""
        segments = None
        if self.tells_texts_apart:
            segments = np.concatenate([pair.segments for pair in pairs])
        batch = PackedIds.of([pair.ids for pair in pairs], segments=segments)
        rows, _ = self.model.network.run(batch)
        logits = self.head(rows, batch.cu, batch.ids)
        scores = activate_logits(self.activation, logits)
        return scores[:, 0] if self.classes == 1 else scores

    def all(self, pairs: Sequence[Pair], batch_size: int, advance: Callable[[int], None]) -> Array:
        """Return the scores (n,) or (n, C) of pairs.

        After each batch, `advance` is called with the number of pairs in the batch.
        """
        shape = (len(pairs),) if self.classes == 1 else (len(pairs), self.classes)
        scores = np.empty(shape, np.float64)
        for numbers in by_length(pairs, batch_size * TOKENS):
            scores[numbers] = self.scores([pairs[number] for number in numbers])
            advance(len(numbers))
        return scores

    def warn(self, pairs: Sequence[Pair], what: str = "documents, with the query,") -> None:
        """If pairs were truncated, warn and say how many."""
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
    """Return the documents, best score first; documents with equal scores keep their order.

    >>> best(np.array([0.25, 0.5, 0.5]), ["a", "b", "c"], 2, True)
    [{'corpus_id': 1, 'score': 0.5, 'text': 'b'}, {'corpus_id': 2, 'score': 0.5, 'text': 'c'}]
    """
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return [
        {"corpus_id": number, "score": float(scores[number])}
        | ({"text": documents[number]} if with_documents else {})
        for number in order
    ]


def activate_logits(activation: Activation, logits: Array) -> Array:
    """Apply the activation to logits (n, C).

    Raises:
        TypeError: the activation function does not return an array of shape (n, C).
    """
    if activation is None:
        return logits
    if isinstance(activation, str):
        return activate(logits, activation)
    scores = activation(logits)
    if not isinstance(scores, np.ndarray) or scores.shape != logits.shape:
        about = scores.shape if isinstance(scores, np.ndarray) else type(scores).__name__
        raise type_error(
            f"activation_fn returned {about}: it must return an array of the same shape "
            f"as its input, {logits.shape}"
        )
    return scores


def given_activation(function: Any) -> Activation:
    """Return the activation that a user passes: a known torch module, or a function.

    Raises:
        TypeError: `function` is neither a function nor a known torch module.
    """
    kind = type(function)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    if not callable(function) or kind.__module__.startswith("torch."):
        raise type_error(
            f"activation_fn is {name}; pass a function of an array, or one of torch.nn's "
            f"{', '.join(dict.fromkeys(known.rpartition('.')[2] for known in ACTIVATIONS))}"
        )
    return cast(Activation, function)


def activation_of(
    sentence: Sentence, config: Mapping[str, Any], name: str, classes: int
) -> str | None:
    """Read the activation for a cross-encoder's logits from the model's files.

    The default is a sigmoid for one class, and no activation for several. As in
    sentence-transformers, config_sentence_transformers.json takes precedence over config.json.
    Names that do not begin with "torch." are ignored.

    Raises:
        ValueError: the activation is unknown.
    """
    inner = config.get(_KEYS[0])
    older = [inner.get("activation_fn") if isinstance(inner, Mapping) else None]
    named = [sentence.activation, *older, config.get(_KEYS[1])]
    known = [name for name in named if isinstance(name, str) and name.startswith("torch.")]
    function = known[0] if known else _SIGMOID if classes == 1 else _IDENTITY
    if function not in ACTIVATIONS:
        raise value_error(
            f"the activation after the logits of {name} is {function:.80}, but qkv "
            f"supports only {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[function]


@public_call("similarity")
def similarity(model: ModelBase, a: ArrayLike, b: ArrayLike) -> Any:
    """Return the similarity of each vector of `a` to each vector of `b`.

    A larger number means that two vectors are more similar. The measure is `similarity_fn_name`,
    from the model's files: the cosine (the default), the dot product, or the negative Euclidean or
    Manhattan distance.

    Args:
        a: (n, D), or (D,) for one vector.
        b: (m, D), or (D,) for one vector.

    Returns:
        The similarities (n, m), in float64 if either input is float64, otherwise in float32. If
        either input is a torch tensor, the result is a torch tensor.

    Raises:
        TypeError: `a` or `b` does not hold numbers.
        ValueError: `a` or `b` has the wrong shape.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> vectors = model.encode(["I love you", "the cat sat", "I love you"])
    >>> model.similarity(vectors[0], vectors).round(4)[0, [0, 2]].tolist()
    [1.0, 1.0]
    """
    return vectors.as_given(vectors.similarity(a, b, model.sentence.similarity), a, b)


@public_call("similarity_pairwise")
def similarity_pairwise(model: ModelBase, a: ArrayLike, b: ArrayLike) -> Any:
    """Return the similarity of each vector of `a` to the vector of `b` at the same index.

    Args:
        a: (n, D), or (D,) for one vector.
        b: (n, D), or (D,) for one vector.

    Returns:
        The similarities (n,), in float64 if either input is float64, otherwise in float32. If
        either input is a torch tensor, the result is a torch tensor.

    Raises:
        TypeError: `a` or `b` does not hold numbers.
        ValueError: `a` or `b` has the wrong shape.

    >>> import qkv
    >>> vectors = qkv.load("random").encode(["I love you", "the cat sat"])
    >>> qkv.load("random").similarity_pairwise(vectors, vectors).round(4).tolist()
    [1.0, 1.0]
    """
    return vectors.as_given(vectors.similarity_pairwise(a, b, model.sentence.similarity), a, b)


@public_call("rank")
def rank(
    model: ModelBase,
    query: str,
    documents: Iterable[str],
    top_k: int | None = None,
    return_documents: bool = False,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    activation_fn: Any = None,
    device: Any = None,
) -> list[dict[str, Any]]:
    """Rank documents by how well they answer a query; the model must be a cross-encoder.

    If a query and a document together have more tokens than `max_seq_length`, the longer text is
    cut first.

    Args:
        query: the question.
        documents: texts that may answer the query.
        top_k: the number of documents to return; None returns all.
        return_documents: whether the results include the documents' texts.
        prompt_name: the name of the prompt before the query, as in `encode`.
        prompt: the text of a prompt, instead of `prompt_name`.
        batch_size: a batch has at most `128 * batch_size` tokens, so it holds `batch_size` pairs of
            128 tokens, more pairs if they are shorter, and fewer if they are longer. A pair with
            more than `128 * batch_size` tokens runs alone.
        show_progress_bar: as in `encode`.
        activation_fn: the function that turns logits into scores, either a function of an array or
            a torch.nn activation. The default is the activation from the model's files, or a
            sigmoid if the files contain no activation.
        device: None or "cpu".

    Returns:
        One dict per document, best first; documents with equal scores keep their order. "corpus_id"
        is the index of the document, and "score" is the score of the pair. "text" is the document;
        this key exists only with `return_documents`.

    Raises:
        TypeError: a text is not a string.
        ValueError: the model cannot rank; the query has no token; or an argument is invalid.

    Source:
        Nogueira and Cho 2019, "Passage Re-ranking with BERT".

    >>> import qkv
    >>> qkv.load("random").rank("a river", ["the bank", "the sun"])
    Traceback (most recent call last):
    ValueError: rank: random has no head and does not rank: ...
    """
    check_device(device)
    scorer = ranker(model, prompt_name, prompt, activation_fn)
    check_text(query, name="query")
    texts = check_texts(documents)
    batch_size = whole_number(batch_size, name="batch_size", least=1)
    if top_k is not None:
        top_k = whole_number(top_k, name="top_k", least=1)
    pairs = scorer.pairs(query, texts)
    with progress("rank", len(pairs), show_progress_bar) as advance:
        scores = scorer.all(pairs, batch_size, advance)
    scorer.warn(pairs)
    return best(scores, texts, top_k, return_documents)


@public_call("rank")
def ranker(
    model: ModelBase,
    prompt_name: str | None = None,
    prompt: str | None = None,
    activation_fn: Any = None,
) -> Ranker:
    """Return a `Ranker` with the options of `rank`.

    A server uses the `Ranker` to score the documents of several users in one batch.

    Args:
        model: the model.
        prompt_name: as in `rank`.
        prompt: as in `rank`.
        activation_fn: as in `rank`.

    Raises:
        TypeError: as in `rank`.
        ValueError: the model is not a cross-encoder with one score; the model has no tokenizer; or
            an option is invalid.
    """
    model.need("rank")
    return Ranker(model, prompt_name, prompt, activation_fn)
