"""A test of many clients, some of which die at any moment."""

import http.client
import json
import re
import socket
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import qkv
from rows import SAMPLE

from .conftest import Served, peak_of, raw_request, serve, wait_until

CLIENTS, EACH = 64, 60 // SAMPLE  # 3,840 requests
DIES = 20  # one of 20 requests comes from a client that dies
RESET = struct.pack("ii", 1, 0)  # closing sends a reset
MODEL = qkv.load("books-decoder")
TEXTS = [f"The river number {number} flows into the sea." for number in range(8)]
LARGE = [text for text in TEXTS for _ in range(30)]  # an answer of half a megabyte
VECTORS = MODEL.encode(TEXTS)
NAMES = ("the river", "the sea", "a bird", "the house", "the garden", "a man", "a boat", "a cat")
PROMPTS = [f"She saw {name} and" for name in NAMES]
WORDS = MODEL.generate(PROMPTS, max_new_tokens=6, temperature=0)


def completion(number: int, **options: Any) -> dict[str, Any]:
    return {"prompt": PROMPTS[number % 8], "max_tokens": 6, "temperature": 0, **options}


def check_vectors(connection: http.client.HTTPConnection, number: int) -> None:
    """Ask for two vectors, and compare them with those of `encode`."""
    pair = [number % 8, (number + 3) % 8]
    answer = ask(connection, "/v1/embeddings", {"input": [TEXTS[text] for text in pair]})
    found = np.array([row["embedding"] for row in answer["data"]])
    np.testing.assert_allclose(found, VECTORS[pair], rtol=0, atol=1e-5)


def check_words(connection: http.client.HTTPConnection, number: int) -> None:
    """Ask for a completion, and compare it with that of `generate`."""
    answer = ask(connection, "/v1/completions", completion(number))
    assert answer["choices"][0]["text"] == WORDS[number % 8]


def ask(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    read = answer.read()
    assert answer.status == 200, read[:300]
    return json.loads(read)


def die(server: Served, number: int) -> str:
    """Send a request and die: before the end of the body, while waiting, or in the answer."""
    moment = ("sending", "waiting", "reading", "streaming")[number % 4]
    path, body = "/v1/embeddings", {"input": LARGE}
    if moment == "streaming":
        path, body = "/v1/completions", completion(number % 4, stream=True, max_tokens=60, n=4)
    content = raw_request(path, body)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(120)
        client.connect(("127.0.0.1", server.port))
        client.sendall(content[: content.index(b"{") + 20 if moment == "sending" else None])
        if moment in ("reading", "streaming"):
            assert client.recv(200).startswith(b"HTTP/1.1 200 ")
        if number % 8 < 4:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return moment


@pytest.mark.alone
def test_no_request_is_lost_while_other_clients_die() -> None:
    """5% of the clients die: the others get the right answers, and nothing stays in memory."""

    def run(client: int) -> Counter[str]:
        done: Counter[str] = Counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        for number in range(client * EACH, (client + 1) * EACH):
            if number % DIES == 7:
                done[die(server, number // DIES)] += 1
            else:
                check = check_words if number % 10 == 3 else check_vectors
                check(connection, number)
                done["right"] += 1
        connection.close()
        return done

    with serve("--model", "books-decoder") as server:
        with ThreadPoolExecutor(CLIENTS) as pool:
            found = sum(pool.map(run, range(CLIENTS)), Counter[str]())
        dead = CLIENTS * EACH // DIES
        assert found.pop("right") == CLIENTS * EACH - dead
        assert found == dict.fromkeys(("sending", "waiting", "reading", "streaming"), dead // 4)
        assert peak_of(server) < 300_000
        with server.client() as client:
            for name in ("qkv_waiting", "qkv_streams", "qkv_held_bytes", "qkv_oldest_seconds"):
                nothing = f"\n{name} 0.0\n"
                wait_until(lambda zero=nothing: zero in client.get("/metrics").text, nothing)
            answered = re.findall(
                r'^qkv_requests_total\{route="/v1/.*",status="200"\} (\d+)',
                client.get("/metrics").text,
                re.M,
            )
        assert sum(map(int, answered)) >= CLIENTS * EACH - dead
        assert server.end() == 0
        assert server.process.stderr.read() == ""
