"""Record the attention of another library's model while it runs."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays, whole_number
from qkv.attend.arguments import Call
from qkv.attend.attention import AttentionSummary, answer, summarize_call
from qkv.trace import Trace

# The arrays that summarise a layer, and the value that fills positions without recorded attention.
_EMPTY = {"top_indices": -1, "top_weights": 0, "received": 0, "lse": -np.inf}
# State: a torch model calls attention without an argument for the recording. The recording is
# current in the `with` block of one thread.
CURRENT: "ContextVar[Recording | None]" = ContextVar("qkv_recording", default=None)
# State: libraries with models that can be recorded. A library stays registered until the process
# ends.
REGISTERED: set[str] = set()


@dataclass(frozen=True)
class Ran:
    """One call of attention inside a model.

    Attributes:
        owner: the layer that called attention.
        mask: the mask object that all layers of one forward pass share; it identifies the pass.
            None if unknown.
        start: the position of the first query in its text; None if unknown.
        first_key: the position of the first key in its text.
        is_causal: whether attention is causal (no query sees later positions).
        padding: `(B, T)`, True for tokens and False for padding; None without padding.
        call: an object that identifies the call of `owner`. If `owner` computes attention twice in
            one call, this object is the same in both records.
        part: the part of the model that contains the layer, such as the encoder; None if unknown.
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
    """One layer's attention in one forward pass or, with a KV cache, in several steps."""

    first: Ran
    crosses: bool  # whether the layer is cross-attention
    ran: list[Ran] = field(default_factory=list)
    parts: list[AttentionSummary] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of positions up to the last query."""
        return self.ahead + sum(int(part.lse.shape[-1]) for part in self.parts)

    @property
    def ahead(self) -> int:
        """The position of the first query."""
        return 0 if self.crosses else self.first.start or 0

    @property
    def size(self) -> tuple[int, int]:
        """`(texts, length)`: the number of texts, and the length of the longest text."""
        return len(self.parts[0].lse), self.rows

    def is_continued_by(self, ran: Ran, call: Call) -> bool:
        """Return whether the queries of `call` begin directly after the recorded queries."""
        same = self.parts[0].lse.shape[:-1] == call.plan.rows[:-1]
        return bool(same and (self.crosses or ran.start == self.rows))

    def arrays(self) -> dict[str, Array]:
        """Join the summaries of all steps; return arrays such as `lse (texts, Hq, T)`."""
        steps, first = list(zip(self.ran, self.parts, strict=True)), self.parts[0]
        keys = max(ran.first_key + part.received.shape[-1] for ran, part in steps)
        if self.first.is_causal:
            keys = min(keys, self.rows)  # a cache may reserve positions for future tokens
        *lead, _, top_k = first.top_indices.shape
        shapes = dict.fromkeys(("top_indices", "top_weights"), (*lead, self.rows, top_k))
        shapes |= {"received": (*lead, keys), "lse": (*lead, self.rows)}
        arrays = {
            name: np.full(shape, _EMPTY[name], getattr(first, name).dtype)
            for name, shape in shapes.items()
        }
        at = self.ahead  # earlier queries were not recorded, so their rows stay empty
        for ran, part in steps:
            queries = slice(at, at + part.lse.shape[-1])
            indices = np.where(part.top_weights > 0, part.top_indices + ran.first_key, -1)
            arrays["top_indices"][..., queries, :] = indices
            arrays["top_weights"][..., queries, :] = part.top_weights
            arrays["lse"][..., queries] = part.lse
            here = part.received[..., : keys - ran.first_key]
            arrays["received"][..., ran.first_key : ran.first_key + here.shape[-1]] += here
            at = queries.stop
        return arrays


class Recording(Trace):
    """The trace of `qkv.record`, with a summary of each layer's attention.

    Set `tokens` to a list of tokens or, for several texts, to a list for each text.
    Until `tokens` is set, each token is named by its position.
    """

    def __init__(self, top_k: int, tokens: Sequence[Any] | None, module: Any) -> None:
        super().__init__({})
        self._top_k, self._module = top_k, module
        self._wanted = None if module is None else {id(part) for part in module.modules()}
        self._layers: dict[tuple[int, int], _Layer] = {}
        # The key is the id of a layer. The value describes the layer's last call: the call's mask,
        # and the number of earlier calls of the layer in the same forward pass.
        self._latest: dict[int, tuple[Any, int]] = {}
        self._call: Any = None  # The object that identifies the last call.
        self._spans: list[slice] = []  # The positions of the tokens in each text, without padding.
        self._longest = 0
        self._early_tokens: Sequence[Any] | None = None  # tokens that were set before the run
        if tokens is not None:
            self.tokens = tokens

    def wants(self, owner: Any) -> bool:
        """Return whether this layer is recorded."""
        return self._wanted is None or id(owner) in self._wanted

    def add(self, ran: Ran, call: Call) -> tuple[Array, Array]:
        """Run a checked call and keep its summary; return `(out, lse)`.

        Raises:
            NotImplementedError: the layer computes attention several times in one call, and the
                results differ.
        """
        before, times = self._latest.get(id(ran.owner), (None, 0))
        again = ran.call is not None and ran.call is self._call
        if not again:
            # one module runs twice in a forward pass if the model uses it as two of its layers
            times = times + 1 if ran.mask is not None and ran.mask is before else 0
        self._latest[id(ran.owner)], self._call = (ran.mask, times), ran.call
        ran = replace(ran, mask=None, call=None)
        layer = self._layers.get((id(ran.owner), times))
        if layer is not None and not again and not layer.is_continued_by(ran, call):
            self._layers.clear()  # a new forward pass begins
            layer = None
        if layer is None:
            # in a decoder, attention that is not causal is cross-attention
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
        """Add the summaries of all layers to the trace."""
        layers = list(self._layers.values())
        if not layers:
            whose = "" if self._module is None else f" of {type(self._module).__name__}"
            raise RuntimeError(
                f"record: no attention{whose} ran through qkv: load the model with "
                'attn_implementation="qkv", and run it inside the block (for a qkv model, call '
                "model.trace(texts, top_k=8))"
            )
        paths = _paths(layers)
        _check_one_part(layers, paths)
        numbers: list[Any] = [getattr(layer.first.owner, "layer_idx", None) for layer in layers]
        if not all(isinstance(n, int) for n in numbers) or len(set(numbers)) < len(numbers):
            numbers = list(range(len(layers)))
        first = layers[0]
        texts, self._longest = first.size
        self._spans = _spans(first.ran[-1].padding, texts, self._longest)
        owners: dict[Any, Any] = {}
        for number, layer, path in zip(numbers, layers, paths, strict=True):
            parts = layer.arrays()
            padding, owner = layer.ran[-1].padding, layer.first.owner
            if padding is not None and parts["received"].shape[-1] == layer.rows:
                _to_the_front(parts, _spans(padding, *layer.size))
            self._arrays |= {f"blocks.{number}.attn.{name}": parts[name] for name in _EMPTY}
            other = _other(layer, first, parts)
            if not other and not layer.first.is_causal:
                is_first = owners.setdefault(path, owner) is owner
                other = "" if is_first else "a second attention module in the same layer"
            if other:
                self._others[number] = other
        self._layers.clear()
        self._latest.clear()
        self._name([[str(i) for i in range(span.stop - span.start)] for span in self._spans])
        if self._early_tokens is not None:
            self.tokens = self._early_tokens

    @property
    def tokens(self) -> list[Any]:
        """The tokens: a list of strings or, for several texts, a list for each text."""
        return super().tokens

    @tokens.setter
    def tokens(self, tokens: Sequence[Any]) -> None:
        if isinstance(tokens, str):
            raise TypeError("record: `tokens` is a string; pass a list of tokens")
        if not self._spans:
            self._early_tokens = [text if isinstance(text, str) else list(text) for text in tokens]
            return
        texts = [tokens] if tokens and isinstance(tokens[0], str) else list(tokens)
        if len(texts) != len(self._spans):
            raise ValueError(
                f"record: `tokens` holds {len(texts)} texts, but the run has "
                f"{len(self._spans)}; "
                "pass a list of tokens for each text"
            )
        named = []
        for number, (text, span) in enumerate(zip(texts, self._spans, strict=True)):
            size = span.stop - span.start
            if len(text) not in (size, self._longest):
                raise ValueError(
                    f"record: `tokens` lists {len(text)} tokens for text {number}, "
                    f"which has {size}; "
                    "pass all tokens of the text, with or without its padding"
                )
            named.append([str(t) for t in (text if len(text) == size else text[span])])
        self._name(named)

    def _name(self, texts: list[list[str]]) -> None:
        from qkv.see.analysis import is_special

        special = [[is_special(token) for token in text] for text in texts]
        super().__init__(self._arrays, tokens=texts, special=special, others=self._others)


@contextmanager
def record(
    top_k: int = 8, tokens: Sequence[Any] | None = None, module: Any = None
) -> Iterator[Recording]:
    """Record the attention of another library's model while it runs.

    For L queries and S keys, the trace takes O(L * top_k + S) memory per head.

    The model must be a `transformers` model, loaded with `attn_implementation="qkv"` after
    `qkv.integrations.transformers.register()`. When the `with` block ends, the trace holds these
    arrays for each layer:

    - `top_indices` and `top_weights (B, Hq, T, top_k)`: the keys with the most weight for each
      query, largest weight first; unused entries have the index -1 and the weight 0;
    - `received (B, Hq, T)`: the sum of the weights that each key received from all queries;
    - `lse (B, Hq, T)`: the natural logarithm of the sum of `exp(score)` over each query's keys.

    `qkv.show(trace)` shows the trace; for a batch, call `qkv.show(trace[0])`. For an
    encoder-decoder, `show` draws the tokens and the layers of the encoder. The trace also contains
    the decoder's layers; `trace.other_layers` lists them. If a model has several parts, such as one
    for images and one for text, `module` selects the part to record.

    Padding before and after each text is removed. Layers are numbered by their `layer_idx`, or in
    the order of their calls if a `layer_idx` is missing or repeated. If a forward pass continues
    the text with a key/value cache, the tokens of this pass are added to the trace. Any other new
    forward pass clears the trace first. Calls in other threads are not recorded.

    Args:
        top_k: the number of weights to keep for each query.
        tokens: the tokens of one text, or a list of tokens per text. You can also set
            `trace.tokens` later.
        module: the part of the model to record, such as `model.language_model`. Other parts run
            without being recorded.

    Raises:
        RuntimeError: `register()` was not called; another recording is active; or no attention ran
            through qkv before the block ended.
        TypeError: `module` is not a part of a model.
        NotImplementedError: a part of the model splits an input into windows or joins several
            inputs into one; or a layer computes attention several times in one call, and the
            results differ. The error is raised while the model runs.
        ValueError: attention ran in several parts or models, and `module` is None; or the number of
            `tokens` differs from the number of tokens in the run. The error is raised when the
            block ends.
    """
    top_k = whole_number(top_k, call="record", name="top_k", least=1)
    if not REGISTERED:
        raise RuntimeError(
            "record: no library is registered: call "
            "qkv.integrations.transformers.register(), and load the model with "
            'attn_implementation="qkv"'
        )
    if CURRENT.get() is not None:
        raise RuntimeError(
            "record: another recording is active: end its block before you begin the next one"
        )
    if module is not None and not callable(getattr(module, "named_modules", None)):
        raise TypeError(
            f"record: `module` has type {type(module).__name__}; pass a part of the model, such as "
            "model.language_model"
        )
    recording = Recording(top_k, tokens, module)
    token = CURRENT.set(recording)
    try:
        yield recording
    finally:
        CURRENT.reset(token)
    recording.finish()


def _of_tokens(call: Call, ran: Ran) -> Call:
    """Remove padding queries from a `Call`, so that they do not add weight to any key."""
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
    if ran.is_causal:  # queries in padding before a text cannot see the text
        return call
    added = np.where(real, 0, -np.inf).astype(call.plan.kind)[:, None, :, None]  # (B, 1, L, 1)
    return call._replace(bias=added if call.bias is None else call.bias + added)


def _check_alike(owner: Any, summary: AttentionSummary, last: AttentionSummary) -> None:
    """Raise an error if a layer computes attention twice in one call, and the results differ."""
    pairs = [(getattr(summary, name), getattr(last, name)) for name in _EMPTY]
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise NotImplementedError(
            f"record: {type(owner).__name__} computes attention several times in one call, and the "
            "results differ, but a trace keeps one result per layer: record one input, or "
            "leave this part out with record(module=another part)"
        )


def _names(whole: Any) -> dict[int, str]:
    return {id(module): name for name, module in whole.named_modules()}


def _paths(layers: Sequence[_Layer]) -> list[tuple[Any, str]]:
    """Return `(part, path)` per layer: the part that contains the layer, and the path inside it."""
    names = {id(part): _names(part) for x in layers if (part := x.first.part) is not None}
    paths = []
    for part, owner in ((layer.first.part, layer.first.owner) for layer in layers):
        path = names.get(id(part), {}).get(id(owner), "")
        numbered = re.match(r"(.*\b)?\d+(?=\.|$)", path)
        inside = numbered.group() if numbered else path.rpartition(".")[0]
        paths.append((owner if part is None else part, inside))
    return paths


def _check_one_part(layers: Sequence[_Layer], paths: Sequence[tuple[Any, str]]) -> None:
    """Raise an error if several parts ran, unless they are an encoder and its decoder."""
    groups: dict[tuple[int, str], list[_Layer]] = {}
    for layer, (part, path) in zip(layers, paths, strict=True):
        if layer.first.part is not None:
            groups.setdefault((id(part), re.sub(r"\d+", "*", path)), []).append(layer)
    if len(groups) < 2 or (len(groups) == 2 and _reads(*groups.values())):
        return
    owners = {id(layer.first.owner) for layer in layers}
    wholes = {id(layer.first.whole): layer.first.whole for layer in layers}
    whole = next((x for x in wholes.values() if owners <= set(_names(x))), None)
    if whole is None:
        models = ", ".join(type(x).__name__ for x in wholes.values())
        raise ValueError(
            f"record: several models ran in one block ({models}); use a block for each model, or "
            "choose one of the models with record(module=model)"
        )
    names, ids = _names(whole), [part for part, _ in groups]
    parts = {}
    for (part, inside), [layer, *_rest] in groups.items():
        path = names[part]
        if ids.count(part) > 1:
            path = f"{path}.{inside.split('*')[0].strip('.')}".strip(".")
        parts[re.sub(r"\.(\d+)", r"[\1]", f"model.{path}")] = type(layer.first.owner).__name__
    listed = ", ".join(f"{path} ({kind})" for path, kind in parts.items())
    raise ValueError(
        f"record: attention ran in {len(parts)} parts of {type(whole).__name__}, {listed}; pass "
        f"the part to record, for example record(module={[*parts][-1]})"
    )


def _reads(first: Sequence[_Layer], second: Sequence[_Layer]) -> bool:
    """Return whether `second` is a decoder with cross-attention to the tokens of `first`."""
    crossing = [layer for layer in second if layer.crosses]
    read = ((len(x.parts[0].lse), x.parts[0].received.shape[-1]) for x in crossing)
    return bool(crossing) and all(keys == first[0].size for keys in read) and not first[0].crosses


def _other(layer: _Layer, first: _Layer, parts: Arrays) -> str:
    """Describe how a layer's attention differs from the first layer's; return "" if it does not."""
    if layer.crosses:
        return "cross-attention"
    if layer.first.is_causal and not first.first.is_causal:
        return "the decoder's"
    sizes = ((len(parts[name]), parts[name].shape[-1]) for name in ("lse", "received"))
    return "" if all(size == first.size for size in sizes) else "attention of other tokens"


def _spans(padding: Array | None, texts: int, longest: int) -> list[slice]:
    """For each row of the batch, return the span of the text's tokens without padding."""
    spans = []
    for row in range(texts):
        real = np.arange(longest)
        if padding is not None and len(padding) == texts:
            unpadded = np.flatnonzero(padding[row, :longest])
            adjacent = len(unpadded) and len(unpadded) == unpadded[-1] - unpadded[0] + 1
            real = unpadded if adjacent else real
        spans.append(slice(int(real[0]), int(real[-1]) + 1) if len(real) else slice(0, 0))
    return spans


def _to_the_front(parts: dict[str, Array], spans: Sequence[slice]) -> None:
    """Move the tokens of each text to the beginning of its row."""
    for text, span in enumerate(spans):
        size = span.stop - span.start
        for name, empty in _EMPTY.items():
            array = parts[name][text]  # (Hq, T), or (Hq, T, top_k)
            array[:, :size] = array[:, span].copy()
            array[:, size:] = empty
        indices = parts["top_indices"][text]
        indices[indices >= 0] -= span.start
