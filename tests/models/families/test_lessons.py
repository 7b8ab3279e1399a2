"""Tests of the lessons' model: each step recomputed from its parameters."""

import numpy as np
import pytest

import qkv
from qkv.models import load, random_model
from qkv.models.untrained import LESSONS

from ..formulas import attend, causal as visible

TEXT = "the cat sat on the mat"


def by_hand(model, ids, causal, positions):
    """Compute in float64: words -> vectors -> + positions -> heads -> concatenated -> projected."""
    p = {name: array.astype(np.float64) for name, array in model.parameters.items()}
    x = p["embed.weight"][ids]
    length, dim = x.shape
    if positions:
        for position in range(length):
            for column in range(dim):
                angle = position / 10000 ** ((column - column % 2) / dim)
                x[position, column] += np.cos(angle) if column % 2 else np.sin(angle)
    q, k, v = (x @ p[f"blocks.0.attn.{n}_proj.weight"] for n in "qkv")
    joined, _ = attend(q, k, v, model.num_heads, visible=visible(length) if causal else True)
    return joined @ p["blocks.0.attn.out_proj.weight"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_whole_model_by_hand(causal, positions, heads):
    model = random_model(
        TEXT, dim=8, heads=heads, causal=causal, positions=positions, seed=3, dtype=np.float64
    )
    trace = model.trace(TEXT)
    expected = by_hand(model, model.tokenize(TEXT).ids, causal, positions)
    np.testing.assert_allclose(trace["resid_post", 0][0], expected, atol=1e-12)
    np.testing.assert_allclose(model.encode(TEXT), expected.mean(0), atol=1e-12)
    np.testing.assert_array_equal(trace["attn_out", 0], trace["resid_post", 0])
    np.testing.assert_array_equal(
        np.swapaxes(qkv.attention(**trace.attention_inputs(0)), 1, 2), trace["z", 0]
    )


def test_the_names_of_its_trace():
    names = random_model(TEXT).trace(TEXT).names()
    attn = [f"blocks.0.attn.hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z")]
    blocks = [f"blocks.0.hook_{name}" for name in ("resid_pre", "attn_out", "resid_post")]
    assert sorted(names) == sorted(
        ["hook_embed", "hook_pos_embed", "hook_full_embed", *blocks, *attn]
    )
    assert "hook_pos_embed" not in random_model(TEXT, positions=False).trace(TEXT)


def test_the_seed_determines_the_model():
    first, same = random_model(TEXT, seed=5).encode(TEXT), random_model(TEXT, seed=5).encode(TEXT)
    np.testing.assert_array_equal(first, same)
    assert (random_model(TEXT, seed=6).encode(TEXT) != first).all()


def test_embeddings_and_query_weights_are_uncorrelated():
    model = random_model("a b c d e f g", dim=8)
    table = model.parameters["embed.weight"]
    query = model.parameters["blocks.0.attn.q_proj.weight"]
    assert abs(np.corrcoef(table.ravel(), query.ravel())[0, 1]) < 0.5


def test_an_unknown_word_becomes_unk_and_keeps_its_offsets():
    trace = random_model(TEXT).trace("the dog sat")
    assert trace.tokens == ["the", "[UNK]", "sat"]
    assert trace.offsets[1] == (4, 7)


def test_a_text_without_words_cannot_be_encoded():
    model = random_model(TEXT)
    with pytest.raises(ValueError, match="encode: text 1 is empty"):
        model.encode(["the", ""])
    with pytest.raises(ValueError, match="trace: the text is empty"):
        model.trace(" ")


def test_load_random_knows_the_lessons_words():
    model = load("random")
    for text in LESSONS:
        assert "[UNK]" not in model.tokenize(text).tokens
    assert load("random", dtype=np.float64).encode("the cat").dtype == np.float64


@pytest.mark.parametrize("options", [{"dim": 8, "heads": 3}, {"dim": 0}, {"heads": 0}])
def test_sizes_that_do_not_fit(options):
    with pytest.raises(ValueError, match=r"SelfAttention|TokenEmbedding"):
        random_model(TEXT, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_saved_and_loaded(tmp_path, causal, positions):
    model = random_model(TEXT, causal=causal, positions=positions, seed=2)
    model.save(tmp_path / "lesson")
    again = load(tmp_path / "lesson")
    np.testing.assert_equal(dict(again.trace(TEXT)), dict(model.trace(TEXT)))
    assert again.trace("the dog").tokens == ["the", "[UNK]"]
