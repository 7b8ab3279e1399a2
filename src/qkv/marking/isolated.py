"""A process of its own for somebody's code, within limits of time, and requests to it."""

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
from pathlib import Path
from types import TracebackType
from typing import IO, Any

UNTOLD = 70  # the exit code of a process that could not tell what it had to
_START = 60.0  # seconds that Python and NumPy may take to load on a busy machine
_PATIENCE = 20  # times as long may pass where other programs take the processors
_TICK = 0.1
_LINE = 1 << 26  # bytes of a line that is told; no verdict has so many
_MOVES = 0.02  # of a second that a process gets in a second where it is held up, and not asleep
_ALONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "QKV_NUM_THREADS")


class Ended(BaseException):
    """Nothing more can be asked of the process: it has ended, or has no time left.

    Args:
        key: what that is called.
        shows: how it shows.
    """

    def __init__(self, key: str, shows: str) -> None:
        super().__init__(shows)
        self.key, self.shows = key, shows


class Isolated:
    """A child process that answers requests, and is gone at the end of `with`, whatever happens.

    Args:
        module: the module of qkv whose `main` the child runs, or a function for a fork of this
            process to run.
        arguments: what the child finds in `sys.argv`; the last one is added, the seconds after
            which it ends by itself.
        seconds: how long an answer may take.
        waiting: is called several times a second.
        call: the name of the public function, for errors.
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
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._child: subprocess.Popen[bytes] | Forked
        try:
            if isinstance(module, str):
                alarm = min(_START + _PATIENCE * seconds * 120, 1e6)  # more than any run takes
                self._child = _started(module, [*arguments, str(alarm)], self._said)
            else:
                self._child = Forked(module, self._said)
        except BaseException:
            self._said.close()
            raise
        self.seconds, self._waiting, self._call = seconds, waiting, call
        self._secret, self._asked = secrets.token_hex(8), 0  # no reply can be written in advance
        self._lines: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._worker = 0  # the process that the file runs in, a child of that child
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()
        self.begin()

    def begin(self, seconds: float | None = None) -> None:
        """From now on it has its time anew: these seconds, or those it was made with."""
        self._seconds = self.seconds if seconds is None else seconds
        self._waited, (_, self._used) = 0.0, self._processor()
        self._moves, self._noted, self._used_then = False, time.monotonic(), self._used

    def ask(
        self,
        request: Mapping[str, Any],
        seconds: float | None = None,
        of_part: Callable[[Any], float | None] = lambda part: None,
    ) -> Mapping[str, Any]:
        """The reply to a request.

        Args:
            request: what is asked.
            seconds: how long this reply and later ones may take; None for what `begin` was given.
            of_part: gives the seconds of each part of the work, from what the child says of it.

        Raises:
            Ended: there is no reply, since the process has ended or takes too long.
        """
        if not self._worker:
            self._start()
        if seconds is not None:
            self.begin(seconds)
        self._asked += 1
        number = f"{self._secret}-{self._asked}"
        assert self._child.stdin is not None
        with suppress(OSError):  # it is gone: that shows when it is heard
            self._child.stdin.write(json.dumps({**request, "n": number}).encode() + b"\n")
            self._child.stdin.flush()
        while True:
            told = self._hear(self._seconds)
            if told is None:
                raise Ended(*self._ended())
            if told.get("n") == number:
                if "part" not in told:
                    return told
                self.begin(of_part(told["part"]))

    def _start(self) -> None:
        """Wait until it runs."""
        try:
            told = self._hear(_START)
        except Ended:
            told = None
        if told is None or "process" not in told:
            self._said.seek(0)
            why = self._said.read().decode(errors="replace").strip() or "it took too long"
            raise RuntimeError(f"{self._call}: Python did not start: {why.splitlines()[-1]}")
        self._worker = int(told["process"])
        self.begin()

    def _listen(self) -> None:
        """Put what each line says into the queue, and None at the end."""
        assert self._child.stdout is not None
        with self._child.stdout as told:
            while line := told.readline(_LINE):
                with suppress(Exception):  # it is not ours: the file may write here too
                    said = json.loads(line)
                    if isinstance(said, dict):
                        self._lines.put(said)
        self._lines.put(None)

    def _hear(self, seconds: float) -> Mapping[str, Any] | None:
        """The next thing that is told; None if it ended before, Ended if it takes too long."""
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
                # on a busy machine it may not have had its time yet, and that is not its fault
                held_up = (waits or self._moves) and used - self._used < seconds / 2
                if passed >= seconds and not (held_up and passed < _PATIENCE * seconds):
                    raise Ended("endless-loop", f"it was ended after {seconds:g} s")
        finally:
            self._waited += time.monotonic() - begin

    def _processor(self) -> tuple[bool, float]:
        return processor(self._worker or self._child.pid)

    def _ended(self) -> tuple[str, str]:
        """How a process ended that told nothing: what it is called, and how it shows."""
        try:
            code = self._child.wait(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            return "not-marked", "it goes on, and has closed the file in which its process tells"
        if code == UNTOLD:
            return "not-marked", "its process could not tell what was found"
        if code >= 0:
            return "exits", f"the process ended with the exit code {code}"
        with suppress(ValueError):
            return "process-died", f"the process was ended by {signal.Signals(-code).name}"
        return "process-died", f"the process was ended by signal {-code}"

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if hasattr(os, "killpg"):
            ends = [(os.killpg, self._child.pid)]
            if self._worker and self._child.poll() is None:  # it may have left the group
                ends.append((os.kill, self._worker))
            for end, number in ends:
                with suppress(ProcessLookupError, PermissionError):  # it is gone already
                    end(number, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with suppress(OSError):  # what could not be written any more
                self._child.stdin.close()
        self._ear.join(_TICK)  # it ends with the child, if that has left no other process behind
        self._said.close()


class Forked:
    """A fork of this process, with what is used of a `subprocess.Popen`.

    Args:
        main: what the fork runs, and ends with.
        said: the file for its standard error.
    """

    def __init__(self, main: Callable[[], None], said: IO[bytes]) -> None:
        (asked, ask), (told, tell) = os.pipe(), os.pipe()
        with warnings.catch_warnings():  # of threads, which the fork does not have
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if not self.pid:
            try:
                faulthandler.disable()  # its file is of the other process
                os.setsid()
                for number, file in enumerate((asked, tell, said.fileno())):
                    os.dup2(file, number)
                for file in (ask, told):
                    os.close(file)
                main()
            finally:
                os._exit(UNTOLD)
        os.close(asked)
        os.close(tell)
        self.stdin, self.stdout = os.fdopen(ask, "wb"), os.fdopen(told, "rb")
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self._code is None:
            ended, code = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(code) if ended else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and timeout is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _started(module: str, arguments: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    # -P: nothing of the folder that this is run in takes the place of a library
    program = f"from {module} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        env=os.environ | dict.fromkeys(_ALONE, "1"),
        start_new_session=True,  # Ctrl-C is for us, who end it
    )


def processor(pid: int) -> tuple[bool, float]:
    """Does a process run or wait for a processor, and how many seconds has it had?

    Where the system does not say (Linux does): that it does neither.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state == "R", sum(map(int, rest[10:12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return False, 0.0
