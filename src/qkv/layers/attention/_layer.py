"""The attention layer, which checks all arguments and runs the forward or backward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from qkv._argument_errors import public_call, public_method, type_error, value_error
from qkv.arrays import (
    Array,
    ArrayLike,
    Arrays,
    as_array,
    check_out,
    float_type,
    quote,
    whole_number,
)
from qkv.attend import attention_grad, check_starts, join_heads, split_heads, varlen_attention_grad
from qkv.attend.arguments import RETURNS, Call, Options, check_call
from qkv.attend.cache import KVCache
from qkv.attend.gradient import AttentionGradient, Keep, gradient_by_weights, summed_to
from qkv.layers import base
from qkv.layers.attention import forward as unchecked
from qkv.layers.attention._relative import Relative
from qkv.layers.attention._rotary import Rotary, as_rotary
from qkv.layers.attention.forward import (
    AttentionSaved,
    Inputs,
    Norm,
    Parts,
    Positions,
    formula_options,
)
from qkv.layers.base import check_parameters, need_shape, word_vectors
from qkv.layers.norm import HeadNorms
from qkv.ops.linear import project_back
from qkv.trace import Recorder, Trace
from qkv.trace.activations import SUMMARY, WEIGHTS
from qkv.trace.recorder import of_heads, of_rows, padded_heads, unkept, unpadded_heads

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
PROJECTION_WEIGHTS = tuple(f"{name}.weight" for name in PROJECTIONS)
SHORT = dict(zip(PROJECTION_WEIGHTS, ("w_q", "w_k", "w_v", "w_o"), strict=True))


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer, which follow from the shapes of its weights."""

    embed_dim: int  # D, the size of the vectors in `x`.
    context_dim: int  # The size of the vectors in the context.
    output_dim: int  # The size of the vectors in the result.
    num_heads: int  # Hq.
    num_kv_heads: int  # Hkv.
    d_query: int  # d.
    d_value: int  # dv.


@dataclass(frozen=True)
class Weights:
    """The parameters of a layer, with the names and the layout that errors show.

    In `parameters`, all weights have the layout (in, out). `layout` is the user's layout, and
    `short` is True if the user passed w_q, w_k, w_v and w_o.
    """

    parameters: Arrays
    layout: str = "in_out"
    short: bool = False

    @classmethod
    def short_named(cls, weights: Sequence[Any], layout: str) -> Self:
        """Make `Weights` from w_q, w_k, w_v and w_o, given their layout; w_o may be None."""
        if layout not in ("in_out", "out_in"):
            raise value_error(f'layout is {quote(layout)}; pass "in_out" or "out_in"')
        named = zip(SHORT.values(), weights, strict=True)
        arrays = check_parameters({name: w for name, w in named if w is not None})
        if layout == "out_in":
            arrays = {name: array.T for name, array in arrays.items()}
        parameters = {full: arrays[short] for full, short in SHORT.items() if short in arrays}
        return cls(parameters, layout, short=True)

    def quote(self, name: str) -> str:
        """Return a weight's name and shape as the user passed them."""
        shape = self.parameters[name].shape
        shape = shape if self.layout == "in_out" else shape[::-1]
        return f"{SHORT[name] if self.short else name} {shape}"

    def hint(self, would_fit: bool) -> str:
        """Return the advice "pass layout=..." for an error; "" if the advice would not help."""
        if not (self.short and would_fit):
            return ""
        other = "out_in" if self.layout == "in_out" else "in_out"
        return f'; if the weights are transposed, pass layout="{other}"'

    def vectors(self, x: Any, name: str) -> Array:
        """Return `x` or the context as an array; check that its vectors fit the projection."""
        array = word_vectors(x, name=name)
        weight = "q_proj.weight" if name == "x" else "k_proj.weight"
        rows, columns = self.parameters[weight].shape
        if array.shape[-1] != rows:
            raise value_error(
                f"{name} {array.shape} has vectors of size {array.shape[-1]} and "
                f"{self.quote(weight)} takes vectors of size {rows}"
                + self.hint(columns == array.shape[-1])
            )
        return array

    def sizes(self, num_heads: int) -> Sizes:
        """Return the sizes; raise an error if two weights are incompatible."""
        self._check_names()
        query, key, value = (self.parameters[name].shape for name in PROJECTION_WEIGHTS[:3])
        shown_q, shown_k, shown_v = (self.quote(name) for name in PROJECTION_WEIGHTS[:3])
        if query[1] % num_heads:
            raise value_error(
                f"{shown_q} has {query[1]} columns of queries and num_heads is "
                f"{num_heads}: the number of columns must be a multiple of num_heads"
                + self.hint(query[0] % num_heads == 0)
            )
        size = query[1] // num_heads
        if key[1] % size or num_heads % (key[1] // size):
            raise value_error(
                f"{shown_q} and {shown_k}: a query head has size {size}, so keys need "
                f"{_columns(num_heads, size)} columns, not {key[1]}"
            )
        kv_heads = key[1] // size
        if key[0] != value[0]:
            raise value_error(
                f"{shown_k} takes vectors of size {key[0]} and {shown_v} takes vectors of "
                f"size {value[0]}: both must take the same size" + self.hint(key[1] == value[1])
            )
        if value[1] % kv_heads:
            raise value_error(
                f"{shown_k} and {shown_v}: there are {kv_heads} key heads, "
                f"so the number of value columns, {value[1]}, must be a multiple of {kv_heads}"
            )
        joined = num_heads * (value[1] // kv_heads)
        output = joined
        if "out_proj.weight" in self.parameters:
            taken, output = self.parameters["out_proj.weight"].shape
            if taken != joined:
                raise value_error(
                    f"{shown_v} and {self.quote('out_proj.weight')}: the joined heads "
                    f"have {joined} columns and the output projection takes {taken} columns"
                    + self.hint(output == joined)
                )
        return Sizes(query[0], key[0], output, num_heads, kv_heads, size, value[1] // kv_heads)

    def _check_names(self) -> None:
        """Raise an error if a parameter is unknown, is missing or has a wrong number of axes."""
        known = [f"{name}.{part}" for name in PROJECTIONS for part in ("weight", "bias")]
        for name in self.parameters:
            if name not in known:
                raise value_error(f"there is no parameter {name}: choose from {', '.join(known)}")
        for name in PROJECTION_WEIGHTS:
            bias = name.replace("weight", "bias")
            if name not in self.parameters:
                if name == "out_proj.weight" and bias not in self.parameters:
                    continue
                has = ", ".join(self.parameters) or "none"
                raise value_error(f"{name} is missing: the parameters are {has}")
            shape = self.parameters[name].shape
            if len(shape) != 2 or 0 in shape:
                raise value_error(
                    f"{self.quote(name)}: a weight must be 2-D, with the heads side by "
                    "side, and no size may be 0"
                )
            if bias in self.parameters:
                why = f"{name} has {shape[1]} columns"
                need_shape(self.parameters[bias], shape[1:], name=bias, why=why)


def _columns(num_heads: int, size: int) -> str:
    """Return the numbers of columns that the key weight may have, as text: "8 or 4 or 2"."""
    fitting = [n * size for n in range(num_heads, 0, -1) if num_heads % n == 0]
    return " or ".join(map(str, fitting))


Layout = Literal["in_out", "out_in"]


class MultiHeadAttention(Parts):
    """A layer of multi-head attention over word vectors, including the projections.

    Queries are computed from `x`; keys and values are computed from `context`, or from `x` if no
    context is given.

    Args:
        embed_dim: D, the size of the word vectors.
        num_heads: Hq, the number of query heads.
        num_kv_heads: Hkv, the number of key heads, which divides Hq. The default is Hq.
        d_query: d, the size of a head's queries and keys; the default is D / Hq.
        d_value: dv, the size of a head's values; the default is D / Hq.
        bias: whether the projections have biases, which start at 0.
        out_proj: whether the joined heads (..., T, Hq * dv) are projected to (..., T, D).
        rotary: a `Rotary` (or a dict of its fields) that rotates queries and keys by their
            positions. Keys are at positions 0 to S - 1, and query 0 is at position `q_offset`.
        seed: the seed of the weights. Each weight is drawn from a normal distribution with variance
            1 / (number of rows), so that scaled scores of normal vectors have a variance near 1.
        dtype: the type of the parameters.

    The result has the type to which NumPy promotes the inputs and the parameters. Integer inputs
    are converted to the type of the parameters. For half-precision inputs, the layer computes in
    float32; if the kernel multiplies bfloat16 directly, bfloat16 arrays stay bfloat16 between the
    layer's operations.

    Source:
        Vaswani et al. 2017, section 3.2.2. Ainslie et al. 2023 describe layers with fewer key heads
        than query heads.

    >>> layer = MultiHeadAttention(8, num_heads=2, seed=0)
    >>> list(layer.parameters), layer.parameters["q_proj.weight"].shape
    (['q_proj.weight', 'k_proj.weight', 'v_proj.weight', 'out_proj.weight'], (8, 8))
    >>> out, weights = layer(np.ones((5, 8)), is_causal=True, return_weights=True)
    >>> out.shape, weights.shape
    ((5, 8), (2, 5, 5))
    """

    @public_method
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
        embed_dim = whole_number(embed_dim, name="embed_dim", least=1)
        num_heads = whole_number(num_heads, name="num_heads", least=1)
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        num_kv_heads = whole_number(num_kv_heads, name="num_kv_heads", least=1)
        if num_heads % num_kv_heads:
            raise value_error(
                f"num_heads is {num_heads} and num_kv_heads is {num_kv_heads}: "
                "num_heads must be a multiple of num_kv_heads"
            )
        if (d_query is None or d_value is None) and embed_dim % num_heads:
            raise value_error(
                f"embed_dim is {embed_dim} and num_heads is {num_heads}: embed_dim "
                "must be a multiple of num_heads unless d_query and d_value are both given"
            )
        d_query, d_value = (
            whole_number(embed_dim // num_heads if size is None else size, name=name, least=1)
            for name, size in (("d_query", d_query), ("d_value", d_value))
        )
        kind = float_type(dtype)
        sizes = {
            "q_proj": (embed_dim, num_heads * d_query),
            "k_proj": (embed_dim, num_kv_heads * d_query),
            "v_proj": (embed_dim, num_kv_heads * d_value),
        }
        if out_proj:
            sizes["out_proj"] = (num_heads * d_value, embed_dim)
        parameters = base.first_parameters(sizes, bias=bias, seed=seed, dtype=kind)
        self._set(Weights(parameters), num_heads, rotary)

    @classmethod
    @public_method
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
        """Make a layer from weights, without copying them; their shapes determine all sizes.

        Args:
            w_q: the weight for queries, (D, Hq * d).
            w_k: the weight for keys, (D, Hkv * d), where D is the size of the context vectors.
            w_v: the weight for values, (D, Hkv * dv), with the same D as `w_k`.
            w_o: (Hq * dv, D). If `w_o` is None, the result is the heads' outputs side by side.
            num_heads: Hq, the number of query heads.
            layout: "in_out" if all weights have the shapes above, "out_in" if all are transposed.

        >>> w_q, w_k, w_v = np.ones((10, 20)), np.ones((10, 20)), np.ones((10, 25))
        >>> layer = MultiHeadAttention.from_weights(w_q, w_k, w_v)
        >>> layer.d_query, layer.d_value, layer(np.ones((5, 10))).shape
        (20, 25, (5, 25))
        """
        weights = Weights.short_named((w_q, w_k, w_v, w_o), layout)
        return cls._of(weights, num_heads)

    @classmethod
    @public_method
    def from_parameters(
        cls,
        parameters: Mapping[str, ArrayLike],
        *,
        num_heads: int = 1,
        rotary: Rotary | Mapping[str, Any] | None = None,
        q_norm: Norm | HeadNorms | None = None,
        k_norm: Norm | HeadNorms | None = None,
        clip: float | None = None,
    ) -> Self:
        """Make a layer from parameters, without copying them; their shapes determine all sizes.

        Args:
            parameters: "q_proj.weight" (D, Hq * d), "k_proj.weight" (D, Hkv * d) and
                "v_proj.weight" (D, Hkv * dv). "out_proj.weight" (Hq * dv, D) and the biases, such
                as "q_proj.bias", are optional.
            num_heads: Hq, the number of query heads.
            rotary: as in `MultiHeadAttention`.
            q_norm: a norm of the queries before their rotation. The norm acts on the vectors (...,
                d) of each head, or the joined vectors (..., Hq * d) of all heads.
            k_norm: a norm of the keys, like `q_norm`.
            clip: if given, each number of a query, key or value is limited to the range from
                `-clip` to `clip`, before norms and rotation.
        """
        layer = cls._of(Weights(base.check_parameters(parameters)), num_heads, rotary)
        size = layer.d_query
        norms = (("q_norm", q_norm, layer.num_heads), ("k_norm", k_norm, layer.num_kv_heads))
        for name, norm, heads in norms:
            if norm is not None and norm.dim not in (size, heads * size):
                raise value_error(
                    f"{name} takes vectors of size {norm.dim}: the norm must take vectors "
                    f"of size {size} (one head) or {heads * size} (all {heads} heads)"
                )
        layer.q_norm, layer.k_norm, layer.clip = q_norm, k_norm, clip
        return layer

    @classmethod
    def _of(cls, weights: Weights, num_heads: int, rotary: Any = None) -> Self:
        layer = cls.__new__(cls)
        layer._set(weights, num_heads, rotary)
        return layer

    def _set(self, weights: Weights, num_heads: int, rotary: Any) -> None:
        """Check that the parameters are compatible, then set all attributes."""
        self._weights, self.parameters = weights, dict(weights.parameters)
        sizes = weights.sizes(whole_number(num_heads, name="num_heads", least=1))
        vars(self).update(vars(sizes))
        self.q_norm = self.k_norm = self.clip = None
        self.rotary = as_rotary(rotary)
        if self.rotary is not None:
            # Rotate zeros, so that wrong fields of `rotary` raise an error before the first call.
            self.rotary.rotate(np.zeros((1, self.d_query)), np.zeros(1), 1)

    @base.public
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
        """Apply the layer to word vectors.

        Args:
            x: (..., L, D), from which the queries are computed; or packed rows (total, D).
            context: (..., S, D), from which keys and values are computed; the default is `x`.
            cu_lengths: (B + 1,), the index of each packed text's first row, followed by the number
                of rows. Allowed options are `is_causal`, `q_offset`, `window`, `softcap`,
                `alibi_slopes`, `sinks`, `scale`, `return_lse`, `attn_mask` and `bias`. `attn_mask`
                and `bias` broadcast to (B, Hq, T, T), where T is the length of the longest text.
            cache: the keys and values of the words before `x`. The queries of `x` attend to these
                keys and to the keys of `x`. The call adds the keys and values of `x` to the cache.
                With a cache, `x` is (B, L, D). The cache gives the positions of `x`, so omit
                `q_offset`.
            lengths: (B,), the number of real words in each row of `x`; only with `cache`.
            residual: (..., L, D), added to the result before rounding to half precision. A float32
                residual gives a float32 result.
            record: collects the activations.
            top_k: if given, `record` keeps only the `top_k` largest weights of each query.
            options: the options of `qkv.attention`. If `out` is given, the layer's result is
                written to it.

        Returns:
            An array (..., L, D); if the layer has no output projection, (..., L, Hq * dv).
            With `return_weights` or `return_lse`, a tuple: the array, the weights, the log-sum-exp.
            The weights are (..., Hq, L, S), or (L, S) for one head and 2-D inputs.
        """
        inputs, plan, target = self.check(
            x, context, cu_lengths, options,
            cache=cache, lengths=lengths, residual=residual, record=record, top_k=top_k,
        )  # fmt: skip
        out, extra, _ = unchecked.attention_forward(self, inputs, plan)
        if target is not None:
            target[...] = out
            out = target
        is_plain = self.num_heads == 1 and inputs.words.ndim == inputs.others.ndim == 2
        if is_plain and inputs.cu is None:
            extra = [array[0] for array in extra]
        return (out, *extra) if extra else out

    @base.public
    def training_forward(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        cu_lengths: ArrayLike | None = None,
        **options: Any,
    ) -> tuple[Array, AttentionSaved]:
        """Return `(result, saved)`: the layer's result (..., L, D), and values for `backward`."""
        base.check_options(options, packed=cu_lengths is not None, returns=False)
        inputs, plan, _ = self.check(x, context, cu_lengths, options, save=True)
        for array in (inputs.words, inputs.others):
            base.need_single(array, self.parameters)
        out, _, saved = unchecked.attention_forward(self, inputs, plan)
        assert saved is not None
        return out, saved

    def check(
        self,
        x: ArrayLike,
        context: Any,
        cu_lengths: Any,
        options: Options,
        cache: KVCache | None = None,
        **fields: Any,
    ) -> tuple[Inputs, Call | None, Array | None]:
        """Check the arguments of a call; return its `Inputs`, the attention plan, and `out`.

        `fields` are further fields of `Inputs`, such as `lengths`.
        """
        base.check_options(options, packed=cu_lengths is not None)
        words = self._weights.vectors(x, "x")
        others = None if context is None else self._weights.vectors(context, "context")
        if others is None and self.context_dim != self.embed_dim:
            raise value_error(
                f"x has vectors of size {self.embed_dim} and "
                f"{self._weights.quote('k_proj.weight')} takes vectors of size {self.context_dim}; "
                "pass a context with vectors of this size"
            )
        if cache is not None and (context is not None or cu_lengths is not None):
            raise value_error("a cache cannot be used with context or cu_lengths: omit them")
        cu = None
        if cu_lengths is not None:
            if others is not None:
                raise value_error(
                    "cu_lengths cannot be used with a context, because each packed text "
                    "attends only to itself: omit cu_lengths or the context"
                )
            if words.ndim != 2:
                raise value_error(
                    f"x has shape {words.shape}: with cu_lengths, it must be (total, D)"
                )
            cu = check_starts("cu_lengths", cu_lengths, "x", len(words))
        vectors = [words] if others is None else [words, others]
        dtype = base.result_type(vectors, self.parameters)
        target = options.get("out")
        inputs = Inputs(words, others, dtype, options, cu, cache, **fields)
        shape = (*inputs.lead, words.shape[-2], self.output_dim)
        if target is not None:
            check_out(target, shape, dtype, (*vectors, *self.parameters.values()))
        if inputs.top_k is not None:
            whole_number(inputs.top_k, name="top_k", least=1)
        return inputs, unchecked.attention_plan(self, inputs) if cache is None else None, target

    @property
    def hooks(self) -> list[str]:
        """The names of all activations that the layer can record, with or without `top_k`."""
        changed = self.rotary is not None or self.q_norm is not None or self.k_norm is not None
        names = [*("q_in", "k_in", "v_in"), *"qkv", *["rot_q", "rot_k"] * changed]
        names += ["attn_scores", "pattern", "z"]
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
        relative: Relative | None = None,
        save: bool = False,
        keeps_reads: bool = True,
        **options: Any,
    ) -> tuple[Array, AttentionSaved | None]:
        """Run the forward pass without checks; if `save`, also return the values for `backward`.

        `plan` is the plan that `check` returned, or None. `positions` are the positions of packed
        rows; by default each text begins at position 0. `relative` adds a bias to the scores.
        """
        dtype = base.result_type([x] if context is None else [x, context], self.parameters)
        inputs = Inputs(
            x, context, dtype, options, cu, cache, lengths, positions, relative,
            residual, record, top_k, save, keeps_reads,
        )  # fmt: skip
        out, _, saved = unchecked.attention_forward(self, inputs, plan)
        return out, saved

    @base.public
    def backward(
        self, grad: ArrayLike, saved: AttentionSaved, *, record: Recorder | None = None
    ) -> base.Gradient:
        """Return the gradients of `sum(grad * layer(x, ...))`.

        Args:
            grad: the gradient for the layer's result, of the same shape. The gradient for the
                residual equals `grad`.
            saved: the second value that `layer.training_forward(x, ...)` returned.
            record: collects the gradients for activations, keyed by name, such as "hook_q".
                With a `GradientRecorder`, no gradients for parameters are computed.

        Returns:
            A `Gradient` with `.x`, and with `.context` if a context was given.
            `.parameters` are keyed by name, such as "q_proj.weight" or "q_norm.weight".
            `.options` contains "bias", "sinks" and "alibi_slopes" if these options were given.

        >>> layer = MultiHeadAttention(8, 2, seed=0)
        >>> out, saved = layer.training_forward(np.ones((5, 8)), is_causal=True)
        >>> layer.backward(np.ones((5, 8)), saved).parameters["q_proj.weight"].shape
        (8, 8)
        """
        return attention_backward(self, grad, saved, record)

    def forward(self, x: ArrayLike, context: ArrayLike | None = None, **options: Any) -> Any:
        """Call the layer."""
        return self(x, context, **options)

    @public_method
    def trace(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        *,
        top_k: int | None = None,
        **options: Any,
    ) -> Trace:
        """Return a trace with every activation of `layer(x, ...)`.

        The trace contains `hook_q`, `hook_k`, `hook_v`, `hook_rot_q`, `hook_rot_k`,
        `hook_attn_scores`, `hook_pattern`, `hook_z` and the layer's output `hook_attn_out`. With
        `top_k`, the trace holds a summary instead of scores and pattern: `top_indices`,
        `top_weights`, `received` and `lse`, which `qkv.summarize_attention` describes. 2-D inputs
        get a leading batch axis, and packed rows become (B, T, ...).

        >>> trace = MultiHeadAttention(8, 2, seed=0).trace(np.ones((5, 8)), is_causal=True)
        >>> trace["hook_q"].shape, trace["pattern"].shape, trace["z"].shape
        ((1, 5, 2, 4), (1, 2, 5, 5), (1, 5, 2, 4))
        """
        if name := next((name for name in RETURNS if name in options), None):
            raise type_error(
                f"`trace` does not take {name}: omit it, because the trace contains this result"
            )
        cu_lengths = options.get("cu_lengths")
        if cu_lengths is None:
            x = _in_front(x, "x")
            context = None if context is None else _in_front(context, "context")
        record = Recorder()
        out = self(x, context, record=record, top_k=top_k, **options)
        cu = None if cu_lengths is None else np.asarray(cu_lengths)  # already checked
        (of_rows(record, cu) or unkept)("hook_attn_out", out)
        return Trace(record.arrays)


class SelfAttention(MultiHeadAttention):
    """Attention among the words of a text: `MultiHeadAttention` without a context.

    >>> layer = SelfAttention(128, num_heads=4, seed=0)
    >>> layer(np.ones((1, 6, 128))).shape
    (1, 6, 128)
    """

    def check(
        self, x: ArrayLike, context: Any, *args: Any, **fields: Any
    ) -> tuple[Inputs, Call | None, Array | None]:
        """Check the arguments of a call, as `MultiHeadAttention` does."""
        if context is not None:
            raise value_error(
                "context is given, but self-attention does not take one: use "
                "MultiHeadAttention for a context, and attn_mask=... for a mask"
            )
        return super().check(x, context, *args, **fields)

    def _set(self, weights: Weights, num_heads: int, rotary: Any) -> None:
        super()._set(weights, num_heads, rotary)
        if self.context_dim != self.embed_dim:
            raise value_error(
                f"{weights.quote('q_proj.weight')} takes vectors of size "
                f"{self.embed_dim} and {weights.quote('k_proj.weight')} takes vectors of size "
                f"{self.context_dim}: both must take the same size"
            )


@public_call("self_attention")
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
    """Compute self-attention of word vectors with the given weights.

    Args:
        x: word vectors, (..., L, D); integers are converted to the weights' type.
        w_q: the weight for queries, (D, Hq * d).
        w_k: the weight for keys, (D, Hkv * d).
        w_v: the weight for values, (D, Hkv * dv).
        w_o: (Hq * dv, D). If `w_o` is None, the result is the heads' outputs side by side.
        num_heads: Hq, the number of query heads.
        layout: "in_out" if all weights have the shapes above, "out_in" if all are transposed.
        options: the options of `qkv.attention`: `is_causal=True`, `return_weights=True`, ...

    Returns:
        The new word vectors (..., L, D), or (..., L, Hq * dv) if `w_o` is None.
        With the option `return_weights`, the tuple (vectors, weights).
        The weights are (..., Hq, L, L), or (L, L) for one head and 2-D `x`.

    Raises:
        ValueError: two shapes are incompatible; the error names both.
        TypeError: a weight does not hold floats.

    Source:
        Vaswani et al. 2017, section 3.2.

    >>> x = np.array([[1, 0], [0, 1], [1, 1]])
    >>> context, weights = self_attention(x, np.eye(2), np.eye(2), np.eye(2), return_weights=True)
    >>> weights.round(2)
    array([[0.4 , 0.2 , 0.4 ],
           [0.2 , 0.4 , 0.4 ],
           [0.25, 0.25, 0.5 ]])
    """
    weights = Weights.short_named((w_q, w_k, w_v, w_o), layout)
    return SelfAttention._of(weights, num_heads)(x, **options)


def _in_front(x: Any, name: str) -> Array:
    """Return `x`; if it is 2-D, add a leading batch axis."""
    array = as_array(x, name=name)
    return array[None] if array.ndim == 2 else array


_LEARNED = ("bias", "sinks", "alibi_slopes")


def attention_backward(
    layer: Parts, grad: Any, saved: AttentionSaved, record: Recorder | None = None
) -> base.Gradient:
    """Compute the gradients for the layer's inputs from the gradient for its output."""
    gradients = base.for_parameters(record)
    z, inputs = saved.z, saved.inputs
    shape = (*z.shape[:-3], z.shape[-2], layer.output_dim)
    grad = base.upstream(grad, shape, inputs.dtype)
    if base.asks(record, "hook_result"):
        z = _from_results(layer, grad, z, of_rows(record, inputs.cu) or unkept)
    else:
        if "out_proj.weight" in layer.parameters:
            grad = project_back(join_heads(z), layer.parameters, "out_proj", grad, gradients)
        z = split_heads(grad, layer.num_heads)
    changed = bool(saved.norms or saved.positions)
    keep, rows = of_heads(record, inputs.cu) or unkept, of_rows(record, inputs.cu) or unkept
    z = keep("hook_z", z)
    if saved.weighed is not None or base.asks(record, *WEIGHTS):
        heads = _from_weights(z, saved, record or unkept)
    else:
        heads = _attention_grad(z, saved)

    grad_rows, more = None, dict[str, Array]()
    if inputs.relative is not None:
        heads, grad_rows, more = _relative_grad(layer, heads, inputs.relative, saved)

    def to_words(name: str, part: Array, x: Array) -> Array:
        """Compute the gradient for `x` from the gradient `part` (..., H, T, d) for q, k or v."""
        if changed and name != "v":
            part = keep(f"hook_rot_{name}", part)
        if name in saved.positions:
            assert layer.rotary is not None
            part = layer.rotary.rotate_back(part, *saved.positions[name])
        part = summed_to(part, saved.shapes[name])
        norm = {"q": layer.q_norm, "k": layer.k_norm}.get(name)
        if norm is not None:
            whole = norm.dim != part.shape[-1]  # The norm acts on the joined vectors of all heads.
            vectors = join_heads(part) if whole else part
            inner = record and record.under(f"{name}_norm.")
            vectors = base.part_back(
                norm, vectors, saved.norms[name], f"{name}_norm", gradients, inner
            ).x
            part = split_heads(vectors, part.shape[-3]) if whole else vectors
        part = keep(f"hook_{name}", part)
        part = part * saved.inside[name] if saved.inside else part
        back = project_back(x, layer.parameters, f"{name}_proj", join_heads(part), gradients)
        return rows(f"hook_{name}_in", back)

    query = to_words("q", heads.query, inputs.words)
    others = to_words("k", heads.key, inputs.others) + to_words("v", heads.value, inputs.others)
    options = {name: getattr(heads, name) for name in _LEARNED} | {"relative": grad_rows}
    options = {name: array for name, array in options.items() if array is not None}
    if gradients is not None:
        gradients |= {name: gradients.get(name, 0) + array for name, array in more.items()}
    if inputs.context is None:
        return base.Gradient(query + others, gradients or {}, options=options)
    return base.Gradient(query, gradients or {}, context=others, options=options)


def _from_results(layer: Parts, grad: Array, z: Array, record: Keep) -> Array:
    """Compute the gradient for `z`, and record the gradient for the output of each head."""
    weight = layer.parameters["out_proj.weight"].reshape(*z.shape[-3::2], -1)  # (Hq, dv, D)
    results = np.broadcast_to(grad[..., None, :], (*grad.shape[:-1], *weight.shape[::2]))
    results = np.swapaxes(record("hook_result", results), -3, -2)  # (..., Hq, L, D)
    return results @ np.swapaxes(weight, -2, -1)


def _from_weights(grad: Array, saved: AttentionSaved, record: Keep) -> AttentionGradient:
    """Compute the gradients for q, k and v through the recorded weights and scores."""
    cu, options = saved.inputs.cu, formula_options(saved.inputs.options)
    parts = [saved.query, saved.key, saved.value, grad]
    if cu is not None:
        parts, lengths = padded_heads(parts, cu), np.diff(cu)
        options |= {"query_lengths": lengths, "key_lengths": lengths}
    call = check_call(*parts[:3], **options)
    weights = None if saved.weighed is None else saved.weighed[1:]
    *heads, bias = gradient_by_weights(call, parts[3], weights, record)
    query, key, value = heads if cu is None else (unpadded_heads(part, cu) for part in heads)
    given = saved.inputs.relative is not None
    return AttentionGradient(query, key, value, bias if given else None, None, None)


def _relative_grad(
    layer: Parts, heads: AttentionGradient, relative: Relative, saved: AttentionSaved
) -> tuple[AttentionGradient, Array, dict[str, Array]]:
    """Add the gradients through the relative positions to the gradients for queries and keys.

    The function also returns the gradients for the rows of relative positions, and for parameters.
    """
    assert heads.bias is not None
    query, key, cu = saved.query, saved.key, saved.inputs.cu
    if cu is not None:
        query, key = padded_heads([query, key], cu)
    pair = {"q": query, "k": key}
    more, grad_rows, gradients = relative.backward(heads.bias, layer.parameters, pair)
    if cu is not None:
        more = {name: unpadded_heads(part, cu) for name, part in more.items()}
    query, key = heads.query + more.get("q", 0), heads.key + more.get("k", 0)
    return heads._replace(query=query, key=key, bias=None), grad_rows, gradients


def _attention_grad(grad: Array, saved: AttentionSaved) -> AttentionGradient:
    """Compute the gradients for the values, the rotated queries and the rotated keys."""
    cu, options = saved.inputs.cu, formula_options(saved.inputs.options)
    parts, z, lse = [saved.query, saved.key, saved.value, grad], saved.z, saved.lse
    assert lse is not None
    if cu is None:
        return attention_grad(*parts, forward=(z, lse), **options)
    if any(name in options for name in base.PADDED):
        lengths = np.diff(cu)
        padded = padded_heads([*parts, z, lse.T[..., None]], cu)
        heads = attention_grad(
            *padded[:4],
            forward=(padded[4], padded[5][..., 0]),
            query_lengths=lengths,
            key_lengths=lengths,
            **options,
        )
        query, key, value = (unpadded_heads(part, cu) for part in heads[:3])
        return heads._replace(query=query, key=key, value=value)
    query, key, value, grad = (np.swapaxes(part, 0, 1) for part in parts)  # (total, H, d)
    heads = varlen_attention_grad(
        query, key, value, grad, cu, cu, forward=(np.swapaxes(z, 0, 1), lse), **options
    )
    return heads._replace(
        query=np.swapaxes(heads.query, 0, 1),
        key=np.swapaxes(heads.key, 0, 1),
        value=np.swapaxes(heads.value, 0, 1),
    )
