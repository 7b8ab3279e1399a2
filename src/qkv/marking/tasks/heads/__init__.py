"""The task `heads`: attention in several heads, split, joined and projected."""

from qkv.marking.tasks.heads.marker import HEADS

__all__ = ["HEADS"]
