"""Rows of text in files of four kinds, numbered and cut into parts by reading them once."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import IO, Any, TypeVar, cast

import numpy as np

from qkv.arrays import Array
from qkv.extras import need
from qkv.text.lines import each_line

KINDS = (".txt", ".jsonl", ".csv", ".parquet")
PACKED = (".gz", ".bz2", ".xz", ".zst")
BLOCK = 2**24  # bytes that are counted at once
MARK_ROWS, MARK_BYTES = 256, 2**20  # after so many at most a part may begin
_LONGEST = 2**30  # characters of a field of a CSV
_T = TypeVar("_T")


@dataclass(frozen=True)
class Source:
    """A file of texts, as fsspec opens it.

    Attributes:
        path: as it was given, or found for a glob.
        kind: one of `KINDS`.
        column: where the texts are, in every kind but .txt.
        packed: whether it is compressed, and can be read from its beginning only.
        field: of a CSV, which column that is.
    """

    path: str
    kind: str
    column: str
    packed: bool
    field: int = 0

    def open(self) -> Any:
        """Its bytes, decompressed."""
        return need("fsspec", "scale").open(self.path, "rb", compression="infer").open()

    @property
    def size(self) -> int:
        """Its bytes as they are stored."""
        files, path = need("fsspec", "scale").core.url_to_fs(self.path)
        return int(files.size(path))


@dataclass(frozen=True)
class Block:
    """What one task counts: the lines that begin in some bytes, or a row group of a Parquet file.

    Attributes:
        source: the file.
        begin: its first byte, or the number of the row group.
        end: the byte behind it; None for the end of the file.
    """

    source: Source
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Count:
    """What counting a block gives.

    Attributes:
        rows: how many rows begin in it.
        marks: (M, 2), rows of it at which a part may begin, and where that is.
        end: where its last row ends.
        digest: of its bytes, or of the texts of a row group.
        bad: the first row that is none, counted from 0, and why; None if all are good.
        whole: whether lines are rows; False for a CSV where a line ends inside quotes.
    """

    rows: int
    marks: Array
    end: int
    digest: str
    bad: tuple[int, str] | None = None
    whole: bool = True


@dataclass(frozen=True)
class Part:
    """Rows that follow each other in one source, for one task.

    Attributes:
        source: the file.
        number: of the source, in the order in which they were given.
        first: the id of its first row, which counts the rows of all sources.
        row: the number of its first row in the source, from 0.
        rows: how many they are.
        begin: where they begin: a byte, or a row of the row group.
        end: where they end.
        group: the row group, of a Parquet file.
    """

    source: Source
    number: int
    first: int
    row: int
    rows: int
    begin: int
    end: int
    group: int | None = None


@dataclass(frozen=True)
class Bad:
    """A row that has no text, and why."""

    reason: str


def find_sources(sources: Any, column: str, call: str) -> list[Source]:
    """The files behind a path, a glob or a list of them, in that order; those of a glob sorted.

    Raises:
        TypeError: something is no path.
        ValueError: there is none, a kind is not read, or a column has no name.
        FileNotFoundError: a path or a glob leads to no file.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not isinstance(sources, Iterable):
        kind = type(sources).__name__
        raise TypeError(f"{call}: sources is {kind}: give a path, a glob or a list of them")
    if not isinstance(column, str) or not column:
        raise ValueError(f"{call}: column is {column!r:.80}: give the name of the column of texts")
    found = [one for path in sources for one in _found(path, column, call)]
    if not found:
        raise ValueError(f"{call}: there is no source: give at least one file")
    return found


def _found(path: Any, column: str, call: str) -> Iterator[Source]:
    if not isinstance(path, str | os.PathLike):
        what = type(path).__name__
        raise TypeError(f"{call}: a source is {what}: give a path, a glob or a list of them")
    name = os.fspath(path)
    if not name:
        raise ValueError(f"{call}: the name of a source is empty: give a path or a glob")
    files, inside = need("fsspec", "scale").core.url_to_fs(name)
    names = [name]
    if not files.isfile(inside):
        if files.isdir(inside):
            raise IsADirectoryError(f"{call}: {name} is a folder: give {name.rstrip('/')}/*.txt")
        matches = sorted(files.glob(inside)) if any(mark in name for mark in "*?[") else []
        local = "://" not in name
        names = [one if local else files.unstrip_protocol(one) for one in matches]
        names = [one for one in names if files.isfile(one)]
        if not names:
            raise FileNotFoundError(f"{call}: there is no file {name}")
    for one in names:
        bare = one.lower()
        packed: str = next((end for end in PACKED if bare.endswith(end)), "")
        kind = next((end for end in KINDS if bare.removesuffix(packed).endswith(end)), None)
        if kind is None or (packed and kind == ".parquet"):
            raise ValueError(
                f"{call}: {one} is of no kind that is read: give .txt, .jsonl or .csv, "
                "compressed or not, or .parquet"
            )
        if packed == ".zst":
            need("zstandard", "scale")
        if "://" not in one:
            one = os.path.abspath(one)  # workers may be in another folder
        yield Source(one, kind, column, bool(packed))


def blocks_of(source: Source, size: int = BLOCK) -> list[Block]:
    """What is counted of a source, a task each; a compressed file is one block."""
    if source.kind == ".parquet":
        return [Block(source, group) for group in range(_parquet(source).num_row_groups)]
    if source.packed:
        return [Block(source)]
    return [Block(source, begin, begin + size) for begin in range(0, source.size, size)]


def described(source: Source, call: str) -> Source:
    """The source with the field in which its texts are, where it has such columns.

    Raises:
        ValueError: it has no such column, or one that holds no strings.
    """
    name = f"{call}: {source.path}"
    if source.kind == ".parquet":
        arrow = need("pyarrow", "scale")
        schema = _parquet(source).schema_arrow
        there = schema.names
        if source.column in there:
            kind = schema.field(source.column).type
            kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
            if kind not in (arrow.string(), arrow.large_string(), arrow.string_view()):
                raise ValueError(f"{name}: column {source.column!r} is {kind}: name one of strings")
            return source
    elif source.kind == ".csv":
        with source.open() as stream:
            record = next(_records(each_line(stream, None)), [])
        if isinstance(record, Bad):
            raise ValueError(f"{name}: the header {record.reason}")
        if not record:
            return source  # it is empty, or has no header: there is no row to read
        if record.count(source.column) == 1:
            return replace(source, field=record.index(source.column))
        there = record
    else:
        return source
    found = ", ".join(map(repr, there))
    times = "two columns" if source.column in there else "no column"
    raise ValueError(f"{name} has {times} {source.column!r}: it has {found:.400}")


def count(block: Block, check: bool = True) -> Count:
    """Count the rows that begin in a block; with `check` each is looked at too."""
    if block.source.kind == ".parquet":
        return _count_group(block)
    if block.source.packed or block.end is None:
        return _count_stream(block.source, check)
    with block.source.open() as stream:
        before = b"\n"  # a line begins where a file does
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
    header = block.source.kind == ".csv" and block.begin == 0  # which is no row
    bad, whole = None, True
    if block.source.kind == ".csv":
        whole = not _is_open(data)
    if check and whole:
        bad = _first_bad(block.source, data, block.begin == 0)
    marks = _marks(begins[int(header) :])
    return Count(len(begins) - header, marks, end, digest, bad, whole)


def _count_stream(source: Source, check: bool) -> Count:
    """The same of a whole file that is read from its beginning."""
    marks: list[tuple[int, int]] = []
    bad, rows, begin = None, 0, 0
    with source.open() as stream:
        seen = _Seen(stream)
        for text, end in _rows_seen(source, seen):
            if begin or source.kind != ".csv":
                row, at = marks[-1] if marks else (-MARK_ROWS, 0)
                if rows - row >= MARK_ROWS or begin - at >= MARK_BYTES:
                    marks.append((rows, begin))
                if check and bad is None and isinstance(text, Bad):
                    bad = rows, text.reason
                rows += 1
            begin = end
    found = np.array(marks, np.int64).reshape(-1, 2)
    return Count(rows, found, begin, seen.hash.hexdigest(), bad)


def _rows_seen(source: Source, seen: _Seen) -> Iterator[tuple[str | Bad, int]]:
    """The rows of a file, a CSV's header too, and where each ends."""
    if source.kind == ".csv":
        for record in _records(seen.counted(each_line(seen, None))):
            yield _field(record, source), seen.end
    else:
        for line in seen.counted(each_line(seen, None)):
            yield _text(line, source), seen.end


class _Seen:
    """A stream that knows where the line ends that was read last, and the digest of its bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._last = stream, b"\n"
        self.hash = hashlib.blake2b(digest_size=16)
        self._begins: Array = np.empty(0, np.int64)  # of the lines in the block that is read
        self._lines = self._first = self._size = 0

    def read(self, size: int) -> bytes:
        r"""A block; one that ends with \r is the last, so that no \r\n is cut."""
        data = self._stream.read(size)
        while data.endswith(b"\r") and (more := self._stream.read(1)):
            data += more
        if data:
            self._first += len(self._begins)
            self._begins = _begins(self._last, data) + self._size
            self._size, self._last = self._size + len(data), data[-1:]
            self.hash.update(data)
        return data

    def counted(self, lines: Iterable[_T]) -> Iterator[_T]:
        """The same lines, as many as were taken of them known."""
        for line in lines:
            self._lines += 1
            yield line

    @property
    def end(self) -> int:
        """Where the line ends that was taken last."""
        place = self._lines - self._first
        return int(self._begins[place]) if place < len(self._begins) else self._size


def _count_group(block: Block) -> Count:
    texts = _group(block.source, block.begin)
    digest = digest_of(json.dumps(texts).encode())
    bad = next((row for row, text in enumerate(texts) if text is None), None)
    sizes = np.array([len(text or "") for text in texts], np.int64)
    begins = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    marks = _marks(begins)
    marks[:, 1] = marks[:, 0]
    why = None if bad is None else (bad, _missing(block.source))
    return Count(len(texts), marks, len(texts), digest, why)


def cut(
    sources: Sequence[Source], counts: Sequence[Sequence[Count]], most_rows: int, most_bytes: int
) -> list[Part]:
    """Parts of at most so many rows, `MARK_ROWS` at least, and about so many bytes.

    Args:
        sources: the files.
        counts: what counting the blocks of each gave.
        most_rows: of a part.
        most_bytes: of a part, or one line that is longer.
    """
    parts: list[Part] = []
    first = 0
    for number, (source, blocks) in enumerate(zip(sources, counts, strict=True)):
        row = 0
        groups = [[block] for block in blocks] if source.kind == ".parquet" else [list(blocks)]
        for group, together in enumerate(groups):
            for begin, end, rows in _pieces(together, most_rows, most_bytes):
                which = group if source.kind == ".parquet" else None
                parts.append(Part(source, number, first + row, row, rows, begin, end, which))
                row += rows
        first += row
    return parts


def _pieces(counts: list[Count], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Where parts begin and end, and their rows."""
    marks, row, end = [], 0, 0
    for count in counts:
        marks += [(row + int(one), int(at)) for one, at in count.marks]
        row, end = row + count.rows, count.end if count.rows else end
    if not marks:
        return
    last, begin = marks[0]
    for (here, at), (after, there) in pairwise([*marks[1:], (row, end)]):
        if after - last > most_rows or there - begin > most_bytes:
            yield begin, at, here - last
            last, begin = here, at
    yield begin, end, row - last


def rows_of(part: Part, most: int) -> Iterator[str | Bad]:
    """The texts of a part in their order, or why a row has none.

    Args:
        part: which rows.
        most: characters of a line of .txt that are kept, and one more, as in `read_lines`.
    """
    source = part.source
    if part.group is not None:
        for text in _group(source, part.group)[part.begin : part.end]:
            yield Bad(_missing(source)) if text is None else text
        return
    with source.open() as stream:
        stream.seek(part.begin)
        piece = _Piece(stream, part.end - part.begin)
        if source.kind == ".csv":
            for record in _records(each_line(piece, None, at_begin=False)):
                yield _field(record, source)
        else:
            kept = most if source.kind == ".txt" else None
            for line in each_line(piece, kept, at_begin=part.begin == 0):
                yield _text(line, source)


def _text(line: str | ValueError, source: Source) -> str | Bad:
    """The text in a line of .txt or .jsonl."""
    if isinstance(line, ValueError):
        return Bad(str(line))
    if source.kind == ".txt":
        return line
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Bad(f"is not JSON: {error}")
    if not isinstance(row, dict):
        return Bad(f"is no JSON object: write {{{json.dumps(source.column)}: ...}}")
    if source.column not in row:
        return Bad(f"has no {source.column!r}")
    text = row[source.column]
    if not isinstance(text, str):
        return Bad(f"has a {source.column!r} that is {type(text).__name__} and no string")
    try:
        text.encode()
    except UnicodeEncodeError:
        return Bad(f"has a {source.column!r} with half of a surrogate pair")
    return text


def _field(record: list[str] | Bad, source: Source) -> str | Bad:
    """The text in a record of a CSV."""
    if isinstance(record, Bad):
        return record
    return record[source.field] if source.field < len(record) else Bad(_missing(source))


def _missing(source: Source) -> str:
    return f"has no {source.column!r}"


class _Piece:
    """Some bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


def _records(lines: Iterable[str | ValueError]) -> Iterator[list[str] | Bad]:
    """The records of a CSV; one with a line that is no text is bad."""
    broken: list[str] = []

    def each() -> Iterator[str]:
        for line in lines:
            if isinstance(line, ValueError):
                broken.append(str(line))
                line = ""
            yield line + "\n"

    csv.field_size_limit(_LONGEST)
    reader = csv.reader(each())
    while True:
        try:
            record: list[str] | Bad = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            record = Bad(f"is not CSV: {error}")
        if broken:
            record = Bad(broken[0])
            broken.clear()
        yield record


def _begins(before: bytes, data: bytes) -> Array:
    r"""Where lines begin in some bytes, by the byte before them.

    >>> _begins(b"\r", b"\na\r\n\rb\n")
    array([1, 4, 5])
    """
    here = np.frombuffer(data, np.uint8)
    behind = np.frombuffer(before + data[:-1], np.uint8)
    return np.flatnonzero((behind == 10) | ((behind == 13) & (here != 10)))


def _to_the_next(stream: IO[bytes], last: bytes) -> bytes:
    """What follows some bytes up to where the next line begins."""
    found = b""
    while data := stream.read(2**16):
        begins = _begins(last, data)
        if len(begins):
            return found + data[: int(begins[0])]
        found, last = found + data, data[-1:]
    return found


def _marks(begins: Array) -> Array:
    """(M, 2): which of some lines a part may begin at, and where each begins."""
    if not len(begins):
        return np.empty((0, 2), np.int64)
    by_bytes = np.searchsorted(begins, np.arange(begins[0], begins[-1] + 1, MARK_BYTES))
    rows = np.union1d(np.arange(0, len(begins), MARK_ROWS), by_bytes)
    return np.stack([rows, begins[rows]], axis=1).astype(np.int64)


def _first_bad(source: Source, data: bytes, at_begin: bool) -> tuple[int, str] | None:
    """The first of some lines that is no row, and why."""
    if source.kind == ".txt":
        try:
            data.decode()
            if b"\0" not in data:
                return None
        except UnicodeDecodeError:
            pass
    stream = io.BytesIO(data)
    if source.kind == ".csv":
        rows = (_field(record, source) for record in _records(each_line(stream, None, at_begin)))
    else:
        rows = (_text(line, source) for line in each_line(stream, None, at_begin))
    for row, text in enumerate(islice(rows, int(at_begin and source.kind == ".csv"), None)):
        if isinstance(text, Bad):
            return row, text.reason
    return None


def _is_open(data: bytes) -> bool:
    """Whether a line of a CSV ends inside quotes, when each is read as a record of its own."""
    if b'"' not in data:
        return False
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    csv.field_size_limit(_LONGEST)
    for line in lines:
        if b'"' in line:
            text = line.decode("utf-8", "replace") + "\n"
            if any(field.endswith("\n") for field in next(csv.reader([text]), [])):
                return True
    return False


def _parquet(source: Source) -> Any:
    arrow = need("pyarrow.parquet", "scale")
    files, path = need("fsspec", "scale").core.url_to_fs(source.path)
    try:
        return arrow.ParquetFile(path, filesystem=files)
    except need("pyarrow", "scale").ArrowInvalid as error:
        raise ValueError(f"{source.path} is no Parquet file: {error}") from None


def _group(source: Source, number: int) -> list[str | None]:
    column = _parquet(source).read_row_group(number, columns=[source.column]).column(0)
    return cast("list[str | None]", column.to_pylist())


def digest_of(data: bytes) -> str:
    """What tells bytes from others."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
