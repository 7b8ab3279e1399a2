"""`qkv generate`, which continues texts."""

import os
from itertools import chain, islice
from typing import Any

import click

from qkv.cli._options import cache_dtype_option, dtype_option, json_option, writer_option
from qkv.cli._output import print_json, write


@click.command()
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@writer_option
@click.option(
    "--max-new-tokens",
    type=int,
    help="The maximum number of new tokens. Default: 64, or fewer if the model's limit is lower.",
)
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    help="Draw tokens at random; a higher temperature makes unlikely tokens likelier. Default: 0, "
    "which always takes the likeliest token. --top-k, --top-p and --seed need a temperature above "
    "0.",
)
@click.option("--top-k", type=int, help="Draw from the K likeliest tokens.")
@click.option(
    "--top-p",
    type=float,
    help="Draw from the likeliest tokens whose probabilities add up to this number.",
)
@click.option("--seed", type=int, help="The random seed; the same seed draws the same tokens.")
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be repeated."
)
@dtype_option
@cache_dtype_option
@json_option
def generate(
    prompts: tuple[str, ...],
    model: str | None,
    dtype: str | None,
    cache_dtype: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print PROMPT, then the model's continuation, word by word.

    The decoder that comes with qkv was trained on novels. Several prompts run in one batch. The
    output of an encoder-decoder model starts on a new line.

    \b
        qkv generate "once upon a"
    """  # noqa: D301 (\b tells click not to wrap the next line)
    from qkv.models import load
    from qkv.models.files.find import WRITER

    chosen = os.environ.get("QKV_MODEL")
    used = load(model or (None if chosen else WRITER), dtype=dtype)
    if not model and chosen and not used.generates:
        raise click.UsageError(
            f"QKV_MODEL is {chosen:.200}, which does not predict the next token: unset it "
            f"to use {WRITER}, or choose a decoder with --model"
        )
    used.cache_dtype = cache_dtype
    if as_json:
        texts = [
            {"prompt": new.prompt, "text": new, "ids": new.ids, "finish_reason": new.finish_reason}
            for new in used.generate(list(prompts), **options)
        ]
        print_json({"model": used.name, "texts": texts})
    else:
        between = "" if used.continues else "\n"
        # The first text is printed token by token. The other texts are printed when all are done.
        later = [prompt + between for prompt in prompts]
        pieces = used.generate(list(prompts), stream=True, **options)
        # Compute the first token before the prompt is printed: if the model fails, print no prompt.
        begun = list(islice(pieces, 1))
        write(later[0])
        for number, piece in chain(begun, pieces):
            if number == 0:
                write(piece)
            later[number] += piece
        write("".join(f"\n\n{text}" for text in later[1:]) + "\n")
