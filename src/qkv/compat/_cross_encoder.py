"""`CrossEncoder`, with the same methods as the class in sentence-transformers."""

from typing import Any

from qkv._argument_errors import value_error
from qkv.compat._wrapped import Wrapped
from qkv.models import CrossEncoderModel


class CrossEncoder(Wrapped):
    """A model with the public methods of `sentence_transformers.CrossEncoder`.

    Results are arrays, or torch tensors if a call requests tensors.

    Args:
        model_name_or_path: as in `qkv.load`, or a `qkv.Model`.
        num_labels: the expected number of scores per pair; None to accept any number.
        max_length: the maximum number of tokens in a pair; None for the model's own limit.
        activation_fn: the function that turns logits into scores, as in `qkv.Model.rank`; None for
            the function that the model's files name.
        options: as in `qkv.compat.SentenceTransformer`.

    Raises:
        TypeError: an argument is not supported.
        ValueError: the model does not score pairs, or an argument has the wrong value.
        FileNotFoundError: no such model exists.
    """

    def __init__(
        self,
        model_name_or_path: Any = None,
        *,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(model_name_or_path, **options)
        model = self._model
        if not isinstance(model, CrossEncoderModel):
            raise value_error(f"{model.name} does not score pairs of texts: use a cross-encoder")
        if num_labels not in (None, model.num_labels):
            raise value_error(
                f"num_labels is {num_labels}, but {model.name} has {model.num_labels}: "
                "omit num_labels"
            )
        if max_length is not None:
            self.max_seq_length = max_length
        self.activation_fn = activation_fn

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in a pair."""
        limits = self._model.max_seq_length, self._model.sentence.pair_limit
        return min(filter(None, limits), default=None)

    @max_seq_length.setter
    def max_seq_length(self, limit: int | None) -> None:
        self._model.max_seq_length = limit

    max_length = max_seq_length

    def predict(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        pool: None = None,
        chunk_size: int | None = None,
    ) -> Any:
        """Return the scores of pairs of texts; the arguments are those of sentence-transformers.

        `pool` must be None; `chunk_size` is ignored.
        """
        _check_pool(pool)
        return self._model.predict(
            inputs,
            prompt=self._prompt(prompt, prompt_name),
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            activation_fn=self.activation_fn if activation_fn is None else activation_fn,
            apply_softmax=apply_softmax,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            device=device,
        )

    def rank(
        self,
        query: str,
        documents: Any,
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        device: Any = None,
        pool: None = None,
        chunk_size: int | None = None,
    ) -> Any:
        """Rank documents; the arguments are those of sentence-transformers.

        `pool` must be None; `chunk_size` is ignored.
        """
        _check_pool(pool)
        return self._model.rank(
            query,
            documents,
            top_k,
            return_documents,
            prompt=self._prompt(prompt, prompt_name),
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            activation_fn=self.activation_fn if activation_fn is None else activation_fn,
            device=device,
        )


def _check_pool(pool: Any) -> None:
    if pool is not None:
        raise value_error(
            "`pool` is not supported for pairs: omit it, because one process uses all cores"
        )
