"""Defective kernels: tiles, splits, head mapping and memory layout."""

import math

import numpy as np

from .pieces import ahead, double, like, log_sum, masked, mix, softmax, spread


def last_tile_padded_with_zero_keys(query, key, value):
    """The last tile is filled with zero keys, whose scores of 0 take part in the softmax.

    https://github.com/flashinfer-ai/flashinfer/pull/5090
    """
    H, S, tile = query.shape[1], key.shape[2], 8
    pad = [(0, 0), (0, 0), (0, -S % tile), (0, 0)]
    q = query.astype(np.float64)
    k, v = (np.pad(x, pad) for x in double(spread(key, H), spread(value, H)))
    return mix(softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])), v).astype(query.dtype)


def keys_after_last_full_tile_dropped(query, key, value, is_causal=False, tile_size=4):
    """Only whole tiles of keys are read, and the rest of the keys is dropped.

    https://github.com/jax-ml/jax/issues/27224
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    whole = S // tile_size * tile_size if tile_size <= S else S
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    return mix(softmax(scores[..., :whole]), v[:, :, :whole]).astype(query.dtype)


def accumulator_never_rescaled(query, key, value, scale=None):
    """When the running maximum grows, the old sums are not rescaled.

    https://github.com/paiml/aprender/issues/2753
    """
    B, H, L, d = query.shape
    q, k, v = double(query, spread(key, H), spread(value, H))
    q = q * (1 / math.sqrt(d) if scale is None else scale)
    total = np.zeros((B, H, L, 1))
    out = np.zeros((B, H, L, v.shape[-1]))
    peak = np.full((B, H, L, 1), -np.inf)
    for start in range(0, k.shape[2], 4):
        scores = q @ k[:, :, start : start + 4].swapaxes(-1, -2)
        np.maximum(peak, scores.max(axis=-1, keepdims=True), out=peak)
        parts = np.exp(scores - peak)
        total += parts.sum(axis=-1, keepdims=True)
        out += parts @ v[:, :, start : start + 4]
    return (out / np.where(total == 0, 1, total)).astype(query.dtype)


def divided_at_every_tile(query, key, value):
    """The output is divided by the running sum at every tile, not once at the end.

    https://github.com/1bit-MONSTER/1bit-MONSTER/pull/495
    """
    B, H, L, d = query.shape
    out = np.zeros((B, H, L, value.shape[-1]))
    for b, h in np.ndindex(B, H):
        own = h * key.shape[1] // H
        q, k, v = double(query[b, h], key[b, own], value[b, own])
        peak, total = np.full((L, 1), -np.inf), np.zeros((L, 1))
        for start in range(0, len(k), 8):
            scores = q @ k[start : start + 8].T / math.sqrt(d)
            higher = np.maximum(peak, scores.max(axis=-1, keepdims=True))
            fix, parts = np.exp(peak - higher), np.exp(scores - higher)
            total = total * fix + parts.sum(axis=-1, keepdims=True)
            out[b, h] = (out[b, h] * fix + parts @ v[start : start + 8]) / total
            peak = higher
    return out.astype(query.dtype)


def no_maximum_subtracted(query, key, value, attn_mask=None):
    """The softmax does not subtract the maximum, so that large scores overflow.

    https://github.com/huggingface/candle/pull/267
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), attn_mask)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = np.exp(scores)
        total = parts.sum(axis=-1, keepdims=True)
        weights = parts / np.where(total == 0, 1, total)
    return mix(weights, v).astype(query.dtype)


def maximum_starts_at_minus_5000(query, key, value):
    """The running maximum starts at -5000, so that rows of lower scores become 0 (-5e4 there).

    https://github.com/flashinfer-ai/flashinfer/issues/4267
    """
    B, H, L, d = query.shape
    q, k, v = double(query, spread(key, H), spread(value, H))
    peak, total = np.full((B, H, L, 1), -5000.0), np.zeros((B, H, L, 1))
    out = np.zeros((B, H, L, v.shape[-1]))
    for start in range(0, k.shape[2], 32):
        scores = np.einsum("bhld,bhsd->bhls", q, k[:, :, start : start + 32]) / math.sqrt(d)
        higher = np.maximum(peak, scores.max(axis=-1, keepdims=True))
        fix, parts = np.exp(peak - higher), np.exp(scores - higher)
        total = total * fix + parts.sum(axis=-1, keepdims=True)
        out = out * fix + parts @ v[:, :, start : start + 32]
        peak = higher
    return np.divide(out, total, out=np.zeros_like(out), where=total != 0).astype(query.dtype)


def hidden_split_gives_nan(query, key, value, attn_mask=None):
    """Where one of two splits of the keys is wholly hidden, merging them gives NaN.

    https://github.com/tile-ai/tilelang/issues/328
    """
    H, d = query.shape[1], query.shape[3]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(d), attn_mask)
    half = (S + 1) // 2
    if S < 2:
        return mix(softmax(scores), v).astype(query.dtype)
    out, total, peak = 0, 0, scores.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        for part in slice(0, half), slice(half, S):
            own = scores[..., part].max(axis=-1, keepdims=True)
            weights = np.exp(scores[..., part] - own)
            share = np.exp(own - peak)
            out = out + share * mix(weights, v[:, :, part])
            total = total + share * weights.sum(axis=-1, keepdims=True)
        blind = peak == -np.inf
        return np.where(blind, 0, out / np.where(blind, 1, total)).astype(query.dtype)


def value_blocks_of_another_size(query, key, value):
    """Keys are read in blocks of d rows, values in steps of dv rows: they drift apart if d != dv.

    https://github.com/ikawrakow/ik_llama.cpp/pull/2031
    """
    H, d, dv, S = query.shape[1], query.shape[3], value.shape[3], key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    weights = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(d))
    out = np.zeros((*query.shape[:3], dv))
    for block, start in enumerate(range(0, S, d)):
        stop = min(start + d, S)
        rows = (block * dv + np.arange(stop - start)) % S
        out += weights[..., start:stop] @ v[:, :, rows]
    return out.astype(query.dtype)


def key_heads_tiled(query, key, value, scale=None):
    """Query head h reads key head h % Hkv: the key heads are tiled, not repeated.

    https://github.com/onnx/onnx/pull/7274
    """
    group = query.shape[1] // key.shape[1]
    q = query.astype(np.float64)
    k, v = (np.tile(x, (1, group, 1, 1)) for x in double(key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return mix(softmax(q @ k.swapaxes(-1, -2) * factor), v).astype(query.dtype)


def head_tile_crosses_group(query, key, value):
    """Heads are computed in pairs, and the second of a pair reads the key head of the first.

    https://github.com/FlashML-org/FreeToken/pull/177
    """
    B, H, L, d = query.shape
    group = H // key.shape[1]
    out = np.zeros((B, H, L, value.shape[-1]))
    for first in range(0, H, 2 if group > 1 else 1):
        heads = slice(first, first + (2 if group > 1 else 1))
        own = first // group
        q, k, v = double(query[:, heads], key[:, own : own + 1], value[:, own : own + 1])
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
        out[:, heads] = softmax(scores) @ v
    return out.astype(query.dtype)


def values_read_in_memory_order(query, key, value, is_causal=False):
    """The values are read as they lie in memory, as if they were contiguous.

    https://github.com/flagos-ai/FlagGems/issues/5896
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    flat = value.ravel(order="K")
    q, k, v = double(query, spread(key, H), spread(flat.reshape(value.shape), H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def lse_of_last_split(query, key, value, return_lse=False):
    """With keys in two splits, the LSE is that of the last split.

    https://github.com/flashinfer-ai/flashinfer/pull/58
    """
    H, S = query.shape[1], key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    out = mix(softmax(scores), v).astype(query.dtype)
    lse = np.full(scores.shape[:-1], -np.inf)
    for start in range(0, S, max((S + 1) // 2, 1)):
        lse = log_sum(scores[..., start : start + max((S + 1) // 2, 1)])
    return (out, like(lse, query)) if return_lse else out
