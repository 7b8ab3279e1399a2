"""Prepare images for a model, as the model's preprocessor_config.json describes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, value_error
from qkv.arrays import Array, as_array
from qkv.extras import install, need
from qkv.models.files.config import Config
from qkv.models.files.read import PREPROCESSOR, PROCESSOR, ModelError, is_number
from qkv.models.network.design import VisionDesign

_MAX_NUMBER = 1e30  # A larger mean or standard deviation in a file is refused.
_KINDS = ("ViT", "Bit", "CLIP")
_ENDINGS = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")
_PROCESSORS = tuple(kind + ending for kind in _KINDS for ending in _ENDINGS)
# The default mean and standard deviation of each channel for CLIP.
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073]}
_CLIP["image_std"] = [0.26862954, 0.26130258, 0.27577711]


@dataclass(frozen=True)
class Pixels:
    """The conversion of images to arrays, as preprocessor_config.json describes it.

    Attributes:
        size: the height and width of the resized image, or only the length of its shorter side. If
            images are not resized, `size` is None.
        crop: the height and width of the centre crop; None to keep the whole image.
        resample: Pillow's number for the resizing method: 2 is bilinear, 3 is bicubic.
        factor: the factor by which pixel values, which range from 0 to 255, are multiplied.
        mean: the mean of each channel; each value becomes `(value * factor - mean) / std`.
        std: the standard deviation of each channel.
        values: the contents of the file.
    """

    size: tuple[int, int] | int | None = (224, 224)
    crop: tuple[int, int] | None = None
    resample: int = 2
    factor: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, design: VisionDesign) -> "Pixels | None":
        """Return the settings in a folder, for a model of this design.

        The settings are in preprocessor_config.json or, if it is missing, in processor_config.json.
        If neither file has settings for images, return None.

        Raises:
            ModelError: the file is broken, or needs a feature that qkv does not support.
        """
        path = folder / PREPROCESSOR
        whole = folder / PROCESSOR
        if path.is_file():
            config = Config.read(path)
        elif whole.is_file() and (inner := Config.read(whole).table("image_processor")):
            path, config = whole, Config(inner, f"{whole}: image_processor")
        else:
            return None
        channels = design.channels
        for key in ("image_processor_type", "feature_extractor_type"):
            config.only(key, *_PROCESSORS, None)
        kind = config.spelling("image_processor_type", "feature_extractor_type")
        crops = str(config.values.get(kind)).startswith(_KINDS[1:])
        config.only("do_pad", None, False)
        size: tuple[int, int] | int | None = None
        crop = None
        if config.flag("do_resize", True):
            size = _size(config, "size", shortest=crops)
        if not crops:
            config.only("do_center_crop", None, False)
        elif config.flag("do_center_crop", True):
            crop = _pair(config, "crop_size")
        factor = 1.0
        if config.flag("do_rescale", True):
            factor = config.positive("rescale_factor", 1 / 255)
        mean, std = (0.0,) * channels, (1.0,) * channels
        if config.flag("do_normalize", True):
            half = [0.5] * channels
            mean, std = (
                _numbers(config, key, _CLIP[key] if crops else half, channels) for key in _CLIP
            )
            if not np.array(std, np.float32).all():
                raise ModelError(
                    f"{path}: image_std is {config.values['image_std']}, but no number may be 0"
                )
        resample = config.whole("resample", 3 if crops else 2)
        if resample > 5:
            raise ModelError(
                f"{path}: resample is {resample}; it must be one of Pillow's resampling filters, "
                "0 to 5"
            )
        pixels = cls(size, crop, resample, factor, mean, std, config.values)
        pixels._check_size(design, path)
        return pixels

    def __call__(self, image: Any) -> Array:
        """Convert a uint8 array (H, W, C), or a Pillow image, to a float32 array (C, H, W)."""
        if hasattr(image, "convert"):
            image = np.asarray(image.convert("RGB" if len(self.mean) == 3 else "L"))
        pixels = as_array(image, name="image")
        channels = len(self.mean)
        if pixels.ndim == 2 and channels == 1:
            pixels = pixels[..., None]
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != channels:
            raise value_error(
                f"the image is {pixels.dtype} {pixels.shape}; pass uint8 (H, W, {channels})"
            )
        size = self.size
        if isinstance(size, int):
            size = _with_shortest(pixels.shape[:2], size)
        if size is not None and pixels.shape[:2] != size:
            pixels = _resize(pixels, size, self.resample)
        if self.crop is not None:
            pixels = _middle(pixels, self.crop)
        # Multiply in float64 and then round to float32, as transformers does.
        scaled = (pixels.astype(np.float64) * self.factor).astype(np.float32)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return np.moveaxis((scaled - mean) / std, -1, 0)

    def _check_size(self, design: VisionDesign, path: Path) -> None:
        """Raise an error unless the prepared images have the size that the model expects."""
        size, crop = self.size, self.crop
        last, named = (size, "size") if crop is None else (crop, "crop_size")
        least = (size, size) if isinstance(size, int) else size
        if crop is not None and least is not None and (least[0] < crop[0] or least[1] < crop[1]):
            raise ModelError(
                f"{path}: crop_size is {crop[0]} x {crop[1]} and images are resized to {size}; "
                "crop_size must not be larger than the resized images"
            )
        if last is None or design.any_size:
            return
        if isinstance(last, int):
            raise ModelError(
                f"{path}: size has only shortest_edge, do_center_crop is false, and the model "
                f"takes images of {design.image[0]} x {design.image[1]}; size must have height "
                "and width, or do_center_crop must be true"
            )
        if last != design.image:
            raise ModelError(
                f"{path}: {named} is {last[0]} x {last[1]} and the model takes images of "
                f"{design.image[0]} x {design.image[1]}; the two sizes must be equal"
            )


def _size(config: Config, key: str, *, shortest: bool) -> tuple[int, int] | int:
    """Return the size of resized images: (height, width), or the length of the shorter side.

    If `shortest` is True, a single number in the config is the length of the shorter side.
    """
    value = config.values.get(key, 224)
    if shortest and not isinstance(value, dict):
        value = {"shortest_edge": value}
    if shortest and set(value) == {"shortest_edge"}:
        return Config(value, f"{config.source}: {key}").size("shortest_edge", 224)
    return _pair(config, key)


def _pair(config: Config, key: str) -> tuple[int, int]:
    """Return `(height, width)` from a config that gives two numbers, or one number for both."""
    value = config.values.get(key, 224)
    sides = value if isinstance(value, dict) else {"height": value, "width": value}
    if set(sides) != {"height", "width"}:
        raise ModelError(
            f"{config.source}: {key} has {', '.join(map(str, sides))}, which qkv does not support; "
            "use height and width"
        )
    part = Config(sides, f"{config.source}: {key}")
    return part.size("height", 224), part.size("width", 224)


def _with_shortest(size: tuple[int, ...], side: int) -> tuple[int, int]:
    """Return `(height, width)` with the proportions of `size`; the shorter side is `side`.

    >>> _with_shortest((30, 20), 15), _with_shortest((20, 31), 10)
    ((22, 15), (10, 15))
    """
    high, wide = size
    return (side, side * wide // high) if high < wide else (side * high // wide, side)


def _middle(pixels: Array, size: tuple[int, int]) -> Array:
    """Return the centre (h, w, C) of an image (H, W, C)."""
    above, before = ((has - side) // 2 for has, side in zip(pixels.shape, size, strict=False))
    if above < 0 or before < 0:
        raise value_error(
            f"the image is {pixels.shape[0]} x {pixels.shape[1]}, too small to be cropped to "
            f"{size[0]} x {size[1]}; pass an image of at least that size"
        )
    return pixels[above : above + size[0], before : before + size[1]]


def _numbers(config: Config, key: str, default: list[float], channels: int) -> tuple[float, ...]:
    """Return one number per channel, from a list or from one number for all channels."""
    value = config.values.get(key, default)
    numbers = value if isinstance(value, list) else [value] * channels
    fine = len(numbers) == channels and all(is_number(n) and abs(n) <= _MAX_NUMBER for n in numbers)
    config.need(fine, key, value, f"{channels} numbers", 60)
    return tuple(map(float, numbers))


def _resize(pixels: Array, size: tuple[int, int], resample: int) -> Array:
    """Resize an image (H, W, C) of uint8 with Pillow."""
    try:
        pillow = need("PIL.Image", "plot")
    except ImportError as error:
        raise invalid(
            ImportError,
            f"the image is {pixels.shape[0]} x {pixels.shape[1]} and the model takes "
            f"{size[0]} x {size[1]}; pass an image of that size, or install Pillow: "
            f"{install('plot')}",
        ) from error
    single = pixels.shape[-1] == 1
    image = pillow.fromarray(pixels[..., 0] if single else pixels)
    resized: Array = np.asarray(image.resize(size[::-1], resample=resample))
    return resized[..., None] if single else resized
