"""Train the included encoder: `python -m training.book_encoder BOOKS -o DIR`.

Training starts from an encoder that has read only WordNet (`training.make`). The encoder reads
short sentences of books; half of the sentences have no full stop, as in typed text. WordNet's
examples, documents and
senses stay in the mixture, because books from before 1930 lack many of today's words.

DIR becomes a run of `qkv.learn`; `--resume` continues a stopped run.

`make model` makes the included encoder in seven runs. The score of a run is the share of 3,000
masked content words for which the encoder's first guess is right. The words are from the books that
are kept for choosing models, and each word is masked in a short sentence:

| run | change | right |
| --- | --- | --- |
| 1 | books, after WordNet | 10.1% |
| 2 | mostly short sentences; content words are masked more often | 12.1% |
| 3, 4 | both continue run 2: clauses, counts as a teacher (`Taught`) | 13.3%, 13.0%; mean 14.0% |
| 5, 6 | both continue the mean of 3, 4: gaps that counts can predict (`Guessed`) | 16.2%, 15.7% |
| 7 | continues the mean of runs 3 to 6: more gaps, longer training, a larger `in_sight` | 18.2% |

Averaging the weights of runs 3 to 6 gives a model whose first guess is right for 15.8% of the
words. We also compared models on 60 sentences with gaps (`training.fits --choose`), and counted the
sentences in which a guess fits:

| model | first guess fits | one of five guesses fits |
| --- | --- | --- |
| run 2 | 15 | 28 |
| mean of runs 3 and 4 | 9 | 28 |
| mean of runs 5 and 6 | 13 | 26 |
| mean of runs 3 to 6 | 13 | 31 |

Run 7 starts from the mean of runs 3 to 6, stored in int8. The first guess of this int8 model is
right for 15.7% of the masked words. In the test with 60 sentences, its first guess fits the gap in
14 sentences.

The included model is the mean of two models: run 7, and the mean of runs 3 to 6. The first guess of
the included model is right for 18.1% of the words. At least one of five guesses is right for 34.1%
of the words with the included model, for 33.5% with run 7, and for 32.3% with the mean of runs 3 to
6. The included model's loss on the masked word is 5.91 nats. The loss of run 7 alone is 6.56 nats,
and the loss of the model from which run 7 starts is 5.55 nats. The first guess of the included
model fits the gap in 14 of the 60 sentences. In 29 sentences, at least one of its five guesses fits
the gap.

Without any network, counts of neighbouring words (`training.neighbours`) can predict a masked word.
The counts take more space than the model. We tested them on 1,200 masked words: the word that the
counts predict with the highest probability is right for 16.8% of these words. This word fits the
gap in 23 of the 60 sentences. In 42 sentences, at least one of the five words with the highest
probabilities fits the gap.

We tried two more runs that start from the included model. They improved it only a little, so the
included model does not contain them. In the first of these runs (4,154 steps, 16.2 million tokens),
the model learned to predict those masked words that `training.neighbours` can predict. Its teachers
were the counts of `training.neighbours` and the earlier model. We averaged the weights of this run
and of the included model. The first guess of the averaged model is right for 18.8% of the words,
and at least one of its five guesses is right for 35.2%. In 28 of the 60 sentences, at least one of
the five guesses fits the gap. In the second run (3,369 steps, 11.6 million tokens), each step
learned senses from more uses of words, namely 48. We also averaged the weights of the second run
and of the included model. The first guess of this averaged model is right for 18.9% of the words,
and at least one of its five guesses is right for 35.2%. In 29 of the 60 sentences, at least one of
the five guesses fits the gap. A model of this size seems to have learned all it can from these
books.
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
FITTED = 800  # number of masked words for fitting the teacher's weights


@dataclass(frozen=True)
class Recipe:
    """The starting model and the settings of the training.

    Attributes:
        after: the folder of the model to start from; its sizes are kept.
        beside: the folder of a second model; training starts from the mean of the weights of both
            models.
        vocabulary: V, the maximum number of tokens in the vocabulary; 0 keeps the vocabulary of the
            starting model.
        whole: the minimum share of the vocabulary that consists of whole words.
        held_out: how many of the twelve parts of WordNet's examples are held out from training.
        clauses: the share of tokens from clauses of longer sentences.
        short: the share of tokens from short sentences of books.
        long: the share of tokens from passages of books.
        examples: the share of tokens from WordNet's examples.
        documents: the share of tokens from WordNet's documents.
        length: the maximum number of tokens of a text, including special tokens.
        tokens: the minimum number of tokens in a step.
        masked: the share of tokens that are masked.
        in_sight: the constant that training adds to the logits of content words that are visible in
            the text (`training.objectives.Unseen`).
        little: as for `training.objectives.Unseen`.
        rate: the highest learning rate.
        warmup: the share of the run in which the rate rises.
        begin: the share of the run after which the model also learns senses.
        uses: the number of uses (words in sentences) from which each step learns senses.
        wrong: the maximum number of wrong definitions for each word. A wrong definition defines
            another sense of the word.
        prior: as for `training.objectives.Senses`.
        used: as for `training.objectives.Senses`.
        told: the weight of the masked word in the target distribution; the weight of the teacher's
            prediction is `1 - told`. For each word, the teacher multiplies a probability from the
            starting model by a probability from counts of neighbouring words.
        guessed: the minimum probability of a masked word, estimated by `training.neighbours` from
            counts of neighbouring words. If `guessed` is above 0, one word of each text is masked,
            and only words that reach this probability are masked (`training.objectives.Guessed`).
        gapped: the maximum number of clauses in `guessable`, divided by the number of short
            sentences there.
        products: as for `qkv.learn.train`.
        seed: the seed of all random draws.
    """

    after: str = "build/dictionary"
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
    """Train the encoder.

    Args:
        recipe: the starting model and the training's settings.
        source: the source of the books, as for `training.books.read`.
        wordnet_folder: the folder of WordNet's files.
        folder: the folder of the run.
        resume: continue the run in the folder.
        tokenizer: the tokenizer of an earlier run; by default a new tokenizer is made.
        limits: further arguments of `qkv.learn.train`.
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
    """Make a tokenizer with the most common words as whole tokens, and subwords for the others."""
    words, counts = commonest_of_books(read_books, wordnet)
    rest = [" ".join([word] * min(count, 50)) for word, count in counts.items()]
    rest.append(" ".join(printable))  # single punctuation marks, digits and letters
    return with_whole_words(rest, words, recipe.vocabulary, int(recipe.whole * recipe.vocabulary))


def texts(
    read_books: Iterable[list[list[str]]], wordnet: WordNet, tokenizer: Tokenizer, recipe: Recipe
) -> Mixed:
    """Return all training texts as sequences."""
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
    """Return the passages of all books."""
    return [passage for found in read_books for passage in found]


def short_of(passages: Iterable[list[str]]) -> list[str]:
    """Return, from all passages, the sentences that resemble texts typed by a user of the page."""
    return [one for passage in passages for one in map(typed, passage) if one]


def clauses_of(passages: Iterable[list[str]]) -> list[str]:
    """Return, from all passages, the clauses that resemble texts typed by a user of the page."""
    return [part for passage in passages for one in passage for part in clauses(one)]


def counted(
    read_books: Iterable[list[list[str]]], wordnet: WordNet, tokenizer: Tokenizer, content: Array
) -> Neighbours:
    """Count neighbours in all training sentences."""
    every = [sentence for passage in passages_of(read_books) for sentence in passage]
    return Neighbours(tokenizer.ids_batch([*every, *examples(wordnet)]), content)


def weights(
    neighbours: Neighbours, teacher: Network | None, tokenizer: Tokenizer, source: Path
) -> Array:
    """Fit the weights of a sum that predicts masked words as well as possible.

    The terms of the sum are scores from counts of neighbouring words. If `teacher` is given, its
    logits are the last term, and the last weight is the weight of these logits. The masked words
    are from the books that are kept for choosing models.
    """
    mask = tokenizer.vocabulary[str(tokenizer.mask)]
    choices = short_of(passages_of(found for _, found in books.read(source, ["choose"])))
    features, targets = [], []
    for example in drawn(choices, [tokenizer], count=FITTED):
        position = place_of(example, tokenizer)
        assert position is not None
        ids = tokenizer.tokenize(example.sentence).ids.astype(np.int64)
        targets.append(int(ids[position]))
        ids[position] = mask
        gap = Words(ids, np.array([0, len(ids)]), np.array([position]), np.array(targets[-1:]))
        values = [neighbours.features(ids.tolist(), position)]
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
    """Return short texts, each with the position of a content word that `neighbours` can predict.

    The probability that `neighbours` gives to the word is at least `recipe.guessed`. The function
    tries one word in each text. The texts are all short sentences of books, all examples of
    WordNet, and some clauses of books. The number of clauses is at most `gapped` times the number
    of short sentences. The word occurs once in its text, is one token of at least three letters,
    and is not part of a contraction.
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
    positions: list[int] = []
    for ids in tokenizer.ids_batch([*plain, *examples(wordnet)]):
        words = ids.tolist()
        usable = [
            position
            for position, word in enumerate(words)
            if neighbours.content[word]
            and word in long
            and words.count(word) == 1
            and joined.isdisjoint(words[max(position - 1, 0) : position + 2])
        ]
        if usable and len(words) <= recipe.length - 2:
            texts.append(ids.astype(np.int64))
            positions.append(usable[int(rng.integers(len(usable)))])
    probabilities = neighbours.probabilities(texts, positions)
    first, last = around(tokenizer)
    return [
        (np.concatenate([first, ids, last]), position + len(first))
        for ids, position, probability in zip(texts, positions, probabilities, strict=True)
        if probability >= recipe.guessed
    ]


def carried_over(before: Model, tokenizer: Tokenizer) -> Model:
    """Replace the vocabulary of a model.

    A token of the old vocabulary keeps its row. A new token starts with the mean of the rows of its
    subwords in the old vocabulary.
    """
    assert before.tokenizer is not None
    old, new = before.tokenizer.vocabulary, tokenizer.vocabulary
    names = sorted(new, key=lambda name: new[name])
    subwords = before.tokenizer.ids_batch(name.removeprefix("##") for name in names)
    rows = [
        np.array([old[name]]) if name in old else ids
        for name, ids in zip(names, subwords, strict=True)
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
    """Train with the settings of the command line."""
    run("training.book_encoder", __doc__, Recipe, STEPS, make, arguments, reads_books=True)


if __name__ == "__main__":
    command(main)
