"""`qkv play`: a page with a model inside."""

from __future__ import annotations

import click

from qkv.cli.common import ablate_option, debug_option, hide_option, model_option, writable
from qkv.cli.view_command import present

NAME = "qkv-play.html"


@click.command()
@click.argument("text", required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=writable(".html", ".htm"),
    default=NAME,
    help=f"Where to write the page. Default: {NAME}.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@hide_option("Open the page")
@ablate_option("Open the page")
@model_option
@debug_option
def play(
    text: str | None,
    output: str,
    open_page: bool,
    hide: tuple[str, ...],
    ablate: list[tuple[int, int]],
    model: str | None,
) -> None:
    """A page with a model inside, which computes TEXT, and what is changed in it, as it is typed.

    One file, which needs no network. Without --model both models that come with qkv are in it, in
    at most 16 MB: one names missing words, the other writes on. Any encoder that names masked words
    and most decoders can be given.
    """
    from qkv import see

    present(
        lambda: see.play(text, model=model, hide=hide, ablate=ablate),
        {"html": output},
        as_json=False,
        open_page=open_page,
    )
