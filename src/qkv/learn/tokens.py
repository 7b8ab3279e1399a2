"""A tokenizer trained on a corpus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from qkv.text import SubwordTokenizer

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
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        limit_alphabet=max(1, vocabulary // 4),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return SubwordTokenizer(inner)


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
