"""qkv in other libraries: transformers, scikit-learn, LangChain and Chroma."""

from qkv.integrations import transformers

__all__ = ["transformers"]
