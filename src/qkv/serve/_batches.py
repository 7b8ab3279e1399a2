"""Batches of texts that come from many requests and are encoded together."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qkv._argument_errors import message
from qkv.models.sentence.encode import EmptyText, Encoder
from qkv.serve._refusals import Refused
from qkv.serve._waiting import Numbered, QueuedText, Texts, TextTurns
from qkv.serve.settings import Settings
from qkv.text.tokenizer import check_text

PART = 64  # The number of texts that are tokenized together before they are queued.
TOKENS = 4  # The maximum number of tokens of a character, if each of its bytes is a token.

_Groups = Iterable[Sequence[QueuedText]]
# A function that is called with a request that fails and its error.
_Fail = Callable[[Texts, BaseException], None]
# A function that is called with a finished request and its error (None: no error).
Tell = Callable[[Texts, BaseException | None], None]


@dataclass
class Counts:
    """The numbers of computed batches, texts and tokens, and of errors."""

    batches: int = 0
    texts: int = 0
    tokens: int = 0
    failures: int = 0


class Batches:
    """Computes vectors in batches; a batch takes one text from each connection in turn.

    Args:
        limit: the maximum number of tokens of a text; None for no limit.
        settings: the maximum sizes of a batch and of a request.
        tell: a function `tell(request, error)` that is called when a request is finished. `error`
            is None if the request succeeded.

    Attributes:
        waiting: the queue of the requests.
        counts: the numbers of computed texts and tokens, and of errors.
    """

    def __init__(self, limit: int | None, settings: Settings, tell: Tell) -> None:
        self._settings, self._tell, self._limit = settings, tell, limit
        self.waiting = TextTurns(settings.batch_tokens, limit)
        self.counts = Counts()

    def check(self, texts: Sequence[Any], encoder: Encoder, *, whole: bool) -> Numbered:
        """Check the texts of a request; return pairs `(number, text)`, numbered from 0.

        Lists of token ids are truncated.

        Raises:
            Refused: the request has too many texts; an id is not in the vocabulary; the encoder has
                a prompt, which cannot be put before ids; or `whole` is true and a list of ids is
                longer than the limit.
        """
        most, checked, tokens = self._settings.inputs, Numbered(), 0
        if len(texts) > most:
            raise too_many(len(texts), most)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                try:
                    text = encoder.checked_ids(text, f"input {number}", whole=whole)
                    encoder.check(text, number)
                except (TypeError, ValueError) as error:
                    raise _error_of(number, text, error) from error
                tokens += len(text)
            checked.append((number, text))
        self._check_tokens(tokens)
        return checked

    def may_exceed(self, request: Texts) -> bool:
        """Return whether the texts of a request might have too many tokens."""
        most = math.inf if self._limit is None else self._limit
        lengths = (min(TOKENS * len(text), most) for _, text in request.texts)
        return sum(lengths) > self._settings.tokens

    def tokenize(self, request: Texts) -> Iterator[None]:
        """Tokenize the texts of a request that is not in the queue yet; yield after each part.

        Raises:
            Refused: 400, if a text cannot be encoded, or if the texts have too many tokens.
        """

        def fail(request: Texts, error: BaseException) -> None:
            raise error

        texts, request.texts = request.texts, Numbered()
        while texts:
            part = [texts.popleft() for _ in range(min(PART, len(texts)))]
            pieces = [QueuedText(request, number, text, long=False) for number, text in part]
            self._cut(pieces, fail)
            request.texts.extend((piece.number, piece.text) for piece in pieces)
            yield

    def take(self) -> list[QueuedText]:
        """Return the tokenized texts of the next batch."""
        taken = self.waiting.take()
        uncut = [piece for piece in taken if isinstance(piece.text, str)]
        for alike in _alike(uncut, lambda piece: (id(piece.request.encoder), piece.request.whole)):
            self._cut(alike, self._fail)
        pieces = [piece for piece in taken if not piece.request.dropped]
        free, fits = self._settings.batch_tokens, 0
        while fits < len(pieces) and (not fits or len(pieces[fits].text) <= free):
            free -= len(pieces[fits].text)
            fits += 1
        self.waiting.put_back(pieces[fits:])
        return pieces[:fits]

    def compute(self, pieces: Sequence[QueuedText]) -> None:
        """Compute the vectors of texts, in one batch for each `kind` of encoder."""
        for alike in _alike(pieces, lambda piece: piece.request.encoder.kind):
            self._compute(alike)

    def _compute(self, pieces: Sequence[QueuedText]) -> None:
        """Encode texts in one batch; if the batch fails, encode each text separately."""
        encoder = pieces[0].request.encoder
        try:
            pooled = encoder.pool_texts([piece.ids for piece in pieces])
            vectors = encoder.sentence.finish(pooled, normalize=encoder.normalize_embeddings)
        except BaseException as error:
            self.counts.failures += 1
            if len(pieces) == 1:
                self._fail(pieces[0].request, error)
                return
            for piece in pieces:
                if not piece.request.dropped:
                    self._compute([piece])
            return
        self.counts.texts += len(pieces)
        self.counts.tokens += sum(len(piece.text) for piece in pieces)
        for number, piece in enumerate(pieces):
            request = piece.request
            request.keep(piece.number, vectors[number : number + 1])
            if not request.left and not request.dropped:
                self._tell(request, None)

    def _cut(self, pieces: Sequence[QueuedText], fail: _Fail) -> None:
        """Replace texts with their ids; call `fail(request, error)` if a text cannot be encoded."""
        encoder, whole = pieces[0].request.encoder, pieces[0].request.whole
        try:
            rows = encoder.ids([str(piece.text) for piece in pieces], whole=whole)
        except BaseException as error:
            if len(pieces) > 1:
                for piece in pieces:
                    self._cut([piece], fail)
            else:
                [piece] = pieces
                fail(piece.request, _error_of(piece.number, piece.text, error))
            return
        for piece, ids in zip(pieces, rows, strict=True):
            request, piece.text = piece.request, ids
            if request.dropped:
                continue
            request.cut(piece.number, ids)
            try:
                encoder.check(ids, piece.number)
                self._check_tokens(request.total)
            except (EmptyText, Refused) as error:
                fail(request, _error_of(piece.number, "", error))

    def _fail(self, request: Texts, error: BaseException) -> None:
        request.drop()
        self._tell(request, error)

    def _check_tokens(self, tokens: int) -> None:
        """Raise an error if a request has too many tokens."""
        most = self._settings.tokens
        if tokens > most:
            raise _refusal(f"input has more than {most:,} tokens: send it in several requests")


def _alike(texts: Sequence[QueuedText], key: Callable[[QueuedText], Hashable]) -> _Groups:
    """Group the texts for which `key` returns the same value. Texts keep their order in a group."""
    groups: dict[Hashable, list[QueuedText]] = {}
    for text in texts:
        groups.setdefault(key(text), []).append(text)
    return groups.values()


def _error_of(number: int, text: Any, error: BaseException) -> BaseException:
    """Return the error for the client if input `number` cannot be encoded."""
    if isinstance(error, EmptyText):
        return _refusal(f"input {number} is empty: {error.reason}")
    if isinstance(error, Refused) or not isinstance(error, TypeError | ValueError):
        return error
    problem = message(error)
    if isinstance(text, str):
        try:
            check_text(text, name=f"input {number}")
            problem = f"input {number}: {problem}"
        except ValueError as lone_surrogate:
            problem = message(lone_surrogate)
    return _refusal(problem)


def too_many(texts: int, most: int) -> Refused:
    """Return the error for a request with too many texts."""
    return _refusal(f"input has {texts} texts: send at most {most} in one request")


def _refusal(message: str) -> Refused:
    return Refused(400, message, param="input")
