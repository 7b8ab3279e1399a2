"""The task `softmax`: scores to weights that sum to 1 along the last axis."""

from qkv.marking.tasks.softmax.marker import SOFTMAX

__all__ = ["SOFTMAX"]
