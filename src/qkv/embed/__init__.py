"""Embeddings: convert token ids and positions to vectors."""

from qkv.embed.positions import LearnedPositions, alibi_slopes, sinusoidal_positions
from qkv.embed.rotary import apply_rotary
from qkv.embed.table import TokenEmbedding

__all__ = [
    "LearnedPositions",
    "TokenEmbedding",
    "alibi_slopes",
    "apply_rotary",
    "sinusoidal_positions",
]
