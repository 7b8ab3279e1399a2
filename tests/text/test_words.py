"""Tests of WordTokenizer: its vocabulary, word boundaries, offsets and rejected arguments."""

from pathlib import Path

import numpy as np
import pytest

from qkv.text import SubwordTokenizer, WordTokenizer
from rows import failing

LESSON = {"the": 0, "cat": 1, "sat": 2, "on": 3, "mat": 4}


def words_at(text: str, tokenizer: WordTokenizer) -> list[str]:
    """Return the part of a text that each token's offsets mark."""
    return [text[start:end] for start, end in tokenizer(text).offsets]


def test_lesson_vocabulary() -> None:
    found = WordTokenizer(LESSON)("The cat sat on the mat")
    assert found.ids.tolist() == [0, 1, 2, 3, 0, 4]
    assert found.ids.dtype == np.int64
    assert found.tokens == ["the", "cat", "sat", "on", "the", "mat"]
    assert found.offsets == [(0, 3), (4, 7), (8, 11), (12, 14), (15, 18), (19, 22)]
    assert found.special == [False] * 6
    assert len(found) == 6


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("To be, or not to be", ["to", "be", ",", "or", "not", "[UNK]"]),
        (["To be", "or not", "to be"], ["to", "be", "or", "not", "[UNK]"]),
        ((text for text in ("a b", "", "c a")), ["a", "b", "c", "[UNK]"]),
        ("a [UNK] b[UNK]c", ["a", "b", "c", "[UNK]"]),
    ],
)
def test_vocabulary_from_texts_in_order_of_appearance(source, expected: list[str]) -> None:
    tokenizer = WordTokenizer(source)
    assert list(tokenizer.vocabulary) == expected
    assert list(tokenizer.vocabulary.values()) == list(range(len(expected)))
    assert len(tokenizer) == len(expected)


def test_unknown_is_added_last_unless_the_vocabulary_has_it() -> None:
    assert WordTokenizer(LESSON).vocabulary == {**LESSON, "[UNK]": 5}
    given = {"[PAD]": 0, "[UNK]": 1, "cat": 2}
    tokenizer = WordTokenizer(given)
    assert tokenizer.vocabulary == given
    assert tokenizer.unknown == "[UNK]"
    assert tokenizer("dog cat").ids.tolist() == [1, 2]


def test_the_input_mapping_is_not_changed() -> None:
    given = dict(LESSON)
    tokenizer = WordTokenizer(given)
    tokenizer.vocabulary["dog"] = 9
    assert given == LESSON
    assert "dog" not in tokenizer.vocabulary


def test_unknown_words_keep_their_position() -> None:
    text = "The big cat sat, purring"
    tokenizer = WordTokenizer(LESSON)
    found = tokenizer(text)
    assert found.tokens == ["the", "[UNK]", "cat", "sat", "[UNK]", "[UNK]"]
    assert words_at(text, tokenizer) == ["The", "big", "cat", "sat", ",", "purring"]
    assert not any(found.special)
    assert tokenizer.decode(found.ids) == "the [UNK] cat sat [UNK] [UNK]"


def test_unknown_when_written_out() -> None:
    found = WordTokenizer(LESSON)("the [UNK][UNK]cat [unk]")
    assert found.tokens == ["the", "[UNK]", "[UNK]", "cat", "[UNK]", "[UNK]", "[UNK]"]
    # the lower-case "[unk]" becomes three unknown tokens, for "[", "unk" and "]"
    assert found.offsets[1:4] == [(4, 9), (9, 14), (14, 17)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("don't", ["don't"]),
        ("rock'n'roll", ["rock'n'roll"]),
        ("it\u2019s", ["it\u2019s"]),
        ("'hi' dogs'", ["'", "hi", "'", "dogs", "'"]),
        (
            "well-known, e.g. 3.5!",
            ["well", "-", "known", ",", "e", ".", "g", ".", "3", ".", "5", "!"],
        ),
        ("what?!...", ["what", "?", "!", ".", ".", "."]),
        ("snake_case x2", ["snake_case", "x2"]),
        ("  lead\t\ttrail \r\n", ["lead", "trail"]),
        ("a\u00a0b\u2003c\u2028d", ["a", "b", "c", "d"]),
        ("café cafe\u0301 naïve", ["café", "cafe\u0301", "naïve"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("\u0645\u06cc\u200c\u062e\u0648", ["\u0645\u06cc\u200c\u062e\u0648"]),  # Persian
        ("猫が好き。犬", ["猫が好き", "。", "犬"]),
        (
            "ok 👍🏽 👩\u200d👩\u200d👧👧 🇩🇪🇫🇷",
            ["ok", "👍🏽", "👩\u200d👩\u200d👧", "👧", "🇩🇪", "🇫🇷"],
        ),
        ("\u0600 7 \u200b", ["\u0600", "7", "\u200b"]),
        ("!\u0301 \u0301x", ["!\u0301", "\u0301", "x"]),
        ("a\x00b\x07 \x1b[0m", ["a", "\x00", "b", "\x07", "\x1b", "[", "0m"]),
        ("𐍆𐍈 𐍈", ["𐍆𐍈", "𐍈"]),
    ],
)
def test_cuts_and_offsets(text: str, pieces: list[str]) -> None:
    assert words_at(text, WordTokenizer(text)) == pieces
    assert list(WordTokenizer(text, lowercase=False).vocabulary)[:-1] == list(dict.fromkeys(pieces))


def test_offsets_where_lower_case_is_longer_than_the_text() -> None:
    text = "x İİ Y"  # a lower-case İ is two characters
    tokenizer = WordTokenizer(text)
    assert tokenizer(text).offsets == [(0, 1), (2, 4), (5, 6)]
    assert list(tokenizer.vocabulary)[1] == "i\u0307i\u0307"


def test_every_character_but_blanks_is_in_exactly_one_token() -> None:
    rng = np.random.default_rng(0)
    alphabet = "aZ é\u0301'\u2019-_. \n\t猫👩\u200d👧\u200c🇩\x00[]UNK\u0600\ufeffß"
    tokenizer = WordTokenizer(LESSON)
    for _ in range(200):
        text = "".join(rng.choice(list(alphabet), size=30))
        covered = [0] * len(text)
        for start, end in tokenizer(text).offsets:
            assert start < end
            for place in range(start, end):
                covered[place] += 1
        assert covered == [0 if char.isspace() else 1 for char in text]


def test_lower_case_of_texts_and_vocabulary() -> None:
    folded = WordTokenizer({"The": 0, "CAT": 1})
    assert folded.vocabulary == {"the": 0, "cat": 1, "[UNK]": 2}
    assert folded("the Cat THE").ids.tolist() == [0, 1, 0]
    exact = WordTokenizer({"The": 0, "the": 1}, lowercase=False)
    assert exact("The the THE").ids.tolist() == [0, 1, 2]


def test_vocabulary_is_lowered_by_the_same_rule_as_texts() -> None:
    # Python's `lower` turns the last sigma of a word into another letter than the tokenizer does
    assert WordTokenizer({"ΟΔΟΣ": 0})("ΟΔΟΣ").ids.tolist() == [0]


def test_markers_of_the_vocabulary_stay_whole() -> None:
    tokenizer = WordTokenizer({"[PAD]": 0, "a": 1, "[": 2, "]": 3, "mask": 4})
    assert tokenizer("a [PAD]a [MASK]").ids.tolist() == [1, 0, 1, 2, 4, 3]


@pytest.mark.parametrize("text", ["", "   ", "\t\r\n", "\u00a0\u3000"])
def test_text_without_words(text: str) -> None:
    found = WordTokenizer(LESSON)(text)
    assert found.ids.shape == (0,)
    assert found.ids.dtype == np.int64
    assert (found.tokens, found.offsets, found.special) == ([], [], [])
    assert len(found) == 0


def test_long_text() -> None:
    text = "The cat sat on the mat and " * 16_667  # 116,669 words
    found = WordTokenizer(LESSON)(text)
    assert len(found) == 116_669
    assert found.ids.tolist() == [0, 1, 2, 3, 0, 4, 5] * 16_667
    assert found.offsets[-1] == (len(text) - 4, len(text) - 1)


def test_a_batch_equals_separate_texts() -> None:
    tokenizer = WordTokenizer(LESSON)
    texts = ["The cat", "", "a mat"]
    batch = tokenizer.tokenize_batch(texts)
    assert [found.ids.tolist() for found in batch] == [[0, 1], [], [5, 4]]
    assert [found.offsets for found in batch] == [[(0, 3), (4, 7)], [], [(0, 1), (2, 5)]]
    assert tokenizer.tokenize_batch([]) == []


def test_saved_and_read_again(tmp_path: Path) -> None:
    tokenizer = WordTokenizer({"[PAD]": 0, "[UNK]": 1, "don't": 2, "go": 3})
    tokenizer.save(tmp_path / "tokenizer.json")
    again = SubwordTokenizer.from_file(tmp_path / "tokenizer.json")
    text = "  Don't [PAD] go\u00a0[UNK], ÉTÉ"
    first, second = tokenizer(text), again(text)
    assert first.ids.tolist() == second.ids.tolist() == [2, 0, 3, 1, 1, 1]
    assert (first.tokens, first.offsets) == (second.tokens, second.offsets)
    assert first.special == second.special == [False] * 6
    assert again.vocabulary == tokenizer.vocabulary
    assert again.unknown == "[UNK]"
    assert (
        again.decode(first.ids) == tokenizer.decode(first.ids) == "don't [PAD] go [UNK] [UNK] [UNK]"
    )


def test_save_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        WordTokenizer(LESSON).save(tmp_path / "missing" / "tokenizer.json")
    with pytest.raises(IsADirectoryError):
        WordTokenizer(LESSON).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_decode() -> None:
    tokenizer = WordTokenizer(LESSON)
    assert tokenizer.decode([0, 1, 5]) == "the cat [UNK]"
    assert tokenizer.decode(np.array([4], dtype=np.uint8)) == "mat"
    assert tokenizer.decode([]) == ""


def test_decode_refuses() -> None:
    for ids, error, match in (
        ([0, 6], ValueError, r"no token has the id 6: .* from 0 to 5"),
        ([-1, 9], ValueError, r"the id -1, 9"),
        ([0.0], TypeError, "float64; pass integers"),
        ([[0, 1]], ValueError, r"shape \(1, 2\)"),
    ):
        with failing(ids, error, match), pytest.raises(error, match=f"^decode: .*{match}"):
            WordTokenizer(LESSON).decode(ids)


def test_tokenize_refuses() -> None:
    for text, error, match in (
        (b"the cat", TypeError, "text is bytes, not a string: decode it"),
        (None, TypeError, "text is NoneType, not a string"),
        (7, TypeError, "text is int"),
        (["the cat"], TypeError, "text is list"),
        ("ab\ud800c", ValueError, r"lone surrogate '\\ud800' at character 2"),
    ):
        with failing(text, error, match), pytest.raises(error, match=f"^tokenize: .*{match}"):
            WordTokenizer(LESSON)(text)


def test_tokenize_batch_refuses() -> None:
    for texts, error, match in (
        ("the cat", TypeError, "`texts` is one str; pass a list"),
        (b"the cat", TypeError, "`texts` is one bytes"),
        (3, TypeError, "`texts` is int"),
        (["a", None], TypeError, "text 1 is NoneType"),
        (["a", "b", "\udfff"], ValueError, "text 2 has the lone surrogate"),
    ):
        with failing(texts, error, match), pytest.raises(error, match=f"^tokenize_batch: {match}"):
            WordTokenizer(LESSON).tokenize_batch(texts)


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ({}, ValueError, "vocabulary is empty"),
        ("", ValueError, "the texts contain no words"),
        ([], ValueError, "the texts contain no words"),
        ({"a": 0, "b": 0}, ValueError, "'a' and 'b' both have id 0; pass each id from 0 to 1.*2"),
        ({"a": 0, "b": 2}, ValueError, "'b' has id 2; pass each id from 0 to 1 once, for 2 words"),
        ({"a": -1, "b": 0}, ValueError, "'a' has id -1; pass each id"),
        ({"a": False}, TypeError, "the id of 'a' is False"),
        ({"a": "0"}, TypeError, "the id of 'a' is '0'"),
        ({"a": 0, 5: 1}, TypeError, "word 5 is int, not a string"),
        ({b"a": 0}, TypeError, "is bytes, not a string"),
        ({"\ud800": 0}, ValueError, "lone surrogate"),
        ({"": 0}, ValueError, "'' is not a single word"),
        ({" cat": 0}, ValueError, "' cat' is not a single word"),
        ({"a[UNK]": 0}, ValueError, "is not a single word"),
        ({"The": 0, "the": 1}, ValueError, "'The' and 'the' are the same word in lower case"),
        (b"the cat", TypeError, "`texts` is one bytes"),
        (5, TypeError, "`texts` is int"),
        (["a", 5], TypeError, "text 1 is int"),
        ("\udc80", ValueError, "lone surrogate"),
    ],
)
def test_vocabulary_refused(source, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^WordTokenizer: .*{match}") as caught:
        WordTokenizer(source)
    assert "\n" not in str(caught.value)


def test_numpy_integers_are_ids() -> None:
    assert WordTokenizer({"a": np.int64(1), "b": np.uint8(0)})("a b").ids.tolist() == [1, 0]
