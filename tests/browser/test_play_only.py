"""Tests of the live page with only some of its regions, as in a frame of another page."""

import pytest
from playwright.sync_api import Locator, Page

import qkv

from .play import chip, part
from .playing import POSITION, TEXT, go, held, until
from .support import Visit, tight
from .test_walk_shift import RIBBONS

REGIONS = ("sentence", "changes", "map", "head", "steps", "outcome", "second")


def seen(page: Page) -> list[str]:
    """Return the names of the regions that are not hidden, even if they are empty."""
    hidden = "it => it.hidden"
    return [it for it in REGIONS if not page.locator(f"[data-region={it}]").evaluate(hidden)]


def no_one_sees(nodes: Locator) -> None:
    assert nodes.filter(visible=True).count() == 0, nodes


@pytest.mark.parametrize("width", [1280, 736, 390])
def test_only_the_requested_regions_are_shown(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width, only=["sentence", "head"])
    assert seen(page) == ["sentence", "head"]
    assert part(page, "sentence").is_visible()
    assert part(page, "head").locator(".map-box canvas").first.is_visible()
    assert not part(page, "headline").is_visible()
    no_one_sees(page.locator(".title, .cards, .tabs, .saying button"))
    assert tight(page)


def test_choosing_a_token_keeps_the_regions_of_a_frame(lab_at: Visit) -> None:
    page = lab_at(only=["sentence", "outcome"], inside=False)
    assert part(page, "headline").is_visible()
    chip(page, "crown").click()
    page.wait_for_function("position => location.hash.includes(`query=${position}`)", arg=4)
    assert held(page)["only"] == ["sentence", "outcome"]
    assert seen(page) == ["sentence", "outcome"]


def test_the_whole_page_is_one_click_away(lab_at: Visit) -> None:
    page = lab_at(only=["head"], query=3)
    address = page.get_by_role("link", name="The whole page").get_attribute("href")
    assert "only" not in address
    assert "query=3" in address
    go(page, only=None, query=POSITION)
    assert seen(page) == list(REGIONS)
    assert not page.get_by_role("link", name="The whole page").is_visible()


@pytest.mark.parametrize("only", [[], ["nothing"], "head", [["head"]], ["head", 1], 3])
def test_an_invalid_list_of_regions_gives_the_plain_page(lab_at: Visit, only: object) -> None:
    page = lab_at(only=only)
    assert seen(page) == list(REGIONS)
    # After a short pause, the page writes its state into its address.
    until(lambda: held(page).get("only") is None)


def test_the_animation_of_a_row_may_stand_alone(lab_at: Visit) -> None:
    page = lab_at(only=["sentence", "motion"], inside=False)
    assert part(page, "head").locator(".motion-rows").is_visible()
    gone = ":is(.map-box, .lines-box, .score, .paint, .note, h3, details)"
    no_one_sees(page.locator(f"[data-region=head] {gone}"))
    go(page, only=["sentence", "head"], inside=False)
    assert part(page, "head").locator(".lines-box").is_visible()
    assert not part(page, "head").locator(".motion-rows").is_visible()


@pytest.mark.parametrize("width", [736, 390])
def test_the_folded_second_sentence_shows_only_two_sides(lab_at: Visit, width: int) -> None:
    other = "He wore a hat."
    only = ["sentence", "second"]
    page = lab_at(width=width, only=only, second=other, inside=False)
    second = part(page, "second")
    assert second.locator(".side").count() == 2
    for side in second.locator(".side").all():
        assert side.locator(".lines").is_visible()
    no_one_sees(second.locator(".both-maps, .second-more, details, button"))
    assert tight(page)
    go(page, only=only, second=other, inside=True)
    assert second.locator(".both-maps").is_visible()


def test_a_frame_omits_controls_of_the_whole_page(lab_at: Visit) -> None:
    page = lab_at(only=["sentence", "changes", "head"], inside=False)
    menu = part(page, "changes").locator("select")
    assert menu.is_visible()
    for gone in ("Share", "Copy as Python", "Beside another sentence", "Undo", "Save"):
        no_one_sees(page.get_by_text(gone, exact=True))
    assert not page.get_by_label("Attention temperature").is_visible()
    menu.select_option("causal")
    page.wait_for_function("() => location.hash.includes('causal')")
    assert held(page)["only"] == ["sentence", "changes", "head"]
    go(page, only=["sentence", "outcome"], inside=False)
    assert page.get_by_role("button", name="Hide crown").is_visible()
    go(page, only=["changes", "motion"])
    assert page.get_by_label("Attention temperature").is_visible()


@pytest.mark.parametrize("width", [736, 390])
def test_headline_and_map_show_the_effect_of_removing_a_head(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width, only=["sentence", "headline", "map"], inside=False)
    assert seen(page) == ["sentence", "map"]
    assert part(page, "headline").is_visible()
    [[(word, _)]] = qkv.load().predict(TEXT, top_k=1)
    assert f"uess: {word}, " in part(page, "headline").inner_text()
    no_one_sees(page.locator(".acts, .role"))
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
def test_the_residual_stream_of_a_layer_may_stand_alone(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width, only=["sentence", "block"], inside=False)
    assert seen(page) == ["sentence", "steps"]
    title = part(page, "steps").locator(".walk-panel h3")
    assert "The residual connection: the MLP's input is added" in title.inner_text()
    nodes = part(page, "steps").get_by_role("tab").all_inner_texts()
    assert " ".join(" ".join(nodes).split()) == "1 X 2 out 3 R 4 N1 5 mlp 6 R2 7 Y"
    flows = {f"{name} {to}" for name, to, _ in page.locator(".ribbon").evaluate_all(RIBBONS)}
    # no steps between `X` and `out`, but a ribbon from `X` to `out`
    assert flows == {"X out", "X R", "out R", "R N1", "N1 mlp", "N1 R2", "mlp R2", "R2 Y"}
    page.get_by_role("tab", name="out").click()
    assert "The output projection" in title.inner_text()
    page.get_by_role("button", name="Next ▶").click()
    assert "the input is added" in title.inner_text()
    gone = ".walk-panel .bar, .walk-panel canvas, .row-table"
    no_one_sees(part(page, "steps").locator(gone))
    assert tight(page)
    block, panel = (page.locator(name).bounding_box() for name in (".block", ".steps-panel"))
    if width == 736:
        assert block["x"] + block["width"] <= panel["x"]
    else:
        assert block["y"] + block["height"] <= panel["y"]
        assert block["y"] + block["height"] < 640  # of a phone's 844 pixels


def test_the_temperature_stands_beside_the_original(lab_at: Visit) -> None:
    edits = [{"op": "scale", "value": 1}]
    only = ["sentence", "temperature", "head"]
    page = lab_at(only=only, inside=False, edits=edits, beside=True)
    assert seen(page) == ["sentence", "changes", "head"]
    slider = page.get_by_label("Attention temperature")
    assert slider.input_value() == "-2.5"  # the base-2 logarithm of (1 / sqrt(32)) / 1
    assert not part(page, "changes").locator("select").is_visible()
    assert part(page, "before").is_visible()
    slider.fill("2.5")
    until(lambda: held(page)["edits"] == [{"op": "scale", "value": pytest.approx(1 / 32)}])


def test_every_word_has_the_same_colour_and_padding(lab_at: Visit) -> None:
    page = lab_at(only=["sentence"], inside=False)
    chips = page.locator(".chip:not(.special)")
    assert "position" in " ".join(chips.evaluate_all("all => all.map((it) => it.className)"))
    looks = "all => all.map((it) => ['color', 'padding'].map((name) => getComputedStyle(it)[name]))"
    assert len({tuple(found) for found in chips.evaluate_all(looks)}) == 1
