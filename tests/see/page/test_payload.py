"""Tests that the data of a page are equal to the data of the trace."""

import base64
from pathlib import Path

import numpy as np
import pytest

from qkv.models import Model, load, random_model
from qkv.see import compare, show
from qkv.see.analysis._view_inputs import heads_from
from qkv.see.analysis.head_weights import heads_of
from qkv.see.analysis.measures import measures_of
from qkv.see.page import payload, play
from qkv.trace import Trace

from ..support import BANK, CAT, MONEY, made_trace, unpack
from .reading import payload_in, written


def test_weights_and_scores_are_those_of_the_trace(minilm: Model) -> None:
    trace = minilm.trace(BANK)
    text = payload_in(show(trace, model=minilm)._repr_html_())["texts"][0]
    assert text["tokens"] == trace.tokens
    assert (text["layers"], text["heads"], text["length"]) == ([0, 1, 2, 3, 4, 5], 12, 11)
    exact = np.array([trace["pattern", layer][0] for layer in range(6)])
    np.testing.assert_array_equal(unpack(text["weights"]), exact)
    scores = text["scores"]
    assert scores["layers"] == text["layers"]
    exact = np.array([trace["attn_scores", layer][0] for layer in range(6)])
    np.testing.assert_array_equal(unpack(scores), exact)
    assert text["scale"] == [pytest.approx(1 / np.sqrt(32))] * 6
    norms = np.array(heads_of(trace, parameters=minilm.parameters).norms)
    np.testing.assert_array_equal(unpack(text["norms"]), norms.astype(np.float32))
    assert text["hidden"] is text["summary"] is text["words"] is None
    assert text["special"] == [0, 10]
    assert text["measures"]["entropy"] == measures_of(heads_of(trace))["entropy"].tolist()


def test_the_page_opens_on_the_same_head_as_the_terminal(minilm: Model) -> None:
    view = show(BANK, model=minilm, layer=0, head=4)
    data = payload_in(view._repr_html_())
    assert data["kind"] == "show"
    assert data["start"] == {
        "text": 0, "layer": 0, "head": 4, "query": 5, "chosen": "it was requested",
        "sentence": "bank attends to river: 0.71 (layer 0, head 4).", "heads": None,
        "merge": False, "stands_out": None, "headline": "",
    }  # fmt: skip


def test_the_page_of_a_server_first_hides_one_token() -> None:
    model = load("books-decoder")  # the token after "Ġglass" begins where the word ends
    start = play._start(model, None)
    tokens = model.tokenize(start["text"]).tokens
    assert [tokens[position] for position in start["hide"]] == ["Ġglass"]


def test_a_head_without_links_begins_at_its_largest_weight() -> None:
    weights = np.array([[[[1.0, 0.0], [0.3, 0.7]]]])
    view = show(made_trace([".", "!"], weights))
    assert payload_in(view._repr_html_())["start"]["query"] == 0


def test_masked_cells_are_marked() -> None:
    text = payload_in(show(random_model(CAT, causal=True).trace(CAT))._repr_html_())["texts"][0]
    hidden = text["hidden"]
    assert hidden["shape"] == [1, 1, 6, 6]  # all layers and heads have the same mask
    bits = np.unpackbits(np.frombuffer(base64.b64decode(hidden["b64"]), np.uint8))[:36]
    np.testing.assert_array_equal(bits.reshape(6, 6), ~np.tri(6, dtype=bool))
    np.testing.assert_array_equal(unpack(text["scores"])[0, 1] == -np.inf, ~np.tri(6, dtype=bool))


def test_an_edge_in_hide_is_marked_as_masked(minilm: Model) -> None:
    view = compare(minilm.trace(CAT), minilm.trace(CAT, hide=[(3, 5, 1, 2)]))
    texts = payload_in(view._repr_html_())["texts"]
    assert texts[0]["hidden"] is None
    hidden = texts[1]["hidden"]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(hidden["b64"]), np.uint8))
    bits = bits[: int(np.prod(hidden["shape"]))].reshape(hidden["shape"])
    assert bits.shape == (6, 12, 8, 8)
    assert bits[1, 2, 3, 5]
    assert bits.sum() == 1


def test_nan_weights_stay_nan() -> None:
    weights = np.array([[[[0.5, 0.5], [np.nan, 1.0]]]])
    view = show(made_trace(["a", "b"], weights))
    text = payload_in(view._repr_html_())["texts"][0]
    np.testing.assert_array_equal(unpack(text["weights"]), weights)


def test_subwords_are_merged_into_words(minilm: Model) -> None:
    text = payload_in(show("Tokenization helps", model=minilm)._repr_html_())["texts"][0]
    assert text["words"] == [
        [0, 1, "[CLS]"],
        [1, 3, "tokenization"],
        [3, 4, "helps"],
        [4, 5, "[SEP]"],
    ]


def test_compare_says_where_the_word_is(minilm: Model) -> None:
    view = compare(BANK, MONEY, word="bank", model=minilm)
    data = payload_in(view._repr_html_())
    word = data["compare"]
    assert (data["kind"], word["what"], word["word"]) == ("compare", "word", "bank")
    assert [text["name"] for text in data["texts"]] == ["A", "B"]
    assert word["positions"] == [[5], [2]]
    np.testing.assert_allclose(word["similarity"], view.similarity, atol=5e-5)
    (river,) = (link for link in word["strongest"][0] if link["to_token"] == "river")
    assert (river["from"], river["to"], river["layer"], river["head"]) == (5, 8, 0, 4)
    assert river["weight"] == pytest.approx(0.7087, abs=1e-4)
    assert data["texts"][0]["norms"] is not None
    assert (data["start"]["layer"], data["start"]["head"]) == (0, 4)


def test_runs_say_what_changed(minilm: Model) -> None:
    a, b = minilm.trace(BANK), minilm.trace(BANK, hide=["river"])
    view = compare(a, b)
    data = payload_in(view._repr_html_())
    runs = data["compare"]
    assert [text["name"] for text in data["texts"]] == ["as it is", "river hidden"]
    last = [trace.hidden_states[-1][0].astype(float) for trace in (a, b)]
    distances = np.sqrt(((last[1] - last[0]) ** 2).sum(axis=1))
    order = [token for token, *_ in runs["changes"]]
    assert order == np.argsort(-distances).tolist()
    np.testing.assert_allclose([row[1] for row in runs["changes"]], distances[order], atol=5e-5)
    assert data["start"]["query"] == order[0]
    assert len(runs["by_layer"]) == 7
    assert runs["by_layer"][0] == 0


# Long texts


def long_trace(size: int, heads: int = 2, top_k: int = 8) -> Trace:
    rng = np.random.default_rng(0)
    weights = -np.sort(-rng.dirichlet(np.ones(top_k + 1), size=(1, heads, size))[..., :top_k])
    arrays = {
        "blocks.0.attn.top_indices": rng.integers(0, size, size=(1, heads, size, top_k)),
        "blocks.0.attn.top_weights": weights.astype(np.float32),
        "blocks.0.attn.received": rng.random((1, heads, size)).astype(np.float32) * 2,
    }
    return Trace(arrays, tokens=[[f"word{i % 997}" for i in range(size)]])


def test_a_page_of_512_tokens_holds_only_the_largest_weights() -> None:
    rng = np.random.default_rng(0)
    for size, long in ((511, False), (512, True)):
        weights = rng.dirichlet(np.ones(size), size=(1, 1, size)).astype(np.float32)
        text = payload.text_payload(heads_from(weights, ["w"] * size), 0)
        assert (text["weights"] is None) is long
        assert (text["summary"] is not None) is long
        assert bool(text["left_out"]) is long
    kept = text["summary"]
    order = np.argsort(-weights[0, 0], axis=-1, kind="stable")[:, :8]
    np.testing.assert_array_equal(unpack(kept["indices"])[0, 0], order)
    expected = np.take_along_axis(weights[0, 0], order, axis=-1)
    found = unpack(kept["weights"])[0, 0] / kept["weights"]["per"]
    assert [f"{x:.3f}" for x in found.ravel()] == [f"{x:.3f}" for x in expected.ravel()]
    received = unpack(kept["received"])[0, 0]
    np.testing.assert_allclose(received, weights[0, 0].sum(axis=0, dtype=float), rtol=1e-7)
    share = expected.sum(dtype=float) / size
    assert kept["kept"] == pytest.approx(share, abs=1e-6)
    (said,) = text["left_out"]
    begin = "The text has 512 tokens. For each query, this page has the 8 largest of 512 weights"
    assert said.startswith(begin)
    assert f"({share:.1%} of the total weight)" in said
    entropy = -(weights[0, 0] * np.log2(weights[0, 0])).sum(axis=-1).mean()
    # the measures use all weights, not only the weights in the page
    assert text["measures"]["entropy"] == [[pytest.approx(entropy, rel=1e-5)]]


def test_a_page_of_too_many_weights_holds_only_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MOST_CELLS", 71)
    text = payload.text_payload(heads_of(random_model(CAT).trace(CAT)), 0)  # 2 heads of 6 x 6
    assert text["weights"] is None
    assert text["scores"] is None
    assert text["summary"]["top_k"] == 6
    monkeypatch.setattr(payload, "MOST_CELLS", 72)
    assert payload.text_payload(heads_of(random_model(CAT).trace(CAT)), 0)["summary"] is None


def test_a_page_holds_scores_of_one_layer_if_all_are_too_many(
    minilm: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MOST_SCORES", 6 * 12 * 8 * 8 - 1)
    trace = minilm.trace(CAT)
    text = payload_in(show(trace, layer=4, head=1)._repr_html_())["texts"][0]
    assert text["scores"]["layers"] == [4]
    assert text["scores"]["shape"] == [1, 12, 8, 8]
    assert text["left_out"] == [
        "This page has the scores of layer 4 only, and the weights of all layers."
    ]
    monkeypatch.setattr(payload, "MOST_SCORES", 6 * 12 * 8 * 8)
    text = payload_in(show(trace, layer=4, head=1)._repr_html_())["texts"][0]
    assert text["scores"]["shape"] == [6, 12, 8, 8]


def test_a_page_of_8192_tokens_is_smaller_than_5_mb(tmp_path: Path) -> None:
    text = written(show(long_trace(8192, heads=12)), tmp_path)
    assert (tmp_path / "view.html").stat().st_size < 5_000_000
    data = payload_in(text)["texts"][0]
    assert data["summary"]["indices"]["shape"] == [1, 12, 8192, 8]
    assert data["measures"]["entropy"] is None
    assert data["measures"]["first"] is not None


def test_fewer_weights_per_query_are_kept_of_large_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MOST_KEPT", 2 * 600 * 5)
    text = payload.text_payload(heads_of(long_trace(600)), 0)
    assert text["summary"]["top_k"] == 5
    assert text["summary"]["weights"]["shape"] == [1, 2, 600, 5]
    monkeypatch.setattr(payload, "MOST_KEPT", 1)
    assert payload.text_payload(heads_of(long_trace(600)), 0)["summary"]["top_k"] == 4


def test_positions_beyond_16_bits_are_held() -> None:
    text = payload.text_payload(heads_of(long_trace(65536, heads=1, top_k=2)), 0)
    assert text["summary"]["indices"]["bits"] == 32


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_packed_numbers_are_those_of_float32(kind: type) -> None:
    values = np.array([[0.28652, -np.inf, np.nan], [1e-7, 1.0005, 6e4]]).astype(kind)
    np.testing.assert_array_equal(unpack(payload.pack_numbers(values)), np.float32(values))
    assert np.isinf(unpack(payload.pack_numbers(np.array([1e300])))).all()


def test_packed_shares_round_to_the_same_digits_as_the_weights() -> None:
    rng = np.random.default_rng(0)
    # some numbers are halfway between two rounded numbers, such as 1/8 between 0.12 and 0.13
    ties = np.arange(2001, dtype=np.float32) / 2000
    near = [np.abs(np.nextafter(ties, np.float32(side))) for side in (-1, 2)]
    weights = np.concatenate([ties, *near, rng.random(2000) ** 5]).astype(np.float32).clip(0, 1)
    packed = payload.pack_shares(weights)
    found = unpack(packed) / packed["per"]
    for digits in (1, 2, 3, 4):
        shown = [[f"{x:.{digits}f}" for x in part.tolist()] for part in (found, weights)]
        assert shown[0] == shown[1]


def test_bits_and_indices() -> None:
    flags = np.random.default_rng(0).random((2, 3, 5)) < 0.4
    packed = payload.pack_bits(flags)
    data = np.frombuffer(base64.b64decode(packed["b64"]), np.uint8)
    assert (np.unpackbits(data)[: flags.size].reshape(packed["shape"]) == flags).all()
    assert packed["bits"] == 8
    short = payload.pack_indices(np.array([0, 65534, -1]), 65535)
    assert (short["bits"], unpack(short).tolist()) == (16, [0, 65534, 65535])
    wide = payload.pack_indices(np.array([65535, -1]), 65536)
    assert (wide["bits"], unpack(wide).tolist()) == (32, [65535, 2**32 - 1])


def test_flags_are_shared_across_heads_and_layers_only_if_equal() -> None:
    flags = np.zeros((2, 3, 2, 2), dtype=bool)
    assert payload.pack_flags(flags) is None
    flags[1, 2, 0, 1] = True
    assert payload.pack_flags(flags)["shape"] == [2, 3, 2, 2]
    flags[1, :, 0, 1] = True
    assert payload.pack_flags(flags)["shape"] == [2, 1, 2, 2]
    flags[0] = flags[1]
    assert payload.pack_flags(flags)["shape"] == [1, 1, 2, 2]
