"""The attention formula as a table of lines of code; a defect replaces some of these lines."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.attend.formula import weigh
from qkv_marking._formula import Formula, Lines
from qkv_marking._tiles import (
    average_tiles,
    count_idle_tiles,
    divide_each_tile,
    join_in_base_2,
    join_in_base_e,
    kept_maximum,
    lagging_maximum,
    running_maximum,
    skipped_rescaling,
    tile_maximum,
)

# Scores have shape (B, H, L, S): batch, heads, queries, keys. Positions of queries are i, and
# positions of keys are j. G is the number of query heads per key head.
LINES = MappingProxyType(
    {
        "heads": "k, v = key.repeat(G, axis=1), value.repeat(G, axis=1)",
        "factor": "factor = d**-0.5 if scale is None else scale",
        "scores": "s = query @ k.swapaxes(-1, -2) * factor",
        "softcap": "if softcap is not None: s = softcap * np.tanh(s / softcap)",
        "bias": "if bias is not None: s = s + bias",
        "position": "position = i + q_offset",
        "alibi": "if slopes is not None: s = s - slopes * abs(position - j)",
        "added": "if added is not None: s = s + added  # a float mask",
        "seen": "seen = np.ones(s.shape, bool)",
        "allowed": "if allowed is not None: seen = seen & allowed  # a bool mask",
        "minus inf": "if added is not None: seen = seen & (added != -np.inf)",
        "bias minus inf": "if bias is not None: seen = seen & (bias != -np.inf)",
        "causal": "if is_causal: seen = seen & (j <= position)",
        "left": "if left is not None: seen = seen & (j >= position - left)",
        "right": "if right is not None: seen = seen & (j <= position + right)",
        "key_lengths": "if key_lengths is not None: seen = seen & (j < key_lengths)",
        "query_lengths": "if query_lengths is not None: seen = seen & (i < query_lengths)",
        "hide": "s = np.where(seen, s, -np.inf)",
        "top": "top = s.max(-1, keepdims=True, initial=-np.inf)",
        "sink top": "if sinks is not None: top = np.maximum(top, sinks.max(-1, keepdims=True))",
        "finite top": "top = np.where(top == -np.inf, 0, top)",
        "exp": "e = np.exp(s - top)",
        "total": "total = e.sum(-1, keepdims=True)",
        "sinks": "if sinks is not None: total = total + np.exp(sinks - top).sum(-1, keepdims=True)",
        "weights": "w = np.where(seen, e / total, 0)",
        "out": "out = weigh(w, v, seen)  # w @ v",
        "lse": "lse = (top + np.log(total))[..., 0]",
    }
)


_SCORES = ("scores", "softcap", "bias", "alibi", "added")
# the variable that each line sets, keyed by the name of the line; `run` rounds these variables
_RESULTS = MappingProxyType(
    {**dict.fromkeys((*_SCORES, "hide"), "s"), "finite top": "top", "exp": "e", "sinks": "total"}
    | {"weights": "w", "out": "out", "lse": "lse"}
)


# the lines of the backward pass; they run only if there is an upstream gradient
GRADIENT = MappingProxyType(
    {
        "d_value": "d_value = w.swapaxes(-1, -2) @ grad_out",
        "d_w": "d_w = grad_out @ v.swapaxes(-1, -2)",
        "d_s": "d_s = w * (d_w - (grad_out * out).sum(-1, keepdims=True))",
        "d_softcap": "if softcap is not None: d_s = d_s * (1 - (capped / softcap) ** 2)",
        "d_query": "d_query = d_s @ k * factor",
        "d_key": "d_key = d_s.swapaxes(-1, -2) @ query * factor",
        "d_heads": "d_key, d_value = (x.reshape(B, Hkv, G, S, -1).sum(2)"
        " for x in (d_key, d_value))",
    }
)


class Expected(NamedTuple):
    """The results of a call, either right or with a defect."""

    out: Array
    weights: Array
    lse: Array
    seen: Array
    largest: float  # the largest absolute score of an unmasked key, over all lines of `_SCORES`
    d_query: Array | None = None
    d_key: Array | None = None
    d_value: Array | None = None


def run(values: Mapping[str, Any], changes: Lines | None = None, dtype: Any = None) -> Expected:
    """Run the formula's lines on the values of a case.

    Args:
        values: the variables that the lines use.
        changes: replacements for lines, keyed by the name of the line.
        dtype: the dtype to which the result of each line is rounded.
    """
    steps: list[Array] = []

    def after(name: str, names: dict[str, Any]) -> None:
        if name == "softcap":
            names["capped"] = names["s"]
        if name in _SCORES:
            steps.append(names["s"])
        if dtype is not None and name in _RESULTS:
            names[_RESULTS[name]] = names[_RESULTS[name]].astype(dtype)

    lines = LINES | GRADIENT if values.get("grad_out") is not None else LINES
    names = Formula(lines, helpers=_HELPERS).run(values, changes, after)
    seen = np.broadcast_to(names["seen"], names["s"].shape)
    sizes = (np.abs(step[seen]) for step in (*steps, names["s"]) if step.shape == seen.shape)
    largest = max((float(x[np.isfinite(x)].max(initial=0)) for x in sizes), default=0.0)
    gradients = (names.get(name) for name in ("d_query", "d_key", "d_value"))
    return Expected(names["out"], names["w"], names["lse"], seen, largest, *gradients)


def _sees_no_tile(seen: Array, tile: int) -> Array:
    """Return the rows that see some keys, but no key of some tile: (..., 1)."""
    parts = [seen[..., j : j + tile].any(-1, keepdims=True) for j in range(0, seen.shape[-1], tile)]
    found: Array = np.any(parts, axis=0) & ~np.all(parts, axis=0)
    return found


def _round(x: Array, bits: float) -> Array:
    """Round to `bits` bits after the leading bit: 10 for TF32 and float16, 7 for bfloat16."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent)


def _sum(x: Array, bits: float) -> Array:
    """Sum over the last axis, and round the running sum after each group of 16 numbers."""
    total = np.zeros((*x.shape[:-1], 1))
    for j in range(0, x.shape[-1], 16):
        total = _round(total + x[..., j : j + 16].sum(-1, keepdims=True), bits)
    return total


def _add_in(dtype: Any, x: Array) -> Array:
    """Sum over the last axis one number after another, and round each sum to the dtype."""
    total = np.zeros((*x.shape[:-1], 1), dtype)
    for j in range(x.shape[-1]):
        total = (total + x[..., j : j + 1].astype(dtype)).astype(dtype)
    return total.astype(x.dtype)


def _turn(mask: Array, s: Array) -> Array:
    """Read the memory of a mask (..., L, S) as an array (..., S, L)."""
    whole = np.broadcast_to(mask, s.shape) if mask.ndim < 4 else mask
    if whole.shape[-2:] != s.shape[-2:]:
        return mask
    return whole.reshape(*whole.shape[:-2], s.shape[-1], s.shape[-2]).swapaxes(-1, -2)


def _tile_heads(mask: Array, B: int, H: int) -> Array:
    """Repeat a mask (B, 1, L, S) so that head h of batch b has the mask of batch (b H + h) % B."""
    if mask.ndim < 4 or mask.shape[:2] != (B, 1) or not B:
        return mask
    tiled: Array = mask[np.arange(B * H).reshape(B, H) % B, 0]
    return tiled


def _read_on(mask: Array, s: Array) -> Array:
    """Read S successive entries from the start of each row of a mask (..., L, 1)."""
    if mask.shape[-1] != 1 or not s.size:
        return mask
    rows = np.broadcast_to(mask, (*s.shape[:-1], 1)).ravel()
    read: Array = rows[(np.arange(rows.size)[:, None] + np.arange(s.shape[-1])) % rows.size]
    return read.reshape(s.shape)


def _fill_blocks(allowed: Array, size: int) -> Array:
    """Show all entries of the blocks of a mask whose corners are visible."""
    filled: Array = allowed.copy()
    for i in range(0, allowed.shape[-2], size):
        for j in range(0, allowed.shape[-1], size):
            block = allowed[..., i : i + size, j : j + size]
            corners: Array = np.all(block[..., [0, 0, -1, -1], [0, -1, 0, -1]], axis=-1)
            filled[..., i : i + size, j : j + size] |= corners[..., None, None]
    return filled


def _of_heads(x: Array, index: Array) -> Array:
    """Select heads of an array (..., H, L, S), unless the array has one head for all."""
    return x[..., index, :, :] if x.ndim > 2 and x.shape[-3] == len(index) else x


def _of_batches(x: Array, index: Array) -> Array:
    """Select batches of an array (B, H, L, S), unless the array has one batch for all."""
    return x[index] if np.ndim(x) == 4 and len(x) == len(index) else x


def _exponent_bits(x: Array) -> Array:
    """Return 2 ** x; the whole part of x is written into the exponent of a float32."""
    whole = np.rint(np.where(np.isfinite(x), x, 0))
    bits = ((whole.astype(np.int64) + 127) << 23).astype(np.int32)
    return np.where(np.isnan(x), x, np.exp2(x - whole) * bits.view(np.float32).astype(float))


def _quantize(x: Array, most: float, axes: int | tuple[int, ...] | None) -> Array:
    """Round to `most` steps on both sides of 0; numbers along `axes` share the size of a step."""
    step = np.abs(x).max(axis=axes, keepdims=True, initial=0) / most
    rounded: Array = np.round(x / np.where(step == 0, 1, step)) * step
    return rounded


def _taylor(x: Array, degree: int) -> Array:
    """Return the Taylor polynomial of exp."""
    term = total = np.ones_like(x)
    for n in range(1, degree + 1):
        term = term * x / n
        total = total + term
    return total


_HELPERS = MappingProxyType(
    {
        "weigh": weigh,
        "turned": _turn,
        "tiled_heads": _tile_heads,
        "read_on": _read_on,
        "filled_blocks": _fill_blocks,
        "joined_in_base_2": join_in_base_2,
        "joined_in_base_e": join_in_base_e,
        "kept_maximum": kept_maximum,
        "of_heads": _of_heads,
        "of_batches": _of_batches,
        "exponent_bits": _exponent_bits,
        "quantized": _quantize,
        "taylor": _taylor,
        "running": running_maximum,
        "lagging": lagging_maximum,
        "own_top": tile_maximum,
        "divided": divide_each_tile,
        "sees_no_tile": _sees_no_tile,
        "rounded": _round,
        "summed": _sum,
        "added_in": _add_in,
        "skipped": skipped_rescaling,
        "idle_tiles": count_idle_tiles,
        "tiles": average_tiles,
    }
)
