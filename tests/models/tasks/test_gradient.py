"""Tests of gradients of logits and activations against finite differences, also under edits."""

import numpy as np
import pytest

import qkv
from browser.edited import examples
from qkv.models import load
from qkv.models.network import _embedding
from qkv.ops import linear
from qkv.trace.activations import activation, short_name

from ..small_models import CONFIGS, write_small
from ..support import CONFIG

KINDS = {
    name: CONFIGS[name] for name in ("gpt2", "llama", "gemma2", "gpt_oss", "gpt_neox", "olmo2")
}
KINDS["bert"] = {**CONFIG, "architectures": ["BertForMaskedLM"]}
TEXTS = ["the cat sat on the mat", "a dog ran"]
EDITED = {"edit": {("resid_post", 0): np.tanh}, "at": ["z"]}
SCALED = {"edit": {"ln_final.hook_scale": np.tanh}, "at": ["ln_final.hook_normalized"]}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A function that loads the model of a kind, once."""
    found = {}

    def model(kind):
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind) / "model"
            found[kind] = load(write_small(folder, KINDS[kind], seed=3), dtype=np.float64)
        return found[kind]

    return model


def rng(seed):
    return np.random.default_rng(seed)


def match_slopes(found, total, **bounds):
    """Assert that gradients are the slopes of `total(name, change)`, each in a random direction."""
    for number, (name, array) in enumerate(found.items()):
        way = rng(number).standard_normal(array.shape)
        expected = slope(lambda step, name=name, way=way: total(name, step * way))
        assert (array * way).sum() == pytest.approx(expected, rel=1e-6, **bounds), name


def slope(total, step=1e-5):
    """Return the derivative of `total` at 0, by central differences of fourth order."""
    near, far = (total(size) - total(-size) for size in (step, 2 * step))
    return (8 * near - far) / (12 * step)


def test_gradients_of_a_padded_batch_match_single_texts(llama):
    asked = ["embed", ("q", 0), ("resid_post", -1), "blocks.0.mlp.hook_post"]
    batch = llama.gradient(TEXTS, of=(-1, 5), at=asked)
    trace = llama.trace(TEXTS)
    assert list(batch) == asked
    for number, text in enumerate(TEXTS):
        alone = llama.gradient(text, of=(-1, 5), at=asked)
        size = len(trace[number].tokens)
        for name in asked:
            assert batch[name].shape == trace[name].shape
            np.testing.assert_allclose(batch[name][number, :size], alone[name][0], atol=1e-12)
            assert not batch[name][number, size:].any()


def test_a_name_without_a_layer_means_all_layers(llama):
    found = llama.gradient(TEXTS, of=(-1, 5), at=["z", "embed", "mlp.post"])
    assert list(found) == ["z", "embed", "mlp.post"]
    assert found["embed"].ndim == 3
    for name in ("z", "mlp.post"):
        layers = [(name, layer) for layer in range(llama.num_layers)]
        each = llama.gradient(TEXTS, of=(-1, 5), at=layers)
        np.testing.assert_array_equal(found[name], [each[layer] for layer in layers])
        assert found[name].shape == llama.trace(TEXTS).stack(name).shape


def test_gradients_under_edited_embeddings_match_a_scaled_table(llama):
    """An edit that scales the embeddings gives the same gradients as a scaled embedding table."""
    table, ids = llama.parameters["embed.weight"], [[3, 7, 5], [9, 4]]
    scaled = llama.with_parameters({**llama.parameters, "embed.weight": 0.3 * table})
    at = ["embed", ("q", 1)]
    expected = scaled.gradient(ids, of=(-1, 6, 2), at=at)
    rows = np.zeros((2, 3, llama.dim))
    rows[0], rows[1, :2] = 0.3 * table[ids[0]], 0.3 * table[ids[1]]
    for embed in (rows, lambda x: 0.3 * x):
        found = llama.gradient(ids, of=(-1, 6, 2), at=at, edit={"embed": embed})
        for name in at:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-13)
    assert abs(expected["embed"] - llama.gradient(ids, of=(-1, 6, 2))["embed"]).max() > 1e-3


def test_a_logit_difference_matches_an_array_of_logit_weights(llama):
    up = np.zeros((2, 8, llama.design.vocabulary))
    lengths = llama.trace(TEXTS).lengths
    assert lengths.tolist() == [8, 5]
    for number, length in enumerate(lengths):
        up[number, length - 2, 8], up[number, length - 2, 4] = 1, -1
    at = [("z", 0), "full_embed"]
    by_array = llama.gradient(TEXTS, of=up, at=at)
    by_pair = llama.gradient(TEXTS, of=(-2, 8, 4), at=at)
    for name in at:
        np.testing.assert_allclose(by_array[name], by_pair[name], atol=1e-13)


def test_an_encoder_at_its_mask():
    model = qkv.load()
    text = "The cat sat on the [MASK]."
    found = model.gradient(text, of=(-3, "the"), at=("resid_pre", 0))
    assert found["resid_pre", 0].shape == model.trace(text)["resid_pre", 0].shape
    assert found["resid_pre", 0].dtype == np.float32


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"at": ("received", 0)}, ValueError, "has no gradient, .* records it .*; pass hook_embed"),
        (
            EDITED,
            ValueError,
            r"gradient at 'z' may depend on .* that edits blocks\.0\.hook_resid_post",
        ),
        (SCALED, ValueError, "function that edits ln_final.hook_scale, but this derivative is not"),
        ({"ablate": [(0, 9)]}, ValueError, "`ablate` names head 9"),
        ({"hide": 12}, ValueError, "`hide` has"),
        ({"of": {}}, ValueError, "`of` is empty; pass an activation"),
        ({"of": {("z", 0): np.ones(3)}}, ValueError, r"`of` has shape \(3,\) for.*'z'"),
        ({"of": {3: np.ones(3)}}, TypeError, "`of` contains 3; pass names"),
        ({"of": {"embed": np.ones((1, 4, 12), bool)}}, TypeError, "`of` has .* for 'embed'; pass"),
        ({"edit": {"embed": np.ones((1, 2, 3))}}, ValueError, r"\(1, 2, 3\) for hook_embed"),
        ({"at": [("resid_post", 9)]}, KeyError, "there is no layer 9: the model has 2 layers"),
        ({"at": ["resid_pots"]}, KeyError, "nearest are resid_post"),
        ({"at": [3]}, TypeError, "`at` contains 3; pass names"),
        ({"at": None}, TypeError, "`at` is None; pass names"),
        ({"of": 3}, TypeError, r"`of` is 3; pass \(position, token\)"),
        ({"of": (9, 1)}, ValueError, "position 9, but the text has 4 tokens; pass -4 to 3"),
        ({"of": (-1, 10**6)}, ValueError, "no token 1000000: the ids run from 0 to"),
        ({"of": (-1, 1.5)}, TypeError, r"the token 1\.5; pass an id, or a string"),
        ({"of": (-1, "xyzzy")}, ValueError, "'xyzzy' is not in the vocabulary of"),
        ({"of": (-1, "the cat")}, ValueError, r"'the cat' is 2 tokens of .* \(the cat\)"),
        ({"of": np.ones((1, 2, 3))}, ValueError, r"shape \(1, 2, 3\) and the logits have \(1, 4,"),
    ],
)
def test_what_cannot_be_asked_for(llama, options, error, words):
    with pytest.raises(error, match=words) as caught:
        llama.gradient("the cat", **{"of": (-1, 1), **options})
    assert str(caught.value).strip("\"'").startswith("gradient: ")
    assert "\n" not in str(caught.value)


def test_models_without_gradients_are_refused(tmp_path):
    short = load(write_small(tmp_path / "llama", CONFIGS["llama"]), dtype="bfloat16")
    with pytest.raises(TypeError, match=r"is bfloat16, but gradients .*dtype=np\.float32"):
        short.gradient("the cat", of=(-1, 1))
    with pytest.raises(ValueError, match="gradient: random has no head"):
        qkv.load("random").gradient("the cat", of=(-1, 1))


@pytest.mark.parametrize(
    "kind",
    [
        *("bert", "gpt2", "llama"),
        *(pytest.param(kind, marks=pytest.mark.attack) for kind in list(KINDS)[2:-1]),
    ],
)
def test_logit_gradients_of_every_activation_match_finite_differences(small, kind):
    """For every editable activation of padded texts, logit gradients equal finite differences."""
    model, ids = small(kind), [[3, 7, 5, 9, 12, 4], [8, 2, 11]]
    trace = model.trace(ids, logits=True)
    up = rng(0).standard_normal(trace["logits"].shape)
    every = [name for name in model.network.hook_names if activation(name).editable]
    found = model.gradient(ids, of=up, at=every)
    usual = [name for name in every if not activation(name).is_weights]
    for name, array in model.gradient(ids, of=up, at=usual).items():  # computed another way
        np.testing.assert_allclose(array, found[name], rtol=0, atol=1e-11)
    assert {"pattern", "attn_scores", "result", "scale"} <= set(map(short_name, every))

    def total(name, change):
        edit = {name: lambda x: x + change}
        return (up * model.trace(ids, names=[], logits=True, edit=edit)["logits"]).sum()

    match_slopes(found, total, abs=1e-7)
    for name in every:
        axes, short = activation(name).axes[1:], found[name][1]
        queries = axes.index("query") if activation(name).is_weights else 0
        assert not np.moveaxis(short, queries, 0)[3:].any(), name


TARGETS = [
    ("pattern", 1),
    ("attn_scores", 0),
    ("post", 0),
    ("q", 1),
    ("result", 0),
    ("scale", 1, "ln1"),
]


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        pytest.param(
            of, kind, id=f"{of}-{kind}", marks=[] if number % 3 == other else pytest.mark.attack
        )
        for number, of in enumerate(TARGETS)
        for other, kind in enumerate(["gpt2", "llama", "bert"])
    ],
)
def test_gradients_of_an_activation_match_finite_differences(small, kind, of):
    """Gradients of a weighted sum over one activation equal finite differences.

    The parameter `of` names this activation. The gradient at a later activation is 0.
    """
    model, ids = small(kind), [3, 7, 5, 9, 12]
    names = ["embed", ("resid_pre", 0), ("pattern", 0), ("v", 0), ("z", 0), of, ("resid_post", 1)]
    trace = model.trace(ids, names=names)
    weight = rng(1).standard_normal(trace[of].shape)
    there = np.isfinite(trace[of])
    found = model.gradient(ids, of={of: weight}, at=names)
    np.testing.assert_allclose(found[of], np.where(there, weight, found[of]), atol=1e-12)
    assert not found["resid_post", 1].any()

    def total(name, change):
        kept = model.trace(ids, names=of, edit={name: lambda x: x + change})[of]
        return (weight[there] * kept[there]).sum()

    shown = {name: np.where(np.isfinite(trace[name]), found[name], 0) for name in names}
    match_slopes(shown, total, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_of_a_weight_is_computed(small, kind, monkeypatch):
    model = small(kind)
    expected = model.gradient([3, 7, 5], of=(-1, 5), at=["embed", ("z", 0)])

    def refused(*given, **options):
        raise AssertionError("a gradient of a parameter")

    for module in (linear, _embedding):
        monkeypatch.setattr(module, "linear_grad", refused)
    monkeypatch.setattr(_embedding, "rows_back", refused)
    found = model.gradient([3, 7, 5], of=(-1, 5), at=["embed", ("z", 0)])
    np.testing.assert_equal(found, expected)


def test_one_neuron_of_one_layer_or_of_all(llama):
    """One number of an activation is the target, in one layer or in a stack of all layers."""
    ids = [3, 7, 5]
    shape = llama.trace(ids).stack("post").shape
    one = np.zeros(shape)
    one[1, 0, 2, 4] = 1
    found = llama.gradient(ids, of={"mlp.post": one}, at=["embed", ("post", 1)])
    other = llama.gradient(ids, of={("post", 1): one[1]}, at=["embed", ("post", 1)])
    np.testing.assert_equal(found, other)
    assert found["post", 1][0, 2, 4] == 1
    assert found["post", 1].sum() == 1
    assert found["embed"].any()


def test_gradient_runs_no_layer_above_those_it_needs(small, monkeypatch):
    model, ran = small("gpt2"), []
    for number, layer in enumerate(model.layers):
        run = layer.run
        monkeypatch.setattr(
            layer, "run", lambda *a, n=number, run=run, **b: (ran.append(n), run(*a, **b))[1]
        )
    weight = np.ones(model.trace([3, 7], names=("q", 0))["q", 0].shape)
    ran.clear()
    model.gradient([3, 7], of={("q", 0): weight}, at="embed")
    assert ran == [0]
    model.gradient([3, 7], of={("q", 0): weight}, at=["embed", ("z", 1)])
    assert ran == [0, 0, 1]


EDITS = [
    {"ablate": [(0, 1), (1, 0)]},
    {"ablate": {(0, 0): "mean", (1, 2): np.arange(4.0)}},
    {"hide": [2, (4, 1), (3, 0, 1, 2)]},
    {"edit": {("attn_scores", 0): "scores"}},
    {"edit": {("pattern", 1): "array"}},
    {"edit": {("resid_mid", 0): "array"}, "hide": [1]},
    {"edit": {("q", 1): "array", ("result", 0): "array", ("scale", 1, "ln2"): "array"}},
    {"edit": {("normalized", 1, "ln1"): "array", "pos_embed": "array"}, "ablate": [(1, None)]},
]


@pytest.mark.parametrize("given", EDITS, ids=str)
def test_gradients_under_arrays_ablation_and_masking_match_finite_differences(small, given):
    """A replaced activation passes no gradient to the activations before it."""
    model, ids = small("gpt2"), [3, 7, 5, 9, 12]
    given = dict(given)
    arrays = {}
    for name, what in given.pop("edit", {}).items():
        array = model.trace([9, 2, 6, 1, 4], names=name)[name]
        arrays[name] = (
            np.where(np.isfinite(array), array * 1.5, array) if what == "scores" else array
        )
    up = rng(2).standard_normal((1, 5, 30))
    at = ["embed", "pos_embed", ("k", 0), ("attn_out", 0), ("pattern", 1), ("mlp_out", 1), ("z", 1)]
    at += [name for name in arrays if name not in at]
    found = model.gradient(ids, of=up, at=at, edit=arrays, **given)

    def total(name, change):
        edit = arrays | {name: arrays[name] + change if name in arrays else lambda x: x + change}
        trace = model.trace(ids, names=[], logits=True, edit=edit, **given)
        return (up * trace["logits"]).sum()

    match_slopes(found, total, abs=1e-7)


@pytest.mark.parametrize(
    ("kind", "of"), [("gpt2", "resid_post"), ("bert", "normalized_resid_post")]
)
def test_gradients_under_records_match_finite_differences(small, kind, of):
    """With each edit alone and with all edits together, gradients equal finite differences.

    The edits are records: dictionaries with the key `op`.

    To compute finite differences, the test changes rows of the token table. No id repeats, so each
    position has its own row.
    """
    model, ids = small(kind), np.array([3, 7, 5, 9, 12, 4, 10, 8])
    weight = rng(3).standard_normal((1, 8, 12))
    records = [one for name, one in examples(8, "dog", 12).items() if name not in ("swap", "patch")]
    value = np.full((8, 8), 0.1)
    records.append({"op": "set", "at": "pattern", "layer": 1, "head": 1, "value": value})
    table = model.parameters["embed.weight"]
    way = rng(4).standard_normal((len(ids), 12))
    for edit in (*([one] for one in records), records):
        found = model.gradient(ids, of={(of, 1): weight}, edit=edit)["embed"][0]

        def total(step, edit=edit):
            moved = table.copy()
            moved[ids] += step * way
            other = model.with_parameters({**model.parameters, "embed.weight": moved})
            return (weight * other.trace(ids, names=(of, 1), edit=edit)[of, 1]).sum()

        expected = slope(total)
        ops = [one["op"] for one in edit]
        assert (found * way).sum() == pytest.approx(expected, rel=1e-6, abs=1e-7), ops


def test_gradients_after_an_edit_function_match_an_array_of_its_output(small):
    """An edit with a function gives the same gradients as an edit with the function's output.

    The test compares the gradients at the edited activation and at later activations.
    """
    model, ids, at = small("gpt2"), [3, 7, 5], [("resid_mid", 0), ("q", 1), ("resid_post", 1)]
    array = np.tanh(model.trace(ids)["resid_mid", 0])
    found, expected = (
        model.gradient(ids, of=(-1, 5), at=at, edit={("resid_mid", 0): edit})
        for edit in (np.tanh, array)
    )
    for name in at:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-13)
