"""Tests of the page of one head of one text, against the numbers it was made from."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from playwright.sync_api import Page

import qkv
from qkv.see.analysis.head_weights import Axis, Heads
from qkv.see.draw.colours import shade

from .support import (
    SPANS,
    STEP,
    WORDS,
    Visit,
    idle,
    keys,
    made,
    page_of,
    press,
    read,
    readout,
    said,
    sentence,
    shown_weights,
    token,
)

CAT = "The cat sat on the mat"
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def view() -> qkv.see.ShowView:
    return qkv.show(CAT, model="random")


@pytest.fixture
def page(visit: Visit, view: qkv.see.ShowView) -> Page:
    return visit(view._document())


def test_the_first_paint_says_what_the_terminal_says(page: Page, view: qkv.see.ShowView) -> None:
    assert page.locator(".lead").inner_text() == view.sentence
    link = view.links[0]
    query = link.query
    looks = f"{view.tokens[query]} attends to {view.tokens[link.key]}: {link.weight:.2f} (layer 0, "
    assert sentence(page).replace("the (4)", "the").replace("the (0)", "the").startswith(looks)
    assert f"is shown because {view.head.reason}." in page.locator(".view").inner_text()
    assert token(page, query).get_attribute("class") == "token on"
    assert [name for name, _ in keys(page)] == view.tokens
    np.testing.assert_allclose(shown_weights(page), view.weights[query], atol=0.00501)
    assert read(readout(page)["weight"]) == pytest.approx(view.weights[query].max(), abs=STEP)


def every_cell(page: Page, size: int) -> Iterator[tuple[tuple[int, int], dict[str, str]]]:
    """Go through a heat map of `size` keys by keyboard; yield each cell and its readout."""
    page.get_by_role("application").focus()
    press(page, "ArrowDown", "Control+Home", "Home")
    for i, j in product(range(size), repeat=2):
        yield (i, j), readout(page)
        press(page, *(["ArrowRight"] if j < size - 1 else ["ArrowDown", "Home"]))


def test_every_cell_read_by_keyboard_matches_the_trace(page: Page, view: qkv.see.ShowView) -> None:
    layer, head = view.head.layer, view.head.head
    scaled = view.trace["attn_scores", layer][0, head]
    q, k = (view.trace[name, layer][0, :, head].astype(np.float64) for name in "qk")
    raw = q @ k.T
    for (i, j), shown in every_cell(page, len(view.tokens)):
        assert shown[""] == f"{view.tokens[i]} → {view.tokens[j]}"
        assert shown["weight"] == f"{view.weights[i, j]:.5f}"
        assert shown["scaled score"].replace(MINUS, "-") == f"{scaled[i, j]:.3f}"
        assert read(shown["raw score"]) == pytest.approx(raw[i, j], abs=2e-3)
    assert view.tokens[-1] in said(page)


def swept(page: Page, steps: int) -> dict[str, tuple[float, float, dict[str, str]]]:
    """Move the pointer over the heat map; return the readout of each cell, by the cell's title.

    The result also has the mean x and the mean y of the pointer positions in each cell. While the
    pointer is outside the heat map, the readout shows one of the cells. The result omits this cell.
    """
    box = page.get_by_role("application").bounding_box()
    assert box is not None
    seen: dict[str, list[tuple[float, float, dict[str, str]]]] = {}
    for a, b in product(range(steps), repeat=2):
        x = box["x"] + box["width"] * (b + 0.5) / steps
        y = box["y"] + box["height"] * (a + 0.5) / steps
        page.mouse.move(x, y)
        now = readout(page)
        seen.setdefault(now[""], []).append((x, y, now))
    page.mouse.move(1, 1)
    rest = readout(page)[""]  # the title while the pointer is elsewhere
    return {
        title: (np.mean([x for x, _, _ in at]), np.mean([y for _, y, _ in at]), at[0][2])
        for title, at in seen.items()
        if title != rest
    }


def test_the_pointer_reads_every_cell_and_its_colour(visit: Visit) -> None:
    text = made(["one", "two", "three", "four"], seed=4)
    page = visit(page_of(text, query=0), width=700)
    weights = text.weights[0][0]
    seen = swept(page, 10)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.locator(f".view[data-theme={scheme}]").wait_for()
        idle(page)
        for (i, query), (j, key) in product(enumerate(text.queries.tokens), repeat=2):
            # While the pointer is outside the heat map, the page shows the readout of the first
            # cell. The result of `swept` omits this cell.
            if i == j == 0:
                continue
            x, y, now = seen[f"{query} → {key}"]
            assert now["mask"] == ("hidden" if j > i else "open")
            assert read(now["weight"]) == pytest.approx(weights[i, j], abs=STEP)
            colours = pixels(page, x, y)
            if j > i:  # hatched
                assert len({tuple(colour) for colour in colours}) > 3
            else:
                expected = list(bytes.fromhex(shade(float(weights[i, j]), scheme)[1:]))
                assert np.abs(np.array(colours) - expected).max() <= 3  # weights have 65,536 steps


@pytest.mark.parametrize("alike", [True, False], ids=["one mask", "a mask per head"])
def test_a_mask_of_every_head(visit: Visit, alike: bool) -> None:
    text = made(["one", "two", "three"], layers=2, heads=3)
    hidden = np.broadcast_to(~np.tri(3, dtype=bool), (2, 3, 3, 3)).copy()
    if not alike:  # in layer 1, head 2 each token sees only itself
        hidden[1, 2] = ~np.eye(3, dtype=bool)
        for i, j in np.argwhere(~np.eye(3, dtype=bool)):
            text.scores[1][2, i, j] = -np.inf
    page = visit(page_of(text, layer=1, head=2))
    for layer, head in ((1, 2), (1, 1), (0, 2)):
        page.get_by_label("Layer", exact=True).select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        for cell, shown in every_cell(page, 3):
            assert shown["mask"] == ("hidden" if hidden[layer, head][cell] else "open")


def pixels(page: Page, x: float, y: float) -> list[list[int]]:
    """Return the colours of the heat map around a point of the window."""
    return page.locator(".map canvas").evaluate(
        """(canvas, [x, y]) => {
            const frame = canvas.getBoundingClientRect(), ratio = canvas.width / frame.width;
            const copy = new OffscreenCanvas(9, 9).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, -(x - frame.left - 4) * ratio, -(y - frame.top - 4) * ratio);
            const found = copy.getImageData(0, 0, 9, 9).data;
            return Array.from({ length: 81 }, (_, k) => [...found.slice(4 * k, 4 * k + 3)]);
        }""",
        [x, y],
    )


def test_hover_previews_click_holds_escape_frees(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=5))
    first = sentence(page)
    assert first.startswith("cat attends to ")
    token(page, 6).hover()
    assert sentence(page).startswith("sat attends to ")
    page.mouse.move(1, 1)
    assert sentence(page) == first
    token(page, 7).click()
    token(page, 6).hover()
    assert sentence(page).startswith("on attends to ")
    assert token(page, 7).get_attribute("aria-selected") == "true"
    token(page, 9).click(modifiers=["Shift"])
    assert sentence(page).count(" attends to ") == 2
    assert page.locator(".token[aria-selected=true]").count() == 2
    token(page, 3).click()  # without Shift, it replaces the others
    assert page.locator(".token[aria-selected=true]").all_inner_texts() == ["##believ"]
    press(page, "Escape")
    page.mouse.move(1, 1)
    assert page.locator(".token[aria-selected=true]").count() == 0
    token(page, 6).hover()
    assert sentence(page).startswith("sat attends to ")


def test_the_list_by_keyboard(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=5))
    assert page.locator(".queries [tabindex='0']").count() == 1
    token(page, 5).focus()
    press(page, "ArrowDown")
    assert sentence(page).startswith("sat attends to ")
    assert said(page) == sentence(page)
    press(page, "Enter", "ArrowDown", "ArrowDown", "Shift+Enter")
    assert page.locator(".token[aria-selected=true]").all_inner_texts() == ["sat", "the"]
    press(page, "Escape", "End")
    assert sentence(page).startswith("[SEP] ")
    press(page, "Home", " ")
    assert page.locator(".token[aria-selected=true]").all_inner_texts() == ["[CLS]"]
    outline = page.evaluate(
        "() => { const root = document.querySelector('.qkv-view').shadowRoot;"
        " return getComputedStyle(root.activeElement).outlineStyle; }"
    )
    assert outline == "solid"


def test_lines_are_as_wide_as_weights(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=9))
    found = page.locator(".link").evaluate_all(
        "paths => paths.map((path) => [path.getAttribute('d').split(' ').at(-1),"
        " path.getAttribute('stroke-width'), path.getAttribute('stroke-opacity')].map(Number))"
    )
    weights = text.weights[0][0, 9]
    shown = weights[weights > 0.004]
    assert len(found) == len(shown)
    by_weight = np.array(sorted(found))[np.argsort(shown)]  # lines end at their keys' heights
    assert (np.diff(by_weight[:, 1:], axis=0) >= 0).all()


def test_special_tokens_are_left_out_without_renormalising(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=5))
    before = dict(keys(page))
    page.get_by_label("leave out special tokens").check()
    after = dict(keys(page))
    assert "[CLS]" not in after
    assert after.items() - before.items() == {("not shown", after["not shown"])}
    gone = text.weights[0][0, 5, [0, 10]].sum()
    assert read(after["not shown"]) == pytest.approx(gone, abs=0.00501)
    assert sentence(page).endswith(f"; {gone:.2f} is on tokens not shown.")
    assert "Weights are not rescaled" in page.locator(".view").inner_text()
    page.get_by_role("application").focus()
    press(page, "ArrowDown", "End")
    assert readout(page)[""].endswith("→ not shown")
    page.get_by_label("leave out special tokens").uncheck()
    assert dict(keys(page)) == before


def test_subwords_are_merged_at_first_and_explained(visit: Visit) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (1, 1, 4)).astype(np.float32)
    view = qkv.show(weights, tokens=["[CLS]", "un", "##kind", "dogs"])
    page = visit(view._document())
    assert [name for name, _ in keys(page)] == ["[CLS]", "unkind", "dogs"]
    notes = page.locator(".note").all_inner_texts()
    assert [note for note in notes if note in view.notes] == view.notes
    page.get_by_label("merge subwords into words").uncheck()
    assert [name for name, _ in keys(page)] == ["[CLS]", "un", "##kind", "dogs"]


def test_subwords_are_merged_keys_summed_and_queries_averaged(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=5))
    page.get_by_label("merge subwords into words").check()
    weights = text.weights[0][0].astype(np.float64)
    merged = np.array([[weights[np.ix_(a, b)].sum(axis=1).mean() for b in SPANS] for a in SPANS])
    for cell, shown in every_cell(page, len(SPANS)):
        assert read(shown["weight"]) == pytest.approx(merged[cell], abs=3 * STEP)
        assert ("pieces" in shown) == (2 in cell)
    assert "summed" in page.locator(".view").inner_text()
    assert "unbelievable" in [name for name, _ in keys(page)]


def test_a_number_is_rounded_once_and_as_in_the_terminal(visit: Visit) -> None:
    weights = np.array([[[[0.375, 0.625], [0.70499, 0.29501]]]])  # 5/8 is a tie: 0.62 or 0.63
    view = qkv.show(weights, tokens=["cat", "dog"], layer=0, head=0)
    page = visit(page_of(view.heads))
    assert sentence(page) == "cat attends to dog: 0.62 (layer 0, head 0)."
    token(page, 1).click()
    assert sentence(page) == f"dog attends to cat: {0.70499:.2f} (layer 0, head 0)."
    assert [value for _, value in keys(page)] == ["0.70", "0.30"]
    assert readout(page)["weight"] == "0.70499"


def test_contribution_is_weight_times_length(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=5))
    page.get_by_label("Show", exact=True).select_option("length")
    lengths = text.weights[0][0] * text.norms[0][0]
    best = int(lengths[5].argmax())
    assert sentence(page).startswith("cat receives most from ")
    assert sentence(page).endswith(f"a vector of length {lengths[5, best]:.2f} (layer 0, head 0).")
    shown = readout(page)
    assert read(shown["contribution"]) == pytest.approx(lengths[5, best], abs=1e-3)
    assert read(shown["weight"]) == pytest.approx(text.weights[0][0, 5, best], abs=STEP)
    assert read(shown["length of v W_O"]) == pytest.approx(text.norms[0][0, best], abs=1e-3)
    assert "Kobayashi" in page.locator(".view").inner_text()


def test_heads_are_opened_and_sorted(visit: Visit) -> None:
    text = made(WORDS)
    page = visit(page_of(text, query=5))
    heads = page.locator("[data-head]")
    names = [f"{layer}.{head}" for layer in (1, 0) for head in range(4)]  # the last layer on top
    assert heads.evaluate_all("all => all.map((head) => head.dataset.head)") == names
    page.locator(".thumb canvas").nth(7).wait_for()
    page.locator("[data-head='1.2']").click()
    weights = text.weights[1][2]
    best = int(weights[5].argmax())
    assert f": {weights[5, best]:.2f} (layer 1, head 2)" in sentence(page)
    assert said(page) == sentence(page)
    assert page.get_by_label("Layer", exact=True).input_value() == "1"
    assert "You chose layer 1, head 2" in page.locator(".view").inner_text()
    page.get_by_label("Order").select_option("first")
    means = np.array([part[:, :, 0].mean(axis=1) for part in text.weights]).ravel()
    shown = [name.get_attribute("aria-label").rsplit(", ", 1) for name in heads.all()]
    order = np.argsort(-means.round(3), kind="stable")
    assert [name for name, _ in shown] == [f"layer {k // 4}, head {k % 4}" for k in order]
    numbers = [float(number) for _, number in shown]
    np.testing.assert_allclose(numbers, means[order], atol=0.006)
    figures = page.locator("[data-part=map] .figure").all_inner_texts()
    assert figures == [f"{number:.2f}" for number in numbers]
    # Use the keyboard: focus the open head, move to a neighbouring head, and open that head.
    # The open head is the tab stop.
    position = list(order).index(6)
    heads.nth(position).focus()
    step, there = ("ArrowRight", position + 1) if position < 7 else ("ArrowLeft", position - 1)
    press(page, step, "Enter")
    opened = order[there]
    assert f"layer {opened // 4}, head {opened % 4}" in sentence(page)
    page.get_by_label("Order").select_option("position")
    assert heads.evaluate_all("all => all.map((head) => head.dataset.head)") == names


def test_a_text_of_two_sentences(visit: Visit) -> None:
    text = made(["[CLS]", "a", "cat", "sat", "[SEP]", "the", "dog", "ran", "[SEP]"], split=5)
    page = visit(page_of(text, query=7))
    page.get_by_label("Sentences").select_option("BA")
    assert [name for name, _ in keys(page)] == ["[CLS]", "a", "cat", "sat", "[SEP]", "not shown"]
    assert page.locator(".token").all_inner_texts() == ["the", "dog", "ran", "[SEP]"]
    gone = text.weights[0][0, 7, 5:].sum()
    assert sentence(page).endswith(f"; {gone:.2f} is on tokens not shown.")


def test_attentions_of_an_encoder_and_a_decoder(visit: Visit) -> None:
    random = np.random.default_rng(1)
    source, target = ["ein", "kurzer", "Satz"], ["a", "short", "sentence", "."]
    weights = random.dirichlet(np.ones(3), size=(1, 2, 4))
    queries, other_keys = Axis(target, [False] * 4), Axis(source, [False] * 3)
    cross = Heads(queries, [0], list(weights), other_keys=other_keys, name="Cross")
    page = visit(page_of(made(source, 1, 2, name="Encoder"), cross))
    menu = page.get_by_label("Attention")
    assert menu.locator("option").all_inner_texts() == ["Encoder", "Cross"]
    menu.select_option("Cross")
    token(page, 3).click()
    assert [name for name, _ in keys(page)] == source
    best, share = source[weights[0, 0, 3].argmax()], weights[0, 0, 3].max()
    assert sentence(page) == f". attends to {best}: {share:.2f} (layer 0, head 0)."


def test_requested_heads_are_marked(visit: Visit) -> None:
    page = visit(page_of(made(WORDS), heads=[1, 3]))
    marked = page.locator(".asked").evaluate_all("all => all.map((head) => head.dataset.head)")
    assert marked == [f"{layer}.{head}" for layer in (1, 0) for head in (1, 3)]


def test_the_shown_head_is_in_view_among_many(visit: Visit) -> None:
    page = visit(page_of(made(["one", "two", "three"], 12, 32), layer=0, head=31))
    for layer, head in ((0, 31), (11, 0), (6, 20)):
        page.get_by_label("Layer", exact=True).select_option(str(layer))
        page.get_by_label("Head", exact=True).select_option(str(head))
        # for another head, the sentence above the map may need another line
        box = page.locator(".model-map").bounding_box()
        cell = page.locator(f"[data-head='{layer}.{head}']").bounding_box()
        assert box["x"] <= cell["x"] < cell["x"] + cell["width"] <= box["x"] + box["width"]
        assert box["y"] <= cell["y"] < cell["y"] + cell["height"] <= box["y"] + box["height"]
