"""The tasks of two texts: cross-attention, a decoder's block, and a step of writing."""

from qkv.marking.tasks.cross.attention_marker import CROSS_ATTENTION
from qkv.marking.tasks.cross.layer_marker import DECODER_BLOCK
from qkv.marking.tasks.cross.step_marker import WRITING_STEP

__all__ = ["CROSS_ATTENTION", "DECODER_BLOCK", "WRITING_STEP"]
