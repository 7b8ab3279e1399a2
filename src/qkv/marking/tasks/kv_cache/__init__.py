"""The task `kv-cache`: a step that keeps keys and values, and gives what the whole run gives."""

from qkv.marking.tasks.kv_cache.marker import KV_CACHE

__all__ = ["KV_CACHE"]
