"""Attention and encoding on a Dask cluster, for data that does not fit in one process."""

from qkv.scale._forward import attention
from qkv.scale._head_sums import head_scores
from qkv.scale.encoding import encode

__all__ = ["attention", "encode", "head_scores"]
