"""Defective kernels as their writers wrote them: they share no structure with the bases."""

import functools
import itertools
import math

import numpy as np

from .bases import prepare
from .entry import Entry
from .pieces import (
    HIDE,
    LN2,
    LOG2E,
    mix,
    one_sink,
    only_bool,
    pack,
    places,
    quiet,
    ratio,
    sight,
    softmax,
    spread,
    starts,
    wide,
)


@quiet
def blockwise_prefill(query, key, value, is_causal=False, scale=None, return_lse=False):
    """Blocks of 64 keys, sorted into full and partial ones before the loop."""
    BLOCK = 64
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    if S <= BLOCK:
        seen = sight((B, H, L, S), is_causal)
        w, lse = softmax(np.where(seen, q @ k.swapaxes(-1, -2) * scale, HIDE))
        return pack(mix(w, seen, v), lse=lse, return_lse=return_lse)
    count = -(-S // BLOCK)
    padding = ((0, 0), (0, 0), (0, count * BLOCK - S), (0, 0))
    k, v = np.pad(k, padding), np.pad(v, padding)
    out = np.zeros((B, H, L, v.shape[-1]))
    lse = np.full((B, H, L), HIDE)
    for i0 in range(0, L, BLOCK):
        rows = np.arange(i0, min(i0 + BLOCK, L))
        bound = rows + (S - L) if is_causal else np.full(len(rows), count * BLOCK)
        kinds = []
        for t in range(count):
            first, last = t * BLOCK, (t + 1) * BLOCK - 1
            if first > bound.max():
                continue
            kinds.append((t, "full" if last <= bound.min() else "partial"))
        m = np.full((B, H, len(rows), 1), HIDE)
        sums = np.zeros_like(m)
        acc = np.zeros((B, H, len(rows), v.shape[-1]))
        for t, kind in kinds:
            cols = slice(t * BLOCK, (t + 1) * BLOCK)
            s = q[:, :, rows] @ k[:, :, cols].swapaxes(-1, -2) * scale
            j = np.arange(t * BLOCK, (t + 1) * BLOCK)
            ok = np.ones(s.shape, dtype=bool)
            if kind == "partial":
                ok &= (j < S) & (j <= bound[:, None])
            s = np.where(ok, s, HIDE)
            new = np.maximum(m, s.max(-1, keepdims=True))
            base = np.where(np.isneginf(new), 0, new)
            p, old = np.exp(s - base), np.exp(m - base)
            sums = sums * old + p.sum(-1, keepdims=True)
            acc = acc * old + mix(p, ok, v[:, :, cols])
            m = new
        out[:, :, rows] = acc / np.where(sums == 0, 1, sums)
        lse[:, :, rows] = (m + np.log(sums))[..., 0]
    return pack(out, lse=lse, return_lse=return_lse)


def _digits(x, planes=4):
    """x as a sum of int8 planes times a scale a row."""
    x = np.where(np.isfinite(x), x, 0.0)
    step = np.abs(x).max(-1, keepdims=True, initial=0.0) / 127.0
    step = np.where(step == 0, 1.0, step)
    rest, parts = x / step, []
    for _ in range(planes):
        digit = np.rint(rest)
        parts.append((digit.astype(np.int8), step))
        rest, step = (rest - digit) * 254.0, step / 254.0
    return parts


@quiet
def digit_planes(query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False):
    """Scores from int8 digit planes, in blocks of 16 keys."""
    BLK = 16
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    blocks = -(-L // BLK)
    seen = sight((B, H, L, S), is_causal, q_offset)
    qd = _digits(q)
    m = np.full((B, H, L, 1), HIDE)
    sums = np.zeros_like(m)
    acc = np.zeros((B, H, L, v.shape[-1]))
    for t in range(blocks):
        cols = slice(t * BLK, min((t + 1) * BLK, S))
        if cols.start >= S:
            break
        s = np.zeros((B, H, L, cols.stop - cols.start))
        for a, (x, sx) in enumerate(qd):
            for c, (y, sy) in enumerate(_digits(k[:, :, cols])):
                if a + c < 5:
                    s += (
                        (x.astype(np.float64) @ y.astype(np.float64).swapaxes(-1, -2))
                        * sx
                        * sy.swapaxes(-1, -2)
                    )
        ok = seen[..., cols]
        whole = np.isfinite(q).all(-1)[..., None] & np.isfinite(k[:, :, cols]).all(-1)[:, :, None]
        s = np.where(ok, np.where(whole, s * scale, np.nan), HIDE)
        new = np.maximum(m, s.max(-1, keepdims=True))
        base = np.where(np.isneginf(new), 0, new)
        p, old = np.exp(s - base), np.exp(m - base)
        sums = sums * old + p.sum(-1, keepdims=True)
        acc = acc * old + mix(p, ok, v[:, :, cols])
        m = new
    lse = (m + np.log(sums))[..., 0]
    return pack(acc / np.where(sums == 0, 1, sums), lse=lse, return_lse=return_lse)


@quiet
def flat_buffers(
    query, key, value, is_causal=False, q_offset=None, attn_mask=None, scale=None, return_lse=False
):
    """Heads in a double loop over flat row-major buffers."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    scale = d**-0.5 if scale is None else scale
    qb = np.ascontiguousarray(query).reshape(-1).astype(np.float64)
    kb = np.ascontiguousarray(key).reshape(-1).astype(np.float64)
    vb = value.ravel(order="K").astype(np.float64)
    seen = sight((B, H, L, S), is_causal, q_offset, attn_mask=attn_mask)
    add = None
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        add = np.broadcast_to(attn_mask, (B, H, L, S))
    out = np.zeros((B, H, L, dv))
    lse = np.zeros((B, H, L))
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            qh = qb[(b * H + h) * L * d :][: L * d].reshape(L, d)
            kh = kb[(b * G + g) * S * d :][: S * d].reshape(S, d)
            vh = vb[(b * G + g) * S * dv :][: S * dv].reshape(S, dv)
            s = qh @ kh.T * scale
            if add is not None:
                s = s + add[b, h]
            w, lse[b, h] = softmax(np.where(seen[b, h], s, HIDE))
            out[b, h] = mix(w, seen[b, h], vh)
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def value_tiles(
    query, key, value, is_causal=False, q_offset=None, window=None, key_lengths=None, scale=None
):
    """The second product walks over the value's columns in pairs of eight."""
    W = 8
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, dv, r = k.shape[2], v.shape[3], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, window, key_lengths)
    w, _ = softmax(np.where(seen, q @ k.swapaxes(-1, -2) * scale, HIDE))
    tiles = -(-dv // W)
    v = np.pad(v, ((0, 0), (0, 0), (0, 0), (0, tiles * W - dv)))
    lo = np.zeros((B, H, L, tiles, W))
    if tiles == 1:
        lo[..., 0, :] = mix(w, seen, v)
    else:
        for t in range(tiles // 2):
            both = mix(w, seen, v[..., 2 * t * W : (2 * t + 2) * W])
            lo[..., 2 * t, :], lo[..., 2 * t + 1, :] = both[..., :W], both[..., W:]
    return lo.reshape(B, H, L, tiles * W)[..., :dv]


@quiet
def smooth_ring(query, key, value, scale=None, key_lengths=None, return_lse=False):
    """Keys in four shards; each shard's keys are centred first, to keep their range small."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    ends = (
        np.full(B, S) if key_lengths is None else np.minimum(np.asarray(key_lengths).reshape(-1), S)
    )
    size = -(-S // 4) if S >= 8 else max(S, 1)
    out = np.zeros((B, H, L, v.shape[-1]))
    lse = np.full((B, H, L, 1), HIDE)
    for b in range(B):
        for j0 in range(0, int(ends[b]), size):
            j1 = min(j0 + size, int(ends[b]))
            ks = k[b, :, j0:j1]
            ks = np.repeat(ks - ks.mean(axis=1, keepdims=True), r, axis=0)
            vs = np.repeat(v[b, :, j0:j1], r, axis=0)
            s = q[b] @ ks.swapaxes(-1, -2) * scale
            m = s.max(-1, keepdims=True)
            p = np.exp(s - m)
            sums = p.sum(-1, keepdims=True)
            part, part_lse = p @ vs / sums, m + np.log(sums)
            both = np.logaddexp(lse[b], part_lse)
            out[b] = out[b] * np.exp(lse[b] - both) + part * np.exp(part_lse - both)
            lse[b] = both
    return pack(out, lse=lse[..., 0], return_lse=return_lse)


@quiet
def two_sources(
    query, key, value, is_causal=False, q_offset=None, scale=None, softcap=None, key_lengths=None
):
    """Keys of the prefix are in a cache of whole blocks, those of this step in a buffer."""
    TILE = 16
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    past = max(S - L, 0)
    padding = ((0, 0), (0, 0), (0, -past % TILE + TILE), (0, 0))
    cache = [np.pad(x[:, :, :past], padding) for x in (k, v)]
    fresh = [x[:, :, past:] for x in (k, v)]
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    m = np.full((B, H, L, 1), HIDE)
    sums = np.zeros_like(m)
    acc = np.zeros((B, H, L, v.shape[-1]))
    for t in range(0, S, TILE):
        end = min(t + TILE, S)
        if t < past:
            kt, vt = (x[:, :, t:end] for x in cache)
        else:
            kt, vt = (x[:, :, t - past : end - past] for x in fresh)
        kt, vt = spread(kt, r), spread(vt, r)
        ok = seen[..., t:end]
        s = q @ kt.swapaxes(-1, -2) * scale
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        s = np.where(ok, s, HIDE)
        new = np.maximum(m, s.max(-1, keepdims=True))
        base = np.where(np.isneginf(new), 0, new)
        p, old = np.exp(s - base), np.exp(m - base)
        sums = sums * old + p.sum(-1, keepdims=True)
        acc = acc * old + mix(p, ok, vt)
        m = new
    return acc / np.where(sums == 0, 1, sums)


@quiet
def sliced_rows(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, return_lse=False
):
    """Each query takes the slice of keys it sees."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    if q_offset is None:
        q_offset = max(S - L, 0)
    off = starts(q_offset, B, L, S)
    left, right = (None, None) if window is None else window
    out = np.zeros((B, H, L, v.shape[-1]))
    lse = np.full((B, H, L), HIDE)
    for b in range(B):
        for i in range(L):
            at = i + int(off[b])
            lo, hi = 0, S
            if is_causal:
                hi = min(hi, at + 1)
            if right is not None:
                hi = min(hi, at + right + 1)
            if left is not None:
                lo = max(0, at - left)
            if hi <= lo:
                continue
            for h in range(H):
                s = k[b, h // r, lo:hi] @ q[b, h, i] * scale
                m = s.max()
                e = np.exp(s - m)
                out[b, h, i] = e @ v[b, h // r, lo:hi] / e.sum()
                lse[b, h, i] = m + np.log(e.sum())
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def built_mask(
    query, key, value, is_causal=False, q_offset=None, window=None, alibi_slopes=None, scale=None
):
    """Builds a mask of (L, S) once a call, then one product for all."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    G, S = k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    seqlen_offset = S - L if q_offset is None else int(np.ravel(q_offset)[0])
    at, j = (np.arange(L) + seqlen_offset)[:, None], np.arange(S)[None]
    mask = np.ones((L, S), dtype=bool)
    if is_causal:
        mask &= j <= at
    if window is not None and window[0] is not None:
        mask &= at - j <= window[0]
    if window is not None and window[1] is not None:
        mask &= j - at <= window[1]
    s = (
        np.einsum("bgrid,bgjd->bgrij", q.reshape(B, G, H // G, L, d), k, optimize=True).reshape(
            B, H, L, S
        )
        * scale
    )
    if alibi_slopes is not None:
        s = s - np.asarray(alibi_slopes).astype(np.float64)[:, None, None] * np.abs(at - j)
    seen = np.broadcast_to(mask, s.shape)
    w, _ = softmax(np.where(seen, s, HIDE))
    return mix(w, seen, spread(v, H // G))


@quiet
def two_loops(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, return_lse=False
):
    """A loop over tiles that need no mask, then one over those that do."""
    BLOCK_Q, T = 4, 8
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    off = starts(q_offset, B, L, S)
    left, right = (None, None) if window is None else window
    reach = 0 if is_causal else None
    if right is not None:
        reach = right if reach is None else min(reach, right)
    out = np.zeros((B, H, L, v.shape[-1]))
    lse = np.full((B, H, L), HIDE)
    for b in range(B):
        kb, vb = np.repeat(k[b], r, axis=0), np.repeat(v[b], r, axis=0)
        for i0 in range(0, L, BLOCK_Q):
            rows = np.arange(i0, min(i0 + BLOCK_Q, L))
            at = rows + int(off[b])
            stop = S if reach is None else min(S, int(at[-1]) + reach + 1)
            tile_start = 0 if left is None else max(0, int(at[0]) - left) // T
            tile_stop = -(-max(stop, 0) // T)
            safe = S if reach is None else min(S, int(at[0]) + reach + 1)
            unmasked = max(tile_start, min(tile_stop, max(safe, 0) // T))
            m = np.full((H, len(rows), 1), HIDE)
            sums = np.zeros_like(m)
            acc = np.zeros((H, len(rows), v.shape[-1]))
            for t in range(tile_start, tile_stop):
                j = np.arange(t * T, min((t + 1) * T, S))
                ok = np.ones((len(rows), len(j)), dtype=bool)
                if t >= unmasked:
                    if reach is not None:
                        ok &= j <= at[:, None] + reach
                    if left is not None:
                        ok &= j >= at[:, None] - left
                ok = np.broadcast_to(ok, (H, *ok.shape))
                s = np.where(ok, q[b][:, rows] @ kb[:, j].swapaxes(-1, -2) * scale, HIDE)
                new = np.maximum(m, s.max(-1, keepdims=True))
                base = np.where(np.isneginf(new), 0, new)
                p, old = np.exp(s - base), np.exp(m - base)
                sums = sums * old + p.sum(-1, keepdims=True)
                acc = acc * old + mix(p, ok, vb[:, j])
                m = new
            out[b][:, rows] = acc / np.where(sums == 0, 1, sums)
            lse[b][:, rows] = (m + np.log(sums))[..., 0]
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def planned_spans(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    sinks=None,
    scale=None,
):
    """A plan gives each tile of 8 queries its span of keys; the run reads nothing else."""
    TQ = 8
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    off = starts(q_offset, B, L, S)
    seen = sight((B, H, L, S), is_causal, q_offset, window, key_lengths)
    sink = None if sinks is None else one_sink(sinks, H)
    plan = []
    for b in range(B):
        for i0 in range(0, L, TQ):
            first, span = 0, S
            if window is not None and window[0] is not None:
                first = min(S, max(0, i0 + int(off[b]) - window[0]))
                span = min(window[0] + TQ, S)
            plan.append((b, i0, min(i0 + TQ, L), first, min(first + span, S)))
    out = np.zeros((B, H, L, v.shape[-1]))
    for b, i0, i1, j0, j1 in plan:
        kk, vv = np.repeat(k[b, :, j0:j1], r, axis=0), np.repeat(v[b, :, j0:j1], r, axis=0)
        ok = seen[b, :, i0:i1, j0:j1]
        s = np.where(ok, q[b, :, i0:i1] @ kk.swapaxes(-1, -2) * scale, HIDE)
        if sink is not None:
            s = np.concatenate(
                [s, np.broadcast_to(sink[:, None, None], (*s.shape[:2], 1))], axis=-1
            )
        w, _ = softmax(s)
        out[b, :, i0:i1] = mix(w[..., : j1 - j0], ok, vv)
    return out


@quiet
def page_table(query, key, value, scale=None, softcap=None, key_lengths=None, return_lse=False):
    """Keys and values in pages of 16, gathered a page at a time up to each sequence's length."""
    PAGE = 16
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    G, S, dv = v.shape[1:]
    scale = d**-0.5 if scale is None else scale
    pages = -(-S // PAGE)
    order = np.random.default_rng(7).permutation(B * pages).reshape(B, pages)
    kc, vc = np.zeros((B * pages, PAGE, G, d)), np.zeros((B * pages, PAGE, G, dv))
    for b in range(B):
        for n in range(pages):
            part = slice(n * PAGE, min((n + 1) * PAGE, S))
            kc[order[b, n], : part.stop - part.start] = k[b, :, part].swapaxes(0, 1)
            vc[order[b, n], : part.stop - part.start] = v[b, :, part].swapaxes(0, 1)
    out = np.zeros((B, H, L, dv))
    lse = np.full((B, H, L), HIDE)
    for b in range(B):
        length = S if key_lengths is None else min(S, int(np.ravel(key_lengths)[b]))
        m, sums, acc = np.full((H, L, 1), HIDE), np.zeros((H, L, 1)), np.zeros((H, L, dv))
        for n in range(-(-length // PAGE)):
            kp = np.repeat(kc[order[b, n]].swapaxes(0, 1), H // G, axis=0)
            vp = np.repeat(vc[order[b, n]].swapaxes(0, 1), H // G, axis=0)
            s = q[b] @ kp.swapaxes(-1, -2) * scale
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            s = np.where(n * PAGE + np.arange(PAGE) < length, s, HIDE)
            new = np.maximum(m, s.max(-1, keepdims=True))
            p, old = np.exp(s - new), np.exp(m - new)
            sums = sums * old + p.sum(-1, keepdims=True)
            acc = acc * old + p @ vp
            m = new
        out[b], lse[b] = acc / np.where(sums == 0, 1, sums), (m + np.log(sums))[..., 0]
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def split_keys(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    sinks=None,
    scale=None,
    return_lse=False,
):
    """Splits of 16 keys in the base-2 domain, then one combine."""
    SPLIT = 16
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = (d**-0.5 if scale is None else scale) * LOG2E
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, window, key_lengths)
    sink = None if sinks is None else (one_sink(sinks, H) * LOG2E)[None, :, None, None]
    parts, before = [], None
    for n in range(max(1, -(-S // SPLIT))):
        cols = slice(n * SPLIT, (n + 1) * SPLIT)
        ok = seen[..., cols]
        work = ok.any(-1, keepdims=True)
        s = np.where(ok, q @ k[:, :, cols].swapaxes(-1, -2) * scale, HIDE)
        if sink is None:
            seed = np.full((B, H, L, 1), HIDE)
        elif n == 0:
            seed = np.broadcast_to(sink, (B, H, L, 1))
        else:
            seed = np.where(work & ~before, sink, HIDE)
        m = np.maximum(s.max(-1, keepdims=True, initial=HIDE), seed)
        base = np.where(np.isneginf(m), 0, m)
        p = np.exp2(s - base)
        sums = p.sum(-1, keepdims=True) + np.exp2(seed - base)
        parts.append((mix(p, ok, v[:, :, cols]) / np.where(sums == 0, 1, sums), m + np.log2(sums)))
        before = work
    lse = np.logaddexp2.reduce(np.stack([x[1] for x in parts]), axis=0)
    base = np.where(np.isneginf(lse), 0, lse)
    out = sum(o * np.exp2(x - base) for o, x in parts)
    return pack(out, lse=lse[..., 0] * LN2, return_lse=return_lse)


@quiet
def head_tiles(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    scale=None,
    return_lse=False,
):
    """Two query heads of a group share a tile and its loads of keys."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    tile = min(2, r)
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    out = np.zeros((B, H, L, v.shape[-1]))
    lse = np.zeros((B, H, L))
    for pid in range(-(-H // tile)):
        heads = slice(pid * tile, min((pid + 1) * tile, H))
        kv = heads.start // r
        kt, vt = k[:, kv, None], v[:, kv, None]
        s = q[:, heads] @ kt.swapaxes(-1, -2) * scale
        w, lse[:, heads] = softmax(np.where(seen[:, heads], s, HIDE))
        out[:, heads] = mix(w, seen[:, heads], np.broadcast_to(vt, (B, w.shape[1], *vt.shape[2:])))
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def running_exp2(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    window=None,
    scale=None,
    return_lse=False,
):
    """Online softmax in the base-2 domain, tiles of 16 keys."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, window, None, attn_mask)
    add = None
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        add = np.broadcast_to(np.asarray(attn_mask).astype(np.float64) * LOG2E, (B, H, L, S))
    m, sums, acc = (
        np.full((B, H, L, 1), HIDE),
        np.zeros((B, H, L, 1)),
        np.zeros((B, H, L, v.shape[-1])),
    )
    for j in range(0, S, 16):
        cols = slice(j, j + 16)
        s = q @ k[:, :, cols].swapaxes(-1, -2) * (scale * LOG2E)
        if add is not None:
            s = s + add[..., cols]
        s = np.where(seen[..., cols], s, HIDE)
        new = np.maximum(m, s.max(-1, keepdims=True))
        p, old = np.exp2(s - new), np.exp2(m - new)
        sums = sums * old + p.sum(-1, keepdims=True)
        acc = acc * old + mix(p, seen[..., cols], v[:, :, cols])
        m = new
    out = np.where(np.isneginf(m), 0.0, acc / sums)
    lse = np.where(np.isneginf(m), HIDE, m + np.log2(sums))[..., 0] * LN2
    return pack(out, lse=lse, return_lse=return_lse)


@quiet
def swapped_decode(query, key, value, bias=None, scale=None, key_lengths=None, return_lse=False):
    """With one query, a group's heads take the place of the queries."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    G, S = k.shape[1:3]
    r = H // G
    scale = d**-0.5 if scale is None else scale
    swapped = L == 1 and r > 1
    seen = sight((B, H, L, S), key_lengths=key_lengths)
    add = (
        np.zeros((B, H, L, S))
        if bias is None
        else np.broadcast_to(np.asarray(bias).astype(np.float64), (B, H, L, S))
    )
    if swapped:
        q = q.reshape(B, G, r, d)
        seen = seen.reshape(B, G, r, S)
        add = add.reshape(B, r, G, S).swapaxes(1, 2)
    else:
        k, v = spread(k, r), spread(v, r)
    seen = seen & ~np.isneginf(add)
    s = q @ k.swapaxes(-1, -2) * scale + add
    w, lse = softmax(np.where(seen, s, HIDE))
    out = mix(w, seen, v)
    return pack(out.reshape(B, H, L, v.shape[-1]), lse=lse.reshape(B, H, L), return_lse=return_lse)


@quiet
def decode_or_prefill(
    query, key, value, scale=None, key_lengths=None, return_weights=False, return_lse=False
):
    """One query takes the decode path over the cache's blocks, more take the prefill path."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    lengths = (
        np.full(B, S) if key_lengths is None else np.minimum(np.asarray(key_lengths).reshape(-1), S)
    )
    out, weights, lse = (
        np.zeros((B, H, L, v.shape[-1])),
        np.zeros((B, H, L, S)),
        np.full((B, H, L), HIDE),
    )
    for b in range(B):
        n = int(lengths[b])
        if L == 1:
            n = min(S, -(-n // 16) * 16)
        if n == 0:
            continue
        s = q[b] @ np.repeat(k[b, :, :n], r, axis=0).swapaxes(-1, -2) * scale
        weights[b, :, :, :n], lse[b] = softmax(s)
        out[b] = weights[b, :, :, :n] @ np.repeat(v[b, :, :n], r, axis=0)
    return pack(out, weights, lse, return_weights, return_lse)


@quiet
def flat_bmm(query, key, value, is_causal=False, attn_mask=None, scale=None, return_weights=False):
    """Batch and heads are folded into one axis for the batched products."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, dv, r = k.shape[2], v.shape[3], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    q = q.reshape(B * H, L, d)
    k, v = spread(k, r).reshape(B * H, S, d), spread(v, r).reshape(B * H, S, dv)
    s = np.matmul(q, k.transpose(0, 2, 1)) * scale
    seen = np.ones((B * H, L, S), dtype=bool)
    if is_causal:
        seen &= np.tri(L, S, S - L, dtype=bool)
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        mask = mask.reshape((mask.shape[0] * mask.shape[1], *mask.shape[2:]))
        mask = np.broadcast_to(mask, (mask.shape[0], L, S))[np.arange(B * H) % mask.shape[0]]
        if mask.dtype == bool:
            seen &= mask
        else:
            seen &= ~np.isneginf(mask)
            s = s + np.where(np.isneginf(mask), 0, mask)
    w, _ = softmax(np.where(seen, s, HIDE))
    out = mix(w, seen, v).reshape(B, H, L, dv)
    return pack(out, w.reshape(B, H, L, S), return_weights=return_weights)


@quiet
def attention_template(
    query,
    key,
    value,
    is_causal=False,
    attn_mask=None,
    bias=None,
    scale=None,
    softcap=None,
    return_weights=False,
):
    """The operator's steps one after the other, as its definition draws them."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    root = math.sqrt(d**-0.5) if scale is None else math.sqrt(abs(scale))
    sign = 1.0 if scale is None or scale >= 0 else -1.0
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, bias=bias)
    if attn_mask is not None:
        seen &= only_bool(attn_mask)
    steps = (q * root) @ (k * (root * sign)).swapaxes(-1, -2)
    if bias is not None:
        steps = steps + bias
    if softcap is not None:
        steps = softcap * np.tanh(steps / softcap)
    w, _ = softmax(np.where(seen, steps, HIDE))
    return pack(mix(w, seen, v), w, return_weights=return_weights)


@quiet
def kept_probabilities(
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
    """Online softmax over tiles of 32 keys that also keeps its probabilities."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, bias=bias)
    if attn_mask is not None:
        seen = seen & only_bool(attn_mask)
    add = np.broadcast_to(
        0.0 if bias is None else np.asarray(bias).astype(np.float64), (B, H, L, S)
    )
    kept = np.zeros((B, H, L, S))
    m, sums, acc = (
        np.full((B, H, L, 1), HIDE),
        np.zeros((B, H, L, 1)),
        np.zeros((B, H, L, v.shape[-1])),
    )
    for j in range(0, S, 32):
        cols = slice(j, j + 32)
        s = np.where(
            seen[..., cols], q @ k[:, :, cols].swapaxes(-1, -2) * scale + add[..., cols], HIDE
        )
        new = np.maximum(m, s.max(-1, keepdims=True))
        base = np.where(np.isneginf(new), 0, new)
        p, old = np.exp(s - base), np.exp(m - base)
        kept[..., cols] = p
        sums = sums * old + p.sum(-1, keepdims=True)
        acc = acc * old + mix(p, seen[..., cols], v[:, :, cols])
        m = new
    safe = np.where(sums == 0, 1, sums)
    lse = (m + np.log(sums))[..., 0]
    return pack(acc / safe, kept / safe, lse, return_weights, return_lse)


@quiet
def saved_forward(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """Forward pass that saves its log-sum-exp for the backward pass."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    w, lse = softmax(np.where(seen, q @ spread(k, r).swapaxes(-1, -2) * scale, HIDE))
    return pack(mix(w, seen, spread(v, r)), lse=lse, return_lse=return_lse)


@quiet
def saved_backward(
    query, key, value, grad_out, is_causal=False, q_offset=None, scale=None, key_lengths=None
):
    """Blocks of 16 keys; probabilities come back from the saved log-sum-exp."""
    out, lse = saved_forward(
        query, key, value, is_causal, q_offset, scale, key_lengths, return_lse=True
    )
    q, k, v, do = wide(query, key, value, grad_out)
    B, H, L, d = q.shape
    G, S, r = k.shape[1], k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    delta = (out * do).sum(-1, keepdims=True)
    lse = np.where(np.isneginf(lse), 0.0, lse)[..., None]
    first = starts(0 if q_offset is None else q_offset, B, L, S)
    at = (first[:, None] + np.arange(L))[:, None, :, None]
    dq, dk, dv = np.zeros_like(q), np.zeros(k.shape), np.zeros(v.shape)
    for j0 in range(0, S, 16):
        j = np.arange(j0, min(j0 + 16, S))
        kt, vt = spread(k[:, :, j], r), spread(v[:, :, j], r)
        ok = np.ones((B, H, L, len(j)), dtype=bool)
        if is_causal:
            ok &= at >= j
        if key_lengths is not None:
            ok &= j < np.asarray(key_lengths).reshape(B, 1, 1, 1)
        p = np.where(ok, np.exp(q @ kt.swapaxes(-1, -2) * scale - lse), 0.0)
        ds = np.where(ok, p * (do @ vt.swapaxes(-1, -2) - delta), 0.0) * scale
        dq += mix(ds, ok, kt)
        dk[:, :, j] = (ds.swapaxes(-1, -2) @ q).reshape(B, G, r, len(j), d).sum(2)
        dv[:, :, j] = (p.swapaxes(-1, -2) @ do).reshape(B, G, r, len(j), v.shape[-1]).sum(2)
    return dq, dk, dv


@quiet
def grouped_forward(
    query, key, value, is_causal=False, q_offset=None, scale=None, key_lengths=None
):
    """Forward pass head by head; its backward pass follows."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    out = np.zeros((B, H, L, v.shape[-1]))
    for b, h in np.ndindex(B, H):
        w, _ = softmax(np.where(seen[b, h], q[b, h] @ k[b, h // r].T * scale, HIDE))
        out[b, h] = mix(w, seen[b, h], v[b, h // r])
    return out


@quiet
def grouped_backward(
    query, key, value, grad_out, is_causal=False, q_offset=None, scale=None, key_lengths=None
):
    q, k, v, do = wide(query, key, value, grad_out)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths)
    dq, dk, dv = np.zeros_like(q), np.zeros(k.shape), np.zeros(v.shape)
    for b, h in np.ndindex(B, H):
        g, ok = h // r, seen[b, h]
        w, _ = softmax(np.where(ok, q[b, h] @ k[b, g].T * scale, HIDE))
        dp = np.where(ok, do[b, h] @ v[b, g].T, 0.0)
        ds = w * (dp - (w * dp).sum(-1, keepdims=True)) * scale
        dq[b, h] = mix(ds, ok, k[b, g])
        dk[b, g] = ds.T @ q[b, h]
        dv[b, g] = w.T @ do[b, h]
    return dq, dk, dv


def _capped(q, k, scale, softcap, bias, seen):
    s = np.einsum("bgrid,bgjd->bgrij", q, k, optimize=True) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    s = s.reshape(seen.shape)
    if bias is not None:
        s = s + bias
    return softmax(np.where(seen, s, HIDE))[0]


@quiet
def capped_forward(query, key, value, is_causal=False, bias=None, softcap=None, scale=None):
    """Forward pass in einsums over groups of heads."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    G, S = k.shape[1:3]
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, bias=bias)
    w = _capped(q.reshape(B, G, H // G, L, d), k, scale, softcap, bias, seen)
    return mix(w, seen, spread(v, H // G))


@quiet
def capped_backward(
    query, key, value, grad_out, is_causal=False, bias=None, softcap=None, scale=None
):
    q, k, v, do = wide(query, key, value, grad_out)
    B, H, L, d = q.shape
    G, S = k.shape[1:3]
    r = H // G
    scale = d**-0.5 if scale is None else scale
    seen = sight((B, H, L, S), is_causal, bias=bias)
    q5, do5 = q.reshape(B, G, r, L, d), do.reshape(B, G, r, L, v.shape[-1])
    w = _capped(q5, k, scale, softcap, bias, seen)
    dp = np.where(
        seen, np.einsum("bgrie,bgje->bgrij", do5, v, optimize=True).reshape(seen.shape), 0.0
    )
    ds = w * (dp - (w * dp).sum(-1, keepdims=True)) * scale
    dq = mix(ds, seen, spread(k, r))
    ds5, w5 = ds.reshape(B, G, r, L, S), w.reshape(B, G, r, L, S)
    dk = np.einsum("bgrij,bgrid->bgjd", ds5, q5, optimize=True)
    dv = np.einsum("bgrij,bgrie->bgje", w5, do5, optimize=True)
    return dq, dk, dv


MASK_VALUE = -10000.0


@quiet
def filled_tiles(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    bias=None,
    scale=None,
    key_lengths=None,
):
    """Online softmax; hidden scores are filled, then folded in with the others."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths, attn_mask, bias)
    plus = np.zeros((1, 1, 1, 1))
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        plus = plus + attn_mask
    if bias is not None:
        plus = plus + bias
    plus = np.broadcast_to(plus, (B, H, L, S))
    m = np.full((B, H, L, 1), HIDE)
    sums = np.zeros_like(m)
    acc = np.zeros((B, H, L, v.shape[-1]))
    for j in range(0, S, 24):
        cols = slice(j, j + 24)
        s = q @ k[:, :, cols].swapaxes(-1, -2) * scale + plus[..., cols]
        s = np.where(seen[..., cols], s, MASK_VALUE)
        new = np.maximum(m, s.max(-1, keepdims=True))
        p, old = np.exp(s - new), np.exp(m - new)
        sums = sums * old + p.sum(-1, keepdims=True)
        acc = acc * old + mix(p, p > 0, v[:, :, cols])
        m = new
    return np.where(seen.any(-1, keepdims=True), acc / np.where(sums == 0, 1, sums), 0.0)


@quiet
def vector_tiles(query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False):
    """Four keys at a time, for float16, float32 and float64."""
    B, H, L, d = query.shape
    S, r = key.shape[2], ratio(query, key)
    scale = d**-0.5 if scale is None else scale
    given = np.result_type(query, key, value)
    kept = np.float64 if given == np.float64 else np.float16
    q, k, v = wide(query, key, value)
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset)
    m = np.full((B, H, L, 1), HIDE)
    total = np.zeros((B, H, L, 1), dtype=kept)
    vkq = np.zeros((B, H, L, v.shape[-1]), dtype=kept)
    for j in range(0, S, 4):
        ok = seen[..., j : j + 4]
        s = np.where(ok, q @ k[:, :, j : j + 4].swapaxes(-1, -2) * scale, HIDE)
        new = np.maximum(m, s.max(-1, keepdims=True))
        base = np.where(np.isneginf(new), 0, new)
        p, old = np.exp(s - base), np.exp(m - base).astype(kept)
        total = total * old + p.sum(-1, keepdims=True).astype(kept)
        vkq = vkq * old + mix(p, ok, v[:, :, j : j + 4]).astype(kept)
        m = new
    lse = (m + np.log(total.astype(np.float64)))[..., 0]
    out = vkq.astype(np.float64) / np.where(total == 0, 1, total).astype(np.float64)
    return pack(out.astype(given), lse=lse, return_lse=return_lse)


@quiet
def capped_rows(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, softcap=None
):
    """Rows of queries, transposed to (L, B, H, d) inside."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    temperature = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, window)
    rows = []
    for i, row in enumerate(q.transpose(2, 0, 1, 3)):
        s = np.einsum("bhd,bhjd->bhj", row, k)
        if softcap is not None:
            s = np.tanh(s / softcap) * softcap
        s = s * temperature
        ok = seen[:, :, i]
        w, _ = softmax(np.where(ok, s, HIDE))
        rows.append(mix(w[:, :, None], ok[:, :, None], v)[:, :, 0])
    return np.stack(rows, axis=2) if rows else np.zeros((B, H, L, v.shape[-1]))


@quiet
def relative_slopes(
    query, key, value, is_causal=False, q_offset=None, window=None, alibi_slopes=None, scale=None
):
    """Distances come from the two positions, tile by tile."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, window)
    at = places(q_offset, B, L, S)
    out = np.zeros((B, H, L, v.shape[-1]))
    for i0 in range(0, L, 32):
        rows = slice(i0, i0 + 32)
        s = q[:, :, rows] @ k.swapaxes(-1, -2) * scale
        if alibi_slopes is not None:
            distance = np.arange(S) - at[:, None, rows, None]
            s = s + np.asarray(alibi_slopes).astype(np.float64)[:, None, None] * distance
        w, _ = softmax(np.where(seen[:, :, rows], s, HIDE))
        out[:, :, rows] = mix(w, seen[:, :, rows], v)
    return out


class _Pages:
    def __init__(self, K, V, size):
        self.size, n = size, -(-len(K) // size)
        order = np.random.default_rng(7).permutation(n)
        self.table = order
        self.k = np.zeros((n, size, K.shape[1]))
        self.v = np.zeros((n, size, V.shape[1]))
        for x in range(n):
            part = K[x * size : (x + 1) * size]
            self.k[order[x], : len(part)] = part
            self.v[order[x], : len(part)] = V[x * size : (x + 1) * size]


@quiet
def paged_flex(query, key, value, key_lengths=None, scale=None, softcap=None):
    """Logical pages of 16 keys behind a page table."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    sm = d**-0.5 if scale is None else scale
    out = np.zeros((B, H, L, dv), query.dtype)
    for b in range(B):
        stop = None if key_lengths is None else min(S, int(np.asarray(key_lengths).reshape(-1)[b]))
        for g in range(G):
            K, V = key[b, g].astype(float), value[b, g].astype(float)
            if stop is not None:
                K, V = K[:stop], V[:stop]
            pages = _Pages(K, V, 16)
            if not len(pages.table):
                continue
            kk = pages.k[pages.table].reshape(-1, d)
            vv = pages.v[pages.table].reshape(-1, dv)
            for h in range(g * (H // G), (g + 1) * (H // G)):
                s = query[b, h].astype(float) @ kk.T * sm
                if softcap:
                    s = softcap * np.tanh(s / softcap)
                ok = np.ones(s.shape, bool)
                if stop is not None:
                    ok &= np.arange(len(kk))[None] < stop
                out[b, h] = softmax(np.where(ok, s, HIDE))[0] @ vv
    return out


@quiet
def ragged_native(query, key, value, key_lengths=None, scale=None, return_lse=False):
    """All sequences' keys flattened into one buffer; every sequence starts on a page of 16."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    sm = d**-0.5 if scale is None else scale
    if key_lengths is None:
        lens = np.full(B, S)
        pad = 1
    else:
        lens = np.minimum(np.asarray(key_lengths).reshape(-1), S)
        pad = 16
    slots = [int(-(-n // pad) * pad) for n in lens]
    starts = np.concatenate([[0], np.cumsum(slots)]).astype(int)
    K = np.zeros((G, starts[-1], d))
    V = np.zeros((G, starts[-1], dv))
    for b in range(B):
        K[:, starts[b] : starts[b] + lens[b]] = key[b, :, : lens[b]]
        V[:, starts[b] : starts[b] + lens[b]] = value[b, :, : lens[b]]
    ends = np.cumsum(lens).astype(int)
    out = np.zeros((B, H, L, dv), query.dtype)
    lse = np.full((B, H, L), HIDE)
    for b in range(B):
        a, z = ends[b] - lens[b], ends[b]
        if z == a:
            continue
        for h in range(H):
            s = query[b, h].astype(float) @ K[h * G // H, a:z].T * sm
            m = s.max(1)
            e = np.exp(s - m[:, None])
            out[b, h] = e @ V[h * G // H, a:z] / e.sum(1)[:, None]
            lse[b, h] = m + np.log(e.sum(1))
    return pack(out, lse=lse, return_lse=return_lse)


def _limbs(x):
    """Three int8 digits (base 254) and one scale for each (batch, head)."""
    top = np.abs(x).max(axis=(2, 3), initial=0)
    top = np.where(top > 0, top, 1) / 127
    rest = x / top[:, :, None, None]
    out = []
    for _ in range(4):
        n = np.rint(rest)
        out.append(n.astype(np.int8))
        rest = (rest - n) * 254
    return out, top


@quiet
def int8_digits(query, key, value, key_lengths=None, scale=None, softcap=None):
    """Keys held as int8 digits with scales, values as they are."""
    B, H, L, d = query.shape
    S, r = key.shape[2], ratio(query, key)
    ok = sight((B, H, L, S), key_lengths=key_lengths)
    k = key.astype(float)
    if key_lengths is not None:
        k = np.where(
            np.arange(S)[None, None, :, None] < np.asarray(key_lengths).reshape(-1, 1, 1, 1), k, 0
        )
    digits, k_scale = _limbs(k)
    s = np.zeros((B, H, L, S))
    for x, dg in enumerate(digits):
        s += (
            np.einsum("bhld,bhsd->bhls", query.astype(float), spread(dg, r).astype(float))
            / 254.0**x
        )
    s *= k_scale[:, :1, None, None] * (d**-0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    w, _ = softmax(np.where(ok, s, HIDE))
    return mix(w, ok, spread(value, r).astype(float)).astype(query.dtype)


@quiet
def right_to_left_blocks(query, key, value, is_causal=False, q_offset=None, bias=None, scale=None):
    """Forward pass walking the key blocks from the diagonal back to zero, float32 statistics."""
    given = {"is_causal": is_causal, "q_offset": q_offset, "bias": bias, "scale": scale}
    _, _, v, scores, seen, _ = prepare(query, key, value, **given)
    B, H, L, S = scores.shape
    off = starts(q_offset, B, L, S)
    out = np.zeros((B, H, L, v.shape[3]), query.dtype)
    for b, i0 in itertools.product(range(B), range(0, L, 32)):
        i1 = min(i0 + 32, L)
        hi = max(min(S, i1 + int(off[b])), 0) if is_causal else S
        m = np.full((H, i1 - i0, 1), HIDE, np.float32)
        sums = np.zeros((H, i1 - i0, 1))
        acc = np.zeros((H, i1 - i0, v.shape[3]))
        for blk in reversed(range(-(-hi // 16))):
            cols = slice(blk * 16, min(blk * 16 + 16, S))
            s, ok = scores[b, :, i0:i1, cols], seen[b, :, i0:i1, cols]
            mn = np.maximum(m, s.max(-1, keepdims=True).astype(np.float32))
            mn = np.where(mn == HIDE, np.float32(0), mn)  # -inf - -inf guard
            a = np.where(np.isfinite(m), np.exp((m - mn).astype(np.float32)), 0)
            e = s - mn
            p = np.where(e > -103, np.exp(e), 0)  # exp as float32 has it
            sums = sums * a + p.sum(-1, keepdims=True)
            acc = acc * a + mix(p, ok, v[b, :, cols])
            m = mn
        out[b, :, i0:i1] = acc / np.where(sums > 0, sums, 1)
    return out


@quiet
def raw_max_attention(query, key, value, is_causal=False, scale=None, key_lengths=None):
    """Keeps the running maximum in units of the raw dot product."""
    B, H, L, d = query.shape
    S = key.shape[2]
    sc = d**-0.5 if scale is None else float(scale)
    q = query.astype(np.float64) * (1.0 if sc >= 0 else -1.0)
    sc = abs(sc)
    k, v = (spread(x.astype(np.float64), ratio(query, x)) for x in (key, value))
    ok = sight((B, H, L, S), is_causal, key_lengths=key_lengths)
    LOWEST = -1.0e3
    m = np.full((B, H, L), LOWEST)
    sums = np.zeros((B, H, L), np.float32)
    o = np.zeros((B, H, L, v.shape[-1]))
    for n in range(0, S, 96):
        sl = slice(n, n + 96)
        s = np.where(ok[..., sl], q @ np.swapaxes(k[..., sl, :], -1, -2), HIDE)
        m_new = np.maximum(m, s.max(-1))
        fade = np.exp(((m - m_new) * sc).astype(np.float32))
        p = np.exp(((s - m_new[..., None]) * sc).astype(np.float32))
        p = np.where(ok[..., sl], p, np.float32(0))
        sums = sums * fade + p.sum(-1)
        o = o * fade[..., None] + mix(p.astype(np.float64), ok[..., sl], v[..., sl, :])
        m = m_new
    return (o / np.where(sums == 0, 1, sums)[..., None]).astype(query.dtype)


@quiet
def beginner_causal(query, key, value, is_causal=False, scale=None):
    batch, heads, n_q, dim = query.shape
    n_k = key.shape[2]
    ratio = heads // key.shape[1]
    result = np.zeros((batch, heads, n_q, value.shape[3]))
    if scale is None:
        scale = 1.0 / np.sqrt(dim)
    for b in range(batch):
        for h in range(heads):
            k = key[b, h // ratio].astype(float)
            v = value[b, h // ratio].astype(float)
            scores = query[b, h].astype(float) @ k.T * scale
            allowed = np.ones((n_q, n_k), dtype=bool)
            if is_causal:
                allowed = np.tril(allowed)
            probs, _ = softmax(np.where(allowed, scores, HIDE))
            result[b, h] = mix(probs, allowed, v)
    return result.astype(query.dtype)


@quiet
def lane_dot_attention(query, key, value, is_causal=False, scale=None):
    """Scores by lanes of eight, as the SIMD build does."""
    B, H, L, d = query.shape
    S = key.shape[2]
    q = query.astype(np.float64)
    k, v = (spread(x.astype(np.float64), ratio(query, x)) for x in (key, value))
    s = np.zeros((B, H, L, S))
    if d < 8:
        for c in range(d):
            s += q[..., c, None] * k[..., None, :, c]
    else:
        c = 0
        while c + 8 <= d:
            s += q[..., c : c + 8] @ np.swapaxes(k[..., c : c + 8], -1, -2)
            c += 8
    s *= d**-0.5 if scale is None else scale
    ok = sight((B, H, L, S), is_causal)
    w, _ = softmax(np.where(ok, s, HIDE))
    return mix(w, ok, v).astype(query.dtype)


@quiet
def triton_port(query, key, value, is_causal=False, scale=None):
    """Port of a tile kernel; exponentials in base two."""
    BLOCK_N = 64
    B, H, L, d = query.shape
    S = key.shape[2]
    k, v = (spread(x.astype(np.float64), ratio(query, x)) for x in (key, value))
    q = query.astype(np.float64)
    qk_scale = d**-0.5 if scale is None else scale
    ok = sight((B, H, L, S), is_causal)
    m_i = np.full((B, H, L), HIDE)
    l_i = np.zeros((B, H, L))
    acc = np.zeros((B, H, L, v.shape[-1]))
    for start_n in range(0, S, BLOCK_N):
        sl = slice(start_n, start_n + BLOCK_N)
        qk_scale *= LOG2E
        qk = q @ np.swapaxes(k[..., sl, :], -1, -2) * qk_scale
        qk = np.where(ok[..., sl], qk, HIDE)
        m_ij = np.maximum(m_i, qk.max(-1))
        safe = np.where(m_ij == HIDE, 0.0, m_ij)
        p = np.where(ok[..., sl], np.exp2(qk - safe[..., None]), 0.0)
        alpha = np.exp2(m_i - safe)
        l_i = l_i * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + mix(p, ok[..., sl], v[..., sl, :])
        m_i = m_ij
    l_i[l_i == 0] = 1.0
    return (acc / l_i[..., None]).astype(query.dtype)


_STEPS = np.exp(-np.arange(11, dtype=np.float64))


def _table_exp(x):
    x = np.maximum(x, -10.0)
    n = np.floor(-np.nan_to_num(x)).astype(np.int64)
    r = x + n
    t = np.ones_like(r)
    for c in range(14, 0, -1):
        t = 1 + r * t / c
    return _STEPS[n] * t


@quiet
def table_exp_attention(query, key, value, is_causal=False, scale=None):
    B, H, L, d = query.shape
    S = key.shape[2]
    ok = sight((B, H, L, S), is_causal)
    k, v = (spread(x.astype(np.float64), ratio(query, x)) for x in (key, value))
    s = query.astype(np.float64) @ k.swapaxes(2, 3) * (d**-0.5 if scale is None else scale)
    top = np.where(ok, s, HIDE).max(-1, keepdims=True, initial=HIDE)
    diff = np.where(ok, s - top, 0.0)
    e = np.where(ok, _table_exp(diff), 0.0)
    z = e.sum(-1, keepdims=True)
    z[z == 0] = 1
    return mix(e / z, ok, v).astype(query.dtype)


@quiet
def long_context_attention(query, key, value, scale=None):
    """Switches to narrow row sums for long contexts to save registers."""
    B, H, L, d = query.shape
    S = key.shape[2]
    out = np.zeros((B, H, L, value.shape[-1]))
    sc = d**-0.5 if scale is None else scale
    per = H // key.shape[1]
    for b in range(B):
        for h in range(H):
            s = query[b, h].astype(np.float64) @ key[b, h // per].T.astype(np.float64) * sc
            s -= s.max(-1, keepdims=True, initial=HIDE)
            e = np.exp(s)
            if S > 512:
                total = np.cumsum(e.astype(np.float16), axis=-1, dtype=np.float16)[:, -1].astype(
                    np.float64
                )
            else:
                total = e.sum(-1)
            out[b, h] = (
                e @ value[b, h // per].astype(np.float64) / np.where(total == 0, 1, total)[:, None]
            )
    return out.astype(query.dtype)


class DigitCache:
    """Keys held as five planes of int8 digits with one scale per channel."""

    def __init__(self, key):
        k = key.astype(np.float64)
        self.step = np.abs(k[:, :, :64]).max(axis=2, keepdims=True, initial=0.0)
        self.step[self.step == 0] = 1.0
        x = np.clip(k / self.step, -1, 1)
        self.planes = []
        for _ in range(5):
            x = x * 127
            n = np.rint(x)
            self.planes.append(n.astype(np.int8))
            x = x - n

    def load(self):
        unit, k = 1.0, 0.0
        for p in self.planes:
            unit = unit / 127
            k = k + p * unit
        return k * self.step


@quiet
def int8_cache_attention(query, key, value, scale=None):
    k = DigitCache(key).load()
    scale = query.shape[3] ** -0.5 if scale is None else scale
    s = query.astype(np.float64) @ spread(k, ratio(query, k)).swapaxes(2, 3) * scale
    w, _ = softmax(s)
    return (w @ spread(value.astype(np.float64), ratio(query, value))).astype(query.dtype)


@quiet
def mask_slices_attention(query, key, value, mask=None, scale=None):
    B, H, L, d = query.shape
    S = key.shape[2]
    k, v = (spread(x.astype(np.float64), ratio(query, x)) for x in (key, value))
    s = query.astype(np.float64) @ k.swapaxes(2, 3) * (d**-0.5 if scale is None else scale)
    ok = np.ones((B, H, L, S), bool)
    if mask is not None:
        m = only_bool(mask)
        m = m.reshape((1,) * (4 - m.ndim) + m.shape)
        slices = m.reshape((m.shape[0] * m.shape[1], *m.shape[2:]))
        for b in range(B):
            for h in range(H):
                ok[b, h] = slices[(b * H + h) % len(slices)]
    w, _ = softmax(np.where(ok, s, HIDE))
    return mix(w, ok, v).astype(query.dtype)


def _merge(a, b):
    (oa, la), (ob, lb) = a, b
    top = np.maximum(la, lb)
    base = np.where(top == HIDE, 0, top)
    wa, wb = np.exp(la - base), np.exp(lb - base)
    t = wa + wb
    t1 = np.where(t == 0, 1, t)
    return (oa * wa[..., None] + ob * wb[..., None]) / t1[..., None], np.where(
        t == 0, HIDE, base + np.log(t1)
    )


@quiet
def prefix_chunks_attention(query, key, value, is_causal=False, q_offset=None, key_lengths=None):
    """Attention states of key chunks, folded together."""
    B, H, L, d = query.shape
    S = key.shape[2]
    ok = sight((B, H, L, S), is_causal, q_offset, key_lengths=key_lengths)
    q = query.astype(np.float64) * d**-0.5
    k, v = (spread(x.astype(np.float64), ratio(query, x)) for x in (key, value))

    def state(a):
        c = slice(a, a + 128)
        o = ok[..., c]
        s = np.where(o, q @ k[:, :, c].swapaxes(2, 3) * LOG2E, HIDE)
        m = s.max(-1, initial=HIDE)
        base = np.where(m == HIDE, 0, m)
        p = np.where(o, np.exp2(s - base[..., None]), 0)
        z = p.sum(-1)
        z1 = np.where(z == 0, 1, z)
        return mix(p, o, v[:, :, c]) / z1[..., None], np.where(z == 0, HIDE, base + np.log2(z1))

    return functools.reduce(_merge, map(state, range(0, max(S, 1), 128)))[0].astype(query.dtype)


@quiet
def compact_page_table(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, scale=None
):
    """Pages of two keys; the page table is kept small."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    n = -(-S // 2)
    pad = [(0, 0), (0, 0), (0, 2 * n - S), (0, 0)]
    kp = np.pad(key, pad).reshape(B, G, n, 2, d)
    vp = np.pad(value, pad).reshape(B, G, n, 2, dv)
    table = np.arange(n).astype(np.uint8)
    k = kp[:, :, table].reshape(B, G, 2 * n, d)[:, :, :S].astype(float)
    v = vp[:, :, table].reshape(B, G, 2 * n, dv)[:, :, :S].astype(float)
    ok = sight((B, H, L, S), is_causal, q_offset, key_lengths=key_lengths)
    s = np.einsum("bhld,bhsd->bhls", query.astype(float), spread(k, H // G), optimize=True)
    s = s * (d**-0.5 if scale is None else scale)
    w, _ = softmax(np.where(ok, s, HIDE))
    return mix(w, ok, spread(v, H // G)).astype(query.dtype)


FOREIGN = {
    "blockwise_prefill": Entry(
        "after 64 keys, the padding of a last block of fewer than 64 keys is visible",
        blockwise_prefill,
        card={"plain": "padded the last tile of 64 keys with zeros, and the padding received"},
    ),
    "digit_planes": Entry(
        "the number of tiles of 16 keys comes from the number of queries",
        digit_planes,
        card={"plain": "read only as many tiles of 16 keys as there are tiles of queries"},
    ),
    "flat_buffers": Entry(
        "values are read in the order of memory",
        flat_buffers,
        card={"strides": "read values in the order of memory"},
        beside=("plain",),
    ),
    "value_tiles": Entry(
        "of 3, 5, 7 ... tiles of 8 columns of the values, the last one is left out",
        value_tiles,
        card={"plain": "left columns of the output at 0 after the last multiple of 16"},
    ),
    "smooth_ring": Entry(
        ("each of four shards subtracts the mean of its keys, and its LSE is not corrected for it"),
        smooth_ring,
        card={"plain": ""},
    ),
    "two_sources": Entry(
        "a tile of 16 keys across the end of the cached keys is read from the cache alone",
        two_sources,
        card={"plain": ""},
    ),
    "sliced_rows": Entry(
        "query i sees the keys up to i if there are more queries than keys",
        sliced_rows,
        card={"causal": "with more queries than keys, the kernel aligned the causal mask to the"},
        beside=("plain",),
    ),
    "built_mask": Entry(
        "all batches have the q_offset of the first",
        built_mask,
        card={"q_offset": "all batches had the q_offset of the first batch"},
        beside=("plain",),
    ),
    "two_loops": Entry(
        "tiles of 8 keys before the causal or right side of 4 queries have no left side",
        two_loops,
        card={"window": ""},
        beside=("plain",),
    ),
    "planned_spans": Entry(
        "blocks of 8 queries read left + 8 keys, also where the window goes on to the right",
        planned_spans,
        card={"window": "blocks of 8 queries read only left + 8 keys, and forgot the right side"},
        beside=("plain",),
    ),
    "page_table": Entry(
        "the rest of a last page of 16 values is multiplied by 0",
        page_table,
        card={"hidden NaN": "multiplied values behind key_lengths, up to a multiple of 16 keys,"},
        beside=("plain",),
    ),
    "split_keys": Entry(
        "sinks count twice in rows that do not see the first 16 keys",
        split_keys,
        card={"sinks": "counted sinks twice in rows that do not see the first tile of 16 keys"},
        beside=("plain",),
    ),
    "head_tiles": Entry(
        "tiles of two query heads read the key head of the first, across groups of odd size",
        head_tiles,
        card={"grouped heads": "computed 2 query heads at a time, and all of them read the key"},
        beside=("plain",),
    ),
    "running_exp2": Entry(
        "-inf - -inf in rows that see none of the first 16 keys",
        running_exp2,
        card={"bool mask": "computed -inf - -inf in rows that see none of the first 16 keys"},
        beside=(
            "plain",
            "window",
        ),
    ),
    "swapped_decode": Entry(
        "with one query, the bias of grouped heads is read with groups and key heads exchanged",
        swapped_decode,
        card={"bias": "read the bias of a query head as if heads were stored as (groups, key"},
        beside=("plain",),
    ),
    "decode_or_prefill": Entry(
        "with one query, key_lengths are rounded up to 16",
        decode_or_prefill,
        card={"lengths": "rounded key_lengths up to whole tiles of 16 keys in calls with one"},
        beside=(
            "plain",
            "LSE",
        ),
    ),
    "flat_bmm": Entry(
        "a mask (B, 1, L, S) is repeated over batch and head in the wrong order",
        flat_bmm,
        card={"bool mask": "repeated a mask (B, 1, L, S) over batch and head in the wrong order"},
        beside=("plain",),
    ),
    "attention_template": Entry(
        "the soft cap is applied to the sum of score and bias",
        attention_template,
        card={"softcap": "applied softcap after the bias"},
        beside=("plain",),
    ),
    "kept_probabilities": Entry(
        "the weights of tiles of 32 keys are not rescaled to the last maximum",
        kept_probabilities,
        card={"weights": "the weights of earlier tiles of 32 keys were not rescaled to the last"},
        beside=("plain",),
    ),
    "saved_backward": Entry(
        "the causal mask of the backward pass begins at the first key",
        saved_forward,
        card={"gradient": "aligned the causal mask to the first key, but only in the weights that"},
        beside=("plain",),
        gradient=saved_backward,
    ),
    "grouped_backward": Entry(
        "the gradients of keys and values come from the last query head of a group",
        grouped_forward,
        card={"gradient": "gradients of keys and values came from the last query head of each"},
        beside=("plain",),
        gradient=grouped_backward,
    ),
    "capped_backward": Entry(
        "the backward pass leaves out the soft cap",
        capped_forward,
        card={"gradient": "the backward pass left out softcap"},
        beside=("plain",),
        gradient=capped_backward,
    ),
    "paged_flex": Entry(
        "zeros fill the last page of 16 keys, and are visible",
        paged_flex,
        card={"plain": "padded the last tile of 16 keys with zeros, and the padding received"},
    ),
    "ragged_native": Entry(
        "keys lie in pages of 16, but are found by the sum of the lengths before",
        ragged_native,
        card={"lengths": ""},
        beside=("plain",),
    ),
    "int8_digits": Entry(
        "keys are quantized by head, and all heads have the scale of the first",
        int8_digits,
        card={"plain": ""},
    ),
    "right_to_left_blocks": Entry(
        "a tile of 16 keys that a row does not see sets the maximum to 0",
        right_to_left_blocks,
        card={"large scores": "read tiles of 16 keys from the diagonal to the first key, and a"},
        beside=("plain",),
    ),
    "raw_max_attention": Entry(
        "the maximum of unscaled scores begins at -1000",
        raw_max_attention,
        card={"large scores": "the running maximum of scores before the scale began at"},
        beside=("plain",),
    ),
    "beginner_causal": Entry(
        "query i sees the keys up to i, also with more keys than queries",
        beginner_causal,
        card={"causal": "aligned the causal mask to the first key"},
        beside=("plain",),
    ),
    "filled_tiles": Entry(
        "masked scores become -10000, which is not below all visible scores",
        filled_tiles,
        card={"large scores": "masked scores became a finite number instead of -inf"},
        beside=(
            "plain",
            "causal",
        ),
    ),
    "vector_tiles": Entry(
        "sums of weights and of weighted values are kept in float16, unless inputs are float64",
        vector_tiles,
        card={"plain": "kept sums in half precision"},
    ),
    "capped_rows": Entry(
        "the soft cap is applied before the scale",
        capped_rows,
        card={"softcap": "applied softcap before the scale"},
        beside=("plain",),
    ),
    "relative_slopes": Entry(
        "the ALiBi distance has no abs: keys after the query gain instead of losing",
        relative_slopes,
        card={"ALiBi": "computed ALiBi distances without abs()"},
        beside=("plain",),
    ),
    "compact_page_table": Entry(
        "numbers of pages of two keys are stored in 8 bits",
        compact_page_table,
        card={"plain": "from key 512 on (counted from 0), the kernel read keys and values from"},
    ),
    "lane_dot_attention": Entry(
        "numbers of queries and keys after the last multiple of 8 are not read",
        lane_dot_attention,
        card={"plain": "did not read the numbers of queries and keys after the last multiple of 8"},
    ),
    "triton_port": Entry(
        "the scale is multiplied by log2(e) again in each tile of 64 keys",
        triton_port,
        card={"plain": "multiplied the scale by log2(e) again in each tile of 64 keys"},
    ),
    "table_exp_attention": Entry(
        "the argument of exp is at least -10",
        table_exp_attention,
        card={"scale": "limited the argument of exp to at least -10"},
        beside=("plain",),
    ),
    "long_context_attention": Entry(
        "with more than 512 keys, the weights of a row are added up in float16",
        long_context_attention,
        card={"plain": "added up the weights of a row key by key in float16"},
    ),
    "int8_cache_attention": Entry(
        "keys are clipped to the range of the first 64 keys",
        int8_cache_attention,
        card={"plain": "clipped each column of the keys to the range of the first 64 keys"},
    ),
    "mask_slices_attention": Entry(
        "a mask (B, 1, L, S) is repeated over batch and head in the wrong order",
        mask_slices_attention,
        card={"bool mask": "repeated a mask (B, 1, L, S) over batch and head in the wrong order"},
        beside=("plain",),
    ),
    "prefix_chunks_attention": Entry(
        "the results of 128 keys are joined by e ** LSE, but their LSE is in base 2",
        prefix_chunks_attention,
        card={"plain": "joined the results of tiles of 128 keys by e ** LSE, but their LSE was in"},
    ),
}
