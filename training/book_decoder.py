"""Train the decoder that ships: `python -m training.book_decoder BOOKS -o DIR`.

It reads passages of books, WordNet's examples and its definitions, and learns from the first step
on to go on with what came before: tokens drawn at random that come twice, and sentences that do.

DIR is then a run of `qkv.learn`; `--resume` goes on with one that was stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.learn import Causal, Network, Part, Schedule, Sequences, Trained, fresh_model, train
from qkv.text import Tokenizer
from training import books, command
from training.decoder import Recipe as Shape
from training.decoder import end_of, tokenizer_of
from training.induction import Repeats
from training.muon import Muon
from training.reading import Mixed, cleaned
from training.running import kept_tokenizer, run
from training.wordnet import documents, examples, read

NAME = "books-decoder"
STEPS = 6000
LOWER = 0.3  # of the texts, whose first sentence is in small letters, as people type
TWICE = 0.04  # of the sentences that come twice, as a share of the passages
_SHARES = {"passages": 0.82, "examples": 0.1, "documents": 0.05, "twice": 0.03}


@dataclass(frozen=True)
class Recipe(Shape):
    """What the model is, and how it learns.

    What is not named here is as in `training.decoder.Recipe`.

    Attributes:
        after: the folder of a model of the same shape that it goes on from; fresh unless given.
        copies: the weight of the loss on tokens drawn at random that come twice.
        texts: how many such texts a step has.
        products: as for `qkv.learn.train`.
    """

    layers: int = 5
    held_out: int = 1
    tokens: int = 4096
    rate: float = 3e-3
    warmup: float = 0.02
    copies: float = 0.1
    texts: int = 6
    after: str = ""
    products: str = "bfloat16"


def make(
    recipe: Recipe,
    source: Path,
    wordnet_folder: Path,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    resume: bool = False,
    snapshots: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Trained:
    """Train it.

    Args:
        recipe: what it is.
        source: of the books, as for `training.books.read`.
        wordnet_folder: where WordNet's files are.
        folder: of the run.
        steps: as for `qkv.learn.train`, and so are the next three.
        minutes: how long it may take.
        resume: go on with the run in the folder.
        snapshots: after which steps a copy is kept.
        tokenizer: of an earlier run, to have that again; trained unless given.
    """
    kinds = texts(source, wordnet_folder, recipe)
    before = qkv.load(recipe.after, dtype=np.float32) if recipe.after else None
    if before is not None:
        tokenizer = before.tokenizer
    tokenizer = kept_tokenizer(
        folder,
        resume,
        tokenizer,
        lambda: tokenizer_of(
            [*kinds["passages"][::4], *kinds["examples"], *kinds["documents"][::4]],
            recipe.vocabulary,
        ),
    )
    mixed = Mixed(
        {
            name: Sequences(sequences(kind, tokenizer, recipe.length), seed=recipe.seed)
            for name, kind in kinds.items()
        },
        _SHARES,
    )
    if before is None:
        before = fresh_model(recipe.config(tokenizer), tokenizer, seed=recipe.seed, name=NAME)
    network = Network(before)
    return train(
        network,
        [
            Part(Causal(mixed, tokens_per_step=recipe.tokens)),
            Part(Repeats(len(tokenizer), recipe.length // 2, recipe.texts), recipe.copies),
        ],
        folder=folder,
        steps=steps,
        minutes=minutes,
        schedule=Schedule(recipe.rate, warmup=recipe.warmup),
        optimizer=Muon(network),
        seed=recipe.seed,
        resume=resume,
        snapshots=snapshots,
        settings={"recipe": asdict(recipe)},
        products=recipe.products,
    )


def texts(source: Path, wordnet_folder: Path, recipe: Recipe) -> dict[str, list[str]]:
    """All that is read, by kind."""
    rng = np.random.default_rng(recipe.seed)
    wordnet = cleaned(read(wordnet_folder, kept=recipe.held_out))
    passages = [text for _, found in books.read(source, ["train"]) for text in joined(found, rng)]
    alone = [one if one[-1] in ".?!" else f"{one}." for one in examples(wordnet)]
    return {
        "passages": passages,
        "examples": alone,
        "documents": [f"{one}." for one in documents(wordnet) if not one.startswith(":")],
        "twice": twice(passages, rng, round(TWICE * len(passages))),
    }


def joined(passages: Iterable[Sequence[str]], rng: np.random.Generator) -> Iterator[str]:
    """Paragraphs that follow one another as texts of 60 to 120 words; a long one is cut.

    The first sentence of some is in small letters.
    """
    text: list[str] = []
    count = 0
    for passage in passages:
        for sentence in passage:
            if not text and rng.random() < LOWER:
                sentence = sentence.lower()
            text.append(sentence)
            count += len(sentence.split())
            if count >= 90:
                yield " ".join(text).replace(" \n ", "\n").strip()
                text, count = [], 0
        if count >= 50:
            yield " ".join(text).replace(" \n ", "\n").strip()
            text, count = [], 0
        elif text:
            text.append("\n")
    if text:
        yield " ".join(text).replace(" \n ", "\n").strip()


def twice(passages: Sequence[str], rng: np.random.Generator, count: int) -> list[str]:
    """Beginnings of passages that come twice."""
    found = []
    for at in rng.choice(len(passages), count):
        words = passages[at].split(" ")[: int(rng.integers(5, 40))]
        found.append(" ".join([*words, *words]))
    return found


def sequences(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> list[Array]:
    """Each text as token ids with its end; what is too long goes on in another sequence."""
    end = np.array([end_of(tokenizer)], np.int32)
    found: list[Array] = []
    for ids in tokenizer.ids_batch(texts):
        whole = np.concatenate([ids, end])
        found += [
            whole[begin : begin + length + 1]
            for begin in range(0, len(whole), length)
            if begin == 0 or len(whole) - begin > length // 4
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    run("training.book_decoder", __doc__, Recipe, STEPS, make, arguments, reads_books=True)


if __name__ == "__main__":
    command(main)
