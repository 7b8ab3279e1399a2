"""The task `attention`: softmax(Q K^T / sqrt(d)) V, with optional masks and heads."""

from qkv.marking.tasks.attention.marker import ATTENTION, BATCHED_ATTENTION, MENDED, TILES

__all__ = ["ATTENTION", "BATCHED_ATTENTION", "MENDED", "TILES"]
