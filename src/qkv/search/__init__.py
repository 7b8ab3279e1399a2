"""Search vectors of texts, like `sentence_transformers.util.semantic_search`."""

from qkv.search._search import semantic_search

__all__ = ["semantic_search"]
