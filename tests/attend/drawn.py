"""Random calls of attention, drawn from a seed, with all arguments and sizes near block sizes."""

from typing import Any, NamedTuple

import numpy as np

from . import exact
from .support import BFLOAT16, Array

F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
ADDED = [F32, F32, F64, F16, BFLOAT16]  # types of masks, biases, sinks and slopes
CELLS = 60_000  # roughly the largest L * S * heads, so that 1,000 calls take seconds
SIZES = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 40, 48, 64, 64, 65, 80, 96, 100, 128, 129]


class Case(NamedTuple):
    """The arguments of one call."""

    arrays: tuple[Array, Array, Array]
    options: dict[str, Any]  # including attn_mask


def draw(
    seed: int,
    *,
    kinds: tuple[str, ...] = ("small", "small", "short", "prefill", "ragged"),
    types: tuple[Any, ...] = (F32, F32, F32, F32, F32, F16, BFLOAT16, F64),
    cells: int = CELLS,
) -> Case:
    """Draw one call; the same `seed` always gives the same call."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(_one(rng, types))
    lead, kv_heads, group, L, S = _shape(rng, _one(rng, kinds), cells)
    d = int(_one(rng, SIZES) if rng.random() < 0.9 else rng.integers(1, 257))
    dv = d if rng.random() < 0.6 else int(_one(rng, SIZES))
    if L * S * kv_heads * group > 4000 and rng.random() < 0.8:
        d, dv = min(d, 96), min(dv, 96)
    heads = kv_heads * group

    fronts = [lead] * 3
    if lead and rng.random() < 0.15:  # one array keeps `lead`; the others broadcast to it
        keeper = rng.integers(3)
        fronts = [lead if x == keeper else _part(rng, lead) for x in range(3)]
    shapes = [(heads, L, d), (kv_heads, S, d), (kv_heads, S, dv)]
    sizes = [float(_one(rng, [0.3, 1, 1, 1, 1, 3])), 1.0, float(_one(rng, [1, 1, 1, 30, 1e-3]))]
    if rng.random() < 0.05:  # scores up to about 1e4
        sizes[0] = 2500.0
    if rng.random() < 0.04 and dtype.itemsize > 2:  # a sum of values may overflow float32
        sizes[2] = 5e37 if rng.random() < 0.5 else 1e-30
    query, key, value = (
        _numbers(rng, (*front, *shape), dtype, size)
        for front, shape, size in zip(fronts, shapes, sizes, strict=True)
    )
    options = _options(rng, lead, heads, L, S)
    case = Case((query, key, value), options)
    if rng.random() < 0.5:
        _poison(rng, case)
    if rng.random() < 0.12:
        _spoil(rng, case)
    query, key, value = (_laid_out(rng, x) for x in case.arrays)
    for name in ("attn_mask", "bias"):
        if name in options:
            options[name] = _laid_out(rng, options[name], cells=True)
    if rng.random() < 0.04 and lead == () and heads == 1:
        squeezed = {
            name: x[0] if name in ("attn_mask", "bias") and x.ndim == 3 else x
            for name, x in options.items()
        }
        return Case((query[0], key[0], value[0]), squeezed)
    return Case((query, key, value), options)


def _one(rng: np.random.Generator, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def _shape(
    rng: np.random.Generator, kind: str, cells: int
) -> tuple[tuple[int, ...], int, int, int, int]:
    """Draw `lead`, the number of key heads, the number of query heads in a group, L and S."""
    lead = _one(rng, [(), (), (1,), (2,), (2,), (3,), (2, 2), (1, 3)])
    kv_heads, group = int(rng.integers(1, 4)), int(_one(rng, [1, 1, 1, 2, 3, 4]))
    if kind == "small":
        L, S = (int(n) for n in rng.integers(1, 24, 2))
        if rng.random() < 0.04:
            L, S = _one(rng, [(0, S), (L, 0), (0, 0)])
    elif kind == "short":  # decoding
        L = int(_one(rng, [1, 1, 1, 2, 3, 4, 5, 7, 8, 11, 16]))
        S = int(_one(rng, [33, 255, 256, 257, 300, 513, 700, 1024, 1025, 1300, 2100]))
        S = S if rng.random() < 0.8 else int(rng.integers(1, 1100))
        group = int(_one(rng, [1, 2, 4, 5, 8]))
    elif kind == "prefill":
        L = int(_one(rng, [17, 28, 29, 63, 64, 65, 127, 130, 200, 257, rng.integers(17, 301)]))
        S = L if rng.random() < 0.5 else int(_one(rng, [1, 7, 31, 64, 255, 256, 257, 300, 400]))
    else:  # ragged: any two lengths
        L, S = int(rng.integers(1, 80)), int(rng.integers(1, 300))
    while L * S * kv_heads * group * int(np.prod(lead)) > cells:
        if lead:
            lead = lead[1:]
        elif kv_heads > 1:
            kv_heads -= 1
        elif group > 1:
            group -= 1
        else:
            break
    return lead, kv_heads, group, L, S


def _part(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to `shape`."""
    kept = shape[rng.integers(len(shape) + 1) :]
    return tuple(1 if rng.random() < 0.4 else size for size in kept)


def _numbers(rng: np.random.Generator, shape: Any, dtype: Any, size: float = 1.0) -> Array:
    return (rng.standard_normal(shape) * size).astype(dtype)


def _options(
    rng: np.random.Generator, lead: tuple[int, ...], heads: int, L: int, S: int
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    cells = (*lead, heads, L, S)
    share = _one(rng, [0.1, 0.25, 0.4])  # the probability that an argument is given
    lowest = rng.random() < 0.15  # whether a mask holds finfo.min instead of -inf

    def given() -> bool:
        return bool(rng.random() < share)

    def added(size: float) -> Array:
        x = np.asarray(rng.standard_normal(_part(rng, cells)) * size)
        dtype = _one(rng, ADDED)
        if rng.random() < 0.6:
            return np.where(_pattern(rng, x.shape), x, -np.inf).astype(dtype)
        return x.astype(dtype)

    if given():
        if rng.random() < 0.55:
            options["attn_mask"] = _pattern(rng, _part(rng, cells))
        else:
            options["attn_mask"] = mask = added(_one(rng, [1.0, 5.0]))
            if lowest:
                limits = np.finfo(mask.dtype if mask.dtype == F16 else F32)
                least = np.asarray(limits.min).astype(mask.dtype)
                mask[np.isneginf(mask.astype(float))] = (
                    least if np.isfinite(least.astype(float)) else -3e38
                )
    if given():
        options["bias"] = added(_one(rng, [1.0, 5.0, 100.0]))
    if given():
        options["is_causal"] = True
    if given():
        sides = [None, 0, 1, 3, 16, 40, 100, 255, int(rng.integers(0, 300)), 2**50]
        options["window"] = (_one(rng, sides), _one(rng, sides))
    if given():
        slopes = _one(rng, [rng.random(heads), 2.0 ** -np.arange(1, heads + 1), -rng.random(heads)])
        options["alibi_slopes"] = slopes.astype(_one(rng, ADDED))
    placed = options.keys() & {"is_causal", "window", "alibi_slopes"}
    if given() or (placed and (L != S or rng.random() < 0.3)):
        options["q_offset"] = (
            _one(rng, ["end", "end", "start"])
            if rng.random() < 0.5
            else _of_rows(rng, lead, -L - 5, S + 5)
        )
        if rng.random() < 0.04:
            far = 2**40 if "alibi_slopes" in options else 2**62
            options["q_offset"] = _one(rng, [-far, far])
    if given():
        options["softcap"] = _one(rng, [0.3, 2, 15.0, 50.0])
    if given():
        shape = _one(rng, [(heads,), (heads, 1), (heads, 2), (heads, 3), (heads, 0)])
        options["sinks"] = (rng.standard_normal(shape) * 3).astype(_one(rng, ADDED))
    if given():
        options["scale"] = _one(rng, [1.0, 0.25, -0.5, 0.0, 1e-3])
    if given():
        options["query_lengths"] = _of_rows(rng, lead, _one(rng, [0, L // 2, L]), L)
    if given():
        options["key_lengths"] = _of_rows(rng, lead, _one(rng, [0, S // 2, S]), S)
    return options


def _pattern(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw a boolean mask: random cells, runs of keys, few keys, all cells, or blind queries."""
    way = rng.integers(5)
    if way == 0 or not shape:
        return np.asarray(rng.random(shape) < _one(rng, [0.05, 0.5, 0.9]))
    if way == 1:  # each query sees a run of keys, with a random start and length
        begin = rng.integers(0, shape[-1] + 1, (*shape[:-1], 1))
        end = begin + rng.integers(0, shape[-1] + 1, (*shape[:-1], 1))
        j = np.arange(shape[-1])
        return np.asarray((j >= begin) & (j < end))
    if way == 2:  # most keys are masked for every query
        return np.broadcast_to(rng.random(shape[-1]) < 0.3, shape).copy()
    if way == 3:
        return np.ones(shape, bool)
    left = np.ones(shape, bool)  # some queries see nothing
    left[rng.random(shape[:-1]) < 0.3] = False
    return left


def _of_rows(rng: np.random.Generator, lead: tuple[int, ...], least: int, most: int) -> Any:
    """Draw an int, or an array of ints that broadcasts to the leading dimensions."""
    shape = _part(rng, lead)
    if not shape:
        return int(rng.integers(least, most + 1))
    kind = _one(rng, [np.int64, np.int32, np.int16])
    return rng.integers(least, most + 1, shape).astype(kind)


def _shrunk(hidden: Array, shape: tuple[int, ...]) -> Array:
    """Reduce `hidden` to the `shape` of a broadcast array: True where all copies are masked."""
    axes = tuple(range(hidden.ndim - len(shape)))
    hidden = hidden.all(axis=axes)
    kept = tuple(x for x, size in enumerate(shape) if size == 1)
    return np.broadcast_to(hidden.all(axis=kept, keepdims=True), shape)


def _poison(rng: np.random.Generator, case: Case) -> None:
    """Put NaN, infinity or large numbers at masked positions, which must not affect results."""
    query, key, value = case.arrays
    options = case.options
    seen = exact.visible(*case.arrays, **options)
    heads, kv_heads = seen.shape[-3], key.shape[-3]
    by_key = seen.reshape(*seen.shape[:-3], kv_heads, heads // kv_heads, *seen.shape[-2:])
    unseen = ~by_key.any(axis=(-3, -2))  # (..., Hkv, S)
    poison = [np.nan, np.nan, np.inf, -np.inf, 1e4]
    for x, hidden in ((query, ~seen.any(axis=-1)), (key, unseen), (value, unseen)):
        x[_shrunk(hidden, x.shape[:-1])] = _one(rng, poison)
    for name in ("attn_mask", "bias"):
        x = options.get(name)
        if x is not None and x.dtype != bool:
            others = exact.visible(*case.arrays, **options | {name: None})
            x[_shrunk(~others, x.shape)] = _one(rng, [*poison, -np.inf])


def _spoil(rng: np.random.Generator, case: Case) -> None:
    """Put a NaN or an infinity at a random position, masked or not."""
    spoiler = _one(rng, [np.nan, np.nan, np.inf, -np.inf])
    given = [*case.arrays, *(case.options.get(x) for x in ("attn_mask", "bias", "sinks"))]
    given = [x for x in given if x is not None and x.dtype != bool and x.size]
    if given:
        spoiled = _one(rng, given)
        spoiled.reshape(-1)[rng.integers(spoiled.size)] = spoiler


def _laid_out(rng: np.random.Generator, x: Array, cells: bool = False) -> Array:
    """Return the same numbers in another memory layout, with NaN (or True) in the gaps."""
    way = rng.random()
    gap = True if x.dtype == bool else np.nan
    if way < 0.15 and x.ndim > 2:  # (..., T, H, d)
        return np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2)
    if way < 0.3 and x.ndim > 1:  # a slice of a larger array
        sizes = [size + int(rng.integers(0, 4)) for size in x.shape]
        larger = np.full(sizes, gap, x.dtype)
        part = tuple(slice(0, size) for size in x.shape)
        larger[part] = x
        return larger[part]
    if way < 0.36 and x.ndim > 1:  # every other row
        larger = np.full((*x.shape[:-2], 2 * x.shape[-2], x.shape[-1]), gap, x.dtype)
        larger[..., ::2, :] = x
        return larger[..., ::2, :]
    if way < 0.4 and x.ndim > 1:
        return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]
    if way < (0.5 if cells else 0.44) and x.ndim > 1:  # the last axis is not contiguous
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if way < (0.54 if cells else 0.46) and x.ndim:
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    if way < 0.48 and x.dtype not in (bool, BFLOAT16):
        return x.astype(x.dtype.newbyteorder())
    if way < 0.55:
        x = x.copy()
        x.flags.writeable = False
    return x
