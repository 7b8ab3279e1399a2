"""The sixth trial, first writer: defective kernels, most of them after public reports."""

import math
from concurrent.futures import ThreadPoolExecutor

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


@quiet
def prefill_row_end(query, key, value, is_causal=False, scale=None):
    """Row by row prefill: each row reads keys [0, end)."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    sm = default_scale(scale, d)
    out = np.zeros((B, H, L, dv), query.dtype)
    for b in range(B):
        for h in range(H):
            K, V = key[b, h * G // H].astype(np.float64), value[b, h * G // H].astype(np.float64)
            for i in range(L):
                end = min(S, i + 1) if is_causal else S
                if end == 0:
                    continue
                s = K[:end] @ query[b, h, i].astype(np.float64) * sm
                p = np.exp(s - s.max())
                out[b, h, i] = p @ V[:end] / p.sum()
    return out


@quiet
def exp2_prefill(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, return_lse=False
):
    """Online softmax in the log2 domain, tiles of 64 keys."""
    r = Rules(query, key, value, is_causal, q_offset, window=window, scale=scale)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    lse = np.full((r.B, r.H, r.L), NEG)
    for b in range(r.B):
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, 64):
                rows = np.arange(i0, i1)
                m = np.full(i1 - i0, NEG)
                sums = np.zeros(i1 - i0)
                acc = np.zeros((i1 - i0, r.dv))
                for j0, j1 in tiles(0, r.S, 64):
                    cols = np.arange(j0, j1)
                    ok = r.vis(b, h, rows, cols)
                    s = np.where(ok, r.scores(b, h, rows, cols) * LOG2E, NEG)
                    mn = np.maximum(m, s.max(1))
                    base = np.where(np.isfinite(mn), mn, 0)
                    a = np.exp2(m - base)
                    p = np.exp2(s - base[:, None])
                    sums = sums * a + p.sum(1)
                    acc = acc * a[:, None] + pv(p, r.values(b, h, cols), ok)
                    m = mn
                out[b, h, i0:i1] = acc / np.where(sums > 0, sums, 1)[:, None]
                lse[b, h, i0:i1] = np.where(sums > 0, m + np.log2(np.where(sums > 0, sums, 1)), NEG)
    return pack(out, None, lse, False, return_lse)


@strict
@quiet
def splitkv_sink_decode(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    scale=None,
    sinks=None,
):
    """Split-KV with a combine step; split 0 owns the sink."""
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        window=window,
        key_lengths=key_lengths,
        scale=scale,
        sinks=sinks,
    )
    step = 32
    n = max(1, -(-r.S // step))
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    for b in range(r.B):
        for h in range(r.H):
            for i in range(r.L):
                lo, hi = r.span(b, i, i + 1)
                parts = []
                filled = [max(lo, t * step) < min(hi, t * step + step, r.S) for t in range(n)]
                for t in range(n):
                    m, sums, acc = NEG, 0.0, np.zeros(r.dv)
                    if not filled[t]:
                        if t == 0 and sinks is not None:
                            # nothing to do: publish the sink and leave
                            parts.append((r.sink(h), 1.0, acc))
                        continue
                    if sinks is not None and (t == 0 or not any(filled[:t])):
                        m, sums = r.sink(h), 1.0
                    cols = np.arange(max(lo, t * step), min(hi, t * step + step, r.S))
                    s = r.scores(b, h, [i], cols)[0]
                    mn = max(m, s.max())
                    p = np.exp(s - mn)
                    parts.append(
                        (
                            mn,
                            sums * math.exp(m - mn) + p.sum() if sums else p.sum(),
                            p @ r.values(b, h, cols),
                        )
                    )
                if not parts:
                    continue
                top = max(x[0] for x in parts)
                den = sum(x[1] * math.exp(x[0] - top) for x in parts)
                out[b, h, i] = sum(x[2] * math.exp(x[0] - top) for x in parts) / den
    return out


@quiet
def right_to_left_blocks(query, key, value, is_causal=False, q_offset=None, bias=None, scale=None):
    """Forward pass walking the key blocks from the diagonal back to zero, float32 statistics."""
    r = Rules(query, key, value, is_causal, q_offset, bias=bias, scale=scale)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    for b in range(r.B):
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, 32):
                rows = np.arange(i0, i1)
                _, hi = r.span(b, i0, i1)
                n = len(rows)
                m = np.full(n, NEG, np.float32)
                sums = np.zeros(n, np.float64)
                acc = np.zeros((n, r.dv))
                for blk in reversed(range(-(-hi // 16))):
                    cols = np.arange(blk * 16, min(blk * 16 + 16, r.S))
                    ok = r.vis(b, h, rows, cols)
                    s = np.where(ok, r.scores(b, h, rows, cols), NEG)
                    mn = np.maximum(m, s.max(1).astype(np.float32))
                    mn = np.where(mn == NEG, np.float32(0), mn)  # -inf - -inf guard
                    a = np.where(np.isfinite(m), np.exp((m - mn).astype(np.float32)), 0)
                    e = s - mn[:, None]
                    p = np.where(e > -103, np.exp(e), 0)  # exp as float32 has it
                    sums = sums * a + p.sum(1)
                    acc = acc * a[:, None] + pv(p, r.values(b, h, cols), ok)
                    m = mn
                out[b, h, i0:i1] = acc / np.where(sums > 0, sums, 1)[:, None]
    return out


@quiet
def diagonal_block_causal(query, key, value, is_causal=False, q_offset=None, scale=None):
    """Blocks of 32 x 32; only the block on the diagonal is masked."""
    r = Rules(query, key, value, False, q_offset, scale=scale)
    T = 32
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    for b in range(r.B):
        o = int(r.off[b])
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, T):
                rows = np.arange(i0, i1)
                end = min(r.S, max(0, i1 + o)) if is_causal else r.S
                nb = -(-end // T)
                S_, V_, ok_ = [], [], []
                for x in range(nb):
                    cols = np.arange(x * T, min(r.S, x * T + T))
                    ok = np.ones((len(rows), len(cols)), bool)
                    if is_causal and x == nb - 1:
                        ok = cols[None, :] <= rows[:, None] + o
                    (
                        S_.append(r.scores(b, h, rows, cols)),
                        ok_.append(ok),
                        V_.append(r.values(b, h, cols)),
                    )
                if not nb:
                    continue
                ok = np.concatenate(ok_, 1)
                P, _ = soft(np.concatenate(S_, 1), ok)
                out[b, h, i0:i1] = pv(P, np.concatenate(V_, 0), ok)
    return out


@quiet
def alibi_attention(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    scale=None,
    alibi_slopes=None,
):
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset, None, None, key_lengths)
    k, v = heads(key, H).astype(float), heads(value, H).astype(float)
    s = np.einsum("bhld,bhsd->bhls", query.astype(float), k) * default_scale(scale, d)
    if alibi_slopes is not None:
        row, col = np.arange(L)[:, None], np.arange(S)[None, :]
        s = s - np.asarray(alibi_slopes, float).reshape(1, H, 1, 1) * np.abs(row - col)
    P, _ = soft(s, ok)
    return dpv(P, v, ok).astype(query.dtype)


@strict
@quiet
def gqa_einsum(
    query, key, value, is_causal=False, mask=None, bias=None, scale=None, return_weights=False
):
    B, H, L, d, G, S, _ = sizes(query, key, value)
    k = np.tile(key, (1, H // G, 1, 1)).astype(float)
    v = np.tile(value, (1, H // G, 1, 1)).astype(float)
    s = np.einsum("bhld,bhsd->bhls", query.astype(float), k) * default_scale(scale, d)
    if bias is not None:
        s = s + bias
    ok = full_vis(B, H, L, S, is_causal, None, mask)
    P, _ = soft(s, ok)
    return pack(dpv(P, v, ok).astype(query.dtype), P, None, return_weights)


@quiet
def local_gather(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, softcap=None
):
    """Each row gathers the keys of its local window."""
    r = Rules(query, key, value, scale=scale, softcap=softcap, q_offset=q_offset)
    left, right = window if window is not None else (None, None)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    for b in range(r.B):
        for i in range(r.L):
            p = i + int(r.off[b])
            lo = 0 if left is None else max(0, p - left + 1)
            hi = r.S if right is None else min(r.S, p + right + 1)
            if left == 0:
                lo = max(0, p)
            if is_causal:
                hi = min(hi, p + 1)
            if hi <= lo:
                continue
            cols = np.arange(lo, hi)
            for h in range(r.H):
                s = r.scores(b, h, [i], cols)[0]
                e = np.exp(s - s.max())
                out[b, h, i] = e @ r.values(b, h, cols) / e.sum()
    return out


@strict
@quiet
def capped_bias(query, key, value, is_causal=False, bias=None, mask=None, scale=None, softcap=None):
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, None, mask)
    s = (query.astype(float) * default_scale(scale, d)) @ heads(key, H).astype(float).swapaxes(2, 3)
    if bias is not None:
        s = s + np.asarray(bias, float)
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(float), ok).astype(query.dtype)


@strict
@quiet
def decode_with_cap(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    key_lengths=None,
    scale=None,
    softcap=None,
):
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask, None, key_lengths)
    s = np.einsum(
        "bhld,bhsd->bhls",
        query.astype(float) * default_scale(scale, d),
        heads(key, H).astype(float),
    )
    s = np.where(ok, s, NEG)
    v = heads(value, H).astype(float)
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
        seen = np.broadcast_to(ok.any(-1, keepdims=True), ok.shape)
        P, _ = soft(s, seen)
        return dpv(P, np.nan_to_num(v, nan=0, posinf=0, neginf=0), seen).astype(query.dtype)
    P, _ = soft(s, ok)
    return dpv(P, v, ok).astype(query.dtype)


def _tanh32(x):
    e = np.exp(np.float32(2) * x.astype(np.float32))
    return (e - 1) / (e + 1)


@strict
@quiet
def triton_like_softcap(
    query, key, value, is_causal=False, q_offset=None, mask=None, scale=None, softcap=None
):
    """tanh written with exp, as there is no tanh instruction."""
    r = Rules(query, key, value, is_causal, q_offset, mask, scale=scale)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    cols = np.arange(r.S)
    for b in range(r.B):
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, 48):
                rows = np.arange(i0, i1)
                ok = r.vis(b, h, rows, cols)
                s = r.scores(b, h, rows, cols)
                if softcap is not None:
                    x = s / softcap
                    near = np.tanh(x)
                    s = softcap * np.where(x < 40, near, _tanh32(x))
                P, _ = soft(s, ok)
                out[b, h, i0:i1] = pv(P, r.values(b, h, cols), ok)
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
    B, H, L, d, G, S, dv = sizes(query, key, value)
    sm = default_scale(scale, d)
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
                P, _ = soft(s, ok)
                out[b, h] = P @ vv
    return out


@quiet
def ragged_native(query, key, value, key_lengths=None, scale=None, return_lse=False):
    """All sequences' keys flattened into one buffer; every sequence starts on a page of 16."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    sm = default_scale(scale, d)
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
    lse = np.full((B, H, L), NEG)
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
    return pack(out, None, lse, False, return_lse)


@strict
@quiet
def additive_masked(
    query, key, value, is_causal=False, q_offset=None, mask=None, window=None, scale=None
):
    """Turns the bool mask into an additive one."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask, window)
    s = (query.astype(float) @ heads(key, H).astype(float).swapaxes(-1, -2)) * default_scale(
        scale, d
    )
    s = s + np.where(ok, 0.0, NEG)
    m = s.max(-1, keepdims=True, initial=NEG)
    e = np.exp(s - np.where(m == NEG, 0, m))
    sums = e.sum(-1, keepdims=True)
    return ((e @ heads(value, H).astype(float)) / np.where(sums == 0, 1, sums)).astype(query.dtype)


@strict
@quiet
def finite_fill(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    window=None,
    key_lengths=None,
    bias=None,
    scale=None,
):
    """masked_fill with the smallest finite number."""
    B, H, L, d, _, S, dv = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    s = np.matmul(
        query.astype(float), heads(key, H).astype(float).transpose(0, 1, 3, 2)
    ) * default_scale(scale, d)
    if bias is not None:
        s = s + bias
    s = np.where(ok, s, np.finfo(np.float64).min)
    if S == 0:
        return np.zeros((B, H, L, dv), query.dtype)
    e = np.exp(s - s.max(-1, keepdims=True))
    P = e / e.sum(-1, keepdims=True)
    v = heads(value, H).astype(float)
    out = dpv(P, v, ok)
    none = ~ok.any(-1)
    if none.any():
        clean = np.where(np.isfinite(v), v, 0)
        out[none] = (P @ clean)[none]
    return out.astype(query.dtype)


@quiet
def split_decode_lse(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    scale=None,
    return_lse=False,
):
    """Split decode over 64-key splits; one active split writes straight to the result."""
    r = Rules(
        query, key, value, is_causal, q_offset, window=window, key_lengths=key_lengths, scale=scale
    )
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    lse = np.full((r.B, r.H, r.L), NEG)
    splits = list(tiles(0, r.S, 64))
    for b in range(r.B):
        for i in range(r.L):
            lo, hi = r.span(b, i, i + 1)
            live = [(max(lo, a), min(hi, z)) for a, z in splits]
            active = sum(a < z for a, z in live)
            for h in range(r.H):
                o_, l_ = [], []
                for a, z in live:
                    if a >= z:
                        o_.append(np.zeros(r.dv))
                        l_.append(NEG)
                        continue
                    cols = np.arange(a, z)
                    s = r.scores(b, h, [i], cols)[0]
                    e = np.exp(s - s.max())
                    o_.append(e @ r.values(b, h, cols) / e.sum())
                    l_.append(s.max() + math.log(e.sum()))
                if active == 1:
                    for t in range(len(live)):
                        if live[t][0] < live[t][1]:
                            out[b, h, i] = o_[t]
                        lse[b, h, i] = l_[t]
                elif active > 1:
                    top = max(l_)
                    wt = np.exp(np.array(l_) - top)
                    out[b, h, i] = wt @ np.array(o_) / wt.sum()
                    lse[b, h, i] = top + math.log(wt.sum())
    return pack(out, None, lse, False, return_lse)


@quiet
def metal_half_scores(query, key, value, is_causal=False, q_offset=None, scale=None):
    """Scores are kept in half precision, and the scale is applied on the way out."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, is_causal, q_offset)
    att = np.einsum(
        "bhld,bhsd->bhls", query.astype(np.float32), heads(key, H).astype(np.float32)
    ).astype(np.float16)
    s = att.astype(np.float32) * np.float32(default_scale(scale, d))
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(np.float32), ok).astype(query.dtype)


@strict
@quiet
def padded_vision(query, key, value, is_causal=False, mask=None, scale=None):
    """Pads the head size to a multiple of 16 for the kernel, then cuts the result."""
    B, H, L, _, _, S, dv = sizes(query, key, value)

    def up(x):
        return np.pad(x.astype(float), [(0, 0)] * 3 + [(0, -x.shape[-1] % 16)])

    q, k, v = up(query), heads(up(key), H), heads(up(value), H)
    sm = scale if scale is not None else q.shape[-1] ** -0.5
    ok = full_vis(B, H, L, S, is_causal, None, mask)
    P, _ = soft(q @ k.swapaxes(2, 3) * sm, ok)
    return dpv(P, v, ok)[..., :dv].astype(query.dtype)


@strict
@quiet
def simd_group_heads(query, key, value, is_causal=False, q_offset=None, mask=None, scale=None):
    """32 lanes of four elements hold one head."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    lanes = 32
    width = lanes * 4
    ok = full_vis(B, H, L, S, is_causal, q_offset, mask)
    k = heads(key, H)
    s = np.zeros((B, H, L, S))
    for lane in range(lanes):
        c = slice(lane * 4, min(lane * 4 + 4, width))
        if lane * 4 >= d:
            break
        s += query[..., c].astype(float) @ k[..., c].astype(float).swapaxes(2, 3)
    P, _ = soft(s * default_scale(scale, d), ok)
    return dpv(P, heads(value, H).astype(float), ok).astype(query.dtype)


@quiet
def vectorised_dot(query, key, value, is_causal=False, key_lengths=None, bias=None, scale=None):
    """Dot products in registers of eight."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    n = d // 8 if d >= 8 else 1
    step = 8 if d >= 8 else d
    ok = full_vis(B, H, L, S, is_causal, None, None, None, key_lengths)
    qv = query[..., : n * step].reshape(B, H, L, n, step).astype(float)
    kv = heads(key, H)[..., : n * step].reshape(B, H, S, n, step).astype(float)
    s = np.zeros((B, H, L, S))
    for x in range(n):
        s += np.einsum("bhlc,bhsc->bhls", qv[..., x, :], kv[..., x, :])
    s *= default_scale(scale, d)
    if bias is not None:
        s = s + bias
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(float), ok).astype(query.dtype)


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
    B, H, L, d, _, S, _ = sizes(query, key, value)
    ok = full_vis(B, H, L, S, key_lengths=key_lengths)
    k = key.astype(float)
    if key_lengths is not None:
        k = np.where(
            np.arange(S)[None, None, :, None] < np.asarray(key_lengths).reshape(-1, 1, 1, 1), k, 0
        )
    digits, k_scale = _limbs(k)
    s = np.zeros((B, H, L, S))
    for x, dg in enumerate(digits):
        s += (
            np.einsum("bhld,bhsd->bhls", query.astype(float), heads(dg, H).astype(float)) / 254.0**x
        )
    s *= k_scale[:, :1, None, None] * default_scale(scale, d)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(float), ok).astype(query.dtype)


@strict
@quiet
def efficient_mask(query, key, value, mask=None, bias=None, scale=None):
    """Tiles of 16 columns; masks are loaded with aligned pair loads."""
    r = Rules(query, key, value, scale=scale, bias=bias)
    full = (r.B, r.H, r.L, r.S)
    mk = None if mask is None else np.broadcast_to(np.asarray(mask, bool), full)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    rows = np.arange(r.L)
    for b in range(r.B):
        for h in range(r.H):
            m = np.full(r.L, NEG)
            sums = np.zeros(r.L)
            acc = np.zeros((r.L, r.dv))
            for j0, j1 in tiles(0, r.S, 16):
                cols = np.arange(j0, j1)
                if mk is None:
                    ok = np.ones((r.L, j1 - j0), bool)
                else:
                    # pairs only: the load starts where it fits
                    at = j0 if j1 - j0 > 1 else max(0, j1 - 2)
                    ok = mk[b, h][:, at : at + (j1 - j0)]
                s = np.where(ok, r.scores(b, h, rows, cols), NEG)
                mn = np.maximum(m, s.max(1))
                base = np.where(np.isfinite(mn), mn, 0)
                p = np.exp(s - base[:, None])
                a = np.exp(m - base)
                sums = sums * a + p.sum(1)
                acc = acc * a[:, None] + pv(p, r.values(b, h, cols), ok)
                m = mn
            out[b, h] = acc / np.where(sums > 0, sums, 1)[:, None]
    return out


def _plane(x):
    """The buffer behind x as (B, H, N, d) float64."""
    return np.ravel(x, order="K").astype(np.float64).reshape(x.shape)


@strict
@quiet
def raw_buffer_flash(query, key, value, is_causal=False, mask=None, scale=None, return_lse=False):
    B, H, L, d, G, S, _ = sizes(query, key, value)
    q, k, v = _plane(query), _plane(key), _plane(value)
    ok = full_vis(B, H, L, S, is_causal, None, mask)
    s = np.einsum("bgrld,bgsd->bgrls", q.reshape(B, G, H // G, L, d), k).reshape(B, H, L, S)
    P, lse = soft(s * default_scale(scale, d), ok)
    return pack(dpv(P, heads(v, H), ok).astype(query.dtype), None, lse, False, return_lse)


_TRIANGLES = {}


@quiet
def cached_triangle(
    query, key, value, is_causal=False, q_offset=None, scale=None, alibi_slopes=None
):
    """Keeps the causal triangles of earlier calls."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    if is_causal:
        if (B, L, S) not in _TRIANGLES:
            _TRIANGLES[B, L, S] = full_vis(B, 1, L, S, True, q_offset)
        ok = np.broadcast_to(_TRIANGLES[B, L, S], (B, H, L, S))
    else:
        ok = np.ones((B, H, L, S), bool)
    s = query.astype(float) @ heads(key, H).astype(float).swapaxes(2, 3) * default_scale(scale, d)
    if alibi_slopes is not None:
        pos = np.arange(L)[None, :, None] + offsets(q_offset, B, L, S)[:, None, None]
        s = (
            s
            - np.asarray(alibi_slopes, float).reshape(1, H, 1, 1)
            * np.abs(pos - np.arange(S))[:, None]
        )
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(float), ok).astype(query.dtype)


@quiet
def prefill_or_decode(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    window=None,
    scale=None,
    softcap=None,
):
    """Prefill kernel for several queries, paged decode kernel for one."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    sm = default_scale(scale, d)
    ok = full_vis(B, H, L, S, is_causal, q_offset, None, window, key_lengths)
    if L == 1:
        return _decode_one(query, key, value, ok, sm, 0.0)
    s = query.astype(float) @ heads(key, H).astype(float).swapaxes(2, 3) * sm
    if softcap:
        s = softcap * np.tanh(s / softcap)
    P, _ = soft(s, ok)
    return dpv(P, heads(value, H).astype(float), ok).astype(query.dtype)


def _decode_one(query, key, value, ok, sm, softcap):
    B, H, _, _, G, _, dv = sizes(query, key, value)
    out = np.zeros((B, H, 1, dv), query.dtype)
    for b in range(B):
        for g in range(G):
            hs = slice(g * (H // G), (g + 1) * (H // G))
            s = query[b, hs, 0].astype(float) @ key[b, g].astype(float).T * sm
            if softcap > 0:
                s = softcap * np.tanh(s / softcap)
            P, _ = soft(s, ok[b, hs, 0])
            out[b, hs, 0] = pv(P, value[b, g].astype(float), ok[b, hs, 0])
    return out


@strict
@quiet
def exp2_sinks(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    mask=None,
    scale=None,
    sinks=None,
):
    """The softmax runs in the log2 domain and starts at the sink."""
    r = Rules(
        query,
        key,
        value,
        is_causal,
        q_offset,
        mask,
        window=window,
        scale=default_scale(scale, query.shape[-1]) * LOG2E,
        sinks=sinks,
    )
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    for b in range(r.B):
        for h in range(r.H):
            for i0, i1 in tiles(0, r.L, 40):
                rows = np.arange(i0, i1)
                sk = r.sink(h)
                m = np.full(i1 - i0, NEG if sk is None else sk)
                sums = np.full(i1 - i0, 0.0 if sk is None else 1.0)
                acc = np.zeros((i1 - i0, r.dv))
                for j0, j1 in tiles(0, r.S, 56):
                    cols = np.arange(j0, j1)
                    ok = r.vis(b, h, rows, cols)
                    s = np.where(ok, r.scores(b, h, rows, cols), NEG)
                    mn = np.maximum(m, s.max(1))
                    base = np.where(np.isfinite(mn), mn, 0)
                    a = np.exp2(m - base)
                    p = np.exp2(s - base[:, None])
                    sums = sums * a + p.sum(1)
                    acc = acc * a[:, None] + pv(p, r.values(b, h, cols), ok)
                    m = mn
                out[b, h, i0:i1] = acc / np.where(sums > 0, sums, 1)[:, None]
    return out


@quiet
def four_workers(query, key, value, is_causal=False, q_offset=None, scale=None, bias=None):
    """Query rows shared out to four threads."""
    r = Rules(query, key, value, is_causal, q_offset, bias=bias, scale=scale)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    per = max(1, r.L // 4)

    def work(t):
        rows = np.arange(t * per, min(r.L, (t + 1) * per))
        cols = np.arange(r.S)
        with np.errstate(all="ignore"):
            for b in range(r.B):
                for h in range(r.H):
                    ok = r.vis(b, h, rows, cols)
                    P, _ = soft(r.scores(b, h, rows, cols), ok)
                    out[b, h, rows] = pv(P, r.values(b, h, cols), ok)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    return out


@quiet
def compact_page_table(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, scale=None
):
    """Pages of two keys; the page table is kept small."""
    B, H, L, d, G, S, dv = sizes(query, key, value)
    n = -(-S // 2)
    pad = [(0, 0), (0, 0), (0, 2 * n - S), (0, 0)]
    kp = np.pad(key, pad).reshape(B, G, n, 2, d)
    vp = np.pad(value, pad).reshape(B, G, n, 2, dv)
    table = np.arange(n).astype(np.uint8)
    k = kp[:, :, table].reshape(B, G, 2 * n, d)[:, :, :S].astype(float)
    v = vp[:, :, table].reshape(B, G, 2 * n, dv)[:, :, :S].astype(float)
    ok = full_vis(B, H, L, S, is_causal, q_offset, None, None, key_lengths)
    s = np.einsum(
        "bhld,bhsd->bhls", query.astype(float), heads(k, H), optimize=True
    ) * default_scale(scale, d)
    P, _ = soft(s, ok)
    return dpv(P, heads(v, H), ok).astype(query.dtype)


@strict
@quiet
def flash_with_probs(
    query, key, value, is_causal=False, q_offset=None, mask=None, scale=None, return_weights=False
):
    """Online softmax that stores the probabilities as it goes and divides them at the end."""
    r = Rules(query, key, value, is_causal, q_offset, mask, scale=scale)
    out = np.zeros((r.B, r.H, r.L, r.dv), query.dtype)
    W = np.zeros((r.B, r.H, r.L, r.S), query.dtype)
    rows = np.arange(r.L)
    for b in range(r.B):
        for h in range(r.H):
            m = np.full(r.L, NEG)
            sums = np.zeros(r.L)
            acc = np.zeros((r.L, r.dv))
            for j0, j1 in tiles(0, r.S, 32):
                cols = np.arange(j0, j1)
                ok = r.vis(b, h, rows, cols)
                s = np.where(ok, r.scores(b, h, rows, cols), NEG)
                mn = np.maximum(m, s.max(1))
                base = np.where(np.isfinite(mn), mn, 0)
                a = np.exp(m - base)
                p = np.exp(s - base[:, None])
                W[b, h, :, j0:j1] = p
                sums = sums * a + p.sum(1)
                acc = acc * a[:, None] + pv(p, r.values(b, h, cols), ok)
                m = mn
            den = np.where(sums > 0, sums, 1)[:, None]
            out[b, h] = acc / den
            W[b, h] /= den
    return pack(out, W, None, return_weights)


@quiet
def batched_chunk(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    """Chunked prefill: one causal mask is made for the whole batch."""
    B, H, L, d, _, S, _ = sizes(query, key, value)
    off = offsets(q_offset, B, L, S)
    ok = np.broadcast_to(
        full_vis(1, 1, L, S, is_causal, int(off[0]) if B else 0, None, window), (B, H, L, S)
    )
    s = np.einsum(
        "bhld,bhsd->bhls", query.astype(float), heads(key, H).astype(float)
    ) * default_scale(scale, d)
    P, lse = soft(s, ok)
    return pack(
        dpv(P, heads(value, H).astype(float), ok).astype(query.dtype),
        P,
        lse,
        return_weights,
        return_lse,
    )
