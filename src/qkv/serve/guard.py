"""Who may ask, and how much: looked at before a request reaches its route."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import time
import traceback
from asyncio import CancelledError
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from qkv.serve.errors import Refused
from qkv.serve.settings import Settings
from qkv.visible import visible

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from qkv.serve.numbers import Numbers

HEALTH = frozenset({"/healthz", "/readyz"})  # asked for by programs that know no name and no key
# what a browser opens, which sends no key of its own; they tell nothing that is secret
OPEN = HEALTH | {"/", "/docs", "/docs/oauth2-redirect", "/openapi.json"}
_FILES = "/static-offline-docs"
ASSETS = frozenset(
    f"{_FILES}/{name}" for name in ("favicon.png", "swagger-ui-bundle.js", "swagger-ui.css")
)
_KEYLESS = OPEN | ASSETS

# a name or an address, with a port; an IPv6 address stands in brackets
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]*[a-z0-9_-])\.?)(?::[0-9]*)?", re.IGNORECASE)

_log = logging.getLogger("qkv.serve")


class Guard:
    """Refuses what may not pass, counts what does, and answers for what a route could not.

    Args:
        app: the application behind it.
        settings: who may ask, and how much.
        numbers: where requests are counted.

    Attributes:
        ending: whether the server has been told to end.
    """

    def __init__(self, app: ASGIApp, settings: Settings, numbers: Numbers) -> None:
        self.app, self._settings, self._numbers = app, settings, numbers
        self.ending = False
        self._held = 0  # bytes of all bodies that are here
        self._hosts = frozenset(map(host_name, settings.allowed_hosts))
        self._key = None if settings.key is None else _digest(settings.key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's beginning and end."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0
        size = 0  # of its body, as far as it is here

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            more = len(message.get("body", b""))
            size, self._held = size + more, self._held + more
            if size > self._settings.body:
                raise self._too_large()
            if self._held > self._settings.bodies:
                raise self._too_much()
            return message

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self.check(scope["path"], scope["headers"])
            await self.app(scope, bounded, counted)
        except Refused as refused:
            await answer(refused)(scope, receive, counted)
        except ClientDisconnect:  # in the middle of its body
            status = 499
        except CancelledError:  # the client hung up, or the server ends at once
            status = status or 499
        except Exception as error:
            _log.error("%s: %s", scope["path"], in_one_line(error))
            if not status:
                await answer(failed())(scope, receive, counted)
        finally:
            self._held -= size
            route = getattr(scope.get("route"), "path", "other")
            self._numbers.count(route, status, time.perf_counter() - begin)

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse a request for what its head says."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name == b"host" and name in found:
                raise Refused(400, "the request has two Host headers: send one")
            found[name] = value
        if path == "/readyz" and self.ending:
            raise Refused(503, "the server ends", headers={"Retry-After": "5"})
        if path in HEALTH:
            return
        host = found.get(b"host", b"").decode("latin-1")
        if not self.knows(host):
            raise Refused(
                403,
                f"this server does not go by the name {host[:80]!r}: "
                "start it with --allow-host to let it",
                code="host_not_allowed",
            )
        origin = found.get(b"origin")
        if origin is not None and not same_place(origin.decode("latin-1"), host):
            raise Refused(
                403,
                "the page that asks comes from somewhere else than this server",
                code="origin_not_allowed",
            )
        if self._key is not None and path not in _KEYLESS:
            self._check_key(found.get(b"authorization", b""))
        if path.startswith(_FILES) and path not in ASSETS:  # nothing else is looked for on the disk
            raise Refused(404, "there is nothing at this path: GET / has the routes")
        size = found.get(b"content-length", b"0")
        if size.isdigit() and int(size) > self._settings.body:
            raise self._too_large()

    def knows(self, host: str) -> bool:
        """Whether a Host header is this machine's own, or one that was allowed."""
        try:
            name = host_name(host)
        except ValueError:
            return False
        return name in self._hosts or is_loopback(name)

    def _check_key(self, given: bytes) -> None:
        kind, _, key = given.partition(b" ")
        wanted = self._key or b""
        if not hmac.compare_digest(_digest(key.strip()), wanted) or kind.lower() != b"bearer":
            said = "is not the one" if given else "is missing"
            raise Refused(
                401,
                f"the key {said} that this server asks for: send 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _too_large(self) -> Refused:
        return Refused(
            413,
            f"the body is larger than the {self._settings.body} bytes that one request may have: "
            "send several",
            code="body_too_large",
        )

    def _too_much(self) -> Refused:
        return Refused(
            503,
            f"all requests together hold more than {self._settings.bodies} bytes: ask again",
            headers={"Retry-After": "1"},
        )


def failed() -> Refused:
    """What a client is told of an error that is not its own."""
    return Refused(500, "the server failed: its log says why")


def answer(refused: Refused) -> JSONResponse:
    """What a client is told that is refused."""
    return JSONResponse(refused.body(), refused.status, refused.headers)


@lru_cache(16)  # a client sends the same each time
def host_name(host: str) -> str:
    """The name in a Host header, without its port, in small letters.

    Raises:
        ValueError: it is none.

    >>> host_name("Example.org.:8080"), host_name("[::1]:80")
    ('example.org', '::1')
    """
    found = _HOST.fullmatch(host)
    if found is None:
        raise ValueError(f"{host!r} is no host")
    return (found[1] or found[2]).lower()


@lru_cache(16)
def is_loopback(name: str) -> bool:
    """Whether a name or an address is that of this machine alone.

    >>> [is_loopback(name) for name in ("localhost", "127.8.0.1", "::1", "10.0.0.1", "a.b")]
    [True, True, True, False, False]
    """
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_place(origin: str, host: str) -> bool:
    """Whether a page's origin is the server that a request names as its host.

    >>> same_place("https://a.org", "a.org"), same_place("http://evil.org", "a.org")
    (True, False)
    """
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and rest.lower() == host.lower()


def in_one_line(error: BaseException) -> str:
    r"""What went wrong and where, with nothing in it that a terminal or a log would obey.

    >>> in_one_line(ValueError("a\nb\x1b[31m"))
    'ValueError: a\\nb\\x1b[31m'
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return visible(f"{type(error).__name__}: {error}"[:500]) + where


def _digest(key: bytes) -> bytes:
    """Of one length whatever the key's, so that comparing tells nothing of it."""
    return hashlib.sha256(key).digest()
