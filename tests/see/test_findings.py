"""Which head is shown, how far words moved, what two texts share: against numbers made by hand."""

import numpy as np
import pytest

from qkv.see import findings
from qkv.see.findings import Head, Link
from qkv.trace import Trace

from .support import made_trace

TOKENS = ["[CLS]", "the", "bank", "##er", ".", "[SEP]"]


def weights(layers: int = 2, heads: int = 2, **cells: float) -> np.ndarray:
    """Weights of 0.01, but for `L0H1_2_3=0.5` and the like."""
    table = np.full((layers, heads, 6, 6), 0.01, dtype=np.float32)
    for place, weight in cells.items():
        where, i, j = place.split("_")
        table[int(where[1]), int(where[3]), int(i), int(j)] = weight
    return table


def test_content_leaves_out_special_tokens_and_punctuation_only() -> None:
    trace = made_trace([*TOKENS[:3], "[UNK]", *TOKENS[3:]], np.zeros((1, 1, 7, 7)))
    assert findings.content(trace).tolist() == [False, True, True, True, True, False, False]


def test_the_head_has_the_largest_weight_between_two_content_tokens() -> None:
    table = weights(
        L0H0_1_0=0.99,  # on [CLS]
        L0H0_0_2=0.98,  # from [CLS]
        L0H1_2_4=0.97,  # on the full stop
        L0H1_4_2=0.96,  # from it
        L0H1_2_2=0.95,  # on itself
        L1H0_2_3=0.40,  # a piece of a word counts
        L1H1_1_2=0.39,
    )
    chosen = findings.choose_head(made_trace(TOKENS, table))
    assert (chosen.layer, chosen.head) == (1, 0)
    assert chosen.link == Link(1, 0, 2, 3, float(np.float32(0.40)))
    assert "largest weight between two different content tokens" in chosen.reason
    assert "of all layers and heads" in chosen.reason


def test_ties_go_to_the_lowest_layer_then_head_then_place() -> None:
    table = weights(3, 3, L2H0_1_2=0.5, L1H2_1_2=0.5, L1H1_3_1=0.5, L1H1_2_1=0.5)
    link = findings.choose_head(made_trace(TOKENS, table)).link
    assert link is not None
    assert (link.layer, link.head, link.query, link.key) == (1, 1, 2, 1)


def test_layer_and_head_narrow_the_choice() -> None:
    table = weights(L0H0_1_2=0.3, L0H1_2_1=0.9, L1H0_3_2=0.8, L1H1_1_3=0.7)
    trace = made_trace(TOKENS, table)
    in_layer, in_head, given = (
        findings.choose_head(trace, *place) for place in ((1, None), (None, 0), (0, 0))
    )
    assert (in_layer.layer, in_layer.head) == (1, 0)
    assert "all heads of layer 1" in in_layer.reason
    assert (in_head.layer, in_head.head) == (1, 0)
    assert "head 0 of all layers" in in_head.reason
    assert (given.layer, given.head, given.reason) == (0, 0, "it was asked for")
    assert given.link == Link(0, 0, 1, 2, float(np.float32(0.3)))


@pytest.mark.parametrize("tokens", [["[CLS]", "hi", "[SEP]"], ["[CLS]", ".", "!", "[SEP]"]])
def test_without_two_content_tokens_the_first_head_is_shown_and_said_so(tokens: list[str]) -> None:
    n = len(tokens)
    chosen = findings.choose_head(made_trace(tokens, np.full((2, 2, n, n), 1 / n)))
    assert (chosen.layer, chosen.head, chosen.link) == (0, 0, None)
    assert "first" in chosen.reason


def test_a_weight_that_is_no_number_is_never_the_largest() -> None:
    table = weights(L0H0_1_2=np.nan, L1H1_2_1=0.2)
    chosen = findings.choose_head(made_trace(TOKENS, table))
    assert (chosen.layer, chosen.head) == (1, 1)


@pytest.mark.parametrize(
    ("layer", "head", "said"),
    [
        (2, None, "no layer 2: the layers are 0 to 1"),
        (-1, None, "no layer -1: the layers are 0 to 1"),
        (0, 3, "no head 3: the heads are 0 to 2"),
        (None, -1, "no head -1: the heads are 0 to 2"),
    ],
)
def test_out_of_range_names_the_range(layer: int | None, head: int | None, said: str) -> None:
    with pytest.raises(IndexError, match=said):
        findings.choose_head(made_trace(TOKENS, weights(2, 3)), layer, head)


def test_only_some_layers_were_traced() -> None:
    full = made_trace(TOKENS, weights(3, 2, L2H1_1_2=0.5))
    arrays = {name: full[name] for name in full.names() if "blocks.1" not in name}
    trace = Trace(arrays, tokens=[TOKENS], special=[[False] * 6])
    assert findings.choose_head(trace).layer == 2
    with pytest.raises(IndexError, match="the layers are 0, 2"):
        findings.choose_head(trace, 1)


def test_a_trace_without_weights_or_of_several_texts_is_refused() -> None:
    bare = Trace({"hook_embed": np.zeros((1, 1, 2))}, tokens=[["a"]], special=[[False]])
    with pytest.raises(ValueError, match="holds no weights"):
        findings.choose_head(bare)
    two = Trace({}, tokens=[["a"], ["b"]], special=[[False], [False]], single=False)
    with pytest.raises(ValueError, match=r"holds 2 texts: take one, trace\[0\]"):
        findings.one_text(two, "show")
    for arrays, said in (
        ({"scores": np.zeros((2, 2))}, r"qkv.show\(trace.attentions, tokens=\[...\]\)"),
        ({"hook_pattern": np.zeros((1, 1, 2, 2))}, r'qkv.show\(trace\["pattern"\], tokens'),
    ):
        with pytest.raises(ValueError, match=f"has no tokens: .* {said}"):
            findings.one_text(Trace(arrays), "show")
    with pytest.raises(ValueError, match="this trace is empty: a recording is filled when"):
        findings.one_text(Trace({}), "show")


def test_strongest_links_are_in_order_and_join_content_only() -> None:
    table = weights(1, 1, L0H0_1_2=0.5, L0H0_2_1=0.6, L0H0_3_1=0.5, L0H0_1_0=0.9, L0H0_1_3=0)
    links = findings.strongest_links(made_trace(TOKENS, table), 0, 0, 3)
    assert [(link.query, link.key) for link in links] == [(2, 1), (1, 2), (3, 1)]
    everything = findings.strongest_links(made_trace(TOKENS, table), 0, 0)
    assert len(everything) == 5  # six pairs of three content tokens, one of them hidden


def test_other_heads_show_each_pair_once_and_never_the_shown_one() -> None:
    table = weights(
        *(2, 2),
        **{"L0H0_1_2": 0.9, "L0H1_1_2": 0.8, "L1H0_2_3": 0.7, "L1H1_2_3": 0.6},
    )
    trace = made_trace(TOKENS, table)
    shown = findings.choose_head(trace)
    others = findings.other_heads(trace, shown, 5)
    assert [(link.layer, link.head, link.query, link.key) for link in others] == [(1, 0, 2, 3)]
    assert findings.other_heads(trace, Head(1, 1, None, ""), 1)[0].weight == pytest.approx(0.9)


def test_movement_is_the_cosine_between_table_row_and_last_state() -> None:
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
    moved = findings.movement(trace)
    assert moved is not None
    np.testing.assert_allclose(moved.cosine, [24 / 25, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(moved.static_length, [5, 1, 0])
    np.testing.assert_allclose(moved.contextual_length, [5, 2, np.sqrt(2)])


def test_movement_is_none_where_the_vectors_were_not_traced() -> None:
    assert findings.movement(made_trace(TOKENS, weights())) is None


def test_words_are_joined_from_pieces() -> None:
    trace = made_trace(TOKENS, weights())
    assert findings.words_of(trace) == ["the", "banker"]


def test_a_word_is_found_whole_or_not_at_all() -> None:
    tokens = ["bank", "##er", "bank", "un", "##bank", "bank"]
    trace = made_trace(tokens, np.zeros((1, 1, 6, 6)))
    assert findings.find_word(trace, ["bank"]) == [[2], [5]]
    assert findings.find_word(trace, ["bank", "##er"]) == [[0, 1]]
    assert findings.find_word(trace, ["un"]) == []
    assert findings.find_word(trace, ["river"]) == []


def states(first: list[list[float]], second: list[list[float]]) -> dict[str, np.ndarray]:
    return {
        "blocks.0.hook_resid_pre": np.array([first], dtype=np.float32),
        "blocks.0.hook_resid_post": np.array([second], dtype=np.float32),
    }


def test_similarity_is_between_the_means_of_the_pieces() -> None:
    empty = np.zeros((1, 1, 2, 2))
    a = made_trace(["x", "##y"], empty, **states([[1, 0], [0, 1]], [[1, 0], [1, 0]]))
    b = made_trace(["x", "z"], empty, **states([[1, 1], [9, 9]], [[0, 5], [9, 9]]))
    found = findings.similarity_by_layer(a, [0, 1], b, [0])
    np.testing.assert_allclose(found, [1.0, 0.0], atol=1e-12)


def test_what_a_word_attends_to_is_the_mean_over_its_pieces() -> None:
    table = np.zeros((1, 2, 3, 3))
    table[0, 1] = [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1, 0, 0]]
    trace = made_trace(["a", "b", "c"], table)
    np.testing.assert_allclose(findings.attended(trace, 0, 1, [0, 1]), [0.3, 0.225, 0.475])


def test_the_contrasting_head_is_where_the_attention_differs_most() -> None:
    a, b = np.zeros((2, 2, 3, 3)), np.zeros((2, 2, 3, 3))
    a[:, :, 0], b[:, :, 0] = [0, 1, 0], [0, 1, 0]  # both on "the"
    a[1, 0, 0], b[1, 0, 0] = [0.4, 0.0, 0.6], [0.4, 0.1, 0.5]  # 0.6 on river, 0.5 on rates
    a[1, 1, 0], b[1, 1, 0] = [0.4, 0.0, 0.6], [0.5, 0.1, 0.4]  # the same sum at a later head
    first = made_trace(["bank", "the", "river"], a)
    second = made_trace(["bank", "the", "rates"], b)
    chosen = findings.contrasting_head(first, [0], second, [0])
    assert (chosen.layer, chosen.head) == (1, 0)
    assert "0.60 of its weight is elsewhere" in chosen.reason
    assert findings.contrasting_head(first, [0], second, [0], 0, 1).reason == "it was asked for"
    in_layer = findings.contrasting_head(first, [0], second, [0], 0)
    assert (in_layer.layer, in_layer.head) == (0, 0)
    in_head = findings.contrasting_head(first, [0], second, [0], None, 1)
    assert (in_head.layer, in_head.head) == (1, 1)
    with pytest.raises(IndexError, match="compare: there is no layer 2"):
        findings.contrasting_head(first, [0], second, [0], 2)


def test_each_token_is_listed_with_the_head_where_the_word_looks_at_it_most() -> None:
    table = np.zeros((2, 1, 4, 4))
    table[0, 0, 0] = [0.9, 0.3, 0.2, 0.6]
    table[1, 0, 0] = [0.1, 0.3, 0.5, 0.1]
    trace = made_trace(["bank", "the", "river", "."], table)
    links = findings.strongest_by_token(trace, [0], 5)
    assert [(link.key, link.layer, link.weight) for link in links] == [(2, 1, 0.5), (1, 0, 0.3)]
