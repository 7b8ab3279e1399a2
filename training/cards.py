"""What the cards of both models that ship have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.files import replacing
from qkv.learn import last_checkpoint

RUNS = "runs.json"


def heads_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """A row for each head, with its scores of these names.

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
    """What the last checkpoint says of a run, behind what those say that it went on from.

    The folder of a model that ships has this in a file. Empty where the folder holds neither a run
    nor that file; what is no run before the first one is left out.
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
    """Write what the runs of a model say into its folder, where `abouts_of` finds it.

    Of the folders that they went on from it has the name of the first alone, that of a model.
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
    """The recipe of the first run, and what was another in those that go on from it.

    The folder that a run went on from is left out. A run that is "beside" the one before began
    where that one began.

    >>> abouts = [{"step": n, "settings": {"recipe": {"rate": n, "seed": 0}}} for n in (1, 2)]
    >>> recipes(abouts)
    'rate 1, seed 0. Then 2 steps from there, where it is another: rate 2.'
    """
    first, *later = (about["settings"]["recipe"] for about in abouts)
    return f"{_named(first)}." + "".join(
        f" {_begun(about)}, where it is another: "
        f"{_named({name: now[name] for name in now if now[name] != first.get(name)})}."
        for about, now in zip(abouts[1:], later, strict=True)
    )


def _begun(about: Mapping[str, Any]) -> str:
    steps = f"{about['step']:,} steps"
    if about.get("beside"):
        return f"Beside these, {steps} from where they began"
    return f"Then {steps} from there"


def _named(settings: Mapping[str, Any]) -> str:
    shown = (name for name in settings if name not in ("after", "beside"))
    return ", ".join(f"{name} {settings[name]}" for name in shown)
