"""`qkv replay`: a head through training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from qkv.cli.common import debug_option, json_option, writable
from qkv.cli.view_command import KINDS, open_option, present, stretch_option


@click.command()
@click.argument("run", metavar="DIR")
@click.argument("text")
@click.option("--layer", type=int, help="Which layer. Default: the one that learned most.")
@click.option("--head", type=int, help="Which head. Default: the one that learned most.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=writable(*KINDS),
    help="Write the view as well: a page (.html), or its picture (.png, .svg).",
)
@stretch_option
@json_option
@open_option
@debug_option
def replay(
    run: str, text: str, output: str | None, as_json: bool, open_page: bool, **options: Any
) -> None:
    """What a head looks at in TEXT, at each snapshot of the training run in DIR."""
    from qkv import see

    files = {} if output is None else {KINDS[Path(output).suffix.lower()]: output}
    present(lambda: see.replay(run, text, **options), files, as_json=as_json, open_page=open_page)
