"""A child process that runs a student's code, with time and memory limits and a request protocol.

`Isolated` is this side, and `serve` the other side. Requests are lines of JSON on the process's
standard input, replies are lines on its standard output; the student's code has neither.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from json import dumps, loads  # imported before a student's code can replace them
from pathlib import Path
from typing import IO, Any

from qkv.marking.outcome import getpid

Packed = dict[str, Any]
Answer = Callable[[Packed, Callable[[Any], None]], Packed]
_NO_REPLY = 70  # the exit code of a process that could not send its reply
_START = 60.0  # maximum seconds to load Python and NumPy on a busy machine
_PATIENCE = 20  # the time limit is multiplied by this while other programs use the processors
_TICK = 0.1
_LINE = 1 << 26  # maximum bytes of a line; every verdict is shorter
_MOVES = 0.02  # processor seconds per second; a process that uses more is not asleep
_ALONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "QKV_NUM_THREADS")
leave = os._exit  # saved before a student's code can replace it


class Ended(BaseException):
    """Raised when the child process has ended, or did not answer within its time limit.

    Args:
        key: the key of the mistake to report.
        shows: the effect of the mistake, for the report.
    """

    def __init__(self, key: str, shows: str) -> None:
        super().__init__(shows)
        self.key, self.shows = key, shows


class Isolated:
    """A child process that answers requests; it is ended when its `with` block ends.

    Args:
        module: a module of qkv, whose `main` runs in a new process, or a function, which runs in a
            fork of this process.
        arguments: `sys.argv` of the child. One more argument is added at the end: the seconds after
            which the child ends by itself.
        seconds: how long an answer may take.
        waiting: is called several times a second.
        call: the name of the public function, for error messages.
    """

    def __init__(
        self,
        module: str | Callable[[], None],
        arguments: Sequence[str],
        *,
        seconds: float,
        waiting: Callable[[], None] = lambda: None,
        call: str,
    ) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._child: subprocess.Popen[bytes] | Forked
        try:
            if isinstance(module, str):
                alarm = min(_START + _PATIENCE * seconds * 120, 1e6)  # longer than every run
                self._child = _started(module, [*arguments, str(alarm)], self._stderr)
            else:
                self._child = Forked(module, self._stderr)
        except BaseException:
            self._stderr.close()
            raise
        self.seconds, self._waiting, self._call = seconds, waiting, call
        self._secret, self._asked = secrets.token_hex(8), 0  # a student's code cannot guess it
        self._lines: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._worker = 0  # the process that runs the student's code: a child of the child process
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.begin()

    def begin(self, seconds: float | None = None) -> None:
        """Restart the time limit with these seconds, or with the seconds of the constructor."""
        self._seconds = self.seconds if seconds is None else seconds
        self._waited, (_, self._used) = 0.0, self._processor()
        self._moves, self._noted, self._used_then = False, time.monotonic(), self._used

    def ask(
        self,
        request: Mapping[str, Any],
        seconds: float | None = None,
        of_part: Callable[[Any], float | None] = lambda part: None,
    ) -> Mapping[str, Any]:
        """Send a request, and return the reply.

        Args:
            request: the request.
            seconds: the time limit for this reply and later replies; None keeps the limit.
            of_part: returns the time limit of a part of the work; the child names the part.

        Raises:
            Ended: the process has ended or takes too long, so there is no reply.
        """
        if not self._worker:
            self._start()
        if seconds is not None:
            self.begin(seconds)
        self._asked += 1
        number = f"{self._secret}-{self._asked}"
        assert self._child.stdin is not None
        with suppress(OSError):  # the child has ended: it will not reply
            self._child.stdin.write(json.dumps({**request, "n": number}).encode() + b"\n")
            self._child.stdin.flush()
        while True:
            reply = self._hear(self._seconds)
            if reply is None:
                raise Ended(*self._ended())
            if reply.get("n") == number:
                if "part" not in reply:
                    return reply
                self.begin(of_part(reply["part"]))

    def _start(self) -> None:
        """Wait until the child runs."""
        try:
            first = self._hear(_START)
        except Ended:
            first = None
        if first is None or "process" not in first:
            self._stderr.seek(0)
            why = self._stderr.read().decode(errors="replace").strip() or "it took too long"
            raise RuntimeError(f"{self._call}: Python did not start: {why.splitlines()[-1]}")
        self._worker = int(first["process"])
        self.begin()

    def _listen(self) -> None:
        """Put the content of each reply line into the queue, and None after the last line."""
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            while line := lines.readline(_LINE):
                with suppress(Exception):  # a student's file may write here too
                    reply = json.loads(line)
                    if isinstance(reply, dict):
                        self._lines.put(reply)
        self._lines.put(None)

    def _hear(self, seconds: float) -> Mapping[str, Any] | None:
        """Return the next line, or None if the child has ended; raise `Ended` after the time."""
        begin = time.monotonic()
        try:
            while True:
                with suppress(queue.Empty):
                    return self._lines.get(timeout=min(_TICK, seconds))
                self._waiting()
                now = time.monotonic()
                passed = self._waited + now - begin
                waits, used = self._processor()
                if now - self._noted >= 1:
                    self._moves = used - self._used_then >= _MOVES
                    self._noted, self._used_then = now, used
                # on a busy machine the child may not have got its processor time yet
                held_up = (waits or self._moves) and used - self._used < seconds / 2
                if passed >= seconds and not (held_up and passed < _PATIENCE * seconds):
                    raise Ended("endless-loop", f"it was ended after {seconds:g} s")
        finally:
            self._waited += time.monotonic() - begin

    def _processor(self) -> tuple[bool, float]:
        return processor(self._worker or self._child.pid)

    def _ended(self) -> tuple[str, str]:
        """Return `(key, shows)` for a process that ended without a reply."""
        try:
            code = self._child.wait(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            return "not-marked", "it goes on, and has closed the file that its replies go to"
        if code == _NO_REPLY:
            return "not-marked", "its process could not send its verdict"
        if code >= 0:
            return "exits", f"the process ended with the exit code {code}"
        with suppress(ValueError):
            return "process-died", f"the process was ended by {signal.Signals(-code).name}"
        return "process-died", f"the process was ended by signal {-code}"

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_error: object) -> None:
        if hasattr(os, "killpg"):
            ends = [(os.killpg, self._child.pid)]
            if self._worker and self._child.poll() is None:  # the process may have left the group
                ends.append((os.kill, self._worker))
            for end, number in ends:
                with suppress(ProcessLookupError, PermissionError):  # it is gone already
                    end(number, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with suppress(OSError):  # the request could not be written: the child has ended
                self._child.stdin.close()
        self._listener.join(_TICK)  # it goes on if another process holds the pipe
        self._stderr.close()


class Forked:
    """A fork of this process, with the methods of `subprocess.Popen` that `Isolated` uses.

    Args:
        main: the function that the fork runs; the fork ends when it returns.
        stderr: the file that receives the fork's standard error.
    """

    def __init__(self, main: Callable[[], None], stderr: IO[bytes]) -> None:
        (stdin, ask), (told, stdout) = os.pipe(), os.pipe()
        with warnings.catch_warnings():  # a warning about threads, which the fork does not have
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if not self.pid:
            try:
                faulthandler.disable()  # faulthandler writes to a file of the parent process
                os.setsid()
                for number, file in enumerate((stdin, stdout, stderr.fileno())):
                    os.dup2(file, number)
                os.close(ask)
                os.close(told)
                main()
            finally:
                leave(_NO_REPLY)
        os.close(stdin)
        os.close(stdout)
        self.stdin, self.stdout = os.fdopen(ask, "wb"), os.fdopen(told, "rb")
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the fork runs."""
        if self._code is None:
            ended, code = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(code) if ended else None
        return self._code

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait until the fork has ended, and return the exit code."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _started(module: str, arguments: Sequence[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    # -P: a file in the current folder must not replace a library of the same name
    program = f"from {module} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | dict.fromkeys(_ALONE, "1"),
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the child
    )


def processor(pid: int) -> tuple[bool, float]:
    """Return `(active, seconds)` of a process.

    `active` is true if the process runs or waits for a processor; `seconds` is the processor time
    that it has used. Only Linux provides both; other systems get `(False, 0.0)`.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state == "R", sum(map(int, rest[10:12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return False, 0.0


def serve(
    begin: Callable[[], Answer], megabytes: int, seconds: float, *, again: bool = True
) -> None:
    """Answer requests in the child process, and end it.

    Args:
        begin: returns the function that answers a request. This function may call its second
            argument before each part of its work, with the name of the part.
        megabytes: the memory limit.
        seconds: the process ends after this time, whatever it is doing.
        again: continue in a child of this process: student's code that ends its parent process then
            does not end the marker.
    """
    _limit_memory(megabytes)
    if again:
        _go_on_in_a_child()
    if hasattr(signal, "alarm"):  # not on Windows
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds))
    hear, tell = _private_ends()
    code = _NO_REPLY
    try:
        tell({"process": os.getpid()})
        answer = begin()
        while line := hear():
            request = loads(line)
            number = {"n": request["n"]}
            tell(answer(request, lambda part: tell({"part": part} | number)) | number)  # noqa: B023 (called at once)
        code = 0
    finally:
        leave(code)  # do not wait for leftover threads or exit functions


def _go_on_in_a_child() -> None:
    """Continue in a fork; this process waits for the fork, and ends with its exit code."""
    if not hasattr(os, "fork"):  # Windows
        return
    child = os.fork()
    if not child:
        return
    for number in (0, 1, 2):  # closed, so that readers see when the child ends
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        with suppress(OSError):  # SIGKILL cannot be handled
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    leave(abs(code))


def _private_ends() -> tuple[Callable[[], bytes], Callable[[Packed], None]]:
    """Keep standard input and output for `serve`; the student's code gets empty streams."""
    requests, replies, process = os.fdopen(os.dup(0), "rb"), os.dup(1), getpid()
    nobody = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nobody, number)

    def tell(reply: Packed) -> None:
        if getpid() != process:
            leave(0)
        line = dumps(reply).encode() + b"\n"
        while line:
            line = line[os.write(replies, line) :]

    return requests.readline, tell


def _limit_memory(megabytes: int) -> None:
    """Limit the memory, and switch off core files."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return
    for limit, size in ((resource.RLIMIT_DATA, megabytes << 20), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # the process already has a lower limit
            resource.setrlimit(limit, (size, resource.getrlimit(limit)[1]))
