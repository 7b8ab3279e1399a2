"""What every verb shares: options, errors on one line, exit codes."""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from qkv.files import check_target
from qkv.signals import Interrupted, answering, leave
from qkv.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

FAILED, BAD_REQUEST = 1, 2

_DISK_FULL = [getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")]

# What a user can put right in the command; anything else is a failure while running.
_REQUESTS = (
    ValueError,
    LookupError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Program(click.Group):
    """The group of all verbs: errors and warnings are one line on standard error."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and leave with 0 (done), 1 (a failure), 2 (a bad request) or 128 and a signal."""
        extra = {"prog_name": self.name, **extra, "standalone_mode": False}
        if not standalone_mode:
            return super().main(*args, **extra)
        _fill_closed_streams()
        try:
            with answering(leave):  # half a file is taken away
                code = super().main(*args, **extra)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else str(self.name)
            complain(path, f"{error.format_message()} ({path} --help explains)")
            code = BAD_REQUEST
        except (KeyboardInterrupt, click.Abort):
            code = 128 + signal.SIGINT
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what it raises is told, and becomes an exit code."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda text, *_: complain(_path(ctx), f"warning: {text}")
            try:
                result = super().invoke(ctx)
                if sys.stdout is not None:  # it is where the shell closed it
                    sys.stdout.flush()
                return result
            except BrokenPipeError:  # whoever read us has seen enough
                _forget_stdout()
            except Interrupted as error:
                leave(error.signal)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:
                if ctx.meta.get(_DEBUG):
                    click.echo(visible("".join(traceback.format_exception(error)), "\n"), err=True)
                path = _path(ctx)
                complain(path, _in_words(error).removeprefix(f"{path.split()[-1]}: "))
                ctx.exit(BAD_REQUEST if isinstance(error, _REQUESTS) else FAILED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name those that are like it."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], names, n=2, cutoff=0.5) or names
            raise click.UsageError(
                f"there is no command {args[0]!r}: the nearest are {', '.join(near)}", ctx
            )
        return super().resolve_command(ctx, args)


def _fill_closed_streams() -> None:
    """Give what the shell closed (`2>&-`) to nobody, or the next file that is opened would be it.

    What a library prints there would stand in that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


_DEBUG = "qkv.debug"


def _remember_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_DEBUG] = True  # one dictionary for the program and its verb


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_remember_debug,
    help="Show the whole traceback of an error.",
)


def writable(*suffixes: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A check that a file of one of these kinds can be written, before any work."""

    def check(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
        if path is None:
            return None
        if Path(path).suffix.lower() not in suffixes:
            raise click.BadParameter(f"{path}: the name must end in {' or '.join(suffixes)}")
        try:
            with tempfile.TemporaryFile(dir=check_target(path).parent):
                pass
        except OSError as error:
            reason = f"{path} cannot be written: {error.strerror}" if error.errno else str(error)
            raise click.BadParameter(reason) from None
        return path

    return check


def _named_model(names: str, default: str) -> Callable[..., Any]:
    """An option for a model, with some names to give and the one that is taken without it."""
    return click.option(
        "--model",
        metavar="NAME",
        help=f"A folder, a short name ({names}) or a Hub id. Default: QKV_MODEL, else {default}, "
        "which comes with qkv.",
    )


_HEAD = re.compile(r"([0-9]+)\.([0-9]+)")


def _heads(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> list[tuple[int, int]]:
    """LAYER.HEAD as pairs."""
    found = [(one, _HEAD.fullmatch(one)) for one in given]
    for one, match in found:
        if match is None:
            raise click.BadParameter(f"{one}: write LAYER.HEAD, as 0.3")
    heads = [(int(match[1]), int(match[2])) for _, match in found if match is not None]
    return list(dict.fromkeys(heads))


def hide_option(does: str) -> Callable[..., Any]:
    """`--hide WORD`, with what it does as its help."""
    about = f"{does} with WORD out of sight; may be given repeatedly."
    return click.option("--hide", multiple=True, metavar="WORD", help=about)


def ablate_option(does: str) -> Callable[..., Any]:
    """`--ablate LAYER.HEAD`, with what it does as its help."""
    about = f"{does} without this head, as 0.3; may be given repeatedly."
    return click.option(
        "--ablate", multiple=True, metavar="LAYER.HEAD", callback=_heads, help=about
    )


model_option = _named_model("books, books-decoder, minilm, random", "books")
writer_option = _named_model("books-decoder", "books-decoder")
finding_model_option = click.option(
    "--model",
    metavar="NAME",
    help="The model of the findings, where it does not come with qkv: a folder, or a name that was "
    "downloaded before.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")


def console() -> Console:
    """Standard output; a reader that goes away is a BrokenPipeError, as everywhere."""
    from rich.console import Console

    from qkv.see.draw.screen import with_a_width

    class Stdout(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return with_a_width(Stdout(highlight=False))


def print_json(data: Any) -> None:
    """One line of JSON, with letters beyond ASCII where the stream takes them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(data, ensure_ascii=not encoding.lower().startswith("utf"), allow_nan=False)
    click.echo("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def say(message: str) -> None:
    """A line about the work on standard error."""
    context = click.get_current_context()
    complain(context.command_path, message)


def complain(path: str, message: str) -> None:
    """One line on standard error, whatever the message holds."""
    with suppress(OSError):  # a terminal that was closed, a disk that is full
        click.echo(f"{path}: {visible(message.strip())}", err=True)


def tell(line: str = "") -> None:
    """A line, or several, on standard output, whatever they hold."""
    click.echo(visible(line, "\n"))


def _path(context: click.Context) -> str:
    return " ".join(filter(None, (context.command_path, context.invoked_subcommand)))


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        unnamed = "standard output: " if error.errno in _DISK_FULL else ""  # files have their name
        return (f"{error.filename}: " if error.filename else unnamed) + error.strerror
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    return str(error) or type(error).__name__


def _forget_stdout() -> None:
    """Let nothing more be written to a pipe that is closed."""
    with suppress(OSError, ValueError):  # not a real file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
