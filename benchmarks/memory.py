"""Time and memory of one call in a separate process: `python -m benchmarks.memory <json>`."""

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 1.0  # seconds; shorter calls are timed repeatedly


def measured_alone(way: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Return the median `seconds` of a call, and the `bytes` that it needs besides its inputs."""
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps([way, shape])]
    environment = os.environ | ({"QKV_BACKEND": "numpy"} if way == "qkv on NumPy" else {})
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, text=True, env=environment, cwd=ROOT
    )
    return json.loads(answer.stdout)


def call_of(way: str, shape: tuple[int, ...]):
    """Make the inputs, and return the measured call as a function without arguments."""
    import qkv
    from benchmarks.measure import plain_attention, random_inputs
    from benchmarks.peers import torch_attention

    q, k, v = random_inputs(shape, shape)
    if way == "torch":
        return torch_attention(q, k, v)[0]
    return {
        "qkv": lambda: qkv.attention(q, k, v),
        "qkv, window (512, 0)": lambda: qkv.attention(q, k, v, window=(512, 0)),
        "qkv on NumPy": lambda: qkv.attention(q, k, v),
        "summary": lambda: qkv.summarize_attention(q, k, v),
        "numpy": lambda: plain_attention(q, k, v),
    }[way]


def resident() -> tuple[int, int]:
    """Return the bytes in memory now, and the peak since `forget_the_peak`."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            status = dict(line.split(":", 1) for line in file)
        return tuple(int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    except OSError:  # on other systems, the peak since the process began (in bytes on macOS)
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most, most


def forget_the_peak() -> None:
    """Reset the peak memory, if the system can do this."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def main() -> None:
    """Measure the call given on the command line, and print the result."""
    way, shape = json.loads(sys.argv[1])
    batch, heads, length, size = shape
    call_of(
        way, (batch, heads, min(length, 256), size)
    )()  # this short call loads the modules, so that their memory is not measured below
    call = call_of(way, tuple(shape))
    forget_the_peak()
    before, _ = resident()
    times = [seconds(call)]
    _, most = resident()
    while len(times) < 9 and sum(times) < PATIENCE:
        times.append(seconds(call))
    print(json.dumps({"seconds": statistics.median(times), "bytes": max(0, most - before)}))


def seconds(call) -> float:
    """Return the time of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
