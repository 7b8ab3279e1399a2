"""Tests of the list of everyday words against its rule, and of the measure by hand."""

from qkv.learn._tokenizer import train_tokenizer
from training.everyday import KINDS, WORDS, in_pieces, main

SIZES = {"home": 20, "food": 20, "body": 12, "animals": 16, "people": 12, "town": 10}
SIZES |= {"verbs": 60, "adjectives": 20, "time": 20, "greetings": 10}


def test_the_list_follows_its_rule() -> None:
    assert {kind: len(words.split()) for kind, words in KINDS.items()} == SIZES
    assert len(WORDS) == len(set(WORDS)) == 200
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    for kind in ("home", "food", "body", "animals", "people", "town"):
        words = KINDS[kind].split()
        plural = [word.endswith("s") or word in ("feet", "children") for word in words]
        assert plural == [False] * (len(words) // 2) + [True] * (len(words) // 2), kind
    verbs = KINDS["verbs"].split()
    for base, past, ing, third in zip(*(verbs[k::4] for k in range(4)), strict=True):
        assert third in (base + "s", base + "es")
        assert ing.endswith("ing")
        assert ing.startswith(base.removesuffix("e"))
        assert past not in (base, ing, third)


def test_in_pieces_lists_split_and_unknown_words() -> None:
    tokenizer = train_tokenizer(["the cat walked"] * 9, "wordpiece", 60)
    found = in_pieces(tokenizer, ["cat", "walked", "cats", "walk", "dog", "the cat", "\N{SNOWMAN}"])
    assert found == ["cats", "walk", "dog", "the cat", "\N{SNOWMAN}"]


def test_the_command_counts_split_and_unknown_words(tmp_path) -> None:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 9, "wordpiece", 5000)
    tokenizer.save(tmp_path / "tokenizer.json")
    said: list[str] = []
    main([str(tmp_path / "tokenizer.json")], said.append)
    assert said == ["split or unknown: 0 of 200, 0.0% (0.0 to 1.9): "]
    assert in_pieces(train_tokenizer(["xyz"] * 9, "wordpiece", 60)) == list(WORDS)
