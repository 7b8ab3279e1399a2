"""The live page in tests: how it is opened in a state, and what a reader does there."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Locator, Page

# Keeps what the model was asked and what it answered; `runs` has those that were not given up.
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


# Ends once what was asked for is painted and the address is that of the state, as the link to the
# whole page has it but for `only`.
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

# Ends once a part has not changed for ten looks by the clock of the page, which painting delays.
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


def address(**state: Any) -> str:
    """What stands behind the # for a state, as the page writes it."""

    def written(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    return "#" + urlencode(
        {name: value if name == "text" else written(value) for name, value in state.items()}
    )


def in_lab(html: str) -> str:
    """A page of `qkv.play` as if it opened in its lab, and not on its first screen."""
    assert '"view":"front"' in html
    return html.replace('"view":"front"', '"view":"lab"')


def opened_at(html: str, hash_: str) -> str:
    """A page as if it were opened at such an address, which also keeps the runs."""
    script = f"<script>history.replaceState(null, '', {json.dumps(hash_)})</script>"
    return html.replace("<head>", f"<head>{script if hash_ else ''}{KEPT}", 1)


def ready(page: Page) -> Page:
    page.locator("html[data-qkv=ready]").wait_for(timeout=60_000)
    return page


def after(page: Page, act: Callable[[], object]) -> None:
    """Does something, and waits until what follows is painted and stands in the address."""
    ready(page)  # what was done before it is painted
    before = page.locator("html").get_attribute("data-painted")
    act()
    page.locator(f"html:not([data-painted='{before}'])").wait_for(timeout=30_000)
    rest(page)


def rest(page: Page) -> None:
    """Waits until the address is that of what is shown, which the page writes when it rests."""
    page.evaluate(REST)


def changed(page: Page) -> list[dict[str, Any]]:
    """The edits that stand in the address."""
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
    """All that the page says once all of it is drawn: what unfolds is, in tasks of its own."""
    view = page.locator(".view")
    view.evaluate(STILL)
    return view.inner_text()
