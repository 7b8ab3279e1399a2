"""Tests of the configs of Llama and related families: the designs, and refused values."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qkv.models import ModelError
from qkv.models.families import FAMILIES
from qkv.models.network.design import Design
from rows import failing

SIZES = {
    "vocab_size": 30,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
FOLLOWERS = ["llama", "mistral", "qwen2", "qwen3"]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SLIDING = ["full_attention", "sliding_attention", "full_attention"]


def design(name: str, **values: Any) -> Design:
    """Return the design of a small model, and assert that every given key was read."""
    config = FAMILIES[name].config({**SIZES, **values}, "config.json")
    found = FAMILIES[name].design(config)
    assert set(values) <= config.used
    assert isinstance(found, Design)
    return found


def windows(name: str, **values: Any) -> list[Any]:
    return [layer.options.get("window") for layer in design(name, **values).layers]


def test_sizes_of_heads() -> None:
    for name, size in (("llama", 4), ("mistral", 4), ("qwen2", 4), ("qwen3", 128)):
        assert {layer.head_size for layer in design(name).layers} == {size}
        assert {layer.head_size for layer in design(name, head_dim=None).layers} == {4}
        assert {layer.head_size for layer in design(name, head_dim=10).layers} == {10}
        assert {layer.num_kv_heads for layer in design(name).layers} == {2}
        heads = design(name, num_key_value_heads=None).layers
        assert {layer.num_kv_heads for layer in heads} == {6}
    # an explicit head_dim need not divide hidden_size
    assert design("llama", hidden_size=25, head_dim=4).layers[0].head_size == 4


def test_all_layers_share_one_rotary() -> None:
    for name in FOLLOWERS:
        assert len({id(layer.rotary) for layer in design(name).layers}) == 1


def test_windows() -> None:
    assert windows("mistral", sliding_window=5) == [(4, 0)] * 3
    assert windows("mistral", sliding_window=None) == [None] * 3
    assert windows("mistral") == [(4095, 0)] * 3
    same = {"layer_types": ["sliding_attention"] * 3}
    assert windows("mistral", sliding_window=5, **same) == [(4, 0)] * 3
    for name in ("qwen2", "qwen3"):
        assert windows(name, sliding_window=5, max_window_layers=1) == [None] * 3
        on = {"use_sliding_window": True, "sliding_window": 5}
        assert windows(name, **on) == [None] * 3
        assert windows(name, **on, max_window_layers=2) == [None, None, (4, 0)]
        assert windows(name, **on, max_window_layers=0) == [(4, 0)] * 3
        assert windows(name, **on, max_window_layers=0, layer_types=SLIDING) == [None, (4, 0), None]


def test_biases() -> None:
    def biases(name: str, **values: Any) -> tuple[bool, bool, bool]:
        found = design(name, **values)
        return found.qkv_bias, found.out_bias, found.mlp_bias

    assert biases("llama") == biases("mistral") == biases("qwen3") == (False, False, False)
    assert biases("llama", attention_bias=True) == (True, True, False)
    assert biases("llama", mlp_bias=True) == (False, False, True)
    assert biases("qwen2") == (True, False, False)
    assert biases("qwen3", attention_bias=True) == (True, True, False)


COMMON = {
    **{"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02},
    **{"torch_dtype": "bfloat16", "use_cache": True},
}
PUBLISHED: list[dict[str, Any]] = [
    {  # SmolLM2 135M
        **COMMON,
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False},
        **{"bos_token_id": 0, "eos_token_id": 0, "hidden_size": 576, "initializer_range": 0.04},
        **{"intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192},
        **{"num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3},
        **{"pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_interleaved": False},
        **{"rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True},
        **{"transformers_version": "4.40.1", "vocab_size": 49152},
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    {  # Llama 3.1 8B
        **COMMON,
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False},
        **{"bos_token_id": 128000, "eos_token_id": [128001, 128008], "hidden_size": 4096},
        **{"intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False},
        **{"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8},
        **{"pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
        **{"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 8192}},
        **{"tie_word_embeddings": False, "transformers_version": "4.42.3", "vocab_size": 128256},
    },
    {  # Mistral 7B v0.3
        **COMMON,
        **{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "bos_token_id": 1},
        **{"eos_token_id": 2, "hidden_size": 4096, "intermediate_size": 14336},
        **{"max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32},
        **{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0},
        **{"sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32768},
        "transformers_version": "4.42.0.dev0",
    },
    {  # Qwen2.5 0.5B
        **COMMON,
        **{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643},
        **{"eos_token_id": 151643, "hidden_size": 896, "intermediate_size": 4864},
        **{"max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14},
        **{"num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6},
        **{"rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True},
        **{"transformers_version": "4.40.1", "use_mrope": False, "use_sliding_window": False},
        "vocab_size": 151936,
    },
    {  # Qwen3 0.6B
        **COMMON,
        **{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False},
        **{"bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_size": 1024},
        **{"intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28},
        **{"num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8},
        **{"rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000},
        **{"sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False},
        **{"transformers_version": "4.51.0", "vocab_size": 151936},
    },
]
PARAMETERS = [134_515_008, 8_030_261_248, 7_248_023_552, 494_032_768, 596_049_920]


@pytest.mark.parametrize(
    ("values", "count"),
    list(zip(PUBLISHED, PARAMETERS, strict=True)),
    ids=["SmolLM2", "Llama 3.1", "Mistral", "Qwen2.5", "Qwen3"],
)
def test_published_configs_are_known_to_the_last_key(values: dict[str, Any], count: int) -> None:
    """qkv knows every key of published configs and computes the right number of parameters.

    An unknown key would cause a warning.
    """
    family = FAMILIES[values["model_type"]]
    config = family.config(values, "config.json")
    design = family.design(config)
    config.finish(family.harmless)
    assert sum(math.prod(shape) for _, shape in design.shapes()) == count
    assert isinstance(design, Design)
    assert design.layers[0].options == {"is_causal": True}


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_key_value_heads": 4}, "num_attention_heads is 6 and num_key_value_heads is 4"),
        ({"num_attention_heads": 5, "head_dim": None}, "hidden_size is 24 and num_attention_head"),
        ({"head_dim": 5}, "a head has 5 dimensions"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"rope_scaling": {"type": "mrope"}}, "type is 'mrope'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ],
)
def test_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        design(name, **values)


def test_values_refused_by_one_family() -> None:
    for name, values, message in (
        ("llama", {"pretraining_tp": 2}, "pretraining_tp is 2"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved is True"),
        ("qwen2", {"use_mrope": True}, "use_mrope is True"),
        ("mistral", {"layer_types": SLIDING}, "all layers of a Mistral model have the same type"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen2", {"layer_types": SLIDING}, "the window is missing"),
        ("qwen3", {"layer_types": SLIDING[:2]}, "a list of 3"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types has 'chunked_attent"),
        ("qwen3", {"layer_types": "full_attention"}, "a list of 3"),
    ):
        with failing(name, values, message), pytest.raises(ModelError, match=message):
            design(name, **values)
