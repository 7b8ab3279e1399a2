"""The command `qkv bench`: the speed and the rounding error of attention on this machine."""

import math
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from timeit import timeit
from typing import Any

import click
import numpy as np

from qkv._progress import progress
from qkv.arrays import Array, float_type
from qkv.attend import attention, trace_attention
from qkv.cli._options import json_option
from qkv.cli._output import console, print_json
from qkv.ops.kernel import backend, get_num_threads

# name, (B, Hq, Hkv, L, S, d), is_causal, dtype
Task = tuple[str, tuple[int, int, int, int, int, int], bool, str]
TASKS: tuple[Task, ...] = (
    ("128 tokens", (1, 12, 12, 128, 128, 64), False, "float32"),
    ("512 tokens", (1, 12, 12, 512, 512, 64), False, "float32"),
    ("2,048 tokens", (1, 12, 12, 2048, 2048, 64), False, "float32"),
    ("1,024, causal", (1, 12, 12, 1024, 1024, 64), True, "float32"),
    ("1,024, bf16", (1, 12, 12, 1024, 1024, 64), False, "bfloat16"),
    ("1 after 8,191", (1, 32, 8, 1, 8192, 128), False, "float32"),
)
ROUNDS = 9
LEAST = 2e-3  # each round repeats calls that take less than `LEAST` seconds


@click.command()
@json_option
def bench(as_json: bool) -> None:
    """Compare the speed and the error of qkv's attention with those of plain NumPy.

    Before timing, the result of each function is compared with a float64 result; the table lists
    the largest errors. The functions run alternately; each time is the median of nine runs.
    """
    about = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "backend": backend(),
        "threads": get_num_threads(),
    }
    with progress("measuring", len(TASKS) * ROUNDS) as advance:
        results = [_measure(task, advance) for task in TASKS]
    if as_json:
        print_json({"machine": about, "results": results})
        return
    from rich.table import Table

    out = console()
    out.print("{processor}, {cores} cores: {backend}, threads: {threads}".format(**about))
    grid = Table("work", box=None, padding=(0, 2, 0, 0))
    for heading in ("qkv", "error", "NumPy", "error", "faster"):
        grid.add_column(heading, justify="right")
    for row in results:
        ours, plain = row["qkv"], row["numpy"]
        cells = [text for x in (ours, plain) for text in (_time(x["seconds"]), f"{x['error']:.0e}")]
        grid.add_row(row["name"], *cells, f"{plain['seconds'] / ours['seconds']:.1f}x")
    out.print(grid)


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text("utf-8").splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _measure(task: Task, advance: Callable[[int], None]) -> dict[str, Any]:
    """Compare the results of a task with float64, then measure the median times."""
    name, shape, causal, dtype = task
    batch, heads, kv_heads, length, keys, size = shape
    rng = np.random.default_rng(0)
    rows = ((heads, length), (kv_heads, keys), (kv_heads, keys))
    drawn = [rng.standard_normal((batch, h, n, size), np.float32) for h, n in rows]
    q, k, v = (x.astype(float_type(dtype)) for x in drawn)
    wide_q, wide_k, wide_v = (x.astype(np.float32) for x in (q, k, v))  # for NumPy

    # Verify
    truth = _exact(q, k, v, causal)
    calls: dict[str, Callable[[], Array]] = {
        "qkv": lambda: attention(q, k, v, is_causal=causal),
        "numpy": lambda: _plain(wide_q, wide_k, wide_v, causal),
    }
    errors = {way: float(np.abs(call() - truth).max()) for way, call in calls.items()}
    score = math.prod(np.linalg.norm(x, axis=-1).max() for x in (wide_q, wide_k)) / math.sqrt(size)
    allowed = 2e-6 + 2.0**-23 * score + (2.0**-7 if dtype == "bfloat16" else 0)
    allowed *= float(np.abs(wide_v).max())
    if not errors["qkv"] <= allowed:  # also if the error is NaN
        raise ArithmeticError(
            f"{name}: the error is {errors['qkv']:.1e}, but at most {allowed:.1e} is allowed"
        )

    # Time
    often = {way: math.ceil(LEAST / timeit(call, number=1)) for way, call in calls.items()}
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(ROUNDS):
        for way, call in calls.items():
            times[way].append(timeit(call, number=often[way]) / often[way])
        advance(1)
    return {
        **{"name": name, "shape": list(shape), "is_causal": causal, "dtype": dtype},
        **{way: {"seconds": statistics.median(times[way]), "error": errors[way]} for way in calls},
    }


def _exact(query: Array, key: Array, value: Array, causal: bool) -> Array:
    """Compute attention by its formula, in float64, for 256 queries at a time."""
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    parts = [
        trace_attention(q[..., i : i + 256, :], k, v, is_causal=causal, q_offset=i)["out"]
        for i in range(0, q.shape[-2], 256)
    ]
    return np.concatenate(parts, axis=-2)


def _plain(query: Array, key: Array, value: Array, causal: bool) -> Array:
    """Compute attention in plain NumPy, as in tutorials, with all scores in memory."""
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) if group > 1 else x for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ value)


def _time(seconds: float) -> str:
    """Format a time with three digits and a unit."""
    factor, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    figures = seconds * factor
    return f"{figures:.0f} {unit}" if figures >= 100 else f"{figures:.3g} {unit}"
