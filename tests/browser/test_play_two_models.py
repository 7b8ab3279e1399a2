"""Tests of the page with several models: from guessing to writing, and back."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import qkv
from models.sizes import SMALL
from models.small_models import write_small
from qkv.models import Model

from .engine import RUN, SINGLE, agree, ask, numbers, page_of, unpacked
from .play import after, in_lab, opened_at, ready
from .support import Visit
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


def test_both_fit_in_sixteen_megabytes(html: str) -> None:
    assert len(html.encode()) <= 16_000_000


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
    sizes, classes = SMALL["llama"]
    config = {"model_type": "llama", "architectures": [classes[0]], **sizes}
    third = qkv.load(write_small(tmp_path_factory.mktemp("third") / "a <third>", config))
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
    read = page.locator(".front .read").inner_text()
    assert re.fullmatch(
        r"a <third> is of type llama, with \d layers of \d heads and [\d,]+ parameters; "
        r"untrained\.",
        read,
    )
    assert not page.locator(".shelf").is_visible()


def test_an_address_opens_the_decoder(visit: Visit, html: str) -> None:
    page = ready(visit(opened_at(html, "#model=decoder&text=The+old+man")))
    expect(page.get_by_label("Your sentence")).to_have_value("The old man")
    expect(page.locator("[data-part=writing] .on")).to_have_attribute("data-qkv-first", "")


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
    agree(ask(page, text)[1], numbers(exact.trace(text, logits=True), exact.num_layers), *SINGLE)
    found, result = ask(page, OPENING, [], model="decoder")
    trace = writer.trace(OPENING, logits=True)
    assert found["tokens"] == list(trace.tokens)
    weights = [trace["pattern", layer][0] for layer in range(writer.num_layers)]
    np.testing.assert_allclose(result.pattern, weights, rtol=0, atol=1e-6)
    largest = np.abs(trace["logits"][0]).max()
    np.testing.assert_allclose(result.logits, trace["logits"][0], rtol=0, atol=1e-5 * largest)
    for text in (OPENING, "“Naïve café”, said 中文\n\nThe", "once upon a time"):
        own = writer.generate(text, max_new_tokens=40)
        new = page.evaluate("text => qkv.generate(text, {max: 40})", text)
        assert (new["ids"], new["text"]) == (own.ids, str(own))
        names = [writer.tokenizer.token(token) for token in own.ids]
        assert new["tokens"] == names
    said = page.evaluate("qkv.run('a', [], {model: 'other'}).catch(({message}) => message)")
    assert said == 'qkv: model is "other"; choose among encoder, decoder'
    said = page.evaluate("qkv.generate('a', {model: 'encoder'}).catch(({message}) => message)")
    assert said == "generate: books is an encoder and cannot generate; call qkv.run"


def test_a_long_text_has_patterns_of_the_requested_layers_only(
    visit: Visit, tmp_path: Path
) -> None:
    sizes, classes = SMALL["llama"]
    config = {"model_type": "llama", "architectures": [classes[0]], **sizes}
    long = qkv.load(write_small(tmp_path / "long", config | {"max_position_embeddings": 512}))
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


def test_token_names_are_shown_without_byte_markers(visit: Visit, html: str) -> None:
    page = ready(visit(opened_at(html, "#model=decoder&inside=true")))
    shown = page.locator("[data-qkv]").evaluate_all(
        "all => all.map((one) => one.shadowRoot?.textContent ?? '').join(' ')"
    )
    assert "opened" in shown
    assert "Ġ" not in shown
