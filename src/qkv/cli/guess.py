"""`qkv guess`: the words that a model guesses, and their chances."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from qkv.cli.common import (
    ablate_option,
    debug_option,
    hide_option,
    json_option,
    model_option,
)
from qkv.cli.view_command import present

if TYPE_CHECKING:
    from qkv.see import Stories, Story, View


@click.command()
@click.argument("text", required=False)
@click.option("--top", type=click.IntRange(1), default=5, help="How many words. Default: 5.")
@hide_option("Guess once more")
@ablate_option("Guess once more")
@model_option
@json_option
@debug_option
@click.pass_context
def guess(
    context: click.Context,
    text: str | None,
    top: int,
    hide: tuple[str, ...],
    ablate: list[tuple[int, int]],
    model: str | None,
    as_json: bool,
) -> None:
    """The likeliest words where TEXT has [MASK] or _, or, of a decoder, behind TEXT.

    A gap is also "?" behind a blank and before more of TEXT: "The oak is a small ?."

    What is given with --hide and --ablate is gone in a second run, whose words stand beside those
    of the first. Without TEXT: a sentence chosen because its guess changes for a plain reason.
    """
    from qkv import see

    asked: str | Story
    if text is not None:
        asked, rest = text, ""
    elif model or os.environ.get("QKV_MODEL") or hide or ablate:
        raise click.UsageError(
            "Missing argument 'TEXT': only books has sentences of its own, without --hide, "
            "--ablate, --model and QKV_MODEL",
            context,
        )
    else:
        kept = see.stories()
        asked, rest = kept.told[0], _others(kept)

    def view() -> View:
        try:
            return see.guess(
                asked, model=model, top_k=top, hide=tuple(dict.fromkeys(hide)), ablate=ablate
            )
        except ValueError as error:  # it names an argument where an option was typed
            said = str(error).removeprefix("predict: ").replace("top_k is", "--top is")
            raise ValueError(said) from error

    present(view, {}, as_json=as_json, open_page=False)
    if rest and not as_json:
        click.echo(rest)


def _others(kept: Stories) -> str:
    """How the first one came about, and what to type for the others."""
    others = [
        " ".join(
            [
                f'  qkv guess "{one.sentence}"',
                *(f"--hide {word}" for word in one.hide),
                *(f"--ablate {layer}.{head}" for layer, head in one.ablate),
            ]
        )
        for one in kept.told[1:]
    ]
    heads = [(one.sentence, *one.ablate[0]) for one in kept.told if one.ablate]
    walks = [f'  qkv walk "{text}" --layer {layer} --head {head}' for text, layer, head in heads]
    return "\n".join(
        [
            "",
            f"Chosen, with the next ones, out of {kept.searched:,} sentences that were searched:",
            *others,
            *(["", "Such a head step by step, and on to the word:"] if walks else []),
            *walks[:1],
        ]
    )
