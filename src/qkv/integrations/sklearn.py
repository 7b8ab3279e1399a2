"""`TextEncoder`: a scikit-learn transformer that encodes texts as vectors with a qkv model.

The class is created on first use, so that scikit-learn is not imported earlier.
"""

import os
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array
from qkv.files import StrPath
from qkv.models import Model, load
from qkv.text.tokenizer import check_texts


class Encoding:
    """A scikit-learn transformer that encodes texts as vectors, like `Model.encode`.

    `TextEncoder` inherits from this class and from scikit-learn's base classes. `fit` only checks
    its input and learns nothing. A copy or a pickle of an encoder contains only the encoder's
    arguments. The model is loaded on first use. In one process, encoders with the same `model` load
    the model once.

    Args:
        model: the argument of `qkv.load` (a folder, a short name or a Hub id).
        prompt_name: the name of a prompt. All arguments except `model` are options of
            `Model.encode`.
        prompt: a string that is inserted before each text.
        normalize_embeddings: whether vectors are scaled to length 1.
        truncate_dim: the number of dimensions to which vectors are truncated.
        batch_size: a batch has at most `128 * batch_size` tokens, so it holds `batch_size` texts of
            128 tokens, more texts if they are shorter, and fewer texts if they are longer. A text
            with more than `128 * batch_size` tokens runs alone.

    >>> encoding = Encoding("random", truncate_dim=3)
    >>> encoding.fit(["I love you"]).transform(["I love you", "the cat sat"]).shape
    (2, 3)
    """

    def __init__(
        self,
        model: StrPath | None = None,
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

    @public_call("TextEncoder")
    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that `X` contains texts, and learn nothing.

        Args:
            X: texts (n,), as a list, an array or one column of a table.
            y: not used.

        Raises:
            TypeError: a text is not a string.
            ValueError: `X` is a table with several columns.
        """
        _texts(X)
        return self

    @public_call("TextEncoder")
    def transform(self, X: Any) -> Array:
        """Return the vectors of texts, (n, D) float32.

        Args:
            X: texts (n,), as a list, an array or one column of a table.

        Raises:
            TypeError: a text is not a string.
            ValueError: `X` is a table with several columns, or `Model.encode` rejects an option.
        """
        names = ("prompt_name", "prompt", "normalize_embeddings", "truncate_dim", "batch_size")
        options = {name: getattr(self, name) for name in names}
        vectors: Array = self._loaded.encode(_texts(X), **options, show_progress_bar=False)
        return vectors

    @property
    def _loaded(self) -> Model:
        return _load(None if self.model is None else os.fspath(self.model))

    @property
    def _n_features_out(self) -> int:
        """The size of a vector; scikit-learn reads it to name the columns."""
        width = self._loaded.get_embedding_dimension()
        return width if self.truncate_dim is None else self.truncate_dim

    def __sklearn_is_fitted__(self) -> bool:
        """Return True, because an encoder does not need fitting."""
        return True

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: the input is a list of texts, not a table of numbers."""
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # scikit-learn's base class has this method
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.input_tags.one_d_array, tags.requires_fit = True, False
        return tags


@lru_cache(maxsize=2)
def _load(name: str | None) -> Model:
    """Load a model, or return the loaded model that another encoder uses."""
    return load(name)


def _texts(X: Any) -> list[str]:
    shape = np.shape(X) if hasattr(X, "shape") else ()
    if len(shape) > 1:
        raise ValueError(f"TextEncoder: X is a table {shape}; pass one column of texts, (n,)")
    return check_texts(X)


@cache
def _make_class() -> type:
    """Return the class `TextEncoder` with scikit-learn's base classes."""
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

    bases = (Encoding, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator)
    # scikit-learn's `set_output` wraps only methods that the class itself defines
    members = {"__module__": __name__, "__doc__": Encoding.__doc__, "transform": Encoding.transform}
    return type("TextEncoder", bases, members)


def __getattr__(name: str) -> Any:
    if name == "TextEncoder":
        return _make_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
