"""Functions that all layers share: checks, types, linear layers, and rows of packed texts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from qkv._argument_errors import public_method, type_error, value_error
from qkv.arrays import (
    Array,
    ArrayLike,
    Arrays,
    DType,
    Shape,
    as_array,
    common_type,
    compute_type,
    is_float,
)
from qkv.attend import arguments
from qkv.attend.arguments import Options
from qkv.ops import LazyMatrix
from qkv.ops.kernel import is_bfloat16, stays_bfloat16, to_bfloat16
from qkv.trace import Recorder
from qkv.trace.recorder import GradientRecorder

Method = TypeVar("Method", bound=Callable[..., Any])

# Suppress NumPy's warnings, because padding may contain NaN and infinity.
quiet = np.errstate(all="ignore")
ByName = dict[str, Array]  # Parameters, or the gradients for parameters.
Gradients = ByName | None  # The gradients for parameters; None if they are not computed.
PADDED = ("attn_mask", "bias")  # If one of these options is given, packed texts are padded.
PACKED = (*PADDED, *arguments.PACKED)


def public(method: Method) -> Method:
    """Decorate a public method: its errors name the layer's class, and NumPy does not warn."""
    return public_method(quiet(method))


def first_parameters(
    sizes: Mapping[str, tuple[int, int]], *, bias: bool, seed: int | None, dtype: DType
) -> ByName:
    """Return a random weight (rows, columns) for each name; if `bias`, also a bias of zeros.

    Weights are drawn from a normal distribution with variance 1 / rows, so that the output of a
    layer has the variance of its input. Weights are drawn in float64 and converted to `dtype`.
    """
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, (rows, columns) in sizes.items():
        weight = rng.standard_normal((rows, columns)) / np.sqrt(rows)
        parameters[f"{name}.weight"] = weight.astype(dtype)
        if bias:
            parameters[f"{name}.bias"] = np.zeros(columns, dtype)
    return parameters


def shapes_of(name: str, *weight: int, bias: bool) -> Iterator[tuple[str, Shape]]:
    """Yield `(name, shape)` for a layer's weight and, if `bias` is True, for its bias."""
    yield f"{name}.weight", weight
    if bias:
        yield f"{name}.bias", weight[-1:]


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Array]:
    """Return the parameters as a dict of float arrays."""
    arrays: dict[str, Any] = {
        name: value if isinstance(value, LazyMatrix) else as_array(value, name=name)
        for name, value in parameters.items()
    }
    for name, array in arrays.items():
        if not is_float(array.dtype):
            raise type_error(
                f"{name} is {array.dtype}, but parameters are floats; "
                f"pass {name}.astype(np.float32)"
            )
    return arrays


def need_shape(array: Array, shape: Shape, *, name: str, why: str) -> None:
    """Raise an error that ends with `why`, unless `array` has the given shape."""
    if array.shape != shape:
        raise value_error(f"{name} has shape {array.shape}, but must have {shape}: {why}")


def need_shapes(parameters: Arrays, shapes: Mapping[str, Shape], *, why: str) -> None:
    """Raise an error if a parameter is unknown or has a wrong shape; the error shows `why`."""
    for name, array in parameters.items():
        if name not in shapes:
            raise value_error(f"there is no parameter {name}: choose from {', '.join(shapes)}")
        need_shape(array, shapes[name], name=name, why=why)


def word_vectors(x: Any, *, name: str, of_texts: bool = True) -> Array:
    """Return `x` as an array of floats or integers; if `of_texts`, it must be (..., T, D)."""
    array = as_array(x, name=name)
    if not is_float(array.dtype) and array.dtype.kind not in "iu":
        raise type_error(f"{name} is {array.dtype}; pass floats or integers")
    if of_texts and array.ndim < 2:
        raise value_error(f"{name} has shape {array.shape}: it must be (..., T, D)")
    return array


def vectors_of(x: Any, dim: int, *, layer: str = "layer", of_texts: bool = True) -> Array:
    """Return `x` as an array of vectors of size `dim`. `layer` is the layer's name in errors."""
    array = word_vectors(x, name="x", of_texts=of_texts)
    if array.shape[-1:] != (dim,):
        raise value_error(f"x has shape {array.shape}, but the {layer} takes (..., {dim})")
    return array


def parameter(parameters: Arrays, name: str, shape: str) -> Array:
    """Return a parameter; check that it has as many axes as `shape`, such as "(D, F)"."""
    if name not in parameters:
        has = ", ".join(parameters) or "none"
        raise value_error(f"{name} is missing: the parameters are {has}")
    array = parameters[name]
    if array.ndim != len(shape.split(",")):
        raise value_error(f"{name} has shape {array.shape}: it must be {shape}")
    return array


def result_type(inputs: Iterable[Array], parameters: Arrays) -> Any:
    """Return `common_type` of a layer's float inputs and parameters."""
    arrays = (*inputs, *parameters.values())
    return common_type(*{a.dtype for a in arrays if is_float(a.dtype)})


def promote(x: Array, parameters: Arrays) -> tuple[Array, DType]:
    """Return two values: `x` in the dtype of the computation, and the dtype of the result."""
    dtype = result_type([x], parameters)
    return working(x, dtype), dtype


def to_bfloat16_like(x: Array, parameters: Arrays) -> Array:
    """Return `x`, converted to bfloat16 if all parameters are bfloat16."""
    arrays = [*parameters.values()]
    alike = bool(arrays) and all(is_bfloat16(array.dtype) for array in arrays)
    return to_bfloat16(x, arrays[0]) if alike else x


def working(x: Array, dtype: DType) -> Array:
    """Convert `x` to `working_type(dtype)`; copy the array only if the type changes."""
    return x.astype(working_type(dtype), copy=False)


def working_type(dtype: DType) -> DType:
    """Return the dtype of the arrays between the operations of a layer.

    Half-precision arrays become float32. If the kernel multiplies bfloat16 directly, bfloat16
    arrays stay bfloat16.
    """
    return dtype if is_bfloat16(dtype) and stays_bfloat16(dtype) else compute_type(dtype)


@dataclass(frozen=True)
class Gradient:
    """The gradients of `sum(grad * layer(x))`.

    Attributes:
        x: the gradient for the layer's input.
        parameters: the gradients for `layer.parameters`, keyed by name.
        context: the gradient for the context of cross-attention; otherwise None.
        options: the gradients for the options "bias", "sinks" and "alibi_slopes" of
            `qkv.attention`.
    """

    x: Array
    parameters: dict[str, Array]
    context: Array | None = None
    options: dict[str, Array] = field(default_factory=dict)


def need_single(x: Array, parameters: Arrays) -> None:
    """Raise an error for half precision, which the backward pass does not support."""
    dtype = result_type([x], parameters)
    if compute_type(dtype) != dtype:
        raise type_error(
            f"training_forward needs float32 or float64, but the layer computes in {dtype}: "
            "load the model with load(..., dtype=np.float32)"
        )


def upstream(grad: Any, shape: Shape, dtype: DType) -> Array:
    """Return `grad` as an array of the shape and type of the layer's result."""
    array = np.asarray(grad)
    if array.shape != shape:
        raise value_error(
            f"grad has shape {array.shape} and the result has {shape}: both shapes must be the same"
        )
    return array.astype(dtype, copy=False)


def part_back(
    part: Any,
    grad: Array,
    saved: Any,
    name: str,
    gradients: Gradients,
    record: Recorder | None = None,
) -> Gradient:
    """Run the backward pass of a part, and add the gradients for its parameters to `gradients`."""
    more = {} if record is None else {"record": record}
    back: Gradient = part.backward(grad, saved, **more)
    if gradients is not None:
        gradients.update({f"{name}.{key}": array for key, array in back.parameters.items()})
    return back


def for_parameters(record: Recorder | None) -> Gradients:
    """Return a dict to collect parameter gradients; None if `record` is a `GradientRecorder`."""
    return None if isinstance(record, GradientRecorder) else {}


def asks(record: Recorder | None, *names: str) -> bool:
    """Return whether a `GradientRecorder` wants the gradient for one of these activations."""
    return isinstance(record, GradientRecorder) and record.wants(*names)


class Layer:
    """A layer that maps vectors to vectors of the same size.

    Attributes:
        parameters: the layer's arrays, keyed by name.
        dim: D, the size of the vectors.
        hooks: the names of the activations that the layer records.
        run: the forward pass without checks; if `save` is True, `run` also returns the values for
            `backward`.
    """

    parameters: dict[str, Array]
    dim: int
    hooks: Sequence[str] = ()
    run: Callable[..., tuple[Array, Any]]
    _reads_texts: ClassVar[bool] = True  # whether the input must be (..., T, D)

    @public
    def __call__(self, x: ArrayLike, *, record: Recorder | None = None) -> Array:
        """Apply the layer to `x` (..., D); `record` collects the activations."""
        return self.run(self._check_input(x), record=record)[0]

    def forward(self, x: ArrayLike) -> Array:
        """Call the layer."""
        return self(x)

    @public
    def training_forward(self, x: ArrayLike) -> tuple[Array, Any]:
        """Run the forward pass; return the layer's result, and the values for `backward`."""
        array = self._check_input(x)
        need_single(array, self.parameters)
        return self.run(array, save=True)

    def _check_input(self, x: ArrayLike) -> Array:
        """Return `x` as an array; raise an error unless it has vectors of size `dim`."""
        return vectors_of(x, self.dim, of_texts=self._reads_texts)


class Feed(Layer):
    """A layer whose output is added to the residual stream: an MLP, or a mixture of experts."""

    @public
    def __call__(
        self, x: ArrayLike, *, residual: Array | None = None, record: Recorder | None = None
    ) -> Array:
        """Apply the layer to `x` (..., T, D).

        Args:
            x: word vectors.
            residual: (..., T, D), added to the result before rounding to half precision. A float32
                residual gives a float32 result.
            record: collects the activations.
        """
        return self.run(self._check_input(x), residual=residual, record=record)[0]


def check_options(options: Options, *, packed: bool, returns: bool = True) -> None:
    """Raise an error for options that are unknown or not supported.

    If `packed` is True, reject options that packed rows do not support. If `returns` is False,
    reject `return_weights`, `return_lse` and `out`.
    """
    without = () if returns else arguments.RETURNS
    arguments.check_options(options, without=without, why=": use trace()")
    for name, value in options.items():
        if packed and name not in PACKED and value is not None and value is not False:
            raise value_error(
                f"{name} cannot be used with cu_lengths: use only {', '.join(PACKED)}"
            )


def settings(options: Options, cu: Array | None) -> dict[str, Any]:
    """Return options with which `qkv.attention` gives the same result as a traced layer."""
    keywords = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in options.items()
        if name not in arguments.RETURNS and value is not None
    }
    if cu is not None:
        keywords |= {"query_lengths": np.diff(cu), "key_lengths": np.diff(cu)}
    return keywords


def starts_of(lengths: Iterable[int]) -> Array:
    """Return each packed text's first row number, followed by the number of rows, `(B + 1,)`."""
    return np.concatenate([[0], np.cumsum(list(lengths))]).astype(np.int64)
