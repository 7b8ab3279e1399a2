"""Check each request before its route runs, and count the requests for `/metrics`."""

import ipaddress
import logging
import re
import time
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from functools import lru_cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv._visible import visible
from qkv.serve._memory import FREE, Memory, Share
from qkv.serve._refusals import FAILED, Refused
from qkv.serve.key_file import Keys
from qkv.serve.settings import Settings

# Requests for these paths do not need a key, and may name any host.
HEALTH = frozenset({"/healthz", "/readyz", "/health"})
# A browser opens these pages without a key. The pages do not contain secrets.
OPEN = HEALTH | {"/", "/docs", "/openapi.json"}
FILES = "/static-offline-docs"
ASSETS = frozenset(
    f"{FILES}/{name}" for name in ("favicon.png", "swagger-ui-bundle.js", "swagger-ui.css")
)
ANY = "*"  # The pattern that allows every host.
_KEYLESS = OPEN | ASSETS

# a name or an address, with an optional port; an IPv6 address has brackets
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]*[a-z0-9_-])\.?)(?::[0-9]*)?", re.IGNORECASE)

_log = logging.getLogger("qkv.serve")
PIECE = 2**20  # A large answer is passed to the connection in pieces of this many bytes.
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """The metrics of one server, in their own Prometheus registry.

    >>> numbers = Metrics()
    >>> numbers.count("/v1/embeddings", 200, 0.004)
    >>> b'requests_total{route="/v1/embeddings",status="200"} 1.0' in numbers.text()
    True
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("route", "status")
        self._requests = Counter("qkv_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "qkv_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        ProcessCollector(registry=registry)  # memory and open files; only on Linux

    def watch(self, name: str, description: str, value: object, attribute: str) -> None:
        """Add a metric whose value is the current value of an object's attribute."""
        gauge = Gauge(name, description, registry=self._registry)
        gauge.set_function(lambda: float(getattr(value, attribute)))

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request by its status; 499 means that the client disconnected."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus format."""
        return generate_latest(self._registry)


class Guard:
    """Refuses invalid requests, counts all requests, and sends an error if a route fails.

    Args:
        app: the guarded application.
        settings: the allowed hosts, the key, and the maximum sizes of bodies.
        numbers: the metrics in which requests are counted.

    Attributes:
        ending: whether the server is shutting down.
        memory: the budget of all bodies and answers.
        numbers: the metrics.
    """

    def __init__(self, app: ASGIApp, settings: Settings, numbers: Metrics) -> None:
        self.app, self._settings, self.numbers = app, settings, numbers
        self.ending = False
        self._answer: ASGIApp = self._handle
        if settings.origins:  # also answers the preflight requests of browsers
            self._answer = CORSMiddleware(
                self._handle,
                allow_origins=settings.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        self.memory = Memory(settings.memory)
        self._hosts = [host_pattern(pattern) for pattern in settings.allowed_hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or a message about the start or end of the server."""
        answer = self._answer if scope["type"] == "http" else self.app
        await answer(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # HEAD is answered as GET: uvicorn leaves out the body. A trailing slash has no effect.
        method, path = scope["method"], scope["path"].rstrip("/") or "/"
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "path": path}
        begin, status = time.perf_counter(), 0
        size = 0  # bytes of the body received so far
        scope["share"] = share = Share(self.memory)
        withheld = False  # whether an error was sent in place of the application's answer

        async def receive_part() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._settings.body:
                raise self._too_large()
            share.hold("body", size)
            return message

        async def send_counted(message: Message) -> None:
            nonlocal status, withheld
            if message["type"] == "http.response.start":
                length = dict(message["headers"]).get(b"content-length")
                try:
                    if length is not None:  # a stream keeps its estimate
                        share.hold("answer", int(length))
                except Refused as refused:
                    status, withheld = refused.status, True
                    await refused.answer()(scope, receive, send)
                    return
                status = message["status"]
            if not withheld:
                await send_in_pieces(message, send)

        try:
            self.check(scope["path"], scope["headers"], scope["method"])
            await self.app(scope, receive_part, send_counted)
        except Refused as refused:
            await refused.answer()(scope, receive, send_counted)
        except ClientDisconnect:  # the client disconnected before the whole body arrived
            status = 499
        except CancelledError:  # the client has disconnected, or the server is stopping immediately
            status = status or 499
        except Exception as error:
            _log.error("%s: %s", scope["path"], in_one_line(error))
            if not status:
                await FAILED.answer()(scope, receive, send_counted)
        finally:
            share.free()
            route = getattr(scope.get("route"), "path", "other")
            self.numbers.count(route, status, time.perf_counter() - begin)

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]], method: str) -> None:
        """Raise an error if the path or a header of a request is not allowed."""
        values: dict[bytes, bytes] = {}
        for name, value in headers:
            if name == b"host" and name in values:
                raise Refused(400, "the request has two Host headers: send one")
            values[name] = value
        if path in ("/readyz", "/health") and self.ending:
            raise Refused(503, "the server is shutting down", headers={"Retry-After": "5"})
        if path in HEALTH:
            return
        host = values.get(b"host", b"").decode("latin-1")
        if not self.knows(host):
            problem = f"{host[:80]!r} is not an allowed host of this server"
            message = f"{problem}: start the server with --allow-host and this host"
            raise Refused(403, message, code="host_not_allowed")
        origin = values.get(b"origin", b"").decode("latin-1")
        allowed = same_origin(origin, host) or origin in self._settings.origins
        if b"origin" in values and not allowed:
            problem = f"the request comes from a page of another server, {origin[:80]!r}"
            message = f"{problem}: start the server with --allow-origin and this origin"
            raise Refused(403, message, code="origin_not_allowed")
        if self._settings.keys is not None and (path not in _KEYLESS or method == "POST"):
            self._check_key(values.get(b"authorization", b""), self._settings.keys)
        if path.startswith(FILES) and path not in ASSETS:  # /docs loads only the files in `ASSETS`
            raise Refused(404, "this path does not exist: GET / lists the routes")
        encoding = values.get(b"content-encoding", b"identity").decode("latin-1")
        if encoding.strip().lower() not in ("", "identity"):
            problem = f"the body has the Content-Encoding {encoding[:20]!r}"
            message = f"{problem}, which this server does not read: send it uncompressed"
            raise Refused(415, message, code="encoding_not_supported")
        size = values.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self._settings.body:
            raise self._too_large()

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this machine or an allowed host."""
        try:
            name = host_name(host)
        except ValueError:
            return False
        return is_loopback(name) or any(matches(name) for matches in self._hosts)

    def _check_key(self, header: bytes, keys: Keys) -> None:
        kind, _, key = header.partition(b" ")
        if kind.lower() != b"bearer" or not keys.allow(key.strip()):
            problem = "is wrong" if header else "is missing"
            raise Refused(
                401,
                f"the key of this request {problem}: send 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _too_large(self) -> Refused:
        most = f"the allowed {self._settings.body} bytes"
        message = f"the body is larger than {most}: send several requests"
        return Refused(413, message, code="body_too_large")


async def send_in_pieces(message: Message, send: Send) -> None:
    """Send a message of a response; send a large body in pieces of `PIECE` bytes."""
    body = memoryview(message.get("body", b""))
    if len(body) > FREE:
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            await send({"type": message["type"], "body": piece, "more_body": True})
        message = {**message, "body": b""}  # uvicorn sends this message after the pieces
    await send(message)


@lru_cache(16)  # cached, because most requests have the same Host header
def host_name(host: str) -> str:
    """Return the host name from a Host header, in lower case and without the port.

    Raises:
        ValueError: the header does not name a host.

    >>> host_name("Example.org.:8080"), host_name("[::1]:80")
    ('example.org', '::1')
    """
    match = _HOST.fullmatch(host)
    if match is None:
        raise ValueError(f"{host!r} is not a valid host")
    return (match[1] or match[2]).lower()


def host_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a host name matches a pattern.

    The pattern is a host name; `*.` followed by a name, for all names with this ending; a network;
    or `*`.

    Raises:
        ValueError: the pattern is none of these.

    >>> [host_pattern("*.svc")(name) for name in ("qkv.default.svc", "svc", "svc.org")]
    [True, False, False]
    >>> [host_pattern("10.0.0.0/8")(name) for name in ("10.1.2.3", "11.0.0.1", "10.org")]
    [True, False, False]
    """
    if pattern == ANY:
        return lambda name: True
    if "/" in pattern:
        network = ipaddress.ip_network(pattern)
        return lambda name: (address := _address(name)) is not None and address in network
    if pattern.startswith("*."):
        ending = f".{host_name(pattern[2:])}"
        return lambda name: name.endswith(ending)
    return host_name(pattern).__eq__


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


@lru_cache(16)
def is_loopback(name: str) -> bool:
    """Return whether a name or an address reaches only this machine.

    >>> [is_loopback(name) for name in ("localhost", "127.8.0.1", "::1", "10.0.0.1", "a.b")]
    [True, True, True, False, False]
    """
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def same_origin(origin: str, host: str) -> bool:
    """Return whether a page's origin and a request's host belong to the same server.

    >>> same_origin("https://a.org", "a.org"), same_origin("http://evil.org", "a.org")
    (True, False)
    """
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and rest.lower() == host.lower()


def in_one_line(error: BaseException) -> str:
    r"""Describe an error and its code location in one line, without control characters.

    >>> in_one_line(ValueError("a\nb\x1b[31m"))
    'ValueError: a\\nb\\x1b[31m'
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return visible(f"{type(error).__name__}: {error}"[:500]) + where
