"""A program that reads lines, trains a tokenizer, and writes its tokenizer.json.

During training, the tokenizers library does not react to signals. Training therefore runs in a
separate process, which can be killed. `tokenizer.py` starts the process and keeps the standard
input of the process open. When this input closes, the process ends.
"""

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
LONGEST = 100  # the maximum number of letters in a word; longer words are cut
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def main() -> None:
    """Read texts from standard input, train a tokenizer, and write its tokenizer.json.

    Each line of the input is a JSON list of texts, except the last line, which is `null`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lines: list[str] = []
    for row in sys.stdin.buffer:
        batch = json.loads(row)
        if batch is None:
            break
        lines += batch
    else:
        os._exit(1)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    kind, vocabulary = sys.argv[1], int(sys.argv[2])
    try:
        text = train(lines, kind, vocabulary).to_str()
    except BaseException as error:  # the tokenizers library raises a BaseException after a panic
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(text.encode())


def _end_with_caller() -> None:
    """End this process when its standard input closes."""
    os.read(sys.stdin.fileno(), 1)  # `sys.stdin` would hold a lock until exit
    os._exit(1)


def train(lines: list[str], kind: str, vocabulary: int) -> "tokenizers.Tokenizer":
    """Train a tokenizer of the kind "wordpiece" or "bytes" on lines."""
    return (_wordpiece if kind == "wordpiece" else _bytes)(lines, vocabulary)


def _wordpiece(lines: list[str], vocabulary: int) -> "tokenizers.Tokenizer":
    """Train a WordPiece tokenizer like BERT's, which marks subwords inside words with "##"."""
    from tokenizers import Tokenizer, models, trainers

    first = _bert_like(Tokenizer(models.WordPiece(unk_token="[UNK]")))
    letters = _letters(map(first.normalizer.normalize_str, lines), vocabulary // 4)
    inside = [f"##{letter}" for letter in letters if _is_inside_words(letter)]
    # If several pairs of tokens are equally frequent, the trainer joins the pair with the lowest
    # ids. The ids of tokens such as "##a" would differ between two runs of the trainer. Therefore
    # the trainer gets these tokens as special tokens, whose ids follow the order of `inside`. Equal
    # runs then produce equal tokenizers.
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
    if any(map(long_word.search, lines)):  # a long word that is not cut becomes [UNK]
        inner.pre_tokenizer = _in_pieces(inner.pre_tokenizer, LONGEST)
    inner.add_special_tokens(list(_SPECIAL))
    return inner


def _bert_like(inner: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Add the normalizer and the other parts of BERT's tokenizer."""
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
    """Return the most frequent letters, sorted."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    letters = [letter for letter in counts if not letter.isspace()]
    return sorted(sorted(letters, key=lambda letter: (-counts[letter], letter))[: max(1, most)])


def _is_inside_words(letter: str) -> bool:
    """Return whether a letter may be inside a word; punctuation and Chinese characters may not."""
    mark = letter in string.punctuation or unicodedata.category(letter).startswith("P")
    return not mark and not 0x3400 <= ord(letter) <= 0x9FFF and ord(letter) < 0x20000


def _bytes(lines: list[str], vocabulary: int) -> "tokenizers.Tokenizer":
    """Train a tokenizer like GPT-2's, which joins pairs of bytes."""
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
    _train(inner, lines, trainer, 3 * LONGEST)  # in bytes; a Chinese character has three bytes
    return inner


def _train(inner: "tokenizers.Tokenizer", lines: list[str], trainer: Any, longest: int) -> None:
    """Train on parts of long words: the time grows with the square of a word's length."""
    whole = inner.pre_tokenizer
    inner.pre_tokenizer = _in_pieces(whole, longest)
    inner.train_from_iterator(lines, trainer)
    inner.pre_tokenizer = whole


def _in_pieces(whole: Any, longest: int) -> Any:
    """Return a pre-tokenizer that also cuts words into parts of `longest` letters."""
    from tokenizers import Regex, pre_tokenizers

    pieces = pre_tokenizers.Split(Regex(rf"[\s\S]{{{longest}}}"), "isolated")
    return pre_tokenizers.Sequence([whole, pieces])


if __name__ == "__main__":
    main()
