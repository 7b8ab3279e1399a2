"""Pieces that several kernels share. All of them are right."""

import functools
import math

import numpy as np

HIDE = -np.inf
LOG2E = math.log2(math.e)
LN2 = math.log(2.0)


def quiet(function):
    """Switch NumPy's warnings off while a function runs: hidden keys may hold anything."""

    @functools.wraps(function)
    def inner(*args, **kwargs):
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return inner


def wide(*arrays):
    return tuple(np.asarray(a).astype(np.float64) for a in arrays)


def ratio(query, key):
    return query.shape[1] // key.shape[1]


def spread(x, r):
    return np.repeat(x, r, axis=1)


def by_heads(query, key, value):
    """Return float64 arrays with a head of keys and values for each query head."""
    q, k, v = wide(query, key, value)
    return q, *(spread(x, ratio(query, key)) for x in (k, v))


def starts(q_offset, B, L, S):
    if q_offset is None or isinstance(q_offset, str):
        q_offset = 0 if q_offset == "start" else S - L
    return np.broadcast_to(np.asarray(q_offset).astype(np.int64).reshape(-1), (B,))


def places(q_offset, B, L, S):
    return starts(q_offset, B, L, S)[:, None] + np.arange(L)


def sight(
    shape,
    is_causal=False,
    q_offset=None,
    window=None,
    key_lengths=None,
    attn_mask=None,
    bias=None,
):
    """Which keys each query sees, as booleans (B, H, L, S); -inf in a float mask or bias hides."""
    B, _, L, S = shape
    seen = np.ones(shape, dtype=bool)
    at = places(q_offset, B, L, S)[:, None, :, None]
    j = np.arange(S)
    if is_causal:
        seen &= j <= at
    if window is not None:
        left, right = window
        if left is not None:
            seen &= j >= at - left
        if right is not None:
            seen &= j <= at + right
    if key_lengths is not None:
        seen &= j < np.asarray(key_lengths).reshape(B, 1, 1, 1)
    if attn_mask is not None:
        attn_mask = np.asarray(attn_mask)
        seen &= attn_mask if attn_mask.dtype == bool else ~np.isneginf(attn_mask)
    if bias is not None:
        seen &= ~np.isneginf(np.asarray(bias))
    return seen


def sink_table(sinks, H):
    """Sinks as (H, n): each head may have several."""
    return np.asarray(sinks).astype(np.float64).reshape(H, -1)


def one_sink(sinks, H):
    """Sinks as (H,), or an error."""
    sinks = np.asarray(sinks)
    if sinks.shape != (H,):
        raise ValueError("only one sink a head is supported, of shape (H,)")
    return sinks.astype(np.float64)


def only_bool(attn_mask):
    attn_mask = np.asarray(attn_mask)
    if attn_mask.dtype != bool:
        raise TypeError("this kernel takes boolean masks only")
    return attn_mask


def softmax(scores):
    """Softmax of masked scores, and its LSE; rows of nothing but -inf give zeros."""
    m = scores.max(axis=-1, keepdims=True, initial=HIDE)
    e = np.exp(scores - np.where(np.isneginf(m), 0.0, m))
    sums = e.sum(axis=-1, keepdims=True)
    return e / np.where(sums == 0, 1.0, sums), (m + np.log(sums))[..., 0]


def mix(p, seen, x):
    """Compute p @ x, where an unseen number of x counts for nothing, whatever it holds."""
    ok = np.isfinite(x)
    if ok.all():
        return p @ x
    out = p @ np.where(ok, x, 0)
    bad = ~ok
    for j in np.flatnonzero(bad.any(axis=-1).reshape(-1, x.shape[-2]).any(axis=0)):
        hit = seen[..., :, j, None] & bad[..., j, None, :]
        out = out + np.where(hit, p[..., :, j, None] * x[..., j, None, :], 0)
    return out


def pack(out, weights=None, lse=None, return_weights=False, return_lse=False):
    answer = (out,)
    if return_weights:
        answer += (weights,)
    if return_lse:
        answer += (lse,)
    return answer if len(answer) > 1 else out


def weigh(weights, value):
    """Return weights @ value, but a weight of 0 silences even NaN and infinity."""
    odd = ~np.isfinite(value)
    out = weights @ np.where(odd, 0, value)
    if odd.any():
        out[((weights != 0).astype(float) @ odd.astype(float)) > 0] = np.nan
    return out


def split_mask(mask):
    """Return which keys a mask or bias leaves visible, and what it adds to scores."""
    if mask.dtype == bool:
        return mask, 0.0
    return mask != HIDE, np.where(mask == HIDE, 0, mask).astype(np.float64)


def finite(x):
    """Replace -inf by 0."""
    return np.where(x == HIDE, 0, x)


def answer(query, out, weights, lse, return_weights, return_lse):
    """Return the output in the type of the query, the others in float32 or float64."""
    kind = np.float64 if query.dtype == np.float64 else np.float32
    return pack(
        out.astype(query.dtype), weights.astype(kind), lse.astype(kind), return_weights, return_lse
    )


def as_contiguous(x, dense=False):
    """Read x as if it were contiguous; if dense, as if only its last axis were."""
    steps = [*x.strides[:-1], x.itemsize] if dense else [x.itemsize]
    while len(steps) < x.ndim:
        steps.insert(0, steps[0] * x.shape[x.ndim - len(steps)])
    reach = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True))
    need = sum((n - 1) * step for n, step in zip(x.shape, steps, strict=True))
    if x.size == 0 or min(x.strides) <= 0 or need > reach:
        return x
    return np.lib.stride_tricks.as_strided(x, x.shape, steps, writeable=False)
