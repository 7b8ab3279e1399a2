"""Which heads of a model have a role, by a rule, on held-out examples.

`python -m training.roles MODEL` prints it; MODEL is a folder, a name or nothing for the default.

The rule. A head has a role if one of these is 0.4 or more:

- the mean weight, over all tokens, on the previous token, the next, all tokens that are the same as
  it (itself included), the first ([CLS]) or the last ([SEP]), as `training.senses` measures them;
- the mean weight of a relation between words, over all pairs of words that stand in it, if that is
  more than the weight between other words at the same places: by 0.1 or more at the lower end of
  the 95% interval, both on the examples that choices are made on and on those of the report.

At most three of the heads that are counted have no role but *first* or *last*.

Relations. Each is of a word that looks and one that is looked at, in both directions:

- *object*: a verb and its object, where the example is of that verb's synset and the verb is
  followed by an article or its like, at most two other words, and a noun;
- *noun of a preposition*: a preposition before the same;
- *noun of an article*: an article or its like, and its noun, with one or two words between;
- *subject*: a preposition and the nearest pronoun before it that is a subject (he, they);
- *verb of a preposition*: a preposition and the nearest form of a verb before it, in -ed or -ing;
- *auxiliary*: an article or its like and the nearest auxiliary verb behind it (is, will).

The last three were chosen by what heads do on the examples that choices are made on. The noun is
the last word before a function word, a mark or the end; WordNet has it as a noun, and not as an
adverb. What is nearest has no mark between. A weight between words is summed over the pieces of the
word that is looked at, and is the mean of those of the word that looks (Clark et al. 2019, "What
Does BERT Look At?", section 4). Each pair is compared with the words of another sentence at the
same places that are no such pair, punctuation not counted.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.arrays import Array
from qkv.see.analysis.words import is_function_word
from training import command
from training.senses import heads, held_out_sentences, traces
from training.wordnet import CHOSEN, FOLDER, REPORTED, Use, WordNet, read

LEAST, MORE = 0.4, 0.1
OF_PLACES = ("previous", "next", "same")
OF_ENDS = ("first", "last")
MOST_OF_ENDS = 3
_ARTICLES = "the a an his her my your our their its this that these those some"
_PREPOSITIONS = """
of in on at by for with about against between into onto through during before after above below
to toward towards from down off over under across along around behind beside near within without
upon inside outside
"""
_SUBJECTS = "i you he she it we they who"
_AUXILIARIES = """
is are was were be been being has have had do does did will would can could may might must shall
should
"""
ARTICLES, PREPOSITIONS, SUBJECTS, AUXILIARIES = (
    frozenset(words.split()) for words in (_ARTICLES, _PREPOSITIONS, _SUBJECTS, _AUXILIARIES)
)
BETWEEN = 2  # words between an article and its noun, at most
TRIES = 200  # of sentences, until one has words at the places that are wanted
_TOKEN = re.compile(r"[^\W_]+(?:['./-][^\W_]+)*|\S")

Span = tuple[int, int]  # characters of a sentence
Pair = tuple[str, Span, Span]  # a sentence, the word that looks, the word that is looked at
RELATIONS = {
    "verb to object": ("object", False),
    "object to verb": ("object", True),
    "preposition to noun": ("preposition", False),
    "noun to preposition": ("preposition", True),
    "article to noun": ("article", False),
    "noun to article": ("article", True),
    "preposition to subject": ("subject", False),
    "subject to preposition": ("subject", True),
    "preposition to verb": ("verb", False),
    "verb to preposition": ("verb", True),
    "article to auxiliary": ("auxiliary", False),
    "auxiliary to article": ("auxiliary", True),
}


@dataclass(frozen=True)
class Measured:
    """The weight between the words of a relation.

    Attributes:
        mean: (layers, heads) over all pairs.
        other: the same between other words at the same places.
        low: the lower end of the 95% interval of their difference.
        pairs: how many there are.
    """

    mean: Array
    other: Array
    low: Array
    pairs: int

    def holds(self) -> Array:
        """Of which heads it is a role, as far as these examples say."""
        return (self.mean >= LEAST) & (self.low >= MORE)


def noun_after(words: Sequence[tuple[str, Span]], at: int, wordnet: WordNet) -> int | None:
    """The noun of the article at a place, if one stands there.

    Args:
        words: of a sentence, in small letters, marks among them.
        at: where the article should be.
        wordnet: knows nouns.
    """
    if at >= len(words) or words[at][0] not in ARTICLES:
        return None
    end = at + 1
    while end < len(words) and words[end][0].isalpha() and not is_function_word(words[end][0]):
        end += 1
    last = end - 1
    if not 0 < last - at <= BETWEEN + 1:
        return None
    word = words[last][0]
    is_noun = any((base, "n") in wordnet.index for base in wordnet.bases(word, "n"))
    return last if is_noun and (word, "r") not in wordnet.index else None


def nearest(
    words: Sequence[tuple[str, Span]], at: int, step: int, wanted: Callable[[str], bool]
) -> int | None:
    """The nearest wanted word before (step -1) or behind (1) a place, with no mark between.

    >>> nearest(cut("He was sitting, and she sat on it"), 7, -1, {"he", "she"}.__contains__)
    5
    """
    at += step
    while 0 <= at < len(words) and words[at][0][0].isalnum():
        if wanted(words[at][0]):
            return at
        at += step
    return None


def cut(sentence: str) -> list[tuple[str, Span]]:
    """Words and marks of a sentence, in small letters, and where they stand.

    >>> cut("He ate, too")
    [('he', (0, 2)), ('ate', (3, 6)), (',', (6, 7)), ('too', (8, 11))]
    """
    return [(match[0].lower(), match.span()) for match in _TOKEN.finditer(sentence)]


def pairs_of(
    sentences: Sequence[str], uses: Sequence[Use], wordnet: WordNet
) -> dict[str, list[Pair]]:
    """The pairs of words of each relation.

    Args:
        sentences: where prepositions and articles are looked for.
        uses: where verbs are.
        wordnet: knows nouns.
    """
    found: dict[str, list[Pair]] = {key: [] for key, _ in RELATIONS.values()}

    def is_form(word: str) -> bool:
        """Of a verb, in -ed or -ing."""
        bases = wordnet.bases(word, "v") if word.endswith(("ed", "ing")) else ()
        return any((base, "v") in wordnet.index for base in bases)

    # of which words, which way and to which
    looked = (
        ("subject", PREPOSITIONS, -1, SUBJECTS.__contains__),
        ("verb", PREPOSITIONS, -1, is_form),
        ("auxiliary", ARTICLES, 1, AUXILIARIES.__contains__),
    )
    for sentence in sentences:
        words = cut(sentence)
        for at, (word, span) in enumerate(words):
            for key, those, step, wanted in looked:
                place = nearest(words, at, step, wanted) if word in those else None
                if place is not None:
                    found[key].append((sentence, span, words[place][1]))
            noun = noun_after(words, at + 1, wordnet)
            if word in PREPOSITIONS and noun is not None:
                found["preposition"].append((sentence, span, words[noun][1]))
            noun = noun_after(words, at, wordnet)
            if noun is not None and noun > at + 1:
                found["article"].append((sentence, span, words[noun][1]))
    seen = set()
    for use in uses:
        words = cut(use.sentence)
        ends = [span[1] for _, span in words]
        if wordnet.synsets[use.synset].part != "v" or use.end not in ends:
            continue
        noun = noun_after(words, ends.index(use.end) + 1, wordnet)
        one = (use.sentence, (use.start, use.end))
        if noun is not None and one not in seen and " " not in use.lemma:
            seen.add(one)
            found["object"].append((*one, words[noun][1]))
    return {
        name: [(text, b, a) if turned else (text, a, b) for text, a, b in found[key]]
        for name, (key, turned) in RELATIONS.items()
    }


def others_at(pairs: Sequence[Pair], sentences: Sequence[str], seed: int = 0) -> list[Pair | None]:
    """For each pair the words of another sentence at the same places, that are no such pair.

    Places are counted in words from the beginning. None where no sentence was found for it.
    """
    rng = np.random.default_rng(seed)
    known = set(pairs)
    words = [[span for word, span in cut(text) if word[0].isalnum()] for text in sentences]
    found: list[Pair | None] = []
    for text, a, b in pairs:
        spans = [span for word, span in cut(text) if word[0].isalnum()]
        first, second = (_place(spans, span) for span in (a, b))
        other: Pair | None = None
        for number in rng.integers(len(sentences), size=TRIES):
            there = words[number]
            if len(there) > max(first, second) and sentences[number] != text:
                one = (sentences[number], there[first], there[second])
                if one not in known:
                    other = one
                    break
        found.append(other)
    return found


def _place(spans: Sequence[Span], span: Span) -> int:
    """Which word a span is, or ends with."""
    return next(k for k, (a, b) in enumerate(spans) if a < span[1] and b >= span[1])


def weights_between(model: qkv.Model, pairs: Sequence[Pair]) -> Array:
    """How much the words that look attend to those that are looked at: (n, layers, heads)."""
    found = np.zeros((len(pairs), model.num_layers, model.num_heads))
    if not pairs:
        return found
    for part, trace in traces(model, [text for text, _, _ in pairs], ["pattern"]):
        for row, number in enumerate(part):
            _, looks, at = pairs[number]
            queries, keys = (_tokens(trace.offsets[row], span) for span in (looks, at))
            if queries and keys:  # else it stands behind the longest text that the model takes
                for layer, weights in enumerate(trace.attentions):
                    block = weights[row][:, queries][:, :, keys]
                    found[number, layer] = block.sum(-1).mean(-1)
    return found


def _tokens(offsets: Sequence[Span], span: Span) -> list[int]:
    return [k for k, (a, b) in enumerate(offsets) if a < span[1] and b > span[0]]


def relations(model: qkv.Model, wordnet: WordNet, twelfth: int) -> dict[str, Measured]:
    """Each relation on the examples of a twelfth."""
    sentences = held_out_sentences(wordnet, twelfth)
    found = {}
    for name, pairs in pairs_of(sentences, list(wordnet.uses(twelfth)), wordnet).items():
        others = others_at(pairs, sentences)
        kept = [(one, other) for one, other in zip(pairs, others, strict=True) if other is not None]
        found[name] = compared(
            weights_between(model, [one for one, _ in kept]),
            weights_between(model, [other for _, other in kept]),
        )
    return found


def compared(pairs: Array, others: Array) -> Measured:
    """What weights (n, layers, heads) and those between other words come to."""
    count = len(pairs)
    if count < 2:
        nothing = np.zeros(pairs.shape[1:])
        return Measured(nothing, nothing, nothing, count)
    more = pairs - others
    half = 1.96 * more.std(axis=0, ddof=1) / np.sqrt(count)
    return Measured(pairs.mean(axis=0), others.mean(axis=0), more.mean(axis=0) - half, count)


def roles(
    model: qkv.Model, wordnet: WordNet, twelfth: int = REPORTED
) -> tuple[list[dict[str, Any]], dict[str, Measured]]:
    """For each head which measures are its roles, and what each relation comes to.

    On the examples for choices a relation has to hold there alone, else on both.
    """
    found = relations(model, wordnet, twelfth)
    holds = {name: one.holds() for name, one in found.items()}
    if twelfth != CHOSEN:
        before = relations(model, wordnet, CHOSEN)
        holds = {name: good & before[name].holds() for name, good in holds.items()}
    rows = []
    for row in heads(model, held_out_sentences(wordnet, twelfth)):
        at = row["layer"], row["head"]
        own = {name: row[name] for name in (*OF_PLACES, *OF_ENDS) if row[name] >= LEAST}
        own |= {name: float(found[name].mean[at]) for name, good in holds.items() if good[at]}
        rows.append({"layer": at[0], "head": at[1], "roles": own})
    return rows, found


def counted(rows: Sequence[dict[str, Any]]) -> int:
    """How many heads have a role, of those with *first* and *last* alone three at most.

    >>> counted([{"roles": {"first": 0.5}}] * 5 + [{"roles": {"first": 0.4, "next": 0.8}}])
    4
    """
    ends = sum(bool(row["roles"]) and set(row["roles"]) <= set(OF_ENDS) for row in rows)
    return sum(bool(row["roles"]) for row in rows) - max(0, ends - MOST_OF_ENDS)


def shown(rows: Sequence[dict[str, Any]], found: dict[str, Measured]) -> str:
    """The same as plain text."""
    lines = [f"heads with a role: {counted(rows)} of {len(rows)}", ""]
    for row in rows:
        own = ", ".join(f"{name} {value:.2f}" for name, value in row["roles"].items())
        if own:
            lines.append(f"{row['layer']}.{row['head']}  {own}")
    lines += ["", f"{'relation':20} {'pairs':>6} {'best':>5} {'mean':>6} {'other':>6} {'low':>6}"]
    for name, one in found.items():
        at = np.unravel_index(int(one.low.argmax()), one.low.shape)
        cells = " ".join(f"{array[at]:6.2f}" for array in (one.mean, one.other, one.low))
        lines.append(f"{name:20} {one.pairs:6} {at[0]:3}.{at[1]} {cells}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Look at one model."""
    parser = argparse.ArgumentParser(prog="python -m training.roles", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", nargs="?", help="a folder, a name, or nothing for the default")
    parser.add_argument(
        "--choose", action="store_true", help="on the examples for choices, not for results"
    )
    parser.add_argument("--json", action="store_true", help="numbers, not a table")
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="where its files are")
    given = parser.parse_args(arguments)
    twelfth = CHOSEN if given.choose else REPORTED
    rows, found = roles(qkv.load(given.model), read(given.wordnet), twelfth)
    say(json.dumps({"counted": counted(rows), "heads": rows}) if given.json else shown(rows, found))


if __name__ == "__main__":
    command(main)
