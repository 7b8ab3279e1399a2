"""Tests of autoencoders and transcoders in the formats of other libraries, against formulas."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkv.circuits import SAE
from qkv.models.files.read import ModelError

D, N, OUT = 6, 10, 4
rng = np.random.default_rng(7)
W_ENC, W_DEC = rng.standard_normal((D, N)), rng.standard_normal((N, D))
B_ENC, B_DEC = rng.standard_normal(N), rng.standard_normal(D)
THRESHOLD = rng.uniform(0, 2, N)
X = rng.standard_normal((3, 5, D)) * 3 + 1


def floats(arrays):
    return {name: np.array(array, np.float32) for name, array in arrays.items()}


def jumped(x, w=W_ENC, b=B_ENC, threshold=THRESHOLD):
    y = x @ w + b
    return np.where(y > threshold, np.maximum(y, 0), 0)


def compare(sae, x, features, decoded):
    np.testing.assert_allclose(sae.encode(x), features, rtol=0, atol=2e-5)
    np.testing.assert_allclose(sae(x), decoded, rtol=0, atol=1e-4)
    assert 0 < (features > 0).mean() < 1


@pytest.mark.parametrize(
    ("folder", "at"),
    [
        ("gemma-scope-2b-pt-res/layer_20/width_16k/average_l0_71", "blocks.20.hook_resid_post"),
        ("models--google--gemma-scope-9b-it-mlp/s/layer_3/x", "blocks.3.hook_mlp_out"),
        ("gemma-scope-2b-pt-att/layer_0/width_16k", "blocks.0.attn.hook_z"),
        ("layer_0/width_16k", None),
        ("gemma-scope-2b-pt-res", None),
    ],
)
def test_gemma_scope(tmp_path, folder, at):
    folder = tmp_path / folder
    folder.mkdir(parents=True)
    arrays = {"w_enc": W_ENC, "w_dec": W_DEC, "b_enc": B_ENC, "b_dec": B_DEC}
    np.savez(folder / "params.npz", **floats({**arrays, "threshold": THRESHOLD}))
    for path in (folder, folder / "params.npz"):
        sae = SAE.load(path)
        assert (sae.at, sae.at_out, sae.architecture) == (at, None, "jumprelu")
        compare(sae, X, jumped(X), jumped(X) @ W_DEC + B_DEC)
    np.savez(folder / "params.npz", **floats({"w_enc": W_ENC}))
    with pytest.raises(ModelError, match=r"params.npz: has no W_dec: an autoencoder of the arch"):
        SAE.load(folder)


def test_gemma_scope_of_embeddings_and_transcoders(tmp_path):
    arrays = {"w_enc": W_ENC, "b_enc": B_ENC, "threshold": THRESHOLD}
    folder = tmp_path / "gemma-scope-2b-pt-res" / "embedding" / "width_4k"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **floats({**arrays, "w_dec": W_DEC, "b_dec": B_DEC}))
    sae, features = SAE.load(folder), jumped(X / np.sqrt(D))
    assert sae.at == "hook_embed"
    compare(sae, X, features, np.sqrt(D) * features @ W_DEC + B_DEC)
    folder = tmp_path / "gemma-scope-2b-pt-transcoders" / "layer_7" / "width_16k"
    folder.mkdir(parents=True)
    out = {"w_dec": W_DEC[:, :OUT], "b_dec": B_DEC[:OUT]}
    np.savez(folder / "params.npz", **floats({**arrays, **out}))
    sae = SAE.load(folder)
    assert (sae.at, sae.at_out) == ("blocks.7.ln2.hook_normalized", "blocks.7.hook_mlp_out")
    compare(sae, X, jumped(X), jumped(X) @ W_DEC[:, :OUT] + B_DEC[:OUT])


def test_gemma_scope_2_with_a_skip_connection(tmp_path):
    folder = tmp_path / "gemma-scope-2-1b-pt" / "transcoder_all" / "layer_5_width_16k_affine"
    folder.mkdir(parents=True)
    skip = rng.standard_normal((D, D))
    arrays = {"w_enc": W_ENC, "b_enc": B_ENC, "threshold": THRESHOLD, "w_dec": W_DEC}
    arrays |= {"b_dec": B_DEC, "affine_skip_connection": skip}
    save_file(floats(arrays), folder / "params.safetensors")
    sae = SAE.load(folder)
    assert (sae.at, sae.at_out) == ("blocks.5.hook_mlp_in", "blocks.5.hook_mlp_out")
    compare(sae, X, jumped(X), jumped(X) @ W_DEC + B_DEC + X @ skip.T)


def test_llama_scope(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    site = "blocks.2.hook_resid_post"
    config = {"d_model": D, "d_sae": N, "jump_relu_threshold": 0.4, "hook_point_in": site}
    config |= {"hook_point_out": site, "dataset_average_activation_norm": {"in": 5.0, "out": 5.0}}
    (tmp_path / "hyperparams.json").write_text(json.dumps(config))
    arrays = {"encoder.weight": W_ENC.T, "decoder.weight": W_DEC.T}
    arrays |= {"encoder.bias": B_ENC, "decoder.bias": B_DEC}
    final = tmp_path / "checkpoints" / "final.safetensors"
    save_file({name: np.ascontiguousarray(x) for name, x in floats(arrays).items()}, final)
    scale = np.sqrt(D) / 5
    features = jumped(X * scale, threshold=0.4 * scale)
    sae = SAE.load(tmp_path)
    assert sae.at == site
    compare(sae, X, features, (features @ W_DEC + B_DEC) / scale)
    changes = [
        ({"d_model": "6"}, r"d_model, .* are '6', 0.4, 5.0: each must be a number above 0"),
        ({"hook_point_out": "blocks.2.hook_mlp_out"}, "hook_point_out is 'blocks.2.hook_mlp_out'"),
    ]
    for change, words in changes:
        (tmp_path / "hyperparams.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=words):
            SAE.load(tmp_path)


def saelens(folder, config, **arrays):
    folder.mkdir()
    save_file(floats(arrays), folder / "sae_weights.safetensors")
    config = {"d_in": D, "d_sae": N, "dtype": "float32", **config}
    metadata = {"sae_lens_version": "6.54.0", "hook_name": "blocks.0.hook_resid_post"}
    config["metadata"] = {**metadata, **config.get("metadata", {})}
    (folder / "cfg.json").write_text(json.dumps(config))
    return folder


def scales(x, how):
    """Return what SAELens subtracts from vectors, divides them by, and multiplies back."""
    if how == "layer_norm":
        mean = x.mean(-1, keepdims=True)
        spread = np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / (D - 1))
        return mean, spread + 1e-5, spread
    length = np.sqrt((x**2).sum(-1, keepdims=True) / D)
    return 0, length, length


@pytest.mark.parametrize("subtracts", [True, False])
@pytest.mark.parametrize("how", ["layer_norm", "constant_norm_rescale"])
def test_normalized_inputs(tmp_path, how, subtracts):
    config = {"architecture": "standard", "normalize_activations": how}
    config["apply_b_dec_to_input"] = subtracts
    arrays = {"W_enc": W_ENC, "W_dec": W_DEC, "b_enc": B_ENC, "b_dec": B_DEC}
    sae = SAE.load(saelens(tmp_path / "sae", config, **arrays))
    mean, divisor, spread = scales(X, how)
    features = np.maximum(((X - mean) / divisor - subtracts * B_DEC) @ W_ENC + B_ENC, 0)
    decoded = (features @ W_DEC + B_DEC) * spread + mean
    compare(sae, X, features, decoded)
    np.testing.assert_allclose(sae.decode(sae.encode(X), X), decoded, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=rf"has normalize='{how}'; pass the encoded vectors too"):
        sae.decode(sae.encode(X))
    sae.save(tmp_path / "again")
    np.testing.assert_array_equal(SAE.load(tmp_path / "again")(X), sae(X))


@pytest.mark.parametrize("how", ["layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize("keeps", [False, True])
def test_the_gradient_through_normalized_inputs_equals_slopes_of_small_steps(small, how, keeps):
    model, own = small("gpt2"), np.random.default_rng(5)
    encoder, decoder = own.standard_normal((12, N)), own.standard_normal((N, 12))
    sae = SAE(encoder, decoder, B_ENC, own.standard_normal(12), normalize=how)
    sae = sae.keeping_error() if keeps else sae
    site, ids = ("resid_post", 0), [3, 7, 1, 9]
    features = own.standard_normal((1, 4, N))
    up = {("resid_pre", 1): own.standard_normal((1, 4, 12))}
    at = ("resid_pre", 0)
    for of in (up, {**up, ("sae_acts_post", 0): features}):
        found = model.gradient(ids, of=of, at=[at], edit={site: sae})[at]
        way, ends = own.standard_normal((1, 4, 12)), []
        for step in (1e-6, -1e-6):
            change = step * way
            moved = model.trace(ids, edit={site: sae, at: lambda x, change=change: x + change})
            ends.append(sum((array * moved[name]).sum() for name, array in of.items()))
        slope = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose((found * way).sum(), slope, rtol=1e-5, atol=1e-7)
    edit = {site: sae, ("sae_acts_post", 0): np.zeros((1, 4, N))}
    with pytest.raises(ValueError, match=r"normalizes vectors, and qkv cannot compute a grad"):
        model.gradient(ids, of=up, at=[at], edit=edit)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("jumps", [False, True])
def test_transcoders(tmp_path, skips, jumps):
    kind = "jumprelu_" * jumps + "skip_" * skips + "transcoder"
    decoder, bias = W_DEC[:, :OUT], B_DEC[:OUT]
    arrays = {"W_enc": W_ENC, "W_dec": decoder, "b_enc": B_ENC, "b_dec": bias}
    skip = rng.standard_normal((OUT, D))
    arrays |= {"threshold": THRESHOLD} if jumps else {}
    arrays |= {"W_skip": skip} if skips else {}
    names = {"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.mlp.hook_out"}
    config = {"architecture": kind, "d_out": OUT, "metadata": names}
    features = jumped(X) if jumps else np.maximum(X @ W_ENC + B_ENC, 0)
    folder = saelens(tmp_path / "coder", config, **arrays)
    for _ in range(2):
        coder = SAE.load(folder)
        assert (coder.at, coder.at_out) == (names["hook_name"], names["hook_name_out"])
        compare(coder, X, features, features @ decoder + bias + skips * X @ skip.T)
        folder = tmp_path / "again"
        coder.save(folder)
        assert json.loads((folder / "cfg.json").read_text())["architecture"] == kind
    coder.at_out = None
    coder.save(tmp_path / "unnamed")
    np.testing.assert_array_equal(SAE.load(tmp_path / "unnamed")(X), coder(X))
    with pytest.raises(ValueError, match=r"is a transcoder, and explained_variance compares"):
        coder.explained_variance(X)


def test_a_transcoder_edits_by_its_output(small):
    model, own = small("gpt2"), np.random.default_rng(5)
    encoder, decoder = own.standard_normal((12, N)), own.standard_normal((N, 12))
    options = {"at": "blocks.0.mlp.hook_in", "at_out": "blocks.0.mlp.hook_out"}
    coder = SAE(encoder, decoder, subtracts_bias=False, **options)
    ids = [3, 7, 1, 9]
    read = model.trace(ids)["ln2.normalized", 0]
    expected = np.maximum(read @ encoder, 0) @ decoder
    given = model.trace(ids, names=[coder.at])[coder.at]
    trace = model.trace(ids, edit={coder.at_out: coder(given)})
    np.testing.assert_allclose(trace["mlp_out", 0], expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"`edit` has the transcoder .*; pass the transcoder's"):
        model.trace(ids, edit={coder.at_out: coder})
    for wrong in ({"subtracts_bias": True}, {"normalize": "layer_norm"}, {"k": 3}):
        with pytest.raises(ValueError, match=r"so it is a transcoder; pass subtracts_bias=False"):
            SAE(encoder, decoder, **{"subtracts_bias": False, **options, **wrong})
    with pytest.raises(ValueError, match=r"`normalize` is 'l2'; choose layer_norm or constant"):
        SAE(encoder, decoder, normalize="l2")


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "params.npz").write_bytes(b"no")
    with pytest.raises(ModelError, match=r"params.npz: the file is damaged"):
        SAE.load(tmp_path)
    with pytest.raises(ModelError, match=r"has no layer0.sae.pt|k is unknown"):
        SAE.load(tmp_path / "layer0.sae.pt")
    (tmp_path / "ae.pt").write_bytes(b"no")
    (tmp_path / "params.npz").unlink()
    config = {"trainer": {"dict_class": "CrossCoder"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"dict_class is 'CrossCoder', which qkv does not support"):
        SAE.load(tmp_path)
    config["trainer"]["dict_class"] = "AutoEncoder"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"ae.pt: the file is damaged, or torch.save did not wri"):
        SAE.load(tmp_path)
