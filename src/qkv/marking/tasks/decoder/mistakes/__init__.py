"""The ways to get a decoder wrong: each replaces a step of the right computation."""

from qkv.marking.tasks.decoder.mistakes.ends import ENDS, LAST, LAST_ROW, UNTIED
from qkv.marking.tasks.decoder.mistakes.heads import HEADS
from qkv.marking.tasks.decoder.mistakes.layer import LAYER
from qkv.marking.tasks.decoder.mistakes.rotary import ROTARY
from qkv.marking.tasks.decoder.mistakes.transposed import TRANSPOSED

__all__ = ["ENDS", "HEADS", "LAST", "LAST_ROW", "LAYER", "ROTARY", "TRANSPOSED", "UNTIED"]
