"""Queues of requests, in which connections take turns."""

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
from qkv.models.sentence.encode import Encoder

LETTERS = 4  # The estimated number of characters per token.
Numbered = deque[tuple[int, str | Array]]  # (number, text), or (number, ids (T,)).
CUTTING = 16  # The tokenizer produces about 16 tokens while the model computes one token.


@dataclass(eq=False, kw_only=True)
class Request:
    """A request that is waiting for its answer.

    Attributes:
        connection: the connection that sent the request; connections take turns.
        loop: the event loop that waits for the answer.
        arrived: the time of arrival, as a value of `time.monotonic` in seconds.
        dropped: whether the request was canceled, because the client disconnected.
    """

    connection: Hashable
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    arrived: float = field(default_factory=time.monotonic)
    dropped: bool = False

    def drop(self) -> None:
        """Cancel the rest of the computation."""
        self.dropped = True

    def tell(self, value: Any, error: BaseException | None) -> None:
        """Receive the result or the error. The worker calls this method on the event loop."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class Single(Request):
    """A request with a single answer.

    Attributes:
        answer: a future, which receives the answer or an error.
    """

    answer: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.answer = self.loop.create_future()

    def tell(self, value: Any, error: BaseException | None) -> None:
        """Set the answer, unless the client has disconnected."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(plain_error(error))


@dataclass(eq=False, kw_only=True)
class Job(Single):
    """A function that needs exclusive use of the model."""

    function: Callable[[], Any]


@dataclass(eq=False, kw_only=True)
class Texts(Single):
    """A request for the vectors of texts.

    Attributes:
        texts: the texts that are not in a batch yet. Each is a pair: the number of the text, and
            the text or its ids (T,).
        encoder: the encoder that computes the vectors.
        dimensions: how many dimensions of each vector to keep; None for all.
        whole: if true, a text that is too long is refused; otherwise it is truncated.
        tokens: the number of tokens per text; 0 until the text is tokenized.
        total: the sum of `tokens`.
        vectors: the computed vectors, (n, width).
        left: the number of texts whose vectors have not been computed yet.
    """

    texts: Numbered
    encoder: Encoder
    whole: bool = False
    dimensions: int | None = None
    tokens: list[int] = field(init=False)
    total: int = field(init=False)
    vectors: Array | None = None
    left: int = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left = len(self.texts)
        self.tokens = [0 if isinstance(text, str) else len(text) for _, text in self.texts]
        self.total = sum(self.tokens)

    def drop(self) -> None:
        """Cancel the rest of the computation, and free the texts."""
        super().drop()
        self.texts = deque()

    def cut(self, number: int, ids: Array) -> None:
        """Store the number of tokens of a text."""
        self.tokens[number] = len(ids)
        self.total += len(ids)

    def keep(self, number: int, row: Array) -> None:
        """Store the vector (1, width) of text `number`."""
        self.left -= 1
        if self.dimensions is not None:
            row = row[:, : self.dimensions]
            if self.encoder.normalize_embeddings is not False:
                row = to_length_one(row)
        if self.vectors is None:
            self.vectors = np.empty((len(self.tokens), row.shape[1]), row.dtype)
        self.vectors[number] = row[0]


def plain_error(error: BaseException) -> Exception:
    """Convert an error to an `Exception` that `Future.set_exception` accepts."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


Some = TypeVar("Some", bound=Request)


class Turns(Generic[Some]):
    """A queue of requests. Clients take turns, and so do the connections of each client.

    A connection is identified by a tuple `(client, port)`. Any other identifier stands for a client
    with only one connection.

    >>> loop = asyncio.new_event_loop()
    >>> turns = Turns[Job]()
    >>> for connection, word in (("a", 1), "1"), (("a", 1), "2"), (("a", 2), "3"), (("b", 1), "4"):
    ...     turns.add(Job(connection=connection, loop=loop, function=word.strip))
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
        """Yield the first request of each connection, in the order of the queue."""
        clients = [[(name, other) for other in lines] for name, lines in self._clients.items()]
        for key in [key for turn in zip_longest(*clients) for key in turn if key]:
            client, connection = key
            yield self._clients[client][connection][0]

    @property
    def first(self) -> Some | None:
        """The next request; None if the queue is empty."""
        lines = (line for lines in self._clients.values() for line in lines.values())
        return next((line[0] for line in lines), None)

    def add(self, request: Some) -> None:
        """Add a request after the other requests of its connection."""
        self._line(request).append(request)

    def next(self) -> Some | None:
        """Remove and return the next request, or return None."""
        request = self.first
        if request is not None:
            self.remove(request)
        return request

    def clear(self) -> None:
        """Remove all requests."""
        self._clients.clear()

    def end_turn(self, connection: Hashable) -> None:
        """Move a connection and its client to the end of the queue, after their turn."""
        client = _client(connection)
        if connection in self._clients.get(client, ()):
            self._clients[client].move_to_end(connection)
            self._clients.move_to_end(client)

    def remove(self, request: Some) -> None:
        """Remove a request, which must be the first of its connection."""
        client, line = _client(request.connection), self._line(request)
        line.popleft()
        self.end_turn(request.connection)
        if not line:
            del self._clients[client][request.connection]
        if not self._clients[client]:
            del self._clients[client]

    def back(self, request: Some) -> None:
        """Put a request back at the front of the whole queue."""
        line, client = self._line(request), _client(request.connection)
        if not line or line[0] is not request:
            line.appendleft(request)
        self._clients[client].move_to_end(request.connection, last=False)
        self._clients.move_to_end(client, last=False)

    def _line(self, request: Some) -> deque[Some]:
        """Return the requests of a connection."""
        lines = self._clients.setdefault(_client(request.connection), OrderedDict())
        return lines.setdefault(request.connection, deque())


def _client(connection: Hashable) -> Hashable:
    """Return the client of a connection."""
    return connection[0] if isinstance(connection, tuple) else connection


@dataclass(eq=False)
class QueuedText:
    """One text of a request, chosen for the next batch."""

    request: Texts
    number: int
    text: str | Array
    long: bool

    @property
    def ids(self) -> Array:
        """The ids (T,) of a tokenized text."""
        assert isinstance(self.text, np.ndarray)
        return self.text


class TextTurns(Turns[Texts]):
    """The queue of requests for vectors; a batch takes one text from each connection in turn.

    A text with more than `most` tokens is computed alone, in its own batch. In the next batch,
    texts of at most `most` tokens come first.

    Args:
        most: the approximate number of tokens in a batch.
        limit: the maximum number of tokens of a text; None for no limit.
    """

    def __init__(self, most: int, limit: int | None) -> None:
        super().__init__()
        self._most, self._limit = most, limit
        self._was_long = False

    @property
    def oldest(self) -> float:
        """The time of the earliest arrival."""
        return min(request.arrived for request in self)

    def take(self) -> list[QueuedText]:
        """Remove and return the texts of the next batch, which has about `most` tokens."""
        pieces = self._pick(no_long=self._was_long)
        if not pieces and self._was_long:
            pieces = self._pick(no_long=False)
        self._was_long = any(piece.long for piece in pieces)
        return pieces

    def put_back(self, pieces: Sequence[QueuedText]) -> None:
        """Move texts that did not fit into the batch to the front of the queue."""
        for piece in reversed(pieces):
            if not piece.request.dropped:
                piece.request.texts.appendleft((piece.number, piece.text))
                self.back(piece.request)

    def _pick(self, *, no_long: bool) -> list[QueuedText]:
        pieces: list[QueuedText] = []
        size, before = 0, -1
        while before < len(pieces):
            before = len(pieces)
            for request in self:
                texts = request.texts  # `drop` replaces them at any time, on another thread
                if not texts:
                    self.remove(request)
                    continue
                number, text = texts[0]
                tokens = self._tokens(text)
                long = tokens > self._most
                if (size + tokens > self._most and pieces) or (long and no_long):
                    continue
                size += tokens
                texts.popleft()
                pieces.append(QueuedText(request, number, text, long))
                if texts:
                    self.end_turn(request.connection)
                else:
                    self.remove(request)
        return pieces

    def _tokens(self, text: str | Array) -> int:
        """Return a text's number of tokens, or an estimate before the text is tokenized.

        The model computes only the first `limit` tokens of a text, but the tokenizer reads the
        whole text. For a very long text, the tokenizer takes longer than the model. For such a
        text, the result expresses the tokenizer's time as a number of tokens: the tokens that the
        model could compute in this time.
        """
        if not isinstance(text, str):
            return len(text)
        about = len(text) // LETTERS + 2
        return about if self._limit is None else max(min(about, self._limit), about // CUTTING)
