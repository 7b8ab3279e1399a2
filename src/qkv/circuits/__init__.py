"""What researchers ask of a model: which part does what."""

from qkv.circuits.heads import head_scores
from qkv.circuits.lens import logit_lens

__all__ = [
    "head_scores",
    "logit_lens",
]
