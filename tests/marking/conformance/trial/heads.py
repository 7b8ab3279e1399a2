"""Defective kernels: grouped heads, head sizes, and the layout in memory."""

from .entry import Entry

HEADS = {
    "key_heads_tiled": Entry(
        "query head h uses key head h % Hkv instead of h // (Hq // Hkv)",
        "plain: scale",
        {
            "k = np.repeat(k, group, axis=1)": "k = np.tile(k, (1, group, 1, 1))",
            "v = np.repeat(v, group, axis=1)": "v = np.tile(v, (1, group, 1, 1))",
        },
        {"grouped heads": "grouped heads as 0 1 0 1 instead of 0 0 1 1"},
        source="onnx/onnx#7274",
    ),
    "head_tile_crosses_group": Entry(
        "heads go in pairs, and a pair that crosses two groups uses the first one's key head",
        "plain",
        {
            "k = np.repeat(k, group, axis=1)": (
                "own = np.arange(H) // min(2, group) * min(2, group) // group\nk = k[:, own]"
            ),
            "v = np.repeat(v, group, axis=1)": "v = v[:, own]",
        },
        {"grouped heads": "computed 2 query heads at a time, and all of them read the key head of"},
        source="FlashML-org/FreeToken#177",
    ),
    "kittens_forward": Entry(
        "the group size is the stride of heads: heads are computed twice, or stay 0",
        "plain: is_causal q_offset scale",
        {
            "after: out = mix(weights, seen, v)": (
                "group = H // key.shape[1]\n"
                "done = np.arange(H) % group * group + np.arange(H) // group\n"
                "out[:, np.setdiff1d(np.arange(H), done)] = 0"
            )
        },
        {"grouped heads": "numbered query heads by the group size instead of the number of key"},
        beside=("plain",),
    ),
    "grouped_mask": Entry(
        "with grouped heads, a mask per query head is read at the key head's number",
        "plain: attn_mask scale",
        {
            "before: mask_seen, mask_added": (
                "if attn_mask.ndim > 2 and attn_mask.shape[-3] == H:\n"
                "    attn_mask = np.take(attn_mask, np.arange(H) // group, axis=-3)"
            )
        },
        {
            "grouped heads": "read the mask of a query head by the number of its key head",
            "bool mask": "",
        },
        source="pytorch/pytorch#190503",
    ),
    "tail_of_8": Entry(
        "numbers of queries and keys after the last multiple of 8 are not read",
        "plain: scale",
        {"q @ k.swapaxes": "q[..., : d // 8 * 8 or d] @ k[..., : d // 8 * 8 or d].swapaxes"},
        {"plain": "numbers of queries and keys after the last multiple of 8, if d is larger"},
        beside=("q_offset",),
    ),
    "simd_group_heads": Entry(
        "only the first 128 numbers of queries and keys are read",
        "plain: is_causal q_offset attn_mask scale",
        {"q @ k.swapaxes": "q[..., :128] @ k[..., :128].swapaxes"},
        {"plain": "read only the first 128 numbers of queries and keys"},
    ),
    "tail_of_columns": Entry(
        "columns of the output after the last multiple of 16 stay 0",
        "plain",
        {
            "after: out = mix(weights, seen, v)": (
                "out[..., v.shape[3] // 16 * 16 or v.shape[3] :] = 0"
            )
        },
        {"plain": "columns of the output at 0 after the last multiple of 16"},
        beside=("q_offset",),
    ),
    "value_tiles": Entry(
        "every tile of 32 columns of the output is stored in the first 32",
        "plain: is_causal q_offset scale key_lengths return_lse",
        {
            "out = mix(weights, seen, v)": (
                "whole = mix(weights, seen, v)\n"
                "out, dv = np.zeros_like(whole), whole.shape[3]\n"
                "for at in range(0, dv, 32):\n"
                "    out[..., : min(32, dv - at)] = whole[..., at : at + 32]"
            )
        },
        {"plain": "stored each tile of 32 columns of the output in the first 32 columns"},
    ),
    "output_like_query": Entry(
        "the output has the size of the query: values are cut, or zeros are added",
        "plain: scale attn_mask",
        {
            "out = mix(weights, seen, v)": (
                "d = query.shape[3]\n"
                "out = mix(weights, seen, v)[..., :d]\n"
                "out = np.pad(out, [(0, 0)] * 3 + [(0, d - out.shape[3])])"
            )
        },
        {"plain": "out has shape (1, 1, 1, 1) and must have (1, 1, 1, 2)"},
        source="xlite-dev/ffpa-attn#81",
    ),
    "four_workers": Entry(
        "four workers take L // 4 queries each, and the rest stay 0",
        "plain: is_causal q_offset scale bias",
        {"after: out = mix(weights, seen, v)": "out[:, :, max(L // 4, 1) * 4 :] = 0"},
        {"plain": "left outputs at 0 for queries after the last whole tile of 4"},
    ),
    "graph_prefill": Entry(
        "the stride between the queries of two batches is one query",
        "plain: is_causal q_offset scale",
        {
            "before: products = ": (
                "tokens = q.swapaxes(1, 2).reshape(B * L, H, d)\n"
                "q = tokens[np.arange(B)[:, None] + np.arange(L)].swapaxes(1, 2)"
            )
        },
        {"plain": "each batch read its queries one query, instead of L queries, after those"},
    ),
    "values_read_in_memory_order": Entry(
        "the strides of the values are ignored, as if they were contiguous",
        "plain: is_causal",
        {"before: k = np.repeat": 'v = v.ravel(order="K").reshape(v.shape)'},
        {"strides": "read values in the order of memory"},
        source="flagos-ai/FlagGems#5896",
    ),
    "query_in_memory_order": Entry(
        "up to eight queries are read in the order of memory",
        "plain",
        {
            "before: products = ": (
                'if L <= 8:\n    q = query.ravel(order="K").reshape(query.shape).astype(np.float64)'
            )
        },
        {"strides": "read queries in memory order and ignored their strides"},
    ),
    "raw_buffer_flash": Entry(
        "inputs are read in the order of memory",
        "plain: is_causal attn_mask scale return_lse",
        {"q, k, v = (x.": 'q, k, v = (x.ravel(order="K").reshape(x.shape).'},
        {"strides": "read the inputs in the order of memory"},
        beside=("plain",),
    ),
    "query_strides_short": Entry(
        "for L <= 8 the query is read as if it were contiguous, whatever its strides",
        "plain: scale attn_mask",
        {"before: products = ": ("if L <= 8:\n    q = as_contiguous(query).astype(np.float64)")},
        {"strides": "assumed that queries are contiguous"},
        source="pytorch/pytorch#163597",
    ),
    "gems_flash_forward": Entry(
        "values are read as if they were contiguous",
        "plain: is_causal q_offset scale return_lse",
        {"before: k = np.repeat": "v = as_contiguous(value).astype(np.float64)"},
        {"strides": "assumed that values are contiguous"},
        beside=("plain",),
    ),
    "inner_stride_one": Entry(
        "key and value are read as if the stride of their last axis were one element",
        "plain: scale is_causal q_offset",
        {
            "before: k = np.repeat": (
                "k, v = (as_contiguous(x, dense=True).astype(np.float64) for x in (key, value))"
            )
        },
        {"strides": "assumed that the last axis of keys and values is contiguous"},
        source="huggingface/candle#3703",
    ),
    "smooth_k_in_place": Entry(
        "centres the keys in place: the caller's key array is written to",
        "plain: scale",
        {
            "before: products = ": (
                "if S and key.flags.writeable:\n"
                "    key -= key.mean(axis=2, keepdims=True).astype(key.dtype)"
            )
        },
        {"plain": "it writes to key"},
        source="Comfy-Org/ComfyUI#16035",
    ),
}
