"""What a model encodes texts with, and any number of them, a part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from qkv.models.routed import RoutedModel
from qkv.models.sentence.encode import OPTIONS, Encoder


class StreamingModel(RoutedModel):
    """What `encode` is made of, and texts for which there is no room at once."""

    def encode_stream(
        self, sentences: Iterable[str], *, show_progress_bar: bool | None = None, **options: Any
    ) -> Iterator[Any]:
        """The same as `encode`, some thousand texts at a time, for more than memory has room for.

        What `encode` does otherwise with `ablate`, `hide` and `edit` is for texts that are all
        there.

        Args:
            sentences: any iterable of texts, read as it goes.
            show_progress_bar: as for `encode`.
            options: the others of `encode`, but for those three.

        Returns:
            An iterator over what `encode` gives for texts that follow each other.

        >>> import qkv
        >>> texts = (f"the cat sat {n} times" for n in range(5000))
        >>> sum(len(vectors) for vectors in qkv.load("random").encode_stream(texts))
        5000
        """
        for name in options:
            if name in ("ablate", "hide", "edit"):
                raise TypeError(
                    f"encode_stream: {name} is for texts that are all there: call encode(texts, "
                    f"{name}=...)"
                )
            if name not in OPTIONS:
                raise TypeError(
                    f"encode_stream: there is no argument {name!r}: there are {', '.join(OPTIONS)}"
                )
        encoder = self.text_encoder(call="encode_stream", **options)
        return encoder.windows(sentences, show_progress_bar)

    def text_encoder(self, *, task: str | None = None, **options: Any) -> Encoder:
        """What `encode` encodes with, for who has texts of several callers run together.

        Args:
            task: as for `encode`.
            options: those of `encode`.
        """
        call = options.get("call", "encode")
        model = self._by_task(task, call)
        return Encoder(
            name=model.name,
            tokenizer=model._need_tokenizer(call),
            sentence=model._sentence,
            limit=model.max_seq_length,
            rows=len(model._body.embedding.table),
            dim=model.dim,
            dtype=model._body.dtype,
            run=model._body.packed,
            head=model._embedder,
            task=task,
            **options,
        )

    @property
    def prompts(self) -> Mapping[str, str]:
        """What may stand before each text, by name, read-only.

        >>> import qkv
        >>> dict(qkv.load("random").prompts)
        {'query': '', 'document': ''}
        """
        return MappingProxyType(dict(self._sentence.prompts))

    def get_embedding_dimension(self) -> int:
        """How many numbers a vector of `encode` has; with several routes, one of the first.

        >>> import qkv
        >>> qkv.load("random").get_embedding_dimension()
        8
        """
        first = next(iter(self.routes.values()), self)
        return first._sentence.width(first._vector_size)

    def get_sentence_embedding_dimension(self) -> int:
        """The old name of `get_embedding_dimension`, which is still much in use.

        >>> import qkv
        >>> qkv.load("random").get_sentence_embedding_dimension()
        8
        """
        return self.get_embedding_dimension()
