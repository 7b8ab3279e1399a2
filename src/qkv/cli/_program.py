"""The one-line errors and the exit codes of all commands."""

import errno
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from typing import Any

import click

from qkv._argument_errors import message
from qkv._suggest import nearest, suggestion
from qkv._visible import visible
from qkv.cli._output import complain
from qkv.signals import Interrupted, answering, leave

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
                # a library function and its command may have the same name
                complain(_path(ctx), _in_words(error).removeprefix(f"{ctx.invoked_subcommand}: "))
                ctx.exit(BAD_REQUEST if isinstance(error, _REQUESTS) else FAILED)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, and give it the option `--debug`."""
        super().add_command(debug_option(cmd), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their first sentences, which click would shorten."""
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(200)) for name in names]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise an error that lists commands with similar names."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = self.list_commands(ctx)
            near = suggestion(nearest(args[0], names, 2), names)
            raise click.UsageError(f"there is no command {args[0]!r}: {near}", ctx)
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


def _path(context: click.Context) -> str:
    return " ".join(filter(None, (context.command_path, context.invoked_subcommand)))


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        unnamed = "standard output: " if error.errno in _DISK_FULL else ""  # files have names
        return (f"{error.filename}: " if error.filename else unnamed) + error.strerror
    return message(error) or type(error).__name__


def _forget_stdout() -> None:
    """Redirect standard output to the null device, because the pipe is closed."""
    with suppress(OSError, ValueError):  # the stream is not a real file, for example in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
