"""The ways to get attention wrong: each replaces a step of the right computation.

A mistake names the steps it gets wrong; where learners write the same mistake in several ways there
are several variants. Because steps are independent, two mistakes together are simply both
replacements.
"""

from qkv.marking.tasks.attention.mistakes.batches import BATCHES, ONE_TEXT
from qkv.marking.tasks.attention.mistakes.core import RESULT, core
from qkv.marking.tasks.attention.mistakes.habits import PER_KEY, WEIGHTS_FIRST
from qkv.marking.tasks.attention.mistakes.heads import HEADS, IN_TURN, ONE_HEAD, rejoin_in_turn
from qkv.marking.tasks.attention.mistakes.lines import FLOATS, SCALE
from qkv.marking.tasks.attention.mistakes.masks import BOTH, CAUSAL, EMPTY, HIDING, MASK, OFFSET
from qkv.marking.tasks.attention.mistakes.roles import PROJECTIONS
from qkv.marking.tasks.attention.mistakes.scores import SCALING, SCORES, SHAPES
from qkv.marking.tasks.attention.mistakes.slips import OF_CAUSAL, SLIPS, of_output
from qkv.marking.tasks.attention.mistakes.softmax import LARGE, SOFTMAX

__all__ = [
    "BATCHES",
    "BOTH",
    "CAUSAL",
    "EMPTY",
    "FLOATS",
    "HEADS",
    "HIDING",
    "IN_TURN",
    "LARGE",
    "MASK",
    "OFFSET",
    "OF_CAUSAL",
    "ONE_HEAD",
    "ONE_TEXT",
    "PER_KEY",
    "PROJECTIONS",
    "RESULT",
    "SCALE",
    "SCALING",
    "SCORES",
    "SHAPES",
    "SLIPS",
    "SOFTMAX",
    "WEIGHTS_FIRST",
    "core",
    "of_output",
    "rejoin_in_turn",
]
