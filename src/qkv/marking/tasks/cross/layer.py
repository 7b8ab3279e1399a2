"""A decoder's block step by step: self-attention, cross-attention and an MLP.

Sources: Vaswani et al. 2017 (three parts a block), Xiong et al. 2020 (the norm before each).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.steps import same
from qkv.marking.tasks.block.steps import RIGHT as BLOCK
from qkv.marking.tasks.cross.steps import attend, of_keys
from qkv.marking.tasks.wiring import Part

PARTS = ("self", "cross", "mlp")
# x, the three parts and the norm of each: what the block gives
Rule = Callable[[Array, Sequence[Part], Sequence[Part]], Array]


@dataclass(frozen=True)
class Call:
    """One call: x (..., T, D), context (..., S, D), parameters, and a mask of the context."""

    x: Array
    context: Array
    parameters: Mapping[str, Array]
    mask: Array

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        named = {f'parameters["{name}"]': a for name, a in self.parameters.items()}
        return {"x": self.x, "context": self.context, **named, "mask": self.mask}


def compute(case: Call, steps: Steps) -> Array:
    """The word vectors after the block, (..., T, D)."""
    p, visible = case.parameters, of_keys(case.mask)

    def norm(number: int) -> Part:
        scale, shift = p[f"norm{number}_scale"], p[f"norm{number}_shift"]
        return lambda x: steps["affine"](steps["normalize"](x), scale, shift)

    norms = [norm(number) for number in steps["norms"]((1, 2, 3))]
    own, other = steps["projections"]("self", "cross")

    def attention(name: str, texts: tuple[Array, ...], mask: Any, causal: bool) -> Array:
        weights = {f"w_{role}": p[f"{name}_{role}"] for role in "qkv"}
        x, keys, values = texts
        return attend((x, keys, values), weights, steps, mask, causal, p[f"{name}_o"])

    def self_attention(x: Array) -> Array:
        texts = steps["own"](x, case.context)
        return attention(own, texts, steps["own_mask"](visible), steps["own_causal"]())

    def cross_attention(x: Array) -> Array:
        texts = steps["texts"](x, steps["context"](case.context, norms[1]))
        return attention(other, texts, steps["other_mask"](visible), steps["other_causal"]())

    def mlp(x: Array) -> Array:
        out: Array = steps["mlp"](x, p, steps["activation"])
        return out

    out: Array = steps["rule"](case.x, (self_attention, cross_attention, mlp), norms)
    return out


def pre_norm(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """The right one: each part reads the norm of x, and is added to x."""
    for part, norm in zip(parts, norms, strict=True):
        x = x + part(norm(x))
    return x


RIGHT: Steps = MappingProxyType(
    {
        **BLOCK,
        "rule": pre_norm,
        "norms": lambda numbers: numbers,
        "projections": lambda own, other: (own, other),
        "own": lambda x, context: (x, x, x),
        "own_mask": lambda visible: None,
        "own_causal": lambda: True,
        "texts": lambda x, context: (x, context, context),
        "context": lambda context, norm: context,
        "other_mask": lambda visible: visible,
        "other_causal": lambda: False,
        "blank": same,  # in no case everything is hidden
    }
)
