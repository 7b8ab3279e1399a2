"""The sparse autoencoder of docs/features.md: `python -m training.features BOOKS` trains it.

BOOKS is as for `training.books`. The autoencoder is of a layer's result in the decoder that ships.
The layer is the one whose vectors the token alone explains least, on the books that are kept for
choices: there most is left for features of contexts. The autoencoder then learns from the books
that the decoder was trained on, and is measured on books that neither has read. features.csv is
emptied, since names belong to the weights.

docs/data gets the folder books-decoder-sae as SAELens reads it, sae-texts.json, `TEXTS` passages of
the held-out books that are drawn by lot, and sae.json, what was measured.

`python -m training.features` draws `DRAWN` of the features by lot that fire in at least `FIRES` of
these passages, prints where each is largest, and puts the names into sae.json that features.csv has
for them. They were given on reading these passages: a feature has one where at least `FIT` of its
`TOP` passages fit it. The page shows the first `SHOWN` that have one.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.circuits import SAE, scan
from qkv.files import replacing
from training import books, command

NAME = "books-decoder"
DATA = Path(__file__).resolve().parents[1] / "docs" / "data"
FOLDER, RESULTS, PASSAGES = (
    DATA / one for one in ("books-decoder-sae", "sae.json", "sae-texts.json")
)
NAMES = Path(__file__).with_suffix(".csv")
FEATURES, K, TOKENS = 1024, 16, 1_000_000
MEASURED = 1000  # passages that are measured
TESTED = 40  # of the passages that ship, which the tests measure again
SHORTEST, LONGEST = 80, 360  # letters of a passage
TEXTS, DRAWN, FIRES, TOP, FIT, SHOWN = 300, 60, 8, 8, 7, 12
OFTEN = 10  # occurrences of a token that counts where the share of tokens is measured


def passages(runs: Iterable[Sequence[str]]) -> Iterator[str]:
    """Sentences that follow one another, as texts of `SHORTEST` to `LONGEST` letters.

    >>> long = "He looked at the sea, and thought of the ship that had left him. " * 3
    >>> [len(text) for text in passages([[long.strip(), long.strip(), "No."], ["Too short."]])]
    [194, 198]
    """
    for run in runs:
        text = ""
        for sentence in [*run, ""]:
            longer = f"{text} {sentence}".strip()
            if sentence and len(longer) <= LONGEST:
                text = longer
                continue
            if SHORTEST <= len(text) <= LONGEST:
                yield text
            text = sentence


def drawn(source: Path, part: str, seed: int = 0) -> list[str]:
    """All passages of a part of the books, in an order drawn by lot."""
    found = [text for _, runs in books.read(source, [part]) for text in passages(runs)]
    return [found[one] for one in np.random.default_rng(seed).permutation(len(found))]


def whole(model: qkv.Model, texts: Sequence[str]) -> list[str]:
    """The texts that the model reads to their end."""
    most = model.max_seq_length or np.inf
    return [text for text in texts if len(model.tokenize(text).ids) <= most]


def of_tokens(rows: Array, ids: Array) -> float:
    """The share of the variance of vectors (n, D) that their tokens (n,) explain, of frequent ones.

    >>> of_tokens(np.tile([[1.0, 0.0], [3.0, 0.0]], (10, 1)), np.tile([7, 8], 10))
    1.0
    """
    _, which, counts = np.unique(ids, return_inverse=True, return_counts=True)
    there = counts[which] >= OFTEN
    _, which = np.unique(which[there], return_inverse=True)
    rows = rows[there].astype(np.float64)
    sums = np.zeros((which.max() + 1, rows.shape[1]))
    np.add.at(sums, which, rows)
    means = sums / np.bincount(which)[:, None]
    left, whole = (np.square(rows - mean).sum() for mean in (means[which], rows.mean(0)))
    return float(1 - left / whole)


def rows_at(model: qkv.Model, texts: Sequence[str], at: tuple[str, int]) -> tuple[Array, Array]:
    """The vectors of texts (n, D), and their tokens (n,)."""
    trace = model.trace(texts, names=[at])
    there = np.arange(trace[at].shape[1]) < trace.lengths[:, None]
    ids = np.concatenate([model.tokenize(text).ids for text in texts])
    return trace[at][there], ids


def measured(model: qkv.Model, sae: SAE, texts: Sequence[str]) -> dict[str, float]:
    """What `SAE.evaluate` gives, and the loss with 0 in the place of the activation."""
    found = sae.evaluate(model, texts)
    zero = np.zeros((sae.dim, sae.dim))
    without = SAE(zero, zero, at=sae.at).evaluate(model, texts)["loss_spliced"]
    gap = without - found["loss"]
    found["loss_zero"] = without
    found["recovered_of_zero"] = (without - found["loss_spliced"]) / gap
    return {name: round(float(value), 4) for name, value in found.items()}


def made(source: Path, tokens: int = TOKENS, say: Callable[[str], None] = print) -> None:
    """Choose the layer, train, measure, and write what ships."""
    model = qkv.load(NAME)
    train, choose, test = (drawn(source, part) for part in ("train", "choose", "test"))
    choose, held = whole(model, choose[:TEXTS]), whole(model, test[:MEASURED])
    shares = [
        round(of_tokens(*rows_at(model, choose, ("resid_post", layer))), 4)
        for layer in range(model.num_layers)
    ]
    layer = int(np.argmin(shares))
    sae = SAE.train(model, train, at=("resid_post", layer), features=FEATURES, k=K, tokens=tokens)
    sae.save(FOLDER, dtype="float16")
    sae = SAE.load(FOLDER)
    kept = written({
        "model_sha256": model.sha256,
        "at": sae.at,
        "layer": layer,
        "features": FEATURES,
        "k": K,
        "training_tokens": tokens,
        "of_tokens": shares,
        "held_out": {
            "passages": len(held),
            "tokens": sum(len(model.tokenize(text).ids) for text in held),
            **measured(model, sae, held),
        },
        "shipped_texts": {"passages": TESTED, **measured(model, sae, held[:TESTED])},
    })  # fmt: skip
    write(PASSAGES, held[:TEXTS])
    NAMES.write_text("feature,name\n", encoding="utf-8")
    say(json.dumps(kept["held_out"]))


def named(found: Any, names: Mapping[int, str], seed: int = 0) -> dict[str, Any]:
    """Which features of a scan are drawn, how many of them have a name, and which are shown."""
    often = [number for number in range(len(found)) if len(found.examples(number)) >= FIRES]
    chosen = np.random.default_rng(seed).choice(often, DRAWN, replace=False).tolist()
    own = [number for number in chosen if names.get(number)]
    return {
        "seed": seed,
        "fire_often": len(often),
        "drawn": chosen,
        "named": len(own),
        "unnamed": len(chosen) - len(own),
        "shown": [
            {
                "feature": number,
                "name": names[number],
                "density": round(float(found.density[number]), 5),
                "examples": [
                    {
                        "value": round(one.value, 2),
                        "text": one.number,
                        "token": one.tokens[one.position],
                        "position": one.position,
                    }
                    for one in found.examples(number)[:TOP]
                ],
            }
            for number in own[:SHOWN]
        ],
    }


def read(say: Callable[[str], None] = print) -> None:
    """Print where the drawn features are largest, and keep their names."""
    with NAMES.open(encoding="utf-8", newline="") as file:
        names = {int(row["feature"]): row["name"] for row in csv.DictReader(file)}
    texts = json.loads(PASSAGES.read_bytes())
    found = scan(qkv.load(NAME), texts, of=SAE.load(FOLDER), top=TOP)
    reading = named(found, names)
    for number in reading["drawn"]:
        say(f"\n{number} {found.density[number]:.2%} {names.get(number, '')}")
        for one in found.examples(number):
            at, tokens = one.position, one.tokens
            around = [*tokens[max(at - 12, 0) : at], f"[{tokens[at]}]", *tokens[at + 1 : at + 6]]
            say(f"  {one.value:6.1f}  {''.join(around).replace('Ġ', ' ')}")
    written({"reading": reading})


def before() -> dict[str, Any]:
    """What sae.json has."""
    found: dict[str, Any] = json.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    return found


def written(more: Mapping[str, Any]) -> dict[str, Any]:
    """Put values into sae.json."""
    found = {**before(), **more}
    write(RESULTS, found)
    return found


def write(path: Path, content: Any) -> None:
    """Write JSON, one entry a line."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Train it, or read its features."""
    parser = argparse.ArgumentParser(prog="python -m training.features", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "books", type=Path, nargs="?", help="a clone of the repository, or an archive"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="that it learns from")
    given = parser.parse_args(arguments)
    if given.books is None:
        read(say)
    else:
        made(given.books, given.tokens, say)


if __name__ == "__main__":
    command(main)
