"""The attention layer: word vectors in, context out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, check_out, compute_type, whole_number
from qkv.attend import varlen_attention
from qkv.attend.attention import trace_call
from qkv.attend.cache import KVCache
from qkv.attend.call import Call, check_call
from qkv.attend.heads import join_heads, split_heads
from qkv.attend.options import RETURNS
from qkv.attend.solve import answer
from qkv.attend.summary import summarize_call
from qkv.attend.varlen import check_starts
from qkv.attend.visibility import check_offset
from qkv.embed.rotary import turn_pairs, turns_at
from qkv.layers.attention.backward import attention_backward
from qkv.layers.attention.weights import SHORT, Weights
from qkv.layers.gradient import Gradient, Saved, need_wide
from qkv.layers.norm import LayerNorm, RMSNorm
from qkv.layers.options import PACKED, PADDED, check_options
from qkv.layers.packed import keep, padded_heads, places
from qkv.layers.parameters import (
    checked,
    first_parameters,
    float_type,
    is_wide,
    project,
    quiet,
    result_type,
    word_vectors,
    working,
    working_type,
)
from qkv.trace import Recorder, Trace

Layout = Literal["in_out", "out_in"]

_SUMMARY = ("top_indices", "top_weights", "received", "lse")


Norm = LayerNorm | RMSNorm


class Scaling(Protocol):
    """How a model's rotary positions were stretched for longer texts."""

    def speeds(self, base: float, dims: int, length: int) -> tuple[Array, float]:
        """The angles of `qkv.apply_rotary` (dims / 2,), and what queries and keys are scaled by.

        `length` is that of the text: some stretch no more than it needs.
        """


@dataclass(frozen=True)
class Rotary:
    """How queries and keys are turned by their positions; see `qkv.apply_rotary`."""

    base: float = 10000.0
    dims: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None
    # what was asked for last: the next layers ask for the same again
    _last: list[_Turns] = field(default_factory=list, init=False, repr=False, compare=False)

    def turn(self, x: Array, positions: Array, length: int) -> Array:
        """Queries or keys `(..., L, d)` at these positions of a text of `length` tokens."""
        turns = self._turns(x, positions, length)
        return turn_pairs(x, turns.cos, turns.sin, interleaved=self.interleaved)

    def turn_back(self, grad: Array, positions: Array, length: int) -> Array:
        """From the gradient of what `turn` gave to that of `x`: turned the other way."""
        turns = self._turns(grad, positions, length)
        return turn_pairs(grad, turns.cos, -turns.sin, interleaved=self.interleaved)

    def _turns(self, x: Array, positions: Array, length: int) -> _Turns:
        wanted = (x.shape[-1], compute_type(x.dtype), 0 if self.scaling is None else length)
        turns = self._last[0] if self._last else None
        if turns is None or turns.of != wanted or not np.array_equal(turns.positions, positions):
            turns = _Turns(wanted, positions, *self.turns(x, positions, length))
            self._last[:] = [turns]
        return turns

    def turns(self, x: Array, positions: Array, length: int) -> tuple[Array, Array]:
        """What `turn_pairs` multiplies arrays of the shape and type of `x` by."""
        speeds, scale = None, 1.0
        if self.scaling is not None:
            speeds, scale = self.scaling.speeds(self.base, self.dims or x.shape[-1], length)
        return turns_at(
            positions,
            x.shape,
            x.dtype,
            base=self.base,
            interleaved=self.interleaved,
            dims=self.dims,
            speeds=speeds,
            scale=scale,
        )


@dataclass(frozen=True)
class _Turns:
    """Cosines and sines, and for what."""

    of: tuple[int, np.dtype[Any], int]
    positions: Array
    cos: Array
    sin: Array


class MultiHeadAttention:
    """Attention from word vectors to context, with its own projections.

    Queries come from `x`, keys and values from `context`, which is `x` where none is given.

    Args:
        embed_dim: D, the size of the word vectors.
        num_heads: Hq.
        num_kv_heads: Hkv, of which Hq is a multiple; Hq unless given.
        d_query: d, the size of a head's queries and keys; D / Hq unless given.
        d_value: dv, the size of a head's values; D / Hq unless given.
        bias: whether the projections have biases; they begin at 0.
        out_proj: whether the joined heads (..., T, Hq * dv) are projected to (..., T, D).
        rotary: a `Rotary` (or a dict of its fields) that turns queries and keys by their
            positions: keys stand at 0 ... S - 1, queries from `q_offset` on.
        seed: of the weights, which are normal with variance 1 / (their number of rows), so that
            scores of normal word vectors have a variance near 1 after scaling.
        dtype: of the parameters.

    The result has the type that the inputs and the parameters promote to; integers take the
    parameters'. Halves are computed in float32.

    Source:
        Vaswani et al. 2017, section 3.2.2; fewer key heads: Ainslie et al. 2023.

    >>> layer = MultiHeadAttention(8, num_heads=2, seed=0)
    >>> list(layer.parameters), layer.parameters["q_proj.weight"].shape
    (['q_proj.weight', 'k_proj.weight', 'v_proj.weight', 'out_proj.weight'], (8, 8))
    >>> out, weights = layer(np.ones((5, 8)), is_causal=True, return_weights=True)
    >>> out.shape, weights.shape
    ((5, 8), (2, 5, 5))
    """

    parameters: dict[str, Array]
    embed_dim: int  # D, of x
    context_dim: int  # of the context
    output_dim: int  # of the result
    num_heads: int
    num_kv_heads: int
    d_query: int
    d_value: int
    rotary: Rotary | None
    q_norm: Norm | None
    k_norm: Norm | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_kv_heads: int | None = None,
        d_query: int | None = None,
        d_value: int | None = None,
        bias: bool = False,
        out_proj: bool = True,
        rotary: Rotary | Mapping[str, Any] | None = None,
        seed: int | None = None,
        dtype: Any = np.float32,
    ) -> None:
        call = type(self).__name__
        embed_dim = whole_number(embed_dim, call=call, name="embed_dim", least=1)
        num_heads = whole_number(num_heads, call=call, name="num_heads", least=1)
        if num_kv_heads is None:
            num_kv_heads = num_heads
        num_kv_heads = whole_number(num_kv_heads, call=call, name="num_kv_heads", least=1)
        if num_heads % num_kv_heads:
            raise ValueError(
                f"{call}: num_heads is {num_heads} and num_kv_heads is {num_kv_heads}: "
                "the first must be a multiple of the second"
            )
        if (d_query is None or d_value is None) and embed_dim % num_heads:
            raise ValueError(
                f"{call}: embed_dim is {embed_dim} and num_heads is {num_heads}: the first must be "
                "a multiple of the second, or give both d_query and d_value"
            )
        share = embed_dim // num_heads
        d_query = (
            share if d_query is None else whole_number(d_query, call=call, name="d_query", least=1)
        )
        d_value = (
            share if d_value is None else whole_number(d_value, call=call, name="d_value", least=1)
        )
        kind = float_type(dtype, call=call)
        sizes = {
            "q_proj": (embed_dim, num_heads * d_query),
            "k_proj": (embed_dim, num_kv_heads * d_query),
            "v_proj": (embed_dim, num_kv_heads * d_value),
        }
        if out_proj:
            sizes["out_proj"] = (num_heads * d_value, embed_dim)
        parameters = first_parameters(sizes, bias=bias, seed=seed, dtype=kind)
        self._set(Weights(parameters, call), num_heads, rotary)

    @classmethod
    def from_weights(
        cls,
        w_q: ArrayLike,
        w_k: ArrayLike,
        w_v: ArrayLike,
        w_o: ArrayLike | None = None,
        *,
        num_heads: int = 1,
        layout: Layout = "in_out",
    ) -> Self:
        """A layer with these weights, used where they stand; sizes and key heads are inferred.

        Args:
            w_q: (D, Hq * d).
            w_k: (D, Hkv * d), or with the context's own size in place of D.
            w_v: (D, Hkv * dv), as `w_k`.
            w_o: (Hq * dv, D); without it the heads are joined side by side.
            num_heads: Hq.
            layout: "in_out" for these shapes, "out_in" if each is the other way round.

        >>> w_q, w_k, w_v = np.ones((10, 20)), np.ones((10, 20)), np.ones((10, 25))
        >>> layer = MultiHeadAttention.from_weights(w_q, w_k, w_v)
        >>> layer.d_query, layer.d_value, layer(np.ones((5, 10))).shape
        (20, 25, (5, 25))
        """
        return cls._from_weights((w_q, w_k, w_v, w_o), num_heads, layout, call=cls.__name__)

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, ArrayLike],
        *,
        num_heads: int = 1,
        rotary: Rotary | Mapping[str, Any] | None = None,
        q_norm: Norm | None = None,
        k_norm: Norm | None = None,
    ) -> Self:
        """A layer with these parameters, used where they stand; sizes and key heads are inferred.

        Args:
            parameters: "q_proj.weight" (D, Hq * d), "k_proj.weight" (D, Hkv * d), "v_proj.weight"
                (D, Hkv * dv), and where there are any "out_proj.weight" (Hq * dv, D) and the
                biases "q_proj.bias" and so on.
            num_heads: Hq.
            rotary: as for the class.
            q_norm: a norm of each head's queries (..., d), before they are turned.
            k_norm: the same for keys.
        """
        layer = cls.__new__(cls)
        call = cls.__name__
        layer._set(Weights(checked(parameters, call=call), call), num_heads, rotary)
        for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
            if norm is not None and norm.dim != layer.d_query:
                raise ValueError(
                    f"{call}: {name} takes vectors of {norm.dim} and a head has {layer.d_query}: "
                    "both must be the same"
                )
        layer.q_norm, layer.k_norm = q_norm, k_norm
        return layer

    @classmethod
    def _from_weights(
        cls, weights: tuple[Any, ...], num_heads: int, layout: str, *, call: str
    ) -> Self:
        if layout not in ("in_out", "out_in"):
            raise ValueError(f'{call}: layout is {layout!r}: write "in_out" or "out_in"')
        named = zip(SHORT.values(), weights, strict=True)
        arrays = checked({name: w for name, w in named if w is not None}, call=call)
        if layout == "out_in":
            arrays = {name: array.T for name, array in arrays.items()}
        layer = cls.__new__(cls)
        parameters = {full: arrays[short] for full, short in SHORT.items() if short in arrays}
        layer._set(Weights(parameters, call, layout, short=True), num_heads, None)
        return layer

    def _set(self, weights: Weights, num_heads: int, rotary: Any) -> None:
        """Take the parameters once they are known to fit each other."""
        self._weights = weights
        self.parameters = dict(weights.parameters)
        sizes = weights.sizes(whole_number(num_heads, call=weights.call, name="num_heads", least=1))
        self.embed_dim, self.context_dim = sizes.embed_dim, sizes.context_dim
        self.output_dim = sizes.output_dim
        self.num_heads, self.num_kv_heads = sizes.num_heads, sizes.num_kv_heads
        self.d_query, self.d_value = sizes.d_query, sizes.d_value
        self.q_norm = self.k_norm = None
        self.rotary = _as_rotary(rotary, call=weights.call)
        if self.rotary is not None:  # one row through it, for its own errors
            self.rotary.turn(np.zeros((1, self.d_query)), np.zeros(1), 1)

    @quiet
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        cu_lengths: ArrayLike | None = None,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
        residual: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        saved: Saved | None = None,
        **options: Any,
    ) -> Any:
        """From word vectors to context.

        Args:
            x: (..., L, D), what the queries are made of; or rows (total, D) of texts laid end to
                end.
            context: (..., S, D), what keys and values are made of; `x` unless given.
            cu_lengths: (B + 1,), where each of those texts begins and the last one ends. With it
                go `is_causal`, `q_offset`, `window`, `softcap`, `alibi_slopes`, `sinks`, `scale`,
                `return_lse`, `attn_mask` and `bias`, which then broadcast to (B, Hq, T, T), T the
                length of the longest text.
            cache: keys and values of the words before `x` (B, L, D), which are looked at too and
                to which those of `x` are added. It says where `x` stands, so `q_offset` is left
                out.
            lengths: (B,), with `cache` how many words of each row of `x` are real.
            residual: (..., L, D), added to the result before that is rounded to a half; if it is
                float32, so is the result.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
            saved: an empty dict, for what `backward` needs of it; it goes without a cache.
            options: those of `qkv.attention`, all with its meaning. `out` is for the result of
                the layer.

        Returns:
            An array (..., L, D), or (..., L, Hq * dv) without an output projection; or the tuples
            that `return_weights` and `return_lse` of `qkv.attention` give, weights (..., Hq, L, S).
            With one head and 2-D inputs they are (L, S).
        """
        call = self._weights.call
        check_options(options, packed=cu_lengths is not None, call=call)
        if top_k is not None:
            top_k = whole_number(top_k, call=call, name="top_k", least=1)
        words = self._vectors(x, "x", self.embed_dim)
        others = words if context is None else self._vectors(context, "context", self.context_dim)
        if context is None and self.context_dim != self.embed_dim:
            raise ValueError(
                f"{call}: x has vectors of {self.embed_dim} and "
                f"{self._weights.shown('k_proj.weight')} takes {self.context_dim}: give a context"
            )
        if cache is not None and (context is not None or cu_lengths is not None):
            raise ValueError(
                f"{call}: cache goes with x (B, L, D) alone: leave context and cu_lengths out"
            )
        if cache is not None and saved is not None:
            raise ValueError(f"{call}: there is no way back through a cache: leave out saved")
        cu = None
        if cu_lengths is not None:
            if context is not None:
                raise ValueError(
                    f"{call}: cu_lengths goes without a context: each text attends to itself"
                )
            if words.ndim != 2:
                raise ValueError(
                    f"{call}: x has shape {words.shape}: with cu_lengths it is (total, D)"
                )
            cu = check_starts(call, "cu_lengths", cu_lengths, "x", len(words))
        dtype = result_type([words, others], self.parameters, call=call)
        need_wide(dtype, saved, call=call)
        lead = _lead(words, others, call=call)
        target = options.pop("out", None)
        if target is not None:
            shape = (*lead, words.shape[-2], self.output_dim)
            check_out(target, shape, dtype, (words, others, *self.parameters.values()), call=call)
        plain = self.num_heads == 1 and words.ndim == others.ndim == 2
        checked = None
        if cache is None:
            checked = self._checked(words, others, cu, working_type(dtype), options)

        words, others = working(words, dtype), working(others, dtype)
        query = split_heads(project(words, self.parameters, "q_proj"), self.num_heads)
        key = split_heads(project(others, self.parameters, "k_proj"), self.num_kv_heads)
        value = split_heads(project(others, self.parameters, "v_proj"), self.num_kv_heads)
        for name, part in (("hook_q", query), ("hook_k", key), ("hook_v", value)):
            keep(record, name, np.swapaxes(part, -3, -2), cu)  # (B, T, H, d)
        if saved is not None:
            saved |= {"words": words, "others": others, "is_self": context is None, "dtype": dtype}
            saved |= {"q": query, "k": key, "v": value, "cu": cu, "options": dict(options)}
            saved |= {"q_norm": {}, "k_norm": {}}
        if self.q_norm is not None:
            query = self.q_norm(query, saved=None if saved is None else saved["q_norm"])
        if self.k_norm is not None:
            key = self.k_norm(key, saved=None if saved is None else saved["k_norm"])
        if self.rotary is not None and cache is not None:
            at = cache.lengths[..., None, None] + np.arange(words.shape[-2])  # (B, 1, L)
            query, key = self._turn(query, at), self._turn(key, at)
        elif self.rotary is not None:
            query, key = self._turn_both(query, key, options.get("q_offset"), lead, cu, saved)
        if self.rotary is not None or self.q_norm is not None or self.k_norm is not None:
            for name, part in (("hook_rot_q", query), ("hook_rot_k", key)):
                keep(record, name, np.swapaxes(part, -3, -2), cu)
        if cache is not None:
            given = cache.append(key, value, lengths) | {"window": cache.window}
            kept = {n: v for n, v in options.items() if n not in RETURNS and n != "window"}
            key, value = given.pop("key"), given.pop("value")
            checked = check_call(query, key, value, **given, **kept, call=call)
        assert checked is not None
        asked = options if saved is None else {**options, "return_lse": True}
        z, extra = _attend(checked, (query, key, value), asked, cu, record, top_k)
        if saved is not None:
            saved |= {"query": query, "key": key, "value": value, "z": z, "lse": extra[-1]}
            extra = extra if options.get("return_lse") else extra[:-1]
        keep(record, "hook_z", np.swapaxes(z, -3, -2), cu)
        out = join_heads(z)  # (..., L, Hq * dv)
        if "out_proj.weight" in self.parameters:
            out = project(out, self.parameters, "out_proj", residual=residual)
        elif residual is not None:
            out = out + residual
        if not is_wide(residual):
            out = out.astype(dtype, copy=False)
        if target is not None:
            target[...] = out
            out = target
        if plain and cu is None:
            extra = [array[0] for array in extra]
        return (out, *extra) if extra else out

    @quiet
    def backward(self, grad: ArrayLike, saved: Saved) -> Gradient:
        """The way back: the gradients of `sum(grad * layer(x, ...))`.

        Args:
            grad: (..., L, D), the gradient of what the layer gave; that of a residual is the same.
            saved: what `layer(x, ..., saved=saved)` kept.

        Returns:
            `.x`, `.context` where there was one, `.parameters` by their names (those of norms of
            queries and keys as "q_norm.weight" and so on), and `.options`: "bias", "sinks" and
            "alibi_slopes" where they were given.

        >>> layer, saved = MultiHeadAttention(8, 2, seed=0), {}
        >>> out = layer(np.ones((5, 8)), is_causal=True, saved=saved)
        >>> layer.backward(np.ones((5, 8)), saved).parameters["q_proj.weight"].shape
        (8, 8)
        """
        return attention_backward(self, grad, saved)

    def forward(self, x: ArrayLike, context: ArrayLike | None = None, **options: Any) -> Any:
        """The same as calling the layer."""
        return self(x, context, **options)

    def trace(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        top_k: int | None = None,
        **options: Any,
    ) -> Trace:
        """Every intermediate of `layer(x, ...)` by its name.

        These are `hook_q`, `hook_k`, `hook_v`, `hook_rot_q`, `hook_rot_k`, `hook_attn_scores`,
        `hook_pattern`, `hook_z` and `hook_attn_out`, the layer's output. With `top_k` there are
        `top_indices`, `top_weights`, `received` and `lse` (see `qkv.summarize_attention`) in place
        of scores and pattern. A batch axis is put in front of 2-D inputs, and packed rows are
        given as (B, T, ...).

        >>> trace = MultiHeadAttention(8, 2, seed=0).trace(np.ones((5, 8)), is_causal=True)
        >>> trace["hook_q"].shape, trace["pattern"].shape, trace["z"].shape
        ((1, 5, 2, 4), (1, 2, 5, 5), (1, 5, 2, 4))
        """
        call = self._weights.call
        for name in RETURNS:
            if name in options:
                raise TypeError(f"{call}: trace has no {name}: the trace holds it all")
        cu_lengths = options.get("cu_lengths")
        if cu_lengths is None:
            x = _in_front(x, "x", call=call)
            context = None if context is None else _in_front(context, "context", call=call)
        record = Recorder()
        out = self(x, context, record=record, top_k=top_k, **options)
        cu = None
        if cu_lengths is not None:
            cu = check_starts(call, "cu_lengths", cu_lengths, "x", len(out))
        keep(record, "hook_attn_out", out, cu)
        return Trace(record.arrays)

    def _checked(
        self,
        words: Array,
        others: Array,
        cu: Array | None,
        kind: np.dtype[Any],
        options: Mapping[str, Any],
    ) -> Call:
        """The call of attention, checked before there are queries, keys and values, by shapes.

        Packed rows are checked as the padded (B, ...) that they stand for.
        """
        name = self._weights.call
        (*lead, length, _), (*other_lead, keys, _) = words.shape, others.shape
        kept = {n: v for n, v in options.items() if n not in RETURNS and v is not None}
        if cu is not None:
            lead = other_lead = [len(cu) - 1]
            length = keys = int(np.diff(cu).max(initial=0))
            kept |= _lengths(cu)
        elif self.rotary is not None and length != keys and "q_offset" not in kept:
            raise ValueError(
                f"{name}: x has {length} rows and context has {keys}, so rotary positions need "
                'q_offset: "start" if query 0 stands at key 0, "end" if the last query stands at '
                "the last key, or its place as a number"
            )
        shapes = (
            (*lead, self.num_heads, length, self.d_query),
            (*other_lead, self.num_kv_heads, keys, self.d_query),
            (*other_lead, self.num_kv_heads, keys, self.d_value),
        )
        stand_ins = (np.broadcast_to(np.zeros((), kind), shape) for shape in shapes)
        return check_call(*stand_ins, **kept, call=name)

    def _vectors(self, x: Any, name: str, size: int) -> Array:
        array = word_vectors(x, call=self._weights.call, name=name)
        if array.shape[-1] != size:
            weight = "q_proj.weight" if name == "x" else "k_proj.weight"
            rows, columns = self.parameters[weight].shape
            raise ValueError(
                f"{self._weights.call}: {name} {array.shape} has vectors of {array.shape[-1]} and "
                f"{self._weights.shown(weight)} takes vectors of {rows}"
                + self._weights.hint(columns == array.shape[-1])
            )
        return array

    def _turn(self, x: Array, positions: Array) -> Array:
        assert self.rotary is not None
        return self.rotary.turn(x, positions, _reach(positions))

    def _turn_both(
        self,
        query: Array,
        key: Array,
        q_offset: Any,
        lead: tuple[int, ...],
        cu: Array | None,
        saved: Saved | None,
    ) -> tuple[Array, Array]:
        """Queries and keys, (..., H, T, d), turned by their positions."""
        length, keys = query.shape[-2], key.shape[-2]
        if cu is None:
            offset = check_offset(self._weights.call, q_offset, length, keys, lead, needed=True)
            if offset.ndim:
                query = np.broadcast_to(query, (*lead, *query.shape[-3:]))
            at = offset[..., None, None] + np.arange(length)  # (..., 1, L)
            there = np.arange(keys)
        else:
            text, there = places(cu)  # (total,)
            offset = check_offset(self._weights.call, q_offset, 0, 0, (len(cu) - 1,), needed=False)
            at = offset[text] + there
        if saved is not None:
            saved |= {"q_turned": (at, _reach(at)), "k_turned": (there, _reach(there))}
        return self._turn(query, at), self._turn(key, there)


class SelfAttention(MultiHeadAttention):
    """Attention of the words of a text to each other: `MultiHeadAttention` without a context.

    >>> layer = SelfAttention(128, num_heads=4, seed=0)
    >>> layer(np.ones((1, 6, 128))).shape
    (1, 6, 128)
    """

    def __call__(self, x: ArrayLike, context: ArrayLike | None = None, **options: Any) -> Any:
        """From word vectors (..., L, D) to their context; options as for MultiHeadAttention."""
        if context is not None:
            raise ValueError(
                f"{self._weights.call}: the context is x itself: use MultiHeadAttention for "
                "another, and write attn_mask=... for a mask"
            )
        return super().__call__(x, **options)

    def _set(self, weights: Weights, num_heads: int, rotary: Any) -> None:
        super()._set(weights, num_heads, rotary)
        if self.context_dim != self.embed_dim:
            raise ValueError(
                f"{weights.call}: {weights.shown('q_proj.weight')} takes vectors of "
                f"{self.embed_dim} and {weights.shown('k_proj.weight')} of {self.context_dim}: "
                "both read the same words"
            )


def self_attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    w_o: ArrayLike | None = None,
    *,
    num_heads: int = 1,
    layout: Layout = "in_out",
    **options: Any,
) -> Any:
    """Self-attention from word vectors and weights to context, in one call.

    Args:
        x: word vectors, (..., L, D); integers are promoted to the weights' type.
        w_q: (D, Hq * d).
        w_k: (D, Hkv * d).
        w_v: (D, Hkv * dv).
        w_o: (Hq * dv, D); without it the heads are joined side by side.
        num_heads: Hq.
        layout: "in_out" for these shapes, "out_in" if each weight is the other way round.
        options: those of `qkv.attention`: `is_causal=True`, `return_weights=True`, ...

    Returns:
        Context (..., L, D), without `w_o` (..., L, Hq * dv); with `return_weights` also weights
        (..., Hq, L, L), for one head and 2-D `x` (L, L).

    Raises:
        ValueError: shapes that do not fit; the error names both.
        TypeError: weights that are not floats.

    Source:
        Vaswani et al. 2017, section 3.2.

    >>> x = np.array([[1, 0], [0, 1], [1, 1]])
    >>> context, weights = self_attention(x, np.eye(2), np.eye(2), np.eye(2), return_weights=True)
    >>> weights.round(2)
    array([[0.4 , 0.2 , 0.4 ],
           [0.2 , 0.4 , 0.4 ],
           [0.25, 0.25, 0.5 ]])
    """
    weights = (w_q, w_k, w_v, w_o)
    layer = SelfAttention._from_weights(weights, num_heads, layout, call="self_attention")
    return layer(x, **options)


def _attend(
    checked: Call,
    parts: Sequence[Array],
    options: Mapping[str, Any],
    cu: Array | None,
    record: Recorder | None,
    top_k: int | None,
) -> tuple[Array, list[Array]]:
    """The weighted values `(..., Hq, L, dv)`, and what else `options` ask back.

    `parts` are query, key and value; those of packed rows are `(H, total, d)`.
    """
    weights, lse = bool(options.get("return_weights")), bool(options.get("return_lse"))
    if record is not None:
        whole = checked.of(*(parts if cu is None else padded_heads(parts, cu)))
        _record(whole, record, top_k)
    if cu is None:
        out, *extra = answer(checked.of(*parts), weights=weights, lse=lse)
        return out, extra
    if any(options.get(name) is not None for name in PADDED):
        out, *extra = answer(checked.of(*padded_heads(parts, cu)), weights=weights, lse=lse)
        text, place = places(cu)
        return np.swapaxes(out, 0, 1)[:, text, place], [part[text, :, place] for part in extra]
    packed = {n: v for n, v in options.items() if n in PACKED and n not in (*PADDED, *RETURNS)}
    query, key, value = (np.swapaxes(part, 0, 1) for part in parts)  # (total, H, d)
    found = varlen_attention(query, key, value, cu, cu, **packed, return_lse=lse)
    out, *extra = found if lse else (found,)
    return np.swapaxes(out, 0, 1), extra


def _reach(positions: Array) -> int:
    """The length of the shortest text that has these positions."""
    return 1 + int(np.max(positions, initial=0))


def _lengths(cu: Array) -> dict[str, Any]:
    return {"query_lengths": np.diff(cu), "key_lengths": np.diff(cu)}


def _record(call: Call, record: Recorder, top_k: int | None) -> None:
    """Record scores and weights, or their summary, if wanted."""
    if top_k is not None:
        if record.wants(*_SUMMARY):
            summary = summarize_call(call, top_k)
            for name in _SUMMARY:
                record(name, getattr(summary, name))
    elif record.wants("hook_attn_scores", "hook_pattern"):
        trace = trace_call(call)
        record("hook_attn_scores", trace["scores"])
        record("hook_pattern", trace["pattern"])


def _as_rotary(rotary: Any, *, call: str) -> Rotary | None:
    if rotary is None or isinstance(rotary, Rotary):
        return rotary
    try:
        return Rotary(**rotary)
    except TypeError:
        raise TypeError(
            f"{call}: rotary is {rotary!r}: give Rotary(base=, dims=, interleaved=) "
            "or a dict of those"
        ) from None


def _in_front(x: Any, name: str, *, call: str) -> Array:
    """`x` with a batch axis, where it has none."""
    array = as_array(x, call=call, name=name)
    return array[None] if array.ndim == 2 else array


def _lead(x: Array, context: Array, *, call: str) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(x.shape[:-2], context.shape[:-2])
    except ValueError:
        raise ValueError(
            f"{call}: x {x.shape} and context {context.shape}: "
            "their leading dimensions must broadcast"
        ) from None
