"""The server's process: it listens, says where, and ends when it is told to."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import uvicorn

from qkv.models import Model
from qkv.serve.app import create_app
from qkv.serve.guard import Guard
from qkv.serve.protocol import Connection
from qkv.serve.settings import Settings
from qkv.signals import answering
from qkv.visible import visible

KEEP_ALIVE = 60  # seconds that a connection may stand idle between two requests
GRACE = 60  # seconds that what was accepted has to be finished in


def run(model: Model, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve a model until a signal ends it; a second signal ends it at once.

    Args:
        model: what is served.
        settings: where, for whom, and how much.
        ready: is told the address once requests are taken.

    Raises:
        OSError: the address cannot be listened at.
    """
    with listening(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        app = create_app(model, settings)
        config = uvicorn.Config(
            app,
            http=type("OfThisServer", (Connection,), {"settings": settings}),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
            backlog=2048,
        )
        _log_to(sys.stderr)
        _Server(config, app, lambda: ready(address)).run([listener])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound to an address, or an error that names it."""
    with ExitStack() as stack:
        try:
            kind, _, _, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            found = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
            found.listen(2048)
        except OSError as error:
            where = f"{host}:{port}"
            raise OSError(error.errno, f"cannot listen there: {error.strerror}", where) from error
        yield found


class _Server(uvicorn.Server):
    """uvicorn's, which says when it takes requests, and ends with 0 when it is told to end."""

    def __init__(self, config: uvicorn.Config, guard: Guard, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._guard, self._ready = guard, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in the connections that the system has accepted for us, then end as uvicorn does.

        They would be reset with the listener, whatever was sent on them.
        """
        copies = [listener.dup() for listener in sockets or []]  # which keep it open
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for waiting in [one for copy in copies for one in _last_of(copy)]:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, waiting)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextmanager
    def capture_signals(self) -> Any:
        with answering(self.handle_exit, signal.SIGINT):
            yield

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = self._guard.ending = True


def _last_of(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted; the listener is closed behind the last."""
    found = []
    listener.setblocking(False)
    with listener, suppress(OSError):  # there is no more
        while True:
            found.append(listener.accept()[0])
    return found


def _log_to(stream: Any) -> None:
    """What the server has to say of itself, a line each."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine())
    for name in ("qkv.serve", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate, log.level = [handler], False, logging.ERROR


class _OneLine(logging.Formatter):
    """No traceback, and nothing that a terminal or a log would obey."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"qkv serve: {record.getMessage().strip()}"
        error = record.exc_info[1] if record.exc_info else None
        text += f": {error!r}"[:500] if error is not None else ""
        return visible(text)
