"""A part of the vectors: computed by one task, and written whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from qkv.extras import need
from qkv.models import Model
from qkv.models.run.truncation import MOST, Cut, counting
from qkv.models.sentence.encoder import EmptyText
from qkv.scale.counting import bad_row
from qkv.scale.manifest import Folder
from qkv.scale.sources import Bad, Part, digest_of, rows_of

_WINDOW = 2048  # rows that are encoded at once
WAY = 'mend it, or skip bad rows with on_error="skip"'


@dataclass(frozen=True)
class Order:
    """A part that is to be written.

    Attributes:
        part: its rows.
        folder: where to.
        name: of its file.
        run: that asks for it.
        skip: whether bad rows are left out.
        call: the name that errors begin with.
    """

    part: Part
    folder: Folder
    name: str
    run: str
    skip: bool
    call: str

    def __str__(self) -> str:
        part = self.part
        return f"rows {part.row} to {part.row + part.rows - 1} of {part.source.path}"


def write_part(model: Model, order: Order) -> tuple[dict[str, Any], Cut]:
    """Encode the rows of a part and write them; what the manifest says of it, and what was cut.

    Raises:
        ValueError: a row is bad; the error names it. Or the source has changed.
    """
    part, rows, vectors, skipped = order.part, [], [], []
    seen, texts_cut = 0, Cut(model.max_seq_length)
    for window in _windows(rows_of(part, MOST)):
        good: list[Any] = []
        bad: list[Any] = []
        for row, text in enumerate(window, part.row + seen):
            (bad if isinstance(text, Bad) else good).append((row, text))
        seen += len(window)
        with counting(texts_cut):
            found = _encoded(model, good, bad)
        if bad and not order.skip:
            row, why = min(bad, key=lambda one: one[0])
            raise ValueError(bad_row(order.call, part.source, row, why.reason, WAY))
        skipped += [[row, why.reason] for row, why in sorted(bad, key=lambda one: one[0])]
        rows += [row for row, _ in good]
        vectors.append(found)
    if seen != part.rows:
        raise ValueError(f"{order.call}: {part.source.path} changed while it was read: take a copy")
    about: dict[str, Any] = {"name": order.name, "rows": len(rows), "skipped": skipped}
    data = _parquet(part, rows, np.concatenate(vectors))
    if not order.folder.is_ours(order.run):
        raise RuntimeError(f"{order.call}: the run that asked for {order.name} has ended")
    order.folder.write(order.name, data)
    return {**about, "bytes": len(data), "checksum": digest_of(data)}, texts_cut


def is_whole(_: Any, case: tuple[Folder, dict[str, Any]]) -> bool:
    """Whether a part's file is as the manifest says."""
    folder, about = case
    data = folder.read(about["name"])
    return data is not None and len(data) == about["bytes"] and digest_of(data) == about["checksum"]


def _encoded(model: Model, good: list[Any], bad: list[Any]) -> Any:
    """The vectors of rows; those without a token go from `good` to `bad`."""
    while True:
        try:
            return model.encode([text for _, text in good], show_progress_bar=False)
        except EmptyText as error:
            empty = good[error.number][1].strip()
            bad += [
                (row, Bad(f"is empty: {error.reason}"))
                for row, text in good
                if text.strip() == empty
            ]
            good[:] = [one for one in good if one[1].strip() != empty]


def _windows(rows: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(rows)
    while window := list(islice(left, _WINDOW)):
        yield window


def _parquet(part: Part, rows: list[int], vectors: Any) -> bytes:
    """The bytes of a Parquet file of some rows."""
    arrow, parquet = need("pyarrow", "scale"), need("pyarrow.parquet", "scale")
    row = np.array(rows, np.int64)
    flat = arrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
    table = arrow.table(
        {
            "id": arrow.array(row - part.row + part.first),
            "source": arrow.array([part.source.path] * len(row), arrow.string()),
            "row": arrow.array(row),
            "vector": arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
    )
    out = arrow.BufferOutputStream()
    parquet.write_table(table, out, use_dictionary=["source"], compression="zstd")
    data: bytes = out.getvalue().to_pybytes()
    return data
