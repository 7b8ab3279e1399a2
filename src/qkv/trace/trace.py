"""What a trace is: every intermediate of a run by its name, with the tokens it belongs to."""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.files import replacing

_SCORES = "hook_attn_scores"
_LAST = "ln_final.hook_normalized"
_SETTING = "attention.{}.{}"
_KINDS: dict[str, Callable[[str | os.PathLike[str]], Any]] = {}


class Recorder:
    """Collects arrays by name while a model or a layer runs.

    Args:
        wanted: says of a name whether it is kept; everything is kept without it.

    >>> record = Recorder(lambda name: name.endswith("hook_z"))
    >>> record.under("blocks.0.attn.")("hook_z", np.zeros(2))
    >>> list(record.arrays), record.wants("hook_q")
    (['blocks.0.attn.hook_z'], False)
    """

    def __init__(self, wanted: Callable[[str], bool] | None = None) -> None:
        self.arrays: dict[str, Array] = {}
        self._wanted = wanted
        self._prefix = ""

    def wants(self, *names: str) -> bool:
        """Whether any of these names is kept: ask before computing something for it alone."""
        return self._wanted is None or any(self._wanted(self._prefix + name) for name in names)

    def __call__(self, name: str, array: Array) -> None:
        """Keep `array` under `name`, if it is wanted; bfloat16, which few can read, as float32."""
        if self.wants(name):
            short = array.dtype.name == "bfloat16"
            self.arrays[self._prefix + name] = array.astype(np.float32) if short else array

    def under(self, prefix: str) -> Recorder:
        """The same recorder, with `prefix` put in front of every name."""
        inner = Recorder(self._wanted)
        inner.arrays = self.arrays
        inner._prefix = self._prefix + prefix
        return inner


class Trace:
    """Every intermediate of one run, by the names of TransformerLens.

    A trace of a model holds arrays whose first axis is the text; `trace[i]` is text i alone,
    without its padding. `trace["blocks.3.attn.hook_pattern"]` is also `trace["pattern", 3]`, and
    `trace["hook_embed"]` also `trace["embed"]`. An unknown name is a KeyError with the nearest.

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
        changed: what the run went without, "ablate" (pairs of layer and head) and "hide" (words).
        last_is_normed: whether the last of `hidden_states` is what the norm behind the last layer
            gives, where there is one: for models of images `transformers` leaves it out.
        others: of layers whose queries or keys are not the trace's tokens, what they are.

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
    ) -> None:
        self._arrays = dict(arrays)
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

    def __repr__(self) -> str:
        what = f"{len(self)} texts, " if self._tokens else ""
        return f"Trace({what}{self.num_layers} layers, {len(self._arrays)} arrays)"

    def __len__(self) -> int:
        """How many texts."""
        return len(self._tokens)

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __getitem__(self, name: str | tuple[str, int] | int) -> Any:
        """An array by its name, or text number `name` as a trace of its own."""
        if isinstance(name, (int, np.integer)):
            return self._text(int(name))
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

    @property
    def tokens(self) -> list[Any]:
        """The tokens, a list of strings for one text and a list of such lists for several."""
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
        """What the run went without: "ablate", pairs of layer and head, and "hide", words.

        Empty for a run of the model as it is.
        """
        pairs = [(int(layer), int(head)) for layer, head in self._changed.get("ablate", ())]
        words = [str(word) for word in self._changed.get("hide", ())]
        return {name: found for name, found in (("ablate", pairs), ("hide", words)) if found}

    @property
    def other_layers(self) -> dict[int, str]:
        """The layers whose queries or keys are not the trace's tokens, and what they are.

        Where `qkv.record` ran an encoder-decoder: "cross-attention" and "the decoder's".
        """
        return dict(self._others)

    @property
    def num_layers(self) -> int:
        """How many layers left something in the trace."""
        return 1 + max(
            (int(n[7:].split(".")[0]) for n in self._arrays if n[:7] == "blocks."), default=-1
        )

    @property
    def num_heads(self) -> int:
        """How many query heads the first traced layer has."""
        for name, array in self._arrays.items():
            if name.endswith(("hook_pattern", _SCORES, ".lse")):
                return int(array.shape[1])
            if name.endswith(("hook_q", "hook_z")):
                return int(array.shape[-2])
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
        """The weights of each layer `(B, Hq, Q, K)`, as `transformers` returns them."""
        return tuple(self["pattern", layer] for layer in range(self.num_layers))

    @property
    def hidden_states(self) -> tuple[Array, ...]:
        """The first layer's input, then each layer's output `(B, T, D)`, as `transformers` does."""
        after = []
        for layer in range(self.num_layers):
            normalized = f"blocks.{layer}.hook_normalized_resid_post"
            after.append(self[normalized] if normalized in self else self["resid_post", layer])
        if _LAST in self and self._last_is_normed:  # theirs is what the last norm makes of it
            after[-1] = self[_LAST]
        return (self["resid_pre", 0], *after)

    def attention_inputs(self, layer: int) -> dict[str, Any]:
        """What `qkv.attention(**inputs)` needs to run this layer again, heads in front."""
        query, key = (
            self[f"rot_{name}", layer] if (f"rot_{name}", layer) in self else self[name, layer]
            for name in ("q", "k")
        )
        front = [
            np.swapaxes(part, -3, -2) for part in (query, key, self["v", layer])
        ]  # (B, H, T, d)
        inputs = dict(zip(("query", "key", "value"), front, strict=True))
        lengths = self.lengths
        if len(lengths) and (lengths != query.shape[-3]).any():
            inputs |= {"query_lengths": lengths, "key_lengths": lengths}
        layer += self.num_layers if layer < 0 else 0
        return inputs | self._settings.get(layer, {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to one safetensors file, whole or not at all."""
        from safetensors.numpy import save

        arrays, about = self.packed()
        with replacing(path) as file:
            file.write(save(arrays, {"qkv.trace": json.dumps(about)}))

    def packed(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All arrays by name, and the rest as JSON can hold it: what `unpacked` takes."""
        arrays = {name: np.ascontiguousarray(array) for name, array in self._arrays.items()}
        options: dict[str, dict[str, Any]] = {}
        for layer, settings in self._settings.items():
            options[str(layer)] = {}
            for name, value in settings.items():
                if isinstance(value, np.ndarray):
                    arrays[_SETTING.format(layer, name)] = np.ascontiguousarray(value)
                else:
                    options[str(layer)][name] = value
        return arrays, {
            "tokens": self._tokens,
            "ids": self._ids,
            "offsets": self._offsets,
            "special": self._special,
            "texts": self._texts,
            "settings": options,
            "single": self._single,
            "model": self.model,
            "changed": self._changed,
            "last_is_normed": self._last_is_normed,
            "others": list(self._others.items()),
            "names": list(self._arrays),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """Read a trace that `save` wrote: a `Trace`, or an encoder-decoder's `Seq2SeqTrace`."""
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise FileNotFoundError(f"Trace.load: there is no file {path}")
        try:
            with safe_open(path, framework="numpy") as file:
                found = file.metadata() or {}
                kind = next((kind for kind in _KINDS if kind in found), "")
                if not kind:
                    about = json.loads(found["qkv.trace"])
                    arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
                    return cls.unpacked(arrays, about)
        except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"Trace.load: {path} is not a trace that qkv saved: {error!r:.200}"
            ) from error
        return _KINDS[kind](path)

    @classmethod
    def unpacked(cls, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> Trace:
        """The trace that `packed` took apart."""
        settings = {int(layer): options for layer, options in about["settings"].items()}
        for name in sorted(set(arrays) - set(about["names"])):
            _, layer, option = name.split(".", 2)
            settings[int(layer)][option] = arrays[name]
        return cls(
            {name: arrays[name] for name in about["names"]},
            tokens=about["tokens"],
            ids=about["ids"],
            offsets=about["offsets"],
            special=about["special"],
            texts=about.get("texts", ()),
            settings=settings,
            single=about["single"],
            model=about["model"],
            changed=about.get("changed"),
            last_is_normed=about.get("last_is_normed", True),
            others={int(layer): str(what) for layer, what in about.get("others", ())},
        )

    @property
    def _one(self) -> bool:
        return self._single and len(self._tokens) == 1

    def _find(self, name: object) -> str | None:
        if isinstance(name, str):
            candidates = [name, f"hook_{name}"]
        elif isinstance(name, tuple) and len(name) == 2 and isinstance(name[0], str):
            short, layer = name
            if isinstance(layer, int) and layer < 0:
                layer += self.num_layers
            places = ("attn.hook_", "hook_", "attn.", "")
            candidates = [f"blocks.{layer}.{place}{short}" for place in places]
        else:
            return None
        return next((candidate for candidate in candidates if candidate in self._arrays), None)

    def _unknown(self, name: object) -> str:
        if isinstance(name, tuple) and isinstance(name[-1], int) and name[-1] >= self.num_layers:
            return f"trace: there is no layer {name[-1]}: it holds {self.num_layers} layers"
        shown = name[0] if isinstance(name, tuple) and name else name
        short = {re.sub(r".*(hook_|\.)", "", full): full for full in self._arrays}
        known = [*self._arrays, *short]
        near = difflib.get_close_matches(str(shown), known, n=3, cutoff=0.5)
        near = [short.get(match, match) for match in near] or list(self._arrays)[:3]
        return f"trace: there is no {name!r}; the nearest are {', '.join(dict.fromkeys(near))}"

    def _text(self, index: int) -> Trace:
        if not -len(self) <= index < len(self):
            raise IndexError(f"trace: there is no text {index}: it holds {len(self)} texts")
        index %= len(self)
        length, longest = len(self._tokens[index]), int(self.lengths.max())
        whole = tuple(f"blocks.{layer}." for layer in self._others)
        arrays = {
            name: array[index : index + 1]
            if name.startswith(whole)
            else _cut(name, array[index : index + 1], length, longest)
            for name, array in self._arrays.items()
        }
        return Trace(
            arrays,
            tokens=self._tokens[index : index + 1],
            ids=self._ids[index : index + 1],
            offsets=self._offsets[index : index + 1],
            special=self._special[index : index + 1],
            texts=self._texts[index : index + 1],
            settings={
                layer: _one_row(options, index, len(self), length)
                for layer, options in self._settings.items()
            },
            model=self.model,
            changed=self._changed,
            last_is_normed=self._last_is_normed,
            others=self._others,
        )


def can_load(kind: str, read: Callable[[str | os.PathLike[str]], Any]) -> None:
    """From now on `Trace.load` has a file that carries the key `kind` read by `read`."""
    _KINDS[kind] = read


def _cut(name: str, array: Array, length: int, longest: int) -> Array:
    """One text's part of an array, without its padding."""
    if length == longest:
        return array
    if name.endswith(("hook_pattern", _SCORES)):
        return array[..., :length, :length]
    if name.endswith((".received", ".lse")):
        return array[..., :length]
    if name.endswith((".top_indices", ".top_weights")):
        return array[..., :length, :]
    return array[:, :length]


def _one_row(options: Mapping[str, Any], index: int, texts: int, length: int) -> dict[str, Any]:
    """One text's part of the options of an attention: of a mask `(B, Hq, T, T)`, say."""
    found = dict(options)
    for name in ("attn_mask", "bias"):
        added = options.get(name)
        if isinstance(added, np.ndarray) and added.ndim == 4:
            rows = slice(index, index + 1) if len(added) == texts else slice(None)
            found[name] = added[rows, :, :length, :length]
    return found
