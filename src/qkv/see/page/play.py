"""The data for the page of `play`; the page may be a file or come from a server."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from qkv.models import Model, load
from qkv.models.files.find import DEFAULT, shipped_models
from qkv.see.analysis import FUNCTION_WORDS, LEFT_OVER, positions_in, run_name
from qkv.see.page import html
from qkv.see.page.payload import payload_of
from qkv.trace import Trace

# The entries of the payload of `play`. The entry `texts` is empty, because the page computes the
# weights itself by running the model. The model and its script are a separate part after the
# payload (see page/engine.py).
#
#   `start` is the first state of the page (START).
#   `state` is the part after the # of an address, or empty. The page opens in this state.
#   `stories` is a list of STORY from the model's card.
#   `roles` maps "layer.head" to the head's role and its score for this role.
#   `cards` lists the cards of the first lesson; see training/play_cards.py.
#   `game` has the sentences of a guessing game, and the book that they come from; see
#       training/game.py.
#   `called` is the model's name for readers, `read` is the rest of a sentence about the texts that
#       the model has read, and `shelf` lists sentences to try, each with its `kind` and its `text`.
#       They are from speakers.toml; for another model, `read` says what the model's config says.
#   `untrained` is true if the model is untrained.
#   `little` holds two lists of tokens, which the rule for choosing a head ignores: function words
#   in lower case (`words`), and parts of words around an apostrophe (`pieces`), such as the "t" of
#   "don't".
#   `next` is true if the model predicts the next token.
#   `guesses` is true if the model predicts masked words.
#   `mask` is the mask token, or null.
#
# A page of findings has two more entries.
#
#   `findings` holds the content of each finding's file.
#   `parts` lists the parts of the page in order. A part is the index of a finding, or a placeholder
#   for HTML of the article.
#
# A page with several models has two more entries.
#
#   `side` is the name of the first model on the page (see `sides_of` of page/engine.py).
#   `others` lists the payloads of the other models, with the same entries except `others`.
#
# START is the first state of the page. If `layer`, `head` and `said` are missing, the page chooses
# a head.
#
#   `text` is a string.
#   `edits` is a list of edits.
#   `position` is the position at which the model guesses a word.
#   `layer` and `head` are numbers.
#   `said` is a sentence about this head.
#   `query` is the position of a token, or null.
#   `hide` lists the positions of one word. For the first text, the page offers to hide this word
#       with one click.
#   `view` is the first screen, which is "front", "findings" or "lab" (the default).
#
# STORY is a sentence in which an intervention changes the guess.
#
#   `text` is a string.
#   `hide` lists the positions of hidden tokens.
#   `ablate` is a list of [layer, head]. A story has either `hide` or `ablate`.
#   `change` is the intervention in words.
#   `before` and `after` are each a word and its probability.
#   `why` is the reason for the change.


# Files in the folder of a model that comes with qkv.
ROLES, CARDS, GAME = "roles.json", "cards.json", "game.json"
SPEAKERS: dict[str, Any] = tomllib.loads(
    files("qkv.see.page").joinpath("speakers.toml").read_text("utf-8")
)


# TEXT is the default text of a page; {} stands for the model's mask. HIDDEN is the word to hide.
TEXT, HIDDEN = "She drank a glass of {}.", "glass"
OPENING = "She opened the door and"  # The default text for a decoder.
DECODER = "books-decoder"  # The decoder on a page whose encoder is the default model.


def known_of(model: Model) -> dict[str, Any]:
    """Return the entries of PLAY that describe a model; some exist only if it comes with qkv."""
    folder = _folder_of(model)
    stories = _read_json(folder, FILE).get("stories", [])
    return {
        "next": model.generates,
        "guesses": model.mask is not None,
        "mask": model.mask,
        "stories": [_story(model, story) for story in stories],
        "roles": _roles(model, folder),
        "cards": _read_json(folder, CARDS).get("cards", []),
        "game": _read_json(folder, GAME),
        **_speaker(model, folder),
        "untrained": model.network.untrained,
        "little": {"words": sorted(FUNCTION_WORDS), "pieces": sorted(LEFT_OVER)},
    }


def _folder_of(model: Model) -> Path | None:
    """Return a model's folder if the model comes with qkv and is unchanged, else None."""
    folder = shipped_models().get(model.name)
    if folder is None:
        return None
    original, parameters = load(folder).parameters, model.parameters
    same = original.keys() == parameters.keys() and all(
        np.array_equal(original[name], array) for name, array in parameters.items()
    )
    return folder if same else None


def _read_json(folder: Path | None, name: str) -> dict[str, Any]:
    """Read a JSON file in a folder; return an empty object if the file does not exist."""
    file = folder and folder / name
    return dict(json.loads(file.read_bytes())) if file and file.is_file() else {}


def _is_described(model: Model, folder: Path | None) -> bool:
    """Return whether speakers.toml and roles.json describe this model."""
    return bool(folder) or SPEAKERS.get(model.name, {}).get("sha256") == model.sha256


def _roles(model: Model, folder: Path | None) -> dict[str, Any]:
    """Return the measured roles of a model's heads; training/role_file.py writes both files."""
    measured = json.loads(files("qkv.see.page").joinpath(ROLES).read_text("utf-8"))
    own = measured.get(model.name, {}) if _is_described(model, folder) else {}
    return _read_json(folder, ROLES) or dict(own)


def _speaker(model: Model, folder: Path | None) -> dict[str, Any]:
    """Return the entries of PLAY that describe the model to readers."""
    if _is_described(model, folder):
        facts = SPEAKERS[model.name]
        shelf = [{name: one[name] for name in ("kind", "text")} for one in facts["shelf"]]
        return {"called": facts["called"], "read": f"has read {facts['read']}", "shelf": shelf}
    count = sum(array.size for array in model.parameters.values())
    layers = f"{model.num_layers} layer{'s' * (model.num_layers != 1)} of {model.num_heads} heads"
    kind = model.config.get("model_type")
    what = "untrained" if model.network.untrained else "qkv does not know what it has read"
    read = f"is of type {kind}, with {layers} and {count:,} parameters; {what}"
    return {"called": model.name, "read": read, "shelf": []}


def _story(model: Model, story: dict[str, Any]) -> dict[str, Any]:
    """Convert a story from stories.json to the format of the page (STORY above)."""
    trace: Trace = model.trace(story["sentence"], names=["pattern"])
    positions = [positions_in(trace, model, word, "hide") for word in story["hide"]]
    edits: dict[str, Any] = (
        {"hide": [position for word in positions for position in word]} if positions else {}
    )
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


SERVED = f"{html.POLICY}; connect-src 'self'"  # the policy of a page whose server runs the model


def served_page(model: Model, scales: Sequence[tuple[str, float]], *, plain: bool) -> str:
    """Write an HTML page for a model that runs on a server.

    Args:
        model: the model that the server runs.
        scales: the results of `scale_in` for the layers. Each result is a name and a number. The
            edit "scale" multiplies the activation that has this name. The number is the model's
            usual scale of the scores.
        plain: whether the scores of every layer are products of queries and keys, without other
            terms.
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
    """Describe a model for the page as a `Served` (see assets/engine/server.js)."""
    gives = model.can("predict")
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
        "ends": sorted(model.eos_ids) if model.generates else [],
        "plain": plain,
        "scales": scales,
    }


def _start(model: Model, mask: str | None) -> dict[str, Any]:
    """Choose the text that the page shows first, a position in it, and the word to hide first."""
    text = TEXT.format(mask or "head")
    tokens = model.tokenize(text)
    first = text.find(HIDDEN)
    hide = [
        position
        for position, (begin, end) in enumerate(tokens.offsets)
        if begin < first + len(HIDDEN) and end > first and not tokens.special[position]
    ]
    position = tokens.tokens.index(mask) if mask in tokens.tokens else None
    return {"text": text, "edits": [], "position": position, "query": position, "hide": hide}


FILE = "stories.json"  # `training.stories` writes this file to the model's folder


@dataclass(frozen=True)
class Story:
    """A sentence, an intervention, and its effect on the guess.

    Attributes:
        sentence: the sentence, with a mask token for the missing word.
        hide: the words that no token may attend to.
        ablate: the ablated heads, as (layer, head).
        before: the model's first guess.
        after: the model's first guess after the intervention.
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
    """The chosen stories, and the size of the search, which shows how rare such stories are.

    Attributes:
        told: the stories.
        searched: the number of sentences searched.
        found: the number of sentences in which one intervention changes the guess.
    """

    told: tuple[Story, ...]
    searched: int
    found: int


def stories() -> Stories:
    """Read the five stories in the card of the model that comes with qkv.

    A person chose the clearest stories from a search of thousands of sentences. The stories show
    abilities of the model, not its usual behaviour.

    >>> kept = stories()
    >>> len(kept.told) <= kept.found <= kept.searched
    True
    >>> import qkv
    >>> model = qkv.load("books")
    >>> all(model.predict(story.sentence, 1)[0][0][0] == story.before for story in kept.told)
    True
    """
    return read_stories(shipped_models()[DEFAULT])


def read_stories(folder: Path) -> Stories:
    """Read the stories in the folder of a model."""
    data: dict[str, Any] = json.loads((folder / FILE).read_bytes())
    records = tuple(
        Story(
            sentence=story["sentence"],
            hide=tuple(story["hide"]),
            ablate=tuple((layer, head) for layer, head in story["ablate"]),
            before=story["before"]["word"],
            after=story["after"]["word"],
            reason=story["reason"],
        )
        for story in data["stories"]
    )
    return Stories(records, data["searched"], data["found"])
