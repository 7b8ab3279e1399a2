"""Defective kernels: scale, bias, softcap and ALiBi."""

from .entry import Entry

SCORES = {
    "decode_forgets_scale": Entry(
        "with one query (decoding), the scores are not multiplied by the scale",
        "plain: scale",
        {"products * factor": "products * (1 if L == 1 else factor)"},
        {"plain": "did not apply the scale in calls with one query"},
        source="ROCm/composable_kernel#526",
    ),
    "scale_argument_ignored": Entry(
        "the argument scale is ignored, and 1/sqrt(d) is always used",
        "plain: scale",
        {"d**-0.5 if scale is None else scale": "d**-0.5"},
        {"scale": "ignored the argument scale"},
        source="bo-ke/llm-internal-medicine#47",
    ),
    "scale_after_softmax": Entry(
        "the scale multiplies the weights after the softmax instead of the scores before it",
        "plain: attn_mask",
        {
            "products * factor": "products",
            "mix(weights, seen, v)": "mix(weights * query.shape[3] ** -0.5, seen, v)",
        },
        {"plain": "multiplied the weights by the scale instead of the scores"},
        source="FrancescoSaverioZuppichini/ViT#2",
    ),
    "scale_of_value_size": Entry(
        "the scale comes from the size of the values, 1/sqrt(dv), not of the queries",
        "plain: is_causal",
        {"d**-0.5 if scale is None else scale": "dv**-0.5"},
        {"plain": "used 1 / sqrt(dv) as the scale"},
    ),
    "scale_or_default": Entry(
        "scale=0 counts as not given ('scale or 1/sqrt(d)'), so the weights are not uniform",
        "plain: scale bias",
        {"d**-0.5 if scale is None else scale": "scale or d**-0.5"},
        {"scale": "treated a scale of 0 as a missing scale"},
        source="SKaiNET-developers/SKaiNET#880",
    ),
    "padded_head_scale": Entry(
        "the default scale is that of a head size rounded up to 8",
        "plain: scale attn_mask",
        {"d**-0.5 if": "(d + -d % 8) ** -0.5 if"},
        {"plain": "computed the scale from d rounded up to a multiple of 8"},
        source="intel/ipex-llm#12619",
    ),
    "padded_vision": Entry(
        "the default scale is that of a head size rounded up to 16",
        "plain: is_causal attn_mask scale",
        {"d**-0.5 if": "(d + -d % 16) ** -0.5 if"},
        {"plain": "computed the scale from d rounded up to a multiple of 16"},
    ),
    "packed_gqa_scale": Entry(
        (
            "if L = S and dv = d, grouped heads take the scale from the packed size, (H + 2 Hkv) d "
            "/ H"
        ),
        "plain: scale attn_mask",
        {
            "before: left, right =": (
                "if scale is None and group > 1 and L == S and d == dv:\n"
                "    factor = ((H + 2 * G) * d // H) ** -0.5"
            )
        },
        {"grouped heads": "computed the scale from the size of query, key and value of a packed"},
        source="ROCm/hip-ep#621",
    ),
    "two_route_attention": Entry(
        "with more than 256 keys, the argument scale is ignored",
        "plain: is_causal q_offset scale",
        {"d**-0.5 if scale is None else scale": "d**-0.5 if scale is None or S > 256 else scale"},
        {"scale": "ignored the argument scale in calls with more than"},
        beside=("plain",),
    ),
    "bias_scaled_with_scores": Entry(
        "the bias is multiplied by the scale (it is added before the scale)",
        "plain: bias scale",
        {"scores + bias_added": "scores + bias_added * factor"},
        {"bias": "added the bias before the scale"},
        source="NVIDIA/TransformerEngine#103",
    ),
    "float_mask_weakened_in_decode": Entry(
        "with one query, the float mask is multiplied by the scale",
        "plain: attn_mask",
        {"scores + mask_added": "scores + mask_added * (factor if L == 1 else 1)"},
        {"float mask": "multiplied the float mask by the scale in calls with one query"},
        source="tenstorrent/tt-metal#56406",
    ),
    "compact_mask": Entry(
        "a float mask is rounded to float16",
        "plain: attn_mask is_causal q_offset bias scale return_lse",
        {"scores + mask_added": "scores + np.float16(mask_added)"},
        {"float mask": "rounded the mask to 10 bits"},
        beside=("plain",),
    ),
    "backend_dot_product_attention": Entry(
        "the bias is ignored if is_causal is set",
        "plain: bias is_causal q_offset scale",
        {"if bias is not None:": "if bias is not None and not is_causal:"},
        {"bias": "ignored the bias in causal calls"},
        beside=("plain",),
    ),
    "bias_tiled_over_heads": Entry(
        "a bias (B, 1, L, S) is repeated over batch and head in the wrong order",
        "plain: bias scale",
        {
            "before: bias_seen, bias_added": (
                "if bias.ndim == 4 and bias.shape[:2] == (B, 1):\n"
                "    bias = np.tile(bias[:, 0], (H, 1, 1)).reshape(B, H, *bias.shape[2:])"
            )
        },
        {"bias": "repeated a bias (B, 1, L, S) over batch and head in the wrong order"},
    ),
    "bias_row_first_tile": Entry(
        "a bias with one query row (.., 1, S) is applied to the first tile of 8 queries only",
        "plain: bias softcap",
        {
            "before: seen &= bias_seen": (
                "if bias.ndim > 1 and bias.shape[-2] == 1:\n"
                "    bias_seen, bias_added = bias_seen | (i > 7), np.where(i > 7, 0, bias_added)"
            )
        },
        {"bias": "a bias with one row for all queries was not added from query 8 on"},
        source="openvinotoolkit/openvino#30758",
    ),
    "softcap_after_mask": Entry(
        "the softcap comes after the mask, so that hidden keys get -softcap and leak",
        "plain: attn_mask softcap",
        {
            "scores = softcap * np.tanh(scores / softcap)": "pass",
            "after: scores = np.where(seen, scores, -np.inf)": (
                "if softcap is not None:\n"
                "    scores = softcap * np.tanh(scores / softcap)\n"
                "    seen[:] = True"
            ),
        },
        {"softcap": "applied softcap after the mask"},
        source="onnx/onnx#7865",
    ),
    "softcap_after_bias": Entry(
        "the bias is added before the softcap, not after it",
        "plain: bias softcap",
        {
            "scores = softcap * np.tanh(scores / softcap)": (
                "added = 0 if bias is None else split_mask(bias)[1]\n"
                "scores = softcap * np.tanh((scores + added) / softcap)"
            ),
            "scores + bias_added": "scores + bias_added * (softcap is None)",
        },
        {"softcap": "applied softcap after the bias"},
        source="microsoft/onnxruntime#28379",
    ),
    "softcap_after_bias_of_minus_infinity": Entry(
        "the bias is added before the softcap, and a bias of -inf still gets weight",
        "plain: softcap bias scale",
        {
            "scores = softcap * np.tanh(scores / softcap)": (
                "scores = softcap * np.tanh((scores + (0 if bias is None else bias)) / softcap)"
            ),
            "&= bias_seen": "&= bias_seen | (softcap is not None)",
            "scores + bias_added": "scores + bias_added * (softcap is None)",
        },
        {"softcap": "applied softcap after the bias"},
        source="emmtrix/emx-onnx-cgen#731",
    ),
    "generated_attention_template": Entry(
        "the soft cap is applied to the sum of score, bias and float mask",
        "plain: attn_mask bias softcap scale return_weights",
        {
            "scores = softcap * np.tanh(scores / softcap)": "pass",
            "before: scores = np.where(seen, scores, -np.inf)": (
                "if softcap is not None:\n    scores = softcap * np.tanh(scores / softcap)"
            ),
        },
        {"softcap": "applied softcap after bias, ALiBi and float mask, but -inf still masked keys"},
        beside=("plain",),
    ),
    "softcap_inside_tanh_only": Entry(
        "the scores become tanh(softcap * scores) instead of softcap * tanh(scores / softcap)",
        "plain: softcap",
        {"softcap * np.tanh(scores / softcap)": "np.tanh(scores * softcap)"},
        {"softcap": "computed tanh(scores * softcap) instead of softcap * tanh(scores / softcap)"},
        source="microsoft/onnxruntime#21683",
    ),
    "softcap_log2": Entry(
        "the softcap is applied to scores in base 2",
        "plain: softcap scale attn_mask",
        {"* np.tanh(scores / softcap)": "* math.log(2) * np.tanh(scores / math.log(2) / softcap)"},
        {"softcap": "applied softcap to scores in base 2"},
        source="sgl-project/sgl-kernel-xpu#491",
    ),
    "triton_like_softcap": Entry(
        "tanh is computed with an exp that overflows float32",
        "plain: is_causal q_offset attn_mask scale softcap",
        {
            "softcap * np.tanh(scores / softcap)": (
                "scores / softcap\n"
                "e = np.exp(np.float32(2) * scores.astype(np.float32))\n"
                "scores = softcap * np.where(scores < 40, np.tanh(scores), (e - 1) / (e + 1))"
            )
        },
        {"softcap": "computed tanh(x) by exp(2 x), which overflows for large scores"},
        beside=("plain",),
    ),
    "padding_before_cap": Entry(
        "padding is masked before the soft cap, and counts as -cap",
        "plain: softcap key_lengths is_causal",
        {
            "seen &= j < lengths": (
                "if softcap is not None:\n"
                "    scores = np.where(j < lengths, scores, -softcap)\n"
                "seen &= (j < lengths) | (softcap is not None)"
            )
        },
        {"lengths": "applied key_lengths before softcap, so masked scores became -softcap"},
        beside=("q_offset",),
    ),
    "causal_before_cap": Entry(
        "the causal mask is applied before the soft cap; other masks are right",
        "plain: softcap is_causal attn_mask",
        {
            "after: softcap * np.tanh(scores / softcap)": (
                "scores = np.where((ahead <= 0) | (not is_causal), scores, -softcap)"
            ),
            "if is_causal:": "if is_causal and softcap is None:",
        },
        {"softcap": "applied the causal mask before softcap, so masked scores became -softcap"},
        beside=("q_offset",),
    ),
    "alibi_slope_of_previous_head": Entry(
        "each head uses the slope of the head before it",
        "plain: alibi_slopes is_causal",
        {"np.reshape(alibi_slopes, (H, 1, 1))": "np.reshape([1.0, *alibi_slopes[:-1]], (H, 1, 1))"},
        {"ALiBi": "each head had the ALiBi slope of the head before it"},
        source="paiml/aprender#2143",
    ),
    "alibi_from_cache": Entry(
        "the ALiBi bias of an earlier call of the same shape is used again",
        "plain: alibi_slopes q_offset",
        {"slopes * far": "vars(prepare).setdefault(str(scores.shape), slopes * far)"},
        {"ALiBi": "it depends on earlier calls"},
        source="ml-explore/mlx#3071",
    ),
    "alibi_rewards_the_future": Entry(
        "the ALiBi distance has no abs: keys after the query gain instead of losing",
        "plain: alibi_slopes is_causal",
        {"np.abs(ahead)": "-ahead"},
        {"ALiBi": "computed ALiBi distances without abs()"},
    ),
    "alibi_by_columns": Entry(
        "under causal, ALiBi is slope * j: the output is right, and the LSE lacks slope * i",
        "plain: alibi_slopes is_causal q_offset return_lse",
        {"np.abs(ahead)": "-j if is_causal else np.abs(ahead)"},
        {"LSE": "added the slope times the number of the key"},
    ),
    "alibi_one_too_far": Entry(
        "distances of ALiBi are too large by 1, which only the LSE shows",
        "plain: alibi_slopes q_offset return_lse",
        {"np.abs(ahead)": "np.abs(ahead) + 1"},
        {"LSE": "computed ALiBi distances that are too large by 1"},
        beside=("q_offset",),
    ),
    "alibi_attention": Entry(
        "distances of ALiBi leave out q_offset",
        "plain: is_causal q_offset key_lengths scale alibi_slopes",
        {"np.abs(ahead)": "np.abs(i - j)"},
        {"ALiBi": "ignored q_offset in ALiBi"},
        beside=("plain",),
    ),
    "half_slope_buffer": Entry(
        "in float16, heads after the largest power of 2 have a slope of 0",
        "plain: is_causal q_offset alibi_slopes scale window return_lse",
        {
            "before: scores = scores - slopes * far": (
                "if query.dtype == np.float16:\n    slopes[1 << (H.bit_length() - 1) :] = 0"
            )
        },
        {"half precision": "heads after the largest power of 2 had an ALiBi slope of 0"},
        beside=("plain",),
    ),
}
