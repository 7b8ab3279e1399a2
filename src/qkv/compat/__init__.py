"""Classes with the public methods of sentence-transformers, for programs that use them."""

from qkv.compat._cross_encoder import CrossEncoder
from qkv.compat._sentence_transformer import SentenceTransformer

__all__ = ["CrossEncoder", "SentenceTransformer"]
