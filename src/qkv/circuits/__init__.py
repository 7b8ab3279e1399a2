"""What researchers ask of a model: which part does what."""

from qkv.circuits.heads import head_scores
from qkv.circuits.lens import logit_lens
from qkv.circuits.shares import attribute_logits

__all__ = [
    "attribute_logits",
    "head_scores",
    "logit_lens",
]
