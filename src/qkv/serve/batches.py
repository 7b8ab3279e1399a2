"""Texts of many requests computed together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from qkv.arrays import Array
from qkv.models.sentence.encoder import EmptyText, Encoder
from qkv.serve.errors import Refused
from qkv.serve.settings import Settings
from qkv.serve.waiting import Piece, Texts, TextTurns
from qkv.text.tokenizer import check_text

# Whom to tell what: a request, its answer, or what went wrong.
Tell = Callable[[Texts, BaseException | None], None]


class Batches:
    """Takes texts of requests in turn, cuts them into tokens and computes them in packed rows.

    Args:
        limit: the most tokens of a text; None for no limit.
        settings: how much is computed at once, and how much a request may have.
        tell: called with each request that is done, and what went wrong if anything did.

    Attributes:
        waiting: the requests, in turn.
        texts, tokens, failures: how many were computed.
    """

    def __init__(self, limit: int | None, settings: Settings, tell: Tell) -> None:
        self._settings, self._tell = settings, tell
        self.waiting = TextTurns(settings.batch_tokens, limit)
        self.texts = self.tokens = self.failures = 0

    def checked(
        self, texts: Sequence[Any], encoder: Encoder, *, whole: bool
    ) -> deque[tuple[int, str | Array]]:
        """Each of a request's texts with its number; ids as they are computed.

        Raises:
            Refused: there are too many, ids are not this model's, a prompt is to go before ids, or
                `whole` ids are too many.
        """
        most, found = self._settings.inputs, deque[tuple[int, str | Array]]()
        if len(texts) > most:
            raise Refused(400, f"input has {len(texts)} texts: give at most {most}", param="input")
        tokens = 0
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                try:
                    text = encoder.given(text, f"input {number}", whole=whole)
                    encoder.check(text, number)
                except (TypeError, ValueError) as error:
                    raise _refused(number, text, error) from error
                tokens += len(text)
            found.append((number, text))
        self._check_tokens(tokens)
        return found

    def take(self) -> list[Piece]:
        """What is computed next, cut into tokens."""
        taken = self.waiting.take()
        uncut = [piece for piece in taken if isinstance(piece.text, str)]
        for together in _alike(uncut, lambda one: (id(one.request.encoder), one.request.whole)):
            self._cut(together)
        pieces = [piece for piece in taken if not piece.request.dropped]
        room, fits = self._settings.batch_tokens, 0
        while fits < len(pieces) and (not fits or len(pieces[fits].text) <= room):
            room -= len(pieces[fits].text)
            fits += 1
        self.waiting.put_back(pieces[fits:])
        return pieces[:fits]

    def compute(self, pieces: Sequence[Piece]) -> None:
        """Compute texts together, so far as they are computed alike."""
        for together in _alike(pieces, lambda piece: piece.request.encoder.kind):
            self._compute(together)

    def _compute(self, pieces: Sequence[Piece]) -> None:
        """Compute texts together; if that fails, each apart, so that no other is lost."""
        encoder = pieces[0].request.encoder
        try:
            vectors = encoder.sentence.finish(encoder.pooled([piece.ids for piece in pieces]))
        except BaseException as error:
            self.failures += 1
            if len(pieces) == 1:
                self._fail(pieces[0].request, error)
                return
            for piece in pieces:
                if not piece.request.dropped:
                    self._compute([piece])
            return
        self.texts += len(pieces)
        self.tokens += sum(len(piece.text) for piece in pieces)
        for number, piece in enumerate(pieces):
            request = piece.request
            request.keep(piece.number, vectors[number : number + 1])
            if not request.left and not request.dropped:
                self._tell(request, None)

    def _cut(self, pieces: Sequence[Piece]) -> None:
        """Put ids in the place of texts; one that cannot be computed ends its request."""
        encoder, whole = pieces[0].request.encoder, pieces[0].request.whole
        try:
            found = encoder.ids([str(piece.text) for piece in pieces], whole=whole)
        except BaseException as error:
            if len(pieces) > 1:
                for piece in pieces:
                    self._cut([piece])
            else:
                [piece] = pieces
                self._fail(piece.request, _refused(piece.number, piece.text, error))
            return
        for piece, ids in zip(pieces, found, strict=True):
            request, piece.text = piece.request, ids
            if request.dropped:
                continue
            request.cut(piece.number, ids)
            try:
                encoder.check(ids, piece.number)
                self._check_tokens(request.total)
            except (EmptyText, Refused) as error:
                self._fail(request, _refused(piece.number, "", error))

    def _fail(self, request: Texts, error: BaseException) -> None:
        request.drop()
        self._tell(request, error)

    def _check_tokens(self, tokens: int) -> None:
        """An error if a request has more tokens than is allowed."""
        most = self._settings.tokens
        if tokens > most:
            raise Refused(
                400,
                f"input has more than {most:,} tokens: send it in several requests",
                param="input",
            )


def _alike(pieces: Sequence[Piece], key: Callable[[Piece], Hashable]) -> Iterable[Sequence[Piece]]:
    """Pieces that have a key in common, each in their order."""
    found: dict[Hashable, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(key(piece), []).append(piece)
    return found.values()


def _refused(number: int, text: Any, error: BaseException) -> BaseException:
    """What a request is told of a text, or of ids, of which no vector can be made."""
    said = str(error)
    if isinstance(error, EmptyText):
        said = f"input {number} is empty: {error.reason}"
    elif isinstance(error, Refused) or not isinstance(error, TypeError | ValueError):
        return error
    elif isinstance(text, str):
        try:
            check_text(text, call="encode", name=f"input {number}")
            said = f"input {number}: {said.partition(': ')[2]}"
        except ValueError as half:  # of a character
            said = str(half)
    return Refused(400, said.removeprefix("encode: "), param="input")
