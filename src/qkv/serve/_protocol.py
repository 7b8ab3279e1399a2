"""Handle one connection, with time limits and a maximum size of headers."""

import asyncio
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from qkv.serve._refusals import Refused
from qkv.serve.settings import Settings

LINGER = 0.2  # An idle connection stays open for this many seconds after the shutdown begins.
# After a client has finished sending, the server checks repeatedly whether the client is still
# connected. The two numbers are the wait before the first check and the longest wait, in seconds.
# Each wait is twice as long as the wait before it, until the longest wait is reached.
PROBES = 0.05, 1.0
_INTERIM = STATUS_LINE[100] + b"\r\n"


class Connection:
    """The callbacks of one connection, as asyncio's event loop calls them.

    The class does not inherit from `asyncio.Protocol`, because the types of some methods differ.
    """

    # `qkv.serve.app` makes a subclass for each server and sets these attributes
    settings: Settings
    count: Any = staticmethod(lambda route, status, seconds: None)  # called like `Metrics.count`

    def __init__(self, **of_server: Any) -> None:
        requests = _Requests(self.settings, self.count, **of_server)
        self.connection_made, self.connection_lost = requests.begin, requests.connection_lost
        self.data_received, self.eof_received = requests.data_received, requests.half_close
        self.pause_writing, self.resume_writing = requests.pause_writing, requests.resume_writing


class _Requests(HttpToolsProtocol):
    """The HTTP protocol of one connection: uvicorn's protocol with additional limits.

    A whole request (headers and body) must arrive within `half_sent` seconds. A client must read
    each piece of an answer within `unread` seconds; otherwise, the server closes the connection. A
    client that closes its sending side after a request still gets the answer. At first, the server
    does not know whether such a client has closed the whole connection. To find out, the server
    sends interim `100 Continue` responses while it computes the answer; clients ignore these
    responses.

    A client may send several requests at once; the server answers them in order. The server reports
    an invalid or incomplete request only after all earlier requests are answered. The server
    ignores offers to switch to another protocol.
    """

    def __init__(self, settings: Settings, count: Any, **of_server: Any) -> None:
        super().__init__(**of_server)
        self.settings, self._count = settings, count
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        # `_current` is the request that is being answered; `cycle` is the newest request.
        self._current: Any = None
        self._head, self._ending, self._broken = 0, False, False
        self._too_long = False  # whether the head of the request that arrives is too long

    def begin(self, transport: asyncio.Transport) -> None:
        """Begin reading; refuse the connection if too many connections are open."""
        super().connection_made(transport)
        if len(self.connections) > self.settings.connections:
            message = "there are too many connections: try again later"
            self._refuse(Refused(503, message, headers={"Retry-After": "1"}))
        else:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the computation, because the client has disconnected."""
        self._stop()
        self._stop_waiting()
        super().connection_lost(exc)
        if self._task is not None:
            if not self._current.response_complete:
                self._current.disconnected = True  # uvicorn marks only the newest request
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Read bytes, which may belong to several requests."""
        if self._broken:
            return
        self._begin()
        self._head += len(data)
        self._unset_keepalive_if_required()
        while data and not self.transport.is_closing():
            data = self._parse(data)
        is_arriving = self._late is not None and not self.transport.is_closing()
        if is_arriving and self._head > self.settings.head:
            self._refuse(self._head_too_large())

    def _head_too_large(self) -> Refused:
        message = f"the request line and headers exceed {self.settings.head} bytes: shorten them"
        return Refused(431, message, code="head_too_large")

    def _parse(self, data: bytes) -> bytes:
        """Parse bytes; return the bytes to parse next.

        The result is empty, unless a request other than CONNECT offers to switch to another
        protocol. Then this method removes the offer from the request's headers. The result is the
        request line, the remaining headers, and all bytes after the headers.
        """
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
        """Return the request's head; omit the headers that offer to switch to another protocol."""
        close = any(name == b"connection" and b"close" in value for name, value in self.headers)
        pairs = [header for header in self.headers if header[0] not in (b"connection", b"upgrade")]
        pairs += [(b"connection", b"close")] * close
        lines = [method + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in pairs]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_message_begin(self) -> None:
        """Start the timer when a request's first byte arrives."""
        self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Handle the complete head of a request."""
        self._head = 0
        # the whole head may arrive in one read, together with the body
        lengths = (len(name) + len(value) + 4 for name, value in self.headers)
        self._too_long = len(self.url) + sum(lengths) > self.settings.head
        if self._too_long:
            raise ValueError("the head is too long")  # the parser stops with an error
        if self.parser.should_upgrade():
            # The client offers to switch to another protocol. `_parse` returns the request's head
            # without this offer, and `data_received` parses this head again.
            return
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Handle a part of a request's body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer, because the request has arrived in full."""
        if self.parser.should_upgrade():
            return
        self._stop()
        self._head = 0
        super().on_message_complete()
        if self.cycle.response_complete:  # the request was refused before it arrived in full
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def half_close(self) -> bool:
        """Return whether the connection stays open after the client has finished sending."""
        if self._answering:
            self.cycle.keep_alive = False
            self.loop.call_later(PROBES[0], self._probe, PROBES[0])
        return self._answering

    def shutdown(self) -> None:
        """Answer the requests that have arrived in full, then close the connection."""
        if self._ending:
            return
        self._ending = True
        if self._answering:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(LINGER, self._close_if_idle)

    def pause_writing(self) -> None:
        """Stop writing until the client reads; after a time limit, close the connection."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.settings.unread, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue writing after the client has read."""
        self._stop_waiting()
        super().resume_writing()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP; first answer all earlier requests."""
        if self._answering:
            self._broken, self.cycle.keep_alive = True, False
            return
        invalid = Refused(400, "the request is not HTTP/1.1", code="invalid_http")
        self._refuse(self._head_too_large() if self._too_long else invalid)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._current = cycle
        self._task = task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    @property
    def _answering(self) -> bool:
        """Whether a request has arrived in full but its answer is not finished."""
        return any(
            cycle is not None and not cycle.more_body and not cycle.response_complete
            for cycle in (self._current, self.cycle)
        )

    def _begin(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.settings.half_sent, self._too_late)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self._answering:  # the late request must wait until the earlier answer is finished
            self._begin()
        elif self._begun:
            message = f"the request had not arrived completely after {self.settings.half_sent:g} s"
            self._refuse(Refused(408, f"{message}: send it without pauses", code="request_timeout"))
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def _begun(self) -> bool:
        """Whether a part of a request has arrived."""
        return self._head > 0 or (self.cycle is not None and self.cycle.more_body)

    def _close_if_idle(self) -> None:
        if not self._answering and not self.transport.is_closing():
            self.transport.close()

    def _probe(self, waited: float) -> None:
        if self._answering and not self.transport.is_closing():
            if not self._current.response_started:
                self.transport.write(_INTERIM)
            longer = min(2 * waited, PROBES[1])
            self.loop.call_later(longer, self._probe, longer)

    def _refuse(self, refused: Refused) -> None:
        """Send an error if no answer has begun, and close the connection."""
        self._stop()
        self._count("other", refused.status, 0.0)
        cycle = self._current
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = orjson.dumps(refused.body())
            lines = {"content-type": "application/json", "connection": "close"} | refused.headers
            lines["content-length"] = str(len(body))
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self.transport.write(STATUS_LINE[refused.status] + f"{head}\r\n".encode() + body)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
        self.transport.close()
