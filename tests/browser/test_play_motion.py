"""Tests of the animation of a query's row in the live page, against the library's numbers."""

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

from qkv.models import Model
from qkv.trace import Trace

from .edited import Edit
from .engine import by_the_library
from .play import after
from .playing import HEAD, POSITION, TEXT, go, held, like, picture, until
from .support import Visit, drawn as shown_names, read, tight, token
from .test_page import problems

LAYER, NUMBER = HEAD
END = 60  # the last value of the slider
ROW, TALL = 22, 20  # the height of a row and of the drawing in it, in pixels
TIMES = "\N{MULTIPLICATION SIGN}"
LONG = "She wore a crown of gold and silver on her head and a ring on her small left [MASK]."
# Records the slider's value at every frame.
WATCH = """(slider) => {
  globalThis.moments = [];
  const look = () => { moments.push(Number(slider.value)); requestAnimationFrame(look); };
  look();
}"""


def motion(page: Page) -> Locator:
    return page.locator("[data-part=motion]")


def slider(page: Page) -> Locator:
    return motion(page).get_by_role("slider")


def in_frames(page: Page, count: int = 30) -> set[int]:
    """Return the values that the slider has in the next frames."""
    page.evaluate("globalThis.moments = []")
    slider(page).evaluate(WATCH)
    until(lambda: page.evaluate("moments.length"), "frames", lambda found: found >= count)
    return set(page.evaluate("moments"))


def to(page: Page, at: int) -> None:
    """Move the slider to a moment."""
    slider(page).fill(str(at))


def figures(page: Page) -> list[str]:
    """Return the figures beside the rows: a heading, the number of each key, and the sum."""
    return motion(page).locator(".motion-figure").all_inner_texts()


def said(page: Page) -> str:
    """Return the text above the picture."""
    return motion(page).locator(".motion-said").inner_text()


def names(page: Page) -> list[str]:
    return motion(page).locator(".motion-name").all_inner_texts()


def drawn(page: Page, d: int = 32) -> np.ndarray:
    """Return the colour in the middle of each cell, (rows, d, 3): the query, the keys, the sum."""
    found = picture(motion(page).locator("canvas"))
    rows = len(names(page))
    down = np.array([ROW * row + ROW // 2 for row in range(rows - 1)] + [found.shape[0] - 11])
    across = ((np.arange(d) + 0.5) * found.shape[1] / d).astype(int)
    return found[np.ix_(down, across)]


def vectors(trace: Trace, name: str) -> np.ndarray:
    return np.asarray(trace[name, LAYER][0, :, NUMBER], np.float64)


def tall(page: Page) -> list[float]:
    """Return the height of each key's strip, divided by `TALL`, the height of a full strip.

    The height is measured in the first column of cells.
    """
    canvas = motion(page).locator("canvas")
    column = canvas.evaluate(
        """(canvas) => {
          const { data } = canvas.getContext("2d").getImageData(2, 0, 1, canvas.height);
          return [...data].filter((_, i) => i % 4 === 3);
        }"""
    )
    return [sum(column[ROW * r + 1 :][:TALL]) / 255 / TALL for r in range(1, len(names(page)) - 1)]


def test_every_moment_matches_the_trace(page: Page, trace: Trace) -> None:
    q, k, v, z = (vectors(trace, name) for name in "qkvz")
    scaled = np.asarray(trace["attn_scores", LAYER][0, NUMBER, POSITION])
    weights = np.asarray(trace["pattern", LAYER][0, NUMBER, POSITION])
    products = q[POSITION] * k
    assert names(page) == ["the gap", *shown_names(trace.tokens), "sum"]
    assert slider(page).input_value() == str(END)
    like(drawn(page)[-1], z[POSITION] / np.abs(v).max(), 3)
    assert figures(page)[0] == "weight"
    np.testing.assert_allclose([read(x) for x in figures(page)[1:]], [*weights, 1], atol=0.0051)
    to(page, 10)
    assert figures(page) == [""] * 12
    like(drawn(page)[:-1], np.stack([q[POSITION] / np.abs(q).max(), *(k / np.abs(k).max())]), 3)
    to(page, 20)
    like(drawn(page)[1:-1], products / np.abs(products).max(), 3)
    to(page, 30)
    assert (figures(page)[0], figures(page)[-1]) == ("score", "")
    best = weights.argmax()
    name, score = trace.tokens[best], f"{products[best].sum():.2f}"
    assert said(page).endswith(f"how well the key fits the query. For {name}: {score}.")
    raw = [read(x) for x in figures(page)[1:-1]]
    np.testing.assert_allclose(raw, products.sum(-1), atol=0.0052)
    to(page, 34)
    assert figures(page)[0] == "÷ √32"
    np.testing.assert_allclose([read(x) for x in figures(page)[1:-1]], scaled, atol=0.0052)
    told = f"sum to 100%. For {name}: {scaled[best]:.2f} → {weights[best]:.0%}."
    assert said(page).endswith(told)
    to(page, 45)
    like(drawn(page)[1:-1], v / np.abs(v).max(), 3)
    to(page, 50)
    np.testing.assert_allclose(tall(page), weights, atol=0.004)


def test_bars_are_as_long_as_scores_and_weights(page: Page, trace: Trace) -> None:
    raw = (vectors(trace, "q")[POSITION] * vectors(trace, "k")).sum(-1)
    weights = np.asarray(trace["pattern", LAYER][0, NUMBER, POSITION])
    for at, expected in ((30, np.abs(raw) / np.abs(raw).max()), (40, weights)):
        to(page, at)
        found = picture(motion(page).locator("canvas")).astype(int)
        middle = found[ROW + ROW // 2 : ROW * 11 : ROW]
        lengths = (np.ptp(middle, axis=-1) > 60).sum(-1)
        whole = lengths.max() if at == 30 else found.shape[1]
        np.testing.assert_allclose(lengths / whole, expected, atol=0.012)


def test_choosing_a_query_plays_it_once(page: Page, trace: Trace) -> None:
    motion(page).scroll_into_view_if_needed()
    slider(page).evaluate(WATCH)
    token(page, 3).evaluate("node => node.click()")
    until(lambda: held(page)["query"] == 3)
    until(lambda: slider(page).input_value() == str(END))
    moments = page.evaluate("moments")
    moments = moments[next(i for i, at in enumerate(moments) if at < END) :]
    assert moments[0] < 10
    assert moments == sorted(moments)
    assert names(page)[0] == trace.tokens[3]
    weights = np.asarray(trace["pattern", LAYER][0, NUMBER, 3])
    np.testing.assert_allclose([read(x) for x in figures(page)[1:-1]], weights, atol=0.0051)
    assert in_frames(page) == {END}


def test_it_does_not_play_at_load_nor_after_a_change(page: Page) -> None:
    motion(page).scroll_into_view_if_needed()
    assert in_frames(page) == {END}
    go(page, edits=[{"op": "hide", "token": 4}])
    go(page, head=0)
    go(page, layer=1, query=2)
    assert set(page.evaluate("moments")) == in_frames(page) == {END}


def test_the_animation_can_be_stopped_and_moved_by_keyboard(page: Page) -> None:
    play = motion(page).get_by_role("button")
    play.click()
    until(lambda: 3 < int(slider(page).input_value()) < END)
    play.click()
    at = int(slider(page).input_value())
    assert in_frames(page) == {at}
    assert at < END
    slider(page).focus()
    page.keyboard.press("Home")
    assert slider(page).get_attribute("aria-valuetext").startswith("keys: The query the gap has 32")
    for moment in ("products", "scores", "weights", "values", "sum", "sum"):
        page.keyboard.press("PageUp")
        page.keyboard.press("ArrowRight")
        assert slider(page).get_attribute("aria-valuetext").startswith(f"{moment}: ")
    for at in (50, 40):
        page.keyboard.press("PageDown")
        assert slider(page).input_value() == str(at)


def test_reduced_motion_shows_the_end_at_once(lab_at: Visit, trace: Trace) -> None:
    page = lab_at()
    page.emulate_media(reduced_motion="reduce")
    motion(page).scroll_into_view_if_needed()
    slider(page).evaluate(WATCH)
    token(page, 3).evaluate("node => node.click()")
    until(lambda: held(page)["query"] == 3)
    assert set(page.evaluate("moments")) == {END}
    assert not motion(page).get_by_role("button").is_visible()
    weights = np.asarray(trace["pattern", LAYER][0, NUMBER, 3])
    np.testing.assert_allclose([read(x) for x in figures(page)[1:-1]], weights, atol=0.0051)
    to(page, 30)
    assert figures(page)[0] == "score"


def test_the_animation_waits_until_it_is_in_view(lab_at: Visit) -> None:
    page = lab_at(height=420)
    page.evaluate("scrollTo(0, 0)")
    go(page, query=3)
    assert in_frames(page) == {0}
    motion(page).locator("h4").evaluate("node => node.scrollIntoView()")
    until(lambda: slider(page).input_value() == str(END))


CASES: dict[str, tuple[list[Edit], str, str]] = {
    "hidden": ([{"op": "hide", "token": 4}], "hidden", ""),
    "temperature": ([{"op": "scale", "value": 0.3}], f"{TIMES} 0.300", ""),
    "given": (
        [{"op": "row", "layer": 3, "head": 2, "query": 7, "weights": [0.5, 0.5, *[0] * 8]}],
        "50%",
        "You set the weights of this row",
    ),
    "removed": ([{"op": "ablate", "layer": 3, "head": 2}], "removed", "This head is removed"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_animation_marks_the_readers_edits(lab_at: Visit, exact: Model, case: str) -> None:
    edits, marked, words = CASES[case]
    page = lab_at(edits=edits)
    weights = by_the_library(exact, TEXT, edits).pattern[LAYER][NUMBER][POSITION]
    shown = [0.0 if x == "hidden" else read(x) for x in figures(page)[1:-1]]
    np.testing.assert_allclose(shown, weights, atol=0.0051)
    seen = ""
    for at in (34, 36, END):
        to(page, at)
        for text in motion(page).locator(".changed").all():
            seen += f"{text.inner_text()} "
            assert text.evaluate("node => getComputedStyle(node).color") == "rgb(169, 71, 0)"
    assert marked in seen
    assert words in seen


def test_all_but_the_eleven_largest_keys_share_one_row(lab_at: Visit, exact: Model) -> None:
    page = lab_at(text=LONG, position=None, query=None)
    trace = exact.trace(LONG)
    size = len(trace.tokens)
    position = list(trace.tokens).index("[MASK]")
    weights = np.asarray(trace["pattern", LAYER][0, NUMBER, position])
    best = sorted(np.argsort(-weights)[:11])
    assert names(page)[1:-1] == [*(trace.tokens[i] for i in best), f"{size - 11} others"]
    expected = [*weights[best], weights.sum() - weights[best].sum(), 1]
    np.testing.assert_allclose([read(x) for x in figures(page)[1:]], expected, atol=0.0051)
    v, z = vectors(trace, "v"), vectors(trace, "z")
    like(drawn(page)[-1], z[position] / np.abs(v).max(), 3)
    to(page, 45)
    others = np.delete(np.arange(size), best)
    together = weights[others] @ v[others] / weights[others].sum()
    like(drawn(page)[1:-1], np.stack([*v[best], together]) / np.abs(v).max(), 3)
    to(page, 34)
    assert figures(page)[-2] == ""


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_the_animation_fits_the_window_and_passes_axe(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width)
    for control in motion(page).locator("button, input").all():
        box: Any = control.bounding_box()
        assert min(box["width"], box["height"]) >= 44 - 0.5
    assert tight(page)
    assert problems(page, "motion") == []
    for name in motion(page).locator(".motion-moments span").all():
        assert name.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    after(page, token(page, 2).click)
    motion(page).scroll_into_view_if_needed()
    until(lambda: slider(page).input_value() == str(END))
