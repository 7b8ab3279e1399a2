"""What the backward pass of a layer gives, and the backward pass of one linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.layers.parameters import result_type
from qkv.ops.linear import input_grad, linear_grad
from qkv.trace import Recorder
from qkv.trace.recorder import GradientRecorder


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
