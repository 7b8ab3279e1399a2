"""`TextEncoder`: a model of ours as a transformer of scikit-learn, from texts to vectors.

The class is made when it is first asked for, since it is built on classes of scikit-learn.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np

from qkv.arrays import Array
from qkv.models import Model, load
from qkv.text.tokenizer import check_texts


class Encoding:
    """Texts to vectors, as `encode` makes them, where scikit-learn wants a transformer.

    `TextEncoder`, which is this class on scikit-learn's, learns nothing: `fit` only looks at what
    it is given. It is copied and pickled by its arguments alone; the weights are read where they
    are used, and once for all encoders of a process that name the same model.

    Args:
        model: what `qkv.load` takes: a folder, a short name or an id of the Hub.
        prompt_name: as for `Model.encode`, and so are the others.
        prompt: what goes before each text.
        normalize_embeddings: whether vectors are scaled to length 1.
        truncate_dim: how many numbers of each vector are kept.
        batch_size: how many texts of 128 tokens are run at once.

    >>> encoding = Encoding("random", truncate_dim=3)
    >>> encoding.fit(["I love you"]).transform(["I love you", "the cat sat"]).shape
    (2, 3)
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool | None = None,
        truncate_dim: int | None = None,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.prompt_name, self.prompt = prompt_name, prompt
        self.normalize_embeddings, self.truncate_dim = normalize_embeddings, truncate_dim
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that `X` are texts; nothing is learned.

        Args:
            X: texts, (n,): a list, an array or one column of a table.
            y: not used.

        Raises:
            TypeError: one is not a string.
            ValueError: it is a table, not one column of it.
        """
        _texts(X)
        return self

    def transform(self, X: Any) -> Array:
        """The vectors of texts, (n, D) float32.

        Args:
            X: texts, (n,): a list, an array or one column of a table.

        Raises:
            TypeError: one is not a string.
            ValueError: it is a table, not one column of it; as for `Model.encode`.
        """
        found: Array = self._loaded.encode(
            _texts(X),
            prompt_name=self.prompt_name,
            prompt=self.prompt,
            normalize_embeddings=self.normalize_embeddings,
            truncate_dim=self.truncate_dim,
            batch_size=self.batch_size,
            show_progress_bar=False,
        )
        return found

    @property
    def _loaded(self) -> Model:
        return _load(None if self.model is None else os.fspath(self.model))

    @property
    def _n_features_out(self) -> int:
        """How many numbers a vector has: scikit-learn makes names of it."""
        width = self._loaded.get_embedding_dimension()
        return width if self.truncate_dim is None else self.truncate_dim

    def __sklearn_is_fitted__(self) -> bool:
        """There is nothing to learn first."""
        return True

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may give it: texts, one behind the other, no table of numbers."""
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of scikit-learn's class
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.input_tags.one_d_array, tags.requires_fit = True, False
        return tags


@lru_cache(maxsize=2)
def _load(name: str | None) -> Model:
    """A model that several encoders, and their copies, share."""
    return load(name)


def _texts(X: Any) -> list[str]:
    shape = np.shape(X) if hasattr(X, "shape") else ()
    if len(shape) > 1:
        raise ValueError(f"TextEncoder: X is a table {shape}: give one column of texts, (n,)")
    return check_texts(X, call="TextEncoder")


@cache
def _made() -> type:
    """The class, on those of scikit-learn."""
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

    bases = (Encoding, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator)
    # `set_output` is for methods that a class has itself
    own = {"__module__": __name__, "__doc__": Encoding.__doc__, "transform": Encoding.transform}
    return type("TextEncoder", bases, own)


def __getattr__(name: str) -> Any:
    if name == "TextEncoder":
        return _made()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
