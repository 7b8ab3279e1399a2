"""The task `self-attention-class`: a layer with weights of its own for every head."""

from qkv.marking.tasks.self_attention_class.marker import SELF_ATTENTION_CLASS

__all__ = ["SELF_ATTENTION_CLASS"]
