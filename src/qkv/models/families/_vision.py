"""Models that cut images into patches: ViT, DINOv2 and CLIP."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from qkv.models.families._shared import read_families, stack
from qkv.models.files.config import Config
from qkv.models.files.names import Family, PartNames, fused
from qkv.models.files.read import ModelError
from qkv.models.network.design import SCALE, TOWERS, Attention, Design, DualDesign, VisionDesign
from qkv.models.network.head import Head


def cut(config: Config) -> dict[str, Any]:
    """Return the fields of a design that hold the sizes of images and patches."""
    image, part = config.pair("image_size"), config.pair("patch_size")
    if part[0] > image[0] or part[1] > image[1]:
        raise ModelError(
            f"{config.source}: image_size is {image} and patch_size is {part}; "
            "patch_size must not be larger than image_size"
        )
    return {"channels": config.size("num_channels"), "image": image, "patch": part}


def encoder(config: Config, pool: Literal["cls", "cls and mean"], **fields: Any) -> VisionDesign:
    """Return the design that ViT and DINOv2 share.

    Args:
        config: the model's config.
        pool: the kind of pooling before a classifier.
        fields: the other fields of the design that the family sets.
    """
    _, heads, size = config.sized_heads()
    classifies = config.head() == "ImageClassification"
    return VisionDesign(
        **stack(
            config,
            layers=Attention(heads, heads, size),
            vocabulary=1,
            max_seq_length=None,
            qkv_bias=config.flag("qkv_bias"),
            head=Head(config.labels(), bias=True, pool=pool) if classifies else None,
            **fields,
        )
    )


def vit(config: Config) -> VisionDesign:
    """Return the design of a ViT."""
    return encoder(config, "cls", **cut(config))


def dinov2(config: Config) -> VisionDesign:
    """Return the design of a DINOv2, which has layer scales and takes images of any size."""
    parts = cut(config)
    image, patch = parts["image"], parts["patch"]
    rows, columns = image[0] // patch[0], image[1] // patch[1]
    if rows != columns:
        raise ModelError(
            f"{config.source}: image_size is {image} and patch_size is {patch}, which gives "
            f"{rows} x {columns} patches; the numbers of rows and columns must be equal"
        )
    hidden = config.size("hidden_size") * config.size("mlp_ratio")
    gated, activation = config.flag("use_swiglu_ffn"), config.activation("hidden_act")
    return encoder(
        config,
        "cls and mean",
        hidden=(hidden * 2 // 3 + 7) // 8 * 8 if gated else hidden,
        activation="silu" if gated else activation,
        gated=gated,
        layer_scale=True,
        any_size=True,
        **parts,
    )


def _dinov2_names(names: PartNames, config: Config) -> PartNames:
    """Return the parameter names; if `use_swiglu_ffn` is true, the MLP has a gate."""
    if not config.flag("use_swiglu_ffn"):
        return names
    mlp, parts = "encoder.layer.*.mlp.", ("blocks.*.mlp.gate_proj", "blocks.*.mlp.up_proj")
    down = {"blocks.*.mlp.down_proj": f"{mlp}weights_out"}
    return {**names, **fused(f"{mlp}weights_in", *parts), **down}


_OLD_END = 2  # Early configs have this wrong id of the end token.


def clip_text(config: Config) -> Design:
    """Return the design of CLIP's text tower."""
    _, heads, size = config.heads()
    end = config.whole("eos_token_id")
    return Design(
        **stack(
            config,
            layers=Attention(heads, heads, size, options={"is_causal": True}),
            last_is_normed=False,
            head=_projection(config, pool="end", end=None if end == _OLD_END else end),
        )
    )


def clip_vision(config: Config) -> VisionDesign:
    """Return the design of CLIP's image tower."""
    return VisionDesign(
        **stack(
            config,
            vocabulary=1,
            max_seq_length=None,
            embed_norm=True,
            final_norm=False,
            head=_projection(config, pool="cls", norm=True),
            **cut(config),
            patch_bias=False,
            batched=False,
        )
    )


def _projection(config: Config, **fields: Any) -> Head:
    """Return a tower's head; it has a projection if the class ends with "WithProjection"."""
    projects = config.architecture().endswith("WithProjection")
    outputs = config.size("projection_dim" if projects else "hidden_size")
    return Head(outputs, embeds=True, projects=projects, **fields)


_CLASSIFIER = "CLIPForImageClassification"


def clip(config: Config) -> DualDesign | VisionDesign:
    """Return the design of both towers, or of an image tower with a classifier."""
    known = config.architecture() in ("", "CLIPModel", _CLASSIFIER)
    named = config.values.get("architectures")
    config.need(known, "architectures", named, f"CLIPModel or {_CLASSIFIER}", 80)
    both = DualDesign(_read_tower(config, "text"), _read_tower(config, "vision"))
    if config.architecture() == _CLASSIFIER:
        return replace(both.vision, head=Head(config.labels(), bias=True, pool="patches"))
    return both


def _read_tower(config: Config, side: str) -> Any:
    """Return the design of a tower, and warn about unknown keys in the tower's config."""
    family = _tower(side)
    tower_config = family.config(_tower_values(config, side), f"{config.source}: {side}_config")
    design = family.design(tower_config)
    tower_config.finish(family.harmless)
    return design


def _tower(side: str) -> Family:
    """Return the family of a tower."""
    return next(family for family in FAMILIES if family.model_type == f"clip_{side}_model")


def _tower_values(config: Config, side: str) -> dict[str, Any]:
    """Return a tower's config, completed so that the tower can be read as a model by itself.

    Old files have two configs per tower, such as `text_config` and `text_config_dict`. As in
    transformers, the keys that the design reads come only from the second config. If the second
    config lacks such a key, the key has its default value. Any other key that the second config
    lacks comes from the first config.
    """
    source, family = f"{config.source}: {side}_config", _tower(side)
    merged = config.table(f"{side}_config")
    Config(merged, source).only("model_type", family.model_type)
    if config.value(f"{side}_config_dict", None) is not None:
        second = family.config(config.table(f"{side}_config_dict"), f"{source}_dict")
        family.design(second)
        rest = {key: value for key, value in merged.items() if key not in second.used}
        merged = {**rest, **second.values}
    return {
        **merged,
        "architectures": [f"CLIP{side.capitalize()}ModelWithProjection"],
        "model_type": family.model_type,
        "projection_dim": config.size("projection_dim"),
    }


def towers(values: Mapping[str, Any], source: str) -> dict[str, tuple[dict[str, Any], Family]]:
    """Return the config and the family of each tower, from the model's config."""
    clip = next(family for family in FAMILIES if family.model_type == "clip")
    config = clip.config(values, source)
    return {side: (_tower_values(config, side), _tower(side)) for side in TOWERS}


def _clip_names(names: PartNames, config: Config) -> PartNames:
    """Return the parameter names of both towers, or of an image tower with a classifier."""
    both = {
        side: {
            ours: theirs if ours == "head.out_proj" else f"{side}_model.{theirs}"
            for ours, theirs in _tower(side).names.items()
        }
        for side in TOWERS
    }
    if config.architecture() == _CLASSIFIER:
        return {**both["vision"], "head.out_proj": "classifier"}
    joined = {f"{side}.{ours}": name for side in TOWERS for ours, name in both[side].items()}
    return {**joined, SCALE: SCALE}


FAMILIES = read_families(
    "vision.toml",
    {
        "vit": vit,
        "dinov2": dinov2,
        "clip": clip,
        "clip_text_model": clip_text,
        "clip_vision_model": clip_vision,
    },
    dinov2=_dinov2_names,
    clip=_clip_names,
)
