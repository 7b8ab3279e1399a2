"""The sixth trial, second writer: defective kernels, most of them after public reports."""

from functools import reduce
from itertools import pairwise

import numpy as np

from .sixth_a_pieces import strict
from .sixth_b_pieces import (
    NINF,
    Running,
    hand_back,
    logits,
    plain_softmax,
    positions,
    quiet,
    spread,
    visible,
    weigh,
)

LOG2E = 1.4426950408889634


@quiet
def lane_dot_attention(query, key, value, is_causal=False, scale=None):
    """Scores by lanes of eight, as the SIMD build does."""
    B, H, L, d = query.shape
    S = key.shape[2]
    q = query.astype(np.float64)
    k = spread(key, H)
    v = spread(value, H)
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
    ok = visible(B, H, L, S, is_causal)
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, v, ok))


@quiet
def triton_port(query, key, value, is_causal=False, scale=None):
    """Port of a tile kernel; exponentials in base two."""
    BLOCK_N = 64
    B, H, L, d = query.shape
    S = key.shape[2]
    k = spread(key, H)
    v = spread(value, H)
    q = query.astype(np.float64)
    qk_scale = d**-0.5 if scale is None else scale
    ok = visible(B, H, L, S, is_causal)
    m_i = np.full((B, H, L), NINF)
    l_i = np.zeros((B, H, L))
    acc = np.zeros((B, H, L, v.shape[-1]))
    for start_n in range(0, S, BLOCK_N):
        sl = slice(start_n, start_n + BLOCK_N)
        qk_scale *= LOG2E
        qk = q @ np.swapaxes(k[..., sl, :], -1, -2) * qk_scale
        qk = np.where(ok[..., sl], qk, NINF)
        m_ij = np.maximum(m_i, qk.max(-1))
        safe = np.where(m_ij == NINF, 0.0, m_ij)
        p = np.where(ok[..., sl], np.exp2(qk - safe[..., None]), 0.0)
        alpha = np.exp2(m_i - safe)
        l_i = l_i * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + weigh(p, v[..., sl, :], ok[..., sl])
        m_i = m_ij
    l_i[l_i == 0] = 1.0
    return hand_back(query, acc / l_i[..., None])


@quiet
def raw_max_attention(query, key, value, is_causal=False, scale=None, key_lengths=None):
    """Keeps the running maximum in units of the raw dot product."""
    B, H, L, d = query.shape
    S = key.shape[2]
    sc = d**-0.5 if scale is None else float(scale)
    q = query.astype(np.float64) * (1.0 if sc >= 0 else -1.0)
    sc = abs(sc)
    k = spread(key, H)
    v = spread(value, H)
    ok = visible(B, H, L, S, is_causal, key_lengths=key_lengths)
    LOWEST = -1.0e3
    m = np.full((B, H, L), LOWEST)
    sums = np.zeros((B, H, L), np.float32)
    o = np.zeros((B, H, L, v.shape[-1]))
    for n in range(0, S, 96):
        sl = slice(n, n + 96)
        s = np.where(ok[..., sl], q @ np.swapaxes(k[..., sl, :], -1, -2), NINF)
        m_new = np.maximum(m, s.max(-1))
        fade = np.exp(((m - m_new) * sc).astype(np.float32))
        p = np.exp(((s - m_new[..., None]) * sc).astype(np.float32))
        p = np.where(ok[..., sl], p, np.float32(0))
        sums = sums * fade + p.sum(-1)
        o = o * fade[..., None] + weigh(p.astype(np.float64), v[..., sl, :], ok[..., sl])
        m = m_new
    return hand_back(query, o / np.where(sums == 0, 1, sums)[..., None])


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
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal)
    s = logits(query, key, scale)
    top = np.where(ok, s, NINF).max(-1, keepdims=True, initial=NINF)
    diff = np.where(ok, s - top, 0.0)
    e = np.where(ok, _table_exp(diff), 0.0)
    z = e.sum(-1, keepdims=True)
    z[z == 0] = 1
    return hand_back(query, weigh(e / z, spread(value, H), ok))


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
            s -= s.max(-1, keepdims=True, initial=NINF)
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
    return hand_back(query, out)


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


def int8_cache_attention(query, key, value, scale=None):
    k = DigitCache(key).load()
    B, H, L = query.shape[:3]
    ok = np.ones((B, H, L, key.shape[2]), bool)
    w, _, _ = plain_softmax(logits(query, k, scale), ok)
    return hand_back(query, w @ spread(value, H))


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
            probs, _, _ = plain_softmax(scores, allowed)
            result[b, h] = weigh(probs, v, allowed)
    return result.astype(query.dtype)


@quiet
def chunked_prefill(query, key, value, is_causal=False, q_offset=None, window=None):
    """Queries in chunks of 32; the chunk's start is worked out once per step."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    start = S - L if q_offset is None else int(np.ravel(q_offset)[0])
    v = spread(value, H)
    parts = []
    for c in range(0, L, 32):
        q = query[:, :, c : c + 32]
        ok = visible(B, H, q.shape[2], S, is_causal, start + c, None, window)
        w, _, _ = plain_softmax(logits(q, key), ok)
        parts.append(weigh(w, v, ok))
    out = np.concatenate(parts, 2) if parts else np.zeros((B, H, 0, v.shape[-1]))
    return hand_back(query, out)


@strict
@quiet
def mask_slices_attention(query, key, value, mask=None, scale=None):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    v = spread(value, H)
    s = logits(query, key, scale)
    ok = np.ones((B, H, L, S), bool)
    if mask is not None:
        m = np.asarray(mask, bool)
        m = m.reshape((1,) * (4 - m.ndim) + m.shape)
        slices = m.reshape((m.shape[0] * m.shape[1], *m.shape[2:]))
        for b in range(B):
            for h in range(H):
                ok[b, h] = slices[(b * H + h) % len(slices)]
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, v, ok))


@strict
@quiet
def tiled_mask_attention(query, key, value, mask=None, bias=None, key_lengths=None):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, mask=mask, key_lengths=key_lengths)
    v = spread(value, H)
    s = np.where(ok, logits(query, key, bias=bias), NINF)
    m = np.full((B, H, L), NINF)
    sums = np.zeros_like(m)
    acc = np.zeros((B, H, L, v.shape[-1]))
    for n in range(0, S, 16):
        t = s[..., n : n + 16]
        m_new = np.maximum(m, t.max(-1))
        p = np.exp(t - m_new[..., None])
        a = np.exp(m - m_new)
        sums = sums * a + p.sum(-1)
        acc = acc * a[..., None] + weigh(p, v[..., n : n + 16, :], ok[..., n : n + 16])
        m = m_new
    some = ok.any(-1)
    return hand_back(
        query, np.where(some[..., None], acc / np.where(some, sums, 1.0)[..., None], 0.0)
    )


@strict
@quiet
def fill_min_attention(
    query, key, value, is_causal=False, q_offset=None, mask=None, key_lengths=None
):
    """The textbook form."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, None, key_lengths)
    s = logits(query, key)
    s = np.where(ok, s, np.finfo(np.float32).min)
    s = s - s.max(-1, keepdims=True, initial=np.finfo(np.float32).min)
    e = np.exp(s)
    w = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def pallas_like(query, key, value, is_causal=False, bias=None, scale=None):
    B, H, L, d = query.shape
    G, S = key.shape[1], key.shape[2]
    sm_scale = d**-0.5 if scale is None else scale
    qg = query.reshape(B, G, H // G, L, d).astype(np.float64)
    s = np.einsum("bgrld,bgsd->bgrls", qg, key.astype(np.float64)).reshape(B, H, L, S)
    if bias is not None:
        s = s + bias
    s = s * sm_scale
    ok = visible(B, H, L, S, is_causal)
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def two_route_attention(query, key, value, is_causal=False, q_offset=None, scale=None):
    """Short keys go through one matrix, long keys through a split with a merge."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset)
    v = spread(value, H)
    if S <= 256:
        w, _, _ = plain_softmax(logits(query, key, scale=scale), ok)
        return hand_back(query, weigh(w, v, ok))
    edges = np.linspace(0, S, 5).astype(int)
    states = []
    for a, z in pairwise(edges):
        r = Running((B, H, L), v.shape[-1])
        r.add(logits(query, key[:, :, a:z]), ok[..., a:z], v[:, :, a:z])
        states.append(r)
    lse = np.stack([r.lse() for r in states])
    top = lse.max(0)
    share = np.exp(lse - np.where(top == NINF, 0, top))
    total = share.sum(0)
    out = sum(share[n][..., None] * states[n].output() for n in range(4))
    return hand_back(query, out / np.where(total == 0, 1, total)[..., None])


@strict
@quiet
def capped_attention(query, key, value, softcap=None, bias=None, mask=None, is_causal=False):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    x = logits(query, key)
    if bias is not None:
        x = x + bias
    if softcap:
        x = softcap * np.tanh(x / softcap)
    ok = visible(B, H, L, S, is_causal, mask=mask)
    w, _, _ = plain_softmax(x, ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def band_attention(query, key, value, is_causal=False, q_offset=None, window=None):
    """Visibility by band matrices."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    off = np.broadcast_to(np.asarray(S - L if q_offset is None else q_offset), (B,))
    ok = np.ones((B, H, L, S), bool)
    for b in range(B):
        o = int(off[b])
        band = np.ones((L, S), bool)
        if is_causal:
            band &= np.tri(L, S, o, dtype=bool)
        if window is not None:
            left, right = window
            if left is not None:
                band &= ~np.tri(L, S, o - left - 2, dtype=bool)
            if right is not None:
                band &= np.tri(L, S, o + right, dtype=bool)
        ok[b] = band
    w, _, _ = plain_softmax(logits(query, key), ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def split_loop_attention(query, key, value, is_causal=False, q_offset=None, window=None):
    """Query blocks; under a causal mask the tiles below the diagonal take the quick loop."""
    BM, BN = 16, 16
    B, H, L, d = query.shape
    S = key.shape[2]
    k = spread(key, H)
    v = spread(value, H)
    pos = positions(B, L, S, q_offset)
    seen = visible(B, H, L, S, is_causal, q_offset, None, window)
    out = np.zeros((B, H, L, v.shape[-1]))
    for b in range(B):
        for i in range(0, L, BM):
            rows = slice(i, min(i + BM, L))
            lo, hi = int(pos[b, rows][0]), int(pos[b, rows][-1])
            first, last = 0, S
            if window is not None and window[0] is not None:
                first = max(0, (lo - window[0]) // BN * BN)
            if is_causal:
                last = max(0, min(S, hi + 1))
            right_ok = window is None or window[1] is None
            st = Running((H, rows.stop - i), v.shape[-1])
            q = query[b, :, rows].astype(np.float64) * d**-0.5
            for n in range(first, last, BN):
                e = min(n + BN, S)
                s = q @ np.swapaxes(k[b, :, n:e], -1, -2)
                if is_causal and right_ok and e - 1 <= lo:
                    ok = np.ones(s.shape, bool)
                else:
                    ok = seen[b, :, rows, n:e]
                st.add(s, ok, v[b, :, n:e])
            out[b, :, rows] = st.output()
    return hand_back(query, out)


@quiet
def decode_or_prefill(
    query, key, value, is_causal=False, q_offset=None, window=None, key_lengths=None
):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    v = spread(value, H)
    if L == 1:
        last = positions(B, L, S, q_offset)[:, 0]
        n = np.full(B, S) if key_lengths is None else np.asarray(key_lengths)
        if is_causal:
            n = np.minimum(n, last + 1)
        ok = np.broadcast_to((np.arange(S) < n[:, None])[:, None, None], (B, H, 1, S))
    else:
        ok = visible(B, H, L, S, is_causal, q_offset, None, window, key_lengths)
    w, _, _ = plain_softmax(logits(query, key), ok)
    return hand_back(query, weigh(w, v, ok))


class PagedStore:
    PAGE = 16

    def __init__(self, rows, length):
        _, S, _ = rows.shape
        n = -(-int(length) // self.PAGE)
        self.pages = [rows[:, p * self.PAGE : min((p + 1) * self.PAGE, S)] for p in range(n)]

    def __iter__(self):
        return iter(self.pages)


@quiet
def paged_attention(query, key, value, key_lengths=None, scale=None):
    B, H, L, d = query.shape
    S = key.shape[2]
    lengths = np.full(B, S) if key_lengths is None else np.minimum(key_lengths, S)
    sc = d**-0.5 if scale is None else scale
    k, v = spread(key, H), spread(value, H)
    out = np.zeros((B, H, L, v.shape[-1]))
    for b in range(B):
        st = Running((H, L), v.shape[-1])
        for kp, vp in zip(PagedStore(k[b], lengths[b]), PagedStore(v[b], lengths[b]), strict=True):
            s = query[b].astype(np.float64) @ np.swapaxes(kp, -1, -2) * sc
            st.add(s, np.ones(s.shape, bool), vp)
        out[b] = st.output()
    return hand_back(query, out)


@strict
@quiet
def two_gemm_attention(query, key, value, is_causal=False, mask=None, key_lengths=None, scale=None):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, mask=mask, key_lengths=key_lengths)
    w, _, _ = plain_softmax(logits(query, key, scale), ok)
    return hand_back(query, w @ spread(value, H))


@quiet
def slope_attention(query, key, value, is_causal=False, q_offset=None, alibi_slopes=None):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    s = logits(query, key)
    if alibi_slopes is not None:
        distance = np.abs(np.subtract.outer(np.arange(L), np.arange(S)))
        s = s - np.asarray(alibi_slopes, np.float64)[None, :, None, None] * distance
    ok = visible(B, H, L, S, is_causal, q_offset)
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@strict
@quiet
def split_sink_attention(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    mask=None,
    window=None,
    key_lengths=None,
    sinks=None,
):
    """Four splits of the keys; the sink enters with the first split that works on the row."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    s = logits(query, key)
    v = spread(value, H)
    splits = 4 if S >= 64 else 1
    step = max(1, -(-S // splits))
    sink = np.full((B, H, L), NINF)
    if sinks is not None:
        sink = np.broadcast_to(np.asarray(sinks, np.float64).reshape(1, H, 1), (B, H, L))
    ms, ls, os = [], [], []
    before = np.zeros((B, H, L), bool)
    for n, a in enumerate(range(0, max(S, 1), step)):
        o = ok[..., a : a + step]
        seed = sink if n == 0 else np.where(before, NINF, sink)
        if n > 0:
            seed = np.where(o.any(-1), seed, NINF)
        st = Running((B, H, L), v.shape[-1], seed)
        st.add(s[..., a : a + step], o, v[..., a : a + step, :])
        before |= o.any(-1)
        ms.append(st.m)
        ls.append(st.sums)
        os.append(st.acc)
    m = np.stack(ms)
    top = m.max(0)
    f = np.exp(m - np.where(top == NINF, 0, top))
    sums = (f * np.stack(ls)).sum(0)
    acc = (f[..., None] * np.stack(os)).sum(0)
    return hand_back(query, acc / np.where(sums == 0, 1, sums)[..., None])


@quiet
def functional_gqa(query, key, value, is_causal=False, scale=None):
    B, H, L, d = query.shape
    G, S = key.shape[1], key.shape[2]
    k, v = (np.tile(x.astype(np.float64), (1, H // G, 1, 1)) for x in (key, value))
    s = np.einsum("bhld,bhsd->bhls", query.astype(np.float64), k) * (
        d**-0.5 if scale is None else scale
    )
    ok = visible(B, H, L, S, is_causal)
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, v, ok))


@quiet
def head_tile_attention(query, key, value, is_causal=False, key_lengths=None):
    """Query heads go through in tiles of two that share a load of the keys."""
    B, H, L, d = query.shape
    G, S = key.shape[1], key.shape[2]
    group = H // G
    tile = min(2, group)
    out = np.zeros((B, H, L, value.shape[-1]))
    for b in range(B):
        for h in range(0, H, tile):
            g = h // group
            n = min(tile, H - h)
            ok = visible(B, n, L, S, is_causal, key_lengths=key_lengths)[b]
            s = query[b, h : h + n].astype(np.float64) @ key[b, g].astype(np.float64).T * d**-0.5
            w, _, _ = plain_softmax(s, ok)
            vv = np.broadcast_to(value[b, g].astype(np.float64), (n, *value.shape[2:]))
            out[b, h : h + n] = weigh(w, vv, ok)
    return hand_back(query, out)


@strict
@quiet
def tiles_with_weights(
    query, key, value, is_causal=False, q_offset=None, mask=None, return_weights=False
):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask)
    s = logits(query, key)
    v = spread(value, H)
    st = Running((B, H, L), v.shape[-1])
    w = np.zeros((B, H, L, S))
    for n in range(0, S, 64):
        c = slice(n, n + 64)
        w[..., c] = st.add(s[..., c], ok[..., c], v[..., c, :])
    w = np.where(ok, w / np.where(st.sums == 0, 1, st.sums)[..., None], 0.0)
    return hand_back(query, st.output(), w if return_weights else None)


@quiet
def smoothed_key_attention(
    query, key, value, is_causal=False, key_lengths=None, scale=None, return_lse=False
):
    """Takes the mean key off first: the softmax does not mind, and the numbers stay small."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    k = key.astype(np.float64)
    fine = np.isfinite(k).all(-1, keepdims=True)
    mean = np.where(fine, k, 0).sum(2, keepdims=True) / np.maximum(fine.sum(2, keepdims=True), 1)
    s = logits(query, k - mean, scale)
    ok = visible(B, H, L, S, is_causal, key_lengths=key_lengths)
    st = Running((B, H, L), value.shape[-1])
    st.add(s, ok, spread(value, H))
    return hand_back(query, st.output(), None, st.lse() if return_lse else None)


@quiet
def state_attention(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, return_lse=False
):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, None, None, key_lengths)
    w, m, z = plain_softmax(logits(query, key), ok)
    out = weigh(w, spread(value, H), ok)
    lse = np.where(z == 0, -5.0e4, m + np.log(np.where(z == 0, 1, z)))
    return hand_back(query, out, None, lse if return_lse else None)


def _merge(a, b):
    (oa, la), (ob, lb) = a, b
    top = np.maximum(la, lb)
    base = np.where(top == NINF, 0, top)
    wa, wb = np.exp(la - base), np.exp(lb - base)
    t = wa + wb
    t1 = np.where(t == 0, 1, t)
    return (oa * wa[..., None] + ob * wb[..., None]) / t1[..., None], np.where(
        t == 0, NINF, base + np.log(t1)
    )


@quiet
def prefix_chunks_attention(query, key, value, is_causal=False, q_offset=None, key_lengths=None):
    """Attention states of key chunks, folded together."""
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, None, None, key_lengths)
    v = spread(value, H)

    def state(a):
        c = slice(a, a + 128)
        o = ok[..., c]
        s = np.where(o, logits(query, key[:, :, c]) * LOG2E, NINF)
        m = s.max(-1, initial=NINF)
        base = np.where(m == NINF, 0, m)
        p = np.where(o, np.exp2(s - base[..., None]), 0)
        z = p.sum(-1)
        z1 = np.where(z == 0, 1, z)
        return weigh(p, v[:, :, c], o) / z1[..., None], np.where(z == 0, NINF, base + np.log2(z1))

    return hand_back(query, reduce(_merge, map(state, range(0, max(S, 1), 128)))[0])


@strict
@quiet
def grouped_forward(query, key, value, is_causal=False, mask=None, scale=None):
    B, H, L = query.shape[:3]
    ok = visible(B, H, L, key.shape[2], is_causal, mask=mask)
    w, _, _ = plain_softmax(logits(query, key, scale), ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@strict
@quiet
def grouped_backward(query, key, value, grad_out, is_causal=False, mask=None, scale=None):
    B, H, L, d = query.shape
    G, S = key.shape[1], key.shape[2]
    sc = d**-0.5 if scale is None else scale
    seen = visible(B, H, L, S, is_causal, mask=mask)
    q, k, v, g = (x.astype(np.float64) for x in (query, key, value, grad_out))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b in range(B):
        for h in range(H):
            n = h * G // H
            ok = seen[b, h]
            w, _, _ = plain_softmax(q[b, h] @ k[b, n].T * sc, ok)
            dp = np.where(ok, g[b, h] @ v[b, n].T, 0)
            ds = np.where(ok, w * (dp - (w * dp).sum(-1, keepdims=True)) * sc, 0)
            dq[b, h] = weigh(ds, k[b, n], ok)
            dk[b, n] = ds.T @ q[b, h]
            dv[b, n] += w.T @ g[b, h]
    return tuple(x.astype(query.dtype) for x in (dq, dk, dv))


@quiet
def capped_forward(query, key, value, is_causal=False, scale=None, softcap=None):
    B, H, L = query.shape[:3]
    ok = visible(B, H, L, key.shape[2], is_causal)
    w, _, _ = plain_softmax(logits(query, key, scale, softcap), ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


def _fold(x, G):
    B, H = x.shape[:2]
    return x.reshape(B, G, H // G, *x.shape[2:]).sum(2)


@quiet
def capped_backward(query, key, value, grad_out, is_causal=False, scale=None, softcap=None):
    B, H, L, d = query.shape
    G, S = key.shape[1], key.shape[2]
    sc = d**-0.5 if scale is None else scale
    ok = visible(B, H, L, S, is_causal)
    k, v, g = spread(key, H), spread(value, H), grad_out.astype(np.float64)
    w, _, _ = plain_softmax(logits(query, key, scale, softcap), ok)
    dp = np.where(ok, g @ np.swapaxes(v, -1, -2), 0)
    ds = np.where(ok, w * (dp - (w * dp).sum(-1, keepdims=True)) * sc, 0)
    wt, dst = np.swapaxes(w, -1, -2), np.swapaxes(ds, -1, -2)
    r = weigh(ds, k, ok), _fold(dst @ query.astype(np.float64), G), _fold(wt @ g, G)
    return tuple(x.astype(query.dtype) for x in r)


@quiet
def varlen_forward(query, key, value, is_causal=False, q_offset=None, key_lengths=None):
    B, H, L = query.shape[:3]
    ok = visible(B, H, L, key.shape[2], is_causal, q_offset, None, None, key_lengths)
    st = Running((B, H, L), value.shape[-1])
    st.add(logits(query, key), ok, spread(value, H))
    return hand_back(query, st.output())


@quiet
def varlen_backward(query, key, value, grad_out, is_causal=False, q_offset=None, key_lengths=None):
    B, H, L, d = query.shape
    G, S = key.shape[1], key.shape[2]
    sc = d**-0.5
    seen = visible(B, H, L, S, is_causal, q_offset, None, None, key_lengths)
    dq = np.zeros(query.shape)
    dk = np.zeros(key.shape)
    dv = np.zeros(value.shape)
    for b in range(B):
        n = S if key_lengths is None else min(S, int(key_lengths[b]))
        for h in range(H):
            g = h // (H // G)
            k, v = key[b, g, :n].astype(np.float64), value[b, g, :n].astype(np.float64)
            q, do = query[b, h].astype(np.float64), grad_out[b, h].astype(np.float64)
            ok = seen[b, h, :, :n]
            w, _, _ = plain_softmax(q @ k.T * sc, ok)
            dp = np.where(ok, do[:, :d] @ v[:, :d].T, 0)
            delta = (w * dp).sum(-1, keepdims=True)
            ds = np.where(ok, w * (dp - delta) * sc, 0)
            dq[b, h] = weigh(ds, k, ok)
            dk[b, g, :n] += ds.T @ q
            dv[b, g, :n] += w.T @ do
    return tuple(x.astype(query.dtype) for x in (dq, dk, dv))
