"""Tests of the load benchmark, whose clients must detect errors; times are not checked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from benchmarks import serve
from benchmarks.load_client import Clients, Load, read
from benchmarks.texts import WORDNET

TEXTS = ["a", "bb", "ccc", "dddd", "eeeee"]
VECTORS = np.array([[len(text), 1.0] for text in TEXTS], np.float32)


@contextmanager
def served(wrong: str = "") -> Iterator[int]:
    """Run a server whose vectors hold the lengths of texts, but a false length for `wrong`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            texts = [given] if isinstance(given, str) else given
            data = [{"embedding": [len(text) + (text == wrong), 1.0]} for text in texts]
            body = json.dumps({"data": data}).encode()
            self.send_response(200 if "x" not in texts else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:9])
            self.wfile.flush()
            self.wfile.write(body[9:])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(60)


@pytest.mark.parametrize(("size", "clients"), [(1, 1), (1, 3), (2, 3), (8, 2)])
def test_every_answer_is_counted_and_compared(size: int, clients: int) -> None:
    with served() as port:
        asked = Clients(TEXTS, VECTORS)
        found = asked.run(Load(port, 13, clients, size))
        assert len(found["requests"]) == 13
        assert found["seconds"] >= max(found["requests"]) > 0
        assert asked.check() == {"answers": 13, "error": 0.0}
        assert asked.check() == {"answers": 0, "error": 0.0}


@pytest.mark.parametrize("size", [1, 2])
def test_one_wrong_vector_is_seen(size: int) -> None:
    with served(wrong="eeeee") as port:
        asked = Clients(TEXTS, VECTORS)
        asked.run(Load(port, -(-len(TEXTS) // size), 3, size))
        assert asked.check()["error"] == pytest.approx(1.0)


def test_an_error_response_ends_the_load() -> None:
    with served() as port, pytest.raises(ValueError, match=r"request 0 was answered b'HTTP/1.1 5"):
        Clients(["x"], VECTORS[:1]).run(Load(port, 1, 1))


def test_vectors_are_read_in_both_ways() -> None:
    body = b'{"data": [{"embedding": "AACAPwAAAEA="}, {"embedding": "AACAPwAAgD8="}]}'
    np.testing.assert_array_equal(read(body), [[1, 2], [1, 1]])
    np.testing.assert_array_equal(read(b'{"data": [{"embedding": [1, 2]}]}'), [[1, 2]])


def test_every_way_is_within_its_allowed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (WORDNET / "data.noun").is_file():
        pytest.skip("its texts are from WordNet: apt-get install wordnet-base")
    own = {name: c if name == "qkv serve" else None for name, c in serve.commands().items()}
    monkeypatch.setattr(serve, "commands", lambda: own)
    monkeypatch.setattr(serve, "MANY", 2000)
    rows = 0
    for row in serve.rows(50):
        rows += 1
        ways = {name: way for name, way in row.ways.items() if way is not None}
        for _ in range(2):  # the first turn is not counted
            for name, way in ways.items():
                assert way.error(way.call()) <= way.allowed, f"{row.name}: {name}"
        measured = {
            "ways": {name: {"seconds": 2.0} for name in row.ways},
            "memory": {name: 8.0 for name in row.memory},
        }
        for goal in row.goals:
            assert goal.judged(measured)["value"] is not None, goal.text
    assert rows == 4


def test_a_lost_answer_is_seen() -> None:
    way = serve.Loaded.__new__(serve.Loaded)
    way.ask = lambda _: {"answers": 2, "error": 0.0}
    way.turns = [{"requests": [0.1, 0.2, 0.3]}]
    with pytest.raises(ArithmeticError, match="1 answers are missing"):
        way.error()
