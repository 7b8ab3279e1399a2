"""A decoder step by step: ids to logits, with weights by the names that Llama's files have.

Sources: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary positions), Ainslie et al. 2023
(grouped heads), Shazeer 2020 (SwiGLU), Zhang and Sennrich 2019 (RMSNorm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.steps import RIGHT as ATTENTION
from qkv.marking.tasks.attention.steps import Sizes

CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 11,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 500.0,
        "tie_word_embeddings": True,
    }
)


@cache
def small_model() -> tuple[dict[str, Array], dict[str, Any]]:
    """The weights, by their names in a file and (out, in), and the config of a small Llama.

    >>> weights, config = small_model()
    >>> weights["model.layers.0.self_attn.k_proj.weight"].shape
    (12, 24)
    """
    config = dict(CONFIG)
    rng = np.random.default_rng(0)
    width, wide = config["hidden_size"], config["intermediate_size"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (wide, width),
        "mlp.up_proj": (wide, width),
        "mlp.down_proj": (width, wide),
    }
    embed = rng.normal(size=(config["vocab_size"], width))
    weights: dict[str, Array] = {"model.embed_tokens.weight": embed}
    for layer in range(config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        for name, (rows, columns) in shapes.items():
            weights[f"{before}{name}.weight"] = rng.normal(size=(rows, columns)) * 3 / columns**0.5
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{before}{norm}.weight"] = rng.uniform(0.5, 1.5, width)
    weights["model.norm.weight"] = rng.uniform(0.5, 1.5, width)
    return weights, config


@dataclass(frozen=True)
class Text:
    """One call, or as many as are needed to write some words: ids (T,) for the small model.

    Attributes:
        ids: of the words given.
        write: how many words are to be written after them; with 0 the logits are asked for.
    """

    ids: Array
    write: int = 0

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        written = {"words to write": self.write} if self.write else {}
        return {
            "ids": self.ids,
            "weights, config": "qkv.marking.tasks.decoder.small_model()",
        } | written


def greedy(ids: Array, count: int, logits: Callable[[Array], Array]) -> Array:
    """The ids of the words with the largest logits, one after the other."""
    for _ in range(count):
        ids = np.append(ids, np.argmax(logits(ids)[-1]))
    return ids[-count:]


def compute(case: Text, steps: Steps) -> Array:
    """The logits of the word after each place, (T, V), or the ids of the words written."""
    if case.write:
        return greedy(case.ids, case.write, lambda ids: _logits(ids, steps))
    out: Array = steps["rows"](_logits(case.ids, steps))
    return out


def _logits(ids: Array, steps: Steps) -> Array:
    """The logits of the small model, (T, V)."""
    w, config = small_model()
    embed = w["model.embed_tokens.weight"]
    x = steps["embed"](embed, ids)  # (T, D)
    for layer in steps["layers"](config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        names = [name for name in w if name.startswith(before)]
        p = {name.removeprefix(before).removesuffix(".weight"): w[name] for name in names}
        x = _block(x, p, config, steps)
    x = steps["final_norm"](x, lambda x: _norm(x, w["model.norm.weight"], steps))
    out: Array = steps["head"](x, embed)  # (T, V)
    return out


def _block(x: Array, p: Mapping[str, Array], config: Mapping[str, Any], steps: Steps) -> Array:
    """One layer: attention, then the MLP, each added to what was there."""

    def norm1(x: Array) -> Array:
        return _norm(x, p["input_layernorm"], steps)

    def norm2(x: Array) -> Array:
        return _norm(x, p["post_attention_layernorm"], steps)

    def attend(x: Array) -> Array:
        return _attend(x, p, config, steps)

    def mlp(x: Array) -> Array:
        gate, up = x @ p["mlp.gate_proj"].T, x @ p["mlp.up_proj"].T
        out: Array = steps["gate"](gate, up) @ p["mlp.down_proj"].T
        return out

    out: Array = steps["wire"](x, attend, mlp, norm1, norm2)
    return out


def _norm(x: Array, weight: Array, steps: Steps) -> Array:
    out: Array = steps["norm_weight"](steps["normalize"](x), weight)
    return out


def _attend(x: Array, p: Mapping[str, Array], config: Mapping[str, Any], steps: Steps) -> Array:
    """All heads' attention, joined and projected, (T, D)."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    q, k, v = (x @ p[f"self_attn.{name}_proj"].T for name in "qkv")
    q, k, v = (steps["split"](a, n) for a, n in ((q, heads), (k, groups), (v, groups)))
    q, k, v = steps["rotates"](q, k, v, lambda a: _rotated(a, config, steps))
    k, v = (steps["repeat"](a, heads // groups) for a in (k, v))  # (Hq, T, d)
    sizes = Sizes(q.shape[-1], v.shape[-1], len(x), x.shape[-1], x.shape[-1])
    scores = steps["scale"](steps["score"](q, k), sizes)
    i, j = np.arange(len(x))[:, None], np.arange(len(x))
    scores = np.where(steps["sees"](i, j), scores, -np.inf)
    weights = steps["normalise"](steps["exp"](steps["shift"](scores)))
    out: Array = steps["join"](steps["weigh"](weights, v, sizes)) @ p["self_attn.o_proj"].T
    return out


def _rotated(a: Array, config: Mapping[str, Any], steps: Steps) -> Array:
    """Each pair of numbers turned by an angle that grows with the place."""
    place, d = np.arange(a.shape[-2])[:, None], a.shape[-1]
    angle = place * steps["speeds"](config["rope_theta"], d, config["hidden_size"])  # (T, d / 2)
    first, second = steps["pairs"](a)
    turned = steps["turn"](first, second, np.cos(angle), np.sin(angle))
    out: Array = steps["unpair"](*turned)
    return out


def halves(a: Array) -> tuple[Array, Array]:
    """Number i makes a pair with number i + d/2, as Llama's files want it."""
    d = a.shape[-1]
    return a[..., : d // 2], a[..., d // 2 :]


def joined_halves(first: Array, second: Array) -> Array:
    """The inverse of `halves`."""
    return np.concatenate([first, second], axis=-1)


def neighbours(a: Array) -> tuple[Array, Array]:
    """Number 2i makes a pair with number 2i + 1, as in the paper."""
    return a[..., 0::2], a[..., 1::2]


def joined_neighbours(first: Array, second: Array) -> Array:
    """The inverse of `neighbours`."""
    both = np.stack([first, second], axis=-1)
    return both.reshape(*both.shape[:-2], -1)


def rms_norm(x: Array, eps: float = CONFIG["rms_norm_eps"]) -> Array:
    """A mean square of 1."""
    out: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return out


def silu(x: Array) -> Array:
    """Each number times its logistic function."""
    out: Array = x / (1 + np.exp(-x))
    return out


def pre_norm(x: Array, attend: Any, mlp: Any, norm1: Any, norm2: Any) -> Array:
    """Each part reads the norm of x, and is added to x."""
    x = x + attend(norm1(x))
    out: Array = x + mlp(norm2(x))
    return out


RIGHT: Steps = MappingProxyType(
    {
        **ATTENTION,
        "embed": lambda table, ids: table[ids],
        "layers": range,
        "wire": pre_norm,
        "normalize": rms_norm,
        "norm_weight": lambda x, weight: x * weight,
        "rotates": lambda q, k, v, turn: (turn(q), turn(k), v),
        "speeds": lambda base, d, width: base ** (-np.arange(0, d, 2) / d),
        "pairs": halves,
        "turn": lambda a, b, cos, sin: (a * cos - b * sin, a * sin + b * cos),
        "unpair": joined_halves,
        "repeat": lambda a, times: np.repeat(a, times, axis=0),
        "sees": lambda i, j: j <= i,
        "gate": lambda gate, up: silu(gate) * up,
        "final_norm": lambda x, norm: norm(x),
        "head": lambda x, embed: x @ embed.T,
        "rows": lambda logits: logits,
    }
)
