"""`TextEncoder`: a qkv model as LangChain's `Embeddings`; the class is created on first use."""

from functools import lru_cache
from typing import Any

from qkv.files import StrPath
from qkv.models import load


class Encoding:
    """Encodes documents and queries. `TextEncoder` inherits from `Encoding` and `Embeddings`.

    Args:
        model: the argument of `qkv.load`.
        options: the options of `Model.encode`.

    >>> len(Encoding("random", truncate_dim=3).embed_query("I love you"))
    3
    """

    def __init__(self, model: StrPath | None = None, **options: Any) -> None:
        self._model, self._options = load(model), options

    def embed_documents(self, texts: list[str]) -> Any:
        """Return one vector per document, each as a list of numbers."""
        return self._model.encode_document(texts, **self._options).tolist()

    def embed_query(self, text: str) -> Any:
        """Return the vector of a query. The model's query prompt precedes the query."""
        return self._model.encode_query(text, **self._options).tolist()


@lru_cache(1)
def __getattr__(name: str) -> Any:
    if name != "TextEncoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from langchain_core.embeddings import Embeddings

    members = {"__module__": __name__, "__doc__": Encoding.__doc__}
    return type(name, (Encoding, Embeddings), members)
