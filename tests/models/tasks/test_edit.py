"""Runs without some heads, or with words out of sight: does it matter?"""

import numpy as np
import pytest
from safetensors.numpy import load_file

import qkv
from qkv.models import load, random_model

from ..support import plain_bert

TEXT = "the cat sat on the mat."
TEXTS = [TEXT, "a dog ran, the cat ran", "the bank"]
LESSON = "The cat sat on the mat"


@pytest.fixture(scope="module")
def double(small):
    return load(small, dtype=np.float64)


@pytest.fixture(scope="module")
def tensors(small):
    return load_file(small / "model.safetensors")


def close(found, expected, bound=1e-12):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= bound * max(1, np.abs(expected).max())


# heads


@pytest.mark.parametrize("pairs", [[(0, 1)], [(1, 0), (1, 2)], [(0, 0), (0, 1), (0, 2), (1, 1)]])
def test_heads_left_out_are_as_if_their_rows_of_the_output_projection_were_zero(small, pairs):
    found = load(small, dtype=np.float64).trace(TEXTS, ablate=pairs)
    zeroed = load(small, dtype=np.float64)
    for layer, head in pairs:
        name = f"blocks.{layer}.attn.out_proj.weight"
        weight = zeroed.parameters[name].copy()
        weight[head * 4 : head * 4 + 4] = 0
        zeroed.parameters[name] = weight
    expected = zeroed.trace(TEXTS)
    for name in expected.names():
        if name.endswith(("hook_z", "hook_pattern", "hook_attn_scores")):
            continue
        close(found[name], expected[name])
    for layer, head in pairs:
        assert not found["z", layer][:, :, head].any()
        assert not found["pattern", layer][:, head].any()


def test_heads_left_out_are_left_out_of_the_plain_bert(double, tensors):
    states, _ = plain_bert(
        tensors, double.config, double.tokenize(TEXT).ids, ablated=[(0, 2), (1, 1)]
    )
    trace = double.trace(TEXT, ablate=[(0, 2), (1, 1)])
    for found, expected in zip(trace.hidden_states, states, strict=True):
        close(found[0], expected)


def test_what_comes_before_a_head_that_is_left_out_is_as_it_was(small):
    model = load(small)
    plain, found = model.trace(TEXTS), model.trace(TEXTS, ablate=[(1, 1)])
    before = [name for name in plain.names() if not name.startswith("blocks.1.")]
    before += [f"blocks.1.attn.hook_{name}" for name in "qkv"]
    for name in before:
        np.testing.assert_array_equal(found[name], plain[name], err_msg=name)
    others = [0, 2]
    np.testing.assert_allclose(
        found["z", 1][:, :, others], plain["z", 1][:, :, others], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        found["pattern", 1][:, others], plain["pattern", 1][:, others], rtol=1e-5, atol=1e-7
    )
    assert np.abs(found["attn_out", 1] - plain["attn_out", 1]).max() > 0.01


def test_layers_and_heads_may_be_counted_from_the_end_and_named_twice(double):
    trace = double.trace(TEXT, ablate=[(-1, -3), (1, 0), (0, np.int64(2))])
    assert trace.changed == {"ablate": [(0, 2), (1, 0)]}
    expected = double.trace(TEXT, ablate=[(0, 2), (1, 0)])
    np.testing.assert_array_equal(trace["attn_out", 1], expected["attn_out", 1])


# words


def places(model, text, *words):
    """Where these tokens stand in a text."""
    return [i for i, token in enumerate(model.tokenize(text).tokens) if token in words]


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (["cat"], ["cat"]),
        (["The", "ran"], ["the", "ran"]),
        (["[SEP]"], ["[SEP]"]),
        (["[CLS]", "mat", "."], ["[CLS]", "mat", "."]),
    ],
)
def test_hidden_words_are_hidden_in_the_plain_bert(double, tensors, words, tokens):
    text = "the cat sat on the mat. a dog ran"
    hidden = places(double, text, *tokens)
    assert hidden
    states, weights = plain_bert(tensors, double.config, double.tokenize(text).ids, hidden=hidden)
    trace = double.trace(text, hide=words)
    for found, expected in zip(trace.hidden_states, states, strict=True):
        close(found[0], expected)
    for found, expected in zip(trace.attentions, weights, strict=True):
        close(found[0], expected)
        assert not found[..., hidden].any()
    assert np.isneginf(trace["attn_scores", 0][..., hidden]).all()


def test_a_word_is_hidden_whole_and_nothing_that_merely_begins_like_it(double):
    text = "run runs running"  # run, run ##s, run ##ning
    tokens = double.tokenize(text).tokens
    assert tokens == ["[CLS]", "run", "run", "##s", "run", "##ning", "[SEP]"]
    for word, hidden in (("run", [1]), ("runs", [2, 3]), ("running", [4, 5])):
        weights = double.trace(text, hide=[word])["pattern", 0]
        assert np.flatnonzero(~weights.any(axis=(0, 1, 2))).tolist() == hidden


def test_each_text_hides_its_own_words_and_a_text_without_them_is_as_it_was(double):
    together, plain = double.trace(TEXTS, hide="cat"), double.trace(TEXTS)
    for number, text in enumerate(TEXTS):
        alone = double.trace(text, hide="cat") if "cat" in text else double.trace(text)
        for name in alone.names():
            if "scores" not in name:
                close(together[number][name], alone[name])
    for name in ("pattern", "z", "attn_out", "resid_post"):
        close(together[2][name, 1], plain[2][name, 1])


def test_heads_and_words_at_once(double, tensors):
    ids = double.tokenize(TEXT).ids
    hidden, pairs = places(double, TEXT, "mat"), [(0, 1), (1, 2)]
    states, _ = plain_bert(tensors, double.config, ids, hidden=hidden, ablated=pairs)
    trace = double.trace(TEXT, hide="mat", ablate=pairs)
    for found, expected in zip(trace.hidden_states, states, strict=True):
        close(found[0], expected)
    assert trace.changed == {"ablate": pairs, "hide": ["mat"]}


def test_a_token_that_sees_nothing_gets_nothing():
    model = random_model(LESSON, causal=True)
    trace = model.trace(LESSON, hide=["the"])  # the first word, and the only one that it sees
    assert not trace["z", 0][0, 0].any()
    assert not trace["attn_out", 0][0, 0].any()
    np.testing.assert_allclose(trace.pattern(0, 1)[1:].sum(1), 1, rtol=1e-6)
    assert not trace.pattern(0, 0)[:, [0, 4]].any()
    assert not np.triu(trace.pattern(0, 0), 1).any()


# what a trace says of it


def test_the_inputs_of_attention_give_the_weights_again(double, tmp_path):
    trace = double.trace(TEXTS, hide=["cat"], ablate=[(1, 1)])
    trace.save(tmp_path / "trace.safetensors")
    loaded = qkv.Trace.load(tmp_path / "trace.safetensors")
    for one in (trace, loaded, trace[0], trace[1], loaded[2]):
        assert one.changed == {"ablate": [(1, 1)], "hide": ["cat"]}
        for layer in range(2):
            out, weights = qkv.attention(**one.attention_inputs(layer), return_weights=True)
            close(weights, one["pattern", layer])
            close(np.swapaxes(out, 1, 2), one["z", layer])
            found = qkv.trace_attention(**one.attention_inputs(layer))["scores"]
            shown = np.isfinite(one["attn_scores", layer])
            assert (np.isfinite(found) == shown).all()
            close(found[shown], one["attn_scores", layer][shown])


def test_a_run_of_the_model_as_it_is_says_so(double):
    assert double.trace(TEXT).changed == {}
    assert double.trace(TEXT, ablate=[], hide=()).changed == {}
    assert "attn_mask" not in double.trace(TEXT).attention_inputs(0)
    ablated = double.trace(TEXT, ablate=[(1, 0)])
    assert "attn_mask" not in ablated.attention_inputs(0)
    assert ablated.attention_inputs(1)["attn_mask"].shape == (1, 3, 1, 9)


def test_an_old_file_of_a_trace_is_of_a_model_as_it_is(double, tmp_path):
    import json

    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = tmp_path / "trace.safetensors"
    double.trace(TEXT).save(path)
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["qkv.trace"])
        arrays = {name: file.get_tensor(name) for name in about["names"]}
    del about["changed"]
    save_file(arrays, path, {"qkv.trace": json.dumps(about)})
    assert qkv.Trace.load(path).changed == {}


def test_summaries_know_of_it(double):
    trace = double.trace(TEXT, top_k=9, hide=["cat"], ablate=[(0, 0)])
    (cat,) = places(double, TEXT, "cat")
    for layer in range(2):
        assert not trace["received", layer][..., cat].any()
    assert not trace["top_weights", 0][0, 0].any()
    assert np.isneginf(trace["lse", 0][0, 0]).all()
    full = double.trace(TEXT, hide=["cat"], ablate=[(0, 0)])
    np.testing.assert_allclose(trace["received", 1], full["pattern", 1].sum(2), atol=1e-12)


def test_nothing_is_left_behind_in_the_model(double):
    before = double.trace(TEXT)["resid_post", 1]
    double.trace(TEXT, ablate=[(0, 0)], hide=["cat"])
    np.testing.assert_array_equal(double.trace(TEXT)["resid_post", 1], before)


# errors


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"ablate": [(2, 0)]}, ValueError, "ablate has layer 2 and the model has 2, 0 to 1"),
        ({"ablate": [(-3, 0)]}, ValueError, "ablate has layer -3"),
        ({"ablate": [(0, 3)]}, ValueError, "ablate has head 3 and layer 0 has 3, 0 to 2"),
        ({"ablate": [(0, -4)]}, ValueError, "ablate has head -4"),
        ({"ablate": (0, 1)}, TypeError, r"ablate has 0: write \(layer, head\) pairs"),
        ({"ablate": 3}, TypeError, "ablate has 3: write"),
        ({"ablate": [(0, 1, 2)]}, TypeError, r"ablate has \(0, 1, 2\)"),
        ({"ablate": [(0, True)]}, TypeError, r"ablate has \(0, True\)"),
        ({"ablate": [(0, 1.0)]}, TypeError, r"ablate has \(0, 1.0\)"),
        ({"ablate": ["01"]}, TypeError, "ablate has '01'"),
        (
            {"hide": ["dog"]},
            ValueError,
            r"hide has 'dog', which is in no text: the words are the, cat, sat, on, mat, \.$",
        ),
        ({"hide": ["xyzzy"]}, ValueError, "hide has 'xyzzy', which is in no text"),
        ({"hide": "the cat dog"}, ValueError, "hide has 'the cat dog'"),
        ({"hide": [""]}, ValueError, "hide has '', which is in no text"),
        ({"hide": [3.0]}, TypeError, r"hide has 3\.0: give words, and places as whole numbers"),
        ({"hide": [True]}, TypeError, "hide has True: give words"),
        ({"hide": [(1, 2)]}, TypeError, r"hide has \(1, 2\): give words"),
        ({"hide": {"cat": 1}}, TypeError, "hide has {'cat': 1}: give words"),
        (
            {"hide": [9]},
            ValueError,
            "hide has place 9 and no text has more than 9 tokens: give -9 to 8, or a word$",
        ),
        ({"hide": -10}, ValueError, "hide has place -10"),
        ({"ablate": {(0, 1): "mean"}}, TypeError, r"ablate has {\(0, 1\): 'mean'}: write"),
        ({"ablate": [(None, 0)]}, TypeError, r"ablate has \(None, 0\)"),
        ({"ablate": [(2, None)]}, ValueError, "ablate has layer 2"),
        (
            {"hide": ["the", "cat", "sat", "on", "mat", "."]},
            ValueError,
            "hide leaves the text no word to look at: leave one in sight",
        ),
    ],
)
def test_what_cannot_be_left_out(double, options, error, said):
    with pytest.raises(error, match=f"^trace: {said}") as raised:
        double.trace(TEXT, **options)
    assert "\n" not in str(raised.value)


def test_a_text_of_several_that_is_hidden_whole_is_named(double):
    with pytest.raises(ValueError, match="hide leaves text 2 no word to look at"):
        double.trace(TEXTS, hide=["the", "bank"])


def test_an_unknown_word_is_not_every_unknown_word(double):
    assert double.tokenize("xyzzy").tokens == ["[CLS]", "[UNK]", "[SEP]"]
    with pytest.raises(ValueError, match="'plugh', which is in no text"):
        double.trace("the xyzzy cat", hide=["plugh"])


def test_many_words_are_not_all_listed():
    text = " ".join(f"w{number}" for number in range(30))
    with pytest.raises(ValueError, match=r"w0, w1, .*w19 and 10 more$"):
        random_model(text).trace(text, hide=["x"])
