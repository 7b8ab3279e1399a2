"""Write docs/benchmarks.md and its pictures from all results: `python -m benchmarks.page`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.common import errors_in_words, in_unit, of_memory, rate_in_words, verdict, wanted
from benchmarks.growth import exponent
from benchmarks.measure import time_in_words

ROOT = Path(__file__).resolve().parents[1]
PROCESSORS = ROOT / "benchmarks" / "results" / "processors"  # a file for each processor
NOTES = ROOT / "benchmarks" / "notes.md"  # the text that explains missed goals
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"

# Colours that colour-blind readers can distinguish, on white and on black.
LINES = {
    "qkv": ("#0b62c4", "#62b0ff", "o", "-"),
    "qkv, window (512, 0)": ("#00806a", "#2fd0b0", "s", "-"),
    "qkv on NumPy": ("#7d5bbe", "#bca4f5", "^", "-"),
    "torch": ("#c2410c", "#ff9a66", "D", "--"),
    "numpy": ("#555b66", "#b4bac5", "v", "--"),
}
LABELS = {"numpy": "plain NumPy"}
UNITS = {
    "seconds": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")),
}


def main() -> None:
    """Write the page and the pictures."""
    results = kept()
    PAGE.write_text(page(results, notes()), encoding="utf-8")
    for result in with_growth(results):
        for dark in (False, True):
            draw(result["claims"]["growth"]["curves"], IMAGES / picture(dark), dark=dark)
    print(f"wrote {PAGE.relative_to(ROOT)}")


def kept() -> list[dict[str, Any]]:
    """Read the results of every processor; the newest results are the first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in PROCESSORS.glob("*.json")]
    return sorted(found, key=lambda result: result["when"], reverse=True)


def with_growth(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest results that contain the curves of time and memory, in a list."""
    return [result for result in results if "growth" in result["claims"]][:1]


def notes() -> str:
    """Read the handwritten notes about the numbers, if the file exists."""
    return NOTES.read_text(encoding="utf-8").strip() if NOTES.is_file() else ""


def picture(dark: bool) -> str:
    """Return the name of a picture's file."""
    return f"growth-{'dark' if dark else 'light'}.svg"


def page(results: list[dict[str, Any]], notes: str) -> str:
    """Return the whole page as Markdown."""
    if not results:
        repeat = REPEAT.format(minutes="about ten minutes")
        return "\n".join([INTRODUCTION, "No full run has been kept yet.\n", HOW, repeat])
    parts = [
        INTRODUCTION,
        "## Goals and results\n\n"
        "A relative speed of 2x means that `qkv` takes half the time of the peer. If there are\n"
        "several ways to use the peer, the fastest is named in brackets. The peak is the rate of\n"
        "multiply-adds in registers, and the read rate is the rate of reading a large array; both\n"
        "were measured between the timed rounds. Goals for processors with AMX are listed only\n"
        "for these processors.\n",
    ]
    for result in results:
        parts += [f"### {result['machine']['processor']}\n", machine(result), goals(result)]
    if notes:
        parts += ["## What limits the speed\n", notes + "\n"]
    for result in with_growth(results):
        parts += ["## How time and memory grow\n"]
        parts += [f"Measured on {result['machine']['processor']}.\n"]
        parts += [growth(result["claims"]["growth"])]
    parts += ["## All times and errors\n", DETAILS]
    for result in results:
        parts += [f"### Times on {result['machine']['processor']}\n"]
        for found in result["claims"].values():
            if found["rows"]:
                heading, _, more = found["title"].partition("\n\n")
                parts += [f"#### {heading.removesuffix('.')}\n", *[f"{more}\n"] * bool(more)]
                parts += [details(found["rows"])]
                parts += [shares(row) for row in found["rows"] if row.get("parts")]
                if "when" in found:
                    parts += [f"Measured on {found['when']}{elsewhere(found)}.\n"]
    parts += [HOW, REPEAT.format(minutes=minutes(max(one["seconds"] for one in results)))]
    return "\n".join(parts)


INTRODUCTION = """\
# Benchmarks

This page compares the speed of `qkv.attention` with that of other libraries and with the machine's
peak, for attention alone and for whole models. All numbers in the tables come from `make bench`.

- Each implementation was **verified against the formula, or the model, in float64** before it was
  timed. For attention, up to 256 queries of each head were verified. The tables show the
  largest error.
- The implementations in one table row ran **alternately in one process**. A time is the median of
  at least nine rounds; for models, whose rounds take up to a minute, of three or five rounds.
  Compare only times in the same row, since the speed of a machine changes over time.
- Each peer had its fastest configuration: inputs converted to its preferred layout before
  timing, onnxruntime with bound inputs and outputs, OpenVINO compiled for latency, with shared
  outputs and with the precision of the row. If torch has several ways to compute a result, the
  fastest counts. `qkv` was called as a user would call it, and allocated its result each time.
- The peers come from PyPI. Hugging Face's server text-embeddings-inference was not measured,
  because it is not on PyPI.
- The exact results come from plain NumPy in `benchmarks/`, or from transformers or
  sentence-transformers in float64, not from the code that was timed. The exceptions are
  scans of heads and scores of edges: `qkv` computes their exact results in float64, and the other
  library confirms these results.
"""

DETAILS = """\
Times are medians. "Of limit" is the share of the machine's peak; if reading limits the speed, it
is the share of the machine's read rate. `onnxruntime` is onnxruntime's `MultiHeadAttention`
operator, `GQA` its `GroupQueryAttention` operator, and `opset 24` ONNX's `Attention` operator.
`openvino` is OpenVINO's SDPA operator, and `numpy` is attention as most tutorials write it in
NumPy. Shapes are `(B, H, L, d)`. For decoding, shapes are `(B, Hq over Hkv, L x S, d)`: Hq query
heads share Hkv key heads, and L queries attend to S keys; `heads as queries` treats the query
heads of a group as queries of one head, so that the keys are read once. `chunks` computes a window
in chunks of queries, each with only the keys that it sees. `compiled` means `torch.compile`, which
needs a C++ compiler. In rows of int8, `onnxruntime` is a model made by `quantize_dynamic`, with a
scale for each channel. `openvino` is a model made by NNCF's `quantize`, which calibrates on 100
other texts, and `int8 weights` is a model made by NNCF's `compress_weights`. Both OpenVINO models
compute the other operations in bfloat16 if the processor supports it. The cosines compare the
vectors of all texts with those of `qkv` in float32. llama.cpp is llama-cpp-python, compiled for
AVX-512 without AMX, because its build with AMX crashes. The perplexity was measured on 20,000
tokens of this documentation, in parts of 512 tokens.
"""

HOW = "## How to repeat it\n"

REPEAT = """\
```console
$ make bench
$ make bench ONLY="prefill decode" THREADS=1
$ make bench ONLY=llama AGAIN=1
$ make bench QUICK=1
```

The first command measures everything, which takes {minutes}. The second command measures only two
claims. The third command measures one claim again, and replaces the numbers of this processor. The
last command only checks that everything runs, with lengths divided by eight. `make bench` makes its
own environment with torch, transformers, onnxruntime, OpenVINO, NNCF and CTranslate2 (1.9 GB), and
compiles llama-cpp-python; if this compilation fails, the tables say that llama.cpp is missing. A
full run, or a new measurement of one claim, replaces only the results of the processor that it runs
on: a file in `benchmarks/results/processors/`, named after vendor, family and model. Then the
command writes this page from the files of all processors. The models read texts from WordNet
(Debian's `wordnet-base`). The folder `benchmarks/` has one file for each claim. `qkv bench` needs
none of these libraries: in 15 seconds, it compares a few shapes with plain NumPy.
"""


def minutes(seconds: float) -> str:
    """Format a time in whole minutes."""
    return f"{max(1, round(seconds / 60))} minutes here"


def table(heading: list[str], rows: list[list[str]], words: int = 1) -> str:
    """Return a Markdown table: the columns of numbers are right-aligned.

    The first columns contain words; `words` is the number of these columns.
    """
    lines = [heading, ["---"] * words + ["---:"] * (len(heading) - words), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine(result: dict[str, Any]) -> str:
    """Return a table of the processor, the system, the versions and the peak rates."""
    about = result["machine"]
    limits: dict[tuple[str, int], list[float]] = {}
    for found in result["claims"].values():
        for row in found["rows"] if "machine" not in found else ():
            for name, rate in row["limits"].items():
                limits.setdefault((name, row["threads"]), []).append(rate)
    lines = [
        ["processor", f"{about['processor']}, {about['cores']} cores"],
        ["instructions", " ".join(about["flags"])],
        ["system", f"{about['system']}, Python {about['python']}"],
        ["versions", ", ".join(f"{name} {v}" for name, v in result["versions"].items() if v)],
        ["backend", about["backend"]],
    ]
    for (name, threads), rates in sorted(limits.items(), key=lambda one: (one[0][0], one[0][1])):
        what = "read rate" if name == "reading" else f"peak, {name}"
        middle = sorted(rates)[len(rates) // 2]
        lines.append([f"{what}, {count(threads)}", rate_in_words(name, middle)])
    lines.append(["when", result["when"]])
    return "\n".join(f"| {a} | {b} |" for a, b in [["", ""], ["---", "---"], *lines]) + "\n"


def elsewhere(found: dict[str, Any]) -> str:
    """Name the machine of a claim, if it differs from the machine of the other claims."""
    if "machine" not in found:
        return ""
    about = found["machine"]
    return f" on another machine: {about['processor']}, {about['cores']} cores, {about['system']}"


def count(threads: int) -> str:
    """Format a number of threads."""
    return f"{threads} thread{'s' * (threads != 1)}"


def pairs(rows: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """Group rows by their name, then by their number of threads."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["name"], {})[row["threads"]] = row
    return found


def goals(result: dict[str, Any]) -> str:
    """Return the table of goals and their results for each number of threads."""
    counts = sorted({r["threads"] for c in result["claims"].values() for r in c["rows"]})
    lines = []
    for claim, found in result["claims"].items():
        for name, by_threads in pairs(found["rows"]).items():
            first = next(iter(by_threads.values()))
            work = f"{claim}: {name}"
            for number, goal in enumerate(first["goals"]):
                if goal.get("elsewhere"):  # earlier results have no such entry
                    continue
                cells = []
                for threads in counts:
                    row = by_threads.get(threads)
                    one = row["goals"][number] if row else None
                    cells.append("" if one is None else outcome(one))
                lines.append([work, goal["text"], wanted(goal), *cells])
                work = ""
    return table(["work", "what", "wanted", *map(count, counts)], lines, 3)


def outcome(goal: dict[str, Any]) -> str:
    """Format a result, in bold if the goal was missed."""
    if goal["value"] is None:
        return verdict(goal)
    value = in_unit(goal["value"], goal["unit"])
    if goal.get("peer"):
        value += f" ({goal['peer']})"
    if goal["met"] is False:
        return f"**{value}, missed**"
    return value


def details(rows: list[dict[str, Any]]) -> str:
    """Return a table of the times that were measured for one claim."""
    counts = sorted({row["threads"] for row in rows})
    heading = ["work", "way"]
    heading += [f"{name}{count(n)}" for n in counts for name in ("", "of limit, ")]
    heading.append("error")
    lines = []
    for name, by_threads in pairs(rows).items():
        ways: dict[str, None] = {}
        for row in by_threads.values():
            ways |= dict.fromkeys(row["ways"])
        for number, way in enumerate(ways):
            cells, error = [], 0.0
            for threads in counts:
                one = by_threads.get(threads, {"ways": {}})["ways"].get(way)
                cells.append("" if one is None else time_in_words(one["seconds"]))
                cells.append("" if not one or "share" not in one else f"{one['share']:.0%}")
                error = max(error, one["error"] if one else 0)
            last = errors_in_words(error, one or {})
            lines.append(["" if number else name, way, *cells, last])
        for way, reason in dict(next(iter(by_threads.values())).get("missing", ())).items():
            lines.append(["", way, reason, *[""] * (2 * len(counts))])
        for way in next(iter(by_threads.values()))["memory"]:
            cells = []
            for threads in counts:
                row = by_threads.get(threads)
                cells += ["" if row is None else in_unit(row["memory"][way], "B"), ""]
            lines.append(["", of_memory(way), *cells, ""])
    empty = [k for k in range(2, len(heading)) if not any(line[k] for line in lines)]
    keep = [k for k in range(len(heading)) if k not in empty]
    return table([heading[k] for k in keep], [[line[k] for k in keep] for line in lines], 2)


def shares(row: dict[str, Any]) -> str:
    """Return a sentence that lists which share of qkv's time each part takes."""
    listed = ", ".join(f"{name} {share:.0%}" for name, share in row["parts"].items())
    return f"How `qkv` spends its time ({row['name']}, {count(row['threads'])}): {listed}.\n"


def growth(found: dict[str, Any]) -> str:
    """Return the section about growth: pictures, exponents and longest texts."""
    curves = found["curves"]
    lines = []
    for way, points in curves.items():
        last = points[-1]
        slopes = [exponent(points, name) for name in ("seconds", "bytes")]
        lines.append(
            [
                LABELS.get(way, way),
                *("too small to see" if s is None else f"{s:.2f}" for s in slopes),
                f"{last['length']:,}",
                time_in_words(last["seconds"]),
                in_unit(last["bytes"], "B"),
            ]
        )
    images = "\n".join(
        f"```{{image}} images/{picture(dark)}\n:class: only-{'dark' if dark else 'light'}\n"
        f":alt: {ALT}\n```\n"
        for dark in (False, True)
    )
    text = (
        f"One head of size 64, {count(found['threads'])}, each call in a separate process.\n"
        "Memory is the peak memory of a call, excluding its inputs. An exponent is the slope of\n"
        "the last four points in a log-log plot: with an exponent of 2, twice the length takes\n"
        "four times as much. A curve ends where the next measurement would take more than 20 s\n"
        "or 6 GB.\n"
    )
    heading = ["", "exponent, time", "exponent, memory", "longest", "time", "memory"]
    return "\n".join([text, images, table(heading, lines)])


ALT = (
    "Two log-log plots: time and memory against the number of tokens, with a line for each "
    "implementation. The table below lists the exponents and the longest texts."
)


def in_units(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Format a power of ten in the largest unit in which it is a whole number."""
    size, unit = next((one for one in units if value >= one[0] * 0.999), units[-1])
    return f"{value / size:g} {unit}"


def draw(curves: dict[str, list[dict[str, float]]], path: Path, *, dark: bool) -> None:
    """Plot times and memory against length on logarithmic axes, for a light or a dark page."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    paper, ink, faint = (
        ("#131416", "#e6e9ee", "#3a404b") if dark else ("#ffffff", "#1c2128", "#d6dae0")
    )
    settings = {
        "font.size": 10,
        "font.family": "DejaVu Sans",
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": faint,
        "xtick.color": ink,
        "ytick.color": ink,
        "svg.hashsalt": "qkv",  # a fixed salt, so that each run writes the same file
    }
    with plt.rc_context(settings):
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
        for axis, name, least in zip(axes, ("seconds", "bytes"), (0, 1e5), strict=True):
            for way, points in curves.items():
                *colours, marker, style = LINES[way]
                slope = exponent(points, name)
                label = LABELS.get(way, way)
                axis.loglog(
                    [p["length"] for p in points],
                    [max(p[name], least) for p in points],
                    color=colours[dark],
                    marker=marker,
                    markersize=5,
                    linestyle=style,
                    linewidth=1.8,
                    label=label if slope is None else f"{label}: {slope:.2f}",
                )
            lengths = sorted({int(p["length"]) for points in curves.values() for p in points})
            axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
            axis.minorticks_off()
            axis.set_xlabel("tokens")
            units = UNITS[name]
            axis.yaxis.set_major_formatter(lambda value, _, units=units: in_units(value, units))
            axis.grid(True, color=faint, linewidth=0.7)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(
                title="with its exponent",
                loc="upper left",
                alignment="left",
                fontsize=8.5,
                title_fontsize=8.5,
                facecolor=paper,
                edgecolor="none",
                framealpha=1,
            )
        axes[0].set_title("Time", loc="left", fontsize=11)
        axes[1].set_title("Memory above the inputs", loc="left", fontsize=11)
        for axis in axes:  # space for the legend
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (high / low) ** 0.5)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
