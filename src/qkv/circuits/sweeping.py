"""Activation patching: the metric with one activation at a time from another run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, shown
from qkv.circuits.checks import Logit, check_words, for_each
from qkv.circuits.patching import HEADS, PLACES, TOKENS, Metric, Pair, pair_of
from qkv.circuits.results import Result
from qkv.models.model import Model

NEURONS = ("pre", "post")
SITES = (*PLACES, *HEADS, *NEURONS)
_CALL = "patch"


def patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    at: str | Sequence[str],
    metric: Metric | Sequence[Metric],
    by: Literal["position", "head", "neuron"] | None = None,
    normalize: bool = False,
) -> Result:
    """Activation patching: run `corrupted` with one activation at a time from `clean`.

    An activation that brings the clean metric back carries what makes the two texts differ. All
    patches of a layer run together, those of several pairs too, and nothing below that layer is
    computed again.

    In a parallel block (GPT-NeoX) the MLP does not read the attention of its own layer, so that a
    patch of "attn_out" or of a head reaches later layers alone.

    Args:
        model: with a head over words.
        clean: one text, or the ids of its tokens; or a list of texts. A list of one text, or ids
            (1, T), counts as one text.
        corrupted: the same, as many texts. The two texts of a pair have equally many tokens; pairs
            may differ in length.
        at: the activation. "resid_pre", "resid_mid", "resid_post", "attn_out" and "mlp_out" are
            patched at one position at a time; "z", "pattern", "q", "k" and "v" one head at a time;
            "pre" and "post" (the MLP's neurons before and after the activation function) one neuron
            at a time. Heads and neurons are patched at all positions together. A list of sites
            that are cut alike patches each in turn.
        metric: (place, token) for that logit, (place, token, other token) for how far it is above
            another (a place counts from the end with -1; a token is an id, or a string that is
            one), or a function from logits (1, T, V) to a number. The first two need the logits of
            one place alone. For several pairs, a list has one metric for each pair.
        by: "position" patches heads and neurons at one position at a time as well ("pattern": the
            weights of one query). "head" and "neuron" are the default of the sites that have them.
        normalize: return 0 where the metric is that of `corrupted` and 1 where it is that of
            `clean`, in place of the metric.

    Returns:
        float64: (layers, T) for sites of positions, (layers, Hq) for heads ((layers, Hkv) for "k"
        and "v"), (layers, F) for neurons; by position (layers, Hq, T) and (layers, F, T). Several
        pairs add a first axis, (pairs, layers, ...), with NaN behind the end of shorter texts. A
        list of sites adds an axis "site" before all others.
        Activations that are equal in both runs are not run: their metric is that of `corrupted`.

    Raises:
        TypeError: an argument is of a wrong type, or the metric gives no number.
        ValueError: the two texts of a pair have different numbers of tokens, or the lists have
            different lengths; there is no such `at`, `by`, place or token; the model gives no
            logits over words; the metric gives an array; or `normalize` is asked for and the metric
            is the same in both runs.

    Source:
        Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation
        Analysis"; Meng et al. 2022, "Locating and Editing Factual Associations in GPT".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> length = len(model.tokenize(texts[0]))
    >>> found = patch(model, *texts, at="resid_pre", metric=(-1, 7), normalize=True)
    >>> found.shape == (model.num_layers, length)
    True
    >>> found = patch(model, *texts, at="z", metric=(-1, 7), by="position")
    >>> found.shape == (model.num_layers, model.num_heads, length)
    True
    >>> several = patch(model, texts, texts[::-1], at="z", metric=(-1, 7))
    >>> several.shape == (2, model.num_layers, model.num_heads)
    True
    """
    model = check_words(model, _CALL)
    if isinstance(at, list | tuple) and all(isinstance(site, str) for site in at):
        return _of_sites(
            at,
            by,
            lambda site: patch(
                model, clean, corrupted, at=site, metric=metric, by=by, normalize=normalize
            ),
        )
    axes = _axes(at, by)
    pairs = _pairs(model, clean, corrupted, at, metric)
    for pair in pairs if normalize else ():
        pair.normalized(np.array(pair.low))  # an error, if there is nothing to normalize by
    lengths = [len(pair.clean.ids) for pair in pairs]
    found: list[Array] = [np.empty(0)] * len(pairs)
    for length in dict.fromkeys(lengths):
        which = [number for number, own in enumerate(lengths) if own == length]
        group = _Group([pairs[number] for number in which], axes)
        layers = [group.metrics(layer) for layer in range(model.num_layers)]
        for number, values in zip(which, np.stack(layers, 1), strict=True):
            found[number] = pairs[number].normalized(values) if normalize else values
    of, title = "share restored" if normalize else "metric", f"Activation patching of {at}"
    unit = "token" if at in PLACES else "neuron" if at in NEURONS else "head"
    names = ["layer", "kv_head" if at in ("k", "v") else unit, "token"][: 1 + len(axes)]
    ground = 0.0 if normalize else float(np.mean([pair.low for pair in pairs]))
    if len(found) == 1:
        return Result(found[0], names, of=of, title=title, words=pairs[0].words, ground=ground)
    widest = max(values.shape[-1] for values in found)
    whole = np.full((len(found), *found[0].shape[:-1], widest), np.nan)
    for number, values in enumerate(found):
        whole[number, ..., : values.shape[-1]] = values
    return Result(whole, ["pair", *names], of=of, title=title, ground=ground)


def _of_sites(sites: Sequence[str], by: Any, patched: Callable[[str], Result]) -> Result:
    """The results of several sites as one, with an axis for the sites."""
    if not sites:
        raise ValueError(f"{_CALL}: at is an empty list: choose among {', '.join(SITES)}")
    for site in sites:
        _axes(site, by)  # an unknown one is an error before any is run
    found = [patched(site) for site in sites]
    first = found[0]
    for site, other in zip(sites, found, strict=True):
        if (other.axes, other.shape) != (first.axes, first.shape):
            raise ValueError(
                f"{_CALL}: at has {sites[0]!r}, which gives {first.axes} of {first.shape}, and "
                f"{site!r}, which gives {other.axes} of {other.shape}: patch them in two calls"
            )
    return Result(
        np.stack(found),
        ["site", *first.axes],
        of=first.of,
        title=f"Activation patching of {', '.join(sites)}",
        words={**first.words, "site": list(sites)},
        ground=first.ground,
    )


def _axes(at: Any, by: Any) -> tuple[int, ...]:
    """Along which axes of one text's activation it is cut into what is patched, positions last."""
    if at not in SITES:
        raise ValueError(f"{_CALL}: at is {shown(at)}: choose among {', '.join(SITES)}")
    unit, own = ("position", 0) if at in PLACES else ("neuron" if at in NEURONS else "head", 1)
    axes = (0, 1) if at == "pattern" else (own, 0)
    if by not in (None, "position", unit):
        others = " or ".join(map(repr, dict.fromkeys(("position", unit))))
        raise ValueError(
            f"{_CALL}: by is {shown(by)} and at is {at!r}, which has no such parts: give {others}"
        )
    return axes if by == "position" and unit != "position" else axes[:1]


def _pairs(model: Model, clean: Any, corrupted: Any, at: Any, metric: Any) -> list[Pair]:
    """Both runs of each pair, once all of them fit."""
    traces = (model.trace(texts, names=[]) for texts in (clean, corrupted))
    each = ([trace[number] for number in range(len(trace))] for trace in traces)
    one, other = ([text.text or text.ids for text in texts] for texts in each)
    count = len(one)
    if count != len(other):
        raise ValueError(
            f"{_CALL}: clean is {count} texts and corrupted {len(other)}: give as many of each"
        )
    metrics = for_each(metric, count, _CALL, "metric")
    return [
        pair_of(
            model,
            one[number],
            other[number],
            at,
            metrics[number],
            _CALL,
            sites=SITES,
            which=f" of pair {number}" if count > 1 else "",
        )
        for number in range(count)
    ]


class _Group:
    """Pairs of texts of one length, whose patches run together.

    Args:
        pairs: N of them.
        axes: along which the activation of one text is cut into what is patched.
    """

    def __init__(self, pairs: Sequence[Pair], axes: tuple[int, ...]) -> None:
        self.pairs, self.axes = pairs, axes
        self.model, self.at = pairs[0].model, pairs[0].at
        self.by_position = self.at in PLACES or len(axes) == 2
        self.length = len(pairs[0].clean.ids)

    def metrics(self, layer: int) -> Array:
        """The metric with each part of a layer put in at a time, (N, ...)."""
        clean, corrupted = (
            self._cut(np.array(arrays))
            for arrays in zip(*(pair.both(layer) for pair in self.pairs), strict=True)
        )  # (N, what is patched, rest)
        shape = clean.shape[: 1 + len(self.axes)]
        found = np.empty(shape)
        differ = (clean != corrupted).reshape(*shape, -1).any(-1)
        for number, pair in enumerate(self.pairs):
            found[number] = pair.low
            if self.by_position and self.model.generates and isinstance(pair.metric, Logit):
                differ[number, ..., 1 + pair.metric.place :] = False  # which no place before sees
        first, base = layer, self._given(layer)
        is_resid = self.at in PLACES
        if is_resid and self.at != "resid_pre":
            # behind its attention a block computes each position on its own: one run with all of
            # them put in gives at each position what a run with this position alone would
            clean = self.model.run_layers(base, layer, layer + 1, edit={(self.at, layer): clean})
            first, base = layer + 1, self._given(layer + 1)
        for parts in self._batches(np.nonzero(differ)):
            resid, rows = base[parts[0]], (np.arange(len(parts[0])), *parts[1:])
            values = clean[parts]

            def put_in(array: Array, rows: Any = rows, values: Array = values) -> Array:
                """Into each text the part that is its own."""
                self._cut(array)[rows] = values
                return array

            edit = {} if is_resid else {(self.at, layer): put_in}
            resid = self.model.run_layers(put_in(resid) if is_resid else resid, first, edit=edit)
            for number in np.unique(parts[0]):
                own = parts[0] == number
                found[tuple(axis[own] for axis in parts)] = self.pairs[number].values(resid[own])
        return found

    def _cut(self, array: Array) -> Array:
        """A view of an activation (n, ...) whose first axes are the texts and what is patched."""
        return np.moveaxis(array, [1 + axis for axis in self.axes], range(1, 1 + len(self.axes)))

    def _given(self, layer: int) -> Array:
        """What a layer is given in the runs of `corrupted`, (N, T, D)."""
        return np.array([pair.given(layer) for pair in self.pairs])

    def _batches(self, parts: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
        """As many at a time as have `TOKENS`, or one."""
        step = max(1, TOKENS // self.length)
        for first in range(0, len(parts[0]), step):
            yield tuple(numbers[first : first + step] for numbers in parts)
