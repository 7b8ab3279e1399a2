"""Tests of clients that send a request and do not read the answer, or read it too slowly."""

import asyncio
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn

from models.small_models import CONFIGS, write_small
from qkv.serve._protocol import Connection
from qkv.serve.settings import Settings

from .conftest import peak_of, raw_request, serve, wait_until

PART = b"x" * 65536


@pytest.mark.parametrize("read", [0, 1024], ids=["nothing", "50 kB per second"])
async def test_an_answer_that_is_not_read_in_time_ends_with_its_connection(read: int) -> None:
    ended: list[str] = []

    async def endless(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": PART, "more_body": True})
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")

    settings = Settings(unread=0.3)
    protocol = type("OfThisTest", (Connection,), {"settings": settings})
    config = uvicorn.Config(endless, http=protocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        serving = asyncio.create_task(server._serve([listener]))
        with socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, listener.getsockname())
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            deadline = time.monotonic() + 60
            while not ended and time.monotonic() < deadline:
                if read:
                    await loop.sock_recv(client, read)
                await asyncio.sleep(0.02)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ended == ["cancelled"]
        server.should_exit = True
        await asyncio.wait_for(serving, 60)


@pytest.mark.alone
def test_silent_clients_do_not_exhaust_memory(tmp_path: Path) -> None:
    """200 clients ask for 25 MB each and read nothing; the server stays below 512 MB."""
    config = CONFIGS["gpt2"] | {"n_positions": 4096}
    asked = {"input": [5] * 1200, "layers": [0, 1], "heads": [0]}
    with serve("--model", write_small(tmp_path, config)) as server, ExitStack() as stack:
        statuses, clients = [], []
        for _ in range(200):
            client = stack.enter_context(socket.socket())
            clients.append(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(raw_request("/v1/trace", asked))
            client.settimeout(60)
            statuses.append(client.recv(12))
        with server.client() as other:
            small = other.post("/v1/trace", json=asked | {"input": [5] * 20})
            assert small.status_code == 200  # small answers do not wait for silent clients
        peak = peak_of(server)
        assert set(statuses) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert peak < 512_000
        with server.client() as other:
            assert "qkv_held_bytes 0.0" not in other.get("/metrics").text
            for client in clients:
                client.close()
            wait_until(lambda: "qkv_held_bytes 0.0" in other.get("/metrics").text)
