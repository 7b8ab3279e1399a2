"""Texts made by hand, and how a page about them is read."""

from collections.abc import Callable
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, TimeoutError

from qkv.see.analysis.head_weights import Axis, Heads
from qkv.see.page.html import document, fragment
from qkv.see.page.payload import payload_of, start_at, text_payload

READOUT = """(said) => Object.fromEntries([
  ["", said.querySelector("span").textContent],
  ...[...said.querySelectorAll(".field")].map((field) =>
    [field.querySelector(".dim").textContent, field.querySelector("b").textContent]),
])"""
Visit = Callable[..., Page]  # the fixture `visit`, which opens a page
STEP = 1 / 65535  # of a weight in a page
WORDS = ["[CLS]", "the", "un", "##believ", "##able", "cat", "sat", "on", "the", "mat", "[SEP]"]
SPANS = [[0], [1], [2, 3, 4], [5], [6], [7], [8], [9], [10]]
STATIC = '<svg role="img" aria-label="static picture" width="120" height="80"></svg>'


def made(
    tokens: list[str], layers: int = 2, heads: int = 4, *, seed: int = 0, **more: Any
) -> Heads:
    """A causal text of random scores, whose weights are their softmax."""
    random = np.random.default_rng(seed)
    size = len(tokens)
    scores = random.normal(size=(layers, heads, size, size)) * 2
    scores = np.where(np.tri(size, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return Heads(
        Axis(tokens, [token in ("[CLS]", "[SEP]") for token in tokens]),
        list(range(layers)),
        list(weights.astype(np.float32)),
        scores=dict(enumerate(scores)),
        scale=dict.fromkeys(range(layers), 0.25),
        norms=list(random.uniform(0.1, 5, size=(layers, heads, size))),
        **more,
    )


def whole_page(payload: dict[str, Any], static: str) -> str:
    return document(payload["title"], fragment(payload, static), payload["theme"])


def payload(*texts: Heads, layer: int = 0, head: int = 0, query: int = 0, **more: Any) -> Any:
    """What a page reads of texts."""
    more = {"merge": False} | more
    start = start_at(layer, head, query, chosen="it was requested", sentence="", **more)
    return payload_of("show", "a title", [text_payload(text, layer) for text in texts], start=start)


def page_of(*texts: Heads, **more: Any) -> str:
    """A page that shows texts."""
    return whole_page(payload(*texts, **more), STATIC)


def part_of(*texts: Heads, **more: Any) -> str:
    """The same as a part of some page."""
    return fragment(payload(*texts, **more), STATIC)


def sentence(page: Page) -> str:
    return page.locator(".sentence").first.inner_text()


def token(page: Page | Locator, position: int) -> Locator:
    """A query in the list on the left."""
    return page.locator(f".queries [data-i='{position}']").first


def keys(page: Page | Locator, text: int = 0) -> list[list[str]]:
    """The list on the right: what each entry is called and its numbers."""
    return (
        page.locator(".lines")
        .nth(text)
        .evaluate(
            "node => [...node.querySelectorAll('.key')].map((key) =>"
            " [key.querySelector('.name').textContent, key.querySelector('.value').textContent])"
        )
    )


def readout(page: Page | Locator) -> dict[str, str]:
    """What stands below the heat map: the names of its numbers and the numbers; "" is the title."""
    return page.locator(".readout").first.evaluate(f"said => ({READOUT})(said)")


def after_each(page: Page, names: list[str], within: str = "") -> list[dict[str, str]]:
    """The same after each of many keys, which what has the focus is given in the page itself."""
    return page.evaluate(
        f"""([names, within]) => {{
          let node = document.activeElement;
          while (node.shadowRoot) node = node.shadowRoot.activeElement;
          const said = node.getRootNode().querySelector(`${{within}} .readout`);
          return names.map((key) => {{
            const settings = {{ key, bubbles: true, composed: true, cancelable: true }};
            node.dispatchEvent(new KeyboardEvent("keydown", settings));
            return ({READOUT})(said);
          }});
        }}""",
        [names, within],
    )


def read(text: str) -> float:
    """A number as the page writes it; of one that is in per cent, too, the number itself."""
    if text in ("under 0.1%", "<0.1%"):
        return 0.0005
    if text.endswith("%") and " = " not in text:
        return read(text[:-1]) / 100
    return float(
        text.partition(" = ")[0].replace("\N{MINUS SIGN}", "-").replace("∞", "inf").replace(",", "")
    )


def press(page: Page, *names: str) -> None:
    for name in names:
        page.keyboard.press(name)


def pause(page: Page, milliseconds: int) -> None:
    """Wait so long by the page's own clock, then for two frames: what was due before is done.

    On a busy machine the page may be late, and then this is as late.
    """
    page.evaluate(
        """(milliseconds) => new Promise((done) => {
          const frame = () => requestAnimationFrame(() => requestAnimationFrame(done));
          setTimeout(frame, milliseconds);
        })""",
        milliseconds,
    )


def said(page: Page) -> str:
    """What the live region says, once it has said it."""
    pause(page, 200)  # it waits 150 ms for the last of many changes
    return page.locator("[role=status]").first.inner_text()


def tight(page: Page) -> bool:
    """Whether nothing is wider than the window, once a busy machine has laid the page out."""
    try:
        page.wait_for_function("document.scrollingElement.scrollWidth <= innerWidth", timeout=3000)
    except TimeoutError:
        return False
    return True
