"""A decoder: writes one text and looks at another, which an encoder has read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from qkv.arrays import Array
from qkv.attend import KVCache
from qkv.attend.call import check_call
from qkv.attend.heads import join_heads, split_heads
from qkv.attend.solve import answer
from qkv.layers import Block, LayerNorm, MultiHeadAttention, RMSNorm
from qkv.layers.attention.forward import SUMMARY, record_result, record_weights
from qkv.layers.packed import padded, starts_of
from qkv.layers.parameters import narrowed_to, project, quiet
from qkv.models.network.transformer import Transformer, without_holes
from qkv.trace import Recorder


class DecoderCache(KVCache):
    """What a layer of a decoder has read: keys and values of its own text, and of the other one.

    Args:
        window: of its own text, as for `KVCache`; those grow.
        key: of the other text, (B, Hkv, S, d); they stay.
        value: (B, Hkv, S, dv).
        key_lengths: (B,), how many of the S are real.
    """

    def __init__(self, window: Any, key: Array, value: Array, key_lengths: Array) -> None:
        super().__init__(window)
        self.key, self.value, self.key_lengths = key, value, key_lengths


class CrossAttention:
    """Attention of one text to another, whose keys and values are computed once.

    Args:
        attn: the projections.
        options: those of `qkv.attention` that hold in every run.
    """

    hooks = (
        *(f"hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z", "result")),
        *SUMMARY,
    )

    def __init__(self, attn: MultiHeadAttention, options: Mapping[str, Any]) -> None:
        self.attn, self.options = attn, dict(options)
        self.dim, self.parameters = attn.embed_dim, attn.parameters

    @quiet
    def remember(self, rows: Array, cu_lengths: Array, window: Any) -> DecoderCache:
        """A cache with the keys and values of texts laid end to end, rows (total, D)."""
        rows = narrowed_to(rows, self.parameters)
        key, value = (
            split_heads(
                padded(project(rows, self.parameters, name), cu_lengths), self.attn.num_kv_heads
            )
            for name in ("k_proj", "v_proj")
        )  # (B, Hkv, S, d)
        return DecoderCache(window, key, value, np.diff(cu_lengths))

    def run(
        self,
        x: Array,
        *,
        cache: DecoderCache,
        lengths: Array | None = None,
        residual: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        save: bool = False,
    ) -> tuple[Array, None]:
        """From word vectors (B, L, D) to what they take from the other text, (B, L, D).

        Args:
            x: word vectors.
            cache: with the keys and values of the other text.
            lengths: (B,), how many of the L are real.
            residual: (B, L, D), added to the result.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
            save: is not supported, as there is no backward pass.
        """
        assert not save
        query = split_heads(project(x, self.parameters, "q_proj"), self.attn.num_heads)
        parts = (query, cache.key, cache.value)
        options = {**self.options, "key_lengths": cache.key_lengths, "query_lengths": lengths}
        call = check_call(*parts, **options, call="CrossAttention")
        (z,) = answer(call)
        if record is not None:
            for name, part in zip(("hook_q", "hook_k", "hook_v"), parts, strict=True):
                record(name, np.swapaxes(part, -3, -2))  # (B, T, H, d)
            record_weights(call, record, top_k)
            record("hook_z", np.swapaxes(z, -3, -2))
            record_result(z, self.parameters, record, None)
        return project(join_heads(z), self.parameters, "out_proj", residual=residual), None


class DecoderBlock(Block):
    """A block that looks at another text between its attention and its MLP.

    `h = x + attn(norm1(x)); h = h + cross_attn(norm_cross(h)); y = h + mlp(norm2(h))`

    Args:
        block: whose parts this one has.
        cross_attn: the attention to the other text.
        norm_cross: the norm before that.
    """

    _norm_names: ClassVar[Mapping[str, str]] = {"norm1": "ln1", "norm_cross": "ln2", "norm2": "ln3"}

    def __init__(
        self, block: Block, cross_attn: CrossAttention, norm_cross: LayerNorm | RMSNorm
    ) -> None:
        super().__init__(block.attn, block.norm1, block.mlp, block.norm2, post_norm=False)
        self._parts |= {"cross_attn": cross_attn, "norm_cross": norm_cross}
        self.cross_attn = cross_attn


class EncoderDecoder(Transformer):
    """An encoder, which is a transformer, with the decoder that looks at it.

    Args:
        encoder: whose parts this one has.
        decoder: a transformer of `DecoderBlock`s, with the head.
        first: the id of the token that the decoder begins with.
    """

    def __init__(self, encoder: Transformer, decoder: Transformer, first: int) -> None:
        super().__init__(
            encoder.embedding,
            encoder.layers,
            options=encoder.options,
            bias=encoder.bias,
            final_norm=encoder.final_norm,
        )
        self.decoder, self.first = decoder, first

    @property
    def cross_attention(self) -> list[CrossAttention]:
        """The attention to the encoder's vectors, of each layer of the decoder."""
        return [one.cross_attn for one in self.decoder.layers if isinstance(one, DecoderBlock)]

    @property
    def generates(self) -> bool:
        """Whether the decoder gives logits for the next token."""
        return self.decoder.head is not None

    def decode(
        self,
        ids: Array,
        mask: Array,
        rows: Array,
        cu_lengths: Array,
        *,
        record: Recorder | None = None,
        top_k: int | None = None,
    ) -> Array:
        """Run the decoder over whole texts: the vectors (total, D) of the tokens that are seen.

        Args:
            ids: (B, L) token ids.
            mask: (B, L), which of them are seen; one that is hidden between two keeps them apart.
            rows: the encoder's vectors, (its total, D).
            cu_lengths: (B + 1,), where each of those begins and the last one ends.
            record: collects what is computed on the way, as (B, L, ...).
            top_k: with `record`, keep the largest weights of each query in place of all.
        """
        between = without_holes(mask)
        lengths = between.sum(1)
        starts, caches = starts_of(lengths), self.remember(rows, cu_lengths)
        whole = padded(np.where(mask, ids, 0)[between].astype(np.int64), starts)  # (B, L)
        visible = padded(mask[between], starts)
        seen = None if mask[between].all() else visible
        found: Array = self.step(whole, caches, lengths, visible=seen, record=record, top_k=top_k)
        return found[visible]

    def remember(self, rows: Array, cu_lengths: Array) -> list[KVCache]:
        """What the decoder looks at: the encoder's vectors (total, D) of texts laid end to end."""
        return [
            attn.remember(rows, cu_lengths, options.get("window"))
            for attn, options in zip(self.cross_attention, self.decoder.options, strict=True)
        ]

    def begin(self, texts: Sequence[Array]) -> tuple[list[KVCache], Array, Array]:
        """What the decoder looks at, these texts, and the first id of each, (B, 1)."""
        rows, cu_lengths = self.packed(texts)
        lengths = np.ones(len(texts), np.int64)
        return self.remember(rows, cu_lengths), np.full((len(texts), 1), self.first), lengths

    def step(self, *args: Any, **options: Any) -> Array:
        """The decoder's vectors (B, n, D) of the ids that follow; see `Transformer.step`."""
        return self.decoder.step(*args, **options)

    @property
    def predicts(self) -> bool:
        """Whether the decoder gives logits over words."""
        return self.decoder.predicts

    def logits(self, rows: Array) -> Array:
        """From the decoder's vectors (n, D), each on its own, to logits (n, V)."""
        return self.decoder.logits(rows)

    def unembed(self, rows: Array, *, norm: bool) -> Array:
        """The same through the decoder's final norm; see `Transformer.unembed`."""
        return self.decoder.unembed(rows, norm=norm)

    @property
    def pair_hook_names(self) -> list[str]:
        """Every name that a trace of both may hold."""
        sides = {"encoder": self.hook_names, "decoder": self.decoder.hook_names}
        return [f"{side}.{name}" for side, names in sides.items() for name in names]
