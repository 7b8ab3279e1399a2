"""What the page of `play` reads."""
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

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.models.files.find import shipped
from qkv.see.analysis.inputs import places_in
from qkv.see.analysis.stories import FILE as STORIES
from qkv.see.analysis.words import FUNCTION_WORDS, LEFT_OVER, run_name
from qkv.trace import Trace

if TYPE_CHECKING:
    from qkv.models import Model

ROLES, CARDS = "roles.json", "cards.json"  # beside a model that comes with qkv


# What a page opens on where no text is given, with the model's own mask, and the word to hide.
TEXT, HIDDEN = "She drank a glass of {}.", "glass"
OPENING = "She opened the door and"  # the same of a decoder, which goes on from it
DECODER = "books-decoder"  # stands beside the default encoder


def known_of(model: Model) -> dict[str, Any]:
    """The stories, the roles and the cards of a model, where it is one that came with them."""
    folder = _folder_of(model)
    stories = _kept(folder, STORIES).get("stories", [])
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
    from qkv.models import load

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
