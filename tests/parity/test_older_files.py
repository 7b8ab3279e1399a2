"""Tests of configurations and weights in formats of older releases of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AlbertForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPTNeoXForCausalLM,
    GteForMaskedLM,
    GteForSequenceClassification,
    GteModel,
    NomicBertForMaskedLM,
    NomicBertModel,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
)

import qkv
from models.sizes import SMALL

from .families import FAMILIES
from .models import Pair, compare_batch, compare_layers, compare_saved, made


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_older_names_of_long_rope_in_phi3(tmp_path: Path, kind: str) -> None:
    pair = made(tmp_path, Phi3ForCausalLM, FAMILIES["phi3"].config_of("long"))
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    scaling = values.pop("rope_parameters")
    values["rope_theta"] = scaling["rope_theta"]
    lists = {key: scaling[key] for key in ("short_factor", "long_factor")}
    values["rope_scaling"] = {"type": kind, **lists}
    path.write_text(json.dumps(values))
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 23)


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_windows_of_older_qwen_configs(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    config = family.config_of("the last two in windows, tied")
    pair = made(tmp_path, family.class_of("ForCausalLM"), config)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    assert values.pop("layer_types") == ["full_attention", *["sliding_attention"] * 2]
    values["rope_theta"] = values.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(values))
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 23)


def test_tensors_and_rotary_keys_of_pythia(tmp_path: Path) -> None:
    """The config has older rotary keys, and the file has tensors that are not parameters."""
    pair = made(
        tmp_path, GPTNeoXForCausalLM, FAMILIES["gpt_neox"].config_of("in parallel"), torch.float64
    )
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    rope = values.pop("rope_parameters")
    assert (rope["rope_theta"], rope["partial_rotary_factor"]) == (10000, 0.25)
    values |= {"rotary_emb_base": 10000, "rotary_pct": 0.25, "rope_scaling": None}
    path.write_text(json.dumps(values))
    tensors = load_file(tmp_path / "model.safetensors")
    assert "embed_out.weight" in tensors
    for layer in range(3):
        place = f"gpt_neox.layers.{layer}.attention."
        tensors[f"{place}bias"] = np.ones((1, 1, 64, 64), bool)
        tensors[f"{place}masked_bias"] = np.array(-1e9, np.float32)
        tensors[f"{place}rotary_emb.inv_freq"] = np.ones(2, np.float32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 23)
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")  # the name in the class
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(qkv.load(tmp_path)([[5, 7]]).logits, pair.ours([[5, 7]]).logits)


def test_output_bias_of_older_albert_files(tmp_path: Path) -> None:
    """Older ALBERT files hold the output bias outside the output matrix's module."""
    pair = made(tmp_path, AlbertForMaskedLM, FAMILIES["albert"].config_of("one set for all"))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    bias = tensors.pop("predictions.decoder.bias", None)
    tensors.setdefault("predictions.bias", bias)
    save_file(tensors, file, {"format": "pt"})
    compare_layers(Pair(qkv.load(tmp_path), pair.theirs, pair.bound), 9)


def test_tensor_names_of_nomic_embed_text(tmp_path: Path) -> None:
    """nomic-embed-text-v1.5 has older keys in its config and older names of tensors."""
    pair = made(tmp_path, NomicBertModel, FAMILIES["nomic_bert"].config_of("three heads"))
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {"emb_ln.weight", "encoder.layers.2.attn.Wqkv.weight"} < names
    expected = pair.ours(np.arange(3, 40)[None]).last_hidden_state
    config = {
        **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 36},
        **{"n_head": 3, "n_inner": 50, "n_layer": 3, "n_positions": 64, "vocab_size": 97},
        **{"activation_function": "swiglu", "causal": False, "layer_norm_epsilon": 1e-12},
        **{"mlp_fc1_bias": False, "mlp_fc2_bias": False, "qkv_proj_bias": False},
        **{"parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False},
        **{"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
        **{"rotary_emb_scale_base": None, "rotary_scaling_factor": None, "use_rms_norm": False},
        **{"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
        **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "dense_seq_output": True},
        **{"auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"}},
        **{"fused_bias_fc": True, "fused_dropout_add_ln": True, "max_trained_positions": 2048},
        **{"pad_vocab_size_multiple": 64, "reorder_and_upcast_attn": False, "use_cache": True},
        **{"summary_activation": None, "summary_first_dropout": 0.0, "summary_use_proj": True},
        **{"summary_proj_to_labels": True, "summary_type": "cls_index", "type_vocab_size": 2},
        **{"use_flash_attn": True, "use_xentropy": True, "torch_dtype": "float32"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = qkv.load(tmp_path)(np.arange(3, 40)[None]).last_hidden_state
    np.testing.assert_array_equal(found, expected)


def test_tensor_prefix_of_nomic_bert_2048(tmp_path: Path) -> None:
    """nomic-bert-2048 has the prefix `bert.`; transformers saves `nomic_bert.`."""
    pair = made(tmp_path, NomicBertForMaskedLM, FAMILIES["nomic_bert"].config_of("three heads"))
    ids = np.arange(3, 40)[None]
    expected = pair.ours(ids)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("nomic_bert.", "bert.", 1) if name.startswith("nomic_bert.") else name: one
        for name, one in tensors.items()
    }
    assert "bert.encoder.layers.2.attn.Wqkv.weight" in renamed
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    found = qkv.load(tmp_path)
    np.testing.assert_array_equal(found(ids).logits, expected.logits)
    np.testing.assert_array_equal(found(ids).last_hidden_state, expected.last_hidden_state)
    compare_saved(Pair(found, pair.theirs, pair.bound), tmp_path / "ours")


@pytest.mark.parametrize("factor", [None, 1.0, 8.0])
@pytest.mark.parametrize("kind", [GteForMaskedLM, GteForSequenceClassification, GteModel])
def test_gte_in_its_first_format(tmp_path: Path, kind: type, factor: float | None) -> None:
    """The first files of GTE have the model type "new" and scale rotary positions by "ntk"."""
    pair = made(tmp_path, kind, FAMILIES["gte"].config_of("three heads"), torch.float64)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("gte.", "new.", 1): tensor for name, tensor in tensors.items()}
    assert any("encoder.layer.2.mlp.up_gate_proj.weight" in name for name in renamed)
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    config = {
        **{"model_type": "new", "architectures": [kind.__name__.replace("Gte", "New")]},
        **{"hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "vocab_size": 97},
        **{"intermediate_size": 50, "max_position_embeddings": 64, "hidden_act": "gelu"},
        **{"layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm", "type_vocab_size": 1},
        **{"position_embedding_type": "rope", "rope_theta": 500, "pack_qkv": True},
        **{"logn_attention_scale": False, "logn_attention_clip1": False, "unpad_inputs": False},
        **{"use_memory_efficient_attention": False, "hidden_dropout_prob": 0.1},
        **{"auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}},
        "rope_scaling": None if factor is None else {"type": "ntk", "factor": factor},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    by = factor or 1.0
    speeds = (500 * by) ** (-np.arange(0, 12, 2) / 12) / by ** (2 / 12)  # NTKScalingRotaryEmbedding
    body = getattr(pair.theirs, "gte", pair.theirs)
    body.rotary_emb.inv_freq = torch.tensor(speeds)
    found = Pair(qkv.load(tmp_path), pair.theirs, pair.bound)
    compare_layers(found, 23)
    compare_batch(found, [23, 5, 1, 14], "right")


def test_an_index_that_names_wrong_files_loads_as_in_transformers(tmp_path: Path) -> None:
    pair = made(tmp_path, BertForMaskedLM, BertConfig(**SMALL["bert"][0]))
    pair.theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    index = tmp_path / "shards" / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    where = values["weight_map"]
    first, last = min(where.values()), max(where.values())
    assert first != last
    bias = "bert.embeddings.LayerNorm.bias"
    where |= {"cls.predictions.decoder.weight": last, "bert.embeddings.position_ids": first}
    where[bias] = first if where[bias] == last else last
    index.write_text(json.dumps(values))
    theirs = BertForMaskedLM.from_pretrained(tmp_path / "shards", attn_implementation="eager")
    with pytest.warns(UserWarning, match="names the wrong file for "):
        ours = qkv.load(tmp_path / "shards")
    compare_layers(Pair(ours, theirs.eval(), pair.bound), 23)


def test_a_tokenizer_with_more_tokens_than_rows_loads_as_in_transformers(tmp_path: Path) -> None:
    pair = made(tmp_path, BertForMaskedLM, BertConfig(**SMALL["bert"][0]))
    words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(2, 120))]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="ids up to 119, but the token table has only 40 rows"):
        ours = qkv.load(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    with torch.inference_mode():
        given = read("w5 w39 w7", return_tensors="pt")
        assert given["input_ids"].tolist() == [[5, 39, 7]]
        theirs = pair.theirs(**given, output_hidden_states=True).hidden_states[-1]
        with pytest.raises(IndexError):
            pair.theirs(**read("w5 w40", return_tensors="pt"))
    pair.near(ours.trace("w5 w39 w7").hidden_states[-1], theirs, "last")
    with pytest.raises(ValueError, match="the token 'w40' has the id 40, but the token table has"):
        ours.trace("w5 w40")
