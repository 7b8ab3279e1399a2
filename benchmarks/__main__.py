"""Measure every claim that the documentation makes: `make bench`, or `python -m benchmarks`."""

import argparse
import gc
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.common import in_lines, in_unit, measure, report, wanted
from benchmarks.measure import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CLAIMS = (
    "prefill",
    "short",
    "decode",
    "window",
    "arguments",
    "gradient",
    "learn",
    "varlen",
    "bfloat16",
    "summary",
    "linear",
    "overhead",
    "numpy_path",
    "encode",
    "one_text",
    "why",
    "cold",
    "bert",
    "llama",
    "smollm2",
    "inside",
    "circuits",
    "scan",
    "serve",
    "scale",
    "play",
    "play_smollm2",
    "growth",
)
PEERS = (
    *("qkv", "numpy", "torch", "onnxruntime", "openvino"),
    *("transformers", "sentence-transformers", "fastapi", "uvicorn", "dask", "pyarrow"),
    *("transformer-lens", "ctranslate2", "nncf", "llama-cpp-python"),
)
QUICK = 8  # lengths are divided by this number for a quick check


def main() -> None:
    """Run the chosen claims, print their results, and write them as JSON."""
    arguments = parsed()
    if arguments.child:
        child(arguments)
        return
    claims = [claim for claim in CLAIMS if claim in (arguments.claims or CLAIMS)]
    counts = [arguments.threads] if arguments.threads else [1, 2]
    about, begin = machine(), time.monotonic()
    del about["threads"]
    print(about["processor"])
    found: dict[str, Any] = {claim: {"title": title(claim), "rows": []} for claim in claims}
    failed = False
    for threads in counts:
        together = [claim for claim in claims if threads == counts[-1] or not once(claim)]
        for environment, group in groupby(together, key=environment_of):
            part, code = run(list(group), threads, environment, arguments.quick)
            failed |= code != 0
            for claim, one in part.items():
                found[claim]["rows"] += one.pop("rows", [])
                found[claim] |= one
    result = {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(time.monotonic() - begin),
        "machine": about,
        "versions": {name: version(name) for name in PEERS},
        "claims": found,
    }
    full = claims == list(CLAIMS) and counts == [1, 2] and not arguments.quick and not failed
    if arguments.again:
        result, full = in_the_last(result), True
    path = Path(arguments.json or (path_of(about) if full else RESULTS / "part.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(in_lines(result) + "\n", encoding="utf-8")
    print(*conclusion(found), sep="\n")
    print(f"{result['seconds']} s; written to {path}")
    if full:
        from benchmarks import page

        page.main()
    sys.exit(failed)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "claims", nargs="*", help=f"claims to measure; default: all of {', '.join(CLAIMS)}"
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="threads of each library; default: one run with 1 thread, then another run with 2",
    )
    parser.add_argument(
        "--quick", action="store_true", help="divide each length by 8, and time only 3 rounds"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="in the results of this processor, replace the results of these claims",
    )
    parser.add_argument("--json", help="the file for the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for claim in set(arguments.claims) - set(CLAIMS):
        parser.error(f"there is no claim {claim}: choose among {', '.join(CLAIMS)}")
    return arguments


def path_of(about: dict[str, Any]) -> Path:
    """Return the file with the results of a processor; its name is vendor, family and model."""
    vendor, *_ = re.findall(r"\w+", about["processor"])
    numbers = re.findall(r"(?:family|model) (\d+)", about["processor"])
    return RESULTS / "processors" / f"{'-'.join([vendor.lower(), *numbers])}.json"


def in_the_last(result: dict[str, Any]) -> dict[str, Any]:
    """Return this processor's results, in which new results replace those of the same claims.

    Each new result also contains the date of its measurement. If the machine has changed since the
    last full run, each new result also describes the current machine. If this processor has no
    results yet, the new results are all of them.
    """
    path = path_of(result["machine"])
    if not path.is_file():
        return result
    last = json.loads(path.read_text(encoding="utf-8"))
    about = {"when": result["when"]}
    if last["machine"] != result["machine"]:
        about["machine"] = result["machine"]
    again = {claim: {**one, **about} for claim, one in result["claims"].items()}
    claims = last["claims"] | again
    order = [*CLAIMS, *(claim for claim in claims if claim not in CLAIMS)]
    seconds = last["seconds"] + result["seconds"]
    versions = {**last["versions"], **{name: v for name, v in result["versions"].items() if v}}
    kept = {claim: claims[claim] for claim in order if claim in claims}
    return {**last, "seconds": seconds, "versions": versions, "claims": kept}


def module(claim: str) -> Any:
    """Import the module of a claim."""
    return importlib.import_module(f"benchmarks.{claim}")


def title(claim: str) -> str:
    """Return the title of a claim: the docstring of its module."""
    return module(claim).__doc__.strip()


def once(claim: str) -> bool:
    """Return whether a claim is measured only in the run with the most threads."""
    return getattr(module(claim), "ONCE", False)


def environment_of(claim: str) -> dict[str, str]:
    """Return the environment variables that the measurement of a claim needs."""
    return getattr(module(claim), "ENVIRONMENT", {})


def run(
    claims: list[str], threads: int, environment: dict[str, str], quick: bool
) -> tuple[dict[str, Any], int]:
    """Measure claims in a new process in which every library uses `threads` threads."""
    counts = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL", "QKV")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks", *claims, "--threads", str(threads)]
        command += ["--child", str(path), *["--quick"] * quick]
        code = subprocess.run(
            command, env=os.environ | counts | environment, cwd=ROOT, check=False
        ).returncode
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found, code


def child(arguments: argparse.Namespace) -> None:
    """Measure claims in this process; write the results after each claim."""
    shrink = QUICK if arguments.quick else 1
    options = {"rounds": 3, "seconds": 0.0} if arguments.quick else {}
    found: dict[str, Any] = {}
    wrong = False
    for claim in arguments.claims:
        begin = time.monotonic()
        print(f"\n{claim}: {title(claim)}", flush=True)
        if claim == "growth":
            found[claim] = {"curves": module(claim).curves(shrink), "threads": arguments.threads}
        else:
            rows = found.setdefault(claim, {"rows": []})["rows"]
            for row in module(claim).rows(shrink):
                try:
                    rows.append(measure(row, arguments.threads, **options))
                    print(*report(rows[-1]), sep="\n", flush=True)
                except ArithmeticError as error:
                    wrong = True
                    print(f"  WRONG, so not timed: {error}", flush=True)
                del row
                gc.collect()  # free the threads and memory that other libraries hold
        print(f"  ({time.monotonic() - begin:.0f} s)", flush=True)
        Path(arguments.child).write_text(json.dumps(found), encoding="utf-8")
    sys.exit(wrong)


def conclusion(found: dict[str, Any]) -> list[str]:
    """Print the number of goals that were met, and the missed goals."""
    goals = [
        (f"{claim} {row['name']}, {row['threads']} threads: {goal['text']}", goal)
        for claim, one in found.items()
        for row in one["rows"]
        for goal in row["goals"]
        if goal["met"] is not None
    ]
    missed = [
        f"  missed: {name} {in_unit(goal['value'], goal['unit'])} ({wanted(goal)})"
        for name, goal in goals
        if not goal["met"]
    ]
    return ["", f"{len(goals) - len(missed)} of {len(goals)} goals met", *missed]


def version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
