"""Tests of the page with several models: from guessing to writing, and back."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import qkv
from models.small_models import write_small
from qkv.models import Model

from .engine import RUN, SINGLE, agree, ask, by_the_library, page_of, unpacked
from .play import after, in_lab, ready
from .support import Visit, config_of
from .test_play_page import check_layout

OPENING = "She opened the door and"


@pytest.fixture(scope="module")
def writer() -> Model:
    return qkv.load("books-decoder", dtype=np.float64)


@pytest.fixture(scope="module")
def html() -> str:
    return in_lab(qkv.play()._document())


def turn(page: Page, name: str) -> Page:
    page.get_by_role("button", name=name, exact=True).click()
    return ready(page)


def test_a_reader_turns_to_the_decoder_and_back(visit: Visit, html: str) -> None:
    page = ready(visit(html))
    sentence = page.get_by_label("Your sentence")
    expect(sentence).to_have_value("She drank a glass of ___.")
    expect(page.locator(".badge")).to_contain_text("books ·")
    page.locator(".offer").click()
    ready(page)
    turn(page, "Write a text")
    expect(sentence).to_have_value("She drank a glass of")
    expect(page.locator(".badge")).to_contain_text("books-decoder ·")
    page.wait_for_function("() => location.hash.startsWith('#model=decoder')")
    check_layout(page)
    turn(page, "Guess a word")
    expect(page.locator("[data-part=changes]")).to_contain_text("glass hidden")
    check_layout(page)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("third") / "a <third>"
    third = qkv.load(write_small(folder, config_of("llama")))
    return str(qkv.play(model=["books", "books-decoder", third])._document())


def test_each_model_of_a_page_reads_the_same_sentence(visit: Visit, three: str) -> None:
    page = ready(visit(in_lab(three)))
    sentence = page.get_by_label("Your sentence")
    after(page, lambda: sentence.fill("the cat sat on the _ ."))
    for name, value in (
        ("Write a text: a <third>", "the cat sat on the"),
        ("Write a text: A small model", "the cat sat on the"),
        ("Guess a word", "the cat sat on the _ ."),  # the encoder's own text, which is unchanged
        ("Write a text: a <third>", "the cat sat on the"),
    ):
        turn(page, name)
        expect(sentence).to_have_value(value)
    assert page.evaluate("location.hash").startswith("#model=a+%3Cthird%3E&")
    after(page, lambda: sentence.fill("the dog"))
    turn(page, "Guess a word")
    expect(sentence).to_have_value("the dog ___.")
    page.go_back()
    ready(page)
    expect(sentence).to_have_value("the dog")
    expect(page.locator("button[data-side='a <third>']")).to_have_attribute("aria-pressed", "true")


def test_the_first_screen_says_what_is_known_of_a_model(visit: Visit, three: str) -> None:
    page = ready(visit(three))
    turn(page, "Write a text: a <third>")
    sizes = r"\d layers of \d heads and [\d,]+ parameters"
    said = re.compile(rf"^a <third> is of type llama, with {sizes}; untrained\.$")
    expect(page.locator(".front .read")).to_have_text(said)
    assert not page.locator(".shelf").is_visible()


def test_play_accepts_an_address_of_the_decoder_as_state(visit: Visit) -> None:
    view = qkv.play(state="#model=decoder&text=The+old+man")
    page = ready(visit(view._document()))
    expect(page.get_by_label("Your sentence")).to_have_value("The old man")
    assert view.text == "She drank a glass of [MASK]."


def test_run_uses_the_encoder_and_generate_the_decoder(
    visit: Visit, html: str, exact: Model, writer: Model
) -> None:
    page = ready(visit(html))
    text = "She drank a glass of [MASK]."
    agree(ask(page, text)[1], by_the_library(exact, text), *SINGLE)
    found, result = ask(page, OPENING, [], model="decoder")
    assert found["tokens"] == list(writer.tokenize(OPENING).tokens)
    agree(result, by_the_library(writer, OPENING), 1e-6, 1e-5)
    for text in (OPENING, "“Naïve café”, said 中文\n\nThe", "once upon a time"):
        own = writer.generate(text, max_new_tokens=40)
        new = page.evaluate("text => qkv.generate(text, {max: 40})", text)
        names = [writer.tokenizer.token(token) for token in own.ids]
        assert (new["ids"], new["text"], new["tokens"]) == (own.ids, str(own), names)
    said = page.evaluate("qkv.run('a', [], {model: 'other'}).catch(({message}) => message)")
    assert said == 'qkv: model is "other"; choose among encoder, decoder'
    said = page.evaluate("qkv.generate('a', {model: 'encoder'}).catch(({message}) => message)")
    assert said == "generate: books is an encoder and cannot generate; call qkv.run"


def test_a_long_text_has_patterns_of_the_requested_layers_only(
    visit: Visit, tmp_path: Path
) -> None:
    config = config_of("llama", max_position_embeddings=512)
    long = qkv.load(write_small(tmp_path / "long", config))
    page = visit(page_of(long))
    text = "the cat " * 150
    said = page.evaluate("text => qkv.run(text).catch(({message}) => message)", text)
    assert said == (
        "run: the text has 302 tokens, but a run returns the patterns of all layers only up to "
        "256 tokens; pass the layers that you need in the option layers"
    )
    found = page.evaluate(RUN, [text, [], {"layers": [1], "at": [301]}])
    assert [len(heads) for heads in found["pattern"]] == [0, 4, 0]
    logits = long.trace(text, logits=True)["logits"][0, 301]
    np.testing.assert_allclose(unpacked(found["logits"]), logits, rtol=0, atol=0.05)
