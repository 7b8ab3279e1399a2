"""The attention layer, its public door: every argument is checked here, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, as_array, check_out, float_type, shown, whole_number
from qkv.attend.cache import KVCache
from qkv.attend.call import Call
from qkv.attend.options import RETURNS
from qkv.attend.varlen import check_starts
from qkv.layers.attention.backward import attention_backward
from qkv.layers.attention.forward import (
    AttentionSaved,
    Inputs,
    Norm,
    Positions,
    attention_forward,
    attention_plan,
)
from qkv.layers.attention.rotary import Rotary, as_rotary
from qkv.layers.attention.weights import SHORT, Weights
from qkv.layers.layer import (
    Gradient,
    checked,
    first_parameters,
    need_single,
    quiet,
    result_type,
    word_vectors,
)
from qkv.layers.packed import check_options
from qkv.trace import Recorder, Trace
from qkv.trace.activations import SUMMARY
from qkv.trace.recorder import of_rows, unkept

Layout = Literal["in_out", "out_in"]


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
        rotary: a `Rotary` (or a dict of its fields) that rotates queries and keys by their
            positions: keys stand at 0 ... S - 1, queries from `q_offset` on.
        seed: of the weights, which are normal with variance 1 / (their number of rows), so that
            scores of normal word vectors have a variance near 1 after scaling.
        dtype: of the parameters.

    The result has the type that the inputs and the parameters promote to; integers take the
    parameters'. Half precision is computed in float32.

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
        d_query, d_value = (
            share if size is None else whole_number(size, call=call, name=name, least=1)
            for name, size in (("d_query", d_query), ("d_value", d_value))
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
            q_norm: a norm of each head's queries (..., d), or of those of all heads side by side
                (..., Hq * d), before they are rotated.
            k_norm: the same for keys.
        """
        layer = cls.__new__(cls)
        call = cls.__name__
        layer._set(Weights(checked(parameters, call=call), call), num_heads, rotary)
        size = layer.d_query
        norms = (("q_norm", q_norm, layer.num_heads), ("k_norm", k_norm, layer.num_kv_heads))
        for name, norm, heads in norms:
            if norm is not None and norm.dim not in (size, heads * size):
                raise ValueError(
                    f"{call}: {name} takes vectors of {norm.dim} and a head has {size}: it must "
                    f"take those of one head, or of all {heads} side by side, {heads * size}"
                )
        layer.q_norm, layer.k_norm = q_norm, k_norm
        return layer

    @classmethod
    def _from_weights(
        cls, weights: tuple[Any, ...], num_heads: int, layout: str, *, call: str
    ) -> Self:
        if layout not in ("in_out", "out_in"):
            raise ValueError(f'{call}: layout is {shown(layout)}: write "in_out" or "out_in"')
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
        self.rotary = as_rotary(rotary, call=weights.call)
        if self.rotary is not None:  # one row through it, for its own errors
            self.rotary.rotate(np.zeros((1, self.d_query)), np.zeros(1), 1)

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
            residual: (..., L, D), added to the result before that is rounded to half precision; if
                it is float32, so is the result.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
            options: those of `qkv.attention`, all with its meaning. `out` is for the result of
                the layer.

        Returns:
            An array (..., L, D), or (..., L, Hq * dv) without an output projection; or the tuples
            that `return_weights` and `return_lse` of `qkv.attention` give, weights (..., Hq, L, S).
            With one head and 2-D inputs they are (L, S).
        """
        given: dict[str, Any] = {"cu_lengths": cu_lengths, "cache": cache, "lengths": lengths}
        inputs, plan, target = self.check(x, context, top_k=top_k, **given, **options)
        out, extra, _ = attention_forward(
            self, inputs, plan=plan, residual=residual, record=record, top_k=top_k
        )
        if target is not None:
            target[...] = out
            out = target
        is_plain = self.num_heads == 1 and inputs.words.ndim == inputs.others.ndim == 2
        if is_plain and inputs.cu is None:
            extra = [array[0] for array in extra]
        return (out, *extra) if extra else out

    @quiet
    def training_forward(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        cu_lengths: ArrayLike | None = None,
        **options: Any,
    ) -> tuple[Array, AttentionSaved]:
        """The result (..., L, D) of calling the layer, and what `backward` needs of it."""
        call = self._weights.call
        for name in RETURNS:
            if name in options:
                raise TypeError(f"{call}: training_forward has no {name}: leave it out")
        check_options(options, packed=cu_lengths is not None, call=call)
        inputs, plan, _ = self.check(x, context, cu_lengths=cu_lengths, **options)
        for array in (inputs.words, inputs.others):
            need_single(array, self.parameters, call=call)
        out, _, saved = attention_forward(self, inputs, plan=plan, save=True)
        assert saved is not None
        return out, saved

    def check(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        cu_lengths: ArrayLike | None = None,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> tuple[Inputs, Call | None, Array | None]:
        """What a call is about, once all of it fits: its inputs, its plan, and where it goes."""
        call = self._weights.call
        check_options(options, packed=cu_lengths is not None, call=call)
        words = self._vectors(x, "x", self.embed_dim)
        others = None if context is None else self._vectors(context, "context", self.context_dim)
        if others is None and self.context_dim != self.embed_dim:
            raise ValueError(
                f"{call}: x has vectors of {self.embed_dim} and "
                f"{self._weights.shown('k_proj.weight')} takes {self.context_dim}: give a context"
            )
        if cache is not None and (context is not None or cu_lengths is not None):
            raise ValueError(
                f"{call}: cache goes with x (B, L, D) alone: leave context and cu_lengths out"
            )
        cu = None
        if cu_lengths is not None:
            if others is not None:
                raise ValueError(
                    f"{call}: cu_lengths goes without a context: each text attends to itself"
                )
            if words.ndim != 2:
                raise ValueError(
                    f"{call}: x has shape {words.shape}: with cu_lengths it is (total, D)"
                )
            cu = check_starts(call, "cu_lengths", cu_lengths, "x", len(words))
        given = [words] if others is None else [words, others]
        dtype = result_type(given, self.parameters, call=call)
        target = options.pop("out", None)
        inputs = Inputs(words, others, dtype, options, call, cu, cache, lengths)
        shape = (*inputs.lead, words.shape[-2], self.output_dim)
        if target is not None:
            check_out(target, shape, dtype, (*given, *self.parameters.values()), call=call)
        if top_k is not None:
            whole_number(top_k, call=call, name="top_k", least=1)
        return inputs, attention_plan(self, inputs) if cache is None else None, target

    @property
    def hooks(self) -> list[str]:
        """The names that it may give a `Recorder`, those of `top_k` included."""
        moved = self.rotary is not None or self.q_norm is not None or self.k_norm is not None
        names = ["q", "k", "v", *["rot_q", "rot_k"] * moved, "attn_scores", "pattern", "z"]
        names += ["result"] * ("out_proj.weight" in self.parameters)
        return [*(f"hook_{name}" for name in names), *SUMMARY]

    def run(
        self,
        x: Array,
        context: Array | None = None,
        *,
        cu: Array | None = None,
        cache: KVCache | None = None,
        lengths: Any = None,
        residual: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        plan: Call | None = None,
        positions: Positions | None = None,
        save: bool = False,
        **options: Any,
    ) -> tuple[Array, AttentionSaved | None]:
        """The forward pass, unchecked; with `save` also what the backward pass needs.

        `plan` is the call that `check` gave, if anybody asked it. `positions` are those of packed
        rows; without them each text counts from 0.
        """
        call = self._weights.call
        dtype = result_type([x] if context is None else [x, context], self.parameters, call=call)
        inputs = Inputs(x, context, dtype, options, call, cu, cache, lengths, positions)
        out, _, saved = attention_forward(
            self, inputs, plan=plan, residual=residual, record=record, top_k=top_k, save=save
        )
        return out, saved

    @quiet
    def backward(
        self, grad: ArrayLike, saved: AttentionSaved, *, record: Recorder | None = None
    ) -> Gradient:
        """The backward pass: the gradients of `sum(grad * layer(x, ...))`.

        Args:
            grad: (..., L, D), the gradient of what the layer gave; that of a residual is the same.
            saved: what `layer.training_forward(x, ...)` gave beside it.
            record: collects the gradients on the way, by the names of a trace; with a
                `GradientRecorder` there are none of parameters.

        Returns:
            `.x`, `.context` where there was one, `.parameters` by their names (those of norms of
            queries and keys as "q_norm.weight" and so on), and `.options`: "bias", "sinks" and
            "alibi_slopes" where they were given.

        >>> layer = MultiHeadAttention(8, 2, seed=0)
        >>> out, saved = layer.training_forward(np.ones((5, 8)), is_causal=True)
        >>> layer.backward(np.ones((5, 8)), saved).parameters["q_proj.weight"].shape
        (8, 8)
        """
        return attention_backward(self, grad, saved, record)

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
        keep = of_rows(record, cu) or unkept
        keep("hook_attn_out", out)
        return Trace(record.arrays)

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


class SelfAttention(MultiHeadAttention):
    """Attention of the words of a text to each other: `MultiHeadAttention` without a context.

    >>> layer = SelfAttention(128, num_heads=4, seed=0)
    >>> layer(np.ones((1, 6, 128))).shape
    (1, 6, 128)
    """

    def check(
        self, x: ArrayLike, context: ArrayLike | None = None, **given: Any
    ) -> tuple[Inputs, Call | None, Array | None]:
        """What a call is about, once all of it fits."""
        if context is not None:
            raise ValueError(
                f"{self._weights.call}: the context is x itself: use MultiHeadAttention for "
                "another, and write attn_mask=... for a mask"
            )
        return super().check(x, context, **given)

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


def _in_front(x: Any, name: str, *, call: str) -> Array:
    """`x` with a batch axis, where it has none."""
    array = as_array(x, call=call, name=name)
    return array[None] if array.ndim == 2 else array
