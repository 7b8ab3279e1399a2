"""All neurons or features over many texts: how often each fires, and where it does most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array, is_whole_number, shown, whole_number
from qkv.circuits.cards import MOST_CARDS, cards_of, passage_of
from qkv.circuits.checks import check_model
from qkv.circuits.plot_view import PlotView
from qkv.circuits.ranking import Best
from qkv.circuits.sae import SAE
from qkv.circuits.streaming import one_site, rows_of
from qkv.models.model import Model
from qkv.see.draw.panels import Passages

_CALL = "scan"


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
    model = check_model(model, _CALL)
    sae = of if isinstance(of, SAE) else None
    if sae is not None and sae.at is None:
        raise ValueError(f"{_CALL}: of is {sae!r} without a site: set its at, as ('resid_post', 3)")
    name = one_site(model, of if sae is None else sae.at, _CALL, "of")
    top = whole_number(top, call=_CALL, name="top", least=1)
    best: Best | None = None
    count = 0
    above: Any = 0
    total: Any = 0.0
    for batch, found in rows_of(model, texts, [name], _CALL):
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
        raise ValueError(f"{_CALL}: texts hold no token: give some")
    unit = "neuron" if sae is None else "feature"
    return Scan(name, unit, count, above / count, total / count, best, best.spelled(model))
