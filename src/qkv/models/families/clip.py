"""CLIP: two towers, one for texts and one for images, whose vectors can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.models.families import vit
from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.network.design import Attention, Design
from qkv.models.network.designs import SCALE, TOWERS, DualDesign, VisionDesign
from qkv.models.network.head import Head

_OLD_END = 2  # the first configs give this id for the token that ends a text; it is wrong


def text(config: Config) -> Design:
    """Return the design of the tower for texts, by default that of clip-vit-base-patch32."""
    positions = config.size("max_position_embeddings", 77)
    end = config.whole("eos_token_id", 49407)
    shared = tower(config, dim=512, heads=8, hidden=2048, causal=True)
    return Design(
        **shared,
        vocabulary=config.size("vocab_size", 49408),
        max_seq_length=positions,
        positions=positions,
        last_is_normed=False,
        head=Head(
            **projection(config, shared["dim"]), pool="end", end=None if end == _OLD_END else end
        ),
    )


def vision(config: Config) -> VisionDesign:
    """Return the design of the tower for images, by default that of clip-vit-base-patch32."""
    shared = tower(config, dim=768, heads=12, hidden=3072)
    return VisionDesign(
        **shared,
        vocabulary=1,
        embed_norm=True,
        final_norm=False,
        head=Head(**projection(config, shared["dim"]), pool="cls", norm=True),
        **vit.cut(config, patch=32),
        patch_bias=False,
        batched=False,
    )


def tower(
    config: Config, *, dim: int, heads: int, hidden: int, causal: bool = False
) -> dict[str, Any]:
    """Return the fields that both towers have; the sizes are those of keys left out."""
    dim = config.size("hidden_size", dim)
    heads = config.heads(dim, heads)
    attention = Attention(heads, heads, dim // heads, options={"is_causal": True} if causal else {})
    return {
        "dim": dim,
        "hidden": config.size("intermediate_size", hidden),
        "activation": config.activation("hidden_act", "quick_gelu"),
        "eps": config.positive("layer_norm_eps", 1e-5),
        "layers": (attention,) * config.layers("num_hidden_layers", 12),
    }


def projection(config: Config, dim: int) -> dict[str, Any]:
    """Return the fields of a head that projects, for the classes of models that have one."""
    projects = config.architecture().endswith("WithProjection")
    outputs = config.size("projection_dim", 512) if projects else dim
    return {"outputs": outputs, "embeds": True, "projects": projects}


def design(config: Config) -> DualDesign | VisionDesign:
    """Return the design of both towers, or of the one for images with a classifier."""
    known = config.architecture() in ("", "CLIPModel", CLASSIFIER)
    named = config.values.get("architectures")
    config.need(known, "architectures", named, f"CLIPModel or {CLASSIFIER}", 80)
    both = DualDesign(read(config, "text"), read(config, "vision"))
    if config.architecture() == CLASSIFIER:
        return replace(both.vision, head=Head(config.labels(), bias=True, pool="patches"))
    return both


def read(config: Config, side: str) -> Any:
    """Return the design of a tower, and warn of keys in its config that are not known."""
    own = Config(values(config, side), f"{config.source}: {side}_config")
    design = DESIGNS[side](own)
    own.finish(HARMLESS)
    return design


def values(config: Config, side: str) -> dict[str, Any]:
    """Return the config of a tower, as that of a model of its own.

    Old files have it twice. As in `transformers`, the second one then sets all keys that the design
    reads, also by leaving them out; the first one sets the other keys.
    """
    source, kind = f"{config.source}: {side}_config", f"clip_{side}_model"
    merged = config.table(f"{side}_config")
    Config(merged, source).only("model_type", kind)
    if config.given(f"{side}_config_dict", None) is not None:
        second = Config(config.table(f"{side}_config_dict"), f"{source}_dict")
        DESIGNS[side](second)
        rest = {key: value for key, value in merged.items() if key not in second.used}
        merged = {**rest, **second.values}
    return {
        **merged,
        "architectures": [f"CLIP{side.capitalize()}ModelWithProjection"],
        "model_type": kind,
        "projection_dim": config.size("projection_dim", 512),
    }


def towers(config: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Return the config of each tower, from that of both."""
    whole = Config(config, source)
    return {side: values(whole, side) for side in TOWERS}


def names(config: Config) -> dict[str, str]:
    """Return our names with those in files of both towers."""
    images = in_files(VISION_NAMES, "vision_model.")
    if config.architecture() == CLASSIFIER:
        return {**images, "head.out_proj": "classifier"}
    both = {"text": in_files(TEXT_NAMES, "text_model."), "vision": images}
    joined = {f"{side}.{ours}": name for side in TOWERS for ours, name in both[side].items()}
    return {**joined, SCALE: SCALE}


def in_files(parts: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the names of a tower's parts, all but the projection with this prefix."""
    return {
        ours: theirs if ours == "head.out_proj" else f"{prefix}{theirs}"
        for ours, theirs in parts.items()
    }


CLASSIFIER = "CLIPForImageClassification"
DESIGNS = {"text": text, "vision": vision}
_BLOCKS = {
    "blocks.*.norm1": "encoder.layers.*.layer_norm1",
    **projections("encoder.layers.*.self_attn.", "q_proj", "k_proj", "v_proj", "out_proj"),
    "blocks.*.norm2": "encoder.layers.*.layer_norm2",
    "blocks.*.mlp.up_proj": "encoder.layers.*.mlp.fc1",
    "blocks.*.mlp.down_proj": "encoder.layers.*.mlp.fc2",
}
TEXT_NAMES = {
    "embed": "embeddings.token_embedding",
    "pos_embed": "embeddings.position_embedding",
    **_BLOCKS,
    "final_norm": "final_layer_norm",
    "head.out_proj": "text_projection",
}
VISION_NAMES = {
    "embed.weight": "embeddings.class_embedding",
    "patch_embed": "embeddings.patch_embedding",
    "pos_embed": "embeddings.position_embedding",
    "embed_norm": "pre_layrnorm",
    **_BLOCKS,
    "head.norm": "post_layernorm",
    "head.out_proj": "visual_projection",
}
# `transformers` once wrote these options of generation into each of the two configs.
HARMLESS = (
    *("bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty"),
    *("do_sample", "dropout", "early_stopping", "encoder_no_repeat_ngram_size", "max_length"),
    *("exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id"),
    *("length_penalty", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams"),
    *("num_return_sequences", "output_scores", "projection_dim", "remove_invalid_values"),
    *("repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature"),
    *("tf_legacy_loss", "top_k", "top_p", "typical_p"),
)
_family = partial(Family, unused=(r"(.*\.)?embeddings\.position_ids",), harmless=HARMLESS)
CLIP_TEXT = _family(
    model_type="clip_text_model",
    design=text,
    names=TEXT_NAMES,
    prefix="text_model.",
    body=("embeddings.", "encoder.", "final_layer_norm."),
)
CLIP_VISION = _family(
    model_type="clip_vision_model",
    design=vision,
    names=VISION_NAMES,
    prefix="vision_model.",
    body=("embeddings.", "encoder.", "pre_layrnorm.", "post_layernorm."),
)
CLIP = _family(
    model_type="clip",
    design=design,
    names=names,
    body=(
        *("text_model.", "vision_model.embeddings.", "vision_model.encoder."),
        "vision_model.pre_layrnorm.",
    ),
    harmless=("logit_scale_init_value",),
)
FAMILIES = (CLIP, CLIP_TEXT, CLIP_VISION)
