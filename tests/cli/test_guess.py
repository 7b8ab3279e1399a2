"""Tests of `qkv guess`: words, their probabilities before and after, and rejected arguments."""

import json
import shlex
from pathlib import Path

import pytest

import qkv
from models import decoders
from models.support import mask_bert
from qkv.see import guess

from .test_cli import refused, run

TEXT = "the cat sat on the [MASK]."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("mask") / "model"
    mask_bert(made)
    return str(made)


def test_the_view_is_printed(folder: str) -> None:
    result = run("guess", TEXT, "--model", folder)
    expected = guess(TEXT, model=qkv.load(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.strip() == str(expected)
    assert len(expected.guesses[0]) == 5


def test_every_option_reaches_the_model(folder: str) -> None:
    flags = ("--top", "3", "--hide", "cat", "--hide", "on", "--ablate", "0.1", "--ablate", "1.2")
    result = run("guess", TEXT, "--model", folder, "--json", *flags)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    model = qkv.load(folder)
    (before,) = model.predict(TEXT, 3)
    (after,) = model.predict(TEXT, 3, hide=["cat", "on"], ablate=[(0, 1), (1, 2)])
    (one,) = found["guesses"]
    for name, expected in (("before", before), ("after", after)):
        assert [(each["word"], each["probability"]) for each in one[name]] == expected
    assert (found["hide"], found["ablate"]) == (["cat", "on"], [[0, 1], [1, 2]])
    shown = run("guess", TEXT, "--model", folder, *flags).stdout
    assert "without layer 0, head 1 and layer 1, head 2, cat and on" in " ".join(shown.split())


def test_a_decoder(tmp_path: Path) -> None:
    decoders.writer(tmp_path / "writer", "a b", " the")
    result = run("guess", "a b", "--model", str(tmp_path / "writer"), "--top", "1", "--json")
    (one,) = json.loads(result.stdout)["guesses"]
    assert (one["token"], one["before"][0]["word"]) == (None, "the")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("the cat",), "the text has no mask token, .* write [MASK] or _ where a word is missing"),
        (("",), "the text is empty; pass at least one word"),
        ((TEXT, "--top", "0"), "0 is not in the range x>=1"),
        ((TEXT, "--top", "31"), "guess: --top is 31, but the vocabulary of model has 30 tokens"),
        ((TEXT, "--hide", "dog"), "`hide` has 'dog', which is in no text: the words are the, cat"),
        ((TEXT, "--ablate", "0"), "0 is not a head; write LAYER.HEAD, for example 0.3"),
        ((TEXT, "--ablate", "0.x"), "0.x is not a head; write LAYER.HEAD, for example 0.3"),
        ((TEXT, "--ablate", "2.0"), "`ablate` names layer 2, but the model has 2 layers"),
        ((TEXT, "--ablate", "0.3"), "`ablate` names head 3, but layer 0 has 3 heads, numbered 0"),
        ((TEXT, "--ablate", "\u0660.\u0661"), "write LAYER.HEAD, for example 0.3"),
        (("the " * 20 + "[MASK]",), "the gap is beyond the first 16 tokens, and model reads only"),
        ((), "Missing argument 'TEXT'"),
    ],
)
def test_bad_requests(folder: str, args: tuple[str, ...], said: str) -> None:
    line = refused(run("guess", *args, "--model", folder), "guess")
    for part in said.split(" .* "):
        assert part in line


def test_repeated_hide_and_ablate_options_count_once(folder: str) -> None:
    flags = ("--hide", "cat", "--hide", "cat", "--ablate", "0.1", "--ablate", "0.1")
    result = run("guess", TEXT, "--model", folder, *flags)
    assert "without layer 0, head 1, cat hidden: " in " ".join(result.stdout.split())


def test_a_mask_is_refused_for_a_decoder(tmp_path: Path) -> None:
    decoders.writer(tmp_path / "writer", "a b", " the")
    line = refused(run("guess", TEXT, "--model", str(tmp_path / "writer")), "guess")
    assert "writer guesses the next word and has no [MASK]: end the text where the word" in line


def test_guess_without_a_text_shows_one_story_and_lists_the_others() -> None:
    result = run("guess", "--top", "2")
    kept = qkv.see.stories()
    first, *others = kept.told
    assert (result.exit_code, result.stderr) == (0, "")
    told, _, rest = result.stdout.partition("\nThis sentence and the next ones were chosen from ")
    assert told.strip() == str(guess(first, top_k=2))
    assert rest.startswith(f"{kept.searched:,} sentences")
    lines = [shlex.split(line) for line in rest.splitlines() if line.startswith("  qkv ")]
    *guessed, (_, verb, *walked) = lines
    assert [words[:3] for words in guessed] == [["qkv", "guess", one.sentence] for one in others]
    for (_, *words), story in zip(guessed, others, strict=True):
        data = json.loads(run(*words, "--json").stdout)
        assert data["guesses"][0]["after"][0]["word"] == story.after
    assert verb == "walk"
    assert run(verb, *walked, "--json").exit_code == 0
    (line,) = run("guess", "--json").stdout.splitlines()
    assert json.loads(line)["reason"] == first.reason


def test_stories_need_the_shipped_model(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for args in (("--model", folder), ("--hide", "crown"), ("--ablate", "0.1")):
        assert "Missing argument 'TEXT': --hide, --ablate" in refused(run("guess", *args), "guess")
    monkeypatch.setenv("QKV_MODEL", folder)
    assert "Missing argument 'TEXT': --hide, --ablate, --model" in refused(run("guess"), "guess")
