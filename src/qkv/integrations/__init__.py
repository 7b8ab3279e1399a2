"""qkv in other libraries: the attention of transformers models."""

from qkv.integrations import transformers

__all__ = ["transformers"]
