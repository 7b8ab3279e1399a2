"""All tasks, keyed by name, in the order of the course."""

from qkv.marking.tasks.attention import ATTENTION, BATCHED_ATTENTION, MENDED, TILES
from qkv.marking.tasks.block import BLOCK
from qkv.marking.tasks.cross_attention import CROSS_ATTENTION
from qkv.marking.tasks.decoder import DECODER
from qkv.marking.tasks.decoder_block import DECODER_BLOCK
from qkv.marking.tasks.exercises import (
    CLOSENESS,
    GRADIENTS,
    NEIGHBOUR_SCORE,
    RECURRENCE_TABLE,
    ROTATION,
    SCORE_NEEDED,
    SOFTMAX_BACK,
    TO_IDS,
)
from qkv.marking.tasks.kv_cache import KV_CACHE
from qkv.marking.tasks.mask import BATCHED_MASK, MASK
from qkv.marking.tasks.multi_head import HEADS
from qkv.marking.tasks.positions import POSITIONS
from qkv.marking.tasks.self_attention_class import SELF_ATTENTION_CLASS
from qkv.marking.tasks.softmax import SOFTMAX
from qkv.marking.tasks.stories import (
    HEAD_REMOVED,
    INDUCTION_HEAD,
    INDUCTION_SCORE,
    STORY,
    STORY_MODEL,
)
from qkv.marking.tasks.task import Task
from qkv.marking.tasks.values import ADJECTIVES, CALM_QUERY, PROJECTIONS
from qkv.marking.tasks.writing_step import WRITING_STEP

_IN_ORDER = (
    RECURRENCE_TABLE,
    SCORE_NEEDED,
    TO_IDS,
    PROJECTIONS,
    CALM_QUERY,
    SOFTMAX,
    ATTENTION,
    BATCHED_ATTENTION,
    TILES,
    MASK,
    BATCHED_MASK,
    HEADS,
    POSITIONS,
    ROTATION,
    SELF_ATTENTION_CLASS,
    NEIGHBOUR_SCORE,
    CLOSENESS,
    BLOCK,
    KV_CACHE,
    DECODER,
    SOFTMAX_BACK,
    GRADIENTS,
    ADJECTIVES,
    MENDED,
    CROSS_ATTENTION,
    DECODER_BLOCK,
    WRITING_STEP,
    STORY,
    STORY_MODEL,
    INDUCTION_SCORE,
    INDUCTION_HEAD,
    HEAD_REMOVED,
)
TASKS = {task.name: task for task in _IN_ORDER}

__all__ = ["TASKS", "Task"]
