"""Five kernels with one mistake each, written without knowledge of the known defects."""

import numpy as np


def repeated(array, heads):
    return np.repeat(array, heads // array.shape[-3], axis=-3)


def scores_of(query, key, scale):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key = repeated(key, query.shape[-3])
    return query @ np.swapaxes(key, -1, -2) * query.dtype.type(scale)


def weights_of(scores):
    top = scores.max(-1, keepdims=True, initial=-1e30)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0)) * (scores > -np.inf)
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


def summed(scores, value, query):
    value = repeated(value, query.shape[-3])
    return (weights_of(scores) @ value).astype(query.dtype)


def shifted(q_offset, length, keys):
    """Return the offset as a number, or as an array that broadcasts to (B, H, L, S)."""
    offset = {None: 0, "start": 0, "end": keys - length}.get(
        q_offset if isinstance(q_offset, str | None) else "", q_offset
    )
    return np.reshape(offset, (-1, 1, 1, 1)) if np.ndim(offset) else offset


def forgotten_output(query, key, value, scale=None):
    """Online softmax over tiles of 32 keys. The mistake: only the sum is rescaled."""
    scores, value = scores_of(query, key, scale), repeated(value, query.shape[-3])
    top = np.full((*query.shape[:-1], 1), -1e30, query.dtype)
    total, out = np.zeros_like(top), 0
    for begin in range(0, key.shape[-2], 32):
        tile = scores[..., begin : begin + 32]
        new = np.maximum(top, tile.max(-1, keepdims=True))
        powers = np.exp(tile - new)
        total = total * np.exp(top - new) + powers.sum(-1, keepdims=True)
        out = out + powers @ value[..., begin : begin + 32, :]
        top = new
    return out / np.where(total > 0, total, 1)


def mask_after_softmax(query, key, value, attn_mask=None, scale=None):
    """The mistake: masked weights become 0 after softmax, so that weights do not sum to 1."""
    weights = weights_of(scores_of(query, key, scale))
    if attn_mask is not None:
        weights = weights * (attn_mask if attn_mask.dtype == bool else attn_mask > -np.inf)
    return (weights @ repeated(value, query.shape[-3])).astype(query.dtype)


def cap_of_raw_scores(query, key, value, softcap=None, scale=None):
    """The mistake: the scores are not divided by softcap before tanh."""
    scores = scores_of(query, key, scale)
    if softcap is not None:
        scores = np.tanh(scores) * softcap
    return summed(scores, value, query)


def symmetric_window(query, key, value, window=None, q_offset=None, scale=None):
    """The mistake: the right side of the window has the width of the left side."""
    scores = scores_of(query, key, scale)
    length, keys = scores.shape[-2:]
    if window is not None and window[0] is not None:
        away = np.arange(length)[:, None] + shifted(q_offset, length, keys) - np.arange(keys)
        scores = np.where(abs(away) <= window[0], scores, -np.inf)
    return summed(scores, value, query)


def lse_without_maximum(query, key, value, scale=None, return_lse=False):
    """The mistake: the maximum is not added to the log-sum-exp."""
    scores = scores_of(query, key, scale)
    out = summed(scores, value, query)
    left = scores - scores.max(-1, keepdims=True)
    return (out, np.log(np.exp(left).sum(-1))) if return_lse else out
