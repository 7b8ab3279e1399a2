"""Tests that nothing is computed for clients that have left or do not read."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qkv
from models.decoders import gpt2
from models.support import cross_encoder
from qkv.models.sentence.encode import Encoder
from qkv.models.sentence.rank import Ranker
from qkv.serve.settings import Settings

from .conftest import Inside, inside, wait_until
from .test_keys import GOOD

MANY = 3
RESET = struct.pack("ii", 1, 0)  # closing sends a reset


class Spied:
    """Records each call of the functions that compute the answers of the routes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
        self.computed: list[str] = []
        for owner, name in (
            *((Encoder, name) for name in ("ids", "pool_texts")),
            *((model, name) for name in ("trace", "steps")),
            *((Ranker, name) for name in ("scores",)),
        ):
            monkeypatch.setattr(owner, name, self._spy(getattr(owner, name), name))

    def _spy(self, function: Any, name: str) -> Any:
        def spied(*arguments: Any, **options: Any) -> Any:
            self.computed.append(name)
            return function(*arguments, **options)

        return spied


@pytest.fixture(params=[f"/v1/{name}" for name in ("embeddings", "completions", "trace", "rerank")])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def served(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of a model that supports this route, and a record of the computations."""
    ranks = path == "/v1/rerank"
    model = qkv.load(cross_encoder(tmp_path / "ranks").path) if ranks else gpt2(tmp_path, seed=1)
    spied = Spied(monkeypatch, model)
    with inside(model) as server:
        spied.computed.clear()
        yield server, spied


@pytest.mark.parametrize("how", ["close", "reset", "both ways"])
def test_a_waiting_request_is_not_computed_if_its_client_leaves(
    served: tuple[Inside, Spied], path: str, how: str
) -> None:
    server, spied = served
    with server.held():
        clients = [server.ask(path, GOOD[path]) for _ in range(MANY)]
        wait_until(lambda: server.worker.waiting == 1 + MANY, "all wait")
        for client in clients:
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if how == "both ways":
                client.shutdown(socket.SHUT_RDWR)
            client.close()
        wait_until(lambda: server.worker.waiting == 1, "all have left")
    with server.ask(path, GOOD[path]) as good:
        assert good.recv(100).startswith(b"HTTP/1.1 200 ")
    once = len(spied.computed)
    with server.ask(path, GOOD[path]) as good:
        assert good.recv(100).startswith(b"HTTP/1.1 200 ")
    # The last request is computed alone, and it causes `once` calls. So the first count, `once`,
    # contains the calls of one request, and no calls for the three clients that left.
    assert len(spied.computed) == 2 * once
    assert once


def test_nothing_is_logged_for_a_client_that_leaves_after_two_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both requests arrive at once, and the client leaves while the first one waits."""
    path, body = "/v1/embeddings", GOOD["/v1/embeddings"]
    with inside(gpt2(tmp_path, seed=1)) as server:
        with server.held():
            client = server.ask(path, body, times=2)
            wait_until(lambda: server.worker.waiting == 2, "the first one waits")
            client.close()
            wait_until(lambda: server.worker.waiting == 1, "it has left")
        with server.ask(path, body) as good:
            assert good.recv(100).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records


def test_a_half_closed_connection_is_still_answered(
    served: tuple[Inside, Spied], path: str
) -> None:
    server, _ = served
    with server.held():
        client = server.ask(path, GOOD[path])
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: server.worker.waiting == 2)
        # the server sends this interim answer to find out whether the client is still connected
        assert client.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    with client:
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert b"HTTP/1.1 200 " in answer


def test_a_stream_that_nobody_reads_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads none of an endless stream of large pieces loses its connection."""
    model = gpt2(tmp_path, seed=1)
    computed = 0

    def endless(*arguments: Any, **options: Any) -> Iterator[list[tuple[int, str]]]:
        nonlocal computed
        while True:
            computed += 1
            yield [(0, "x" * 2**18)]

    with inside(model, Settings(unread=0.5)) as server:
        monkeypatch.setattr(model, "steps", endless)
        asked = {"prompt": "the cat", "stream": True}
        with server.ask("/v1/completions", asked, SO_RCVBUF=4096):
            wait_until(lambda: computed > 0, "it begins")  # it may be dropped before this is seen
            wait_until(lambda: server.worker.streams == 0, "it is dropped")
            before = computed
            with server.ask("/v1/embeddings", {"input": "the cat"}) as other:
                assert other.recv(100).startswith(b"HTTP/1.1 200 ")
            assert computed == before
