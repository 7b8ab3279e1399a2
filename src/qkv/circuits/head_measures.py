"""Measures of the attention of heads: means over all queries of many texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.circuits.inputs import Read, batches, check_model, room, watch, windows
from qkv.circuits.results import Result
from qkv.layers.packed import starts_of
from qkv.models.model import Model
from qkv.trace.recorder import padded

NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy")
STRONGEST = "strongest"


def checked_names(of: str | Iterable[str], call: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the requested measures, each once."""
    names = tuple(dict.fromkeys([of] if isinstance(of, str) else of))
    odd = [name for name in names if name not in known]
    if odd or not names:
        fault = f"has {odd[0]!r:.40}" if odd else "is empty"
        raise ValueError(f"{call}: of {fault}: choose among {', '.join(known)}")
    return names


class Measured:
    """Measure the weights of some texts: a number for each query.

    Args:
        batch: the ids of the texts, (T,) each.
        special: the ids of special tokens.
    """

    def __init__(self, batch: Sequence[Array], special: Sequence[int]) -> None:
        starts = starts_of(map(len, batch))
        packed = np.concatenate(batch)
        self.ids = padded(packed, starts)  # (B, T), 0 in the padding
        self.ends = np.diff(starts)  # (B,)
        self.there = padded(np.ones(len(packed), bool), starts)
        self.words = padded(
            ~np.isin(packed, special), starts
        )  # (B, T), which keys `STRONGEST` counts
        self.words[:, 0] = False
        self._parts: dict[tuple[int, int], _Pairs] = {}

    def count(self, name: str) -> int:
        """Return the number of queries that a measure counts."""
        if name != "induction":
            return int(self.there.sum())
        return len(self._pairs(0, self.ids.shape[1]).groups)

    def values(self, name: str, weights: Array, first: int) -> Array:
        """Return a measure of each query (B, H, Q), 0 for queries without one.

        Args:
            name: of the measure.
            weights: (B, H, Q, K), 0 in the padding.
            first: the position of the first of the queries.
        """
        if name in ("same", "induction"):
            return self._pairs(first, weights.shape[2]).values(weights, int(name == "induction"))
        return np.asarray(_MEASURES[name](self, weights, first))

    def key(self, name: str, weights: Array, text: Array, query: Array) -> Array:
        """Return the key that a measure of a query counts; of several, the one with most weight.

        Args:
            name: of the measure.
            weights: (n, K), of n queries.
            text: (n,), the text of each query.
            query: (n,), the position of each query.

        Returns:
            (n,), -1 for a measure that counts no key.
        """
        keys = {"previous": query - 1, "next": query + 1, "first": np.zeros_like(query)}
        keys |= {"last": self.ends[text] - 1, "entropy": np.full_like(query, -1)}
        if name in keys:
            return keys[name]
        if name == STRONGEST:
            counted = self.words[text]
        else:
            earlier = np.arange(weights.shape[1]) < query[:, None]
            counted = (self.ids[text] == self.ids[text, query][:, None]) & earlier
            if name == "induction":
                counted = np.concatenate([np.zeros_like(counted[:, :1]), counted[:, :-1]], 1)
        return np.asarray(np.where(counted, weights, -1).argmax(1))

    def _pairs(self, first: int, count: int) -> _Pairs:
        if (first, count) not in self._parts:
            self._parts = {(first, count): _Pairs(self, first, count)}
        return self._parts[first, count]


class _Pairs:
    """Some queries, and the earlier positions with the same token as each."""

    def __init__(self, about: Measured, first: int, count: int) -> None:
        rows = np.arange(first, first + count)[:, None]  # (Q, 1)
        same = about.ids[:, first : first + count, None] == about.ids[:, None]  # (B, Q, K)
        same &= (np.arange(same.shape[2]) < rows) & about.there[:, first : first + count, None]
        self.shape = same.shape[:2]
        self.text, self.query, self.key = np.nonzero(same)
        row = self.text * count + self.query
        # where the pairs of each query begin, which are adjacent
        self.groups = np.flatnonzero(np.diff(row, prepend=-1))
        self.rows = row[self.groups]

    def values(self, weights: Array, shift: int) -> Array:
        """Return the sum of the weights `shift` positions behind these, (B, H, Q)."""
        heads = weights.shape[1]
        sums = np.zeros((self.shape[0] * self.shape[1], heads), weights.dtype)
        if len(self.groups):
            each = weights[self.text, :, self.query, self.key + shift]  # (n, H)
            sums[self.rows] = np.add.reduceat(each, self.groups, axis=0)
        return np.moveaxis(sums.reshape(*self.shape, heads), 2, 1)


def _beside(shift: int) -> Callable[[Measured, Array, int], Array]:
    """Return a function for the weight on the position `shift` behind the query's."""

    def weight(about: Measured, weights: Array, first: int) -> Array:
        out = np.zeros(weights.shape[:3], weights.dtype)
        queries, keys = weights.shape[2:]
        begin, end = max(0, -shift - first), min(queries, keys - shift - first)
        if begin < end:
            rows = np.arange(begin, end)
            out[..., begin:end] = weights[..., rows, rows + first + shift]
        return out

    return weight


def _entropy(about: Measured, weights: Array, first: int) -> Array:
    """Return `-sum(w * ln(w))`; a weight of 0 adds nothing."""
    logs = np.maximum(weights, np.finfo(weights.dtype).tiny)
    np.log(logs, out=logs)
    return np.asarray(-np.einsum("bhqk,bhqk->bhq", weights, logs))


def _strongest(about: Measured, weights: Array, first: int) -> Array:
    """Return the largest weight on a position that is neither the first nor a special token's."""
    seen = weights * about.words[:, None, None].astype(weights.dtype)
    # NumPy's argmax is faster than its max
    return np.take_along_axis(seen, seen.argmax(-1)[..., None], -1)[..., 0]


_MEASURES = {
    "previous": _beside(-1),
    "next": _beside(1),
    "first": lambda about, weights, first: weights[..., 0],
    "last": lambda about, weights, first: weights[
        np.arange(len(weights)), :, :, about.ends - 1
    ],  # the end of each text
    "entropy": _entropy,
    STRONGEST: _strongest,
}


@dataclass(frozen=True)
class HeadSums:
    """The sums over queries that `head_scores` divides, and the numbers of queries.

    The sums of two parts of a corpus add up to those of the whole: `one + other`.

    Attributes:
        sums: name to (layers, heads) of float64.
        counts: name to the number of queries.
    """

    sums: dict[str, Array]
    counts: dict[str, int]

    def __add__(self, other: HeadSums) -> HeadSums:
        return HeadSums(
            {name: part + other.sums[name] for name, part in self.sums.items()},
            {name: count + other.counts[name] for name, count in self.counts.items()},
        )

    def means(self) -> dict[str, Result]:
        """Return the mean (layers, heads) of each measure, NaN if it counts no query."""
        results = {}
        for name, part in self.sums.items():
            mean = part / (self.counts[name] or np.nan)
            of = "nats" if name == "entropy" else "mean weight"
            results[name] = Result(mean, ("layer", "head"), of=of, title=name)
        return results


def head_scores(
    model: Model, texts: Iterable[Any] | Array, of: str | Iterable[str] = NAMES
) -> dict[str, Result]:
    """Measure each head, as means over all queries of all texts, special tokens included.

    Texts are read once, as they come; memory grows neither with their number nor with the square
    of their length. Texts are truncated as in `trace`, and a warning counts them. A text without
    tokens adds nothing.

    Args:
        model: a model of `qkv.load` that reads one text at a time.
        texts: any iterable of texts, or of the ids of their tokens, (T,) integers each.
        of: the measures:

            - "previous", "next": the weight on the position before the query's, and after it.
            - "first", "last": the weight on the first position of the text, and on the last.
            - "same": the weight on earlier positions with the query's token.
            - "induction": the weight on the positions after those, over the queries whose token
              stands earlier in the text too.
            - "entropy": the entropy of the query's weights, in nats.

    Returns:
        For each name an array (layers, heads) of float64; NaN if no query counts.

    Raises:
        TypeError: a text is neither a string nor ids, or `model` is no model.
        ValueError: there is no such measure, the model reads two texts or images, or ids are not
            the model's.

    Source:
        Induction: Olsson et al. 2022, "In-context Learning and Induction Heads", prefix matching.
        Entropy: Clark et al. 2019, "What Does BERT Look At?", section 3.3.

    >>> import qkv
    >>> found = head_scores(qkv.load("random"), ["the cat sat", "I love you"], ["first", "entropy"])
    >>> found["first"].shape, bool((found["entropy"] <= np.log(3)).all())
    ((1, 2), True)
    """
    return head_sums(model, texts, of).means()


def head_sums(
    model: Model, texts: Iterable[Any] | Array, of: str | Iterable[str] = NAMES
) -> HeadSums:
    """Return the sums and counts of `head_scores`, which can be added to those of other texts."""
    call = "head_scores"
    return summed(check_model(model, call), texts, checked_names(of, call, NAMES), call)


class Measurement(NamedTuple):
    """A measure of some queries of some texts in one layer."""

    name: str
    layer: int
    first: int  # the position of the first of the queries
    batch: Sequence[Read]
    measured: Measured
    values: Array  # (B, H, Q)
    weights: Array  # (B, H, Q, K), which were measured


def summed(
    model: Model,
    texts: Any,
    names: Sequence[str],
    call: str,
    visit: Callable[[Measurement], None] | None = None,
    after: Callable[[Sequence[Read]], None] | None = None,
) -> HeadSums:
    """Return the sums of `head_scores` for arguments that were checked.

    Args:
        model: of one text at a time.
        texts: as for `head_scores`.
        names: of measures.
        call: the name of the call in errors.
        visit: gets each measure of each layer.
        after: gets the texts of each window when all of them were measured.
    """
    shape = model.num_layers, model.num_heads
    result = HeadSums({name: np.zeros(shape) for name in names}, dict.fromkeys(names, 0))
    special = sorted(model.tokenizer.special_ids) if model.tokenizer else []

    def measure(batch: list[Read]) -> None:
        ids = [text.ids for text in batch]
        measured = Measured(ids, special)
        for name in names:
            result.counts[name] += measured.count(name)

        def use(layer: int, first: int, weights: Array) -> None:
            for name in names:
                values = measured.values(name, weights, first)  # (B, H, Q)
                result.sums[name][layer] += values.sum(2).sum(0, dtype=np.float64)
                if visit is not None:
                    visit(Measurement(name, layer, first, batch, measured, values, weights))

        watch(model, ids, use)

    for window in windows(model, texts, call):
        for batch in batches(window, room(model)):
            measure(batch)
        if after is not None:
            after(window)
    return result
