"""Attention from queries, keys and values: the formula, and the code that runs it."""

from qkv.attend._softmax import merge_attention, softmax
from qkv.attend._varlen import varlen_attention
from qkv.attend.attention import AttentionSummary, attention, summarize_attention, trace_attention
from qkv.attend.cache import KVCache
from qkv.attend.gradient import AttentionGradient, attention_grad, varlen_attention_grad

__all__ = [
    "AttentionGradient",
    "AttentionSummary",
    "KVCache",
    "attention",
    "attention_grad",
    "merge_attention",
    "softmax",
    "summarize_attention",
    "trace_attention",
    "varlen_attention",
    "varlen_attention_grad",
]

from qkv.attend._grouped import (
    group_call as group_call,
    join_heads as join_heads,
    split_heads as split_heads,
)
from qkv.attend._native import attend_native as attend_native
from qkv.attend._tiled import log_sums as log_sums
from qkv.attend._varlen import attend_rows as attend_rows, check_starts as check_starts
from qkv.attend._visibility import (
    FAR as FAR,
    Visibility as Visibility,
    check_flag as check_flag,
    check_offset as check_offset,
)
