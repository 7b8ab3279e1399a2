"""Kernels of a fourth trial: one path of an option is wrong, such as the LSE or one gradient."""

import numpy as np

from .second_options_pieces import (
    NEG,
    ahead_of,
    give,
    kept,
    quiet,
    scale_of,
    softmax,
    split_mask,
    weigh,
    wide,
)


def _scores(q, k, scale=None):
    return q @ k.swapaxes(-1, -2) * scale_of(scale, q.shape[-1])


@quiet
def half_products(query, key, value, scale=None):
    """In float16, the products of queries and keys are stored as float16 before the scale."""
    q, k, v = wide(query, key, value)
    s = q @ k.swapaxes(-1, -2)
    if query.dtype == np.float16:
        s = s.astype(np.float16).astype(np.float64)
    w, _ = softmax(s * scale_of(scale, q.shape[-1]), kept(s.shape))
    return give(weigh(w, kept(s.shape), v), query)


def tail_of_head(width):
    """Return a kernel that reads the numbers of a head `width` at a time, and no rest."""

    @quiet
    def attention(query, key, value, scale=None):
        q, k, v = wide(query, key, value)
        d = q.shape[-1]
        whole = d // width * width or d
        s = _scores(q[..., :whole], k[..., :whole], scale_of(scale, d))
        w, _ = softmax(s, kept(s.shape))
        return give(weigh(w, kept(s.shape), v), query)

    attention.__name__ = f"tail_of_{width}"
    return attention


tail_of_8, tail_of_16, tail_of_32, tail_of_64 = map(tail_of_head, (8, 16, 32, 64))


@quiet
def tail_of_columns(query, key, value):
    """Columns of the output after the last whole vector of 16 stay 0."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    w, _ = softmax(s, kept(s.shape))
    out = weigh(w, kept(s.shape), v)
    out[..., v.shape[-1] // 16 * 16 or v.shape[-1] :] = 0
    return give(out, query)


@quiet
def padding_before_cap(query, key, value, softcap=None, key_lengths=None, is_causal=False):
    """Padding becomes -inf before the soft cap, and so -cap after it."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    keep, read = kept(s.shape, is_causal, "end"), kept(s.shape, key_lengths=key_lengths)
    s = np.where(read, s, NEG)
    if softcap is None:
        keep = keep & read
    else:
        s = softcap * np.tanh(s / softcap)
    w, _ = softmax(s, keep)
    return give(weigh(w, keep, v), query)


@quiet
def causal_before_cap(query, key, value, softcap=None, is_causal=False, attn_mask=None):
    """The causal mask becomes -inf before the soft cap, and so -cap after it."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    seen = kept(s.shape, is_causal, "end")
    keep, added = split_mask(attn_mask)
    s = np.where(seen, s, NEG)
    if softcap is None:
        keep = keep & seen
    else:
        s = softcap * np.tanh(s / softcap)
    w, _ = softmax(s + added, np.broadcast_to(keep, s.shape))
    return give(weigh(w, np.broadcast_to(keep, s.shape), v), query)


@quiet
def alibi_one_too_far(query, key, value, alibi_slopes=None, q_offset=None, return_lse=False):
    """The distance of ALiBi counts from 1: only the LSE shows it."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    if alibi_slopes is not None:
        far = np.abs(ahead_of(q_offset, len(s), *s.shape[2:])) + 1
        s = s - np.asarray(alibi_slopes, np.float64)[:, None, None] * far
    w, lse = softmax(s, kept(s.shape))
    return give(weigh(w, kept(s.shape), v), query, lse=lse if return_lse else None)


@quiet
def lse_of_default_scale(query, key, value, scale=None, return_lse=False):
    """The LSE is computed once more, without the argument scale."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k, scale)
    w, _ = softmax(s, kept(s.shape))
    _, lse = softmax(_scores(q, k), kept(s.shape))
    return give(weigh(w, kept(s.shape), v), query, lse=lse if return_lse else None)


@quiet
def lse_without_bias_of_one_query(query, key, value, bias=None, return_lse=False):
    """With one query, the LSE lacks the bias."""
    q, k, v = wide(query, key, value)
    seen, added = split_mask(bias)
    s = _scores(q, k)
    seen = np.broadcast_to(seen, s.shape)
    w, lse = softmax(s + added, seen)
    if q.shape[2] == 1:
        _, lse = softmax(s, seen)
    return give(weigh(w, seen, v), query, lse=lse if return_lse else None)


@quiet
def weights_without_cap(query, key, value, softcap=None, return_weights=False):
    """The returned weights come from scores before the soft cap."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    shown, _ = softmax(s, kept(s.shape))
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    w, _ = softmax(s, kept(s.shape))
    return give(weigh(w, kept(s.shape), v), query, shown if return_weights else None)


@quiet
def weights_of_nothing(query, key, value, attn_mask=None, return_weights=False):
    """Rows that see nothing have an output of 0, but weights of NaN."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    seen, added = split_mask(attn_mask)
    seen = np.broadcast_to(seen, s.shape)
    w, _ = softmax(s + added, seen)
    shown = np.where(seen.any(-1, keepdims=True), w, np.nan)
    return give(weigh(w, seen, v), query, shown if return_weights else None)


@quiet
def alibi_signed(query, key, value, alibi_slopes=None, is_causal=False, q_offset=None):
    """The distance of ALiBi is negative for later keys."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    keep = kept(s.shape, is_causal, q_offset)
    if alibi_slopes is not None:
        far = ahead_of(q_offset, len(s), *s.shape[2:])
        s = s - np.asarray(alibi_slopes, np.float64)[:, None, None] * far
    w, _ = softmax(s, keep)
    return give(weigh(w, keep, v), query)


@quiet
def alibi_signed_without_mask(query, key, value, alibi_slopes=None, q_offset=None):
    return alibi_signed(query, key, value, alibi_slopes, q_offset=q_offset)


@quiet
def alibi_signed_in_decoding(query, key, value, alibi_slopes=None, is_causal=False, q_offset=None):
    """With one query, the distance of ALiBi is negative for later keys."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k)
    if alibi_slopes is not None:
        far = ahead_of(q_offset, len(s), *s.shape[2:])
        far = far if s.shape[2] == 1 else np.abs(far)
        s = s - np.asarray(alibi_slopes, np.float64)[:, None, None] * far
    keep = kept(s.shape, is_causal, q_offset)
    w, _ = softmax(s, keep)
    return give(weigh(w, keep, v), query)


@quiet
def forward(query, key, value, attn_mask=None, scale=None, is_causal=False, softcap=None):
    q, k, v = wide(query, key, value)
    s = _scores(q, k, scale)
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    seen, added = split_mask(attn_mask)
    seen = seen & kept(s.shape, is_causal, "end")
    w, _ = softmax(s + added, seen)
    return give(weigh(w, seen, v), query)


def _gradients(query, key, value, grad_out, scale, seen, added, factors=(None, None)):
    """Return the gradients of query, key and value; `factors` are scales of the first two."""
    q, k, v = wide(query, key, value)
    s = _scores(q, k, scale)
    seen = np.broadcast_to(seen, s.shape)
    w, _ = softmax(s + added, seen)
    up = grad_out.astype(np.float64)
    d_w = up @ v.swapaxes(-1, -2)
    d_s = w * (d_w - (w * d_w).sum(-1, keepdims=True))
    mine, other = (scale_of(x, q.shape[-1]) for x in factors)
    heads = key.shape[1]
    back = [d_s.swapaxes(-1, -2) @ q * other, w.swapaxes(-1, -2) @ up]
    folded = [x.reshape(len(x), heads, -1, *x.shape[2:]).sum(2) for x in back]
    return tuple(x.astype(query.dtype) for x in (d_s @ k * mine, *folded))


@quiet
def key_gradient_of_default_scale(query, key, value, grad_out, scale=None, is_causal=False):
    """The gradient of keys has the default scale; the gradient of queries has the given one."""
    seen = kept((*query.shape[:3], key.shape[2]), is_causal, "end")
    return _gradients(query, key, value, grad_out, scale, seen, 0, (scale, None))


@quiet
def gradients_of_nothing(query, key, value, grad_out, attn_mask=None, is_causal=False):
    """A row that sees nothing has a probability of exp(-inf - -inf)."""
    shape = (*query.shape[:3], key.shape[2])
    seen, added = split_mask(attn_mask)
    seen = np.broadcast_to(seen & kept(shape, is_causal, "end"), shape)
    added = np.where(seen.any(-1, keepdims=True), added, np.nan)
    return _gradients(query, key, value, grad_out, None, seen | ~seen.any(-1, keepdims=True), added)


@quiet
def query_gradient_without_mask(query, key, value, grad_out, attn_mask=None, is_causal=False):
    """The kernel of the gradient of queries forgets the mask."""
    causal = kept((*query.shape[:3], key.shape[2]), is_causal, "end")
    seen, added = split_mask(attn_mask)
    whole = _gradients(query, key, value, grad_out, None, causal, 0)
    right = _gradients(query, key, value, grad_out, None, causal & seen, added)
    return (whole[0], *right[1:])


@quiet
def gradients_without_cap(query, key, value, grad_out, softcap=None, is_causal=False):
    """The backward pass recomputes the weights without the soft cap, from the LSE with it."""
    q, k, v = wide(query, key, value)
    keep = kept((*query.shape[:3], key.shape[2]), is_causal, "end")
    s = _scores(q, k)
    capped = s if softcap is None else softcap * np.tanh(s / softcap)
    w, lse = softmax(capped, keep)
    up = grad_out.astype(np.float64)
    delta = (up * (w @ v)).sum(-1, keepdims=True)
    w = np.where(keep, np.exp(s - lse[..., None]), 0)
    d_s = w * (up @ v.swapaxes(-1, -2) - delta) / np.sqrt(q.shape[-1])
    back = [d_s.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ up]
    folded = [x.reshape(len(x), key.shape[1], -1, *x.shape[2:]).sum(2) for x in back]
    return tuple(x.astype(query.dtype) for x in (d_s @ k, *folded))
