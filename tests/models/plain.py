"""Plain GPT-2 and Llama in float64, one text at a time; the plain BERT is in `support`.

They read the config of the model that they are compared with. An option that they do not support
raises a KeyError.
"""

import math

import numpy as np

from .support import plain_bert

TANH = math.sqrt(2 / math.pi)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(TANH * (x + 0.044715 * x**3))),
}


def attend(q, k, v, scale):
    """Return causal attention: each query in (heads, T, d) attends to keys up to its position."""
    scores = q @ np.swapaxes(k, 1, 2) * scale
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def heads_of(x, count):
    """Reshape (T, count * d) to (count, T, d)."""
    return x.reshape(len(x), count, -1).swapaxes(0, 1)


def joined(x):
    """Reshape (count, T, d) to (T, count * d)."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


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
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = p["wte.weight"][ids] + p["wpe.weight"][: len(ids)]
    for layer in range(config.get("n_layer", 12)):

        def linear(x, name, here=f"h.{layer}."):
            return x @ p[f"{here}{name}.weight"] + p[f"{here}{name}.bias"]

        parts = np.split(linear(norm(x, f"h.{layer}.ln_1"), "attn.c_attn"), 3, axis=1)
        q, k, v = (heads_of(part, heads) for part in parts)
        scale = q.shape[-1] ** -0.5 if config.get("scale_attn_weights", True) else 1
        scale /= layer + 1 if config.get("scale_attn_by_inverse_layer_idx", False) else 1
        x = x + linear(joined(attend(q, k, v, scale)), "attn.c_proj")
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
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * p[f"{name}.weight"]

    def turn(x):
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * float(base) ** (-np.arange(half) / half)
        a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = p["embed_tokens.weight"][ids]
    for layer in range(config.get("num_hidden_layers", 32)):

        def linear(x, name, here=f"layers.{layer}."):
            return x @ p[f"{here}{name}.weight"].T + p.get(f"{here}{name}.bias", 0)

        y = norm(x, f"layers.{layer}.input_layernorm")
        q = heads_of(linear(y, "self_attn.q_proj"), heads)
        k, v = (heads_of(linear(y, f"self_attn.{name}_proj"), groups) for name in "kv")
        k, v = (np.repeat(part, heads // groups, axis=0) for part in (turn(k), v))
        out = attend(turn(q), k, v, q.shape[-1] ** -0.5)
        x = x + linear(joined(out), "self_attn.o_proj")
        y = norm(x, f"layers.{layer}.post_attention_layernorm")
        gate = act(linear(y, "mlp.gate_proj"))
        x = x + linear(gate * linear(y, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "norm")
