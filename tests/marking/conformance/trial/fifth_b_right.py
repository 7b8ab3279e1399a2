"""The fifth trial, second writer: correct kernels in unusual styles."""

import functools
import math

import numpy as np

from .fifth_b_pieces import (
    LN2,
    LOG2E,
    NEG,
    capped,
    finite,
    frame,
    give,
    mixed,
    quiet,
    scores_of,
    softmax,
    top_of,
)


@quiet
def log_domain(
    query,
    key,
    value,
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
    return_weights=False,
    return_lse=False,
):
    """Everything stays a logarithm until the last line."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        bias=bias,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    lse = np.logaddexp(
        np.logaddexp.reduce(s, axis=-1, initial=NEG),
        np.logaddexp.reduce(f.sink, axis=-1, initial=NEG)[None, :, None],
    )
    w = np.where(f.vis, np.exp(s - finite(lse)[..., None]), 0.0)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None, lse if return_lse else None)


class Base2TwoPass:
    """First pass over the keys: maximum and sum in base 2. Second pass: the values."""

    def __init__(self, rows=5, columns=7):
        self.rows, self.columns = rows, columns

    @quiet
    def __call__(
        self,
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        q_offset=None,
        window=None,
        softcap=None,
        sinks=None,
        scale=None,
        key_lengths=None,
        return_lse=False,
    ):
        f = frame(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            q_offset=q_offset,
            window=window,
            softcap=softcap,
            sinks=sinks,
            scale=scale,
            key_lengths=key_lengths,
        )
        out, lse = np.zeros((f.B, f.Hq, f.L, f.dv)), np.full((f.B, f.Hq, f.L), NEG)
        sink2 = f.sink * LOG2E
        for i in range(0, f.L, self.rows):
            rows = slice(i, i + self.rows)

            def tile(j):
                cols = slice(j, j + self.columns)
                x = capped(f.q[:, :, rows] @ np.swapaxes(f.k[:, :, cols], 2, 3) * f.scale, f.cap)  # noqa: B023 (called at once)
                see = f.vis[:, :, rows, cols]  # noqa: B023 (called at once)
                return np.where(see, (x + f.add[:, :, rows, cols]) * LOG2E, NEG), see, cols  # noqa: B023 (called at once)

            starts = range(0, f.S, self.columns)
            m = np.broadcast_to(sink2.max(-1, initial=NEG)[None, :, None], lse[:, :, rows].shape)
            for j in starts:
                m = np.maximum(m, tile(j)[0].max(-1))
            m = finite(m)
            sums = np.exp2(sink2[None, :, None, :] - m[..., None]).sum(-1)
            for j in starts:
                sums = sums + np.exp2(tile(j)[0] - m[..., None]).sum(-1)
            r = 1.0 / np.where(sums == 0, 1.0, sums)
            for j in reversed(starts):
                x, see, cols = tile(j)
                out[:, :, rows] += mixed(
                    np.exp2(x - m[..., None]) * r[..., None], f.v[:, :, cols], see
                )
            lse[:, :, rows] = np.where(
                sums == 0, NEG, (m + np.log2(np.where(sums == 0, 1.0, sums))) * LN2
            )
        return give(f, out, lse=lse if return_lse else None)


base2_two_pass = Base2TwoPass()


@quiet
def backwards_online(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    bias=None,
    softcap=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """One key at a time from the last to the first."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        bias=bias,
        softcap=softcap,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    m = np.full((f.B, f.Hq, f.L), NEG)
    sums = np.zeros_like(m)
    acc = np.zeros((f.B, f.Hq, f.L, f.dv))
    for j in range(f.S - 1, -1, -1):
        new = np.maximum(m, s[..., j])
        a, p = np.exp(m - finite(new)), np.exp(s[..., j] - finite(new))
        sums = sums * a + p
        acc = acc * a[..., None] + np.where(
            f.vis[..., j, None], p[..., None] * f.v[:, :, j, None, :], 0.0
        )
        m = new
    none = ~f.vis.any(-1)
    out = np.where(none[..., None], 0.0, acc / np.where(none, 1.0, sums)[..., None])
    return give(
        f,
        out,
        lse=np.where(none, NEG, m + np.log(np.where(none, 1.0, sums))) if return_lse else None,
    )


def _join(a, b):
    (o1, s1), (o2, s2) = a, b
    s = np.logaddexp(s1, s2)
    return o1 * np.exp(s1 - finite(s))[..., None] + o2 * np.exp(s2 - finite(s))[..., None], s


def _halves(f, s, lo, hi):
    if hi - lo <= 3:
        w, lse = softmax(s[..., lo:hi], np.zeros((f.Hq, 0)))
        return mixed(w, f.v[:, :, lo:hi], f.vis[..., lo:hi]), lse
    mid = (lo + hi) // 2
    return _join(_halves(f, s, lo, mid), _halves(f, s, mid, hi))


@quiet
def halving(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_lse=False,
):
    """Keys are halved until three are left; halves merge by their log-sum-exp."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    whole = _halves(f, scores_of(f), 0, f.S)
    sink = np.logaddexp.reduce(f.sink, axis=-1, initial=NEG)[None, :, None]
    out, lse = _join(whole, (np.zeros_like(whole[0]), np.broadcast_to(sink, whole[1].shape)))
    return give(f, out, lse=lse if return_lse else None)


@quiet
def _chunked(
    chunk,
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    bias=None,
    alibi_slopes=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        bias=bias,
        alibi_slopes=alibi_slopes,
        scale=scale,
    )
    s = scores_of(f)
    parts = [softmax(s[..., j : j + chunk], np.zeros((f.Hq, 0))) for j in range(0, f.S, chunk)]
    stats = np.stack([p[1] for p in parts] or [np.full((f.B, f.Hq, f.L), NEG)])
    lse = np.logaddexp.reduce(stats, axis=0)
    w = np.concatenate(
        [p[0] * np.exp(p[1] - finite(lse))[..., None] for p in parts] or [s], axis=-1
    )
    w = np.where(f.vis, w, 0.0)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None, lse if return_lse else None)


chunks_of_eleven = functools.partial(_chunked, 11)


@quiet
def causal_only(query, key, value, *, is_causal=False, q_offset="end", scale=None):
    """Makes no mask: each query meets a slice of the keys. `q_offset` is "end" by default."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset="end" if q_offset is None else q_offset,
        scale=scale,
    )
    out = np.zeros((f.B, f.Hq, f.L, f.dv))
    for b in range(f.B):
        for i in range(f.L):
            n = min(max(int(f.off[b]) + i + 1, 0), f.S) if is_causal else f.S
            if n:
                x = np.einsum("hd,hsd->hs", f.q[b, :, i], f.k[b, :, :n]) * f.scale
                e = np.exp(x - x.max(-1, keepdims=True))
                out[b, :, i] = np.einsum("hs,hsv->hv", e, f.v[b, :, :n]) / e.sum(-1, keepdims=True)
    return give(f, out)


@quiet
def eights_only(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    """Head sizes are multiples of 8 up to 128; others are refused."""
    for name, x in (("query", query), ("value", value)):
        d = np.shape(x)[-1]
        if d % 8 or not 0 < d <= 128:
            raise ValueError(
                f"head size {d} of {name} is not supported: multiples of 8 up to 128 are"
            )
    f = frame(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, q_offset=q_offset, scale=scale
    )
    lanes = f.q.reshape(f.B, f.Hq, f.L, f.d // 8, 8), f.k.reshape(f.B, f.Hq, f.S, f.d // 8, 8)
    s = np.einsum("bhlnc,bhsnc->bhls", *lanes, optimize=True) * f.scale
    w, lse = softmax(np.where(f.vis, s + f.add, NEG), f.sink)
    return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


@quiet
def one_query_only(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    alibi_slopes=None,
    softcap=None,
    sinks=None,
    scale=None,
    key_lengths=None,
    return_weights=False,
    return_lse=False,
):
    """Decoding only. The heads that share a key head are the rows of one small product."""
    if np.shape(query)[2] != 1:
        raise NotImplementedError("this kernel decodes: it takes one query per row")
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
        key_lengths=key_lengths,
    )
    rows = f.q.reshape(f.B, f.Hkv, f.G, f.d)
    s = np.einsum("bngd,bnsd->bngs", rows, f.k[:, :: f.G]).reshape(f.B, f.Hq, 1, f.S) * f.scale
    s = np.where(f.vis, capped(s, f.cap) + f.add, NEG)
    w, lse = softmax(s, f.sink)
    small = w.reshape(f.B, f.Hkv, f.G, f.S)
    out = mixed(small, f.v[:, :: f.G], f.vis.reshape(small.shape)).reshape(f.B, f.Hq, 1, f.dv)
    return give(f, out, w if return_weights else None, lse if return_lse else None)


@quiet
def band_gather(
    query, key, value, is_causal=False, q_offset=None, window=None, scale=None, return_lse=False
):
    """Local attention: a strided view of the padded keys holds the band of each query."""
    f = frame(query, key, value, is_causal=is_causal, q_offset=q_offset, window=window, scale=scale)
    far = f.S + f.L + int(np.abs(f.off).max(initial=0)) + 1
    left, right = (None, None) if window is None else window
    left = far if left is None else min(left, far)
    right = far if right is None else min(right, far)
    if is_causal:
        right = 0 if window is None or right > 0 else right
    band = left + right + 1
    out, lse = np.zeros((f.B, f.Hq, f.L, f.dv)), np.full((f.B, f.Hq, f.L), NEG)
    pad = far + left + right
    real = np.pad(np.ones(f.S, bool), pad)
    see_all = np.lib.stride_tricks.sliding_window_view(real, band)
    for b in range(f.B):
        k = np.pad(f.k[b], ((0, 0), (pad, pad), (0, 0)))
        v = np.pad(f.v[b], ((0, 0), (pad, pad), (0, 0)))
        ks = np.lib.stride_tricks.sliding_window_view(k, band, axis=1)  # (H, places, d, band)
        vs = np.lib.stride_tricks.sliding_window_view(v, band, axis=1)
        for i in range(f.L):
            at = int(f.off[b]) + i - left + pad
            if not 0 <= at < len(see_all):
                continue
            see = see_all[at]
            x = np.where(see, np.einsum("hd,hdw->hw", f.q[b, :, i], ks[:, at]) * f.scale, NEG)
            if not see.any():
                continue
            m = x.max(-1, keepdims=True)
            e = np.exp(x - m)
            out[b, :, i] = np.einsum("hw,hvw->hv", e / e.sum(-1, keepdims=True), vs[:, at])
            lse[b, :, i] = m[:, 0] + np.log(e.sum(-1))
    return give(f, out, lse=lse if return_lse else None)


@quiet
def narrow_exponentials(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    softcap=None,
    return_weights=False,
):
    """Scores in float64, exponentials in float32, Kahan's summation for the row sum."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        softcap=softcap,
    )
    if f.dtype == np.float64:
        raise TypeError("float64 is not supported: float32 and float16 are")
    s = scores_of(f)
    e = np.exp((s - finite(top_of(s))[..., None]).astype(np.float32))
    total, lost = np.zeros(e.shape[:3], np.float32), np.zeros(e.shape[:3], np.float32)
    for j in range(f.S):
        y = e[..., j] - lost
        t = total + y
        lost = (t - total) - y
        total = t
    w = e.astype(np.float64) / np.where(total == 0, 1.0, total.astype(np.float64))[..., None]
    w = np.where(f.vis, w, 0.0)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None)


@quiet
def gather_visible(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    bias=None,
    sinks=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_weights=False,
    return_lse=False,
):
    """Row by row: collect what is visible, forget the rest; the sum is exact (math.fsum)."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        bias=bias,
        sinks=sinks,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    out, lse = np.zeros((f.B, f.Hq, f.L, f.dv)), np.full((f.B, f.Hq, f.L), NEG)
    weights = np.zeros(f.vis.shape)
    for b, h, i in np.ndindex(f.B, f.Hq, f.L):
        js = np.flatnonzero(f.vis[b, h, i])
        x = np.concatenate([f.k[b, h, js] @ f.q[b, h, i] * f.scale + f.add[b, h, i, js], f.sink[h]])
        if not x.size:
            continue
        top = x.max()
        e = np.exp(x - top)
        total = math.fsum(e) if np.isfinite(e).all() else np.nan
        weights[b, h, i, js] = e[: js.size] / total
        out[b, h, i] = weights[b, h, i, js] @ f.v[b, h, js]
        lse[b, h, i] = top + np.log(total)
    return give(f, out, weights if return_weights else None, lse if return_lse else None)


@quiet
def running_mean(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    sinks=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """The output is an average at every moment: out += share * (value - out), after Horner."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        sinks=sinks,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    stat = np.broadcast_to(
        np.logaddexp.reduce(f.sink, axis=-1, initial=NEG)[None, :, None], s.shape[:3]
    )
    out = np.zeros((f.B, f.Hq, f.L, f.dv))
    for j in range(f.S):
        stat = np.logaddexp(stat, s[..., j])
        share = np.where(f.vis[..., j], np.exp(s[..., j] - stat), 0.0)[..., None]
        out = np.where(f.vis[..., j, None], out + share * (f.v[:, :, j, None, :] - out), out)
    return give(f, out, lse=stat if return_lse else None)


class Configured:
    """An object with settings from its construction, which is called like the formula."""

    def __init__(self, *, causal=False):
        self.defaults = {"is_causal": causal}
        self.calls = 0

    def __repr__(self):
        return f"Configured({self.defaults})"

    @quiet
    def __call__(
        self,
        query,
        key,
        value,
        attn_mask=None,
        is_causal=None,
        q_offset=None,
        softcap=None,
        alibi_slopes=None,
        scale=None,
        return_weights=False,
    ):
        self.calls += 1
        f = frame(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=self.defaults["is_causal"] if is_causal is None else is_causal,
            q_offset=q_offset,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            scale=scale,
        )
        w, _ = softmax(scores_of(f), f.sink)
        return give(f, mixed(w, f.v, f.vis), w if return_weights else None)


configured = Configured()


def _build(block):
    def tanh(x):
        e = np.expm1(2.0 * np.clip(x, -20.0, 20.0))
        return np.where(np.abs(x) > 20.0, np.sign(x), e / (e + 2.0))

    @quiet
    def kernel(
        query,
        key,
        value,
        bias=None,
        softcap=None,
        scale=None,
        is_causal=False,
        q_offset=None,
        return_lse=False,
    ):
        f = frame(
            query,
            key,
            value,
            bias=bias,
            softcap=softcap,
            scale=scale,
            is_causal=is_causal,
            q_offset=q_offset,
        )
        state = [
            np.full((f.B, f.Hq, f.L), NEG),
            np.zeros((f.B, f.Hq, f.L)),
            np.zeros((f.B, f.Hq, f.L, f.dv)),
        ]
        for j in range(0, f.S, block):
            c = slice(j, j + block)
            s = f.q @ np.swapaxes(f.k[:, :, c], 2, 3) * f.scale
            if softcap is not None:
                s = softcap * tanh(s / softcap)
            s = np.where(f.vis[..., c], s + f.add[..., c], NEG)
            m = np.maximum(state[0], s.max(-1))
            p, a = np.exp(s - finite(m)[..., None]), np.exp(state[0] - finite(m))
            state = [
                m,
                state[1] * a + p.sum(-1),
                state[2] * a[..., None] + mixed(p, f.v[:, :, c], f.vis[..., c]),
            ]
        m, sums, acc = state
        dead = ~f.vis.any(-1)
        sums = np.where(dead, 1.0, sums)
        return give(
            f,
            acc / sums[..., None],
            lse=np.where(dead, NEG, m + np.log(sums)) if return_lse else None,
        )

    return kernel


own_tanh = _build(6)


@quiet
def virtual_keys(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    softcap=None,
    sinks=None,
    scale=None,
    key_lengths=None,
    return_weights=False,
    return_lse=False,
):
    """Each sink is a key of its own, with a value of zeros, in front of the real keys."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
        key_lengths=key_lengths,
    )
    n = f.sink.shape[1]
    s = np.concatenate(
        [np.broadcast_to(f.sink[None, :, None, :], (f.B, f.Hq, f.L, n)), scores_of(f)], axis=-1
    )
    v = np.concatenate([np.zeros((f.B, f.Hq, n, f.dv)), f.v], axis=2)
    see = np.concatenate([np.ones((f.B, f.Hq, f.L, n), bool), f.vis], axis=-1)
    w, lse = softmax(s, np.zeros((f.Hq, 0)))
    return give(
        f, mixed(w, v, see), w[..., n:] if return_weights else None, lse if return_lse else None
    )


@quiet
def root_scale(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    bias=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
):
    """The root of the scale on either side of the product, as ONNX draws it."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        bias=bias,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    root = math.sqrt(abs(f.scale))
    s = (f.q * math.copysign(root, f.scale)) @ np.swapaxes(f.k * root, -1, -2)
    s = np.where(f.vis, s + f.add, NEG)
    half = s / 2  # exp(x/2) squared
    e = np.exp(half - finite(top_of(half))[..., None]) ** 2
    sums = e.sum(-1, keepdims=True)
    return give(f, mixed(e / np.where(sums == 0, 1.0, sums), f.v, f.vis))


@quiet
def token_major(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    """Works in (B, T, H, d) on views, one batch row at a time; returns a plain array."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        scale=scale,
    )
    q, k, v = (np.moveaxis(x, 1, 2) for x in (f.q, f.k, f.v))
    outs, ws, stats = [], [], []
    for b in range(f.B):
        s = np.where(f.vis[b], np.einsum("lhd,shd->hls", q[b], k[b]) * f.scale + f.add[b], NEG)
        w, lse = softmax(s[None], f.sink)
        outs.append(mixed(w[0], np.moveaxis(v[b], 1, 0), f.vis[b]))
        ws.append(w[0])
        stats.append(lse[0])
    out = np.reshape(outs, (f.B, f.Hq, f.L, f.dv))
    return give(
        f,
        out,
        np.reshape(ws, f.vis.shape) if return_weights else None,
        np.reshape(stats, (f.B, f.Hq, f.L)) if return_lse else None,
    )


@quiet
def sorted_rows(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    sinks=None,
    return_weights=False,
    return_lse=False,
):
    """Every row is sorted, summed from its smallest term up, and put back in order."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        sinks=sinks,
    )
    s = scores_of(f)
    order = np.argsort(s, axis=-1, kind="stable")
    m = finite(top_of(s, f.sink))
    e = np.exp(np.take_along_axis(s, order, -1) - m[..., None])
    sums = np.cumsum(e, axis=-1)[..., -1] if f.S else np.zeros(e.shape[:3])
    sums = sums + np.exp(f.sink[None, :, None, :] - m[..., None]).sum(-1)
    safe = np.where(sums == 0, 1.0, sums)
    w = np.empty_like(e)
    np.put_along_axis(w, order, e / safe[..., None], -1)
    w = np.where(f.vis, w, 0.0)
    lse = np.where(sums == 0, NEG, m + np.log(safe))
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None, lse if return_lse else None)


def _stream(f):
    """A coroutine: takes (scores, values, visible) of some keys, gives the state back."""
    m, sums = np.full((f.B, f.Hq, f.L), NEG), np.zeros((f.B, f.Hq, f.L))
    acc = np.zeros((f.B, f.Hq, f.L, f.dv))
    while True:
        got = yield m, sums, acc
        s, v, see = got
        new = np.maximum(m, s.max(-1, initial=NEG))
        a, p = np.exp(m - finite(new)), np.exp(s - finite(new)[..., None])
        m, sums, acc = new, sums * a + p.sum(-1), acc * a[..., None] + mixed(p, v, see)


@quiet
def streaming(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    alibi_slopes=None,
    softcap=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        alibi_slopes=alibi_slopes,
        softcap=softcap,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    sink = _stream(f)
    m, sums, acc = next(sink)
    at, step = 0, 1
    while at < f.S:  # pieces of 1, 2, 3, ... keys
        c = slice(at, at + step)
        m, sums, acc = sink.send((s[..., c], f.v[:, :, c], f.vis[..., c]))
        at, step = at + step, step + 1
    sink.close()
    dead = ~f.vis.any(-1)
    sums = np.where(dead, 1.0, sums)
    return give(
        f, acc / sums[..., None], lse=np.where(dead, NEG, m + np.log(sums)) if return_lse else None
    )


@quiet
def refuses_loudly(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    alibi_slopes=None,
    softcap=None,
    sinks=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_weights=False,
    return_lse=False,
):
    """Plain attention with lengths. Options that are not there are refused, and so are
    grouped heads and more than 256 keys."""
    for name, x in (
        ("window", window),
        ("alibi_slopes", alibi_slopes),
        ("softcap", softcap),
        ("sinks", sinks),
    ):
        if x is not None:
            raise NotImplementedError(f"{name} is not supported by this kernel")
    if np.shape(query)[1] != np.shape(key)[1]:
        raise NotImplementedError("grouped heads are not supported by this kernel")
    if np.shape(key)[2] > 256:
        raise NotImplementedError(
            f"{np.shape(key)[2]} keys are too many for this kernel: 256 is the limit"
        )
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    # a softmax out of sigmoids: w_j = 1 / sum_k exp(s_k - s_j)
    w = np.zeros(s.shape)
    for j in range(f.S):
        own = np.where(f.vis[..., j], s[..., j], 0.0)
        w[..., j] = np.where(f.vis[..., j], 1.0 / np.exp(s - own[..., None]).sum(-1), 0.0)
    lse = np.logaddexp.reduce(s, axis=-1, initial=NEG)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None, lse if return_lse else None)
