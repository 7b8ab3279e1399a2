"""The attention layer: projections, heads and output, forward and backward."""

from qkv.layers.attention._layer import MultiHeadAttention, SelfAttention, self_attention
from qkv.layers.attention._relative import Relative
from qkv.layers.attention._rotary import Rotary, Scaling
from qkv.layers.attention.forward import Norm

__all__ = [
    "MultiHeadAttention",
    "Norm",
    "Relative",
    "Rotary",
    "Scaling",
    "SelfAttention",
    "self_attention",
]
