"""Tests of the requests that the guard lets through: hosts, origins, keys and sizes."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

import qkv
from qkv.serve import key_file
from qkv.serve._memory import FREE
from qkv.serve.app import create_app
from qkv.serve.guard import Guard, Metrics
from qkv.serve.settings import Settings

from .conftest import keys_in


async def ask(method: str, path: str, settings: Settings, **request: object) -> httpx.Response:
    """Send one request to an application in this process."""
    app = create_app(qkv.load("random"), settings)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, path, **request)


def status(path: str, settings: Settings = Settings(), **headers: str) -> int:  # noqa: B008
    return asyncio.run(ask("GET", path, settings, headers=headers)).status_code


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:8080"],
)
def test_this_machine_is_known_by_all_of_its_names(host: str) -> None:
    assert status("/v1/models", Host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.org", "localhost.evil.org", "127.0.0.1.evil.org", "a@localhost", "10.0.0.1",
        "0.0.0.0", "localhost/", "localhost:x", "[::2]", "", "localhost,evil.org", "2130706433",
        "[::1]evil.org", "evil.org[::1]", "[::1].evil.org", "[localhost]", "::1", ":80", ".",
        "localhost..", "localhost:1:2", "localhost\\", "loc%61lhost", "<b>", "127.1", "0x7f.1",
    ],
)  # fmt: skip
def test_another_host_is_refused(host: str) -> None:
    assert status("/v1/models", Host=host) == 403
    assert status("/healthz", Host=host) == 200


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        (
            "*.svc",
            ["qkv.ns.svc", "QKV.ns.svc:8080", "a.svc."],
            ["svc", "xsvc", "a.svc.org", "*.svc"],
        ),
        ("10.0.0.0/8", ["10.1.2.3", "10.255.0.1:8080"], ["11.0.0.1", "10.0.0.1.org", "[::a]"]),
        ("fd00::/8", ["[fd12::1]", "[fd12::1]:80"], ["[fe80::1]", "10.0.0.1"]),
        ("*", ["a.org", "10.0.0.1"], ["", "a b", "a@b"]),
        ("Models.example.org", ["models.example.org:443"], ["example.org", "a.models.example.org"]),
    ],
)
def test_patterns_of_hosts(pattern: str, allowed: list[str], refused: list[str]) -> None:
    guard = Guard(None, Settings(allowed_hosts=(pattern,)), Metrics())  # type: ignore[arg-type]
    assert [host for host in allowed if not guard.knows(host)] == []
    assert [host for host in refused if guard.knows(host)] == []
    assert guard.knows("localhost")


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:80", 403),
        ("http://localhost", 200),
        ("https://localhost", 200),
        ("http://evil.org", 403),
        ("null", 403),
        ("file://localhost", 403),
    ],
)
def test_origins_other_than_the_host_are_refused(origin: str, expected: int) -> None:
    assert status("/v1/models", Host="localhost", Origin=origin) == expected


def test_pages_of_an_allowed_origin_may_send_requests(tmp_path: Path) -> None:
    settings = Settings(origins=("https://a.org",), keys=keys_in(tmp_path, "right"))

    def asked(method: str, origin: str, **headers: str) -> httpx.Response:
        headers = {"Origin": origin, **headers}
        return asyncio.run(ask(method, "/v1/models", settings, headers=headers))

    sends = {"Access-Control-Request-Method": "POST"}
    sends["Access-Control-Request-Headers"] = "authorization, content-type"
    allowed = asked("OPTIONS", "https://a.org", **sends)
    assert allowed.status_code == 200  # a browser sends no key with this request
    assert allowed.headers["Access-Control-Allow-Origin"] == "https://a.org"
    assert "authorization" in allowed.headers["Access-Control-Allow-Headers"]
    assert asked("OPTIONS", "https://b.org", **sends).status_code == 400
    answer = asked("GET", "https://a.org", Authorization="Bearer right")
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "https://a.org"
    answer = asked("GET", "https://a.org")
    assert answer.status_code == 401
    assert answer.headers["Access-Control-Allow-Origin"] == "https://a.org"  # the page reads it
    assert asked("GET", "https://b.org", Authorization="Bearer right").status_code == 403


def test_each_key_is_valid_and_the_file_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: str) -> list[bytes]:
        raise OSError(errno.EMFILE, "Too many open files")

    def valid(*keys: str) -> list[bool]:
        statuses = [status("/v1/models", settings, Authorization=f"Bearer {key}") for key in keys]
        assert {*statuses} <= {200, 401}
        return [found == 200 for found in statuses]

    settings = Settings(keys=keys_in(tmp_path, "first\n\n second \r\n"))
    assert valid("first", "second") == [True, True]
    assert valid("third", "first second", "") == [False] * 3
    keys_in(tmp_path, "second\nthird\n")
    assert valid("first", "second", "third") == [False, True, True]
    file = tmp_path / "keys"
    for spoil in (lambda: file.write_text("two words\n"), file.unlink):
        caplog.clear()
        spoil()
        assert valid("first", "second", "third") == [False, True, True]
        [record] = caplog.records  # not one for each request
        assert "the earlier keys remain valid" in record.getMessage()
    other = tmp_path / "other"  # as Kubernetes does: a link to a new file
    other.write_text("fourth")
    file.symlink_to(other)
    assert valid("second", "fourth") == [False, True]
    other.write_text("fifth")
    with monkeypatch.context() as patched:  # too many files are open while the file is read
        patched.setattr(key_file, "read_keys", failing)
        assert valid("fourth", "fifth") == [True, False]
    assert valid("fourth", "fifth") == [False, True]


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic right", "right"])
def test_a_key_is_required(given: str, tmp_path: Path) -> None:
    settings = Settings(keys=keys_in(tmp_path, "right\n"))
    headers = {"Authorization": given} if given else {}
    for path, expected in (("/v1/models", 401), ("/metrics", 401), ("/", 200), ("/healthz", 200)):
        assert status(path, settings, **headers) == expected, path
    assert status("/v1/models", settings, Authorization="bearer right") == 200


async def test_a_body_larger_than_the_limit_is_refused() -> None:
    settings = Settings(body=100)
    body = b'{"input": "cat"}'
    content: Any = body + b" " * (100 - len(body))
    assert (await ask("POST", "/v1/embeddings", settings, content=content)).status_code == 200

    async def pieces():
        yield body
        yield b" " * 85

    for content in (body + b" " * 85, pieces()):
        answer = await ask("POST", "/v1/embeddings", settings, content=content)
        assert answer.status_code == 413, answer.text
        assert "100 bytes" in answer.json()["error"]["message"]


def test_two_host_headers_are_refused(served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), 30) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/models/", "/healthz", "/metrics/"])
def test_head_and_a_trailing_slash_are_answered(served, path: str) -> None:
    with served.client(follow_redirects=False) as client:
        got, head = client.get(path), client.head(path)
        assert got.status_code == head.status_code == 200
        assert head.content == b""
        assert got.headers["content-type"] == head.headers["content-type"]
        assert got.content
        assert client.post("/v1/embeddings/", json={"input": "cat"}).status_code == 200
        assert client.head("/v1/embeddings").status_code == 405


def test_a_trailing_slash_does_not_bypass_the_key(tmp_path: Path) -> None:
    assert status("/v1/models/", Settings(keys=keys_in(tmp_path, "right"))) == 401
    assert status("/static-offline-docs/") == 404


async def test_a_compressed_body_is_refused() -> None:
    for encoding, expected in ("gzip", 415), ("identity", 200), ("br, gzip", 415):
        headers, content = {"Content-Encoding": encoding}, b'{"input": "cat"}'
        options = {"content": content, "headers": headers}
        answer = await ask("POST", "/v1/embeddings", Settings(), **options)
        assert answer.status_code == expected
        assert expected == 200 or f"Content-Encoding '{encoding}'" in answer.text


async def test_a_stream_keeps_its_estimate_and_an_answer_holds_its_size() -> None:
    """An app that holds an estimate of 1,000 bytes sends an answer without or with a length."""

    async def held(*headers: tuple[bytes, bytes]) -> list[int]:
        found = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["share"].hold("answer", FREE + 1000)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            found.append(guard.memory.held)

        async def nothing(message: Any = None) -> None: ...

        guard = Guard(app, Settings(), Metrics())
        scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": []}
        await guard(scope, nothing, nothing)
        return [*found, guard.memory.held]

    assert await held((b"content-type", b"text/event-stream")) == [1000, 0]
    assert await held((b"content-length", b"%d" % (FREE + 7))) == [7, 0]


async def test_all_bodies_together_are_bounded() -> None:
    transport = httpx.ASGITransport(create_app(qkv.load("random"), Settings(memory=FREE + 200)))
    asked, more = asyncio.Event(), asyncio.Event()

    async def slowly():
        yield b'{"input": "cat"' + b" " * (2 * FREE)
        asked.set()
        await more.wait()
        yield b"}"

    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def status_of(**body: Any) -> int:
            return (await client.post("/v1/embeddings", **body)).status_code

        held = asyncio.create_task(status_of(content=slowly()))
        await asked.wait()  # the server asks for the second part of the body
        body = b'{"input": "cat"}' + b" " * (2 * FREE)
        assert await status_of(content=body) == 503
        assert await status_of(json={"input": "cat"}) == 200
        more.set()
        assert (await held, await status_of(content=body)) == (200, 200)
