"""Tests that the result of a text does not depend on how a call splits texts into batches."""

import numpy as np
import pytest

from ..support import close, padded

TEXTS = ["the cat sat on the mat.", "a dog ran", "the cat", "a b c the bank", "the dog sat ."]
LAST = ("resid_post", -1)
OPTIONS = {
    "zero": {"ablate": [(0, 1)]},
    "array": {"ablate": {(1, None): np.arange(4.0)}},
    "mean": {"ablate": {(0, 1): "mean", (1, 2): "mean"}},
    "word": {"hide": ["cat", 0]},
    "position": {"hide": [3, (2, 1, 1), (1, -1)]},
    "edit": {"edit": {("z", 1): lambda z: z / 3}},
}


def alone(model, options):
    """Run each text alone, and return the results.

    For mean ablation, first compute the mean of each ablated head over all tokens of all texts.
    Then ablate the head with this mean.
    """
    options = dict(options)
    if options == OPTIONS["mean"]:
        runs = [model.trace(text, names="z") for text in TEXTS]
        options["ablate"] = {
            (layer, head): np.concatenate([run["z", layer][0, :, head] for run in runs]).mean(0)
            for layer, head in options["ablate"]
        }
    found = []
    for text in TEXTS:
        tokens = model.tokenize(text).tokens
        own = dict(options)
        if "hide" in own:  # only what this text contains
            own["hide"] = [one for one in own["hide"] if has(tokens, one)]
        found.append(model.trace(text, names=LAST, **own)[LAST][0])
    return found


def has(tokens, one):
    if isinstance(one, str):
        return one in tokens
    positions = one[:2] if isinstance(one, tuple) else [one]
    return all(-len(tokens) <= position < len(tokens) for position in positions)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if other in (0, 1 + number % 2) else pytest.mark.attack)
        for number, name in enumerate(OPTIONS)
        for other, kind in enumerate(["modernbert", "llama", "albert"])
    ],
)
def test_a_text_gives_the_same_in_every_batch(model_of, kind, name):
    model, options = model_of(kind), OPTIONS[name]
    if kind == "llama" and name == "array":
        options = {"ablate": {(1, None): np.arange(6.0)}}
    expected = alone(model, options)
    for size in (None, 1, 2):
        trace = model.trace(TEXTS, names=LAST, batch_size=size, **options)
        for number, rows in enumerate(expected):
            close(trace[number][LAST][0], rows)
    ids = [model.tokenize(text).ids for text in TEXTS]
    if not any(isinstance(one, tuple) and -1 in one for one in options.get("hide", ())):
        seen = []

        def look(x):
            seen.append(x.copy())
            return x

        model(*padded(ids), **{**options, "edit": {**options.get("edit", {}), LAST: look}})
        for number, rows in enumerate(expected):
            close(seen[0][number, : len(rows)], rows)
    final = model.trace(TEXTS, **options)
    for size in (1, 64):
        vectors = model.encode(TEXTS, batch_size=size, output_value="token_embeddings", **options)
        for number, rows in enumerate(vectors):
            close(rows, final[number].hidden_states[-1][0])
    if name != "mean":
        for size in (1, 2, 5):
            stream = model.trace_stream(TEXTS, batch_size=size, names=LAST, **options)
            found = [trace[n][LAST][0] for trace in stream for n in range(len(trace))]
            for rows, wanted in zip(found, expected, strict=True):
                close(rows, wanted)
