"""What a trace is: every intermediate of a run by its name, with the tokens it belongs to."""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import ItemsView, KeysView, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, whole_number
from qkv.trace import exports
from qkv.trace.activations import activation, axes, counted, meant, numbers_of, parse, short_name
from qkv.trace.exports import Unpack, read_trace, write_trace

_LAST = "ln_final.hook_normalized"
_SETTING = "attention.{}.{}"
# What of a text is a list, one entry for each text.
_PER_TEXT = ("tokens", "ids", "offsets", "special", "texts")
_KIND = "qkv.trace"
# What puts a trace of each kind together from its file: of a pair, `seq2seq.py` adds.
KINDS: dict[str, Unpack] = {}


class Trace:
    """Every intermediate of one run, by the names of TransformerLens.

    A trace of a model holds arrays whose first axis is the text; `trace[i]` is text i alone,
    without its padding. `trace["blocks.3.attn.hook_pattern"]` is also `trace["pattern", 3]` and
    `trace["pattern", 3, "attn"]`, and `trace["hook_embed"]` also `trace["embed"]`. Layer -1 is the
    model's last, whichever were kept. An unknown name is a KeyError with the nearest. Arrays cannot
    be written to: take a copy.

    Args:
        arrays: name to array.
        tokens: for each text its tokens.
        ids: for each text the ids of its tokens.
        offsets: for each text the span of characters of each token, (0, 0) for special tokens.
        special: for each text which tokens are special ([CLS], [SEP] and their like).
        texts: for each text what was given.
        settings: for each layer the options its attention ran with, as `qkv.attention` takes them.
        single: whether it was made from one string, so that `tokens` is that text's own list.
        model: the name of the model.
        changed: what was done otherwise, "edit" (names), "ablate" (pairs of layer and head) and
            "hide" (words, places and edges).
        last_is_normed: whether the last of `hidden_states` is what the norm behind the last layer
            gives, where there is one: for models of images `transformers` leaves it out.
        others: of layers whose queries or keys are not the trace's tokens, what they are.
        num_layers: how many layers the model has; without it as many as left something.
        untrained: whether the model's queries and keys are made with random numbers.

    >>> trace = Trace({"blocks.0.attn.hook_pattern": np.ones((1, 2, 1, 1))}, tokens=[["hi"]])
    >>> trace.tokens, trace["pattern", 0].shape, trace.pattern(layer=0, head=1)
    (['hi'], (1, 2, 1, 1), array([[1.]]))
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        *,
        tokens: Sequence[Sequence[str]] = (),
        ids: Sequence[Sequence[int]] = (),
        offsets: Sequence[Sequence[tuple[int, int]]] = (),
        special: Sequence[Sequence[bool]] = (),
        texts: Sequence[str] = (),
        settings: Mapping[int, Mapping[str, Any]] | None = None,
        single: bool = True,
        model: str = "",
        changed: Mapping[str, Sequence[Any]] | None = None,
        last_is_normed: bool = True,
        others: Mapping[int, str] | None = None,
        num_layers: int | None = None,
        untrained: bool = False,
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
        self._others = dict(others or {})
        self.untrained = untrained

    def __repr__(self) -> str:
        what = f"{len(self)} texts, " if self._tokens else ""
        return f"Trace({what}{self.num_layers} layers, {len(self._arrays)} arrays)"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the tokens, and which arrays there are."""
        texts = f"{len(self)} text{'s' * (len(self) != 1)}"
        about = [self.model, texts * bool(self._tokens), f"{self.num_layers} layers"]
        if self.changed:
            about.append(", ".join(f"{name}={value}" for name, value in self.changed.items()))
        title = f"Trace: {', '.join(filter(None, about))}"
        return exports.html(title, self._tokens, self._arrays)

    def __len__(self) -> int:
        """How many texts."""
        return len(self._tokens)

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __getitem__(
        self, name: str | tuple[str, int | None] | tuple[str, int | None, str | None] | int
    ) -> Any:
        """An array by its name, or text number `name` as a trace of its own."""
        if isinstance(name, (int, np.integer)):
            return self._text(int(name))
        if isinstance(name, slice):
            raise TypeError(
                f"trace: {name} is of several texts: take one at a time, as trace[0], or rows of "
                'an array, as trace["pattern", 0][:2]'
            )
        found = self._find(name)
        if found is None:
            raise KeyError(self._unknown(name))
        return self._arrays[found]

    def with_tokens(self, tokens: Sequence[Sequence[str]]) -> Trace:
        """The same with other names for its tokens: a list of strings for each text.

        Raises:
            ValueError: a text has another number of tokens.
        """
        counts = [len(text) for text in tokens]
        if counts != self.lengths.tolist():
            raise ValueError(
                f"with_tokens: the texts have {self.lengths.tolist()} tokens and {counts} names "
                "were given: give one for each"
            )
        other = copy.copy(self)
        other._tokens = [list(text) for text in tokens]
        return other

    def names(self) -> list[str]:
        """The names of all arrays, in the order they were computed."""
        return list(self._arrays)

    def keys(self) -> KeysView[str]:
        """The same, as of a dict: `dict(trace)` is a dict of all arrays."""
        return self._arrays.keys()

    def items(self) -> ItemsView[str, Array]:
        """Each name with its array."""
        return self._arrays.items()

    def to_xarray(self) -> Any:
        """An `xarray.Dataset`: a variable for each array, which is not copied, with named axes.

        These are `text`, `token`, `query`, `key`, `head`, `kv_head` and the sizes `d`, `dv`, `D`,
        `F` and `V`; the coordinates `token_text`, `query_text` and `key_text` (B, T) are the
        tokens, "" in the padding, and `length` (B,) how many there are.

        Raises:
            ImportError: xarray is not installed.
        """
        about = {"model": self.model, "num_layers": self.num_layers}
        return exports.dataset(self._arrays, self._tokens, about)

    def to_pandas(self, name: str | tuple[Any, ...] = "pattern") -> Any:
        """A `pandas.DataFrame` with a row for each number of an activation, padding left out.

        Args:
            name: as the trace is indexed; a short name stands for all layers that have it.

        Returns:
            The columns are `text`, `layer`, the axes (`head`, `query`, `key`, ...), the tokens that
            they count (`query_text`, `key_text`, `token_text`) and `value`.

        Raises:
            ImportError: pandas is not installed.
            KeyError: there is no such name.
        """
        found = [self._find(name)]
        if found == [None] and isinstance(name, str):
            found = [self._find((name, layer)) for layer in self.layers]
        names = [full for full in found if full is not None]
        if not names:
            raise KeyError(self._unknown(name))
        texts = [self[number] for number in range(len(self))] or [self]
        words = self._tokens or [[]]
        rows = ((n, full, one[full]) for full in names for n, one in enumerate(texts))
        return exports.frame(rows, words, value="value")

    @property
    def tokens(self) -> list[Any]:
        """The tokens: a list of strings for one text, a list of such lists for a list of texts.

        What was given decides: a string, or ids (T,), gives one list, a list of one string, or ids
        (1, T), a list of one. `trace[i].tokens` is always one list. `text`, `ids`, `offsets` and
        `special` are as `tokens` is.

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
        """What was given: a string for one text, a list for several; "" where it is not known."""
        return self._texts[0] if self._one else self._texts

    @property
    def ids(self) -> list[Any]:
        """The ids of the tokens in their model's table; empty where they were not given."""
        return self._ids[0] if self._one else self._ids

    @property
    def offsets(self) -> list[Any]:
        """Where each token stands in its text, as (start, end); (0, 0) for special tokens."""
        return self._offsets[0] if self._one else self._offsets

    @property
    def special(self) -> list[Any]:
        """Which tokens are special ([CLS], [SEP] and their like)."""
        return self._special[0] if self._one else self._special

    @property
    def lengths(self) -> Array:
        """How many tokens each text has, `(B,)`."""
        return np.array([len(text) for text in self._tokens], dtype=np.int64)

    @property
    def changed(self) -> dict[str, list[Any]]:
        """What was done otherwise: "edit", "ablate" and "hide", where there is any.

        The first are names of activations, the second pairs of layer and head, and the third
        words, places and edges, tuples of a query, a key and where there are any layer and head;
        (None, None) for a causal mask.

        Empty for a run of the model as it is.
        """
        pairs = [(int(layer), int(head)) for layer, head in self._changed.get("ablate", ())]
        hidden = [
            tuple(x) if isinstance(x, list | tuple) else x if isinstance(x, int) else str(x)
            for x in self._changed.get("hide", ())
        ]
        found = {"edit": list(self._changed.get("edit", ())), "ablate": pairs, "hide": hidden}
        return {name: values for name, values in found.items() if values}

    @property
    def other_layers(self) -> dict[int, str]:
        """The layers whose queries or keys are not the trace's tokens, and what they are.

        Where `qkv.record` ran an encoder-decoder: "cross-attention" and "the decoder's".
        """
        return dict(self._others)

    @property
    def num_layers(self) -> int:
        """How many layers the model has, or, where that is not known, left something here."""
        return max(self._num_layers or 0, 1 + max(self.layers, default=-1))

    @property
    def layers(self) -> list[int]:
        """The layers of which something was kept, counted from 0."""
        return numbers_of(self._arrays)

    @property
    def num_heads(self) -> int:
        """How many query heads the first traced layer has."""
        for name, array in self._arrays.items():
            named = axes(name, array.shape)
            if "head" in named:
                return int(array.shape[named.index("head")])
        raise KeyError("trace: nothing of a head was traced, so their number is not known")

    def pattern(self, layer: int, head: int) -> Array:
        """The weights of one head for one text, `(Q, K)`, each row summing to 1."""
        if len(self) > 1:
            raise ValueError(
                f"pattern: this trace holds {len(self)} texts: take one, trace[0].pattern(...)"
            )
        weights = self["pattern", layer]  # (1, Hq, Q, K)
        if not -weights.shape[1] <= head < weights.shape[1]:
            raise IndexError(
                f"pattern: there is no head {head}: layer {layer} has {weights.shape[1]} heads"
            )
        found: Array = weights[0, head]
        return found

    @property
    def attentions(self) -> tuple[Array, ...]:
        """The weights of each layer `(B, Hq, Q, K)`, as `transformers` returns them.

        Raises:
            KeyError: they were not kept of all layers; it says of which they were.
        """
        return self._of_all("attentions", "pattern")

    @property
    def hidden_states(self) -> tuple[Array, ...]:
        """The first layer's input, then each layer's output `(B, T, D)`, as `transformers` does.

        Raises:
            KeyError: they were not kept of all layers; it says of which they were.
        """
        after = list(self._of_all("hidden_states", "resid_post", "normalized_resid_post"))
        if _LAST in self and self._last_is_normed:  # theirs is what the last norm makes of it
            after[-1] = self[_LAST]
        return (self["resid_pre", 0], *after)

    def stack(self, name: str) -> Array:
        """An activation of every layer in one array, the layers as its first axis.

        Args:
            name: what it is called in a layer: "pattern", "z", "resid_post", "mlp.post".

        Returns:
            (layers, B, ...), a copy.

        Raises:
            KeyError: a layer has none, or it was not kept of all.
            ValueError: the layers have it in different shapes.

        >>> weights = {f"blocks.{n}.attn.hook_pattern": np.eye(2)[None, None] for n in range(3)}
        >>> Trace(weights).stack("pattern").shape
        (3, 1, 1, 2, 2)
        """
        found = self._of_all("stack", name)
        shapes = [array.shape for array in found]
        odd = next((n for n, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is not None:
            raise ValueError(
                f"stack: {name} is {shapes[0]} in layer 0 and {shapes[odd]} in layer {odd}: take "
                f"trace[{name!r}, layer] of each"
            )
        return np.stack(found)

    def _of_all(self, call: str, *names: str) -> tuple[Array, ...]:
        """An array of every layer, the last of `names` that it has; or an error that says which."""
        layers = range(self.num_layers)
        found = {n: name for n in layers for name in names if (name, n) in self}
        if found and len(found) < len(layers):
            kept = [*found]
            raise KeyError(
                f"{call}: of {len(layers)} layers this trace holds {names[0]} of {counted(kept)} "
                f"alone: take trace[{names[0]!r}, {kept[0]}], or trace without layers="
            )
        return tuple(self[found.get(layer, names[0]), layer] for layer in layers)

    def attention_inputs(self, layer: int) -> dict[str, Any]:
        """What `qkv.attention(**inputs)` needs to run this layer again, heads in front."""
        query, key = (
            self[f"rot_{name}", layer] if (f"rot_{name}", layer) in self else self[name, layer]
            for name in ("q", "k")
        )
        layer += self.num_layers if layer < 0 else 0
        lengths, keys = self.lengths, key.shape[-3]
        own = keys == query.shape[-3]  # or they are those of another text, whole
        key_lengths = lengths if own else np.full_like(lengths, keys)
        inputs = inputs_of(query, key, self["v", layer], lengths, key_lengths)
        return inputs | self._settings.get(layer, {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to one safetensors file, whole or not at all."""
        write_trace(path, _KIND, *self.packed())

    def packed(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All arrays by name, and the rest as JSON can hold it: what `unpacked` takes."""
        arrays = dict(self._arrays)
        options: dict[str, dict[str, Any]] = {}
        for layer, settings in self._settings.items():
            options[str(layer)] = {}
            for name, value in settings.items():
                if isinstance(value, np.ndarray):
                    arrays[_SETTING.format(layer, name)] = value
                else:
                    options[str(layer)][name] = value
        return arrays, {
            **{name: getattr(self, f"_{name}") for name in _PER_TEXT},
            "settings": options,
            "single": self._single,
            "model": self.model,
            "changed": self._changed,
            "last_is_normed": self._last_is_normed,
            "others": list(self._others.items()),
            "num_layers": self._num_layers,
            "untrained": self.untrained,
            "names": list(self._arrays),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """Read a trace that `save` wrote: a `Trace`, or an encoder-decoder's `Seq2SeqTrace`."""
        return read_trace(path, KINDS, call="Trace.load", what="a trace")

    @classmethod
    def unpacked(cls, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> Trace:
        """The trace that `packed` took apart.

        Raises:
            ValueError: an array has no axis of texts, or there can be no such number of layers.
        """
        num_layers = about.get("num_layers")
        if num_layers is not None:
            whole_number(num_layers, call="trace", name="num_layers", least=0)
        single = next((name for name in about["names"] if not arrays[name].ndim), None)
        if single is not None:
            raise ValueError(f"{single} is one number, and no array")
        settings = {int(layer): options for layer, options in about["settings"].items()}
        for name in sorted(set(arrays) - set(about["names"])):
            _, layer, option = name.split(".", 2)
            settings[int(layer)][option] = arrays[name]
        return cls(
            {name: arrays[name] for name in about["names"]},
            settings=settings,
            others={int(layer): str(what) for layer, what in about.get("others", ())},
            single=about["single"],
            model=about["model"],
            changed=about.get("changed"),
            last_is_normed=about.get("last_is_normed", True),
            num_layers=num_layers,
            untrained=about.get("untrained", False),
            **{name: about[name] for name in _PER_TEXT if name in about},
        )

    @property
    def _one(self) -> bool:
        return self._single and len(self._tokens) == 1

    def _find(self, name: object) -> str | None:
        names = meant(name, self.num_layers)
        return next((full for full in names if full in self._arrays), None)

    def _unknown(self, name: object) -> str:
        names = meant(name, self.num_layers)
        asked = parse(names[0]).layer if names else None
        layer: Any = name[1] if isinstance(name, tuple) and len(name) > 1 else asked
        if is_whole_number(layer) and not -self.num_layers <= layer < self.num_layers:
            return f"trace: there is no layer {layer}: it holds {self.num_layers} layers"
        ways = {parse(full).local for full in names}
        kept = numbers_of(full for full in self._arrays if parse(full).local in ways)
        if asked is not None and kept:
            return (
                f"trace: {name!r} was not kept: layer {asked} is not among those traced, and "
                f"{counted(kept)} {'are' if len(kept) > 1 else 'is'}"
            )
        shown = name[0] if isinstance(name, tuple) and name else name
        own = layer % self.num_layers if is_whole_number(layer) else -1  # its names come last
        ordered = sorted(self._arrays, key=lambda full: parse(full).layer == own)
        short = {short_name(full): full for full in ordered}
        known = [*self._arrays, *short]
        near = difflib.get_close_matches(str(shown), known, n=3, cutoff=0.5)
        near = [short.get(match, match) for match in near] or list(self._arrays)[:3]
        why = f"there is no {name!r}; the nearest are {', '.join(dict.fromkeys(near))}"
        rare = next((full for full in names if not activation(full).unasked), None)
        if rare is None:
            return f"trace: {why}"
        return f"trace: {why}; {rare} is kept where it is asked for: trace(..., names=[{rare!r}])"

    def _text(self, index: int) -> Trace:
        if not -len(self) <= index < len(self):
            raise IndexError(f"trace: there is no text {index}: it holds {len(self)} texts")
        index %= len(self)
        length, longest = len(self._tokens[index]), int(self.lengths.max())
        rows = slice(index, index + 1)
        arrays = {
            name: array[rows]
            if parse(name).layer in self._others or length == longest
            else cut(name, array[rows], length, length)
            for name, array in self._arrays.items()
        }
        settings = {
            layer: _one_row(options, index, len(self), length)
            for layer, options in self._settings.items()
        }
        return Trace(
            arrays,
            settings=settings,
            others=self._others,
            **{name: getattr(self, f"_{name}")[rows] for name in _PER_TEXT},
            model=self.model,
            changed=self._changed,
            last_is_normed=self._last_is_normed,
            num_layers=self._num_layers,
            untrained=self.untrained,
        )


KINDS[_KIND] = Trace.unpacked


def read_only(array: Array) -> Array:
    """The same array, or a view of it that cannot be written to."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def inputs_of(
    query: Array, key: Array, value: Array, query_lengths: Array, key_lengths: Array
) -> dict[str, Any]:
    """Arguments of `qkv.attention` for arrays `(B, T, H, d)` of texts of these lengths."""
    arrays = {"query": query, "key": key, "value": value}
    inputs: dict[str, Any] = {
        name: np.swapaxes(array, -3, -2) for name, array in arrays.items()
    }  # (B, H, T, d)
    for name, lengths in (("query", query_lengths), ("key", key_lengths)):
        if (lengths != arrays[name].shape[-3]).any():
            inputs[f"{name}_lengths"] = lengths
    return inputs


def cut(name: str, array: Array, queries: int, keys: int) -> Array:
    """One text's part of an array, without the padding of its queries and of its keys."""
    tokens = keys if activation(name).of_keys else queries
    sizes = {"query": queries, "key": keys, "token": tokens}
    return array[tuple(slice(sizes.get(axis)) for axis in axes(name, array.shape))]


def _one_row(options: Mapping[str, Any], index: int, texts: int, length: int) -> dict[str, Any]:
    """One text's part of the options of an attention: of a mask `(B, Hq, T, T)`, say."""
    found = dict(options)
    for name in ("attn_mask", "bias"):
        added = options.get(name)
        if isinstance(added, np.ndarray) and added.ndim == 4:
            rows = slice(index, index + 1) if len(added) == texts else slice(None)
            found[name] = added[rows, :, :length, :length]
    return found
