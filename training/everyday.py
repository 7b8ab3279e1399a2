"""Count how many of 200 everyday words a tokenizer splits into subwords or does not know.

`python -m training.everyday MODEL` prints the count. MODEL is a folder, a name or a tokenizer.json;
if MODEL is not given, qkv's default model is used.

The list contains words that beginners of English learn first. Each word occurs once, in American
spelling and in lower case. We chose the words before we built any tokenizer for them, and did not
look at their frequency in WordNet:

- nouns for things at home (20), food (20), the body (12), animals (16), people (12) and places in
  town (10): the first half of each kind is in the singular, the second half in the plural;
- 15 verbs in four forms each: the base form, the past form, the form with -ing and the form with
  -s;
- adjectives (20): fourteen unchanged, three with -er, three with -est;
- words of time (20), and greetings and farewells (10).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import qkv
from qkv.text import SubwordTokenizer, Tokenizer
from training import command
from training.shares import in_words

KINDS = {
    "home": """
        table bed door kitchen lamp soap towel mirror fridge sofa
        chairs windows plates cups spoons forks keys pillows shelves toys
    """,
    "food": """
        bread milk cheese soup pizza rice butter coffee juice salad
        apples eggs potatoes bananas tomatoes cookies sandwiches carrots grapes onions
    """,
    "body": "head nose mouth stomach neck back hands eyes ears feet legs fingers",
    "animals": """
        cat horse bird mouse pig rabbit elephant sheep
        dogs cows ducks bees lions monkeys chickens spiders
    """,
    "people": """
        mother father sister grandma aunt baby brothers parents children cousins friends neighbors
    """,
    "town": "school street shop hospital park houses cars buses trains bridges",
    "verbs": """
        walk walked walking walks eat ate eating eats drink drank drinking drinks
        sleep slept sleeping sleeps cook cooked cooking cooks play played playing plays
        write wrote writing writes run ran running runs swim swam swimming swims
        buy bought buying buys wash washed washing washes open opened opening opens
        laugh laughed laughing laughs talk talked talking talks drive drove driving drives
    """,
    "adjectives": """
        hungry thirsty tired happy sad angry cold hot clean dirty expensive beautiful funny sick
        bigger older faster biggest youngest tallest
    """,
    "time": """
        today tomorrow yesterday morning afternoon evening tonight week month year
        hour minutes monday friday sunday winter summer birthday early late
    """,
    "greetings": "hello hi goodbye bye thanks please sorry welcome yes okay",
}
WORDS = tuple(word for words in KINDS.values() for word in words.split())


def in_pieces(tokenizer: Tokenizer, words: Sequence[str] = WORDS) -> list[str]:
    """Return the words that are not one token of the vocabulary.

    >>> from qkv.learn import train_tokenizer
    >>> tokenizer = train_tokenizer(["the cat sat"] * 9, "wordpiece", 40)
    >>> in_pieces(tokenizer, ["cat", "cats", "\N{SNOWMAN}"])
    ['cats', '☃']
    """
    return [word for word in words if not is_whole(tokenizer, word)]


def is_whole(tokenizer: Tokenizer, word: str) -> bool:
    """Return whether a word by itself is one known token."""
    text = tokenizer.tokenize(word)
    real = [token for token, special in zip(text.tokens, text.special, strict=True) if not special]
    return len(real) == 1 and real[0] != tokenizer.unknown


def tokenizer_of(given: str | None) -> Tokenizer:
    """Load the tokenizer of a model, or of a tokenizer.json.

    Raises:
        ValueError: the model has no tokenizer.
    """
    if given is not None and given.endswith(".json"):
        return SubwordTokenizer.from_file(Path(given))
    model = qkv.load(given)
    if model.tokenizer is None:
        raise ValueError(f"everyday: {model.name} has no tokenizer; pass a model that has one")
    return model.tokenizer


def shown(tokenizer: Tokenizer) -> str:
    """Return a report: the number of split or unknown words, and these words."""
    found = in_pieces(tokenizer)
    share = in_words(len(found), len(WORDS))
    return f"split or unknown: {len(found)} of {len(WORDS)}, {share}: {', '.join(found)}"


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Print the report for one tokenizer."""
    parser = argparse.ArgumentParser(prog="python -m training.everyday", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", help="folder, name or tokenizer.json (default model)")
    say(shown(tokenizer_of(parser.parse_args(arguments).model)))


if __name__ == "__main__":
    command(main)
