"""Rotary positions as configs describe them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from qkv.layers import Rotary
from qkv.layers.attention import Scaling
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.network.rope_scaling import (
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    Yarn,
)


def read_rotary(
    config: Config,
    size: int,
    positions: int,
    *,
    base: float = 10000.0,
    default: Mapping[str, Any] | None = None,
    partial: float | None = None,
    original: int | None = None,
    spellings: Mapping[str, str] | None = None,
) -> Rotary:
    """How all layers rotate queries and keys, by `rope_parameters` or the keys of older configs.

    Args:
        config: with `rope_parameters`, or with `rope_theta` and `rope_scaling`.
        size: d, of a head's queries and keys.
        positions: `max_position_embeddings`.
        base: where the config has no `rope_theta`.
        default: what stands for `rope_parameters` where the config has neither.
        partial: for a family in which the last numbers of a head may stay as they are: the part
            that is rotated where the config has no `partial_rotary_factor`.
        original: `original_max_position_embeddings`, where it does not stand beside the others.
        spellings: what the family may write as `rope_type`, and the kind that is meant; without it
            each kind by its own name.

    Raises:
        ModelError: a kind or a key that is not supported, or a value that makes no sense.

    >>> scaling = {"rope_type": "linear", "factor": 4.0}
    >>> read_rotary(Config({"rope_scaling": scaling}, "config.json"), 8, 512)
    Rotary(base=10000.0, dims=None, interleaved=False, scaling=Linear(factor=4.0))
    """
    theta = config.positive_or_none("rope_theta") or base
    limit = config.size_or_none("original_max_position_embeddings", original)
    sizes = _Sizes(size, positions, limit)
    kinds = {one: _KINDS[kind] for one, kind in (spellings or {}).items()} or _KINDS
    given = {key: config.table(key) for key in ("rope_scaling", "rope_parameters")}
    given = {key: table for key, table in given.items() if table}
    given = given or {"rope_parameters": dict(default or {})}
    found = [
        _rotary(config, key, table, theta, sizes, kinds=kinds, partial=partial)
        for key, table in given.items()
    ]
    if found[0] != found[-1]:
        raise ModelError(
            f"{config.source}: rope_scaling and rope_parameters say different things: keep one"
        )
    return found[0]


def read_rotaries(
    config: Config,
    size: int,
    positions: int,
    bases: Mapping[str, tuple[str, float]],
    *,
    scaled: Collection[str],
) -> dict[str, Rotary]:
    """The same by the kind of layer, for models in which windows have a base of their own.

    Args:
        config: with one dict for each kind in `rope_parameters`, or with older keys.
        size: d, of a head's queries and keys.
        positions: `max_position_embeddings`.
        bases: for each kind of layer the older key of its base, and the base without that.
        scaled: the kinds to which an older `rope_scaling` applies.

    Raises:
        ModelError: as for `read_rotary`.

    >>> bases = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local", 1e4)}
    >>> config = Config({"rope_theta": 500.0}, "config.json")
    >>> read_rotaries(config, 8, 512, bases, scaled=())["full_attention"].base
    500.0
    """
    tables, scaling = config.table("rope_parameters"), config.table("rope_scaling")
    sizes = _Sizes(size, positions, None)
    for kind in tables:
        if kind not in bases:
            raise ModelError(
                f"{config.source}: rope_parameters has {kind!r:.80}, which qkv does not support: "
                f"it knows {', '.join(bases)}"
            )
    kinds = Config(tables, f"{config.source}: rope_parameters")
    return {
        kind: _rotary(
            config,
            f"rope_parameters: {kind}",
            kinds.table(kind) | (scaling if kind in scaled else {}),
            config.positive_or_none(key) or base,
            sizes,
        )
        for kind, (key, base) in bases.items()
    }


class _Sizes(NamedTuple):
    """What a scaling may depend on beside its own keys."""

    dims: int
    positions: int  # max_position_embeddings
    original: int | None  # original_max_position_embeddings, where it stands beside the dict


Kind = Callable[[Config, _Sizes], Scaling | None]  # how one `rope_type` is read


def _rotary(
    config: Config,
    key: str,
    table: Mapping[str, Any],
    base: float,
    sizes: _Sizes,
    *,
    kinds: Mapping[str, Kind] | None = None,
    partial: float | None = None,
) -> Rotary:
    """What one dict says, the keys beside it taken where it has none of its own."""
    if sizes.dims % 2 or sizes.dims > _LARGEST:
        raise ModelError(
            f"{config.source}: a head has {sizes.dims} numbers: rotary positions need an even "
            f"number of at most {_LARGEST}"
        )
    part = config.positive_or_none("partial_rotary_factor")
    inner = Config({"partial_rotary_factor": part, **table}, f"{config.source}: {key}")
    spelling = inner.spelling("rope_type", "type")
    read = inner.choice(spelling, kinds or _KINDS, "default")
    base = inner.positive("rope_theta", base)
    dims = None
    if partial is not None:
        dims = _rotated(inner, sizes.dims, partial)
        sizes = sizes._replace(dims=dims or sizes.dims)
    try:
        rotary = Rotary(base=base, dims=dims, scaling=read(inner, sizes))
        sound = all(_is_sound(rotary, sizes.dims, length) for length in (1, 2**40))
    except ArithmeticError:
        sound = False
    if not sound:
        raise ModelError(
            f"{inner.source}: no angles follow from rope_theta {base:g} and {dict(table)!r:.80}"
        )
    if "partial_rotary_factor" not in inner.used:
        inner.only("partial_rotary_factor", 1, None)
    for name, value in table.items():
        if value is not None and name not in inner.used | _HARMLESS:
            raise ModelError(
                f"{inner.source}: {name} is {value!r:.40}, which qkv does not support with "
                f"{spelling} {inner.values.get(spelling, 'default')!r}"
            )
    return rotary


def _rotated(config: Config, size: int, default: float) -> int | None:
    """How many numbers of a head of `size` are rotated; None for all."""
    part = config.positive_or_none("partial_rotary_factor") or default
    dims = int(size * part)
    if part > 1 or dims < 2 or dims % 2:
        raise ModelError(
            f"{config.source}: partial_rotary_factor is {part:g} and a head has {size} numbers "
            "(hidden_size by num_attention_heads): those that are rotated must be an even number "
            "of them"
        )
    return None if dims == size else dims


def _is_sound(rotary: Rotary, dims: int, length: int) -> bool:
    """Whether the speeds are numbers."""
    with np.errstate(all="ignore"):
        scaling = rotary.scaling or Linear(1.0)
        speeds, scale = scaling.speeds(rotary.base, dims, length)
    return bool(np.isfinite(speeds).all()) and 0 < scale < math.inf


def _needed(config: Config, key: str) -> float:
    """A number above 0, which must be there."""
    if config.values.get(key) is None:
        raise ModelError(f"{config.source}: there is no {key}")
    return config.positive(key, 1.0)


def _or_zero(config: Config, key: str) -> float | None:
    """A finite number of at least 0, or None where the config has null or nothing."""
    if config.values.get(key) == 0:
        config.only(key, 0)
        return 0.0
    return config.positive_or_none(key)


def _original(config: Config, sizes: _Sizes) -> int:
    """How many positions the model was first made for."""
    inside = config.size_or_none("original_max_position_embeddings")
    return sizes.original or inside or sizes.positions


def _dynamic(config: Config, sizes: _Sizes) -> Scaling:
    if sizes.dims < 4:
        raise ModelError(
            f"{config.source}: rope_type 'dynamic' with heads of {sizes.dims}: it needs 4 numbers"
        )
    return Dynamic(_needed(config, "factor"), sizes.positions)


def _yarn(config: Config, sizes: _Sizes) -> Scaling:
    limit = _original(config, sizes)
    if "factor" not in config.values:  # null is allowed, and stands for what the sizes say
        raise ModelError(f"{config.source}: there is no factor")
    factor = config.positive_or_none("factor") or sizes.positions / limit
    scale = config.positive_or_none("attention_factor")
    part, whole = _or_zero(config, "mscale"), _or_zero(config, "mscale_all_dim")
    if scale is None and part and whole:
        scale = _yarn_scale(factor, part) / _yarn_scale(factor, whole)
    return Yarn(
        factor,
        limit,
        _yarn_scale(factor) if scale is None else scale,
        _or_zero(config, "beta_fast") or 32.0,
        _or_zero(config, "beta_slow") or 1.0,
        config.flag("truncate", True),
    )


def _yarn_scale(factor: float, weight: float = 1.0) -> float:
    """What queries and keys are multiplied by, as YaRN has it for a factor."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope(config: Config, sizes: _Sizes) -> Scaling:
    limit = _original(config, sizes)
    factor = config.positive_or_none("factor") or sizes.positions / limit
    scale = config.positive_or_none("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(limit)) if factor > 1 else 1.0
    pairs = sizes.dims // 2
    short, long = (config.numbers(key, pairs) for key in ("short_factor", "long_factor"))
    return LongRope(short, long, limit, scale)


def _llama3(config: Config, sizes: _Sizes) -> Scaling:
    low, high = (_needed(config, key) for key in ("low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ModelError(
            f"{config.source}: low_freq_factor is {low:g} and high_freq_factor is {high:g}: "
            "the first must be less than the second"
        )
    return Llama3(_needed(config, "factor"), low, high, _original(config, sizes))


def _proportional(config: Config, sizes: _Sizes) -> Scaling:
    part = _or_zero(config, "partial_rotary_factor")
    part = 1.0 if part is None else part
    if part > 1:
        raise ModelError(
            f"{config.source}: partial_rotary_factor is {part:g}: it must be at most 1"
        )
    return Proportional(part, config.positive("factor", 1.0))


# How each `rope_type` is read.
_KINDS: Mapping[str, Kind] = {
    "default": lambda config, sizes: None,
    "linear": lambda config, sizes: Linear(_needed(config, "factor")),
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
# What some files say of how the model was made, and what older ones have for every kind.
_HARMLESS = frozenset({"finetuned", "original_max_position_embeddings"})
_LARGEST = 2**16  # of a head that a table of angles can be made for
