"""Pieces of the second trial's kernels with options. All of them are right."""

import math

import numpy as np

from .pieces import quiet as quiet

NEG = -np.inf


def wide(q, k, v):
    """Convert to float64 with one batch size; repeat key heads. Refuse heads that do not fit."""
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError("(B, H, L, d) only")
    if q.shape[-1] == 0 or k.shape[1] == 0 or q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ValueError("bad head size or head counts")
    b = np.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])
    q, k, v = (np.broadcast_to(x.astype(np.float64), b + x.shape[1:]) for x in (q, k, v))
    g = q.shape[1] // k.shape[1]
    return q, np.repeat(k, g, axis=1), np.repeat(v, g, axis=1)


def scale_of(scale, d):
    return 1.0 / math.sqrt(d) if scale is None else float(scale)


def per_row(x, b):
    """ints per row -> (b, 1, 1, 1)"""
    return np.broadcast_to(np.asarray(x, dtype=np.int64), (b,)).reshape(b, 1, 1, 1)


def place_of(q_offset, b, L, s):
    if q_offset is None:
        if s != L:
            raise ValueError(f"{L} queries, {s} keys: say q_offset")
        q_offset = 0
    if isinstance(q_offset, str):
        q_offset = {"start": 0, "end": s - L}[q_offset]
    return per_row(q_offset, b)


def ahead_of(q_offset, b, L, s):
    """i + q_offset - j, (b, 1, L, S)"""
    return np.arange(L)[:, None] + place_of(q_offset, b, L, s) - np.arange(s)


def kept(shape, is_causal=False, q_offset=None, window=None, key_lengths=None, query_lengths=None):
    b, _h, L, s = shape
    keep = np.ones(shape, bool)
    if is_causal or window is not None:
        d = ahead_of(q_offset, b, L, s)
        if is_causal:
            keep &= d >= 0
        if window is not None:
            left, right = window
            if left is not None:
                keep &= d <= left
            if right is not None:
                keep &= -d <= right
    if key_lengths is not None:
        keep &= np.arange(s) < per_row(key_lengths, b)
    if query_lengths is not None:
        keep &= np.arange(L)[:, None] < per_row(query_lengths, b)
    return keep


def split_mask(mask):
    """A mask or bias -> (visible, what to add)."""
    if mask is None:
        return True, 0.0
    m = np.asarray(mask)
    if m.dtype == bool:
        return m, 0.0
    if m.dtype.kind in "iu":
        raise TypeError("an integer mask: write bool or float")
    m = m.astype(np.float64)
    return m != NEG, np.where(m == NEG, 0.0, m)


def weigh(p, keep, v):
    """p @ v where a hidden value, whatever it is, counts nothing."""
    bad = ~np.isfinite(v)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad, 0.0, v)
    keep = np.broadcast_to(keep, p.shape)
    vb = np.broadcast_to(bad, p.shape[:-2] + v.shape[-2:])
    vv = np.broadcast_to(v, vb.shape)
    for idx in np.ndindex(p.shape[:-2]):
        for j in np.flatnonzero(vb[idx].any(-1)):
            term = p[idx][:, j, None] * np.where(vb[idx][j], vv[idx][j], 0.0)
            out[idx] += np.where(keep[idx][:, j, None], term, 0.0)
    return out


def softmax(scores, keep, sinks=None):
    """weights and log-sum-exp over the last axis; sinks (H,) or (H, n)."""
    keep = np.broadcast_to(keep, scores.shape)
    s = np.where(keep, scores, NEG)
    m = s.max(-1, keepdims=True, initial=NEG)
    z = None
    if sinks is not None:
        z = np.asarray(sinks).astype(np.float64)
        z = z.reshape(z.shape[0], 1, -1)
        m = np.maximum(m, z.max(-1, keepdims=True, initial=NEG))
    m = np.where(m == NEG, 0.0, m)
    e = np.where(keep, np.exp(s - m), 0.0)
    den = e.sum(-1, keepdims=True)
    if z is not None:
        den = den + np.exp(z - m).sum(-1, keepdims=True)
    p = np.where(keep, e / np.where(den == 0, 1.0, den), 0.0)
    lse = np.where(den == 0, NEG, m + np.log(np.where(den == 0, 1.0, den)))
    return p, lse[..., 0]


def give(out, like, weights=None, lse=None):
    t = np.asarray(like).dtype
    w = np.float64 if t == np.float64 else np.float32
    r = [np.asarray(out).astype(t)]
    if weights is not None:
        r.append(np.asarray(weights).astype(w))
    if lse is not None:
        r.append(np.asarray(lse).astype(w))
    return r[0] if len(r) == 1 else tuple(r)
