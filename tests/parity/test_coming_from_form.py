"""Tests of the form of the rows in docs/coming-from.md, and of the checks of this form."""

import subprocess
import sys

import numpy as np
import pytest

from .coming_from import Row, assigned, check_form, near, page, setups, statements


def test_rows_are_numbered_and_name_their_library() -> None:
    _, rows = page()
    assert list(rows) == list(range(1, 60))  # the page says "fifty-nine research tasks"
    assert {row.library for row in rows.values()} == set(setups())


def test_ours_are_formatted_as_the_repository_is() -> None:
    """The page's notebook cells pass `ruff format`.

    In a Markdown file, `ruff format` skips notebook cells. Therefore, the test runs `ruff format`
    on the Python code of the cells.
    """
    setup, rows = page()
    for code in (setup, *(row.ours for row in rows.values())):
        ruff = [sys.executable, "-m", "ruff", "format", "--diff", "--line-length", "100", "-"]
        done = subprocess.run(ruff, input=code, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("ours", "reason", "message"),
    [
        ("found = model._run(text)", "", "_run"),
        ("found = [model.trace(text)[name] for name in _names]", "", "_names"),
        ("found = [trace['z', n] for n in range(3)]", "", "range"),
        ("found = [attn(text) for attn in model.layers]", "", "model.layers"),
        ("found = [trace['z', layer] for layer in some]", "", "layer in some"),
        ("trace = model.trace(text)\nfound = trace['z', 1]", "", "trace = model.trace"),
        ("found = trace['z', 1]", "One more, because a trace comes first.", "a reason stands"),
        ("a = 1\nb = a\nfound = b", "One more, because it is so.", "a = 1"),
    ],
)
def test_a_row_of_wrong_form_is_refused(ours: str, reason: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_form(Row("A task.", "captum", "found = attribute(ids)", ours, reason))


def test_a_row_with_a_reason() -> None:
    ours = "trace = model.trace(text)\nfound = trace['z', 1]"
    reason = "One more, because a trace comes first."
    check_form(Row("A task.", "captum", "found = attribute(ids)", ours, reason))


def test_counting() -> None:
    code = """
from a import b


def change(x, hook):
    "What it does."
    x[0] = 0
    return x


with b(change):
    found, _ = b(2)
"""
    assert statements(code) == 5
    assert assigned(code) == ["found"]


def test_near_accepts_only_close_values() -> None:
    near(np.array([1.0, -np.inf]), np.array([1.000009, -np.inf]), "near")
    for found in ([1.0, -3e38], [1.00002, -np.inf], [np.nan, -np.inf], [1.0]):
        with pytest.raises(AssertionError):
            near(np.array(found), np.array([1.0, -np.inf]), "far")
