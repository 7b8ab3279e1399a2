"""Iterators that are computed a piece at a time, in turn with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.serve.waiting import Request, Turns, plain_error

END = object()
AHEAD = 16  # pieces that are computed before somebody has read them
QUANTUM = 64  # pieces that an open stream gives before it may be closed to make room for another


@dataclass(eq=False, kw_only=True)
class Stream(Request):
    """An iterator, and the pieces of it that were computed and not read yet.

    Attributes:
        begin: makes the iterator; when it is called again, the new one continues where the last
            one was closed.
        size: about how many tokens the iterator keeps in memory.
        pieces: the iterator, while the stream is open.
        given: how many pieces were computed.
        taken: how many of them were read.
        turns: how many pieces were computed since the stream was opened.
    """

    begin: Callable[[], Iterator[Any]]
    size: int = 0
    pieces: Iterator[Any] | None = None
    given: int = 0
    taken: int = 0
    turns: int = 0
    _told: asyncio.Queue[tuple[Any, BaseException | None]] = field(default_factory=asyncio.Queue)

    def tell(self, value: Any, error: BaseException | None) -> None:
        """One more piece, END, or why there is none."""
        self._told.put_nowait((value, error))

    async def read(self) -> Any:
        """The next piece, or END."""
        value, error = await self._told.get()
        self.taken += 1
        if error is not None:
            raise plain_error(error)
        return value

    @property
    def is_full(self) -> bool:
        """Whether the reader has to read before more is computed."""
        return self.given - self.taken >= AHEAD

    @property
    def is_read(self) -> bool:
        """Whether the reader has read so much that a full stream goes on."""
        return self.given - self.taken <= AHEAD // 2

    def step(self) -> tuple[Any, BaseException | None]:
        """The next piece, END, or the error: computed here."""
        try:
            if self.pieces is None:
                self.pieces = iter(self.begin())
            value, error = next(self.pieces, END), None
        except BaseException as raised:
            value, error = END, raised
        self.given += 1
        self.turns += 1
        return value, error

    def close(self) -> None:
        """Close the iterator where it stands, and free its memory."""
        close = getattr(self.pieces, "close", None)
        self.pieces, self.turns = None, 0
        if close is not None:
            try:
                close()
            except BaseException:  # nobody is there to be told
                return


class Streams:
    """Streams that have turns: a few pieces a turn, of one stream of each connection after another.

    A stream that waits for its reader has no turn until the reader reads on. A stream is open while
    its iterator is kept in memory. Where all that is open would take more than `tokens`, a stream
    that waits for its reader is closed, or one that gave `QUANTUM` pieces: it is opened again when
    its turn comes. So no number of slow readers or long streams keeps others waiting for their end.

    Args:
        most: how many pieces are computed in a turn.
        tokens: about how many tokens open streams keep in memory together; one may have more.
    """

    def __init__(self, most: int, tokens: int) -> None:
        self._most, self._tokens = most, tokens
        self._all: dict[Stream, None] = {}
        self._parked: dict[Stream, None] = {}  # they wait for their readers
        self._due, self._closed = Turns[Stream](), Turns[Stream]()
        self._lines = [self._closed, self._due]  # they take turns too

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._all)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do."""
        if self._due or self._closed:
            return True
        return any(one.dropped or one.is_read for one in self._parked)

    def add(self, stream: Stream) -> None:
        """Begin it when its turn comes."""
        self._all[stream] = None
        self._closed.add(stream)

    def step(self) -> Iterator[tuple[Stream, Any, BaseException | None]]:
        """The next pieces; for each whom to tell. Streams that nobody reads are closed."""
        for left in [one for one in self._all if one.dropped]:
            self._forget(left)
        for ready in [one for one in self._parked if one.is_read]:
            del self._parked[ready]
            self._due.add(ready)
        for stream in self._chosen():
            value, error = stream.step()
            if value is END:
                self._forget(stream)
            elif stream.is_full:
                self._parked[stream] = None
            else:
                self._due.add(stream)
            yield stream, value, error

    def clear(self) -> None:
        """Close and forget all."""
        for stream in list(self._all):
            self._forget(stream)
        self._due.clear()
        self._closed.clear()

    def _chosen(self) -> list[Stream]:
        """The streams whose turn it is, each of which is open or has room to be opened."""
        chosen, lines = list[Stream](), self._lines.copy()
        self._lines.reverse()
        while lines and len(chosen) < self._most:
            line = lines.pop(0)
            stream = self._next_open() if line is self._due else self._next_closed(chosen)
            if stream is not None:
                chosen.append(stream)
                lines.append(line)
        return chosen

    def _next_open(self) -> Stream | None:
        """The open stream whose turn it is."""
        while (stream := self._due.next()) is not None:
            if stream in self._all and stream.pieces is not None:
                return stream
            if stream in self._all:
                self._closed.add(stream)
        return None

    def _next_closed(self, chosen: Sequence[Stream]) -> Stream | None:
        """The closed stream whose turn it is, if there is room for it; others wait behind it."""
        while (stream := self._closed.first) is not None:
            if stream in self._all and not self._has_room(stream, chosen):
                return None
            self._closed.remove(stream)
            if stream in self._all:
                return stream
        return None

    def _has_room(self, stream: Stream, chosen: Sequence[Stream]) -> bool:
        """Whether a stream may be opened beside the others, once some of these are closed."""
        kept = [one for one in self._all if one.pieces is not None or one in chosen]
        closable = [one for one in kept if one in self._parked]
        closable += sorted(
            (one for one in kept if one.turns >= QUANTUM and one not in (*closable, *chosen)),
            key=lambda one: -one.turns,
        )
        over = sum(one.size for one in kept) + stream.size - self._tokens
        needed = []
        for one in closable:
            if over <= 0:
                break
            needed.append(one)
            over -= one.size
        if over > 0 and len(needed) < len(kept):
            return False
        for one in needed:
            one.close()
        return True

    def _forget(self, stream: Stream) -> None:
        stream.close()
        del self._all[stream]
        self._parked.pop(stream, None)
