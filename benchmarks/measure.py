"""Verify attention calls, time them in rounds, and compare them with the machine's peak."""

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array, float_type
from qkv.ops.kernel import backend, compiled, get_num_threads, variant
from qkv.ops.threads import run_all

Call = Callable[[], Any]

ROUNDS = 9  # The minimum number of rounds; with fewer rounds, medians are unreliable.
LEAST = 2e-3  # Each round repeats calls that take less than `LEAST` seconds.
# If a call takes less than `SHORT` seconds in the warm-up round, each later round runs it as a
# warm-up before timing it.
SHORT = 0.02


def in_turn(
    calls: Mapping[str, Call],
    *,
    rounds: int = ROUNDS,
    seconds: float = 1.0,
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """Measure the times of several calls in rounds.

    Every round runs every call, so that a temporary slowdown of the machine affects all calls
    equally.

    Args:
        calls: functions by name.
        rounds: the minimum number of rounds.
        seconds: the approximate time to measure; there are at least `rounds` and at most 51 rounds.
        pause: seconds to wait before each call, so that the threads of the previous call stop
            spinning.

    Returns:
        The times of each call in seconds, keyed by name. Each list has one time per round. If a
            round repeats a short call, the time is the mean of the repeats.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        once = {}
        for name, call in calls.items():
            once[name] = _seconds(call)
            if once[name] < SHORT:  # for a short call, the first run is only a warm-up
                once[name] = _seconds(call)
        wanted = seconds / max(1e-9, sum(once.values()) + pause * len(once))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(max(rounds, min(51, int(wanted)))):
            for name, call in calls.items():
                if pause:
                    time.sleep(pause)
                if once[name] < SHORT:
                    _seconds(call, times=_in_a_turn(once[name]))
                times[name].append(_seconds(call, times=_in_a_turn(once[name])))
            gc.collect(0)
        return times
    finally:
        if collecting:
            gc.enable()


def _in_a_turn(once: float) -> int:
    return max(1, min(1000, math.ceil(LEAST / max(once, 1e-9))))


def _seconds(call: Call, times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def sample(length: int, most: int = 256) -> list[slice]:
    """Choose the queries to verify: all if there are at most `most`, otherwise eight equal blocks.

    >>> sample(100)
    [slice(0, 100, None)]
    >>> sample(1000, most=16)[:2], sample(1000, most=16)[-1]
    ([slice(0, 2, None), slice(142, 144, None)], slice(998, 1000, None))
    """
    if length <= most:
        return [slice(0, length)]
    size = most // 8
    starts = np.linspace(0, length - size, 8).astype(int).tolist()
    return [slice(start, start + size) for start in starts]


def largest_error(out: Array, truth: Array, rows: Iterable[slice]) -> float:
    """Return the largest error of `out (..., L, dv)` in `rows`; NaN if `out` is not finite."""
    if not np.isfinite(np.asarray(out, np.float32)).all():
        return math.nan
    parts = np.concatenate([out[..., part, :] for part in rows], axis=-2)
    return float(np.abs(parts.astype(np.float64) - truth).max())


def allowed_error(query: Array, key: Array, value: Array) -> float:
    """Return the largest error that `qkv.attention` allows for these inputs."""
    longest = [float(np.sqrt((np.asarray(x, np.float64) ** 2).sum(-1).max())) for x in (query, key)]
    score = longest[0] * longest[1] / math.sqrt(query.shape[-1])
    rounding = {"bfloat16": 2.0**-7, "float16": 2.0**-10}.get(value.dtype.name, 0.0)
    top = float(np.abs(np.asarray(value, np.float64)).max())
    return float((2e-6 + 2.0**-23 * score + rounding) * top)


def plain_attention(query: Array, key: Array, value: Array, *, is_causal: bool = False) -> Array:
    """Compute attention in plain NumPy, as in tutorials, with all scores in memory."""
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key, value = np.repeat(key, group, axis=-3), np.repeat(value, group, axis=-3)
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    if is_causal:
        masked = np.triu(np.ones(scores.shape[-2:], bool), k=1)
        scores = np.where(masked, -np.inf, scores).astype(query.dtype)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights @ value)


def operations(query: Array, key: Array, value: Array, *, is_causal: bool = False) -> float:
    """Count `2 (d + dv)` floating-point operations for each visible pair of query and key."""
    length, keys = query.shape[-2], key.shape[-2]
    pairs = length * (length + 1) / 2 if is_causal else length * keys
    sizes = query.shape[-1] + value.shape[-1]
    return float(math.prod(query.shape[:-2]) * pairs * 2 * sizes)


# The peak of the machine


def multiply_adds(dtype: str = "float32") -> float:
    """Measure the peak number of floating-point operations per second, on qkv's threads.

    The compiled kernel runs multiply-adds on values in registers; for `"bfloat16"`, it uses BF16
    instructions if the processor has them. If the compiled kernel is missing, the result is the
    speed of the fastest of several NumPy products of two large matrices.
    """
    if compiled is not None:
        return compiled.multiply_adds(variant() or 0, dtype == "bfloat16", get_num_threads())
    size = 768
    matrix = np.ones((size, size), np.float32)
    out = np.empty_like(matrix)
    best = min(_seconds(lambda: np.matmul(matrix, matrix, out=out)) for _ in range(5))
    return 2 * size**3 / best


def read_rate() -> float:
    """Measure how many bytes per second qkv's threads can read from a large array."""
    if compiled is not None:
        return compiled.read_rate(variant() or 0, get_num_threads())
    numbers = np.ones(1 << 25, np.float32)  # larger than most caches
    pieces = [(piece,) for piece in np.split(numbers, 256)]
    best = min(_seconds(lambda: run_all(np.max, pieces)) for _ in range(3))
    return float(numbers.nbytes / best)


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores, system, versions, backend, threads."""
    name, flags = processor()
    return {
        "processor": name,
        "flags": flags,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "backend": backend(),
        "threads": get_num_threads(),
    }


def processor() -> tuple[str, list[str]]:
    """Return `(name, instruction sets)` of the processor, as far as they are known."""
    about: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                about.setdefault(name.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine(), []
    known = ("fma", "f16c", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")
    there = about.get("flags", about.get("Features", "")).split()
    model = about.get("model name", platform.machine())
    family = [about[key] for key in ("cpu family", "model") if key in about]
    if family:
        model += f" (family {', model '.join(family)})"
    return model, [flag for flag in known if flag in there]


def random_inputs(
    query: tuple[int, ...], key: tuple[int, ...], dtype: str = "float32", seed: int = 0
) -> tuple[Array, Array, Array]:
    """Return query, key and value of these shapes: standard normal numbers from a fixed seed."""
    rng = np.random.default_rng(seed)
    kind = float_type(dtype, call="random_inputs")
    first, *others = (rng.standard_normal(shape, np.float32) for shape in (query, key, key))
    q, k, v = (x.astype(kind, copy=False) for x in (first, *others))
    return q, k, v


def time_in_words(value: float) -> str:
    """Format a time with three digits and a unit."""
    units = ((1, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((pair for pair in units if value * pair[0] >= 1), units[-1])
    figures = value * factor
    return f"{figures:.0f} {unit}" if figures >= 100 else f"{figures:.3g} {unit}"
