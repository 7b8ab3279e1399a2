"""Define the directive `live`, which shows parts of the live page in a frame.

    ```{live} the bank of the river
    :only: sentence head
    :layer: 0
    :head: 2
    :query: bank
    One or two sentences below the frame that say what to try.
    ```

`only` lists the parts to show. `head` may include the layer, for example 0.2, as in numbers.json.
`query` is a word of the text, or its position among the tokens. `second` is another text for
comparison. `edits` are `causal`, `hide WORD` or `scale NUMBER`, separated by commas. With edits, a
frame that shows a head shows it twice: with the edits, and without them. `colouring` is the
colouring of the map. `inside` shows the computation inside the head. `height` is the height of the
frame until the live page reports its own height.

The frame opens only the site's own `play.html`. If scripts are off, or the browser is set to save
data, a link replaces the frame (static/live.js).
"""

import html
import json
import re
from functools import cache
from typing import Any, ClassVar
from urllib.parse import urlencode

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

import qkv

REGIONS = {
    "sentence": "the words",
    "changes": "the changes",
    "temperature": "the temperature",
    "headline": "the guess",
    "map": "the map of all heads",
    "head": "one head",
    "motion": "how a row of weights arises",
    "steps": "the steps of a layer",
    "block": "the output of each part of a layer",
    "outcome": "the most probable words",
    "second": "a second sentence",
    "writing": "the text that the model continues",
}
EDITS = "`causal`, `hide WORD` or `scale NUMBER`"
COLOURINGS = {  # colouring -> its name in the map's menu
    "pattern": "pattern",
    "effect": "what removing it changes",
    "change": "difference from the original",
}
WORDS = ("only", "second", "layer", "head", "query", "edits", "colouring")  # options with words
HEIGHT = 480  # the height of a frame, in pixels


@cache
def model() -> qkv.Model:
    """Load the model of the page."""
    return qkv.load()


def regions_of(only: str) -> list[str]:
    """Split the option `only` into the names of regions.

    Raises:
        ValueError: `only` is empty, or a name is not the name of a region.
    """
    names = only.split()
    unknown = [name for name in names if name not in REGIONS]
    if unknown or not names:
        said = f"the live page has no region {unknown[0]!r}" if unknown else "no region is named"
        raise ValueError(f"only: {said}: choose from {', '.join(REGIONS)}")
    return names


def position_of(word: str, text: str) -> int:
    """Return the position of a word among the tokens of a text.

    If `word` is a number that is not a token of the text, this number is the position.

    Raises:
        ValueError: the text contains the word more than once, or not at all.
    """
    tokens = list(model().tokenizer(text).tokens)
    if word.isdecimal() and word not in tokens:
        positions = [int(word)] if int(word) < len(tokens) else []
    else:
        positions = [i for i, token in enumerate(tokens) if token in (word, word.lower())]
    if len(positions) == 1:
        return positions[0]
    if positions:
        choice = " or ".join(map(str, positions))
        raise ValueError(f"{word!r} occurs more than once in {text!r}; pass its position, {choice}")
    raise ValueError(f"{word!r} is not a token of {text!r}: choose from {' '.join(tokens)}")


def edit_of(said: str, text: str) -> dict[str, object]:
    """Return an edit of a text in the form that the address of the live page uses.

    Raises:
        ValueError: the kind of edit is unknown, or its word is not in the text.
    """
    op, _, rest = said.partition(" ")
    of = rest.strip()
    if said == "causal":
        return {"op": op}
    if op == "hide" and of:
        return {"op": op, "token": position_of(of, text)}
    if op == "scale" and re.fullmatch(r"\d+(\.\d+)?", of) and float(of):
        return {"op": op, "value": float(of)}
    raise ValueError(f"edits: {said!r} is not an edit: write {EDITS}")


def state_of(text: str, options: dict[str, str]) -> dict[str, Any]:
    """Return the state that a directive describes, except the text.

    Raises:
        ValueError: a region, head, word or edit does not exist.
    """
    if "only" not in options:
        raise ValueError(f"the option `only` is missing: name some of {', '.join(REGIONS)}")
    names = regions_of(options["only"])
    if "." in options.get("head", ""):
        layer, _, head = options["head"].partition(".")
        options = {**options, "layer": layer, "head": head}
    state: dict[str, Any] = {"only": names}
    for name, size in (("layer", model().num_layers), ("head", model().num_heads)):
        if name in options:
            if not options[name].isdecimal() or int(options[name]) >= size:
                raise ValueError(f"{name}: {options[name]!r} is not one of 0 to {size - 1}")
            state[name] = int(options[name])
    if "query" in options:
        state["query"] = position_of(options["query"], text)
        if {"headline", "outcome"} & set(names):
            state["position"] = state["query"]
    if "second" in options:
        state["second"] = options["second"]
    if "edits" in options:
        said = (one.strip() for one in options["edits"].split(","))
        state["edits"] = [edit_of(one, text) for one in said if one]
        state["beside"] = "head" in names
    if "colouring" in options:
        given = options["colouring"]
        if given not in COLOURINGS:
            raise ValueError(
                f"colouring: {given!r} is unknown: choose from {', '.join(COLOURINGS)}"
            )
        state["colouring"] = given
    if "inside" in options:
        state["inside"] = True
    return state


def address(page: str, text: str, options: dict[str, str]) -> str:
    """Return the address that opens the live page in a state; `page` is the page's path."""
    state = {name: json.dumps(value) for name, value in state_of(text, options).items()}
    return f"{page}#{urlencode({'text': text, **state})}"


def in_notebook(text: str, options: dict[str, str]) -> str:
    """Return the call that opens the same view in a notebook."""
    state = address("", text, options).replace('"', "'")
    return f'qkv.play(state="{state}")'


class Live(SphinxDirective):
    """A directive that inserts a link and a text; static/live.js turns the link into a frame."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {
        **dict.fromkeys(WORDS, directives.unchanged_required),
        "inside": directives.flag,
        "height": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        text = " ".join(self.arguments[0].split())
        if not self.content:
            raise self.error("live: no text below the options: add a text that says what to try")
        page = "../" * self.env.docname.count("/") + "play.html"
        try:
            href = address(page, text, self.options)
        except ValueError as wrong:
            raise self.error(f"live: {wrong}") from None
        shown = " and ".join(REGIONS[name] for name in self.options["only"].split())
        link = (
            f'<p class="live-view" data-height="{self.options.get("height", HEIGHT)}">'
            f'<a href="{html.escape(href)}">Open a trained model on “{html.escape(text)}”: {shown}'
            "</a></p>"
        )
        box = nodes.container(classes=["live"])
        box += nodes.raw("", link, format="html")
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]


def setup(app) -> None:
    """Register the directive and its script; Sphinx calls this function."""
    app.add_directive("live", Live)
    app.add_js_file("live.js")
