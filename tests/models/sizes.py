"""The sizes of a small model of each family, for tests with and without torch."""

from __future__ import annotations

from typing import Any

ENCODER = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "pad_token_id": 1,
}
DECODER = {**ENCODER, "num_key_value_heads": 2, "head_dim": 8}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
NEO = [[["local", "global"], 1], [["local"], 1]]
LOOKS = {
    **{"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1},
    **{"num_attention_heads": 1, "image_size": 8, "patch_size": 4},
}
T5 = {
    **{"vocab_size": 40, "d_model": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4},
    **{"d_kv": 8, "d_ff": 20, "relative_attention_num_buckets": 10},
    **{"relative_attention_max_distance": 10, "pad_token_id": 0, "decoder_start_token_id": 0},
}
CLIP_TEXT = {
    **{key: value for key, value in ENCODER.items() if key != "pad_token_id"},
    **{"eos_token_id": 7, "projection_dim": 10},
}
CLIP_VISION = {
    **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_channels": 2},
    **{"intermediate_size": 20, "image_size": 12, "patch_size": 4, "projection_dim": 10},
}
# The sizes of a small model, and the transformers classes whose logits are compared.
SMALL: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "albert": (
        {**ENCODER, "embedding_size": 12, "num_hidden_groups": 2},
        ("AlbertForMaskedLM", "AlbertForSequenceClassification"),
    ),
    "bert": (ENCODER, ("BertForMaskedLM", "BertForSequenceClassification")),
    "bloom": (
        {"vocab_size": 40, "hidden_size": 24, "n_layer": 3, "n_head": 4, "pad_token_id": 1},
        ("BloomForCausalLM", "BloomForSequenceClassification"),
    ),
    "camembert": (ENCODER, ("CamembertForMaskedLM", "CamembertForSequenceClassification")),
    "clip": (
        {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION, "projection_dim": 10},
        ("CLIPModel", "CLIPForImageClassification"),
    ),
    "clip_text_model": (CLIP_TEXT, ("CLIPTextModelWithProjection", "CLIPTextModel")),
    "clip_vision_model": (CLIP_VISION, ("CLIPVisionModelWithProjection", "CLIPVisionModel")),
    "deberta-v2": (
        {
            **{**ENCODER, "relative_attention": True, "position_buckets": 6},
            **{"pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm"},
        },
        ("DebertaV2ForMaskedLM", "DebertaV2ForSequenceClassification"),
    ),
    "dinov2": (
        {
            **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"mlp_ratio": 2, "image_size": 12, "patch_size": 4, "num_channels": 2},
        },
        ("Dinov2ForImageClassification",),
    ),
    "distilbert": (
        {
            **{"vocab_size": 40, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 20},
            **{"max_position_embeddings": 32, "pad_token_id": 1},
        },
        ("DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    ),
    "electra": (
        {**ENCODER, "embedding_size": 12},
        ("ElectraForMaskedLM", "ElectraForPreTraining", "ElectraForSequenceClassification"),
    ),
    "eurobert": (DECODER, ("EuroBertForMaskedLM", "EuroBertForSequenceClassification")),
    "falcon": (
        {
            **{key: size for key, size in ENCODER.items() if key != "intermediate_size"},
            **{"num_kv_heads": 2, "ffn_hidden_size": 20, "new_decoder_architecture": True},
        },
        ("FalconForCausalLM", "FalconForSequenceClassification"),
    ),
    "gemma": (DECODER, ("GemmaForCausalLM", "GemmaForSequenceClassification")),
    "gemma2": (
        {**DECODER, "sliding_window": 4, "query_pre_attn_scalar": 20},
        ("Gemma2ForCausalLM", "Gemma2ForSequenceClassification"),
    ),
    "gemma3": (
        {
            "text_config": {**DECODER, "sliding_window": 4, "layer_types": WINDOWS},
            "vision_config": LOOKS,
            "mm_tokens_per_image": 4,
        },
        ("Gemma3ForConditionalGeneration",),
    ),
    "gemma3_text": (
        {**DECODER, "sliding_window": 4, "query_pre_attn_scalar": 20, "layer_types": WINDOWS},
        ("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
    ),
    "gpt2": (
        {
            **{"vocab_size": 40, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32},
            **{"n_inner": 20, "pad_token_id": 1},
        },
        ("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
    ),
    "gpt_neo": (
        {
            **{"vocab_size": 40, "hidden_size": 24, "num_layers": 3, "num_heads": 4},
            **{"attention_types": NEO, "window_size": 4, "max_position_embeddings": 32},
            **{"intermediate_size": 20, "pad_token_id": 1},
        },
        ("GPTNeoForCausalLM", "GPTNeoForSequenceClassification"),
    ),
    "gpt_neox": (
        {**ENCODER, "num_attention_heads": 3, "rotary_pct": 0.5, "rotary_emb_base": 300},
        ("GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"),
    ),
    "gpt_oss": (
        {
            **{**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        ("GptOssForCausalLM", "GptOssForSequenceClassification"),
    ),
    "gptj": (
        {
            **{"vocab_size": 40, "n_embd": 24, "n_layer": 3, "n_head": 3},
            **{"n_inner": 20, "rotary_dim": 4, "pad_token_id": 1},
        },
        ("GPTJForCausalLM", "GPTJForSequenceClassification"),
    ),
    "granite": (
        {**DECODER, "attention_multiplier": 0.3, "residual_multiplier": 0.22}
        | {"embedding_multiplier": 3.0, "logits_scaling": 2.0},
        ("GraniteForCausalLM",),
    ),
    "gte": (ENCODER, ("GteForMaskedLM", "GteForSequenceClassification")),
    "jina_embeddings_v3": (
        ENCODER,
        ("JinaEmbeddingsV3ForMaskedLM", "JinaEmbeddingsV3ForSequenceClassification"),
    ),
    "llama": (DECODER, ("LlamaForCausalLM", "LlamaForSequenceClassification")),
    "mistral": (
        {**DECODER, "sliding_window": 4},
        ("MistralForCausalLM", "MistralForSequenceClassification"),
    ),
    "mixtral": (
        {**DECODER, "num_local_experts": 4, "sliding_window": 4},
        ("MixtralForCausalLM", "MixtralForSequenceClassification"),
    ),
    "modernbert": (
        {**ENCODER, "local_attention": 4, "layer_types": WINDOWS},
        ("ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    ),
    "mpnet": (ENCODER, ("MPNetForMaskedLM", "MPNetForSequenceClassification")),
    "mt5": (T5, ("MT5ForConditionalGeneration",)),
    "olmo": (DECODER, ("OlmoForCausalLM", "OlmoForSequenceClassification")),
    "olmo3": (
        {**DECODER, "sliding_window": 4, "layer_types": WINDOWS},
        ("Olmo3ForCausalLM", "Olmo3ForSequenceClassification"),
    ),
    "olmo2": (DECODER, ("Olmo2ForCausalLM", "Olmo2ForSequenceClassification")),
    "nomic_bert": (
        {**ENCODER, "layer_norm_eps": 1e-12},
        ("NomicBertForMaskedLM", "NomicBertForSequenceClassification"),
    ),
    "opt": (
        {**{k: v for k, v in ENCODER.items() if k != "intermediate_size"}, "ffn_dim": 20},
        ("OPTForCausalLM", "OPTForSequenceClassification"),
    ),
    "phi": (
        {**{k: v for k, v in DECODER.items() if k != "head_dim"}, "num_attention_heads": 3}
        | {"num_key_value_heads": 1},
        ("PhiForCausalLM", "PhiForSequenceClassification"),
    ),
    "phi3": (DECODER, ("Phi3ForCausalLM", "Phi3ForSequenceClassification")),
    "qwen2": (
        {**DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        ("Qwen2ForCausalLM", "Qwen2ForSequenceClassification"),
    ),
    "qwen3": (
        {**DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"),
    ),
    "qwen3_moe": (
        {
            **{**DECODER, "num_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 12, "mlp_only_layers": [1]},
        },
        ("Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"),
    ),
    "roberta": (ENCODER, ("RobertaForMaskedLM", "RobertaForSequenceClassification")),
    "smollm3": (
        {**DECODER, "no_rope_layer_interval": 2},
        ("SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification"),
    ),
    "stablelm": (
        {**ENCODER, "num_attention_heads": 3, "num_key_value_heads": 3},
        ("StableLmForCausalLM", "StableLmForSequenceClassification"),
    ),
    "starcoder2": (
        {**DECODER, "sliding_window": 4},
        ("Starcoder2ForCausalLM", "Starcoder2ForSequenceClassification"),
    ),
    "t5": (T5, ("T5ForConditionalGeneration", "T5EncoderModel")),
    "vit": (
        {
            **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"intermediate_size": 20, "image_size": 12, "patch_size": 4, "num_channels": 2},
        },
        ("ViTForImageClassification",),
    ),
    "xlm-roberta": (ENCODER, ("XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification")),
}

IMAGES = ("clip", "clip_vision_model", "dinov2", "vit")  # families that read images
MIXED = ("gpt_oss", "mixtral", "qwen3_moe")  # mixture-of-experts families
