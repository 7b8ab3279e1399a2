"""Start servers for tests, in a separate process or on a thread, and end them in every case."""

import asyncio
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from models.support import cross_encoder
from processes import MINUTE, until as wait_until
from qkv.models import Model, load
from qkv.serve._protocol import Connection
from qkv.serve._work import Worker
from qkv.serve.app import create_app
from qkv.serve.guard import Guard
from qkv.serve.key_file import Keys
from qkv.serve.settings import Settings

ADDRESS = re.compile(r"at (http://\S+) ")
# For programs of clients: no telemetry and no lists of prices.
ENVIRONMENT = os.environ | {
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_OFFLINE": "0",  # offline.py refuses all other machines; "1" would refuse this one too
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, for at most five minutes."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.function(**given), 300))
    return True


@dataclass
class Served:
    """A server in a separate process, ready for requests."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 80

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=MINUTE, trust_env=False, **options)

    def end(self, number: int = signal.SIGTERM, seconds: float = MINUTE) -> int:
        """Send a signal, wait for the end of the process, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def serve(*arguments: str | Path, program: tuple[str, ...] = ("-m", "qkv")) -> Iterator[Served]:
    """Run `qkv serve --port 0` with these arguments; yield the server once it takes requests.

    `program` can replace the command `qkv` with a script, as in `("-c", script)`.
    """
    if program == ("-m", "qkv"):
        program = ("-c", "from qkv.cli import main; main()")
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "--port", "0", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        line = process.stderr.readline()
        found = ADDRESS.search(line)
        assert found, f"it did not start: {line}{process.stderr.read()}"
        server = Served(process, found.group(1))
        with server.client() as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready")
        yield server
    finally:
        process.kill()
        print(process.communicate()[1])  # pytest shows the log of a test that fails


def raw_request(path: str, body: Any) -> bytes:
    """Return the bytes of a request with this body as JSON."""
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return (head + content).encode()


def output_of(*command: str | Path, **options: Any) -> str:
    """Run a program that must end with 0 within ten minutes, and return its standard output."""
    options = {"capture_output": True, "text": True, "timeout": 600, **options}
    run = subprocess.run(command, check=False, **options)
    assert run.returncode == 0, run.stderr[-3000:]
    return str(run.stdout)


def peak_of(server: Served) -> int:
    """Return the peak memory of a server's process in kB; skip the test without /proc."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc to read the memory of a process")
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])
    print(f"peak {peak // 1000} MB")
    return peak


@dataclass
class Inside:
    """A server on a thread of this process, whose parts a test can inspect."""

    port: int
    guard: Guard
    loop: asyncio.AbstractEventLoop

    @property
    def worker(self) -> Worker:
        return self.guard.app.state.worker

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the computing thread busy until the `with` block ends."""
        entered, release = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            assert release.wait(MINUTE)

        call = self.worker.call(hold, connection="held")
        done = asyncio.run_coroutine_threadsafe(call, self.loop)
        try:
            assert entered.wait(MINUTE)
            yield
        finally:
            release.set()
            done.result(MINUTE)

    def ask(self, path: str, body: Any, times: int = 1, **options: int) -> socket.socket:
        """Send a request `times` times at once on a new connection; return the connection."""
        connection = socket.socket()
        for name, value in options.items():
            connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(raw_request(path, body) * times)
        return connection


def app_client(model: Model, **limits: Any) -> TestClient:
    """Return a client of an app that serves a model in this process, with these settings."""
    return TestClient(create_app(model, Settings(**limits)), base_url="http://127.0.0.1")


def refused(response: httpx.Response, key: str | None, *words: str, status: int = 400) -> str:
    """Check that an answer refuses this key of the request; return its message, of one line."""
    assert response.status_code == status, response.text[:300]
    error = response.json()["error"]
    kind = "server_error" if status == 500 else "invalid_request_error"
    assert (error["type"], error["param"]) == (kind, key)
    assert [word for word in (*words, "") if word not in error["message"]] == []
    assert "\n" not in error["message"]
    return str(error["message"])


@contextmanager
def inside(model: Model, settings: Settings | None = None) -> Iterator[Inside]:
    """Serve a model as `qkv serve` does, on a thread of this process; yield once it is ready."""
    settings = settings or Settings()
    guard = create_app(model, settings)
    protocol = type("OfThisTest", (Connection,), {"settings": settings})
    config = uvicorn.Config(guard, http=protocol, ws="none", lifespan="on", log_config=None)
    server, started = uvicorn.Server(config), threading.Event()
    found: list[asyncio.AbstractEventLoop] = []

    async def serving() -> None:
        found.append(asyncio.get_running_loop())
        task = asyncio.create_task(server._serve([listener]))
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        started.set()
        await task

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=lambda: asyncio.run(serving()), daemon=True)
        thread.start()
        assert started.wait(MINUTE)
        assert server.started
        try:
            wait_until(lambda: guard.app.state.worker.ready, "it is ready")
            yield Inside(port, guard, found[0])
        finally:
            server.should_exit = True
            thread.join(MINUTE)
        assert not thread.is_alive()


@pytest.fixture
def serving() -> Iterator[Callable[..., Served]]:
    """A function that starts servers, which end with the test: `serving("--model", folder)`."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(serve(*arguments, **options))


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server of the model that ships with qkv; all tests share the server and must not end it."""
    with serve() as server:
        yield server


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(cross_encoder(tmp_path_factory.mktemp("model") / "ranks").path)


def keys_in(folder: Path, text: str) -> Keys:
    """Write API keys to a file that only its owner may read, and return the keys."""
    file = folder / "keys"
    file.write_text(text)
    file.chmod(0o600)
    return Keys(str(file))
