"""A process that has loaded the marker's modules, and forks one process for each file.

A fork runs the marker's own `main`, with the limits, outputs and exit codes of a new process. The
only difference: Python, NumPy and qkv are not loaded again.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from qkv_marking.files import _child


class Fork:
    """A fork, with the methods of `subprocess.Popen` that `Isolated` uses."""

    def __init__(self, end, given, stderr):
        self._end, self._code = end, None
        told, tells = os.pipe()
        asked, asks = os.pipe()
        self.stdin, self.stdout = os.fdopen(asks, "wb"), os.fdopen(told, "rb")
        socket.send_fds(end, [json.dumps(given).encode()], [asked, tells, stderr])
        os.close(asked)
        os.close(tells)
        self.pid = int(end.recv(64))

    def poll(self):
        return self._asked(b"poll")

    def wait(self, timeout=None):
        if timeout is None:
            return self._asked(b"wait")
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.01)
        return self._code

    def _asked(self, question):
        if self._code is None:
            self._end.send(question)
            told = self._end.recv(64)
            self._code = None if told == b"runs" else int(told)
        return self._code

    def kill(self):
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Forks:
    """A process that forks on request; `start` replaces `subprocess.Popen`."""

    def __init__(self, popen):
        self._end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = popen(
                [sys.executable, "-P", "-B", __file__, str(other.fileno())],
                pass_fds=[other.fileno()],
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )

    def start(self, command, *, stderr, **others):
        program = "from qkv_marking.files._child import main; main()"
        assert command[:5] == [sys.executable, "-P", "-B", "-c", program]
        assert others["start_new_session"]
        return Fork(self._end, command[5:], stderr.fileno())

    def end(self):
        self._end.close()
        self._process.wait()


def serve(end):
    """Answer requests: start a fork, or report the state or exit code of the last fork."""
    pid = 0
    while True:
        said, files, *_ = socket.recv_fds(end, 1 << 16, 3)
        if not said:
            return
        if said in (b"wait", b"poll"):
            ended, code = os.waitpid(pid, 0 if said == b"wait" else os.WNOHANG)
            end.send(str(os.waitstatus_to_exitcode(code)).encode() if ended else b"runs")
            continue
        pid = os.fork()
        if not pid:
            run(json.loads(said), files)
        for file in files:
            os.close(file)
        end.send(str(pid).encode())


def run(given, files):
    """Run the child process of the marker in this fork."""
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 64)
        sys.argv = ["-c", *given]
        _child.main()
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
