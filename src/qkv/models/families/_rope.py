"""Read rotary positions from configs."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv.layers import Rotary
from qkv.layers.attention import Scaling
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.network import Dynamic, Linear, Llama3, LongRope, Proportional, Yarn


class RotaryDefaults(NamedTuple):
    """A family's defaults for keys that describe rotary positions and are missing in a config.

    Attributes:
        base: the base, if the config has no `rope_theta`.
        table: the default for `rope_parameters`. It is used if the config has neither
            `rope_parameters` nor `rope_scaling`.
        partial: the rotated fraction of each head, if the config has no `partial_rotary_factor`.
            None for families that always rotate whole heads.
        spellings: maps the family's own names for kinds of scaling to qkv's names, such as "su" to
            "longrope". Empty if the family uses qkv's names.
    """

    base: float = 10000.0
    table: Mapping[str, Any] = MappingProxyType({})
    partial: float | None = None
    spellings: Mapping[str, str] = MappingProxyType({})


_USUAL = RotaryDefaults()


def read_rotary(config: Config, size: int, defaults: RotaryDefaults = _USUAL) -> Rotary:
    """Return the rotary positions of all layers, from `rope_parameters` or older config keys.

    Args:
        config: a config with `rope_parameters`, or with `rope_theta` and `rope_scaling`.
        size: d, the size of a head's queries and keys.
        defaults: the values for missing keys.

    Raises:
        ModelError: a kind or key is not supported, or a value is invalid.

    >>> values = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    >>> values["max_position_embeddings"] = 512
    >>> read_rotary(Config(values, "config.json"), 8)
    Rotary(base=10000.0, dims=None, interleaved=False, scaling=Linear(factor=4.0))
    """
    theta = config.positive_or_none("rope_theta") or defaults.base
    limit = config.size_or_none("original_max_position_embeddings")
    sizes = _Sizes.of(config, size, limit)
    tables = {key: config.table(key) for key in ("rope_scaling", "rope_parameters")}
    tables = {key: table for key, table in tables.items() if table}
    tables = tables or {"rope_parameters": dict(defaults.table)}
    rotaries = [
        _rotary(_inner(config, key, table), theta, sizes, defaults) for key, table in tables.items()
    ]
    if rotaries[0] != rotaries[-1]:
        raise ModelError(
            f"{config.source}: rope_scaling and rope_parameters disagree: keep one of them"
        )
    return rotaries[0]


class OlderKeys(NamedTuple):
    """The keys in an older config that describe the rotary positions of one kind of layer.

    For example, all layers with windows are one kind of layer.

    Attributes:
        theta: the key that holds the base.
        base: the base if the key `theta` is missing.
        scaled: whether the older key `rope_scaling` applies to this kind of layer.
    """

    theta: str
    base: float
    scaled: bool = True


def read_rotaries(config: Config, size: int, kinds: Mapping[str, OlderKeys]) -> dict[str, Rotary]:
    """Return the rotary positions of each kind of layer, e.g. of layers with windows.

    Args:
        config: a config whose `rope_parameters` has a dict per kind of layer, or an older config
            with the keys in `kinds`.
        size: d, the size of a head's queries and keys.
        kinds: for each kind of layer, the keys that older configs use for its rotary positions.

    Raises:
        ModelError: as in `read_rotary`.

    >>> kinds = {"full_attention": OlderKeys("rope_theta", 1e6)}
    >>> config = Config({"rope_theta": 500.0, "max_position_embeddings": 512}, "config.json")
    >>> read_rotaries(config, 8, kinds)["full_attention"].base
    500.0
    """
    tables, scaling = config.table("rope_parameters"), config.table("rope_scaling")
    sizes = _Sizes.of(config, size, None)
    for kind in tables:
        if kind not in kinds:
            raise ModelError(
                f"{config.source}: rope_parameters has {kind!r:.80}, which qkv does not support; "
                f"qkv supports {', '.join(kinds)}"
            )
    new = Config(tables, f"{config.source}: rope_parameters")
    rotaries = {}
    for kind, older in kinds.items():
        table = new.table(kind) | (scaling if older.scaled else {})
        base = config.positive_or_none(older.theta) or older.base
        rotaries[kind] = _rotary(_inner(config, f"rope_parameters: {kind}", table), base, sizes)
    return rotaries


class _Sizes(NamedTuple):
    """The sizes of a model that determine the scaling of its rotary positions."""

    dims: int
    positions: int  # The value of max_position_embeddings.
    original: int | None  # The value of original_max_position_embeddings outside rope_parameters.

    @classmethod
    def of(cls, config: Config, dims: int, original: int | None) -> "_Sizes":
        """Return the sizes of a model; `dims`, the size of a head, must be even."""
        if dims % 2 or dims > _LARGEST:
            raise ModelError(
                f"{config.source}: a head has {dims} dimensions, but rotary positions need an even "
                f"number of at most {_LARGEST}"
            )
        return cls(dims, config.size("max_position_embeddings"), original)


Kind = Callable[[Config, _Sizes], Scaling | None]  # A function that reads one kind of scaling.


def _inner(config: Config, key: str, table: Mapping[str, Any]) -> Config:
    """Return a new `Config` with the entries of `table`.

    `table` is the JSON object that the model's config stores under `key`. If `table` has no
    `partial_rotary_factor`, the new `Config` takes this entry from the model's config.
    """
    part = config.positive_or_none("partial_rotary_factor")
    outside = {} if part is None else {"partial_rotary_factor": part}
    return Config({**outside, **table}, f"{config.source}: {key}")


def _rotary(table: Config, base: float, sizes: _Sizes, defaults: RotaryDefaults = _USUAL) -> Rotary:
    """Return the rotary positions that one `rope_parameters` or `rope_scaling` describes."""
    spelling = table.spelling("rope_type", "type")
    kinds = {name: _KINDS[kind] for name, kind in defaults.spellings.items()} or _KINDS
    read = table.choice(spelling, kinds, "default")
    base = table.positive("rope_theta", base)
    dims = None
    if defaults.partial is not None:
        dims = _count_rotated(table, sizes.dims, defaults.partial)
        sizes = sizes._replace(dims=dims or sizes.dims)
    try:
        rotary = Rotary(base=base, dims=dims, scaling=read(table, sizes))
        sound = all(_is_sound(rotary, sizes.dims, length) for length in (1, 2**40))
    except ArithmeticError:
        sound = False
    if not sound:
        raise ModelError(
            f"{table.source}: rope_theta {base:g} and {dict(table.values)!r:.80} give no finite "
            "angles: correct these values"
        )
    if "partial_rotary_factor" not in table.used:
        table.only("partial_rotary_factor", 1, None)
    for name, value in table.values.items():
        if value is not None and name not in table.used | _HARMLESS:
            raise ModelError(
                f"{table.source}: {name} is {value!r:.40}, which qkv does not support with "
                f"{spelling} {table.values.get(spelling, 'default')!r}"
            )
    return rotary


def _count_rotated(config: Config, size: int, default: float) -> int | None:
    """Return how many of a head's `size` dimensions are rotated; None if all are rotated."""
    part = config.positive_or_none("partial_rotary_factor") or default
    dims = int(size * part)
    if part > 1 or dims < 2 or dims % 2:
        raise ModelError(
            f"{config.source}: partial_rotary_factor is {part:g} and a head has {size} dimensions "
            "(hidden_size / num_attention_heads); partial_rotary_factor must rotate an "
            "even number of dimensions"
        )
    return None if dims == size else dims


def _is_sound(rotary: Rotary, dims: int, length: int) -> bool:
    """Return whether all rotation speeds are finite."""
    with np.errstate(all="ignore"):
        scaling = rotary.scaling or Linear(1.0)
        speeds, scale = scaling.speeds(rotary.base, dims, length)
    return bool(np.isfinite(speeds).all()) and 0 < scale < math.inf


def _need_number(config: Config, key: str) -> float:
    """Return the number at `key`; raise an error if this number is missing or not positive."""
    if config.values.get(key) is None:
        raise ModelError(f"{config.source}: {key} is missing: add it")
    return config.positive(key, 1.0)


def _or_zero(config: Config, key: str) -> float | None:
    """Return a finite, non-negative number, or None if the key is null or missing."""
    if config.values.get(key) == 0:
        config.only(key, 0)
        return 0.0
    return config.positive_or_none(key)


def _original(config: Config, sizes: _Sizes) -> int:
    """Return the context length of pretraining, before scaling extended the context."""
    inside = config.size_or_none("original_max_position_embeddings")
    return sizes.original or inside or sizes.positions


def _dynamic(config: Config, sizes: _Sizes) -> Scaling:
    if sizes.dims < 4:
        raise ModelError(
            f"{config.source}: a head has {sizes.dims} dimensions, but rope_type 'dynamic' needs "
            "at least 4"
        )
    return Dynamic(_need_number(config, "factor"), sizes.positions)


def _yarn(config: Config, sizes: _Sizes) -> Scaling:
    limit = _original(config, sizes)
    if "factor" not in config.values:  # The value null is allowed.
        raise ModelError(f"{config.source}: factor is missing: add it")
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
    """Return YaRN's scale of queries and keys: `0.1 * weight * ln(factor) + 1`, at least 1."""
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
    low, high = (_need_number(config, key) for key in ("low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ModelError(
            f"{config.source}: low_freq_factor is {low:g} and high_freq_factor is {high:g}; "
            "low_freq_factor must be less than high_freq_factor"
        )
    return Llama3(_need_number(config, "factor"), low, high, _original(config, sizes))


def _proportional(config: Config, sizes: _Sizes) -> Scaling:
    part = _or_zero(config, "partial_rotary_factor")
    part = 1.0 if part is None else part
    if part > 1:
        raise ModelError(
            f"{config.source}: partial_rotary_factor is {part:g}: it must be at most 1"
        )
    return Proportional(part, config.positive("factor", 1.0))


# For each `rope_type`, the function that reads its scaling.
_KINDS: Mapping[str, Kind] = {
    "default": lambda config, sizes: None,
    "linear": lambda config, sizes: Linear(_need_number(config, "factor")),
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
# Keys that qkv ignores. The key "finetuned" only describes how the model was trained. Old files
# contain "original_max_position_embeddings" even if their kind of scaling does not use this key.
_HARMLESS = frozenset({"finetuned", "original_max_position_embeddings"})
_LARGEST = 2**16  # The maximum number of dimensions of a head.
