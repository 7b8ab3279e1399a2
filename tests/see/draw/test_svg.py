"""Tests that static pictures are well-formed SVG with the words and numbers of the views."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from qkv.models import Model, random_model
from qkv.see import View, compare, head_view, play, plot_shift, show, walk
from qkv.see.analysis.measures import summarize
from qkv.see.draw import svg
from qkv.see.draw.colours import AFTER, BEFORE, FAINT, INK, THEMES, TONES, shade
from qkv.see.draw.panels import (
    Arrows,
    Bars,
    ChartLine,
    HeatMap,
    Image as Picture,
    Lines,
    Links,
    Panel,
)
from qkv.trace import Trace

from ..support import BANK, CAT, MONEY

NAMESPACE = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def words(text: str) -> list[str]:
    return [element.text or "" for element in parsed(text).iter(f"{NAMESPACE}text")]


def of(panel: Panel) -> str:
    return svg.draw("title", [], [[panel]])


def heat_map(values: np.ndarray, rows, columns, **options) -> HeatMap:
    return HeatMap(values=values, rows=rows, columns=columns, **options)


def arrows(before: np.ndarray, after: np.ndarray, names: list[str], named) -> Arrows:
    shares = [0.75, 0.25]
    return Arrows(before=before, after=after, names=names, named=named, explained_variance=shares)


def test_the_picture_of_a_view_has_its_words_and_numbers(minilm: Model, tmp_path: Path) -> None:
    view = show(BANK, model=minilm, layer=0, head=4)
    view.to_svg(tmp_path / "view.svg")
    text = (tmp_path / "view.svg").read_text(encoding="utf-8")
    assert parsed(text).get("aria-label") == "bank attends to river: 0.71 (layer 0, head 4)."
    assert parsed(text).get("role") == "img"
    found = words(text)
    numbers = [word for word in found if re.fullmatch(r"\d\.\d\d", word)]
    exact = [f"{x:.2f}" for x in view.weights.ravel()]
    assert numbers[: len(exact)] == exact
    assert numbers[len(exact) :] == ["0.00", "1.00"]  # the scale
    for token in view.tokens:
        # at both ends of the links, and in the rows and columns of the map
        assert found.count(token) >= 4
    assert "bank attends to river: 0.71 (layer 0, head 4)." in found


@pytest.mark.parametrize(
    "make",
    [
        lambda m: show(CAT, model=m),
        lambda m: compare(CAT, BANK, word="sat", model=m),
        lambda m: compare(m.trace(CAT), m.trace(CAT, ablate=[(0, 1)])),
        lambda m: walk(CAT, model=m),
        lambda m: plot_shift([m.trace(CAT), m.trace(MONEY)]),
        lambda m: head_view(m.trace(CAT).attentions, CAT.split(), html_action="return"),
        lambda m: play(),
    ],
)
@pytest.mark.parametrize(("theme", "paper"), [("auto", "#ffffff"), ("dark", "#12161c")])
def test_every_picture_has_a_background_and_is_well_formed(
    make, theme: str, paper: str, lesson: Model
) -> None:
    view: View = replace(make(lesson), theme=theme)
    text = view.svg()
    root = parsed(text)
    assert root.tag == f"{NAMESPACE}svg"
    ground = root[0]
    assert (ground.tag, ground.get("fill")) == (f"{NAMESPACE}rect", paper)
    assert "id=" not in text  # two pictures on one page do not affect each other
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    width, height = (float(number) for number in root.get("viewBox").split()[2:])
    assert root.get("width") == f"{width:g}"
    for element in root.iter(f"{NAMESPACE}rect"):
        assert float(element.get("x", 0)) >= 0
    assert height < 3000


@pytest.mark.parametrize(
    ("titles", "width", "height"),
    [
        # the tiles are 150 wide; a picture without lines is at least 320 + 2 * 24 wide
        ([[""]], 368, 24 + 20 + 14 + 150 + 14 + 24),
        # three tiles and two gaps of 24 between them, and a gap at either side
        ([["", "", ""]], 3 * 150 + 2 * 24 + 2 * 24, 24 + 20 + 14 + 150 + 14 + 24),
        # the widest row decides; a title above a tile takes 20
        ([[""], ["a", "b", "c"]], 546, 24 + 20 + 14 + 150 + 14 + 170 + 14 + 24),
        # a title of 60 bold letters is 60 * 0.68 * 11 wide
        ([["t" * 60]], 448.8 + 2 * 24, 24 + 20 + 14 + 170 + 14 + 24),
    ],
)
def test_a_picture_is_as_large_as_its_panels_and_gaps(
    titles: list[list[str]], width: float, height: float
) -> None:
    rows = [
        [heat_map(np.ones((1, 1)), ["a"], ["b"], compact=True, title=title) for title in row]
        for row in titles
    ]
    root = parsed(svg.draw("title", [], rows))
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}"
    assert (root.get("width"), root.get("height")) == (f"{width:g}", f"{height:g}")
    for each in root.iter(f"{NAMESPACE}image"):
        assert (each.get("width"), each.get("height")) == ("150.0", "150.0")


ONE = heat_map(np.ones((1, 1)), ["a"], ["b"])
LINKS = heat_map(np.ones((2, 3)), ["a", "b"], ["c", "d", "e"])
PIXELS = np.zeros((2, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("panel", "width", "height"),
    [
        # a letter is 0.6 * 11 = 6.6 wide, and the scale at least 190; the label of a column is
        # turned by 45 degrees: 0.71 of its length, above a cell of 30
        (ONE, 6.6 + 8 + 190, 0.71 * 6.6 + 12 + 30 + 14 + 22),
        # 20 for each query or key; the lines cross 130
        (Links(map=LINKS, strongest=[]), 6.6 + 10 + 130 + 6 + 6.6, 3 * 20),
        # bars of 120 between the names and the numbers; with negative numbers, 60 on either side
        (Bars(names=["a", "b"], values=[1, 2]), 6.6 + 8 + 120 + 60, 2 * 18),
        (Bars(names=["a"], values=[-1]), 6.6 + 8 + 60 + 4 * 11 + 60 + 60, 18),
        (Picture(pixels=PIXELS), 300, 150),
        (Picture(pixels=PIXELS, chosen=True), 150, 75),
        # 150 for the lines, 32 for the names below them, 18 for each line of the legend
        (
            Lines(lines=[ChartLine([(0, 1)], name="x")] * 2, names=["0"], ends=(0, 1)),
            460,
            150 + 32 + 36,
        ),
    ],
    ids=["heat map", "links", "bars", "signed bars", "image", "small image", "lines"],
)
def test_the_size_of_a_panel(panel: Panel, width: float, height: float) -> None:
    drawn = svg.part(panel, TONES["light"])
    assert (drawn.width, drawn.height) == pytest.approx((width, height))


def test_the_lines_below_a_picture_make_it_higher_and_are_wrapped_at_its_width() -> None:
    # 320 pixels hold int(320 / (0.56 * 11)) = 51 letters
    panel = heat_map(np.ones((1, 1)), ["a"], ["b"], compact=True)
    root = parsed(svg.draw("title", ["w " * 30], [[panel]]))
    below = [one.text for one in root.iter(f"{NAMESPACE}text") if one.text != "title"]
    assert list(map(len, below)) == [51, 7]
    assert root.get("height") == f"{24 + 20 + 14 + 150 + 14 + 2 * 17 + 24}"


def test_a_heat_map_goes_from_the_background_to_full_colour() -> None:
    text = of(heat_map(np.array([[0.0, 0.5], [0.25, 0.25]]), ["a", "b"], ["c", "d"], top=0.5))
    cells = [
        element.get("fill")
        for element in parsed(text).iter(f"{NAMESPACE}rect")
        if element.get("shape-rendering") == "crispEdges"
    ]
    assert cells == ["#ffffff", shade(1.0), shade(0.5), shade(0.5)]
    found = words(text)
    assert found[1:5] == ["c", "d", "a", "0.00"]
    assert found[-3:] == ["0.00", "0.50", "weight, stretched"]


def test_cells_may_have_words_above_their_numbers() -> None:
    values = np.array([[0.25, 1.0]])
    panel = heat_map(values, ["a"], ["b", "c"], words=[["river", "a long word"]], of="probability")
    assert words(of(panel))[4:8] == ["river", "0.250", "a long word", "1.000"]
    root = parsed(of(panel))
    wide = {one.get("width") for one in root.iter(f"{NAMESPACE}rect") if one.get("shape-rendering")}
    assert len(wide) == 1
    assert float(wide.pop()) > svg.label_width("a long word")


def test_a_cell_too_small_for_its_number_has_a_tooltip() -> None:
    values = np.arange(400.0).reshape(20, 20)
    names = [f"n{i}" for i in range(20)]
    root = parsed(of(heat_map(values, names, names, top=None, of="score")))
    said = [title.text for title in root.iter(f"{NAMESPACE}title")]
    assert said[21] == "n1, n1: 21.00"
    assert len(said) == 400


def test_maps_of_one_scale_share_colours_and_name_the_neutral_value() -> None:
    options = {"top": None, "of": "metric", "ground": 2.0, "scale": (0.0, 4.0)}
    text = of(heat_map(np.array([[1.0, 2.0, 3.0]]), ["a"], ["b", "c", "d"], **options))
    colors = [
        element.get("fill")
        for element in parsed(text).iter(f"{NAMESPACE}rect")
        if element.get("shape-rendering") == "crispEdges"
    ]
    assert colors == [shade(-0.5), shade(0), shade(0.5)]
    assert words(text)[-3:] == ["0.000", "4.000", "metric (no colour: 2.000)"]
    small = of(heat_map(np.array([[1.6, 4.0]]), ["a"], ["b", "c"], compact=True, **options))
    assert pixels(small) == [[shade(-0.2), shade(1)]]


def test_a_downscaled_map_keeps_the_strongest_cells() -> None:
    values = np.zeros((301, 301))
    values[0, 1], values[1, 0], values[300, 300] = -0.2, 0.1, 1.0
    hidden = np.zeros((301, 301), bool)
    hidden[3:6, 3:6] = hidden[6, 6] = True
    options = {"top": None, "of": "score", "scale": (-1.0, 1.0), "compact": True}
    names = [""] * 301
    found = pixels(of(heat_map(values, names, names, hidden=hidden, **options)))
    assert (len(found), len(found[0])) == (101, 101)  # one pixel shows 3 x 3 cells
    assert found[0][0] == shade(-0.2)
    assert found[100][100] == shade(1)
    assert found[1][1] == FAINT
    assert found[2][2] == shade(0)  # only one of its nine cells is masked
    assert {color for row in found for color in row} == {shade(-0.2), shade(0), shade(1), FAINT}


def pixels(text: str) -> list[list[str]]:
    """Return the colours of the only image in a picture."""
    (found,) = re.findall('base64,([^"]+)"', text)
    image = Image.open(io.BytesIO(base64.b64decode(found)))
    return [["#" + "".join(f"{c:02x}" for c in pixel) for pixel in row] for row in np.array(image)]


def test_masked_cells_are_hatched_and_have_no_number() -> None:
    values = np.array([[1.0, 0.0], [0.4, np.nan]])
    hidden = np.array([[False, True], [False, False]])
    text = of(heat_map(values, ["a", "b"], ["a", "b"], hidden=hidden, missing="not there"))
    paths = [element.get("d") for element in parsed(text).iter(f"{NAMESPACE}path")]
    assert [path.count("M") for path in paths] == [2]
    assert [word for word in words(text) if "." in word] == ["1.00", "0.40", "0.00", "1.00"]
    assert "hatched: not there" in words(text)
    bare = of(heat_map(np.ones((1, 1)), ["a"], ["a"]))
    assert "hatched" not in bare


def test_score_colours_diverge_from_the_background_at_0() -> None:
    values = np.array([[-2.0, 0.0, 1.0]])
    text = of(heat_map(values, ["a"], ["b", "c", "d"], top=None, of="score"))
    assert words(text)[-3:] == ["-2.000", "2.000", "score"]
    colors = [
        element.get("fill")
        for element in parsed(text).iter(f"{NAMESPACE}rect")
        if element.get("shape-rendering") == "crispEdges"
    ]
    assert colors == [shade(-1.0), "#ffffff", shade(0.5)]
    above = of(heat_map(np.array([[3.0, 4.0]]), ["a"], ["b", "c"], top=None, of="score"))
    assert words(above)[-3:] == ["0.000", "4.000", "score"]


@pytest.mark.parametrize("number", [-1e20, 1e300, 0.0])
def test_a_map_of_equal_numbers_has_a_scale(number: float) -> None:
    assert heat_map(np.full((2, 2), number), "ab", "ab", of="score")


def test_bars_of_numbers_that_are_not_finite_are_empty() -> None:
    panel = Bars(names="abc", values=[np.inf, 2.0, np.nan])
    assert re.findall('width="([^"]*)" height="11"', of(panel)) == ["0.0", "120.0", "0.0"]


def test_a_map_of_one_number_has_a_scale() -> None:
    assert words(of(heat_map(np.zeros((1, 1)), ["a"], ["a"])))[-3:-1] == ["0.00", "1.00"]
    assert "<svg" in of(heat_map(np.full((1, 1), np.nan), ["a"], ["a"]))


def test_lines_are_as_strong_as_the_weights() -> None:
    weights = np.array([[0.9, 0.1], [0.02, 0.98]])
    shown = heat_map(weights, ["a", "b"], ["c", "d"], outlined=[0])
    text = of(Links(map=shown, strongest=[]))
    lines = list(parsed(text).iter(f"{NAMESPACE}line"))
    blue = THEMES["light"].lines[0]
    # the lines of the other query are faint; the line of 0.02 * 0.25 is too faint to draw
    assert [line.get("stroke") for line in lines] == ["#888888", blue, blue]
    widths = [float(line.get("stroke-width")) for line in lines]
    assert widths == pytest.approx([0.5 + 4 * 0.25 * 0.98, 4.1, 0.9], abs=0.006)
    assert float(lines[1].get("y1")) == float(lines[1].get("y2"))  # a to c: the same row
    assert float(lines[2].get("y2")) > float(lines[2].get("y1"))


def test_ordered_numbers_are_drawn_as_a_line() -> None:
    line = ChartLine([(0, 1.0), (1, -0.5), (2, 0.25)])
    names = ["embeddings", "layer 0", "layer 1"]
    text = of(Lines(title="alike", lines=[line], names=names, ends=(-0.5, 1.0), numbered=True))
    assert words(text)[:2] == ["title", "alike"]
    assert {"1.000", "-0.500", "0.250", *names} <= set(words(text))
    (drawn,) = parsed(text).iter(f"{NAMESPACE}polyline")
    x, y = np.array([pair.split(",") for pair in drawn.get("points").split()], float).T
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.11)
    assert (y[1] - y[0]) / 1.5 == pytest.approx((y[1] - y[2]) / 0.75, abs=0.2)


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [(0.934, 1.0, "0.92 0.96 1"), (2.93, 9.81, "2 6 10"), (0.0123, 0.0371, "0.01 0.025 0.04")],
)
def test_an_axis_ends_at_round_numbers(least: float, most: float, ticks: str) -> None:
    panel = Lines(lines=[ChartLine([(0, most), (1, least)])], names=["a", "b"], ends=(least, most))
    low, middle, high = ticks.split()
    assert set(words(of(panel))) >= {low, middle, high}
    assert panel.axis == (float(low), float(high))


def test_bars_of_numbers() -> None:
    rows = of(Bars(title="moved", names=["a", "b"], values=[2.0, 1.0]))
    bars = [r for r in parsed(rows).iter(f"{NAMESPACE}rect") if r.get("fill") == BEFORE]
    assert [float(bar.get("width")) for bar in bars] == [120.0, 60.0]
    assert words(rows)[1:] == ["moved", "a", "2.000", "b", "1.000"]


@given(st.integers(0, 1000), st.integers(1, 20), st.booleans())
def test_no_two_labels_of_arrows_meet(seed: int, n: int, crowded: bool) -> None:
    rng = np.random.default_rng(seed)
    before = rng.normal(size=(n, 2)) * (1e-3 if crowded else 1.0)
    names = [f"word{i}" * (1 + i % 2) for i in range(n)]
    text = of(arrows(before, before + rng.normal(size=(n, 2)) * 0.1, names, range(n)))
    boxes = []
    for element in parsed(text).iter(f"{NAMESPACE}text"):
        if element.text in names:
            x, y = float(element.get("x")), float(element.get("y"))
            boxes.append((x, y - 9, x + svg.label_width(element.text), y + 2))
    for end in (BEFORE, AFTER):  # every word has a label at both ends of its arrow
        labels = [e.text for e in parsed(text).iter(f"{NAMESPACE}text") if e.get("fill") == end]
        assert [label for label in labels if label in names] == names
    for i, a in enumerate(boxes):
        assert a[0] >= 0
        assert a[2] <= 460
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@pytest.mark.parametrize("seed", range(4))
def test_a_label_is_nearest_to_its_own_point_or_joined_to_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 12
    before = rng.normal(size=(n, 2))
    after = np.repeat(rng.normal(size=(n // 2, 2)), 2, axis=0) + rng.normal(size=(n, 2)) * 0.02
    root = parsed(of(arrows(before, after, names := [f"word{i}" for i in range(n)], range(n))))
    dots = {
        fill: np.array(
            [
                (float(e.get("cx", 0)), float(e.get("cy", 0)))
                for e in root.iter(f"{NAMESPACE}circle")
                if e.get("fill") == fill
            ]
        )
        for fill in (BEFORE, AFTER)
    }
    lines = {
        (e.get("stroke"), *map(float, re.findall(r"[\d.]+", e.get("d", ""))[:2]))
        for e in root.iter(f"{NAMESPACE}path")
        if e.get("stroke-width")
    }
    checked = 0
    for element in root.iter(f"{NAMESPACE}text"):
        fill, name = element.get("fill", ""), element.text or ""
        if name not in names:
            continue
        own = dots[fill][names.index(name)]
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        low, high = (x - 2, y + 4 - svg.SIZE - 3), (x + svg.label_width(name) + 2, y + 4)
        points = np.stack([own, *dots[BEFORE], *dots[AFTER]])
        away = np.hypot(*(points - np.clip(points, low, high)).T)
        joined = (fill, *own) in lines
        assert joined or (away[0] <= away + 0.3).all(), name
        checked += 1
    assert checked == 2 * n


def test_arrows_without_names_are_small() -> None:
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    text = of(arrows(points, points + 1, ["cat", "mat"], [0]))
    radii = [circle.get("r") for circle in parsed(text).iter(f"{NAMESPACE}circle")]
    assert radii == ["4", "4", "2", "2"]
    assert words(text)[1:3] == ["cat", "cat"]
    assert "mat" not in words(text)
    assert "named: 1 of 2" in words(text)
    assert "across: PC 1 (75% of the variance of unit vectors; each set centred first)" in words(
        text
    )
    same = np.zeros((2, 2))
    assert "nan" not in of(arrows(same, same, ["a", "b"], [0, 1]))


def test_any_token_can_be_written_in_xml() -> None:
    token = "<b>\x00\x1b&\"'\ud800\ufffe\u202e\u0085"
    text = svg.draw(token, [token], [[heat_map(np.ones((1, 1)), [token], [token])]])
    root = parsed(text)
    shown = "<b>␀␛&\"'\ufffd\ufffd\ufffd\ufffd"
    assert root.get("aria-label") == shown
    assert words(text)[0] == shown
    text.encode("utf-8")


def test_long_and_blank_labels() -> None:
    found = words(of(Bars(names=["a" * 30, "  ", ""], values=[1.0, 0.5, 0.1])))
    assert found[1::2] == ["a" * 13 + "…", "␣␣", "∅"]
    bars = [Bars(names=[name], values=[1.0]) for name in ("你好你好", "abcd")]
    wide, narrow = (svg.part(panel, TONES["light"]).width for panel in bars)
    assert wide > narrow


def test_the_picture_of_a_long_text_says_how_much_it_shows(lesson: Model) -> None:
    view = show(" ".join([BANK, MONEY, CAT] * 5), model=lesson)
    found = " ".join(words(view.svg()))
    assert f"Shown: 32 of {len(view.tokens)} rows and 32 of {len(view.tokens)} columns" in found
    short = " ".join(words(show(CAT, model=lesson).svg()))
    assert "Shown:" not in short


def test_the_picture_of_a_summary_says_what_is_missing() -> None:
    weights = random_model(CAT).trace(CAT)["pattern", 0][0]
    kept = summarize(weights, 2)
    trace = Trace(
        {
            "blocks.0.attn.top_indices": kept.indices[None],
            "blocks.0.attn.top_weights": kept.weights[None],
            "blocks.0.attn.received": kept.received[None],
        },
        tokens=[CAT.split()],
    )
    found = words(show(trace).svg())
    assert "hatched: not among the weights that were kept" in found


def test_a_walk_and_a_comparison_are_pictured(lesson: Model) -> None:
    steps = walk(CAT, model=lesson)
    found = " ".join(words(steps.svg()))
    for step in steps.steps:
        assert step.title.split(":")[0] in found
    assert "largest difference" in found
    pair = compare(CAT, BANK, word="sat", model=lesson)
    found = words(pair.svg())
    assert {f"{x:.3f}" for x in pair.similarity} <= set(found)
    framed = [r for r in parsed(pair.svg()).iter(f"{NAMESPACE}rect") if r.get("stroke") == INK]
    assert len(framed) == 2  # the row of the word in both maps
