"""A layer of self-attention step by step, with the weights that it was found to have."""

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


@dataclass(frozen=True)
class Call:
    """Word vectors (..., T, D) for a layer of so many heads.

    Attributes:
        x: the word vectors.
        heads: how many heads the layer is built with.
        matrices: W_Q, W_K, W_V (D, heads * d) and W_O (heads * d, D) by role, once they were read.
        biases: by role, where there are any.
        mask: where a word may attend to another, (T, T), True = may.
        causal: is a causal mask asked for?
    """

    x: Array
    heads: int
    matrices: Mapping[str, Array] | None = None
    biases: Mapping[str, Array] | None = None
    mask: Array | None = None
    causal: bool = False

    @property
    def built_with(self) -> tuple[int, int]:
        """What the layer is built with: embed_dim and num_heads."""
        return self.x.shape[-1], self.heads

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        matrices, biases = self.matrices or {}, self.biases or {}
        read = {f"w_{role}": matrices[role] for role in "qkvo" if role in matrices}
        read |= {f"b_{role}": biases[role] for role in "qkvo" if role in biases}
        layer = f"SelfAttention({self.x.shape[-1]}, {self.heads})"
        masks = {"mask": self.mask, "is_causal": self.causal or None}
        given = {name: it for name, it in masks.items() if it is not None}
        return {"layer": layer, "x": self.x, **given, **read}


def as_attention(case: Call) -> Case:
    """The words and projections of a case as a call of attention, which has no biases.

    With them each word vector has one number more, always 1, and a row of weights for it.
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
    """The output of the layer by its own weights, (..., T, D); its input where none were read."""
    if case.matrices is None:
        return case.x
    out = attention(as_attention(case), steps)
    out = out if case.biases is None else out + case.biases.get("o", 0)
    done: Array = steps["around"](out, case.x)
    return done


RIGHT: Steps = MappingProxyType(
    {
        **ATTENTION,
        "around": lambda out, x: out,
    }
)
