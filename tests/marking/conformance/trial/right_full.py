"""Correct kernels with nearly all arguments, and three backward passes."""

import functools
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .entry import takes
from .pieces import (
    HIDE,
    LOG2E,
    finite,
    mix,
    one_sink,
    only_bool,
    pack,
    places,
    quiet,
    sight,
    sink_table,
    softmax,
    spread,
    starts,
    wide,
)

OPTIONS = "is_causal q_offset attn_mask bias scale softcap window key_lengths alibi_slopes sinks"
BOTH = "return_weights return_lse"


class Call:
    """The options of a call as attributes, its arrays in float64, and its sizes.

    Attributes:
        r: query heads for each key head.
        shape: (B, H, L, S).
        scale: the factor of the scores, also if no scale is given.
    """

    def __init__(self, query, key, value, **options):
        vars(self).update(dict.fromkeys(OPTIONS.split()) | options)
        self.q, self.k, self.v = wide(query, key, value)
        self.B, self.H, self.L, self.d = query.shape
        self.G, self.S, self.dv = value.shape[1:]
        self.r = self.H // self.G
        self.rows = (self.B, self.H, self.L)
        self.shape = (*self.rows, self.S)
        self.scale = self.d**-0.5 if self.scale is None else self.scale

    @functools.cached_property
    def seen(self):
        return sight(
            self.shape,
            self.is_causal,
            self.q_offset,
            self.window,
            self.key_lengths,
            self.attn_mask,
            self.bias,
        )

    @functools.cached_property
    def far(self):
        """The distance of each query from each key, (B, 1, L, S)."""
        at = places(self.q_offset, self.B, self.L, self.S)[:, None, :, None]
        return np.abs(at - np.arange(self.S))

    @functools.cached_property
    def added(self):
        """What is added to the capped scores, of the full shape."""
        add = np.zeros(self.shape)
        if self.bias is not None:
            add = add + wide(self.bias)[0]
        if self.attn_mask is not None and np.asarray(self.attn_mask).dtype != bool:
            add = add + wide(self.attn_mask)[0]
        if self.alibi_slopes is not None:
            add = add - wide(self.alibi_slopes)[0][:, None, None] * self.far
        return add

    def cap(self, s):
        return s if self.softcap is None else self.softcap * np.tanh(s / self.softcap)

    def finish(self, s, keys=slice(None)):
        """Cap the scaled scores of some keys, add what is added, and hide keys by -inf."""
        return np.where(self.seen[..., keys], self.cap(s) + self.added[..., keys], HIDE)

    def sink_state(self, rows):
        """Return the state (m, sums, acc) that sinks alone leave behind; the axis -2 has heads."""
        m, sums, acc = _fresh(rows, self.dv)
        if self.sinks is not None:
            table = sink_table(self.sinks, self.H)[:, None]
            m[...] = table.max(axis=-1, keepdims=True)
            sums[...] = np.exp(table - finite(m)).sum(-1, keepdims=True)
        return m, sums, acc


def _step(state, s, ok, v):
    """Online softmax: folds the scores s (hidden ones -inf) of a tile into (m, sums, acc)."""
    m, sums, acc = state
    new = np.maximum(m, s.max(axis=-1, keepdims=True))
    p, old = np.exp(s - finite(new)), np.exp(m - finite(new))
    return new, sums * old + p.sum(axis=-1, keepdims=True), acc * old + mix(p, ok, v)


def _fresh(rows, dv):
    return np.full((*rows, 1), HIDE), np.zeros((*rows, 1)), np.zeros((*rows, dv))


def _close(state):
    m, sums, acc = state
    return acc / np.where(sums == 0, 1.0, sums), (m + np.log(sums))[..., 0]


def _join(out, lse, part, mine):
    """Join two outputs by their LSE, (..., 1)."""
    both = np.logaddexp(lse, mine)
    return out * np.exp(lse - finite(both)) + part * np.exp(mine - finite(both)), both


def _grouped(c):
    """Return weights, LSE, and the slope of the soft cap."""
    q = c.q.reshape(c.B, c.G, c.r, c.L, c.d)
    s = np.einsum("bgrid,bgjd->bgrij", q, c.k, optimize=True).reshape(c.shape) * c.scale
    slope = 1.0
    if c.softcap is not None:
        slope = np.where(c.seen, 1.0 - np.tanh(s / c.softcap) ** 2, 0.0)
    s = c.finish(s)
    if c.sinks is not None:
        table = sink_table(c.sinks, c.H)[None, :, None]
        s = np.concatenate([s, np.broadcast_to(table, (*c.rows, table.shape[-1]))], axis=-1)
    w, lse = softmax(s)
    return w[..., : c.S], lse, slope


@takes(f"{OPTIONS} {BOTH}")
@quiet
def grouped_einsum(query, key, value, return_weights=False, return_lse=False, **options):
    c = Call(query, key, value, **options)
    w, lse, _ = _grouped(c)
    return pack(mix(w, c.seen, spread(c.v, c.r)), w, lse, return_weights, return_lse)


@takes(OPTIONS)
@quiet
def grouped_einsum_gradient(query, key, value, grad_out, **options):
    c = Call(query, key, value, **options)
    w, _, slope = _grouped(c)
    folded = (c.B, c.G, c.r, c.L)
    q, do, w5 = (x.reshape(*folded, x.shape[-1]) for x in (c.q, *wide(grad_out), w))
    dp = np.einsum("bgrie,bgje->bgrij", do, c.v, optimize=True).reshape(c.shape)
    dp = np.where(c.seen, dp, 0.0)
    ds = w * (dp - (w * dp).sum(-1, keepdims=True)) * slope * c.scale
    dq = mix(ds, c.seen, spread(c.k, c.r))
    dk = np.einsum("bgrij,bgrid->bgjd", ds.reshape(w5.shape), q, optimize=True)
    dv = np.einsum("bgrij,bgrie->bgje", w5, do, optimize=True)
    return dq, dk, dv


@takes(f"{OPTIONS} {BOTH}")
@quiet
def halving(query, key, value, return_weights=False, return_lse=False, **options):
    """Splits the keys in halves down to nine of them, and merges on the way up."""
    c = Call(query, key, value, **options)
    k, v = spread(c.k, c.r), spread(c.v, c.r)
    kept = np.full(c.shape, HIDE)

    def leaf(lo, hi):
        s = c.finish((c.q @ k[:, :, lo:hi].swapaxes(2, 3)) * c.scale, slice(lo, hi))
        kept[..., lo:hi] = s
        return _step(_fresh(c.rows, c.dv), s, c.seen[..., lo:hi], v[:, :, lo:hi])

    def merge(a, b):
        top = np.maximum(a[0], b[0])
        x, y = np.exp(a[0] - finite(top)), np.exp(b[0] - finite(top))
        return top, a[1] * x + b[1] * y, a[2] * x + b[2] * y

    def solve(lo, hi):
        if hi - lo <= 9:
            return leaf(lo, hi)
        mid = (lo + hi) // 2
        return merge(solve(lo, mid), solve(mid, hi))

    state = c.sink_state(c.rows)
    if c.S:
        state = merge(solve(0, c.S), state)
    out, lse = _close(state)
    return pack(out, np.exp(kept - finite(lse)[..., None]), lse, return_weights, return_lse)


@takes(f"{OPTIONS} {BOTH}")
@quiet
def crew(query, key, value, return_weights=False, return_lse=False, **options):
    """A pool of threads, one job a head; each query gathers the keys it sees."""
    c = Call(query, key, value, **options)
    seen, added = c.seen, c.added
    out, weights = np.zeros((*c.rows, c.dv)), np.zeros(c.shape)
    lse = np.full(c.rows, HIDE)

    def head(job):
        b, h = job
        kh, vh = c.k[b, h // c.r], c.v[b, h // c.r]
        tail = np.zeros(0) if c.sinks is None else sink_table(c.sinks, c.H)[h]
        for i in range(c.L):
            j = np.flatnonzero(seen[b, h, i])
            s = c.cap(kh[j] @ c.q[b, h, i] * c.scale) + added[b, h, i, j]
            every = np.concatenate([s, tail])
            top = every.max(initial=HIDE)
            if np.isneginf(top):
                continue
            total = np.exp(every - top).sum()
            w = np.exp(s - top) / total
            lse[b, h, i] = top + math.log(total) if total == total else np.nan
            out[b, h, i] = w @ vh[j]
            weights[b, h, i, j] = w

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(head, itertools.product(range(c.B), range(c.H))))
    return pack(out, weights, lse, return_weights, return_lse)


@takes(f"{OPTIONS} {BOTH}")
@quiet
def odd_tiles(query, key, value, return_weights=False, return_lse=False, **options):
    """Tiles of 37 queries by 29 keys; weights come from a second pass."""
    M, N = 37, 29
    c = Call(query, key, value, **options)
    out, lse = np.zeros((*c.rows, c.dv)), np.full(c.rows, HIDE)
    weights = np.zeros(c.shape)

    def tile(rows, keys):
        s = (c.q[:, :, rows] * c.scale) @ spread(c.k[:, :, keys], c.r).swapaxes(-1, -2)
        s = c.cap(s) + c.added[:, :, rows, keys]
        return np.where(c.seen[:, :, rows, keys], s, HIDE)

    for rows in (slice(i, min(i + M, c.L)) for i in range(0, c.L, M)):
        state = c.sink_state((c.B, c.H, rows.stop - rows.start))
        live = [slice(j, j + N) for j in range(0, c.S, N) if c.seen[:, :, rows, j : j + N].any()]
        for keys in live:
            v = spread(c.v[:, :, keys], c.r)
            state = _step(state, tile(rows, keys), c.seen[:, :, rows, keys], v)
        out[:, :, rows], lse[:, :, rows] = _close(state)
        for keys in live if return_weights else ():
            z = finite(lse[:, :, rows, None])
            weights[:, :, rows, keys] = np.exp(tile(rows, keys) - z)
    return pack(out, weights, lse, return_weights, return_lse)


@takes(f"{OPTIONS} return_lse")
@quiet
def base_two(query, key, value, return_lse=False, **options):
    """All scores in base two; splits of 64 keys, merged through logaddexp2."""
    c = Call(query, key, value, **options)
    out, lse2 = np.zeros((*c.rows, c.dv)), np.full((*c.rows, 1), HIDE)
    if c.sinks is not None:
        table = sink_table(c.sinks, c.H) * LOG2E
        lse2[...] = np.logaddexp2.reduce(table, axis=-1)[None, :, None, None]
    for keys in (slice(j, j + 64) for j in range(0, c.S, 64)):
        s = c.q @ spread(c.k[:, :, keys], c.r).swapaxes(-1, -2)
        if c.softcap is None:
            s = s * (c.scale * LOG2E)
        else:
            s = np.tanh(s * c.scale / c.softcap) * (c.softcap * LOG2E)
        s = np.where(c.seen[..., keys], s + c.added[..., keys] * LOG2E, HIDE)
        m = s.max(-1, keepdims=True)
        p = np.exp2(s - finite(m))
        sums = p.sum(-1, keepdims=True)
        part = mix(p, c.seen[..., keys], spread(c.v[:, :, keys], c.r)) / np.where(sums, sums, 1)
        mine = m + np.log2(sums)
        both = np.logaddexp2(lse2, mine)
        out = out * np.exp2(lse2 - finite(both)) + part * np.exp2(mine - finite(both))
        lse2 = both
    return pack(out, lse=lse2[..., 0] / LOG2E, return_lse=return_lse)


@takes(f"{OPTIONS} return_lse")
@quiet
def key_stream(query, key, value, return_lse=False, **options):
    """A chain of generators sends packets of keys past the queries."""
    c = Call(query, key, value, **options)

    def packets():
        for lo in range(0, c.S, 11):
            yield np.arange(lo, min(lo + 11, c.S))

    def scored(source):
        q = c.q.reshape(c.B, c.G, c.r, c.L, c.d)
        for j in source:
            s = np.einsum("bgrid,bgjd->bgrij", q, c.k[:, :, j], optimize=True)
            yield j, c.cap(s.reshape(*c.rows, len(j)) * c.scale)

    def moved(source):
        for j, s in source:
            yield j, s + c.added[..., j]

    def hidden(source):
        for j, s in source:
            yield j, np.where(c.seen[..., j], s, HIDE), c.seen[..., j]

    state = c.sink_state(c.rows)
    for j, s, ok in hidden(moved(scored(packets()))):
        state = _step(state, s, ok, spread(c.v[:, :, j], c.r))
    out, lse = _close(state)
    return pack(out, lse=lse, return_lse=return_lse)


@takes(f"{OPTIONS} {BOTH}")
@quiet
def logadd(query, key, value, return_weights=False, return_lse=False, **options):
    """No maximum anywhere: log-sum-exp by logaddexp, weights as exp(score - lse)."""
    c = Call(query, key, value, **options)
    s = c.finish(np.einsum("bhid,bhjd->bhij", c.q, spread(c.k, c.r), optimize=True) * c.scale)
    lse = np.logaddexp.reduce(s, axis=-1) if c.S else np.full(c.rows, HIDE)
    if c.sinks is not None:
        table = np.logaddexp.reduce(sink_table(c.sinks, c.H), axis=-1)
        lse = np.logaddexp(lse, table[None, :, None])
    w = np.exp(s - finite(lse)[..., None])
    return pack(mix(w, c.seen, spread(c.v, c.r)), w, lse, return_weights, return_lse)


@takes("is_causal q_offset attn_mask scale key_lengths return_lse")
@quiet
def uneven_ring(query, key, value, return_lse=False, **options):
    """Five shards of growing size, each with centred keys; takes boolean masks only."""
    c = Call(query, key, value, **options)
    if c.attn_mask is not None:
        only_bool(c.attn_mask)
    cuts = [c.S * n * (n + 1) // 30 for n in range(6)]
    out, lse = np.zeros((*c.rows, c.dv)), np.full((*c.rows, 1), HIDE)
    for rank in (3, 4, 0, 1, 2):
        lo, hi = cuts[rank], cuts[rank + 1]
        if lo == hi:
            continue
        ks, vs, ok = c.k[:, :, lo:hi], c.v[:, :, lo:hi], c.seen[..., lo:hi]
        centre = np.where(np.isfinite(ks), ks, 0.0).mean(axis=2, keepdims=True)
        back = (c.q * spread(centre, c.r)).sum(-1, keepdims=True) * c.scale
        s = np.where(ok, c.q @ spread(ks - centre, c.r).swapaxes(-1, -2) * c.scale, HIDE)
        part, mine = _close(_step(_fresh(c.rows, c.dv), s, ok, spread(vs, c.r)))
        out, lse = _join(out, lse, part, mine[..., None] + back)
    return pack(out, lse=lse[..., 0], return_lse=return_lse)


class _Pages:
    def __init__(self, rows, size, rng):
        """rows: (G, n, d). Whole pages of keys, in shuffled places, the rest poisoned."""
        G, n, d = rows.shape
        self.size, self.count = size, -(-n // size)
        self.store = np.full((self.count + 3, size, G, d), np.nan)
        self.table = rng.permutation(self.count + 3)[: self.count]
        for p in range(self.count):
            part = rows[:, p * size : (p + 1) * size]
            self.store[self.table[p], : part.shape[1]] = part.swapaxes(0, 1)

    def __getitem__(self, page):
        return self.store[self.table[page]].swapaxes(0, 1)


@takes("is_causal q_offset scale softcap key_lengths sinks return_lse")
@quiet
def page_walk(query, key, value, return_lse=False, **options):
    """Pages of 24 keys whose tails hold NaN; one sink a head at most."""
    c = Call(query, key, value, **options)
    off, rng = starts(c.q_offset, c.B, c.L, c.S), np.random.default_rng(3)
    if c.sinks is not None:
        one_sink(c.sinks, c.H)
    out, lse = np.zeros((*c.rows, c.dv)), np.full(c.rows, HIDE)
    lengths = np.full(c.B, c.S) if c.key_lengths is None else np.reshape(c.key_lengths, -1)
    for b in range(c.B):
        n = min(c.S, int(lengths[b]))
        kp, vp = _Pages(c.k[b, :, :n], 24, rng), _Pages(c.v[b, :, :n], 24, rng)
        state = c.sink_state((c.H, c.L))
        at = np.arange(c.L)[:, None] + int(off[b])
        for page in range(kp.count):
            j = page * 24 + np.arange(24)
            ok = (j < n) & ((j <= at) if c.is_causal else True)
            ok = np.broadcast_to(ok, (c.H, c.L, 24))
            s = c.cap(c.q[b] @ np.repeat(kp[page], c.r, axis=0).swapaxes(-1, -2) * c.scale)
            state = _step(state, np.where(ok, s, HIDE), ok, np.repeat(vp[page], c.r, axis=0))
        out[b], lse[b] = _close(state)
    return pack(out, lse=lse, return_lse=return_lse)


@takes("is_causal window scale key_lengths alibi_slopes")
@quiet
def packed_sequences(query, key, value, **options):
    """All sequences one after the other without padding, with cumulative lengths beside them."""
    c = Call(query, key, value, **options)
    lengths = np.full(c.B, c.S)
    if c.key_lengths is not None:
        lengths = np.clip(np.reshape(c.key_lengths, -1), 0, c.S)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    kk, vv = (
        np.concatenate([x[b, :, : lengths[b]] for b in range(c.B)], axis=1) for x in (c.k, c.v)
    )
    qq = c.q.swapaxes(0, 1).reshape(c.H, c.B * c.L, c.d)
    out = np.zeros((c.H, c.B * c.L, c.dv))
    for n, (a, z) in enumerate(itertools.pairwise(ends)):
        rows, ok = slice(n * c.L, (n + 1) * c.L), c.seen[n, 0, :, : z - a]
        for h in range(c.H):
            s = qq[h, rows] @ kk[h // c.r, a:z].T * c.scale + c.added[n, h, :, : z - a]
            w, _ = softmax(np.where(ok, s, HIDE))
            out[h, rows] = mix(w, ok, vv[h // c.r, a:z])
    return out.reshape(c.H, c.B, c.L, c.dv).swapaxes(0, 1)


@takes("is_causal q_offset window scale sinks alibi_slopes return_lse")
@quiet
def band_blocks(query, key, value, return_lse=False, **options):
    """Blocks of 12 by 20: empty ones are skipped, full ones go without a mask."""
    BQ, BK = 12, 20
    c = Call(query, key, value, **options)
    off = starts(c.q_offset, c.B, c.L, c.S)
    big = 4 * (c.L + c.S) + int(np.abs(off).max(initial=0))
    left, right = (big if side is None else side for side in c.window or (None, None))
    right = min(right, 0) if c.is_causal else right
    out, lse = np.zeros((*c.rows, c.dv)), np.full(c.rows, HIDE)
    for b, i0 in itertools.product(range(c.B), range(0, c.L, BQ)):
        rows = slice(i0, min(i0 + BQ, c.L))
        at = np.arange(rows.start, rows.stop) + int(off[b])
        state = c.sink_state((c.H, len(at)))
        for j0 in range(0, c.S, BK):
            j = np.arange(j0, min(j0 + BK, c.S))
            if j[0] > at[-1] + right or j[-1] < at[0] - left:
                continue
            full = j[-1] <= at[0] + right and j[0] >= at[-1] - left
            far = at[:, None] - j
            s = c.q[b, :, rows] @ np.repeat(c.k[b][:, j], c.r, axis=0).swapaxes(-1, -2) * c.scale
            s = s + c.added[b, :, rows, j0 : j0 + BK]
            ok = np.ones(far.shape, dtype=bool) if full else (far <= left) & (-far <= right)
            ok = np.broadcast_to(ok, s.shape)
            state = _step(state, np.where(ok, s, HIDE), ok, np.repeat(c.v[b][:, j], c.r, axis=0))
        out[b, :, rows], lse[b, :, rows] = _close(state)
    return pack(out, lse=lse, return_lse=return_lse)


@takes("is_causal q_offset scale key_lengths")
@quiet
def integer_planes(query, key, value, **options):
    """Every row as five planes of signed digits; whole-number products, then one softmax."""

    def planes(x):
        x = np.where(np.isfinite(x), x, 0.0)
        step = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        step = np.where(step == 0, 1.0, step) / 127.0
        rest = x / step
        for _ in range(5):
            digit = np.rint(rest)
            yield digit, step
            rest, step = (rest - digit) * 254.0, step / 254.0

    c = Call(query, key, value, **options)
    k = spread(c.k, c.r)
    s = np.zeros(c.shape)
    right = [*planes(k)]
    for a, (x, sx) in enumerate(planes(c.q)):
        for y, sy in right[: 5 - a]:
            s += x @ y.swapaxes(-1, -2) * (sx * sy.swapaxes(-1, -2))
    whole = np.isfinite(c.q).all(-1)[..., None] & np.isfinite(k).all(-1)[:, :, None]
    w, _ = softmax(c.finish(np.where(whole, s * c.scale, np.nan)))
    return mix(w, c.seen, spread(c.v, c.r))


def _square_check(c):
    if c.L != c.S:
        raise ValueError("as many queries as keys, please")
    if c.d % 2 or c.dv % 2:
        raise ValueError("head sizes must be even")
    if c.H != c.G:
        raise NotImplementedError("no grouped heads")
    if c.attn_mask is not None:
        only_bool(c.attn_mask)


def _square_weights(c):
    _square_check(c)
    halves = [c.q[..., n::2] @ c.k[..., n::2].swapaxes(-1, -2) for n in (0, 1)]
    return softmax(c.finish(sum(halves) * c.scale))[0]


@takes("is_causal attn_mask scale return_weights")
@quiet
def square_even(query, key, value, return_weights=False, **options):
    """Even and odd halves of the head apart; the result has the query's type."""
    c = Call(query, key, value, **options)
    w = _square_weights(c)
    return pack(mix(w, c.seen, c.v).astype(query.dtype), w, return_weights=return_weights)


@takes("is_causal attn_mask scale")
@quiet
def square_even_gradient(query, key, value, grad_out, **options):
    c = Call(query, key, value, **options)
    w, (do,) = _square_weights(c), wide(grad_out)
    dq, dk, dv = np.zeros_like(c.q), np.zeros_like(c.k), np.zeros_like(c.v)
    for i in range(c.L):
        wi, ok = w[:, :, i], c.seen[:, :, i]
        dp = np.where(ok, np.einsum("bhe,bhje->bhj", do[:, :, i], c.v), 0.0)
        ds = wi * (dp - (wi * dp).sum(-1, keepdims=True)) * c.scale
        dq[:, :, i] = mix(ds[:, :, None], ok[:, :, None], c.k)[:, :, 0]
        dk += ds[..., None] * c.q[:, :, i, None]
        dv += wi[..., None] * do[:, :, i, None]
    return dq, dk, dv


@takes(f"{OPTIONS} {BOTH}")
@quiet
def single_query(query, key, value, return_weights=False, return_lse=False, **options):
    """Decode only: the heads of a group stand where queries would."""
    if query.shape[2] != 1:
        raise NotImplementedError("one query a call")
    c = Call(query, key, value, **options)
    folded = (c.B, c.G, c.r)
    s = c.q.reshape(*folded, c.d) @ c.k.swapaxes(-1, -2) * c.scale
    s = c.finish(s.reshape(c.shape)).reshape(*folded, c.S)
    top, total = s.max(axis=-1, keepdims=True, initial=HIDE), 0.0
    if c.sinks is not None:
        table = sink_table(c.sinks, c.H).reshape(c.G, c.r, -1)
        top = np.maximum(top, table.max(-1, keepdims=True))
        total = np.exp(table - finite(top)).sum(-1, keepdims=True)
    e = np.exp(s - finite(top))
    total = total + e.sum(axis=-1, keepdims=True)
    w = e / np.where(total == 0, 1.0, total)
    out = mix(w, c.seen.reshape(s.shape), c.v).reshape(*c.rows, c.dv)
    lse = (top + np.log(total)).reshape(c.rows)
    return pack(out, w.reshape(c.shape), lse, return_weights, return_lse)


@takes(f"is_causal attn_mask bias scale {BOTH}")
@quiet
def sorted_rows(query, key, value, return_weights=False, return_lse=False, **options):
    """Scores in ascending order, so that small terms are added first."""
    c = Call(query, key, value, **options)
    s = c.finish(c.q @ spread(c.k, c.r).swapaxes(-1, -2) * c.scale)
    w, lse = np.zeros(c.shape), np.full(c.rows, HIDE)
    if c.S:
        order = np.argsort(s, axis=-1, kind="stable")
        up = np.take_along_axis(s, order, axis=-1)
        top = up[..., -1:]
        terms = np.exp(up - finite(top))
        total = np.cumsum(terms, axis=-1)[..., -1:]
        lse = (top + np.log(total))[..., 0]
        np.put_along_axis(w, order, terms / np.where(total == 0, 1.0, total), axis=-1)
    return pack(mix(w, c.seen, spread(c.v, c.r)), w, lse, return_weights, return_lse)


@takes(f"is_causal scale key_lengths sinks {BOTH}")
@quiet
def sinks_as_keys(query, key, value, return_weights=False, return_lse=False, **options):
    """A further coordinate carries the sinks, which join the keys with values of zero."""
    c = Call(query, key, value, **options)
    k, v, seen = spread(c.k, c.r), spread(c.v, c.r), c.seen
    q = np.concatenate([c.q * c.scale, np.ones((*c.rows, 1))], axis=-1)
    k = np.concatenate([k, np.zeros((c.B, c.H, c.S, 1))], axis=-1)
    if c.sinks is not None:
        table = sink_table(c.sinks, c.H)
        n = table.shape[1]
        more = np.zeros((c.B, c.H, n, c.d + 1))
        more[..., -1] = table
        k = np.concatenate([k, more], axis=2)
        v = np.concatenate([v, np.zeros((c.B, c.H, n, c.dv))], axis=2)
        seen = np.concatenate([seen, np.ones((*c.rows, n), dtype=bool)], axis=-1)
    w, lse = softmax(np.where(seen, q @ k.swapaxes(-1, -2), HIDE))
    return pack(mix(w, seen, v), w[..., : c.S], lse, return_weights, return_lse)


@takes("is_causal q_offset window bias scale softcap")
@quiet
def padded_all(query, key, value, **options):
    """Pads queries to 8, keys to 32 and heads to 16; no query sees the large numbers there."""
    c = Call(query, key, value, **options)

    def pad(x, rows, cols, fill=0.0):
        x = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, -x.shape[3] % cols)))
        return np.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % rows), (0, 0)), constant_values=fill)

    q, k, v = pad(c.q, 8, 16), pad(c.k, 32, 16, 1e3), pad(c.v, 32, 16, 1e9)
    seen, added = (np.zeros((*q.shape[:3], k.shape[2]), kind) for kind in (bool, float))
    seen[..., : c.L, : c.S], added[..., : c.L, : c.S] = c.seen, c.added
    s = c.cap(q @ spread(k, c.r).swapaxes(-1, -2) * c.scale) + added
    w, _ = softmax(np.where(seen, s, HIDE))
    return np.asfortranarray(mix(w, seen, spread(v, c.r))[..., : c.L, : c.dv])


END = "is_causal q_offset scale softcap key_lengths alibi_slopes sinks"


@takes(END)
@quiet
def from_the_end(query, key, value, **options):
    """Two passes from the last key to the first: maxima, then sums; one sink a head at most."""
    return _from_the_end(Call(query, key, value, **options))[0]


def _end_tiles(c):
    for hi in range(c.S, 0, -50):
        keys = slice(max(hi - 50, 0), hi)
        s = c.q @ spread(c.k[:, :, keys], c.r).swapaxes(-1, -2) * c.scale
        bend = 1.0
        if c.softcap is not None:
            bend = np.where(c.seen[..., keys], 1 - np.tanh(s / c.softcap) ** 2, 0.0)
        yield keys, c.finish(s, keys), bend


def _from_the_end(c):
    top = np.full((*c.rows, 1), HIDE)
    if c.sinks is not None:
        sinks = one_sink(c.sinks, c.H)[None, :, None, None]
        top = np.maximum(top, sinks)
    for _, s, _ in _end_tiles(c):
        top = np.maximum(top, s.max(-1, keepdims=True))
    base = finite(top)
    total = np.zeros(top.shape) if c.sinks is None else np.exp(sinks - base)
    out = np.zeros((*c.rows, c.dv))
    for keys, s, _ in _end_tiles(c):
        p = np.exp(s - base)
        total = total + p.sum(-1, keepdims=True)
        out = out + mix(p, c.seen[..., keys], spread(c.v[:, :, keys], c.r))
    safe = np.where(total == 0, 1.0, total)
    return out / safe, base + np.log(safe)


@takes(END)
@quiet
def from_the_end_gradient(query, key, value, grad_out, **options):
    c = Call(query, key, value, **options)
    out, lse = _from_the_end(c)
    (do,) = wide(grad_out)
    delta = (do * out).sum(-1, keepdims=True)
    dq, dk, dv = np.zeros_like(c.q), np.zeros(c.k.shape), np.zeros(c.v.shape)
    for keys, s, bend in _end_tiles(c):
        ok, p = c.seen[..., keys], np.exp(s - lse)
        dp = do @ spread(c.v[:, :, keys], c.r).swapaxes(-1, -2)
        ds = np.where(ok, p * (dp - delta), 0.0) * bend * c.scale
        dq += mix(ds, ok, spread(c.k[:, :, keys], c.r))
        for grad, part in ((dk, ds.swapaxes(-1, -2) @ c.q), (dv, p.swapaxes(-1, -2) @ do)):
            grad[:, :, keys] = part.reshape(c.B, c.G, c.r, *part.shape[2:]).sum(2)
    return dq, dk, dv


RIGHT_FULL = [
    grouped_einsum,
    halving,
    crew,
    odd_tiles,
    base_two,
    key_stream,
    logadd,
    uneven_ring,
    page_walk,
    packed_sequences,
    band_blocks,
    integer_planes,
    square_even,
    single_query,
    sorted_rows,
    sinks_as_keys,
    padded_all,
    from_the_end,
]
RIGHT_GRADIENTS = {
    grouped_einsum: grouped_einsum_gradient,
    square_even: square_even_gradient,
    from_the_end: from_the_end_gradient,
}
