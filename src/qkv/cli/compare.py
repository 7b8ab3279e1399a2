"""`qkv compare`: a word in two texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qkv.cli.view_command import pieces_option, view_command

if TYPE_CHECKING:
    from qkv.see import View


@click.command()
@click.argument("text_a")
@click.argument("text_b")
@click.option("--word", help="A word that both texts have. Default: the content word they share.")
@pieces_option
@view_command()
def compare(text_a: str, text_b: str, **options: Any) -> View:
    """How alike a word is in TEXT_A and in TEXT_B, and what it looks at in each."""
    from qkv import see

    view: View = see.compare(text_a, text_b, **options)
    return view
