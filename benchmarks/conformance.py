"""Write docs/conformance.md: report cards of the attention of qkv and of other libraries.

`make conformance` judges all libraries. `python -m benchmarks.conformance NAME...` judges only the
named libraries, for example `jax`. With the name `page`, the command only writes the page again,
from the last cards.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import in_lines
from benchmarks.measure import processor

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
LAST = ROOT / "benchmarks" / "results" / "conformance.json"
WORDS = ROOT / "benchmarks" / "conformance.head.md"  # the handwritten text before the cards
REPRODUCED = ROOT / "benchmarks" / "reproductions"

# for each card: the column, the target of `qkv conform`, further arguments, and the environment
OURS = ("qkv:attention", ["--gradient", "qkv:attention_grad"])
CARDS: tuple[tuple[str, str, list[str], dict[str, str]], ...] = (
    ("torch math", "torch.sdpa.math", [], {}),
    ("torch flash", "torch.sdpa.flash", [], {}),
    ("torch flex", "torch.flex", ["--seconds", "60"], {}),
    ("ORT Attention", "onnxruntime.Attention", [], {}),
    ("ORT MHA", "onnxruntime.MultiHeadAttention", [], {}),
    ("OpenVINO", "openvino.sdpa", [], {}),
    ("JAX", "jax", ["--seconds", "60"], {}),
    ("MLX", "mlx", [], {}),
    ("Keras", "keras", [], {"KERAS_BACKEND": "torch"}),
    ("qkv native", *OURS, {}),
    ("qkv NumPy", *OURS, {"QKV_BACKEND": "numpy"}),
)
MARKS = {"right": "right", "wrong": "**wrong**", "fragile": "fragile", "refused": "refused"}
MARKS |= {"absent": ""}
# how a library computes, if the judge gives no cause or another cause; keyed by target and feature
_MEAN = "it masks scores with {}, so that a row without visible keys gets a mean of values".format
_BLIND = "rows that see nothing"
CAUSES = {
    ("jax", _BLIND): _MEAN("0.7 times the lowest float"),
    ("keras", _BLIND): _MEAN("0.7 times the lowest float"),
    ("mlx", _BLIND): _MEAN("a finite number"),
    ("onnxruntime.MultiHeadAttention", _BLIND): _MEAN("its documented default, -10000"),
    ("openvino.sdpa", "empty"): "without keys, it returns the result of the previous call",
}


def main() -> None:
    """Judge the functions and write the page."""
    kept: dict[str, Any] = {"cards": {}}
    if sys.argv[1:]:
        kept = json.loads(LAST.read_text("utf-8"))
    chosen = [how for how in CARDS if not sys.argv[1:] or how[1] in sys.argv[1:]]
    with ThreadPoolExecutor(2) as pool:
        cards = [*pool.map(lambda how: judged(*how[1:]), chosen)]
    if cards:
        found = {how[0]: card for how, card in zip(chosen, cards, strict=True)}
        found = kept["cards"] | found
        found = {how[0]: found[how[0]] for how in CARDS if how[0] in found}
        kept = {"when": time.strftime("%Y-%m-%d"), "processor": processor()[0], "cards": found}
        LAST.write_text(in_lines(kept) + "\n", encoding="utf-8")
    last = json.loads(LAST.read_text("utf-8"))
    PAGE.write_text(page(last["cards"], last["when"], last["processor"]), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def judged(target: str, more: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return the report of `qkv conform --json` on a function."""
    print(f"judging {target}", flush=True)
    program = "import sys; from qkv.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "conform", target, "--json", *more],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.strip())
    card: dict[str, Any] = json.loads(done.stdout)
    return trimmed(card | {"target": target})


def trimmed(card: dict[str, Any]) -> dict[str, Any]:
    """Reduce a card to the data of the page; count the cases of each feature and result."""
    cases = [f"{one['feature']}: {one['status']}" for one in card["cases"]]
    findings = {
        feature: {
            "as_if": finding["as_if"],
            **{name: finding["case"][name] for name in ("call", "error", "bound", "message")},
        }
        for feature, finding in card["findings"].items()
    }
    kept = {name: card[name] for name in ("name", "target", "features")}
    return kept | {"findings": findings, "counts": Counter(cases), "total": len(cases)}


def page(cards: dict[str, dict[str, Any]], when: str, where: str) -> str:
    """Return the page: text, judged functions, table, and failures."""
    lines = [WORDS.read_text("utf-8").strip(), "", "## What was judged", ""]
    lines += [f"Built on {when} by `make conformance`, in float32 and half precision, on {where}."]
    lines.append("")
    for column, card in cards.items():
        says = card["name"].partition("(")[2].partition(";")[0]
        lines.append(f"- **{column}**: {says if says != 'numpy' else 'this version of qkv'}, "
                     f"{card['total']} cases")  # fmt: skip
    lines += ["", "## The cards", "", f"| feature | {' | '.join(cards)} |"]
    lines.append(f"| --- |{' --- |' * len(cards)}")
    for feature in next(iter(cards.values()))["features"]:
        marks = [MARKS[card["features"][feature]] for card in cards.values()]
        lines.append(f"| {feature} | {' | '.join(marks)} |")
    lines += ["", "## What is refused", ""]
    lines += differing(cards, "refused") or ["Nothing."]
    lines += ["", "## What is fragile", ""]
    lines += differing(cards, "fragile") or ["Nothing."]
    lines += ["", "## What is wrong", ""]
    lines += differing(cards, "wrong") or ["Nothing."]
    return "\n".join(lines) + "\n"


def differing(cards: dict[str, dict[str, Any]], status: str) -> list[str]:
    """Describe each feature that has the given status.

    If the status is "wrong", each description contains a program that shows the wrong result.
    """
    lines = []
    for column, card in cards.items():
        for feature, finding in card["findings"].items():
            if card["features"][feature] != status or feature == "hidden NaN":
                continue  # the page explains masked NaN values once
            counts = {way: card["counts"].get(f"{feature}: {way}", 0) for way in MARKS}
            how = f"as if {finding['as_if']}" if finding["as_if"] else finding["message"]
            how = CAUSES.get((card["target"], feature), how) if status == "fragile" else how
            how = " ".join(how.split()).rstrip(".") or "no known defect gives this result"
            said = f"**{column}, {feature}** ({counts[status]} of {sum(counts.values())} cases)"
            if status != "wrong":
                if status == "refused":  # an error message, which may be long
                    short = how if len(how) < 160 else f"{how[:160]}…"
                    how = f"`{short.replace('`', '')}`"
                lines.append(f"- {said}: {how}")
                continue
            lines += [f"{said}: {how}.", ""]
            if finding["error"] is not None:
                numbers = (
                    f"error {float(finding['error']):.2g}, bound {float(finding['bound']):.2g}"
                )
                lines += [f"The smallest case: `{finding['call']}`, {numbers}.", ""]
            lines += [*reproduction(card["target"], feature), ""]
    return lines


def reproduction(target: str, feature: str) -> list[str]:
    """Return a program of at most ten lines that does not use qkv, and the program's output."""
    file = REPRODUCED / f"{target}-{feature}.txt".replace(" ", "-")
    if not file.is_file():
        raise SystemExit(
            f"{target} is wrong at {feature}, but {file.relative_to(ROOT)} is missing: write this "
            "program, which must show the wrong result"
        )
    source = file.read_text("utf-8").strip()
    if len(source.splitlines()) > 10:
        raise SystemExit(f"{file.relative_to(ROOT)} has more than ten lines")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    printed = done.stdout.strip().splitlines()
    if done.returncode:
        printed.append(done.stderr.strip().splitlines()[-1])
    return ["```python", source, "```", "", "prints", "", *(f"    {line}" for line in printed)]


if __name__ == "__main__":
    main()
