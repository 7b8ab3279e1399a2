"""Defective kernels: sinks."""

from .entry import Entry

SINKS = {
    "sinks_never_bound": Entry(
        "the sinks are ignored",
        "plain: sinks is_causal",
        {"if sinks is not None:": "if sinks is not None and False:"},
        {"sinks": "ignored sinks"},
        source="vllm-project/vllm-metal#550",
    ),
    "sinks_scaled_like_scores": Entry(
        "the sinks are multiplied by the scale",
        "plain: scale sinks",
        {"extra = np.reshape(sinks, (H, 1, -1))": "extra = factor * np.reshape(sinks, (H, 1, -1))"},
        {"sinks": "multiplied sinks by the scale"},
        source="ROCm/rocm-libraries#12229",
    ),
    "seeded_sinks": Entry(
        "the soft cap is applied to sinks",
        "plain: is_causal q_offset softcap sinks scale return_lse",
        {
            "after: np.reshape(sinks, (H, 1, -1)).astype(np.float64)": (
                "if softcap is not None:\n    extra = softcap * np.tanh(extra / softcap)"
            )
        },
        {"sinks": "also applied softcap to sinks"},
        beside=("plain",),
    ),
    "exp2_sinks": Entry(
        "scores are in base 2, but sinks in base e",
        "plain: is_causal q_offset window attn_mask scale sinks",
        {"extra = np.reshape(sinks": "extra = math.log(2) * np.reshape(sinks"},
        {"sinks": "used base 2 for sinks and base e for scores"},
        beside=("plain",),
    ),
    "pa_sdpa_sinks": Entry(
        "with grouped heads the sink is read at the key head's number",
        "plain: sinks scale",
        {"np.reshape(sinks, (H, 1, -1))": "np.reshape(sinks[np.arange(H) // group], (H, 1, -1))"},
        {"sinks": "read the sinks of a query head by the number of its key head"},
        source="openvinotoolkit/openvino#32731",
    ),
    "sinks_outside_the_maximum": Entry(
        "the maximum leaves out the sinks, so that a large sink overflows",
        "plain: sinks",
        {
            "peak = np.maximum(peak, extra.max(axis=-1, keepdims=True, initial=-np.inf))": "pass",
            "total = total + np.exp(extra - peak).sum(axis=-1, keepdims=True)": (
                "own = np.exp((extra - peak).astype(np.float32)).sum(axis=-1, keepdims=True)\n"
                "total = np.where(np.isinf(own), np.nan, total + own)"
            ),
        },
        {"sinks": "the maximum did not include sinks, so a large sink overflowed"},
        source="fla-org/flash-linear-attention#831",
    ),
    "cute_learnable_sink": Entry(
        "the maximum does not include sinks: a sink 88 above the scores overflows",
        "plain: sinks return_lse",
        {
            "peak = np.maximum(peak,": "peak = peak if S else np.maximum(peak,",
            "np.exp(extra - peak)": "np.exp((extra - peak).astype(np.float32))",
        },
        {"sinks": "the maximum did not include sinks, so a large sink made the sum infinite"},
        source="Dao-AILab/flash-attention#2752",
    ),
    "sink_lse_of_blind_rows": Entry(
        (
            "with sinks, a row that sees nothing gets LSE NaN instead of the log-sum-exp of its "
            "sinks"
        ),
        "plain: attn_mask sinks return_lse",
        {
            "after: lse = peak + np.log(total)": (
                "if extra.size:\n    lse = np.where(seen.any(axis=-1, keepdims=True), lse, np.nan)"
            )
        },
        {"rows that see nothing": "rows that see nothing had an LSE of NaN beside sinks"},
        source="NVIDIA/cudnn-frontend#333",
    ),
    "eager_sinks": Entry(
        "the returned weights sum to 1 beside sinks",
        "plain: attn_mask is_causal q_offset sinks scale return_weights return_lse",
        {"out, weights,": "out, weights / weights.sum(axis=-1, keepdims=True),"},
        {"weights": "the weights did not count sinks"},
        beside=("plain",),
    ),
    "sinks_once_per_split": Entry(
        "the sinks are counted twice, once for each split of the keys",
        "split: sinks",
        {"np.where(first == 0, extra, -np.inf)": "extra"},
        {"sinks": "counted sinks 2 times, once for each split of the keys"},
        source="ROCm/rocm-libraries#12229",
    ),
    "splits_publish_sinks": Entry(
        "a split without visible keys publishes the sink as its LSE, and so counts it again",
        "split: is_causal q_offset sinks return_lse",
        {
            "max((S + 1) // 2, 1)": "max(-(-S // 4), 1)",
            "first == 0,": "(first == 0) | ~seen[..., part].any(axis=-1, keepdims=True),",
        },
        {"sinks": "sinks once more for each of 4 splits of the keys, after the first, that a row"},
    ),
    "split_kv_sinks": Entry(
        "sinks count twice in rows that do not see the first 8 keys",
        "split: attn_mask is_causal q_offset window sinks scale key_lengths return_lse",
        {
            "max((S + 1) // 2, 1)": "8",
            "sink = np.where(first == 0, extra, -np.inf)": (
                "blank = ~seen[..., :first].any(axis=-1, keepdims=True)\n"
                "begins = blank & seen[..., part].any(axis=-1, keepdims=True)\n"
                "sink = np.where((first == 0) | begins, extra, -np.inf)"
            ),
        },
        {"sinks": "sinks twice in rows that do not see the first tile of 8 keys"},
        beside=("plain",),
    ),
    "split_sink_attention": Entry(
        "with 64 keys or more, sinks count twice in rows that do not see the first of 4 splits",
        "split: is_causal q_offset attn_mask window key_lengths sinks",
        {
            "max((S + 1) // 2, 1)": "-(-S // 4) if S >= 64 else max(S, 1)",
            "sink = np.where(first == 0, extra, -np.inf)": (
                "blank = ~seen[..., :first].any(axis=-1, keepdims=True)\n"
                "begins = blank & seen[..., part].any(axis=-1, keepdims=True)\n"
                "sink = np.where((first == 0) | begins, extra, -np.inf)"
            ),
        },
        {"sinks": "sinks twice in rows that do not see the first of 4 splits"},
        beside=("plain",),
    ),
}
