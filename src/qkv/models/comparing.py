"""A model that compares: vectors with each other, and a query with documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import ArrayLike

from qkv.arrays import Array, whole_number
from qkv.models.encoding import EncoderModel
from qkv.models.tasks.rank import Ranker, activation_of, best, need_ranking
from qkv.models.tasks.vectors import similarity, similarity_pairwise
from qkv.progress import progress
from qkv.text.tokenizer import check_text, check_texts


class ComparingModel(EncoderModel):
    """The methods of `Model` that say how alike texts are, or how well one answers another."""

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` compares: "cosine", "dot", "euclidean" or "manhattan", by the files."""
        return self._sentence.similarity

    def similarity(self, a: ArrayLike, b: ArrayLike) -> Array:
        """How alike each vector is to each other: the larger, the more.

        By their cosine, or as the model's files say (`similarity_fn_name`): by their dot product,
        or by the distance between them, negative, Euclidean or the sum of absolute differences.

        Args:
            a: (n, D), or (D,) for one.
            b: (m, D), or (D,) for one.

        Returns:
            (n, m), float32, or float64 where one of them is of that.

        Raises:
            TypeError: they are not of numbers.
            ValueError: they have other shapes.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> vectors = model.encode(["I love you", "the cat sat", "I love you"])
        >>> model.similarity(vectors[0], vectors).round(4)[0, [0, 2]].tolist()
        [1.0, 1.0]
        """
        return similarity(a, b, self._sentence.similarity)

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> Array:
        """How alike each vector is to the one in its place, measured as `similarity` does.

        Args:
            a: (n, D), or (D,) for one.
            b: (n, D), or (D,) for one.

        Returns:
            (n,), float32, or float64 where one of them is of that.

        Raises:
            TypeError: they are not of numbers.
            ValueError: they have other shapes.

        >>> import qkv
        >>> vectors = qkv.load("random").encode(["I love you", "the cat sat"])
        >>> qkv.load("random").similarity_pairwise(vectors, vectors).round(4).tolist()
        [1.0, 1.0]
        """
        return similarity_pairwise(a, b, self._sentence.similarity)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Which documents answer a query best, by a cross-encoder, which reads both together.

        A query and a document that have more tokens than `max_seq_length` together are cut, the
        longer one first.

        Args:
            query: what is looked for.
            documents: what may answer it.
            top_k: how many are wanted; None for all.
            return_documents: whether the documents themselves are wanted too.
            batch_size: how many pairs of 128 tokens are run at once, as for `encode`.
            show_progress_bar: None for one on a terminal if it takes long.

        Returns:
            The best first, those alike in their order: each {"corpus_id": its place among the
            documents, "score": what the model gives the pair}, and "text" where it is wanted. A
            score goes through a sigmoid, or what the model's files say.

        Raises:
            TypeError: a text is not a string.
            ValueError: the model does not rank, the query has no token, or an argument makes no
                sense.

        Source:
            Nogueira and Cho 2019, "Passage Re-ranking with BERT".

        >>> import qkv
        >>> qkv.load("random").rank("a river", ["the bank", "the sun"])
        Traceback (most recent call last):
        ValueError: rank: random has no head and does not rank: ...
        """
        ranker = self.ranker()
        check_text(query, call="rank", name="query")
        texts = check_texts(documents, call="rank")
        batch_size = whole_number(batch_size, call="rank", name="batch_size", least=1)
        if top_k is not None:
            top_k = whole_number(top_k, call="rank", name="top_k", least=1)
        pairs = ranker.pairs(query, texts)
        with progress("rank", len(pairs), show_progress_bar) as advance:
            scores = ranker.all(pairs, batch_size, advance)
        ranker.warn(pairs)
        return best(scores, texts, top_k, return_documents)

    def ranker(self) -> Ranker:
        """What `rank` scores with, for who has documents of several callers to rank.

        Raises:
            ValueError: the model does not rank, or has no tokenizer.
        """
        head = need_ranking(self._head, self.name)
        kinds = self._body.embedding.token_types
        apart = kinds is not None and len(kinds) > 1 and self._sentence.tells_texts_apart
        limits = filter(None, (self.max_seq_length, self._sentence.pair_limit))
        return Ranker(
            name=self.name,
            tokenizer=self._need_tokenizer("rank"),
            sentence=self._sentence,
            limit=min(limits, default=None),
            run=self._body.packed,
            head=head,
            tells_texts_apart=apart,
            activation=activation_of(self._sentence, self.config, self.name),
        )
