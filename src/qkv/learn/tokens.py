"""A tokenizer trained on a corpus."""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from qkv.text import SubwordTokenizer

if TYPE_CHECKING:
    import tokenizers

SAMPLE = 1 << 26  # bytes of a corpus that a tokenizer is trained on
END = "<|endoftext|>"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(
    lines: Iterable[str], kind: Literal["wordpiece", "bytes"], vocabulary: int
) -> SubwordTokenizer:
    """A tokenizer with at most so many tokens, or as few as the letters of the text need.

    Args:
        lines: of text.
        kind: "wordpiece", in lower case with [CLS] and [SEP] around a text, as BERT's; or "bytes",
            pairs of bytes that are joined, as GPT-2's.
        vocabulary: V.

    Raises:
        ValueError: there is no such kind.

    Source:
        Wu et al. 2016, section 4.1 (WordPiece); Radford et al. 2019, section 2.2 (bytes).

    >>> tokenizer = train_tokenizer(["the cat sat on the mat"] * 9, "wordpiece", 60)
    >>> tokenizer("The cat").tokens
    ['[CLS]', 'the', 'cat', '[SEP]']
    """
    if kind == "wordpiece":
        return _wordpiece(lines, vocabulary)
    if kind == "bytes":
        return _bytes(lines, vocabulary)
    raise ValueError(f"train_tokenizer: kind is {kind!r}: choose wordpiece or bytes")


def _wordpiece(lines: Iterable[str], vocabulary: int) -> SubwordTokenizer:
    from tokenizers import Tokenizer, models, trainers

    lines = list(lines)
    trained = _bert_like(Tokenizer(models.WordPiece(unk_token="[UNK]")))
    letters = _letters(map(trained.normalizer.normalize_str, lines), vocabulary // 4)
    inside = [f"##{letter}" for letter in letters if _is_inside_words(letter)]
    # Left to itself the library numbers the letters inside words in another order each time, and
    # breaks ties by the numbers; named as special tokens they come in ours.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*_SPECIAL, *inside],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    trained.train_from_iterator(lines, trainer)
    inner = _bert_like(Tokenizer(models.WordPiece(trained.get_vocab(), unk_token="[UNK]")))
    inner.add_special_tokens(list(_SPECIAL))
    return SubwordTokenizer(inner)


def _bert_like(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """What stands around the vocabulary in the tokenizer of BERT."""
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    around = [(token, _SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    return inner


def _letters(lines: Iterable[str], most: int) -> list[str]:
    """The letters that are most frequent, in their order."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    found = [letter for letter in counts if not letter.isspace()]
    return sorted(sorted(found, key=lambda letter: (-counts[letter], letter))[: max(1, most)])


def _is_inside_words(letter: str) -> bool:
    """Whether a letter may be followed by others in one word; marks and Chinese stand alone."""
    mark = letter in string.punctuation or unicodedata.category(letter).startswith("P")
    return not mark and not 0x3400 <= ord(letter) <= 0x9FFF and ord(letter) < 0x20000


def _bytes(lines: Iterable[str], vocabulary: int) -> SubwordTokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    return SubwordTokenizer(inner)
