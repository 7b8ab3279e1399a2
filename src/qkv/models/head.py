"""What a model has on top: from the last vectors to logits over words or classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qkv.activations import activate
from qkv.arrays import Array, compute_type
from qkv.backend import linear, narrowed
from qkv.layers.attention import Norm


@dataclass(frozen=True)
class Head:
    """The steps of a head, in their order; each may be left out, but for the last projection.

    Attributes:
        outputs: V words, or as many classes as there are.
        tied: whether the last projection is the token table, unless the files have another.
        bias: whether it has a bias.
        pool: the vector of which token stands for the text, or the mean of all; None gives
            logits for each token.
        classes: whether the logits of each token are over classes, not words.
        dense: whether there is a linear layer (D, D) before it.
        dense_bias: whether that has a bias.
        activation: what follows that layer: "tanh", or what `MLP` knows.
        norm: whether a norm follows.
        norm_bias: whether that has a bias.
        scale: what the vectors are multiplied by before the last projection.
        softcap: `softcap * tanh(logits / softcap)`.
    """

    outputs: int
    tied: bool = False
    bias: bool = False
    pool: Literal["first", "last", "mean"] | None = None
    classes: bool = False
    dense: bool = False
    dense_bias: bool = True
    activation: str | None = None
    norm: bool = False
    norm_bias: bool = True
    scale: float = 1.0
    softcap: float | None = None

    def shapes(self, dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each parameter and its shape."""
        if self.dense:
            yield "head.dense_proj.weight", (dim, dim)
            if self.dense_bias:
                yield "head.dense_proj.bias", (dim,)
        if self.norm:
            yield "head.norm.weight", (dim,)
            if self.norm_bias:
                yield "head.norm.bias", (dim,)
        if not self.tied:
            yield "head.out_proj.weight", (dim, self.outputs)
        if self.bias:
            yield "head.out_proj.bias", (self.outputs,)

    def build(
        self, parameters: Mapping[str, Array], *, norm: Callable[[Mapping[str, Array], str], Norm]
    ) -> BuiltHead:
        """The head with these parameters; `norm` makes one by its name."""
        own = {name: array for name, array in parameters.items() if name.startswith("head.")}
        if "head.out_proj.weight" not in own:  # it is tied
            own["head.out_proj.weight"] = parameters["embed.weight"].T
        return BuiltHead(self, own, norm(parameters, "head.norm") if self.norm else None)


@dataclass(frozen=True)
class BuiltHead:
    """A head with its parameters."""

    steps: Head
    parameters: Mapping[str, Array]
    norm: Norm | None

    @property
    def pools(self) -> bool:
        """Whether it gives one row for each text, not for each token."""
        return self.steps.pool is not None

    @property
    def predicts(self) -> bool:
        """Whether its logits are over words, for each token."""
        return not self.pools and not self.steps.classes

    def __call__(self, rows: Array, cu_lengths: Array) -> Array:
        """Rows (total, D) of texts laid end to end, and where each begins, to logits."""
        steps = self.steps
        if steps.pool is not None:
            rows = _pooled(rows, cu_lengths, steps.pool)
        if steps.dense:
            rows = self._linear("head.dense_proj", rows)
        if steps.activation is not None:
            rows = np.tanh(rows) if steps.activation == "tanh" else _on(rows, steps.activation)
        if self.norm is not None:
            rows = self.norm(rows)
        if steps.scale != 1:
            rows = rows * rows.dtype.type(steps.scale)
        out = self._linear("head.out_proj", rows)
        if steps.softcap is not None:
            cap = out.dtype.type(steps.softcap)
            out = np.tanh(out / cap) * cap
        if steps.pool is not None:
            out[np.diff(cu_lengths) == 0] = 0
        return out

    def _linear(self, name: str, rows: Array) -> Array:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        return linear(narrowed(rows, weight), weight, bias, wide=True)


def _pooled(rows: Array, cu: Array, how: str) -> Array:
    """One row for each text, (B, D), zeros for one without a token."""
    found = np.zeros((len(cu) - 1, rows.shape[-1]), rows.dtype)
    texts = np.diff(cu) > 0
    if how == "mean":
        for text in np.flatnonzero(texts):
            found[text] = rows[cu[text] : cu[text + 1]].mean(0, dtype=compute_type(rows.dtype))
    else:
        found[texts] = rows[(cu[:-1] if how == "first" else cu[1:] - 1)[texts]]
    return found


def _on(rows: Array, activation: str) -> Array:
    kind = np.float64 if rows.dtype == np.float64 else np.float32
    return activate(rows.astype(kind, copy=False), activation).astype(rows.dtype, copy=False)
