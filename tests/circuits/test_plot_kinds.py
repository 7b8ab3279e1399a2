"""Tests of lines, points, coloured tokens and lists of largest numbers in pictures of results."""

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.circuits import Graph, PlotView, Result, plot
from qkv.circuits.results import mean_of_pairs
from qkv.see.draw.colours import shade

SVG = "{http://www.w3.org/2000/svg}"
RANDOM = np.random.default_rng(8)
EACH = RANDOM.normal(size=(5, 2, 6))  # five pairs, two lines, six positions
WORDS = {"token": ["The", "cat", "sat", "on", "a", "mat"]}


def made(values: Any = EACH[0], axes: tuple[str, ...] = ("head", "token"), **more: Any) -> Result:
    return Result(values, axes, of="metric", **({"title": "Made", "words": WORDS} | more))


def elements(view: PlotView, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(view.svg()).iter(f"{SVG}{tag}"))


def corners(element: ElementTree.Element) -> np.ndarray:
    return np.array([[*map(float, one.split(","))] for one in element.get("points", "").split()])


def texts(view: PlotView) -> list[str]:
    return [one.text or "" for one in elements(view, "text")]


def fit(found: np.ndarray, values: np.ndarray) -> None:
    """Check that pixels are a linear function of numbers, to the tenth of a pixel."""
    known = np.stack([values, np.ones(len(values))], -1)
    solved, *_ = np.linalg.lstsq(known, found, rcond=None)
    assert abs(solved[0]) > 1
    np.testing.assert_allclose(known @ solved, found, atol=0.11)


def test_lines_run_over_the_last_axis() -> None:
    view = plot(made(), kind="lines")
    drawn = np.stack([corners(one) for one in elements(view, "polyline")])
    assert drawn.shape == (2, 6, 2)
    fit(drawn[..., 1].ravel(), EACH[0].ravel())
    fit(drawn[..., 0].ravel(), np.tile(np.arange(6.0), 2))
    assert {"head 0", "head 1", *WORDS["token"]} <= {*texts(view)}
    assert not elements(view, "polygon")
    colors = [one.get("stroke") for one in elements(view, "polyline")]
    assert len({*colors}) == 2


def test_a_band_shows_one_standard_deviation_over_the_pairs() -> None:
    mean = mean_of_pairs(EACH, ("head", "token"), of="metric", title="Made")
    view = plot(mean, kind="lines")
    bands, lines = elements(view, "polygon"), elements(view, "polyline")
    spread, middle = EACH.std(0), EACH.mean(0)
    pixels = np.concatenate([corners(one)[:, 1] for one in [*lines, *bands]])
    ends = [np.concatenate([y + by, (y - by)[::-1]]) for y, by in zip(middle, spread, strict=True)]
    fit(pixels, np.concatenate([*middle, *ends]))
    assert "Shaded: the mean ± one standard deviation over 5 pairs." in view.reasons


def test_a_dict_of_results_has_a_line_for_each() -> None:
    several = {"one": made()[0], "other": made()[1], "third": made(EACH[1])}
    view = plot(several, kind="lines")
    assert len(elements(view, "polyline")) == 4
    assert {"one", "other", "third, head 0", "third, head 1"} <= {*texts(view)}
    many = plot(made(RANDOM.normal(size=(9, 6))), kind="lines")
    assert len(elements(many, "polyline")) == 6
    assert "Shown: 6 of 9 lines, those with the widest range." in many.reasons
    assert "cat" in str(view)
    assert f"{EACH[1, 1, 3]:.3f}" in str(view)


def test_a_scatter_names_the_points_of_two_results() -> None:
    one, other = made(EACH[0], words={}), made(EACH[1], words={})
    view = plot({"patching": one, "attribution": other}, kind="scatter")
    dots = np.array(
        [[float(dot.get(xy, "")) for xy in ("cx", "cy")] for dot in elements(view, "circle")]
    )
    fit(dots[:, 0], EACH[0].ravel())
    fit(dots[:, 1], EACH[1].ravel())
    words = texts(view)
    assert {"0.0", "1.5", "across: patching", "up: attribution"} <= {*words}
    said = f"Pearson's correlation: {np.corrcoef(EACH[0].ravel(), EACH[1].ravel())[0, 1]:.3f}."
    assert said in view.reasons


def dots_of(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.stack([one.ravel(), other.ravel()], -1)


def test_complex_numbers_are_points_with_equal_scales() -> None:
    values = EACH[0] + 1j * EACH[1]
    view = plot(values, kind="scatter", axes=("head", "eigenvalue"), of="eigenvalue")
    dots = np.array(
        [[float(dot.get(xy, "")) for xy in ("cx", "cy")] for dot in elements(view, "circle")]
    )
    fit(dots[:, 0], values.real.ravel())
    fit(dots[:, 1], values.imag.ravel())
    wide, high = np.ptp(dots, 0) / np.ptp(dots_of(values.real, values.imag), 0)
    assert wide == pytest.approx(high, rel=0.01)
    largest = np.abs(values).max()
    assert f"{largest:.3f} (absolute value, eigenvalue)" in view.sentence
    [numbers] = view.to_dict()["results"]
    np.testing.assert_array_equal(numbers["imaginary"], values.imag)
    with pytest.raises(ValueError, match="plot: the numbers of `result` are complex; pass kind="):
        plot(values, axes=("head", "eigenvalue"))


def test_tokens_are_coloured_by_signed_numbers() -> None:
    values = np.array([-2.0, 0.0, 0.5, 1.0, np.nan, -0.25])
    view = plot(made(values, ("token",)), kind="tokens")
    boxes = [one for one in elements(view, "rect") if one.get("height") == "15"]
    shares = np.nan_to_num(values) / 2
    assert [one.get("fill") for one in boxes] == [shade(share) for share in shares]
    assert [one.get("stroke") is not None for one in boxes] == [True] + [False] * 5
    assert [word for word in texts(view) if word in WORDS["token"]] == WORDS["token"]
    rows = plot(made()[[1, 0]], kind="tokens")
    assert [word for word in texts(rows) if word.startswith("head")] == ["head 1", "head 0"]


def test_top_lists_the_largest_numbers_of_each_row() -> None:
    names = [f"w{n}" for n in range(40)]
    values = RANDOM.normal(size=(3, 40))
    view = plot(values, kind="top", axes=("direction", "V"), words={"V": names}, of="logit")
    expected = [f"w{n} {row[n]:.3f}" for row in values for n in np.argsort(-row)[:10]]
    assert [word for word in texts(view) if re.match(r"w\d", word)] == expected
    assert "direction 2" in texts(view)
    assert "logit: the 10 largest along the axis 'V', largest first" in str(view)
    few = plot(made(), kind="top")
    assert "metric: along the axis 'token', largest first" in str(few)


def test_sentences_about_several_results_are_true_of_each() -> None:
    other = made(EACH[1])
    other.of = "nats"
    view = plot({"one": made(np.zeros((2, 6))), "other": other}, kind="tokens")
    assert "one: all 12 numbers are 0.000 (metric)." in view.reasons
    assert "metric, nats; blue: above 0" in str(view)


def test_heads_of_several_layers_are_drawn_side_by_side() -> None:
    weights = np.full((3, 4, 4), 0.25)
    named = dict(zip(["0.1", "2.3", "4.5"], weights, strict=True))
    tokens = ["a", "b", "c", "d"]
    words = {"query": tokens, "key": tokens}
    view = plot(named, axes=("query", "key"), words=words, of="weight")
    assert {"0.1", "2.3", "4.5"} <= {*texts(view)}
    cells = [one for one in elements(view, "rect") if one.get("shape-rendering") == "crispEdges"]
    assert [one.get("fill") for one in cells] == [shade(0.25)] * 48  # a scale from 0 to 1


@pytest.mark.parametrize(
    ("result", "options", "message"),
    [
        (made(), {"kind": "pie"}, "`kind` is 'pie'; choose among auto, lines, scatter, tokens"),
        (EACH[0], {}, r"`result` is ndarray \(2, 6\), without named axes; .* or `axes=`"),
        (EACH[0], {"axes": ("head",)}, r"`axes` names 1 axes, head, but the array has shape \(2"),
        (
            EACH[0],
            {"axes": ("head", "token"), "words": {"token": ["a"]}},
            r"`words` has 1 labels for the axis 'token', but the array has shape \(2, 6\)",
        ),
        (made(EACH, ("pair", "head", "token")), {"kind": "lines"}, "lines need one or two axes"),
        ({"a": made()[:, :3], "b": made()}, {"kind": "lines"}, "lines of several results need"),
        (made(), {"kind": "scatter"}, "a scatter plot shows two results of the same shape, not"),
        (made(EACH[0] * np.nan), {"kind": "lines"}, "no finite number to draw"),
        ({"a": made() * np.nan, "b": made()}, {"kind": "scatter"}, "no finite number to draw"),
        ({"a": 1.0}, {"kind": "top"}, "a is one number; pass a result with an axis"),
        (made(EACH[0] * 1j), {"kind": "lines"}, "are complex; pass kind='scatter'"),
        (
            Graph(("embed", "logits"), (), "exact", 1.0, 0.0),
            {"kind": "lines"},
            "`kind` is 'lines', but a Graph has only one kind of plot; omit `kind`",
        ),
    ],
    ids=str,
)
def test_what_a_kind_cannot_draw_is_an_error(result, options, message) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^plot: .*{message}"):
        plot(result, **options)
