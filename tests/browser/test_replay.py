"""Tests of the replay in a page: slider, player, heads and charts, against the numbers."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

from qkv.see import View, replay
from qkv.see.views._replay import ReplayView
from see.training import made_run, run_folder

from .support import Visit, hold_clock, press, read, readout, sentence, tight, whole_page
from .test_page import HOSTILE, problems

STEPS = [0, 10, 20, 50, 100, 400, 1000]
CAT = "[CLS] the cat sat on the mat and the dog saw the cat on the mat [SEP]"
WORDS = CAT.split()
LEARNS = {(0, 3): "previous", (1, 2): "induction", (1, 0): "first"}


def made(words: list[str] = WORDS, steps: list[int] = STEPS, **options: object) -> ReplayView:
    view = replay(made_run(words, steps, **{"heads": 4, "learns": LEARNS, **options}))
    losses = [(step, 5 * 0.5 ** (step / 400)) for step in range(0, steps[-1] + 1, 5)]
    return replace(view, replay=replace(view.replay, losses=losses))


CASES = {
    "usual": made,
    "hostile": lambda: made(HOSTILE),
    "alone": lambda: made(["alone"], [7], layers=1, heads=1, learns={(0, 0): "first"}),
    "wide": lambda: made([f"word{i % 30}" for i in range(60)], [0, 5, 2000], heads=20),
}


def page_of(view: View) -> str:
    return whole_page(view._payload(), view.svg())


@pytest.fixture(scope="module")
def view() -> ReplayView:
    return made()


@pytest.fixture(scope="module")
def html(view: ReplayView) -> str:
    return page_of(view)


def slider(page: Page):
    return page.get_by_role("slider", name="Training step")


def shown_step(page: Page) -> int:
    (found,) = re.findall(r"^step ([\d,]+) of", page.locator(".replay-step").inner_text())
    return int(found.replace(",", ""))


def scores(page: Page) -> list[float]:
    """Return the score below each head's picture."""
    return [read(text) for text in page.locator(".head b").all_inner_texts()]


def points_of(line: Locator) -> np.ndarray:
    """Return the points of a polyline, (2, n)."""
    points = str(line.get_attribute("points")).split()
    return np.array([point.split(",") for point in points], float).T


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", CASES)
def test_it_fits_the_window_and_passes_axe(visit: Visit, name: str, width: int) -> None:
    page = visit(page_of(CASES[name]()), width=width)
    for _ in range(2):
        assert tight(page)
        assert problems(page) == []
        page.locator(".head").first.click()


def test_a_run_from_its_folder(visit: Visit, tmp_path: Path) -> None:
    view = replay(run_folder(tmp_path / "run<b>"), "the cat sat on the mat")
    page = visit(view._document())
    assert page.locator("h2").inner_text().startswith("run<b>: the cat sat")
    assert page.get_by_text("Loss 1.00").is_visible()
    assert problems(page) == []


def test_it_opens_on_the_last_step_and_the_slider_leads_to_each(visit, html, view) -> None:
    page = visit(html)
    assert sentence(page) == view.sentence
    assert view.head.reason in page.locator(".note").first.inner_text()
    assert shown_step(page) == 1000
    position = view.head.layer * 4 + view.head.head
    chosen = page.locator(".head[aria-selected=true]")
    assert chosen.count() == 1
    assert chosen.get_attribute("data-i") == str(position)
    exact = view.replay.values[-1, ..., view.score].ravel()
    np.testing.assert_allclose(scores(page), exact, atol=0.0056)
    # The heads form a grid: each layer is a row, and each head number is a column.
    boxes = [head.bounding_box() for head in page.locator(".heads > .head").all()]
    assert len(boxes) == 2 * 4
    assert len({box["x"] for box in boxes[:4]}) == len({box["x"] for box in boxes}) == 4
    assert [len({box["y"] for box in boxes[at : at + 4]}) for at in (0, 4)] == [1, 1]
    assert boxes[4]["y"] >= boxes[0]["y"] + boxes[0]["height"]
    for head in page.locator(".heads > .head").all():  # from top to bottom
        picture, name, score = (part.bounding_box() for part in head.locator("> *").all())
        assert picture["width"] == picture["height"] >= 40
        assert picture["y"] + picture["height"] <= name["y"]
        assert name["y"] + name["height"] <= score["y"]
    slider(page).focus()
    for n in (5, 4, 3, 2, 1, 0):
        press(page, "ArrowLeft")
        assert shown_step(page) == STEPS[n]
        value = view.replay.course(view.head, view.score)[n]
        lost = view.replay.loss_at(STEPS[n])
        text = slider(page).get_attribute("aria-valuetext")
        where = re.fullmatch(r"step (\d+), loss ([\d.]+), weight on .* ([\d.]+)", str(text))
        expected = [STEPS[n], pytest.approx(lost, abs=0.0051), pytest.approx(value, abs=0.0056)]
        assert [float(number) for number in where.groups()] == expected
        exact = view.replay.values[n, ..., view.score].ravel()
        np.testing.assert_allclose(scores(page), exact, atol=0.0056)
    for key, step in (("End", 1000), ("Home", 0)):
        press(page, key)
        assert shown_step(page) == step
    page.get_by_role("button", name="Play").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert shown_step(page) == 20
    slider(page).focus()
    press(page, "Home", "ArrowRight", "ArrowRight", "ArrowRight")
    pattern = view.weights
    rise = pattern[-1] - pattern[0]
    i, j = np.unravel_index(int(rise.argmax()), rise.shape)
    said_ = readout(page)
    assert said_.pop("") == f"{WORDS[i]} → {WORDS[j]}"
    assert list(said_) == ["step 0", "step 50", "step 1,000"]
    for text, n in zip(said_.values(), (0, 3, 6), strict=True):
        assert read(text) == pytest.approx(pattern[n, i, j], abs=0.0051)
    page.get_by_role("application").focus()
    press(page, "ArrowDown", "Control+Home", "End")
    assert readout(page)[""] == "[CLS] → [SEP]: hidden by the mask"


def test_heads_are_chosen_by_keys_and_by_the_mouse(visit: Visit, html: str, view) -> None:
    page = visit(html)
    page.locator(".head[aria-selected=true]").focus()
    press(page, "Home", "ArrowDown", "ArrowRight", "Enter")
    assert page.locator(".head[aria-selected=true]").get_attribute("data-i") == "5"
    assert "layer 1, head 1" in page.locator("h3").first.inner_text()
    run = made_run(WORDS, STEPS, heads=4, learns=LEARNS)
    for layer in range(2):
        for head in range(4):
            page.locator(f".head[data-i='{layer * 4 + head}']").click()
            expected = replay(run, layer=layer, head=head)
            found = [re.sub(r"\d\.\d\d", "#", text) for text in (sentence(page), expected.sentence)]
            assert found[0] == found[1]
            assert f"layer {layer}, head {head}" in page.locator("h3").first.inner_text()
    note = page.locator(".note").first.inner_text()
    assert note.startswith("You chose layer 1, head 3. The page opened on layer ")


def test_the_chosen_head_is_in_view_among_many(visit: Visit) -> None:
    options = {"layers": 12, "heads": 12, "learns": {(11, 5): "first"}}
    page = visit(page_of(made([f"w{i}" for i in range(6)], [0, 9], **options)))
    chosen = page.locator(".head[aria-selected=true]")
    assert chosen.get_attribute("data-i") == "137"
    own, around = chosen.bounding_box(), page.locator(".heads").bounding_box()
    assert around["y"] <= own["y"]
    assert own["y"] + own["height"] <= around["y"] + around["height"]


def test_scores_and_chart_lines_match_the_numbers(
    visit: Visit, html: str, view: ReplayView
) -> None:
    page = visit(html)
    for position, score in enumerate(view.replay.scores):
        page.get_by_label("Score", exact=True).select_option(score.of)
        exact = view.replay.values[-1, ..., position].ravel()
        np.testing.assert_allclose(scores(page), exact, atol=0.0056)
        reach = int((exact >= 0.5).sum())
        chart = page.locator(".replay-chart").last
        label = chart.locator("svg").get_attribute("aria-label")
        assert label == f"{score.of} in each of 8 heads; at the end, it is 0.5 or more in {reach}"
        assert chart.locator("polyline").count() == 8
        assert chart.locator("polyline:not(.faint)").count() == 1
    chart = page.locator(".replay-chart").first
    axis = chart.locator("line.axis").evaluate_all(
        "lines => lines.map((line) => ['x1', 'x2', 'y1'].map((k) => Number(line.getAttribute(k))))"
    )
    (left, right, ground), _, (_, _, top) = axis
    for position, line in enumerate(chart.locator("polyline").all()):
        x, y = points_of(line)
        np.testing.assert_allclose((x - left) / (right - left), np.arange(7) / 6, atol=1e-3)
        course = view.replay.values[:, view.head.layer, view.head.head, position]
        np.testing.assert_allclose((ground - y) / (ground - top), course, atol=2e-3)
    box = chart.bounding_box()
    assert box
    at = left + (right - left) * 4.2 / 6  # nearest to the fifth snapshot
    page.mouse.click(box["x"] + at, box["y"] + 60)
    assert shown_step(page) == 100
    mark = float(str(chart.locator(".replay-now").get_attribute("x1")))
    assert mark == pytest.approx(left + (right - left) * 4 / 6, abs=0.2)
    lost = page.locator(".replay-chart").nth(1)
    x, y = points_of(lost.locator("polyline"))
    steps, losses = np.array(view.replay.losses).T
    positions = np.interp(steps, STEPS, np.arange(7) / 6)  # linear between snapshots
    np.testing.assert_allclose((x - left) / (right - left), positions, atol=1e-3)
    falls = (losses - 5) / (losses[-1] - 5)
    np.testing.assert_allclose((y - y[0]) / (y[-1] - y[0]), falls, atol=2e-3)


def test_play_goes_to_the_end_and_pause_stays(visit: Visit, html: str) -> None:
    page = visit(html, alone=True)
    hold_clock(page)
    page.get_by_role("button", name="Play").click()
    assert shown_step(page) == 0  # from the beginning, since it was at the end
    page.clock.run_for(1500)
    assert shown_step(page) == 20
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert shown_step(page) == 20
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(700)
    slider(page).focus()
    press(page, "ArrowRight")  # moving the slider stops the player
    assert page.get_by_role("button", name="Play").is_visible()
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(10_000)
    assert shown_step(page) == 1000
    assert page.get_by_role("button", name="Play").is_visible()
    page.clock.run_for(300)
    assert page.locator("[role=status]").first.inner_text().startswith("step 1,000, loss ")


def test_reduced_motion_slows_the_player(visit: Visit, html: str) -> None:
    page = visit(html, alone=True)
    page.emulate_media(reduced_motion="reduce")
    hold_clock(page)
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(1500)
    assert shown_step(page) == 0
    page.clock.run_for(200)
    assert shown_step(page) == 10


def test_only_some_snapshots_on_the_page(visit: Visit) -> None:
    found = made()
    few = replace(found.replay, shown=[0, 3, 6], weights=found.replay.weights[[0, 3, 6]])
    page = visit(page_of(replace(found, replay=few)))
    assert page.get_by_text("This page has the weights of 3 of the 7 snapshots").is_visible()
    slider(page).focus()
    press(page, "ArrowLeft")
    assert shown_step(page) == 50
    exact = few.values[3, ..., found.score].ravel()
    np.testing.assert_allclose(scores(page), exact, atol=0.0056)


def test_without_scripts_the_strip_shows(visit: Visit, html: str, view: ReplayView) -> None:
    page = visit(html, scripts=False)
    assert page.get_by_role("img", name=view.sentence).is_visible()
    assert page.get_by_text("tokens: [CLS] the cat").is_visible()
