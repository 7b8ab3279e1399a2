"""Tests of logits and predicted words, also with ablated heads and masked words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.models import load
from rows import failing

from .. import decoders
from ..formulas import ACTIVATIONS, layer_norm, rms_norm, softmax
from ..small_models import CONFIGS, write_small
from ..support import CONFIG, MASK_HEAD, WORDS, close, mask_bert, padded, plain_bert

TEXT = "the cat sat on the [MASK]."
TWO = "the [MASK] ran. a [MASK] sat"
SHORT = "a dog"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[qkv.Model, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mask") / "model"
    tensors = mask_bert(folder)
    return load(folder, dtype=np.float64), tensors


@pytest.fixture(scope="module")
def model(made: tuple[qkv.Model, dict[str, Any]]) -> qkv.Model:
    return made[0]


def plain_head(tensors: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Run BERT's language-model head: linear layer, gelu, norm, token table, bias."""
    p = {name: array.astype(np.float64) for name, array in tensors.items()}
    x = x @ p[f"{MASK_HEAD}.dense.weight"].T + p[f"{MASK_HEAD}.dense.bias"]
    norm = (p[f"{MASK_HEAD}.LayerNorm.{part}"] for part in ("weight", "bias"))
    x = layer_norm(ACTIVATIONS["gelu"](x), *norm, CONFIG["layer_norm_eps"])
    return x @ p["embeddings.word_embeddings.weight"].T + p["cls.predictions.bias"]


def plain(made: tuple[qkv.Model, dict[str, Any]], ids: Any, **edits: Any) -> np.ndarray:
    """Return the logits (T, V) of the plain BERT with its head."""
    found, tensors = made
    return plain_head(tensors, plain_bert(tensors, found.config, ids, **edits)[0][-1])


# logits in a trace


def test_the_logits_of_a_trace_are_those_of_the_plain_bert(made: Any, tmp_path: Path) -> None:
    model, _ = made
    trace = model.trace([TEXT, SHORT], logits=True)
    assert trace["logits"].shape == (2, 9, 30)
    for number, text in enumerate([TEXT, SHORT]):
        expected = plain(made, model.tokenize(text).ids)
        close(trace[number]["logits"][0], expected)
        assert not trace["logits"][number, len(expected) :].any()
    close(model.trace(SHORT, logits=True)["logits"][0], expected)
    trace.save(tmp_path / "trace.safetensors")
    loaded = qkv.Trace.load(tmp_path / "trace.safetensors")
    np.testing.assert_array_equal(loaded["logits"], trace["logits"])
    np.testing.assert_array_equal(loaded[1]["logits"], trace["logits"][1:, :4])


def test_a_trace_keeps_logits_only_on_request(model: qkv.Model) -> None:
    assert "logits" not in model.trace(TEXT)
    assert model.trace(TEXT, names=(), logits=True).names() == ["logits"]
    both = model.trace(TEXT, layers=0, top_k=2, logits=True)
    close(both["logits"], model.trace(TEXT, logits=True)["logits"])
    assert ("received", 0) in both
    assert ("received", 1) not in both


def test_float32_gives_float32(tmp_path: Path) -> None:
    mask_bert(tmp_path / "model")
    model = load(tmp_path / "model")
    trace = model.trace(TEXT, logits=True)
    assert trace["logits"].dtype == np.float32
    assert model.unembed(trace["normalized_resid_post", -1].astype(np.float64)).dtype == np.float32


# from vectors to logits


def test_unembed_is_the_head_of_a_bert(made: Any) -> None:
    model, tensors = made
    rng = np.random.default_rng(0)
    assert model.unembed(np.zeros((2, 0, 12))).shape == (2, 0, 30)
    for shape in ((12,), (4, 12), (2, 3, 12)):
        x = rng.standard_normal(shape)
        before = x.copy()
        expected = plain_head(tensors, x)
        for norm in (True, False):  # the head's own norm always applies
            close(model.unembed(x, norm=norm), expected)
        np.testing.assert_array_equal(x, before)
    trace = model.trace(TEXT, logits=True)
    close(model.unembed(trace["normalized_resid_post", -1]), trace["logits"])


def test_unembed_of_a_decoder_goes_through_the_final_norm(llama: qkv.Model) -> None:
    trace = llama.trace([[4, 5, 6], [7, 8]], logits=True)
    x, parameters = trace["resid_post", -1], llama.parameters
    normed = rms_norm(x, parameters["final_norm.weight"], 1e-6)
    expected = normed @ parameters["head.out_proj.weight"]
    close(llama.unembed(x), expected)
    close(llama.unembed(x, norm=False), x @ parameters["head.out_proj.weight"])
    close(trace[0]["logits"], expected[:1])
    close(trace[1]["logits"], expected[1:, :2])
    close(llama.unembed(trace.hidden_states[-1], norm=False)[0], expected[0])


def test_what_cannot_be_unembedded(model: qkv.Model) -> None:
    for resid, error, said in (
        (np.zeros((2, 11)), ValueError, r"resid has shape \(2, 11\) and .* vectors of 12; pass"),
        (np.float64(3), ValueError, r"resid has shape \(\)"),
        (np.zeros((2, 12), int), TypeError, "resid is int64; pass floats"),
    ):
        with failing(resid, error, said), pytest.raises(error, match=f"^unembed: {said}"):
            model.unembed(resid)


# forward passes with ablated heads or masked words

EDITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"ablate": [(0, 1), (1, -1)]}, {"ablated": [(0, 1), (1, 2)]}),
    ({"ablate": [(1, None)]}, {"ablated": [(1, 0), (1, 1), (1, 2)]}),
    ({"hide": "cat"}, {"hidden": [2]}),
    ({"hide": ["The", "[SEP]"]}, {"hidden": [1, 5, 8]}),
    ({"hide": ["[CLS]", "sat", "."]}, {"hidden": [0, 3, 7]}),
    ({"hide": [3, -1]}, {"hidden": [3, 8]}),
    ({"hide": np.array([2])}, {"hidden": [2]}),
    ({"hide": ["cat", 0], "ablate": [(0, 0)]}, {"hidden": [0, 2], "ablated": [(0, 0)]}),
]


@pytest.mark.parametrize(("given", "by_hand"), EDITS)
def test_calls_with_edits_match_the_plain_bert_and_a_trace(
    made: Any, given: dict[str, Any], by_hand: dict[str, Any]
) -> None:
    model, _ = made
    ids = model.tokenize(TEXT).ids
    states, weights = plain_bert(made[1], model.config, ids, **by_hand)
    found = model(ids[None], **given)
    close(found.last_hidden_state[0], states[-1])
    close(found.logits[0], plain(made, ids, **by_hand))
    assert np.abs(found.logits - model(ids[None]).logits).max() > 0.01
    trace = model.trace(TEXT, logits=True, **given)
    close(trace["logits"], found.logits)
    close(np.stack(trace.hidden_states)[:, 0], np.stack(states))
    close(model.trace(ids, logits=True, **given)["logits"], found.logits)
    close(np.stack(trace.attentions)[:, 0], np.stack(weights))  # also of ablated heads
    assert np.isneginf(trace["attn_scores", 0][..., by_hand.get("hidden", [])]).all()
    for layer, head in by_hand.get("ablated", ()):
        assert not trace["z", layer][:, :, head].any()


@pytest.mark.parametrize("side", ["left", "right"])
def test_hide_ignores_padding_and_takes_columns_as_positions(made: Any, side: str) -> None:
    model, _ = made
    rows = [model.tokenize(text).ids for text in (TEXT, "the dog")]
    ids, mask = padded(rows, side, 11, fill=-9)
    edits: dict[str, Any] = {"ablate": [(1, 1)]}
    found = model(ids, mask, hide="the", **edits).logits
    for number, hidden in enumerate([[1, 5], [1]]):
        there = mask[number] == 1
        # `plain` runs a text without padding; left padding would give its tokens later positions
        if side == "right":
            close(found[number, there], plain(made, rows[number], hidden=hidden, ablated=[(1, 1)]))
        assert not found[number, ~there].any()
        columns = np.flatnonzero(there)[hidden]
        close(model(ids, mask, hide=columns, **edits).logits[number], found[number])


def test_a_masked_position_adds_to_a_hole_in_the_attention_mask(made: Any) -> None:
    model, _ = made
    ids = model.tokenize(TEXT).ids[None]
    mask = np.array([[1, 1, 1, 0, 1, 1, 1, 1, 1]])
    found = model(ids, mask, hide=[1]).logits[0]
    expected = plain(made, ids[0], hidden=[1, 3])
    close(found[mask[0] == 1], expected[mask[0] == 1])
    assert not found[3].any()


def test_a_query_without_visible_keys_gets_zero_output(model: qkv.Model) -> None:
    trace = model.trace(SHORT, hide=[0, 1, 2, 3])
    assert not trace["z", 0].any()
    assert not trace["pattern", 1].any()
    ids = model.tokenize(SHORT).ids[None]
    close(model(ids, hide=[0, 1, 2, 3]).last_hidden_state, trace.hidden_states[-1])


def test_a_model_without_a_tokenizer_masks_positions_but_not_words(tmp_path: Path) -> None:
    mask_bert(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    model = load(tmp_path / "model", dtype=np.float64)
    assert model([[2, 4, 5, 3]], hide=[1]).logits is not None
    for call in (lambda: model([[2, 4, 3]], hide="cat"), lambda: model.trace([2, 4], hide="cat")):
        with pytest.raises(ValueError, match=r"`hide` has the word 'cat', but .* no tokenizer.*3"):
            call()
    with pytest.raises(ValueError, match=r"^predict: model fills in words at mask tokens but has"):
        model.predict([2, 4, 3])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"ablate": [(2, 0)]}, ValueError, "`ablate` names layer 2, but the model has 2"),
        ({"ablate": [(0, "1")]}, TypeError, r"`ablate` has \(0, '1'\)"),
        ({"hide": "dog"}, ValueError, "`hide` has 'dog', which is in no text: the words are the"),
        ({"hide": 9}, ValueError, "`hide` has position 9, but no text has more than 9"),
    ],
)
def test_the_model_and_predict_refuse_invalid_edits(
    model: qkv.Model, options: dict[str, Any], error: type, said: str
) -> None:
    with pytest.raises(error, match=f"^model: {said}"):
        model(model.tokenize(TEXT).ids[None], **options)
    with pytest.raises(error, match=f"^predict: {said}"):
        model.predict(TEXT, **options)


# guesses


def expected_guesses(logits: np.ndarray, count: int) -> list[tuple[str, float]]:
    """Return the most probable words and their probabilities, by a plain softmax."""
    shares = softmax(logits)
    order = sorted(range(len(shares)), key=lambda i: -shares[i])[:count]
    return [(([*WORDS, "[MASK]"] + [str(i) for i in range(20, 30)])[i], shares[i]) for i in order]


def same(found: Any, expected: Any) -> None:
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([x for _, x in found], [x for _, x in expected], rtol=1e-10)


@pytest.mark.parametrize(("given", "by_hand"), [({}, {}), *EDITS])
def test_guesses_are_the_softmax_of_the_plain_bert(
    made: Any, given: dict[str, Any], by_hand: dict[str, Any]
) -> None:
    model, _ = made
    ids = model.tokenize(TEXT).ids
    expected = expected_guesses(plain(made, ids, **by_hand)[6], 30)
    (found,) = model.predict(TEXT, 30, **given)
    same(found, expected)
    assert sum(share for _, share in found) == pytest.approx(1, abs=1e-12)
    assert isinstance(found[0][1], float)
    assert {"##s", "[PAD]", "29"} < {word for word, _ in found}  # no token has id 29
    for text in (ids, ids[None], ids.tolist()):
        (again,) = model.predict(text, **given)
        same(again, expected[:5])


def test_each_mask_token_has_its_guesses_in_turn(made: Any) -> None:
    model, _ = made
    tokens = model.tokenize(TWO)
    logits = plain(made, tokens.ids)
    found = model.predict(TWO, top_k=3)
    assert [i for i, token in enumerate(tokens.tokens) if token == "[MASK]"] == [2, 6]
    for row, position in zip(found, (2, 6), strict=True):
        same(row, expected_guesses(logits[position], 3))
    assert len(model.predict("[MASK]")) == 1


def test_a_decoder_guesses_what_comes_next(llama: qkv.Model) -> None:
    ids = [4, 5, 9, 11]
    logits = llama([ids]).logits
    (found,) = llama.predict(ids, top_k=1)
    (longer,) = llama.predict([*ids, 7], top_k=9, hide=[1], ablate=[(1, 3)])
    same(found, expected_guesses(logits[0, -1], 1))
    logits = llama([[*ids, 7]], hide=[1], ablate=[(1, 3)]).logits
    same(longer, expected_guesses(logits[0, -1], 9))


def test_predict_shows_byte_level_tokens_as_readable_words(tmp_path: Path) -> None:
    model = decoders.writer(tmp_path / "writer", "a b", " the")
    (found,) = model.predict("a b", top_k=2)
    assert found[0][0] == "the"
    assert model.generate("a b", max_new_tokens=1) == " the"
    joined = decoders.writer(tmp_path / "joined", "a b", "the")
    assert joined.predict("a b")[0][0][0] == "##the"
    stop = decoders.writer(tmp_path / "stop", "a b.", "the")
    assert stop.predict("a b.")[0][0][0] == "the"  # not a continuation of a word


def test_equally_probable_words_are_ordered_by_id(llama: qkv.Model) -> None:
    flat = llama.with_parameters(
        {n: a * 0 if n == "head.out_proj.weight" else a for n, a in llama.parameters.items()}
    )
    (found,) = flat.predict([4, 5], top_k=3)
    assert found == [("[PAD]", 1 / 30), ("[UNK]", 1 / 30), ("[CLS]", 1 / 30)]


def test_an_encoder_truncates_a_long_text_and_a_decoder_refuses_it(
    model: qkv.Model, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="cut to 16 tokens"):
        (found,) = model.predict("the [MASK] " + "cat " * 30)
    assert len(found) == 5
    decoder = decoders.gpt2(tmp_path / "model", seed=3)
    full = "a" * decoders.POSITIONS
    assert len(decoder.predict(full)) == 1
    with pytest.raises(ValueError, match="has 97 tokens, but model takes at most 96 tokens"):
        decoder.predict(full + "a")


# errors


@pytest.mark.parametrize(
    ("text", "options", "error", "said"),
    [
        ("the cat", {}, ValueError, r"the text has no mask token, .*: write \[MASK\] or _ where"),
        ("", {}, ValueError, "the text is empty"),
        ([], {}, TypeError, "text is list, not a string"),
        (["a [MASK]", "[MASK]"], {}, TypeError, "text is a list of 2 texts; pass one text per"),
        ([[2, 19, 3], [2, 19, 3]], {}, ValueError, "2 texts are given; pass one text, as ids of"),
        ([2.0, 3.0], {}, TypeError, ""),
        (TEXT, {"top_k": 0}, ValueError, "top_k is 0: it must be 1 or more"),
        (TEXT, {"top_k": 31}, ValueError, "top_k is 31, but the vocabulary of model has.*30"),
        (TEXT, {"top_k": 2.5}, TypeError, "top_k is 2.5; pass a whole number"),
    ],
)
def test_what_cannot_be_guessed(
    model: qkv.Model, text: Any, options: dict[str, Any], error: type, said: str
) -> None:
    with pytest.raises(error, match=f"^predict: {said}") as raised:
        model.predict(text, **options)
    assert "\n" not in str(raised.value)


def test_images_are_run_with_edits_as_in_a_trace(tmp_path: Path) -> None:
    model = load(write_small(tmp_path / "vit", CONFIGS["vit"]), dtype=np.float64)
    pixels = np.random.default_rng(0).standard_normal((2, 2, 8, 8))
    for edit in ({"hide": "0,1"}, {"hide": [2]}, {"ablate": [(0, None), (1, 1)]}):
        found = model(pixels, **edit)
        trace = model.trace(pixels, **edit)
        close(found.last_hidden_state, trace["ln_final.hook_normalized"])
        assert np.abs(found.logits - model(pixels).logits).max() > 1e-3
