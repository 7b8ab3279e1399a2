"""Defective kernels: sinks, LSE, weights, half precision, empty inputs, gradients."""

import math

import numpy as np

from .pieces import ahead, double, like, log_sum, masked, mix, softmax, spread, within


def softmax_plus_one(query, key, value, attn_mask=None):
    """The denominator has 1 added after the maximum was subtracted.

    https://github.com/kyegomez/AttentionIsOFFByOne/issues/5
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), attn_mask)
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    parts = np.exp(scores - np.where(peak == -np.inf, 0, peak))
    return mix(parts / (1 + parts.sum(axis=-1, keepdims=True)), v).astype(query.dtype)


def sinks_never_bound(query, key, value, sinks=None, is_causal=False):
    """The sinks are accepted, but the kernel is compiled without them.

    https://github.com/vllm-project/vllm-metal/pull/550
    """
    use_sinks = False
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    if sinks is not None and use_sinks:
        extra = np.broadcast_to(np.reshape(sinks, (H, 1, -1)), (len(q), H, L, np.size(sinks) // H))
        scores = np.concatenate([scores, extra], axis=-1)
    return mix(softmax(scores)[..., :S], v).astype(query.dtype)


def sinks_once_per_split(query, key, value, sinks=None):
    """The keys are cut into two splits, and each split counts the sinks.

    https://github.com/ROCm/rocm-libraries/pull/12229
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    extra = np.zeros((B, H, L, 0))
    if sinks is not None:
        sinks = np.reshape(sinks, (H, 1, -1)).astype(np.float64)
        extra = np.broadcast_to(sinks, (B, H, L, sinks.shape[-1]))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    half = S // 2 if S > 1 else S
    outs, sums = [], []
    for part in (slice(0, half), slice(half, S)) if half < S else (slice(0, S),):
        columns = np.concatenate([scores[..., part], extra], axis=-1)
        outs.append(
            mix(softmax(columns)[..., : columns.shape[-1] - extra.shape[-1]], v[:, :, part])
        )
        sums.append(log_sum(columns))
    shares = softmax(np.stack(sums, axis=-1))
    return sum(shares[..., i, None] * out for i, out in enumerate(outs)).astype(query.dtype)


def sinks_scaled_like_scores(query, key, value, *, scale=None, sinks=None):
    """The sinks are multiplied by the scale, as if they were products.

    https://github.com/ROCm/rocm-libraries/pull/12229
    """
    B, H, L, d = query.shape
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2)
    if sinks is not None:
        sinks = np.reshape(sinks, (1, H, 1, -1)).astype(np.float64)
        scores = np.concatenate(
            [scores, np.broadcast_to(sinks, (B, H, L, sinks.shape[-1]))], axis=-1
        )
    weights = softmax(scores * (1 / math.sqrt(d) if scale is None else scale))
    return mix(weights[..., : key.shape[2]], v).astype(query.dtype)


def sinks_outside_the_maximum(query, key, value, sinks=None):
    """The maximum is taken over the keys only, so that a large sink overflows in float32.

    https://github.com/fla-org/flash-linear-attention/pull/831
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    peak = np.where(peak == -np.inf, 0, peak)
    parts = np.exp(scores - peak)
    total = parts.sum(axis=-1, keepdims=True)
    if sinks is not None:
        extra = np.reshape(sinks, (H, 1, -1)).astype(np.float64)
        with np.errstate(over="ignore"):
            extra = np.exp((extra - peak).astype(np.float32)).sum(axis=-1, keepdims=True)
        total = np.where(np.isinf(extra), np.nan, total + extra)
    return (mix(parts, v) / np.where(total == 0, 1, total)).astype(query.dtype)


def lse_in_base_2(query, key, value, is_causal=False, return_lse=False):
    """The LSE is the logarithm to the base 2.

    https://github.com/lightseekorg/tokenspeed/pull/571
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) * (math.log2(math.e) / math.sqrt(d))
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    lse = log_sum(scores * math.log(2)) / math.log(2)
    parts = np.exp2(scores - np.where(lse == -np.inf, 0, lse)[..., None])
    out = mix(parts, v).astype(query.dtype)
    return (out, like(lse, query)) if return_lse else out


def lse_plus_infinity_for_blind_rows(query, key, value, key_lengths=None, return_lse=False):
    """The LSE of a row without visible keys is +inf instead of -inf.

    https://github.com/flashinfer-ai/flashinfer/pull/3943
    """
    H, S = query.shape[1], key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if key_lengths is not None:
        scores = np.where(within(key_lengths, S), scores, -np.inf)
    out = mix(softmax(scores), v).astype(query.dtype)
    lse = log_sum(scores)
    return (out, like(np.where(lse == -np.inf, np.inf, lse), query)) if return_lse else out


def half_products_before_scale(query, key, value, scale=None):
    """The products of float16 vectors are stored in float16 before they are scaled: overflow.

    https://github.com/philipturner/metal-flash-attention/issues/8
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = (q @ k.swapaxes(-1, -2)).astype(query.dtype).astype(np.float64)
        scores *= 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return mix(softmax(scores), v).astype(query.dtype)


def no_keys_give_nan(query, key, value, is_causal=False):
    """Without keys, the result is NaN instead of 0.

    https://github.com/ROCm/aiter/pull/1442
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    out = mix(softmax(scores), v)
    return (out if S else out * np.nan).astype(query.dtype)


def keys_in_random_order(query, key, value, is_causal=False):
    """The float32 sums over the keys run in a random order, so that two calls differ.

    https://github.com/ROCm/triton/issues/953
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    order = np.random.default_rng().permutation(S)
    place = ahead(L, S, S - L)[:, order]
    q, k, v = double(query, spread(key[:, :, order], H), spread(value[:, :, order], H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(place <= 0, scores, -np.inf)
    if query.dtype == np.float64:
        return mix(softmax(scores), v)
    return mix(softmax(scores).astype(np.float32), v.astype(np.float32)).astype(query.dtype)


def _capped(query, key, value, softcap=None):
    """Compute the attention with a softcap, rightly."""
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    return softmax(scores), scores, q, k, v


def softcap_without_derivative(query, key, value, softcap=None):
    """The backward pass lacks the derivative of tanh.

    https://github.com/openxla/tokamax/pull/1121
    """
    weights, _, _, _, v = _capped(query, key, value, softcap)
    return mix(weights, v).astype(query.dtype)


def softcap_without_derivative_grad(query, key, value, grad_out, softcap=None):
    """The backward pass of softcap_without_derivative."""
    weights, _, q, k, v = _capped(query, key, value, softcap)
    grad = grad_out.astype(np.float64)
    back = grad @ v.swapaxes(-1, -2)
    back = weights * (back - (back * weights).sum(axis=-1, keepdims=True))
    back /= math.sqrt(query.shape[-1])
    grads = back @ k, back.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ grad
    return tuple(_sum_groups(x, y) for x, y in zip(grads, (query, key, value), strict=True))


def _sum_groups(grad, x):
    """Sum the gradients of the query heads that share a key head."""
    B, heads, length, size = x.shape
    group = grad.shape[1] // max(heads, 1)
    return grad.reshape(B, heads, group, length, size).sum(axis=2).astype(x.dtype)


def last_head_of_group_wins(query, key, value, is_causal=False):
    """The backward pass keeps the key gradient of a group's last head instead of the sum.

    https://github.com/marin-community/levanter/pull/449
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def last_head_of_group_wins_grad(query, key, value, grad_out, is_causal=False):
    """The backward pass of last_head_of_group_wins."""
    H, L, d = query.shape[1:]
    S = key.shape[2]
    grads = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    for h in range(H):
        own = h * key.shape[1] // H
        q, k, v, grad = double(query[:, h], key[:, own], value[:, own], grad_out[:, h])
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
        if is_causal:
            scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
        weights = softmax(scores)
        back = grad @ v.swapaxes(-1, -2)
        back = weights * (back - (back * weights).sum(axis=-1, keepdims=True)) / math.sqrt(d)
        grads[0][:, h] = back @ k
        grads[1][:, own] = back.swapaxes(-1, -2) @ q
        grads[2][:, own] = weights.swapaxes(-1, -2) @ grad
    return tuple(x.astype(query.dtype) for x in grads)
