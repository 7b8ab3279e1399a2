"""Tests of the walk and the shift in a page, against the library's own numbers."""

import csv
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page

from qkv.layers import MLP, Block, MultiHeadAttention, RMSNorm
from qkv.models import random_model
from qkv.models.untrained import fresh_model
from qkv.see.analysis.word_vectors import Shift, shift_of_traces
from qkv.see.page.payload import payload_of, shift_payload, walk_payload
from qkv.see.steps.walk import Walk, walk_head, walk_layer
from qkv.trace import Trace

from .support import (
    CELLS,
    STATIC,
    Visit,
    after_each,
    idle,
    press,
    read,
    readout,
    said,
    tight,
    whole_page,
)
from .test_page import problems

CAT = "The cat sat on the mat"
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
RIBBONS = "all => all.map(({ dataset: { from, to, wide } }) => [from, to, Number(wide)])"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def walk_page(walk: Walk) -> str:
    return whole_page(payload_of("walk", "a walk", [], walk=walk_payload(walk)), STATIC)


def shift_page(shift: Shift) -> str:
    return whole_page(payload_of("shift", "a shift", [], shift=shift_payload(shift)), STATIC)


def lesson_walk(**options: Any) -> Walk:
    model = random_model(CAT, **options)
    return walk_head(model.trace(CAT), 0, 1, model)


SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 20}
SIZES |= {"intermediate_size": 12, "max_position_embeddings": 8}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"architectures": ["BertForMaskedLM"], **SIZES},
    "llama": {"architectures": ["LlamaForCausalLM"], **SIZES},
    # both parts of a block read the block's input, each through its own norm or through one norm
    "gpt_neox": {"architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 0.5, **SIZES},
    "gptj": {
        **{"architectures": ["GPTJForCausalLM"], "rotary_dim": 2, "vocab_size": 20},
        **{"n_embd": 8, "n_head": 2, "n_layer": 2, "n_inner": 12, "n_positions": 8},
    },
}


def model_walk(name: str) -> Walk:
    """Return a walk through a model, up to the words that it predicts."""
    model = fresh_model({"model_type": name, **MODELS[name]})
    parameters = model.parameters.items()
    loud = {name: 25 * array if array.ndim > 1 else array for name, array in parameters}
    model = model.with_parameters(loud)
    return walk_head(model.trace([3, 14, 5, 9]), 0, 1, model)


def layer_walk(name: str) -> Walk:
    """Return the walk of this name: through a layer, or through a model up to its predictions."""
    if name in MODELS:
        return model_walk(name)
    grouped = {"num_heads": 4, "num_kv_heads": 2, "bias": True, "seed": 1}
    x, context = normal(5, 8), normal(7, 8, seed=2)
    if name == "cross":
        layer = MultiHeadAttention(8, rotary={}, **grouped)
        keys = ["der", "Hund", HOSTILE, "und", "‮evil", "", "\u200b"]
        return walk_layer(layer, x, context, head=3, tokens=list("abcde"), keys=keys, q_offset=1)
    if name == "rotary":
        rotary = {"dims": 4, "interleaved": True, "base": 50.0}
        layer = MultiHeadAttention(8, 2, d_query=6, d_value=3, rotary=rotary, seed=1)
        return walk_layer(layer, x, attn_mask=normal(5, 5, seed=3), is_causal=True)
    if name == "block":
        norm, mlp = RMSNorm(8), MLP(8, 8, seed=0)
        norm.parameters["weight"][:] = normal(8, seed=4)
        block = Block(MultiHeadAttention(8, **grouped), norm, mlp, norm, post_norm=False)
        return walk_layer(block, x, head=1, window=(1, 0))
    return lesson_walk(causal=True)


def numbers_in(text: str) -> tuple[str, list[float]]:
    """Return a sum with each number replaced by `#`, and the numbers."""
    plain = text.replace(MINUS, "-").replace(TIMES, "*")
    pattern = r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-\d+)?"
    return re.sub(pattern, "#", plain), [float(x) for x in re.findall(pattern, plain)]


def agree(found: str, expected: str) -> None:
    """Check that two written sums have the same form and, except for rounding, equal numbers."""
    (form, numbers), (other, values) = numbers_in(found), numbers_in(expected)
    assert form == other
    np.testing.assert_allclose(numbers, values, atol=2e-3)


def sum_of(walk: Walk, step: Any, cell: tuple[int, int]) -> str:
    """Return the written sum of a cell, without the cell's name and number."""
    return " = ".join(walk.spell(step, cell, most=6).split(" = ")[1:-1])


def steps(page: Page) -> Iterator[int]:
    """Yield the index of every step, and go to the next by the Next button."""
    count = page.get_by_role("tab").count()
    for k in range(count):
        assert page.get_by_role("tab", selected=True).get_attribute("data-i") == str(k)
        yield k
        page.get_by_role("button", name="Next").click(force=True)  # at the end it does nothing


@pytest.mark.parametrize("name", ["lesson", "cross", "rotary", "block", "bert", "llama"])
def test_every_step_has_its_lines_its_numbers_and_the_sum_of_any_cell(
    visit: Visit, name: str
) -> None:
    walk = layer_walk(name)
    page = visit(walk_page(walk))
    for k in steps(page):
        step = walk.steps[k]
        assert page.locator("h3").first.inner_text() == f"{k + 1}. {step.title} {step.shape}"
        assert page.locator(".formula").inner_text() == step.formula
        assert page.locator(".code").inner_text() == step.code
        row = walk.cell[1 if step.side == "keys" and walk.keys is not walk.tokens else 0]
        first = step.cell or (row, walk.cell[1] if step.columns else 0)
        shown = readout(page)[""].rpartition(" ")[2]
        assert read(shown) == pytest.approx(float(step.values[first]), abs=5.1e-4)
        page.locator(".map").first.focus()
        press(page, "ArrowDown", "Control+Home")
        n, m = step.values.shape
        columns = step.shown or range(m)
        row_by_row = ["Home", *["ArrowRight"] * (len(columns) - 1), "ArrowDown"]
        told = iter(after_each(page, row_by_row * n))
        for i in range(n):
            for j, shown in zip(columns, told, strict=False):
                where, _, value = shown[""].rpartition(" = ")
                number = float(step.values[i, j])
                hidden = step.hidden is not None and step.hidden[i, j]
                assert read(value) == pytest.approx(number, abs=5.1e-4)
                if step.rows[i].isascii() and step.rows[i].isalnum():
                    assert where.startswith(f"{step.name}[{step.rows[i]}, ")
                how = sum_of(walk, step, (i, j))
                if hidden:
                    assert shown["="] == "hidden"
                elif how:
                    agree(shown["="], how)
                else:
                    assert "=" not in shown
            next(told)  # the row below


def test_odd_tokens_are_text(visit: Visit) -> None:
    page = visit(walk_page(layer_walk("cross")))
    page.get_by_role("tab", name="K:").click()
    page.locator(".map").first.focus()
    press(page, "ArrowDown", "Control+Home")
    titles = []
    for _ in range(7):
        titles.append(readout(page)[""].partition(" = ")[0])
        press(page, "ArrowDown")
    assert titles[2] == f"K[{HOSTILE}, 0]"
    assert titles[4] == "K[⟨202e⟩evil, 0]"
    assert titles[5:] == ["K[∅, 0]", "K[⟨200b⟩, 0]"]
    assert page.locator("img").count() == 0


def test_steps_are_walked_by_keyboard_and_a_chosen_cell_stays_chosen(visit: Visit) -> None:
    walk = lesson_walk()
    page = visit(walk_page(walk))
    last = len(walk.steps) - 1
    chosen = page.get_by_role("tab", selected=True)
    chosen.focus()
    press(page, "ArrowRight", "ArrowRight")
    assert chosen.get_attribute("data-i") == "2"
    assert said(page) == f"Step 3 of {last + 1}: {walk.steps[2].title}"
    press(page, "End", "ArrowRight")
    assert chosen.get_attribute("data-i") == str(last)
    forward, back = (page.get_by_role("button", name=name) for name in ("Next", "Back"))
    assert forward.get_attribute("aria-disabled") == "true"
    assert back.get_attribute("aria-disabled") == "false"
    forward.click(force=True)
    assert chosen.get_attribute("data-i") == str(last)
    back.focus()
    press(page, "Enter", "ArrowLeft")
    assert chosen.get_attribute("data-i") == str(last - 2)
    page.get_by_role("tab").nth(last - 2).focus()
    press(page, "Home")
    assert chosen.get_attribute("data-i") == "0"
    assert back.get_attribute("aria-disabled") == "true"
    tab_stops = page.get_by_role("tab").evaluate_all("tabs => tabs.map((tab) => tab.tabIndex)")
    assert sorted(tab_stops) == [-1] * last + [0]
    panel = page.get_by_role("tabpanel")
    assert panel.get_attribute("aria-labelledby") == chosen.get_attribute("id")
    assert chosen.get_attribute("aria-controls") == panel.get_attribute("id")
    page.get_by_role("tab", name="scores").click()
    step = next(step for step in walk.steps if step.name == "scores")
    assert readout(page)[""].startswith(f"scores[{step.rows[step.cell[0]]}, ")
    agree(readout(page)["="], " = ".join(step.sum.split(" = ")[1:-1]))
    area = page.locator(".map").first
    area.focus()
    press(page, "ArrowDown", "Control+End", "Enter")
    expected = f"scores[mat, mat] = {step.values[-1, -1]:.3f}".replace("-", MINUS)
    assert readout(page)[""] == expected
    page.mouse.move(1, 1)
    area.blur()
    assert readout(page)[""] == expected
    page.get_by_role("tab", name="scaled").click()
    page.get_by_role("tab", name="scores").click()
    assert readout(page)[""] == expected
    before = page.locator(".map canvas").first.evaluate("canvas => canvas.toDataURL()")
    page.get_by_role("checkbox", name="Numbers in the cells").uncheck()
    assert page.locator(".map canvas").first.evaluate("canvas => canvas.toDataURL()") != before


def test_the_spelled_out_cell_is_in_view(visit: Visit) -> None:
    text = "one two three four five six seven eight nine ten eleven"
    model = random_model(text, seed=2)
    walk = walk_head(model.trace(text), 0, 0, model)
    assert walk.cell[1] > 5  # beyond the columns that fit
    page = visit(walk_page(walk), width=390)
    page.get_by_role("tab", name="scaled").click()
    idle(page)
    left, part, whole = page.locator(".map").first.evaluate(
        "box => [box.scrollLeft, box.clientWidth, box.scrollWidth]"
    )
    names = 60  # the maximum width of the row names
    middle = names + (whole - names) * (walk.cell[1] + 0.5) / 11
    assert left + names < middle < left + part


@pytest.mark.parametrize("name", ["lesson", "cross", "block"])
def test_the_last_step_is_shown_beside_the_models_own_output(visit: Visit, name: str) -> None:
    walk = layer_walk(name)
    page = visit(walk_page(walk))
    assert not page.locator(".lead").is_visible()
    page.get_by_role("tab").last.click()
    said = page.locator(".lead").inner_text()
    assert float(re.search(r"own is (\S+)\.$", said)[1]) == pytest.approx(walk.difference, rel=0.06)
    assert page.locator("h4").nth(1).inner_text() == f"The model's own {walk.own_name}"
    page.locator(".map").nth(1).focus()
    press(page, "ArrowDown", "Control+Home", "ArrowDown", "ArrowRight")
    title = page.locator(".readout-title").nth(1).inner_text()
    assert title.startswith(f"{walk.own_name}[{walk.tokens[1]}, 1] = ")
    for shown, own in ((title, walk.own), (readout(page)[""], walk.recomputed)):
        assert read(shown.rpartition(" ")[2]) == pytest.approx(float(own[1, 1]), abs=5.1e-4)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_walk_of_a_model_continues_to_the_words(visit: Visit, width: int) -> None:
    walk = model_walk("bert")
    page = visit(walk_page(walk), width=width)
    steps = {step.name: step for step in walk.steps}
    for name in ("pre", "post", "logits", "probs"):
        page.get_by_role("tab", name=re.compile(f"^\\d+ {name}:")).click()
        page.locator(".map").first.focus()
        press(page, "ArrowDown", "Control+Home")
        rows = steps[name].rows
        for column, called in steps[name].shown.items():
            shown = readout(page)[""]
            assert shown.startswith(f"{name}[{rows[0]}, {called}] = ")
            value = float(steps[name].values[0, column])
            assert read(shown.rpartition(" ")[2]) == pytest.approx(value, abs=5.1e-4)
            press(page, "ArrowRight")
        press(page, "ArrowRight")
        assert readout(page)[""] == shown  # there are no more columns
        own = page.locator("h4", has_text="The model's own logits")
        assert own.is_visible() is (name == "logits")
        lead = page.locator(".lead")
        assert lead.is_visible() is (name in ("logits", "probs"))
    assert lead.inner_text().startswith(f"{walk.likeliest} The largest difference between")
    assert page.get_by_role("checkbox", name="stretch").is_visible()
    page.get_by_role("tab", name=re.compile(r"^\d+ mlp:")).click()
    assert page.locator(".lead").is_hidden()
    assert tight(page)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["lesson", "cross", "rotary", "block", "bert", "llama"])
def test_no_two_nodes_of_the_block_touch(visit: Visit, name: str, width: int) -> None:
    page = visit(walk_page(layer_walk(name)), width=width)
    found = boxes(page, ".block-name, .block-words:not(:empty)")
    assert len(found) > len(layer_walk(name).steps)
    assert min(box["left"] for box in found) >= 0
    assert max(box["right"] for box in found) <= width
    assert overlapping(found, within=0) == []


def test_ribbons_join_each_step_to_its_inputs(visit: Visit) -> None:
    page = visit(walk_page(model_walk("llama")))
    ribbons = page.locator(".ribbon[data-from]").evaluate_all(RIBBONS)
    assert [f"{name} {to}" for name, to, _ in ribbons] == [
        *("E X", "X N", "N Q", "N K", "N V", "Q Q_rotated", "K K_rotated"),
        *("Q_rotated scores", "K_rotated scores", "scores scaled", "scaled masked"),
        *("masked weights", "weights context", "V context", "context joined", "joined out"),
        *("X R", "out R", "R N2", "N2 pre", "pre act", "N2 up", "act post", "up post"),
        *("post mlp", "R Y", "mlp Y", "Y Z", "Z final", "final y", "y logits", "logits probs"),
    ]


@pytest.mark.parametrize(("name", "ribbon"), [("gpt_neox", "X N2"), ("gptj", "N pre")])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_ribbon_of_a_parallel_mlp_goes_around_the_attention(
    visit: Visit, name: str, ribbon: str, width: int
) -> None:
    page = visit(walk_page(model_walk(name)), width=width)
    first, last = ribbon.split()
    ribbons = page.locator(f'.ribbon[data-from="{first}"][data-to="{last}"]')
    assert ribbons.count() == 1
    count, behind = ribbons.evaluate(
        """(ribbon) => {
          const { left, top } = ribbon.ownerSVGElement.getBoundingClientRect();
          const all = [...ribbon.getRootNode().querySelectorAll(".block-name")];
          const nodes = all.filter((node) => {
            const box = node.getBoundingClientRect();
            const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
            return ribbon.isPointInFill(new DOMPoint(x - left, y - top));
          });
          const named = (node) => node.textContent.trim().split(" ")[1];
          return [all.length, nodes.map(named)];
        }"""
    )
    assert count > 20
    assert set(behind) <= {first, last}


def test_ribbon_widths_follow_the_chosen_row(visit: Visit) -> None:
    walk = model_walk("bert")
    page = visit(walk_page(walk))
    steps = {step.name: step.values.astype(np.float64) for step in walk.steps}
    page.get_by_role("tab", name=re.compile(r"^\d+ R:")).click()
    for row in (walk.position, 3, 0):
        page.locator(".map").first.focus()
        press(page, "ArrowDown", "Control+Home", *["ArrowDown"] * row, "Enter")
        assert f"vector of {walk.tokens[row]} has" in page.locator(".walk-panel .note").inner_text()
        ribbons = page.locator(".ribbon[data-from]").evaluate_all(RIBBONS)
        wide = {name: wide for name, _, wide in ribbons}
        for name in ("X", "Q", "V", "out", "R", "N1", "mlp", "R2"):
            expected = np.linalg.norm(steps[name][row]) / np.linalg.norm(steps["X"][row])
            if min(wide[name], wide["X"]) > 1.01:
                assert wide[name] / wide["X"] == pytest.approx(expected, rel=2e-3), name


def test_the_walk_reports_a_wrong_output(visit: Visit) -> None:
    walk = lesson_walk()
    walk.own[2, 3] += 0.25
    page = visit(walk_page(walk))
    page.get_by_role("tab").last.click()
    assert "the model's own is 2.5e-1" in page.locator(".lead").inner_text()


def test_the_walk_of_a_long_text_shows_only_some_rows(visit: Visit) -> None:
    text = " ".join(f"w{number}" for number in range(100))
    model = random_model(text, seed=4)
    walk = walk_head(model.trace(text), 0, 0, model)
    page = visit(walk_page(walk))
    rows = walk_payload(walk)["rows"]
    for name in ("X", "K", "scores", "weights", "out"):
        step = next(step for step in walk.steps if step.name == name)
        page.get_by_role("tab", name=re.compile(f"^\\d+ {name}:")).click()
        assert "Shown: the 64 of 100 rows" in page.locator(".walk-panel .note").first.inner_text()
        written = page.get_by_role("checkbox", name="Numbers in the cells")
        assert written.is_checked() is (step.columns is None)
        written.check()
        page.locator(".map").first.focus()
        press(page, "ArrowDown", "Control+Home", "ArrowDown", "ArrowDown")
        shown = readout(page)
        position = (rows[2], 0)
        number = float(step.values[position])
        assert read(shown[""].rpartition(" ")[2]) == pytest.approx(number, abs=5.1e-4)
        agree(shown["="], sum_of(walk, step, position))


def test_a_matrix_that_the_page_leaves_out_is_named(visit: Visit) -> None:
    layer = MultiHeadAttention(1300, 13, seed=0)
    page = visit(walk_page(walk_layer(layer, normal(2, 1300))))
    page.get_by_role("tab", name="10 out").click()
    left_out = f"joined · W_O (this page does not contain W_O, a matrix of 1300 {TIMES} 1300)"
    assert readout(page)["="] == left_out


# the shift


def two_sentences() -> Shift:
    texts = ["I sat on the bank of the river.", "The bank raised its rates."]
    model = random_model(texts, dim=12)
    return shift_of_traces([model.trace(text) for text in texts])


def shift_between(before: np.ndarray, after: np.ndarray, tokens: list[str]) -> Shift:
    """Return the shift from one set of vectors `(n, D)` to another."""
    arrays = {"hook_embed": before[None], "blocks.0.hook_resid_post": after[None]}
    return shift_of_traces([Trace(arrays, tokens=[tokens])])


def many(count: int, *, seed: int = 0) -> Shift:
    """Return a shift whose points are so close that labels beside the points would overlap."""
    before, after = np.random.default_rng(seed).normal(size=(2, count, 3))
    return shift_between(before * 0.1, after, [f"word{number}" for number in range(count)])


def positions(page: Page) -> np.ndarray:
    """Return both ends of each arrow, `(n, 4)`."""
    return np.array(
        page.locator(".shift-plane [data-word] line").evaluate_all(
            "lines => lines.map((line) => ['x1', 'y1', 'x2', 'y2']"
            ".map((name) => Number(line.getAttribute(name))))"
        )
    )


def boxes(page: Page, nodes: str = ".shift-label") -> list[dict[str, Any]]:
    return page.locator(nodes).evaluate_all(
        "nodes => nodes.map((node) =>"
        " ({ ...node.getBoundingClientRect().toJSON(), text: node.textContent }))"
    )


def overlapping(found: list[dict[str, Any]], within: float = 0.5) -> list[tuple[str, str]]:
    def begins(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return a["left"] < b["right"] - within and a["top"] < b["bottom"] - within

    pairs = itertools.combinations(found, 2)
    return [(a["text"], b["text"]) for a, b in pairs if begins(a, b) and begins(b, a)]


@pytest.mark.parametrize("width", [1280, 390])
def test_arrows_are_in_one_plane_at_every_layer(visit: Visit, width: int) -> None:
    shift = two_sentences()
    page = visit(shift_page(shift), width=width)
    at_last = positions(page)
    slider = page.get_by_role("slider")
    slider.focus()
    press(page, "Home")
    for stage in shift.stages:
        ends = positions(page)
        np.testing.assert_array_equal(ends[:, :2], at_last[:, :2])  # the static ends do not move
        pairs = np.concatenate([shift.before, stage.points])
        pixels = np.concatenate([ends[:, :2], ends[:, 2:]])
        spans = pairs - pairs[0], pixels - pixels[0]
        size = np.abs(spans[1]).max() / np.abs(spans[0]).max()
        # both axes have the same unit, and y points up
        np.testing.assert_allclose(spans[1], spans[0] * [size, -size], atol=0.1)
        assert page.locator("output").inner_text() == stage.name
        assert slider.get_attribute("aria-valuetext") == stage.name
        press(page, "ArrowRight")
    assert said(page).startswith(shift.stages[-1].name)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("seed", range(4))
def test_no_two_labels_touch_up_to_20_tokens(visit: Visit, width: int, seed: int) -> None:
    page = visit(shift_page(many(20, seed=seed)), width=width)
    texts = [box["text"] for box in boxes(page)]
    assert sorted(texts) == sorted(2 * [f"word{number}" for number in range(20)])
    assert overlapping(boxes(page)) == []
    frame = page.locator(".shift-frame").bounding_box()
    for box in boxes(page):
        assert frame["x"] - 1 <= box["left"]
        assert box["right"] <= frame["x"] + frame["width"] + 1


def test_a_word_that_is_pressed_is_marked_and_named(visit: Visit) -> None:
    shift = many(30)
    page = visit(shift_page(shift))
    assert "Labelled: the 20 of 30 words" in page.locator(".view").inner_text()
    other = next(i for i in range(30) if i not in shift.labelled)
    word = page.get_by_role("button", name=f"word{other}", exact=True)
    assert f"word{other}" not in [box["text"] for box in boxes(page)]
    word.focus()
    press(page, "Enter")
    assert word.get_attribute("aria-pressed") == "true"
    assert f"word{other}" in [box["text"] for box in boxes(page)]
    assert page.locator(".shift-arrow.picked").get_attribute("data-word") == str(other)
    press(page, "Enter")
    assert page.locator(".shift-arrow.picked").count() == 0


def test_the_page_of_a_shift_tells_its_numbers_and_saves_them(visit: Visit) -> None:
    shift = two_sentences()
    page = visit(shift_page(shift))
    texts = page.locator(".shift-axis").all_text_contents()
    for number, share in enumerate(shift.explained, 1):
        assert f"PC {number} ({100 * share:.0f}% of the variance of unit vectors)" in texts
    last = shift.stages[-1]
    lengths = np.linalg.norm(last.points - shift.before, axis=1)
    furthest = int(lengths.argmax())
    sentence = page.locator(".sentence").inner_text().replace(MINUS, "-")
    assert sentence.startswith(shift.tokens[furthest])
    assert f" has the longest arrow: {lengths.max():.2f} in the plane" in sentence
    assert f"vector after layer 0 is {last.cosine[furthest]:.3f}" in sentence
    lowest = last.cosine[furthest] == last.cosine.min()
    assert sentence.endswith(", the lowest of all.") == lowest
    held = page.locator(".note", has_text="One plane for all layers").inner_text()
    assert f"The plane shows {100 * last.held:.0f}% of the variance" in held
    page.get_by_text("Save", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV: words").click()
    assert download.value.suggested_filename.startswith("shift_I-sat-on-the-bank")
    text = Path(download.value.path()).read_text("utf-8")
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    names = ["static", *(stage.name for stage in shift.stages)]
    assert [row[3] for row in rows] == names * len(shift.tokens)
    points = np.array([shift.before, *(stage.points for stage in shift.stages)])
    found = np.array([row[4:6] for row in rows], np.float64)
    np.testing.assert_allclose(found, points.swapaxes(0, 1).reshape(-1, 2), rtol=1e-6, atol=1e-7)
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    svg = ElementTree.fromstring(Path(download.value.path()).read_bytes())
    space = "{http://www.w3.org/2000/svg}"
    written = [part.text for part in svg.iter(f"{space}text")]
    for box in boxes(page):
        written.remove(box["text"])
    lines = svg.iter(f"{space}line")
    ends = [[float(line.get(end, "nan")) for end in ("x1", "y1", "x2", "y2")] for line in lines]
    assert all(position in ends for position in positions(page).tolist())
    head, *rows = page.get_by_role("table").first.locator("tr").evaluate_all(CELLS)
    assert head == ["word", "sentence", *(stage.name for stage in shift.stages)]
    assert len(rows) == len(shift.tokens)
    for position, (word, sentence, *cosines) in enumerate(rows):
        assert (word, sentence) == (shift.tokens[position], "AB"[shift.of[position]])
        expected = [stage.cosine[position] for stage in shift.stages]
        assert [x.replace(MINUS, "-") for x in cosines] == [f"{x:.3f}" for x in expected]
    head, *rows = page.get_by_role("table").nth(1).locator("tr").evaluate_all(CELLS)
    assert head == ["word", "sentences", "static", *(stage.name for stage in shift.stages)]
    for pair, (word, sentences, *cosines) in zip(shift.pairs, rows, strict=True):
        assert (word, sentences) == (pair.word, "A, B")
        assert [x.replace(MINUS, "-") for x in cosines] == [f"{x:.3f}" for x in pair.cosine]
    page.get_by_role("slider").focus()
    press(page, "Home")
    marked = page.locator("th.shift-now").all_inner_texts()
    assert marked == [shift.stages[0].name] * 2


def test_vectors_that_do_not_move_are_drawn(visit: Visit) -> None:
    page = visit(shift_page(shift_between(np.ones((2, 3)), np.ones((2, 3)), ["a", HOSTILE])))
    assert np.isfinite(positions(page)).all()
    assert page.locator("img").count() == 0
    assert {box["text"] for box in boxes(page)} == {"a", f"{HOSTILE[:17]}…"}


# both


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["lesson", "cross", "bert", "shift", "arrays"])
def test_it_fits_and_passes_axe(visit: Visit, kind: str, width: int) -> None:
    shifts = {"shift": two_sentences, "arrays": lambda: many(30)}
    html = shift_page(shifts[kind]()) if kind in shifts else walk_page(layer_walk(kind))
    page = visit(html, width=width)
    tabs = page.get_by_role("tab")
    for k in range(max(1, tabs.count())):
        if tabs.count():
            tabs.nth(k).click()
        assert tight(page)
        if k in (0, tabs.count() - 1):
            assert problems(page) == []


def test_no_button_is_without_a_name_until_its_matrix_is_drawn(visit: Visit) -> None:
    page = visit(walk_page(lesson_walk(causal=True)), width=390)
    page.evaluate("let now = 0; performance.now = () => (now += 5);")  # draw one part per task
    nameless = page.get_by_role("tab").evaluate_all(
        """(tabs) => tabs.flatMap((tab) => {
          tab.click();
          const buttons = [...tab.getRootNode().querySelectorAll("button")];
          return buttons.filter((one) => one.checkVisibility() && !one.textContent);
        }).length"""
    )
    assert nameless == 0
