"""Defective kernels: masks, causal masks, windows, lengths and offsets."""

from .entry import Entry

MASKS = {
    "causal_from_first_key": Entry(
        "the causal mask aligns the first query with the first key if L and S differ",
        "plain: is_causal",
        {"ahead <= 0": "j <= i"},
        {"causal": "aligned the causal mask to the first key"},
        source="gittensor-ai-lab/sparkinfer#3",
    ),
    "flash_prefill": Entry(
        "the key loop of a causal query ends at i + 1, also where q_offset moves it further",
        "plain: is_causal q_offset scale",
        {"ahead <= 0": "(ahead <= 0) & (j <= i)"},
        {"causal": "aligned the causal mask to the first key in calls with more keys than"},
        source="gittensor-ai-lab/sparkinfer#14",
    ),
    "causal_switches_corner": Entry(
        "with more queries than keys, the causal mask aligns the first query with the first key",
        "plain: is_causal",
        {"starts(q_offset,": "starts(max(S - L, 0) if q_offset is None else q_offset,"},
        {"causal": "with more queries than keys, the kernel aligned the causal mask to the first"},
        source="ml-explore/mlx#2967",
    ),
    "tiny_attention": Entry(
        "the causal mask is skipped whenever L != S (a cache is there)",
        "plain: is_causal q_offset",
        {"if is_causal:": "if is_causal and L == S:"},
        {"causal": "ignored is_causal in calls with more or fewer keys than queries"},
        source="Mikyx-1/TinyLLM#17",
    ),
    "causal_lost_with_weights": Entry(
        "the causal mask is dropped if the weights are returned",
        "plain: is_causal return_weights",
        {"before: _, _, v, scores": 'if return_weights:\n    options["is_causal"] = False'},
        {"weights": "ignored is_causal in calls that return weights"},
        beside=("causal",),
        source="keras-team/keras#23038",
    ),
    "cached_triangle": Entry(
        "the causal mask is kept from an earlier call with the same shapes",
        "plain: is_causal q_offset scale alibi_slopes",
        {"seen &= ahead <= 0": "seen &= vars(prepare).setdefault(str((B, L, S)), ahead <= 0)"},
        {"causal": "it depends on earlier calls"},
        beside=(
            "plain",
            "q_offset",
        ),
    ),
    "chunked_prefill": Entry(
        "the last tile of 8 keys is found from the number of a query, without q_offset",
        "plain: attn_mask is_causal q_offset scale return_lse",
        {"ahead <= 0": "(ahead <= 0) & (j < i // 8 * 8 + 8)"},
        {"q_offset": "stopped at the tile of 8 keys with a query's own number, without q_offset"},
        beside=("plain",),
    ),
    "simdgroup_causal": Entry(
        "four queries share the causal mask of the last of them",
        "plain: is_causal q_offset scale return_lse",
        {"ahead <= 0": "ahead <= np.minimum(i // 4 * 4 + 3, L - 1) - i"},
        {"causal": "all queries of a block of 4 had the causal mask of the last query of the"},
        beside=("plain",),
    ),
    "clamped_tail_tiles": Entry(
        "the last tile of 8 queries is moved back, but not its positions",
        "plain: is_causal q_offset window scale",
        {
            "ahead = j - i - start": (
                "moved = 8 - L % 8 if L > 8 and L % 8 else 0\n"
                "ahead = j - i - start - moved * (i >= L - 8)"
            )
        },
        {"causal": "moved the last partial tile of 8 queries back until the tile was full, but"},
        beside=("plain",),
    ),
    "fa2_masking_steps": Entry(
        "only the last tile of 8 keys has the causal mask",
        "plain: is_causal q_offset scale softcap return_lse",
        {
            "seen &= ahead <= 0": (
                "stop = np.minimum(i // 8 * 8 + 8, L) + start\n"
                "last = np.minimum(-(-S // 8), np.maximum(-(-stop // 8), 0)) - 1\n"
                "seen &= (j // 8 < last) | ((j // 8 == last) & (ahead <= 0))"
            )
        },
        {"q_offset": "blocks of 8 queries applied the causal mask only in the last of their tiles"},
        beside=("plain",),
    ),
    "pack_gqa_rows": Entry(
        "the causal mask divides the number of a query by the group size",
        "plain: is_causal q_offset scale return_lse",
        {"ahead <= 0": "j - start <= i // group"},
        {"causal": "divided the number of a query by the group size in the causal mask"},
        beside=("plain",),
    ),
    "mask_dropped_when_causal": Entry(
        "the mask is ignored if is_causal is given too",
        "plain: attn_mask is_causal",
        {"if attn_mask is not None:": "if attn_mask is not None and not is_causal:"},
        {"bool mask": "mask in causal calls"},
        source="AI-Hypercomputer/maxtext#878",
    ),
    "inverted_mask": Entry(
        "True hides a key instead of showing it",
        "plain: attn_mask",
        {"&= mask_seen": "&= mask_seen ^ (attn_mask.dtype == bool)"},
        {"bool mask": "a True in the mask masked the key"},
        source="lucidrains/x-transformers#160",
    ),
    "xt_flash": Entry(
        "a bool mask is read the other way round unless a bias is given",
        "plain: attn_mask bias",
        {"&= mask_seen": "&= mask_seen ^ (bias is None and attn_mask.dtype == bool)"},
        {"bool mask": "a True in the mask masked the key in calls without a bias"},
        beside=("bias",),
        source="lucidrains/x-transformers#160",
    ),
    "mask_of_batch_0": Entry(
        "all rows of the batch use the mask of row 0",
        "plain: attn_mask",
        {"split_mask(attn_mask)": "split_mask(np.broadcast_to(attn_mask, (B, H, L, S))[:1])"},
        {"bool mask": "all batches had the mask of the first batch"},
        source="lucidrains/graph-transformer-pytorch#2",
    ),
    "canonical_rank_sdpa": Entry(
        "a mask (H, L, S) is read as one mask for each batch",
        "plain: attn_mask is_causal q_offset scale",
        {
            "before: mask_seen, mask_added": (
                "if attn_mask.ndim == 3:\n"
                "    attn_mask = attn_mask[np.arange(B) % len(attn_mask)][:, None]"
            )
        },
        {"bool mask": "read a mask (H, L, S) as one mask for each batch"},
        beside=("plain",),
    ),
    "micro_sdpa": Entry(
        "a mask with one query line (..., 1, S) is applied to the first query only",
        "plain: attn_mask",
        {
            "seen &= mask_seen": (
                "one_row = np.atleast_2d(mask_seen).shape[-2] == 1\n"
                "seen &= mask_seen | (one_row & (i > 0))"
            )
        },
        {"bool mask": "a mask with one row for all queries did not mask query 1 and later queries"},
        source="openvinotoolkit/openvino#30698",
    ),
    "cpu_flash_masked": Entry(
        "a mask with one column is read as if it had S columns",
        "plain: attn_mask is_causal q_offset scale",
        {
            "before: mask_seen, mask_added": (
                "if attn_mask.ndim and attn_mask.shape[-1] == 1 and S > 1:\n"
                "    buffer = np.broadcast_to(attn_mask, (B, H, L, 1)).ravel()\n"
                "    row = np.arange(B * H * L).reshape(B, H, L, 1)\n"
                "    attn_mask = buffer[(row + j) % max(buffer.size, 1)]"
            )
        },
        {"float mask": "read the mask with one column for all keys as if it had S columns"},
        beside=("plain",),
    ),
    "varlen_hub_backend": Entry(
        "a mask over keys becomes a length, the number of True",
        "plain: attn_mask is_causal q_offset scale",
        {
            "before: seen &= mask_seen": (
                "if attn_mask.dtype == bool and np.atleast_2d(attn_mask).shape[-2] == 1:\n"
                "    count = np.broadcast_to(attn_mask, (*attn_mask.shape[:-1], S))\n"
                "    mask_seen = j < count.sum(axis=-1, keepdims=True)"
            )
        },
        {"bool mask": "read a bool mask with one row for all queries as a key length, the number"},
        beside=("plain",),
    ),
    "block_sparse_flex": Entry(
        "4 x 4 entries of the mask count as visible if the corners are",
        "plain: attn_mask is_causal q_offset scale",
        {
            "before: seen &= mask_seen": (
                "if attn_mask.dtype == bool:\n"
                "    whole = np.broadcast_to(attn_mask, (B, H, L, S))\n"
                "    i0, j0 = i // 4 * 4, j // 4 * 4\n"
                "    i1, j1 = np.minimum(i0 + 3, L - 1), np.minimum(j0 + 3, S - 1)\n"
                "    corners = whole[..., i0, j0] & whole[..., i0, j1] & whole[..., i1, j0]\n"
                "    mask_seen = mask_seen | (corners & whole[..., i1, j1])"
            )
        },
        {"bool mask": "treated a block of 4 x 4 entries of the bool mask as fully visible if its"},
        beside=("plain",),
    ),
    "efficient_mask": Entry(
        "in a last tile of one key, the mask is read one key before",
        "plain: attn_mask bias scale",
        {
            "before: mask_seen, mask_added": (
                "if S % 16 == 1 and S > 1:\n"
                "    attn_mask = np.array(np.broadcast_to(attn_mask, (B, H, L, S)))\n"
                "    attn_mask[..., -1] = attn_mask[..., -2]"
            )
        },
        {"bool mask": ""},
        beside=("plain",),
    ),
    "hidden_scores_nearly_zero": Entry(
        "hidden scores become (nearly) 0 instead of -inf, so that hidden keys leak",
        "plain: attn_mask",
        {
            "before: seen &= mask_seen": (
                "if attn_mask.dtype == bool:\n"
                "    scores = np.where(mask_seen, scores, 1e-9)\n"
                "    mask_seen = (mask_seen & seen).any(axis=-1, keepdims=True)"
            )
        },
        {"bool mask": "masked scores became 0 instead of -inf"},
        source="awslabs/gluonts#1401",
    ),
    "hidden_scores_minus_10000": Entry(
        "-10000 is added to hidden scores instead of -inf",
        "plain: attn_mask",
        {
            "before: seen &= mask_seen": (
                "if attn_mask.dtype == bool:\n"
                "    mask_seen, mask_added = True, np.where(mask_seen, 0, -10000.0)"
            )
        },
        {"rows that see nothing": "to scores masked by the bool mask, so masked keys get weight"},
        source="huggingface/transformers#17306",
    ),
    "mask_after_softmax": Entry(
        "the mask is applied after the softmax, and the weights do not sum to 1",
        "plain: attn_mask",
        {
            "scores = np.where(seen, scores, -np.inf)": "scores = scores + 0",
            "mix(weights, seen, v)": "mix(np.where(seen, weights, 0), seen, v)",
        },
        {"bool mask": "set masked weights to 0 after the softmax, so the other weights did not"},
        source="lucidrains/memory-compressed-attention#2",
    ),
    "fill_min_attention": Entry(
        "masked scores become the smallest finite number",
        "plain: is_causal q_offset attn_mask key_lengths",
        {"scores, -np.inf": "scores, np.finfo(np.float32).min"},
        {"rows that see nothing": "masked scores became a finite number instead of -inf, so"},
        beside=("plain",),
    ),
    "additive_mask_decode": Entry(
        "NaN in a hidden key shows: NaN + -inf",
        "plain: attn_mask is_causal q_offset",
        {"np.where(seen, scores,": "scores + np.where(seen, 0,"},
        {"hidden NaN": "added -inf to masked scores, so masked NaN scores stayed NaN, but masked"},
        source="deepbeepmeep/Wan2GP#1628",
    ),
    "additive_masked": Entry(
        "-inf is added to masked scores, and masked values are multiplied by 0",
        "plain: is_causal q_offset attn_mask window scale",
        {
            "np.where(seen, scores,": "scores + np.where(seen, 0,",
            "mix(weights, seen, v)": "weights @ v",
        },
        {"hidden NaN": "added -inf to masked scores and multiplied masked values by 0"},
        beside=(
            "plain",
            "rows that see nothing",
        ),
    ),
    "hidden_values_leak_nan": Entry(
        "the weight 0 of a hidden key multiplies NaN, which gives NaN",
        "plain: key_lengths",
        {"mix(weights, seen, v)": "weights @ v"},
        {"hidden NaN": "multiplied masked values by a weight of 0, so masked NaN values gave NaN"},
        source="Dao-AILab/flash-attention#2374",
    ),
    "window_one_key_too_wide": Entry(
        "the left side of the window is one key too wide",
        "plain: window is_causal",
        {"ahead >= -left": "ahead >= -left - 1"},
        {"window": "the window was one key too long on the left"},
        source="huggingface/transformers#39408",
    ),
    "local_gather": Entry(
        "the window holds left keys, with the query's own, instead of left + 1",
        "plain: is_causal q_offset window scale softcap",
        {"ahead >= -left": "ahead > -max(left, 1)"},
        {"window": "the window was one key too short on the left"},
        beside=("plain",),
    ),
    "window_without_its_last_key": Entry(
        "the right side of the window is exclusive: one key too narrow",
        "plain: window",
        {"ahead <= right": "ahead < max(right, 1)"},
        {"window": "the window was one key too short on the right"},
    ),
    "window_open_to_the_right": Entry(
        "the right side of the window is ignored",
        "plain: window",
        {"ahead <= right": "True"},
        {"window": "ignored the right side of the window"},
        source="goombalab/hnet#21",
    ),
    "local_attention_gqa": Entry(
        "a missing left side of the window becomes L",
        "plain: q_offset window scale softcap",
        {"before: q, k, v = (x": "left = L if left is None and right is not None else left"},
        {"window": "used L for a missing left side of the window"},
        beside=("plain",),
    ),
    "windowed_entry": Entry(
        "a window whose left side covers all keys is dropped, and so its right side",
        "plain: is_causal q_offset window scale key_lengths",
        {
            "after: (None, None) if window is None else window": (
                "if left is not None and left >= S:\n    left = right = None"
            )
        },
        {"window": "ignored a window whose left side has S or more keys, including its other side"},
        beside=("plain",),
    ),
    "mask_mod_kernel": Entry(
        "the window is placed without q_offset",
        "plain: is_causal q_offset window scale",
        {"ahead >= -left": "j >= i - left", "ahead <= right": "j <= i + right"},
        {"window": "placed the window without q_offset"},
        beside=("plain",),
    ),
    "tiled_window": Entry(
        "tiles of 16 queries begin at the left side of their last query",
        "plain: is_causal window q_offset",
        {
            "seen &= ahead >= -left": (
                "last = np.minimum(i // 16 * 16 + 15, L - 1) + start\n"
                "seen &= (ahead >= -left) & (j >= (last - left) // 16 * 16)"
            )
        },
        {"window": "tiles of 16 queries read whole tiles of keys, beginning at the left side"},
    ),
    "window_of_first_row": Entry(
        "the first key that a window reads is found from the offset of batch row 0 for all rows",
        "plain: is_causal window q_offset",
        {">= -left": ">= np.maximum(start[:1] + i // 4 * 4 - i - start - left, -left)"},
        {"q_offset": "the left side of the window, computed with the q_offset of the first batch"},
    ),
    "split_loop_attention": Entry(
        "in causal calls, tiles of 16 keys below the diagonal have no left side of the window",
        "plain: is_causal q_offset window",
        {
            "seen &= ahead >= -left": (
                "top = i // 16 * 16 + start\n"
                "below = np.minimum(j // 16 * 16 + 15, S - 1) <= top\n"
                "below = below & (j >= (top - left) // 16 * 16)\n"
                "seen &= (ahead >= -left) | (below & is_causal & (right is None))"
            )
        },
        {"window": "did not mask keys left of the window in tiles of 16 x 16 before the diagonal"},
        beside=("plain",),
    ),
    "lengths_of_longest_row": Entry(
        "all rows of the batch use the largest key length",
        "plain: key_lengths",
        {"np.reshape(key_lengths, (B, 1, 1, 1))": "np.max(key_lengths, initial=0)"},
        {"lengths": "all batches had the largest of key_lengths"},
        source="ROCm/FlyDSL#960",
    ),
    "lengths_include_one_padded_key": Entry(
        "one key of the padding is visible: the key length is off by one",
        "plain: key_lengths is_causal",
        {"seen &= j < lengths": "seen &= (j <= lengths) & (lengths > 0)"},
        {"lengths": "read one key beyond key_lengths"},
    ),
    "paged_blocks": Entry(
        "key lengths are rounded up to whole blocks of 16 keys",
        "plain: key_lengths return_lse",
        {"j < lengths": "j < -(-lengths // 16) * 16"},
        {"lengths": "rounded key_lengths up to whole tiles of 16 keys"},
        source="hw-native-sys/simpler#72",
    ),
    "paged_tile_mask": Entry(
        "key_lengths are rounded up to 8 if S is a multiple of 8",
        "plain: is_causal q_offset key_lengths query_lengths scale return_lse",
        {"j < lengths": "j < (lengths if S % 8 else -(-lengths // 8) * 8)"},
        {"lengths": "whole tiles of 8 keys in calls whose number of keys is a multiple of 8"},
        beside=("plain",),
    ),
    "truthy_lengths": Entry(
        "a key length of 0 counts as no length: the row attends to its padding",
        "plain: key_lengths return_lse",
        {"seen &= j < lengths": "seen &= (j < lengths) | (lengths == 0)"},
        {"rows that see nothing": "did not mask rows that see nothing"},
    ),
    "flat_batch": Entry(
        "key_lengths are repeated over batch and head in the wrong order",
        "plain: is_causal q_offset scale key_lengths return_weights",
        {"np.reshape(key_lengths, (B, 1, 1, 1))": "np.tile(key_lengths, H).reshape(B, H, 1, 1)"},
        {"lengths": "repeated key_lengths over batch and head in the wrong order"},
        beside=("plain",),
    ),
    "external_cache_attention": Entry(
        "q_offset='end' means the key length - L",
        "plain: is_causal q_offset key_lengths scale",
        {
            "before: start = starts": (
                'if isinstance(q_offset, str) and q_offset == "end" and key_lengths is not None:\n'
                "    q_offset = np.asarray(key_lengths) - L"
            )
        },
        {"lengths": "aligned queries to the end of key_lengths instead of by q_offset"},
        beside=("plain",),
    ),
    "ragged_end": Entry(
        "q_offset='end' means the key length - the query length",
        "plain: is_causal q_offset window scale query_lengths key_lengths return_lse",
        {
            "before: start = starts": (
                'if isinstance(q_offset, str) and q_offset == "end":\n'
                "    q_offset = np.asarray(S if key_lengths is None else key_lengths)\n"
                "    q_offset = q_offset - (L if query_lengths is None else query_lengths)"
            )
        },
        {"lengths": "aligned the end of query_lengths to the end of key_lengths instead of by"},
        beside=("plain",),
    ),
    "offset_of_row_0": Entry(
        "all rows of the batch use the offset of row 0",
        "plain: is_causal q_offset",
        {"starts(q_offset, B, L, S).reshape(B": "starts(q_offset, B, L, S)[:1].reshape(-1"},
        {"q_offset": "all batches had the q_offset of the first batch"},
        source="tenstorrent/tt-xla#5817",
    ),
    "negative_offset_is_zero": Entry(
        "a negative offset is treated as 0",
        "plain: is_causal q_offset key_lengths",
        {"start = starts(q_offset, B, L, S)": "start = np.maximum(starts(q_offset, B, L, S), 0)"},
        {"q_offset": "used 0 for a negative q_offset"},
        source="fla-org/flash-linear-attention#45",
    ),
}
