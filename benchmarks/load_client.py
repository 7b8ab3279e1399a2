"""Simulate many clients of an embeddings server in one process, with little processor time.

    python -m benchmarks.load_client TEXTS.json VECTORS.npy

Each line of standard input is a `Load` as JSON, or "check". For a load, the process prints a line
of JSON with the times of the load. For "check", it prints the largest error of all vectors since
the last check.
Requests are prepared and connections are opened before the clock starts. The process stores answers
without reading them; "check" parses the answers.
"""

import json
import selectors
import socket
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LONGEST = 120.0  # the maximum seconds without any answer


@dataclass(frozen=True)
class Load:
    """The requests that are sent to a server.

    Attributes:
        port: the server's port on loopback.
        requests: the number of requests.
        clients: the number of clients; each has its own connection and sends one request after
            another.
        size: the number of texts in a request.
        encoding: "base64" or "float".
    """

    port: int
    requests: int
    clients: int = 64
    size: int = 1
    encoding: str = "base64"


class Clients:
    """Clients that send the requests of a `Load`, store the answers and check them."""

    def __init__(self, texts: list[str], vectors: np.ndarray) -> None:
        self.texts, self.vectors = texts, vectors
        self.kept: list[tuple[Load, int, bytes]] = []

    def run(self, load: Load) -> dict[str, Any]:
        """Return the time of the load, the clients' processor time, and each request's time."""
        groups = [self._request(load, first) for first in range(0, len(self.texts), load.size)]
        answers: list[tuple[Load, int, bytes]] = []
        took: list[float] = []
        numbers = iter(range(load.requests))
        clock = time.perf_counter

        def ask(client: "Client") -> bool:
            number = next(numbers, None)
            if number is None:
                return False
            client.begin(number, groups[number % len(groups)], clock())
            return True

        stack = ExitStack()
        with stack, selectors.DefaultSelector() as selector:
            clients = [Client(load.port) for _ in range(min(load.clients, load.requests))]
            for client in clients:
                stack.callback(client.socket.close)
                selector.register(client.socket, selectors.EVENT_READ, client)
            begin, used = clock(), time.process_time()
            busy = sum(map(ask, clients))
            while busy:
                events = selector.select(LONGEST)
                if not events:
                    raise TimeoutError(f"no answer for {LONGEST:.0f} s; {busy} requests are open")
                for key, _ in events:
                    client = key.data
                    body = client.read()
                    if body is not None:
                        took.append(clock() - client.since)
                        answers.append((load, client.number, body))
                        busy -= not ask(client)
            seconds, used = clock() - begin, time.process_time() - used
        self.kept += answers
        return {"seconds": seconds, "processor": used, "requests": took}

    def check(self) -> dict[str, Any]:
        """Return the number of answers, and the largest error of their vectors."""
        error = 0.0
        count = len(self.kept)
        for load, number, body in self.kept:
            first = number * load.size % self._whole(load.size)
            expected = self.vectors[first : first + load.size]
            found = read(body)
            if found.shape != expected.shape:
                raise ValueError(f"request {number}: {found.shape} instead of {expected.shape}")
            error = max(error, float(np.linalg.norm(found - expected, axis=1).max()))
        self.kept = []
        return {"answers": count, "error": error}

    def _whole(self, size: int) -> int:
        return -(-len(self.texts) // size) * size

    def _request(self, load: Load, first: int) -> bytes:
        texts = self.texts[first : first + load.size]
        body = json.dumps(
            {
                "input": texts[0] if load.size == 1 else texts,
                "model": "minilm",
                "encoding_format": load.encoding,
            }
        ).encode()
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:{load.port}\r\n"
            "Accept: application/json\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Client:
    """A client with one open connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LONGEST)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number, self.since = -1, 0.0
        self._parts: list[bytes] = []
        self._missing = -1

    def begin(self, number: int, request: bytes, now: float) -> None:
        """Send a request."""
        self.number, self.since = number, now
        self._parts, self._missing = [], -1
        self.socket.sendall(request)

    def read(self) -> bytes | None:
        """Read the received bytes; return the body once it is complete."""
        data = self.socket.recv(2**18)
        if not data:
            raise ConnectionError(f"request {self.number}: the server hung up")
        if self._missing < 0:
            data = b"".join([*self._parts, data])
            head, end, body = data.partition(b"\r\n\r\n")
            if not end:
                self._parts = [data]
                return None
            head = head.lower()
            if not head.startswith(b"http/1.1 200 "):
                raise ValueError(f"request {self.number} was answered {data[:500]!r}")
            self._missing = int(head.partition(b"content-length:")[2].split(None, 1)[0])
            self._parts, data = [], body
        self._parts.append(data)
        self._missing -= len(data)
        return None if self._missing else b"".join(self._parts)


def read(body: bytes) -> np.ndarray:
    """Return the vectors (n, D) of an answer."""
    data = json.loads(body)["data"]
    found = [one["embedding"] for one in data]
    if isinstance(found[0], str):
        return np.array([np.frombuffer(b64decode(one), "<f4") for one in found])
    return np.array(found, np.float32)


def main(texts: str, vectors: str) -> None:
    """Run loads from standard input until the input ends."""
    clients = Clients(json.loads(Path(texts).read_text(encoding="utf-8")), np.load(vectors))
    for line in sys.stdin:
        asked = json.loads(line)
        answer: Callable[[], dict[str, Any]] = (
            clients.check if asked == "check" else lambda asked=asked: clients.run(Load(**asked))
        )
        try:
            found = answer()
        except (OSError, ValueError) as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
