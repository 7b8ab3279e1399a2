"""The MLP of a block: up, activation, down, with or without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, float_type, whole_number
from qkv.layers.layer import (
    Feed,
    Gradient,
    checked,
    first_parameters,
    for_parameters,
    is_wide,
    need_shape,
    parameter,
    project,
    project_back,
    promoted,
    quiet,
    shapes_of,
    upstream,
)
from qkv.ops.activation import activate, activation_grad, activation_named
from qkv.trace import Recorder, Trace
from qkv.trace.recorder import unkept


class MLPSaved(NamedTuple):
    """What the backward pass of an MLP needs."""

    x: Array  # (..., T, D)
    pre: Array  # (..., T, F), what the activation was taken of
    hidden: Array  # (..., T, F), what was projected down
    gate: Array | None  # (..., T, F), the activation, and
    up: Array | None  # (..., T, F), what it was multiplied with


class MLP(Feed):
    """`down(activation(up(x)))`, or with a gate `down(activation(gate(x)) * up(x))`.

    Args:
        dim: D, the size of the vectors.
        hidden: F, the size between the two layers.
        activation: "gelu" (exact), "gelu_tanh", "quick_gelu", "silu" or "relu".
        gated: whether there is a gate.
        bias: whether the linear layers have biases; they begin at 0.
        seed: of the weights, which are normal with variance 1 / (their number of rows).
        dtype: of the parameters.

    The result has the type that `x` and the parameters promote to; integers take the parameters'.
    Half precision is computed in float32.

    Source:
        Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, "GLU Variants Improve Transformer".

    >>> mlp = MLP(4, 16, gated=True, bias=False, seed=0)
    >>> {name: array.shape for name, array in mlp.parameters.items()}
    {'gate_proj.weight': (4, 16), 'up_proj.weight': (4, 16), 'down_proj.weight': (16, 4)}
    >>> mlp(np.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        seed: int | None = None,
        dtype: Any = np.float32,
    ) -> None:
        call = type(self).__name__
        dim, hidden = (
            whole_number(dim, call=call, name="dim", least=1),
            whole_number(hidden, call=call, name="hidden", least=1),
        )
        kind = float_type(dtype, call=call)
        sizes = mlp_sizes(dim, hidden, gated=gated)
        self._set(first_parameters(sizes, bias=bias, seed=seed, dtype=kind), activation)

    @classmethod
    def from_parameters(
        cls, parameters: Mapping[str, ArrayLike], *, activation: str = "gelu"
    ) -> MLP:
        """A layer with these parameters, used where they stand.

        Args:
            parameters: "up_proj.weight" (D, F), "down_proj.weight" (F, D), for a gated one
                "gate_proj.weight" (D, F), and "up_proj.bias" and so on where there are biases.
            activation: as for the class.
        """
        layer = cls.__new__(cls)
        layer._set(checked(parameters, call=cls.__name__), activation)
        return layer

    def _set(self, parameters: dict[str, Array], activation: str) -> None:
        """Take parameters and activation once they fit."""
        call = type(self).__name__
        activation_named(activation, call=call)
        _check_sizes(parameters, call=call)
        self.parameters = parameters
        self.activation = activation
        self.dim, self.hidden = parameters["up_proj.weight"].shape
        self.gated = "gate_proj.weight" in parameters
        self.hooks = ("hook_pre", *["hook_pre_linear"] * self.gated, "hook_post")

    def run(
        self,
        x: Array,
        *,
        residual: Array | None = None,
        record: Recorder | None = None,
        save: bool = False,
    ) -> tuple[Array, MLPSaved | None]:
        """The forward pass, unchecked; with `save` also what the backward pass needs."""
        x, dtype = promoted(x, self.parameters, call=type(self).__name__)
        first = "gate_proj" if self.gated else "up_proj"
        saved, keep = None, record or unkept
        if save or (record is not None and record.wants("hook_pre", "hook_pre_linear")):
            pre = keep("hook_pre", project(x, self.parameters, first))
            gate = up = None
            hidden = activate(pre, self.activation)  # (..., T, F)
            if self.gated:
                gate = hidden
                up = keep("hook_pre_linear", project(x, self.parameters, "up_proj"))
                hidden = gate * up
            saved = MLPSaved(x, pre, hidden, gate, up) if save else None
        else:
            hidden = project(x, self.parameters, first, activation=self.activation)
            if self.gated:
                hidden = project(x, self.parameters, "up_proj", gate=hidden)
        hidden = keep("hook_post", hidden)
        out = project(hidden, self.parameters, "down_proj", residual=residual)
        return (out if is_wide(residual) else out.astype(dtype, copy=False)), saved

    @quiet
    def backward(
        self, grad: ArrayLike, saved: MLPSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass: the gradients of `sum(grad * mlp(x))`.

        Args:
            grad: (..., T, D), the gradient of what the layer gave; that of a residual is the same.
            saved: what `mlp.training_forward(x)` gave beside it.
            record: collects the gradients on the way, by the names of a trace; with a
                `GradientRecorder` there are none of parameters.

        Returns:
            `.x` (..., T, D) and `.parameters` by their names.

        >>> mlp = MLP(4, 16, seed=0)
        >>> y, saved = mlp.training_forward(np.ones((3, 4)))
        >>> mlp.backward(np.ones((3, 4)), saved).parameters["up_proj.weight"].shape
        (4, 16)
        """
        found = for_parameters(record)
        x, pre, hidden, gate, up = saved
        grad = upstream(grad, x.shape, x.dtype, call=type(self).__name__)
        change = project_back(hidden, self.parameters, "down_proj", grad, found)
        keep = record or unkept
        change = keep("hook_post", change)
        first, grad_x = "up_proj", None
        if gate is not None and up is not None:
            first, linear = "gate_proj", change * gate
            linear = keep("hook_pre_linear", linear)
            grad_x = project_back(x, self.parameters, "up_proj", linear, found)
            change = change * up
        change = activation_grad(pre, change, self.activation)
        change = keep("hook_pre", change)
        more = project_back(x, self.parameters, first, change, found)
        return Gradient(more if grad_x is None else more + grad_x, found or {})

    def trace(self, x: ArrayLike) -> Trace:
        """Every intermediate of `layer(x)` by its name.

        These are `hook_pre` (..., T, F), what the activation is taken of, for a gated layer
        `hook_pre_linear`, what that is multiplied with, `hook_post`, what is projected down, and
        `hook_mlp_out` (..., T, D), the layer's output.

        >>> MLP(4, 16, seed=0).trace(np.ones((3, 4)))["hook_post"].shape
        (3, 16)
        """
        record = Recorder()
        record("hook_mlp_out", self(x, record=record))
        return Trace(record.arrays)


def mlp_sizes(dim: int, hidden: int, *, gated: bool) -> dict[str, tuple[int, int]]:
    """The linear layers of an MLP, each with its rows and columns."""
    gate = {"gate_proj": (dim, hidden)} if gated else {}
    return {**gate, "up_proj": (dim, hidden), "down_proj": (hidden, dim)}


def _check_sizes(parameters: Mapping[str, Array], *, call: str) -> None:
    """One clear error for the first parameter that is missing, unknown or of another shape."""
    up = parameter(parameters, "up_proj.weight", "(D, F)", call=call)
    parameter(parameters, "down_proj.weight", "(F, D)", call=call)
    dim, hidden = up.shape
    shapes: dict[str, tuple[int, ...]] = {}
    for name, size in mlp_sizes(dim, hidden, gated=True).items():
        shapes |= shapes_of(name, *size, bias=True)
    for name, array in parameters.items():
        if name not in shapes:
            raise ValueError(
                f"{call}: there is no parameter {name}: choose from {', '.join(shapes)}"
            )
        why = f"up_proj.weight has shape {up.shape}"
        need_shape(array, shapes[name], call=call, name=name, why=why)
