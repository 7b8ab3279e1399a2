"""Make a folder of the package from a run: `python -m training.ship RUN`.

RUN is the folder of `training.make`. The new folder holds the model in float16, its tokenizer, a
card with results on held-out examples, and WordNet's licence.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.files import replacing
from training import (
    command,
    copying,
    everyday,
    numbers,
    play_cards,
    role_file,
    roles,
    told,
)
from training.cards import abouts_of, heads_table, recipes
from training.running import mean_of
from training.senses import HEAD_SCORES, evaluate, held_out_sentences, held_out_uses, senses
from training.shares import in_words
from training.wordnet import FOLDER, WordNet, read

PLACES = Path(__file__).resolve().parents[1] / "src" / "qkv" / "data"
NAME = "wordnet"
PEER = "minilm"

CARD = """---
license: apache-2.0
language: en
pipeline_tag: fill-mask
---

# WordNet encoder

A small BERT that comes with qkv: {layers} layers, {heads} heads, vectors of {dim}, {vocabulary:,}
lower-case WordPieces, {length} positions, {numbers:.1f} million parameters in float16. It is made
for studying a model and for trying things out without a download. It knows words from their
dictionary definitions and little else; for search or ranking, use a larger model.

## Training

Trained with `qkv.learn` alone, from WordNet 3.0 as Debian's `wordnet-base` has it: {steps:,} steps,
{tokens:,} tokens, {minutes:.0f} minutes{in_runs}. A masked word is to be named in "word, synonyms:
definition. examples"{alone}; {together}; {in_sight}after {begin:.0%} of the {run} a word in an
example sentence, or before its own definition with half of that hidden, is also drawn to the mean
of the rows of its sense's definition, and away from other definitions, those of its other senses
among them. How often each sense is drawn is taken from the logits, after {late:.0%} of the run
{late_prior:g} times over, for the sake of senses without a sentence. `make dictionary` repeats the
training. Another processor rounds differently, so its numbers will be close to these, but not
equal.

Recipe: {recipe}{then}

## What it knows

Measured on example sentences of WordNet that neither the tokenizer nor the training has seen: the
sentences with `int(sha256(sentence).hexdigest(), 16) % 12 == 0`. {choices} *Sense*: how often the
nearest definition to a word's vector, among the definitions of all its senses, is right ({uses:,}
uses). *AUC*: the probability that two uses of a word in the same sense are nearer to each other
than two uses in different senses ({pairs} pairs, {same} of them in the same sense). The token table
has vectors without context.

| vectors | sense | AUC |
| --- | --- | --- |
{figures}

Of the masked tokens in these sentences (15%, at least one in each) it names {tokens_named}, of as
many masked words, with all their pieces, {words_named}. In {examples} of these sentences with 5 to
16 words, one content word that occurs once is masked: the first guess is another content word of
the sentence in {another} and right in {right}. Of {everyday} everyday words {pieces} are in pieces
or unknown{which}. Brackets contain 95% intervals.

## What its heads do

Mean weights of all tokens of these sentences on the previous token, the next token, all tokens
equal to the looking token (including itself), the first token ([CLS]) and the last token ([SEP]).
`uniform` is the entropy of the weights as a share of its maximum.

{heads_table}

{roles}

## Licence

The model is under Apache-2.0, as qkv is. WordNet is copyright 2006 by Princeton University; its
licence is in LICENSE.wordnet.
"""


def ship(
    run: Path,
    place: Path | None = None,
    wordnet_folder: Path = FOLDER,
    peer: str | None = PEER,
    earlier: Path | None = None,
    mean: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Write the folder, and measure the model in it.

    Args:
        run: the folder of an encoder's run.
        place: the folder to write; by default the package's folder for such a model.
        wordnet_folder: the folder of WordNet's files.
        peer: a model to compare senses with, if it can be loaded.
        earlier: a model to compare copying with, on words that are whole in both vocabularies.
        mean: ship the mean of the run's first and last weights.

    Returns:
        The folder and the figures.

    Raises:
        FileNotFoundError: the run or WordNet is missing.
        ValueError: `mean` is set and the run did not start from another run.

    Source:
        Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", equation 1, for the mean: it
        keeps the gains of a short run and loses less earlier knowledge.
    """
    abouts = abouts_of(run)
    lacking = abouts[0]["settings"]["recipe"].get("after") if abouts else run
    if lacking:
        raise FileNotFoundError(f"ship: {lacking} holds no run: make one with training.make")
    recipe = abouts[-1]["settings"]["recipe"]
    wordnet = read(wordnet_folder, kept=recipe["held_out"])
    trained = _mean(run, recipe.get("after")) if mean else qkv.load(run)
    place = place or PLACES / NAME
    small = trained.with_parameters(trained.parameters, np.float16)
    small.save(place)
    model = qkv.load(place)
    found = evaluate(model, wordnet) | _of_words(model, earlier, wordnet)
    stories = kept_stories(model, run, place)
    text = told.in_card(card(found, _beside(peer, wordnet), model, abouts, mean), stories)
    keep_card(place, text, wordnet_folder)
    keep_lesson(model, place)
    return place, found


def keep_card(place: Path, text: str, wordnet_folder: Path) -> None:
    """Write the card of a model and WordNet's licence into the model's folder."""
    for name, content in (("README.md", text), ("LICENSE.wordnet", licence(wordnet_folder))):
        with replacing(place / name) as file:
            file.write(content.encode())


def _mean(run: Path, after: str | None) -> qkv.Model:
    """Load the model of a run, with the mean of its first and last weights."""
    if not after:
        raise ValueError(f"ship: {run} went on from no other run: take it without --mean")
    return mean_of(run, Path(after))


def keep_lesson(model: qkv.Model, place: Path) -> None:
    """Write the roles from an encoder's card, and the lesson's cards found for it."""
    role_file.keep(place)
    kept = play_cards.lesson(model)
    if gone := play_cards.missing(kept):
        print(f"ship: no card was found for {', '.join(gone)}: see training.play_cards")
    play_cards.keep(place, kept)


def kept_stories(model: qkv.Model, run: Path, place: Path) -> dict[str, Any]:
    """Keep in the folder the stories, of the run or else the folder, that hold for the model."""
    kept = told.kept_in(run if (run / told.STORIES).exists() else place)
    still = told.again(model, kept)
    gone = len(kept["stories"]) - len(still["stories"])
    if gone:
        print(f"ship: {gone} stories hold no more: choose others with training.stories --keep")
    told.keep(place, still)
    return still


def _beside(peer: str | None, wordnet: WordNet) -> dict[str, Any] | None:
    """Measure the senses of a peer, if it is installed."""
    if peer is not None:
        try:
            return senses(qkv.load(peer), wordnet, held_out_uses(wordnet))
        except FileNotFoundError:
            print(f"ship: {peer} was not found: the card goes without its figures")
    return None


def _of_words(model: qkv.Model, earlier: Path | None, wordnet: WordNet) -> dict[str, Any]:
    """Measure a model's repeated words, its split words, and the roles of its heads."""
    assert model.tokenizer is not None
    models = [model] if earlier is None else [model, qkv.load(earlier)]
    tokenizers = [one.tokenizer for one in models if one.tokenizer is not None]
    examples = copying.drawn(held_out_sentences(wordnet), tokenizers)
    rows = [copying.copying(one, examples) for one in models] if examples else [_NOTHING]
    heads, _ = roles.roles(model, wordnet)
    return {"copying": rows, "pieces": everyday.in_pieces(model.tokenizer), "roles": heads}


_NOTHING = {"examples": 0, "another": 0, "right": 0}


def card(
    found: Mapping[str, Any],
    peer: Mapping[str, Any] | None,
    model: qkv.Model,
    abouts: Sequence[Mapping[str, Any]],
    mean: bool = False,
) -> str:
    """Write the model card; `abouts` are the records of its runs, the first run first."""
    recipe, *later = (about["settings"]["recipe"] for about in abouts)
    last = later[-1] if later else recipe
    rows = {"chance": found["chance"]}
    rows |= {f"this one, {name}": row for name, row in found["layers"].items()}
    if peer is not None:
        rows |= {f"all-MiniLM-L6-v2, {name}": row for name, row in peer["layers"].items()}
    return CARD.format(
        layers=model.num_layers,
        heads=model.num_heads,
        dim=model.dim,
        vocabulary=model.config["vocab_size"],
        length=model.max_seq_length,
        numbers=sum(array.size for array in model.parameters.values()) / 1e6,
        steps=sum(about["step"] for about in abouts),
        tokens=sum(about["tokens"] for about in abouts),
        minutes=sum(about["seconds"] for about in abouts) / 60,
        in_runs=f", in {len(abouts)} chained runs" if later else "",
        run="first run" if later else "run",
        begin=recipe["begin"],
        late=recipe["late"],
        late_prior=recipe["late_prior"],
        recipe=recipes(abouts),
        then=(
            " Then the mean of the weights before and after that"
            " (how it was chosen, says `training/make.py`)."
            if mean
            else ""
        ),
        uses=found["uses"],
        pairs=found["pairs"],
        same=found["pairs_of_one_sense"],
        figures="\n".join(
            f"| {name} | {row['sense']:.3f} | {row['auc']:.3f} |" for name, row in rows.items()
        ),
        **_words_in_words(found, last),
        heads_table=heads_table(found["heads"], HEAD_SCORES),
        roles=roles.in_card(found["roles"]),
    )


def _words_in_words(found: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the card's values for masked words and everyday words."""
    now, *before = found["copying"]
    another, right = (
        in_words(now[name], now["examples"])
        + "".join(
            f" (the model before it: {in_words(one[name], one['examples'])})" for one in before
        )
        for name in ("another", "right")
    )
    words, tokens = (
        in_words(round(found[name]["top1"] * found[name][unit]), found[name][unit])
        for name, unit in (("masked", "words"), ("masked tokens", "tokens"))
    )
    pieces, alone = found["pieces"], recipe.get("alone", 0)
    return {
        "alone": f" and, {alone} times as often, in each example by itself" if alone else "",
        "together": _TOGETHER[recipe.get("alike", "token")],
        "in_sight": _IN_SIGHT.format(recipe["in_sight"]) if recipe.get("in_sight") else "",
        "choices": _CHOICES[recipe.get("held_out", 1)],
        "examples": str(now["examples"]),
        **{"another": another, "right": right, "words_named": words, "tokens_named": tokens},
        **{"everyday": str(len(everyday.WORDS)), "pieces": str(len(pieces))},
        "which": f" ({', '.join(pieces)})" if 0 < len(pieces) <= 20 else "",
    }


_TOGETHER = {
    "token": "a word may be seen elsewhere in its text",
    "word": "all its occurrences in its text are hidden or left together\n"
    "(inflected forms too made no difference in a trial, see `training/make.py`)",
    "base": "all its occurrences and inflected forms in its text are hidden or left together",
}
_IN_SIGHT = (
    "at the end {:g} is added, while it learns, to the logits of the content words in sight,\n"
    "so that it gives them less by itself (why, says `training/make.py`);\n"
)
_CHOICES = {
    1: "It has learned from those with 1, on which choices were made before.",
    2: "Choices were made on those with 1, which it has not seen either.",
}


def licence(folder: Path = FOLDER) -> str:
    """Return the licence notice at the beginning of WordNet's files."""
    lines = (folder / "data.noun").read_text(encoding="utf-8").splitlines()
    notice = [line for line in lines[:60] if line.startswith("  ")]
    return "\n".join(re.sub(r"^ +\d+ ?", "", line).rstrip() for line in notice) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m training.ship", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a run of training.make")
    parser.add_argument("-o", "--out", type=Path, help="the folder of the package")
    parser.add_argument("--earlier", type=Path, help="the folder of an encoder to compare with")
    parser.add_argument("--mean", action="store_true", help="average first and last weights")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="where its files are")
    given = parser.parse_args(arguments)
    place, found = ship(given.run, given.out, given.wordnet, earlier=given.earlier, mean=given.mean)
    *_, last = found["layers"].values()
    print(f"{place}: sense {last['sense']:.3f}, AUC {last['auc']:.3f} at the last layer")
    if place.parent == numbers.DATA:
        numbers.main([])  # the documentation quotes numbers of the packaged models


if __name__ == "__main__":
    command(main)
