"""The cards of the lesson, and float64 references for their probes."""

import json
from functools import cache
from typing import Any

import numpy as np

import qkv
from qkv.models.files.find import shipped_models

from . import edited

KEPT = json.loads((shipped_models()["books"] / "cards.json").read_text("utf-8"))


@cache
def run_of(text: str, edits: str) -> edited.Result:
    """Run the bundled model on a text in float64; edits are JSON, which can be cached."""
    model = qkv.load("books")
    return edited.run(model, model.tokenize(text).ids.tolist(), json.loads(edits))


def by_the_formula(card: dict[str, Any]) -> list[float]:
    """Return the float64 value of each probe of a card."""
    return _measured(json.dumps(card))


@cache
def _measured(card_: str) -> list[float]:
    card = json.loads(card_)
    words, position = qkv.load("books").tokenizer.vocabulary, card["before"]["position"]

    def run(edits: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        result = run_of(card["before"]["text"], json.dumps(edits))
        probabilities = np.exp(result.logits[position] - result.logits[position].max())
        return result.pattern, probabilities / probabilities.sum()

    measured = []
    for probe in card["probes"]:
        pattern, probabilities = run(probe["edits"])
        if probe["of"] == "weight":
            own = pattern[..., probe["query"], probe["keys"]].sum(-1)  # (layers, H)
            named = "head" in probe
            measured.append(own[probe["layer"], probe["head"]] if named else own.mean())
        elif probe["of"] == "probability":
            measured.append(probabilities[words[probe["word"]]])
        else:
            measured.append(np.abs(probabilities - run([])[1]).sum() / 2)
    return measured
