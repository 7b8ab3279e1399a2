"""Tests of the configs of decoders: the resulting designs, and values that are refused."""

import warnings
from typing import Any

import pytest

from qkv import ModelError
from qkv.models.families import FAMILIES

SLIDING, FULL = "sliding_attention", "full_attention"
MXFP4 = {"modules_to_not_convert": ["x" * 99], "quant_method": "mxfp4"}
SMALL: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 9, "hidden_size": 12, "n_layer": 2, "n_head": 3},
    "gemma": {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 2, "head_dim": 6},
    "gemma2": {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 4, "head_dim": 6},
    "gemma3_text": {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 6, "head_dim": 6},
    "falcon": {
        "vocab_size": 9,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
    },
    "gpt_neo": {"vocab_size": 9, "hidden_size": 16, "max_position_embeddings": 8},
    "mixtral": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2},
    "qwen3_moe": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 4},
    "granite": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2},
    **{name: {"vocab_size": 9, "hidden_size": 64} for name in ("llama", "qwen2", "qwen3")},
    "mistral": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2},
    "olmo": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2},
    "olmo3": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 4},
    "phi": {"vocab_size": 9, "hidden_size": 128, "num_hidden_layers": 2},
    "smollm3": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 4},
    "stablelm": {"vocab_size": 9, "hidden_size": 256, "num_hidden_layers": 2},
    "starcoder2": {"vocab_size": 9, "hidden_size": 48, "num_hidden_layers": 2},
    "olmo2": {"vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 2},
    "opt": {"vocab_size": 9, "hidden_size": 24, "num_hidden_layers": 2, "ffn_dim": 8},
    "phi3": {"vocab_size": 9, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gpt_oss": {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 4, "head_dim": 6},
}


def design(family: str, **values: Any) -> Any:
    """Return the design of a small model; None omits a key, and unknown keys are errors."""
    given = {"architectures": ["XForCausalLM"], **SMALL[family], **values}
    left = {k: v for k, v in given.items() if v is not None}
    config = FAMILIES[family].config(left, "config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = FAMILIES[family].design(config)
        config.finish(FAMILIES[family].harmless)
    return found


def windows(found: Any) -> list[Any]:
    return [layer.options.get("window") for layer in found.layers]


SAME = [
    ("bloom", {}, {"hidden_size": None, "n_embed": 12, "n_head": None, "num_attention_heads": 3}),
    ("bloom", {}, {"n_layer": None, "num_hidden_layers": 2, "n_inner": 48, "offset_alibi": 100}),
    ("bloom", {}, {"slow_but_exact": True, "pretraining_tp": 1, "seq_length": 2048}),
    ("gemma", {}, {"hidden_act": "gelu", "hidden_activation": "gelu", "rope_theta": 10000.0}),
    ("gemma", {"hidden_act": "gelu_pytorch_tanh"}, {"hidden_act": "gelu"}),
    ("gemma2", {}, {"rope_theta": 10000.0, "sliding_window": 4096, "hidden_act": "silu"}),
    ("gemma2", {}, {"layer_types": [SLIDING, FULL, SLIDING, FULL]}),
    (
        "gemma2",
        {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0}},
    ),
    ("gemma3_text", {"sliding_window_pattern": 3}, {"layer_types": [SLIDING, SLIDING, FULL] * 2}),
    ("gemma3_text", {}, {"layer_types": [SLIDING] * 5 + [FULL], "_sliding_window_pattern": 9}),
    ("gemma3_text", {}, {"rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    (
        "gemma3_text",
        {
            "rope_theta": 5.0,
            "rope_local_base_freq": 7,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5.0},
                SLIDING: {"rope_type": "default", "rope_theta": 7.0},
            }
        },
    ),
    (
        "gpt_neo",
        {},
        {
            **{"num_layers": 24, "num_heads": 16, "window_size": 256, "intermediate_size": 64},
            "attention_types": [[["global", "local"], 12]],
            "attention_layers": ["global", "local"] * 12,
        },
    ),
    ("falcon", {"hidden_size": None, "n_embed": 24}, {"ffn_hidden_size": 96}),
    ("falcon", {"alibi": True}, {"alibi": True, "rope_theta": 5.0, "max_position_embeddings": 9}),
    ("falcon", {"multi_query": False}, {"multi_query": False, "num_kv_heads": 6}),
    (
        "falcon",
        {"new_decoder_architecture": True},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2, "multi_query": False},
    ),
    ("granite", {}, {"residual_multiplier": 1, "logits_scaling": 1.0, "mlp_bias": False}),
    ("olmo3", {}, {"layer_types": [SLIDING] * 3 + [FULL], "rope_theta": 500000}),
    ("phi", {}, {"partial_rotary_factor": 0.5, "rope_scaling": None, "embd_pdrop": 0.1}),
    ("smollm3", {}, {"no_rope_layers": [1, 1, 1, 0], "layer_types": [FULL] * 4}),
    ("smollm3", {}, {"pretraining_tp": 2, "max_window_layers": 28, "sliding_window": 7}),
    ("stablelm", {}, {"partial_rotary_factor": 0.25, "head_dim": 8, "qk_layernorm": False}),
    ("starcoder2", {}, {"norm_epsilon": 1e-5, "layer_norm_epsilon": 3.0, "mlp_type": "default"}),
    ("mixtral", {"num_local_experts": 8}, {"num_experts": 8, "rope_theta": 1e6}),
    ("olmo2", {}, {"rms_norm_eps": 1e-5, "rope_theta": 10000, "num_key_value_heads": 32}),
    ("phi3", {}, {"partial_rotary_factor": 1.0, "attention_bias": False, "resid_pdrop": 0.1}),
    ("phi3", {}, {"original_max_position_embeddings": 4096, "rope_scaling": None}),
    (
        "phi3",
        {"partial_rotary_factor": 0.5, "rope_theta": 7.0},
        {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 7.0}},
    ),
    ("gpt_oss", {"num_local_experts": 8}, {"num_experts": 8, "experts_per_token": 4}),
    ("gpt_oss", {}, {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "rope_theta": 150000}),
    (
        "gpt_oss",
        {},
        {
            "rope_theta": 150000,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "initial_context_length": 4096,
        },
    ),
]


@pytest.mark.parametrize(("family", "one", "other"), SAME)
def test_equivalent_configs_give_equal_designs(family: str, one: Any, other: Any) -> None:
    assert design(family, **one) == design(family, **other)


def test_which_layers_have_windows() -> None:
    assert windows(design("gemma2", sliding_window=5)) == [(4, 0), None, (4, 0), None]
    types = [[["local"], 2], [["global", "local"], 1]]
    found = design("gpt_neo", num_layers=4, attention_types=types, window_size=5)
    assert windows(found) == [(4, 0), (4, 0), None, (4, 0)]
    assert windows(design("gpt_oss")) == [(127, 0), None, (127, 0), None]
    assert windows(design("gemma3_text", sliding_window=5)) == [(4, 0)] * 5 + [None]
    found = design("gemma3_text", sliding_window=512, use_bidirectional_attention=True)
    assert windows(found) == [(256, 256)] * 5 + [None]
    assert not any(layer.options["is_causal"] for layer in found.layers)
    assert windows(design("olmo3", sliding_window=5)) == [(4, 0)] * 3 + [None]
    given = {"use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 2}
    found = design("smollm3", **given)
    assert windows(found) == [None, (4, 0), None, (4, 0)]
    assert [layer.rotary is None for layer in found.layers] == [False, True, False, True]


@pytest.mark.parametrize("family", ["mistral", "starcoder2", "gemma2", "gemma3_text"])
def test_a_window_of_a_bidirectional_decoder_counts_tokens_on_each_side(family: str) -> None:
    """`is_causal` and `use_bidirectional_attention` give windows different widths."""
    found = design(family, sliding_window=5, is_causal=False)
    assert set(windows(found)) - {None} == {(5, 5)}
    assert not any(layer.options["is_causal"] for layer in found.layers)


def test_the_key_heads_of_a_falcon() -> None:
    def heads(**values: Any) -> int:
        return int(design("falcon", **values).layers[0].num_kv_heads)

    new = {"new_decoder_architecture": True}
    assert heads() == heads(num_kv_heads=3) == 1
    assert heads(multi_query=False) == heads(**new) == 6
    assert heads(**new, num_kv_heads=2) == 2


def test_which_norms_a_falcon_has() -> None:
    def norms(**values: Any) -> tuple[bool, bool]:
        found = design("falcon", **values)
        return found.parallel, found.mlp_norm

    assert norms() == norms(num_ln_in_parallel_attn=1) == (True, False)
    assert norms(new_decoder_architecture=True) == (True, True)
    assert norms(new_decoder_architecture=True, num_ln_in_parallel_attn=1) == (True, False)
    assert norms(parallel_attn=False) == norms(parallel_attn=False, num_ln_in_parallel_attn=2)
    assert norms(parallel_attn=False) == (False, True)


def test_alibi_removes_the_length_limit_of_a_falcon() -> None:
    found = design("falcon", alibi=True)
    assert (found.max_seq_length, found.positions, found.layers[0].rotary) == (None, 0, None)
    assert found.layers[0].alibi == 0.5  # a head has four dimensions
    assert design("falcon").max_seq_length == 2048


def test_sliding_window_may_be_none_only_with_full_attention() -> None:
    family, values = FAMILIES["gemma2"], {**SMALL["gemma2"], "sliding_window": None}
    full = family.design(family.config({**values, "layer_types": [FULL] * 4}, "c"))
    assert windows(full) == [None] * 4
    with pytest.raises(ModelError, match="sliding_window is None, but layer_types"):
        family.design(family.config(values, "c"))


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "llama", "mistral", "qwen2", "qwen3"])
def test_only_dynamic_scaling_removes_the_length_limit(family: str) -> None:
    growing = {"rope_type": "dynamic", "factor": 2.0}
    limited = {"max_position_embeddings": 99, "head_dim": 8}
    assert design(family, **limited).max_seq_length == 99
    assert design(family, **limited, rope_parameters=growing).max_seq_length is None
    linear = {**growing, "rope_type": "linear"}
    assert design(family, **limited, rope_parameters=linear).max_seq_length == 99


def test_dynamic_scaling_of_full_attention_removes_the_length_limit() -> None:
    growing = {"rope_type": "dynamic", "factor": 2.0}
    assert design("gemma3_text", rope_parameters={FULL: growing}).max_seq_length is None


@pytest.mark.parametrize(
    ("family", "values", "words"),
    [
        ("bloom", {"n_embed": 24}, ["n_embed is 24", "hidden_size is 12", "set the same option"]),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, ["post_layernorm is True"]),
        ("bloom", {"pretraining_tp": 2, "slow_but_exact": True}, ["slow_but_exact is True"]),
        ("bloom", {"n_inner": 50}, ["n_inner is 50", "48"]),
        ("bloom", {"n_head": 5}, ["hidden_size is 12", "n_head is 5"]),
        ("gemma", {"use_bidirectional_attention": True}, ["use_bidirectional_attention is True"]),
        ("gemma", {"hidden_act": "tanh"}, ["hidden_act is 'tanh'"]),
        ("gemma", {"num_key_value_heads": 5}, ["num_attention_heads is 16", "heads is 5"]),
        ("gemma2", {"use_bidirectional_attention": True}, ["use_bidirectional_attention is True"]),
        ("gemma2", {"num_attention_heads": 6}, ["num_attention_heads is 6", "heads is 4"]),
        ("gemma2", {"attn_logit_softcapping": -1.0}, ["attn_logit_softcapping is -1.0"]),
        ("gemma2", {"layer_types": [FULL, "chunked_attention"] * 2}, ["chunked_attention"]),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping is 50.0"]),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, ["'rope_type'", FULL]),
        ("gpt_neo", {"num_layers": 2}, ["attention_types is", "2 kinds in total (num_layers)"]),
        ("gpt_neo", {"attention_types": [["global", 10**9]]}, ["attention_types is"]),
        (
            "gpt_neo",
            {"attention_layers": ["global"] * 24},
            ["attention_layers is", "set the same option"],
        ),
        ("gpt_neo", {"window_size": 0}, ["window_size is 0"]),
        ("falcon", {"num_attention_heads": 5}, ["hidden_size is 24", "num_attention_heads is 5"]),
        (
            "falcon",
            {"new_decoder_architecture": True, "num_kv_heads": 4},
            ["num_attention_heads is 6", "num_kv_heads is 4"],
        ),
        (
            "falcon",
            {"new_decoder_architecture": True, "parallel_attn": False},
            ["parallel_attn is False"],
        ),
        ("falcon", {"num_ln_in_parallel_attn": 2}, ["num_ln_in_parallel_attn is 2"]),
        (
            "falcon",
            {"multi_query": False, "num_kv_heads": 2},
            ["num_kv_heads is 2", "supports only 6"],
        ),
        ("falcon", {"is_causal": False}, ["is_causal is False"]),
        ("gemma3_text", {"is_causal": False, "use_bidirectional_attention": True}, ["is_causal"]),
        ("granite", {"attention_multiplier": 0}, ["attention_multiplier is 0"]),
        ("mistral", {"is_causal": 0}, ["is_causal is 0", "true or false"]),
        ("olmo", {"clip_qkv": 0}, ["clip_qkv is 0"]),
        ("olmo3", {"rope_theta": 500.0}, ["rope_theta is 500.0", "500000.0"]),
        ("phi", {"partial_rotary_factor": 0.3}, ["partial_rotary_factor is 0.3", "even"]),
        ("smollm3", {"no_rope_layers": [1, 1, 1]}, ["no_rope_layers is [1, 1, 1]", "of 4 numbers"]),
        ("smollm3", {"no_rope_layer_interval": 0}, ["no_rope_layer_interval is 0"]),
        ("smollm3", {"layer_types": [SLIDING] * 4}, ["layer_types", "use_sliding_window to true"]),
        ("stablelm", {"qk_layernorm": 1}, ["qk_layernorm is 1"]),
        ("stablelm", {"head_dim": 16}, ["head_dim is 16", "supports only 8"]),
        ("starcoder2", {"num_key_value_heads": 5}, ["num_attention_heads is 24", "heads is 5"]),
        ("mixtral", {"num_experts": 1}, ["num_experts_per_tok is 2", "num_experts is 1"]),
        ("qwen3_moe", {"num_experts": 7}, ["num_experts_per_tok is 8", "num_experts is 7"]),
        ("qwen3_moe", {"mlp_only_layers": [0.5]}, ["mlp_only_layers is [0.5]"]),
        ("olmo2", {"num_key_value_heads": 3}, ["num_attention_heads is 32", "heads is 3"]),
        ("opt", {"layer_norm_elementwise_affine": False}, ["layer_norm_elementwise_affine is"]),
        ("phi3", {"attention_bias": True}, ["attention_bias is True"]),
        ("phi3", {"partial_rotary_factor": 1.5}, ["partial_rotary_factor is 1.5", "12 dimensions"]),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2}}, ["'linear'", "longrope, su"]),
        ("phi3", {"rope_scaling": {"type": "su"}}, ["short_factor is None", "6 numbers"]),
        ("gpt_oss", {"hidden_act": "gelu"}, ["hidden_act is 'gelu'"]),
        ("gpt_oss", {"num_local_experts": 3}, ["num_experts_per_tok is 4", "experts is 3"]),
        ("gpt_oss", {"experts_per_token": 2}, ["experts_per_token is 2", "it supports only 4"]),
        ("gpt_oss", {"swiglu_limit": None, "swiglu_alpha": 0}, ["swiglu_alpha is 0"]),
        ("gpt_oss", {"quantization_config": MXFP4}, ["quantization_config", "'mxfp4'", "bfloat16"]),
    ],
)
def test_options_that_are_refused_by_name(family: str, values: Any, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        design(family, **values)
    for word in words:
        assert word in str(caught.value)


def test_gemma3_beside_images() -> None:
    inner = {**SMALL["gemma3_text"], "model_type": "gemma3_text"}
    outer = {"text_config": inner, "vision_config": {"image_size": 896}, "mm_tokens_per_image": 4}
    family = FAMILIES["gemma3"]
    whole = {**outer, "architectures": ["Gemma3ForConditionalGeneration"]}
    config = family.config(whole, "config.json")
    assert family.design(config) == design("gemma3_text")
    config.finish(family.harmless)

    def read(text: dict[str, Any]) -> None:
        family.design(family.config({"text_config": text}, "config.json"))

    with pytest.raises(ModelError, match=r"text_config: use_bidirectional_attention is True"):
        read({**inner, "use_bidirectional_attention": True})
    with pytest.raises(ModelError, match=r"text_config: is_causal is False"):
        read({**inner, "is_causal": False})
    with pytest.raises(ModelError, match=r"text_config: model_type is 'llama'"):
        read({"model_type": "llama"})
    with pytest.warns(UserWarning, match="text_config: qkv does not know new_key"):
        read({**inner, "new_key": 1})


def test_which_layers_have_experts() -> None:
    def without(**values: Any) -> set[int]:
        return set(design("qwen3_moe", **values).experts.without)

    assert without() == set()
    assert without(decoder_sparse_step=2) == {0, 2}
    assert without(decoder_sparse_step=2, mlp_only_layers=[1]) == {0, 1, 2}
