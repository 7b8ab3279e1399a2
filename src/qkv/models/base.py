"""What a model is made of, and how what it is given becomes its tokens."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array, whole_number
from qkv.edits import Edits
from qkv.layers import Block
from qkv.models.elsewhere import ELSEWHERE
from qkv.models.files.names import Weights
from qkv.models.files.read import GENERATION, TOKENIZER
from qkv.models.files.saving import save_model, storage_type
from qkv.models.files.sentence import Sentence
from qkv.models.network.designs import AnyDesign
from qkv.models.network.embedding import Embedding
from qkv.models.network.head import BuiltHead
from qkv.models.network.transformer import Transformer
from qkv.models.parameters import Parameters
from qkv.models.run.edit import EditedRun
from qkv.models.run.fit_edits import fit, plain, swapped
from qkv.models.run.inputs import check_tokenizer, ids_given, named
from qkv.models.run.layout import Layout
from qkv.models.run.streams import parts
from qkv.models.run.truncation import MOST, Truncator
from qkv.models.tasks.generate import eos_ids
from qkv.ops.packing import frozen
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenized import marks_blanks, plain_tokens
from qkv.text.tokenizer import check_text, check_texts
from qkv.trace import Recorder
from qkv.visible import visible

_SET = ("name", "config", "tokenizer", "design")  # what a model is given when it is made


class ModelBase:
    """The parts of a model: its design, parameters, tokenizer and limits, without its tasks.

    `Model` says what they are.
    """

    def __init__(
        self,
        *,
        name: str,
        config: dict[str, Any],
        design: AnyDesign,
        weights: Weights,
        tokenizer: Tokenizer | None = None,
        sentence: Sentence | None = None,
        generation: Mapping[str, Any] | None = None,
        notices: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.tokenizer = tokenizer
        for key, array in weights.parameters.items():
            weights.parameters[key] = frozen(array)
        self.design: AnyDesign = design
        self._weights = weights
        self._generation = dict(generation or {})
        self._notices = dict(notices or {})  # of its card and licences the texts, by file
        # what stands beside config.json, None for no file
        self._json_files: dict[str, Any] = {GENERATION: self._generation or None}
        self._build()
        self._sentence = sentence or Sentence()
        self._sentence.width(self._vector_size)  # raises where its layers do not fit
        self._eos_ids = eos_ids(config, self._generation, name)
        limits = filter(None, (design.max_seq_length, self._sentence.max_seq_length))
        self._max_length: int | None = min(limits, default=None)
        if tokenizer is not None:
            check_tokenizer(tokenizer, len(self._body.embedding.table), self.max_seq_length, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Only what a model has can be set: any other name would change nothing, and say nothing.

        A class of somebody else's that is made of this one sets what it likes.
        """
        is_known = name in _SET or name.startswith("_") or hasattr(type(self), name)
        if not is_known and type(self).__module__.startswith("qkv."):
            named = (one for one in dir(self) if not one.startswith("_"))
            near = difflib.get_close_matches(name, named, n=3)
            nearest = f": the nearest are {', '.join(near)}" if near else ""
            raise AttributeError(f"model: there is no {name!r} to set{nearest}")
        object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # where it stands, any name would be known to a type checker

        def __getattr__(self, name: str) -> Any:
            """An error for what there is not, which says what to do instead if it is known."""
            about = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(
                f"{about}: {ELSEWHERE[name]}" if name in ELSEWHERE else about, name=name, obj=self
            )

    def __repr__(self) -> str:
        name, kind = visible(self.name), self.config.get("model_type")
        return (
            f"<Model {name}: {kind}, {self.num_layers} layers, {self.num_heads} heads, "
            f"vectors of {self.dim}>"
        )

    def _build(self) -> None:
        """Make what computes of the parameters, anew after a change."""
        self._body: Transformer = self.design.build(self._weights.parameters)

    def _changed(self) -> None:
        """Compute with other parameters than those that were read."""
        self._weights = replace(self._weights, stored=None)
        self._build()

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens of a text, special ones included, None for no limit.

        Another number may be put in its place, up to the positions that the model has; of a model
        with routes it is then that of all of them.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> model.max_seq_length = 3
        >>> model.max_seq_length
        3
        """
        return self._max_length

    @max_seq_length.setter
    def max_seq_length(self, limit: int | None) -> None:
        checked = [(one, one._checked_limit(limit)) for one in self._ways()]
        for one, found in checked:
            one._max_length = found

    def _ways(self) -> list[ModelBase]:
        """The models that it is made of, itself the first."""
        return [self]

    def _checked_limit(self, limit: int | None) -> int | None:
        """A number of tokens that a text may have."""
        most = self._body.embedding.max_positions
        around = 0 if self.tokenizer is None else len(self.tokenizer.tokenize(""))
        if limit is not None:
            limit = whole_number(limit, call="model", name="max_seq_length", least=around + 1)
        if most is not None and (limit is None or limit > most):
            raise ValueError(
                f"model: max_seq_length is {limit} and {self.name} has {most} positions: "
                f"give at most {most}"
            )
        return limit

    @property
    def parameters(self) -> Parameters:
        """The model's arrays by name, linear weights as (in, out).

        They are read-only: to change the model, put another array in the place of one.

        What the head multiplies by, `W_U` (D, V) of TransformerLens, is "head.out_proj.weight".
        Where it is tied to the token table (BERT, GPT-2, Gemma and many more) there is no such
        name: it is `model.parameters["embed.weight"].T`, without the scale that Gemma multiplies
        the table's rows by when it reads.
        """
        return Parameters(self._weights.parameters, self._changed)

    @property
    def sha256(self) -> str:
        """The SHA-256, in hexadecimal, of the parameters as they are stored.

        It covers name, type, shape and bytes of every tensor in the files, so that `dtype=` of
        `qkv.load` does not change it, and neither does another way to spread them over files. Of a
        model whose parameters were replaced, and of `"random"`, it covers the tensors as `save`
        writes them.

        >>> import qkv
        >>> qkv.load("books").sha256 == qkv.load("books", dtype="float64").sha256
        True
        """
        return self._weights.sha256

    def with_parameters(self, parameters: Mapping[str, ArrayLike], dtype: Any = None) -> Self:
        """The same model with other arrays, which are copied.

        Args:
            parameters: an array for each name in `parameters`, of its shape.
            dtype: the type to have; that of each array by default.

        Raises:
            ValueError: a name is missing or unknown, or an array has another shape.
        """
        old = self._weights.parameters
        if set(parameters) != set(old):
            odd = min(set(parameters) ^ set(old))
            raise ValueError(
                f"with_parameters: {odd} is {'missing' if odd in old else 'not a parameter'}"
            )
        arrays = {}
        for name, array in old.items():
            copied = np.array(parameters[name], dtype=dtype)
            if copied.shape != array.shape:
                raise ValueError(
                    f"with_parameters: {name} has shape {copied.shape} and must have {array.shape}"
                )
            arrays[name] = frozen(copied)
        found = copy(self)
        found._weights = replace(self._weights, parameters=arrays, stored=None)
        found._build()
        return found

    def _read_as(self, sentence: Sentence) -> Self:
        """The same model on the same arrays, whose vectors are pooled and finished otherwise."""
        found = copy(self)
        found._weights = replace(self._weights, parameters=dict(self._weights.parameters))
        found._sentence = sentence
        sentence.width(found._vector_size)
        return found

    @property
    def dim(self) -> int:
        """D, the size of a token's vector."""
        return self._body.dim

    @property
    def _head(self) -> BuiltHead | None:
        """What gives logits."""
        return self._body.head

    @property
    def _embedder(self) -> BuiltHead | None:
        """What makes one vector of a text or an image, unless its files say how to pool."""
        head = self._head
        embeds = head is not None and head.steps.embeds
        return head if embeds and not self._sentence.has_pooling else None

    @property
    def _vector_size(self) -> int:
        """How many numbers are made of a text, before the layers that its files may name."""
        return self.dim if self._embedder is None else self._embedder.steps.outputs

    @property
    def embedding(self) -> Embedding:
        """What turns token ids into the vectors that the first layer takes."""
        return self._body.embedding

    @property
    def layers(self) -> list[Block]:
        """The layers in order."""
        return list(self._body.layers)

    @property
    def num_layers(self) -> int:
        """How many layers."""
        return len(self._body.layers)

    @property
    def num_heads(self) -> int:
        """How many query heads each layer has; none where there is no layer."""
        return self._body.layers[0].attn.num_heads if self._body.layers else 0

    @property
    def mask(self) -> str | None:
        """The token that a gap of a text is read as; None for a decoder, or without such a token.

        A gap is "[MASK]", "[mask]", "_" or more of them that touch no letter or digit, or "?"
        behind a blank and before more of the text. `encode` and `rank` read texts as they are.

        >>> import qkv
        >>> model = qkv.load()
        >>> model.mask, model.tokenize("A small ?.").tokens
        ('[MASK]', ['[CLS]', 'a', 'small', '[MASK]', '.', '[SEP]'])
        """
        return None if self.tokenizer is None or self._body.generates else self.tokenizer.mask

    def tokenize(self, text: str) -> Tokenized:
        """The tokens of a text, whole: `trace` and `encode` cut it at `max_seq_length`.

        Of a text of over a million characters those of the beginning, and a warning says so. A gap
        in the text is the mask token (`mask`).

        Raises:
            ValueError: the model has no tokenizer.
        """
        text = check_text(text, call="tokenize", name="text")
        truncator = Truncator(self._need_tokenizer("tokenize"), None, self.mask)
        [found] = truncator([self._sentence.prepared(text)])
        truncator.cut.warn()
        return found

    def prepared(self, text: str) -> str:
        """A text as the model's tokenizer is to have it: in lower case, if its files say so."""
        return self._sentence.prepared(text)

    def decode(self, ids: ArrayLike) -> str:
        """The text of token ids (T,), special tokens left out.

        Raises:
            ValueError: the model has no tokenizer, or no token of such an id.
        """
        return self._need_tokenizer("decode").decode(ids)

    def save(self, folder: str | os.PathLike[str], *, dtype: Any = None) -> None:
        """Write the model to a folder that `qkv.load` reads, and transformers too.

        The folder is made if it is not there. Of a model that was in the folder, the files that
        this one does not have are removed, as far as `qkv.load` would read them.

        Args:
            folder: where config.json will be.
            dtype: the type of the weights in the file: float16, bfloat16, float32, float64, or
                int8; by default the type they have here. With int8 each matrix (rows, columns) is
                written as int8, and beside `X.weight` stands `X.weight_scale`, float16 (rows,): a
                number is int8 * float32(scale), off by half a scale at most. The scale of a row is
                its largest number / 127. A row that has such a form already keeps its numbers.
                Tensors of other dimensions are float16, layers behind the pooling stay as they
                are. transformers does not know these scales: leave out dtype for it.

        Raises:
            ValueError: the name of the folder is empty, there is no such type, or a tensor has
                numbers that the type does not hold.
            OSError: it cannot be written.

        >>> import qkv, tempfile
        >>> model = qkv.load("random")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(folder, dtype="int8")
        ...     same = qkv.load(folder)
        >>> table = model.parameters["embed.weight"]
        >>> bool(np.abs(same.parameters["embed.weight"] - table).max() < np.abs(table).max() / 250)
        True
        """
        kind = storage_type(dtype)
        for one in reversed(self._ways()):
            save_model(
                folder,
                config=None if one._sentence.static else one.config,
                weights=one._weights,
                sentence=one._sentence,
                tokenizer=one.tokenizer,
                others=one._json_files,
                dtype=kind,
            )

    def _run(self, batch: Sequence[Tokenized], **options: Any) -> tuple[Array, Array]:
        """Texts laid end to end: their vectors (total, D) and where each begins (B + 1,).

        The options are those of a call of `Transformer`.
        """
        return self._body.packed([text.ids for text in batch], **options)

    def _swapped(self, edits: Edits, batch: Sequence[Tokenized], first: int = 0) -> list[Tokenized]:
        """The texts with other tokens where a record says so."""
        return swapped(edits, batch, self.tokenizer, first)

    def _fit(self, edits: Edits, batch: Iterable[Tokenized], **others: Any) -> EditedRun:
        """What a run of these texts does differently; the others are arguments of `fit`."""
        pieces = self.pieces if self._knows_words else None
        return fit(edits, batch=batch, body=self._body, pieces=pieces, read=self._reads, **others)

    def _plain(self, edits: Edits, text: Tokenized) -> list[dict[str, Any]]:
        """The edits of one text as JSON can hold them, once they are known to fit."""
        [read] = self._swapped(edits, [text])
        self._fit(edits, [read])
        return plain(edits, read, self._body, self.pieces if self._knows_words else None)

    @property
    def _reads(self) -> Callable[[str, str], Array] | None:
        """What gives the ids of one text, (T,), for a call; None where there is no tokenizer."""

        def read(text: str, call: str) -> Array:
            return self._texts(text, call)[1][0].ids

        return None if self.tokenizer is None else read

    def _fit_with_means(
        self,
        edits: Edits,
        batch: Sequence[Tokenized],
        batch_size: int | None = None,
        *,
        stop: int | None = None,
        **others: Any,
    ) -> EditedRun:
        """The same, with the means that are asked for; the arguments as for `_with_means`."""
        found = self._fit(edits, map(self._with_names, batch), **others)
        return self._with_means(found, batch, batch_size, stop=stop)

    def _with_means(
        self,
        edited: EditedRun,
        batch: Sequence[Tokenized],
        batch_size: int | None = None,
        *,
        stop: int | None = None,
    ) -> EditedRun:
        """A run with the means that it asks for, of texts that are run so many at once.

        `stop` is the layer before which that run ends, None for behind the last.
        """

        def run(recorder: Callable[[Layout], Recorder]) -> None:
            for part in parts(batch, batch_size):
                self._run(batch[part.start : part.stop], record=recorder(Layout(part)), stop=stop)

        return edited.below(stop).averaged(sum(map(len, batch)), run)

    @property
    def _knows_words(self) -> bool:
        """Whether a word can be found among its tokens."""
        return self.tokenizer is not None

    def _with_names(self, text: Tokenized) -> Tokenized:
        """A text whose tokens were given as ids, by their names; another as it is."""
        if text.text or any(text.special) or text.tokens != [str(one) for one in text.ids]:
            return text
        return named(text.ids, np.ones(len(text), bool), self.tokenizer)

    def _need_words(self, call: str) -> int:
        """V, how many words the head gives logits for, or an error where it gives none."""
        head = self._head
        if head is None or not head.predicts:
            of = "vectors" if head is not None and head.steps.embeds else "classes"
            has = "no head" if head is None else f"a head for {of}, not for words"
            raise ValueError(
                f"{call}: {self.name} has {has}, so it gives no logits over words: load a model "
                "with its head (architectures in its config.json says ...ForMaskedLM or "
                "...ForCausalLM)"
            )
        return head.steps.outputs

    def _given(
        self, texts: Any, call: str, first: int = 0
    ) -> tuple[bool, list[str], list[Tokenized]]:
        """Whether it is one text; the texts, or the tokens where ids stand in their place."""
        rows = len(self._body.embedding.table)
        found = ids_given(texts, rows=rows, limit=self.max_seq_length, call=call, first=first)
        if found is not None:
            return found[0], [], found[1]
        self._need_tokenizer(call)
        if isinstance(texts, str):
            return True, [check_text(texts, call=call, name="text")], []
        return False, check_texts(texts, call=call, first=first), []

    def _texts(
        self, texts: Any, call: str = "trace", first: int = 0
    ) -> tuple[bool, list[Tokenized]]:
        """Whether it is one text, and the tokens of each; ids are taken as they are."""
        single, strings, batch = self._given(texts, call, first)
        if strings:
            truncator = Truncator(self._need_tokenizer(call), self.max_seq_length, self.mask)
            batch = truncator([self._sentence.prepared(text) for text in strings])
            for number, tokens in enumerate(batch, first):
                if all(tokens.special):
                    where = "the text" if single else f"text {number}"
                    raise ValueError(f"{call}: {where} is empty: there is no word in it")
            truncator.cut.warn()
            batch = [
                replace(tokens, text=text[: max(end for _, end in tokens.offsets)])
                for tokens, text in zip(batch, strings, strict=True)
            ]
        if not batch:
            raise ValueError(f"{call}: there is no text: give at least one")
        return single, batch

    def _prompts(self, prompt: Any) -> tuple[bool, list[str], list[Tokenized]]:
        """Whether it is one prompt, what was given of text, and the tokens of each."""
        if not isinstance(prompt, Iterable):
            kind = type(prompt).__name__
            raise TypeError(f"generate: the prompt is {kind}: give a text, or a list of texts")
        single, strings, batch = self._given(prompt, "generate")
        for number, one in enumerate(strings):
            if len(one) > MOST:
                raise ValueError(
                    f"generate: prompt {number} has {len(one):,} characters: give at most {MOST:,}"
                )
        if strings:
            tokenizer = self._need_tokenizer("generate")
            batch = tokenizer.tokenize_batch([self._sentence.prepared(text) for text in strings])
        return single, strings, batch

    def pieces(self, word: str) -> list[list[str]]:
        """The ways in which a word may stand in a text, each as its tokens; "##" continues one.

        It may stand at the beginning or behind a blank, which some tokenizers cut differently. None
        if the vocabulary does not have it.

        >>> import qkv
        >>> qkv.load("random").pieces("bank")
        [['bank']]
        """
        unknown = self._need_tokenizer("pieces").unknown
        before = ["Ġ"] if marks_blanks(self.tokenize("a a").tokens) else []
        ways = []
        for text in (word, f" {word}"):
            cut = self.tokenize(text)
            tokens = [t for t, special in zip(cut.tokens, cut.special, strict=True) if not special]
            flags = [True] * len(before) + [False] * len(tokens)
            names = plain_tokens([*before, *tokens], flags)[len(before) :]
            if names and unknown not in tokens and names not in ways:
                ways.append(names)
        return ways

    def _need_tokenizer(self, call: str) -> Tokenizer:
        """The tokenizer, or an error where there is none."""
        if self.tokenizer is None:
            raise ValueError(
                f"{call}: {self.name} has no {TOKENIZER}, so it cannot read text: "
                "call model(input_ids)"
            )
        return self.tokenizer
