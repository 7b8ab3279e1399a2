"""A self-attention layer in steps that use the layer's weights, and mistakes that replace steps."""

from __future__ import annotations

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
from qkv.marking.tasks.mistakes.formula import core
from qkv.marking.tasks.mistakes.heads import HEADS, IN_TURN, JOINED, ONE_HEAD, OUTPUT_MISSING
from qkv.marking.tasks.mistakes.slips import of_output
from qkv.marking.tasks.texts import Texts

_TEXTS = Texts(__name__)


@dataclass(frozen=True)
class Call:
    """Word vectors (..., T, D) for a layer with a number of heads.

    Attributes:
        x: the word vectors.
        heads: the number of heads of the layer.
        matrices: W_Q, W_K, W_V (D, heads * d) and W_O (heads * d, D) by role; None if unknown.
        biases: the biases that the layer has, by role.
        mask: a mask (T, T) that is True where a word may attend to another word.
        causal: whether a causal mask is requested.
    """

    x: Array
    heads: int
    matrices: Mapping[str, Array] | None = None
    biases: Mapping[str, Array] | None = None
    mask: Array | None = None
    causal: bool = False

    @property
    def built_with(self) -> tuple[int, int]:
        """The arguments of the layer: embed_dim and num_heads."""
        return self.x.shape[-1], self.heads

    def shown(self) -> dict[str, Any]:
        """Return the layer and the arguments that a learner needs to repeat this call."""
        matrices, biases = self.matrices or {}, self.biases or {}
        shown = {
            "layer": f"SelfAttention({self.x.shape[-1]}, {self.heads})",
            "x": self.x,
            "mask": self.mask,
            "is_causal": self.causal or None,
            **{f"w_{role}": matrices.get(role) for role in "qkvo"},
            **{f"b_{role}": biases.get(role) for role in "qkvo"},
        }
        return {name: value for name, value in shown.items() if value is not None}


def as_attention(case: Call) -> Case:
    """Return the words and projections of a case as a call of attention, which has no biases.

    To replace the biases, each word vector gets a 1 at its end, and each projection gets the bias
    as its last row.
    """
    matrices, biases, x = case.matrices or {}, case.biases or {}, case.x
    arrays = {f"w_{role}": matrices[role] for role in "qkv"}
    if biases:
        x = np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)
        for role in "qkv":
            w = matrices[role]
            arrays[f"w_{role}"] = np.vstack([w, biases.get(role, np.zeros(w.shape[1]))])
    return Case({"x": x, **arrays}, case.mask, case.causal, None, case.heads, matrices["o"])


def compute(case: Call, steps: Steps) -> Array:
    """Return the output that the layer's weights give, or the input if the weights are unknown."""
    if case.matrices is None:
        return case.x
    out = attention(as_attention(case), steps)
    out = out if case.biases is None else out + case.biases.get("o", 0)
    done: Array = steps["around"](out, case.x)
    return done


RIGHT: Steps = MappingProxyType({**ATTENTION, "around": lambda out, x: out})
NO_OUTPUT, *_OTHERS = _TEXTS.mistakes(
    {
        "class-no-output-projection": OUTPUT_MISSING.variants,
        "class-residual-inside": [{"around": lambda out, x: out + x}],
        "class-heads-backwards": JOINED[1].variants,
        "class-heads-interleaved": IN_TURN.variants[:1],
    }
)
KNOWN = (
    NO_OUTPUT,
    *_OTHERS,
    *HEADS,
    *ONE_HEAD,
    *core("x,w_q,w_k,w_v"),
    *of_output("out = np.swapaxes(out, 0, 1).reshape(T, embed_dim) @ self.w_o"),
)
