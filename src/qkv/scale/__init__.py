"""More texts, more tokens and more machines than one process has, on Dask."""

from qkv.scale.encoding import encode
from qkv.scale.forward import attention
from qkv.scale.head_sums import head_scores

__all__ = ["attention", "encode", "head_scores"]
