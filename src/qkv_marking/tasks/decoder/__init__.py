"""The task `decoder`: compute logits from ids, with weights in the format of Llama's files."""

from qkv_marking.tasks.decoder._steps import small_model

__all__ = ["small_model"]
