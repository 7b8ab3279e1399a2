"""`qkv compare`: one word in two texts."""

from __future__ import annotations

from typing import Any

import click

from qkv.cli.common import Output, pieces_option, present, view_options


@click.command()
@click.argument("text_a")
@click.argument("text_b")
@click.option("--word", help="A word that both texts have. Default: the content word they share.")
@pieces_option
@view_options()
def compare(
    text_a: str,
    text_b: str,
    word: str | None,
    pieces: bool,
    layer: int | None,
    head: int | None,
    model: str | None,
    stretch: bool,
    **output: Any,
) -> None:
    """How alike a word is in TEXT_A and in TEXT_B, and what it looks at in each."""
    from qkv import see

    present(
        lambda: see.compare(
            text_a,
            text_b,
            word=word,
            model=model,
            layer=layer,
            head=head,
            pieces=pieces,
            stretch=stretch,
        ),
        Output(**output),
    )
