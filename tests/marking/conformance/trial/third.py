"""Kernels of a third trial: their mistakes were missed, or had no name, when they arrived."""

import numpy as np

from .second_options_pieces import NEG, give, kept, place_of, quiet, softmax, weigh, wide


def _begin(query, key, value):
    """Return queries, keys and values in float64, one key head per query head, and the scores."""
    q, k, v = wide(query, key, value)
    return q, k, v, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


def _plain(query, key, value):
    _q, _k, v, s = _begin(query, key, value)
    w, _ = softmax(s, kept(s.shape))
    return give(weigh(w, kept(s.shape), v), query)


@quiet
def alibi_by_columns(
    query, key, value, alibi_slopes=None, is_causal=False, q_offset=None, return_lse=False
):
    """Under a causal mask, ALiBi is slope * j: only the LSE shows the missing constant of a row."""
    _q, _k, v, s = _begin(query, key, value)
    keep = kept(s.shape, is_causal, q_offset)
    if alibi_slopes is not None:
        slopes, j = np.asarray(alibi_slopes, np.float64)[:, None, None], np.arange(s.shape[-1])
        i = np.arange(s.shape[2])[:, None] + place_of(q_offset, len(s), *s.shape[2:])
        s = s + slopes * (j if is_causal else -abs(i - j))
    w, lse = softmax(s, keep)
    return give(weigh(w, keep, v), query, lse=lse if return_lse else None)


@quiet
def window_of_first_row(query, key, value, is_causal=False, window=None, q_offset=None):
    """Tiles of 4 queries begin at a key that follows from the offset of batch row 0."""
    _q, _k, v, s = _begin(query, key, value)
    keep = kept(s.shape, is_causal, q_offset, window)
    if window is not None and window[0] is not None and len(s):
        first = int(place_of(q_offset, len(s), *s.shape[2:])[0, 0, 0, 0])
        tile = np.arange(s.shape[2])[:, None] // 4 * 4
        keep = keep & (np.arange(s.shape[-1]) >= first + tile - window[0])
    w, _ = softmax(s, keep)
    return give(weigh(w, keep, v), query)


@quiet
def splits_publish_sinks(
    query, key, value, is_causal=False, q_offset=None, sinks=None, return_lse=False
):
    """Each of four splits without visible keys joins with the sink as its LSE."""
    _q, _k, v, s = _begin(query, key, value)
    keep = kept(s.shape, is_causal, q_offset)
    size = max(1, -(-s.shape[-1] // 4))
    outs, lses = [], []
    for begin in range(0, max(s.shape[-1], 1), size):
        part = slice(begin, begin + size)
        w, lse = softmax(s[..., part], keep[..., part], None if begin else sinks)
        if sinks is not None:
            z = np.asarray(sinks, np.float64).reshape(s.shape[1], -1)
            alone = np.log(np.exp(z).sum(-1))[:, None]
            lse = np.where(keep[..., part].any(-1), lse, alone)
        outs.append(weigh(w, keep[..., part], v[:, :, part]))
        lses.append(lse)
    top = np.max(lses, axis=0)
    top = np.where(top == NEG, 0, top)
    lse = top + np.log(np.exp(np.array(lses) - top).sum(0))
    shares = [np.where(one == NEG, 0, np.exp(one - lse))[..., None] for one in lses]
    out = sum(o * share for o, share in zip(outs, shares, strict=True))
    return give(out, query, lse=lse if return_lse else None)


@quiet
def row_sum_in_half(query, key, value):
    """The sum of a row has the type of the query, and grows key by key."""
    _q, _k, v, s = _begin(query, key, value)
    e = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    total = e.sum(-1)
    if query.dtype.itemsize == 2:
        total = np.zeros(e.shape[:-1], query.dtype)
        for column in np.moveaxis(e, -1, 0):
            total = (total + column.astype(query.dtype)).astype(query.dtype)
    total = np.where(total == 0, 1, total.astype(np.float64))
    return give(e @ v / total[..., None], query)


@quiet
def query_in_memory_order(query, key, value):
    """Up to eight queries are read in the order of memory."""
    if query.shape[2] <= 8:
        query = query.ravel(order="K").reshape(query.shape)
    return _plain(query, key, value)


@quiet
def weights_of_their_time(query, key, value, is_causal=False, q_offset=None, return_weights=False):
    """The returned weights of a tile of 8 keys subtract the maximum up to this tile."""
    _q, _k, v, s = _begin(query, key, value)
    keep = kept(s.shape, is_causal, q_offset)
    s = np.where(keep, s, NEG)
    w, _ = softmax(s, keep)
    stale = np.zeros_like(s)
    last = np.maximum(s.max(-1, keepdims=True, initial=NEG), -1e30)
    for begin in range(0, s.shape[-1], 8):
        top = s[..., : begin + 8].max(-1, keepdims=True)
        factor = np.where(top == NEG, 1, np.exp(last - top))
        stale[..., begin : begin + 8] = w[..., begin : begin + 8] * factor
    return give(weigh(w, keep, v), query, stale if return_weights else None)


@quiet
def grouped(query, key, value):
    return _plain(query, key, value)


@quiet
def grouped_backward(query, key, value, grad_out):
    """The gradient of query head h goes to key head h % Hkv."""
    q, k, v, s = _begin(query, key, value)
    w, _ = softmax(s, kept(s.shape))
    up = grad_out.astype(np.float64)
    d_w = up @ v.swapaxes(-1, -2)
    d_s = w * (d_w - (w * d_w).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    heads = key.shape[1]
    back = [d_s.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ up]
    folded = [x.reshape(len(x), -1, heads, *x.shape[2:]).sum(1) for x in back]
    return tuple(x.astype(query.dtype) for x in (d_s @ k, *folded))
