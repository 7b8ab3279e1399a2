"""Attention from queries, keys and values: the formula, and the code that runs it."""

from qkv.attend.attention import attention, trace_attention
from qkv.attend.cache import KVCache
from qkv.attend.gradient import AttentionGradient, attention_grad, varlen_attention_grad
from qkv.attend.merge import merge_attention
from qkv.attend.softmax import softmax
from qkv.attend.summary import AttentionSummary, summarize_attention
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
