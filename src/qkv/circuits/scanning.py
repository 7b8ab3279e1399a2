"""All heads over many texts: what each does on the whole, and the texts where it does that most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, shown, whole_number
from qkv.circuits.cards import MOST_CARDS, cards_of, passage_of
from qkv.circuits.checks import check_model
from qkv.circuits.heads import summed
from qkv.circuits.measures import NAMES, STRONGEST, Measured, checked_names
from qkv.circuits.plot_view import PlotView
from qkv.circuits.ranking import Best
from qkv.circuits.reading import Read
from qkv.circuits.results import Result
from qkv.models.model import Model
from qkv.see.draw.panels import Passages

_CALL = "scan_heads"
_NAMES = (*NAMES, STRONGEST)


@dataclass(frozen=True, eq=False)
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
        weights: (T,), the weights of the query.
    """

    value: float
    number: int
    text: str | Array
    tokens: list[str]
    query: int
    key: int | None
    weights: Array


@dataclass(frozen=True)
class HeadScan:
    """What `scan_heads` gives.

    Attributes:
        scores: for each measure its mean over all queries, (layers, heads) of float64, as
            `head_scores` gives it.
    """

    scores: dict[str, Result]
    _found: dict[str, list[list[list[HeadExample]]]]

    def cards(self, name: str, *, top: int = 3, theme: str = "auto") -> PlotView:
        """A page of cards: for each head the texts in which it has most of a measure.

        Words are shaded by the weights of the query, which is framed, on a scale from 0 to 1.

        Args:
            name: the measure.
            top: how many texts a card shows at most.
            theme: of the page: "light", "dark", or "auto" for that of the site or system around it.

        Returns:
            A view of the heads with the largest values, 24 at most.

        Raises:
            KeyError: there is no such measure among those that were asked for.
            TypeError: `top` is not a whole number.
            ValueError: `top` is below 1, or `theme` is unknown.
        """
        top = whole_number(top, call="cards", name="top", least=1)
        self._check_name(name, "cards")
        heads = [
            (layer, head, found[:top])
            for layer, row in enumerate(self._found[name])
            for head, found in enumerate(row)
            if found
        ]
        largest = sorted(heads, key=lambda one: -one[2][0].value)[:MOST_CARDS]
        cards = [
            Passages(
                title=f"head {layer}.{head}",
                explained=f"mean {self.scores[name][layer, head]:.3f}",
                passages=[
                    passage_of(one.value, one.tokens, one.weights, one.query, 1.0) for one in found
                ],
            )
            for layer, head, found in sorted(largest, key=lambda one: one[:2])
        ]
        return cards_of(
            cards,
            f"Each head, and the queries with most {name!r}.",
            self.scores[name].size,
            "head",
            theme,
        )

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
        self._check_name(name, "examples")
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

    def _check_name(self, name: str, call: str) -> None:
        if name not in self._found:
            raise KeyError(f"{call}: there is no {shown(name)}: it has {', '.join(self._found)}")


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


class _Best:
    """The queries with most of each measure, those of a text alone that has most."""

    def __init__(self, names: Sequence[str], count: int, model: Model) -> None:
        self.names, self.model = names, model
        self.best = Best(len(names) * model.num_layers * model.num_heads, count)

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
        unit = self._unit(name, layer)
        texts, heads = self.best.among(most, numbers, slice(unit, unit + most.shape[1]))
        if not len(texts):
            return
        queries = values[texts, heads].argmax(1)
        rows = weights[texts, heads, queries]  # (n, K)
        keys = measured.key(name, rows, texts, queries + first)
        lengths = measured.ends[texts]
        kept = [
            (key, row[:end]) for key, row, end in zip(keys.tolist(), rows, lengths, strict=True)
        ]
        self.best.add(unit + heads, most[texts, heads], numbers[texts], queries + first, kept)

    def window(self, window: Sequence[Read]) -> None:
        """Keep the texts that entries are of, and no other."""
        self.best.keep(window)

    def examples(self) -> dict[str, list[list[list[HeadExample]]]]:
        """By measure, layer and head, the most first."""
        spelled, heads = self.best.spelled(self.model), range(self.model.num_heads)
        return {
            name: [
                [self._examples(self._unit(name, layer) + head, spelled) for head in heads]
                for layer in range(self.model.num_layers)
            ]
            for name in self.names
        }

    def _examples(self, unit: int, spelled: Mapping[int, str]) -> list[HeadExample]:
        best, found = self.best, []
        for rank in range(int((best.numbers[unit] >= 0).sum())):
            text = best.texts[int(best.numbers[unit, rank])]
            key, weights = best.rows[unit, rank]
            found.append(
                HeadExample(
                    float(best.values[unit, rank]),
                    text.number,
                    text.given,
                    [spelled[one] for one in text.ids.tolist()],
                    int(best.places[unit, rank]),
                    None if key < 0 else key,
                    weights,
                )
            )
        return found

    def _unit(self, name: str, layer: int) -> int:
        """The first of the units of a measure in a layer, one for each head."""
        place = self.names.index(name) * self.model.num_layers + layer
        return place * self.model.num_heads
