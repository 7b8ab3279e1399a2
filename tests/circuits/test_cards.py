"""Tests of pages of cards: the words, shades and values of their examples."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import qkv
from qkv.circuits import plot, scan, scan_heads
from qkv.see.draw.colours import ink, shade
from qkv.text.tokenized import plain_tokens

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = [
    "The queen spoke to the old king and went away.",
    "A dog ran after the cat, and the cat ran after a mouse, until it was dark and they slept.",
    "It was night.",
]


@pytest.fixture(scope="module")
def found():
    return scan(qkv.load("books-decoder"), TEXTS, of=("post", 2), top=3)


def drawn(svg):
    """Return a tuple (text, colour, box) for each text.

    If the text has a box, `box` is a tuple: the box's colour, and whether the box has a frame. If
    the text has no box, `box` is None.
    """
    cells, box = [], None
    for part in ElementTree.fromstring(svg).iter():
        if part.tag == f"{SVG}rect" and part.get("rx"):
            box = part.get("fill"), part.get("stroke") is not None
        elif part.tag == f"{SVG}text":
            cells.append((part.text, part.get("fill"), box))
            box = None
    return cells


def test_a_card_has_the_words_around_each_example_shaded_by_the_activation(found):
    number = int(found.largest.argmax())
    view = found.cards([number], top=2)
    cells = drawn(view.svg())
    words = [(text, box) for text, _, box in cells if box is not None]
    expected = []
    examples = found.examples(number)[:2]
    for one in examples:
        own = plain_tokens(one.tokens, [False] * len(one.tokens))
        first, end = max(0, one.position - 12), min(len(own), one.position + 8)
        expected += [("…", (shade(0), False))] * (first > 0)
        for position in range(first, end):
            share = max(0.0, one.activations[position] / examples[0].value)
            expected.append((own[position], (shade(share), position == one.position)))
        expected += [("…", (shade(0), False))] * (end < len(own))
    assert words == expected
    assert all(fill == ink(box[0]) for _, fill, box in cells if box is not None)
    others = [text for text, _, box in cells if box is None]
    assert f"neuron {number}" in others
    assert f"above 0 at {found.density[number]:.2%} of tokens" in others
    assert {f"{one.value:.3f}" for one in examples} <= set(others)
    numbers = view.to_dict()["cards"][0]["examples"]
    assert [one["value"] for one in numbers] == [f"{one.value:.3f}" for one in examples]


def test_no_line_is_wider_than_a_phone(found):
    for card in ElementTree.fromstring(found.cards().svg()).iter(f"{SVG}rect"):
        if card.get("rx"):
            assert float(card.get("x", 0)) + float(card.get("width", 0)) <= 336


def test_the_first_cards_are_those_of_the_largest_activations(found):
    view = found.cards()
    order = np.argsort(-found.largest, kind="stable")[:24]
    titles = [card["title"] for card in view.to_dict()["cards"]]
    assert titles == [f"neuron {number}" for number in order]
    assert view.sentence == f"512 neurons of blocks.2.mlp.hook_post on {found.tokens} tokens."
    assert "24 of 512 neurons have a card here." in view.reasons
    assert [len(row) for row in view.panels()] == [3] * 8
    assert str(plot(found)) == str(view)
    assert found._repr_html_() == view._repr_html_()
    assert [card["title"] for card in found.cards([-1]).to_dict()["cards"]] == ["neuron 511"]


def test_cards_are_shown_as_html_png_and_text(found, tmp_path):
    view = found.cards(range(4), top=2)
    view.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 4
    assert "prefers-color-scheme:dark" in page
    with Image.open(io.BytesIO(_png(view, tmp_path))) as image:
        assert image.size[0] > 1000
    said = str(view)
    one = found.examples(2)[0]
    words = plain_tokens(one.tokens, [False] * len(one.tokens))
    assert f"neuron 2 (above 0 at {found.density[2]:.2%} of tokens)" in said
    assert re.search(rf"{one.value:.3f} .*", said)
    assert f"[{words[one.position]}]" in said


def _png(view, folder):
    view.to_png(folder / "page.png")
    return (folder / "page.png").read_bytes()


def test_what_looks_like_markup_is_shown_as_it_is():
    model = qkv.load("books-decoder")
    found = scan(model, ['<b>bold</b> & "quoted" words'], of=("post", 0))
    page = found.cards()._repr_html_()
    assert "<b>" not in page
    assert "&lt;" in found.cards().svg()


def test_cards_of_heads_have_the_weights_of_the_query():
    found = scan_heads(qkv.load(), TEXTS, ["strongest", "entropy"])
    view = found.cards("strongest", top=1)
    [card] = [card for card in view.to_dict()["cards"] if card["title"] == "head 1.1"]
    [one] = found.examples("strongest", 1, 1)[:1]
    np.testing.assert_allclose(one.weights.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(one.weights[one.key], one.value, rtol=1e-6)
    first = max(0, one.query - 12)
    shares = one.weights[first : one.query + 8]
    cut = card["examples"][0]["shares"]
    np.testing.assert_allclose(cut[first > 0 :][: len(shares)], shares, rtol=1e-6)
    assert card["explained"] == f"mean {found.scores['strongest'][1, 1]:.3f}"
    assert len(found.cards("entropy").to_dict()["cards"]) == 24


def test_cards_that_cannot_be_made(found):
    with pytest.raises(IndexError, match="there is no neuron 512; pass 0 to 511"):
        found.cards([512])
    with pytest.raises(ValueError, match="cards: there is no neuron to show"):
        found.cards([])
    with pytest.raises(ValueError, match="cards: top is 0"):
        found.cards(top=0)
    with pytest.raises(ValueError, match="cards: theme is 'blue'"):
        found.cards(theme="blue")
    heads = scan_heads(qkv.load(), TEXTS, "first")
    with pytest.raises(KeyError, match="cards: 'next' was not measured: choose among first"):
        heads.cards("next")


def test_cards_show_the_names_of_a_dict(found):
    first, second = np.argsort(-found.largest, kind="stable")[:2].tolist()
    view = found.cards({second: "queens", first - 512: "animals"})
    titles = [card["title"] for card in view.to_dict()["cards"]]
    assert titles == [f"neuron {second}: queens", f"neuron {first}: animals"]
    assert f"neuron {second}: queens" in [text for text, _, _ in drawn(view.svg())]
