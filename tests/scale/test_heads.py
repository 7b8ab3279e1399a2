"""Tests of the head scores of a corpus.

The scores do not depend on how the work is divided into tasks. They equal the scores that
`qkv.circuits.head_scores` computes from all texts in one process.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import scale
from qkv.circuits import head_scores
from qkv.circuits.means import HeadSums, head_sums
from qkv.scale._counting import blocks_of

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "river", "bank", ",", "."]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return texts of 0 to 11 words, with repeated words."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, n)) for n in rng.integers(0, 12, 120)]


@pytest.fixture(scope="module")
def wanted(texts: list[str]) -> dict[str, np.ndarray]:
    return head_scores(qkv.load(), texts)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def corpus(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the texts to files of all four kinds, with different lengths; return their folder."""
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("corpus")
    (folder / "1.txt").write_text("".join(f"{text}\n" for text in texts[:50]))
    lines = [json.dumps({"text": text, "n": 1}) for text in texts[50:60]]
    (folder / "2.jsonl").write_text("\n".join(lines))
    with (folder / "3.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["n", "text"], *([str(1), text] for text in texts[60:90])])
    table = pyarrow.table({"text": texts[90:]})
    parquet.write_table(table, folder / "4.parquet", row_group_size=7)
    return folder


def agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6, err_msg=name)


def test_every_kind_of_file(corpus: Path, wanted: dict[str, np.ndarray], client: Any) -> None:
    for used in (None, client):
        agree(scale.head_scores(None, str(corpus / "*"), client=used), wanted)


def test_head_scores_use_the_current_client(
    corpus: Path, wanted: dict[str, np.ndarray], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # only this process is patched: it cannot compute head scores, so the workers must compute them
    monkeypatch.setattr("qkv.scale._head_sums.head_sums", None)
    sources = [corpus / "1.txt", *sorted(corpus.glob("[2-4]*"))]
    with client.as_current():
        agree(scale.head_scores(None, sources), wanted)


@pytest.mark.parametrize("rows", [3, 7, 50])
def test_scores_do_not_depend_on_the_split_into_files(
    rows: int, texts: list[str], wanted: dict[str, np.ndarray], client: Any, tmp_path: Path
) -> None:
    """Each small file is one part; 40, 18 or 3 parts are joined in pairs."""
    paths = []
    for first in range(0, len(texts), rows):
        paths.append(tmp_path / f"{first}.txt")
        paths[-1].write_text("".join(f"{text}\n" for text in texts[first : first + rows]))
    agree(scale.head_scores(None, paths, client=client), wanted)


def test_long_sources_are_cut_into_many_parts(
    texts: list[str], wanted: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def noted(model: Any, part: Iterator[str], of: tuple[str, ...]) -> HeadSums:
        rows = list(part)
        sizes.append(len(rows))
        return head_sums(model, rows, of)

    (tmp_path / "x.txt").write_text("".join(f"{text}\n" for text in texts))
    monkeypatch.setattr("qkv.scale._counting.MARK_ROWS", 1)
    monkeypatch.setattr("qkv.scale._head_sums.ROWS", 7)
    monkeypatch.setattr("qkv.scale._head_sums.head_sums", noted)
    agree(scale.head_scores(None, tmp_path / "x.txt"), wanted)
    assert sizes == [7] * 17 + [1]


def test_truncated_texts_are_counted_in_one_warning(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.scale._counting.MARK_ROWS", 1)
    monkeypatch.setattr("qkv.scale._head_sums.ROWS", 1)
    most = qkv.load().max_seq_length
    rows = ["the cat", "the cat sat " * most, "sat", "the cat " * most]
    (tmp_path / "x.txt").write_text("\n".join(rows))
    for used in (None, client):
        with pytest.warns(UserWarning, match=rf"^2 of 4 texts were cut to {most} tokens") as noted:
            scale.head_scores(None, tmp_path / "x.txt", "first", client=used)
        assert len(noted) == 1


def test_only_requested_scores_are_returned_with_nan_without_queries(
    tmp_path: Path, client: Any
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "one.txt").write_text("the cat sat")
    model = qkv.load()
    for used in (None, client):
        found = scale.head_scores(None, tmp_path / "one.txt", ["induction", "first"], client=used)
        assert list(found) == ["induction", "first"]
        assert np.isnan(found["induction"]).all()
        assert (found["first"] > 0).all()
        found = scale.head_scores(None, tmp_path / "empty.txt", "first", client=used)
        assert np.isnan(found["first"]).all()
        assert found["first"].shape == (model.num_layers, model.num_heads)


def test_a_csv_whose_rows_are_not_lines(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process, any row may be the first row of a part. The workers are not patched.
    monkeypatch.setattr("qkv.scale._counting.MARK_ROWS", 1)
    monkeypatch.setattr("qkv.scale._head_sums.ROWS", 1)
    rows = ["the cat\nsat", 'a "dog", ran', ""]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["body"], *([text] for text in rows)])
    wanted = head_scores(qkv.load(), rows)
    for used in (None, client):
        agree(scale.head_scores(None, tmp_path / "x.csv", client=used, column="body"), wanted)


def test_a_bad_row_is_an_error_before_any_score_is_computed(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "the cat"}\n{"text": "sat"}\n{"text": 3}\n')
    monkeypatch.setattr("qkv.scale._head_sums.head_sums", None)
    for used in (None, client):
        with pytest.raises(ValueError, match=r"scale.head_scores: .*x\.jsonl, row 2 has a 'text'"):
            scale.head_scores(None, path, client=used)


def test_a_bad_row_has_its_number_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "the cat"}\n' * 20 + "none\n")
    monkeypatch.setattr("qkv.scale._counting.blocks_of", lambda file, _: blocks_of(file, 50))
    with pytest.raises(ValueError, match=r"x\.jsonl, row 20 is not JSON"):
        scale.head_scores(None, path)


def test_an_unknown_score_is_refused_before_a_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`of` has 'inducton': choose among previous, next"):
        scale.head_scores(None, tmp_path / "none.txt", "inducton")
    with pytest.raises(FileNotFoundError, match=r"scale\.head_scores: there is no file"):
        scale.head_scores(None, tmp_path / "none.txt")
