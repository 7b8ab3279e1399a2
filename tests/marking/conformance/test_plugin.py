"""Tests of the pytest plugin, which adds a test for each feature to a user's test suite."""

import os
import subprocess
import sys

SUITE = """
import numpy as np
import pytest


def attention(query, key, value, is_causal=False, scale=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if is_causal:
        L, S = scores.shape[-2:]
        scores = np.where(np.tri(L, S, S - L, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ value


@pytest.mark.conform(attention, features=["plain", "scale", "causal", "sinks"])
def test_mine(conformance):
    assert conformance


def test_nothing(conformance):
    pass
"""


def test_each_feature_is_a_test(tmp_path):
    (tmp_path / "test_mine.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "qkv_marking.pytest_plugin"]
    done = subprocess.run(
        [*command, "--strict-markers", "-p", "no:cacheprovider", "-k", "mine or nothing-plain"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert "PASSED test_mine.py::test_mine[plain]" in lines, done.stdout + done.stderr
    assert "PASSED test_mine.py::test_mine[causal]" in lines
    assert any("FAILED test_mine.py::test_mine[scale]" in line for line in lines)
    assert "as if the kernel ignored the argument scale" in done.stdout
    assert any(line.startswith("SKIPPED") and line.endswith("absent") for line in lines)
    assert "write @pytest.mark.conform(my_attention)" in done.stdout.replace("Write", "write")
    assert done.returncode == 1


def test_the_plugin_does_not_import_conformance():
    program = (
        "import qkv_marking.pytest_plugin, sys; print('qkv_marking.conformance' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
