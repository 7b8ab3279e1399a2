"""Attention and encoding on a Dask cluster, for data that does not fit in one process."""

from qkv.scale.encoding import encode
from qkv.scale.forward import attention
from qkv.scale.head_sums import head_scores

__all__ = ["attention", "encode", "head_scores"]
