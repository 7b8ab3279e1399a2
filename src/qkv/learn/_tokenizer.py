"""Train a tokenizer on the lines of a corpus."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Literal

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv.arrays import whole_number
from qkv.learn import _tokenizer_process
from qkv.text import SubwordTokenizer
from qkv.text.tokenizer import check_text

MAX_TOKENS = 10_000_000  # The maximum number of tokens; no machine has memory for more.
SAMPLE = 1 << 26  # A tokenizer is trained on at most this many bytes of a corpus.
_LINES_AT_ONCE = 1000


@public_call("train_tokenizer")
def train_tokenizer(
    lines: Iterable[str], kind: Literal["wordpiece", "bytes"], vocabulary: int
) -> SubwordTokenizer:
    """Train a tokenizer with at most `vocabulary` tokens, unless the letters alone need more.

    Training runs in a separate process, which Ctrl-C ends immediately. A word of more than 100
    letters (300 bytes) is first cut into parts of 100 letters, because the training time grows with
    the square of a word's length. A "wordpiece" tokenizer also cuts long words when it tokenizes
    texts; otherwise they would become unknown words. This does not affect how words of at most 100
    letters are tokenized.

    Args:
        lines: lines of text.
        kind: "wordpiece" for a tokenizer like BERT's, which uses lower case and puts [CLS] and
            [SEP] around a text; or "bytes" for a tokenizer like GPT-2's, which joins pairs of
            bytes.
        vocabulary: V, the maximum number of tokens.

    Raises:
        TypeError: a line is not a string.
        ValueError: the kind is unknown, or a line cannot be encoded as UTF-8.
        RuntimeError: the process failed.

    Source:
        Wu et al. 2016, section 4.1 (WordPiece); Radford et al. 2019, section 2.2 (bytes).

    >>> tokenizer = train_tokenizer(["the cat sat on the mat"] * 9, "wordpiece", 60)
    >>> tokenizer("The cat").tokens
    ['[CLS]', 'the', 'cat', '[SEP]']
    """
    import tokenizers

    if kind not in ("wordpiece", "bytes"):
        raise value_error(f"kind is {kind!r}: choose wordpiece or bytes")
    if isinstance(lines, str):
        raise type_error("`lines` is one string; pass a list of lines")
    vocabulary = whole_number(vocabulary, name="vocabulary", least=1, most=MAX_TOKENS)
    checked = (check_text(line, name=f"line {number}") for number, line in enumerate(lines, 1))
    if not sys.executable or getattr(sys, "frozen", False):  # there is no Python program to start
        return SubwordTokenizer(_tokenizer_process.train(list(checked), kind, vocabulary))
    text = _in_a_process(checked, kind, vocabulary)
    return SubwordTokenizer(tokenizers.Tokenizer.from_str(text))


def _in_a_process(lines: Iterator[str], kind: str, vocabulary: int) -> str:
    """Run `tokenizer_process` in a new process; return the tokenizer.json that it writes."""
    with subprocess.Popen(
        [sys.executable, "-P", _tokenizer_process.__file__, kind, str(vocabulary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        try:
            with suppress(BrokenPipeError):  # the process has ended; its message is read below
                while batch := list(islice(lines, _LINES_AT_ONCE)):
                    stdin.write(json.dumps(batch).encode() + b"\n")
                stdin.write(b"null\n")
                stdin.flush()
            text = stdout.read().decode()
            reason = stderr.read().decode(errors="replace").strip()
            code = process.wait()
        finally:
            process.kill()
            with suppress(OSError):
                stdin.close()
    if code == -signal.SIGINT:  # Ctrl-C ends both processes
        raise KeyboardInterrupt
    if code:
        last = (
            reason.splitlines()[-1] if reason else "the system ended it, perhaps for lack of memory"
        )
        raise invalid(RuntimeError, f"the training process has failed ({code}): {last}")
    return text
