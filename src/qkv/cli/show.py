"""`qkv show`: one head's weights over a text."""

from __future__ import annotations

from typing import Any

import click

from qkv.cli.common import Output, pieces_option, present, view_options


@click.command()
@click.argument("text")
@click.option("--from", "query", metavar="WORD", help="Rank heads by the links of this word ...")
@click.option("--to", "key", metavar="WORD", help="... or to this one; both: by this one link.")
@pieces_option
@view_options()
def show(
    text: str,
    query: str | None,
    key: str | None,
    pieces: bool,
    layer: int | None,
    head: int | None,
    model: str | None,
    stretch: bool,
    **output: Any,
) -> None:
    """One head's weights over TEXT, and how far attention moved each word."""
    from qkv import see

    present(
        lambda: see.show(
            text,
            model=model,
            layer=layer,
            head=head,
            query=query,
            key=key,
            pieces=pieces,
            stretch=stretch,
        ),
        Output(**output),
    )
