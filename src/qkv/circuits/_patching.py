"""Activation patching: measure how activations from another run change a metric."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array, quote
from qkv.circuits._pairs import Contrast, Metric, need_site, read_pairs
from qkv.circuits._reader import MOST_POSITIONS, check_words
from qkv.circuits.results import Result, mean_of_pairs
from qkv.models.model import Model

POSITIONS = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
HEADS = ("z", "pattern", "q", "k", "v")
NEURONS = ("pre", "post")
By = Literal["position", "head", "neuron"] | None
SITES = (*POSITIONS, *HEADS, *NEURONS)


@public_call("attribution_patch")
def attribution_patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    at: str | Sequence[str],
    metric: Metric | Sequence[Metric],
    by: By = None,
    positions: Any = None,
    normalize: bool = False,
) -> Result:
    """Attribution patching: estimate the result of `patch` with one backward pass.

    An estimate is the sum of the elementwise products of two arrays: the clean activation minus the
    corrupted activation, and the gradient of the metric with respect to this activation in the
    corrupted run. Estimates are accurate if the two activations are similar. Estimates are least
    accurate for "resid_pre" of early layers. To check the estimates, correlate them with the result
    of `patch` for one pair of texts (`np.corrcoef`).

    Args:
        model: as for `patch`, in float32 or float64.
        clean: as for `patch`.
        corrupted: as for `patch`.
        at: as for `patch`.
        metric: as for `patch`, but not a function, because a function has no gradient.
        by: as for `patch`.
        positions: as for `patch`.
        normalize: as for `patch`.

    Returns:
        An array like the result of `patch`.

    Raises:
        TypeError: as for `patch`; the metric is a function; or the model is in half precision.
        ValueError: as for `patch`.

    Source:
        Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale".

    >>> import qkv
    >>> from qkv.circuits import patch
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> about = {"at": "z", "metric": (-1, 7)}
    >>> one, other = patch(model, *texts, **about), attribution_patch(model, *texts, **about)
    >>> one.shape == other.shape, bool(np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.5)
    (True, True)
    """
    model = check_words(model)
    if isinstance(at, list | tuple) and all(isinstance(site, str) for site in at):
        options = {"metric": metric, "by": by, "positions": positions, "normalize": normalize}
        return _of_sites(at, by, partial(attribution_patch, model, clean, corrupted, **options))
    axes, site = _axes(at, by), str(at)
    pairs, values = read_pairs(model, clean, corrupted, metric, positions, slopes=True), []
    need_site(model, site)
    names, every = [(site, layer) for layer in range(model.num_layers)], list[Contrast]()
    for batch in pairs.batches(site):
        ids, readings = [pair.corrupted.ids for pair in batch], [pair.metric for pair in batch]
        gradients = model.gradient(ids, of=readings, at=names)
        for number, pair in enumerate(batch):
            slopes = [_first_order(pair, *name, gradients[name][number], axes) for name in names]
            values.append(np.array(slopes) + pair.low)
        every += batch
    return _result(every, values, "Attribution patching", normalize)


def _check_site(at: Any, sites: Sequence[str]) -> None:
    if at not in sites:
        raise value_error(f"`at` is {quote(at)}: choose among {', '.join(sites)}")


def _first_order(
    pair: Contrast, at: str, layer: int, gradient: Array, axes: tuple[int, ...]
) -> Array:
    """Estimate the metric's change for each index of `axes`, by a linear approximation."""
    clean, corrupted = (array.astype(np.float64) for array in pair.both(layer))
    gradient = gradient[tuple(map(slice, clean.shape))]  # without padding
    terms = np.moveaxis((clean - corrupted) * gradient, axes, range(len(axes)))
    return np.asarray(terms.reshape(*terms.shape[: len(axes)], -1).sum(-1))


@public_call("patch")
def patch(
    model: Model,
    clean: Any,
    corrupted: Any,
    *,
    at: str | Sequence[str],
    metric: Metric | Sequence[Metric],
    by: By = None,
    positions: Any = None,
    normalize: bool = False,
) -> Result:
    """Activation patching: run `corrupted`, but with one activation at a time taken from `clean`.

    If patching an activation moves the metric to its value for `clean`, this activation carries the
    difference between the two texts. All patches of a layer run in one batch, even for several
    pairs of texts. Earlier layers are not recomputed. In a parallel block (GPT-NeoX), the MLP does
    not read the attention output of its own layer, so patching "attn_out" or a head affects only
    later layers. If an activation is the same in both runs, no patched run is computed: the result
    is the metric of `corrupted`.

    Args:
        model: a model with an LM head.
        clean: one text as a string or token ids, or a list of texts. A list of one text is treated
            as one text, and so are ids of shape (1, T).
        corrupted: one text or a list, with as many texts as `clean`. Both texts of a pair must have
            the same number of tokens. Two pairs may have different numbers of tokens.
        at: the activation. "resid_pre", "resid_mid", "resid_post", "attn_out" and "mlp_out" are
            patched at one position at a time. "z", "pattern", "q", "k" and "v" are patched in one
            head at a time. "pre" and "post" are the MLP's neurons before and after the activation
            function; one neuron is patched at a time. A patch of a head or neuron covers all
            positions. If `at` is a list, its activations are patched separately, and all
            results must have the same shape.
        metric: (position, token) for one logit, (position, token, other token) for the difference
            of two logits, one of `metrics`, another object with the methods `value` and `gradient`,
            or a function that turns logits (1, T, V) into a number. Negative positions count from
            the end. A token is an id or a one-token string. A tuple is faster than a function: for
            a tuple, only the logits of one position are computed. For several pairs, a list may
            give each pair its own metric.
        by: "position" patches a head or neuron at one position at a time. For "pattern", the
            position is the query's position. "head" is the default for activations with heads, and
            "neuron" for activations of neurons.
        positions: the positions to patch, for example [2, -1]; None means all. A dict names the
            positions. Each name maps to one position for all pairs, or to a list with a position
            for each pair: `{"subject": [2, 3], "end": -1}`. For an activation that is patched at
            one position at a time, the result has an axis of these positions. A patch of a head or
            neuron covers these positions together.
        normalize: scale the metric so that `corrupted` scores 0 and `clean` scores 1.

    Returns:
        A float64 array of metrics. Its shape is (layers, T) for positions, (layers, Hq) for heads,
        (layers, Hkv) for "k" and "v", and (layers, F) for neurons. With `by="position"`, the shape
        is (layers, Hq, T), (layers, Hkv, T) or (layers, F, T). For several pairs, the array is the
        mean over the pairs, and its attribute `pairs` holds the results of each pair, with one more
        axis in front; the results of shorter texts are padded with NaN, and the mean at a position
        is over the pairs that have this position. If `at` is a list, the first axis is "site".

    Raises:
        TypeError: an argument has a wrong type, or the metric does not return a number.
        ValueError: the two texts of a pair have different numbers of tokens, or the lists have
            different lengths; `at`, `by`, the position or the token does not exist; the model
            has no LM head; the metric returns an array; or `normalize` is true and the metric is
            the same in both runs.

    Source:
        Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation
        Analysis"; Meng et al. 2022, "Locating and Editing Factual Associations in GPT".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> texts = "queen: a female", "king: a female"
    >>> length = len(model.tokenize(texts[0]))
    >>> effects = patch(model, *texts, at="resid_pre", metric=(-1, 7), normalize=True)
    >>> effects.shape == (model.num_layers, length)
    True
    >>> effects = patch(model, *texts, at="z", metric=(-1, 7), by="position")
    >>> effects.shape == (model.num_layers, model.num_heads, length)
    True
    >>> several = patch(model, texts, texts[::-1], at="z", metric=(-1, 7))
    >>> several.shape == (model.num_layers, model.num_heads), len(several.pairs)
    (True, 2)
    """
    model = check_words(model)
    if isinstance(at, list | tuple) and all(isinstance(site, str) for site in at):
        options = {"metric": metric, "by": by, "positions": positions, "normalize": normalize}
        return _of_sites(at, by, partial(patch, model, clean, corrupted, **options))
    axes = _axes(at, by)
    read = read_pairs(model, clean, corrupted, metric, positions)
    site = str(at)
    need_site(model, site)
    pairs = list(read.runs(site))
    for pair in pairs if normalize else ():
        pair.normalize_values(np.array(pair.low))  # raises an error if both runs have equal metrics
    lengths = [len(pair.clean.ids) for pair in pairs]
    metrics: dict[int, Array] = {}
    for length in dict.fromkeys(lengths):
        which = [number for number, size in enumerate(lengths) if size == length]
        group = _Group([pairs[number] for number in which], axes)
        layers = [group.metrics(layer) for layer in range(model.num_layers)]
        metrics |= zip(which, np.stack(layers, 1), strict=True)
    values = [metrics[number] for number in range(len(pairs))]
    return _result(pairs, values, "Activation patching", normalize)


def _result(pairs: Sequence[Contrast], values: list[Array], name: str, normalize: bool) -> Result:
    """Join the metrics (layers, ...) of all pairs; pad the metrics of shorter texts with NaN."""
    at = pairs[0].at
    unit = "token" if at in POSITIONS else "neuron" if at in NEURONS else "head"
    if at in ("k", "v") and values[0].shape[1] < pairs[0].model.num_heads:
        unit = "kv_head"
    axes = ["layer", unit, "token"][: values[0].ndim]
    places = [*pairs[0].places]
    if places and "token" in axes:
        values = [
            array[..., list(pair.places.values())]
            for pair, array in zip(pairs, values, strict=True)
        ]
        axes[axes.index("token")] = "position"
    meaning, there = "share restored" if normalize else "metric", None
    ground = 0.0 if normalize else float(np.mean([pair.low for pair in pairs]))
    if normalize:
        values = [pair.normalize_values(array) for pair, array in zip(pairs, values, strict=True)]
    sizes = np.array([array.shape[-1] for array in values])
    if np.ptp(sizes):
        there = np.arange(sizes.max()) < sizes[:, None]
        widths = [
            [(0, 0)] * (array.ndim - 1) + [(0, sizes.max() - len(array.T))] for array in values
        ]
        values = [
            np.pad(array, width, constant_values=np.nan)
            for array, width in zip(values, widths, strict=True)
        ]
    words = pairs[0].words if all(pair.words == pairs[0].words for pair in pairs) else ()
    about: dict[str, Any] = {
        "of": meaning,
        "title": f"{name} of {at}",
        "words": {"token": words, "position": places},
        "ground": ground,
    }
    result: Result = mean_of_pairs(np.array(values), axes, there=there, **about)
    return result


def _of_sites(sites: Sequence[str], by: Any, patched: Callable[..., Result]) -> Result:
    """Join the results for several activations, such as "z" and "q", along a new first axis."""
    if not sites:
        raise value_error(f"`at` is an empty list: choose among {', '.join(SITES)}")
    for site in sites:
        _axes(site, by)  # check all sites before the first run
    results = [patched(at=site) for site in sites]
    first = results[0]
    for site, other in zip(sites, results, strict=True):
        if (other.axes, other.shape) != (first.axes, first.shape):
            raise value_error(
                f"the result for {sites[0]!r} has axes {first.axes} and shape "
                f"{first.shape}, but the result for {site!r} has axes {other.axes} and shape "
                f"{other.shape}: patch them in two calls"
            )
    axes, title = ["site", *first.axes], f"Activation patching of {', '.join(sites)}"
    words = {**first.words, "site": list(sites)}
    about: dict[str, Any] = {"of": first.of, "title": title, "words": words, "ground": first.ground}
    joined = Result(np.stack(results), axes, **about)
    each = np.stack([np.asarray(result.pairs) for result in results], 1)
    joined.pairs = Result(each, ("pair", *axes), **about)
    return joined


def _axes(at: Any, by: Any) -> tuple[int, ...]:
    """Return the axes of an activation along which `patch` replaces one index at a time.

    The axis of heads or neurons comes before the axis of tokens.
    """
    _check_site(at, SITES)
    unit, axis = ("position", 0) if at in POSITIONS else ("neuron" if at in NEURONS else "head", 1)
    axes = (0, 1) if at == "pattern" else (axis, 0)
    if by not in (None, "position", unit):
        others = " or ".join(map(repr, dict.fromkeys(("position", unit))))
        raise value_error(
            f"`by` is {quote(by)}, but {at!r} has no axis of this kind; pass {others}"
        )
    return axes if by == "position" and unit != "position" else axes[:1]


class _Group:
    """Pairs of texts with equal lengths; their patches run in one batch.

    Args:
        pairs: N pairs.
        axes: the axes along which one text's activation is patched.
    """

    def __init__(self, pairs: Sequence[Contrast], axes: tuple[int, ...]) -> None:
        self.pairs, self.axes = pairs, axes
        self.model, self.at = pairs[0].model, pairs[0].at
        self.by_position = self.at in POSITIONS or len(axes) == 2
        self.length = len(pairs[0].clean.ids)

    def metrics(self, layer: int) -> Array:
        """Patch each part (position, head or neuron) of a layer separately; return the metrics."""
        clean, corrupted = (
            self._cut(np.array(arrays))
            for arrays in zip(*(pair.both(layer) for pair in self.pairs), strict=True)
        )  # (N, parts, rest)
        shape = clean.shape[: 1 + len(self.axes)]
        metrics = np.empty(shape)
        differ = (clean != corrupted).reshape(*shape, -1).any(-1)
        for number, pair in enumerate(self.pairs):
            metrics[number] = pair.low
            if self.by_position and self.model.generates and pair.metric.position is not None:
                # positions after the metric's position do not affect the metric
                differ[number, ..., 1 + pair.metric.position :] = False
        first, base = layer, self._inputs(layer)
        is_resid = self.at in POSITIONS
        if is_resid and self.at != "resid_pre":
            # After attention, a block treats positions independently. Therefore, one run of this
            # layer with all positions patched gives the output of every patch.
            clean = self.model.run_layers(base, layer, layer + 1, edit={(self.at, layer): clean})
            first, base = layer + 1, self._inputs(layer + 1)
        for parts in self._batches(np.nonzero(differ)):
            resid, rows = base[parts[0]], (np.arange(len(parts[0])), *parts[1:])
            values = clean[parts]

            def put_in(array: Array, rows: Any = rows, values: Array = values) -> Array:
                """Patch one position, head or neuron in each row of the batch."""
                self._cut(array)[rows] = values
                return array

            edit = {} if is_resid else {(self.at, layer): put_in}
            resid = self.model.run_layers(put_in(resid) if is_resid else resid, first, edit=edit)
            for number in np.unique(parts[0]):
                mask = parts[0] == number
                cells = tuple(axis[mask] for axis in parts)
                metrics[cells] = self.pairs[number].values(resid[mask])
        return metrics

    def _cut(self, array: Array) -> Array:
        """Return a view of an activation (n, ...) with `self.axes` moved directly behind axis 0."""
        return np.moveaxis(array, [1 + axis for axis in self.axes], range(1, 1 + len(self.axes)))

    def _inputs(self, layer: int) -> Array:
        """Return the inputs of a layer in all corrupted runs, (N, T, D)."""
        return np.array([pair.input_of(pair.corrupted, layer) for pair in self.pairs])

    def _batches(self, parts: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
        """Yield groups of patches. The runs of a group form one batch.

        A batch has at most `MOST_POSITIONS` tokens, unless a single text has more tokens.
        """
        step = max(1, MOST_POSITIONS // self.length)
        for first in range(0, len(parts[0]), step):
            yield tuple(numbers[first : first + step] for numbers in parts)
