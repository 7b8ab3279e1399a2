"""`qkv show`: one head of one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qkv.cli.view_command import pieces_option, view_command

if TYPE_CHECKING:
    from qkv.see import View


@click.command()
@click.argument("text")
@click.option("--from", "query", metavar="WORD", help="Rank heads by the links of this word ...")
@click.option("--to", "key", metavar="WORD", help="... or to this one; both: by this one link.")
@pieces_option
@view_command()
def show(text: str, **options: Any) -> View:
    """One head's weights over TEXT, and how far attention moved each word."""
    from qkv import see

    return see.show(text, **options)
