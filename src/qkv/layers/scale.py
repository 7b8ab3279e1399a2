"""The scale of what a part of a block gives: one learned number for each column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, float_type, whole_number
from qkv.layers.gradient import Gradient, for_parameters, upstream
from qkv.layers.layer import Layer
from qkv.layers.parameters import checked, parameter, promoted, quiet
from qkv.trace import Recorder


class ScaleSaved(NamedTuple):
    """What the backward pass of a scale needs."""

    x: Array  # (..., D)


class LayerScale(Layer):
    """`x * weight`: before what a part of a block gives is added to the residual connection.

    Args:
        dim: D, the size of the vectors.
        first: what each number of the weight begins with.
        dtype: of the weight.

    The result has the type that `x` and the weight promote to; integers take the weight's.

    Source:
        Touvron et al. 2021, "Going deeper with Image Transformers", equation 4.

    >>> LayerScale(2, first=0.5)(np.array([[2.0, 4.0]])).tolist()
    [[1.0, 2.0]]
    """

    _reads_texts = False

    def __init__(self, dim: int, *, first: float = 1.0, dtype: Any = np.float32) -> None:
        call = type(self).__name__
        dim = whole_number(dim, call=call, name="dim", least=1)
        self.parameters = {"weight": np.full(dim, first, float_type(dtype, call=call))}
        self.dim = dim

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, ArrayLike]) -> LayerScale:
        """A layer with these parameters, used where they stand: "weight" (D,)."""
        layer, call = cls.__new__(cls), cls.__name__
        arrays = checked(parameters, call=call)
        layer.dim = len(parameter(arrays, "weight", "(D)", call=call))
        if len(arrays) > 1:
            other = next(name for name in arrays if name != "weight")
            raise ValueError(f"{call}: there is no parameter {other}: give weight alone")
        layer.parameters = arrays
        return layer

    def run(
        self, x: Array, *, record: Recorder | None = None, save: bool = False
    ) -> tuple[Array, ScaleSaved]:
        """The forward pass, unchecked, and what the backward pass needs, with or without `save`."""
        x, dtype = promoted(x, self.parameters, call=type(self).__name__)
        out = x * self.parameters["weight"].astype(x.dtype, copy=False)
        return out.astype(dtype, copy=False), ScaleSaved(x)

    @quiet
    def backward(
        self, grad: ArrayLike, saved: ScaleSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass: the gradients of `sum(grad * scale(x))`.

        Args:
            grad: (..., D), the gradient of what the layer gave.
            saved: what `scale.training_forward(x)` gave beside it.
            record: for the door that all layers share: there is nothing on the way.

        Returns:
            `.x` (..., D) and `.parameters` "weight" (D,).

        >>> scale = LayerScale(2, first=0.5)
        >>> y, saved = scale.training_forward(np.array([[2.0, 4.0]]))
        >>> found = scale.backward([[1.0, 10.0]], saved)
        >>> found.x.tolist(), found.parameters["weight"].tolist()
        ([[0.5, 5.0]], [2.0, 40.0])
        """
        grad = upstream(grad, saved.x.shape, saved.x.dtype, call=type(self).__name__)
        weight = self.parameters["weight"].astype(grad.dtype, copy=False)
        if for_parameters(record) is None:
            return Gradient(grad * weight, {})
        total = (grad * saved.x).reshape(-1, self.dim).sum(0)
        return Gradient(grad * weight, {"weight": total})
