"""Tests of slow, broken and lost clients, of computation errors, and of shutdown under load."""

import http.client
import json
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import qkv

from .conftest import Served, serve, wait_until

TEXT = "I sat on the bank of the river."
MODEL = qkv.load("minilm")
EXPECTED = MODEL.encode(TEXT)


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


def read_answer(connection: socket.socket) -> tuple[int, Any]:
    """Read one answer, and return its status and its JSON."""
    response = http.client.HTTPResponse(connection, method="POST")
    response.begin()
    return response.status, json.loads(response.read())


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
        assert server.process.stderr.read() == ""
        assert load.found["answered"] > 300


# --- an error in the thread that computes
