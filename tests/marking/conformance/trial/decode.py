"""Defective kernels: right for several queries, wrong for one query (decoding)."""

from .entry import Entry

DECODE = {
    "softcap_off_in_decode": Entry(
        "with one query (decoding), the softcap is ignored",
        "plain: softcap key_lengths",
        {"if softcap is not None:": "if softcap is not None and L > 1:"},
        {"softcap": "ignored softcap in calls with one query"},
        source="vllm-project/vllm-metal#665",
    ),
    "alibi_zero_in_decode": Entry(
        "with one query (decoding), ALiBi is ignored",
        "plain: alibi_slopes q_offset",
        {"if alibi_slopes is not None:": "if alibi_slopes is not None and L > 1:"},
        {"ALiBi": "ignored alibi_slopes in calls with one query"},
        source="keras-team/keras-hub#2862",
    ),
    "single_query_alibi": Entry(
        "with one query, distances of ALiBi are too large by 1",
        "plain: is_causal q_offset alibi_slopes sinks scale return_lse",
        {"np.abs(ahead)": "np.abs(ahead) + (L == 1)"},
        {"sinks": "computed ALiBi distances that are too large by 1 in calls with one query"},
        beside=("plain",),
    ),
    "alibi_signed_in_decoding": Entry(
        "with one query, the distance is signed",
        "plain: alibi_slopes is_causal q_offset",
        {"np.abs(ahead)": "-ahead if L == 1 else np.abs(ahead)"},
        {"ALiBi": "computed ALiBi distances without abs() in calls with one query"},
        beside=("q_offset",),
    ),
    "flash_api_forward": Entry(
        "with one query, is_causal is off, as if the query came last",
        "plain: is_causal q_offset scale softcap return_lse",
        {"if is_causal:": "if is_causal and L > 1:"},
        {"q_offset": "aligned the causal mask to the last key in calls with one query"},
        beside=("plain",),
    ),
    "vector_or_matrix_sdpa": Entry(
        "with up to four queries, a bool mask is added to the scores",
        "plain: attn_mask is_causal q_offset scale",
        {"(attn_mask)": "(attn_mask.astype(float) if L <= 4 else attn_mask)"},
        {"bool mask": "added the bool mask to scores as 0 and 1 in calls with at most 4 queries"},
        beside=("plain",),
    ),
    "tt_decode_mask": Entry(
        "one query and a mask of one batch: the mask is applied to batch 0 only",
        "plain: attn_mask scale",
        {
            "before: mask_seen, mask_added": (
                "if attn_mask.dtype == bool:\n"
                '    raise TypeError("float masks only")\n'
                "if L == 1 and (attn_mask.ndim < 4 or len(attn_mask) == 1):\n"
                "    attn_mask = np.array(np.broadcast_to(attn_mask, (B, H, L, S)))\n"
                "    attn_mask[1:] = 0"
            )
        },
        {"float mask": "a mask of one batch masked only the first batch in calls with one query"},
        source="tenstorrent/tt-metal#39910",
    ),
    "window_ignored_in_decode": Entry(
        "with one query (decoding), the window is ignored",
        "plain: is_causal window q_offset",
        {"window is None else window": "window is None or L == 1 else window"},
        {"window": "ignored the window in calls with one query"},
        source="EricLBuehler/mistral.rs#2094",
    ),
    "paged_decode_sinks": Entry(
        "the sinks are dropped when there is one query",
        "plain: sinks is_causal q_offset",
        {"if sinks is not None:": "if sinks is not None and L > 1:"},
        {"sinks": "ignored sinks in calls with one query"},
        source="kekzl/imp#1345",
    ),
    "vector_2pass_gqa": Entry(
        "grouped heads, one query, no mask: every batch reads the keys and values of batch 0",
        "plain: attn_mask scale",
        {
            "before: products = ": (
                "if L == 1 and attn_mask is None and group > 1:\n"
                "    k, v = (np.broadcast_to(x[:1], x.shape) for x in (k, v))"
            )
        },
        {"grouped heads": "all batches read the keys and values of the first batch in calls with"},
        source="ml-explore/mlx#4431",
    ),
    "swapped_groups": Entry(
        "with one query, heads are (group, key head)",
        "plain: is_causal q_offset scale key_lengths return_lse",
        {
            "after: k = np.repeat(k, group, axis=1)": (
                "if L == 1:\n    k, v = (np.tile(x, (1, group, 1, 1)) for x in (k[:, ::group], v))"
            ),
            "v = np.repeat(v, group, axis=1)": "v = v if L == 1 else np.repeat(v, group, axis=1)",
        },
        {"grouped heads": "grouped heads as 0 1 0 1 instead of 0 0 1 1 in calls with one query"},
        beside=("plain",),
    ),
    "splits_drop_remainder": Entry(
        "4 splits have S // 4 keys each, and the last S % 4 keys are dropped",
        "plain: scale attn_mask",
        {
            "after: seen = np.ones((B, H, L, S), bool)": (
                "if L == 1 and S > 8:\n    seen[..., S // 4 * 4 :] = False"
            )
        },
        {"plain": "dropped the keys after the last whole tile of 4"},
        source="tile-ai/tilelang#2010",
    ),
    "combine_batch_stride_zero": Entry(
        "the results of all batches are written to the first, and the others stay 0",
        "plain: scale return_lse",
        {
            "after: out = mix(weights, seen, v)": (
                "if L == 1 and S >= 4:\n    out[:1], out[1:] = out[-1:], 0"
            )
        },
        {"plain": "wrote the results of all batches to the first, and left the others at 0"},
        source="vllm-project/flash-attention#176",
    ),
    "lse_without_bias_of_one_query": Entry(
        "with one query, the LSE lacks the bias",
        "plain: bias return_lse",
        {
            "after: lse = peak + np.log(total)": (
                "if L == 1:\n"
                '    scores = prepare(query, key, value, **options | {"bias": None})[3]\n'
                "    lse = softmax(scores)[1][..., None]"
            )
        },
        {"LSE": "ignored the bias, but only in the LSE in calls with one query"},
        beside=("q_offset",),
    ),
}
