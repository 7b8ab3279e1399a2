"""A tokenizer of whole words, with a readable vocabulary."""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qkv._argument_errors import public_method, value_error
from qkv.arrays import whole_number
from qkv.text.tokenizer import Tokenizer, check_text, check_texts

if TYPE_CHECKING:
    import tokenizers

UNKNOWN = "[UNK]"

# Letters and digits, with accents and zero-width joiners.
_LETTERS = r"[\p{L}\p{N}_][\p{L}\p{M}\p{N}_\x{200c}\x{200d}]*"
# A word may contain straight and curly apostrophes. Any other character except white space is one
# token. Combining marks such as accents belong to the token of their character (\X). A format
# character is a separate token.
_TOKEN = rf"{_LETTERS}(?:['\x{{2019}}]{_LETTERS})*|(?![\s\p{{Cf}}])\X|\S"
_MARKER = re.compile(r"\[[A-Z]+\]")


class WordTokenizer(Tokenizer):
    """Cut a text into words and punctuation marks.

    A word is a run of letters and digits, with apostrophes inside (`don't`); every other character
    except white space is a separate token. In a script without spaces, such as Chinese, a whole
    phrase is one word. Special tokens of the vocabulary such as `[UNK]` and `[PAD]` stay whole. A
    word that is not in the vocabulary becomes `[UNK]`; `offsets` still gives the position of the
    word in the text.

    Args:
        source: a mapping from n words to the ids 0 to n - 1, or one or more texts. The distinct
            words of texts get the ids 0, 1, ... in order of appearance. `[UNK]` is added as the
            last word if it is missing.
        lowercase: whether texts and vocabulary are converted to lower case.

    Raises:
        TypeError: a word or a text is not a string, or an id is not an integer.
        ValueError: there are no words; two words have the same id; an id is missing; or a word of
            the vocabulary can never be found in a text.

    Example:
        >>> tokenizer = WordTokenizer("The cat sat on the mat.")
        >>> tokenizer.vocabulary
        {'the': 0, 'cat': 1, 'sat': 2, 'on': 3, 'mat': 4, '.': 5, '[UNK]': 6}
        >>> words = tokenizer("The dog sat.")
        >>> words.ids, words.tokens
        (array([0, 6, 2, 5]), ['the', '[UNK]', 'sat', '.'])
        >>> words.offsets
        [(0, 3), (4, 7), (8, 11), (11, 12)]
        >>> tokenizer.decode(words.ids)
        'the [UNK] sat .'
    """

    @public_method
    def __init__(
        self, source: Mapping[str, int] | str | Iterable[str], *, lowercase: bool = True
    ) -> None:
        cutter = _build({UNKNOWN: 0}, lowercase)
        if isinstance(source, Mapping):
            vocabulary = _check_vocabulary(source, cutter)
        else:
            texts = [source] if isinstance(source, str) else source
            vocabulary = _collect_words(check_texts(texts), cutter)
        vocabulary.setdefault(UNKNOWN, len(vocabulary))
        super().__init__(_build(vocabulary, lowercase))


def _build(vocabulary: dict[str, int], lowercase: bool) -> "tokenizers.Tokenizer":
    """Return a `tokenizers.Tokenizer` with a vocabulary; the pattern `_TOKEN` splits the texts."""
    import tokenizers as library

    inner = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.normalizer = library.normalizers.Sequence(
        [library.normalizers.Lowercase()] if lowercase else []
    )
    inner.pre_tokenizer = library.pre_tokenizers.Split(
        library.Regex(_TOKEN), behavior="removed", invert=True
    )
    markers = [word for word in vocabulary if _MARKER.fullmatch(word)]
    inner.add_tokens([library.AddedToken(word, normalized=False) for word in markers])
    return inner


def _cut(text: str, cutter: "tokenizers.Tokenizer") -> list[str]:
    """Return the words of a text in the tokenizer's spelling; leave out each [UNK]."""
    normalizer: Any = cutter.normalizer
    splitter: Any = cutter.pre_tokenizer
    return [
        word
        for part in text.split(UNKNOWN)
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(part))
    ]


def _collect_words(texts: list[str], cutter: "tokenizers.Tokenizer") -> dict[str, int]:
    """Return the vocabulary of texts, in order of appearance."""
    words = dict.fromkeys(word for text in texts for word in _cut(text, cutter))
    if not words:
        raise value_error("the texts contain no words; pass texts with at least one word")
    return {word: index for index, word in enumerate(words)}


def _check_vocabulary(source: Mapping[Any, Any], cutter: "tokenizers.Tokenizer") -> dict[str, int]:
    """Return a user's vocabulary in the tokenizer's spelling; raise an error if it is invalid."""
    if not source:
        raise value_error("the vocabulary is empty; pass at least one word")
    each_once = f"pass each id from 0 to {len(source) - 1} once, for {len(source)} words"
    ids: dict[str, int] = {}
    owner: dict[int, str] = {}  # the words as the user spells them
    for word, value in source.items():
        check_text(word, name=f"the vocabulary's word {word!a}")
        spelled = word if _MARKER.fullmatch(word) else _findable(word, cutter)
        if spelled in ids:
            raise value_error(
                f"{owner[ids[spelled]]!r} and {word!r} are the same word in lower "
                "case: keep one of them, or pass lowercase=False"
            )
        name = f"the id of {word!r}"
        index = whole_number(value, name=name, least=-sys.maxsize)
        if index in owner:
            raise value_error(f"{owner[index]!r} and {word!r} both have id {index}; {each_once}")
        ids[spelled], owner[index] = index, word
    for index, word in owner.items():
        if not 0 <= index < len(source):
            raise value_error(f"{word!r} has id {index}; {each_once}")
    return ids


def _findable(word: str, cutter: "tokenizers.Tokenizer") -> str:
    """Return a word in the tokenizer's spelling; raise an error if the word is not one token."""
    normalizer: Any = cutter.normalizer
    spelled: str = normalizer.normalize_str(word)
    if _cut(word, cutter) != [spelled]:
        raise value_error(
            f"the vocabulary entry {word!r} is not a single word or punctuation "
            "mark, so no token can match it; pass its parts as separate entries, without spaces"
        )
    return spelled
