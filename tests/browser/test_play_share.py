"""Tests of sharing: the card's picture and headline, the saved page, and dares."""

import re
import struct
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import qkv
from qkv.models import Model

from .engine import by_the_library, shares
from .outcome import is_percent
from .play import address, after, button, changed, ready
from .support import Visit
from .test_play_front import WRAPPED

TEXT = "She drank a glass of [MASK]."
HIDE = [{"op": "hide", "token": 4}]
ROW = {"op": "row", "layer": 3, "head": 2, "query": 6, "weights": [0, 0, 1, 0, 0, 0, 0, 0, 0]}
MASK = {"op": "mask", "query": 6, "key": 4}
VALUE = {"op": "add", "at": "resid_pre", "layer": 2, "token": 4, "vector": [0.5] * 192}
# Each edit, and the order with which the card's headline begins.
KINDS: list[tuple[list[dict[str, Any]], str]] = [
    (HIDE, "Hide glass"),
    ([*HIDE, {"op": "hide", "token": 2}], "Hide drank and glass"),
    ([{"op": "ablate", "layer": 3, "head": 2}], "Turn off head 3.2"),
    ([{"op": "ablate", "layer": 3}], "Turn off the heads of layer 3"),
    ([{"op": "swap", "token": 4, "with": "plate"}], "Put plate in place of glass"),
    ([{"op": "causal"}], "Hide all later words"),
    ([MASK], "Hide glass from the gap"),
    ([MASK | {"layer": 3, "head": 2}], "Hide glass from the gap in head 3.2"),
    ([MASK | {"key": key} for key in (2, 4)], "Hide 2 links"),
    ([{"op": "scale", "value": 0.0442}], "Use attention temperature 4.00"),
    ([ROW], "Set a row of weights in head 3.2"),
    ([VALUE], "Take the residual stream before layer 2 at glass plus a vector"),
    ([*HIDE, {"op": "ablate", "layer": 3, "head": 2}], "Hide glass and turn off head 3.2"),
    ([*HIDE, {"op": "causal"}, {"op": "ablate", "layer": 0}], "Make these changes"),
]
# Records the texts that are drawn: the text, its ends from left to right, and its baseline.
DRAWN = """() => {
  const { fillText } = CanvasRenderingContext2D.prototype;
  window.drawn = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    if (this.canvas.width === 1200) {
      const { width } = this.measureText(text);
      const left = x - { left: 0, center: width / 2, right: width }[this.textAlign];
      drawn.push([text, left, left + width, y]);
    }
    fillText.call(this, text, x, y, ...more);
  };
}"""


@pytest.fixture(scope="module")
def html() -> str:
    return qkv.play()._document()


def guess(page: Page) -> str:
    return page.locator(".front > [data-part=stage] .guess b").last.inner_text()


def share(page: Page) -> str:
    """Open the part for sharing, record the texts of the card, and return what it says."""
    page.evaluate(DRAWN)
    button(page, "Share").click()
    return str(page.locator(".share .card").get_attribute("aria-label"))


def best(model: Model, text: str, edits: list[dict[str, Any]]) -> tuple[str, float]:
    """Return the likeliest word at the gap or, for a decoder, after the text."""
    if not model.generates:
        return model.predict(text, 1, edit=edits)[0][0]
    found = shares(by_the_library(model, text, edits).logits)[-1]
    return model.decode([int(found.argmax())]).strip(), found.max()


@pytest.mark.parametrize(("edits", "order"), KINDS, ids=[order for _, order in KINDS])
def test_the_card_has_a_true_headline_for_each_kind_of_change(
    quick_at: Visit, exact: Model, edits: list[dict[str, Any]], order: str
) -> None:
    page = quick_at(view="front", text=TEXT, edits=edits)
    label = share(page)
    (was, before), (now, share_) = (best(exact, TEXT, some) for some in ([], edits))
    effect = f"it still says {now}" if was == now else f"{was} becomes {now}"
    headline = f"{order}, and {effect}."
    assert label.startswith(f"{headline} She drank a glass of {was} (")
    texts = [text for text, *_ in page.evaluate("drawn")]
    assert "".join(texts).replace(" ", "").startswith(headline.replace(" ", ""))
    shown = [text.removeprefix("not sure, ") for text in texts if re.search(r"\d%$", text)]
    for word, value in ((was, before), (now, share_)):
        assert word in texts
        assert any(is_percent(text, value) for text in shown)
    assert label.count("(hidden)") == sum(edit["op"] == "hide" for edit in edits)


def test_a_card_without_changes_tells_the_guess(quick_at: Visit, exact: Model) -> None:
    page = quick_at()
    word, value = best(exact, TEXT, [])
    headline, said = rf"Best guess: {word}, (.+%)\.", rf"She drank a glass of {word} \((.+%)\)\."
    numbers = re.fullmatch(f"{headline} {said}", share(page)).groups()
    assert all(is_percent(one, value) for one in numbers)
    expect(page.locator(".share .asks")).to_be_hidden()  # nobody can guess what is on the page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        WRAPPED[1],
        f"{'Very ' * 50}{TEXT}",
        "שלום עולם [MASK] טוב.",
        f"{'W' * 300} [MASK].",
        "",
    ],
)
def test_everything_on_a_card_is_inside_it(visit_at: Visit, text: str, scheme: str) -> None:
    edits = HIDE[: len(text.split()) > 4]
    page = visit_at(scheme=scheme, view="front", text=text, edits=edits)
    share(page)
    drawn = page.evaluate("drawn")
    assert drawn
    for said, left, right, y in drawn:
        assert said
        assert 20 <= left <= right <= 1180, said
        assert 20 <= y <= 620, said
    for one, other in combinations(drawn, 2):  # no two texts overlap
        beside = one[2] <= other[1] + 1 or other[2] <= one[1] + 1
        assert beside or abs(one[3] - other[3]) >= 14, (one, other)
    if text.count("[MASK]") and len(text) > 1:
        assert any(said.endswith("%") for said, *_ in drawn)  # the guess, also of a long sentence
    with page.expect_download() as saved:
        button(page, "Save the card").click()
    png = Path(saved.value.path()).read_bytes()
    assert png[:4] == b"\x89PNG"
    assert struct.unpack(">II", png[16:24]) == (1200, 630)


def test_a_card_names_the_model_and_an_address(chromium: Browser, html: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    home = project["project"]["urls"]["Documentation"].removeprefix("https://")
    context = chromium.new_context()
    host = "https://lessons.example.org/attention/play.html"
    context.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"))
    page = context.new_page()
    page.goto(host)
    share(ready(page))
    texts = [text for text, *_ in page.evaluate("drawn")]
    assert "model: books" in texts
    assert host.removeprefix("https://") in texts
    assert home not in texts
    assert button(page, "Save this page with your changes").count() == 0
    context.close()


def test_the_page_can_be_saved(visit: Visit, html: str) -> None:
    page = ready(visit(html))
    after(page, page.locator("[data-qkv-first]").click)
    now = guess(page)
    button(page, "Share").click()
    with page.expect_download() as saved:
        button(page, "Save this page with your changes").click()
    other = ready(visit(Path(saved.value.path()).read_text("utf-8")))
    assert guess(other) == now
    assert "glass" in other.locator("[aria-pressed=true].w").inner_text()
    after(other, other.locator("[data-qkv-first]").click)
    assert guess(other) == "wine"


def shared(page: Page) -> str:
    """Return the address of a dare, after the #."""
    button(page, "Share").click()
    page.get_by_label("ask readers first").check()
    button(page, "Copy the address").click()
    found = page.get_by_label("The address of this view").input_value()
    return "#" + found.partition("#")[2]


@pytest.mark.parametrize("answer", ["milk", "  TEA ", ""])
def test_a_dare_asks_first_and_then_answers(visit_at: Visit, exact: Model, answer: str) -> None:
    page = visit_at(view="lab", text=TEXT, edits=HIDE, inside=True)
    page = visit_at(shared(page))
    (was, _), (now, _) = (best(exact, TEXT, some) for some in ([], HIDE))
    assert (was, now) == ("wine", "tea")
    expect(page.locator(".front h2")).to_have_text("What will it say without glass?")
    view = page.locator(".view")
    assert was in view.inner_text()
    whole = "document.querySelector('.qkv-view').shadowRoot"
    said = f"[...{whole}.querySelectorAll('.front *')].filter((one) => one.checkVisibility())"
    labels = page.evaluate(f"{said}.map((one) => one.getAttribute('aria-label')).join()")
    live = page.evaluate(f"{whole}.querySelector('.sr[role=status]').textContent")
    for told in (view.inner_text(), labels, live):
        assert now not in told  # the answer is nowhere, not even for screen readers
    page.get_by_label("Your guess").fill(answer)
    after(page, lambda: page.keyboard.press("Enter"))
    assert guess(page) == now
    expect(page.locator(".outcome-headline")).to_contain_text("Without glass it says tea")
    assert changed(page) == HIDE
    assert "dare" not in page.url.partition("#")[2]
    verdict = page.locator(".verdict")
    if not answer:
        expect(verdict).to_be_hidden()
        return
    right = "You said TEA: you know this model."
    expect(verdict).to_have_text(right if "TEA" in answer else "You said milk. The model says tea.")
    after(page, page.locator(".w.off").click)
    expect(verdict).to_be_hidden()  # this answer belongs to the state before


def test_a_dare_of_the_decoder(visit_at: Visit) -> None:
    edits = [{"op": "ablate", "layer": 0}]
    state = address(view="front", text="She opened the door and", edits=edits)
    page = visit_at(f"#model=decoder&{state[1:]}&dare=true")
    expect(page.locator(".front h2")).to_have_text("What will it say without the heads of layer 0?")
    after(page, button(page, "See the answer").click)
    model = qkv.load("books-decoder", dtype="float64")
    word, _ = best(model, "She opened the door and", edits)
    assert guess(page) == word


@pytest.mark.parametrize(
    "hash_",
    [
        "",
        "#dare=true",
        address(view="front", text=TEXT, edits=HIDE),
        address(view="front", text=TEXT, edits=HIDE, dare=False),
    ],
)
def test_other_addresses_ask_nothing(visit_at: Visit, hash_: str) -> None:
    page = visit_at(hash_)
    assert guess(page) == ("tea" if "hide" in hash_ else "wine")
    expect(page.locator(".front h2")).to_contain_text("Hide a word")
    button(page, "Share").click()
    button(page, "Copy the address").click()
    assert "dare=true" not in page.get_by_label("The address of this view").input_value()
