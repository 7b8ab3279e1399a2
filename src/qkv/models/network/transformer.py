"""A transformer: embeddings and blocks that run on packed rows, without padding."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np

from qkv.arrays import Array, Arrays, DType, compute_type
from qkv.attend import KVCache
from qkv.layers import Block
from qkv.layers.attention.forward import Norm
from qkv.layers.base import ByName, Gradients, for_parameters, need_single, part_back, quiet
from qkv.layers.block import BlockSaved
from qkv.layers.norm import NormSaved
from qkv.layers.stepping import BlockSteps, NewTokens, made_of, steps_for
from qkv.models.network._embedding import Embedding, EmbeddingSaved
from qkv.models.network._relative_bias import RelativeBias, RelativeTable
from qkv.models.network.batch import Batch
from qkv.models.network.head import BuiltHead
from qkv.ops.kernel import variant_and_threads
from qkv.ops.linear import project_back, project_wide
from qkv.trace import Recorder
from qkv.trace.recorder import of_rows, texts_and_positions

_LAST = "ln_final"  # The name of the final norm in a trace.
_READ = f"{_LAST}.hook_input"
_PROJECTION, _PROJECTED = "final_proj", "hook_final_proj"
# `stretch` returns about 1 for a random matrix (at most 1.08 for small matrices), and more than 1.3
# for a trained matrix.
LEARNED = 1.2
_STEPS = 20  # The number of steps of the power iteration.
Masks = Mapping[int, Array]  # The masks of keys, keyed by layer.
Caches = Sequence[KVCache]  # The key/value cache of each layer.


class Saved(NamedTuple):
    """Values that a transformer saves in the forward pass for the backward pass."""

    embedding: EmbeddingSaved | None  # None if the batch consists of vectors.
    layers: list[BlockSaved]
    final_norm: NormSaved | None
    wide: Array | None  # (total, D), the input of the final projection
    cu: Array  # (B + 1,), the index of each text's first row, followed by the number of rows


class RunEdits(Protocol):
    """The edits of a run; `qkv.models.run.edited_run` makes them."""

    def recorder_and_masks(
        self, batch: Batch, record: Recorder | None
    ) -> tuple[Recorder | None, Masks]:
        """Return a recorder that also applies the edits, and the layers' masks of keys."""


@dataclass(eq=False, repr=False)
class Transformer:
    """A transformer, which turns token ids into contextual vectors.

    Args:
        embedding: the layer that turns ids into vectors.
        layers: the blocks, in order.
        options: the options of `qkv.attention` in each layer.
        same_as: for each layer, the number of the first layer with the same parameters.
        bias: a bias that every layer adds to its attention scores.
        relative: the relative positions that are multiplied with every layer's queries and keys.
        final_norm: the norm after the last layer.
        final_proj: the linear layer after the final norm: "final_proj.weight" (D, E). In most
            models, the dict is empty, and the last vectors have size D.
        head: the head, which turns the last vectors of packed texts into logits.
    """

    embedding: Embedding
    layers: list[Block]
    options: list[dict[str, Any]]
    same_as: list[int]
    bias: RelativeBias | None = None
    relative: RelativeTable | None = None
    final_norm: Norm | None = None
    final_proj: Arrays = field(default_factory=dict)
    head: BuiltHead | None = None
    _steps: tuple[tuple[int | None, int], BlockSteps | None, list[Any]] | None = field(
        default=None, init=False
    )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copies, without the cached result of `_quick`."""
        return {**self.__dict__, "_steps": None}

    @property
    def dim(self) -> int:
        """D, the size of the vectors."""
        return self.embedding.dim

    @property
    def out_dim(self) -> int:
        """The size of the last vectors: D, or E if the model has a final projection."""
        return next((int(weight.shape[1]) for weight in self.final_proj.values()), self.dim)

    @property
    def widths(self) -> dict[str, int]:
        """The vector sizes of activations outside the layers, where these may differ from D."""
        return {**self.embedding.widths, _PROJECTED: self.out_dim}

    @property
    def dtype(self) -> DType:
        """The dtype of the vectors; it is float32 if the parameters are in half precision."""
        return compute_type(self.embedding.table.dtype)

    @cached_property
    def hook_names(self) -> list[str]:
        """The names of all activations in a trace, with and without `top_k`."""
        blocks = [
            f"blocks.{number}.{hook}"
            for number, layer in enumerate(self.layers)
            for hook in layer.hooks
        ]
        last = () if self.final_norm is None else ("hook_input", *self.final_norm.hooks)
        projected = [_PROJECTED] * bool(self.final_proj)
        return [*self.embedding.hooks, *blocks, *(f"{_LAST}.{hook}" for hook in last), *projected]

    @cached_property
    def untrained(self) -> bool:
        """Whether every W_Q and W_K looks like a random matrix; False for a model without layers.

        In some directions, a trained matrix stretches vectors more than a random matrix does.
        """
        weights = [
            layer.attn.parameters[f"{name}_proj.weight"]
            for layer in self.layers
            for name in "qk"
            if f"{name}_proj.weight" in layer.attn.parameters
        ]
        return bool(weights) and all(stretch(weight) < LEARNED for weight in weights)

    def settings(self, longest: int, masks: Masks | None = None) -> dict[int, dict[str, Any]]:
        """Return each layer's options of `qkv.attention`, for texts of at most `longest` tokens."""
        bias = {} if self.bias is None else {"bias": self.bias(longest, longest)}
        settings = {number: {**options, **bias} for number, options in enumerate(self.options)}
        for number, mask in (masks or {}).items():
            settings[number]["attn_mask"] = mask
        return settings

    def spans(self, mask: Array) -> Array:
        """Return a mask (B, T) that is True for the columns to compute.

        The argument `mask` (B, T) is False for masked tokens, and True for all other tokens. Masked
        columns between two unmasked tokens are computed too, so that the distance between the
        tokens does not change. In decoders with ALiBi, the distance between two tokens counts only
        unmasked columns, so the function returns `mask` unchanged.
        """
        counts = any("alibi_slopes" in one and one.get("is_causal") for one in self.options)
        return mask if counts else without_holes(mask)

    @quiet
    def run(
        self,
        batch: Batch,
        edits: RunEdits | None = None,
        record: Recorder | None = None,
        *,
        first: int = 0,
        stop: int | None = None,
        top_k: int | None = None,
        save: bool = False,
    ) -> tuple[Array, Saved]:
        """Run a batch through the layers.

        Args:
            batch: the texts or images.
            edits: the edits of the run.
            record: collects the activations, as arrays (B, T, ...).
            first: the first layer to run.
            stop: only layers before this layer are run; None runs all layers and the final norm.
            top_k: the number of largest attention weights to record per query; None records all
                weights.
            save: whether to return the values that `backward` needs.

        Returns:
            The vectors (total, D), and the values for `backward`.
        """
        masks: Masks = {}
        if save:
            need_single(self.embedding.table, {})
        if edits is not None:
            record, masks = edits.recorder_and_masks(batch, record)
        if batch.keys is not None:
            masks = {n: batch.keys & masks.get(n, True) for n in range(len(self.layers))}
        rows, settings = of_rows(record, batch.cu), self.settings(batch.longest, masks)
        relative = None if self.relative is None else self.relative(batch.longest)
        x, embedding = batch.embed(self.embedding, rows)  # (total, D)
        saved: list[BlockSaved] = []
        for number in range(len(self.layers))[first:stop]:
            options = {**settings[number], "positions": batch.rotary, "top_k": top_k}
            options["record"] = record and record.under(f"blocks.{number}.")
            if relative is not None:
                options["relative"] = relative
            if batch.keys is not None and getattr(self.layers[number], "conv", None):
                text, position = texts_and_positions(batch.cu)
                options["real"] = batch.keys[text, 0, 0, position]
            x, values = self.layers[number].run(x, cu=batch.cu, save=save, **options)
            saved += [values] if save else []
        x, last = self.finish(x, rows) if stop is None else (x, (None, None))
        return x, Saved(embedding, saved, *last, batch.cu)

    def backward(self, grad: Array, saved: Saved, record: Recorder | None = None) -> ByName:
        """Return the gradients for the parameters, given the gradient for the last vectors.

        Args:
            grad: (total, D), the gradient for the last vectors.
            saved: the second value that `run` returned with `save=True`. To free memory, this
                method removes the values of each layer from `saved`.
            record: collects the gradients for activations, as arrays (B, T, ...).

        Returns:
            The gradients for the parameters of embedding, layers and final norm, keyed by the names
            in the design, such as "blocks.0.attn.q_proj.weight". If `record` is a
            `GradientRecorder`, the result is empty.
        """
        gradients, rows = for_parameters(record), of_rows(record, saved.cu)
        longest = int(np.diff(saved.cu).max(initial=0))
        grad = self.back_to_layers(grad, (saved.final_norm, saved.wide), gradients, rows)
        for number in reversed(range(len(saved.layers))):
            block, layer = f"blocks.{self.same_as[number]}", self.layers[number]
            inner = record and record.under(f"blocks.{number}.")
            arrays: dict[str, Array] = {}
            back = part_back(layer, grad, saved.layers.pop(), block, arrays, inner)  # frees memory
            grad = back.x
            if gradients is None:
                continue
            if "sinks" in back.options:
                arrays[f"{block}.attn.sinks"] = back.options["sinks"]
            if self.bias is not None:
                table = self.bias.backward(back.options["bias"], longest, longest)
                arrays["relative_bias.weight"] = table
            if self.relative is not None:
                arrays |= self.relative.backward(back.options["relative"], longest)
            for name, array in arrays.items():  # layers may share parameters: add their gradients
                gradients[name] = gradients[name] + array if name in gradients else array
        assert saved.embedding is not None
        more = self.embedding.backward(grad, saved.embedding, rows)
        return more if gradients is None else gradients | more

    def logits(self, rows: Array) -> Array:
        """Return the logits (n, V) of n texts, given the last vector of each text, (n, D)."""
        if self.head is None:
            raise ValueError("logits: this model has no head")
        return self.head(rows, np.arange(len(rows) + 1))

    @quiet
    def unembed(self, rows: Array, *, norm: bool) -> Array:
        """Return the logits (n, V) of vectors (n, D), after the final norm if `norm` is True."""
        return self.logits(self.finish(rows, norm=norm)[0])

    @quiet
    def step(
        self,
        ids: Array,
        caches: Caches,
        lengths: Array | None = None,
        *,
        record: Recorder | None = None,
        top_k: int | None = None,
        masks: Masks | None = None,
    ) -> Array:
        """Run the tokens that follow the cached tokens, and add them to the caches.

        Args:
            ids: (B, n) token ids, one row per text.
            caches: one cache per layer; if there are fewer caches than layers, only the first
                layers run.
            lengths: (B,), the number of tokens in each row, without padding; n by default.
            record: collects the activations, as arrays (B, n, ...).
            top_k: as in `run`.
            masks: a mask of the keys that each head sees, keyed by layer. A mask broadcasts to
                (B, Hq, n, S), where S is the number of keys.

        Returns:
            (B, n, D)
        """
        # for a prompt, `_quick` prepares the weights for later steps
        quick = None if record or masks else self._quick()
        seen = caches[0].lengths if caches else np.zeros((), np.int64)
        token_positions = self._positions(ids, seen)
        x, _ = self.embedding(ids, token_positions, record)
        if quick is not None and ids.shape[1] == 1:
            return self.finish(quick(x, token_positions, [NewTokens(ids, caches, lengths)]))[0]
        more = self._step_bias(np.broadcast_to(seen, len(ids)), ids.shape[1], lengths)
        for number, (layer, cache) in enumerate(zip(self.layers, caches, strict=False)):
            options = {**self.options[number], **more, "top_k": top_k}
            options["record"] = record and record.under(f"blocks.{number}.")
            if masks and number in masks:
                options["attn_mask"] = masks[number]
            x, _ = layer.run(x, cache=cache, lengths=lengths, **options)
        return x if len(caches) < len(self.layers) else self.finish(x, record)[0]

    @quiet
    def step_together(self, batches: Sequence[NewTokens]) -> Array:
        """Run one new token for each text in several batches, as `step` does for one batch.

        With the kernel, one pass over the weights serves all batches. A result differs from that of
        `step` only by rounding.

        Returns:
            (total, D), the vectors of all batches, one batch after another.
        """
        quick = self._quick()
        if quick is None:
            return np.concatenate([self.step(*batch)[:, -1] for batch in batches])
        ids = np.concatenate([batch.ids for batch in batches])
        positions = np.concatenate(
            [self._positions(batch.ids, batch.caches[0].lengths) for batch in batches]
        )
        x, _ = self.embedding(ids, positions)
        return self.finish(quick(x, positions, batches))[0][:, -1]

    def _positions(self, ids: Array, seen: Array) -> Array:
        """Return the positions of ids (B, n) that follow `seen` (B,) earlier tokens."""
        positions = np.broadcast_to(seen[..., None] + np.arange(ids.shape[1]), ids.shape)
        limit = self.embedding.max_positions
        return positions if limit is None else np.minimum(positions, limit - 1)  # for padding

    def _step_bias(self, seen: Array, count: int, lengths: Array | None) -> dict[str, Array]:
        """Return the bias of the next `count` tokens of each text.

        The array `seen` (B,) holds the number of earlier tokens of each text. The bias has the
        shape (B, Hq, count, S), or (1, Hq, count, S) if all texts have the same number of earlier
        tokens.
        """
        if self.bias is None or not len(seen):
            return {}
        longest = int((seen + (count if lengths is None else lengths)).max(initial=0))
        offsets = seen[:1] if (seen == seen[0]).all() else seen  # equal offsets share one bias
        rows = [self.bias(count, longest, offset) for offset in offsets.tolist()]
        return {"bias": rows[0] if len(rows) == 1 else np.concatenate(rows)}

    def _quick(self) -> BlockSteps | None:
        """Return a fast implementation of a step with one new token per text; None if none exists.

        The implementation is cached. If a layer or the backend changes, the implementation is
        built again.
        """
        backend, parts, last = variant_and_threads(), made_of(self.layers), self._steps
        same = last is not None and last[0] == backend and len(last[2]) == len(parts)
        if last is None or not same or not all(map(is_, last[2], parts)):
            steps = steps_for(self.layers, self.options, self.embedding.table.dtype)
            self._steps = last = backend, steps, parts
        return last[1]

    def finish(
        self, x: Array, record: Recorder | None = None, *, norm: bool = True
    ) -> tuple[Array, tuple[NormSaved | None, Array | None]]:
        """Apply the final norm and the final projection; also return values for `backward`."""
        normed = wide = None
        if norm and self.final_norm is not None:
            x = x if record is None else record(_READ, x)
            x, normed = self.final_norm.run(x, record=record and record.under(f"{_LAST}."))
        if self.final_proj:
            wide, x = x, project_wide(x, self.final_proj, _PROJECTION)
            x = x if record is None else record(_PROJECTED, x)
        return x, (normed, wide)

    def back_to_layers(
        self,
        grad: Array,
        saved: tuple[NormSaved | None, Array | None],
        gradients: Gradients,
        record: Recorder | None,
    ) -> Array:
        """Return the gradient for the input of `finish`, given the gradient for its output."""
        normed, wide = saved
        if wide is not None:
            grad = grad if record is None else record(_PROJECTED, grad)
            grad = project_back(wide, self.final_proj, _PROJECTION, grad, gradients)
        if normed is not None:
            last = record and record.under(f"{_LAST}.")
            grad = part_back(self.final_norm, grad, normed, "final_norm", gradients, last).x
            grad = grad if record is None else record(_READ, grad)
        return grad


def unpack_rows(rows: Array, mask: Array, dtype: DType | None = None) -> Array:
    """Put rows (total, ...) where a mask (B, T) is True, and 0 elsewhere; return (B, T, ...)."""
    out = np.zeros((*mask.shape, *rows.shape[1:]), dtype or rows.dtype)
    out[mask] = rows
    return out


def without_holes(mask: Array) -> Array:
    """Return a mask (B, T) that is True from the first to the last True of each row of `mask`."""
    text: Array = np.logical_or.accumulate(mask, axis=1)
    text &= np.logical_or.accumulate(mask[:, ::-1], axis=1)[:, ::-1]
    return text


@np.errstate(over="ignore", invalid="ignore")
def stretch(weight: Array) -> float:
    """Compare the largest singular value of a matrix (n, m) to that of a random matrix.

    The result is the largest singular value divided by `rms * (sqrt(n) + sqrt(m))`, where `rms` is
    the root mean square of the matrix. Power iteration estimates the singular value from below. The
    result is infinite if the matrix holds infinity or NaN.

    Source:
        Marchenko and Pastur 1967; Martin and Mahoney 2021, "Implicit Self-Regularization in Deep
        Neural Networks", on the effect of training.

    >>> rng = np.random.default_rng(0)
    >>> random = rng.standard_normal((64, 32))
    >>> 0.9 < stretch(random) < 1.1, stretch(np.ones((64, 32))) > 2
    (True, True)
    """
    matrix = weight.astype(compute_type(weight.dtype), copy=False)
    rms = float(np.sqrt(np.square(matrix, dtype=np.float64).mean()))
    edge = rms * sum(map(math.sqrt, matrix.shape))
    if not np.isfinite(edge) or not edge:
        return float("inf") if edge else 0.0
    vector: Array = np.random.default_rng(0).standard_normal(matrix.shape[1:]).astype(matrix.dtype)
    for _ in range(_STEPS):
        vector = matrix.T @ (matrix @ (vector / np.linalg.norm(vector)))
    return math.sqrt(float(np.linalg.norm(vector))) / edge
