"""Tests of views without scripts: pictures in both themes, on phones, and an interactive graph."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from qkv.circuits import Result, plot
from qkv.see.draw.colours import TONES, shade

from .support import Visit


class Edge(NamedTuple):
    sender: str
    receiver: str
    score: float


EDGES = [
    Edge("attn.0.1", "attn.1.0.q", 1.0),
    Edge("embed", "attn.0.1.v", -0.5),
    Edge("attn.1.0", "mlp.1", 0.25),
    Edge("mlp.1", "logits", 0.125),
]
NODES = ["embed", "attn.0.0", "attn.0.1", "mlp.0", "attn.1.0", "attn.1.1", "mlp.1", "logits"]


def page_of(result: Any, **options: Any) -> str:
    return plot(result, **options)._document()


def a_map(columns: int = 2) -> Result:
    values = np.linspace(-1, 1, 2 * columns).reshape(2, columns)
    return Result(values, ("layer", "head"), of="score", title="made")


def rgb(color: str) -> str:
    return f"rgb({', '.join(str(part) for part in bytes.fromhex(color[1:]))})"


def colour(page: Page, what: str, of: str = "fill") -> str:
    found: str = page.locator(what).first.evaluate(f"(node) => getComputedStyle(node).{of}")
    return found


CELL, GROUND = ".qkv-picture rect[shape-rendering]", ".qkv-picture"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_has_the_colours_of_the_system_or_of_its_site(visit: Visit, scheme: str) -> None:
    page = visit(page_of(a_map()), scheme=scheme)
    other = {"light": "dark", "dark": "light"}[scheme]
    for now in (scheme, other):
        if now == other:
            page.evaluate("(theme) => { document.body.dataset.theme = theme; }", other)
        assert colour(page, CELL) == rgb(shade(-1, now))
        assert colour(page, GROUND, "backgroundColor") == rgb(TONES[now].paper)
        assert colour(page, ".qkv-picture text") == rgb(TONES[now].ink)


def test_a_theme_that_was_asked_for_stays(visit: Visit) -> None:
    page = visit(page_of(a_map(), theme="dark"), scheme="light")
    assert colour(page, CELL) == rgb(shade(-1, "dark"))


@pytest.mark.parametrize("width", [390, 1920])
def test_a_wide_map_scrolls_and_keeps_its_size(visit: Visit, width: int) -> None:
    page = visit(page_of(a_map(columns=14)), width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator(CELL).first.bounding_box()
    assert box
    assert box["width"] == pytest.approx(5.6 * len("-1.000") + 4, abs=0.1)
    panel = page.locator(".qkv-row > div").first
    assert panel.evaluate("(node) => node.scrollWidth > node.clientWidth") == (width == 390)


def said(page: Page) -> list[str]:
    """Return the visible lines below the graph."""
    found: list[str] = page.locator(".qkv-readout text, .qkv-hint text").evaluate_all(
        "(all) => all.filter((x) => getComputedStyle(x).visibility === 'visible')"
        ".map((x) => x.textContent)"
    )
    return found


def strong(page: Page) -> list[str]:
    """Return the titles of the edges that are not faint."""
    found: list[str] = page.locator(".qkv-edge").evaluate_all(
        "(all) => all.filter((x) => getComputedStyle(x).opacity === '1')"
        ".map((x) => x.querySelector('title').textContent)"
    )
    return found


def test_a_graph_shows_numbers_on_hover_and_keyboard_focus(visit: Visit) -> None:
    page = visit(page_of(SimpleNamespace(nodes=NODES, edges=EDGES)))
    hint = "Point at a node or an edge, or tap it, to read its numbers."
    assert said(page) == [hint]
    assert len(strong(page)) == 4
    page.get_by_text("0.1", exact=True).hover()
    node = ["attn.0.1 reads embed (v) -0.500", "writes to attn.1.0.q 1.000"]
    assert said(page) == node
    assert strong(page) == ["attn.0.1 → attn.1.0.q: 1.000", "embed → attn.0.1.v: -0.500"]
    page.mouse.move(0, 0)
    assert said(page) == [hint]
    for edge in EDGES:  # the strongest first
        page.keyboard.press("Tab")
        name = f"{edge.sender} → {edge.receiver}: {edge.score:.3f}"
        assert said(page) == [name]
        assert strong(page) == [name]
    page.get_by_text("0.1", exact=True).hover()
    assert said(page) == node  # the hovered node, not the focused edge
    page.mouse.move(0, 0)
    page.keyboard.press("Tab")
    assert said(page) == ["embed writes to attn.0.1.v -0.500"]


def test_a_graph_shows_numbers_on_tap(chromium: Browser) -> None:
    context = chromium.new_context(has_touch=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.set_content(page_of(SimpleNamespace(nodes=NODES, edges=EDGES)))
    page.get_by_text("MLP 1", exact=True).tap()
    assert said(page) == ["mlp.1 reads attn.1.0 0.250", "writes to logits 0.125"]
    context.close()
