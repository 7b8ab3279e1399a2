"""The task `decoder`: ids to logits with the weights of a file, as Llama has them."""

from qkv.marking.tasks.decoder.marker import DECODER
from qkv.marking.tasks.decoder.steps import small_model

__all__ = ["DECODER", "small_model"]
