"""Five more kernels in different styles, each with one mistake that is typical of its style."""

import numpy as np


def exp_and_sum(scores):
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(scores - top)
    return e, e.sum(-1, keepdims=True), top


def split_keys(query, key, value, is_causal=False, q_offset=0, scale=None):
    """Flash decoding: blocks of 32 keys, joined by their log-sum-exps.

    The mistake: the blocks' sums are added without rescaling by the maximum of each block.
    """
    L, S = query.shape[2], key.shape[2]
    scale = scale if scale is not None else query.shape[-1] ** -0.5
    scores = np.einsum("bhld,bhsd->bhls", query, key) * scale
    if is_causal:
        hidden = np.arange(S) > np.arange(L)[:, None] + q_offset
        scores[:, :, hidden] = -np.inf
    out, total = 0, 0
    for begin in range(0, S, 32):
        part = slice(begin, begin + 32)
        e, weight, _ = exp_and_sum(scores[..., part])
        out = out + e @ value[:, :, part]
        total = total + weight
    return np.where(total > 0, out / np.where(total > 0, total, 1), 0).astype(query.dtype)


def packed_groups(query, key, value, attn_mask=None):
    """Grouped heads: one product per key head, with the queries of a group in one array.

    The mistake: the rows of groups are unpacked in the wrong order.
    """
    B, Hq, L, d = query.shape
    Hkv, S = key.shape[1:3]
    G = Hq // Hkv
    rows = query.reshape(B, G, Hkv, L, d).swapaxes(1, 2).reshape(B, Hkv, G * L, d)
    scores = rows @ key.swapaxes(-1, -2) / np.sqrt(np.float32(d))
    scores = scores.reshape(B, Hkv, G, L, S).swapaxes(1, 2).reshape(B, Hq, L, S)
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == bool else np.isneginf(attn_mask)
        if attn_mask.dtype != bool:
            scores = scores + np.where(hidden, 0, attn_mask)
        scores = np.where(hidden, -np.inf, scores)
    e, total, _ = exp_and_sum(scores)
    weights = e / np.where(total > 0, total, 1)
    weights = weights.reshape(B, G, Hkv, L, S).swapaxes(1, 2).reshape(B, Hkv, G * L, S)
    out = (weights @ value).reshape(B, Hkv, G, L, -1).swapaxes(1, 2)
    return out.reshape(B, Hq, L, -1).astype(query.dtype)


def banded(query, key, value, window=None, q_offset=0, is_causal=False):
    """Attention with a sliding window: each query gathers its own keys.

    The mistake: the `left` keys of a window include the key of the query itself.
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    left, right = (None, None) if window is None else window
    out = np.zeros((B, H, L, value.shape[-1]), query.dtype)
    for i in range(L):
        position = i + q_offset
        begin = 0 if left is None else max(0, position - left + 1)
        end = S if right is None else min(S, position + right + 1)
        end = min(end, position + 1) if is_causal else end
        if end <= begin:
            continue
        scores = np.einsum("bhd,bhsd->bhs", query[:, :, i], key[:, :, begin:end]) / d**0.5
        e, total, _ = exp_and_sum(scores)
        out[:, :, i] = np.einsum("bhs,bhsd->bhd", e / total, value[:, :, begin:end])
    return out


def with_log2(query, key, value, sinks=None, return_lse=False, softcap=None):
    """Attention with scores in base 2, as in kernels that use exp2.

    The mistake: sinks are not converted to base 2.
    """
    log2e = np.float32(1.4426950408889634)
    scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = np.tanh(scores / np.float32(softcap)) * np.float32(softcap)
    scores = scores * log2e
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        extra = sinks.reshape(sinks.shape[0], 1, -1)
        top = np.maximum(top, extra.max(-1, keepdims=True))
    e = np.exp2(scores - top)
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp2(extra - top).sum(-1, keepdims=True)
    out = (e @ value / total).astype(query.dtype)
    return (out, ((top + np.log2(total)) / log2e)[..., 0]) if return_lse else out


def paged(query, key, value, key_lengths=None, alibi_slopes=None):
    """Attention over pages of 16 keys, as in inference servers.

    The mistake: lengths are rounded up to whole pages.
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    if alibi_slopes is not None and L != S:
        raise NotImplementedError("ALiBi needs as many queries as keys")
    lengths = np.full(B, S) if key_lengths is None else key_lengths
    out = np.zeros((B, H, L, value.shape[-1]), query.dtype)
    for b in range(B):
        pages = -(-int(lengths[b]) // 16)
        last = min(pages * 16, S)
        if not last:
            continue
        k, v = key[b, :, :last], value[b, :, :last]
        scores = query[b] @ k.swapaxes(-1, -2) / np.sqrt(np.float32(d))
        if alibi_slopes is not None:
            away = np.abs(np.arange(L)[:, None] - np.arange(last))
            scores = scores - alibi_slopes[:, None, None] * away
        e, total, _ = exp_and_sum(scores)
        out[b] = e / total @ v
    return out
