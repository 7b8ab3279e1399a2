"""GPT-Neo: a GPT-2 whose scores are not scaled, with windows in some layers."""

from __future__ import annotations

from qkv.models.families import gpt2
from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.files.read import ModelError, is_whole
from qkv.models.network.design import Attention, Design

_KINDS = ("global", "local")


def design(config: Config) -> Design:
    """The sizes of a GPT-Neo; keys that are left out have the values of gpt-neo-1.3B."""
    dim = config.size("hidden_size", 2048)
    heads = config.heads(dim, 16, key=config.spelling("num_heads", "num_attention_heads"))
    vocabulary = config.size("vocab_size", 50257)
    positions = config.size("max_position_embeddings", 2048)
    far = Attention(heads, heads, dim // heads, options={"is_causal": True, "scale": 1.0})
    near = far.within(config.size("window_size", 256))
    return Design(
        vocabulary=vocabulary,
        dim=dim,
        hidden=config.size_or_none("intermediate_size") or 4 * dim,
        activation=config.activation("activation_function", "gelu_new"),
        eps=config.positive("layer_norm_epsilon", 1e-5),
        layers=tuple(near if kind == "local" else far for kind in kinds(config)),
        max_seq_length=positions,
        positions=positions,
        qkv_bias=False,
        head=gpt2.head(config, vocabulary),
    )


def kinds(config: Config) -> list[str]:
    """What each layer attends to, of pairs [kinds of layers, how often these in a row].

    >>> values = {"num_layers": 3, "attention_types": [[["global", "local"], 1], [["global"], 1]]}
    >>> kinds(Config(values, "config.json"))
    ['global', 'local', 'global']
    """
    key = config.spelling("num_layers", "num_hidden_layers")
    count, types = config.layers(key, 24), config.given("attention_types", [[[*_KINDS], 12]])
    must = f'pairs like [["global", "local"], 12], together one for each of the {count} ({key})'
    fine = isinstance(types, list)
    found: list[str] = []
    for pair in types if fine else ():
        fine = fine and isinstance(pair, list) and len(pair) == 2
        fine = fine and isinstance(pair[0], list) and set(map(str, pair[0])) <= {*_KINDS}
        fine = fine and is_whole(pair[1]) and 0 <= pair[1] * len(pair[0]) <= count - len(found)
        found += [*pair[0]] * pair[1] if fine else []
    config.need(fine and len(found) == count, "attention_types", types, must, 80)
    again = config.given("attention_layers", found)  # which old files have beside it
    if again != found:
        raise ModelError(
            f"{config.source}: attention_layers is {again!r:.80} and attention_types says "
            f"{found!r:.80}: they are two names for one thing"
        )
    return found


GPT_NEO = Family(
    model_type="gpt_neo",
    design=design,
    names=lambda config: {
        "embed": "wte",
        "pos_embed": "wpe",
        "blocks.*.norm1": "h.*.ln_1",
        **projections("h.*.attn.attention.", "q_proj", "k_proj", "v_proj", "out_proj"),
        "blocks.*.norm2": "h.*.ln_2",
        "blocks.*.mlp.up_proj": "h.*.mlp.c_fc",
        "blocks.*.mlp.down_proj": "h.*.mlp.c_proj",
        "final_norm": "ln_f",
        "head.out_proj": "score" if config.head() == "SequenceClassification" else "lm_head",
    },
    prefix="transformer.",
    body=("wte.", "wpe.", "h.", "ln_f."),
    unused=(r"h\.\d+\.attn\.attention\.(masked_)?bias",),
    harmless=(*gpt2.HARMLESS, "embed_dropout", "resid_dropout"),
)
