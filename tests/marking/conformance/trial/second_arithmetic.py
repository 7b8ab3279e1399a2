"""The second trial: defective kernels: scale, softcap, tiles, splits, memory and gradients."""

import functools
import math

import numpy as np

from .second_arithmetic_pieces import (
    F8,
    LN2,
    LOG2E,
    causal_rows,
    dims,
    everything,
    four,
    heads,
    is_half,
    merge_parts,
    pack_up,
    pv,
    qk,
    softmax_rows,
    split_mask,
    stat_type,
)


def scale_unused(query, key, value, attn_mask=None, scale=None):
    """Scale is accepted and never used: the scores are always multiplied by 1/sqrt(d).

    https://github.com/tenstorrent/tt-metal/issues/33304
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    sm_scale = d**-0.5  # scale is taken, and that is all
    vis, add = split_mask(attn_mask)
    scores = np.einsum("bhld,bhsd->bhls", query.astype(F8), heads(key, H)) * sm_scale
    if add is not None:
        scores = scores + add
    vis = everything(B, H, L, S, vis)
    w, _ = softmax_rows(scores, vis)
    return pack_up(query, pv(w, heads(value, H), vis))


class _ScaleOr:
    """Attention as an object; the scale falls back to the default when it is falsy.

    https://github.com/SKaiNET-developers/SKaiNET/pull/880
    """

    block = 32

    def scores(self, q, k, scale):
        scale = scale or 1.0 / math.sqrt(q.shape[-1])
        return qk(q, k) * scale

    def __call__(self, query, key, value, scale=None, bias=None):
        B, H, _Hk, L, S, _d, dv = dims(query, key, value)
        s = self.scores(query, key, scale)
        vis, add = split_mask(bias)
        vis = everything(B, H, L, S, vis)
        out = np.zeros((B, H, L, dv))
        v = heads(value, H)
        for i in range(0, L, self.block):
            rows = s[:, :, i : i + self.block]
            if add is not None:
                rows = rows + (add[:, :, i : i + self.block] if add.shape[2] == L else add)
            seen = vis[:, :, i : i + self.block]
            w, _ = softmax_rows(rows, seen)
            out[:, :, i : i + self.block] = pv(w, v, seen)
        return out.astype(query.dtype)


scale_or_default = _ScaleOr()


def padded_head_scale(q, k, v, scale=None, attn_mask=None):
    """Head sizes are padded to a multiple of 8 and the default scale is taken from the padded
    size.

    https://github.com/intel/ipex-llm/pull/12619
    """
    B, H, _Hk, L, S, d, dv = dims(q, k, v)
    dtype = q.dtype
    pad = -d % 8
    if pad:  # the micro-kernel wants multiples of 8
        wide = ((0, 0), (0, 0), (0, 0), (0, pad))
        q, k = np.pad(q, wide), np.pad(k, wide)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    seen, add = split_mask(attn_mask)
    seen = everything(B, H, L, S, seen)
    kk, vv = heads(k, H), heads(v, H)
    out = np.zeros((B, H, L, dv), dtype)
    for b in range(B):
        for h in range(H):
            s = q[b, h].astype(F8) @ kk[b, h].T * scale
            if add is not None:
                s = s + np.broadcast_to(add, (B, H, L, S))[b, h]
            w, _ = softmax_rows(s[None, None], seen[b : b + 1, h : h + 1])
            out[b, h] = pv(w, vv[b : b + 1, h : h + 1], seen[b : b + 1, h : h + 1])[0, 0]
    return out


def packed_gqa_scale(query, key, value, scale=None, attn_mask=None):
    """With grouped heads (and L = S, dv = d) QKV is packed and the default scale is computed
    from the packed width over the query heads, (H + 2 Hkv) d / H, not from d.

    https://github.com/ROCm/hip-ep/pull/621
    """
    B, H, Hk, L, S, d, dv = dims(query, key, value)
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    if Hk != H and L == S and d == dv:

        def flat(x):
            return x.transpose(0, 2, 1, 3).reshape(B, x.shape[2], x.shape[1] * d)

        packed = np.concatenate([flat(query), flat(key), flat(value)], axis=-1)
        if scale is None:
            head_size = packed.shape[-1] // H  # right for a separate query only
            scale = 1.0 / math.sqrt(head_size)
        rows = packed.reshape(B, L, H + 2 * Hk, d).transpose(0, 2, 1, 3)
        query, key, value = rows[:, :H], rows[:, H : H + Hk], rows[:, H + Hk :]
    elif scale is None:
        scale = 1.0 / math.sqrt(d) if d else 1.0
    s = qk(query, key) * scale
    if add is not None:
        s = s + add
    w, _ = softmax_rows(s, vis)
    return pack_up(query, pv(w, heads(value, H), vis))


def softcap_after_bias(query, key, value, softcap=None, bias=None, scale=None):
    """Softcap is applied to score + bias, so the bias is squeezed and a bias of -inf still gets
    weight.

    https://github.com/emmtrix/emx-onnx-cgen/pull/731
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    x = qk(query, key) * (d**-0.5 if scale is None else scale)
    if softcap is None:
        vis, add = split_mask(bias)
        vis = everything(B, H, L, S, vis)
        if add is not None:
            x = x + add
    else:
        if bias is not None:
            x = x + np.asarray(four(bias), F8)  # the cap's squeeze covers the bias too
        x = softcap * np.tanh(x / softcap)
        vis = everything(B, H, L, S)
    w, _ = softmax_rows(x, vis)
    return pack_up(query, pv(w, heads(value, H), vis))


def softcap_log2(query, key, value, softcap=None, scale=None, attn_mask=None):
    """Tiles with exp2: log2(e) folded into the scale.

    https://github.com/sgl-project/sgl-kernel-xpu/pull/491
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    scale_log2 = (d**-0.5 if scale is None else scale) * LOG2E
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    if add is not None:
        add = np.broadcast_to(add, (B, H, L, S))
    k, v, q = heads(key, H), heads(value, H), query.astype(F8)
    m = np.full((B, H, L, 1), -np.inf)
    total = np.zeros((B, H, L, 1))
    acc = np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in range(0, S, 16):
            seen = vis[..., j : j + 16]
            z = q @ np.swapaxes(k[:, :, j : j + 16], -1, -2) * scale_log2
            if softcap is not None:
                z = softcap * np.tanh(z / softcap)
            if add is not None:
                z = z + add[..., j : j + 16] * LOG2E
            z = np.where(seen, z, -np.inf)
            m_new = np.maximum(m, z.max(-1, keepdims=True))
            m0 = np.where(m_new == -np.inf, 0.0, m_new)
            p = np.where(seen, np.exp2(z - m0), 0.0)
            r = np.exp2(m - m0)
            total = total * r + p.sum(-1, keepdims=True)
            acc = acc * r + pv(p, v[:, :, j : j + 16], seen)
            m = m_new
        out = acc / np.where(total == 0, 1.0, total)
    return out.astype(query.dtype)


def bias_flat(query, key, value, bias=None, scale=None, *, arrange):
    """Folds batch and heads into one axis, as batched products want it."""
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    q = query.reshape(B * H, L, d).astype(F8)
    k = heads(key, H).reshape(B * H, S, d)
    v = heads(value, H).reshape(B * H, S, dv)
    s = q @ k.transpose(0, 2, 1) * (d**-0.5 if scale is None else scale)
    vis = np.ones((B * H, L, S), bool)
    if bias is not None:
        seen, add = split_mask(bias)
        if add is None:
            raise TypeError("bias is a float array")
        both = []
        for part in (seen, add):
            part = np.broadcast_to(part, (*part.shape[:2], L, S))
            if part.shape[0] == B and part.shape[1] == 1:
                part = arrange(part[:, 0], H)
            else:
                part = np.broadcast_to(part, (B, H, L, S)).reshape(B * H, L, S)
            both.append(part)
        vis, s = vis & both[0], s + both[1]
    w, _ = softmax_rows(s[None], vis[None])
    return pv(w, v[None], vis[None])[0].reshape(B, H, L, dv).astype(query.dtype)


# The mistake: a bias per batch row (B, 1, L, S) is tiled, not repeated, over heads in the
# folded (batch, head) axis, so with B > 1 heads get other rows' bias.
# https://github.com/lucidrains/graph-transformer-pytorch/pull/2
bias_tiled_over_heads = functools.partial(bias_flat, arrange=lambda x, H: np.tile(x, (H, 1, 1)))


def bias_row_first_tile(query, key, value, bias=None, softcap=None):
    """A bias with one query row (.., 1, S) is applied to the first tile of 8 queries only.

    https://github.com/openvinotoolkit/openvino/pull/30758
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    k, v = heads(key, H), heads(value, H)
    hide = plus = None
    if bias is not None:
        hide, plus = split_mask(bias)
    out = np.empty((B, H, L, dv))
    for i0 in range(0, L, 8):
        i1 = min(i0 + 8, L)
        s = query[:, :, i0:i1].astype(F8) @ np.swapaxes(k, -1, -2) / math.sqrt(d)
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        seen = everything(B, H, i1 - i0, S)
        if plus is not None:
            # the tile (i0..i1) of the bias; with one row there is nothing at i0 > 0
            t_hide, t_plus = hide[:, :, i0:i1], plus[:, :, i0:i1]
            if t_plus.shape[2]:
                s, seen = s + t_plus, seen & t_hide
        w, _ = softmax_rows(s, seen)
        out[:, :, i0:i1] = pv(w, v, seen)
    return out.astype(query.dtype)


def row_max_stays_zero(query, key, value, is_causal=False, q_offset=None, scale=None):
    """Tiles of keys from the right to the left, sums in the statistics' type.

    https://github.com/Dao-AILab/flash-attention/issues/2082
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    wd = stat_type(query)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    vis = everything(B, H, L, S, causal_rows(q_offset, B, L, S) if is_causal else None)
    v = heads(value, H)
    row_max = np.full((B, H, L, 1), -np.inf)
    row_sum = np.zeros((B, H, L, 1), wd)
    acc = np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in reversed(range(0, S, 8)):
            seen = vis[..., j : j + 8]
            t = np.where(seen, s[..., j : j + 8], -np.inf)
            old = row_max
            row_max = np.maximum(old, t.max(-1, keepdims=True))
            row_max = np.where(row_max == -np.inf, 0.0, row_max)  # no inf - inf below
            p = np.where(seen, np.exp((t - row_max).astype(wd)), wd(0))
            r = np.exp((old - row_max).astype(wd))
            row_sum = row_sum * r + p.sum(-1, keepdims=True)
            acc = acc * r + pv(p.astype(F8), v[:, :, j : j + 8], seen)
        out = acc / np.where(row_sum == 0, wd(1), row_sum)
    return out.astype(query.dtype)


def finite_sentinel(query, key, value, scale=None, attn_mask=None):
    """The running maximum starts at -5e4, so a row whose scores are all below that is silently
    zero.

    https://github.com/flashinfer-ai/flashinfer/issues/4267
    """
    inf = 5e4  # "big enough for any logit"
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    if add is not None:
        s = s + add
    v = heads(value, H)
    m, total, o = np.full((B, H, L), -inf), np.zeros((B, H, L)), np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in range(0, S, 32):
            seen = vis[..., j : j + 32]
            t = np.where(seen, s[..., j : j + 32], -np.inf)
            new = np.maximum(m, t.max(-1))
            p = np.where(seen, np.exp(t - new[..., None]), 0.0)
            r = np.exp(m - new)
            total = total * r + p.sum(-1)
            o = o * r[..., None] + pv(p, v[:, :, j : j + 32], seen)
            m = new
        o = o / np.where(total == 0, 1.0, total)[..., None]
    return o.astype(query.dtype)


def _exp2_bits(z):
    """2**z: a polynomial's part on the fraction, the whole part set into the exponent bits."""
    z = np.where(np.isnan(z), 0.0, z)
    whole = np.rint(z)
    frac = np.exp2(z - whole)
    bits = ((whole.astype(np.int64) + 127) << 23).astype(np.int32)
    return frac * bits.view(np.float32).astype(F8)


def exp2_no_underflow(query, key, value, scale=None, attn_mask=None):
    """Exp2 builds 2**k from exponent bits without a clamp, so a score more than 127.5 ln 2 below
    its row's maximum gets a garbage weight (negative, huge or infinite).

    https://github.com/flashinfer-ai/flashinfer/pull/4502
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    seen, add = split_mask(attn_mask)
    seen = everything(B, H, L, S, seen)
    with np.errstate(all="ignore"):
        s = qk(query, key) * (d**-0.5 if scale is None else scale)
        if add is not None:
            s = s + add
        z = np.where(seen, s * LOG2E, -np.inf)
        m = z.max(-1, keepdims=True, initial=-np.inf)
        gap = np.where(seen, z - np.where(m == -np.inf, 0.0, m), 0.0)
        p = np.where(seen, np.where(np.isnan(gap), np.nan, _exp2_bits(gap)), 0.0)
        total = p.sum(-1, keepdims=True)
        w = p / np.where(total == 0, 1.0, total)
        out = pv(w, heads(value, H), seen)
        return out.astype(query.dtype)


def skip_rescale_wrong_frame(query, key, value, scale=None, attn_mask=None):
    """Rescales only when the running maximum has grown by more than tau.

    https://github.com/meta-pytorch/MSLK/pull/242
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    tau = 8.0
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    z = qk(query, key) * (d**-0.5 if scale is None else scale)
    if add is not None:
        z = z + add
    z, v = z * LOG2E, heads(value, H)
    m = np.full((B, H, L, 1), -np.inf)
    total, acc = np.zeros((B, H, L, 1)), np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in range(0, S, 8):
            seen = vis[..., j : j + 8]
            t = np.where(seen, z[..., j : j + 8], -np.inf)
            m_new = np.maximum(m, t.max(-1, keepdims=True))
            m0 = np.where(m_new == -np.inf, 0.0, m_new)
            p = np.where(seen, np.exp2(t - m0), 0.0)
            rescale = (m == -np.inf) | ~(m_new - m <= tau)
            r = np.where(rescale, np.exp2(m - m0), 1.0)
            m = np.where(rescale, m_new, m)  # skipped: p should go back to the frame of m
            total = total * r + p.sum(-1, keepdims=True)
            acc = acc * r + pv(p, v[:, :, j : j + 8], seen)
        out = acc / np.where(total == 0, 1.0, total)
    return out.astype(query.dtype)


def p_saturates_half(query, key, value, scale=None, return_lse=False):
    """Halves go the eight-bit way: weights times 2**8, lazily rescaled, stored up to 448.

    https://github.com/Dao-AILab/flash-attention/pull/2713
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    small = is_half(query)
    threshold, lift, top = (4.0, 8.0, 448.0) if small else (0.0, 0.0, np.inf)
    z = qk(query, key) * (d**-0.5 if scale is None else scale) * LOG2E
    v = heads(value, H)
    m = np.full((B, H, L, 1), -np.inf)
    total, acc = np.zeros((B, H, L, 1)), np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in range(0, S, 8):
            t = z[..., j : j + 8]
            m_new = np.maximum(m, t.max(-1, keepdims=True))
            m_new = np.where(m_new - m <= threshold, m, m_new)
            r = np.exp2(m - m_new)
            r = np.where(m == -np.inf, 0.0, r)
            p = np.exp2(t - m_new + lift)
            total = total * r + p.sum(-1, keepdims=True)
            acc = acc * r + np.minimum(p, top) @ v[:, :, j : j + 8]
            m = m_new
        out = acc / np.where(total == 0, 1.0, total)
        lse = np.where(
            total == 0, -np.inf, (m + np.log2(np.where(total == 0, 1.0, total)) - lift) * LN2
        )[..., 0]
    return pack_up(query, out, None, lse, False, return_lse)


def tail_tile_zero_keys(query, key, value, scale=None, return_lse=False):
    """With S > 32 and not a multiple of 32 the last tile is filled with zero keys that are not
    masked (score 0, weight exp(0 - max)).

    https://github.com/flashinfer-ai/flashinfer/pull/5090
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else scale
    q, k, v = query.astype(F8), heads(key, H), heads(value, H)
    if S > 32 and S % 32:  # whole tiles: the rest is filled with zeros
        fill = ((0, 0), (0, 0), (0, -S % 32), (0, 0))
        k, v = np.pad(k, fill), np.pad(v, fill)
    m = np.full((B, H, L), -np.inf)
    total, o = np.zeros((B, H, L)), np.zeros((B, H, L, dv))
    with np.errstate(all="ignore"):
        for j in range(0, k.shape[2], 32):
            s = np.einsum("...ld,...sd->...ls", q, k[:, :, j : j + 32]) * scale
            new = np.maximum(m, s.max(-1))
            p = np.exp(s - new[..., None])
            r = np.exp(m - new)
            total, o, m = total * r + p.sum(-1), o * r[..., None] + p @ v[:, :, j : j + 32], new
        out = o / np.where(total == 0, 1.0, total)[..., None]
        lse = np.where(total == 0, -np.inf, m + np.log(np.where(total == 0, 1.0, total)))
    return pack_up(query, out, None, lse, False, return_lse)


def splits_drop_remainder(query, key, value, scale=None, attn_mask=None):
    """Decoding (L = 1, S > 8) cuts the keys into 4 splits of S // 4 and drops the last S % 4
    keys.

    https://github.com/tile-ai/tilelang/pull/2010
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else scale
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    k, v = heads(key, H), heads(value, H)

    def part(lo, hi):
        with np.errstate(all="ignore"):
            s = query.astype(F8) @ np.swapaxes(k[:, :, lo:hi], -1, -2) * scale
            if add is not None:
                s = s + np.broadcast_to(add, (B, H, L, S))[..., lo:hi]
        w, lse = softmax_rows(s, vis[..., lo:hi])
        return pv(w, v[:, :, lo:hi], vis[..., lo:hi]), lse

    if L == 1 and S > 8:  # decoding: four splits of the keys
        size = S // 4
        out, _ = merge_parts([part(n * size, (n + 1) * size) for n in range(4)])
    else:
        out, _ = part(0, S)
    return out.astype(query.dtype)


def combine_batch_stride_zero(query, key, value, scale=None, return_lse=False):
    """Decoding (L = 1, S >= 4): the merge of splits writes with batch stride 0, so every batch
    row lands on row 0 and the others stay zero.

    https://github.com/vllm-project/flash-attention/pull/176
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    v = heads(value, H)
    all_of = np.ones(s.shape, bool)
    if L == 1 and S >= 4:
        half = (S + 1) // 2
        parts = []
        for a, b in ((0, half), (half, S)):
            w, lse = softmax_rows(s[..., a:b], all_of[..., a:b])
            parts.append((w @ v[:, :, a:b], lse))
        joined, lse = merge_parts(parts)
        o = np.zeros(B * H * L * dv)
        o_batch_stride = 0  # only set for the layout without splits
        for n in range(B):
            at = n * o_batch_stride
            o[at : at + H * L * dv] = joined[n].reshape(-1)
        out = o.reshape(B, H, L, dv)
    else:
        w, lse = softmax_rows(s, all_of)
        out = w @ v
    return pack_up(query, out, None, lse, False, return_lse)


def idle_split_overwrites_lse(query, key, value, is_causal=False, q_offset=None, return_lse=False):
    """When only the first of two splits of the keys has visible keys, the idle split overwrites
    the row's LSE with -inf (the output is right).

    https://github.com/sgl-project/sgl-kernel-xpu/pull/487
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    s = qk(query, key) * d**-0.5
    vis = everything(B, H, L, S, causal_rows(q_offset, B, L, S) if is_causal else None)
    v = heads(value, H)
    half = (S + 1) // 2
    parts, busy = [], []
    for lo, hi in ((0, half), (half, S)):
        w, lse = softmax_rows(s[..., lo:hi], vis[..., lo:hi])
        parts.append((pv(w, v[:, :, lo:hi], vis[..., lo:hi]), lse))
        busy.append(vis[..., lo:hi].any(-1))
    out, lse = merge_parts(parts)
    if S > 1:
        single = busy[0].astype(int) + busy[1] == 1  # no merge: each split stores its own, in turn
        for _, own in parts:
            lse = np.where(single, own, lse)
    return pack_up(query, out, None, lse, False, return_lse)


def smooth_k_lse(query, key, value, scale=None, return_lse=False):
    """Keys are centred first: every score of a row moves by one number, softmax does not care.

    https://github.com/ROCm/aiter/pull/3334
    """
    _B, H, _Hk, _L, S, d, _dv = dims(query, key, value)
    k = heads(key, H)
    if S:
        k = k - k.mean(axis=2, keepdims=True)
    s = np.einsum("bhld,bhsd->bhls", query.astype(F8), k) * (d**-0.5 if scale is None else scale)
    w, lse = softmax_rows(s, np.ones(s.shape, bool))
    return pack_up(query, w @ heads(value, H), None, lse, False, return_lse)


def smooth_k_in_place(query, key, value, scale=None):
    """Centres the keys in place: the caller's key array is written to.

    https://github.com/Comfy-Org/ComfyUI/pull/16035
    """
    _B, H, Hk, _L, S, d, _dv = dims(query, key, value)
    k = key if key.flags.writeable else key.copy()
    exact = heads(key, H)
    if S:
        mean = exact.mean(axis=2, keepdims=True)
        k -= mean[:, :: H // Hk].astype(key.dtype)  # meant for the quantizer; k is the caller's
        exact = exact - mean
    s = query.astype(F8) @ np.swapaxes(exact, -1, -2) * (d**-0.5 if scale is None else scale)
    w, _ = softmax_rows(s, np.ones(s.shape, bool))
    return (w @ heads(value, H)).astype(query.dtype)


def query_strides_short(query, key, value, scale=None, attn_mask=None):
    """Up to eight queries: a vector kernel that is given a pointer and the head size.

    https://github.com/pytorch/pytorch/issues/163597
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    q = query
    if 0 < L <= 8 and q.size and not q.flags.c_contiguous:
        span = sum((n - 1) * st for n, st in zip(q.shape, q.strides, strict=False)) + q.itemsize
        inside = all(st > 0 for st in q.strides) and span >= q.size * q.itemsize
        if inside:
            flat = np.lib.stride_tricks.as_strided(q, (q.size,), (q.itemsize,))
            q = flat.reshape(B, H, L, d)
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    s = qk(q, key) * (d**-0.5 if scale is None else scale)
    if add is not None:
        s = s + add
    w, _ = softmax_rows(s, vis)
    return pv(w, heads(value, H), vis).astype(query.dtype)


def _unit_inner(x):
    """The rows of x read as d numbers in a row."""
    if x.size == 0 or min(x.strides) <= 0 or x.strides[-1] < x.itemsize:
        return x
    return np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:-1], x.itemsize))


def inner_stride_one(query, key, value, scale=None, is_causal=False, q_offset=None):
    """Key and value are read as if the stride of their last axis were one element.

    https://github.com/huggingface/candle/pull/3703
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else scale
    k, v = heads(_unit_inner(key), H), heads(_unit_inner(value), H)
    vis = everything(B, H, L, S, causal_rows(q_offset, B, L, S) if is_causal else None)
    with np.errstate(all="ignore"):
        s = query.astype(F8) @ np.swapaxes(k, -1, -2) * scale
    w, _ = softmax_rows(s, vis)
    return pv(w, v, vis).astype(query.dtype)


def half_product_before_scale(query, key, value, scale=None, bias=None):
    """For float16 the product QK^T is held in a half's range before it is scaled, so beyond
    65504 it is inf (NaN out) though the scaled score is finite.

    https://github.com/philipturner/metal-flash-attention/issues/8
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    with np.errstate(all="ignore"):
        s = qk(query, key)
        if query.dtype == np.float16:  # a half holds it until it is scaled
            s = np.where(np.abs(s) > 65504.0, np.copysign(np.inf, s), s)
        s = s * (d**-0.5 if scale is None else scale)
        vis, add = split_mask(bias)
        vis = everything(B, H, L, S, vis)
        if add is not None:
            s = s + add
        w, _ = softmax_rows(s, vis)
        return pv(w, heads(value, H), vis).astype(query.dtype)


def half_in_float_out(query, key, value, attn_mask=None, scale=None):
    """Halves come back as float32, not in the input's type.

    https://github.com/tinygrad/tinygrad/pull/5100
    """
    B, H, _Hk, L, S, d, _dv = dims(query, key, value)
    out_type = np.float64 if query.dtype == np.float64 else np.float32  # never cast back
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    if add is not None:
        s = s + add
    w, _ = softmax_rows(s, vis)
    return pv(w, heads(value, H), vis).astype(out_type)


def no_keys_nan(query, key, value, scale=None):
    """With no keys at all (S = 0) the output is NaN (0/0), not 0.

    https://github.com/facebookresearch/xformers/pull/1042
    """
    _B, H, _Hk, _L, _S, d, _dv = dims(query, key, value)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    with np.errstate(all="ignore"):
        m = s.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - m)
        return ((p @ heads(value, H)) / p.sum(-1, keepdims=True)).astype(query.dtype)


def tiles_in_any_order(query, key, value, scale=None):
    """Blocks of keys are added as they come in.

    https://github.com/JustVugg/colibri/pull/1098
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    wd = stat_type(query)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    v = heads(value, H)
    starts = np.arange(0, S, 2)
    np.random.default_rng().shuffle(starts)  # whoever is ready first
    m = np.full((B, H, L, 1), -np.inf)
    total, acc = np.zeros((B, H, L, 1), wd), np.zeros((B, H, L, dv), wd)
    with np.errstate(all="ignore"):
        for j in starts:
            t = s[..., j : j + 2]
            new = np.maximum(m, t.max(-1, keepdims=True))
            p = np.exp(t - new)
            r = np.exp(m - new).astype(wd)
            total = total * r + p.sum(-1, keepdims=True).astype(wd)
            acc = acc * r + (p @ v[:, :, j : j + 2]).astype(wd)
            m = new
        return (acc / np.where(total == 0, wd(1), total)).astype(query.dtype)


# with gradients
def forward(query, key, value, scale=None, softcap=None):
    _B, _H, _Hk, _L, _S, d, _dv = dims(query, key, value)
    x = qk(query, key) * (d**-0.5 if scale is None else scale)
    if softcap is not None:
        x = softcap * np.tanh(x / softcap)
    w, _ = softmax_rows(x, np.ones(x.shape, bool))
    return w, x


def backward(
    query, key, value, grad_out, scale=None, softcap=None, *, group="sum", dtanh=True, channels=None
):
    B, H, Hk, _L, S, d, dv = dims(query, key, value)
    scale = d**-0.5 if scale is None else scale
    w, x = forward(query, key, value, scale, softcap)
    q, k, v, g = query.astype(F8), heads(key, H), heads(value, H), np.asarray(grad_out, F8)
    delta = (g * (w @ v)).sum(-1, keepdims=True)
    slope = 1.0 - (x / softcap) ** 2 if softcap is not None and dtanh else 1.0
    ds = w * (g @ np.swapaxes(v, -1, -2) - delta) * slope * scale
    ds_q = ds
    if channels is not None:
        n = min(dv, channels(d, dv))
        ds_q = w * (g[..., :n] @ np.swapaxes(v[..., :n], -1, -2) - delta) * slope * scale
    dq = ds_q @ k
    dk = (np.swapaxes(ds, -1, -2) @ q).reshape(B, Hk, H // Hk, S, d)
    dvv = (np.swapaxes(w, -1, -2) @ g).reshape(B, Hk, H // Hk, S, dv)
    if group == "sum":
        dk, dvv = dk.sum(2), dvv.sum(2)
    else:  # every head of the group stores over the last
        dk, dvv = dk[:, :, -1], dvv[:, :, -1]
    return dq.astype(query.dtype), dk.astype(key.dtype), dvv.astype(value.dtype)


def grad_group_overwritten(query, key, value, scale=None):
    """Grouped heads: d_key and d_value are those of the group's last query head, not the sum
    over the group.

    https://github.com/marin-community/levanter/pull/449
    """
    w, _ = forward(query, key, value, scale)
    return (w @ heads(value, query.shape[1])).astype(query.dtype)


def grad_group_overwritten_backward(query, key, value, grad_out, scale=None):
    return backward(query, key, value, grad_out, scale, group="last")


def grad_softcap_flat(query, key, value, softcap=None, scale=None):
    """The gradient leaves out the softcap's derivative 1 - tanh(s / softcap)**2 (d_query and
    d_key).

    https://github.com/Dao-AILab/flash-attention/pull/1033
    """
    w, _ = forward(query, key, value, scale, softcap)
    return (w @ heads(value, query.shape[1])).astype(query.dtype)


def grad_softcap_flat_backward(query, key, value, grad_out, softcap=None, scale=None):
    return backward(query, key, value, grad_out, scale, softcap, dtanh=False)


def grad_dq_value_extent(query, key, value, scale=None):
    """The gradient d_query takes only the first d of the dv value channels.

    It is wrong when dv > d.

    https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27
    """
    w, _ = forward(query, key, value, scale)
    return np.einsum("bhls,bhsv->bhlv", w, heads(value, query.shape[1])).astype(query.dtype)


def grad_dq_value_extent_backward(query, key, value, grad_out, scale=None):
    return backward(query, key, value, grad_out, scale, channels=lambda d, dv: d)


def key_loop_by_query_length(query, key, value, scale=None, attn_mask=None):
    """The loop over key tiles of 8 runs over ceil(L / 8) tiles, so with S > L the last keys can
    be left out.

    https://github.com/jax-ml/jax/issues/24491
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    if add is not None:
        s = s + add
    v = heads(value, H)
    block = 8
    parts = [(np.zeros((B, H, L, dv)), np.full((B, H, L), -np.inf))]
    for n in range(-(-L // block)):  # as many tiles as the queries fill
        j = slice(n * block, min((n + 1) * block, S))
        if j.start >= S:
            break
        w, lse = softmax_rows(s[..., j], vis[..., j])
        parts.append((pv(w, v[:, :, j], vis[..., j]), lse))
    out, _ = merge_parts(parts)
    return out.astype(query.dtype)


def output_like_query(query, key, value, scale=None, attn_mask=None):
    """The output is allocated like the query: with dv > d channels are cut off, with dv < d
    zeros are added (the shape is wrong).

    https://github.com/xlite-dev/ffpa-attn/issues/81
    """
    B, H, _Hk, L, S, d, dv = dims(query, key, value)
    out = np.zeros_like(query)  # the value's size is not looked at
    vis, add = split_mask(attn_mask)
    vis = everything(B, H, L, S, vis)
    s = qk(query, key) * (d**-0.5 if scale is None else scale)
    if add is not None:
        s = s + add
    w, _ = softmax_rows(s, vis)
    n = min(d, dv)
    with np.errstate(all="ignore"):
        out[..., :n] = pv(w, heads(value, H), vis)[..., :n]
    return out
