"""Pieces that several kernels of the trial share. All of them are right."""

import functools

import numpy as np


def quiet(function):
    """Switch NumPy's warnings off while a function runs: hidden keys may hold anything."""

    @functools.wraps(function)
    def inner(*args, **kwargs):
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return inner


def double(*arrays):
    """Convert the arrays to float64."""
    return [np.asarray(x).astype(np.float64) for x in arrays]


def spread(x, heads):
    """Repeat each key head for its group of query heads."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def softmax(scores):
    """Return the softmax of each row; a row of nothing but -inf gets zeros."""
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(peak == -np.inf, 0, peak))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def mix(weights, value):
    """Return weights @ value, but a weight of 0 silences even NaN and infinity."""
    odd = ~np.isfinite(value)
    out = weights @ np.where(odd, 0, value)
    if odd.any():
        out[((weights != 0).astype(float) @ odd.astype(float)) > 0] = np.nan
    return out


def masked(scores, mask):
    """Apply a mask: False hides a key; floats are added, and -inf hides."""
    if mask is None:
        return scores
    if mask.dtype == bool:
        return np.where(mask, scores, -np.inf)
    mask = mask.astype(np.float64)
    return np.where(mask == -np.inf, -np.inf, scores + mask)


def starts(q_offset, L, S, batch):
    """Return the place of query 0 among the keys, for each row of the batch: (B, 1, 1, 1)."""
    if q_offset is None or isinstance(q_offset, str):
        q_offset = 0 if q_offset == "start" else S - L
    return np.broadcast_to(np.asarray(q_offset), (batch,)).reshape(batch, 1, 1, 1)


def ahead(L, S, start):
    """Return how far each key lies ahead of each query."""
    return np.arange(S) - (np.arange(L)[:, None] + start)


def within(length, S):
    """Return which keys lie within the lengths: (B, 1, 1, S)."""
    return np.arange(S) < np.reshape(length, (-1, 1, 1, 1))


def log_sum(scores):
    """Return the log of the sum of exponentials of each row; -inf if the row is empty."""
    peak = scores.max(axis=-1, initial=-np.inf)
    safe = np.where(peak == -np.inf, 0, peak)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.exp(scores - safe[..., None]).sum(axis=-1))


def like(x, query):
    """Convert weights or LSE to float64 for float64 inputs, otherwise to float32."""
    return x.astype(np.float64 if query.dtype == np.float64 else np.float32)
