"""A program that trains a tokenizer: lines come in, its tokenizer.json goes out.

It is a process of its own because the library hears no signal while it trains, and can only be
killed. Whoever starts it (`tokenizer.py`) holds its standard input open: when that closes, nobody
is left to train for, and it ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import string
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

END = "<|endoftext|>"
LONGEST = 100  # letters of a word; what is longer is trained on in pieces
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def main() -> None:
    """Read lists of lines as JSON, one a line and `null` at the end; write the tokenizer."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lines: list[str] = []
    for row in sys.stdin.buffer:
        found = json.loads(row)
        if found is None:
            break
        lines += found
    else:
        os._exit(1)
    threading.Thread(target=_end_with_whoever_waits, daemon=True).start()
    kind, vocabulary = sys.argv[1], int(sys.argv[2])
    try:
        text = trained(lines, kind, vocabulary).to_str()
    except BaseException as error:  # the library's panics are not even Exceptions
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(text.encode())


def _end_with_whoever_waits() -> None:
    """End this process when its standard input closes."""
    os.read(sys.stdin.fileno(), 1)  # without a lock that Python would want at its end
    os._exit(1)


def trained(lines: list[str], kind: str, vocabulary: int) -> tokenizers.Tokenizer:
    """A tokenizer of a kind, "wordpiece" or "bytes", trained on lines."""
    return (_wordpiece if kind == "wordpiece" else _bytes)(lines, vocabulary)


def _wordpiece(lines: list[str], vocabulary: int) -> tokenizers.Tokenizer:
    """Beginnings of words and pieces inside them, as BERT's tokenizer has them."""
    from tokenizers import Tokenizer, models, trainers

    first = _bert_like(Tokenizer(models.WordPiece(unk_token="[UNK]")))
    letters = _letters(map(first.normalizer.normalize_str, lines), vocabulary // 4)
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
    _train(first, lines, trainer, LONGEST)
    inner = _bert_like(Tokenizer(models.WordPiece(first.get_vocab(), unk_token="[UNK]")))
    long_word = re.compile(rf"\w{{{LONGEST + 1}}}")
    if any(map(long_word.search, lines)):  # it would be unknown as a whole
        inner.pre_tokenizer = _in_pieces(inner.pre_tokenizer, LONGEST)
    inner.add_special_tokens(list(_SPECIAL))
    return inner


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


def _bytes(lines: list[str], vocabulary: int) -> tokenizers.Tokenizer:
    """Pairs of bytes that are joined, as GPT-2's tokenizer has them."""
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
    _train(inner, lines, trainer, 3 * LONGEST)  # bytes: a letter of Chinese has three
    return inner


def _train(inner: tokenizers.Tokenizer, lines: list[str], trainer: Any, longest: int) -> None:
    """Train on words of at most so many letters, since the time grows with their square."""
    whole = inner.pre_tokenizer
    inner.pre_tokenizer = _in_pieces(whole, longest)
    inner.train_from_iterator(lines, trainer)
    inner.pre_tokenizer = whole


def _in_pieces(whole: Any, longest: int) -> Any:
    """What cuts a text into words, and longer ones into pieces of so many letters."""
    from tokenizers import Regex, pre_tokenizers

    pieces = pre_tokenizers.Split(Regex(rf"[\s\S]{{{longest}}}"), "isolated")
    return pre_tokenizers.Sequence([whole, pieces])


if __name__ == "__main__":
    main()
