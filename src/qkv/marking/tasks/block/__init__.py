"""The task `block`: attention and an MLP, a norm before each, a residual connection around it."""

from qkv.marking.tasks.block.marker import BLOCK

__all__ = ["BLOCK"]
