"""The map of the model in the live page: its pictures, figures and switches against the library."""

import re

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from qkv.models import Model
from qkv.see.draw.colours import shade

from .edited import Edit
from .engine import by_the_library, shares
from .outcome import is_percent
from .playing import (
    HEAD,
    POSITION,
    TEXT,
    cell_colours,
    go,
    held,
    like,
    opened,
    pictures,
    shows,
    until,
)
from .support import Visit, press, tight

HEADS = [(layer, head) for layer in range(4) for head in range(6)]
HIDDEN: Edit = {"op": "hide", "token": 4}


def cell(page: Page, layer: int, head: int) -> Locator:
    return page.locator(f"[data-part=map] [data-head='{layer}.{head}']")


def power(page: Page, layer: int, head: int) -> Locator:
    """Choose a head, and return its switch."""
    cell(page, layer, head).click()
    return page.get_by_role("switch", name=f"use head {layer}.{head}")


def colours(values: np.ndarray) -> np.ndarray:
    """Return the colours of values, (T, T, 3)."""
    return np.array([[list(bytes.fromhex(shade(float(x))[1:])) for x in row] for row in values])


def bounds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest allowed colour of each cell; a picture has 255 steps."""
    least, most = colours(values - 0.004), colours(values + 0.004)
    return np.minimum(least, most) - 2, np.maximum(least, most) + 2


def come_to_show(page: Page, values: np.ndarray) -> None:
    """Wait until the pictures of all heads, drawn a few at a time, show these values."""
    within = {f"{layer}.{head}": bounds(values[layer, head]) for layer, head in HEADS}

    def drawn() -> bool:
        found = pictures(page.locator("[data-part=map] .cell-head"))
        return found.keys() == within.keys() and all(
            found[head].shape == low.shape and ((found[head] >= low) & (found[head] <= high)).all()
            for head, (low, high) in within.items()
        )

    until(drawn)


def figures(page: Page) -> dict[tuple[int, int], str]:
    """Return the figures of all heads that have one."""
    pairs = page.locator("[data-part=map] .cell-head").evaluate_all(
        "all => all.map((one) => [one.dataset.head, one.querySelector('.figure').textContent])"
    )
    split = {tuple(map(int, name.split("."))): text for name, text in pairs}
    return {head: text for head, text in split.items() if text}


@pytest.mark.parametrize("edits", [[], [HIDDEN]], ids=["as it is", "a word hidden"])
def test_every_picture_is_the_pattern_of_its_head(
    lab_at: Visit, model: Model, edits: list[Edit]
) -> None:
    expected = by_the_library(model, TEXT, edits).pattern
    page = lab_at(edits=edits)
    come_to_show(page, expected)


def test_layers_go_upward_and_heads_say_their_roles(page: Page) -> None:
    names = page.locator("[data-part=map] .cell-name").all_inner_texts()
    assert names == [f"{layer}.{head}" for layer in (3, 2, 1, 0) for head in range(6)]
    heights = [cell(page, layer, 0).bounding_box()["y"] for layer in range(4)]
    assert heights == sorted(heights, reverse=True)
    said = {head: cell(page, *head).get_attribute("aria-label") for head in HEADS}
    assert said.pop((1, 1)) == "head 1.1, usually attends to the word before"
    assert said.pop((3, 2)) == "head 3.2, in, on, of usually attend to the noun"
    assert all(text.endswith(", mixed") for text in said.values())
    assert cell(page, *HEAD).get_attribute("aria-pressed") == "true"
    signs = {(1, 1): "←", (3, 2): "a", (0, 0): "·"}
    assert {name: cell(page, *name).locator(".role").inner_text() for name in signs} == signs
    assert page.locator(".role-list li").all_inner_texts() == [
        "← usually attends to the word before: 1 head",
        "a in, on, of usually attend to the noun: 1 head",
        "· mixed: 22 heads",
    ]


def test_heads_that_were_not_measured_have_no_role(quick: Visit, html: str) -> None:
    known = '"roles":{"1.1":["previous",0.97],"3.2":["preposition to noun",0.4049]}'
    assert known in html
    page = opened(quick, html.replace(known, '"roles":{}'))
    assert cell(page, 1, 1).get_attribute("aria-label") == "head 1.1, not known"
    assert "mixed" not in page.locator("[data-part=map]").inner_text()
    assert page.locator(".chosen p").inner_text() == "Head 3.2: not known."
    assert page.locator(".role-list li").all_inner_texts() == ["· not known: 24 heads"]


def test_a_switch_removes_its_head_and_puts_it_back(page: Page, model: Model) -> None:
    shows(page, by_the_library(model, TEXT).pattern[HEAD])
    power(page, 1, 0).click()
    until(lambda: held(page)["edits"] == [{"op": "ablate", "layer": 1, "head": 0}])
    until(lambda: page.locator(".power").get_attribute("aria-checked") == "false")
    own = background(page.locator(".power"))
    shows_without(page, model, (1, 0))
    assert "removed" in str(cell(page, 1, 0).get_attribute("aria-label"))
    power(page, 2, 5).click()
    until(lambda: len(held(page)["edits"]) == 2)
    shows_without(page, model, (1, 0), (2, 5))
    power(page, 1, 0).click()
    until(lambda: held(page)["edits"] == [{"op": "ablate", "layer": 2, "head": 5}])
    shows_without(page, model, (2, 5))
    assert own == background(page.locator(".power"), "--changed")


def shows_without(page: Page, model: Model, *heads: tuple[int, int]) -> None:
    """Open a head, and check its weights after the removal of other heads."""
    cell(page, *HEAD).click()
    shows(page, model.trace(TEXT, ablate=heads)["pattern", 3][0, 2])


def background(node: Locator, of: str | None = None) -> str:
    """Return a node's background colour, or the colour of a custom property of its style."""
    return node.evaluate(
        "(node, of) => { if (of) { node = node.cloneNode(); node.style.background = `var(${of})`;"
        " document.querySelector('.qkv-view').shadowRoot.querySelector('.view').append(node); }"
        " return getComputedStyle(node).backgroundColor; }",
        of,
    )


def test_one_head_of_a_removed_layer_is_put_back(lab_at: Visit, model: Model) -> None:
    page = lab_at(edits=[{"op": "ablate", "layer": 2}])
    power(page, 2, 4).click()
    others = [(2, head) for head in range(6) if head != 4]
    until(lambda: [(e["layer"], e["head"]) for e in held(page)["edits"] if "head" in e] == others)
    shows_without(page, model, *others)
    title = page.locator("[data-part=head] h3")
    assert "removed" not in title.inner_text()
    cell(page, 2, 5).click()
    until(lambda: title.inner_text() == "Head 2.5 · removed: it adds nothing")


@pytest.mark.parametrize("edits", [[], [HIDDEN, {"op": "ablate", "layer": 3, "head": 0}]])
def test_effects_of_removing_heads_match_the_library(
    lab_at: Visit, model: Model, edits: list[Edit]
) -> None:
    page = lab_at(edits=edits, colouring="effect")
    removed = {(edit["layer"], edit["head"]) for edit in edits if edit["op"] == "ablate"}
    until(lambda: figures(page).keys() == set(HEADS) - removed)
    before = probabilities(model, edits)
    first = int(before.argmax())
    found = figures(page)
    for layer, head in found:
        after = probabilities(model, [*edits, {"op": "ablate", "layer": layer, "head": head}])
        moved = np.abs(before - after).sum() / 2
        assert is_percent(found[layer, head], moved)
        said = str(cell(page, layer, head).get_attribute("aria-label"))
        shown = re.findall(r"under 0\.1%|[\d.]+%", said)[-2:]
        assert all(map(is_percent, shown, (before[first], after[first])))
    assert "total variation" in page.locator("[data-part=map] .note").first.inner_text()


def probabilities(model: Model, edits: list[Edit]) -> np.ndarray:
    return shares(by_the_library(model, TEXT, edits).logits[[POSITION]])[0]


def test_the_difference_from_the_original(page: Page, model: Model) -> None:
    go(page, colouring="change")
    assert set(figures(page).values()) == {"0%"}
    go(page, edits=[HIDDEN], colouring="change")
    before = by_the_library(model, TEXT).pattern
    after = by_the_library(model, TEXT, [HIDDEN]).pattern
    far = np.abs(after - before).sum(-1).mean(-1) / 2
    until(lambda: set(figures(page).values()) != {"0%"})
    found = figures(page)
    for at in HEADS:
        assert is_percent(found[at], far[at])
    come_to_show(page, after - before)
    changed = (after - before)[HEAD]
    like(cell_colours(page), changed)


def test_heads_by_keyboard(page: Page) -> None:
    cell(page, *HEAD).focus()
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    expect(cell(page, 2, 4)).to_be_focused()
    assert (held(page)["layer"], held(page)["head"]) == HEAD
    press(page, "Enter")
    until(lambda: (held(page)["layer"], held(page)["head"]) == (2, 4))
    assert cell(page, 2, 4).get_attribute("aria-pressed") == "true"
    press(page, "Shift+Tab", " ")
    until(lambda: held(page)["edits"] == [{"op": "ablate", "layer": 2, "head": 4}])


@pytest.mark.parametrize("width", [390, 800, 1280, 1920])
def test_the_map_fills_its_band(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width, tab="heads")
    band = page.locator("[data-region=map]").bounding_box()
    boxes = page.locator("[data-part=map] :is(.power, .cell-head)").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    assert band is not None
    assert len(boxes) == len(HEADS) + 1
    assert max(box["right"] for box in boxes) >= band["x"] + band["width"] - 10
    assert min(box["left"] for box in boxes) <= band["x"] + 32  # the layer's name is beside it
    for box in boxes:
        assert min(box["width"], box["height"]) >= 44 - 0.5
    assert tight(page)
