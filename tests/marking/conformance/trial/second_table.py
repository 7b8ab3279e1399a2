"""What the card must say of each defective kernel of the second trial."""

from . import (
    second_arithmetic as arithmetic,
    second_arithmetic_right as other_styles,
    second_options as options,
    second_options_right as styles,
)
from .table import Entry

SECOND = [
    Entry(
        options.flash_prefill,
        "q_offset",
        (
            "the key loop of a causal query ends at i + 1, not at i + 1 + q_offset, so cached keys "
            "after i are lost"
        ),
        ("causal",),
        named="aligned the causal mask to the first key in calls with more keys than queries",
        beside=("causal",),
    ),
    Entry(
        options.mlx_like_sdpa,
        "causal",
        (
            'q_offset="end" is clamped at 0: with more queries than keys the causal mask is '
            "aligned top-left"
        ),
        named="with more queries than keys, the kernel aligned the causal mask to the first key",
        beside=("q_offset",),
    ),
    Entry(
        options.batched_decoder_attention,
        "q_offset",
        "with an offset per row, the first row's offset is used for every row",
        named="all batches had the q_offset of the first batch",
    ),
    Entry(
        options.tiny_attention,
        "causal",
        "the causal mask is skipped whenever L != S (a cache is there)",
        named="ignored is_causal in calls with more or fewer keys than queries",
    ),
    Entry(
        options.split_kv_attention,
        "causal",
        (
            "a row that sees nothing of one 32-key split gets NaN though it sees keys of another "
            "split"
        ),
        named="computed -inf - -inf in rows that see no key of some tile of 32 keys",
    ),
    Entry(
        options.hf_flash_window,
        "window",
        "the window reaches one key too far to the left",
        named="the window was one key too long on the left",
    ),
    Entry(
        options.flashinfer_prefill,
        "window",
        "the right side of the window is ignored",
        named="ignored the right side of the window",
    ),
    Entry(
        options.tiled_window,
        "window",
        (
            "the first key tile of a 16-query tile is found from its last query's left edge, so "
            "earlier queries of the tile lose keys"
        ),
        named="tiles of 16 queries read whole tiles of keys, beginning at the left side",
    ),
    Entry(
        options.cute_learnable_sink,
        "sinks",
        (
            "the sink takes no part in the maximum: a sink more than 88 above the scores "
            "overflows, LSE inf"
        ),
        named="the maximum did not include sinks, so a large sink made the sum infinite",
    ),
    Entry(
        options.paged_decode_sinks,
        "sinks",
        "the sinks are dropped when there is one query",
        named="ignored sinks in calls with one query",
    ),
    Entry(
        options.pa_sdpa_sinks,
        "sinks",
        "with grouped heads the sink is read at the key head's number",
        named="read the sinks of a query head by the number of its key head",
    ),
    Entry(
        options.sink_lse_of_blind_rows,
        "rows that see nothing",
        (
            "with sinks, a row that sees nothing gets LSE NaN instead of the log-sum-exp of its "
            "sinks"
        ),
        named="rows that see nothing had an LSE of NaN beside sinks",
    ),
    Entry(
        options.flex_lse,
        "LSE",
        "the LSE is multiplied by ln 2 once too often",
        named="the LSE was multiplied by ln 2",
    ),
    Entry(
        options.fa2_plus_inf_lse,
        "rows that see nothing",
        "a row that sees nothing gets LSE +inf",
        named="rows that see nothing had an LSE of +inf",
    ),
    Entry(
        options.fa3_kvcache,
        "hidden NaN",
        "NaN in unused places of the value cache shows: 0 * NaN",
        named="multiplied masked values by a weight of 0, so masked NaN values gave NaN",
    ),
    Entry(
        options.additive_mask_decode,
        "hidden NaN",
        "NaN in a hidden key shows: NaN + -inf",
        named="added -inf to masked scores, so masked NaN scores stayed NaN, but masked NaN",
    ),
    Entry(
        options.fa4_row_max,
        "large scores",
        (
            "a key tile that a row does not see sets its running maximum to 0: rows whose scores "
            "are all far below 0 come out as zeros"
        ),
        named="tiles of 16 keys from the last to the first, and a tile that a row does not see set",
    ),
    Entry(
        options.finite_inf_sentinel,
        "large scores",
        (
            "the running maximum of the raw products begins at -5e4: rows wholly below it come out "
            "as zeros"
        ),
        named="the running maximum of scores before the scale began at -50000 instead of -inf",
    ),
    Entry(
        options.xt_flash,
        "bool mask",
        "a bool mask is read the other way round unless a bias is given",
        named="a True in the mask masked the key in calls without a bias",
        beside=("bias",),
    ),
    Entry(
        options.tt_decode_mask,
        "float mask",
        "one query and a mask of one batch: the mask is applied to batch 0 only",
        named="a mask of one batch masked only the first batch in calls with one query",
    ),
    Entry(
        options.micro_sdpa,
        "bool mask",
        "a mask with one query line (..., 1, S) is applied to the first query only",
        named="a mask with one row for all queries did not mask query 1 and later queries",
    ),
    Entry(
        options.grouped_mask,
        "grouped heads",
        "with grouped heads, a mask per query head is read at the key head's number",
        ("bool mask", "float mask"),
        named="read the mask of a query head by the number of its key head",
        beside=("bool mask",),
    ),
    Entry(
        options.vector_2pass_gqa,
        "grouped heads",
        "grouped heads, one query, no mask: every batch reads the keys and values of batch 0",
        named="all batches read the keys and values of the first batch in calls with one query",
    ),
    Entry(
        options.onnx_softcap,
        "softcap",
        (
            "the soft cap is applied after the mask, so hidden keys have the score -softcap and "
            "get weight"
        ),
        named="applied softcap after the mask",
    ),
    Entry(
        options.falcon_alibi,
        "ALiBi",
        "with one query the ALiBi bias is 0",
        named="ignored alibi_slopes in calls with one query",
    ),
    Entry(
        options.linear_alibi,
        "ALiBi",
        "the ALiBi distance is signed, not absolute: wrong where later keys are visible",
        named="computed ALiBi distances without abs()",
    ),
    Entry(
        options.fairseq_mha,
        "weights",
        "the weights returned are averaged over the heads",
        named="averaged the weights over all heads, and returned the mean for each head",
    ),
    Entry(
        options.paged_blocks,
        "lengths",
        "key lengths are rounded up to whole blocks of 16 keys",
        named="rounded key_lengths up to whole tiles of 16 keys",
    ),
    Entry(
        options.truthy_lengths,
        "rows that see nothing",
        "a key length of 0 counts as no length: the row attends to its padding",
        named="did not mask rows that see nothing",
    ),
    Entry(
        options.bert_bias,
        "bias",
        "the bias is multiplied by the scale too",
        named="added the bias before the scale",
    ),
    Entry(
        arithmetic.scale_unused,
        "scale",
        "scale is accepted and never used: the scores are always multiplied by 1/sqrt(d)",
        named="ignored the argument scale",
    ),
    Entry(
        arithmetic.scale_or_default,
        "scale",
        "scale=0 counts as not given ('scale or 1/sqrt(d)'), so the weights are not uniform",
        named="treated a scale of 0 as a missing scale",
    ),
    Entry(
        arithmetic.padded_head_scale,
        "plain",
        (
            "head sizes are padded to a multiple of 8 and the default scale is taken from the "
            "padded size"
        ),
        named="computed the scale from d rounded up to a multiple of 8",
    ),
    Entry(
        arithmetic.packed_gqa_scale,
        "grouped heads",
        (
            "with grouped heads (and L = S, dv = d) QKV is packed and the default scale is "
            "computed from the packed width over the query heads, (H + 2 Hkv) d / H, not from d"
        ),
        named="computed the scale from the size of query, key and value of a packed head",
    ),
    Entry(
        arithmetic.softcap_after_bias,
        "softcap",
        (
            "softcap is applied to score + bias, so the bias is squeezed and a bias of -inf still "
            "gets weight"
        ),
        named="applied softcap after the bias",
    ),
    Entry(
        arithmetic.softcap_log2,
        "softcap",
        (
            "softcap is applied to scores already multiplied by log2(e) (a cap of softcap*ln 2 on "
            "scores)"
        ),
        named="applied softcap to scores in base 2",
    ),
    Entry(
        arithmetic.bias_tiled_over_heads,
        "bias",
        (
            "a bias per batch row (B, 1, L, S) is tiled, not repeated, over heads in the folded "
            "(batch, head) axis, so with B > 1 heads get other rows' bias"
        ),
        named="repeated a bias (B, 1, L, S) over batch and head in the wrong order",
    ),
    Entry(
        arithmetic.bias_row_first_tile,
        "bias",
        "a bias with one query row (.., 1, S) is applied to the first tile of 8 queries only",
        named="a bias with one row for all queries was not added from query 8 on",
    ),
    Entry(
        arithmetic.row_max_stays_zero,
        "large scores",
        (
            "after a fully masked first tile (tiles of 8 keys from the right, causal) the running "
            "maximum is left at 0, so rows whose scores are all very negative (< about -104 in "
            "float32) come out as zero"
        ),
        named="tiles of 8 keys from the last to the first, and a tile that a row does not see set",
    ),
    Entry(
        arithmetic.finite_sentinel,
        "large scores",
        (
            "the running maximum starts at -5e4, so a row whose scores are all below that is "
            "silently zero"
        ),
        named="the running maximum began at -50000 instead of -inf, and rows with a sum",
    ),
    Entry(
        arithmetic.exp2_no_underflow,
        "large scores",
        (
            "exp2 builds 2**k from exponent bits without a clamp, so a score more than 127.5 ln 2 "
            "below its row's maximum gets a garbage weight (negative, huge or infinite)"
        ),
        named="wrote whole powers of 2 into the exponent of a float32 without a lower limit",
    ),
    Entry(
        arithmetic.skip_rescale_wrong_frame,
        "plain",
        (
            "lazy rescale (tiles of 8 keys): when the maximum grows by at most tau the step is "
            "skipped, but the tile's weights were computed against the new maximum and are added "
            "to sums of the old one"
        ),
        named="a maximum that grew by at most 8 (in base 2), but tiles of 8 keys subtracted",
    ),
    Entry(
        arithmetic.p_saturates_half,
        "half precision",
        (
            "for halves, unnormalized weights saturate at 448 in the product with V but not in the "
            "row sum, when the running maximum lags (lazy rescale, tiles of 8 keys)"
        ),
    ),
    Entry(
        arithmetic.tail_tile_zero_keys,
        "plain",
        (
            "with S > 32 and not a multiple of 32 the last tile is filled with zero keys that are "
            "not masked (score 0, weight exp(0 - max))"
        ),
        named="padding received weight in calls with more than 32 keys",
    ),
    Entry(
        arithmetic.splits_drop_remainder,
        "plain",
        (
            "decoding (L = 1, S > 8) cuts the keys into 4 splits of S // 4 and drops the last S % "
            "4 keys"
        ),
        named="dropped the keys after the last whole tile of 4",
    ),
    Entry(
        arithmetic.combine_batch_stride_zero,
        "plain",
        (
            "decoding (L = 1, S >= 4): the merge of splits writes with batch stride 0, so every "
            "batch row lands on row 0 and the others stay zero"
        ),
        named="wrote the results of all batches to the first, and left the others at 0",
    ),
    Entry(
        arithmetic.idle_split_overwrites_lse,
        "LSE",
        (
            "when only the first of two splits of the keys has visible keys, the idle split "
            "overwrites the row's LSE with -inf (the output is right)"
        ),
        named="the LSE was -inf in rows that do not see the last of 2 splits of the keys",
    ),
    Entry(
        arithmetic.smooth_k_lse,
        "LSE",
        "keys are centred by their mean and the LSE is not corrected by scale * q . mean(k)",
        named="subtracted the mean of the keys, and did not correct the LSE for it",
    ),
    Entry(
        arithmetic.smooth_k_in_place,
        "plain",
        "centres the keys in place: the caller's key array is written to",
        named="it writes to key",
    ),
    Entry(
        arithmetic.query_strides_short,
        "strides",
        "for L <= 8 the query is read as if it were contiguous, whatever its strides",
        named="assumed that queries are contiguous",
    ),
    Entry(
        arithmetic.inner_stride_one,
        "strides",
        "key and value are read as if the stride of their last axis were one element",
        named="assumed that the last axis of keys and values is contiguous",
    ),
    Entry(
        arithmetic.half_product_before_scale,
        "half precision",
        (
            "for float16 the product QK^T is held in a half's range before it is scaled, so beyond "
            "65504 it is inf (NaN out) though the scaled score is finite"
        ),
        named="stored the products of queries and keys in half precision before the scale",
    ),
    Entry(
        arithmetic.half_in_float_out,
        "half precision",
        "halves come back as float32, not in the input's type",
        found=False,
    ),
    Entry(
        arithmetic.no_keys_nan,
        "empty",
        "with no keys at all (S = 0) the output is NaN (0/0), not 0",
        named="divided 0 by 0 in rows that see nothing",
    ),
    Entry(
        arithmetic.tiles_in_any_order,
        "determinism",
        "blocks of keys are added in a random order, so two runs differ in the last bits",
        named="it gives different results for the same call",
    ),
    Entry(
        arithmetic.grad_group_overwritten,
        "gradient",
        (
            "grouped heads: d_key and d_value are those of the group's last query head, not the "
            "sum over the group"
        ),
        gradient=arithmetic.grad_group_overwritten_backward,
        named="the gradients of keys and values came from the last query head of each group",
    ),
    Entry(
        arithmetic.grad_softcap_flat,
        "gradient",
        (
            "the gradient leaves out the softcap's derivative 1 - tanh(s / softcap)**2 (d_query "
            "and d_key)"
        ),
        gradient=arithmetic.grad_softcap_flat_backward,
        named="the backward pass left out softcap",
    ),
    Entry(
        arithmetic.grad_dq_value_extent,
        "gradient",
        (
            "d_query takes only the first d of the dv value channels into dO V^T, so it is wrong "
            "when dv > d"
        ),
        gradient=arithmetic.grad_dq_value_extent_backward,
        named="the gradient of queries read only the first d columns of the values",
    ),
    Entry(
        arithmetic.key_loop_by_query_length,
        "plain",
        (
            "the loop over key tiles of 8 runs over ceil(L / 8) tiles, so with S > L the last keys "
            "can be left out"
        ),
        named="read only as many tiles of 8 keys as there are tiles of queries",
    ),
    Entry(
        arithmetic.output_like_query,
        "plain",
        (
            "the output is allocated like the query: with dv > d channels are cut off, with dv < d "
            "zeros are added (the shape is wrong)"
        ),
        named="out has shape (1, 1, 1, 1) and must have (1, 1, 1, 2)",
    ),
]

RIGHT = [
    styles.loop_attention,
    styles.partial_bias,
    styles.vectorised,
    styles.online_tiles,
    styles.einsum_groups,
    styles.keyworded,
    styles.decode_and_prefill,
    styles.packed_rows,
    styles.equal_heads_only,
    styles.square_only,
    styles.sink_column,
    styles.tree_attention,
    styles.along_axis,
    styles.generated,
    styles.shuffled_keys,
    styles.single_precision,
    styles.swapped_scale,
    styles.lengths_by_slices,
    styles.everything,
    other_styles.python_loops,
    other_styles.logaddexp,
    other_styles.tiles_from_the_right,
    other_styles.window_exp2,
    other_styles.vectorize,
    other_styles.bias_partial,
    other_styles.packed_rows,
    other_styles.strict_shapes,
    other_styles.grouped_einsum,
    other_styles.with_weights,
    other_styles.splits_and_sinks,
    other_styles.centred_keys,
    other_styles.with_gradient,
    other_styles.decode_path,
    other_styles.slices_only,
    other_styles.alibi,
    other_styles.scale_on_both_sides,
    other_styles.takes_no_more,
    other_styles.lazy_rescale,
    *([styles.torch_module, other_styles.torch_module] if styles.torch else []),
]
RIGHT_GRADIENTS = {other_styles.with_gradient: other_styles.with_gradient_backward}
