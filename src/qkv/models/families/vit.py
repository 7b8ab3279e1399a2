"""ViT and DINOv2: an image as patches, which are the tokens behind one for the whole image."""

from __future__ import annotations

from typing import Any

from qkv.models.files.config import Config
from qkv.models.files.names import Family, Fused, fused, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention
from qkv.models.network.designs import VisionDesign
from qkv.models.network.head import Head


def cut(config: Config, *, patch: int) -> dict[str, Any]:
    """Return the fields of a design that say how images are cut into patches.

    `patch` is the size of a patch, unless the config says otherwise.
    """
    image, part = config.pair("image_size", 224), config.pair("patch_size", patch)
    if part[0] > image[0] or part[1] > image[1]:
        raise ModelError(
            f"{config.source}: image_size is {image} and patch_size {part}: "
            "a patch must fit into the image"
        )
    return {"channels": config.size("num_channels", 3), "image": image, "patch": part}


def encoder(config: Config, *, eps: float, **fields: Any) -> VisionDesign:
    """Return the design that ViT and DINOv2 share.

    Args:
        config: the model's config. Keys that it leaves out have the values of the base models.
        eps: of the norms, unless the config says otherwise.
        fields: fields of the design that differ in this family.
    """
    dim = config.size("hidden_size", 768)
    size = config.size_or_none("head_dim")
    heads = config.heads(dim, 12) if size is None else config.size("num_attention_heads", 12)
    attention = Attention(heads, heads, size or dim // heads)
    return VisionDesign(
        vocabulary=1,
        dim=dim,
        eps=config.positive("layer_norm_eps", eps),
        layers=(attention,) * config.layers("num_hidden_layers", 12),
        qkv_bias=config.flag("qkv_bias", True),
        **fields,
    )


def vit(config: Config) -> VisionDesign:
    """Return the design of a ViT."""
    is_classifier = config.head() == "ImageClassification"
    return encoder(
        config,
        eps=1e-12,
        hidden=config.size("intermediate_size", 3072),
        activation=config.activation("hidden_act", "gelu"),
        head=Head(config.labels(), bias=True, pool="cls") if is_classifier else None,
        **cut(config, patch=16),
    )


_BODY = (
    *("embeddings.cls_token", "embeddings.patch_embeddings.", "embeddings.position_embeddings"),
    *("encoder.", "layernorm."),
)
_NAMES = {
    "embed.weight": "embeddings.cls_token",
    "patch_embed": "embeddings.patch_embeddings.projection",
    "pos_embed.weight": "embeddings.position_embeddings",
    **projections(
        "encoder.layer.*.attention.",
        *("attention.query", "attention.key", "attention.value", "output.dense"),
    ),
    "final_norm": "layernorm",
    "head.out_proj": "classifier",
}
VIT = Family(
    model_type="vit",
    design=vit,
    names={
        **_NAMES,
        "blocks.*.norm1": "encoder.layer.*.layernorm_before",
        "blocks.*.norm2": "encoder.layer.*.layernorm_after",
        "blocks.*.mlp.up_proj": "encoder.layer.*.intermediate.dense",
        "blocks.*.mlp.down_proj": "encoder.layer.*.output.dense",
    },
    prefix="vit.",
    body=_BODY,
    harmless=("encoder_stride", "pooler_act", "pooler_output_size"),
)


def dinov2(config: Config) -> VisionDesign:
    """Return the design of a DINOv2: a scale behind each part, images of any size."""
    parts = cut(config, patch=14)
    image, patch = parts["image"], parts["patch"]
    rows, columns = image[0] // patch[0], image[1] // patch[1]
    if rows != columns:
        raise ModelError(
            f"{config.source}: image_size is {image} and patch_size {patch}, {rows} x {columns} "
            "patches: positions are interpolated from as many rows as columns"
        )
    hidden = config.size("hidden_size", 768) * config.size("mlp_ratio", 4)
    gated, activation = (
        config.flag("use_swiglu_ffn", False),
        config.activation("hidden_act", "gelu"),
    )
    is_classifier = config.head() == "ImageClassification"
    return encoder(
        config,
        eps=1e-6,
        hidden=(hidden * 2 // 3 + 7) // 8 * 8 if gated else hidden,
        activation="silu" if gated else activation,
        gated=gated,
        layer_scale=True,
        head=Head(config.labels(), bias=True, pool="cls and mean") if is_classifier else None,
        any_size=True,
        **parts,
    )


def dinov2_names(config: Config) -> dict[str, str | Fused]:
    """Return our names with those in files."""
    block, mlp = "encoder.layer.*", "encoder.layer.*.mlp."
    gated = config.flag("use_swiglu_ffn", False)
    gate = fused(f"{mlp}weights_in", "blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj")
    return {
        **_NAMES,
        "blocks.*.norm1": f"{block}.norm1",
        "blocks.*.scale1.weight": f"{block}.layer_scale1.lambda1",
        "blocks.*.norm2": f"{block}.norm2",
        **(gate if gated else {"blocks.*.mlp.up_proj": f"{mlp}fc1"}),
        "blocks.*.mlp.down_proj": f"{mlp}weights_out" if gated else f"{mlp}fc2",
        "blocks.*.scale2.weight": f"{block}.layer_scale2.lambda1",
    }


DINOV2 = Family(
    model_type="dinov2",
    design=dinov2,
    names=dinov2_names,
    prefix="dinov2.",
    body=_BODY,
    harmless=(
        *("apply_layernorm", "drop_path_rate", "layerscale_value", "out_features", "out_indices"),
        *("_out_features", "_out_indices", "reshape_hidden_states", "stage_names"),
        "use_mask_token",  # of patches that are masked in training
    ),
)
FAMILIES = (VIT, DINOV2)
