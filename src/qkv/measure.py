"""Verify attention calls, time them in rounds, and compare them with the machine's peak."""

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, float_type
from qkv.attend import attention, trace_attention
from qkv.ops.kernel import backend, compiled, get_num_threads, variant
from qkv.ops.threads import run_all

Call = Callable[[], Any]
Advance = Callable[[int], None]

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
    advance: Advance = lambda _: None,
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
        advance: a function that is called with 1 after each round, including the warm-up round.

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
        advance(1)
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
            advance(1)
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


def exact(query: Array, key: Array, value: Array, rows: Iterable[slice], **options: Any) -> Array:
    """Compute attention by its formula, in float64, for some of the queries.

    Args:
        query: `(..., Hq, L, d)`.
        key: `(..., Hkv, S, d)`.
        value: `(..., Hkv, S, dv)`.
        rows: slices of the queries. The result joins the outputs for all slices,
            `(..., Hq, n, dv)`.
        options: the options of `qkv.attention`. Masks and biases must have an axis of L queries,
            and `q_offset` must be a number.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    first = options.pop("q_offset", 0)
    outputs = []
    for part in rows:
        cut = {
            name: x[..., part, :] if name in ("attn_mask", "bias") and x.shape[-2] > 1 else x
            for name, x in options.items()
        }
        trace = trace_attention(q[..., part, :], k, v, q_offset=first + part.start, **cut)
        outputs.append(trace["out"])
    return np.concatenate(outputs, axis=-2)


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


# The benchmark of `qkv bench`


@dataclass(frozen=True)
class Timed:
    """A task that `qkv bench` measures."""

    name: str
    shape: tuple[int, int, int, int, int, int]  # B, Hq, Hkv, L, S, d
    is_causal: bool = False
    dtype: str = "float32"
    bound: str = "multiply_adds"  # the function here that measures the limit

    def inputs(self) -> tuple[Array, Array, Array]:
        """Return query, key and value with random numbers from a fixed seed."""
        batch, heads, kv_heads, length, keys, size = self.shape
        return random_inputs(
            (batch, heads, length, size), (batch, kv_heads, keys, size), self.dtype
        )


TASKS = (
    Timed("128 tokens", (1, 12, 12, 128, 128, 64)),
    Timed("512 tokens", (1, 12, 12, 512, 512, 64)),
    Timed("2,048 tokens", (1, 12, 12, 2048, 2048, 64)),
    Timed("1,024, causal", (1, 12, 12, 1024, 1024, 64), is_causal=True),
    Timed("1,024, bf16", (1, 12, 12, 1024, 1024, 64), dtype="bfloat16"),
    Timed("1 after 8,191", (1, 32, 8, 1, 8192, 128), bound="read_rate"),
)


def random_inputs(
    query: tuple[int, ...], key: tuple[int, ...], dtype: str = "float32", seed: int = 0
) -> tuple[Array, Array, Array]:
    """Return query, key and value of these shapes: standard normal numbers from a fixed seed."""
    rng = np.random.default_rng(seed)
    kind = float_type(dtype, call="random_inputs")
    first, *others = (rng.standard_normal(shape, np.float32) for shape in (query, key, key))
    q, k, v = (x.astype(kind, copy=False) for x in (first, *others))
    return q, k, v


def survey(
    tasks: Iterable[Timed] = TASKS, *, rounds: int = ROUNDS, advance: Advance = lambda _: None
) -> list[dict[str, Any]]:
    """Verify each task against float64, and measure it in qkv and in plain NumPy.

    Each task has a warm-up round and at least `rounds` measured rounds; `advance(1)` is called
    after each round. The result for each task is a dict with the fields of the `Timed`. The entries
    `qkv` and `numpy` contain the median `seconds` and the largest `error`. `times_faster` is
    NumPy's median divided by qkv's median. `limit` is the machine's peak rate for this work, and
    `share` is the fraction of the limit that qkv reaches.

    Raises:
        ArithmeticError: qkv's rounding error is larger than allowed.
    """
    return [_measure(task, rounds, advance) for task in tasks]


def _measure(task: Timed, rounds: int, advance: Advance) -> dict[str, Any]:
    """Measure one task of `survey`."""
    q, k, v = task.inputs()
    causal = task.is_causal
    # For plain NumPy, half-precision inputs are converted to float32.
    wide_q, wide_k, wide_v = (x.astype(np.float32, copy=False) for x in (q, k, v))
    calls: dict[str, Call] = {
        "qkv": lambda: attention(q, k, v, is_causal=causal),
        "numpy": lambda: plain_attention(wide_q, wide_k, wide_v, is_causal=causal),
    }
    rows = sample(q.shape[-2])
    truth = exact(q, k, v, rows, is_causal=causal)
    errors = {name: largest_error(call(), truth, rows) for name, call in calls.items()}
    allowed = allowed_error(q, k, v)
    if not errors["qkv"] <= allowed:
        raise ArithmeticError(
            f"{task.name}: the error is {errors['qkv']:.1e}, but at most {allowed:.1e} is allowed"
        )

    reads = task.bound == "read_rate"
    work = k.nbytes + v.nbytes if reads else operations(q, k, v, is_causal=causal)
    limits: list[float] = []
    calls["limit"] = lambda: limits.append(read_rate() if reads else multiply_adds(task.dtype))
    times = in_turn(calls, rounds=rounds, seconds=0.3, pause=0.01, advance=advance)
    limit = statistics.median(limits)
    ours, plain = (statistics.median(times[name]) for name in ("qkv", "numpy"))
    return {
        **asdict(task),
        "shape": list(task.shape),
        "qkv": {"seconds": ours, "error": errors["qkv"]},
        "numpy": {"seconds": plain, "error": errors["numpy"]},
        "times_faster": plain / ours,
        "limit": limit,
        "share": work / ours / limit,
    }


def table(results: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the results of `survey` as a table: a row of headings, then a row for each task."""
    lines: list[tuple[str, ...]] = [
        ("work", "qkv", "error", "NumPy", "error", "faster", "share", "of")
    ]
    for row in results:
        both = [
            text
            for name in ("qkv", "numpy")
            for text in (time_in_words(row[name]["seconds"]), f"{row[name]['error']:.0e}")
        ]
        unit = "GB/s" if row["bound"] == "read_rate" else "GFLOP/s"
        limit = f"{row['limit'] / 1e9:,.0f} {unit}"
        faster = f"{row['times_faster']:.1f}x"
        lines.append((row["name"], *both, faster, f"{row['share']:.0%}", limit))
    return lines


def time_in_words(value: float) -> str:
    """Format a time with three digits and a unit."""
    units = ((1, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((pair for pair in units if value * pair[0] >= 1), units[-1])
    figures = value * factor
    return f"{figures:.0f} {unit}" if figures >= 100 else f"{figures:.3g} {unit}"
