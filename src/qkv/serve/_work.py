"""The worker thread, which forms batches, computes the batches, and sends the answers."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from qkv._argument_errors import message
from qkv.arrays import Array
from qkv.models import Model
from qkv.models.sentence.encode import Encoder
from qkv.models.tasks import Together
from qkv.serve._batches import Batches
from qkv.serve._memory import in_thread
from qkv.serve._refusals import Refused
from qkv.serve._streams import END, Stream, Streams
from qkv.serve._waiting import Job, Request, Single, Texts, Turns
from qkv.serve.settings import Settings

Result = TypeVar("Result")
POLL = 0.01  # After `stop`, check every 10 ms whether the thread has ended.
SWITCH = 0.0005  # Python's switch interval: after these seconds, a waiting thread gets the GIL.


@dataclass(frozen=True)
class Embedded:
    """The answer to a request for vectors.

    Attributes:
        vectors: the vectors (n, D), equal to the result of `encode`.
        tokens: the number of tokens of each text, after truncation to the model's limit.
    """

    vectors: Array
    tokens: list[int]


class Worker:
    """Computes all requests on a separate thread.

    While the thread computes one batch, the texts of the next batch arrive. A batch takes one text
    from each connection in turn, up to `settings.batch_tokens` tokens, and packs the texts into
    rows. Between two batches, the thread calls the function of one `Job`. Then the thread computes
    the next piece of up to `settings.streams` streams. Streams that use `together` share forward
    passes.

    Args:
        model: the model to run.
        settings: the maximum sizes of the queue and of a batch.

    Attributes:
        ready: whether the server says that it is ready. The application sets this attribute, and
            `stop` resets it.
        together: computes the new tokens of all streams in one forward pass.
        counts: the numbers of batches, texts and tokens computed so far, and of errors.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.ready = False
        self._encoder = None if model.tokenizer is None else model.text_encoder()
        # keyed by prompt, task and `normalize`
        self._encoders: dict[tuple[str | None, str | None, bool | None], Encoder] = {}
        if self._encoder is not None:
            self._encoders[None, None, None] = self._encoder
        limit = None if self._encoder is None else self._encoder.limit
        self._batches = Batches(limit, settings, self._answer_vectors)
        self.counts = self._batches.counts
        self._texts, self._tasks = self._batches.waiting, Turns[Job]()
        self.together = Together()
        self._streams = Streams(settings.streams, settings.stream_tokens)
        self._lines: dict[type[Request], Any] = {Texts: self._texts, Job: self._tasks}
        self._lines[Stream] = self._streams
        self._usual = 1  # the number of requests in the last batch
        self._answers: list[tuple[Request, Any, BaseException | None]] = []
        self._requests: set[Request] = set()  # Only the event loop uses this set.
        # An entry None only wakes the thread.
        self._inbox: SimpleQueue[Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._preparing = 0  # the number of requests whose texts are tokenized on other threads

    @property
    def waiting(self) -> int:
        """The number of requests not yet answered."""
        return len(self._requests)

    @property
    def streams(self) -> int:
        """The number of streams that have not ended."""
        return len(self._streams)

    @property
    def oldest_seconds(self) -> float:
        """The time since the oldest unanswered request arrived; streams do not count."""
        times = [request.arrived for request in self._requests if isinstance(request, Single)]
        return time.monotonic() - min(times) if times else 0.0

    # methods that run on the event loop

    def start(self) -> None:
        """Start the thread that computes."""
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
        normalize: bool | None = None,
        whole: bool = False,
    ) -> Embedded:
        """Compute the vectors of texts or token ids, in batches with other requests.

        Token ids must include the special tokens, and are truncated at the same limit as texts.
        If `dimensions` is given, only the first dimensions of each vector are kept, and the vector
        is scaled to length 1 unless `normalize` is false. `prompt_name` and `task` mean the same as
        in `encode`; `normalize` means `normalize_embeddings`. If `whole` is true, a text that would
        be truncated is refused.

        Raises:
            Refused: the status is 429 if too many requests wait, and 503 if the server is shutting
                down. The status is 400 in each of these cases: a text is empty or cannot be
                tokenized; an id is not in the vocabulary; the request has too many texts or tokens;
                the vectors have fewer than `dimensions` dimensions.
        """
        if self._encoder is None:
            raise Refused(400, f"{self.model.name} has no tokenizer, so it cannot read text")
        encoder = self._encoder_for(prompt_name, task, normalize)
        width = encoder.width
        if dimensions is not None and not 1 <= dimensions <= width:
            problem = f"dimensions is {dimensions} and vectors have {width} numbers"
            raise Refused(400, f"{problem}; pass 1 to {width}", param="dimensions")
        if not len(texts):
            return Embedded(np.empty((0, dimensions or width), encoder.dtype), [])
        request = Texts(
            connection=connection,
            texts=self._batches.check(texts, encoder, whole=whole),
            encoder=encoder,
            dimensions=dimensions,
            whole=whole,
        )
        is_text = isinstance(request.texts[0][1], str)
        before = is_text and self._batches.may_exceed(request)
        parts = self._batches.tokenize(request) if before else None
        return Embedded(await self._answer_of(request, parts), request.tokens)

    def _encoder_for(
        self, prompt_name: str | None, task: str | None, normalize: bool | None
    ) -> Encoder:
        """Return the encoder for a prompt, a task and `normalize`; each encoder is made once.

        Raises:
            Refused: 400, if the model defines no such prompt or task.
        """
        key = prompt_name, task, normalize
        if key not in self._encoders:
            try:
                encoder = self.model.text_encoder(
                    prompt_name=prompt_name, task=task, normalize_embeddings=normalize
                )
            except ValueError as error:
                problem = f"embeddings: {message(error)}"
                raise Refused(400, problem, param="prompt_name") from error
            self._encoders[key] = encoder
        return self._encoders[key]

    async def call(self, function: Callable[[], Result], *, connection: Hashable) -> Result:
        """Call a function on the thread, with exclusive use of the model, and return the result.

        Raises:
            Refused: too many requests wait (429), or the server is shutting down (503).
        """
        result: Result = await self._answer_of(Job(connection=connection, function=function))
        return result

    async def stream(
        self,
        begin: Callable[[], Iterator[Any]],
        *,
        connection: Hashable,
        size: Callable[[int], int] = lambda n: 0,
    ) -> AsyncIterator[Any]:
        """Yield the items of an iterator, one in each turn, until the client disconnects.

        The worker may close the iterator to free memory for other streams. At the stream's next
        turn, `begin` then makes a new iterator, which continues after the last computed item.

        Args:
            begin: a function that makes the iterator.
            connection: the connection of the client.
            size: a function of `n` that estimates the maximum number of tokens in the iterator's
                memory while it computes the next `n` items.

        Raises:
            Refused: too many requests wait (429), or the server is shutting down (503).
        """
        request = Stream(connection=connection, begin=begin, size=size)
        self._admit(request)
        self._inbox.put(request)
        try:
            while (piece := await request.read()) is not END:
                self._inbox.put(None)  # wake the thread, because a paused stream may continue
                yield piece
        finally:
            request.drop()  # first: what no longer waits is computed no further
            self._requests.discard(request)
            self._inbox.put(None)

    async def stop(self) -> None:
        """Refuse new requests, answer all accepted requests, then end the thread."""
        self._stopping = True
        self.ready = False
        if self._thread is not None:
            self._inbox.put(None)
            while self._thread.is_alive():  # join() would block the event loop
                await asyncio.sleep(POLL)

    async def _answer_of(self, request: Single, steps: Iterator[None] | None = None) -> Any:
        """Wait for the answer to a request; drop the request if the client disconnects.

        If `steps` are given, they run on another thread first.
        """
        self._admit(request)
        try:
            if steps is None:
                self._inbox.put(request)
            else:
                await self._prepare(request, steps)
            return await request.answer
        finally:
            request.drop()
            self._requests.discard(request)

    async def _prepare(self, request: Request, steps: Iterator[None]) -> None:
        """Run steps one by one on another thread, then pass the request to the worker's thread."""
        self._preparing += 1
        try:
            while await in_thread(next, steps, END) is not END:
                pass
            self._inbox.put(request)
        finally:
            self._preparing -= 1
            self._inbox.put(None)  # wake the thread, which may have to end

    def _admit(self, request: Request) -> None:
        """Count a request as waiting, and start the thread.

        Raises:
            Refused: too many requests wait, or the server is shutting down.
        """
        if self._stopping:
            raise Refused(503, "the server is stopping: try again", headers={"Retry-After": "1"})
        if self.waiting >= self.settings.waiting:
            message = f"{self.waiting} requests wait, which is the limit: try again in a second"
            raise Refused(429, message, headers={"Retry-After": "1"})
        self.start()
        self._requests.add(request)

    # methods that run on the thread

    def _work(self) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, SWITCH))
        try:
            while self._read():
                try:
                    self._turn()
                except BaseException as error:  # an error that `_turn` did not expect
                    self._give_up(error)
        finally:
            self.ready = False
            sys.setswitchinterval(before)

    def _read(self) -> bool:
        """Accept new requests; if there is no work, wait for a request.

        Return False if the thread must end: `stop` was called, and all requests are answered.
        """
        while True:
            # These are read in this order: `stop` lets no request begin, and a request that was
            # tokenized is in the inbox.
            stopping, preparing = self._stopping, self._preparing > 0
            idle = not (self._texts or self._tasks or self._streams.is_due)
            ends = stopping and not preparing and self._inbox.empty() and not self._streams
            if idle and ends:
                return False
            try:
                self._accept(self._inbox.get(block=idle))
            except Empty:
                break
        if not (self._tasks or self._streams):
            self._gather()
        return True

    def _gather(self) -> None:
        """Wait for more requests, until `settings.gather` seconds after the first arrival.

        The wait ends earlier if the number of waiting requests reaches half of the number in the
        last batch. A single request does not wait.
        """
        while 1 < len(self._texts) < self._usual / 2:
            left = self._texts.oldest + self.settings.gather - time.monotonic()
            if left <= 0:
                return
            try:
                self._accept(self._inbox.get(timeout=left))
            except Empty:
                return

    def _accept(self, request: Request | None) -> None:
        if request is not None:
            self._lines[type(request)].add(request)

    def _turn(self) -> None:
        """Compute one batch, call one function, and compute the next pieces of some streams."""
        if pieces := self._batches.take():
            self._usual = len({id(piece.request) for piece in pieces})
            self._batches.compute(pieces)
            self.counts.batches += 1
        self._tell()
        while (task := self._tasks.next()) is not None:
            if not task.dropped:
                self._call(task)
                break
        self._answers += self._streams.step()
        self._tell()

    def _call(self, task: Job) -> None:
        try:
            self._answers.append((task, task.function(), None))
        except BaseException as error:
            self.counts.failures += 1
            self._answers.append((task, None, error))
        self._tell()

    def _answer_vectors(self, request: Texts, error: BaseException | None) -> None:
        """Answer a request for vectors."""
        self._answers.append((request, request.vectors, error))

    def _give_up(self, error: BaseException) -> None:
        """Answer all requests with an error, and reset the queues."""
        self.counts.failures += 1
        self._answers = [(request, None, error) for request in list(self._requests)]
        for line in self._lines.values():
            line.clear()
        self._tell()

    def _tell(self) -> None:
        """Send each event loop all of its answers in one call."""
        answers, self._answers = self._answers, []
        for loop in {request.loop for request, _, _ in answers}:
            part = [answer for answer in answers if answer[0].loop is loop]
            with suppress(RuntimeError):  # the loop is closed, so no client waits
                loop.call_soon_threadsafe(_tell, part)


def _tell(answers: Sequence[tuple[Request, Any, BaseException | None]]) -> None:
    for request, value, error in answers:
        request.tell(value, error)
