"""Scan neurons, features or heads over many texts; keep the texts with the largest values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, value_error
from qkv.arrays import Array, quote, whole_number
from qkv.circuits._plot_view import MOST_CARDS, PlotView, cards_of, passage_of
from qkv.circuits._reader import Names, Read, Texts, check_index, check_model, one_site, rows_of
from qkv.circuits._sae import SAE
from qkv.circuits.means import NAMES, STRONGEST, Measurement, checked_names, sum_measures
from qkv.circuits.results import Result
from qkv.models.model import Model
from qkv.models.run.text_reader import name_tokens
from qkv.see.draw.panels import Passages

_NAMES = (*NAMES, STRONGEST)


class Best:
    """For each unit, the texts with the largest values.

    A unit is a neuron, a feature, or a measure of a head. Each unit keeps a text at most once, and
    only if the text's value is above 0. Among texts with equal values, the earlier text comes
    first.

    Args:
        units: the number of units.
        count: the number of texts to keep per unit.

    Attributes:
        values: (units, count) float64, largest first; 0 in unused entries.
        numbers: (units, count), the index of each text; -1 in unused entries.
        positions: (units, count), the position of each value in its text.
        rows: (units, count), one object for each entry of `values`, for example the array of the
            activations at all tokens of the text; None in unused entries.
        texts: the kept texts, keyed by index.
    """

    def __init__(self, units: int, count: int) -> None:
        shape = (units, count)
        self.values, self.numbers = np.zeros(shape), np.full(shape, -1)
        self.positions, self.rows = np.zeros(shape, np.int64), np.full(shape, None, object)
        self.texts: dict[int, Read] = {}

    def among(self, values: Array, numbers: Array, units: slice) -> tuple[Array, Array]:
        """Find the entries of `values` (B, n) that are large enough to be kept for their unit.

        Returns:
            `(rows, columns)`: the indices of the found entries in `values`. Row i is the text
            `numbers[i]`. Column 0 is the first unit of `units`.
        """
        least, latest = self.values[units, -1], self.numbers[units, -1]
        fits = (values > least) | ((values == least) & (numbers[:, None] < latest))
        count = self.values.shape[1]
        if len(values) > count:  # Each unit keeps `count` texts.
            order = np.argsort(numbers)
            rest = order[np.argsort(-values[order], axis=0, kind="stable")[count:]]
            np.put_along_axis(fits, rest, False, 0)
        return np.nonzero(fits)  # type: ignore[return-value]  # two arrays, for two axes

    def add(self, units: Array, values: Array, numbers: Array, positions: Array, rows: Any) -> None:
        """Add n values; value i was measured in the text `numbers[i]`, for the unit `units[i]`."""
        touched = np.unique(units)
        there = self.numbers[touched] >= 0  # (touched, count)
        whole = np.empty(len(rows), object)
        whole[:] = rows
        owner = np.concatenate([np.repeat(touched, there.sum(1)), units])
        old = (self.values, self.numbers, self.positions, self.rows)
        merged = [
            np.concatenate([array[touched][there], new])
            for array, new in zip(old, (values, numbers, positions, whole), strict=True)
        ]
        order = np.lexsort((merged[2], merged[1], -merged[0], owner))
        pairs = owner[order] * (1 + merged[1].max()) + merged[1][order]
        # keep each text once per unit
        order = order[np.sort(np.unique(pairs, return_index=True)[1])]
        owner = owner[order]
        rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
        mask = rank < self.values.shape[1]
        for array, new, empty in zip(old, merged, (0, -1, 0, None), strict=True):
            array[touched] = empty
            array[owner[mask], rank[mask]] = new[order][mask]

    def keep(self, window: Sequence[Read]) -> None:
        """Store the texts of `window`; then drop every stored text that no unit keeps."""
        used = set(np.unique(self.numbers).tolist())
        known = self.texts | {text.number: text for text in window}
        self.texts = {number: text for number, text in known.items() if number in used}

    def token_strings(self, model: Model) -> dict[int, str]:
        """Return the strings of all tokens in the kept texts, keyed by token id."""
        ids = np.unique([token for text in self.texts.values() for token in text.ids.tolist()])
        tokens = name_tokens(ids, np.ones(len(ids), bool), model.tokenizer).tokens
        return dict(zip(ids.tolist(), tokens, strict=True))

    def entries(self, unit: int, spelled: Mapping[int, str]) -> Iterator[tuple[Any, ...]]:
        """Yield `(value, number, text, tokens, position, row)` per text, largest value first."""
        columns = (self.numbers, self.values, self.positions, self.rows)
        for number, value, position, row in zip(*(x[unit].tolist() for x in columns), strict=True):
            if number >= 0:
                text = self.texts[number]
                tokens = [spelled[token] for token in text.ids.tolist()]
                yield value, number, text.source, tokens, position, row


@dataclass(frozen=True, eq=False)
class _InText:
    """The value of a neuron, a feature or a head in one text."""

    value: float
    number: int
    text: str | Array
    tokens: list[str]


@dataclass(frozen=True, eq=False)
class Example(_InText):
    """A text in which a neuron or feature has a large activation.

    Attributes:
        value: the largest activation in the text; in a negative scan, the most negative activation.
        number: the index of the text.
        text: the given text, as a string or token ids (T,).
        tokens: the token strings.
        position: the position of `value`.
        activations: (T,), the activation at each token.
    """

    position: int
    activations: Array


@dataclass(frozen=True, eq=False)
class Scan:
    """The result of `scan`.

    Attributes:
        at: the full name of the activation.
        unit: "neuron" or "feature".
        tokens: the number of tokens in all texts.
        density: (n,), the fraction of tokens with an activation above 0.
        mean: (n,), the mean activation over all tokens.
        largest: (n,), the largest activation; 0 if none is above 0.
        negative: whether activations below 0 were scanned. If so, `density` counts the activations
            below 0, and `largest` and the examples hold the most negative activations.
    """

    at: str
    unit: str
    tokens: int
    density: Array
    mean: Array
    _best: Best
    _spelled: Mapping[int, str]
    negative: bool = False

    def __repr__(self) -> str:
        return f"<Scan of {len(self)} {self.unit}s of {self.at}, {self.tokens:,} tokens>"

    def __len__(self) -> int:
        return len(self.density)

    @property
    def largest(self) -> Array:
        """(n,), the largest activation of each neuron or feature; 0 if none is above 0."""
        return self._sign * np.asarray(self._best.values[:, 0])

    @property
    def _sign(self) -> int:
        return -1 if self.negative else 1

    def _repr_html_(self) -> str:
        """Return the first page of cards, for a notebook."""
        return self.cards()._repr_html_()

    @public_call("cards")
    def cards(
        self,
        numbers: Iterable[int] | Mapping[int, str] | None = None,
        *,
        top: int = 5,
        theme: str = "auto",
    ) -> PlotView:
        """Return a page of cards: the texts with the largest activations per neuron or feature.

        Words are shaded by their activation, from 0 to the largest activation of the card. In each
        text, a frame marks the word with the largest activation. For a long text, the card shows
        only the framed word and the words around it.

        Args:
            numbers: the indices of neurons or features, or a mapping from indices to card titles.
                By default, the page shows the 24 neurons or features with the largest activations.
            top: the maximum number of texts per card.
            theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.

        Returns:
            A view for notebooks and terminals, with export methods such as `to_html` and `to_png`.

        Raises:
            TypeError: an entry of `numbers` is not an integer.
            ValueError: `numbers` is empty, `top` is below 1, or `theme` is unknown.
            IndexError: a neuron or feature does not exist.
        """
        top = whole_number(top, name="top", least=1)
        if numbers is None:
            order = np.argsort(-np.abs(self.largest), kind="stable")[:MOST_CARDS]
            numbers = order[self.largest[order] != 0].tolist()
        names = numbers if isinstance(numbers, Mapping) else {}
        cards = []
        for number in numbers:
            examples = self.examples(number)[:top]
            passages = [
                passage_of(x.value, x.tokens, x.activations, x.position, examples[0].value)
                for x in examples
            ]
            side = "below 0" if self.negative else "above 0"
            share = f"{side} at {self.density[number]:.2%} of tokens"
            explained = share if passages else f"never {side}"
            if self.negative:  # red, like all numbers below 0
                passages = [x._replace(shares=[-one for one in x.shares]) for x in passages]
            title = f"{self.unit} {number % len(self)}" + f": {names.get(number)}" * bool(names)
            cards.append(Passages(title=title, explained=explained, passages=passages))
        summary = f"{len(self):,} {self.unit}s of {self.at} on {self.tokens:,} tokens."
        return cards_of(cards, summary, len(self), self.unit, theme)

    @public_call("examples")
    def examples(self, number: int) -> list[Example]:
        """Return the texts with the largest activations of a neuron or feature, largest first.

        Each text occurs at most once, and only if it has an activation above 0. Among texts with
        equal values, the earlier texts are kept.

        Args:
            number: the index of the neuron or feature; a negative index counts from the end.

        Raises:
            TypeError: `number` is not an integer.
            IndexError: the neuron or feature does not exist.
        """
        number = check_index(number, len(self), self.unit)
        entries = self._best.entries(number, self._spelled)
        return [
            Example(self._sign * value, text_number, text, tokens, position, self._sign * row)
            for value, text_number, text, tokens, position, row in entries
        ]


@public_call("scan")
def scan(
    model: Model,
    texts: Texts,
    *,
    of: str | tuple[str, int] | SAE,
    top: int = 20,
    negative: bool = False,
) -> Scan:
    """Find the texts with the largest activations of each neuron or autoencoder feature.

    Each text is read once. Memory grows with the number of neurons and with `top`, but not with the
    number of texts. Texts are truncated as in `trace`, and a warning gives the number of truncated
    texts.

    If the activation has heads of size d (such as "z"), neuron `h * d + i` is entry i of head h.

    Args:
        model: a text encoder or decoder from `qkv.load`.
        texts: an iterable of texts. A text is a string or an array (T,) of token ids.
        of: one activation of one layer, such as ("post", 3), to scan its neurons; or an `SAE`, to
            scan its features.
        top: the number of texts to keep per neuron or feature, at least 1.
        negative: whether to find the most negative activations instead.

    Returns:
        A `Scan`: `.density`, `.mean` and `.largest` (n,) hold one number per neuron or feature.
        `.examples(number)` returns the `top` texts in which that neuron or feature is most active.

    Raises:
        TypeError: a text is neither a string nor ids, `model` is not a model, or `top` is not an
            integer.
        ValueError: `of` names several activations, or one that does not have one row per token;
            `top` is below 1; the model is not a text encoder or decoder; or an id is outside the
            model's vocabulary.
        KeyError: the activation does not exist.

    Source:
        Examples with the largest activations: Zeiler and Fergus 2014, "Visualizing and
        Understanding Convolutional Networks", section 4.

    >>> import qkv
    >>> texts = ["I sat on the bank of the river.", "The bank charged a fee for the loan."]
    >>> result = scan(qkv.load("books-decoder"), iter(texts), of=("post", 2), top=2)
    >>> numbers = [example.number for example in result.examples(7)]
    >>> result.density.shape, numbers in ([0, 1], [1, 0], [0], [1])
    ((512,), True)
    """
    model = check_model(model)
    sae = of if isinstance(of, SAE) else None
    if sae is not None and sae.at is None:
        raise value_error(
            f"`of` is {sae!r}, which has no activation name: set its attribute `at`, "
            "for example sae.at = ('resid_post', 3)"
        )
    name = one_site(model, of if sae is None else sae.at, "of")
    top = whole_number(top, name="top", least=1)
    best: Best | None = None
    count = 0
    above: Any = 0
    total: Any = 0.0
    for batch, rows in rows_of(model, texts, name):
        values = rows if sae is None else sae.encode(rows)  # (tokens, n)
        values = -values if negative else values
        best = best or Best(values.shape[1], top)
        count += len(values)
        above = above + (values > 0).sum(0)
        total = total + values.sum(0, dtype=np.float64)
        ends = np.cumsum([len(text.ids) for text in batch])
        arrays = np.split(values, ends[:-1])  # an array (T, n) for each text
        positions = np.array([text.argmax(0) for text in arrays])
        largest = np.array([text.max(0) for text in arrays])
        numbers = np.array([text.number for text in batch])
        which, units = best.among(largest, numbers, slice(None))
        if len(which):
            columns = [arrays[t][:, u].copy() for t, u in zip(which, units, strict=True)]
            cells = which, units
            best.add(units, largest[cells], numbers[which], positions[cells], columns)
            best.keep(batch)
    if best is None:
        raise value_error("the texts contain no tokens; pass a text with tokens")
    unit = "neuron" if sae is None else "feature"
    spelled = best.token_strings(model)
    mean = (-total if negative else total) / count
    return Scan(name, unit, count, above / count, mean, best, spelled, negative)


@dataclass(frozen=True, eq=False)
class HeadExample(_InText):
    """A text in which a head has a large value of a measure, such as "induction".

    Attributes:
        value: the largest value of the measure, over all queries of the text.
        number: the index of the text.
        text: the given text, as a string or token ids (T,).
        tokens: the token strings.
        query: the position of the query with the largest value.
        key: the position of the key whose weight is `value`. If `value` is a sum of weights, `key`
            is the position with the largest of these weights. For the entropy, `key` is None.
        weights: (T,), the weights of the query.
    """

    query: int
    key: int | None
    weights: Array


@dataclass(frozen=True)
class HeadScan:
    """The result of `scan_heads`.

    Attributes:
        scores: the mean of each measure over all queries, as in `head_scores`.
    """

    scores: dict[str, Result]
    _best: Best
    _spelled: Mapping[int, str]

    @public_call("cards")
    def cards(self, name: str, *, top: int = 3, theme: str = "auto") -> PlotView:
        """Return a page of cards: the texts with the largest values of a measure.

        Words are shaded by the weights of the query, from 0 to 1. A frame marks the query.

        Args:
            name: the measure.
            top: the maximum number of texts per card.
            theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.

        Returns:
            A view with one card per head, for at most 24 heads: those with the largest values.

        Raises:
            KeyError: `scan_heads` was not called with this measure.
            TypeError: `top` is not an integer.
            ValueError: `top` is below 1, or `theme` is unknown.
        """
        top = whole_number(top, name="top", least=1)
        layers, columns = self._shape(name)
        every = ((layer, head) for layer in range(layers) for head in range(columns))
        heads = [
            (layer, head, examples[:top])
            for layer, head in every
            if (examples := self.examples(name, layer, head))
        ]
        largest = sorted(heads, key=lambda entry: -entry[2][0].value)[:MOST_CARDS]
        cards = [
            Passages(
                title=f"head {layer}.{head}",
                explained=f"mean {self.scores[name][layer, head]:.3f}",
                passages=[passage_of(x.value, x.tokens, x.weights, x.query, 1.0) for x in examples],
            )
            for layer, head, examples in sorted(largest, key=lambda entry: entry[:2])
        ]
        summary = f"For each head, the queries with the largest {name!r}."
        return cards_of(cards, summary, self.scores[name].size, "head", theme)

    @public_call("examples")
    def examples(self, name: str, layer: int, head: int) -> list[HeadExample]:
        """Return the texts with the largest values of a head's measure, largest first.

        Each text occurs at most once. Among texts with equal values, the earlier texts are kept.
        Texts with a value of 0 are omitted.

        Args:
            name: the measure.
            layer: the layer's index; a negative index counts from the end.
            head: the head's index; a negative index counts from the end.

        Raises:
            KeyError: `scan_heads` was not called with this measure.
            TypeError: `layer` or `head` is not an integer.
            IndexError: the layer or the head does not exist.
        """
        layers, heads = self._shape(name)
        layer = check_index(layer, layers, "layer")
        head = check_index(head, heads, "head")
        unit = ([*self.scores].index(name) * layers + layer) * heads + head
        entries = self._best.entries(unit, self._spelled)
        return [
            HeadExample(value, number, text, tokens, query, None if key < 0 else key, weights)
            for value, number, text, tokens, query, (key, weights) in entries
        ]

    def _shape(self, name: str) -> tuple[int, int]:
        """Return `(layers, heads)`; raise an error if the measure does not exist."""
        if name not in self.scores:
            raise invalid(
                KeyError, f"{quote(name)} was not measured: choose among {', '.join(self.scores)}"
            )
        layers, heads = self.scores[name].shape
        return layers, heads


@public_call("scan_heads")
def scan_heads(model: Model, texts: Texts, of: Names = _NAMES, top_k: int = 10) -> HeadScan:
    """Measure all heads over many texts; keep the texts with the largest values.

    Each text is read once. Weights are measured as soon as they are computed, and only `top_k`
    texts are kept per head and measure. So memory does not depend on the number of texts, and grows
    linearly with the length of a text. The model's computation stops at the attention weights of
    the last layer. Texts are truncated as in `trace`, and a warning gives the number of truncated
    texts.

    Args:
        model: a text encoder or decoder from `qkv.load`.
        texts: an iterable of texts. A text is a string or an array (T,) of token ids.
        of: names of measures, which may be those of `head_scores` and "strongest" (the largest
            weight of a query, ignoring special tokens and the first position, to which many heads
            attend when no other key is relevant).
        top_k: the number of examples to keep per head and measure, at least 1.

    Returns:
        A `HeadScan`: `.scores` holds the mean (layers, heads) of each measure over all queries.
        `.examples(name, layer, head)` returns the `top_k` texts with the largest values.

    Raises:
        TypeError: a text is neither a string nor ids, `model` is not a model, or `top_k` is not an
            integer.
        ValueError: a measure does not exist; `top_k` is below 1; the model is not a text
            encoder or decoder; or an id is outside the model's vocabulary.

    Source:
        Examples with the largest activations: Zeiler and Fergus 2014, "Visualizing and
        Understanding Convolutional Networks", section 4. "strongest": Voita et al. 2019,
        "Analyzing Multi-Head Self-Attention", section 4.2, where the mean of "strongest" is
        called "confidence".

    >>> import qkv
    >>> texts = ["I sat on the bank of the river.", "The bank charged a fee for the loan."]
    >>> result = scan_heads(qkv.load(), iter(texts), top_k=5)
    >>> result.scores["previous"].shape
    (4, 6)
    >>> first, second = result.examples("strongest", layer=0, head=3)  # a query in each text
    >>> first.value >= second.value, {first.number, second.number} == {0, 1}
    (True, True)
    """
    model = check_model(model)
    names = checked_names(of, _NAMES)
    top_k = whole_number(top_k, name="top_k", least=1)
    layers, heads = model.num_layers, model.num_heads
    best = Best(len(names) * layers * heads, top_k)

    def add(part: Measurement) -> None:
        """For each head, keep each text whose value is among the `top_k` largest values so far."""
        batch, measured, values = part.batch, part.measured, part.values
        numbers, most = np.array([text.number for text in batch]), values.max(2)  # (B,), (B, H)
        unit = (names.index(part.name) * layers + part.layer) * heads
        rows, head = best.among(most, numbers, slice(unit, unit + heads))
        if not len(rows):
            return
        at = values[rows, head].argmax(1)
        chosen, queries = part.weights[rows, head, at], at + part.first  # (n, K), (n,)
        keys = measured.key(part.name, chosen, rows, queries).tolist()
        lengths = measured.ends[rows]
        pairs = [(k, row[:end]) for k, row, end in zip(keys, chosen, lengths, strict=True)]
        best.add(unit + head, most[rows, head], numbers[rows], queries, pairs)

    scores = sum_measures(model, texts, names, add, best.keep).means()
    return HeadScan(scores, best, best.token_strings(model))
