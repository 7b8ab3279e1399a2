"""Scan neurons, features or heads over many texts, and keep the texts with the largest values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, shown, whole_number
from qkv.circuits.checks import check_model
from qkv.circuits.head_measures import NAMES, STRONGEST, Measured, checked_names, summed
from qkv.circuits.plot_view import MOST_CARDS, PlotView, cards_of, passage_of
from qkv.circuits.results import Result
from qkv.circuits.sae import SAE
from qkv.circuits.streaming import Read, one_site, rows_of
from qkv.models.model import Model
from qkv.models.run.inputs import named
from qkv.see.draw.panels import Passages


class Best:
    """For each unit (a neuron, a feature, a measure of a head) the texts with the largest values.

    A text counts once for each unit, and only with a value above 0. Of equal values the earlier
    text comes first.

    Args:
        units: how many there are.
        count: how many texts are kept for each.

    Attributes:
        values: (units, count) float64, the largest first, 0 where there are fewer.
        numbers: (units, count), which text it is, -1 where there are fewer.
        places: (units, count), where in the text.
        rows: (units, count), what else is kept of each.
        texts: the texts that are kept, by their numbers.
    """

    def __init__(self, units: int, count: int) -> None:
        shape = (units, count)
        self.values, self.numbers = np.zeros(shape), np.full(shape, -1)
        self.places, self.rows = np.zeros(shape, np.int64), np.full(shape, None, object)
        self.texts: dict[int, Read] = {}

    def among(self, values: Array, numbers: Array, units: slice) -> tuple[Array, Array]:
        """Which values (B, n) of texts with these numbers (B,) are among the largest so far.

        Returns:
            The rows and columns of `values` where they are; a column counts from 0 in `units`.
        """
        least, latest = self.values[units, -1], self.numbers[units, -1]
        found = (values > least) | ((values == least) & (numbers[:, None] < latest))
        count = self.values.shape[1]
        if len(values) > count:  # more than are kept
            order = np.argsort(numbers)
            rest = order[np.argsort(-values[order], axis=0, kind="stable")[count:]]
            np.put_along_axis(found, rest, False, 0)
        return np.nonzero(found)  # type: ignore[return-value]  # of two axes

    def add(
        self, units: Array, values: Array, numbers: Array, places: Array, rows: Sequence[Any]
    ) -> None:
        """Take one more value for some units, (n,) each; a unit may be there several times."""
        touched = np.unique(units)
        there = self.numbers[touched] >= 0  # (touched, count)
        whole = np.empty(len(rows), object)
        whole[:] = rows
        owner = np.concatenate([np.repeat(touched, there.sum(1)), units])
        old = (self.values, self.numbers, self.places, self.rows)
        merged = [
            np.concatenate([array[touched][there], new])
            for array, new in zip(old, (values, numbers, places, whole), strict=True)
        ]
        order = np.lexsort((merged[2], merged[1], -merged[0], owner))
        pairs = owner[order] * (1 + merged[1].max()) + merged[1][order]
        order = order[np.sort(np.unique(pairs, return_index=True)[1])]  # each text once
        owner = owner[order]
        rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
        kept = rank < self.values.shape[1]
        for array, new, empty in zip(old, merged, (0, -1, 0, None), strict=True):
            array[touched] = empty
            array[owner[kept], rank[kept]] = new[order][kept]

    def keep(self, window: Sequence[Read]) -> None:
        """Keep the texts of this window that values are of, and no text that no value is of."""
        used = set(np.unique(self.numbers).tolist())
        known = self.texts | {text.number: text for text in window}
        self.texts = {number: text for number, text in known.items() if number in used}

    def spelled(self, model: Model) -> dict[int, str]:
        """What each token of the texts that are kept is called, by its id."""
        ids = np.unique([one for text in self.texts.values() for one in text.ids.tolist()])
        tokens = named(ids, np.ones(len(ids), bool), model.tokenizer).tokens
        return dict(zip(ids.tolist(), tokens, strict=True))


@dataclass(frozen=True, eq=False)
class Example:
    """A text in which a neuron or feature is large.

    Attributes:
        value: its largest activation there.
        number: which text it is, counted from 0.
        text: the text as it was given, a string or the ids of its tokens (T,).
        tokens: its tokens by their names.
        position: where the activation is that large.
        activations: (T,), the activation at each token.
    """

    value: float
    number: int
    text: str | Array
    tokens: list[str]
    position: int
    activations: Array


@dataclass(frozen=True, eq=False)
class Scan:
    """What `scan` gives.

    Attributes:
        at: the full name of the activation.
        unit: "neuron" or "feature".
        tokens: how many tokens were read.
        density: (n,), the share of tokens at which each is above 0.
        mean: (n,), the mean over all tokens.
        largest: (n,), the largest activation, 0 where there is none above 0.
    """

    at: str
    unit: str
    tokens: int
    density: Array
    mean: Array
    _best: Best
    _spelled: Mapping[int, str]

    def __repr__(self) -> str:
        return f"<Scan of {len(self)} {self.unit}s of {self.at}, {self.tokens:,} tokens>"

    def __len__(self) -> int:
        return len(self.density)

    @property
    def largest(self) -> Array:
        """(n,), the largest activation, 0 where there is none above 0."""
        found: Array = self._best.values[:, 0]
        return found

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the first page of cards."""
        return self.cards()._repr_html_()

    def cards(
        self,
        numbers: Iterable[int] | Mapping[int, str] | None = None,
        *,
        top: int = 5,
        theme: str = "auto",
    ) -> PlotView:
        """A page of cards: for each neuron or feature the texts in which it is largest.

        Words are shaded by the activation, from 0 to the largest of the card; the word with the
        largest of its text is framed. Of long texts the words around it are shown.

        Args:
            numbers: which neurons or features, or a mapping from these to names that their cards
                carry; without it those with the largest activations, 24 at most.
            top: how many texts a card shows at most.
            theme: of the page: "light", "dark", or "auto" for that of the site or system around it.

        Returns:
            A view: a notebook and a terminal show it, and `to_html`, `to_png`, `to_svg` and
            `to_dict` write it.

        Raises:
            TypeError: a number is not a whole number.
            ValueError: `numbers` is empty, `top` is below 1, or `theme` is unknown.
            IndexError: there is no neuron or feature of a number.
        """
        top = whole_number(top, call="cards", name="top", least=1)
        if numbers is None:
            order = np.argsort(-self.largest, kind="stable")[:MOST_CARDS]
            numbers = order[self.largest[order] > 0].tolist()
        chosen, names = list(numbers), numbers if isinstance(numbers, Mapping) else {}
        found = []
        for number in chosen:
            examples = self.examples(number)[:top]
            passages = [
                passage_of(one.value, one.tokens, one.activations, one.position, examples[0].value)
                for one in examples
            ]
            share = f"above 0 at {self.density[number]:.2%} of tokens"
            explained = share if examples else "never above 0"
            title = f"{self.unit} {number % len(self)}" + f": {names.get(number)}" * bool(names)
            found.append(Passages(title=title, explained=explained, passages=passages))
        said = f"{len(self):,} {self.unit}s of {self.at} on {self.tokens:,} tokens."
        return cards_of(found, said, len(self), self.unit, theme)

    def examples(self, number: int) -> list[Example]:
        """The texts in which a neuron or feature is largest, the largest first, each text once.

        Of texts with equal values the earlier ones are there; a text in which it is never above 0
        is not.

        Args:
            number: of the neuron or feature, counted from 0, or from the end with -1.

        Raises:
            TypeError: it is not a whole number.
            IndexError: there is none of this number.
        """
        if not is_whole_number(number):
            raise TypeError(f"examples: the number is {shown(number)}: give a whole number")
        count = len(self)
        if not -count <= number < count:
            raise IndexError(
                f"examples: there is no {self.unit} {number}: there are {count}, 0 to {count - 1}"
            )
        best = self._best
        found = []
        for rank in range(int((best.numbers[number] >= 0).sum())):
            text = best.texts[int(best.numbers[number, rank])]
            found.append(
                Example(
                    float(best.values[number, rank]),
                    text.number,
                    text.given,
                    [self._spelled[one] for one in text.ids.tolist()],
                    int(best.places[number, rank]),
                    best.rows[number, rank],
                )
            )
        return found


def scan(
    model: Model, texts: Iterable[Any] | Array, *, of: str | tuple[str, int] | SAE, top: int = 20
) -> Scan:
    """All neurons, or all features of an autoencoder, and the texts that excite each most.

    Texts are read once, as they come, a generator's too; memory grows with the number of neurons
    and `top`, not with the number of texts. A text is cut as in `trace`, and a warning counts what
    was cut.

    Args:
        model: one that `qkv.load` has read, of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens, (T,) integers each.
        of: one activation of one layer, as ("post", 3), of which each number is a neuron; or an
            `SAE`, whose features are scanned where its site is.
        top: how many texts are kept for each, at least 1.

    Returns:
        `.density`, `.mean` and `.largest` (n,) of each, and `.examples(number)`, the `top` texts
        with its largest activations. Neurons of several heads are counted head by head.

    Raises:
        TypeError: a text is neither a string nor ids, the model is none, or `top` is not a whole
            number.
        ValueError: `of` is no activation of one layer with a row for each token, `top` is below 1,
            the model is of two texts or of images, or ids are not the model's.
        KeyError: there is no such activation.

    Source:
        Examples that activate a part most: Zeiler and Fergus 2014, "Visualizing and Understanding
        Convolutional Networks", section 4.

    >>> import qkv
    >>> texts = ["I sat on the bank of the river.", "The bank charged a fee for the loan."]
    >>> found = scan(qkv.load("books-decoder"), iter(texts), of=("post", 2), top=2)
    >>> found.density.shape, [one.number for one in found.examples(7)] in ([0, 1], [1, 0], [0], [1])
    ((512,), True)
    """
    model = check_model(model, "scan")
    sae = of if isinstance(of, SAE) else None
    if sae is not None and sae.at is None:
        raise ValueError(f"scan: of is {sae!r} without a site: set its at, as ('resid_post', 3)")
    name = one_site(model, of if sae is None else sae.at, "scan", "of")
    top = whole_number(top, call="scan", name="top", least=1)
    best: Best | None = None
    count = 0
    above: Any = 0
    total: Any = 0.0
    for batch, found in rows_of(model, texts, [name], "scan"):
        rows = found[name].reshape(len(found[name]), -1)
        values = rows if sae is None else sae.encode(rows)  # (tokens, n)
        best = best or Best(values.shape[1], top)
        count += len(values)
        above = above + (values > 0).sum(0)
        total = total + values.sum(0, dtype=np.float64)
        ends = np.cumsum([len(text.ids) for text in batch])
        each = np.split(values, ends[:-1])  # (T, n) of each text
        places = np.array([text.argmax(0) for text in each])  # (B, n)
        largest = np.array([text.max(0) for text in each])
        numbers = np.array([text.number for text in batch])
        which, units = best.among(largest, numbers, slice(None))
        if len(which):
            kept = [each[t][:, u].copy() for t, u in zip(which, units, strict=True)]
            cells = which, units
            best.add(units, largest[cells], numbers[which], places[cells], kept)
            best.keep(batch)
    if best is None:
        raise ValueError("scan: texts hold no token: give some")
    unit = "neuron" if sae is None else "feature"
    return Scan(name, unit, count, above / count, total / count, best, best.spelled(model))


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
    model = check_model(model, "scan_heads")
    names = checked_names(of, "scan_heads", _NAMES)
    best = _Best(names, whole_number(top_k, call="scan_heads", name="top_k", least=1), model)
    scores = summed(model, texts, names, "scan_heads", best).means()
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
