"""Time and memory of one head at 1k, 2k, ... 64k tokens, each call in a separate process."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.memory import measured_alone

ONCE = True  # this claim is measured only with all threads
LONGEST = 65536
WAYS = ("qkv", "qkv, window (512, 0)", "qkv on NumPy", "torch", "numpy")
MOST_SECONDS = 20.0
MOST_BYTES = 6e9
NOISE = 4e6  # measured bytes below this number are noise of the process


def curves(shrink: int = 1) -> dict[str, list[dict[str, float]]]:
    """Measure each implementation at growing lengths, up to a limit of time and memory."""
    found = {}
    for way in WAYS:
        if way == "torch" and not find_spec("torch"):
            continue
        points: list[dict[str, float]] = []
        length = 1024 // shrink
        while length <= LONGEST // shrink and not next_is_too_much(points):
            points.append({"length": length, **measured_alone(way, (1, 1, length, 64))})
            length *= 2
        found[way] = points
    return found


def next_is_too_much(points: list[dict[str, float]]) -> bool:
    """Predict from the last points whether twice the length would take over 20 s or 6 GB."""
    for name, most in (("seconds", MOST_SECONDS), ("bytes", MOST_BYTES)):
        last = [point[name] for point in points[-2:]]
        if len(last) == 2 and last[1] * max(1.0, last[1] / max(last[0], 1e-9)) > most:
            return True
    return False


def exponent(points: list[dict[str, Any]], name: str) -> float | None:
    """Return the log-log slope of the last four points, or None if fewer than two are usable."""
    seen = [(p["length"], p[name]) for p in points if name == "seconds" or p[name] > NOISE][-4:]
    if len(seen) < 2:
        return None
    lengths, values = np.log(np.array(seen, float)).T
    return float(np.polyfit(lengths, values, 1)[0])
