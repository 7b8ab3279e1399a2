"""Tests of the thread that computes, without HTTP.

The tests compare vectors with those of `encode`. They also check the order in which requests are
computed, limits, shutdown, errors and streams.
"""

import asyncio
import gc
import threading
from collections import deque
from contextlib import aclosing, asynccontextmanager
from queue import SimpleQueue

import numpy as np
import pytest

import qkv
from models.support import Folder
from qkv.models import random_model
from qkv.models.sentence.encode import Encoder
from qkv.serve._batches import Counts
from qkv.serve._memory import in_thread
from qkv.serve._refusals import Refused
from qkv.serve._streams import AHEAD, QUANTUM
from qkv.serve._waiting import Job, Request, Texts, TextTurns
from qkv.serve._work import Worker
from qkv.serve.settings import Settings

LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
SECONDS = 300
MODEL = random_model(LETTERS)


@pytest.fixture(scope="module")
def minilm():
    return qkv.load("minilm")


@asynccontextmanager
async def working(model=MODEL, **settings):
    worker = Worker(model, Settings(**settings))
    try:
        yield worker
    finally:
        await asyncio.wait_for(worker.stop(), SECONDS / 2)
        assert worker._thread is None or not worker._thread.is_alive()
        assert worker.waiting == 0


@asynccontextmanager
async def held(worker):
    """Keep the computing thread busy until the `async with` block ends."""
    entered, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold():
        loop.call_soon_threadsafe(entered.set)
        assert release.wait(SECONDS)

    task = asyncio.create_task(worker.call(hold, connection="held"))
    try:
        await entered.wait()
        yield
        await settled()
    finally:
        release.set()
        await task


async def until(true):
    """Poll a condition; conftest.py bounds the time of a test."""
    while not true():
        await asyncio.sleep(0.01)


async def settled():
    """Let all tasks run as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def begin(worker, texts, connection, **options):
    return asyncio.create_task(worker.embed(texts, connection=connection, **options))


def ids(words):
    return MODEL.tokenize(words).ids.tolist()


@pytest.fixture
def computed(monkeypatch):
    """The computed batches, in order; a batch is a list with the words of each text."""
    batches, pooled = [], Encoder.pool_texts

    def spied(self, batch):
        words = [" ".join(map(self.tokenizer.token, row.tolist())) for row in batch]
        batches.append(words)
        return pooled(self, batch)

    monkeypatch.setattr(Encoder, "pool_texts", spied)
    return batches


# vectors


def natural(rng, model, count):
    """Return texts of 1 to 300 random words of the model's vocabulary."""
    words = [word for word in model.tokenizer.vocabulary if word.isalpha()]
    lengths = np.clip(rng.lognormal(2, 1.2, count), 1, 300).astype(int)
    return [" ".join(rng.choice(words, length)) for length in lengths]


@pytest.mark.parametrize("dimensions", [None, 64])
@pytest.mark.filterwarnings("ignore:.* texts were cut to 256 tokens")
async def test_vectors_are_those_of_encode(minilm, dimensions):
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, 20)
    requests = [natural(rng, minilm, count) for count in counts]
    requests[3][0] = "far too long " * 400
    async with working(minilm, batch_tokens=1024) as worker:
        tasks = []
        for number, texts in enumerate(requests):
            given = texts
            if number % 3 == 0:
                given = [minilm.tokenize(text).ids.tolist() for text in texts]
            tasks.append(begin(worker, given, number % 7, dimensions=dimensions))
        answers = await asyncio.gather(*tasks)
    for texts, found in zip(requests, answers, strict=True):
        expected = minilm.encode(texts, truncate_dim=dimensions)
        if dimensions is not None:
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert found.vectors.dtype == np.float32
        np.testing.assert_allclose(found.vectors, expected, rtol=0, atol=1e-6)
        assert found.tokens == [min(len(minilm.tokenize(text)), 256) for text in texts]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a", ""], "input 1 is empty: there is no token in it"),
        (["a", "b \ud800"], "input 1 has the lone surrogate"),
        ([[1, 2], [3, 99]], "input 1: there is no token 99: the ids run from 0 to 26"),
        ([[1], [-1]], "input 1: there is no token -1"),
        ([[1], []], "input 1 has no ids"),
        ([[1.5]], "input 0 has dtype float64"),
        ([[True]], "input 0 has dtype bool"),
        ([[10**30]], "input 0"),
        ([[[1]]], r"input 0 has dtype int64 and shape \(1, 1\)"),
        ([None], "input 0"),
        ([3], "input 0"),
        (["a"] * 9, "input has 9 texts: send at most 8"),
        (["a b c d e f g"] * 3, "input has more than 20 tokens"),
        ([[1] * 21], "input has more than 20 tokens"),
    ],
)
async def test_a_request_that_cannot_be_computed_is_refused_alone(texts, words):
    async with working(inputs=8, tokens=20) as worker:
        async with held(worker):
            bad = begin(worker, texts, "bad")
            good = begin(worker, ["a", "b"], "good")
        with pytest.raises(Refused, match=words) as raised:
            await bad
        assert (raised.value.status, raised.value.param) == (400, "input")
        np.testing.assert_allclose((await good).vectors, MODEL.encode(["a", "b"]), atol=1e-6)


@pytest.mark.parametrize("included", [True, False])
async def test_texts_behind_several_prompts_are_computed_together(tmp_path, computed, included):
    """If prompts are not pooled, texts share a batch only if their prompts have equal lengths."""
    folder = Folder(tmp_path)
    folder.write()
    folder.sentence({"pooling_mode": "mean", "include_prompt": included})
    prompts = {"query": "a cat ", "document": "the mat "}
    folder.json("config_sentence_transformers.json", {"prompts": prompts})
    model, names = qkv.load(folder.path), ["query", "document", None] * 2
    async with working(model) as worker:
        async with held(worker):
            tasks = [
                begin(worker, ["the cat sat", "a dog"], number, prompt_name=name)
                for number, name in enumerate(names)
            ]
        found = await asyncio.gather(*tasks)
    assert len(computed) == (1 if included else 2)
    for name, one in zip(names, found, strict=True):
        expected = model.encode(["the cat sat", "a dog"], prompt_name=name)
        np.testing.assert_allclose(one.vectors, expected, atol=1e-6)


# batches and turns


async def test_requests_that_arrive_together_share_a_batch_and_a_callback(computed):
    async with working() as worker:
        async with held(worker):
            tasks = [begin(worker, [letter], letter) for letter in LETTERS.split()]
            await settled()
            loop, told = asyncio.get_running_loop(), []
            call_soon = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *given: told.append(given) or call_soon(*given)
        await asyncio.gather(*tasks)
        assert len(told) == 2  # for the call that held the thread, and for the batch
        assert worker.counts == Counts(batches=1, texts=26, tokens=26)
    assert computed == [LETTERS.split()]


async def test_connections_have_turns(computed):
    """A single text waits neither for a client with many requests nor for a large request."""
    async with working(batch_tokens=4) as worker:
        async with held(worker):
            tasks = [begin(worker, [ids(word)], "many") for word in "abcde"]
            tasks.append(begin(worker, [ids(word) for word in "xyz"], "large"))
            tasks.append(begin(worker, [ids("s")], "single"))
        await asyncio.gather(*tasks)
    assert computed == [["a", "x", "s", "b"], ["y", "c", "z", "d"], ["e"]]


async def test_a_long_text_does_not_keep_short_ones_waiting(computed):
    """A long text is computed alone, and waiting short texts come before the next long text."""
    long = [" ".join(letter * 9) for letter in "xyz"]

    async with working(batch_tokens=4) as worker:
        async with held(worker):
            tasks = [begin(worker, [ids(text)], text) for text in long]
            tasks += [begin(worker, [ids(word)], word) for word in "abcdef"]
        await asyncio.gather(*tasks)
    assert computed == [[long[0]], [*"abcd"], [long[1]], [*"ef"], [long[2]]]


async def test_cutting_a_long_text_counts_as_computing_time():
    """Cutting 6,400 characters to 8 tokens counts as much as computing 100 tokens."""
    turns = TextTurns(most=32, limit=8)
    for connection, texts in ("long", ["x " * 3200] * 2), ("short", ["a", "b"]):
        numbered = deque(enumerate(texts))
        turns.add(Texts(connection=connection, texts=numbered, encoder=None))
    taken = [[piece.text.strip()[:3] for piece in turns.take()] for _ in range(3)]
    assert taken == [["x x"], ["a", "b"], ["x x"]]


@pytest.mark.parametrize("step", range(6))
async def test_a_client_may_leave_at_any_step_of_choosing_a_batch(step):
    """The event loop drops a request while the thread takes the request's texts one by one."""

    class Watched(deque):
        request, accesses = None, 0

        def watched(self, access, *arguments):
            if self.request is not None:
                if self.accesses == step:
                    self.request.drop()
                self.accesses += 1
            return access(*arguments)

        def __len__(self):
            return self.watched(super().__len__)

        def __getitem__(self, index):
            return self.watched(super().__getitem__, index)

        def popleft(self):
            return self.watched(super().popleft)

    texts, turns = Watched([(0, "a"), (1, "b")]), TextTurns(most=32, limit=8)
    request = Texts(connection=0, texts=texts, encoder=None)
    other = Texts(connection=1, texts=deque([(0, "c")]), encoder=None)
    texts.request = request
    for each in request, other:
        turns.add(each)
    taken = [piece.request for _ in range(2) for piece in turns.take()]
    assert (request.dropped, taken.count(other), len(turns)) == (True, 1, 0)


async def test_texts_of_more_tokens_than_was_thought_come_next(computed):
    """A text of 11 characters is estimated at 4 tokens, but these texts have 6 tokens."""
    texts = [" ".join(letter * 6) for letter in "abcd"]
    async with working(batch_tokens=12) as worker:
        async with held(worker):
            tasks = [begin(worker, [text, "z"], text) for text in texts]
        answers = await asyncio.gather(*tasks)
    for text, found in zip(texts, answers, strict=True):
        np.testing.assert_allclose(found.vectors, MODEL.encode([text, "z"]), atol=1e-6)
    assert computed[:3] == [texts[:2], texts[2:], ["z"] * 4]


async def test_a_request_with_too_many_tokens_is_refused_before_it_is_computed(computed):
    async with working(tokens=100, batch_tokens=8) as worker:
        async with held(worker):  # the thread cannot compute, and the request is refused
            refused = worker.embed(["a b"] * 51, connection=0)
            with pytest.raises(Refused, match="more than 100 tokens"):
                await asyncio.wait_for(refused, SECONDS / 2)
            with pytest.raises(Refused, match="input 70 "):
                await worker.embed(["a"] * 70 + [" "] + ["b"] * 9, connection=0)
        found = await worker.embed(["a b c d e"] * 20, connection=0)
        assert found.tokens == [5] * 20
    assert sum(map(len, computed)) == 20


async def test_a_request_that_is_tokenized_during_the_shutdown_is_answered(monkeypatch):
    cut, begun, go_on = Encoder.ids, threading.Event(), threading.Event()

    def slowly(self, texts, **options):
        begun.set()
        assert go_on.wait(SECONDS)
        return cut(self, texts, **options)

    async with working(tokens=100) as worker:
        await worker.embed(["a"], connection=0)
        monkeypatch.setattr(Encoder, "ids", slowly)
        task = begin(worker, ["a a"] * 40, 0)
        await asyncio.to_thread(begun.wait)
        stopping = asyncio.create_task(worker.stop())
        await settled()
        await until(worker._inbox.empty)  # the thread knows that it stops
        go_on.set()
        assert (await task).tokens == [2] * 40
        await stopping


async def test_calls_have_their_turn_between_batches(computed):
    async with working(batch_tokens=2) as worker:
        async with held(worker):
            tasks = [begin(worker, [ids(word) for word in "abcd"], "texts")]
            for name in "call", "more":
                call = worker.call(lambda name=name: computed.append(name), connection=name)
                tasks.append(asyncio.create_task(call))
        await asyncio.gather(*tasks)
    assert computed == [["a", "b"], "call", ["c", "d"], "more"]


async def test_a_lone_request_waits_for_nobody():
    """A lone request does not wait for others, even directly after many requests."""
    async with working(gather=SECONDS * 10) as worker:
        worker._usual = 64
        for _ in range(3):
            await worker.embed(["a"], connection=0)


async def test_a_small_batch_waits_for_more_requests_under_load(computed):
    async with working(gather=SECONDS * 10) as worker:
        async with held(worker):
            worker._usual = 8
            tasks = [begin(worker, [word], word) for word in "ab"]
        await until(lambda: len(worker._texts) == 2)  # the thread has both
        assert not computed
        tasks += [begin(worker, [word], word) for word in "cd"]
        await asyncio.gather(*tasks)
    assert computed == [["a", "b", "c", "d"]]


# requests above the limit, canceled requests, and requests at shutdown


async def test_a_request_is_not_lost_if_the_server_stops_while_the_thread_looks():
    """After the thread has read `_preparing`, a request is admitted, and then `stop` begins."""

    class Inbox(SimpleQueue):
        def get(self, **options):
            looks.set()
            return super().get(**options)

    class Watched(Worker):
        @property
        def _preparing(self):
            if threading.current_thread() is thread:
                self._stopping = True
            return 0

        @_preparing.setter
        def _preparing(self, value): ...

    thread, looks, found = None, threading.Event(), []
    worker = Watched(MODEL, Settings())
    worker._inbox = Inbox()
    job = Job(connection=0, function=str)
    thread = threading.Thread(target=lambda: found.append(worker._read()), daemon=True)
    thread.start()
    await until(lambda: looks.is_set() or not thread.is_alive())
    worker._inbox.put(job)
    await asyncio.to_thread(thread.join, SECONDS)
    assert found == [True]


async def test_a_canceled_caller_waits_for_its_thread():
    """A request frees its memory only after its thread, which may use the memory, has ended."""
    begun, release, done = threading.Event(), threading.Event(), []

    def work(fails):
        begun.set()
        assert release.wait(SECONDS)
        done.append(fails)
        if fails:
            raise ValueError("nobody reads this error")

    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    for fails in False, True:
        begun.clear()
        release.clear()
        task = asyncio.create_task(in_thread(work, fails))
        await asyncio.to_thread(begun.wait, SECONDS)
        task.cancel()
        await settled()
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done[-1] is fails
        del task
        gc.collect()
    assert not errors
    assert await in_thread(divmod, 7, 2) == (3, 1)


async def test_requests_above_the_waiting_limit_are_refused():
    async with working(waiting=3) as worker:
        async with held(worker):
            tasks = [begin(worker, ["a"], word) for word in "ab"]
            await settled()
            assert worker.waiting == 3
            for refused in (
                worker.embed(["a"], connection="c"),
                worker.call(lambda: None, connection="c"),
                anext(worker.stream(lambda: iter("a"), connection="c")),
            ):
                with pytest.raises(Refused) as raised:
                    await refused
                assert raised.value.status == 429
                assert int(raised.value.headers["Retry-After"]) >= 1
        await asyncio.gather(*tasks)
        assert worker.waiting == 0
        await worker.embed(["a"], connection="c")


async def gone(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_rest_of_a_request_that_is_gone_is_not_computed(computed):
    async with working(batch_tokens=2) as worker:
        first = begin(worker, [ids(word) for word in "abcdef"], 0)
        loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        pooled = worker._encoder.pool_texts

        def slowly(batch):
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(SECONDS)
            return pooled(batch)

        worker._encoder.pool_texts = slowly
        await begun.wait()
        await gone(first)
        go_on.set()
        await worker.embed([ids("x")], connection=1)
    assert computed == [["a", "b"], ["x"]]


async def test_the_end_comes_when_all_is_answered():
    async with working() as worker:
        async with held(worker):
            tasks = [begin(worker, ["a", "b"], number) for number in range(5)]
            pieces = asyncio.create_task(read(worker, lambda: iter("abc")))
            await settled()
            stop = asyncio.create_task(worker.stop())
            await settled()
            assert not worker.ready
            with pytest.raises(Refused) as raised:
                await worker.embed(["a"], connection=0)
            assert raised.value.status == 503
            assert not stop.done()
        for found in await asyncio.gather(*tasks):
            np.testing.assert_allclose(found.vectors, MODEL.encode(["a", "b"]), atol=1e-6)
        assert await pieces == ["a", "b", "c"]
        await stop


# errors


async def test_a_text_that_fails_takes_no_other_with_it(monkeypatch):
    pooled = Encoder.pool_texts

    def failing(self, batch):
        if any(9 in row for row in batch):
            raise MemoryError("too much")
        return pooled(self, batch)

    monkeypatch.setattr(Encoder, "pool_texts", failing)
    bad = MODEL.tokenizer.token(9)

    async with working() as worker:
        async with held(worker):
            texts = [[letter] for letter in LETTERS.split()] + [["a", bad], ["a", "b"]]
            tasks = [begin(worker, one, number) for number, one in enumerate(texts)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for one, result in zip(texts, found, strict=True):
            if bad in one:
                assert isinstance(result, MemoryError)
            else:
                np.testing.assert_allclose(result.vectors, MODEL.encode(one), atol=1e-6)
        assert worker.counts.failures == 3  # the batch, and the two texts
        await worker.embed(["a"], connection=0)


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
async def test_errors_of_calls_and_streams_reach_the_caller(error):
    async with working() as worker:
        plain = error is ValueError
        with pytest.raises(error if plain else RuntimeError, match="no good"):
            await worker.call(raising(error), connection=0)
        with pytest.raises(error if plain else RuntimeError, match="no good"):
            await anext(worker.stream(raising(error), connection=0))
        await worker.embed(["a"], connection=0)


def raising(error):
    def function():
        raise error("no good")

    return function


async def test_an_internal_error_fails_only_the_waiting_requests():
    async with working() as worker:
        async with held(worker):
            tasks = [begin(worker, ["a"], number) for number in range(3)]
            take = worker._batches.take
            worker._batches.take = raising(ZeroDivisionError)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found] == [ZeroDivisionError] * 3
        worker._batches.take = take
        await worker.embed(["a"], connection=0)


# streams


async def read(worker, begin, connection="stream", **options):
    return [piece async for piece in worker.stream(begin, connection=connection, **options)]


async def test_streams_have_turns_with_batches_and_each_other(computed):
    async with working(batch_tokens=1) as worker:
        async with held(worker):
            first = asyncio.create_task(read(worker, counted(computed, "first", 3)))
            await settled()
            second = asyncio.create_task(read(worker, counted(computed, "second", 3)))
            texts = begin(worker, [ids(word) for word in "abcd"], "texts")
        assert await first == await second == [0, 1, 2]
        await texts
    expected = [["a"], "first0", "second0", ["b"], "first1", "second1"]
    assert computed == [*expected, ["c"], "first2", "second2", ["d"]]


def counted(computed, name, count):
    """Return a function that yields numbers, and adds each to the computed batches first."""

    def pieces():
        for number in range(count):
            computed.append(f"{name}{number}")
            yield number

    return pieces


def reading(worker, streams, size=None):
    """Begin to read several streams, each as a client of its own."""
    return [
        asyncio.create_task(read(worker, one, ("client", number), size=size or one.size))
        for number, one in enumerate(streams)
    ]


class Endless:
    """Yields pieces without an end, and records which thread closes the generator."""

    def __init__(self):
        self.count, self.closed, self.where = 0, threading.Event(), None

    def __call__(self):
        try:
            while True:
                self.count += 1
                yield self.count
        finally:
            self.where = threading.current_thread().name
            self.closed.set()


@pytest.mark.parametrize("how", ["aclose", "cancel"])
async def test_a_stream_is_closed_on_the_thread_when_its_reader_leaves(how):
    pieces = Endless()

    async with working() as worker:
        if how == "aclose":
            async with aclosing(worker.stream(pieces, connection=0)) as stream:
                assert [await anext(stream) for _ in range(3)] == [1, 2, 3]
        else:
            got = asyncio.Event()

            async def reader():
                async for _ in worker.stream(pieces, connection=0):
                    got.set()
                    await asyncio.sleep(SECONDS)

            task = asyncio.create_task(reader())
            await got.wait()
            await gone(task)
        assert await asyncio.to_thread(pieces.closed.wait, SECONDS)
        assert pieces.where == "qkv-serve"
        await worker.call(lambda: None, connection=0)
        assert worker.streams == 0


async def test_no_more_is_computed_than_is_read():
    pieces = Endless()

    async with working() as worker, aclosing(worker.stream(pieces, connection=0)) as stream:
        await anext(stream)
        for _ in range(3 * AHEAD):  # the stream has a turn between requests
            await worker.embed(["a"], connection=1)
        assert pieces.count in (AHEAD, AHEAD + 1)
        assert [await anext(stream) for _ in range(2 * AHEAD)] == list(range(2, 2 * AHEAD + 2))


async def test_at_most_two_pieces_are_computed_between_batches(computed):
    """Three streams together compute at most two pieces between two batches.

    All three streams start before one of them ends.
    """

    async with working(batch_tokens=1, streams=2) as worker:
        async with held(worker):
            streams = [counted(computed, name, 4) for name in "abc"]
            tasks = reading(worker, streams, size=lambda n: 0)
            await settled()
            texts = begin(worker, [ids(word) for word in "stuvwxyz"], "texts")
        assert await asyncio.gather(*tasks) == [[0, 1, 2, 3]] * 3
        await texts
    pieces = [one for one in computed if isinstance(one, str)]
    between, count = [], 0
    for one in computed:
        between, count = ([*between, count], 0) if isinstance(one, list) else (between, count + 1)
    assert max(between) == 2
    for name in "abc":
        assert [one for one in pieces if one.startswith(name)] == [f"{name}{n}" for n in range(4)]
        assert pieces.index(f"{name}0") < 4  # before another stream ends


class Resumed:
    """Makes generators of pieces; a new generator continues where the closed one stopped.

    `opened` counts the generators that were started, and `open` those that are not closed yet.
    """

    def __init__(self, count):
        self.count, self.next, self.opened, self.open = count, 0, 0, 0

    def __call__(self):
        self.opened += 1
        self.open += 1
        try:
            while self.next < self.count:
                self.next += 1
                yield self.next
        finally:
            self.open -= 1


async def test_streams_that_nobody_reads_keep_no_other_waiting():
    """Streams that clients do not read use all `stream_tokens`, but other streams still finish.

    The unread streams continue when their clients read again.
    """
    async with working(streams=2, stream_tokens=100) as worker:
        slow = [Resumed(40) for _ in range(4)]
        streams = [
            worker.stream(one, connection=("slow", number), size=lambda n: 50)
            for number, one in enumerate(slow)
        ]
        for stream in streams:
            assert await anext(stream) == 1  # and then read no further
        for number in range(3):
            assert await read(worker, lambda: iter(range(200)), number) == [*range(200)]
        assert {one.next for one in slow} <= {AHEAD, AHEAD + 1}
        assert sum(one.open for one in slow) <= 2  # closed streams use no tokens
        for stream in streams:
            assert [piece async for piece in stream] == [*range(2, 41)]
        assert max(one.opened for one in slow) > 1


async def test_long_streams_keep_no_other_waiting():
    """A fifth stream finishes although four long streams use all `stream_tokens`.

    To free memory, the worker closes a long stream and continues it later, even if the stream's
    client keeps reading.
    """
    async with working(streams=4, stream_tokens=400) as worker:
        long = [Resumed(10**9) for _ in range(4)]
        tasks = reading(worker, long, size=lambda n: 100)
        while min(one.next for one in long) < 2:
            await asyncio.sleep(0)
        last = Resumed(3)
        stream = worker.stream(last, connection="last", size=lambda n: 100)
        assert [piece async for piece in stream] == [1, 2, 3]
        whole = worker.stream(Resumed(3), connection="whole", size=lambda n: 1000)
        assert [piece async for piece in whole] == [1, 2, 3]  # larger than `stream_tokens`
        for task in tasks:
            await gone(task)


class Growing(Resumed):
    """A stream that keeps a prompt and all its pieces in memory while it is open."""

    def __init__(self, count, prompt, seen=lambda: None):
        super().__init__(count)
        self.prompt, self.seen = prompt, seen

    def __call__(self):
        for piece in super().__call__():
            self.seen()
            yield piece

    def size(self, pieces):
        return self.prompt + min(self.next + pieces, self.count)

    @property
    def held(self):
        return (self.prompt + self.next) * self.open


@pytest.mark.parametrize("tokens", [400, 150])
async def test_open_streams_never_exceed_stream_tokens(tokens):
    """Among nine streams that grow, the open streams never exceed `stream_tokens`.

    A stream that is larger is open alone.
    """
    held, all_of_them = [], []

    def look():
        sizes = [one.held for one in all_of_them if one.open]
        held.append(0 if len(sizes) == 1 else sum(sizes))

    async with working(streams=3, stream_tokens=tokens) as worker:
        all_of_them[:] = [Growing(2 * QUANTUM + 7, 10 * number, look) for number in range(1, 10)]
        found = await asyncio.gather(*reading(worker, all_of_them))
        assert found == [[*range(1, 2 * QUANTUM + 8)]] * 9
        assert max(held) <= tokens
        # An opened stream computes at least this many pieces before it is closed and reopened.
        least = min(QUANTUM, AHEAD // 2)
        assert all(one.opened <= 1 + one.count / least for one in all_of_them)


async def test_a_stream_holds_memory_for_its_next_pieces_and_not_for_all():
    """20 streams of up to 4,000 pieces begin at once, though only 4 of them could end at once."""
    async with working(streams=4, stream_tokens=16_384) as worker:
        long = [Growing(4000, 100) for _ in range(20)]
        tasks = reading(worker, long)
        while max(one.next for one in long) < QUANTUM:
            await asyncio.sleep(0)
        assert min(one.next for one in long) > QUANTUM // 2
        assert all(one.opened == 1 for one in long)
        for task in tasks:
            await gone(task)


async def test_a_stream_that_cannot_grow_continues_later():
    """Two streams grow until only one fits: both end, and take turns until then."""
    first_to_end, pair, held = [], [], []

    def look():
        held.append(sum(one.held for one in pair))

    async with working(streams=2, stream_tokens=8 * QUANTUM) as worker:
        pair[:] = [Growing(7 * QUANTUM, 0, look) for _ in range(2)]

        async def whole(one):
            found = await read(worker, one, id(one), size=one.size)
            first_to_end.append([other.next for other in pair])
            return found

        found = await asyncio.gather(*map(whole, pair))
        assert found == [[*range(1, 7 * QUANTUM + 1)]] * 2
        assert min(first_to_end[0]) > 4 * QUANTUM  # the other stream was not left behind
        assert 7 * QUANTUM < max(held) <= 8 * QUANTUM


async def test_clients_take_turns_however_many_connections_they_have(computed):
    """A client's request runs second, although nine requests of another client arrived earlier."""
    async with working(batch_tokens=1) as worker:
        async with held(worker):
            tasks = [begin(worker, [ids(word)], ("many", word)) for word in "abcdefghi"]
            tasks.append(begin(worker, [ids("s")], ("single", "s")))
        await asyncio.gather(*tasks)
    assert computed[:3] == [["a"], ["s"], ["b"]]


async def test_a_request_is_dropped_before_it_no_longer_waits(monkeypatch):
    """Otherwise, the thread could compute for a client of which `waiting` says that it left."""
    seen = []

    async with working() as worker:
        monkeypatch.setattr(Request, "drop", lambda _: seen.append(worker.waiting))
        await worker.call(lambda: None, connection=0)
        assert await read(worker, lambda: iter("ab")) == ["a", "b"]
    assert seen == [1, 1]


async def test_a_stream_that_fails_ends_alone():
    def failing():
        yield 1
        raise ValueError("no good")

    async with working() as worker:
        good = asyncio.create_task(read(worker, lambda: iter(range(20)), "good"))
        stream = worker.stream(failing, connection="bad")
        assert await anext(stream) == 1
        with pytest.raises(ValueError, match="no good"):
            await anext(stream)
        assert await good == list(range(20))
