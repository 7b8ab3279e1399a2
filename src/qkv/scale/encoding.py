"""Encode each row of many files as a vector, on a cluster or in this process."""

import hashlib
import json
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, cast

import numpy as np

from qkv._progress import progress
from qkv.extras import need
from qkv.files import StrPath
from qkv.models import Model
from qkv.models.run.truncation import MAX_CHARS, Cut, counting
from qkv.models.sentence.encode import EmptyText
from qkv.scale._counting import BLOCK, MARK_ROWS, bad_row, counts_of, cut
from qkv.scale._manifest import MANIFEST, Folder, writing
from qkv.scale.sources import (
    Bad,
    RowRange,
    TextFile,
    digest_of,
    find_column,
    find_sources,
    kept_of,
    rows_of,
)
from qkv.scale.workers import Named, all_of, compute, current_client, load_once, resolve, workers_of

MOST_ROWS, MOST_BYTES = 8192, 2**24  # A part has at most this many rows, and this many bytes.
PARTS = 16  # The minimum number of parts per worker. Many small parts keep all workers busy.
SAMPLE = 64  # The number of rows per part that `estimate` encodes.
_SAVE = 1.0  # Seconds between two updates of the manifest.
_WINDOW = 2048  # The number of rows in one call of `Model.encode`.
CALL = "encode"
COLUMNS = ("id", "source", "row", "vector")  # The columns of each part.
Entry = dict[str, Any]  # The manifest, or the manifest's entry for one part.
WAY = 'correct it, or skip bad rows with on_error="skip"'


@dataclass(frozen=True)
class Encoded:
    """The result of `encode`.

    Attributes:
        rows: the number of vectors.
        skipped: `(source, row, reason)` for each bad row that was skipped.
        parts: the number of part files in the folder.
    """

    rows: int
    skipped: list[tuple[str, int, str]]
    parts: int


@dataclass(frozen=True)
class Estimate:
    """The numbers of rows and parts of a run, and its estimated duration in hours."""

    rows: int
    parts: int
    hours: float


@dataclass(frozen=True)
class _Plan:
    """The plan of a run: the sources, the model, and the parts to write."""

    sources: list[TextFile]
    digests: list[str]
    model: Named
    sizes: dict[str, int]
    parts: list[RowRange]

    @cached_property
    def about(self) -> Entry:
        """The entries of the manifest that describe the plan."""
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
                {"path": source.path, "rows": count, "checksum": digest}
                for source, count, digest in files
            ],
            **({"keep": list(self.sources[0].keep)} if self.sources[0].keep else {}),
        }

    @cached_property
    def digest(self) -> str:
        """A short checksum of the plan. The file name of each part contains this checksum."""
        return hashlib.blake2b(json.dumps(self.about).encode(), digest_size=4).hexdigest()

    def name(self, number: int) -> str:
        """Return the file name of a part."""
        return f"part-{number:06}-{self.digest}.parquet"


def encode(
    model: StrPath | None,
    sources: Any,
    destination: StrPath,
    *,
    client: Any = None,
    column: str = "text",
    keep: Sequence[str] = (),
    resume: bool = True,
    on_error: str = "raise",
) -> Encoded:
    r"""Write a vector for each row of many files, on a Dask cluster or in this process.

    The files are read twice: first to count and check the rows, then to encode the rows part by
    part. All workers must see the same files, destination and model under the same names. Texts are
    truncated as in `Model.encode`, and the vectors are equal to the vectors of `Model.encode`. To
    reach a part of a compressed file, a worker reads the file from its beginning, so several small
    compressed files are faster than one large compressed file.

    If a run is stopped, its complete parts remain, and the next run writes the missing parts. The
    next run first compares the model's files, the sources and the existing parts with the checksums
    that the stopped run saved. It raises an error if the model or a source has changed, and
    replaces damaged parts.

    Args:
        model: the name or the folder of a model, as for `qkv.load`; None for the default.
        sources: a path, a glob, or a list of paths and globs. The files are .txt (each line is a
            row, even a blank line), .jsonl, .csv with a header, or .parquet. All except .parquet
            may be compressed (.gz, .bz2, .xz or .zst). A path is a local path, or a URL that fsspec
            opens.
        destination: a local folder, or a folder that fsspec opens. Its files `part-*.parquet` have
            the columns id (int64, counted over the rows of all sources), source, row (counted from
            0 in the source) and vector (a list of D float32). `_manifest.json` lists the files that
            are complete.
        client: the cluster's client. The default is the current client. If there is no client, this
            process encodes the rows.
        column: the name of the column with the texts; not used for .txt.
        keep: the names of other columns of the sources, which are copied to the parts. A column of
            a .parquet file keeps its type. A column of any other file becomes strings: a .jsonl
            value that is not a string is written as JSON. Copied columns that are named id, source,
            row or vector become source_id, source_source, source_row or source_vector.
        resume: False to start again, even if the folder already has vectors.
        on_error: "raise" to stop at a bad row, or "skip" to omit the row and its id. A row is bad
            if it is not valid UTF-8, JSON or CSV, if its column is missing or not a string, or if
            its text has no token.

    Raises:
        TypeError: the model is not a name, or a source is not a path.
        ValueError: a row is bad; the folder holds vectors of different sources or of a different
            model; or an argument has an invalid value.
        FileNotFoundError: a source or the model does not exist.
        RuntimeError: another run writes to the folder.
        ConnectionError: the scheduler or all workers were lost.

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
        raise ValueError(f"{CALL}: destination is {destination!r:.80}; pass the name of a folder")
    client, folder, run = current_client(client), Folder(os.fspath(destination)), uuid.uuid4().hex
    if folder.is_local:
        folder = Folder(os.path.abspath(os.path.expanduser(folder.path)))
    which, files = resolve(model, CALL), _find_files(sources, column, keep)
    _check_model(load_once(which, CALL))
    old = folder.manifest(CALL) if resume else None
    plan = _make_plan(which, files, client, on_error == "raise", old)
    with writing(folder, run, CALL):
        # Read the manifest again: another run may have changed it before this run took the lock.
        old = folder.manifest(CALL) if resume else None
        if old is not None:
            _compare(plan, old, folder)
        done = _find_done(plan, old, folder, client)
        if old is None or not resume:
            folder.remove(MANIFEST)
        folder.clean({part["name"] for part in done.values()})
        _run(plan, done, folder, client, run, on_error == "skip")
        folder.clean({part["name"] for part in done.values()})  # what killed workers left
    skipped = [
        (plan.parts[number].source.path, int(row), str(reason))
        for number, part in sorted(done.items())
        for row, reason in part["skipped"]
    ]
    return Encoded(sum(part["rows"] for part in done.values()), skipped, len(done))


def estimate(
    model: Any,
    sources: Any,
    *,
    client: Any = None,
    column: str = "text",
    keep: Sequence[str] = (),
    on_error: str = "raise",
) -> Estimate:
    """Count the rows and parts that `encode` would write; estimate the duration from a sample."""
    client, which = current_client(client), resolve(model, CALL)
    _check_model(load_once(which, CALL))
    files = _find_files(sources, column, keep)
    plan = _make_plan(which, files, client, on_error == "raise", None)
    crew = workers_of(client, CALL)
    step = max(1, len(plan.parts) // (2 * crew))
    samples = all_of(client, _time_sample, plan.parts[::step], call=CALL, model=which)
    count, seconds = map(sum, zip(*samples, strict=True)) if samples else (0, 0.0)
    rows = sum(part.rows for part in plan.parts)
    hours = rows * seconds / count / crew / 3600 if count else 0.0
    return Estimate(rows, len(plan.parts), hours)


def _find_files(sources: Any, column: str, keep: Sequence[str]) -> list[TextFile]:
    """Find the sources, and check the names of the columns to keep."""
    is_list = isinstance(keep, list | tuple) and all(isinstance(name, str) for name in keep)
    if not is_list or "" in keep or len({*map(_name_of_kept, keep)}) < len(keep):
        raise ValueError(f"{CALL}: keep is {keep!r:.80}; pass a list of different column names")
    return [replace(file, keep=tuple(keep)) for file in find_sources(sources, column, CALL)]


def _name_of_kept(column: str) -> str:
    """Return the name of a source's column in a part, which also has its own columns."""
    return f"source_{column}" if column in COLUMNS else column


def _time_sample(model: Model, part: RowRange) -> tuple[int, float]:
    """Encode a sample of a part; return the number of rows, and how many seconds they took."""
    texts = [text for text in rows_of(part, MOST_BYTES) if isinstance(text, str) and text.strip()]
    texts = texts[:: max(1, len(texts) // SAMPLE)][:SAMPLE]
    model.encode(texts[:1], show_progress_bar=False)
    begin = time.perf_counter()
    model.encode(texts, show_progress_bar=False)
    return len(texts), time.perf_counter() - begin


def _check_model(model: Model) -> None:
    """Raise an error unless the model encodes texts."""
    model.encode([], show_progress_bar=False)


def _make_plan(
    model: Named, files: list[TextFile], client: Any, check: bool, old: Entry | None
) -> _Plan:
    """Count all rows and plan a run.

    If the folder already has the manifest `old`, the sizes of blocks and parts come from `old`.
    """
    files = [find_column(file, CALL) for file in files]
    sizes = dict(old["sizes"]) if old else {"block": BLOCK, "bytes": MOST_BYTES}
    counts = counts_of(files, client, CALL, check=check, size=sizes["block"], way=WAY)
    total = sum(block.rows for blocks in counts for block in blocks)
    if "rows" not in sizes:
        share = -(-total // (PARTS * max(1, workers_of(client, CALL))))
        sizes["rows"] = min(MOST_ROWS, max(2 * MARK_ROWS, share))
    parts = cut(files, counts, sizes["rows"], sizes["bytes"])
    digests = [digest_of("".join(block.digest for block in blocks).encode()) for blocks in counts]
    return _Plan(files, digests, model, sizes, parts)


def _compare(plan: _Plan, old: Entry, folder: Folder) -> None:
    """Raise an error if a folder holds vectors of different texts or of a different model."""
    way = "choose another folder, or start again with resume=False"
    new = plan.about
    here = f"{CALL}: {folder.path} holds vectors"
    if old["model"]["checksum"] != new["model"]["checksum"]:
        raise ValueError(
            f"{here} of model {old['model']['name']}, whose files differ from the files of the "
            f"given model, {new['model']['name']}: {way}"
        )
    if old["column"] != new["column"]:
        raise ValueError(
            f"{here} of column {old['column']!r}, but column is {new['column']!r}: {way}"
        )
    if (kept := old.get("keep", [])) != (keep := new.get("keep", [])):
        raise ValueError(f"{here} with the columns {kept!r:.80}, but keep is {keep!r:.80}: {way}")
    before, after = ([file["path"] for file in about["sources"]] for about in (old, new))
    if before != after:
        pairs = zip(before, after, strict=False)
        other = next((pair for pair in pairs if pair[0] != pair[1]), None)
        what = (
            f"{other[0]}, not {other[1]}" if other else f"{len(before)} sources, not {len(after)}"
        )
        raise ValueError(f"{here} of {what}: {way}")
    for earlier, file in zip(old["sources"], new["sources"], strict=True):
        if earlier != file:
            raise ValueError(
                f"{CALL}: {file['path']} has changed since its vectors were written to "
                f"{folder.path}: {way}"
            )
    if old["sizes"] != new["sizes"]:  # another run has begun in this folder
        raise RuntimeError(f"{CALL}: another run has begun in {folder.path}: call encode again")


def _find_done(plan: _Plan, old: Entry | None, folder: Folder, client: Any) -> dict[int, Entry]:
    """Return the entries of the old manifest for undamaged parts, keyed by part number."""
    entries = {int(number): entry for number, entry in (old["parts"] if old else {}).items()}
    entries = {number: entry for number, entry in entries.items() if number < len(plan.parts)}
    whole = all_of(client, is_whole, [(folder, entry) for entry in entries.values()], call=CALL)
    return {number: entries[number] for number, fine in zip(entries, whole, strict=True) if fine}


def _run(
    plan: _Plan, done: dict[int, Entry], folder: Folder, client: Any, run: str, skip: bool
) -> None:
    """Write the missing parts. Even after an error, list the complete parts in the manifest."""
    missing = [number for number in range(len(plan.parts)) if number not in done]
    orders = [Order(plan.parts[number], folder, plan.name(number), run, skip) for number in missing]
    texts_cut = Cut(None)

    def save() -> float:
        parts = {str(number): done[number] for number in sorted(done)}
        whole = {**plan.about, "whole": len(done) == len(plan.parts), "parts": parts}
        folder.write(MANIFEST, json.dumps(whole, indent=1).encode())
        return time.monotonic()

    saved = save()
    total = sum(plan.parts[number].rows for number in missing)
    results = compute(client, write_part, orders, call=CALL, model=plan.model)
    try:
        with closing(results), progress(CALL, total, unit="rows") as advance:
            for index, (entry, cut_here) in results:
                done[missing[index]] = entry
                texts_cut = cut_here + texts_cut
                advance(plan.parts[missing[index]].rows)
                if time.monotonic() - saved > _SAVE:
                    saved = save()
    finally:
        save()
    texts_cut.warn()


@dataclass(frozen=True)
class Order:
    """The instruction to write one part.

    Attributes:
        part: the rows.
        folder: the destination.
        name: the name of the file.
        run: the run's identifier, which the lock of the folder contains.
        skip: whether bad rows are skipped.
    """

    part: RowRange
    folder: Folder
    name: str
    run: str
    skip: bool

    def __str__(self) -> str:
        part = self.part
        return f"rows {part.row} to {part.row + part.rows - 1} of {part.source.path}"


def write_part(model: Model, order: Order) -> tuple[Entry, Cut]:
    """Write the vectors of a part; return its manifest entry and the number of truncated texts.

    Raises:
        ValueError: a row is bad (the error names it), or the source has changed.
    """
    part, rows, vectors, skipped = order.part, [], [], []
    numbered = enumerate(rows_of(part, MAX_CHARS), part.row)
    seen, texts_cut = 0, Cut(model.max_seq_length)
    while window := list(islice(numbered, _WINDOW)):
        good: list[Any] = []
        bad: list[Any] = []
        for row, text in window:
            (bad if isinstance(text, Bad) else good).append((row, text))
        seen += len(window)
        with counting(texts_cut):
            vectors.append(_encode(model, good, bad))
        reasons = sorted((row, text.reason) for row, text in bad)
        if reasons and not order.skip:
            raise ValueError(bad_row(CALL, part.source, *reasons[0], WAY))
        skipped += reasons
        rows += [row for row, _ in good]
    if seen != part.rows:
        raise ValueError(f"{CALL}: {part.source.path} changed while it was read: encode a copy")
    data = _parquet(part, rows, np.concatenate(vectors))
    if not order.folder.is_ours(order.run):
        raise RuntimeError(
            f"{CALL}: the run that requested {order.name} has ended: call encode again"
        )
    order.folder.write(order.name, data)
    entry = {"name": order.name, "rows": len(rows), "skipped": skipped}
    return {**entry, "bytes": len(data), "checksum": digest_of(data)}, texts_cut


def is_whole(_: Any, case: tuple[Folder, Entry]) -> bool:
    """Return whether the file of a part matches its entry in the manifest."""
    folder, entry = case
    data = folder.read(entry["name"])
    return data is not None and len(data) == entry["bytes"] and digest_of(data) == entry["checksum"]


def _encode(model: Model, good: list[Any], bad: list[Any]) -> Any:
    """Return the vectors of `good` rows; move rows without a token from `good` to `bad`."""
    while True:
        try:
            return model.encode([text for _, text in good], show_progress_bar=False)
        except EmptyText as error:
            empty = good[error.number][1]
            reason = Bad(f"is empty: {error.reason}")
            bad += [(row, reason) for row, text in good if text == empty]
            good[:] = [(row, text) for row, text in good if text != empty]


def _parquet(part: RowRange, rows: list[int], vectors: Any) -> bytes:
    """Return the bytes of a Parquet file with these rows of a part."""
    arrow, parquet = need("pyarrow", "scale"), need("pyarrow.parquet", "scale")
    row = np.array(rows, np.int64)
    flat = arrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    table = arrow.table(
        {
            "id": arrow.array(row - part.row + part.first),
            "source": arrow.array([part.source.path] * len(row), arrow.string()),
            "row": arrow.array(row),
            "vector": arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
            **dict(zip(map(_name_of_kept, part.source.keep), kept_of(part, rows), strict=True)),
        }
    )
    out = arrow.BufferOutputStream()
    parquet.write_table(table, out, use_dictionary=["source"], compression="zstd")
    return cast("bytes", out.getvalue().to_pybytes())
