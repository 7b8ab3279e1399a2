"""Defective kernels: half precision, and quantized queries and keys."""

from .entry import Entry

DTYPES = {
    "products_in_int8": Entry(
        "queries and keys are rounded to 8 bits (or: the precision is too low)",
        "plain: is_causal",
        {
            "before: products = ": (
                "for x in (q, k):\n"
                "    step = np.abs(x).max(axis=-1, keepdims=True, initial=0) / 127\n"
                "    x[:] = np.rint(x / np.where(step == 0, 1, step)) * step"
            )
        },
        {"plain": "quantized each row of queries and keys to integers up to 127"},
    ),
    "half_products_before_scale": Entry(
        "the products are stored in float16 before they are scaled, and overflow",
        "plain: scale",
        {"scores = products": "scores = products.astype(query.dtype).astype(float)"},
        {"half precision": "stored the products of queries and keys in half precision before the"},
        source="philipturner/metal-flash-attention#8",
    ),
    "metal_half_scores": Entry(
        "products of queries and keys are stored in float16 before the scale",
        "plain: is_causal q_offset scale",
        {"scores = products": "scores = products.astype(np.float16).astype(float)"},
        {"plain": "stored the products of queries and keys in float16 before the scale"},
    ),
    "row_sum_in_half": Entry(
        "the row sum is accumulated key by key in half precision",
        "plain",
        {
            "after: total = parts.sum(axis=-1, keepdims=True)": (
                "if query.dtype.itemsize == 2:\n"
                "    total = np.zeros_like(total, query.dtype)\n"
                "    for part in np.moveaxis(parts.astype(query.dtype), -1, 0):\n"
                "        total = (total + part[..., None]).astype(query.dtype)\n"
                "    total = total.astype(np.float64)"
            )
        },
        {"half precision": "added up the weights of a row key by key in half precision"},
    ),
    "half_vkq": Entry(
        "the output is added up in float16, key by key",
        "plain: is_causal q_offset scale key_lengths",
        {
            "after: out = mix(weights, seen, v)": (
                "if query.dtype == np.float16:\n"
                "    out = out.astype(np.float16) * 0\n"
                "    for j in range(S):\n"
                "        own = slice(j, j + 1)\n"
                "        step = mix(parts[..., own], seen[..., own], v[:, :, own])\n"
                "        out += step.astype(np.float16)\n"
                "    out = out.astype(np.float64) / np.where(total == 0, 1, total)"
            )
        },
        {"half precision": "added up the output key by key in half precision"},
        beside=("plain",),
    ),
    "half_in_float_out": Entry(
        "halves come back as float32, not in the input's type",
        "plain: attn_mask scale",
        {
            "return answer(query, out": (
                "wide = query.astype(np.result_type(query, np.float32))\nreturn answer(wide, out"
            )
        },
        {"half precision": ""},
        found=False,
        source="tinygrad/tinygrad#5100",
    ),
    "stat_of_type": Entry(
        "the LSE is rounded to float16",
        "plain: attn_mask is_causal q_offset scale sinks return_lse",
        {"lse = peak + np.log(total)": "lse = (peak + np.log(total)).astype(query.dtype)"},
        {"half precision": ""},
        beside=("plain",),
        found=False,
    ),
}
