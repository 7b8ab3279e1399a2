"""Find the cards of the live page: a first lesson on attention, with twelve questions.

`python -m training.play_cards MODEL` finds and prints the cards. MODEL is a folder or a name; by
default, it is the included encoder. `--keep` writes the cards to cards.json in the model's folder,
for the page of `qkv.play`; `training.ship` also writes cards.json for a new model.
`training.lesson` contains the rules that find the examples, and `training.lesson_text` the texts.

The module searches the sentences of `stories.txt` (read by `training.frames`). A sentence may
become an example only if each of its words is one token, and if the model's first guess is one of
the words that `stories.txt` lists as right. The model must give this guess a probability of 2% or
more. If no sentence fits a card, the command leaves out the card and reports its name.

A card holds everything that the page needs to ask the question and to check the answer:

    {"name": "hide", "read": str, "ask": str, "options": [str, ...], "told": str,
     "before": STATE, "after": STATE, "probes": [PROBE, ...],
     "right": {"of": "largest", "among": [probe of each option]}
           or {"of": "change", "from": probe, "to": probe}}

    STATE = {"text", "edits", "position", "query", "layer", "head"} and more of the page's state
    PROBE = {"of": "weight", "edits", "query", "keys": [...], "layer"?, "head"?}
          | {"of": "probability", "edits", "word"}
          | {"of": "moved", "edits"}

The page shows the state "before" until the reader guesses, and then the state "after". Each probe
measures one number: a "weight" (the mean over all heads if "head" is missing), the "probability" of
a word at the position, or the probability that is "moved" to other words. The field "right" says
how to find the right option. If its "of" is "change", two probes are compared, and the card has
three options: less, as much, more.

In the texts of a card, a word between asterisks is a word of the sentence or of the vocabulary,
and {0} stands for the number that the first probe returns.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import qkv
from qkv.files import replacing
from qkv.models import Model
from qkv.see.page.play import CARDS
from training import command
from training.frames import candidates
from training.lesson import Card, Sentence, found, pool
from training.lesson_text import NAMES, write

PLACE = Path(__file__).resolve().parents[1] / "src" / "qkv" / "data" / "books"
AS_MUCH = 0.1  # changes below this number count as no change; cards.js has the same number


def lesson(model: Model) -> dict[str, Any]:
    """Return the cards of a model, and the number of sentences searched.

    >>> lesson(qkv.load("random"))["cards"]
    []
    """
    given = candidates()
    sentences = pool(model, given)
    examples = found(sentences)
    return {"searched": len(given), "pool": len(sentences), "cards": write(examples)}


def missing(kept: dict[str, Any]) -> list[str]:
    """Return the names of the cards without an example."""
    return [name for name in NAMES if name not in {card["name"] for card in kept["cards"]}]


def values(sentence: Sentence, card: Card) -> list[float]:
    """Measure the probes of a card."""
    _, before = sentence.run([])
    measured = []
    for probe in card["probes"]:
        pattern, probabilities = sentence.run(probe["edits"])
        if probe["of"] == "weight":
            heads = pattern
            if "head" in probe:
                heads = pattern[probe["layer"], probe["head"]][None, None]
            measured.append(float(heads[..., probe["query"], probe["keys"]].sum(-1).mean()))
        elif probe["of"] == "probability":
            measured.append(float(probabilities[sentence.vocabulary[probe["word"]]]))
        else:
            measured.append(float(abs(probabilities - before).sum() / 2))
    return measured


def right(card: Card, measured: Sequence[float]) -> int:
    """Return the index of a card's right option."""
    rule = card["right"]
    if rule["of"] == "largest":
        of = [measured[probe] for probe in rule["among"]]
        return of.index(max(of))
    by = measured[rule["to"]] - measured[rule["from"]]
    return 1 if abs(by) < AS_MUCH else 0 if by < 0 else 2


def keep(folder: Path, kept: dict[str, Any]) -> None:
    """Write the cards into the folder of a model, one card on each line."""
    cards = ",\n".join(json.dumps(card) for card in kept["cards"])
    counts = ", ".join(f'"{name}": {kept[name]}' for name in ("searched", "pool"))
    with replacing(folder / CARDS) as file:
        file.write(f'{{{counts}, "cards": [\n{cards}\n]}}\n'.encode())


def shown(model: Model, kept: dict[str, Any]) -> str:
    """Format the cards as plain text, with each answer and its numbers."""
    lines = [f"{len(kept['cards'])} cards, from {kept['pool']} of {kept['searched']} sentences"]
    lines += [f"not found: {', '.join(missing(kept))}"] if missing(kept) else []
    lines.append("")
    for number, card in enumerate(kept["cards"], 1):
        measured = values(Sentence.of(model, card["before"]["text"]), card)

        def filled(text: str, numbers: Sequence[float] = measured) -> str:
            return re.sub(r"\{(\d)\}", lambda mark: f"{numbers[int(mark[1])]:.3f}", text)

        own = right(card, measured)
        options = " | ".join(f"[{x}]" if k == own else x for k, x in enumerate(card["options"]))
        lines += [f"{number} {card['name']}: {card['before']['text']}", filled(card["read"])]
        lines += [card["ask"], options, filled(card["told"]), ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Find the cards of one model."""
    parser = argparse.ArgumentParser(prog="python -m training.play_cards", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model",
        nargs="?",
        default=str(PLACE),
        help="folder or name of a model (default: the included encoder)",
    )
    parser.add_argument("--keep", action="store_true", help="write the cards to cards.json")
    given = parser.parse_args(arguments)
    folder = Path(given.model)
    if given.keep and not folder.is_dir():
        raise ValueError(f"play_cards: {given.model} is not a folder; pass the folder of a model")
    model = qkv.load(given.model)
    kept = lesson(model)
    say(shown(model, kept))
    if given.keep:
        keep(folder, kept)


if __name__ == "__main__":
    command(main)
