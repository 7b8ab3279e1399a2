"""The task `self-attention-class`: a layer in which every head has weights of its own."""

from qkv.marking.tasks.self_attention_class.marker import SELF_ATTENTION_CLASS

__all__ = ["SELF_ATTENTION_CLASS"]
