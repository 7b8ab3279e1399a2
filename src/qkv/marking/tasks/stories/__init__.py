"""The tasks of lesson 12: write stories, train a decoder, and find its induction head."""

from qkv.marking.tasks.stories.removal import HEAD_REMOVED
from qkv.marking.tasks.stories.trained import INDUCTION_HEAD, INDUCTION_SCORE, STORY_MODEL
from qkv.marking.tasks.stories.writer import STORY

__all__ = ["HEAD_REMOVED", "INDUCTION_HEAD", "INDUCTION_SCORE", "STORY", "STORY_MODEL"]
