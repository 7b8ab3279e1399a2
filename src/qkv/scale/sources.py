"""Find files of texts (.txt, .jsonl, .csv, .parquet), and read these files part by part."""

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import IO, Any

from qkv.extras import need
from qkv.files import ordinary
from qkv.text.lines import each_line, read_lines

KINDS = (".txt", ".jsonl", ".csv", ".parquet")
PACKED = (".gz", ".bz2", ".xz", ".zst")
FIRST = 1000  # A column to keep must occur in the first rows of a .jsonl: this number of rows.
LONGEST = 2**30  # The maximum number of characters in a CSV field.


@dataclass(frozen=True)
class Bad:
    """The result for a row that has no valid text, with the reason."""

    reason: str


@dataclass(frozen=True)
class TextFile:
    """A file of texts that fsspec opens.

    Attributes:
        path: the path of the file, as the caller gave it or as a glob matched it.
        kind: one of `KINDS`.
        column: the name of the column with the texts; not used for .txt.
        packed: whether the file is compressed. A compressed file is read from its beginning.
        field: the index of the text column in a CSV.
        keep: the names of other columns, which `kept_of` reads.
        fields: the indices of the columns `keep` in a CSV.
    """

    path: str
    kind: str
    column: str
    packed: bool
    field: int = 0
    keep: tuple[str, ...] = ()
    fields: tuple[int, ...] = ()

    def open(self) -> Any:
        """Open a stream of the file's bytes, decompressed."""
        if not self.packed and "://" not in self.path:  # this needs no optional package
            return ordinary(self.path).open("rb")
        return need("fsspec", "scale").open(self.path, "rb", compression="infer").open()

    @property
    def size(self) -> int:
        """The number of bytes of the stored file, before decompression."""
        files, path = need("fsspec", "scale").core.url_to_fs(self.path)
        return int(files.size(path))

    @property
    def missing(self) -> str:
        """The error message for a row without the text column."""
        return f"has no {self.column!r}"

    def parquet(self) -> Any:
        """Open a Parquet file."""
        arrow = need("pyarrow.parquet", "scale")
        files, path = need("fsspec", "scale").core.url_to_fs(self.path)
        try:
            return arrow.ParquetFile(path, filesystem=files)
        except need("pyarrow", "scale").ArrowInvalid as error:
            raise ValueError(f"{self.path} is not a Parquet file: {error}") from None

    def group(self, number: int) -> list[str | Bad]:
        """Return the texts of a row group of a Parquet file, with a `Bad` for each bad row."""
        column = self.parquet().read_row_group(number, columns=[self.column]).column(0)
        try:
            values = column.to_pylist()
        except UnicodeDecodeError:
            values = column.cast(need("pyarrow", "scale").large_binary()).to_pylist()
        return [self._cell(value) for value in values]

    def _cell(self, value: str | bytes | None) -> str | Bad:
        """Return the text of a row of a Parquet file."""
        try:
            text = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            return Bad(f"is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}")
        return Bad(self.missing) if text is None else text

    def rows(self, lines: Iterable[str | ValueError]) -> Iterator[str | Bad]:
        """Return the text of each row in `lines` or, if the row is bad, a `Bad` with the reason."""
        if self.kind == ".csv":
            return map(self._field, records(lines))
        return map(self._text, lines)

    def read_kept(self, lines: Iterable[str | ValueError]) -> Iterator[list[str | None]]:
        """Return the values of the columns `keep` for each row; None for a missing value."""
        if self.kind == ".csv":
            for record in records(lines):
                cells = [] if isinstance(record, Bad) else record
                yield [cells[field] if field < len(cells) else None for field in self.fields]
            return
        for row in map(_object, lines):
            yield [_as_text(row.get(column)) for column in self.keep]

    def _field(self, record: list[str] | Bad) -> str | Bad:
        """Return the text of a CSV record."""
        if isinstance(record, Bad):
            return record
        return record[self.field] if self.field < len(record) else Bad(self.missing)

    def _text(self, line: str | ValueError) -> str | Bad:
        """Return the text of a line of .txt or .jsonl."""
        if isinstance(line, ValueError):
            return Bad(str(line))
        if self.kind == ".txt":
            return line
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Bad(f"is not JSON: {error}")
        if not isinstance(row, dict):
            return Bad(f"is not a JSON object: write {{{json.dumps(self.column)}: ...}}")
        if self.column not in row:
            return Bad(self.missing)
        text = row[self.column]
        if not isinstance(text, str):
            return Bad(f"has a {self.column!r} that is {type(text).__name__}, not a string")
        try:
            text.encode()
        except UnicodeEncodeError:
            return Bad(f"has a {self.column!r} with half of a surrogate pair")
        return text


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of one source, for one task.

    Attributes:
        source: the file.
        number: the index of the source among all sources.
        first: the id of the part's first row; ids count the rows of all sources.
        row: the index of the part's first row in its source.
        rows: the number of rows in the part.
        begin: the part's first byte; for Parquet, its first row in the row group.
        end: the byte after the part; for Parquet, the row after the part.
        group: the index of the row group; None if the file is not Parquet.
    """

    source: TextFile
    number: int
    first: int
    row: int
    rows: int
    begin: int
    end: int
    group: int | None = None


def find_sources(sources: Any, column: str, call: str) -> list[TextFile]:
    """Find the files that a path, a glob, or a list of paths and globs names, in order.

    The matches of a glob are sorted.

    Raises:
        TypeError: a source is not a path.
        ValueError: `sources` is empty; a file has an unknown ending; or `column` is not a name.
        FileNotFoundError: a path does not exist, or a glob matches no file.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not isinstance(sources, Iterable):
        kind = type(sources).__name__
        raise TypeError(f"{call}: `sources` is {kind}; pass a path, a glob or a list of them")
    if not isinstance(column, str) or not column:
        raise ValueError(f"{call}: column is {column!r:.80}; pass the name of the column of texts")
    files = [file for path in sources for file in _find(path, column, call)]
    if not files:
        raise ValueError(f"{call}: `sources` is empty; pass at least one file")
    return files


def _find(path: Any, column: str, call: str) -> Iterator[TextFile]:
    if not isinstance(path, str | os.PathLike):
        what = type(path).__name__
        raise TypeError(f"{call}: a source is {what}; pass a path, a glob or a list of them")
    name = os.fspath(path)
    if not name:
        raise ValueError(f"{call}: the name of a source is empty; pass a path or a glob")
    names, local, is_glob = [name], "://" not in name, any(mark in name for mark in "*?[")
    files: Any = os.path  # this needs no optional package
    inside = str(ordinary(name)) if local else name
    if not local or (is_glob and not files.isfile(name)):
        files, inside = need("fsspec", "scale").core.url_to_fs(name)
    if not files.isfile(inside):
        if files.isdir(inside):
            raise IsADirectoryError(f"{call}: {name} is a folder; pass {name.rstrip('/')}/*.txt")
        matches = sorted(files.glob(inside)) if is_glob else []
        names = [match if local else files.unstrip_protocol(match) for match in matches]
        names = [match for match in names if files.isfile(match)]
        if not names:
            raise FileNotFoundError(f"{call}: there is no file {name}")
    for name in names:
        bare = name.lower()
        packed: str = next((end for end in PACKED if bare.endswith(end)), "")
        kind = next((end for end in KINDS if bare.removesuffix(packed).endswith(end)), None)
        if kind is None or (packed and kind == ".parquet"):
            raise ValueError(
                f"{call}: {name} has a file extension that qkv does not read; pass a .txt, .jsonl "
                "or .csv file, compressed (.gz, .bz2, .xz, .zst) or not, or a .parquet file"
            )
        if packed == ".zst":
            need("zstandard", "scale")
        if "://" not in name:
            name = os.path.abspath(name)  # a worker may have a different current folder
        yield TextFile(name, kind, column, bool(packed))


def find_column(source: TextFile, call: str) -> TextFile:
    """Check that a source has the text column; return the source, and fill in `field` for a CSV.

    Raises:
        ValueError: the column does not exist, or does not hold strings.
    """
    name = f"{call}: {source.path}"
    if source.keep and source.kind == ".txt":
        way = "omit keep, or pass a .jsonl, .csv or .parquet file"
        raise ValueError(f"{name} has no columns: {way}")
    if source.kind == ".parquet":
        arrow = need("pyarrow", "scale")
        schema = source.parquet().schema_arrow
        columns = schema.names
        if source.column in columns:
            kind = schema.field(source.column).type
            kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
            if kind not in (arrow.string(), arrow.large_string(), arrow.string_view()):
                raise ValueError(
                    f"{name}: column {source.column!r} is {kind}; pass a column of strings"
                )
            _check_kept(source, columns, name)
            return source
    elif source.kind == ".csv":
        with source.open() as stream:
            record = next(records(each_line(stream, None)), [])
        if isinstance(record, Bad):
            raise ValueError(f"{name}: the header {record.reason}")
        if not record:
            return source  # an empty file
        if record.count(source.column) == 1:
            _check_kept(source, record, name)
            fields = tuple(map(record.index, source.keep))
            return replace(source, field=record.index(source.column), fields=fields)
        columns = record
    else:
        if source.keep:
            with source.open() as stream:
                found = [*map(_object, islice(each_line(stream, None), FIRST))]
            columns = list(dict.fromkeys(chain.from_iterable(found)))
            if columns:  # otherwise, the file is empty or its rows are bad
                _check_kept(source, columns, name)
        return source
    names = ", ".join(map(repr, columns))
    times = "more than one column" if source.column in columns else "no column"
    raise ValueError(
        f"{name} has {times} {source.column!r}: choose one of the columns {names:.400}"
    )


def _check_kept(source: TextFile, columns: list[str], name: str) -> None:
    """Raise an error unless a source has each column to keep, and has the column only once."""
    for column in source.keep:
        if (count := columns.count(column)) != 1:
            times, names = "more than one" if count else "no", ", ".join(map(repr, columns))
            way = f"choose one of the columns {names:.400}"
            raise ValueError(f"{name} has {times} column {column!r} to keep: {way}")


def rows_of(part: RowRange, most: int) -> Iterator[str | Bad]:
    """Yield the text of each row of a part or, if the row is bad, a `Bad` with the reason.

    Args:
        part: the rows.
        most: the maximum number of characters of a .txt line, as in `read_lines`.
    """
    source = part.source
    if part.group is not None:
        yield from source.group(part.group)[part.begin : part.end]
        return
    yield from source.rows(_lines_of(part, most if source.kind == ".txt" else None))


def kept_of(part: RowRange, rows: Sequence[int]) -> list[Any]:
    """Return the columns to keep as Arrow arrays, for some rows of a part.

    A column of a Parquet file keeps its type. A column of any other file becomes strings: a .jsonl
    value that is not a string is written as JSON.

    Args:
        part: the part, whose source names the columns.
        rows: the indices of the rows in the source.
    """
    source, arrow = part.source, need("pyarrow", "scale")
    indices = [row - part.row for row in rows]
    if not source.keep:
        return []
    if part.group is not None:
        table = source.parquet().read_row_group(part.group, columns=[*source.keep])
        table = table.slice(part.begin, part.rows).take(indices)
        return [table.column(column) for column in source.keep]
    kept = list(source.read_kept(_lines_of(part, None)))
    return [
        arrow.array([kept[index][number] for index in indices], arrow.string())
        for number in range(len(source.keep))
    ]


def _lines_of(part: RowRange, most: int | None) -> Iterator[str | ValueError]:
    """Yield the lines of a part of a file that is not Parquet."""
    source = part.source
    with source.open() as stream:
        stream.seek(part.begin)
        piece = _Piece(stream, part.end - part.begin)
        at_begin = part.begin == 0 and source.kind != ".csv"
        yield from each_line(piece, most, at_begin=at_begin)


def _object(line: str | ValueError) -> dict[str, Any]:
    """Return the object in a line of .jsonl, or an empty object for a bad row."""
    try:
        row = None if isinstance(line, ValueError) else json.loads(line)
    except (ValueError, RecursionError):
        row = None
    return row if isinstance(row, dict) else {}


def _as_text(value: Any) -> str | None:
    r"""Return a JSON value as a text that is valid in UTF-8.

    >>> _as_text("a"), _as_text(["a", 1]), _as_text(None), _as_text("\ud800")
    ('a', '["a", 1]', None, '?')
    """
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="replace").decode()


def texts_of(source: TextFile, most: int) -> Iterator[str]:
    """Yield all texts of a source; if a row is bad, raise an error that names its file and row."""
    if source.kind == ".txt":
        with source.open() as stream:
            yield from read_lines(stream, source.path, most)
        return
    is_parquet, header = source.kind == ".parquet", int(source.kind == ".csv")
    groups = range(source.parquet().num_row_groups) if is_parquet else [None]
    parts = (RowRange(source, 0, 0, 0, 0, 0, sys.maxsize, group) for group in groups)
    rows = chain.from_iterable(rows_of(part, most) for part in parts)
    for row, text in enumerate(islice(rows, header, None)):
        if isinstance(text, Bad):
            way = "correct it" + ", or pass another column" * (f" {source.column!r}" in text.reason)
            raise ValueError(f"{source.path}, row {row} {text.reason}: {way}")
        yield text


class _Piece:
    """A stream that ends after `size` bytes of another stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data


def records(lines: Iterable[str | ValueError]) -> Iterator[list[str] | Bad]:
    """Yield each record of a CSV, or a `Bad` with the reason if the record cannot be read."""
    broken: list[str] = []

    def good_lines() -> Iterator[str]:
        for line in lines:
            if isinstance(line, ValueError):
                broken.append(str(line))
                line = ""
            yield line + "\n"

    csv.field_size_limit(LONGEST)
    reader = csv.reader(good_lines())
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


def digest_of(data: bytes) -> str:
    """Return a checksum of bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
