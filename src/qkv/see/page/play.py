"""The data that the page of `play` reads, in a file or from a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.models import Model, load
from qkv.models.files.find import DEFAULT, shipped
from qkv.see.analysis.inputs import places_in
from qkv.see.analysis.words import FUNCTION_WORDS, LEFT_OVER, run_name
from qkv.see.page import html
from qkv.see.page.payload import payload_of
from qkv.trace import Trace

# PLAY = the entries of the payload "play". Its "texts" are empty, since the page computes.
# The model and its script are a separate part, behind it (see page/engine.py).
#
#   "start": {"text": str, "edits": [records], "place": the position of the guess,
#             "layer": number, "head": number, "said": a sentence about this head (without these
#             three the page chooses), "query": position of a token | null,
#             "hide": [positions of the first word to hide],
#             "view": the first screen: "front" | "findings" | "lab" (also if it is left out)},
#   "state": the part of an address behind the #, in whose state the page opens, or "",
#   "stories": [STORY, ...],     those of the model's card
#   "roles": {"layer.head": [role, the measure of this role]},
#   "cards": [CARD, ...],        of a first lesson; see training/play_cards.py
#   "untrained": whether the model is, "little": {"words": [...], "pieces": [...]} in lower case
#   that are no content words, for the rule for a head (assets/store/rule.js)
#   "next": whether logits are for the next token, "guesses": whether they are for masked words,
#   "mask": the mask token | null,
#   in a page of findings also "findings": [the contents of their files],
#   "parts": its contents in order, [the index of a finding | the slot of an article's HTML],
#   in a page with two models also "side": "encoder", "other": the same for the decoder }
#
# STORY = {"text": str, "hide": [positions of tokens] or "ablate": [[layer, head], ...],
#          "change": the intervention in words,
#          "before": [word, probability], "after": [word, probability], "why": str}


ROLES, CARDS = "roles.json", "cards.json"  # beside a model that comes with qkv


# The text of a page that is given none, with the model's own mask, and the word to hide.
TEXT, HIDDEN = "She drank a glass of {}.", "glass"
OPENING = "She opened the door and"  # the same for a decoder, which continues it
DECODER = "books-decoder"  # stands beside the default encoder


def known_of(model: Model) -> dict[str, Any]:
    """Return the stories, the roles and the cards of a model that comes with qkv."""
    folder = _folder_of(model)
    stories = _kept(folder, FILE).get("stories", [])
    return {
        "next": model.generates,
        "guesses": model.mask is not None and model.network.predicts and model.continues,
        "mask": model.mask,
        "stories": [_story(model, story) for story in stories],
        "roles": _kept(folder, ROLES),
        "cards": _kept(folder, CARDS).get("cards", []),
        "untrained": model.network.untrained,
        "little": {"words": sorted(FUNCTION_WORDS), "pieces": sorted(LEFT_OVER)},
    }


def _folder_of(model: Model) -> Path | None:
    """Return the folder in qkv of a model with exactly the parameters in it."""
    folder = shipped().get(model.name)
    if folder is None:
        return None
    own, given = load(folder).parameters, model.parameters
    same = own.keys() == given.keys() and all(
        np.array_equal(own[name], array) for name, array in given.items()
    )
    return folder if same else None


def _kept(folder: Path | None, name: str) -> dict[str, Any]:
    """Read a file of a folder; return nothing if it does not exist."""
    file = folder and folder / name
    return dict(json.loads(file.read_bytes())) if file and file.is_file() else {}


def _story(model: Model, story: dict[str, Any]) -> dict[str, Any]:
    """Convert a story for the page."""
    trace: Trace = model.trace(story["sentence"], names=["pattern"])
    places = [places_in(trace, model, word, "play", "hide") for word in story["hide"]]
    edits: dict[str, Any] = {"hide": [place for word in places for place in word]} if places else {}
    if story["ablate"]:
        edits["ablate"] = story["ablate"]
    return (
        {"text": story["sentence"]}
        | edits
        | {
            "change": run_name({name: story[name] for name in ("ablate", "hide")}),
            **{when: list(story[when].values()) for when in ("before", "after")},
            "why": story["reason"],
        }
    )


SERVED = f"{html.POLICY}; connect-src 'self'"  # of a page that computes with its server


def served_page(model: Model, scales: Sequence[tuple[str, float]], *, plain: bool) -> str:
    """Write the page of a server, as a whole document.

    Args:
        model: the model that the server computes with.
        scales: for each layer the factor of its scores, and the model's own factor.
        plain: whether the scores of every layer are products of queries and keys alone.
    """
    about = about_of(model, scales, plain)
    known = known_of(model)
    start = _start(model, about["mask"])
    if known["guesses"] or known["next"]:
        start["view"] = "front"
    payload = payload_of("play", model.name, [], model=model.name, start=start, **known)
    call = (
        'page.openServer(JSON.parse(document.getElementById("qkv-served").textContent), '
        'document.getElementById("qkv-key"));'
    )
    body = (
        f"{html.template('key_form.html')}\n{html.fragment(payload, '', html.about_model(model))}\n"
        f'<script type="application/json" id="qkv-served">{html.script_json(about)}</script>\n'
        f"{html.script(html.bundle('server.js'), call)}\n"
    )
    return html.document(model.name, body, "auto", SERVED, wide=True)


def about_of(model: Model, scales: Sequence[tuple[str, float]], plain: bool) -> dict[str, Any]:
    """Describe a model for the page: `Served` of assets/engine/server.js."""
    gives = model.network.predicts and model.continues
    tokenizer = model.tokenizer
    names: list[str] = []
    if gives:
        known = {} if tokenizer is None else {id: name for name, id in tokenizer.vocabulary.items()}
        names = [known.get(id, str(id)) for id in range(len(model.embedding.table))]
    return {
        "name": model.name,
        "layers": model.num_layers,
        "heads": min(layer.attn.num_heads for layer in model.layers),
        "kv_heads": min(layer.attn.num_kv_heads for layer in model.layers),
        "dim": model.dim,
        "vocabulary": len(names),
        "most": model.max_seq_length,
        "words": names,
        "next": model.generates,
        "mask": model.mask,
        "ends": sorted(model._eos_ids) if model.generates else [],
        "plain": plain,
        "scales": scales,
    }


def _start(model: Model, mask: str | None) -> dict[str, Any]:
    """Choose the first text, a position in it, and the word that the button hides."""
    text = TEXT.format(mask or "head")
    tokens = model.tokenize(text)
    first = model.prepared(text).find(HIDDEN)
    hide = [
        place
        for place, (begin, end) in enumerate(tokens.offsets)
        if begin < first + len(HIDDEN) and end > first and not tokens.special[place]
    ]
    place = tokens.tokens.index(mask) if mask in tokens.tokens else None
    return {"text": text, "edits": [], "place": place, "query": place, "hide": hide}


FILE = "stories.json"  # beside the model; `training.stories` writes it


@dataclass(frozen=True)
class Story:
    """A sentence, an intervention, and its effect on the guess.

    Attributes:
        sentence: with a mask token for the missing word.
        hide: words that no token may attend to.
        ablate: ablated heads, as (layer, head).
        before: the model's first guess.
        after: its first guess after the intervention.
        reason: the reason for the change, in a sentence.
    """

    sentence: str
    hide: tuple[str, ...]
    ablate: tuple[tuple[int, int], ...]
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Stories:
    """The chosen stories, and the size of the search, which shows how rare they are.

    Attributes:
        told: the stories.
        searched: the number of searched sentences.
        found: the number of sentences whose guess one intervention changes.
    """

    told: tuple[Story, ...]
    searched: int
    found: int


def stories() -> Stories:
    """Read the five stories in the card of the model that comes with qkv.

    A reader chose them as the clearest from a search of thousands of sentences: they show abilities
    of the model, not its usual behaviour.

    >>> kept = stories()
    >>> len(kept.told) <= kept.found <= kept.searched
    True
    >>> import qkv
    >>> model = qkv.load("books")
    >>> all(model.predict(story.sentence, 1)[0][0][0] == story.before for story in kept.told)
    True
    """
    return read_stories(shipped()[DEFAULT])


def read_stories(folder: Path) -> Stories:
    """Read the stories in the folder of a model."""
    kept: dict[str, Any] = json.loads((folder / FILE).read_bytes())
    told = tuple(
        Story(
            sentence=story["sentence"],
            hide=tuple(story["hide"]),
            ablate=tuple((layer, head) for layer, head in story["ablate"]),
            before=story["before"]["word"],
            after=story["after"]["word"],
            reason=story["reason"],
        )
        for story in kept["stories"]
    )
    return Stories(told, kept["searched"], kept["found"])
