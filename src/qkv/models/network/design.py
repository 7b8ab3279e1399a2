"""The designs of models: sizes and options from a config, without parameters."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from qkv.arrays import Array, Arrays, Shape
from qkv.embed import alibi_slopes
from qkv.layers import (
    MLP,
    Block,
    Convolution,
    LayerNorm,
    LayerScale,
    MultiHeadAttention,
    RMSNorm,
    Rotary,
    mlp_sizes,
)
from qkv.layers.attention import Norm
from qkv.layers.base import Feed, shapes_of
from qkv.layers.experts import Experts, GatedExperts, expert_shapes, gated_expert_shapes
from qkv.layers.norm import HeadNorms
from qkv.models.network._decoder import CrossAttention, DecoderBlock, EncoderDecoder
from qkv.models.network._embedding import Embedding, PatchEmbedding
from qkv.models.network._relative_bias import Buckets, Disentangled
from qkv.models.network.head import Head
from qkv.models.network.transformer import Transformer
from qkv.trace.trace import SIDES

TOWERS = ("text", "vision")
SCALE = "logit_scale"


@dataclass(frozen=True)
class Attention:
    """The attention of one layer.

    Attributes:
        num_heads: Hq, the number of query heads.
        num_kv_heads: Hkv, the number of key and value heads.
        head_size: d, the size of the queries, keys and values of a head.
        rotary: the rotary positions of queries and keys.
        options: the options of `qkv.attention` in every run: `is_causal`, `window`, `scale`,
            `softcap`.
        alibi: a factor for the slopes by which scores decrease with distance (ALiBi); 0 for
            attention without ALiBi.
        sinks: whether each head has a learned sink.
        qk_norm: how queries and keys are normalised: "no", "head" for each head separately, "each"
            for each head separately with its own parameters, or "width" for all heads together.
        clip: the largest absolute value allowed in queries, keys and values; larger values are
            clipped. None for no limit.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    rotary: Rotary | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    alibi: float = 0.0
    sinks: bool = False
    qk_norm: Literal["no", "head", "each", "width"] = "no"
    clip: float | None = None

    def within(self, width: int | None) -> "Attention":
        """Return this attention with a window of `width` tokens, or unchanged if `width` is None.

        In causal attention, the window ends at the query. In attention that is not causal,
        the query is in the middle of the window.
        """
        if width is None:
            return self
        window = (width - 1, 0) if self.options.get("is_causal") else (width // 2, width // 2)
        return replace(self, options={**self.options, "window": window})


@dataclass(frozen=True)
class Mixture:
    """A router and experts that replace each MLP, as in GPT-OSS.

    Attributes:
        count: E, the number of experts.
        top_k: the number of experts for each token.
        alpha: the factor in an expert's activation `g * sigmoid(alpha * g)`; see `Experts`.
        limit: the bound at which an expert clips its intermediate values; see `Experts`.
    """

    count: int
    top_k: int
    alpha: float
    limit: float

    def shapes(self, number: int, dim: int, hidden: int) -> Iterable[tuple[str, Shape]] | None:
        """Return names and shapes of experts' parameters; None if this layer has a single MLP."""
        return expert_shapes(dim, hidden, self.count).items()

    def build(self, parameters: Arrays, activation: str) -> Experts:
        """Build the experts from these parameters."""
        return Experts(parameters, top_k=self.top_k, alpha=self.alpha, limit=self.limit)


@dataclass(frozen=True)
class GatedMixture:
    """A router and gated MLPs that replace each MLP.

    Attributes:
        count: E, the number of experts.
        top_k: the number of experts for each token.
        hidden: F, the size between the two layers of an expert.
        normalized: whether the weights of a token's experts sum to 1.
        without: the layers that have one MLP instead of experts.
    """

    count: int
    top_k: int
    hidden: int
    normalized: bool = True
    without: frozenset[int] = frozenset()

    def shapes(self, number: int, dim: int, hidden: int) -> Iterable[tuple[str, Shape]] | None:
        """Return names and shapes of experts' parameters; None if this layer has a single MLP."""
        if number in self.without:
            return None
        return gated_expert_shapes(dim, self.hidden, self.count)

    def build(self, parameters: Arrays, activation: str) -> GatedExperts:
        """Build the experts from these parameters."""
        return GatedExperts(
            parameters, top_k=self.top_k, activation=activation, normalized=self.normalized
        )


class Convolved(NamedTuple):
    """A convolution over the tokens of a text."""

    size: int  # K, the number of tokens from which a token's vector is computed.
    groups: int  # The number of groups of columns; each input group yields one output group.
    activation: str


@dataclass(frozen=True)
class Design:
    """The sizes and options of a transformer: embeddings, blocks and a head.

    Attributes:
        vocabulary: V, the number of tokens in the vocabulary.
        dim: D, the size of hidden states.
        hidden: F, the size between the two layers of an MLP; 0 for attention-only blocks.
        activation: the activation of the MLP.
        eps: the small number that norms add to the variance or the mean square.
        layers: the attention of each layer.
        same_as: for each layer, the number of the first layer with the same parameters. For
            example, with `(0, 0)`, layers 0 and 1 both use the parameters of layer 0, whose names
            begin with "blocks.0.". `same_as` is empty if each layer has its own parameters.
        max_seq_length: the maximum number of tokens in a text; None for no limit.
        positions: the number of rows in the table of learned positions; 0 if this table is absent.
        first_position: the row that the first token of a text has in the table of positions.
        padding: the id of the padding token if positions skip padding tokens; otherwise None.
        counted: whether positions skip masked tokens.
        token_types: the number of rows in the table of segments; 0 if this table is absent.
        embed_dim: E, the size of a row of the embedding tables; None if this size is D. If E is
            given, a projection from E to D follows the norm of the embeddings.
        embed_bias: whether the projection from E to D has a bias.
        projects_first: whether the projection applies only to the rows of the token table. Rows of
            the other tables have size D and are added after the projection. Then a second
            projection, from D to E, follows the final norm.
        embed_scale: a factor for the rows of the token table.
        embed_norm: whether the sum of the embeddings is normalised.
        norms: where the norms of a block are. "before": a norm precedes the attention and the MLP.
            "behind": the outputs of the attention and of the MLP are each normalised before the
            residual sum. "both": the attention and the MLP each have a norm "before" and a norm
            "behind". "after": a norm follows each residual sum. "none": blocks have no norms.
        parallel: whether a block's MLP reads the block's input instead of the sum after the
            attention, as in GPT-NeoX. If `parallel` is True, `norms` must be "before".
        mlp_norm: whether the MLP has its own norm. If `mlp_norm` is False, the MLP shares the
            attention's norm, as in GPT-J.
        first_norm: whether the first layer's attention has a norm, if `norms` is "before".
        layer_scale: whether learned vectors multiply the outputs of the attention and of the MLP.
        residual_scale: a constant that multiplies the outputs of the attention and of the MLP.
        final_norm: whether a norm follows the last block.
        last_is_normed: whether the last entry of `hidden_states` in transformers is the output of
            the final norm.
        rms: whether the norms are RMSNorms.
        norm_weight: whether the norms have parameters. If `norm_weight` is False, the norms are
            LayerNorms, and `norms` must be "before".
        norm_bias: whether the norms have biases.
        norm_offset: a number that is added to the weights of the norms.
        gated: whether the MLP has a gate.
        qkv_bias: whether the linear layers to queries, keys and values have biases.
        out_bias: whether the output projection of the attention has a bias.
        mlp_bias: whether the linear layers of the MLP have biases; "down" if only the last layer
            has a bias.
        experts: the mixture of experts that replaces the MLPs; None for one MLP in each block.
        buckets: the buckets of the relative position bias, as in T5. All layers share the bias.
            If `buckets` is None, the model has no relative position bias.
        disentangled: the relative positions that are multiplied with queries and keys, as in
            DeBERTa.
        conv: the convolution of the first layer, as in DeBERTa v2; None for no convolution.
        cross: whether each layer has cross-attention to the encoder's text. Cross-attention comes
            after the self-attention, and has its own norm and as many heads as the self-attention.
        head: the output head, which reads the last hidden states; None if the model has none.
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
    norms: Literal["after", "before", "both", "behind", "none"] = "before"
    parallel: bool = False
    mlp_norm: bool = True
    first_norm: bool = True
    layer_scale: bool = False
    residual_scale: float = 1.0
    final_norm: bool = True
    last_is_normed: bool = True
    rms: bool = False
    norm_weight: bool = True
    norm_bias: bool = True
    norm_offset: float = 0.0
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool | Literal["down"] = True
    experts: Mixture | GatedMixture | None = None
    buckets: Buckets | None = None
    disentangled: Disentangled | None = None
    conv: Convolved | None = None
    cross: bool = False
    head: Head | None = None

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield names and shapes of parameters one by one, because a list of them could be huge."""
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
        if self.disentangled is not None:
            yield "rel_embed.weight", (2 * self.disentangled.span, self.dim)
            if self.disentangled.norm:
                yield from self._norm_shapes("rel_norm", self.dim)
        for number, layer in enumerate(self.layers):
            if self._first(number) == number:
                for name, shape in self._block_shapes(number, layer):
                    yield f"blocks.{number}.{name}", shape
        if self.final_norm:
            yield from self._norm_shapes("final_norm", self.dim)
        if self.projects_first:
            yield "final_proj.weight", (self.dim, self.out_dim)
        if self.head is not None:
            yield from self.head.shapes(self.out_dim)

    @property
    def out_dim(self) -> int:
        """The size of the last hidden states: D, or E if a projection follows the final norm."""
        return self.embed_dim if self.projects_first and self.embed_dim else self.dim

    def build(self, parameters: Arrays) -> Transformer:
        """Return the transformer with these parameters, which are not copied."""
        firsts = [self._first(number) for number in range(len(self.layers))]
        blocks = {
            first: self._block(first, self.layers[first], parameters) for first in set(firsts)
        }
        return Transformer(
            Embedding(
                parameters["embed.weight"],
                positions=parameters.get("pos_embed.weight"),
                token_types=parameters.get("token_type_embed.weight"),
                norm=self.norm(parameters, "embed_norm"),
                projection={n: a for n, a in parameters.items() if n.startswith("embed_proj.")},
                projects_first=self.projects_first,
                scale=self.embed_scale,
                first_position=self.first_position,
                padding=self.padding,
                counted=self.counted,
            ),
            [blocks[first] for first in firsts],
            options=[
                self._options(first, layer, parameters)
                for first, layer in zip(firsts, self.layers, strict=True)
            ],
            same_as=firsts,
            bias=None
            if self.buckets is None
            else self.buckets.with_table(parameters["relative_bias.weight"]),
            relative=None
            if self.disentangled is None
            else self.disentangled.with_table(
                parameters["rel_embed.weight"], self.norm(parameters, "rel_norm")
            ),
            final_norm=self.norm(parameters, "final_norm"),
            final_proj={n: a for n, a in parameters.items() if n.startswith("final_proj.")},
            head=None if self.head is None else self.head.build(parameters, norm=self.norm),
        )

    def _first(self, number: int) -> int:
        """Return the first layer that uses the parameters of this layer."""
        return self.same_as[number] if self.same_as else number

    def _block_shapes(self, number: int, layer: Attention) -> Iterator[tuple[str, Shape]]:
        """Yield the name (within the layer) and the shape of each parameter of one layer."""
        dim, size = self.dim, layer.head_size
        wide, narrow = layer.num_heads * size, layer.num_kv_heads * size
        for attn in ("attn", "cross_attn") if self.cross else ("attn",):
            for name, columns in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
                yield from shapes_of(f"{attn}.{name}", dim, columns, bias=self.qkv_bias)
            yield from shapes_of(f"{attn}.out_proj", wide, dim, bias=self.out_bias)
        relative = {} if self.disentangled is None else self.disentangled.projections
        for name in relative.values():
            if name.startswith("pos_"):
                yield from shapes_of(f"attn.{name}", dim, wide, bias=self.qkv_bias)
        if layer.qk_norm != "no":
            sizes = (wide, narrow) if layer.qk_norm == "width" else (size, size)
            counts = layer.num_heads, layer.num_kv_heads
            for name, columns, count in zip("qk", sizes, counts, strict=True):
                if layer.qk_norm == "each":
                    each = f"attn.{name}_norm.{{}}.weight"
                    yield from ((each.format(head), (size,)) for head in range(count))
                else:
                    yield from self._norm_shapes(f"attn.{name}_norm", columns)
        if layer.sinks:
            yield "attn.sinks", (layer.num_heads,)
        if (number > 0 or self.first_norm) and self.norms not in ("behind", "none"):
            yield from self._norm_shapes("norm1", dim)
        if self.cross:
            yield from self._norm_shapes("norm_cross", dim)
        if self.hidden:
            yield from self._mlp_shapes(number)
            if self.mlp_norm and self.norms not in ("behind", "none"):
                yield from self._norm_shapes("norm2", dim)
        if self.norms in ("both", "behind"):
            yield from self._norm_shapes("out_norm1", dim)
            yield from self._norm_shapes("out_norm2", dim)
        if self.conv is not None and number == 0:
            yield "conv.weight", (dim, dim // self.conv.groups, self.conv.size)
            yield "conv.bias", (dim,)
            yield from self._norm_shapes("conv_norm", dim)
        if self.layer_scale:
            yield "scale1.weight", (dim,)
            if self.hidden:
                yield "scale2.weight", (dim,)

    def _mlp_shapes(self, number: int) -> Iterator[tuple[str, Shape]]:
        """Yield the names and shapes of the parameters of the MLP or of the experts."""
        dim, hidden = self.dim, self.hidden
        experts = None if self.experts is None else self.experts.shapes(number, dim, hidden)
        if experts is not None:
            yield from ((f"mlp.{name}", shape) for name, shape in experts)
            return
        for name, size in mlp_sizes(dim, hidden, gated=self.gated).items():
            bias = name == "down_proj" if self.mlp_bias == "down" else self.mlp_bias
            yield from shapes_of(f"mlp.{name}", *size, bias=bias)

    def _norm_shapes(self, name: str, size: int) -> Iterator[tuple[str, Shape]]:
        """Yield the name and shape of a norm's weight, and of its bias if norms have biases."""
        if self.norm_weight:
            yield from shapes_of(name, size, bias=self.norm_bias and not self.rms)

    def _block(self, number: int, layer: Attention, parameters: Arrays) -> Block:
        """Build layer `number` from the parameters whose names begin with "blocks.{number}."."""
        arrays = under(parameters, f"blocks.{number}.")
        inside = {n: a for n, a in under(arrays, "attn.").items() if "_proj." in n}
        relative = {name: inside.pop(name) for name in [*inside] if name.startswith("pos_")}
        attn = MultiHeadAttention.from_parameters(
            inside,
            num_heads=layer.num_heads,
            rotary=layer.rotary,
            q_norm=self._qk_norm(arrays, "attn.q_norm", layer),
            k_norm=self._qk_norm(arrays, "attn.k_norm", layer),
            clip=layer.clip,
        )
        attn.parameters |= relative
        norms = ("norm1", "norm2", "out_norm1", "out_norm2", "conv_norm")
        others: dict[str, Any] = {name: self.norm(arrays, name) for name in norms}
        for name in ("scale1", "scale2"):
            scale = under(arrays, f"{name}.")
            others[name] = LayerScale.from_parameters(scale) if scale else None
            if self.residual_scale != 1:
                others[name] = LayerScale.constant(self.dim, self.residual_scale)
        if self.conv is not None and number == 0:
            others["conv"] = Convolution(under(arrays, "conv."), self.conv.activation)
        block = Block(
            attn,
            mlp=self._mlp(under(arrays, "mlp.")) if self.hidden else None,
            post_norm=self.norms == "after",
            parallel=self.parallel,
            **others,
        )
        norm_cross = self.norm(arrays, "norm_cross")
        if norm_cross is None:
            return block
        cross_attn = MultiHeadAttention.from_parameters(
            under(arrays, "cross_attn."), num_heads=layer.num_heads
        )
        options = {name: value for name, value in layer.options.items() if name == "scale"}
        return DecoderBlock(block, CrossAttention(cross_attn, options), norm_cross)

    def _qk_norm(self, parameters: Arrays, name: str, layer: Attention) -> Any:
        """Return the norm of queries or keys."""
        if layer.qk_norm != "each":
            return self.norm(parameters, name)
        weights = under(parameters, f"{name}.")
        each = [{"weight": weights[f"{head}.weight"]} for head in range(len(weights))]
        return HeadNorms([LayerNorm.from_parameters(one, eps=self.eps) for one in each])

    def _mlp(self, parameters: Arrays) -> Feed:
        """Return the MLP of a layer, or the experts that replace the MLP."""
        if self.experts is not None and "router_proj.weight" in parameters:
            return self.experts.build(parameters, self.activation)
        return MLP.from_parameters(parameters, activation=self.activation)

    def norm(self, parameters: Arrays, name: str) -> Norm | None:
        """Return the norm with this name; None if the norm has no parameters."""
        arrays = under(parameters, f"{name}.")
        if not self.norm_weight and name in ("norm1", "norm2", "final_norm"):
            return LayerNorm(self.dim, eps=self.eps, affine=False)
        if not arrays:
            return None
        if self.rms:
            return RMSNorm.from_parameters(arrays, eps=self.eps, offset=self.norm_offset)
        return LayerNorm.from_parameters(arrays, eps=self.eps)

    def _options(self, number: int, layer: Attention, parameters: Arrays) -> dict[str, Any]:
        """Return the options of `qkv.attention` in one layer."""
        options = dict(layer.options)
        if layer.alibi:
            options["alibi_slopes"] = alibi_slopes(layer.num_heads) * layer.alibi
        if layer.sinks:
            options["sinks"] = parameters[f"blocks.{number}.attn.sinks"]
        return options


def under(parameters: Arrays, prefix: str) -> dict[str, Array]:
    """Return the parameters whose names begin with `prefix`, keyed by the rest of the name."""
    return {
        name.removeprefix(prefix): array
        for name, array in parameters.items()
        if name.startswith(prefix)
    }


@dataclass(frozen=True, kw_only=True)
class VisionDesign(Design):
    """A transformer for images: one token for the whole image, then one token per patch.

    Attributes:
        channels: C, the number of channels of an image.
        image: the height and width of an image.
        patch: the height and width of a patch; pixels at the bottom and right edges that do not
            fill a patch are ignored.
        any_size: whether images may have a size other than `image`. For such images, the
            position vectors of the patches are interpolated.
        patch_bias: whether the linear layer from a patch to its vector has a bias.
        batched: whether the files store the first token's vector and the position vectors with
            leading dimensions of 1. For example, the array of the first token has shape (1, 1, D)
            instead of (D,).
    """

    last_is_normed: bool = False
    channels: int
    image: tuple[int, int]
    patch: tuple[int, int]
    any_size: bool = False
    patch_bias: bool = True
    batched: bool = True

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and columns of patches in an image."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield names and shapes of parameters one by one, because a list of them could be huge."""
        rows, columns = self.grid
        positions = rows * columns + 1, self.dim
        yield "embed.weight", (1, 1, self.dim) if self.batched else (self.dim,)
        yield "patch_embed.weight", (self.dim, self.channels, *self.patch)
        if self.patch_bias:
            yield "patch_embed.bias", (self.dim,)
        yield "pos_embed.weight", (1, *positions) if self.batched else positions
        yield from (part for part in super().shapes() if part[0] != "embed.weight")

    def build(self, parameters: Arrays) -> Transformer:
        """Return the model with these parameters, which are not copied."""
        network = super().build(parameters)
        network.embedding = PatchEmbedding(
            table=parameters["embed.weight"],
            weight=parameters["patch_embed.weight"],
            bias=parameters.get("patch_embed.bias"),
            positions=parameters["pos_embed.weight"],
            norm=self.norm(parameters, "embed_norm"),
            grid=self.grid if self.any_size else None,
        )
        return network


@dataclass(frozen=True)
class Seq2SeqDesign:
    """An encoder, a decoder whose layers attend to the encoder, and a shared token table.

    Attributes:
        encoder: the encoder's design; its head is not used.
        decoder: the decoder's design, in which `cross` is True.
        start: the id of the decoder's first token.
        head: the output head, which reads the decoder's last vectors.
    """

    encoder: Design
    decoder: Design
    start: int
    head: Head | None = None

    @property
    def last_is_normed(self) -> bool:
        """Whether the last hidden states of encoder and decoder are normalised."""
        return self.encoder.last_is_normed

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in the encoder's text."""
        return self.encoder.max_seq_length

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield names and shapes of parameters one by one, because a list of them could be huge."""
        for side, design in zip(SIDES, (self.encoder, self.decoder), strict=True):
            for name, shape in design.shapes():
                if name != "embed.weight":
                    yield f"{side}.{name}", shape
                elif side == "encoder":
                    yield name, shape
        if self.head is not None:
            yield from self.head.shapes(self.decoder.dim)

    def build(self, parameters: Arrays) -> EncoderDecoder:
        """Return the encoder and the decoder with these parameters, which are not copied."""
        table = {"embed.weight": parameters["embed.weight"]}
        encoder, decoder = (
            design.build(under(parameters, f"{side}.") | table)
            for side, design in zip(SIDES, (self.encoder, self.decoder), strict=True)
        )
        if self.head is not None:
            decoder.head = self.head.build(parameters, norm=self.decoder.norm)
        return EncoderDecoder(encoder, decoder, self.start)


@dataclass(frozen=True)
class DualDesign:
    """A transformer for texts and a transformer for images, with comparable output vectors.

    Each transformer has a head, which computes these vectors.

    Attributes:
        text: the transformer for texts.
        vision: the transformer for images.
    """

    text: Design
    vision: VisionDesign

    @property
    def head(self) -> Head | None:
        """The head of the transformer for texts."""
        return self.text.head

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in a text."""
        return self.text.max_seq_length

    @property
    def last_is_normed(self) -> bool:
        """Whether the last hidden state of a text is normalised by the final norm."""
        return self.text.last_is_normed

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield names and shapes of parameters one by one, because a list of them could be huge."""
        for tower, design in zip(TOWERS, (self.text, self.vision), strict=True):
            for name, shape in design.shapes():
                yield f"{tower}.{name}", shape
        yield SCALE, ()

    def build(self, parameters: Arrays) -> Transformer:
        """Return the transformer for texts with these parameters, which are not copied."""
        return self.text.build(under(parameters, "text."))


AnyDesign = Design | Seq2SeqDesign | DualDesign
