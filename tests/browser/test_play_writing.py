"""Tests of a decoder's text in the page: its tokens, their attention, and their alternatives."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import qkv
from models import decoders
from models.small_models import write_small
from qkv.models import Model

from .outcome import is_percent
from .play import CROSSED, at, in_lab, ready
from .support import Visit, config_of, read
from .test_play_page import check_layout

TEXT = "the cat sat on the bank"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of("llama", max_position_embeddings=128)
    return write_small(tmp_path_factory.mktemp("llama"), config, seed=1, spread=0.3)


@pytest.fixture(scope="module")
def writer(folder: Path) -> Model:
    """The page's model, with computations in float64.

    The parameters are rounded to float16, as in the page.
    """
    arrays = {name: array.astype(np.float16) for name, array in qkv.load(folder).parameters.items()}
    return qkv.load(folder).with_parameters(arrays, np.float64)


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return in_lab(qkv.play(TEXT, model=str(folder))._document())


@pytest.fixture
def page(visit: Visit, html: str) -> Page:
    return ready(visit(html))


def part(page: Page) -> Locator:
    return page.locator("[data-part=writing]")


def button(page: Page, name: str) -> Locator:
    return part(page).get_by_role("button", name=name, exact=True)


def ids_of(page: Page) -> list[int]:
    titles = part(page).locator(".piece").evaluate_all("all => all.map((one) => one.title)")
    return [int(title.split()[-1]) for title in titles]


def done(page: Page) -> list[int]:
    """Wait until the new text is complete, and return its ids."""
    part(page).locator("xpath=self::*[@data-writing='done']").wait_for()
    return ids_of(page)


def written(page: Page, name: str = "Continue", temperature: float = 0) -> list[int]:
    """Write in the page, and return the ids of the new tokens once all are there."""
    part(page).locator("input[type=range]").fill(str(temperature))
    button(page, name).click()
    return done(page)


def test_it_writes_what_the_library_writes(page: Page, writer: Model) -> None:
    assert written(page) == writer.generate(TEXT, max_new_tokens=40).ids
    expect(button(page, "Stop")).to_be_disabled()


def test_it_writes_on_from_a_text_that_was_just_typed(page: Page, writer: Model) -> None:
    part(page).locator("input[type=range]").fill("0")
    page.get_by_label("Your sentence").evaluate(
        """(field) => {
          field.value = "the dog sat";
          field.dispatchEvent(new Event("input"));
          field.getRootNode().querySelector("[data-part=writing] [data-qkv-first]").click();
        }"""
    )
    assert done(page) == writer.generate("the dog sat", max_new_tokens=40).ids


def test_a_token_shows_its_attention_and_its_alternatives(page: Page, writer: Model) -> None:
    written(page)
    own = writer.generate(TEXT, max_new_tokens=40, trace=True)
    part(page).locator(".piece").nth(5).click()
    weights = np.mean(np.concatenate(own.looked_at(5)), axis=0)
    lines = part(page).locator(".lines path").all()
    widths = [float(line.get_attribute("stroke-width")) for line in lines]
    most = np.sort(weights[weights >= 0.02])[::-1][:8]
    np.testing.assert_allclose(widths, 1 + 7 * most, atol=1e-4)
    told = part(page).locator(".instead li b").all_inner_texts()
    shares = list(map(read, told))
    assert len(told) == 8
    assert shares == sorted(shares, reverse=True)
    assert any(is_percent(one, own.probabilities[5]) for one in told)


def test_choosing_an_alternative_continues_from_it(page: Page, writer: Model) -> None:
    before = written(page)
    part(page).locator(".piece").nth(3).click()
    other = part(page).locator(".instead li button[aria-pressed=false]").first
    name = other.locator("bdi").inner_text()
    other.click()
    after = done(page)
    assert after[:3] == before[:3]
    assert after[3] != before[3]
    vocabulary = writer.tokenizer.vocabulary
    assert after[3] == vocabulary.get(name, int(name) if name.isdigit() else -1)
    ids = [*writer.tokenize(TEXT).ids.tolist(), *after[:4]]
    assert after[4:] == writer.generate([ids], max_new_tokens=40)[0].ids[: len(after) - 4]


def test_changes_stay_in_force_for_new_tokens(page: Page, writer: Model) -> None:
    plain = written(page)
    offer = page.locator(".offer")
    hidden = 1 + TEXT.split().index(offer.inner_text().split()[-1])
    offer.click()
    expect(part(page)).to_have_attribute("data-writing", "none")
    edit = [{"op": "hide", "token": hidden}]
    own = writer.generate(TEXT, max_new_tokens=40, edit=edit).ids
    assert written(page) == own
    assert own != plain


def test_sampling_is_reproducible_and_another_try_differs(page: Page) -> None:
    first = written(page, temperature=1.5)
    assert written(page, "Try again", temperature=1.5) != first
    again = page.evaluate(
        "text => qkv.generate(text, {max: 40, temperature: 1.5, top_k: 40, seed: 0})", TEXT
    )
    assert again["ids"] == first


def test_generation_can_be_stopped_and_its_text_used_as_the_sentence(page: Page) -> None:
    stop = button(page, "Stop").element_handle()
    button(page, "Continue").evaluate("(write, stop) => { write.click(); stop.click(); }", stop)
    assert done(page) == []
    written(page)
    text = part(page).locator(".written").inner_text()
    button(page, "Use as the sentence").click()
    expect(page.get_by_label("Your sentence")).to_have_value(re.compile(f"^{TEXT}.+"))
    expect(part(page)).to_have_attribute("data-writing", "none")
    assert len(text) > len(TEXT)


def test_a_script_can_stop_it_after_a_token(page: Page) -> None:
    told = page.evaluate(
        """(text) => {
          const [stop, parts] = [new AbortController(), []];
          const onpart = (part) => parts.push(part) === 2 && stop.abort(new Error("enough"));
          return qkv.generate(text, { max: 100, signal: stop.signal, onpart })
            .catch(({ message }) => [message, parts.length]);
        }""",
        TEXT,
    )
    assert told == ["enough", 2]


def test_the_layout_holds_at_every_width(visit_at: Visit) -> None:
    for width in (1920, 1280, 390):
        page = visit_at(width=width)
        written(page)
        part(page).locator(".piece").nth(4).click()
        check_layout(page)


@pytest.mark.parametrize(
    ("options", "way"),
    [
        ("{max: 0}", "max is 0; pass a whole number of at least 1"),
        ("{temperature: -1}", "temperature is -1; pass a number of at least 0"),
        ("{top_k: 1.5}", "top_k is 1.5; pass a whole number of at least 1, or null"),
        ("{seed: 'a'}", 'seed is "a"; pass a whole number of at least 0'),
        ("{begun: [99]}", "begun is [99]; pass token ids from 0 to 39"),
        ("{model: 'encoder'}", 'model is "encoder"; choose among decoder'),
    ],
)
def test_invalid_options_of_generate_are_refused(page: Page, options: str, way: str) -> None:
    said = page.evaluate(
        f"text => qkv.generate(text, {options}).catch(({{message}}) => message)", TEXT
    )
    assert way in said


def test_a_gpt2_folder_is_one_file_that_works_offline(visit: Visit, tmp_path: Path) -> None:
    text = " the été ☃ the"
    folder = tmp_path / "gpt2"
    model = decoders.writer(folder, "a b", text)
    page = ready(visit(in_lab(qkv.play("a b", model=str(folder))._document())))
    ids = written(page)
    assert ids == model.generate("a b", max_new_tokens=40).ids
    assert ids[-1] == decoders.EOS
    shown = part(page).locator(".written").inner_text()
    assert shown.replace("…", "").startswith(f"a b{text}")
    assert not {"Ġ", "Ã"} & {*shown}


def test_a_swap_names_a_token_by_its_text_or_as_in_the_vocabulary(
    visit: Visit, tmp_path: Path
) -> None:
    decoders.gpt2(tmp_path / "gpt2", seed=1)  # knows "the", "Ġthe" and single bytes
    page = ready(visit(in_lab(qkv.play("a bcd", model=str(tmp_path / "gpt2"))._document())))
    swapped = """with_ => qkv.run("a b", [{op: "swap", token: 2, with: with_}])
        .then(({tokens}) => tokens[2]).catch(({message}) => message)"""
    expected = {" the": "Ġthe", "Ġthe": "Ġthe", "c": "c", "Ã": "Ã", " ": "Ġ"}
    assert {word: page.evaluate(swapped, word) for word in expected} == expected
    said = 'run: edits[0] (swap) has with "the"; pass " the", because the vocabulary has both'
    assert page.evaluate(swapped, "the") == said
    for word in (" c", "Ġc", "two", " two"):
        assert "pass one entry of the vocabulary" in page.evaluate(swapped, word)


def test_a_character_that_the_prompt_begins_is_in_the_new_text(
    visit: Visit, tmp_path: Path
) -> None:
    text = "☃é the"
    model = decoders.writer(tmp_path / "gpt2", "a b", text)
    ids = decoders.ids_of(f"a b{text}")
    page = ready(visit(in_lab(qkv.play("a bcd", model=str(tmp_path / "gpt2"))._document())))
    for count, begin in ((3, 0), (4, 0), (5, 0), (6, 1), (7, 1), (8, 2)):  # bytes of the prompt
        names = [decoders.TOKENIZER.id_to_token(token) for token in ids[:count]]
        swaps = [{"op": "swap", "token": n, "with": name} for n, name in enumerate(names)]
        script = "([text, edits]) => qkv.generate(text, {}, edits)"
        made = page.evaluate(script, ["x" * count, swaps])
        assert made["ids"][:-1] == ids[count:]
        assert made["text"] == text[begin:] == model.generate(ids[:count])


EMOJI = "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}"


def words_of(page: Page) -> list[str]:
    words = page.locator(".front > [data-part=stage] .words").first.locator("> .w")
    return words.evaluate_all(
        "all => all.map((one) => (one.querySelector('bdi') ?? one).innerText)"
    )


def test_guesses_that_are_no_words_are_told_in_words(visit: Visit) -> None:
    html = qkv.play()._document()
    page = at(visit, html, "#model=decoder&text=He said it was the end.")
    assert {"end of text", "new line"} <= set(part(page).locator(".drawn bdi").all_inner_texts())
    page = at(visit, html, f"#model=decoder&text=A {EMOJI} sat \N{HUGGING FACE}")
    assert words_of(page) == ["A", EMOJI, "sat", "\N{HUGGING FACE}"]
    assert part(page).locator(".drawn bdi").first.inner_text() == "part of a character"
    assert page.get_by_text("<|").count() == 0


def test_a_new_line_breaks_the_written_text(visit: Visit) -> None:
    page = at(visit, qkv.play()._document(), "#model=decoder&text=The end.")
    written(page)
    choice = part(page).locator(".instead button", has_text="new line")
    for k in range(part(page).locator(".piece").count()):
        part(page).locator(".piece").nth(k).click()
        if choice.count():
            break
    before = part(page).locator(".fresh").inner_text().count("\n")
    choice.first.click()
    done(page)
    text = part(page).locator(".fresh").inner_text()
    assert text.count("\n") > before or "new line\n" in text
    assert "⏎" not in part(page).inner_text()


@pytest.mark.parametrize(
    ("text", "direction", "words"),
    [
        ("שלום לכולם [MASK]", "rtl", ["שלום", "לכולם"]),
        (f"A {EMOJI} sat on the [MASK]", "ltr", ["A", EMOJI, "sat", "on", "the"]),
    ],
)
def test_a_sentence_stands_in_its_own_direction(
    visit: Visit, text: str, direction: str, words: list[str]
) -> None:
    page = at(visit, qkv.play()._document(), f"#text={text}")
    assert words_of(page) == words
    nodes = page.locator(".front > [data-part=stage] .words").first.locator("> .w")
    lefts = nodes.evaluate_all("all => all.map((one) => one.getBoundingClientRect().left)")
    assert lefts == sorted(lefts, reverse=direction == "rtl")
    for view, place in (("lab", ".chips"), ("story", ".ids")):
        page.evaluate("hash => { location.hash = hash; }", f'text={text}&view="{view}"')
        expect(page.locator(f".{view} {place}")).to_have_attribute("dir", direction)


def test_an_emoji_of_several_tokens_is_named_after_itself(visit: Visit) -> None:
    emoji = "\N{HUGGING FACE}"
    hash_ = f'#model=decoder&view="lab"&inside=true&text=She said {emoji} again'
    page = at(visit, qkv.play()._document(), hash_)
    chips = page.get_by_role("listbox", name="words of the sentence").get_by_role("option")
    assert chips.all_inner_texts() == ["She", "said", emoji, "again"]
    names = page.locator("[data-part=head] .queries .token bdi").all_inner_texts()
    assert [name for name in names if emoji in name] == [f"{emoji} {k}/4" for k in range(1, 5)]
    assert not set(page.locator(".view").text_content() or "") & set("ĠðŁĻĤ")


def test_lines_over_wrapped_text_cross_no_word(visit: Visit) -> None:
    text = "She opened the door and saw the old man standing by the window of the small house"
    page = at(visit, qkv.play()._document(), f"#model=decoder&text={text}", width=390)
    written(page)
    for k in (3, 12):
        part(page).locator(".piece").nth(k).click()
        written_text = part(page).locator(".written")
        # the space before a word may stand at the end of the line above
        lines, crossed = written_text.evaluate(CROSSED, [".lines", "[data-token]", -1])
        assert lines > 0
        assert crossed == []
