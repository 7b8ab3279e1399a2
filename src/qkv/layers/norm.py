"""Norms of vectors, and the scale of a block's parts: layers with a number for each column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, compute_type, float_type, whole_number
from qkv.layers.layer import (
    Gradient,
    Layer,
    asks,
    checked,
    for_parameters,
    need_shape,
    parameter,
    promoted,
    quiet,
    upstream,
)
from qkv.ops.norm import norm_grad, normalize
from qkv.trace import Recorder, Trace


class NormSaved(NamedTuple):
    """What the backward pass of a norm needs."""

    x: Array  # (..., D)
    scale: Array  # (..., 1), what was divided by


class _Norm(Layer):
    """What the two norms share: both take vectors (..., D)."""

    hooks = ("hook_scale", "hook_normalized")
    _is_centred: bool
    _reads_texts = False
    eps: float
    offset: float

    def _begin(self, dim: int, eps: float, dtype: Any, *, bias: bool) -> None:
        """Take new parameters: a weight of 1 and, if any, a bias of 0."""
        call = type(self).__name__
        dim, kind = whole_number(dim, call=call, name="dim", least=1), float_type(dtype, call=call)
        weight = {"weight": np.ones(dim, kind)}
        self._set(weight | ({"bias": np.zeros(dim, kind)} if bias else {}), eps)

    def _set(self, parameters: dict[str, Array], eps: float, offset: float = 0.0) -> None:
        """Take parameters that fit each other, once `eps` is one."""
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(
                f"{type(self).__name__}: eps is {eps}: it must be finite and not negative"
            )
        self.parameters, self.dim = parameters, len(parameters["weight"])
        self.eps, self.offset = float(eps), offset

    def run(
        self, x: Array, *, record: Recorder | None = None, save: bool = False
    ) -> tuple[Array, NormSaved]:
        """The forward pass, unchecked, and what the backward pass needs, with or without `save`."""
        x, dtype = promoted(x, self.parameters, call=type(self).__name__)
        weight, bias = self.scaled(), self.parameters.get("bias")
        out, scale = normalize(x, weight, bias, eps=self.eps, centred=self._is_centred)
        out = out.astype(dtype, copy=False)
        if record is not None:
            changed = record("hook_scale", scale)
            if changed is not scale:
                scale = changed
                out = self._scaled_by(x, scale).astype(dtype, copy=False)
            out = record("hook_normalized", out)
        return out, NormSaved(x, scale)

    @quiet
    def backward(
        self, grad: ArrayLike, saved: NormSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass: the gradients of `sum(grad * norm(x))`.

        Args:
            grad: (..., D), the gradient of what the norm gave.
            saved: what `norm.training_forward(x)` gave beside it.
            record: collects the gradients on the way, by the names of a trace; with a
                `GradientRecorder` there are none of parameters.

        Returns:
            `.x` (..., D) and `.parameters` "weight" and "bias".

        >>> norm = LayerNorm(2, eps=0.0)
        >>> y, saved = norm.training_forward(np.array([[1.0, 5.0]]))
        >>> norm.backward([[1.0, 0.0]], saved).parameters["weight"]
        array([-1.,  0.])
        """
        grad = upstream(grad, saved.x.shape, saved.x.dtype, call=type(self).__name__)
        if record is not None:
            grad = record("hook_normalized", grad)
            if asks(record, "hook_scale"):
                return Gradient(self._back_by_scale(grad, saved, record), {})
        grad_x, weight, bias = norm_grad(
            saved.x,
            self.scaled(),
            saved.scale,
            grad,
            centred=self._is_centred,
            bias="bias" in self.parameters,
        )
        if for_parameters(record) is None:
            return Gradient(grad_x, {})
        return Gradient(grad_x, {"weight": weight} | ({} if bias is None else {"bias": bias}))

    def _back_by_scale(self, grad: Array, saved: NormSaved, record: Recorder) -> Array:
        """The gradient of `x`, with that of what is divided by on its own."""
        x, scale = saved
        centred = x - x.mean(-1, keepdims=True) if self._is_centred else x
        weighted = grad * self.scaled().astype(x.dtype, copy=False)
        of_scale = -(weighted * centred).sum(-1, keepdims=True) / np.square(scale)
        of_scale = record("hook_scale", of_scale)
        back: Array = (weighted + of_scale * centred / x.shape[-1]) / scale
        return back - back.mean(-1, keepdims=True) if self._is_centred else back

    def _scaled_by(self, x: Array, scale: Array) -> Array:
        """The norm of `x` (..., D) if it is divided by `scale` (..., 1)."""
        x = x.astype(compute_type(x.dtype), copy=False)
        centred = x - x.mean(-1, keepdims=True) if self._is_centred else x
        out: Array = centred / scale * self.scaled().astype(x.dtype, copy=False)
        bias = self.parameters.get("bias")
        return out if bias is None else out + bias.astype(x.dtype, copy=False)

    def scaled(self) -> Array:
        """What vectors are multiplied by, (D,): the weight, with its offset if it has one."""
        weight = self.parameters["weight"]
        if not self.offset:
            return weight
        wide = compute_type(weight.dtype)
        scaled: Array = weight.astype(wide, copy=False) + wide.type(self.offset)
        return scaled

    def trace(self, x: ArrayLike) -> Trace:
        """`hook_scale` (..., 1), what is divided by, and `hook_normalized` (..., D), the output.

        What is divided by is the root of the variance and `eps`, or of the mean square and `eps`
        where the mean is left in: vectors (without their mean) `/ hook_scale * weight + bias` are
        the output.

        >>> LayerNorm(2).trace(np.array([[1.0, 7.0]])).names()
        ['hook_scale', 'hook_normalized']
        """
        record = Recorder()
        self(x, record=record)
        return Trace(record.arrays)


class LayerNorm(_Norm):
    """Each vector shifted to mean 0 and scaled to variance 1, then `* weight + bias`.

    Args:
        dim: D, the size of the vectors.
        eps: added to the variance.
        bias: whether a bias is added.
        dtype: of the parameters.

    The result has the type that `x` and the parameters promote to; integers take the parameters'.
    Half precision is computed in float32.

    Source:
        Ba, Kiros and Hinton 2016, "Layer Normalization", equation 4.

    >>> norm = LayerNorm(2, eps=0.0)
    >>> norm(np.array([[1.0, 5.0]]))
    array([[-1.,  1.]])
    >>> {name: array.shape for name, array in norm.parameters.items()}
    {'weight': (2,), 'bias': (2,)}
    """

    _is_centred = True

    def __init__(
        self, dim: int, *, eps: float = 1e-5, bias: bool = True, dtype: Any = np.float32
    ) -> None:
        self._begin(dim, eps, dtype, bias=bias)

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, ArrayLike], *, eps: float = 1e-5
    ) -> LayerNorm:
        """A layer with this "weight" (D,) and, if any, "bias" (D,), used where they stand."""
        layer = cls.__new__(cls)
        layer._set(_vectors(parameters, {"weight", "bias"}, call=cls.__name__), eps)
        return layer


class RMSNorm(_Norm):
    """Each vector divided by the root of its mean square, then `* weight`.

    Args:
        dim: D, the size of the vectors.
        eps: added to the mean square.
        dtype: of the weight.

    The result has the type that `x` and the weight promote to; integers take the weight's. Half
    precision is computed in float32.

    Source:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.

    >>> RMSNorm(2, eps=0.0)(np.array([[1.0, 7.0]]))
    array([[0.2, 1.4]])
    """

    _is_centred = False

    def __init__(self, dim: int, *, eps: float = 1e-6, dtype: Any = np.float32) -> None:
        self._begin(dim, eps, dtype, bias=False)

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, ArrayLike], *, eps: float = 1e-6, offset: float = 0.0
    ) -> RMSNorm:
        """A layer with this "weight" (D,), used where it stands.

        Args:
            parameters: "weight" (D,).
            eps: as for the class.
            offset: is added to the weight: 1 where a model's files hold its distance from 1.
        """
        layer = cls.__new__(cls)
        layer._set(_vectors(parameters, {"weight"}, call=cls.__name__), eps, offset)
        return layer


def _vectors(parameters: Mapping[str, Any], known: set[str], *, call: str) -> dict[str, Array]:
    """The parameters of a norm: a weight (D,) and others of its shape."""
    arrays = checked(parameters, call=call)
    if "weight" not in arrays or not arrays.keys() <= known:
        raise ValueError(
            f"{call}: the parameters are {', '.join(sorted(arrays)) or 'none'}: "
            f"give {' and '.join(sorted(known, reverse=True))}"
        )
    weight = arrays["weight"]
    if weight.ndim != 1:
        raise ValueError(f"{call}: weight has shape {weight.shape}: it must be (D,)")
    for name, array in arrays.items():
        need_shape(array, weight.shape, call=call, name=name, why="that of weight")
    return arrays


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
