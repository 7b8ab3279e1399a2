"""Tests of the colours of a page.

Pages, pictures and terminals share one table of colours. The number 0 has the colour of the page's
background.
"""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import Page

import qkv
from qkv.see.draw import colours

from .bundling import by_node, script_of
from .playing import pictures
from .support import SPANS, STATIC, WORDS, Visit, idle, made, page_of, payload, whole_page

SHARES = [k / 500 for k in range(-550, 551)]


def test_the_page_and_python_compute_the_same_colours() -> None:
    stops = {
        theme: {
            name: list(bytes.fromhex("".join(re.findall(r"#(\w{6})", found))))
            for name, found in re.findall(r"(--more|--less):([^;]*)", rule)
        }
        for theme, rule in zip(("light", "dark"), colours.css().split("\n"), strict=True)
    }
    code = (
        f"{script_of('base/colours')}\nconst stops = {json.dumps(stops)}, shares = {SHARES};\n"
        "const result = Object.values(stops).map((theme) =>"
        " shares.map((x) => page.shade({ stops: (name) => theme[name] }, x)));"
    )
    for theme, shades in zip(stops, by_node(code), strict=True):
        for share, shade in zip(SHARES, shades, strict=True):
            assert "#" + bytes(shade).hex() == colours.shade(share, theme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_maps_share_the_background_of_the_page(visit: Visit, scheme: str) -> None:
    page = visit(page_of(made(WORDS)), scheme=scheme)
    ground = page.evaluate(
        "() => { const root = document.querySelector('.qkv-view').shadowRoot;"
        " const colour = (name) => getComputedStyle(root.querySelector(name)).backgroundColor;"
        " return ['.view', '.thumb', '.panel'].map(colour); }"
    )
    paper = list(bytes.fromhex(colours.shade(0.0, scheme)[1:]))
    assert ground[:2] == [f"rgb({', '.join(map(str, paper))})"] * 2
    assert ground[2] == "rgba(0, 0, 0, 0)"
    assert thumbnails(page)[0, 0, -1].tolist() == paper  # masked: a weight of 0
    other = {"light": "dark", "dark": "light"}[scheme]
    page.emulate_media(color_scheme=other)
    page.locator(f".view[data-theme={other}]").wait_for()
    assert thumbnails(page)[0, 0, -1].tolist() == list(bytes.fromhex(colours.shade(0.0, other)[1:]))


def thumbnails(page: Page) -> np.ndarray:
    """Return all heads' pictures once drawn, `(heads, rows, columns, 3)`, the first layer first."""
    idle(page)
    found = pictures(page.locator("[data-head]"))
    assert len(found) == page.locator(".thumb").count()
    return np.array([found[name] for name in sorted(found)], int)


def shaded(values: np.ndarray, end: float) -> np.ndarray:
    shades = [list(bytes.fromhex(colours.shade(float(x) / end)[1:])) for x in values.ravel()]
    return np.array(shades).reshape(*values.shape, 3)


def legend(page: Page) -> tuple[str, list[str]]:
    idle(page)
    name = page.locator(".scale-name").first.inner_text()
    return name, page.locator(".scale").first.locator(".scale-ends span").all_inner_texts()


def merged(values: np.ndarray) -> np.ndarray:
    """Merge the subwords of a word: sum the weights that they receive, average those they give."""
    columns = np.stack([values[..., span].sum(-1) for span in SPANS], axis=-1)
    return np.stack([columns[..., span, :].mean(-2) for span in SPANS], axis=-2)


def test_thumbnails_show_what_the_map_shows_on_its_scale(visit: Visit) -> None:
    text = made(WORDS)
    weights = np.array(text.weights, np.float64).reshape(8, len(WORDS), len(WORDS))
    lengths = weights * np.array(text.norms).reshape(8, 1, len(WORDS))
    page = visit(page_of(text, layer=1, head=2))
    merge, skip, stretch = (
        page.get_by_label(name) for name in ("merge subwords", "leave out special", "stretch")
    )

    def agree(values: np.ndarray, end: float, name: str) -> None:
        assert np.abs(thumbnails(page) - shaded(values, end)).max() <= 3
        assert legend(page) == (name, ["0", f"{end / 2:.2f}", f"{end:.2f}"])

    merge.set_checked(False)
    agree(weights, 1.0, "weight")
    merge.check()
    agree(merged(weights), 1.0, "weight")
    page.get_by_label("Show", exact=True).select_option("length")
    agree(merged(lengths), merged(lengths).max(), "contribution")
    merge.uncheck()
    agree(lengths, lengths.max(), "contribution")
    stretch.check()
    agree(lengths, lengths[6].max(), "contribution, stretched")
    page.get_by_label("Show", exact=True).select_option("weight")
    agree(weights, weights[6].max(), "weight, stretched")
    page.get_by_label("Head", exact=True).select_option("0")
    agree(weights, weights[4].max(), "weight, stretched")
    skip.check()
    agree(weights[:, 1:-1, 1:-1], weights[4, 1:-1, 1:-1].max(), "weight, stretched")
    stretch.uncheck()
    agree(weights[:, 1:-1, 1:-1], 1.0, "weight")


def test_both_texts_of_a_comparison_have_one_scale(visit: Visit) -> None:
    view = qkv.compare("the cat sat", "a cat ran", word="cat", model="random", layer=0, head=0)
    page = visit(view._document())
    ends = page.locator(".scale-ends span:last-child")
    assert ends.all_inner_texts() == ["1.00"] * 3  # the third scale belongs to the difference
    page.get_by_label("stretch").check()
    largest = max(float(side.trace.pattern(0, 0).max()) for side in view.sides)
    assert ends.all_inner_texts() == [f"{largest:.2f}"] * 3


def test_walk_scales_are_anchored_at_0_and_weights_end_at_1(visit: Visit) -> None:
    view = qkv.walk("the cat sat", model="random")
    page = visit(view._document())
    for step in view.steps[:-1]:
        page.locator("[role=tab]", has_text=re.compile(rf"\d {step.name}$")).click()
        _, ends = legend(page)
        low, middle, high = (float(end.replace("\N{MINUS SIGN}", "-")) for end in ends)
        stretch = page.get_by_label("stretch")
        assert stretch.is_visible() == (step.name == "weights")
        if step.name == "weights":
            assert (low, middle, high) == (0, 0.5, 1)
            stretch.check()
            assert legend(page)[1][2] == f"{step.values.max():.2f}"
        elif step.values.min() < 0:
            assert middle == 0
            assert low == -high
        else:
            assert low == 0


def test_a_page_may_open_stretched(visit: Visit) -> None:
    data = payload(made(WORDS)) | {"stretch": True}
    page = visit(whole_page(data, STATIC))
    assert page.get_by_label("stretch").is_checked()
    assert legend(page)[0] == "weight, stretched"
