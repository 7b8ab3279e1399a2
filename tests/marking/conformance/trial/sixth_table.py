"""What the card must say of each defective kernel of the sixth trial."""

from functools import partial

from . import sixth_a, sixth_a_right, sixth_b, sixth_b_right
from .table import Entry

# kernel: feature, mistake, words of the card, other features whose cases are needed
_FIRST = {
    "prefill_row_end": (
        "causal",
        "query i sees the keys up to i, also with more keys than queries",
        "aligned the causal mask to the first key",
    ),
    "exp2_prefill": (
        "LSE",
        "the LSE stays in base 2",
        "returned the LSE in base 2",
    ),
    "splitkv_sink_decode": (
        "sinks",
        "sinks count twice in rows that do not see the first 32 keys",
        "sinks twice in rows that do not see the first tile of 32 keys",
    ),
    "right_to_left_blocks": (
        "large scores",
        "a tile of 16 keys that a row does not see sets the maximum to 0",
        "read tiles of 16 keys from the diagonal to the first key, and a tile that a row",
    ),
    "diagonal_block_causal": (
        "q_offset",
        "only the last tile of 32 keys has the causal mask",
        "applied the causal mask only in the last of their tiles",
    ),
    "alibi_attention": (
        "ALiBi",
        "distances of ALiBi leave out q_offset",
        "ignored q_offset in ALiBi",
    ),
    "gqa_einsum": (
        "grouped heads",
        "key heads are tiled instead of repeated",
        "grouped heads as 0 1 0 1 instead of 0 0 1 1",
    ),
    "local_gather": (
        "window",
        "the window holds left keys, with the query's own, instead of left + 1",
        "the window was one key too short on the left",
    ),
    "capped_bias": (
        "softcap",
        "the soft cap is applied to the sum of score and bias",
        "applied softcap after the bias",
    ),
    "decode_with_cap": (
        "softcap",
        "the soft cap comes after the mask, so that hidden keys get -softcap",
        "applied softcap after the mask",
    ),
    "triton_like_softcap": (
        "softcap",
        "tanh is computed with an exp that overflows float32",
        "computed tanh(x) by exp(2 x), which overflows for large scores",
    ),
    "paged_flex": (
        "plain",
        "zeros fill the last page of 16 keys, and are visible",
        "padded the last tile of 16 keys with zeros, and the padding received weight",
    ),
    "ragged_native": (
        "lengths",
        "keys lie in pages of 16, but are found by the sum of the lengths before",
        "",
    ),
    "additive_masked": (
        "hidden NaN",
        "-inf is added to masked scores, and masked values are multiplied by 0",
        "added -inf to masked scores and multiplied masked values by 0",
        "rows that see nothing",
    ),
    "finite_fill": (
        "rows that see nothing",
        "masked scores become the smallest finite number",
        "masked scores became a finite number instead of -inf, so masked keys get weight",
    ),
    "split_decode_lse": (
        "LSE",
        "in rows that see one tile of 64 keys, the tiles after it set the LSE to -inf",
        "the LSE was -inf in rows that see only one tile of 64 keys, if it is not the last",
    ),
    "metal_half_scores": (
        "plain",
        "products of queries and keys are stored in float16 before the scale",
        "stored the products of queries and keys in float16 before the scale",
    ),
    "padded_vision": (
        "plain",
        "the default scale is that of a head size rounded up to 16",
        "computed the scale from d rounded up to a multiple of 16",
    ),
    "simd_group_heads": (
        "plain",
        "only the first 128 numbers of queries and keys are read",
        "read only the first 128 numbers of queries and keys",
    ),
    "vectorised_dot": (
        "plain",
        "numbers of queries and keys after the last multiple of 8 are not read",
        "did not read the numbers of queries and keys after the last multiple of 8",
    ),
    "int8_digits": (
        "plain",
        "keys are quantized by head, and all heads have the scale of the first",
        "",
    ),
    "efficient_mask": (
        "bool mask",
        "in a last tile of one key, the mask is read one key before",
        "",
    ),
    "raw_buffer_flash": (
        "strides",
        "inputs are read in the order of memory",
        "read the inputs in the order of memory",
    ),
    "cached_triangle": (
        "causal",
        "the causal mask is kept from an earlier call with the same shapes",
        "it depends on earlier calls",
        "q_offset",
    ),
    "prefill_or_decode": (
        "softcap",
        "with one query, there is no soft cap",
        "ignored softcap in calls with one query",
    ),
    "exp2_sinks": (
        "sinks",
        "scores are in base 2, but sinks in base e",
        "used base 2 for sinks and base e for scores",
    ),
    "four_workers": (
        "plain",
        "four workers take L // 4 queries each, and the rest stay 0",
        "left outputs at 0 for queries after the last whole tile of 4",
    ),
    "compact_page_table": (
        "plain",
        "numbers of pages of two keys are stored in 8 bits",
        "from key 512 on (counted from 0), the kernel read keys and values from the first again",
    ),
    "flash_with_probs": (
        "weights",
        "the weights of tiles of 32 keys are not rescaled to the last maximum",
        "the weights of earlier tiles of 32 keys were not rescaled to the last maximum",
    ),
    "batched_chunk": (
        "q_offset",
        "all batches have the q_offset of the first",
        "all batches had the q_offset of the first batch",
    ),
}
_SECOND = {
    "lane_dot_attention": (
        "plain",
        "numbers of queries and keys after the last multiple of 8 are not read",
        "did not read the numbers of queries and keys after the last multiple of 8",
    ),
    "triton_port": (
        "plain",
        "the scale is multiplied by log2(e) again in each tile of 64 keys",
        "multiplied the scale by log2(e) again in each tile of 64 keys",
    ),
    "raw_max_attention": (
        "large scores",
        "the maximum of unscaled scores begins at -1000",
        "the running maximum of scores before the scale began at",
    ),
    "table_exp_attention": (
        "scale",
        "the argument of exp is at least -10",
        "limited the argument of exp to at least -10",
    ),
    "long_context_attention": (
        "plain",
        "with more than 512 keys, the weights of a row are added up in float16",
        "added up the weights of a row key by key in float16",
    ),
    "int8_cache_attention": (
        "plain",
        "keys are clipped to the range of the first 64 keys",
        "clipped each column of the keys to the range of the first 64 keys",
    ),
    "beginner_causal": (
        "causal",
        "query i sees the keys up to i, also with more keys than queries",
        "aligned the causal mask to the first key",
    ),
    "chunked_prefill": (
        "q_offset",
        "all batches have the q_offset of the first",
        "all batches had the q_offset of the first batch",
    ),
    "mask_slices_attention": (
        "bool mask",
        "a mask (B, 1, L, S) is repeated over batch and head in the wrong order",
        "repeated a mask (B, 1, L, S) over batch and head in the wrong order",
    ),
    "tiled_mask_attention": (
        "bool mask",
        "-inf - -inf in rows that see none of the first 16 keys",
        "computed -inf - -inf in rows that see none of the first",
    ),
    "fill_min_attention": (
        "rows that see nothing",
        "masked scores become the smallest finite number",
        "masked scores became a finite number instead of -inf, so masked keys get weight",
    ),
    "pallas_like": (
        "bias",
        "the bias is added before the scale",
        "added the bias before the scale",
    ),
    "two_route_attention": (
        "scale",
        "with more than 256 keys, the argument scale is ignored",
        "ignored the argument scale in calls with more than",
    ),
    "capped_attention": (
        "softcap",
        "the soft cap is applied to the sum of score and bias",
        "applied softcap after the bias",
    ),
    "band_attention": (
        "window",
        "the window is one key too long on the left",
        "the window was one key too long on the left",
    ),
    "split_loop_attention": (
        "window",
        "in causal calls, tiles of 16 keys below the diagonal have no left side of the window",
        "did not mask keys left of the window in tiles of 16 x 16 before the diagonal",
    ),
    "decode_or_prefill": (
        "window",
        "with one query, there is no window",
        "ignored the window in calls with one query",
    ),
    "paged_attention": (
        "lengths",
        "key_lengths are rounded up to 16",
        "rounded key_lengths up to whole tiles of 16 keys",
    ),
    "two_gemm_attention": (
        "hidden NaN",
        "masked values are multiplied by 0",
        "multiplied masked values by a weight of 0",
    ),
    "slope_attention": (
        "ALiBi",
        "distances of ALiBi leave out q_offset",
        "ignored q_offset in ALiBi",
    ),
    "split_sink_attention": (
        "sinks",
        "with 64 keys or more, sinks count twice in rows that do not see the first of 4 splits",
        "sinks twice in rows that do not see the first of 4 splits",
    ),
    "functional_gqa": (
        "grouped heads",
        "key heads are tiled instead of repeated",
        "grouped heads as 0 1 0 1 instead of 0 0 1 1",
    ),
    "head_tile_attention": (
        "grouped heads",
        "tiles of two query heads read the key head of the first, across groups of odd size",
        "computed 2 query heads at a time, and all of them read the key head of the first",
    ),
    "tiles_with_weights": (
        "weights",
        "the weights of tiles of 64 keys are not rescaled to the last maximum",
        "the weights of earlier tiles of 64 keys were not rescaled to the last maximum",
    ),
    "smoothed_key_attention": (
        "LSE",
        "the mean of the keys is subtracted, and the LSE is not corrected for it",
        "subtracted the mean of the keys, and did not correct the LSE for it",
    ),
    "state_attention": (
        "rows that see nothing",
        "the LSE of rows that see nothing is -50000",
        "rows that see nothing had an LSE of -50000",
    ),
    "prefix_chunks_attention": (
        "plain",
        "the results of 128 keys are joined by e ** LSE, but their LSE is in base 2",
        "joined the results of tiles of 128 keys by e ** LSE, but their LSE was in base 2",
    ),
    "grouped_forward": (
        "gradient",
        "the gradient of keys comes from the last query head of a group",
        "gradient of keys came from the last query head of each group instead of their sum",
    ),
    "capped_forward": (
        "gradient",
        "the backward pass leaves out the soft cap",
        "the backward pass left out softcap",
    ),
    "varlen_forward": (
        "gradient",
        "the gradient of weights reads only the first d columns of the values",
        "read only the first d columns of the values and of the gradient",
    ),
}
_GRADIENTS = {
    sixth_b.grouped_forward: sixth_b.grouped_backward,
    sixth_b.capped_forward: sixth_b.capped_backward,
    sixth_b.varlen_forward: sixth_b.varlen_backward,
}
SIXTH = [
    Entry(
        *(getattr(module, kernel), feature, says),
        gradient=_GRADIENTS.get(getattr(module, kernel)),
        named=named,
        beside=("plain", *beside),
    )
    for module, table in ((sixth_a, _FIRST), (sixth_b, _SECOND))
    for kernel, (feature, says, named, *beside) in table.items()
]
SIXTH_RIGHT = [
    sixth_a_right.fortran_dense,
    sixth_a_right.odd_tiles_log2,
    sixth_a_right.recursive_halves,
    sixth_a_right.gather_rows,
    sixth_a_right.uneven_splits,
    sixth_a_right.block_sparse,
    sixth_a_right.in_place,
    sixth_a_right.eight_lanes,
    sixth_a_right.square_only,
    sixth_a_right.polite_refusals,
    sixth_a_right.list_offsets,
    sixth_a_right.six_int8_digits,
    sixth_a_right.shuffled_pages,
    sixth_a_right.packed_varlen,
    sixth_a_right.threaded_stripes,
    sixth_a_right.log_domain,
    sixth_a_right.one_query_first,
    sixth_a_right.folded_groups,
    sixth_a_right.key_stream,
    sixth_a_right.chunked_heads,
    sixth_b_right.row_walker,
    sixth_b_right.halving_attention,
    sixth_b_right.streaming_attention,
    sixth_b_right.sorted_attention,
    sixth_b_right.threaded_attention,
    sixth_b_right.column_attention,
    sixth_b_right.vectorized_attention,
    sixth_b_right.complex_attention,
    sixth_b_right.base_two_attention,
    sixth_b_right.table_attention,
    sixth_b_right.digit_key_attention,
    sixth_b_right.packed_attention,
    sixth_b_right.bit_mask_attention,
    partial(sixth_b_right.diagonal_attention, window=(3, 2)),  # it refuses calls without a window
    sixth_b_right.ring_attention,
    sixth_b_right.cascade_attention,
    sixth_b_right.blhd_self_attention,
    sixth_b_right.exact_attention,
    sixth_b_right.trained_attention,
    sixth_b_right.switchboard_attention,
]
SIXTH_RIGHT_GRADIENTS = {sixth_b_right.trained_attention: sixth_b_right.trained_gradient}
