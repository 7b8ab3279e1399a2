"""Tests of results, which are arrays with named axes, and of graphs of edges."""

import pickle

import numpy as np
import pytest

import qkv
from qkv.circuits import (
    Edge,
    Graph,
    Result,
    attribute_logits,
    attribution_patch,
    composition,
    copying_scores,
    head_scores,
    integrated_gradients,
    logit_lens,
    patch,
    rollout,
    scan_heads,
    value_weighted,
)
from qkv.circuits.results import mean_of_pairs

IDS, OTHERS = [3, 7, 1, 9], [3, 7, 8, 9]
VALUES = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, 4.0]])


@pytest.fixture
def result() -> Result:
    words = {"head": ["a", "b", "c"], "layer": ["too", "many", "words"]}
    names = {"of": "metric", "title": "made", "words": words, "ground": 0.25}
    return Result(VALUES.copy(), ("layer", "head"), **names)


def axes_of(model: qkv.Model) -> dict[str, tuple[str, ...]]:
    """Return the axes of each function's result."""
    trace, logit = model.trace(IDS), (-1, 5)
    found = {
        at: patch(model, IDS, OTHERS, at=at, metric=logit)
        for at in ("resid_pre", "attn_out", "z", "pattern", "q", "k", "v")
    }
    found |= {
        "attribution": attribution_patch(model, IDS, OTHERS, at="k", metric=logit, normalize=True),
        "lens": logit_lens(model, trace),
        "composition": composition(model, "q"),
        "copying": copying_scores(model),
        "rollout": rollout(trace),
        "value_weighted": value_weighted(trace, 0),
        "integrated": integrated_gradients(model, IDS, of=logit, baseline=2),
        "induction": head_scores(model, [IDS])["induction"],
        "strongest": scan_heads(model, [IDS]).scores["strongest"],
    }
    shares = attribute_logits(model, trace, of=logit)
    found |= {"heads": shares["heads"], "mlp": shares["mlp"]}
    for name, one in found.items():
        assert isinstance(one, Result), name
        assert len(one.axes) == one.ndim
        assert one.to_xarray().dims == one.axes
        assert np.shares_memory(one.to_xarray().values, np.asarray(one))
    return {name: one.axes for name, one in found.items()}


def test_every_result_knows_its_axes(small) -> None:
    by_head, by_token = ("layer", "head"), ("layer", "token")
    assert axes_of(small("llama")) == {
        **{"resid_pre": by_token, "attn_out": by_token},
        **{"z": by_head, "pattern": by_head, "q": by_head},
        **{"k": ("layer", "kv_head"), "v": ("layer", "kv_head")},
        "attribution": ("layer", "kv_head"),
        "lens": ("layer", "token", "V"),
        "composition": (*by_head, "reader_layer", "reader_head"),
        "copying": by_head,
        "rollout": ("layer", "query", "key"),
        "value_weighted": ("head", "query", "key"),
        "integrated": ("token", "D"),
        **{"induction": by_head, "strongest": by_head, "heads": by_head, "mlp": ("layer",)},
    }


def test_key_heads_and_query_heads_are_one_axis_if_they_are_equally_many(small) -> None:
    sites = ["z", "q", "k", "v", "pattern"]
    model = small("gpt2")
    found = patch(model, IDS, OTHERS, at=sites, metric=(-1, 11))
    assert (found.axes, found.shape) == (("site", "layer", "head"), (5, 2, 3))
    z, v = (patch(model, IDS, OTHERS, at=at, metric=(-1, 11)) for at in ("z", "v"))
    np.testing.assert_array_equal(found[[0, 3]], [z, v])
    assert (z.to_xarray() - v.to_xarray()).dims == ("layer", "head")
    traced = model.trace(IDS, names=["k", "z"])
    assert traced.to_xarray()["blocks.1.attn.hook_k"].dims == ("text", "token", "head", "d")
    assert "head" in model.trace(IDS, names="k").to_pandas("k")
    with pytest.raises(ValueError, match=r"\('layer', 'kv_head'\) and shape \(2, 2\)"):
        patch(small("llama"), IDS, OTHERS, at=sites, metric=(-1, 11))
    grouped = small("llama").trace(IDS, names="k").to_xarray()
    assert grouped["blocks.0.attn.hook_k"].dims == ("text", "token", "kv_head", "d")


def test_tokens_are_coordinates() -> None:
    model = qkv.load("books-decoder")
    clean, corrupted = "The queen spoke", "The king spoke"
    trace = model.trace(clean)
    found = patch(model, clean, corrupted, at="resid_pre", metric=(-1, 5)).to_xarray()
    assert found.coords["token_text"].values.tolist() == ["The", "queen/king", "spoke"]
    flow = rollout(trace).to_xarray()
    assert flow.coords["query_text"].values.tolist() == ["The", "queen", "spoke"]
    assert flow.coords["key_text"].values.tolist() == ["The", "queen", "spoke"]
    assert flow.sel(layer=1, query=2).dims == ("key",)
    lens = logit_lens(model, trace).to_xarray()
    assert lens.coords["layer_text"].values.tolist()[:2] == ["embeddings", "after layer 0"]
    words = lens.coords["V_text"].values
    assert words[trace.ids[1]] == model.tokenizer.token(int(trace.ids[1]))
    assert len(words) == lens.sizes["V"]


def test_the_ground_of_a_patch_is_the_corrupted_metric(small) -> None:
    model, logit = small("gpt2"), (-1, 11, 5)
    logits = model(OTHERS).logits[0, -1]
    found = patch(model, IDS, OTHERS, at="z", metric=logit)
    assert found.ground == pytest.approx(float(logits[11] - logits[5]), abs=1e-12)
    assert found.of == "metric"
    shares = patch(model, IDS, OTHERS, at="z", metric=logit, normalize=True)
    assert (shares.ground, shares.of) == (0.0, "share restored")


def test_a_result_is_the_array_in_all_but_its_names(result: Result) -> None:
    np.testing.assert_array_equal(result, VALUES)
    assert isinstance(result, np.ndarray)
    assert repr(result) == repr(VALUES)
    assert str(result) == str(VALUES)
    made = [result + 1, result - result, -result, result[0], result[:, [True, False, True]]]
    made += [result.mean(0), np.mean(result, 0), np.sqrt(abs(result)), result == 1, *result]
    assert {type(one) for one in made} == {Result}
    plain = [result[result > 1], result @ result.T, np.concatenate([result, result])]
    plain += [result[None], result[[0, 1], [0, 2]], result[0:1, :, None], np.cumsum(result)]
    plain += [result.ravel()[1:], result.ravel().argsort()[::-1], result.T[0]]
    assert {type(one) for one in plain} == {np.ndarray}
    assert {type(one) for one in (result.sum(), result.max(), result[0, 1])} == {np.float64}
    np.testing.assert_array_equal(result.T + 1, VALUES.T + 1)
    changed = result
    changed += 1
    np.testing.assert_array_equal(changed, [[2, -1, 4], [1.5, 1, 5]])
    assert result.tolist() == changed.tolist()  # changed in place, as in NumPy


def named(found: Result) -> tuple[object, ...]:
    return found.axes, dict(found.words), dict(found.places)


HEADS = {"head": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (1, (("head",), HEADS, {})),
        (-1, (("head",), HEADS, {})),
        (slice(1, None), (("layer", "head"), HEADS, {"layer": [1]})),
        (slice(None), (("layer", "head"), HEADS, {})),
        ((slice(None), 2), (("layer",), {}, {})),
        ((..., 2), (("layer",), {}, {})),
        ((0, slice(None, None, 2)), (("head",), {"head": ["a", "c"]}, {"head": [0, 2]})),
        ((slice(None), [2, 0]), (("layer", "head"), {"head": ["c", "a"]}, {"head": [2, 0]})),
        (
            (..., np.array([False, True, True])),
            (("layer", "head"), {"head": ["b", "c"]}, {"head": [1, 2]}),
        ),
    ],
    ids=str,
)
def test_an_index_keeps_the_names_of_the_axes_that_are_left(result: Result, key, names) -> None:
    found = result[key]
    assert named(found) == names
    assert (found.of, found.title, found.ground) == ("metric", "made", 0.25)
    np.testing.assert_array_equal(found, VALUES[key])


def test_an_index_of_a_part_gives_the_original_numbers(result: Result) -> None:
    found = result[:, 1:][:, [1]]
    assert named(found) == (("layer", "head"), {"head": ["c"]}, {"head": [2]})
    assert found.to_xarray().coords["head"].values.tolist() == [2]
    assert (result[:, 1:] - 1).places == {"head": [1, 2]}


@pytest.mark.parametrize("axis", ["head", 1, -1, ("head",)])
def test_a_mean_keeps_the_other_axes(result: Result, axis) -> None:
    found = result.mean(axis)
    assert (found.axes, found.of, found.ground) == (("layer",), "mean metric", 0.25)
    np.testing.assert_array_equal(found, VALUES.mean(1))
    assert found.mean("layer") == VALUES.mean(1).mean(0)
    total = result.sum(axis)
    assert (total.of, total.ground) == ("sum of metric", 0.75)
    np.testing.assert_array_equal(result.std(axis), VALUES.std(1))
    assert (result.max("layer").of, result.min("layer").of) == ("largest metric", "smallest metric")
    np.testing.assert_array_equal(result.max("layer"), VALUES.max(0))
    np.testing.assert_array_equal(result.min("layer"), VALUES.min(0))
    with pytest.raises(ValueError, match="mean: there is no axis 'token'; choose among layer"):
        result.mean("token")


def test_arithmetic_says_what_its_numbers_are(result: Result) -> None:
    other = Result(VALUES * 2, ("layer", "head"), of="metric", title="other", ground=0.5)
    for found, about in (
        (result - other, ("metric", "made \N{MINUS SIGN} other", -0.25)),
        (result + 1, ("metric", "made + 1", 1.25)),
        (1 - result, ("metric", "1 \N{MINUS SIGN} made", 0.75)),
        (-result, ("metric", "\N{MINUS SIGN}made", -0.25)),
        (result * 2, ("number", "made \N{MULTIPLICATION SIGN} 2", 0.5)),
        (result * other, ("number", "made \N{MULTIPLICATION SIGN} other", 0.0)),
        (result - VALUES, ("metric", "made \N{MINUS SIGN} an array", 0.0)),
        (np.sqrt(abs(result)), ("number", "sqrt(|made|)", 0.0)),
    ):
        assert (found.of, found.title, found.ground) == about
        assert found.axes == ("layer", "head")
    assert (result - other).words == HEADS  # only one of them has words
    words = {"head": ["a", "b", "d"]}
    assert (result - Result(VALUES, ("layer", "head"), of="metric", words=words)).words == {}
    assert (result - result[0]).axes == ("layer", "head")
    assert type(result[:, :2] - result[:, 0, None]) is Result
    layers = Result(VALUES[0], ("layer",), of="metric")
    assert type(result - layers) is np.ndarray  # an axis of heads, and an axis of layers


def test_the_pairs_of_a_mean_follow_indices_and_differences() -> None:
    values = np.random.default_rng(5).normal(size=(4, 2, 3))
    one, other = (mean_of_pairs(x, ("layer", "head"), of="metric") for x in (values, values**2))
    for found, expected in (
        (one[1, 1:], values[:, 1, 1:]),
        (one - other, values - values**2),
        (one.mean("head"), values.mean(2)),
        ((one - other).sum(0), (values - values**2).sum(1)),
    ):
        np.testing.assert_allclose(found.pairs, expected, atol=1e-15)
        np.testing.assert_allclose(found, expected.mean(0), atol=1e-15)
        assert found.pairs.axes == ("pair", *found.axes)
    assert abs(one).pairs is None  # the mean of absolute values is another number
    assert one.max("head").pairs is None
    assert (one - VALUES).pairs is None


@pytest.mark.parametrize("make", [np.transpose, np.copy, lambda x: x.copy(), lambda x: x.ravel()])
def test_arrays_computed_from_a_result_have_no_axis_names(result: Result, make) -> None:
    found = make(result)
    assert getattr(found, "axes", ()) == ()
    if isinstance(found, Result):
        message = (
            rf"^to_xarray: this array \({found.shape[0]},.*\) was computed from a result, "
            "so its axes "
            r"have no names: call to_xarray\(\) on the result"
        )
        with pytest.raises(ValueError, match=message):
            found.to_xarray()


def test_to_xarray_keeps_the_axes_and_attributes(result: Result) -> None:
    found = result.to_xarray()
    assert (found.name, found.dims) == ("made", ("layer", "head"))
    assert found.attrs == {"of": "metric", "ground": 0.25}
    assert found.coords["head_text"].values.tolist() == ["a", "b", "c"]
    assert "layer_text" not in found.coords  # omitted: it has 3 words for 2 layers
    assert found.isel(head=2).values.tolist() == [3.0, 4.0]
    assert found[:, 1:].coords["head"].values.tolist() == [1, 2]


def test_a_pickle_keeps_the_names(result: Result) -> None:
    found = pickle.loads(pickle.dumps(result))
    assert isinstance(found, Result)
    np.testing.assert_array_equal(found, VALUES)
    assert vars(found) == vars(result)
    assert found.ground == 0.25


# Graphs of edges

EDGES = [
    Edge("attn.0.1", "logits", -2.0),
    Edge("embed", "attn.0.1.q", 1.5),
    Edge("embed", "mlp.0", 0.0),
]
GRAPH = Graph(["embed", "attn.0.1", "mlp.0", "logits"], EDGES, "eap", 3.0, 1.0, 0.75, None)


def test_score_finds_an_edge_by_sender_and_receiver():
    assert [GRAPH.score(edge.sender, edge.receiver) for edge in EDGES] == [-2.0, 1.5, 0.0]
    for pair in (("embed", "attn.0.1.k"), ("embed", "attn.0.1")):
        with pytest.raises(KeyError, match=r"there is no edge .*; the nearest receivers are"):
            GRAPH.score(*pair)
    with pytest.raises(KeyError, match=r"no edge from 3 to None; choose from logits, attn"):
        GRAPH.score(3, None)
    with pytest.raises(KeyError, match=r"no edge from 'mlp\.0' to 'logits'; logits reads"):
        GRAPH.score("mlp.0", "logits")
    with pytest.raises(KeyError, match=r"no edge from 'embed' to 'logits'.$"):
        Graph([], [], "exact", 0.0, 0.0).score("embed", "logits")


def test_top_returns_the_first_edges():
    assert GRAPH.top(2) == EDGES[:2]
    assert GRAPH.top(9) == EDGES
    assert GRAPH.top(0) == []
    with pytest.raises(TypeError, match="top: count"):
        GRAPH.top(1.5)
    with pytest.raises(ValueError, match="top: count"):
        GRAPH.top(-1)


def test_a_table_for_pandas():
    table = GRAPH.to_pandas()
    assert list(table.columns) == ["sender", "receiver", "score"]
    assert list(table.itertuples(index=False, name=None)) == [tuple(edge) for edge in EDGES]
    empty = Graph([], [], "exact", 0.0, 0.0).to_pandas()
    assert list(empty.columns) == ["sender", "receiver", "score"]


def test_repr_of_a_graph():
    assert repr(GRAPH) == "<Graph: 4 nodes, 3 edges, eap, correlation 0.750>"
