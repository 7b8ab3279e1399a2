"""From a very small WordNet to a decoder that writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.learn import last_checkpoint
from qkv.models.untrained import fresh_model
from training import decoder, decoder_card, ship, wordnet, writing
from training.decoder import Recipe, sequences, tokenizer_of
from training.wordnet import read

SMALL = [
    *("--layers", "1", "--heads", "4", "--kv_heads", "2", "--dim", "16", "--hidden", "24"),
    *("--vocabulary", "300", "--tokens", "60", "--length", "40"),
]
COUNTS = ["bank%1:14:00:: 1 5", "ox%1:05:00:: 1 1"]


@pytest.fixture(autouse=True)
def held_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "cntlist.rev").write_text("\n".join(COUNTS) + "\n")
    monkeypatch.setattr(
        wordnet, "twelfth_of", lambda text: 0 if text == "they pulled up on the bank" else 7
    )


def test_a_text_is_a_sequence_with_its_end_as_often_as_it_is_read() -> None:
    tokenizer = tokenizer_of(["bank: sloping land", "ox: a bull"] * 9, 300)
    end = tokenizer.vocabulary["<|endoftext|>"]
    found = sequences(["bank: land", "ox: a bull"], [1, 2], tokenizer, 40)
    bank, ox = tokenizer("bank: land").ids, tokenizer("ox: a bull").ids
    expected = [[*bank, end], [*ox, end], [*ox, end]]
    assert [one.tolist() for one in found] == expected
    assert all(one.dtype == np.int32 for one in found)
    assert [len(one) for one in sequences(["bank: land"], [1], tokenizer, 3)] == [4]  # 3 are seen


def test_the_first_word_has_the_tokens_that_it_has_elsewhere() -> None:
    text = "bank: the bank: sloping"
    tokens = tokenizer_of([text, "bank"] * 9, 300)(text)
    assert tokens.tokens[0] == tokens.tokens[tokens.tokens.index(":") + 2] == "Ġbank"
    assert tokens.offsets[0] == (0, 4)


def test_a_run_is_a_llama_that_writes_and_goes_on(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun = [*SMALL, "--wordnet", str(folder), "-o", str(run), "--steps", "3", "--snapshots"]
    decoder.main(begun)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [set(row["losses"]) for row in rows] == [{"causal"}] * 3
    model = qkv.load(run)
    config = model.config
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["tie_word_embeddings"] is True
    assert not any("head" in name for name in model.parameters)
    assert model.trace("bank: a", names=["k", "q"])["k", 0].shape == (1, 3, 2, 4)
    assert model.generate("bank:", max_new_tokens=4).finish_reason in ("eos", "length")
    assert "pulled" not in json.loads((run / "tokenizer.json").read_text())["model"]["vocab"]

    kept = (run / "checkpoints" / "tokenizer.json").read_bytes()
    decoder.main([*begun, "--resume"])
    assert (run / "checkpoints" / "tokenizer.json").read_bytes() == kept
    with pytest.raises(ValueError, match="holds a run"):
        decoder.main(begun)


def test_a_run_is_shipped_with_its_card(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    small = [*SMALL[:-1], "80"]  # 64 tokens can be added
    decoder.main([*small, "--wordnet", str(folder), "-o", str(run), "--steps", "3", "--snapshots"])
    monkeypatch.setattr(writing, "read_nouns", lambda: ["bank", "ox"])
    monkeypatch.setattr(ship, "PLACES", data)
    ship.main([str(run), "--wordnet", str(folder)])
    assert "of 2 texts" in capsys.readouterr().out
    model = qkv.load(data / "books-decoder")
    for name, array in qkv.load(run).parameters.items():
        np.testing.assert_array_equal(
            model.parameters[name], array.astype(np.float16).astype(np.float32)
        )
    text = (data / "books-decoder" / "README.md").read_text()
    found = writing.evaluate(model, read(folder), folder)
    assert "1 layers, 4 query heads on 2 key and value\nheads, vectors of 16" in text
    assert f"| end | {found['definitions']['end']} |" in text
    assert f"| differ from each other | {found['definitions']['differ']} |" in text
    assert f"is {found['held_out']['loss']:.3f} nats a token" in text
    assert f"- bank:{model.generate('bank:', max_new_tokens=64)}" in text
    assert "Choices were\nmade on those that leave 1, which were kept from it as well." in text
    assert "It has no induction head (0.4 or more)." in text
    assert f"| 0.3 | {found['heads'][3]['copies']:.2f} |" in text
    assert (data / "books-decoder" / "LICENSE.wordnet").read_text() == "a licence, indented\n"

    copier = {
        **found,
        "heads": [{**row, "copies": 0.1 * row["head"] + 0.2} for row in found["heads"]],
    }
    about = last_checkpoint(run).about
    assert "(0.4 or more): 0.2 (0.40), 0.3 (0.50)." in decoder_card.card(copier, model, about)
    monkeypatch.setattr(ship, "MOST", 1000)
    with pytest.raises(ValueError, match=r"in float16: at most 1,000 ship"):
        ship.ship(run, tmp_path / "other", folder)
    assert not (tmp_path / "other").exists()


def test_it_is_small_enough_to_ship() -> None:
    config = Recipe().config(tokenizer_of(["a"], 300)) | {"vocab_size": 8192}
    arrays = fresh_model(config).parameters
    # the table, and of six layers: queries and output, keys and values of a third, MLP, norms
    layer = 2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 512 + 2 * 192
    assert sum(array.size for array in arrays.values()) == 8192 * 192 + 6 * layer + 192 == 3_934_656
