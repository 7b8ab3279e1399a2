"""Read WordNet 3.0: words, senses, definitions, examples, and the held-out examples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/usr/share/wordnet")
TWELFTHS = 12  # WordNet's examples are split into this many parts, by a hash of each text
REPORTED, CHOSEN = 0, 1  # part 0 is for reports, and part 1 is for choosing models
KEPT = 2  # parts 0 and 1 are held out: the tokenizer and the training do not read these parts
PARTS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}

# Endings, and the endings that replace them when a word is looked up (Debian's `man 7WN morphy`).
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
_MARKER = re.compile(r"\((?:a|p|ip)\)$")  # a marker of an adjective's position


@dataclass(frozen=True)
class Synset:
    """Words that share a meaning.

    Attributes:
        part: the part of speech: "n", "v", "a" or "r" (an adverb).
        lemmas: the words in WordNet's spelling; compounds contain blanks.
        definition: the meaning of the words.
        examples: sentences, or parts of sentences, that use one of the words.
    """

    part: str
    lemmas: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """A word in a sentence, with its sense.

    Attributes:
        sentence: an example of the synset.
        lemma: the word in lower case, as in `WordNet.senses`.
        synset: the number of the synset.
        start: the index in the sentence at which the (inflected) word begins.
        end: the index after the word's last character.
    """

    sentence: str
    lemma: str
    synset: int
    start: int
    end: int


@dataclass(frozen=True)
class WordNet:
    """The whole of WordNet.

    Attributes:
        synsets: all synsets in the order of the files: nouns, verbs, adjectives, adverbs.
        index: maps a lower-case word and its part of speech to the numbers of the word's synsets,
            the most common sense first.
        exceptions: for each part of speech, maps irregular forms to their base words.
        held_out: the words of each held-out example.
        kept: how many of the twelve parts of the examples are kept out of training, beginning with
            part 0. The number is usually `KEPT`. In a final run, `kept` is 1, so that only part 0
            is held out. The run then also learns from part 1, which other runs hold out for
            choosing models.
    """

    synsets: list[Synset]
    index: dict[tuple[str, str], tuple[int, ...]]
    exceptions: dict[str, dict[str, tuple[str, ...]]]
    held_out: frozenset[tuple[str, ...]]
    kept: int = KEPT

    def senses(self, lemma: str, part: str | None = None) -> tuple[int, ...]:
        """Return a word's synsets with the given part of speech; by default, all its synsets."""
        parts = PARTS.values() if part is None else [part]
        return tuple(number for one in parts for number in self.index.get((lemma, one), ()))

    def bases(self, word: str, part: str) -> set[str]:
        """Return the possible base words of a lower-case word, including the word itself."""
        found = {word, *self.exceptions[part].get(word, ())}
        if part == "n" and word.endswith("ful"):
            return found
        for ending, instead in _ENDINGS[part]:
            if word.endswith(ending) and len(word) > len(ending):
                found.add(word[: -len(ending)] + instead)
        return found

    def base(self, word: str) -> str:
        """Return the base word of a lower-case word; all parts of speech are tried.

        The result is the shortest possible base word in WordNet that differs from the word. If
        WordNet has none, the result is the word itself.
        """
        parts = PARTS.values()
        found = {
            base for part in parts for base in self.bases(word, part) if (base, part) in self.index
        }
        return min(found - {word}, key=lambda base: (len(base), base), default=word)

    def uses(self, twelfth: int | None = None) -> Iterator[Use]:
        """Return a `Use` for each example with a word of its synset; search part `twelfth`.

        If `twelfth` is None, search the training examples (see `may_learn`). If an example contains
        several words of its synset, the longest compound among these words is used. If none of
        these words is a compound, the word that comes first in the synset is used. Only the first
        occurrence of the word counts.
        """
        for number, synset in enumerate(self.synsets):
            for sentence in synset.examples:
                if self.may_learn(sentence) if twelfth is None else is_in(sentence, twelfth):
                    found = self._find(sentence, synset)
                    if found is not None:
                        lemma, start, end = found
                        yield Use(sentence, lemma, number, start, end)

    def may_learn(self, sentence: str) -> bool:
        """Return whether training may read an example.

        Training may read neither a held-out example nor a longer example that contains it. But
        if a held-out example is a single word, longer examples may contain this word.
        """
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
    """Return the number, 0 to 11, of the part to which an example belongs.

    All examples are divided into twelve parts. The part depends only on the text of the example.

    >>> [twelfth_of(text) for text in ("he cashed a check at the bank", "the bank was steep")]
    [5, 6]
    """
    return int(hashlib.sha256(sentence.encode()).hexdigest(), 16) % TWELFTHS


def is_in(sentence: str, twelfth: int) -> bool:
    """Return whether an example belongs to the part whose number (0 to 11) is `twelfth`."""
    return twelfth_of(sentence) == twelfth


def is_held_out(sentence: str, kept: int = KEPT) -> bool:
    """Return whether an example is held out from training: in one of the parts 0 to `kept` - 1."""
    return any(is_in(sentence, twelfth) for twelfth in range(kept))


def read(folder: Path = FOLDER, *, kept: int = KEPT) -> WordNet:
    """Read WordNet from the files of Debian's package.

    Args:
        folder: the folder of the files.
        kept: how many of the twelve parts of the examples are kept out of training, beginning with
            part 0.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: `kept` is 0 or less, or so large that all examples are held out.
    """
    if not REPORTED < kept < TWELFTHS:
        raise ValueError(
            f"wordnet: kept, the number of held-out parts of the examples, is {kept}; pass "
            f"{REPORTED + 1} to {TWELFTHS - 1}"
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
    """Return a training text for each synset, "word, synonyms: definition. examples"."""
    for synset in wordnet.synsets:
        examples = [text for text in synset.examples if wordnet.may_learn(text)]
        if synset.lemmas:  # `training.reading` may have dropped all examples
            yield document(synset, examples)


def examples(wordnet: WordNet) -> list[str]:
    """Return the training examples as separate texts."""
    every = (text for synset in wordnet.synsets for text in synset.examples)
    return [text for text in every if wordnet.may_learn(text)]


def document(synset: Synset, examples: Sequence[str]) -> str:
    """Return the document of one synset, with the given examples.

    Each part except the last ends with a full stop. The last part gets no full stop, because
    WordNet's examples end without one.

    >>> document(Synset("n", ("bank", "cant"), "a slope in a road", ()), ["the bank was steep"])
    'bank, cant: a slope in a road. the bank was steep'
    """
    head = f"{', '.join(synset.lemmas)}: {synset.definition}"
    *before, last = head, *examples
    return " ".join([*map(ended, before), last])


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))


def ended(text: str) -> str:
    """Add a full stop to a text, unless the text already ends with `.`, `!` or `?`."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, without the indented licence at the beginning of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"wordnet: {path} is missing: apt-get install wordnet-base"
        ) from None
    return [line for line in text.splitlines() if line and not line.startswith("  ")]


def _synset(line: str, part: str) -> Synset:
    fields, _, gloss = line.partition(" | ")
    _, _, _, count, *rest = fields.split(" ")
    lemmas = [_MARKER.sub("", word).replace("_", " ") for word in rest[: 2 * int(count, 16) : 2]]
    definition, examples = _parsed(gloss.strip())
    return Synset(part, tuple(lemmas), definition, examples)


def _parsed(gloss: str) -> tuple[str, tuple[str, ...]]:
    """Split a gloss (the text of a synset) into definition and examples.

    >>> _parsed('a slope in a road; "the bank was steep"; "it banked"- A. Pilot')
    ('a slope in a road', ('the bank was steep', 'it banked'))
    """
    examples = tuple(text.strip() for text in _QUOTED.findall(gloss))
    return gloss.partition('"')[0].strip(" ;:,"), tuple(filter(None, examples))
