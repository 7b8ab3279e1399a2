"""The options, one-line errors and exit codes of all commands."""

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

# Users can fix these errors by changing the command; all other errors are failures.
_REQUESTS = (
    ValueError,
    LookupError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Program(click.Group):
    """The group of all commands, which prints each error or warning as one line on stderr."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; exit with 0 (done), 1 (failure), 2 (bad request) or 128 + signal."""
        extra = {"prog_name": self.name, **extra, "standalone_mode": False}
        if not standalone_mode:
            return super().main(*args, **extra)
        _fill_closed_streams()
        try:
            with answering(leave):  # a signal raises an error, so that unfinished files are removed
                code = super().main(*args, **extra)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else str(self.name)
            complain(path, f"{error.format_message()} ({path} --help explains)")
            code = BAD_REQUEST
        except (KeyboardInterrupt, click.Abort):
            code = 128 + signal.SIGINT
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Print any error, and exit with the code of the error."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda text, *_: complain(_path(ctx), f"warning: {text}")
            try:
                result = super().invoke(ctx)
                if sys.stdout is not None:  # None if the shell closed standard output
                    sys.stdout.flush()
                return result
            except BrokenPipeError:  # the program that reads the output has ended (e.g. `head`)
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

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, and give it the option `--debug`."""
        super().add_command(debug_option(cmd), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise an error that lists commands with similar names."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], names, n=2, cutoff=0.5) or names
            raise click.UsageError(
                f"there is no command {args[0]!r}: the nearest are {', '.join(near)}", ctx
            )
        return super().resolve_command(ctx, args)


def _fill_closed_streams() -> None:
    """Connect standard streams that the shell closed (`2>&-`) to the null device.

    If standard error stayed closed, the next opened file would get the descriptor 2. Libraries that
    print to standard error would then write their messages into this file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


_DEBUG = "qkv.debug"


def _remember_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        # All contexts share `meta`, so `Program.invoke` can read the flag.
        context.meta[_DEBUG] = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_remember_debug,
    help="Show the whole traceback of an error.",
)


def writable(*suffixes: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Make a callback that checks whether the file of an option can be written."""

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
    """Make the option `--model`; its help lists example names and the default model."""
    return click.option(
        "--model",
        metavar="NAME",
        help=f"A folder, a short name ({names}) or a Hub id. Default: QKV_MODEL, else {default}, "
        "which comes with qkv.",
    )


_HEAD = re.compile(r"([0-9]+)\.([0-9]+)")


def _heads(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[int, int]]:
    """Parse each LAYER.HEAD into a pair of numbers."""
    heads: dict[tuple[int, int], None] = {}
    for value in values:
        match = _HEAD.fullmatch(value)
        if match is None:
            raise click.BadParameter(f"{value}: write LAYER.HEAD, for example 0.3")
        heads[int(match[1]), int(match[2])] = None
    return list(heads)


def hide_option(does: str) -> Callable[..., Any]:
    """Make the option `--hide WORD`; its help text begins with the value of `does`."""
    about = f"{does} with WORD masked; may be given repeatedly."
    return click.option("--hide", multiple=True, metavar="WORD", help=about)


def ablate_option(does: str) -> Callable[..., Any]:
    """Make the option `--ablate LAYER.HEAD`; its help text begins with the value of `does`."""
    about = f"{does} without this head, for example 0.3; may be given repeatedly."
    return click.option(
        "--ablate", multiple=True, metavar="LAYER.HEAD", callback=_heads, help=about
    )


model_option = _named_model("books, books-decoder, minilm, random", "books")
writer_option = _named_model("books-decoder", "books-decoder")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")


def console() -> "Console":
    """Return a rich console for standard output; a closed pipe raises a BrokenPipeError."""
    from rich.console import Console

    from qkv.see.draw.terminal import with_a_width

    class Stdout(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return with_a_width(Stdout(highlight=False))


def print_json(data: Any) -> None:
    """Print data as one line of JSON; escape letters that the stream cannot encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(data, ensure_ascii=not encoding.lower().startswith("utf"), allow_nan=False)
    click.echo("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def say(message: str) -> None:
    """Print a progress message to standard error."""
    complain(click.get_current_context().command_path, message)


def complain(path: str, message: str) -> None:
    """Print a message to standard error, on one line and without control characters."""
    with suppress(OSError):  # the terminal is closed, or the disk is full
        click.echo(f"{path}: {visible(message.strip())}", err=True)


def tell(line: str = "") -> None:
    """Print lines to standard output, without control characters."""
    click.echo(visible(line, "\n"))


def _path(context: click.Context) -> str:
    return " ".join(filter(None, (context.command_path, context.invoked_subcommand)))


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        unnamed = "standard output: " if error.errno in _DISK_FULL else ""  # files have names
        return (f"{error.filename}: " if error.filename else unnamed) + error.strerror
    if isinstance(error, KeyError) and error.args:
        return str(error.args[0])
    return str(error) or type(error).__name__


def _forget_stdout() -> None:
    """Redirect standard output to the null device, because the pipe is closed."""
    with suppress(OSError, ValueError):  # the stream is not a real file, for example in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
