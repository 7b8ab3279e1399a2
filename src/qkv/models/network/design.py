"""A transformer before it has parameters: its sizes and options, as a config gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from qkv.arrays import Array, Shape
from qkv.embed import alibi_slopes
from qkv.layers import (
    MLP,
    Block,
    Experts,
    GatedExperts,
    LayerNorm,
    LayerScale,
    MultiHeadAttention,
    RMSNorm,
    Rotary,
)
from qkv.layers.experts import expert_shapes, gated_expert_shapes
from qkv.layers.layer import Feed, shapes_of
from qkv.layers.mlp import mlp_sizes
from qkv.models.network.decoder import CrossAttention, DecoderBlock
from qkv.models.network.embedding import Embedding
from qkv.models.network.head import Head
from qkv.models.network.relative_bias import Buckets
from qkv.models.network.transformer import Transformer


@dataclass(frozen=True)
class Attention:
    """How one layer attends.

    Attributes:
        num_heads: Hq.
        num_kv_heads: Hkv.
        head_size: d.
        rotary: rotates queries and keys.
        options: those of `qkv.attention` that hold in every run: `is_causal`, `window`, `scale`,
            `softcap`.
        alibi: whether scores fall with the distance.
        sinks: whether each head has a learned sink.
        qk_norm: whether queries and keys are normalised: those of each "head", or those of all
            heads side by side, over their "width".
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary: Rotary | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    alibi: bool = False
    sinks: bool = False
    qk_norm: Literal["no", "head", "width"] = "no"

    def within(self, width: int | None) -> Attention:
        """The same where a query sees a window of so many tokens; all of them for None.

        They are those up to itself, or where it is not causal half of them to each side.
        """
        if width is None:
            return self
        window = (width - 1, 0) if self.options.get("is_causal") else (width // 2, width // 2)
        return replace(self, options={**self.options, "window": window})


@dataclass(frozen=True)
class Mixture:
    """What stands in the place of each MLP: a router and the MLPs it chooses among.

    Attributes:
        count: E, how many experts there are.
        top_k: how many of them a token goes through.
        alpha: as for `Experts`.
        limit: the same.
    """

    count: int
    top_k: int
    alpha: float
    limit: float

    def shapes(self, number: int, dim: int, hidden: int) -> Iterable[tuple[str, Shape]] | None:
        """The parameters of a layer and their shapes, or None where it has one MLP."""
        return expert_shapes(dim, hidden, self.count).items()

    def build(self, parameters: Mapping[str, Array], activation: str) -> Experts:
        """The experts with these parameters."""
        return Experts(parameters, top_k=self.top_k, alpha=self.alpha, limit=self.limit)


@dataclass(frozen=True)
class GatedMixture:
    """A router and the gated MLPs that it chooses among.

    Attributes:
        count: E, how many experts there are.
        top_k: how many of them a token goes through.
        hidden: F, the size between the two layers of an expert.
        normalized: whether what the chosen ones count adds up to 1.
        without: the layers that have one MLP after all.
    """

    count: int
    top_k: int
    hidden: int
    normalized: bool = True
    without: frozenset[int] = frozenset()

    def shapes(self, number: int, dim: int, hidden: int) -> Iterable[tuple[str, Shape]] | None:
        """The parameters of a layer and their shapes, or None where it has one MLP."""
        if number in self.without:
            return None
        return gated_expert_shapes(dim, self.hidden, self.count)

    def build(self, parameters: Mapping[str, Array], activation: str) -> GatedExperts:
        """The experts with these parameters."""
        return GatedExperts(
            parameters, top_k=self.top_k, activation=activation, normalized=self.normalized
        )


@dataclass(frozen=True)
class Design:
    """Token ids, through embeddings and blocks, to vectors, and through a head to logits.

    Attributes:
        vocabulary: V.
        dim: D.
        hidden: F, the size between the two layers of an MLP; 0 for blocks of attention alone.
        activation: that of the MLP.
        eps: of the norms.
        layers: how each layer attends.
        same_as: for each layer the first one that has its parameters, of whose name they are; empty
            where each layer has its own.
        max_seq_length: the most tokens of a text; None for no limit.
        positions: the rows of a table of learned positions, 0 for none.
        first_position: the row of a text's first token.
        padding: the id of the padding token, where positions count the other tokens alone.
        counted: whether positions count the tokens alone that a mask shows.
        token_types: the rows of a table of segments, 0 for none.
        embed_dim: E, the size of the rows of these tables where it is not D: a projection from the
            one to the other follows the norm over them.
        embed_bias: whether that projection has a bias.
        projects_first: whether it is of the rows of the token table alone, before the others are
            added, which are of size D.
        embed_scale: what the rows of the token table are multiplied by.
        embed_norm: whether there is a norm over the embeddings.
        norms: where those of a block stand: "after" each part and the sum behind it, "before" the
            part, on "both" its sides, or "behind" the part alone, before the sum.
        parallel: whether the MLP of a block reads what its attention reads, in place of the sum
            behind that, where the norms stand before.
        mlp_norm: whether the MLP has a norm of its own; without one, in parallel, that of the
            attention is for both.
        first_norm: whether the first layer's attention has its norm, where they stand before.
        layer_scale: whether what each part gives is multiplied by a learned vector before it is
            added.
        final_norm: whether there is one after the last block.
        last_is_normed: whether the last of the hidden states, as `transformers` counts them, is
            behind that norm.
        rms: whether the norms leave the mean where it is.
        norm_bias: whether they have biases.
        norm_offset: what is added to their weights.
        gated: whether the MLP has a gate.
        qkv_bias: whether the linear layers to queries, keys and values have biases.
        out_bias: the same of the output projection.
        mlp_bias: the same of the MLP.
        experts: what the MLPs are where there are several in each block; None for one.
        buckets: biases by the distance of two tokens, shared by all layers.
        cross: whether each layer also attends to another text, between its attention and its MLP,
            with as many heads and a norm of its own.
        head: from the last vectors to logits.
    """

    vocabulary: int
    dim: int
    hidden: int
    activation: str
    eps: float
    layers: tuple[Attention, ...]
    same_as: tuple[int, ...] = ()
    max_seq_length: int | None = None
    positions: int = 0
    first_position: int = 0
    padding: int | None = None
    counted: bool = False
    token_types: int = 0
    embed_dim: int | None = None
    embed_bias: bool = True
    projects_first: bool = False
    embed_scale: float = 1.0
    embed_norm: bool = False
    norms: Literal["after", "before", "both", "behind"] = "before"
    parallel: bool = False
    mlp_norm: bool = True
    first_norm: bool = True
    layer_scale: bool = False
    final_norm: bool = True
    last_is_normed: bool = True
    rms: bool = False
    norm_bias: bool = True
    norm_offset: float = 0.0
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    experts: Mixture | GatedMixture | None = None
    buckets: Buckets | None = None
    cross: bool = False
    head: Head | None = None

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Each parameter by our name and its shape; lazily, since a config can name any size."""
        size = self.dim if self.embed_dim is None else self.embed_dim
        yield "embed.weight", (self.vocabulary, size)
        if self.embed_dim is not None:
            yield from shapes_of("embed_proj", size, self.dim, bias=self.embed_bias)
        size = self.dim if self.projects_first else size
        if self.positions:
            yield "pos_embed.weight", (self.positions, size)
        if self.token_types:
            yield "token_type_embed.weight", (self.token_types, size)
        if self.embed_norm:
            yield from self._norm_shapes("embed_norm", size)
        if self.buckets is not None:
            yield "relative_bias.weight", (self.buckets.count, self.layers[0].num_heads)
        for number, layer in enumerate(self.layers):
            if self._first(number) == number:
                for name, shape in self._block_shapes(number, layer):
                    yield f"blocks.{number}.{name}", shape
        if self.final_norm:
            yield from self._norm_shapes("final_norm", self.dim)
        if self.head is not None:
            yield from self.head.shapes(self.dim)

    def build(self, parameters: Mapping[str, Array]) -> Transformer:
        """The transformer with these parameters, used where they stand."""
        firsts = [self._first(number) for number in range(len(self.layers))]
        blocks = {one: self._block(one, self.layers[one], parameters) for one in set(firsts)}
        return Transformer(
            Embedding(
                parameters["embed.weight"],
                positions=parameters.get("pos_embed.weight"),
                token_types=parameters.get("token_type_embed.weight"),
                norm=self.norm(parameters, "embed_norm"),
                projection=under(parameters, "embed_proj."),
                projects_first=self.projects_first,
                scale=self.embed_scale,
                first_position=self.first_position,
                padding=self.padding,
                counted=self.counted,
            ),
            [blocks[one] for one in firsts],
            options=[
                self._options(one, layer, parameters)
                for one, layer in zip(firsts, self.layers, strict=True)
            ],
            same_as=firsts,
            bias=None
            if self.buckets is None
            else self.buckets.with_table(parameters["relative_bias.weight"]),
            final_norm=self.norm(parameters, "final_norm"),
            head=None if self.head is None else self.head.build(parameters, norm=self.norm),
        )

    def _first(self, number: int) -> int:
        """The first layer that has the parameters of this one."""
        return self.same_as[number] if self.same_as else number

    def _block_shapes(self, number: int, layer: Attention) -> Iterator[tuple[str, Shape]]:
        """Those of one layer, by the names that they have in it."""
        dim, size = self.dim, layer.head_size
        wide, narrow = layer.num_heads * size, layer.num_kv_heads * size
        for attn in ("attn", "cross_attn") if self.cross else ("attn",):
            for name, columns in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
                yield from shapes_of(f"{attn}.{name}", dim, columns, bias=self.qkv_bias)
            yield from shapes_of(f"{attn}.out_proj", wide, dim, bias=self.out_bias)
        if layer.qk_norm != "no":
            sizes = (wide, narrow) if layer.qk_norm == "width" else (size, size)
            for name, columns in zip("qk", sizes, strict=True):
                yield from self._norm_shapes(f"attn.{name}_norm", columns)
        if layer.sinks:
            yield "attn.sinks", (layer.num_heads,)
        if (number > 0 or self.first_norm) and self.norms != "behind":
            yield from self._norm_shapes("norm1", dim)
        if self.cross:
            yield from self._norm_shapes("norm_cross", dim)
        if self.hidden:
            yield from self._mlp_shapes(number)
            if self.mlp_norm and self.norms != "behind":
                yield from self._norm_shapes("norm2", dim)
        if self.norms in ("both", "behind"):
            yield from self._norm_shapes("out_norm1", dim)
            yield from self._norm_shapes("out_norm2", dim)
        if self.layer_scale:
            yield "scale1.weight", (dim,)
            if self.hidden:
                yield "scale2.weight", (dim,)

    def _mlp_shapes(self, number: int) -> Iterator[tuple[str, Shape]]:
        """Those of the MLP, or of the experts in its place."""
        dim, hidden = self.dim, self.hidden
        several = None if self.experts is None else self.experts.shapes(number, dim, hidden)
        if several is not None:
            yield from ((f"mlp.{name}", shape) for name, shape in several)
            return
        for name, size in mlp_sizes(dim, hidden, gated=self.gated).items():
            yield from shapes_of(f"mlp.{name}", *size, bias=self.mlp_bias)

    def _norm_shapes(self, name: str, size: int) -> Iterator[tuple[str, Shape]]:
        """The weight of a norm, and its bias if norms have one."""
        yield from shapes_of(name, size, bias=self.norm_bias and not self.rms)

    def _block(self, number: int, layer: Attention, parameters: Mapping[str, Array]) -> Block:
        """One layer, of the parameters under its number."""
        own = under(parameters, f"blocks.{number}.")
        attn = MultiHeadAttention.from_parameters(
            {n: a for n, a in under(own, "attn.").items() if "_proj." in n},
            num_heads=layer.num_heads,
            rotary=layer.rotary,
            q_norm=self.norm(own, "attn.q_norm"),
            k_norm=self.norm(own, "attn.k_norm"),
        )
        norms = ("norm1", "norm2", "out_norm1", "out_norm2")
        beside: dict[str, Any] = {name: self.norm(own, name) for name in norms}
        beside |= {name: self._scale(own, name) for name in ("scale1", "scale2")}
        block = Block(
            attn,
            mlp=self._mlp(under(own, "mlp.")) if self.hidden else None,
            post_norm=self.norms == "after",
            parallel=self.parallel,
            **beside,
        )
        norm_cross = self.norm(own, "norm_cross")
        if norm_cross is None:
            return block
        cross_attn = MultiHeadAttention.from_parameters(
            under(own, "cross_attn."), num_heads=layer.num_heads
        )
        options = {name: value for name, value in layer.options.items() if name == "scale"}
        return DecoderBlock(block, CrossAttention(cross_attn, options), norm_cross)

    def _mlp(self, parameters: Mapping[str, Array]) -> Feed:
        """The MLP, or the experts in its place."""
        if self.experts is not None and "router_proj.weight" in parameters:
            return self.experts.build(parameters, self.activation)
        return MLP.from_parameters(parameters, activation=self.activation)

    def norm(self, parameters: Mapping[str, Array], name: str) -> LayerNorm | RMSNorm | None:
        """The norm of this name, if there are parameters of one."""
        own = under(parameters, f"{name}.")
        if not own:
            return None
        if self.rms:
            return RMSNorm.from_parameters(own, eps=self.eps, offset=self.norm_offset)
        return LayerNorm.from_parameters(own, eps=self.eps)

    def _scale(self, parameters: Mapping[str, Array], name: str) -> LayerScale | None:
        """The scale of this name, if there are parameters of one."""
        own = under(parameters, f"{name}.")
        return LayerScale.from_parameters(own) if own else None

    def _options(
        self, number: int, layer: Attention, parameters: Mapping[str, Array]
    ) -> dict[str, Any]:
        """What `qkv.attention` is called with in one layer."""
        options = dict(layer.options)
        if layer.alibi:
            options["alibi_slopes"] = alibi_slopes(layer.num_heads)
        if layer.sinks:
            options["sinks"] = parameters[f"blocks.{number}.attn.sinks"]
        return options


def under(parameters: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The parameters whose names begin with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): array
        for name, array in parameters.items()
        if name.startswith(prefix)
    }
