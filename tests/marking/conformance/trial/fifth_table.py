"""What the card must say of each defective kernel of the fifth trial."""

from functools import partial

from . import fifth_a, fifth_a_right, fifth_b, fifth_b_right
from .table import Entry

# kernel: feature, mistake, words of the card, other features whose cases are needed
_FIRST = {
    "grouped_decode_stage1": (
        "grouped heads",
        "tiles of two query heads read the key head of the first, across groups of odd size",
        "computed 2 query heads at a time, and all of them read the key head of the first",
    ),
    "kittens_forward": (
        "grouped heads",
        "the group size is the stride of heads: heads are computed twice, or stay 0",
        "numbered query heads by the group size instead of the number of key heads",
    ),
    "chunked_prefill": (
        "q_offset",
        "the last tile of 8 keys is found from the number of a query, without q_offset",
        "stopped at the tile of 8 keys with a query's own number, without q_offset",
    ),
    "batch_prefill_wrapper": (
        "window",
        "a tile of 16 queries reads left + 16 keys: those on the right are forgotten",
        "blocks of 16 queries read only left + 16 keys, and forgot the right side",
    ),
    "local_attention_gqa": (
        "window",
        "a missing left side of the window becomes L",
        "used L for a missing left side of the window",
    ),
    "windowed_entry": (
        "window",
        "a window whose left side covers all keys is dropped, and so its right side",
        "ignored a window whose left side has S or more keys, including its other side",
    ),
    "flash_api_forward": (
        "q_offset",
        "with one query, is_causal is off, as if the query came last",
        "aligned the causal mask to the last key in calls with one query",
    ),
    "cpu_flash_masked": (
        "float mask",
        "a mask with one column is read as if it had S columns",
        "read the mask with one column for all keys as if it had S columns",
    ),
    "backend_dot_product_attention": (
        "bias",
        "the bias is ignored if is_causal is set",
        "ignored the bias in causal calls",
    ),
    "generated_attention_template": (
        "softcap",
        "the soft cap is applied to the sum of score, bias and float mask",
        "applied softcap after bias, ALiBi and float mask, but -inf still masked keys",
    ),
    "packed_view_kernel": (
        "plain",
        "zeros fill the last box of 16 keys, and are visible unless there is a mask",
        "padded the last tile of 16 keys with zeros, and the padding received weight",
    ),
    "vector_or_matrix_sdpa": (
        "bool mask",
        "with up to four queries, a bool mask is added to the scores",
        "added the bool mask to scores as 0 and 1 in calls with at most 4 queries",
    ),
    "simdgroup_causal": (
        "causal",
        "four queries share the causal mask of the last of them",
        "all queries of a block of 4 had the causal mask of the last query of the block",
    ),
    "graph_prefill": (
        "plain",
        "the stride between the queries of two batches is one query",
        "each batch read its queries one query, instead of L queries, after those",
    ),
    "gems_flash_forward": (
        "strides",
        "values are read as if they were contiguous",
        "assumed that values are contiguous",
    ),
    "cached_kv_alibi": (
        "LSE",
        "distances of ALiBi are too large by 1",
        "computed ALiBi distances that are too large by 1",
    ),
    "split_kv_with_sink": (
        "sinks",
        "sinks count twice in rows that do not see the first 8 keys",
        "sinks twice in rows that do not see the first tile of 8 keys",
    ),
    "external_cache_attention": (
        "lengths",
        "q_offset='end' means the key length - L",
        "aligned queries to the end of key_lengths instead of by q_offset",
    ),
    "lowered_sdpa": (
        "plain",
        "the default scale is that of the values' size",
        "used 1 / sqrt(dv) as the scale",
    ),
    "clamped_tail_tiles": (
        "causal",
        "the last tile of 8 queries is moved back, but not its positions",
        "moved the last partial tile of 8 queries back until the tile was full, but kept its",
    ),
    "unified_metal_prefill": (
        "q_offset",
        "all batches have the q_offset of the first",
        "all batches had the q_offset of the first batch",
    ),
    "reference_op_attention": (
        "q_offset",
        "a negative q_offset becomes 0",
        "used 0 for a negative q_offset",
        "causal",
    ),
    "canonical_rank_sdpa": (
        "bool mask",
        "a mask (H, L, S) is read as one mask for each batch",
        "read a mask (H, L, S) as one mask for each batch",
    ),
    "block_sparse_flex": (
        "bool mask",
        "4 x 4 entries of the mask count as visible if the corners are",
        "treated a block of 4 x 4 entries of the bool mask as fully visible if its corners are",
    ),
    "fa2_masking_steps": (
        "q_offset",
        "only the last tile of 8 keys has the causal mask",
        "blocks of 8 queries applied the causal mask only in the last of their tiles of 8 keys",
    ),
    "varlen_hub_backend": (
        "bool mask",
        "a mask over keys becomes a length, the number of True",
        "read a bool mask with one row for all queries as a key length, the number of True",
    ),
    "lazy_rescale_forward": (
        "large scores",
        "the sum is not rescaled when the maximum rises by more than 5",
        "did not rescale the running sum when it rose by more (tiles of 16 keys)",
    ),
    "mask_mod_kernel": (
        "window",
        "the window is placed without q_offset",
        "placed the window without q_offset",
    ),
    "paged_tile_mask": (
        "lengths",
        "key_lengths are rounded up to 8 if S is a multiple of 8",
        "whole tiles of 8 keys in calls whose number of keys is a multiple of 8",
    ),
    "triton_unified_window": (
        "hidden NaN",
        "masked values are multiplied by 0",
        "multiplied masked values by a weight of 0",
    ),
}
_SECOND = {
    "flex_final": (
        "LSE",
        "the LSE in base e is multiplied by ln 2",
        "the LSE was multiplied by ln 2",
    ),
    "two_rank_decode": (
        "plain",
        "the results of two halves of the keys are joined by 2 ** LSE",
        "joined the results of keys j % 2 by 2 ** LSE, but their LSE was in base e",
    ),
    "split_kv_sinks": (
        "sinks",
        "sinks count twice in rows that do not see the first 8 keys",
        "sinks twice in rows that do not see the first tile of 8 keys",
    ),
    "eager_sinks": (
        "weights",
        "the returned weights sum to 1 beside sinks",
        "the weights did not count sinks",
    ),
    "seeded_sinks": (
        "sinks",
        "the soft cap is applied to sinks",
        "also applied softcap to sinks",
    ),
    "late_sinks": (
        "sinks",
        "the maximum does not include sinks, and exp overflows",
        "the maximum did not include sinks, so a large sink made the sum infinite",
    ),
    "paged_decode": (
        "sinks",
        "sinks are ignored with one query and at most 64 keys",
        "ignored sinks in calls with one query",
    ),
    "alibi_from_query": (
        "ALiBi",
        "with one query, ALiBi is 0",
        "ignored alibi_slopes in calls with one query",
    ),
    "single_query_alibi": (
        "sinks",
        "with one query, distances of ALiBi are too large by 1",
        "computed ALiBi distances that are too large by 1 in calls with one query",
    ),
    "pack_gqa_rows": (
        "causal",
        "the causal mask divides the number of a query by the group size",
        "divided the number of a query by the group size in the causal mask",
    ),
    "half_slope_buffer": (
        "half precision",
        "in float16, heads after the largest power of 2 have a slope of 0",
        "heads after the largest power of 2 had an ALiBi slope of 0",
    ),
    "cached_alibi": (
        "ALiBi",
        "ALiBi is kept from an earlier call with the same shapes",
        "it depends on earlier calls",
    ),
    "fused_log2_softcap": (
        "softcap",
        "the soft cap is applied to scores in base 2",
        "applied softcap to scores in base 2",
    ),
    "dispatch_softcap": (
        "softcap",
        "with one query, there is no soft cap",
        "ignored softcap in calls with one query",
    ),
    "cache_step": (
        "q_offset",
        "with one query, is_causal is off, as if the query came last",
        "aligned the causal mask to the last key in calls with one query",
    ),
    "half_qk": (
        "half precision",
        "products of queries and keys are stored in float16 before the scale",
        "stored the products of queries and keys in half precision before the scale",
    ),
    "half_vkq": (
        "half precision",
        "the output is added up in float16, key by key",
        "added up the output key by key in half precision",
    ),
    "stat_of_type": (
        "half precision",
        "the LSE is rounded to float16",
        "",
    ),
    "vector_loads": (
        "plain",
        "numbers of queries and keys after the last multiple of 8 are not read",
        "did not read the numbers of queries and keys after the last multiple of 8",
    ),
    "value_tiles": (
        "plain",
        "every tile of 32 columns of the output is stored in the first 32",
        "stored each tile of 32 columns of the output in the first 32 columns",
    ),
    "lazy_rescale": (
        "plain",
        "a tile subtracts a new maximum that the sums do not use",
        "kept a maximum that grew by at most 8 (in base 2), but tiles of 16 keys subtracted",
    ),
    "padded_cache": (
        "hidden NaN",
        "masked values are multiplied by 0",
        "multiplied masked values by a weight of 0",
    ),
    "swapped_groups": (
        "grouped heads",
        "with one query, heads are (group, key head)",
        "grouped heads as 0 1 0 1 instead of 0 0 1 1 in calls with one query",
    ),
    "plus_inf_stat": (
        "rows that see nothing",
        "the LSE of rows that see nothing is +inf",
        "rows that see nothing had an LSE of +inf",
    ),
    "slow_path_weights": (
        "rows that see nothing",
        "rows that see nothing are NaN if weights are returned",
        "divided 0 by 0 in rows that see nothing, also in their weights in calls that return",
    ),
    "compact_mask": (
        "float mask",
        "a float mask is rounded to float16",
        "rounded the mask to 10 bits",
    ),
    "device_exponential": (
        "bool mask",
        "the exponential is never below 2 ** -17",
        "the exponential never fell below 2 ** -17",
    ),
    "latent_scale": (
        "plain",
        "the default scale is that of the values' size",
        "used 1 / sqrt(dv) as the scale",
    ),
    "flat_batch": (
        "lengths",
        "key_lengths are repeated over batch and head in the wrong order",
        "repeated key_lengths over batch and head in the wrong order",
    ),
    "ragged_end": (
        "lengths",
        "q_offset='end' means the key length - the query length",
        "aligned the end of query_lengths to the end of key_lengths instead of by q_offset",
    ),
}
FIFTH = [
    Entry(
        *(getattr(module, kernel), feature, says),
        **{"named": named, "beside": ("plain", *beside), "found": bool(named)},
    )
    for module, table in ((fifth_a, _FIRST), (fifth_b, _SECOND))
    for kernel, (feature, says, named, *beside) in table.items()
]
FIFTH_RIGHT = [
    fifth_a_right.log_space_everything,
    fifth_a_right.base_two_tiles,
    fifth_a_right.halving_recursion,
    fifth_a_right.attender_object,
    fifth_a_right.partial_block_seven,
    fifth_a_right.two_passes,
    fifth_a_right.gather_visible_rows,
    fifth_a_right.backwards_over_keys,
    fifth_a_right.decode_only,
    fifth_a_right.picky_head_sizes,
    fifth_a_right.square_only,
    fifth_a_right.horner_blocks,
    fifth_a_right.heads_fold_into_rows,
    partial(fifth_a_right.banded_by_strides, window=(3, 2)),  # it refuses calls without a window
    fifth_a_right.closure_three_by_four,
    fifth_a_right.smallest_first,
    fifth_a_right.sideways,
    fifth_a_right.streamed_by_generator,
    fifth_a_right.head_major_product,
    fifth_a_right.half_gap_sums,
    fifth_b_right.log_domain,
    fifth_b_right.base2_two_pass,
    fifth_b_right.backwards_online,
    fifth_b_right.halving,
    fifth_b_right.chunks_of_eleven,
    fifth_b_right.causal_only,
    fifth_b_right.eights_only,
    fifth_b_right.one_query_only,
    fifth_b_right.band_gather,
    fifth_b_right.narrow_exponentials,
    fifth_b_right.gather_visible,
    fifth_b_right.running_mean,
    fifth_b_right.configured,
    fifth_b_right.own_tanh,
    fifth_b_right.virtual_keys,
    fifth_b_right.root_scale,
    fifth_b_right.token_major,
    fifth_b_right.sorted_rows,
    fifth_b_right.streaming,
    fifth_b_right.refuses_loudly,
]
