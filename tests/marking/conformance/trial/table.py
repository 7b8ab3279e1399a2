"""What the card must say of each defective kernel."""

from typing import Any, NamedTuple

from . import outputs, scores, tiles, visibility


class Entry(NamedTuple):
    """A defective kernel, its wrong feature, and what a right name of the defect would say.

    `also`: features that the same defect makes wrong, or to which a pair of arguments may be
    counted instead. `gradient`: the backward pass, where the defect is in it.
    """

    function: Any
    feature: str
    says: str
    also: tuple[str, ...] = ()
    gradient: Any = None


EVERYTHING = ("large scores", "half precision", "grouped heads", "strides", "causal", "scale")

DEFECTIVE = [
    Entry(
        scores.decode_forgets_scale,
        "plain",
        "with one query (decoding), the scores are not multiplied by the scale",
        ("scale", *EVERYTHING),
    ),
    Entry(
        scores.scale_argument_ignored,
        "scale",
        "the argument scale is ignored, and 1/sqrt(d) is always used",
    ),
    Entry(
        scores.scale_after_softmax,
        "plain",
        "the scale multiplies the weights after the softmax instead of the scores before it",
        ("bool mask", "float mask", *EVERYTHING, "hidden NaN"),
    ),
    Entry(
        scores.scale_of_value_size,
        "plain",
        "the scale comes from the size of the values, 1/sqrt(dv), not of the queries",
        EVERYTHING,
    ),
    Entry(
        scores.bias_scaled_with_scores,
        "bias",
        "the bias is multiplied by the scale (it is added before the scale)",
        ("scale",),
    ),
    Entry(
        scores.float_mask_weakened_in_decode,
        "float mask",
        "with one query, the float mask is multiplied by the scale",
    ),
    Entry(
        scores.softcap_after_mask,
        "softcap",
        "the softcap comes after the mask, so that hidden keys get -softcap and leak",
        ("bool mask", "float mask", "rows that see nothing", "hidden NaN"),
    ),
    Entry(
        scores.softcap_after_bias,
        "softcap",
        "the bias is added before the softcap, not after it",
        ("bias",),
    ),
    Entry(
        scores.softcap_inside_tanh_only,
        "softcap",
        "the scores become tanh(softcap * scores) instead of softcap * tanh(scores / softcap)",
    ),
    Entry(
        scores.softcap_off_in_decode,
        "softcap",
        "with one query (decoding), the softcap is ignored",
        ("lengths",),
    ),
    Entry(
        scores.alibi_zero_in_decode,
        "ALiBi",
        "with one query (decoding), ALiBi is ignored",
        ("q_offset",),
    ),
    Entry(
        scores.alibi_slope_of_previous_head,
        "ALiBi",
        "each head uses the slope of the head before it",
        ("causal",),
    ),
    Entry(
        scores.alibi_from_cache,
        "ALiBi",
        "the ALiBi bias of an earlier call of the same shape is used again",
        ("q_offset", "determinism"),
    ),
    Entry(
        scores.alibi_rewards_the_future,
        "ALiBi",
        "the ALiBi distance has no abs: keys after the query gain instead of losing",
    ),
    Entry(
        scores.fast_exponential,
        "plain",
        "the exponential is an approximation that is too rough",
        EVERYTHING,
    ),
    Entry(
        scores.epsilon_in_denominator,
        "plain",
        "a small number is added to the sum of exponentials, so that weights sum to less than 1",
        ("bool mask", "float mask", *EVERYTHING, "hidden NaN"),
    ),
    Entry(
        scores.products_in_int8,
        "plain",
        "queries and keys are rounded to 8 bits (or: the precision is too low)",
        EVERYTHING,
    ),
    Entry(
        visibility.causal_from_first_key,
        "causal",
        "the causal mask aligns the first query with the first key if L and S differ",
        ("hidden NaN",),
    ),
    Entry(
        visibility.causal_switches_corner,
        "causal",
        "with more queries than keys, the causal mask aligns the first query with the first key",
        ("rows that see nothing", "hidden NaN"),
    ),
    Entry(
        visibility.causal_lost_with_weights,
        "causal",
        "the causal mask is dropped if the weights are returned",
        ("weights",),
    ),
    Entry(
        visibility.mask_dropped_when_causal,
        "bool mask",
        "the mask is ignored if is_causal is given too",
        ("causal", "float mask"),
    ),
    Entry(
        visibility.inverted_mask,
        "bool mask",
        "True hides a key instead of showing it",
        ("rows that see nothing", "hidden NaN"),
    ),
    Entry(
        visibility.mask_of_batch_0,
        "bool mask",
        "all rows of the batch use the mask of row 0",
        ("float mask", "rows that see nothing", "hidden NaN"),
    ),
    Entry(
        visibility.hidden_scores_nearly_zero,
        "bool mask",
        "hidden scores become (nearly) 0 instead of -inf, so that hidden keys leak",
        ("hidden NaN",),
    ),
    Entry(
        visibility.hidden_scores_minus_10000,
        "rows that see nothing",
        "-10000 is added to hidden scores instead of -inf",
        ("bool mask", "large scores", "hidden NaN"),
    ),
    Entry(
        visibility.mask_after_softmax,
        "bool mask",
        "the mask is applied after the softmax, and the weights do not sum to 1",
        ("hidden NaN",),
    ),
    Entry(
        visibility.window_one_key_too_wide,
        "window",
        "the left side of the window is one key too wide",
        (
            "causal",
            "hidden NaN",
        ),
    ),
    Entry(
        visibility.window_without_its_last_key,
        "window",
        "the right side of the window is exclusive: one key too narrow",
        ("hidden NaN",),
    ),
    Entry(
        visibility.window_ignored_in_decode,
        "window",
        "with one query (decoding), the window is ignored",
        ("q_offset", "causal", "hidden NaN"),
    ),
    Entry(
        visibility.window_open_to_the_right,
        "window",
        "the right side of the window is ignored",
        ("hidden NaN",),
    ),
    Entry(
        visibility.lengths_of_longest_row,
        "lengths",
        "all rows of the batch use the largest key length",
        ("rows that see nothing", "hidden NaN"),
    ),
    Entry(
        visibility.lengths_include_one_padded_key,
        "lengths",
        "one key of the padding is visible: the key length is off by one",
        ("hidden NaN", "causal"),
    ),
    Entry(
        visibility.offset_of_row_0,
        "q_offset",
        "all rows of the batch use the offset of row 0",
        ("causal",),
    ),
    Entry(
        visibility.negative_offset_is_zero,
        "q_offset",
        "a negative offset is treated as 0",
        ("causal", "rows that see nothing", "hidden NaN"),
    ),
    Entry(
        visibility.blind_rows_are_nan,
        "rows that see nothing",
        "a row without visible keys divides 0 by 0",
        ("bool mask", "float mask", "hidden NaN"),
    ),
    Entry(
        visibility.hidden_values_leak_nan,
        "hidden NaN",
        "the weight 0 of a hidden key multiplies NaN, which gives NaN",
    ),
    Entry(
        tiles.last_tile_padded_with_zero_keys,
        "plain",
        "the last partial tile of keys is padded with zero keys that take part in the softmax",
        ("empty", *EVERYTHING),
    ),
    Entry(
        tiles.keys_after_last_full_tile_dropped,
        "plain",
        "the keys after the last full tile (of 4) are dropped",
        ("hidden NaN", *EVERYTHING),
    ),
    Entry(
        tiles.accumulator_never_rescaled,
        "plain",
        "the online softmax does not rescale its sums when the maximum grows",
        EVERYTHING,
    ),
    Entry(
        tiles.divided_at_every_tile,
        "plain",
        "the online softmax divides its output at every tile instead of once",
        EVERYTHING,
    ),
    Entry(
        tiles.no_maximum_subtracted,
        "large scores",
        "the softmax does not subtract the maximum, and exponentials overflow",
    ),
    Entry(
        tiles.maximum_starts_at_minus_5000,
        "large scores",
        "the running maximum starts at a finite number, and lower scores underflow",
    ),
    Entry(
        tiles.hidden_split_gives_nan,
        "bool mask",
        "a wholly hidden split (or tile) of the keys gives NaN in the merge",
        ("float mask", "rows that see nothing", "hidden NaN"),
    ),
    Entry(
        tiles.value_blocks_of_another_size,
        "plain",
        "the rows of the values drift from those of the keys where dv differs from d",
        EVERYTHING,
    ),
    Entry(
        tiles.key_heads_tiled,
        "grouped heads",
        "query head h uses key head h % Hkv instead of h // (Hq // Hkv)",
    ),
    Entry(
        tiles.head_tile_crosses_group,
        "grouped heads",
        "heads go in pairs, and a pair that crosses two groups uses the first one's key head",
    ),
    Entry(
        tiles.values_read_in_memory_order,
        "strides",
        "the strides of the values are ignored, as if they were contiguous",
    ),
    Entry(
        tiles.lse_of_last_split,
        "LSE",
        "the LSE is that of the last split of the keys only",
    ),
    Entry(
        outputs.softmax_plus_one,
        "plain",
        "1 is added to the denominator after the maximum was subtracted",
        ("bool mask", "float mask", *EVERYTHING, "hidden NaN"),
    ),
    Entry(
        outputs.sinks_never_bound,
        "sinks",
        "the sinks are ignored",
        ("rows that see nothing", "causal"),
    ),
    Entry(
        outputs.sinks_once_per_split,
        "sinks",
        "the sinks are counted twice, once for each split of the keys",
    ),
    Entry(
        outputs.sinks_scaled_like_scores,
        "sinks",
        "the sinks are multiplied by the scale",
        ("scale",),
    ),
    Entry(
        outputs.sinks_outside_the_maximum,
        "sinks",
        "the maximum leaves out the sinks, so that a large sink overflows",
        ("large scores",),
    ),
    Entry(
        outputs.lse_in_base_2,
        "LSE",
        "the LSE is a logarithm to the base 2",
        ("causal",),
    ),
    Entry(
        outputs.lse_plus_infinity_for_blind_rows,
        "rows that see nothing",
        "the LSE of a row without visible keys is +inf instead of -inf",
        ("LSE", "lengths", "empty"),
    ),
    Entry(
        outputs.half_products_before_scale,
        "half precision",
        "the products are stored in float16 before they are scaled, and overflow",
        ("large scores",),
    ),
    Entry(
        outputs.no_keys_give_nan,
        "empty",
        "without keys, the output is NaN instead of 0",
        ("causal",),
    ),
    Entry(
        outputs.keys_in_random_order,
        "determinism",
        "two calls with the same inputs differ in the last bits",
    ),
    Entry(
        outputs.softcap_without_derivative,
        "gradient",
        "the gradient lacks the derivative of the softcap, 1 - tanh^2",
        ("softcap",),
        outputs.softcap_without_derivative_grad,
    ),
    Entry(
        outputs.last_head_of_group_wins,
        "gradient",
        "the gradient of a key head is not summed over the heads of its group",
        ("grouped heads",),
        outputs.last_head_of_group_wins_grad,
    ),
]
