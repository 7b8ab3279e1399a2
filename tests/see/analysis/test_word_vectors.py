"""Tests of strongest links, and of the movement and similarity of word vectors, by hand."""

import numpy as np

from qkv.see.analysis.head_weights import heads_of
from qkv.see.analysis.measures import strongest_by_token, strongest_links, weights_from
from qkv.see.analysis.word_vectors import movement, similarity_by_layer

from ..support import TOKENS, made_trace, weights


def test_strongest_links_are_in_order_and_join_content_only() -> None:
    tokens = ["[CLS]", "dogs", "chase", "cats", "the", "[SEP]"]
    table = weights(1, 1, L0H0_1_2=0.5, L0H0_2_1=0.6, L0H0_3_1=0.5, L0H0_1_4=0.9, L0H0_1_3=0)
    heads = heads_of(made_trace(tokens, table))
    links = strongest_links(heads, 0, 0, 3)
    assert [(link.query, link.key) for link in links] == [(2, 1), (1, 2), (3, 1)]
    everything = strongest_links(heads, 0, 0)
    # Each of the three content words may attend to the two others. One of these six weights is 0.
    assert len(everything) == 5


def test_movement_is_the_cosine_between_embedding_and_last_state() -> None:
    static = np.array([[[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]], dtype=np.float32)
    last = np.array([[[4.0, 3.0], [0.0, 2.0], [1.0, 1.0]]], dtype=np.float32)
    trace = made_trace(
        ["a", "b", "c"],
        np.zeros((2, 1, 3, 3)),
        **{
            "hook_embed": static,
            "blocks.0.hook_normalized_resid_post": -last,
            "blocks.1.hook_resid_post": 7 * last,
            "blocks.1.hook_normalized_resid_post": last,
        },
    )
    moved = movement(trace)
    np.testing.assert_allclose(moved.cosine, [24 / 25, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(moved.static_length, [5, 1, 0])
    np.testing.assert_allclose(moved.contextual_length, [5, 2, np.sqrt(2)])


def test_movement_is_none_where_the_vectors_were_not_traced() -> None:
    assert movement(made_trace(TOKENS, weights())) is None


def states(first: list[list[float]], second: list[list[float]]) -> dict[str, np.ndarray]:
    return {
        "blocks.0.hook_resid_pre": np.array([first], dtype=np.float32),
        "blocks.0.hook_resid_post": np.array([second], dtype=np.float32),
    }


def test_similarity_is_between_the_means_of_the_subwords() -> None:
    empty = np.zeros((1, 1, 2, 2))
    a = made_trace(["x", "##y"], empty, **states([[1, 0], [0, 1]], [[1, 0], [1, 0]]))
    b = made_trace(["x", "z"], empty, **states([[1, 1], [9, 9]], [[0, 5], [9, 9]]))
    found = similarity_by_layer(a, [0, 1], b, [0])
    np.testing.assert_allclose(found, [1.0, 0.0], atol=1e-12)


def test_the_attention_of_a_word_is_the_mean_over_its_subwords() -> None:
    table = np.zeros((1, 2, 3, 3))
    table[0, 1] = [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1, 0, 0]]
    heads = heads_of(made_trace(["a", "b", "c"], table))
    np.testing.assert_allclose(weights_from(heads, 0, 1, [0, 1]), [0.3, 0.225, 0.475])


def test_each_token_is_listed_with_the_head_that_weights_it_most() -> None:
    table = np.zeros((2, 1, 4, 4))
    table[0, 0, 0] = [0.9, 0.3, 0.2, 0.6]
    table[1, 0, 0] = [0.1, 0.3, 0.5, 0.1]
    heads = heads_of(made_trace(["bank", "old", "river", "."], table))
    links = strongest_by_token(heads, [0], 5)
    assert [(link.key, link.layer, link.weight) for link in links] == [(2, 1, 0.5), (1, 0, 0.3)]
