"""What the kernels of the fifth trial's first writer share."""

import math

import numpy as np

from .pieces import quiet as quiet

NINF = -np.inf


def place_of(q_offset, B, L, S, needed):
    if q_offset is None:
        if needed and L != S:
            raise ValueError(
                f"{L} queries and {S} keys: say where query 0 stands, q_offset='start' or 'end'"
            )
        q_offset = 0
    elif isinstance(q_offset, str):
        q_offset = {"start": 0, "end": S - L}[q_offset]
    return np.broadcast_to(np.asarray(q_offset), (B,)).astype(np.int64)


def per_row(x, B, full):
    return (
        np.full(B, full, np.int64)
        if x is None
        else np.broadcast_to(np.asarray(x), (B,)).astype(np.int64)
    )


def band_of(off, L, S, is_causal=False, window=None):
    """(B, 1, L, S): what causal and window leave visible."""
    gap = np.arange(S)[None, None, :] - (np.arange(L)[None, :, None] + off[:, None, None])
    ok = np.ones(gap.shape, bool)
    if is_causal:
        ok &= gap <= 0
    if window is not None:
        left, right = window
        if left is not None:
            ok &= gap >= -left
        if right is not None:
            ok &= gap <= right
    return ok[:, None]


def is_bool(mask):
    mask = np.asarray(mask)
    if mask.dtype != bool and np.issubdtype(mask.dtype, np.integer):
        raise TypeError(
            "an integer mask is ambiguous: give bool (True = may attend) or float (added)"
        )
    return mask.dtype == bool


def batch_of(*arrays):
    return np.broadcast_shapes(*(np.shape(x)[:1] for x in arrays))[0]


class Call:
    """One call, normalised: float64 arrays, a visibility table and an additive table."""

    def __init__(
        c,
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
    ):
        query, key, value = np.asarray(query), np.asarray(key), np.asarray(value)
        if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
            raise ValueError("this kernel takes (B, H, L, d) arrays")
        c.dtype = query.dtype
        c.B = np.broadcast_shapes(query.shape[:1], key.shape[:1], value.shape[:1])[0]
        c.H, c.L, c.d = query.shape[1:]
        c.Hkv, c.S = key.shape[1:3]
        c.dv = value.shape[3]
        if c.Hkv == 0 or c.H % c.Hkv:
            raise ValueError(f"{c.H} query heads do not divide by {c.Hkv} key heads")
        c.G = c.H // c.Hkv

        def wide(x):
            return np.broadcast_to(np.asarray(x, np.float64), (c.B, *x.shape[1:]))

        c.q, c.k, c.v = wide(query), wide(key), wide(value)
        c.scale = (1.0 / math.sqrt(c.d) if c.d else 1.0) if scale is None else float(scale)
        c.softcap = softcap
        c.sinks = None if sinks is None else np.asarray(sinks, np.float64).reshape(c.H, -1)
        needed = bool(is_causal) or window is not None or alibi_slopes is not None
        c.off = place_of(q_offset, c.B, c.L, c.S, needed)
        c.qlen, c.klen = per_row(query_lengths, c.B, c.L), per_row(key_lengths, c.B, c.S)
        shape = (c.B, c.H, c.L, c.S)
        vis = band_of(c.off, c.L, c.S, is_causal, window)
        vis = vis & (np.arange(c.S)[None, None, None, :] < c.klen[:, None, None, None])
        vis = vis & (np.arange(c.L)[None, None, :, None] < c.qlen[:, None, None, None])
        add = None
        for extra in (attn_mask, bias):
            if extra is None:
                continue
            extra = np.asarray(extra)
            if extra is not None and is_bool(extra):
                vis = vis & extra
            else:
                vis = vis & (extra != NINF)
                add = extra.astype(np.float64) if add is None else add + extra.astype(np.float64)
        if alibi_slopes is not None:
            far = np.abs(
                np.arange(c.L)[None, :, None] + c.off[:, None, None] - np.arange(c.S)[None, None, :]
            )
            slope = np.asarray(alibi_slopes, np.float64).reshape(c.H)
            ramp = -slope[None, :, None, None] * far[:, None]
            add = ramp if add is None else add + ramp
        c.vis = np.broadcast_to(vis, shape)
        c.add = None if add is None else np.broadcast_to(add, shape)

    def cap(c, s):
        return s if c.softcap is None else c.softcap * np.tanh(s / c.softcap)

    def scores(c, b, h, rows=slice(None), cols=slice(None), kv=None):
        s = c.cap((c.q[b, h, rows] @ c.k[b, h // c.G if kv is None else kv, cols].T) * c.scale)
        if c.add is not None:
            s = s + c.add[b, h][rows, cols]
        return np.where(c.vis[b, h][rows, cols], s, NINF)

    def mix(c, p, b, h, rows=slice(None), cols=slice(None), kv=None):
        return mixed(p, c.v[b, h // c.G if kv is None else kv, cols], c.vis[b, h][rows, cols])

    def heads(c):
        return ((b, h) for b in range(c.B) for h in range(c.H))

    def blank(c):
        return np.zeros((c.B, c.H, c.L, c.dv)), np.full((c.B, c.H, c.L), NINF)

    def sink(c, h):
        return np.empty(0) if c.sinks is None else c.sinks[h]

    def weights(c, lse, kv_of=None):
        w = np.zeros((c.B, c.H, c.L, c.S))
        for b, h in c.heads():
            w[b, h] = np.where(c.vis[b, h], np.exp(c.scores(b, h) - lse[b, h][:, None]), 0.0)
        return w

    def emit(c, out, lse=None, weights=None, return_weights=False, return_lse=False):
        wide = np.float64 if c.dtype == np.float64 else np.float32
        back = [out.astype(c.dtype)]
        if return_weights:
            back.append((c.weights(lse) if weights is None else weights).astype(wide))
        if return_lse:
            back.append(lse.astype(wide))
        return back[0] if len(back) == 1 else tuple(back)


def mixed(p, v, vis):
    """p @ v where a number of v in a place hidden from a row never reaches it."""
    fine = np.isfinite(v)
    if fine.all():
        return p @ v
    out = p @ np.where(fine, v, 0.0)
    for j in np.nonzero(~fine.all(axis=1))[0]:
        odd = np.where(fine[j], 0.0, v[j])
        out += np.where(vis[:, j, None] & ~fine[j], p[:, j, None] * odd, 0.0)
    return out


def softmax(s, sink=()):
    """-> (weights, lse) of a block of whole rows; a row of nothing gives 0 and -inf."""
    top = s.max(axis=1, initial=NINF)
    if len(sink):
        top = np.maximum(top, np.max(sink))
    base = np.where(top == NINF, 0.0, top)
    e = np.exp(s - base[:, None])
    total = e.sum(axis=1)
    if len(sink):
        total = total + np.exp(np.asarray(sink)[None, :] - base[:, None]).sum(axis=1)
    lse = np.where(total == 0, NINF, np.log(total) + base)
    return e / np.where(total == 0, 1.0, total)[:, None], lse


class Online:
    """The running softmax of one block of rows."""

    def __init__(self, rows, width, sink=()):
        self.m = np.full(rows, NINF)
        self.sums = np.zeros(rows)
        self.acc = np.zeros((rows, width))
        if len(sink):
            self.m[:] = np.max(sink)
            self.sums[:] = np.exp(np.asarray(sink) - np.max(sink)).sum()

    def take(self, s, mixer):
        new = np.maximum(self.m, s.max(axis=1, initial=NINF))
        base = np.where(new == NINF, 0.0, new)
        p = np.exp(s - base[:, None])
        keep = np.exp(self.m - base)
        self.sums = self.sums * keep + p.sum(axis=1)
        self.acc = self.acc * keep[:, None] + mixer(p)
        self.m = new

    def done(self):
        none = self.sums == 0
        return (
            self.acc / np.where(none, 1.0, self.sums)[:, None],
            np.where(none, NINF, np.log(self.sums) + np.where(none, 0.0, self.m)),
        )


def flash(c, BM=16, BN=16, tiles=None, score=None, kv_of=None):
    """Tiles of queries over tiles of keys. tiles(i0, i1, b) -> the starts of key tiles to visit."""
    out, lse = c.blank()
    for b, h in c.heads():
        kv = h // c.G if kv_of is None else kv_of(h)
        for i0 in range(0, c.L, BM):
            rows = slice(i0, min(c.L, i0 + BM))
            run = Online(rows.stop - i0, c.dv, c.sink(h))
            for j0 in range(0, c.S, BN) if tiles is None else tiles(rows.start, rows.stop, b):
                cols = slice(j0, min(c.S, j0 + BN))
                s = c.scores(b, h, rows, cols, kv) if score is None else score(b, h, rows, cols)
                run.take(s, lambda p: c.mix(p, b, h, rows, cols, kv))  # noqa: B023 (called at once)
            out[b, h, rows], lse[b, h, rows] = run.done()
    return out, lse


def dense(c):
    out, lse = c.blank()
    w = np.zeros((c.B, c.H, c.L, c.S))
    for b, h in c.heads():
        w[b, h], lse[b, h] = softmax(c.scores(b, h), c.sink(h))
        out[b, h] = c.mix(w[b, h], b, h)
    return out, lse, w


def by_einsum(c):
    """Grouped heads as an axis of their own, everything in one go."""
    q = c.q.reshape(c.B, c.Hkv, c.G, c.L, c.d)
    s = c.cap(np.einsum("bgrid,bgjd->bgrij", q, c.k) * c.scale).reshape(c.B, c.H, c.L, c.S)
    s = np.where(c.vis, s if c.add is None else s + c.add, NINF)
    top = np.max(s, axis=-1, keepdims=True, initial=NINF)
    p = np.exp(s - np.where(top == NINF, 0.0, top))
    total = p.sum(axis=-1, keepdims=True)
    p /= np.where(total == 0, 1.0, total)
    if np.isfinite(c.v).all():
        return np.einsum("bgrij,bgjv->bgriv", p.reshape(c.B, c.Hkv, c.G, c.L, c.S), c.v).reshape(
            c.B, c.H, c.L, c.dv
        )
    return np.stack([np.stack([c.mix(p[b, h], b, h) for h in range(c.H)]) for b in range(c.B)])


def by_logs(c):
    out, lse = c.blank()
    for b, h in c.heads():
        s = c.scores(b, h)
        lse[b, h] = np.logaddexp.reduce(s, axis=1, initial=NINF)
        out[b, h] = c.mix(np.where(c.vis[b, h], np.exp(s - lse[b, h][:, None]), 0.0), b, h)
    return out, lse


def by_rows(c):
    """A row at a time, with only the keys that it sees."""
    out, _ = c.blank()
    for b, h, i in np.ndindex(c.B, c.H, c.L):
        seen = np.flatnonzero(c.vis[b, h, i])
        if len(seen):
            s = c.cap(c.k[b, h // c.G][seen] @ c.q[b, h, i] * c.scale)
            s = s if c.add is None else s + c.add[b, h, i, seen]
            e = np.exp2((s - s.max()) * 1.4426950408889634)
            out[b, h, i] = e @ c.v[b, h // c.G][seen] / e.sum()
    return out


def by_halves(c, least=6):
    def part(b, h, cols):
        if len(cols) > least:
            return joined([part(b, h, cols[: len(cols) // 2]), part(b, h, cols[len(cols) // 2 :])])
        w, sums = softmax(c.scores(b, h, cols=cols))
        return c.mix(w, b, h, cols=cols), sums

    out, lse = c.blank()
    for b, h in c.heads():
        out[b, h], lse[b, h] = part(b, h, np.arange(c.S))
    return out, lse


def joined(parts):
    """Partial (out, lse) over disjoint keys -> one."""
    outs, lses = np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts])
    top = lses.max(axis=0)
    base = np.where(top == NINF, 0.0, top)
    share = np.exp(lses - base)
    total = share.sum(axis=0)
    none = total == 0
    out = (outs * share[..., None]).sum(axis=0) / np.where(none, 1.0, total)[..., None]
    return out, np.where(none, NINF, np.log(total) + base)
