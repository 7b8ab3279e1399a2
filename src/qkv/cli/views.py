"""`qkv show`, `compare`, `walk` and `replay`: the verbs that give a view."""

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
    help="Open the page in the browser; without --html a temporary file.",
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
_KINDS = {ending: kind for kind, endings, _ in FILES for ending in endings}


def view_command(number: int | None = None) -> Callable[[Callable[..., View]], Any]:
    """Make a function that gives a view a verb that presents it, with the options of all of them.

    `number` is by default the layer, and the head in it, that the view looks at.
    """
    default = "the one that stands out" if number is None else number
    options = [
        *(
            click.option(
                f"--{name}", type=int, default=number, help=f"Which {name}. Default: {default}."
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


@click.command()
@click.argument("text")
@click.option("--from", "query", metavar="WORD", help="Rank heads by the links of this word ...")
@click.option("--to", "key", metavar="WORD", help="... or to this one; both: by this one link.")
@pieces_option
@view_command()
def show(text: str, **options: Any) -> View:
    """One head's weights over TEXT, and how far attention moved each word."""
    from qkv import see

    return see.show(text, **options)


@click.command()
@click.argument("text_a")
@click.argument("text_b")
@click.option("--word", help="A word that both texts have. Default: the content word they share.")
@pieces_option
@view_command()
def compare(text_a: str, text_b: str, **options: Any) -> View:
    """How alike a word is in TEXT_A and in TEXT_B, and what it looks at in each."""
    from qkv import see

    view: View = see.compare(text_a, text_b, **options)
    return view


@click.command()
@click.argument("text")
@view_command(number=0)
@click.option("--dim", type=click.IntRange(1), help="Random model: size of the vectors (8).")
@click.option("--heads", type=click.IntRange(1), help="Random model: number of heads (2).")
@click.option("--seed", type=click.IntRange(0), help="Random model: what to draw it from (0).")
@click.option("--causal", is_flag=True, help="Random model: no word sees those after it.")
@click.option("--no-positions", is_flag=True, help="Random model: words without their places.")
def walk(
    text: str,
    model: str | None,
    dim: int | None,
    heads: int | None,
    seed: int | None,
    causal: bool,
    no_positions: bool,
    **options: Any,
) -> View:
    """Each step of one head over TEXT: its formula, its NumPy line, its real numbers."""
    from qkv import see
    from qkv.models import random_model
    from qkv.see.analysis.inputs import texts_of

    sizes = {"dim": dim, "heads": heads, "seed": seed}
    given: dict[str, Any] = {n: value for n, value in sizes.items() if value is not None}
    flags = {"--causal": causal, "--no-positions": no_positions}
    used = [*(f"--{name}" for name in given), *(name for name in flags if flags[name])]
    if used and model != "random":
        raise click.UsageError(f"{', '.join(used)} shapes the random model: add --model random")
    chosen: Any = model
    if used:
        given |= {"causal": causal, "positions": not no_positions}
        chosen = random_model(texts_of([text], "walk"), **given)
    return see.walk(text, model=chosen, **options)


@click.command()
@click.argument("run", metavar="DIR")
@click.argument("text")
@click.option("--layer", type=int, help="Which layer. Default: the one that learned most.")
@click.option("--head", type=int, help="Which head. Default: the one that learned most.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=writable(*_KINDS),
    help="Write the view as well: a page (.html), or its picture (.png, .svg).",
)
@stretch_option
@json_option
@open_option
@debug_option
def replay(
    run: str, text: str, output: str | None, as_json: bool, open_page: bool, **options: Any
) -> None:
    """What a head looks at in TEXT, at each snapshot of the training run in DIR."""
    from qkv import see

    files = {} if output is None else {_KINDS[Path(output).suffix.lower()]: output}
    present(lambda: see.replay(run, text, **options), files, as_json=as_json, open_page=open_page)
