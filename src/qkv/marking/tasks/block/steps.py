"""A transformer block step by step: attention and an MLP, each with a norm before it.

Sources: Vaswani et al. 2017 (the block), Xiong et al. 2020 (the norm before), Ba et al. 2016
(LayerNorm), Zhang and Sennrich 2019 (RMSNorm), Hendrycks and Gimpel 2016 (GELU).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.inputs import Case
from qkv.marking.tasks.attention.steps import RIGHT as ATTENTION
from qkv.marking.tasks.attention.steps import compute as attention
from qkv.marking.tasks.wiring import Part, pre_norm

EPS = 1e-5


@dataclass(frozen=True)
class Call:
    """Word vectors (T, D), the block's parameters by name, and how many heads they make."""

    x: Array
    parameters: Mapping[str, Array]
    heads: int = 1

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        heads = {"num_heads": self.heads} if self.heads > 1 else {}
        return {
            "x": self.x,
            **{f'parameters["{n}"]': a for n, a in self.parameters.items()},
        } | heads


def compute(case: Call, steps: Steps) -> Array:
    """The word vectors after the block, (T, D)."""
    x, p, heads = case.x, case.parameters, case.heads

    def attend(x: Array) -> Array:
        arrays = {"x": x, **{name: p[name] for name in ("w_q", "w_k", "w_v")}}
        return attention(Case(arrays, heads=heads, output=p["w_o"]), steps)

    def norm(number: int) -> Part:
        scale, shift = p[f"norm{number}_scale"], p[f"norm{number}_shift"]
        return lambda x: steps["affine"](steps["normalize"](x), scale, shift)

    parts = attend, lambda x: steps["mlp"](x, p, steps["activation"])
    out: Array = steps["wire"](x, parts, (norm(1), norm(2)))
    return out


def layer_norm(x: Array, axis: Any = -1, ddof: int = 0, eps: float = EPS) -> Array:
    """Mean 0 and variance 1."""
    mean, spread = x.mean(axis=axis, keepdims=True), x.var(axis=axis, ddof=ddof, keepdims=True)
    out: Array = (x - mean) / np.sqrt(spread + eps)
    return out


def mean_square(x: Array, axis: Any = -1) -> Any:
    """Return the mean square of each word vector."""
    return (x * x).mean(axis=axis, keepdims=True)


def rms_norm(x: Array, axis: Any = -1, eps: float = EPS) -> Array:
    """A mean square of 1."""
    out: Array = x / np.sqrt(mean_square(x, axis) + eps)
    return out


def gelu(x: Array) -> Array:
    """Each number times the share of a normal distribution below it."""
    out: Array = x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2
    return out


def gelu_tanh(x: Array) -> Array:
    """Its approximation by tanh, as in GPT-2."""
    out: Array = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return out


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    out: Array = 1 / (1 + np.exp(-x))
    return out


def mlp_of(x: Array, p: Mapping[str, Array], activation: Part) -> Array:
    """Two linear layers with an activation between them."""
    out: Array = activation(x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]
    return out


RIGHT: Steps = MappingProxyType(
    {
        **ATTENTION,
        "wire": pre_norm,
        "normalize": layer_norm,
        "affine": lambda x, scale, shift: x * scale + shift,
        "mlp": mlp_of,
        "activation": gelu,
    }
)
