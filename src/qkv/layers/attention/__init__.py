"""The attention layer: projections, heads and what joins them, forward and backward."""

from qkv.layers.attention.layer import (
    MultiHeadAttention,
    Norm,
    Rotary,
    Scaling,
    SelfAttention,
    self_attention,
)

__all__ = ["MultiHeadAttention", "Norm", "Rotary", "Scaling", "SelfAttention", "self_attention"]
