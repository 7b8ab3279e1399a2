"""Pages in which a model computes: `play`, and the page of published findings."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from qkv.arrays import shown
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.models import Model
from qkv.models.files.find import DEFAULT
from qkv.see.analysis.head_weights import by_word, heads_of
from qkv.see.analysis.inputs import model_of, readable_trace, texts_of
from qkv.see.analysis.interventions import COUNT, Opening, opening_of, removal_of
from qkv.see.analysis.selection import PAGE, choose_head, percent
from qkv.see.analysis.words import quoted, run_name
from qkv.see.draw.panels import Panel
from qkv.see.page.engine import engine_part, engine_payload, need_engine
from qkv.see.page.html import WITH_WORKER, about_model, document, template
from qkv.see.page.payload import check_theme
from qkv.see.page.play import DECODER, OPENING, TEXT, known_of
from qkv.see.views.head_panels import OneText, chances, first_query, heading_of, link_in_words
from qkv.see.views.view import Heading, View
from qkv.text.gaps import masked
from qkv.trace import Trace

_FRAME = "width:100%;height:860px;border:0"


class WithModels(View):
    """A view whose page computes with the models that it holds.

    Attributes:
        call: who is named in a warning.
    """

    call: ClassVar[str] = "play"

    @property
    @abstractmethod
    def _models(self) -> list[Model]:
        """The models."""

    def _html(self) -> tuple[str, str]:
        title, body = super()._html()
        payloads = (engine_payload(model, self.call) for model in self._models)
        return title, f"{body}\n{engine_part(*payloads)}"

    def _about(self) -> str:
        if len(self._models) == 1:
            return about_model(self._models[0])
        return "".join(about_model(model, model.name) for model in self._models)

    def _document(self) -> str:
        return document(*self._html(), self.theme, WITH_WORKER, wide=True)


@dataclass(frozen=True, eq=False, repr=False)
class PlayView(WithModels, OneText):
    """A page with a model inside, and what it opens on: a place of a text, and a word to hide.

    Its picture, what a terminal shows of it and `to_dict` are of what it opens on.

    Attributes:
        model: the model.
        text: the text.
        trace: of the text.
        opening: the place, the word to hide, and the likeliest words before and after.
        edits: the records of what is changed when the page opens.
        opened: the likeliest words then; empty where nothing is changed.
        state: what stands behind the # of an address that the page opens on, or nothing.
        embed: whether a notebook gets the page itself, and not a frame of a file beside it.
        other: the same of a decoder, which a reader of the page can turn to.
    """

    model: Model
    text: str
    trace: Trace
    opening: Opening
    edits: Sequence[dict[str, Any]] = ()
    opened: Sequence[tuple[str, float]] = ()
    state: str = ""
    embed: bool = False
    other: PlayView | None = None

    @property
    def sentence(self) -> str:
        """The likeliest word at the place, and what becomes of it without the other."""
        shown = self.opening
        place = self.shown.queries.rows_of([shown.place])[0]
        said = f"At {self.shown.queries.names[place]} most likely: {_first(shown.before)}"
        if shown.hidden:
            said += f"; {self._change}: {_first(shown.after)}"
        if self.opened:
            said += f"; as the page opens: {_first(self.opened)}"
        return f"{said}."

    @property
    def _change(self) -> str:
        return run_name({"hide": [self.opening.word]})

    def panels(self) -> list[list[Panel]]:
        """The words before and after, and the head that the page opens on."""
        shown, title = self.opening, "The likeliest words"
        bars: list[Panel] = [chances(shown.before, title, "as it is" if shown.hidden else "")]
        if shown.hidden:
            bars.append(chances(shown.after, title, self._change))
        return [bars, *super().panels()]

    def _headings(self) -> list[Heading]:
        return [heading_of(self.trace)]

    def _numbers(self) -> dict[str, Any]:
        """What the page opens on; `after` is `before` where there is no word to hide."""
        return {
            "model": self.trace.model,
            "text": self.text,
            "tokens": list(self.trace.tokens),
            **self._chosen(),
            "place": self.opening.place,
            "before": self.opening.before,
            "hide": self.opening.hidden,
            "after": self.opening.after,
            "edits": list(self.edits),
            "opened": list(self.opened),
        }

    def _payload(self) -> dict[str, Any]:
        start = {
            "text": self.text,
            "edits": list(self.edits),
            "place": self.opening.place,
            "layer": self.head.layer,
            "head": self.head.head,
            "said": link_in_words(self.shown, self.head, PAGE),
            "query": self.shown.queries.place(first_query(self.shown, self.head)),
            "hide": self.opening.hidden,
            "view": "front",
        }
        queries = self.shown.queries
        title = quoted(self.text, queries.names, queries.special)
        both: dict[str, Any] = {}
        if self.other is not None:
            other = self.other._payload() | {"side": "decoder", "state": self.state}
            both = {"side": "encoder", "other": other}
        known = known_of(self.model) | both
        return self._page("play", title, start=start, state=self.state, **known)

    @property
    def _models(self) -> list[Model]:
        return [self.model] if self.other is None else [self.model, self.other.model]

    def _repr_html_(self) -> str:
        """A frame of the page, which is written to a file beside the notebook unless `embed`."""
        page = self._document()
        if self.embed:
            source = f'srcdoc="{escape(page, quote=True)}"'
        else:
            name = f"qkv-play-{hashlib.sha256(page.encode()).hexdigest()[:8]}.html"
            self.to_html(name)
            source = f'src="{name}"'
        title = escape(self.sentence, quote=True)
        return f'<iframe {source} title="{title}" style="{_FRAME}"></iframe>'


def _first(guesses: Sequence[tuple[str, float]]) -> str:
    word, share = guesses[0]
    return f"{word}, {percent(share)}"


def _of_address(address: str) -> tuple[str | None, str]:
    """The text of a page's address, if it has one, and what stands behind the #.

    >>> _of_address("http://127.0.0.1/#text=a+cat&layer=3")
    ('a cat', '#text=a+cat&layer=3')
    """
    if not isinstance(address, str):
        raise TypeError(f"play: state is {shown(address)}: give the address of a page")
    behind = address.rpartition("#")[2]
    fields = dict(parse_qsl(behind, keep_blank_values=True))
    try:
        for name in fields.keys() - {"text", "model"}:
            json.loads(fields[name])
    except ValueError:
        raise ValueError(
            f"play: state has {name} {shown(fields[name])}, which is no JSON: copy the address of "
            "a page whole"
        ) from None
    if not fields:
        raise ValueError(f"play: state is {shown(address)}: copy the address of a page whole")
    return None if fields.get("model") == "decoder" else fields.get("text"), f"#{behind}"


def play(
    text: str | None = None,
    *,
    model: Model | str | None = None,
    edit: Edit = None,
    ablate: Ablate = (),
    hide: Hide = (),
    state: str | None = None,
    theme: str = "auto",
    embed: bool = False,
) -> PlayView:
    """A page with a model inside: it computes what a reader types and changes, offline.

    Without `model` it has two: the default encoder, which guesses missing words, and the decoder
    that comes with qkv, which writes on; a reader turns from the one to the other.

    `to_html(path)` writes it, one file: of at most 16 MB with these two, and with another model of
    about four thirds of its numbers in float16; a warning says if that is over 64 MB. A notebook
    writes it to a file beside itself (`qkv-play-....html`) and frames that one.

    It opens on one sentence with the guess in its gap, where a press on a word hides it; a story,
    games and a lab with everything at once are behind buttons. The guess is that at one place: the
    first mask token, or else the last content word; for a decoder the last token, behind which the
    next word comes. The word to hide first is the one that matters most there: the content word
    without which the probabilities at this place differ most, of those without which another word
    is the likeliest if there are any. The head is the one that
    the rule of `show` chooses. Another text that is typed opens on a head of its own by the same
    rule, until a head is chosen by hand.

    Args:
        text: what the page begins with; a sentence with a missing word, or for a decoder an
            opening, if left out.
        model: an encoder with a head over words (BERT, DistilBERT, ELECTRA's generator, RoBERTa,
            ModernBERT) or a decoder (GPT-2, GPT-Neo, GPT-NeoX, OPT, Llama, Mistral, Qwen 2 and 3,
            Gemma 1 to 3, and what is made of the same parts), or its name; both that come with qkv
            if left out.
        edit: what is changed when the page opens, as records of `qkv.edits`, or a mapping from
            activations to arrays, which become records; a reader can take it back.
        ablate: heads that are left out then, as for `Model.trace`.
        hide: words, places and edges that are not looked at then, as there.
        state: the address of a page, or what stands behind its #: the page opens as that one was,
            and `text` and changes are left out.
        theme: of the page: "light", "dark", or "auto" for that of the site or system around it.
        embed: whether a notebook gets the page itself, all of its size, and needs no file.

    Raises:
        TypeError: the text is no string, or a change is something else than its argument takes.
        ValueError: the text is empty, a page cannot compute with this model, or a change does not
            fit the text; the message says why.

    >>> view = play("The opposite of black is [MASK].")
    >>> view.trace.tokens[view.opening.place], view.opening.word in view.text
    ('[MASK]', True)
    >>> play("The opposite of black is [MASK].", hide="black").edits
    [{'op': 'hide', 'token': 4}]
    """
    check_theme(theme, "play")
    if state is not None:
        if text is not None or edit or ablate or hide:
            raise TypeError("play: a state has a text and changes of its own: leave out the others")
        text, state = _of_address(state)
    given = [] if text is None else texts_of([text], "play")
    used = model_of(model, given or [OPENING])
    need_engine(used)
    text = given[0] if given else OPENING if used.generates else TEXT.format(used.mask)
    other = None
    if model is None and used.name == DEFAULT:
        # the decoder goes on from a text in which no word is missing
        whole = given and not masked(text, used.mask).gaps
        other = play(text if whole else None, model=DECODER, theme=theme)
    trace = readable_trace(used.trace(text))
    asked, tokens = edits_of(edit, ablate, hide, call="play"), used.tokenize(text)
    edits = used._plain(asked, tokens)
    heads = heads_of(trace)
    shown = by_word(heads)
    opening = opening_of(used, trace)
    removing = partial(removal_of, used, trace)
    head, _ = choose_head(shown, call="play", removing=removing, written=PAGE)
    return PlayView(
        used,
        text,
        trace,
        opening,
        edits,
        used.guesses(tokens, [opening.place], COUNT, asked)[0] if edits else (),
        state or "",
        embed,
        other,
        head=head,
        shown=shown,
        elsewhere=[],
        theme=theme,
    )


MOST = 256  # tokens of a text that a page runs, MOST of assets/store/store.js


@dataclass(frozen=True, eq=False, repr=False)
class FindingsView(WithModels):
    """A page with a model inside that shows findings and measures them again.

    Attributes:
        model: the model.
        parts: what the page shows in order: findings as their files have them, and the HTML of the
            article around them.
        heading: what the page is called.
    """

    call = "publish"

    model: Model
    parts: Sequence[dict[str, Any] | str]
    heading: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings in order."""
        return [part for part in self.parts if isinstance(part, dict)]

    @property
    def sentence(self) -> str:
        """What the page is called."""
        return self.heading

    def panels(self) -> list[list[Panel]]:
        """The words of each finding before and after."""
        return [
            [
                chances(one["before"], one["claim"] or one["text"], "before"),
                chances(one["after"], one["claim"] or one["text"], "after the edits"),
            ]
            for one in self.findings
        ]

    def _headings(self) -> list[Heading]:
        found = []
        for one in {one["text"]: one for one in self.findings}.values():
            tokens = self.model.tokenize(one["text"])
            named = list(tokens.tokens), list(tokens.special), self.model.name
            found.append(Heading(*named, unknown=tokens.unknown()))
        return found

    def _numbers(self) -> dict[str, Any]:
        return {"model": self.model.name, "findings": self.findings}

    def _payload(self) -> dict[str, Any]:
        first = self.findings[0]
        start = {name: first[name] for name in ("text", "edits")} | {
            **{"place": first["position"], "query": first["position"]},
            **{"hide": [], "view": "findings"},
        }
        numbers, slots = iter(range(len(self.findings))), iter(range(len(self.parts)))
        parts = [
            next(numbers) if isinstance(part, dict) else f"prose-{next(slots)}"
            for part in self.parts
        ]
        title = quoted(self.heading, [], [])
        known = known_of(self.model) | {"findings": self.findings, "parts": parts}
        return self._page("play", title, start=start, state="", **known)

    @property
    def _models(self) -> list[Model]:
        return [self.model]

    def _about(self) -> str:
        prose = [part for part in self.parts if isinstance(part, str)]
        style = f"<style>{template('prose.css')}</style>" if prose else ""
        slots = (
            f'<div class="qkv-prose" slot="prose-{n}">{part}</div>' for n, part in enumerate(prose)
        )
        return f"{style}{''.join(slots)}{super()._about()}"


def findings_view(
    model: Model, parts: Sequence[dict[str, Any] | str], heading: str, *, theme: str = "auto"
) -> FindingsView:
    """The page of findings that fit the model.

    Args:
        model: the model.
        parts: findings as their files have them, and HTML.
        heading: what the page is called.
        theme: of the page.

    Raises:
        ValueError: a page cannot compute with the model, or does not run a text whole; there is no
            such theme.
    """
    call = FindingsView.call
    check_theme(theme, call)
    need_engine(model, call)
    found = FindingsView(model, parts, heading, theme=theme)
    for one in found.findings:
        size = len(model.tokenize(one["text"]))
        if size > MOST:
            raise ValueError(
                f"{call}: the text {one['text']:.40} has {size} tokens and a page runs at most "
                f"{MOST}: shorten it"
            )
    return found
