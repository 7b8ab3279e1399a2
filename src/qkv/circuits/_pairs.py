"""Pairs of a clean and a corrupted text: their metrics and their runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qkv._argument_errors import type_error, value_error
from qkv.arrays import Array, is_whole_number, quote
from qkv.circuits._reader import MOST_POSITIONS, Target, readings
from qkv.circuits.results import words_of
from qkv.models.model import Model, handed_on
from qkv.models.tasks.gradient import Reading, checked_position
from qkv.trace import Trace
from qkv.trace.activations import short_name

# A tuple such as (position, token), a metric with a gradient, or a function from logits (1, T, V)
# to a number.
Metric = Callable[[Array], Any] | Target | Any


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts that have been checked but not yet run.

    Attributes:
        model: the model.
        ids: for each pair, the token ids of the clean and of the corrupted text.
        words: for each pair, the tokens of both texts; if two tokens differ, the word contains
            both: "queen/king".
        metrics: the metric of each pair.
        places: for each position that the caller passes, its name and its index in each text (n,);
            empty if the caller passes no positions.
    """

    model: Model
    ids: list[tuple[Array, Array]]
    words: list[list[str]]
    metrics: list[Reading]
    places: dict[str, Array]

    def __len__(self) -> int:
        return len(self.ids)

    def batches(
        self, *at: str, which: Sequence[int] | None = None, runs: int = 2
    ) -> Iterator[list["Contrast"]]:
        """Run the texts of some pairs in batches; yield the pairs of each batch with their traces.

        Args:
            at: the activations that the traces contain, besides the inputs of the layers.
            which: the indices of the pairs; None means all pairs.
            runs: the number of runs per pair; all runs of a batch must fit into `MOST_POSITIONS`.
        """
        model, layers = self.model, range(self.model.num_layers)
        names = [(part, layer) for part in ("resid_pre", *at) for layer in layers]
        names = [*dict.fromkeys([*names, handed_on(model, model.num_layers - 1)[0]])]
        numbers = list(range(len(self)) if which is None else which)
        longest = max((len(self.ids[number][0]) for number in numbers), default=1)
        count = max(1, MOST_POSITIONS // (runs * max(1, longest)))
        for first in range(0, len(numbers), count):
            batch = numbers[first : first + count]
            texts: Any = [ids for number in batch for ids in self.ids[number]]
            trace = model.trace(texts, names=names)
            yield [
                Contrast(
                    *(model, at[-1] if at else "resid_pre", trace[2 * index], trace[2 * index + 1]),
                    *(self.metrics[number], self.words[number], name_of(number, len(self))),
                    {name: int(indices[number]) for name, indices in self.places.items()},
                )
                for index, number in enumerate(batch)
            ]
            del trace  # frees its arrays before the next batch runs

    def runs(self, *at: str, **options: Any) -> Iterator["Contrast"]:
        """Yield pairs with their traces, one after another; `batches` describes the arguments."""
        for batch in self.batches(*at, **options):
            yield from batch

    def baselines(self) -> tuple[Array, Array]:
        """Return the metrics of all clean and of all corrupted texts."""
        values = np.array([(pair.high, pair.low) for pair in self.runs()])
        return values[:, 0], values[:, 1]


def name_of(number: int, count: int) -> str:
    """Return the words that name a pair in error messages; "" if there is only one pair."""
    return f" of pair {number}" * (count > 1)


def read_pairs(
    model: Model,
    clean: Any,
    corrupted: Any,
    metric: Any,
    positions: Any = None,
    *,
    slopes: bool = False,
) -> Pairs:
    """Check the texts and the metric of one or several pairs, without running the model.

    Args:
        model: a model with an LM head.
        clean: one text, its ids, or a list of texts.
        corrupted: like `clean`, with the same number of texts and the same lengths.
        metric: one metric, or a list with a metric for each pair.
        positions: None, positions, or a dict that names positions; see `_places`.
        slopes: whether the gradient of the metric is needed.
    """
    traces = [model.trace(texts, names=[]) for texts in (clean, corrupted)]
    one, other = map(len, traces)
    if one != other:
        raise value_error(
            f"`clean` has {one} texts and `corrupted` has {other}; pass the same number of texts"
        )
    runs = [tuple(trace[number] for trace in traces) for number in range(one)]
    for number, pair in enumerate(runs):
        ours, theirs = (len(run.ids) for run in pair)
        if ours != theirs:
            raise value_error(
                f"`clean`{name_of(number, one)} has {ours} tokens and `corrupted` has {theirs}; "
                "pass texts with the same number of tokens, because each activation replaces the "
                "activation at its position"
            )
    lengths = [len(pair[0].ids) for pair in runs]
    metrics = readings(model, metric, lengths, "metric", "pair", "gradient" if slopes else "any")
    spelled = (zip(*map(words_of, pair), strict=True) for pair in runs)
    words = [[a if a == b else f"{a}/{b}" for a, b in both] for both in spelled]
    ids = [(np.asarray(clean.ids), np.asarray(corrupted.ids)) for clean, corrupted in runs]
    return Pairs(model, ids, words, metrics, _places(positions, lengths))


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and "@" not in name


def _places(positions: Any, lengths: Sequence[int]) -> dict[str, Array]:
    """Return the names of positions, and their indices in each text (n,).

    >>> _places({"subject": [1, 2], "end": -1}, [5, 7])
    {'subject': array([1, 2]), 'end': array([4, 6])}
    >>> _places([0, -1], [5])
    {'0': array([0]), '-1': array([4])}
    """
    if positions is None:
        return {}
    named = positions
    if is_whole_number(positions):
        named = {str(positions): positions}
    elif isinstance(positions, Iterable) and not isinstance(positions, str | Mapping):
        named = {str(one): one for one in positions}
    if not isinstance(named, Mapping) or not named or not all(map(_is_name, named)):
        raise type_error(
            f"`positions` is {quote(positions)}; pass positions such as [2, -1], or a dict such as "
            '{"subject": [2, 3], "end": -1}, in which each value is one position or a list with '
            "one position for each pair"
        )
    places = {}
    for name, value in named.items():
        several = value if isinstance(value, list | tuple | np.ndarray) else [value] * len(lengths)
        if len(several) != len(lengths):
            raise value_error(
                f"`positions` has {len(several)} positions for {name!r}, but the number of "
                f"pairs is {len(lengths)}; pass one position, or a list with one for each pair"
            )
        for number, (one, length) in enumerate(zip(several, lengths, strict=True)):
            which = f"`positions`{name_of(number, len(lengths))}"
            if not is_whole_number(one):
                raise type_error(f"{which} has {quote(one)} for {name!r}; pass a whole number")
            checked_position(one, length, argument=which)
        places[name] = np.array([int(one) % n for one, n in zip(several, lengths, strict=True)])
    return places


def need_site(model: Model, at: str) -> None:
    """Raise an error unless each layer of the model has the activation."""
    if any(not any(short_name(hook) == at for hook in layer.hooks) for layer in model.layers):
        raise value_error(
            f"`at` is {at!r}, but the layers of {model.name} have no such activation: "
            "choose another"
        )


@dataclass(frozen=True)
class Contrast:
    """A pair of texts: the traces of both runs, the metric, and the tokens of both texts."""

    model: Model
    at: str
    clean: Trace
    corrupted: Trace
    metric: Reading
    words: list[str]
    which: str  # the name of the pair for error messages, if there are several pairs
    places: Mapping[str, int]  # the positions that the caller gives, by name; empty for all

    @cached_property
    def low(self) -> float:
        """The metric of the corrupted text."""
        return self._metric_of(self.corrupted)

    @cached_property
    def high(self) -> float:
        """The metric of the clean text."""
        return self._metric_of(self.clean)

    def normalize_values(self, values: Array) -> Array:
        """Scale metrics so that `corrupted` scores 0 and `clean` scores 1."""
        low, high = self.low, self.high
        if low == high or not np.isfinite(high - low):
            raise value_error(
                f"`metric`{self.which} is {low:.6g} in the corrupted run and "
                f"{high:.6g} in the clean run, so the result cannot be normalized: omit normalize, "
                "or choose another metric"
            )
        return np.asarray((values - low) / (high - low))

    def both(self, layer: int) -> tuple[Array, Array]:
        """Return the activation of a layer in the clean run and in the corrupted run.

        If the caller passes positions, the first activation is clean only at these positions, and
        corrupted at all others.
        """
        clean, corrupted = self.clean[self.at, layer][0], self.corrupted[self.at, layer][0]
        if self.places:
            axis = int(self.at == "pattern")  # the axis of the tokens or queries
            there = np.isin(np.arange(clean.shape[axis]), list(self.places.values()))
            there = there.reshape(*[1] * axis, -1, *[1] * (clean.ndim - axis - 1))
            clean = np.where(there, clean, corrupted)
        return clean, corrupted

    def values(self, resid: Array) -> Array:
        """Turn outputs (n, T, D) of the last layer into metrics (n,)."""
        position = self.metric.position
        if position is not None:
            return self.metric.value(self.model.unembed(resid[:, position]))
        return np.array([float(self.metric.value(self.model.unembed(x[None]))) for x in resid])

    def _metric_of(self, trace: Trace) -> float:
        return float(self.values(self.input_of(trace, self.model.num_layers)[None])[0])

    def input_of(self, trace: Trace, layer: int) -> Array:
        """Return the input (T, D) of a layer; for layer `num_layers`, the last layer's output."""
        count = self.model.num_layers
        name = ("resid_pre", layer) if layer < count else handed_on(self.model, count - 1)[0]
        return np.asarray(trace[name][0])
