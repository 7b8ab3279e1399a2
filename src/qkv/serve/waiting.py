"""What waits to be computed: requests of connections in turn, and texts of many for a batch."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import numpy as np

from qkv.arrays import Array
from qkv.models.network.pooling import to_length_one
from qkv.models.sentence.encoder import Encoder

LETTERS = 4  # of a text that a token is thought to have, before it is known
CUTTING = 16  # tokens that are found in a text in the time in which one is computed, about


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
        encoder: computes them.
        dimensions: how many numbers of each vector are wanted, None for all.
        whole: whether a text that would be cut is refused.
        tokens: how many tokens each text has, as far as that is known.
        total: how many all of these have.
        vectors: of the texts that are computed, (n, width).
        left: how many texts are not computed yet.
        arrived: when it came, in seconds of `time.monotonic`.
    """

    texts: deque[tuple[int, str | Array]]
    encoder: Encoder
    whole: bool = False
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
    """Requests of several clients, each of which has its turn, and so has each of its connections.

    A connection is (client, port), or anything else of a client that has one alone.

    >>> loop = asyncio.new_event_loop()
    >>> turns = Turns[Call]()
    >>> for connection, word in (("a", 1), "1"), (("a", 1), "2"), (("a", 2), "3"), (("b", 1), "4"):
    ...     turns.add(Call(connection=connection, loop=loop, function=word.strip))
    >>> [turns.next().function() for _ in range(4)]
    ['1', '4', '3', '2']
    >>> loop.close()
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[Hashable, OrderedDict[Hashable, deque[Some]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(line) for lines in self._clients.values() for line in lines.values())

    def __bool__(self) -> bool:
        return bool(self._clients)

    def __iter__(self) -> Iterator[Some]:
        """The first request of each connection, in the order of their turns."""
        clients = [[(one, each) for each in lines] for one, lines in self._clients.items()]
        for place in [place for some in zip_longest(*clients) for place in some if place]:
            client, connection = place
            yield self._clients[client][connection][0]

    @property
    def first(self) -> Some | None:
        """The one whose turn it is; None where there is none."""
        for lines in self._clients.values():
            for line in lines.values():
                return line[0]
        return None

    def add(self, request: Some) -> None:
        """A request behind those of its connection."""
        self._line(request).append(request)

    def next(self) -> Some | None:
        """The one whose turn it is, taken out; None where there is none."""
        request = self.first
        if request is not None:
            self.remove(request)
        return request

    def clear(self) -> None:
        """Forget all."""
        self._clients.clear()

    def served(self, connection: Hashable) -> None:
        """A connection had its turn: it is the last now, and so is its client."""
        client = _client(connection)
        if connection in self._clients.get(client, ()):
            self._clients[client].move_to_end(connection)
            self._clients.move_to_end(client)

    def remove(self, request: Some) -> None:
        """The first of its connection is done."""
        client, line = _client(request.connection), self._line(request)
        line.popleft()
        self.served(request.connection)
        if not line:
            del self._clients[client][request.connection]
        if not self._clients[client]:
            del self._clients[client]

    def back(self, request: Some) -> None:
        """A request is the first of its connection again, and it is its turn."""
        line, client = self._line(request), _client(request.connection)
        if not line or line[0] is not request:
            line.appendleft(request)
        self._clients[client].move_to_end(request.connection, last=False)
        self._clients.move_to_end(client, last=False)

    def _line(self, request: Some) -> deque[Some]:
        """The requests of a connection."""
        lines = self._clients.setdefault(_client(request.connection), OrderedDict())
        return lines.setdefault(request.connection, deque())


def _client(connection: Hashable) -> Hashable:
    """Whose connection it is."""
    return connection[0] if isinstance(connection, tuple) else connection


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
        """About how many tokens a text has, or as how many it counts for the time it takes."""
        if not isinstance(text, str):
            return len(text)
        about = len(text) // LETTERS + 2
        return about if self._limit is None else max(min(about, self._limit), about // CUTTING)
