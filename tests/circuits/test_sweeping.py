"""Tests of `patch` for single neurons, for single positions and for many pairs of texts.

Patches of neurons and positions must equal full runs with `edit=`. Patches of many pairs must equal
patches of each pair alone.
"""

import numpy as np
import pytest

from circuits.test_patching import CLEAN, CORRUPTED, LOGIT, difference, looped
from qkv.circuits import _patching as module, patch

SHORT = [5, 2, 6, 1], [5, 2, 8, 1]
LONG = [3, 1, 1, 9, 4, 7, 2], [3, 1, 1, 9, 6, 7, 2]
PAIRS = [(CLEAN, CORRUPTED), SHORT, LONG, (CLEAN[::-1], CORRUPTED[::-1])]
ONES, OTHERS = ([pair[side] for pair in PAIRS] for side in (0, 1))


def by_position(model, at, metric):
    """Compute the metric with a full run for each unit and position."""
    clean = model.trace(CLEAN)
    axes = (0, 1) if at == "pattern" else (1, 0)
    rows = []
    for layer in range(model.num_layers):
        given = np.moveaxis(clean[at, layer][0], axes, (0, 1))  # (units, T, ...)
        cells = [
            (unit, position) for unit in range(given.shape[0]) for position in range(len(CLEAN))
        ]

        def put_in(x, given=given, cells=cells):
            for text, cell in enumerate(cells):
                np.moveaxis(x[text], axes, (0, 1))[cell] = given[cell]
            return x

        logits = model([CORRUPTED] * len(cells), edit={(at, layer): put_in}).logits
        values = [float(metric(logits[[text]])) for text in range(len(cells))]
        rows.append(np.reshape(values, given.shape[:2]))
    return np.array(rows)


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        pytest.param(
            kind, at, marks=[] if kind == "llama" or at in ("z", "post") else pytest.mark.attack
        )
        for kind in ("gpt2", "llama", "parallel", "bert")
        for at in ("z", "pattern", "q", "k", "v", "pre", "post")
    ],
)
def test_each_patch_by_position_equals_a_full_run(small, kind, at):
    model = small(kind)
    expected = by_position(model, at, difference)
    for metric in (LOGIT, difference):
        found = patch(model, CLEAN, CORRUPTED, at=at, metric=metric, by="position")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    assert np.ptp(expected) > 1e-3


@pytest.mark.parametrize("kind", ["gpt2", "llama", "parallel", "bert"])
@pytest.mark.parametrize("at", ["pre", "post"])
def test_each_neuron_patch_equals_a_full_run(small, kind, at):
    model = small(kind)
    clean, rows = model.trace(CLEAN), []
    for layer in range(model.num_layers):
        given = clean[at, layer][0]  # (T, F)

        def put_in(x, given=given):
            for neuron in range(given.shape[1]):
                x[neuron, :, neuron] = given[:, neuron]
            return x

        logits = model([CORRUPTED] * given.shape[1], edit={(at, layer): put_in}).logits
        rows.append([float(difference(one[None])) for one in logits])
    found = patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT)
    np.testing.assert_allclose(found, rows, rtol=0, atol=1e-11)
    named = patch(model, CLEAN, CORRUPTED, at=at, metric=LOGIT, by="neuron")
    np.testing.assert_array_equal(named, found)
    assert np.ptp(rows) > 1e-3


def test_patches_after_the_metrics_position_change_nothing(small):
    model = small("gpt2")

    def middle(logits):
        return logits[0, 3, 11]

    found = patch(model, CLEAN, CORRUPTED, at="v", metric=(3, 11), by="position")
    np.testing.assert_allclose(found, by_position(model, "v", middle), rtol=0, atol=1e-11)
    unseen = found[:, :, 4:]
    assert np.ptp(unseen) == 0
    np.testing.assert_allclose(unseen, middle(model(CORRUPTED).logits), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("at", "by", "tokens"),
    [
        ("mlp_out", None, 30),
        ("z", None, 2048),
        ("z", "position", 30),
        ("q", None, 1),
        pytest.param("post", None, 1, marks=pytest.mark.attack),
    ],
)
def test_patching_many_pairs_equals_patching_each_alone(small, monkeypatch, at, by, tokens):
    """Pairs of equal length run together, each with its own metric, baseline and positions.

    The baseline of a pair is the metric of its corrupted text.
    """
    monkeypatch.setattr(module, "MOST_POSITIONS", tokens)
    model = small("llama")
    metrics = [LOGIT, (3, 3), difference, (-2, 4, 9)]
    for normalize in (False, True):
        options = {"at": at, "by": by, "normalize": normalize}
        mean = patch(model, ONES, OTHERS, metric=metrics, **options)
        found = mean.pairs
        assert len(found) == 4
        np.testing.assert_allclose(mean, np.nanmean(found, 0), rtol=0, atol=1e-12)
        for values, pair, metric in zip(found, PAIRS, metrics, strict=True):
            alone = patch(model, *pair, metric=metric, **options)
            width = alone.shape[-1]
            np.testing.assert_allclose(values[..., :width], alone, rtol=0, atol=1e-10)
            assert np.isnan(values[..., width:]).all()
    assert found.shape[-1] == (7 if by or at in ("resid_pre", "mlp_out") else alone.shape[-1])


def test_one_metric_serves_all_pairs_and_a_list_of_one_counts_as_one_text(small):
    model = small("gpt2")
    found = patch(model, ONES, OTHERS, at="z", metric=LOGIT).pairs
    np.testing.assert_allclose(found[0], looped(model, "z", difference), rtol=0, atol=1e-11)
    alone = patch(model, [CLEAN], [CORRUPTED], at="z", metric=[LOGIT])
    assert alone.shape == found[0].shape
    arrays = patch(model, np.array(ONES[::3]), np.array(OTHERS[::3]), at="z", metric=LOGIT)
    np.testing.assert_allclose(arrays.pairs, found[::3], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "head"}, "`by` is 'head', but 'resid_pre' has no axis of this kind; pass 'posi"),
        ({"at": "z", "by": "neuron"}, "`by` is 'neuron', but 'z' .*; pass 'position' or 'head'"),
        ({"at": "post", "by": "head"}, "`by` is 'head', but 'post' .*; pass 'position' or"),
        ({"at": "z", "by": 1}, "`by` is 1, but 'z'"),
        ({"at": []}, "`at` is an empty list: choose among resid_pre, "),
        ({"at": ["mlp_out", "z"]}, r"the result for 'mlp_out' has axes \('layer', 'token'\) and"),
        ({"corrupted": OTHERS[:3]}, "`clean` has 4 texts and `corrupted` has 3; pass the same"),
        ({"corrupted": OTHERS[::-1]}, "`clean` of pair 1 has 4 tokens and `corrupted` has 7"),
        ({"metric": [LOGIT] * 3}, "`metric` is a list of length 3, but there are 4 texts; pass"),
        ({"metric": (1, 3), "normalize": True}, r"`metric` of pair 0 is \S+ in the corrupted run"),
        ({"metric": (5, 1)}, "`metric` of pair 1 has position 5, but the text has 4 tokens"),
    ],
)
def test_invalid_pairs_and_options_are_refused(small, given, words):
    about = {"clean": ONES, "corrupted": OTHERS, "at": "resid_pre", "metric": LOGIT, **given}
    with pytest.raises(ValueError, match=f"patch: {words}") as caught:
        patch(small("gpt2"), **about)
    assert "\n" not in str(caught.value)


def test_experts_have_no_neurons_to_patch(small):
    with pytest.raises(ValueError, match=r"`at` is 'post', but the layers of .* have no such"):
        patch(small("gpt_oss"), CLEAN, CORRUPTED, at="post", metric=LOGIT)


def test_sites_in_a_list_are_patched_in_turn(small):
    sites = "resid_pre", "attn_out", "mlp_out"
    found = patch(small("gpt2"), CLEAN, CORRUPTED, at=sites, metric=LOGIT)
    assert found.axes == ("site", "layer", "token")
    assert list(found.words["site"]) == list(sites)
    for site, one in zip(sites, found, strict=True):
        np.testing.assert_array_equal(
            one, patch(small("gpt2"), CLEAN, CORRUPTED, at=site, metric=LOGIT)
        )
