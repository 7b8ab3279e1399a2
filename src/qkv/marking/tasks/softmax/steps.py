"""Softmax done step by step, so that a mistake can take the place of one step."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.mistake import Steps
from qkv.marking.tasks.attention.steps import same


@dataclass(frozen=True)
class Scores:
    """One call: the scores, and the axis where it is not the last."""

    x: Array
    axis: int | None = None

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        return {"x": self.x} if self.axis is None else {"x": self.x, "axis": self.axis}


def compute(case: Scores, steps: Steps) -> Array:
    """The weights made by these steps."""
    axis = steps["axis"](-1 if case.axis is None else case.axis)
    e = steps["exp"](steps["shift"](steps["read"](case.x.astype(np.float64)), axis))
    weights: Array = steps["give"](steps["normalise"](e, axis))
    return weights


def softmax(x: Array, axis: Any = -1) -> Array:
    """Softmax along an axis."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    weights: Array = e / e.sum(axis=axis, keepdims=True)
    return weights


RIGHT: Steps = MappingProxyType(
    {
        "read": same,
        "axis": same,
        "shift": lambda x, axis: x - x.max(axis=axis, keepdims=True),
        "exp": np.exp,
        "normalise": lambda e, axis: e / e.sum(axis=axis, keepdims=True),
        "give": same,
    }
)
