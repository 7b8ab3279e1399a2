"""Tests of tokenizers that are trained on a text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from processes import ends, is_gone, threads, until
from qkv.learn import _tokenizer_process, train_tokenizer
from qkv.text import SubwordTokenizer
from rows import failing

LINES = ["The cat sat on the mat.\n", "A dog ran to the caf\u00e9 \u4e16\u754c!\n", "\n"] * 30


def test_wordpieces(tmp_path) -> None:
    tokenizer = train_tokenizer(LINES, "wordpiece", 120)
    assert 40 < len(tokenizer) <= 120
    names = list(tokenizer.vocabulary)[:5]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    cut = tokenizer("The CAT \u2603")
    assert cut.tokens == ["[CLS]", "the", "cat", "[UNK]", "[SEP]"]
    assert cut.special == [True, False, False, False, True]
    assert tokenizer.decode(cut.ids[:3]) == "the cat"
    tokenizer.save(tmp_path / "tokenizer.json")
    again = SubwordTokenizer.from_file(tmp_path / "tokenizer.json")
    assert again.vocabulary == tokenizer.vocabulary


def test_a_byte_tokenizer_decodes_any_text_unchanged() -> None:
    tokenizer = train_tokenizer(LINES, "bytes", 300)
    assert 256 < len(tokenizer) <= 300
    assert tokenizer.vocabulary["<|endoftext|>"] == 0
    for text in ("The cat sat.", "\u2603 not seen\n\n  twice ", "caf\u00e9"):
        assert tokenizer.decode(tokenizer(text).ids) == text
    assert len(tokenizer("The cat sat on the mat.")) < 12


def test_the_same_text_gives_the_same_tokens_in_another_process() -> None:
    text = Path(train_tokenizer.__code__.co_filename).read_text(encoding="utf-8")
    program = (
        "import sys; from qkv.learn import train_tokenizer\n"
        "lines = sys.stdin.read().splitlines(keepends=True)\n"
        "for kind in ('wordpiece', 'bytes'):\n"
        "    print(train_tokenizer(lines, kind, 400).vocabulary)"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        input=text.encode(),
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    lines = text.splitlines(keepends=True)
    here = [train_tokenizer(lines, kind, 400).vocabulary for kind in ("wordpiece", "bytes")]
    assert other.stdout.decode() == "".join(f"{vocabulary}\n" for vocabulary in here)


def test_letters_beyond_the_limit_are_unknown() -> None:
    rare = [chr(0x400 + k) for k in range(100)]
    tokenizer = train_tokenizer([*["the cat sat\n"] * 200, *rare], "wordpiece", 60)
    assert len(tokenizer) <= 60
    assert tokenizer("the cat").tokens[1:-1] == ["the", "cat"]
    assert tokenizer(rare[-1]).tokens[1:-1] == ["[UNK]"]


def test_words_within_the_limit_give_the_vocabulary_of_the_library() -> None:
    """The limit counts letters for "wordpiece" and bytes for "bytes"."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcd"), 100)) for _ in range(9)]
    chinese = ["".join(rng.choice(list("\u4e16\u754c\u7684\u4eba"), 99)) for _ in range(9)]
    lines = [*LINES, " ".join(words), *chinese]
    found = train_tokenizer(lines, "bytes", 600)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    assert found.vocabulary == inner.get_vocab()


def test_wordpieces_of_a_word_without_an_end(tmp_path: Path) -> None:
    text = "".join(np.random.default_rng(0).choice(list("acgt"), 20_000))
    tokenizer = train_tokenizer([text], "wordpiece", 300)
    found = tokenizer(text)
    assert "[UNK]" not in found.tokens
    assert [text[a:b] for a, b in found.offsets[1:-1]] == [
        token.removeprefix("##") for token in found.tokens[1:-1]
    ]
    tokenizer.save(tmp_path / "tokenizer.json")
    again = SubwordTokenizer.from_file(tmp_path / "tokenizer.json")
    assert again(text).tokens == found.tokens
    plain = train_tokenizer(LINES, "wordpiece", 120)
    longer = train_tokenizer([*LINES, "c" * 101], "wordpiece", 130)
    for line in LINES[:2]:  # shorter words give the same tokens as before
        assert longer(line).tokens == plain(line).tokens


@pytest.mark.parametrize(
    ("kind", "text"),
    [*product(["wordpiece", "bytes"], ["ACGT", "a"]), ("bytes", "Chinese"), ("bytes", "blanks")],
)
def test_training_sees_no_longer_word_than_the_limit(
    kind: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training time grows with the longest word squared."""
    rng = np.random.default_rng(0)
    line = {
        "ACGT": lambda: "".join(rng.choice(list("ACGT"), 6_000)),
        "a": lambda: "a" * 6_000,
        "Chinese": lambda: "".join(map(chr, 0x4E00 + rng.geometric(0.01, 1_500))),
        "blanks": lambda: " " * 6_000 + "the cat sat",
    }[text]()
    train, seen = _tokenizer_process._train, []

    class Watched:
        def __init__(self, inner: tokenizers.Tokenizer) -> None:
            self.pre_tokenizer = inner.pre_tokenizer

        def train_from_iterator(self, lines: list[str], _: Any) -> None:
            for one in lines:
                seen.extend(len(word) for word, _ in self.pre_tokenizer.pre_tokenize_str(one))

    def watched(inner: tokenizers.Tokenizer, *given: Any) -> None:
        train(Watched(inner), *given)
        train(inner, *given)

    monkeypatch.setattr(_tokenizer_process, "_train", watched)
    monkeypatch.setattr(sys, "executable", "")  # trains in this process
    assert len(train_tokenizer([line], kind, 1000)) > 5
    most = _tokenizer_process.LONGEST * (1 if kind == "wordpiece" else 3)  # in bytes
    assert max(seen) == most


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="the threads of a process are those of Linux")
@pytest.mark.parametrize("doing", ["waits for lines", "trains"])
def test_killed_training_leaves_no_child_process(doing: str) -> None:
    more = "time.sleep(600)" if doing == "waits for lines" else "print('all', flush=True)"
    program = (
        "import random, subprocess, time; from qkv.learn import _tokenizer as tokenizer\n"
        "start = subprocess.Popen\n"
        "def told(*given, **named):\n"
        "    process = start(*given, **named)\n"
        "    print(process.pid, flush=True)\n"
        "    return process\n"
        "subprocess.Popen = told\n"
        "def lines():\n"
        "    yield ''.join(random.choices('ACGT', k=1_000_000))\n"
        f"    {more}\n"
        "tokenizer.train_tokenizer(lines(), 'wordpiece', 30_000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        if doing == "trains":
            process.stdout.readline()
            until(lambda: threads(child), "it trains on more threads", lambda count: count > 2)
        assert not is_gone(child)
        process.kill()
    if not ends(child):
        os.kill(child, signal.SIGKILL)
        pytest.fail("it runs on")


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program, words in (
        ("import sys; sys.exit('Panic: no')", r"has failed \(1\): Panic: no"),
        ("import os; os.abort()", "the system ended it, perhaps for lack of memory"),
    ):
        path = tmp_path / "_program.py"
        path.write_text(program, encoding="utf-8")
        monkeypatch.setattr(_tokenizer_process, "__file__", str(path))
        with pytest.raises(RuntimeError, match=words):
            train_tokenizer(LINES * 3000, "bytes", 300)


def test_a_tokenizer_is_trained_without_a_python_executable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = train_tokenizer(LINES, "bytes", 300).vocabulary
    monkeypatch.setattr(sys, "executable", "")
    assert train_tokenizer(LINES, "bytes", 300).vocabulary == expected


def test_invalid_arguments_are_refused() -> None:
    for lines, kind, size, error, message in (
        ("the cat", "bytes", 300, TypeError, "`lines` is one string"),
        (["the cat", b"sat"], "bytes", 300, TypeError, "line 2 is bytes, not a string"),
        (["\udc00"], "wordpiece", 300, ValueError, "line 1 has the lone surrogate"),
        (LINES, "wordpiece", 0, ValueError, "vocabulary is 0"),
        (LINES, "words", 300, ValueError, "choose wordpiece or bytes"),
    ):
        with failing(message), pytest.raises(error, match=message):
            train_tokenizer(lines, kind, size)
