"""Tests of gaps in texts: the model reads each gap as its mask token.

A gap beyond the token limit is reported, and so is a word that the model does not know.
"""

import json
import warnings

import pytest
from click.testing import CliRunner

import qkv
from qkv.cli import main
from text.odd_gaps import ODD


@pytest.fixture(scope="module")
def books() -> qkv.Model:
    return qkv.load()


def test_the_model_reads_each_spelling_as_its_mask_token(books: qkv.Model) -> None:
    texts = [f"The oak is a small {gap}." for gap in ("[MASK]", "[mask]", "_", "____", "?")]
    expected = books.predict(texts[0])
    for text in texts:
        assert books.predict(text) == expected
        trace = books.trace(text, names=["embed"])
        assert trace.tokens[6:8] == ["[MASK]", "."] == books.tokenize(text).tokens[6:8]
        start, end = trace.offsets[6]
        assert text[start:end] == text.removeprefix("The oak is a small ").removesuffix(".")
        assert trace.text == text
        assert [word for word, _ in qkv.see.guess(text, model=books).guesses[0]] == [
            word for word, _ in expected[0]
        ]
        assert qkv.show(text, model=books).trace.tokens == trace.tokens


def test_many_texts_and_many_gaps(books: qkv.Model) -> None:
    texts = [text for text, gaps in ODD if text.strip()]
    trace = books.trace(texts, names=["embed"])
    for text, tokens, spans in zip(texts, trace.tokens, trace.offsets, strict=True):
        found = [span for token, span in zip(tokens, spans, strict=True) if token == "[MASK]"]
        assert found == dict(ODD)[text], text


def test_decoders_and_encode_do_not_replace_gaps(books: qkv.Model) -> None:
    decoder = qkv.load("books-decoder")
    assert decoder.mask is None
    assert "[MASK]" not in decoder.tokenize("bank: a ? _.").tokens
    one, other = books.encode(["A small _.", "A small [MASK]."])
    assert abs(one - other).max() > 1e-3  # as in sentence-transformers, `encode` replaces no gap


def test_a_model_without_a_masked_word_head_reads_gaps_as_they_are() -> None:
    minilm, text = qkv.load("minilm"), "a small ?. a ___ [mask] [MASK]"
    assert minilm.mask is None
    # BERT's tokenizer splits punctuation into single characters, and knows [MASK] as a token
    read = "[CLS] a small ? . a _ _ _ [ mask ] [MASK] [SEP]"
    compared = qkv.compare(text, "a small ?", model=minilm, word="small")
    for seen in (
        minilm.tokenize(text),
        minilm.trace(text, names=["embed"]),
        minilm.trace(["a", text], names=["embed"])[1],
        qkv.show(text, model=minilm).trace,
        compared.sides[0].trace,
    ):
        assert " ".join(seen.tokens) == read
    shown = CliRunner().invoke(main, ["show", text, "--model", "minilm", "--json"])
    assert " ".join(json.loads(shown.output)["tokens"]) == read


def test_a_gap_beyond_the_token_limit_is_reported(books: qkv.Model) -> None:
    for gap in ("[MASK]", "[mask]", "___", "?"):
        with pytest.raises(ValueError, match=r"^predict: the gap is beyond the first.*64"):
            books.predict(f"{'word ' * 70}{gap} .")
    with pytest.warns(UserWarning, match=r"; the gap is in the part that was cut and is not r"):
        books.trace("word " * 70 + "_ .", names=["embed"])
    with pytest.warns(UserWarning, match="^2 of 3 texts were .*; in 1 of these texts, a gap is in"):
        books.trace(["a _ b", "word " * 70, "a _ " + "word " * 70 + "_ ."], names=["embed"])
    with pytest.warns(UserWarning, match=r"it has 74\)$"):  # no mention of a gap
        assert len(books.predict("a _ " + "word " * 70)) == 1


def test_words_unknown_to_the_model_are_reported(books: qkv.Model) -> None:
    said = "^predict: the model does not know 🙂 and Ж: it reads .UNK. there$"
    with pytest.warns(UserWarning, match=said):
        books.predict("The 🙂 and the Ж are _ .")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        books.predict("The [UNK] is _ .")  # the text itself contains [UNK]
        view = qkv.show("The 🙂 is a small tree.", model=books)
    said = "The model does not know 🙂: it reads [UNK] there."
    assert said in view.notes
    assert said in str(view)
    assert said in view.svg()
    assert said in qkv.see.guess("The 🙂 is _.", model=books).notes
