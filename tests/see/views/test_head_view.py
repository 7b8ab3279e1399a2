"""Tests that head_view accepts the arguments of bertviz and shows the same attention."""

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qkv.models import Model
from qkv.see import HeadView, head_view
from qkv.trace import Trace

from ..page.reading import payload_in
from ..support import BANK, CAT

RNG = np.random.default_rng(0)


def weights(rows: int, columns: int, layers: int = 2, heads: int = 3) -> list[np.ndarray]:
    """Return weights as transformers returns them: for each layer (1, heads, L, S)."""
    return list(RNG.dirichlet(np.ones(columns), size=(layers, 1, heads, rows)))


def test_the_arguments_follow_the_order_of_bertviz() -> None:
    positional = [
        name
        for name, argument in inspect.signature(head_view).parameters.items()
        if argument.kind is argument.POSITIONAL_OR_KEYWORD
    ]
    assert positional == [
        "attention", "tokens", "sentence_b_start", "prettify_tokens", "layer", "heads",
        "encoder_attention", "decoder_attention", "cross_attention", "encoder_tokens",
        "decoder_tokens", "include_layers", "html_action",
    ]  # fmt: skip


def test_attention_of_one_text(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    view = head_view(trace.attentions, trace.tokens)
    assert isinstance(view, HeadView)
    data = payload_in(view.data)
    assert (data["kind"], len(data["texts"])) == ("show", 1)
    assert view.to_dict()["weights"] == trace.pattern(view.head.layer, view.head.head).tolist()
    link = view.head.link
    words = CAT.lower().split()
    assert (
        f"{words[link.query]} → {words[link.key]}, {link.weight:.2f} (layer 0, head "
        f"{view.head.head}), less than 0.10 above the usual weight."
    ) in view.sentence
    assert view.sentence in " ".join(str(view).split())


def test_a_trace_is_shown_like_its_weights(lesson: Model) -> None:
    trace = lesson.trace([CAT, BANK])[1]
    chosen: dict[str, Any] = {"layer": 0, "heads": [1]}
    view, same = head_view(trace, **chosen), head_view(trace.attentions, trace[0].tokens, **chosen)
    # the weights alone do not give the text
    title = {"title": "I sat on the bank of the river."}
    assert payload_in(view.data) == payload_in(same.data) | title
    assert view.to_dict()["tokens"] == trace[0].tokens
    named = head_view(trace, [f"w{i}" for i in range(9)])
    assert named.to_dict()["tokens"][7] == "w7"
    for given, said in (
        (
            lesson.trace([CAT, BANK]),
            "this trace holds 2 texts; pass one of them, for example trace\\[0\\]",
        ),
        (lesson.trace(CAT, names=["hook_z"]), "holds no weights: trace hook_pattern"),
        (Trace({}, tokens=[["a"]]), "holds no weights: trace hook_pattern"),
    ):
        with pytest.raises(ValueError, match=f"^head_view: .*{said}"):
            head_view(given)


def test_tokenizer_marks_are_removed_by_default() -> None:
    tokens = ["Ġriver", "▁the", "bank</w>", "##s", "▁"]
    attention = weights(5, 5)
    shown = payload_in(head_view(attention, tokens).data)["texts"][0]
    assert shown["tokens"] == ["river", "the", "bank", "##s", "▁"]
    assert shown["words"] is not None
    raw = payload_in(head_view(attention, tokens, prettify_tokens=False).data)["texts"][0]
    assert raw["tokens"] == tokens


def test_a_pair_of_sentences_is_split() -> None:
    attention = weights(4, 4)
    data = payload_in(head_view(attention, list("abcd"), 2).data)
    assert data["texts"][0]["split"] == 2
    # users of transformers compute the split as (token_type_ids == 0).sum(dim=1)
    tensor = np.array([3])
    assert payload_in(head_view(attention, list("abcd"), tensor[0]).data)["texts"][0]["split"] == 3
    for at in (0, 4):
        with pytest.raises(ValueError, match=f"sentence_b_start is {at}, but there are 4 tokens"):
            head_view(attention, list("abcd"), at)


def test_layers_and_heads_can_be_picked() -> None:
    attention = weights(4, 4, layers=5)
    view = head_view(attention, list("abcd"), layer=3, heads=[2, 0], include_layers=[1, 3])
    data = payload_in(view.data)
    assert data["texts"][0]["layers"] == [1, 3]
    assert (data["start"]["layer"], data["start"]["head"], data["start"]["heads"]) == (3, 2, [2, 0])
    np.testing.assert_allclose(view.to_dict()["weights"], attention[3][0, 2], atol=1e-7)
    with pytest.raises(IndexError, match="no head 3: the heads are 0 to 2"):
        head_view(attention, list("abcd"), heads=[3])
    with pytest.raises(IndexError, match="no layer 0: the layers are 1, 3"):
        head_view(attention, list("abcd"), layer=0, include_layers=[1, 3])
    for layers, said in (([5], "no layer 5: attention holds 0 to 4"), ([], "no layer left")):
        with pytest.raises(ValueError, match=said):
            head_view(attention, list("abcd"), include_layers=layers)
    (part,) = view.parts
    np.testing.assert_array_equal(part.weights, [attention[n][0] for n in (1, 3)])


def test_an_encoder_decoder_has_three_attentions() -> None:
    encoder, decoder, cross = weights(4, 4), weights(3, 3), weights(3, 4)
    view = head_view(
        encoder_attention=encoder, decoder_attention=decoder, cross_attention=cross,
        encoder_tokens=list("wxyz"), decoder_tokens=list("abc"),
    )  # fmt: skip
    texts = payload_in(view.data)["texts"]
    assert [text["name"] for text in texts] == ["Encoder", "Decoder", "Cross"]
    assert [text["keys"] for text in texts] == [None, None, list("wxyz")]
    assert texts[2]["weights"]["shape"] == [2, 3, 3, 4]
    assert (texts[2]["length"], texts[2]["key_length"]) == (3, 4)
    assert texts[2]["measures"]["previous"] is None
    alone = head_view(
        cross_attention=cross, encoder_tokens=list("wxyz"), decoder_tokens=list("abc")
    )
    assert alone.to_dict()["keys"] == list("wxyz")
    assert all(f">{token}<" in alone.svg() for token in "wxyzabc")
    assert all(token in str(alone) for token in "wxyzabc")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({}, TypeError, "attention is missing"),
        ({"attention": weights(2, 2)}, TypeError, "attention needs tokens; pass tokens"),
        (
            {"attention": weights(2, 2), "cross_attention": weights(2, 2)},
            TypeError,
            "`attention` and `cross_attention` were both given: "
            "for one text, pass only `attention`; for two texts, omit `attention`",
        ),
        (
            {"cross_attention": weights(2, 3), "decoder_tokens": ["a", "b"]},
            TypeError,
            "cross_attention needs tokens; pass encoder_tokens",
        ),
        (
            {"encoder_attention": weights(2, 2), "tokens": ["a", "b"]},
            TypeError,
            "encoder_attention needs tokens; pass encoder_tokens",
        ),
        ({"attention": weights(2, 2), "tokens": ["a"]}, ValueError, "attention has 2 queries"),
        (
            {
                "cross_attention": weights(2, 3),
                "decoder_tokens": ["a", "b"],
                "encoder_tokens": ["x"],
            },
            ValueError,
            "cross_attention has 3 keys, but there are 1 tokens",
        ),
        ({"attention": weights(2, 2), "tokens": "ab"}, TypeError, "the tokens are one string"),
        (
            {"attention": weights(2, 2), "tokens": ["a", "b"], "html_action": "show"},
            ValueError,
            "html_action is 'show': choose view or return",
        ),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], error: type, said: str) -> None:
    with pytest.raises(error, match=f"^head_view: {said}"):
        head_view(**arguments)


def test_a_notebook_displays_the_view_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    shell: list[Any] = [None]
    module = SimpleNamespace(get_ipython=lambda: shell[0])
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    attention = weights(2, 2)
    # IPython is loaded, but no kernel is running
    assert isinstance(head_view(attention, ["a", "b"]), HeadView)
    shell[0] = SimpleNamespace()
    assert isinstance(head_view(attention, ["a", "b"]), HeadView)  # IPython runs in a terminal
    shell[0] = SimpleNamespace(kernel=None)
    assert head_view(attention, ["a", "b"]) is None
    (view,) = shown
    assert isinstance(view, HeadView)
    assert isinstance(head_view(attention, ["a", "b"], html_action="return"), HeadView)
    assert len(shown) == 1
