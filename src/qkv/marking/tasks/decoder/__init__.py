"""The task `decoder`: compute logits from ids, with weights in the format of Llama's files."""

from qkv.marking.tasks.decoder.marker import DECODER
from qkv.marking.tasks.decoder.steps import small_model

__all__ = ["DECODER", "small_model"]
