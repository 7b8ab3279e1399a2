"""The view `guess`, with the words that a model guesses and their probabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qkv._argument_errors import public_call, type_error, value_error
from qkv.edits import Ablate, Hide, edits_of
from qkv.models import Model
from qkv.models.files.find import DEFAULT
from qkv.models.tasks.predict import Guesses
from qkv.see.analysis import guesser_of, labels_of, name_of, run_name, show_blanks, texts_of
from qkv.see.draw.panels import Panel, Prose
from qkv.see.page.payload import check_theme
from qkv.see.page.play import Story
from qkv.see.views.view import Heading, View, guess_bars
from qkv.text import Tokenized
from qkv.text.gaps import MASKS
from qkv.text.tokenized import plain_tokens


@dataclass(frozen=True, eq=False, repr=False)
class GuessView(View):
    """The likeliest words at each mask token of a text, or after the end of the text.

    Attributes:
        model: the name of the model.
        tokens: the tokens of the text, without tokenizer marks.
        positions: the positions of the mask tokens; empty if the next word is guessed.
        guesses: for each position, the words and their probabilities, likeliest word first.
        changed: the interventions, with the keys "ablate" and "hide"; empty if there are none.
        after: the guesses under the interventions; None if there are none.
        reason: for a story (see `qkv.see.stories`), a sentence that says why the guess changes; for
            any other text, the empty string.
    """

    model: str
    tokens: Tokenized
    positions: Sequence[int]
    guesses: Guesses
    changed: dict[str, list[Any]]
    after: Guesses | None = None
    reason: str = ""

    @property
    def sentence(self) -> str:
        """State the first guess for each position, before and after the interventions."""
        guesses = self._name_guesses(self.guesses)
        if self.after is not None:
            guesses += f"; {run_name(self.changed)}: {self._name_guesses(self.after, short=True)}"
        return f"{guesses}."

    def panels(self) -> list[list[Panel]]:
        """Show the guesses for each position with bars, before and after the interventions."""
        rows: list[list[Panel]] = []
        for number, before in enumerate(self.guesses):
            title = "What comes next"
            if self.positions:
                position = self.positions[number]
                title = f"At token {position}, {name_of(self.tokens.tokens[position])}"
            rows.append([guess_bars(before, title, "as it is" if self.after is not None else "")])
            if self.after is not None:
                rows[-1].append(guess_bars(self.after[number], title, run_name(self.changed)))
        return [*rows, [Prose(text=self.reason)]] if self.reason else rows

    def _name_guesses(self, guesses: Guesses, *, short: bool = False) -> str:
        """Name the first guess of each position, with its probability."""
        firsts = [f"{show_blanks(row[0][0])}, {row[0][1]:.2f}" for row in guesses]
        if short:
            return "; ".join(firsts)
        if not self.positions:
            return f"The most likely next word: {firsts[0]}"
        which = "Most likely" if len(firsts) == 1 else "Most likely words, in the order of the gaps"
        return f"{which}: {'; '.join(firsts)}"

    def _headings(self) -> list[Heading]:
        tokens = self.tokens
        names, special = labels_of(tokens.tokens), list(tokens.special)
        return [Heading(names, special, self.model, unknown=tokens.unknown())]

    def _numbers(self) -> dict[str, Any]:
        """Return the guesses for each position; `after` is None without interventions.

        `token` is the position of the mask token, or None if the guesses continue the text.
        """
        guesses = [
            {
                "token": self.positions[number] if self.positions else None,
                "before": _list_guesses(before),
                "after": None if self.after is None else _list_guesses(self.after[number]),
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
            "reason": self.reason or None,
        }


def _list_guesses(guesses: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"word": word, "probability": share} for word, share in guesses]


@public_call("guess")
def guess(
    text: str | Story,
    *,
    model: Model | str | None = None,
    top_k: int = 5,
    ablate: Ablate = (),
    hide: Hide = (),
    theme: str = "auto",
) -> GuessView:
    """Guess the words at the mask tokens of a text or, with a decoder, the next word.

    With `ablate` or `hide`, also show the guesses under these interventions. `Model.predict`
    returns the same words and probabilities.

    Args:
        text: for an encoder, a text with `Model.mask` in place of each missing word; for a decoder,
            any text. A story from `stories()` is also allowed; it has its own interventions.
        model: a model or the name of a model; if omitted, as in `why`.
        top_k: the number of words.
        ablate: heads to ablate, as in `Model.trace`.
        hide: words and positions that no token may attend to, as in `Model.trace`.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.

    Raises:
        TypeError: `Model.predict` raises a TypeError, or `ablate` or `hide` is given with a story.
        ValueError: `Model.predict` raises a ValueError; or the model is a decoder, and the text
            contains a mask token.

    >>> view = guess("The sun rises in the [MASK].", top_k=2)
    >>> len(view.guesses[0]), view.after
    (2, None)
    >>> view = guess("The oak is a small [MASK].", top_k=3, hide="oak")
    >>> len(view.guesses[0]), len(view.after[0])
    (3, 3)
    """
    check_theme(theme)
    without = ablate if isinstance(ablate, Mapping) else list(ablate)
    hidden: list[Any] = [hide] if isinstance(hide, str | int) else list(hide)
    story = text if isinstance(text, Story) else None
    if story is not None:
        if without or hidden:
            raise type_error(
                "a story has its own interventions: leave out the arguments ablate and hide"
            )
        text, without, hidden = story.sentence, list(story.ablate), list(story.hide)
        model = DEFAULT if model is None else model
    (text,) = texts_of([text])
    used = guesser_of(model, text)
    tokens, positions = used.blanks(text)
    mask = next((mask for mask in MASKS if mask.lower() in text.lower()), None)
    if used.generates and mask is not None and mask not in tokens.tokens:
        raise value_error(
            f"{used.name} guesses the next word and has no {mask}: end the text where "
            "the word is missing, or use an encoder"
        )
    before = used.guesses(tokens, positions, top_k)
    after = None
    if without or hidden:
        edits = edits_of(None, without, hidden)
        after = used.guesses(tokens, positions, top_k, edits)
    options: dict[str, list[Any]] = {"ablate": list(without), "hide": hidden}
    changed = {name: edits for name, edits in options.items() if edits}
    firsts = [guesses[0][0][0] for guesses in (before, after) if guesses is not None]
    named = replace(tokens, tokens=plain_tokens(tokens.tokens, tokens.special))
    gaps = [] if used.generates else positions
    reason = story.reason if story is not None and firsts == [story.before, story.after] else ""
    return GuessView(used.name, named, gaps, before, changed, after, reason, theme=theme)
