"""Small models of families other than BERT, with the tensor names of each family's files."""

import json

import numpy as np
from safetensors.numpy import save_file

from qkv.models.families import design_of
from qkv.models.files.names import Storage

from .sizes import SMALL
from .support import tokenizer_json

BODY = {
    **{"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3},
    "intermediate_size": 20,
}
TEXT = {"vocab_size": 30, **BODY, "max_position_embeddings": 16}
GROUPED = {  # two query heads for each key head
    **{**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6},
    **{"rms_norm_eps": 1e-6, "rope_theta": 10000.0},
}
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 2}
# The configs of all families except BERT, which is in `support.py`. For most families, `sizes.py`
# gives the sizes and a list of transformers classes, and the config names the first class. The
# configs below are different: tests need their values, or need a model with a classifier.
CONFIGS = {
    name: {"model_type": name, "architectures": [kinds[0]], **sizes}
    for name, (sizes, kinds) in SMALL.items()
    if name != "bert"
} | {
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 30,
        "n_embd": 12,
        "n_layer": 2,
        "n_head": 3,
        "n_inner": 20,
        "n_positions": 16,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    "albert": {
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        **{**TEXT, "num_hidden_layers": 3},
        "embedding_size": 8,
        "num_hidden_groups": 2,
        "inner_group_num": 1,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    },
    "clip": {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": 6,
        "text_config": {"model_type": "clip_text_model", **TEXT, "eos_token_id": 3},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 10,
            **IMAGES,
        },
    },
    "dinov2": {
        "model_type": "dinov2",
        "architectures": ["Dinov2ForImageClassification"],
        **{key: size for key, size in BODY.items() if key != "intermediate_size"},
        **IMAGES,
        "mlp_ratio": 2,
        "layer_norm_eps": 1e-6,
        "qkv_bias": True,
        "use_swiglu_ffn": True,
    },
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **GROUPED,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "gemma2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        **GROUPED,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 5.0,
        "sliding_window": 4,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "tie_word_embeddings": True,
    },
    "modernbert": {
        "model_type": "modernbert",
        "architectures": ["ModernBertForSequenceClassification"],
        **{**TEXT, "num_hidden_layers": 3},
        "global_attn_every_n_layers": 3,
        "local_attention": 4,
        "norm_eps": 1e-5,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "classifier_pooling": "mean",
        "norm_bias": False,
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 30,
        "d_model": 12,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 3,
        "d_kv": 5,
        "d_ff": 20,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "decoder_start_token_id": 2,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        **BODY,
        **IMAGES,
        "layer_norm_eps": 1e-12,
        "qkv_bias": True,
    },
}
# The families that give logits for the next token.
WRITERS = [
    name
    for name, config in CONFIGS.items()
    if config["architectures"][0].endswith(("CausalLM", "LMHeadModel"))
]


def arrays_of(config, seed=0, spread=0.5):
    """Return random tensors with the names and shapes that files of this config have.

    Names and shapes come from the family's description, which the comparison with transformers
    checks. `spread` is the standard deviation; a smaller value makes each softmax less sharp.
    """
    design, names = design_of(config, "config.json")
    rng = np.random.default_rng(seed)
    parameters = {
        name: (rng.standard_normal(shape) * spread + ("norm" in name)).astype(np.float32)
        for name, shape in design.shapes()
    }
    found = Storage(names, parameters).to_files()
    return {name: np.asarray(array, order="C") for name, array in found.items()}


def write_small(path, config, seed=0, spread=0.5):
    """Write a model of this config with the tokenizer of the small BERT; return its folder."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if "vocab_size" in config or "text_config" in config:
        (path / "tokenizer.json").write_text(tokenizer_json())
    save_file(arrays_of(config, seed, spread), path / "model.safetensors", {"format": "pt"})
    return path
