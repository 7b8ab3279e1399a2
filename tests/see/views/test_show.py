"""Tests of `show` with several positions as its query, and with the tokens of a text."""

import numpy as np
import pytest

import qkv
from qkv.see.draw.panels import HeatMap

TOKENS = ["river", "money", "forest", "bird", "song"]


def weights() -> np.ndarray:
    """Return two heads (1, 2, 5, 5): in head 0, song attends to river; in head 1, money does."""
    every = np.tile(np.eye(5), (1, 2, 1, 1)) * 0.4
    every[0, 0, 4, 0] = every[0, 0, 3, 1] = 0.6
    every[0, 1, 1, 0] = 0.99
    return every


def test_a_list_of_positions_limits_the_links_and_the_rows() -> None:
    view = qkv.show(weights(), tokens=TOKENS)
    assert view.sentence.startswith("money attends to river: 0.99 (layer 0, head 1)")
    view = qkv.show(weights(), tokens=TOKENS, query=[3, -1])
    assert view.sentence.startswith("bird attends to money: 0.60 (layer 0, head 0)")
    assert [(link.query, link.key, link.weight) for link in view.links] == [
        (3, 1, 0.6),
        (4, 0, 0.6),
    ]
    [shown] = [panel for row in view.panels() for panel in row if isinstance(panel, HeatMap)]
    assert (shown.rows, shown.columns) == (["bird", "song"], TOKENS)
    np.testing.assert_array_equal(shown.values, weights()[0, 0, 3:])
    assert shown.outlined == [0]
    with pytest.raises(IndexError, match="query=9 is out of range: tokens are numbered 0 to 4"):
        qkv.show(weights(), tokens=TOKENS, query=[3, 9])


def test_the_kept_weights_of_a_long_text() -> None:
    model = qkv.load("books-decoder")
    tokens = model.tokenizer.tokenize_prompt("the river and the bank of the money " * 10)
    view = qkv.show(model.trace(tokens, names=[], top_k=4), query=[*range(60, 64)])
    words = view.shown.queries.rows_of(range(60, 64))
    assert view.links
    assert {link.query for link in view.links} <= set(words)


def test_a_trace_of_tokens_is_that_of_their_ids() -> None:
    model = qkv.load("books-decoder")
    tokens = model.tokenizer.tokenize_prompt("the river")
    trace = model.trace(tokens)
    assert trace.tokens == tokens.tokens
    np.testing.assert_array_equal(trace["pattern", 2], model.trace(tokens.ids)["pattern", 2])
    with pytest.raises(ValueError, match="has 300 ids; pass 1 to 128"):
        model.trace(model.tokenizer.tokenize_prompt("a" + " river" * 299))
