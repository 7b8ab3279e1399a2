"""A page of cards: what heads, neurons or features do, by the texts where they do most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.see.draw.panels import Panel, Passage, Passages, number_format
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, View
from qkv.text.tokenized import plain_tokens

MOST_CARDS = 24
_BEFORE, _AFTER = 12, 7  # words of a long text that are shown around the one it is about
_IN_ROW = 3


@dataclass(frozen=True, eq=False, repr=False)
class Cards(View):
    """Cards beside each other, each with texts whose words are shaded.

    Attributes:
        said: what they are, in words.
        cards: the cards.
        facts: what else to know of them.
    """

    said: str
    cards: list[Passages]
    facts: list[str]

    @property
    def sentence(self) -> str:
        """What the cards are, in words."""
        return self.said

    @property
    def reasons(self) -> list[str]:
        """What else to know of them."""
        return self.facts

    def panels(self) -> list[list[Panel]]:
        """The cards, three in a row."""
        cards = self.cards
        return [list(cards[first : first + _IN_ROW]) for first in range(0, len(cards), _IN_ROW)]

    def _headings(self) -> list[Heading]:
        return []

    def _numbers(self) -> dict[str, Any]:
        return {
            "sentence": self.said,
            "cards": [
                {
                    "title": card.title,
                    "explained": card.explained,
                    "examples": [
                        {"value": one.label, "words": one.words, "shares": one.shares}
                        for one in card.passages
                    ],
                }
                for card in self.cards
            ],
        }


def cards_of(cards: list[Passages], said: str, whole: int, unit: str, theme: str) -> Cards:
    """A view of some cards out of a `whole` number of units, once it is known that it can be."""
    check_theme(theme, "cards")
    if not cards:
        raise ValueError(f"cards: there is no {unit} to show: none is ever above 0, or none named")
    facts = ["Shown: the words with the largest values, framed, and the words around them."]
    if len(cards) < whole:
        facts.append(f"{len(cards)} of {whole:,} {unit}s have a card here.")
    return Cards(said, cards, facts, theme=theme)


def passage_of(
    value: float, tokens: Sequence[str], values: Array, position: int, top: float
) -> Passage:
    """The words around a position, shaded by their values up to `top`."""
    words = plain_tokens(tokens, [False] * len(tokens))
    first, end = max(0, position - _BEFORE), min(len(words), position + _AFTER + 1)
    shares = np.clip(values[first:end] / top, 0, 1).tolist()
    chosen, marked = words[first:end], position - first
    if first:
        chosen, shares, marked = ["…", *chosen], [0.0, *shares], marked + 1
    if end < len(words):
        chosen, shares = [*chosen, "…"], [*shares, 0.0]
    return Passage(number_format(np.array([value]))(value), chosen, shares, marked)
