"""The sparse autoencoder of docs/features.md: `python -m training.features BOOKS` trains it.

BOOKS is as for `training.books`. The autoencoder reads the output of one layer of the included
decoder. The command chooses the layer whose vectors depend most on the context. The layers are
compared on the books that are kept for such choices. The autoencoder learns from the decoder's
training books, and is measured on books that neither the decoder nor the autoencoder has read. The
command empties features.csv, because the names in this file belong to the old weights.

The command writes into docs/data:

- the folder books-decoder-sae, in the format of SAELens;
- the file sae-texts.json, with random passages of the held-out books (their number is `TEXTS`);
- the file sae.json, with the measurements.

`python -m training.features` considers the features that fire in at least `FIRES` of these
passages, and draws `DRAWN` of these features at random. For each drawn feature, the command prints
the passages in which the feature is largest. The command also copies the names of features from
features.csv into sae.json. A reader of these passages chose the names. A feature has a name only if
the name fits at least `FIT` of the feature's `TOP` passages. The page shows the first `SHOWN` named
features.
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
MEASURED = 1000  # the number of passages for the measurement
TESTED = 40  # the number of included passages on which the tests repeat the measurement
SHORTEST, LONGEST = 80, 360  # the minimum and maximum number of letters of a passage
TEXTS, DRAWN, FIRES, TOP, FIT, SHOWN = 300, 60, 8, 8, 7, 12
OFTEN = 10  # `of_tokens` leaves out tokens that occur fewer times than this


def passages(runs: Iterable[Sequence[str]]) -> Iterator[str]:
    """Join consecutive sentences into texts of `SHORTEST` to `LONGEST` letters.

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
    """Return the passages of all books in the part `part`, in random order."""
    found = [text for _, runs in books.read(source, [part]) for text in passages(runs)]
    return [found[one] for one in np.random.default_rng(seed).permutation(len(found))]


def whole(model: qkv.Model, texts: Sequence[str]) -> list[str]:
    """Return the texts that are not longer than the model's limit."""
    most = model.max_seq_length or np.inf
    return [text for text in texts if len(model.tokenize(text).ids) <= most]


def of_tokens(rows: Array, ids: Array) -> float:
    """Return the share of the variance of `rows` (n, D) that the tokens' mean vectors explain.

    Tokens that occur fewer than `OFTEN` times do not count.

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
    """Return the vectors of texts (n, D), and their tokens (n,)."""
    trace = model.trace(texts, names=[at])
    there = np.arange(trace[at].shape[1]) < trace.lengths[:, None]
    ids = np.concatenate([model.tokenize(text).ids for text in texts])
    return trace[at][there], ids


def measured(model: qkv.Model, sae: SAE, texts: Sequence[str]) -> dict[str, float]:
    """Return the result of `SAE.evaluate`, with measurements of a zeroed activation.

    "loss_zero" is the model's loss in a run in which zeros replace the activation.
    "recovered_of_zero" is `(loss_zero - loss_spliced) / (loss_zero - loss)`.
    """
    found = sae.evaluate(model, texts)
    zero = np.zeros((sae.dim, sae.dim))
    without = SAE(zero, zero, at=sae.at).evaluate(model, texts)["loss_spliced"]
    gap = without - found["loss"]
    found["loss_zero"] = without
    found["recovered_of_zero"] = (without - found["loss_spliced"]) / gap
    return {name: round(float(value), 4) for name, value in found.items()}


def made(source: Path, tokens: int = TOKENS, say: Callable[[str], None] = print) -> None:
    """Choose the layer, train, measure, and write the included files."""
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
    """Choose features at random, and return a description of these features for sae.json.

    The description is the entry "reading" of this file. It lists the chosen features, counts those
    that have a name, and describes the first `SHOWN` named features.
    """
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
    """Print passages for features that are chosen at random; write the features' names to sae.json.

    For each of these features, the passages are those in which the feature is largest.
    """
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
    """Return the contents of sae.json."""
    found: dict[str, Any] = json.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    return found


def written(more: Mapping[str, Any]) -> dict[str, Any]:
    """Update values in sae.json."""
    found = {**before(), **more}
    write(RESULTS, found)
    return found


def write(path: Path, content: Any) -> None:
    """Write JSON with one entry on each line."""
    with replacing(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Train the autoencoder, or print its features."""
    parser = argparse.ArgumentParser(prog="python -m training.features", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "books", type=Path, nargs="?", help="a clone of the repository, or an archive"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="number of tokens to learn from")
    given = parser.parse_args(arguments)
    if given.books is None:
        read(say)
    else:
        made(given.books, given.tokens, say)


if __name__ == "__main__":
    command(main)
