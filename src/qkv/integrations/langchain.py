"""`TextEncoder`: a model of ours as LangChain's `Embeddings`, made when it is asked for."""

from functools import cache
from typing import Any

from qkv.models import load


class Encoding:
    """Vectors of documents and queries; `TextEncoder` is this class on LangChain's.

    Args:
        model: what `qkv.load` takes.
        options: those of `Model.encode`.

    >>> len(Encoding("random", truncate_dim=3).embed_query("I love you"))
    3
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._model, self._options = load(model), options

    def embed_documents(self, texts: list[str]) -> Any:
        """A list of numbers for each document."""
        return self._model.encode_document(texts, **self._options).tolist()

    def embed_query(self, text: str) -> Any:
        """The numbers of a query, behind the model's prompt for such."""
        return self._model.encode_query(text, **self._options).tolist()


@cache
def __getattr__(name: str) -> Any:
    if name != "TextEncoder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from langchain_core.embeddings import Embeddings

    own = {"__module__": __name__, "__doc__": Encoding.__doc__}
    return type(name, (Encoding, Embeddings), own)
