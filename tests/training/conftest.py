import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training import books, wordnet
from training.reading import Mixed

# Six synsets in the format of WordNet's files: "bank" is a noun twice and a verb once.
DATA = {
    "noun": [
        '00000100 17 n 02 bank 0 river_bank 0 000 | sloping land; "they pulled up on the bank"',
        '00000200 14 n 01 bank 0 000 | an institution: money; "the Bank\'s doors"; "two banks" ',
        '00000300 14 n 01 ox 0 000 | a bull; "oxen pull"',
    ],
    "verb": ['00000100 40 v 02 bank 0 look_up 0 01 + 08 00 | tip; "he banked the plane"; "so!"'],
    "adj": ['00000100 00 s 01 big(a) 0 000 | large; "the biggest bank of all"'],
    "adv": ["00000100 02 r 01 well 0 000 | in a good way"],
}
INDEX = {
    "noun": [
        "bank n 2 0 2 0 00000200 00000100",
        "river_bank n 1 0 1 0 00000100",
        "ox n 1 0 1 0 00000300",
    ],
    "verb": ["bank v 1 1 + 1 0 00000100", "look_up v 1 0 1 0 00000100"],
    "adj": ["big a 1 0 1 0 00000100"],
    "adv": ["well r 1 0 1 0 00000100"],
}
IRREGULAR = {"noun": ["oxen ox"], "verb": [], "adj": ["biggest big"], "adv": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a very small WordNet."""
    for name, files in (("data.{}", DATA), ("index.{}", INDEX), ("{}.exc", IRREGULAR)):
        for part, lines in files.items():
            text = "\n".join(["  1 a licence, indented", *lines]) + "\n"
            (tmp_path / name.format(part)).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def small_books(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the books by six small books, and hold out one example of WordNet."""
    parts = {"train": [(None, request.module.PASSAGES)] * 6}
    monkeypatch.setattr(books, "read", lambda _, wanted: parts["".join(wanted)])
    held_out = request.module.HELD_OUT
    monkeypatch.setattr(wordnet, "twelfth_of", lambda text: 0 if text == held_out else 7)


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function: after(n) interrupts training, as Ctrl-C does, at the n-th text read."""
    take, left = Mixed.take, [-1]

    def counted(mixed: Mixed) -> np.ndarray:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        return take(mixed)

    monkeypatch.setattr(Mixed, "take", counted)

    def after(count: int) -> None:
        left[0] = count

    return after
