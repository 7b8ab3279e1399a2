"""`SentenceTransformer`, with the same methods as the class in sentence-transformers."""

# BERTopic and KeyBERT accept a model if its class's name contains "sentence_transformers". The
# class's name includes this file's name. They would load a different model from the Hub otherwise.

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from qkv._argument_errors import value_error
from qkv.arrays import Array
from qkv.compat._wrapped import Wrapped
from qkv.models.sentence import vectors

_MEASURES = ("cosine", "dot", "euclidean", "manhattan")


class SentenceTransformer(Wrapped):
    """A model with the public methods of `sentence_transformers.SentenceTransformer`.

    Results are arrays, or torch tensors if a call requests tensors.

    Args:
        model_name_or_path: as in `qkv.load`, or a `qkv.Model`.
        similarity_fn_name: "cosine", "dot", "euclidean" or "manhattan"; None for the measure that
            the model's files name.
        truncate_dim: the number of leading dimensions of each vector to keep; None keeps all.
        options: `device`, `prompts`, `default_prompt_name`, `revision` and `model_kwargs` have the
            same meaning as in sentence-transformers. Arguments that do not change the results, such
            as `token`, are ignored.

    Raises:
        TypeError: an argument is not supported.
        ValueError: an argument has an invalid value.
        FileNotFoundError: no such model exists.

    >>> model = SentenceTransformer("random", device="cpu", truncate_dim=3)
    >>> model.encode(["a cat", "a dog"]).shape, model.similarity([1.0, 0.0], [[0.0, 1.0]]).tolist()
    ((2, 3), [[0.0]])
    """

    def __init__(
        self,
        model_name_or_path: Any = None,
        *,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model_name_or_path, **options)
        self.similarity_fn_name = similarity_fn_name
        self.truncate_dim = truncate_dim

    @property
    def similarity_fn_name(self) -> str:
        """The measure of `similarity`."""
        return self._measure or self._model.similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str | None) -> None:
        if name is not None and name not in _MEASURES:
            raise value_error(f"similarity_fn_name is {name!r}: choose {', '.join(_MEASURES)}")
        self._measure = name

    def encode(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: Any = None,
        chunk_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Return a vector for each text; the arguments are those of sentence-transformers.

        `options` are further arguments of `qkv.Model.encode`.
        """
        return self._model.encode(
            inputs,
            prompt=self._prompt(prompt, prompt_name),
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            output_value=output_value,
            precision=precision,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            device=device,
            normalize_embeddings=normalize_embeddings or None,
            truncate_dim=self.truncate_dim if truncate_dim is None else truncate_dim,
            pool=pool,
            chunk_size=chunk_size,
            **options,
        )

    def encode_query(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Encode queries; by default, with the prompt "query"."""
        name = self._name_of(prompt, prompt_name, "query")
        return self.encode(inputs, name, prompt, *args, task="query", **options)

    def encode_document(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Encode documents; by default, with the prompt "document", "passage" or "corpus"."""
        name = self._name_of(prompt, prompt_name, "document", "passage", "corpus")
        return self.encode(inputs, name, prompt, *args, task="document", **options)

    def _name_of(self, prompt: str | None, name: str | None, *names: str) -> str | None:
        if name is None and prompt is None:
            name = next((known for known in names if known in self.prompts), None)
        return name

    def encode_multi_process(
        self,
        sentences: Any,
        pool: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        chunk_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Encode texts in the processes of a pool."""
        return self.encode(
            sentences,
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            precision=precision,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            pool=pool,
            chunk_size=chunk_size,
        )

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of each pair of vectors from the two arguments, (n, m)."""
        found = vectors.similarity(embeddings1, embeddings2, self.similarity_fn_name)
        return vectors.as_given(found, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of the vectors at the same index, (n,)."""
        found = vectors.similarity_pairwise(embeddings1, embeddings2, self.similarity_fn_name)
        return vectors.as_given(found, embeddings1, embeddings2)

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of a vector."""
        return self.truncate_dim or self._model.get_embedding_dimension()

    get_sentence_embedding_dimension = get_embedding_dimension

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within a `with` block, truncate the vectors that `encode` returns."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

    def tokenize(self, texts: list[str], **_: Any) -> dict[str, Array]:
        """Return the ids of texts, truncated and padded, and a mask of the tokens, both (n, T)."""
        rows = self._model.text_encoder(prompt="").ids(texts)
        shape = len(rows), max(map(len, rows), default=0)
        batch = {
            "input_ids": np.zeros(shape, np.int64),
            "attention_mask": np.zeros(shape, np.int64),
        }
        for number, ids in enumerate(rows):
            batch["input_ids"][number, : len(ids)] = ids
            batch["attention_mask"][number, : len(ids)] = 1
        return batch
