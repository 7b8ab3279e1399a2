"""What the card must say of each defective kernel of the seventh trial."""

from . import seventh, seventh_right
from .table import Entry

# kernel: feature, mistake, words of the card, other features whose cases are needed
_KERNELS = {
    "blockwise_prefill": (
        "plain",
        "after 64 keys, the padding of a last block of fewer than 64 keys is visible",
        "padded the last tile of 64 keys with zeros, and the padding received weight",
    ),
    "digit_planes": (
        "plain",
        "the number of tiles of 16 keys comes from the number of queries",
        "read only as many tiles of 16 keys as there are tiles of queries",
    ),
    "flat_buffers": (
        "strides",
        "values are read in the order of memory",
        "read values in the order of memory",
    ),
    "value_tiles": (
        "plain",
        "of 3, 5, 7 ... tiles of 8 columns of the values, the last one is left out",
        "left columns of the output at 0 after the last multiple of 16",
    ),
    "aligned_heads": (
        "plain",
        "the default scale is that of a head size rounded up to 16",
        "computed the scale from d rounded up to a multiple of 16",
    ),
    "smooth_ring": (
        "plain",
        "each of four shards subtracts the mean of its keys, and its LSE is not corrected for it",
        "",
    ),
    "vector_tiles": (
        "plain",
        "sums of weights and of weighted values are kept in float16, unless inputs are float64",
        "kept sums in half precision",
    ),
    "filled_tiles": (
        "large scores",
        "masked scores become -10000, which is not below all visible scores",
        "masked scores became a finite number instead of -inf",
        "causal",
    ),
    "sliced_rows": (
        "causal",
        "query i sees the keys up to i if there are more queries than keys",
        "with more queries than keys, the kernel aligned the causal mask to the first key",
    ),
    "two_sources": (
        "plain",
        "a tile of 16 keys across the end of the cached keys is read from the cache alone",
        "",
    ),
    "built_mask": (
        "q_offset",
        "all batches have the q_offset of the first",
        "all batches had the q_offset of the first batch",
    ),
    "flat_bmm": (
        "bool mask",
        "a mask (B, 1, L, S) is repeated over batch and head in the wrong order",
        "repeated a mask (B, 1, L, S) over batch and head in the wrong order",
    ),
    "swapped_decode": (
        "bias",
        "with one query, the bias of grouped heads is read with groups and key heads exchanged",
        "read the bias of a query head as if heads were stored as (groups, key heads)",
    ),
    "attention_template": (
        "softcap",
        "the soft cap is applied to the sum of score and bias",
        "applied softcap after the bias",
    ),
    "layer_object": (
        "scale",
        "a scale of 0 becomes the default scale",
        "treated a scale of 0 as a missing scale",
    ),
    "capped_rows": (
        "softcap",
        "the soft cap is applied before the scale",
        "applied softcap before the scale",
    ),
    "two_loops": (
        "window",
        "tiles of 8 keys before the causal or right side of 4 queries have no left side",
        "",
    ),
    "planned_spans": (
        "window",
        "blocks of 8 queries read left + 8 keys, also where the window goes on to the right",
        "blocks of 8 queries read only left + 8 keys, and forgot the right side of the window",
    ),
    "page_table": (
        "hidden NaN",
        "the rest of a last page of 16 values is multiplied by 0",
        "multiplied values behind key_lengths, up to a multiple of 16 keys, by a weight of 0",
    ),
    "decode_or_prefill": (
        "lengths",
        "with one query, key_lengths are rounded up to 16",
        "rounded key_lengths up to whole tiles of 16 keys in calls with one query",
        "LSE",
    ),
    "relative_slopes": (
        "ALiBi",
        "the ALiBi distance has no abs: keys after the query gain instead of losing",
        "computed ALiBi distances without abs()",
    ),
    "slope_table": (
        "ALiBi",
        "with one query, ALiBi adds 0",
        "ignored alibi_slopes in calls with one query",
    ),
    "split_keys": (
        "sinks",
        "sinks count twice in rows that do not see the first 16 keys",
        "counted sinks twice in rows that do not see the first tile of 16 keys",
    ),
    "head_tiles": (
        "grouped heads",
        "tiles of two query heads read the key head of the first, across groups of odd size",
        "computed 2 query heads at a time, and all of them read the key head of the first",
    ),
    "sum_buffers": (
        "rows that see nothing",
        "the LSE of rows that see nothing is 0",
        "rows that see nothing had an LSE of 0",
    ),
    "kept_probabilities": (
        "weights",
        "the weights of tiles of 32 keys are not rescaled to the last maximum",
        "the weights of earlier tiles of 32 keys were not rescaled to the last maximum",
    ),
    "running_exp2": (
        "bool mask",
        "-inf - -inf in rows that see none of the first 16 keys",
        "computed -inf - -inf in rows that see none of the first 16 keys",
        "window",
    ),
    "grouped_forward": (
        "gradient",
        "the gradients of keys and values come from the last query head of a group",
        "gradients of keys and values came from the last query head of each group instead of",
    ),
    "saved_forward": (
        "gradient",
        "the causal mask of the backward pass begins at the first key",
        "aligned the causal mask to the first key, but only in the weights that the backward pass",
    ),
    "capped_forward": (
        "gradient",
        "the backward pass leaves out the soft cap",
        "the backward pass left out softcap",
    ),
}
_GRADIENTS = {
    seventh.grouped_forward: seventh.grouped_backward,
    seventh.saved_forward: seventh.saved_backward,
    seventh.capped_forward: seventh.capped_backward,
}
SEVENTH = [
    Entry(
        *(getattr(seventh, kernel), feature, says),
        gradient=_GRADIENTS.get(getattr(seventh, kernel)),
        named=named,
        beside=("plain", *beside),
    )
    for kernel, (feature, says, named, *beside) in _KERNELS.items()
]
SEVENTH_RIGHT = [
    seventh_right.grouped_einsum,
    seventh_right.halving,
    seventh_right.crew,
    seventh_right.odd_tiles,
    seventh_right.base_two,
    seventh_right.key_stream,
    seventh_right.logadd,
    seventh_right.uneven_ring,
    seventh_right.page_walk,
    seventh_right.packed_sequences,
    seventh_right.band_blocks,
    seventh_right.integer_planes,
    seventh_right.square_even,
    seventh_right.single_query,
    seventh_right.sorted_rows,
    seventh_right.sinks_as_keys,
    seventh_right.padded_all,
    seventh_right.by_size,
    seventh_right.draft_checks,
    seventh_right.from_the_end,
]
SEVENTH_RIGHT_GRADIENTS = {
    seventh_right.grouped_einsum: seventh_right.grouped_einsum_gradient,
    seventh_right.square_even: seventh_right.square_even_gradient,
    seventh_right.from_the_end: seventh_right.from_the_end_gradient,
}
