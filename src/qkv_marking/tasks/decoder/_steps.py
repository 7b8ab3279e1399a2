"""A decoder in steps, from ids to logits. Its tensors have the same names as in the files of Llama.

Sources: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary positions), Ainslie et al. 2023
(grouped heads), Shazeer 2020 (SwiGLU), Zhang and Sennrich 2019 (RMSNorm).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import generator, per_seed
from qkv_marking._formula import Formula, Lines
from qkv_marking.tasks._table import Table
from qkv_marking.tasks.attention import mistakes

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


TABLE = Table(__package__, "decoder_task", mistakes.HELPERS, Formula(mistakes.FORMULA.lines))
RIGHT = TABLE.formula.lines
# the names of the lines of each part, in the order in which the lines run
_ATTENTION = "project counts split rotate repeat score scale causal hide shift exp normalise weigh"
_PARTS = {
    part: TABLE.formula.part(*lines.split())
    for part, lines in {
        "decoder": "tables embed layers final_norm head rows",
        "block": "attention mlp",
        "norm": "eps norm norm_weight",
        "attention": f"{_ATTENTION} join output",
        "rotation": "theta speeds angles waves pairs turn unpair",
        "mlp": "up gate down",
    }.items()
}


def compute(case: Text, steps: Lines) -> Array:
    """Return the logits (T, V) at each position, or the ids of the generated words."""
    if case.write:
        return greedy(case.ids, case.write, lambda ids: _run(ids, case.tied, steps)["logits"])
    out: Array = _run(case.ids, case.tied, steps)["out"]
    return out


def _run(ids: Array, tied: bool, steps: Lines) -> dict[str, Any]:
    """Run a decoder on a small model, and return the variables of the decoder."""
    weights, config = small_model(tied)

    def run(part: str, **values: Any) -> dict[str, Any]:
        return _PARTS[part].run({"config": config, **values}, steps)

    def norm(x: Array, weight: Array) -> Any:
        return run("norm", x=x, weight=weight)["out"]

    def rotate(x: Array, first: int = 0) -> Any:
        positions = first + np.arange(x.shape[-2])
        return run("rotation", x=x, d=x.shape[-1], positions=positions)["out"]

    def block(x: Array, layer: int) -> Any:
        prefix = f"model.layers.{layer}."
        p = {name.split(".")[-2]: a for name, a in weights.items() if name.startswith(prefix)}

        def attend(x: Array) -> Any:
            return run("attention", x=x, rotate=rotate, **p)["out"]

        def mlp(x: Array) -> Any:
            return run("mlp", x=x, **p)["out"]

        return run("block", x=x, attend=attend, mlp=mlp, norm=norm, **p)["out"]

    return run("decoder", ids=ids, weights=weights, block=block, norm=norm)
