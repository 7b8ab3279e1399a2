"""What one activation of another run changes: each place or head in its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qkv.arrays import Array, shown
from qkv.circuits.checks import Logit, check_logit, check_words
from qkv.circuits.results import Result, words_of
from qkv.models.model import Model, handed_on
from qkv.trace import Trace
from qkv.trace.activations import short_name

PLACES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
HEADS = ("z", "pattern", "q", "k", "v")
TOKENS = 2**11  # that are run at once, or one text

# (place, token), (place, token, other token), or a function of logits (1, T, V) to a number.
Metric = Callable[[Array], Any] | tuple[Any, ...]


def patch(
    model: Model, clean: Any, corrupted: Any, *, at: str, metric: Metric, normalize: bool = False
) -> Result:
    """Activation patching: run `corrupted` with one activation at a time from `clean`.

    Where it brings back what `clean` gives, the activation holds what makes the two differ. The
    patches of a layer run together, and nothing below that layer is computed again.

    In a parallel block (GPT-NeoX) the MLP does not read what the attention of its own layer gives:
    what "attn_out" or a head brings back reaches later layers alone.

    Args:
        model: with a head over words.
        clean: one text, or the ids of its tokens; of as many tokens as `corrupted`.
        corrupted: the same.
        at: "resid_pre", "resid_mid", "resid_post", "attn_out" or "mlp_out", of which one place of
            one layer is put in at a time; or "z", "pattern", "q", "k" or "v", of which one head is,
            at all places.
        metric: (place, token) for that logit, (place, token, other token) for how far it is above
            another (a place counts from the end with -1; a token is an id, or a string that is
            one), or a function from logits (1, T, V) to a number. The first two need the logits of
            one place alone.
        normalize: give 0 where the metric is as in the run of `corrupted`, and 1 where it is as in
            that of `clean`, in place of the metric.

    Returns:
        float64, (layers, T) for the places, (layers, Hq) for the heads, (layers, Hkv) for "k" and
        "v". What is the same in both runs is not run: there the metric is that of `corrupted`.

    Raises:
        TypeError: an argument is of a wrong type, or the metric gives no number.
        ValueError: the texts have different numbers of tokens, or are several; there is no such
            `at`, place or token; the model gives no logits over words; the metric gives an array;
            or to normalize, it is the same for both runs.

    Source:
        Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation
        Analysis"; Meng et al. 2022, "Locating and Editing Factual Associations in GPT".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> found = patch(model, *texts, at="resid_pre", metric=(-1, 7), normalize=True)
    >>> found.shape == (model.num_layers, len(model.tokenize(texts[0])))
    True
    """
    pair = pair_of(model, clean, corrupted, at, metric, "patch")
    by = _by_place if at in PLACES else _by_head
    found = np.array([by(pair, layer) for layer in range(pair.model.num_layers)])
    return pair.result(found, "Activation patching", normalize)


def attribution_patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    at: str,
    metric: tuple[Any, ...],
    normalize: bool = False,
) -> Result:
    """Attribution patching: what `patch` gives, to first order, by one backward pass for all.

    Each activation's difference between the runs times the metric's gradient for it, in the run of
    `corrupted`. It is good where the change is small, and worst for whole vectors ("resid_pre") of
    early layers: `np.corrcoef` with `patch` on one pair of texts says how far to trust it.

    Args:
        model: as for `patch`, in float32 or float64.
        clean: as for `patch`, and so are all that follow.
        corrupted: the same.
        at: the same.
        metric: (place, token) or (place, token, other token); a function has no gradient here.
        normalize: the same.

    Returns:
        As `patch`.

    Raises:
        TypeError: as for `patch`; the metric is a function, or the model is in half precision.
        ValueError: as for `patch`.

    Source:
        Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> about = {"at": "z", "metric": (-1, 7)}
    >>> one, other = patch(model, *texts, **about), attribution_patch(model, *texts, **about)
    >>> one.shape == other.shape, bool(np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.5)
    (True, True)
    """
    if callable(metric):
        raise TypeError(
            "attribution_patch: metric is a function, which has no gradient here: give (place, "
            "token) or (place, token, other token), or call patch"
        )
    pair = pair_of(model, clean, corrupted, at, metric, "attribution_patch")
    names = [(at, layer) for layer in range(pair.model.num_layers)]
    gradients = pair.model.gradient(pair.corrupted.ids, of=metric, at=names)
    found = np.array([_first_order(pair, *name, gradients[name][0]) for name in names])
    found += pair.low
    return pair.result(found, "Attribution patching", normalize)


@dataclass(frozen=True)
class Pair:
    """Both runs, and the number that is asked for."""

    model: Model
    at: str
    clean: Trace
    corrupted: Trace
    metric: Logit | Callable[[Array], Any]
    call: str

    @cached_property
    def low(self) -> float:
        """What the metric is in the run of `corrupted`."""
        return self._of(self.corrupted)

    def normalized(self, found: Array) -> Array:
        """The same with 0 for what `corrupted` gives and 1 for what `clean` does."""
        low, high = self.low, self._of(self.clean)
        if low == high or not np.isfinite(high - low):
            raise ValueError(
                f"{self.call}: metric is {low:.6g} for corrupted and {high:.6g} for clean, so "
                "there is nothing to normalize by: leave normalize out, or take another metric"
            )
        shares: Array = (found - low) / (high - low)
        return shares

    def result(self, found: Array, name: str, normalize: bool) -> Result:
        """The numbers of all layers with the names of their axes."""
        one, other = map(words_of, (self.clean, self.corrupted))
        return Result(
            self.normalized(found) if normalize else found,
            ("layer", "token" if self.at in PLACES else "kv_head" if self.at in "kv" else "head"),
            of="share restored" if normalize else "metric",
            title=f"{name} of {self.at}",
            words={"token": [a if a == b else f"{a}/{b}" for a, b in zip(one, other, strict=True)]},
            ground=0.0 if normalize else self.low,
        )

    def given(self, layer: int) -> Array:
        """What a layer is given in the run of `corrupted`, (T, D), or what the last one gives."""
        return self.handed(self.corrupted, layer)

    def both(self, layer: int) -> tuple[Array, Array]:
        """The activation of a layer in the run of `clean` and in that of `corrupted`."""
        one, other = self.clean[self.at, layer][0], self.corrupted[self.at, layer][0]
        return one, other

    def values(self, resid: Array) -> Array:
        """The metric (n,) of texts whose last layer hands on these vectors, (n, T, D)."""
        if isinstance(self.metric, Logit):
            return self.metric.of(self.model.unembed(resid[:, self.metric.place]))
        return np.array([self._number(self.model.unembed(text[None])) for text in resid])

    def _of(self, trace: Trace) -> float:
        return float(self.values(self.handed(trace, self.model.num_layers)[None])[0])

    def handed(self, trace: Trace, layer: int) -> Array:
        """What a layer is given in a run, (T, D), or what the last one gives."""
        count = self.model.num_layers
        name = ("resid_pre", layer) if layer < count else handed_on(self.model, count - 1)[0]
        found: Array = trace[name][0]
        return found

    def _number(self, logits: Array) -> float:
        """What a function says of logits (1, T, V)."""
        assert not isinstance(self.metric, Logit)
        found = np.asarray(self.metric(logits))
        if found.shape:
            raise ValueError(
                f"{self.call}: metric gave an array {found.shape} of logits {logits.shape}: give "
                "one number"
            )
        if found.dtype.kind not in "fiub":
            raise TypeError(f"{self.call}: metric gave {shown(found.item())}: give one number")
        return float(found)


def pair_of(model: Any, clean: Any, corrupted: Any, at: Any, metric: Any, call: str) -> Pair:
    """Both texts run, once all of it fits."""
    model = check_words(model, call)
    if at not in (*PLACES, *HEADS):
        raise ValueError(f"{call}: at is {shown(at)}: choose among {', '.join((*PLACES, *HEADS))}")
    if any(not any(short_name(hook) == at for hook in layer.hooks) for layer in model.layers):
        raise ValueError(f"{call}: at is {at!r}, and a layer of {model.name} has none")
    last = handed_on(model, model.num_layers - 1)[0]
    layers = range(model.num_layers)
    names = [(part, layer) for part in ("resid_pre", at) for layer in layers]
    runs = []
    for name, text in (("clean", clean), ("corrupted", corrupted)):
        trace = model.trace(text, names=[*dict.fromkeys(names), last])
        if len(trace) > 1:
            raise ValueError(f"{call}: {name} is {len(trace)} texts: give one")
        runs.append(trace[0])
    one, other = (len(trace.ids) for trace in runs)
    if one != other:
        raise ValueError(
            f"{call}: clean has {one} tokens and corrupted {other}: what is put in stands at the "
            "same place in both, so give texts of as many tokens"
        )
    chosen = metric if callable(metric) else check_logit(metric, model, one, call, "metric")
    return Pair(model, at, runs[0], runs[1], chosen, call)


def _by_place(pair: Pair, layer: int) -> Array:
    """The metric with one place of a layer put in at a time, (T,)."""
    clean, corrupted = pair.both(layer)  # (T, D)
    found = np.full(len(clean), pair.low)
    places = np.flatnonzero((clean != corrupted).any(-1))
    if isinstance(pair.metric, Logit) and pair.model.generates:
        places = places[places <= pair.metric.place]  # no place sees what is behind it
    base, first = pair.given(layer), layer
    if pair.at != "resid_pre":
        # behind its attention a block computes each place on its own: one run with all of them
        # put in gives at each place what a run with this place alone would
        edit = {(pair.at, layer): clean[None]}
        clean = pair.model.run_layers(base[None], layer, layer + 1, edit=edit)[0]
        first, base = layer + 1, pair.given(layer + 1)
    for part in _parts(places, len(base)):
        resid = np.tile(base, (len(part), 1, 1))
        resid[np.arange(len(part)), part] = clean[part]
        found[part] = pair.values(pair.model.run_layers(resid, first))
    return found


def _by_head(pair: Pair, layer: int) -> Array:
    """The metric with one head of a layer put in at a time, (H,)."""
    axis = 0 if pair.at == "pattern" else 1
    clean, corrupted = (np.moveaxis(array, axis, 0) for array in pair.both(layer))  # (H, ...)
    found = np.full(len(clean), pair.low)
    heads = np.flatnonzero((clean != corrupted).reshape(len(clean), -1).any(-1))
    base = pair.given(layer)
    for part in _parts(heads, len(base)):

        def put_in(array: Array, part: Array = part) -> Array:
            """Of each text one head."""
            np.moveaxis(array, 1 + axis, 1)[np.arange(len(part)), part] = clean[part]
            return array

        resid = np.tile(base, (len(part), 1, 1))
        edit = {(pair.at, layer): put_in}
        found[part] = pair.values(pair.model.run_layers(resid, layer, edit=edit))
    return found


def _parts(numbers: Array, length: int) -> Iterator[Array]:
    """As many at a time as have `TOKENS`, or one."""
    step = max(1, TOKENS // length)
    for first in range(0, len(numbers), step):
        yield numbers[first : first + step]


def _first_order(pair: Pair, at: str, layer: int, gradient: Array) -> Array:
    """How far the metric changes with each place or head put in, to first order."""
    clean, corrupted = (array.astype(np.float64) for array in pair.both(layer))
    each = (clean - corrupted) * gradient  # (T, ...), or (Hq, T, T)
    each = np.moveaxis(each, 1, 0) if at in HEADS and at != "pattern" else each
    found: Array = each.reshape(len(each), -1).sum(-1)
    return found
