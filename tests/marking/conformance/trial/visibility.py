"""Defective kernels: masks, causal masks, windows, lengths and offsets."""

import math

import numpy as np

from .pieces import ahead, double, like, masked, mix, softmax, spread, starts, within


def causal_from_first_key(query, key, value, is_causal=False):
    """The causal mask aligns the first query with the first key, although the cache is longer.

    https://github.com/gittensor-ai-lab/sparkinfer/issues/3
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    out = np.zeros((B, H, L, v.shape[-1]))
    for i in range(L):
        end = min(S, i + 1) if is_causal else S
        scores = np.einsum("bhd,bhsd->bhs", q[:, :, i], k[:, :, :end]) / math.sqrt(d)
        out[:, :, i] = np.einsum("bhs,bhsv->bhv", softmax(scores), v[:, :, :end])
    return out.astype(query.dtype)


def causal_switches_corner(query, key, value, is_causal=False):
    """With more queries than keys, the causal mask aligns the first query with the first key.

    https://github.com/ml-explore/mlx/pull/2967
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(np.tri(L, S, max(S - L, 0), dtype=bool), scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def causal_lost_with_weights(query, key, value, is_causal=False, return_weights=False):
    """When the caller asks for the weights, the causal mask is dropped.

    https://github.com/keras-team/keras/issues/23038
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if return_weights:
        weights = softmax(scores)
        return mix(weights, v).astype(query.dtype), like(weights, query)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def mask_dropped_when_causal(query, key, value, attn_mask=None, is_causal=False):
    """With is_causal, the kernel ignores the mask that it is given.

    https://github.com/AI-Hypercomputer/maxtext/issues/878
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    mask = ahead(L, S, S - L) <= 0 if is_causal else attn_mask
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(d), mask)
    return mix(softmax(scores), v).astype(query.dtype)


def inverted_mask(query, key, value, attn_mask=None):
    """True hides a key instead of showing it.

    https://github.com/lucidrains/x-transformers/issues/160
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = np.einsum("bhid,bhjd->bhij", q, k) * query.shape[-1] ** -0.5
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = np.where(np.broadcast_to(attn_mask, scores.shape), -np.inf, scores)
    else:
        scores = masked(scores, attn_mask)
    return mix(softmax(scores), v).astype(query.dtype)


def mask_of_batch_0(query, key, value, attn_mask=None):
    """All rows of the batch use the mask of row 0.

    https://github.com/lucidrains/graph-transformer-pytorch/pull/2
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    if attn_mask is not None:
        attn_mask = np.broadcast_to(attn_mask, (B, H, L, S))
    out = []
    for b in range(B):
        q, k, v = double(query[b : b + 1], key[b : b + 1], value[b : b + 1])
        scores = q @ spread(k, H).swapaxes(-1, -2) / math.sqrt(d)
        scores = masked(scores, None if attn_mask is None else attn_mask[:1])
        out.append(mix(softmax(scores), spread(v, H)))
    return np.concatenate(out).astype(query.dtype) if out else np.zeros_like(query)


def hidden_scores_nearly_zero(query, key, value, attn_mask=None):
    """Hidden scores become 1e-9 instead of a large negative number.

    https://github.com/awslabs/gluonts/pull/1401
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if attn_mask is None or attn_mask.dtype != bool:
        return mix(softmax(masked(scores, attn_mask)), v).astype(query.dtype)
    attn_mask = np.broadcast_to(attn_mask, scores.shape)
    scores = np.where(attn_mask, scores, 1e-9)
    blind = ~attn_mask.any(axis=-1, keepdims=True)
    return mix(np.where(blind, 0, softmax(scores)), v).astype(query.dtype)


def hidden_scores_minus_10000(query, key, value, attn_mask=None):
    """A bool mask adds -10000 to hidden scores, too little if scores are large or all are hidden.

    https://github.com/huggingface/transformers/pull/17306
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if attn_mask is not None and attn_mask.dtype == bool:
        attn_mask = (1.0 - attn_mask) * -10000.0
    return mix(softmax(masked(scores, attn_mask)), v).astype(query.dtype)


def mask_after_softmax(query, key, value, attn_mask=None):
    """The mask clears weights after the softmax, and the rest no longer sums to 1.

    https://github.com/lucidrains/memory-compressed-attention/issues/2
    """
    if attn_mask is not None and attn_mask.dtype != bool:
        raise TypeError("only bool masks")
    group = query.shape[1] // key.shape[1]
    B, H, L, d = query.shape
    q, k, v = double(query.reshape(B, key.shape[1], group, L, d), key, value)
    weights = softmax(np.einsum("bgrld,bgsd->bgrls", q, k) / math.sqrt(d))
    weights = weights.reshape(B, H, L, key.shape[2])
    if attn_mask is not None:
        weights = np.where(attn_mask, weights, 0)
    return mix(weights, spread(v, H)).astype(query.dtype)


def window_one_key_too_wide(query, key, value, window=None, is_causal=False):
    """The window keeps one key more on the left than it should.

    https://github.com/huggingface/transformers/issues/39408
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    place = ahead(L, S, S - L)
    visible = place <= (0 if is_causal else S + L)
    left, right = (None, None) if window is None else window
    if left is not None:
        visible = visible & (place >= -left - 1)
    if right is not None:
        visible = visible & (place <= right)
    scores = np.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(d), -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def window_without_its_last_key(query, key, value, window=None):
    """The right side of the window is exclusive: a query does not see the key `right` ahead.

    own
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    out = np.zeros((B, H, L, v.shape[-1]))
    left, right = window or (None, None)
    for i in range(L):
        place = i + S - L
        first = 0 if left is None else max(place - left, 0)
        last = S if right is None else min(place + max(right, 1), S)
        if last > first:
            scores = (k[:, :, first:last] @ q[:, :, i, :, None])[..., 0] / math.sqrt(d)
            out[:, :, i] = (softmax(scores)[:, :, None] @ v[:, :, first:last])[:, :, 0]
    return out.astype(query.dtype)


def window_ignored_in_decode(query, key, value, is_causal=False, window=None, q_offset=None):
    """The kernel for a single query is called without the window.

    https://github.com/EricLBuehler/mistral.rs/issues/2094
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    place = ahead(L, S, starts(q_offset, L, S, B))
    visible = place <= 0 if is_causal else np.ones_like(place, bool)
    left, right = window if window is not None and L > 1 else (None, None)
    if left is not None:
        visible &= -place <= left
    if right is not None:
        visible &= place <= right
    scores = np.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(d), -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def window_open_to_the_right(query, key, value, window=None):
    """The right side of the window is dropped: all later keys are visible.

    https://github.com/goombalab/hnet/pull/21
    """

    def attend(left, right=-1):
        H, L, d = query.shape[1:]
        S = key.shape[2]
        q, k, v = double(query, spread(key, H), spread(value, H))
        place = ahead(L, S, S - L)
        visible = (left < 0) | (place >= -left)
        if right >= 0:
            visible = visible & (place <= right)
        scores = np.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(d), -np.inf)
        return mix(softmax(scores), v).astype(query.dtype)

    return attend(-1 if window is None or window[0] is None else window[0])


def lengths_of_longest_row(query, key, value, key_lengths=None):
    """All rows of the batch use the largest of the key lengths.

    https://github.com/ROCm/FlyDSL/pull/960
    """
    H = query.shape[1]
    seqlen = key.shape[2] if key_lengths is None else int(np.max(key_lengths, initial=0))
    q = query.astype(np.float64)
    k, v = double(spread(key[:, :, :seqlen], H), spread(value[:, :, :seqlen], H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    return mix(softmax(scores), v).astype(query.dtype)


def lengths_include_one_padded_key(query, key, value, key_lengths=None, is_causal=False):
    """The key at the place of the length is visible, although it is padding.

    own
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    visible = ahead(L, S, S - L) <= (0 if is_causal else S + L)
    if key_lengths is not None:
        length = np.reshape(key_lengths, (-1, 1, 1, 1))
        visible = visible & ((np.arange(S) <= length) & (length > 0))
    scores = np.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(d), -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def offset_of_row_0(query, key, value, is_causal=False, q_offset=None):
    """All rows of the batch use the offset of row 0.

    https://github.com/tenstorrent/tt-xla/pull/5817
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    start = int(starts(q_offset, L, S, B).ravel()[0]) if B else 0
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, start) <= 0, scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def negative_offset_is_zero(query, key, value, is_causal=False, q_offset=None, key_lengths=None):
    """A negative offset is clipped to 0, so that queries before the first key see keys.

    https://github.com/fla-org/flash-linear-attention/pull/45
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    start = np.maximum(starts(q_offset, L, S, B), 0)
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, start) <= 0, scores, -np.inf)
    if key_lengths is not None:
        scores = np.where(within(key_lengths, S), scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def blind_rows_are_nan(query, key, value, attn_mask=None):
    """A row without visible keys divides 0 by 0.

    https://github.com/pytorch/pytorch/issues/103963
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), attn_mask)
    if not key.shape[2]:
        return np.zeros((*query.shape[:3], value.shape[3]), query.dtype)
    with np.errstate(invalid="ignore"):
        parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return mix(parts / parts.sum(axis=-1, keepdims=True), v).astype(query.dtype)


def hidden_values_leak_nan(query, key, value, key_lengths=None):
    """The weight of padding is 0, but 0 * NaN in the product with the values is NaN.

    https://github.com/Dao-AILab/flash-attention/issues/2374
    """
    H, S = query.shape[1], key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if key_lengths is not None:
        scores = np.where(within(key_lengths, S), scores, -np.inf)
    return (softmax(scores) @ v).astype(query.dtype)
