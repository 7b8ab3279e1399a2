"""Mixtures of experts: a router sends each token to a few MLPs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import NamedTuple

import numpy as np

from qkv._argument_errors import public_method, value_error
from qkv.arrays import Array, ArrayLike, Arrays, Shape, compute_type, whole_number
from qkv.attend import softmax
from qkv.layers import base
from qkv.layers._mlp import MLP, mlp_sizes
from qkv.ops.linear import is_wide, linear, project, project_back
from qkv.trace import Recorder

Keep = Callable[[str, Array], Array]


class RoutedSaved(NamedTuple):
    """Values that the forward pass of experts saves for their backward pass."""

    rows: Array  # (rows, D).
    chosen: Array  # (rows, top_k), the experts of each row.
    weights: Array  # (rows, top_k), the weights of the experts' results.
    probabilities: Array  # (rows, E), the softmax of all scores, or its edited replacement.
    computed: Array  # (rows, E), the softmax of all scores.
    shape: tuple[int, ...]  # (..., T, D).


class Routed(base.Feed, ABC):
    """The base class of mixtures of experts; subclasses define one expert.

    The router is a linear layer that computes a score for each expert. A token goes to the `top_k`
    experts with the largest scores. The results of these experts are multiplied by weights and
    summed. If `normalized`, the weights are the softmax of the `top_k` largest scores. Otherwise,
    the weight of a chosen expert is its probability in the softmax of all scores.

    A trace has the softmax of all scores as `hook_expert_weights` (..., T, E). An edit of this
    activation changes the chosen experts and their weights. `hook_expert_indices` (..., T, top_k)
    holds the chosen experts.
    """

    hooks = ("hook_expert_weights", "hook_expert_indices")
    parameters: dict[str, Array]
    dim: int
    count: int

    def _set(self, top_k: int, *, normalized: bool) -> None:
        """Check `top_k`, then set the attributes `top_k` and `normalized`."""
        self.normalized = normalized
        self.top_k = whole_number(top_k, name="top_k", least=1)
        if self.top_k > self.count:
            raise value_error(
                f"top_k is {top_k}, but there are {self.count} experts: choose at most {self.count}"
            )

    def matrices(self) -> list[Array]:
        """Return the matrices of experts that are parts of larger parameters."""
        return []

    @abstractmethod
    def _expert(self, number: int, rows: Array) -> Array:
        """Return the result of one expert for rows (n, D)."""

    @abstractmethod
    def _expert_back(
        self, number: int, rows: Array, grad: Array, weight: Array, record: Recorder | None
    ) -> tuple[Array, Array, Arrays]:
        """Return three gradients of one expert: for `rows`, `weight` and the parameters."""

    @abstractmethod
    def _put(self, gradients: dict[str, Array], number: int, arrays: Arrays) -> None:
        """Put `arrays`, the gradients for the parameters of expert `number`, into `gradients`."""

    def run(
        self,
        x: Array,
        *,
        residual: Array | None = None,
        record: Recorder | None = None,
        save: bool = False,
    ) -> tuple[Array, RoutedSaved]:
        """Run the forward pass without checks; also return the values for `backward`."""
        x, dtype = base.promote(x, self.parameters)
        rows = x.reshape(-1, self.dim)  # (rows, D)
        shape = x.shape[:-1]

        def keep(name: str, array: Array) -> Array:
            if record is None:
                return array
            return record(name, array.reshape(*shape, -1)).reshape(len(rows), -1)

        chosen, weights, probabilities, computed = self._route(rows, keep)
        out: Array = np.zeros(rows.shape, compute_type(dtype))
        for number in np.unique(chosen):
            row, rank = np.nonzero(chosen == number)
            out[row] += weights[row, rank, None] * self._expert(number, rows[row])
        out = out.reshape(x.shape)
        if residual is not None:
            out = out + residual
        out = out if is_wide(residual) else out.astype(dtype, copy=False)
        return out, RoutedSaved(rows, chosen, weights, probabilities, computed, x.shape)

    @base.public
    def backward(
        self, grad: ArrayLike, saved: RoutedSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * layer(x))`.

        The router gets gradients only through the weights of the experts' results. The choice of
        the experts has no gradient.

        Args:
            grad: (..., T, D), the gradient for the layer's result. If a residual was added to the
                result, the gradient for the residual is also `grad`.
            saved: the second value that `layer.training_forward(x)` returned.
            record: collects the gradient for `hook_expert_weights`. If `record` is a
                `GradientRecorder`, no gradients for parameters are computed.

        Returns:
            A `Gradient` with `.x` (..., T, D) and `.parameters`, keyed by name.
        """
        rows, chosen, weights, probabilities, computed, shape = saved
        grad = base.upstream(grad, shape, rows.dtype)
        grad = grad.reshape(-1, self.dim)
        gradients = base.for_parameters(record)
        if gradients is not None:
            gradients |= {
                name: np.zeros(array.shape, grad.dtype)
                for name, array in self.parameters.items()
                if name.startswith("experts.")
            }
        grad_rows, counts = np.zeros_like(rows), np.zeros_like(weights)
        for number in np.unique(chosen):
            row, rank = np.nonzero(chosen == number)
            of_rows, counts[row, rank], arrays = self._expert_back(
                number, rows[row], grad[row], weights[row, rank, None], record
            )
            grad_rows[row] += of_rows
            if gradients is not None:
                self._put(gradients, number, arrays)
        if self.normalized:  # The weights are shares of the chosen experts' probabilities.
            total = np.take_along_axis(probabilities, chosen, -1).sum(-1, keepdims=True)
            counts = (counts - (weights * counts).sum(-1, keepdims=True)) / total
        slopes = np.zeros((len(rows), self.count), rows.dtype)
        np.put_along_axis(slopes, chosen, counts, -1)
        if record is not None:
            slopes = record("hook_expert_weights", slopes.reshape(*shape[:-1], -1))
            slopes = slopes.reshape(len(rows), -1)
        scores = computed * (slopes - (computed * slopes).sum(-1, keepdims=True))
        grad_rows += project_back(rows, self.parameters, "router_proj", scores, gradients)
        return base.Gradient(grad_rows.reshape(shape), gradients or {})

    def _route(self, rows: Array, keep: Keep) -> tuple[Array, Array, Array, Array]:
        """Return `chosen`, `weights`, `probabilities` and `computed`, fields of `RoutedSaved`."""
        # Compute scores in float32, because half precision could change the order of close scores.
        wide = rows.astype(compute_type(rows.dtype), copy=False)
        scores = project(wide, self.parameters, "router_proj")  # (rows, E)
        computed = softmax(scores)
        probabilities = keep("hook_expert_weights", computed)
        edited = probabilities is not computed and not np.array_equal(probabilities, computed)
        order = np.argsort(-(probabilities if edited else scores), axis=-1, kind="stable")
        chosen = keep("hook_expert_indices", order[:, : self.top_k])
        weights = np.take_along_axis(probabilities, chosen, -1)
        if self.normalized and not edited:  # correct even if all weights underflow
            weights = softmax(np.take_along_axis(scores, chosen, -1))
        elif self.normalized:
            weights = weights / weights.sum(-1, keepdims=True)
        return chosen, weights, probabilities, computed


class Experts(Routed):
    """A layer that sends each token to `top_k` experts and adds their weighted results.

    The router is a linear layer that computes a score for each expert. A token goes to the experts
    with the largest scores, and the softmax of these scores gives the weights. As in GPT-OSS, an
    expert is a gated MLP with clipped activations: `down((u + 1) * g * sigmoid(alpha * g))`. Here,
    `g` is `min(gate(x), limit)`, and `u` is `up(x)` clipped to the range from `-limit` to `limit`.

    Args:
        parameters: for E experts, "router_proj.weight" (D, E), "router_proj.bias" (E,),
            "experts.gate_up" (E, D, 2 * F), "experts.gate_up_bias" (E, 2 * F), "experts.down"
            (E, F, D) and "experts.down_bias" (E, D). In "experts.gate_up", the even columns are the
            weight of the gate, and the odd columns are the weight of the up projection. The
            parameters are not copied.
        top_k: the number of experts for each token.
        alpha: the factor in the sigmoid, as in the formula above.
        limit: the number that bounds `g` and `u` in the formula above.

    The result has the type to which NumPy promotes `x` and the parameters. Integer inputs are
    converted to the type of the parameters. For half-precision inputs, the layer computes in
    float32.

    Raises:
        ValueError: parameters are missing or do not fit, or `top_k` is greater than E.
        TypeError: parameters are not floats.

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

    @public_method
    def __init__(
        self,
        parameters: Mapping[str, ArrayLike],
        *,
        top_k: int,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        self.parameters = base.check_parameters(parameters)
        self.dim, self.hidden, self.count = _sizes(self.parameters)
        self._set(top_k, normalized=True)
        for name, value in (("alpha", alpha), ("limit", limit)):
            if not (math.isfinite(value) and value > 0):
                raise value_error(f"{name} is {value}: it must be finite and above 0")
        self.alpha, self.limit = float(alpha), float(limit)
        self._whole: list[Array] = []
        self._experts: list[tuple[Array, ...]] = []

    def _each(self) -> list[tuple[Array, ...]]:
        """Return one tuple of weights and biases for each expert.

        As long as the parameters are the same, every call returns the same array objects. `linear`
        stores a packed copy of each array object, and would have to pack every new object again.
        """
        whole = [self.parameters[f"experts.{name}"] for name in _EXPERT.values()]
        if not self._whole or not all(map(is_, self._whole, whole)):
            self._experts, self._whole = list(zip(*whole, strict=True)), whole
        return self._experts

    def matrices(self) -> list[Array]:
        """Return the matrices of experts that are parts of larger parameters."""
        return [array for arrays in self._each() for array in arrays if array.ndim == 2]

    def _expert(self, number: int, rows: Array) -> Array:
        """Return the result of one expert for rows (n, D)."""
        gate_up, gate_up_bias, down, down_bias = self._each()[number]
        both = linear(rows, gate_up, gate_up_bias, wide=True)  # (rows, 2 * F)
        limit = both.dtype.type(self.limit)
        gate, up = np.minimum(both[:, ::2], limit), np.clip(both[:, 1::2], -limit, limit)
        hidden = (up + 1) * gate / (1 + np.exp(np.minimum(-both.dtype.type(self.alpha) * gate, 87)))
        return linear(hidden.astype(rows.dtype, copy=False), down, down_bias, wide=True)

    def _expert_back(
        self, number: int, rows: Array, grad: Array, weight: Array, record: Recorder | None
    ) -> tuple[Array, Array, Arrays]:
        """Return three gradients of one expert: for `rows`, `weight` and the parameters."""
        parameters = dict(zip(_EXPERT, self._each()[number], strict=True))
        gradients = base.for_parameters(record)
        both = project(rows, parameters, "gate_up")  # (rows, 2 * F)
        limit, alpha = both.dtype.type(self.limit), both.dtype.type(self.alpha)
        gate, up = np.minimum(both[:, ::2], limit), np.clip(both[:, 1::2], -limit, limit)
        open_ = 1 / (1 + np.exp(np.minimum(-alpha * gate, 87)))
        hidden = (up + 1) * gate * open_
        counts = (grad * project(hidden, parameters, "down")).sum(-1)
        change = project_back(hidden, parameters, "down", weight * grad, gradients)
        change_both = np.empty_like(both)
        slope = (up + 1) * open_ * (1 + alpha * gate * (1 - open_))
        change_both[:, ::2] = np.where(both[:, ::2] <= limit, change * slope, 0)
        change_both[:, 1::2] = np.where(np.abs(both[:, 1::2]) <= limit, change * gate * open_, 0)
        grad_rows = project_back(rows, parameters, "gate_up", change_both, gradients)
        return grad_rows, counts, gradients or {}

    def _put(self, gradients: dict[str, Array], number: int, arrays: Arrays) -> None:
        """Put `arrays`, the gradients for the parameters of expert `number`, into `gradients`."""
        for name, array in arrays.items():
            gradients[f"experts.{_EXPERT[name]}"][number] = array


# The array "experts.gate_up" of the layer holds the parameter "gate_up.weight" of every expert. So
# the dict maps "gate_up.weight" to "gate_up".
_EXPERT = {
    "gate_up.weight": "gate_up",
    "gate_up.bias": "gate_up_bias",
    "down.weight": "down",
    "down.bias": "down_bias",
}


def expert_shapes(dim: int, hidden: int, count: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of `count` experts and their router."""
    return {
        "router_proj.weight": (dim, count),
        "router_proj.bias": (count,),
        "experts.gate_up": (count, dim, 2 * hidden),
        "experts.gate_up_bias": (count, 2 * hidden),
        "experts.down": (count, hidden, dim),
        "experts.down_bias": (count, dim),
    }


def _sizes(parameters: Arrays) -> tuple[int, int, int]:
    """Return D, F and the number of experts; raise an error for a wrong shape."""
    down = base.parameter(parameters, "experts.down", "(E, F, D)")
    count, hidden, dim = down.shape
    shapes = expert_shapes(dim, hidden, count)
    if parameters.keys() != shapes.keys():
        raise value_error(f"the parameters are {', '.join(parameters)}; pass {', '.join(shapes)}")
    for name, shape in shapes.items():
        why = f"experts.down has shape {down.shape}"
        base.need_shape(parameters[name], shape, name=name, why=why)
    return dim, hidden, count


class GatedExperts(Routed):
    """A layer that sends each token to `top_k` gated MLPs and adds their weighted results.

    The router is a linear layer that computes a score for each expert. A token goes to the experts
    with the largest scores. If `normalized`, the softmax of these scores gives the weights.
    Otherwise, the softmax of all scores gives the weights. An expert computes
    `down(activation(gate(x)) * up(x))`.

    Args:
        parameters: "router_proj.weight" (D, E) for E experts. Each expert, such as expert 0, has
            "experts.0.gate_proj.weight" (D, F), "experts.0.up_proj.weight" (D, F) and
            "experts.0.down_proj.weight" (F, D). The parameters are not copied.
        top_k: the number of experts for each token.
        activation: as in `MLP`.
        normalized: whether the weights of the chosen experts sum to 1.

    The result has the type to which NumPy promotes `x` and the parameters. Integer inputs are
    converted to the type of the parameters. For half-precision inputs, the layer computes in
    float32.

    Raises:
        ValueError: parameters are missing or do not fit, or `top_k` is greater than E.
        TypeError: parameters are not floats.

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

    @public_method
    def __init__(
        self,
        parameters: Mapping[str, ArrayLike],
        *,
        top_k: int,
        activation: str = "silu",
        normalized: bool = True,
    ) -> None:
        self.parameters = base.check_parameters(parameters)
        self.dim, self.hidden, self.count = _gated_sizes(self.parameters)
        self._set(top_k, normalized=normalized)
        self.activation = activation
        for number in range(self.count):
            self._mlp(number)

    def _mlp(self, number: int) -> MLP:
        """Return the expert `number` as an MLP with the current parameters."""
        prefix = f"experts.{number}."
        parameters = {name: self.parameters[prefix + name] for name in _GATED}
        return MLP.from_parameters(parameters, activation=self.activation)

    def _expert(self, number: int, rows: Array) -> Array:
        """Return the result of one expert for rows (n, D)."""
        return self._mlp(number).run(rows)[0]

    def _expert_back(
        self, number: int, rows: Array, grad: Array, weight: Array, record: Recorder | None
    ) -> tuple[Array, Array, Arrays]:
        """Return three gradients of one expert: for `rows`, `weight` and the parameters."""
        mlp = self._mlp(number)
        out, saved = mlp.run(rows, save=True)
        assert saved is not None
        inner = record and record.under(f"experts.{number}.")
        back = mlp.backward(weight * grad, saved, record=inner)
        return back.x, (grad * out).sum(-1), back.parameters

    def _put(self, gradients: dict[str, Array], number: int, arrays: Arrays) -> None:
        """Put `arrays`, the gradients for the parameters of expert `number`, into `gradients`."""
        gradients.update({f"experts.{number}.{name}": array for name, array in arrays.items()})


_GATED = tuple(f"{name}.weight" for name in mlp_sizes(1, 1, gated=True))


def gated_expert_shapes(dim: int, hidden: int, count: int) -> Iterator[tuple[str, Shape]]:
    """Yield the shapes of the parameters of `count` experts and their router."""
    yield "router_proj.weight", (dim, count)
    sizes = mlp_sizes(dim, hidden, gated=True)
    for number in range(count):
        for name, size in sizes.items():
            yield f"experts.{number}.{name}.weight", size


def _gated_sizes(parameters: Arrays) -> tuple[int, int, int]:
    """Return D, F and the number of experts; raise an error for a wrong shape."""
    router = base.parameter(parameters, "router_proj.weight", "(D, E)")
    down = base.parameter(parameters, "experts.0.down_proj.weight", "(F, D)")
    count, (hidden, dim) = router.shape[1], down.shape
    shapes = dict(gated_expert_shapes(dim, hidden, count))
    if parameters.keys() != shapes.keys():
        wrong = sorted(parameters.keys() ^ shapes.keys())
        raise value_error(
            f"router_proj.weight has {count} columns, and these parameters are missing or "
            f"unknown: {', '.join(wrong[:4])}; pass {', '.join(_GATED)} for each of {count} experts"
        )
    for name, shape in shapes.items():
        why = f"experts.0.down_proj.weight has shape {down.shape}"
        base.need_shape(parameters[name], shape, name=name, why=why)
    return dim, hidden, count
