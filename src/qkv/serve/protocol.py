"""One connection: how long a request may take to arrive, how large its head may be, who hung up."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from qkv.serve.errors import Refused
from qkv.serve.settings import Settings

LINGER = 0.2  # seconds that a connection without a request is still read when the server ends
# seconds between two tries to find out whether a client that sends no more still reads: doubled
# from the first to the second of these
PROBES = 0.05, 1.0
_INTERIM = STATUS_LINE[100] + b"\r\n"


class Connection(HttpToolsProtocol):
    """What uvicorn makes of a connection, with limits, and with an end when the client hangs up.

    A request has `half_sent` seconds to arrive in full, headers and body, however it trickles in.
    If nothing of what waits to be read is for `unread` seconds, the connection is closed.
    A client that shuts down its side of the connection when it has sent its request still gets the
    answer. Whether it closed the connection instead can only be told by sending something: where
    the answer takes longer, an interim `100 Continue`, which clients pass over.
    Several requests may be sent at once: they are answered in order, and nothing that comes behind
    one, broken or half sent, is answered within its answer. A client that offers another protocol
    is answered in this one, as if it had offered none.
    """

    settings: Settings  # of the server, put on a subclass of its own

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse one connection too many; of others, begin to count the seconds."""
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked: Any = None  # the request that is being answered; `cycle` is the last that came
        self._head, self._ending, self._broken = 0, False, False
        if len(self.connections) > self.settings.connections:
            self._refuse(Refused(503, "there are too many connections: try again later"))
        else:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever asked is gone: what is computed for it ends."""
        self._stop()
        self._forget_unread()
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        if self._broken:
            return
        self._begin()
        self._head += len(data)
        self._unset_keepalive_if_required()
        while data and not self.transport.is_closing():
            data = self._parse(data)
        if self._head > self.settings.head and self._arriving and not self.transport.is_closing():
            said = (
                f"the head of a request may have {self.settings.head} bytes and this one has more"
            )
            self._refuse(Refused(431, f"{said}: send less", code="head_too_large"))

    def _parse(self, data: bytes) -> bytes:
        """Read bytes; what of them has to be read again."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            method = self.parser.get_method()
            if method == b"CONNECT":
                self.send_400_response("")
                return b""
            self.parser = httptools.HttpRequestParser(self)
            return self._head_without_offer(method) + data[offered.args[0] :]
        except httptools.HttpParserError:
            self.send_400_response("")
        return b""

    def _head_without_offer(self, method: bytes) -> bytes:
        """The head of a request that offers another protocol, without the offer."""
        close = any(name == b"connection" and b"close" in value for name, value in self.headers)
        kept = [one for one in self.headers if one[0] not in (b"connection", b"upgrade")]
        kept += [(b"connection", b"close")] * close
        lines = [method + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in kept]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is here."""
        self._head = 0
        if self.parser.should_upgrade():  # it is read again, as one that offers nothing
            return
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A part of a request's body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is here in full."""
        if self.parser.should_upgrade():
            return
        self._stop()
        self._head = 0
        super().on_message_complete()
        if self.cycle.response_complete:  # which was refused before it was here
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: what it asked for in full is still answered."""
        if self._answering:
            self.cycle.keep_alive = False
            self.loop.call_later(PROBES[0], self._probe, PROBES[0])
        return self._answering

    def shutdown(self) -> None:
        """The server ends: a request that is under way, or about to be, is still answered."""
        if self._ending:
            return
        self._ending = True
        if self._answering:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(LINGER, self._close_if_idle)

    def pause_writing(self) -> None:
        """More of an answer waits to be read than is kept."""
        super().pause_writing()
        if self._unread is None:
            self._wait_for_reader()

    def resume_writing(self) -> None:
        """The client reads on."""
        self._forget_unread()
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        """Look again in a while, and end the connection if nothing was read until then."""
        before = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() < before:
                self._wait_for_reader()
            else:
                self.transport.abort()

        self._unread = self.loop.call_later(self.settings.unread, look)

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP: what came before it is still answered."""
        if self._answering:
            self._broken, self.cycle.keep_alive = True, False
            return
        self._refuse(Refused(400, "the request is not HTTP/1.1", code="invalid_http"))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._asked = cycle
        self._task = task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    @property
    def _answering(self) -> bool:
        """Whether there is a request that came in full and is not answered in full."""
        return any(
            cycle is not None and not cycle.more_body and not cycle.response_complete
            for cycle in (self._asked, self.cycle)
        )

    @property
    def _arriving(self) -> bool:
        """Whether a request's head has begun to come."""
        return self._late is not None

    def _begin(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.settings.half_sent, self._too_late)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self._answering:  # what came behind it waits too
            self._begin()
        elif self._begun:
            limit = self.settings.half_sent
            said = f"the request was not here after {limit:g} s: send it in one go"
            self._refuse(Refused(408, said, code="request_timeout"))
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def _begun(self) -> bool:
        """Whether any byte of a request that is not here in full has come."""
        return self._head > 0 or (self.cycle is not None and self.cycle.more_body)

    def _close_if_idle(self) -> None:
        if not self._answering and not self.transport.is_closing():
            self.transport.close()

    def _probe(self, waited: float) -> None:
        if self._answering and not self.transport.is_closing():
            if not self._asked.response_started:
                self.transport.write(_INTERIM)
            longer = min(2 * waited, PROBES[1])
            self.loop.call_later(longer, self._probe, longer)

    def _refuse(self, refused: Refused) -> None:
        """Say why, unless an answer has begun, and close the connection."""
        self._stop()
        cycle = self._asked
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = orjson.dumps(refused.body())
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            size = str(len(body)).encode()
            self.transport.write(STATUS_LINE[refused.status] + head + size + b"\r\n\r\n" + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
        self.transport.close()
