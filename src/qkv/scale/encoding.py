"""A vector for each row of many files, on a cluster or here, into a folder of Parquet parts."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qkv.models import Model
from qkv.models.run.truncation import Cut
from qkv.progress import progress
from qkv.scale.counting import counts_of
from qkv.scale.manifest import MANIFEST, Folder, writing
from qkv.scale.parts import WAY, Order, is_whole, write_part
from qkv.scale.sources import (
    BLOCK,
    MARK_ROWS,
    Part,
    Source,
    cut,
    described,
    find_sources,
    rows_of,
)
from qkv.scale.workers import Named, current_client, each, loaded, named, workers_of

MOST_ROWS, MOST_BYTES = 8192, 2**24  # of a part
PARTS = 16  # for each worker at least, so that none waits long for the last
SAMPLE = 64  # rows of a part that are tried to say how long all take
_SAVE = 1.0  # seconds between two manifests
CALL = "encode"


@dataclass(frozen=True)
class Encoded:
    """What `encode` has written.

    Attributes:
        rows: how many vectors.
        skipped: (source, row, why) of each bad row that was left out.
        parts: how many files.
    """

    rows: int
    skipped: list[tuple[str, int, str]]
    parts: int


@dataclass(frozen=True)
class Estimate:
    """What a run would do: its rows, its parts, and how many hours it would take."""

    rows: int
    parts: int
    hours: float


@dataclass(frozen=True)
class _Plan:
    """What a run does: all of it follows from the sources, the model and two sizes."""

    sources: list[Source]
    digests: list[str]
    model: Named
    sizes: dict[str, int]
    parts: list[Part]

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the manifest says of it."""
        rows = [0] * len(self.sources)
        for part in self.parts:
            rows[part.number] += part.rows
        files = zip(self.sources, rows, self.digests, strict=True)
        return {
            "qkv": 1,
            "model": {"name": self.model.name, "checksum": self.model.checksum},
            "column": self.sources[0].column,
            "sizes": self.sizes,
            "sources": [
                {"path": one.path, "rows": count, "checksum": digest}
                for one, count, digest in files
            ],
        }

    @cached_property
    def digest(self) -> str:
        """Of all that follows from it, for the names of files."""
        return hashlib.blake2b(json.dumps(self.about).encode(), digest_size=4).hexdigest()

    def name(self, number: int) -> str:
        """The file of a part."""
        return f"part-{number:06}-{self.digest}.parquet"


def encode(
    model: str | os.PathLike[str] | None,
    sources: Any,
    destination: str | os.PathLike[str],
    *,
    client: Any = None,
    column: str = "text",
    resume: bool = True,
    on_error: str = "raise",
) -> Encoded:
    r"""Write a vector for each row of many files, on the workers of a Dask cluster or here.

    The files are read twice: once to count their rows and to look at each, then part by part by
    whoever encodes it. Workers open them and the destination by the same names, and load the model
    by its name. A text is cut as in `Model.encode`, whose vectors these are. A compressed file is
    read from its beginning for each of its parts, so many small ones go faster than one large one.

    What a run has made stays where it is ended, and the next one goes on there. It compares the
    checksums of the model's files, of all sources, and of the parts that are there, of which those
    that are not as they were written are made again.

    Args:
        model: a name or folder, as `qkv.load` takes it; None for the default.
        sources: a path, a glob or a list of them: .txt (a row a line, blank ones too), .jsonl,
            .csv with a header (all three also .gz, .bz2, .xz or .zst), or .parquet; local, or
            anything that fsspec opens.
        destination: a folder, local or anything that fsspec opens. Its files `part-*.parquet` have
            the columns id (int64, in order over the rows of all sources), source, row (in the
            source, from 0) and vector (a list of float32, D); `_manifest.json` says which are
            whole.
        client: of the cluster; None for the current one, else this process.
        column: where texts are, in every kind but .txt.
        resume: False to begin anew, whatever is in the folder.
        on_error: "raise" to end at a row that is not UTF-8, JSON or CSV, whose column is missing or
            no string, or that has no token; "skip" to leave it and its id out.

    Raises:
        TypeError: the model is no name, or a source no path.
        ValueError: a row is bad; a source or the model is not that of the folder; an argument
            makes no sense.
        FileNotFoundError: there is no such file, or no such model.
        RuntimeError: another run writes to the folder.
        ConnectionError: the scheduler was lost, or all workers were.

    >>> import tempfile, pathlib
    >>> home = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (home / "a.txt").write_text("the cat sat\non the mat\n")
    >>> done = encode("random", str(home / "*.txt"), home / "vectors")
    >>> done.rows, done.skipped, done.parts
    (2, [], 1)
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'{CALL}: on_error is {on_error!r:.80}: choose "raise" or "skip"')
    if not isinstance(destination, str | os.PathLike) or not os.fspath(destination):
        raise ValueError(f"{CALL}: destination is {destination!r:.80}: give the name of a folder")
    client, folder, run = current_client(client), Folder(os.fspath(destination)), uuid.uuid4().hex
    if folder.is_local:
        folder = Folder(os.path.abspath(os.path.expanduser(folder.path)))
    which, files = named(model, CALL), find_sources(sources, column, CALL)
    _check_model(loaded(which, CALL))
    old = folder.manifest(CALL) if resume else None
    plan = _planned(which, files, client, on_error == "raise", old)
    with writing(folder, run, CALL):
        old = folder.manifest(CALL) if resume else None  # that of a run that has ended meanwhile
        if old is not None:
            _compare(plan, old, folder)
        done = _done(plan, old, folder, client)
        if old is None or not resume:
            folder.remove(MANIFEST)
        folder.clean({part["name"] for part in done.values()})
        _run(plan, done, folder, client, run, on_error == "skip")
    skipped = [
        (plan.parts[number].source.path, int(row), str(reason))
        for number, part in sorted(done.items())
        for row, reason in part["skipped"]
    ]
    return Encoded(sum(part["rows"] for part in done.values()), skipped, len(done))


def estimate(
    model: Any, sources: Any, *, client: Any = None, column: str = "text", on_error: str = "raise"
) -> Estimate:
    """What `encode` would do, and how long it would take, by a sample that is encoded."""
    client, which = current_client(client), named(model, CALL)
    _check_model(loaded(which, CALL))
    files = find_sources(sources, column, CALL)
    plan = _planned(which, files, client, on_error == "raise", None)
    crew = workers_of(client)
    step = max(1, len(plan.parts) // (2 * crew))
    found = [one for _, one in each(client, _tried, plan.parts[::step], call=CALL, model=which)]
    count, seconds = sum(one[0] for one in found), sum(one[1] for one in found)
    rows = sum(part.rows for part in plan.parts)
    hours = rows * seconds / count / crew / 3600 if count else 0.0
    return Estimate(rows, len(plan.parts), hours)


def _tried(model: Model, part: Part) -> tuple[int, float]:
    """How many rows of a part were encoded, and in how many seconds."""
    texts = [text for text in rows_of(part, MOST_BYTES) if isinstance(text, str) and text.strip()]
    texts = texts[:: max(1, len(texts) // SAMPLE)][:SAMPLE]
    model.encode(texts[:1], show_progress_bar=False)
    begin = time.perf_counter()
    model.encode(texts, show_progress_bar=False)
    return len(texts), time.perf_counter() - begin


def _check_model(model: Model) -> None:
    """Raise where a model gives no vectors of texts."""
    model.encode([], show_progress_bar=False)


def _planned(
    model: Named, files: list[Source], client: Any, check: bool, old: dict[str, Any] | None
) -> _Plan:
    """The plan of a run, after all rows were counted, with the sizes of an earlier one."""
    files = [described(one, CALL) for one in files]
    sizes = dict(old["sizes"]) if old else {"block": BLOCK, "bytes": MOST_BYTES}
    counts = counts_of(files, client, CALL, check=check, size=sizes["block"], way=WAY)
    total = sum(one.rows for some in counts for one in some)
    if "rows" not in sizes:
        share = -(-total // (PARTS * max(1, workers_of(client))))
        sizes["rows"] = min(MOST_ROWS, max(2 * MARK_ROWS, share))
    parts = cut(files, counts, sizes["rows"], sizes["bytes"])
    digests = [
        hashlib.blake2b("".join(one.digest for one in some).encode(), digest_size=16).hexdigest()
        for some in counts
    ]
    return _Plan(files, digests, model, sizes, parts)


def _compare(plan: _Plan, old: dict[str, Any], folder: Folder) -> None:
    """Raise where a folder holds the vectors of other texts, or of another model."""
    way = "choose another folder, or begin anew with resume=False"
    new = plan.about
    here = f"{CALL}: {folder.path} holds vectors"
    if old["model"]["checksum"] != new["model"]["checksum"]:
        raise ValueError(
            f"{here} of model {old['model']['name']} and this is {new['model']['name']}, whose "
            f"files are others: {way}"
        )
    if old["column"] != new["column"]:
        raise ValueError(
            f"{here} of column {old['column']!r} and this is column {new['column']!r}: {way}"
        )
    before, after = ([one["path"] for one in about["sources"]] for about in (old, new))
    if before != after:
        pairs = zip(before, after, strict=False)
        other = next((pair for pair in pairs if pair[0] != pair[1]), None)
        what = (
            f"{other[0]}, not of {other[1]}"
            if other
            else f"{len(before)} sources, not of {len(after)}"
        )
        raise ValueError(f"{here} of {what}: {way}")
    for one, two in zip(old["sources"], new["sources"], strict=True):
        if one != two:
            raise ValueError(
                f"{CALL}: {two['path']} has changed since its vectors were written to "
                f"{folder.path}: {way}"
            )
    if old["sizes"] != new["sizes"]:  # another run began here meanwhile
        raise RuntimeError(f"{CALL}: another run has begun in {folder.path}: run the same again")


def _done(
    plan: _Plan, old: dict[str, Any] | None, folder: Folder, client: Any
) -> dict[int, dict[str, Any]]:
    """The parts that are whole, by their number."""
    said = {int(number): part for number, part in (old or {"parts": {}})["parts"].items()}
    likely = [(number, part) for number, part in said.items() if number < len(plan.parts)]
    cases = [(folder, part) for _, part in likely]
    return {
        likely[place][0]: likely[place][1]
        for place, whole in each(client, is_whole, cases, call=CALL)
        if whole
    }


def _run(
    plan: _Plan,
    done: dict[int, dict[str, Any]],
    folder: Folder,
    client: Any,
    run: str,
    skip: bool,
) -> None:
    """Write what is missing, and in the manifest what is whole, however it ends."""
    missing = [number for number in range(len(plan.parts)) if number not in done]
    orders = [
        Order(plan.parts[number], folder, plan.name(number), run, skip, CALL) for number in missing
    ]
    texts_cut = Cut(None)

    def save() -> float:
        parts = {str(number): done[number] for number in sorted(done)}
        whole = {**plan.about, "whole": len(done) == len(plan.parts), "parts": parts}
        folder.write(MANIFEST, json.dumps(whole, indent=1).encode())
        return time.monotonic()

    saved = save()
    total = sum(plan.parts[number].rows for number in missing)
    results = each(client, write_part, orders, call=CALL, model=plan.model)
    try:
        with closing(results), progress(CALL, total, unit="rows") as advance:
            for place, (part, cut_here) in results:
                done[missing[place]] = part
                texts_cut = cut_here + texts_cut
                advance(plan.parts[missing[place]].rows)
                if time.monotonic() - saved > _SAVE:
                    saved = save()
    finally:
        save()
    texts_cut.warn()
