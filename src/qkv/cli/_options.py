"""Options that several commands have."""

import functools
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from qkv.files import check_target, named_folder


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


def writable_folder(
    context: click.Context, parameter: click.Parameter, path: str | None
) -> str | None:
    """Check whether the folder of an option exists or can be made, and can be written to."""
    if path is not None:
        folder = named_folder(path).absolute()
        there = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise click.BadParameter(f"{path} cannot be written: {there} is not a writable folder")
    return path


def _named_model(names: str, default: str) -> Callable[..., Any]:
    """Make the option `--model`; its help lists example names and the default model."""
    return click.option(
        "--model",
        metavar="NAME",
        help=f"A folder, a GGUF file, a short name ({names}, or smollm2 after `make smollm2`) or a "
        f"Hub id. Default: QKV_MODEL, else {default}, which comes with qkv.",
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
            raise click.BadParameter(f"{value} is not a head; write LAYER.HEAD, for example 0.3")
        heads[int(match[1]), int(match[2])] = None
    return list(heads)


def hide_option(does: str) -> Callable[..., Any]:
    """Make the option `--hide WORD`; its help text begins with the value of `does`."""
    about = f"{does} with WORD masked; may be repeated."
    return click.option("--hide", multiple=True, metavar="WORD", help=about)


def ablate_option(does: str) -> Callable[..., Any]:
    """Make the option `--ablate LAYER.HEAD`; its help text begins with the value of `does`."""
    about = f"{does} without this head, for example 0.3; may be repeated."
    return click.option(
        "--ablate", multiple=True, metavar="LAYER.HEAD", callback=_heads, help=about
    )


encoder_option = _named_model("books, books-decoder, random, minilm", "books")
writer_option = _named_model("books-decoder", "books-decoder")
_guesser_option = click.option(
    "--model",
    metavar="NAME",
    help="A folder, a GGUF file, a short name or a Hub id. Default: QKV_MODEL, else books for a "
    "TEXT with a gap, else smollm2 if it is installed, else books-decoder.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16", "int8"]),
    help="Compute with weights of this type. With int8, the quantized weights of a GGUF file take "
    "about as much memory as in the file. Default: float32, or float64 if the file has float64.",
)


def model_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make the options `--model` and `--dtype`; with `--dtype`, the command gets the loaded model.

    Without `--dtype`, the command gets the name of the model, or None.
    """

    @functools.wraps(command)
    def with_model(*, model: str | None, dtype: str | None, **options: Any) -> Any:
        if dtype is None:
            return command(model=model, **options)
        from qkv.models import load

        return command(model=load(model, dtype=dtype), **options)

    made: Callable[..., Any] = encoder_option(dtype_option(with_model))
    return made


def guesser_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make the options `--model` and `--dtype` of a command that guesses a word of TEXT.

    The command gets the loaded model. Without TEXT, it gets the value of `--model`.
    """

    @functools.wraps(command)
    def with_model(
        *, text: str | None, model: str | None, dtype: str | None, **options: Any
    ) -> Any:
        from qkv.see.analysis import guesser_of

        used = model if text is None else guesser_of(model, text, dtype)
        return command(text=text, model=used, **options)

    made: Callable[..., Any] = _guesser_option(dtype_option(with_model))
    return made


cache_dtype_option = click.option(
    "--cache-dtype",
    type=click.Choice(["float16", "bfloat16"]),
    help="Store the keys and values of earlier tokens in 16 bits: half the memory of float32.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
