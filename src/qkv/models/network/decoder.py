"""A decoder: writes one text and looks at another, which an encoder has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qkv.arrays import Array, compute_type
from qkv.attend import KVCache, attention, summarize_attention, trace_attention
from qkv.attend.heads import join_heads, split_heads
from qkv.layers import Block, LayerNorm, MultiHeadAttention, RMSNorm
from qkv.layers.packed import keep, padded
from qkv.layers.parameters import handed, project, quiet
from qkv.models.network.embedding import Embedding
from qkv.models.network.head import BuiltHead
from qkv.models.network.relative_bias import RelativeBias
from qkv.models.network.transformer import (
    BLOCK_HOOKS,
    LAST_HOOKS,
    SUMMARY_HOOKS,
    Transformer,
    hook_names,
)
from qkv.trace import Recorder

SIDES = ("encoder", "decoder")
_SUMMARY = tuple(name.removeprefix("attn.") for name in SUMMARY_HOOKS)
_HOOKS = (
    *(name for name in BLOCK_HOOKS if "rot_" not in name and "normalized" not in name),
    *(f"cross_attn.hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z")),
    *("hook_cross_attn_out", "hook_resid_mid_cross"),
    *SUMMARY_HOOKS,
    *(f"cross_{name}" for name in SUMMARY_HOOKS),
)


@dataclass(frozen=True)
class Memory:
    """What a layer of the decoder knows of the text that was read: keys and values, once."""

    key: Array  # (B, Hkv, S, d)
    value: Array  # (B, Hkv, S, dv)
    lengths: Array  # (B,)


class CrossAttention:
    """Attention of one text to another, whose keys and values are computed once.

    Args:
        attn: the projections.
        options: those of `qkv.attention` that hold in every run.
    """

    def __init__(self, attn: MultiHeadAttention, options: Mapping[str, Any]) -> None:
        self.attn, self.options = attn, dict(options)

    @quiet
    def remember(self, rows: Array, cu_lengths: Array) -> Memory:
        """The keys and values of texts laid end to end, rows (total, D)."""
        rows = handed(rows, self.attn.parameters)
        key, value = (
            split_heads(
                padded(project(rows, self.attn.parameters, name), cu_lengths),
                self.attn.num_kv_heads,
            )
            for name in ("k_proj", "v_proj")
        )  # (B, Hkv, S, d)
        return Memory(key, value, np.diff(cu_lengths))

    @quiet
    def __call__(
        self,
        x: Array,
        memory: Memory,
        lengths: Array | None = None,
        *,
        residual: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
    ) -> Array:
        """From word vectors (B, L, D) to what they take from the other text, (B, L, D).

        Args:
            x: word vectors.
            memory: of the other text.
            lengths: (B,), how many of the L are real.
            residual: (B, L, D), added to the result.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.
        """
        x = handed(x, self.attn.parameters)
        query = split_heads(project(x, self.attn.parameters, "q_proj"), self.attn.num_heads)
        parts = (query, memory.key, memory.value)
        options = {**self.options, "key_lengths": memory.lengths, "query_lengths": lengths}
        z = attention(*parts, **options)
        if record is not None:
            for name, part in zip(("hook_q", "hook_k", "hook_v"), parts, strict=True):
                record(name, np.swapaxes(part, -3, -2))  # (B, T, H, d)
            _record_weights(record, parts, options, top_k)
            record("hook_z", np.swapaxes(z, -3, -2))
        return project(join_heads(z), self.attn.parameters, "out_proj", residual=residual)


def _record_weights(
    record: Recorder, parts: Sequence[Array], options: Mapping[str, Any], top_k: int | None
) -> None:
    if top_k is not None:
        if record.wants(*_SUMMARY):
            summary = summarize_attention(*parts, **options, top_k=top_k)
            for name in _SUMMARY:
                record(name, getattr(summary, name))
    elif record.wants("hook_attn_scores", "hook_pattern"):
        trace = trace_attention(*parts, **options)
        record("hook_attn_scores", trace["scores"])
        record("hook_pattern", trace["pattern"])


class DecoderLayer:
    """Attention to the words before, attention to the other text, and the MLP.

    `h = x + attn(norm1(x)); h = h + cross(norm_cross(h)); y = h + mlp(norm2(h))`

    Args:
        block: the first and the last of these.
        cross: the attention to the other text.
        norm: the norm before that.
    """

    def __init__(self, block: Block, cross: CrossAttention, norm: LayerNorm | RMSNorm) -> None:
        self.block, self.cross, self.norm = block, cross, norm

    @quiet
    def __call__(
        self,
        x: Array,
        memory: Memory,
        *,
        cache: KVCache,
        lengths: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
        **options: Any,
    ) -> Array:
        """From word vectors (B, L, D), which follow those in the cache, to the same."""
        dtype, block = x.dtype, self.block
        x = x.astype(compute_type(dtype), copy=False)
        own = None if record is None else record.under("attn.")
        other = None if record is None else record.under("cross_attn.")

        def add(name: str, x: Array, part: Callable[..., Any]) -> Array:
            """`x` and what a part of the layer gives."""
            if record is None or not record.wants(name):
                return _first(part(residual=x))
            found = _first(part())
            record(name, found)
            return x + found

        keep(record, "hook_resid_pre", x, None)
        normed = x if block.norm1 is None else block.norm1.run(x)[0]
        normed = handed(normed, block.attn.parameters)
        part: Callable[..., Any] = partial(
            block.attn.run, normed, cache=cache, lengths=lengths, record=own, top_k=top_k, **options
        )
        x = add("hook_attn_out", x, part)
        keep(record, "hook_resid_mid", x, None)
        part = partial(self.cross, self.norm.run(x)[0], memory, lengths, record=other, top_k=top_k)
        x = add("hook_cross_attn_out", x, part)
        keep(record, "hook_resid_mid_cross", x, None)
        assert block.norm2 is not None
        assert block.mlp is not None
        normed = handed(block.norm2.run(x)[0], block.mlp.parameters)
        x = add("hook_mlp_out", x, partial(block.mlp.run, normed))
        keep(record, "hook_resid_post", x, None)
        return x.astype(dtype, copy=False)


def _first(found: Array | tuple[Array, Any]) -> Array:
    """What a part gives, without what only its backward pass needs."""
    return found[0] if isinstance(found, tuple) else found


class DecoderCaches(list[KVCache]):
    """What a decoder has read so far: a cache for each layer, and the other text.

    Args:
        caches: of the words before, one for each layer; they grow.
        memories: of the other text, one for each layer; they stay.
    """

    def __init__(self, caches: Iterable[KVCache], memories: Sequence[Memory]) -> None:
        super().__init__(caches)
        self.memories = list(memories)


class Decoder:
    """From the tokens so far, and the vectors of another text, to the vectors of the tokens.

    Args:
        embedding: from ids to vectors.
        layers: what follows, in order.
        options: for each layer the options of `qkv.attention` that it looks at its own text with.
        bias: of the scores of every layer, by the distance of two tokens of its own text.
        final_norm: what comes after the last layer.
        head: from the last vectors to logits.
    """

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        *,
        options: Sequence[Mapping[str, Any]],
        bias: RelativeBias | None,
        final_norm: LayerNorm | RMSNorm | None,
        head: BuiltHead | None,
    ) -> None:
        self.embedding, self.layers = embedding, list(layers)
        self.options = [dict(one) for one in options]
        self.bias, self.final_norm, self.head = bias, final_norm, head

    @property
    def hook_names(self) -> list[str]:
        """Every name that a trace of it may hold, the summaries of `top_k` included."""
        return hook_names(len(self.layers), _HOOKS)

    def __call__(
        self,
        ids: Array,
        lengths: Array,
        rows: Array,
        cu_lengths: Array,
        *,
        mask: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
    ) -> Array:
        """Run whole texts.

        Args:
            ids: (total,) token ids of texts laid end to end.
            lengths: (B,), how many each of them has.
            rows: the encoder's vectors, (its total, D).
            cu_lengths: (B + 1,), where each of those begins and the last one ends.
            mask: (total,), which of the tokens are looked at; all of them unless given.
            record: collects what is computed on the way, as (B, L, ...).
            top_k: with `record`, keep the largest weights of each query in place of all.

        Returns:
            (total, D)
        """
        real = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, L)
        whole = np.zeros(real.shape, np.int64)
        whole[real] = ids
        visible = None
        if mask is not None and not mask.all():
            visible = np.zeros(real.shape, bool)
            visible[real] = mask
        caches = self.start(rows, cu_lengths)
        found = self.step(whole, caches, lengths, visible=visible, record=record, top_k=top_k)
        packed: Array = found[real]
        return packed

    def start(self, rows: Array, cu_lengths: Array) -> DecoderCaches:
        """What it looks at: the encoder's vectors (total, D) of texts laid end to end."""
        return DecoderCaches(
            (KVCache(one.get("window")) for one in self.options),
            [layer.cross.remember(rows, cu_lengths) for layer in self.layers],
        )

    def step(
        self,
        ids: Array,
        caches: Sequence[KVCache],
        lengths: Array | None = None,
        *,
        visible: Array | None = None,
        record: Recorder | None = None,
        top_k: int | None = None,
    ) -> Array:
        """Run the tokens that follow those in the caches, which then hold these too.

        Args:
            ids: (B, n) token ids, one row for each text.
            caches: what `start` gave.
            lengths: (B,), how many of the n are real; all of them unless given.
            visible: (B, S), which of all tokens so far are looked at; all of them unless given.
            record: collects what is computed on the way.
            top_k: with `record`, keep the largest weights of each query in place of all.

        Returns:
            (B, n, D)
        """
        assert isinstance(caches, DecoderCaches)
        seen = np.broadcast_to(caches[0].lengths, len(ids))
        places = seen[:, None] + np.arange(ids.shape[1])
        x, _ = self.embedding(ids, places, record=record)
        more = self._bias(seen, ids.shape[1], lengths)
        if visible is not None:
            more["attn_mask"] = visible[:, None, None]  # (B, 1, 1, S)
        steps = zip(self.layers, caches, caches.memories, self.options, strict=True)
        for number, (layer, cache, memory, options) in enumerate(steps):
            inside = None if record is None else record.under(f"blocks.{number}.")
            x = layer(
                x, memory, cache=cache, lengths=lengths, record=inside, top_k=top_k,
                **options, **more,
            )  # fmt: skip
        if self.final_norm is not None:
            x = self.final_norm(x)
            keep(record, LAST_HOOKS[0], x, None)
        return x

    def _bias(self, seen: Array, count: int, lengths: Array | None) -> dict[str, Array]:
        """The bias of the next `count` tokens, (1 or B, Hq, n, S)."""
        if self.bias is None:
            return {}
        longest = int((seen + (count if lengths is None else lengths)).max(initial=0))
        offsets = np.unique(seen).tolist()
        rows = {offset: self.bias(count, longest, offset) for offset in offsets}
        if len(rows) <= 1:
            return {"bias": next(iter(rows.values()))} if rows else {}
        return {"bias": np.concatenate([rows[offset] for offset in seen.tolist()])}


class EncoderDecoder(Transformer):
    """An encoder, which is a transformer, with the decoder that looks at it.

    Args:
        encoder: whose parts this one has.
        decoder: what comes behind it.
        first: the id of the token that the decoder begins with.
    """

    def __init__(self, encoder: Transformer, decoder: Decoder, first: int) -> None:
        super().__init__(
            encoder.embedding,
            encoder.layers,
            options=encoder.options,
            bias=encoder.bias,
            final_norm=encoder.final_norm,
            hooks=encoder.hooks,
        )
        self.decoder, self.first = decoder, first

    @property
    def generates(self) -> bool:
        """Whether the decoder gives logits for the next token."""
        return self.decoder.head is not None

    def begin(self, texts: Sequence[Array]) -> tuple[DecoderCaches, Array, Array]:
        """What the decoder looks at, these texts, and the first id of each, (B, 1)."""
        cu_lengths = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        places = np.concatenate([np.arange(len(text)) for text in texts])
        rows = self(np.concatenate(texts), places, cu_lengths)
        lengths = np.ones(len(texts), np.int64)
        return self.decoder.start(rows, cu_lengths), np.full((len(texts), 1), self.first), lengths

    def step(self, *args: Any, **options: Any) -> Array:
        """The decoder's vectors (B, n, D) of the ids that follow; see `Decoder.step`."""
        return self.decoder.step(*args, **options)

    def logits(self, rows: Array) -> Array:
        """From the decoder's vectors (B, D), one of each text, to logits (B, V)."""
        if self.decoder.head is None:
            raise ValueError("logits: this model has no head")
        return self.decoder.head(rows, np.arange(len(rows) + 1))

    @property
    def pair_hook_names(self) -> list[str]:
        """Every name that a trace of both may hold."""
        sides = {"encoder": self.hook_names, "decoder": self.decoder.hook_names}
        return [f"{side}.{name}" for side, names in sides.items() for name in names]
