"""Lesson 7 marks two tasks by itself: what its cells say of right and of wrong answers."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import notebooks
import numpy as np
import pytest

(PAGE,) = (page for page in notebooks.lessons() if page.name.startswith("7-"))

CELLS = [
    cell.source
    for cell in notebooks.student(PAGE.read_text(encoding="utf-8")).cells
    if cell.cell_type == "code"
]


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """What the student's cells before the second task define."""
    names: dict[str, Any] = {}
    with plt.rc_context({"backend": "agg"}), np.printoptions():  # the first cell sets some
        with contextlib.redirect_stdout(io.StringIO()):
            for source in CELLS[: task("closeness")]:
                exec(source, names)
        yield names
    plt.close("all")


def task(name: str) -> int:
    """The place of the empty cell of a task."""
    return next(at for at, source in enumerate(CELLS) if source.startswith(f"def {name}("))


def said(name: str, body: str, names: dict[str, Any]) -> str:
    """What the cell behind a task prints of an answer."""
    at = task(name)
    arguments = CELLS[at].splitlines()[0]
    answer = "\n    ".join([arguments, *body.splitlines()])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(answer, names)
        exec(CELLS[at + 1], names)
    return printed.getvalue()


LOOP = """
T = len(weights)
found = [weights[i, i + step] for i in range(T) if 0 <= i + step < T]
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return np.diagonal(weights, step).mean()", "right; the head"),
        (LOOP + "return sum(found) / len(found)", "right; the head"),
        ("return weights[np.eye(len(weights), k=step, dtype=bool)].mean()", "right; the head"),
        ("return np.diagonal(weights, -step).mean()", "0.8, yours 0.25"),
        ("return np.trace(weights, step) / len(weights)", "0.8, yours 0.53"),
        (LOOP.replace("0 <= ", "") + "return np.mean(found)", "0.25, yours 0.16"),
        ("return np.trace(weights, step) / (len(weights) - 1)", "0.5, yours 0.25"),
        ("np.diagonal(weights, step).mean()", "gives None"),
    ],
)
def test_a_score_of_neighbours(body: str, words: str, names: dict[str, Any]) -> None:
    printed = said("neighbour_score", body, names)
    assert words in printed
    assert printed.startswith("right") is words.startswith("right")


BOTH = "one, two = sentences\n"
FIRST = "a = model.trace(one, ablate=heads).hidden_states[-1][0, BANK]\n"
SECOND = "b = model.trace(two, ablate=heads).hidden_states[-1][0, BANK]\n"
COSINE = "return a @ b / np.sqrt((a @ a) * (b @ b))"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (BOTH + FIRST + SECOND + COSINE, "right"),
        (BOTH + FIRST + SECOND + "return a @ b", "with all heads it should be"),
        ((BOTH + FIRST + SECOND + COSINE).replace(", ablate=heads", ""), "with a head and without"),
        (
            BOTH + FIRST + SECOND.replace(", ablate=heads", "") + COSINE,
            "does all of `heads` reach both?",
        ),
        (
            BOTH + FIRST.replace(", ablate=heads", "") + SECOND + COSINE,
            "does all of `heads` reach both?",
        ),
        (
            "heads = [(head, layer) for layer, head in heads]\n" + BOTH + FIRST + SECOND + COSINE,
            "does all of `heads` reach both?",
        ),
        (
            (BOTH + FIRST + SECOND).replace("[0, BANK]", "[:, BANK]")
            + "return a @ b.T / np.sqrt((a @ a.T) * (b @ b.T))",
            "yours has the shape (1, 1)",
        ),
    ],
)
def test_a_cosine_without_heads(body: str, words: str, names: dict[str, Any]) -> None:
    printed = said("closeness", body, names)
    assert words in printed
    assert ("not yet" in printed) is (words != "right")
