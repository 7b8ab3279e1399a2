"""OPT: a GPT-2 of ReLU whose positions count the tokens that are shown, from the third row on."""

from __future__ import annotations

from dataclasses import replace

from qkv.models.families import gpt2
from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention, Design

_FIRST = 2  # the row of the first position


def design(config: Config) -> Design:
    """The sizes of an OPT; keys that are left out have the values of opt-125m."""
    dim = config.size("hidden_size", 768)
    heads = config.heads(dim, 12)
    vocabulary = config.size("vocab_size", 50272)
    positions = config.size("max_position_embeddings", 2048)
    embedded = config.size_or_none("word_embed_proj_dim") or dim
    projects, head = embedded != dim, gpt2.head(config, vocabulary)
    if projects and head is None:
        raise ModelError(
            f"{config.source}: word_embed_proj_dim is {embedded} and hidden_size is {dim}: qkv "
            "projects the last vectors in a head alone: take the model with its head "
            "(architectures says OPTForCausalLM), or both must be the same"
        )
    if projects and head is not None:
        head = replace(head, dense=True, width=embedded, dense_bias=False)
    config.only("layer_norm_elementwise_affine", True)
    before, bias = config.flag("do_layer_norm_before", True), config.flag("enable_bias", True)
    removed = config.flag("_remove_final_layer_norm", False)
    attention = Attention(heads, heads, dim // heads, options={"is_causal": True})
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size("ffn_dim", 3072),
        activation=config.activation("activation_function", "relu"),
        eps=1e-5,
        layers=(attention,) * config.layers("num_hidden_layers", 12),
        max_seq_length=positions,
        positions=positions + _FIRST,
        first_position=_FIRST,
        counted=True,
        embed_dim=embedded if projects else None,
        embed_bias=False,
        projects_first=projects,
        norms="before" if before else "after",
        final_norm=before and not removed,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        head=head,
    )


OPT = Family(
    model_type="opt",
    design=design,
    names=lambda config: {
        "embed": "decoder.embed_tokens",
        "pos_embed": "decoder.embed_positions",
        "blocks.*.norm1": "decoder.layers.*.self_attn_layer_norm",
        **projections("decoder.layers.*.self_attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
        "blocks.*.norm2": "decoder.layers.*.final_layer_norm",
        "blocks.*.mlp.up_proj": "decoder.layers.*.fc1",
        "blocks.*.mlp.down_proj": "decoder.layers.*.fc2",
        "final_norm": "decoder.final_layer_norm",
        "embed_proj": "decoder.project_in",
        "head.dense_proj": "decoder.project_out",
        "head.out_proj": "score" if config.head() == "SequenceClassification" else "lm_head",
    },
    prefix="model.",
    body=("decoder.",),
    harmless=("dropout", "init_std", "layerdrop"),
)
