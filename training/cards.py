"""Functions for the model cards of both included models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.files import replacing
from qkv.learn import last_checkpoint

RUNS = "runs.json"


def heads_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return a Markdown table with a row for each head and a column for each score.

    >>> print(heads_table([{"layer": 0, "head": 1, "first": 0.5}], ["first"]))
    | head | first |
    | --- | --- |
    | 0.1 | 0.50 |
    """
    lines = [f"| head | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for row in rows:
        scores = " | ".join(f"{row[name]:.2f}" for name in names)
        lines.append(f"| {row['layer']}.{row['head']} | {scores} |")
    return "\n".join(lines)


def abouts_of(run: Path) -> list[Mapping[str, Any]]:
    """Return the records of a run and of all earlier runs that it continues, in order.

    The record of a run is in its last checkpoint. The folder of an included model contains a file
    with all records. The list is empty if the folder contains neither a run nor this file. A run
    can start from a model without such records; then the list contains nothing about the training
    of this model.
    """
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        kept = run / RUNS
        return json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else []
    recipe = checkpoint.about["settings"]["recipe"]
    after, beside = recipe.get("after"), recipe.get("beside")
    found = abouts_of(Path(after)) if after else []
    if beside:
        found.append({**abouts_of(Path(beside))[-1], "beside": True})
    return [*found, checkpoint.about]


def keep_runs(abouts: Sequence[Mapping[str, Any]], place: Path) -> None:
    """Write the records of a model's runs into the model's folder, for `abouts_of`.

    If the first run started from a model, the file keeps the name of this model's folder. The file
    does not name the folders of other models or runs.
    """
    kept: list[dict[str, Any]] = []
    for about in abouts:
        recipe = dict(about["settings"]["recipe"])
        after, _ = recipe.pop("after", None), recipe.pop("beside", None)
        if after and not kept:
            recipe["after"] = Path(after).name
        names = ("step", "tokens", "seconds", "beside", "mean")
        row = {name: about[name] for name in names if name in about}
        kept.append(row | {"settings": {"recipe": recipe}})
    with replacing(place / RUNS) as file:
        file.write((json.dumps(kept, indent=1) + "\n").encode())


def recipes(abouts: Sequence[Mapping[str, Any]]) -> str:
    """Describe the recipe of the first run, and the settings that later runs changed.

    The text does not name the folders from which the runs started. Usually, each run continues the
    previous run. If instead a run and the previous run started from the same weights, the text says
    that the two runs were made "in parallel".

    >>> abouts = [{"step": n, "settings": {"recipe": {"rate": n, "seed": 0}}} for n in (1, 2)]
    >>> recipes(abouts)
    'rate 1, seed 0. Then 2 steps from there, with these changes: rate 2.'
    """
    first, *later = (about["settings"]["recipe"] for about in abouts)
    return f"{_named(first)}." + "".join(
        f" {_begun(about)}, with these changes: "
        f"{_named({name: now[name] for name in now if now[name] != first.get(name)})}."
        for about, now in zip(abouts[1:], later, strict=True)
    )


def _begun(about: Mapping[str, Any]) -> str:
    steps = f"{about['step']:,} steps"
    if about.get("beside"):
        return f"In parallel, another run took {steps} from the same start as the previous run"
    return f"Then {steps} from there"


def _named(settings: Mapping[str, Any]) -> str:
    shown = (name for name in settings if name not in ("after", "beside"))
    return ", ".join(f"{name} {settings[name]}" for name in shown)
