"""All tasks, keyed by name, in the order of the course."""

from qkv_marking.tasks import exercises
from qkv_marking.tasks.attention.attention_tasks import ATTENTION, BATCHED_ATTENTION, MENDED, TILES
from qkv_marking.tasks.block import BLOCK
from qkv_marking.tasks.cross_attention import CROSS_ATTENTION
from qkv_marking.tasks.decoder.decoder_task import DECODER
from qkv_marking.tasks.decoder_block import DECODER_BLOCK
from qkv_marking.tasks.kv_cache import KV_CACHE
from qkv_marking.tasks.mask import BATCHED_MASK, MASK
from qkv_marking.tasks.multi_head import HEADS
from qkv_marking.tasks.positions import POSITIONS
from qkv_marking.tasks.self_attention_class.mark_class import SELF_ATTENTION_CLASS
from qkv_marking.tasks.softmax import SOFTMAX
from qkv_marking.tasks.stories import trained, writer
from qkv_marking.tasks.task import Task
from qkv_marking.tasks.values import ADJECTIVES, CALM_QUERY, PROJECTIONS
from qkv_marking.tasks.writing_step import WRITING_STEP

_IN_ORDER = (
    exercises.RECURRENCE_TABLE,
    exercises.SCORE_NEEDED,
    exercises.TO_IDS,
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
    exercises.ROTATION,
    SELF_ATTENTION_CLASS,
    exercises.NEIGHBOUR_SCORE,
    exercises.CLOSENESS,
    BLOCK,
    KV_CACHE,
    DECODER,
    exercises.SOFTMAX_BACK,
    exercises.GRADIENTS,
    ADJECTIVES,
    MENDED,
    CROSS_ATTENTION,
    DECODER_BLOCK,
    WRITING_STEP,
    writer.STORY,
    trained.STORY_MODEL,
    trained.INDUCTION_SCORE,
    trained.INDUCTION_HEAD,
    trained.HEAD_REMOVED,
)
TASKS = {task.name: task for task in _IN_ORDER}

__all__ = ["TASKS", "Task"]
