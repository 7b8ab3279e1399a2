"""The command line, which parses options, calls the library, and prints the results."""

from importlib import import_module

import click

from qkv.cli._bench import bench
from qkv.cli._chat import chat
from qkv.cli._check import check
from qkv.cli._conform import conform
from qkv.cli._encode import encode
from qkv.cli._generate import generate
from qkv.cli._info import info
from qkv.cli._program import Program, debug_option
from qkv.cli._publishing import publish, verify
from qkv.cli._serve import serve
from qkv.cli._train import train
from qkv.cli._views import compare, guess, play, replay, show, walk, why


@click.group("qkv", cls=Program, invoke_without_command=True)
@click.version_option(import_module("qkv").__version__, message="qkv %(version)s")
@debug_option
@click.pass_context
def main(context: click.Context) -> None:
    """Show the attention of a language model over your own sentences.

    \b
        qkv why "The capital of France is the city of"
        qkv walk "The cat sat on the mat"
        qkv show "I sat on the bank of the river."
        qkv compare "I sat on the bank." "The bank raised its rates." --word bank
        qkv guess "A triangle has [MASK] legs." --hide triangle
        qkv generate "once upon a"
        qkv chat
        qkv play --open
    """  # noqa: D301 (\b tells click not to wrap the next lines)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (
    *(why, play, show, walk, compare, replay, guess),
    *(encode, generate, chat, train, check, conform, publish, verify, serve, bench, info),
):
    main.add_command(command)
