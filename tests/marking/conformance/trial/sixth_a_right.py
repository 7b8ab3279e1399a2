"""The sixth trial, first writer: correct kernels in twenty styles."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from .sixth_a_pieces import (
    LOG2E,
    NEG,
    Rules,
    default_scale,
    dpv,
    full_vis,
    heads,
    offsets,
    pack,
    pv,
    quiet,
    sizes,
    soft,
    strict,
    tiles,
)


def _no_sink_lse(sinks, return_lse):
    if sinks is not None and return_lse:
        raise NotImplementedError("lse together with sinks is not offered")


@strict
@quiet
def fortran_dense(
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
    return_weights=False,
    return_lse=False,
):
    """Refuses lse together with sinks."""
    _no_sink_lse(sinks, return_lse)
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    s = np.einsum(
        "bhld,bhsd->bhls", query.astype(float), heads(key, H).astype(float)
    ) * default_scale(scale, d)
    if softcap:
        s = np.tanh(s / softcap) * softcap
    if bias is not None:
        s = s + bias
    if alibi_slopes is not None:
        pos = np.arange(L)[None, :, None] + offsets(q_offset, B, L, S)[:, None, None]
        s = (
            s
            - np.asarray(alibi_slopes, float).reshape(1, H, 1, 1)
            * np.abs(pos - np.arange(S))[:, None]
        )
    P, lse = soft(s, ok, None if sinks is None else np.asarray(sinks, float).reshape(1, H, 1))
    out = dpv(P, heads(value, H).astype(float), ok)
    return pack(
        np.asfortranarray(out.astype(query.dtype)),
        np.asfortranarray(P),
        np.asfortranarray(lse),
        return_weights,
        return_lse,
    )


@strict
@quiet
def odd_tiles_log2(
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
    return_lse=False,
):
    """Online softmax in base 2 over 29 x 37 tiles. Refuses lse together with sinks."""
    _no_sink_lse(sinks, return_lse)
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        bias,
        scale,
        softcap,
        window,
        key_lengths,
        alibi_slopes,
        sinks,
    )
    out = np.empty((r.B, r.H, r.L, r.dv), query.dtype)
    lse = np.empty((r.B, r.H, r.L))
    for b in range(r.B):
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, 29):
                rows = np.arange(i0, i1)
                sk = r.sink(h)
                m = np.full(len(rows), NEG if sk is None else sk * LOG2E)
                sums = np.full(len(rows), 0.0 if sk is None else 1.0)
                acc = np.zeros((len(rows), r.dv))
                lo, hi = r.span(b, i0, i1)
                for j0, j1 in tiles(max(0, lo), min(hi, r.S), 37):
                    cols = np.arange(j0, j1)
                    ok = r.vis(b, h, rows, cols)
                    if not ok.any():
                        continue
                    s = np.where(ok, r.scores(b, h, rows, cols) * LOG2E, NEG)
                    mn = np.maximum(m, s.max(1))
                    base = np.where(np.isfinite(mn), mn, 0)
                    a, p = np.exp2(m - base), np.exp2(s - base[:, None])
                    sums = sums * a + p.sum(1)
                    acc *= a[:, None]
                    acc += pv(p, r.values(b, h, cols), ok)
                    m = mn
                safe = np.where(sums > 0, sums, 1)
                out[b, h, i0:i1] = acc / safe[:, None]
                lse[b, h, i0:i1] = np.where(sums > 0, (m + np.log2(safe)) / LOG2E, NEG)
    return pack(out, None, lse, False, return_lse)


@strict
@quiet
def recursive_halves(
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
    return_lse=False,
):
    """Halves the keys until 21 or fewer are left, then merges. Refuses lse together with sinks."""
    _no_sink_lse(sinks, return_lse)
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        bias,
        scale,
        softcap,
        window,
        key_lengths,
        alibi_slopes,
        sinks,
    )
    rows = np.arange(r.L)

    def leaf(b, h, j0, j1):
        cols = np.arange(j0, j1)
        ok = r.vis(b, h, rows, cols)
        s = np.where(ok, r.scores(b, h, rows, cols), NEG)
        m = s.max(1, initial=NEG)
        p = np.where(ok, np.exp(s - np.where(m == NEG, 0, m)[:, None]), 0)
        return m, p.sum(1), pv(p, r.values(b, h, cols), ok)

    def go(b, h, j0, j1):
        if j1 - j0 <= 21:
            return leaf(b, h, j0, j1)
        mid = (j0 + j1) // 2
        return merge(go(b, h, j0, mid), go(b, h, mid, j1))

    def merge(x, y):
        m = np.maximum(x[0], y[0])
        z = np.where(m == NEG, 0, m)
        a, c = np.exp(x[0] - z), np.exp(y[0] - z)
        return m, x[1] * a + y[1] * c, x[2] * a[:, None] + y[2] * c[:, None]

    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    lse = np.full((r.B, r.H, r.L), NEG)
    for b in range(r.B):
        for h in range(r.H):
            st = go(b, h, 0, r.S)
            if sinks is not None:
                st = merge(st, (np.full(r.L, r.sink(h)), np.ones(r.L), np.zeros((r.L, r.dv))))
            m, sums, acc = st
            safe = np.where(sums > 0, sums, 1)
            out[b, h] = acc / safe[:, None]
            lse[b, h] = np.where(sums > 0, m + np.log(safe), NEG)
    return pack(out, None, lse, False, return_lse)


@strict
@quiet
def gather_rows(
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
    return_weights=False,
    return_lse=False,
):
    """Touches visible keys only. Refuses lse together with sinks."""
    _no_sink_lse(sinks, return_lse)
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        bias,
        scale,
        softcap,
        window,
        key_lengths,
        alibi_slopes,
        sinks,
    )
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    W = np.zeros((r.B, r.H, r.L, r.S), query.dtype)
    lse = np.full((r.B, r.H, r.L), NEG, query.dtype)
    everything = np.arange(r.S)
    for b in range(r.B):
        for h in range(r.H):
            for i in range(r.L):
                cols = everything[r.vis(b, h, [i], everything)[0]]
                if not cols.size:
                    continue
                s = r.scores(b, h, [i], cols)[0]
                col = s if sinks is None else np.append(s, r.sink(h))
                z = col.max()
                e = np.exp(col - z)
                w = e[: cols.size] / e.sum()
                W[b, h, i, cols] = w
                out[b, h, i] = w @ r.values(b, h, cols)
                lse[b, h, i] = z + math.log(e.sum())
    return pack(out, W, lse, return_weights, return_lse)


@strict
@quiet
def uneven_splits(
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
    return_lse=False,
):
    """Splits of 1, 2, 4, 8, ... keys, joined by their lse. Refuses lse with sinks."""
    _no_sink_lse(sinks, return_lse)
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        bias,
        scale,
        softcap,
        window,
        key_lengths,
        alibi_slopes,
        sinks,
    )
    cuts, n = [0], 1
    while cuts[-1] < r.S:
        cuts.append(min(r.S, cuts[-1] + n))
        n = min(2 * n, 100)
    out = np.zeros((r.B, r.H, r.L, r.dv))
    total = np.full((r.B, r.H, r.L), NEG)
    rows = np.arange(r.L)
    for b in range(r.B):
        for h in range(r.H):
            parts, logs = [], []
            for j0, j1 in pairwise(cuts):
                cols = np.arange(j0, j1)
                ok = r.vis(b, h, rows, cols)
                P, lse = soft(r.scores(b, h, rows, cols), ok)
                parts.append(pv(P, r.values(b, h, cols), ok))
                logs.append(lse)
            if sinks is not None:
                logs.append(np.full(r.L, r.sink(h)))
                parts.append(np.zeros((r.L, r.dv)))
            if not logs:
                continue
            t = np.logaddexp.reduce(np.array(logs), axis=0)
            w = np.where(t == NEG, 0, np.exp(np.array(logs) - np.where(t == NEG, 0, t)))
            out[b, h] = sum(p * x[:, None] for p, x in zip(parts, w, strict=True))
            total[b, h] = t
    return pack(out.astype(query.dtype), None, total, False, return_lse)


@strict
@quiet
def block_sparse(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    bias=None,
    window=None,
    key_lengths=None,
    scale=None,
    alibi_slopes=None,
    return_weights=False,
    return_lse=False,
):
    """Makes a list of live 24 x 24 blocks first. No weights, no lse."""
    if return_weights or return_lse:
        raise NotImplementedError("output only")
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        bias,
        scale,
        None,
        window,
        key_lengths,
        alibi_slopes,
    )
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    for b in range(r.B):
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, 24):
                rows = np.arange(i0, i1)
                live = [
                    c
                    for c in (np.arange(*t) for t in tiles(0, r.S, 24))
                    if r.vis(b, h, rows, c).any()
                ]
                if not live:
                    continue
                cols = np.concatenate(live)
                ok = r.vis(b, h, rows, cols)
                P, _ = soft(r.scores(b, h, rows, cols), ok)
                out[b, h, i0:i1] = pv(P, r.values(b, h, cols), ok)
    return out


@strict
@quiet
def in_place(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    bias=None,
    scale=None,
    softcap=None,
    return_weights=False,
    return_lse=False,
):
    """One score buffer, overwritten by every step."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    q = np.array(query, dtype=np.float64, copy=True)
    q *= default_scale(scale, d)
    buf = np.matmul(q, np.array(heads(key, H), dtype=np.float64).transpose(0, 1, 3, 2))
    if softcap:
        buf /= softcap
        np.tanh(buf, out=buf)
        buf *= softcap
    if bias is not None:
        buf += bias
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask)
    np.copyto(buf, NEG, where=~ok)
    top = buf.max(-1, keepdims=True, initial=NEG)
    top[top == NEG] = 0
    buf -= top
    np.exp(buf, out=buf)
    sums = buf.sum(-1, keepdims=True)
    lse = np.where(sums > 0, top + np.log(np.where(sums > 0, sums, 1)), NEG)[..., 0]
    sums[sums == 0] = 1
    buf /= sums
    v = np.array(heads(value, H), dtype=np.float64)
    return pack(dpv(buf, v, ok).astype(query.dtype), buf, lse, return_weights, return_lse)


@strict
@quiet
def eight_lanes(query, key, value, is_causal=False, mask=None, scale=None):
    """Single precision throughout. Head size must be a multiple of 8."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    if d % 8:
        raise ValueError("head size must be a multiple of 8")
    sm = np.float32(math.sqrt(default_scale(scale, d))) if default_scale(scale, d) > 0 else None
    q, k = query.astype(np.float32), heads(key, H).astype(np.float32)
    s = np.zeros((B, H, L, S), np.float32)
    for c in range(0, d, 8):
        a, z = q[..., c : c + 8], k[..., c : c + 8]
        if sm is not None:
            a, z = a * sm, z * sm
        s += a @ z.swapaxes(-1, -2)
    if sm is None:
        s *= np.float32(scale)
    ok = full_vis(B, H, L, S, is_causal, None, mask)
    P, _ = soft(s, ok)
    return dpv(P.astype(np.float32), heads(value, H).astype(np.float32), ok).astype(query.dtype)


@quiet
def square_only(
    query, key, value, is_causal=False, window=None, scale=None, softcap=None, return_lse=False
):
    """Self attention: as many keys as queries. Works along diagonals."""
    B, H, L, d, _, S, dv = sizes(query, key, value)
    if L != S:
        raise ValueError("square attention only")
    left, right = window if window is not None else (None, None)
    left = L if left is None else min(int(left), L)
    right = L if right is None else min(int(right), L)
    if is_causal:
        right = min(right, 0)
    q, k, v = (
        query.astype(float) * default_scale(scale, d),
        heads(key, H).astype(float),
        heads(value, H).astype(float),
    )
    diags = [t for t in range(-left, right + 1) if -L < t < L]
    s = np.full((B, H, L, len(diags)), NEG)
    for x, t in enumerate(diags):
        a, z = max(0, -t), min(L, L - t)
        s[:, :, a:z, x] = (q[:, :, a:z] * k[:, :, a + t : z + t]).sum(-1)
        if softcap:
            s[:, :, a:z, x] = softcap * np.tanh(s[:, :, a:z, x] / softcap)
    m = s.max(-1, initial=NEG)
    m0 = np.where(m == NEG, 0, m)
    e = np.exp(s - m0[..., None])
    out = np.zeros((B, H, L, dv))
    for x, t in enumerate(diags):
        a, z = max(0, -t), min(L, L - t)
        out[:, :, a:z] += e[:, :, a:z, x, None] * v[:, :, a + t : z + t]
    sums = e.sum(-1)
    safe = np.where(sums > 0, sums, 1)
    lse = np.where(sums > 0, m0 + np.log(safe), NEG)
    return pack((out / safe[..., None]).astype(query.dtype), None, lse, False, return_lse)


@strict
@quiet
def polite_refusals(
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
    return_weights=False,
    return_lse=False,
):
    """No window, no ALiBi, no sinks."""
    if window is not None or alibi_slopes is not None or sinks is not None:
        raise NotImplementedError("window, alibi_slopes and sinks are not supported")
    B, H, L, d, G, S, _ = sizes(query, key, value)
    R = H // G
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask, None, key_lengths)
    q = np.moveaxis(query.astype(np.float64).reshape(B, G, R, L, d), 3, 0)  # L B G R d
    s = np.einsum("lbgrd,bgsd->bgrls", q, key.astype(np.float64)).reshape(
        B, H, L, S
    ) * default_scale(scale, d)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + np.asarray(bias, np.float64)
    s = np.where(ok, s, NEG)
    lse = np.logaddexp.reduce(s, axis=-1) if S else np.full((B, H, L), NEG)
    P = np.where(ok, np.exp(s - np.where(lse == NEG, 0, lse)[..., None]), 0)
    out = dpv(P, heads(value, H).astype(np.float64), ok)
    return pack(
        out.astype(query.dtype),
        P.astype(query.dtype),
        lse.astype(query.dtype),
        return_weights,
        return_lse,
    )


@quiet
def list_offsets(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, window=None, scale=None
):
    """Lists for offsets and lengths; per sequence slices, never a mask over the batch."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    offs = [int(x) for x in offsets(q_offset, B, L, S)]
    lens = (
        [S] * B
        if key_lengths is None
        else [min(S, int(x)) for x in np.asarray(key_lengths).reshape(-1)]
    )
    out = np.zeros((B, H, L, dv), query.dtype)
    for b, (o, n) in enumerate(zip(offs, lens, strict=True)):
        for i in range(L):
            lo, hi = 0, n
            if is_causal:
                hi = min(hi, i + o + 1)
            if window is not None and window[0] is not None:
                lo = max(lo, i + o - window[0])
            if window is not None and window[1] is not None:
                hi = min(hi, i + o + window[1] + 1)
            if hi <= lo:
                continue
            K, V = key[b, :, lo:hi].astype(float), value[b, :, lo:hi].astype(float)
            q = query[b, :, i].astype(float).reshape(G, H // G, d)
            s = np.einsum("grd,gsd->grs", q, K) * default_scale(scale, d)
            s -= s.max(-1, keepdims=True)
            e = np.exp(s)
            out[b, :, i] = (np.einsum("grs,gsv->grv", e, V) / e.sum(-1, keepdims=True)).reshape(
                H, dv
            )
    return out


def _digits(x, n=6):
    top = np.abs(x).max(axis=-1, keepdims=True, initial=0) / 127
    top = np.where(top > 0, top, 1)
    rest, out = x / top, []
    for _ in range(n):
        a = np.rint(rest)
        out.append(a.astype(np.int8))
        rest = (rest - a) * 254
    return out, top


@quiet
def six_int8_digits(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, scale=None, softcap=None
):
    """Queries and keys held as six int8 digits with a scale per row; integer products."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset, None, None, key_lengths)
    k = key.astype(np.float64)
    bad = ~np.isfinite(k).all(-1, keepdims=True)
    qd, qs = _digits(query.astype(np.float64))
    kd, ks = _digits(np.where(bad, 0, k))
    s = np.zeros((B, H, L, S))
    for x, a in enumerate(qd):
        for y, c in enumerate(kd):
            if x + y < 8:
                s += np.matmul(
                    a.astype(np.int64), heads(c, H).astype(np.int64).swapaxes(2, 3)
                ) / 254.0 ** (x + y)
    s *= qs * heads(ks, H).swapaxes(2, 3) * default_scale(scale, d)
    s = np.where(heads(bad, H).swapaxes(2, 3), np.nan, s)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(np.float64), ok).astype(query.dtype)


@strict
@quiet
def shuffled_pages(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    scale=None,
    sinks=None,
    alibi_slopes=None,
):
    """Pages of 7 keys in a shuffled pool whose unused slots hold NaN."""
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        None,
        None,
        scale,
        None,
        window,
        key_lengths,
        alibi_slopes,
        sinks,
    )
    n = -(-r.S // 7)
    order = np.random.default_rng(3).permutation(r.B * r.G * n).reshape(r.B, r.G, n)
    kp = np.full((r.B * r.G * n, 7, r.d), np.nan)
    vp = np.full((r.B * r.G * n, 7, r.dv), np.nan)
    for b in range(r.B):
        for g in range(r.G):
            for x in range(n):
                part = slice(7 * x, min(r.S, 7 * x + 7))
                kp[order[b, g, x], : part.stop - part.start] = r.k[b, g, part]
                vp[order[b, g, x], : part.stop - part.start] = r.v[b, g, part]
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    rows = np.arange(r.L)
    for b in range(r.B):
        for h in range(r.H):
            g = h // r.rep
            sk = r.sink(h)
            m = np.full(r.L, NEG if sk is None else sk)
            sums = np.full(r.L, 0.0 if sk is None else 1.0)
            acc = np.zeros((r.L, r.dv))
            for x in range(n):
                cols = np.arange(7 * x, 7 * x + 7)
                ok = r.vis(b, h, rows, cols) & (cols < r.S)[None]
                page = order[b, g, x]
                s = r.finish_scores(b, h, rows, cols, r.q[b, h] @ kp[page].T * r.scale)
                s = np.where(ok, s, NEG)
                mn = np.maximum(m, s.max(1))
                base = np.where(mn == NEG, 0, mn)
                a, p = np.exp(m - base), np.exp(s - base[:, None])
                sums, acc, m = sums * a + p.sum(1), acc * a[:, None] + pv(p, vp[page], ok), mn
            out[b, h] = acc / np.where(sums > 0, sums, 1)[:, None]
    return out


@quiet
def packed_varlen(query, key, value, key_lengths=None, scale=None, softcap=None, return_lse=False):
    """Packs the used keys of the whole batch, sequences of no keys included."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    lens = (
        np.full(B, S) if key_lengths is None else np.clip(np.asarray(key_lengths).reshape(-1), 0, S)
    )
    cu = np.concatenate([[0], np.cumsum(lens)]).astype(int)
    used = np.arange(S)[None] < lens[:, None]
    K = key.transpose(0, 2, 1, 3)[used].astype(float)  # total, G, d
    V = value.transpose(0, 2, 1, 3)[used].astype(float)
    Q = query.transpose(0, 2, 1, 3).reshape(B * L, H, d).astype(float)
    out = np.zeros((B * L, H, dv))
    lse = np.full((B * L, H), NEG)
    for b in range(B):
        if cu[b] == cu[b + 1] or not L:
            continue
        k, v, q = (
            K[cu[b] : cu[b + 1]],
            V[cu[b] : cu[b + 1]],
            Q[b * L : (b + 1) * L].reshape(L, G, H // G, d),
        )
        s = np.einsum("lgrd,sgd->lgrs", q, k) * default_scale(scale, d)
        if softcap:
            s = softcap * np.tanh(s / softcap)
        m = s.max(-1, keepdims=True)
        e = np.exp(s - m)
        t = e.sum(-1, keepdims=True)
        out[b * L : (b + 1) * L] = np.einsum("lgrs,sgv->lgrv", e / t, v).reshape(L, H, dv)
        lse[b * L : (b + 1) * L] = (m + np.log(t)).reshape(L, H)
    return pack(
        out.reshape(B, L, H, dv).transpose(0, 2, 1, 3).astype(query.dtype),
        None,
        lse.reshape(B, L, H).transpose(0, 2, 1),
        False,
        return_lse,
    )


@strict
@quiet
def threaded_stripes(
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
    return_weights=False,
):
    """Three threads, each takes every third row. All arguments but the lse."""
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        bias,
        scale,
        softcap,
        window,
        key_lengths,
        alibi_slopes,
        sinks,
    )
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    W = np.zeros((r.B, r.H, r.L, r.S), query.dtype)
    cols = np.arange(r.S)

    def work(t):
        rows = np.arange(t, r.L, 3)
        with np.errstate(all="ignore"):
            for b in range(r.B):
                for h in range(r.H):
                    ok = r.vis(b, h, rows, cols)
                    P, _ = soft(r.scores(b, h, rows, cols), ok, r.sink(h))
                    out[b, h, rows] = pv(P, r.values(b, h, cols), ok)
                    W[b, h, rows] = P

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    return pack(out, W, None, return_weights)


@strict
@quiet
def log_domain(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    bias=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    """Running log-sum-exp, second pass for the values."""
    r = Rules(query, key, value, is_causal, q_offset, mask, bias, scale)
    out = np.zeros((r.B, r.H, r.L, r.dv))
    W = np.zeros((r.B, r.H, r.L, r.S))
    lse = np.full((r.B, r.H, r.L), NEG)
    rows = np.arange(r.L)
    for b in range(r.B):
        for h in range(r.H):
            for j0, j1 in tiles(0, r.S, 50):
                c = np.arange(j0, j1)
                s = np.where(r.vis(b, h, rows, c), r.scores(b, h, rows, c), NEG)
                lse[b, h] = np.logaddexp(lse[b, h], np.logaddexp.reduce(s, axis=1))
            ref = np.where(lse[b, h] == NEG, 0, lse[b, h])[:, None]
            for j0, j1 in tiles(0, r.S, 50):
                c = np.arange(j0, j1)
                ok = r.vis(b, h, rows, c)
                w = np.where(ok, np.exp(r.scores(b, h, rows, c) - ref), 0)
                W[b, h, :, j0:j1] = w
                out[b, h] += pv(w, r.values(b, h, c), ok)
    return pack(out.astype(query.dtype), W.astype(query.dtype), lse, return_weights, return_lse)


@strict
@quiet
def one_query_first(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
):
    """Several queries are fed one after another to the decode path."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    off = offsets(q_offset, B, L, S)
    if L != 1:
        steps = [
            one_query_first(
                query[:, :, i : i + 1],
                key,
                value,
                is_causal,
                off + i,
                window,
                key_lengths,
                scale,
                softcap,
                sinks,
            )
            for i in range(L)
        ]
        return np.concatenate(steps, axis=2) if steps else np.zeros((B, H, 0, dv), query.dtype)
    out = np.zeros((B, G, H // G, dv))
    for b in range(B):
        hi = S if key_lengths is None else min(S, int(np.asarray(key_lengths).reshape(-1)[b]))
        lo = 0
        if is_causal:
            hi = min(hi, int(off[b]) + 1)
        if window is not None:
            lo = 0 if window[0] is None else max(0, int(off[b]) - window[0])
            hi = hi if window[1] is None else min(hi, int(off[b]) + window[1] + 1)
        if hi <= lo:
            continue
        s = np.matmul(
            query[b, :, 0].reshape(G, H // G, d).astype(float),
            key[b, :, lo:hi].astype(float).swapaxes(1, 2),
        )
        s *= default_scale(scale, d)
        if softcap:
            s = np.tanh(s / softcap) * softcap
        m = s.max(-1, keepdims=True)
        if sinks is not None:
            extra = np.asarray(sinks, float).reshape(G, H // G, 1)
            m = np.maximum(m, extra)
        e = np.exp(s - m)
        sums = e.sum(-1, keepdims=True)
        if sinks is not None:
            sums += np.exp(extra - m)
        out[b] = np.matmul(e, value[b, :, lo:hi].astype(float)) / sums
    return out.reshape(B, H, 1, dv).astype(query.dtype)


@strict
@quiet
def folded_groups(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    bias=None,
    scale=None,
    window=None,
    key_lengths=None,
    return_weights=False,
    return_lse=False,
):
    """The heads of a group become further rows of one problem; results are transposed views."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    R = H // G

    def fold(x):
        return np.broadcast_to(x, (B, H, L, S)).reshape(B, G, R * L, S)

    ok = fold(full_vis(B, H, L, S, is_causal, q_offset, mask, window, key_lengths))
    s = (
        query.astype(float).reshape(B, G, R * L, d)
        @ key.astype(float).swapaxes(2, 3)
        * default_scale(scale, d)
    )
    if bias is not None:
        s = s + fold(np.asarray(bias, float))
    P, lse = soft(s, ok)
    out = dpv(P, value.astype(float), ok).astype(query.dtype)
    out = np.ascontiguousarray(out.reshape(B, H, L, dv).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    return pack(out, P.reshape(B, H, L, S), lse.reshape(B, H, L), return_weights, return_lse)


@quiet
def key_stream(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    scale=None,
    alibi_slopes=None,
):
    """Reads one key of all heads at a time and never looks back."""
    B, H, L, d, _, S, dv = sizes(query, key, value)
    off = offsets(q_offset, B, L, S)
    pos = off[:, None] + np.arange(L)[None]  # B, L
    q = query.astype(float) * default_scale(scale, d)
    slopes = None if alibi_slopes is None else np.asarray(alibi_slopes, float).reshape(1, H, 1)
    n = np.full(B, S) if key_lengths is None else np.asarray(key_lengths).reshape(-1)
    m = np.full((B, H, L), NEG)
    sums = np.zeros((B, H, L))
    acc = np.zeros((B, H, L, dv))
    for j in range(S):
        ok = np.broadcast_to((j < n)[:, None], (B, L))
        if is_causal:
            ok = ok & (j <= pos)
        if not ok.any():
            continue
        ok = np.broadcast_to(ok[:, None], (B, H, L))
        s = (q * heads(key[:, :, j : j + 1], H).astype(float)).sum(-1)
        if slopes is not None:
            s = s - slopes * np.abs(pos - j)[:, None]
        s = np.where(ok, s, NEG)
        mn = np.maximum(m, s)
        base = np.where(mn == NEG, 0, mn)
        a, p = np.exp(m - base), np.exp(s - base)
        sums = sums * a + p
        acc = acc * a[..., None] + np.where(
            ok[..., None], p[..., None] * heads(value[:, :, j : j + 1], H).astype(float), 0
        )
        m = mn
    return (acc / np.where(sums > 0, sums, 1)[..., None]).astype(query.dtype)


@strict
@quiet
def chunked_heads(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    bias=None,
    window=None,
    key_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
):
    """Scores are sums over chunks of 24 in float32 with compensation; values come by 20 columns."""
    B, H, L, d, _, S, dv = sizes(query, key, value)
    k, v = heads(key, H).astype(np.float32), heads(value, H).astype(np.float32)
    q = query.astype(np.float32)
    s = np.zeros((B, H, L, S), np.float32)
    lost = np.zeros_like(s)
    for c in range(0, d, 24):
        part = q[..., c : c + 24] @ k[..., c : c + 24].swapaxes(2, 3)
        y = part - lost
        t = s + y
        lost = (t - s) - y
        s = t
    s = s.astype(np.float64) * default_scale(scale, d)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    P, _ = soft(s, ok, None if sinks is None else np.asarray(sinks, float).reshape(1, H, 1))
    out = np.zeros((B, H, L, dv), query.dtype)
    for c in range(0, dv, 20):
        out[..., c : c + 20] = dpv(P, v[..., c : c + 20].astype(np.float64), ok)
    return out
