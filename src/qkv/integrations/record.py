"""What the attention of somebody else's model looked at, kept while the model runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, whole_number
from qkv.attend.call import Call
from qkv.attend.solve import answer
from qkv.attend.summary import AttentionSummary, summarize_call
from qkv.trace import Trace

# What is kept of each layer, and what it is where nothing was looked at.
_EMPTY = {"top_indices": -1, "top_weights": 0, "received": 0, "lse": -np.inf}
_CURRENT: ContextVar[Recording | None] = ContextVar("qkv_recording", default=None)
_REGISTERED: list[str] = []  # the libraries whose models can be recorded


@dataclass(frozen=True)
class Ran:
    """One call of attention inside a model.

    Attributes:
        owner: the layer that called.
        mask: an object that is the same in all layers of one forward pass and in no other pass;
            None where there is none.
        start: the place of query 0 in its text, None where that is not known.
        first_key: the place of key 0 in its text.
        is_causal: whether a query sees none of the places behind its own.
        padding: `(B, T)`, True where there is a token; None where there is no padding.
        call: an object that is the same in all attention of one call of `owner`, and no other.
        part: the part of the model that the layer is in, such as the encoder; it has all its layers
            under their names (`named_modules`). None where that is not known.
        whole: the outermost module that ran.
    """

    owner: Any
    mask: Any = None
    start: int | None = None
    first_key: int = 0
    is_causal: bool = False
    padding: Array | None = None
    call: Any = None
    part: Any = None
    whole: Any = None


@dataclass
class _Layer:
    """What one layer looked at in one forward pass, step by step where there is a cache."""

    first: Ran
    crosses: bool  # whether its keys are other tokens than its queries
    ran: list[Ran] = field(default_factory=list)
    parts: list[AttentionSummary] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The place after that of the last query."""
        return self.ahead + sum(int(part.lse.shape[-1]) for part in self.parts)

    @property
    def ahead(self) -> int:
        """The place of the first query."""
        return 0 if self.crosses else self.first.start or 0

    def is_continued_by(self, ran: Ran, call: Call) -> bool:
        """Whether these queries are the next ones of the texts that were seen so far."""
        same = self.parts[0].lse.shape[:-1] == call.plan.rows[:-1]
        return bool(same and (self.crosses or ran.start == self.rows))

    def arrays(self) -> dict[str, Array]:
        """All steps as one: rows stand at the places of their queries, columns at those of keys."""
        steps, first = list(zip(self.ran, self.parts, strict=True)), self.parts[0]
        keys = max(ran.first_key + part.received.shape[-1] for ran, part in steps)
        if self.first.is_causal:
            keys = min(keys, self.rows)  # a cache may have places for what is yet to come
        *lead, _, kept = first.top_indices.shape
        found = {  # as it is where nothing was looked at
            "top_indices": np.full((*lead, self.rows, kept), -1, first.top_indices.dtype),
            "top_weights": np.zeros((*lead, self.rows, kept), first.top_weights.dtype),
            "received": np.zeros((*lead, keys), first.received.dtype),
            "lse": np.full((*lead, self.rows), -np.inf, first.lse.dtype),
        }
        at = self.ahead  # rows of what was asked before the recording began stay empty
        for ran, part in steps:
            queries = slice(at, at + part.lse.shape[-1])
            indices = np.where(part.top_weights > 0, part.top_indices + ran.first_key, -1)
            found["top_indices"][..., queries, :] = indices
            found["top_weights"][..., queries, :] = part.top_weights
            found["lse"][..., queries] = part.lse
            here = part.received[..., : keys - ran.first_key]
            found["received"][..., ran.first_key : ran.first_key + here.shape[-1]] += here
            at = queries.stop
        return found


class Recording(Trace):
    """The trace that `qkv.record` fills: of each layer what its attention looked at.

    `tokens` can be set: for one text its tokens, for several a list for each. Until then they are
    the numbers of the places.
    """

    def __init__(
        self, top_k: int = 8, tokens: Sequence[Any] | None = None, module: Any = None
    ) -> None:
        super().__init__({})
        self._top_k = top_k
        self._module = module
        self._wanted = None if module is None else {id(part) for part in module.modules()}
        self._given: Sequence[Any] | None = None
        self._layers: dict[tuple[int, int], _Layer] = {}
        self._latest: dict[int, tuple[Any, int]] = {}  # of an owner: its mask, and how often
        self._call: Any = None  # the last
        self._places: list[slice] = []  # of each text: where its tokens stand in the batch
        self._longest = 0
        if tokens is not None:
            self.tokens = tokens

    def wants(self, owner: Any) -> bool:
        """Whether what this layer looks at is kept."""
        return self._wanted is None or id(owner) in self._wanted

    def add(self, ran: Ran, call: Call) -> tuple[Array, Array]:
        """Run a checked call, keep its summary; gives the result and the log-sum-exp.

        Raises:
            NotImplementedError: the owner attends several times in one call, not always alike.
        """
        before, times = self._latest.get(id(ran.owner), (None, 0))
        again = ran.call is not None and ran.call is self._call
        if not again:
            # one layer called again in the same pass is the next layer: its weights are shared
            times = times + 1 if ran.mask is not None and ran.mask is before else 0
        self._latest[id(ran.owner)], self._call = (ran.mask, times), ran.call
        ran = replace(ran, mask=None, call=None)
        layer = self._layers.get((id(ran.owner), times))
        if layer is not None and not again and not layer.is_continued_by(ran, call):
            self._layers.clear()  # the next forward pass
            layer = None
        if layer is None:
            # what is not causal in a decoder looks at other tokens, those of an encoder
            others = (x.first for x in self._layers.values() if x.first.part is ran.part)
            crosses = not ran.is_causal and any(other.is_causal for other in others)
            layer = self._layers[id(ran.owner), times] = _Layer(ran, crosses)
        if layer.crosses:
            ran = Ran(ran.owner)
        seen = _of_tokens(call, ran)
        summary = summarize_call(seen, self._top_k)
        if again:
            _check_alike(ran.owner, summary, layer.parts[-1])
        else:
            layer.ran.append(ran)
            layer.parts.append(summary._replace(out=summary.lse))
        if seen is call:
            return summary.out, summary.lse
        out, lse = answer(call, lse=True)
        return out, lse

    def finish(self) -> None:
        """Put together what was kept, under the names of a trace."""
        layers = list(self._layers.values())
        if not layers:
            whose = "" if self._module is None else f" of {type(self._module).__name__}"
            raise RuntimeError(
                f"record: no attention{whose} ran through qkv: load the model with "
                'attn_implementation="qkv", and run it inside the block (a model of qkv itself: '
                "model.trace(texts, top_k=8))"
            )
        places = _places_in_parts(layers)
        _check_one_part(layers, places)
        numbers = [getattr(layer.first.owner, "layer_idx", None) for layer in layers]
        if not all(isinstance(n, int) for n in numbers) or len(set(numbers)) < len(numbers):
            numbers = list(range(len(layers)))
        first = layers[0]
        texts, self._longest = first.parts[0].lse.shape[0], first.rows
        self._places = _places(first.ran[-1].padding, texts, self._longest)
        arrays: dict[str, Array] = {}
        others: dict[Any, str] = {}
        seen: dict[Any, Any] = {}
        for number, layer, place in zip(numbers, layers, places, strict=True):
            parts = layer.arrays()
            padding = layer.ran[-1].padding
            if padding is not None and parts["received"].shape[-1] == layer.rows:
                _to_the_front(parts, _places(padding, len(parts["lse"]), layer.rows))
            arrays |= {f"blocks.{number}.attn.{name}": parts[name] for name in _EMPTY}
            what = _other(layer, first, parts)
            owner = layer.first.owner
            if (
                not what
                and not layer.first.is_causal
                and seen.setdefault(place, owner) is not owner
            ):
                what = "a second attention of its layer"
            if what:
                others[number] = what
        self._arrays, self._others = arrays, others
        self._layers.clear()
        self._latest.clear()
        self._name([[str(i) for i in range(p.stop - p.start)] for p in self._places])
        if self._given is not None:
            self.tokens = self._given

    @property
    def tokens(self) -> list[Any]:
        """The tokens, a list of strings for one text and a list of such lists for several."""
        return super().tokens

    @tokens.setter
    def tokens(self, tokens: Sequence[Any]) -> None:
        if isinstance(tokens, str):
            raise TypeError("record: tokens is a string: give a list of tokens")
        if not self._places:
            self._given = tokens
            return
        texts = [tokens] if tokens and isinstance(tokens[0], str) else list(tokens)
        if len(texts) != len(self._places):
            raise ValueError(
                f"record: tokens of {len(texts)} texts for a run of {len(self._places)}: "
                "give a list of tokens for each"
            )
        named = []
        for number, (text, place) in enumerate(zip(texts, self._places, strict=True)):
            size = place.stop - place.start
            if len(text) not in (size, self._longest):
                raise ValueError(
                    f"record: {len(text)} tokens for text {number}, which has {size}: "
                    "give one for each, with those of its padding or without"
                )
            named.append([str(t) for t in (text if len(text) == size else text[place])])
        self._name(named)

    def _name(self, texts: list[list[str]]) -> None:
        from qkv.see.analysis.words import is_special

        special = [[is_special(token) for token in text] for text in texts]
        super().__init__(self._arrays, tokens=texts, special=special, others=self._others)


@contextmanager
def record(
    top_k: int = 8, tokens: Sequence[Any] | None = None, module: Any = None
) -> Iterator[Recording]:
    """Keep what the attention of another library's model looks at, in O(L * top_k + S) memory.

    For models of `transformers` that were loaded with `attn_implementation="qkv"`, after
    `qkv.integrations.transformers.register()`. When the block ends the trace holds for each layer

    - `top_indices` and `top_weights (B, Hq, T, top_k)`: the keys that each query looked at most,
      the largest weight first, padded with -1 and 0;
    - `received (B, Hq, T)`: the weight that each key received from all queries;
    - `lse (B, Hq, T)`: the natural log of each query's sum of exponentials;

    and `qkv.show(trace)`, of a batch `qkv.show(trace[0])`, shows it. Of an encoder-decoder the
    tokens are the encoder's, and its layers are shown; `trace.other_layers` names the others, whose
    numbers are in the trace too. Of a model with several parts, such as one for images and one for
    text, `module` says which is recorded.

    What was padding is cut off, on whichever side it stood. Layers have the numbers that they carry
    themselves (`layer_idx`) or, where some carry none or the same, those of the order in which they
    were called. Steps with a cache of keys are joined, as if all tokens had been run at once; any
    other second forward pass of the model starts the trace anew. What runs in other threads is not
    recorded.

    Args:
        top_k: how many of each query's weights to keep.
        tokens: for one text its tokens, for several a list for each; `trace.tokens` can be set
            later too.
        module: the part of the model to record, such as `model.language_model`: all else runs as
            it would without the block.

    Raises:
        RuntimeError: nothing was registered, a recording is under way already, or no attention ran
            through qkv before the block ended.
        TypeError: `module` is no part of a model.
        NotImplementedError: a part cuts its inputs into windows, packs several into one, or attends
            several times in a layer to different tokens (when it runs).
        ValueError: attention ran in several parts or models, and `module` names none; or as many
            tokens as do not fit (when the block ends).
    """
    kept = whole_number(top_k, call="record", name="top_k", least=1)
    if not _REGISTERED:
        raise RuntimeError(
            "record: no library's models run through qkv: call "
            "qkv.integrations.transformers.register(), and load the model with "
            'attn_implementation="qkv"'
        )
    if _CURRENT.get() is not None:
        raise RuntimeError(
            "record: a recording is under way: end its block before the next one begins"
        )
    if module is not None and not callable(getattr(module, "named_modules", None)):
        raise TypeError(
            f"record: module is a {type(module).__name__}: give a part of the model, such as "
            "model.language_model"
        )
    recording = Recording(kept, tokens, module)
    token = _CURRENT.set(recording)
    try:
        yield recording
    finally:
        _CURRENT.reset(token)
    recording.finish()


def current() -> Recording | None:
    """The recording that is under way here."""
    return _CURRENT.get()


def can_record(library: str) -> None:
    """From now on the models of `library` can be recorded."""
    if library not in _REGISTERED:
        _REGISTERED.append(library)


def _of_tokens(call: Call, ran: Ran) -> Call:
    """The same call where what is padding asks nothing, so that no key receives its weight."""
    length = call.plan.length
    start = ran.start or 0
    if ran.padding is None or ran.padding.shape[0] != (call.plan.lead or (1,))[-1]:
        return call
    real = ran.padding[:, start : start + length]  # (B, L)
    if real.shape[1] < length or real.all():
        return call
    lengths = real.sum(axis=1)
    if (real == (np.arange(length) < lengths[:, None])).all():
        return call._replace(query_lengths=lengths)
    if ran.is_causal:  # padding in front of all tokens sees none of them
        return call
    added = np.where(real, 0, -np.inf).astype(call.plan.kind)[:, None, :, None]  # (B, 1, L, 1)
    return call._replace(bias=added if call.bias is None else call.bias + added)


def _check_alike(owner: Any, summary: AttentionSummary, kept: AttentionSummary) -> None:
    """An error where one layer attends several times in one call, to different tokens."""
    pairs = [(getattr(summary, name), getattr(kept, name)) for name in _EMPTY]
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise NotImplementedError(
            f"record: {type(owner).__name__} attends several times in one call, not each time "
            "alike, and a trace has one attention for a layer: record one input, or leave this "
            "part out, record(module=another part)"
        )


def _names(whole: Any) -> dict[int, str]:
    return {id(module): name for name, module in whole.named_modules()}


def _places_in_parts(layers: Sequence[_Layer]) -> list[tuple[Any, str]]:
    """Of each layer the part that it is in, and its place there, such as `"layers.3"`."""
    names: dict[int, dict[int, str]] = {}
    places = []
    for layer in layers:
        part, owner = layer.first.part, layer.first.owner
        if part is None:
            places.append((owner, ""))
            continue
        if id(part) not in names:
            names[id(part)] = _names(part)
        path = names[id(part)].get(id(owner), "")
        numbered = re.match(r"(.*\b)?\d+(?=\.|$)", path)
        places.append((part, numbered.group() if numbered else path.rpartition(".")[0]))
    return places


def _check_one_part(layers: Sequence[_Layer], places: Sequence[tuple[Any, str]]) -> None:
    """An error where several parts ran, unless the second is a decoder that reads the first."""
    found: dict[tuple[int, str], list[_Layer]] = {}
    for layer, (part, place) in zip(layers, places, strict=True):
        if layer.first.part is not None:
            found.setdefault((id(part), re.sub(r"\d+", "*", place)), []).append(layer)
    if len(found) < 2 or (len(found) == 2 and _reads(*found.values())):
        return
    owners = {id(layer.first.owner) for layer in layers}
    wholes = {id(layer.first.whole): layer.first.whole for layer in layers}
    whole = next((x for x in wholes.values() if owners <= set(_names(x))), None)
    if whole is None:
        models = ", ".join(type(x).__name__ for x in wholes.values())
        raise ValueError(
            f"record: several models ran in one block, {models}: give each a block of its own, "
            "or say which to keep, record(module=model)"
        )
    names = _names(whole)
    parts = {}
    for (_, inside), [layer, *_rest] in found.items():
        path = names[id(layer.first.part)]
        if sum(id(x[0].first.part) == id(layer.first.part) for x in found.values()) > 1:
            path = f"{path}.{inside.split('*')[0].strip('.')}".strip(".")
        parts[re.sub(r"\.(\d+)", r"[\1]", f"model.{path}")] = type(layer.first.owner).__name__
    listed = ", ".join(f"{path} ({kind})" for path, kind in parts.items())
    raise ValueError(
        f"record: attention ran in {len(parts)} parts of {type(whole).__name__}, {listed}: say "
        f"which to keep, such as record(module={[*parts][-1]})"
    )


def _reads(first: Sequence[_Layer], second: Sequence[_Layer]) -> bool:
    """Whether `second` is a decoder whose cross-attention looks at the tokens of `first`."""
    crossing = [layer for layer in second if layer.crosses]
    size = (first[0].parts[0].lse.shape[0], first[0].rows)
    read = ((len(x.parts[0].lse), x.parts[0].received.shape[-1]) for x in crossing)
    return bool(crossing) and all(keys == size for keys in read) and not first[0].crosses


def _other(layer: _Layer, first: _Layer, parts: Mapping[str, Array]) -> str:
    """What a layer is whose queries or keys are other tokens than the first layer's queries."""
    if layer.crosses:
        return "cross-attention"
    if layer.first.is_causal and not first.first.is_causal:
        return "the decoder's"
    size = (first.parts[0].lse.shape[0], first.rows)
    fits = all((len(parts[name]), parts[name].shape[-1]) == size for name in ("lse", "received"))
    return "" if fits else "attention of other tokens"


def _places(padding: Array | None, texts: int, longest: int) -> list[slice]:
    """Where the tokens of each text stand, if its padding is in front of them or behind."""
    places = []
    for row in range(texts):
        real = np.arange(longest)
        if padding is not None and len(padding) == texts:
            found = np.flatnonzero(padding[row, :longest])
            real = found if len(found) and len(found) == found[-1] - found[0] + 1 else real
        places.append(slice(int(real[0]), int(real[-1]) + 1) if len(real) else slice(0, 0))
    return places


def _to_the_front(parts: dict[str, Array], places: Sequence[slice]) -> None:
    """Bring the tokens of each text to the front, where padding stood before them."""
    for text, place in enumerate(places):
        size = place.stop - place.start
        for name, empty in _EMPTY.items():
            array = parts[name][text]  # (Hq, T), or (Hq, T, top_k)
            array[:, :size] = array[:, place].copy()
            array[:, size:] = empty
        indices = parts["top_indices"][text]
        indices[indices >= 0] -= place.start
