"""What the attention of somebody else's model looked at, kept while the model runs."""

from __future__ import annotations

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

_KEPT = ("top_indices", "top_weights", "received", "lse")
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
    """

    owner: Any
    mask: Any = None
    start: int | None = None
    first_key: int = 0
    is_causal: bool = False
    padding: Array | None = None


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
        same = self.parts[0].lse.shape[:-1] == (*call.lead, call.shape[-3] * call.shape[-2])
        return bool(same and (self.crosses or ran.start == self.rows))

    def arrays(self) -> dict[str, Array]:
        """All steps as one: rows stand at the places of their queries, columns at those of keys."""
        rows, ahead = self.rows, self.ahead
        steps = list(zip(self.ran, self.parts, strict=True))
        keys = max(ran.first_key + part.received.shape[-1] for ran, part in steps)
        if self.first.is_causal:
            keys = min(keys, rows)  # a cache may have room for what is yet to come
        some = self.parts[0]
        received = np.zeros((*some.received.shape[:-1], keys), some.received.dtype)
        for ran, part in steps:
            here = part.received[..., : keys - ran.first_key]
            received[..., ran.first_key : ran.first_key + here.shape[-1]] += here
        indices = [np.where(p.top_indices < 0, -1, p.top_indices + r.first_key) for r, p in steps]
        weights, lse = [p.top_weights for p in self.parts], [p.lse for p in self.parts]
        if ahead:  # what was asked before the recording began
            indices.insert(0, np.full_like(some.top_indices, -1, shape=_rows(indices[0], ahead)))
            weights.insert(0, np.zeros_like(weights[0], shape=_rows(weights[0], ahead)))
            lse.insert(0, np.full_like(lse[0], -np.inf, shape=(*lse[0].shape[:-1], ahead)))
        return {
            "top_indices": np.concatenate(indices, axis=-2),
            "top_weights": np.concatenate(weights, axis=-2),
            "received": received,
            "lse": np.concatenate(lse, axis=-1),
        }


class Recording(Trace):
    """The trace that `qkv.record` fills: of each layer what its attention looked at.

    `tokens` can be set: for one text its tokens, for several a list for each. Until then they are
    the numbers of the places.
    """

    def __init__(self, top_k: int = 8, tokens: Sequence[Any] | None = None) -> None:
        super().__init__({})
        self._top_k = top_k
        self._given: Sequence[Any] | None = None
        self._layers: dict[tuple[int, int], _Layer] = {}
        self._latest: dict[int, tuple[Any, int]] = {}  # of a layer: its mask, and how often
        self._places: list[slice] = []  # of each text: where its tokens stand in the batch
        self._longest = 0
        if tokens is not None:
            self.tokens = tokens

    def add(self, ran: Ran, call: Call) -> tuple[Array, Array]:
        """Run a checked call, keep its summary; gives the result and the log-sum-exp."""
        before, times = self._latest.get(id(ran.owner), (None, 0))
        # one layer called again with the same mask is the next layer: its weights are shared
        times = times + 1 if ran.mask is not None and ran.mask is before else 0
        self._latest[id(ran.owner)] = ran.mask, times
        layer = self._layers.get((id(ran.owner), times))
        if layer is not None and not layer.is_continued_by(ran, call):
            self._layers.clear()  # the next forward pass
            layer = None
        if layer is None:
            # what is not causal in a decoder looks at other tokens, those of an encoder
            crosses = not ran.is_causal and any(x.first.is_causal for x in self._layers.values())
            layer = self._layers[id(ran.owner), times] = _Layer(ran, crosses)
        if layer.crosses:
            ran = Ran(ran.owner, ran.mask)
        seen = _of_tokens(call, ran)
        summary = summarize_call(seen, self._top_k)
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
            raise RuntimeError(
                "record: no attention ran through qkv: load the model with "
                'attn_implementation="qkv", and run it inside the block (a model of qkv itself: '
                "model.trace(texts, top_k=8))"
            )
        numbers = [getattr(layer.first.owner, "layer_idx", None) for layer in layers]
        if not all(isinstance(n, int) for n in numbers) or len(set(numbers)) < len(numbers):
            numbers = list(range(len(layers)))
        first = layers[0]
        texts, self._longest = first.parts[0].lse.shape[0], first.rows
        self._places = _places(first.ran[-1].padding, texts, self._longest)
        arrays: dict[str, Array] = {}
        others: dict[Any, str] = {}
        for number, layer in zip(numbers, layers, strict=True):
            parts = layer.arrays()
            padding = layer.ran[-1].padding
            if padding is not None and parts["received"].shape[-1] == layer.rows:
                _to_the_front(parts, _places(padding, len(parts["lse"]), layer.rows))
            arrays |= {f"blocks.{number}.attn.{name}": parts[name] for name in _KEPT}
            what = _other(layer, first, parts)
            if what:
                others[number] = what
        super().__init__(arrays, single=texts == 1, others=others)
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
        from qkv.see.words import is_special

        self._tokens = texts
        self._ids: list[list[int]] = [[] for _ in texts]
        self._offsets = [[(0, 0)] * len(text) for text in texts]
        self._special = [[is_special(token) for token in text] for text in texts]


@contextmanager
def record(*, top_k: int = 8, tokens: Sequence[Any] | None = None) -> Iterator[Recording]:
    """Keep what the attention of another library's model looks at, in O(L * top_k + S) memory.

    For models of `transformers` that were loaded with `attn_implementation="qkv"`, after
    `qkv.integrations.transformers.register()`. When the block ends the trace holds for each layer

    - `top_indices` and `top_weights (B, Hq, T, top_k)`: the keys that each query looked at most,
      the largest weight first, padded with -1 and 0;
    - `received (B, Hq, T)`: the weight that each key received from all queries;
    - `lse (B, Hq, T)`: the natural log of each query's sum of exponentials;

    and `qkv.show(trace)`, of a batch `qkv.show(trace[0])`, shows it. Of an encoder-decoder the
    tokens are the encoder's, and its layers are shown; `trace.other_layers` names the others, whose
    numbers are in the trace too.

    What was padding is cut off, on whichever side it stood. Layers have the numbers that they carry
    themselves (`layer_idx`) or, where some carry none or the same, those of the order in which they
    were called. Steps with a cache of keys are joined, as if all tokens had been run at once; any
    other second forward pass starts the trace anew. What runs in other threads is not recorded.

    Args:
        top_k: how many of each query's weights to keep.
        tokens: for one text its tokens, for several a list for each; `trace.tokens` can be set
            later too.

    Raises:
        RuntimeError: nothing was registered, a recording is under way already, or no attention ran
            through qkv before the block ended.
        ValueError: as many tokens as do not fit (when the block ends).
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
    recording = Recording(kept, tokens)
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
    length = call.shape[-1]
    start = ran.start or 0
    if ran.padding is None or ran.padding.shape[0] != call.lead[-1]:
        return call
    real = ran.padding[:, start : start + length]  # (B, L)
    if real.shape[1] < length or real.all():
        return call
    lengths = real.sum(axis=1)
    if (real == (np.arange(length) < lengths[:, None])).all():
        return replace(call, visibility=replace(call.visibility, query_lengths=lengths))
    if ran.is_causal:  # padding in front of all tokens sees none of them
        return call
    added = np.where(real, 0, -np.inf).astype(call.kind)[:, None, None, :, None]
    added = np.broadcast_to(
        added if call.bias is None else call.bias + added, (*call.shape, call.keys)
    )
    numbers = (*call.visibility.numbers, added)
    return replace(call, bias=added, visibility=replace(call.visibility, numbers=numbers))


def _other(layer: _Layer, first: _Layer, parts: Mapping[str, Array]) -> str:
    """What a layer is whose queries or keys are other tokens than the first layer's queries."""
    if layer.crosses:
        return "cross-attention"
    if layer.first.is_causal and not first.first.is_causal:
        return "the decoder's"
    size = (first.parts[0].lse.shape[0], first.rows)
    fits = all((len(parts[name]), parts[name].shape[-1]) == size for name in ("lse", "received"))
    return "" if fits else "attention of other tokens"


def _rows(like: Array, count: int) -> tuple[int, ...]:
    return (*like.shape[:-2], count, like.shape[-1])


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
    nothing = {"top_indices": -1, "top_weights": 0, "received": 0, "lse": -np.inf}
    for text, place in enumerate(places):
        size = place.stop - place.start
        for name in _KEPT:
            array = parts[name][text]  # (Hq, T), or (Hq, T, top_k)
            array[:, :size] = array[:, place].copy()
            array[:, size:] = nothing[name]
        indices = parts["top_indices"][text]
        indices[indices >= 0] -= place.start
