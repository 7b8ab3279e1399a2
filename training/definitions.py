"""What the decoder learns from, "word: definition. example", and the words that it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.wordnet import FOLDER, Synset, WordNet, document, lines_of

NOUNS = Path(__file__).with_name("nouns.txt")  # what `common_nouns` gives
HALF = 50  # of the common nouns are things that can be touched, as many are others
# The lexicographers' files of things: animal, artifact, body, food, object, person, plant and
# substance.
_THINGS = {"05", "06", "08", "13", "17", "18", "20", "27"}
_PARTS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}  # as the keys of senses have them
_SHORTEST = 3  # letters of a common noun


@dataclass(frozen=True)
class Entry:
    """A word in one of its senses.

    Attributes:
        word: as it is spelled.
        synset: the number of the sense.
        definition: what it means.
        examples: sentences in which it stands.
    """

    word: str
    synset: int
    definition: str
    examples: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole of it.

        >>> Entry("bank", 7, "a slope in a road", ("the bank was steep",)).text
        'bank: a slope in a road. the bank was steep'
        """
        return document(Synset("", (self.word,), self.definition, ()), self.examples)


@dataclass(frozen=True)
class Counted:
    """A sense of a word in texts that people have tagged with senses.

    Attributes:
        word: in small letters.
        part: of speech, as `Synset` has it.
        sense: its number among the word's, from 0.
        file: the number of the lexicographers' file that it is from.
        count: how often it stands in those texts.
    """

    word: str
    part: str
    sense: int
    file: str
    count: int


def entries(wordnet: WordNet, twelfth: int | None = None) -> list[Entry]:
    """Each word in each of its senses, with the examples that may be learned from.

    Or each example of a twelfth behind the definition that it is of.
    An example belongs to the word of its synset that is found in it, as `WordNet.uses` finds it;
    one in which none is found is left out.
    """
    examples: dict[tuple[int, str], list[str]] = {}
    for use in wordnet.uses(twelfth):
        examples.setdefault((use.synset, use.lemma), []).append(use.sentence)
    found = []
    for number, synset in enumerate(wordnet.synsets):
        for word in synset.lemmas:
            own = tuple(examples.get((number, word.lower()), ()))
            texts = [own] if twelfth is None else [(one,) for one in own]
            found += [Entry(word, number, synset.definition, text) for text in texts]
    return found


def repeats(found: Sequence[Entry], wordnet: WordNet, counted: Sequence[Counted]) -> list[int]:
    """How often the text of each entry is read in one round.

    Once, and once more for each binary digit of how often people were seen to use the word in this
    sense: most words of a dictionary are rare, and those that everybody asks for would go under.
    """
    counts: dict[tuple[str, int], int] = {}
    for one in counted:
        senses = wordnet.index.get((one.word, one.part), ())
        if one.sense < len(senses):
            counts[one.word, senses[one.sense]] = one.count
    return [1 + counts.get((one.word.lower(), one.synset), 0).bit_length() for one in found]


def tagged(folder: Path = FOLDER) -> list[Counted]:
    """The senses that were counted.

    Raises:
        FileNotFoundError: the file is missing.
    """
    found = []
    for line in lines_of(folder / "cntlist.rev"):
        key, sense, count = line.split()
        word, _, rest = key.rpartition("%")
        part, file, *_ = rest.split(":")
        found.append(
            Counted(word.replace("_", " "), _PARTS[part], int(sense) - 1, file, int(count))
        )
    return found


def common_nouns(counted: Sequence[Counted]) -> list[str]:
    """The nouns that were counted most often: 50 that name things, and 50 others.

    A noun is one word of three or more letters from a to z, counted more often as a noun than as
    all else. How often is the sum over its senses as a noun; which half it belongs to, its most
    common sense says, by the lexicographers' file that this is from: animal, artifact, body, food,
    object, person, plant and substance are things. Of words that were counted as often, those
    that come first in the alphabet are taken.
    """
    as_noun: dict[str, int] = {}
    otherwise: dict[str, int] = {}
    things: dict[str, bool] = {}
    for one in counted:
        sums = as_noun if one.part == "n" else otherwise
        sums[one.word] = sums.get(one.word, 0) + one.count
        if one.part == "n" and one.sense == 0:
            things[one.word] = one.file in _THINGS
    order = sorted(
        (
            word
            for word, count in as_noun.items()
            if count > otherwise.get(word, 0) and word in things and _is_common(word)
        ),
        key=lambda word: (-as_noun[word], word),
    )
    halves = ([word for word in order if things[word] is kind][:HALF] for kind in (True, False))
    return [word for half in halves for word in half]


def read_nouns(path: Path = NOUNS) -> list[str]:
    """The list that is kept: a word a line, behind lines that begin with #."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def hypernyms(folder: Path = FOLDER) -> list[tuple[int, ...]]:
    """For each noun synset, by its number, those right above it: what it is a kind or a case of.

    Raises:
        FileNotFoundError: the file is missing.
    """
    lines = lines_of(folder / "data.noun")
    numbers = {line[:8]: number for number, line in enumerate(lines)}
    return [
        tuple(numbers[place] for symbol, place in _pointers(line) if symbol in ("@", "@i"))
        for line in lines
    ]


def above(synsets: Sequence[int], direct: Sequence[tuple[int, ...]]) -> set[int]:
    """All that stand above any of some noun synsets, however far.

    >>> sorted(above([3], [(), (0,), (0,), (1,)]))
    [0, 1]
    """
    found: set[int] = set()
    waiting = [number for one in synsets for number in direct[one]]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += direct[number]
    return found


def _is_common(word: str) -> bool:
    return len(word) >= _SHORTEST and word.isascii() and word.isalpha() and word.islower()


def _pointers(line: str) -> Iterator[tuple[str, str]]:
    """The symbol and the place of each synset that a line points to."""
    fields = line.partition(" | ")[0].split()
    first = 4 + 2 * int(fields[3], 16)  # behind the words, how many there are
    for at in range(first + 1, first + 1 + 4 * int(fields[first]), 4):
        yield fields[at], fields[at + 1]
