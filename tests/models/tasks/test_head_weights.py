"""Tests of the weights of heads, against traces and against plain matrices."""

import numpy as np
import pytest

import qkv
from qkv.models import Factored, load
from rows import failing

from ..small_models import CONFIGS, write_small

TEXT = "the cat sat on the mat"


def test_qk_and_ov_products_give_scores_and_results():
    """The model is attention-only, without norms, biases or rotary positions."""
    model = qkv.load("random", dtype=np.float64)
    trace = model.trace(TEXT, names=["resid_pre", "attn_scores", "pattern", "result"])
    heads, x = model.head_weights(-1), trace["resid_pre", 0][0]
    for head in range(2):
        scores = x @ heads.qk.full()[head] @ x.T / np.sqrt(4)
        np.testing.assert_allclose(scores, trace["attn_scores", 0][0, head], atol=1e-12)
        added = trace["pattern", 0][0, head] @ x @ heads.ov.full()[head]
        np.testing.assert_allclose(added, trace["result", 0][0, :, head], atol=1e-12)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "opt"])
def test_weights_and_biases_alone_reproduce_activations_and_logits(kind, tmp_path):
    """The weights alone give embeddings, queries, keys, values, attention outputs and logits."""
    model = load(write_small(tmp_path / kind, CONFIGS[kind], seed=1), dtype=np.float64)
    trace = model.trace(TEXT, logits=True)
    heads, ids = model.head_weights(1), np.array(trace.ids)
    np.testing.assert_array_equal(heads.W_E[ids], trace["embed"][0])
    if heads.W_pos is None:
        assert kind in ("llama", "qwen2")
    else:
        first = 2 if kind == "opt" else 0  # OPT does not use the first two rows
        where = heads.W_pos[first : first + len(ids)]
        np.testing.assert_array_equal(where, trace["pos_embed"][0])
    logits = trace["ln_final.hook_normalized"][0] @ heads.W_U + heads.b_U
    np.testing.assert_allclose(logits, trace["logits"][0], rtol=0, atol=1e-12)
    x, z = trace["ln1.normalized", 1][0], trace["z", 1][0]  # (T, D), (T, H, d)
    groups = trace["q", 1].shape[2] // trace["k", 1].shape[2]
    for name, weight, bias, count in (
        ("q", heads.W_Q, heads.b_Q, 1),
        ("k", heads.W_K, heads.b_K, groups),
        ("v", heads.W_V, heads.b_V, groups),
    ):
        found = np.einsum("td,hde->the", x, weight) + bias
        expected = np.repeat(trace[name, 1][0], count, 1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    out = np.einsum("thd,hde->te", z, heads.W_O) + heads.b_O
    np.testing.assert_allclose(out, trace["attn_out", 1][0], rtol=0, atol=1e-12)


def test_a_model_without_words_has_no_unembedding():
    heads = qkv.load("random").head_weights(0)
    assert heads.W_U is None
    assert heads.b_U is None
    assert heads.W_E.dtype == np.float32


@pytest.mark.parametrize("which", ["qk", "ov"])
def test_eigenvalues_are_those_of_the_whole_matrix(llama, which):
    heads = llama.head_weights(0)
    left, right = {
        "qk": (heads.W_Q, heads.W_K.transpose(0, 2, 1)),
        "ov": (heads.W_V, heads.W_O),
    }[which]
    found = getattr(heads, which)
    np.testing.assert_array_equal(found.left, left)
    np.testing.assert_array_equal(found.right, right)
    count, dim, size = left.shape
    assert found.eigenvalues.shape == (count, size)
    assert found.eigenvalues.dtype == np.complex128
    for head in range(count):
        whole = np.zeros((dim, dim))
        for i in range(size):
            whole += np.outer(left[head, :, i], right[head, i])
        np.testing.assert_allclose(found.full()[head], whole, atol=1e-12)
        every = np.linalg.eigvals(whole)
        largest = every[np.argsort(-np.abs(every))]
        np.testing.assert_allclose(largest[size:], 0, atol=1e-7)
        for power in (1, 2, 3):  # whatever the order of conjugate pairs
            sums = (found.eigenvalues[head] ** power).sum()
            np.testing.assert_allclose(sums, (every**power).sum(), atol=1e-9)
        sizes = np.abs(found.eigenvalues[head])
        assert (np.diff(sizes) <= 1e-12).all()


def test_half_precision_is_read_as_float32(tmp_path):
    model = load(write_small(tmp_path / "llama", CONFIGS["llama"]), dtype="bfloat16")
    heads = model.head_weights(0)
    assert {heads.W_Q.dtype, heads.W_K.dtype, heads.W_O.dtype} == {np.dtype(np.float32)}
    weight = model.parameters["blocks.0.attn.q_proj.weight"].astype(np.float32)
    np.testing.assert_array_equal(np.concatenate([*heads.W_Q], axis=1), weight)


def test_layers_that_are_not_there(llama):
    for layer, error, words in (
        (2, ValueError, "no layer 2: the model has 2 layers, numbered 0 to 1"),
        (-3, ValueError, "no layer -3: the model has 2"),
        ("0", TypeError, "layer is '0'; pass a whole number"),
        (True, TypeError, "layer is True"),
    ):
        with failing(layer, error, words), pytest.raises(error, match=f"head_weights: .*{words}"):
            llama.head_weights(layer)


MADE = np.random.default_rng(3)
FACTORED = Factored(MADE.normal(size=(3, 7, 2)), MADE.normal(size=(3, 2, 5)))
FULL = FACTORED.left @ FACTORED.right


def full(product: object) -> np.ndarray:
    return product.full() if isinstance(product, Factored) else np.asarray(product)


@pytest.mark.parametrize(
    "key",
    [
        1,
        -1,
        slice(1, None),
        [2, 0],
        np.array([True, False, True]),
        (0, slice(2, 5)),
        (0, slice(None), slice(1, 3)),
        (..., slice(0, 2)),
        (slice(1, None), ..., [4, 1]),
        (1, 4),
        (1, -1, -2),
        (slice(None), 3),
        (..., 3),
        (..., 2, 3),
        (2, 6, slice(1, 4)),
    ],
    ids=str,
)
def test_a_factored_matrix_is_indexed_like_the_product(key):
    np.testing.assert_allclose(full(FACTORED[key]), FULL[key], atol=1e-12)


def test_products_keep_the_smaller_inner_size():
    other = Factored(MADE.normal(size=(5, 4)), MADE.normal(size=(4, 6)))  # one for all heads
    large = other.left @ other.right
    for product, expected, size in (
        (FACTORED @ other, FULL @ large, 2),
        (other.T @ FACTORED.T, large.T @ FULL.swapaxes(1, 2), 2),
        (FACTORED @ large, FULL @ large, 2),
        (FULL.swapaxes(1, 2) @ FACTORED, FULL.swapaxes(1, 2) @ FULL, 2),
    ):
        assert isinstance(product, Factored)
        assert (product.left.shape[-1], product.shape) == (size, expected.shape)
        np.testing.assert_allclose(product.full(), expected, atol=1e-12)
    for product, expected in (
        (FACTORED @ np.arange(5), FULL @ np.arange(5)),
        (np.arange(7) @ FACTORED, np.arange(7) @ FULL),
    ):
        assert isinstance(product, np.ndarray)
        np.testing.assert_allclose(product, expected, atol=1e-12)


def test_the_norm_and_the_singular_values_are_those_of_the_product():
    np.testing.assert_allclose(FACTORED.norm(), np.linalg.norm(FULL, axis=(1, 2)), atol=1e-12)
    for factored in (FACTORED, FACTORED.T, FACTORED[1], FACTORED @ np.eye(5)[:, :1]):
        U, S, Vh = factored.svd()
        large = full(factored)
        expected = np.linalg.svd(large, compute_uv=False)
        np.testing.assert_allclose(S, expected[..., : S.shape[-1]], atol=1e-12)
        np.testing.assert_allclose(U * S[..., None, :] @ Vh, large, atol=1e-12)
        eye = np.eye(S.shape[-1])
        np.testing.assert_allclose(np.swapaxes(U, -1, -2) @ U, eye + 0 * U[..., :1, :1], atol=1e-12)
    wide = Factored(np.ones((2, 5)), np.ones((5, 3)))  # the inner size is the largest
    assert [one.shape for one in wide.svd()] == [(2, 2), (2,), (2, 3)]


def test_factors_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"Factored: `left` \(3, 2\) and `right` \(4, 3\) cannot"):
        Factored(np.ones((3, 2)), np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"eigenvalues: the matrices are \(7, 5\), not square"):
        _ = FACTORED.eigenvalues
    with pytest.raises(IndexError, match=r"Factored: 4 indices are given .*; pass at most 3"):
        FACTORED[0, 0, 0, 0]
