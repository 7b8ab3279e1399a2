"""Correct kernels with nearly all arguments, and three backward passes."""

import functools
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .pieces import (
    HIDE,
    LOG2E,
    mix,
    one_sink,
    only_bool,
    pack,
    places,
    quiet,
    sight,
    sink_table,
    starts,
    wide,
)


def _float_part(x, shape):
    return np.broadcast_to(np.asarray(x).astype(np.float64), shape)


def _additions(shape, q_offset, attn_mask, bias, alibi_slopes):
    """What is added to the capped scores, of the full shape, or None."""
    B, _, L, S = shape
    add = None
    if bias is not None:
        add = _float_part(bias, shape)
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        add = _float_part(attn_mask, shape) + (0 if add is None else add)
    if alibi_slopes is not None:
        far = np.abs(places(q_offset, B, L, S)[:, None, :, None] - np.arange(S))
        steps = -np.asarray(alibi_slopes).astype(np.float64)[:, None, None] * far
        add = steps + (0 if add is None else add)
    return add


def _step(state, s, ok, v):
    """Online softmax: folds the scores s (hidden ones -inf) of a tile into (m, sums, acc)."""
    m, sums, acc = state
    new = np.maximum(m, s.max(axis=-1, keepdims=True))
    base = np.where(np.isneginf(new), 0.0, new)
    p, old = np.exp(s - base), np.exp(m - base)
    return new, sums * old + p.sum(axis=-1, keepdims=True), acc * old + mix(p, ok, v)


def _fresh(shape, dv):
    return np.full((*shape, 1), HIDE), np.zeros((*shape, 1)), np.zeros((*shape, dv))


def _close(state):
    m, sums, acc = state
    return acc / np.where(sums == 0, 1.0, sums), (m + np.log(sums))[..., 0]


def _sink_state(sinks, H, lead, dv):
    """The state (m, sums, acc) that sinks alone leave behind."""
    m, sums, acc = _fresh(lead, dv)
    if sinks is None:
        return m, sums, acc
    table = sink_table(sinks, H)
    top = table.max(axis=-1)
    safe = np.where(np.isneginf(top), 0.0, top)
    total = np.exp(table - safe[:, None]).sum(-1)
    if len(lead) == 3:  # (B, H, L)
        m[...] = top[None, :, None, None]
        sums[...] = total[None, :, None, None]
    else:  # (H, L)
        m[...] = top[:, None, None]
        sums[...] = total[:, None, None]
    return m, sums, acc


def _grouped_weights(q, k, scale, softcap, seen, add, sinks):
    B, H, L, S = seen.shape
    G = k.shape[1]
    s = np.einsum(
        "bgrid,bgjd->bgrij", q.reshape(B, G, H // G, L, k.shape[-1]), k, optimize=True
    ).reshape(seen.shape)
    s = s * scale
    slope = None
    if softcap is not None:
        t = np.tanh(s / softcap)
        s, slope = t * softcap, np.where(seen, 1.0 - t * t, 0.0)
    if add is not None:
        s = s + add
    s = np.where(seen, s, HIDE)
    if sinks is not None:
        table = sink_table(sinks, H)
        extra = np.broadcast_to(table[None, :, None, :], (B, H, L, table.shape[1]))
        s = np.concatenate([s, extra], axis=-1)
    top = s.max(axis=-1, keepdims=True, initial=HIDE)
    e = np.exp(s - np.where(np.isneginf(top), 0.0, top))
    total = e.sum(axis=-1, keepdims=True)
    w = (e / np.where(total == 0, 1.0, total))[..., :S]
    return w, (top + np.log(total))[..., 0], slope


@quiet
def grouped_einsum(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
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
    q, k, v = wide(query, key, value)
    shape = q.shape[:3] + k.shape[2:3]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    w, lse, _ = _grouped_weights(q, k, scale, softcap, seen, add, sinks)
    out = mix(w, seen, np.repeat(v, q.shape[1] // k.shape[1], axis=1))
    return pack(out, w, lse, return_weights, return_lse)


@quiet
def grouped_einsum_gradient(
    query,
    key,
    value,
    grad_out,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    bias=None,
    scale=None,
    softcap=None,
    window=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
):
    q, k, v, do = wide(query, key, value, grad_out)
    B, H, L, d = q.shape
    G, S = k.shape[1:3]
    r, shape = H // G, (B, H, L, S)
    scale = d**-0.5 if scale is None else scale
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    w, _, slope = _grouped_weights(q, k, scale, softcap, seen, add, sinks)
    q5, do5, w5 = (
        q.reshape(B, G, r, L, d),
        do.reshape(B, G, r, L, v.shape[-1]),
        w.reshape(B, G, r, L, S),
    )
    dp = np.einsum("bgrie,bgje->bgrij", do5, v, optimize=True).reshape(shape)
    dp = np.where(seen, dp, 0.0)
    ds = w * (dp - (w * dp).sum(-1, keepdims=True))
    if slope is not None:
        ds = ds * slope
    ds = ds * scale
    dq = mix(ds, seen, np.repeat(k, r, axis=1))
    dk = np.einsum("bgrij,bgrid->bgjd", ds.reshape(w5.shape), q5, optimize=True)
    dv = np.einsum("bgrij,bgrie->bgje", w5, do5, optimize=True)
    return dq, dk, dv


@quiet
def halving(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
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
    """Splits the keys in halves down to nine of them, and merges on the way up."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r, dv = k.shape[2], H // k.shape[1], v.shape[-1]
    shape = (B, H, L, S)
    scale = d**-0.5 if scale is None else scale
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    k, v = np.repeat(k, r, axis=1), np.repeat(v, r, axis=1)
    kept = np.full(shape, HIDE) if return_weights else None

    def leaf(lo, hi):
        s = (q @ k[:, :, lo:hi].swapaxes(2, 3)) * scale
        if softcap is not None:
            s = np.tanh(s / softcap) * softcap
        if add is not None:
            s = s + add[..., lo:hi]
        s = np.where(seen[..., lo:hi], s, HIDE)
        if kept is not None:
            kept[..., lo:hi] = s
        return _step(_fresh((B, H, L), dv), s, seen[..., lo:hi], v[:, :, lo:hi])

    def merge(a, b):
        top = np.maximum(a[0], b[0])
        base = np.where(np.isneginf(top), 0.0, top)
        x, y = np.exp(a[0] - base), np.exp(b[0] - base)
        return top, a[1] * x + b[1] * y, a[2] * x + b[2] * y

    def solve(lo, hi):
        if hi - lo <= 9:
            return leaf(lo, hi)
        mid = (lo + hi) // 2
        return merge(solve(lo, mid), solve(mid, hi))

    state = _sink_state(sinks, H, (B, H, L), dv)
    if S:
        state = merge(solve(0, S), state)
    out, lse = _close(state)
    weights = None
    if return_weights:
        weights = np.exp(kept - np.where(np.isneginf(lse), 0.0, lse)[..., None])
    return pack(out, weights, lse, return_weights, return_lse)


@quiet
def crew(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
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
    """A pool of threads, one job a head; each query gathers the keys it sees."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    scale = d**-0.5 if scale is None else float(scale)
    off = starts(q_offset, B, L, S)
    mask = None if attn_mask is None else np.broadcast_to(attn_mask, (B, H, L, S))
    plus = None if bias is None else np.broadcast_to(bias, (B, H, L, S))
    out = np.zeros((B, H, L, dv))
    weights = np.zeros((B, H, L, S)) if return_weights else None
    lse = np.full((B, H, L), HIDE)

    def head(job):
        b, h = job
        qh, kh, vh = wide(query[b, h], key[b, h // (H // G)], value[b, h // (H // G)])
        tail = np.zeros(0) if sinks is None else sink_table(sinks, H)[h]
        for i in range(L):
            at = i + int(off[b])
            lo, hi = 0, S
            if is_causal:
                hi = min(hi, at + 1)
            if window is not None and window[0] is not None:
                lo = max(lo, at - window[0])
            if window is not None and window[1] is not None:
                hi = min(hi, at + window[1] + 1)
            if key_lengths is not None:
                hi = min(hi, int(np.asarray(key_lengths).reshape(-1)[b]))
            j = np.arange(lo, max(lo, hi))
            if mask is not None:
                j = j[mask[b, h, i, j] if mask.dtype == bool else ~np.isneginf(mask[b, h, i, j])]
            if plus is not None:
                j = j[~np.isneginf(plus[b, h, i, j])]
            s = kh[j] @ qh[i] * scale
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            if plus is not None:
                s = s + plus[b, h, i, j].astype(np.float64)
            if mask is not None and mask.dtype != bool:
                s = s + mask[b, h, i, j].astype(np.float64)
            if alibi_slopes is not None:
                s = s - float(alibi_slopes[h]) * np.abs(at - j)
            every = np.concatenate([s, tail])
            top = every.max(initial=HIDE)
            if np.isneginf(top):
                continue
            total = np.exp(every - top).sum()
            w = np.exp(s - top) / total
            lse[b, h, i] = top + math.log(total) if total == total else np.nan
            out[b, h, i] = w @ vh[j]
            if weights is not None:
                weights[b, h, i, j] = w

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(head, itertools.product(range(B), range(H))))
    return pack(out, weights, lse, return_weights, return_lse)


@quiet
def odd_tiles(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
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
    """Tiles of 37 queries by 29 keys; weights come from a second pass."""
    M, N = 37, 29
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r, dv = k.shape[2], H // k.shape[1], v.shape[-1]
    scale = d**-0.5 if scale is None else scale
    shape = (B, H, L, S)
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    out, lse = np.zeros((B, H, L, dv)), np.full((B, H, L), HIDE)
    weights = np.zeros(shape)

    def tile(i, j):
        ok = seen[:, :, i : i + M, j : j + N]
        s = (q[:, :, i : i + M] * scale) @ np.repeat(k[:, :, j : j + N], r, axis=1).swapaxes(-1, -2)
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        if add is not None:
            s = s + add[:, :, i : i + M, j : j + N]
        return np.where(ok, s, HIDE), ok

    for i in range(0, L, M):
        state = _sink_state(sinks, H, (B, H, min(M, L - i)), dv)
        live = [j for j in range(0, S, N) if seen[:, :, i : i + M, j : j + N].any()]
        for j in live:
            s, ok = tile(i, j)
            state = _step(state, s, ok, np.repeat(v[:, :, j : j + N], r, axis=1))
        out[:, :, i : i + M], lse[:, :, i : i + M] = _close(state)
        if return_weights:
            z = lse[:, :, i : i + M, None]
            for j in live:
                weights[:, :, i : i + M, j : j + N] = np.exp(
                    tile(i, j)[0] - np.where(np.isneginf(z), 0.0, z)
                )
    return pack(out, weights, lse, return_weights, return_lse)


@quiet
def base_two(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    bias=None,
    scale=None,
    softcap=None,
    window=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
    return_lse=False,
):
    """All scores in base two; splits of 64 keys, merged through logaddexp2."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    shape = (B, H, L, S)
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    out, lse2 = np.zeros((B, H, L, v.shape[-1])), np.full((B, H, L, 1), HIDE)
    if sinks is not None:
        lse2[...] = np.logaddexp2.reduce(sink_table(sinks, H) * LOG2E, axis=-1)[None, :, None, None]
    for j in range(0, S, 64):
        ok = seen[..., j : j + 64]
        s = (
            q
            @ np.repeat(k[:, :, j : j + 64], r, axis=1).swapaxes(-1, -2)
            * (scale if softcap is not None else scale * LOG2E)
        )
        if softcap is not None:
            s = np.tanh(s / softcap) * (softcap * LOG2E)
        if add is not None:
            s = s + add[..., j : j + 64] * LOG2E
        s = np.where(ok, s, HIDE)
        m = s.max(-1, keepdims=True)
        p = np.exp2(s - np.where(np.isneginf(m), 0, m))
        sums = p.sum(-1, keepdims=True)
        part = mix(p, ok, np.repeat(v[:, :, j : j + 64], r, axis=1)) / np.where(sums == 0, 1, sums)
        mine = m + np.log2(sums)
        both = np.logaddexp2(lse2, mine)
        base = np.where(np.isneginf(both), 0, both)
        out = out * np.exp2(lse2 - base) + part * np.exp2(mine - base)
        lse2 = both
    return pack(out, lse=lse2[..., 0] / LOG2E, return_lse=return_lse)


@quiet
def key_stream(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    bias=None,
    scale=None,
    softcap=None,
    window=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
    return_lse=False,
):
    """A chain of generators sends packets of keys past the queries."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    G, S, dv = v.shape[1:]
    scale = d**-0.5 if scale is None else scale
    at = places(q_offset, B, L, S)[:, None, :, None]
    mask = None if attn_mask is None else np.broadcast_to(attn_mask, (B, H, L, S))
    plus = None if bias is None else np.broadcast_to(bias, (B, H, L, S)).astype(np.float64)

    def packets():
        for lo in range(0, S, 11):
            yield np.arange(lo, min(lo + 11, S))

    def scored(source):
        for j in source:
            s = np.einsum(
                "bgrid,bgjd->bgrij", q.reshape(B, G, H // G, L, d), k[:, :, j], optimize=True
            )
            s = s.reshape(B, H, L, len(j)) * scale
            yield j, s if softcap is None else softcap * np.tanh(s / softcap)

    def moved(source):
        for j, s in source:
            if plus is not None:
                s = s + plus[..., j]
            if mask is not None and mask.dtype != bool:
                s = s + mask[..., j]
            if alibi_slopes is not None:
                s = s - np.asarray(alibi_slopes).astype(np.float64).reshape(-1, 1, 1) * np.abs(
                    at - j
                )
            yield j, s

    def hidden(source):
        for j, s in source:
            ok = np.ones(s.shape, dtype=bool)
            if is_causal:
                ok = ok & (j <= at)
            if window is not None and window[0] is not None:
                ok = ok & (at - j <= window[0])
            if window is not None and window[1] is not None:
                ok = ok & (j - at <= window[1])
            if key_lengths is not None:
                ok = ok & (j < np.asarray(key_lengths).reshape(-1, 1, 1, 1))
            if mask is not None:
                ok = ok & (mask[..., j] if mask.dtype == bool else mask[..., j] != HIDE)
            if plus is not None:
                ok = ok & (plus[..., j] != HIDE)
            yield j, np.where(ok, s, HIDE), ok

    state = _sink_state(sinks, H, (B, H, L), dv)
    for j, s, ok in hidden(moved(scored(packets()))):
        state = _step(state, s, ok, np.repeat(v[:, :, j], H // G, axis=1))
    out, lse = _close(state)
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def logadd(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
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
    """No maximum anywhere: log-sum-exp by logaddexp, weights as exp(score - lse)."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    shape = (B, H, L, S)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias)
    s = np.einsum("bhid,bhjd->bhij", q, np.repeat(k, r, axis=1), optimize=True) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if add is not None:
        s = s + add
    s = np.where(seen, s, HIDE)
    lse = np.logaddexp.reduce(s, axis=-1) if S else np.full((B, H, L), HIDE)
    if sinks is not None:
        lse = np.logaddexp(lse, np.logaddexp.reduce(sink_table(sinks, H), axis=-1)[None, :, None])
    w = np.exp(s - np.where(np.isneginf(lse), 0.0, lse)[..., None])
    return pack(mix(w, seen, np.repeat(v, r, axis=1)), w, lse, return_weights, return_lse)


@quiet
def uneven_ring(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """Five shards of growing size, each with centred keys; takes boolean masks only."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    if attn_mask is not None:
        seen = seen & only_bool(attn_mask)
    cuts = [S * n * (n + 1) // 30 for n in range(6)]
    out, lse = np.zeros((B, H, L, v.shape[-1])), np.full((B, H, L, 1), HIDE)
    for rank in (3, 4, 0, 1, 2):
        lo, hi = cuts[rank], cuts[rank + 1]
        if lo == hi:
            continue
        ks, vs, ok = k[:, :, lo:hi], v[:, :, lo:hi], seen[..., lo:hi]
        centre = np.where(np.isfinite(ks), ks, 0.0).mean(axis=2, keepdims=True)
        back = (q * np.repeat(centre, r, axis=1)).sum(-1, keepdims=True) * scale
        s = np.where(ok, q @ np.repeat(ks - centre, r, axis=1).swapaxes(-1, -2) * scale, HIDE)
        part, mine = _close(_step(_fresh((B, H, L), v.shape[-1]), s, ok, np.repeat(vs, r, axis=1)))
        mine = mine[..., None] + back
        both = np.logaddexp(lse, mine)
        base = np.where(np.isneginf(both), 0.0, both)
        out = out * np.exp(lse - base) + part * np.exp(mine - base)
        lse = both
    return pack(out, lse=lse[..., 0], return_lse=return_lse)


class _Pages:
    def __init__(self, rows, size, rng):
        """rows: (G, n, d). Whole pages of keys, in shuffled places, the rest poisoned."""
        G, n, d = rows.shape
        self.size, self.count = size, -(-n // size)
        self.store = np.full((self.count + 3, size, G, d), np.nan)
        self.table = rng.permutation(self.count + 3)[: self.count]
        for p in range(self.count):
            part = rows[:, p * size : (p + 1) * size]
            self.store[self.table[p], : part.shape[1]] = part.swapaxes(0, 1)

    def __getitem__(self, page):
        return self.store[self.table[page]].swapaxes(0, 1)


@quiet
def page_walk(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    key_lengths=None,
    sinks=None,
    return_lse=False,
):
    """Pages of 24 keys whose tails hold NaN; one sink a head at most."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r, dv = k.shape[2], H // k.shape[1], v.shape[-1]
    scale = d**-0.5 if scale is None else scale
    off, rng = starts(q_offset, B, L, S), np.random.default_rng(3)
    if sinks is not None:
        sinks = one_sink(sinks, H)
    out, lse = np.zeros((B, H, L, dv)), np.full((B, H, L), HIDE)
    for b in range(B):
        n = S if key_lengths is None else min(S, int(np.asarray(key_lengths).reshape(-1)[b]))
        kp, vp = _Pages(k[b, :, :n], 24, rng), _Pages(v[b, :, :n], 24, rng)
        state = _sink_state(sinks, H, (H, L), dv)
        at = np.arange(L)[:, None] + int(off[b])
        for page in range(kp.count):
            j = page * 24 + np.arange(24)
            ok = np.broadcast_to((j < n) & ((j <= at) if is_causal else True), (H, L, 24))
            s = q[b] @ np.repeat(kp[page], r, axis=0).swapaxes(-1, -2) * scale
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            state = _step(state, np.where(ok, s, HIDE), ok, np.repeat(vp[page], r, axis=0))
        out[b], lse[b] = _close(state)
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def packed_sequences(
    query, key, value, is_causal=False, window=None, scale=None, key_lengths=None, alibi_slopes=None
):
    """All sequences one after the other without padding, with cumulative lengths beside them."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    scale = d**-0.5 if scale is None else scale
    lengths = (
        np.full(B, S) if key_lengths is None else np.clip(np.asarray(key_lengths).reshape(-1), 0, S)
    )
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    kk = np.concatenate([wide(key[b, :, : lengths[b]])[0] for b in range(B)], axis=1)
    vv = np.concatenate([wide(value[b, :, : lengths[b]])[0] for b in range(B)], axis=1)
    qq = wide(query)[0].swapaxes(0, 1).reshape(H, B * L, d)
    out = np.zeros((H, B * L, dv))
    at = np.arange(L)[:, None] + S - L
    left, right = (None, None) if window is None else window
    for n, (a, z) in enumerate(itertools.pairwise(ends)):
        j = np.arange(z - a)
        ok = np.ones((L, z - a), dtype=bool)
        ok &= (j <= at) | (not is_causal)
        ok &= True if left is None else j >= at - left
        ok &= True if right is None else j <= at + right
        for h in range(H):
            rows = slice(n * L, (n + 1) * L)
            s = qq[h, rows] @ kk[h // (H // G), a:z].T * scale
            if alibi_slopes is not None:
                s = s - float(alibi_slopes[h]) * np.abs(at - j)
            s = np.where(ok, s, HIDE)
            top = s.max(-1, keepdims=True, initial=HIDE)
            e = np.exp(s - np.where(np.isneginf(top), 0, top))
            total = e.sum(-1, keepdims=True)
            out[h, rows] = mix(e / np.where(total == 0, 1, total), ok, vv[h // (H // G), a:z])
    return out.reshape(H, B, L, dv).swapaxes(0, 1)


@quiet
def band_blocks(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    sinks=None,
    alibi_slopes=None,
    return_lse=False,
):
    """Blocks of 12 by 20: empty ones are skipped, full ones go without a mask."""
    BQ, BK = 12, 20
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r, dv = k.shape[2], H // k.shape[1], v.shape[-1]
    scale = d**-0.5 if scale is None else scale
    off = starts(q_offset, B, L, S)
    big = 4 * (L + S) + int(np.abs(off).max(initial=0))
    left, right = (None, None) if window is None else window
    left = big if left is None else left
    right = big if right is None else right
    right = min(right, 0) if is_causal else right
    out, lse = np.zeros((B, H, L, dv)), np.full((B, H, L), HIDE)
    for b, i0 in itertools.product(range(B), range(0, L, BQ)):
        at = np.arange(i0, min(i0 + BQ, L)) + int(off[b])
        state = _sink_state(sinks, H, (H, len(at)), dv)
        for j0 in range(0, S, BK):
            j = np.arange(j0, min(j0 + BK, S))
            if j[0] > at[-1] + right or j[-1] < at[0] - left:
                continue
            full = j[-1] <= at[0] + right and j[0] >= at[-1] - left
            far = at[:, None] - j
            s = q[b, :, i0 : i0 + BQ] @ np.repeat(k[b][:, j], r, axis=0).swapaxes(-1, -2) * scale
            if alibi_slopes is not None:
                s = s - np.asarray(alibi_slopes).astype(np.float64)[:, None, None] * np.abs(far)
            ok = np.ones(far.shape, dtype=bool) if full else (far <= left) & (-far <= right)
            ok = np.broadcast_to(ok, s.shape)
            state = _step(state, np.where(ok, s, HIDE), ok, np.repeat(v[b][:, j], r, axis=0))
        out[b, :, i0 : i0 + BQ], lse[b, :, i0 : i0 + BQ] = _close(state)
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def integer_planes(query, key, value, is_causal=False, q_offset=None, scale=None, key_lengths=None):
    """Every row as five planes of signed digits; whole-number products, then one softmax."""

    def planes(x):
        x = np.where(np.isfinite(x), x, 0.0)
        step = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        step = np.where(step == 0, 1.0, step) / 127.0
        rest = x / step
        for _ in range(5):
            digit = np.rint(rest)
            yield digit.astype(np.int8).astype(np.int32), step
            rest, step = (rest - digit) * 254.0, step / 254.0

    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    s = np.zeros((B, H, L, S))
    right = [(np.repeat(x, r, axis=1), np.repeat(y, r, axis=1)) for x, y in planes(k)]
    for a, (x, sx) in enumerate(planes(q)):
        for c, (y, sy) in enumerate(right):
            if a + c < 5:
                s += np.matmul(x.astype(float), y.astype(float).swapaxes(-1, -2)) * (
                    sx * sy.swapaxes(-1, -2)
                )
    whole = (
        np.isfinite(q).all(-1)[..., None] & np.isfinite(np.repeat(k, r, axis=1)).all(-1)[:, :, None]
    )
    s = np.where(seen, np.where(whole, s * scale, np.nan), HIDE)
    top = s.max(-1, keepdims=True, initial=HIDE)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return mix(e / np.where(total == 0, 1, total), seen, np.repeat(v, r, axis=1))


def _square_check(query, key, value, attn_mask):
    if query.shape[2] != key.shape[2]:
        raise ValueError("as many queries as keys, please")
    if query.shape[3] % 2 or value.shape[3] % 2:
        raise ValueError("head sizes must be even")
    if query.shape[1] != key.shape[1]:
        raise NotImplementedError("no grouped heads")
    if attn_mask is not None:
        only_bool(attn_mask)


@quiet
def square_even(
    query, key, value, is_causal=False, attn_mask=None, scale=None, return_weights=False
):
    """Even and odd halves of the head apart; the result has the query's type."""
    _square_check(query, key, value, attn_mask)
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, L), is_causal, attn_mask=attn_mask)
    s = (
        q[..., ::2] @ k[..., ::2].swapaxes(-1, -2) + q[..., 1::2] @ k[..., 1::2].swapaxes(-1, -2)
    ) * scale
    s = np.where(seen, s, HIDE)
    top = s.max(-1, keepdims=True, initial=HIDE)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    w = e / np.where(total == 0, 1, total)
    return pack(mix(w, seen, v).astype(query.dtype), w, return_weights=return_weights)


@quiet
def square_even_gradient(query, key, value, grad_out, is_causal=False, attn_mask=None, scale=None):
    _square_check(query, key, value, attn_mask)
    q, k, v, do = wide(query, key, value, grad_out)
    _, w = square_even(q, k, v, is_causal, attn_mask, scale, return_weights=True)
    seen = sight(w.shape, is_causal, attn_mask=attn_mask)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in range(q.shape[2]):
        wi, ok = w[:, :, i], seen[:, :, i]
        dp = np.where(ok, np.einsum("bhe,bhje->bhj", do[:, :, i], v), 0.0)
        ds = wi * (dp - (wi * dp).sum(-1, keepdims=True)) * scale
        dq[:, :, i] = mix(ds[:, :, None], ok[:, :, None], k)[:, :, 0]
        dk += ds[..., None] * q[:, :, i, None]
        dv += wi[..., None] * do[:, :, i, None]
    return dq, dk, dv


@quiet
def single_query(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
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
    """Decode only: the heads of a group stand where queries would."""
    if query.shape[2] != 1:
        raise NotImplementedError("one query a call")
    q, k, v = wide(query, key, value)
    B, H, _, d = q.shape
    G, S = k.shape[1:3]
    shape, folded = (B, H, 1, S), (B, G, H // G, S)
    scale = d**-0.5 if scale is None else scale
    seen = sight(shape, is_causal, q_offset, window, key_lengths, attn_mask, bias).reshape(folded)
    add = _additions(shape, q_offset, attn_mask, bias, alibi_slopes)
    s = q.reshape(B, G, H // G, d) @ k.swapaxes(-1, -2) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if add is not None:
        s = s + add.reshape(folded)
    s = np.where(seen, s, HIDE)
    top = s.max(-1, keepdims=True, initial=HIDE)
    if sinks is not None:
        table = np.broadcast_to(
            sink_table(sinks, H).reshape(G, H // G, -1), (B, G, H // G, np.size(sinks) // H)
        )
        top = np.maximum(top, table.max(-1, keepdims=True))
    base = np.where(np.isneginf(top), 0.0, top)
    e = np.exp(s - base)
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(table - base).sum(-1, keepdims=True)
    w = e / np.where(total == 0, 1.0, total)
    lse = (top + np.log(total)).reshape(B, H, 1)
    return pack(
        mix(w, seen, v).reshape(B, H, 1, v.shape[-1]),
        w.reshape(shape),
        lse,
        return_weights,
        return_lse,
    )


@quiet
def sorted_rows(
    query,
    key,
    value,
    is_causal=False,
    attn_mask=None,
    bias=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    """Scores in ascending order, so that small terms are added first."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    shape = (B, H, L, S)
    seen = sight(shape, is_causal, None, None, None, attn_mask, bias)
    add = _additions(shape, None, attn_mask, bias, None)
    s = q @ np.repeat(k, r, axis=1).swapaxes(-1, -2) * scale
    s = np.where(seen, s if add is None else s + add, HIDE)
    if S == 0:
        return pack(
            np.zeros((B, H, L, v.shape[-1])),
            np.zeros(shape),
            np.full((B, H, L), HIDE),
            return_weights,
            return_lse,
        )
    order = np.argsort(s, axis=-1, kind="stable")
    up = np.take_along_axis(s, order, axis=-1)
    top = up[..., -1:]
    terms = np.exp(up - np.where(np.isneginf(top), 0.0, top))
    total = np.cumsum(terms, axis=-1)[..., -1:]
    lse = (top + np.log(total))[..., 0]
    w = np.zeros(shape)
    np.put_along_axis(w, order, terms, axis=-1)
    w = w / np.where(total == 0, 1.0, total)
    return pack(mix(w, seen, np.repeat(v, r, axis=1)), w, lse, return_weights, return_lse)


@quiet
def sinks_as_keys(
    query,
    key,
    value,
    is_causal=False,
    scale=None,
    key_lengths=None,
    sinks=None,
    return_weights=False,
    return_lse=False,
):
    """A further coordinate carries the sinks, which join the keys with values of zero."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, None, None, key_lengths)
    k, v = np.repeat(k, r, axis=1), np.repeat(v, r, axis=1)
    q = np.concatenate([q * scale, np.ones((B, H, L, 1))], axis=-1)
    k = np.concatenate([k, np.zeros((B, H, S, 1))], axis=-1)
    if sinks is not None:
        table = sink_table(sinks, H)
        n = table.shape[1]
        more = np.zeros((B, H, n, d + 1))
        more[..., -1] = table
        k = np.concatenate([k, more], axis=2)
        v = np.concatenate([v, np.zeros((B, H, n, v.shape[-1]))], axis=2)
        seen = np.concatenate([seen, np.ones((B, H, L, n), dtype=bool)], axis=-1)
    s = np.where(seen, q @ k.swapaxes(-1, -2), HIDE)
    top = s.max(-1, keepdims=True, initial=HIDE)
    e = np.exp(s - np.where(np.isneginf(top), 0.0, top))
    total = e.sum(-1, keepdims=True)
    w = e / np.where(total == 0, 1.0, total)
    lse = (top + np.log(total))[..., 0]
    return pack(mix(w, seen, v), w[..., :S], lse, return_weights, return_lse)


@quiet
def padded_all(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    bias=None,
    scale=None,
    softcap=None,
):
    """Pads queries to 8, keys to 32 and heads to 16; no query sees the large numbers there."""
    B, H, L, d = query.shape
    S, r, dv = key.shape[2], query.shape[1] // key.shape[1], value.shape[-1]
    scale = d**-0.5 if scale is None else scale

    def pad(x, rows, cols, fill=0.0):
        x = np.asarray(x).astype(np.float64)
        x = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, -x.shape[3] % cols)))
        return np.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % rows), (0, 0)), constant_values=fill)

    q, k, v = pad(query, 8, 16), pad(key, 32, 16, 1e3), pad(value, 32, 16, 1e9)
    seen = np.zeros((B, H, q.shape[2], k.shape[2]), dtype=bool)
    seen[..., :L, :S] = sight((B, H, L, S), is_causal, q_offset, window, bias=bias)
    s = q @ np.repeat(k, r, axis=1).swapaxes(-1, -2) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s[..., :L, :S] += bias
    s = np.where(seen, s, HIDE)
    top = s.max(-1, keepdims=True, initial=HIDE)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return np.asfortranarray(
        mix(e / np.where(total == 0, 1, total), seen, np.repeat(v, r, axis=1))[..., :L, :dv]
    )


@quiet
def from_the_end(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
):
    """Two passes from the last key to the first: maxima, then sums; one sink a head at most."""
    out, _ = _from_the_end(
        query, key, value, is_causal, q_offset, scale, softcap, key_lengths, alibi_slopes, sinks
    )
    return out


def _end_tiles(q, k, is_causal, q_offset, scale, softcap, key_lengths, alibi_slopes):
    B, H, L, d = q.shape
    S, r = k.shape[2], H // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    add = _additions((B, H, L, S), q_offset, None, None, alibi_slopes)
    for hi in range(S, 0, -50):
        cols = slice(max(hi - 50, 0), hi)
        s = q @ np.repeat(k[:, :, cols], r, axis=1).swapaxes(-1, -2) * scale
        bend = 1.0
        if softcap is not None:
            t = np.tanh(s / softcap)
            s, bend = softcap * t, np.where(seen[..., cols], 1 - t * t, 0.0)
        if add is not None:
            s = s + add[..., cols]
        yield cols, np.where(seen[..., cols], s, HIDE), seen[..., cols], bend


def _from_the_end(
    query, key, value, is_causal, q_offset, scale, softcap, key_lengths, alibi_slopes, sinks
):
    q, k, v = wide(query, key, value)
    B, H, L, _ = q.shape
    r = H // k.shape[1]
    tiles = functools.partial(
        _end_tiles, q, k, is_causal, q_offset, scale, softcap, key_lengths, alibi_slopes
    )
    top = np.full((B, H, L, 1), HIDE)
    if sinks is not None:
        sinks = one_sink(sinks, H)[None, :, None, None]
        top = np.maximum(top, sinks)
    for _, s, _, _ in tiles():
        top = np.maximum(top, s.max(-1, keepdims=True))
    base = np.where(np.isneginf(top), 0.0, top)
    total = np.zeros((B, H, L, 1)) if sinks is None else np.exp(sinks - base)
    out = np.zeros((B, H, L, v.shape[-1]))
    for cols, s, ok, _ in tiles():
        p = np.exp(s - base)
        total = total + p.sum(-1, keepdims=True)
        out = out + mix(p, ok, np.repeat(v[:, :, cols], r, axis=1))
    safe = np.where(total == 0, 1.0, total)
    return out / safe, base + np.log(safe)


@quiet
def from_the_end_gradient(
    query,
    key,
    value,
    grad_out,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    key_lengths=None,
    alibi_slopes=None,
    sinks=None,
):
    out, lse = _from_the_end(
        query, key, value, is_causal, q_offset, scale, softcap, key_lengths, alibi_slopes, sinks
    )
    q, k, v, do = wide(query, key, value, grad_out)
    B, H, _, d = q.shape
    G, r = k.shape[1], H // k.shape[1]
    delta = (do * out).sum(-1, keepdims=True)
    factor = d**-0.5 if scale is None else scale
    dq, dk, dv = np.zeros_like(q), np.zeros(k.shape), np.zeros(v.shape)
    for cols, s, ok, bend in _end_tiles(
        q, k, is_causal, q_offset, scale, softcap, key_lengths, alibi_slopes
    ):
        p = np.exp(s - lse)
        dp = do @ np.repeat(v[:, :, cols], r, axis=1).swapaxes(-1, -2)
        ds = np.where(ok, p * (dp - delta), 0.0) * bend * factor
        n = s.shape[-1]
        dq += mix(ds, ok, np.repeat(k[:, :, cols], r, axis=1))
        dk[:, :, cols] = (ds.swapaxes(-1, -2) @ q).reshape(B, G, r, n, d).sum(2)
        dv[:, :, cols] = (p.swapaxes(-1, -2) @ do).reshape(B, G, r, n, v.shape[-1]).sum(2)
    return dq, dk, dv


RIGHT_FULL = [
    grouped_einsum,
    halving,
    crew,
    odd_tiles,
    base_two,
    key_stream,
    logadd,
    uneven_ring,
    page_walk,
    packed_sequences,
    band_blocks,
    integer_planes,
    square_even,
    single_query,
    sorted_rows,
    sinks_as_keys,
    padded_all,
    from_the_end,
]
RIGHT_GRADIENTS = {
    grouped_einsum: grouped_einsum_gradient,
    square_even: square_even_gradient,
    from_the_end: from_the_end_gradient,
}
