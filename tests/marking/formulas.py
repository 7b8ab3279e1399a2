"""Right steps of attention, from which tests build right and wrong functions of learners."""

import numpy as np


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def scaled(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def plain(q, k, v):
    return softmax(scaled(q, k)) @ v


def hide(scores, visible):
    """Return the weights of masked scores; fully masked rows give 0."""
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def split(a, heads):
    return np.swapaxes(a.reshape(*a.shape[:-1], heads, -1), -3, -2)


def join(a):
    a = np.swapaxes(a, -3, -2)
    return a.reshape(*a.shape[:-2], -1)
