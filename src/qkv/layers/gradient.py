"""What the way back through a layer gives, and the way back through one linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.backward import linear_grad

# What the forward pass of a layer keeps for the way back: empty before, its own names after.
Saved = dict[str, Any]


@dataclass(frozen=True)
class Gradient:
    """What a change of each input of a layer does to the sum of `grad * layer(x)`.

    Attributes:
        x: of the shape of what the layer was given.
        parameters: by the names of `layer.parameters`, in their shapes.
        context: of the shape of the context, where there was one.
        options: of the arrays that `qkv.attention` was given and that can be learned: "bias",
            "sinks", "alibi_slopes".
    """

    x: Array
    parameters: dict[str, Array]
    context: Array | None = None
    options: dict[str, Array] = field(default_factory=dict)


def need_wide(dtype: np.dtype[Any], saved: Saved | None, *, call: str) -> None:
    """An error if what is kept for the way back would be of halves."""
    if saved is not None and compute_type(dtype) != dtype:
        raise TypeError(
            f"{call}: saved is for training and the layer computes in {dtype}: "
            "train in float32, as load(..., dtype=np.float32) gives it"
        )


def gradient_of(grad: Any, shape: tuple[int, ...], saved: Saved, *, call: str) -> Array:
    """`grad` as an array of the shape of what the layer gave, in the type of what it kept."""
    if not saved:
        raise ValueError(
            f"{call}.backward: saved is empty: give the dict that was given to the layer before, "
            "as layer(x, saved=saved)"
        )
    array = np.asarray(grad)
    if array.shape != shape:
        raise ValueError(
            f"{call}.backward: grad has shape {array.shape} and the layer gave {shape}: "
            "they must be the same"
        )
    return array.astype(saved["dtype"], copy=False)


def project_back(
    x: Array, parameters: Mapping[str, Array], name: str, grad: Array, found: dict[str, Array]
) -> Array:
    """The way back through `project`: gives the gradient of `x`, adds those of the parameters."""
    bias = f"{name}.bias"
    grad_x, grad_weight, grad_bias = linear_grad(
        x, parameters[f"{name}.weight"], grad, bias=bias in parameters
    )
    found[f"{name}.weight"] = grad_weight
    if grad_bias is not None:
        found[bias] = grad_bias
    return grad_x
