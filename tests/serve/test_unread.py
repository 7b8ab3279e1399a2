"""Tests of a client that sends a request and does not read the answer."""

import asyncio
import socket
import struct
import time

import uvicorn

from qkv.serve._protocol import Connection
from qkv.serve.settings import Settings

PIECE = b"x" * 65536


def test_an_answer_that_nobody_reads_ends_with_its_connection() -> None:
    ended: list[str] = []

    async def endless(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            ended.append("cancelled")

    async def main() -> None:
        settings = Settings(unread=0.3)
        protocol = type("OfThisTest", (Connection,), {"settings": settings})
        config = uvicorn.Config(endless, http=protocol, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server._serve([listener]))
            with socket.socket() as client:
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(client, listener.getsockname())
                await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                deadline = time.monotonic() + 20
                while not ended and time.monotonic() < deadline:
                    await asyncio.sleep(0.05)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert ended == ["cancelled"]
            server.should_exit = True
            await asyncio.wait_for(serving, 20)

    asyncio.run(main())
