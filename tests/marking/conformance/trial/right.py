"""Correct kernels with few arguments: other algorithms, conventions and limits than the bases.

A kernel may refuse what it does not support, with any type of exception and any words.
"""

import functools
import itertools
import math
import operator

import numpy as np

from .bases import prepare
from .entry import takes
from .pieces import (
    LN2,
    LOG2E,
    answer,
    by_heads,
    finite,
    mix,
    one_sink,
    only_bool,
    places,
    quiet,
    sight,
    softmax,
    weigh,
)

try:
    import torch
except ImportError:
    torch = None


def loops_over_queries(query, key, value, attn_mask=None):
    """Compute one query at a time, and read only the keys that it sees."""
    B, H, L, d = query.shape
    S, dv = value.shape[2:]
    out = np.zeros((B, H, L, dv), np.float64)
    full = None if attn_mask is None else np.broadcast_to(attn_mask, (B, H, L, S))
    for b, h, i in np.ndindex(B, H, L):
        g = h // (H // key.shape[1])
        extra = np.zeros(S)
        if full is not None:
            row = full[b, h, i]
            extra = np.where(row, 0, -np.inf) if row.dtype == bool else row.astype(np.float64)
        seen = np.flatnonzero(extra != -np.inf)
        if seen.size:
            x = key[b, g, seen].astype(np.float64) @ query[b, h, i].astype(np.float64)
            x = x / math.sqrt(d) + extra[seen]
            w = np.exp(x - x.max())
            out[b, h, i] = w @ value[b, g, seen].astype(np.float64) / w.sum()
    return out.astype(query.dtype)


def _mean(x, v, product=weigh):
    """Return the means of values, weighted by the softmax of masked scores."""
    w = np.exp(x - x.max(axis=-1, keepdims=True, initial=-1e300))
    return product(w, v) / np.maximum(w.sum(axis=-1, keepdims=True), 1e-300)


def _online(query, key, value, tile, order=1, scale=None):
    """Keep a running maximum over tiles of keys."""
    q, *both = by_heads(query, key, value)
    q = q * (q.shape[3] ** -0.5 if scale is None else scale)
    m = np.full(q.shape[:3], -np.inf)
    s = np.zeros(q.shape[:3])
    acc = np.zeros((*q.shape[:3], value.shape[-1]))
    for j in range(0, key.shape[2], tile)[::order]:
        k, v = (x[:, :, j : j + tile] for x in both)
        x = q @ k.swapaxes(2, 3)
        new = np.maximum(m, x.max(axis=3))
        p = np.exp(x - new[..., None])
        alpha = np.exp(m - new)
        s = s * alpha + p.sum(axis=3)
        acc = acc * alpha[..., None] + p @ v
        m = new
    return (acc / np.where(s > 0, s, 1)[..., None]).astype(query.dtype)


tiles_of_thirteen_backwards = functools.partial(_online, tile=13, order=-1)


def merge_of_three_splits(query, key, value, return_lse=False):
    """Compute three splits of the keys, and merge them by their LSE."""
    q, k, v = by_heads(query, key, value)
    out, total = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    for index in np.array_split(np.arange(key.shape[2]), 3):
        if not index.size:
            continue
        x = np.einsum("bhld,bhsd->bhls", q, k[:, :, index]) / math.sqrt(q.shape[3])
        lse = np.logaddexp.reduce(x, axis=-1)
        part = np.exp(x - lse[..., None]) @ v[:, :, index]
        both = np.logaddexp(total, lse)
        out = out * np.exp(total - both)[..., None] + part * np.exp(lse - both)[..., None]
        total = both
    out = out.astype(query.dtype)
    return (out, total.astype(np.result_type(query.dtype, np.float32))) if return_lse else out


def heads_last(query, key, value, is_causal=False):
    """Move to the layout (B, L, H, d), in which einsum names the axes."""
    Q, K, V = (np.moveaxis(x, 1, 2).astype("f8") for x in (query, key, value))
    B, L, H, d = Q.shape
    S, G = K.shape[1:3]
    Q = Q.reshape(B, L, G, H // G, d)
    X = np.einsum("qbgrd,kbgd->bgrqk", Q.swapaxes(0, 1), K.swapaxes(0, 1)) / d**0.5
    if is_causal:
        X[..., np.arange(S)[None] > np.arange(L)[:, None] + S - L] = -np.inf
    X -= np.maximum(X.max(-1, keepdims=True, initial=-np.inf), -1e200)
    np.exp(X, out=X)
    X /= np.maximum(X.sum(-1, keepdims=True), 1e-300)
    out = weigh(X, np.moveaxis(V, 2, 1)[:, :, None])
    return out.reshape(B, H, L, V.shape[-1]).astype(query.dtype)


def minus_1e30(query, key, value, attn_mask=None, bias=None):
    """Hide keys by adding -1e30, and clear the rows in which no key is visible."""
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[3]))
    seen = np.ones(x.shape, bool)
    for extra in (attn_mask, bias):
        if extra is None:
            continue
        if extra.dtype == bool:
            seen &= extra
            continue
        seen &= extra != -np.inf
        x = x + np.where(extra == -np.inf, 0, extra).astype(np.float64)
    x = np.where(seen, x, 0) + (~seen) * -1e30
    w = np.exp(x - x.max(axis=-1, keepdims=True, initial=-1e300)) * seen
    w /= np.where(seen.any(axis=-1, keepdims=True), w.sum(axis=-1, keepdims=True), 1)
    return weigh(w, v).astype(query.dtype)


def powers_of_two(query, key, value, scale=None, softcap=None):
    """Fold log2(e) into the scale, and use exp2."""
    q, k, v = by_heads(query, key, value)
    x = (q * (1 / math.sqrt(q.shape[3]) if scale is None else scale)) @ np.swapaxes(k, -1, -2)
    if softcap is not None:
        x = np.tanh(x / softcap) * softcap
    x *= math.log2(math.e)
    x -= x.max(axis=-1, keepdims=True, initial=-1e300)
    p = np.exp2(x)
    total = p.sum(axis=-1, keepdims=True)
    return (p @ v / np.where(total, total, 1)).astype(query.dtype)


def no_maximum_but_small_scores(query, key, value):
    """Do without the maximum in float64, and refuse scores that would overflow."""
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if np.abs(x).max(initial=0) > 600:
        raise OverflowError("scores beyond 600 are not for me")
    p = np.exp(x)
    return (p @ v / np.maximum(p.sum(axis=-1, keepdims=True), 1e-300)).astype(query.dtype)


def masked_arrays(query, key, value, attn_mask=None):
    """Use numpy.ma, whose sums skip masked elements."""
    if attn_mask is not None and attn_mask.dtype != bool:
        raise NotImplementedError("float masks: come back next year")
    B, H, L, d = query.shape
    q, k, v = by_heads(query, key, value)
    hide = ~np.broadcast_to(True if attn_mask is None else attn_mask, (B, H, L, key.shape[2]))
    out = np.zeros((B, H, L, v.shape[3]))
    for b, h in np.ndindex(B, H):
        x = np.ma.array(q[b, h] @ k[b, h].T / d**0.5, mask=hide[b, h])
        if x.count():
            w = np.exp(x.filled(-np.inf) - x.max(axis=1).filled(0)[:, None])
            w = np.ma.array(w, mask=hide[b, h])
            w = w.filled(0) / w.sum(axis=1).filled(1)[:, None]
            used = ~hide[b, h].all(axis=0)
            out[b, h] = weigh(w[:, used], v[b, h][used])
    return out.astype(query.dtype)


def options_by_name(query, key, value, **options):
    """Take options through **kwargs, and refuse those that are unknown."""
    scale = options.pop("scale", None)
    causal = options.pop("is_causal", False)
    if options:
        raise TypeError(f"what is {sorted(options)[0]}?")
    q, k, v = by_heads(query, key, value)
    x = np.matmul(q, k.swapaxes(2, 3)) * (q.shape[3] ** -0.5 if scale is None else scale)
    L, S = x.shape[2:]
    if causal:
        x = np.where(np.tri(L, S, S - L, dtype=bool), x, -np.inf)
    return _mean(x, v).astype(query.dtype)


def equal_heads_only(query, key, value):
    """Refuse grouped heads with NotImplementedError."""
    if query.shape[1] != key.shape[1]:
        raise NotImplementedError("GQA")
    x = np.einsum("bhid,bhjd->bhij", query, key, dtype=np.float64) / math.sqrt(query.shape[3])
    w = np.exp(x - x.max(axis=3, keepdims=True, initial=-1e300))
    w /= w.sum(axis=3, keepdims=True) + (w.shape[3] == 0)
    return np.einsum("bhij,bhjv->bhiv", w, value, dtype=np.float64).astype(query.dtype)


def square_only(query, key, value, is_causal=False):
    """Refuse L != S with an assertion without words."""
    assert query.shape[2] == key.shape[2]
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[3])
    if is_causal:
        x[..., np.triu(np.ones(x.shape[2:], bool), 1)] = -np.inf
    return _mean(x, v).astype(query.dtype)


def sizes_of_eight_only(query, key, value):
    """Refuse head sizes that are no multiples of 8 with IndexError; add 8 products at a time."""
    d = query.shape[3]
    if d % 8 or value.shape[3] % 8:
        raise IndexError("lane 7 is empty")
    q, k, v = by_heads(query, key, value)
    x = np.zeros((*q.shape[:3], key.shape[2]))
    for lane in (slice(first, first + 8) for first in range(0, d, 8)):
        x += q[..., lane] @ k[..., lane].swapaxes(2, 3)
    return _mean(x / math.sqrt(d), v, np.matmul).astype(query.dtype)


def short_decode_only(query, key, value, key_lengths=None):
    """Serve a single query only, and refuse more with KeyError."""
    if query.shape[2] != 1:
        raise KeyError("prefill")
    B, H = query.shape[:2]
    out = np.zeros((B, H, 1, value.shape[3]))
    for b, h in itertools.product(range(B), range(H)):
        n = key.shape[2] if key_lengths is None else int(key_lengths[b])
        g = h * key.shape[1] // H
        if n:
            x = key[b, g, :n].astype(np.float64) @ query[b, h, 0].astype(np.float64)
            x /= math.sqrt(query.shape[3])
            w = np.exp(x - x.max())
            out[b, h, 0] = (w / w.sum()) @ value[b, g, :n].astype(np.float64)
    return out.astype(query.dtype)


class ScratchBuffers:
    """Keep two buffers between calls, and write into them in place."""

    def __init__(self):
        """Start with empty buffers."""
        self.scores = np.empty(0)
        self.sums = np.empty(0)

    def __call__(self, query, key, value, is_causal=False, scale=None):
        """Compute the attention."""
        B, H, L, d = query.shape
        S = key.shape[2]
        if self.scores.size < B * H * L * S:
            self.scores = np.empty(B * H * L * S)
        if self.sums.size < B * H * L:
            self.sums = np.empty(B * H * L)
        x = self.scores[: B * H * L * S].reshape(B, H, L, S)
        total = self.sums[: B * H * L].reshape(B, H, L, 1)
        q, k, v = by_heads(query, key, value)
        np.matmul(q, k.swapaxes(2, 3), out=x)
        np.multiply(x, d**-0.5 if scale is None else scale, out=x)
        if is_causal:
            np.copyto(x, -np.inf, where=np.arange(S) > np.arange(S - L, S)[:, None])
        np.amax(x, axis=3, keepdims=True, initial=-1e300, out=total)
        np.subtract(x, total, out=x)
        np.exp(x, out=x)
        np.sum(x, axis=3, keepdims=True, out=total)
        np.divide(x, total, out=x, where=total > 0)
        return weigh(x, v).astype(query.dtype)


scratch_buffers = ScratchBuffers()


def _closure(block):
    """Return a kernel that computes blocks of queries."""
    calls = []

    def blocks_of_queries(query, key, value, *, window=None, q_offset=None):
        """Compute blocks of queries against the keys that the block may see."""
        calls.append(query.shape)
        B, H, L, d = query.shape
        S = key.shape[2]
        left, right = (None, None) if window is None else window
        if q_offset is None or isinstance(q_offset, str):
            q_offset = 0 if q_offset == "start" else S - L
        places = np.broadcast_to(q_offset, (B,))
        out = np.zeros((B, H, L, value.shape[3]), query.dtype)
        for b, h, i in itertools.product(range(B), range(H), range(0, L, block)):
            g = h // (H // key.shape[1])
            at = np.arange(i, min(i + block, L)) + int(places[b])
            first = 0 if left is None else min(max(int(at[0]) - left, 0), S)
            last = S if right is None else min(max(int(at[-1]) + right + 1, first), S)
            j = np.arange(first, last)
            seen = np.ones((len(at), len(j)), bool)
            if left is not None:
                seen &= j >= at[:, None] - left
            if right is not None:
                seen &= j <= at[:, None] + right
            x = query[b, h, i : i + block].astype(np.float64) @ key[b, g, first:last].T.astype("f8")
            x = np.where(seen, x / math.sqrt(d), -np.inf)
            w = np.exp(x - x.max(axis=1, keepdims=True, initial=-1e300))
            w /= np.where(seen.any(axis=1, keepdims=True), w.sum(axis=1, keepdims=True), 1)
            out[b, h, i : i + block] = weigh(w, value[b, g, first:last].astype(np.float64))
        return out

    return blocks_of_queries


blocks_of_five_queries = _closure(5)


def float32_in_reversed_order(query, key, value):
    """Add up in float32, but from the last key to the first (float64 stays float64)."""
    H, kind = query.shape[1], np.result_type(query.dtype, np.float32)
    q = query.astype(kind) * kind.type(query.shape[3] ** -0.5)
    k, v = (np.repeat(x[:, :, ::-1].astype(kind), H // x.shape[1], axis=1) for x in (key, value))
    x = (q[..., ::-1] @ np.swapaxes(k[..., ::-1], 2, 3)).astype(kind)
    w = np.exp(x - x.max(axis=3, keepdims=True, initial=np.finfo(kind).min))
    return (w @ v / np.maximum(w.sum(axis=3, keepdims=True), kind.type(1e-30))).astype(query.dtype)


def causal_by_slices(query, key, value, is_causal=False):
    """Slice the keys instead of masking them."""
    B, H, L, d = query.shape
    S = key.shape[2]
    group = H // key.shape[1]
    out = np.zeros((B, H, L, value.shape[3]), query.dtype)
    for i in range(L):
        n = max(S - L + i + 1, 0) if is_causal else S
        if n == 0:
            continue
        q = query[:, :, i].reshape(B, H // group, group, d).astype(np.float64)
        x = np.einsum("bgrd,bgsd->bgrs", q, key[:, :, :n].astype(np.float64)) / math.sqrt(d)
        w = np.exp(x - x.max(axis=-1, keepdims=True))
        w /= w.sum(axis=-1, keepdims=True)
        o = np.einsum("bgrs,bgsv->bgrv", w, value[:, :, :n].astype(np.float64))
        out[:, :, i] = o.reshape(B, H, value.shape[3])
    return out


def sinks_by_correction(query, key, value, sinks=None, return_lse=False):
    """Compute without sinks, then shrink the output by exp(lse - lse with sinks)."""
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    lse = np.logaddexp.reduce(x, axis=3) if key.shape[2] else np.full(x.shape[:3], -np.inf)
    out = np.exp(x - np.where(lse == -np.inf, 0, lse)[..., None]) @ v
    if sinks is not None:
        extra = np.logaddexp.reduce(np.reshape(sinks, (q.shape[1], -1)).astype(np.float64), axis=1)
        both = np.logaddexp(lse, extra[:, None])
        out *= np.exp(np.where(lse == -np.inf, -np.inf, lse - both))[..., None]
        lse = both
    out = out.astype(query.dtype)
    return (out, lse.astype(np.result_type(query.dtype, np.float32))) if return_lse else out


def lengths_by_slices(query, key, value, key_lengths=None, query_lengths=None):
    """Slice each row of the batch to its lengths."""
    B, H, L, d = query.shape
    S = key.shape[2]
    out = np.zeros((B, H, L, value.shape[3]), query.dtype)
    n = np.broadcast_to(S if key_lengths is None else key_lengths, (B,))
    m = np.broadcast_to(L if query_lengths is None else query_lengths, (B,))
    for b in range(B):
        if n[b] == 0 or m[b] == 0:
            continue
        q, k, v = (x[b] for x in by_heads(query, key[:, :, : n[b]], value[:, :, : n[b]]))
        x = q[:, : m[b]] @ k.swapaxes(1, 2) / math.sqrt(d)
        w = np.exp(x - x.max(axis=2, keepdims=True))
        out[b, :, : m[b]] = w @ v / w.sum(axis=2, keepdims=True)
    return out


def lengths_by_zeroing(query, key, value, key_lengths=None, return_weights=False):
    """Overwrite the padding with zeros first, and give it no weight."""
    S = key.shape[2]
    real = np.ones((len(query), 1, S, 1), bool)
    if key_lengths is not None:
        real = np.arange(S)[:, None] < np.reshape(key_lengths, (-1, 1, 1, 1))
    q, k, v = by_heads(query, *(np.where(real, x, 0) for x in (key, value)))
    x = np.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(q.shape[3])
    x = np.where(real.swapaxes(2, 3), x, -np.inf)
    w = np.exp(x - x.max(axis=3, keepdims=True, initial=-1e300))
    w /= np.maximum(w.sum(axis=3, keepdims=True), 1e-300)
    out = (w @ v).astype(query.dtype)
    return (out, w.astype(np.result_type(query.dtype, np.float32))) if return_weights else out


def causal_with_any_offset(query, key, value, is_causal=False, q_offset=None):
    """Count for each query how many keys it sees."""
    B, _, L, d = query.shape
    S = key.shape[2]
    if isinstance(q_offset, str):
        q_offset = {"start": 0, "end": S - L}[q_offset]
    if q_offset is None:
        if is_causal and L != S:
            raise ValueError("which place?")
        q_offset = 0
    count = np.full((B, 1, L, 1), S)
    if is_causal:
        count = np.clip(np.reshape(q_offset, (-1, 1, 1, 1)) + np.arange(1, L + 1)[:, None], 0, S)
    q, k, v = by_heads(query, key, value)
    x = np.where(np.arange(S) < count, q @ k.swapaxes(2, 3) / d**0.5, -np.inf)
    return _mean(x, v).astype(query.dtype)


def rows_by_apply(query, key, value):
    """Compute each row with numpy.apply_along_axis."""

    def soften(row):
        row = np.exp(row - row.max())
        return row / row.sum()

    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    if x.size:
        x = np.apply_along_axis(soften, 3, x)
    return (x @ v).astype(query.dtype)


def softcap_by_exponentials(query, key, value, softcap=None, bias=None):
    """Write tanh(x) as (1 - e) / (1 + e) with e = exp(-2x), from the side that is safe."""
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5
    if softcap:
        e = np.expm1(-2 * np.abs(x) / softcap)
        x = np.copysign(softcap * -e / (2 + e), x)
    if bias is not None:
        x = np.where(bias == -np.inf, -np.inf, x + np.asarray(bias, np.float64))
    return _mean(x, v).astype(query.dtype)


def keys_as_columns(query, key, value, alibi_slopes=None, q_offset=None, window=None):
    """Store keys as columns (d, S), and write the rules as one list of conditions."""
    B, H, L, d = query.shape
    G, S = key.shape[1:3]
    if q_offset is None or isinstance(q_offset, str):
        q_offset = 0 if q_offset == "start" else S - L
    place = np.reshape(q_offset, (-1, 1, 1, 1)) + np.arange(L)[:, None] - np.arange(S)
    left, right = window or (None, None)
    rules = [np.ones((B, 1, L, S), bool)]
    rules += [] if left is None else [place <= left]
    rules += [] if right is None else [-place <= right]
    columns = np.ascontiguousarray(key.transpose(0, 1, 3, 2), dtype=np.float64)
    x = np.stack([query[:, h].astype("f8") @ columns[:, h * G // H] for h in range(H)], axis=1)
    x /= math.sqrt(d)
    if alibi_slopes is not None:
        x = x - np.asarray(alibi_slopes, np.float64)[:, None, None] * np.abs(place)
    x = np.where(functools.reduce(operator.and_, rules), x, -np.inf)
    w = np.exp(x - x.max(axis=3, keepdims=True, initial=-1e300))
    w /= np.maximum(w.sum(axis=3, keepdims=True), 1e-300)
    out = [weigh(w[:, h], value[:, h * G // H].astype(np.float64)) for h in range(H)]
    return np.stack(out, axis=1).astype(query.dtype)


def no_float64_please(query, key, value, scale=1.0):
    """Refuse float64 with BufferError; the default of the scale is 1, not 1 / sqrt(d)."""
    if query.dtype == np.float64:
        raise BufferError("8 bytes do not fit")
    q, k, v = by_heads(query, key, value)
    return _mean(q @ k.swapaxes(2, 3) * scale, v, np.matmul).astype(query.dtype)


def differences_of_weights(query, key, value):
    """Take value 0, and add the weighted differences of the other values from it."""
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    if not key.shape[2]:
        return np.zeros((*x.shape[:3], v.shape[3]), query.dtype)
    w = np.exp(x - x.max(axis=3, keepdims=True))
    w /= w.sum(axis=3, keepdims=True)
    return (v[:, :, :1] + w @ (v - v[:, :, :1])).astype(query.dtype)


def batch_and_heads_in_one(query, key, value, is_causal=False):
    """Fold batch and heads into one axis, as many kernels do."""
    B, H, L, d = query.shape
    G, S, dv = key.shape[1], key.shape[2], value.shape[3]
    flat = np.ascontiguousarray(query, dtype=np.float64).reshape(B * H, L, d)
    keys = np.ascontiguousarray(key, dtype=np.float64).reshape(B * G, S, d)
    values = np.ascontiguousarray(value, dtype=np.float64).reshape(B * G, S, dv)
    out = np.zeros((B * H, L, dv))
    rows, columns = np.indices((L, S))
    for n in range(B * H):
        own = n // H * G + n % H // (H // G)
        x = flat[n] @ keys[own].T / math.sqrt(d)
        x[is_causal & (columns - rows > S - L)] = -np.inf
        w = np.exp(x - x.max(axis=1, keepdims=True, initial=-1e300))
        out[n] = weigh(w, values[own]) / np.maximum(w.sum(axis=1, keepdims=True), 1e-300)
    return out.reshape(B, H, L, dv).astype(query.dtype)


def two_mask_shapes_only(query, key, value, attn_mask=None):
    """Refuse masks of all shapes but (L, S) and (B, H, L, S) with an odd RuntimeError."""
    if attn_mask is not None and attn_mask.ndim not in (2, 4):
        raise RuntimeError("mask.ndim ∉ {2, 4}")
    if attn_mask is not None and attn_mask.ndim == 4 and attn_mask.shape[:2] != query.shape[:2]:
        raise RuntimeError("")
    q, k, v = by_heads(query, key, value)
    x = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == bool else attn_mask == -np.inf
        extra = 0 if attn_mask.dtype == bool else np.where(hidden, 0, attn_mask)
        x = np.where(hidden, -np.inf, x + extra)
    return _mean(x, v).astype(query.dtype)


def keys_before_queries(query, key, value, bias=None):
    """Compute the transposed scores (S, L), with the softmax along the columns."""
    B, H, L, d = query.shape
    S = key.shape[2]
    out = np.zeros((B, H, value.shape[3], L))
    full = None if bias is None else np.broadcast_to(bias, (B, H, L, S))
    for h in range(H):
        g = h * key.shape[1] // H
        x = key[:, g].astype(np.float64) @ query[:, h].astype(np.float64).swapaxes(1, 2)
        x /= math.sqrt(d)
        if full is not None:
            extra = full[:, h].swapaxes(1, 2).astype(np.float64)
            x = np.where(extra == -np.inf, -np.inf, x + extra)
        w = np.exp(x - x.max(axis=1, keepdims=True, initial=-1e300))
        w /= np.maximum(w.sum(axis=1, keepdims=True), 1e-300)
        out[:, h] = weigh(w.swapaxes(1, 2), value[:, g].astype(np.float64)).swapaxes(1, 2)
    return out.swapaxes(2, 3).astype(query.dtype)


def window_by_sliding_views(query, key, value, window=None):
    """Read the window as a view of padded keys; serve finite windows and L == S only."""
    B, H, L, d = query.shape
    if key.shape[2] != L:
        raise OSError("this machine has one length only")
    if L == 0:
        return np.zeros((B, H, 0, value.shape[3]), query.dtype)
    left, right = window or (None, None)
    left, right = (L if side is None else min(side, L) for side in (left, right))
    pad = [(0, 0), (0, 0), (left, right), (0, 0)]
    k, v = (np.pad(x.astype(np.float64), pad).repeat(H // x.shape[1], 1) for x in (key, value))
    k, v = (np.lib.stride_tricks.sliding_window_view(x, left + right + 1, axis=2) for x in (k, v))
    x = np.einsum("bhld,bhldw->bhlw", query.astype(np.float64), k) / math.sqrt(d)
    place = np.arange(L)[:, None] + np.arange(-left, right + 1)
    x = np.where((place >= 0) & (place < L), x, -np.inf)
    w = np.exp(x - x.max(axis=3, keepdims=True))
    w /= w.sum(axis=3, keepdims=True)
    return np.einsum("bhlw,bhlvw->bhlv", w, v).astype(query.dtype)


@takes("attn_mask is_causal q_offset sinks scale key_lengths return_lse")
@quiet
def running_mean(query, key, value, return_lse=False, **options):
    """The output is an average at every moment: out += share * (value - out), after Horner."""
    _, _, v, s, seen, extra = prepare(query, key, value, **options)
    stat = np.broadcast_to(np.logaddexp.reduce(extra, axis=-1, initial=-np.inf), s.shape[:3])
    out = np.zeros((*s.shape[:3], v.shape[3]))
    for j in range(s.shape[3]):
        stat = np.logaddexp(stat, s[..., j])
        share = np.where(seen[..., j], np.exp(s[..., j] - stat), 0)[..., None]
        out = np.where(seen[..., j, None], out + share * (v[:, :, j, None] - out), out)
    return answer(query, out, s, stat, False, return_lse)


@takes("attn_mask is_causal q_offset scale softcap return_weights")
@quiet
def narrow_exponentials(query, key, value, return_weights=False, **options):
    """Exponentials in float32, Kahan's summation for the row sum, and a result in Fortran order."""
    if query.dtype == np.float64:
        raise TypeError("float64 is not supported: float32 and float16 are")
    _, _, v, s, seen, _ = prepare(query, key, value, **options)
    e = np.exp((s - finite(s.max(-1, keepdims=True, initial=-np.inf))).astype(np.float32))
    total, lost = np.zeros(e.shape[:3], np.float32), np.zeros(e.shape[:3], np.float32)
    for j in range(s.shape[3]):
        y = e[..., j] - lost
        t = total + y
        lost, total = (t - total) - y, t
    w = e.astype(np.float64) / np.where(total == 0, 1, total)[..., None]
    return answer(query, np.asfortranarray(mix(w, seen, v)), w, w, return_weights, False)


@takes("scale attn_mask return_lse")
@quiet
def lazy_rescale(query, key, value, return_lse=False, **options):
    """The maximum may lag by 8 in base 2, with everything in one frame, as in flash-attention 4."""
    _, _, v, s, seen, _ = prepare(query, key, value, **options)
    s, m = s * LOG2E, np.full((*s.shape[:3], 1), -np.inf)
    total, acc = np.zeros_like(m), np.zeros((*s.shape[:3], v.shape[3]))
    for part in (slice(j, j + 8) for j in range(0, s.shape[3], 8)):
        new = np.maximum(m, s[..., part].max(-1, keepdims=True))
        new = np.where(new - m <= 8, m, new)
        p, r = np.exp2(s[..., part] - finite(new)), np.exp2(m - finite(new))
        total = total * r + p.sum(-1, keepdims=True)
        acc, m = acc * r + mix(p, seen[..., part], v[:, :, part]), new
    out, lse = acc / np.where(total == 0, 1, total), (m + np.log2(total)) * LN2
    return answer(query, out, p if s.shape[3] else s, lse[..., 0], False, return_lse)


def _stream(shape, dv):
    """Take (scores, values, visible keys) of some keys, and give the state back."""
    m, total, acc = np.full((*shape, 1), -np.inf), np.zeros((*shape, 1)), np.zeros((*shape, dv))
    while True:
        s, v, seen = yield m, total, acc
        new = np.maximum(m, s.max(-1, keepdims=True, initial=-np.inf))
        a, p = np.exp(m - finite(new)), np.exp(s - finite(new))
        m, total, acc = new, total * a + p.sum(-1, keepdims=True), acc * a + mix(p, seen, v)


@takes("attn_mask is_causal q_offset window alibi_slopes softcap scale key_lengths return_lse")
@quiet
def coroutine(query, key, value, return_lse=False, **options):
    """Send 1, 2, 3, ... keys to a coroutine."""
    _, _, v, s, seen, _ = prepare(query, key, value, **options)
    stream = _stream(s.shape[:3], v.shape[3])
    m, total, acc = next(stream)
    at, step = 0, 1
    while at < s.shape[3]:
        part = slice(at, at + step)
        m, total, acc = stream.send((s[..., part], v[:, :, part], seen[..., part]))
        at, step = at + step, step + 1
    lse = finite(m) + np.log(total)
    return answer(query, acc / np.where(total == 0, 1, total), s, lse[..., 0], False, return_lse)


@takes("attn_mask bias softcap")
@quiet
def bits_of_a_mask(query, key, value, attn_mask=None, **options):
    """Pack a bool mask into bits, and refuse other masks."""
    _, _, v, s, seen, _ = prepare(query, key, value, **options)
    full = np.broadcast_to(True if attn_mask is None else only_bool(attn_mask), s.shape)
    bits, j = np.packbits(full, axis=-1, bitorder="little"), np.arange(s.shape[3])
    seen = seen & ((bits[..., j >> 3] >> (j & 7).astype(np.uint8)) & 1 == 1)
    w, _ = softmax(np.where(seen, s, -np.inf))
    return mix(w, seen, v).astype(query.dtype)


@quiet
def complex_numbers(query, key, value, is_causal=False, scale=None):
    """Read the channels of a head in pairs as complex numbers; refuse odd head sizes."""
    d = query.shape[3]
    if d % 2:
        raise ValueError("head size must be even")
    q, k, v = by_heads(query, key, value)
    q, k = (x[..., 0::2] + 1j * x[..., 1::2] for x in (q, k))
    s = np.einsum("bhlc,bhsc->bhls", q, k.conj()).real * (d**-0.5 if scale is None else scale)
    seen = sight(s.shape, is_causal)
    w, _ = softmax(np.where(seen, s, -np.inf))
    return mix(w, seen, v).astype(query.dtype)


@functools.partial(np.vectorize, signature="(l,d),(s,d),(s,e),()->(l,e)")
def _one_head(q, k, v, scale):
    return _mean(q @ k.T * scale, v, np.matmul)


def vectorized(query, key, value, scale=None):
    """Call numpy.vectorize with a signature; refuse empty arrays."""
    if 0 in query.shape or 0 in key.shape:
        raise ValueError("empty input")
    scale = query.shape[3] ** -0.5 if scale is None else scale
    return _one_head(*by_heads(query, key, value), scale).astype(query.dtype)


def exact_sums(query, key, value, is_causal=False, q_offset=None, scale=None, sinks=None):
    """Use lists and math.fsum; small inputs and one sink for each head only."""
    B, H, L, d = query.shape
    G, S, dv = value.shape[1:]
    if B * H * L * S * (d + dv) > 400_000:
        raise ValueError("too large for exact sums")
    sinks = None if sinks is None else one_sink(sinks, H)
    sc = 1 / math.sqrt(d) if scale is None else float(scale)
    at = places(q_offset, B, L, S)
    K, V = key.tolist(), value.tolist()
    out = np.zeros((B, H, L, dv))
    for b, h, i in itertools.product(range(B), range(H), range(L)):
        kk, vv, q = K[b][h * G // H], V[b][h * G // H], query[b, h, i].tolist()
        n = min(S, max(0, int(at[b, i]) + 1)) if is_causal else S
        s = [math.fsum(x * y for x, y in zip(q, kk[j], strict=True)) * sc for j in range(n)]
        if not s:
            continue
        top = max(s) if sinks is None else max(*s, float(sinks[h]))
        e = [math.exp(x - top) for x in s]
        z = math.fsum(e) + (0.0 if sinks is None else math.exp(float(sinks[h]) - top))
        for c in range(dv):
            out[b, h, i, c] = math.fsum(e[j] * vv[j][c] for j in range(n)) / z
    return out.astype(query.dtype)


@quiet
def diagonals(query, key, value, window=None, q_offset=None, is_causal=False):
    """Go along the diagonals of a window that is bounded on both sides; refuse other windows."""
    if window is None or window[0] is None or window[1] is None:
        raise ValueError("needs a window bounded on both sides")
    B, H, L, d = query.shape
    S = key.shape[2]
    left, right = int(window[0]), int(window[1])
    right = min(right, 0) if is_causal else right
    q, k, v = by_heads(query, key, value)
    q, at = q * d**-0.5, places(q_offset, B, L, S)
    m, total = np.full((B, H, L, 1), -np.inf), np.zeros((B, H, L, 1))
    acc = np.zeros((B, H, L, v.shape[3]))
    first, last = max(-left, -int(at.max(initial=0))), min(right, S - int(at.min(initial=0)))
    for o in range(first, last + 1) if S and L else ():
        inside = ((at + o >= 0) & (at + o < S))[:, None, :, None]
        j = np.clip(at + o, 0, S - 1)[:, None, :, None]
        s = (q * np.take_along_axis(k, j, 2)).sum(-1, keepdims=True)
        new = np.maximum(m, np.where(inside, s, -np.inf))
        a, p = np.exp(m - finite(new)), np.exp(np.where(inside, s, -np.inf) - finite(new))
        total = total * a + p
        acc, m = acc * a + np.where(inside, p * np.take_along_axis(v, j, 2), 0), new
    return (acc / np.where(total == 0, 1, total)).astype(query.dtype)


@takes("scale softcap sinks")
@quiet
def base_two_with_sinks(query, key, value, **options):
    """Use base 2, and head sizes up to 8 or multiples of 8."""
    if query.shape[3] > 8 and query.shape[3] % 8:
        raise ValueError("head size")
    _, _, v, s, _, extra = prepare(query, key, value, **options)
    m = np.maximum(
        s.max(-1, keepdims=True, initial=-1e300), extra.max(-1, keepdims=True, initial=-1e300)
    )
    e = np.exp2((s - m) * LOG2E)
    total = e.sum(-1, keepdims=True) + np.exp2((extra - m) * LOG2E).sum(-1, keepdims=True)
    return (e @ v / np.where(total == 0, 1, total)).astype(query.dtype)


def torch_one_line(query, key, value, scale=None):
    """Wrap scaled_dot_product_attention."""
    q, k, v = (torch.from_numpy(x.copy()) for x in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, scale=scale, enable_gqa=True).numpy()


def torch_einsum(query, key, value, return_lse=False):
    """Use torch.einsum and torch.logsumexp in float64."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (torch.from_numpy(x.astype(np.float64)) for x in (query, key, value))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    x = torch.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(query.shape[3])
    lse = torch.logsumexp(x, dim=-1) if key.shape[2] else x.new_full(x.shape[:-1], -math.inf)
    w = torch.exp(x - lse.nan_to_num(neginf=0)[..., None])
    out = torch.einsum("bhls,bhsv->bhlv", w, v).numpy().astype(query.dtype)
    return (out, lse.numpy().astype(np.result_type(out, np.float32))) if return_lse else out


RIGHT = [
    loops_over_queries,
    tiles_of_thirteen_backwards,
    merge_of_three_splits,
    heads_last,
    minus_1e30,
    powers_of_two,
    no_maximum_but_small_scores,
    masked_arrays,
    options_by_name,
    equal_heads_only,
    square_only,
    sizes_of_eight_only,
    short_decode_only,
    scratch_buffers,
    blocks_of_five_queries,
    float32_in_reversed_order,
    causal_by_slices,
    sinks_by_correction,
    lengths_by_slices,
    lengths_by_zeroing,
    causal_with_any_offset,
    rows_by_apply,
    softcap_by_exponentials,
    keys_as_columns,
    no_float64_please,
    differences_of_weights,
    batch_and_heads_in_one,
    two_mask_shapes_only,
    keys_before_queries,
    window_by_sliding_views,
    running_mean,
    narrow_exponentials,
    lazy_rescale,
    coroutine,
    bits_of_a_mask,
    complex_numbers,
    vectorized,
    exact_sums,
    base_two_with_sinks,
    functools.partial(diagonals, window=(3, 2)),  # it refuses calls without a window
    *([torch_one_line, torch_einsum] if torch else []),
]
