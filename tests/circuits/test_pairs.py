"""Tests of many pairs of texts: the mean over the pairs, each pair, and held-out pairs."""

import numpy as np
import pytest

from circuits.test_edge_effects import by_hand
from circuits.test_patching import CLEAN, CORRUPTED, LOGIT, difference
from circuits.test_sweeping import ONES, OTHERS, PAIRS
from qkv.circuits import _pairs as module, attribution_patch, discover, edges, metrics, path, plot
from qkv.circuits._edge_effects import _on_paths, _strongest_paths
from qkv.circuits._residual import Wiring
from qkv.circuits.results import Edge

METRICS = [LOGIT, (3, 3), metrics.log_probability(4), (-2, 4, 9)]


@pytest.mark.parametrize("method", ["exact", "eap", "eap-ig"])
@pytest.mark.parametrize("tokens", [2048, 14])
def test_edges_of_many_pairs_are_means_of_each_alone(small, monkeypatch, method, tokens):
    monkeypatch.setattr(module, "MOST_POSITIONS", tokens)
    model = small("llama")
    graph = edges(model, ONES, OTHERS, metric=METRICS, method=method)
    alone = [
        edges(model, *pair, metric=metric, method=method)
        for pair, metric in zip(PAIRS, METRICS, strict=True)
    ]
    for edge in graph.edges:
        each = [one.score(*edge[:2]) for one in alone]
        assert edge.score == pytest.approx(np.mean(each), abs=1e-10)
        assert [one.score(*edge[:2]) for one in graph.pairs] == pytest.approx(each, abs=1e-10)
    sizes = [abs(edge.score) for edge in graph.edges]
    assert sizes == sorted(sizes, reverse=True)
    for name in ("clean", "corrupted"):
        each = [getattr(one, name) for one in alone]
        assert float(getattr(graph, name)) == pytest.approx(np.mean(each))
        assert getattr(graph, name).pairs == pytest.approx(each)
        assert [getattr(one, name) for one in graph.pairs] == pytest.approx(each)
    assert len(graph.pairs) == 4
    assert (graph.correlation is None) == (method == "exact")
    plot(graph)


def test_a_sample_of_the_estimates_of_all_pairs_has_their_correlation(small):
    model = small("gpt2")
    about = {"clean": ONES[:2], "corrupted": OTHERS[:2], "metric": METRICS[:2]}
    exact, found = (edges(model, **about, method=method) for method in ("exact", "eap"))
    values = np.array(
        [
            [one.score(*edge[:2]), other.score(*edge[:2])]
            for one, other in zip(found.pairs, exact.pairs, strict=True)
            for edge in exact.edges
        ]
    )
    assert len(values) < 200
    assert found.correlation == pytest.approx(np.corrcoef(values.T)[0, 1])


def test_paths_of_many_pairs(small):
    model, ends = small("gpt2"), {"sender": "attn.0.1", "receivers": ["mlp.1", "logits"]}
    found = path(model, ONES, OTHERS, **ends, metric=METRICS)
    each = [
        path(model, *pair, **ends, metric=metric)
        for pair, metric in zip(PAIRS, METRICS, strict=True)
    ]
    assert found.pairs == pytest.approx(each, abs=1e-12)
    assert float(found) == pytest.approx(np.mean(each))
    assert isinstance(each[0], float)
    assert found.to_xarray().item() == float(found)
    assert found.pairs.to_xarray().dims == ("pair",)


@pytest.mark.parametrize("at", ["z", "mlp_out", "pattern"])
def test_attribution_patches_of_many_pairs(small, at):
    model = small("gpt2")
    for normalize in (False, True):
        about = {"at": at, "normalize": normalize}
        found = attribution_patch(model, ONES, OTHERS, metric=METRICS, **about).pairs
        for row, pair, metric in zip(found, PAIRS, METRICS, strict=True):
            alone = attribution_patch(model, *pair, metric=metric, **about)
            np.testing.assert_allclose(row[:, : alone.shape[1]], alone, rtol=0, atol=1e-10)
            assert np.isnan(row[:, alone.shape[1] :]).all()


def test_held_out_pairs_by_hand():
    """The circuit of one pair is measured on others: the shares of the three edges differ.

    In the pair (0, 1), (2, 1) the edge of the keys has 1/4 of the effect, as in
    `test_a_circuit_by_hand`. In the pair (1, 1), (2, 1) the clean text has two pears and no apple:
    head 0 has the weights 1/2 and 1/2, and reads no apple. With the corrupted key and value, it
    reads 3/4 of 2 apples and adds 4.5. Without the edge of the keys, the circuit has the key of
    the corrupted run, but the clean value 0, so head 0 adds 0 as in the clean run. Head 1 reads
    2/2 pears in the clean run and 1/2 in the corrupted run, and its edges are outside the circuit:
    the metric is 1 + 5 in the clean run, 1 + 2.5 + 4.5 = 8 in the corrupted run, and 1 + 2.5 in
    the run of the circuit, (3.5 - 8) / (6 - 8) = 2.25.
    """
    model = by_hand()
    about = {"clean": [0, 1], "corrupted": [2, 1], "metric": (-1, 0), "edges": 2}
    held_out = [[0, 1], [1, 1]], [[2, 1], [2, 1]]
    found = discover(model, **about, held_out=held_out)
    assert found.faithfulness.pairs == pytest.approx([3 / 4, 9 / 4])
    # the ratio of the mean differences: (5.75 - 8 + 3.5 - 8) / (5 - 8 + 6 - 8)
    assert float(found.faithfulness) == pytest.approx(6.75 / 5)
    assert [edge[:2] for edge in found.edges] == [("attn.0.0", "logits"), ("embed", "attn.0.0.v")]
    one = discover(model, **about, held_out=([0, 1], [2, 1]))
    assert one.faithfulness == pytest.approx(3 / 4)
    assert len(one.pairs) == 1
    other = discover(model, **about, held_out=([0, 1], [2, 1], metrics.logit_difference(0, 2)))
    assert other.faithfulness == pytest.approx(3 / 4)


def test_a_circuit_of_many_pairs(small):
    model = small("gpt2")
    about = {"clean": ONES, "corrupted": OTHERS, "metric": METRICS}
    graph, found = edges(model, **about), discover(model, **about, edges=15)
    assert 8 <= len(found.edges) <= 15
    assert found.edges == [edge for edge in graph.edges if edge in found.edges]
    for one, whole in zip(found.pairs, graph.pairs, strict=True):
        assert {edge[:2] for edge in one.edges} == {edge[:2] for edge in found.edges}
        for edge in one.edges:
            assert whole.score(*edge[:2]) == edge.score
    whole = discover(model, **about, threshold=0)
    assert whole.faithfulness.pairs == pytest.approx([1] * 4)
    assert float(whole.faithfulness) == pytest.approx(1)


def test_edges_outside_paths_are_removed(small):
    names = [
        ("mlp.1", "logits"),  # nothing enters mlp.1
        ("embed", "attn.1.0.q"),  # nothing leaves attn.1.0
        ("embed", "mlp.0"),
        ("mlp.0", "attn.1.1.k"),
        ("attn.1.1", "logits"),
        ("attn.0.0", "attn.1.1.v"),  # nothing enters attn.0.0
    ]
    edges, wiring = [Edge(*pair, 1.0) for pair in names], Wiring(small("gpt2").layers)
    assert _on_paths(edges, wiring, {}) == edges[2:5]
    for most, expected in ((None, edges[2:5]), (5, edges[2:5]), (3, edges[2:5]), (2, [])):
        assert _strongest_paths(edges, most, wiring, {}) == expected


@pytest.mark.parametrize(
    ("call", "given", "error", "words"),
    [
        (edges, {"corrupted": OTHERS[:3]}, ValueError, "`clean` has 4 texts and `corrupted` has 3"),
        (edges, {"metric": METRICS[:3]}, ValueError, "`metric` is a list of length 3, but there"),
        (edges, {"metric": [LOGIT, difference] * 2, "method": "eap"}, TypeError, "is a function"),
        (discover, {"held_out": CLEAN, "edges": 3}, TypeError, r"`held_out` is .*; pass \(clean"),
        (
            discover,
            {"held_out": (ONES, OTHERS[:3]), "edges": 3},
            ValueError,
            "`held_out`: `clean` has 4 texts and `corrupted` has 3",
        ),
        (
            discover,
            {"held_out": (CLEAN, CORRUPTED), "edges": 3},
            ValueError,
            "`held_out`: `metric` is a list of length 4, but there are 1 texts",
        ),
        (
            discover,
            {"held_out": (CLEAN, CLEAN, LOGIT), "edges": 3},
            ValueError,
            r"`metric` is \S+ in both the clean and the corrupted run",
        ),
    ],
)
def test_invalid_pairs_are_refused(small, call, given, error, words):
    about = {"clean": ONES, "corrupted": OTHERS, "metric": METRICS, **given}
    with pytest.raises(error, match=f"^{call.__name__}: .*{words}") as caught:
        call(small("gpt2"), **about)
    assert "\n" not in str(caught.value)
