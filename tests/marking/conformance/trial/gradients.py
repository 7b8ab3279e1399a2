"""Defective kernels: backward passes."""

from .entry import Entry

GRADIENTS = {
    "softcap_without_derivative": Entry(
        "the gradient lacks the derivative of the softcap, 1 - tanh^2",
        "backward: softcap",
        {"d_scores * (1 - capped**2)": "d_scores"},
        {"gradient": "the backward pass left out softcap"},
        source="openxla/tokamax#1121",
    ),
    "last_head_of_group_wins": Entry(
        "the gradient of a key head is not summed over the heads of its group",
        "backward: is_causal",
        {
            "S, d).sum(axis=2)": "S, d)[:, :, -1]",
            "value.shape[3]).sum(axis=2)": "value.shape[3])[:, :, -1]",
        },
        {"gradient": "the gradients of keys and values came from the last query head of each"},
        source="marin-community/levanter#449",
    ),
    "last_head_of_group_wins_for_keys": Entry(
        "the gradient of keys comes from the last query head of a group",
        "backward: is_causal attn_mask scale",
        {"S, d).sum(axis=2)": "S, d)[:, :, -1]"},
        {"gradient": "gradient of keys came from the last query head of each group instead of"},
        beside=("plain",),
    ),
    "key_heads_tiled_backward": Entry(
        "the gradient of query head h is added to key head h % Hkv",
        "backward",
        {
            "G, -1, S, d).sum(axis=2)": "-1, G, S, d).sum(axis=1)",
            "G, -1, S, value.shape[3]).sum(axis=2)": "-1, G, S, value.shape[3]).sum(axis=1)",
        },
        {"gradient": "added up query heads 0 1 0 1 instead of 0 0 1 1"},
    ),
    "query_gradient_of_value_extent": Entry(
        "the gradient of queries reads only the first d columns of the values",
        "backward: scale",
        {
            "d_query = mix(d_scores, seen, k)": (
                "part = up[..., :d] @ v[..., :d].swapaxes(2, 3)\n"
                "d_query = mix(weights * (part - delta) * factor, seen, k)"
            )
        },
        {"gradient": "the gradient of queries read only the first d columns of the values"},
        source="XunhaoLai/native-sparse-attention-triton#27",
    ),
    "weight_gradient_of_value_extent": Entry(
        "the gradient of weights reads only the first d columns of the values",
        "backward: is_causal q_offset key_lengths",
        {
            "delta = (up * mix(weights, seen, v))": "delta = (up * mix(weights, seen, v))[..., :d]",
            "up @ v.swapaxes(2, 3)": "up[..., :d] @ v[..., :d].swapaxes(2, 3)",
        },
        {"gradient": "read only the first d columns of the values and of the gradient"},
        beside=("plain",),
    ),
    "key_gradient_of_default_scale": Entry(
        "the gradient of keys has the default scale",
        "backward: scale is_causal",
        {"d_scores.swapaxes(2, 3) @ q": "d_scores.swapaxes(2, 3) @ q / factor * d**-0.5"},
        {"gradient": "ignored the argument scale in the gradient of keys"},
    ),
    "gradients_of_nothing": Entry(
        "the gradients are NaN if a row sees nothing",
        "backward: attn_mask is_causal",
        {"np.exp(scores - finite(lse))": "np.exp(scores - lse)"},
        {"rows that see nothing": "rows that see nothing had weights of NaN"},
    ),
    "query_gradient_without_mask": Entry(
        "the gradient of queries forgets the mask",
        "backward: attn_mask is_causal",
        {
            "after: d_query = mix(d_scores, seen, k)": (
                'if options.pop("attn_mask", None) is not None:\n'
                "    d_query = backward(query, key, value, grad_out, **options)[0]"
            )
        },
        {"gradient": "ignored attn_mask, but only in the gradient of queries"},
    ),
    "gradients_without_cap": Entry(
        "the weights that the backward pass recomputes lack the soft cap",
        "backward: softcap is_causal",
        {
            "before: d_scores = weights": (
                'uncapped = prepare(query, key, value, **options | {"softcap": None})[3]\n'
                "weights = np.exp(uncapped - finite(lse))"
            ),
            "d_scores = np.where(seen, d_scores * (1 - capped**2), 0)": "pass",
        },
        {"gradient": "ignored softcap, but only in the weights that the backward pass recomputes"},
    ),
}
