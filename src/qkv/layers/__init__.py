"""The parts of a transformer: attention, norms, the MLP and the block around them."""

from qkv.layers._convolution import Convolution
from qkv.layers._mlp import MLP, mlp_sizes
from qkv.layers.attention import MultiHeadAttention, Rotary, SelfAttention, self_attention
from qkv.layers.block import Block
from qkv.layers.experts import Experts, GatedExperts
from qkv.layers.norm import LayerNorm, LayerScale, RMSNorm

__all__ = [
    "MLP",
    "Block",
    "Experts",
    "GatedExperts",
    "LayerNorm",
    "LayerScale",
    "MultiHeadAttention",
    "RMSNorm",
    "Rotary",
    "SelfAttention",
    "self_attention",
]
