"""The tasks by their names, in the order of the course: a module each."""

from qkv.marking.tasks.attention import ATTENTION
from qkv.marking.tasks.block import BLOCK
from qkv.marking.tasks.decoder import DECODER
from qkv.marking.tasks.heads import HEADS
from qkv.marking.tasks.kv_cache import KV_CACHE
from qkv.marking.tasks.mask import MASK
from qkv.marking.tasks.positions import POSITIONS
from qkv.marking.tasks.self_attention_class import SELF_ATTENTION_CLASS
from qkv.marking.tasks.softmax import SOFTMAX
from qkv.marking.tasks.task import Task

_IN_ORDER = (
    SOFTMAX,
    ATTENTION,
    MASK,
    HEADS,
    POSITIONS,
    SELF_ATTENTION_CLASS,
    BLOCK,
    KV_CACHE,
    DECODER,
)
TASKS = {task.name: task for task in _IN_ORDER}

__all__ = ["TASKS", "Task"]
