"""What layers share: checks of parameters and inputs, types, linear layers, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, compute_type, is_float, native
from qkv.ops.layout import is_bfloat16, narrowed, stays_bfloat16
from qkv.ops.linear import input_grad, linear, linear_grad
from qkv.trace import Recorder
from qkv.trace.recorder import GradientRecorder

# What stands in padding may be anything, and infinities follow IEEE: neither draws a warning.
quiet = np.errstate(all="ignore")


def first_parameters(
    sizes: Mapping[str, tuple[int, int]], *, bias: bool, seed: int | None, dtype: np.dtype[Any]
) -> dict[str, Array]:
    """A weight (rows, columns) for each name, and a bias of 0 where there are biases.

    Weights are normal numbers of variance 1 / rows, so that a product with them keeps the size of
    its input. They are drawn in float64: a seed gives the same in every type, up to rounding.
    """
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, (rows, columns) in sizes.items():
        weight = rng.standard_normal((rows, columns)) / np.sqrt(rows)
        parameters[f"{name}.weight"] = weight.astype(dtype)
        if bias:
            parameters[f"{name}.bias"] = np.zeros(columns, dtype)
    return parameters


def shapes_of(name: str, *weight: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of the weight of a linear layer or a norm, and of its bias if it has one."""
    yield f"{name}.weight", weight
    if bias:
        yield f"{name}.bias", weight[-1:]


def checked(parameters: Mapping[str, Any], *, call: str) -> dict[str, Array]:
    """The parameters as a dict of float arrays."""
    arrays = {name: as_array(value, call=call, name=name) for name, value in parameters.items()}
    for name, array in arrays.items():
        if not is_float(array.dtype):
            raise TypeError(
                f"{call}: {name} is {array.dtype}: parameters are floats, "
                f"write {name}.astype(np.float32)"
            )
    return arrays


def need_shape(array: Array, shape: tuple[int, ...], *, call: str, name: str, why: str) -> None:
    """An error unless `array` has this shape; `why` says where the shape comes from."""
    if array.shape != shape:
        raise ValueError(f"{call}: {name} has shape {array.shape} and must have {shape}: {why}")


def common_type(types: Iterable[np.dtype[Any]], *, call: str) -> np.dtype[Any]:
    """The type that these promote to, as NumPy does it."""
    names = dict.fromkeys(types)
    try:
        return native(np.result_type(*names))
    except TypeError:
        raise TypeError(
            f"{call}: {' and '.join(str(kind) for kind in names)} have no common type: "
            "convert one of them with astype"
        ) from None


def word_vectors(x: Any, *, call: str, name: str, of_texts: bool = True) -> Array:
    """`x` as an array (..., T, D) of floats or integers; if it is not `of_texts`, of any shape."""
    array = as_array(x, call=call, name=name)
    if not is_float(array.dtype) and array.dtype.kind not in "iu":
        raise TypeError(f"{call}: {name} is {array.dtype}: give floats or integers")
    if of_texts and array.ndim < 2:
        raise ValueError(f"{call}: {name} has shape {array.shape}: it must be (..., T, D)")
    return array


def vectors_of(x: Any, dim: int, *, call: str, of: str = "layer", of_texts: bool = True) -> Array:
    """`x` as `word_vectors` gives it, for a layer (or what `of` calls it) that takes this D."""
    array = word_vectors(x, call=call, name="x", of_texts=of_texts)
    if array.shape[-1:] != (dim,):
        raise ValueError(f"{call}: x has shape {array.shape} and the {of} takes (..., {dim})")
    return array


def parameter(parameters: Mapping[str, Array], name: str, shape: str, *, call: str) -> Array:
    """The parameter of this name, which must be there and have the axes of `shape`, "(D, F)"."""
    if name not in parameters:
        has = ", ".join(parameters) or "nothing"
        raise ValueError(f"{call}: {name} is missing: there is {has}")
    array = parameters[name]
    if array.ndim != len(shape.split(",")):
        raise ValueError(f"{call}: {name} has shape {array.shape}: it must be {shape}")
    return array


def result_type(inputs: Iterable[Array], parameters: Mapping[str, Array], *, call: str) -> Any:
    """The type a layer returns: that of its inputs and parameters together, integers left out."""
    arrays = (*inputs, *parameters.values())
    return common_type((a.dtype for a in arrays if is_float(a.dtype)), call=call)


def promoted(
    x: Array, parameters: Mapping[str, Array], *, call: str
) -> tuple[Array, np.dtype[Any]]:
    """`x` in the type that a layer works in, and the type of what the layer returns."""
    dtype = result_type([x], parameters, call=call)
    return working(x, dtype), dtype


def project(
    x: Array,
    parameters: Mapping[str, Array],
    name: str,
    *,
    activation: str | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """One linear layer: (..., in) -> (..., out); see `qkv.ops.linear`.

    In half precision, a residual of float32 gives float32.
    """
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    return linear(
        x, weight, bias, activation=activation, gate=gate, residual=residual, wide=is_wide(residual)
    )


def narrowed_to(x: Array, parameters: Mapping[str, Array]) -> Array:
    """`x` in bfloat16 where all the parameters of a part are, else as it is."""
    first, *others = parameters.values()
    alike = is_bfloat16(first.dtype) and all(array.dtype == first.dtype for array in others)
    return narrowed(x, first) if alike else x


def is_wide(residual: Array | None) -> bool:
    """Whether half precision that is added to this becomes float32."""
    return residual is not None and residual.dtype == np.float32


def working(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x` in the type that work on `dtype` is done in; no copy where it has it."""
    return x.astype(working_type(dtype), copy=False)


def working_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of what a layer hands from one operation to the next.

    It is float32 for half precision, but bfloat16 stays as it is where the kernel computes.
    """
    return dtype if stays_bfloat16(dtype) else compute_type(dtype)


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


def need_single(x: Array, parameters: Mapping[str, Array], *, call: str) -> None:
    """An error if what is kept for the backward pass would be in half precision."""
    dtype = result_type([x], parameters, call=call)
    if compute_type(dtype) != dtype:
        raise TypeError(
            f"{call}: training_forward is for training and the layer computes in {dtype}: "
            "train in float32, as load(..., dtype=np.float32) gives it"
        )


def upstream(grad: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *, call: str) -> Array:
    """`grad` as an array of the shape and type of what the layer gave."""
    array = np.asarray(grad)
    if array.shape != shape:
        raise ValueError(
            f"{call}.backward: grad has shape {array.shape} and the layer gave {shape}: "
            "they must be the same"
        )
    return array.astype(dtype, copy=False)


def part_back(
    part: Any,
    grad: Array,
    saved: Any,
    name: str,
    found: dict[str, Array] | None,
    record: Recorder | None = None,
) -> Gradient:
    """The backward pass of a part; the gradients of its parameters are added under its name."""
    more = {} if record is None else {"record": record}
    back: Gradient = part.backward(grad, saved, **more)
    if found is not None:
        found.update({f"{name}.{own}": array for own, array in back.parameters.items()})
    return back


def project_back(
    x: Array,
    parameters: Mapping[str, Array],
    name: str,
    grad: Array,
    found: dict[str, Array] | None,
) -> Array:
    """The backward pass of `project`: gives the gradient of `x`, adds those of the parameters."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    if found is None:
        return input_grad(parameters[weight], grad)
    grad_x, found[weight], grad_bias = linear_grad(
        x, parameters[weight], grad, bias=bias in parameters
    )
    if grad_bias is not None:
        found[bias] = grad_bias
    return grad_x


def for_parameters(record: Recorder | None) -> dict[str, Array] | None:
    """Where a backward pass puts the gradients of parameters; None where it computes none."""
    return None if isinstance(record, GradientRecorder) else {}


def asks(record: Recorder | None, *names: str) -> bool:
    """Whether gradients of these are asked for that a backward pass forms for nothing else."""
    return isinstance(record, GradientRecorder) and record.wants(*names)


class Layer:
    """A layer from vectors to vectors of the same size.

    Attributes:
        parameters: its arrays by their names.
        dim: D, the size of the vectors.
        hooks: the names that it gives a `Recorder`.
        run: the forward pass, unchecked; with `save` also what `backward` needs.
    """

    parameters: dict[str, Array]
    dim: int
    hooks: Sequence[str] = ()
    run: Callable[..., tuple[Array, Any]]
    _reads_texts: ClassVar[bool] = True  # (..., T, D), not any (..., D)

    @quiet
    def __call__(self, x: ArrayLike, *, record: Recorder | None = None) -> Array:
        """From `x` (..., D) to the same shape; `record` collects what is computed on the way."""
        return self.run(self._checked(x), record=record)[0]

    def forward(self, x: ArrayLike) -> Array:
        """The same as calling the layer."""
        return self(x)

    @quiet
    def training_forward(self, x: ArrayLike) -> tuple[Array, Any]:
        """What the layer gives, and what `backward` needs of it."""
        array = self._checked(x)
        need_single(array, self.parameters, call=type(self).__name__)
        return self.run(array, save=True)

    def _checked(self, x: ArrayLike) -> Array:
        """`x` as an array that the layer takes."""
        call = type(self).__name__
        return vectors_of(x, self.dim, call=call, of_texts=self._reads_texts)


class Feed(Layer):
    """A layer that stands between two residual states: an MLP, or what takes its place."""

    @quiet
    def __call__(
        self, x: ArrayLike, *, residual: Array | None = None, record: Recorder | None = None
    ) -> Array:
        """From `x` (..., T, D) to the same shape.

        Args:
            x: word vectors.
            residual: (..., T, D), added to the result before that is rounded to half precision; if
                it is float32, so is the result.
            record: collects what is computed on the way.
        """
        return self.run(self._checked(x), residual=residual, record=record)[0]
