"""`qkv train`, which trains a model on text files."""

from typing import Any

import click

from qkv.cli._options import json_option
from qkv.cli._output import print_json, say


@click.command()
@click.argument("corpus", nargs=-1, metavar="[CORPUS]...")
@click.option(
    "--objective",
    type=click.Choice(["causal", "masked"]),
    help="causal: predict the next token (a decoder, GPT-2). masked: predict masked tokens (an "
    "encoder, BERT).",
)
@click.option("-o", "--output", required=True, metavar="DIR", help="A new folder for the model.")
@click.option("--layers", type=int, help="The number of layers. Default: 4.")
@click.option("--heads", type=int, help="The number of heads in each layer. Default: 4.")
@click.option("--dim", type=int, help="The size of the vectors. Default: 128.")
@click.option("--vocabulary", type=int, help="The maximum size of the vocabulary. Default: 8192.")
@click.option("--length", type=int, help="The maximum length of a text, in tokens. Default: 128.")
@click.option(
    "--steps",
    type=int,
    help="The number of training steps. Default: 1000, or no limit with --minutes.",
)
@click.option(
    "--minutes",
    type=float,
    help="The time limit in minutes; with a limit, runs with the same seed may give different "
    "models.",
)
@click.option(
    "--tokens-per-step", type=int, help="The minimum number of tokens per step. Default: 4096."
)
@click.option("--rate", type=float, help="The highest learning rate. Default: 0.001.")
@click.option("--seed", type=int, help="The same seed gives the same model. Default: 0.")
@click.option(
    "--tokenizer",
    metavar="FILE",
    help="A tokenizer.json, or a folder with one. Default: train a tokenizer on CORPUS.",
)
@click.option("--resume", is_flag=True, help="Continue from the last checkpoint in DIR.")
@json_option
def train(output: str, resume: bool, as_json: bool, **options: Any) -> None:
    """Train a model on CORPUS, one or more UTF-8 text files.

    After training, DIR contains the model, the losses (metrics.jsonl and curves.png), snapshots of
    earlier steps, and checkpoints. To use the model in other commands, pass --model DIR. Ctrl-C
    saves the run, and `qkv train --resume -o DIR` continues it.
    """
    from qkv.learn import Diverged, Interrupted, TextRun, train_on_text

    settings = {name: value for name, value in options.items() if value not in (None, ())}
    if resume:
        run = TextRun.of(output, settings)
    elif "corpus" not in settings:
        raise click.UsageError("pass the text files to learn from")
    elif "objective" not in settings:
        raise click.UsageError("choose --objective causal, or --objective masked")
    else:
        run = TextRun(**settings)
    try:
        done = train_on_text(run, output, resume=resume, say=say)
    except (Interrupted, Diverged) as error:
        _draw(output)
        if isinstance(error, Interrupted):
            say(f"{error}: continue with: qkv train --resume -o {output}")
        raise
    _draw(output)
    again = 'generate "The"' if run.objective == "causal" else 'show "A sentence."'
    say(
        f"{done.steps:,} steps, {done.tokens:,} tokens, {done.seconds:,.0f} s, "
        f"loss {done.loss:.3f}: wrote {output}; continue with: qkv {again} --model {output}"
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
    except (ImportError, OSError, ValueError) as error:
        # Curves need matplotlib, free space on the disk, and at least one training step.
        say(f"no curves: {error}")
