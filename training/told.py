"""Store the stories of a model: sentences in which one edit changes the model's guess.

`training.stories` finds the stories and `training.ship` copies them. A model's folder holds the
stories in stories.json and, as a table, in its card:

    {"searched": 1800, "found": 90, "stories": [{
        "sentence": "A kitten is a young [MASK].", "hide": ["kitten"], "ablate": [],
        "before": {"word": "cat", "probability": 0.31},
        "after": {"word": "bird", "probability": 0.12},
        "reason": "A kitten is a young cat."}]}

The file also contains the number of searched sentences and the number of found stories, so that
readers do not think that five chosen stories are typical.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import qkv
from qkv.files import replacing
from qkv.see.page.play import FILE

STORIES = FILE  # the file that views read
NONE: dict[str, Any] = {"searched": 0, "found": 0, "stories": []}
_HEADING = "## What one word, or one head, does"
_SECTION = """{heading}

A search (`training/stories.py`) masked each word and ablated each head in turn. It found clear
changes of the first guess in {found:,} of {searched:,} sentences, and a reader chose the clearest
for the table. So the table shows what the model can do, and not what it usually does.
`model.predict(sentence, hide=..., ablate=...)` returns the same guesses; their probabilities are in
brackets.

| sentence | first guess | edit | first guess after the edit | why |
| --- | --- | --- | --- | --- |
{rows}

"""


def story(model: qkv.Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """Make a story for the file, with a model's guesses.

    Args:
        model: the model whose guesses the story shows.
        given: a dict with the keys "sentence", "hide" (a list of words), "ablate" (a list of heads)
            and "reason".
    """
    edit = {name: given[name] for name in ("hide", "ablate")}
    kept = {"sentence": given["sentence"], **edit}
    for name, options in (("before", {}), ("after", edit)):
        [[(word, probability)]] = model.predict(given["sentence"], top_k=1, **options)
        kept[name] = {"word": word, "probability": round(probability, 3)}
    return kept | {"reason": given["reason"]}


def kept_in(folder: Path) -> dict[str, Any]:
    """Read the stories of a model's folder, if the folder has stories."""
    path = folder / STORIES
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else NONE
    return found


def again(model: qkv.Model, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stories in which the model makes the stored guesses; update the probabilities."""
    told = [now for one in kept["stories"] if (now := _told(model, one)) is not None]
    return {**kept, "stories": told}


def _told(model: qkv.Model, one: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a story with the probabilities of the given model, or None.

    The result is None if a guess differs from the stored guess. It is also None if the model does
    not have the story's head, or if the model's vocabulary lacks a word of the story.
    """
    try:
        now = story(model, one)
    except ValueError:  # the head does not exist, or the vocabulary lacks a word
        return None
    return now if all(now[x]["word"] == one[x]["word"] for x in ("before", "after")) else None


def keep(folder: Path, kept: Mapping[str, Any]) -> None:
    """Write stories into a model's folder, and into the card in the folder, if there is a card."""
    with replacing(folder / STORIES) as file:
        file.write((json.dumps(kept, indent=2) + "\n").encode())
    card = folder / "README.md"
    if card.exists():
        text = in_card(card.read_text(encoding="utf-8"), kept)
        with replacing(card) as file:
            file.write(text.encode())


def in_card(card: str, kept: Mapping[str, Any]) -> str:
    r"""Insert the section of stories before a card's licence, and remove an older section.

    >>> in_card("# Model\n\n## Licence\n\nFree.\n", NONE)
    '# Model\n\n## Licence\n\nFree.\n'
    """
    rest = re.sub(rf"^{re.escape(_HEADING)}\n.*?(?=^## |\Z)", "", card, flags=re.M | re.S)
    before, licence, after = rest.partition("## Licence\n")
    return before + section(kept) + licence + after


def section(kept: Mapping[str, Any]) -> str:
    """Return the section of stories for a card."""
    if not kept["stories"]:
        return ""
    rows = [
        f"| {one['sentence']} | {_guess(one['before'])} | {_edit(one)} | {_guess(one['after'])} "
        f"| {one['reason']} |"
        for one in kept["stories"]
    ]
    counts = {name: kept[name] for name in ("found", "searched")}
    return _SECTION.format(heading=_HEADING, rows="\n".join(rows), **counts)


def _guess(one: Mapping[str, Any]) -> str:
    return f"{one['word']} ({one['probability']:.2f})"


def _edit(one: Mapping[str, Any]) -> str:
    heads = [f"without head {layer}.{head}" for layer, head in one["ablate"]]
    return ", ".join([*(f'"{word}" hidden' for word in one["hide"]), *heads])
