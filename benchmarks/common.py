"""Verify and time the implementations of a task, and compare the measurements with goals."""

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.measure import (
    ROUNDS,
    allowed_error,
    in_turn,
    largest_error,
    multiply_adds,
    processor,
    read_rate,
    sample,
    time_in_words,
)

# Seconds to wait between calls. After a call, onnxruntime's threads spin for 35 ms, and torch's
# threads spin for 7 ms.
PAUSE = 0.05
LOOSE = {"float32": 1e-4, "bfloat16": 5e-2}  # the maximum error of a peer


@dataclass(frozen=True)
class Way:
    """One implementation of a row's task: the timed call, and a function that returns the error."""

    call: Callable[[], Any]
    error: Callable[[Any], float]
    allowed: float = LOOSE["float32"]
    operations: float = 0  # the number of floating-point multiplications and additions
    reads: float = 0  # the minimum number of bytes to read
    dtype: str = "float32"  # the peak is the multiply-add rate of this type
    also: Callable[[Any], dict[str, float]] = lambda _: {}  # other measures of the result's error


def timed(call: Callable[[], Any] | str | None, *arguments, **options) -> Way | str | None:
    """Make a `Way` of a call; return a reason, or None for a missing library, unchanged."""
    return Way(call, *arguments, **options) if callable(call) else call


@dataclass(frozen=True)
class Goal:
    """A number computed from the measurements, and its target."""

    text: str
    value: Callable[[dict[str, Any]], float]
    unit: str = "x"
    least: float | None = None
    most: float | None = None
    aim: float | None = None
    peers: str = ""  # several names, joined by "|": the fastest one is named beside the value
    elsewhere: bool = False  # whether the goal holds only for other processors

    def judged(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the goal with its measured value, and whether this value meets the goal.

        The value is None if the goal needs a peer that is not installed.
        """
        try:
            value = self.value(row)
        except (KeyError, ValueError):
            value = None
        downward = self.most is not None
        bound = self.most if downward else self.least

        def reached(goal: float | None) -> bool | None:
            if goal is None or value is None or self.elsewhere:
                return None
            return value <= goal if downward else value >= goal

        several = self.peers.split("|") if "|" in self.peers else []
        there = [name for name in several if name in row["ways"]]
        return {
            "text": self.text,
            "unit": self.unit,
            "value": value,
            "least": self.least,
            "most": self.most,
            "aim": self.aim,
            "met": reached(bound),
            "aim_met": reached(self.aim),
            "peer": min(there, key=lambda name: seconds(row, name)) if there else None,
            "elsewhere": self.elsewhere,
        }


@dataclass(frozen=True)
class Row:
    """One task, the implementations that are timed on the task, and the goals for their results."""

    name: str
    ways: dict[str, Way | str | None]  # why it is not timed; None if the library is not installed
    goals: tuple[Goal, ...] = ()
    # for each implementation, the bytes of memory in addition to the inputs
    memory: dict[str, Callable[[], float]] = field(default_factory=dict)
    parts: Callable[[], dict[str, float]] | None = None  # name -> share of qkv's time
    rounds: int | None = None  # the number of rounds; very long work needs fewer rounds


# Goals


def has_amx() -> bool:
    """Return whether the processor multiplies bfloat16 matrices in the tiles of AMX."""
    return "amx_bf16" in processor()[1]


def seconds(row: dict[str, Any], way: str) -> float:
    """Return the median time of an implementation.

    If `way` contains several names, joined by "|", return the shortest median time.
    """
    there = [row["ways"][name]["seconds"] for name in way.split("|") if name in row["ways"]]
    return min(there)


def faster(than: str, least: float | None, aim: float | None = None, way: str = "qkv") -> Goal:
    """Make a goal: be at least `least` times as fast as the fastest of one or several peers."""
    name = than.partition("|")[0]
    text = f"speed relative to {name}" if way == "qkv" else f"speed of {way} relative to {name}"
    return Goal(
        text, lambda r: seconds(r, than) / seconds(r, way), least=least, aim=aim, peers=than
    )


def with_amx(goal: Goal) -> Goal:
    """Limit a goal to processors with AMX."""
    return replace(goal, text=f"{goal.text}, with AMX", elsewhere=not has_amx())


def share_of_peak(least: float | None, aim: float | None = None, way: str = "qkv") -> Goal:
    """Make a goal: reach at least this share of the machine's peak rate of multiply-adds."""
    text = f"share of peak{way.removeprefix('qkv')}"
    return Goal(text, lambda row: row["ways"][way]["share"], "%", least=least, aim=aim)


def share_of_reading(least: float | None, way: str = "qkv") -> Goal:
    """Make a goal: reach at least this share of the machine's read rate."""
    text = f"share of the machine's read rate{way.removeprefix('qkv')}"
    return Goal(text, lambda row: row["ways"][way]["share"], "%", least=least)


def within(most: float, way: str, of: str = "qkv") -> Goal:
    """Make a goal for the ratio of the times of two implementations.

    The ratio is the time of `way` divided by the time of `of`. The goal is a ratio of `most` or
    less.
    """
    return Goal(
        f"time of {way} relative to {of}", lambda r: seconds(r, way) / seconds(r, of), most=most
    )


def per_second(what: str, count: int, way: str) -> Goal:
    """Show how many texts or tokens an implementation processes per second; this is not a goal."""
    return Goal(f"{what} per second, {way}", lambda row: count / seconds(row, way), "n")


def at_most(most: float, way: str = "qkv") -> Goal:
    """Make a goal: a call takes `most` seconds or less."""
    text = f"one call{way.removeprefix('qkv')}"
    return Goal(text, lambda row: seconds(row, way), "s", most=most)


def no_less_exact(than: str, way: str = "qkv") -> Goal:
    """Make a goal: an implementation is at least as exact as a peer.

    `way` is the name of the implementation, and `than` is the name of the peer. The implementation
    meets the goal if its error is not larger than the error of the peer.
    """

    def ratio(row: dict[str, Any]) -> float:
        return row["ways"][way]["error"] / row["ways"][than]["error"]

    return Goal(f"error relative to {than}", ratio, most=1.0)


def other_measure(name: str, way: str, *, relative_to: str = "", **bounds: float) -> Goal:
    """Make a goal for another measure of a result's error (`Way.also`), or for a ratio of two."""

    def value(row: dict[str, Any]) -> float:
        found = row["ways"][way]["also"][name]
        return found / row["ways"][relative_to]["also"][name] if relative_to else found

    text = f"{name} of {way}" + f" relative to {relative_to}" * bool(relative_to)
    return Goal(text, value, "measure", **bounds)


def memory_at_most(most: float, way: str) -> Goal:
    """Make a goal: a call needs `most` bytes or less in addition to the inputs."""
    text = way if way.startswith("memory") else "memory above the inputs"
    return Goal(text, lambda row: row["memory"][way], "B", most=most)


def less_memory(than: str, least: float, way: str = "qkv") -> Goal:
    """Make a goal: a peer needs at least `least` times the memory of qkv, not counting inputs."""
    return Goal(
        f"less memory than {than}",
        lambda row: row["memory"][than] / row["memory"][way],
        least=least,
    )


# Measuring


def formula(
    query, key, value, part, is_causal=False, window=None, softcap=None, sinks=None, **added
):
    """Return the weights and outputs of some queries, in float64 and without any code of qkv.

    The options are the options of `qkv.attention`; `bias` has an axis of L queries, and a call
    needs only one of `is_causal` and `window`.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    scores = q[..., part, :] @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])  # (..., n, S)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    away = np.subtract.outer(np.arange(q.shape[-2])[part], np.arange(k.shape[-2]))
    if "bias" in added:
        scores += added["bias"][..., part, :]
    if "alibi_slopes" in added:
        scores -= added["alibi_slopes"][:, None, None].astype(np.float64) * np.abs(away)
    left, right = window or (np.inf, 0 if is_causal else np.inf)
    scores[..., (away > left) | (away < -right)] = -np.inf
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    sunk = 0 if sinks is None else np.exp(sinks[:, None, None] - top)
    weights /= weights.sum(axis=-1, keepdims=True) + sunk
    return weights, weights @ v


def beside(query, key, value, most: int = 256, **options) -> Callable[[Callable], Callable]:
    """Compute attention in float64; return a function that builds error functions.

    An error function takes a result, and returns the largest difference between this result and the
    float64 attention; use an error function as `error` of a `Way`. The function that builds error
    functions takes one argument: a function that converts a result to a NumPy array.
    """
    rows = sample(query.shape[-2], most)
    parts = [formula(query, key, value, part, **options)[1] for part in rows]
    truth = np.concatenate(parts, axis=-2)

    def error(to_array=np.asarray):
        return lambda result: largest_error(to_array(result), truth, rows)

    return error


def ours(query, key, value) -> float:
    """Return the maximum error that qkv guarantees."""
    return allowed_error(query, key, value)


def measure(row: Row, threads: int, rounds: int = ROUNDS, seconds: float = 1.0) -> dict[str, Any]:
    """Verify a row's implementations; then measure their times and the machine's peak rates.

    In each round, each time and each peak rate is measured once, one after the other.

    Raises:
        ArithmeticError: an implementation returns a wrong result; the row is not timed.
    """
    ways = {name: way for name, way in row.ways.items() if isinstance(way, Way)}
    errors, also = {}, {}
    for name, way in ways.items():
        result = way.call()
        errors[name], also[name] = way.error(result), way.also(result)
        del result
        if not errors[name] <= way.allowed:
            raise ArithmeticError(
                f"{row.name}: {name} has the error {errors[name]:.1e}, but the largest allowed "
                f"error is {way.allowed:.1e}"
            )
    probes: dict[str, list[float]] = {}

    def probe(name: str, rate: Callable[[], float]) -> Callable[[], None]:
        probes[name] = []
        return lambda: probes[name].append(rate())

    calls = {name: way.call for name, way in ways.items()}
    limited = {way.dtype for way in ways.values() if way.operations}
    limits = {name: probe(name, lambda name=name: multiply_adds(name)) for name in sorted(limited)}
    if any(way.reads for way in ways.values()):
        limits["reading"] = probe("reading", read_rate)
    times = in_turn(
        {**calls, **{f"limit of {name}": call for name, call in limits.items()}},
        rounds=min(rounds, row.rounds or rounds),
        seconds=seconds,
        pause=PAUSE if threads > 1 else 0.0,
    )
    rates = {name: statistics.median(found) for name, found in probes.items()}
    measured: dict[str, Any] = {
        "name": row.name,
        "threads": threads,
        "limits": rates,
        "ways": {},
        "memory": {name: ask() for name, ask in row.memory.items() if row.ways.get(name, 1)},
        "missing": {
            name: way or "not installed" for name, way in row.ways.items() if name not in ways
        },
        "parts": row.parts() if row.parts is not None else {},
    }
    for name, way in ways.items():
        median = statistics.median(times[name])
        one = {
            "seconds": median,
            "error": errors[name],
            **({"also": also[name]} if also[name] else {}),
        }
        work, limit = (
            (way.operations, rates[way.dtype])
            if way.operations
            else (way.reads, rates["reading"])
            if way.reads
            else (0, 1)
        )
        if work:
            one |= {"rate": work / median, "share": work / median / limit}
        measured["ways"][name] = one
    measured["goals"] = [goal.judged(measured) for goal in row.goals]
    return measured


# Results as text


def in_lines(value: Any, indent: str = "") -> str:
    """Format results as JSON with one line for each table of figures.

    A list or a dict is on one line if it contains at most one level of other lists and dicts.
    """
    if _depth(value) <= 2:
        return json.dumps(value)
    deeper = indent + " "
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {in_lines(one, deeper)}" for key, one in value.items()]
    else:
        lines = [in_lines(one, deeper) for one in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    joined = f",\n{deeper}".join(lines)
    return f"{first}\n{deeper}{joined}\n{indent}{last}"


def _depth(value: Any) -> int:
    """Return how many levels of lists and dicts a value has; empty ones do not count."""
    if not isinstance(value, dict | list) or not value:
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value))


# Numbers in words


def in_unit(value: float, unit: str) -> str:
    """Format a goal's number."""
    if unit == "%":
        return f"{value:.1%}"
    if unit == "s":
        return time_in_words(value)
    if unit == "B":
        return f"{value / 1e6:,.0f} MB"
    if unit == "":
        return f"{value:.0e}"
    if unit == "measure":
        return f"{value:.4f}"
    if unit == "n":
        return f"{value:,.0f}"
    if unit == "x":
        return f"{value:.2f}x"
    raise ValueError(f"a goal has the unknown unit {unit!r}; add a format for it to `in_unit`")


def verdict(goal: dict[str, Any]) -> str:
    """Return the verdict on a goal as words, for example "met"."""
    if goal["value"] is None:
        return "not measured"
    if goal.get("elsewhere"):  # earlier results have no such entry
        return "not on this processor"
    words = [] if goal["met"] is None else ["met" if goal["met"] else "MISSED"]
    if goal["aim"] is not None:
        words.append("aim met" if goal["aim_met"] else "short of the aim")
    return ", ".join(words)


def wanted(goal: dict[str, Any]) -> str:
    """Return the requirement of a goal, for example "≥ 2.00x"."""
    bounds = [
        f"{word} {in_unit(goal[key], goal['unit'])}"
        for key, word in (("least", "≥"), ("most", "≤"), ("aim", "aim"))
        if goal[key] is not None
    ]
    return ", ".join(bounds)


def of_memory(name: str) -> str:
    """Return the label of a memory measurement."""
    return name if name.startswith("memory") else f"{name}: memory above the inputs"


def rate_in_words(name: str, rate: float) -> str:
    """Format a limit or a measured rate."""
    return f"{rate / 1e9:,.1f} {'GB/s' if name == 'reading' else 'GFLOP/s'}"


def errors_in_words(error: float, way: dict[str, Any]) -> str:
    """Format the error of an implementation, and the other measures of it."""
    also = way.get("also", {}).items()
    return "; ".join([f"{error:.0e}", *(f"{name} {value:.4f}" for name, value in also)])


def report(row: dict[str, Any]) -> Iterable[str]:
    """Format a measured row as lines for the terminal."""
    limits = ", ".join(
        f"{name} {rate_in_words(name, rate)}" for name, rate in row["limits"].items()
    )
    yield f"{row['name']}, {row['threads']} thread{'s' * (row['threads'] > 1)}" + (
        f"  (limits: {limits})" if limits else ""
    )
    for name, way in row["ways"].items():
        line = f"  {name:32} {time_in_words(way['seconds']):>9}  "
        line += f"error {errors_in_words(way['error'], way)}"
        if "share" in way:
            line += f"  {way['rate'] / 1e9:8,.1f} G/s {way['share']:7.1%}"
        yield line
    for name, size in row["memory"].items():
        yield f"  {of_memory(name):32} {size / 1e6:,.0f} MB"
    if row["parts"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["parts"].items())
        yield f"  where the time of qkv goes: {shares}"
    for name, reason in row["missing"].items():
        yield f"  {name:32} {reason}"
    for goal in row["goals"]:
        value = "" if goal["value"] is None else in_unit(goal["value"], goal["unit"])
        asked = f"({wanted(goal)}) {verdict(goal)}" if wanted(goal) else verdict(goal)
        peer = f" ({goal['peer']})" if goal["peer"] else ""
        yield f"  > {goal['text']:30} {value:>9}{peer}  {asked}".rstrip()
