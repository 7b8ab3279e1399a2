"""Tests of patches against full runs with `edit=`, and of their estimates against small steps."""

import numpy as np
import pytest

from qkv.circuits import _patching as module, attribution_patch, patch

CLEAN = [3, 7, 1, 9, 4, 7]
CORRUPTED = [3, 7, 8, 9, 2, 7]  # differs at positions 2 and 4
KINDS = ["gpt2", "llama", "gemma2", "bloom", "gpt_oss", "granite", "olmo", "parallel", "bert"]
PLACES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
HEADS = ("z", "pattern", "q", "k", "v")
LOGIT = (-1, 11, 5)


def difference(logits):
    """Compute the metric `LOGIT` from logits (1, T, V)."""
    return logits[0, -1, 11] - logits[0, -1, 5]


def looped(model, at, metric):
    """Compute the metric of each patch with a full run; a layer's patches are one batch."""
    clean, rows = model.trace(CLEAN), []
    for layer in range(model.num_layers):
        given = clean[at, layer][0]
        axis = 0 if at in (*PLACES, "pattern") else 1
        count = given.shape[axis]

        def put_in(x, axis=axis, given=given, count=count):
            for number in range(count):
                where = (slice(None),) * axis + (number,)
                x[number][where] = given[where]
            return x

        logits = model([CORRUPTED] * count, edit={(at, layer): put_in}).logits
        rows.append([float(metric(logits[[number]])) for number in range(count)])
    return np.array(rows)


FEW = ["resid_mid", "attn_out", "z", "pattern"]  # tested by default on some other models
EVERY = [
    pytest.param(
        kind,
        at,
        marks=[]
        if kind == "gpt2" or (kind in ("parallel", "bert") and at in FEW)
        else pytest.mark.attack,
    )
    for kind in KINDS
    for at in (*PLACES, *HEADS)
    if (kind, at) != ("parallel", "resid_mid")  # parallel blocks have no `resid_mid`
]


@pytest.mark.parametrize(("kind", "at"), EVERY)
def test_every_patch_equals_a_full_run(small, kind, at):
    model = small(kind)
    expected = looped(model, at, difference)
    found = patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    by_function = patch(model, CLEAN, CORRUPTED, at=at, metric=difference)
    np.testing.assert_allclose(by_function, expected, rtol=0, atol=1e-11)
    low, high = (float(difference(model(ids).logits)) for ids in (CORRUPTED, CLEAN))
    shares = patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT, normalize=True)
    np.testing.assert_allclose(shares, (expected - low) / (high - low), rtol=0, atol=1e-10)
    assert np.ptp(expected) > 1e-3


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_patching_the_only_different_token_restores_the_metric(small, kind):
    """If only token 2 differs, its clean vector in layer 0 restores the whole clean metric."""
    model = small(kind)
    one = [3, 7, 8, 9, 4, 7]
    found = patch(model, CLEAN, one, at="resid_pre", metric=LOGIT, normalize=True)
    np.testing.assert_allclose(found[0], [0, 0, 1, 0, 0, 0], rtol=0, atol=1e-9)
    assert found.shape == (2, 6)


def test_the_metric_may_be_at_a_middle_position(small):
    """In a decoder, patches after the metric's position change nothing."""
    model = small("gpt2")

    def middle(logits):
        return logits[0, 3, 11]

    found = patch(model, CLEAN, CORRUPTED, at="mlp_out", metric=(3, 11))
    np.testing.assert_allclose(found, looped(model, "mlp_out", middle), rtol=0, atol=1e-11)
    assert (found[:, 4:] == found[0, 0]).all()
    encoder = small("bert")
    found = patch(encoder, CLEAN, CORRUPTED, at="mlp_out", metric=(3, 11))
    np.testing.assert_allclose(found, looped(encoder, "mlp_out", middle), rtol=0, atol=1e-11)


@pytest.mark.parametrize("at", ["resid_pre", "attn_out", "z", "pattern"])
def test_patches_do_not_depend_on_the_batch_size(small, monkeypatch, at):
    model = small("llama")
    expected = patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    monkeypatch.setattr(module, "MOST_POSITIONS", 12)  # two texts
    found = patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    monkeypatch.setattr(module, "MOST_POSITIONS", 1)
    found = patch(model, CLEAN, CORRUPTED, at=at, metric=difference)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_texts_are_as_good_as_ids(small):
    model = small("bert")
    texts = ["the cat sat", "the dog sat"]
    ids = [model.tokenize(text).ids for text in texts]
    about = {"at": "resid_pre", "metric": (2, "mat")}
    expected = patch(model, *ids, at="resid_pre", metric=(2, int(model.tokenize("mat").ids[1])))
    np.testing.assert_array_equal(patch(model, *texts, **about), expected)
    np.testing.assert_array_equal(patch(model, *([text] for text in texts), **about), expected)


@pytest.mark.parametrize("at", ["resid_pre", "z"])
def test_nothing_below_the_layer_is_computed_again(small, monkeypatch, at):
    model = small("gpt2")
    block = type(model.layers[0])
    counts, run = [0, 0], block.run

    def counted(self, x, **options):
        counts[model.layers.index(self)] += len(x)
        return run(self, x, **options)

    monkeypatch.setattr(block, "run", counted)
    patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    # Each layer runs both texts, which have 12 tokens together. Each patch is a run of 6 tokens. A
    # patch of layer 0 runs both layers; a patch of layer 1 runs only layer 1. The patches of
    # `resid_pre` are at positions 2 and 4 in layer 0, and at positions 2 to 5 in layer 1. The
    # patches of `z` are one for each of the 3 heads of a layer.
    wanted = [12 + 2 * 6, 12 + (2 + 4) * 6] if at == "resid_pre" else [12 + 18, 12 + 36]
    assert counts == wanted


@pytest.mark.parametrize(("kind", "at"), EVERY)
def test_attribution_patches_equal_slopes_of_the_metric(small, kind, at):
    """The estimate is the metric's slope as the activation moves towards that of the clean text."""
    model = small(kind)
    clean, corrupted = model.trace(CLEAN), model.trace(CORRUPTED)
    found = attribution_patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    low = float(difference(model(CORRUPTED).logits))
    high = float(difference(model(CLEAN).logits))
    axis = 1 if at in (*PLACES, "pattern") else 2
    step = 1e-5
    for layer in range(model.num_layers):
        one, other = clean[at, layer], corrupted[at, layer]
        assert found.shape == (model.num_layers, one.shape[axis])
        moved = []  # a step forward and a step back for each position or head, in one batch
        for number in range(one.shape[axis]):
            where = (slice(None),) * axis + (number,)
            for way in (step, -step):
                moved.append(other.copy())
                moved[-1][where] += way * (one - other)[where]
        edit = {(at, layer): np.concatenate(moved)}
        logits = model([CORRUPTED] * len(moved), edit=edit).logits
        ends = np.array([float(difference(logits[[text]])) for text in range(len(moved))])
        slopes = (ends[::2] - ends[1::2]) / (2 * step)
        np.testing.assert_allclose(found[layer] - low, slopes, rtol=1e-5, atol=1e-6)
    shares = attribution_patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT, normalize=True)
    np.testing.assert_allclose(shares, (found - low) / (high - low), rtol=0, atol=1e-10)


@pytest.mark.parametrize("call", [patch, attribution_patch])
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"clean": CLEAN[:4]}, ValueError, "`clean` has 4 tokens and `corrupted` has 6; pass"),
        ({"clean": [CLEAN, CLEAN]}, ValueError, "`clean` .* 2 texts"),
        ({"at": "resid"}, ValueError, "`at` is 'resid': choose among resid_pre, resid_mid"),
        ({"at": ("z", 3)}, ValueError, r"`at` is \('z', 3\): choose among"),
        ({"metric": (6, 1)}, ValueError, "`metric` has position 6, but the text has 6 tokens"),
        ({"metric": (0, 30)}, ValueError, "no token 30: the ids run from 0 to 29"),
        ({"metric": (0, "dogs")}, ValueError, "'dogs' is 2 tokens of"),
        ({"metric": (0, 0.5)}, TypeError, r"`metric` has the token 0\.5; pass an id"),
        ({"metric": "cat"}, TypeError, r"`metric` is 'cat'; pass \(position, token\)"),
        ({"metric": (0, 1, 2, 3)}, TypeError, r"`metric` is \(0, 1, 2, 3\); pass \(pos"),
        ({"corrupted": CLEAN, "normalize": True}, ValueError, "cannot be normalized: omit no"),
        ({"model": "gpt2"}, TypeError, "`model` is str"),
    ],
)
def test_invalid_arguments_are_refused(small, call, given, error, words):
    about = {"model": small("gpt2"), "clean": CLEAN, "corrupted": CORRUPTED}
    with pytest.raises(error, match=words) as caught:
        call(**{**about, "at": "z", "metric": LOGIT, **given})
    assert str(caught.value).startswith(f"{call.__name__}: ")
    assert "\n" not in str(caught.value)


def test_unsupported_models_and_invalid_metrics_are_refused(small):
    model = small("gpt2")

    def with_metric(metric):
        return patch(model, CLEAN, CORRUPTED, at="z", metric=metric)

    with pytest.raises(ValueError, match=r"`metric` returned an array \(30,\) for logits \(1, 6"):
        with_metric(lambda logits: logits[0, -1])
    with pytest.raises(TypeError, match=r"patch: `metric` returned None: return one number"):
        with_metric(lambda logits: None)
    with pytest.raises(TypeError, match=r"attribution_patch: `metric` is a function, .* exactly"):
        attribution_patch(model, CLEAN, CORRUPTED, at="z", metric=difference)
    with pytest.raises(ValueError, match="`at` is 'resid_mid', but the layers of parallel have"):
        patch(small("parallel"), CLEAN, CORRUPTED, at="resid_mid", metric=LOGIT)
    for kind, words in (
        ("headless", "no head, so it cannot predict words: load a model"),
        ("classes", r"a head for \d classes"),
        ("t5", "reads one text and writes another"),
        ("vit", "reads images"),
    ):
        with pytest.raises(ValueError, match=f"patch: .*{words}"):
            patch(small(kind), CLEAN, CORRUPTED, at="z", metric=LOGIT)
