"""All tasks, keyed by name, in the order of the course."""

from qkv_marking.tasks import _exercises, _language_model
from qkv_marking.tasks._block import BLOCK
from qkv_marking.tasks._cross_attention import CROSS_ATTENTION
from qkv_marking.tasks._decoder_block import DECODER_BLOCK
from qkv_marking.tasks._kv_cache import KV_CACHE
from qkv_marking.tasks._mask import BATCHED_MASK, MASK
from qkv_marking.tasks._multi_head import HEADS
from qkv_marking.tasks._positions import POSITIONS
from qkv_marking.tasks._softmax import SOFTMAX
from qkv_marking.tasks._task import Task
from qkv_marking.tasks._values import ADJECTIVES, CALM_QUERY, PROJECTIONS
from qkv_marking.tasks._writing_step import WRITING_STEP
from qkv_marking.tasks.attention.attention_tasks import ATTENTION, BATCHED_ATTENTION, MENDED, TILES
from qkv_marking.tasks.decoder._decoder_task import DECODER
from qkv_marking.tasks.self_attention_class._mark_class import SELF_ATTENTION_CLASS
from qkv_marking.tasks.stories import _trained, _writer

_IN_ORDER = (
    _exercises.RECURRENCE_TABLE.task(),
    _exercises.SCORE_NEEDED.task(),
    _exercises.TO_IDS.task(),
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
    _exercises.ROTATION.task(),
    SELF_ATTENTION_CLASS,
    _exercises.NEIGHBOUR_SCORE.task(),
    _exercises.CLOSENESS.task(),
    BLOCK,
    KV_CACHE,
    DECODER,
    _exercises.SOFTMAX_BACK.task(),
    _exercises.GRADIENTS.task(),
    ADJECTIVES,
    MENDED,
    CROSS_ATTENTION,
    DECODER_BLOCK,
    WRITING_STEP,
    _writer.STORY,
    _trained.STORY_MODEL,
    _trained.INDUCTION_SCORE.task(),
    _trained.INDUCTION_HEAD,
    _trained.HEAD_REMOVED,
    _language_model.LOSS.task(),
    _language_model.LEARNING_RATE.task(),
    _language_model.TOP_K.task(),
    _language_model.TOP_P.task(),
)
TASKS = {task.name: task for task in _IN_ORDER}

__all__ = ["TASKS", "Task"]
