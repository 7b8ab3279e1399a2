"""Tests of edges, paths and circuits, by hand and against full runs with `edit=`."""

import math
from dataclasses import replace

import numpy as np
import pytest

import qkv
from models.small_models import CONFIGS
from qkv.circuits import discover, edges, path
from qkv.circuits._edge_effects import _correlation
from qkv.circuits._pairs import read_pairs
from qkv.circuits._residual import streams_of
from qkv.models.families import design_of
from qkv.models.files.names import Storage
from qkv.models.network.design import Attention

CLEAN = [3, 7, 1, 9, 4, 7]
CORRUPTED = [3, 7, 8, 9, 2, 7]  # differs at positions 2 and 4
LOGIT = (-1, 11, 5)
SEVERAL = ("attn.1.0.q", "mlp.1", "logits")


def difference(logits):
    """Compute the metric `LOGIT` from logits (1, T, V)."""
    return logits[0, -1, 11] - logits[0, -1, 5]


def by_hand():
    """Return a model whose logits a reader can check: one layer, two heads, no norm, no MLP.

    A vector has three numbers: the number of apples, the number of pears and a third number. In
    head 0, the query is the number of pears, the key is the third number, the value is the number
    of apples, and the output is 3 times the value. Head 1 attends to all visible positions equally.
    Its value is the number of pears, and its output is 5 times the value.
    """
    config = CONFIGS["gpt2"]
    design, names = design_of(config, "config.json")
    design = replace(
        design,
        vocabulary=3,
        dim=3,
        hidden=0,
        positions=0,
        layers=(Attention(2, 2, 1, options={"is_causal": True}),),
        first_norm=False,
        final_norm=False,
        head=replace(design.head, outputs=3, tied=False),
    )
    numbers = {
        "embed.weight": [[1, 0, 0], [0, 1, 0], [2, 0, math.log(3)]],
        "blocks.0.attn.q_proj.weight": [[0, 0], [1, 0], [0, 0]],
        "blocks.0.attn.k_proj.weight": [[0, 0], [0, 0], [1, 0]],
        "blocks.0.attn.v_proj.weight": [[1, 0], [0, 1], [0, 0]],
        "blocks.0.attn.out_proj.weight": [[3, 0, 0], [0, 5, 0]],
        "head.out_proj.weight": [[1, 0, 0], [1, 0, 0], [0, 0, 0]],  # word 0: apple + pear
    }
    parameters = {
        name: np.array(numbers.get(name, np.zeros(shape)), np.float64).reshape(shape)
        for name, shape in design.shapes()
    }
    return qkv.Model(
        name="by hand", config=config, design=design, weights=Storage(names, parameters)
    )


TWO = {"clean": [0, 1], "corrupted": [2, 1], "metric": (-1, 0)}


def test_by_hand():
    """At position 1, head 0 has the weights 1/2 and 1/2, or 3/4 and 1/4 with the corrupted key.

    The metric counts apples and pears. In both runs, the embedding adds 1 pear, and head 1 reads
    1/2 pear and adds 5 * 1/2 = 2.5 pears. In the clean run, head 0 reads 1/2 apple and adds
    3 * 1/2 = 1.5 apples, so the metric is 1 + 2.5 + 1.5 = 5. In the corrupted run, head 0 reads 3/4
    of 2 apples, which are 1.5 apples. It adds 3 * 1.5 = 4.5, so the metric is 1 + 2.5 + 4.5 = 8.
    """
    model = by_hand()
    graph = edges(model, **TWO)
    assert graph.nodes == ["embed", "attn.0.0", "attn.0.1", "logits"]
    assert (graph.clean, graph.corrupted) == pytest.approx((5, 8))
    expected = {
        ("embed", "attn.0.0.q"): 0,  # the query is at position 1, whose token is the same
        ("embed", "attn.0.0.k"): 3 * (3 / 4 - 1 / 2),
        ("embed", "attn.0.0.v"): 3 * (2 / 2 - 1 / 2),
        ("attn.0.0", "logits"): 3,
        ("embed", "logits"): 0,
        **{("embed", f"attn.0.1.{kind}"): 0 for kind in "qkv"},
        ("attn.0.1", "logits"): 0,
    }
    assert {edge[:2]: edge.score for edge in graph.edges} == pytest.approx(expected)
    assert [edge[:2] for edge in graph.top(2)] == [("attn.0.0", "logits"), ("embed", "attn.0.0.v")]
    both = path(model, **TWO, sender="embed", receivers=["attn.0.0.k", "attn.0.0.v"])
    assert both == pytest.approx(8 - 5)  # more than the sum of both edges


def test_estimates_by_hand():
    """Compare the estimates with slopes by hand: w (1 - w) for a score, and w for a value.

    In the clean run, each weight w is 1/2, so w (1 - w) is 1/4. At a fraction s of the way from the
    clean to the corrupted text, the first token has the vector (1 + s, 0, s ln 3). The value
    of the token is 1 + s. Its key is s ln 3, so its weight w is 3^s / (3^s + 1). The last of the
    five steps is the clean text.
    """
    model = by_hand()
    found = edges(model, **TWO, method="eap")
    assert found.score("embed", "attn.0.0.k") == pytest.approx(3 / 4 * math.log(3))
    assert found.score("embed", "attn.0.0.v") == pytest.approx(3 / 2)
    assert found.score("attn.0.0", "logits") == pytest.approx(3)
    shares = 1 - np.arange(1, 6) / 5
    weights = 3**shares / (3**shares + 1)
    found = edges(model, **TWO, method="eap-ig")
    slopes = weights * (1 - weights) * (1 + shares)
    assert found.score("embed", "attn.0.0.k") == pytest.approx(3 * math.log(3) * slopes.mean())
    assert found.score("embed", "attn.0.0.v") == pytest.approx(3 * weights.mean())


def test_a_circuit_by_hand():
    """Three edges carry the whole effect; without the edge of the keys, 3/4 of it remains.

    Without this edge, head 0 has the weights of the corrupted run. It reads 3/4 apple and adds
    3 * 3/4 = 2.25, instead of the 4.5 of the corrupted run. So the metric falls from 8 to 5.75,
    which is 3/4 of the way from 8 to 5.
    """
    model = by_hand()
    found = discover(model, **TWO, threshold=0.5)
    assert [edge[:2] for edge in found.edges] == [
        ("attn.0.0", "logits"),
        ("embed", "attn.0.0.v"),
        ("embed", "attn.0.0.k"),
    ]
    assert found.faithfulness == pytest.approx(1)
    assert found.nodes == ["embed", "attn.0.0", "logits"]
    for count, expected in ((2, 3 / 4), (1, 0), (0, 0), (9, 1)):
        found = discover(model, **TWO, edges=count)
        # one edge alone is not a path
        assert len(found.edges) == (0 if count == 1 else count)
        assert found.faithfulness == pytest.approx(expected)


KINDS = ["gpt2", "bloom", "parallel", "gpt_oss", "granite", "olmo", "smollm3", "modernbert"]


def looped(model, clean, corrupted, metric, share=1.0):
    """Score each edge with a full run: the receiver reads `share` of the sender's change."""
    factor = model.config.get("residual_multiplier", 1)
    runs = [
        model.trace(ids, names=["resid_pre", "z", "attn_out", "mlp_out"])
        for ids in (clean, corrupted)
    ]

    def added(run):
        yield "embed", run["resid_pre", 0][0]
        for layer, block in enumerate(model.layers):
            weight = block.attn.parameters["out_proj.weight"] * factor
            z = run["z", layer][0]  # (T, H, d)
            for head in range(z.shape[1]):
                yield f"attn.{layer}.{head}", z[:, head] @ weight[head * z.shape[2] :][: z.shape[2]]
            yield f"mlp.{layer}", run["mlp_out", layer][0]

    deltas = {s: share * (b - a) for (s, a), (_, b) in zip(*map(added, runs), strict=True)}
    base = float(metric(model([clean]).logits))
    found, senders = {}, ["embed"]

    def score(receiver, name, change):
        """Score the edge from each sender to the receiver.

        The model runs a batch with one copy of the clean text for each sender. In each copy,
        `change` edits the activation `name` for one sender.
        """
        logits = model([clean] * len(senders), edit={name: change}).logits
        for sender, one in zip(senders, logits, strict=True):
            found[sender, receiver] = float(metric(one[None])) - base

    for layer, block in enumerate(model.layers):
        pre = runs[0]["resid_pre", layer][0] + np.array([deltas[s] for s in senders])
        x = pre if block.norm1 is None else block.norm1(pre)
        for kind in "qkv" if block.attn.num_heads == block.attn.num_kv_heads else "q":
            whole = x @ block.attn.parameters[f"{kind}_proj.weight"]
            bias = block.attn.parameters.get(f"{kind}_proj.bias", 0)
            for head in range(block.attn.num_heads):

                def put(array, new=whole + bias, head=head):
                    array[:, :, head] = new.reshape(array.shape)[:, :, head]
                    return array

                score(f"attn.{layer}.{head}.{kind}", (kind, layer), put)
        heads = [f"attn.{layer}.{head}" for head in range(block.attn.num_heads)]
        base_of = runs[0]["resid_pre", layer][0]
        if not block.parallel:
            senders += heads
            base_of = base_of + runs[0]["attn_out", layer][0]
        read = base_of + np.array([deltas[s] for s in senders])
        norm = block.norm1 if block.parallel and block.norm2 is None else block.norm2
        score(f"mlp.{layer}", ("mlp_out", layer), block.mlp(norm(read)) * factor)
        senders += [*heads[: len(heads) * block.parallel], f"mlp.{layer}"]
    changes = np.array([deltas[s] for s in senders])
    score("logits", ("resid_post", model.num_layers - 1), lambda x: x + changes)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_edge_score_equals_that_of_a_full_run(small, kind):
    model = small(kind)
    expected = looped(model, CLEAN, CORRUPTED, difference)
    for metric in (LOGIT, difference):
        graph = edges(model, CLEAN, CORRUPTED, metric=metric)
        found = {pair: graph.score(*pair) for pair in expected}
        assert found == pytest.approx(expected, rel=0, abs=1e-10)
        grouped = model.layers[0].attn.num_heads != model.layers[0].attn.num_kv_heads
        assert grouped or len(graph.edges) == len(expected)
    assert np.ptp(list(expected.values())) > 1e-3


@pytest.mark.parametrize(
    "kind",
    [
        *("parallel", "gpt_oss"),
        *(pytest.param(kind, marks=pytest.mark.attack) for kind in ("bloom", "modernbert")),
    ],
)
def test_an_estimate_is_the_slope_of_an_edge(small, kind):
    """The estimate of an edge equals a slope, which is a central difference of two full runs.

    In the two runs, the receiver reads a small fraction of the sender's change: once with the sign
    of the change, and once with the opposite sign.
    """
    model, step = small(kind), 1e-4
    near, other = (looped(model, CLEAN, CORRUPTED, difference, sign * step) for sign in (1, -1))
    graph = edges(model, CLEAN, CORRUPTED, metric=LOGIT, method="eap")
    for pair, value in near.items():
        slope = (value - other[pair]) / (2 * step)
        assert graph.score(*pair) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("kind", "place", "clean", "corrupted"),
    [
        ("gpt2", 3, CLEAN, CORRUPTED),  # a position in the middle
        ("gpt2", 1, CLEAN, CORRUPTED),  # before the first token that differs: no effect
        ("gpt2", 2, CLEAN, CORRUPTED),  # at the first token that differs
        ("gpt2", -1, [3, 7, 1], [3, 7, 8]),  # only the last token differs
        ("gpt2", 0, [3], [4]),
        ("modernbert", 1, CLEAN, CORRUPTED),
    ],
)
def test_edges_are_exact_wherever_the_texts_differ(small, kind, place, clean, corrupted):
    model = small(kind)

    def metric(logits):
        return logits[0, place, 11]

    expected = looped(model, clean, corrupted, metric)
    for about in ((place, 11), metric):
        graph = edges(model, clean, corrupted, metric=about)
        found = {edge[:2]: edge.score for edge in graph.edges}
        assert found == pytest.approx(expected, rel=0, abs=1e-10)
        one = path(model, clean, corrupted, sender="embed", receivers="mlp.1", metric=about)
        assert one == pytest.approx(expected["embed", "mlp.1"], rel=0, abs=1e-10)
    assert any(expected.values()) == (place != 1 or kind == "modernbert")


@pytest.mark.parametrize("tokens", [1, 12, 25])
def test_edges_do_not_depend_on_the_batch_size(small, monkeypatch, tokens):
    expected = edges(small("gpt2"), CLEAN, CORRUPTED, metric=LOGIT)
    for place in ("qkv.circuits._residual", "qkv.circuits._pairs"):
        monkeypatch.setattr(f"{place}.MOST_POSITIONS", tokens)
    found = edges(small("gpt2"), CLEAN, CORRUPTED, metric=LOGIT)
    assert [e[:2] for e in found.edges[:20]] == [e[:2] for e in expected.edges[:20]]
    for edge in expected.edges:
        assert found.score(*edge[:2]) == pytest.approx(edge.score, rel=0, abs=1e-12)


@pytest.mark.parametrize("kind", ["gpt2", "gpt_oss", "parallel"])
def test_nothing_below_a_receiver_is_computed_again(small, monkeypatch, kind):
    """After both runs, `effects` runs layer 1 only for receivers in layer 1, and never layer 0."""
    stream = next(streams_of(read_pairs(small(kind), CLEAN, CORRUPTED, LOGIT)))[0]
    assert len(stream.clean) == 2
    ran = []
    for name in ("_project", "_attend", "_mlp"):
        one = getattr(stream, name)
        monkeypatch.setattr(
            stream,
            name,
            lambda layer, *rest, one=one, **more: (ran.append(layer), one(layer, *rest, **more))[1],
        )
    for name, layers in (("attn.1.0.q", {1}), ("mlp.1", {1}), ("logits", set())):
        ran.clear()
        stream.effects({name: np.arange(3)})
        assert set(ran) == layers, name


@pytest.mark.parametrize("method", ["exact", "eap"])
@pytest.mark.parametrize("positions", [None, {"two": 2, "four": 4}])
def test_only_some_edges_are_scored(small, method, positions):
    model = small("gpt2")
    options = {"metric": LOGIT, "method": method, "positions": positions}
    whole = edges(model, [CLEAN, CLEAN[::-1]], [CORRUPTED, CORRUPTED[::-1]], **options)
    at = "@two" if positions else ""
    some = [*whole.edges[3:9], (f"embed{at}", f"attn.1.0.q{at}")]
    found = edges(model, [CLEAN, CLEAN[::-1]], [CORRUPTED, CORRUPTED[::-1]], **options, only=some)
    assert {edge[:2] for edge in found.edges} == {tuple(edge[:2]) for edge in some}
    assert len(found.edges) == len({tuple(edge[:2]) for edge in some})
    for edge in found.edges:
        np.testing.assert_allclose(edge.score, whole.score(*edge[:2]), rtol=0, atol=1e-12)
    for wrong, error, words in (
        ([], ValueError, "`only` is empty; pass at least one edge"),
        ([f"mlp.0{at}"], TypeError, r"`only` has 'mlp.0.*'; pass pairs \(sender, receiver\)"),
        ([(f"mlp.9{at}", f"logits{at}")], KeyError, "only: 'mlp.9' is unknown; the nearest"),
        ([(f"mlp.1{at}", f"mlp.0{at}")], ValueError, "mlp.0 does not read mlp.1, which the mo"),
        (
            [("mlp.0@x", "logits@x")],
            ValueError,
            "edge from mlp.0@x to logits@x; choose two ends at the same",
        ),
    ):
        with pytest.raises(error, match=words):
            edges(model, CLEAN, CORRUPTED, **options, only=wrong)


def test_paths_by_way_of_several_receivers(small):
    """The score is that of a full run in which all receivers read the sender's corrupted vector.

    Later receivers also read the effects of earlier receivers.
    """
    model = small("gpt2")
    runs = [model.trace(ids) for ids in (CLEAN, CORRUPTED)]
    delta = (runs[1]["mlp_out", 0] - runs[0]["mlp_out", 0])[0]
    block, last = model.layers[1], model.num_layers - 1
    query = block.norm1(runs[0]["resid_pre", 1] + delta) @ block.attn.parameters["q_proj.weight"]
    query = (query + block.attn.parameters["q_proj.bias"]).reshape(runs[0]["q", 1].shape)

    def put(q):
        q[:, :, 0] = query[:, :, 0]
        return q

    middle = model.trace(CLEAN, names=("resid_mid", 1), edit={("q", 1): put})["resid_mid", 1]
    edit = {
        ("q", 1): put,
        ("mlp_out", 1): block.mlp(block.norm2(middle + delta)),
        ("resid_post", last): lambda x: x + delta,
    }
    expected = difference(model([CLEAN], edit=edit).logits) - difference(model([CLEAN]).logits)
    about = {"sender": "mlp.0", "metric": LOGIT}
    found = path(model, CLEAN, CORRUPTED, receivers=SEVERAL, **about)
    assert found == pytest.approx(expected, rel=0, abs=1e-12)
    alone = [path(model, CLEAN, CORRUPTED, receivers=one, **about) for one in SEVERAL]
    graph = edges(model, CLEAN, CORRUPTED, metric=LOGIT)
    assert alone == pytest.approx([graph.score("mlp.0", one) for one in SEVERAL], abs=1e-12)


def test_an_estimate_says_how_far_to_trust_it(small):
    """With few edges, the correlation is over all of them; with two equal texts, it is NaN."""
    model = small("gpt2")
    exact = edges(model, CLEAN, CORRUPTED, metric=LOGIT)
    assert exact.correlation is None
    for method in ("eap", "eap-ig"):
        found = edges(model, CLEAN, CORRUPTED, metric=LOGIT, method=method)
        pairs = [[edge.score, exact.score(*edge[:2])] for edge in found.edges]
        assert len(pairs) < 200
        assert found.correlation == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])
        assert np.abs(np.diff(pairs)).max() > 1e-3
    alike = edges(model, CLEAN, CLEAN, metric=LOGIT, method="eap")
    assert math.isnan(alike.correlation)
    assert not any(edge.score for edge in alike.edges)


def test_a_sample_stands_for_all_edges():
    """Estimates and exact scores have nearly the same correlation on a sample as on all edges.

    The sample consists of the edges with the largest estimates and of randomly chosen other edges.
    """
    model = qkv.load("books-decoder")
    texts = {"clean": "she was a girl and", "corrupted": "he was a girl and", "metric": (-1, 30, 7)}
    exact, found = (edges(model, **texts, method=method) for method in ("exact", "eap-ig"))
    pairs = [[edge.score, exact.score(*edge[:2])] for edge in found.edges]
    assert len(pairs) > 1000
    assert found.correlation == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1], abs=0.02)
    again = edges(model, **texts, method="eap-ig")
    assert again.edges == found.edges
    assert again.correlation == found.correlation


def test_faithfulness_is_1_for_all_edges_and_0_for_none(small):
    for kind in ("gpt2", "gpt_oss", "parallel", "modernbert"):
        about = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": LOGIT}
        whole = discover(small(kind), **about, threshold=0)
        assert whole.faithfulness == pytest.approx(1, abs=1e-9)
        assert [edge[:2] for edge in whole.edges] == [
            edge[:2] for edge in edges(small(kind), **about).edges
        ]
        none = discover(small(kind), **about, edges=0)
        assert none.faithfulness == pytest.approx(0, abs=1e-9)
        assert none.nodes == []


ABOUT = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": LOGIT}


@pytest.mark.parametrize(
    ("call", "given", "error", "words"),
    [
        (edges, {"method": "fast"}, ValueError, "`method` is 'fast': choose among exact, eap"),
        (edges, {"method": None}, ValueError, "`method` is None: choose among"),
        (
            edges,
            {"method": "eap", "metric": difference},
            TypeError,
            "`metric` is a function, whose",
        ),
        (edges, {"metric": 3}, TypeError, r"`metric` is 3; pass \(position, token\)"),
        (edges, {"metric": lambda logits: logits}, ValueError, "`metric` returned an array"),
        (edges, {"corrupted": CLEAN[1:]}, ValueError, "`clean` has 6 tokens and `corrupted` has 5"),
        (edges, {"clean": [CLEAN, CLEAN]}, ValueError, "`clean` has 2 texts and `corrupted` has 1"),
        (path, {"sender": "mlp.7"}, KeyError, "sender: 'mlp.7' is unknown; the nearest names are"),
        (path, {"sender": "zzzqqq"}, KeyError, "'zzzqqq' is unknown; choose from embed, "),
        (path, {"receivers": ["attn.1.0"]}, KeyError, r"'attn\.1\.0' is unknown; the nearest"),
        (path, {"receivers": 3}, TypeError, "`receivers` is 3; pass names, for example"),
        (path, {"receivers": [3]}, TypeError, "receivers: 3 is not a name; pass names"),
        (path, {"receivers": []}, ValueError, "`receivers` is empty"),
        (path, {"sender": "mlp.1", "receivers": "mlp.0"}, ValueError, "mlp.0 does not read mlp.1"),
        (path, {"sender": 1}, TypeError, "sender: 1 is not a name; pass names"),
        (discover, {}, ValueError, r"pass either `threshold` \(the smallest absolute score\) or"),
        (discover, {"threshold": 1, "edges": 2}, ValueError, r"pass either `threshold` \(the"),
        (discover, {"threshold": -1}, ValueError, "`threshold` is -1; pass a non-negative number"),
        (discover, {"threshold": math.nan}, ValueError, "`threshold` is nan"),
        (discover, {"threshold": "x"}, TypeError, "threshold"),
        (discover, {"edges": 1.5}, TypeError, "edges"),
        (discover, {"edges": -1}, ValueError, "edges"),
        (discover, {"edges": 10**6}, ValueError, "`edges` is 1000000, but .* has only 75 edges"),
        (discover, {"edges": 3, "corrupted": CLEAN}, ValueError, "in both the clean and the"),
    ],
)
def test_invalid_arguments_are_refused(small, call, given, error, words):
    usual = {"sender": "embed", "receivers": "mlp.1"} if call is path else {}
    with pytest.raises(error, match=words) as caught:
        call(small("gpt2"), **ABOUT | usual | given)
    assert str(caught.value).strip("\"'").startswith(f"{call.__name__}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [edges, path, discover])
def test_models_without_a_residual_stream_of_sums(small, call):
    more = {edges: {}, path: {"sender": "embed", "receivers": "mlp.1"}, discover: {"edges": 3}}[
        call
    ]
    faults = {"bert": "has norms after its parts", "olmo2": "normalizes the queries of all heads"}
    for kind, words in faults.items():
        with pytest.raises(ValueError, match=f"^{call.__name__}: .*{words}"):
            call(small(kind), **ABOUT, **more)
    with pytest.raises(
        ValueError, match=f"^{call.__name__}: .* has no head, so it cannot predict words"
    ):
        call(small("headless"), **ABOUT, **more)
    with pytest.raises(TypeError, match=f"^{call.__name__}: `model` is str; pass a model"):
        call("gpt2", **ABOUT, **more)


def test_half_precision_supports_only_exact_edges(small):
    model = small("gpt2")
    half = model.with_parameters(model.parameters, "float16")
    wide = model.with_parameters(half.parameters, "float32")
    found, expected = (edges(one, **ABOUT) for one in (half, wide))
    for edge in expected.edges:
        assert found.score(*edge[:2]) == pytest.approx(edge.score, rel=0, abs=2e-5)
    with pytest.raises(TypeError, match="is float16, but gradients need float32 or float64"):
        edges(half, **ABOUT, method="eap")


class Known:
    """A stream with known exact scores."""

    def at(self, place):
        return self

    def __init__(self, exact):
        self.exact, self.asked = exact, 0

    def effects(self, wanted):
        self.asked += sum(len(numbers) for numbers in wanted.values())
        return {name: self.exact[name][numbers] for name, numbers in wanted.items()}


def test_sampled_edges_are_weighted_by_the_number_they_represent():
    """Compute the correlation for 5,100 edges whose estimates and exact scores are known.

    For 100 edges, the estimate is 1 or -1, but the exact score is 0. For each of the other 5,000
    edges, the estimate is 0.3 or -0.3, and it equals the exact score.
    """
    rng = np.random.default_rng(0)
    estimates, exact = rng.choice([-1.0, 1.0], 5100), np.zeros(5100)
    estimates[100:] = exact[100:] = rng.choice([-0.3, 0.3], 5000)
    order = rng.permutation(5100)
    stream = Known({"a": exact[order][:3000], "b": exact[order][3000:]})
    every = [("a", number, "") for number in range(3000)]
    every += [("b", number, "") for number in range(2100)]
    expected = math.sqrt(5000 * 0.3**2 / (100 + 5000 * 0.3**2))
    found = _correlation(estimates[order][None], every, lambda which: [stream])
    assert found == pytest.approx(expected, abs=0.01)
    assert stream.asked == 200
