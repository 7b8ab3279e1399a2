"""The tasks of two texts: cross-attention, a decoder's block, and a step of writing."""

from qkv.marking.tasks.cross.attention_marker import CROSS_ATTENTION
from qkv.marking.tasks.cross.layer_marker import DECODER_BLOCK

__all__ = ["CROSS_ATTENTION", "DECODER_BLOCK"]
