"""Search, pair and group vectors of texts, like the functions of `sentence_transformers.util`."""

from qkv.search._search import (
    community_detection,
    cos_sim,
    dot_score,
    paraphrase_mining,
    paraphrase_mining_embeddings,
    semantic_search,
)

__all__ = [
    "community_detection",
    "cos_sim",
    "dot_score",
    "paraphrase_mining",
    "paraphrase_mining_embeddings",
    "semantic_search",
]
