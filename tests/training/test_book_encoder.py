"""Tests of training an encoder on made-up books and a very small WordNet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from learn.support import tiny_bert
from qkv.learn import Interrupted, Sequences, last_checkpoint
from qkv.learn._tokenizer import train_tokenizer
from qkv.models.model import Model
from training import book_encoder, books
from training.book_encoder import Recipe, carried_over, texts, vocabulary
from training.objectives import Unseen
from training.wordnet import read

PASSAGES = [
    ["The cat sat on the mat.", '"Where is my old hat?" asked the man; nobody knew.'],
    ["He sat by the bank!", "Oh no."],
]
HELD_OUT = "they pulled up on the bank"
pytestmark = pytest.mark.usefixtures("small_books")
RECIPE = {"vocabulary": 130, "whole": 0.4, "length": 16, "tokens": 100, "uses": 8, "begin": 0.4}


def before() -> Model:
    """Return the model from which training continues."""
    texts = ["the cat pulled two oxen to the bank", "land and money"] * 9
    return tiny_bert(texts, 60, seed=3, max_position_embeddings=16)


def test_new_token_rows_are_means_of_their_subwords() -> None:
    old = before()
    assert old.tokenizer is not None
    rng = np.random.default_rng(0)
    for name, array in old.parameters.items():
        old.parameters[name] = rng.standard_normal(array.shape).astype(np.float32)
    new = train_tokenizer(["cattle landed two oxcarts by the bank"] * 9, "wordpiece", 90)
    found = carried_over(old, new)
    assert found.tokenizer is new
    assert found.config["vocab_size"] == len(new) == len(found.parameters["embed.weight"])
    names = old.tokenizer.vocabulary
    kinds = {"whole": 0, "pieces": 0}
    of_v = [name for name, array in old.parameters.items() if len(array) == len(names)]
    assert {"embed.weight", "head.out_proj.bias"} <= set(of_v)
    for token, number in new.vocabulary.items():
        if token in names:
            rows = [names[token]]
            kinds["whole"] += 1
        else:
            text = old.tokenizer.tokenize(token.removeprefix("##"))
            rows = text.ids[1:-1].tolist()  # without [CLS] and [SEP]
            assert (text.tokens[0], text.tokens[-1]) == ("[CLS]", "[SEP]")
            kinds["pieces"] += len(rows) > 1
        for name in of_v:
            expected = sum(old.parameters[name][row].astype(np.float64) for row in rows)
            np.testing.assert_allclose(
                found.parameters[name][number], expected / len(rows), atol=1e-6
            )
    assert min(kinds.values()) > 5
    for name, array in old.parameters.items():
        if name not in of_v:
            np.testing.assert_array_equal(found.parameters[name], array)


def test_what_is_read_by_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []

    def kept(kind: Any, tokenizer: Any, length: int) -> list[np.ndarray]:
        assert length == 16
        found.append(list(kind))
        return [np.array([len(found)] * 5)]

    monkeypatch.setattr(book_encoder, "pieces_of", kept)
    recipe = Recipe(length=16)
    mixed = texts([PASSAGES], read(folder, kept=1), before().tokenizer, recipe)
    short, long, examples, documents = found
    assert short == [*["The cat sat on the mat.", "He sat by the bank!"], "The cat sat on the mat"]
    assert long == [" ".join(passage) for passage in PASSAGES]
    assert {"oxen pull", "oxen pull.", "so!"} <= set(examples)
    assert "so!." not in examples
    assert HELD_OUT not in " ".join([*examples, *documents])
    assert "ox: a bull. oxen pull" in documents
    taken = [int(mixed.take()[0]) for _ in range(100)]
    assert [taken.count(kind) for kind in (1, 2, 3, 4)] == [50, 25, 17, 8]


def test_the_vocabulary_has_words_of_books_and_wordnet(folder: Path) -> None:
    found = vocabulary([PASSAGES] * 6, read(folder, kept=1), Recipe(**RECIPE)).vocabulary
    assert {"the", "bank", "sat", "oxen"} <= set(found)
    assert len(found) <= 130


def test_a_run_goes_on_from_a_model_and_is_resumed(
    folder: Path, tmp_path: Path, stopping: Callable[[int], None]
) -> None:
    after, out = tmp_path / "after", tmp_path / "run"
    before().save(after)

    def run(out: Path, *more: str) -> None:
        options = [f"--{name}={value}" for name, value in RECIPE.items()]
        given = ["none", "--wordnet", str(folder), "-o", str(out), "--after", str(after)]
        book_encoder.main([*given, *options, "--steps", "5", "--snapshots", "2", *more])

    run(out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [set(row["losses"]) for row in rows] == [{"masked"}] * 2 + [{"masked", "senses"}] * 3
    model = qkv.load(out)
    assert model.predict("he sat by the [MASK]", top_k=1)
    words = json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(words) == model.config["vocab_size"]
    assert "sat" in words
    checkpoint = last_checkpoint(out)
    assert checkpoint.about["settings"]["recipe"]["after"] == str(after)

    stopping(30)
    with pytest.raises(Interrupted, match=r"stopped at step [1-4]"):
        run(tmp_path / "broken")
    run(tmp_path / "broken", "--resume")
    for name in ("tokenizer.json", "model.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (out / name).read_bytes()


def test_without_a_size_the_vocabulary_stays(folder: Path, tmp_path: Path) -> None:
    after, out = tmp_path / "after", tmp_path / "run"
    before().save(after)
    recipe = Recipe(after=str(after), **{**RECIPE, "vocabulary": 0})
    book_encoder.make(recipe, Path("none"), folder, out, steps=1)
    assert qkv.load(out).tokenizer.vocabulary == qkv.load(after).tokenizer.vocabulary


@pytest.mark.parametrize("options", [{"told": 0.5}, {"guessed": 1e-4}])
def test_a_run_learns_from_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, float]
) -> None:
    both = {("choose",): [(None, PASSAGES)], ("train",): [(None, PASSAGES)] * 6}
    monkeypatch.setattr(books, "read", lambda _, wanted: both[tuple(wanted)])
    first, second, out = (tmp_path / name for name in ("first", "second", "run"))
    before().save(first)
    before().save(second)
    recipe = Recipe(after=str(first), beside=str(second), clauses=0.2, **RECIPE, **options)
    done = book_encoder.make(recipe, Path("none"), folder, out, steps=3)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    named = "guessed" if "guessed" in options else "masked"
    assert [row["losses"][named] > 0 for row in rows] == [True] * 3
    assert done.steps == 3


def test_guessable_words_are_unique_content_words(folder: Path) -> None:
    """Each word is a content word, occurs once in its text, and is a token of its own."""
    tokenizer, wordnet_ = before().tokenizer, read(folder, kept=1)
    assert tokenizer is not None
    content = Unseen(
        Sequences([np.array([1])]), tokenizer, in_sight=0.0, alike=str.casefold
    ).content
    neighbours = book_encoder.counted([PASSAGES], wordnet_, tokenizer, content)
    every = book_encoder.guessable(
        [PASSAGES] * 3, wordnet_, neighbours, tokenizer, Recipe(length=16)
    )
    texts = {tokenizer.decode(ids) for ids, _ in every}
    assert every
    assert any("oxen" in text or "bank" in text for text in texts)
    for ids, position in every:
        assert content[ids[position]]
        assert (ids == ids[position]).sum() == 1
        assert ids[[0, -1]].tolist() == tokenizer.tokenize("").ids.tolist()
    few = book_encoder.guessable(
        [PASSAGES] * 3, wordnet_, neighbours, tokenizer, Recipe(length=16, guessed=0.5)
    )
    assert len(few) < len(every)
