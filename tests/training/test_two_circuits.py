"""Tests of the numbers and findings of docs/indirect-objects.md and docs/agreement.md."""

import json
from typing import Any

import numpy as np
import pytest

import qkv
from models.gguf_files import smollm2
from qkv.cli import main
from training import two_circuits
from training.two_circuits import Task, table

KEPT = json.loads(two_circuits.FILE.read_bytes())
FILES = sorted(two_circuits.FINDINGS.glob("*.json"))
MAKERS = {"names": two_circuits.names_pairs, "number": two_circuits.number_pairs}


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    smollm2()  # skips the test if the package is missing
    return qkv.load(two_circuits.NAME)


def test_the_held_out_texts_share_no_name_and_no_template_with_the_others() -> None:
    names = two_circuits.NAMES.split()
    search, held = (set(names[two_circuits.HALF[part]]) for part in ("search", "held"))
    assert not search & held
    assert len(search | held) == len(names)
    for words in (two_circuits.OBJECTS, two_circuits.SUBJECTS):
        assert not {*words["search"]} & {*words["held"]}
    nouns = [set(two_circuits.NOUNS[part].split()) for part in ("search", "held")]
    assert not nouns[0] & nouns[1]


@pytest.mark.parametrize("part", ["search", "held"])
@pytest.mark.parametrize("task", MAKERS)
def test_the_texts_of_a_pair_differ_in_one_token(model: qkv.Model, task: str, part: str) -> None:
    pairs = MAKERS[task](model, part)
    assert len(pairs) >= 40
    assert len({pair.clean for pair in pairs}) == len(pairs)
    for pair in pairs:
        ids = model.tokenize(pair.clean).ids
        for place, text in pair.corrupted.items():
            changed = np.flatnonzero(ids != model.tokenize(text).ids)
            assert changed.tolist() == [pair.at[place]]
        assert pair.at["END"] == len(ids) - 1
        for word in (pair.answer, pair.other):
            assert len(model.tokenize(word).ids) == 1
        if task == "names":
            words = [model.decode([one]).strip() for one in ids]
            assert words[pair.at["IO"]] == pair.answer.strip()
            assert words[pair.at["S1"]] == words[pair.at["S2"]] == pair.other.strip()
            assert (pair.at["IO"] < pair.at["S1"]) == (pair.group == "ABB")


def test_the_spread_is_over_the_first_axis() -> None:
    values = [[1.0, 2.0], [3.0, 6.0]]
    assert table(values) == {"mean": [2.0, 4.0], "sd": [1.0, 2.0], "count": 2}


@pytest.mark.parametrize("task", MAKERS)
def test_the_file_has_what_the_model_gives(model: qkv.Model, task: str) -> None:
    """Measure two parts of the file again, over all held-out texts."""
    assert KEPT["model"] == {"name": two_circuits.NAME, "sha256": model.sha256}
    part = Task(model, MAKERS[task](model, "held"))
    gaps, _ = part.gaps(part.clean)
    kept = KEPT[f"{task} behaviour"]["clean"]
    assert kept["count"] == len(gaps)
    assert gaps.mean() == pytest.approx(kept["mean"], abs=2e-3)
    assert gaps.std() == pytest.approx(kept["sd"], abs=2e-3)
    assert (gaps > 0).mean() == pytest.approx(kept["right"], abs=1e-9)
    found, shares = part.attribution(), KEPT[f"{task} attribution"]
    for name in ("difference", "answer", "other", "mlp"):
        for number in ("mean", "sd"):
            np.testing.assert_allclose(found[name][number], shares[name][number], atol=3e-3)


def test_the_numbers_are_those_of_these_texts(model: qkv.Model) -> None:
    """The shares of all parts sum to the difference of the logits."""
    for task in MAKERS:
        shares: dict[str, Any] = KEPT[f"{task} attribution"]
        parts = np.sum(shares["difference"]["mean"]) + np.sum(shares["mlp"]["mean"])
        whole = KEPT[f"{task} behaviour"]["clean"]["mean"]
        assert parts + shares["embed"]["mean"] == pytest.approx(whole, abs=0.1)


def test_each_finding_holds(model: qkv.Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(FILES) == len(two_circuits.CLAIMS)
    for path in FILES:
        found = qkv.Finding.load(path)
        assert (found.text, found.edits, found.claim) == two_circuits.CLAIMS[path.stem]
    with pytest.raises(SystemExit) as end:
        main(["verify", *map(str, FILES), "--model", two_circuits.NAME])
    assert not end.value.code, capsys.readouterr().out
