"""Tests of the included model's stories: reading them, and showing them in views and pages."""

import json
from pathlib import Path

import pytest

import qkv
from qkv.see import Story, guess, stories, walk
from qkv.see.page.play import read_stories

FILE = Path(__file__).resolve().parents[3] / "src" / "qkv" / "data" / "books" / "stories.json"
TOLD = stories().told
OAK = Story("The oak is a small [MASK].", ("oak",), (), "tree", "man", "An oak is a tree.")
BY_HEAD = [story for story in TOLD if story.ablate]


def test_the_stories_match_their_file() -> None:
    kept, found = json.loads(FILE.read_text(encoding="utf-8")), stories()
    assert (found.searched, found.found) == (kept["searched"], kept["found"])
    for one, story in zip(kept["stories"], found.told, strict=True):
        assert (story.sentence, story.reason) == (one["sentence"], one["reason"])
        assert (story.before, story.after) == (one["before"]["word"], one["after"]["word"])
        assert [list(story.hide), [list(head) for head in story.ablate]] == [
            one["hide"],
            one["ablate"],
        ]


def test_a_folder_without_stories_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_stories(tmp_path)


@pytest.mark.parametrize("story", TOLD, ids=lambda one: one.sentence)
def test_a_story_is_guessed_with_its_edits_and_its_reason(story: Story) -> None:
    view = guess(story)
    model = qkv.load("books")
    assert view.guesses == model.predict(story.sentence)
    assert view.after == model.predict(story.sentence, hide=story.hide, ablate=story.ablate)
    assert (view.guesses[0][0][0], view.after[0][0][0]) == (story.before, story.after)
    said = " ".join(str(view).split())
    assert said.endswith(story.reason)
    assert view.to_dict()["reason"] == story.reason


def test_a_story_ignores_the_model_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_MODEL", "random")
    assert guess(OAK).model == "books"


def test_the_reason_is_left_out_if_the_guess_differs() -> None:
    story = OAK
    other = Story(story.sentence, (), ((0, 0),), story.before, "elbow", story.reason)
    view = guess(other)
    assert (view.reason, view.to_dict()["reason"]) == ("", None)
    assert story.reason not in " ".join(str(view).split())


def test_a_story_takes_no_other_edits() -> None:
    for options in ({"hide": "her"}, {"ablate": [(0, 1)]}):
        with pytest.raises(TypeError, match="guess: a story has its own interventions: leave out"):
            guess(OAK, **options)


@pytest.mark.parametrize("story", BY_HEAD, ids=lambda one: one.sentence)
def test_the_walk_through_the_head_of_a_story_ends_at_its_word(story: Story) -> None:
    ((layer, head),) = story.ablate
    view = walk(story.sentence, layer, head)
    (first, probability), *_ = view.words
    assert first == story.before
    assert view.walk.tokens[view.walk.position] == "[MASK]"
    ((_, expected),) = qkv.load("books").predict(story.sentence, top_k=1)[0]
    assert probability == pytest.approx(expected, rel=1e-3)
