"""Traces: all activations of a run by name, with the tokens of its texts."""

import copy
from collections.abc import ItemsView, Iterable, KeysView, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv._argument_errors import invalid, public_call, value_error
from qkv.arrays import Array, Arrays, whole_number
from qkv.files import StrPath
from qkv.trace import _exports, activations
from qkv.trace._exports import Unpack, read_trace, write_trace
from qkv.trace.activations import cut, numbers_of, of_side, parse, side_of
from qkv.trace.names import NameIndex

_LAST = ("ln_final.hook_normalized", "hook_final_proj")
# If an option of a layer's attention is an array, the file of a trace stores the array under this
# key, which contains the number of the layer and the name of the option.
_SETTING = "attention.{}.{}"
# The arguments of `Trace` that have one entry per text, and the arguments that describe the run.
_PER_TEXT = ("tokens", "ids", "offsets", "special", "texts")
_OF_RUN = (
    *("single", "model", "changed", "last_is_normed"),
    *("num_layers", "untrained", "query_heads"),
)
_KIND = "qkv.trace"  # The key of the metadata in the file of a `Trace`.
_OF_PAIRS = "qkv.seq2seq"  # The key of the metadata in the file of a `Seq2SeqTrace`.
SIDES = ("encoder", "decoder")
_MASK = "attn_mask"  # The mask of the encoder's text, if some tokens are masked.
Settings = Mapping[int, Mapping[str, Any]]  # The options of each layer's attention.


class Trace:
    """All activations of one run, named as in TransformerLens.

    In the trace of a model, texts are the first axis of every array. `trace[i]` is the trace of
    text i without its padding. Short names work too: `trace["pattern", 3]` and
    `trace["pattern", 3, "attn"]` mean `trace["blocks.3.attn.hook_pattern"]`, and `trace["embed"]`
    means `trace["hook_embed"]`. Layer -1 is the model's last layer, even if the trace has no
    activations of that layer. An unknown name raises a KeyError with the nearest names. Arrays are
    read-only: change a copy.

    Args:
        arrays: the arrays by name.
        tokens: the tokens of each text.
        ids: the ids of the tokens of each text.
        offsets: for each text, the span of characters of each token; (0, 0) for special tokens.
        special: for each text, whether each token is special ([CLS], [SEP] and similar tokens).
        texts: the texts as they were given.
        settings: the options of each layer's attention, in the form that `qkv.attention` accepts.
        single: whether the input was one string, so that `tokens` is a single list.
        model: the name of the model.
        changed: the edits of the run: "edit" (names of activations), "ablate" (pairs of layer and
            head) and "hide" (masked words, positions and edges).
        last_is_normed: whether the last array of `hidden_states` is the output of the final norm,
            as in `transformers`. For image models, `transformers` returns the array before the
            final norm.
        num_layers: the number of layers of the model; by default the number of kept layers.
        untrained: whether the model's projections of queries and keys are random.
        query_heads: the number of query heads of each layer; by default, it is inferred from the
            arrays.

    >>> trace = Trace({"blocks.0.attn.hook_pattern": np.ones((1, 2, 1, 1))}, tokens=[["hi"]])
    >>> trace.tokens, trace["pattern", 0].shape, trace.pattern(layer=0, head=1)
    (['hi'], (1, 2, 1, 1), array([[1.]]))
    """

    def __init__(
        self,
        arrays: Arrays,
        *,
        tokens: Sequence[Sequence[str]] = (),
        ids: Sequence[Sequence[int]] = (),
        offsets: Sequence[Sequence[tuple[int, int]]] = (),
        special: Sequence[Sequence[bool]] = (),
        texts: Sequence[str] = (),
        settings: Settings | None = None,
        single: bool = True,
        model: str = "",
        changed: Mapping[str, Sequence[Any]] | None = None,
        last_is_normed: bool = True,
        num_layers: int | None = None,
        untrained: bool = False,
        query_heads: Sequence[int] = (),
    ) -> None:
        self._arrays = {name: read_only(array) for name, array in arrays.items()}
        self._num_layers = num_layers
        self._tokens = [list(text) for text in tokens]
        self._ids = [[int(token) for token in text] for text in ids or [()] * len(tokens)]
        spans = offsets or [[(0, 0)] * len(text) for text in tokens]
        self._offsets = [[(int(a), int(b)) for a, b in text] for text in spans]
        flags = special or [[False] * len(text) for text in tokens]
        self._special = [[bool(flag) for flag in text] for text in flags]
        self._texts = [str(text) for text in texts or [""] * len(tokens)]
        self._settings = {layer: dict(options) for layer, options in (settings or {}).items()}
        self._single = single
        self.model = model
        self._changed = dict(changed or {})
        self._last_is_normed = last_is_normed
        self.untrained = untrained
        self._query_heads = [int(heads) for heads in query_heads]
        # If `tokens` are readable names, the tokens of the only text as the vocabulary spells them.
        self.spelled: list[str] | None = None

    def __repr__(self) -> str:
        texts = f"{len(self)} texts, " if self._tokens else ""
        return f"Trace({texts}{self.num_layers} layers, {len(self._arrays)} arrays)"

    def _repr_html_(self) -> str:
        """Return HTML with the tokens and the names of the arrays."""
        texts = f"{len(self)} text{'s' * (len(self) != 1)}"
        about = [self.model, texts * bool(self._tokens), f"{self.num_layers} layers"]
        if self.changed:
            about.append(", ".join(f"{name}={value}" for name, value in self.changed.items()))
        title = f"Trace: {', '.join(filter(None, about))}"
        return _exports.html(title, self._tokens, self._arrays)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._tokens)

    def __contains__(self, name: object) -> bool:
        return self._index.one(name) is not None

    def __getitem__(self, name: str | tuple[Any, ...] | int) -> Any:
        """Return an array by its name, or the trace of one text by its number."""
        if isinstance(name, (int, np.integer)):
            return self._text(int(name))
        if isinstance(name, slice):
            raise TypeError(
                f"trace: {name} selects several texts: select one text, for example trace[0], or "
                'rows of an array, for example trace["pattern", 0][:2]'
            )
        full = self._index.one(name)
        if full is None:
            raise self._unknown(name)
        return self._arrays[full]

    def with_tokens(self, tokens: Sequence[Sequence[str]]) -> "Trace":
        """Return a copy with new names for the tokens: a list of strings for each text.

        Raises:
            ValueError: the number of names differs from the number of tokens.
        """
        counts = [len(text) for text in tokens]
        if counts != self.lengths.tolist():
            raise ValueError(
                f"with_tokens: the texts have {self.lengths.tolist()} tokens, but {counts} "
                "names were given; pass one name for each token"
            )
        other = copy.copy(self)
        other._tokens, other.spelled = [list(text) for text in tokens], None
        return other

    def names(self) -> list[str]:
        """Return the names of all arrays in order of computation."""
        return list(self._arrays)

    def keys(self) -> KeysView[str]:
        """Return the names of all arrays. `dict(trace)` calls `keys` and returns all arrays."""
        return self._arrays.keys()

    def items(self) -> ItemsView[str, Array]:
        """Yield each name with its array."""
        return self._arrays.items()

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` with a variable for each array; arrays are not copied.

        The axes are named `text`, `token`, `query`, `key` and `head`. The axis of key heads is
        named `kv_head` if several query heads share a key head, and otherwise `head`. The last
        axis of an array of vectors is named `d`, `dv`, `D`, `F` or `V`. The coordinates
        `token_text`, `query_text` and `key_text` (B, T) hold the tokens. In the padding, each token
        is "". The coordinate `length` (B,) holds the number of tokens of each text.

        Raises:
            ImportError: xarray is not installed.
        """
        about = {"model": self.model, "num_layers": self.num_layers}
        return _exports.dataset(self._arrays, self._axes, self._tokens, about)

    def to_pandas(self, name: str | tuple[Any, ...] = "pattern") -> Any:
        """Return a `pandas.DataFrame` with a row per element of an activation, without padding.

        Args:
            name: the full or short name of an activation. A short name without a layer means all
                layers.

        Returns:
            A table. For the weights, the columns are `text`, `layer`, `head`, `query`, `key`,
            `query_text`, `key_text` and `value`.

        Raises:
            ImportError: pandas is not installed.
            KeyError: no activation has this name.
        """
        names = self._index.find(name)
        if not names:
            raise self._unknown(name)
        texts = [self[number] for number in range(len(self))] or [self]
        words = self._tokens or [[]]
        rows = ((n, full, one[full]) for full in names for n, one in enumerate(texts))
        return _exports.frame(rows, self._axes, words)

    @property
    def tokens(self) -> list[Any]:
        """The tokens: a list of strings for one text, or a list of such lists for a list of texts.

        If the input was one string or ids (T,), the result is one list. If the input was a list
        with one string or ids (1, T), the result is a list that contains one list.
        `trace[i].tokens` is always one list. `text`, `ids`, `offsets` and `special` follow the same
        rule.

        >>> import qkv
        >>> model = qkv.load("random")
        >>> model.trace("I love you").tokens
        ['i', 'love', 'you']
        >>> model.trace(["I love you"]).tokens, model.trace(["I love you"])[0].tokens
        ([['i', 'love', 'you']], ['i', 'love', 'you'])
        """
        return self._tokens[0] if self._one else self._tokens

    @property
    def text(self) -> Any:
        """The text as given: a string for one text, a list for several texts; "" if unknown."""
        return self._texts[0] if self._one else self._texts

    @property
    def ids(self) -> list[Any]:
        """The ids of the tokens in the model's vocabulary; empty if unknown."""
        return self._ids[0] if self._one else self._ids

    @property
    def offsets(self) -> list[Any]:
        """The span (start, end) of each token in its text; (0, 0) for special tokens."""
        return self._offsets[0] if self._one else self._offsets

    @property
    def special(self) -> list[Any]:
        """Whether each token is special ([CLS], [SEP] and similar tokens)."""
        return self._special[0] if self._one else self._special

    @property
    def lengths(self) -> Array:
        """The number of tokens of each text, `(B,)`."""
        return np.array([len(text) for text in self._tokens], dtype=np.int64)

    @property
    def changed(self) -> dict[str, list[Any]]:
        """The edits of the run, with the keys "edit", "ablate" and "hide".

        "edit" lists names of activations. "ablate" lists pairs of layer and head. "hide" lists
        masked words, positions and edges. An edge is (query, key), (query, key, layer) or (query,
        key, layer, head). The edge (None, None) stands for a causal mask. The dict is empty for a
        run without edits.
        """
        pairs = [(int(layer), int(head)) for layer, head in self._changed.get("ablate", ())]
        hidden = [
            tuple(x) if isinstance(x, list | tuple) else x if isinstance(x, int) else str(x)
            for x in self._changed.get("hide", ())
        ]
        edits = {"edit": list(self._changed.get("edit", ())), "ablate": pairs, "hide": hidden}
        return {name: values for name, values in edits.items() if values}

    @property
    def num_layers(self) -> int:
        """The number of layers of the model; if unknown, the number of kept layers."""
        return max(self._num_layers or 0, 1 + max(self.layers, default=-1))

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers with activations in this trace."""
        return numbers_of(self._arrays)

    @property
    def num_heads(self) -> int:
        """The number of query heads of the first traced layer."""
        for layer in (*self.layers, None):
            if heads := self._heads(layer):
                return heads
        raise KeyError(
            "trace: no activation of a head was traced, so the number of heads is unknown"
        )

    @public_call("pattern")
    def pattern(self, layer: int, head: int) -> Array:
        """Return the weights of one head for one text, `(Q, K)`. Each row sums to 1."""
        if len(self) > 1:
            raise value_error(f"this trace holds {len(self)} texts: call trace[0].pattern(...)")
        weights = self["pattern", layer]  # (1, Hq, Q, K)
        if not -weights.shape[1] <= head < weights.shape[1]:
            raise invalid(
                IndexError, f"there is no head {head}: layer {layer} has {weights.shape[1]} heads"
            )
        return np.asarray(weights[0, head])

    @property
    @public_call("attentions")
    def attentions(self) -> tuple[Array, ...]:
        """The weights of each layer `(B, Hq, Q, K)`, as `transformers` returns them.

        Raises:
            KeyError: some layers were not kept; the message names the kept layers.
        """
        return of_all(self, "pattern")

    @property
    @public_call("hidden_states")
    def hidden_states(self) -> tuple[Array, ...]:
        """The first layer's input and all layers' outputs, `(B, T, D)` each, as in `transformers`.

        The last array is the output of the final norm and projection, if the model has them.

        Raises:
            KeyError: some layers were not kept; the message names the kept layers.
        """
        after = list(of_all(self, "resid_post", "normalized_resid_post"))
        if (last := [name for name in _LAST if name in self]) and self._last_is_normed:
            after[-1] = self[last[-1]]
        return (self["resid_pre", 0], *after)

    @public_call("stack")
    def stack(self, name: str) -> Array:
        """Stack one activation of all layers in one array, with the layers as the first axis.

        Args:
            name: the name within a layer, such as "pattern", "z" or "mlp.post".

        Returns:
            A new array (layers, B, ...).

        Raises:
            KeyError: a layer lacks this activation, or the activation was not kept.
            ValueError: the shape of the activation differs between layers.

        >>> weights = {f"blocks.{n}.attn.hook_pattern": np.eye(2)[None, None] for n in range(3)}
        >>> Trace(weights).stack("pattern").shape
        (3, 1, 1, 2, 2)
        """
        layers = of_all(self, name)
        shapes = [array.shape for array in layers]
        odd = next((n for n, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is not None:
            raise value_error(
                f"{name} has shape {shapes[0]} in layer 0 and {shapes[odd]} in layer {odd}: read "
                f"trace[{name!r}, layer] for each layer"
            )
        return np.stack(layers)

    def attention_inputs(self, layer: int) -> dict[str, Any]:
        """Return the arguments with which `qkv.attention(**inputs)` computes this layer again.

        The arguments include edits of queries, keys and values, and masked tokens, but not edits of
        "attn_scores", "pattern" or "z", ablated heads, or the edit "scale".
        """
        query, key = (
            self[f"rot_{name}", layer] if (f"rot_{name}", layer) in self else self[name, layer]
            for name in ("q", "k")
        )
        layer += self.num_layers if layer < 0 else 0
        lengths, keys = self.lengths, key.shape[-3]
        is_self = keys == query.shape[-3]  # In cross-attention, the keys belong to another text.
        key_lengths = lengths if is_self else np.full_like(lengths, keys)
        inputs = inputs_of((query, key, self["v", layer]), lengths, key_lengths)
        return inputs | self._settings.get(layer, {})

    def save(self, path: StrPath) -> None:
        """Write the trace to one safetensors file. If an error occurs, no partial file is left."""
        write_trace(path, _KIND, *self.packed())

    def packed(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the trace as arrays, keyed by name, and as JSON values; `unpacked` reads both."""
        arrays = dict(self._arrays)
        options: dict[str, dict[str, Any]] = {}
        for layer, settings in self._settings.items():
            options[str(layer)] = {}
            for name, value in settings.items():
                if isinstance(value, np.ndarray):
                    arrays[_SETTING.format(layer, name)] = value
                else:
                    options[str(layer)][name] = value
        about = {name: getattr(self, f"_{name}") for name in _PER_TEXT} | self._run()
        return arrays, about | {"settings": options, "names": list(self._arrays)}

    def _run(self) -> dict[str, Any]:
        """Return the arguments of `Trace` that describe the run (model, edits), keyed by name."""
        attributes = vars(self)
        return {name: attributes.get(f"_{name}", attributes.get(name)) for name in _OF_RUN}

    @classmethod
    @public_call("Trace.load")
    def load(cls, path: StrPath) -> Any:
        """Read a trace that `save` wrote: a `Trace`, or for an encoder-decoder a `Seq2SeqTrace`."""
        return read_trace(path, _KINDS, what="a trace")

    @classmethod
    def unpacked(cls, arrays: Arrays, about: Mapping[str, Any]) -> "Trace":
        """Build a trace from the arrays and values that `packed` returned.

        Raises:
            ValueError: an array lacks the axis for texts, or does not have the axes of its
                activation; or the number of layers is negative.
        """
        num_layers = about.get("num_layers")
        if num_layers is not None:
            whole_number(num_layers, name="num_layers", least=0)
        single = next((name for name in about["names"] if not arrays[name].ndim), None)
        if single is not None:
            raise ValueError(f"{single} has no axes: it must have an axis for texts")
        settings = {int(layer): options for layer, options in about["settings"].items()}
        for name in sorted(set(arrays) - set(about["names"])):
            _, layer, option = name.split(".", 2)
            settings[int(layer)][option] = arrays[name]
        fields = {name: about[name] for name in (*_PER_TEXT, *_OF_RUN) if name in about}
        arrays = {name: arrays[name] for name in about["names"]}
        if about["tokens"]:
            longest = max(map(len, about["tokens"]))
            activations.check_shapes(arrays, len(about["tokens"]), longest, longest)
        return cls(arrays, settings=settings, **fields)

    @property
    def _one(self) -> bool:
        return self._single and len(self._tokens) == 1

    def _heads(self, layer: int | None) -> int | None:
        """Return the number of query heads of a layer; None if the trace does not show it."""
        if layer is not None and layer < len(self._query_heads):
            return self._query_heads[layer]
        for name, array in self._arrays.items():
            sizes = dict(zip(activations.axes(name, array.shape), array.shape, strict=True))
            if parse(name).layer == layer and "head" in sizes:
                return int(sizes["head"])
        return None

    def _axes(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes of an array."""
        return activations.axes(name, self._arrays[name].shape, self._heads(parse(name).layer))

    @cached_property
    def _index(self) -> NameIndex:
        return NameIndex(self._arrays, {"": self.num_layers})

    def _unknown(self, name: object) -> KeyError:
        return KeyError(f"trace: {self._index.why_not(name, in_trace=True)}")

    def _text(self, index: int) -> "Trace":
        if not -len(self) <= index < len(self):
            raise IndexError(f"trace: there is no text {index}: the trace holds {len(self)} texts")
        index %= len(self)
        length, longest = len(self._tokens[index]), int(self.lengths.max())
        rows = slice(index, index + 1)
        arrays = {
            name: array[rows] if length == longest else cut(name, array[rows], length, length)
            for name, array in self._arrays.items()
        }
        settings = {
            layer: _one_row(options, index, len(self), length)
            for layer, options in self._settings.items()
        }
        texts = {name: getattr(self, f"_{name}")[rows] for name in _PER_TEXT}
        return Trace(arrays, settings=settings, **texts, **self._run() | {"single": True})


class Seq2SeqTrace:
    """All activations of a run through an encoder-decoder.

    `trace.encoder` and `trace.decoder` are ordinary traces. This trace has all activations of the
    encoder and of the decoder, with TransformerLens's names for encoder-decoders:
    `trace["encoder.0.attn.hook_pattern"]`, `trace["decoder.0.attn.hook_pattern"]`,
    `trace["decoder.0.cross_attn.hook_pattern"]`, `trace["decoder.0.hook_resid_mid_cross"]`,
    `trace["decoder.hook_embed"]`. Short names work too: `trace["cross_attn.pattern", 0]`.
    `trace[i]` is the trace of the i-th pair of texts, without padding.

    Args:
        encoder: the trace of the text that the model read.
        decoder: the trace of the text that the model wrote.
        cross: the activations of cross-attention, keyed by the decoder's names.
        settings: the options of each layer's cross-attention.

    `qkv.head_view(trace)` shows three kinds of attention: the encoder's, the decoder's, and
    cross-attention. `qkv.show(trace.decoder)` shows only the decoder's text.
    """

    def __init__(
        self, encoder: Trace, decoder: Trace, cross: Arrays, *, settings: Settings | None = None
    ) -> None:
        self.encoder, self.decoder = encoder, decoder
        self._cross = {name: read_only(array) for name, array in cross.items()}
        self._settings = {layer: dict(one) for layer, one in (settings or {}).items()}

    def __repr__(self) -> str:
        return f"Seq2SeqTrace(encoder={self.encoder!r}, decoder={self.decoder!r})"

    def _repr_html_(self) -> str:
        """Return HTML with the tokens of both texts and the names of the arrays."""
        parts = [f"<p>trace.{side}</p>{getattr(self, side)._repr_html_()}" for side in SIDES]
        return "".join(parts) + (_exports.html("across", [], self._cross) if self._cross else "")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and hasattr(Trace, name):
                across = ", or for cross-attention trace.cross_attentions" * (name == "attentions")
                raise AttributeError(
                    f"trace: encoder and decoder have separate {name}: "
                    f"read trace.encoder.{name} or trace.decoder.{name}{across}"
                )
            raise AttributeError(f"'Seq2SeqTrace' object has no attribute {name!r}")

    def __len__(self) -> int:
        """Return the number of pairs of texts."""
        return len(self.encoder)

    def __contains__(self, name: object) -> bool:
        return self._index.one(name) is not None

    def __getitem__(self, name: str | tuple[Any, ...] | int) -> Any:
        """Return the array with a given name, or the trace of the text pair with a given number."""
        if isinstance(name, (int, np.integer)):
            return self._pair(int(name))
        full = self._index.one(name)
        if full is None:
            raise KeyError(f"trace: {self._index.why_not(name, in_trace=True)}")
        side, inner = side_of(full)
        if side == "decoder" and inner in self._cross:
            return self._cross[inner]
        return getattr(self, side)[inner]

    def names(self) -> list[str]:
        """Return the names of all arrays."""
        return list(self.keys())

    def keys(self) -> KeysView[str]:
        """Return the names of all arrays. `dict(trace)` calls `keys` and returns all arrays."""
        return self._all_arrays().keys()

    def items(self) -> ItemsView[str, Array]:
        """Yield each name with its array."""
        return self._all_arrays().items()

    def _all_arrays(self) -> dict[str, Array]:
        parts = {"encoder": dict(self.encoder), "decoder": dict(self.decoder) | self._cross}
        return {of_side(side, name): array for side in SIDES for name, array in parts[side].items()}

    @cached_property
    def _index(self) -> NameIndex:
        full = (f"{side}.{inner}" for side, inner in map(side_of, self.keys()))
        return NameIndex(full, {"encoder": self.encoder.num_layers, "decoder": self.num_layers})

    @property
    def num_layers(self) -> int:
        """The number of layers of the decoder; if unknown, the number of kept layers."""
        return max(self.decoder.num_layers, 1 + max(numbers_of(self._cross), default=-1))

    @property
    @public_call("cross_attentions")
    def cross_attentions(self) -> tuple[Array, ...]:
        """The decoder's weights on the encoder's tokens `(B, Hq, L, S)`, as in `transformers`.

        Raises:
            KeyError: some layers were not kept; the message names the kept layers.
        """
        return of_all(self, "cross_attn.pattern")

    def cross_attention_inputs(self, layer: int) -> dict[str, Any]:
        """Return the arguments with which `qkv.attention(**inputs)` repeats the cross-attention.

        For self-attention, call `trace.encoder.attention_inputs(layer)` or
        `trace.decoder.attention_inputs(layer)`.
        """
        layer += self.num_layers if layer < 0 else 0
        parts = (self[f"cross_attn.{name}", layer] for name in "qkv")
        inputs = inputs_of(parts, self.decoder.lengths, self.encoder.lengths)
        return inputs | self._settings.get(layer, {})

    def save(self, path: StrPath) -> None:
        """Write the trace to one safetensors file. If an error occurs, no partial file is left."""
        arrays = {f"cross {name}": array for name, array in self._cross.items()}
        settings = {layer: dict(one) for layer, one in self._settings.items()}
        for layer, one in settings.items():
            if _MASK in one:
                arrays[f"{_MASK} {layer}"] = one.pop(_MASK)
        about: dict[str, Any] = {"settings": settings, "cross": list(self._cross)}
        for side in SIDES:
            parts, about[side] = getattr(self, side).packed()
            arrays |= {f"{side} {name}": array for name, array in parts.items()}
        write_trace(path, _OF_PAIRS, arrays, about)

    @classmethod
    @public_call("Seq2SeqTrace.load")
    def load(cls, path: StrPath) -> "Seq2SeqTrace":
        """Read a file that `save` wrote; `qkv.Trace.load` can also read the file."""
        what = "a trace of an encoder-decoder"
        trace: Seq2SeqTrace = read_trace(path, {_OF_PAIRS: cls.unpacked}, what=what)
        return trace

    @classmethod
    def unpacked(cls, arrays: Arrays, about: Mapping[str, Any]) -> "Seq2SeqTrace":
        """Build a trace from the arrays and values that `save` wrote."""
        parts: dict[str, dict[str, Array]] = {part: {} for part in (*SIDES, "cross", _MASK)}
        for name, array in arrays.items():
            part, _, inner = name.partition(" ")
            parts[part][inner] = array
        encoder, decoder = (Trace.unpacked(parts[side], about[side]) for side in SIDES)
        settings = {int(layer): one for layer, one in about["settings"].items()}
        for number, mask in parts[_MASK].items():
            settings[int(number)][_MASK] = mask
        cross = {name: parts["cross"][name] for name in about["cross"]}
        longest = decoder.lengths.max(initial=0), encoder.lengths.max(initial=0)
        activations.check_shapes(cross, len(encoder), *map(int, longest))
        return cls(encoder, decoder, cross, settings=settings)

    def _pair(self, index: int) -> "Seq2SeqTrace":
        encoder, decoder = self.encoder[index], self.decoder[index]
        size, width = int(decoder.lengths[0]), int(encoder.lengths[0])
        index %= len(self)
        cross = {
            name: cut(name, array[index : index + 1], size, width)
            for name, array in self._cross.items()
        }
        settings = {layer: dict(one) for layer, one in self._settings.items()}
        for one in settings.values():
            if _MASK in one:  # (B, 1, 1, S)
                one[_MASK] = one[_MASK][index : index + 1, ..., :width]
        return Seq2SeqTrace(encoder, decoder, cross, settings=settings)


# Maps each kind of trace to the function that restores such a trace from a file.
_KINDS: dict[str, Unpack] = {_KIND: Trace.unpacked, _OF_PAIRS: Seq2SeqTrace.unpacked}


def read_only(array: Array) -> Array:
    """Return the array if it is read-only, otherwise a read-only view."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def of_all(trace: Any, *names: str) -> tuple[Array, ...]:
    """Return one array per layer; if a layer has several of `names`, use the last of them."""
    layers = range(trace.num_layers)
    by_layer = {n: name for n in layers for name in names if (name, n) in trace}
    if by_layer and len(by_layer) < len(layers):
        raise invalid(
            KeyError,
            f"this trace holds {names[0]} only for {activations.list_layers([*by_layer])} of "
            f"{len(layers)} layers: read trace[{names[0]!r}, {next(iter(by_layer))}], or "
            "record a trace without layers=",
        )
    return tuple(trace[by_layer.get(layer, names[0]), layer] for layer in layers)


def inputs_of(parts: Iterable[Array], query_lengths: Array, key_lengths: Array) -> dict[str, Any]:
    """Return the arguments of `qkv.attention` for one layer.

    Args:
        parts: the queries, keys and values, `(B, T, H, d)` each.
        query_lengths: (B,), the number of queries of each text, without padding.
        key_lengths: (B,), the number of keys of each text, without padding.
    """
    arrays = dict(zip(("query", "key", "value"), parts, strict=True))
    inputs = {name: np.swapaxes(array, -3, -2) for name, array in arrays.items()}  # (B, H, T, d)
    for name, lengths in (("query", query_lengths), ("key", key_lengths)):
        if (lengths != arrays[name].shape[-3]).any():
            inputs[f"{name}_lengths"] = lengths
    return inputs


def _one_row(options: Mapping[str, Any], index: int, texts: int, length: int) -> dict[str, Any]:
    """Return the attention options of one text, without the mask rows of other texts."""
    text_options = dict(options)
    for name in ("attn_mask", "bias"):
        added = options.get(name)
        if isinstance(added, np.ndarray) and added.ndim == 4:
            rows = slice(index, index + 1) if len(added) == texts else slice(None)
            text_options[name] = added[rows, :, :length, :length]
    return text_options
