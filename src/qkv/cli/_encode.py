"""`qkv encode`, which computes a vector for each line of a file or each row of many files."""

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from qkv._argument_errors import message
from qkv.cli._options import json_option, model_option, writable
from qkv.cli._output import print_json, say
from qkv.files import replacing
from qkv.text.lines import FileTexts, lines_of, read_lines

if TYPE_CHECKING:
    from qkv.models import Model

# A map from arguments of `scale.encode` to options of the command. In error messages, the command
# replaces each of these arguments by its option.
_OPTIONS = {
    'on_error="skip"': "--on-error skip",
    "resume=False": "--no-resume",
    "encode: ": "",
    "column is ": "--column is ",
    "keep is ": "--keep is ",
    "omit keep": "omit --keep",
    "pass another column": "pass another --column",
    "choose one of the columns": "pass --column with one of the columns",
}
_EMPTY = "{} is empty: write one text per line"
_STREAMS = ("/dev/", "/proc/")  # the folders of standard input and of process substitutions


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIRECTORY",
    help="Required, except with --dry-run. A .npy file with one row per text, or a .jsonl file "
    "with each text and its vector. With --cluster: a folder.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Encode many files on a Dask cluster's workers; local or local:N starts a cluster (of N "
    "workers) on this machine.",
)
@click.option(
    "--column",
    metavar="NAME",
    help="The column of a .jsonl, .csv or .parquet file that contains the texts. Default: text.",
)
@click.option(
    "--keep",
    metavar="COLUMN",
    multiple=True,
    help="With --cluster: also copy this column of FILE to the output; may be repeated.",
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    help="With --cluster: if a row is bad, end the run (raise, the default) or omit the row "
    "(skip).",
)
@click.option(
    "--no-resume",
    is_flag=True,
    help="With --cluster: start again, and replace the parts in the folder.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --cluster: estimate the number of rows, the number of parts and the duration; write "
    "nothing.",
)
@model_option
@json_option
def encode(
    files: tuple[str, ...], output: str | None, cluster: str | None, as_json: bool, **options: Any
) -> None:
    """Write a vector for each text of FILE.

    FILE is a .txt file with one text per line, or a .jsonl, .csv or .parquet file with the texts in
    a column. Standard input (-) and pipes have one text per line. The command reads texts and
    writes vectors batch by batch, so FILE may be larger than memory. The output file appears
    only when it is complete.

    With --cluster, the input can be many FILEs, and the output is a folder of Parquet parts. If
    you repeat the command after an interruption, it continues where it stopped.
    """
    context = click.get_current_context()
    if output is None and not (cluster and options["dry_run"]):
        raise click.UsageError("Missing option '-o' / '--output'.", context)
    if cluster is not None:
        if not isinstance(options["model"], str | None):
            raise click.UsageError(
                "--dtype cannot be combined with --cluster: omit one of them", context
            )
        with _spelled_as_typed():
            result = _on_cluster(cluster, files, output, **options)
        if as_json:
            print_json(result)
        return
    model, column = options.pop("model"), options.pop("column")
    for name, value in options.items():
        if value:
            message = f"--{name.replace('_', '-')} needs a cluster: add --cluster local"
            raise click.UsageError(message, context)
    if len(files) > 1:
        raise click.UsageError(f"{len(files)} files need workers: add --cluster local", context)
    option = next(option for option in context.command.params if option.name == "output")
    writable(".npy", ".jsonl")(context, option, output)
    with _spelled_as_typed():
        _one_file(files[0], str(output), model, column, as_json)


@contextmanager
def _spelled_as_typed() -> Iterator[None]:
    """Replace the arguments in error messages of `scale.encode` with command-line options."""
    try:
        yield
    except (ValueError, OSError) as error:
        problem = message(error)
        for argument, option in _OPTIONS.items():
            problem = problem.replace(argument, option)
        if problem == message(error):
            raise
        kind = FileNotFoundError if isinstance(error, OSError) else ValueError
        raise kind(problem) from error


def _on_cluster(
    cluster: str, files: tuple[str, ...], output: Any, **options: Any
) -> dict[str, Any]:
    """Encode files into a folder; if `dry_run`, only estimate the work. Return a summary."""
    from qkv import scale
    from qkv.scale.encoding import estimate
    from qkv.scale.workers import connect

    what = options["model"], list(files)
    how = {
        "column": "text" if options["column"] is None else options["column"],
        "on_error": options["on_error"] or "raise",
        "keep": options["keep"],
    }
    with connect(cluster, "encode") as client:
        if options["dry_run"]:
            work = estimate(*what, client=client, **how)
            size = f"{_many(work.rows, 'row')}, {_many(work.parts, 'part')}"
            say(f"{size}, {_in_words(work.hours * 3600)}")
            return asdict(work)
        resume = not options["no_resume"]
        done = scale.encode(*what, output, client=client, resume=resume, **how)
    skipped = f", skipped {len(done.skipped):,}" if done.skipped else ""
    say(f"{_many(done.rows, 'row')}{skipped}, {_many(done.parts, 'part')}, wrote {output}")
    return {**asdict(done), "output": output}


def _in_words(seconds: float) -> str:
    """Write a duration in the largest unit that gives a number of at least 1."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"about {seconds / size:.1f} {unit}"
    return f"about {seconds:.0f} seconds" if seconds >= 1 else "less than a second"


def _many(count: int, what: str) -> str:
    """Return a number with its noun, as in "1 row" or "2 rows".

    >>> _many(1, "row"), _many(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def _one_file(file: str, output: str, model: Any, column: str | None, as_json: bool) -> None:
    """Encode the texts of a file, or the lines of standard input."""
    from qkv.models import load_for
    from qkv.models.run.truncation import MAX_CHARS
    from qkv.models.sentence.encode import EmptyText
    from qkv.scale.sources import find_column, find_sources, texts_of

    name, has_rows = "standard input" if file == "-" else file, False
    texts: Iterable[str]
    if file == "-":
        if sys.stdin is None:
            raise ValueError("standard input is closed; pass a file")
        texts = read_lines(sys.stdin.buffer, name, MAX_CHARS)
    elif _is_stream(file):
        texts = lines_of(file, MAX_CHARS)
    else:
        [source, *others] = find_sources(file, "text" if column is None else column, "encode")
        if others:
            raise ValueError(
                f"{file} matches {len(others) + 1} files, which need workers: add --cluster local"
            )
        source, has_rows = find_column(source, "encode"), source.kind != ".txt"
        texts = FileTexts(file, lambda: texts_of(source, MAX_CHARS))
        if not len(texts):
            raise ValueError(_EMPTY.format(file))
    if column is not None and not isinstance(texts, FileTexts):
        raise ValueError(
            f"{name} is read line by line and has no column {column!r:.80}; pass a .jsonl, .csv or "
            ".parquet file, or omit --column"
        )
    if isinstance(texts, Iterator) and model == "random":
        texts = list(texts)  # the random model builds its vocabulary from all texts
        if not texts:
            raise ValueError(_EMPTY.format(name))
    used = load_for(texts, model) if isinstance(model, str | None) else model
    try:
        count, size = write_vectors(output, used, texts, name)
    except EmptyText as error:
        where = f"row {error.number}" if has_rows else f"line {error.number + 1}"
        raise ValueError(f"{name}, {where}: the text is empty, because {error.reason}") from error
    say(f"{used.name}: {_many(count, 'text')}, {size} numbers each, wrote {output}")
    if as_json:
        print_json({"model": used.name, "texts": count, "size": size, "output": output})


def _is_stream(file: str) -> bool:
    """Return whether a path is a pipe or a standard stream, whose lines are read only once."""
    path = Path(file)
    is_special = path.exists() and not (path.is_file() or path.is_dir())
    return (is_special and path.suffix in ("", ".txt")) or file.startswith(_STREAMS)


class Kept:
    """An iterable that stores every yielded text until `take` removes the text.

    >>> kept = Kept(["a", "b"])
    >>> [text.upper() for text in kept], kept.take(1), kept.take(1)
    (['A', 'B'], ['a'], ['b'])
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self._queue: deque[str] = deque()

    def __length_hint__(self) -> int:
        return length_hint(self._texts)

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self._queue.append(text)
            yield text

    def take(self, count: int) -> list[str]:
        """Remove and return the first `count` texts."""
        return [self._queue.popleft() for _ in range(count)]


def write_vectors(path: str, model: "Model", texts: Iterable[str], name: str) -> tuple[int, int]:
    """Write the vectors of texts as .npy or .jsonl; return the number and size of the vectors.

    Raises:
        ValueError: there are no texts. The message contains `name`, the name of the input file.
    """
    count = size = 0
    as_numpy = path.lower().endswith(".npy")
    queue = None if as_numpy else Kept(texts)
    with replacing(path) as file:
        for vectors in model.encode_stream(queue or texts):
            if queue is None:
                shape = (count + len(vectors), vectors.shape[1])
                about = {"descr": vectors.dtype.str, "fortran_order": False, "shape": shape}
                file.seek(0)
                np.lib.format.write_array_header_1_0(file, about)  # the header has a fixed length
                file.seek(0, os.SEEK_END)
                file.write(vectors.tobytes())
            else:
                for text, vector in zip(queue.take(len(vectors)), vectors, strict=True):
                    row = {"text": text, "vector": vector.tolist()}
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            count, size = count + len(vectors), vectors.shape[1]
        if not count:
            raise ValueError(_EMPTY.format(name))
    return count, size
