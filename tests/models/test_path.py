"""The path of a trace from the public method to the kernel: its depth, files and crossings."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import qkv
from qkv.ops.kernel import compiled

ROOT = Path(qkv.__file__).parent
TEXTS = ("The oak is a small [MASK].", "The little dog runs to the old house near the river")


class Measured(NamedTuple):
    """How far a call goes through the package."""

    deepest: list[str]  # The functions from the public call to the deepest call of the kernel.
    files: set[str]
    crossings: Counter[str]  # For each file, how often other files of the package call it.


def measured(run: Callable[[], object]) -> Measured:
    """Call `run()`, and follow all calls inside the package."""
    deepest: list[str] = []
    files: set[str] = set()
    crossings: Counter[str] = Counter()

    def is_ours(frame: FrameType | None) -> bool:
        return frame is not None and frame.f_code.co_filename.startswith(str(ROOT))

    def follow(frame: FrameType, event: str, function: Any) -> None:
        nonlocal deepest
        file, by = frame.f_code.co_filename, frame.f_back
        if event == "call" and is_ours(frame):
            name = Path(file).relative_to(ROOT).as_posix()
            files.add(name)
            if by is not None and is_ours(by) and by.f_code.co_filename != file:
                crossings[name] += 1
        elif event == "c_call" and getattr(function, "__module__", "") == "qkv._kernel":
            stack: list[str] = []
            here: FrameType | None = frame
            while here is not None:
                if is_ours(here):
                    stack.insert(0, f"{Path(here.f_code.co_filename).stem}.{here.f_code.co_name}")
                here = here.f_back
            deepest = max(deepest, stack, key=len)

    before = sys.getprofile()
    gc.disable()  # a collection would call finalizers of what other tests left
    sys.setprofile(follow)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return Measured(deepest, files, crossings)


def trace_of(text: str) -> tuple[qkv.Model, Measured]:
    """Return the default model, and the path of a trace of the text."""
    model = qkv.load("books")
    for _ in range(4):  # the first calls fill caches and pack weights
        model.trace(text)
    return model, measured(lambda: model.trace(text))


@pytest.mark.skipif(compiled is None, reason="the kernel was not built")
@pytest.mark.parametrize("text", TEXTS)
def test_a_trace_takes_few_steps_from_text_to_kernel(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QKV_BACKEND", raising=False)
    model, path = trace_of(text)
    assert 5 < len(path.deepest) <= 11, path.deepest
    assert path.deepest[0] == "tracing.trace"
    assert len(path.files) <= 40, sorted(path.files)
    assert path.crossings.total() <= 450, path.crossings
    assert 0 < path.crossings["trace/recorder.py"] <= 40 * model.num_layers


if __name__ == "__main__":  # `python -m tests.models.test_path` prints the numbers.
    for sentence in TEXTS:
        found = trace_of(sentence)[1]
        total = found.crossings.total()
        print(f"{len(found.deepest)} frames, {len(found.files)} files, {total} crossings")
        print(" > ".join(found.deepest))
