"""Make the tokenizer of the included encoder: common words are whole tokens.

Ordinary WordPiece training joins the most frequent pairs of neighbouring subwords, in all words of
the texts. As a result, endings and parts of names take up much of the vocabulary. Here the most
common words of definitions and examples, including inflected words, are whole entries; the rest of
the vocabulary is trained by the usual rule (Wu et al. 2016, section 4.1) on all other words of the
texts.

Small counts say little about a word's frequency: "cooks" occurs five times in these texts, but
"cook" and its forms occur 346 times. So the score of a word is its own count plus 0.25 times the
count of all its forms together.
Definitions have five times as many words as examples, but examples are more like speech. So
definitions and examples have the same total weight.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from qkv.learn import train_tokenizer
from qkv.see.analysis._words import is_function_word
from qkv.text import SubwordTokenizer, Tokenizer
from training.wordnet import WordNet, documents

ENTRIES = 16_384
WHOLE = 0.85  # the minimum share of whole words in the vocabulary: 13,926 of 16,384 entries
OF_FORMS = 0.25  # score of a word: its count + OF_FORMS * the count of all its forms together
_SPECIAL = 5  # [PAD], [UNK], [CLS], [SEP] and [MASK]


def built(wordnet: WordNet, entries: int = ENTRIES, whole: float = WHOLE) -> Tokenizer:
    """Train a lower-case tokenizer like BERT's.

    The special tokens come first in the vocabulary, then the most common words, then all other
    tokens.

    Args:
        wordnet: the training texts; held-out examples are left out.
        entries: V, the maximum number of tokens in the vocabulary.
        whole: the minimum share of the vocabulary that consists of whole words; 0 means ordinary
            WordPiece training.
    """
    texts = list(documents(wordnet))
    if not whole:
        return train_tokenizer(texts, "wordpiece", entries)
    words = commonest(*running_text(wordnet), wordnet.base)
    return with_whole_words(texts, words, entries, int(whole * entries))


def running_text(wordnet: WordNet) -> tuple[list[str], list[str]]:
    """Return the definitions (without the words that they define), and the training examples."""
    definitions = [synset.definition for synset in wordnet.synsets]
    examples = [text for synset in wordnet.synsets for text in synset.examples]
    return definitions, list(filter(wordnet.may_learn, examples))


def commonest(
    definitions: Iterable[str],
    examples: Iterable[str] = (),
    base: Callable[[str], str] = str,
    of_forms: float = OF_FORMS,
) -> list[str]:
    """Return all words that consist of letters, in lower case, the most common first.

    Args:
        definitions: texts to count.
        examples: more texts to count, with the same total weight as the definitions.
        base: the function that returns the base form of a content word.
        of_forms: a factor. The score of a word is `count + of_forms * all_forms`. Here, `count` is
            the count of the word, and `all_forms` is the sum of the counts of all forms of the
            word, including the word itself.

    >>> texts = ["The cat sat.", "the Caf\N{LATIN SMALL LETTER E WITH ACUTE} 1945, the cat"]
    >>> commonest(texts), commonest(texts, ["cat"])
    (['the', 'cat', 'cafe', 'sat'], ['cat', 'the', 'cafe', 'sat'])
    """
    counts, theirs = (
        Counter(word for text in texts for word, _ in _cut(text) if word.isalpha())
        for texts in (definitions, examples)
    )
    times = counts.total() / max(1, theirs.total())
    score = {word: counts[word] + times * theirs[word] for word in counts | theirs}
    bases = {word: word if is_function_word(word) else base(word) for word in score}
    forms = dict.fromkeys(bases.values(), 0.0)
    for word, count in score.items():
        forms[bases[word]] += count
    return sorted(score, key=lambda word: (-score[word] - of_forms * forms[bases[word]], word))


def commonest_of_books(
    books: Iterable[Iterable[Sequence[str]]], wordnet: WordNet
) -> tuple[list[str], Counter[str]]:
    """Return the words of books and of WordNet's examples with their counts, most common first.

    The count of a word is a sum of three shares: its share of the words in books, its share of the
    words in examples (modern English), and a quarter of its share of the words in definitions. The
    words are sorted by a score: the word's own count plus 0.25 times the count of all its forms
    together. A word that occurs in fewer than six books and in no text of WordNet is left out,
    because it is usually a name from a novel.

    Args:
        books: the passages of each book, from `training.books.read`.
        wordnet: WordNet; its held-out examples are left out.

    >>> empty = WordNet([], {}, dict.fromkeys("nvar", {}), frozenset())
    >>> commonest_of_books([[["The cat sat.", "The end."]]] * 6 + [[["Pip sat."]]], empty)[0]
    ['the', 'sat', 'cat', 'end']
    """
    total: Counter[str] = Counter()
    in_books: Counter[str] = Counter()
    for book in books:
        text = "\n".join(" ".join(passage) for passage in book)
        counts = Counter(word for word, _ in _cut(text) if word.isalpha())
        total += counts
        in_books.update(counts.keys())
    theirs = [
        Counter(word for text in texts for word, _ in _cut(text) if word.isalpha())
        for texts in running_text(wordnet)
    ]
    score: dict[str, float] = {}
    for counts, times in zip([total, *theirs], [1.0, 0.25, 1.0], strict=True):
        for word, count in counts.items():
            score[word] = score.get(word, 0.0) + times * count / counts.total()
    known = {
        word for word in score if in_books[word] >= 6 or any(counts[word] for counts in theirs)
    }
    bases = {word: word if is_function_word(word) else wordnet.base(word) for word in known}
    forms = dict.fromkeys(bases.values(), 0.0)
    for word in known:
        forms[bases[word]] += OF_FORMS * score[word]
    for counts in theirs:
        total += counts
    return sorted(known, key=lambda word: (-score[word] - forms[bases[word]], word)), total


def with_whole_words(
    texts: Sequence[str], words: Sequence[str], entries: int, whole: int
) -> SubwordTokenizer:
    """Train a tokenizer with whole words and subwords.

    If it has fewer than `entries` tokens after training, more words become tokens, the most common
    words first.

    Args:
        texts: the texts on which subwords are trained.
        words: words, the most common first.
        entries: V, the maximum number of tokens in the vocabulary.
        whole: the number of words that become entries before subwords are trained.

    >>> texts = ["the cat sat on mats"] * 9
    >>> tokenizer = with_whole_words(texts, ["the", "cat", "sat", "on", "mats"], 40, 3)
    >>> list(tokenizer.vocabulary)[4:8], len(tokenizer) <= 40
    (['[MASK]', 'the', 'cat', 'sat'], True)
    """
    import tokenizers

    first = list(dict.fromkeys(words[:whole]))
    known = set(first)
    rest = [" ".join(word for word, _ in _cut(text) if word not in known) for text in texts]
    # every letter of the whole words becomes a token, so that other words can be spelled
    rest.append(" ".join(dict.fromkeys(letter for word in first for letter in word)))
    trained = train_tokenizer(rest, "wordpiece", entries - len(first))
    order = list(trained.vocabulary)
    special, subwords = order[:_SPECIAL], order[_SPECIAL:]
    names = list(dict.fromkeys([*special, *first, *subwords]))
    kept = set(names)
    more = [word for word in words[whole:] if word not in kept][: entries - len(names)]
    names = list(dict.fromkeys([*special, *first, *more, *subwords]))
    content = json.loads(_text(trained))
    content["model"]["vocab"] = {name: number for number, name in enumerate(names)}
    return SubwordTokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))


def _text(tokenizer: SubwordTokenizer) -> str:
    """Return the tokenizer.json."""
    return tokenizer.inner.to_str()


def _cut(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Split a text into words and punctuation marks, the first step of BERT's tokenizer."""
    small, cut = _rules()
    found: list[tuple[str, tuple[int, int]]] = cut.pre_tokenize_str(small.normalize_str(text))
    return found


@cache
def _rules() -> tuple[Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    return normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
