"""LayerNorm, RMSNorm and LayerScale: layers that multiply each column by a weight."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_method, value_error
from qkv.arrays import Array, ArrayLike, compute_type, float_type, whole_number
from qkv.layers import base
from qkv.ops import norm_grad, normalize
from qkv.trace import Recorder, Trace


class NormSaved(NamedTuple):
    """Values that the forward pass of a norm saves for its backward pass."""

    x: Array  # (..., D).
    scale: Array  # (..., 1), the divisors.


class _Norm(base.Layer):
    """The base class of LayerNorm and RMSNorm, for vectors (..., D)."""

    hooks = ("hook_scale", "hook_normalized")
    _is_centred: bool
    _reads_texts = False
    eps: float
    offset: float

    def _begin(self, dim: int, eps: float, dtype: Any, *, bias: bool) -> None:
        """Set new parameters: a weight of ones; if `bias` is True, also a bias of zeros."""
        dim, kind = whole_number(dim, name="dim", least=1), float_type(dtype)
        weight = {"weight": np.ones(dim, kind)}
        self._set(weight | ({"bias": np.zeros(dim, kind)} if bias else {}), eps)

    def _set(self, parameters: dict[str, Array], eps: float, offset: float = 0.0) -> None:
        """Check `eps`, then set all attributes."""
        if not (math.isfinite(eps) and eps >= 0):
            raise value_error(f"eps is {eps}: it must be finite and not negative")
        self.parameters, self.dim = parameters, len(parameters["weight"])
        self.eps, self.offset = float(eps), offset

    def run(
        self, x: Array, *, record: Recorder | None = None, save: bool = False
    ) -> tuple[Array, NormSaved]:
        """Run the forward pass without checks; also return the values for `backward`."""
        x, dtype = base.promote(x, self.parameters)
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

    @base.public
    def backward(
        self, grad: ArrayLike, saved: NormSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * norm(x))`.

        Args:
            grad: (..., D), the gradient for the layer's result.
            saved: the second value that `norm.training_forward(x)` returned.
            record: collects the gradient for each activation, such as `hook_scale`. If `record` is
                a `GradientRecorder`, no gradients for parameters are computed.

        Returns:
            A `Gradient` with `.x` (..., D), and with `.parameters["weight"]` and
            `.parameters["bias"]`, each (D,).

        >>> norm = LayerNorm(2, eps=0.0)
        >>> y, saved = norm.training_forward(np.array([[1.0, 5.0]]))
        >>> norm.backward([[1.0, 0.0]], saved).parameters["weight"]
        array([-1.,  0.])
        """
        grad = base.upstream(grad, saved.x.shape, saved.x.dtype)
        if record is not None:
            grad = record("hook_normalized", grad)
            if base.asks(record, "hook_scale"):
                return base.Gradient(self._back_by_scale(grad, saved, record), {})
        grad_x, weight, bias = norm_grad(
            saved.x,
            self.scaled(),
            saved.scale,
            grad,
            centred=self._is_centred,
            bias="bias" in self.parameters,
        )
        if base.for_parameters(record) is None or not self.parameters:
            return base.Gradient(grad_x, {})
        return base.Gradient(grad_x, {"weight": weight} | ({} if bias is None else {"bias": bias}))

    def _back_by_scale(self, grad: Array, saved: NormSaved, record: Recorder) -> Array:
        """Compute the gradient for `x`, and record the gradient for the divisor."""
        x, scale = saved
        centred = x - x.mean(-1, keepdims=True) if self._is_centred else x
        weighted = grad * self.scaled().astype(x.dtype, copy=False)
        of_scale = -(weighted * centred).sum(-1, keepdims=True) / np.square(scale)
        of_scale = record("hook_scale", of_scale)
        back: Array = (weighted + of_scale * centred / x.shape[-1]) / scale
        return back - back.mean(-1, keepdims=True) if self._is_centred else back

    def _scaled_by(self, x: Array, scale: Array) -> Array:
        """Normalise `x` (..., D) with a given divisor `scale` (..., 1)."""
        x = x.astype(compute_type(x.dtype), copy=False)
        centred = x - x.mean(-1, keepdims=True) if self._is_centred else x
        out: Array = centred / scale * self.scaled().astype(x.dtype, copy=False)
        bias = self.parameters.get("bias")
        return out if bias is None else out + bias.astype(x.dtype, copy=False)

    def scaled(self) -> Array:
        """Return `weight + offset` (D,), by which a normalised vector is multiplied.

        If the norm has no weight, every entry is 1.
        """
        weight = self.parameters.get("weight", np.ones(self.dim, np.float32))
        if not self.offset:
            return weight
        wide = compute_type(weight.dtype)
        scaled: Array = weight.astype(wide, copy=False) + wide.type(self.offset)
        return scaled

    @public_method
    def trace(self, x: ArrayLike) -> Trace:
        """Return the divisor `hook_scale` (..., 1) and the output `hook_normalized` (..., D).

        In a LayerNorm, the divisor `hook_scale` is `sqrt(variance + eps)`, and the output
        `hook_normalized` is `(x - mean) / hook_scale * weight + bias`. An RMSNorm uses the mean
        square instead of the variance, and does not subtract the mean.

        >>> LayerNorm(2).trace(np.array([[1.0, 7.0]])).names()
        ['hook_scale', 'hook_normalized']
        """
        record = Recorder()
        self(x, record=record)
        return Trace(record.arrays)


class LayerNorm(_Norm):
    """Layer normalisation: `(x - mean) / sqrt(variance + eps) * weight + bias` for each vector.

    Args:
        dim: D, the size of the vectors.
        eps: a number added to the variance.
        bias: whether the norm has a bias.
        affine: whether the norm has a weight and, if `bias` is True, a bias; False in OLMo.
        dtype: the type of the parameters.

    The result has the type to which NumPy promotes `x` and the parameters. Integer inputs are
    converted to the type of the parameters. For half-precision inputs, the layer computes in
    float32.

    Source:
        Ba, Kiros and Hinton 2016, "Layer Normalization", equation 4.

    >>> norm = LayerNorm(2, eps=0.0)
    >>> norm(np.array([[1.0, 5.0]]))
    array([[-1.,  1.]])
    >>> {name: array.shape for name, array in norm.parameters.items()}
    {'weight': (2,), 'bias': (2,)}
    """

    _is_centred = True

    @public_method
    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        bias: bool = True,
        affine: bool = True,
        dtype: Any = np.float32,
    ) -> None:
        self._begin(dim, eps, dtype, bias=bias)
        if not affine:
            self.parameters = {}

    @classmethod
    @public_method
    def from_parameters(
        cls, parameters: Mapping[str, ArrayLike], *, eps: float = 1e-5
    ) -> "LayerNorm":
        """Make a layer from "weight" (D,) and optionally "bias" (D,), without copying them."""
        layer = cls.__new__(cls)
        layer._set(_vectors(parameters, {"weight", "bias"}), eps)
        return layer


class RMSNorm(_Norm):
    """RMS normalisation: `x / sqrt(mean(x**2) + eps) * weight` for each vector.

    Args:
        dim: D, the size of the vectors.
        eps: a number added to the mean square.
        dtype: the type of the weight.

    The result has the type to which NumPy promotes `x` and the weight. Integer inputs are converted
    to the type of the weight. For half-precision inputs, the layer computes in float32.

    Source:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.

    >>> RMSNorm(2, eps=0.0)(np.array([[1.0, 7.0]]))
    array([[0.2, 1.4]])
    """

    _is_centred = False

    @public_method
    def __init__(self, dim: int, *, eps: float = 1e-6, dtype: Any = np.float32) -> None:
        self._begin(dim, eps, dtype, bias=False)

    @classmethod
    @public_method
    def from_parameters(
        cls, parameters: Mapping[str, ArrayLike], *, eps: float = 1e-6, offset: float = 0.0
    ) -> "RMSNorm":
        """Make a layer from a "weight" (D,), without copying it.

        Args:
            parameters: "weight" (D,).
            eps: as in `RMSNorm`.
            offset: a number added to the weight; 1 if a model's files store `weight - 1`.
        """
        layer = cls.__new__(cls)
        layer._set(_vectors(parameters, {"weight"}), eps, offset)
        return layer


def _vectors(parameters: Mapping[str, Any], known: set[str]) -> dict[str, Array]:
    """Return the parameters as float arrays; check that each has the weight's shape, (D,)."""
    arrays = base.check_parameters(parameters)
    if "weight" not in arrays or not arrays.keys() <= known:
        raise value_error(
            f"the parameters are {', '.join(sorted(arrays)) or 'none'}; "
            f"pass {' and '.join(sorted(known, reverse=True))}"
        )
    weight = arrays["weight"]
    if weight.ndim != 1:
        raise value_error(f"weight has shape {weight.shape}: it must be (D,)")
    for name, array in arrays.items():
        base.need_shape(array, weight.shape, name=name, why="the shape of weight")
    return arrays


class HeadNorms:
    """A norm of queries or keys with separate parameters for each head, as in StableLM.

    Args:
        norms: the norm of each head, for vectors (..., d).
    """

    def __init__(self, norms: Sequence[LayerNorm]) -> None:
        self.norms, self.dim = norms, sum(norm.dim for norm in norms)
        self.parameters = _number_heads(norm.parameters for norm in norms)

    def run(self, x: Array) -> tuple[Array, list[NormSaved]]:
        """Normalise the joined vectors (..., H * d); also return the values for `backward`."""
        heads = np.split(x, len(self.norms), axis=-1)
        pairs = [norm.run(head) for norm, head in zip(self.norms, heads, strict=True)]
        return np.concatenate([out for out, _ in pairs], axis=-1), [saved for _, saved in pairs]

    def backward(self, grad: Array, saved: Sequence[NormSaved], **more: Any) -> base.Gradient:
        """Return the gradients for the joined vectors (..., H * d) and for the parameters."""
        triples = zip(self.norms, np.split(grad, len(self.norms), axis=-1), saved, strict=True)
        backs = [norm.backward(part, one) for norm, part, one in triples]
        x = np.concatenate([back.x for back in backs], axis=-1)
        return base.Gradient(x, _number_heads(back.parameters for back in backs))


def _number_heads(heads: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the parameters of all heads, keyed by the number of the head and the name."""
    return {f"{n}.{name}": array for n, head in enumerate(heads) for name, array in head.items()}


class ScaleSaved(NamedTuple):
    """Values that the forward pass of a `LayerScale` saves for its backward pass."""

    x: Array  # (..., D)


class LayerScale(base.Layer):
    """A layer that computes `x * weight`, to scale the output of the attention or the MLP.

    Args:
        dim: D, the size of the vectors.
        first: the initial value of every entry of the weight.
        dtype: the type of the weight.

    The result has the type to which NumPy promotes `x` and the weight. Integer inputs are converted
    to the type of the weight.

    Source:
        Touvron et al. 2021, "Going deeper with Image Transformers", equation 4.

    >>> LayerScale(2, first=0.5)(np.array([[2.0, 4.0]])).tolist()
    [[1.0, 2.0]]
    """

    _reads_texts = False
    factor: float = 1.0

    @public_method
    def __init__(self, dim: int, *, first: float = 1.0, dtype: Any = np.float32) -> None:
        dim = whole_number(dim, name="dim", least=1)
        self.parameters = {"weight": np.full(dim, first, float_type(dtype))}
        self.dim = dim

    @classmethod
    @public_method
    def from_parameters(cls, parameters: Mapping[str, ArrayLike]) -> "LayerScale":
        """Make a layer from a "weight" (D,), without copying it."""
        layer = cls.__new__(cls)
        arrays = base.check_parameters(parameters)
        layer.dim = len(base.parameter(arrays, "weight", "(D)"))
        if len(arrays) > 1:
            other = next(name for name in arrays if name != "weight")
            raise value_error(f'there is no parameter {other}; pass only "weight"')
        layer.parameters = arrays
        return layer

    @classmethod
    @public_method
    def constant(cls, dim: int, factor: float) -> "LayerScale":
        """Make a layer without parameters that multiplies vectors of size `dim` by a constant.

        >>> LayerScale.constant(2, 0.5)(np.array([[2.0, 4.0]])).tolist()
        [[1.0, 2.0]]
        """
        layer = cls(dim)
        layer.parameters, layer.factor = {}, factor
        return layer

    def _weight(self, dtype: Any) -> Any:
        """Return the weight (D,), or the constant, as `dtype`."""
        weight = self.parameters.get("weight")
        return dtype.type(self.factor) if weight is None else weight.astype(dtype, copy=False)

    def run(
        self, x: Array, *, record: Recorder | None = None, save: bool = False
    ) -> tuple[Array, ScaleSaved]:
        """Run the forward pass without checks; also return the values for `backward`."""
        x, dtype = base.promote(x, self.parameters)
        out = x * self._weight(x.dtype)
        return out.astype(dtype, copy=False), ScaleSaved(x)

    @base.public
    def backward(
        self, grad: ArrayLike, saved: ScaleSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * scale(x))`.

        Args:
            grad: (..., D), the gradient for the layer's result.
            saved: the second value that `scale.training_forward(x)` returned.
            record: unused; a `LayerScale` records nothing.

        Returns:
            A `Gradient` with `.x` (..., D) and `.parameters["weight"]` (D,).

        >>> scale = LayerScale(2, first=0.5)
        >>> y, saved = scale.training_forward(np.array([[2.0, 4.0]]))
        >>> gradient = scale.backward([[1.0, 10.0]], saved)
        >>> gradient.x.tolist(), gradient.parameters["weight"].tolist()
        ([[0.5, 5.0]], [2.0, 40.0])
        """
        grad = base.upstream(grad, saved.x.shape, saved.x.dtype)
        weight = self._weight(grad.dtype)
        if base.for_parameters(record) is None or not self.parameters:
            return base.Gradient(grad * weight, {})
        total = (grad * saved.x).reshape(-1, self.dim).sum(0)
        return base.Gradient(grad * weight, {"weight": total})
