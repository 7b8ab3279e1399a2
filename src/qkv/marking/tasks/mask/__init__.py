"""The task `mask`: attention that hides what a mask says, or the causal mask on its own."""

from qkv.marking.tasks.mask.marker import BATCHED_MASK, MASK

__all__ = ["BATCHED_MASK", "MASK"]
