"""The one thread that computes: what is computed together, who is next, and who is told."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qkv.arrays import Array
from qkv.serve.batches import Batches
from qkv.serve.errors import Refused
from qkv.serve.settings import Settings
from qkv.serve.streams import END, Stream, Streams
from qkv.serve.waiting import Call, Request, Single, Texts, TextTurns, Turns

if TYPE_CHECKING:
    from qkv.models import Model
    from qkv.models.sentence.encoder import Encoder

Result = TypeVar("Result")
POLL = 0.01  # seconds between two looks at whether the thread has ended
SWITCH = 0.0005  # seconds after which the thread that computes gets the interpreter back


@dataclass(frozen=True)
class Embedded:
    """What a request for vectors is answered with.

    Attributes:
        vectors: (n, D), as `encode` gives them.
        tokens: how many tokens each text has, once it was cut.
    """

    vectors: Array
    tokens: list[int]


class Worker:
    """Computes for all requests, one thing after the other, on a thread of its own.

    What comes in the time of one batch is computed together in the next: texts of all requests in
    packed rows, of each connection one in turn, up to `settings.batch_tokens`. Between two batches
    one function and the next pieces of `settings.streams` streams have their turn.

    Args:
        model: what computes.
        settings: how many may wait, and how much is computed at once.

    Attributes:
        ready: whether the thread runs, has computed once and takes requests.
        running: the requests of the batch that is being computed.
        batches: how many batches were computed.
        seconds: the time they took.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.ready = False
        self.running = self.batches = 0
        self.seconds = 0.0
        self._encoder = None if model.tokenizer is None else model.text_encoder()
        self._encoders: dict[tuple[str | None, str | None], Encoder] = {}  # by prompt and task
        self._batches: Batches | None = None
        if self._encoder is not None:
            self._batches = Batches(self._encoder.limit, settings, self._embedded)
            self._encoders[None, None] = self._encoder
        self._texts = self._batches.waiting if self._batches else TextTurns(1, None)
        self._calls = Turns[Call]()
        self._streams = Streams(settings.streams, settings.stream_tokens)
        self._usual = 1  # requests of the last batch
        self._failures = 0
        self._answers: list[tuple[Request, Any, BaseException | None]] = []
        self._asked: set[Request] = set()  # of the event loop alone
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()  # None wakes the thread
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        """How many requests are not answered yet."""
        return len(self._asked)

    @property
    def texts(self) -> int:
        """How many texts were computed."""
        return self._batches.texts if self._batches else 0

    @property
    def tokens(self) -> int:
        """How many tokens they had."""
        return self._batches.tokens if self._batches else 0

    @property
    def failures(self) -> int:
        """How often something failed while it was computed."""
        return self._failures + (self._batches.failures if self._batches else 0)

    @property
    def streams(self) -> int:
        """How many streams have not ended."""
        return len(self._streams)

    # where requests come in: on the event loop

    def start(self) -> None:
        """Begin, and compute once, which makes ready what the first request would wait for."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="qkv-serve", daemon=True)
            self._thread.start()

    async def embed(
        self,
        texts: Sequence[str] | Sequence[Sequence[int]],
        *,
        connection: Hashable,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        task: str | None = None,
        whole: bool = False,
    ) -> Embedded:
        """The vectors of one request's texts, or ids of tokens, computed with those of others.

        Ids are taken as they are, special tokens and all, and cut at the limit as a text is. With
        `dimensions` vectors are cut to their first numbers, then scaled to length 1. The prompt and
        the task are those of `encode`. With `whole` a text that would be cut is refused.

        Raises:
            Refused: too many wait (429), the server ends (503), a text has no token or cannot be
                cut into tokens, ids are not this model's, there are too many texts or tokens, or
                there are not so many `dimensions` (400).
        """
        if self._encoder is None or self._batches is None:
            raise Refused(400, f"{self.model.name} has no tokenizer, so it cannot read text")
        encoder = self._encoder_for(prompt_name, task)
        width = encoder.width
        if dimensions is not None and not 1 <= dimensions <= width:
            raise Refused(
                400,
                f"dimensions is {dimensions} and vectors have {width} numbers: give 1 to {width}",
                param="dimensions",
            )
        if not len(texts):
            return Embedded(np.empty((0, dimensions or width), encoder.dtype), [])
        given = self._batches.checked(texts, encoder, whole=whole)
        request = Texts(
            connection=connection, texts=given, encoder=encoder, dimensions=dimensions, whole=whole
        )
        found: Embedded = await self._answer_of(request)
        return found

    def _encoder_for(self, prompt_name: str | None, task: str | None) -> Encoder:
        """The encoder of a prompt and a task, made once.

        Raises:
            Refused: 400, if the model has no such prompt or route.
        """
        if (prompt_name, task) not in self._encoders:
            try:
                made = self.model.text_encoder(prompt_name=prompt_name, task=task)
            except ValueError as error:
                said = str(error).removeprefix("encode: ")
                raise Refused(400, f"embeddings: {said}", param="prompt_name") from error
            self._encoders[prompt_name, task] = made
        return self._encoders[prompt_name, task]

    async def call(self, function: Callable[[], Result], *, connection: Hashable) -> Result:
        """What a function gives that has the model to itself.

        Raises:
            Refused: too many wait (429), or the server ends (503).
        """
        found: Result = await self._answer_of(Call(connection=connection, function=function))
        return found

    async def stream(
        self, begin: Callable[[], Iterator[Any]], *, connection: Hashable, size: int = 0
    ) -> AsyncIterator[Any]:
        """What an iterator gives, one `next` a turn; it is closed when nobody reads on.

        It may be closed while others have their turns; then `begin` makes one that continues.

        Args:
            begin: makes the iterator.
            connection: whose it is.
            size: about how many tokens the iterator keeps in memory.

        Raises:
            Refused: too many wait (429), or the server ends (503).
        """
        request = Stream(connection=connection, begin=begin, size=size)
        self._submit(request)
        try:
            while (piece := await request.read()) is not END:
                self._inbox.put(None)  # it may have stood still
                yield piece
        finally:
            self._asked.discard(request)
            request.drop()
            self._inbox.put(None)

    async def stop(self) -> None:
        """Take nothing more, and end when what was taken is computed."""
        self._stopping = True
        self.ready = False
        if self._thread is not None:
            self._inbox.put(None)
            while self._thread.is_alive():  # a thread that joins it could not be given up
                await asyncio.sleep(POLL)

    async def _answer_of(self, request: Single) -> Any:
        """What a request is answered with; if nobody waits any longer, it is dropped."""
        self._submit(request)
        try:
            return await request.answer
        finally:
            self._asked.discard(request)
            request.drop()

    def _submit(self, request: Request) -> None:
        """Put a request before the thread.

        Raises:
            Refused: there are too many, or the server ends.
        """
        if self._stopping:
            raise Refused(503, "the server ends: ask again", headers={"Retry-After": "1"})
        if self.waiting >= self.settings.waiting:
            raise Refused(
                429,
                f"{self.waiting} requests wait and no more may: ask again in a second",
                headers={"Retry-After": "1"},
            )
        self.start()
        self._asked.add(request)
        self._inbox.put(request)

    # where they are computed: on the thread

    def _work(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, SWITCH))
        try:
            self._warm_up()
            self.ready = not self._stopping
            while self._read():
                try:
                    self._turn()
                except BaseException as error:  # of ours, not of what it computes
                    self._give_up(error)
        finally:
            self.ready = False
            sys.setswitchinterval(before)

    def _warm_up(self) -> None:
        """Compute one text, so that weights are laid out before somebody waits."""
        if self._encoder is not None:
            try:
                self._encoder.pooled(self._encoder.ids(["warm"]))
            except Exception:  # requests will be told
                self._failures += 1

    def _read(self) -> bool:
        """Take in what came; without anything to do, wait for it. False at the end."""
        while True:
            idle = not (self._texts or self._calls or self._streams.is_due)
            if idle and self._stopping and self._inbox.empty() and not self._streams:
                return False
            try:
                self._accept(self._inbox.get(block=idle))
            except Empty:
                break
        if not (self._calls or self._streams):
            self._gather()
        return True

    def _gather(self) -> None:
        """Wait a little for others, where some wait and more were there just now."""
        while 1 < len(self._texts) < self._usual / 2:
            left = self._texts.oldest + self.settings.gather - time.monotonic()
            if left <= 0:
                return
            try:
                self._accept(self._inbox.get(timeout=left))
            except Empty:
                return

    def _accept(self, request: Request | None) -> None:
        if isinstance(request, Texts):
            self._texts.add(request)
        elif isinstance(request, Call):
            self._calls.add(request)
        elif isinstance(request, Stream):
            self._streams.add(request)

    def _turn(self) -> None:
        """One batch, one function, and the next pieces of some streams."""
        if self._batches is not None and (pieces := self._batches.take()):
            self._usual = self.running = len({id(piece.request) for piece in pieces})
            begin = time.perf_counter()
            self._batches.compute(pieces)
            self.seconds += time.perf_counter() - begin
            self.batches += 1
            self.running = 0
        self._tell()
        while (call := self._calls.next()) is not None:
            if not call.dropped:
                self._call(call)
                break
        for stream, value, error in self._streams.step():
            self._answers.append((stream, value, error))
        self._tell()

    def _call(self, call: Call) -> None:
        try:
            self._answers.append((call, call.function(), None))
        except BaseException as error:
            self._failures += 1
            self._answers.append((call, None, error))
        self._tell()

    def _embedded(self, request: Texts, error: BaseException | None) -> None:
        """A request for vectors is done."""
        found = None
        if error is None:
            assert request.vectors is not None
            found = Embedded(request.vectors, request.tokens)
        self._answers.append((request, found, error))

    def _give_up(self, error: BaseException) -> None:
        """Tell all that something is wrong here, and begin anew."""
        self._failures += 1
        self._answers = [(request, None, error) for request in list(self._asked)]
        self._texts.clear()
        self._calls.clear()
        self._streams.clear()
        self._tell()

    def _tell(self) -> None:
        """Give all answers at once to those who wait."""
        answers, self._answers = self._answers, []
        for loop in {request.loop for request, _, _ in answers}:
            part = [answer for answer in answers if answer[0].loop is loop]
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_tell, part)


def _tell(answers: Sequence[tuple[Request, Any, BaseException | None]]) -> None:
    for request, value, error in answers:
        request.tell(value, error)
