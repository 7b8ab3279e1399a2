"""A mixture of experts that are gated MLPs, as Mixtral and its followers have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from numpy.typing import ArrayLike

from qkv.arrays import Array, Shape
from qkv.layers.mlp import MLP, mlp_sizes
from qkv.layers.parameters import checked, need_shape, parameter
from qkv.layers.routed import Routed
from qkv.trace import Recorder


class GatedExperts(Routed):
    """A router sends each token to `top_k` gated MLPs; their results are added by its weights.

    The router is a linear layer with a number for each expert. The largest `top_k` of them choose.
    What each expert's result counts is the softmax of those alone or, where it is not `normalized`,
    its part of the softmax of all. An expert is `down(activation(gate(x)) * up(x))`.

    Args:
        parameters: "router_proj.weight" (D, E) for E experts; for each one, by its number,
            "experts.0.gate_proj.weight" (D, F), "experts.0.up_proj.weight" (D, F) and
            "experts.0.down_proj.weight" (F, D). They are used where they stand.
        top_k: how many experts a token goes through.
        activation: as for `MLP`.
        normalized: whether what the chosen ones count adds up to 1.

    The result has the type that `x` and the parameters promote to; integers take the parameters'.
    Half precision is computed in float32.

    Raises:
        ValueError: parameters that are missing or do not fit, or more experts chosen than there
            are.
        TypeError: parameters that are not floats.

    Source:
        Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2, and Jiang et al. 2024,
        "Mixtral of Experts", section 2.1.

    >>> import numpy as np
    >>> shapes = dict(gated_expert_shapes(4, 5, 3))
    >>> shapes["experts.2.down_proj.weight"]
    (5, 4)
    >>> parameters = {name: np.ones(shape) for name, shape in shapes.items()}
    >>> GatedExperts(parameters, top_k=2)(np.ones((2, 6, 4))).shape
    (2, 6, 4)
    """

    def __init__(
        self,
        parameters: Mapping[str, ArrayLike],
        *,
        top_k: int,
        activation: str = "silu",
        normalized: bool = True,
    ) -> None:
        call = type(self).__name__
        self.parameters = checked(parameters, call=call)
        self.dim, self.hidden, self.count = _sizes(self.parameters, call=call)
        self._set(top_k, normalized=normalized)
        self.activation = activation
        for number in range(self.count):
            self._mlp(number)

    def _mlp(self, number: int) -> MLP:
        """One expert, of the parameters that stand here now."""
        prefix = f"experts.{number}."
        own = {name: self.parameters[prefix + name] for name in _EXPERT}
        return MLP.from_parameters(own, activation=self.activation)

    def _expert(self, number: int, rows: Array) -> Array:
        """What one expert gives for rows (n, D)."""
        return self._mlp(number).run(rows)[0]

    def _expert_back(
        self, number: int, rows: Array, grad: Array, weight: Array, record: Recorder | None
    ) -> tuple[Array, Array, Mapping[str, Array]]:
        """The gradients of its rows, of what its result counts, and of its parameters."""
        mlp = self._mlp(number)
        out, saved = mlp.run(rows, save=True)
        assert saved is not None
        inner = record and record.under(f"experts.{number}.")
        back = mlp.backward(weight * grad, saved, record=inner)
        return back.x, (grad * out).sum(-1), back.parameters

    def _put(self, found: dict[str, Array], number: int, own: Mapping[str, Array]) -> None:
        """Put the gradients of one expert's parameters among all."""
        found.update({f"experts.{number}.{name}": array for name, array in own.items()})


_EXPERT = tuple(f"{name}.weight" for name in mlp_sizes(1, 1, gated=True))


def gated_expert_shapes(dim: int, hidden: int, count: int) -> Iterator[tuple[str, Shape]]:
    """Each parameter of so many experts, and of their router, with its shape; lazily."""
    yield "router_proj.weight", (dim, count)
    sizes = mlp_sizes(dim, hidden, gated=True)
    for number in range(count):
        for name, size in sizes.items():
            yield f"experts.{number}.{name}.weight", size


def _sizes(parameters: Mapping[str, Array], *, call: str) -> tuple[int, int, int]:
    """D, F and E; one clear error for the first parameter that does not fit."""
    router = parameter(parameters, "router_proj.weight", "(D, E)", call=call)
    down = parameter(parameters, "experts.0.down_proj.weight", "(F, D)", call=call)
    count, (hidden, dim) = router.shape[1], down.shape
    shapes = dict(gated_expert_shapes(dim, hidden, count))
    if parameters.keys() != shapes.keys():
        wrong = sorted(parameters.keys() ^ shapes.keys())
        raise ValueError(
            f"{call}: router_proj.weight has {count} columns, which do not go with "
            f"{', '.join(wrong[:4])}: give {', '.join(_EXPERT)} for each of {count} experts"
        )
    for name, shape in shapes.items():
        why = f"experts.0.down_proj.weight has shape {down.shape}"
        need_shape(parameters[name], shape, call=call, name=name, why=why)
    return dim, hidden, count
