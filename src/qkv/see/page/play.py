"""The data that the page of `play` reads, inside a file or from a server."""

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
from qkv.see.page.html import (
    POLICY,
    about_model,
    bundle,
    document,
    fragment,
    script,
    script_json,
    template,
)
from qkv.see.page.payload import payload_of
from qkv.trace import Trace

# PLAY = what stands in the payload of the kind "play", whose "texts" are empty: the page computes.
# The model and its script are a part of their own, which comes after (see page/engine.py).
#
#   "start": {"text": str, "edits": [records], "place": of the token whose word is looked at,
#             "layer": number, "head": number, "said": of this head by the rule (all three left out
#             where the page is to choose), "query": place of a token | null,
#             "hide": [places of the word that is to be hidden first],
#             "view": the screen that opens: "front" | "findings" | "lab", which also opens
#             where it is left out},
#   "state": what stands behind the # of an address that the page opens on, or "",
#   "stories": [STORY, ...],     those of the model's card
#   "roles": {"layer.head": [role, the measure that it has it by]},
#   "cards": [CARD, ...],        of a first lesson; see training/play_cards.py
#   "untrained": whether the model is, "little": {"words": [...], "pieces": [...]} that are no
#   content words, all small: what the rule for a head needs (assets/store/rule.js)
#   "next": whether logits are for the next token, "guesses": whether they are for masked words,
#   "mask": what is written for such a word | null,
#   of a page of findings also "findings": [what the file of each holds],
#   "parts": what stands on it in order, [the place of a finding | the slot of an article's HTML],
#   of a page with two models also "side": "encoder", "other": the same of the decoder }
#
# STORY = {"text": str, "hide": [places of tokens] or "ablate": [[layer, head], ...],
#          "change": what is hidden or left out, in words,
#          "before": [word, chance], "after": [word, chance], "why": str}


ROLES, CARDS = "roles.json", "cards.json"  # beside a model that comes with qkv


# What a page opens on where no text is given, with the model's own mask, and the word to hide.
TEXT, HIDDEN = "She drank a glass of {}.", "glass"
OPENING = "She opened the door and"  # the same of a decoder, which goes on from it
DECODER = "books-decoder"  # stands beside the default encoder


def known_of(model: Model) -> dict[str, Any]:
    """The stories, the roles and the cards of a model, where it is one that came with them."""
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
    """The folder in qkv that a model is from, if it has the parameters there and no others."""
    folder = shipped().get(model.name)
    if folder is None:
        return None
    own, given = load(folder).parameters, model.parameters
    same = own.keys() == given.keys() and all(
        np.array_equal(own[name], array) for name, array in given.items()
    )
    return folder if same else None


def _kept(folder: Path | None, name: str) -> dict[str, Any]:
    """What a file of a folder holds; nothing where there is none."""
    if folder is None or not (folder / name).is_file():
        return {}
    found: dict[str, Any] = json.loads((folder / name).read_bytes())
    return found


def _story(model: Model, story: dict[str, Any]) -> dict[str, Any]:
    """A story as the page has it."""
    trace: Trace = model.trace(story["sentence"], names=["pattern"])
    places = [places_in(trace, model, word, "play", "hide") for word in story["hide"]]
    found: dict[str, Any] = {"text": story["sentence"]}
    if places:
        found["hide"] = [place for each in places for place in each]
    if story["ablate"]:
        found["ablate"] = story["ablate"]
    return found | {
        "change": run_name({name: story[name] for name in ("ablate", "hide")}),
        **{when: list(story[when].values()) for when in ("before", "after")},
        "why": story["reason"],
    }


SERVED = f"{POLICY}; connect-src 'self'"  # of a page that asks the server it comes from


def served_page(model: Model, scales: Sequence[tuple[str, float]], *, plain: bool) -> str:
    """The page, as a whole document.

    Args:
        model: what the server computes with.
        scales: of each layer what is multiplied to scale its scores, and the model's own scale.
        plain: whether scores are products of queries and keys, and nothing else, in every layer.
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
        f"{template('key_form.html')}\n{fragment(payload, '', about_model(model))}\n"
        f'<script type="application/json" id="qkv-served">{script_json(about)}</script>\n'
        f"{script(bundle('server.js'), call)}\n"
    )
    return document(model.name, body, "auto", SERVED, wide=True)


def about_of(model: Model, scales: Sequence[tuple[str, float]], plain: bool) -> dict[str, Any]:
    """What a page is told of a model: `Served` of assets/engine/server.js."""
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
    """What the page begins with: a text, a place in it, and the word that the button hides."""
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


FILE = "stories.json"  # beside the model, where `training.stories` has put it


@dataclass(frozen=True)
class Story:
    """A sentence, what is taken from it or from the model, and what that does to the guess.

    Attributes:
        sentence: with a mask token where a word is missing.
        hide: words that no token may look at.
        ablate: heads that the model goes without, as (layer, head).
        before: the model's first guess.
        after: its first guess then.
        reason: why, in a sentence.
    """

    sentence: str
    hide: tuple[str, ...]
    ablate: tuple[tuple[int, int], ...]
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Stories:
    """Those that were chosen, and out of how many, so that nobody takes them for what is usual.

    Attributes:
        told: they.
        searched: in how many sentences they were searched.
        found: in how many of these one edit changes the guess.
    """

    told: tuple[Story, ...]
    searched: int
    found: int


def stories() -> Stories:
    """The five stories of the model that comes with qkv, as its card has them.

    Chosen, as the clearest that a reader found, from what a search found in thousands of sentences:
    they show what the model can do, and not what it usually does.

    >>> kept = stories()
    >>> len(kept.told) <= kept.found <= kept.searched
    True
    >>> import qkv
    >>> model = qkv.load("books")
    >>> all(model.predict(one.sentence, 1)[0][0][0] == one.before for one in kept.told)
    True
    """
    return read_stories(shipped()[DEFAULT])


def read_stories(folder: Path) -> Stories:
    """Those that the folder of a model has."""
    kept: dict[str, Any] = json.loads((folder / FILE).read_bytes())
    told = tuple(
        Story(
            sentence=one["sentence"],
            hide=tuple(one["hide"]),
            ablate=tuple((layer, head) for layer, head in one["ablate"]),
            before=one["before"]["word"],
            after=one["after"]["word"],
            reason=one["reason"],
        )
        for one in kept["stories"]
    )
    return Stories(told, kept["searched"], kept["found"])
