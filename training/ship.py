"""Make the folder of an encoder that has read only WordNet: `python -m training.ship RUN -o DIR`.

RUN is the folder of a run of `training.make`. The new folder contains the model in float16, its
tokenizer, a card with results on held-out examples, and WordNet's licence.
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
from training import command, copying, everyday, play_cards, role_file, roles, told
from training.cards import abouts_of, heads_table, recipes
from training.running import mean_of
from training.senses import HEAD_SCORES, evaluate, held_out_sentences, held_out_uses, senses
from training.shares import in_words
from training.wordnet import FOLDER, WordNet, read

PEER = "minilm"

CARD = """---
license: apache-2.0
language: en
pipeline_tag: fill-mask
---

# WordNet encoder

A small BERT: {layers} layers, {heads} heads, vectors of {dim} numbers, a
vocabulary of {vocabulary:,} lower-case WordPieces, {length} positions, {numbers:.1f} million
parameters in float16. The model is for studying attention and for experiments without a download.
It knows words mainly from their dictionary definitions; for search or ranking, use a larger model.

## Training

Trained with `qkv.learn` alone, on WordNet 3.0 from Debian's `wordnet-base`: {steps:,} steps,
{tokens:,} tokens, {minutes:.0f} minutes{in_runs}. The model learned to predict masked words in
texts of the form "word, synonyms: definition. examples"{alone}. {together}. {in_sight}After
{begin:.0%} of the {run}, the model also learned to distinguish the senses (meanings) of a word. The
texts for this objective are example sentences, and texts that consist of a word and its definition
(half of the definition's tokens are masked). The objective pulls the vector of a word towards the
mean vector of the definition of its sense, and away from other definitions, such as those of its
other senses. The log frequency of each sense is added to the logits of the senses. In the
last part of the run (after {late:.0%}), {late_prior:g} times the log frequency is added. This pulls
rare senses, such as senses without an example sentence, more strongly towards their words.
`make dictionary` repeats the training. On another processor, the numbers are close to these but not
equal, because the processor rounds differently.

Recipe (name and value of each setting): {recipe}{then}

## What it knows

The numbers below are measured on example sentences of WordNet that neither the tokenizer nor the
training has seen: the sentences with `int(sha256(sentence).hexdigest(), 16) % 12 == 0`. {choices}
*Sense*: how often the vector of a word in a sentence is nearer to the definition of the right sense
than to the definitions of the word's other senses ({uses:,} uses of words). *AUC*: the probability
that two uses of a word in the same sense are nearer to each other than two uses in different senses
({pairs} pairs, {same} of them in the same sense). The vectors of the token table do not depend on
the context.

| vectors | sense | AUC |
| --- | --- | --- |
{figures}

When 15% of the tokens in each sentence are masked (at least one token), the model correctly
predicts {tokens_named} of these tokens. When 15% of the words are masked, it correctly predicts
{words_named} of these words. A word counts only if all its subwords are right. In {examples} of
these sentences (5 to 16 words each), one content word is masked, which occurs nowhere else in the
sentence. The share of first guesses that repeat a visible content word of the sentence is
{another}. The share of right first guesses is {right}.
Of {everyday} everyday words, {pieces} are split or unknown{which}. Brackets contain 95% intervals.

## What its heads do

The table lists the mean weight that a token of these sentences gives to the previous token, the
next token, all tokens equal to it (itself included), the first token ([CLS]) and the last token
([SEP]). `uniform` is the entropy of the weights, divided by the largest possible entropy.

{heads_table}

{roles}

## Licence

The model is under Apache-2.0, as qkv is. WordNet is copyright 2006 by Princeton University; its
licence is in LICENSE.wordnet.
"""


def ship(
    run: Path,
    place: Path,
    wordnet_folder: Path = FOLDER,
    peer: str | None = PEER,
    mean: bool = False,
) -> dict[str, Any]:
    """Write the folder, and measure the model in it.

    Args:
        run: the folder of an encoder's run.
        place: the folder to write.
        wordnet_folder: the folder of WordNet's files.
        peer: another model. If this model can be loaded, the card shows how well both models
            distinguish the senses of words.
        mean: whether to write the mean of the run's first and last weights.

    Returns:
        The measured figures.

    Raises:
        FileNotFoundError: the run or WordNet is missing.
        ValueError: `mean` is set and the run did not start from another run.

    Source:
        Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", equation 1, for the mean of
        weights. The mean keeps the gains of a short run, and loses less of what the model learned
        before that run.
    """
    abouts = abouts_of(run)
    lacking = abouts[0]["settings"]["recipe"].get("after") if abouts else run
    if lacking:
        raise FileNotFoundError(
            f"ship: {lacking} does not contain a run: make one with training.make"
        )
    recipe = abouts[-1]["settings"]["recipe"]
    wordnet = read(wordnet_folder, kept=recipe["held_out"])
    trained = _mean(run, recipe.get("after")) if mean else qkv.load(run)
    small = trained.with_parameters(trained.parameters, np.float16)
    small.save(place)
    model = qkv.load(place)
    found = evaluate(model, wordnet) | _of_words(model, wordnet)
    stories = kept_stories(model, run, place)
    text = told.in_card(card(found, _beside(peer, wordnet), model, abouts, mean), stories)
    keep_card(place, text, wordnet_folder)
    keep_lesson(model, place)
    return found


def keep_card(place: Path, text: str, wordnet_folder: Path) -> None:
    """Write a model card, and the licence of WordNet, into the model's folder."""
    for name, content in (("README.md", text), ("LICENSE.wordnet", licence(wordnet_folder))):
        with replacing(place / name) as file:
            file.write(content.encode())


def _mean(run: Path, after: str | None) -> qkv.Model:
    """Load a run's model; replace its weights by the mean of the run's first and last weights."""
    if not after:
        raise ValueError(f"ship: {run} did not continue another run: leave out --mean")
    return mean_of(run, Path(after))


def keep_lesson(model: qkv.Model, place: Path) -> None:
    """Write two files: one with the lesson's cards, and one with the roles of the model's heads.

    The roles come from the model card, which must already be in `place`.
    """
    role_file.keep(place)
    kept = play_cards.lesson(model)
    if gone := play_cards.missing(kept):
        print(f"ship: no card was found for {', '.join(gone)}: see training.play_cards")
    play_cards.keep(place, kept)


def kept_stories(model: qkv.Model, run: Path, place: Path) -> dict[str, Any]:
    """Write the stories in which the model still makes the recorded guesses.

    The function reads the stories from the run's folder. If the run has no stories, the function
    reads those of the model's folder. The function writes into the model's folder.
    """
    kept = told.kept_in(run if (run / told.STORIES).exists() else place)
    still = told.again(model, kept)
    gone = len(kept["stories"]) - len(still["stories"])
    if gone:
        print(
            f"ship: {gone} stories are left out because this model's guesses differ: choose "
            "other stories with training.stories --keep"
        )
    told.keep(place, still)
    return still


def _beside(peer: str | None, wordnet: WordNet) -> dict[str, Any] | None:
    """Measure senses with the model `peer`, if that model can be loaded."""
    if peer is not None:
        try:
            return senses(qkv.load(peer), wordnet, held_out_uses(wordnet))
        except FileNotFoundError:
            print(f"ship: {peer} was not found: the card does not compare the model with it")
    return None


def _of_words(model: qkv.Model, wordnet: WordNet) -> dict[str, Any]:
    """Measure how a model repeats and splits words, and the roles of the model's heads."""
    assert model.tokenizer is not None
    examples = copying.drawn(held_out_sentences(wordnet), [model.tokenizer])
    copied = copying.copying(model, examples) if examples else _NOTHING
    heads, _ = roles.roles(model, wordnet)
    return {"copying": copied, "pieces": everyday.in_pieces(model.tokenizer), "roles": heads}


_NOTHING = {"examples": 0, "another": 0, "right": 0}


def card(
    found: Mapping[str, Any],
    peer: Mapping[str, Any] | None,
    model: qkv.Model,
    abouts: Sequence[Mapping[str, Any]],
    mean: bool = False,
) -> str:
    """Write the model card; `abouts` are the records of the model's runs, in order."""
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
            " The included weights are the mean of the weights before and after these last steps"
            " (`training/make.py` explains the choice)."
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
    """Return the values that the card reports about masked words and everyday words."""
    copied = found["copying"]
    another, right = (in_words(copied[name], copied["examples"]) for name in ("another", "right"))
    words, tokens = (
        in_words(round(found[name]["top1"] * found[name][unit]), found[name][unit])
        for name, unit in (("masked", "words"), ("masked tokens", "tokens"))
    )
    pieces, alone = found["pieces"], recipe.get("alone", 0)
    return {
        "alone": f", and in texts that contain only an example ({alone} copies of each)"
        if alone
        else "",
        "together": _TOGETHER[recipe.get("alike", "token")],
        "in_sight": _IN_SIGHT.format(recipe["in_sight"]) if recipe.get("in_sight") else "",
        "choices": _CHOICES[recipe.get("held_out", 1)],
        "examples": str(copied["examples"]),
        **{"another": another, "right": right, "words_named": words, "tokens_named": tokens},
        **{"everyday": str(len(everyday.WORDS)), "pieces": str(len(pieces))},
        "which": f" ({', '.join(pieces)})" if 0 < len(pieces) <= 20 else "",
    }


_TOGETHER = {
    "token": "A masked word may be visible elsewhere in its text",
    "word": "All occurrences of a word in its text are masked together or not at all.\n"
    "Masking inflected forms as well did not change the results (see `training/make.py`)",
    "base": "All occurrences and inflected forms of a word are masked together or not at all",
}
_IN_SIGHT = (
    "At the end of training, {:g} is added to the logits of visible content words,\n"
    "so that the model learns to make these logits smaller (see `training/make.py`).\n"
)
_CHOICES = {
    1: "Settings were chosen on the examples whose hash modulo 12 is 1; then the model was also\n"
    "trained on these examples.",
    2: "Settings were chosen on the examples whose hash modulo 12 is 1; the model was not trained\n"
    "on these examples either.",
}


def licence(folder: Path = FOLDER) -> str:
    """Return the licence notice at the beginning of WordNet's files."""
    lines = (folder / "data.noun").read_text(encoding="utf-8").splitlines()
    notice = [line for line in lines[:60] if line.startswith("  ")]
    return "\n".join(re.sub(r"^ +\d+ ?", "", line).rstrip() for line in notice) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the folder, and print the figures of the last layer."""
    parser = argparse.ArgumentParser(prog="python -m training.ship", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, help="the folder of a run of training.make")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--mean", action="store_true", help="mean of the first and last weights")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    found = ship(given.run, given.out, given.wordnet, mean=given.mean)
    *_, last = found["layers"].values()
    print(f"{given.out}: sense {last['sense']:.3f}, AUC {last['auc']:.3f} at the last layer")


if __name__ == "__main__":
    command(main)
