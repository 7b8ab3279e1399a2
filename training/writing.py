"""How well a decoder writes definitions: `python -m training.writing MODEL` prints it.

MODEL is a folder or a name. It is given "word:" for each of the hundred nouns of nouns.txt, and
writes at most 64 tokens, always the likeliest.

A text passes if it ends by itself, has at least four words, and no run of four tokens stands in it
twice. Beside how many pass it is counted how many of the hundred texts differ; how many stand word
for word in a training text; and whether what the definition says the word is, is so. That is the
definition's *head noun* (see `head_noun`), and it is right if one of its senses stands above one of
the word's in WordNet. The same is measured of the dictionary's own first definitions, which is
about the most that can be reached, since no grammar is read, and of what was written for the next
noun of the list, which is chance.

*Loss* is that of held-out examples behind their own word and definition, the end of the text
included, in nats: of a token, and of a word, which can be compared between vocabularies.

Heads are measured as `qkv.circuits.head_scores` does: *copies* is its induction on tokens drawn at
random that come twice in the same order, the others are on the held-out texts.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.circuits import head_scores
from training import command
from training.definitions import above, entries, hypernyms, read_nouns
from training.wordnet import CHOSEN, FOLDER, KEPT, REPORTED, WordNet, read

SHOWN = ("bank", "river", "music")  # what is written for these stands in the card
MOST_TOKENS = 64
LEAST_WORDS = 4
RUN = 4  # tokens that may not come twice
ROLE = 0.4  # from which on a head has one
HEAD_SCORES = ("copies", "previous", "same", "first", "induction")
_COPIED, _COPIES = 24, 64  # random tokens that come twice, and texts of such
_TOGETHER = 8192  # tokens that are run at once

_WORD = re.compile(r"\w+(?:[-'.]\w+)*")
_ASIDE = re.compile(r"\([^()]*\)")
_PASSED_OVER = re.compile(
    r"\b(?:any|one|some|each|all|several|either|(?:a|the|any)? ?(?:kind|type|sort|form|variety))"
    r"(?: (?:various|numerous|several))? of\b"
)
_END = re.compile(
    r"[,;:.]|\b(?:about|above|across|after|against|along|among|around|as|at|before|behind|below|"
    r"beneath|beside|between|beyond|by|down|during|for|from|in|inside|into|near|of|off|on|onto|out|"
    r"outside|over|past|since|than|through|throughout|to|toward|towards|under|until|up|upon|with|"
    r"within|without|that|which|who|whom|whose|what|where|when|while|if|because|is|are|was|were|"
    r"has|have|consisting|containing|having|used|made|given|done|known|located|required|being)\b"
)
_NO_NOUNS = {"a", "an", "the", "and", "or"}  # but the dictionary has some of them as one, too


@dataclass(frozen=True)
class Written:
    """What a decoder wrote behind "word:".

    Attributes:
        word: it.
        text: what follows the colon.
        ends: whether it came to an end.
        tokens: of the text, without the one that ends it.
    """

    word: str
    text: str
    ends: bool
    tokens: tuple[int, ...]

    @property
    def passes(self) -> bool:
        """Whether it ends, has words enough, and repeats nothing."""
        return self.ends and len(self.text.split()) >= LEAST_WORDS and not repeated(self.tokens)

    @property
    def definition(self) -> str:
        """What stands before the examples.

        >>> Written("bank", " sloping land. he sat on the bank", True, ()).definition
        'sloping land'
        """
        return re.split(r"[.!?] ", self.text.strip(), maxsplit=1)[0].rstrip(".")


def repeated(tokens: Sequence[int], run: int = RUN) -> bool:
    """Whether a run of so many tokens comes twice, even if the two overlap.

    >>> repeated([1, 2, 3, 4, 9, 1, 2, 3, 4]), repeated([1, 2, 3, 4, 9, 1, 2, 3, 5])
    (True, False)
    >>> repeated([7, 7, 7, 7]), repeated([7, 7, 7, 7, 7])
    (False, True)
    """
    runs = [tuple(tokens[at : at + run]) for at in range(len(tokens) - run + 1)]
    return len(set(runs)) < len(runs)


def written(model: qkv.Model, words: Sequence[str]) -> list[Written]:
    """What the model writes for each of some words."""
    texts = model.generate([f"{word}:" for word in words], max_new_tokens=MOST_TOKENS)
    found = []
    for word, text in zip(words, texts, strict=True):
        ends = text.finish_reason == "eos"
        found.append(Written(word, str(text), ends, tuple(text.ids[:-1] if ends else text.ids)))
    return found


def in_words(text: str) -> str:
    """The words of a text in small letters, with a blank on both sides of each.

    >>> in_words("Sloping land (beside water).")
    ' sloping land beside water '
    """
    return f" {' '.join(_WORD.findall(text.lower()))} "


def standing_in(texts: Iterable[str], training: Iterable[str]) -> list[bool]:
    """Which texts stand, word for word, within one of the training texts."""
    everything = "\n".join(map(in_words, training))
    return [in_words(text) in everything for text in texts]


def head_noun(definition: str, wordnet: WordNet) -> tuple[int, ...]:
    """The senses, as a noun, of the word that says what the thing is; none if there is no such.

    It is the last noun before what begins to tell more: a comma, a preposition ("of", "in", "to"),
    a relative ("that", "which", "who") or a participle that often stands there ("used", "made").
    What stands in brackets is left out first, and "any of various", "a kind of" and the like are
    passed over. In "sloping land beside water" it is "land", in "a person who rules" "person".
    """
    plain = " ".join(_ASIDE.sub(" ", definition).lower().split())
    begin = _PASSED_OVER.match(plain)
    plain = plain[begin.end() if begin else 0 :]
    end = _END.search(plain)
    words = _WORD.findall(plain[: end.start() if end else None])
    for word in reversed([word for word in words if word not in _NO_NOUNS]):
        senses = [wordnet.senses(base, "n") for base in sorted(wordnet.bases(word, "n"))]
        if any(senses):
            return tuple(number for found in senses for number in found)
    return ()


def is_above(
    definition: str, word: str, wordnet: WordNet, direct: Sequence[tuple[int, ...]]
) -> bool:
    """Whether a sense of the definition's head noun stands above one of the word's."""
    over = above(wordnet.senses(word.lower(), "n"), direct)
    return not over.isdisjoint(head_noun(definition, wordnet))


def definitions(
    model: qkv.Model, wordnet: WordNet, words: Sequence[str], folder: Path = FOLDER
) -> dict[str, Any]:
    """The counts over what a model writes for some words, and the texts."""
    found, direct = written(model, words), hypernyms(folder)
    training = [one.text for one in entries(wordnet)]
    said = [one.definition for one in found]
    firsts = [wordnet.synsets[wordnet.senses(word, "n")[0]].definition for word in words]
    others = [*said[1:], *said[:1]]  # each word that of the next one

    def right(texts: Sequence[str]) -> int:
        pairs = zip(texts, words, strict=True)
        return sum(is_above(text, word, wordnet, direct) for text, word in pairs)

    own = [
        one.definition in {wordnet.synsets[number].definition for number in wordnet.senses(word)}
        for one, word in zip(found, words, strict=True)
    ]
    return {
        "words": len(found),
        "pass": sum(one.passes for one in found),
        "end": sum(one.ends for one in found),
        "long_enough": sum(len(one.text.split()) >= LEAST_WORDS for one in found),
        "repeat": sum(repeated(one.tokens) for one in found),
        "differ": len({one.text.strip() for one in found}),
        "word_for_word": sum(standing_in([one.text for one in found], training)),
        "definition_word_for_word": sum(standing_in(said, training)),
        "own_definition": sum(own),
        "head_noun": right(said),
        "head_noun_of_the_dictionary": right(firsts),
        "head_noun_of_others": right(others),
        "texts": [{"word": one.word, "text": one.text, "passes": one.passes} for one in found],
    }


def held_out_loss(model: qkv.Model, wordnet: WordNet, twelfth: int = REPORTED) -> dict[str, Any]:
    """How surprised a model is by held-out examples behind their own words and definitions.

    Args:
        model: a decoder with a tokenizer, and a token that ends texts.
        wordnet: it.
        twelfth: of the examples.

    Returns:
        "examples", "tokens", "words", "loss" of a token and "word_loss" of a word in nats, and
        "perplexity" and "word_perplexity", which are their exponentials. The end of a text is a
        token, and belongs to its last word.
    """
    tokenizer, end = model.tokenizer, model.config["eos_token_id"]
    assert tokenizer is not None
    found = entries(wordnet, twelfth)
    texts = [one.text for one in found]
    rows = []  # ids with the end, and how many of them are of the example
    for text, one in zip(tokenizer.tokenize_batch(texts), found, strict=True):
        begin = len(one.text) - len(one.examples[0])
        ids = np.append(text.ids[: (model.max_seq_length or len(text)) - 1], end)
        of_it = sum(b > begin for _, b in text.offsets[: len(ids) - 1])
        rows.append((ids, of_it + 1))
    nats, tokens = 0.0, 0
    for part in _parts(rows):
        nats += _nats(model, part)
        tokens += sum(count for _, count in part)
    words = sum(len(one.examples[0].split()) for one in found)
    return {
        "examples": len(found),
        "tokens": tokens,
        "words": words,
        "loss": nats / tokens,
        "perplexity": math.exp(nats / tokens),
        "word_loss": nats / words,
        "word_perplexity": math.exp(nats / words),
    }


def _parts(rows: Sequence[tuple[Array, int]]) -> Iterable[list[tuple[Array, int]]]:
    """Those of like length together, some thousand tokens at a time."""
    part: list[tuple[Array, int]] = []
    for row in sorted(rows, key=lambda row: len(row[0])):
        if part and (len(part) + 1) * len(row[0]) > _TOGETHER:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _nats(model: qkv.Model, part: Sequence[tuple[Array, int]]) -> float:
    """The sum of the losses of the last so many tokens of each row."""
    longest = max(len(ids) for ids, _ in part)
    batch = np.zeros((len(part), longest), np.int64)
    for row, (ids, _) in zip(batch, part, strict=True):
        row[: len(ids)] = ids
    seen = np.arange(longest) < np.array([[len(ids)] for ids, _ in part])
    logits = model(batch, seen).logits  # (B, T, V)
    assert logits is not None
    total = 0.0
    for row, (ids, count) in zip(logits, part, strict=True):
        wide = row[len(ids) - 1 - count : len(ids) - 1].astype(np.float64)
        wide -= wide.max(axis=-1, keepdims=True)
        logs = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
        total -= float(logs[np.arange(count), ids[-count:]].sum())
    return total


def copying(model: qkv.Model, seed: int = 0) -> dict[str, Any]:
    """How much a model copies from tokens drawn at random, all different, that come twice.

    Returns:
        "tokens": how many come twice; "first" and "second": the loss of a token in the first copy
        and in the second, in nats; "heads": of each (layers, heads) the mean weight on the token
        behind the earlier one.

    Source:
        Olsson et al. 2022, "In-context Learning and Induction Heads".
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None
    plain = [index for index in range(len(tokenizer)) if not tokenizer.is_special(index)]
    rng = np.random.default_rng(seed)
    count = min(_COPIED, len(plain), (model.max_seq_length or 2 * _COPIED) // 2)
    once = np.stack([rng.choice(plain, count, replace=False) for _ in range(_COPIES)])
    twice = np.concatenate([once, once], axis=1)  # (B, T)
    both = [_nats(model, [(ids[: (n + 1) * count], count - 1) for ids in twice]) for n in range(2)]
    first, second = (nats / (_COPIES * (count - 1)) for nats in both)
    return {
        "tokens": count,
        "heads": head_scores(model, list(twice), "induction")["induction"],
        "first": first,
        "second": second,
    }


def evaluate(
    model: qkv.Model, wordnet: WordNet, folder: Path = FOLDER, twelfth: int = REPORTED
) -> dict[str, Any]:
    """Everything that there is to say about a decoder, as JSON can hold it.

    Args:
        model: the decoder.
        wordnet: as `read` gives it.
        folder: where that was read.
        twelfth: of the examples, what is measured on them.
    """
    copied = copying(model)
    texts = [one.text for one in entries(wordnet, twelfth)]
    on_texts = {"copies": copied.pop("heads"), **head_scores(model, texts, HEAD_SCORES[1:])}
    return {
        "model": model.name,
        "shown": [{"word": one.word, "text": one.text} for one in written(model, SHOWN)],
        "definitions": definitions(model, wordnet, read_nouns(), folder),
        "held_out": held_out_loss(model, wordnet, twelfth),
        "copying": copied,
        "heads": [
            {"layer": layer, "head": head}
            | {name: float(on_texts[name][layer, head]) for name in HEAD_SCORES}
            for layer in range(model.num_layers)
            for head in range(model.num_heads)
        ],
    }


def shown(found: dict[str, Any]) -> str:
    """The same as lines of plain text."""
    of, lost, copied = found["definitions"], found["held_out"], found["copying"]
    n = of["words"]
    return "\n".join(
        [
            *(f"{one['word']}:{one['text']}" for one in found["shown"]),
            "",
            *(
                f"{one['word']}:{one['text']}{'' if one['passes'] else '  (does not pass)'}"
                for one in of["texts"]
            ),
            "",
            f"{found['model']}: of {n} texts {of['pass']} pass ({of['end']} end, "
            f"{of['long_enough']} are long enough, {of['repeat']} repeat a run), "
            f"{of['differ']} differ",
            f"word for word in a training text: {of['word_for_word']} as a whole, "
            f"{of['definition_word_for_word']} definitions, {of['own_definition']} of their word",
            f"head noun above the word: {of['head_noun']} (the dictionary's definitions "
            f"{of['head_noun_of_the_dictionary']}, those written for the next "
            f"word {of['head_noun_of_others']})",
            f"{lost['examples']:,} held-out examples: loss {lost['loss']:.3f} a token, perplexity "
            f"{lost['perplexity']:.1f}; {lost['word_loss']:.3f} a word, perplexity "
            f"{lost['word_perplexity']:.0f}",
            f"random tokens: loss {copied['first']:.2f}, the second time {copied['second']:.2f}",
            "",
            "head  " + " ".join(f"{name:>9}" for name in HEAD_SCORES),
            *(
                f"{row['layer']}.{row['head']:<3} "
                + " ".join(f"{row[name]:9.2f}" for name in HEAD_SCORES)
                for row in found["heads"]
            ),
        ]
    )


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(prog="python -m training.writing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="a folder, or a name")
    parser.add_argument("--json", action="store_true", help="numbers, not lines")
    parser.add_argument(
        "--choose", action="store_true", help="on the twelfth of the examples kept for choices"
    )
    parser.add_argument(
        "--held_out", type=int, default=KEPT, help=f"twelfths that it was not trained on ({KEPT})"
    )
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="where its files are")
    given = parser.parse_args(arguments)
    wordnet = read(given.wordnet, kept=given.held_out)
    twelfth = CHOSEN if given.choose else REPORTED
    found = evaluate(qkv.load(given.model), wordnet, given.wordnet, twelfth)
    say(json.dumps(found, indent=2) if given.json else shown(found))


if __name__ == "__main__":
    command(main)
