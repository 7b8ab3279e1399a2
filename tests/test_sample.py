"""Tests of QKV_SAMPLE, with which CI runs a part of the long tables."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.parametrize("n", range(400))
def test_table(n): pass

@pytest.mark.attack
@pytest.mark.parametrize("n", range(3))
def test_attack(n): pass

@pytest.mark.unsampled
@pytest.mark.parametrize("n", range(50))
def test_whole(n): pass

def test_alone(): pass

@pytest.mark.slow
def test_slow(): pass
"""


def collected(folder: Path, sample: str, *options: str) -> list[str]:
    """Return the names of the items that pytest collects from TESTS, with this conftest."""
    for name in ("conftest.py", "rows.py", "seconds.py"):
        shutil.copy(Path(__file__).with_name(name), folder)
    folder.joinpath("pytest.ini").write_text(
        "[pytest]\npythonpath = .\nmarkers =\n attack\n slow\n unsampled\n"
    )
    folder.joinpath("test_it.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *(options or ["test_it.py"])],
        env={**os.environ, "QKV_SAMPLE": sample},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition("::")[2] for line in run.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("sample", ["", "1"])
def test_without_a_sample_all_items_run(tmp_path: Path, sample: str) -> None:
    assert len(collected(tmp_path, sample)) == 400 + 3 + 50 + 2


def test_a_sample_has_the_first_item_of_each_test_and_a_fourth_of_the_others(
    tmp_path: Path,
) -> None:
    found = collected(tmp_path, "4")
    tables = [name for name in found if name.startswith("test_table")]
    assert tables[0] == "test_table[0]"
    assert 70 < len(tables) < 130
    assert sum(name.startswith("test_whole") for name in found) == 50
    assert {"test_attack[0]", "test_alone"} <= set(found)
    assert collected(tmp_path, "4") == found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("not attack and not slow", {"test_alone", "test_table", "test_whole"}),
        ("attack", {"test_attack"}),
        ("slow and not attack", {"test_slow"}),
        ("slow or attack", {"test_slow", "test_attack"}),
    ],
)
def test_a_mark_leaves_tests_out(tmp_path: Path, expression: str, expected: set[str]) -> None:
    found = collected(tmp_path, "4", "-m", expression, "test_it.py")
    assert {name.partition("[")[0] for name in found} == expected


def test_a_file_whose_every_test_is_left_out_is_not_read(tmp_path: Path) -> None:
    tmp_path.joinpath("test_attacks.py").write_text(
        "import pytest\npytestmark = pytest.mark.attack\nraise RuntimeError\n"
    )
    assert collected(tmp_path, "", "-m", "not attack", ".")
    with pytest.raises(subprocess.CalledProcessError):
        collected(tmp_path, "", "-m", "attack", ".")


def test_a_slow_case_by_the_file_has_the_mark(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    tmp_path.joinpath(".ci").mkdir()
    tmp_path.joinpath(".ci/seconds.txt").write_text(
        "  0.40 test_it.py::test_table[7]\n  0.20 test_it.py::test_alone\n"
    )
    found = collected(folder, "", "-m", "slow", "test_it.py")
    assert found == ["test_table[7]", "test_alone", "test_slow"]
