"""DINOv2: a ViT with a learned scale behind each part, for images of any size."""

from __future__ import annotations

from qkv.models.families import vit
from qkv.models.files.config import Config
from qkv.models.files.names import Family, Fused, fused, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention
from qkv.models.network.head import Head
from qkv.models.network.vision_design import VisionDesign


def design(config: Config) -> VisionDesign:
    """The sizes of a DINOv2; keys that are left out have the values of dinov2-base."""
    dim = config.size("hidden_size", 768)
    size = config.size_or_none("head_dim")
    heads = config.heads(dim, 12) if size is None else config.size("num_attention_heads", 12)
    image, patch = vit.cut(config, patch=14)
    rows, columns = image[0] // patch[0], image[1] // patch[1]
    if rows != columns:
        raise ModelError(
            f"{config.source}: image_size is {image} and patch_size {patch}, {rows} x {columns} "
            "patches: positions are interpolated from as many rows as columns"
        )
    size = size or dim // heads
    hidden, gated = dim * config.size("mlp_ratio", 4), config.flag("use_swiglu_ffn", False)
    activation = config.activation("hidden_act", "gelu")
    is_classifier = config.head() == "ImageClassification"
    return VisionDesign(
        vocabulary=1,
        dim=dim,
        hidden=(hidden * 2 // 3 + 7) // 8 * 8 if gated else hidden,
        activation="silu" if gated else activation,
        eps=config.positive("layer_norm_eps", 1e-6),
        layers=(Attention(heads, heads, size),) * config.layers("num_hidden_layers", 12),
        gated=gated,
        qkv_bias=config.flag("qkv_bias", True),
        layer_scale=True,
        head=Head(config.labels(), bias=True, pool="cls and mean") if is_classifier else None,
        channels=config.size("num_channels", 3),
        image=image,
        patch=patch,
        any_size=True,
    )


def names(config: Config) -> dict[str, str | Fused]:
    """What the files call the parts."""
    mlp = "encoder.layer.*.mlp."
    plain: dict[str, str | Fused] = {
        "blocks.*.mlp.up_proj": f"{mlp}fc1",
        "blocks.*.mlp.down_proj": f"{mlp}fc2",
    }
    gated: dict[str, str | Fused] = {
        **fused(f"{mlp}weights_in", "blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj"),
        "blocks.*.mlp.down_proj": f"{mlp}weights_out",
    }
    return {
        "embed.weight": "embeddings.cls_token",
        "pos_embed.weight": "embeddings.position_embeddings",
        "patch_embed": "embeddings.patch_embeddings.projection",
        "blocks.*.norm1": "encoder.layer.*.norm1",
        **projections(
            "encoder.layer.*.attention.",
            *("attention.query", "attention.key", "attention.value", "output.dense"),
        ),
        "blocks.*.scale1.weight": "encoder.layer.*.layer_scale1.lambda1",
        "blocks.*.norm2": "encoder.layer.*.norm2",
        **(gated if config.flag("use_swiglu_ffn", False) else plain),
        "blocks.*.scale2.weight": "encoder.layer.*.layer_scale2.lambda1",
        "final_norm": "layernorm",
        "head.out_proj": "classifier",
    }


DINOV2 = Family(
    model_type="dinov2",
    design=design,
    names=names,
    prefix="dinov2.",
    body=vit.VIT.body,
    harmless=(
        *("apply_layernorm", "drop_path_rate", "layerscale_value", "out_features", "out_indices"),
        *("_out_features", "_out_indices", "reshape_hidden_states", "stage_names"),
        "use_mask_token",  # of patches that are hidden in training
    ),
)
