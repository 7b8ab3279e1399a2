"""Embeddings: convert token ids and positions to vectors."""

from qkv.embed._positions import LearnedPositions, alibi_slopes, sinusoidal_positions
from qkv.embed._table import TokenEmbedding
from qkv.embed.rotary import apply_rotary

__all__ = [
    "LearnedPositions",
    "TokenEmbedding",
    "alibi_slopes",
    "apply_rotary",
    "sinusoidal_positions",
]
