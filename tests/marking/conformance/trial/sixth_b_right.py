"""The sixth trial, second writer: correct kernels in twenty styles."""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

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


def _unclear(sinks, return_lse, ok):
    if sinks is not None and return_lse and not ok.any(-1).all():
        raise NotImplementedError("lse of a row that sees only its sink")


class RowWalker:
    """Collects the keys a row sees and works on those alone."""

    @strict
    def __call__(
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
        return_weights=False,
        return_lse=False,
    ):
        B, H, L, d = query.shape
        G, S = key.shape[1:3]
        ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
        _unclear(sinks, return_lse, ok)
        pos = positions(B, L, S, q_offset)
        bias = None if bias is None else np.broadcast_to(bias, (B, H, L, S))
        self.scale = 1 / math.sqrt(d) if scale is None else float(scale)
        self.cap = softcap
        out = np.zeros((B, H, L, value.shape[-1]))
        weights = np.zeros((B, H, L, S))
        lse = np.full((B, H, L), NINF)
        for b, h, i in np.ndindex(B, H, L):
            seen = np.flatnonzero(ok[b, h, i])
            if not seen.size:
                continue
            g = h // (H // G)
            s = self.score(query[b, h, i], key[b, g, seen])
            if bias is not None:
                s = s + bias[b, h, i, seen]
            if alibi_slopes is not None:
                s = s - float(alibi_slopes[h]) * np.abs(pos[b, i] - seen)
            extra = [] if sinks is None else [float(sinks[h])]
            z = self.lse(np.append(s, extra))
            if z == NINF:
                continue
            w = np.exp(s - z)
            out[b, h, i] = w @ value[b, g, seen].astype(np.float64)
            weights[b, h, i, seen] = w
            lse[b, h, i] = z
        return hand_back(
            query, out, weights if return_weights else None, lse if return_lse else None
        )

    def score(self, q, k):
        s = k.astype(np.float64) @ q.astype(np.float64) * self.scale
        return self.cap * np.tanh(s / self.cap) if self.cap else s

    @staticmethod
    def lse(s):
        m = s.max()
        return m if m == NINF else m + np.log(np.exp(s - m).sum())


row_walker = RowWalker()


@strict
@quiet
def halving_attention(
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
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    _unclear(sinks, return_lse, ok)
    s = np.where(ok, logits(query, key, scale, softcap, bias, alibi_slopes, q_offset), NINF)
    v = spread(value, H)

    def solve(lo, hi):
        if hi - lo <= 24:
            m = s[..., lo:hi].max(-1, initial=NINF)
            e = np.exp(s[..., lo:hi] - np.where(m == NINF, 0, m)[..., None])
            return m, e.sum(-1), weigh(e, v[:, :, lo:hi], ok[..., lo:hi])
        mid = (lo + hi) // 2
        return join(solve(lo, mid), solve(mid, hi))

    def join(x, y):
        m = np.maximum(x[0], y[0])
        base = np.where(m == NINF, 0, m)
        fx, fy = np.exp(x[0] - base), np.exp(y[0] - base)
        return m, x[1] * fx + y[1] * fy, x[2] * fx[..., None] + y[2] * fy[..., None]

    m, sums, acc = solve(0, S)
    if sinks is not None:
        t = np.broadcast_to(np.asarray(sinks, np.float64).reshape(1, H, 1), m.shape)
        m, sums, acc = join((m, sums, acc), (t, np.ones(m.shape), np.zeros(acc.shape)))
    l1 = np.where(sums == 0, 1, sums)
    lse = np.where((sums == 0) | (m == NINF), NINF, m + np.log(l1))
    return hand_back(query, acc / l1[..., None], None, lse if return_lse else None)


def _blocks(query, key, value, step, scale, softcap, bias, alibi_slopes, q_offset):
    S = key.shape[2]
    for a in range(0, S, step):
        part = slice(a, min(S, a + step))
        yield (
            part,
            logits(
                query,
                key[:, :, part],
                scale,
                softcap,
                bias,
                alibi_slopes,
                S - query.shape[2] if q_offset is None else q_offset,
                a,
                S,
            ),
        )


@strict
@quiet
def streaming_attention(
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
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    _unclear(sinks, return_lse, ok)
    v = spread(value, H)
    seed = None if sinks is None else np.asarray(sinks, np.float64).reshape(1, H, 1)
    st = Running((B, H, L), v.shape[-1], seed)
    w = np.zeros((B, H, L, S)) if return_weights else None
    for part, s in _blocks(query, key, value, 37, scale, softcap, bias, alibi_slopes, q_offset):
        before = st.m
        p = st.add(s, ok[..., part], v[:, :, part])
        if return_weights:
            fade = np.exp(before - np.where(st.m == NINF, 0, st.m))
            w[..., : part.start] *= fade[..., None]
            w[..., part] = p
    if return_weights:
        w = np.where(ok, w / np.where(st.sums == 0, 1, st.sums)[..., None], 0)
    return hand_back(query, st.output(), w, st.lse() if return_lse else None)


@strict
@quiet
def sorted_attention(
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
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    _unclear(sinks, return_lse, ok)
    s = np.where(ok, logits(query, key, scale, softcap, bias, alibi_slopes, q_offset), NINF)
    order = np.argsort(s, axis=-1, kind="stable")
    rising = np.take_along_axis(s, order, -1)
    top = rising[..., -1:] if S else np.full((B, H, L, 1), NINF)
    sink = (
        np.full((1, H, 1, 1), NINF)
        if sinks is None
        else np.asarray(sinks, np.float64).reshape(1, H, 1, 1)
    )
    top = np.maximum(top, sink)
    base = np.where(top == NINF, 0, top)
    e = np.exp(rising - base)
    sums = np.cumsum(e, -1)
    z = (sums[..., -1:] if S else np.zeros(top.shape)) + np.exp(sink - base)
    z1 = np.where(z == 0, 1, z)
    w = np.empty((B, H, L, S))
    np.put_along_axis(w, order, e / z1, -1)
    w = np.where(ok, w, 0)
    out = weigh(w, spread(value, H), ok)
    lse = np.where(z == 0, NINF, base + np.log(z1))[..., 0]
    return hand_back(query, out, w if return_weights else None, lse if return_lse else None)


@strict
@quiet
def threaded_attention(
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
    B, H, L = query.shape[:3]
    G, S = key.shape[1:3]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    bias = None if bias is None else np.broadcast_to(bias, (B, H, L, S))
    out = np.zeros((B, H, L, value.shape[-1]))
    weights = np.zeros((B, H, L, S))
    off = None if q_offset is None else np.broadcast_to(q_offset, (B,))

    @quiet
    def work(at):
        b, h = at
        g = h // (H // G)
        s = logits(
            query[b : b + 1, h : h + 1],
            key[b : b + 1, g : g + 1],
            scale,
            softcap,
            None if bias is None else bias[b : b + 1, h : h + 1],
            None if alibi_slopes is None else np.asarray(alibi_slopes)[h : h + 1],
            None if off is None else off[b],
        )[0, 0]
        w, m, z = plain_softmax(s, ok[b, h])
        if sinks is not None:
            safe = np.where(m == NINF, 0, m)
            t = np.maximum(safe, float(sinks[h]))
            grow = np.exp(safe - t)
            w = np.where(
                ok[b, h], w * (z * grow / (z * grow + np.exp(float(sinks[h]) - t)))[:, None], 0
            )
        weights[b, h] = w
        out[b, h] = weigh(w, value[b, g].astype(np.float64), ok[b, h])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, np.ndindex(B, H)))
    return hand_back(query, out, weights if return_weights else None)


@strict
@quiet
def _column(
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
    *,
    softmax,
):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    _unclear(sinks, return_lse, ok)
    s = logits(query, key, scale, softcap, bias, alibi_slopes, q_offset)
    v = spread(value, H)
    if sinks is not None:
        column = np.broadcast_to(np.asarray(sinks, np.float64).reshape(1, H, 1, 1), (B, H, L, 1))
        s = np.concatenate([column, s], -1)
        ok = np.concatenate([np.ones((B, H, L, 1), bool), ok], -1)
        v = np.concatenate([np.zeros((B, H, 1, v.shape[-1])), v], 2)
    w, m, z = softmax(s, ok)
    out = weigh(w, v, ok)
    lse = np.where(z == 0, NINF, np.where(z == 0, 0, m) + np.log(np.where(z == 0, 1, z)))
    return hand_back(
        query,
        out,
        w[..., w.shape[-1] - S :] if return_weights else None,
        lse if return_lse else None,
    )


column_attention = functools.partial(_column, softmax=plain_softmax)


@functools.partial(np.vectorize, signature="(l,d),(s,d),(s,e),()->(l,e)")
def _one_head(q, k, v, scale):
    s = q @ k.T * scale
    e = np.exp(s - s.max(-1, keepdims=True, initial=NINF))
    return e @ v / np.maximum(e.sum(-1, keepdims=True), 1e-300)


def vectorized_attention(query, key, value, scale=None):
    _, H, _, d = query.shape
    if 0 in query.shape or 0 in key.shape:
        raise ValueError("empty input")
    out = _one_head(
        query.astype(np.float64),
        spread(key, H),
        spread(value, H),
        d**-0.5 if scale is None else scale,
    )
    return out.astype(query.dtype)


@quiet
def complex_attention(query, key, value, is_causal=False, scale=None):
    """Head channels in pairs as complex numbers."""
    B, H, L, d = query.shape
    S = key.shape[2]
    if d % 2:
        raise ValueError("head size must be even")
    q, k = (x[..., 0::2] + 1j * x[..., 1::2] for x in (query.astype(np.float64), spread(key, H)))
    s = np.einsum("bhlc,bhsc->bhls", q, k.conj()).real * (d**-0.5 if scale is None else scale)
    ok = visible(B, H, L, S, is_causal)
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def base_two_attention(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    key_lengths=None,
    window=None,
    return_lse=False,
):
    B, H, L, d = query.shape
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, None, window, key_lengths)
    t = np.where(ok, logits(query, key, d**-0.5 * math.log2(math.e)), NINF)
    m = t.max(-1, initial=NINF)
    base = np.where(m == NINF, 0, m)
    p = np.exp2(t - base[..., None])
    z = p.sum(-1)
    z1 = np.where(z == 0, 1, z)
    out = weigh(p, spread(value, H), ok) / z1[..., None]
    return hand_back(
        query,
        out,
        None,
        np.where(z == 0, NINF, (base + np.log2(z1)) * math.log(2)) if return_lse else None,
    )


_FINE = np.exp(-np.arange(256) / 256)
_COARSE = np.exp(-np.arange(800.0))


def _exp(x):
    x = np.maximum(x, -799.0)
    n = np.floor(-np.nan_to_num(x) * 256).astype(np.int64)
    r = x + n / 256
    return _COARSE[n >> 8] * _FINE[n & 255] * (1 + r * (1 + r * (0.5 + r / 6)))


@strict
@quiet
def table_attention(query, key, value, is_causal=False, mask=None, scale=None):
    B, H, L = query.shape[:3]
    ok = visible(B, H, L, key.shape[2], is_causal, mask=mask)
    s = logits(query, key, scale)
    top = np.where(ok, s, NINF).max(-1, keepdims=True, initial=NINF)
    e = np.where(ok, _exp(np.where(ok, s - top, 0.0)), 0.0)
    z = e.sum(-1, keepdims=True)
    return hand_back(query, weigh(e / np.where(z == 0, 1, z), spread(value, H), ok))


@strict
@quiet
def digit_key_attention(query, key, value, mask=None, key_lengths=None, scale=None):
    """Six planes of int8 digits a channel: more than float32 holds."""
    B, H, L, d = query.shape
    S = key.shape[2]
    ok = visible(B, H, L, S, mask=mask, key_lengths=key_lengths)
    k = key.astype(np.float64)
    k = np.where(np.isfinite(k).all(-1, keepdims=True), k, 0.0)
    step = np.abs(k).max(2, keepdims=True, initial=0)
    step[step == 0] = 1
    x, unit, s = k / step, step, 0.0
    for _ in range(6):
        x = x * 127
        unit = unit / 127
        digit = np.rint(x).astype(np.int8)
        x = x - digit
        s = s + (query * np.repeat(unit, H // key.shape[1], 1)) @ np.swapaxes(
            spread(digit, H), -1, -2
        )
    s = s * (d**-0.5 if scale is None else scale)
    strange = ~np.isfinite(spread(key, H)).all(-1)
    s = np.where(strange[:, :, None], np.nan, s)
    w, _, _ = plain_softmax(s, ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def packed_attention(query, key, value, key_lengths=None, is_causal=False, scale=None):
    """Squeezes the padding out, then walks the packed rows by their cumulative lengths."""
    B, H, L, d = query.shape
    S = key.shape[2]
    n = np.full(B, S) if key_lengths is None else np.clip(key_lengths, 0, S).astype(int)
    starts = np.concatenate([[0], np.cumsum(n)])
    k, v = (
        np.concatenate([x[b, :, : n[b]] for b in range(B)], 1)
        for x in (spread(key, H), spread(value, H))
    )
    out = np.zeros((B, H, L, value.shape[-1]))
    for b in range(B):
        c = slice(starts[b], starts[b + 1])
        s = (
            query[b].astype(np.float64)
            @ np.swapaxes(k[:, c], -1, -2)
            * (d**-0.5 if scale is None else scale)
        )
        ok = np.ones(s.shape, bool)
        if is_causal:
            ok &= np.tri(L, S, S - L, dtype=bool)[:, : n[b]]
        w, _, _ = plain_softmax(s, ok)
        out[b] = weigh(w, v[:, c], ok)
    return hand_back(query, out)


@strict
@quiet
def bit_mask_attention(query, key, value, mask=None, bias=None, softcap=None):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    full = (
        np.ones((B, H, L, S), bool)
        if mask is None
        else np.broadcast_to(np.asarray(mask, bool), (B, H, L, S))
    )
    bits = np.packbits(full, axis=-1, bitorder="little")
    j = np.arange(S)
    ok = (bits[..., j >> 3] >> (j & 7).astype(np.uint8)) & 1 == 1
    w, _, _ = plain_softmax(logits(query, key, None, softcap, bias), ok)
    return hand_back(query, weigh(w, spread(value, H), ok))


@quiet
def diagonal_attention(query, key, value, window=None, q_offset=None, is_causal=False):
    """Goes along the diagonals of a bounded window; refuses an open one."""
    if window is None or window[0] is None or window[1] is None:
        raise ValueError("needs a window bounded on both sides")
    B, H, L, d = query.shape
    S = key.shape[2]
    left, right = int(window[0]), int(window[1])
    if is_causal:
        right = min(right, 0)
    k, v = spread(key, H), spread(value, H)
    q = query.astype(np.float64) * d**-0.5
    pos = positions(B, L, S, q_offset)
    m = np.full((B, H, L), NINF)
    sums = np.zeros((B, H, L))
    acc = np.zeros((B, H, L, v.shape[-1]))
    for o in (
        range(max(-left, -int(pos.max(initial=0))), min(right, S - int(pos.min(initial=0))) + 1)
        if S and L
        else ()
    ):
        j = pos + o
        inside = ((j >= 0) & (j < S))[:, None]
        j = np.clip(j, 0, S - 1)[:, None, :, None]
        s = np.where(inside, (q * np.take_along_axis(k, j, 2)).sum(-1), NINF)
        t = np.maximum(m, s)
        base = np.where(t == NINF, 0, t)
        a, p = np.exp(m - base), np.exp(s - base)
        sums = sums * a + p
        acc = acc * a[..., None] + np.where(
            inside[..., None], p[..., None] * np.take_along_axis(v, j, 2), 0
        )
        m = t
    return hand_back(query, acc / np.where(sums == 0, 1, sums)[..., None])


@quiet
def ring_attention(query, key, value, is_causal=False, q_offset=None, scale=None):
    """Queries and keys lie in five uneven shards; the key shards travel round."""
    ranks = 5
    B, H, L, d = query.shape
    S = key.shape[2]
    qcut = np.linspace(0, L, ranks + 1).astype(int)
    kcut = (S * np.linspace(0, 1, ranks + 1) ** 1.3).astype(int)
    kcut[-1] = S
    k, v = spread(key, H), spread(value, H)
    pos = positions(B, L, S, q_offset)
    out = np.zeros((B, H, L, v.shape[-1]))
    held = [
        (kcut[r], k[:, :, kcut[r] : kcut[r + 1]], v[:, :, kcut[r] : kcut[r + 1]])
        for r in range(ranks)
    ]
    state = [Running((B, H, qcut[r + 1] - qcut[r]), v.shape[-1]) for r in range(ranks)]
    for _ in range(ranks):
        for r in range(ranks):
            first, kk, vv = held[r]
            rows = slice(qcut[r], qcut[r + 1])
            s = (
                query[:, :, rows].astype(np.float64)
                @ np.swapaxes(kk, -1, -2)
                * (d**-0.5 if scale is None else scale)
            )
            ok = np.ones(s.shape, bool)
            if is_causal:
                ok &= (first + np.arange(kk.shape[2]) <= pos[:, rows, None])[:, None]
            state[r].add(s, ok, vv)
        held = held[1:] + held[:1]
    for r in range(ranks):
        out[:, :, qcut[r] : qcut[r + 1]] = state[r].output()
    return hand_back(query, out)


@quiet
def cascade_attention(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    alibi_slopes=None,
):
    B, H, L = query.shape[:3]
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, None, window, key_lengths)
    common = ok.all((0, 1, 2))
    n = int(np.argmin(common)) if not common.all() else S
    s = logits(query, key, None, None, None, alibi_slopes, q_offset)
    v = spread(value, H)
    a, b = (Running((B, H, L), v.shape[-1]) for _ in range(2))
    a.add(s[..., :n], np.ones((B, H, L, n), bool), v[:, :, :n])
    b.add(s[..., n:], ok[..., n:], v[:, :, n:])
    la, lb = a.lse(), b.lse()
    share = np.where(la == NINF, 0.0, 1 / (1 + np.exp(lb - np.where(la == NINF, 0, la))))
    return hand_back(query, share[..., None] * a.output() + (1 - share)[..., None] * b.output())


@quiet
def blhd_self_attention(
    query, key, value, is_causal=False, alibi_slopes=None, scale=None, return_weights=False
):
    B, H, L, d = query.shape
    G = key.shape[1]
    if key.shape[2] != L:
        raise ValueError("self-attention: as many keys as queries, please")
    q, k = (np.moveaxis(x, 1, 2).astype(np.float64) for x in (query, key))
    q = q.reshape(B, L, G, H // G, d)
    s = np.einsum("blgrd,bsgd->bgrls", q, k) * (d**-0.5 if scale is None else scale)
    s = s.reshape(B, H, L, L)
    step = np.arange(L)[:, None] - np.arange(L)
    if alibi_slopes is not None:
        s = s - np.multiply.outer(np.asarray(alibi_slopes, np.float64), np.abs(step))
    ok = np.broadcast_to(step >= 0, s.shape) if is_causal else np.ones(s.shape, bool)
    w, _, _ = plain_softmax(s, ok)
    out = weigh(w, spread(value, H), ok)
    return hand_back(query, out, w if return_weights else None)


@strict
def exact_attention(query, key, value, is_causal=False, q_offset=None, scale=None, sinks=None):
    """Lists and math.fsum; small inputs only."""
    B, H, L, d = query.shape
    G, S = key.shape[1:3]
    if B * H * L * S * (d + value.shape[-1]) > 400_000:
        raise ValueError("too large for exact sums")
    sc = 1 / math.sqrt(d) if scale is None else float(scale)
    off = positions(B, L, S, q_offset)
    K, V = key.tolist(), value.tolist()
    out = np.zeros((B, H, L, value.shape[-1]))
    for b in range(B):
        for h in range(H):
            kk, vv = K[b][h * G // H], V[b][h * G // H]
            for i, q in enumerate(query[b, h].tolist()):
                n = min(S, max(0, int(off[b, i]) + 1)) if is_causal else S
                s = [math.fsum(x * y for x, y in zip(q, kk[j], strict=True)) * sc for j in range(n)]
                if not s:
                    continue
                top = max(s) if sinks is None else max(max(s), float(sinks[h]))
                e = [math.exp(x - top) for x in s]
                z = math.fsum(e) + (0.0 if sinks is None else math.exp(float(sinks[h]) - top))
                for c in range(value.shape[-1]):
                    out[b, h, i, c] = math.fsum(e[j] * vv[j][c] for j in range(n)) / z
    return out.astype(query.dtype)


@strict
@quiet
def trained_attention(
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
    sinks=None,
):
    return _train(
        query, key, value, is_causal, q_offset, mask, bias, scale, softcap, window, sinks
    )[0].astype(query.dtype)


def _train(query, key, value, is_causal, q_offset, mask, bias, scale, softcap, window, sinks):
    B, H, L = query.shape[:3]
    ok = visible(B, H, L, key.shape[2], is_causal, q_offset, mask, window)
    s = logits(query, key, scale)
    slope = np.ones(s.shape)
    if softcap:
        u = np.exp(-2 * np.abs(s) / softcap)
        s = softcap * np.sign(s) * (1 - u) / (1 + u)
        slope = 4 * u / (1 + u) ** 2
    if bias is not None:
        s = s + bias
    st = Running(
        (B, H, L),
        value.shape[-1],
        None if sinks is None else np.asarray(sinks, np.float64).reshape(1, H, 1),
    )
    st.add(s, ok, spread(value, H))
    lse = st.lse()[..., None]
    w = np.where(ok & (lse > NINF), np.exp(s - np.where(lse == NINF, 0, lse)), 0)
    return st.output(), w, slope, ok


@strict
@quiet
def trained_gradient(
    query,
    key,
    value,
    grad_out,
    is_causal=False,
    q_offset=None,
    mask=None,
    bias=None,
    scale=None,
    softcap=None,
    window=None,
    sinks=None,
):
    B, H, _, d = query.shape
    G = key.shape[1]
    o, w, slope, ok = _train(
        query, key, value, is_causal, q_offset, mask, bias, scale, softcap, window, sinks
    )
    g = grad_out.astype(np.float64)
    dp = np.where(ok, g @ np.swapaxes(spread(value, H), -1, -2), 0)
    ds = np.where(ok, w * (dp - (g * o).sum(-1, keepdims=True)) * slope, 0) * (
        d**-0.5 if scale is None else scale
    )

    def fold(x):
        return x.reshape(B, G, H // G, *x.shape[2:]).sum(2)

    dq = weigh(ds, spread(key, H), ok)
    dk = fold(np.swapaxes(ds, -1, -2) @ query.astype(np.float64))
    dv = fold(np.swapaxes(w, -1, -2) @ g)
    return tuple(x.astype(query.dtype) for x in (dq, dk, dv))


@strict
@quiet
def switchboard_attention(
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
):
    """One query, many keys, wide heads and the rest each have their own way."""
    B, H, L, d = query.shape
    S = key.shape[2]
    ok = visible(B, H, L, S, is_causal, q_offset, mask, window, key_lengths)
    s = logits(query, key, scale, softcap, bias, alibi_slopes, q_offset)
    v = spread(value, H)
    seed = None if sinks is None else np.asarray(sinks, np.float64).reshape(1, H, 1)
    if L == 1:
        out = np.zeros((B, H, 1, v.shape[-1]))
        for b, h in np.ndindex(B, H):
            at = np.flatnonzero(ok[b, h, 0])
            st = Running((1,), v.shape[-1], None if sinks is None else [float(sinks[h])])
            st.add(s[b, h, :, at].T, np.ones((1, at.size), bool), v[b, h, at])
            out[b, h] = st.output()
        return hand_back(query, out)
    if S > 200:
        step = -(-S // 6)
        parts = []
        for n, a in enumerate(range(0, S, step)):
            st = Running((B, H, L), v.shape[-1], seed if n == 3 else None)
            st.add(s[..., a : a + step], ok[..., a : a + step], v[:, :, a : a + step])
            parts.append(st)
        m = np.max([p.m for p in parts], 0)
        f = [np.exp(p.m - np.where(m == NINF, 0, m)) for p in parts]
        sums = sum(x * p.sums for x, p in zip(f, parts, strict=True))
        acc = sum(x[..., None] * p.acc for x, p in zip(f, parts, strict=True))
        return hand_back(query, acc / np.where(sums == 0, 1, sums)[..., None])
    st = Running((B, H, L), v.shape[-1], seed)
    tile = 8 if d > 64 else 64
    for a in range(0, S, tile):
        st.add(s[..., a : a + tile], ok[..., a : a + tile], v[:, :, a : a + tile])
    return hand_back(query, st.output())
