"""The commands that draw a view: walk, show, compare, play, replay, why, guess."""

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qkv._argument_errors import message
from qkv.cli._options import (
    ablate_option,
    guesser_option,
    hide_option,
    json_option,
    model_option,
    writable,
)
from qkv.cli._output import console, print_json, say
from qkv.extras import need

if TYPE_CHECKING:
    from qkv.see import Stories, Story, View

# The file formats of a view. Each row contains the option's name, the file endings and the help.
_FILES = (
    ("html", (".html", ".htm"), "Also write the view as a page that needs no other file."),
    ("svg", (".svg",), "Also write the view as an SVG picture."),
    ("png", (".png",), "Also write the view as a PNG picture."),
)
# Maps a file format, such as "svg", to the path of the file to write. None means no file.
Paths = Mapping[str, str | None]
_KINDS = {ending: kind for kind, endings, _ in _FILES for ending in endings}

_stretch_option = click.option(
    "--stretch", is_flag=True, help="Scale colours to the largest weight shown, not to 1."
)
_open_option = click.option(
    "--open",
    "open_page",
    is_flag=True,
    help="Open the page in the browser. Without a file name, the page is a temporary file.",
)
_pieces_option = click.option(
    "--pieces", is_flag=True, help="Show subwords as they are, not merged into words."
)


def _which(name: str, default: str) -> Callable[..., Any]:
    """Make the option `--{name}`, with a help text that states the default."""
    return click.option(
        f"--{name}", type=int, help=f"The {name} to show. Default: the {name} {default}."
    )


def _output_command(make: "Callable[..., View]") -> Any:
    """Turn a function that returns a view into a command, with options for the view's output."""

    @functools.wraps(make)
    def command(as_json: bool, open_page: bool, **options: Any) -> None:
        files = {kind: options.pop(kind) for kind, *_ in _FILES}
        present(lambda: make(**options), files, as_json=as_json, open_page=open_page)

    files = [
        click.option(f"--{kind}", metavar="FILE", callback=writable(*endings), help=text)
        for kind, endings, text in _FILES
    ]
    shared = [json_option, *files, _open_option]
    return functools.reduce(lambda made, option: option(made), reversed(shared), command)


def _view_command(make: "Callable[..., View]") -> Any:
    """Turn a function that returns a view of a head into a command."""
    shared = [*(_which(name, "that stands out") for name in ("layer", "head"))]
    shared += [model_option, _stretch_option]
    command = _output_command(make)
    return functools.reduce(lambda made, option: option(made), reversed(shared), command)


def page_options(default: str) -> Callable[..., Any]:
    """Make the options `-o` and `--open` of a command that writes one page."""
    output = click.option(
        "-o",
        "--output",
        metavar="FILE",
        callback=writable(".html", ".htm"),
        default=default,
        help=f"Where to write the page. Default: {default}.",
    )
    opened = click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
    return lambda command: output(opened(command))


def present(
    make: "Callable[[], View]", files: Paths, *, as_json: bool = False, open_page: bool = False
) -> None:
    """Make a view, write it to `files` (for example {"svg": "view.svg"}), open it, and print it."""
    if files.get("png") is not None:
        need("resvg_py", "png")  # fail before the slow part if resvg-py is missing
    view = make()
    for kind, path in files.items():
        if path is not None:
            getattr(view, f"to_{kind}")(path)
            say(f"wrote {path}")
    if open_page:
        _open_in_browser(view, files.get("html"))
    if as_json:
        print_json(view.to_dict())
    else:
        view.print(console())


def _open_in_browser(view: "View", path: str | None) -> None:
    """Open a view's page in the browser; use a temporary file if no file was named."""
    import webbrowser

    if path is None:
        path = str(Path(tempfile.mkdtemp(prefix="qkv-"), "view.html"))
        view.to_html(path)
        say(f"wrote {path}")
    if not webbrowser.open(Path(path).resolve().as_uri()):
        say(f"no browser was found: open {path}")


@click.command()
@click.argument("text")
@_view_command
@click.option(
    "--dim", type=click.IntRange(1), help="Random model: the size of the vectors. Default: 8."
)
@click.option(
    "--heads", type=click.IntRange(1), help="Random model: the number of heads. Default: 2."
)
@click.option(
    "--seed", type=click.IntRange(0), help="Random model: the seed of its parameters. Default: 0."
)
@click.option("--causal", is_flag=True, help="Random model: mask later words (causal attention).")
@click.option("--no-positions", is_flag=True, help="Random model: omit the position vectors.")
def walk(text: str, model: str | None, **options: Any) -> "View":
    """Show each step of one head over TEXT, with its formula, its line of NumPy and its numbers.

    Then show the other steps of the head's layer (norms and MLP), and the words that the model
    predicts. The model predicts the first [MASK] of TEXT. If TEXT has no [MASK], the command
    shows the prediction at the token from which the head's strongest link starts.
    """
    from qkv import see
    from qkv.models import random_model
    from qkv.see.analysis import texts_of

    names = ("dim", "heads", "seed", "causal", "no_positions")
    values = {name: options.pop(name) for name in names}
    random = {n: value for n, value in values.items() if value is not None and value is not False}
    if not random:
        return see.walk(text, model=model, **options)
    if model != "random":
        typed = ", ".join(f"--{name.replace('_', '-')}" for name in random)
        raise click.UsageError(f"{typed} needs the random model: add --model random")
    positions = not random.pop("no_positions", False)
    made = random_model(texts_of([text]), positions=positions, **random)
    return see.walk(text, model=made, **options)


@click.command()
@click.argument("text")
@click.option("--from", "query", metavar="WORD", help="Rank heads by their links from this word.")
@click.option(
    "--to",
    "key",
    metavar="WORD",
    help="Rank heads by their links to this word; with --from, by the link between the two words.",
)
@_pieces_option
@_view_command
def show(text: str, **options: Any) -> "View":
    """Show one head's weights over TEXT, and how far the layers moved each word's vector."""
    from qkv import see

    return see.show(text, **options)


@click.command()
@click.argument("text_a")
@click.argument("text_b")
@click.option(
    "--word", help="A word in both texts. Default: the content word that both texts share."
)
@_pieces_option
@_view_command
def compare(text_a: str, text_b: str, **options: Any) -> "View":
    """Compare a word in TEXT_A and TEXT_B: its similarity per layer, and its attention per text."""
    from qkv import see

    view: View = see.compare(text_a, text_b, **options)
    return view


@click.command()
@click.argument("text", required=False)
@page_options("qkv-play.html")
@hide_option("Open the page")
@ablate_option("Open the page")
@model_option
def play(text: str | None, output: str, open_page: bool, **options: Any) -> None:
    """Write a page that runs a model on TEXT and lets readers edit the computation.

    The page is one file that needs no network. Without --model, the page contains both models that
    come with qkv and is at most 16 MB: one model predicts missing words, and the other continues
    texts. --model accepts any encoder that predicts masked words, and most decoders.
    """
    from qkv import see

    present(lambda: see.play(text, **options), {"html": output}, open_page=open_page)


@click.command()
@click.argument("run", metavar="DIR")
@click.argument("text")
@_which("layer", "that learned the most")
@_which("head", "that learned the most")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=writable(*_KINDS),
    help="Also write the view to a file: a page (.html) or a picture (.png, .svg).",
)
@_stretch_option
@json_option
@_open_option
def replay(
    run: str, text: str, output: str | None, as_json: bool, open_page: bool, **options: Any
) -> None:
    """Show one head's attention over TEXT at each snapshot of the training run in DIR."""
    from qkv import see

    files = {} if output is None else {_KINDS[Path(output).suffix.lower()]: output}
    present(lambda: see.replay(run, text, **options), files, as_json=as_json, open_page=open_page)


@click.command()
@click.argument("text")
@guesser_option
@_output_command
@click.option("--answer", help="The answer to explain. Default: the model's best guess.")
@click.option(
    "--units", type=click.Choice(["word", "token"]), default="word", help="Default: word."
)
@click.option(
    "--layers",
    metavar="WORD",
    help="Also hide this word from layer 0 on, from layer 1 on, and so on.",
)
@click.option("--links", type=click.IntRange(0), default=0, help="Also list the N largest links.")
def why(text: str, model: Any, layers: str | None, **options: Any) -> "View":
    """Show what the answer loses when no word of TEXT may attend to each of its words.

    The answer is the model's guess for the gap [MASK] or _ in TEXT; with a decoder, the next word.

    \b
        qkv why "The capital of France is the city of"
        qkv why "The sun rises in the [MASK]." --layers sun
    """  # noqa: D301 (\b tells click not to wrap the next lines)
    from qkv import see

    return see.why(text, model, from_layer=layers, **options)


@click.command()
@click.argument("text", required=False)
@click.option("--top", type=click.IntRange(1), default=5, help="The number of words. Default: 5.")
@hide_option("Guess again")
@ablate_option("Guess again")
@guesser_option
@json_option
def guess(text: str | None, top: int, as_json: bool, **options: Any) -> None:
    """Guess the likeliest words for the gaps [MASK] or _ in TEXT; a decoder guesses the next word.

    A "?" after a space is also a gap, except at the end of TEXT: "The oak is a small ?."

    With --hide or --ablate, the model guesses a second time without these words or heads, and the
    two guesses are printed side by side. Without TEXT, the command shows an example: a sentence
    whose guess changes when one word is masked or one head is ablated.
    """
    from qkv import see

    question: str | Story
    if text is not None:
        question, others = text, ""
    elif os.environ.get("QKV_MODEL") or any(options.values()):
        raise click.UsageError(
            "Missing argument 'TEXT': --hide, --ablate, --model and QKV_MODEL need it",
            click.get_current_context(),
        )
    else:
        stories = see.stories()
        question, others = stories.told[0], _other_stories(stories)

    def view() -> "View":
        try:
            hidden = tuple(dict.fromkeys(options["hide"]))
            return see.guess(question, top_k=top, **{**options, "hide": hidden})
        except ValueError as error:  # the command's option for `top_k` is `--top`
            raise ValueError(message(error).replace("top_k is", "--top is")) from error

    present(view, {}, as_json=as_json)
    if others and not as_json:
        click.echo(others)


def _other_stories(stories: "Stories") -> str:
    """Return the text below the first example: commands that show the other examples."""
    commands = [
        " ".join(
            [
                f'  qkv guess "{story.sentence}"',
                *(f"--hide {word}" for word in story.hide),
                *(f"--ablate {layer}.{head}" for layer, head in story.ablate),
            ]
        )
        for story in stories.told[1:]
    ]
    count = stories.searched
    heads = [(story.sentence, *story.ablate[0]) for story in stories.told if story.ablate]
    walks = [f'  qkv walk "{text}" --layer {layer} --head {head}' for text, layer, head in heads]
    return "\n".join(
        [
            "",
            f"This sentence and the next ones were chosen from {count:,} sentences:",
            *commands,
            *(["", "The steps of one of these heads, up to the predicted word:"] if walks else []),
            *walks[:1],
        ]
    )
