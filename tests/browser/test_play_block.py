"""Tests of a layer's data flow in the live page: widths and matrices against the formula."""

import math
import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from qkv.models import Model

from .edited import Edit, run
from .play import STILL
from .playing import POSITION, TEXT, held, laid_out, until
from .support import Visit, after_each, press, read, readout, tight
from .test_walk_shift import RIBBONS, numbers_in

HEAD = 2
FULL = ["X", "Q", "K", "V", "scores", "scaled", "weights", "context", "joined", "out", "R", "N1"]
FULL += ["pre", "post", "mlp", "R2", "Y"]
VECTORS = [n for n in FULL if n not in ("scores", "scaled", "weights", "pre", "post")]
EDITS: list[Edit] = [
    {"op": "hide", "token": 4},
    {"op": "scale", "value": 0.3},
    {"op": "ablate", "layer": 3, "head": HEAD},
]


def part(page: Page) -> Locator:
    return page.locator("[data-part=steps]")


def names(page: Page) -> list[str]:
    """Return the names of the block's nodes, once the block has the parameters."""
    laid_out(page)
    return [text.split()[-1] for text in part(page).get_by_role("tab").all_inner_texts()]


def choose(page: Page, name: str) -> None:
    part(page).locator("[role=tab]").nth(names(page).index(name)).click()
    part(page).evaluate(STILL)  # the node's matrix is drawn in a task of its own


def normed(x: np.ndarray, model: Model, name: str) -> np.ndarray:
    """Compute a LayerNorm in float64."""
    gain, shift = (np.float64(model.parameters[f"{name}.{end}"]) for end in ("weight", "bias"))
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + model.design.eps) * gain + shift


def layer_by_formula(model: Model, layer: int, edits: list[Edit]) -> dict[str, np.ndarray]:
    """Compute each step of the layer, (T, ...), in float64."""
    whole = run(model, model.tokenize(TEXT).ids, edits)
    inside, x = whole.inside[layer], whole.resid[layer]
    size = model.dim // model.num_heads
    q, k, v = (inside[name][:, HEAD * size : (HEAD + 1) * size] for name in "qkv")
    scale = [1 / np.sqrt(size), *(edit["value"] for edit in edits if edit["op"] == "scale")][-1]
    weights = whole.pattern[layer, HEAD]
    found = {"X": x, "Q": q, "K": k, "V": v, "scores": q @ k.T, "scaled": q @ k.T * scale}
    found |= {"weights": weights, "context": weights @ v, "joined": inside["z"]}
    found |= {"out": inside["attn_out"], "R": inside["resid_mid"]}
    found["N1"] = normed(inside["resid_mid"], model, f"blocks.{layer}.norm1")
    found |= {name: inside[name] for name in ("pre", "post")} | {"mlp": inside["mlp_out"]}
    return found | {"R2": inside["resid_post"], "Y": whole.resid[layer + 1]}


def ribbons(page: Page) -> list[list[Any]]:
    """Return the node from which each ribbon comes, the node to which it leads, and its width."""
    return part(page).locator(".ribbon[data-from]").evaluate_all(RIBBONS)


def widths(page: Page) -> dict[str, float]:
    """Return the width of the ribbon that leaves each node."""
    return {name: wide for name, _, wide in ribbons(page)}


def reads(page: Page) -> set[tuple[str, str]]:
    """Return the pairs of nodes (from, to) that a ribbon joins."""
    return {(name, to) for name, to, _ in ribbons(page)}


@pytest.mark.parametrize("edits", [[], EDITS], ids=["as it is", "edited"])
def test_ribbons_are_as_wide_as_vectors_are_long(
    lab_at: Visit, model: Model, edits: list[Edit]
) -> None:
    page = lab_at(edits=edits, tab="steps")
    shown = names(page)
    more = ["masked", "instead"] if edits else []
    assert [name for name in shown if name not in more] == FULL
    assert set(more) <= set(shown)
    found, before = layer_by_formula(model, 3, edits), layer_by_formula(model, 3, [])
    lengths = {name: float(np.linalg.norm(found[name][POSITION])) for name in VECTORS}
    wide, longest = widths(page), max(lengths.values())
    for name in VECTORS[:-1]:  # no ribbon leaves the last node
        if name in wide:  # nor a removed node
            expected = max(1.0, 34 * lengths[name] / longest)
            assert wide[name] == pytest.approx(expected, abs=0.01), name
    context = "instead" if edits else "context"
    assert {("X", "R"), ("out", "R"), (context, "joined")} <= reads(page)
    said = part(page).locator(".block-words").all_text_contents()
    for name, what, adds in (("R", "attention", "out"), ("R2", "the MLP", "mlp")):
        form, numbers = numbers_in(said[shown.index(name)])
        expected = [lengths[name], lengths[adds]]
        if edits:
            expected.insert(1, float(np.linalg.norm(before[adds][POSITION])))
        assert form == f"length #: {what} {'# → #' if edits else 'added #'}"
        np.testing.assert_allclose(numbers, expected, atol=0.051)


@pytest.mark.parametrize(("layer", "edits"), [(0, []), (3, []), (3, EDITS)])
def test_a_node_opens_its_matrix_and_the_sum_of_a_cell(
    lab_at: Visit, model: Model, layer: int, edits: list[Edit]
) -> None:
    page = lab_at(layer=layer, head=HEAD, edits=edits, tab="steps")
    until(lambda: ("E" in names(page)) is (layer == 0))
    found = layer_by_formula(model, layer, edits)
    for name in FULL:
        choose(page, name)
        page.locator(".steps-view .map").first.focus()
        press(page, "ArrowDown", "Control+Home")
        after_each(page, ["ArrowDown"] * POSITION)
        told = readout(part(page))
        where, _, value = told[""].rpartition(" = ")
        column = re.search(r", ([^,]*)\]$", where)[1]
        at = int(column) if column.isdigit() else 0
        assert where.startswith(f"{name}[___, ")
        number = float(found[name][POSITION, at])
        assert read(value) == pytest.approx(number, abs=2e-3), name
        if name in ("Q", "V", "scores", "context", "out", "pre", "mlp", "R", "R2"):
            assert summed(told["="]) == pytest.approx(number, abs=0.02), name
    assert tight(page)


def summed(text: str) -> float:
    """Parse and compute a written sum, whose terms are products or named numbers."""
    terms = text.replace("\N{MINUS SIGN}", "-").split(" + ")  # the last may be "… (26 more: 0.1)"
    return sum(math.prod(map(float, re.findall(r"-?\d+\.\d+(?:e-\d+)?", x))) for x in terms)


def test_nodes_changed_by_edits_are_orange(lab_at: Visit) -> None:
    page = lab_at(edits=EDITS, tab="steps")
    names(page)
    changed = part(page).locator("[role=tab].changed").all_inner_texts()
    assert [text.split()[-1] for text in changed] == ["scaled", "masked", "instead"]
    choose(page, "instead")
    assert "The head is removed" in part(page).locator("h3").nth(1).inner_text()


def test_it_goes_from_layer_to_layer(lab_at: Visit, model: Model) -> None:
    page = lab_at(tab="steps")
    names(page)
    choose(page, "mlp")
    buttons = [
        part(page).get_by_role("button", name=name) for name in ("the layer before", "the next")
    ]
    assert buttons[1].is_disabled()
    for layer in (2, 1, 0):
        buttons[0].click()
        until(lambda: held(page)["layer"], "the layer", layer.__eq__)
        expect(part(page).locator("h3").first).to_contain_text(f"Layer {layer} as")
        chosen = part(page).get_by_role("tab", selected=True)
        assert chosen.inner_text().split()[-1] == "mlp"
        value = float(layer_by_formula(model, layer, [])["mlp"][POSITION, 0])
        assert read(readout(part(page))[""].rpartition(" = ")[2]) == pytest.approx(value, abs=2e-3)
    assert buttons[0].is_disabled()


def test_nodes_are_walked_by_keyboard_and_a_row_is_chosen(lab_at: Visit) -> None:
    page = lab_at(tab="steps")
    names(page)
    chosen = part(page).get_by_role("tab", selected=True)
    assert chosen.inner_text().split()[-1] == "scores"
    chosen.focus()
    press(page, "ArrowDown", "ArrowRight", "Home")
    assert chosen.inner_text().split()[-1] == "X"
    press(page, "End")
    assert chosen.inner_text().split()[-1] == "Y"
    page.locator(".steps-view .map").first.focus()
    press(page, "ArrowDown", "Control+Home", "ArrowDown", "ArrowDown", "Enter")
    until(lambda: held(page)["query"] == 2)
    until(lambda: "wore" in part(page).locator(".block .note").inner_text())
    assert chosen.inner_text().split()[-1] == "Y"
