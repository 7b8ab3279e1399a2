"""Tests of patches, edges, paths and circuits at chosen positions, against full runs by hand."""

import numpy as np
import pytest

from circuits.test_edge_effects import by_hand, looped as every_edge
from circuits.test_patching import CLEAN, CORRUPTED, HEADS, LOGIT, difference
from circuits.test_sweeping import ONES, OTHERS
from qkv.circuits import attribution_patch, discover, edges, patch, path, plot
from qkv.circuits._edge_effects import _on_paths
from qkv.circuits._residual import Wiring
from qkv.circuits.results import Edge

NAMED = {"early": 2, "end": -1}
TWO = {"clean": [0, 1], "corrupted": [2, 1], "metric": (-1, 0)}


@pytest.mark.parametrize("at", ["resid_pre", "mlp_out", "z", "pattern", "v", "post"])
def test_patches_at_positions_are_those_of_all_positions(small, at):
    model = small("gpt2")
    about = {"at": at, "metric": LOGIT, "by": "position"}
    for call in (patch, attribution_patch):
        whole = call(model, CLEAN, CORRUPTED, **about)
        found = call(model, CLEAN, CORRUPTED, **about, positions=NAMED)
        np.testing.assert_allclose(found, whole[..., [2, -1]], rtol=0, atol=1e-12)
        assert found.axes[-1] == "position"
        assert found.words["position"] == ["early", "end"]
        numbers = call(model, CLEAN, CORRUPTED, **about, positions=[2, -1])
        assert numbers.words["position"] == ["2", "-1"]


@pytest.mark.parametrize("at", HEADS)
def test_a_patch_of_a_head_covers_the_positions_together(small, at):
    model = small("llama")
    clean, rows = model.trace(CLEAN), []
    for layer in range(model.num_layers):
        given = clean[at, layer][0]
        count = given.shape[0 if at == "pattern" else 1]

        def put_in(x, given=given, count=count):
            for head in range(count):
                for position in (2, 5):
                    where = (head, position) if at == "pattern" else (position, head)
                    x[head][where] = given[where]
            return x

        logits = model([CORRUPTED] * count, edit={(at, layer): put_in}).logits
        rows.append([float(difference(one[None])) for one in logits])
    for metric in (LOGIT, difference):
        found = patch(model, CLEAN, CORRUPTED, at=at, metric=metric, positions=NAMED)
        np.testing.assert_allclose(found, rows, rtol=0, atol=1e-11)


@pytest.mark.parametrize("at", ["z", "pattern", "pre", "post", "k"])
def test_attribution_patches_by_position_are_slopes(small, at):
    """The slopes of a head or neuron over all positions sum to its slope without `by`."""
    model = small("llama")
    clean, corrupted = model.trace(CLEAN), model.trace(CORRUPTED)
    found = attribution_patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT, by="position")
    low, step = float(difference(model(CORRUPTED).logits)), 1e-5
    one, other = clean[at, 0], corrupted[at, 0]
    cells = [(unit, position) for unit in range(found.shape[1]) for position in (2, 5)]
    moved = []
    for unit, position in cells:
        where = (0, unit, position) if at == "pattern" else (0, position, unit)
        for way in (step, -step):
            moved.append(other.copy())
            moved[-1][where] += way * (one - other)[where]
    logits = model([CORRUPTED] * len(moved), edit={(at, 0): np.concatenate(moved)}).logits
    ends = np.array([float(difference(logits[[text]])) for text in range(len(moved))])
    slopes = (ends[::2] - ends[1::2]) / (2 * step)
    values = [found[0][cell] - low for cell in cells]
    np.testing.assert_allclose(values, slopes, rtol=1e-5, atol=1e-6)
    whole = attribution_patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    np.testing.assert_allclose((found - low).sum(-1), whole - low, rtol=0, atol=1e-11)
    assert found.shape[2] == 6


def test_attribution_patches_take_a_list_of_sites(small):
    model, sites = small("gpt2"), ["resid_pre", "mlp_out"]
    found = attribution_patch(model, CLEAN, CORRUPTED, at=sites, metric=LOGIT)
    assert found.axes == ("site", "layer", "token")
    for site, one in zip(sites, found, strict=True):
        alone = attribution_patch(model, CLEAN, CORRUPTED, at=site, metric=LOGIT)
        np.testing.assert_array_equal(one, alone)
    several = attribution_patch(model, ONES, OTHERS, at=["z", "q"], metric=LOGIT)
    assert several.pairs.axes == ("pair", "site", "layer", "head")


def test_each_pair_has_its_own_positions(small):
    model, names = small("llama"), {"here": [2, 0, 4, -1], "end": -1}
    found = patch(model, ONES, OTHERS, at="mlp_out", metric=LOGIT, positions=names)
    for number, place in enumerate(names["here"]):
        whole = patch(model, ONES[number], OTHERS[number], at="mlp_out", metric=LOGIT)
        expected = whole[:, [place, -1]]
        np.testing.assert_allclose(found.pairs[number], expected, rtol=0, atol=1e-11)
    assert np.isfinite(found).all()
    graph = edges(model, ONES, OTHERS, metric=LOGIT, positions=names)
    for number, place in enumerate(names["here"]):
        alone = edges(model, ONES[number], OTHERS[number], metric=LOGIT, positions=[place])
        for edge in alone.edges:
            one, other = (name.partition("@")[0] + "@here" for name in edge[:2])
            assert graph.pairs[number].score(one, other) == pytest.approx(edge.score, abs=1e-11)


def test_edges_by_hand():
    """In the clean run and at position 1, head 0 reads the key and the value of position 0.

    `test_by_hand` of `test_edge_effects.py` computes the same scores: the corrupted key and value
    change head 0 only at position 0, and the output of head 0 reaches the logits at position 1.
    """
    model = by_hand()
    graph = edges(model, **TWO, positions={"first": 0, "last": 1})
    assert graph.nodes[:4] == ["embed@first", "embed@last", "attn.0.0@first", "attn.0.0@last"]
    scores = {edge[:2]: edge.score for edge in graph.edges if abs(edge.score) > 1e-12}
    assert scores == pytest.approx(
        {
            ("embed@first", "attn.0.0.k@first"): 3 * (3 / 4 - 1 / 2),
            ("embed@first", "attn.0.0.v@first"): 3 / 2,
            ("attn.0.0@last", "logits@last"): 3,
        }
    )
    ends = {"sender": "embed", "receivers": ["attn.0.0.k", "attn.0.0.v"]}
    assert path(model, **TWO, **ends, positions=0) == pytest.approx(3)
    assert path(model, **TWO, **ends, positions=[1]) == pytest.approx(0)
    found = discover(model, **TWO, threshold=0.1, positions={"first": 0, "last": 1})
    assert len(found.edges) == 3
    assert found.faithfulness == pytest.approx(1)
    plot(found)
    plot(graph)
    # the output of head 0 at the last position depends on keys at the first position, not the
    # other way round
    assert not discover(model, **TWO, threshold=0.1, positions={"first": 1, "last": 0}).edges[3:]


@pytest.mark.parametrize("kind", ["gpt2", "gpt_oss", "parallel", "modernbert"])
def test_an_edge_at_a_position_equals_a_full_run(small, kind):
    """The receiver reads the sender's change at one position only."""
    model, names = small(kind), {"early": 2, "later": 4, "end": 5}
    for name, place in names.items():
        keep = np.zeros((6, 1))
        keep[place] = 1
        expected = every_edge(model, CLEAN, CORRUPTED, difference, keep)
        for metric in (LOGIT, difference):
            graph = edges(model, CLEAN, CORRUPTED, metric=metric, positions=names)
            found = {ends: graph.score(*(f"{one}@{name}" for one in ends)) for ends in expected}
            assert found == pytest.approx(expected, rel=0, abs=1e-10)


@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_estimates_at_all_positions_sum_to_the_estimate(small, method):
    model = small("llama")
    about = {"metric": LOGIT, "method": method}
    whole = edges(model, CLEAN, CORRUPTED, **about)
    found = edges(model, CLEAN, CORRUPTED, **about, positions=range(6))
    for edge in whole.edges:
        each = [found.score(f"{edge.sender}@{n}", f"{edge.receiver}@{n}") for n in range(6)]
        assert sum(each) == pytest.approx(edge.score, abs=1e-10)
    assert -1 <= found.correlation <= 1


def test_paths_and_circuits_at_all_positions_are_those_without_positions(small):
    model = small("gpt2")
    ends = {"sender": "attn.0.1", "receivers": ["attn.1.0.q", "mlp.1", "logits"]}
    about = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": LOGIT}
    expected = path(model, **about, **ends)
    assert path(model, **about, **ends, positions=range(6)) == pytest.approx(expected)
    one = path(model, **about, sender="mlp.0", receivers="attn.1.0.k", positions=4)
    graph = edges(model, **about, positions=4)
    assert one == pytest.approx(graph.score("mlp.0@4", "attn.1.0.k@4"))
    found = discover(model, **about, positions=range(6), threshold=0)
    assert found.faithfulness == pytest.approx(1)
    few = discover(model, **about, positions=range(6), edges=30)
    assert 0 < len(few.edges) <= 30
    none = discover(model, **about, positions=[2], edges=0)
    assert none.faithfulness == pytest.approx(0)


@pytest.mark.parametrize(
    ("positions", "error", "words"),
    [
        (6, ValueError, r"`positions` has position 6, but the text has 6 tokens; pass -6 to 5"),
        ("end", TypeError, r"`positions` is 'end'; pass positions such as \[2, -1\]"),
        ({"end": "last"}, TypeError, r"`positions` has 'last' for 'end'; pass a whole number"),
        ([], TypeError, r"`positions` is \[\]; pass positions such as \[2, -1\]"),
        ({"end": [1, 2]}, ValueError, "`positions` has 2 positions for 'end', but the number of"),
        ({1: 2}, TypeError, r"`positions` is \{1: 2\}; pass positions"),
        ({"a@b": 2}, TypeError, r"`positions` is \{'a@b': 2\}; pass positions"),
        (0.5, TypeError, r"`positions` is 0.5; pass positions"),
    ],
)
@pytest.mark.parametrize("call", [patch, edges])
def test_invalid_positions_are_refused(small, call, positions, error, words):
    more = {"at": "z"} if call is patch else {}
    with pytest.raises(error, match=f"^{call.__name__}: {words}") as caught:
        call(small("gpt2"), CLEAN, CORRUPTED, metric=LOGIT, positions=positions, **more)
    assert "\n" not in str(caught.value)


def test_held_out_pairs_need_the_same_names(small):
    about = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": LOGIT, "threshold": 0}
    held_out = CORRUPTED, CLEAN, LOGIT, {"other": 2}
    with pytest.raises(ValueError, match=r"^discover: `positions` has the names early, end, but"):
        discover(small("gpt2"), **about, positions=NAMED, held_out=held_out)


def test_a_path_moves_between_positions_only_in_heads(small):
    """A head moves a key or value to all later positions; a query stays at its position."""
    edges = [
        Edge(one, other, 1.0)
        for one, other in (
            ("embed@a", "attn.0.0.v@a"),
            ("attn.0.0@b", "mlp.0@b"),
            ("mlp.0@b", "logits@b"),
            ("embed@a", "attn.0.1.q@a"),
            ("attn.0.1@b", "logits@b"),
        )
    ]
    wiring = Wiring(small("gpt2").layers)
    assert _on_paths(edges, wiring, {"a": ["a", "b"], "b": ["b"]}) == edges[:3]
    assert _on_paths(edges, wiring, {"a": ["a"], "b": ["a", "b"]}) == []
