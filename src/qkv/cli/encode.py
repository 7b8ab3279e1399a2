"""`qkv encode`: a vector for each line of a file, of any number of lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qkv.cli.common import debug_option, json_option, model_option, print_json, say, writable
from qkv.files import replacing

if TYPE_CHECKING:
    import numpy as np

    from qkv.models import Model

_EMPTY = "{} is empty: write one text a line"


def _output(context: click.Context, parameter: click.Parameter, path: str) -> str:
    return writable(path, ".npy", ".jsonl")


@click.command()
@click.argument("file")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    callback=_output,
    help="Where to: .npy, one row a line, or .jsonl, text and vector.",
)
@model_option
@json_option
@debug_option
def encode(file: str, output: str, model: str | None, as_json: bool) -> None:
    """A vector for each line of FILE, one text a line; - is standard input.

    Lines are read and vectors written as they come, so FILE may be of any length. The output is
    there once it is whole.
    """
    from qkv.models import load_for
    from qkv.models.encode import EmptyText

    name = "standard input" if file == "-" else file
    place = Path(file)
    texts: Iterable[str]
    if file == "-":
        texts = _standard_input()
    elif place.exists() and not (place.is_file() or place.is_dir()):  # a pipe is read only once
        texts = _opened(file)
    else:
        texts = Lines(file)
    if isinstance(texts, Iterator) and model == "random":
        texts = list(texts)  # it learns their words before it encodes them
        if not texts:
            raise ValueError(_EMPTY.format(name))
    used = load_for(texts, model)
    try:
        count, size = write_vectors(output, used, texts, name)
    except EmptyText as error:
        raise ValueError(
            f"{name}, line {error.number + 1}: the text is empty: {error.reason}"
        ) from error
    say(f"{used.name}: {count} text{'s' * (count != 1)}, {size} numbers each, wrote {output}")
    if as_json:
        print_json({"model": used.name, "texts": count, "size": size, "output": output})


class Lines:
    """The lines of a UTF-8 file, blank ones too, read anew each time.

    Raises:
        ValueError: it is empty, or not text; the message has the line and the byte.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self._count = sum(1 for _ in self)
        if not self._count:
            raise ValueError(_EMPTY.format(file))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return _opened(self.file)


def _standard_input() -> Iterator[str]:
    if sys.stdin is None:
        raise ValueError("standard input is closed: give a file")
    return read_lines(sys.stdin.buffer, "standard input")


def _opened(file: str) -> Iterator[str]:
    with Path(file).open("rb") as stream:
        yield from read_lines(stream, file)


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of UTF-8, without their ends and the byte order mark, one after the other.

    Raises:
        ValueError: it is not text; the message has the line and the byte.
    """
    for number, line in enumerate(stream, 1):
        nul = line.find(b"\0")
        if nul >= 0:
            raise ValueError(f"{name} is not text: byte {nul + 1} of line {number} is NUL")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name} is not UTF-8: byte {error.start + 1} of line {number} is "
                f"0x{line[error.start]:02x}"
            ) from None
        text = text.removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 1 else text


def write_vectors(path: str, model: Model, texts: Iterable[str], name: str) -> tuple[int, int]:
    """Write the vectors of texts as .npy or .jsonl, whole or not at all; how many, of what size.

    Raises:
        ValueError: there is no text in what has this name.
    """
    again: Iterable[str] = texts
    if isinstance(texts, Iterator):
        texts, again = tee(texts)
    rows = iter(again)
    count = size = 0
    as_numpy = path.lower().endswith(".npy")
    with replacing(path) as file:
        for vectors in model.encode_stream(texts):
            if as_numpy:
                file.seek(0)
                file.write(npy_header((count + len(vectors), vectors.shape[1]), vectors.dtype))
                file.seek(0, os.SEEK_END)
                file.write(vectors.tobytes())
            for text, vector in zip(islice(rows, len(vectors)), vectors, strict=True):
                if not as_numpy:
                    row = {"text": text, "vector": vector.tolist()}
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            count, size = count + len(vectors), vectors.shape[1]
        if not count:
            raise ValueError(_EMPTY.format(name))
    return count, size


def npy_header(shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    """What a .npy file begins with, of one length for any shape (NumPy's format, version 1.0)."""
    import numpy as np

    about = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    text = repr(about).encode("ascii").ljust(117) + b"\n"
    return np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text
