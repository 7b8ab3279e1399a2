"""`qkv replay`: one head through training."""

from __future__ import annotations

from pathlib import Path

import click

from qkv.cli.common import (
    Output,
    debug_option,
    json_option,
    open_option,
    present,
    stretch_option,
    writable,
)

_KINDS = {".html": "html", ".htm": "html", ".svg": "svg", ".png": "png"}


def _output(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    return None if path is None else writable(path, *_KINDS)


@click.command()
@click.argument("run", metavar="DIR")
@click.argument("text")
@click.option("--layer", type=int, help="Which layer. Default: the one that learned most.")
@click.option("--head", type=int, help="Which head. Default: the one that learned most.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=_output,
    help="Write the view as well: a page (.html), or its picture (.png, .svg).",
)
@stretch_option
@json_option
@open_option
@debug_option
def replay(
    run: str,
    text: str,
    layer: int | None,
    head: int | None,
    output: str | None,
    stretch: bool,
    as_json: bool,
    open_page: bool,
) -> None:
    """What a head looks at in TEXT, at each snapshot of the training run in DIR."""
    from qkv import see

    kind = None if output is None else _KINDS[Path(output).suffix.lower()]
    present(
        lambda: see.replay(run, text, layer=layer, head=head, stretch=stretch),
        Output(
            as_json,
            html=output if kind == "html" else None,
            svg=output if kind == "svg" else None,
            png=output if kind == "png" else None,
            open_page=open_page,
        ),
    )
