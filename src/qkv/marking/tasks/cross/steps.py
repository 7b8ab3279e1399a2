"""Cross-attention step by step: queries of one text, keys and values of another.

Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.3 (encoder-decoder attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.inputs import Case
from qkv.marking.tasks.attention.steps import RIGHT as ATTENTION
from qkv.marking.tasks.attention.steps import compute as attention
from qkv.marking.tasks.attention.steps import same


@dataclass(frozen=True)
class Call:
    """One call: x (..., L, D), context (..., S, D), projections, and a mask of keys (..., S)."""

    x: Array
    context: Array
    weights: Mapping[str, Array]
    mask: Array

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        return {"x": self.x, "context": self.context, **self.weights, "mask": self.mask}


def attend(
    texts: tuple[Array, Array, Array],
    weights: Mapping[str, Array],
    steps: Steps,
    visible: Array | None = None,
    causal: bool = False,
    output: Array | None = None,
) -> Array:
    """Attention with the queries, the keys and the values of a text each, (..., L, dv).

    Args:
        texts: the word vectors that become queries, keys and values.
        weights: w_q, w_k and w_v.
        steps: how it is computed.
        visible: where a query sees a key, (..., L, S).
        causal: whether each word sees those before it alone.
        output: w_o, where there is one.
    """

    def project(_: Array, *matrices: Array) -> list[Array]:
        each = (steps["project"](text, *matrices) for text in texts)
        return [projected[n] for n, projected in enumerate(each)]

    case = Case({"x": texts[0], **weights}, mask=visible, causal=causal, output=output)
    return attention(case, {**steps, "project": project})


def compute(case: Call, steps: Steps) -> Array:
    """What each word of x takes from the context, (..., L, dv)."""
    texts = steps["texts"](case.x, case.context)
    return attend(texts, case.weights, steps, steps["keys"](case.mask))


def of_keys(mask: Array) -> Array:
    """A mask of keys (..., S) as one that holds for each query, (..., 1, S)."""
    return mask[..., None, :]


RIGHT: Steps = MappingProxyType(
    {
        **ATTENTION,
        "texts": lambda x, context: (x, context, context),
        "keys": of_keys,
        "blank": same,  # in no case everything is hidden
    }
)
