"""`TextEncoder`: a qkv model as an embedding function for Chroma.

The class is created on first use, so that Chroma is not imported earlier.
"""

import os
from functools import lru_cache
from typing import Any

import numpy as np

from qkv.files import StrPath
from qkv.models import load


class Encoding:
    """Encodes documents and queries.

    Args:
        model: the argument of `qkv.load`.
        options: the options of `Model.encode`.

    >>> len(Encoding("random", truncate_dim=3).embed_query(["I love you"])[0])
    3
    """

    def __init__(self, model: StrPath | None = None, **options: Any) -> None:
        self._model, self._options = load(model), options
        # Chroma stores this dict as JSON, which has neither paths nor NumPy's numbers.
        given = {"model": model if model is None else os.fspath(model), **options}
        self._config = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}

    def __call__(self, input: list[str]) -> Any:
        """Return one vector, (D,), per document."""
        return list(self._model.encode_document(input, **self._options))

    def embed_query(self, input: list[str]) -> Any:
        """Return one vector, (D,), per query. The model's query prompt precedes each query."""
        return list(self._model.encode_query(input, **self._options))


@lru_cache(1)
def __getattr__(name: str) -> Any:
    if name != "TextEncoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chromadb import EmbeddingFunction
    from chromadb.utils.embedding_functions import register_embedding_function

    members: dict[str, Any] = {"__module__": __name__, "__doc__": Encoding.__doc__}
    members |= {"name": staticmethod(lambda: "qkv"), "default_space": lambda self: "cosine"}
    members["get_config"] = lambda self: self._config  # Chroma stores the result with a collection
    members["build_from_config"] = staticmethod(lambda config: __getattr__(name)(**config))
    return register_embedding_function()(type(name, (Encoding, EmbeddingFunction), members))
