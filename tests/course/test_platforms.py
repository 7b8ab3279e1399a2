"""Test the autograder for Gradescope in folders like those of its container, without a network."""

import json
import os
import re
import subprocess
import sys
import zipfile

import nbformat
import platforms
import pytest

LATE = {
    "created_at": "2026-03-02T10:00:00Z",
    "assignment": {"due_date": "2026-03-01T10:00:00Z", "total_points": "14"},
    "previous_submissions": [{"score": "3.0", "results": {"score": 3}}],
}


@pytest.fixture
def autograder(tmp_path):
    """Unpack the zip file as Gradescope does; return a function that marks a submission."""
    home = tmp_path / "autograder"
    (tmp_path / "points.csv").write_text("task,points\nsoftmax,4\n")
    wheel = tmp_path / "qkv-1-py3-none-any.whl"
    wheel.touch()
    # the limits of time are short: a cell may take six times as long
    options = ["--seconds", "2", "--points", str(tmp_path / "points.csv")]
    platforms.write_autograder(tmp_path / "3.zip", 3, [wheel], options)
    for name in ("source", "submission", "results"):
        (home / name).mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "3.zip") as package:
        package.extractall(home / "source")
    (home / "run_autograder").symlink_to(home / "source" / "run_autograder")
    (home / "run_autograder").chmod(0o755)
    (home / "venv").symlink_to(sys.prefix)
    (home / "submission_metadata.json").write_text(json.dumps(LATE))

    def mark(*cells, name="3-one-function-student (1).ipynb", limit=500):
        if cells:
            book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
            nbformat.write(book, home / "submission" / name)
        done = subprocess.run(
            [home / "run_autograder"],
            env={**os.environ, "QKV_AUTOGRADER": str(home), "QKV_LIMIT": str(limit)},
            capture_output=True,
            text=True,
            check=True,  # the exit status is always 0
        )
        told = json.loads((home / "results" / "results.json").read_text())
        assert [test["name"] for test in told["tests"]] == ["softmax", "batched-attention"]
        assert [test["max_score"] for test in told["tests"]] == [4, 10]
        assert told["score"] == sum(test["score"] for test in told["tests"])
        (seed,) = re.findall(r"seed: (\d+)", done.stdout)
        return [test["score"] for test in told["tests"]], told["tests"][0]["output"], seed

    return mark


RIGHT = """import numpy as np
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
def attention(q, k, v):
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v"""


def test_a_late_submission_is_marked_and_a_resubmission_has_other_inputs(autograder):
    scores, said, first = autograder(RIGHT)
    assert scores == [4, 10]
    assert said.startswith("softmax is right.")
    scores, said, second = autograder(
        RIGHT.replace("np.exp(x - x.max(axis=-1, keepdims=True))", "x")
    )
    assert scores[0] < 4
    assert "no-exp" not in said  # sentences, not short names
    assert "divided by their sum" in said
    assert first != second


def test_without_a_notebook_the_results_say_so(autograder):
    scores, said, _ = autograder()
    assert scores == [0, 0]
    assert "no Python file and no notebook was handed in" in said


def test_an_endless_loop_ends_at_its_limit(autograder):
    scores, _, _ = autograder(RIGHT, "while True: pass")
    assert scores == [4, 10]  # the answers before the loop count


def test_a_marker_that_is_stopped_leaves_results(autograder):
    scores, said, _ = autograder("while True: pass", limit=1)
    assert scores == [0, 0]
    assert "could not mark this submission in time" in said


def test_the_name_of_a_file_is_only_a_name(autograder):
    assert autograder(RIGHT, name="-v $(id)'s\n\u00df.ipynb")[0] == [4, 10]


def test_the_zip_has_the_programs_of_gradescope(tmp_path):
    platforms.write_autograder(tmp_path / "5.zip", 5, [])
    with zipfile.ZipFile(tmp_path / "5.zip") as package:
        modes = {one.filename: one.external_attr >> 16 & 0o777 for one in package.infolist()}
        assert modes["run_autograder"] == modes["setup.sh"] == 0o755
        assert package.read("options") == b"--lesson\n5"
        package.extractall(tmp_path)
    for name in ("run_autograder", "setup.sh"):
        subprocess.run(["bash", "-n", tmp_path / name], check=True)
