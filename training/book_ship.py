"""Make the folder of an included model: `python -m training.book_ship RUN BOOKS`.

RUN is the folder of a run of `training.book_encoder` or `training.book_decoder`, and BOOKS are the
books that the run read. The new folder contains the model in int8, the tokenizer, WordNet's
licence, and a card. The card shows results on books, sentences and examples that were used neither
for training nor for choosing between models.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.circuits import head_scores
from training import (
    bias,
    book_decoder,
    book_encoder,
    books,
    command,
    copying,
    counting,
    everyday,
    fits,
    game,
    numbers,
    prose,
    roles,
    told,
)
from training.cards import abouts_of, heads_table, keep_runs, recipes
from training.running import mean_of
from training.senses import HEAD_SCORES, evaluate, held_out_sentences, held_out_uses, senses
from training.shares import in_words
from training.ship import keep_card, keep_lesson, kept_stories
from training.wordnet import FOLDER, WordNet, read

PLACES = Path(__file__).resolve().parents[1] / "src" / "qkv" / "data"
TEN = Path(__file__).with_name("ten.txt")
LACKING = ("phone", "car", "computer", "television", "photo", "plane")
SHOWN = ("once upon a time", "She opened the door and", "The old man said")
WRITERS_SCORES = ("copies", "previous", "same", "first", "induction")
TEXTS = 400  # the number of sentences for the measurement of heads

CARD = """---
license: apache-2.0
language: en
pipeline_tag: {task}
---

# {title}

{about}

{sections}

## Licence

The model is under Apache-2.0, as qkv is. The books are in the public domain in the United States.
WordNet is copyright 2006 by Princeton University; its licence is in LICENSE.wordnet.
"""

_ENCODER = """\
A small BERT that comes with qkv: {layers} layers, {heads} heads, vectors of {dim} numbers, a
vocabulary of {vocabulary:,} lower-case WordPieces, {length} positions, {numbers:.1f} million
parameters (matrices in int8, with a scale for each row). It guesses the missing word of an everyday
sentence. It has read only novels from before 1930 and a dictionary, and no texts of today. It is
made for studying a model and for trying things out without a download. For search or ranking, use a
larger model."""

_DECODER = """\
A small Llama that comes with qkv: {layers} layers, {heads} query heads on {kv_heads} key and value
heads, vectors of {dim} numbers, a vocabulary of {vocabulary:,} byte-level tokens, {length}
positions, {numbers:.1f} million parameters (matrices in int8, with a scale for each row). It uses
RMSNorm, rotary positions, SwiGLU, and one token table for input and output. It continues a text in
the English of novels from before 1930. Its sentences are readable, but soon make no sense. It is
made for studying a model while it writes."""

_READ = """\
{books} books of {authors} authors from github.com/mlschmitt/classic-books-markdown, {words:.1f}
million words (`training/books.csv`; books with `use: no` are left out), and WordNet 3.0 from
Debian's package `wordnet-base`. Sentences with a word of `training/dropped_words.txt` (slurs and
explicit words) are dropped, and none of these words is in the vocabulary. Two groups of
books were held out of training. The {held_out} books of the first group, which includes all books
of five authors, are only for measuring results. The {chosen} books of the second group served to
choose between trained models, and between mixtures of training texts.

Modern words are rare in these books, or have older meanings there. Some counts in these books:
{rare}. What the model knows about these words comes from WordNet's examples."""

_TRAINED = """\
Trained with `qkv.learn` alone{after}. The training took {steps:,} steps, {tokens:,} tokens and
{hours:.1f} hours on one of two cores{runs}. `make model` repeats the training. Another processor
rounds differently, so its numbers will be close to these, but not equal.

Recipe (name and value of each setting): {recipe}"""

_TEN = """\
We wrote these sentences (`training/ten.txt`) before we ran the model on them, and ran it only once.

| sentence | first guess | next guesses |
| --- | --- | --- |
{rows}"""

_SENSES = """\
The numbers below are measured on example sentences of WordNet that neither the tokenizer nor the
training has seen: the sentences with `int(sha256(sentence).hexdigest(), 16) % 12 == 0`. *Sense*:
how often the vector of a word in a sentence is nearer to the definition of the right sense than to
the definitions of the word's other senses ({uses:,} uses of words). *AUC*: the probability that two
uses of a word in the same sense are nearer to each other than two uses in different senses ({pairs}
pairs, {same} of them in the same sense). The vectors of the token table do not depend on the
context.

| vectors | sense | AUC |
| --- | --- | --- |
{figures}

When 15% of the words in each sentence are masked (at least one word), the model correctly
predicts {named} of these words. A word counts only if all its subwords are right. In {examples} of
these sentences (5 to 16 words each), one content word is masked, which occurs nowhere else in the
sentence. The share of first guesses that repeat a visible content word of the sentence is
{another}. The share of right first guesses is {right}.
Of {everyday} everyday words, {pieces} are split or unknown{which}."""

_HEADS = """\
The table lists the mean weight that a token of these sentences gives to the previous token, the
next token, all tokens equal to it (itself included), the first token ([CLS]) and the last token
([SEP]). `uniform` is the entropy of the weights, divided by the largest possible entropy.

{table}

{roles}"""

_WRITES = """\
For {openings} beginnings of sentences in today's English, we listed the next words that fit, before
the model was trained (`training/openings.txt`). The table shows how often the model's next word is
in this list. Brackets contain 95% intervals:

{fitting}

Measured on the first {first_words:,} words of each book that was held out of training, and on
continuations of 100 beginnings (`training/beginnings.txt`) at temperature 0.8 and top-k 40:

{figures}

A Kneser-Ney model with sequences of up to five words has a perplexity of {counted:.1f} on the same
words. It counts the sequences in the books that the model of this card has read, and ignores
capitals. Before rounding to int8, the model of this card had a perplexity of {unrounded:.1f}.

The first three continuations that were drawn (temperature 0.8, top-k 40, seed 0):

{shown}"""

_WRITERS_HEADS = """\
*Copies*: {copies} random tokens occur twice in the same order. Each token of the second copy has an
earlier occurrence in the first copy. The score is the mean weight that the token gives to the token
after its earlier occurrence (Olsson et al. 2022). The other scores are those of
`qkv.circuits.head_scores` over sentences of books that were held out of training.
{induction} The loss of a random token is {first:.2f} nats in the first copy and {second:.2f} in the
second.

{table}"""


def ship(
    run: Path,
    source: Path,
    place: Path | None = None,
    wordnet_folder: Path = FOLDER,
    beside: Sequence[Path] = (),
) -> tuple[Path, str]:
    """Write the folder, and measure the model in it.

    Args:
        run: the folder of an encoder's or a decoder's run.
        source: the source of the books, as for `training.books.read`.
        place: the folder to write; by default the folder of the included encoder or decoder.
        wordnet_folder: the folder of WordNet's files.
        beside: the folders of other runs, or of models that were made from runs. Their parameters
            must have the same shapes as the parameters of `run`. The weights of the new model are
            the mean of the weights of all runs.

    Returns:
        The folder and its card.

    Raises:
        FileNotFoundError: the run or WordNet is missing.
        ValueError: a book is missing or differs from the list, or a model in `beside` already
            contains this run's weights.

    Source:
        Wortsman et al. 2022, "Model soups: averaging weights of multiple fine-tuned models improves
        accuracy without increasing inference time", for the mean of weights.
    """
    runs = [run, *beside]
    chains = [abouts_of(one) for one in runs]
    for one, chain in zip(runs, chains, strict=True):
        if not chain:
            raise FileNotFoundError(
                f"book_ship: {one} does not contain a run: make one with training.book_encoder"
            )
    abouts = _together(runs, chains)
    whole = mean_of(*runs)
    name = book_decoder.NAME if whole.generates else book_encoder.NAME
    place = place or PLACES / name
    whole.save(place, dtype="int8")
    keep_runs(abouts, place)
    model = qkv.load(place)
    wordnet = read(wordnet_folder, kept=abouts[-1]["settings"]["recipe"]["held_out"])
    read_books = dict(books.read(source))
    corpus = counting.Corpus.of(sentences_of(read_books, "train"))
    sections = {
        "What it has read": _read(list(read_books), corpus),
        "Training": _trained(abouts),
        **(_written(model, whole, read_books, corpus) if model.generates else {}),
        **({} if model.generates else _guessed(model, whole, corpus, wordnet)),
    }
    text = CARD.format(
        task="text-generation" if model.generates else "fill-mask",
        title="Books decoder" if model.generates else "Books encoder",
        about=_about(model),
        sections="\n\n".join(f"## {name}\n\n{part}" for name, part in sections.items()),
    )
    if not model.generates:
        text = told.in_card(text, kept_stories(model, run, place))
    keep_card(place, text, wordnet_folder)
    if not model.generates:
        keep_lesson(model, place)
        game.keep(place, game.game(read_books, game.vocabulary_of(place)))
    return place, text


def _about(model: qkv.Model) -> str:
    return (_DECODER if model.generates else _ENCODER).format(
        layers=model.num_layers,
        heads=model.num_heads,
        kv_heads=model.config.get("num_key_value_heads"),
        dim=model.dim,
        vocabulary=model.config["vocab_size"],
        length=model.max_seq_length,
        numbers=sum(array.size for array in model.parameters.values()) / 1e6,
    )


def _read(listed: Sequence[books.Book], corpus: counting.Corpus) -> str:
    """Describe the texts that a model has read, and the words that are rare in them."""
    own = [book for book in listed if book.part == "train"]
    counts = np.bincount(corpus.words, minlength=len(corpus.vocabulary))
    words = sum(
        int(counts[number])
        for name, number in corpus.vocabulary.items()
        if name[:1].isalpha() or number == counting.UNKNOWN
    )
    rare = {word: counts[corpus.vocabulary[word]] for word in LACKING if word in corpus.vocabulary}
    return _READ.format(
        books=len(own),
        authors=len({book.author for book in own}),
        words=words / 1e6,
        **{
            name: sum(book.part == part for book in listed)
            for name, part in (("held_out", "test"), ("chosen", "choose"))
        },
        rare=", ".join(f"{word} {rare.get(word, 0):,} times" for word in LACKING),
    )


def _together(
    runs: Sequence[Path], chains: Sequence[Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """List the records of runs: first the earlier runs that led to `runs[0]`, then all `runs`.

    If the included weights are the mean of several models, the last record has a list "mean" with
    one item for each model. If the model comes from a run, the item is the number of this run: its
    position in the returned list, counted from 1. If the model's weights are themselves a mean, the
    item is the list "mean" of this model.
    """
    [run, *others], abouts = runs, [dict(about) for about in chains[0]]
    own = _learned(abouts[-1])
    for other, chain in zip(others, chains[1:], strict=True):
        if other != run and own in map(_learned, chain):
            raise ValueError(
                f"book_ship: {other} already contains the weights of {run}; pass a model that was "
                "made without this run"
            )
        if all(chain[-1]["settings"] != about["settings"] for about in abouts):
            abouts.append({**chain[-1], "beside": True})
    if others:
        settings = [about["settings"] for about in abouts]
        abouts[-1]["mean"] = [
            chain[-1].get("mean", 1 + settings.index(chain[-1]["settings"])) for chain in chains
        ]
    return abouts


def _learned(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's recipe without the folders of its starting models."""
    recipe = about["settings"]["recipe"]
    return {name: recipe[name] for name in recipe if name not in ("after", "beside")}


def _trained(abouts: Sequence[Mapping[str, Any]]) -> str:
    after = abouts[0]["settings"]["recipe"].get("after")
    return _TRAINED.format(
        after=", starting from an encoder that has read only WordNet (`make dictionary`)"
        if after
        else "",
        steps=sum(about["step"] for about in abouts),
        tokens=sum(about["tokens"] for about in abouts),
        hours=sum(about["seconds"] for about in abouts) / 3600,
        runs=_runs(abouts),
        recipe=recipes(abouts),
    )


def _runs(abouts: Sequence[Mapping[str, Any]]) -> str:
    """State the number of chained runs, and name the runs whose weights were averaged."""
    if len(abouts) == 1:
        return ""
    mean = abouts[-1].get("mean")
    ships = f"; {_meant(mean)}" if mean else ""
    return f", in {len(abouts)} chained runs{ships}"


def _meant(mean: Sequence[Any]) -> str:
    """Name the runs whose weights were averaged into the included weights.

    If an averaged model is itself a mean, also name the runs of that mean.

    >>> _meant([5, 6, 3, 4])
    'the included weights are the mean of runs 3, 4, 5 and 6'
    """
    runs = sorted(one for one in mean if isinstance(one, int))
    said = f"the included weights are the mean of {_numbered(runs)}"
    for one in mean:
        if not isinstance(one, int):
            said += f" and of the previous model (itself the mean of {_numbered(one)})"
    return said


def _numbered(runs: Sequence[int]) -> str:
    *first, last = map(str, sorted(runs))
    return f"runs {', '.join(first)} and {last}" if first else f"run {last}"


def sentences_of(read_books: Mapping[books.Book, list[list[str]]], part: str) -> Iterator[str]:
    """Return the sentences of one part of the books, such as "test"."""
    for book, passages in read_books.items():
        if book.part == part:
            for passage in passages:
                yield from passage


def _guessed(
    model: qkv.Model,
    whole: qkv.Model,
    corpus: counting.Corpus,
    wordnet: WordNet,
) -> dict[str, str]:
    """Write the sections of an encoder's card."""
    gaps = fits.asked(fits.GAPS)
    look_up = counting.LookUp(corpus)
    said = {
        "this one": fits.guessed(model, gaps),
        "this model before rounding to int8": fits.guessed(whole, gaps),
        "baseline without a model: the words that most often fill the gap in the longest "
        "matching context in the same books": counting.looked_up(look_up, gaps),
    }
    found = evaluate(model, wordnet)
    *_, last = senses(whole, wordnet, held_out_uses(wordnet))["layers"].values()
    heads, _ = roles.roles(model, wordnet)
    assert model.tokenizer is not None
    examples = copying.drawn(held_out_sentences(wordnet), [model.tokenizer])
    copied = copying.copying(model, examples)
    pieces = everyday.in_pieces(model.tokenizer)
    rows = {"chance": found["chance"], **found["layers"]}
    masked = found["masked"]
    return {
        "What it guesses": f"{_fitting(said)}\n\nMeasured on {len(gaps)} sentences, each with a "
        "gap and a list of words that fit\n(`training/gaps.txt`), in today's English as people "
        "type it. We wrote them before the model was\ntrained. *Repeats*: the first guess is a "
        "content word that the sentence already contains. Brackets\ncontain 95% intervals.",
        "Ten sentences": _TEN.format(rows="\n".join(ten(model))),
        "Bias": bias.in_card(bias.measured(model)),
        "What it knows of senses": _SENSES.format(
            uses=found["uses"],
            pairs=found["pairs"],
            same=found["pairs_of_one_sense"],
            figures="\n".join(
                f"| {name} | {row['sense']:.3f} | {row['auc']:.3f} |" for name, row in rows.items()
            ),
            named=in_words(round(masked["top1"] * masked["words"]), masked["words"]),
            examples=copied["examples"],
            another=in_words(copied["another"], copied["examples"]),
            right=in_words(copied["right"], copied["examples"]),
            everyday=len(everyday.WORDS),
            pieces=len(pieces),
            which=f" ({', '.join(pieces)})" if 0 < len(pieces) <= 20 else "",
        )
        + f"\n\nBefore rounding to int8, the last layer had a *sense* of {last['sense']:.3f} and "
        f"an *AUC* of {last['auc']:.3f}.",
        "What its heads do": _HEADS.format(
            table=heads_table(found["heads"], HEAD_SCORES), roles=roles.in_card(heads)
        ),
    }


def _fitting(said: Mapping[str, Sequence[fits.Said]]) -> str:
    """Make a table of how often the first guess fits, and how often one of five guesses fits."""
    counts: dict[str, Callable[[fits.Said], bool]] = {"the first fits": lambda one: one.fits}
    if any(len(one.words) > 1 for each in said.values() for one in each):
        counts["one of five fits"] = lambda one: one.among(fits.FIVE)
        counts["the first repeats"] = lambda one: one.repeats
    lines = [f"| | {' | '.join(counts)} |", "| --- |" + " --- |" * len(counts)]
    for name, each in said.items():
        cells = [in_words(sum(map(count, each)), len(each)) for count in counts.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ten(model: qkv.Model) -> Iterator[str]:
    """Return a table row for each of ten sentences, with a model's guesses."""
    assert model.tokenizer is not None
    for line in TEN.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            text = line.replace("_", str(model.tokenizer.mask))
            [[(first, probability), *others]] = model.predict(text, top_k=fits.FIVE)
            then = ", ".join(word for word, _ in others)
            yield f"| {line} | {first} ({probability:.2f}) | {then} |"


def _written(
    model: qkv.Model,
    whole: qkv.Model,
    read_books: Mapping[books.Book, list[list[str]]],
    corpus: counting.Corpus,
) -> dict[str, str]:
    """Write the sections of a decoder's card."""
    openings = fits.asked(fits.OPENINGS)
    said = {
        "this one": fits.continued(model, openings),
        "this model before rounding to int8": fits.continued(whole, openings),
        "baseline without a model: the word that most often follows the longest matching "
        "context in the same books": [
            one._replace(words=one.words[:1])
            for one in counting.looked_up(counting.LookUp(corpus), openings)
        ],
    }
    held_out = [
        counting.beginning(passages, prose.FIRST)
        for book, passages in read_books.items()
        if book.part == "test"
    ]
    sentences = [one for passages in held_out for passage in passages for one in passage]
    found = prose.figures(model, held_out, corpus.vocabulary)
    counted = counting.perplexity(
        counting.KneserNey(corpus), counting.Corpus.of(sentences, corpus.vocabulary)
    )
    unrounded = prose.perplexity(whole, held_out, corpus.vocabulary)
    texts = sentences[:: len(sentences) // TEXTS]
    copied = prose.copying(model)
    scores = {
        "copies": copied["heads"],
        **head_scores(model, texts, WRITERS_SCORES[1:]),
    }
    rows = [
        {"layer": layer, "head": head}
        | {name: float(scores[name][layer, head]) for name in WRITERS_SCORES}
        for layer in range(model.num_layers)
        for head in range(model.num_heads)
    ]
    named = [
        f"{row['layer']}.{row['head']} ({row['copies']:.2f})"
        for row in rows
        if row["copies"] >= prose.ROLE
    ]
    return {
        "What it writes": _WRITES.format(
            fitting=_fitting(said),
            openings=len(openings),
            first_words=prose.FIRST,
            figures=prose.in_card(found),
            counted=counted,
            unrounded=unrounded["perplexity"],
            shown="\n".join(written(model)),
        ),
        "Bias": bias.in_card(bias.measured(model)),
        "What its heads do": _WRITERS_HEADS.format(
            copies=copied["tokens"],
            induction=f"Induction heads, whose score *copies* is {prose.ROLE} or more: "
            f"{', '.join(named)}."
            if named
            else "It has no induction head: in every head, the score *copies* is below "
            f"{prose.ROLE}.",
            first=copied["first"],
            second=copied["second"],
            table=heads_table(rows, WRITERS_SCORES),
        ),
    }


def written(model: qkv.Model) -> list[str]:
    """Return three openings with a decoder's continuations, as the lines of a Markdown list."""
    texts = model.generate(list(SHOWN), max_new_tokens=40, temperature=0.8, top_k=40, seed=0)
    return [f"- *{one.prompt}*{one}".replace("\n", " ") for one in texts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m training.book_ship", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a run of training.book_*")
    parser.add_argument("books", type=Path, help="a clone of the repository, or an archive")
    parser.add_argument(
        "-o", "--out", type=Path, help="the folder to write (default: the included model's folder)"
    )
    parser.add_argument(
        "--beside", type=Path, nargs="*", default=(), help="other runs to include in the mean"
    )
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    place, text = ship(given.run, given.books, given.out, given.wordnet, given.beside)
    print(f"{place}\n\n{text}")
    if place.parent == numbers.DATA:
        numbers.main([])  # the documentation quotes numbers of the included models


if __name__ == "__main__":
    command(main)
