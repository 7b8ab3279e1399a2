"""The ways to get a decoder wrong: each replaces a step of the right computation."""

from qkv.marking.tasks.decoder.mistakes.ends import ENDS, LAST, LAST_ROW, UNTIED
from qkv.marking.tasks.decoder.mistakes.heads import HEADS, IN_ONE_ROW
from qkv.marking.tasks.decoder.mistakes.heads import SLIPS as _OF_HEADS
from qkv.marking.tasks.decoder.mistakes.layer import LAYER
from qkv.marking.tasks.decoder.mistakes.layer import SLIPS as _OF_LAYER
from qkv.marking.tasks.decoder.mistakes.rotary import ROTARY
from qkv.marking.tasks.decoder.mistakes.rotary import SLIPS as _OF_ROTARY
from qkv.marking.tasks.decoder.mistakes.transposed import TRANSPOSED

SLIPS = (*_OF_ROTARY, *_OF_HEADS, *_OF_LAYER, *IN_ONE_ROW)

__all__ = [
    "ENDS",
    "HEADS",
    "LAST",
    "LAST_ROW",
    "LAYER",
    "ROTARY",
    "SLIPS",
    "TRANSPOSED",
    "UNTIED",
]
