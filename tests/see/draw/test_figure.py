"""Tests of figures: they show the computed numbers, and their labels do not overlap."""

import io
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from qkv.models import Model, random_model
from qkv.see import compare, plot_shift, show, walk
from qkv.see.analysis.word_vectors import fit_plane
from qkv.see.draw import panels
from qkv.see.draw.colours import AFTER, BEFORE, INK, LINE, shade
from qkv.see.draw.figure import draw, drawable, write_png
from qkv.trace import Trace

from ..support import BANK, CAT, MONEY, made_trace

WORDS = ["the", "of", "I", "a", "cat", "river", "interest", "mat", "unbelievable", "##ing"]


def labels(axes: Axes) -> list:
    return [text for text in axes.texts if text.get_text()]


def boxes(figure: Figure, axes: Axes) -> list:
    figure.draw_without_rendering()
    return [text.get_window_extent() for text in labels(axes)]


def vectors(seed: int, n: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    before, after = np.random.default_rng(seed).normal(size=(2, n, 12))
    return before, spread * after


@pytest.mark.parametrize("examples", [5, pytest.param(40, marks=pytest.mark.attack)])
def test_no_two_labels_intersect_up_to_20_tokens(examples: int) -> None:
    @settings(max_examples=examples)
    @example(0, 20, 0.02, True)
    @given(
        st.integers(0, 10_000),
        st.integers(1, 20),
        st.sampled_from([0.02, 0.5, 1.0, 9.0]),
        st.booleans(),
    )
    def apart(seed: int, n: int, spread: float, repeated: bool) -> None:
        before, after = vectors(seed, n, spread)
        if repeated:
            before[:] = before[0]
        tokens = [WORDS[i % len(WORDS)] for i in range(n)]
        figure = plot_shift(before, after, tokens)
        (axes,) = figure.axes
        found = boxes(figure, axes)
        for a, b in itertools.combinations(found, 2):
            width = min(a.x1, b.x1) - max(a.x0, b.x0)
            height = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert min(width, height) < 0
        frame = axes.get_window_extent()
        for box in found:
            assert frame.x0 - 1 <= box.x0
            assert box.x1 <= frame.x1 + 1
            assert frame.y0 - 1 <= box.y0
            assert box.y1 <= frame.y1 + 1

    apart()


@pytest.mark.parametrize("color", [AFTER, BEFORE])
def test_every_word_is_named_at_both_ends(color: str) -> None:
    wide, narrow = vectors(3, 20, 0.05)
    before, after = (narrow + 1, wide) if color == AFTER else (wide, narrow + 1)
    figure = plot_shift(before, after, [f"w{i}" for i in range(20)])
    found = labels(figure.axes[0])
    assert found[0].get_color() == color  # the set with the larger spread comes first
    for end in (BEFORE, AFTER):
        named = [text.get_text() for text in found if text.get_color() == end]
        assert sorted(named) == sorted(f"w{i}" for i in range(20))


def unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def points(axes: Axes, color: str) -> np.ndarray:
    found = [c for c in axes.collections if to_hex(c.get_facecolor()[0]) == color]
    return np.concatenate([collection.get_offsets() for collection in found])


def test_points_and_arrows_have_the_coordinates_of_the_plane() -> None:
    before, after = vectors(0, 5, 2.0)
    plane = fit_plane(unit(before), unit(after))
    (axes,) = plot_shift(before, after, list("abcde")).axes
    np.testing.assert_allclose(points(axes, BEFORE), plane.original)
    np.testing.assert_allclose(points(axes, AFTER), plane.contextual)
    arrows = [text for text in axes.texts if not text.get_text()]
    np.testing.assert_allclose([arrow.xy for arrow in arrows], plane.contextual)
    np.testing.assert_allclose([arrow.xyann for arrow in arrows], plane.original)
    assert {to_hex(arrow.arrow_patch.get_facecolor()) for arrow in arrows} == {LINE}
    for axis, share in zip((axes.get_xlabel(), axes.get_ylabel()), plane.explained, strict=True):
        assert f"({share:.0%} of the variance of unit vectors; each set centred first)" in axis
    assert axes.get_xlabel().startswith("PC 1")
    assert axes.get_ylabel().startswith("PC 2")
    assert axes.get_aspect() == 1.0


def test_labels_stay_by_their_points() -> None:
    before, after = vectors(1, 4, 3.0)
    figure = plot_shift(before, after, list("abcd"))
    (axes,) = figure.axes
    figure.draw_without_rendering()
    where = axes.transData.transform(fit_plane(unit(before), unit(after)).contextual)
    found = {t.get_text(): t for t in labels(axes) if t.get_color() == AFTER}
    for name, point in zip("abcd", where, strict=True):
        box = found[name].get_window_extent()
        nearest = np.clip(point, (box.x0, box.y0), (box.x1, box.y1))
        distance = np.linalg.norm(nearest - point)
        assert 3 < distance < 30 * figure.dpi / 72
        others = np.linalg.norm(np.clip(where, nearest, nearest) - where, axis=1)
        assert distance <= others.min() + 1e-6


def test_among_many_words_the_furthest_moved_are_labelled_once() -> None:
    before = np.zeros((90, 3))
    after = np.random.default_rng(0).normal(size=(90, 3))
    after[70], after[71] = [40, 0, 0], [-39, 0, 0]
    tokens = [f"w{i // 2}" for i in range(90)]
    figure = plot_shift(before, after, tokens)
    (axes,) = figure.axes
    named = [text.get_text() for text in labels(axes) if text.get_color() == AFTER]
    assert len(named) == len(set(named)) == 20
    assert "w35" in named
    assert axes.get_xlabel().endswith("\nnamed: 20 of 90")
    assert len(points(axes, AFTER)) == 90


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [
        (np.ones((1, 4)), np.zeros((1, 4)), ["alone"]),
        (np.ones((3, 4)), np.ones((3, 4)), ["a", "b", "c"]),
        ([[0.0], [1.0]], [[5.0], [5.0]], ["one", "dimension"]),
    ],
)
def test_points_on_one_spot_are_drawn(
    before: object, after: object, tokens: list[str], tmp_path: Path
) -> None:
    figure = plot_shift(before, after, tokens)
    assert len(points(figure.axes[0], BEFORE)) == len(tokens)
    write_png(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_plot_shift_refuses_invalid_inputs(lesson: Model) -> None:
    two = np.eye(2)
    with pytest.raises(ValueError, match="there are 2 vectors, but 1 tokens"):
        plot_shift(two, two, ["a"])
    with pytest.raises(ValueError, match="NaN, infinity"):
        plot_shift(two * np.nan, two, ["a", "b"])
    with pytest.raises(TypeError, match="pass original, contextual and tokens, or one trace"):
        plot_shift(two)
    trace = lesson.trace(CAT)
    with pytest.raises(TypeError, match="pass only the trace"):
        plot_shift(trace, two, ["a", "b"])
    with pytest.raises(ValueError, match="plot_shift: this trace holds 2 texts"):
        plot_shift(lesson.trace([CAT, BANK]))
    with pytest.raises(ValueError, match="lacks hook_embed"):
        plot_shift(lesson.trace(CAT, names=["pattern"]))


@pytest.mark.usefixtures("without_layout")
def test_the_shift_plot_of_a_trace_leaves_out_special_tokens(minilm: Model) -> None:
    trace = minilm.trace(CAT)
    _, axes, _ = plot_shift(trace).figure().axes  # the cosines, the arrows and the scale
    plane = fit_plane(*map(unit, (trace["embed"][0, 1:-1], trace.hidden_states[-1][0, 1:-1])))
    np.testing.assert_allclose(points(axes, BEFORE), plane.original)
    np.testing.assert_allclose(points(axes, AFTER), plane.contextual)
    assert not {"[CLS]", "[SEP]"} & {text.get_text() for text in labels(axes)}


def image(axes: Axes) -> AxesImage:
    (found,) = axes.images
    return found


@pytest.mark.usefixtures("without_layout")
def test_the_grid_is_the_weights_with_a_scale_and_names(lesson: Model) -> None:
    view = show(lesson.trace(CAT), layer=0, head=1)
    figure = view.figure()
    grid, lines, scale = figure.axes  # the figure has no other axes
    np.testing.assert_array_equal(image(grid).get_array(), view.weights)
    assert image(grid).get_clim() == (0, 1)
    for share in (0.0, 0.05, 0.5, 1.0):
        assert to_hex(image(grid).get_cmap()(share)) == shade(share)
    assert scale.get_ylabel() == "weight"
    assert [text.get_text() for text in grid.get_xticklabels()] == view.tokens
    assert [text.get_text() for text in grid.get_yticklabels()] == view.tokens
    shown = [text.get_text() for text in grid.texts]
    assert shown == [f"{weight:.2f}" for weight in view.weights.flat]
    assert figure.get_suptitle() == view.sentence
    assert grid.get_title() == "Weights of layer 0, head 1"
    # the tokens at both ends of the links
    assert [text.get_text() for text in lines.texts] == 2 * view.tokens


def luminance(color: Any) -> float:
    """Compute the relative luminance (WCAG 2.1)."""
    channels = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(color)]
    return float(np.dot(channels, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize(("theme", "paper"), [("light", "#ffffff"), ("dark", "#12161c")])
@pytest.mark.parametrize("kind", ["show", "compare", "walk", "shift"])
def test_title_pictures_and_notes_are_stacked_on_the_theme_background(
    lesson: Model, kind: str, theme: str, paper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if theme == "dark":  # positions do not depend on the theme, so they are computed for one theme
        monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
    both = [lesson.trace(text) for text in (CAT, "the cat saw the dog")]
    options: dict[str, Any] = {"theme": theme}
    view = {
        "show": lambda: show(both[0], **options),
        "compare": lambda: compare(*both, **options),
        "walk": lambda: walk(both[0], **options),
        "shift": lambda: plot_shift(both, **options),
    }[kind]()
    figure = view.figure()
    figure.draw_without_rendering()
    assert to_hex(figure.get_facecolor()) == paper
    if theme == "light":
        boxes = [axes.get_window_extent() for axes in figure.axes if axes.axison]
        header = figure._suptitle.get_window_extent()
        assert header.x0 < 60
        assert header.y0 >= max(box.y1 for box in boxes) - 1
        notes = [text for part in figure.subfigs for text in part.texts]
        assert all(text.get_window_extent().y1 <= min(box.y0 for box in boxes) for text in notes)
        assert all(text.get_window_extent().y0 >= 0 for text in notes)
    ground = luminance(paper)
    cells = {text for axes in figure.axes if axes.images for text in axes.texts}
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible() and text not in cells:
            ends = sorted((luminance(text.get_color()), ground))
            assert (ends[1] + 0.05) / (ends[0] + 0.05) >= 4.5, text.get_text()


def hatched(axes: Axes) -> set[tuple[int, int]]:
    return {
        (round(patch.get_y() + 0.5), round(patch.get_x() + 0.5))
        for patch in axes.patches
        if isinstance(patch, Rectangle) and patch.get_hatch()
    }


@pytest.mark.usefixtures("without_layout")
def test_masked_cells_are_hatched_and_have_no_number() -> None:
    view = show(random_model(CAT, causal=True).trace(CAT))
    grid = view.figure().axes[0]
    assert hatched(grid) == {(i, j) for i in range(6) for j in range(6) if j > i}
    assert len(grid.texts) == 21


@pytest.mark.usefixtures("without_layout")
def test_a_walk_draws_scores_and_weights() -> None:
    view = walk(CAT, model=random_model(CAT, causal=True))
    figure = view.figure()
    scores, weights, shift = figure.axes[:3]
    steps = {step.name: step.values for step in view.steps}
    lower = np.tri(6, dtype=bool)
    np.testing.assert_array_equal(image(scores).get_array()[lower], steps["scaled"][lower])
    least, most = image(scores).get_clim()
    assert most == -least == pytest.approx(abs(steps["scaled"][lower]).max())
    assert [to_hex(image(scores).get_cmap()(place)) for place in (0.0, 0.5, 1.0)] == [
        shade(-1.0),
        "#ffffff",
        shade(1.0),
    ]
    np.testing.assert_array_equal(image(weights).get_array(), steps["weights"])
    assert image(weights).get_clim() == (0, 1)
    assert hatched(scores) == hatched(weights) != set()
    assert "centred first" in shift.get_xlabel()


@pytest.mark.usefixtures("without_layout")
def test_compare_has_both_grids_on_one_scale(lesson: Model) -> None:
    view = compare(BANK, MONEY, word="bank", model=lesson)
    figure = view.figure()
    first, second, _, _, curve, shift, *_ = figure.axes
    patterns = [side.trace.pattern(view.head.layer, view.head.head) for side in view.sides]
    for axes, pattern, side in zip((first, second), patterns, view.sides, strict=True):
        np.testing.assert_array_equal(image(axes).get_array(), pattern)
        assert image(axes).get_clim() == (0, 1)
        (frame,) = [p for p in axes.patches if to_rgba(p.get_edgecolor()) == to_rgba(INK)]
        assert frame.get_y() + 0.5 == side.positions[0]
    np.testing.assert_allclose(curve.lines[0].get_ydata(), view.similarity)
    assert [t.get_text() for t in curve.texts] == [f"{x:.3f}" for x in view.similarity]
    named = {text.get_text() for text in labels(shift)}
    assert len(points(shift, AFTER)) == 9 + 7
    assert "bank" in named


@pytest.mark.usefixtures("without_layout")
def test_a_long_text_is_cut_to_a_readable_grid(lesson: Model) -> None:
    view = show(lesson.trace(" ".join([CAT, BANK, MONEY] * 4)))
    grid = view.figure().axes[0]
    assert image(grid).get_array().shape == (32, 32)
    assert f"Shown: 32 of {len(view.tokens)} rows" in grid.get_xlabel()
    assert not grid.texts


SCRIPTS = [
    "cat",
    "$x$ $",
    "$\\nope$",
    "你好",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "😀",
    "\x1b[2J",
    "\ud800",
    "a\nb",
    "^_{",
    "\\",
]


def test_tokens_of_any_script_are_drawn_without_a_warning() -> None:
    rng = np.random.default_rng(0)
    n = len(SCRIPTS)
    trace = made_trace(
        SCRIPTS,
        rng.dirichlet(np.ones(n), size=(1, 1, n)),
        **{
            "hook_embed": rng.normal(size=(1, n, 4)),
            "blocks.0.hook_resid_post": rng.normal(size=(1, n, 4)),
        },
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = io.BytesIO()
        show(trace).figure().savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG\r\n\x1a\n")


def test_characters_that_no_font_has_become_boxes() -> None:
    assert drawable(["a\x00b", "", "ok"]) == ["a□b", "", "ok"]


def test_a_png_is_written_whole_or_not_at_all(lesson: Model, tmp_path: Path) -> None:
    view = show(CAT, model=lesson)
    target = tmp_path / "picture.png"
    view.to_png(target)
    assert target.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        view.to_png(tmp_path / "nowhere" / "picture.png")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    picture = plot_shift(np.eye(2), 2 * np.eye(2), ["a", "b"])._repr_png_()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.usefixtures("without_layout")
def test_a_trace_without_vectors_has_no_shift_plot() -> None:
    trace = made_trace(["a", "b"], np.full((1, 1, 2, 2), 0.5))
    assert len(show(trace).figure().axes) == 3  # the grid, its scale and the links
    assert isinstance(trace, Trace)


@pytest.mark.parametrize(("n", "largest"), [(5, 1), (13, 1), (13, 98_765), (32, 1)])
def test_no_text_of_a_map_is_below_8_points_or_meets_another(n: int, largest: int) -> None:
    values = np.random.default_rng(n).random((n, n)) * largest
    of = "weight" if largest == 1 else "score"
    names = [f"token {i}" for i in range(n)]
    heat = panels.HeatMap(values=values, rows=names, columns=names, title="all", of=of, top=None)
    figure = draw("a title", [], [[heat, panels.Links(title="links", map=heat, strongest=[])]])
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in shown) >= 8
    (axes, *_) = figure.subfigs[0].axes
    rows = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(rows) == n
    assert all(one.y0 >= other.y1 - 1 for one, other in itertools.pairwise(rows))
    spots = [label.get_window_extent().x0 for label in axes.get_xticklabels()]
    high = figure.dpi / 72 * axes.get_xticklabels()[0].get_fontsize()
    assert min(np.diff(spots)) * np.sin(np.pi / 4) >= 0.9 * high  # the names are turned
    cells = [text.get_window_extent() for text in labels(axes)]
    assert len(cells) == (n * n if n <= 13 else 0)
    beside = [(a, b) for a, b in itertools.pairwise(cells) if abs(a.y0 - b.y0) < 1]
    assert all(a.x1 < b.x0 for a, b in beside)
