"""Count the rows of many files on workers or in this process, and cut the files into parts."""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import IO, Any, TypeVar

import numpy as np

from qkv.arrays import Array
from qkv.scale.sources import LONGEST, Bad, RowRange, TextFile, digest_of
from qkv.scale.workers import all_of
from qkv.text.lines import each_line

WAY = "correct it"  # The end of the error message for a bad row.
BLOCK = 2**24  # The number of bytes in a block.
# The maximum number of rows, and the maximum number of bytes, between two marks. A mark is a row at
# which a part may begin.
MARK_ROWS, MARK_BYTES = 256, 2**20
_T = TypeVar("_T")


@dataclass(frozen=True)
class InputBlock:
    """The input of one task: the lines that begin in a byte range, or a Parquet row group.

    Attributes:
        source: the file.
        begin: the first byte of the range, or the number of the row group.
        end: the byte after the range; None for the end of the file.
    """

    source: TextFile
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Count:
    """The number of rows in a block, the positions at which a part may begin, and a checksum.

    Attributes:
        rows: the number of rows that begin in the block.
        marks: (M, 2), the row number and the byte position of each row that may begin a part.
        end: the position after the last row.
        digest: a checksum of the block's bytes, or of the row group's texts.
        bad: the number (from 0) of the first bad row, and the reason; None if all rows are good.
        whole: whether each line is a row; False if a row of a CSV has a line break inside quotes.
    """

    rows: int
    marks: Array
    end: int
    digest: str
    bad: tuple[int, str] | None = None
    whole: bool = True


def blocks_of(source: TextFile, size: int = BLOCK) -> list[InputBlock]:
    """Divide a source into blocks of at most `size` bytes; a compressed file is one block."""
    if source.kind == ".parquet":
        return [InputBlock(source, group) for group in range(source.parquet().num_row_groups)]
    if source.packed:
        return [InputBlock(source)]
    return [InputBlock(source, begin, begin + size) for begin in range(0, source.size, size)]


def counts_of(
    files: list[TextFile],
    client: Any,
    call: str,
    *,
    check: bool = True,
    size: int = BLOCK,
    way: str = WAY,
) -> list[list[Count]]:
    """Count the rows in every block of every file, on a cluster's workers or in this process.

    Args:
        files: the sources, as returned by `described`.
        client: the cluster's client; None to count in this process.
        call: the name of the calling function; error messages begin with this name.
        check: whether a bad row raises an error.
        size: the number of bytes in a block.
        way: the end of the error message for a bad row, which tells the user what to do.

    Raises:
        ValueError: a row is bad; the error names the row.
    """
    blocks = [(number, one) for number, file in enumerate(files) for one in blocks_of(file, size)]
    counts: list[list[Count]] = [[] for _ in files]
    cases = [(block, check) for _, block in blocks]
    for (number, _), result in zip(blocks, all_of(client, _count, cases, call=call), strict=True):
        counts[number].append(result)
    torn = [number for number, some in enumerate(counts) if not all(c.whole for c in some)]
    # Files with line ends inside quotes cannot be counted in blocks: count them again as a whole.
    streams = [(InputBlock(files[number]), check) for number in torn]
    for number, result in zip(torn, all_of(client, _count, streams, call=call), strict=True):
        counts[number] = [result]
    for file, some in zip(files, counts, strict=True):
        row = 0
        for result in some:
            if result.bad:
                raise ValueError(bad_row(call, file, row + result.bad[0], result.bad[1], way))
            row += result.rows
    return counts


def bad_row(call: str, file: TextFile, row: int, reason: str, way: str = WAY) -> str:
    """Return the error message for a bad row."""
    return f"{call}: {file.path}, row {row} {reason}: {way}"


def _count(_: None, case: tuple[InputBlock, bool]) -> Count:
    return count(*case)


def count(block: InputBlock, check: bool = True) -> Count:
    """Count the rows that begin in a block. If `check` is true, also find the first bad row."""
    if block.source.kind == ".parquet":
        return _count_group(block, check)
    if block.source.packed or block.end is None:
        return _count_stream(block.source, check)
    with block.source.open() as stream:
        before = b"\n"  # the start of a file is the start of a line
        if block.begin:
            stream.seek(block.begin - 1)
            before = stream.read(1)
        data = stream.read(block.end - block.begin)
        begins = _begins(before, data) + block.begin
        rest = b"" if not len(begins) else _to_the_next(stream, data[-1:])
    digest = digest_of(data)
    if not len(begins):
        return Count(0, np.empty((0, 2), np.int64), block.begin, digest)
    end = block.begin + len(data) + len(rest)
    data = data[int(begins[0]) - block.begin :] + rest
    is_csv = block.source.kind == ".csv"
    header = is_csv and block.begin == 0  # the header is not a row
    whole = not (is_csv and _is_open(data))
    bad = _first_bad(block.source, data, block.begin == 0) if check and whole else None
    marks = _marks(begins[int(header) :])
    return Count(len(begins) - header, marks, end, digest, bad, whole)


def _count_stream(source: TextFile, check: bool) -> Count:
    """Count the rows of a whole file."""
    marks: list[tuple[int, int]] = []
    bad, rows, begin = None, 0, 0
    with source.open() as stream:
        seen = _CheckedStream(stream)
        for text in source.rows(seen.count_lines(each_line(seen, None))):
            if begin or source.kind != ".csv":
                row, at = marks[-1] if marks else (-MARK_ROWS, 0)
                if rows - row >= MARK_ROWS or begin - at >= MARK_BYTES:
                    marks.append((rows, begin))
                if check and bad is None and isinstance(text, Bad):
                    bad = rows, text.reason
                rows += 1
            begin = seen.end
    return Count(rows, np.array(marks, np.int64).reshape(-1, 2), begin, seen.hash.hexdigest(), bad)


class _CheckedStream:
    """A stream that reads from `stream`, and computes a checksum and the positions of line ends."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._last = stream, b"\n"
        self.hash = hashlib.blake2b(digest_size=16)
        self._begins: Array = np.empty(0, np.int64)  # where the lines of the current block begin
        self._lines = self._first = self._size = 0

    def read(self, size: int) -> bytes:
        r"""Read a block. After a final \r, read the next byte too: \r\n is one line break."""
        data = self._stream.read(size)
        while data.endswith(b"\r") and (more := self._stream.read(1)):
            data += more
        if data:
            self._first += len(self._begins)
            self._begins = _begins(self._last, data) + self._size
            self._size, self._last = self._size + len(data), data[-1:]
            self.hash.update(data)
        return data

    def count_lines(self, lines: Iterable[_T]) -> Iterator[_T]:
        """Yield `lines` unchanged, and count them."""
        for line in lines:
            self._lines += 1
            yield line

    @property
    def end(self) -> int:
        """The position after the line that `count_lines` yielded last."""
        line = self._lines - self._first
        return int(self._begins[line]) if line < len(self._begins) else self._size


def _count_group(block: InputBlock, check: bool) -> Count:
    """Count the rows of a row group of a Parquet file."""
    texts = block.source.group(block.begin)
    digest = digest_of(json.dumps(texts, default=str).encode())
    numbered = enumerate(texts if check else ())
    bad = next(((row, text.reason) for row, text in numbered if isinstance(text, Bad)), None)
    sizes = np.array([0 if isinstance(text, Bad) else len(text) for text in texts], np.int64)
    marks = _marks(np.cumsum(sizes) - sizes)
    marks[:, 1] = marks[:, 0]
    return Count(len(texts), marks, len(texts), digest, bad)


def _first_bad(source: TextFile, data: bytes, at_begin: bool) -> tuple[int, str] | None:
    """Return the number of the first bad row in `data` and the reason; None if all are good."""
    if source.kind == ".txt":
        try:
            data.decode()
            if b"\0" not in data:
                return None
        except UnicodeDecodeError:
            pass
    header = int(at_begin and source.kind == ".csv")
    rows = source.rows(each_line(io.BytesIO(data), None, at_begin))
    numbered = enumerate(islice(rows, header, None))
    return next(((row, text.reason) for row, text in numbered if isinstance(text, Bad)), None)


def _is_open(data: bytes) -> bool:
    """Return whether any line of a CSV opens quotes that the line does not close."""
    if b'"' not in data:
        return False
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    csv.field_size_limit(LONGEST)
    for line in lines:
        if b'"' in line:
            text = line.decode("utf-8", "replace") + "\n"
            if any(field.endswith("\n") for field in next(csv.reader([text]), [])):
                return True
    return False


def _begins(before: bytes, data: bytes) -> Array:
    r"""Return the positions in `data` where lines begin; `before` is the byte before `data`.

    >>> _begins(b"\r", b"\na\r\n\rb\n")
    array([1, 4, 5])
    """
    here = np.frombuffer(data, np.uint8)
    behind = np.frombuffer(before + data[:-1], np.uint8)
    return np.flatnonzero((behind == 10) | ((behind == 13) & (here != 10)))


def _to_the_next(stream: IO[bytes], last: bytes) -> bytes:
    """Read to the end of the current line; `last` is the last byte that was already read."""
    rest = b""
    while data := stream.read(2**16):
        begins = _begins(last, data)
        if len(begins):
            return rest + data[: int(begins[0])]
        rest, last = rest + data, data[-1:]
    return rest


def _marks(begins: Array) -> Array:
    """Return (M, 2): the number and the byte position of each row that may begin a part."""
    if not len(begins):
        return np.empty((0, 2), np.int64)
    by_bytes = np.searchsorted(begins, np.arange(begins[0], begins[-1] + 1, MARK_BYTES))
    rows = np.union1d(np.arange(0, len(begins), MARK_ROWS), by_bytes)
    return np.stack([rows, begins[rows]], axis=1).astype(np.int64)


def cut(
    sources: Sequence[TextFile], counts: Sequence[Sequence[Count]], most_rows: int, most_bytes: int
) -> list[RowRange]:
    """Cut sources into parts of at most `most_rows` rows.

    Args:
        sources: the files.
        counts: for each file, the counts of its blocks.
        most_rows: the maximum number of rows in a part; at least `MARK_ROWS`.
        most_bytes: the approximate maximum size of a part in bytes. A part with one very long line
            may be larger.
    """
    parts: list[RowRange] = []
    first = 0
    for number, (source, blocks) in enumerate(zip(sources, counts, strict=True)):
        row = 0
        groups = [[block] for block in blocks] if source.kind == ".parquet" else [list(blocks)]
        for index, together in enumerate(groups):
            for begin, end, rows in _pieces(together, most_rows, most_bytes):
                which = index if source.kind == ".parquet" else None
                parts.append(RowRange(source, number, first + row, row, rows, begin, end, which))
                row += rows
        first += row
    return parts


def _pieces(counts: list[Count], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start, the stop and the number of rows of each part."""
    marks, row, end = [], 0, 0
    for count in counts:
        marks += [(row + int(mark), int(at)) for mark, at in count.marks]
        row, end = row + count.rows, count.end if count.rows else end
    if not marks:
        return
    last, begin = marks[0]
    for (here, at), (after, there) in pairwise([*marks[1:], (row, end)]):
        if after - last > most_rows or there - begin > most_bytes:
            yield begin, at, here - last
            last, begin = here, at
    yield begin, end, row - last
