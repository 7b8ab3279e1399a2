"""A block: attention, then the MLP, each with a norm and around it the way past."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.attend.options import RETURNS
from qkv.attend.varlen import check_starts
from qkv.layers.attention import MultiHeadAttention
from qkv.layers.mlp import MLP
from qkv.layers.norm import LayerNorm, RMSNorm
from qkv.layers.options import settings
from qkv.layers.packed import keep
from qkv.layers.parameters import quiet, result_type, word_vectors, working
from qkv.trace import Recorder, Trace


class Block:
    """One layer of a transformer.

    With the norm after (post-norm, as in the first transformer and BERT):
    `h = norm1(x + attn(x)); y = norm2(h + mlp(h))`. With the norm before (pre-norm, as in GPT-2
    and Llama): `h = x + attn(norm1(x)); y = h + mlp(norm2(h))`.

    Args:
        attn: the attention layer.
        norm1: the norm that belongs to it.
        mlp: the MLP.
        norm2: the norm that belongs to that.
        post_norm: where the norms stand.

    Source:
        Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020, "On Layer Normalization in
        the Transformer Architecture".

    >>> import numpy as np
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
        norm1: LayerNorm | RMSNorm,
        mlp: MLP,
        norm2: LayerNorm | RMSNorm,
        *,
        post_norm: bool,
    ) -> None:
        call = type(self).__name__
        if attn.output_dim != attn.embed_dim:
            raise ValueError(
                f"{call}: attn takes vectors of {attn.embed_dim} and gives {attn.output_dim}: "
                "they are added, so both must be the same"
            )
        for name, part in (("norm1", norm1), ("mlp", mlp), ("norm2", norm2)):
            if part.dim != attn.embed_dim:
                raise ValueError(
                    f"{call}: {name} takes vectors of {part.dim} and attn of {attn.embed_dim}: "
                    "all parts of a block must take the same"
                )
        self.attn, self.norm1, self.mlp, self.norm2 = attn, norm1, mlp, norm2
        self.post_norm = post_norm

    @property
    def parameters(self) -> dict[str, Array]:
        """The arrays of all parts by name: "attn.q_proj.weight" and so on."""
        parts = {"attn": self.attn, "norm1": self.norm1, "mlp": self.mlp, "norm2": self.norm2}
        return {
            f"{part}.{name}": array
            for part, layer in parts.items()
            for name, array in layer.parameters.items()
        }

    @quiet
    def __call__(
        self,
        x: ArrayLike,
        *,
        cu_lengths: ArrayLike | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> Array:
        """From `x` (..., T, D) to the same shape.

        Args:
            x: word vectors, (..., T, D); or rows (total, D) of texts laid end to end.
            cu_lengths: (B + 1,), where each of those texts begins and the last one ends.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
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
        x = working(array, dtype)
        inside = None if record is None else record.under("attn.")

        keep(record, "hook_resid_pre", x, cu)
        attn_in = x if self.post_norm else self.norm1(x)
        options |= {"cu_lengths": cu, "record": inside, "top_k": top_k}
        if record is not None and record.wants("hook_attn_out"):
            attn_out = self.attn(attn_in, **options)
            keep(record, "hook_attn_out", attn_out, cu)
            mid = x + attn_out
        else:
            mid = self.attn(attn_in, residual=x, **options)
        keep(record, "hook_resid_mid", mid, cu)
        if self.post_norm:
            mid = mlp_in = self.norm1(mid)
        else:
            mlp_in = self.norm2(mid)
        if record is not None and record.wants("hook_mlp_out"):
            mlp_out = self.mlp(mlp_in)
            keep(record, "hook_mlp_out", mlp_out, cu)
            out = mid + mlp_out
        else:
            out = self.mlp(mlp_in, residual=mid)
        keep(record, "hook_resid_post", out, cu)
        if self.post_norm:
            out = self.norm2(out)
            keep(record, "hook_normalized_resid_post", out, cu)
        result: Array = out.astype(dtype, copy=False)
        return result

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
