"""The seventh trial: defective kernels, most of them after public reports."""

import math

import numpy as np

from .seventh_pieces import (
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
def aligned_heads(
    query, key, value, is_causal=False, q_offset=None, bias=None, scale=None, softcap=None
):
    """Head sizes are brought to a multiple of 16 before anything else."""

    def align(x):
        x = np.asarray(x).astype(np.float64)
        return np.pad(x, ((0, 0), (0, 0), (0, 0), (0, -x.shape[-1] % 16)))

    dv = value.shape[-1]
    q, k, v = align(query), align(key), align(value)
    B, H, L, width = q.shape
    G, S = k.shape[1:3]
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    q = q.reshape(B, G, H // G, L, width)
    seen = sight((B, H, L, S), is_causal, q_offset, bias=bias)
    s = np.einsum("bgrid,bgjd->bgrij", q, k, optimize=True).reshape(B, H, L, S) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    w, _ = softmax(np.where(seen, s, HIDE))
    return mix(w, seen, spread(v, H // G))[..., :dv]


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


class _Layer:
    def __init__(self, scale, softcap):
        self.scale, self.softcap = scale, softcap

    def scores(self, q, k):
        scale = self.scale or q.shape[-1] ** -0.5
        s = np.einsum("id,jd->ij", q, k) * scale
        return s if self.softcap is None else self.softcap * np.tanh(s / self.softcap)


@quiet
def layer_object(
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
    return_weights=False,
    return_lse=False,
):
    """A layer object, called head by head."""
    q, k, v = wide(query, key, value)
    B, H, L, _ = q.shape
    S, r = k.shape[2], ratio(q, k)
    layer = _Layer(scale, softcap)
    seen = sight((B, H, L, S), is_causal, q_offset, window, key_lengths, attn_mask, bias)
    out, weights, lse = (
        np.zeros((B, H, L, v.shape[-1])),
        np.zeros((B, H, L, S)),
        np.zeros((B, H, L)),
    )
    for b, h in np.ndindex(B, H):
        s = layer.scores(q[b, h], k[b, h // r])
        if bias is not None:
            s = s + np.broadcast_to(bias, (B, H, L, S))[b, h]
        if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
            s = s + np.broadcast_to(attn_mask, (B, H, L, S))[b, h]
        weights[b, h], lse[b, h] = softmax(np.where(seen[b, h], s, HIDE))
        out[b, h] = mix(weights[b, h], seen[b, h], v[b, h // r])
    return pack(out, weights, lse, return_weights, return_lse)


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


def _slope_table(length):
    line = np.arange(length)
    return -np.abs(line[:, None] - line).astype(np.float64)


@quiet
def slope_table(
    query,
    key,
    value,
    is_causal=False,
    alibi_slopes=None,
    key_lengths=None,
    scale=None,
    return_lse=False,
):
    """The table of distances is built from the queries where it can be."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, key_lengths=key_lengths)
    s = q @ k.swapaxes(-1, -2) * scale
    if alibi_slopes is not None:
        if L == S or L == 1:
            table = _slope_table(L)
        else:
            table = -np.abs(np.arange(S) - (np.arange(L) + S - L)[:, None])
        s = s + np.asarray(alibi_slopes).astype(np.float64)[:, None, None] * table
    w, lse = softmax(np.where(seen, s, HIDE))
    return pack(mix(w, seen, v), lse=lse, return_lse=return_lse)


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
def sum_buffers(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    attn_mask=None,
    key_lengths=None,
    scale=None,
    return_lse=False,
):
    """Buffers of maxima and sums a part of the keys, adjusted to the global maximum."""
    q, k, v = wide(query, key, value)
    B, H, L, d = q.shape
    S, r = k.shape[2], ratio(q, k)
    scale = d**-0.5 if scale is None else scale
    k, v = spread(k, r), spread(v, r)
    seen = sight((B, H, L, S), is_causal, q_offset, None, key_lengths, attn_mask)
    s = q @ k.swapaxes(-1, -2) * scale
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        s = s + attn_mask
    s = np.where(seen, s, HIDE)
    cuts = np.array_split(np.arange(S), 3)
    cuts = [c for c in cuts if len(c)]
    if not cuts:
        return pack(
            np.zeros((B, H, L, v.shape[-1])), lse=np.full((B, H, L), HIDE), return_lse=return_lse
        )
    buf_m = np.stack([s[..., c].max(-1) for c in cuts])
    top = buf_m.max(0)
    masked_rows = np.isneginf(top)
    top = np.where(masked_rows, 0.0, top)
    total, acc = np.zeros((B, H, L)), np.zeros((B, H, L, v.shape[-1]))
    for c in cuts:
        p = np.exp(s[..., c] - top[..., None])
        total += p.sum(-1)
        acc += mix(p, seen[..., c], v[:, :, c])
    total = np.where(masked_rows, 1.0, total)
    return pack(acc / total[..., None], lse=np.log(total) + top, return_lse=return_lse)


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
