"""Defective kernels: tiles and splits of the keys, and online softmax."""

from .entry import Entry

TILES = {
    "last_tile_padded_with_zero_keys": Entry(
        "the last partial tile of keys is padded with zero keys that take part in the softmax",
        "plain",
        {"np.zeros((H, 1, 0))": "np.zeros((H, 1, -S % 8))"},
        {"plain": "padded the last tile of 8 keys with zeros, and the padding received weight"},
        source="flashinfer-ai/flashinfer#5090",
    ),
    "packed_view_kernel": Entry(
        "zeros fill the last box of 16 keys, and are visible unless there is a mask",
        "plain: attn_mask is_causal q_offset key_lengths scale return_lse",
        {
            "extra = np.zeros((H, 1, 0))": (
                "masked = is_causal or attn_mask is not None or key_lengths is not None\n"
                "extra = np.zeros((H, 1, 0 if masked else -S % 16))"
            )
        },
        {"plain": "padded the last tile of 16 keys with zeros, and the padding received weight"},
    ),
    "keys_after_last_full_tile_dropped": Entry(
        "the keys after the last full tile (of 4) are dropped",
        "plain: is_causal",
        {"after: seen = np.ones((B, H, L, S), bool)": "seen[..., S // 4 * 4 or S :] = False"},
        {"plain": "dropped the keys after the last whole tile of 4, if there is a whole tile"},
        source="jax-ml/jax#27224",
    ),
    "value_blocks_of_another_size": Entry(
        "the rows of the values drift from those of the keys where dv differs from d",
        "plain",
        {"before: products = ": "v = v[:, :, (j // d * dv + j % d) % max(S, 1)]"},
        {"plain": "read values in blocks of dv keys, but keys in blocks of d"},
        source="ikawrakow/ik_llama.cpp#2031",
    ),
    "accumulator_never_rescaled": Entry(
        "the online softmax does not rescale its sums when the maximum grows",
        "tiled: scale",
        {"tile = 16": "tile = 4", "fade = np.exp(peak - safe)": "fade = 1"},
        {"plain": "rescaled neither the running sum nor the running output when the maximum"},
        source="paiml/aprender#2753",
    ),
    "divided_at_every_tile": Entry(
        "the online softmax divides its output at every tile instead of once",
        "tiled",
        {
            "tile = 16": "tile = 8",
            "before: weights *= fade": "out = out / total",
            "out / safe, weights": "out, weights",
        },
        {"plain": "divided the running output by the running sum after each tile of 8 keys"},
        source="1bit-MONSTER/1bit-MONSTER#495",
    ),
    "maximum_starts_at_minus_5000": Entry(
        "the running maximum starts at a finite number, and lower scores underflow",
        "tiled",
        {
            "tile = 16": "tile = 32",
            "np.full((B, H, L, 1), -np.inf)": "np.full((B, H, L, 1), -5000.0)",
        },
        {"large scores": "the running maximum began at -5000 instead of -inf, and rows with a sum"},
        source="flashinfer-ai/flashinfer#4267",
    ),
    "fa4_row_max": Entry(
        "a tile of 16 keys that a row does not see sets the running maximum to 0",
        "tiled: is_causal q_offset key_lengths",
        {
            "range(0, S, tile)": "reversed(range(0, S, tile))",
            "part] - safe)": "part] - safe, dtype=np.float32)",
            "np.exp(peak - safe": "np.exp(peak - safe, dtype=np.float32",
            "peak = higher": "peak = safe",
        },
        {"large scores": "tiles of 16 keys from the last to the first, and a tile that a row does"},
        source="Dao-AILab/flash-attention#2082",
    ),
    "skip_rescale_wrong_frame": Entry(
        ("sums keep a maximum that grew by at most 8, but the tile's weights subtract the new one"),
        "tiled: scale attn_mask",
        {
            "tile = 16": "tile = 8",
            "fade = np.exp(peak - safe)": (
                "kept = (higher - peak <= 8 * math.log(2)) & (peak > -np.inf)\n"
                "fade = np.where(kept, 1, np.exp(peak - safe))"
            ),
            "peak = higher": "peak = np.where(kept, peak, higher)",
        },
        {"plain": "a maximum that grew by at most 8 (in base 2), but tiles of 8 keys subtracted"},
        source="meta-pytorch/MSLK#242",
    ),
    "lazy_rescale_forward": Entry(
        "the sum is not rescaled when the maximum rises by more than 5",
        "tiled: is_causal q_offset scale return_lse",
        {
            "before: safe = finite(higher)": "higher = np.where(higher - peak <= 5, peak, higher)",
            "total = total * fade + parts": "total = total + parts",
        },
        {"large scores": "did not rescale the running sum when it rose by more (tiles of 16 keys)"},
        beside=("plain",),
    ),
    "p_saturates_half": Entry(
        "in halves, weights above 448 / 256 are cut in the product, but not in the sum",
        "tiled: scale return_lse",
        {
            "tile = 16": ("tile = 8\nhalf = query.dtype.itemsize == 2"),
            "before: safe = finite(higher)": (
                "higher = np.where(higher - peak <= 4 * math.log(2) * half, peak, higher)"
            ),
            "before: weights *= fade": (
                "if half:\n"
                "    lost = parts - np.minimum(parts, 448 / 256)\n"
                "    out = out - mix(lost, seen[..., part], v[:, :, part])"
            ),
        },
        {"half precision": ""},
        source="Dao-AILab/flash-attention#2713",
    ),
    "tiled_mask_attention": Entry(
        "-inf - -inf in rows that see none of the first 16 keys",
        "tiled: attn_mask bias key_lengths",
        {
            "safe = finite(higher)": "safe = higher",
            "out / safe,": "np.where(seen.any(axis=-1, keepdims=True), out / safe, 0),",
        },
        {"bool mask": "computed -inf - -inf in rows that see none of the first"},
        beside=("plain",),
    ),
    "weights_of_their_time": Entry(
        "the returned weights of earlier tiles (8 keys) are not rescaled; the output is right",
        "tiled: is_causal q_offset return_weights",
        {"tile = 16": "tile = 8", "weights *= fade": "pass"},
        {"weights": "the weights of earlier tiles of 8 keys were not rescaled to the last maximum"},
    ),
    "hidden_split_gives_nan": Entry(
        "a wholly hidden split (or tile) of the keys gives NaN in the merge",
        "split: attn_mask",
        {
            "= finite(peak)": "= peak",
            "query, out,": "query, np.where(seen.any(axis=-1, keepdims=True), out, 0),",
        },
        {"bool mask": "computed -inf - -inf in rows that see no key of one of 2 splits of the"},
        source="tile-ai/tilelang#328",
    ),
    "split_kv_attention": Entry(
        "a row that sees nothing of one split of 32 keys is NaN",
        "split: is_causal q_offset key_lengths",
        {
            "max((S + 1) // 2, 1)": "32",
            "weights = parts / np.where(total == 0, 1, total)": "weights = parts / total",
            "query, out,": "query, np.where(seen.any(axis=-1, keepdims=True), out, 0),",
        },
        {"causal": "computed -inf - -inf in rows that see no key of some tile of 32 keys"},
        source="flashinfer-ai/flashinfer#4401",
    ),
    "lse_of_last_split": Entry(
        "the LSE is that of the last split of the keys only",
        "split: return_lse",
        {"lse = top + np.log(whole)": "lse = lses[-1]"},
        {"LSE": "the LSE counted only the last of 2 splits of the keys"},
        source="flashinfer-ai/flashinfer#58",
    ),
    "idle_split_overwrites_lse": Entry(
        "in rows that see the first split only, the LSE is that of the last split, -inf",
        "split: is_causal q_offset return_lse",
        {
            "lse = top + np.log(whole)": (
                "busy = sum(one > -np.inf for one in lses)\n"
                "lse = np.where(busy == 1, lses[-1], top + np.log(whole))"
            )
        },
        {"LSE": "the LSE was -inf in rows that do not see the last of 2 splits of the keys"},
        source="sgl-project/sgl-kernel-xpu#487",
    ),
    "two_rank_decode": Entry(
        "the results of two halves of the keys are joined by 2 ** LSE",
        "split: is_causal q_offset scale key_lengths return_lse",
        {
            "for first in range(0, max(S, 1), size)": "for first in range(2)",
            "slice(first, first + size)": "slice(first, None, 2)",
            "shares = [np.exp(one - top)": "shares = [np.exp2(one - top)",
            "lse = top + np.log(whole)": "lse = top + np.log2(whole)",
        },
        {"plain": "joined the results of keys j % 2 by 2 ** LSE, but their LSE was in base e"},
    ),
}
