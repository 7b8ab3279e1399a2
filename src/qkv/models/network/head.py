"""Heads of models: they turn the last vectors into logits or into one vector per text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.layers.attention import Norm
from qkv.layers.base import Gradient, for_parameters, need_single, part_back, shapes_of
from qkv.models.network.pooling import POOLING, activate
from qkv.ops.activation import activation_grad
from qkv.ops.linear import project_back, project_wide
from qkv.trace import Recorder

_BOTH = "cls and mean"
Saved = dict[str, Any]  # from each step, the values that the backward pass needs


@dataclass(frozen=True)
class Head:
    """The steps of a head, in order; by default, a head has only the last projection.

    Attributes:
        outputs: the size of the output: the number of words (V), of classes, or of dimensions of a
            vector.
        tied: whether the weight of the last projection is the token table. A separate matrix in the
            model's files takes precedence over the token table.
        bias: whether the last projection has a bias.
        pool: the pooling of a text's vectors to one vector: a name in `POOLING`, or "patches", "cls
            and mean" or "end". "patches" is the mean of all tokens after the first token. "cls and
            mean" (2 D,) joins the first token's vector and the mean of the other tokens. "end" is
            the vector of the token that ends a text. If `pool` is None, the head returns logits for
            each token.
        end: for the pooling "end", the id of the token that ends a text. The head reads the first
            token with this id, or the text's first token if no token has this id. If `end` is None,
            the head reads the first of the tokens with the largest id.
        padding: for the pooling "lasttoken", the id of the padding token. The head reads the last
            token with a different id, or the first token of a text that has only padding tokens. If
            `padding` is None, the head reads the last token.
        late: whether the pooling comes after the dense layer's activation, instead of directly
            after the last hidden states.
        classes: whether each token gets logits for classes instead of words.
        embeds: whether the head pools, and returns one vector per text instead of logits.
        projects: whether the head has a last projection.
        flat: whether the logits are (B, T), with a single logit for each token.
        dense: whether the head begins with a linear layer, the dense layer, (D, D) or (D, width).
        width: the output size of the dense layer, if this size is not D.
        dense_bias: whether the dense layer has a bias.
        activation: the activation after the dense layer: "tanh", or an activation of `MLP`.
        norm: whether a norm follows the activation.
        norm_bias: whether the norm of the head has a bias.
        scale: a factor for the vectors before the last projection.
        softcap: the bound of the logits, which become `softcap * tanh(logits / softcap)`.
    """

    outputs: int
    tied: bool = False
    bias: bool = False
    pool: Literal["cls", "lasttoken", "mean", "patches", "cls and mean", "end"] | None = None
    end: int | None = None
    padding: int | None = None
    late: bool = False
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
        """Yield the name and the shape of each parameter."""
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

    def build(self, parameters: Arrays, *, norm: Callable[..., Norm | None]) -> "BuiltHead":
        """Return the head with these parameters; the function `norm` builds a norm."""
        arrays = {name: array for name, array in parameters.items() if name.startswith("head.")}
        if self.tied and "head.out_proj.weight" not in arrays:
            arrays["head.out_proj.weight"] = parameters["embed.weight"].T
        return BuiltHead(self, arrays, norm(parameters, "head.norm"))


@dataclass(frozen=True)
class BuiltHead:
    """A head with its parameters; `steps` holds the options of the head's steps."""

    steps: Head
    parameters: Arrays
    norm: Norm | None

    @property
    def pools(self) -> bool:
        """Whether the head returns one row per text instead of one row per token."""
        return self.steps.pool is not None

    @property
    def predicts(self) -> bool:
        """Whether the head predicts words for each token."""
        return not self.pools and not self.steps.classes

    def __call__(self, rows: Array, cu: Array, ids: Array | None = None) -> Array:
        """Return the logits of packed rows (total, D); texts begin at the rows `cu` (B + 1,).

        `ids` (total,) are the token ids, which the pooling "end" and the attribute `padding` need.
        """
        return self._run(rows, cu, ids)[0]

    def training_forward(
        self, rows: Array, cu: Array, ids: Array | None = None
    ) -> tuple[Array, Saved]:
        """Return the logits that a call returns, and the values for `backward`."""
        for array in self.parameters.values():
            need_single(array, {})
        return self._run(rows, cu, ids)

    def _run(self, rows: Array, cu: Array, ids: Array | None = None) -> tuple[Array, Saved]:
        """Run the forward pass; also return the values of each step for `backward`."""
        steps, saved = self.steps, Saved(cu=cu, shape=rows.shape)
        if steps.late:
            pass
        elif steps.pool == "end" or steps.padding is not None:
            assert ids is not None
            saved["ends"] = _ends(ids, cu, steps)
            rows = _at(rows, saved["ends"])
        elif steps.pool is not None:
            rows = _pool(rows, cu, steps.pool)
        if steps.dense:
            saved["dense"] = rows
            rows = project_wide(rows, self.parameters, "head.dense_proj")
        if steps.activation is not None:
            saved["activation"] = rows
            rows = activate(rows, steps.activation)
        if steps.late and steps.pool is not None:
            saved["shape"] = rows.shape
            rows = _pool(rows, cu, steps.pool)
        if self.norm is not None:
            rows, saved["norm"] = self.norm.run(rows)
        if steps.scale != 1:
            rows = rows * rows.dtype.type(steps.scale)
        out = rows
        if steps.projects:
            saved["out"] = rows
            out = project_wide(rows, self.parameters, "head.out_proj")
        if steps.softcap is not None:
            cap = out.dtype.type(steps.softcap)
            out = saved["softcap"] = np.tanh(out / cap) * cap
        if steps.pool is not None:
            out[np.diff(cu) == 0] = 0
        return out, saved

    def backward(self, grad: Array, saved: Saved, record: Recorder | None = None) -> Gradient:
        """Return the gradients for rows and parameters, given the gradient for the logits.

        The gradient for a tied projection is named "head.out_proj.weight" (D, V). The caller adds
        the transpose of this gradient to the gradient for the token table. If `record` is a
        `GradientRecorder`, this method does not compute gradients for parameters.
        """
        steps, gradients = self.steps, for_parameters(record)
        if steps.pool is not None:
            grad = np.where(np.diff(saved["cu"])[:, None] == 0, 0, grad)
        if steps.softcap is not None:
            grad = grad * (1 - np.square(saved["softcap"] / grad.dtype.type(steps.softcap)))
        if steps.projects:
            grad = project_back(saved["out"], self.parameters, "head.out_proj", grad, gradients)
        if steps.scale != 1:
            grad = grad * grad.dtype.type(steps.scale)
        if self.norm is not None:
            inner = record and record.under("head.norm.")
            grad = part_back(self.norm, grad, saved["norm"], "head.norm", gradients, inner).x
        if steps.late and steps.pool is not None:
            grad = _unpool(grad, saved["cu"], steps.pool, saved["shape"])
        if steps.activation == "tanh":
            grad = grad * (1 - np.square(np.tanh(saved["activation"])))
        elif steps.activation is not None:
            grad = activation_grad(saved["activation"], grad, steps.activation)
        if steps.dense:
            grad = project_back(saved["dense"], self.parameters, "head.dense_proj", grad, gradients)
        if steps.late:
            pass
        elif "ends" in saved:
            grad = _at_back(grad, saved["ends"], saved["shape"])
        elif steps.pool is not None:
            grad = _unpool(grad, saved["cu"], steps.pool, saved["shape"])
        return Gradient(grad, gradients or {})


def _ends(ids: Array, cu: Array, steps: Head) -> Array:
    """Return the row number of the token that the head reads in each text, (B,).

    The row number is -1 for a text without tokens. `Head` describes the pooling "end" and the
    attribute `padding`.

    >>> ids, cu = np.array([3, 9, 5, 9, 4, 4]), np.array([0, 4, 4, 6])
    >>> _ends(ids, cu, Head(2, pool="end", end=9)).tolist()
    [1, -1, 4]
    >>> _ends(ids, cu, Head(2, pool="lasttoken", padding=9)).tolist()
    [2, -1, 5]
    """
    ends = np.full(len(cu) - 1, -1)
    for text in np.flatnonzero(np.diff(cu)):
        tokens = ids[cu[text] : cu[text + 1]]
        if steps.pool == "lasttoken":
            ends[text] = cu[text] + np.flatnonzero(tokens != steps.padding).max(initial=0)
        else:
            ends[text] = cu[text] + np.argmax(tokens if steps.end is None else tokens == steps.end)
    return ends


def _at(rows: Array, positions: Array) -> Array:
    """Return the row (B, D) at each position (B,); a position of -1 yields zeros."""
    chosen = np.zeros((len(positions), rows.shape[-1]), rows.dtype)
    chosen[positions >= 0] = rows[positions[positions >= 0]]
    return chosen


def _at_back(grad: Array, positions: Array, shape: tuple[int, ...]) -> Array:
    """Return the gradient for the argument `rows` (total, D) of `_at`."""
    rows = np.zeros(shape, grad.dtype)
    rows[positions[positions >= 0]] = grad[positions >= 0]
    return rows


def _pool(rows: Array, cu: Array, how: str) -> Array:
    """Pool each text to one row, (B, D); a text without tokens becomes zeros."""
    if how == _BOTH:
        return np.concatenate([_pool(rows, cu, how) for how in ("cls", "patches")], axis=-1)
    if how == "patches":
        others = np.delete(rows, cu[:-1][np.diff(cu) > 0], axis=0)
        return _pool(others, _others(cu), "mean")
    pooled = np.zeros((len(cu) - 1, rows.shape[-1]), rows.dtype)
    for text in np.flatnonzero(np.diff(cu)):
        pooled[text] = POOLING[how](rows[cu[text] : cu[text + 1]], 0)
    return pooled


def _others(cu: Array) -> Array:
    """Return `cu` (B + 1,) for the same texts without their first tokens."""
    return np.cumsum([0, *np.maximum(np.diff(cu) - 1, 0)])


def _unpool(grad: Array, cu: Array, how: str, shape: tuple[int, ...]) -> Array:
    """Return the gradient for the argument `rows` (total, D) of `_pool`."""
    lengths = np.diff(cu)
    if how == _BOTH:
        first, mean = np.split(grad, 2, axis=-1)
        return _unpool(first, cu, "cls", shape) + _unpool(mean, cu, "patches", shape)
    rows = np.zeros(shape, grad.dtype)
    if how == "patches":
        others = np.delete(np.arange(len(rows)), cu[:-1][lengths > 0])
        rows[others] = _unpool(grad, _others(cu), "mean", (len(others), shape[-1]))
        return rows
    texts = lengths > 0
    if how == "mean":
        rows[...] = np.repeat(grad / np.maximum(lengths, 1)[:, None], lengths, 0)
    else:
        rows[(cu[:-1] if how == "cls" else cu[1:] - 1)[texts]] = grad[texts]
    return rows
