"""A mixture of experts: several MLPs, of which each token goes through the few it is sent to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import is_

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.layers.gradient import for_parameters, project_back
from qkv.layers.parameters import checked, need_shape, parameter, project
from qkv.layers.routed import Routed
from qkv.ops.linear import linear
from qkv.trace import Recorder


class Experts(Routed):
    """A router sends each token to `top_k` experts; their results are added by its weights.

    The router is a linear layer with a number for each expert. The largest `top_k` of them choose,
    and the softmax of those alone says what each expert's result counts. An expert is a gated MLP
    whose numbers are held within a limit, as in GPT-OSS: with `g = min(gate(x), limit)` and
    `u = up(x)` between `-limit` and `limit`, it is `down((u + 1) * g * sigmoid(alpha * g))`.

    Args:
        parameters: "router_proj.weight" (D, E) for E experts and "router_proj.bias" (E,);
            "experts.gate_up" (E, D, 2 * F), in whose columns gate and up take turns, and
            "experts.gate_up_bias" (E, 2 * F); "experts.down" (E, F, D) and
            "experts.down_bias" (E, D). They are used where they stand.
        top_k: how many experts a token goes through.
        alpha: how steep the sigmoid is.
        limit: of the numbers in an expert.

    The result has the type that `x` and the parameters promote to; integers take the parameters'.
    Half precision is computed in float32.

    Raises:
        ValueError: parameters that are missing or do not fit, or more experts chosen than there
            are.
        TypeError: parameters that are not floats.

    Source:
        Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2, and OpenAI 2025,
        "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2.

    >>> shapes = {"gate_up": (3, 4, 10), "gate_up_bias": (3, 10), "down": (3, 5, 4)}
    >>> shapes["down_bias"] = (3, 4)
    >>> parameters = {f"experts.{name}": np.ones(shape) for name, shape in shapes.items()}
    >>> parameters |= {"router_proj.weight": np.ones((4, 3)), "router_proj.bias": np.ones(3)}
    >>> Experts(parameters, top_k=2)(np.ones((2, 6, 4))).shape
    (2, 6, 4)
    """

    def __init__(
        self,
        parameters: Mapping[str, ArrayLike],
        *,
        top_k: int,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        call = type(self).__name__
        self.parameters = checked(parameters, call=call)
        self.dim, self.hidden, self.count = _sizes(self.parameters, call=call)
        self._set(top_k, normalized=True)
        for name, value in (("alpha", alpha), ("limit", limit)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{call}: {name} is {value}: it must be finite and above 0")
        self.alpha, self.limit = float(alpha), float(limit)
        self._whole: list[Array] = []
        self._experts: list[tuple[Array, ...]] = []

    def _each(self) -> list[tuple[Array, ...]]:
        """The arrays of each expert: the same ones each time, which stay laid out for products."""
        whole = [self.parameters[f"experts.{name}"] for name in _EXPERT.values()]
        if not self._whole or not all(map(is_, self._whole, whole)):
            self._experts, self._whole = list(zip(*whole, strict=True)), whole
        return self._experts

    def _expert(self, number: int, rows: Array) -> Array:
        """What one expert gives for rows (n, D)."""
        gate_up, gate_up_bias, down, down_bias = self._each()[number]
        both = linear(rows, gate_up, gate_up_bias, wide=True)  # (rows, 2 * F)
        limit = both.dtype.type(self.limit)
        gate, up = np.minimum(both[:, ::2], limit), np.clip(both[:, 1::2], -limit, limit)
        hidden = (up + 1) * gate / (1 + np.exp(-both.dtype.type(self.alpha) * gate))  # (rows, F)
        return linear(hidden.astype(rows.dtype, copy=False), down, down_bias, wide=True)

    def _expert_back(
        self, number: int, rows: Array, grad: Array, weight: Array, record: Recorder | None
    ) -> tuple[Array, Array, Mapping[str, Array]]:
        """The gradients of its rows, of what its result counts, and of its arrays."""
        own, found = dict(zip(_EXPERT, self._each()[number], strict=True)), for_parameters(record)
        both = project(rows, own, "gate_up")  # (rows, 2 * F)
        limit, alpha = both.dtype.type(self.limit), both.dtype.type(self.alpha)
        gate, up = np.minimum(both[:, ::2], limit), np.clip(both[:, 1::2], -limit, limit)
        open_ = 1 / (1 + np.exp(-alpha * gate))
        hidden = (up + 1) * gate * open_
        counts = (grad * project(hidden, own, "down")).sum(-1)
        change = project_back(hidden, own, "down", weight * grad, found)
        change_both = np.empty_like(both)
        slope = (up + 1) * open_ * (1 + alpha * gate * (1 - open_))
        change_both[:, ::2] = np.where(both[:, ::2] <= limit, change * slope, 0)
        change_both[:, 1::2] = np.where(np.abs(both[:, 1::2]) <= limit, change * gate * open_, 0)
        grad_rows = project_back(rows, own, "gate_up", change_both, found)
        return grad_rows, counts, found or {}

    def _put(self, found: dict[str, Array], number: int, own: Mapping[str, Array]) -> None:
        """Put the gradients of one expert's arrays among all."""
        for name, array in own.items():
            found[f"experts.{_EXPERT[name]}"][number] = array


# The arrays of all experts, by the names of linear layers for those of one.
_EXPERT = {
    "gate_up.weight": "gate_up",
    "gate_up.bias": "gate_up_bias",
    "down.weight": "down",
    "down.bias": "down_bias",
}


def expert_shapes(dim: int, hidden: int, count: int) -> dict[str, tuple[int, ...]]:
    """Each parameter of so many experts, and of their router, with its shape."""
    return {
        "router_proj.weight": (dim, count),
        "router_proj.bias": (count,),
        "experts.gate_up": (count, dim, 2 * hidden),
        "experts.gate_up_bias": (count, 2 * hidden),
        "experts.down": (count, hidden, dim),
        "experts.down_bias": (count, dim),
    }


def _sizes(parameters: Mapping[str, Array], *, call: str) -> tuple[int, int, int]:
    """D, F and E; one clear error for the first parameter that does not fit."""
    down = parameter(parameters, "experts.down", "(E, F, D)", call=call)
    count, hidden, dim = down.shape
    shapes = expert_shapes(dim, hidden, count)
    if parameters.keys() != shapes.keys():
        raise ValueError(
            f"{call}: the parameters are {', '.join(parameters)}: give {', '.join(shapes)}"
        )
    for name, shape in shapes.items():
        why = f"experts.down has shape {down.shape}"
        need_shape(parameters[name], shape, call=call, name=name, why=why)
    return dim, hidden, count
