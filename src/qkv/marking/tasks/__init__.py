"""The tasks by their names, in the order of the course: a module each."""

from qkv.marking.tasks.attention import ATTENTION
from qkv.marking.tasks.block import BLOCK
from qkv.marking.tasks.decoder import DECODER
from qkv.marking.tasks.kv_cache import KV_CACHE
from qkv.marking.tasks.positions import POSITIONS
from qkv.marking.tasks.softmax import SOFTMAX
from qkv.marking.tasks.task import Task

TASKS = {task.name: task for task in (SOFTMAX, ATTENTION, POSITIONS, BLOCK, KV_CACHE, DECODER)}

__all__ = ["TASKS", "Task"]
