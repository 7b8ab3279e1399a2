"""Defective kernels: exponentials, sums and maxima, LSE and weights."""

from .entry import Entry

SOFTMAX = {
    "fast_exponential": Entry(
        "the exponential is an approximation that is too rough",
        "plain: is_causal scale",
        {
            "parts = np.exp(scores - peak)": (
                "bits = (scores - peak) * (2**23 / math.log(2)) + (127 * 2**23 - 366393)\n"
                "parts = np.maximum(bits, 0).astype(np.int32).view(np.float32).astype(np.float64)"
            )
        },
        {"plain": "approximated the exponential by lines between powers of 2"},
    ),
    "exp2_no_underflow": Entry(
        "powers of 2 are written into exponent bits, without a lower limit",
        "plain: scale attn_mask",
        {
            "parts = np.exp(scores - peak)": (
                "power = np.where(seen, (scores - peak) / math.log(2), 0)\n"
                "whole = np.rint(power)\n"
                "bits = ((whole.astype(np.int64) + 127) << 23).astype(np.int32)\n"
                "parts = np.where(seen, np.exp2(power - whole) * bits.view(np.float32), 0)"
            )
        },
        {"large scores": "wrote whole powers of 2 into the exponent of a float32 without a lower"},
        source="flashinfer-ai/flashinfer#4502",
    ),
    "device_exponential": Entry(
        "the exponential is never below 2 ** -17",
        "plain: attn_mask is_causal q_offset window scale key_lengths return_weights",
        {
            "np.exp(scores - peak)": "np.maximum(np.exp(scores - peak), 2.0**-17)",
            "weights = parts": "weights = seen.any(axis=-1, keepdims=True) * parts",
        },
        {"bool mask": "the exponential never fell below 2 ** -17"},
        beside=("plain",),
    ),
    "epsilon_in_denominator": Entry(
        "a small number is added to the sum of exponentials, so that weights sum to less than 1",
        "plain: attn_mask",
        {"np.where(total == 0, 1, total)": "(total + 1e-4)"},
        {"plain": "added 0.0001 to the sum of weights"},
    ),
    "softmax_plus_one": Entry(
        "1 is added to the denominator after the maximum was subtracted",
        "plain: attn_mask",
        {"np.where(total == 0, 1, total)": "(total + 1)"},
        {"plain": "added 1 to the sum of weights"},
        source="kyegomez/AttentionIsOFFByOne#5",
    ),
    "no_maximum_subtracted": Entry(
        "the softmax does not subtract the maximum, and exponentials overflow",
        "plain: attn_mask",
        {"peak = finite(peak)": "peak = np.zeros_like(peak)"},
        {"large scores": "did not subtract the maximum before exp, which overflows in float64"},
        source="huggingface/candle#267",
    ),
    "blind_rows_are_nan": Entry(
        "a row without visible keys divides 0 by 0",
        "plain: attn_mask",
        {"peak = finite(peak)": "peak = peak + 0"},
        {"rows that see nothing": "divided 0 by 0 in rows that see nothing"},
        source="pytorch/pytorch#103963",
    ),
    "no_keys_nan": Entry(
        "with no keys at all (S = 0) the output is NaN (0/0), not 0",
        "plain: scale",
        {
            "np.where(total == 0, 1, total)": "total",
            "mix(weights, seen, v)": "mix(weights, seen, v) / (total > 0)",
        },
        {"empty": "divided 0 by 0 in rows that see nothing"},
        source="facebookresearch/xformers#1042",
    ),
    "no_keys_give_nan": Entry(
        "without keys, the output is NaN instead of 0",
        "plain: is_causal",
        {
            "mix(weights, seen, v)": (
                "mix(weights, seen, v) if S else np.full((B, H, L, v.shape[3]), np.nan)"
            )
        },
        {"empty": "divided 0 by 0 in calls without keys"},
        beside=("rows that see nothing",),
        source="ROCm/aiter#1442",
    ),
    "slow_path_weights": Entry(
        "rows that see nothing are NaN if weights are returned",
        "plain: attn_mask is_causal q_offset scale return_weights",
        {"peak = finite(peak)": "peak = peak if return_weights else finite(peak)"},
        {"rows that see nothing": "divided 0 by 0 in rows that see nothing, also in their weights"},
        beside=("plain",),
    ),
    "lse_in_base_2": Entry(
        "the LSE is a logarithm to the base 2",
        "plain: is_causal return_lse",
        {"lse = peak + np.log(total)": "lse = (peak + np.log(total)) / math.log(2)"},
        {"LSE": "returned the LSE in base 2"},
        source="lightseekorg/tokenspeed#571",
    ),
    "flex_lse": Entry(
        "the LSE is multiplied by ln 2 once too often",
        "plain: is_causal q_offset return_lse",
        {"lse = peak + np.log(total)": "lse = (peak + np.log(total)) * math.log(2)"},
        {"LSE": "the LSE was multiplied by ln 2"},
        source="pytorch/pytorch#181645",
    ),
    "lse_plus_infinity_for_blind_rows": Entry(
        "the LSE of a row without visible keys is +inf instead of -inf",
        "plain: key_lengths return_lse",
        {"lse = peak + np.log(total)": "lse = np.where(total == 0, np.inf, peak + np.log(total))"},
        {"rows that see nothing": "rows that see nothing had an LSE of +inf"},
        source="flashinfer-ai/flashinfer#3943",
    ),
    "state_attention": Entry(
        "the LSE of rows that see nothing is -50000",
        "plain: is_causal q_offset key_lengths return_lse",
        {"lse = peak + np.log(total)": "lse = np.where(total == 0, -5e4, peak + np.log(total))"},
        {"rows that see nothing": "rows that see nothing had an LSE of -50000"},
        beside=("plain",),
    ),
    "sum_buffers": Entry(
        "the LSE of rows that see nothing is 0",
        "plain: is_causal q_offset attn_mask key_lengths scale return_lse",
        {"lse = peak + np.log(total)": "lse = np.where(total == 0, 0, peak + np.log(total))"},
        {"rows that see nothing": "rows that see nothing had an LSE of 0"},
        beside=("plain",),
    ),
    "smooth_k_lse": Entry(
        "keys are centred by their mean and the LSE is not corrected by scale * q . mean(k)",
        "plain: scale return_lse",
        {"before: products = ": "k = k - (k.mean(axis=2, keepdims=True) if S else 0)"},
        {"LSE": "subtracted the mean of the keys, and did not correct the LSE for it"},
        source="ROCm/aiter#3334",
    ),
    "lse_of_default_scale": Entry(
        "the LSE is computed with the default scale, the output with the given one",
        "plain: scale return_lse",
        {
            "lse = peak + np.log(total)": (
                'scores = prepare(query, key, value, **options | {"scale": None})[3]\n'
                "lse = softmax(scores)[1][..., None]"
            )
        },
        {"LSE": "ignored the argument scale, but only in the LSE"},
        beside=("q_offset",),
    ),
    "weights_without_cap": Entry(
        "the returned weights ignore the soft cap",
        "plain: softcap return_weights",
        {
            "after: out = mix(weights, seen, v)": (
                'weights = softmax(prepare(query, key, value, **options | {"softcap": None})[3])[0]'
            )
        },
        {"weights": "ignored softcap, but only in the returned weights"},
        beside=("q_offset",),
    ),
    "weights_of_nothing": Entry(
        "the returned weights of rows that see nothing are NaN",
        "plain: attn_mask return_weights",
        {
            "after: out = mix(weights, seen, v)": (
                "weights = np.where(seen.any(axis=-1, keepdims=True), weights, np.nan)"
            )
        },
        {"rows that see nothing": "rows that see nothing had weights of NaN"},
        beside=("q_offset",),
    ),
    "fairseq_mha": Entry(
        "the weights returned are averaged over the heads",
        "plain: attn_mask return_weights",
        {
            "after: out = mix(weights, seen, v)": (
                "weights = np.repeat(weights.mean(axis=1, keepdims=True), H, axis=1)"
            )
        },
        {"weights": "averaged the weights over all heads, and returned the mean for each head"},
        source="facebookresearch/fairseq#3365",
    ),
    "keys_in_random_order": Entry(
        "two calls with the same inputs differ in the last bits",
        "plain: is_causal",
        {
            "out = mix(weights, seen, v)": (
                "order = np.random.default_rng().permutation(S)\n"
                "weights, v = weights[..., order].astype(query.dtype), v[:, :, order]\n"
                "out = mix(weights, seen[..., order], v.astype(query.dtype))"
            )
        },
        {"determinism": "it gives different results for the same call"},
        source="ROCm/triton#953",
    ),
}
