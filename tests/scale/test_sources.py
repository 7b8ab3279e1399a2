"""Tests that row numbers do not depend on how blocks and parts divide a file."""

import bz2
import csv
import gzip
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest

from qkv import scale
from qkv.scale import _counting
from qkv.scale._counting import blocks_of, count, cut
from qkv.scale.sources import Bad, find_column, find_sources, rows_of
from qkv.text.lines import read_lines


def read(path: Path, block: int, rows: int = 3, size: int = 1000) -> list[str | Bad]:
    [source] = [find_column(one, "t") for one in find_sources(path, "text", "t")]
    counts = [count(one) for one in blocks_of(source, block)]
    if not all(one.whole for one in counts):
        counts = [count(_counting.InputBlock(source))]
    parts = cut([source], [counts], rows, size)
    assert all(part.rows == len(list(rows_of(part, 10**6))) for part in parts)
    starts = [sum(one.rows for one in parts[:n]) for n in range(len(parts))]
    assert [part.row for part in parts] == [part.first for part in parts] == starts
    return [text for part in parts for text in rows_of(part, 10**6)]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("pack", [None, gzip.compress, bz2.compress])
def test_lines_of_blocks_equal_lines_of_the_whole_file(
    block: int, pack: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = random.Random(block)
    for _ in range(60):
        monkeypatch.setattr(_counting, "MARK_ROWS", drawn.choice([1, 2, 3]))
        monkeypatch.setattr(_counting, "MARK_BYTES", drawn.choice([1, 3, 100]))
        marks = ["a", "b", "\n", "\r", "\r\n", "é", "\ufeff"]
        data = "".join(drawn.choice(marks) for _ in range(drawn.randrange(40))).encode()
        path = tmp_path / "x.txt"
        if callable(pack):
            path = tmp_path / f"x.txt.{'gz' if pack is gzip.compress else 'bz2'}"
        path.write_bytes(pack(data) if callable(pack) else data)
        assert read(path, block) == list(read_lines(io.BytesIO(data), "x", 10**6))


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [5, 30, 10**6])
def test_a_csv_with_quoted_line_ends(ends: str, block: int, tmp_path: Path) -> None:
    texts = ["a", 'say "b"', "c, d", "e\nf", "", "g\n\nh", "i"] * 5
    for some in (texts, [text for text in texts if "\n" not in text]):
        with (tmp_path / "x.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator=ends)
            writer.writerows([("n", "text"), *enumerate(some)])
        assert read(tmp_path / "x.csv", block) == some


def test_bad_rows_say_what_they_are(tmp_path: Path) -> None:
    rows = [b'{"text": "a"}', b"", b"{", b"[1]", b'{"a": 1}', b'{"text": 2}', b'{"text": "\xff"}',
            b'{"text": "z"}']  # fmt: skip
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(rows))
    found = read(tmp_path / "x.jsonl", 10)
    assert [isinstance(one, Bad) for one in found] == [False, *[True] * 6, False]
    words = ["", "not JSON", "not JSON", "not a JSON object", "no 'text'", "int", "byte 11 is 0xff"]
    assert all(word in str(one) for word, one in zip(words, found, strict=False))
    [source] = find_sources(tmp_path / "x.jsonl", "text", "t")
    [whole] = [count(one) for one in blocks_of(source)]
    assert whole.bad is not None
    assert whole.bad[0] == 1


def test_row_groups(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"row {n}" for n in range(25)] + [None]
    pq.write_table(pa.table({"text": texts, "n": range(26)}), tmp_path / "x.parquet",
                   row_group_size=10)  # fmt: skip
    *good, bad = read(tmp_path / "x.parquet", 1)
    assert good == texts[:-1]
    assert bad == Bad("has no 'text'")
    [source] = find_sources(tmp_path / "x.parquet", "n", "t")
    with pytest.raises(ValueError, match="column 'n' is int64; pass a column of strings"):
        find_column(source, "t")


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_parquet_rows_without_valid_text_are_bad(kind: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data, ends = pa.py_buffer(b"thea\xff\xfecat"), np.int32([0, 3, 6, 9])
    texts = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(ends.tobytes()), data])
    texts = pa.concat_arrays([texts, pa.array([None], pa.string())])
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(getattr(pa, kind)())
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": texts}), path)
    invalid, missing = Bad("is not UTF-8: byte 2 is 0xff"), Bad("has no 'text'")
    assert read(path, 1) == ["the", invalid, "cat", missing]
    done = scale.encode("random", str(path), tmp_path / "out", on_error="skip")
    assert done.rows == 2
    assert done.skipped == [(str(path), 1, invalid.reason), (str(path), 3, missing.reason)]
    with pytest.raises(ValueError, match=r"encode: .*x.parquet, row 1 is not UTF-8: byte 2"):
        scale.encode("random", str(path), tmp_path / "other")


def test_invalid_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("a")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"t: there is no file .*\*.txt"):
        find_sources(tmp_path / "*.txt", "text", "t")
    with pytest.raises(ValueError, match=r"x.md has a file extension that qkv does not read"):
        find_sources(tmp_path / "x.md", "text", "t")
    with pytest.raises(TypeError, match="`sources` is int"):
        find_sources(3, "text", "t")
    [source] = find_sources([str(tmp_path / "x.csv")], "text", "t")
    with pytest.raises(ValueError, match="no column 'text': choose one of the columns 'a', 'b'"):
        find_column(source, "t")
    assert json.dumps(source.column) == '"text"'
