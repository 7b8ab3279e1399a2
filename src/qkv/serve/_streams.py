"""Compute streams piece by piece, in turn with all other requests."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from qkv.serve._waiting import Request, Turns, plain_error

END = object()
AHEAD = 16  # The maximum number of computed pieces that the client has not read.
QUANTUM = 64  # Memory is reserved for this many pieces; after them, a stream may be closed.


@dataclass(eq=False, kw_only=True)
class Stream(Request):
    """An iterator, and the computed pieces that the client has not read yet.

    Attributes:
        begin: a function that makes the iterator. If the iterator was closed to free memory,
            `begin` makes a new iterator, which continues after the last computed piece.
        size: a function of `n` that estimates the maximum number of tokens in the iterator's memory
            while it computes the next `n` pieces.
        reserved: the number of tokens for which this stream has room; 0 if it is closed.
        pieces: the iterator, while the stream is open.
        computed: the number of pieces computed so far.
        taken: the number of pieces that the client has read.
        turns: the number of pieces computed since the stream was opened.
    """

    begin: Callable[[], Iterator[Any]]
    size: Callable[[int], int] = field(default=lambda n: 0)
    reserved: int = 0
    pieces: Iterator[Any] | None = None
    computed: int = 0
    taken: int = 0
    turns: int = 0
    _items: asyncio.Queue[tuple[Any, BaseException | None]] = field(default_factory=asyncio.Queue)

    def tell(self, value: Any, error: BaseException | None) -> None:
        """Store the next item for the client: a piece, END, or an error."""
        self._items.put_nowait((value, error))

    async def read(self) -> Any:
        """Wait for the next piece and return it, or return END."""
        value, error = await self._items.get()
        self.taken += 1
        if error is not None:
            raise plain_error(error)
        return value

    @property
    def is_full(self) -> bool:
        """Whether the number of unread pieces has reached `AHEAD`. A full stream is paused."""
        return self.computed - self.taken >= AHEAD

    @property
    def is_read(self) -> bool:
        """Whether a paused stream may continue: at most `AHEAD // 2` pieces are unread."""
        return self.computed - self.taken <= AHEAD // 2

    def step(self) -> tuple[Any, BaseException | None]:
        """Compute the next piece; return the piece (or END) and the error (or None)."""
        try:
            if self.pieces is None:
                self.pieces = iter(self.begin())
            value, error = next(self.pieces, END), None
        except BaseException as raised:
            value, error = END, raised
        self.computed += 1
        self.turns += 1
        return value, error

    def close(self) -> None:
        """Close the iterator, and free its memory."""
        close = getattr(self.pieces, "close", None)
        self.pieces, self.turns, self.reserved = None, 0, 0
        if close is not None:
            with suppress(BaseException):  # the error of a closed iterator is ignored
                close()


class Streams:
    """All streams. A turn computes one piece for each of up to `most` streams.

    A stream that is waiting for its client does not get a turn until the client resumes reading. A
    stream is open while its iterator is in memory. An open stream has room for `QUANTUM` pieces.
    After these pieces, it needs room for `QUANTUM` more. To make room for a stream, another stream
    is closed if its client does not read. If memory is still short, a stream is also closed if it
    has computed at least `QUANTUM` pieces since it was opened. If this is not enough, the stream
    that needs room is itself closed. A closed stream opens again at its next turn. A short stream
    does not have to wait for the end of a long stream.

    Args:
        most: the maximum number of pieces that one turn computes.
        tokens: the approximate number of tokens that all open streams together keep in memory. If
            a single stream exceeds this number, no other stream is open at the same time.
    """

    def __init__(self, most: int, tokens: int) -> None:
        self._most, self._tokens = most, tokens
        self._all: dict[Stream, None] = {}
        self._parked: dict[Stream, None] = {}  # streams whose clients have too many unread pieces
        self._due, self._closed = Turns[Stream](), Turns[Stream]()
        # This order is reversed at each turn: one turn takes a closed stream first, and the next
        # turn takes an open stream first. So each kind comes first in every other turn.
        self._lines = [self._closed, self._due]

    def __len__(self) -> int:
        """Return the number of streams that have not ended."""
        return len(self._all)

    @property
    def is_due(self) -> bool:
        """Whether the next call of `step` has work: a piece to compute or a stream to close."""
        parked = (stream.dropped or stream.is_read for stream in self._parked)
        return bool(self._due or self._closed) or any(parked)

    def add(self, stream: Stream) -> None:
        """Add a stream; it begins when its turn comes."""
        self._all[stream] = None
        self._closed.add(stream)

    def step(self) -> Iterator[tuple[Stream, Any, BaseException | None]]:
        """Compute one turn; yield `(stream, piece, error)` for each stream of the turn.

        After the last piece and after an error, `piece` is END. If there was no error, `error` is
        None. Streams whose clients have disconnected are closed first.
        """
        for left in [stream for stream in self._all if stream.dropped]:
            self._forget(left)
        for ready in [stream for stream in self._parked if stream.is_read]:
            del self._parked[ready]
            self._due.add(ready)
        for stream in self._choose():
            value, error = stream.step()
            if value is END:
                self._forget(stream)
            elif stream.is_full:
                self._parked[stream] = None
            else:
                self._due.add(stream)
            yield stream, value, error

    def clear(self) -> None:
        """Close and remove all streams."""
        for stream in list(self._all):
            self._forget(stream)
        self._due.clear()
        self._closed.clear()

    def _choose(self) -> list[Stream]:
        """Return the streams for which this turn computes a piece.

        Both open and closed streams can be chosen. A closed stream is chosen only if `_reserve`
        makes room for it; the turn then opens it.
        """
        chosen, lines = list[Stream](), self._lines.copy()
        self._lines.reverse()
        while lines and len(chosen) < self._most:
            line = lines.pop(0)
            stream = self._next_open(chosen) if line is self._due else self._next_closed(chosen)
            if stream is not None:
                chosen.append(stream)
                lines.append(line)
        return chosen

    def _next_open(self, chosen: Sequence[Stream]) -> Stream | None:
        """Return the next open stream in the queue; close streams that have no room to continue."""
        while (stream := self._due.next()) is not None:
            if stream not in self._all:
                continue
            if stream.pieces is not None:
                if stream.turns % QUANTUM or self._reserve(stream, chosen):
                    return stream
                stream.close()
            self._closed.add(stream)
        return None

    def _next_closed(self, chosen: Sequence[Stream]) -> Stream | None:
        """Return the next closed stream in the queue; None if memory is too full to reopen it."""
        while (stream := self._closed.first) is not None:
            if stream in self._all and not self._reserve(stream, chosen):
                return None
            self._closed.remove(stream)
            if stream in self._all:
                return stream
        return None

    def _reserve(self, stream: Stream, chosen: Sequence[Stream]) -> bool:
        """Make room for the next `QUANTUM` pieces of a stream, after closing others if needed.

        Return False if there is no room.
        """
        size = stream.size(QUANTUM)
        others = [other for other in self._all if other.reserved and other is not stream]
        closable = [other for other in others if other in self._parked]
        closable += sorted(
            (s for s in others if s.turns >= QUANTUM and s not in (*closable, *chosen)),
            key=lambda other: -other.turns,
        )
        over = sum(other.reserved for other in others) + size - self._tokens
        needed = []
        for other in closable:
            if over <= 0:
                break
            needed.append(other)
            over -= other.reserved
        if over > 0 and len(needed) < len(others):
            return False
        for other in needed:
            other.close()
        stream.reserved = size
        return True

    def _forget(self, stream: Stream) -> None:
        stream.close()
        del self._all[stream]
        self._parked.pop(stream, None)
