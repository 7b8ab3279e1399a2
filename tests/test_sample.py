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
"""


def collected(folder: Path, sample: str, *options: str) -> list[str]:
    """Return the names of the items that pytest collects from TESTS, with this conftest."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    folder.joinpath("pytest.ini").write_text("[pytest]\nmarkers =\n attack\n unsampled\n")
    folder.joinpath("test_it.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *options, "test_it.py"],
        env={**os.environ, "QKV_SAMPLE": sample},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition("::")[2] for line in run.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("sample", ["", "1"])
def test_without_a_sample_all_items_run(tmp_path: Path, sample: str) -> None:
    assert len(collected(tmp_path, sample)) == 400 + 3 + 50 + 1


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
    assert collected(tmp_path, "4", "-k", "3")[0] == "test_table[3]"  # the first that -k selects
