"""A page of cards: what heads, neurons or features do, by the texts where they do most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.arrays import Array
from qkv.circuits.plot_view import PlotView
from qkv.see.draw.panels import Panel, Passage, Passages, number_format
from qkv.see.page.payload import check_theme
from qkv.text.tokenized import plain_tokens

MOST_CARDS = 24
_BEFORE, _AFTER = 12, 7  # words of a long text that are shown around the one it is about
_IN_ROW = 3


def cards_of(cards: list[Passages], said: str, whole: int, unit: str, theme: str) -> PlotView:
    """A view of some cards out of a `whole` number of units, once it is known that it can be."""
    check_theme(theme, "cards")
    if not cards:
        raise ValueError(f"cards: there is no {unit} to show: none is ever above 0, or none named")
    facts = ["Shown: the words with the largest values, framed, and the words around them."]
    if len(cards) < whole:
        facts.append(f"{len(cards)} of {whole:,} {unit}s have a card here.")
    rows: list[list[Panel]] = [
        list(cards[first : first + _IN_ROW]) for first in range(0, len(cards), _IN_ROW)
    ]
    numbers = [
        {
            "title": card.title,
            "explained": card.explained,
            "examples": [
                {"value": one.label, "words": one.words, "shares": one.shares}
                for one in card.passages
            ],
        }
        for card in cards
    ]
    return PlotView(said, facts, rows, {"cards": numbers}, theme=theme)


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
