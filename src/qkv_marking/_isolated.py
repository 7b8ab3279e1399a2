"""A child process that runs a student's code with time and memory limits, and answers requests.

`Isolated` runs in the parent process, and `serve` runs in the child. Requests are lines of JSON on
the child's standard input, and replies are lines on its standard output. The student's code cannot
access these two streams.
"""

import ctypes
import faulthandler
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from json import dumps, loads  # a student's code may replace the attribute json.dumps
from pathlib import Path
from typing import IO, Any

from qkv.signals import end_with_parent
from qkv_marking._outcome import getpid

Packed = dict[str, Any]
Action = Callable[[], None]
Answer = Callable[[Packed, Callable[[Any], None]], Packed]
SECONDS = 10.0  # The time limit of most tasks; a correct solution takes about 0.1 seconds.
_NO_REPLY = 70  # The exit code of a process that could not send its reply.
_START = 60.0  # The time limit for loading Python and NumPy on a busy machine.
_PATIENCE = 20  # On a busy machine, time limits are multiplied by at most this number.
_TICK = 0.1
_GRACE = 2.0  # A part of an answer may end within this time after its interruption.
_FILE = 100 << 20  # The maximum size of a file that the child writes; of all files: twice as much.
_LINE = 1 << 26  # The maximum length of a line in bytes; every verdict is shorter.
_MOVES = 0.02  # If a process uses less CPU time per second than this limit, it counts as idle.
_ALONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "QKV_NUM_THREADS")
leave = os._exit  # Saved here, because a student's code may replace `os._exit`.


class Ended(BaseException):
    """Raised if the child process has ended or takes too long.

    Args:
        key: the key of the mistake, such as "endless-loop".
        shows: the effect of the mistake, such as "the process was ended after 10 s".
    """

    def __init__(self, key: str, shows: str) -> None:
        super().__init__(shows)
        self.key, self.shows = key, shows


class Isolated:
    """A child process that answers requests until its `with` block ends.

    Args:
        program: a list or a function. A list contains the name of a module, followed by arguments.
            A new process calls the module's function `main` with these arguments. `main` also
            receives the maximum lifetime of the new process in seconds, as the last argument. A
            function runs in a fork of this process.
        seconds: the time limit for an answer.
        waiting: a function to call several times per second while waiting.
        call: the name of the public function, for error messages.
        folder: a folder in which the child writes; if its files become too large, the child ends.
    """

    def __init__(
        self,
        program: Sequence[str] | Action,
        *,
        seconds: float,
        waiting: Action,
        call: str,
        folder: Path | None = None,
    ) -> None:
        self._folder, self._mark = folder, secrets.token_hex(8)
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._child: subprocess.Popen[bytes] | Forked
        try:
            if callable(program):
                self._child = Forked(program, self._stderr)
            else:
                # the maximum lifetime of the child in seconds, longer than any run
                alarm = min(_START + _PATIENCE * seconds * 120, 1e6)
                self._child = _start_program([*program, str(alarm)], self._stderr, self._mark)
        except BaseException:
            self._stderr.close()
            raise
        self.seconds, self._waiting, self._call = seconds, waiting, call
        self._secret, self._requests = secrets.token_hex(8), 0  # genuine replies contain `_secret`
        self._lines: queue.Queue[Packed | None] = queue.Queue()
        self._worker = 0  # the id of the grandchild process, which runs the student's code
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.begin()

    def begin(self, seconds: float | None = None) -> None:
        """Start a new time limit of `seconds`; the default is the constructor's `seconds`."""
        self._seconds = self.seconds if seconds is None else seconds
        self._waited, (_, self._used) = 0.0, self._processor()
        self._moves, self._noted, self._used_then = False, time.monotonic(), self._used

    def ask(self, request: Packed, limit: Callable[[Any], float | None] = lambda _: None) -> Packed:
        """Send a request; return the reply.

        Args:
            request: the request.
            limit: a function that returns the time limit of a part of the work. Before each part,
                the child sends an object that describes the part, and `limit` receives the object.
                A part that takes longer is interrupted by SIGINT.

        Raises:
            Ended: the process has ended or takes too long to reply.
        """
        if not self._worker:
            self._start()
        self._requests += 1
        number = f"{self._secret}-{self._requests}"
        assert self._child.stdin is not None
        with suppress(OSError):  # if the child has ended, `self._hear` returns None
            self._child.stdin.write(dumps({**request, "n": number}).encode() + b"\n")
            self._child.stdin.flush()
        warned = True  # parts can be interrupted, but not the whole answer
        while True:
            try:
                reply = self._hear(self._seconds)
            except Ended:
                if warned or not self._interrupt():
                    raise
                warned = True
                self.begin(_GRACE)
                continue
            if reply is None:
                raise Ended(*self._explain_end())
            if reply.get("n") == number:
                if "part" not in reply:
                    return reply
                self.begin(limit(reply["part"]))
                warned = False

    def _interrupt(self) -> bool:
        """Ask the child to end the current part of its work; return False if this fails."""
        if not hasattr(os, "killpg"):  # Windows has no such signal
            return False
        with suppress(OSError):
            os.kill(self._worker, signal.SIGINT)
        return True

    def _start(self) -> None:
        """Wait until the child is running."""
        try:
            first = self._hear(_START)
        except Ended:
            first = None
        if first is None or "process" not in first:
            self._stderr.seek(0)
            why = self._stderr.read().decode(errors="replace").strip() or "it took too long"
            raise RuntimeError(f"{self._call}: Python did not start: {why.splitlines()[-1]}")
        self._worker = int(first["process"])
        self.begin(self._seconds)

    def _listen(self) -> None:
        """Put each reply into the queue; after the last reply, put None."""
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            while line := lines.readline(_LINE):
                with suppress(Exception):  # the student's code may have written the line
                    reply = loads(line)
                    if isinstance(reply, dict):
                        self._lines.put(reply)
        self._lines.put(None)

    def _hear(self, seconds: float) -> Packed | None:
        """Return the next reply, or None if the child sends no more replies.

        If the next reply takes longer than `seconds`, raise `Ended`. On a busy machine, the time
        limit is longer.
        """
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
                    self._measure_folder()
                # on a busy machine, the child may still be waiting for CPU time
                held_up = (waits or self._moves) and used - self._used < seconds / 2
                if passed >= seconds and not (held_up and passed < _PATIENCE * seconds):
                    raise Ended("endless-loop", f"the process was ended after {seconds:g} s")
        finally:
            self._waited += time.monotonic() - begin

    def _measure_folder(self) -> None:
        """Raise `Ended` if the files in the child's folder are too large."""
        size = 0
        for parent, _, names in os.walk(self._folder) if self._folder else ():
            for name in names:
                with suppress(OSError):
                    size += os.lstat(os.path.join(parent, name)).st_blocks * 512
        if size > 2 * _FILE:
            raise Ended("writes-too-much", f"the files take up {size >> 20} MB")

    def _processor(self) -> tuple[bool, float]:
        return processor(self._worker or self._child.pid)

    def _explain_end(self) -> tuple[str, str]:
        """Return the arguments of `Ended` for a process that ended without a reply."""
        try:
            code = self._child.wait(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            return "not-marked", "the process still runs, but it has closed its output"
        if code == _NO_REPLY:
            return "not-marked", "the process could not send its reply"
        if code >= 0:
            return "exits", f"the process ended with the exit code {code}"
        with suppress(ValueError):
            return "process-died", f"the process was ended by {signal.Signals(-code).name}"
        return "process-died", f"the process was ended by signal {-code}"

    def __enter__(self) -> "Isolated":
        return self

    def __exit__(self, *_error: object) -> None:
        if hasattr(os, "killpg"):
            end_descendants(self._child.pid, self._mark)
            ends = [(os.killpg, self._child.pid)]
            # the student's code may have left the process group
            if self._worker and self._child.poll() is None:
                ends.append((os.kill, self._worker))
            for end, number in ends:
                with suppress(ProcessLookupError, PermissionError):  # the process has already ended
                    end(number, signal.SIGKILL)
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with suppress(OSError):  # the child may have ended before it read all requests
                self._child.stdin.close()
        self._listener.join(_TICK)  # do not wait for long: another process may keep the pipe open
        self._stderr.close()


class Forked:
    """A fork of this process, with the methods of `subprocess.Popen` that `Isolated` needs.

    Args:
        main: the function to run; the fork ends when `main` returns.
        stderr: the file that receives the fork's standard error.
    """

    def __init__(self, main: Action, stderr: IO[bytes]) -> None:
        (stdin, requests), (replies, stdout) = os.pipe(), os.pipe()
        with warnings.catch_warnings():  # Python warns about forks of a process with threads
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if not self.pid:
            try:
                faulthandler.disable()  # faulthandler writes to a file of the parent process
                os.setsid()
                for number, file in enumerate((stdin, stdout, stderr.fileno())):
                    os.dup2(file, number)
                os.close(requests)
                os.close(replies)
                main()
            finally:
                leave(_NO_REPLY)
        os.close(stdin)
        os.close(stdout)
        self.stdin, self.stdout = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if the fork is running."""
        if self._code is None:
            ended, code = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(code) if ended else None
        return self._code

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait until the fork has ended; return the exit code."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """End the fork."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _start_program(program: Sequence[str], stderr: IO[bytes], mark: str) -> subprocess.Popen[bytes]:
    module, *arguments = program
    # -P: do not import libraries from the current folder
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-c", f"from {module} import main; main()", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | dict.fromkeys(_ALONE, "1") | {MARK: mark},
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the child
    )


def processor(pid: int) -> tuple[bool, float]:
    """Return `(active, seconds)` for a process.

    `active` is true if the process runs or waits for a processor. `seconds` is the CPU time that
    the process has used. On systems other than Linux, the result is `(False, 0.0)`.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state == "R", sum(map(int, rest[10:12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return False, 0.0


def serve(
    load: Callable[[], Answer], megabytes: int, seconds: float, clean_up: Action = lambda: None
) -> None:
    """Answer requests in a fork of the child process, then end both processes.

    Args:
        load: a function without arguments that returns a function `answer(request, tell)`. `answer`
            returns the reply to a request; it may call `tell(part)` before each part of its work.
        megabytes: the memory limit.
        seconds: the maximum lifetime of the process.
        clean_up: a function that is called if the marker is killed.
    """
    _limit_memory(megabytes)
    _go_on_in_a_child(clean_up)
    if hasattr(signal, "alarm"):  # Windows has no alarm
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(seconds))
    hear, tell = _private_ends()
    code = _NO_REPLY
    try:
        tell({"process": os.getpid()})
        answer = load()
        while line := hear():
            request = loads(line)
            number = {"n": request["n"]}
            tell(answer(request, lambda part: tell({"part": part} | number)) | number)  # noqa: B023 (called at once)
        code = 0
    finally:
        leave(code)  # end at once, without waiting for the student's threads


def _go_on_in_a_child(clean_up: Action) -> None:
    """Fork and continue in the child; the parent waits, and exits with the child's exit code.

    If the marker ends, the parent ends the child, even while the child holds its interpreter lock.
    """
    if not hasattr(os, "fork"):  # Windows cannot fork
        return
    marker = os.getppid()
    adopt_orphans()
    child = os.fork()
    if not child:
        return

    def end() -> None:
        end_descendants(os.getpid())
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # it may have left the process group
        clean_up()
        os.killpg(0, signal.SIGKILL)

    end_with_parent(marker, end)
    for number in (0, 1, 2):  # only the child keeps the pipes open
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_descendants(os.getpid())
    if os.getppid() != marker:  # the marker has ended: the other thread calls `end`
        time.sleep(_START)
    if code < 0:
        with suppress(OSError):  # the handler of SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    leave(abs(code))


def _private_ends() -> tuple[Callable[[], bytes], Callable[[Packed], None]]:
    """Reserve standard input and output for `serve`, and give the student's code empty streams."""
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
    """Limit the memory and the size of each written file, and disable core files."""
    try:
        import resource
    except ImportError:  # Windows has no module `resource`
        return
    limits = {resource.RLIMIT_DATA: megabytes << 20, resource.RLIMIT_CORE: 0}
    for limit, size in (limits | {resource.RLIMIT_FSIZE: _FILE}).items():
        with suppress(ValueError, OSError):  # `setrlimit` fails if the hard limit is lower
            resource.setrlimit(limit, (size, resource.getrlimit(limit)[1]))


MARK = "QKV_MARKED"  # the name of an environment variable, which new processes inherit
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100  # New processes may start while others are ended.


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent has ended (Linux only)."""
    if sys.platform == "linux":
        with suppress(Exception):  # a C library without prctl
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(pid: int, mark: str = "") -> None:
    """End all descendants of a process, and all processes with this mark (Linux only)."""
    for _ in range(_ROUNDS):
        parents = dict(_living())
        victims = {*_below(pid, parents), *(p for p in parents if mark and _has_mark(p, mark))}
        if not victims - {os.getpid()}:
            return
        for victim in victims - {os.getpid()}:
            with suppress(OSError):
                os.kill(victim, signal.SIGKILL)


def _living() -> Iterator[tuple[int, int]]:
    """Yield the ids of each process and of its parent, without processes that have ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield int(folder.name), int(parent)


def _below(pid: int, parents: dict[int, int]) -> Iterable[int]:
    """Return the descendants of a process."""
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _has_mark(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False
