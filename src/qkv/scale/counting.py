"""The rows of many files, counted block by block on a cluster's workers or here."""

from __future__ import annotations

from typing import Any

from qkv.scale.sources import BLOCK, Block, Count, Source, blocks_of, count
from qkv.scale.workers import each


def counts_of(
    files: list[Source],
    client: Any,
    call: str,
    *,
    check: bool = True,
    size: int = BLOCK,
    way: str = "mend it",
) -> list[list[Count]]:
    """What counting the blocks of each file gives; every row is looked at if they are checked.

    Args:
        files: described ones.
        client: of the cluster that counts; None for this process.
        call: the name that errors begin with.
        check: whether a bad row is an error.
        size: bytes of a block.
        way: what to do about a bad row.

    Raises:
        ValueError: a row is bad; the error names it.
    """
    blocks = [(number, one) for number, file in enumerate(files) for one in blocks_of(file, size)]
    found = dict(each(client, _count, [(one, check) for _, one in blocks], call=call))
    counts: list[list[Count]] = [[] for _ in files]
    for place, (number, _) in enumerate(blocks):
        counts[number].append(found[place])
    torn = [number for number, some in enumerate(counts) if not all(one.whole for one in some)]
    streams = [(Block(files[number]), check) for number in torn]  # of quoted line ends
    for place, one in each(client, _count, streams, call=call):
        counts[torn[place]] = [one]
    for file, some in zip(files, counts, strict=True):
        row = 0
        for one in some:
            if one.bad:
                raise ValueError(bad_row(call, file, row + one.bad[0], one.bad[1], way))
            row += one.rows
    return counts


def bad_row(call: str, file: Source, row: int, reason: str, way: str = "mend it") -> str:
    """The error of a row that has no text."""
    return f"{call}: {file.path}, row {row} {reason}: {way}"


def _count(_: None, case: tuple[Block, bool]) -> Count:
    return count(*case)
