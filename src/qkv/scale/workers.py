"""Run tasks on the workers of a cluster or in this process. Each process loads the model once."""

import ctypes
import glob
import hashlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from qkv.extras import need
from qkv.models import Model, load
from qkv.models.files.find import DEFAULT, find_model
from qkv.models.files.read import CONFIG, NEEDED
from qkv.ops.kernel import get_num_threads, set_num_threads

NO_WORKER = 300.0  # A run fails after this number of seconds without a worker.
AHEAD = 8  # The maximum number of unfinished tasks for each thread of the cluster.
# Arguments of glibc's function mallopt. _TRIM is the number of the option M_TRIM_THRESHOLD, and
# _KEPT is its value: how many bytes of freed memory to keep. _MMAP is the number of the option
# M_MMAP_THRESHOLD, _LARGEST is its largest value, and _USUAL is its default value.
_TRIM, _MMAP, _KEPT, _LARGEST, _USUAL = -1, -3, 2**30, 2**25, 2**17
_LOOK = 1.0  # The number of seconds between two checks of the cluster.
_PROCESS = uuid.uuid4().hex  # Identifies this process.
_C = TypeVar("_C")
_R = TypeVar("_R")
Task = Callable[[Any, _C], _R]  # `task(model, case)` returns the case's result.


@dataclass(frozen=True)
class Named:
    """A model that each worker loads for itself.

    Attributes:
        name: the argument of `qkv.load`.
        checksum: the checksum of the model's files.
    """

    name: str
    checksum: str


def resolve(model: Any, call: str) -> Named:
    """Find a model, as `qkv.load` does, and compute the checksum of its files.

    Raises:
        TypeError: the model is neither a name nor a folder.
        ValueError, FileNotFoundError: as for `qkv.load`.
    """
    if model is None:
        model = os.environ.get("QKV_MODEL") or DEFAULT
    if not isinstance(model, str | os.PathLike):
        raise TypeError(
            f"{call}: model is {type(model).__name__}; pass a name or a folder, as for "
            "qkv.load, because each worker loads the model itself"
        )
    name = os.fspath(model)
    if _is_random(name):
        return Named(name, name)
    folder = find_model(name)
    if Path(name).expanduser() == folder:  # a relative path would differ on a worker
        name = str(folder.resolve())
    return Named(name, _checksum(folder))


def _is_random(name: str) -> bool:
    return name == "random" and not Path(name, CONFIG).is_file()


def _checksum(model: Path) -> str:
    """Return a checksum of a model's files and of their names; `model` is a folder or a file."""
    folder = model if model.is_dir() else model.parent
    patterns = NEEDED if model.is_dir() else [glob.escape(model.name)]
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    checksum = hashlib.blake2b(digest_size=16)
    for path in sorted(paths):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
        checksum.update(f"{path.relative_to(folder).as_posix()} {digest}\n".encode())
    return checksum.hexdigest()


# State: the model that this process used last, so that tasks need not load it again. `_loading`
# protects it.
_models: dict[Named, Model] = {}
# State: two tasks of one process must not load models, or compute, at the same time.
_loading, _computing = threading.Lock(), threading.Lock()


def load_once(wanted: Named, call: str, where: str = "this process") -> Model:
    """Return a model, which each process loads only once.

    Raises:
        ValueError: the model's files on this machine differ from the files on the machine where the
            run began.
    """
    with _loading:
        if wanted not in _models:
            here = resolve(wanted.name, call)
            if here.checksum != wanted.checksum:
                raise ValueError(
                    f"{call}: {where} has different files for model {wanted.name}: their "
                    f"checksum is {here.checksum}, but it was {wanted.checksum} at the start of "
                    "the run; use the same files on every worker"
                )
            _models.clear()
            _models[wanted] = load(wanted.name)
        return _models[wanted]


@dataclass(frozen=True)
class _Job:
    """The arguments that all tasks of a run share."""

    call: str
    model: Named | None
    process: str  # The value of `_PROCESS` in the process that began the run.
    workers: dict[str, int] = field(default_factory=dict)  # The number of workers, keyed by host.


def compute(
    client: Any, task: Task[_C, _R], cases: Sequence[_C], *, call: str, model: Named | None = None
) -> Generator[tuple[int, _R], None, None]:
    """Call `task(model, case)` for every case, on a cluster's workers or in this process.

    If a worker dies, its case is computed again, as often as Dask's setting
    `distributed.scheduler.allowed-failures` allows. If `model` is given, each process computes one
    case at a time, and the processes of a machine share the machine's cores. Closing the iterator
    cancels all cases that have not begun.

    Args:
        client: the cluster's client; None to compute in this process.
        task: a function of a module that workers can import. If `model` is None, the function's
            first argument is None.
        cases: the cases, which are sent to the workers and should be small objects.
        call: the name of the calling function; error messages begin with this name.
        model: the model that each worker loads.

    Returns:
        `(number, result)` for each case, in the order in which the cases finish.

    Raises:
        ConnectionError: the scheduler was lost, or no worker was connected for `NO_WORKER` seconds.
        RuntimeError: the workers that computed a case died, one after the other.
        Exception: the error that `task` raised for a case.
    """
    if client is None:
        for number, case in enumerate(cases):
            yield number, task(None if model is None else load_once(model, call), case)
        return
    distributed = need("distributed", "scale")
    done: SimpleQueue[Any] = SimpleQueue()
    begun: dict[Any, int] = {}
    crew = _Crew(client, call, len(cases))
    next_ = 0
    try:
        while begun or next_ < len(cases):
            if crew.look() and next_ < len(cases) and len(begun) <= crew.capacity // 2:
                job = _Job(call, model, _PROCESS, crew.hosts)
                numbers = range(next_, min(next_ + crew.capacity - len(begun), len(cases)))
                keys = [f"{call}-{crew.run}-{number}" for number in numbers]
                futures = client.map(
                    _work, [cases[number] for number in numbers], key=keys, pure=False,
                    task=task, job=job,
                )  # fmt: skip
                begun.update(zip(futures, numbers, strict=True))
                for future in futures:
                    future.add_done_callback(done.put)
                next_ = numbers.stop
            with suppress(Empty):
                future = done.get(timeout=_LOOK)
                number = begun.pop(future)
                try:
                    result = _result_of(future, crew)
                except distributed.KilledWorker as error:
                    raise RuntimeError(
                        f"{call}: {cases[number]}: {error.allowed_failures + 1} workers died while "
                        "computing this part; give each worker more memory"
                    ) from None
                except (distributed.client.FutureCancelledError, distributed.comm.CommClosedError):
                    raise _connection_error(client, call) from None
                future.release()
                yield number, result
    finally:
        if begun and client.status == "running":
            with suppress(Exception):  # the cluster may have stopped
                client.cancel(list(begun), force=True)


def _result_of(future: Any, crew: "_Crew") -> Any:
    """Return the result of a finished task; it is computed again if its worker has died since.

    Raises:
        ConnectionError: meanwhile, no worker was connected for `NO_WORKER` seconds.
        Exception: the error of the task.
    """
    patience = _LOOK
    while True:
        try:
            return future.result(timeout=patience)
        except TimeoutError:
            if future.status == "error":  # the task itself raised this error
                raise
            crew.look()
            patience *= 2  # the next try transfers a large result from its beginning


def all_of(client: Any, task: Task[_C, _R], cases: Sequence[_C], **others: Any) -> list[_R]:
    """Like `compute`, but return a list of all results, in the order of the cases."""
    results = dict(compute(client, task, cases, **others))
    return [results[number] for number in range(len(cases))]


class _Crew:
    """The list of a cluster's workers, which `look` updates about every second."""

    def __init__(self, client: Any, call: str, total: int) -> None:
        self._client, self._call, self._total = client, call, total
        self.run = uuid.uuid4().hex[:8]
        self.hosts: dict[str, int] = {}
        self.capacity = 0
        self._last_look = -_LOOK
        self._alive = time.monotonic()

    def look(self) -> bool:
        """Return whether a worker is connected; raise an error after `NO_WORKER` seconds."""
        now = time.monotonic()
        if now - self._last_look < _LOOK:
            return self.capacity > 0
        self._last_look = now
        workers = _workers(self._client, self._call)
        self.hosts = {}
        for address in workers:
            self.hosts[_host(address)] = self.hosts.get(_host(address), 0) + 1
        self.capacity = AHEAD * sum(worker["nthreads"] for worker in workers.values())
        if workers:
            self._alive = now
        elif now - self._alive > NO_WORKER:
            raise ConnectionError(
                f"{self._call}: the cluster has had no worker for {NO_WORKER:.0f} seconds: start "
                "workers and repeat the call"
            )
        return self.capacity > 0


def _workers(client: Any, call: str) -> dict[str, Any]:
    """Return what the scheduler knows of each worker, keyed by address."""
    info = client.scheduler_info() if client.status in ("running", "connecting") else {}
    if "workers" not in info:  # also if the connection was lost in the middle of the request
        raise _connection_error(client, call)
    return dict(info["workers"])


def _connection_error(client: Any, call: str) -> ConnectionError:
    where = getattr(client.scheduler, "address", "") or "of this run"
    return ConnectionError(f"{call}: the scheduler {where} was lost: start it and repeat the call")


def _host(address: str) -> str:
    host: str = need("distributed.comm.addressing", "scale").get_address_host(address)
    return host


def _work(case: Any, task: Callable[..., Any], job: _Job) -> Any:
    """Call `task` for one case. This function runs in a worker."""
    if job.model is None:
        return task(None, case)
    where = need("distributed", "scale").get_worker().address
    with _computing:
        if job.process != _PROCESS:  # the process that began the run keeps its number of threads
            set_num_threads(max(1, min(_cores(), _cores() // job.workers.get(_host(where), 1))))
        with _keeping_memory():
            return task(load_once(job.model, job.call, f"worker {where}"), case)


@contextmanager
def _keeping_memory() -> Iterator[None]:
    """Inside the `with` block, reuse the memory of freed arrays for new arrays.

    In Dask's workers, glibc returns the memory of each freed large array to the operating system.
    Requesting this memory again for every array takes a fifth of a model's running time.
    """
    before = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    if sys.platform != "linux" or not before.isdecimal():
        yield
        return
    libc = ctypes.CDLL(None)
    set_to = getattr(libc, "mallopt", None)  # some C libraries lack mallopt
    if set_to is None:
        yield
        return
    set_to(_TRIM, _KEPT)
    set_to(_MMAP, _LARGEST)
    try:
        yield
    finally:
        set_to(_TRIM, int(before))
        set_to(_MMAP, int(os.environ.get("MALLOC_MMAP_THRESHOLD_", _USUAL)))
        libc.malloc_trim(0)


@cache
def _cores() -> int:
    """Return the number of threads that this process had before `_work` changed this number."""
    return get_num_threads()


def current_client(client: Any) -> Any:
    """Return `client`; if `client` is None, return the current client, if any."""
    if client is not None:
        return client
    if "distributed" not in sys.modules:  # without this module, no client exists
        return None
    try:
        return need("distributed", "scale").default_client()
    except ValueError:
        return None


def workers_of(client: Any, call: str) -> int:
    """Return the number of workers; without a client, 1 for this process."""
    return 1 if client is None else len(_workers(client, call))


@contextmanager
def connect(where: str, call: str) -> Iterator[Any]:
    """Connect to the cluster at an address; "local" or "local:N" starts a cluster on this machine.

    Raises:
        ValueError: N in "local:N" is not a number from 1 to 1024.
        ConnectionError: no cluster answers.
    """
    distributed = need("distributed", "scale")
    kind, colon, count = where.partition(":")
    if kind != "local":
        try:
            client = distributed.Client(where, timeout=10, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConnectionError(
                f"{call}: no cluster answers at {where}; pass the address of a Dask scheduler, "
                f"such as tcp://host:8786, or local[:N] ({error})"
            ) from None
        with client:
            yield client
        return
    if colon and not (count.isdecimal() and 0 < int(count) <= 1024):
        raise ValueError(f"{call}: the cluster is {where}; pass local:N with N from 1 to 1024")
    with (
        distributed.LocalCluster(
            n_workers=int(count or get_num_threads()), threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0", silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        yield client
