"""The task `mask`: attention that hides what a mask says, or the causal mask on its own."""

from qkv.marking.tasks.mask.marker import MASK

__all__ = ["MASK"]
