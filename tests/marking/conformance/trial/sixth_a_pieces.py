"""What the kernels of the sixth trial's first writer share, and what both writers' refuse."""

import functools
import inspect
import math

import numpy as np

from .pieces import quiet as quiet

NEG = -np.inf
LOG2E = 1.4426950408889634


def strict(function):
    """Refuse a mask that is not bool, and several sinks for a head."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def inner(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        mask, sinks = given.get("mask"), given.get("sinks")
        if mask is not None and np.asarray(mask).dtype != bool:
            raise NotImplementedError("mask must be bool")
        if sinks is not None and np.ndim(sinks) > 1:
            raise NotImplementedError("sinks must be one number per head")
        return function(*args, **kwargs)

    return inner


def sizes(q, k, v):
    B, H, L, d = q.shape
    return B, H, L, d, k.shape[1], k.shape[2], v.shape[3]


def offsets(q_offset, B, L, S):
    return np.broadcast_to(
        np.asarray(S - L if q_offset is None else q_offset, dtype=np.int64), (B,)
    )


def default_scale(scale, d):
    return 1.0 / math.sqrt(d) if scale is None else float(scale)


def full_vis(B, H, L, S, is_causal=False, q_offset=None, mask=None, window=None, key_lengths=None):
    """Dense (B, H, L, S) visibility."""
    pos = np.arange(L)[None, :, None] + offsets(q_offset, B, L, S)[:, None, None]
    j = np.arange(S)[None, None, :]
    ok = np.ones((B, L, S), bool)
    if is_causal:
        ok &= j <= pos
    if window is not None:
        left, right = window
        if left is not None:
            ok &= j >= pos - left
        if right is not None:
            ok &= j <= pos + right
    if key_lengths is not None:
        ok &= j < np.asarray(key_lengths).reshape(-1, 1, 1)
    ok = np.broadcast_to(ok[:, None], (B, H, L, S))
    if mask is not None:
        ok = ok & np.broadcast_to(np.asarray(mask, bool), (B, H, L, S))
    return ok


def heads(x, H):
    """Key heads repeated to the query's heads: head h reads h // (H // G)."""
    return np.repeat(x, H // x.shape[1], axis=1)


def pv(P, V, vis):
    """P @ V for one head, where an unseen row of V counts for nothing, whatever it holds."""
    bad = ~np.isfinite(V).all(-1)
    if not bad.any():
        return P @ V
    out = P @ np.where(bad[:, None], 0, V)
    hit = (vis & bad[None, :]).any(-1)
    for i in np.flatnonzero(hit):
        s = vis[i]
        out[i] = P[i, s] @ V[s]
    return out


def dpv(P, V, vis):
    B, H, L, _ = P.shape
    out = np.zeros((B, H, L, V.shape[-1]), P.dtype)
    for b in range(B):
        for h in range(H):
            out[b, h] = pv(P[b, h], V[b, h], vis[b, h])
    return out


def soft(s, vis, sink=None):
    """Softmax over the last axis of the seen scores; sink broadcasts against s[..., 0]."""
    s = np.where(vis, s, NEG)
    m = s.max(-1, initial=NEG)
    if sink is not None:
        m = np.maximum(m, sink)
    m0 = np.where(np.isfinite(m), m, 0)
    e = np.where(vis, np.exp(s - m0[..., None]), 0)
    sums = e.sum(-1)
    if sink is not None:
        sums = sums + np.exp(sink - m0)
    P = e / np.where(sums > 0, sums, 1)[..., None]
    lse = np.where(vis.any(-1), m0 + np.log(np.where(sums > 0, sums, 1)), NEG)
    return P, lse


def pack(out, w=None, lse=None, return_weights=False, return_lse=False):
    r = [out]
    if return_weights:
        r.append(w)
    if return_lse:
        r.append(lse)
    return r[0] if len(r) == 1 else tuple(r)


class Rules:
    """All arguments of one call; answers for any rows and columns of one head."""

    def __init__(
        self,
        query,
        key,
        value,
        is_causal=False,
        q_offset=None,
        mask=None,
        bias=None,
        scale=None,
        softcap=None,
        window=None,
        key_lengths=None,
        alibi_slopes=None,
        sinks=None,
        dtype=np.float64,
    ):
        self.q, self.k, self.v = (np.asarray(a).astype(dtype) for a in (query, key, value))
        self.B, self.H, self.L, self.d, self.G, self.S, self.dv = sizes(self.q, self.k, self.v)
        self.rep = self.H // self.G
        self.off = offsets(q_offset, self.B, self.L, self.S)
        self.causal, self.window, self.cap = bool(is_causal), window, softcap
        self.scale = default_scale(scale, self.d)
        full = (self.B, self.H, self.L, self.S)
        self.mask = None if mask is None else np.broadcast_to(np.asarray(mask, bool), full)
        self.bias = None if bias is None else np.broadcast_to(np.asarray(bias), full)
        self.len = None if key_lengths is None else np.asarray(key_lengths).reshape(-1)
        self.slopes = (
            None if alibi_slopes is None else np.asarray(alibi_slopes, np.float64).reshape(-1)
        )
        self.sinks = None if sinks is None else np.asarray(sinks, np.float64).reshape(-1)
        self.dtype = dtype

    def span(self, b, i0, i1):
        """Key range outside which rows i0..i1-1 see nothing (mask aside)."""
        lo, hi = 0, self.S
        if self.len is not None:
            hi = min(hi, int(self.len[b]))
        if self.causal:
            hi = min(hi, i1 - 1 + int(self.off[b]) + 1)
        if self.window is not None:
            if self.window[0] is not None:
                lo = max(lo, i0 + int(self.off[b]) - self.window[0])
            if self.window[1] is not None:
                hi = min(hi, i1 - 1 + int(self.off[b]) + self.window[1] + 1)
        return lo, max(hi, lo)

    def vis(self, b, h, rows, cols):
        p = (np.asarray(rows) + int(self.off[b]))[:, None]
        j = np.asarray(cols)[None, :]
        ok = np.ones((p.shape[0], j.shape[1]), bool)
        if self.causal:
            ok &= j <= p
        if self.window is not None:
            if self.window[0] is not None:
                ok &= j >= p - self.window[0]
            if self.window[1] is not None:
                ok &= j <= p + self.window[1]
        if self.len is not None:
            ok &= j < int(self.len[b])
        if self.mask is not None:
            ok &= self.mask[b, h][np.ix_(rows, cols)]
        return ok

    def finish_scores(self, b, h, rows, cols, s):
        """Soft cap, bias and ALiBi for already scaled scores."""
        if self.cap:
            s = self.cap * np.tanh(s / self.cap)
        if self.bias is not None:
            s = s + self.bias[b, h][np.ix_(rows, cols)]
        if self.slopes is not None:
            s = s - self.slopes[h] * np.abs(
                np.asarray(rows)[:, None] + int(self.off[b]) - np.asarray(cols)[None, :]
            )
        return s

    def scores(self, b, h, rows, cols):
        s = (self.q[b, h][rows] * self.scale) @ self.k[b, h // self.rep][cols].T
        return self.finish_scores(b, h, rows, cols, s)

    def values(self, b, h, cols):
        return self.v[b, h // self.rep][cols]

    def sink(self, h):
        return None if self.sinks is None else float(self.sinks[h])


def tiles(a, b, n):
    for x in range(a, b, n):
        yield x, min(b, x + n)
