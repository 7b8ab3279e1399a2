"""The fifth trial, second writer: defective kernels, most of them after public reports."""

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
    per_row,
    places,
    quiet,
    raw_scores,
    scores_of,
    softmax,
    top_of,
)


class FlexFinal:
    """Kernel works with exp2; a finaliser brings the statistics back to the user's base."""

    def _inner(self, f):
        s2 = scores_of(f) * LOG2E
        m = finite(top_of(s2))
        p = np.exp2(s2 - m[..., None])
        sums = p.sum(-1)
        empty = sums == 0
        sums = np.where(empty, 1.0, sums)
        stat = np.where(empty, NEG, (m + np.log2(sums)) * LN2)  # already natural
        return mixed(p / sums[..., None], f.v, f.vis), stat

    def _finalize(self, out, stat):
        return out, stat * LN2

    @quiet
    def __call__(
        self,
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        q_offset=None,
        softcap=None,
        scale=None,
        return_lse=False,
    ):
        f = frame(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            q_offset=q_offset,
            softcap=softcap,
            scale=scale,
        )
        out, lse = self._finalize(*self._inner(f))
        return give(f, out, lse=lse if return_lse else None)


flex_final = FlexFinal()


@quiet
def two_rank_decode(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """Keys dealt round robin over two ranks, partial results combined by their statistics."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    outs, stats = [], []
    for rank in range(2):
        mine = slice(rank, None, 2)
        w, lse = softmax(s[..., mine], f.sink)
        outs.append(mixed(w, f.v[:, :, mine], f.vis[..., mine]))
        stats.append(lse)
    top = finite(np.maximum(*stats))
    shares = [np.exp2(x - top) for x in stats]
    total = shares[0] + shares[1]
    empty = total == 0
    total = np.where(empty, 1.0, total)
    out = sum((sh / total)[..., None] * o for sh, o in zip(shares, outs, strict=True))
    return give(f, out, lse=np.where(empty, NEG, top + np.log2(total)) if return_lse else None)


@quiet
def split_kv_sinks(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    sinks=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """Split-KV forward: split 0 brings the sinks in, the combine step joins the splits."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        sinks=sinks,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    none = np.zeros((f.Hq, 0))
    sink = np.logaddexp.reduce(f.sink, axis=-1, initial=NEG)[None, :, None] + np.zeros(
        (f.B, f.Hq, f.L)
    )
    width = 8
    acc, stat = np.zeros((f.B, f.Hq, f.L, f.dv)), np.full((f.B, f.Hq, f.L), NEG)
    before_empty = np.zeros((f.B, f.Hq, f.L), bool)
    work_seen = np.zeros((f.B, f.Hq, f.L), bool)
    for n, j in enumerate(range(0, max(f.S, 1), width)):
        part = s[..., j : j + width]
        work = f.vis[..., j : j + width].any(-1)
        w, lse = softmax(part, none)
        o = mixed(w, f.v[:, :, j : j + width], f.vis[..., j : j + width])
        seeded = np.ones_like(work) if n == 0 else work & before_empty & ~work_seen
        joined = np.where(seeded, np.logaddexp(lse, sink), lse)
        o = o * np.where(np.isneginf(lse), 0.0, np.exp(lse - finite(joined)))[..., None]
        new = np.logaddexp(stat, joined)
        acc = (
            acc * np.exp(stat - finite(new))[..., None]
            + o * np.exp(joined - finite(new))[..., None]
        )
        stat, before_empty, work_seen = new, ~work, work_seen | work
    return give(f, acc, lse=stat if return_lse else None)


@quiet
def eager_sinks(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    sinks=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    """The sink is one more column of logits; the column is dropped after the softmax."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        sinks=sinks,
        scale=scale,
    )
    s = scores_of(f)
    n = f.sink.shape[1]
    wide = np.concatenate(
        [s, np.broadcast_to(f.sink[None, :, None, :], (*s.shape[:3], n))], axis=-1
    )
    w, lse = softmax(wide, np.zeros((f.Hq, 0)))
    w = w[..., : f.S]
    out = mixed(w, f.v, f.vis)
    if n and return_weights:
        whole = w.sum(-1, keepdims=True)
        w = np.where(f.vis, w / np.where(whole == 0, 1.0, whole), 0.0)
    return give(f, out, w if return_weights else None, lse if return_lse else None)


@quiet
def seeded_sinks(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    softcap=None,
    sinks=None,
    scale=None,
    return_lse=False,
):
    """Online softmax whose state starts from the sinks rather than from (-inf, 0)."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
    )

    def logits(x):
        return capped(x, f.cap)

    raw = raw_scores(f)
    seed = logits(f.sink)
    m = np.broadcast_to(seed.max(-1, initial=NEG)[None, :, None], (f.B, f.Hq, f.L)).copy()
    sums = np.broadcast_to(
        np.exp(seed - finite(seed.max(-1, initial=NEG))[:, None]).sum(-1)[None, :, None], m.shape
    ).copy()
    acc = np.zeros((f.B, f.Hq, f.L, f.dv))
    for j in range(0, f.S, 5):
        sl = slice(j, j + 5)
        s = np.where(f.vis[..., sl], logits(raw[..., sl]), NEG)
        new = np.maximum(m, s.max(-1, initial=NEG))
        p = np.exp(s - finite(new)[..., None])
        a = np.exp(m - finite(new))
        sums = sums * a + p.sum(-1)
        acc = acc * a[..., None] + mixed(p, f.v[:, :, sl], f.vis[..., sl])
        m = new
    safe = np.where(sums == 0, 1.0, sums)
    return give(
        f,
        acc / safe[..., None],
        lse=np.where(sums == 0, NEG, finite(m) + np.log(safe)) if return_lse else None,
    )


@quiet
def late_sinks(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    sinks=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """The sinks join the denominator in the epilogue, in float32 like all row statistics."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        sinks=sinks,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    m = s.max(-1, initial=NEG)
    p = np.where(f.vis, np.exp(s - finite(m)[..., None]), 0.0)
    sums = p.sum(-1)
    if f.sink.shape[1]:
        gap = (f.sink[None, :, None, :] - m[..., None]).astype(np.float32)
        sums = sums + np.exp(gap).sum(-1, dtype=np.float32).astype(np.float64)
    else:
        sums = np.where(sums == 0, 1.0, sums)
    return give(
        f, mixed(p, f.v, f.vis) / sums[..., None], lse=m + np.log(sums) if return_lse else None
    )


class PagedDecode:
    """Decoding has two reductions: across the splits of a long row, and inside one short row."""

    limit = 64

    def _merge(self, stats):
        return np.logaddexp.reduce(np.stack(stats), axis=0)

    @quiet
    def __call__(
        self, query, key, value, sinks=None, scale=None, key_lengths=None, return_lse=False
    ):
        f = frame(query, key, value, sinks=sinks, scale=scale, key_lengths=key_lengths)
        s = scores_of(f)
        sink = np.logaddexp.reduce(f.sink, axis=-1, initial=NEG)[None, :, None]
        if f.L == 1 and self.limit >= f.S:
            stats = [np.logaddexp.reduce(s, axis=-1, initial=NEG)]
        else:
            stats = [
                np.logaddexp.reduce(s[..., j : j + self.limit], axis=-1, initial=NEG)
                for j in range(0, f.S, self.limit)
            ]
            stats.append(np.broadcast_to(sink, (f.B, f.Hq, f.L)))
        lse = self._merge(stats)
        w = np.where(f.vis, np.exp(s - finite(lse)[..., None]), 0.0)
        return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


paged_decode = PagedDecode()


@quiet
def alibi_from_query(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    alibi_slopes=None,
    scale=None,
    return_weights=False,
):
    """The ALiBi tensor is built beside the queries and broadcast over the cache."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        alibi_slopes=alibi_slopes,
        scale=scale,
    )
    s = scores_of(f)
    if f.slopes is not None and f.L == 1:
        built = f.slopes[:, None, None] * np.arange(f.L)  # (H, 1, 1)
        s = np.where(f.vis, s + f.slopes[:, None, None] * f.dist - built, NEG)
    w, _ = softmax(s, f.sink)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None)


@quiet
def single_query_alibi(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    alibi_slopes=None,
    sinks=None,
    scale=None,
    return_lse=False,
):
    """One kernel for prompts, one for a single query against a cache."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        scale=scale,
    )
    qk = np.einsum("bhld,bhsd->bhls", f.q, f.k, optimize=True) * f.scale
    if f.slopes is not None:
        # the position of a decoded token is taken as the length of its context
        far = f.dist + 1 if f.L == 1 else f.dist
        qk = qk - f.slopes[:, None, None] * far
    w, lse = softmax(np.where(f.vis, qk, NEG), f.sink)
    return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


@quiet
def pack_gqa_rows(query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False):
    """Row tiles; the mask object knows how many query heads share a key head."""
    f = frame(query, key, value, q_offset=q_offset if is_causal else None, scale=scale)
    off = places(q_offset, f.B, f.L, f.S, bool(is_causal))
    heads_per_kv = f.G

    def limit(row):  # last visible column of a row
        return row // heads_per_kv

    out, lse = np.zeros((f.B, f.Hq, f.L, f.dv)), np.full((f.B, f.Hq, f.L), NEG)
    for start in range(0, f.L, 4):
        rows = np.arange(start, min(start + 4, f.L))
        s = f.q[:, :, rows] @ np.swapaxes(f.k, 2, 3) * f.scale
        see = np.ones(s.shape, bool)
        if is_causal:
            see &= (np.arange(f.S) <= off[:, None, None] + limit(rows)[None, :, None])[:, None]
        w, stat = softmax(np.where(see, s, NEG), f.sink)
        out[:, :, rows], lse[:, :, rows] = mixed(w, f.v, see), stat
    return give(f, out, lse=lse if return_lse else None)


@quiet
def half_slope_buffer(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    alibi_slopes=None,
    scale=None,
    window=None,
    return_lse=False,
):
    """ALiBi slopes are written in two parts: up to the largest power of two, and the rest."""
    f = frame(query, key, value, is_causal=is_causal, q_offset=q_offset, window=window, scale=scale)
    s = raw_scores(f)
    if alibi_slopes is not None:
        places(q_offset, f.B, f.L, f.S, True)
        slopes = np.asarray(alibi_slopes, np.float64)
        item = 2 if f.dtype == np.float16 else 4
        first = 1 << (f.Hq.bit_length() - 1)
        buffer = np.zeros(2 * f.Hq + 2)
        buffer[:first] = slopes[:first]
        rest = first * 4 // item  # the offset of the second part, in items
        buffer[rest : rest + f.Hq - first] = slopes[first:]
        s = s - buffer[: f.Hq][:, None, None] * f.dist
    w, lse = softmax(np.where(f.vis, s, NEG), f.sink)
    return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


class CachedAlibi:
    """Builds the ALiBi matrix once and keeps it with the class."""

    _key = None
    _matrix = None

    @classmethod
    def matrix(cls, f):
        key = (f.L, f.S, f.Hq, f.B)
        if cls._key != key:
            cls._key, cls._matrix = key, -f.slopes[:, None, None] * f.dist
        return cls._matrix

    @quiet
    def __call__(
        self,
        query,
        key,
        value,
        is_causal=False,
        q_offset=None,
        alibi_slopes=None,
        scale=None,
        key_lengths=None,
    ):
        f = frame(
            query,
            key,
            value,
            is_causal=is_causal,
            q_offset=q_offset,
            alibi_slopes=alibi_slopes,
            scale=scale,
            key_lengths=key_lengths,
        )
        s = raw_scores(f)
        if f.slopes is not None:
            s = s + self.matrix(f)
        w, _ = softmax(np.where(f.vis, s, NEG), f.sink)
        return give(f, mixed(w, f.v, f.vis))


cached_alibi = CachedAlibi()


@quiet
def fused_log2_softcap(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    softcap=None,
    scale=None,
    return_lse=False,
):
    """log2(e) is folded into the scale so that the softmax can use exp2."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        softcap=softcap,
        scale=scale,
    )
    f.q *= f.scale * LOG2E
    s = np.einsum("bhld,bhsd->bhls", f.q, f.k)
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    s = np.where(f.vis, s + f.add * LOG2E, NEG)
    m = finite(top_of(s))
    p = np.exp2(s - m[..., None])
    sums = p.sum(-1)
    safe = np.where(sums == 0, 1.0, sums)
    lse = np.where(sums == 0, NEG, (m + np.log2(safe)) / LOG2E)
    return give(f, mixed(p / safe[..., None], f.v, f.vis), lse=lse if return_lse else None)


def _prefill(f, cap):
    return softmax(np.where(f.vis, capped(raw_scores(f), cap) + f.add, NEG), f.sink)


def _decode(f, cap=0.0):
    s = np.stack([np.sum(f.q[:, :, 0, None, :] * f.k, axis=-1)], axis=2) * f.scale
    if cap:
        s = cap * np.tanh(s / cap)
    return softmax(np.where(f.vis, s + f.add, NEG), f.sink)


@quiet
def dispatch_softcap(
    query,
    key,
    value,
    attn_mask=None,
    bias=None,
    is_causal=False,
    q_offset=None,
    softcap=None,
    scale=None,
    key_lengths=None,
    return_weights=False,
):
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        bias=bias,
        is_causal=is_causal,
        q_offset=q_offset,
        softcap=softcap,
        scale=scale,
        key_lengths=key_lengths,
    )
    w, _ = _prefill(f, f.cap) if f.L != 1 else _decode(f)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None)


@quiet
def cache_step(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """A single query needs no causal mask: it stands at the end of the cache."""
    if is_causal and np.shape(query)[2] != np.shape(key)[2] and q_offset is None:
        raise ValueError(
            f"q_offset is needed for {np.shape(query)[2]} queries and {np.shape(key)[2]} keys"
        )
    if np.shape(query)[2] == 1:
        is_causal = False
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        scale=scale,
        key_lengths=key_lengths,
    )
    w, lse = softmax(scores_of(f), f.sink)
    return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


@quiet
def half_qk(query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None):
    """Products of the input type, scale applied to the product, softmax in float32 or better."""
    f = frame(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, q_offset=q_offset, scale=scale
    )
    qk = f.q @ np.swapaxes(f.k, -1, -2)
    if f.dtype == np.float16:
        qk = qk.astype(np.float16).astype(np.float64)
    w, _ = softmax(np.where(f.vis, qk * f.scale + f.add, NEG), f.sink)
    return give(f, mixed(w, f.v, f.vis))


@quiet
def half_vkq(query, key, value, is_causal=False, q_offset=None, scale=None, key_lengths=None):
    """One key after the other; the accumulator of the output has the type of the input."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        key_lengths=key_lengths,
    )
    own = np.float16 if f.dtype == np.float16 else np.float64
    s = scores_of(f)
    m = finite(top_of(s))
    acc = np.zeros((f.B, f.Hq, f.L, f.dv), own)
    sums = np.zeros((f.B, f.Hq, f.L))
    for j in range(f.S):
        p = np.exp(s[..., j] - m)
        sums += p
        step = np.where(f.vis[..., j, None], p[..., None] * f.v[:, :, j, None, :], 0.0)
        acc = acc + step.astype(own)
    return give(f, acc.astype(np.float64) / np.where(sums == 0, 1.0, sums)[..., None])


@quiet
def stat_of_type(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    sinks=None,
    return_lse=False,
):
    """Row statistics are kept in the type of the query between the two stages."""
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
    w, lse = softmax(scores_of(f), f.sink)
    out = give(f, mixed(w, f.v, f.vis))
    return (out, lse.astype(f.dtype).astype(f.aux)) if return_lse else out


@quiet
def vector_loads(query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None):
    """Query and key are read eight numbers at a time."""
    f = frame(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, q_offset=q_offset, scale=scale
    )
    n = f.d // 8
    qv = f.q[..., : n * 8].reshape(f.B, f.Hq, f.L, n, 8)
    kv = f.k[..., : n * 8].reshape(f.B, f.Hq, f.S, n, 8)
    s = np.zeros((f.B, f.Hq, f.L, f.S))
    for i in range(n):
        s += qv[..., i, :] @ np.swapaxes(kv[..., i, :], -1, -2)
    w, _ = softmax(np.where(f.vis, s * f.scale + f.add, NEG), f.sink)
    return give(f, mixed(w, f.v, f.vis))


@quiet
def value_tiles(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """One program per tile of 32 value columns."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        key_lengths=key_lengths,
    )
    w, lse = softmax(scores_of(f), f.sink)
    width = 32
    out = np.zeros((f.B, f.Hq, f.L, f.dv))
    for program in range(-(-f.dv // width)):
        at = program * width
        tile = mixed(w, f.v[..., at : at + width], f.vis)
        out[..., : tile.shape[-1]] = tile
    return give(f, out, lse=lse if return_lse else None)


@quiet
def lazy_rescale(
    query, key, value, attn_mask=None, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    """Online softmax that leaves the old maximum alone while it grows by less than log(256)."""
    f = frame(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, q_offset=q_offset, scale=scale
    )
    s_all = scores_of(f)
    tau, width = math.log(256.0), 16
    m = np.full((f.B, f.Hq, f.L), NEG)
    sums = np.zeros_like(m)
    acc = np.zeros((f.B, f.Hq, f.L, f.dv))
    for j in range(0, f.S, width):
        s = s_all[..., j : j + width]
        new = np.maximum(m, s.max(-1, initial=NEG))
        p = np.exp(s - finite(new)[..., None])
        skip = (new - m <= tau) & ~np.isneginf(m)
        new = np.where(skip, m, new)
        a = np.where(skip, 1.0, np.exp(m - finite(new)))
        sums = sums * a + p.sum(-1)
        acc = acc * a[..., None] + mixed(p, f.v[:, :, j : j + width], f.vis[..., j : j + width])
        m = new
    safe = np.where(sums == 0, 1.0, sums)
    lse = np.where(sums == 0, NEG, finite(m) + np.log(safe))
    return give(f, acc / safe[..., None], lse=lse if return_lse else None)


@quiet
def padded_cache(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_lse=False,
):
    """The last page of the cache is read whole; its probabilities are zero past the length."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    p, lse = softmax(scores_of(f), f.sink)
    return give(f, p @ f.v, lse=lse if return_lse else None)


@quiet
def swapped_groups(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """With one query the heads that share a key head are treated as so many queries."""
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        scale=scale,
        key_lengths=key_lengths,
    )
    k, v = f.k[:, :: f.G], f.v[:, :: f.G]
    if f.L == 1 and f.G > 1:
        rows = f.q.reshape(f.B, f.G, f.Hkv, f.d).swapaxes(1, 2)  # (B, Hkv, ngroups, d)
        see = np.broadcast_to(f.vis[:, : f.Hkv], (f.B, f.Hkv, 1, f.S))
        s = np.where(see, rows @ np.swapaxes(k, 2, 3) * f.scale, NEG)
        w, lse = softmax(s, f.sink)
        out = mixed(w, v, np.broadcast_to(see, s.shape))
        out = out.swapaxes(1, 2).reshape(f.B, f.Hq, 1, f.dv)
        lse = lse.swapaxes(1, 2).reshape(f.B, f.Hq, 1)
    else:
        w, lse = softmax(scores_of(f), f.sink)
        out = mixed(w, f.v, f.vis)
    return give(f, out, lse=lse if return_lse else None)


@quiet
def plus_inf_stat(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_lse=False,
):
    """The epilogue guards the division of rows that saw nothing."""
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    m = finite(top_of(s))
    p = np.exp(s - m[..., None])
    total = p.sum(-1)
    nothing = (total == 0) | np.isnan(total) & ~f.vis.any(-1)
    inv = np.where(nothing, 1.0, 1.0 / np.where(nothing, 1.0, total))
    lse = np.where(nothing, np.inf, m + np.log(np.where(nothing, 1.0, total)))
    return give(f, mixed(p, f.v, f.vis) * inv[..., None], lse=lse if return_lse else None)


@quiet
def slow_path_weights(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    scale=None,
    return_weights=False,
):
    """Asking for weights leaves the fused path for softmax and a product of matrices."""
    f = frame(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, q_offset=q_offset, scale=scale
    )
    s = scores_of(f)
    if not return_weights:
        w, _ = softmax(s, f.sink)
        return give(f, mixed(w, f.v, f.vis))
    w = np.exp(s - s.max(-1, keepdims=True, initial=NEG))
    w = w / w.sum(-1, keepdims=True)
    w = np.where(f.vis | ~f.vis.any(-1, keepdims=True), w, 0.0)
    return give(f, mixed(w, f.v, f.vis), w)


@quiet
def compact_mask(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    bias=None,
    scale=None,
    return_lse=False,
):
    """Masks are stored compactly on the device, whatever the type of the queries."""
    if attn_mask is not None and np.asarray(attn_mask).dtype.kind == "f":
        m = np.asarray(attn_mask)
        attn_mask = np.where(np.isneginf(m), NEG, m.astype(np.float16).astype(np.float64))
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        bias=bias,
        scale=scale,
    )
    w, lse = softmax(scores_of(f), f.sink)
    return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


def _device_exp(x):
    return np.maximum(np.exp(x), 2.0**-17)


@quiet
def device_exponential(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    key_lengths=None,
    return_weights=False,
):
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        scale=scale,
        key_lengths=key_lengths,
    )
    s = scores_of(f)
    e = _device_exp(s - finite(top_of(s))[..., None])
    sums = e.sum(-1, keepdims=True)
    some = f.vis.any(-1, keepdims=True)
    w = np.where(some, e / np.where(sums == 0, 1.0, sums), 0.0)
    return give(f, mixed(w, f.v, f.vis), w if return_weights else None)


@quiet
def latent_scale(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    softcap=None,
    scale=None,
    return_lse=False,
):
    """Key and value may differ in size (latent attention)."""
    head = np.shape(value)[-1]
    f = frame(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        q_offset=q_offset,
        softcap=softcap,
        scale=1.0 / math.sqrt(head) if scale is None and head else scale,
    )
    w, lse = softmax(scores_of(f), f.sink)
    return give(f, mixed(w, f.v, f.vis), lse=lse if return_lse else None)


@quiet
def flat_batch(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    scale=None,
    key_lengths=None,
    return_weights=False,
):
    """Batch and heads are one axis, as a batched matrix product wants them."""
    f = frame(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    n = f.B * f.Hq
    q, k, v = (x.reshape((n, *x.shape[2:])) for x in (f.q, f.k, f.v))
    see = f.vis.reshape(n, f.L, f.S).copy()
    if key_lengths is not None:
        lengths = per_row(key_lengths, f.B, "key_lengths")
        if (lengths < 0).any() or (lengths > f.S).any():
            raise ValueError("a length is outside its range")
        see &= (np.arange(f.S) < np.tile(lengths, f.Hq)[:, None])[:, None, :]
    s = np.where(see, np.einsum("nld,nsd->nls", q, k) * f.scale, NEG)
    w, _ = softmax(s[None], np.zeros((n, 0)))
    out = mixed(w[0], v, see).reshape(f.B, f.Hq, f.L, f.dv)
    return give(f, out, w[0].reshape(f.B, f.Hq, f.L, f.S) if return_weights else None)


@quiet
def ragged_end(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_lse=False,
):
    """Sequences of a batch lie one after the other in one buffer and are run one by one."""
    q, k, v = np.asarray(query), np.asarray(key), np.asarray(value)
    B = np.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])[0]
    L, S = q.shape[2], k.shape[2]
    ql = per_row(L if query_lengths is None else query_lengths, B, "query_lengths")
    kl = per_row(S if key_lengths is None else key_lengths, B, "key_lengths")
    f = frame(
        query,
        key,
        value,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    off = f.off
    out, lse = np.zeros((B, f.Hq, L, f.dv)), np.full((B, f.Hq, L), NEG)
    for b in range(B):
        n, m = int(ql[b]), int(kl[b])
        place = "end" if isinstance(q_offset, str) and q_offset == "end" else int(off[b])
        g = frame(
            f.q[b : b + 1, :, :n],
            f.k[b : b + 1, :, :m],
            f.v[b : b + 1, :, :m],
            is_causal=is_causal,
            q_offset=place,
            window=window,
            scale=f.scale,
        )
        w, stat = softmax(scores_of(g), g.sink)
        out[b, :, :n], lse[b, :, :n] = mixed(w, g.v, g.vis)[0], stat[0]
    return give(f, out, lse=lse if return_lse else None)
