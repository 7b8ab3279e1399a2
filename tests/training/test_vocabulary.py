"""Tests of the shipped model's tokenizer: whole words by hand, and subwords for other words."""

from pathlib import Path

import pytest

from qkv.learn._tokenizer import train_tokenizer
from qkv.text import SubwordTokenizer
from training import wordnet
from training.vocabulary import (
    built,
    commonest,
    commonest_of_books,
    running_text,
    with_whole_words,
)
from training.wordnet import Synset, WordNet, read

TEXTS = ["the cats sat on the mat", "a cat sits, the mats", "unsittable", "unmatted mats"] * 3
WORDS = ["the", "cats", "mats", "sat", "cat", "on", "mat"]
NO_FORMS: dict[str, dict[str, tuple[str, ...]]] = {part: {} for part in "nvar"}


def test_the_commonest_come_first_with_a_share_of_their_forms() -> None:
    texts = ["sing sing sing", "sings", "mat mat", "his", "the the the the 1945 1945", "Mat!"]
    assert commonest(texts) == ["the", "mat", "sing", "his", "sings"]
    asked = []

    def base(word: str) -> str:
        asked.append(word)
        return {"sings": "sing", "his": "sing"}.get(word, word)

    # sing 3 + 4/4, sings 1 + 4/4; his 1 + 1/4, because a function word is its own base
    assert commonest(texts, base=base) == ["the", "sing", "mat", "sings", "his"]
    assert not {"his", "the"} & set(asked)
    assert commonest(texts, base=base, of_forms=9) == ["the", "sing", "sings", "mat", "his"]


def test_examples_count_for_as_much_as_definitions() -> None:
    definitions = ["a a a a a a b b b b c"]  # 11 words: the example's 2 words count 5.5 times each
    assert commonest(definitions, ["c d"], of_forms=0) == ["c", "a", "d", "b"]
    assert commonest(definitions, of_forms=0) == ["a", "b", "c"]


def test_whole_words_come_first_and_subwords_spell_the_others() -> None:
    tokenizer = with_whole_words(TEXTS, WORDS, 60, 3)
    names = list(tokenizer.vocabulary)
    assert names[:8] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cats", "mats"]
    assert len(names) == len(set(names)) <= 60
    assert tokenizer("The CATS unmatted").tokens[:3] == ["[CLS]", "the", "cats"]
    assert "[UNK]" not in tokenizer("matscat unsat themats").tokens
    more = with_whole_words(TEXTS, WORDS, 90, 3)
    assert len(more) <= 90
    # These texts need fewer than 90 entries, so there is room for all words in WORDS.
    assert set(WORDS) <= set(more.vocabulary)


def test_no_subword_is_spent_on_a_whole_word() -> None:
    texts = ["zebra zebra"] * 99 + ["unmatted mats"] * 3
    names = with_whole_words(texts, ["zebra"], 50, 1).vocabulary
    assert "zebra" in names
    bare = [name.removeprefix("##") for name in names]
    assert not any(len(name) > 1 and name in "zebra" for name in bare if name != "zebra")
    assert any(len(name) > 1 and name in "unmatted" for name in bare)
    assert {"z", "##z"} <= set(names)  # single letters are kept, to spell other words


def test_the_tokenizer_behaves_like_that_of_bert(tmp_path: Path) -> None:
    tokenizer = with_whole_words(TEXTS, WORDS, 60, 5)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = SubwordTokenizer.from_file(tmp_path / "tokenizer.json")
    text = again("The c\N{LATIN SMALL LETTER A WITH ACUTE}ts sat [MASK].")
    assert text.tokens[:5] == ["[CLS]", "the", "cats", "sat", "[MASK]"]
    assert again.vocabulary == tokenizer.vocabulary
    assert again.decode(again("cats sat").ids) == "cats sat"
    assert [text.special[0], text.special[1], text.special[-1]] == [True, False, True]


def test_vocabulary_skips_held_out_examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wordnet, "twelfth_of", lambda text: 1 if text == "they pulled up on the bank" else 7
    )
    small = read(folder)
    definitions, examples = running_text(small)
    assert "sloping land" in definitions
    assert "he banked the plane" in examples
    assert "they pulled up on the bank" not in [*definitions, *examples]
    assert "they pulled up on the bank" in running_text(read(folder, kept=1))[1]
    found = built(small, 120, 0.3).vocabulary
    assert "banked" in found
    assert not {"pulled", "they"} & set(found)
    plain = train_tokenizer(list(wordnet.documents(small)), "wordpiece", 120)
    assert built(small, 120, 0).vocabulary == plain.vocabulary


def test_words_of_books_and_of_examples_count_by_their_shares() -> None:
    """Words are sorted by the sum of three shares.

    The sum contains the word's share in books, its share in examples, and 1/4 of its share in
    definitions.
    """
    synset = Synset("n", ("x",), "cat cat dog rug", ("pig pig pig cat",))
    small = WordNet([synset], {}, NO_FORMS, frozenset())
    found = [[["Dog pig."], ["Pig!", "1945"]]] * 6
    order, counts = commonest_of_books([*found, *[[["Pip sat."]]] * 5], small)
    # The books have 28 words. The examples have 4 words. The definitions also have 4 words, and
    # each of these words counts a quarter of 1/4, which is 1/16. The sums are dog 6/28 + 1/16,
    # pig 12/28 + 3/4, cat 2/16 + 1/4, rug 1/16.
    assert order == ["pig", "cat", "dog", "rug"]
    assert commonest_of_books(found, small)[0] == ["pig", "dog", "cat", "rug"]  # dog 6/18 + 1/16
    assert counts == {"pig": 15, "dog": 7, "cat": 3, "rug": 1, "pip": 5, "sat": 5}
    kept = WordNet([synset], {}, NO_FORMS, frozenset({("pig",) * 3 + ("cat",)}))
    assert commonest_of_books(found, kept)[0] == ["pig", "dog", "cat", "rug"]
    assert commonest_of_books([[["Pip sat."]]] * 6, kept)[0][:2] == ["pip", "sat"]


def test_forms_of_a_word_in_books_add_to_it() -> None:
    exceptions = {**NO_FORMS, "n": {"oxen": ("ox",)}}
    small = WordNet([], {("ox", "n"): (0,)}, exceptions, frozenset())
    found = [[["A a a cat cat. Ox oxen oxen oxen oxen. Cat, dog dog dog dog!"]]] * 6
    # Each book has 15 words. The scores are these numbers, divided by 15:
    # "ox" 1 + 5/4, "dog" 4 + 4/4, "oxen" 4 + 5/4, "cat" 3 + 3/4
    order = commonest_of_books(found, small)[0]
    assert order == ["oxen", "dog", "a", "cat", "ox"]
