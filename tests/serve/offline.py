"""Run a program that may only connect to this machine: `python offline.py FILE ...`."""

import os
import runpy
import socket
import sys
from typing import Any

LOCAL = {None, "", "127.0.0.1", "localhost", "::1", b"127.0.0.1", b"localhost"}
asked: list[str] = []
_connect, _look_up = socket.socket.connect, socket.getaddrinfo


def connect(self: socket.socket, address: Any) -> None:
    if isinstance(address, tuple) and address[0] not in LOCAL:
        asked.append(f"connect to {address}")
        raise OSError("there is no network")
    _connect(self, address)


def getaddrinfo(host: Any, *others: Any, **options: Any) -> Any:
    if host not in LOCAL:
        asked.append(f"look up {host!r}")
        raise socket.gaierror("there is no network")
    return _look_up(host, *others, **options)


if __name__ == "__main__":
    socket.socket.connect = connect  # type: ignore[method-assign]
    socket.getaddrinfo = getaddrinfo
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    if asked:
        print(f"it asked the network: {asked}", file=sys.stderr, flush=True)
        os._exit(3)
