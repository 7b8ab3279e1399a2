"""What the card must say of each defective kernel of the fourth trial."""

from . import fourth
from .table import Entry

_ENTRIES = {
    # kernel: feature, mistake, words of the card
    "half_products": (
        "half precision",
        "products of queries and keys are stored in float16 before the scale",
        "stored the products of queries and keys in half precision before the scale",
    ),
    **{
        f"tail_of_{n}": (
            "plain",
            f"numbers of queries and keys after the last multiple of {n} are not read",
            f"numbers of queries and keys after the last multiple of {n}, if d is larger",
        )
        for n in (8, 16, 32, 64)
    },
    "tail_of_columns": (
        "plain",
        "columns of the output after the last multiple of 16 stay 0",
        "columns of the output at 0 after the last multiple of 16",
    ),
    "padding_before_cap": (
        "lengths",
        "padding is masked before the soft cap, and counts as -cap",
        "applied key_lengths before softcap, so masked scores became -softcap",
    ),
    "causal_before_cap": (
        "softcap",
        "the causal mask is applied before the soft cap; other masks are right",
        "applied the causal mask before softcap, so masked scores became -softcap",
    ),
    "alibi_one_too_far": (
        "LSE",
        "distances of ALiBi are too large by 1, which only the LSE shows",
        "computed ALiBi distances that are too large by 1",
    ),
    "lse_of_default_scale": (
        "LSE",
        "the LSE is computed with the default scale, the output with the given one",
        "ignored the argument scale, but only in the LSE",
    ),
    "lse_without_bias_of_one_query": (
        "LSE",
        "with one query, the LSE lacks the bias",
        "ignored the bias, but only in the LSE in calls with one query",
    ),
    "weights_without_cap": (
        "weights",
        "the returned weights ignore the soft cap",
        "ignored softcap, but only in the returned weights",
    ),
    "weights_of_nothing": (
        "rows that see nothing",
        "the returned weights of rows that see nothing are NaN",
        "rows that see nothing had weights of NaN",
    ),
    "alibi_signed": (
        "ALiBi",
        "the distance is signed",
        "computed ALiBi distances without abs()",
    ),
    "alibi_signed_without_mask": (
        "ALiBi",
        "the distance is signed, and no causal mask hides later keys",
        "computed ALiBi distances without abs()",
    ),
    "alibi_signed_in_decoding": (
        "ALiBi",
        "with one query, the distance is signed",
        "computed ALiBi distances without abs() in calls with one query",
    ),
}
_GRADIENTS = {
    "key_gradient_of_default_scale": (
        "gradient",
        "the gradient of keys has the default scale",
        "ignored the argument scale in the gradient of keys",
    ),
    "gradients_of_nothing": (
        "rows that see nothing",
        "the gradients are NaN if a row sees nothing",
        "rows that see nothing had weights of NaN",
    ),
    "query_gradient_without_mask": (
        "gradient",
        "the gradient of queries forgets the mask",
        "ignored attn_mask, but only in the gradient of queries",
    ),
    "gradients_without_cap": (
        "gradient",
        "the weights that the backward pass recomputes lack the soft cap",
        "ignored softcap, but only in the weights that the backward pass recomputes",
    ),
}
FOURTH = [
    *(
        Entry(getattr(fourth, kernel), feature, says, named=named, beside=("q_offset",))
        for kernel, (feature, says, named) in _ENTRIES.items()
    ),
    *(
        Entry(fourth.forward, feature, says, gradient=getattr(fourth, kernel), named=named)
        for kernel, (feature, says, named) in _GRADIENTS.items()
    ),
]
