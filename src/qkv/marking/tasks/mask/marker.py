"""Which of the two a function is that hides something: attention, or the mask itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.marking.result import CheckResult
from qkv.marking.tasks.mask.causal import mark_causal
from qkv.marking.tasks.mask.masked import mark_masked
from qkv.marking.tasks.task import Task


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Masked attention, or if it cannot be called so, a causal mask."""
    try:
        return mark_masked(function, "mask", batches=False)
    except TypeError as error:
        try:
            return mark_causal(function)
        except TypeError:
            raise error from None


MASK = Task(
    name="mask",
    looks_for=("masked_attention", "causal_mask"),
    signature="masked_attention(query, key, value, mask) -> out, or causal_mask(length) -> mask",
    asks="a mask (L, S) hides keys from queries: True = may attend, or 0 and -inf to add; the"
    " causal one hides from each word those after it",
    mark=_mark,
    also=("attention", "scaled_dot_product_attention"),
)
BATCHED_MASK = Task(
    name="batched-mask",
    looks_for=("masked_attention",),
    signature="masked_attention(query, key, value, mask) -> out, also of batches (B, L, d)",
    asks="masked attention as in the task mask, of one text (L, d) and of several at once"
    " (B, L, d)",
    mark=lambda function, way: mark_masked(function, "batched-mask", batches=True),
    by_name=True,
)
