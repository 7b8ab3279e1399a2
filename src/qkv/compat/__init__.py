"""Classes with the same public methods as sentence-transformers, for programs written for it."""

from qkv.compat._cross_encoder import CrossEncoder
from qkv.compat._sentence_transformers import SentenceTransformer

__all__ = ["CrossEncoder", "SentenceTransformer"]
