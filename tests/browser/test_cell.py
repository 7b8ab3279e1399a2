"""What one number is the sum of, as bars: in the walk and in the live page, against the library."""

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

from qkv.see.draw.colours import shade
from qkv.see.page.payload import payload_of
from qkv.see.page.walk import walk_payload
from qkv.see.steps.walk import Walk

from .conftest import Visit
from .playing import picture
from .support import STATIC, press, read, whole_page
from .test_walk_shift import agree, layer_walk

TIMES = "\N{MULTIPLICATION SIGN}"


def chart(place: Page | Locator) -> Locator:
    """The bars; they are one control."""
    return place.get_by_role("slider", name=re.compile("arrow keys move$"))


def bars(place: Page | Locator) -> tuple[np.ndarray, float]:
    """How long each bar is as it is drawn, up or down from the line, and how exact that is."""
    found = str(chart(place).get_attribute("data-bars"))
    left, wide, zero, scale = map(float, found.split())
    pixels = picture(chart(place).locator("canvas")).astype(int)
    colours = [list(bytes.fromhex(shade(sign)[1:])) for sign in (0.7, -0.7)]
    number = int(str(chart(place).get_attribute("aria-valuemax")))
    columns = (left + (np.arange(number) + 0.5) * wide).astype(int)
    lengths = []
    for column in columns:
        above, below = pixels[: round(zero) - 1, column], pixels[round(zero) + 1 :, column]
        up, down = (
            (np.abs(part - colour).max(-1) < 6).sum()
            for part, colour in ((above[31:], colours[0]), (below, colours[1]))
        )
        assert not (up > 1 and down > 1)
        lengths.append((up if up > down else -down) / scale)
    return np.array(lengths), 2.5 / scale


def rows(place: Page | Locator) -> tuple[list[str], np.ndarray]:
    """The same as a table: what the columns are, and their numbers."""
    details = place.locator("details", has_text="The bars as a table")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    names = details.locator("thead th").all_inner_texts()[1:]
    cells = details.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((td) => td.textContent))"
    )
    return names, np.array([[read(cell) for cell in row] for row in cells])


def walk_page(walk: Walk) -> str:
    return whole_page(payload_of("walk", "a walk", [], walk=walk_payload(walk)), STATIC)


def step_of(page: Page, walk: Walk, name: str) -> Any:
    page.get_by_role("tab", name=re.compile(rf"^\d+ {name}:")).click()
    return next(step for step in walk.steps if step.name == name)


def test_a_cell_of_a_walk_stands_over_its_products(visit: Visit) -> None:
    walk = layer_walk("lesson")
    page = visit(walk_page(walk))
    q, k = (walk.arrays[name].astype(np.float64) for name in "QK")
    step = step_of(page, walk, "scores")
    i, j = step.cell
    products = q[i] * k[j]
    names, found = rows(page)
    assert names == [f"Q[{step.rows[i]}]", f"K[{step.columns[j]}]", "products"]
    np.testing.assert_allclose(found, np.stack([q[i], k[j], products], 1), atol=0.00051)
    lengths, within = bars(page)
    np.testing.assert_allclose(lengths, products, atol=within)
    said = page.locator(".sum-said").inner_text()
    up, down = products[products > 0].sum(), products[products < 0].sum()
    agree(said, f"{len(products)} products: {up:.3f} above the line, {down:.3f} below")
    page.locator(".map").first.focus()
    press(page, "ArrowDown", "Control+Home")  # a cell that is pointed at is looked into
    np.testing.assert_allclose(rows(page)[1][:, 2], q[0] * k[0], atol=0.00051)


def test_the_bars_are_walked_by_keyboard(visit: Visit) -> None:
    walk = layer_walk("lesson")
    page = visit(walk_page(walk))
    step = step_of(page, walk, "Q")
    i, j = step.cell or (walk.cell[0], 0)
    x, w = walk.arrays["X"].astype(np.float64)[i], walk.arrays["W_Q"].astype(np.float64)[:, j]
    best = int(np.abs(x * w).argmax())

    def tells(place: int) -> None:
        told = f"number {place}: {x[place]:.3f} {TIMES} {w[place]:.3f} = {x[place] * w[place]:.3f}"
        agree(page.locator(".sum-said").inner_text(), told)
        agree(str(chart(page).get_attribute("aria-valuetext")), told)
        assert chart(page).get_attribute("aria-valuenow") == str(place + 1)

    chart(page).focus()
    press(page, "ArrowRight")
    tells(best)
    press(page, "Home", "ArrowLeft")
    tells(0)
    press(page, "ArrowRight", "ArrowUp")
    tells(2)
    press(page, "End")
    tells(len(x) - 1)
    press(page, "ArrowDown")
    tells(len(x) - 2)
    press(page, "Escape")
    assert page.locator(".sum-said").inner_text().startswith(f"{len(x)} products: ")


@pytest.mark.parametrize("name", ["lesson", "bert"])
def test_weights_stand_over_the_row_that_softmax_shares(visit: Visit, name: str) -> None:
    walk = layer_walk(name)
    page = visit(walk_page(walk))
    step = step_of(page, walk, "weights")
    i, j = walk.cell
    scores = walk.arrays[step.op["of"]][i].astype(np.float64)
    raised = np.exp(scores - scores.max())
    shares = raised / raised.sum()
    names, found = rows(page)
    assert names == [step.op["of"], "exp", "weights"]
    np.testing.assert_allclose(found[:, 1], raised, atol=0.00051)
    np.testing.assert_allclose(found[:, 2], shares, atol=0.00051)
    lengths, within = bars(page)
    np.testing.assert_allclose(np.delete(lengths, j), np.delete(shares, j), atol=within)
    chart(page).focus()
    press(page, "ArrowRight")  # begins at the cell that is looked into
    assert page.locator(".sum-said").inner_text().startswith(f"{step.columns[j]}: ")


def test_what_is_no_sum_has_no_bars(visit: Visit) -> None:
    walk = layer_walk("lesson")
    page = visit(walk_page(walk))
    for name, some in [("scores", True), ("scaled", False), ("context", True), ("joined", False)]:
        step_of(page, walk, name)
        assert chart(page).is_visible() is some
