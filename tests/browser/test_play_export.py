"""Tests of exports from the live page: pictures as shown, numbers with all digits."""

import csv
import io
import re
from html import escape
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import Browser, Locator, Page
from tokenizers import Tokenizer

import qkv
from models.support import WORDS, mask_bert, tokenizer_json
from qkv.models import Model
from qkv.see.page.html import document, script
from qkv.trace import Trace

from .bundling import script_of
from .edited import Edit
from .engine import by_the_library, shares
from .outcome import is_percent, similarities
from .play import STILL, after
from .playing import (
    HEAD,
    POSITION,
    ROLES,
    START,
    TEXT,
    cells,
    like,
    live_page,
    open_tab,
    unfold,
    until,
)
from .support import Visit
from .test_play_page import check_layout

SVG = "{http://www.w3.org/2000/svg}"
EDITS: list[Edit] = [
    {"op": "hide", "token": 4},
    {"op": "mask", "query": 1, "key": 2, "layer": 3, "head": 2},
    {"op": "ablate", "layer": 1, "head": 5},
]
# the elements of a picture: no bitmap, no foreign element
VECTORS = {"svg", "g", "title", "rect", "text", "path", "line", "circle", "polyline", "tspan"}
VECTORS |= {"linearGradient", "stop", "clipPath", "pattern"}
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\u202e=1", "\uff1d1", "\r=1", "-", "\n"]
# Returns the content of the page without its menus.
REST = """() => {
  const root = document.querySelector(".qkv-view").shadowRoot;
  const copy = root.querySelector(".view").cloneNode(true);
  for (const menu of copy.querySelectorAll(".save")) menu.remove();
  return copy.innerHTML;
}"""
HARMLESS = ["a=1", "", "'", "1-1", 'say "a, b"', " a", "ab\ncd", "日本", "\ud800"]


TABS = {"map": "Heads", "steps": "Numbers"}  # the tabs of parts that are not always shown


def menu(page: Page, name: str) -> Locator:
    """Open the menu that saves a part, and return it."""
    if name in TABS:
        open_tab(page, TABS[name])
    found = page.locator(f"[data-region={name}] > .save")
    unfold(found)
    return found


def saved(page: Page, name: str, what: str) -> tuple[str, bytes]:
    """Click a button in a part's save menu, and return the saved file's name and content."""
    with page.expect_download() as download:
        menu(page, name).get_by_role("button", name=what, exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def rows(file: tuple[str, bytes]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file[1].decode(), newline="")))


def column(table: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name] or "nan") for row in table])


def held_by(page: Page, edits: list[Edit], which: str) -> np.ndarray:
    """Return the array `which` of a recorded run.

    The run is the last one whose number of edits equals the length of `edits`.
    """
    run = f"runs.findLast(({{ edits }}) => edits.length === {len(edits)})"
    return np.array(page.evaluate(f"Array.from({run}.found.{which})"), np.float32)


def drawn(file: tuple[str, bytes]) -> Any:
    return ElementTree.fromstring(file[1])


def texts_in(picture: Any) -> list[str]:
    return [str(part.text) for part in picture.iter(SVG + "text")]


def words_of(text: str) -> list[str]:
    return sorted(re.findall(r"[^\s…]+", text))


# ---- numbers


@pytest.mark.parametrize("edits", [[], EDITS])
def test_the_weights_of_a_head_are_the_librarys_and_have_all_digits(
    lab_at: Visit, model: Model, trace: Trace, edits: list[Edit]
) -> None:
    page = lab_at(edits=edits)
    name, text = saved(page, "head", "CSV: weights")
    assert name == "head-3.2-weights_She-wore-a-crown-on-her-mask.csv"
    table = rows((name, text))
    layer, head = HEAD
    pairs = [(*one, *other) for one, other in product(enumerate(trace.tokens), repeat=2)]
    keys = ("layer", "head", "query_position", "query", "key_position", "key")
    expected = [[*map(str, (*HEAD, *pair))] for pair in pairs]
    assert [[row[key] for key in keys] for row in table] == expected
    weights = column(table, "weight")
    expected = by_the_library(model, TEXT, edits).pattern[HEAD].ravel()
    np.testing.assert_allclose(weights, expected, atol=2e-6, rtol=0)
    own = f"pattern[{layer}][{head}]"
    np.testing.assert_array_equal(weights.astype(np.float32), held_by(page, edits, own))
    shown = [bool(edits) and (j == 4 or (i, j) == (1, 2)) for i, _, j, _ in pairs]
    assert [row["hidden"] for row in table] == ["true" if one else "false" for one in shown]
    scores = column(table, "score")
    assert (np.isnan(scores) == shown).all()
    if not edits:
        traced = trace["attn_scores", layer][0, head].ravel()
        np.testing.assert_allclose(scores, traced, atol=1e-4, rtol=0)
        assert "weight_before" not in table[0]
    else:
        before = trace["pattern", layer][0, head].ravel()
        np.testing.assert_allclose(column(table, "weight_before"), before, atol=2e-6, rtol=0)


def test_the_csv_has_all_words_with_probabilities_before_and_after(
    lab_at: Visit, model: Model
) -> None:
    page = lab_at(edits=EDITS)
    name, text = saved(page, "outcome", "CSV: words")
    assert name == "words-at-7_She-wore-a-crown-on-her-mask.csv"
    table = rows((name, text))
    order = column(table, "id").astype(int)
    assert sorted(order) == list(range(len(model.tokenizer.vocabulary)))
    assert [row["rank"] for row in table[:3]] == ["1", "2", "3"]
    for which, edits in (("probability_before", []), ("probability", EDITS)):
        expected = shares(by_the_library(model, TEXT, edits).logits[[POSITION]])[0]
        np.testing.assert_allclose(column(table, which), expected[order], atol=1e-6, rtol=0)
    assert (np.diff(column(table, "probability")) <= 0).all()
    words = [row["word"].removeprefix("'") for row in table]
    assert words == [model.tokenizer.token(int(id)).removeprefix("'") for id in order]
    shown = page.locator(".outcome-words tbody tr").first.locator("th, td").all_inner_texts()
    assert shown[0] == words[0]
    assert any(is_percent(text, float(table[0]["probability"])) for text in shown)
    alike = rows(saved(page, "outcome", "CSV: layer by layer"))
    chart = similarities(page)
    assert [f"{float(row['cosine_with_original']):.3f}" for row in alike] == chart


def test_the_map_gives_a_row_for_each_head_and_all_weights(lab_at: Visit, model: Model) -> None:
    page = lab_at(edits=EDITS, colouring="effect")
    figures = page.locator(".cell .figure")
    until(lambda: sum(map(bool, figures.all_text_contents())) == 23)
    page.locator("[data-region=map]").evaluate(STILL)
    table = rows(saved(page, "map", "CSV: heads"))
    names = [f"{row['layer']}.{row['head']}" for row in table]
    assert names == [f"{layer}.{head}" for layer in range(4) for head in range(6)]
    for name, row in zip(names, table, strict=True):
        role, measure = ROLES.get(name, ["mixed", ""])
        assert (row["role"], row["role_measure"]) == (role, str(measure))
        assert row["removed"] == ("true" if name == "1.5" else "false")
        shown = page.locator(f"[data-head='{name}'] .figure").inner_text()
        moved = float(row["probability_moved_without_it"])
        assert moved == 0 if name == "1.5" else is_percent(shown, moved)
    after_, before = (by_the_library(model, TEXT, edits).pattern for edits in (EDITS, []))
    moved_ = np.maximum(0, before - after_).sum(-1).mean(-1)
    np.testing.assert_allclose(column(table, "weight_moved_by_changes"), moved_.ravel(), atol=1e-5)
    every = rows(saved(page, "map", "CSV: all weights"))
    np.testing.assert_allclose(column(every, "weight"), after_.ravel(), atol=2e-6, rtol=0)


def test_a_step_is_saved_as_its_matrix(page: Page, trace: Trace) -> None:
    layer, head = HEAD
    table = rows(saved(page, "steps", menu(page, "steps").get_by_role("button").last.inner_text()))
    names = [f"{position} {token}" for position, token in enumerate(trace.tokens)]
    assert list(table[0]) == ["position", "row", *names]
    found = np.array([[float(row[name]) for name in names] for row in table])
    scores = trace["q", layer][0, :, head] @ trace["k", layer][0, :, head].T
    np.testing.assert_allclose(found, scores, atol=1e-4)
    page.locator("[data-region=steps]").get_by_role("tab", name="7 weights").click()
    menu(page, "steps").hover()
    table = rows(saved(page, "steps", menu(page, "steps").get_by_role("button").last.inner_text()))
    found = np.array([[float(row[name]) for name in names] for row in table])
    np.testing.assert_allclose(found, trace["pattern", layer][0, head], atol=2e-6)


def test_csv_keeps_numbers_exactly_and_escapes_formulas(visit: Visit) -> None:
    body = script(script_of("parts/save"), "globalThis.csvOf = page.csvOf;")
    page = visit(document("cells", body, "auto"))
    numbers = [0.1, -2.5, 1e-300, 123456789.123456, float(np.float32(0.1)), 0, 1e21, -1e-7]
    texts = [*FORMULAS, *HARMLESS]
    made = page.evaluate(
        "rows => csvOf({ columns: ['a', 'b'], rows })", [[x, 1] for x in [*texts, *numbers]]
    )
    assert made.startswith("a,b\r\n")
    found = [row[0] for row in csv.reader(io.StringIO(made, newline=""))][1:]
    assert found[: len(FORMULAS)] == [f"'{text}" for text in FORMULAS]
    assert found[len(FORMULAS) : len(texts)] == [*HARMLESS[:-1], "\ufffd"]
    kept = [float(x) for x in found[len(texts) :]]
    assert kept[:4] + kept[5:] == numbers[:4] + numbers[5:]
    assert (found[len(texts) + 4], np.float32(kept[4])) == ("0.1", np.float32(0.1))
    none = page.evaluate("csvOf({ columns: ['a'], rows: [[null], [NaN], [Infinity], [true]] })")
    assert none == "a\r\n\r\n\r\n\r\ntrue\r\n"


# ---- pictures


@pytest.mark.parametrize("name", ["map", "head", "steps", "outcome"])
def test_a_picture_has_every_word_that_is_shown(lab_at: Visit, name: str) -> None:
    page = lab_at(edits=EDITS)
    if name in TABS:
        open_tab(page, TABS[name])
    region = page.locator(f"[data-region={name}]")
    region.evaluate(STILL)
    for width in (1270, 1280):  # a new window width makes the page redraw every part
        page.set_viewport_size({"width": width, "height": 900})
        region.evaluate(STILL)
    plain, shown = page.screenshot(), page.evaluate(REST)
    hidden = ".save, .control, .paint, .power, .weight-bar, .motion-play, .motion-moments"
    hidden += ", .walk-way, details"
    on_page = region.evaluate(
        """(node, hidden) => { const texts = [];
          const walk = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
          while (walk.nextNode()) {
            const own = walk.currentNode.parentElement;
            const shows = own.checkVisibility({ visibilityProperty: true });
            const worked = own.closest(`.sr, [hidden], ${hidden}`);
            if (shows && !worked) texts.push(walk.currentNode.data);
          }
          return texts.join(" "); }""",
        hidden,
    )
    called, file = saved(page, name, "SVG")
    stem = "head-3.2" if name == "head" else name
    assert called == f"{stem}_She-wore-a-crown-on-her-mask.svg"
    picture = drawn((called, file))
    assert {part.tag.removeprefix(SVG) for part in picture.iter()} <= VECTORS
    caption = picture.findtext(f"{SVG}title") or ""
    assert caption.startswith(
        "“She wore a crown on her ___.” · crown hidden · 1 pair hidden in head 3.2 · "
        "head 1.5 removed · "
    )
    beyond = words_of(" ".join(texts_in(picture)))
    canvas = page.locator(f"[data-region={name}] canvas")
    for word in words_of(on_page + " " + caption):
        assert word in beyond, word
        beyond.remove(word)
    assert not beyond or canvas.count()  # the page draws a heat map's names on its canvas
    menu(page, name).evaluate("node => { node.open = false; }")
    region.evaluate(STILL)
    assert page.evaluate(REST) == shown
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    one, other = (imread(io.BytesIO(shot)) for shot in (plain, page.screenshot()))
    assert (np.abs(one - other) > 0.02).any(-1).sum() < 50  # of a million pixels


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_has_the_colours_of_the_cells(lab_at: Visit, model: Model, scheme: str) -> None:
    edits = EDITS[:1]
    page = lab_at(scheme=scheme, edits=edits)
    left, top, wide, tall = cells(page)
    whole = drawn(saved(page, "head", "SVG"))
    shift = re.findall(r"[\d.-]+", str(whole.find(f"{SVG}g").get("transform")))
    (map_,) = (one for one in whole.iter(SVG + "svg") if one is not whole and "K" in texts_in(one))
    x, y = (float(map_.get(name)) + float(by) for name, by in zip("xy", shift, strict=True))
    name, png = saved(page, "head", "PNG")
    assert name == "head-3.2_She-wore-a-crown-on-her-mask.png"
    picture = (imread(io.BytesIO(png))[..., :3] * 255).round().astype(int)
    size = [round(float(whole.get(side))) for side in ("height", "width")]
    assert list(picture.shape[:2]) == [2 * side for side in size]
    ground = picture[2, 2]
    assert (ground > 240).all() if scheme == "light" else (ground < 40).all()
    at = np.arange(10) + 0.3
    rows_, columns = (
        (2 * (start + side + at * each)).astype(int)
        for start, side, each in ((y, top, tall), (x, left, wide))
    )
    found = picture[np.ix_(rows_, columns)]
    expected = by_the_library(model, TEXT, edits).pattern[HEAD]
    seen = np.delete(np.arange(10), 4)
    if scheme == "light":
        like(found[:, seen], expected[:, seen], within=3)
    flat = found[:, seen].sum(-1)
    order = np.argsort(expected[:, seen].ravel())
    assert (np.diff(flat.ravel()[order]) * (-1 if scheme == "light" else 1) >= -12).all()
    down, across = int(2 * (y + top)), int(2 * (x + left + 4 * wide))
    hatched = picture[down + 4 : down + int(tall), across + 4 : across + int(wide)]
    assert np.ptp(hatched, axis=(0, 1)).max() > 60  # stripes


def test_both_heads_are_in_the_picture_when_the_original_stands_beside(lab_at: Visit) -> None:
    page = lab_at(edits=EDITS, beside=True, width=1920)
    texts = texts_in(drawn(saved(page, "head", "SVG")))
    assert {"Original", "Changed"} <= set(texts)
    assert texts.count("from (query)") == 2


# ---- the menu


@pytest.mark.parametrize("width", [390, 1280])
def test_the_menus_fit_and_pass_axe(quick_at: Visit, width: int) -> None:
    page = quick_at(width=width, **START | {"edits": EDITS, "inside": width > 390})
    for tab in ("Heads", "Numbers", "Result") if width == 390 else ("",):
        if tab:
            after(page, page.get_by_role("tab", name=tab).click)
        for summary in page.locator(".save summary").filter(visible=True).all():
            summary.focus()
            page.keyboard.press("Enter")
        page.locator(".save[open] > .bar button >> visible=true").first.wait_for()
        buttons = page.locator(".save > .bar button").filter(visible=True)
        assert buttons.count() >= 2
        for button in buttons.all():
            box = button.bounding_box()
            assert min(box["width"], box["height"]) >= 43.5
        check_layout(page)


def small_model(folder: Path) -> Model:
    """Return a small model with as many layers and heads as the bundled model.

    Its tokenizer has a token for each of the 30 ids of the vocabulary.
    """
    mask_bert(folder, num_hidden_layers=4, num_attention_heads=6)
    words = [*WORDS, *map(str, range(29 - len(WORDS))), "[MASK]"]
    tokenizer = Tokenizer.from_str(tokenizer_json(words))
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return qkv.load(folder)


@pytest.mark.parametrize("allowed", ["", " allow-downloads"])
def test_a_sandboxed_frame_offers_exports_as_text(
    chromium: Browser, tmp_path: Path, allowed: str
) -> None:
    model = small_model(tmp_path / "small")  # which a frame loads at once
    path = tmp_path / "frame.html"
    source = escape(live_page(model), quote=True)
    path.write_text(
        f'<iframe sandbox="allow-scripts{allowed}" width=1200 height=800 srcdoc="{source}">',
        "utf-8",
    )
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    complaints: list[Any] = []
    page.on("pageerror", lambda error: complaints.append(error))
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-qkv=ready]").wait_for()
    frame.get_by_role("button", name="Look inside").click()  # a srcdoc frame has no address
    box = frame.locator("[data-region=head] > .save")
    unfold(box)
    box.get_by_role("button", name="CSV: weights").click()
    said = box.locator("> .bar .note")
    said.get_by_text("may prevent you from saving").wait_for()
    text = box.locator("textarea").input_value()
    assert text.startswith("layer,head,query_position,query,")
    assert len(text.splitlines()) == 1 + len(model.tokenize(TEXT).ids) ** 2
    box.get_by_role("button", name="PNG").click()
    said.get_by_text("in its own window").wait_for()
    assert complaints == []
    page.close()
