"""Tests of choosing the head that a view shows first, with weights made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from qkv.see.analysis import selection
from qkv.see.analysis._view_inputs import one_text
from qkv.see.analysis.head_weights import Heads, heads_of
from qkv.see.analysis.measures import Link, summarize
from qkv.see.analysis.selection import ChosenHead
from qkv.trace import Trace

from ..support import TOKENS, made_trace, weights

DOGS = ["[CLS]", "dogs", "chase", "the", "big", "cats", ".", "[SEP]"]


def dogs(layers: int = 1, heads: int = 3, **cells: float) -> Heads:
    """Make heads over DOGS with weights of 0.05, except cells such as `L0H1_2_3=0.5`."""
    table = np.full((layers, heads, 8, 8), 0.05)
    for place, weight in cells.items():
        where, i, j = place.split("_")
        table[int(where[1]), int(where[3]), int(i), int(j)] = weight
    return heads_of(made_trace(DOGS, table))


def test_heads_of_one_distance_or_one_word_do_not_stand_out() -> None:
    previous = {f"L0H0_{i}_{i - 1}": 0.9 for i in range(1, 8)}
    at_cats = {f"L0H1_{i}_5": 0.8 for i in range(8)}
    chosen, links = selection.choose_head(dogs(**previous, **at_cats, L0H2_4_5=0.6))
    assert (chosen.layer, chosen.head, chosen.link) == (0, 2, Link(0, 2, 4, 5, 0.6))
    # The word "big" has weight 0.6 on its next word, which is "cats". The words "dogs", "chase" and
    # "the" each have weight 0.05 on their next word. They also have weight 0.05 on "cats".
    assert links[0].usual == pytest.approx(((0.6 + 3 * 0.05) / 4, 0.05))
    assert links[0].above == pytest.approx(0.6 - 2 * 0.1875)
    # heads that attend to positions come last, sorted by weight
    assert [link.head for link in links] == [2, 0, 1]
    assert [link.stands_out for link in links] == [True, False, False]
    assert links[1].usual == pytest.approx((0.9, 0.05))
    assert links[2].usual[1] == pytest.approx(0.8)
    assert chosen.reason == (
        "its link between two content words stands out most among all layers and heads: its weight "
        "is 0.60. In this head, the average weight at this distance is 0.19, and the average "
        "weight from other words to cats is 0.05"
    )


def test_a_requested_head_shows_its_strongest_link() -> None:
    heads = dogs(1, 2, L0H0_5_3=0.9, L0H0_3_4=0.8, L0H0_3_2=0.95, L0H0_1_2=0.09, L0H1_5_3=0.9,
                 L0H1_1_2=0.1, L0H0_4_0=0.99)  # fmt: skip
    assert selection.choose_head(heads, 0, 0)[0].link == Link(0, 0, 3, 2, 0.95)
    assert selection.choose_head(heads, 0, 1)[0].link == Link(0, 1, 1, 2, 0.1)
    assert selection.choose_head(heads)[0].head == 1


def test_links_join_two_content_words() -> None:
    cells = {
        "L0H0_1_0": 0.99,  # the strongest link leads to [CLS]
        "L0H0_2_6": 0.98,  # the strongest link leads to the full stop
        "L0H0_2_3": 0.97,  # the strongest link leads to "the"
        "L0H0_3_5": 0.96,  # the strongest link begins at "the"
        "L0H0_4_4": 0.95,  # the strongest link leads from a word to itself
        "L0H0_5_1": 0.30,
    }
    link = selection.choose_head(dogs(heads=1, **cells))[0].link
    assert link == Link(0, 0, 5, 1, 0.30)
    # a link joins neither two occurrences of one word nor two subwords of one word
    tokens = ["a", "dog", "saw", "a", "Dog", "walk", "##ing"]
    table = np.full((1, 1, 7, 7), 0.05)
    table[0, 0, 1, 4] = table[0, 0, 6, 5] = 0.9
    table[0, 0, 5, 2] = 0.3
    assert selection.choose_head(heads_of(made_trace(tokens, table)))[0].link == Link(
        0, 0, 5, 2, 0.3
    )


def test_the_strongest_link_is_shown_if_no_head_stands_out() -> None:
    chosen, _ = selection.choose_head(
        heads_of(made_trace(["x", "y"], np.array([[[[0.2, 0.8], [0.7, 0.3]]]])))
    )
    assert chosen.link == Link(0, 0, 0, 1, 0.8)
    assert chosen.stands_out is False
    assert chosen.headline == (
        "No head stands out in this sentence: the strongest content link is x → y, 0.80 "
        "(layer 0, head 0), less than 0.10 above the usual weight."
    )
    assert chosen.reason.startswith("among all layers and heads, its link between two content")


def test_usual_weights_exclude_causally_masked_pairs() -> None:
    tokens = ["one", "two", "three", "four", "five"]
    weights = np.tril(np.full((5, 5), 0.1))
    weights[4, 2], weights[3, 2] = 0.6, 0.2
    links = selection.rank_heads(heads_of(made_trace(tokens, weights[None, None])))
    # pairs at distance 2: (2, 0), (3, 1), (4, 2); after "three", the only other query is "four"
    assert links[0].usual == pytest.approx(((0.1 + 0.1 + 0.6) / 3, 0.2))


def test_a_summary_ranks_its_heads_by_what_was_kept() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(8, 0.3), (2, 3, 8))
    whole = heads_of(made_trace(DOGS, weights))
    kept = replace(whole, weights=[], summary=[summarize(layer, 8) for layer in weights])
    for found, expected in zip(
        selection.rank_heads(kept), selection.rank_heads(whole), strict=True
    ):
        assert found == expected
        assert found.usual == pytest.approx(expected.usual)


def test_ties_go_to_the_lowest_layer_then_head_then_position() -> None:
    heads = dogs(3, 3, L2H0_4_5=0.5, L1H2_4_5=0.5, L1H1_5_4=0.5, L1H1_4_5=0.5)
    link = selection.choose_head(heads)[0].link
    assert (link.layer, link.head, link.query, link.key) == (1, 1, 4, 5)


def test_layer_and_head_narrow_the_choice() -> None:
    heads = dogs(2, 2, L0H0_1_2=0.3, L0H1_2_1=0.9, L1H0_4_2=0.8, L1H1_1_4=0.7)
    in_layer, in_head, given = (
        selection.choose_head(heads, *place)[0] for place in ((1, None), (None, 0), (0, 0))
    )
    assert (in_layer.layer, in_layer.head) == (1, 0)
    assert "all heads of layer 1" in in_layer.reason
    assert (in_head.layer, in_head.head) == (1, 0)
    assert "head 0 of all layers" in in_head.reason
    assert (given.layer, given.head, given.reason) == (0, 0, "it was requested")
    assert given.link == Link(0, 0, 1, 2, 0.3)


@pytest.mark.parametrize("tokens", [["[CLS]", "hi", "[SEP]"], ["[CLS]", ".", "!", "[SEP]"]])
def test_the_first_head_is_shown_without_two_content_tokens(tokens: list[str]) -> None:
    n = len(tokens)
    chosen, _ = selection.choose_head(heads_of(made_trace(tokens, np.full((2, 2, n, n), 1 / n))))
    assert (chosen.layer, chosen.head, chosen.link) == (0, 0, None)
    assert "first" in chosen.reason


def test_a_nan_weight_is_never_the_largest() -> None:
    chosen, _ = selection.choose_head(dogs(2, L0H0_1_2=np.nan, L1H1_2_1=0.2))
    assert (chosen.layer, chosen.head) == (1, 1)


@pytest.mark.parametrize(
    ("layer", "head", "said"),
    [
        (2, None, "no layer 2: the layers are 0 to 1"),
        (-3, None, "no layer -3: the layers are 0 to 1"),
        (0, 3, "no head 3: the heads are 0 to 2"),
        (None, -4, "no head -4: the heads are 0 to 2"),
    ],
)
def test_out_of_range_names_the_range(layer: int | None, head: int | None, said: str) -> None:
    with pytest.raises(IndexError, match=said):
        selection.choose_head(heads_of(made_trace(TOKENS, weights(2, 3))), layer, head)


def test_negative_layers_count_from_the_end_of_the_model() -> None:
    heads = heads_of(made_trace(TOKENS, weights(2, 3)))
    chosen, _ = selection.choose_head(heads, -1, -3)
    assert (chosen.layer, chosen.head) == (1, 0)
    assert selection.heads_among(heads, -2, -1) == [(0, 2)]
    some = Trace(dict(made_trace(TOKENS, weights(2, 3)).items()), tokens=[TOKENS], num_layers=4)
    with pytest.raises(IndexError, match="no layer -1: the layers are 0 to 1"):
        selection.choose_head(heads_of(some), -1)
    assert selection.choose_head(heads_of(some), -3)[0].layer == 1


def test_a_head_is_chosen_among_the_traced_layers() -> None:
    full = dogs(3, 2, L2H1_1_2=0.5)
    arrays = {f"blocks.{n}.attn.hook_pattern": full.weights[n][None] for n in (0, 2)}
    heads = heads_of(Trace(arrays, tokens=[DOGS], special=[full.queries.special]))
    assert selection.choose_head(heads)[0].layer == 2
    with pytest.raises(IndexError, match="the layers are 0, 2"):
        selection.choose_head(heads, 1)


def test_a_trace_without_weights_or_of_several_texts_is_refused() -> None:
    bare = Trace({"hook_embed": np.zeros((1, 1, 2))}, tokens=[["a"]], special=[[False]])
    with pytest.raises(ValueError, match="holds no weights"):
        selection.choose_head(heads_of(bare))
    two = Trace({}, tokens=[["a"], ["b"]], special=[[False], [False]], single=False)
    with pytest.raises(ValueError, match="holds 2 texts; pass one of them, for example"):
        one_text(two)
    for arrays, said in (
        ({"scores": np.zeros((2, 2))}, r"qkv.show\(trace.attentions, tokens=\[...\]\)"),
        ({"hook_pattern": np.zeros((1, 1, 2, 2))}, r'qkv.show\(trace\["pattern"\], tokens'),
    ):
        with pytest.raises(ValueError, match=f"has no tokens: .* {said}"):
            one_text(Trace(arrays))
    with pytest.raises(ValueError, match="this trace is empty: a recording is filled when"):
        one_text(Trace({}))


def test_other_heads_show_each_pair_once_and_never_the_shown_one() -> None:
    heads = dogs(2, 2, L0H0_1_2=0.9, L0H1_1_2=0.8, L1H0_2_4=0.7, L1H1_2_4=0.6)
    shown, links = selection.choose_head(heads)
    others = selection.other_heads(heads, links, shown, one_link=False)
    assert [(link.layer, link.head, link.query, link.key) for link in others] == [(1, 0, 2, 4)]
    others = selection.other_heads(heads, links, ChosenHead(1, 1, None, ""), one_link=False)
    assert others[0].weight == pytest.approx(0.9)


def heads_from_rows(tokens: list[str], *rows: list[float]) -> Heads:
    """Make a head for each row of weights from "bank"; other tokens attend to [SEP]."""
    size = len(tokens)
    table = np.zeros((1, len(rows), size, size))
    table[0, :, 1:, -1] = 1
    table[0, :, 0] = rows
    return heads_of(made_trace(tokens, table))


def test_the_contrasting_head_is_where_links_that_stand_out_differ_most() -> None:
    a = heads_from_rows(
        ["bank", "of", "river", "old", "[SEP]"],
        [0.0, 0.9, 0.0, 0.0, 0.1],  # the weight lies on "of", which is not a content word
        [0.4, 0.0, 0.6, 0.0, 0.0],
        [0.1, 0.0, 0.0, 0.9, 0.0],  # the weight lies on "old" in both texts
    )
    b = heads_from_rows(
        ["bank", "for", "rates", "old", "[SEP]"],
        [0.0, 0.9, 0.0, 0.0, 0.1],
        [0.5, 0.0, 0.5, 0.0, 0.0],
        [0.1, 0.0, 0.0, 0.9, 0.0],
    )
    chosen = selection.contrasting_head((a, [0]), (b, [0]))
    # In head 1 of `a`, two pairs of words have distance 2. The weight of "bank" → "river" is 0.6,
    # and the weight of "of" → "old" is 0. Twice the mean of these weights is 0.6, so the link
    # "bank" → "river" does not stand out. The same holds for the weight 0.5 in `b`.
    assert chosen.head == 0
    longer = [heads_from_rows([*part.queries.tokens[:4], "new", "big", "[SEP]"],
                              *([*row[:4], 0, 0, row[4]] for row in part.weights[0][:, 0].tolist()))
              for part in (a, b)]  # fmt: skip
    chosen = selection.contrasting_head((longer[0], [0]), (longer[1], [0]))
    # In head 1 of each longer text, four pairs of words have distance 2. Three of them have weight
    # 0. The link from "bank" stands out only if its weight exceeds twice the mean of the four
    # weights. Twice the mean is 2 * 0.6 / 4 in the first text and 2 * 0.5 / 4 in the second text.
    assert (chosen.layer, chosen.head) == (0, 1)
    assert "among all layers and heads, the word's links in this head differ" in chosen.reason
    assert selection.contrasting_head((a, [0]), (b, [0]), 0, 2).reason == "it was requested"
    assert selection.contrasting_head((longer[0], [0]), (longer[1], [0]), None, 2).head == 2
    with pytest.raises(IndexError, match="there is no layer 2"):
        selection.contrasting_head((a, [0]), (b, [0]), 2)


def test_all_weights_of_a_word_are_compared_if_no_link_stands_out() -> None:
    a = heads_from_rows(["bank", "of", "[SEP]"], [1, 0, 0], [0.4, 0.6, 0])
    b = heads_from_rows(["bank", "for", "[SEP]"], [1, 0, 0], [0.5, 0.5, 0])
    chosen = selection.contrasting_head((a, [0]), (b, [0]))
    assert chosen.head == 1
    assert ": 0.60 of the weight is on other words" in chosen.reason
