"""The command line: one file per verb, no arithmetic."""

from __future__ import annotations

from importlib import import_module

import click

from qkv.cli.bench import bench
from qkv.cli.check import check
from qkv.cli.common import Program, debug_option
from qkv.cli.compare import compare
from qkv.cli.conform import conform
from qkv.cli.encode import encode
from qkv.cli.generate import generate
from qkv.cli.guess import guess
from qkv.cli.info import info
from qkv.cli.play import play
from qkv.cli.publish import publish
from qkv.cli.replay import replay
from qkv.cli.serve import serve
from qkv.cli.show import show
from qkv.cli.train import train
from qkv.cli.verify import verify
from qkv.cli.walk import walk


@click.group("qkv", cls=Program, invoke_without_command=True)
@click.version_option(import_module("qkv").__version__, message="qkv %(version)s")
@debug_option
@click.pass_context
def main(context: click.Context) -> None:
    """A sentence goes in, its attention comes out.

    \b
        qkv walk "The cat sat on the mat"
        qkv show "I sat on the bank of the river."
        qkv compare "I sat on the bank." "The bank raised its rates." --word bank
        qkv guess "A triangle has [MASK] legs." --hide triangle
        qkv generate "once upon a"
        qkv play --open
    """  # noqa: D301 (click reads the backspace: what follows is not wrapped)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for verb in (
    *(walk, show, compare, play, replay, guess),
    *(encode, generate, train, check, conform, publish, verify, serve, bench, info),
):
    main.add_command(verb)
