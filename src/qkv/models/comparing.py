"""A model that compares: vectors with each other, and a query with documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import ArrayLike

from qkv.arrays import whole_number
from qkv.models.encoding import EncoderModel
from qkv.models.network.head import BuiltHead
from qkv.models.run.inputs import check_device
from qkv.models.sentence.activation import Activation, activation_of, given_activation
from qkv.models.sentence.prompt import chosen_prompt
from qkv.models.sentence.rank import Ranker, best, need_ranking
from qkv.models.sentence.vectors import as_given, similarity, similarity_pairwise
from qkv.progress import progress
from qkv.text.tokenizer import check_text, check_texts


class ComparingModel(EncoderModel):
    """The methods of `Model` that say how alike texts are, or how well one answers another."""

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` compares: "cosine", "dot", "euclidean" or "manhattan", by the files."""
        return self._sentence.similarity

    def similarity(self, a: ArrayLike, b: ArrayLike) -> Any:
        """How alike each vector is to each other: the larger, the more.

        By their cosine, or as the model's files say (`similarity_fn_name`): by their dot product,
        or by the distance between them, negative, Euclidean or the sum of absolute differences.

        Args:
            a: (n, D), or (D,) for one.
            b: (m, D), or (D,) for one.

        Returns:
            (n, m), float32, or float64 where one of them is of that; a tensor of torch where
            one of them is one.

        Raises:
            TypeError: they are not of numbers.
            ValueError: they have other shapes.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> vectors = model.encode(["I love you", "the cat sat", "I love you"])
        >>> model.similarity(vectors[0], vectors).round(4)[0, [0, 2]].tolist()
        [1.0, 1.0]
        """
        return as_given(similarity(a, b, self._sentence.similarity), a, b)

    def similarity_pairwise(self, a: ArrayLike, b: ArrayLike) -> Any:
        """How alike each vector is to the one in its place, measured as `similarity` does.

        Args:
            a: (n, D), or (D,) for one.
            b: (n, D), or (D,) for one.

        Returns:
            (n,), float32, or float64 where one of them is of that; a tensor of torch where
            one of them is one.

        Raises:
            TypeError: they are not of numbers.
            ValueError: they have other shapes.

        >>> import qkv
        >>> vectors = qkv.load("random").encode(["I love you", "the cat sat"])
        >>> qkv.load("random").similarity_pairwise(vectors, vectors).round(4).tolist()
        [1.0, 1.0]
        """
        return as_given(similarity_pairwise(a, b, self._sentence.similarity), a, b)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        device: Any = None,
    ) -> list[dict[str, Any]]:
        """Which documents answer a query best, by a cross-encoder, which reads both together.

        A query and a document that have more tokens than `max_seq_length` together are cut, the
        longer one first.

        Args:
            query: what is looked for.
            documents: what may answer it.
            top_k: how many are wanted; None for all.
            return_documents: whether the documents themselves are wanted too.
            prompt_name: which prompt goes before the query, as for `encode`.
            prompt: what goes before it, in place of those.
            batch_size: how many pairs of 128 tokens are run at once, as for `encode`.
            show_progress_bar: None for one on a terminal if it takes long.
            activation_fn: what the logits go through: a function of an array, or one of torch.nn's
                activations; None for what the model's files say, or a sigmoid.
            device: None or "cpu".

        Returns:
            The best first, those alike in their order: each {"corpus_id": its place among the
            documents, "score": what the model gives the pair}, and "text" where it is wanted.

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
        check_device(device, "rank")
        ranker = self.ranker(prompt_name, prompt, activation_fn)
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

    def ranker(
        self, prompt_name: str | None = None, prompt: str | None = None, activation_fn: Any = None
    ) -> Ranker:
        """What `rank` scores with, for who has documents of several callers to rank.

        Args:
            prompt_name: as for `rank`, and so are the others.
            prompt: the same.
            activation_fn: the same.

        Raises:
            TypeError: as for `rank`.
            ValueError: the model does not rank, or has no tokenizer; as for `rank`.
        """
        head = need_ranking(self._head, self.name)
        return self._scorer(head, "rank", prompt_name, prompt, activation_fn)

    def _scorer(
        self,
        head: BuiltHead,
        call: str,
        prompt_name: str | None,
        prompt: str | None,
        activation_fn: Any,
    ) -> Ranker:
        """What pairs of texts are scored with, by a head for one class or for several."""
        kinds = self._body.embedding.token_types
        apart = kinds is not None and len(kinds) > 1 and self._sentence.tells_texts_apart
        limits = filter(None, (self.max_seq_length, self._sentence.pair_limit))
        activation: Activation
        if activation_fn is None:
            classes = head.steps.outputs
            activation = activation_of(self._sentence, self.config, self.name, classes, call)
        else:
            activation = given_activation(activation_fn, call)
        return Ranker(
            call=call,
            name=self.name,
            tokenizer=self._need_tokenizer(call),
            sentence=self._sentence,
            before=chosen_prompt(self._sentence, prompt, prompt_name, name=self.name, call=call),
            limit=min(limits, default=None),
            run=self._body.packed,
            head=head,
            tells_texts_apart=apart,
            activation=activation,
        )
