"""Handmade texts, pages that show these texts, and helpers that read the pages."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, TimeoutError

from models.sizes import SMALL
from qkv.see.analysis.head_weights import Axis, Heads
from qkv.see.page.html import document, fragment
from qkv.see.page.payload import payload_of, start_at, text_payload

READOUT = """(said) => Object.fromEntries([
  ["", said.querySelector("span").textContent],
  ...[...said.querySelectorAll(".field")].map((field) =>
    [field.querySelector(".dim").textContent, field.querySelector("b").textContent]),
])"""
# The beginning of a test's own page. Without a charset, Chromium guesses the encoding from what it
# has read so far, so the guess depends on how busy the machine is.
CHARSET = '<meta charset="utf-8">'  # within the first 1,024 bytes of a page
HEAD = f'<!doctype html><html lang="en">{CHARSET}'
Visit = Callable[..., Page]  # the fixture `visit`, which opens a page
# Gives a page the function `idle`, which `idle` below calls. It counts the messages that turns.js
# posts to begin its next task, until that task has ended. A test's own clock does not stop it.
IDLE = """{
  const { setTimeout } = globalThis;
  let tasks = 0;
  const { postMessage } = MessagePort.prototype;
  MessagePort.prototype.postMessage = function (...told) {
    tasks += Number(told[0] === null);
    postMessage.apply(this, told);
  };
  const { set } = Object.getOwnPropertyDescriptor(MessagePort.prototype, "onmessage");
  Object.defineProperty(MessagePort.prototype, "onmessage", {
    set(hear) {
      set.call(this, (event) => {
        try {
          hear(event);
        } finally {
          tasks -= Number(event.data === null);
        }
      });
    },
  });
  globalThis.idle = async () => {
    while (tasks) await new Promise((next) => setTimeout(next));
  };
}"""
CELLS = "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
STEP = 1 / 65535  # the resolution of a weight in a page
WORDS = ["[CLS]", "the", "un", "##believ", "##able", "cat", "sat", "on", "the", "mat", "[SEP]"]
SPANS = [[0], [1], [2, 3, 4], [5], [6], [7], [8], [9], [10]]
STATIC = '<svg role="img" aria-label="static picture" width="120" height="80"></svg>'


def made(
    tokens: list[str], layers: int = 2, heads: int = 4, *, seed: int = 0, **more: Any
) -> Heads:
    """Return a text with random attention scores under a causal mask.

    The attention weights are the softmax of the scores.
    """
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


def config_of(family: str, **more: Any) -> dict[str, Any]:
    """Return the config of a small model of a family."""
    sizes, classes = SMALL[family]
    return {"model_type": family, "architectures": [classes[0]], **sizes, **more}


def with_first(html: str, script: str) -> str:
    """Return a page in which `script` runs before all other scripts."""
    assert CHARSET in html
    return html.replace(CHARSET, CHARSET + script, 1)


def whole_page(payload: dict[str, Any], static: str) -> str:
    return document(payload["title"], fragment(payload, static), payload["theme"])


def payload(*texts: Heads, layer: int = 0, head: int = 0, query: int = 0, **more: Any) -> Any:
    """Return the data of a page that shows texts."""
    more = {"merge": False} | more
    start = start_at(layer, head, query, chosen="it was requested", sentence="", **more)
    return payload_of("show", "a title", [text_payload(text, layer) for text in texts], start=start)


def page_of(*texts: Heads, **more: Any) -> str:
    """Return a page that shows texts."""
    return whole_page(payload(*texts, **more), STATIC)


def part_of(*texts: Heads, **more: Any) -> str:
    """Return an HTML fragment that shows texts, for a page of any kind."""
    return fragment(payload(*texts, **more), STATIC)


def idle(page: Page | Locator) -> None:
    """Wait until the page has drawn all that it draws in short tasks, one after the other.

    On a slow machine, a test could read or act between two of these tasks. The page must have been
    opened with IDLE.
    """
    (page if isinstance(page, Page) else page.page).evaluate("idle()")


def sentence(page: Page) -> str:
    idle(page)
    return page.locator(".sentence").first.inner_text()


def token(page: Page | Locator, position: int) -> Locator:
    """Return a query in the list on the left."""
    return page.locator(f".queries [data-i='{position}']").first


def keys(page: Page | Locator, text: int = 0) -> list[list[str]]:
    """Return the name and the value of each entry in the list on the right."""
    idle(page)
    return (
        page.locator(".lines")
        .nth(text)
        .evaluate(
            "node => [...node.querySelectorAll('.key')].map((key) =>"
            " [key.querySelector('.name').textContent, key.querySelector('.value').textContent])"
        )
    )


def shown_weights(page: Page | Locator) -> list[float]:
    """Return the weights in the list on the right."""
    return [read(value) if value.strip("·") else 0.0 for _, value in keys(page)]


def readout(page: Page | Locator) -> dict[str, str]:
    """Return the readout below the heat map: its numbers by their names, its title under ""."""
    idle(page)
    return page.locator(".readout").first.evaluate(f"said => ({READOUT})(said)")


def after_each(page: Page, names: list[str], within: str = "") -> list[dict[str, str]]:
    """Send key presses to the focused node in the page; return the readout after each press."""
    idle(page)
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
    """Parse a number as the page writes it; percentages become shares."""
    if text in ("under 0.1%", "<0.1%"):
        return 0.0005
    if text.endswith("%") and " = " not in text:
        return read(text[:-1]) / 100
    return float(
        text.partition(" = ")[0].replace("\N{MINUS SIGN}", "-").replace("∞", "inf").replace(",", "")
    )


def press(page: Page, *names: str) -> None:
    """Press keys, each of them once the page has drawn what came before it."""
    for name in names:
        idle(page)
        page.keyboard.press(name)
    idle(page)


def drawn(tokens: Iterable[str]) -> list[str]:
    """Return tokens as a page draws them: with a sign for each gap."""
    return ["___" if token == "[MASK]" else token for token in tokens]


def pause(page: Page, milliseconds: int) -> None:
    """Wait for a timer in the page, then for two animation frames.

    The timer runs for `milliseconds`. When the wait ends, the page has finished all work that was
    due earlier. If a busy machine delays the page, the machine delays this wait as much.
    """
    page.evaluate(
        """(milliseconds) => new Promise((done) => {
          const frame = () => requestAnimationFrame(() => requestAnimationFrame(done));
          setTimeout(frame, milliseconds);
        })""",
        milliseconds,
    )


def hold_clock(page: Page) -> None:
    """Stop the page's clock: from here on, only `page.clock.run_for` moves it."""
    page.clock.install(time=0)
    page.clock.pause_at(60_000)


def said(page: Page) -> str:
    """Return the text of the live region, once the region has announced it."""
    idle(page)
    pause(page, 200)  # the region announces a text 150 ms after the last change
    return page.locator("[role=status]").first.inner_text()


def tight(page: Page) -> bool:
    """Return whether nothing is wider than the window, once the page is laid out."""
    try:
        page.wait_for_function(
            "document.scrollingElement.scrollWidth <= innerWidth", timeout=30_000
        )
    except TimeoutError:
        return False
    return True
