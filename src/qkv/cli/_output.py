"""Print a command's results to standard output, and its messages to standard error."""

import json
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from qkv._visible import visible

if TYPE_CHECKING:
    from rich.console import Console


# The characters that are escaped on a terminal: control characters, line separators and characters
# that change the writing direction. Zero-width joiners and direction marks are not escaped, because
# some languages need them.
_CONTROLS = re.compile(r"[^\t\n\x20-\x7e\xa0-\U0010ffff]|[\u2028-\u202e\u2066-\u2069]")


def console() -> "Console":
    """Return a rich console for standard output; a closed pipe raises a BrokenPipeError."""
    from rich.console import Console

    from qkv.see.draw.terminal import with_a_width

    class Stdout(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return with_a_width(Stdout(highlight=False))


def print_json(data: Any) -> None:
    """Print data as one line of JSON; escape characters that the stream cannot encode."""
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


def write(text: str) -> None:
    """Print text immediately; escape control characters, and replace unencodable ones."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if sys.stdout is not None and sys.stdout.isatty():
        text = _CONTROLS.sub(lambda match: visible(match[0]), text)
    # Without color=True, `click.echo` would remove text that looks like a color code.
    click.echo(text.encode(encoding, "replace").decode(encoding), nl=False, color=True)


def tell(line: str = "") -> None:
    """Print lines to standard output, without control characters."""
    click.echo(visible(line, "\n"))
