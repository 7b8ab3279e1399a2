"""An encoder that reads a text, and a decoder that attends to the encoder and writes a text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.attend import KVCache, split_heads
from qkv.attend.arguments import check_call
from qkv.attend.attention import answer, record_weights
from qkv.layers import Block, MultiHeadAttention
from qkv.layers.attention.forward import Norm, attention_out
from qkv.layers.base import quiet, starts_of, to_bfloat16_like
from qkv.layers.block import Run, Value
from qkv.layers.stepping import NewTokens
from qkv.models.network.transformer import Transformer, without_holes
from qkv.ops.linear import project
from qkv.trace import Recorder
from qkv.trace.activations import SUMMARY
from qkv.trace.recorder import of_heads, pad_rows, unkept


class EncodedTexts(NamedTuple):
    """The encoder's vectors for B texts, which the decoder reads.

    Attributes:
        rows: (total, D), the vectors of all texts, without padding.
        cu: (B + 1,), the index of each text's first row, followed by the number of rows.
        visible: a mask of the vectors that the decoder sees, which broadcasts to (B, Hq, L, S);
            None if the decoder sees all vectors.
    """

    rows: Array
    cu: Array
    visible: Array | None = None


class DecoderCache(KVCache):
    """The key/value cache of a decoder layer, for the decoder's text and for the encoder's text.

    Args:
        window: as in `KVCache`, for the keys and values of the decoder's text.
        key: the keys of the encoder's text, (B, Hkv, S, d).
        value: the values of the encoder's text, (B, Hkv, S, dv).
        key_lengths: the lengths of the encoder's texts, (B,).
        visible: a mask of the keys, as in `EncodedTexts`.
    """

    def __init__(
        self, window: Any, key: Array, value: Array, key_lengths: Array, visible: Array | None
    ) -> None:
        super().__init__(window)
        self.key, self.value, self.key_lengths = key, value, key_lengths
        self.visible = visible


class CrossAttention:
    """Attention from the decoder to the encoder's text.

    `remember` computes keys and values once per text; `run` uses them in each step.

    Args:
        attn: a layer with the projections to queries, keys, values and outputs.
        options: the options of `qkv.attention`.
    """

    hooks = (
        *(f"hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z", "result")),
        *SUMMARY,
    )

    def __init__(self, attn: MultiHeadAttention, options: Mapping[str, Any]) -> None:
        self.attn, self.options = attn, dict(options)
        self.dim, self.parameters = attn.embed_dim, attn.parameters

    @quiet
    def remember(self, texts: EncodedTexts, window: Any, record: Recorder | None) -> DecoderCache:
        """Compute the keys and values of the encoder's texts, and return them in a cache.

        `window` is passed on to `DecoderCache`. If `record` contains edits of keys or values, this
        method applies the edits, and `run` records the edited arrays.
        """
        rows = to_bfloat16_like(texts.rows, self.parameters)
        lengths, parts = np.diff(texts.cu), {}
        real = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, S)
        for name in ("k", "v"):
            whole = pad_rows(project(rows, self.parameters, f"{name}_proj"), texts.cu)
            parts[name] = split_heads(whole, self.attn.num_kv_heads)  # (B, Hkv, S, d)
            if record is not None and record.changes(f"hook_{name}"):
                changed = record.change(f"hook_{name}", np.swapaxes(parts[name], -3, -2))
                changed[~real] = 0  # clear the padding
                parts[name] = np.swapaxes(changed, -3, -2)
        return DecoderCache(window, parts["k"], parts["v"], lengths, texts.visible)

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
        """Return the output (B, L, D) of the attention to the encoder's text.

        Args:
            x: (B, L, D), the hidden states of the decoder.
            cache: the keys and values of the encoder's text.
            lengths: (B,), the number of tokens per text, without padding.
            residual: (B, L, D), added to the result.
            record: collects the activations.
            top_k: the number of largest weights to record per query.
            save: must be False, because there is no backward pass.
        """
        assert not save
        query = split_heads(project(x, self.parameters, "q_proj"), self.attn.num_heads)
        heads = of_heads(record, None)
        keep = heads or unkept
        query = keep("hook_q", query)
        parts = (query, cache.key, cache.value)
        options = {**self.options, "key_lengths": cache.key_lengths, "query_lengths": lengths}
        options["attn_mask"] = cache.visible
        call = check_call(*parts, **options)
        weighed = None
        if record is not None and heads is not None:
            heads.keep("hook_k", cache.key)
            heads.keep("hook_v", cache.value)
            weighed = record_weights(call, record, top_k)
        z = answer(call)[0] if weighed is None else weighed.z
        z = keep("hook_z", z)
        return attention_out(z, self.parameters, residual, record, None), None


def pre_norm_with_cross_attention(x: Value, run: Run[Value]) -> Value:
    """Place a norm before each of the three parts of a decoder's block."""
    x = run.keep("hook_resid_mid", run.add(x, "attn", run.norm("norm1", x)))
    read = run.norm("norm_cross", x)
    x = run.keep("hook_resid_mid_cross", run.add(x, "cross_attn", read))
    return run.keep("hook_resid_post", run.add(x, "mlp", run.norm("norm2", x)))


class DecoderBlock(Block):
    """A block with three parts: self-attention, attention to the encoder's text, and an MLP.

    `h = x + attn(norm1(x)); h = h + cross_attn(norm_cross(h)); y = h + mlp(norm2(h))`

    Args:
        block: a block with the self-attention, the MLP and their norms.
        cross_attn: the attention to the encoder's text.
        norm_cross: the norm before `cross_attn`.
    """

    _norm_names: ClassVar[Mapping[str, str]] = {"norm1": "ln1", "norm_cross": "ln2", "norm2": "ln3"}

    def __init__(self, block: Block, cross_attn: CrossAttention, norm_cross: Norm) -> None:
        super().__init__(block.attn, block.norm1, block.mlp, block.norm2, post_norm=False)
        self._parts |= {"cross_attn": cross_attn, "norm_cross": norm_cross}
        self.cross_attn, self.placement = cross_attn, pre_norm_with_cross_attention


class EncoderDecoder(Transformer):
    """An encoder, and a decoder that attends to the encoder's vectors.

    Args:
        encoder: the encoder; its head is not used.
        decoder: the decoder with its head; the decoder's layers are `DecoderBlock`s.
        first: the id of the decoder's first token.
    """

    def __init__(self, encoder: Transformer, decoder: Transformer, first: int) -> None:
        super().__init__(
            encoder.embedding,
            encoder.layers,
            encoder.options,
            encoder.same_as,
            bias=encoder.bias,
            final_norm=encoder.final_norm,
        )
        self.decoder, self.first = decoder, first

    @property
    def cross_attention(self) -> list[CrossAttention]:
        """Each decoder layer's attention to the encoder's vectors."""
        return [
            block.cross_attn for block in self.decoder.layers if isinstance(block, DecoderBlock)
        ]

    def decode(
        self,
        ids: Array,
        mask: Array,
        texts: EncodedTexts,
        record: Recorder | None = None,
        top_k: int | None = None,
        stop: int | None = None,
    ) -> Array:
        """Run the decoder on whole texts, and return the vectors (total, D) of unmasked tokens.

        Args:
            ids: (B, L) token ids.
            mask: (B, L), True at unmasked tokens. A masked token between unmasked tokens keeps its
                position: with the mask 1 0 1, the tokens have the positions 0, 1 and 2.
            texts: the vectors that the encoder computed for the texts.
            record: as in `Transformer.step`.
            top_k: as in `Transformer.step`.
            stop: only layers before this layer are run; None runs all layers.
        """
        between = without_holes(mask)
        lengths = between.sum(1)
        starts = starts_of(lengths)
        caches = self.remember(texts, record, stop)
        whole = pad_rows(np.where(mask, ids, 0)[between].astype(np.int64), starts)  # (B, L)
        seen = pad_rows(mask[between], starts)
        keys = seen[:, None, None]
        masks = {} if mask[between].all() else dict.fromkeys(range(len(caches)), keys)
        x = self.decoder.step(whole, caches, lengths, record=record, top_k=top_k, masks=masks)
        return x[seen]

    def remember(
        self, texts: EncodedTexts, record: Recorder | None, stop: int | None = None
    ) -> list[KVCache]:
        """Return a cache for each decoder layer with an index below `stop` (all layers if None).

        The caches are filled from the encoder's vectors.
        """
        layers = zip(self.cross_attention[:stop], self.decoder.options[:stop], strict=True)
        return [
            attn.remember(
                texts, values.get("window"), record and record.under(f"blocks.{number}.cross_attn.")
            )
            for number, (attn, values) in enumerate(layers)
        ]

    def step(self, *args: Any, **options: Any) -> Array:
        """Return the decoder's vectors (B, n, D) for the next ids; see `Transformer.step`."""
        return self.decoder.step(*args, **options)

    def step_together(self, batches: Sequence[NewTokens]) -> Array:
        """Return the decoder's vectors (total, D); see `Transformer.step_together`."""
        return self.decoder.step_together(batches)

    def logits(self, rows: Array) -> Array:
        """Return the logits (n, V) of the decoder's vectors (n, D)."""
        return self.decoder.logits(rows)

    def unembed(self, rows: Array, *, norm: bool) -> Array:
        """Return the logits (n, V) of the decoder's vectors (n, D); see `Transformer.unembed`."""
        return self.decoder.unembed(rows, norm=norm)

    @property
    def pair_hook_names(self) -> list[str]:
        """The names of all activations in a trace of both the encoder and the decoder."""
        sides = {"encoder": self.hook_names, "decoder": self.decoder.hook_names}
        return [f"{side}.{name}" for side, names in sides.items() for name in names]
