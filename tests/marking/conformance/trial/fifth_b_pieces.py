"""What the kernels of the fifth trial's second writer share."""

import math
from types import SimpleNamespace

import numpy as np

from .pieces import quiet as quiet

NEG = -np.inf
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def per_row(x, B, name):
    arr = np.asarray(x)
    if arr.dtype.kind not in "iu":
        raise TypeError(f"{name} takes ints, not {arr.dtype}")
    return np.broadcast_to(arr.astype(np.int64), (B,))


def places(q_offset, B, L, S, needed):
    if q_offset is None:
        if needed and L != S:
            raise ValueError(f"q_offset is needed: {L} queries, {S} keys; give 'start' or 'end'")
        return np.zeros(B, np.int64)
    if isinstance(q_offset, str):
        if q_offset == "start":
            return np.zeros(B, np.int64)
        if q_offset == "end":
            return np.full(B, S - L, np.int64)
        raise ValueError("q_offset is 'start', 'end' or ints")
    return per_row(q_offset, B, "q_offset")


def _float_mask(m, name):
    if m.dtype.kind in "iu":
        raise TypeError(
            f"{name} is an integer array: use bool (True = may attend) or float (added)"
        )
    return m


def frame(
    query,
    key,
    value,
    *,
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
    """All that is settled before any arithmetic on scores."""
    query, key, value = np.asarray(query), np.asarray(key), np.asarray(value)
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError("this kernel takes (B, H, L, d) arrays")
    if query.dtype != key.dtype or query.dtype != value.dtype or query.dtype.kind not in "fV":
        raise TypeError(f"one float type is needed, not {query.dtype}, {key.dtype}, {value.dtype}")
    Hq, L, d = query.shape[1:]
    Hkv, S = key.shape[1:3]
    if value.shape[1:3] != (Hkv, S) or key.shape[3] != d:
        raise ValueError("shapes do not fit")
    if Hkv == 0 or Hq % Hkv:
        raise ValueError(f"{Hq} query heads do not divide over {Hkv} key heads")
    B = np.broadcast_shapes(query.shape[:1], key.shape[:1], value.shape[:1])[0]
    G = Hq // Hkv
    wide = np.float64
    f = SimpleNamespace(
        B=B, Hq=Hq, Hkv=Hkv, G=G, L=L, S=S, d=d, dv=value.shape[3], dtype=query.dtype
    )
    f.q = np.broadcast_to(query, (B, Hq, L, d)).astype(wide)
    f.k = np.repeat(np.broadcast_to(key, (B, Hkv, S, d)).astype(wide), G, axis=1)
    f.v = np.repeat(np.broadcast_to(value, (B, Hkv, S, f.dv)).astype(wide), G, axis=1)
    f.aux = np.float64 if query.dtype == np.float64 else np.float32
    f.scale = (1.0 / math.sqrt(d) if d else 1.0) if scale is None else float(scale)
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ValueError("softcap is finite and > 0")
    f.cap = softcap
    f.off = places(
        q_offset, B, L, S, bool(is_causal) or window is not None or alibi_slopes is not None
    )
    f.pos = f.off[:, None] + np.arange(L)  # (B, L): the place of each query
    keys = np.arange(S)
    vis = np.ones((B, Hq, L, S), bool)
    add = np.zeros((B, Hq, L, S))
    if is_causal:
        vis &= (keys <= f.pos[:, :, None])[:, None]
    if window is not None:
        left, right = window
        if (left is not None and left < 0) or (right is not None and right < 0):
            raise ValueError("window sides are >= 0 or None")
        if left is not None:
            vis &= (keys >= f.pos[:, :, None] - left)[:, None]
        if right is not None:
            vis &= (keys <= f.pos[:, :, None] + right)[:, None]
    f.klen = np.full(B, S) if key_lengths is None else per_row(key_lengths, B, "key_lengths")
    f.qlen = np.full(B, L) if query_lengths is None else per_row(query_lengths, B, "query_lengths")
    if (f.klen < 0).any() or (f.klen > S).any() or (f.qlen < 0).any() or (f.qlen > L).any():
        raise ValueError("a length is outside its range")
    vis &= (keys < f.klen[:, None])[:, None, None, :]
    vis &= (np.arange(L) < f.qlen[:, None])[:, None, :, None]
    if attn_mask is not None:
        m = np.broadcast_to(_float_mask(np.asarray(attn_mask), "attn_mask"), (B, Hq, L, S))
        if m.dtype == bool:
            vis &= m
        else:
            vis &= ~np.isneginf(m)
            add = add + m.astype(wide)
    if bias is not None:
        b = np.broadcast_to(_float_mask(np.asarray(bias), "bias"), (B, Hq, L, S))
        vis &= ~np.isneginf(b)
        add = add + b.astype(wide)
    f.dist = np.abs(f.pos[:, :, None] - keys)[:, None]  # (B, 1, L, S)
    f.slopes = None
    if alibi_slopes is not None:
        f.slopes = np.asarray(alibi_slopes).astype(wide)
        if f.slopes.shape != (Hq,):
            raise ValueError("alibi_slopes has the shape (Hq,)")
        add = add - f.slopes[:, None, None] * f.dist
    f.vis = vis
    f.add = np.where(vis, add, 0.0)
    f.sink = np.zeros((Hq, 0))
    if sinks is not None:
        s = np.asarray(sinks).astype(wide)
        f.sink = s.reshape(Hq, -1) if s.ndim == 1 else np.broadcast_to(s, (Hq, s.shape[-1]))
    return f


def raw_scores(f):
    return f.q @ np.swapaxes(f.k, -1, -2) * f.scale


def capped(s, cap):
    return s if cap is None else cap * np.tanh(s / cap)


def scores_of(f):
    return np.where(f.vis, capped(raw_scores(f), f.cap) + f.add, NEG)


def top_of(s, sink=None):
    """Row maximum, finite where a row sees nothing; NaN stays."""
    m = s.max(-1, initial=NEG)
    if sink is not None and sink.shape[1]:
        m = np.maximum(m, sink.max(-1)[None, :, None])
    return m


def finite(m):
    return np.where(np.isneginf(m), 0.0, m)


def mixed(w, v, vis):
    """w @ v in which a hidden NaN does not show and a visible one does."""
    bad = ~np.isfinite(v)
    out = w @ np.where(bad, 0.0, v)
    if bad.any():
        out = np.where(vis.astype(float) @ bad.astype(float) > 0, np.nan, out)
    return out


def give(f, out, weights=None, lse=None):
    got = [np.ascontiguousarray(out).astype(f.dtype)]
    if weights is not None:
        got.append(weights.astype(f.aux))
    if lse is not None:
        got.append(lse.astype(f.aux))
    return got[0] if len(got) == 1 else tuple(got)


def softmax(s, sink):
    """(weights, lse) of masked scores; sinks in the denominator."""
    m = top_of(s, sink)
    mm = finite(m)
    p = np.exp(s - mm[..., None])
    sums = p.sum(-1)
    if sink.shape[1]:
        sums = sums + np.exp(sink[None, :, None, :] - mm[..., None]).sum(-1)
    safe = np.where(sums == 0, 1.0, sums)
    w = np.where(np.isneginf(s), 0.0, p / safe[..., None])
    return w, np.where(sums == 0, NEG, mm + np.log(safe))
