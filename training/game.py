"""Choose the sentences of the game *Beat the model*: `python -m training.game BOOKS`.

BOOKS are the books, as for `training.books.read`. The command writes `game.json` beside the
included encoder. The file names the book (author, title, and the SHA-256 of the book's file), and
contains at most 60 of the book's sentences, each with its last word missing, and the missing words.

The book belongs to the part "test": no included model has read it, and it did not serve to choose
between models. The rule for the sentences does not run the model, so it cannot favour sentences
that the model guesses:

- A sentence has 6 to 12 words. All its letters after the first are lower case, except in "I", so it
contains no names. It has no quotation marks.
- Its first word is a function word, and none of the words in `BACK`, which refer to earlier
  sentences. It has two content words besides its last word, and no insult (`training.bias`). The
  model's vocabulary contains all its words.
- Its last word, the gap, is a content word that occurs once in the sentence. It is one of the first
  2,000 tokens of the model's vocabulary, which are common words.
- Chance decides between the sentences: they are sorted by the SHA-256 of `SEED` and the
  sentence. Of the sentences with the same last word, only the first is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.files import replacing
from qkv.see.analysis._words import FUNCTION_WORDS, is_function_word
from qkv.see.page.play import GAME
from training import books, command
from training.bias import is_insult
from training.play_cards import PLACE

AUTHOR, TITLE = "Jerome K. Jerome", "Three Men in a Boat"
MAX_SENTENCES, SEED = 60, 0
WORDS = range(6, 13)
COMMON = 2000
BACK = {
    *("and", "but", "so", "then", "or", "nor", "for", "yet"),
    *("this", "that", "these", "those", "it", "its", "such", "they"),
}
_SHAPE = re.compile(r"[A-Z][a-z]*(?:,? (?:I|[a-z]+))* [a-z]{3,}\.")
_WORD = re.compile("[A-Za-z]+")


def fits(sentence: str, vocabulary: Mapping[str, int]) -> bool:
    """Return whether a sentence may be in the game.

    >>> ids = {"silence": 700, "we": 60, "ate": 900, "our": 80, "beef": 5000, "in": 15}
    >>> fits("We ate our beef in silence.", ids), fits("In silence we ate our beef.", ids)
    (True, False)
    """
    words = [word.lower() for word in _WORD.findall(sentence)]
    *before, last = words
    return (
        _SHAPE.fullmatch(sentence) is not None
        and len(words) in WORDS
        and is_function_word(words[0])
        and words[0] not in BACK
        and len(set(before) - FUNCTION_WORDS) > 1
        and all(word in vocabulary for word in before)
        and not any(map(is_insult, words))
        and last not in before
        and not is_function_word(last)
        and vocabulary.get(last, COMMON) < COMMON
    )


def chosen(sentences: Iterable[str], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Choose sentences by the rule; return each with _ for the gap, and the missing word."""
    found = {one for one in sentences if _WORD.search(one) and fits(one, vocabulary)}
    lots = sorted(found, key=lambda one: hashlib.sha256(f"{SEED} {one}".encode()).digest())
    kept: dict[str, str] = {}
    for sentence in lots:
        before, _, last = sentence.removesuffix(".").rpartition(" ")
        kept.setdefault(last, f"{before} _.")
    return [(gapped, last) for last, gapped in kept.items()][:MAX_SENTENCES]


def game(
    read: Mapping[books.Book, Sequence[Sequence[str]]], vocabulary: Mapping[str, int]
) -> dict[str, Any]:
    """Return the content of game.json; `read` holds the passages of books."""
    [(book, runs)] = [
        (book, runs)
        for book, runs in read.items()
        if (book.author, book.title, book.part) == (AUTHOR, TITLE, "test")
    ]
    named = {name: getattr(book, name) for name in ("author", "title", "sha256")}
    return named | {"sentences": chosen((one for run in runs for one in run), vocabulary)}


def vocabulary_of(folder: Path) -> dict[str, int]:
    """Read the vocabulary of the model in a folder."""
    vocabulary: dict[str, int] = json.loads((folder / "tokenizer.json").read_bytes())["model"][
        "vocab"
    ]
    return vocabulary


def keep(folder: Path, kept: Mapping[str, Any]) -> None:
    """Write the sentences into the folder of a model, one sentence on each line."""
    head = ", ".join(f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in list(kept)[:-1])
    lines = ",\n".join(json.dumps(pair) for pair in kept["sentences"])
    with replacing(folder / GAME) as file:
        file.write(f'{{{head}, "sentences": [\n{lines}\n]}}\n'.encode())


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Choose the sentences for the included encoder, and write them."""
    parser = argparse.ArgumentParser(prog="python -m training.game", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("books", type=Path, help="a clone of the repository, or an archive")
    source = parser.parse_args(arguments).books
    kept = game(dict(books.read(source, ["test"])), vocabulary_of(PLACE))
    keep(PLACE, kept)
    say(f"{PLACE / GAME}: {len(kept['sentences'])} sentences of {TITLE} by {AUTHOR}")


if __name__ == "__main__":
    command(main)
