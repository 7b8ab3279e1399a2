"""What waits to be computed: requests of connections in turn, and texts of many for a batch."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from qkv.arrays import Array
from qkv.models.network.finishing import to_length_one

LETTERS = 4  # of a text that a token is thought to have, before it is known


@dataclass(eq=False, kw_only=True)
class Request:
    """Something to compute that somebody waits for.

    Attributes:
        connection: whose it is: connections have turns.
        loop: where somebody waits.
        dropped: whether nobody waits for it any longer.
    """

    connection: Hashable
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    dropped: bool = False

    def drop(self) -> None:
        """Nobody waits for it any longer: what is not computed yet will not be."""
        self.dropped = True

    def tell(self, value: Any, error: BaseException | None) -> None:
        """What was computed, or why it was not: called on the event loop."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class Single(Request):
    """A request that has one answer.

    Attributes:
        answer: what somebody waits for.
    """

    answer: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.answer = self.loop.create_future()

    def tell(self, value: Any, error: BaseException | None) -> None:
        """The answer, if anybody waits for it."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(plain_error(error))


@dataclass(eq=False, kw_only=True)
class Call(Single):
    """A function that is to have the model to itself."""

    function: Callable[[], Any]


@dataclass(eq=False, kw_only=True)
class Texts(Single):
    """Texts to be made vectors of.

    Attributes:
        texts: those that are not computed yet, each with its number; or the ids (T,) of one.
        dimensions: how many numbers of each vector are wanted, None for all.
        tokens: how many tokens each text has, as far as that is known.
        total: how many all of these have.
        vectors: of the texts that are computed, (n, width).
        left: how many texts are not computed yet.
        arrived: when it came, in seconds of `time.monotonic`.
    """

    texts: deque[tuple[int, str | Array]]
    dimensions: int | None = None
    tokens: list[int] = field(init=False)
    total: int = field(init=False)
    vectors: Array | None = None
    left: int = field(init=False)
    arrived: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left = len(self.texts)
        self.tokens = [0 if isinstance(text, str) else len(text) for _, text in self.texts]
        self.total = sum(self.tokens)

    def drop(self) -> None:
        """Nobody waits for it any longer: what is not computed yet will not be."""
        super().drop()
        self.texts = deque()

    def cut(self, number: int, ids: Array) -> None:
        """A text is cut into tokens."""
        self.tokens[number] = len(ids)
        self.total += len(ids)

    def keep(self, number: int, row: Array) -> None:
        """The vector (1, width) of a text is computed."""
        self.left -= 1
        if self.dimensions is not None:
            row = to_length_one(row[:, : self.dimensions])
        if len(self.tokens) == 1:
            self.vectors = row
        else:
            if self.vectors is None:
                self.vectors = np.empty((len(self.tokens), row.shape[1]), row.dtype)
            self.vectors[number] = row[0]


def plain_error(error: BaseException) -> Exception:
    """An error as who waits can be given it: no other would end the event loop, or a future."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


Some = TypeVar("Some", bound=Request)


class Turns(Generic[Some]):
    """Requests of several connections, each of which has its turn.

    >>> loop = asyncio.new_event_loop()
    >>> turns = Turns[Call]()
    >>> for connection, word in ("a", "first"), ("a", "second"), ("b", "third"):
    ...     turns.add(Call(connection=connection, loop=loop, function=word.upper))
    >>> [turns.next().function() for _ in range(3)]
    ['FIRST', 'THIRD', 'SECOND']
    >>> loop.close()
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[Some]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[Some]:
        """What is first of each connection, in the order of their turns."""
        for connection in list(self._lines):
            yield self._lines[connection][0]

    def add(self, request: Some) -> None:
        """A request behind those of its connection."""
        self._lines.setdefault(request.connection, deque()).append(request)

    def next(self) -> Some | None:
        """The one whose turn it is, taken out; None where there is none."""
        for request in self:
            self.remove(request)
            return request
        return None

    def clear(self) -> None:
        """Forget all."""
        self._lines.clear()

    def served(self, connection: Hashable) -> None:
        """A connection had its turn: it is the last now."""
        if connection in self._lines:
            self._lines.move_to_end(connection)

    def remove(self, request: Some) -> None:
        """The first of its connection is done."""
        line = self._lines[request.connection]
        line.popleft()
        if line:
            self.served(request.connection)
        else:
            del self._lines[request.connection]

    def back(self, request: Some) -> None:
        """A request is the first of its connection again, and it is its turn."""
        line = self._lines.setdefault(request.connection, deque())
        if not line or line[0] is not request:
            line.appendleft(request)
        self._lines.move_to_end(request.connection, last=False)


@dataclass(eq=False)
class Piece:
    """One text of a request, on its way into a batch."""

    request: Texts
    number: int
    text: str | Array
    long: bool

    @property
    def ids(self) -> Array:
        """Its ids (T,), once it is cut into tokens."""
        assert isinstance(self.text, np.ndarray)
        return self.text


class TextTurns(Turns[Texts]):
    """Requests for vectors, of which texts are taken one of each connection in turn.

    A text of more tokens than a batch has is computed alone, and behind it those that are shorter
    come first.

    Args:
        most: about how many tokens are computed at once.
        limit: the most tokens of a text; None for no limit.
    """

    def __init__(self, most: int, limit: int | None) -> None:
        super().__init__()
        self._most, self._limit = most, limit
        self._was_long = False

    @property
    def oldest(self) -> float:
        """When the first of them came."""
        return min(request.arrived for request in self)

    def take(self) -> list[Piece]:
        """Texts for one batch, about as many as it has room for."""
        pieces = self._picked(no_long=self._was_long)
        if not pieces and self._was_long:
            pieces = self._picked(no_long=False)
        self._was_long = any(piece.long for piece in pieces)
        return pieces

    def put_back(self, pieces: Sequence[Piece]) -> None:
        """What turned out to have no room: it comes first the next time."""
        for piece in reversed(pieces):
            if not piece.request.dropped:
                piece.request.texts.appendleft((piece.number, piece.text))
                self.back(piece.request)

    def _picked(self, *, no_long: bool) -> list[Piece]:
        pieces: list[Piece] = []
        size, before = 0, -1
        while before < len(pieces):
            before = len(pieces)
            for request in self:
                if not request.texts:  # dropped
                    self.remove(request)
                    continue
                number, text = request.texts[0]
                tokens = self._tokens(text)
                long = tokens > self._most
                if (size + tokens > self._most and pieces) or (long and no_long):
                    continue
                size += tokens
                request.texts.popleft()
                pieces.append(Piece(request, number, text, long))
                if request.texts:
                    self.served(request.connection)
                else:
                    self.remove(request)
        return pieces

    def _tokens(self, text: str | Array) -> int:
        """About how many tokens a text has."""
        if not isinstance(text, str):
            return len(text)
        about = len(text) // LETTERS + 2
        return about if self._limit is None else min(about, self._limit)
