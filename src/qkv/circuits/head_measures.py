"""What each head looks at, in numbers: means over all queries of many texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.checks import check_model
from qkv.circuits.results import Result
from qkv.circuits.streaming import Read, batches, room, watch, windows
from qkv.layers.packed import starts_of
from qkv.models.model import Model
from qkv.trace.recorder import padded

NAMES = ("previous", "next", "same", "first", "last", "induction", "entropy")
STRONGEST = "strongest"


def checked_names(of: str | Iterable[str], call: str, known: Sequence[str]) -> tuple[str, ...]:
    """The measures asked for, each once."""
    names = tuple(dict.fromkeys([of] if isinstance(of, str) else of))
    odd = [name for name in names if name not in known]
    if odd or not names:
        what = f"has {odd[0]!r:.40}" if odd else "is empty"
        raise ValueError(f"{call}: of {what}: choose among {', '.join(known)}")
    return names


class Measured:
    """Some texts, and of their weights a number for each query.

    Args:
        batch: the ids of the texts, (T,) each.
        special: the ids that stand for no text.
    """

    def __init__(self, batch: Sequence[Array], special: Sequence[int]) -> None:
        starts = starts_of(map(len, batch))
        packed = np.concatenate(batch)
        self.ids = padded(packed, starts)  # (B, T), 0 in the padding
        self.ends = np.diff(starts)  # (B,)
        self.there = padded(np.ones(len(packed), bool), starts)
        self.words = padded(~np.isin(packed, special), starts)  # (B, T), where `STRONGEST` looks
        self.words[:, 0] = False
        self._parts: dict[tuple[int, int], _Pairs] = {}

    def count(self, name: str) -> int:
        """How many queries there are that a measure is of."""
        if name != "induction":
            return int(self.there.sum())
        return len(self._pairs(0, self.ids.shape[1]).groups)

    def values(self, name: str, weights: Array, first: int) -> Array:
        """The measure of each query (B, H, Q), 0 where there is none.

        Args:
            name: which.
            weights: (B, H, Q, K), 0 in the padding.
            first: the place of the first of the queries.
        """
        if name in ("same", "induction"):
            return self._pairs(first, weights.shape[2]).values(weights, int(name == "induction"))
        found: Array = _MEASURES[name](self, weights, first)
        return found

    def key(self, name: str, weights: Array, text: Array, query: Array) -> Array:
        """Which key the measure of a query is of, the one with the most weight where it is several.

        Args:
            name: which.
            weights: (n, K), of n queries.
            text: (n,), of which text each is.
            query: (n,), where each stands.

        Returns:
            (n,), -1 for a measure that is of no key.
        """
        shift = {"previous": -1, "next": 1}.get(name)
        if shift is not None:
            return query + shift
        if name == "first":
            return np.zeros_like(query)
        if name == "last":
            return self.ends[text] - 1
        if name == "entropy":
            return np.full_like(query, -1)
        if name == STRONGEST:
            counted = self.words[text]
        else:
            ids, keys = self.ids[text], np.arange(weights.shape[1])
            counted = (ids == self.ids[text, query][:, None]) & (keys < query[:, None])
            if name == "induction":
                counted = np.concatenate([np.zeros_like(counted[:, :1]), counted[:, :-1]], 1)
        found: Array = np.where(counted, weights, -1).argmax(1)
        return found

    def _pairs(self, first: int, count: int) -> _Pairs:
        if (first, count) not in self._parts:
            self._parts = {(first, count): _Pairs(self, first, count)}
        return self._parts[first, count]


class _Pairs:
    """Some queries, and the earlier places that hold the token of each."""

    def __init__(self, about: Measured, first: int, count: int) -> None:
        rows = np.arange(first, first + count)[:, None]  # (Q, 1)
        same = about.ids[:, first : first + count, None] == about.ids[:, None]  # (B, Q, K)
        same &= (np.arange(same.shape[2]) < rows) & about.there[:, first : first + count, None]
        self.shape = same.shape[:2]
        self.text, self.query, self.key = np.nonzero(same)
        row = self.text * count + self.query
        # where the pairs of each query begin, which stand one behind the other
        self.groups = np.flatnonzero(np.diff(row, prepend=-1))
        self.rows = row[self.groups]

    def values(self, weights: Array, shift: int) -> Array:
        """The weights on those places, or so many behind them, summed: (B, H, Q)."""
        heads = weights.shape[1]
        found = np.zeros((self.shape[0] * self.shape[1], heads), weights.dtype)
        if len(self.groups):
            each = weights[self.text, :, self.query, self.key + shift]  # (n, H)
            found[self.rows] = np.add.reduceat(each, self.groups, axis=0)
        return np.moveaxis(found.reshape(*self.shape, heads), 2, 1)


def _beside(shift: int) -> Callable[[Measured, Array, int], Array]:
    """The weight on the place so far from the query's."""

    def weight(about: Measured, weights: Array, first: int) -> Array:
        found = np.zeros(weights.shape[:3], weights.dtype)
        queries, keys = weights.shape[2:]
        begin, end = max(0, -shift - first), min(queries, keys - shift - first)
        if begin < end:
            places = np.arange(begin, end)
            found[..., begin:end] = weights[..., places, places + first + shift]
        return found

    return weight


def _last(about: Measured, weights: Array, first: int) -> Array:
    """The weight on the last place of the text."""
    found: Array = weights[np.arange(len(weights)), :, :, about.ends - 1]
    return found


def _entropy(about: Measured, weights: Array, first: int) -> Array:
    """`-sum(w * ln(w))`; a weight of 0 adds nothing."""
    logs = np.maximum(weights, np.finfo(weights.dtype).tiny)
    np.log(logs, out=logs)
    found: Array = np.einsum("bhqk,bhqk->bhq", weights, logs)
    return np.negative(found, out=found)


def _strongest(about: Measured, weights: Array, first: int) -> Array:
    """The largest weight on a place that is neither the first nor a special token's."""
    seen = weights * about.words[:, None, None].astype(weights.dtype)
    # NumPy finds where the largest is sooner than what it is
    return np.take_along_axis(seen, seen.argmax(-1)[..., None], -1)[..., 0]


_MEASURES = {
    "previous": _beside(-1),
    "next": _beside(1),
    "first": lambda about, weights, first: weights[..., 0],
    "last": _last,
    "entropy": _entropy,
    STRONGEST: _strongest,
}


@dataclass(frozen=True)
class HeadSums:
    """What `head_scores` divides: sums over queries, and how many queries they are over.

    Those of two parts of a corpus add up to those of the whole: `one + other`.

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
        """Each name's mean (layers, heads), NaN where no query counts."""
        return {
            name: Result(
                part / self.counts[name] if self.counts[name] else np.full_like(part, np.nan),
                ("layer", "head"),
                of="nats" if name == "entropy" else "mean weight",
                title=name,
            )
            for name, part in self.sums.items()
        }


def head_scores(
    model: Model, texts: Iterable[Any] | Array, of: str | Iterable[str] = NAMES
) -> dict[str, Result]:
    """What each head does, as means over all queries of all texts, special tokens included.

    Texts are read once, as they come; memory grows neither with their number nor with the square
    of their length. A text is cut as in `trace`, and a warning counts what was cut. One without a
    token adds nothing.

    Args:
        model: one that `qkv.load` has read, of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens, (T,) integers each.
        of: which means:

            - "previous", "next": the weight on the place before the query's, and behind it.
            - "first", "last": the weight on the first place of the text, and on its last.
            - "same": the weight on earlier places that hold the query's token.
            - "induction": the weight on the places that follow those, over the queries whose
              token stands earlier in the text too.
            - "entropy": the entropy of the query's weights, in nats.

    Returns:
        For each name an array (layers, heads) of float64; NaN where no query counts.

    Raises:
        TypeError: a text is neither a string nor ids, or the model is none.
        ValueError: there is no such mean, the model is of two texts or of images, or ids are not
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
    """The sums and counts behind `head_scores`, to which those of other texts can be added."""
    return summed(
        check_model(model, "head_scores"),
        texts,
        checked_names(of, "head_scores", NAMES),
        "head_scores",
    )


def summed(
    model: Model,
    texts: Any,
    names: Sequence[str],
    call: str,
    visit: Callable[..., None] | None = None,
    after: Callable[[Sequence[Read]], None] | None = None,
) -> HeadSums:
    """Return the sums of `head_scores` for arguments that were checked.

    Args:
        model: of one text at a time.
        texts: as for `head_scores`.
        names: of measures.
        call: the name of the call in errors.
        visit: gets each name, layer, first query, batch and `Measured`, with the measures
            (B, H, Q) and the weights (B, H, Q, K) they come from.
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
                    visit(name, layer, first, batch, measured, values, weights)

        watch(model, ids, use)

    for window in windows(model, texts, call):
        for batch in batches(window, room(model)):
            measure(batch)
        if after is not None:
            after(window)
    return result
