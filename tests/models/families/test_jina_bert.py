"""Tests of JinaBERT (jina-embeddings-v2) against its formula in float64, written out in NumPy.

The models have the model type "bert"; their code is not in transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import qkv
from qkv.models import ModelError

from ..formulas import ACTIVATIONS, attend, layer_norm

D, F, HEADS, LAYERS, V = 12, 10, 3, 2, 30
CONFIG = {
    **{"model_type": "bert", "architectures": ["JinaBertForMaskedLM"], "vocab_size": V},
    **{"hidden_size": D, "intermediate_size": F, "num_attention_heads": HEADS},
    **{"num_hidden_layers": LAYERS, "max_position_embeddings": 64, "type_vocab_size": 2},
    **{"position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_act": "gelu"},
    **{"layer_norm_eps": 1e-12, "emb_pooler": "mean", "attn_implementation": "torch"},
    **{"model_max_length": 64, "classifier_dropout": None, "pad_token_id": 0},
}
CODE = {
    "plain": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    "normalised": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel",
}
SLOPES = [1 / 16, 1 / 256, 1 / 4]  # two heads' slopes, then the first of four heads' slopes
IDS = [5, 7, 30 % V, 11, 7, 25, 16]


def tensors_of(variant: str) -> dict[str, Any]:
    """Return random tensors under the names of the published files."""
    rng = np.random.default_rng(5)
    sizes = {"embeddings.word_embeddings": (V, D), "embeddings.token_type_embeddings": (2, D)}
    sizes |= {"embeddings.LayerNorm": (D,), "cls.predictions.transform.dense": (D, D)}
    sizes |= {"cls.predictions.transform.LayerNorm": (D,)}
    wide, down = ("mlp.gated_layers", "mlp.wo")
    norms = ("attention.output.LayerNorm", "mlp.layernorm")
    if variant == "normalised":
        wide, down = ("mlp.up_gated_layer", "mlp.down_layer")
        norms = ("layer_norm_1", "layer_norm_2", *(f"attention.self.layer_norm_{n}" for n in "qk"))
    for layer in range(LAYERS):
        here = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            sizes[f"{here}attention.self.{part}"] = (D, D)
        sizes[f"{here}attention.output.dense"] = (D, D)
        sizes |= {f"{here}{wide}": (2 * F, D), f"{here}{down}": (D, F)}
        sizes |= {f"{here}{norm}": (D,) for norm in norms}
    found: dict[str, Any] = {"cls.predictions.bias": rng.standard_normal(V)}
    for name, size in sizes.items():
        found[f"{name}.weight"] = rng.standard_normal(size) / np.sqrt(size[-1])
        if "embeddings.w" not in name and "embeddings.t" not in name and wide not in name:
            found[f"{name}.bias"] = 0.3 * rng.standard_normal(size[0])
    return {name if name[:3] == "cls" else f"bert.{name}": array for name, array in found.items()}


def by_hand(t: dict[str, Any], variant: str, act: Any, ids: list[int], real: Any) -> list[Any]:
    """Return the hidden states of one text, and its logits; masked tokens are not `real`."""

    def linear(x: Any, name: str) -> Any:
        return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0)

    def norm(x: Any, name: str) -> Any:
        return layer_norm(x, t[f"{name}.weight"], t[f"{name}.bias"], 1e-12)

    x = t["bert.embeddings.word_embeddings.weight"][ids]
    x = norm(x + t["bert.embeddings.token_type_embeddings.weight"][0], "bert.embeddings.LayerNorm")
    states, at = [x], np.arange(len(ids))
    for layer in range(LAYERS):
        here = f"bert.encoder.layer.{layer}."
        q, k, v = (linear(x, f"{here}attention.self.{n}") for n in ("query", "key", "value"))
        if variant == "normalised":
            q = norm(q, f"{here}attention.self.layer_norm_q")
            k = norm(k, f"{here}attention.self.layer_norm_k")
        biases = [-slope * np.abs(at[:, None] - at) for slope in SLOPES]
        out, _ = attend(q, k, v, HEADS, bias=biases, visible=real)
        out = linear(out, f"{here}attention.output.dense")
        if variant == "normalised":
            x = norm(x + out, f"{here}layer_norm_1")
            up, gate = np.split(linear(x, f"{here}mlp.up_gated_layer"), 2, -1)
            x = norm(x + linear(up * act(gate), f"{here}mlp.down_layer"), f"{here}layer_norm_2")
        else:
            x = norm(x + out, f"{here}attention.output.LayerNorm")
            gate, up = np.split(linear(x, f"{here}mlp.gated_layers"), 2, -1)
            x = norm(x + linear(act(gate) * up, f"{here}mlp.wo"), f"{here}mlp.layernorm")
        states.append(x)
    head = ACTIVATIONS["gelu"](linear(x, "cls.predictions.transform.dense"))
    head = norm(head, "cls.predictions.transform.LayerNorm")
    words = head @ t["bert.embeddings.word_embeddings.weight"].T + t["cls.predictions.bias"]
    return [*states, words]


def written(folder: Path, variant: str, **changes: Any) -> tuple[qkv.Model, dict[str, Any]]:
    tensors = tensors_of(variant)
    config = CONFIG | {"auto_map": {"AutoModel": CODE[variant]}} | changes
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return qkv.load(folder), tensors


@pytest.mark.parametrize("variant", CODE)
@pytest.mark.parametrize("kind", ["geglu", "reglu"])
def test_hidden_states_and_logits(tmp_path: Path, variant: str, kind: str) -> None:
    model, tensors = written(tmp_path, variant, feed_forward_type=kind)
    act = ACTIVATIONS[kind.replace("glu", "lu")]
    *states, words = by_hand(tensors, variant, act, IDS, True)
    trace = model.trace(np.array([IDS]), logits=True)
    for found, expected in zip(trace.hidden_states, states, strict=True):
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trace["logits"][0], words, rtol=0, atol=1e-10)
    single = qkv.load(tmp_path, dtype="float32")([IDS]).logits[0]
    np.testing.assert_allclose(single, words, rtol=0, atol=2e-5 * np.abs(words).max())


def test_masked_tokens_keep_the_distances_of_other_tokens(tmp_path: Path) -> None:
    model, tensors = written(tmp_path, "plain")
    mask = np.array([[1, 1, 0, 1, 0, 1, 1]])
    expected = by_hand(tensors, "plain", ACTIVATIONS["gelu"], IDS, mask[0] == 1)[-1]
    found = model([IDS], mask).logits[0]
    np.testing.assert_allclose(found[mask[0] == 1], expected[mask[0] == 1], rtol=0, atol=1e-10)


def test_a_saved_model_loads_again(tmp_path: Path) -> None:
    for variant in CODE:
        (tmp_path / variant).mkdir()
        model, _ = written(tmp_path / variant, variant)
        model.save(tmp_path / f"{variant} again")
        again = qkv.load(tmp_path / f"{variant} again")
        np.testing.assert_array_equal(again([IDS]).logits, model([IDS]).logits)


def test_an_mlp_without_gate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="feed_forward_type is 'original', which qkv does not"):
        written(tmp_path, "plain", feed_forward_type="original")
