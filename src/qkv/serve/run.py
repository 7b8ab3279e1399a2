"""The server's process: listen at an address, report the address, and end on a signal."""

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
from qkv.serve.limits import Limits
from qkv.serve.protocol import Connection
from qkv.signals import answering
from qkv.visible import visible

KEEP_ALIVE = 60  # seconds that a connection may be idle between two requests
GRACE = 60  # seconds that accepted requests may take after a signal


def run(model: Model, limits: Limits, ready: Callable[[str], None]) -> None:
    """Serve a model until a signal arrives; a second signal stops the server immediately.

    Args:
        model: the model to serve.
        limits: the address and the limits.
        ready: receives the address when the server accepts requests.

    Raises:
        OSError: the server cannot listen at the address.
    """
    with listening(limits.host, limits.port) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        app = create_app(model, limits)
        config = uvicorn.Config(
            app,
            http=type("OfThisServer", (Connection,), {"limits": limits}),
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
    """Return a socket bound to an address, or raise an error that names the address."""
    with ExitStack() as stack:
        try:
            kind, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except OSError as error:
            where = f"{host}:{port}"
            raise OSError(error.errno, f"cannot listen here: {error.strerror}", where) from error
        yield listener


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it accepts requests, and exits with 0 on a signal."""

    def __init__(self, config: uvicorn.Config, guard: Guard, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._guard, self._ready = guard, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take the connections that the system has accepted, then shut down as uvicorn does.

        Closing the listener first would reset these connections.
        """
        copies = [listener.dup() for listener in sockets or []]  # the copies keep the socket open
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for waiting in [connection for copy in copies for connection in _last_of(copy)]:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, waiting)
        await super().shutdown(sockets)

    def _protocol(self) -> Any:
        kind: Any = self.config.http_protocol_class
        return kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextmanager
    def capture_signals(self) -> Any:
        with answering(self.handle_exit, signal.SIGINT):
            yield

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        self.should_exit = self._guard.ending = True


def _last_of(listener: socket.socket) -> list[socket.socket]:
    """Accept the waiting connections, then close the listener."""
    connections = []
    listener.setblocking(False)
    with listener, suppress(OSError):  # no more connections
        while True:
            connections.append(listener.accept()[0])
    return connections


def _log_to(stream: Any) -> None:
    """Write each log message of the server as one line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_OneLine())
    for name in ("qkv.serve", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate, log.level = [handler], False, logging.ERROR


class _OneLine(logging.Formatter):
    """A formatter that leaves out tracebacks and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"qkv serve: {record.getMessage().strip()}"
        error = record.exc_info[1] if record.exc_info else None
        text += f": {error!r}"[:500] if error is not None else ""
        return visible(text)
