"""Tests of slow, broken and lost clients, of computation errors, and of shutdown under load."""

import http.client
import json
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pytest

import qkv

from .conftest import Served, serve, wait_until

TEXTS = [f"I sat on the bank of the river. Number {number}." for number in range(16)]
EXPECTED = qkv.load("minilm").encode(TEXTS)
CLIENTS = 64


@dataclass
class Load:
    """Clients that send requests without a pause until the server ends, and note the outcomes.

    A request counts as sent if its whole body was passed to the system before `ending` was set.
    """

    server: Served
    keep: bool
    ending: float | None = None
    outcomes: list[tuple[str, str]] = field(default_factory=list)

    def count(self) -> Counter[str]:
        return Counter(kind for kind, _ in self.outcomes)

    def ask(self, client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        with closing(connection):
            for number in range(100_000):
                kind, said = self.ask_once(connection, (client + number) % len(TEXTS))
                self.outcomes.append((kind, f"client {client}: {said}"))
                if kind != "answered":
                    return
                if not self.keep:
                    connection.close()

    def ask_once(self, connection: http.client.HTTPConnection, which: int) -> tuple[str, str]:
        body, sent = json.dumps({"input": TEXTS[which]}), False
        try:
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            sent = self.ending is None
            response = connection.getresponse()
            status, answer = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            # http.client raises BadStatusLine if the connection ends before the answer
            return "lost" if sent else "refused", repr(error)
        if status != 200:
            return "503" if status == 503 else "lost", f"{status}: {answer!r:.300}"
        error = np.abs(np.array(answer["data"][0]["embedding"]) - EXPECTED[which]).max()
        return "answered" if error < 1e-6 else "lost", f"error {error}"


@pytest.mark.parametrize("keep", [True, False], ids=["kept connections", "new connections"])
def test_a_stopped_server_answers_the_requests_that_it_received(keep: bool) -> None:
    with serve("--model", "minilm") as server, ThreadPoolExecutor(CLIENTS) as pool:
        load = Load(server, keep)
        clients = [pool.submit(load.ask, client) for client in range(CLIENTS)]
        wait_until(lambda: load.count()["answered"] > 300, "the clients are answered")
        load.ending = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert not wait(clients, 60).not_done, "a client still waits"
        assert [client.result() for client in clients] == [None] * CLIENTS
        assert server.process.wait(60) == 0
        print(load.count())
        assert [said for kind, said in load.outcomes if kind == "lost"] == []
        assert server.process.stderr.read() == ""
