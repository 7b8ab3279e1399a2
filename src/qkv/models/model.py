"""`Model`, the class with all methods of a model, and its subclasses."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from qkv.models._model_base import ModelBase
from qkv.models.sentence.encode import (
    encode,
    encode_document,
    encode_query,
    encode_stream,
    text_encoder,
)
from qkv.models.sentence.rank import rank, ranker, similarity, similarity_pairwise
from qkv.models.tasks import chat, head_weights
from qkv.models.tasks.call import call, call_pair, run_layers
from qkv.models.tasks.generate import generate, rows, steps
from qkv.models.tasks.gradient import gradient
from qkv.models.tasks.predict import blanks, guesses, losses, predict, unembed
from qkv.models.tasks.tracing import trace, trace_pair, trace_stream


class Model(ModelBase):
    """A model, as returned by `qkv.load`.

    Attributes:
        config: the contents of the model's config.json.
        design: the sizes and options of the network.
        kind: the kind of model, such as "masked LM", "decoder", "cross-encoder" or "dual encoder".
        reader: converts texts to the tokens that the network processes.
        eos_ids: the ids of the tokens that end a generated text.
        conversation: the key/value caches of the last `chat`; assign None to free their memory.
        penalties: the rules of generation_config.json that change the logits of the next token.
        routing: the choice of a route for a task, read from the model's files.
        notices: the texts of the licence and other documents in the model's folder, keyed by file
            name.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> model.trace("The cat sat on the mat.")["pattern", 0].shape
    (1, 2, 7, 7)
    >>> model.encode(["The cat sat.", "I love you today."]).shape
    (2, 8)
    """

    __call__ = call
    trace = trace
    trace_stream = trace_stream
    run_layers = run_layers
    gradient = gradient
    head_weights = head_weights

    predict = predict
    losses = losses
    unembed = unembed
    blanks = blanks
    guesses = guesses

    generate = generate
    chat = chat
    rows = rows
    steps = steps

    encode = encode
    encode_query = encode_query
    encode_document = encode_document
    encode_stream = encode_stream
    text_encoder = text_encoder

    similarity = similarity
    similarity_pairwise = similarity_pairwise
    rank = rank
    ranker = ranker

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts that `encode` can put before a text, keyed by name; read-only.

        >>> import qkv
        >>> dict(qkv.load("random").prompts)
        {'query': '', 'document': ''}
        """
        return MappingProxyType(dict(self.sentence.prompts))

    @property
    def similarity_fn_name(self) -> str:
        """The measure of `similarity`: "cosine", "dot", "euclidean" or "manhattan"."""
        return self.sentence.similarity

    def get_embedding_dimension(self) -> int:
        """Return the size of the vectors from `encode`.

        If the model has several routes, return the size of the first route's vectors.

        >>> import qkv
        >>> qkv.load("random").get_embedding_dimension()
        8
        """
        first = next(iter(self.routes.values()), self)
        return first.sentence.width(first.vector_size)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the result of `get_embedding_dimension()`.

        The old name `get_sentence_embedding_dimension` is still widely used.

        >>> import qkv
        >>> qkv.load("random").get_sentence_embedding_dimension()
        8
        """
        return self.get_embedding_dimension()

    def why(self, text: str, **options: Any) -> Any:
        """Return `qkv.why(text, self, **options)`: what the model's guess loses without each word.

        >>> import qkv
        >>> found = qkv.load().why("The sun rises in the [MASK].")
        >>> len(found.words), found.effects.shape
        (6, (6,))
        """
        return import_module("qkv.see").why(text, self, **options)

    def pieces(self, word: str) -> list[list[str]]:
        """Return `subwords(word)`; `pieces` is the old name of `subwords`."""
        return self.subwords(word)


class Seq2SeqModel(Model):
    """An encoder-decoder model, which reads one text and writes another.

    The methods of `Model` use the encoder: `encode` pools the encoder's vectors, and `trace` shows
    only the encoder unless `target` is given. `num_layers` and `num_heads` describe the encoder.
    `generate` returns the text that the decoder writes.
    """

    __call__ = call_pair  # Takes ids for the encoder and for the decoder.
    trace = trace_pair  # If `target` is given, `trace` also traces the decoder.


def handed_on(model: Model, layer: int) -> list[tuple[str, int]]:
    """Return the activations of a trace that hold a layer's output, as pairs (name, layer)."""
    name = "normalized_resid_post" if model.layers[layer].post_norm else "resid_post"
    return [(name, layer), ("resid_pre", layer + 1)][: 1 + (layer + 1 < model.num_layers)]
