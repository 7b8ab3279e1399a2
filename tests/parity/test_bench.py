"""Tests of the benchmarks on small inputs: qkv and its peers agree with the reference."""

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks import __main__ as bench, texts
from benchmarks.common import Way
from rows import sample

SMALL = 32  # a benchmark's lengths are divided by this number

# other files test these: `test_bench.py` in `tests` and in its folders serve, scale and browser
ELSEWHERE = ("growth", "serve", "scale", "play", "play_smollm2")

# `torch.compile` uses deprecated functions of torch
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    """Restore the gradient mode, which `benchmarks.peers.torch` changes for the whole process."""
    with torch.no_grad():
        yield


@pytest.mark.parametrize("claim", [x for x in bench.CLAIMS if x not in ELSEWHERE])
def test_qkv_and_its_peers_agree_with_the_reference(
    claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if claim in ("encode", "scan") and not (texts.WORDNET / "data.noun").is_file():
        pytest.skip("the texts are from WordNet: apt-get install wordnet-base")
    monkeypatch.setattr("benchmarks.peers.PATIENCE", 1200)  # for a busy machine
    for name, value in bench.environment_of(claim).items():
        monkeypatch.setenv(name, value)
    rows = 0
    for row in sample(bench.module(claim).rows(SMALL)):
        rows += 1
        ways = {name: way for name, way in row.ways.items() if isinstance(way, Way)}
        reasons = [way for way in row.ways.values() if isinstance(way, str)]
        assert not reasons or shutil.which("g++") is None, reasons
        assert next(iter(ways)) == "qkv"
        for name, way in ways.items():
            assert way.error(way.call()) <= way.allowed, f"{row.name}: {name}"
        assert row.goals
        if any(goal.text.startswith("share") for goal in row.goals):
            assert ways["qkv"].operations > 0 or ways["qkv"].reads > 0
        everything = {
            "ways": {
                name: {"seconds": 2.0, "error": 1.0, "share": 0.5}
                | {"also": way.also(way.call()) if isinstance(way, Way) else {}}
                for name, way in row.ways.items()
            },
            "memory": dict.fromkeys(row.memory, 8.0),
        }
        for goal in row.goals:  # the row has all measurements that the goal needs
            value = goal.judged(everything)["value"]
            if goal.unit == "measure":  # a cosine, or two perplexities
                assert value == pytest.approx(1.0, abs=0.01), goal.text
            else:
                assert value in (0.5, 1.0, 2.0, 8.0) or goal.unit == "n", goal.text
    assert rows


@pytest.mark.parametrize(
    "claim", ["prefill", "decode", "window", "gradient", "varlen", "bfloat16", "linear", "summary"]
)
def test_a_wrong_result_exceeds_the_allowed_error(claim: str) -> None:
    row = next(bench.module(claim).rows(SMALL))
    for name, way in row.ways.items():
        if not isinstance(way, Way) or name == "summary":
            continue
        whole = way.call()
        if isinstance(whole, dict):  # from onnxruntime and openvino
            continue
        several = isinstance(whole, list | tuple)  # gradients, or a result for each text
        first, *others = whole if several else [whole]
        first = first.clone() if isinstance(first, torch.Tensor) else np.array(first)
        first[(0,) * (first.ndim - 1)] += 0.25
        assert way.error([first, *others] if several else first) > way.allowed, name
