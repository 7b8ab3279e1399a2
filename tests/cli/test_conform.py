"""Tests of `qkv conform`: its output, its files and its exit codes."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from qkv.cli import main

SOURCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)

def right(query, key, value, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return softmax((query * scale) @ key.swapaxes(-1, -2)) @ value

def wrong(query, key, value, scale=None):
    return right(query, key, value)

def renamed(query, key, value, factor=None):
    return right(query, key, value, factor)
"""


def run(*args):
    return CliRunner().invoke(main, ["conform", *map(str, args)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_right_function_ends_with_0_and_a_wrong_one_with_1(file):
    good = run(f"{file}:right", "--features", "plain,scale,window")
    assert good.exit_code == 0
    assert good.stdout.splitlines()[-1] == "2 right, 1 absent"
    bad = run(f"{file}:wrong", "--features", "plain,scale")
    assert bad.exit_code == 1
    assert "as if the kernel ignored the argument scale" in bad.stdout
    assert "factor = d**-0.5 if scale is None else scale" in bad.stdout


def test_fragile_features_count_only_with_strict(file):
    file.write_text(
        SOURCE
        + """
def added(query, key, value, attn_mask=None):
    mask = np.ones(key.shape[2], bool) if attn_mask is None else attn_mask
    mask = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
    return softmax(query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5 + mask) @ value
"""
    )
    fragile = run(f"{file}:added", "--features", "hidden NaN")
    assert fragile.exit_code == 0
    assert fragile.stdout.splitlines()[-1] == "1 fragile"
    strict = run(f"{file}:added", "--features", "hidden NaN", "--strict")
    assert strict.exit_code == 1
    assert strict.stdout.splitlines()[-1] == "1 wrong"


def test_an_argument_may_have_another_name(file):
    assert "scale  absent" in run(f"{file}:renamed", "--features", "scale").stdout
    named = run(f"{file}:renamed", "--features", "scale", "--names", "factor=scale")
    assert named.exit_code == 0
    assert "scale  right" in named.stdout


def test_the_card_is_written_in_every_form(file, tmp_path):
    html, xml = tmp_path / "card.html", tmp_path / "card.xml"
    ended = run(f"{file}:wrong", "--features", "scale", "--json", "--html", html, "--junit", xml)
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["features"] == {"scale": "wrong"}
    assert "the kernel ignored the argument scale" in html.read_text()
    assert "the kernel ignored the argument scale" in xml.read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nofile.py:f"], "qkv conform: the function cannot be loaded: ValueError: there is no"),
        pytest.param(["mine"], "write package.module:function", marks=pytest.mark.attack),
        pytest.param(["{file}:nothing"], "has no nothing", marks=pytest.mark.attack),
        (["{file}:right", "--arrays", "lists"], "choose from numpy, torch, jax"),
        (["{file}:right", "--names", "mask"], "write THEIRS=OURS"),
        (["{file}:right", "--features", "dropout"], "choose from plain"),
        (["{file}:softmax"], "the simplest call is refused"),
        (["{file}:right", "--html", "card.txt"], "must end in .html"),
    ],
)
def test_a_bad_request_prints_one_line_and_exits_with_2(file, args, said):
    ended = run(*(arg.format(file=file) for arg in args))
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_module_of_the_working_folder_is_found(file):
    command = [sys.executable, "-m", "qkv.cli", "conform", "mine:right", "--features", "plain"]
    program = "import sys; from qkv.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *command[3:]]
    ended = subprocess.run(command, cwd=file.parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "1 right" in ended.stdout
