"""The second trial: correct kernels in other styles, as in `second_arithmetic`."""

import functools
import itertools
import math

import numpy as np

from .second_arithmetic import backward, bias_flat, forward
from .second_arithmetic_pieces import (
    F8,
    LN2,
    LOG2E,
    causal_rows,
    dims,
    everything,
    heads,
    merge_parts,
    offset_rows,
    pack_up,
    pv,
    qk,
    softmax_rows,
    split_mask,
)

try:
    import torch
except ImportError:
    torch = None


def python_loops(query, key, value, attn_mask=None, scale=None):
    B, H, Hk, L, S, d, dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else float(scale)
    out = np.zeros((B, H, L, dv), query.dtype)
    if attn_mask is not None:
        attn_mask = np.asarray(attn_mask)
        if attn_mask.dtype.kind in "iu":
            raise TypeError("bool or float mask, please")
        attn_mask = np.broadcast_to(attn_mask, (B, H, L, S))
    for b in range(B):
        for h in range(H):
            k = key[b, h * Hk // H].astype(float)
            v = value[b, h * Hk // H].astype(float)
            for i in range(L):
                q = query[b, h, i].astype(float)
                row = None if attn_mask is None else attn_mask[b, h, i]
                seen = [
                    j
                    for j in range(S)
                    if row is None or (row[j] if row.dtype == bool else row[j] != -np.inf)
                ]
                if not seen:
                    continue
                with np.errstate(all="ignore"):
                    s = k[seen] @ q * scale
                    if row is not None and row.dtype != bool:
                        s = s + row[seen].astype(float)
                    s = s.tolist()
                if any(math.isnan(x) for x in s) or math.inf in s:
                    out[b, h, i] = np.nan
                    continue
                top = max(s)
                if top == -math.inf:
                    out[b, h, i] = np.nan
                    continue
                e = [math.exp(x - top) for x in s]
                total = math.fsum(e)
                acc = np.zeros(dv)
                with np.errstate(all="ignore"):
                    for x, j in zip(e, seen, strict=False):
                        acc = acc + (x / total) * v[j]
                    out[b, h, i] = acc
    return out


def logaddexp(query, key, value, bias=None, return_weights=False, return_lse=False):
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    vis, add = split_mask(bias)
    vis = everything(B, H, L, S, vis)
    with np.errstate(all="ignore"):
        s = qk(query, key) / np.sqrt(d)
        if add is not None:
            s = s + add
        s = np.where(vis, s, -np.inf)
        lse = np.logaddexp.reduce(s, axis=-1) if S else np.full((B, H, L), -np.inf)
        w = np.where(vis, np.exp(s - np.where(lse == -np.inf, 0.0, lse)[..., None]), 0.0)
    return pack_up(query, pv(w, heads(value, H), vis), w, lse, return_weights, return_lse)


def torch_module(query, key, value, scale=None, is_causal=False):
    """torch.nn.functional in double; L = S for causal, finite numbers, some keys."""
    _B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    if is_causal and L != S:
        raise NotImplementedError("causal wants L = S")
    if S == 0 or d == 0:
        raise NotImplementedError("no keys")
    t = [
        torch.from_numpy(np.ascontiguousarray(x, dtype=F8))
        for x in (query, heads(key, H), heads(value, H))
    ]
    if not all(bool(torch.isfinite(x).all()) for x in t):
        raise ValueError("finite numbers only")
    with torch.no_grad():
        s = torch.einsum("bhld,bhsd->bhls", t[0], t[1]) * (
            d**-0.5 if scale is None else float(scale)
        )
        if is_causal:
            s = s.masked_fill(~torch.ones(L, S, dtype=torch.bool).tril(), float("-inf"))
        out = torch.softmax(s, dim=-1) @ t[2]
    return out.numpy().astype(query.dtype)


def tiles_from_the_right(
    query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else scale
    vis = everything(B, H, L, S, causal_rows(q_offset, B, L, S) if is_causal else None)
    q, k, v = query.astype(F8), heads(key, H), heads(value, H)
    m = np.full((B, H, L, 1), -np.inf)
    total, acc = np.zeros((B, H, L, 1)), np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in reversed(range(0, S, 5)):
            seen = vis[..., j : j + 5]
            t = np.where(seen, q @ np.swapaxes(k[:, :, j : j + 5], -1, -2) * scale, -np.inf)
            new = np.maximum(m, t.max(-1, keepdims=True))
            safe = np.where(new == -np.inf, 0.0, new)  # for this subtraction only
            p = np.where(seen, np.exp(t - safe), 0.0)
            r = np.exp(m - safe)
            total, acc, m = (
                total * r + p.sum(-1, keepdims=True),
                acc * r + pv(p, v[:, :, j : j + 5], seen),
                new,
            )
        lse = np.where(total == 0, -np.inf, m + np.log(np.where(total == 0, 1.0, total)))[..., 0]
        out = acc / np.where(total == 0, 1.0, total)
    return pack_up(query, out, None, lse, False, return_lse)


def window_exp2(q, k, v, window=None, q_offset=None, is_causal=False):
    B, H, _Hk, L, S, d, _dv = dims(q, k, v)
    vis = everything(B, H, L, S)
    if window is not None or is_causal:
        place = np.arange(L)[None, :, None] + offset_rows(q_offset, B, L, S)[:, None, None]
        j = np.arange(S)[None, None, :]
        if is_causal:
            vis &= (j <= place)[:, None]
        if window is not None:
            left, right = window
            if left is not None:
                vis &= (j >= place - left)[:, None]
            if right is not None:
                vis &= (j <= place + right)[:, None]
    with np.errstate(all="ignore"):
        z = np.where(vis, qk(q, k) * (LOG2E / math.sqrt(d)), -np.inf)
        top = z.max(-1, keepdims=True, initial=-np.inf)
        p = np.where(vis, np.exp2(z - np.where(top == -np.inf, 0.0, top)), 0.0)
        total = p.sum(-1, keepdims=True)
        return (pv(p, heads(v, H), vis) / np.where(total == 0, 1.0, total)).astype(q.dtype)


def _one_head(q, k, v, scale):
    q, k, v = (np.asarray(x, F8) for x in (q, k, v))
    s = q @ k.T * scale
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


_many_heads = np.vectorize(_one_head, signature="(total,d),(s,d),(s,v),()->(total,v)")


def vectorize(query, key, value, scale=None):
    """Equal numbers of heads, at least one of everything."""
    if key.shape[1] != query.shape[1]:
        raise NotImplementedError("one key head for each query head")
    dims(query, key, value)
    if 0 in key.shape:
        raise ValueError("empty")
    with np.errstate(all="ignore"):
        return _many_heads(
            query, key, value, query.shape[-1] ** -0.5 if scale is None else scale
        ).astype(query.dtype)


bias_partial = functools.partial(bias_flat, arrange=lambda x, H: np.repeat(x, H, axis=0))


class _Packed:
    """Keeps rows as (B, T, heads * size) and cuts them open only for the products."""

    def pack(self, x):
        B, H, T, n = x.shape
        return x.transpose(0, 2, 1, 3).reshape(B, T, H * n)

    def head(self, packed, h, n):
        return packed[..., h * n : (h + 1) * n].astype(F8)

    def __call__(self, query, key, value, attn_mask=None, scale=None):
        B, H, Hk, L, S, d, dv = dims(query, key, value)
        scale = d**-0.5 if scale is None else scale
        pq, pk, pv_ = self.pack(query), self.pack(key), self.pack(value)
        vis, add = split_mask(attn_mask)
        vis = everything(B, H, L, S, vis)
        if add is not None:
            add = np.broadcast_to(add, (B, H, L, S))
        rows = np.zeros((B, L, H * dv), query.dtype)
        for h in range(H):
            g = h // (H // Hk)
            with np.errstate(all="ignore"):
                s = self.head(pq, h, d) @ self.head(pk, g, d).transpose(0, 2, 1) * scale
                if add is not None:
                    s = s + add[:, h]
                w, _ = softmax_rows(s, vis[:, h])
                o = pv(w[:, None], self.head(pv_, g, dv)[:, None], vis[:, h : h + 1])[:, 0]
                rows[..., h * dv : (h + 1) * dv] = o.astype(query.dtype)
        return np.ascontiguousarray(rows.reshape(B, L, H, dv).transpose(0, 2, 1, 3))


packed_rows = _Packed()


def strict_shapes(query, key, value, scale=None, is_causal=False):
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    if d % 8 or d == 0 or dv != d or L != S or not L or not B:
        raise AssertionError("head size a multiple of 8, L = S, dv = d")
    order = np.tri(L, dtype=bool) if is_causal else np.ones((L, L), bool)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    vis = everything(B, H, L, S, order)
    w, _ = softmax_rows(s, vis)
    return pv(w, heads(value, H), vis).astype(query.dtype)


def grouped_einsum(query, key, value, softcap=None, scale=None):
    B, H, Hk, L, S, d, dv = dims(query, key, value)
    q = query.reshape(B, Hk, H // Hk, L, d).astype(F8)
    with np.errstate(all="ignore"):
        x = np.einsum("bkgld,bksd->bkgls", q, key.astype(F8)) * (
            d**-0.5 if scale is None else scale
        )
        if softcap:
            x = softcap * np.tanh(x / softcap)
        if S == 0:
            return np.zeros((B, H, L, dv), query.dtype)
        e = np.exp(x - x.max(-1, keepdims=True))
        o = np.einsum("bkgls,bksv->bkglv", e / e.sum(-1, keepdims=True), value.astype(F8))
        return o.reshape(B, H, L, dv).astype(query.dtype)


def with_weights(query, key, value, attn_mask=None, return_weights=False):
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    s = qk(query, key) / math.sqrt(d)
    w, _ = softmax_rows(s if add is None else s + add, vis)
    return pack_up(query, pv(w, heads(value, H), vis), w, None, return_weights, False)


def splits_and_sinks(query, key, value, sinks=None, scale=None, return_lse=False):
    """Three uneven splits of the keys; the sinks are one more part that gives no value."""
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    v = heads(value, H)
    edges = [0, S // 7, S // 2 + S % 2, S]
    parts = []
    for lo, hi in itertools.pairwise(edges):
        w, lse = softmax_rows(s[..., lo:hi], np.ones(s[..., lo:hi].shape, bool))
        with np.errstate(all="ignore"):
            parts.append((w @ v[:, :, lo:hi], lse))
    if sinks is not None:
        sk = np.asarray(sinks, F8).reshape(H, -1)
        lse = np.logaddexp.reduce(sk, axis=-1)[None, :, None]
        parts.append((np.zeros((B, H, L, dv)), np.broadcast_to(lse, (B, H, L))))
    out, lse = merge_parts(parts)
    return pack_up(query, out, None, lse, False, return_lse)


def centred_keys(query, key, value, scale=None, return_lse=False):
    _B, H, _Hk, _L, S, d, _dv = dims(query, key, value)
    if S == 0 or not (np.isfinite(key.astype(F8)).all() and np.isfinite(query.astype(F8)).all()):
        raise ValueError("finite keys, at least one")
    scale = d**-0.5 if scale is None else scale
    k = heads(key, H)
    mean = k.mean(axis=2, keepdims=True)
    q = query.astype(F8)
    s = q @ np.swapaxes(k - mean, -1, -2) * scale
    shift = (q @ np.swapaxes(mean, -1, -2))[..., 0] * scale
    w, lse = softmax_rows(s, np.ones(s.shape, bool))
    return pack_up(query, w @ heads(value, H), None, lse + shift, False, return_lse)


def with_gradient(query, key, value, scale=None, softcap=None):
    w, _ = forward(query, key, value, scale, softcap)
    return (w @ heads(value, query.shape[1])).astype(query.dtype)


def with_gradient_backward(query, key, value, grad_out, scale=None, softcap=None):
    return backward(query, key, value, grad_out, scale, softcap)


def decode_path(query, key, value, key_lengths=None, scale=None):
    B, H, Hk, L, S, d, dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else scale
    have = np.broadcast_to(np.asarray(S if key_lengths is None else key_lengths), (B,))
    if (have < 0).any() or (have > S).any():
        raise ValueError("0 <= key_lengths <= S")
    out = np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for b, n in enumerate(have.tolist()):
            if n == 0:
                continue
            k, v = np.asarray(key[b, :, :n], F8), np.asarray(value[b, :, :n], F8)
            if L == 1:  # all queries of a group at once
                q = query[b, :, 0].reshape(Hk, H // Hk, d).astype(F8)
                s = q @ k.transpose(0, 2, 1) * scale
                e = np.exp(s - s.max(-1, keepdims=True))
                out[b, :, 0] = ((e @ v) / e.sum(-1, keepdims=True)).reshape(H, dv)
            else:
                for h in range(H):
                    s = query[b, h].astype(F8) @ k[h * Hk // H].T * scale
                    e = np.exp(s - s.max(-1, keepdims=True))
                    out[b, h] = (e @ v[h * Hk // H]) / e.sum(-1, keepdims=True)
        return out.astype(query.dtype)


def slices_only(
    query, key, value, query_lengths=None, key_lengths=None, is_causal=False, q_offset=None
):
    """Never touches what lies beyond a row's lengths."""
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    ql = np.broadcast_to(L if query_lengths is None else query_lengths, (B,))
    kl = np.broadcast_to(S if key_lengths is None else key_lengths, (B,))
    off = offset_rows(q_offset, B, L, S) if is_causal else [0] * B
    out = np.zeros((B, H, L, dv), query.dtype)
    for b in range(B):
        nq, nk = int(ql[b]), int(kl[b])
        if nk == 0 or nq == 0:
            continue
        q, k, v = query[b : b + 1, :, :nq], key[b : b + 1, :, :nk], value[b : b + 1, :, :nk]
        vis = np.ones((1, H, nq, nk), bool)
        if is_causal:
            vis &= np.arange(nk)[None, :] <= np.arange(nq)[:, None] + int(off[b])
        w, _ = softmax_rows(qk(q, k) * d**-0.5, vis)
        with np.errstate(all="ignore"):
            out[b : b + 1, :, :nq] = pv(w, heads(v, H), vis).astype(query.dtype)
    return out


def alibi(query, key, value, alibi_slopes=None, is_causal=False, q_offset=None):
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    s = qk(query, key) * d**-0.5
    vis = everything(B, H, L, S, causal_rows(q_offset, B, L, S) if is_causal else None)
    if alibi_slopes is not None:
        place = np.arange(L)[None, :, None] + offset_rows(q_offset, B, L, S)[:, None, None]
        far = np.abs(place - np.arange(S))[:, None]
        s = s - np.asarray(alibi_slopes, F8)[None, :, None, None] * far
    w, _ = softmax_rows(s, vis)
    return pv(w, heads(value, H), vis).astype(query.dtype)


def scale_on_both_sides(query, key, value, scale=None, bias=None):
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    root = math.sqrt(d**-0.5 if scale is None else scale)  # ValueError for a negative one
    vis, add = split_mask(bias)
    vis = everything(B, H, L, S, vis)
    with np.errstate(all="ignore"):
        s = (query.astype(F8) * root) @ np.swapaxes(heads(key, H) * root, -1, -2)
        if add is not None:
            s = s + add
    w, _ = softmax_rows(s, vis)
    return pv(w, heads(value, H), vis).astype(query.dtype)


def takes_no_more(query, key, value, *, scale=None, **more):
    if more:
        raise NotImplementedError("not here: " + ", ".join(sorted(more)))
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    if S == 0:
        return np.zeros((B, H, L, dv), query.dtype)
    with np.errstate(all="ignore"):
        s = qk(query, key) * (d**-0.5 if scale is None else scale)
        top = np.sort(s, axis=-1)[..., -1:]  # the maximum, NaN last
        e = np.exp(s - top)
        return ((e @ heads(value, H)) / np.einsum("...s->...", e)[..., None]).astype(query.dtype)


def lazy_rescale(query, key, value, scale=None, attn_mask=None, return_lse=False):
    """As flash-attention 4 does it: the maximum may lag by 8 in base 2, everything in one frame."""
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    with np.errstate(all="ignore"):
        z = qk(query, key) * (d**-0.5 if scale is None else scale)
        z = (z if add is None else z + add) * LOG2E
        v = heads(value, H)
        m = np.full((B, H, L, 1), -np.inf)
        total, acc = np.zeros((B, H, L, 1)), np.zeros((B, H, L, dv))
        for j in range(0, S, 8):
            seen = vis[..., j : j + 8]
            t = np.where(seen, z[..., j : j + 8], -np.inf)
            new = np.maximum(m, t.max(-1, keepdims=True))
            new = np.where(new - m <= 8.0, m, new)
            safe = np.where(new == -np.inf, 0.0, new)
            p = np.where(seen, np.exp2(t - safe), 0.0)
            r = np.exp2(m - safe)
            total, acc, m = (
                total * r + p.sum(-1, keepdims=True),
                acc * r + pv(p, v[:, :, j : j + 8], seen),
                new,
            )
        lse = np.where(total == 0, -np.inf, (m + np.log2(np.where(total == 0, 1.0, total))) * LN2)[
            ..., 0
        ]
        out = acc / np.where(total == 0, 1.0, total)
    return pack_up(query, out, None, lse, False, return_lse)
