"""Plain GPT-2 and Llama in float64, one text at a time; the plain BERT is in `support`.

They read the config of the model that they are compared with. An option that they do not support
raises a KeyError.
"""

import numpy as np

from .formulas import ACTIVATIONS, attend, causal, layer_norm, rms_norm
from .support import plain_bert


def doubles(tensors, prefix):
    """Convert tensors to float64, and remove `prefix` from their names.

    The names have this prefix if the model has a head.
    """
    return {name.removeprefix(prefix): array.astype(np.float64) for name, array in tensors.items()}


def plain_bert_of(tensors, config, ids):
    """Return BERT's last hidden states (T, D)."""
    full = {
        **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
        **config,
    }
    return plain_bert(doubles(tensors, "bert."), full, ids)[0][-1]


def plain_gpt2(tensors, config, ids):
    """Return GPT-2's last hidden states (T, D)."""
    p = doubles(tensors, "transformer.")
    act = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    eps, heads = config.get("layer_norm_epsilon", 1e-5), config.get("n_head", 12)

    def norm(x, name):
        return layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"], eps)

    x = p["wte.weight"][ids] + p["wpe.weight"][: len(ids)]
    for layer in range(config.get("n_layer", 12)):

        def linear(x, name, here=f"h.{layer}."):
            return x @ p[f"{here}{name}.weight"] + p[f"{here}{name}.bias"]

        q, k, v = np.split(linear(norm(x, f"h.{layer}.ln_1"), "attn.c_attn"), 3, axis=1)
        scale = (heads / q.shape[1]) ** 0.5 if config.get("scale_attn_weights", True) else 1
        scale /= layer + 1 if config.get("scale_attn_by_inverse_layer_idx", False) else 1
        out, _ = attend(q, k, v, heads, scale, visible=causal(len(ids)))
        x = x + linear(out, "attn.c_proj")
        x = x + linear(act(linear(norm(x, f"h.{layer}.ln_2"), "mlp.c_fc")), "mlp.c_proj")
    return norm(x, "ln_f")


def plain_llama(tensors, config, ids):
    """Return Llama's last hidden states (T, D), with unscaled rotary positions."""
    if config.get("rope_scaling") is not None or config.get("rope_parameters") is not None:
        raise KeyError("rope_scaling")
    p = doubles(tensors, "model.")
    act = ACTIVATIONS[config.get("hidden_act", "silu")]
    eps, heads = config.get("rms_norm_eps", 1e-6), config.get("num_attention_heads", 32)
    base = config.get("rope_theta") or 10000.0
    groups = config.get("num_key_value_heads") or heads

    def norm(x, name):
        return rms_norm(x, p[f"{name}.weight"], eps)

    def turn(x, count):
        a, b = np.split(x.reshape(len(ids), count, -1), 2, axis=-1)
        speeds = float(base) ** (-np.arange(a.shape[-1]) / a.shape[-1])
        angles = np.arange(len(ids))[:, None, None] * speeds
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = p["embed_tokens.weight"][ids]
    for layer in range(config.get("num_hidden_layers", 32)):

        def linear(x, name, here=f"layers.{layer}."):
            return x @ p[f"{here}{name}.weight"].T + p.get(f"{here}{name}.bias", 0)

        y = norm(x, f"layers.{layer}.input_layernorm")
        q, k, v = (linear(y, f"self_attn.{name}_proj") for name in "qkv")
        parts = turn(k, groups), v.reshape(len(ids), groups, -1)
        k, v = (np.repeat(part, heads // groups, axis=1).reshape(len(ids), -1) for part in parts)
        q = turn(q, heads).reshape(len(ids), -1)
        x = x + linear(attend(q, k, v, heads, visible=causal(len(ids)))[0], "self_attn.o_proj")
        y = norm(x, f"layers.{layer}.post_attention_layernorm")
        gate = act(linear(y, "mlp.gate_proj"))
        x = x + linear(gate * linear(y, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "norm")
