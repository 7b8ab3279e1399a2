"""Defective kernels: scale, bias, softcap, ALiBi, and the arithmetic of exponentials."""

import functools
import math

import numpy as np

from .pieces import ahead, double, masked, mix, softmax, spread, starts, within


def decode_forgets_scale(query, key, value, scale=None):
    """The path for a single query does not multiply by the scale.

    https://github.com/ROCm/composable_kernel/pull/526
    """
    q, k, v = double(query, spread(key, query.shape[1]), spread(value, query.shape[1]))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.shape[2] == 1:
        scores = np.sum(q * k, axis=-1)[:, :, None, :]
    else:
        scores = factor * np.einsum("bhld,bhsd->bhls", q, k)
    return mix(softmax(scores), v).astype(query.dtype)


def scale_argument_ignored(query, key, value, scale=None):
    """The kernel always uses 1 / sqrt(d), whatever scale it is given.

    https://github.com/bo-ke/llm-internal-medicine/pull/47
    """
    group = query.shape[1] // key.shape[1]
    q, k, v = double(query, key, value)
    scores = np.stack(
        [q[:, h] @ k[:, h // group].swapaxes(-1, -2) for h in range(query.shape[1])], axis=1
    )
    weights = softmax(scores * query.shape[-1] ** -0.5)
    out = [weights[:, h] @ v[:, h // group] for h in range(query.shape[1])]
    return np.stack(out, axis=1).astype(query.dtype)


def scale_after_softmax(query, key, value, attn_mask=None):
    """The scale multiplies the weights after the softmax, not the scores before it.

    https://github.com/FrancescoSaverioZuppichini/ViT/issues/2
    """
    q, k, v = double(query, spread(key, query.shape[1]), spread(value, query.shape[1]))
    energy = masked(np.einsum("bhqd,bhkd->bhqk", q, k), attn_mask)
    att = softmax(energy) * query.shape[-1] ** -0.5
    return mix(att, v).astype(query.dtype)


def scale_of_value_size(query, key, value, is_causal=False):
    """The default scale is 1 / sqrt(size of a value) instead of 1 / sqrt(size of a query).

    own
    """
    L, S, dv = query.shape[2], key.shape[2], value.shape[3]
    q, k, v = double(query, spread(key, query.shape[1]), spread(value, query.shape[1]))
    scores = (q / math.sqrt(dv)) @ k.swapaxes(2, 3)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)


def bias_scaled_with_scores(query, key, value, bias=None, scale=None):
    """The scale is fused into the softmax, so that it multiplies the bias too.

    https://github.com/NVIDIA/TransformerEngine/pull/103
    """

    def fused_scale_softmax(x, factor):
        return softmax(np.where(x == -np.inf, -np.inf, x * factor))

    q, k, v = double(query, spread(key, query.shape[1]), spread(value, query.shape[1]))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    logits = masked(q @ k.transpose(0, 1, 3, 2), bias)
    return mix(fused_scale_softmax(logits, factor), v).astype(query.dtype)


def float_mask_weakened_in_decode(query, key, value, attn_mask=None):
    """For a single query, a float mask is multiplied by 1 / sqrt(d).

    https://github.com/tenstorrent/tt-metal/pull/56406
    """
    H, L, d = query.shape[1:]
    q, k, v = double(query, spread(key, H), spread(value, H))
    factor = 1 / np.sqrt(d)
    scores = (q * factor) @ k.swapaxes(-1, -2)
    if attn_mask is not None and attn_mask.dtype != bool and L == 1:
        attn_mask = attn_mask.astype(np.float64) * factor
    return mix(softmax(masked(scores, attn_mask)), v).astype(query.dtype)


def softcap_after_mask(query, key, value, attn_mask=None, softcap=None):
    """The softcap comes after the mask, so that hidden scores become -softcap, not -inf.

    https://github.com/onnx/onnx/issues/7865
    """
    q, k, v = double(query, spread(key, query.shape[1]), spread(value, query.shape[1]))
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), attn_mask)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    return mix(softmax(scores), v).astype(query.dtype)


def softcap_after_bias(query, key, value, *, bias=None, softcap=None):
    """The bias is added before the softcap, so that the softcap squeezes the bias.

    https://github.com/microsoft/onnxruntime/pull/28379
    """
    q, k, v = double(query, spread(key, query.shape[1]), spread(value, query.shape[1]))
    scores = np.matmul(q, np.moveaxis(k, 3, 2)) * query.shape[-1] ** -0.5
    hidden = np.zeros((), bool)
    if bias is not None:
        hidden = bias == -np.inf
        scores = scores + np.where(hidden, 0, bias).astype(np.float64)
    if softcap is not None:
        scores = np.tanh(scores / softcap) * softcap
    return mix(softmax(np.where(hidden, -np.inf, scores)), v).astype(query.dtype)


def softcap_inside_tanh_only(query, key, value, softcap=None):
    """The softcap multiplies the scores inside tanh: tanh(softcap * scores).

    https://github.com/microsoft/onnxruntime/pull/21683
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = np.einsum("...ld,...sd->...ls", q, k) / np.sqrt(query.shape[-1])
    if softcap is not None:
        np.tanh(scores * softcap, out=scores)
    return np.einsum("...ls,...sv->...lv", softmax(scores), v).astype(query.dtype)


class SoftcapOffInDecode:
    """The kernel for a single query is called with a softcap of 0, which means none.

    https://github.com/vllm-project/vllm-metal/issues/665
    """

    def __call__(self, query, key, value, softcap=None, key_lengths=None):
        """Choose the kernel."""
        if query.shape[2] == 1:
            return self.paged(query, key, value, 0.0, key_lengths)
        return self.paged(query, key, value, softcap or 0.0, key_lengths)

    @staticmethod
    def paged(query, key, value, cap, key_lengths):
        """Compute the attention."""
        H, S = query.shape[1], key.shape[2]
        q, k, v = double(query, spread(key, H), spread(value, H))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
        if cap > 0:
            scores = cap * np.tanh(scores / cap)
        if key_lengths is not None:
            scores = np.where(within(key_lengths, S), scores, -np.inf)
        return mix(softmax(scores), v).astype(query.dtype)


softcap_off_in_decode = SoftcapOffInDecode()


def alibi_zero_in_decode(query, key, value, alibi_slopes=None, q_offset=None):
    """ALiBi is built over the queries, so a single query gets a distance of 0 to all keys.

    https://github.com/keras-team/keras-hub/pull/2862
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if alibi_slopes is not None:
        far = np.abs(ahead(L, S, starts(q_offset, L, S, B)))
        if L == 1:
            far = np.zeros((1, 1, 1, 1))
        scores = scores - np.reshape(alibi_slopes, (H, 1, 1)).astype(np.float64) * far
    return mix(softmax(scores), v).astype(query.dtype)


def alibi_slope_of_previous_head(query, key, value, alibi_slopes=None, is_causal=False):
    """Head h uses the slope of head h - 1, and head 0 a slope of 1.

    https://github.com/paiml/aprender/pull/2143
    """
    B, H, L, d = query.shape
    S = key.shape[2]
    place = ahead(L, S, S - L)
    out = np.empty((B, H, L, value.shape[3]))
    for h in range(H):
        own = h * key.shape[1] // H
        q, k, v = double(query[:, h], key[:, own], value[:, own])
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
        if alibi_slopes is not None:
            slope = 1.0 if h == 0 else float(alibi_slopes[h - 1])
            scores = scores - slope * np.abs(place)
        if is_causal:
            scores = np.where(place <= 0, scores, -np.inf)
        out[:, h] = mix(softmax(scores), v)
    return out.astype(query.dtype)


class AlibiFromCache:
    """ALiBi is cached by its shape, so that other slopes or offsets get the first call's matrix.

    https://github.com/ml-explore/mlx/pull/3071
    """

    def __init__(self):
        """Start without a matrix."""
        self.cache = {}

    def __call__(self, query, key, value, alibi_slopes=None, q_offset=None):
        """Compute the attention."""
        B, H, L, d = query.shape
        S = key.shape[2]
        q, k, v = double(query, spread(key, H), spread(value, H))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
        if alibi_slopes is not None:
            if scores.shape not in self.cache:
                slopes = np.asarray(alibi_slopes, np.float64)[:, None, None]
                far = np.abs(ahead(L, S, starts(q_offset, L, S, B)))
                self.cache[scores.shape] = -slopes * far
            scores += self.cache[scores.shape]
        return mix(softmax(scores), v).astype(query.dtype)


alibi_from_cache = AlibiFromCache()


def alibi_rewards_the_future(query, key, value, alibi_slopes=None, is_causal=False):
    """ALiBi adds slope * (j - i) without abs, so that keys after the query gain.

    own
    """
    H, L, d = query.shape[1:]
    S = key.shape[2]
    place = ahead(L, S, S - L)
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if alibi_slopes is not None:
        scores += np.multiply.outer(np.asarray(alibi_slopes, np.float64), place)
    if is_causal:
        scores[..., place > 0] = -np.inf
    return mix(softmax(scores), v).astype(query.dtype)


def _with_exponential(exponential, query, key, value, is_causal=False, scale=None):
    """Compute the attention with a given exponential function."""
    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(d) if scale is None else scale)
    scores = np.where(ahead(L, S, S - L) <= (0 if is_causal else S + L), scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    parts = exponential(scores - np.where(peak == -np.inf, 0, peak))
    total = parts.sum(axis=-1, keepdims=True)
    return mix(parts / np.where(total == 0, 1, total), v).astype(query.dtype)


def _exponential_from_bits(x):
    """Write the exponent's bits of a float32 (Schraudolph 1999)."""
    bits = np.maximum(x * (2**23 / math.log(2)) + (127 * 2**23 - 366393), 0)
    with np.errstate(invalid="ignore"):
        near = bits.astype(np.int32).view(np.float32).astype(np.float64)
    return np.where(np.isnan(x), x, near)


fast_exponential = functools.partial(_with_exponential, _exponential_from_bits)
fast_exponential.__doc__ = """The exponential is an approximation with an error of a few percent.

own
"""


def epsilon_in_denominator(query, key, value, attn_mask=None, *, epsilon=1e-4):
    """The sum of exponentials has 1e-4 added, so that the weights sum to less than 1.

    own
    """
    H = query.shape[1]
    q, k, v = double(query, spread(key, H), spread(value, H))
    scores = masked(q @ k.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), attn_mask)
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    parts = np.exp(scores - np.where(peak == -np.inf, 0, peak))
    return mix(parts / (parts.sum(axis=-1, keepdims=True) + epsilon), v).astype(query.dtype)


def products_in_int8(query, key, value, is_causal=False):
    """Queries and keys are rounded to 8 bits, each vector with its own factor.

    own
    """

    def to_int8(x):
        step = np.abs(x).max(axis=-1, keepdims=True, initial=0) / 127
        return np.rint(x / np.where(step == 0, 1, step)), step

    H, L, d = query.shape[1:]
    S = key.shape[2]
    q, k, v = double(query, spread(key, H), spread(value, H))
    (q, q_step), (k, k_step) = to_int8(q), to_int8(k)
    scores = (q @ k.swapaxes(-1, -2)) * q_step * k_step.swapaxes(-1, -2) / math.sqrt(d)
    if is_causal:
        scores = np.where(ahead(L, S, S - L) <= 0, scores, -np.inf)
    return mix(softmax(scores), v).astype(query.dtype)
