"""Tests of sparse autoencoders (features, files, edits, training) against float64 formulas."""

import json
from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qkv.circuits import SAE, _sae_training as training
from qkv.models.files.read import ModelError

D, N = 12, 20
IDS = [[3, 7, 1, 9, 4, 7], [5, 2, 8]]
SITE = ("resid_post", 0)
rng = np.random.default_rng(3)
ENCODER, DECODER = rng.standard_normal((D, N)), rng.standard_normal((N, D))
B_ENC, B_DEC = rng.standard_normal(N), rng.standard_normal(D)
GATE = {name: rng.standard_normal(N) for name in ("b_gate", "b_mag", "r_mag")}
THRESHOLD = rng.uniform(0, 2, N)
X = rng.standard_normal((2, 5, D))


def relu(x):
    return np.maximum(x, 0)


def by_hand(kind, x, centred=True):
    """Compute the features (N,) of one vector."""
    y = (x - centred * B_DEC) @ ENCODER
    if kind == "gated":
        return relu(y * np.exp(GATE["r_mag"]) + GATE["b_mag"]) * (y + GATE["b_gate"] > 0)
    y = y + B_ENC
    if kind == "topk":
        y[np.argsort(-y)[3:]] = 0
    if kind == "jumprelu":
        y[y <= THRESHOLD] = 0
    return relu(y)


OPTIONS = {
    "standard": {"b_enc": B_ENC},
    "topk": {"b_enc": B_ENC, "k": 3},
    "jumprelu": {"b_enc": B_ENC, "threshold": THRESHOLD},
    "gated": GATE,
}


def made(kind, **options):
    return SAE(ENCODER, DECODER, b_dec=B_DEC, **OPTIONS[kind], **options)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("centred", [True, False])
def test_features_and_what_they_decode_to(kind, centred):
    sae = made(kind, subtracts_bias=centred)
    assert sae.architecture == kind
    expected = np.array([[by_hand(kind, x, centred) for x in text] for text in X])
    found = sae.encode(X)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert 0 < (found > 0).mean() < 1
    decoded = expected @ DECODER + B_DEC
    np.testing.assert_allclose(sae.decode(found), decoded, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sae(X), decoded, rtol=0, atol=1e-12)
    left = ((X - decoded) ** 2).sum() / ((X - X.mean((0, 1))) ** 2).sum()
    np.testing.assert_allclose(sae.explained_variance(X), 1 - left, rtol=1e-12)
    assert sae.l0(X) == (expected > 0).sum() / 10


def test_topk_keeps_only_positive_numbers():
    sae = SAE(-np.eye(3), np.eye(3), k=2)
    np.testing.assert_array_equal(sae.encode(np.array([1.0, 2.0, -3.0])), [0, 0, 3])


@pytest.mark.parametrize("at", ["resid_post", "mlp_out", "z", "post"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_an_sae_edit_replaces_its_site_and_records_its_features(small, kind, at):
    model = small(kind)
    plain = model.trace(IDS, logits=True)
    given = plain[at, 0]  # (B, T, D), (B, T, H, d) or (B, T, F)
    size = given[0, 0].size
    own = np.random.default_rng(1)
    sae = SAE(own.standard_normal((size, N)), own.standard_normal((N, size)), at=(at, 0), k=4)
    flat = given.reshape(2, 6, size)
    features = np.array([[sae.encode(x) for x in text] for text in flat])
    decoded = (features @ sae.parameters["W_dec"]).reshape(given.shape)
    decoded[1, 3:] = features[1, 3:] = 0
    found = model.trace(IDS, logits=True, edit={sae.at: sae})
    np.testing.assert_allclose(found["sae_acts_post", 0], features, rtol=0, atol=1e-12)
    assert f"{sae.at}.hook_sae_acts_post" in found.names()
    assert found[0]["sae_acts_post", 0].shape == (1, 6, N)
    assert found[1]["sae_acts_post", 0].shape == (1, 3, N)
    expected = model.trace(IDS, logits=True, edit={(at, 0): decoded})
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0, atol=1e-12)
    assert np.abs(found["logits"] - plain["logits"]).max() > 1e-2
    logits = model(IDS[0:1], edit={(at, 0): sae}).logits
    np.testing.assert_allclose(logits[0], expected["logits"][0], rtol=0, atol=1e-12)


def test_left_padding_and_batches_change_nothing(small):
    model = small("llama")
    sae = made("topk", at=SITE)
    whole = model.trace(IDS, edit={sae.at: sae}, logits=True)
    parts = model.trace(IDS, edit={sae.at: sae}, logits=True, batch_size=1)
    for name in ("logits", ("sae_acts_post", 0)):
        np.testing.assert_allclose(parts[name], whole[name], rtol=0, atol=1e-12)
    mask = np.array([[1] * 6, [0, 0, 0, 1, 1, 1]], bool)
    ids = np.array([IDS[0], [0, 0, 0, *IDS[1]]])
    found = model(ids, mask, edit={sae.at: sae}).logits
    np.testing.assert_allclose(found[0], whole["logits"][0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[1, 3:], whole["logits"][1, :3], rtol=0, atol=1e-12)
    for trace in model.trace_stream(IDS, batch_size=1, names=["sae_acts_post"], edit={SITE: sae}):
        assert trace.names() == ["blocks.0.hook_resid_post.hook_sae_acts_post"]


def test_features_can_be_edited_and_the_error_can_be_kept(small):
    model = small("gpt2")
    sae = made("topk", at=SITE).keeping_error()
    plain = model.trace(IDS, logits=True)
    same = model.trace(IDS, logits=True, edit={sae.at: sae})
    np.testing.assert_allclose(same["logits"], plain["logits"], rtol=0, atol=1e-11)
    features = same["sae_acts_post", 0]
    strongest = int(features[0].max(0).argmax())

    def without(features, at):
        assert at.name == "blocks.0.hook_resid_post.hook_sae_acts_post"
        features[..., strongest] = 0
        return features

    edit = {sae.at: sae, ("sae_acts_post", 0): without}
    found = model.trace(IDS, logits=True, edit=edit)
    assert not found["sae_acts_post", 0][..., strongest].any()
    given = plain["resid_post", 0] - features[..., [strongest]] * DECODER[strongest]
    expected = model.trace(IDS, logits=True, edit={SITE: given})
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0, atol=1e-11)
    with pytest.raises(KeyError, match="sae_acts_post"):
        model.trace(IDS, edit={("sae_acts_post", 0): without})
    zeros = np.zeros(features.shape)
    none = model.trace(IDS, names=SITE, edit={sae.at: made("topk"), ("sae_acts_post", 0): zeros})
    np.testing.assert_allclose(none[SITE][0], np.tile(B_DEC, (6, 1)), rtol=0, atol=1e-12)
    edit = {sae.at: sae, ("sae_acts_post", 0): zeros[..., 1:]}
    said = r"\(2, 6, 19\) for .*acts_post, whose shape is \(2, 6, 20\) h"
    with pytest.raises(ValueError, match=said):
        model.trace(IDS, edit=edit)
    with pytest.raises(KeyError, match="sae_acts_post"):
        model.trace(IDS, names=["sae_acts_post"])


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        pytest.param(kind, keeps, marks=[] if number % 2 == keeps else pytest.mark.attack)
        for number, kind in enumerate(OPTIONS)
        for keeps in (False, True)
    ],
)
def test_gradients_through_an_sae_equal_slopes_of_small_steps(small, kind, keeps):
    """Gradients equal slopes of small steps: below the SAE, at its features and at its output."""
    model, own = small("gpt2"), np.random.default_rng(5)
    sae = made(kind, at=SITE)
    sae = sae.keeping_error() if keeps else sae
    plain = model.trace(IDS, edit={sae.at: sae}, logits=True)
    up = own.standard_normal(plain["logits"].shape)
    given = own.uniform(0, 1, plain["sae_acts_post", 0].shape)
    at = ["embed", ("z", 0), SITE, ("sae_acts_post", 0)]
    for edit in ({SITE: sae}, {SITE: sae, ("sae_acts_post", 0): given}):
        found = model.gradient(IDS, of=up, at=at, edit=edit)
        assert found["embed"].any() == (len(edit) == 1 or keeps)
        for name in at:
            way = own.standard_normal(found[name].shape)
            ends = []
            for step in (1e-6, -1e-6):
                moved = dict(edit)
                if name == SITE:  # to test the gradient at the SAE's output, replace this output
                    array = model.trace(IDS, edit=edit)[SITE]
                    moved = {SITE: array + step * way}
                elif name in edit:
                    moved[name] = given + step * way
                else:
                    moved[name] = lambda x, step=step, way=way: x + step * way
                logits = model.trace(IDS, edit=moved, logits=True)["logits"]
                ends.append((up * logits).sum())
            slope = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose((found[name] * way).sum(), slope, rtol=1e-5, atol=1e-6)


def test_only_activations_above_an_sae_have_feature_gradients(small):
    model = small("gpt2")
    sae = made("standard", at=SITE)
    one = np.zeros(model.trace(IDS[0], edit={SITE: sae})["z", 1].shape)
    one[0, -1, 0, 2] = 1
    at = ("sae_acts_post", 0)
    found = model.gradient(IDS[0], of={("z", 1): one}, at=[at], edit={SITE: sae})[at]
    assert found.shape == (1, 6, N)
    assert found.any()
    none = np.ones_like(model.trace(IDS[0])["resid_pre", 0])
    below = model.gradient(IDS[0], of={("resid_pre", 0): none}, at=[at], edit={SITE: sae})[at]
    assert not below.any()
    edit = {SITE: sae, at: lambda features: features}
    assert model.gradient(IDS[0], of=(-1, 4), at=[at], edit=edit)[at].any()
    with pytest.raises(ValueError, match=r"that edits .*hook_sae_acts_post, but this derivative"):
        model.gradient(IDS[0], of=(-1, 4), edit=edit)
    with pytest.raises(KeyError, match=r"there is no .*sae_acts_post"):
        model.gradient(IDS[0], of=(-1, 4), at=[at])


def test_the_gradient_of_a_later_feature_by_earlier_features(small):
    model, own = small("gpt2"), np.random.default_rng(2)
    later = ("resid_post", 1)
    edit = {SITE: made("standard", at=SITE), later: made("topk", at=later)}
    weights = own.standard_normal((2, 6, N))
    at = [("sae_acts_post", 0), "embed"]
    found = model.gradient(IDS, of={("sae_acts_post", 1): weights}, at=at, edit=edit)
    for name in at:
        way, ends = own.standard_normal(found[name].shape), []
        for step in (1e-6, -1e-6):
            moved = {**edit, name: lambda x, change=step * way: x + change}
            features = model.trace(IDS, edit=moved)["sae_acts_post", 1]
            ends.append((weights * features)[0].sum() + (weights * features)[1, :3].sum())
        slope = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose((found[name] * way).sum(), slope, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"has shape \(2, 6, 19\) .* whose shape is \(2, 6, 20\)"):
        model.gradient(IDS, of={("sae_acts_post", 1): weights[..., 1:]}, edit=edit)
    with pytest.raises(KeyError, match=r"there is no .*sae_acts_post"):
        model.gradient(IDS, of={("sae_acts_post", 1): weights})


def test_text_is_generated_with_it(small):
    model = small("gpt2")
    sae = made("topk", at=SITE)
    found = model.generate([3, 7, 1], max_new_tokens=4, edit={sae.at: sae})
    ids = [3, 7, 1]
    for token in found.ids:
        logits = model.trace(ids, logits=True, edit={sae.at: sae})["logits"][0, -1]
        assert token == logits.argmax()
        ids.append(token)


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_sae_is_saved_and_loaded(tmp_path, kind):
    sae = made(kind, at=SITE, subtracts_bias=kind != "standard", metadata={"model_name": "x"})
    sae.save(tmp_path / "sae")
    found = SAE.load(tmp_path / "sae")
    np.testing.assert_array_equal(found.encode(X), sae.encode(X))
    np.testing.assert_array_equal(found(X), sae(X))
    assert found.at == "blocks.0.hook_resid_post"
    assert found.metadata["model_name"] == "x"
    config = json.loads((tmp_path / "sae" / "cfg.json").read_text())
    assert (config["architecture"], config["d_in"], config["d_sae"]) == (kind, D, N)
    assert config["apply_b_dec_to_input"] == (kind != "standard")
    assert config["metadata"]["hook_name"] == "blocks.0.hook_resid_post"
    sae.save(tmp_path / "half", dtype="float16")
    half = load_file(tmp_path / "half" / "sae_weights.safetensors")
    assert half["W_enc"].dtype == np.float16
    found = SAE.load(tmp_path / "half")
    assert found.parameters["W_enc"].dtype == np.float32
    np.testing.assert_array_equal(found.parameters["W_dec"], half["W_dec"].astype(np.float32))


def written(folder, config, **arrays):
    """Write a folder in the format of SAELens."""
    folder.mkdir()
    whole = {"W_enc": ENCODER, "W_dec": DECODER, "b_dec": B_DEC, **arrays}
    save_file({name: np.float32(array) for name, array in whole.items()}, folder / WEIGHTS)
    (folder / "cfg.json").write_text(json.dumps(config))
    return folder


WEIGHTS = "sae_weights.safetensors"
OLD = {  # the format of version 3
    **{"architecture": "standard", "d_in": D, "d_sae": N, "dtype": "torch.float32"},
    **{"hook_name": "blocks.7.hook_resid_pre", "hook_layer": 7, "hook_head_index": None},
    **{"activation_fn_str": "relu", "normalize_activations": "none", "prepend_bos": True},
    **{"finetuning_scaling_factor": False, "model_name": "gpt2-small", "context_size": 128},
}


def test_folders_of_other_versions(tmp_path):
    old = SAE.load(written(tmp_path / "old", OLD, b_enc=B_ENC, scaling_factor=np.ones(N)))
    assert (old.architecture, old.at) == ("standard", "blocks.7.hook_resid_pre")
    assert old.metadata == {"model_name": "gpt2-small", "prepend_bos": True}
    expected = np.array([by_hand("standard", x) for x in X[0]])
    np.testing.assert_allclose(old.encode(X[0]), expected, rtol=0, atol=1e-5)
    topk = {**OLD, "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}}
    topk = SAE.load(written(tmp_path / "topk", topk, b_enc=B_ENC))
    assert topk.k == 3
    oldest = {"hook_point": "blocks.2.hook_mlp_out", "apply_b_dec_to_input": False}
    found = SAE.load(written(tmp_path / "oldest", oldest, b_enc=B_ENC))
    assert (found.at, found.subtracts_bias) == ("blocks.2.hook_mlp_out", False)
    new = {
        **{"architecture": "topk", "k": 3, "rescale_acts_by_decoder_norm": True},
        "metadata": {"hook_name": "blocks.1.hook_resid_post", "sae_lens_version": "6.30.0"},
    }
    new = SAE.load(written(tmp_path / "new", new, b_enc=B_ENC))
    lengths = np.sqrt((DECODER**2).sum(1))
    y = ((X[0] - B_DEC) @ ENCODER + B_ENC) * lengths
    expected = np.where(y >= np.sort(y, -1)[:, [-3]], relu(y), 0)
    np.testing.assert_allclose(new.encode(X[0]), expected, rtol=0, atol=1e-4)
    decoded = expected / lengths @ DECODER + B_DEC
    np.testing.assert_allclose(new(X[0]), decoded, rtol=0, atol=1e-4)


def test_a_topk_folder_without_k_has_the_default_of_saelens(tmp_path):
    rng = np.random.default_rng(0)
    wide = {"W_enc": rng.standard_normal((D, 150)), "W_dec": rng.standard_normal((150, D))}
    arrays = {**wide, "b_enc": np.full(150, 9.0)}
    found = SAE.load(written(tmp_path / "sae", {"architecture": "topk"}, **arrays))
    assert found.k == 100
    assert ((found.encode(X[0]) > 0).sum(-1) == 100).all()


@pytest.mark.parametrize(
    ("config", "arrays", "words"),
    [
        ({"architecture": "temporal"}, {}, "architecture is 'temporal', which qkv does not"),
        ({"activation_fn": "tanh-relu"}, {}, "activation_fn is 'tanh-relu', which qkv does"),
        ({"normalize_activations": "whiten"}, {}, "normalize_activations is 'whiten', which"),
        ({"normalize_activations": True}, {}, "normalize_activations is True, which"),
        ({"hook_head_index": 3}, {}, "hook_head_index is 3, which"),
        (
            {"metadata": {"model_from_pretrained_kwargs": {"center_writing_weights": True}}},
            {},
            "model_from_pretrained_kwargs is ",
        ),
        ({}, {"b_enc": None}, "has no b_enc: an autoencoder of the architecture 'standard' has"),
        ({}, {"W_skip": B_ENC}, "also has W_skip: an autoencoder"),
        ({}, {"scaling_factor": 2 * B_ENC}, "scaling_factor is not 1 everywhere"),
        ({"apply_b_dec_to_input": "false"}, {}, "apply_b_dec_to_input is 'false', which"),
        (
            {"architecture": "topk", "k": 3, "rescale_acts_by_decoder_norm": "true"},
            {},
            "rescale_acts_by_decoder_norm is 'true', which",
        ),
        ({"d_in": 21}, {}, r"d_in is 21, but W_enc in .* has shape \(12, 20\): use two"),
        ({"d_sae": "20"}, {}, "d_sae is '20', but W_enc"),
        ({"architecture": "topk", "k": None}, {}, "k is missing, so the number of active"),
        ({"activation_fn": "topk"}, {}, "k is missing, so the number of active"),
        ({"architecture": "topk", "k": "3"}, {}, "k is '3'"),
        ({"architecture": "topk"}, {}, "k is 100"),
        ({"architecture": ["topk"]}, {}, r"architecture is \['topk'\], which"),
        ({"metadata": ["x"]}, {}, r"metadata is \['x'\]: it must be an object"),
        ({"hook_name": 7}, {}, "`at` is 7; pass the full name"),
        ({}, {"b_enc": B_ENC[1:]}, r"b_enc has shape \(19,\) and the encoder has"),
    ],
)
def test_folders_that_are_refused(tmp_path, config, arrays, words):
    arrays = {"b_enc": B_ENC, **arrays}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    folder = written(tmp_path / "sae", config, **arrays)
    with pytest.raises(ModelError, match=words) as caught:
        SAE.load(folder)
    assert "\n" not in str(caught.value)


def test_incomplete_or_broken_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"SAE.load: .* has no cfg.json; pass a folder"):
        SAE.load(tmp_path)
    (tmp_path / "cfg.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"has no sae_weights.safetensors"):
        SAE.load(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"no")
    with pytest.raises(ModelError, match="the file is truncated or not a safetensors file"):
        SAE.load(tmp_path)
    with pytest.raises(ValueError, match=r"SAE.save: W_enc contains 1e\+06, which is too large"):
        SAE(np.full((1, 1), 1e6), np.ones((1, 1))).save(tmp_path, dtype="float16")


@pytest.mark.parametrize("dead", [[], [4], [0, 5, 9, 11, 12, 13, 17, 19]])
def test_the_training_gradient_equals_slopes_of_small_steps(dead):
    parameters = {"W_enc": ENCODER, "W_dec": DECODER, "b_enc": B_ENC, "b_dec": B_DEC}
    x, dead = X.reshape(-1, D), np.array(dead, int)
    loss, found, fired = training.gradients(parameters, x, 3, dead)
    features = np.array([by_hand("topk", row) for row in x])
    np.testing.assert_array_equal(fired, (features > 0).any(0))
    missing = x - features @ DECODER - B_DEC
    plain = (missing**2).sum() / 10
    if not len(dead):
        np.testing.assert_allclose(loss, plain, rtol=1e-12)

    def total(moved):
        """Compute the loss with `missing` held constant, because its gradient is not wanted."""
        y = (x - moved["b_dec"]) @ moved["W_enc"] + moved["b_enc"]
        kept = np.where(y >= np.sort(y, -1)[:, [-3]], relu(y), 0)
        value = ((kept @ moved["W_dec"] + moved["b_dec"] - x) ** 2).sum() / 10
        if len(dead):
            y = y[:, dead]
            most = min(len(dead), D // 2)
            more = np.where(y >= np.sort(y, -1)[:, [-most]], relu(y), 0)
            value += ((more @ moved["W_dec"][dead] - missing) ** 2).sum() / 10 / 32
        return value

    np.testing.assert_allclose(loss, total(parameters), rtol=1e-12)
    for name, array in parameters.items():
        for _ in range(6):
            direction = rng.standard_normal(array.shape)
            ends = [total({**parameters, name: array + step * direction}) for step in (1e-6, -1e-6)]
            slope = (found[name] * direction).sum()
            np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_training_finds_the_directions_that_vectors_are_made_of(monkeypatch):
    """Each vector is a mean plus 3 of 32 directions with random lengths, in 24 dimensions."""
    monkeypatch.setattr(training, "BATCH", 256)
    own = np.random.default_rng(0)
    true = own.standard_normal((32, 24))
    true /= np.linalg.norm(true, axis=1, keepdims=True)
    mean = 10 * own.standard_normal(24)

    def rows():
        while True:
            amount = np.zeros((512, 32))
            which = own.permuted(np.tile(np.arange(32), (512, 1)), axis=1)[:, :3]
            np.put_along_axis(amount, which, own.uniform(5, 10, (512, 3)), 1)
            yield (amount @ true + mean).astype(np.float32)

    counts = []
    bar = nullcontext(counts.append)
    monkeypatch.setattr(training, "progress", lambda *about, **options: bar)
    found, seen = training.train_sae(rows(), 32, k=3, tokens=400 * 256, seed=0)
    assert seen == sum(counts) == 400 * 256
    sae = SAE(found["W_enc"], found["W_dec"], found["b_enc"], found["b_dec"], k=3)
    x = np.concatenate(list(islice(rows(), 4)))
    assert sae.explained_variance(x) > 0.85
    np.testing.assert_allclose(np.linalg.norm(sae.parameters["W_dec"], axis=1), 1, rtol=1e-5)
    alike = np.abs(sae.parameters["W_dec"] @ true.T).max(0)
    assert (alike > 0.95).mean() > 0.6


def test_shuffling_loses_no_row_and_mixes_them(monkeypatch):
    monkeypatch.setattr(training, "BATCH", 8)
    rows = (np.arange(first, first + 5)[:, None] for first in range(0, 100, 5))
    found = list(training.shuffle_rows(rows, 40, np.random.default_rng(0)))
    assert all(len(batch) == 8 for batch in found[:-1])
    numbers = np.concatenate(found)[:, 0]
    np.testing.assert_array_equal(np.sort(numbers), np.arange(100))
    assert numbers[:8].max() > 15
    assert numbers[:16].max() < 40  # rows of the first pool only


def test_training_on_a_model_is_the_same_each_time_and_counts_its_tokens(small):
    model = small("gpt2")
    texts = [[3, 7, 1, 9, 4, 7], [5, 2, 8], [11, 12, 13, 14]] * 40
    options = {"at": SITE, "features": 24, "k": 3, "tokens": 2500}
    one, other = (SAE.train(model, texts, **options) for _ in range(2))
    for name, array in one.parameters.items():
        np.testing.assert_array_equal(array, other.parameters[name])
    assert one.at == "blocks.0.hook_resid_post"
    assert one.metadata == {"model_name": model.name, "training_tokens": 2500}
    assert one.parameters["W_enc"].dtype == np.float64
    heads = SAE.train(model, texts, **{**options, "at": ("z", 1), "tokens": 10})
    assert heads.dim == 12
    with pytest.warns(UserWarning, match=r"`texts` ended after 520 of 2,500 tokens, before the le"):
        SAE.train(model, iter(texts), **options)
    with pytest.raises(ValueError, match=r"SAE.train: the texts contain no tokens; pass a text"):
        SAE.train(model, [], **options)


def test_measures_on_texts(small):
    model = small("gpt2")
    sae = made("topk", at=SITE)
    found = sae.evaluate(model, iter(IDS))
    trace = model.trace(IDS)
    rows = np.concatenate([trace[n][SITE][0] for n in range(2)])  # (9, D)
    features = sae.encode(rows)
    np.testing.assert_allclose(found["explained_variance"], sae.explained_variance(rows))
    assert found["l0"] == (features > 0).sum() / 9
    assert found["dead"] == 1 - (features > 0).any(0).mean()

    def loss(edit):
        logits = model.trace(IDS, logits=True, edit=edit)["logits"]
        each = []
        for ids, text in zip(IDS, logits, strict=True):
            for position in range(len(ids) - 1):
                row = text[position]
                each.append(np.log(np.exp(row).sum()) - row[ids[position + 1]])
        return np.mean(each)

    np.testing.assert_allclose(found["loss"], loss({}), rtol=1e-10)
    np.testing.assert_allclose(found["loss_spliced"], loss({SITE: sae}), rtol=1e-10)
    mean = np.broadcast_to(rows.mean(0), (1, 6, D))
    np.testing.assert_allclose(found["loss_mean"], loss({SITE: mean}), rtol=1e-6)
    whole, spliced, without = (found[name] for name in ("loss", "loss_spliced", "loss_mean"))
    np.testing.assert_allclose(found["loss_recovered"], (without - spliced) / (without - whole))
    encoder = sae.evaluate(small("bert"), IDS)
    assert list(encoder) == ["explained_variance", "l0", "dead"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: SAE(np.eye(3), np.eye(2)), ValueError, r"W_dec has shape \(2, 2\) and the"),
        (lambda: SAE(np.ones(3), np.eye(3)), ValueError, r"encoder has shape \(3,\); pass a"),
        (lambda: SAE(np.eye(3, dtype=int), np.eye(3)), TypeError, "W_enc is int64; pass floats"),
        (lambda: SAE(np.eye(3), np.eye(3), k=4), ValueError, "k is 4"),
        (lambda: SAE(np.eye(3), np.eye(3), k=1, threshold=np.ones(3)), ValueError, "topk and jump"),
        (lambda: SAE(np.eye(3), np.eye(3), b_gate=np.ones(3)), ValueError, "b_mag is missing: a g"),
        (
            lambda: SAE(np.eye(3), np.eye(3), at="resid_post"),
            ValueError,
            "`at` is 'resid_post'; pass",
        ),
        (lambda: SAE(np.eye(3), np.eye(3), at=("z", -1)), ValueError, r"`at` is \('z', -1\); pass"),
        (lambda: made("topk").encode(np.ones((2, 5))), ValueError, "SAE.encode: `x` has shape"),
        (lambda: made("topk").encode([1, 2]), TypeError, "SAE.encode: x is int64; pass floats"),
        (lambda: made("topk").decode(np.ones(3)), ValueError, "SAE.decode: `features` has shape"),
    ],
)
def test_invalid_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert str(caught.value).startswith("SAE")
    assert "\n" not in str(caught.value)


def test_invalid_models_and_sites_are_refused(small):
    model = small("gpt2")
    options = {"features": 8, "k": 2, "tokens": 10}
    with pytest.raises(TypeError, match=r"SAE.train: `model` is str"):
        SAE.train("gpt2", IDS, at=SITE, **options)
    with pytest.raises(ValueError, match=r"SAE.train: `at` is 'resid_post', which names 2"):
        SAE.train(model, IDS, at="resid_post", **options)
    with pytest.raises(ValueError, match=r"`at` has blocks.0.attn.hook_pattern, which does not"):
        SAE.train(model, IDS, at=("pattern", 0), **options)
    with pytest.raises(KeyError, match=r"SAE.train: there is no 'resid_past'"):
        SAE.train(model, IDS, at="resid_past", **options)
    with pytest.raises(ValueError, match=r"SAE.train: k is 9"):
        SAE.train(model, IDS, at=SITE, features=8, k=9)
    with pytest.raises(ValueError, match=r"SAE.evaluate: <SAE: topk.*> has no activation name"):
        made("topk").evaluate(model, IDS)
    with pytest.raises(ValueError, match=r"`x` has shape \(1, 6, 3, 4\) but <SAE.* of 20"):
        model.trace(IDS[0], edit={("z", 0): SAE(np.ones((20, 4)), np.ones((4, 20)))})
