"""The MLP of a block: up projection, activation and down projection, with or without a gate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_method
from qkv.arrays import Array, ArrayLike, Shape, float_type, whole_number
from qkv.layers import base
from qkv.ops.activation import activate, activation_grad, activation_named
from qkv.ops.linear import project, project_back
from qkv.trace import Recorder, Trace
from qkv.trace.recorder import unkept


class MLPSaved(NamedTuple):
    """Values that the forward pass of an MLP saves for its backward pass."""

    x: Array  # (..., T, D).
    pre: Array  # (..., T, F), the input of the activation.
    hidden: Array  # (..., T, F), the input of the down projection.
    gate: Array | None  # (..., T, F), the result of a gated MLP's activation.
    up: Array | None  # (..., T, F), the result of a gated MLP's up projection.


class MLP(base.Feed):
    """An MLP: `down(activation(up(x)))`. With a gate: `down(activation(gate(x)) * up(x))`.

    Args:
        dim: D, the size of the vectors.
        hidden: F, the size of the vectors between the two linear layers.
        activation: a name in `ACTIVATIONS` of `qkv.ops.activation`, such as "gelu" or "silu".
        gated: whether the MLP has a gate.
        bias: whether the linear layers have biases, which start at 0.
        seed: the seed of the weights. Each weight is drawn from a normal distribution with variance
            1 / (number of rows).
        dtype: the type of the parameters.

    The result has the type to which NumPy promotes `x` and the parameters. Integer inputs are
    converted to the type of the parameters. For half-precision inputs, the layer computes in
    float32.

    Source:
        Vaswani et al. 2017, section 3.3. Shazeer 2020, "GLU Variants Improve Transformer",
        describes the gated MLP.

    >>> mlp = MLP(4, 16, gated=True, bias=False, seed=0)
    >>> {name: array.shape for name, array in mlp.parameters.items()}
    {'gate_proj.weight': (4, 16), 'up_proj.weight': (4, 16), 'down_proj.weight': (16, 4)}
    >>> mlp(np.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    @public_method
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
        dim = whole_number(dim, name="dim", least=1)
        hidden = whole_number(hidden, name="hidden", least=1)
        kind, sizes = float_type(dtype), mlp_sizes(dim, hidden, gated=gated)
        self._set(base.first_parameters(sizes, bias=bias, seed=seed, dtype=kind), activation)

    @classmethod
    @public_method
    def from_parameters(
        cls, parameters: Mapping[str, ArrayLike], *, activation: str = "gelu"
    ) -> "MLP":
        """Make an MLP from parameters, without copying them.

        Args:
            parameters: "up_proj.weight" (D, F) and "down_proj.weight" (F, D). A gated MLP also has
                "gate_proj.weight" (D, F). Biases, such as "up_proj.bias" (F,), are optional.
            activation: as in `MLP`.
        """
        layer = cls.__new__(cls)
        layer._set(base.check_parameters(parameters), activation)
        return layer

    def _set(self, parameters: dict[str, Array], activation: str) -> None:
        """Check the parameters and the activation, then set all attributes."""
        activation_named(activation)
        up = base.parameter(parameters, "up_proj.weight", "(D, F)")
        base.parameter(parameters, "down_proj.weight", "(F, D)")
        self.dim, self.hidden = up.shape
        shapes: dict[str, Shape] = {}
        for name, size in mlp_sizes(*up.shape, gated=True).items():
            shapes |= base.shapes_of(name, *size, bias=True)
        base.need_shapes(parameters, shapes, why=f"up_proj.weight has shape {up.shape}")
        self.parameters, self.activation = parameters, activation
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
        """Run the forward pass without checks; if `save`, also return the values for `backward`."""
        x, dtype = base.promote(x, self.parameters)
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
        out = project(hidden, self.parameters, "down_proj", residual=residual, dtype=dtype)
        return out, saved

    @base.public
    def backward(
        self, grad: ArrayLike, saved: MLPSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * mlp(x))`.

        Args:
            grad: (..., T, D), the gradient for the layer's result. If a residual was added to the
                result, the gradient for the residual is also `grad`.
            saved: the second value that `mlp.training_forward(x)` returned.
            record: collects the gradient for each activation, such as `hook_pre`. If `record` is a
                `GradientRecorder`, no gradients for parameters are computed.

        Returns:
            A `Gradient` with `.x` (..., T, D) and `.parameters`, keyed by name.

        >>> mlp = MLP(4, 16, seed=0)
        >>> y, saved = mlp.training_forward(np.ones((3, 4)))
        >>> mlp.backward(np.ones((3, 4)), saved).parameters["up_proj.weight"].shape
        (4, 16)
        """
        gradients = base.for_parameters(record)
        x, pre, hidden, gate, up = saved
        grad = base.upstream(grad, x.shape, x.dtype)
        keep = record or unkept
        change = project_back(hidden, self.parameters, "down_proj", grad, gradients)
        change = keep("hook_post", change)
        first, grad_x = "up_proj", None
        if gate is not None and up is not None:
            first, linear = "gate_proj", keep("hook_pre_linear", change * gate)
            grad_x = project_back(x, self.parameters, "up_proj", linear, gradients)
            change = change * up
        change = keep("hook_pre", activation_grad(pre, change, self.activation))
        more = project_back(x, self.parameters, first, change, gradients)
        return base.Gradient(more if grad_x is None else more + grad_x, gradients or {})

    @public_method
    def trace(self, x: ArrayLike) -> Trace:
        """Return a trace with every activation of `layer(x)`.

        `hook_pre` (..., T, F) is the input of the activation, `hook_post` is the input of the down
        projection, and `hook_mlp_out` (..., T, D) is the layer's output. The trace of a gated MLP
        also contains `hook_pre_linear` (..., T, F), the result of the up projection.

        >>> MLP(4, 16, seed=0).trace(np.ones((3, 4)))["hook_post"].shape
        (3, 16)
        """
        record = Recorder()
        record("hook_mlp_out", self(x, record=record))
        return Trace(record.arrays)


def mlp_sizes(dim: int, hidden: int, *, gated: bool) -> dict[str, tuple[int, int]]:
    """Return the shapes (rows, columns) of an MLP's linear layers, keyed by name."""
    gate = {"gate_proj": (dim, hidden)} if gated else {}
    return {**gate, "up_proj": (dim, hidden), "down_proj": (hidden, dim)}
