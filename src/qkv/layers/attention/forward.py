"""The forward pass of an attention layer, without checks of the arguments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array, Arrays, DType, Shape
from qkv.attend import attend_rows, check_offset, join_heads, split_heads
from qkv.attend.arguments import RETURNS, Call, Options, check_call
from qkv.attend.attention import Weighed, answer, record_weights
from qkv.attend.cache import KVCache
from qkv.layers import base
from qkv.layers.attention._relative import Relative
from qkv.layers.attention._rotary import Rotary
from qkv.layers.norm import HeadNorms, LayerNorm, RMSNorm
from qkv.ops.linear import is_wide, linear, project
from qkv.trace import Recorder
from qkv.trace.activations import SUMMARY, WEIGHTS
from qkv.trace.recorder import (
    of_heads,
    of_rows,
    padded_heads,
    texts_and_positions,
    unkept,
    unpadded_heads,
)

Norm = LayerNorm | RMSNorm
Keep = Callable[[str, Array], Array]


class Parts:
    """The parameters, sizes, rotary positions and norms of an attention layer."""

    parameters: dict[str, Array]
    embed_dim: int  # D, the size of the vectors in `x`.
    context_dim: int  # The size of the vectors in the context.
    output_dim: int  # The size of the vectors in the result.
    num_heads: int
    num_kv_heads: int
    d_query: int
    d_value: int
    rotary: Rotary | None
    q_norm: Norm | HeadNorms | None
    k_norm: Norm | HeadNorms | None
    clip: float | None  # The limit of the numbers in queries, keys and values.


@dataclass(frozen=True)
class Inputs:
    """The checked arguments of one call of the layer."""

    words: Array  # (..., L, D), or rows (total, D).
    context: Array | None  # (..., S, D), for keys and values; None if both come from `words`.
    dtype: DType  # The dtype of the result.
    options: Options  # The options of `qkv.attention`.
    # (B + 1,), the index of each packed text's first row, followed by the number of rows.
    cu: Array | None = None
    cache: KVCache | None = None
    lengths: Any = None  # (B,), the number of real words in each row; only with a cache.
    # Positions of packed rows; by default 0, 1, ... in each text.
    positions: "Positions | None" = None
    relative: Relative | None = None  # Relative positions, which add a bias to the scores.
    residual: Array | None = None  # (..., L, D), added to the result.
    record: Recorder | None = None  # Collects the activations.
    top_k: int | None = None  # The number of weights that `record` keeps per query; None for all.
    save: bool = False  # Whether values are saved for the backward pass.
    keeps_reads: bool = True  # Whether `record` collects the inputs of the projections.

    @property
    def others(self) -> Array:
        """The vectors from which keys and values are computed, (..., S, D)."""
        return self.words if self.context is None else self.context

    @property
    def lead(self) -> Shape:
        """The leading dimensions of the result."""
        shapes = self.words.shape, self.others.shape
        try:
            return np.broadcast_shapes(*(shape[:-2] for shape in shapes))
        except ValueError:
            raise value_error(
                f"x {shapes[0]} and context {shapes[1]}: their leading dimensions must broadcast"
            ) from None


@dataclass(frozen=True)
class AttentionSaved:
    """Values that the forward pass of attention saves for the backward pass."""

    inputs: Inputs
    shapes: dict[str, Shape]  # The shapes of q, k and v after their projections.
    norms: dict[str, Any]  # The values that the norms of q and k save.
    positions: "dict[str, Positions]"  # The positions of q and k, if they were rotated.
    inside: dict[str, Array]  # Which numbers of q, k and v were within the limit, if it exists.
    query: Array  # (..., Hq, L, d), after norm and rotation.
    key: Array  # (..., Hkv, S, d), after norm and rotation.
    value: Array  # (..., Hkv, S, dv).
    z: Array  # (..., Hq, L, dv), the weighted values.
    lse: Array | None  # The log-sum-exp of each query; None if `weighed` is not None.
    weighed: Weighed | None  # The weights if scores or weights were edited, else None.


class Positions(NamedTuple):
    """The positions of queries or keys, and the length of their text."""

    at: Array
    # The length of the text; an array if texts are packed: for each position, the length of the
    # text that contains the position.
    length: int | Array


class Forward(NamedTuple):
    """The result of the forward pass."""

    out: Array
    extra: list[Array]  # The weights and the log-sum-exp, if the options request them.
    saved: AttentionSaved | None


def attention_forward(layer: Parts, inputs: Inputs, plan: Call | None) -> Forward:
    """Run the forward pass of a layer; `plan` is the result of `attention_plan`, or None."""
    inputs, residual = _in_working_type(inputs), inputs.residual
    keep = of_heads(inputs.record, inputs.cu) or unkept
    parts, shapes, norms, positions, inside = project_heads(layer, inputs, keep)
    if inputs.relative is not None:
        bias = relative_bias(layer, inputs.relative, parts, inputs.cu)
        inputs = replace(inputs, options={**inputs.options, "bias": bias})
    if inputs.cache is not None:
        plan, parts = _with_cache(inputs, inputs.cache, parts)
    plan = plan or attention_plan(layer, inputs)
    z, extra, weighed = _attend(inputs, plan, list(parts.values()))
    saved = None
    if inputs.save:
        lse = extra[-1] if weighed is None else None
        made = parts["q"], parts["k"], parts["v"], z
        saved = AttentionSaved(inputs, shapes, norms, positions, inside, *made, lse, weighed)
    out = attention_out(keep("hook_z", z), layer.parameters, residual, inputs.record, inputs.cu)
    return Forward(out if is_wide(residual) else out.astype(inputs.dtype, copy=False), extra, saved)


def relative_bias(
    layer: Parts, relative: Relative, parts: Mapping[str, Array], cu: Array | None
) -> Array:
    """Return the bias (B, Hq, T, T) for queries and keys (B, H, T, d), or packed (H, total, d)."""
    pair = [parts["q"], parts["k"]]
    query, key = pair if cu is None else padded_heads(pair, cu)
    return relative.bias(layer.parameters, {"q": query, "k": key})


class Projected(NamedTuple):
    """The queries, keys and values of each head; queries and keys are normalised and rotated."""

    parts: dict[str, Array]  # "q", "k" and "v", each (..., H, L, d).
    shapes: dict[str, Shape]  # The shapes of q, k and v after their projections.
    norms: dict[str, Any]  # The values that the norms of q and k save.
    positions: dict[str, Positions]  # The positions of q and k, if they were rotated.
    inside: dict[str, Array]  # Which numbers of q, k and v were within the limit, if it exists.


def project_heads(layer: Parts, inputs: Inputs, keep: Keep = unkept) -> Projected:
    """Compute queries, keys and values from word vectors; normalise and rotate queries and keys.

    `keep` records each array, and returns the array with which the run continues.
    """
    heads = {"q": layer.num_heads, "k": layer.num_kv_heads, "v": layer.num_kv_heads}
    parts, inside = {}, {}
    record = of_rows(inputs.record, inputs.cu) if inputs.keeps_reads else None
    for name, count in heads.items():
        x = inputs.words if name == "q" else inputs.others
        x = x if record is None else record(f"hook_{name}_in", x)
        part = split_heads(project(x, layer.parameters, f"{name}_proj"), count)
        if layer.clip is not None:
            if inputs.save:
                inside[name] = np.abs(part) <= layer.clip
            limit = part.dtype.type(layer.clip)
            part = np.clip(part, -limit, limit)
        parts[name] = keep(f"hook_{name}", part)
    shapes = {name: part.shape for name, part in parts.items()}
    norms = {}
    for name, norm in (("q", layer.q_norm), ("k", layer.k_norm)):
        if norm is not None:
            parts[name], norms[name] = _normalize(norm, parts[name])
    positions = {}
    if layer.rotary is not None:
        positions = _positions(inputs, parts["q"].shape[-2], parts["k"].shape[-2])
        # Repeat the queries for each text of the batch. All texts may share one `x`, but if
        # their positions differ, their rotated queries differ too.
        parts["q"] = np.broadcast_to(parts["q"], (*inputs.lead, *parts["q"].shape[-3:]))
        for name, where in positions.items():
            parts[name] = layer.rotary.rotate(parts[name], *where)
    if norms or positions:
        for name in ("q", "k"):
            parts[name] = keep(f"hook_rot_{name}", parts[name])
    return Projected(parts, shapes, norms, positions, inside)


def attention_plan(layer: Parts, inputs: Inputs) -> Call:
    """Check the shapes and options of the attention call before queries and keys are computed.

    The plan for packed rows is the plan for the same texts padded to (B, ...).
    """
    (*lead, length, _), (*other_lead, keys, _) = inputs.words.shape, inputs.others.shape
    options = formula_options(inputs.options)
    if inputs.cu is not None:
        lengths = np.diff(inputs.cu)
        lead = other_lead = [len(lengths)]
        length = keys = int(lengths.max(initial=0))
    elif layer.rotary is not None and length != keys and "q_offset" not in options:
        raise value_error(
            f"x has {length} rows and context has {keys}, so rotary positions need "
            'q_offset; pass "start" if query 0 is at key 0, "end" if the last query is at '
            "the last key, or the position of query 0 as a number"
        )
    shapes = (
        (*lead, layer.num_heads, length, layer.d_query),
        (*other_lead, layer.num_kv_heads, keys, layer.d_query),
        (*other_lead, layer.num_kv_heads, keys, layer.d_value),
    )
    kind = base.working_type(inputs.dtype)
    stand_ins = (np.broadcast_to(np.zeros((), kind), shape) for shape in shapes)
    call = check_call(*stand_ins, **options)
    if inputs.cu is None:
        return call
    # `cu` is already checked, so the lengths are valid
    return call._replace(query_lengths=lengths, key_lengths=lengths)


def formula_options(options: Options) -> dict[str, Any]:
    """Remove `return_weights`, `return_lse`, `out` and every option that is None."""
    return {n: v for n, v in options.items() if n not in RETURNS and v is not None}


def _normalize(norm: Norm | HeadNorms, part: Array) -> tuple[Array, Any]:
    """Normalise queries or keys (..., H, L, d): each head alone, or all heads as one vector."""
    if norm.dim == part.shape[-1]:
        return norm.run(part)
    joined, saved = norm.run(join_heads(part))
    return split_heads(joined, part.shape[-3]), saved


def _in_working_type(inputs: Inputs) -> Inputs:
    words, context = base.working(inputs.words, inputs.dtype), inputs.context
    context = None if context is None else base.working(context, inputs.dtype)
    if words is inputs.words and context is inputs.context:
        return inputs
    return replace(inputs, words=words, context=context)


def _positions(inputs: Inputs, length: int, keys: int) -> dict[str, Positions]:
    """Return the positions of the queries and of the keys.

    For padded texts, the array of query positions has shape (..., 1, L), the array of key positions
    has shape (S,), and `Positions.length` is the largest position plus 1. For packed rows, all
    arrays have shape (total,), and `Positions.length` holds, for each row, the length of its text.
    """
    if inputs.positions is not None:
        return dict.fromkeys("qk", inputs.positions)
    if inputs.cache is not None:
        past = inputs.cache.lengths[..., None, None]
        of_queries = of_keys = past + np.arange(length)  # (B, 1, L)
    else:
        q_offset = inputs.options.get("q_offset")
        if inputs.cu is None:
            offset = check_offset(q_offset, length, keys, inputs.lead, needed=True)
            of_queries = np.broadcast_to(offset, inputs.lead)[..., None, None] + np.arange(length)
            of_keys = np.arange(keys)
        else:
            text, of_keys = texts_and_positions(inputs.cu)
            offset = check_offset(q_offset, 0, 0, (len(inputs.cu) - 1,), needed=False)
            offsets = np.broadcast_to(offset, len(inputs.cu) - 1)[text]
            lengths = np.diff(inputs.cu)[text]
            return {
                "q": Positions(offsets + of_keys, offsets + lengths),
                "k": Positions(of_keys, lengths),
            }
    return {
        name: Positions(at, 1 + int(np.max(at, initial=0)))
        for name, at in (("q", of_queries), ("k", of_keys))
    }


def _with_cache(inputs: Inputs, cache: KVCache, parts: Arrays) -> tuple[Call, dict[str, Array]]:
    """Add keys and values to the cache, and return the attention `Call` over all cached keys."""
    seen = cache.lengths if cache.lengths.size else 0
    cached = cache.append(parts["k"], parts["v"], inputs.lengths) | {"window": cache.window}
    options = {n: v for n, v in inputs.options.items() if n not in RETURNS and n != "window"}
    query = parts["q"]
    # The cache may store a different dtype. The steps of `qkv.layers.stepping` read it directly.
    key, value = (cached.pop(name).astype(query.dtype, copy=False) for name in ("key", "value"))
    if options.get("attn_mask") is not None:
        dropped = np.asarray(seen - cached["q_offset"])
        options["attn_mask"] = _of_keys_left(options["attn_mask"], dropped, key.shape[-2])
    plan = check_call(query, key, value, **cached, **options)
    return plan, {"q": query, "k": key, "v": value}


def _of_keys_left(mask: Array, dropped: Array, keys: int) -> Array:
    """Return the columns of a mask `(..., S)` for the keys that a cache still holds.

    `keys` is the number of keys in the cache. `dropped` is the number of earlier keys that the
    cache has removed: one number, or an array (B,) with one number for each text.
    """
    if not dropped.any():
        return mask if mask.shape[-1] == 1 else mask[..., :keys]
    left = dropped.reshape(-1, 1, 1, 1) + np.arange(keys)
    return np.take_along_axis(mask, np.minimum(left, mask.shape[-1] - 1), axis=-1)


def _attend(
    inputs: Inputs, plan: Call, parts: Sequence[Array]
) -> tuple[Array, list[Array], Weighed | None]:
    """Return the weighted values `(..., Hq, L, dv)`, extra results, and recorded weights.

    `parts` are the queries, keys and values; for packed rows, each is `(H, total, d)`. With the
    option `return_weights`, the extra results contain the weights. With the option `return_lse` or
    with `inputs.save`, the extra results contain the log-sum-exp.
    """
    options, cu, record = inputs.options, inputs.cu, inputs.record
    weights = bool(options.get("return_weights"))
    lse = inputs.save or bool(options.get("return_lse"))
    is_padded = cu is not None and any(options.get(name) is not None for name in base.PADDED)
    is_seen = record is not None and record.wants(*WEIGHTS, *SUMMARY)
    if cu is None or is_padded or is_seen:
        call = plan.of(*(parts if cu is None else padded_heads(parts, cu)))
        weighed = None if record is None else record_weights(call, record, inputs.top_k)
        if weighed is not None or cu is None or is_padded:
            out, *extra = answer(call, weights=weights, lse=lse) if weighed is None else weighed[:1]
            if cu is None:
                return out, extra, weighed
            rows = [np.swapaxes(unpadded_heads(part, cu), 0, 1) for part in extra]
            return unpadded_heads(out, cu), rows, weighed
    out, sums = attend_rows(plan.in_rows(parts, cu), lse=lse)
    return np.swapaxes(out, 0, 1), [] if sums is None else [sums], None


def attention_out(
    z: Array, parameters: Arrays, residual: Array | None, record: Recorder | None, cu: Array | None
) -> Array:
    """Compute the layer's output (..., L, D) from the weighted values `z` (..., Hq, L, dv).

    If `record` requests "hook_result", `record` gets the output of each head (..., L, Hq, D),
    without the bias of the output projection.
    """
    weight = parameters.get("out_proj.weight")
    if weight is None:
        out = join_heads(z)  # (..., L, Hq * dv)
        return out if residual is None else out + residual
    if record is not None and record.wants("hook_result"):
        parts = weight.reshape(z.shape[-3], z.shape[-1], -1)  # (Hq, dv, D)
        added = [linear(z[..., head, :, :], part, wide=True) for head, part in enumerate(parts)]
        computed = np.stack(added, axis=-2)
        result = (of_rows(record, cu) or unkept)("hook_result", computed)
        if result is not computed:
            total: Array = result.sum(-2)
            for other in (parameters.get("out_proj.bias"), residual):
                total = total if other is None else total + other.astype(total.dtype, copy=False)
            return total
    return project(join_heads(z), parameters, "out_proj", residual=residual)
