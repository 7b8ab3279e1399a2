"""A block: attention, then the MLP, each with a norm and around it the way past."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import ArrayLike

from qkv.arrays import Array, compute_type
from qkv.attend.cache import KVCache
from qkv.attend.options import RETURNS
from qkv.attend.varlen import check_starts
from qkv.layers.attention import MultiHeadAttention, Norm
from qkv.layers.gradient import Gradient, Saved, gradient_of, need_wide
from qkv.layers.options import settings
from qkv.layers.packed import keep
from qkv.layers.parameters import handed, quiet, result_type, word_vectors
from qkv.trace import Recorder, Trace


class Feed(Protocol):
    """What stands in the place of the MLP."""

    parameters: dict[str, Array]

    @property
    def dim(self) -> int:
        """D, the size of the vectors."""

    def __call__(
        self, x: ArrayLike, *, residual: Array | None = None, saved: Saved | None = None
    ) -> Array:
        """From (..., T, D) to the same."""

    def backward(self, grad: ArrayLike, saved: Saved) -> Gradient:
        """The way back."""


class Block:
    """One layer of a transformer.

    With the norm after (post-norm, as in the first transformer and BERT):
    `h = norm1(x + attn(x)); y = norm2(h + mlp(h))`. With the norm before (pre-norm, as in GPT-2
    and Llama): `h = x + attn(norm1(x)); y = h + mlp(norm2(h))`. What a part gives may have
    a norm of its own before it is added (Gemma 2): `h = x + out_norm1(attn(norm1(x)))`.

    What goes past the parts is float32 where they compute in halves. Where the parameters of a part
    are bfloat16, it is given bfloat16.

    Args:
        attn: the attention layer.
        norm1: the norm that belongs to it; None for none, where the norms stand before.
        mlp: the MLP, or what stands in its place; None, with `norm2`, for a block that is
            attention alone.
        norm2: the norm that belongs to that.
        post_norm: where the norms stand.
        out_norm1: the norm of what the attention gives, where the norms stand before.
        out_norm2: the same of what the MLP gives.

    Source:
        Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020, "On Layer Normalization in
        the Transformer Architecture".

    >>> import numpy as np
    >>> from qkv.layers import MLP, LayerNorm
    >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
    ...               LayerNorm(8), post_norm=True)
    >>> block(np.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    >>> list(block.parameters)[3:6]
    ['attn.out_proj.weight', 'norm1.weight', 'norm1.bias']
    """

    def __init__(
        self,
        attn: MultiHeadAttention,
        norm1: Norm | None,
        mlp: Feed | None,
        norm2: Norm | None,
        *,
        post_norm: bool,
        out_norm1: Norm | None = None,
        out_norm2: Norm | None = None,
    ) -> None:
        call = type(self).__name__
        if attn.output_dim != attn.embed_dim:
            raise ValueError(
                f"{call}: attn takes vectors of {attn.embed_dim} and gives {attn.output_dim}: "
                "they are added, so both must be the same"
            )
        if (mlp is None) != (norm2 is None):
            raise ValueError(f"{call}: mlp and norm2 belong together: give both or None for both")
        if post_norm and (None in (norm1, norm2) or out_norm1 is not None or out_norm2 is not None):
            raise ValueError(
                f"{call}: with post_norm there are norm1 and norm2, and no other norm: "
                "give both and leave out_norm1 and out_norm2 out"
            )
        self._parts: dict[str, Any] = {"attn": attn, "norm1": norm1, "mlp": mlp, "norm2": norm2}
        self._parts |= {"out_norm1": out_norm1, "out_norm2": out_norm2}
        self._parts = {name: part for name, part in self._parts.items() if part is not None}
        for name, part in self._parts.items():
            if name != "attn" and part.dim != attn.embed_dim:
                raise ValueError(
                    f"{call}: {name} takes vectors of {part.dim} and attn of {attn.embed_dim}: "
                    "all parts of a block must take the same"
                )
        self.attn, self.norm1, self.mlp, self.norm2 = attn, norm1, mlp, norm2
        self.out_norm1, self.out_norm2 = out_norm1, out_norm2
        self.post_norm = post_norm

    @property
    def parameters(self) -> dict[str, Array]:
        """The arrays of all parts by name: "attn.q_proj.weight" and so on."""
        return {
            f"{part}.{name}": array
            for part, layer in self._parts.items()
            for name, array in layer.parameters.items()
        }

    @quiet
    def __call__(
        self,
        x: ArrayLike,
        *,
        cu_lengths: ArrayLike | None = None,
        cache: KVCache | None = None,
        lengths: ArrayLike | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        saved: Saved | None = None,
        **options: Any,
    ) -> Array:
        """From `x` (..., T, D) to the same shape.

        Args:
            x: word vectors, (..., T, D); or rows (total, D) of texts laid end to end.
            cu_lengths: (B + 1,), where each of those texts begins and the last one ends.
            cache: keys and values of the words before `x` (B, T, D), as for the attention.
            lengths: (B,), with `cache` how many words of each row are real.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
            saved: an empty dict, for what `backward` needs of it; it goes without a cache.
            options: those of the formula, for the attention.

        Returns:
            An array of the shape of `x`, of the type that it and the parameters promote to.
        """
        call = type(self).__name__
        array = word_vectors(x, call=call, name="x")
        if array.shape[-1] != self.attn.embed_dim:
            raise ValueError(
                f"{call}: x has shape {array.shape} and the block takes "
                f"(..., {self.attn.embed_dim})"
            )
        for name in RETURNS:
            if name in options:
                raise TypeError(f"{call}: a block has no {name}: use trace() to see what is inside")
        cu = (
            None
            if cu_lengths is None
            else check_starts(call, "cu_lengths", cu_lengths, "x", len(array))
        )
        dtype = result_type([array], self.parameters, call=call)
        need_wide(dtype, saved, call=call)
        x = array.astype(compute_type(dtype), copy=False)
        kept: dict[str, Any] = dict.fromkeys(self._parts)  # nothing
        if saved is not None:
            saved |= {name: {} for name in self._parts} | {"dtype": dtype, "shape": x.shape}
            kept = saved
        inside = None if record is None else record.under("attn.")

        keep(record, "hook_resid_pre", x, cu)
        attn_in = x if self.post_norm or self.norm1 is None else self.norm1(x, saved=kept["norm1"])
        attn_in = handed(attn_in, self.attn.parameters)
        options |= {"cu_lengths": cu, "cache": cache, "lengths": lengths}
        options |= {"record": inside, "top_k": top_k, "saved": kept["attn"]}
        wanted = record is not None and record.wants("hook_attn_out")
        if wanted or self.out_norm1 is not None:
            attn_out = self.attn(attn_in, **options)
            if self.out_norm1 is not None:
                attn_out = self.out_norm1(attn_out, saved=kept["out_norm1"])
            keep(record, "hook_attn_out", attn_out, cu)
            mid = x + attn_out
        else:
            mid = self.attn(attn_in, residual=x, **options)
        keep(record, "hook_resid_mid", mid, cu)
        if self.mlp is None or self.norm2 is None:
            keep(record, "hook_resid_post", mid, cu)
            alone: Array = mid.astype(dtype, copy=False)
            return alone
        if self.post_norm:
            assert self.norm1 is not None
            mid = mlp_in = self.norm1(mid, saved=kept["norm1"])
        else:
            mlp_in = self.norm2(mid, saved=kept["norm2"])
        mlp_in = handed(mlp_in, self.mlp.parameters)
        wanted = record is not None and record.wants("hook_mlp_out")
        if wanted or self.out_norm2 is not None:
            mlp_out = self.mlp(mlp_in, saved=kept["mlp"])
            if self.out_norm2 is not None:
                mlp_out = self.out_norm2(mlp_out, saved=kept["out_norm2"])
            keep(record, "hook_mlp_out", mlp_out, cu)
            out = mid + mlp_out
        else:
            out = self.mlp(mlp_in, residual=mid, saved=kept["mlp"])
        keep(record, "hook_resid_post", out, cu)
        if self.post_norm:
            out = self.norm2(out, saved=kept["norm2"])
            keep(record, "hook_normalized_resid_post", out, cu)
        result: Array = out.astype(dtype, copy=False)
        return result

    @quiet
    def backward(self, grad: ArrayLike, saved: Saved) -> Gradient:
        """The way back: the gradients of `sum(grad * block(x, ...))`.

        What goes past a part adds its gradient to that of what went through it.

        Args:
            grad: (..., T, D), the gradient of what the block gave.
            saved: what `block(x, ..., saved=saved)` kept.

        Returns:
            `.x`, `.parameters` by their names, and `.options` as the attention gives them.

        >>> import numpy as np
        >>> from qkv.layers import MLP, LayerNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
        ...               LayerNorm(8), post_norm=True)
        >>> saved = {}
        >>> y = block(np.ones((3, 5, 8)), saved=saved)
        >>> found = block.backward(np.ones((3, 5, 8)), saved)
        >>> found.x.shape, found.parameters.keys() == block.parameters.keys()
        ((3, 5, 8), True)
        """
        found: dict[str, Array] = {}
        options: dict[str, Array] = {}
        past = gradient_of(grad, saved.get("shape", ()), saved, call=type(self).__name__)

        def through(part: str, above: Array) -> Array:
            if part not in self._parts:
                return above
            back: Gradient = self._parts[part].backward(above, saved[part])
            found.update({f"{part}.{name}": array for name, array in back.parameters.items()})
            options.update(back.options)
            return back.x

        if self.post_norm:
            past = through("norm2", past)
            past = past + through("mlp", past)
            past = through("norm1", past)
            past = past + through("attn", past)
        else:
            if self.mlp is not None:
                past = past + through("norm2", through("mlp", through("out_norm2", past)))
            past = past + through("norm1", through("attn", through("out_norm1", past)))
        return Gradient(past, found, options=options)

    def forward(self, x: ArrayLike, **options: Any) -> Array:
        """The same as calling the block."""
        return self(x, **options)

    def trace(
        self,
        x: ArrayLike,
        *,
        cu_lengths: ArrayLike | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> Trace:
        """Every intermediate of `block(x, ...)` by its name, as layer 0.

        A batch axis is put in front of 2-D `x`, and packed rows are given as (B, T, ...). With
        `top_k` there are `top_indices`, `top_weights`, `received` and `lse` in place of scores and
        pattern (see `qkv.summarize_attention`).

        >>> import numpy as np
        >>> from qkv.layers import MLP, LayerNorm
        >>> block = Block(MultiHeadAttention(8, 2, seed=0), LayerNorm(8), MLP(8, 32, seed=1),
        ...               LayerNorm(8), post_norm=False)
        >>> trace = block.trace(np.ones((5, 8)), is_causal=True)
        >>> trace["pattern", 0].shape, trace["resid_mid", 0].shape
        ((1, 2, 5, 5), (1, 5, 8))
        """
        call = type(self).__name__
        array = word_vectors(x, call=call, name="x").copy()  # it is kept as hook_resid_pre
        cu = (
            None
            if cu_lengths is None
            else check_starts(call, "cu_lengths", cu_lengths, "x", len(array))
        )
        if cu is None and array.ndim == 2:
            array = array[None]
        record = Recorder()
        self(array, cu_lengths=cu, record=record.under("blocks.0."), top_k=top_k, **options)
        return Trace(record.arrays, settings={0: settings(options, cu)})
