"""The attention layer: projections, heads and output, forward and backward."""

from qkv.layers.attention.forward import Norm
from qkv.layers.attention.layer import MultiHeadAttention, SelfAttention, self_attention
from qkv.layers.attention.rotary import Rotary, Scaling

__all__ = ["MultiHeadAttention", "Norm", "Rotary", "Scaling", "SelfAttention", "self_attention"]
