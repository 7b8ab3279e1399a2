"""`qkv show`: one head's weights over a text."""

from __future__ import annotations

from typing import Any

import click

from qkv.cli.common import Output, present, view_options


@click.command()
@click.argument("text")
@view_options()
def show(
    text: str,
    layer: int | None,
    head: int | None,
    model: str | None,
    stretch: bool,
    **output: Any,
) -> None:
    """One head's weights over TEXT, and how far attention moved each word."""
    from qkv.see import views

    present(
        lambda: views.show(text, model=model, layer=layer, head=head, stretch=stretch),
        Output(**output),
    )
