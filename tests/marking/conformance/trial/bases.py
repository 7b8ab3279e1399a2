"""Correct kernels, of which the tables replace lines: one softmax, tiles, splits, a backward pass.

Each step has a line of its own, so that a table can name the line by its text.
"""

import math as math

import numpy as np

from .pieces import (
    answer,
    as_contiguous as as_contiguous,
    finite,
    mix,
    quiet,
    softmax as softmax,
    split_mask,
    starts,
)


def prepare(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    bias=None,
    alibi_slopes=None,
    softcap=None,
    sinks=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
):
    """Return queries, keys, values, scores, visible keys, and the sinks as further scores."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]  # noqa: RUF059 (changes in the tables read dv)
    group = H // G
    factor = d**-0.5 if scale is None else scale
    left, right = (None, None) if window is None else window
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    k = np.repeat(k, group, axis=1)
    v = np.repeat(v, group, axis=1)
    i, j = np.arange(L)[:, None], np.arange(S)
    start = starts(q_offset, B, L, S).reshape(B, 1, 1, 1)
    ahead = j - i - start  # (B, 1, L, S)
    far = np.abs(ahead)
    products = q @ k.swapaxes(2, 3)
    scores = products * factor
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    seen = np.ones((B, H, L, S), bool)
    if attn_mask is not None:
        mask_seen, mask_added = split_mask(attn_mask)
        seen &= mask_seen
        scores = scores + mask_added
    if bias is not None:
        bias_seen, bias_added = split_mask(bias)
        seen &= bias_seen
        scores = scores + bias_added
    if alibi_slopes is not None:
        slopes = np.reshape(alibi_slopes, (H, 1, 1)).astype(np.float64)
        scores = scores - slopes * far
    if is_causal:
        seen &= ahead <= 0
    if left is not None:
        seen &= ahead >= -left
    if right is not None:
        seen &= ahead <= right
    if key_lengths is not None:
        lengths = np.reshape(key_lengths, (B, 1, 1, 1))
        seen &= j < lengths
    if query_lengths is not None:
        seen &= i < np.reshape(query_lengths, (B, 1, 1, 1))
    scores = np.where(seen, scores, -np.inf)
    extra = np.zeros((H, 1, 0))
    if sinks is not None:
        extra = np.reshape(sinks, (H, 1, -1)).astype(np.float64)
    return q, k, v, scores, seen, extra


@quiet
def plain(query, key, value, return_weights=False, return_lse=False, **options):
    """Compute one softmax over all keys."""
    _, _, v, scores, seen, extra = prepare(query, key, value, **options)
    B, H, L, S = scores.shape  # noqa: RUF059 (changes in the tables read all four)
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    peak = np.maximum(peak, extra.max(axis=-1, keepdims=True, initial=-np.inf))
    peak = finite(peak)
    parts = np.exp(scores - peak)
    total = parts.sum(axis=-1, keepdims=True)
    total = total + np.exp(extra - peak).sum(axis=-1, keepdims=True)
    weights = parts / np.where(total == 0, 1, total)
    lse = peak + np.log(total)
    out = mix(weights, seen, v)
    return answer(query, out, weights, lse[..., 0], return_weights, return_lse)


@quiet
def tiled(query, key, value, return_weights=False, return_lse=False, **options):
    """Keep a running maximum, sum and output over tiles of keys."""
    _, _, v, scores, seen, extra = prepare(query, key, value, **options)
    B, H, L, S = scores.shape
    peak = np.full((B, H, L, 1), -np.inf)
    peak = np.maximum(peak, extra.max(axis=-1, keepdims=True, initial=-np.inf))
    total = np.exp(extra - finite(peak)).sum(axis=-1, keepdims=True)
    out = np.zeros((B, H, L, value.shape[3]))
    weights = np.zeros((B, H, L, S))
    tile = 16
    for first in range(0, S, tile):
        part = slice(first, first + tile)
        higher = np.maximum(peak, scores[..., part].max(axis=-1, keepdims=True))
        safe = finite(higher)
        parts = np.exp(scores[..., part] - safe)
        fade = np.exp(peak - safe)
        total = total * fade + parts.sum(axis=-1, keepdims=True)
        out = out * fade + mix(parts, seen[..., part], v[:, :, part])
        weights *= fade
        weights[..., part] = parts
        peak = higher
    safe = np.where(total == 0, 1, total)
    lse = finite(peak) + np.log(total)
    return answer(query, out / safe, weights / safe, lse[..., 0], return_weights, return_lse)


@quiet
def split(query, key, value, return_lse=False, **options):
    """Compute a softmax for each split of the keys, and join the results by their LSE."""
    _, _, v, scores, seen, extra = prepare(query, key, value, **options)
    S = scores.shape[3]
    size = max((S + 1) // 2, 1)
    outs, lses = [], []
    for first in range(0, max(S, 1), size):
        part = slice(first, first + size)
        sink = np.where(first == 0, extra, -np.inf)
        peak = scores[..., part].max(axis=-1, keepdims=True, initial=-np.inf)
        peak = np.maximum(peak, sink.max(axis=-1, keepdims=True, initial=-np.inf))
        peak = finite(peak)
        parts = np.exp(scores[..., part] - peak)
        total = parts.sum(axis=-1, keepdims=True) + np.exp(sink - peak).sum(axis=-1, keepdims=True)
        weights = parts / np.where(total == 0, 1, total)
        outs.append(mix(weights, seen[..., part], v[:, :, part]))
        lses.append(peak + np.log(total))
    top = finite(np.max(lses, axis=0))
    shares = [np.exp(one - top) for one in lses]
    whole = sum(shares)
    out = sum(share * one for share, one in zip(shares, outs, strict=True))
    out = out / np.where(whole == 0, 1, whole)
    lse = top + np.log(whole)
    return answer(query, out, lse, lse[..., 0], False, return_lse)


@quiet
def backward(query, key, value, grad_out, **options):
    """Return the gradients of query, key and value; the weights come from scores and LSE."""
    q, k, v, scores, seen, _ = prepare(query, key, value, **options)
    B, G, S, d = key.shape
    scale, softcap = options.get("scale"), options.get("softcap")
    factor = d**-0.5 if scale is None else scale
    up = grad_out.astype(np.float64)
    lse = softmax(scores)[1][..., None]
    weights = np.exp(scores - finite(lse))
    delta = (up * mix(weights, seen, v)).sum(axis=-1, keepdims=True)
    d_scores = weights * (np.where(seen, up @ v.swapaxes(2, 3), 0) - delta)
    if softcap is not None:
        capped = np.tanh(q @ k.swapaxes(2, 3) * factor / softcap)
        d_scores = np.where(seen, d_scores * (1 - capped**2), 0)
    d_scores = d_scores * factor
    d_query = mix(d_scores, seen, k)
    d_key = d_scores.swapaxes(2, 3) @ q
    d_value = weights.swapaxes(2, 3) @ up
    d_key = d_key.reshape(B, G, -1, S, d).sum(axis=2)
    d_value = d_value.reshape(B, G, -1, S, value.shape[3]).sum(axis=2)
    return tuple(x.astype(query.dtype) for x in (d_query, d_key, d_value))
