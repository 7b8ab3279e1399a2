"""What becomes of an image before a model sees it, as preprocessor_config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array
from qkv.extras import need
from qkv.models.files.config import Config
from qkv.models.files.read import PREPROCESSOR, ModelError, is_number
from qkv.models.network.design import VisionDesign

_MOST = 1e30  # of a mean or a deviation, which are float32
_VIT = "ViTImageProcessor"
_PROCESSORS = (_VIT, f"{_VIT}Fast", f"{_VIT}Pil", "ViTFeatureExtractor")


@dataclass(frozen=True)
class Pixels:
    """How an image becomes numbers, as preprocessor_config.json says.

    Attributes:
        size: the height and width that it is brought to; None leaves it as it is.
        resample: how, as Pillow numbers it: 2 is bilinear, 3 bicubic.
        factor: what pixels of 0 to 255 are multiplied by.
        mean: what is then taken from each channel.
        std: what it is then divided by.
        values: the file.
    """

    size: tuple[int, int] | None = (224, 224)
    resample: int = 2
    factor: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, design: VisionDesign) -> Pixels | None:
        """What the file in this folder says for a model of this design; None where there is none.

        Raises:
            ModelError: it is broken, or asks for something that qkv does not know.
        """
        path = folder / PREPROCESSOR
        if not path.is_file():
            return None
        config, channels = Config.read(path), design.channels
        for key in ("image_processor_type", "feature_extractor_type"):
            config.only(key, *_PROCESSORS, None)
        for key in ("do_center_crop", "do_pad"):
            config.only(key, None, False)
        size = None
        if config.flag("do_resize", True):
            size = _size(config)
            if size != design.image:
                raise ModelError(
                    f"{path}: size is {size[0]} x {size[1]} and the model takes images of "
                    f"{design.image[0]} x {design.image[1]}: both must be the same"
                )
        factor = 1.0
        if config.flag("do_rescale", True):
            factor = config.positive("rescale_factor", 1 / 255)
        mean, std = (0.0,) * channels, (1.0,) * channels
        if config.flag("do_normalize", True):
            mean, std = (_numbers(config, f"image_{name}", channels) for name in ("mean", "std"))
            if not np.array(std, np.float32).all():
                given = config.values["image_std"]
                raise ModelError(f"{path}: image_std is {given}: none may be 0")
        found = cls(size, config.whole("resample", 2), factor, mean, std, config.values)
        if found.resample > 5:
            raise ModelError(f"{path}: resample is {found.resample}: Pillow knows 0 to 5")
        return found

    def __call__(self, image: Any) -> Array:
        """An image (H, W, C) of uint8, or one of Pillow's, as numbers (C, H, W) of float32."""
        if hasattr(image, "convert"):
            image = np.asarray(image.convert("RGB" if len(self.mean) == 3 else "L"))
        pixels = as_array(image, call="pixels", name="image")
        channels = len(self.mean)
        if pixels.ndim == 2 and channels == 1:
            pixels = pixels[..., None]
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != channels:
            raise ValueError(
                f"pixels: the image is {pixels.dtype} {pixels.shape}: give uint8 (H, W, {channels})"
            )
        if self.size is not None and pixels.shape[:2] != self.size:
            pixels = _resized(pixels, self.size, self.resample)
        # in float64, then rounded, as transformers does it
        scaled = (pixels.astype(np.float64) * self.factor).astype(np.float32)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return np.moveaxis((scaled - mean) / std, -1, 0)


def _size(config: Config) -> tuple[int, int]:
    """Height and width that images are brought to: given as two, or as one number for both."""
    given = config.values.get("size", 224)
    sides = given if isinstance(given, dict) else {"height": given, "width": given}
    if set(sides) != {"height", "width"}:
        raise ModelError(
            f"{config.source}: size has {', '.join(map(str, sides))}, which qkv does not support: "
            "it knows height and width"
        )
    part = Config(sides, f"{config.source}: size")
    return part.size("height", 224), part.size("width", 224)


def _numbers(config: Config, key: str, channels: int) -> tuple[float, ...]:
    """A number for each channel, or one for all."""
    given = config.values.get(key, [0.5] * channels)
    numbers = given if isinstance(given, list) else [given] * channels
    fine = len(numbers) == channels and all(is_number(n) and abs(n) <= _MOST for n in numbers)
    config.need(fine, key, given, f"{channels} numbers", 60)
    return tuple(map(float, numbers))


def _resized(pixels: Array, size: tuple[int, int], resample: int) -> Array:
    """An image (H, W, C) of uint8 in another size, by Pillow."""
    try:
        pillow = need("PIL.Image", "plot")
    except ImportError as error:
        raise ImportError(
            f"pixels: the image is {pixels.shape[0]} x {pixels.shape[1]} and the model takes "
            f"{size[0]} x {size[1]}: give one of that size, or install Pillow: "
            "pip install 'qkv[plot]'"
        ) from error
    single = pixels.shape[-1] == 1
    image = pillow.fromarray(pixels[..., 0] if single else pixels)
    found: Array = np.asarray(image.resize(size[::-1], resample=resample))
    return found[..., None] if single else found
