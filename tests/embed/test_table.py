"""Tests of TokenEmbedding: equal words get equal vectors."""

import ml_dtypes
import numpy as np
import pytest

from qkv.embed import TokenEmbedding
from qkv.text import WordTokenizer
from rows import failing

TOKENIZER = WordTokenizer({"the": 0, "cat": 1, "sat": 2})  # [UNK] is added as 3
TABLE = np.arange(12.0).reshape(4, 3)


def test_embeddings_are_rows_of_the_table() -> None:
    x = TokenEmbedding(TOKENIZER, 3, weight=TABLE)("Sat the dog the")
    assert x.tolist() == [[[6, 7, 8], [0, 1, 2], [9, 10, 11], [0, 1, 2]]]
    assert x.dtype == np.float64


def test_a_random_table_is_standard_normal() -> None:
    weight = TokenEmbedding(TOKENIZER, 50_000, seed=1).weight
    assert weight.shape == (4, 50_000)
    assert weight.dtype == np.float32
    np.testing.assert_allclose(weight.mean(axis=1), 0, atol=0.02)
    np.testing.assert_allclose(weight.std(axis=1), 1, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(weight), np.eye(4), atol=0.02)


def test_the_same_word_has_the_same_vector_in_every_call() -> None:
    embedding = TokenEmbedding(TOKENIZER, 8)
    first, second = embedding("the cat"), embedding("sat on the")
    np.testing.assert_array_equal(first[0, 0], second[0, 2])
    np.testing.assert_array_equal(embedding("the cat"), first)


def test_seeds() -> None:
    a, b, c = (TokenEmbedding(TOKENIZER, 8, seed=seed).weight for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.isclose(a, c).any()
    unseeded = [TokenEmbedding(TOKENIZER, 8).weight for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).all()


def test_the_table_is_fixed() -> None:
    given = TABLE.copy()
    embedding = TokenEmbedding(TOKENIZER, weight=given)
    given[:] = -1
    assert embedding("the").tolist() == [[[0, 1, 2]]]
    with pytest.raises(ValueError, match="read-only"):
        embedding.weight[0, 0] = 5
    x = embedding("the")
    x += 100
    assert embedding("the").tolist() == [[[0, 1, 2]]]


def test_a_read_only_table_is_not_copied() -> None:
    given = TABLE.copy()
    given.setflags(write=False)
    assert np.shares_memory(TokenEmbedding(TOKENIZER, weight=given).weight, given)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dtypes(dtype) -> None:
    random = TokenEmbedding(TOKENIZER, 4, seed=0, dtype=dtype).weight
    assert random.dtype == dtype
    wide = TokenEmbedding(TOKENIZER, 4, seed=0, dtype=np.float64).weight
    np.testing.assert_array_equal(random, wide.astype(dtype))
    assert TokenEmbedding(TOKENIZER, weight=TABLE, dtype=dtype)("cat").dtype == dtype


def test_integer_vectors_stay_integers() -> None:
    x = TokenEmbedding(TOKENIZER, weight=[[1, 0, 1], [0, 2, 0], [1, 1, 1], [0, 0, 0]])("cat the")
    assert x.dtype == np.int64
    assert x.tolist() == [[[0, 2, 0], [1, 0, 1]]]


def test_a_byte_swapped_table_comes_out_native() -> None:
    x = TokenEmbedding(TOKENIZER, weight=TABLE.astype(">f4"))("cat")
    assert x.dtype.isnative
    assert x.tolist() == [[[3, 4, 5]]]


def test_a_table_may_have_more_rows_than_the_tokenizer() -> None:
    embedding = TokenEmbedding(TOKENIZER, weight=np.zeros((9, 2)))
    assert embedding.weight.shape == (9, 2)
    assert embedding.rows([8]).shape == (1, 2)


def test_empty_text() -> None:
    x = TokenEmbedding(TOKENIZER, 5)("  ")
    assert x.shape == (1, 0, 5)
    assert x.dtype == np.float32


def test_rows_of_any_shape() -> None:
    embedding = TokenEmbedding(TOKENIZER, weight=TABLE)
    assert embedding.rows([[3, 0], [1, 1]]).tolist() == [
        [[9, 10, 11], [0, 1, 2]],
        [[3, 4, 5], [3, 4, 5]],
    ]
    assert embedding.rows(np.uint8(2)).tolist() == [6, 7, 8]
    assert embedding.rows([]).shape == (0, 3)
    assert embedding.rows(np.zeros((2, 0), dtype=int)).shape == (2, 0, 3)


def test_tables_and_rows_refused() -> None:
    rows = TokenEmbedding(TOKENIZER, weight=TABLE).rows
    for options, error, match in (
        ({}, ValueError, "neither dim nor weight"),
        ({"dim": 0}, ValueError, "dim is 0: it must be 1 or more"),
        ({"dim": 2.0}, TypeError, "dim is 2.0; pass a whole number"),
        ({"dim": True}, TypeError, "dim is True"),
        ({"dim": 2, "dtype": np.int32}, TypeError, "dtype is int32"),
        ({"dim": 4, "weight": TABLE}, ValueError, "rows of size 3, but dim is 4"),
        ({"weight": TABLE[:3]}, ValueError, "3 rows and the tokenizer has 4 ids"),
        ({"weight": TABLE[0]}, ValueError, r"shape \(3,\)"),
        ({"weight": np.zeros((4, 0))}, ValueError, r"shape \(4, 0\)"),
        ({"weight": TABLE > 3}, TypeError, "weight is bool"),
        ({"weight": TABLE * 1j}, TypeError, "weight is complex128"),
        ({"weight": TABLE, "seed": 0}, ValueError, "weight and seed"),
        ({"ids": [0, 4]}, ValueError, "no row for id 4: the table has 4 rows, so ids .* 0 to 3"),
        ({"ids": [-1]}, ValueError, "no row for id -1"),
        ({"ids": [0.0]}, TypeError, "ids are float64"),
        ({"ids": [True]}, TypeError, "ids are bool"),
        ({"ids": [None]}, TypeError, "ids"),
    ):
        with failing(options), pytest.raises(error, match=f"^TokenEmbedding: .*{match}"):
            rows(**options) if "ids" in options else TokenEmbedding(TOKENIZER, **options)


@pytest.mark.parametrize("text", [["the cat", "sat"], None, b"the"])
def test_one_text_only(text) -> None:
    with pytest.raises(TypeError, match=f"text is {type(text).__name__}; pass one string"):
        TokenEmbedding(TOKENIZER, 4)(text)
