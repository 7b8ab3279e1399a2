"""Tests of batches: what `model.read` returns and `network.run` takes."""

import numpy as np
import pytest

import qkv
from qkv.models.network._embedding import Embedding
from qkv.models.network.batch import Columns, PackedIds
from qkv.trace import Recorder


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


def test_texts_and_ids_run_alike_and_alone(model: qkv.Model) -> None:
    texts = ["The sun rises.", "I sat on the bank."]
    batch = model.read(texts)
    rows, _ = model.network.run(batch)
    again, _ = model.network.run(model.read([text.ids.tolist() for text in batch]))
    np.testing.assert_array_equal(again, rows)
    (first, second), (_, end, total) = batch.texts, batch.cu
    assert (end, total) == (len(first), len(first) + len(second))
    alone, _ = model.network.run(batch[1:])
    np.testing.assert_allclose(alone, rows[end:], atol=1e-5)
    assert batch[1:].numbers == range(1, 2)
    assert not batch.single
    assert model.read(texts[0]).single


def test_packed_ids_and_columns_with_padding_run_alike(model: qkv.Model) -> None:
    texts = [np.array([5, 9, 7, 8]), np.array([6, 4])]
    rows, _ = model.network.run(PackedIds.of(texts))
    ids, mask = np.array([[5, 9, 7, 8], [6, 4, 0, 0]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]]) > 0
    batch = Columns(ids, mask, model.network.spans(mask), None)
    np.testing.assert_array_equal(batch.drop_masked(model.network.run(batch)[0]), rows)
    assert batch.tokens == 6


def test_a_run_stops_before_a_layer_and_goes_on_from_its_vectors(model: qkv.Model) -> None:
    batch, record = model.read("The sun rises."), Recorder()
    rows, _ = model.network.run(batch, record=record, stop=2)
    assert {name.split(".")[1] for name in record.arrays if "blocks." in name} == {"0", "1"}
    whole = model.network.run(batch)[0]
    vectors = rows[None]  # (B, T, D)
    np.testing.assert_array_equal(model.run_layers(vectors, 2)[0], whole)


def test_positions_of_packed_texts_skip_padding_tokens() -> None:
    table = np.zeros((9, 2), np.float32)
    ids, cu = np.array([5, 1, 6, 1, 7]), np.array([0, 3, 3, 5])
    found = Embedding(table, padding=1).packed_positions(ids, cu)
    assert found.tolist() == [0, -1, 1, -1, 0]
    assert Embedding(table).packed_positions(ids, cu).tolist() == [0, 1, 2, 0, 1]
