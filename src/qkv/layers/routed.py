"""What mixtures of experts share: a router that sends each row to the few experts it chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, compute_type, whole_number
from qkv.attend.softmax import softmax
from qkv.layers.gradient import Gradient, for_parameters, project_back, upstream
from qkv.layers.layer import Feed
from qkv.layers.parameters import is_wide, project, promoted, quiet
from qkv.trace import Recorder


class RoutedSaved(NamedTuple):
    """What the backward pass of experts needs."""

    rows: Array  # (rows, D)
    chosen: Array  # (rows, top_k), the experts of each row
    weights: Array  # (rows, top_k), what each of them counts
    chances: Array | None  # (rows, E), of all experts, where they count
    shape: tuple[int, ...]  # (..., T, D)


class Routed(Feed, ABC):
    """A router and experts: `_set` takes their number, `_expert` and `_expert_back` are theirs.

    The router is a linear layer with a number for each expert. The largest `top_k` of them choose.
    What the result of each counts is the softmax of the chosen numbers alone or, where it is not
    `normalized`, its part of the softmax of all.
    """

    parameters: dict[str, Array]
    dim: int
    count: int

    def _set(self, top_k: int, *, normalized: bool) -> None:
        """Take how many experts a row goes through, once there are as many."""
        call = type(self).__name__
        self.normalized = normalized
        self.top_k = whole_number(top_k, call=call, name="top_k", least=1)
        if self.top_k > self.count:
            raise ValueError(
                f"{call}: top_k is {top_k} and there are {self.count} experts: choose no more"
            )

    @abstractmethod
    def _expert(self, number: int, rows: Array) -> Array:
        """What one expert gives for rows (n, D)."""

    @abstractmethod
    def _expert_back(
        self, number: int, rows: Array, grad: Array, weight: Array, record: Recorder | None
    ) -> tuple[Array, Array, Mapping[str, Array]]:
        """The gradients of its rows, of what its result counts, and of its own parameters."""

    @abstractmethod
    def _put(self, found: dict[str, Array], number: int, own: Mapping[str, Array]) -> None:
        """Put the gradients of one expert's parameters among all."""

    def run(
        self,
        x: Array,
        *,
        residual: Array | None = None,
        record: Recorder | None = None,
        save: bool = False,
    ) -> tuple[Array, RoutedSaved]:
        """The forward pass, unchecked, and what the backward pass needs."""
        x, dtype = promoted(x, self.parameters, call=type(self).__name__)
        rows = x.reshape(-1, self.dim)  # (rows, D)
        chosen, weights, chances = self._route(rows)
        out: Array = np.zeros(rows.shape, compute_type(dtype))
        for number in np.unique(chosen):
            row, rank = np.nonzero(chosen == number)
            out[row] += weights[row, rank, None] * self._expert(number, rows[row])
        out = out.reshape(x.shape)
        if residual is not None:
            out = out + residual
        out = out if is_wide(residual) else out.astype(dtype, copy=False)
        return out, RoutedSaved(rows, chosen, weights, chances, x.shape)

    @quiet
    def backward(
        self, grad: ArrayLike, saved: RoutedSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass: the gradients of `sum(grad * layer(x))`.

        Which experts were chosen has no gradient, what each of them counts has.

        Args:
            grad: (..., T, D), the gradient of what the layer gave; that of a residual is the same.
            saved: what `layer.training_forward(x)` gave beside it.
            record: is given nothing, as `hooks` names nothing.

        Returns:
            `.x` (..., T, D) and `.parameters` by their names.
        """
        rows, chosen, weights, chances, shape = saved
        grad = upstream(grad, shape, rows.dtype, call=type(self).__name__)
        grad = grad.reshape(-1, self.dim)
        found = for_parameters(record)
        if found is not None:
            found |= {
                name: np.zeros(array.shape, grad.dtype)
                for name, array in self.parameters.items()
                if name.startswith("experts.")
            }
        grad_rows, counts = np.zeros_like(rows), np.zeros_like(weights)  # of what each counts
        for number in np.unique(chosen):
            row, rank = np.nonzero(chosen == number)
            of_rows, counts[row, rank], own = self._expert_back(
                number, rows[row], grad[row], weights[row, rank, None], record
            )
            grad_rows[row] += of_rows
            if found is not None:
                self._put(found, number, own)
        mean = (weights * counts).sum(-1, keepdims=True)
        scores = np.zeros((len(rows), self.count), rows.dtype)
        np.put_along_axis(scores, chosen, weights * counts, -1)
        if chances is None:
            chances = np.zeros_like(scores)
            np.put_along_axis(chances, chosen, weights, -1)
        scores -= chances * mean  # of the softmax
        grad_rows += project_back(rows, self.parameters, "router_proj", scores, found)
        return Gradient(grad_rows.reshape(shape), found or {})

    def _route(self, rows: Array) -> tuple[Array, Array, Array | None]:
        """For each row the experts it goes through, what they count, and the softmax of all.

        The last is left out where only the chosen ones count.
        """
        wide = rows.astype(compute_type(rows.dtype), copy=False)  # experts may come close
        scores = project(wide, self.parameters, "router_proj")  # (rows, E)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : self.top_k]
        if self.normalized:
            return chosen, softmax(np.take_along_axis(scores, chosen, -1)), None
        chances = softmax(scores)
        return chosen, np.take_along_axis(chances, chosen, -1), chances
