"""A decoder in steps, from ids to logits. Its tensors have the same names as in the files of Llama.

Sources: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary positions), Ainslie et al. 2023
(grouped heads), Shazeer 2020 (SwiGLU), Zhang and Sennrich 2019 (RMSNorm).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv_marking._engine import generator, per_seed
from qkv_marking._mistake import Steps
from qkv_marking.tasks._block import Part, pre_norm, rms_norm, sigmoid
from qkv_marking.tasks.attention.steps import RIGHT as ATTENTION, Scales

_Model = tuple[dict[str, Array], dict[str, Any]]  # the weights, keyed by name, and the config
CONFIG: Mapping[str, Any] = {
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

# a model with other sizes and a separate LM head
UNTIED_CONFIG: Mapping[str, Any] = {
    **CONFIG,
    "vocab_size": 13,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-4,
    "rope_theta": 2000.0,
    "tie_word_embeddings": False,
}


def small_model(tied: bool = True) -> _Model:
    """Return `(weights, config)` of a small Llama: weights (out, in), named as in a file.

    Args:
        tied: whether the LM head uses the embeddings; if not, the weights have `lm_head.weight`.

    >>> weights, config = small_model()
    >>> weights["model.layers.0.self_attn.k_proj.weight"].shape
    (12, 24)
    >>> small_model(tied=False)[0]["lm_head.weight"].shape
    (13, 24)
    """
    return _small_models()[tied]


@per_seed
def _small_models() -> tuple[_Model, _Model]:
    """Return two small models: one with a separate LM head, and one with tied embeddings."""
    return _draw(False), _draw(True)


def _draw(tied: bool) -> _Model:
    config = dict(CONFIG if tied else UNTIED_CONFIG)
    rng = generator(0)
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
    if not tied:
        weights["lm_head.weight"] = rng.normal(size=embed.shape)
    return weights, config


@dataclass(frozen=True)
class Text:
    """A text for a small model, and the number of words to generate after the text.

    Attributes:
        ids: the ids (T,) of the text.
        write: the number of words to generate; if it is 0, the result is the logits of the text.
        tied: whether the LM head of the model uses the embeddings.
    """

    ids: Array
    write: int = 0
    tied: bool = True

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        written = {"words to write": self.write} if self.write else {}
        return {
            "ids": self.ids,
            "weights, config": "qkv_marking.tasks.decoder.small_model"
            f"({'' if self.tied else 'tied=False'})",
        } | written


def greedy(ids: Array, count: int, logits: Callable[[Array], Array]) -> Array:
    """Generate words with greedy decoding, and return their ids."""
    for _ in range(count):
        ids = np.append(ids, np.argmax(logits(ids)[-1]))
    return ids[-count:]


def compute(case: Text, steps: Steps) -> Array:
    """Return the logits (T, V) at each position, or the ids of the generated words."""
    if case.write:
        return greedy(case.ids, case.write, lambda ids: _logits(ids, case.tied, steps))
    out: Array = steps["rows"](_logits(case.ids, case.tied, steps))
    return out


def _logits(ids: Array, tied: bool, steps: Steps) -> Array:
    """Return the logits (T, V) of a small model."""
    w, config = small_model(tied)
    table = w["model.embed_tokens.weight"]
    table, head = steps["tables"](table, w.get("lm_head.weight", table))
    eps = config["rms_norm_eps"]
    x = steps["embed"](table, ids)  # (T, D)
    for layer in steps["layers"](config["num_hidden_layers"]):
        before = f"model.layers.{layer}."
        names = [name for name in w if name.startswith(before)]
        p = {name.removeprefix(before).removesuffix(".weight"): w[name] for name in names}
        x = _block(x, p, config, steps)
    x = steps["final_norm"](x, lambda x: _norm(x, w["model.norm.weight"], eps, steps))
    out: Array = steps["head"](x, head)  # (T, V)
    return out


def _block(x: Array, p: Arrays, config: Mapping[str, Any], steps: Steps) -> Array:
    """Run one layer: attention, then the MLP, each with a residual connection."""

    def attend(x: Array) -> Array:
        return _attend(x, p, config, steps)

    def mlp(x: Array) -> Array:
        gate, up = (steps["linear"](x, p[f"mlp.{n}_proj"], f"{n}_proj") for n in ("gate", "up"))
        out: Array = steps["linear"](steps["gate"](gate, up), p["mlp.down_proj"], "down_proj")
        return out

    def norm(name: str) -> Part:
        return lambda x: _norm(x, p[name], config["rms_norm_eps"], steps)

    norms = norm("input_layernorm"), norm("post_attention_layernorm")
    out: Array = steps["wire"](x, (attend, mlp), norms)
    return out


def _norm(x: Array, weight: Array, eps: float, steps: Steps) -> Array:
    out: Array = steps["norm_weight"](steps["normalize"](x, eps), weight)
    return out


def _attend(x: Array, p: Arrays, config: Mapping[str, Any], steps: Steps) -> Array:
    """Return the output (T, D) of attention: all heads, joined and projected."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]

    def split(*qkv: Array) -> tuple[Array, ...]:
        h, g = steps["counts"](heads, groups)
        return tuple(
            steps["arranged"](*(steps["split"](a, n) for a, n in zip(qkv, (h, g, g), strict=True)))
        )

    def rotate(*qkv: Array) -> tuple[Array, ...]:
        return tuple(steps["rotates"](*qkv, lambda a: _rotate(a, config, steps)))

    projected = (steps["linear"](x, p[f"self_attn.{n}_proj"], f"{n}_proj") for n in "qkv")
    q, k, v = steps["choose"](*projected)
    q, k, v = steps["in_order"](split, rotate, q, k, v)
    k, v = (steps["repeat"](a, heads // groups) for a in (k, v))  # (query heads, T, d)
    sizes = Scales(q.shape[-1], v.shape[-1], len(x), x.shape[-1], x.shape[-1])
    scores = steps["scale"](steps["score"](q, k), sizes)
    i, j = np.arange(len(x))[:, None], np.arange(len(x))
    scores = np.where(steps["sees"](i, j, 0), scores, -np.inf)
    weights = steps["normalise"](steps["exp"](steps["shift"](scores)))
    joined = steps["join"](steps["weigh"](weights, v, sizes))
    out: Array = steps["linear"](joined, p["self_attn.o_proj"], "o_proj")
    return out


def _rotate(a: Array, config: Mapping[str, Any], steps: Steps) -> Array:
    """Rotate each pair of numbers by an angle that grows with the position."""
    position, d = np.arange(a.shape[-2])[:, None], a.shape[-1]
    speeds = steps["speeds"](config["rope_theta"], d, config["hidden_size"])
    angle = steps["angle"](position, speeds)  # (T, d / 2)
    first, second = steps["pairs"](a)
    turned = steps["turn"](first, second, np.cos(angle), np.sin(angle))
    out: Array = steps["unpair"](*turned)
    return out


def halves(a: Array) -> tuple[Array, Array]:
    """Return the two halves of the columns; columns i and i + d/2 form a pair, as in Llama."""
    d = a.shape[-1]
    return a[..., : d // 2], a[..., d // 2 :]


def joined_halves(first: Array, second: Array) -> Array:
    """Concatenate two halves: the inverse of `halves`."""
    return np.concatenate([first, second], axis=-1)


def neighbours(a: Array) -> tuple[Array, Array]:
    """Return the even and the odd columns; 2i and 2i + 1 form a pair, as in Su et al. 2021."""
    return a[..., 0::2], a[..., 1::2]


def joined_neighbours(first: Array, second: Array) -> Array:
    """Interleave two arrays: the inverse of `neighbours`."""
    both = np.stack([first, second], axis=-1)
    return both.reshape(*both.shape[:-2], -1)


RIGHT: Steps = {
    **ATTENTION,
    "tables": lambda embeddings, head: (embeddings, head),
    "linear": lambda x, weight, name: x @ weight.T,
    "counts": lambda heads, groups: (heads, groups),
    "in_order": lambda split, rotate, *qkv: rotate(*split(*qkv)),
    "embed": lambda table, ids: table[ids],
    "layers": range,
    "wire": pre_norm,
    "normalize": lambda x, eps: rms_norm(x, eps=eps),
    "norm_weight": lambda x, weight: x * weight,
    "rotates": lambda q, k, v, rotate: (rotate(q), rotate(k), v),
    "speeds": lambda base, d, width: base ** (-np.arange(0, d, 2) / d),
    "angle": lambda position, speeds: position * speeds,
    "pairs": halves,
    "turn": lambda a, b, cos, sin: (a * cos - b * sin, a * sin + b * cos),
    "unpair": joined_halves,
    "repeat": lambda a, times: np.repeat(a, times, axis=0),
    "gate": lambda gate, up: gate * sigmoid(gate) * up,
    "final_norm": lambda x, norm: norm(x),
    "head": lambda x, table: x @ table.T,
    "rows": lambda logits: logits,
}
