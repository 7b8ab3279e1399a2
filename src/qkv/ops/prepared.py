"""Products and norms with little overhead, for many small calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.ops.activation import activation_named
from qkv.ops.kernel import kernel
from qkv.ops.layout import FLOAT32, bits_type
from qkv.ops.packing import packed, packed_size, packed_together


class Prepared:
    """Products and norms in the kernel for many small calls, which look up constants once.

    Arrays are (rows, size) with contiguous rows. bfloat16 arrays are passed as integers by
    `handed`.

    Attributes:
        body: the kernel's body that computes.
        kind: float32 or bfloat16, the type of the factors.
        bits: the type of such arrays in the kernel.
        threads: how many threads may compute.
    """

    def __init__(self, body: int, kind: np.dtype[Any], threads: int) -> None:
        self.body, self.kind, self.threads = body, kind, threads
        self.bits = bits_type(kind)

    def handed(self, x: Array) -> Array:
        """Convert numbers to the type of the factors of products."""
        return x if x.dtype == self.bits else x.astype(self.kind, copy=False).view(self.bits)

    def joins(self, weights: Sequence[Array]) -> bool:
        """Return whether one product can compute these frozen weights (in, out) unpadded."""
        shapes, kind = [weight.shape for weight in weights], (self.body, self.kind)
        return all(packed_size((d, w), *kind) < packed_size((d, w + 1), *kind) for d, w in shapes)

    def linear(
        self, weight: Array, bias: Array | None = None, activation: str | None = None
    ) -> Callable[..., Array]:
        """Return a function that applies `linear` with a frozen weight.

        A float32 residual makes the result float32.
        """
        whole = packed(weight, self.body, self.kind, self.threads)
        return self._product(whole, weight.shape[1], bias, activation)

    def joined_linear(self, weights: Sequence[Array], bias: Array | None) -> Callable[..., Array]:
        """Return a function for one product with several weights that `joins` accepts.

        `bias` is the bias of all weights, end to end.
        """
        whole = packed_together(weights, self.body, self.kind, self.threads)
        return self._product(whole, sum(weight.shape[1] for weight in weights), bias, None)

    def _product(
        self, weights: Array, width: int, bias: Array | None, activation: str | None
    ) -> Callable[..., Array]:
        bits, threads, chosen = self.bits, self.threads, self.body
        code = 0 if activation is None else activation_named(activation, call="linear").code
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array, gate: Array | None = None, residual: Array | None = None) -> Array:
            y = np.empty((len(x), width), bits if residual is None else residual.dtype)
            kernel.linear(chosen, x, weights, addend, code, gate, residual, y, threads)
            return y

        return run

    def norm(
        self, weight: Array, bias: Array | None, *, eps: float, centred: bool
    ) -> Callable[[Array], Array]:
        """Return a function that applies `normalize`; its result has the type of its input."""
        threads, chosen = self.threads, self.body
        factor = np.require(weight, FLOAT32, ["C", "A"])
        addend = None if bias is None else np.require(bias, FLOAT32, ["C", "A"])

        def run(x: Array) -> Array:
            y, scale = np.empty(x.shape, x.dtype), np.empty(len(x), np.float32)
            kernel.norm(chosen, x, factor, addend, eps, centred, y, scale, threads)
            return y

        return run
