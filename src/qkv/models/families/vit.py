"""ViT: an image cut into patches, which are the tokens behind one that stands for the whole."""

from __future__ import annotations

from qkv.models.files.config import Config
from qkv.models.files.names import Family, projections
from qkv.models.files.read import ModelError
from qkv.models.network.design import Attention
from qkv.models.network.head import Head
from qkv.models.network.vision_design import VisionDesign


def design(config: Config) -> VisionDesign:
    """The sizes of a ViT; keys that are left out have the values of vit-base-patch16-224."""
    dim = config.size("hidden_size", 768)
    size = config.size_or_none("head_dim")
    heads = config.heads(dim, 12) if size is None else config.size("num_attention_heads", 12)
    size = size or dim // heads
    image, patch = cut(config, patch=16)
    is_classifier = config.head() == "ImageClassification"
    return VisionDesign(
        vocabulary=1,
        dim=dim,
        hidden=config.size("intermediate_size", 3072),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.positive("layer_norm_eps", 1e-12),
        layers=(Attention(heads, heads, size),) * config.layers("num_hidden_layers", 12),
        qkv_bias=config.flag("qkv_bias", True),
        head=Head(config.labels(), bias=True, pool="cls") if is_classifier else None,
        channels=config.size("num_channels", 3),
        image=image,
        patch=patch,
    )


def cut(config: Config, *, patch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of an image, and of its patches, `patch` where the config is silent."""
    image, part = config.pair("image_size", 224), config.pair("patch_size", patch)
    if part[0] > image[0] or part[1] > image[1]:
        raise ModelError(
            f"{config.source}: image_size is {image} and patch_size {part}: "
            "a patch must fit into the image"
        )
    return image, part


VIT = Family(
    model_type="vit",
    design=design,
    names={
        "embed.weight": "embeddings.cls_token",
        "patch_embed": "embeddings.patch_embeddings.projection",
        "pos_embed.weight": "embeddings.position_embeddings",
        "blocks.*.norm1": "encoder.layer.*.layernorm_before",
        **projections(
            "encoder.layer.*.attention.",
            *("attention.query", "attention.key", "attention.value", "output.dense"),
        ),
        "blocks.*.norm2": "encoder.layer.*.layernorm_after",
        "blocks.*.mlp.up_proj": "encoder.layer.*.intermediate.dense",
        "blocks.*.mlp.down_proj": "encoder.layer.*.output.dense",
        "final_norm": "layernorm",
        "head.out_proj": "classifier",
    },
    prefix="vit.",
    body=(
        *("embeddings.cls_token", "embeddings.patch_embeddings.", "embeddings.position_embeddings"),
        *("encoder.", "layernorm."),
    ),
    harmless=("encoder_stride", "pooler_act", "pooler_output_size"),
)
