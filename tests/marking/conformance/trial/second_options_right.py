"""The second trial: correct kernels in other styles, with masks, windows, sinks and lengths."""

import functools
import math

import numpy as np

from .second_options_pieces import (
    NEG,
    ahead_of,
    give,
    kept,
    per_row,
    place_of,
    quiet,
    scale_of,
    softmax,
    split_mask,
    weigh,
    wide,
)

try:
    import torch
except ImportError:
    torch = None


class LoopAttention:
    """Plain loops over everything, gathering the visible keys."""

    @quiet
    def __call__(self, Q, K, V, attn_mask=None, is_causal=False, q_offset=None):
        q, k, v = wide(Q, K, V)
        b, h, L, d = q.shape
        s = k.shape[2]
        see, add = split_mask(attn_mask)
        see = np.broadcast_to(see, (b, h, L, s)) & kept((b, h, L, s), is_causal, q_offset)
        add = np.broadcast_to(add, (b, h, L, s))
        out = np.zeros((b, h, L, v.shape[-1]), dtype=np.asarray(Q).dtype)
        for at in np.ndindex(b, h, L):
            n = np.flatnonzero(see[at])
            if n.size:
                x = k[at[:2]][n] @ q[at] / math.sqrt(d) + add[at][n]
                e = np.exp(x - x.max())
                out[at] = e @ v[at[:2]][n] / e.sum()
        return out


loop_attention = LoopAttention()


def _biased(temper, query, key, value, bias=None, scale=None):
    q, k, v = wide(query, key, value)
    keep, add = split_mask(bias)
    x = temper * (q @ k.swapaxes(-1, -2)) * scale_of(scale, q.shape[-1]) + add
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x, keep)
    return give(weigh(p, keep, v), query)


partial_bias = functools.partial(quiet(_biased), 1.0)

_one_head = np.vectorize(
    lambda q, k, v, c: softmax(c * (q @ k.T), True)[0] @ v, signature="(L,d),(s,d),(s,e),()->(L,e)"
)


@quiet
def vectorised(query, key, value, scale=None):
    if np.asarray(key).shape[-2] == 0 or np.asarray(query).size == 0:
        raise ValueError("np.vectorize wants something")
    q, k, v = wide(query, key, value)
    return give(_one_head(q, k, v, scale_of(scale, q.shape[-1])), query)


@quiet
def online_tiles(
    query, key, value, *, is_causal=False, window=None, q_offset=None, return_lse=False
):
    """Seven keys at a time, from the right, with a running maximum; hidden tiles are skipped."""
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = kept((b, h, L, s), is_causal, q_offset, window)
    m = np.full((b, h, L, 1), NEG)
    den = np.zeros_like(m)
    acc = np.zeros((b, h, L, v.shape[-1]))
    for j in range(s - s % 7, -1, -7):
        c = slice(j, j + 7)
        see = keep[..., c]
        if not see.any():
            continue
        x = np.where(see, q @ k[:, :, c].swapaxes(-1, -2) / math.sqrt(d), NEG)
        new = np.maximum(m, x.max(-1, keepdims=True))
        base = np.where(new == NEG, 0.0, new)
        e = np.where(see, np.exp(x - base), 0.0)
        r = np.exp(m - base)
        m, den = new, den * r + e.sum(-1, keepdims=True)
        acc = acc * r + weigh(e, see, v[:, :, c])
    out = acc / np.where(den == 0, 1.0, den)
    lse = np.where(den == 0, NEG, m + np.log(np.where(den == 0, 1.0, den)))[..., 0]
    return give(out, query, lse=lse if return_lse else None)


@quiet
def einsum_groups(query, key, value, softcap=None, bias=None, return_weights=False):
    """Grouped heads by a five-letter einsum; no key is copied."""
    q, k, v = (np.asarray(t) for t in (query, key, value))
    hk = k.shape[1]
    if q.shape[1] % hk or q.shape[-1] == 0 or not q.shape[0] == k.shape[0] == v.shape[0]:
        raise ValueError("shapes")
    g = q.shape[1] // hk
    b, hq, L, d = q.shape
    s = k.shape[2]
    x = np.einsum(
        "bngid,bnjd->bngij", q.reshape(b, hk, g, L, d).astype(np.float64), k.astype(np.float64)
    )
    x = x.reshape(b, hq, L, s) / math.sqrt(d)
    if softcap is not None:
        x = softcap * np.tanh(x / softcap)
    keep, add = split_mask(bias)
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x + add, keep)
    out = weigh(p, keep, np.repeat(v.astype(np.float64), g, 1))
    return give(out, query, p if return_weights else None)


if torch is not None:

    class _TorchAttention(torch.nn.Module):
        def forward(self, q, k, v, see):
            x = q @ k.mT / math.sqrt(q.shape[-1])
            x = x.masked_fill(~see, -math.inf)
            w = torch.softmax(x, -1)
            w = torch.where(see, w, torch.zeros((), dtype=w.dtype))
            return w
else:
    _TorchAttention = None


@quiet
def torch_module(query, key, value, attn_mask=None, return_weights=False):
    if torch is None or _TorchAttention is None:
        raise ImportError("torch")
    q, k, v = wide(query, key, value)
    shape = (*q.shape[:3], k.shape[2])
    if attn_mask is None:
        see = np.ones(shape, bool)
    else:
        if np.asarray(attn_mask).dtype != bool:
            raise TypeError("bool masks only")
        see = np.broadcast_to(attn_mask, shape).copy()
    w = _TorchAttention()(
        *(torch.from_numpy(np.ascontiguousarray(t)) for t in (q, k, v)), torch.from_numpy(see)
    )
    w = w.detach().numpy()
    return give(weigh(w, see, v), query, w if return_weights else None)


def keyworded(query, key, value, **options):
    """Takes any keyword and refuses what it does not know."""
    known = {"scale": None, "is_causal": False, "q_offset": None, "key_lengths": None}
    extra = {
        n: o for n, o in options.items() if n not in known and o is not None and o is not False
    }
    if extra:
        raise NotImplementedError(f"not supported: {sorted(extra)}")
    o = {**known, **{n: t for n, t in options.items() if n in known}}
    with np.errstate(all="ignore"):
        q, k, v = wide(query, key, value)
        keep = kept(
            (*q.shape[:3], k.shape[2]), o["is_causal"], o["q_offset"], key_lengths=o["key_lengths"]
        )
        p, _ = softmax(q @ k.swapaxes(-1, -2) * scale_of(o["scale"], q.shape[-1]), keep)
        return give(weigh(p, keep, v), query)


@quiet
def decode_and_prefill(query, key, value, key_lengths=None, sinks=None, return_lse=False):
    """One query has its own path, and it is right."""
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = kept((b, h, L, s), key_lengths=key_lengths)
    if L != 1:
        p, lse = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(d), keep, sinks)
        return give(weigh(p, keep, v), query, lse=lse if return_lse else None)
    out = np.zeros((b, h, 1, v.shape[-1]))
    lse = np.full((b, h, 1), NEG)
    for bi in range(b):
        n = int(keep[bi, 0, 0].sum()) if h else 0
        for hi in range(h):
            x = (k[bi, hi, :n] * q[bi, hi]).sum(-1) / math.sqrt(d)
            if sinks is not None:
                x = np.concatenate([x, np.asarray(sinks)[hi : hi + 1].astype(np.float64).ravel()])
            if x.size:
                top = x.max()
                if top == NEG:
                    continue
                e = np.exp(x - top)
                out[bi, hi, 0] = e[:n] @ v[bi, hi, :n] / e.sum()
                lse[bi, hi, 0] = top + math.log(e.sum())
    return give(out, query, lse=lse if return_lse else None)


@quiet
def packed_rows(query, key, value, query_lengths=None, key_lengths=None, return_lse=False):
    """Rows without padding and running lengths, scattered back; the result is a view."""
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    nq = np.full(b, L) if query_lengths is None else per_row(query_lengths, b).ravel()
    nk = np.full(b, s) if key_lengths is None else per_row(key_lengths, b).ravel()
    cq, ck = (np.concatenate([[0], np.cumsum(n)]) for n in (nq, nk))

    def rows(t, n):
        return np.concatenate(
            [t[i, :, : n[i]].swapaxes(0, 1) for i in range(b)] or [np.zeros((0, h, t.shape[-1]))]
        )

    pq, pk, pv = rows(q, nq), rows(k, nk), rows(v, nk)
    out = np.zeros((b, L, h, v.shape[-1]), dtype=np.asarray(query).dtype)
    lse = np.full((b, h, L), NEG)
    for i in range(b):
        a, c = slice(cq[i], cq[i + 1]), slice(ck[i], ck[i + 1])
        x = np.einsum("ihd,jhd->hij", pq[a], pk[c]) / math.sqrt(d)
        p, z = softmax(x, True)
        out[i, : nq[i]] = np.einsum("hij,jhe->ihe", p, pv[c])
        lse[i, :, : nq[i]] = z
    out = out.transpose(0, 2, 1, 3)
    if return_lse:
        return out, lse.astype(np.float64 if out.dtype == np.float64 else np.float32)
    return out


@quiet
def equal_heads_only(query, key, value, attn_mask=None):
    if np.asarray(query).shape[1] != np.asarray(key).shape[1]:
        raise NotImplementedError("no grouped heads")
    if attn_mask is not None and np.asarray(attn_mask).ndim != 4:
        raise AssertionError("masks of four axes")
    q, k, v = wide(query, key, value)
    keep, add = split_mask(attn_mask)
    x = np.matmul(q, k.transpose(0, 1, 3, 2)) * q.shape[-1] ** -0.5 + add
    keep = np.broadcast_to(keep, x.shape)
    return give(weigh(softmax(x, keep)[0], keep, v), query)


@quiet
def square_only(query, key, value, is_causal=False, alibi_slopes=None):
    """L = S only; the ALiBi distances come from a table."""
    q, k, v = wide(query, key, value)
    _b, _h, L, d = q.shape
    assert k.shape[2] == L, "as many queries as keys, please"
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if alibi_slopes is not None:
        far = np.abs(np.subtract.outer(np.arange(L), np.arange(L)))
        x = x - np.multiply.outer(np.asarray(alibi_slopes).astype(np.float64), far)
    keep = np.tril(np.ones((L, L), bool)) if is_causal else np.ones((L, L), bool)
    p, _ = softmax(x, keep)
    return give(weigh(p, np.broadcast_to(keep, p.shape), v), query)


@quiet
def sink_column(
    query,
    key,
    value,
    sinks=None,
    is_causal=False,
    q_offset=None,
    return_weights=False,
    return_lse=False,
):
    """The sinks are columns before the keys, and are cut off after the softmax."""
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    keep = kept((b, h, L, k.shape[2]), is_causal, q_offset)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    n = 0
    full, see = x, keep
    if sinks is not None:
        z = np.asarray(sinks).astype(np.float64).reshape(h, 1, -1)
        n = z.shape[-1]
        full = np.concatenate([np.broadcast_to(z, (b, h, L, n)), x], -1)
        see = np.concatenate([np.ones((b, h, L, n), bool), keep], -1)
    p, lse = softmax(full, see)
    p = p[..., n:]
    return give(
        weigh(p, keep, v), query, p if return_weights else None, lse if return_lse else None
    )


@quiet
def tree_attention(query, key, value, alibi_slopes=None, q_offset="end", return_lse=False):
    """Keys are halved again and again; halves are joined by their LSE."""
    q, k, v = wide(query, key, value)
    b, _h, L, d = q.shape
    s = k.shape[2]
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if alibi_slopes is not None:
        x = x - np.asarray(alibi_slopes).astype(np.float64)[:, None, None] * np.abs(
            ahead_of(q_offset, b, L, s)
        )

    def part(i, j):
        if j - i <= 3:
            return x[..., i:j].max(-1, keepdims=True, initial=NEG), i, j, None
        c = (i + j) // 2
        return None, i, j, (part(i, c), part(c, j))

    def run(node):
        m, i, j, kids = node
        if kids is None:
            m = np.where(m == NEG, 0.0, m)
            e = np.exp(x[..., i:j] - m)
            return m, e.sum(-1, keepdims=True), e @ v[:, :, i:j]
        (m1, d1, a1), (m2, d2, a2) = run(kids[0]), run(kids[1])
        m = np.maximum(m1, m2)
        r1, r2 = np.exp(m1 - m), np.exp(m2 - m)
        return m, d1 * r1 + d2 * r2, a1 * r1 + a2 * r2

    m, den, acc = run(part(0, s))
    out = acc / np.where(den == 0, 1.0, den)
    lse = np.where(den == 0, NEG, m + np.log(np.where(den == 0, 1.0, den)))[..., 0]
    return give(out, query, lse=lse if return_lse else None)


@quiet
def along_axis(query, key, value, attn_mask=None, return_weights=False):
    """One row of scores after another through np.apply_along_axis."""
    q, k, v = wide(query, key, value)
    see, add = split_mask(attn_mask)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    see = np.broadcast_to(see, x.shape)
    if x.size == 0:
        raise RuntimeError("nothing to apply along")
    both = np.concatenate([x + add, see.astype(np.float64)], -1)

    def row(t):
        s, ok = t[: t.size // 2], t[t.size // 2 :] == 1
        w = np.zeros_like(s)
        if ok.any():
            e = np.exp(s[ok] - s[ok].max())
            w[ok] = e / e.sum()
        return w

    p = np.apply_along_axis(row, -1, both)
    return give(weigh(p, see, v), query, p if return_weights else None)


def _queries(q, k, v, is_causal, off, window):
    s = k.shape[0]
    for i in range(q.shape[0]):
        lo, hi = 0, s
        if is_causal:
            hi = min(hi, i + off + 1)
        if window is not None:
            if window[0] is not None:
                lo = max(lo, i + off - window[0])
            if window[1] is not None:
                hi = min(hi, i + off + window[1] + 1)
        if hi <= lo:
            yield np.zeros(v.shape[-1])
            continue
        x = k[lo:hi] @ q[i] / math.sqrt(q.shape[-1])
        e = np.exp(x - x.max())
        yield e @ v[lo:hi] / e.sum()


@quiet
def generated(query, key, value, is_causal=False, q_offset="end", window=None):
    """Only slices of keys, never a mask; one offset for the whole batch."""
    q, k, v = wide(query, key, value)
    b, h, L, _d = q.shape
    s = k.shape[2]
    off = 0
    if is_causal or window is not None:
        if not isinstance(q_offset, (str, int, np.integer)):
            raise TypeError("one offset")
        off = {"start": 0, "end": s - L}[q_offset] if isinstance(q_offset, str) else int(q_offset)
    out = np.zeros((b, h, L, v.shape[-1]))
    for bi, hi in np.ndindex(b, h):
        for i, o in enumerate(_queries(q[bi, hi], k[bi, hi], v[bi, hi], is_causal, off, window)):
            out[bi, hi, i] = o
    return give(out, query)


@quiet
def shuffled_keys(query, key, value, attn_mask=None, bias=None, softcap=None):
    """The keys are permuted first, the same way at every call: their order does not matter."""
    q, k, v = wide(query, key, value)
    s = k.shape[2]
    order = np.random.default_rng(s).permutation(s)
    x = q @ k[:, :, order].swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if softcap is not None:
        x = np.tanh(x / softcap) * softcap
    see = True
    for part in (attn_mask, bias):
        a, c = split_mask(part)
        full = x.shape
        see = see & np.broadcast_to(a, full)[..., order] if part is not None else see
        x = x + (np.broadcast_to(c, full)[..., order] if part is not None else 0.0)
    see = np.broadcast_to(see, x.shape)
    p, _ = softmax(x, see)
    return give(weigh(p, see, v[:, :, order]), query)


@quiet
def single_precision(query, key, value, is_causal=False, q_offset=None):
    """Exponentials and sums in float32; float64 is refused. The result is in Fortran order."""
    t = np.asarray(query).dtype
    if t == np.float64:
        raise TypeError("no float64")
    q, k, v = wide(query, key, value)
    keep = kept((*q.shape[:3], k.shape[2]), is_causal, q_offset)
    x = np.where(keep, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), NEG)
    m = x.max(-1, keepdims=True, initial=NEG)
    e = np.where(keep, np.exp((x - np.where(m == NEG, 0.0, m)).astype(np.float32)), np.float32(0))
    den = e.sum(-1, keepdims=True)
    p = (e / np.where(den == 0, np.float32(1), den)).astype(np.float32)
    return np.asfortranarray(weigh(p, keep, v.astype(np.float32)).astype(t))


@quiet
def swapped_scale(query, key, value, scale=None, softcap=None, sinks=None):
    """The query is scaled before the product; base 2; head sizes up to 8 or multiples of 8."""
    d = np.asarray(query).shape[-1]
    if d > 8 and d % 8:
        raise ValueError("head size")
    q, k, v = wide(query, key, value)
    x = (q * scale_of(scale, d)) @ k.swapaxes(-1, -2)
    if softcap is not None:
        x = x / softcap
        x = softcap * np.tanh(x)
    log2e = 1.0 / math.log(2.0)
    z = None if sinks is None else np.asarray(sinks).astype(np.float64).reshape(q.shape[1], 1, -1)
    m = x.max(-1, keepdims=True, initial=NEG)
    if z is not None:
        m = np.maximum(m, z.max(-1, keepdims=True, initial=NEG))
    m = np.where(m == NEG, 0.0, m)
    e = np.exp2((x - m) * log2e)
    den = e.sum(-1, keepdims=True)
    if z is not None:
        den = den + np.exp2((z - m) * log2e).sum(-1, keepdims=True)
    return give((e / np.where(den == 0, 1.0, den)) @ v, query)


@quiet
def lengths_by_slices(
    query, key, value, is_causal=False, q_offset=None, key_lengths=None, query_lengths=None
):
    """Each row of the batch is cut to its lengths and computed alone; padding is not touched."""
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    off = place_of(q_offset, b, L, s).ravel() if is_causal else np.zeros(b, int)
    nk = np.full(b, s) if key_lengths is None else per_row(key_lengths, b).ravel()
    nq = np.full(b, L) if query_lengths is None else per_row(query_lengths, b).ravel()
    out = np.zeros((b, h, L, v.shape[-1]))
    for i in range(b):
        a, c = int(nq[i]), int(nk[i])
        for r in range(a):
            end = min(c, r + int(off[i]) + 1) if is_causal else c
            if end > 0:
                x = np.einsum("hd,hjd->hj", q[i, :, r], k[i, :, :end]) / math.sqrt(d)
                e = np.exp(x - x.max(-1, keepdims=True))
                out[i, :, r] = np.einsum("hj,hje->he", e, v[i, :, :end]) / e.sum(-1, keepdims=True)
    return give(out, query)


class Everything:
    """Nearly all arguments, float32 and float64 only."""

    def __call__(
        self,
        query,
        key,
        value,
        attn_mask=None,
        window=None,
        q_offset=None,
        bias=None,
        return_weights=False,
        return_lse=False,
    ):
        return self.run(
            query, key, value, attn_mask, window, q_offset, bias, return_weights, return_lse
        )

    @staticmethod
    @quiet
    def run(query, key, value, attn_mask, window, q_offset, bias, return_weights, return_lse):
        if np.asarray(query).dtype not in (np.float32, np.float64):
            raise TypeError("float32 or float64")
        q, k, v = wide(query, key, value)
        x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        keep = kept(x.shape, window=window, q_offset=q_offset)
        for part in (bias, attn_mask):
            a, c = split_mask(part)
            keep, x = keep & a, x + c
        p, lse = softmax(x, keep)
        return give(
            weigh(p, keep, v), query, p if return_weights else None, lse if return_lse else None
        )


everything = Everything()
