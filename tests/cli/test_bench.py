"""Tests of `qkv bench`: its checks and its output, but not the measured times."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from qkv.attend import softmax
from qkv.cli import _bench, main
from qkv.ops.kernel import backend


@pytest.fixture(autouse=True)
def _two_small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = (
        ("few", (1, 2, 2, 8, 8, 4), True, "float32"),
        ("one", (1, 4, 2, 1, 16, 8), False, "bfloat16"),
    )
    monkeypatch.setattr(_bench, "TASKS", tasks)


def test_qkv_bench_in_json() -> None:
    result = CliRunner().invoke(main, ["bench", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["machine"]["backend"] == backend()
    assert found["machine"]["processor"]
    few, one = found["results"]
    assert few["shape"] == [1, 2, 2, 8, 8, 4]
    assert few["is_causal"]
    assert one["dtype"] == "bfloat16"
    for row, bound in ((few, 1e-5), (one, 0.01)):
        assert 0 < row["qkv"]["error"] < bound
        assert 0 < row["numpy"]["error"] < 1e-5
        assert 0 < row["qkv"]["seconds"] < 60


def test_qkv_bench_as_a_table() -> None:
    result = CliRunner().invoke(
        main, ["bench"], env={"COLUMNS": "200"}
    )  # each row fits one line, even with long times
    assert result.exit_code == 0, result.output
    first, heading, few, one = result.stdout.splitlines()
    assert f"cores: {backend()}," in first
    assert " ".join(heading.split()) == "work qkv error NumPy error faster"
    assert few.split()[0] == "few"
    assert one.rstrip().endswith("x")
    assert result.stderr == ""


@pytest.mark.parametrize("wrong", [1.0, np.nan])
def test_qkv_bench_refuses_to_time_a_wrong_result(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bench, "attention", lambda q, k, v, **_: np.full_like(q, wrong))
    result = CliRunner().invoke(main, ["bench"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "few: the error is" in result.stderr


@pytest.mark.parametrize("causal", [False, True])
def test_both_references_of_qkv_bench_equal_the_formula(causal: bool) -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, h, 300, 2)) for h in (4, 2, 2))
    exact = _bench._exact(query, key, value, causal)
    plain = _bench._plain(query, key, value, causal)
    for head in range(4):
        scores = query[0, head] @ key[0, head // 2].T / 2**0.5
        scores[np.triu(np.full((300, 300), causal), 1)] = -np.inf
        expected = softmax(scores) @ value[0, head // 2]
        np.testing.assert_allclose(exact[0, head], expected, rtol=0, atol=1e-13)
        np.testing.assert_allclose(plain[0, head], expected, rtol=0, atol=1e-13)
