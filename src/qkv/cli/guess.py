"""`qkv guess`: the words that a model guesses, and their chances."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from qkv.cli.common import debug_option, json_option, model_option
from qkv.cli.view_command import present

if TYPE_CHECKING:
    from qkv.see import View

_HEAD = re.compile(r"(\d+)\.(\d+)")


def _heads(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> list[tuple[int, int]]:
    """LAYER.HEAD as pairs."""
    found = [(one, _HEAD.fullmatch(one)) for one in given]
    for one, match in found:
        if match is None:
            raise click.BadParameter(f"{one}: write LAYER.HEAD, as 0.3")
    return [(int(match[1]), int(match[2])) for _, match in found if match is not None]


@click.command()
@click.argument("text")
@click.option("--top", type=click.IntRange(1), default=5, help="How many words. Default: 5.")
@click.option(
    "--hide",
    multiple=True,
    metavar="WORD",
    help="Guess once more with WORD out of sight; may be given repeatedly.",
)
@click.option(
    "--ablate",
    multiple=True,
    metavar="LAYER.HEAD",
    callback=_heads,
    help="Guess once more without this head, as 0.3; may be given repeatedly.",
)
@model_option
@json_option
@debug_option
def guess(
    text: str,
    top: int,
    hide: tuple[str, ...],
    ablate: list[tuple[int, int]],
    model: str | None,
    as_json: bool,
) -> None:
    """The likeliest words where TEXT has [MASK], or, of a decoder, behind TEXT.

    What is given with --hide and --ablate is gone in a second run, whose words stand beside those
    of the first.
    """
    from qkv import see

    def view() -> View:
        try:
            return see.guess(text, model=model, top_k=top, hide=hide, ablate=ablate)
        except ValueError as error:  # it names an argument where an option was typed
            said = str(error).removeprefix("predict: ").replace("top_k is", "--top is")
            raise ValueError(said) from error

    present(view, {}, as_json=as_json, open_page=False)
