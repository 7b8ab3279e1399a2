"""The view `why`: what an answer loses when no word may attend to one of the text's words."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv._progress import progress
from qkv.arrays import Array, quote, whole_number
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.extras import need
from qkv.models import Model
from qkv.models.run.edited_run import MaskedKey
from qkv.models.tasks import Knockout, Masked
from qkv.see.analysis import (
    UNITS,
    Unit,
    guesser_of,
    is_content,
    labels_of,
    show_blanks,
    texts_of,
    units_of,
)
from qkv.see.draw.panels import Bars, ChartLine, Column, Lines, Panel, Table
from qkv.see.page.payload import check_theme
from qkv.see.views.view import Heading, View
from qkv.text import Tokenized, Tokenizer

Link = tuple[int, int, float, float]
BELOW_ALL = (
    "How much of {answer}'s probability is lost when no word may look at this one. The bars do not "
    "add up: words that say the same each lose little."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Why(View):
    """What an answer loses when attention to each word of a text is masked.

    W is the number of words. Words that were not computed have NaN.

    Attributes:
        model: the name of the model.
        tokens: the tokens of the text.
        words: (W,), the words.
        spans: (W,), the tokens of each word, [first, stop).
        answer: the answer.
        answer_ids: the ids of the answer's tokens.
        probability: the product of the probabilities of the answer's tokens.
        effects: (W,) float64, `probability` minus the answer's probability when no query may attend
            to the word's tokens in any layer. Below 0, the answer becomes likelier.
        log_odds: (W,) float64, the same difference of the log-odds log(p / (1 - p)).
        instead: (W,), the best guess when the word is hidden, as a whole word, with its
            probability; None for words that were not computed.
        direct: (W,) float64, the effect when only the positions of the answer may not attend to
            the word. The rest of the effect came through other words.
        attention: (W,) float64, what the answer's position attends to, averaged over all layers
            and heads, and summed over the word's tokens.
        rest: 1 minus the sum of `attention`: what goes to special tokens, mask tokens and sinks.
        own: the index of the word whose last token makes a decoder's guess; otherwise None. The
            word's vector makes the guess even when its key is hidden.
        first: the index of the first word if the model has no token before it; otherwise None.
            Heads with nothing to add attend to the first position, and hiding it takes that away.
        largest: the index of the content word with the largest effect, without `own` and `first`;
            another word only if the text has no such content word; None without any such word.
        from_layer: (layers + 1,), the answer's probability when a word is hidden in layer l and all
            later layers; the last number is `probability`. None if it was not asked for.
        from_layer_of: the index of the word of `from_layer`.
        links: [(layer, head, effect in log-odds, effect in probability)], the heads whose link from
            the answer's position to `largest` takes most when this link alone is masked.
    """

    model: str
    tokens: Tokenized
    words: Sequence[str]
    spans: Sequence[tuple[int, int]]
    answer: str
    answer_ids: Sequence[int]
    probability: float
    effects: Array
    log_odds: Array
    instead: Sequence[tuple[str, float] | None]
    direct: Array
    attention: Array
    rest: float
    own: int | None
    first: int | None
    largest: int | None
    from_layer: Array | None = None
    from_layer_of: int | None = None
    links: Sequence[Link] | None = None

    @property
    def sentence(self) -> str:
        """State the answer, and what it loses without the word with the largest effect."""
        answer, guess = show_blanks(self.answer), f"{self.probability:.2f}"
        says = f"{self.model or 'The model'} says {answer}: {guess}."
        if len(self.words) < 2:
            return f"{says} The text has one word, so no other word can be hidden."
        if self.largest is None or not math.isfinite(self.effects[self.largest]):
            return says
        word, instead = self.words[self.largest], self.instead[self.largest]
        left = f"{self.probability - self.effects[self.largest]:.2f}"
        then = ""
        if instead is not None and instead[0] != self.answer:
            then = f"; the best guess is then {show_blanks(instead[0])}, {instead[1]:.2f}"
        return f"{says} Without {word}: {left}{then}."

    @property
    def title(self) -> str:
        """Return the question."""
        return f"Why {show_blanks(self.answer)}?"

    @property
    def reasons(self) -> list[str]:
        """Compare causes with attention, and state what the numbers mean."""
        said = [self.sentence]
        most = int(np.argmax(self.attention)) if len(self.words) else 0
        if (
            self.largest is not None
            and most != self.largest
            and self.effects[self.largest] >= 0.005
        ):
            seen, word = self.attention[[most, self.largest]], self.words[self.largest]
            said.append(
                f"{self.words[most]} gets {seen[0]:.0%} of the attention and {word} {seen[1]:.0%}. "
                f"Hiding {word} takes {100 * self.effects[self.largest]:.0f} points from "
                f"{show_blanks(self.answer)}."
            )
        if len(self.words) < 2:
            return said
        said.append(BELOW_ALL.format(answer=show_blanks(self.answer)))
        if self.links and self.largest is not None:
            largest, direct = self.links[0][3], float(self.direct[self.largest])
            if largest < direct / 5:
                said.append(
                    "No single link carries it: all links from the answer's position to "
                    f"{self.words[self.largest]} take {direct:.2f}, the largest {largest:.2f}."
                )
        if self.own is not None and math.isfinite(self.effects[self.own]):
            said.append(
                f"{self.words[self.own]} has no bar: its vector makes the guess, also when no "
                f"token attends to it ({self.effects[self.own]:+.2f})."
            )
        if self.first is not None and self.first != self.own:
            said.append(
                f"The bar of {self.words[self.first]}, the first word, is hollow: heads with "
                "nothing to add attend to the first position, and hiding it takes that away too."
            )
        return said

    def panels(self) -> list[list[Panel]]:
        """Show the effect of each word, the effects by layer, and the largest links."""
        shown = [at for at in range(len(self.words)) if at != self.own]
        shown = [at for at in shown if math.isfinite(self.effects[at])]
        if not shown:
            return []
        top = max(self.probability, float(np.abs(self.effects[shown]).max()))
        whole = "a full bar is the answer's whole probability" if top == self.probability else ""
        rows: list[list[Panel]] = [[
            Bars(
                title=f"What {show_blanks(self.answer)} loses without each word",
                explained=whole,
                names=[self.words[at] for at in shown],
                values=[float(self.effects[at]) for at in shown],
                form="{:+.2f}",
                top=top,
                hollow=[shown.index(self.first)] if self.first in shown else [],
            )
        ], [self._table()]]  # fmt: skip
        if self.from_layer is not None and self.from_layer_of is not None:
            word = self.words[self.from_layer_of]
            rows.append([
                Lines(
                    title=f"{show_blanks(self.answer)} when {word} is hidden from layer l on",
                    explained="hidden in this layer and in all later layers",
                    names=[*map(str, range(len(self.from_layer) - 1)), "never"],
                    lines=[ChartLine([*enumerate(self.from_layer.tolist())])],
                    ends=(0.0, 1.0),
                )
            ])  # fmt: skip
        if self.links and self.largest is not None:
            rows.append([
                Bars(
                    title=f"Links to {self.words[self.largest]}",
                    explained="what the answer loses when this link alone is masked",
                    names=[f"head {layer}.{head}" for layer, head, *_ in self.links],
                    values=[effect for *_, effect in self.links],
                    form="{:+.3f}",
                )
            ])  # fmt: skip
        return rows

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each word.

        Raises:
            ImportError: pandas is not installed.
        """
        instead = [guess or (None, math.nan) for guess in self.instead]
        columns = {name: getattr(self, name) for name in _ARRAYS}
        columns |= {"instead": [word for word, _ in instead]}
        columns |= {"instead_probability": [share for _, share in instead]}
        first, stop = zip(*self.spans, strict=True) if self.spans else ((), ())
        frame = need("pandas", "tables").DataFrame
        return frame({"word": list(self.words), "first": first, "stop": stop, **columns})

    def _table(self) -> Table:
        """List the numbers of each word, for a terminal."""
        cells = {
            "direct": [f"{x:+.2f}" for x in self.direct],
            "attention": [f"{x:.2f}" for x in self.attention],
            "then": [f"{show_blanks(x[0])} {x[1]:.2f}" if x else "" for x in self.instead],
        }
        columns = [Column(name, texts, left=name == "then") for name, texts in cells.items()]
        return Table(
            title="Each word",
            explained="the direct effect, the attention it gets, and the guess without it",
            names=list(self.words),
            columns=columns,
        )

    def _headings(self) -> list[Heading]:
        tokens = self.tokens
        names, special = labels_of(tokens.tokens), list(tokens.special)
        return [Heading(names, special, self.model, unknown=tokens.unknown())]

    def _numbers(self) -> dict[str, Any]:
        names = ("model", "answer", "answer_ids", "probability", "rest", "own", "first", "largest")
        numbers = {name: getattr(self, name).tolist() for name in _ARRAYS}
        words = [
            {
                **{"text": word, "first": span[0], "stop": span[1]},
                **{"effect" if name == "effects" else name: numbers[name][at] for name in numbers},
                "instead": self.instead[at],
            }
            for at, (word, span) in enumerate(zip(self.words, self.spans, strict=True))
        ]
        return {
            **{name: getattr(self, name) for name in names},
            **{"sentence": self.sentence, "text": self.tokens.text, "words": words},
            **{"from_layer": self.from_layer, "links": self.links},
        }


_ARRAYS = ("effects", "log_odds", "direct", "attention")


@public_call("why")
def why(
    text: str | Tokenized,
    model: Model | str | None = None,
    *,
    answer: str | None = None,
    position: int | None = None,
    units: str = "word",
    words: Iterable[int] | None = None,
    from_layer: str | int | None = None,
    links: int = 0,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
    theme: str = "auto",
) -> Why:
    """Measure what a model's answer loses when no token may attend to each word of a text.

    This is occlusion (one word is left out at a time) by attention knock-out: in all layers and
    heads, no query attends to the word's tokens. `effects` are total effects; `direct` masks only
    the links from the answer's position. The text keeps its length and its positions. The question
    is not what the model would say if another word stood there; for this, edit the text, or use the
    edit "swap".

    Args:
        text: for an encoder, a text with a gap (see `Model.mask`); for a decoder, a text whose next
            word is the answer, or its tokens.
        model: a model or its name. By default, the model that QKV_MODEL names; without it, "books"
            for a text with a gap, else "smollm2" if it is installed, else "books-decoder".
        answer: the answer to explain; by default, the best guess, which a decoder completes
            greedily to a whole word. An encoder's answer is one token. After a text that does not
            end with white space, "Paris" stands for the likelier of "Paris" and " Paris".
        position: the position of the gap, if the text has several.
        units: "word" or "token".
        words: the indices of the words to compute; by default all.
        from_layer: a word, or its index, that is hidden from layer 0 on, from layer 1 on, and so
            on.
        links: the number of links to return for the word with the largest effect.
        ablate: heads to ablate in all runs, as in `Model.trace`; a mean is that of the unhidden
            run.
        hide: words and positions to hide in all runs, as in `Model.trace`.
        edit: activations to change in all runs, as in `Model.trace`.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.

    Returns:
        The numbers, as a view that can be printed or written to a file.

    Raises:
        ValueError: the model predicts no words, or has a convolution; the text has no gap, or the
            answer is not one token (encoders); a word or a position does not exist.

    Source:
        Geva et al. 2023, "Dissecting Recall of Factual Associations in Auto-Regressive Language
        Models", section 4 (attention knock-out); Vig et al. 2020, "Investigating Gender Bias in
        Language Models Using Causal Mediation Analysis", section 3 (total and direct effects).

    >>> found = why("The sun rises in the [MASK].")
    >>> len(found.words) == len(found.effects), found.words[found.largest] in found.words
    (True, True)
    """
    check_theme(theme)
    given = text if isinstance(text, Tokenized) else None
    (text,) = texts_of([text if given is None else given.text])
    used = guesser_of(model, text)
    if units not in UNITS:
        raise value_error(f"units is {quote(units)}; choose {' or '.join(UNITS)}")
    tokens, positions = used.blanks(text) if given is None else (given, [len(given) - 1])
    if position is None:
        position = positions[0]
    elif position not in positions:
        raise value_error(
            f"position is {quote(position)}, but the guesses of this text are at "
            f"{', '.join(map(str, positions))}: choose one of these"
        )
    tokens = replace(tokens, text=text)
    found = units_of(tokens, units, used.mask)
    runs = Knockout(used, tokens, position, edits_of(edit, ablate, hide))
    base, name = _answer(runs, text, answer)
    count, probability = len(found), math.exp(base)
    chosen = list(range(count)) if words is None else [_index(found, x, "words") for x in words]
    chosen = chosen if count > 1 else []
    layered = None if from_layer is None else _index(found, from_layer, "from_layer")
    links = whole_number(links, name="links", least=0)
    total, direct, log_odds = np.full((3, count), np.nan)
    instead: list[tuple[str, float] | None] = [None] * count
    with progress("why", 2 * len(chosen)) as advance:
        hidden = runs.run([_hide(runs, found[at]) for at in chosen], instead=True, advance=advance)
        unread = runs.run([_unlink(runs, found[at]) for at in chosen], advance=advance)
    for at, without, straight in zip(chosen, hidden, unread, strict=True):
        total[at] = probability - math.exp(without.log_probability)
        log_odds[at] = _log_odds(base) - _log_odds(without.log_probability)
        direct[at] = probability - math.exp(straight.log_probability)
        instead[at] = without.instead
    seen = runs.attention()
    attention = np.array([seen[unit.first : unit.stop].sum() for unit in found])
    last = len(tokens) - 1
    own = [at for at, unit in enumerate(found) if used.generates and unit.stop > last]
    first = [0] * (bool(found) and found[0].first == 0)
    largest = _largest(found, total, {*own, *first})
    by_layer = None
    if layered is not None:
        last_layers = [range(layer, used.num_layers) for layer in range(used.num_layers)]
        copies = [_hide(runs, found[layered], layers) for layers in last_layers]
        with progress("from_layer", len(copies)) as advance:
            by_layer = [x.log_probability for x in runs.run(copies, advance=advance)]
    linked: list[Link] | None = [] if links and largest is not None else None
    if linked is not None and largest is not None:
        heads = [
            (n, head) for n, layer in enumerate(used.layers) for head in range(layer.attn.num_heads)
        ]
        copies = [_unlink(runs, found[largest], layer, head) for layer, head in heads]
        with progress("links", len(copies)) as advance:
            for (layer, head), cut in zip(heads, runs.run(copies, advance=advance), strict=True):
                odds = _log_odds(base) - _log_odds(cut.log_probability)
                linked.append((layer, head, odds, probability - math.exp(cut.log_probability)))
        linked = sorted(linked, key=lambda link: -link[2])[:links]
    return Why(
        model=used.name,
        tokens=tokens,
        words=[unit.text for unit in found],
        spans=[(unit.first, unit.stop) for unit in found],
        answer=name,
        answer_ids=runs.answer,
        probability=probability,
        effects=total,
        log_odds=log_odds,
        instead=instead,
        direct=direct,
        attention=attention,
        rest=1 - float(attention.sum()),
        own=own[0] if own else None,
        first=first[0] if first else None,
        largest=largest,
        from_layer=None if by_layer is None else np.exp([*by_layer, base]),
        from_layer_of=layered,
        links=linked,
        theme=theme,
    )


def _answer(runs: Knockout, text: str, answer: str | None) -> tuple[float, str]:
    """Choose the tokens of the answer; return the log-probability and the name of the answer."""
    whole: list[tuple[int, Masked]] = [(0, ())]
    if answer is None:
        [outcome] = runs.run(whole, instead=True)
        assert outcome.instead is not None
        return outcome.log_probability, outcome.instead[0]
    tokenizer = runs.model.reader.need_tokenizer()
    if runs.model.generates:
        apart = tokenizer.blank and not text[-1:].isspace() and not answer[:1].isspace()
        spellings = [answer, f" {answer}"] if apart else [answer]
        candidates = [_answer_ids(tokenizer, text, one) for one in spellings if answer.strip()]
    else:
        candidates = [[index] for index in tokenizer.entries(answer).values()]
    if not all(candidates) or not candidates:
        what = "text" if runs.model.generates else f"one token of {runs.model.name}'s vocabulary"
        raise value_error(f"answer is {quote(answer)}, but an answer is {what}: pass another word")
    found: list[tuple[float, list[int]]] = []
    for ids in candidates:
        runs.answer = ids
        found.append((runs.run(whole)[0].log_probability, ids))
    best, runs.answer = max(found)
    return best, answer.strip()


def _answer_ids(tokenizer: Tokenizer, text: str, answer: str) -> list[int]:
    """Return the ids that an answer adds to the ids of a text."""
    before, both, alone = tokenizer.ids_batch([text, text + answer, answer])
    same = both[: len(before)].tolist() == before.tolist()
    return [int(index) for index in (both[len(before) :] if same else alone)]


def _index(units: Sequence[Unit], word: Any, argument: str) -> int:
    """Return the index of a word, given as text or as an index."""
    if not isinstance(word, str):
        return whole_number(word, name=argument, least=0, most=len(units) - 1)
    found = [at for at, unit in enumerate(units) if unit.text == word]
    if len(found) != 1:
        names = ", ".join(f"{at} {unit.text}" for at, unit in enumerate(units))
        how = "is not a word of the text" if not found else f"stands {len(found)} times in the text"
        raise value_error(f"{argument} is {quote(word)}, which {how}; pass an index: {names:.300}")
    return found[0]


def _hide(runs: Knockout, unit: Unit, layers: Iterable[int | None] = (None,)) -> tuple[int, Masked]:
    """Return the keys that hide a word from every query in some layers; None stands for all."""
    keys = range(unit.first, unit.stop)
    return runs.start(unit.first), [
        MaskedKey(0, None, key, layer, None) for layer in layers for key in keys
    ]


def _unlink(
    runs: Knockout, unit: Unit, layer: int | None = None, head: int | None = None
) -> tuple[int, Masked]:
    """Return the keys that hide a word from the answer's positions, in one head or in all."""
    pairs = [
        (query, key) for query in runs.answer_positions for key in range(unit.first, unit.stop)
    ]
    return runs.position, [MaskedKey(0, *pair, layer, head) for pair in pairs]


def _largest(units: Sequence[Unit], effects: Array, without: set[int]) -> int | None:
    """Return the index of the content word with the largest effect, or of another word."""
    words = [at for at in range(len(units)) if at not in without and math.isfinite(effects[at])]
    content = [at for at in words if is_content(units[at].text)]
    return max(content or words, key=lambda at: float(effects[at]), default=None)


def _log_odds(log_probability: float) -> float:
    """Return log(p / (1 - p)), given log(p)."""
    if log_probability >= 0:
        return math.inf
    return log_probability - math.log(-math.expm1(log_probability))
