"""Tests of training a decoder on made-up books and a very small WordNet."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.learn import Interrupted
from training import book_decoder
from training.book_decoder import Recipe, joined, sequences, texts, tokenizer_of, twice

PASSAGES = [
    ["The Cat sat on the mat.", '"Where is my old Hat?" asked Tom.'],
    ["He sat by the bank!", "Oh no."],
]
HELD_OUT = "they pulled up on the bank"
pytestmark = pytest.mark.usefixtures("small_books")
RECIPE = {
    **{"layers": 2, "heads": 4, "kv_heads": 2, "dim": 16, "hidden": 24, "vocabulary": 300},
    **{"length": 32, "tokens": 60, "texts": 2},
}


class Draws:
    """A random generator that returns the given numbers."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def words(count: int, name: str = "w") -> str:
    return " ".join([name] * count)


def test_paragraphs_are_joined_to_texts() -> None:
    found = list(joined(PASSAGES, Draws(0.3)))
    assert found == [
        'The Cat sat on the mat. "Where is my old Hat?" asked Tom.\nHe sat by the bank! Oh no.'
    ]
    [small] = joined(PASSAGES, Draws(0.29))
    assert small.startswith('the cat sat on the mat. "Where is my old Hat?"')


def test_long_texts_end_at_the_next_paragraph_or_sentence() -> None:
    """A text ends after a paragraph if the text has 50 words or more.

    A text ends after a sentence if the text has 90 words or more.
    """
    passages = [
        [words(49)],
        [words(1), words(39), words(1, "B")],
        [words(90), words(60)],
        [words(2)],
    ]
    draws = Draws(1, 1, 0, 1)
    found = list(joined(passages, draws))
    assert [len(one.split()) for one in found] == [90, 90, 60, 2]
    assert found[0] == f"{words(49)}\n{words(40)} B"
    assert not draws.numbers
    found = list(joined([[words(50)], [words(2)]], Draws(1, 1)))
    assert [len(one.split()) for one in found] == [50, 2]
    assert list(joined([], Draws())) == []


def test_twice_repeats_the_beginnings_of_passages() -> None:
    passages = [words(60, "a"), words(60, "b"), words(3, "c")]
    found = twice(passages, np.random.default_rng(0), 200)
    assert len(found) == 200
    sizes = set()
    for one in found:
        cut = one.split(" ")
        half = len(cut) // 2
        assert cut[:half] == cut[half:]
        if cut[0] == "c":
            assert half == 3
        else:
            sizes.add(half)
    assert sizes == set(range(5, 40))


def test_a_long_text_goes_on_in_another_sequence() -> None:
    tokenizer = tokenizer_of(["a b c d e f g h"] * 9, 300)
    end = tokenizer.vocabulary["<|endoftext|>"]
    ids = tokenizer("a b c d e f g h a b").ids.tolist()
    assert len(ids) == 10
    whole = [*ids, end]
    found = [one.tolist() for one in sequences(["a b c d e f g h a b", "a"], tokenizer, 4)]
    # A long text is split. The last token of a part is only a target in this part, so the next
    # part begins with the same token.
    assert found == [whole[:5], whole[4:9], whole[8:], [ids[0], end]]
    assert [one.tolist() for one in sequences(["a b c d"], tokenizer, 4)] == [[*ids[:4], end]]


def test_what_is_read_by_kind(folder: Path) -> None:
    found = texts(Path("none"), folder, Recipe(**RECIPE))
    assert list(found) == ["passages", "examples", "documents", "twice"]
    assert [one.lower() for one in found["passages"]] == [
        'the cat sat on the mat. "where is my old hat?" asked tom.\nhe sat by the bank! oh no.'
    ] * 6
    assert {"oxen pull.", "so!"} <= set(found["examples"])
    assert not any(one.endswith("pull") for one in found["examples"])
    assert "ox: a bull. oxen pull." in found["documents"]
    assert HELD_OUT not in " ".join(found["examples"] + found["documents"])
    assert found["twice"] == []  # 4% of six passages, rounded
    assert found == texts(Path("none"), folder, Recipe(**RECIPE))


def test_a_run_writes_and_is_resumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopping: Callable[[int], None]
) -> None:
    monkeypatch.setattr(book_decoder, "TWICE", 0.5)

    def run(out: Path, *more: str) -> None:
        options = [f"--{name}={value}" for name, value in RECIPE.items()]
        given = ["none", "--wordnet", str(folder), "-o", str(out), *options]
        book_decoder.main([*given, "--steps", "5", "--snapshots", "2", *more])

    out = tmp_path / "run"
    run(out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [set(row["losses"]) for row in rows] == [{"causal", "repeats"}] * 5
    model = qkv.load(out)
    assert (model.num_layers, model.config["num_key_value_heads"]) == (2, 2)
    assert model.generate("he sat", max_new_tokens=3).prompt == "he sat"

    stopping(12)
    with pytest.raises(Interrupted, match=r"stopped at step [1-4]"):
        run(tmp_path / "broken")
    run(tmp_path / "broken", "--resume")
    for name in ("tokenizer.json", "model.safetensors"):
        assert (tmp_path / "broken" / name).read_bytes() == (out / name).read_bytes()


def test_a_run_goes_on_from_another(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_decoder, "TWICE", 0.5)
    first, second = tmp_path / "first", tmp_path / "second"
    book_decoder.make(Recipe(**RECIPE), Path("none"), folder, first, steps=3)
    recipe = Recipe(**RECIPE, after=str(first), rate=1e-4)
    book_decoder.make(recipe, Path("none"), folder, second, steps=2)
    assert (second / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    begun, done = qkv.load(first), qkv.load(second)
    for name, array in begun.parameters.items():
        np.testing.assert_allclose(done.parameters[name], array, atol=1e-3)
    assert any((done.parameters[name] != array).any() for name, array in begun.parameters.items())


def test_the_first_word_has_the_tokens_that_it_has_elsewhere() -> None:
    text = "bank: the bank: sloping"
    tokens = tokenizer_of([text, "bank"] * 9, 300)(text)
    assert tokens.tokens[0] == tokens.tokens[tokens.tokens.index(":") + 2] == "Ġbank"
    assert tokens.offsets[0] == (0, 4)
