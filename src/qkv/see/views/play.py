"""Pages that contain a model and compute with it, for `play` and for published findings."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import quote
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.files import StrPath, check_target, replacing
from qkv.models import Model
from qkv.models.files.find import DEFAULT
from qkv.see.analysis import (
    COUNT,
    Opening,
    model_of,
    opening_of,
    quote_words,
    readable_trace,
    removal_of,
    run_name,
    texts_of,
)
from qkv.see.analysis.head_weights import by_word, heads_of
from qkv.see.analysis.selection import PAGE, choose_head, percent
from qkv.see.draw.panels import Panel
from qkv.see.page.engine import engine_part, engine_payload, need_engine, sides_of
from qkv.see.page.html import WITH_FILES, WITH_WORKER, about_model, document, encode, template
from qkv.see.page.payload import check_theme
from qkv.see.page.play import DECODER, OPENING, TEXT, known_of
from qkv.see.views.view import Heading, OneText, View, first_query, guess_bars, link_in_words
from qkv.text.gaps import mask_gaps
from qkv.trace import Trace

_FRAME = "width:100%;height:860px;border:0"


class WithModels(View):
    """A view whose page contains models and computes with them."""

    @property
    @abstractmethod
    def _models(self) -> list[Model]:
        """Return the models."""

    @public_call("to_html")
    def to_html(self, path: StrPath, *, weights: str = "inside") -> None:
        """Write the view to one HTML file; a failed write does not change the file.

        Args:
            path: the file.
            weights: "inside" or "beside". With "beside", the weights of each model from a GGUF file
                are written to one file in the same folder (`smollm2-....bin`), which the page
                fetches over HTTP, while the page's other models already answer.

        Raises:
            ValueError: `weights` is "beside", and no model comes from a GGUF file whose blocks a
                page keeps.
        """
        if weights not in ("inside", "beside"):
            raise value_error(f"`weights` is {quote(weights)}: choose 'inside' or 'beside'")
        if weights == "inside":
            super().to_html(path)
            return
        files = dict[str, bytes]()
        page = encode(self._document(files))
        if not files:
            raise value_error(
                "the weights of these models stay inside the page, because no model comes from a "
                "GGUF file whose blocks a page keeps: omit weights='beside'"
            )
        check_target(path)
        for name, data in files.items():  # before the page that needs them
            with replacing(Path(path).with_name(name)) as file:
                file.write(data)
        with replacing(path) as file:
            file.write(page)

    def _html(self, beside: dict[str, bytes] | None = None) -> tuple[str, str]:
        title, body = super()._html()
        payloads = (engine_payload(model) for model in self._models)
        return title, f"{body}\n{engine_part(*payloads, beside=beside)}"

    def _about(self) -> str:
        if len(self._models) == 1:
            return about_model(self._models[0])
        return "".join(about_model(model, model.name) for model in self._models)

    def _document(self, beside: dict[str, bytes] | None = None) -> str:
        policy = WITH_WORKER if beside is None else WITH_FILES
        return document(*self._html(beside), self.theme, policy, wide=True)


@dataclass(frozen=True, eq=False, repr=False)
class PlayView(WithModels, OneText):
    """A page with a model inside.

    The page's initial state consists of a text, a position in the text, and a word to hide. The
    picture, the text in a terminal and `to_dict` describe the initial state.

    Attributes:
        model: the model.
        text: the text.
        trace: the trace of the text.
        opening: the position, the word to hide, and the likeliest words before and after hiding.
        edits: the records of the initial interventions.
        opened: the likeliest words under the initial interventions; empty if there are none.
        state: the part of an address after the #; the page opens in this state. May be empty.
        embed: whether a notebook contains the page itself, instead of an iframe that shows a file.
        others: the views of the page's other models. Readers can switch to these views.
    """

    model: Model
    text: str
    trace: Trace
    opening: Opening
    edits: Sequence[dict[str, Any]] = ()
    opened: Sequence[tuple[str, float]] = ()
    state: str = ""
    embed: bool = False
    others: "Sequence[PlayView]" = ()

    @property
    def sentence(self) -> str:
        """Name the likeliest word at the position, before and after a word is hidden."""
        opening = self.opening
        row = self.shown.queries.rows_of([opening.position])[0]
        guesses = f"Most likely at {self.shown.queries.name_of(row)}: {_first(opening.before)}"
        if opening.hidden:
            guesses += f"; {self._change}: {_first(opening.after)}"
        if self.opened:
            guesses += f"; as the page opens: {_first(self.opened)}"
        return f"{guesses}."

    @property
    def _change(self) -> str:
        return run_name({"hide": [self.opening.word]})

    def panels(self) -> list[list[Panel]]:
        """Show the chosen head, and the likeliest words before and after hiding a word."""
        opening, name = self.opening, "The likeliest words"
        bars: list[Panel] = [guess_bars(opening.before, name, "as it is" if opening.hidden else "")]
        if opening.hidden:
            bars.append(guess_bars(opening.after, name, self._change))
        return [bars, *super().panels()]

    def _headings(self) -> list[Heading]:
        return [Heading.of(self.trace)]

    def _numbers(self) -> dict[str, Any]:
        """Return the initial state; `after` equals `before` if the text has no word to hide."""
        return {
            "model": self.trace.model,
            "text": self.text,
            "tokens": list(self.trace.tokens),
            **self._head_numbers(),
            "place": self.opening.position,
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
            "position": self.opening.position,
            "layer": self.head.layer,
            "head": self.head.head,
            "said": link_in_words(self.shown, self.head, PAGE),
            "query": self.shown.queries.position(first_query(self.shown, self.head)),
            "hide": self.opening.hidden,
            "view": "front",
        }
        queries = self.shown.queries
        title = quote_words(self.text, queries.tokens, queries.special)
        known = known_of(self.model)
        if self.others:
            own, *sides = sides_of((model.name, model.generates) for model in self._models)
            views = zip(self.others, sides, strict=True)
            others = [view._payload() | {"side": side, "state": self.state} for view, side in views]
            known |= {"side": own, "others": others}
        return self._page("play", title, start=start, state=self.state, **known)

    @property
    def _models(self) -> list[Model]:
        return [self.model, *(view.model for view in self.others)]

    def _repr_html_(self) -> str:
        """Return an iframe with the page, embedded or from a file beside the notebook."""
        if self.embed:
            source = f'srcdoc="{escape(self._document(), quote=True)}"'
        else:
            # the address has the state: so all notebooks of a folder share a model's page
            shared = play(model=list(self._models), theme=self.theme) if self.state else self
            page = encode(shared._document())
            name = f"qkv-play-{hashlib.sha256(page).hexdigest()[:8]}.html"
            if not Path(name).exists():
                shared.to_html(name)
            source = f'src="{name}{escape(self.state, quote=True)}"'
        title = escape(self.sentence, quote=True)
        return f'<iframe {source} title="{title}" style="{_FRAME}"></iframe>'


def _first(guesses: Sequence[tuple[str, float]]) -> str:
    word, share = guesses[0]
    return f"{word}, {percent(share)}"


def _of_address(address: str) -> tuple[str | None, str]:
    """Return the text that an address contains, or None, and the part of the address after the #.

    >>> _of_address("http://127.0.0.1/#text=a+cat&layer=3")
    ('a cat', '#text=a+cat&layer=3')
    """
    if not isinstance(address, str):
        raise type_error(f"`state` is {quote(address)}; pass the address of a page")
    behind = address.rpartition("#")[2]
    fields = dict(parse_qsl(behind, keep_blank_values=True))
    try:
        for name in fields.keys() - {"text", "model"}:
            json.loads(fields[name])
    except ValueError:
        raise value_error(
            f"`state` has {name} {quote(fields[name])}, which is not JSON: copy the complete "
            "address of a page"
        ) from None
    if not fields:
        raise value_error(f"`state` is {quote(address)}: copy the complete address of a page")
    return None if fields.get("model") == "decoder" else fields.get("text"), f"#{behind}"


@public_call("play")
def play(
    text: str | None = None,
    *,
    model: Model | str | list[Model | str] | None = None,
    edit: Edit = None,
    ablate: Ablate = (),
    hide: Hide = (),
    state: str | None = None,
    theme: str = "auto",
    embed: bool = False,
) -> PlayView:
    """Make a page that contains a model and runs offline on any text that a reader types.

    If `model` is None, the page has two models, and the reader can switch between them: the default
    encoder guesses missing words, and the decoder that comes with qkv continues a text. If the
    reader switches models, the other model reads the same sentence: a decoder reads the words
    before the gap, and an encoder guesses the word after the last word.

    `to_html(path)` writes one file. With these two models, the file is at most 16 MB. With another
    model, the file's size is about 4/3 of the model's size in float16. A file larger than 64 MB
    causes a warning. A GGUF file of at most 150 MB whose blocks are Q4_0, Q4_1 or Q8_0 keeps its
    blocks; for example, the "smollm2" page takes 90 MB. With such a model, vectors are rounded to
    int16 before they are multiplied by the blocks, and logits differ from the library's by up to
    0.02. For a page on a web server, `to_html(path, weights="beside")` writes the weights of such
    models to files beside the page. A notebook writes the page to a file in the notebook's folder
    (`qkv-play-....html`) and shows the file in an iframe.

    The page opens with one sentence and the guess in its gap; clicking a word hides it. Buttons
    open a story, games, and a lab with all controls. An encoder guesses the word at the first mask
    token. If the text has no mask token, the encoder guesses the last content word, which stays
    visible. A decoder guesses the word after the last token. The page also chooses a content word
    to hide first. It hides each content word in turn, and compares the probabilities of all
    possible guesses with the probabilities for the whole text. The word with the largest change is
    chosen. A word takes priority if hiding it changes the likeliest guess. The head is chosen by
    the same rule as in `show`. When the reader types another text, the same rule chooses a head for
    this text, unless the reader has chosen a head.

    Args:
        text: the initial text; by default a sentence with a missing word or, for a decoder, the
            beginning of a sentence.
        model: an encoder with a language-model head (BERT, DistilBERT, ELECTRA's generator,
            RoBERTa, ModernBERT) or a decoder (GPT-2, GPT-Neo, GPT-NeoX, OPT, Llama, Mistral, Qwen 2
            and 3, Gemma 1 to 3, and other models made of the same parts), or its name. If `model`
            is a list, the page opens with its first model. By default, both models that come with
            qkv.
        edit: the initial interventions, which a reader can undo: records of `qkv.edits`, or a
            mapping from activations to arrays. A mapping is converted to records.
        ablate: heads that are ablated when the page opens, as for `Model.trace`.
        hide: words, positions and links that are hidden when the page opens, as for `Model.trace`.
        state: the address of a page, or only the part after the #, which describes a state. The
            page opens in this state. If `state` is given, `text` and interventions must be omitted.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
        embed: whether a notebook contains the whole page, so that no other file is needed.

    Raises:
        TypeError: the text is not a string, or an intervention has the wrong type.
        ValueError: the text is empty; a page cannot run this model; or an intervention does not
            match the text. The message gives the reason.

    >>> view = play("The opposite of black is [MASK].")
    >>> view.trace.tokens[view.opening.position], view.opening.word in view.text
    ('[MASK]', True)
    >>> play("The opposite of black is [MASK].", hide="black").edits
    [{'op': 'hide', 'token': 4}]
    """
    check_theme(theme)
    if state is not None:
        if text is not None or edit or ablate or hide:
            raise type_error(
                "a state has its own text and interventions: leave out text, edit, ablate and hide"
            )
        text, state = _of_address(state)
    texts = [] if text is None else texts_of([text])
    if isinstance(model, list | tuple) and not model:
        raise value_error("`model` is an empty list: pass at least one model")
    named = model if isinstance(model, list | tuple) else [model]
    used = model_of(named[0], texts or [OPENING])
    need_engine(used)
    text = texts[0] if texts else OPENING if used.generates else TEXT.format(used.mask)
    more = [DECODER] if model is None and used.name == DEFAULT else named[1:]
    # a decoder cannot fill gaps, so the other models get only texts without gaps
    whole = texts and not mask_gaps(text, used.mask).gaps
    others = [play(text if whole else None, model=one, theme=theme) for one in more]
    names = [used.name, *(view.model.name for view in others)]
    if len(set(names)) < len(names):
        raise value_error(
            f"`model` is {names}, and two models have the same name; pass each model once"
        )
    trace = readable_trace(used.trace(text))
    changes, tokens = edits_of(edit, ablate, hide), used.tokenize(text)
    edits = used.edit_records(changes, tokens)
    heads = by_word(heads_of(trace))
    opening = opening_of(used, trace)
    removing = partial(removal_of, used, trace)
    head, _ = choose_head(heads, removing=removing, written=PAGE)
    return PlayView(
        used,
        text,
        trace,
        opening,
        edits,
        used.guesses(tokens, [opening.position], COUNT, changes)[0] if edits else (),
        state or "",
        embed,
        others,
        head=head,
        shown=heads,
        elsewhere=[],
        theme=theme,
    )


# The largest number of tokens in a page's text; assets/store/store.js sets the same limit.
MAX_TOKENS = 256


@dataclass(frozen=True, eq=False, repr=False)
class FindingsView(WithModels):
    """A page that shows findings, and measures them again with the model inside the page.

    Attributes:
        model: the model.
        parts: the parts of the page, in order. Each part is either the content of a finding's file
            or HTML of the article.
        heading: the title of the page.
    """

    model: Model
    parts: Sequence[dict[str, Any] | str]
    heading: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """Return the findings in order."""
        return [part for part in self.parts if isinstance(part, dict)]

    @property
    def sentence(self) -> str:
        """Return the title of the page."""
        return self.heading

    def panels(self) -> list[list[Panel]]:
        """Show, for each finding, the likeliest words before and after its intervention."""
        names = {"before": "before", "after": "after the edits"}
        return [
            [
                guess_bars(part[when], part["claim"] or part["text"], name)
                for when, name in names.items()
            ]
            for part in self.findings
        ]

    def _headings(self) -> list[Heading]:
        texts = dict.fromkeys(finding["text"] for finding in self.findings)
        tokenized = [self.model.tokenize(text) for text in texts]
        return [
            Heading(list(x.tokens), list(x.special), self.model.name, unknown=x.unknown())
            for x in tokenized
        ]

    def _numbers(self) -> dict[str, Any]:
        return {"model": self.model.name, "findings": self.findings}

    def _payload(self) -> dict[str, Any]:
        first = self.findings[0]
        start = {name: first[name] for name in ("text", "edits")} | {"hide": [], "view": "findings"}
        start |= {"position": first["position"], "query": first["position"]}
        numbers, slots = iter(range(len(self.findings))), iter(range(len(self.parts)))
        parts = [
            next(numbers) if isinstance(part, dict) else f"prose-{next(slots)}"
            for part in self.parts
        ]
        title = quote_words(self.heading, [], [])
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


@public_call("publish")
def findings_view(
    model: Model, parts: Sequence[dict[str, Any] | str], heading: str, *, theme: str = "auto"
) -> FindingsView:
    """Make a page of findings about the model.

    Args:
        model: the model.
        parts: the parts of the page, in order. Each part is either the content of a finding's file
            or HTML of the article.
        heading: the title of the page.
        theme: the theme of the page.

    Raises:
        ValueError: a page cannot compute with the model; a finding's text is too long for a page;
            or the theme does not exist.
    """
    check_theme(theme)
    need_engine(model)
    view = FindingsView(model, parts, heading, theme=theme)
    for finding in view.findings:
        size = len(model.tokenize(finding["text"]))
        if size > MAX_TOKENS:
            raise value_error(
                f"the text {finding['text']:.40} has {size} tokens, but a page runs at "
                f"most {MAX_TOKENS}: shorten it"
            )
    return view
