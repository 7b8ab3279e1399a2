"""Tests of connections and requests, and of how a server stops.

Requests arrive in part, break off or are too large. Connections are half closed, or there
are too many of them.
"""

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial

import httpx
import pytest

from .conftest import Served, serve, wait_until

# A server with limits that are short enough for a test, a route that computes for the number of
# seconds in its body, and a route that fails.
SMALL = """
import sys, time
import qkv
from qkv.serve import app as running
from qkv.serve.settings import Settings

running.GRACE = 3
model = qkv.load("random")

def create_app(*given):
    guard = made(*given)
    ran = []
    @guard.app.get("/ran")
    async def count():
        return len(ran)
    @guard.app.post("/slow")
    async def slow(request: running.Request):
        seconds = float(await request.body())
        print("begun", flush=True)
        await guard.app.state.worker.call(
            lambda: (ran.append(0), time.sleep(seconds)), connection=0
        )
        return {"done": True}
    @guard.app.post("/fails")
    async def fails(request: running.Request):
        raise RuntimeError("secret" + (await request.body()).decode())
    return guard

from fastapi import Request
running.Request = Request
made, running.create_app = running.create_app, create_app
settings = Settings(port=0, half_sent=1.0, head=4096, body=100_000, connections=30)
running.run(model, settings, lambda at: print(f"at {at} .", file=sys.stderr, flush=True))
"""
GOOD = b'{"input": "cat"}'


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with serve(program=("-c", SMALL)) as server:
        yield server


def connect(server: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 60)


def request(body: bytes = GOOD, path: str = "/v1/embeddings", more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def rest(connection: socket.socket) -> bytes:
    """Read until the server closes the connection, and return the bytes."""
    found = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            found += piece
    return found


def send(server: Served, text: bytes) -> bytes:
    """Send all requests, and return what the server sends until it closes the connection."""
    with closing(connect(server)) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return rest(connection)


def answers(text: bytes) -> list[tuple[int, dict]]:
    """Parse received bytes; return the status and body of each answer, except interim answers."""
    found = []
    while text:
        head, _, text = text.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status == 100:
            continue
        [size] = map(int, re.findall(rb"\ncontent-length: *(\d+)", head.lower()))
        found.append((status, json.loads(text[:size])))
        text = text[size:]
    return found


def is_well(server: Served) -> None:
    """Check that the server answers."""
    with server.client() as client:
        answer = client.post("/v1/embeddings", content=GOOD)
        assert answer.status_code == 200, answer.text


def trickle(connection: socket.socket) -> None:
    """Send 22 single bytes slowly, or fewer if the server closes the connection."""
    with suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(22):
            connection.sendall(b"x")
            time.sleep(0.1)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"fff\r\n",
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: evil.org\r\nContent-Length: 5000\r\n\r\n",
    ],
)
def test_a_request_that_arrives_too_slowly_is_ended(small: Served, begun: bytes) -> None:
    with closing(connect(small)) as connection:
        connection.sendall(begun)
        trickle(connection)
        found = rest(connection)
    statuses = [status for status, _ in answers(found)]
    if b"Host: evil" in begun:  # refused at once, but the server still waits for the body
        assert statuses in ([403], [403, 408])
    else:
        assert statuses[-1] == (408 if begun.strip() else 400)
    assert len(statuses) < 3
    is_well(small)


def test_a_connection_that_says_nothing_is_closed(small: Served) -> None:
    with closing(connect(small)) as connection:
        assert rest(connection) == b""


def test_many_slow_ones_leave_others_alone() -> None:
    patient = SMALL.replace("half_sent=1.0", "half_sent=3600.0")
    with serve(program=("-c", patient)) as server, ExitStack() as stack:
        for _ in range(25):
            stack.enter_context(closing(connect(server))).sendall(request()[:-3])
        is_well(server)


def test_a_connection_above_the_limit_gets_status_503() -> None:
    # a separate server, because connections of other tests would count too; clients may take 60 s
    # to send a request, because the limit of 1 s may be too short for 31 connections
    with serve(program=("-c", SMALL.replace("half_sent=1.0", "half_sent=60.0"))) as server:
        with ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(closing(connect(server)))
            with closing(connect(server)) as one_more:
                text = rest(one_more)
                assert b"retry-after: 1\r\n" in text.lower()
                (found,) = answers(text)
                assert found[0] == 503
                assert "too many connections" in found[1]["error"]["message"]
        with server.client() as client:  # the server notices soon that the clients have left
            post = partial(client.post, "/v1/embeddings", content=GOOD)
            wait_until(lambda: post().status_code, "it answers", lambda status: status == 200)
            assert 'qkv_requests_total{route="other",status="503"}' in client.get("/metrics").text


@pytest.mark.parametrize("more", ["", "Expect: 100-continue\r\n"])
@pytest.mark.parametrize("size", [100_001, 30_000_000])
def test_a_body_that_is_too_large_gets_status_413(small: Served, size: int, more: str) -> None:
    with small.client() as client:
        for _ in range(3):
            body = b"x" * size
            answer = client.post(
                "/v1/embeddings", content=body, headers={"Expect": "100-continue"} if more else {}
            )
            assert answer.status_code == 413
            assert "100000 bytes" in answer.json()["error"]["message"]

            def pieces(body: bytes = body) -> Iterator[bytes]:
                for start in range(0, len(body), 60_000):
                    yield body[start : start + 60_000]

            assert client.post("/v1/embeddings", content=pieces()).status_code == 413
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000,
        b"GET /" + b"x" * 300_000,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5;"
        + b"x" * 300_000,
    ],
)
def test_a_huge_head_is_refused(small: Served, head: bytes) -> None:
    with closing(connect(small)) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head)
        found = rest(connection)
    assert found == b"" or answers(found)[-1][0] in (405, 431)
    is_well(small)


@pytest.mark.parametrize("more", ["", "Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_a_head_above_the_limit_is_refused_even_if_it_arrives_at_once(
    small: Served, more: str
) -> None:
    for size, expected in (3800, 200), (4100, 431):
        sent = request(more=f"X-Long: {'x' * size}\r\n{more}")
        ((status, body),) = answers(send(small, sent))
        assert status == expected
        assert status == 200 or body["error"]["code"] == "head_too_large"
    is_well(small)


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_invalid_or_unsupported_http_gets_a_json_error(small: Served, text: bytes) -> None:
    ((status, body),) = answers(send(small, text))
    assert status in (400, 405)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    is_well(small)


def test_a_request_that_is_cut_off_leaves_nothing(small: Served) -> None:
    whole = request()
    for size in range(0, len(whole), 7):
        assert b" 200 " not in send(small, whole[:size])
    is_well(small)


def test_requests_that_are_sent_at_once_are_answered_in_order(small: Served) -> None:
    """Nothing is written into an unfinished answer, whatever bytes follow the requests."""
    wanted = (200, {"done": True})
    for behind in (b"", b"garbage\r\n\r\n", request(b"0", "/slow")[:-1], b"GET / HT"):
        found = answers(send(small, request(b"1.5", "/slow") + request(b"0", "/slow") + behind))
        assert found[:2] == [wanted, wanted], (behind, found)
        assert [status for status, _ in found[2:]] in ([], [400], [408])


def test_a_client_may_offer_another_protocol(small: Served) -> None:
    """Java's client offers HTTP/2 in each request, and sends the body right after the head."""
    offer = "Connection: Upgrade, HTTP2-Limits\r\nUpgrade: h2c\r\nHTTP2-Limits: AAA\r\n"
    listed = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{offer}\r\n".encode()
    last = request(b"0", "/slow", "Connection: Upgrade, close\r\nUpgrade: h2c\r\n")
    with closing(connect(small)) as connection:
        for text in (request(b"0", "/slow", offer) + listed, last):
            connection.sendall(text)
        found = answers(rest(connection))
    assert [status for status, _ in found] == [200, 200, 200]
    assert found[0] == found[2] == (200, {"done": True})


def test_many_requests_at_once_that_offer_another_protocol(small: Served) -> None:
    one = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    found = answers(send(small, one * 3000))
    assert [status for status, _ in found] == [403] * 3000


def test_a_client_that_hangs_up_frees_its_work(small: Served) -> None:
    with small.client() as client:
        before = client.get("/ran").json()
    many = []
    for _ in range(20):  # each sends at once: the server closes a connection that is silent for 1 s
        many.append(connect(small))
        many[-1].sendall(request(b"3", "/slow"))
    has_begun(small, 20)
    for connection in many:
        connection.close()
    is_well(small)
    with small.client() as client:
        wait_until(lambda: "qkv_waiting 0.0" in client.get("/metrics").text, "no request waits")
        assert 1 <= client.get("/ran").json() - before < 20


def test_a_failure_tells_the_client_nothing_and_the_log_one_line() -> None:
    with serve(program=("-c", SMALL)) as server:
        with server.client() as client:
            said = b"\r\n\x1b[31mroot: \xe2\x80\xae all is well"
            answer = client.post("/fails", content=said)
            assert answer.status_code == 500
            assert "secret" not in answer.text
            assert answer.json()["error"]["type"] == "server_error"
            assert client.post("/fails%0d%0aa%1b", content=b"x").status_code == 404
        is_well(server)
        assert server.end() == 0
        told = server.process.stderr.read()
        assert len(told.splitlines()) == 1
        assert told.strip().isprintable()
        assert "RuntimeError: secret" in told


def has_begun(server: Served, requests: int = 1) -> None:
    """Wait until this many requests have arrived at `/slow`."""
    assert server.process.stdout is not None
    for _ in range(requests):
        assert server.process.stdout.readline() == "begun\n"


def ended_while(server: Served, number: int, work: Callable[[], object]) -> tuple[int, object]:
    """End a server while it answers; return its exit code, and the answer or the error."""
    found: list[object] = []

    def asking() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=asking)
    thread.start()
    has_begun(server)
    code = server.end(number)
    thread.join(60)
    return code, found[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_it_has_answered(number: int) -> None:
    patient = SMALL.replace("GRACE = 3", "GRACE = 30")  # the answer of 1.5 s always comes in time
    with serve(program=("-c", patient)) as server, server.client() as client:
        assert client.get("/readyz").status_code == 200
        code, answer = ended_while(
            server, number, lambda: client.post("/slow", content=b"1.5").json()
        )
        assert (code, answer) == (0, {"done": True})
        with pytest.raises(ConnectionRefusedError):
            connect(server)


def test_stopping_the_server_takes_a_limited_time() -> None:
    with serve(program=("-c", SMALL)) as server, server.client() as client:
        half = connect(server)
        half.sendall(request()[:-1])
        code, _ = ended_while(server, signal.SIGTERM, lambda: client.post("/slow", content=b"7"))
        assert code == 0
        half.close()


def test_a_second_signal_ends_it_at_once() -> None:
    patient = SMALL.replace("GRACE = 3", "GRACE = 600")
    with serve(program=("-c", patient)) as server, server.client() as client:

        def refuses() -> bool:
            with suppress(ConnectionRefusedError):
                connect(server).close()
                return False
            return True

        def twice() -> object:
            has_begun(server)
            server.process.send_signal(signal.SIGTERM)
            wait_until(refuses, "it stops")
            server.process.send_signal(signal.SIGTERM)
            return server.process.wait(60)

        ending = threading.Thread(target=twice)
        ending.start()
        with pytest.raises(httpx.HTTPError):
            client.post("/slow", content=b"600").raise_for_status()
        ending.join(60)
        assert server.process.wait(60) >= 0
