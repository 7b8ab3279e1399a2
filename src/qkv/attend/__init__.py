"""Attention from queries, keys and values: the formula, and the code that runs it."""

from qkv.attend._grouped import group_call, join_heads, split_heads
from qkv.attend._native import attend_new
from qkv.attend._softmax import merge_attention, softmax
from qkv.attend._tiled import log_sums
from qkv.attend._varlen import attend_rows, check_starts, varlen_attention
from qkv.attend._visibility import FAR, Visibility, check_flag, check_offset
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
