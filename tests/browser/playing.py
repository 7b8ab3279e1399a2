"""The live page on the bundled model, and helpers that read its heads."""

import base64
import json
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from playwright.sync_api import Locator, Page

from processes import until
from qkv.models import Model
from qkv.see.draw.colours import shade
from qkv.see.page.engine import engine_part, engine_payload
from qkv.see.page.html import WITH_WORKER, document, fragment
from qkv.see.page.payload import payload_of

from .edited import Edit
from .play import STILL, address, after, at
from .support import STATIC, Visit, read

TEXT = "She wore a crown on her [MASK]."  # 10 tokens
POSITION, HEAD = 7, (3, 2)  # the position of [MASK]; the head on which the page opens
START: dict[str, Any] = {"text": TEXT, "edits": [], "position": POSITION, "query": POSITION}
START |= {"layer": HEAD[0], "head": HEAD[1]}
STATE = START | {"inside": True, "tab": "heads"}
ROLES = {"1.1": ["previous", 0.97], "3.2": ["preposition to noun", 0.4049]}
# Returns the height, the width and the pixels (base64) of a canvas.
PIXELS = """(canvas) => {
  const copy = canvas.cloneNode();
  const pen = copy.getContext('2d', { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, copy.width, copy.height);
  return [copy.height, copy.width, new Uint8Array(data).toBase64()];
}"""


def live_page(model: Model) -> str:
    """Return a page that opens on a text and a head, with roles for two heads."""
    payload = payload_of(
        "play", "a title", [], start=START | {"hide": [4]}, stories=[], roles=ROLES
    )
    engine = engine_part(engine_payload(model))
    return document("a title", f"{fragment(payload, STATIC)}\n{engine}", "auto", WITH_WORKER)


def opened(visit: Visit, html: str, **state: Any) -> Page:
    """Open the page in a state, by default with the parts that the button "Look inside" shows."""
    return at(visit, html, **STATE | state)


def go(page: Page, **state: Any) -> None:
    """Take the page to a state; the drawer keeps its tab."""
    tab = {"tab": held(page).get("tab", "sentence")}
    hash_ = address(**STATE | tab | state)
    after(page, lambda: page.evaluate("hash => { location.hash = hash; }", hash_))


def held(page: Page) -> dict[str, Any]:
    """Return the state in the page's address.

    After a run, the page writes its state into its URL, after the #. A field that the URL omits has
    its value in START.
    """
    pairs = dict(parse_qsl(page.evaluate("location.hash").lstrip("#")))
    return START | {
        name: value if name == "text" else json.loads(value) for name, value in pairs.items()
    }


def open_tab(page: Page, name: str) -> None:
    """Open a tab of the lab's drawer."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if tab.get_attribute("aria-selected") != "true":
        after(page, tab.click)


def open_head(page: Page) -> tuple[int, int]:
    """Return the layer and the number of the open head."""
    title = page.locator("[data-part=head] h3").last.inner_text()
    layer, head = title.split(" · ")[0].removeprefix("Head ").split(".")
    return int(layer), int(head)


def masks(edits: list[Edit]) -> list[tuple[int, ...]]:
    """Return the edges that are masked by edits from a page's address.

    Each edge is a tuple: the query and the key, then the layer if the edit names a layer, then the
    head if the edit names a head.
    """
    return [
        tuple([query, key, *(edit[name] for name in ("layer", "head") if name in edit)])
        for edit in edits
        for query, first, last in edit["rows"]
        for key in range(first, last + 1)
    ]


def later(page: Page) -> None:
    """Move the page's time forward: changes within a second of each other are undone together."""
    page.evaluate(
        "() => { const now = performance.now.bind(performance);"
        " performance.now = () => now() + 2000; }"
    )


def has_moved(page: Page) -> None:
    """Wait until no line, word or colour moves to a new value."""
    moves = "document.getAnimations().some((one) => one instanceof CSSTransition)"
    until(lambda: not page.evaluate(moves), "nothing moves")


def unfold(details: Locator) -> None:
    """Open a `<details>` with the keyboard, and wait until its contents are drawn.

    A click can miss a summary that a redraw moves. If a redraw takes the focus away before the key
    arrives, the key is pressed again.
    """

    def is_open() -> bool:
        if details.get_attribute("open") is None:
            details.locator("> summary").press("Enter")
        return details.get_attribute("open") is not None

    until(is_open)
    details.evaluate(STILL)


def laid_out(page: Page) -> None:
    """Wait until the layer's data flow is drawn, which needs the layer's parameters."""
    tabs = page.locator("[data-part=steps]").get_by_role("tab", include_hidden=True)
    until(lambda: tabs.count() > 12)


def table(page: Page) -> np.ndarray:
    """Return all weights of the shown head from its table; masked weights are NaN."""
    details = page.locator("[data-part=head] > details")
    unfold(details)
    details.locator("tbody tr").first.wait_for(state="attached")
    rows = details.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((td) => td.textContent))"
    )
    return np.array([[np.nan if x == "hidden" else read(x) for x in row] for row in rows])


def shows(page: Page, weights: np.ndarray) -> None:
    """Check that the table shows these weights in percent; masked weights must be 0."""
    until(lambda: table(page).shape == weights.shape)
    found = table(page)
    assert (weights[np.isnan(found)] == 0).all()
    near = np.where(weights < 0.0994, 0.00051, 0.00501)  # percentages below 10 have one more digit
    assert (np.abs(np.nan_to_num(found) - weights) <= near).all()


def cells(page: Page) -> tuple[float, float, float, float]:
    """Return the layout of the heat map's cells: left and top edge, width and height of a cell."""
    box = page.locator("[data-part=head] .map-box")
    left, top, wide, tall = map(float, str(box.get_attribute("data-cells")).split())
    return left, top, wide, tall


def heat_map(page: Page) -> np.ndarray:
    return picture(page.locator("[data-part=head] .map-box canvas"))


def picture(canvas: Locator) -> np.ndarray:
    """Return the colours of a canvas, (height, width, 3), one pixel per CSS pixel."""
    return _pixels(*canvas.evaluate(PIXELS))


def pictures(all_: Locator) -> dict[str, np.ndarray]:
    """Return the colours of the canvas in each node that has one, by the node's `data-head`."""
    found = all_.evaluate_all(
        "all => all.filter((one) => one.querySelector('canvas')).map((one) =>"
        f" [one.dataset.head, ({PIXELS})(one.querySelector('canvas'))])"
    )
    return {head: _pixels(*packed) for head, packed in found}


def _pixels(height: int, width: int, packed: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed), np.uint8).reshape(height, width, 4)[..., :3]


def cell_colours(page: Page) -> np.ndarray:
    """Return the colour of each heat map cell, (T, T, 3), sampled where no frame is drawn."""
    (left, top, wide, tall), found = cells(page), heat_map(page)
    size = page.locator("[data-part=head] .queries [role=option]").count()
    at = np.arange(size) + 0.3
    return found[np.ix_((top + at * tall).astype(int), (left + at * wide).astype(int))].astype(int)


def like(colours: np.ndarray, shares: np.ndarray, within: int = 2) -> None:
    """Check that colours are those of shares from -1 to 1."""
    expected = [list(bytes.fromhex(shade(float(share))[1:])) for share in shares.flat]
    np.testing.assert_allclose(colours.reshape(-1, 3).astype(int), expected, atol=within, rtol=0)
