"""`qkv serve` on loopback with MiniLM, compared with `encode` and with other servers.

The servers run one after another, so each server shares the machine's cores only with the clients.
All clients are in one process. This process prepares the requests before the clock starts, keeps
the connections open, and requests base64, as OpenAI's package does. After the clock has stopped,
the process compares every vector with `encode`. Each measured time includes the clients' processor
time. "Without the clients' processor time" means that this time, divided by the number of cores, is
subtracted from the measured time. Each server computes with as many threads as `encode`.
`FastAPI + sentence-transformers` is `benchmarks/peer_server.py`, with one worker.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Goal, Row, Way, faster, seconds
from benchmarks.encode import folder
from benchmarks.load_client import Load
from benchmarks.memory import ROOT
from benchmarks.texts import sentences

ONCE = True  # this claim is measured only with all threads
COUNT = 1000  # the number of texts; a round sends each text once
CLIENTS = 64
ALONE = 100  # the number of requests of a single client in a round
MANY = 100_000  # the number of requests; memory is read after a tenth of them and at the end
STARTING = 120.0  # the maximum seconds until a server has started
# The server `infinity` has its own environment, because it needs other package versions than the
# other benchmarks.
INFINITY = ROOT / ".venv-infinity" / "bin" / "infinity_emb"

PROGRAM = "from qkv.cli import main; main()"
PEER = "FastAPI + sentence-transformers"


def rows(shrink: int = 1) -> Iterator[Row]:
    """Yield four rows of the results table.

    Two rows are for many clients, which send one text or eight texts per request. The third row is
    for a single client. The last row compares the server's memory early and late in a long run.
    """
    model = qkv.load("minilm")
    texts = sentences(COUNT // shrink, lambda text: len(model.tokenize(text)))
    vectors = model.encode(texts, show_progress_bar=False)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server(name, c)) for name, c in commands().items()}
        clients = stack.enter_context(asking(texts, vectors))
        encode = partial(model.encode, show_progress_bar=False)
        yield together(servers, clients, encode, texts, vectors, 1)
        yield together(servers, clients, encode, texts, vectors, 8)
        yield alone(servers, clients, encode, texts, vectors, ALONE // shrink)
        yield memory(servers, clients, MANY // shrink)


def commands() -> dict[str, list[str] | None]:
    """Return the command that starts each server; the port is added as the last argument."""
    python, here = sys.executable, str(folder())
    peer = all(map(find_spec, ("fastapi", "uvicorn", "sentence_transformers")))
    infinity = [str(INFINITY), "v2", "--model-id", here, "--engine", "torch", "--device", "cpu"]
    infinity += ["--url-prefix", "/v1", "--host", "127.0.0.1", "--log-level", "error", "--port"]
    return {
        "qkv serve": [python, "-c", PROGRAM, "serve", "--model", "minilm", "--port"],
        PEER: [python, "-m", "benchmarks.peer_server", here] if peer else None,
        "infinity-emb": infinity if INFINITY.exists() else None,
    }


# Processes


class Server:
    """A server process and its port."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.pid, self.port = process.pid, port

    def processor(self) -> float:
        """Return the processor time of the server in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Return the memory of the server in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024.0 * int(status.partition("VmRSS:")[2].split()[0])


@contextmanager
def server(name: str, command: list[str] | None) -> Iterator[Server | None]:
    """Start a server, yield it, and end it afterwards; yield None if it is not installed."""
    if command is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, str(port)], cwd=ROOT, env=environment, stdout=said, stderr=said
        )
        try:
            end = time.monotonic() + STARTING
            while not listens(port):
                if process.poll() is not None or time.monotonic() > end:
                    said.seek(0)
                    raise RuntimeError(f"{name} did not start: {said.read()[-2000:].decode()}")
                time.sleep(0.1)
            yield Server(process, port)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def listens(port: int) -> bool:
    """Return whether the server accepts a connection."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


Ask = Callable[[Any], dict[str, Any]]


@contextmanager
def asking(texts: list[str], vectors: np.ndarray) -> Iterator[Ask]:
    """Yield a function that sends a command to the process of the clients."""
    with tempfile.TemporaryDirectory() as home:
        words, numbers = Path(home, "texts.json"), Path(home, "vectors.npy")
        words.write_text(json.dumps(texts), encoding="utf-8")
        np.save(numbers, vectors)
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load_client", str(words), str(numbers)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield partial(asked, process)
            finally:
                process.kill()


def asked(process: subprocess.Popen[str], what: Any) -> dict[str, Any]:
    """Return the answer of the clients.

    Raises:
        ArithmeticError: a server's answer is wrong or missing.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(asdict(what) if isinstance(what, Load) else what) + "\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(process.stdout.readline() or '{"failed": "they ended"}')
    if "failed" in found:
        raise ArithmeticError(f"the clients: {found['failed']}")
    return found


class Loaded:
    """A load that one server answers, and the measurements of each round."""

    def __init__(self, server: Server, ask: Ask, load: Load) -> None:
        self.server, self.ask, self.load = server, ask, load
        self.turns: list[dict[str, Any]] = []

    def __call__(self) -> dict[str, Any]:
        """Let the clients send the load."""
        used = self.server.processor()
        turn = self.ask(self.load)
        turn["server"] = self.server.processor() - used
        self.turns.append(turn)
        return turn

    def error(self, _: Any = None) -> float:
        """Return the largest error of all vectors that the clients got since the last call.

        Raises:
            ArithmeticError: an answer is missing.
        """
        found = self.ask("check")
        expected = sum(len(turn["requests"]) for turn in self.turns if not turn.get("checked"))
        for turn in self.turns:
            turn["checked"] = True
        if found["answers"] < expected:
            raise ArithmeticError(f"{expected - found['answers']} answers are missing")
        return float(found["error"])

    def of_turns(self, name: str) -> float:
        """Return the median of a number over all rounds except the first."""
        return statistics.median(turn[name] for turn in self.turns[1:])

    def share_of_requests(self, share: float) -> float:
        """Return a quantile of the requests' times, for example p50 if `share` is 0.5.

        Each round has its own quantile; return their median over all rounds except the first.
        """
        return statistics.median(
            float(np.quantile(turn["requests"], share)) for turn in self.turns[1:]
        )


def loaded(servers: dict[str, Server | None], ask: Ask, load: dict[str, Any]) -> dict[str, Any]:
    """Return a `Loaded` for each installed server."""
    return {name: one and Loaded(one, ask, Load(one.port, **load)) for name, one in servers.items()}


def way(one: Loaded | None) -> Way | None:
    """Return the implementation of a row for one server; None if the server is not installed.

    Each timed call sends all requests of a load to the server.
    """
    return one and Way(one, one.error)


# Rows


def together(
    servers: dict[str, Server | None],
    ask: Ask,
    encode: Callable[[list[str]], np.ndarray],
    texts: list[str],
    vectors: np.ndarray,
    size: int,
) -> Row:
    """Make the row of the results table for many clients, which together send each text once.

    Each request contains `size` texts.
    """
    load = {"requests": -(-len(texts) // size), "clients": CLIENTS, "size": size}
    found = loaded(servers, ask, load)
    floats = loaded({"float": servers["qkv serve"]}, ask, {**load, "encoding": "float"})["float"]
    ours = found["qkv serve"]
    used: list[float] = []

    def encoded() -> np.ndarray:
        before = time.process_time()
        result = encode(texts)
        used.append(time.process_time() - before)
        return result

    ways = {
        "encode, in process": Way(encoded, lambda x: float(np.abs(x - vectors).max())),
        "qkv serve": way(ours),
        "qkv serve, float": way(floats),
        **{name: way(one) for name, one in found.items() if name != "qkv serve"},
    }
    inside = "encode, in process"

    def beside(name: str) -> Callable[[dict[str, Any]], float]:
        return lambda row: seconds(row, inside) / seconds(row, name)

    def without_clients(row: dict[str, Any]) -> float:
        cores = len(os.sched_getaffinity(0))
        rest = seconds(row, "qkv serve") - ours.of_turns("processor") / cores
        return seconds(row, inside) / rest

    def of_text(one: Loaded, what: str) -> Callable[[dict[str, Any]], float]:
        return lambda row: one.of_turns(what) / len(texts)

    least = 0.8 if size == 1 else 0.9
    goals = (
        Goal("throughput relative to encode", beside("qkv serve"), "%", least=least),
        Goal(
            "throughput relative to encode, without the clients' processor time",
            without_clients,
            "%",
        ),
        Goal("throughput relative to encode, as float", beside("qkv serve, float"), "%"),
        Goal("processor time for a text: clients", of_text(ours, "processor"), "s"),
        Goal(
            "processor time for a text: encode",
            lambda row: statistics.median(used[1:]) / len(texts),
            "s",
        ),
        *(
            Goal(f"processor time for a text: {name}", of_text(one, "server"), "s")
            for name, one in found.items()
            if one is not None
        ),
        Goal("p50 of a request", lambda row: ours.share_of_requests(0.5), "s"),
        Goal(
            "p99 divided by p50",
            lambda row: ours.share_of_requests(0.99) / ours.share_of_requests(0.5),
            most=8.0,
        ),
        faster(PEER, 2.5, way="qkv serve"),
        faster("infinity-emb", 1.0, way="qkv serve"),
        Goal("largest error of all answers", ours.error, "", most=1e-4),
    )
    plural = "s" * (size > 1)
    name = f"{CLIENTS} clients, {len(texts):,} texts, {size} text{plural} in a request"
    return Row(name, ways, goals, rounds=3)


def alone(
    servers: dict[str, Server | None],
    ask: Ask,
    encode: Callable[[list[str]], np.ndarray],
    texts: list[str],
    vectors: np.ndarray,
    count: int,
) -> Row:
    """Make the table row that compares `encode` with one client that sends requests one by one."""
    found = loaded(servers, ask, {"requests": count, "clients": 1})
    ours = found["qkv serve"]
    turns: list[list[float]] = []

    def encoded() -> np.ndarray:
        took, result = [], []
        for text in texts[:count]:
            begin = time.perf_counter()
            result += [encode(text)]
            took.append(time.perf_counter() - begin)
        turns.append(took)
        return np.array(result)

    def middle() -> float:
        return statistics.median(statistics.median(turn) for turn in turns[1:])

    ways = {
        "encode, in process": Way(encoded, lambda x: float(np.abs(x - vectors[:count]).max())),
        **{name: way(one) for name, one in found.items()},
    }
    goals = (
        Goal("p50 of encode", lambda row: middle(), "s"),
        Goal("p50 of a request", lambda row: ours.share_of_requests(0.5), "s"),
        Goal(
            "p50 minus 2 ms, divided by p50 of encode",
            lambda row: (ours.share_of_requests(0.5) - 2e-3) / middle(),
            most=1.5,
        ),
        Goal("largest error of all answers", ours.error, "", most=1e-4),
    )
    return Row(f"1 client, {count} requests of 1 text", ways, goals, rounds=3)


def memory(servers: dict[str, Server | None], ask: Ask, count: int) -> Row:
    """Make the table row that compares the server's memory after 10% and 100% of the requests."""
    one = servers["qkv serve"]
    assert one is not None
    part = Loaded(one, ask, Load(one.port, count // 10, CLIENTS))
    error = 0.0

    def after(parts: int) -> float:
        nonlocal error
        for _ in range(parts):
            part()
            error = max(error, part.error())
        return one.resident()

    early, late = (f"memory after {n:,} requests" for n in (count // 10, count))
    short = Loaded(one, ask, Load(one.port, CLIENTS, CLIENTS))
    goals = (
        Goal(
            "memory after all requests, divided by memory after a tenth of them",
            lambda row: row["memory"][late] / row["memory"][early],
            most=1.05,
        ),
        Goal("largest error of all answers", lambda row: error, "", most=1e-4),
    )
    return Row(
        f"{count:,} requests, {CLIENTS} clients",
        {f"qkv serve, {CLIENTS} requests": way(short)},
        goals,
        {early: partial(after, 1), late: partial(after, 9)},
        rounds=3,
    )
