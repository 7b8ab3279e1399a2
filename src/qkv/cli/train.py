"""`qkv train`: from text files to a model of one's own."""

from __future__ import annotations

from typing import Any

import click

from qkv.cli.common import json_option, print_json, say


@click.command()
@click.argument("corpus", nargs=-1, metavar="[CORPUS]...")
@click.option(
    "--objective",
    type=click.Choice(["causal", "masked"]),
    help="causal: name the next token (a decoder, GPT-2). masked: name hidden ones (an encoder, "
    "BERT).",
)
@click.option("-o", "--output", required=True, metavar="DIR", help="Where to: a new folder.")
@click.option("--layers", type=int, help="How many. Default: 4.")
@click.option("--heads", type=int, help="Of each layer. Default: 4.")
@click.option("--dim", type=int, help="The size of the vectors. Default: 128.")
@click.option("--vocabulary", type=int, help="At most so many tokens. Default: 8192.")
@click.option("--length", type=int, help="The most tokens of a text. Default: 128.")
@click.option("--steps", type=int, help="How many. Default: 1000 without --minutes.")
@click.option(
    "--minutes", type=float, help="How long it may take; such a run is not the same twice."
)
@click.option("--tokens-per-step", type=int, help="At least so many. Default: 4096.")
@click.option("--rate", type=float, help="The highest learning rate. Default: 0.001.")
@click.option("--seed", type=int, help="The same seed, the same model. Default: 0.")
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="A tokenizer.json, or a folder with one. Default: one is trained on the text.",
)
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in DIR.")
@json_option
def train(output: str, resume: bool, as_json: bool, **options: Any) -> None:
    """A model of your own from text files: CORPUS is one or more of them, UTF-8.

    DIR gets a model that the other commands take with --model DIR, its losses in metrics.jsonl and
    curves.png, snapshots from along the way, and checkpoints. Ctrl-C saves, and
    `qkv train --resume -o DIR` goes on.
    """
    from qkv.learn import Diverged, Interrupted, TextRun, train_on_text

    given = {name: value for name, value in options.items() if value not in (None, ())}
    if resume:
        run = TextRun.of(output, given)
    elif "corpus" not in given:
        raise click.UsageError("name the text files to learn from")
    elif "objective" not in given:
        raise click.UsageError("choose --objective causal, or --objective masked")
    else:
        run = TextRun(**given)
    try:
        done = train_on_text(run, output, resume=resume, say=say)
    except (Interrupted, Diverged) as error:
        _draw(output)
        if isinstance(error, Interrupted):
            say(f"{error}: go on with: qkv train --resume -o {output}")
        raise
    _draw(output)
    again = 'generate "The"' if run.objective == "causal" else 'show "A sentence."'
    say(
        f"{done.steps:,} steps, {done.tokens:,} tokens, {done.seconds:,.0f} s, "
        f"loss {done.loss:.3f}: wrote {output}; go on with: qkv {again} --model {output}"
    )
    if as_json:
        print_json({
            "folder": str(done.folder),
            "objective": run.objective,
            **{name: getattr(done, name) for name in ("steps", "tokens", "loss", "skipped")},
            "seconds": round(done.seconds, 3),
        })  # fmt: skip


def _draw(output: str) -> None:
    from qkv.learn import write_curves

    try:
        say(f"curves: {write_curves(output)}")
    except (ImportError, OSError, ValueError) as error:  # no extra, a full disk, no step
        say(f"no curves: {error}")
