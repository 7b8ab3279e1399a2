"""Which head a view opens on: against numbers made by hand."""

import numpy as np
import pytest

from qkv.see import choice, findings
from qkv.see.choice import Head
from qkv.see.findings import Link
from qkv.trace import Trace

from .support import TOKENS, made_trace, weights


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
    chosen = choice.choose_head(made_trace(TOKENS, table))
    assert (chosen.layer, chosen.head) == (1, 0)
    assert chosen.link == Link(1, 0, 2, 3, float(np.float32(0.40)))
    assert "largest weight between two different content tokens" in chosen.reason
    assert "of all layers and heads" in chosen.reason


def test_ties_go_to_the_lowest_layer_then_head_then_place() -> None:
    table = weights(3, 3, L2H0_1_2=0.5, L1H2_1_2=0.5, L1H1_3_1=0.5, L1H1_2_1=0.5)
    link = choice.choose_head(made_trace(TOKENS, table)).link
    assert link is not None
    assert (link.layer, link.head, link.query, link.key) == (1, 1, 2, 1)


def test_layer_and_head_narrow_the_choice() -> None:
    table = weights(L0H0_1_2=0.3, L0H1_2_1=0.9, L1H0_3_2=0.8, L1H1_1_3=0.7)
    trace = made_trace(TOKENS, table)
    in_layer, in_head, given = (
        choice.choose_head(trace, *place) for place in ((1, None), (None, 0), (0, 0))
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
    chosen = choice.choose_head(made_trace(tokens, np.full((2, 2, n, n), 1 / n)))
    assert (chosen.layer, chosen.head, chosen.link) == (0, 0, None)
    assert "first" in chosen.reason


def test_a_weight_that_is_no_number_is_never_the_largest() -> None:
    table = weights(L0H0_1_2=np.nan, L1H1_2_1=0.2)
    chosen = choice.choose_head(made_trace(TOKENS, table))
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
        choice.choose_head(made_trace(TOKENS, weights(2, 3)), layer, head)


def test_only_some_layers_were_traced() -> None:
    full = made_trace(TOKENS, weights(3, 2, L2H1_1_2=0.5))
    arrays = {name: full[name] for name in full.names() if "blocks.1" not in name}
    trace = Trace(arrays, tokens=[TOKENS], special=[[False] * 6])
    assert choice.choose_head(trace).layer == 2
    with pytest.raises(IndexError, match="the layers are 0, 2"):
        choice.choose_head(trace, 1)


def test_a_trace_without_weights_or_of_several_texts_is_refused() -> None:
    bare = Trace({"hook_embed": np.zeros((1, 1, 2))}, tokens=[["a"]], special=[[False]])
    with pytest.raises(ValueError, match="holds no weights"):
        choice.choose_head(bare)
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


def test_other_heads_show_each_pair_once_and_never_the_shown_one() -> None:
    table = weights(
        *(2, 2),
        **{"L0H0_1_2": 0.9, "L0H1_1_2": 0.8, "L1H0_2_3": 0.7, "L1H1_2_3": 0.6},
    )
    trace = made_trace(TOKENS, table)
    shown = choice.choose_head(trace)
    others = choice.other_heads(trace, shown, 5)
    assert [(link.layer, link.head, link.query, link.key) for link in others] == [(1, 0, 2, 3)]
    assert choice.other_heads(trace, Head(1, 1, None, ""), 1)[0].weight == pytest.approx(0.9)


def test_the_contrasting_head_is_where_the_attention_differs_most() -> None:
    a, b = np.zeros((2, 2, 3, 3)), np.zeros((2, 2, 3, 3))
    a[:, :, 0], b[:, :, 0] = [0, 1, 0], [0, 1, 0]  # both on "the"
    a[1, 0, 0], b[1, 0, 0] = [0.4, 0.0, 0.6], [0.4, 0.1, 0.5]  # 0.6 on river, 0.5 on rates
    a[1, 1, 0], b[1, 1, 0] = [0.4, 0.0, 0.6], [0.5, 0.1, 0.4]  # the same sum at a later head
    first = made_trace(["bank", "the", "river"], a)
    second = made_trace(["bank", "the", "rates"], b)
    chosen = choice.contrasting_head(first, [0], second, [0])
    assert (chosen.layer, chosen.head) == (1, 0)
    assert "0.60 of its weight is elsewhere" in chosen.reason
    assert choice.contrasting_head(first, [0], second, [0], 0, 1).reason == "it was asked for"
    in_layer = choice.contrasting_head(first, [0], second, [0], 0)
    assert (in_layer.layer, in_layer.head) == (0, 0)
    in_head = choice.contrasting_head(first, [0], second, [0], None, 1)
    assert (in_head.layer, in_head.head) == (1, 1)
    with pytest.raises(IndexError, match="compare: there is no layer 2"):
        choice.contrasting_head(first, [0], second, [0], 2)
