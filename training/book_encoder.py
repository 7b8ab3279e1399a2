"""Train the encoder that ships: `python -m training.book_encoder BOOKS -o DIR`.

It goes on from an encoder that has read WordNet alone (`training.make`), and reads sentences of
books as people type them: short ones, half of them without their full stop. WordNet's examples and
documents stay in the mixture, for the words that books of before 1930 lack, and so do its senses.

DIR is then a run of `qkv.learn`; `--resume` goes on with one that was stopped.

What ships is made in seven runs, as `make model` does it. 3,000 content words of books for choices,
each hidden in its short sentence, tell how far each comes:

| run | what it adds | right |
| --- | --- | --- |
| 1 | books, after WordNet | 10.1% |
| 2 | short sentences for the most part, content words hidden sooner | 12.1% |
| 3, 4 | both after 2: clauses, and counts that teach (`Taught`) | 13.3%, 13.0%; their mean 14.0% |
| 5, 6 | both after that mean: gaps that counts can guess (`Guessed`) | 16.2%, 15.7% |
| 7 | after the mean of 3 to 6: more such gaps, for longer, and less for words in sight | 18.2% |

The mean of 3 to 6 names 15.8%, and in 31 of the 60 sentences for choices
(`training.fits --choose`) one of its five guesses fits, the most of all means that were tried (28
after run 2, 28 of the mean of 3 and 4, 26 of that of 5 and 6); the first fits in 13 (15, 9, 13).
In rows of int8, which run 7 goes on from, it names 15.7% and the first fits in 14.

The mean of run 7 and of that one ships. It names 18.1%, and one of its five guesses is right for
34.1% (run 7 alone: 33.5%, the mean of 3 to 6: 32.3%). Its chances are better than those of run 7
alone, too: the word that stands there costs it 5.91 nats, and run 7 alone 6.56 (before: 5.55). The
first fits in 14 of the 60 sentences, one of five in 29.

The counts alone, which fill more than the model does, name 16.8% of 1,200 of these words, and 23 of
the 60 sentences; one of five is right in 42 of these.

Two more runs from the model that ships changed little, so neither became part of it. In one, the
counts and the model before it taught the gaps that counts can guess (4,154 steps, 16.2 million
tokens): its mean with the shipped model names 18.8% of the words, one of five guesses is right for
35.2%, and one of five fits in 28 of the 60 sentences. The other read more senses, 48 uses a step
(3,369 steps, 11.6 million tokens): 18.9%, 35.2% and 29. A model of this size seems to have learned
from these books what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import printable
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.learn import Network, Part, Sequences, Trained, Words, fresh_model
from qkv.models.model import Model
from qkv.text import SubwordTokenizer, Tokenizer
from training import books, command
from training.copying import drawn, place_of
from training.muon import Muon
from training.neighbours import Neighbours, fitted
from training.objectives import (
    Guessed,
    Senses,
    Taught,
    Unseen,
    around,
    entries,
    logits_of,
    pieces_of,
    sentences,
)
from training.reading import Mixed, clauses, cleaned, typed
from training.running import kept_tokenizer, mean_of, run, trained
from training.vocabulary import commonest_of_books, with_whole_words
from training.wordnet import WordNet, documents, ended, examples, read

NAME = "books"
STEPS = 2869
FITTED = 800  # hidden words that the weights of the teacher are fitted to


@dataclass(frozen=True)
class Recipe:
    """What the model is, and how it learns.

    Attributes:
        after: the folder of the model that it goes on from; its sizes are kept.
        beside: the folder of another; it goes on from the mean of the weights of both.
        vocabulary: V, at most; 0 for that of the model before.
        whole: the share of it that are whole words, at least.
        held_out: twelfths of WordNet's examples that are kept from training.
        clauses: the share of the tokens that are of clauses of longer sentences.
        short: the share of the tokens that are of short sentences of books.
        long: that of passages of books.
        examples: that of WordNet's examples.
        documents: that of WordNet's documents.
        length: the most tokens of a text, special ones included.
        tokens: at least so many tokens of texts a step.
        masked: the share of them that is hidden.
        in_sight: what is added to the logits of content words that are in sight where others are
            hidden, while it learns (`training.objectives.Unseen`).
        little: as of `training.objectives.Unseen`.
        rate: the highest learning rate.
        warmup: the share of the run in which it rises to that.
        begin: the share of the run after which senses are learned too.
        uses: how many words in their sentences that has a step.
        wrong: how many other senses of each.
        prior: as of `training.objectives.Senses`, and
        used: too.
        told: the share of the hidden word in what is learned; the rest is what a teacher says, the
            model before multiplied by counts.
        guessed: above 0, words are hidden alone, and those only that have at least this chance by
            counts (`training.objectives.Guessed`).
        gapped: clauses with such a hidden word, at most, for each short sentence.
        products: as for `qkv.learn.train`.
        seed: of everything.
    """

    after: str = "src/qkv/data/wordnet"
    beside: str = ""
    vocabulary: int = 16_384
    whole: float = 0.93
    held_out: int = 1
    clauses: float = 0.0
    short: float = 0.5
    long: float = 0.25
    examples: float = 0.17
    documents: float = 0.08
    length: int = 64
    tokens: int = 4096
    masked: float = 0.25
    in_sight: float = 2.0
    little: float = 1.0
    rate: float = 1.5e-3
    warmup: float = 0.03
    begin: float = 0.3
    uses: int = 24
    wrong: int = 3
    prior: float = 1.5
    used: float = 0.0
    told: float = 1.0
    guessed: float = 0.0
    gapped: int = 1
    products: str = "bfloat16"
    seed: int = 0


def make(
    recipe: Recipe,
    source: Path,
    wordnet_folder: Path,
    folder: Path,
    *,
    resume: bool = False,
    tokenizer: Tokenizer | None = None,
    **limits: Any,
) -> Trained:
    """Train it.

    Args:
        recipe: what it is.
        source: of the books, as for `training.books.read`.
        wordnet_folder: where WordNet's files are.
        folder: of the run.
        resume: go on with the run in the folder.
        tokenizer: of an earlier run, to have that again; made unless given.
        limits: what else `qkv.learn.train` takes.
    """
    wordnet = cleaned(read(wordnet_folder, kept=recipe.held_out))
    read_books = [found for _, found in books.read(source, ["train"])]
    if not recipe.vocabulary:
        tokenizer = SubwordTokenizer.from_file(Path(recipe.after) / "tokenizer.json")
    tokenizer = kept_tokenizer(
        folder, resume, tokenizer, lambda: vocabulary(read_books, wordnet, recipe)
    )
    objective = Unseen(
        texts(read_books, wordnet, tokenizer, recipe),
        tokenizer,
        in_sight=recipe.in_sight,
        marks=False,
        little=recipe.little,
        share=recipe.masked,
        tokens_per_step=recipe.tokens,
        alike=str.casefold,
    )
    uses, definitions = sentences(wordnet, tokenizer, recipe.length)
    words, theirs = entries(wordnet, tokenizer, recipe.length)
    senses = Senses(
        uses,
        {**definitions, **theirs},
        words,
        mask=objective.mask,
        uses=recipe.uses,
        wrong=recipe.wrong,
        prior=recipe.prior,
        used=recipe.used,
    )
    begin = [Path(one) for one in (recipe.after, recipe.beside) if one]
    before = carried_over(mean_of(*begin), tokenizer)
    network = Network(before)
    learned: Unseen | Taught | Guessed = objective
    if recipe.told < 1 or recipe.guessed:
        neighbours = counted(read_books, wordnet, tokenizer, objective.content)
        teacher = None if recipe.guessed else Network(before)
        best = weights(neighbours, teacher, tokenizer, source)
        neighbours.weights = best[: len(neighbours.weights)]
        if teacher is None:
            learned = Guessed(
                guessable(read_books, wordnet, neighbours, tokenizer, recipe), objective
            )
        else:
            learned = Taught(objective, teacher, float(best[-1]), neighbours, recipe.told)
    return trained(
        recipe,
        network,
        [Part(learned), Part(senses, begin=recipe.begin)],
        folder,
        Muon(network),
        resume=resume,
        products=recipe.products,
        **limits,
    )


def vocabulary(
    read_books: Sequence[list[list[str]]], wordnet: WordNet, recipe: Recipe
) -> SubwordTokenizer:
    """The commonest words of books and of WordNet's examples whole, and pieces for the others."""
    words, counts = commonest_of_books(read_books, wordnet)
    rest = [" ".join([word] * min(count, 50)) for word, count in counts.items()]
    rest.append(" ".join(printable))  # marks, digits and letters, each by itself
    return with_whole_words(rest, words, recipe.vocabulary, int(recipe.whole * recipe.vocabulary))


def texts(
    read_books: Iterable[list[list[str]]], wordnet: WordNet, tokenizer: Tokenizer, recipe: Recipe
) -> Mixed:
    """All that is read, as sequences."""
    passages = passages_of(read_books)
    kinds: dict[str, Callable[[], list[str]]] = {
        "short": lambda: _with_and_without_stop(short_of(passages)),
        "clauses": lambda: clauses_of(passages),
        "long": lambda: [" ".join(passage) for passage in passages],
        "examples": lambda: [*examples(wordnet), *map(ended, examples(wordnet))],
        "documents": lambda: list(documents(wordnet)),
    }
    shares = {name: share for name in kinds if (share := getattr(recipe, name))}
    return Mixed(
        {
            name: Sequences(pieces_of(kinds[name](), tokenizer, recipe.length), seed=recipe.seed)
            for name in shares
        },
        shares,
    )


def _with_and_without_stop(sentences: list[str]) -> list[str]:
    return [*sentences, *(one[:-1] for one in sentences if one.endswith("."))]


def passages_of(read_books: Iterable[list[list[str]]]) -> list[list[str]]:
    """The passages of all books."""
    return [passage for found in read_books for passage in found]


def short_of(passages: Iterable[list[str]]) -> list[str]:
    """The sentences of passages that somebody might type."""
    return [one for passage in passages for one in map(typed, passage) if one]


def clauses_of(passages: Iterable[list[str]]) -> list[str]:
    """The parts of their sentences that somebody might type."""
    return [part for passage in passages for one in passage for part in clauses(one)]


def counted(
    read_books: Iterable[list[list[str]]], wordnet: WordNet, tokenizer: Tokenizer, content: Array
) -> Neighbours:
    """What is counted in all sentences that are read."""
    every = [sentence for passage in passages_of(read_books) for sentence in passage]
    return Neighbours(tokenizer.ids_batch([*every, *examples(wordnet)]), content)


def weights(
    neighbours: Neighbours, teacher: Network | None, tokenizer: Tokenizer, source: Path
) -> Array:
    """With which counts, and a model if there is one, name hidden words of books for choices best.

    The last weight is then the model's.
    """
    mask = tokenizer.vocabulary[str(tokenizer.mask)]
    choices = short_of(passages_of(found for _, found in books.read(source, ["choose"])))
    features, targets = [], []
    for example in drawn(choices, [tokenizer], count=FITTED):
        place = place_of(example, tokenizer)
        assert place is not None
        ids = tokenizer.tokenize(example.sentence).ids.astype(np.int64)
        targets.append(int(ids[place]))
        ids[place] = mask
        gap = Words(ids, np.array([0, len(ids)]), np.array([place]), np.array(targets[-1:]))
        values = [neighbours.features(ids.tolist(), place)]
        values += [] if teacher is None else [logits_of(teacher, gap)]
        features.append(np.concatenate(values).astype(np.float16))
    return fitted(np.stack(features), np.array(targets))


def guessable(
    read_books: Iterable[list[list[str]]],
    wordnet: WordNet,
    neighbours: Neighbours,
    tokenizer: Tokenizer,
    recipe: Recipe,
) -> list[tuple[Array, int]]:
    """Short texts, each with the place of a content word that counts can guess.

    A word is looked at in each short sentence of books, in `gapped` times as many clauses, and in
    each example of WordNet. It stands once in its text, is one token of three letters or more, and
    is no part of a contraction.
    """
    rng = np.random.default_rng(recipe.seed)
    passages = passages_of(read_books)
    short, parts = short_of(passages), clauses_of(passages)
    parts = [parts[number] for number in rng.permutation(len(parts))[: recipe.gapped * len(short)]]
    plain = [one.removesuffix(".") if rng.random() < 0.5 else one for one in (*short, *parts)]
    vocabulary = tokenizer.vocabulary
    joined = {index for name, index in vocabulary.items() if name.startswith("##") or name == "'"}
    long = {index for name, index in vocabulary.items() if len(name) > 2}
    texts: list[Array] = []
    places: list[int] = []
    for ids in tokenizer.ids_batch([*plain, *examples(wordnet)]):
        words = ids.tolist()
        usable = [
            place
            for place, word in enumerate(words)
            if neighbours.content[word]
            and word in long
            and words.count(word) == 1
            and joined.isdisjoint(words[max(place - 1, 0) : place + 2])
        ]
        if usable and len(words) <= recipe.length - 2:
            texts.append(ids.astype(np.int64))
            places.append(usable[int(rng.integers(len(usable)))])
    chances = neighbours.chances(texts, places)
    first, last = around(tokenizer)
    return [
        (np.concatenate([first, ids, last]), place + len(first))
        for ids, place, chance in zip(texts, places, chances, strict=True)
        if chance >= recipe.guessed
    ]


def carried_over(before: Model, tokenizer: Tokenizer) -> Model:
    """A model with another vocabulary.

    A token that the old vocabulary has keeps its row, any other begins with the mean of the rows
    of its pieces there.
    """
    assert before.tokenizer is not None
    old, new = before.tokenizer.vocabulary, tokenizer.vocabulary
    names = sorted(new, key=lambda name: new[name])
    pieces = before.tokenizer.ids_batch(name.removeprefix("##") for name in names)
    rows = [
        np.array([old[name]]) if name in old else ids
        for name, ids in zip(names, pieces, strict=True)
    ]
    parameters = {
        name: np.stack([array[ids].mean(0) for ids in rows])
        if array.shape[:1] == (len(old),)
        else array
        for name, array in before.parameters.items()
    }
    config = {**before.config, "vocab_size": len(names)}
    return fresh_model(config, tokenizer, name=NAME).with_parameters(parameters)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    run("training.book_encoder", __doc__, Recipe, STEPS, make, arguments, reads_books=True)


if __name__ == "__main__":
    command(main)
