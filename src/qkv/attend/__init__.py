"""Attention from queries, keys and values: the formula, and the code that runs it."""

from qkv.attend.attention import AttentionSummary, attention, summarize_attention, trace_attention
from qkv.attend.cache import KVCache
from qkv.attend.gradient import AttentionGradient, attention_grad, varlen_attention_grad
from qkv.attend.softmax import merge_attention, softmax
from qkv.attend.varlen import varlen_attention

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
