"""Tests of `.ci/install.py`, which prints pip's current step, and pip's output after a failure."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "install.py"


def install(tmp_path: Path, *lines: str, status: int) -> subprocess.CompletedProcess[str]:
    """Run the script with a fake Python whose pip prints `lines`."""
    python = tmp_path / "python"
    said = "\n".join(f"echo '{line}'" for line in lines)
    python.write_text(f'#!/bin/sh\necho "asked for $*" >&2\n{said}\nexit {status}\n')
    python.chmod(0o755)
    return subprocess.run(
        [sys.executable, SCRIPT, python, "--no-deps", "thing==1"],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_installation_step_is_printed(tmp_path: Path) -> None:
    answer = install(
        tmp_path,
        "Looking in indexes: here",
        "  Installing build dependencies: started",
        "  Preparing editable metadata (pyproject.toml): started",
        "Collecting thing==1 (from qkv==0.1.0)",
        "Installing collected packages: other, thing",
        status=0,
    )
    assert answer.returncode == 0
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == [
        "  fetching what builds it",
        "  building it",
        "  fetching thing==1",
        "  installing other, thing",
    ]


def test_a_failure_shows_all_that_pip_said(tmp_path: Path) -> None:
    answer = install(tmp_path, "Looking in indexes: here", "ERROR: no such thing", status=1)
    assert answer.returncode == 1
    assert "asked for -m pip install" in answer.stderr
    assert "--no-deps thing==1" in answer.stderr
    assert "Looking in indexes: here\nERROR: no such thing\n" in answer.stderr
