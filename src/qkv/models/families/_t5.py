"""T5 and mT5: an encoder and a decoder, with relative biases instead of positions."""

from dataclasses import replace

from qkv.models.families._shared import read_families, stack
from qkv.models.files.config import Config
from qkv.models.files.names import PartNames, projections
from qkv.models.network import Buckets
from qkv.models.network.design import Attention, Design, Seq2SeqDesign
from qkv.models.network.head import Head
from qkv.ops.activation import CONFIG_NAMES

# For each value of `feed_forward_proj`: whether the MLP has a gate, and the MLP's activation.
FEEDS = {
    **{name: (False, name) for name in CONFIG_NAMES},
    **{f"gated-{name}": (True, name) for name in CONFIG_NAMES},
    "gated-gelu": (True, "gelu_new"),
}


def t5(config: Config) -> Design | Seq2SeqDesign:
    """Return the design of a T5."""
    tied = config.flag("tie_word_embeddings")  # T5 1.1 has a head with its own matrix.
    return both(config, scaled=config.flag("scale_decoder_outputs", tied))


def both(config: Config, *, scaled: bool = False) -> Design | Seq2SeqDesign:
    """Return the design of an encoder-decoder model, or of an encoder alone.

    Args:
        config: the model's config.
        scaled: whether the decoder's last vectors are scaled before the head.
    """
    gated, activation = config.choice("feed_forward_proj", FEEDS)
    heads, size = config.size("num_attention_heads"), config.size("head_dim")
    buckets = config.size("relative_attention_num_buckets", least=4)
    # In the decoder, each bucket of the first half holds one distance, from 0 to buckets / 2 - 1.
    # The other buckets hold larger distances, so the maximum distance must be above buckets / 2.
    furthest = config.size("relative_attention_max_distance", least=buckets // 2 + 1)
    layers = config.layers()
    same = config.size_or_none("num_decoder_layers") is None
    written = layers if same else config.layers("num_decoder_layers")
    attention = Attention(heads, heads, size, options={"scale": 1.0})
    encoder = Design(
        **stack(
            config,
            layers=(attention,) * layers,
            activation=config.choice("hidden_act", CONFIG_NAMES, activation),
            max_seq_length=None,
            rms=True,
            gated=config.flag("is_gated_act", gated),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            buckets=Buckets(buckets, furthest),
            head=Head(config.labels(), bias=True)
            if config.head() == "TokenClassification"
            else None,
        )
    )
    if alone(config):
        return encoder
    words = Head(encoder.vocabulary, tied=True, scale=encoder.dim**-0.5 if scaled else 1.0)
    causal = replace(attention, options={"scale": 1.0, "is_causal": True})
    return Seq2SeqDesign(
        encoder,
        replace(
            encoder,
            layers=(causal,) * written,
            buckets=Buckets(buckets, furthest, both_ways=False),
            cross=True,
        ),
        start=config.whole("decoder_start_token_id"),
        head=words if config.head() == "ConditionalGeneration" else None,
    )


def alone(config: Config) -> bool:
    """Return whether the model is an encoder without a decoder."""
    both, named = config.flag("is_encoder_decoder", True), config.architecture()
    encoder = named.endswith("EncoderModel") or config.head() == "TokenClassification"
    if named and not encoder:
        config.only("is_encoder_decoder", True)
    return encoder or not both


def names(base: PartNames, config: Config) -> PartNames:
    """Return the parameter names of the encoder and of the decoder, if any."""
    gated = config.flag("is_gated_act", config.choice("feed_forward_proj", FEEDS)[0])
    encoder = side_names("encoder.", 1, gated)
    if alone(config):
        return {**base, **{name.removeprefix("encoder."): there for name, there in encoder.items()}}
    cross = projections(
        "decoder.block.*.layer.1.EncDecAttention.",
        *("q", "k", "v", "o"),
        ours="decoder.blocks.*.cross_attn.",
    )
    return {
        **base,
        **encoder,
        **side_names("decoder.", 2, gated),
        "decoder.blocks.*.norm_cross": "decoder.block.*.layer.1.layer_norm",
        **cross,
    }


def side_names(side: str, mlp: int, gated: bool) -> dict[str, str]:
    """Return the parameter names of the encoder or decoder.

    In the files, each block has numbered sublayers; `mlp` is the number of the MLP's sublayer.
    """
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


FAMILIES = read_families("t5.toml", {"t5": t5, "mt5": both}, t5=names, mt5=names)
