"""What each head looks at, counted over many texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qkv.arrays import Array
from qkv.circuits.checks import check_model
from qkv.circuits.measures import NAMES, Measured, checked_names
from qkv.circuits.reading import Read, batches, windows
from qkv.circuits.results import Result
from qkv.circuits.watching import room, watch
from qkv.models.model import Model

_CALL = "head_scores"


class Seen(Protocol):
    """What is told of all that is measured."""

    def batch(
        self,
        name: str,
        layer: int,
        first: int,
        batch: Sequence[Read],
        measured: Measured,
        values: Array,
        weights: Array,
    ) -> None:
        """The values (B, H, Q) of a measure, and the weights (B, H, Q, K) that they are of."""

    def window(self, window: Sequence[Read]) -> None:
        """All that these texts have was measured."""


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
    return summed(check_model(model, _CALL), texts, checked_names(of, _CALL, NAMES), _CALL)


def summed(
    model: Model, texts: Any, names: Sequence[str], call: str, seen: Seen | None = None
) -> HeadSums:
    """The same, of what was checked.

    Args:
        model: of one text at a time.
        texts: as for `head_scores`.
        names: of measures.
        call: who is named in an error.
        seen: is told of all that is measured.
    """
    shape = model.num_layers, model.num_heads
    found = HeadSums({name: np.zeros(shape) for name in names}, dict.fromkeys(names, 0))
    special = sorted(model.tokenizer.special_ids) if model.tokenizer else []
    for window in windows(model, texts, call):
        for batch in batches(window, room(model)):
            ids = [text.ids for text in batch]
            measured = Measured(ids, special)
            for name in names:
                found.counts[name] += measured.count(name)

            def use(
                layer: int,
                first: int,
                weights: Array,
                batch: list[Read] = batch,
                measured: Measured = measured,
            ) -> None:
                for name in names:
                    values = measured.values(name, weights, first)  # (B, H, Q)
                    found.sums[name][layer] += values.sum(2).sum(0, dtype=np.float64)
                    if seen is not None:
                        seen.batch(name, layer, first, batch, measured, values, weights)

            watch(model, ids, use)
        if seen is not None:
            seen.window(window)
    return found
