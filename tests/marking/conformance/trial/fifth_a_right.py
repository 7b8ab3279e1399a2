"""The fifth trial, first writer: correct kernels in unusual styles."""

import functools
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .fifth_a_pieces import (
    NINF,
    Call,
    flash,
    joined,
    mixed,
    quiet,
    softmax,
)


@quiet
def log_space_everything(
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
    """Sums by np.logaddexp.reduce; weights are exp(score - lse)."""
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        q_offset,
        window,
        bias,
        alibi_slopes,
        softcap,
        sinks,
        scale,
        query_lengths,
        key_lengths,
    )
    out, lse = c.blank()
    w = np.zeros((c.B, c.H, c.L, c.S))
    for b, h in c.heads():
        s = c.scores(b, h)
        row = np.logaddexp.reduce(s, axis=1, initial=NINF)
        for x in c.sink(h):
            row = np.logaddexp(row, x)
        lse[b, h] = row
        w[b, h] = np.where(c.vis[b, h], np.exp(s - row[:, None]), 0.0)
        out[b, h] = c.mix(w[b, h], b, h)
    return c.emit(out, lse, w, return_weights, return_lse)


@quiet
def base_two_tiles(
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
    """exp2 with log2(e) folded into the scores after the softcap."""
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        q_offset,
        window,
        softcap=softcap,
        sinks=sinks,
        scale=scale,
        key_lengths=key_lengths,
    )
    e2 = math.log2(math.e)
    out, lse = c.blank()
    for b, h in c.heads():
        m, sums, acc = np.full(c.L, NINF), np.zeros(c.L), np.zeros((c.L, c.dv))
        if len(c.sink(h)):
            m[:] = c.sink(h).max() * e2
            sums[:] = np.exp2(c.sink(h) * e2 - m[0] if c.L else 0.0).sum()
        for j in range(0, c.S, 13):
            cols = slice(j, min(c.S, j + 13))
            s = c.scores(b, h, cols=cols) * e2
            new = np.maximum(m, s.max(axis=1))
            base = np.where(new == NINF, 0.0, new)
            p, keep = np.exp2(s - base[:, None]), np.exp2(m - base)
            sums, acc, m = (
                sums * keep + p.sum(axis=1),
                acc * keep[:, None] + c.mix(p, b, h, cols=cols),
                new,
            )
        none = sums == 0
        out[b, h] = acc / np.where(none, 1.0, sums)[:, None]
        lse[b, h] = np.where(none, NINF, (np.log2(sums) + np.where(none, 0.0, m)) / e2)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def halving_recursion(
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
    """Cuts the keys in halves until five are left, and joins on the way back."""
    c = Call(query, key, value, attn_mask, is_causal, q_offset, bias=bias, scale=scale)

    def part(b, h, lo, hi):
        if hi - lo > 5:
            mid = (lo + hi) // 2
            return joined([part(b, h, lo, mid), part(b, h, mid, hi)])
        cols = slice(lo, hi)
        w, sums = softmax(c.scores(b, h, cols=cols))
        return c.mix(w, b, h, cols=cols), sums

    out, lse = c.blank()
    for b, h in c.heads():
        out[b, h], lse[b, h] = part(b, h, 0, c.S)
    return c.emit(out, lse, return_lse=return_lse)


class Attender:
    """An object that is called; its block sizes are its state."""

    def __init__(self, rows, cols):
        self.rows, self.cols = rows, cols

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
        alibi_slopes=None,
        softcap=None,
        sinks=None,
        scale=None,
        return_weights=False,
        return_lse=False,
    ):
        c = Call(
            query,
            key,
            value,
            attn_mask,
            is_causal,
            q_offset,
            window,
            None,
            alibi_slopes,
            softcap,
            sinks,
            scale,
        )
        out, lse = flash(c, self.rows, self.cols)
        return c.emit(out, lse, None, return_weights, return_lse)


attender_object = Attender(5, 11)


@quiet
def _any_block(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    bias=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_lse=False,
    *,
    block,
):
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        q_offset,
        window,
        bias,
        scale=scale,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
    )
    out, lse = flash(c, block, block)
    return c.emit(out, lse, return_lse=return_lse)


partial_block_seven = functools.partial(_any_block, block=7)


@quiet
def two_passes(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    window=None,
    bias=None,
    alibi_slopes=None,
    softcap=None,
    scale=None,
    return_weights=False,
    return_lse=False,
):
    """One pass for maximum and sum, one for the weighted values."""
    c = Call(
        query,
        key,
        value,
        None,
        is_causal,
        q_offset,
        window,
        bias,
        alibi_slopes,
        softcap,
        None,
        scale,
    )
    out, lse = c.blank()
    spans = [slice(j, min(c.S, j + 9)) for j in range(0, c.S, 9)]
    for b, h in c.heads():
        m = np.full(c.L, NINF)
        for cols in spans:
            m = np.maximum(m, c.scores(b, h, cols=cols).max(axis=1))
        base = np.where(m == NINF, 0.0, m)
        sums = np.zeros(c.L)
        for cols in spans:
            sums += np.exp(c.scores(b, h, cols=cols) - base[:, None]).sum(axis=1)
        inverse = np.where(sums == 0, 0.0, 1.0 / np.where(sums == 0, 1.0, sums))
        for cols in spans:
            out[b, h] += c.mix(
                np.exp(c.scores(b, h, cols=cols) - base[:, None]) * inverse[:, None],
                b,
                h,
                cols=cols,
            )
        lse[b, h] = np.where(sums == 0, NINF, np.log(sums) + base)
    return c.emit(out, lse, None, return_weights, return_lse)


@quiet
def gather_visible_rows(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    bias=None,
    softcap=None,
    scale=None,
    query_lengths=None,
    key_lengths=None,
    return_lse=False,
):
    """Row by row; only the visible keys are ever looked at."""
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        q_offset,
        window,
        bias,
        None,
        softcap,
        None,
        scale,
        query_lengths,
        key_lengths,
    )
    out, lse = c.blank()
    for b, h in c.heads():
        kv = h // c.G
        for i in range(c.L):
            seen = np.flatnonzero(c.vis[b, h, i])
            if not len(seen):
                continue
            s = c.cap(c.k[b, kv, seen] @ c.q[b, h, i] * c.scale)
            if c.add is not None:
                s = s + c.add[b, h, i, seen]
            top = s.max()
            e = np.exp(s - top)
            out[b, h, i] = e @ c.v[b, kv, seen] / e.sum()
            lse[b, h, i] = top + np.log(e.sum())
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def backwards_over_keys(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset="end",
    window=None,
    sinks=None,
    scale=None,
    return_lse=False,
):
    """Last tile of keys first. By default, the queries are the last ones: q_offset="end"."""
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        "end" if q_offset is None else q_offset,
        window,
        sinks=sinks,
        scale=scale,
    )
    out, lse = flash(c, 16, 6, lambda i0, i1, b: range(c.S - (c.S % 6 or 6), -1, -6) if c.S else ())
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def decode_only(
    query,
    key,
    value,
    attn_mask=None,
    alibi_slopes=None,
    q_offset=None,
    softcap=None,
    sinks=None,
    scale=None,
    key_lengths=None,
    return_lse=False,
):
    """One query a head. More are refused."""
    if np.shape(query)[2] != 1:
        raise NotImplementedError(f"a decoding kernel: one query, not {np.shape(query)[2]}")
    c = Call(
        query,
        key,
        value,
        attn_mask,
        False,
        q_offset,
        None,
        None,
        alibi_slopes,
        softcap,
        sinks,
        scale,
        None,
        key_lengths,
    )
    out, lse = c.blank()
    step = max(1, -(-c.S // 3))
    for b, h in c.heads():
        parts = [(np.zeros((1, c.dv)), np.logaddexp.reduce(c.sink(h), initial=NINF).reshape(1))]
        for j in range(0, c.S, step):
            cols = slice(j, min(c.S, j + step))
            w, sums = softmax(c.scores(b, h, cols=cols))
            parts.append((c.mix(w, b, h, cols=cols), sums))
        out[b, h], lse[b, h] = joined(parts)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def picky_head_sizes(
    query, key, value, is_causal=False, q_offset=None, scale=None, return_lse=False
):
    """Head sizes are multiples of eight up to 128, the same for values."""
    query, key, value = map(np.asarray, (query, key, value))
    d, dv = query.shape[-1], value.shape[-1]
    if d % 8 or d > 128 or dv != d:
        raise ValueError(
            f"head sizes {d} and {dv} are not supported: give equal multiples of 8 up to 128"
        )
    c = Call(query, key, value, is_causal=is_causal, q_offset=q_offset, scale=scale)
    halves = np.split(np.arange(d), range(8, d, 8))
    out, lse = c.blank()
    for b, h in c.heads():
        s = np.zeros((c.L, c.S))
        for part in halves:
            s += c.q[b, h][:, part] @ (c.k[b, h // c.G][:, part] * c.scale).T
        w, lse[b, h] = softmax(np.where(c.vis[b, h], s, NINF))
        out[b, h] = c.mix(w, b, h)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def square_only(
    query,
    key,
    value,
    is_causal=False,
    alibi_slopes=None,
    window=None,
    scale=None,
    return_weights=False,
):
    """As many keys as queries, one key head a query head; anything else is refused."""
    query, key = np.asarray(query), np.asarray(key)
    if query.shape[2] != key.shape[2]:
        raise NotImplementedError(f"L = {query.shape[2]} and S = {key.shape[2]}: only L = S here")
    if query.shape[1] != key.shape[1]:
        raise NotImplementedError("no grouped heads here")
    c = Call(
        query,
        key,
        value,
        is_causal=is_causal,
        alibi_slopes=alibi_slopes,
        window=window,
        scale=scale,
    )
    s = np.einsum("bhid,bhjd->bhij", c.q, c.k, optimize=False) * c.scale
    if c.add is not None:
        s = s + c.add
    s = np.where(c.vis, s, NINF)
    top = s.max(axis=-1, keepdims=True, initial=NINF)
    e = np.exp(s - np.where(top == NINF, 0.0, top))
    total = e.sum(axis=-1, keepdims=True)
    w = e / np.where(total == 0, 1.0, total)
    out = np.zeros((c.B, c.H, c.L, c.dv))
    for b, h in c.heads():
        out[b, h] = c.mix(w[b, h], b, h)
    return c.emit(out, None, w, return_weights)


@quiet
def horner_blocks(
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
    """acc = acc * ratio + block; a column of ones beside v gives the sum."""
    c = Call(query, key, value, attn_mask, is_causal, q_offset, softcap=softcap, scale=scale)
    out, lse = c.blank()
    for b, h in c.heads():
        v1 = np.concatenate([c.v[b, h // c.G], np.ones((c.S, 1))], axis=1)
        m, acc = np.full(c.L, NINF), np.zeros((c.L, c.dv + 1))
        for j in range(0, c.S, 10):
            cols = slice(j, min(c.S, j + 10))
            s = c.scores(b, h, cols=cols)
            new = np.maximum(m, s.max(axis=1))
            base = np.where(new == NINF, 0.0, new)[:, None]
            acc = acc * np.exp(m[:, None] - base) + mixed(
                np.exp(s - base), v1[cols], c.vis[b, h][:, cols]
            )
            m = new
        total = acc[:, -1]
        none = total == 0
        out[b, h] = acc[:, :-1] / np.where(none, 1.0, total)[:, None]
        lse[b, h] = np.where(none, NINF, np.log(total) + np.where(none, 0.0, m))
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def heads_fold_into_rows(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    bias=None,
    scale=None,
    sinks=None,
    return_lse=False,
):
    """The G query heads of a key head are stacked as G * L rows of one product."""
    c = Call(query, key, value, attn_mask, is_causal, q_offset, bias=bias, sinks=sinks, scale=scale)
    fold = (c.B, c.Hkv, c.G * c.L)
    q = c.q.reshape(*fold, c.d)
    s = (q @ c.k.swapaxes(-1, -2)) * c.scale
    if c.add is not None:
        s = s + c.add.reshape(*fold, c.S)
    vis = c.vis.reshape(*fold, c.S)
    s = np.where(vis, s, NINF)
    out, lse = np.zeros((*fold, c.dv)), np.full(fold, NINF)
    for b in range(c.B):
        for g in range(c.Hkv):
            row_sink = (
                None
                if c.sinks is None
                else np.repeat(c.sinks[g * c.G : (g + 1) * c.G], c.L, axis=0)
            )
            both = s[b, g] if row_sink is None else np.concatenate([s[b, g], row_sink], axis=1)
            w, lse[b, g] = softmax(both)
            out[b, g] = mixed(w[:, : c.S], c.v[b, g], vis[b, g])
    return c.emit(
        out.reshape(c.B, c.H, c.L, c.dv), lse.reshape(c.B, c.H, c.L), return_lse=return_lse
    )


@quiet
def banded_by_strides(
    query, key, value, q_offset="start", window=None, scale=None, is_causal=False
):
    """A finite window is a band: keys are padded and read through sliding_window_view.
    q_offset is "start" where it is not given. A window open on a side is refused."""
    if window is None:
        raise NotImplementedError("a banded kernel: it needs a window")
    left, right = window
    if left is None or right is None:
        raise NotImplementedError("both sides of the window must be finite")
    if is_causal:
        right = 0
    c = Call(query, key, value, q_offset="start" if q_offset is None else q_offset, scale=scale)
    width = left + right + 1
    out, _ = c.blank()
    for b, h in c.heads():
        g, first = h // c.G, int(c.off[b]) - left
        index = first + np.arange(c.L + width - 1)
        inside = (index >= 0) & (index < c.S)
        safe = np.where(inside, index, 0)
        if not c.S or not c.L:
            continue
        kb = sliding_window_view(c.k[b, g][safe], width, axis=0)
        vb = sliding_window_view(c.v[b, g][safe], width, axis=0)
        ok = sliding_window_view(inside, width)
        s = np.where(ok, np.einsum("id,idw->iw", c.q[b, h], kb) * c.scale, NINF)
        w, _ = softmax(s)
        out[b, h] = np.einsum("iw,idw->id", w, np.where(ok[:, None, :], vb, 0.0))
    return c.emit(out)


def _closure(rows, cols):
    @quiet
    def closed_kernel(
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        q_offset=None,
        alibi_slopes=None,
        bias=None,
        scale=None,
        query_lengths=None,
        return_weights=False,
        return_lse=False,
    ):
        c = Call(
            query,
            key,
            value,
            attn_mask,
            is_causal,
            q_offset,
            None,
            bias,
            alibi_slopes,
            scale=scale,
            query_lengths=query_lengths,
        )
        out, lse = flash(c, rows, cols)
        return c.emit(out, lse, None, return_weights, return_lse)

    return closed_kernel


closure_three_by_four = _closure(3, 4)


@quiet
def smallest_first(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    softcap=None,
    sinks=None,
    scale=None,
    return_lse=False,
):
    """The keys of every row are sorted by score and summed from the smallest up."""
    c = Call(
        query, key, value, attn_mask, is_causal, q_offset, softcap=softcap, sinks=sinks, scale=scale
    )
    out, lse = c.blank()
    for b, h in c.heads():
        s, sink = c.scores(b, h), c.sink(h)
        for i in range(c.L):
            order = np.argsort(s[i], kind="stable")
            order = order[c.vis[b, h, i, order]]
            logits = np.concatenate([s[i, order], sink])
            if not len(logits):
                continue
            top = logits.max()
            e = np.exp(logits - top)
            total = math.fsum(e) if np.isfinite(e).all() else e.sum()
            lse[b, h, i] = top + np.log(total)
            out[b, h, i] = (e[: len(order), None] / total * c.v[b, h // c.G, order]).sum(axis=0)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def sideways(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset=None,
    window=None,
    scale=None,
    key_lengths=None,
    query_lengths=None,
    return_weights=False,
):
    """Keys down, queries across: softmax over the first axis of k @ q.T."""
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        q_offset,
        window,
        scale=scale,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
    )
    out, _ = c.blank()
    w = np.zeros((c.B, c.H, c.L, c.S))
    for b, h in c.heads():
        t = (c.k[b, h // c.G] * c.scale) @ c.q[b, h].T
        if c.add is not None:
            t = t + c.add[b, h].T
        t = np.where(c.vis[b, h].T, t, NINF)
        top = t.max(axis=0, initial=NINF)
        e = np.exp(t - np.where(top == NINF, 0.0, top))
        total = e.sum(axis=0)
        w[b, h] = (e / np.where(total == 0, 1.0, total)).T
        out[b, h] = c.mix(w[b, h], b, h)
    return c.emit(out, None, w, return_weights)


def _stream(c, b, h, size):
    for j in range(0, c.S, size):
        cols = slice(j, min(c.S, j + size))
        yield cols, c.scores(b, h, cols=cols)


@quiet
def streamed_by_generator(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    q_offset="start",
    window=None,
    bias=None,
    scale=None,
    **options,
):
    """A generator yields pieces of seven keys. q_offset is "start" where it is not given.
    The only options are return_lse and return_weights."""
    return_lse, return_weights = (
        options.pop("return_lse", False),
        options.pop("return_weights", False),
    )
    if options:
        raise TypeError(f"unknown options: {sorted(options)}")
    c = Call(
        query,
        key,
        value,
        attn_mask,
        is_causal,
        "start" if q_offset is None else q_offset,
        window,
        bias,
        scale=scale,
    )
    out, lse = c.blank()
    for b, h in c.heads():
        total = (out[b, h], lse[b, h])
        for cols, s in _stream(c, b, h, 7):
            w, sums = softmax(s)
            total = joined([total, (c.mix(w, b, h, cols=cols), sums)])
        out[b, h], lse[b, h] = total
    return c.emit(out, lse, None, return_weights, return_lse)


@quiet
def head_major_product(
    query,
    key,
    value,
    is_causal=False,
    q_offset=None,
    softcap=None,
    alibi_slopes=None,
    scale=None,
    return_lse=False,
):
    """sqrt(scale) on both sides of the product, heads first; a negative scale is refused."""
    c = Call(
        query, key, value, None, is_causal, q_offset, None, None, alibi_slopes, None, None, 1.0
    )
    factor = (1.0 / math.sqrt(c.d) if c.d else 1.0) if scale is None else scale
    if factor < 0:
        raise ValueError("a negative scale is not supported")
    root = math.sqrt(factor)
    out, lse = c.blank()
    kt = np.moveaxis(c.k * root, 1, 0)
    for h, qh in enumerate(np.moveaxis(c.q * root, 1, 0)):
        s = np.matmul(qh, kt[h // c.G].transpose(0, 2, 1))
        if softcap is not None:
            s = np.tanh(s * (1.0 / softcap)) * softcap
        if c.add is not None:
            s = s + c.add[:, h]
        s = np.where(c.vis[:, h], s, NINF)
        for b in range(c.B):
            w, lse[b, h] = softmax(s[b])
            out[b, h] = c.mix(w, b, h)
    return c.emit(out, lse, return_lse=return_lse)


@quiet
def half_gap_sums(
    query,
    key,
    value,
    attn_mask=None,
    bias=None,
    scale=None,
    softcap=None,
    key_lengths=None,
    return_lse=False,
):
    """Even keys and odd keys are two partial results, joined at the end."""
    c = Call(
        query,
        key,
        value,
        attn_mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        key_lengths=key_lengths,
    )
    out, lse = c.blank()
    for b, h in c.heads():
        parts = []
        for cols in (slice(0, None, 2), slice(1, None, 2)):
            w, sums = softmax(c.scores(b, h, cols=cols))
            parts.append((c.mix(w, b, h, cols=cols), sums))
        out[b, h], lse[b, h] = joined(parts)
    return c.emit(out, lse, return_lse=return_lse)
