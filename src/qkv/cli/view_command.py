"""What verbs that give a view share: their options, and how a view is written and shown."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qkv.cli.common import (
    console,
    debug_option,
    json_option,
    model_option,
    print_json,
    say,
    writable,
)
from qkv.extras import need

if TYPE_CHECKING:
    from qkv.see import View

stretch_option = click.option(
    "--stretch", is_flag=True, help="End scales at the largest weight shown, not at 1."
)
open_option = click.option(
    "--open",
    "open_page",
    is_flag=True,
    help="Open the page in the browser; it is a temporary file unless you name one.",
)
pieces_option = click.option(
    "--pieces", is_flag=True, help="Show the pieces of words as they are, not merged."
)

# What a view can be written to: the kind, how the name ends, and what the option says of it.
FILES = (
    ("html", (".html", ".htm"), "Write the view as a page that needs nothing else."),
    ("svg", (".svg",), "Draw it to an SVG file as well."),
    ("png", (".png",), "Draw the picture to a PNG file as well."),
)
KINDS = {ending: kind for kind, endings, _ in FILES for ending in endings}


def view_command() -> Callable[[Callable[..., View]], Any]:
    """Make of a function that gives a view a verb that presents it, with the options of all."""
    options = [
        *(
            click.option(
                f"--{name}", type=int, help=f"Which {name}. Default: the one that stands out."
            )
            for name in ("layer", "head")
        ),
        model_option,
        json_option,
        stretch_option,
        *(
            click.option(f"--{kind}", metavar="FILE", callback=writable(*endings), help=text)
            for kind, endings, text in FILES
        ),
        open_option,
        debug_option,
    ]

    def add(make: Callable[..., View]) -> Any:
        @functools.wraps(make)
        def command(as_json: bool, open_page: bool, **options: Any) -> None:
            files = {kind: options.pop(kind) for kind, *_ in FILES}
            present(lambda: make(**options), files, as_json=as_json, open_page=open_page)

        return functools.reduce(lambda made, option: option(made), reversed(options), command)

    return add


def present(
    make: Callable[[], View], files: Mapping[str, str | None], *, as_json: bool, open_page: bool
) -> None:
    """Make a view, write it to the files that were named by kind, open its page, and print it."""
    if files.get("png") is not None:
        need("matplotlib", "plot")  # before any work
    view = make()
    for kind, path in files.items():
        if path is not None:
            getattr(view, f"to_{kind}")(path)
            say(f"wrote {path}")
    if open_page:
        open_in_browser(view, files.get("html"))
    if as_json:
        print_json(view.to_dict())
    else:
        view.print(console())


def open_in_browser(view: View, path: str | None) -> None:
    """Open a view's page in the browser; one that has no file yet gets a temporary one."""
    import webbrowser

    if path is None:
        path = str(Path(tempfile.mkdtemp(prefix="qkv-"), "view.html"))
        view.to_html(path)
        say(f"wrote {path}")
    if not webbrowser.open(Path(path).resolve().as_uri()):
        say(f"no browser was found: open {path}")
