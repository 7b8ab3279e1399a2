"""Helpers that open the live page in a state and act on it as a reader does."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Locator, Page

from .support import Visit, with_first

WINDOW = {"width", "height", "scheme", "alone"}  # the options of a page's window

# Records the request and the answer of each run in `runs`, except for aborted runs.
KEPT = """<script>
  window.runs = [];
  addEventListener("qkv", () => {
    const { run } = qkv;
    qkv.run = async (text, edits = [], options = {}) => {
      const found = await run(text, edits, options);
      runs.push({ text, edits, at: options.at, found });
      return found;
    };
  });
</script>"""


# Resolves as soon as the page is painted and the address holds the state of the page. The address
# then has the same fields as the link to the whole page. The comparison ignores the field `only`.
# If the address has this field, the comparison also ignores `view`.
REST = """() => new Promise((rested) => {
  const link = document.querySelector(".qkv-view").shadowRoot.querySelector(".whole");
  const fields = (address) => {
    const found = new URLSearchParams(new URL(address).hash.slice(1));
    found.delete("only");
    if (location.hash.includes("only=")) found.delete("view"); // the whole page is the lab
    return String(found);
  };
  const { dataset } = document.documentElement;
  const look = () =>
    dataset.qkv === "ready" && fields(link.href) === fields(location.href)
      ? rested()
      : setTimeout(look, 20);
  look();
})"""

# Resolves once a part stays unchanged for ten checks in a row. The page's timer starts the checks,
# so a page that is busy painting delays them.
STILL = """(part) => new Promise((still) => {
  let looks = 0;
  const changes = new MutationObserver(() => { looks = 0; });
  changes.observe(part, { subtree: true, childList: true, characterData: true, attributes: true });
  const look = () => {
    if (++looks <= 10) return setTimeout(look, 20);
    changes.disconnect();
    still();
  };
  look();
})"""


# Returns the widths of the visible lines above a sentence, by the token to which each leads.
LINES = """(stage) => {
  const words = [...stage.querySelectorAll(".words > *")];
  const box = stage.querySelector(".big").getBoundingClientRect();
  const lines = [...stage.querySelectorAll(".arcs path")];
  return lines.filter((path) => +path.style.strokeOpacity > 0.2).map((path) => {
    const { x, y } = path.getPointAtLength(path.getTotalLength());
    const away = (word) => {
      const { left, right, top } = word.getBoundingClientRect();
      return Math.hypot((left + right) / 2 - box.left - x, top - box.top - y);
    };
    const near = words.toSorted((a, b) => away(a) - away(b))[0];
    return [near.dataset.token, +path.style.strokeWidth];
  });
}"""
# Returns the number of lines in an <svg>, and the texts of the nodes that a line crosses. Of the
# rows of a node, it looks at those from number `first`.
CROSSED = """(stage, [lines, texts, first]) => {
  const svg = stage.querySelector(lines), frame = svg.getBoundingClientRect();
  const { x, y } = svg.viewBox.baseVal;
  const seen = (path) => +(path.style.strokeOpacity || 1) > 0;
  const paths = [...svg.querySelectorAll("path")].filter(seen);
  const points = paths.flatMap((path) => Array.from({ length: 201 }, (_, i) =>
    path.getPointAtLength(i / 200 * path.getTotalLength())));
  const crossed = [...stage.querySelectorAll(texts)].filter((node) => {
    const range = document.createRange();
    range.selectNodeContents(node.querySelector("bdi") ?? node);
    const boxes = [...range.getClientRects()].slice(first);
    return boxes.some(({ left, right, top, bottom }) => points.some((at) => {
      const [a, b] = [at.x - x + frame.left, at.y - y + frame.top];
      return a > left && a < right && b > top + 4 && b < bottom - 4;
    }));
  });
  return [paths.length, crossed.map((node) => node.textContent)];
}"""


def address(**state: Any) -> str:
    """Return the address's fragment for a state, as the page writes it."""

    def written(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    return "#" + urlencode(
        {name: value if name == "text" else written(value) for name, value in state.items()}
    )


def in_lab(html: str) -> str:
    """Return a page of `qkv.play` that opens in its lab instead of on its first screen."""
    assert '"view":"front"' in html
    return html.replace('"view":"front"', '"view":"lab"')


def opened_at(html: str, hash_: str) -> str:
    """Return a page that behaves as if opened at this fragment, and that records its runs."""
    script = f"<script>history.replaceState(null, '', {json.dumps(hash_)})</script>"
    return with_first(html, f"{script if hash_ else ''}{KEPT}")


def ready(page: Page) -> Page:
    page.locator("html[data-qkv=ready]").wait_for(timeout=60_000)
    return page


def at(visit: Visit, html: str, hash_: str = "", **options: Any) -> Page:
    """Open a page at a fragment, and wait until it is ready.

    The options are the state in the fragment, unless `hash_` is the fragment, and those of `visit`.
    """
    window = {name: options.pop(name) for name in WINDOW & options.keys()}
    fragment = hash_ or (address(**options) if options else "")
    return ready(visit(opened_at(html, fragment), **window))


def after(page: Page, act: Callable[[], object]) -> None:
    """Act, then wait until the result is painted and the address holds it."""
    ready(page)  # earlier actions must be painted first
    before = page.locator("html").get_attribute("data-painted")
    act()
    page.locator(f"html:not([data-painted='{before}'])").wait_for(timeout=30_000)
    rest(page)


def rest(page: Page) -> None:
    """Wait until the address holds the shown state: the page writes it after a delay."""
    page.evaluate(REST)


def changed(page: Page) -> list[dict[str, Any]]:
    """Return the edits in the address."""
    held = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('edits')")
    return json.loads(held or "[]")


def part(page: Page, name: str) -> Locator:
    return page.locator(f"[data-part={name}]")


def chip(page: Page, name: str) -> Locator:
    return page.get_by_role("listbox", name="words of the sentence").get_by_role(
        "option", name=name
    )


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def shown(page: Page) -> str:
    """Return the page's text after the page has drawn everything.

    The page draws unfolded parts later, in separate tasks of the browser. So this function waits
    until the view stops changing.
    """
    view = page.locator(".view")
    view.evaluate(STILL)
    return view.inner_text()
