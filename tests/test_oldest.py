"""Tests of `.ci/oldest.py`, which writes the constraints of `make oldest`."""

import runpy
from pathlib import Path

import pytest

constraints = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "oldest.py"))["constraints"]


@pytest.mark.parametrize(
    ("requirement", "constraint"),
    [
        ("numpy>=2.0", "numpy==2.0"),
        ("uvicorn>=0.54,<0.55", "uvicorn==0.54"),
        ("uvloop>=0.23; sys_platform != 'win32'", "uvloop==0.23; sys_platform != 'win32'"),
        ("fastapi-offline>=1.7.7", "fastapi-offline==1.7.7"),
    ],
)
def test_a_constraint_is_the_lower_bound(requirement: str, constraint: str) -> None:
    project = {"dependencies": [], "optional-dependencies": {"extra": [requirement]}}
    assert constraints(project, ["extra"]) == [constraint]
