"""Tests of slow, broken and lost clients, of computation errors, and of shutdown under load."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import qkv
from qkv.serve.app import create_app

from .conftest import Served, serve, wait_until

TEXT = "I sat on the bank of the river."
BODY = json.dumps({"input": TEXT}).encode()
HALF_SENT = 10.0  # seconds that a request may take to arrive
MODEL = qkv.load("minilm")
EXPECTED = MODEL.encode(TEXT)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve("--model", "minilm") as server:
        yield server
        assert server.end() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""  # none of these clients causes a line in the log


@pytest.fixture(autouse=True)
def _the_next_is_answered(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test of the module's server, check that a good request is answered correctly."""
    yield
    if "server" in request.fixturenames:
        ask(request.getfixturevalue("server"))


def ask(server: Served) -> None:
    """Send a good request on a new connection, and check the answer."""
    with server.client() as client:
        response = client.post("/v1/embeddings", json={"input": TEXT})
        need_right(response.status_code, response.json())


def need_right(status: int, answer: Any, expected: Any = EXPECTED) -> None:
    """Raise an error unless the answer has the vector of the text."""
    assert status == 200, f"{status}: {answer!r:.300}"
    assert np.abs(np.array(answer["data"][0]["embedding"]) - expected).max() < 1e-6


def head(length: int, more: str = "") -> bytes:
    """Return the head of a request whose body has this length."""
    return (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def connect(server: Served, timeout: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout)


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection, cleanly or not."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def read_answer(connection: socket.socket) -> tuple[int, Any]:
    """Read one answer, and return its status and its JSON."""
    response = http.client.HTTPResponse(connection, method="POST")
    response.begin()
    return response.status, json.loads(response.read())


def answers_in(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the status and the JSON of each answer in the bytes of a connection."""
    while data:
        front, _, data = data.partition(b"\r\n\r\n")
        length = int(front.lower().partition(b"content-length:")[2].split()[0])
        yield int(front.split()[1]), json.loads(data[:length])
        data = data[length:]


HALVES = [b"POST /v1/embed", head(100)[:-2], head(100), head(100) + b'{"input": "a']


def test_requests_half_sent_are_given_up_and_keep_nobody_waiting(server: Served) -> None:
    """Four clients send only the start of a request; a hundred clients send single bytes slowly.

    The first four stop in the request line, in the HTTP headers, before the body or in the body.
    """
    with ExitStack() as stack:
        halves = [stack.enter_context(connect(server)) for _ in HALVES]
        for connection, begin in zip(halves, HALVES, strict=True):
            connection.sendall(begin)
        slow = [stack.enter_context(connect(server)) for _ in range(100)]
        for number, connection in enumerate(slow):
            connection.sendall((head(len(BODY)) + BODY)[: 10 + number])
        ended: set[socket.socket] = set()
        until = time.monotonic() + HALF_SENT + 60
        while len(ended) < len(slow) and time.monotonic() < until:
            for connection in slow:
                if connection in ended:
                    continue
                try:
                    connection.sendall(b"a")
                    connection.setblocking(False)
                    if connection.recv(1024) is not None:
                        ended.add(connection)
                except BlockingIOError:
                    connection.settimeout(60)
                except ConnectionError:
                    ended.add(connection)
            ask(server)
            time.sleep(0.5)
        assert len(ended) == len(slow), f"{len(slow) - len(ended)} of 100 slow ones are still kept"
        for connection, begin in zip(halves, HALVES, strict=True):
            connection.settimeout(60)
            answer = read_all(connection)
            assert not answer or answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400")), begin


def test_a_socket_that_is_half_closed_gets_its_answer_or_is_closed(server: Served) -> None:
    for _ in range(20):
        with connect(server) as connection:
            connection.sendall(head(len(BODY)) + BODY)
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
            if answer:
                need_right(200, json.loads(answer.partition(b"\r\n\r\n")[2]))
    with connect(server) as connection:
        connection.sendall(head(len(BODY)) + BODY[:10])
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
        assert not answer or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("sent", [10, 150, len(head(len(BODY)) + BODY)])
@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_hang_up_leave_nothing_behind(server: Served, sent: int, reset: bool) -> None:
    """Clients hang up before the body is complete or during the computation, some with a reset."""
    for _ in range(50):
        connection = connect(server)
        if reset:
            # SO_LINGER is on, and its timeout is 0 s. So closing the connection sends a reset.
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sendall((head(len(BODY)) + BODY)[:sent])
        connection.close()


def test_a_client_that_does_not_read_its_answer_holds_up_nobody(server: Served) -> None:
    texts = ["the cat sat"] * 500  # an answer of over 4 MB does not fit into a socket's buffers
    body = json.dumps({"input": texts}).encode()
    with connect(server) as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.sendall(head(len(body)) + body)
        for _ in range(20):
            ask(server)
        idle.recv(100)  # then hang up in the middle of the answer


def test_two_requests_sent_at_once_are_answered_in_their_order(server: Served) -> None:
    other = json.dumps({"input": "Money"}).encode()
    with connect(server) as connection:
        last = head(len(other), "Connection: close\r\n")
        connection.sendall(head(len(BODY)) + BODY + last + other)
        first, second = answers_in(read_all(connection))
        need_right(*first)
        need_right(*second, expected=MODEL.encode("Money"))


# --- the end of a server under load


class Load:
    """Clients that send requests without a pause until the server ends, and count the outcomes.

    A request counts as sent if its whole body was passed to the system before `ending` was set.
    """

    def __init__(self, server: Served, clients: int, keep: bool) -> None:
        self.server, self.keep = server, keep
        self.ending: float | None = None
        self.found: Counter[str] = Counter()
        self.lost: list[str] = []
        self._lock = threading.Lock()
        self._texts = [f"{TEXT} Number {number}." for number in range(16)]
        self._expected = MODEL.encode(self._texts)
        self._threads = [
            threading.Thread(target=self._ask, args=(number,), daemon=True)
            for number in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        until = time.monotonic() + 60
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "a client still waits"

    def _ask(self, client: int) -> None:
        with ExitStack() as stack:
            self._ask_on(client, stack)

    def _ask_on(self, client: int, stack: ExitStack) -> None:
        connection: socket.socket | None = None
        for number in range(100_000):
            which = (client + number) % len(self._texts)
            body = json.dumps({"input": self._texts[which]}).encode()
            sent = False
            try:
                if connection is None:
                    connection = stack.enter_context(connect(self.server))
                connection.sendall(head(len(body)) + body)
                sent = self.ending is None
                status, answer = read_answer(connection)
            except (OSError, http.client.HTTPException) as error:
                # http.client raises BadStatusLine if the connection ends before the answer
                self._count("lost" if sent else "refused", f"client {client}: {error!r}")
                return
            if status == 503:
                self._count("503", "")
                return
            try:
                need_right(status, answer, self._expected[which])
            except AssertionError as error:
                self._count("lost", f"client {client}: {error}")
                return
            self._count("answered", "")
            if not self.keep:
                stack.close()
                connection = None

    def _count(self, kind: str, said: str) -> None:
        with self._lock:
            self.found[kind] += 1
            if kind == "lost":
                self.lost.append(said)


@pytest.mark.parametrize("keep", [True, False], ids=["kept connections", "new connections"])
def test_a_stopped_server_answers_the_requests_that_it_received(keep: bool) -> None:
    with serve("--model", "minilm") as server:
        load = Load(server, 64, keep)
        load.start()
        wait_until(lambda: load.found["answered"] > 300, "the clients are answered")
        load.ending = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        load.wait()
        assert server.process.wait(60) == 0
        print(dict(load.found))
        assert not load.lost, load.lost[:5]
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
        assert load.found["answered"] > 300


# --- an error in the thread that computes


class Marked(RuntimeError):
    """The error that a forward pass raises for the marked text."""


def test_an_error_in_a_forward_pass_fails_only_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text whose forward pass fails does not harm the many good texts beside it."""
    model = qkv.load("minilm")
    marked = model.tokenize("kaboom").ids[1]
    run = model.network.run

    def marked_run(batch: Any, *others: Any, **options: Any) -> Any:
        if marked in batch.ids:
            raise Marked("a forward pass that fails")
        return run(batch, *others, **options)

    monkeypatch.setattr(model.network, "run", marked_run)
    found: Counter[int] = Counter()
    with TestClient(
        create_app(model), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:

        def ask(number: int) -> None:
            bad = number % 8 == 0
            text = "kaboom" if bad else TEXT
            response = client.post("/v1/embeddings", json={"input": text})
            if not bad:
                need_right(response.status_code, response.json())
            else:
                assert response.status_code == 500
                error = response.json()["error"]
                assert error["type"] == "server_error"
                assert "Marked" not in error["message"]
            found[response.status_code] += 1

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert dict(found) == {200: 56, 500: 8}
        ask(1)
