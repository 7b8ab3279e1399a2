"""qkv inside the models of other libraries."""

from qkv.integrations import transformers

__all__ = ["transformers"]
