"""`ModelBase`, the base class of all models: a tokenizer and a network."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from qkv._argument_errors import add_name, invalid, public_call, type_error, value_error
from qkv._suggest import nearest, suggestion
from qkv._visible import visible
from qkv.arrays import (
    Array,
    ArrayLike,
    DType,
    as_array,
    compute_type,
    float_type,
    is_float,
    quote,
    whole_number,
)
from qkv.edits import Edits
from qkv.files import StrPath
from qkv.layers import Block
from qkv.layers.experts import Routed
from qkv.models._kinds import can, cannot, does, kind_of
from qkv.models._other_libraries import ATTRIBUTES
from qkv.models.files import Penalties, Routing, Tensors, sampling_of, save_model, storage_type
from qkv.models.files.names import Storage
from qkv.models.files.read import GENERATION, ModelError, is_whole
from qkv.models.files.sentence import Sentence
from qkv.models.network import Embedding, EncoderDecoder, PatchEmbedding
from qkv.models.network.batch import Batch
from qkv.models.network.design import AnyDesign
from qkv.models.network.head import BuiltHead
from qkv.models.network.transformer import Transformer
from qkv.models.run.batches import parts
from qkv.models.run.check_edits import CheckedEdits, fit, plain
from qkv.models.run.edited_run import EditedRun
from qkv.models.run.text_reader import TextReader, check_tokenizer, end_ids
from qkv.ops import LazyMatrix, like_weight
from qkv.ops.packing import frozen, pack_in_advance
from qkv.text import Tokenized, Tokenizer

# Decoding steps multiply these matrices at once, so they are packed side by side.
_BESIDE = {"q": ("k", "v"), "gate": ("up",)}


class Parameters(MutableMapping[str, Array]):
    """A model's arrays, keyed by name.

    The arrays are read-only: the model prepares them for matrix products only once, so it would not
    notice a change in place. To change an array, assign another array:
    `model.parameters[name] = array`.

    Args:
        arrays: the arrays, keyed by name; they must be read-only.
        changed: a function that is called after each change.

    >>> import numpy as np, qkv
    >>> model = qkv.load("random")
    >>> weight = model.parameters["blocks.0.attn.out_proj.weight"].copy()
    >>> weight[:4] = 0  # the rows of head 0
    >>> model.parameters["blocks.0.attn.out_proj.weight"] = weight
    """

    def __init__(self, arrays: MutableMapping[str, Array], changed: Callable[[], None]) -> None:
        self._arrays, self._changed = arrays, changed

    def __getitem__(self, name: str) -> Array:
        array = self._arrays[name]
        return frozen(array.read()) if isinstance(array, LazyMatrix) else array

    @public_call("parameters")
    def __setitem__(self, name: str, value: ArrayLike) -> None:
        """Replace an array with a copy of `value`; the type of the array does not change.

        Raises:
            KeyError: the parameter does not exist; the message suggests similar names.
            TypeError: `value` does not hold floats.
            ValueError: `value` has a different shape.
        """
        if name not in self._arrays:
            near = suggestion(nearest(name, self._arrays), self._arrays)
            raise invalid(KeyError, f"unknown name {name!r}: {near}")
        array, old = as_array(value, name=name), self._arrays[name]
        if not is_float(array.dtype):
            raise type_error(f"{name} is {array.dtype}: assign an array of floats")
        if array.shape != old.shape:
            raise value_error(
                f"{name} has shape {array.shape}, but must have {old.shape}, "
                "the shape of the old array"
            )
        self._arrays[name] = like_weight(frozen(array.astype(old.dtype)), old)
        self._changed()

    @public_call("parameters")
    def __delitem__(self, name: str) -> NoReturn:
        raise type_error(f"{name} cannot be deleted: assign another array instead")

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


# attributes that `__init__` sets
_SET = {"name", "config", "tokenizer", "design", "kind", "reader"} | {
    *("eos_ids", "notices", "penalties", "routing")
}


class ModelBase:
    """The base class of all models: `read` makes batches, and `network.run` runs them.

    `Model` describes the attributes.
    """

    conversation: Any = None  # `chat` takes a model's own value out of the model, and puts it back

    def __init__(
        self,
        *,
        name: str,
        config: dict[str, Any],
        design: AnyDesign,
        weights: Storage,
        tokenizer: Tokenizer | None = None,
        sentence: Sentence | None = None,
        generation: Mapping[str, Any] | None = None,
        notices: Mapping[str, str] | None = None,
    ) -> None:
        self.config, self.design, self.kind = config, design, kind_of(design)
        for key, array in weights.parameters.items():
            weights.parameters[key] = frozen(array)
        self._weights, self.notices = weights, dict(notices or {})
        self._cache_dtype: DType | None = None
        self._generation = dict(generation or {})
        # the other JSON files in the model's folder, by file name; None if a file is missing
        self._json_files: dict[str, Any] = {GENERATION: self._generation or None}
        self.routing, self._route, self._others = Routing({"": ()}), "", dict[str, Self]()
        self.reader = self._new_reader(name, tokenizer, sentence or Sentence())
        self._build()
        self.sentence.width(self.vector_size)  # raises an error unless the modules' sizes match
        # without a position table, a file may set a limit above the number of positions
        passes = self.sentence.passes_positions
        most = self.network.embedding.max_positions if passes else design.max_seq_length
        limits = filter(None, (most, self.sentence.max_seq_length))
        self.reader = replace(
            self.reader,
            limit=min(limits, default=None),
            rows=len(self.network.embedding.table),
            fills_gaps=self.can("predict") and not self.generates,
        )
        self.eos_ids = end_ids(config, self._generation, name)
        rules = self._generation if self.generates else {}
        self.penalties = Penalties.read(rules, f"{GENERATION} of {name}", self.eos_ids)
        if tokenizer is not None:
            for limit in (self.max_seq_length, *self.sentence.task_limits.values()):
                check_tokenizer(tokenizer, self.reader.rows, limit, name)

    @public_call("model")
    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; in qkv's own classes, raise an error if the name is unknown."""
        is_known = name in _SET or name.startswith("_") or hasattr(type(self), name)
        if not is_known and type(self).__module__.startswith("qkv."):
            near = nearest(name, (known for known in dir(self) if not known.startswith("_")))
            way_out = f": {suggestion(near, ())}" if near else ""
            raise invalid(AttributeError, f"unknown attribute {name!r}{way_out}")
        object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # if type checkers saw `__getattr__`, they would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError, with advice if the name comes from another library."""
            about = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(
                f"{about}: {ATTRIBUTES[name]}" if name in ATTRIBUTES else about, name=name, obj=self
            )

    def __repr__(self) -> str:
        name, kind = visible(self.name), self.config.get("model_type")
        routes = f", routes {', '.join(self.routing.ways)}" if self.routing.is_choice else ""
        return (
            f"<Model {name}: {kind}, {self.num_layers} layers, {self.num_heads} heads, "
            f"vectors of {self.dim}{routes}>"
        )

    def _new_reader(self, name: str, tokenizer: Any, sentence: Sentence) -> TextReader:
        """Return the reader, which converts the model's inputs to batches."""
        return TextReader(name, tokenizer, sentence)

    def _build(self) -> None:
        """Build the network from the parameters; this runs again after the parameters change."""
        self._network = self.design.build(self._weights.parameters)
        if isinstance(self._network, EncoderDecoder):
            first = self._generation.get("decoder_start_token_id")
            first = self._network.first if first is None else first
            rows = len(self._network.embedding.table)
            if not is_whole(first) or not 0 <= first < rows:
                raise invalid(
                    ModelError,
                    f"decoder_start_token_id of {self.name} is {first!r:.40}: it must be the "
                    f"id of a token, 0 to {rows - 1}",
                )
            self._network.first = first

    def prepare(self) -> None:
        """Pack the matrices for the kernel before the first request, and release the files' pages.

        The system reads pages of a file again if their values are needed.
        """
        arrays, network = self._weights.parameters, self.network
        groups = [[array] for array in ({} if self.head is None else self.head.parameters).values()]
        for name, array in arrays.items():
            if name.endswith("_proj.weight") and not name.endswith("router_proj.weight"):
                block, _, part = name.removesuffix("_proj.weight").rpartition(".")
                others = (f"{block}.{other}_proj.weight" for other in _BESIDE.get(part, ()))
                groups.append([array, *(arrays[other] for other in others if other in arrays)])
        mixtures = [layer.mlp for layer in network.layers if isinstance(layer.mlp, Routed)]
        groups += [[array] for mixture in mixtures for array in mixture.matrices()]
        for group in groups:
            if all(array.ndim == 2 for array in group):
                pack_in_advance(group, group[0].dtype)
        # routers and patches are computed in float32
        wide = [mixture.parameters["router_proj.weight"] for mixture in mixtures]
        if isinstance(network.embedding, PatchEmbedding):
            wide.append(network.embedding.weight)
        for array in wide:
            pack_in_advance([array], compute_type(array.dtype))
        if isinstance(self._weights.stored, Tensors):
            self._weights.stored.release()

    def _rebuild(self) -> None:
        """Rebuild the network after its parameters change, and discard the stored digest."""
        self._weights = replace(self._weights, stored=None)
        self._build()

    @property
    def network(self) -> Transformer:
        """The network.

        In an encoder-decoder model, this network is the encoder, and the decoder is
        `network.decoder`.
        """
        return self._network

    @property
    def name(self) -> str:
        """The name under which the model was loaded."""
        return self.reader.name

    @name.setter
    def name(self, name: str) -> None:
        self.reader = replace(self.reader, name=name)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the model's folder has no tokenizer.json."""
        return self.reader.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self.reader = replace(self.reader, tokenizer=tokenizer)

    @property
    def sentence(self) -> Sentence:
        """The settings for texts, read from the model's files: prompts, lower case, pooling, ..."""
        return self.reader.sentence

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens in a text, including special tokens; None for no limit.

        You can set this attribute, up to the model's number of positions. If the model has several
        routes (e.g. for queries and for documents), the new limit applies to all of them.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> model.max_seq_length = 3
        >>> model.max_seq_length
        3
        """
        return self.reader.limit

    @max_seq_length.setter
    @public_call("model")
    def max_seq_length(self, limit: int | None) -> None:
        checked = [(model, model._checked_limit(limit)) for model in self.all_routes()]
        for model, number in checked:
            model.reader = replace(model.reader, limit=number)

    @property
    def cache_dtype(self) -> DType | None:
        """The dtype of the key/value caches of `generate` and `chat`; None for the keys' own dtype.

        You can set this attribute: with float16 or bfloat16, a cache takes half the memory of
        float32. Traces and gradients do not change. An edit reads keys and values before they are
        rounded.

        >>> import qkv
        >>> model = qkv.load("books-decoder")
        >>> model.cache_dtype = "bfloat16"
        >>> model.cache_dtype
        dtype(bfloat16)
        """
        return self._cache_dtype

    @cache_dtype.setter
    @public_call("model")
    def cache_dtype(self, dtype: Any) -> None:
        if (kind := cache_type(dtype)) is not None and not (self.generates and self.continues):
            self.refuse(cache_dtype=kind)
        self._cache_dtype, self.conversation = kind, None

    @property
    def routes(self) -> Mapping[str, Self]:
        """The models of all routes, keyed by name; read-only; empty if the model has no `Router`.

        `encode`, `encode_query` and `encode_document` choose the route; all other methods use the
        default route, which is this model. To use another route, call a method of its model:
        `model.routes["query"].trace(text)`.

        >>> import qkv
        >>> dict(qkv.load("random").routes)
        {}
        """
        if not self.routing.is_choice:
            return MappingProxyType({})
        models = {self._route: self, **self._others}
        return MappingProxyType({name: models[name] for name in self.routing.ways})

    def all_routes(self) -> list[Self]:
        """Return this model and the models of its other routes, e.g. for queries and documents."""
        return [self, *self._others.values()]

    def _checked_limit(self, limit: int | None) -> int | None:
        """Return the checked limit; raise a ValueError if it exceeds the number of positions."""
        most = self.network.embedding.max_positions
        around = 0 if self.tokenizer is None else len(self.tokenizer.tokenize(""))
        if limit is not None:
            limit = whole_number(limit, name="max_seq_length", least=around + 1)
        if most is not None and (limit is None or limit > most):
            raise value_error(
                f"max_seq_length is {limit}, but {self.name} has {most} positions; "
                f"pass at most {most}"
            )
        return limit

    @property
    def parameters(self) -> Parameters:
        """The model's arrays, keyed by name; linear weights have shape (in, out).

        The arrays are read-only: to change a parameter, assign a new array to its name.

        The matrix that turns vectors into logits, `W_U` (D, V) in TransformerLens, is
        "head.out_proj.weight". In some models (BERT, GPT-2, Gemma and others), `W_U` is the
        transposed token table, `model.parameters["embed.weight"].T`. Gemma multiplies the rows of
        this table by a factor to embed tokens, but not to compute logits.
        """
        return Parameters(self._weights.parameters, self._rebuild)

    def blocks_of(self, name: str) -> tuple[str, Array] | None:
        """Return the blocks of a matrix as the model's GGUF file stores them.

        Args:
            name: the name of a parameter.

        Returns:
            The kind of the blocks, such as "Q4_1", and the bytes of each row in the file, uint8
            (rows, bytes). A row holds the weights of one output of a linear layer, or the vector of
            one token. None if the matrix is not in blocks, or was replaced.
        """
        return self._weights.blocks_of(name)

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of the stored parameters, in hexadecimal.

        The digest covers the name, type, shape and bytes of every tensor in the files. Neither the
        argument `dtype` of `qkv.load` nor the number of files affects the digest. If parameters
        were replaced, or if the model is `"random"`, the digest covers the tensors that `save`
        would write.

        >>> import qkv
        >>> qkv.load("books").sha256 == qkv.load("books", dtype="float64").sha256
        True
        """
        return self._weights.sha256

    def with_network(self, network: Transformer) -> Self:
        """Return a copy of the model that runs a different network."""
        model = self._copy()
        model._network = network
        return model

    @public_call("with_parameters")
    def with_parameters(self, parameters: Mapping[str, ArrayLike], dtype: Any = None) -> Self:
        """Return a copy of the model that holds copies of the arrays in `parameters`.

        Args:
            parameters: an array for each name in `model.parameters`, of the same shape.
            dtype: the dtype of the new arrays; by default each array keeps its dtype.

        Raises:
            ValueError: a name is missing or unknown, or an array has the wrong shape.
        """
        old = self._weights.parameters
        if set(parameters) != set(old):
            odd = min(set(parameters) ^ set(old))
            raise value_error(f"{odd} is {'missing' if odd in old else 'not a parameter'}")
        arrays = {}
        for name, array in old.items():
            copied = np.array(parameters[name], dtype=dtype)
            if copied.shape != array.shape:
                raise value_error(f"{name} has shape {copied.shape}, but must have {array.shape}")
            arrays[name] = like_weight(frozen(copied), array)
        model = self._copy()
        model._weights = replace(self._weights, parameters=arrays, stored=None)
        model._build()
        return model

    def read_as(self, sentence: Sentence) -> Self:
        """Return a model with this model's arrays and new settings for texts."""
        model = self._copy()
        model._weights = replace(self._weights, parameters=dict(self._weights.parameters))
        model.reader = replace(self.reader, sentence=sentence)
        sentence.width(model.vector_size)
        return model

    def _copy(self) -> Self:
        """Return a copy that does not share the caches of this model's conversation."""
        model = copy(self)
        model.conversation = None
        return model

    def join_routes(self, routing: Routing, models: Mapping[str, Self]) -> Self:
        """Use this model for the default route, and store the models of the other routes in it."""
        self.routing, self._route = routing, routing.first
        self._others = {name: model for name, model in models.items() if name != routing.first}
        return self

    @property
    def dim(self) -> int:
        """D, the size of a token's vector."""
        return self.network.dim

    @property
    def head(self) -> BuiltHead | None:
        """The layers that turn the last block's output into logits or one vector.

        None if the model has no head.
        """
        network = self.network
        return network.decoder.head if isinstance(network, EncoderDecoder) else network.head

    @property
    def embedder(self) -> BuiltHead | None:
        """The head, if it computes the vector of a text or an image; None otherwise."""
        head = self.head
        embeds = head is not None and head.steps.embeds
        return head if embeds and not self.sentence.has_pooling else None

    @property
    def vector_size(self) -> int:
        """The size of a text's vector directly after pooling."""
        head = self.embedder
        if self.sentence.splade is not None:
            head = self.head
            if head is None or not head.predicts:
                raise invalid(
                    ModelError,
                    f"{self.name} has a SpladePooling but no head for words: config.json must name "
                    "a class such as BertForMaskedLM",
                )
        return self.network.out_dim if head is None else head.steps.outputs

    @property
    def generates(self) -> bool:
        """Whether the model can generate text."""
        return self.can("generate")

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling options in generation_config.json, as arguments of `generate` and `chat`.

        `qkv chat` uses these values; `generate` and `chat` do not. The dict is empty if the file
        does not set sampling.

        >>> import qkv
        >>> qkv.load("books-decoder").sampling
        {}
        """
        return sampling_of(self._generation, f"{GENERATION} of {self.name}")

    @property
    def continues(self) -> bool:
        """Whether generated text continues the prompt; False for encoder-decoder models."""
        return not self.kind.startswith("encoder-decoder")

    def can(self, ask: str) -> bool:
        """Return whether a model of this kind supports "predict", "generate", "rank", ...

        >>> import qkv
        >>> model = qkv.load()
        >>> model.kind, model.can("predict"), model.can("generate")
        ('masked LM', True, False)
        """
        return can(self.kind, ask)

    def need(self, ask: str) -> None:
        """Raise a ValueError unless the model supports the call."""
        if not self.can(ask):
            raise value_error(f"{self.name} {cannot(self.design, ask)}")

    @property
    def embedding(self) -> Embedding:
        """The layer that turns token ids into the vectors that enter the first block."""
        return self.network.embedding

    @property
    def layers(self) -> list[Block]:
        """The layers, first to last."""
        return list(self.network.layers)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.network.layers)

    @property
    def num_heads(self) -> int:
        """The number of query heads in each layer; 0 if the model has no layers."""
        return self.network.layers[0].attn.num_heads if self.network.layers else 0

    @property
    def mask(self) -> str | None:
        """The token that replaces gaps in texts; None if the model does not predict masked words.

        A gap is "[MASK]", "[mask]", or one or more "_" without a letter or digit on either side. A
        "?" after a space is also a gap, except at the end of the text. In texts for `encode` and
        `rank`, gaps are not replaced.

        >>> import qkv
        >>> model = qkv.load()
        >>> model.mask, model.tokenize("A small ?.").tokens
        ('[MASK]', ['[CLS]', 'a', 'small', '[MASK]', '.', '[SEP]'])
        """
        return self.reader.mask

    @public_call("tokenize")
    def tokenize(self, text: str) -> Tokenized:
        """Split a text into tokens, without truncation to `max_seq_length`.

        `trace` and `encode` truncate texts to `max_seq_length` tokens. Each gap in the text becomes
        the mask token (see `mask`). Texts are cut after the first million characters, with a
        warning.

        Raises:
            ValueError: the model has no tokenizer.
        """
        return self.reader.tokenize(text)

    @public_call("decode")
    def decode(self, ids: ArrayLike) -> str:
        """Decode token ids (T,) to text, without special tokens.

        Raises:
            ValueError: the model has no tokenizer, or an id does not belong to a token.
        """
        return self.reader.need_tokenizer().decode(ids)

    @public_call("subwords")
    def subwords(self, word: str) -> list[list[str]]:
        """Return the ways to split a word into subwords; "##" marks the continuation of a word.

        Some tokenizers split a word at the beginning of a text differently from a word after a
        space. The list is empty if no subwords of the vocabulary form the word.

        >>> import qkv
        >>> qkv.load("random").subwords("bank")
        [['bank']]
        """
        return self.reader.subwords(word)

    @public_call("save")
    def save(self, folder: StrPath, *, dtype: Any = None) -> None:
        """Write the model to a folder that both `qkv.load` and transformers can read.

        The folder is created if it does not exist. If the folder already holds a model, the files
        of the old model are removed, so that `qkv.load` cannot mix them with the new files.

        Args:
            folder: the folder for config.json and the other files.
            dtype: the dtype of the weights in the file: float16, bfloat16, float32, float64, or
                int8; by default each array keeps its dtype. With int8, each matrix `X.weight`
                (rows, columns) is stored as int8, and a tensor `X.weight_scale` (rows,) stores one
                float16 scale per row. When the file is loaded, each int8 number is multiplied by
                its row's scale in float32. The product differs from the saved weight by at most
                scale/2. The scale of a row is the row's largest absolute value / 127. Rows that
                were loaded from an int8 file keep their exact values. Layers after the pooling keep
                their dtype, and all other tensors are stored as float16.
                transformers cannot read the scales: omit `dtype` if transformers should load the
                model.

        Raises:
            ValueError: the name of the folder is empty; `dtype` is unknown; a tensor has values
                too large for this dtype; or one of the model's JSON files is a link to a path
                outside the model's folder.
            OSError: the folder cannot be written.

        >>> import qkv, tempfile
        >>> model = qkv.load("random")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(folder, dtype="int8")
        ...     same = qkv.load(folder)
        >>> table = model.parameters["embed.weight"]
        >>> bool(np.abs(same.parameters["embed.weight"] - table).max() < np.abs(table).max() / 250)
        True
        """
        kind, models = storage_type(dtype), self.all_routes()
        if linked := next(filter(None, (model.sentence.linked for model in models)), None):
            raise invalid(
                ModelError,
                f"{linked} is a link to a file outside the model's folder, and `save` would copy "
                "that file: replace the link with the file and load the model again",
            )
        for model in reversed(models):
            save_model(
                folder,
                config=None if model.sentence.static else model.config,
                weights=model._weights,
                sentence=model.sentence,
                tokenizer=model.tokenizer,
                others=model._json_files,
                dtype=kind,
            )

    def read(self, inputs: Any, first: int = 0) -> Batch:
        """Return the batch that `network.run` takes.

        Args:
            inputs: one text or several, as strings or as token ids; or images, if the model reads
                images.
            first: the number that errors give to the first text.

        Raises:
            TypeError: as in `trace`.
            ValueError: as in `trace`.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> rows, _ = model.network.run(model.read(["I love you", "the cat"]))
        >>> rows.shape  # one row per token
        (5, 8)
        """
        try:
            return self.reader.read(inputs, first)
        except Exception as error:
            add_name(error, "read")
            raise

    def check_edits(self, edits: Edits, batch: Batch, **others: Any) -> CheckedEdits:
        """Check that edits fit this model and a batch; pass the arguments in `others` to `fit`."""
        return fit(edits, batch, self.network, self.reader, **others)

    def edit_records(self, edits: Edits, text: Tokenized) -> list[dict[str, Any]]:
        """Check the edits of one text, and return them as JSON values."""
        [text], _ = self.check_edits(edits, Batch([text]))
        return plain(edits, text, self.network, self.reader)

    def with_means(
        self, edits: EditedRun, batch: Batch, batch_size: int | None = None, stop: int | None = None
    ) -> EditedRun:
        """Compute the means that mean ablations need, in an unedited run of all texts.

        Args:
            edits: the edits, which may include mean ablations.
            batch: the texts.
            batch_size: the number of texts per batch.
            stop: only layers before this layer are run; None runs all layers.
        """
        return edits.below(stop).average_outputs(self.network, parts(batch, batch_size), stop)

    def refuse(self, **given: Any) -> None:
        """Raise a ValueError if an argument that only other models support is not None or ()."""
        for name, value in given.items():
            if value is not None and not (isinstance(value, tuple) and not value):
                raise value_error(
                    f"{name} does not apply to {self.name}, which {does(self.design)}: omit {name}"
                )

    def need_words(self) -> int:
        """Return V, the size of the vocabulary, or raise a ValueError if no head predicts words."""
        self.need("unembed")
        assert self.head is not None
        return self.head.steps.outputs


def cache_type(dtype: Any) -> DType | None:
    """Return the dtype of a key/value cache, or None; raise a ValueError for an unsupported dtype.

    >>> cache_type("bfloat16"), cache_type(None)
    (dtype(bfloat16), None)
    """
    if dtype is None:
        return None
    with suppress(TypeError):
        kind = float_type(dtype)
        if kind.itemsize == 2:
            return kind
    raise value_error(f"cache_dtype is {quote(dtype)}; pass float16, bfloat16 or None")
