"""Measure how often a model fills a masked word by repeating a visible word of the sentence.

`python -m training.copying MODEL...` measures all models on the same sentences and prints the
result; MODEL is a folder or a name. Without a MODEL, the command measures the default model.

Method. 800 of the held-out examples with 5 to 16 words are drawn at random. In each example, one
random content word is masked: a word that occurs once, and is one token in the vocabulary of every
model. The model's first guess is the token with the largest logit; the logits are not adjusted.
*Another* is the share of examples in which the guess is another content word of the sentence. If
the sentence contains "Bank's", the guess "bank" also counts. *Right* is the share of examples in
which the guess is the masked word. A guess that is a subword counts neither for *another* nor for
*right*. Intervals are Wilson's 95% intervals.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.see.analysis._words import is_function_word
from qkv.text import Tokenizer
from training import command
from training.guesses import named
from training.senses import held_out_sentences
from training.shares import in_words, wilson
from training.wordnet import CHOSEN, FOLDER, REPORTED, read

EXAMPLES = 800
SHORTEST, LONGEST = 5, 16  # the minimum and maximum number of words of a sentence
MOST_TOKENS = 64  # maximum number of tokens of a sentence, including special tokens
_WORD = re.compile(r"[^\W_]+(?:['\N{RIGHT SINGLE QUOTATION MARK}][^\W_]+)*")


@dataclass(frozen=True)
class Example:
    """A sentence with one word to mask.

    Attributes:
        sentence: the unchanged sentence.
        start: the index of the word's first character.
        end: the index after the word's last character.
        others: the other content words of the sentence, in lower case.
    """

    sentence: str
    start: int
    end: int
    others: frozenset[str]

    @property
    def word(self) -> str:
        """Return the word in lower case."""
        return self.sentence[self.start : self.end].lower()


def examples_of(sentence: str) -> list[Example]:
    """Make an example for each content word that occurs once in a sentence of 5 to 16 words.

    >>> [one.word for one in examples_of("The baker put the bread into the oven, then more bread.")]
    ['baker', 'put', 'oven']
    """
    words = [(match[0].lower(), *match.span()) for match in _WORD.finditer(sentence)]
    if not SHORTEST <= len(words) <= LONGEST:
        return []
    content = [one for one in words if one[0].isalpha() and not is_function_word(one[0])]
    every = {re.split(r"\W", word)[0] for word, _, _ in words if not is_function_word(word)}
    counts = Counter(re.split(r"\W", word)[0] for word, _, _ in words)
    return [
        Example(sentence, start, end, frozenset(every - {word}))
        for word, start, end in content
        if counts[word] == 1
    ]


def drawn(
    sentences: Sequence[str],
    tokenizers: Sequence[Tokenizer],
    *,
    count: int = EXAMPLES,
    seed: int = 0,
) -> list[Example]:
    """Draw examples, at most one per sentence.

    Every tokenizer reads the masked word of each example as one token.

    Args:
        sentences: the sentences to draw from.
        tokenizers: the tokenizers of all models to measure.
        count: the maximum number of examples.
        seed: the seed of the draw.
    """
    rng = np.random.default_rng(seed)
    found: list[Example] = []
    for number in rng.permutation(len(sentences)):
        usable = [
            one
            for one in examples_of(sentences[number])
            if all(place_of(one, tokenizer) is not None for tokenizer in tokenizers)
        ]
        if usable:
            found.append(usable[int(rng.integers(len(usable)))])
            if len(found) == count:
                break
    return found


def place_of(example: Example, tokenizer: Tokenizer) -> int | None:
    """Return the position of the masked word, or None if the word is several tokens or unknown."""
    text = tokenizer.tokenize(example.sentence)
    span = (example.start, example.end)
    if len(text) > MOST_TOKENS or span not in text.offsets:
        return None
    position = text.offsets.index(span)
    return None if text.tokens[position] == tokenizer.unknown else position


def copying(model: qkv.Model, examples: Sequence[Example]) -> dict[str, Any]:
    """Count the right first guesses, and the first guesses that repeat a visible content word."""
    assert model.tokenizer is not None
    positions = [place_of(one, model.tokenizer) for one in examples]
    ids = [model.tokenizer.tokenize(one.sentence).ids for one in examples]
    if not ids or None in positions:
        raise ValueError(
            f"copying: the masked word is not a single token of {model.name} in "
            f"{positions.count(None)} of {len(examples)} examples: draw the examples "
            "with this model's tokenizer"
        )
    guesses = named(model, ids, [[position] for position in positions if position is not None])
    if guesses is None:
        raise ValueError(
            f"copying: {model.name} has no mask token or no language-model head: "
            "choose another model"
        )
    words = list(_words(model.tokenizer, [int(one[0]) for one in guesses]))
    return {
        "model": model.name,
        "examples": len(examples),
        "another": sum(word in one.others for word, one in zip(words, examples, strict=True)),
        "right": sum(word == one.word for word, one in zip(words, examples, strict=True)),
        "guesses": words,
    }


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    names = {index: name for name, index in tokenizer.vocabulary.items()}
    yield from (names[one].lower() for one in ids)


def shown(found: Sequence[dict[str, Any]]) -> str:
    """Format the result as a table of plain text."""
    width = max(len(row["model"]) for row in found)
    lines = [f"{found[0]['examples']} examples, the same for all models", ""]
    lines.append(f"{'':{width}} {'another':>22} {'right':>22}")
    for row in found:
        cells = (in_words(row[name], row["examples"]) for name in ("another", "right"))
        lines.append(f"{row['model']:{width}} " + " ".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure some models on the same examples."""
    parser = argparse.ArgumentParser(prog="python -m training.copying", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="*", help="folders or names (default: qkv's default model)")
    parser.add_argument("--seed", type=int, default=0, help="random seed for the examples (0)")
    parser.add_argument(
        "--choose", action="store_true", help="measure on the examples kept for choosing models"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet's files")
    given = parser.parse_args(arguments)
    models = [qkv.load(name) for name in given.models or [None]]
    sentences = held_out_sentences(read(given.wordnet), CHOSEN if given.choose else REPORTED)
    tokenizers = [model.tokenizer for model in models if model.tokenizer is not None]
    examples = drawn(sentences, tokenizers, seed=given.seed)
    found = [copying(model, examples) for model in models]
    if given.json:
        for row in found:
            for name in ("another", "right"):
                row[f"{name}, from, to"] = wilson(row[name], row["examples"])
        say(json.dumps(found, indent=2))
    else:
        say(shown(found))


if __name__ == "__main__":
    command(main)
