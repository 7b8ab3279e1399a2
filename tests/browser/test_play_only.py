"""Tests of the live page with only some of its regions, as in a frame of another page."""

import pytest
from playwright.sync_api import Page

import qkv

from .play import chip, part
from .playing import POSITION, TEXT, go, held, opened, until
from .support import Visit, tight

REGIONS = ("sentence", "changes", "map", "head", "steps", "outcome", "second")


def seen(page: Page) -> list[str]:
    """Return the names of the regions that are not hidden, even if they are empty."""
    return [
        name
        for name in REGIONS
        if not page.locator(f"[data-region={name}]").evaluate("it => it.hidden")
    ]


@pytest.mark.parametrize("width", [1280, 736, 390])
def test_only_the_requested_regions_are_shown(visit: Visit, html: str, width: int) -> None:
    page = opened(visit, html, width=width, only=["sentence", "head"])
    assert seen(page) == ["sentence", "head"]
    assert part(page, "sentence").is_visible()
    assert part(page, "head").locator(".map-box canvas").first.is_visible()
    assert not part(page, "headline").is_visible()
    for gone in (".title", ".cards", ".tabs", ".saying button"):
        assert not page.locator(gone).first.is_visible(), gone
    assert tight(page)


def test_choosing_a_token_keeps_the_regions_of_a_frame(visit: Visit, html: str) -> None:
    page = opened(visit, html, only=["sentence", "outcome"], inside=False)
    assert part(page, "headline").is_visible()
    chip(page, "crown").click()
    page.wait_for_function("position => location.hash.includes(`query=${position}`)", arg=4)
    assert held(page)["only"] == ["sentence", "outcome"]
    assert seen(page) == ["sentence", "outcome"]


def test_the_whole_page_is_one_click_away(visit: Visit, html: str) -> None:
    page = opened(visit, html, only=["head"], query=3)
    address = page.get_by_role("link", name="The whole page").get_attribute("href")
    assert "only" not in address
    assert "query=3" in address
    go(page, only=None, query=POSITION)
    assert seen(page) == list(REGIONS)
    assert not page.get_by_role("link", name="The whole page").is_visible()


@pytest.mark.parametrize("only", [[], ["nothing"], "head", [["head"]], ["head", 1], 3])
def test_an_invalid_list_of_regions_gives_the_plain_page(
    visit: Visit, html: str, only: object
) -> None:
    page = opened(visit, html, only=only)
    assert seen(page) == list(REGIONS)
    # After a short pause, the page writes its state into its address.
    until(lambda: held(page).get("only") is None)


def test_the_animation_of_a_row_may_stand_alone(visit: Visit, html: str) -> None:
    page = opened(visit, html, only=["sentence", "motion"], inside=False)
    assert part(page, "head").locator(".motion-rows").is_visible()
    for gone in (".map-box", ".lines-box", ".score", ".paint", ".note", "h3", "details"):
        for found in page.locator(f"[data-region=head] {gone}").all():
            assert not found.is_visible(), gone
    go(page, only=["sentence", "head"], inside=False)
    assert part(page, "head").locator(".lines-box").is_visible()
    assert not part(page, "head").locator(".motion-rows").is_visible()


@pytest.mark.parametrize("width", [736, 390])
def test_the_folded_second_sentence_shows_only_two_sides(
    visit: Visit, html: str, width: int
) -> None:
    other = "He wore a hat."
    only = ["sentence", "second"]
    page = opened(visit, html, width=width, only=only, second=other, inside=False)
    second = part(page, "second")
    assert second.locator(".side").count() == 2
    for side in second.locator(".side").all():
        assert side.locator(".lines").is_visible()
    for gone in (".both-maps", ".second-more", "details", "button"):
        for found in second.locator(gone).all():
            assert not found.is_visible(), gone
    assert tight(page)
    go(page, only=only, second=other, inside=True)
    assert second.locator(".both-maps").is_visible()


def test_a_frame_omits_controls_of_the_whole_page(visit: Visit, html: str) -> None:
    page = opened(visit, html, only=["sentence", "changes", "head"], inside=False)
    menu = part(page, "changes").locator("select")
    assert menu.is_visible()
    for gone in ("Share", "Copy as Python", "Beside another sentence", "Undo", "Save"):
        for found in page.get_by_text(gone, exact=True).all():
            assert not found.is_visible(), gone
    assert not page.get_by_label("Attention temperature").is_visible()
    menu.select_option("causal")
    page.wait_for_function("() => location.hash.includes('causal')")
    assert held(page)["only"] == ["sentence", "changes", "head"]
    go(page, only=["sentence", "outcome"], inside=False)
    assert page.get_by_role("button", name="Hide crown").is_visible()
    go(page, only=["changes", "motion"])
    assert page.get_by_label("Attention temperature").is_visible()


@pytest.mark.parametrize("width", [736, 390])
def test_headline_and_map_show_the_effect_of_removing_a_head(
    visit: Visit, html: str, width: int
) -> None:
    page = opened(visit, html, width=width, only=["sentence", "headline", "map"], inside=False)
    assert seen(page) == ["sentence", "map"]
    assert part(page, "headline").is_visible()
    [[(word, _)]] = qkv.load().predict(TEXT, top_k=1)
    assert f"uess: {word}, " in part(page, "headline").inner_text()
    for gone in (".acts", ".role"):
        for found in page.locator(gone).all():
            assert not found.is_visible(), gone
    sides = page.locator(".cell").evaluate_all(
        "cells => cells.map((it) => [it.offsetTop, it.getBoundingClientRect().right])"
    )
    assert len({top for top, _ in sides}) == 4  # one row per layer
    assert max(right for _, right in sides) <= width  # no head is out of sight
    assert "Choose one" not in part(page, "map").inner_text()
    assert tight(page)
    page.get_by_role("switch", name="use head 3.2").click()
    until(lambda: "Without head 3.2" in part(page, "headline").inner_text())


@pytest.mark.parametrize("width", [736, 390])
def test_the_residual_stream_of_a_layer_may_stand_alone(
    visit: Visit, html: str, width: int
) -> None:
    page = opened(visit, html, width=width, only=["sentence", "block"], inside=False)
    assert seen(page) == ["sentence", "steps"]
    title = part(page, "steps").locator(".walk-panel h3")
    assert "The residual connection: the MLP's input is added" in title.inner_text()
    nodes = part(page, "steps").get_by_role("tab").all_inner_texts()
    assert [" ".join(text.split()) for text in nodes] == [
        "1 X", "2 out", "3 R", "4 N1", "5 mlp", "6 R2", "7 Y",
    ]  # fmt: skip
    flows = page.locator(".ribbon").evaluate_all(
        "all => all.map(({ dataset }) => `${dataset.from} ${dataset.to}`)"
    )
    assert {*flows} == {
        *("X out", "X R", "out R", "R N1", "N1 mlp", "N1 R2", "mlp R2", "R2 Y")
    }  # no steps between `X` and `out`, but a ribbon from `X` to `out`
    page.get_by_role("tab", name="out").click()
    assert "The output projection" in title.inner_text()
    page.get_by_role("button", name="Next ▶").click()
    assert "the input is added" in title.inner_text()
    for gone in (".walk-panel .bar", ".walk-panel canvas", ".row-table"):
        for found in part(page, "steps").locator(gone).all():
            assert not found.is_visible(), gone
    assert tight(page)
    block, panel = (page.locator(name).bounding_box() for name in (".block", ".steps-panel"))
    assert block is not None
    assert panel is not None
    if width == 736:
        assert block["x"] + block["width"] <= panel["x"]
    else:
        assert block["y"] + block["height"] <= panel["y"]
        assert block["y"] + block["height"] < 640  # of a phone's 844 pixels


def test_the_temperature_stands_beside_the_original(visit: Visit, html: str) -> None:
    edits = [{"op": "scale", "value": 1}]
    only = ["sentence", "temperature", "head"]
    page = opened(visit, html, only=only, inside=False, edits=edits, beside=True)
    assert seen(page) == ["sentence", "changes", "head"]
    slider = page.get_by_label("Attention temperature")
    assert slider.input_value() == "-2.5"  # the base-2 logarithm of (1 / sqrt(32)) / 1
    assert not part(page, "changes").locator("select").is_visible()
    assert part(page, "before").is_visible()
    slider.fill("2.5")
    until(lambda: held(page)["edits"] == [{"op": "scale", "value": pytest.approx(1 / 32)}])


def test_every_word_has_the_same_colour_and_padding(visit: Visit, html: str) -> None:
    page = opened(visit, html, only=["sentence"], inside=False)
    chips = page.locator(".chip:not(.special)")
    assert "position" in " ".join(chips.evaluate_all("all => all.map((it) => it.className)"))
    looks = "all => all.map((it) => ['color', 'padding'].map((name) => getComputedStyle(it)[name]))"
    assert len({tuple(found) for found in chips.evaluate_all(looks)}) == 1
