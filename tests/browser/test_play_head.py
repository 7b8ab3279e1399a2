"""One head in the live page: lines, heat map, operands, steps and mask against the library."""

import math
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Position

from qkv.models import Model
from qkv.trace import Trace

from .edited import Edit
from .engine import by_the_library
from .playing import (
    HEAD,
    POSITION,
    TEXT,
    cell_colours,
    cells,
    go,
    heat_map,
    held,
    like,
    masks,
    open_tab,
    picture,
    shows,
    until,
)
from .support import (
    Visit,
    after_each,
    drawn,
    idle,
    keys,
    press,
    read,
    readout,
    shown_weights,
    tight,
    token,
)

LAYER, NUMBER = HEAD
TIMES = "\N{MULTIPLICATION SIGN}"


def vectors(trace: Trace, name: str) -> np.ndarray:
    """Return the queries, keys, values or results of the shown head, (T, d)."""
    return np.asarray(trace[name, LAYER][0, :, NUMBER], np.float64)


def own(page: Page) -> Locator:
    """Return the head with the edits; the original may stand beside it."""
    return page.locator("[data-part=head]")


def hands(page: Page) -> Locator:
    return page.locator("[data-part=links]")


@pytest.fixture
def page(lab_at: Visit) -> Page:
    return lab_at(tab="links")


def chosen_key(page: Page) -> str:
    idle(page)
    return hands(page).locator("[aria-label=Key] .step-word").inner_text()


def map_of(page: Page) -> Locator:
    return own(page).get_by_role("application")


def click(page: Page, i: int, j: int) -> None:
    """Click a cell of the heat map."""
    left, top, wide, tall = cells(page)
    position = Position(x=left + (j + 0.5) * wide, y=top + (i + 0.5) * tall)
    map_of(page).click(position=position)


def test_lines_and_heat_map_match_the_trace(page: Page, trace: Trace) -> None:
    weights = trace["pattern", LAYER][0, NUMBER]
    assert [name for name, _ in keys(own(page))] == drawn(trace.tokens)
    np.testing.assert_allclose(shown_weights(own(page)), weights[POSITION], atol=0.00501)
    best = weights[POSITION].argmax()
    said = own(page).locator(".head-words").inner_text()
    share = f"{100 * weights[POSITION, best]:.0f}%"
    assert said == f"The gap attends to {trace.tokens[best]}: {share} (head 3.2)."
    scaled = trace["attn_scores", LAYER][0, NUMBER]
    raw = vectors(trace, "q") @ vectors(trace, "k").T
    map_of(page).focus()
    press(page, "ArrowDown", "Control+Home", "Home")
    row = [*["ArrowRight"] * 9, "Home", "ArrowDown"]
    told = [readout(own(page)), *after_each(page, (row * 10)[:-2], "[data-part=head]")]
    del told[10::11]  # where Home goes back to the first key
    for (i, j), now in zip(np.ndindex(weights.shape), told, strict=True):
        assert now[""] == f"{trace.tokens[i]} → {trace.tokens[j]}".replace("[MASK]", "the gap")
        assert read(now["weight"]) == pytest.approx(weights[i, j], abs=0.0000052)
        assert read(now["scaled score"]) == pytest.approx(scaled[i, j], abs=0.000505)
        assert read(now["raw score"]) == pytest.approx(raw[i, j], abs=0.00052)
    like(cell_colours(page), weights)
    shows(page, weights)


def test_a_query_is_chosen_by_click_and_by_keyboard(page: Page, trace: Trace) -> None:
    token(own(page), 3).click()
    until(lambda: held(page)["query"] == 3)
    weights = trace["pattern", LAYER][0, NUMBER]
    assert step_column(page, 4) == pytest.approx(list(weights[3]), abs=0.00051)
    token(own(page), 3).press("ArrowUp")
    press(page, "Enter")
    until(lambda: held(page)["query"] == 2)
    click(page, 5, 1)
    until(lambda: held(page)["query"] == 5)
    assert step_column(page, 4) == pytest.approx(list(weights[5]), abs=0.00051)


def step_column(page: Page, column: int) -> list[float]:
    return [read(text) for text in of_steps(page, column)]


@pytest.mark.parametrize(
    "edits",
    [[], [{"op": "mask", "query": POSITION, "key": 4}, {"op": "scale", "value": 0.3}]],
    ids=["as it is", "masked, at another temperature"],
)
def test_the_steps_match_the_trace(
    lab_at: Visit, model: Model, trace: Trace, edits: list[Edit]
) -> None:
    page = lab_at(edits=edits)
    hidden = [bool(edits) and key == 4 for key in range(10)]
    until(lambda: of_steps(page, 3) == ["hidden" if away else "open" for away in hidden])
    inside = layer_with(model, trace, edits)
    raw = inside["q"][POSITION] @ inside["k"].T
    scale = 0.3 if edits else 1 / math.sqrt(32)
    weights = np.where(hidden, 0, np.exp(raw * scale))
    weights /= weights.sum()
    np.testing.assert_allclose(step_column(page, 1), raw, atol=0.0052)
    np.testing.assert_allclose(step_column(page, 2), raw * scale, atol=0.0052)
    np.testing.assert_allclose(step_column(page, 4), weights, atol=0.00051)
    head = page.locator(".row-table thead th").all_text_contents()
    assert head == ["key", "raw score", f"{TIMES} 0.300" if edits else "÷ √32", "mask", "softmax"]


def of_steps(page: Page, column: int) -> list[str]:
    """Return the texts in a column of the steps' table."""
    cells = page.locator(f".row-table tbody tr > :nth-child({column + 1})")
    return cells.all_text_contents()


def layer_with(model: Model, trace: Trace, edits: list[Edit]) -> dict[str, np.ndarray]:
    """Return the head's queries and keys, given the edits in the layers below it."""
    x = by_the_library(model, TEXT, edits).resid[LAYER].astype(np.float64)
    found = {}
    for name in "qk":
        part = f"blocks.{LAYER}.attn.{name}_proj"
        weight, bias = (np.float64(model.parameters[f"{part}.{end}"]) for end in ("weight", "bias"))
        found[name] = (x @ weight + bias)[:, 32 * NUMBER : 32 * (NUMBER + 1)]
    return found


def test_operands_stand_around_the_weights(page: Page, trace: Trace) -> None:
    values, result = map(picture, own(page).locator(".operand canvas").all())
    q, k, v, z = (vectors(trace, name) for name in "qkvz")
    at, along = np.arange(10), 2 * np.arange(32)
    like(values[np.ix_(26 * at + 12, along)], v / np.abs(v).max())
    like(result[np.ix_([12], along)], z[POSITION] / np.abs(z).max())
    (left, top, wide, tall), found = cells(page), heat_map(page)
    rows, columns = (top + (at + 0.5) * tall).astype(int), (left + (at + 0.5) * wide).astype(int)
    like(found[np.ix_(rows, int(left) - 68 + along)], q / np.abs(q).max())
    like(found[np.ix_(int(top) - 5 - along, columns)], k.T / np.abs(k).max())


@pytest.mark.parametrize(("scope", "where"), [("layer", (1,)), ("all", ())])
def test_painting_elsewhere_reaches_the_layers_above(
    page: Page, model: Model, scope: str, where: tuple[int, ...]
) -> None:
    go(page, layer=1, head=4)
    hands(page).get_by_label("paint: drag over cells to hide them").check()
    hands(page).get_by_label("Hide", exact=True).select_option(scope)
    click(page, POSITION, 4)
    until(lambda: masks(held(page)["edits"]) == [(POSITION, 4, *where)])
    hidden = model.trace(TEXT, hide=[(POSITION, 4, *where)])
    shows(page, hidden["pattern", 1][0, 4])
    open_tab(page, "Heads")
    page.locator("[data-part=map] [data-head='3.1']").click()
    until(lambda: held(page)["layer"] == 3)
    shows(page, hidden["pattern", 3][0, 1])


def test_links_can_be_masked_by_keyboard_and_by_buttons(
    page: Page, model: Model, trace: Trace
) -> None:
    hands(page).get_by_label("paint: drag over cells to hide them").check()
    map_of(page).focus()
    press(page, "ArrowDown", "Control+Home", "Home", "ArrowRight", "Enter")
    until(lambda: masks(held(page)["edits"]) == [(0, 1, *HEAD)])
    hands(page).get_by_role("button", name="next query").click()
    until(lambda: held(page)["query"] == POSITION + 1)
    tokens = list(trace.tokens)
    key = tokens.index(chosen_key(page)) + 1
    hands(page).get_by_role("button", name="next key").click()
    assert chosen_key(page) == tokens[key]
    hands(page).get_by_role("button", name="Hide this link").click()
    edges = [(0, 1, *HEAD), (POSITION + 1, key, *HEAD)]
    until(lambda: masks(held(page)["edits"]) == edges)
    shows(page, model.trace(TEXT, hide=edges)["pattern", LAYER][0, NUMBER])
    hands(page).get_by_role("button", name="Show this link").click()
    until(lambda: masks(held(page)["edits"]) == edges[:1])


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_controls_are_large_enough_to_touch(lab_at: Visit, width: int) -> None:
    page = lab_at(width=width, tab="heads")
    for control in own(page).locator("button, select, summary").filter(visible=True).all():
        box: Any = control.bounding_box()
        assert min(box["width"], box["height"]) >= 44 - 0.5
    assert tight(page)


def test_rows_of_lines_and_heat_map_align_on_a_wide_page(lab_at: Visit) -> None:
    page = lab_at(width=1000)  # one head has the whole width
    left, top, _, tall = cells(page)
    map_top: Any = map_of(page).bounding_box()
    for i in range(10):
        row: Any = token(own(page), i).bounding_box()
        middle = map_top["y"] + top + (i + 0.5) * tall
        assert row["y"] + row["height"] / 2 == pytest.approx(middle, abs=1.5)
    values: Any = own(page).locator(".operand canvas").first.bounding_box()
    assert values["y"] == pytest.approx(map_top["y"] + top, abs=1.5)
    # the list of tokens beside the heat map names its rows, so the heat map itself has no row names
    assert left < 80


def test_subwords_are_merged_on_request(lab_at: Visit, model: Model) -> None:
    text = "The unbelievable crown is on her [MASK]."
    tokens = model.tokenize(text)
    spans: list[list[int]] = []
    for position, name in enumerate(tokens.tokens):
        if name.startswith("##"):
            spans[-1].append(position)
        else:
            spans.append([position])
    assert max(map(len, spans)) > 2
    position = tokens.tokens.index("[MASK]")
    page = lab_at(text=text, position=position, query=position, tab="links")
    weights = np.asarray(model.trace(text)["pattern", LAYER][0, NUMBER], np.float64)
    shows(page, weights)
    page.get_by_label("merge subwords into words").check()
    shows(page, merged(weights, spans))
    assert "unbelievable" in [name for name, _ in keys(own(page))]
    until(lambda: held(page).get("merge") is True)
    long = next(k for k, span in enumerate(spans) if len(span) > 2)
    token(own(page), long).click()
    until(lambda: held(page)["query"] == spans[long][0])
    crown = spans.index([tokens.tokens.index("crown")])
    names = [name for name, _ in keys(own(page))]
    while (at := chosen_key(page)) != "crown":
        way = "next key" if names.index(at) < crown else "previous key"
        hands(page).get_by_role("button", name=way).click()
    hands(page).get_by_role("button", name="Hide this link").click()
    links = [(query, *spans[crown], *HEAD) for query in spans[long]]
    until(lambda: masks(held(page)["edits"]) == links)
    hidden = model.trace(list(tokens.ids), hide=links)["pattern", LAYER][0, NUMBER]
    shows(page, merged(np.asarray(hidden, np.float64), spans))


def merged(weights: np.ndarray, spans: list[list[int]]) -> np.ndarray:
    """Merge subwords: sum the weights that they receive, average the weights that they give."""
    return np.array([[weights[np.ix_(a, b)].sum(1).mean() for b in spans] for a in spans])


def test_rows_are_added_to_the_view_with_shift(page: Page) -> None:
    said = own(page).locator(".head-words")
    token(own(page), 3).click(modifiers=["Shift"])
    assert said.inner_text().startswith("The gap attends to ")
    assert said.inner_text().count(" attends to ") == 2
    token(own(page), 5).hover()
    assert said.inner_text().count(" attends to ") == 2
    press(page, "Escape")
    assert said.inner_text().count(" attends to ") == 1
