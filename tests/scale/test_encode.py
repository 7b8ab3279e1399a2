"""Tests of `scale.encode`: each row once, equal to `Model.encode`, and runs that can resume."""

import csv
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import qkv
from qkv.scale import encode
from qkv.scale.encoding import Order

TEXTS = [f"the cat sat {n} times {'on the mat ' * (n % 7)}" for n in range(1300)]


def held(folder: Path, names: Sequence[str] = ("id", "source", "row", "vector")) -> dict[str, Any]:
    """Return the columns of all parts, sorted by id."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    return {name: [row[name] for row in sorted(rows, key=lambda row: row["id"])]
            for name in names}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS[:700]))
    with (tmp_path / "b.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS[700:])
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]


def test_every_row_once(files: list[str], tmp_path: Path) -> None:
    done = encode("random", files, tmp_path / "out")
    found = held(tmp_path / "out")
    assert (done.rows, done.skipped, done.parts) == (1300, [], 4)
    assert found["id"] == list(range(1300))
    assert found["row"] == [*range(700), *range(600)]
    assert found["source"] == [files[0]] * 700 + [files[1]] * 600
    want = qkv.load("random").encode(TEXTS)
    np.testing.assert_allclose(np.array(found["vector"], np.float32), want, atol=1e-6)
    kind = pq.read_schema(next((tmp_path / "out").glob("*.parquet"))).field("vector").type
    assert str(kind).startswith("fixed_size_list<")
    assert kind.list_size == 8


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_columns_are_kept_beside_the_vectors(kind: str, tmp_path: Path) -> None:
    """Each row keeps its own values, over several parts and after a row that is skipped."""
    rows = [{"text": text, "id": f"n{n}", "size": n, "tag": None if n % 3 else "a"}
            for n, text in enumerate(TEXTS)]  # fmt: skip
    rows[5]["text"] = None
    path, table = tmp_path / f"a.{kind}", pa.Table.from_pylist(rows)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=500)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            cells = [list(row.values()) for row in rows]
            writer.writerows([["text", "id", "size", "tag"], *cells[:5], [], *cells[6:]])
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encode("random", str(path), tmp_path / "out", keep=["size", "id", "tag"], on_error="skip")
    names = ["id", "source", "row", "vector", "size", "source_id", "tag"]
    found = held(tmp_path / "out", names)
    assert pq.read_schema(next((tmp_path / "out").glob("*.parquet"))).names == names
    kept = [row for n, row in enumerate(rows) if n != 5]
    assert found["row"] == [n for n in range(1300) if n != 5]
    as_text = kind != "parquet"
    assert found["size"] == [str(row["size"]) if as_text else row["size"] for row in kept]
    assert found["source_id"] == [row["id"] for row in kept]
    assert found["tag"] == [row["tag"] or ("" if kind == "csv" else None) for row in kept]
    with pytest.raises(ValueError, match=r"columns \['size', 'id', 'tag'\], but keep is \['id'\]"):
        encode("random", str(path), tmp_path / "out", keep=["id"], on_error="skip")


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (["sise"], "no column 'sise' to keep: choose one of the columns 'text', 'size'"),
        (["size", "size"], "different column names"),
        (["id", "source_id"], "different column names"),
        ("size", "pass a list of different column names"),
        ([1], "pass a list of different column names"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused(keep: Any, said: str, tmp_path: Path) -> None:
    table = pa.table({"text": ["the cat"], "size": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("text,size\nthe cat,1\n")
    (tmp_path / "a.jsonl").write_text('{"text": "the cat", "size": 1}\n')
    for path in tmp_path.glob("a.*"):
        with pytest.raises(ValueError, match=said):
            encode("random", str(path), tmp_path / "out", keep=keep)
    (tmp_path / "a.txt").write_text("the cat\n")
    with pytest.raises(ValueError, match="has no columns: omit keep"):
        encode("random", str(tmp_path / "a.txt"), tmp_path / "out", keep=["size"])


@pytest.fixture
def before_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Order], object]], None]:
    """A function that sets what happens before each part is written."""
    real = qkv.scale.encoding.write_part

    def set_action(act: Callable[[Order], object]) -> None:
        def write(model: qkv.Model, order: Order) -> Any:
            act(order)
            return real(model, order)

        monkeypatch.setattr("qkv.scale.encoding.write_part", write)

    return set_action


def test_an_unfinished_file_of_a_killed_worker_is_removed(
    files: list[str], tmp_path: Path, before_parts: Any
) -> None:
    before_parts(lambda _: (tmp_path / "out" / ".qkv-1-0123abcd.part").touch())
    assert encode("random", files, tmp_path / "out").parts == 4
    assert not list((tmp_path / "out").glob("*.part"))
    assert len(held(tmp_path / "out")["id"]) == 1300


def test_resume(files: list[str], tmp_path: Path, before_parts: Any) -> None:
    out = tmp_path / "out"
    encode("random", files, out)
    before = held(out)
    first, second, *_ = sorted(out.glob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-100])
    data = bytearray(second.read_bytes())
    data[50] ^= 1
    second.write_bytes(data)
    made: list[str] = []
    before_parts(lambda order: made.append(order.name))
    encode("random", files, out)
    assert made == [first.name, second.name]
    assert held(out) == before
    encode("random", files, out)
    assert len(made) == 2
    encode("random", files, out, resume=False)
    assert len(made) == 6


def test_a_source_that_changes_after_it_was_counted(
    files: list[str], tmp_path: Path, before_parts: Any
) -> None:
    before_parts(lambda _: Path(files[0]).write_text("the cat"))
    with pytest.raises(ValueError, match=r"a\.txt changed while it was read: encode a copy"):
        encode("random", files, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.parquet"))


@pytest.mark.parametrize("what", ["source", "model", "column"])
def test_resuming_with_a_changed_source_model_or_column_is_refused(
    what: str, files: list[str], tmp_path: Path
) -> None:
    out, sources = tmp_path / "out", files[:1] if what == "column" else files
    encode("random", sources, out)
    before = held(out)
    if what == "source":
        text = Path(files[0]).read_text()
        Path(files[0]).write_text(text.replace("cat", "dog", 1))
    words = {"source": "a.txt has changed",
             "model": "whose files differ from the files of the given model, books",
             "column": "of column 'text', but column is 'x'"}  # fmt: skip
    column = "x" if what == "column" else "text"
    with pytest.raises(ValueError, match=words[what]):
        encode("books" if what == "model" else "random", sources, out, column=column)
    assert held(out) == before


def test_a_bad_row_ends_the_run_or_is_skipped(tmp_path: Path) -> None:
    lines = [text.encode() for text in TEXTS]
    lines[1001] = b"the \xff"
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"a.txt, row 1001 is not UTF-8: byte 5 is 0xff"):
        encode("random", tmp_path / "a.txt", out)
    assert not out.exists()
    done = encode("random", tmp_path / "a.txt", out, on_error="skip")
    assert done.rows == 1299
    assert done.skipped == [(str(tmp_path / "a.txt"), 1001, "is not UTF-8: byte 5 is 0xff")]
    assert held(out)["id"] == [n for n in range(1300) if n != 1001]


def test_a_blank_row_has_a_vector_where_there_are_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\nb\n")
    assert encode("books", tmp_path / "a.txt", tmp_path / "out").rows == 3
    want = qkv.load("books").encode(["a", "", "b"])
    found = np.array(held(tmp_path / "out")["vector"], np.float32)
    np.testing.assert_allclose(found, want, atol=1e-6)
    with pytest.raises(ValueError, match=r"a.txt, row 1 is empty: there is no token"):
        encode("random", tmp_path / "a.txt", tmp_path / "other")
    done = encode("random", tmp_path / "a.txt", tmp_path / "other", on_error="skip")
    assert (done.rows, len(done.skipped)) == (2, 1)


def test_a_model_in_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="encode: model is Model; pass a name or a folder"):
        encode(qkv.load("random"), "a.txt", tmp_path / "out")  # type: ignore[arg-type]


def test_other_file_systems(tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/in/a.txt", b"a b\nc\n")
    done = encode("random", "memory://in/*.txt", "memory://out")
    names = [Path(name).name for name in fsspec.filesystem("memory").ls("/out", detail=False)]
    assert done.rows == 2
    assert [name[:11] for name in sorted(names)] == ["_manifest.j", "part-000000"]


def test_truncated_texts_are_counted_in_one_warning(tmp_path: Path) -> None:
    long = "the cat sat on the mat " * 100  # 600 tokens, which are cut to 512
    texts = [long if row % 300 == 0 else "the cat sat" for row in range(1200)]
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts))
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        done = encode("random", tmp_path / "a.txt", tmp_path / "out")
    assert done.parts > 1
    said = "4 of 1200 texts were cut to 512 tokens (the longest has 600)"
    assert [str(one.message) for one in noted] == [said]
    assert noted[0].filename == __file__


def test_a_zstandard_compressed_file_is_read(tmp_path: Path) -> None:
    import zstandard

    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(b"the cat\non the mat\n"))
    assert encode("random", tmp_path / "a.txt.zst", tmp_path / "out").rows == 2


def test_a_zst_file_without_zstandard_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.txt.zst").write_bytes(b"")
    with pytest.raises(ImportError, match=r"needs zstandard, .*: pip install '.\[scale\]'"):
        encode("random", tmp_path / "a.txt.zst", tmp_path / "out")
