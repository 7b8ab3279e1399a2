"""Write the roles of a model's heads into its folder: `python -m training.role_file FOLDER`.

The page of `qkv.play` shows the roles in its map. The model card lists each head's roles with their
mean weights; for each head, the file contains the role with the largest mean weight.
`training.roles` measures the roles, and `training.ship` writes the card and this file:

    {"1.0": ["next", 0.87], "3.2": ["hidden adjective to noun", 0.42]}
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from qkv.files import replacing
from qkv.see.page.play import ROLES
from training import command

PLACE = Path(__file__).resolve().parents[1] / "src" / "qkv" / "data" / "books"
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
    rows = ",\n".join(f" {json.dumps(head)}: {json.dumps(own)}" for head, own in found.items())
    with replacing(folder / ROLES) as file:
        file.write(f"{{\n{rows}\n}}\n".encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file of one model."""
    parser = argparse.ArgumentParser(prog="python -m training.role_file", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=PLACE,
        help="folder of the model (default: the included encoder)",
    )
    keep(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    command(main)
