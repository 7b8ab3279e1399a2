"""What the card must say of each defective kernel."""

from typing import Any, NamedTuple

from . import outputs, scores, tiles, visibility


class Entry(NamedTuple):
    """A defective kernel, its wrong feature, and what a right name of the defect would say.

    `also`: features that the same defect makes wrong, or to which a pair of arguments may be
    counted instead. `gradient`: the backward pass, where the defect is in it. `named`: words of
    the card that name the defect; they were read beside `says`; "" if the card gives no name.
    `beside`: features without whose cases `feature` is not wrong, or not named rightly. `found`:
    False if the card finds no defect, because the formula has it too in the kernel's own type, or
    because the card states it as a note.
    """

    function: Any
    feature: str
    says: str
    also: tuple[str, ...] = ()
    gradient: Any = None
    named: str = ""
    beside: tuple[str, ...] = ()
    found: bool = True


EVERYTHING = ("large scores", "half precision", "grouped heads", "strides", "causal", "scale")

DEFECTIVE = [
    Entry(
        scores.decode_forgets_scale,
        "plain",
        "with one query (decoding), the scores are not multiplied by the scale",
        ("scale", *EVERYTHING),
        named="did not apply the scale in calls with one query",
    ),
    Entry(
        scores.scale_argument_ignored,
        "scale",
        "the argument scale is ignored, and 1/sqrt(d) is always used",
        named="ignored the argument scale",
    ),
    Entry(
        scores.scale_after_softmax,
        "plain",
        "the scale multiplies the weights after the softmax instead of the scores before it",
        ("bool mask", "float mask", *EVERYTHING, "hidden NaN"),
        named="multiplied the weights by the scale instead of the scores",
    ),
    Entry(
        scores.scale_of_value_size,
        "plain",
        "the scale comes from the size of the values, 1/sqrt(dv), not of the queries",
        EVERYTHING,
        named="used 1 / sqrt(dv) as the scale",
    ),
    Entry(
        scores.bias_scaled_with_scores,
        "bias",
        "the bias is multiplied by the scale (it is added before the scale)",
        ("scale",),
        named="added the bias before the scale",
    ),
    Entry(
        scores.float_mask_weakened_in_decode,
        "float mask",
        "with one query, the float mask is multiplied by the scale",
        named="multiplied the float mask by the scale in calls with one query",
    ),
    Entry(
        scores.softcap_after_mask,
        "softcap",
        "the softcap comes after the mask, so that hidden keys get -softcap and leak",
        ("bool mask", "float mask", "rows that see nothing", "hidden NaN"),
        named="applied softcap after the mask",
    ),
    Entry(
        scores.softcap_after_bias,
        "softcap",
        "the bias is added before the softcap, not after it",
        ("bias",),
        named="applied softcap after the bias",
    ),
    Entry(
        scores.softcap_inside_tanh_only,
        "softcap",
        "the scores become tanh(softcap * scores) instead of softcap * tanh(scores / softcap)",
        named="computed tanh(scores * softcap) instead of softcap * tanh(scores / softcap)",
    ),
    Entry(
        scores.softcap_off_in_decode,
        "softcap",
        "with one query (decoding), the softcap is ignored",
        ("lengths",),
        named="ignored softcap in calls with one query",
    ),
    Entry(
        scores.alibi_zero_in_decode,
        "ALiBi",
        "with one query (decoding), ALiBi is ignored",
        ("q_offset",),
        named="ignored alibi_slopes in calls with one query",
    ),
    Entry(
        scores.alibi_slope_of_previous_head,
        "ALiBi",
        "each head uses the slope of the head before it",
        ("causal",),
        named="each head had the ALiBi slope of the head before it",
    ),
    Entry(
        scores.alibi_from_cache,
        "ALiBi",
        "the ALiBi bias of an earlier call of the same shape is used again",
        ("q_offset", "determinism"),
        named="it depends on earlier calls",
    ),
    Entry(
        scores.alibi_rewards_the_future,
        "ALiBi",
        "the ALiBi distance has no abs: keys after the query gain instead of losing",
        named="computed ALiBi distances without abs()",
    ),
    Entry(
        scores.fast_exponential,
        "plain",
        "the exponential is an approximation that is too rough",
        EVERYTHING,
        named="approximated the exponential by lines between powers of 2",
    ),
    Entry(
        scores.epsilon_in_denominator,
        "plain",
        "a small number is added to the sum of exponentials, so that weights sum to less than 1",
        ("bool mask", "float mask", *EVERYTHING, "hidden NaN"),
        named="added 0.0001 to the sum of weights",
    ),
    Entry(
        scores.products_in_int8,
        "plain",
        "queries and keys are rounded to 8 bits (or: the precision is too low)",
        EVERYTHING,
        named="quantized each row of queries and keys to integers up to 127",
    ),
    Entry(
        visibility.causal_from_first_key,
        "causal",
        "the causal mask aligns the first query with the first key if L and S differ",
        ("hidden NaN",),
        named="aligned the causal mask to the first key",
    ),
    Entry(
        visibility.causal_switches_corner,
        "causal",
        "with more queries than keys, the causal mask aligns the first query with the first key",
        ("rows that see nothing", "hidden NaN"),
        named="with more queries than keys, the kernel aligned the causal mask to the first key",
    ),
    Entry(
        visibility.causal_lost_with_weights,
        "causal",
        "the causal mask is dropped if the weights are returned",
        ("weights",),
        named="ignored is_causal in calls that return weights",
        beside=("weights",),
    ),
    Entry(
        visibility.mask_dropped_when_causal,
        "bool mask",
        "the mask is ignored if is_causal is given too",
        ("causal", "float mask"),
        named="ignored the bool mask in causal calls",
    ),
    Entry(
        visibility.inverted_mask,
        "bool mask",
        "True hides a key instead of showing it",
        ("rows that see nothing", "hidden NaN"),
        named="a True in the mask masked the key",
    ),
    Entry(
        visibility.mask_of_batch_0,
        "bool mask",
        "all rows of the batch use the mask of row 0",
        ("float mask", "rows that see nothing", "hidden NaN"),
        named="all batches had the mask of the first batch",
    ),
    Entry(
        visibility.hidden_scores_nearly_zero,
        "bool mask",
        "hidden scores become (nearly) 0 instead of -inf, so that hidden keys leak",
        ("hidden NaN",),
        named="masked scores became 0 instead of -inf",
    ),
    Entry(
        visibility.hidden_scores_minus_10000,
        "rows that see nothing",
        "-10000 is added to hidden scores instead of -inf",
        ("bool mask", "large scores", "hidden NaN"),
        named="to scores masked by the bool mask, so masked keys get weight where",
    ),
    Entry(
        visibility.mask_after_softmax,
        "bool mask",
        "the mask is applied after the softmax, and the weights do not sum to 1",
        ("hidden NaN",),
        named="set masked weights to 0 after the softmax, so the other weights did not sum",
    ),
    Entry(
        visibility.window_one_key_too_wide,
        "window",
        "the left side of the window is one key too wide",
        (
            "causal",
            "hidden NaN",
        ),
        named="the window was one key too long on the left",
    ),
    Entry(
        visibility.window_without_its_last_key,
        "window",
        "the right side of the window is exclusive: one key too narrow",
        ("hidden NaN",),
        named="the window was one key too short on the right",
    ),
    Entry(
        visibility.window_ignored_in_decode,
        "window",
        "with one query (decoding), the window is ignored",
        ("q_offset", "causal", "hidden NaN"),
        named="ignored the window in calls with one query",
    ),
    Entry(
        visibility.window_open_to_the_right,
        "window",
        "the right side of the window is ignored",
        ("hidden NaN",),
        named="ignored the right side of the window",
    ),
    Entry(
        visibility.lengths_of_longest_row,
        "lengths",
        "all rows of the batch use the largest key length",
        ("rows that see nothing", "hidden NaN"),
        named="all batches had the largest of key_lengths",
    ),
    Entry(
        visibility.lengths_include_one_padded_key,
        "lengths",
        "one key of the padding is visible: the key length is off by one",
        ("hidden NaN", "causal"),
        named="read one key beyond key_lengths",
    ),
    Entry(
        visibility.offset_of_row_0,
        "q_offset",
        "all rows of the batch use the offset of row 0",
        ("causal",),
        named="all batches had the q_offset of the first batch",
    ),
    Entry(
        visibility.negative_offset_is_zero,
        "q_offset",
        "a negative offset is treated as 0",
        ("causal", "rows that see nothing", "hidden NaN"),
        named="used 0 for a negative q_offset",
    ),
    Entry(
        visibility.blind_rows_are_nan,
        "rows that see nothing",
        "a row without visible keys divides 0 by 0",
        ("bool mask", "float mask", "hidden NaN"),
        named="divided 0 by 0 in rows that see nothing",
    ),
    Entry(
        visibility.hidden_values_leak_nan,
        "hidden NaN",
        "the weight 0 of a hidden key multiplies NaN, which gives NaN",
        named="multiplied masked values by a weight of 0, so masked NaN values gave NaN",
    ),
    Entry(
        tiles.last_tile_padded_with_zero_keys,
        "plain",
        "the last partial tile of keys is padded with zero keys that take part in the softmax",
        ("empty", *EVERYTHING),
        named="padded the last tile of 8 keys with zeros, and the padding received weight",
    ),
    Entry(
        tiles.keys_after_last_full_tile_dropped,
        "plain",
        "the keys after the last full tile (of 4) are dropped",
        ("hidden NaN", *EVERYTHING),
        named="dropped the keys after the last whole tile of 4, if there is a whole tile",
    ),
    Entry(
        tiles.accumulator_never_rescaled,
        "plain",
        "the online softmax does not rescale its sums when the maximum grows",
        EVERYTHING,
        named="rescaled neither the running sum nor the running output when the maximum changed",
    ),
    Entry(
        tiles.divided_at_every_tile,
        "plain",
        "the online softmax divides its output at every tile instead of once",
        EVERYTHING,
        named="divided the running output by the running sum after each tile of 8 keys instead",
    ),
    Entry(
        tiles.no_maximum_subtracted,
        "large scores",
        "the softmax does not subtract the maximum, and exponentials overflow",
        named="did not subtract the maximum before exp, which overflows in float64",
    ),
    Entry(
        tiles.maximum_starts_at_minus_5000,
        "large scores",
        "the running maximum starts at a finite number, and lower scores underflow",
        named="the running maximum began at -5000 instead of -inf, and rows with a sum",
    ),
    Entry(
        tiles.hidden_split_gives_nan,
        "bool mask",
        "a wholly hidden split (or tile) of the keys gives NaN in the merge",
        ("float mask", "rows that see nothing", "hidden NaN"),
        named="computed -inf - -inf in rows that see no key of one of 2 splits of the keys",
    ),
    Entry(
        tiles.value_blocks_of_another_size,
        "plain",
        "the rows of the values drift from those of the keys where dv differs from d",
        EVERYTHING,
        named="read values in blocks of dv keys, but keys in blocks of d",
    ),
    Entry(
        tiles.key_heads_tiled,
        "grouped heads",
        "query head h uses key head h % Hkv instead of h // (Hq // Hkv)",
        named="grouped heads as 0 1 0 1 instead of 0 0 1 1",
    ),
    Entry(
        tiles.head_tile_crosses_group,
        "grouped heads",
        "heads go in pairs, and a pair that crosses two groups uses the first one's key head",
        named="computed 2 query heads at a time, and all of them read the key head of the first",
    ),
    Entry(
        tiles.values_read_in_memory_order,
        "strides",
        "the strides of the values are ignored, as if they were contiguous",
        named="read values in the order of memory",
    ),
    Entry(
        tiles.lse_of_last_split,
        "LSE",
        "the LSE is that of the last split of the keys only",
        named="the LSE counted only the last of 2 splits of the keys",
    ),
    Entry(
        outputs.softmax_plus_one,
        "plain",
        "1 is added to the denominator after the maximum was subtracted",
        ("bool mask", "float mask", *EVERYTHING, "hidden NaN"),
        named="added 1 to the sum of weights",
    ),
    Entry(
        outputs.sinks_never_bound,
        "sinks",
        "the sinks are ignored",
        ("rows that see nothing", "causal"),
        named="ignored sinks",
    ),
    Entry(
        outputs.sinks_once_per_split,
        "sinks",
        "the sinks are counted twice, once for each split of the keys",
        named="counted sinks 2 times, once for each split of the keys",
    ),
    Entry(
        outputs.sinks_scaled_like_scores,
        "sinks",
        "the sinks are multiplied by the scale",
        ("scale",),
        named="multiplied sinks by the scale",
    ),
    Entry(
        outputs.sinks_outside_the_maximum,
        "sinks",
        "the maximum leaves out the sinks, so that a large sink overflows",
        ("large scores",),
        named="the maximum did not include sinks, so a large sink overflowed",
    ),
    Entry(
        outputs.lse_in_base_2,
        "LSE",
        "the LSE is a logarithm to the base 2",
        ("causal",),
        named="returned the LSE in base 2",
    ),
    Entry(
        outputs.lse_plus_infinity_for_blind_rows,
        "rows that see nothing",
        "the LSE of a row without visible keys is +inf instead of -inf",
        ("LSE", "lengths", "empty"),
        named="rows that see nothing had an LSE of +inf",
    ),
    Entry(
        outputs.half_products_before_scale,
        "half precision",
        "the products are stored in float16 before they are scaled, and overflow",
        ("large scores",),
        named="stored the products of queries and keys in half precision before the scale",
    ),
    Entry(
        outputs.no_keys_give_nan,
        "empty",
        "without keys, the output is NaN instead of 0",
        ("causal",),
        named="divided 0 by 0 in calls without keys",
        beside=("rows that see nothing",),
    ),
    Entry(
        outputs.keys_in_random_order,
        "determinism",
        "two calls with the same inputs differ in the last bits",
        named="it gives different results for the same call",
    ),
    Entry(
        outputs.softcap_without_derivative,
        "gradient",
        "the gradient lacks the derivative of the softcap, 1 - tanh^2",
        ("softcap",),
        outputs.softcap_without_derivative_grad,
        named="the backward pass left out softcap",
    ),
    Entry(
        outputs.last_head_of_group_wins,
        "gradient",
        "the gradient of a key head is not summed over the heads of its group",
        ("grouped heads",),
        outputs.last_head_of_group_wins_grad,
        named="the gradients of keys and values came from the last query head of each group",
    ),
]
