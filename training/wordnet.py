"""WordNet 3.0: its words, their senses, definitions and examples, and what is held out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/usr/share/wordnet")
TWELFTHS = 12  # the parts that examples fall into, by their text alone
REPORTED, CHOSEN = 0, 1  # where results are reported, and where choices are made
KEPT = 2  # twelfths that are kept from tokenizer and training, from the first on
PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}

# Endings and what a word has in their place when it is looked up (Debian's `man 7WN morphy`).
_ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "n": (
        *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
        *(("men", "man"), ("ies", "y")),
    ),
    "v": (
        *(("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", "")),
        *(("ing", "e"), ("ing", "")),
    ),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
_WORD = re.compile(r"[^\W_]+(?:['./-][^\W_]+)*")
_QUOTED = re.compile(r'"([^"]*)"')
_MARKER = re.compile(r"\((?:a|p|ip)\)$")  # where an adjective may stand


@dataclass(frozen=True)
class Synset:
    """Words that share a meaning.

    Attributes:
        part: of speech: "n", "v", "a" or "r" (an adverb).
        lemmas: the words as they are spelled, those of several words with blanks.
        definition: what they mean.
        examples: sentences, or parts of sentences, that use one of them.
    """

    part: str
    lemmas: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """A word in a sentence, and in which sense.

    Attributes:
        sentence: an example of the synset.
        lemma: the word, in small letters, as `WordNet.senses` knows it.
        synset: the number of the synset.
        start: where the word, as inflected there, begins in the sentence.
        end: where it ends.
    """

    sentence: str
    lemma: str
    synset: int
    start: int
    end: int


@dataclass(frozen=True)
class WordNet:
    """All of it.

    Attributes:
        synsets: in the order of the files: nouns, verbs, adjectives, adverbs.
        index: a word in small letters and its part of speech -> the numbers of its synsets, the
            most common sense first.
        exceptions: for each part of speech, irregular forms -> the words they are forms of.
        held_out: the words of each held-out example.
        kept: how many of the twelfths are held out, from the first on: `KEPT`, or 1 in a final run,
            which learns from those again that choices were made on.
    """

    synsets: list[Synset]
    index: dict[tuple[str, str], tuple[int, ...]]
    exceptions: dict[str, dict[str, tuple[str, ...]]]
    held_out: frozenset[tuple[str, ...]]
    kept: int = KEPT

    def senses(self, lemma: str, part: str | None = None) -> tuple[int, ...]:
        """The synsets of a word as one part of speech, or as any."""
        parts = PARTS.values() if part is None else [part]
        return tuple(number for one in parts for number in self.index.get((lemma, one), ()))

    def bases(self, word: str, part: str) -> set[str]:
        """The words that one, in small letters, may be a form of, itself included."""
        found = {word, *self.exceptions[part].get(word, ())}
        if part == "n" and word.endswith("ful"):
            return found
        for ending, instead in _ENDINGS[part]:
            if word.endswith(ending) and len(word) > len(ending):
                found.add(word[: -len(ending)] + instead)
        return found

    def base(self, word: str) -> str:
        """The word that one, in small letters, is a form of, whichever part of speech it is.

        That is the shortest one that WordNet knows, and the word itself where there is no other.
        """
        parts = PARTS.values()
        found = {
            base for part in parts for base in self.bases(word, part) if (base, part) in self.index
        }
        return min(found - {word}, key=lambda base: (len(base), base), default=word)

    def uses(self, twelfth: int | None = None) -> Iterator[Use]:
        """The examples of a twelfth in which a word of their synset is found.

        Without one, those that may be learned from: see `may_learn`.
        A word of several words comes before a shorter one, then the order of the synset decides.
        Of a word that stands there twice the first is taken.
        """
        for number, synset in enumerate(self.synsets):
            for sentence in synset.examples:
                if self.may_learn(sentence) if twelfth is None else is_in(sentence, twelfth):
                    found = self._find(sentence, synset)
                    if found is not None:
                        lemma, start, end = found
                        yield Use(sentence, lemma, number, start, end)

    def may_learn(self, sentence: str) -> bool:
        """Whether an example is not held out, and none of several words that is stands in it."""
        if is_held_out(sentence, self.kept):
            return False
        words = _words(sentence)
        lengths = range(2, len(words) + 1)
        return not any(
            words[at : at + length] in self.held_out
            for length in lengths
            for at in range(len(words) - length + 1)
        )

    def _find(self, sentence: str, synset: Synset) -> tuple[str, int, int] | None:
        words = [(match[0].lower(), *match.span()) for match in _WORD.finditer(sentence)]
        words = [
            (word[:-2], start, end - 2) if word.endswith("'s") else (word, start, end)
            for word, start, end in words
        ]
        bases = [self.bases(word, synset.part) for word, _, _ in words]
        order = sorted(synset.lemmas, key=lambda lemma: -len(lemma.split()))
        for lemma in (lemma.lower() for lemma in order):
            parts = [match[0] for match in _WORD.finditer(lemma)]
            for at in range(len(words) - len(parts) + 1) if parts else ():
                if all(part in bases[at + step] for step, part in enumerate(parts)):
                    return lemma, words[at][1], words[at + len(parts) - 1][2]
        return None


def twelfth_of(sentence: str) -> int:
    """Which twelfth an example is in, from 0; its text alone decides.

    >>> [twelfth_of(text) for text in ("he cashed a check at the bank", "the bank was steep")]
    [5, 6]
    """
    return int(hashlib.sha256(sentence.encode()).hexdigest(), 16) % TWELFTHS


def is_in(sentence: str, twelfth: int) -> bool:
    """Whether an example is in this twelfth."""
    return twelfth_of(sentence) == twelfth


def is_held_out(sentence: str, kept: int = KEPT) -> bool:
    """Whether an example is kept from training: those of so many twelfths are."""
    return any(is_in(sentence, twelfth) for twelfth in range(kept))


def read(folder: Path = FOLDER, *, kept: int = KEPT) -> WordNet:
    """WordNet from the files of Debian's package.

    Args:
        folder: where they are.
        kept: how many twelfths of the examples are held out.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: not even the examples are held out that results are reported on, or all are.
    """
    if not REPORTED < kept < TWELFTHS:
        raise ValueError(
            f"wordnet: kept is {kept}: keep {REPORTED + 1} to {TWELFTHS - 1} twelfths of the "
            "examples from training"
        )
    synsets: list[Synset] = []
    index: dict[tuple[str, str], tuple[int, ...]] = {}
    exceptions: dict[str, dict[str, tuple[str, ...]]] = {}
    for file, part in PARTS.items():
        places: dict[str, int] = {}
        for line in lines_of(folder / f"data.{file}"):
            places[line[:8]] = len(synsets)
            synsets.append(_synset(line, part))
        for line in lines_of(folder / f"index.{file}"):
            lemma, _, count, *rest = line.split()
            index[lemma.replace("_", " "), part] = tuple(
                places[offset] for offset in rest[-int(count) :]
            )
        exceptions[part] = {
            form: tuple(base.replace("_", " ") for base in of)
            for form, *of in map(str.split, lines_of(folder / f"{file}.exc"))
        }
    examples = (sentence for synset in synsets for sentence in synset.examples)
    held_out = frozenset(_words(sentence) for sentence in examples if is_held_out(sentence, kept))
    return WordNet(synsets, index, exceptions, held_out, kept)


def documents(wordnet: WordNet) -> Iterator[str]:
    """A text for each synset, "word, synonyms: definition. examples", of what may be learned."""
    for synset in wordnet.synsets:
        examples = [text for text in synset.examples if wordnet.may_learn(text)]
        if synset.lemmas:  # all may be dropped, see `training.reading`
            yield document(synset, examples)


def examples(wordnet: WordNet) -> list[str]:
    """The examples that may be learned from, each by itself."""
    every = (text for synset in wordnet.synsets for text in synset.examples)
    return [text for text in every if wordnet.may_learn(text)]


def document(synset: Synset, examples: Sequence[str]) -> str:
    """That of one, with these of its examples.

    A full stop parts them; there is none at the end, as there is none behind an example.

    >>> document(Synset("n", ("bank", "cant"), "a slope in a road", ()), ["the bank was steep"])
    'bank, cant: a slope in a road. the bank was steep'
    """
    head = f"{', '.join(synset.lemmas)}: {synset.definition}"
    *before, last = head, *examples
    return " ".join([*map(ended, before), last])


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))


def ended(text: str) -> str:
    """A text with a full stop, unless it ends with a mark of its own."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def lines_of(path: Path) -> list[str]:
    """The lines of a file without the licence, which is indented, at its beginning."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"wordnet: there is no file {path}: apt-get install wordnet-base"
        ) from None
    return [line for line in text.splitlines() if line and not line.startswith("  ")]


def _synset(line: str, part: str) -> Synset:
    fields, _, gloss = line.partition(" | ")
    _, _, _, count, *rest = fields.split(" ")
    lemmas = [_MARKER.sub("", word).replace("_", " ") for word in rest[: 2 * int(count, 16) : 2]]
    definition, examples = _parsed(gloss.strip())
    return Synset(part, tuple(lemmas), definition, examples)


def _parsed(gloss: str) -> tuple[str, tuple[str, ...]]:
    """Definition and examples of a gloss.

    >>> _parsed('a slope in a road; "the bank was steep"; "it banked"- A. Pilot')
    ('a slope in a road', ('the bank was steep', 'it banked'))
    """
    examples = tuple(text.strip() for text in _QUOTED.findall(gloss))
    return gloss.partition('"')[0].strip(" ;:,"), tuple(filter(None, examples))
