"""Find pairs of related words, such as an article and its noun.

A relation connects two words, here called the query word and the key word. Each relation is used in
both directions:

- *verb and object*: a verb and its object, in an example of the verb's synset; after the verb come
  a determiner, at most two other words, and a noun;
- *preposition and noun*: a preposition and its noun; between them are a determiner and at most two
  other words;
- *article and noun*: a determiner and the noun after it, with one or two other words between them;
- *preposition and subject*: a preposition and the nearest pronoun before it that is a subject (he,
  they);
- *preposition and verb*: a preposition, and the nearest word before it that ends in -ed or -ing and
  is a form of a verb;
- *article and auxiliary*: a determiner and the nearest auxiliary verb after it (is, will);
- *adjective and noun*: a word that can be an adjective, and the noun directly after it; a
  determiner before them belongs to this noun;
- *possessive and noun*: a possessive pronoun (his, their) and its noun, with at most two words
  between them;
- *possessive and subject*: a possessive pronoun and the nearest pronoun before it that is a
  subject;
- *auxiliary and verb*: an auxiliary verb and a verb form in -ed or -ing, with only other
  auxiliary verbs and adverbs between them.

A word counts as a noun if two conditions are met. It is the last word before a function word, a
punctuation mark or the end of the sentence; and WordNet lists it as a noun and not as an adverb. No
punctuation mark is between a word and the "nearest" word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qkv.see.analysis._words import is_function_word
from training.wordnet import Use, WordNet

_ARTICLES = "the a an his her my your our their its this that these those some"
_PREPOSITIONS = """
of in on at by for with about against between into onto through during before after above below
to toward towards from down off over under across along around behind beside near within without
upon inside outside
"""
_POSSESSIVES = "his her my your our their its"
_SUBJECTS = "i you he she it we they who"
_AUXILIARIES = """
is are was were be been being has have had do does did will would can could may might must shall
should
"""
ARTICLES, PREPOSITIONS, POSSESSIVES, SUBJECTS, AUXILIARIES = (
    frozenset(words.split())
    for words in (_ARTICLES, _PREPOSITIONS, _POSSESSIVES, _SUBJECTS, _AUXILIARIES)
)
BETWEEN = 2  # the maximum number of words between an article and its noun
TRIES = 200  # how many sentences to try until one has words at the wanted positions
_TOKEN = re.compile(r"[^\W_]+(?:['./-][^\W_]+)*|\S")

Span = tuple[int, int]  # the start and end of a word, in characters
Pair = tuple[str, Span, Span]  # a sentence, the query word, the key word
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
    "adjective to noun": ("adjective", False),
    "noun to adjective": ("adjective", True),
    "possessive to noun": ("possessive", False),
    "noun to possessive": ("possessive", True),
    "possessive to subject": ("possessor", False),
    "subject to possessive": ("possessor", True),
    "auxiliary to verb": ("auxiliary verb", False),
    "verb to auxiliary": ("auxiliary verb", True),
}


def noun_after(words: Sequence[tuple[str, Span]], at: int, wordnet: WordNet) -> int | None:
    """Return the index of the noun that belongs to the article at index `at`.

    The result is None if the word at `at` is not an article, or if no noun is found.

    Args:
        words: the words and punctuation marks of a sentence, in lower case.
        at: the index where the article should be.
        wordnet: the dictionary of nouns.
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
    """Find the nearest wanted word before (step -1) or after (step 1) a position.

    The search ends at a punctuation mark.

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
    """Split a sentence into lower-case words and punctuation marks, with their spans.

    >>> cut("He ate, too")
    [('he', (0, 2)), ('ate', (3, 6)), (',', (6, 7)), ('too', (8, 11))]
    """
    return [(match[0].lower(), match.span()) for match in _TOKEN.finditer(sentence)]


def is_form(word: str, wordnet: WordNet) -> bool:
    """Return whether a word can be a verb form that ends in -ed or -ing."""
    bases = wordnet.bases(word, "v") if word.endswith(("ed", "ing")) else ()
    return any((base, "v") in wordnet.index for base in bases)


def verb_of(words: Sequence[tuple[str, Span]], at: int, wordnet: WordNet) -> int | None:
    """Return the position of the verb that follows the auxiliary verb at `at`, or None.

    Args:
        words: the words and punctuation marks of a sentence, in lower case.
        at: where the auxiliary verb should be.
        wordnet: the dictionary of verbs and adverbs.
    """
    if words[at][0] not in AUXILIARIES:
        return None
    for position, (word, _) in enumerate(words[at + 1 :], at + 1):
        if word not in AUXILIARIES and (word, "r") not in wordnet.index:
            return position if is_form(word, wordnet) else None
    return None


def pairs_of(
    sentences: Sequence[str], uses: Sequence[Use], wordnet: WordNet
) -> dict[str, list[Pair]]:
    """Return the pairs of words of each relation.

    Args:
        sentences: the sentences that provide the pairs of every relation except *verb and object*.
        uses: uses of words in sentences. The uses of verbs provide the pairs of the relation
            *verb and object*; the uses of other words are skipped.
        wordnet: the dictionary of nouns, verbs, adjectives and adverbs.
    """
    found: dict[str, list[Pair]] = {key: [] for key, _ in RELATIONS.values()}
    for sentence in sentences:
        words = cut(sentence)
        for at in range(len(words)):
            for key, looks, position in _pairs_at(words, at, wordnet):
                found[key].append((sentence, words[looks][1], words[position][1]))
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


def _pairs_at(
    words: Sequence[tuple[str, Span]], at: int, wordnet: WordNet
) -> Iterator[tuple[str, int, int]]:
    """Yield the relations of the word at a position.

    Each relation is a tuple: its name, the index of the query word, the index of the key word.
    """
    word = words[at][0]
    noun, next_noun = (noun_after(words, one, wordnet) for one in (at, at + 1))
    is_possessive = word in POSSESSIVES and noun is not None

    def form(word: str) -> bool:
        return is_form(word, wordnet)

    # a relation's name; whether `word` can be the query word of the relation; the direction of the
    # search for the key word; a function that tests a candidate for the key word
    for key, good, step, wanted in (
        ("subject", word in PREPOSITIONS, -1, SUBJECTS.__contains__),
        ("verb", word in PREPOSITIONS, -1, form),
        ("auxiliary", word in ARTICLES, 1, AUXILIARIES.__contains__),
        ("possessor", is_possessive, -1, SUBJECTS.__contains__),
    ):
        position = nearest(words, at, step, wanted) if good else None
        if position is not None:
            yield key, at, position
    if word in PREPOSITIONS and next_noun is not None:
        yield "preposition", at, next_noun
    if noun is not None and noun > at + 1:
        yield "article", at, noun
        if (words[noun - 1][0], "a") in wordnet.index:
            yield "adjective", noun - 1, noun
    if noun is not None and is_possessive:
        yield "possessive", at, noun
    verb = verb_of(words, at, wordnet)
    if verb is not None:
        yield "auxiliary verb", at, verb


def others_at(pairs: Sequence[Pair], sentences: Sequence[str], seed: int = 0) -> list[Pair | None]:
    """For each pair, find unrelated words at the same positions of another sentence.

    A position is the number of words before a word. If the search finds no unrelated words for
    a pair, the entry for this pair is None.
    """
    rng = np.random.default_rng(seed)
    known = set(pairs)
    words = [[span for word, span in cut(text) if word[0].isalnum()] for text in sentences]
    found: list[Pair | None] = []
    for text, a, b in pairs:
        spans = [span for word, span in cut(text) if word[0].isalnum()]
        first, second = (_position(spans, span) for span in (a, b))
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


def _position(spans: Sequence[Span], span: Span) -> int:
    """Return the index of the word at the end of a span."""
    return next(k for k, (a, b) in enumerate(spans) if a < span[1] and b >= span[1])


def hidden(pair: Pair, mask: str) -> Pair:
    """Replace the query word of a pair by the mask.

    >>> hidden(("the old dog ran", (0, 3), (8, 11)), "[MASK]")
    ('[MASK] old dog ran', (0, 6), (11, 14))
    """
    text, (start, end), (a, b) = pair
    longer = len(mask) - (end - start)
    if a >= end:
        a, b = a + longer, b + longer
    return text[:start] + mask + text[end:], (start, start + len(mask)), (a, b)
