"""The ASGI application for one model, and the process that serves the application."""

import asyncio
import hashlib
import logging
import re
import signal
import socket
import sys
import warnings
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from importlib import import_module
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message

from qkv._visible import visible
from qkv.models import Model
from qkv.serve._memory import Memory, Share
from qkv.serve._protocol import Connection
from qkv.serve._refusals import ERRORS, FAILED, Refused
from qkv.serve._work import Worker
from qkv.serve.guard import FILES, Guard, Metrics, in_one_line
from qkv.serve.routes import ROUTERS
from qkv.serve.settings import Settings
from qkv.signals import answering

# `/metrics` reports some attributes of the worker: `_WATCHED` lists attributes of `worker`, and
# `_COUNTED` lists attributes of `worker.counts`.
_WATCHED = {
    "ready": "1 if /readyz answers 200, otherwise 0.",
    "waiting": "Requests without an answer so far.",
    "streams": "Completions that have not ended.",
    "oldest_seconds": "Seconds since the oldest request arrived; completions are not counted.",
}
_COUNTED = {
    "batches": "Batches computed since the start.",
    "texts": "Texts computed since the start.",
    "tokens": "Tokens computed since the start.",
    "failures": "Errors while computing.",
}
DOCS = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self'"
)  # the content security policy of /docs; the hash of the page's script is added to it
KEEP_ALIVE = 60  # The number of seconds that a connection may be idle between two requests.
GRACE = 60  # The number of seconds that accepted requests may take after a signal to stop.


def create_app(model: Model, settings: Settings | None = None) -> Guard:
    """Return an ASGI application that serves a model and checks each request with a `Guard`.

    Routes read the attributes of `request.app.state`: `model`, `settings`, `worker`, `numbers`,
    `routes`, `name` (the model name in responses), and `tokenizing`, a lock.
    """
    settings = settings or Settings()
    name = settings.name or model.name
    app = _with_routes(f"qkv serves {name}", needs_key=settings.keys is not None)
    state = app.state
    state.model, state.settings, state.name = model, settings, name
    state.worker, state.numbers, state.routes = Worker(model, settings), Metrics(), routes()
    state.tokenizing = asyncio.Lock()
    for owner, watched in (state.worker, _WATCHED), (state.worker.counts, _COUNTED):
        for attribute, words in watched.items():
            state.numbers.watch(f"qkv_{attribute}", words, owner, attribute)
    guard = Guard(app, settings, state.numbers)
    words = "Bytes of --max-memory that bodies and unsent answers hold."
    state.numbers.watch("qkv_held_bytes", words, guard.memory, "held")
    return guard


def routes() -> list[APIRoute]:
    """Return all routes, in the order in which the modules declare them."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def _with_routes(title: str, *, needs_key: bool) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def prepare() -> None:
            await rehearse(app)
            worker.ready = True

        worker: Worker = app.state.worker
        worker.start()
        preparing = asyncio.create_task(prepare())
        yield
        preparing.cancel()
        await worker.stop()

    version = import_module("qkv").__version__
    app = FastAPIOffline(
        None,
        None,
        title=title,
        version=version,
        lifespan=lifespan,
        responses=ERRORS,
        redirect_slashes=False,  # behind a proxy with TLS, a redirect would leave https
    )
    for router in ROUTERS:
        app.include_router(router)

    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=title,
        swagger_js_url=f"{FILES}/swagger-ui-bundle.js",
        swagger_css_url=f"{FILES}/swagger-ui.css",
        swagger_favicon_url=f"{FILES}/favicon.png",
    )
    [script] = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    page.headers["Content-Security-Policy"] = (
        f"{DOCS} 'sha256-{b64encode(hashlib.sha256(script).digest()).decode()}'"
    )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page

    @app.exception_handler(Refused)
    async def answer_refusal(request: Request, error: Refused) -> Response:
        return error.answer()

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:80]
        message = {
            404: f"{path!r} does not exist: GET / lists the routes",
            405: f"{path!r} does not accept the method {request.method[:20]!r}",
        }.get(error.status_code, str(error.detail))
        return Refused(error.status_code, message, headers=dict(error.headers or {})).answer()

    @app.exception_handler(Exception)
    async def not_expected(request: Request, error: Exception) -> Response:
        return FAILED.answer()  # the guard logs the error

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))[:80]
        return Refused(400, f"{key}: {first['msg']}", param=key).answer()

    if needs_key:  # /docs prompts for the key, and sends the key with each request
        schema = app.openapi()
        schemes = {"key": {"type": "http", "scheme": "bearer"}}
        schema.setdefault("components", {})["securitySchemes"] = schemes
        schema["security"] = [{"key": []}]
    return app


def run(model: Model, settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve a model until a signal arrives; a second signal stops the server immediately.

    Args:
        model: the model to serve.
        settings: the address and the limits.
        ready: a function that is called with the address as soon as the server accepts requests.

    Raises:
        OSError: the server cannot listen at the address.
    """
    with listening(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        app = create_app(model, settings)
        config = uvicorn.Config(
            app,
            http=type("Served", (Connection,), {"settings": settings, "count": app.numbers.count}),
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
        _log_to_stderr()
        with warnings.catch_warnings():  # the log contains only errors
            warnings.simplefilter("ignore")
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
        """Accept the connections that wait at the listeners, then shut down as uvicorn does.

        If the listener were closed first, the system would reset the waiting connections.
        """
        copies = [listener.dup() for listener in sockets or []]  # the copy keeps the socket open
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
    """Accept all waiting connections, close the listener, and return the connections."""
    connections = []
    listener.setblocking(False)
    with listener, suppress(OSError):  # no more connections
        while True:
            connections.append(listener.accept()[0])
    return connections


def _log_to_stderr() -> None:
    """Write each log message of the server as one line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    for name in ("qkv.serve", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers, log.propagate, log.level = [handler], False, logging.ERROR


class _OneLine(logging.Formatter):
    """A formatter that writes a log message as one line, without a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"qkv serve: {record.getMessage().strip()}"
        error = record.exc_info[1] if record.exc_info else None
        text += f": {error!r}"[:500] if error is not None else ""
        return visible(text)


_log = logging.getLogger("qkv.serve")

_SAMPLED = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
_MESSAGES = [{"role": "user", "content": "a"}]
# The bodies that are sent to each route. The texts are short, so that they fit every model.
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/embeddings": [{"input": ["a", "b"]}, {"input": "a", "encoding_format": "base64"}],
    "/v1/completions": [
        {"prompt": "a", "max_tokens": 2, **_SAMPLED},
        {"prompt": "a", "max_tokens": 1, "logprobs": 1, "echo": True},
    ],
    "/v1/chat/completions": [
        {"messages": _MESSAGES, "max_tokens": 2, **_SAMPLED},
        {"messages": _MESSAGES, "max_tokens": 1, "logprobs": True, "top_logprobs": 1},
    ],
    "/v1/trace": [
        {"input": "a", "top_k": 1},
        {"input": "a", "include": ["text", "resid"], "inside": [0], "edits": [{"op": "causal"}]},
        {"input": "a", "at": [0]},
    ],
    **{key: [{"query": "a", "documents": ["a", "b"]}] for key in ("/v1/rerank", "/v2/rerank")},
    "/embed": [{"inputs": ["a", "b"]}],
    "/rerank": [{"query": "a", "texts": ["a", "b"]}],
    "/tokenize": [{"inputs": "a"}],
    "/": [{"inputs": "a"}],
}
_HEADERS = [(b"host", b"localhost"), (b"accept", b"application/octet-stream")]


async def rehearse(app: FastAPI) -> None:
    """Send requests to all routes of an application, one after another.

    Afterwards, everything that a client's first request needs is in memory: packed weights,
    imported modules, compiled chat templates, the page and the schema. The routes refuse requests
    that the model cannot answer. The log names any other error; later requests will raise it too.
    """
    for method, path, content in _requests(app):
        try:
            await _ask(app, method, path, content)
        except Exception as error:
            _log.error("%s: %s", path, in_one_line(error))


def _requests(app: FastAPI) -> Iterator[tuple[str, str, bytes]]:
    """Yield the method, the path and the body of each request."""
    yield "GET", "/openapi.json", b""
    for route in app.state.routes:
        if "GET" in route.methods:
            yield "GET", route.path.replace("{name:path}", app.state.name), b""
            continue
        for body in BODIES[route.path]:
            if app.state.model.tokenizer is None:
                body = body | {key: [0] for key in ("input", "prompt") if key in body}
            yield "POST", route.path, orjson.dumps(body)


async def _ask(app: FastAPI, method: str, path: str, content: bytes) -> None:
    """Send one request to the application; ignore the answer."""
    messages: list[Message] = [{"type": "http.request", "body": content}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()  # the client stays connected
        return messages.pop()

    async def send(message: Message) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": _HEADERS,
        "client": ("localhost", 0),
        "share": Share(Memory(app.state.settings.memory)),
    }
    await app(scope, receive, send)
