"""Families of decoders and encoders in transformers, with configurations of small models."""

from dataclasses import dataclass
from typing import Any

import transformers

Configs = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """Classes of transformers, and the configurations in which their models are compared.

    The names of the classes begin with `prefix`. The first class is compared in every
    configuration. If `every` is set, the other classes are also compared in every configuration.
    Otherwise, the other classes are compared only in the first configuration.
    """

    prefix: str
    suffixes: tuple[str, ...]
    sizes: dict[str, Any]
    configs: Configs
    every: bool = False
    config: str = "Config"

    def classes(self) -> list[type]:
        return [self.class_of(suffix) for suffix in self.suffixes]

    def class_of(self, suffix: str) -> Any:
        return getattr(transformers, self.prefix + suffix)

    def config_of(self, name: str, **others: Any) -> Any:
        """Return the transformers config of this name, in which `others` override values."""
        return self.class_of(self.config)(**self.sizes | self.configs[name] | others)


DECODER = ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification")
ENCODER = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
PRETRAINED = (*ENCODER, "ForPreTraining")

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": 3,
}
ENCODER_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
}
ROBERTA_SIZES = ENCODER_SIZES | {"max_position_embeddings": 50}
GEMMA_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": 3,
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
WINDOWED_SIZES = GEMMA_SIZES | {"query_pre_attn_scalar": 10, "sliding_window": 6}
# the texts have 23 tokens: with an original limit of 16, the long factors apply
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.2, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 4.0, 9.0],
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
HALF_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "partial_rotary_factor": 0.5}
FULL, SLIDING = "full_attention", "sliding_attention"


def heads(*counts: int | None, **others: Any) -> dict[str, Any]:
    """Return values of a config: the number of query heads, of key heads if given, and others."""
    names = ("num_attention_heads", "num_key_value_heads")
    return dict(zip(names, counts, strict=False)) | others


WINDOWS: Configs = {
    "no window": heads(6, 2, sliding_window=7),
    "the last two in windows, tied": heads(
        3,
        1,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
        tie_word_embeddings=True,
    ),
    "every second in a window, wide base": heads(
        4,
        None,
        use_sliding_window=True,
        sliding_window=3,
        layer_types=[SLIDING, FULL, SLIDING],
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "to both sides": heads(
        6, 2, use_sliding_window=True, sliding_window=4, max_window_layers=2, is_causal=False
    ),
}
ROBERTA: Configs = {
    "three heads": heads(3, hidden_size=33, type_vocab_size=1),
    "padding is 7, gelu_new, untied": heads(
        5,
        hidden_size=40,
        hidden_act="gelu_new",
        pad_token_id=7,
        tie_word_embeddings=False,
        layer_norm_eps=1e-5,
        num_labels=3,
    ),
}
FAMILIES = {
    "bloom": Family(
        "Bloom",
        DECODER,
        {"vocab_size": 97, "n_layer": 3, "pad_token_id": 0, "num_labels": 3},
        {
            "eleven heads, untied": {
                "hidden_size": 44,
                "n_head": 11,
                "layer_norm_epsilon": 1e-3,
                "tie_word_embeddings": False,
                "pretraining_tp": 2,
            },
            "four heads": {"hidden_size": 32, "n_head": 4},
            "one head": {"hidden_size": 7, "n_head": 1, "slow_but_exact": True},
        },
    ),
    "gpt2": Family(
        "GPT2",
        ("LMHeadModel", "Model", "ForSequenceClassification"),
        {"vocab_size": 97, "n_positions": 64, "pad_token_id": 0},
        {
            "three heads": {"n_embd": 33, "n_head": 3, "n_layer": 3},
            "scaled by layer, relu, untied": {
                "n_embd": 40,
                "n_head": 5,
                "n_layer": 3,
                "n_inner": 50,
                "activation_function": "relu",
                "scale_attn_by_inverse_layer_idx": True,
                "tie_word_embeddings": False,
            },
            "not scaled": {
                "n_embd": 8,
                "n_head": 1,
                "n_layer": 2,
                "scale_attn_weights": False,
                "num_labels": 3,
            },
        },
        every=True,
    ),
    "gptj": Family(
        "GPTJ",
        DECODER[:3],
        {
            "vocab_size": 97,
            "n_embd": 48,
            "n_layer": 3,
            "n_positions": 64,
            "pad_token_id": 0,
            "num_labels": 3,
        },
        {
            "a part of each head": {"n_head": 3, "rotary_dim": 6},
            "whole heads, tied": {"n_head": 4, "rotary_dim": 12, "tie_word_embeddings": True},
            "one pair": {
                "n_head": 6,
                "rotary_dim": 2,
                "n_inner": 70,
                "activation_function": "relu",
                "layer_norm_epsilon": 1e-3,
            },
        },
    ),
    "gpt_neo": Family(
        "GPTNeo",
        DECODER[:3],
        {
            "vocab_size": 97,
            "hidden_size": 36,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "num_labels": 3,
        },
        {
            "windows in every second layer": {
                "num_heads": 3,
                "num_layers": 4,
                "attention_types": [[["global", "local"], 2]],
                "window_size": 5,
            },
            "windows first, relu, untied": {
                "num_heads": 4,
                "num_layers": 3,
                "attention_types": [[["local"], 2], [["global"], 1]],
                "window_size": 2,
                "intermediate_size": 70,
                "activation_function": "relu",
                "layer_norm_epsilon": 1e-3,
                "tie_word_embeddings": False,
            },
            "no windows": {"num_heads": 1, "num_layers": 2, "attention_types": [[["global"], 2]]},
        },
    ),
    "gpt_neox": Family(
        "GPTNeoX",
        DECODER,
        SIZES,
        {
            "in parallel": heads(3),
            "one part after the other": heads(
                6, use_parallel_residual=False, hidden_act="gelu_new", layer_norm_eps=1e-3
            ),
            "half of a head, no biases, tied": heads(
                4,
                rotary_pct=0.5,
                rotary_emb_base=500,
                attention_bias=False,
                tie_word_embeddings=True,
            ),
            "stretched": heads(3, rope_parameters=HALF_DYNAMIC, max_position_embeddings=10),
        },
    ),
    "opt": Family(
        "OPT",
        DECODER[:3],
        {
            "vocab_size": 97,
            "hidden_size": 36,
            "num_hidden_layers": 3,
            "ffn_dim": 50,
            "max_position_embeddings": 64,
            "num_labels": 3,
        },
        {
            "norms before": heads(3),
            "norms after, untied": heads(4, do_layer_norm_before=False, tie_word_embeddings=False),
            "no last norm, no biases, gelu": heads(
                1, _remove_final_layer_norm=True, enable_bias=False, activation_function="gelu"
            ),
        },
    ),
    "llama": Family(
        "Llama",
        DECODER,
        {key: size for key, size in SIZES.items() if key != "hidden_size"},
        {
            "six heads over two": heads(6, 2, hidden_size=48),
            "heads larger than their share, biases, tied": heads(
                5,
                1,
                hidden_size=40,
                head_dim=12,
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
            ),
            "one head, gelu, long scaling": heads(
                1,
                hidden_size=16,
                hidden_act="gelu",
                rms_norm_eps=1e-3,
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            ),
            "to both sides": heads(6, 2, hidden_size=48, is_causal=False),
        },
        every=True,
    ),
    "eurobert": Family(
        "EuroBert",
        ENCODER,
        {key: size for key, size in SIZES.items() if key != "hidden_size"},
        {
            "six heads over two": heads(
                6, 2, hidden_size=48, rope_parameters={"rope_type": "default", "rope_theta": 250.0}
            ),
            "heads larger than their share, biases, tied, mean": heads(
                5,
                hidden_size=40,
                head_dim=12,
                attention_bias=True,
                mlp_bias=True,
                tie_word_embeddings=True,
                classifier_pooling="mean",
            ),
            "one head, gelu, the first token": heads(
                1, hidden_size=16, hidden_act="gelu", rms_norm_eps=1e-3, classifier_pooling="bos"
            ),
        },
        every=True,
    ),
    "mistral": Family(
        "Mistral",
        DECODER,
        SIZES,
        {
            "a window of six": heads(6, 2, sliding_window=6),
            "a window of one, heads of ten, tied": heads(
                3, 3, head_dim=10, sliding_window=1, tie_word_embeddings=True
            ),
            "no window, one key head": heads(
                12,
                1,
                sliding_window=None,
                rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            ),
            "a window longer than the text": heads(2, 2, sliding_window=40),
            "to both sides": heads(6, 2, sliding_window=4, is_causal=False),
        },
        every=True,
    ),
    "qwen2": Family("Qwen2", DECODER, SIZES, WINDOWS, every=True),
    "qwen3": Family(
        "Qwen3",
        DECODER,
        SIZES | {"head_dim": 14},
        {name: config | {"attention_bias": "tied" in name} for name, config in WINDOWS.items()},
        every=True,
    ),
    "olmo2": Family(
        "Olmo2",
        DECODER[:3],
        SIZES,
        {
            "six heads over two": heads(6, 2),
            "all heads, tied, biases": heads(
                4, tie_word_embeddings=True, attention_bias=True, rms_norm_eps=1e-3
            ),
            "one key head, stretched, gelu": heads(3, 1, hidden_act="gelu", rope_parameters=LINEAR),
        },
    ),
    "phi3": Family(
        "Phi3",
        DECODER,
        SIZES,
        {
            "six heads over two": heads(6, 2),
            "all heads, a window, tied, gelu": heads(
                4, sliding_window=5, tie_word_embeddings=True, hidden_act="gelu"
            ),
            "half of each rotated": heads(
                3,
                1,
                rope_parameters={"rope_type": "default", "rope_theta": 50.0},
                partial_rotary_factor=0.5,
            ),
            "long": heads(
                6,
                3,
                original_max_position_embeddings=16,
                rope_parameters={**LONG_ROPE, "rope_theta": 1000.0},
            ),
            "short, three quarters rotated": heads(
                4,
                2,
                original_max_position_embeddings=32,
                rope_parameters={
                    **LONG_ROPE,
                    "rope_theta": 1000.0,
                    "partial_rotary_factor": 0.7,
                },
            ),
        },
    ),
    "gemma": Family(
        "Gemma",
        DECODER,
        GEMMA_SIZES,
        {
            "grouped": {},
            "untied, biases, as first published": heads(
                3,
                3,
                tie_word_embeddings=False,
                attention_bias=True,
                hidden_act="gelu",
                rope_parameters=LINEAR,
            ),
            "one key head, silu": {
                "hidden_act": "silu",
                "num_key_value_heads": 1,
                "hidden_size": 15,
            },
        },
    ),
    "gemma2": Family(
        "Gemma2",
        DECODER,
        WINDOWED_SIZES,
        {
            "in turn, another cap on logits": {"final_logit_softcapping": 3.0},
            "in turn": {},
            "untied, tight caps": heads(
                3,
                3,
                tie_word_embeddings=False,
                attn_logit_softcapping=0.7,
                final_logit_softcapping=2.0,
                layer_types=[FULL, FULL, SLIDING],
                sliding_window=1,
                rope_parameters=LINEAR,
            ),
            "no caps, biases, another scale": {
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "attention_bias": True,
                "query_pre_attn_scalar": 40,  # 3 gives scores of 56, where float32 is off by 1e-5
                "hidden_activation": "silu",
                "num_key_value_heads": 1,
            },
        },
    ),
    "gemma3": Family(
        "Gemma3",
        ("ForCausalLM", "TextModel", "TextForSequenceClassification"),
        WINDOWED_SIZES,
        {
            "one of six": {"num_hidden_layers": 7},
            "one of two, two bases, untied": {
                "layer_types": [SLIDING, FULL, SLIDING],
                "tie_word_embeddings": False,
                "final_logit_softcapping": 3.0,
                "query_pre_attn_scalar": 5,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                },
            },
            "to both sides, biases": heads(
                3,
                1,
                layer_types=[SLIDING, FULL, SLIDING],
                use_bidirectional_attention=True,
                sliding_window=7,
                attention_bias=True,
                hidden_size=15,
            ),
        },
        config="TextConfig",
    ),
    "smollm3": Family(
        "SmolLM3",
        DECODER,
        SIZES,
        {
            "every second layer rotated": heads(6, 2, no_rope_layer_interval=2),
            "windows without positions, untied, biases": heads(
                4,
                None,
                no_rope_layers=[0, 1, 0, 1],
                use_sliding_window=True,
                sliding_window=5,
                tie_word_embeddings=False,
                attention_bias=True,
                mlp_bias=True,
            ),
            "no positions": heads(3, 1, no_rope_layers=[0, 0, 0], hidden_act="gelu"),
            "windows first, to both sides, stretched": heads(
                6,
                3,
                use_sliding_window=True,
                sliding_window=3,
                layer_types=[SLIDING, FULL, SLIDING],
                is_causal=False,
                rope_parameters=LINEAR,
            ),
        },
    ),
    "granite": Family(
        "Granite",
        ("ForCausalLM", "Model"),
        SIZES,
        {
            "every factor": heads(
                6,
                2,
                attention_multiplier=0.3,
                residual_multiplier=0.22,
                embedding_multiplier=12.0,
                logits_scaling=8.0,
            ),
            "no factors, tied, biases": heads(
                3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
            ),
            "to both sides, gelu": heads(
                4,
                attention_multiplier=0.2,
                residual_multiplier=1.5,
                is_causal=False,
                hidden_act="gelu",
            ),
        },
        every=True,
    ),
    "olmo": Family(
        "Olmo",
        DECODER[:3],
        SIZES,
        {
            "six heads over two": heads(6, 2),
            "all heads, tied, biases": heads(4, tie_word_embeddings=True, attention_bias=True),
            "clipped queries, keys and values": heads(6, 3, clip_qkv=0.7),
            "one key head, stretched, gelu": heads(3, 1, hidden_act="gelu", rope_parameters=LINEAR),
        },
    ),
    "olmo3": Family(
        "Olmo3",
        DECODER[:3],
        SIZES | {"sliding_window": 5},
        {
            "three of four in windows": heads(6, 2, num_hidden_layers=5),
            "two bases, tied, biases": heads(
                4,
                layer_types=[SLIDING, FULL, FULL],
                tie_word_embeddings=True,
                attention_bias=True,
                rms_norm_eps=1e-3,
                rope_parameters={
                    FULL: {"rope_type": "linear", "rope_theta": 300.0, "factor": 8.0},
                    SLIDING: {"rope_type": "default", "rope_theta": 20.0},
                },
            ),
            "to both sides, one key head": heads(
                3, 1, layer_types=[FULL, SLIDING, SLIDING], is_causal=False
            ),
        },
    ),
    "starcoder2": Family(
        "Starcoder2",
        DECODER,
        SIZES,
        {
            "a window of six": heads(6, 2, sliding_window=6),
            "no window, no biases, untied, gelu": heads(
                4,
                4,
                use_bias=False,
                tie_word_embeddings=False,
                hidden_act="gelu",
                norm_epsilon=1e-3,
                rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            ),
            "one key head": heads(3, 1),
        },
    ),
    "stablelm": Family(
        "StableLm",
        DECODER,
        SIZES,
        {
            "a quarter of each head": heads(6, 2),
            "in parallel, biases, tied, gelu": heads(
                3,
                3,
                use_parallel_residual=True,
                use_qkv_bias=True,
                tie_word_embeddings=True,
                hidden_act="gelu",
                layer_norm_eps=1e-3,
            ),
            "a norm for each head": heads(6, 2, use_parallel_residual=True, qk_layernorm=True),
            "half of each head, stretched": heads(
                4, 1, rope_parameters=HALF_DYNAMIC, max_position_embeddings=10
            ),
        },
    ),
    "phi": Family(
        "Phi",
        DECODER,
        SIZES,
        {
            "half of each head": heads(6),
            "queries and keys normalised, tied, relu": heads(
                6,
                2,
                qk_layernorm=True,
                tie_word_embeddings=True,
                hidden_act="relu",
                layer_norm_eps=1e-3,
            ),
            "a quarter of each head, wide base": heads(
                3,
                1,
                partial_rotary_factor=0.25,
                rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            ),
        },
    ),
    "falcon": Family(
        "Falcon",
        DECODER,
        {
            "vocab_size": 97,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "num_labels": 3,
        },
        {
            "one key head": heads(6),
            "new, two norms, biases": heads(
                6, num_kv_heads=2, new_decoder_architecture=True, bias=True, ffn_hidden_size=70
            ),
            "new, one norm, stretched": heads(
                4, new_decoder_architecture=True, num_ln_in_parallel_attn=1, rope_parameters=LINEAR
            ),
            "in turn, all key heads, untied, relu": heads(
                3,
                multi_query=False,
                parallel_attn=False,
                bias=True,
                tie_word_embeddings=False,
                activation="relu",
                layer_norm_epsilon=1e-3,
            ),
        },
        every=True,
    ),
    "mixtral": Family(
        "Mixtral",
        DECODER,
        SIZES | {"intermediate_size": 20, "num_local_experts": 5},
        {
            "two of five experts": heads(6, 2),
            "all experts, a window, tied, gelu": heads(
                4,
                4,
                num_experts_per_tok=5,
                sliding_window=5,
                tie_word_embeddings=True,
                hidden_act="gelu",
            ),
            "one of five experts": heads(3, 1, head_dim=10, num_experts_per_tok=1),
        },
    ),
    "qwen3_moe": Family(
        "Qwen3Moe",
        DECODER,
        SIZES
        | {
            "intermediate_size": 30,
            "moe_intermediate_size": 20,
            "num_experts": 5,
            "num_experts_per_tok": 2,
        },
        {
            "two of five experts": heads(6, 2),
            "weights that add up to 1, in every second layer, a window, tied": heads(
                4,
                4,
                norm_topk_prob=True,
                decoder_sparse_step=2,
                use_sliding_window=True,
                sliding_window=5,
                tie_word_embeddings=True,
            ),
            "not in the first layer, biases": heads(
                3, 1, head_dim=10, mlp_only_layers=[0], attention_bias=True
            ),
        },
    ),
    "gpt_oss": Family(
        "GptOss",
        DECODER,
        SIZES
        | {
            "hidden_size": 33,
            "intermediate_size": 20,
            "head_dim": 8,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
        },
        {
            "two of five experts": heads(6, 2),
            "held within little, tied, no biases": heads(
                3,
                1,
                swiglu_limit=0.6,
                swiglu_alpha=0.9,
                tie_word_embeddings=True,
                attention_bias=False,
                num_experts_per_tok=5,
                layer_types=[FULL, FULL, SLIDING],
                sliding_window=1,
                rope_parameters={"rope_type": "default", "rope_theta": 300.0},
            ),
            "one of five experts, stretched": heads(
                5,
                5,
                num_experts_per_tok=1,
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 1000.0,
                    "factor": 4.0,
                    "beta_fast": 4.0,
                    "beta_slow": 1.0,
                    "truncate": False,
                    "original_max_position_embeddings": 16,
                },
            ),
        },
    ),
    "bert": Family(
        "Bert",
        PRETRAINED,
        ENCODER_SIZES,
        {
            "three heads of eleven": heads(3, hidden_size=33),
            "untied, relu, one segment": heads(
                5,
                hidden_size=40,
                hidden_act="relu",
                type_vocab_size=1,
                tie_word_embeddings=False,
                layer_norm_eps=1e-3,
                num_labels=4,
            ),
        },
        every=True,
    ),
    "albert": Family(
        "Albert",
        PRETRAINED,
        ENCODER_SIZES,
        {
            "one set for all": heads(3, hidden_size=36, embedding_size=11),
            "two groups of five layers, untied": heads(
                5,
                hidden_size=20,
                embedding_size=20,
                num_hidden_layers=5,
                num_hidden_groups=2,
                hidden_act="relu",
                tie_word_embeddings=False,
                layer_norm_eps=1e-3,
                num_labels=4,
            ),
            "three groups of two": {
                **heads(4, hidden_size=32, embedding_size=40),
                **{"num_hidden_layers": 4, "num_hidden_groups": 3, "inner_group_num": 2},
                "type_vocab_size": 1,
            },
        },
        every=True,
    ),
    "electra": Family(
        "Electra",
        PRETRAINED,
        ENCODER_SIZES,
        {
            "narrow tables": heads(3, hidden_size=36, embedding_size=11),
            "wide tables, relu, untied": heads(
                5,
                hidden_size=20,
                embedding_size=31,
                hidden_act="relu",
                tie_word_embeddings=False,
                layer_norm_eps=1e-3,
                num_labels=4,
            ),
            "tables of the size of the vectors": {
                **heads(4, hidden_size=32, embedding_size=32),
                "type_vocab_size": 1,
            },
        },
        every=True,
    ),
    "distilbert": Family(
        "DistilBert",
        ENCODER,
        {"vocab_size": 97, "hidden_dim": 50, "n_layers": 3, "max_position_embeddings": 64},
        {
            "three heads": {"dim": 33, "n_heads": 3},
            "positions made of sines, relu, untied": {
                "dim": 40,
                "n_heads": 5,
                "sinusoidal_pos_embds": True,
                "activation": "relu",
                "tie_word_embeddings": False,
                "num_labels": 3,
            },
        },
        every=True,
    ),
    "roberta": Family("Roberta", ENCODER, ROBERTA_SIZES, ROBERTA, every=True),
    "xlm-roberta": Family("XLMRoberta", ENCODER[:3], ROBERTA_SIZES, ROBERTA, every=True),
    "camembert": Family("Camembert", ("ForMaskedLM",), ROBERTA_SIZES, ROBERTA, every=True),
    "mpnet": Family(
        "MPNet",
        ENCODER,
        ROBERTA_SIZES,
        {
            "three heads": heads(3, hidden_size=33),
            "five heads, relu, untied": heads(
                5,
                hidden_size=40,
                hidden_act="relu",
                tie_word_embeddings=False,
                layer_norm_eps=1e-5,
                num_labels=3,
            ),
        },
        every=True,
    ),
    "deberta-v2": Family(
        "DebertaV2",
        ENCODER,
        ENCODER_SIZES,
        {
            "as DeBERTa v3: buckets, shared projections": heads(
                3,
                hidden_size=36,
                relative_attention=True,
                position_buckets=8,
                max_relative_positions=-1,
                position_biased_input=False,
                pos_att_type=["p2c", "c2p"],
                share_att_key=True,
                norm_rel_ebd="layer_norm",
                num_labels=3,
            ),
            "separate projections, positions, segments, few distances, untied": heads(
                5,
                hidden_size=40,
                relative_attention=True,
                max_relative_positions=7,
                pos_att_type="c2p|p2c",
                type_vocab_size=2,
                hidden_act="gelu_new",
                layer_norm_eps=1e-5,
                tie_word_embeddings=False,
            ),
            "token to position only, another head": heads(
                2,
                hidden_size=24,
                relative_attention=True,
                position_buckets=6,
                max_relative_positions=20,
                pos_att_type=["c2p"],
                pooler_hidden_act="tanh",
                legacy=False,
            ),
            "as DeBERTa v2: a convolution": heads(
                2,
                hidden_size=24,
                relative_attention=True,
                position_buckets=6,
                max_relative_positions=20,
                position_biased_input=False,
                pos_att_type=["p2c", "c2p"],
                share_att_key=True,
                norm_rel_ebd="layer_norm",
                conv_kernel_size=3,
                conv_act="gelu",
            ),
            "a convolution of five tokens, in groups, tanh": heads(
                2, hidden_size=24, conv_kernel_size=5, conv_groups=4
            ),
            "position to token only": heads(
                1,
                hidden_size=12,
                relative_attention=True,
                position_buckets=6,
                max_relative_positions=20,
                position_biased_input=False,
                pos_att_type=["p2c"],
                share_att_key=True,
            ),
            "relative positions that meet nothing": heads(
                2, hidden_size=12, relative_attention=True, pos_att_type=None
            ),
            "no relative positions": heads(2, hidden_size=12, pos_att_type=["p2c", "c2p"]),
        },
        every=True,
    ),
    "gte": Family(
        "Gte",
        ENCODER,
        ENCODER_SIZES,
        {
            "three heads": heads(3, hidden_size=36),
            "five heads, silu, no segments, linear, untied": heads(
                5,
                hidden_size=40,
                hidden_act="silu",
                type_vocab_size=0,
                layer_norm_eps=1e-3,
                rope_parameters=LINEAR | {"rope_theta": 50.0},
                tie_word_embeddings=False,
                num_labels=3,
            ),
        },
        every=True,
    ),
    "jina_embeddings_v3": Family(
        "JinaEmbeddingsV3",
        ENCODER,
        ENCODER_SIZES,
        {
            "three heads": heads(3, hidden_size=36),
            "five heads, relu, two segments, untied": heads(
                5,
                hidden_size=40,
                hidden_act="relu",
                type_vocab_size=2,
                layer_norm_eps=1e-3,
                rope_parameters={"rope_type": "default", "rope_theta": 50.0},
                tie_word_embeddings=False,
                num_labels=3,
            ),
        },
        every=True,
    ),
    "nomic_bert": Family(
        "NomicBert",
        ENCODER,
        ENCODER_SIZES,
        {
            "three heads": heads(3, hidden_size=36),
            "heads of ten, gelu, linear, untied": heads(
                5,
                hidden_size=32,
                head_dim=10,
                hidden_act="gelu",
                rope_parameters=LINEAR | {"rope_theta": 50.0},
                tie_word_embeddings=False,
                layer_norm_eps=1e-3,
                num_labels=4,
                type_vocab_size=1,
            ),
        },
        every=True,
    ),
    "modernbert": Family(
        "ModernBert",
        ENCODER,
        ENCODER_SIZES | {"num_hidden_layers": 4, "pad_token_id": 0},
        {
            "three heads, windows of seven": heads(3, hidden_size=36, local_attention=7),
            "every bias, five heads, windows first, mean, untied": heads(
                5,
                hidden_size=40,
                hidden_activation="silu",
                classifier_activation="relu",
                classifier_pooling="mean",
                classifier_bias=True,
                attention_bias=True,
                mlp_bias=True,
                norm_bias=True,
                decoder_bias=False,
                norm_eps=1e-3,
                local_attention=12,
                layer_types=[SLIDING, SLIDING, FULL, SLIDING],
                rope_parameters={
                    FULL: {"rope_type": "default", "rope_theta": 500.0},
                    SLIDING: {"rope_type": "linear", "factor": 3.0, "rope_theta": 20.0},
                },
                tie_word_embeddings=False,
                num_labels=3,
            ),
        },
        every=True,
    ),
}
