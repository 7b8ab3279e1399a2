"""Tests of quantization, similarity and output types of vectors, against values by hand."""

import sys

import numpy as np
import pytest

from qkv.models import load
from qkv.models.sentence.vectors import quantize, similarity, similarity_pairwise
from rows import failing

TEXTS = ["the cat sat.", "a dog ran", "the mat"]
# The first number rises from -1 to 1.55 in steps of 0.01; the second is constant.
LINE = np.stack([np.linspace(-1, 1.55, 256), np.full(256, 0.5)], 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantization_spans_the_range_of_each_dimension(dtype):
    vectors = (LINE + np.array([0.009, 0])).astype(dtype)
    vectors[0, 0], vectors[-1, 0] = -1, 1.55
    found = quantize(vectors, "uint8")
    assert found.dtype == np.uint8
    assert found[:, 0].tolist() == list(range(256))
    assert not found[:, 1].any()
    below = quantize(vectors, "int8")
    assert below.dtype == np.int8
    assert below[:, 0].tolist() == list(range(-128, 128))
    assert (below[:, 1] == -128).all()


def test_binary_quantization_sets_a_bit_for_each_positive_number():
    vectors = np.array([[1, 0, -1, 2, 0.5, -3, -1, 4, 1], [-1] * 9], np.float32)
    found = quantize(vectors, "ubinary")
    assert found.dtype == np.uint8
    assert found.tolist() == [[0b10011001, 0b10000000], [0, 0]]
    below = quantize(vectors, "binary")
    assert below.dtype == np.int8
    assert below.tolist() == [[0b10011001 - 128, 0], [-128, -128]]


def test_quantizing_few_vectors_warns_and_one_is_refused(small):
    model = load(small)
    with pytest.warns(UserWarning, match="the steps of int8 come from the range of 3"):
        found = model.encode(TEXTS, precision="int8")
    assert found.min(0).tolist() == [-128] * 12
    assert found.max(0).min() >= 126  # rounding down may lower the maximum by a step
    with pytest.raises(ValueError, match="encode: precision is uint8, but a single vector"):
        model.encode(TEXTS[:1], precision="uint8")


@pytest.mark.parametrize(
    ("precision", "width", "dtype"),
    [("int8", 12, np.int8), ("uint8", 12, np.uint8), ("binary", 2, np.int8), ("ubinary", 2, "u1")],
)
def test_no_text_at_all(small, precision, width, dtype):
    found = load(small).encode([], precision=precision)
    assert found.shape == (0, width)
    assert found.dtype == dtype


def test_what_does_not_go_together(small):
    for options, words in (
        ({"precision": "int4"}, "precision is 'int4': choose float32 or int8 or uint8"),
        (
            {"precision": "binary", "output_value": "token_embeddings"},
            "precision binary is for sentence vectors, but output_value is token_embeddings",
        ),
        ({"normalize_embeddings": True, "output_value": None}, "normalize_embeddings is for"),
        ({"output_value": "logits"}, "output_value is 'logits': choose sentence_embedding or"),
    ):
        with failing(options, words), pytest.raises(ValueError, match=f"encode: {words}"):
            load(small).encode(TEXTS, **options)


@pytest.mark.parametrize("options", [{"convert_to_tensor": True}, {"convert_to_numpy": False}])
def test_tensors_without_torch(small, options, monkeypatch):
    """A missing torch is reported before anything is computed."""
    model = load(small)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(model, "_network", None)
    with pytest.raises(ImportError, match=r"this needs torch.*: pip install '.\[torch\]'"):
        model.encode(TEXTS, **options)


def test_everything_of_a_text(small):
    model = load(small)
    everything = model.encode(TEXTS, output_value=None)
    rows = model.encode(TEXTS, output_value="token_embeddings")
    vectors = model.encode(TEXTS)
    for one, text, own, vector in zip(everything, TEXTS, rows, vectors, strict=True):
        assert one["input_ids"].tolist() == model.tokenize(text).ids.tolist()
        assert one["attention_mask"].tolist() == [1] * len(own)
        np.testing.assert_array_equal(one["token_embeddings"], own)
        np.testing.assert_array_equal(one["sentence_embedding"], vector)
        assert all(array.base is None for array in one.values())  # a view would keep others alive


A = np.array([[3.0, 4.0], [0.0, 0.0]])
B = np.array([[3.0, 4.0], [-4.0, 3.0], [6.0, 8.0]])
EACH = {
    "cosine": [[1, 0, 1], [0, 0, 0]],
    "dot": [[25, 0, 50], [0, 0, 0]],
    "euclidean": [[0, -np.sqrt(50), -5], [-5, -5, -10]],
    "manhattan": [[0, -8, -7], [-7, -7, -14]],
}


@pytest.mark.parametrize("how", EACH)
def test_similarity(how):
    expected = np.array(EACH[how])
    np.testing.assert_allclose(similarity(A, B, how), expected, atol=1e-15)
    np.testing.assert_allclose(similarity(A[0], B, how), expected[:1], atol=1e-15)
    found = similarity_pairwise(A, B[:2], how)
    np.testing.assert_allclose(found, expected[[0, 1], [0, 1]], atol=1e-15)
    assert similarity(A.astype(np.float32), B.astype(np.float16), how).dtype == np.float32
    bytes_of = A.astype(np.int8) * 25, B.astype(np.int8) * 12  # their products do not fit in int8
    found = similarity(*bytes_of, how)
    np.testing.assert_allclose(
        found, similarity(*(x.astype(float) for x in bytes_of), how), rtol=1e-5, atol=1e-5
    )


def test_vectors_that_cannot_be_compared():
    for a, b, error, words in (
        (A, B[:, :1], ValueError, r"a has shape \(2, 2\) and b has shape \(3, 1\)"),
        (A[None], B, ValueError, r"a has shape \(1, 2, 2\)"),
        (A > 0, B, TypeError, "a is bool"),
        (A, [["x", "y"]], TypeError, "b is"),
    ):
        with failing(a, b, error, words), pytest.raises(error, match=f"{words}"):
            similarity(a, b, "cosine")


def test_pairwise_similarity_needs_equal_counts():
    with pytest.raises(ValueError, match="the inputs have 2 and 3"):
        similarity_pairwise(A, B, "dot")


@pytest.mark.parametrize("how", [*EACH, "maxsim", 7, None])
def test_the_similarity_function_is_read_from_the_files(folder, how, tmp_path):
    folder.write()
    folder.json("config_sentence_transformers.json", {"similarity_fn_name": how})
    load(folder.path).save(tmp_path / "copy")
    model = load(tmp_path / "copy")
    known = how if how in EACH else "cosine"
    assert model.similarity_fn_name == known
    np.testing.assert_allclose(model.similarity(A, B), EACH[known], atol=1e-6)
    np.testing.assert_allclose(
        model.similarity_pairwise(A, B[:2]), np.array(EACH[known])[[0, 1], [0, 1]], atol=1e-6
    )


def test_the_prompts_are_read_only(small):
    """Prompts cannot be set, because a new prompt would have no effect."""
    model = load(small)
    with pytest.raises(TypeError, match="does not support item assignment"):
        model.prompts["query"] = "a "
    with pytest.raises(AttributeError):
        model.prompts = {}


def test_queries_and_documents(folder):
    folder.write()
    said = {"query": "a cat ", "document": "the mat ", "other": "dog "}
    values = {"prompts": said, "default_prompt_name": "other"}
    folder.json("config_sentence_transformers.json", values)
    model = load(folder.path)
    assert dict(model.prompts) == said
    plain = {name: model.encode(TEXTS, prompt=prompt) for name, prompt in said.items()}
    np.testing.assert_array_equal(model.encode(TEXTS), plain["other"])
    np.testing.assert_array_equal(model.encode_query(TEXTS), plain["query"])
    np.testing.assert_array_equal(model.encode_document(TEXTS), plain["document"])
    np.testing.assert_array_equal(model.encode_query(TEXTS, prompt="dog "), plain["other"])
    found = model.encode_document(TEXTS, prompt_name="other", truncate_dim=5)
    np.testing.assert_array_equal(found, plain["other"][:, :5])
