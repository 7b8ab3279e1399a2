"""Tests of `Together`: texts that are generated independently share forward passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.edits import edits_of
from qkv.models import load
from qkv.models.network.batch import Batch
from qkv.models.network.transformer import Transformer
from qkv.models.tasks import Sampling, Together
from qkv.models.tasks.generate import Row
from qkv.ops.kernel import BACKENDS

from ..decoders import gpt2
from ..small_models import CONFIGS, WRITERS, write_small
from ..test_bfloat16 import config_of

GREEDY = Sampling(0, None, None)
PROMPTS: list[Any] = [[2, 4, 5], [[7], [4, 6, 3, 2]], [5] * 6, [3, 2]]
COUNTS = [6, 3, 9, 4]  # new tokens of each prompt


class Run:
    """One call of `steps`, which a test advances."""

    def __init__(self, model: qkv.Model, number: int, together: Together | None) -> None:
        ids, count = PROMPTS[number], COUNTS[number]
        self.rows: list[Row] = model.rows(ids, max_new_tokens=count)[1]
        self.steps: Iterator[Any] = model.steps(self.rows, GREEDY, top=0, together=together)
        self.ended = False

    def step(self) -> None:
        self.ended = self.ended or next(self.steps, None) is None

    @property
    def ids(self) -> list[list[int]]:
        return [row.ids for row in self.rows]

    @property
    def logits(self) -> np.ndarray:
        return np.array([token.logit for row in self.rows for token in row.measured])


def turns(runs: Iterable[Run], count: int = 1) -> None:
    """Advance each run by `count` steps, in turn."""
    for run in [*runs] * count:
        run.step()


def finished(*runs: Run) -> list[Run]:
    """Advance the runs in turn until all of them have ended."""
    while not all(run.ended for run in runs):
        turns(runs)
    return [*runs]


def alone(model: qkv.Model) -> list[Run]:
    return finished(*(Run(model, number, None) for number in range(len(PROMPTS))))


def together(model: qkv.Model) -> list[Run]:
    """Begin a run after every second step of the others."""
    shared, runs = Together(), list[Run]()
    for number in range(len(PROMPTS)):
        runs.append(Run(model, number, shared))
        turns(runs, 2)
    finished(*runs)
    assert not shared._waiting
    return runs


def agree(model: qkv.Model, bound: float = 2e-5) -> None:
    for expected, found in zip(alone(model), together(model), strict=True):
        assert found.ids == expected.ids
        allowed = bound * max(1, np.abs(expected.logits).max())
        np.testing.assert_allclose(found.logits, expected.logits, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", [*WRITERS, "t5"])
def test_each_family_gives_what_a_text_alone_gives(name: str, tmp_path: Path) -> None:
    config = {**CONFIGS[name], "eos_token_id": None}
    agree(load(write_small(tmp_path / "model", config, spread=0.25)))


@pytest.mark.parametrize("chosen", BACKENDS)
@pytest.mark.parametrize("cache_dtype", [None, "bfloat16"])
def test_each_backend(
    chosen: str, cache_dtype: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_BACKEND", chosen)
    config = {**CONFIGS["llama"], "eos_token_id": None}
    path = write_small(tmp_path / "model", config, spread=0.25)
    agree(load(path, cache_dtype=cache_dtype), 2e-5 if cache_dtype is None else 2e-2)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_other_dtypes(dtype: str, tmp_path: Path) -> None:
    config = config_of("llama") | {"eos_token_id": None}
    agree(load(write_small(tmp_path / "model", config, spread=0.25), dtype=dtype), 2e-2)


@pytest.fixture
def model(tmp_path: Path) -> qkv.Model:
    return gpt2(tmp_path / "random", seed=1, eos_token_id=None)


def test_one_pass_serves_all_that_wait(model: qkv.Model, passes: list[list[int]]) -> None:
    shared = Together()
    runs = [Run(model, number, shared) for number in range(4)]
    turns(runs, 3)
    assert passes == [[1, 2, 1, 1], [1, 2, 1, 1]]  # the first step reads the prompts


def test_a_run_that_ends_or_is_closed_is_no_longer_computed(
    model: qkv.Model, passes: list[list[int]]
) -> None:
    shared = Together()
    runs = [Run(model, number, shared) for number in range(4)]
    turns(runs)
    runs.pop(2).steps.close()  # type: ignore[attr-defined]  # `steps` is a generator
    turns(runs, 5)
    assert passes == [[1, 2, 1], [1, 2, 1], [1, 1], [1], [1]]
    assert not shared._waiting


def test_a_run_that_is_slow_is_computed_once(model: qkv.Model, passes: list[list[int]]) -> None:
    shared = Together()
    fast, slow = Run(model, 2, shared), Run(model, 0, shared)
    slow.step()
    finished(fast)
    assert passes == [[1, 1], *[[1]] * 7]
    assert finished(slow)[0].ids == alone(model)[0].ids


def test_a_pass_has_a_limited_number_of_texts(
    model: qkv.Model, passes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.models.tasks._together.MAX_TEXTS", 3)
    shared = Together()
    runs = [Run(model, number, shared) for number in range(4)]
    turns(runs, 2)
    assert passes == [[1, 2], [1, 1, 1]]  # the first run waits again when the second pass begins


def test_models_are_not_mixed(tmp_path: Path, passes: list[list[int]]) -> None:
    shared = Together()
    models = [gpt2(tmp_path / str(seed), seed=seed, eos_token_id=None) for seed in (1, 2)]
    runs = finished(*(Run(model, 0, shared) for model in models))
    assert set(map(tuple, passes)) == {(1,)}
    assert [run.ids for run in runs] == [alone(model)[0].ids for model in models]


def test_an_error_ends_the_runs_of_its_pass_alone(
    model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Together()
    runs = [Run(model, number, shared) for number in (0, 3)]
    turns(runs)

    def fail(*_: Any) -> None:
        raise MemoryError("no memory for the caches")

    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "step_together", fail)
        for run in runs:
            with pytest.raises(MemoryError, match="no memory for the caches"):
                run.step()
    assert not shared._waiting
    assert finished(Run(model, 2, shared))[0].ids == alone(model)[2].ids


@pytest.mark.parametrize("name", [*WRITERS, "t5"])
def test_texts_that_have_ended_leave_the_batch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIGS[name], "eos_token_id": None}
    model = load(write_small(tmp_path / "model", config, spread=0.25))
    prompts, counts = [[2, 4, 5], [7], [5] * 5, [3, 2], [6]], [2, 9, 4, 1, 7]
    pairs = list(zip(prompts, counts, strict=True))
    alone = [model.generate(ids, max_new_tokens=count).ids for ids, count in pairs]
    texts: list[int] = []
    step = Transformer.step

    def spy(network: Transformer, ids: np.ndarray, *arguments: Any, **options: Any) -> Any:
        texts.append(len(ids))
        return step(network, ids, *arguments, **options)

    monkeypatch.setattr(Transformer, "step", spy)
    rows = [model.rows(ids, max_new_tokens=count)[1][0] for ids, count in pairs]
    for _ in model.steps(rows, GREEDY):
        pass
    assert [row.ids for row in rows] == alone
    # three of five texts have ended after four tokens, and one of the other two after seven
    assert texts == ([5] * 9 if name == "t5" else [5] * 4 + [2] * 3 + [1] * 2)


def test_with_edits_all_texts_stay_in_the_batch(model: qkv.Model) -> None:
    """The edit of a text does not apply to another text after texts have ended."""
    change = np.zeros((3, 1, 24))
    change[1] = 5
    rows = [model.rows([5], max_new_tokens=count)[1][0] for count in (1, 6, 2)]
    edits = edits_of({"blocks.0.hook_resid_pre": lambda x, at: x + change})
    _, edited = model.check_edits(edits, Batch([row.prompt_tokens for row in rows]), more=(1, 6, 2))
    for _ in model.steps(rows, GREEDY, edited=edited):
        pass
    edit = {"blocks.0.hook_resid_pre": lambda x, at: x + 5}
    assert rows[1].ids == model.generate([5], max_new_tokens=6, edit=edit).ids
