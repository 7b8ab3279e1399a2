"""Tests of words that name tokens: everywhere " cat", "Ġcat" and "▁cat" are the same token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import qkv
from qkv.circuits import attribute_logits, patch
from qkv.cli import main
from qkv.edits import edits_of
from qkv.text import SubwordTokenizer

from .decoders import gpt2
from .support import mask_bert

# the vocabulary has the tokens "cat" and " cat", only " dog", only "ox", and "kitten" as two tokens
TEXT = "cat dog cat kitten ox"


def tokenizer_of(blank: str) -> Any:
    """Return a byte-level tokenizer if `blank` is "Ġ", or a SentencePiece tokenizer for "▁"."""
    e_acute = ["Ã", "©"] if blank == "Ġ" else ["é"]
    merges = [("c", "a"), ("ca", "t"), (blank, "cat"), (blank, "d"), (f"{blank}d", "o")]
    merges += [(f"{blank}do", "g"), ("o", "x"), ("k", "i"), ("ki", "t"), (blank, "kit")]
    merges += [("t", "e"), ("te", "n"), *[("Ã", "©")] * (blank == "Ġ")]
    entries = [*"acdegiknotx", blank, *e_acute, *map("".join, merges)]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    if blank == "Ġ":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    return tokenizer


@pytest.fixture(scope="module", params=["Ġ", "▁"])
def blank(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, blank: str) -> Path:
    folder = tmp_path_factory.mktemp("named") / "gpt2"
    gpt2(folder, seed=3)
    tokenizer_of(blank).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> qkv.Model:
    return qkv.load(folder)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> qkv.Model:
    folder = tmp_path_factory.mktemp("named") / "bert"
    mask_bert(folder)
    return qkv.load(folder)


def id_of(model: qkv.Model, entry: str) -> int:
    assert model.tokenizer is not None
    return model.tokenizer.vocabulary[entry]


def hidden(model: qkv.Model, text: str, **edits: Any) -> list[int]:
    """Return the tokens that no token attends to, not even the last."""
    weights = model.trace(text, **edits)["pattern", 0][0, :, -1]
    return np.flatnonzero((weights == 0).all(0)).tolist()


def test_the_tokens_of_the_text(model: qkv.Model, blank: str) -> None:
    tokens = ["cat", f"{blank}dog", f"{blank}cat", f"{blank}kit", "ten", blank, "ox"]
    assert model.tokenize(TEXT).tokens == tokens


def spellings(word: str) -> list[str]:
    """Return the spellings of a word; a space can be written as either mark."""
    return [word.replace(" ", mark) for mark in (" ", "Ġ", "▁")] if " " in word else [word]


@pytest.mark.parametrize(
    ("word", "positions"),
    [
        (" cat", [2]),
        (" dog", [1]),
        ("dog", [1]),
        (" kitten", [3, 4]),
        ("kitten", [3, 4]),
        ("ox", [5, 6]),  # the space is a token of its own
        ("ten", [4]),  # a subword, as the vocabulary spells it
        (" ", [5]),
    ],
)
def test_hide_takes_each_spelling(model: qkv.Model, word: str, positions: list[int]) -> None:
    for spelling in spellings(word):
        assert (
            hidden(model, f"{TEXT} dog" if 1 not in positions else TEXT, hide=spelling) == positions
        )
        assert model.edit_records(edits_of(None, hide=spelling), model.tokenize(TEXT)) == [
            {"op": "hide", "token": position} for position in positions
        ]
        if len(positions) == 1:
            shown = [qkv.show(TEXT, model=model, key=key) for key in (spelling, *positions)]
            assert shown[0].to_dict() == shown[1].to_dict()


@pytest.mark.parametrize("word", [" dogo", "bird", " ten", "a", " t"])
def test_an_absent_word_is_an_error(model: qkv.Model, word: str) -> None:
    with pytest.raises(ValueError, match=r"^trace: `hide` has .*, which is in no text"):
        model.trace(TEXT, hide=word)
    with pytest.raises(ValueError, match=r"^positions: the text has no token "):
        model.tokenize(TEXT).positions(word)
    with pytest.raises(ValueError, match=r"^show: .* is not in the text: its words are "):
        qkv.show(TEXT, model=model, query=word)


def test_a_word_with_and_without_a_space_is_an_error_that_names_both(model: qkv.Model) -> None:
    both = "'cat', but .* has both 'cat' .*and ' cat'.*; pass ' cat', or "
    trace = model.trace(TEXT)
    calls = {
        "trace": lambda: model.trace(TEXT, hide="cat"),
        "encode": lambda: model.encode([TEXT], hide=["cat"]),
        "generate": lambda: model.generate(TEXT, hide="cat", max_new_tokens=1),
        "predict": lambda: model.predict(TEXT, hide="cat"),
        "positions": lambda: model.tokenize(TEXT).positions("cat"),
        "show": lambda: qkv.show(trace, query="cat"),
        "compare": lambda: qkv.compare(TEXT, "a cat", word="cat", model=model),
        "gradient": lambda: model.gradient(TEXT, of=(-1, "cat")),
        "attribute_logits": lambda: attribute_logits(model, trace, of=(-1, " dog", "cat")),
        "patch": lambda: patch(model, TEXT, TEXT, at="z", metric=(-1, "cat")),
        "finding": lambda: qkv.finding(model, TEXT, hide="cat"),
    }
    for call, asked in calls.items():
        with pytest.raises(ValueError, match=f"^({call}|trace): .*{both}"):
            asked()
    swap = {"op": "swap", "token": 1, "with": "cat"}
    said = r"edit\[0\] \(swap\) has with 'cat'; pass ' cat', because the vocabulary has both"
    with pytest.raises(ValueError, match=said):
        model.trace(TEXT, edit=[swap])


def test_texts_of_a_batch_may_spell_a_word_differently(model: qkv.Model) -> None:
    weights = model.trace(["cat dog dog", "ox cat dog"], hide="cat")["pattern", 0][:, :, -1]
    assert (weights == 0).all(1).tolist() == [[True, False, False], [False, True, False]]


def test_positions_takes_each_spelling(model: qkv.Model) -> None:
    tokens = model.tokenize(TEXT)
    for word, positions in {" cat": [2], "dog": [1], " dog": [1], " kit": [3], "ox": [6]}.items():
        for spelling in spellings(word):
            assert tokens.positions(spelling) == positions
    assert tokens.positions(id_of(model, "ox")) == [6]
    with pytest.raises(ValueError, match=r"^positions: the text has no token 0: its tokens are"):
        tokens.positions(0)


def test_a_target_takes_each_spelling(model: qkv.Model, blank: str) -> None:
    trace = model.trace(TEXT)
    for word, entry in ((" cat", f"{blank}cat"), ("dog", f"{blank}dog"), ("ox", "ox")):
        expected = model.gradient(TEXT, of=(-1, id_of(model, entry)))["embed"]
        shares = attribute_logits(model, trace, of=(-1, id_of(model, entry)))
        for spelling in spellings(word):
            np.testing.assert_array_equal(
                model.gradient(TEXT, of=(-1, spelling))["embed"], expected
            )
            found = attribute_logits(model, trace, of=(-1, spelling))
            assert found["embed"] == shares["embed"]
    for word in (" ox", "Ġox", "kitten", " bird"):
        with pytest.raises(
            ValueError, match=f"^gradient: '{word}' is .* of gpt2 .*; pass a string"
        ):
            model.gradient(TEXT, of=(-1, word))
    with pytest.raises(ValueError, match=r" 'cat' and ' cat' \(ids \d+ and \d+\); pass ' cat', or"):
        model.gradient(TEXT, of=(-1, "cat"))


def test_a_swap_takes_each_spelling(model: qkv.Model, blank: str) -> None:
    for word, entry in ((" cat", f"{blank}cat"), ("dog", f"{blank}dog"), ("ox", "ox")):
        for spelling in spellings(word):
            swap = {"op": "swap", "token": 0, "with": spelling}
            trace = model.trace(TEXT, edit=[swap])
            assert (trace.tokens[0], trace.ids[0]) == (entry, id_of(model, entry))
            assert qkv.finding(model, TEXT, edit=[swap]).edits == [swap | {"with": entry}]


def test_the_text_of_other_letters_names_their_token() -> None:
    # byte-level tokenizers spell the bytes of "é" as "Ã©"
    bytes_, pieces = (SubwordTokenizer(tokenizer_of(blank)) for blank in "Ġ▁")
    assert [*bytes_.entries("é")] == [*bytes_.entries("Ã©")] == ["Ã©"]
    assert [*pieces.entries("é")] == ["é"]
    assert [*bytes_.entries("Ã")] == ["Ã"]  # a part of a letter


def test_a_vocabulary_without_marks_has_one_token_for_both(bert: qkv.Model) -> None:
    text = "the cat sat on the [MASK]."
    for word in ("cat", " cat", "Ġcat"):
        assert hidden(bert, text, hide=word) == [2]
        assert bert.tokenize(text).positions(word) == [2]
        swapped = bert.trace(text, edit=[{"op": "swap", "token": 3, "with": word}])
        assert swapped.tokens[3] == "cat"
        expected = bert.gradient(text, of=(6, "cat"))["embed"]
        np.testing.assert_array_equal(bert.gradient(text, of=(6, word))["embed"], expected)


def test_the_command_line_takes_each_spelling(folder: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(main, [*words, "--model", str(folder)])

    for spelling in spellings(" cat"):
        result = run("guess", TEXT, "--hide", spelling, "--json")
        (guess,) = json.loads(result.stdout)["guesses"]
        (after,) = qkv.load(folder).predict(TEXT, hide=[2])
        assert [one["word"] for one in guess["after"]] == [word for word, _ in after]
        shown = run("show", TEXT, "--to", spelling, "--json")
        assert shown.exit_code == 0, shown.output
    for words in (("guess", TEXT, "--hide"), ("show", TEXT, "--from")):
        result = run(*words, "cat")
        assert result.exit_code == 2
        assert "both 'cat' without a space before it and ' cat'; pass ' cat'" in " ".join(
            result.stderr.split()
        )
