"""Tests of the outcome of a reader's changes: the words, the sentence, the layers and the heads."""

import itertools
import json
import re
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from qkv.models import Model
from rows import sample

from .edited import Edit
from .outcome import (
    Expected,
    expected,
    follow,
    is_percent,
    is_written,
    outcome_page,
    percent,
    rows,
    similarities,
    skeleton,
)
from .support import Visit, read, said
from .test_engine import EDITS, LISTS, TEXT

POSITION = 7  # of [MASK]
STORIES = json.loads(files("qkv").joinpath("data/books/stories.json").read_text("utf-8"))
CAUSES = {
    "hide": "Without bank",
    "mask": "With The hidden from the",
    "causal": "With later words hidden",
    "ablate": "Without head 1.2",
    "scale": "At attention temperature 0.44",
    "row": "With your weights in head 1.0",
    "swap": "With money in place of bank",
    "patch": "With the output of head 0.1 at the as in "
    "\N{LEFT DOUBLE QUOTATION MARK}money money money money money money mon"
    "\N{HORIZONTAL ELLIPSIS}\N{RIGHT DOUBLE QUOTATION MARK}",
    "set": "With what attention adds in layer 1 at of set to given numbers",
    "add": "With the residual stream after layer 0 at The plus a vector",
}


@pytest.fixture(scope="module")
def html(model: Model) -> str:
    return outcome_page(model)


@pytest.fixture
def page(quick: Visit, html: str) -> Page:
    return quick(html)


def check_words(page: Page, own: Expected, edits: list[Edit]) -> None:
    """Check the table of the likeliest words: their order, probabilities and bars (0 to 100%)."""
    shown = rows(page)
    assert len({row.word for row in shown}) == len(shown) == 8
    assert page.locator(".outcome-scale span").all_inner_texts() == ["0%", "100%"]
    width = page.locator(".outcome-cell div").first.evaluate("one => one.clientWidth")
    for row in shown:
        before, now = own.before[own.id(row.word)], own.now[own.id(row.word)]
        assert is_percent(row.now, now), row
        assert (row.before is None) == (not edits)
        assert row.before is None or is_percent(row.before, before), row
        lengths = [before, now] if edits else [now]
        np.testing.assert_allclose(row.bars, np.maximum(lengths, 2 / width), atol=0.004)
    for one, other in itertools.pairwise(shown):
        first, second = own.now[own.id(one.word)], own.now[own.id(other.word)]
        assert first > second - 1e-5, (one, other)
    check_first(shown, own, edits)


def check_first(shown: list[Any], own: Expected, edits: list[Edit]) -> None:
    """Check that the table has both runs' top 4 words, and marks the new and the lost ones."""
    marks = {own.id(row.word): row.mark for row in shown}
    first = [set(certain(probabilities)) for probabilities in (own.before, own.now)]
    assert first[0] | first[1] <= set(marks)
    if edits:
        ranks = [np.argsort(np.argsort(-probabilities)) for probabilities in (own.before, own.now)]
        for id, mark in marks.items():
            was, now = (rank[id] < 4 for rank in ranks)
            near = any(is_near(probabilities, id) for probabilities in (own.before, own.now))
            assert near or mark == {(True, False): "lost", (False, True): "new"}.get((was, now), "")


def certain(probabilities: np.ndarray) -> list[int]:
    """Return the first four words, without those that rounding could put behind the fifth."""
    best = np.argsort(-probabilities)[:5]
    return [id for id in best[:4] if probabilities[id] > probabilities[best[4]] + 1e-5]


def is_near(probabilities: np.ndarray, id: int) -> bool:
    """Return whether rounding could move a word into or out of the first four."""
    fourth, fifth = np.sort(probabilities)[::-1][3:5]
    return fourth - fifth < 1e-5 and abs(probabilities[id] - fourth) < 2e-5


def check_headline(headline: str, cause: str, own: Expected, where: str = "") -> None:
    """Check the headline: its form, its length of at most 14 words, and its numbers.

    A longer headline is shortened. It says "this change" or "these changes" instead of the cause,
    and it may omit the position of the guess.
    """
    words, numbers = skeleton(headline)
    assert len(words.split(" ")) <= 14 or any(" " in word for word in own.words)
    best, was = int(own.now.argmax()), int(own.before.argmax())
    after, before = own.words[best], own.words[was]
    by = np.abs(own.now - own.before)
    first = {*np.argsort(-own.before)[:4], *np.argsort(-own.now)[:8]}  # the words in the table
    same = all(is_percent(percent(own.before[id]), own.now[id]) for id in first)
    values = [own.now[best], own.before[was]]
    if " no probability moves " in words:
        assert by.max() < 5e-4 + 2e-6
        assert same
        says, values = "no probability moves by as much as #", [0.001]
    elif best != was:
        says = f"it says {after} (#) instead of {before} (#)"
    elif len(numbers) == 1:
        assert is_percent(numbers[0], values[1])
        says, values = f"it still says {after} (#)", values[:1]
    else:
        assert numbers[0] != numbers[1]
        says = f"it still says {after} (#, # before)"
    assert all(is_percent(*pair) for pair in zip(numbers, values, strict=True))
    if says.startswith("it") and float(numbers[0].removeprefix("under ")[:-1]) < 10:
        cause, says = f"Not sure {cause[0].lower()}{cause[1:]}:", says
        ways = [cause, "Not sure with this change:", "Not sure with these changes:"]
    else:
        ways = [cause, "With this change", "With these changes"]
    whole = f"{cause} {says}{where}."
    if len(whole.split(" ")) <= 14:
        assert words == whole
    else:
        assert words in {f"{way} {says}{end}." for way in ways[1:] for end in ("", where)}


def check_inside(page: Page, own: Expected, position: int) -> None:
    """Check the numbers of each layer and of the listed heads against the library."""
    one, other = (resid[:, position] for resid in own.resid)
    cosines = (one * other).sum(-1) / np.sqrt((one**2).sum(-1) * (other**2).sum(-1))
    shown = similarities(page)
    assert all(is_written(*pair) for pair in zip(shown, cosines, strict=True))
    drawn = page.locator(".outcome-chart text:not(.dim)").all_text_contents()
    assert drawn == shown
    if page.locator(".outcome-chart .axis").count() == 2:
        low, high = map(read, page.locator(".outcome-chart text.dim").all_text_contents()[:2])
        # the smallest step of 1, 2 or 5 units, of which an axis from the least cosine to 1 has five
        steps = (part * 10.0**power for power in range(-5, 1) for part in (1, 2, 5))
        step = next(s for s in steps if np.ceil(1 / s - 1e-6) - np.floor(min(cosines) / s) <= 5)
        assert high == 1
        assert low == pytest.approx(np.floor(min(cosines) / step) * step, abs=6e-4)
    plain, changed = own.patterns
    moved = np.maximum(plain - changed, 0).sum(-1).mean(-1)
    heads = page.locator(".outcome-heads button")
    shares = heads.locator(".outcome-moved").all_inner_texts()
    names = heads.evaluate_all("all => all.map((one) => one.dataset.head.split('.').map(Number))")
    own_shares = [moved[layer, head] for layer, head in names]
    assert all(map(is_percent, shares, own_shares))
    largest = np.sort(moved.ravel())[::-1]
    largest = largest[largest > 5e-4 + 1e-6][:5]
    assert len(largest) <= len(shares) <= 5
    np.testing.assert_allclose(own_shares[: len(largest)], largest, atol=1e-6)


def test_each_story_is_told_with_the_librarys_numbers(
    page: Page, model: Model, exact: Model
) -> None:
    for story in STORIES["stories"]:
        text, hide = story["sentence"], story["hide"]
        tokens = exact.tokenize(text)
        position = tokens.tokens.index("[MASK]")
        words = [text[start:end] for start, end in tokens.offsets]
        edits: list[Edit] = [{"op": "hide", "token": words.index(word)} for word in hide]
        edits += [{"op": "ablate", "layer": layer, "head": head} for layer, head in story["ablate"]]
        removed = [*hide, *(f"head {layer}.{head}" for layer, head in story["ablate"])]
        headline = follow(page, text, edits, position)
        own = expected(exact, text, edits, position)
        check_headline(headline, f"Without {' and '.join(removed)}", own)
        check_words(page, own, edits)
        check_inside(page, own, position)
        ablate = list(map(tuple, story["ablate"]))
        ((was, before),) = model.predict(text, 1)[0]
        ((now, after),) = model.predict(text, 1, hide=hide, ablate=ablate)[0]
        assert re.search(rf" says {now} \(.+ instead of {was} \(", headline)
        assert all(map(is_percent, skeleton(headline)[1], (after, before)))
        assert (now, was) == (story["after"]["word"], story["before"]["word"])


def test_each_edit_alone_and_three_at_a_time(page: Page, exact: Model) -> None:
    causes = {json.dumps([edit]): CAUSES.get(name) for name, edit in EDITS.items()}
    for edits in sample(LISTS):
        if not edits:
            continue
        headline = follow(page, TEXT, edits, POSITION)
        own = expected(exact, TEXT, edits, POSITION)
        told = re.split(":? (?:it|no) ", headline)[0].removeprefix("Not sure ")
        told = told[0].upper() + told[1:]
        cause = causes.get(json.dumps(edits)) or told
        if len({edit["op"] for edit in edits}) > 2:
            assert cause == "With these changes"
        # a swap may have added a second [MASK]
        many = sum(edit.get("with") == "[MASK]" for edit in edits if edit["op"] == "swap")
        check_headline(headline, cause, own, " at gap 2" if many else "")
        check_words(page, own, edits)
        check_inside(page, own, POSITION)


def test_a_text_without_edits_shows_the_best_guess(page: Page, exact: Model) -> None:
    headline = follow(page, TEXT, [], POSITION)
    own = expected(exact, TEXT, [], POSITION)
    check_words(page, own, [])
    best = own.now.argmax()
    words, numbers = skeleton(headline)
    assert own.now[best] > 0.1
    assert words == f"Best guess: {own.words[best]}, #."
    assert is_percent(numbers[0], own.now[best])
    assert page.locator(".outcome h3").inner_text() == "The model's words for the gap"
    assert page.locator(".outcome-heads").count() == 0
    assert said(page) == headline


def test_the_headline_names_the_word_at_a_position_without_a_mask(page: Page, exact: Model) -> None:
    text, position = "The riverbank was overgrown.", 2
    spans = exact.tokenize(text)
    assert spans.tokens[position + 1].startswith("##")
    own = expected(exact, text, [], position)
    headline = follow(page, text, [], position)
    best = own.now.argmax()
    sure = own.now[best] >= 0.0995
    told = "Best guess at riverbank:" if sure else "Not sure at riverbank: the best guess is"
    assert skeleton(headline)[0] == f"{told} {own.words[best]}, #."
    assert page.locator(".outcome h3").inner_text() == "The model's words for riverbank"
    check_words(page, own, [])
    edits: list[Edit] = [{"op": "ablate", "layer": 0}]
    headline = follow(page, text, edits, position)
    cause = "Without the heads of layer 0"
    check_headline(headline, cause, expected(exact, text, edits, position), " at riverbank")
    headline = follow(page, text, [{"op": "hide", "token": position + 1}], position)
    assert f"ithout {spans.tokens[position + 1]}" in headline
    assert headline.endswith(" at riverbank.")


def test_several_blanks_and_words_are_told_apart(page: Page) -> None:
    text = "The [MASK] sat on the [MASK]."
    assert " at gap 2: " in follow(page, text, [], 6)
    hidden: list[Edit] = [{"op": "hide", "token": token} for token in (4, 1)]
    headline = follow(page, text, hidden, 2)
    told = "ithout The and on" in headline and headline.endswith(" at gap 1.")
    assert told or "ith these changes" in headline
    page.locator(".outcome h3", has_text="the gap").wait_for()
    hidden += [{"op": "hide", "token": token} for token in (3, 5, 7)]
    assert "ith these changes" in follow(page, text, hidden, 2)


def test_the_headline_says_when_an_edit_changes_nothing(page: Page, exact: Model) -> None:
    uniform = [0.1] * 10
    edits: list[Edit] = [{"op": "row", "layer": 3, "head": 0, "query": 1, "weights": uniform}]
    headline = follow(page, TEXT, edits, POSITION)  # of another token in the last layer
    assert headline == ("With your weights in head 3.0 every probability stays the same.")
    for head, query, key in itertools.product(range(6), range(10), range(10)):
        edits = [{"op": "mask", "query": query, "key": key, "layer": 2, "head": head}]
        own = expected(exact, TEXT, edits, POSITION)
        pairs = zip(own.before, own.now, strict=True)  # formatted as in the table
        alike = all(percent(one) == percent(other) for one, other in pairs)
        if alike and 0 < np.abs(own.now - own.before).max() < 1e-4:
            break
    headline = follow(page, TEXT, edits, POSITION)
    assert headline == "With this change no probability moves by as much as 0.1%."


def test_the_outcome_of_a_decoder_is_the_next_word(page: Page) -> None:
    assert " after bank: " in follow(page, TEXT, [], 2, next=True)
    assert page.locator(".outcome h3").inner_text() == "What follows bank"


def test_hostile_words_of_the_vocabulary_stay_text(page: Page, model: Model) -> None:
    count = len(model.tokenizer.vocabulary)
    follow(page, TEXT, [EDITS["hide"]], POSITION, words=["<img src=x onerror=alert(1)>"] * count)
    assert page.locator(".view img").count() == 0
    assert rows(page)[0].word == "<img src=x onerror=alert(1)>"


def test_a_head_of_the_list_can_be_chosen(page: Page) -> None:
    follow(page, TEXT, [EDITS["hide"]], POSITION)
    button = page.locator(".outcome-heads button").nth(1)
    layer, head = button.get_attribute("data-head").split(".")
    button.click()
    assert page.evaluate("asked") == [{"layer": int(layer), "head": int(head)}]
    assert button.bounding_box()["height"] >= 44


def test_the_headline_is_announced_when_a_run_ends(page: Page) -> None:
    first = follow(page, TEXT, [EDITS["hide"]], POSITION, inside=False)
    assert said(page) == first
    assert not page.locator(".outcome-more").is_visible()
    second = follow(page, TEXT, [EDITS["causal"]], POSITION, inside=False)
    assert said(page) == second != first
