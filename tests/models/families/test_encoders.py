"""Tests of encoders other than BERT: errors name unsupported values before weights are read."""

import json

import pytest

from qkv.models.families import FAMILIES

from ..support import refused


def refused_early(path, *parts, **config):
    """Assert that a config is refused and that the error contains these parts.

    The folder has no weights, so the error also shows that the config is checked first.
    """
    (path / "config.json").write_text(json.dumps(config))
    assert "safetensors" not in refused(path, *parts)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert"])
@pytest.mark.parametrize("value", [None, -1, 1.0, True, "1"])
def test_positions_require_a_valid_pad_token_id(tmp_path, family, value):
    refused_early(tmp_path, "pad_token_id", model_type=family, pad_token_id=value)


@pytest.mark.parametrize(("family", "padding"), [("roberta", 9), ("mpnet", 1)])
def test_position_table_without_rows_after_padding_is_refused(tmp_path, family, padding):
    keys = {"max_position_embeddings": padding + 1, "pad_token_id": 9}
    refused_early(tmp_path, "max_position_embeddings", str(padding), model_type=family, **keys)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("roberta", "position_embedding_type", "relative_key"),
        ("roberta", "is_decoder", True),
        ("roberta", "quantization_config", {"quant_method": "mxfp4"}),
        ("mpnet", "relative_attention_num_buckets", 16),
        ("albert", "embedding_size", 0),
        ("albert", "num_hidden_groups", 13),
        ("albert", "inner_group_num", 1000),
        ("nomic_bert", "activation_function", "geglu"),
        ("nomic_bert", "rotary_emb_fraction", 0.5),
        ("nomic_bert", "rotary_emb_interleaved", True),
        ("nomic_bert", "rotary_scaling_factor", 2),
        ("nomic_bert", "prenorm", True),
        ("nomic_bert", "causal", True),
        ("nomic_bert", "qkv_proj_bias", True),
        ("nomic_bert", "num_experts", 8),
        ("nomic_bert", "n_head", 5),
        ("deberta-v2", "conv_kernel_size", 4),
        ("deberta-v2", "pos_att_type", ["p2p"]),
        ("deberta-v2", "embedding_size", 128),
        ("deberta-v2", "pooler_hidden_act", "mish"),
        ("eurobert", "classifier_pooling", "max"),
        ("new", "position_embedding_type", "absolute"),
        ("new", "layer_norm_type", "rms_norm"),
        ("new", "pack_qkv", False),
        ("new", "logn_attention_scale", True),
        ("new", "rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("new", "rope_scaling", {"type": "ntk", "factor": 2.0, "mixed_b": 0.75}),
        ("xlm-roberta", "lora_adaptations", ["retrieval.query", "text-matching"]),
        ("electra", "embedding_size", 0),
        ("electra", "num_attention_heads", 3),
        ("distilbert", "activation", "tanh"),
        ("distilbert", "n_heads", 5),
        ("modernbert", "classifier_pooling", "max"),
        ("modernbert", "global_attn_every_n_layers", 0),
        ("modernbert", "local_attention", 0),
        ("modernbert", "layer_types", ["full_attention"]),
        ("modernbert", "rope_parameters", {"other_attention": {}}),
        ("modernbert", "local_rope_theta", -1.0),
        ("modernbert", "tie_word_embeddings", 1),
    ],
)
def test_a_value_that_is_not_supported(tmp_path, family, key, value):
    refused_early(tmp_path, key, model_type=family, **{key: value})


LENGTHS = {
    510: ["roberta", "xlm-roberta", "camembert", "mpnet"],
    512: ["bert", "distilbert", "albert", "deberta-v2", "electra"],
    2048: ["new", "nomic_bert"],
    8192: ["eurobert", "gte", "modernbert"],
    8194: ["jina_embeddings_v3"],
}


@pytest.mark.parametrize(
    ("family", "length"), [(family, length) for length in LENGTHS for family in LENGTHS[length]]
)
def test_default_max_seq_length_of_each_family(family, length):
    kind = FAMILIES[family]
    assert kind.design(kind.config({}, "config.json")).max_seq_length == length
