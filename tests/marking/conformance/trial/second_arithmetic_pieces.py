"""Pieces of the second trial's kernels with arithmetic. All of them are right."""

import functools

import numpy as np

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
F8 = np.float64


def dims(q, k, v):
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise ValueError("expected (B, H, L, d) arrays")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype.kind in "iub":
        raise TypeError(f"query, key, value share one float type: {q.dtype}, {k.dtype}, {v.dtype}")
    B, H, L, d = q.shape
    Bk, Hk, S, dk = k.shape
    if Bk != B or v.shape[:3] != k.shape[:3] or d != dk:
        raise ValueError(f"shapes do not fit: {q.shape}, {k.shape}, {v.shape}")
    if Hk == 0 or H % Hk:
        raise ValueError(f"{H} query heads over {Hk} key heads")
    return B, H, Hk, L, S, d, v.shape[-1]


def heads(x, H):
    """Every query head's own key head, float64."""
    return np.repeat(np.asarray(x, F8), H // x.shape[1], axis=1)


def stat_type(q):
    return np.float64 if q.dtype == np.float64 else np.float32


def is_half(q):
    return q.dtype.itemsize == 2


def offset_rows(q_offset, B, L, S):
    if q_offset is None:
        if L != S:
            raise ValueError(f"L = {L}, S = {S}: give q_offset, 'start' or 'end'")
        q_offset = 0
    if isinstance(q_offset, str):
        q_offset = {"start": 0, "end": S - L}[q_offset]
    return np.broadcast_to(np.asarray(q_offset, np.int64), (B,))


def causal_rows(q_offset, B, L, S):
    off = offset_rows(q_offset, B, L, S)
    i = np.arange(L)[None, :, None] + off[:, None, None]
    return (np.arange(S)[None, None, :] <= i)[:, None]  # (B, 1, L, S)


def four(x):
    x = np.asarray(x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def split_mask(mask):
    """-> (visible or None, number to add or None)."""
    if mask is None:
        return None, None
    mask = four(mask)
    if mask.dtype == bool:
        return mask, None
    if mask.dtype.kind in "iu":
        raise TypeError("an integer mask: write bool (True = may attend) or float (added)")
    mask = np.asarray(mask, F8)
    vis = mask != -np.inf
    return vis, np.where(vis, mask, 0.0)


def everything(B, H, L, S, *parts):
    vis = np.ones((B, H, L, S), bool)
    for p in parts:
        if p is not None:
            vis = vis & p
    return vis


def pv(w, v, vis):
    """w @ v where a hidden place adds nothing whatever stands there."""
    bad = ~np.isfinite(v)
    if not bad.any():
        return w @ v
    out = w @ np.where(bad, 0.0, v)
    with np.errstate(all="ignore"):
        for j in np.flatnonzero(bad.any(axis=(0, 1, 3))):
            add = w[..., j, None] * np.where(bad[..., j, :], v[..., j, :], 0.0)[..., None, :]
            hit = vis[..., j, None] & bad[..., j, :][..., None, :]
            out = out + np.where(hit, add, 0.0)
    return out


def softmax_rows(s, vis):
    """-> (weights, lse), rows that see nothing are 0 and -inf."""
    with np.errstate(all="ignore"):
        s = np.where(vis, s, -np.inf)
        m = s.max(axis=-1, keepdims=True, initial=-np.inf)
        m0 = np.where(m == -np.inf, 0.0, m)
        e = np.where(vis, np.exp(s - m0), 0.0)
        total = e.sum(axis=-1, keepdims=True)
        lse = np.where(total == 0, -np.inf, np.log(np.where(total == 0, 1.0, total)) + m0)
        return e / np.where(total == 0, 1.0, total), lse[..., 0]


def qk(q, k):
    with np.errstate(all="ignore"):
        return np.asarray(q, F8) @ np.swapaxes(heads(k, q.shape[1]), -1, -2)


def pack_up(q, out, weights=None, lse=None, return_weights=False, return_lse=False):
    with np.errstate(all="ignore"):
        res = [out.astype(q.dtype)]
        if return_weights:
            res.append(weights.astype(stat_type(q)))
        if return_lse:
            res.append(lse.astype(stat_type(q)))
    return res[0] if len(res) == 1 else tuple(res)


def merge_parts(parts):
    """[(out, lse), ...] of disjoint keys -> (out, lse)."""
    m = functools.reduce(np.maximum, [p[1] for p in parts])
    m0 = np.where(m == -np.inf, 0.0, m)
    with np.errstate(all="ignore"):
        ws = [np.exp(p[1] - m0) for p in parts]
        total = sum(ws)
        safe = np.where(total == 0, 1.0, total)
        out = sum(p[0] * (w / safe)[..., None] for p, w in zip(parts, ws, strict=False))
        return out, np.where(total == 0, -np.inf, np.log(safe) + m0)
