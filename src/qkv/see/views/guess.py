"""The words that a model guesses, and their chances: `guess`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.see.analysis.inputs import model_of, texts_of
from qkv.see.analysis.words import run_name
from qkv.see.draw.panels import Bars, Panel
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, View
from qkv.text import Tokenized

if TYPE_CHECKING:
    from qkv.models import Model
    from qkv.models.tasks.edit_arguments import Ablate, Hide
    from qkv.models.tasks.predict import Guesses


@dataclass(frozen=True, eq=False, repr=False)
class GuessView(View):
    """The likeliest words at each mask token of a text, or behind it.

    Attributes:
        model: the name of the model.
        tokens: of the text.
        places: the places of the mask tokens; empty where the next word is guessed.
        guesses: of each the words and their probabilities, the likeliest first.
        changed: what was left out or hidden, "ablate" and "hide", where there is any.
        after: the same guesses then.
    """

    model: str
    tokens: Tokenized
    places: Sequence[int]
    guesses: Guesses
    changed: dict[str, list[Any]]
    after: Guesses | None = None

    @property
    def sentence(self) -> str:
        """The first guess for each place, and what becomes of it."""
        said = self._named(self.guesses)
        if self.after is not None:
            said += f"; {run_name(self.changed)}: {self._named(self.after, short=True)}"
        return f"{said}."

    def panels(self) -> list[list[Panel]]:
        """The words of each place with a bar for their chance, before and after side by side."""
        rows: list[list[Panel]] = []
        for number, before in enumerate(self.guesses):
            title = "What comes next"
            if self.places:
                place = self.places[number]
                title = f"At token {place}, {self.tokens.tokens[place]}"
            rows.append([_bars(before, title, "as it is" if self.after is not None else "")])
            if self.after is not None:
                rows[-1].append(_bars(self.after[number], title, run_name(self.changed)))
        return rows

    def _named(self, guesses: Guesses, *, short: bool = False) -> str:
        """The first guess of each place, with its probability."""
        firsts = [f"{row[0][0]}, {row[0][1]:.2f}" for row in guesses]
        if short:
            return "; ".join(firsts)
        if not self.places:
            return f"What comes next is most likely {firsts[0]}"
        which = "Most likely" if len(firsts) == 1 else "Most likely, one after the other"
        return f"{which}: {'; '.join(firsts)}"

    def _headings(self) -> list[Heading]:
        return [Heading(list(self.tokens.tokens), list(self.tokens.special), self.model)]

    def _numbers(self) -> dict[str, Any]:
        """`before` and `after` are the words of one place; `after` is None where nothing changed.

        `token` is the place of a mask token, None for what comes next.
        """
        guesses = [
            {
                "token": self.places[number] if self.places else None,
                "before": _listed(before),
                "after": None if self.after is None else _listed(self.after[number]),
            }
            for number, before in enumerate(self.guesses)
        ]
        return {
            "model": self.model,
            "tokens": list(self.tokens.tokens),
            "sentence": self.sentence,
            "guesses": guesses,
            "ablate": self.changed.get("ablate", []),
            "hide": self.changed.get("hide", []),
        }


def _bars(guesses: Sequence[tuple[str, float]], title: str, name: str) -> Bars:
    return Bars(
        title=title,
        explained="the probability of each word",
        name=name,
        names=[word for word, _ in guesses],
        values=[share for _, share in guesses],
        top=1.0,
    )


def _listed(guesses: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "probability": share} for word, share in guesses]


def guess(
    text: str,
    *,
    model: Model | str | None = None,
    top_k: int = 5,
    ablate: Ablate = (),
    hide: Hide = (),
    theme: str = "auto",
) -> GuessView:
    """The words that a model guesses at the mask tokens of a text, or, a decoder, behind it.

    With `ablate` or `hide` also those that it guesses then, beside the others. The numbers are
    those of `Model.predict`.

    Args:
        text: with the model's mask token where a word is missing; of a decoder any text.
        model: the model, or its name; the default model if left out.
        top_k: how many words.
        ablate: heads to go without, as in `Model.trace`.
        hide: words and places that no token may look at, as in `Model.trace`.
        theme: of the page: "light", "dark", or "auto" for what the reader's system prefers.

    Raises:
        TypeError: as for `Model.predict`.
        ValueError: the same.

    >>> view = guess("The sun rises in the [MASK].", top_k=2)
    >>> len(view.guesses[0]), view.after
    (2, None)
    """
    check_theme(theme, "guess")
    (text,) = texts_of([text], "guess")
    used = model_of(model, [text])
    tokens, places = used.blanks(text)
    before = used.guesses(tokens, places, top_k)
    without = ablate if isinstance(ablate, Mapping) else list(ablate)
    hidden = [hide] if isinstance(hide, str | int) else list(hide)
    after = None
    if without or hidden:
        after = used.guesses(tokens, places, top_k, ablate=without, hide=hidden)
    changed: dict[str, list[Any]] = {"ablate": list(without), "hide": hidden}
    return GuessView(
        used.name,
        tokens,
        [] if used.generates else places,
        before,
        {name: found for name, found in changed.items() if found},
        after,
        theme=theme,
    )
