"""Tests of pictures of results: their numbers, their sentences and their errors."""

import io
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import qkv
from qkv import circuits
from qkv.circuits import PlotView, Result, plot
from qkv.see.draw import png
from qkv.see.draw.colours import TONES, shade

SVG = "{http://www.w3.org/2000/svg}"
TEXT = "The old queen saw the"


class Edge(NamedTuple):
    sender: str
    receiver: str
    score: float


def graph_of(layers: int, heads: int, edges: list[Edge], **more: Any) -> SimpleNamespace:
    """Return a stand-in for a result of `edges` or `discover`: names of nodes, and edges."""
    nodes = ["embed"]
    for layer in range(layers):
        nodes += [*(f"attn.{layer}.{head}" for head in range(heads)), f"mlp.{layer}"]
    return SimpleNamespace(nodes=[*nodes, "logits"], edges=edges, **more)


def chain(layers: int, heads: int) -> list[Edge]:
    """Return an edge from each head to each head of the next layer, with distinct scores."""
    names = [
        (f"attn.{layer}.{i}", f"attn.{layer + 1}.{j}.{'qkv'[(i + j) % 3]}")
        for layer in range(layers - 1)
        for i in range(heads)
        for j in range(heads)
    ]
    return [Edge(*ends, (-1) ** n * (n + 1) / 1000) for n, ends in enumerate(names)]


def texts(view: PlotView) -> list[str]:
    return [part.text or "" for part in ElementTree.fromstring(view.svg()).iter(f"{SVG}text")]


def cells(svg: str) -> list[str]:
    """Return the colours of the cells of heat maps."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [one.get("fill", "") for one in found if one.get("shape-rendering") == "crispEdges"]


@pytest.fixture(scope="module")
def decoder() -> qkv.Model:
    return qkv.load("books-decoder")


@pytest.fixture(scope="module")
def results(decoder: qkv.Model) -> dict[str, Any]:
    """One result of each function."""
    trace = decoder.trace(TEXT, logits=True)
    pair = "The queen spoke to her", "The king spoke to her"
    return {
        "patch": circuits.patch(decoder, *pair, at="resid_pre", metric=(-1, 11, 5)),
        "normalized": circuits.patch(decoder, *pair, at="z", metric=(-1, 11, 5), normalize=True),
        "attribution": circuits.attribution_patch(decoder, *pair, at="q", metric=(-1, 11)),
        "lens": circuits.logit_lens(decoder, trace),
        "shares": circuits.attribute_logits(decoder, trace, of=(-1, 11)),
        "scores": circuits.head_scores(decoder, [TEXT]),
        "scan": circuits.scan_heads(decoder, [TEXT], of=["previous", "strongest"]),
        "composition": circuits.composition(decoder, "v"),
        "copying": circuits.copying_scores(decoder),
        "rollout": circuits.rollout(trace),
        "values": circuits.value_weighted(trace, -1),
        "integrated": circuits.integrated_gradients(decoder, TEXT, of=(-1, 11), baseline=" a"),
        "part": circuits.rollout(trace).to_xarray().isel(layer=-1),
        "graph": graph_of(3, 2, chain(3, 2)),
    }


NAMES = ["patch", "normalized", "attribution", "lens", "shares", "scores", "scan", "composition"]
NAMES += ["copying", "rollout", "values", "integrated", "part", "graph"]


@pytest.mark.parametrize("name", NAMES)
def test_every_result_is_drawn_in_every_medium(
    name: str, results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(results) == set(NAMES)
    if name not in ("lens", "graph"):  # resvg draws only these
        monkeypatch.setattr(png, "render", lambda *_: b"\x89PNG")
    view = plot(results[name])
    assert view.sentence in " ".join(str(view).split())
    console = Console(file=io.StringIO(), width=60, force_terminal=True, _environ={})
    view.print(console)
    assert max(map(len, str(view).splitlines())) <= 80
    root = ElementTree.fromstring(view.svg())
    assert not re.search(r'="-?(nan|inf)"', view.svg())
    assert root.get("aria-label") == view.sentence
    view.to_png(tmp_path / "view.png")
    assert (tmp_path / "view.png").read_bytes().startswith(b"\x89PNG")
    view.to_html(tmp_path / "view.html")
    page = (tmp_path / "view.html").read_text("utf-8")
    assert "<script" not in page
    assert view._repr_html_() in page
    assert json.loads(json.dumps(view.to_dict(), allow_nan=False))["sentence"] == view.sentence
    assert f'fill="{TONES["dark"].paper}"' in plot(results[name], theme="dark").svg()


def result_of(values: Any, *axes: str, **options: Any) -> Result:
    return Result(values, axes, **{"of": "score", "title": "Made"} | options)


def test_a_heat_map_has_each_number_rounded_once() -> None:
    values = np.array([[0.0004, -1.23456, 0.5], [2.0, 0.0625, -0.9996]])
    view = plot(result_of(values, "layer", "head"))
    assert view.sentence == "Made: strongest at layer 1, head 0, 2.000 (score)."
    found = texts(view)
    row, other = (found.index(f"layer {layer}") for layer in (0, 1))
    assert found[row + 1 : other] == ["0.000", "-1.235", "0.500"]
    assert found[other + 1 : other + 4] == ["2.000", "0.062", "-1.000"]
    assert found[-3:] == ["-2.000", "2.000", "score"]
    expected = [shade(float(x) / 2) for x in values.ravel()]
    assert cells(view.svg()) == expected
    assert view.to_dict()["results"][0]["values"] == values.tolist()
    lines = [line for line in str(view).splitlines() if line.startswith("layer")]
    assert re.findall(r"-?\d\.\d{3}", lines[0]) == ["0.000", "-1.235", "0.500"]


def test_the_ground_is_where_a_patch_does_nothing() -> None:
    values = np.array([[3.0, 3.5], [1.0, 3.0]])
    view = plot(result_of(values, "layer", "token", ground=3.0, words={"token": ["a", "b/c"]}))
    assert view.sentence == (
        "Made: strongest at layer 1, token 0 (a), 1.000 (score, no effect: 3.000)."
    )
    assert cells(view.svg()) == [shade(0), shade(0.25), shade(-1), shade(0)]
    assert texts(view)[-3:] == ["1.000", "5.000", "score (no colour: 3.000)"]
    assert cells(plot(result_of([[3.0, 4.0]], "layer", "head", ground=3.0)).svg()) == [
        shade(0), shade(1),
    ]  # fmt: skip
    dark = plot(result_of(values, "layer", "token", ground=3.0), theme="dark").svg()
    assert cells(dark)[2] == shade(-1, "dark")


def test_weights_have_one_scale_unless_it_is_stretched() -> None:
    values = [[0.25, 0.5]]
    found = {"near": result_of(values, "layer", "head", of="mean weight")}
    found["nats"] = result_of([[2.0, 3.0]], "layer", "head", of="nats")
    view = plot(found)
    assert view.sentence == "near, nats, by layer and head."
    assert cells(view.svg()) == [shade(0.25), shade(0.5), shade(2 / 3), shade(1)]
    assert cells(plot(found, stretch=True).svg())[:2] == [shade(0.5), shade(1)]
    assert "mean weight, stretched" in texts(plot(found, stretch=True))


def widths(view: PlotView) -> list[float]:
    """Return the lengths of the bars."""
    found = ElementTree.fromstring(view.svg()).findall(f".//{SVG}rect[@height='11']")
    return [float(one.get("width", "")) for one in found]


def test_results_of_one_kind_share_a_scale_and_others_do_not() -> None:
    found = {
        "a": result_of([[1.0, 2.0]], "layer", "head", of="metric", ground=1.0),
        "b": result_of([[5.0, 1.0]], "layer", "head", of="metric", ground=1.0),
        "c": result_of([[4.0, 2.0]], "layer", "head", of="metric", ground=2.0),
    }
    assert cells(plot(found).svg()) == [shade(x) for x in (0, 0.25, 1, 0, 1, 0)]
    bars = plot({"one": result_of([2.0], "layer", of="nats"), "two": result_of([8.0], "layer")})
    assert widths(bars) == [120.0, 120.0]
    assert widths(plot(found | {"d": result_of([2.0], "layer", of="metric", ground=1.0)})) == [30.0]
    assert bars.sentence == "one, two, by layer."
    assert plot({"a": 1.0, "b": 2}).sentence == "a, b."
    less = plot(result_of([[0.5, -0.25]], "layer", "head", of="weight"))  # a difference of weights
    assert cells(less.svg()) == [shade(1), shade(-0.5)]
    assert texts(less)[-3:] == ["-0.50", "0.50", "weight"]


def test_nan_is_hatched() -> None:
    view = plot(result_of([[np.nan, 1.0]], "layer", "head"))
    assert len(cells(view.svg())) == 1
    assert "hatched: no number" in texts(view)
    assert "at layer 0, head 1, 1.000" in view.sentence
    none = plot(result_of([[np.nan]], "layer", "head"))
    assert none.sentence == "Made: no number is finite."
    assert none.to_dict()["results"][0]["values"] == [[None]]


def test_the_lens_shows_the_likeliest_token_and_its_probability(
    decoder: qkv.Model, results: dict[str, Any]
) -> None:
    lens = np.asarray(results["lens"], np.float64)
    exact = np.exp(lens - lens.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    view = plot(results["lens"])
    (found,) = view.to_dict()["results"]
    np.testing.assert_allclose(found["values"], exact.max(-1), rtol=1e-9)
    assert found["axes"] == ["layer", "token"]
    ((word, share),) = decoder.predict(TEXT, top_k=1)[0]
    assert found["tokens"][-1][-1] == word
    assert found["values"][-1][-1] == pytest.approx(share, abs=1e-5)
    last = len(decoder.tokenize(TEXT).ids) - 1
    after = f"after layer {decoder.num_layers - 1}"
    assert view.sentence == (
        f"Logit lens: {word} with probability {share:.3f}, {after}, token {last} (the)."
    )
    shown = texts(view)
    place = shown.index(after)
    assert shown[place + 1 : place + 3] == [found["tokens"][-1][0], f"{exact[-1, 0].max():.3f}"]
    assert found["tokens"][-1][0] in str(view).rpartition(after)[2].splitlines()[0]
    # tokens are written as in `predict`: "##" marks a token that continues a word
    names = ["Ġcat", "s", ","]
    made = result_of(np.eye(3)[:, None], "layer", "token", "V", of="logit", words={"V": names})
    assert plot(made).to_dict()["results"][0]["tokens"] == [["cat"], ["##s"], [","]]
    # logits of only some tokens are no distribution, so they are shown unchanged
    few = plot(results["lens"].to_xarray().isel(token=-1, V=[3, 5]))
    np.testing.assert_array_equal(few.to_dict()["results"][0]["values"], lens[:, -1, [3, 5]])


def test_vectors_are_summed_to_one_number_for_each_token(results: dict[str, Any]) -> None:
    view = plot(results["integrated"])
    sums = np.asarray(results["integrated"]).sum(1)
    np.testing.assert_allclose(view.to_dict()["results"][0]["values"], sums, rtol=1e-12)
    shown = texts(view)
    for token, value in zip(TEXT.split(), sums, strict=True):
        assert shown[shown.index(token) + 1 :: 1].count(f"{value:z.3f}") >= 1
    assert "sum over the 192 numbers" in " ".join(shown)


def test_bars_extend_from_the_ground_in_both_directions() -> None:
    view = plot(result_of([0.5, -1.0, 0.0], "layer"))
    bars = [
        (float(one.get("x")), float(one.get("width")), one.get("fill"))
        for one in ElementTree.fromstring(view.svg()).iter(f"{SVG}rect")
        if one.get("height") == "11"
    ]
    begin, tone = bars[0][0], TONES["light"]
    assert bars[0] == (begin, 30.0, tone.before)
    assert bars[1] == (pytest.approx(begin - 60), 60.0, tone.after)
    assert bars[2] == (begin, 0.0, tone.before)
    assert texts(view)[3:] == ["layer 0", "0.500", "layer 1", "-1.000", "layer 2", "0.000"]
    many = plot(result_of(np.arange(100.0), "F"))
    assert "Shown: the 48 largest of 100 numbers." in texts(many)
    assert "99.000" in texts(many)
    assert "51.000" not in texts(many)


def test_shares_are_drawn_on_one_scale_and_summed(results: dict[str, Any]) -> None:
    shares = results["shares"]
    view = plot(shares)
    total = shares["embed"] + shares["heads"].sum() + shares["mlp"].sum() + shares["bias"]
    assert view.sentence == f"The contributions sum to {total:.3f}."
    # the MLPs' contributions contain those of their neurons
    neurons = result_of(np.ones((2, 3)), "layer", "neuron", of="contribution")
    assert plot(shares | {"neurons": neurons}).sentence == view.sentence
    two = {"one": shares["heads"], "other": shares["heads"]}
    assert plot(two).sentence == "one, other, by layer and head."
    shown = texts(view)
    assert shown[shown.index("embed") + 1] == f"{shares['embed']:z.3f}"
    assert shown[shown.index("mlp layer 1") + 1] == f"{shares['mlp'][1]:z.3f}"
    most = max(abs(shares[name]).max() for name in ("heads", "mlp"))
    most = max(most, abs(shares["embed"]), abs(shares["bias"]))
    assert cells(view.svg())[0] == shade(float(shares["heads"][0, 0] / most))
    assert widths(view)[1] == pytest.approx(60 * abs(shares["mlp"][0]) / most, abs=0.06)


def test_three_axes_are_drawn_as_small_maps_and_a_large_one(results: dict[str, Any]) -> None:
    values = np.zeros((3, 2, 2))
    values[1, 0, 1] = -4.0
    values[2, 1, 0] = 2.0
    view = plot(result_of(values, "head", "query", "key"))
    assert "Made: head 1" in texts(view)
    assert cells(view.svg()) == [shade(0), shade(-1), shade(0), shade(0)]
    images = re.findall('href="data:image/png;base64,', view.svg())
    assert len(images) == 3
    assert [one for one in texts(view) if re.fullmatch(r"head \d", one)] == [
        "head 0", "head 1", "head 2",
    ]  # fmt: skip
    said = str(view)
    assert re.search(r"head 1\s+-4\.000\s+query 0, key 1", said)
    assert re.search(r"head 2\s+2\.000\s+query 1, key 0", said)
    flow = plot(results["rollout"])
    last = np.asarray(results["rollout"])[-1]
    # the large map of a rollout is its last layer, which covers the whole model
    assert cells(flow.svg())[: last.size] == [shade(float(x)) for x in last.ravel()]
    assert f"{last[-1, 0]:.2f}" in texts(flow)


def test_layer_and_head_are_merged_if_there_are_four_axes(results: dict[str, Any]) -> None:
    found = results["composition"]
    view = plot(found)
    (part,) = view.to_dict()["results"]
    layers, heads = found.shape[:2]
    size = layers * heads
    np.testing.assert_array_equal(part["values"], np.asarray(found).reshape(size, size))
    place = np.unravel_index(found.argmax(), found.shape)
    assert "head {}.{}, reader head {}.{}".format(*place) in view.sentence
    assert part["places"][0][heads] == "1.0"
    batch = plot(result_of(np.arange(16.0).reshape(2, 2, 2, 2), "text", "layer", "head", "token"))
    assert batch.to_dict()["results"][0]["axes"] == ["text", "head", "token"]


def test_a_part_of_a_result_is_drawn_by_its_names() -> None:
    values = np.arange(8.0).reshape(2, 2, 2)
    words = {"token": ["a", "b"]}
    found = result_of(values, "layer", "head", "token", of="metric", ground=3.0, words=words)
    view = plot(found.to_xarray().isel(layer=0))
    assert view.sentence == (
        "Made: strongest at head 0, token 0 (a), 0.000 (metric, no effect: 3.000)."
    )
    later = plot(found.to_xarray().isel(layer=1, head=slice(1, None), token=[1]))
    assert later.sentence == (
        "Made: strongest at head 1, token 1 (b), 7.000 (metric, no effect: 3.000)."
    )
    assert {"head 1", "b"} <= set(texts(later))  # numbered as in the whole result
    one = plot(found.to_xarray()[1, 1, 0])
    assert one.sentence == "Made: 6.000 (metric, no effect: 3.000)."
    assert "6.000" in texts(one)
    difference = found.to_xarray() - found.to_xarray()
    assert plot(difference).to_dict()["results"][0]["axes"] == ["layer", "head", "token"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: np.ones((2, 2)), TypeError, r"`result` is ndarray \(2, 2\), without named axes"),
        (lambda: result_of([[1.0]], "a", "b").T, TypeError, r"`result` is Result \(1, 1\)"),
        (lambda: result_of([["a"]], "a", "b").to_xarray(), TypeError, "a DataArray of <U1; pass"),
        (lambda: SimpleNamespace(nodes=["a"], edges=[("a", "a")]), TypeError, "SimpleNamespace; "),
        (lambda: "lens", TypeError, "`result` is str; pass a result of qkv.circuits"),
        (lambda: {"heads": [1.0]}, TypeError, "`result` is list; pass a result"),
        (dict, ValueError, "`result` is an empty dict; pass a dict with results"),
        (lambda: result_of(np.ones((2, 0)), "layer", "head"), ValueError,
         r"has shape \(2, 0\), so it is empty"),
        (lambda: graph_of(1, 1, [Edge("embed", "attn.3.0.q", 1.0)]), ValueError,
         r"the edge embed → attn.3.0.q has the end attn.3.0, which is not among the 4 nodes"),
        (lambda: SimpleNamespace(nodes=["neuron.3"], edges=[]), ValueError,
         r"has the node 'neuron.3'; use the names embed, attn.LAYER.HEAD, mlp.LAYER and logits"),
        (lambda: SimpleNamespace(nodes=[], edges=[]), ValueError, "the graph has no nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^plot: .*{message}") as found:
        plot(make())
    assert "\n" not in str(found.value)


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^plot: theme is 'blue'"):
        plot(result_of([[1.0]], "layer", "head"), theme="blue")


# The graph


def items(view: PlotView, kind: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(view.svg()).iter(f"{SVG}g")
    return [one for one in found if kind in one.get("class", "").split()]


def title_of(item: ElementTree.Element) -> str:
    found = item.find(f"{SVG}title")
    return found.text or ""


def test_edges_show_their_scores_as_widths_and_titles() -> None:
    edges = [Edge("embed", "attn.0.1.k", 0.25), Edge("attn.0.1", "mlp.1", -0.5)]
    edges.append(Edge("mlp.1", "logits", 1.0))
    view = plot(graph_of(2, 2, edges, faithfulness=0.91237, correlation=None))
    assert view.sentence == "Strongest of 3 edges: mlp.1 → logits, 1.000."
    drawn = items(view, "qkv-edge")
    assert [title_of(one) for one in drawn] == [
        "mlp.1 → logits: 1.000", "attn.0.1 → mlp.1: -0.500", "embed → attn.0.1.k: 0.250",
    ]  # fmt: skip
    lines = [next(one.iter(f"{SVG}path")) for one in drawn]
    widths = [float(one.get("stroke-width")) for one in lines]
    assert widths == pytest.approx([6.0, 3.3, 1.95], abs=0.006)
    assert [one.get("stroke") for one in lines] == [shade(1), shade(-0.5), shade(0.25)]
    # edges go upwards: each begins below its end
    for one in lines:
        ends = np.array(re.findall(r"[\d.]+", one.get("d")), float).reshape(-1, 2)
        assert ends[-1, 1] < ends[0, 1]
    assert all(one.get("tabindex") == "0" for one in drawn)
    nodes = {title_of(one) for one in items(view, "qkv-node")}
    assert "attn.0.1 reads embed (k) 0.250. writes to mlp.1 -0.500" in nodes
    assert "logits reads mlp.1 1.000" in nodes
    assert len(nodes) == 4  # nodes without edges cannot be selected
    shown = texts(view)
    for label in ("embed", "0.0", "1.1", "MLP 0", "MLP 1", "logits", "layer 0", "layer 1"):
        assert label in shown
    assert "Faithfulness of these edges: 0.912." in shown
    assert "Correlation" not in " ".join(shown)
    assert view.to_dict()["edges"][1] == {"sender": "attn.0.1", "receiver": "mlp.1", "score": -0.5}
    assert re.search(r"attn\.0\.1\s+→ mlp\.1\s+-0\.500", str(view))


def heights(view: PlotView) -> dict[str, float]:
    """Return the y coordinate of each label."""
    found = ElementTree.fromstring(view.svg()).iter(f"{SVG}text")
    return {one.text or "": float(one.get("y")) for one in found}


@pytest.mark.parametrize(("layers", "heads"), [(4, 6), (12, 12)])
def test_layers_go_upwards_and_the_strongest_edges_are_shown(layers: int, heads: int) -> None:
    edges = chain(layers, heads)
    view = plot(graph_of(layers, heads, edges))
    count = min(150, len(edges))
    drawn = items(view, "qkv-edge")
    assert len(drawn) == count
    strongest = sorted(edges, key=lambda edge: -abs(edge.score))[:count]
    assert [title_of(one) for one in drawn] == [
        f"{edge.sender} → {edge.receiver}: {edge.score:.3f}" for edge in strongest
    ]
    said = f"Shown: {count} of {len(edges)} edges, those with the largest numbers."
    assert (said in " ".join(texts(view))) == (count < len(edges))
    at = heights(view)
    order = ["embed"]
    for layer in range(layers):
        order += [f"{layer}.0", f"MLP {layer}"]
    assert all(at[low] > at[high] for low, high in pairwise([*order, "logits"]))
    assert len({at[f"0.{head}"] for head in range(heads)}) == 1
    assert all(abs(at[f"layer {layer}"] - at[f"{layer}.0"]) < 5 for layer in range(layers))
    assert f"Shown: 20 of {len(edges)} edges." in str(view)


def bezier(points: np.ndarray) -> np.ndarray:
    """Return points on joined cubic Bézier curves, (n, 2)."""
    t = np.linspace(0, 1, 101)[:, None]
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
    parts = [points[i : i + 4] for i in range(0, len(points) - 1, 3)]
    return np.concatenate(
        [sum(w * p for w, p in zip(weights, part, strict=True)) for part in parts]
    )


@pytest.mark.parametrize(("layers", "heads"), [(2, 1), (3, 4), (5, 12)])
def test_no_edge_is_drawn_behind_a_node_that_it_does_not_join(layers: int, heads: int) -> None:
    last = layers - 1
    edges = [
        Edge("embed", "logits", 1.0),
        *(Edge(f"attn.0.{i}", f"mlp.{last}", 0.5) for i in range(heads)),
        *(Edge("mlp.0", f"attn.{last}.{i}.{'qkv'[i % 3]}", -0.5) for i in range(heads)),
        *(Edge(f"attn.0.{i}", f"attn.{last}.{heads - 1 - i}.v", 0.25) for i in range(heads)),
    ]
    view = plot(graph_of(layers, heads, edges))
    root = ElementTree.fromstring(view.svg())
    boxes = [
        [float(one.get(name, "")) for name in ("x", "y", "width", "height")]
        for one in root.iter(f"{SVG}rect")
        if one.get("rx")
    ]
    lines = [one.get("d", "") for one in root.iter(f"{SVG}path") if one.get("stroke-width")]
    drawn = [line for line in lines if "C" in line]
    assert len(drawn) == 2 * len(edges)
    for line in drawn:
        points = bezier(np.array(re.findall(r"-?[\d.]+", line), float).reshape(-1, 2))
        for x, y, width, height in boxes:
            inside = (
                np.abs(points - (x + width / 2, y + height / 2)) < (width / 2, height / 2)
            ).all(1)
            assert inside.sum() <= 1  # an end may touch its own box, rounded to 0.1 px


@pytest.mark.parametrize("digits", [0, 1, 3, 6])
def test_no_text_of_a_picture_is_smaller_than_9_pixels(digits: int) -> None:
    view = plot(result_of([[-(10.0**digits), 0.5], [1.0, 2e-5]], "layer", "head"))
    root = ElementTree.fromstring(view.svg())
    sizes = [float(one.get("font-size", "")) for one in root.iter(f"{SVG}text")]
    assert min(sizes) >= 9
    found = [one for one in root.iter(f"{SVG}rect") if one.get("shape-rendering")]
    widest = max(
        len(one.text or "") for one in root.iter(f"{SVG}text") if one.get("font-size") == "9"
    )
    assert float(found[0].get("width", "")) >= 9 * 0.6 * widest  # the numbers fit into their cells


def test_a_graph_without_most_of_its_nodes_stays_together() -> None:
    kept = SimpleNamespace(
        nodes=["attn.2.7", "attn.30.11", "logits"],
        edges=[Edge("attn.2.7", "attn.30.11.v", 0.5), Edge("attn.30.11", "logits", np.nan)],
    )
    view = plot(kept)
    assert view.sentence == "Strongest of 1 edges: attn.2.7 → attn.30.11.v, 0.500."
    at = heights(view)
    assert 0 < at["2.7"] - at["30.11"] < 120
    assert at["layer 2"] > at["layer 30"]
    nothing = plot(graph_of(1, 1, [Edge("embed", "logits", 0.0)]))
    assert nothing.sentence == "The score is 0 for each of the 1 edges."
    assert not items(nothing, "qkv-edge")
