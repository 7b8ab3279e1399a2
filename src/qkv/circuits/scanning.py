"""All heads over many texts: what each does on the whole, and the texts where it does that most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, shown, whole_number
from qkv.circuits.checks import check_model
from qkv.circuits.heads import summed
from qkv.circuits.measures import NAMES, STRONGEST, Measured, checked_names
from qkv.circuits.reading import Read
from qkv.circuits.results import Result
from qkv.models.model import Model
from qkv.models.tasks.inputs import named

_CALL = "scan_heads"
_NAMES = (*NAMES, STRONGEST)


@dataclass(frozen=True)
class HeadExample:
    """A place in a text where a head does much of something.

    Attributes:
        value: how much: the measure at this query.
        number: which text it is, counted from 0.
        text: the text as it was given, a string or the ids of its tokens (T,).
        tokens: its tokens by their names.
        query: the place that looks.
        key: the place that it looks at, the one with the most weight where the measure counts
            several; None for the entropy.
    """

    value: float
    number: int
    text: str | Array
    tokens: list[str]
    query: int
    key: int | None


@dataclass(frozen=True)
class HeadScan:
    """What `scan_heads` gives.

    Attributes:
        scores: for each measure its mean over all queries, (layers, heads) of float64, as
            `head_scores` gives it.
    """

    scores: dict[str, Result]
    _found: dict[str, list[list[list[HeadExample]]]]

    def examples(self, name: str, layer: int, head: int) -> list[HeadExample]:
        """The texts where a head has most of a measure, the most first, each text once.

        Of texts with as much the earlier ones are there; a text that has nothing of it is not.

        Args:
            name: the measure.
            layer: counted from 0, or from the end with -1.
            head: the same.

        Raises:
            KeyError: there is no such measure among those that were asked for.
            TypeError: `layer` or `head` is not a whole number.
            IndexError: there is no such layer or head.
        """
        if name not in self._found:
            raise KeyError(f"examples: there is no {shown(name)}: it has {', '.join(self._found)}")
        part: Any = self._found[name]
        for what, number in (("layer", layer), ("head", head)):
            if not is_whole_number(number):
                raise TypeError(f"examples: {what} is {shown(number)}: give a whole number")
            if not -len(part) <= number < len(part):
                raise IndexError(
                    f"examples: there is no {what} {number}: there are {len(part)}, 0 to "
                    f"{len(part) - 1}"
                )
            part = part[number]
        return list(part)


def scan_heads(
    model: Model, texts: Iterable[Any] | Array, of: str | Iterable[str] = _NAMES, top_k: int = 10
) -> HeadScan:
    """All heads over many texts: their scores, and for each the texts where it does that most.

    Texts are read once, as they come, a generator's too; memory grows neither with their number nor
    with the square of their length: weights are measured as they are computed, and what is kept is
    `top_k` texts for each head and measure. Nothing behind the weights of the last layer is
    computed. A text is cut as in `trace`, and a warning counts what was cut.

    Args:
        model: one that `qkv.load` has read, of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens, (T,) integers each.
        of: which measures: those of `head_scores`, and "strongest", the largest weight on one
            place, the first place of the text and special tokens left out, where heads look that
            have nothing to look for.
        top_k: how many examples are kept for each head and measure, at least 1.

    Returns:
        `.scores`, the mean of each measure over all queries, (layers, heads) of float64; and
        `.examples(name, layer, head)`, the `top_k` texts with the query that has most of it.

    Raises:
        TypeError: a text is neither a string nor ids, the model is none, or `top_k` is not a whole
            number.
        ValueError: there is no such measure, `top_k` is below 1, the model is of two texts or of
            images, or ids are not the model's.

    Source:
        Examples that activate a part most: Zeiler and Fergus 2014, "Visualizing and Understanding
        Convolutional Networks", section 4; of heads, "strongest" as in Voita et al. 2019,
        "Analyzing Multi-Head Self-Attention", section 4.2, which calls its mean the confidence.

    >>> import qkv
    >>> texts = ["I sat on the bank of the river.", "The bank charged a fee for the loan."]
    >>> found = scan_heads(qkv.load(), iter(texts), top_k=5)
    >>> found.scores["previous"].shape
    (4, 6)
    >>> one, other = found.examples("strongest", layer=0, head=3)  # a place in each text
    >>> one.value >= other.value, {one.number, other.number} == {0, 1}
    (True, True)
    """
    model = check_model(model, _CALL)
    names = checked_names(of, _CALL, _NAMES)
    best = _Best(names, whole_number(top_k, call=_CALL, name="top_k", least=1), model)
    scores = summed(model, texts, names, _CALL, best).means()
    return HeadScan(scores, best.examples())


# How much, below 0 (so that the most comes first); the number of the text, the query and the key.
_Entry = tuple[float, int, int, int]


class _Best:
    """The texts with most of each measure, of those that came so far."""

    def __init__(self, names: Sequence[str], count: int, model: Model) -> None:
        self.names, self.count, self.model = names, count, model
        self.entries: dict[tuple[str, int, int], list[_Entry]] = defaultdict(list)
        self.texts: dict[int, Read] = {}  # by their numbers, those that entries are of
        # of the last entry of each, once there are `count`: how much, and the number of its text
        shape = (len(names), model.num_layers, model.num_heads)
        self.least, self.latest = np.zeros(shape), np.full(shape, -1)

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
        """Take the best query of each text and head, where it is among the best so far."""
        numbers = np.array([text.number for text in batch])
        most = values.max(2)  # (B, H)
        place = self.names.index(name), layer
        least, latest = self.least[place], self.latest[place]
        texts, heads = np.nonzero((most > least) | ((most == least) & (numbers[:, None] < latest)))
        if not len(texts):
            return
        queries = values[texts, heads].argmax(1)
        rows = weights[texts, heads, queries]  # (n, K)
        queries += first
        keys = measured.key(name, rows, texts, queries)
        found = defaultdict(list)
        columns = (heads, -most[texts, heads].astype(np.float64), numbers[texts], queries, keys)
        for head, *entry in zip(*(column.tolist() for column in columns), strict=True):
            found[head].append(tuple(entry))
        for head, more in found.items():
            kept = self.entries[name, layer, head]
            kept[:] = _first(sorted([*kept, *more]), self.count)
            if len(kept) == self.count:
                least[head], latest[head] = -kept[-1][0], kept[-1][1]

    def window(self, window: Sequence[Read]) -> None:
        """Keep the texts that entries are of, and no other."""
        used = {number for entries in self.entries.values() for _, number, *_ in entries}
        known = self.texts | {text.number: text for text in window}
        self.texts = {number: known[number] for number in used}

    def examples(self) -> dict[str, list[list[list[HeadExample]]]]:
        """By measure, layer and head, the most first."""
        ids = np.unique([one for text in self.texts.values() for one in text.ids.tolist()])
        tokens = named(ids, np.ones(len(ids), bool), self.model.tokenizer).tokens
        spelled = dict(zip(ids.tolist(), tokens, strict=True))
        return {
            name: [
                [
                    [
                        HeadExample(
                            -below,
                            number,
                            self.texts[number].given,
                            [spelled[one] for one in self.texts[number].ids.tolist()],
                            query,
                            None if key < 0 else key,
                        )
                        for below, number, query, key in self.entries[name, layer, head]
                    ]
                    for head in range(self.model.num_heads)
                ]
                for layer in range(self.model.num_layers)
            ]
            for name in self.names
        }


def _first(entries: Sequence[_Entry], count: int) -> list[_Entry]:
    """The first so many, each text once.

    >>> _first([(-0.9, 5, 1, 0), (-0.8, 5, 7, 2), (-0.7, 2, 1, 0)], 2)
    [(-0.9, 5, 1, 0), (-0.7, 2, 1, 0)]
    """
    once: dict[int, _Entry] = {}
    for entry in entries:
        once.setdefault(entry[1], entry)
    return list(once.values())[:count]
