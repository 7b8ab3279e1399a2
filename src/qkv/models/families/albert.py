"""ALBERT: a BERT whose layers share their parameters, all or in groups, with a narrower table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qkv.models.families import bert
from qkv.models.files.config import Config
from qkv.models.files.names import Family
from qkv.models.files.read import ModelError
from qkv.models.network.design import Design

XXLARGE = {
    **{"vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64},
    **{"num_hidden_layers": 12, "intermediate_size": 16384, "hidden_act": "gelu_new"},
}
_MOST_LAYERS = 10_000


def design(config: Config) -> Design:
    """The sizes of an ALBERT; keys that are left out have the values of the largest one."""
    found = bert.encoder(config, XXLARGE, token_types=config.size("type_vocab_size", 2))
    same_as = tuple(first for first, _, _ in places(config))
    head = bert.head(config, found.activation, vocabulary=30000)
    width = config.size("embedding_size", 128)
    return replace(
        found,
        embed_dim=width,
        layers=found.layers[:1] * len(same_as),
        same_as=same_as,
        head=replace(head, width=width) if head is not None and head.norm else head,
    )


def places(config: Config) -> Iterator[tuple[int, int, int]]:
    """For each layer the first one that has its parameters, and where these are in the files.

    That is a group, and a layer in it: a group is run through as a whole, as often as there are
    layers of the config that belong to it.
    """
    count = config.layers("num_hidden_layers", 12)
    groups = config.size("num_hidden_groups", 1)
    if groups > count:
        raise ModelError(
            f"{config.source}: num_hidden_groups is {groups} and num_hidden_layers is {count}: "
            "there can be no more groups than layers"
        )
    inner = config.size("inner_group_num", 1, most=_MOST_LAYERS // count)
    firsts: dict[int, int] = {}
    for layer in range(count):
        group = int(layer / (count / groups))  # rounded as in training
        first = firsts.setdefault(group, layer) * inner
        yield from ((first + part, group, part) for part in range(inner))


BLOCK = {
    **{"attn.q_proj": "attention.query", "attn.k_proj": "attention.key"},
    **{"attn.v_proj": "attention.value", "attn.out_proj": "attention.dense"},
    **{"norm1": "attention.LayerNorm", "norm2": "full_layer_layer_norm"},
    **{"mlp.up_proj": "ffn", "mlp.down_proj": "ffn_output"},
}


def names(config: Config) -> dict[str, str]:
    """What the files call the parts."""
    groups = "encoder.albert_layer_groups"
    blocks = {
        f"blocks.{first}.{ours}": f"{groups}.{group}.albert_layers.{one}.{theirs}"
        for first, group, one in places(config)
        for ours, theirs in BLOCK.items()
    }
    classes = config.head().endswith("Classification")
    return {
        **{ours: theirs for ours, theirs in bert.BODY.items() if "blocks." not in ours},
        "embed_proj": "encoder.embedding_hidden_mapping_in",
        **blocks,
        "head.dense_proj": "pooler" if classes else "predictions.dense",
        "head.norm": "predictions.LayerNorm",
        "head.out_proj": "classifier" if classes else "predictions.decoder",
    }


ALBERT = Family(
    model_type="albert",
    design=design,
    names=names,
    prefix="albert.",
    instead={"predictions.decoder.bias": "predictions.bias"},
    body=("embeddings.", "encoder."),
    unused=bert.BERT.unused,
    harmless=("classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type"),
)
