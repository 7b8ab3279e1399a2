"""The second trial: defective kernels with masks, windows, sinks, lengths and other options."""

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


# causal, q_offset
@quiet
def flash_prefill(query, key, value, is_causal=False, q_offset=None, scale=None):
    """One query at a time; the loop's end is min(S, i + 1), as if no keys came before the block.

    https://github.com/gittensor-ai-lab/sparkinfer/pull/14
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    sc = scale_of(scale, d)
    off = place_of(q_offset, b, L, s) if is_causal else None
    out = np.zeros((b, h, L, v.shape[-1]))
    for bi in range(b):
        for hi in range(h):
            for i in range(L):
                end = s
                if is_causal:
                    end = min(s, i + 1)
                    end = max(0, min(end, i + 1 + int(off[bi, 0, 0, 0])))
                if end == 0:
                    continue
                x = k[bi, hi, :end] @ q[bi, hi, i] * sc
                p = np.exp(x - x.max())
                out[bi, hi, i] = p @ v[bi, hi, :end] / p.sum()
    return give(out, query)


@quiet
def mlx_like_sdpa(queries, keys, values, is_causal=False, q_offset="end"):
    """The lower-right alignment turns into the upper-left one as soon as there are more queries
    than keys.

    https://github.com/ml-explore/mlx/pull/2967
    """
    q, k, v = wide(queries, keys, values)
    L, s = q.shape[2], k.shape[2]
    scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    if isinstance(q_offset, str) and q_offset == "end":
        q_offset = s - L if s >= L else 0
    keep = kept(scores.shape, is_causal, q_offset)
    p, _ = softmax(scores, keep)
    return give(weigh(p, keep, v), queries)


@quiet
def batched_decoder_attention(query, key, value, *, is_causal=False, q_offset=None, window=None):
    """The mask is made once, from the first row's offset.

    https://github.com/EricLBuehler/candle-vllm/pull/140
    """
    q, k, v = wide(query, key, value)
    b, _h, L, d = q.shape
    s = k.shape[2]
    keep = np.ones((1, 1, L, s), bool)
    if is_causal or window is not None:
        first = int(place_of(q_offset, b, L, s)[0, 0, 0, 0]) if b else 0
        keep = kept((1, 1, L, s), is_causal, first, window)
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(d)
    p, _ = softmax(scores, keep)
    return give(weigh(p, keep, v), query)


class TinyAttention:
    """The causal mask only where there is no cache (L == S): a chunk after a cache sees its own
    future.

    https://github.com/Mikyx-1/TinyLLM/issues/17
    """

    def __init__(self, heads=None):
        self.heads = heads

    @staticmethod
    def _causal(shape, q_offset):
        return kept(shape, True, q_offset)

    @quiet
    def __call__(self, query, key, value, is_causal=False, q_offset=None):
        q, k, v = wide(query, key, value)
        b, h, L, d = q.shape
        s = k.shape[2]
        keep = np.ones((b, h, L, s), bool)
        if is_causal:
            place_of(q_offset, b, L, s)
            cached = s != L
            if not cached:
                keep = self._causal(keep.shape, q_offset)
        p, _ = softmax(q @ k.transpose(0, 1, 3, 2) * d**-0.5, keep)
        return give(weigh(p, keep, v), query)


tiny_attention = TinyAttention()


@quiet
def split_kv_attention(query, key, value, is_causal=False, q_offset=None, key_lengths=None):
    """Keys in splits of 32, merged by their LSE; a split that a row does not see is 0/0 and
    spoils the row.

    https://github.com/flashinfer-ai/flashinfer/pull/4401
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = kept((b, h, L, s), is_causal, q_offset, key_lengths=key_lengths)
    parts, lses = [], []
    for a in range(0, s, 32):
        c = slice(a, a + 32)
        x = np.where(keep[..., c], q @ k[:, :, c].swapaxes(-1, -2) / math.sqrt(d), NEG)
        m = x.max(-1, keepdims=True)
        m0 = np.where(m == NEG, 0.0, m)
        e = np.exp(x - m0)
        e = np.where(keep[..., c], e, 0.0)
        den = e.sum(-1, keepdims=True)
        parts.append(weigh(e, keep[..., c], v[:, :, c]) / den)
        lses.append(m0 + np.log(den))
    if not parts:
        return give(np.zeros((b, h, L, v.shape[-1])), query)
    lses = np.stack(lses)
    top = lses.max(0)
    w = np.exp(lses - np.where(top == NEG, 0.0, top))
    out = (w * np.stack(parts)).sum(0) / w.sum(0)
    return give(np.where(keep.any(-1, keepdims=True), out, 0.0), query)


# windows
def _hf_window(window):
    left, right = window
    return (None if left is None else left + 1, right)


@quiet
def hf_flash_window(query, key, value, window=None, is_causal=False, q_offset=None):
    """One key too many on the left: the inclusive left side is passed on as if it were
    exclusive.

    https://github.com/huggingface/transformers/issues/39408
    """
    q, k, v = wide(query, key, value)
    scores = np.einsum("...id,...jd->...ij", q, k) / np.sqrt(q.shape[-1])
    keep = kept(
        scores.shape, is_causal, q_offset, _hf_window(window) if window is not None else None
    )
    p, _ = softmax(scores, keep)
    return give(weigh(p, keep, v), query)


@quiet
def flashinfer_prefill(q_data, k_data, v_data, *, window=None, is_causal=False, q_offset=None):
    """window's right side never reaches the kernel.

    https://github.com/flashinfer-ai/flashinfer/issues/4893
    """
    window_left = -1
    if window is not None and window[0] is not None:
        window_left = window[0]
    q, k, v = wide(q_data, k_data, v_data)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = np.ones((b, h, L, s), bool)
    if is_causal or window is not None:
        dist = ahead_of(q_offset, b, L, s)
        if is_causal:
            keep &= dist >= 0
        if window_left >= 0:
            keep &= dist <= window_left
    p, _ = softmax(q @ k.swapaxes(2, 3) / math.sqrt(d), keep)
    return give(weigh(p, keep, v), q_data)


@quiet
def tiled_window(query, key, value, is_causal=False, window=None, q_offset=None):
    """16 x 16 tiles; the first key tile is found from the *last* query of a tile, so earlier
    queries lose keys.
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = kept((b, h, L, s), is_causal, q_offset, window)
    off = place_of(q_offset, b, L, s) if window is not None else None
    out = np.zeros((b, h, L, v.shape[-1]))
    bm = bn = 16
    for bi in range(b):
        for i0 in range(0, L, bm):
            i1 = min(L, i0 + bm)
            start = 0
            if window is not None and window[0] is not None:
                start = max(0, (i1 - 1 + int(off[bi, 0, 0, 0]) - window[0]) // bn * bn)
            for hi in range(h):
                m = np.full(i1 - i0, NEG)
                den = np.zeros(i1 - i0)
                acc = np.zeros((i1 - i0, v.shape[-1]))
                for j0 in range(start, s, bn):
                    c = slice(j0, j0 + bn)
                    see = keep[bi, hi, i0:i1, c]
                    if not see.any():
                        continue
                    x = np.where(see, q[bi, hi, i0:i1] @ k[bi, hi, c].T / math.sqrt(d), NEG)
                    new = np.maximum(m, x.max(-1))
                    base = np.where(new == NEG, 0.0, new)
                    e = np.where(see, np.exp(x - base[:, None]), 0.0)
                    r = np.exp(m - base)
                    den = den * r + e.sum(-1)
                    acc = acc * r[:, None] + weigh(e, see, v[bi, hi, c])
                    m = new
                out[bi, hi, i0:i1] = acc / np.where(den == 0, 1.0, den)[:, None]
    return give(out, query)


# sinks
@quiet
def cute_learnable_sink(query, key, value, sinks=None, return_lse=False):
    """The sink joins after the running maximum is final: exp(sink - max) overflows for a sink
    far above the scores.

    https://github.com/Dao-AILab/flash-attention/pull/2752
    """
    q, k, v = wide(query, key, value)
    _b, h, _L, d = q.shape
    acc = np.float64 if np.asarray(query).dtype == np.float64 else np.float32
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    m = x.max(-1, keepdims=True, initial=NEG)
    z = None
    if sinks is not None:
        z = np.asarray(sinks).astype(np.float64)
        z = z.reshape(h, 1, -1)
    if z is not None and x.shape[-1] == 0:
        m = np.broadcast_to(z.max(-1, keepdims=True, initial=NEG), m.shape)
    m = np.where(m == NEG, 0.0, m)
    e = np.exp(x - m)
    den = e.sum(-1, keepdims=True)
    if z is not None:
        den = den + np.exp((z - m).astype(acc)).astype(np.float64).sum(-1, keepdims=True)
    out = (e / np.where(den == 0, 1.0, den)) @ v
    lse = np.where(den == 0, NEG, m + np.log(den))[..., 0]
    return give(out, query, lse=lse if return_lse else None)


@quiet
def paged_decode_sinks(query, key, value, *, sinks=None, is_causal=False, q_offset=None):
    """The kernel for one query has no sinks argument at all.

    https://github.com/kekzl/imp/issues/1345
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    keep = kept((b, h, L, k.shape[2]), is_causal, q_offset)
    if L == 1:
        x = np.einsum("bhd,bhjd->bhj", q[:, :, 0], k) / math.sqrt(d)
        p, _ = softmax(x, keep[:, :, 0])
        return give(weigh(p[:, :, None], keep, v), query)
    p, _ = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(d), keep, sinks)
    return give(weigh(p, keep, v), query)


@quiet
def pa_sdpa_sinks(query, key, value, sinks=None, scale=None):
    """Works by key head; the sink is read at the key head's number, not at the query head's.

    https://github.com/openvinotoolkit/openvino/pull/32731
    """
    q, k, v = np.asarray(query), np.asarray(key), np.asarray(value)
    hq, hk = q.shape[1], k.shape[1]
    if hk == 0 or hq % hk or q.shape[-1] == 0:
        raise ValueError("heads")
    g = hq // hk
    qf, kf, vf = wide(q, k, v)
    out = np.zeros((*qf.shape[:3], vf.shape[-1]))
    for kv_head in range(hk):
        for n in range(g):
            hi = kv_head * g + n
            x = (
                qf[:, hi : hi + 1]
                @ kf[:, hi : hi + 1].swapaxes(-1, -2)
                * scale_of(scale, q.shape[-1])
            )
            z = None if sinks is None else np.asarray(sinks)[kv_head : kv_head + 1]
            p, _ = softmax(x, True, z)
            out[:, hi : hi + 1] = p @ vf[:, hi : hi + 1]
    return give(out, query)


@quiet
def sink_lse_of_blind_rows(query, key, value, attn_mask=None, sinks=None, return_lse=False):
    """A row that sees nothing: the maximum stays -inf, the sink's term becomes inf, and the LSE
    NaN.

    https://github.com/NVIDIA/cudnn-frontend/pull/333
    """
    q, k, v = wide(query, key, value)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    keep, add = split_mask(attn_mask)
    keep = np.broadcast_to(keep, x.shape)
    p, lse = softmax(x + add, keep, sinks)
    if sinks is not None:
        blind = ~keep.any(-1)
        m = np.where(blind, NEG, 0.0)
        z = np.asarray(sinks).astype(np.float64).reshape(q.shape[1], 1, -1)
        den = np.exp(z - m[..., None]).sum(-1)
        lse = np.where(blind, m + np.log(den), lse)
    return give(weigh(p, keep, v), query, lse=lse if return_lse else None)


# LSE
@quiet
def flex_lse(query, key, value, is_causal=False, q_offset=None, return_lse=False):
    """The LSE is natural already and is multiplied by ln 2 once more, as if it were in base 2.

    https://github.com/pytorch/pytorch/issues/181645
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    keep = kept((b, h, L, k.shape[2]), is_causal, q_offset)
    p, lse = softmax(np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d), keep)
    out = give(weigh(p, keep, v), query)
    if not return_lse:
        return out
    return out, (lse * math.log(2.0)).astype(np.float64 if out.dtype == np.float64 else np.float32)


@quiet
def fa2_plus_inf_lse(query, key, value, attn_mask=None, return_lse=False):
    """The LSE of a row that sees nothing is +inf.

    https://github.com/Dao-AILab/flash-attention/pull/978
    """
    q, k, v = wide(query, key, value)
    keep, add = split_mask(attn_mask)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + add
    p, lse = softmax(x, keep)
    lse = np.where(lse == NEG, np.inf, lse)
    return give(weigh(p, np.broadcast_to(keep, x.shape), v), query, lse=lse if return_lse else None)


# hidden NaN
@quiet
def fa3_kvcache(query, key, value, key_lengths=None, scale=None):
    """Weights of 0 times the NaN of an unused place of the value cache.

    https://github.com/Dao-AILab/flash-attention/issues/2374
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    keep = kept((b, h, L, k.shape[2]), key_lengths=key_lengths)
    p, _ = softmax(q @ k.swapaxes(-1, -2) * scale_of(scale, d), keep)
    return give(p @ v, query)


@quiet
def additive_mask_decode(query, key, value, attn_mask=None, is_causal=False, q_offset=None):
    """Hides by adding -inf to the score: a hidden key's NaN stays NaN.

    https://github.com/deepbeepmeep/Wan2GP/pull/1628
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    keep, add = split_mask(attn_mask)
    keep = kept((b, h, L, k.shape[2]), is_causal, q_offset) & keep
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d) + add
    x = x + np.where(keep, 0.0, NEG)
    m = x.max(-1, keepdims=True, initial=NEG)
    m = np.where(m == NEG, 0.0, m)
    e = np.exp(x - m)
    den = e.sum(-1, keepdims=True)
    p = e / np.where(den == 0, 1.0, den)
    return give(weigh(p, keep, v), query)


# large scores
@quiet
def fa4_row_max(query, key, value, is_causal=False, q_offset=None, key_lengths=None):
    """16-key tiles from right to left; a tile that a row does not see sets its running maximum
    to 0, which then stays.

    https://github.com/Dao-AILab/flash-attention/issues/2082
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    half = np.asarray(query).dtype != np.float64
    keep = kept((b, h, L, s), is_causal, q_offset, key_lengths=key_lengths)
    m = np.full((b, h, L, 1), NEG)
    den = np.zeros((b, h, L, 1))
    acc = np.zeros((b, h, L, v.shape[-1]))

    def ex(t):
        t = np.exp(t)
        return t.astype(np.float32).astype(np.float64) if half else t

    for j0 in reversed(range(0, s, 16)):
        c = slice(j0, j0 + 16)
        see = keep[..., c]
        x = np.where(see, q @ k[:, :, c].swapaxes(-1, -2) / math.sqrt(d), NEG)
        new = np.maximum(m, x.max(-1, keepdims=True))
        new = np.where(new == NEG, 0.0, new)
        e = np.where(see, ex(x - new), 0.0)
        r = np.where(m == NEG, 0.0, ex(m - new))
        den = den * r + e.sum(-1, keepdims=True)
        acc = acc * r + weigh(e, see, v[:, :, c])
        m = new
    return give(acc / np.where(den == 0, 1.0, den), query)


@quiet
def finite_inf_sentinel(query, key, value, scale=None, is_causal=False, q_offset=None):
    """The running maximum of the raw products begins at -5e4: a row wholly below it comes out as
    zeros.

    https://github.com/flashinfer-ai/flashinfer/issues/4267
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    sm = scale_of(scale, d)
    if sm < 0:
        q, sm = -q, -sm
    keep = kept((b, h, L, k.shape[2]), is_causal, q_offset)
    raw = q @ k.swapaxes(-1, -2)
    m = np.where(keep, raw, NEG).max(-1, keepdims=True, initial=-5e4)
    e = np.where(keep, np.exp((raw - m) * sm), 0.0)
    den = e.sum(-1, keepdims=True)
    p = np.where(den == 0, 0.0, e / np.where(den == 0, 1.0, den))
    return give(weigh(p, keep, v), query)


# masks
@quiet
def xt_flash(query, key, value, attn_mask=None, bias=None):
    """A bool mask is turned over unless a bias comes with it.

    https://github.com/lucidrains/x-transformers/issues/160
    """
    q, k, v = wide(query, key, value)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    keep, add = split_mask(attn_mask)
    if bias is not None:
        kb, ab = split_mask(bias)
        keep, add = keep & kb, add + ab
    elif attn_mask is not None and np.asarray(attn_mask).dtype == bool:
        keep = ~keep
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x + add, keep)
    return give(weigh(p, keep, v), query)


@quiet
def tt_decode_mask(query, key, value, attn_mask=None, scale=None):
    """One query: a mask with one batch is read past its end for the rows after the first, where
    zeros stand.

    https://github.com/tenstorrent/tt-metal/issues/39910
    """
    q, k, v = wide(query, key, value)
    b, _h, L, d = q.shape
    x = q @ k.swapaxes(-1, -2) * scale_of(scale, d)
    if attn_mask is None:
        return give(softmax(x, True)[0] @ v, query)
    mask = np.asarray(attn_mask)
    if mask.dtype.kind in "biu":
        raise TypeError("float masks only")
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if L == 1 and mask.shape[0] == 1 and b > 1:
        pad = np.zeros((b, *mask.shape[1:]), np.float64)
        pad[0] = mask[0]
        mask = pad
    keep, add = split_mask(mask)
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x + add, keep)
    return give(weigh(p, keep, v), query)


@quiet
def micro_sdpa(query, key, value, attn_mask=None):
    """A mask with one query line: only the first query gets it, the others read where nothing is
    hidden.

    https://github.com/openvinotoolkit/openvino/pull/30698
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = np.ones((b, h, L, s), bool)
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        if mask.dtype != bool:
            raise TypeError("bool masks only")
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        lines = mask.shape[2]
        if lines == 1:
            keep[:, :, :1] &= mask
        else:
            keep &= mask
    p, _ = softmax(np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(d), keep)
    return give(weigh(p, keep, v), query)


@quiet
def grouped_mask(query, key, value, attn_mask=None, scale=None):
    """A mask with a line per query head is read at the key head's number where heads are
    grouped.

    https://github.com/pytorch/pytorch/pull/190503
    """
    q4 = np.asarray(query)
    hq, hk = q4.shape[1], np.asarray(key).shape[1]
    q, k, v = wide(query, key, value)
    x = q @ k.swapaxes(-1, -2) * scale_of(scale, q.shape[-1])
    keep, add = True, 0.0
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        if mask.ndim >= 3 and mask.shape[-3] == hq and hq != hk:
            mask = np.take(mask, np.arange(hq) // (hq // hk), axis=-3)
        keep, add = split_mask(mask)
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x + add, keep)
    return give(weigh(p, keep, v), query)


# grouped heads
@quiet
def vector_2pass_gqa(query, key, value, attn_mask=None, scale=None):
    """Grouped heads, one query, no mask: keys and values of batch 0 for every batch.

    https://github.com/ml-explore/mlx/pull/4431
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    x_scale = scale_of(scale, d)
    if L == 1 and attn_mask is None and h != np.asarray(key).shape[1] and b > 0:
        x = np.einsum("bhid,hjd->bhij", q, k[0]) * x_scale
        p, _ = softmax(x, True)
        return give(np.einsum("bhij,hje->bhie", p, v[0]), query)
    keep, add = split_mask(attn_mask)
    x = q @ k.swapaxes(-1, -2) * x_scale + add
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x, keep)
    return give(weigh(p, keep, v), query)


# softcap
@quiet
def onnx_softcap(query, key, value, softcap=None, is_causal=False, q_offset=None):
    """The cap comes after the mask: -inf becomes -softcap, and hidden keys get weight.

    https://github.com/onnx/onnx/issues/7865
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    keep = kept((b, h, L, k.shape[2]), is_causal, q_offset)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if softcap:
        x = softcap * np.tanh(np.where(keep, x, NEG) / softcap)
        p, _ = softmax(x, True)
        return give(p @ v, query)
    p, _ = softmax(x, keep)
    return give(weigh(p, keep, v), query)


# ALiBi
@quiet
def falcon_alibi(query, key, value, alibi_slopes=None, is_causal=False, q_offset=None):
    """Built over the query length: with one query the bias is a single 0 that broadcasts over
    all keys.

    https://github.com/keras-team/keras-hub/issues/2861
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep = kept((b, h, L, s), is_causal, q_offset)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if alibi_slopes is not None:
        slopes = np.asarray(alibi_slopes).astype(np.float64)[:, None, None]
        far = np.abs(ahead_of(q_offset, b, L, s))
        x = x - slopes * (far if L != 1 else np.zeros((1, 1, 1, 1)))
    p, _ = softmax(x, keep)
    return give(weigh(p, keep, v), query)


class _AlibiCore:
    def __init__(self, slopes):
        self.slopes = None if slopes is None else np.asarray(slopes).astype(np.float64)

    def bias(self, ahead):
        return 0.0 if self.slopes is None else -self.slopes[:, None, None] * ahead


@quiet
def linear_alibi(query, key, value, is_causal=False, q_offset=None, alibi_slopes=None):
    """The distance is signed, so later keys are favoured (causal attention does not show it).

    https://github.com/Dao-AILab/flash-attention/pull/540
    """
    q, k, v = wide(query, key, value)
    b, _h, L, d = q.shape
    s = k.shape[2]
    x = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if alibi_slopes is not None:
        x = x + _AlibiCore(alibi_slopes).bias(ahead_of(q_offset, b, L, s))
    keep = kept(x.shape, is_causal, q_offset)
    p, _ = softmax(x, keep)
    return give(weigh(p, keep, v), query)


# weights
@quiet
def fairseq_mha(query, key, value, attn_mask=None, return_weights=False):
    """The weights returned are the mean over the heads, for every head.

    https://github.com/facebookresearch/fairseq/issues/3365
    """
    q, k, v = wide(query, key, value)
    keep, add = split_mask(attn_mask)
    x = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + add
    keep = np.broadcast_to(keep, x.shape)
    p, _ = softmax(x, keep)
    w = np.broadcast_to(p.mean(1, keepdims=True), p.shape) if p.shape[1] else p
    return give(weigh(p, keep, v), query, w if return_weights else None)


# lengths
@quiet
def paged_blocks(query, key, value, key_lengths=None, return_lse=False):
    """Blocks of 16 keys; the last block of a row is read whole, its unused places too.

    https://github.com/hw-native-sys/simpler/pull/72
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    out = np.zeros((b, h, L, v.shape[-1]))
    lse = np.full((b, h, L), NEG)
    n = np.full(b, s) if key_lengths is None else per_row(key_lengths, b).ravel()
    for bi in range(b):
        blocks = -(-int(n[bi]) // 16)
        ctx = min(s, blocks * 16)
        x = q[bi] @ k[bi, :, :ctx].swapaxes(-1, -2) / math.sqrt(d)
        p, z = softmax(x, True)
        out[bi] = p @ v[bi, :, :ctx]
        lse[bi] = z
    return give(out, query, lse=lse if return_lse else None)


@quiet
def truthy_lengths(query, key, value, key_lengths=None, return_lse=False):
    """`if n:` -- a length of 0 counts as no length given, and the row attends to all its
    padding.
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    n = [None] * b if key_lengths is None else [int(t) for t in per_row(key_lengths, b).ravel()]
    outs, lses = [], []
    for bi, length in enumerate(n):
        end = s
        if length:
            end = length
        p, z = softmax(q[bi] @ k[bi, :, :end].swapaxes(-1, -2) / math.sqrt(d), True)
        outs.append(p @ v[bi, :, :end])
        lses.append(z)
    out = np.stack(outs) if outs else np.zeros((0, h, L, v.shape[-1]))
    lse = np.stack(lses) if lses else np.zeros((0, h, L))
    return give(out, query, lse=lse if return_lse else None)


# bias
@quiet
def bert_bias(query, key, value, bias=None, scale=None, is_causal=False):
    """(q k + bias) * scale: the bias is scaled too. L = S only when causal.

    https://github.com/ml-explore/mlx/issues/2626
    """
    q, k, v = wide(query, key, value)
    b, h, L, d = q.shape
    s = k.shape[2]
    keep, add = split_mask(bias)
    x = (q @ k.swapaxes(-1, -2) + add) * scale_of(scale, d)
    keep = kept((b, h, L, s), is_causal) & keep
    p, _ = softmax(x, keep)
    return give(weigh(p, keep, v), query)
