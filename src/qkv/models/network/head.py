"""What a model has on top: from the last vectors to logits, or to one vector of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array
from qkv.layers.attention import Norm
from qkv.layers.layer import (
    Gradient,
    for_parameters,
    need_single,
    part_back,
    project_back,
    shapes_of,
)
from qkv.models.network.pooling import POOLING, activated
from qkv.ops.activation import activation_grad
from qkv.ops.layout import narrowed
from qkv.ops.linear import linear
from qkv.trace import Recorder

_BOTH = "cls and mean"


@dataclass(frozen=True)
class Head:
    """The steps of a head, in their order; each may be left out, but for the last projection.

    Attributes:
        outputs: V words, or as many classes, or numbers of a vector, as there are.
        tied: whether the last projection is the token table, unless the files have another.
        bias: whether it has a bias.
        pool: the one of `POOLING` that makes one vector of a text; or "patches", the mean of all
            tokens but the first; or "cls and mean", (2 D,), the first token's and that side by
            side; or "end", that of the token that ends a text; None gives logits for each token.
        end: the id of that token, of which the first counts, and a text without one has its first
            token; None takes the token of the largest id, of several the first.
        classes: whether the logits of each token are over classes, not words.
        embeds: whether it gives a vector of each text in place of logits; it pools.
        projects: whether there is that last projection.
        flat: whether the one logit of each token stands without an axis of its own, (B, T).
        dense: whether there is a linear layer before it, (D, D) unless `width` is given.
        width: what size that layer gives, and the last projection takes.
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
    pool: Literal["cls", "lasttoken", "mean", "patches", "cls and mean", "end"] | None = None
    end: int | None = None
    classes: bool = False
    embeds: bool = False
    projects: bool = True
    flat: bool = False
    dense: bool = False
    width: int | None = None
    dense_bias: bool = True
    activation: str | None = None
    norm: bool = False
    norm_bias: bool = True
    scale: float = 1.0
    softcap: float | None = None

    def shapes(self, dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each parameter and its shape."""
        dim = 2 * dim if self.pool == _BOTH else dim
        if self.dense:
            wide = dim if self.width is None else self.width
            yield from shapes_of("head.dense_proj", dim, wide, bias=self.dense_bias)
            dim = wide
        if self.norm:
            yield from shapes_of("head.norm", dim, bias=self.norm_bias)
        if self.projects and not self.tied:
            yield "head.out_proj.weight", (dim, self.outputs)
        if self.bias:
            yield "head.out_proj.bias", (self.outputs,)

    def build(
        self, parameters: Mapping[str, Array], *, norm: Callable[..., Norm | None]
    ) -> BuiltHead:
        """The head with these parameters; `norm` makes one by its name, if it is there."""
        own = {name: array for name, array in parameters.items() if name.startswith("head.")}
        if self.tied and "head.out_proj.weight" not in own:
            own["head.out_proj.weight"] = parameters["embed.weight"].T
        return BuiltHead(self, own, norm(parameters, "head.norm"))


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

    def __call__(self, rows: Array, cu_lengths: Array, ids: Array | None = None) -> Array:
        """Rows (total, D) of texts laid end to end, and where each begins, to logits.

        `ids` (total,) are those of their tokens, which one that pools at the end of a text needs.
        """
        return self._run(rows, cu_lengths, ids)[0]

    def training_forward(
        self, rows: Array, cu_lengths: Array, ids: Array | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """The logits, and what `backward` needs of them."""
        for array in self.parameters.values():
            need_single(array, {}, call="head")
        return self._run(rows, cu_lengths, ids)

    def _run(
        self, rows: Array, cu_lengths: Array, ids: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        """The forward pass, and what the backward pass needs of each step."""
        steps, saved = self.steps, dict[str, Any](cu=cu_lengths, shape=rows.shape)
        if steps.pool == "end":
            assert ids is not None
            saved["ends"] = _ends(ids, cu_lengths, steps.end)
            rows = _at(rows, saved["ends"])
        elif steps.pool is not None:
            rows = _pooled(rows, cu_lengths, steps.pool)
        if steps.dense:
            saved["dense"] = rows
            rows = self._linear("head.dense_proj", rows)
        if steps.activation is not None:
            saved["activation"] = rows
            rows = activated(rows, steps.activation)
        if self.norm is not None:
            rows, saved["norm"] = self.norm.run(rows)
        if steps.scale != 1:
            rows = rows * rows.dtype.type(steps.scale)
        out = rows
        if steps.projects:
            saved["out"] = rows
            out = self._linear("head.out_proj", rows)
        if steps.softcap is not None:
            cap = out.dtype.type(steps.softcap)
            out = saved["softcap"] = np.tanh(out / cap) * cap
        if steps.pool is not None:
            out[np.diff(cu_lengths) == 0] = 0
        return out, saved

    def backward(
        self, grad: Array, saved: Mapping[str, Any], *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass, from the gradient of the logits to those of rows and parameters.

        That of a tied projection is "head.out_proj.weight" (D, V): the token table gets its
        transpose added. With a `GradientRecorder` there are none of parameters.
        """
        steps, found = self.steps, for_parameters(record)
        if steps.pool is not None:
            grad = np.where(np.diff(saved["cu"])[:, None] == 0, 0, grad)
        if steps.softcap is not None:
            grad = grad * (1 - np.square(saved["softcap"] / grad.dtype.type(steps.softcap)))
        if steps.projects:
            grad = project_back(saved["out"], self.parameters, "head.out_proj", grad, found)
        if steps.scale != 1:
            grad = grad * grad.dtype.type(steps.scale)
        if self.norm is not None:
            inner = record and record.under("head.norm.")
            grad = part_back(self.norm, grad, saved["norm"], "head.norm", found, inner).x
        if steps.activation == "tanh":
            grad = grad * (1 - np.square(np.tanh(saved["activation"])))
        elif steps.activation is not None:
            grad = activation_grad(saved["activation"], grad, steps.activation)
        if steps.dense:
            grad = project_back(saved["dense"], self.parameters, "head.dense_proj", grad, found)
        if steps.pool == "end":
            grad = _at_back(grad, saved["ends"], saved["shape"])
        elif steps.pool is not None:
            grad = _unpooled(grad, saved["cu"], steps.pool, saved["shape"])
        return Gradient(grad, found or {})

    def _linear(self, name: str, rows: Array) -> Array:
        """A linear layer of the head, which gives float32 for half precision."""
        weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        return linear(narrowed(rows, weight), weight, bias, wide=True)


def _ends(ids: Array, cu: Array, end: int | None) -> Array:
    """Where each of texts laid end to end ends, (B,), by its ids; -1 for one without a token.

    >>> _ends(np.array([3, 9, 5, 9, 4, 4]), np.array([0, 4, 4, 6]), 9).tolist()
    [1, -1, 4]
    """
    found = np.full(len(cu) - 1, -1)
    for text in np.flatnonzero(np.diff(cu)):
        own = ids[cu[text] : cu[text + 1]]
        found[text] = cu[text] + np.argmax(own if end is None else own == end)
    return found


def _at(rows: Array, places: Array) -> Array:
    """The rows at these places, (B, D), zeros for -1."""
    found = np.zeros((len(places), rows.shape[-1]), rows.dtype)
    found[places >= 0] = rows[places[places >= 0]]
    return found


def _at_back(grad: Array, places: Array, shape: tuple[int, ...]) -> Array:
    """The backward pass of `_at`, to rows (total, D)."""
    found = np.zeros(shape, grad.dtype)
    found[places[places >= 0]] = grad[places >= 0]
    return found


def _pooled(rows: Array, cu: Array, how: str) -> Array:
    """One row for each text, (B, D), zeros for one without a token."""
    if how == _BOTH:
        return np.concatenate([_pooled(rows, cu, how) for how in ("cls", "patches")], axis=-1)
    if how == "patches":
        others = np.delete(rows, cu[:-1][np.diff(cu) > 0], axis=0)
        return _pooled(others, _others(cu), "mean")
    found = np.zeros((len(cu) - 1, rows.shape[-1]), rows.dtype)
    for text in np.flatnonzero(np.diff(cu)):
        found[text] = POOLING[how](rows[cu[text] : cu[text + 1]], 0)
    return found


def _others(cu: Array) -> Array:
    """Where each text begins and the last one ends, once all have lost their first token."""
    return np.cumsum([0, *np.maximum(np.diff(cu) - 1, 0)])


def _unpooled(grad: Array, cu: Array, how: str, shape: tuple[int, ...]) -> Array:
    """The backward pass of `_pooled`, to rows (total, D)."""
    lengths = np.diff(cu)
    if how == _BOTH:
        first, mean = np.split(grad, 2, axis=-1)
        return _unpooled(first, cu, "cls", shape) + _unpooled(mean, cu, "patches", shape)
    found = np.zeros(shape, grad.dtype)
    if how == "patches":
        others = np.delete(np.arange(len(found)), cu[:-1][lengths > 0])
        found[others] = _unpooled(grad, _others(cu), "mean", (len(others), shape[-1]))
        return found
    texts = lengths > 0
    if how == "mean":
        found[...] = np.repeat(grad / np.maximum(lengths, 1)[:, None], lengths, 0)
    else:
        found[(cu[:-1] if how == "cls" else cu[1:] - 1)[texts]] = grad[texts]
    return found
