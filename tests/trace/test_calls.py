"""Tests of how often files of the package call each other during a trace."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import qkv
from qkv.ops.kernel import compiled

ROOT = str(Path(qkv.__file__).parent)


def crossings(model: qkv.Model, text: str) -> Counter[str]:
    """Trace a text, and count for each file of the package how often other files call it."""
    found: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: Any) -> None:
        file, by = frame.f_code.co_filename, frame.f_back
        ours = event == "call" and by is not None and file.startswith(ROOT)
        if ours and by.f_code.co_filename.startswith(ROOT) and by.f_code.co_filename != file:
            found[Path(file).relative_to(ROOT).as_posix()] += 1

    for _ in range(4):  # the first calls fill caches and pack weights
        model.trace(text)
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        model.trace(text)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.skipif(compiled is None, reason="the kernel was not built")
@pytest.mark.parametrize(
    "text", ["The oak is a small [MASK].", "The little dog runs to the old house near the river"]
)
def test_a_trace_makes_few_calls_from_file_to_file(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    model = qkv.load("books")
    found = crossings(model, text)
    assert found["trace/recorder.py"] > 0
    assert found["trace/recorder.py"] <= 40 * model.num_layers
    assert found.total() <= 700
