"""Write the roles of a model's heads into its folder: `python -m training.role_file FOLDER`.

The page of `qkv.play` shows the roles in its map. The model card lists each head's roles with their
mean weights; for each head, the file contains the role with the largest mean weight.
`training.roles` measures the roles, and `training.ship` writes the card and this file:

    {"1.0": ["next", 0.87], "3.2": ["hidden adjective to noun", 0.42]}

`python -m training.role_file --measure` applies the rule of `training.roles` to the models whose
folders have no such card, and writes their roles to one file beside the page's code. This takes
half an hour. Many heads of a decoder attend mostly to the first token of a text. So for a head with
several roles, the file prefers *previous*, *next*, *same* or *induction*. If the head has none of
these roles, the file has the role with the largest mean weight.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import qkv
from qkv.files import replacing
from qkv.see.page.play import ROLES
from training import command
from training.roles import INDUCTION, OF_POSITIONS, roles
from training.wordnet import read

PLACE = Path(__file__).resolve().parents[1] / "src" / "qkv" / "data" / "books"
MEASURED = Path(__file__).resolve().parents[1] / "src" / "qkv" / "see" / "page" / ROLES
MODELS = ("books-decoder", "smollm2")
_ROW = re.compile(r"^\| (\d+\.\d+) \| ([a-z][a-z ]*) (\d\.\d\d)[ ,]", re.MULTILINE)


def roles_in(card: str) -> dict[str, tuple[str, float]]:
    """Return the first role of each head in a model card, and the weight of this role.

    In the card's table, the row of each head lists the head's roles, the largest weight first.

    >>> roles_in('''| head | roles |
    ... | --- | --- |
    ... | 1.0 | next 0.87 |
    ... | 2.3 | hidden article to noun 0.86, article to noun 0.68 |''')
    {'1.0': ('next', 0.87), '2.3': ('hidden article to noun', 0.86)}
    """
    return {head: (name, float(figure)) for head, name, figure in _ROW.findall(card)}


def keep(folder: Path) -> None:
    """Write the roles from the model card in `folder` to a file in the same folder."""
    found = roles_in((folder / "README.md").read_text(encoding="utf-8"))
    rows = [f" {json.dumps(head)}: {json.dumps(own)}" for head, own in found.items()]
    with replacing(folder / ROLES) as file:
        file.write(f"{{\n{_lines(rows)}\n}}\n".encode())


def chief(own: dict[str, float]) -> tuple[str, float]:
    """Return the role that the page shows for a head with these roles, and its mean weight.

    >>> chief({"first": 0.75, "induction": 0.5, "previous": 0.41, "noun to article": 0.6})
    ('induction', 0.5)
    >>> chief({"first": 0.75, "noun to article": 0.8})
    ('noun to article', 0.8)
    """
    elsewhere = {name: own[name] for name in own if name in (*OF_POSITIONS, INDUCTION)}
    name, mean = max((elsewhere or own).items(), key=lambda one: one[1])
    return name, round(mean, 2)


def measure() -> None:
    """Measure the roles of MODELS, and write them to the file MEASURED."""
    parts = []
    for model in MODELS:
        rows, _ = roles(qkv.load(model), read())
        found = {f"{row['layer']}.{row['head']}": row["roles"] for row in rows if row["roles"]}
        lines = [f"  {json.dumps(head)}: {json.dumps(chief(own))}" for head, own in found.items()]
        parts.append(f" {json.dumps(model)}: {{\n{_lines(lines)}\n }}")
    with replacing(MEASURED) as file:
        file.write(f"{{\n{_lines(parts)}\n}}\n".encode())


def _lines(lines: list[str]) -> str:
    return ",\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file of one model, or the file of the measured models."""
    parser = argparse.ArgumentParser(prog="python -m training.role_file", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=PLACE,
        help="folder of the model (default: the included encoder)",
    )
    parser.add_argument("--measure", action="store_true", help="measure models without such a card")
    given = parser.parse_args(arguments)
    if given.measure:
        measure()
    else:
        keep(given.folder)


if __name__ == "__main__":
    command(main)
