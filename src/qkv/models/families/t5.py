"""T5 and mT5: encoder and decoder, with biases by distance in place of positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qkv.models.files.config import ACTIVATIONS, Config
from qkv.models.files.names import Family, projections
from qkv.models.network.design import Attention, Design
from qkv.models.network.designs import Seq2SeqDesign
from qkv.models.network.head import Head
from qkv.models.network.relative_bias import Buckets

T5_SMALL = {"vocab_size": 32128, "num_layers": 6, "num_heads": 8, "d_ff": 2048}
MT5_SMALL = {"vocab_size": 250112, "num_layers": 8, "num_heads": 6, "d_ff": 1024}
# Whether the MLP has a gate, and its activation.
FEEDS = {
    **{name: (False, name) for name in ACTIVATIONS},
    **{f"gated-{name}": (True, name) for name in ACTIVATIONS},
    "gated-gelu": (True, "gelu_new"),
}


def design(config: Config) -> Design | Seq2SeqDesign:
    """Return the design of a T5; keys that are left out have the values of t5-small."""
    tied = config.flag("tie_word_embeddings", True)  # T5 1.1 is neither tied nor scaled
    scaled = config.flag("scale_decoder_outputs", tied)
    return either(config, T5_SMALL, scaled=scaled)


def either(
    config: Config, sizes: Mapping[str, int], *, scaled: bool, feed: str = "relu"
) -> Design | Seq2SeqDesign:
    """Return the design of both sides or of the encoder alone.

    `sizes` and `feed` are the values of keys that the config leaves out.
    """
    gated, activation = config.choice("feed_forward_proj", FEEDS, feed)
    dim = config.size(config.spelling("d_model", "hidden_size"), 512)
    count = config.size(config.spelling("num_heads", "num_attention_heads"), sizes["num_heads"])
    size = config.size(config.spelling("d_kv", "head_dim"), 64)
    vocabulary = config.size("vocab_size", sizes["vocab_size"])
    buckets = config.size("relative_attention_num_buckets", 32, least=4)
    # half of the buckets have one distance each; the others share the longer ones
    furthest = config.size("relative_attention_max_distance", 128, least=buckets // 2 + 1)
    layers = config.layers(config.spelling("num_layers", "num_hidden_layers"), sizes["num_layers"])
    same = config.size_or_none("num_decoder_layers") is None
    written = layers if same else config.layers("num_decoder_layers", layers)
    attention = Attention(count, count, size, options={"scale": 1.0})
    encoder = Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size("d_ff", sizes["d_ff"]),
        activation=config.activation("dense_act_fn", activation),
        eps=config.positive("layer_norm_epsilon", 1e-6),
        layers=(attention,) * layers,
        rms=True,
        gated=config.flag("is_gated_act", gated),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        buckets=Buckets(buckets, furthest),
        head=None if config.head() != "TokenClassification" else Head(config.labels(), bias=True),
    )
    if alone(config):
        return encoder
    words = Head(vocabulary, tied=True, scale=dim**-0.5 if scaled else 1.0)
    causal = replace(attention, options={"scale": 1.0, "is_causal": True})
    return Seq2SeqDesign(
        encoder,
        replace(
            encoder,
            layers=(causal,) * written,
            buckets=Buckets(buckets, furthest, both_ways=False),
            cross=True,
        ),
        start=config.whole("decoder_start_token_id", 0),
        head=words if config.head() == "ConditionalGeneration" else None,
    )


def alone(config: Config) -> bool:
    """Return whether there is only an encoder."""
    both, named = config.flag("is_encoder_decoder", True), config.architecture()
    encoder = named.endswith("EncoderModel") or config.head() == "TokenClassification"
    if named and not encoder:
        config.only("is_encoder_decoder", True)
    return encoder or not both


def names(config: Config, feed: str = "relu") -> dict[str, str]:
    """Return our names with those in files."""
    top = "classifier" if config.head() == "TokenClassification" else "lm_head"
    gated = config.flag("is_gated_act", config.choice("feed_forward_proj", FEEDS, feed)[0])
    encoder = stack("encoder.", 1, gated)
    if alone(config):
        own = {name.removeprefix("encoder."): theirs for name, theirs in encoder.items()}
        return {**own, "embed": "shared", "head.out_proj": top}
    return {
        "embed": "shared",
        **encoder,
        **stack("decoder.", 2, gated),
        "decoder.blocks.*.norm_cross": "decoder.block.*.layer.1.layer_norm",
        **projections(
            "decoder.block.*.layer.1.EncDecAttention.",
            *("q", "k", "v", "o"),
            ours="decoder.blocks.*.cross_attn.",
        ),
        "head.out_proj": top,
    }


def stack(side: str, mlp: int, gated: bool) -> dict[str, str]:
    """Return the names of one side, whose MLP is sublayer number `mlp` of a layer."""
    block = f"{side}block.*.layer."
    feed = f"{block}{mlp}.DenseReluDense."
    gate = {f"{side}blocks.*.mlp.gate_proj": f"{feed}wi_0"} if gated else {}
    return {
        f"{side}relative_bias": f"{side}block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{side}blocks.*.norm1": f"{block}0.layer_norm",
        **projections(f"{block}0.SelfAttention.", "q", "k", "v", "o", ours=f"{side}blocks.*.attn."),
        f"{side}blocks.*.norm2": f"{block}{mlp}.layer_norm",
        **gate,
        f"{side}blocks.*.mlp.up_proj": f"{feed}wi_1" if gated else f"{feed}wi",
        f"{side}blocks.*.mlp.down_proj": f"{feed}wo",
        f"{side}final_norm": f"{side}final_layer_norm",
    }


T5 = Family(
    model_type="t5",
    design=design,
    names=names,
    prefix="transformer.",
    body=("shared.", "encoder.", "decoder."),
    unused=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    harmless=("decoder_start_token_id", "dropout_rate", "n_positions"),
)
MT5 = replace(
    T5,
    model_type="mt5",
    design=lambda config: either(config, MT5_SMALL, scaled=False, feed="gated-gelu"),
    names=lambda config: names(config, "gated-gelu"),
)
FAMILIES = (T5, MT5)
