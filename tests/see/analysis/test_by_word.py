"""Tests of merging subwords into words: weights on them are summed, weights from them averaged."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from models.support import WORDS, Folder, tokenizer_json
from qkv.models import Model, load
from qkv.see import CompareView, View, compare, head_view, plot_shift, show, walk
from qkv.see.analysis.head_weights import Axis, Heads, by_word, heads_of
from qkv.see.analysis.measures import summarize

from ..page.reading import payload_in
from ..support import made_trace

FISH = "The fisherman sat down."
CUT = [*WORDS, "fish", "##erm", "##an", "he", "down"]
TOKENS = ["[CLS]", "un", "##believ", "##able", "dogs", "."]
SPANS = [[0], [1, 2, 3], [4], [5]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Build a BERT with random weights that splits "fisherman" into three subwords."""
    folder = Folder(tmp_path_factory.mktemp("pieces") / "model")
    path = folder.write()
    folder.text("tokenizer.json", tokenizer_json(CUT))
    return load(path)


def weights(layers: int = 2, heads: int = 3) -> np.ndarray:
    return np.random.default_rng(1).dirichlet(np.ones(6), (layers, heads, 6))


def test_subwords_sum_as_keys_and_average_as_queries() -> None:
    given = weights()
    merged = by_word(heads_of(made_trace(TOKENS, given)))
    assert merged.queries.tokens == ["[CLS]", "unbelievable", "dogs", "."]
    assert merged.queries.special == [True, False, False, False]
    for layer in range(2):
        expected = [
            [[head[np.ix_(a, b)].sum(axis=1).mean() for b in SPANS] for a in SPANS]
            for head in given[layer]
        ]
        np.testing.assert_allclose(merged.weights[layer], expected, atol=1e-12)
    assert [merged.queries.position(row) for row in range(4)] == [0, 1, 4, 5]
    assert merged.queries.rows_of([2, 3, 5]) == [1, 3]


def test_a_word_cell_is_masked_if_all_its_subword_cells_are() -> None:
    scores = np.where(np.tri(6, dtype=bool), 0.0, -np.inf)[None]
    heads = replace(heads_of(made_trace(TOKENS, weights(1, 1))), scores={0: scores})
    assert by_word(heads).hidden(0, 0).tolist() == (~np.tri(4, dtype=bool)).tolist()


def test_a_summary_of_all_weights_is_merged_like_the_weights() -> None:
    given = weights()
    whole = heads_of(made_trace(TOKENS, given))
    kept = replace(whole, weights=[], summary=[summarize(layer, 6) for layer in given])
    merged, exact = by_word(kept), by_word(whole)
    for layer in range(2):
        for head in range(3):
            rows = [merged.row(layer, head, query) for query in range(4)]
            np.testing.assert_allclose(rows, exact.weights[layer][head], atol=1e-12)
            largest = merged.summary[layer].weights[head]
            assert (np.diff(largest) <= 0).all()
        np.testing.assert_allclose(
            merged.summary[layer].received,
            [[head[:, b].sum() for b in SPANS] for head in given[layer]],
        )


def test_merging_a_summary_keeps_at_most_its_top_k() -> None:
    kept = Heads(Axis(TOKENS, [False] * 6), [0], summary=[summarize(weights()[0], 2)])
    merged = by_word(kept).summary[0]
    assert merged.indices.shape == (3, 4, 2)
    # if both kept subwords belong to one word, they fill one slot, and the other slot is empty
    np.testing.assert_array_equal(merged.indices == -1, merged.weights == 0)


def test_cross_attention_merges_the_subwords_of_its_keys() -> None:
    given = np.random.default_rng(2).dirichlet(np.ones(6), (1, 2, 2))
    view = head_view(cross_attention=given, decoder_tokens=["▁le", "▁chien"], encoder_tokens=TOKENS)
    assert view.shown.keys.names == ["[CLS]", "unbelievable", "dogs", "."]
    np.testing.assert_allclose(view.shown.weights[0][:, :, 1], given[0][:, :, 1:4].sum(axis=-1))
    assert payload_in(view.data)["start"]["merge"] is True


def test_a_text_without_split_words_is_unchanged() -> None:
    heads = heads_of(made_trace(["a", "b"], np.full((1, 1, 2, 2), 0.5)))
    assert by_word(heads) is heads


def test_views_show_words_unless_subwords_are_requested(model: Model) -> None:
    trace = model.trace(FISH)
    assert trace.tokens[2:5] == ["fish", "##erm", "##an"]
    view, subwords = show(trace), show(trace, pieces=True)
    assert "fisherman" in view.sentence
    grid = str(view).partition("Weights of")[2]
    assert "\nfisherman " in grid
    assert "##" not in grid
    assert "\n##erm " in str(subwords).partition("Weights of")[2]
    assert (view.tokens, view.weights.shape) == (trace.tokens, (9, 9))
    data = view.to_dict()
    moved = {part["token"]: part["cosine"] for part in data["movement"]}
    before, after = (
        state[0, 2:5].astype(np.float64).mean(axis=0)
        for state in (trace["embed"], trace.hidden_states[-1])
    )
    cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
    assert moved["fisherman"] == pytest.approx(cosine)
    (link,) = [link for link in data["links"] if link["weight"] == view.head.link.weight]
    assert {link["from_token"], link["to_token"]} == {"fisherman", "sat"}
    assert {link["from"], link["to"]} == {2, 5}
    page, as_subwords = (payload_in(shown._repr_html_())["start"] for shown in (view, subwords))
    assert (page["merge"], as_subwords["merge"]) == (True, False)
    assert page["query"] in (2, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: show(model.trace(FISH)),
        lambda model: walk(model.trace(FISH)),
        lambda model: plot_shift(model.trace(FISH)),
        lambda model: head_view(model.trace(FISH), html_action="return"),
        lambda model: compare(model.trace(FISH), model.trace(FISH)),
        lambda model: compare(FISH, "He sat.", model=model),
    ],
    ids=["show", "walk", "plot_shift", "head_view", "runs", "compare"],
)
def test_each_view_explains_its_subwords(make: Callable[[Model], View], model: Model) -> None:
    view = make(model)
    start = "A: " if isinstance(view, CompareView) else ""
    said = (
        f"{start}fisherman is cut into fish ##erm ##an: ## marks a subword that continues the word"
    )
    care = f"{start}Read this view with care: 2 of 7 tokens are parts of words or unknown."
    assert [note.startswith(said) for note in view.notes] == [True, False]
    assert view.notes[1] == care
    assert view.to_dict()["notes"] == view.notes == payload_in(view._repr_html_())["notes"]
    for text in (str(view), re.sub("<[^>]*>", " ", view.svg())):
        words = " ".join(text.split())
        assert said in words
        assert care in words
