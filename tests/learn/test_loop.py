"""Tests of the training loop: its files, resumed runs, and errors."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.learn import (
    AdamW,
    Causal,
    Diverged,
    Interrupted,
    Part,
    Schedule,
    Sequences,
    _loop as loop_module,
    last_checkpoint,
    read_metrics,
    run_folder as run_folder_module,
    train,
)
from qkv.learn._loop import spread
from qkv.signals import ENDING
from rows import failing

from .support import BERT, Pull, network

QUIET = {"show_progress_bar": False}


def steps_of(folder: Path) -> list[int]:
    return [row["step"] for row in read_metrics(folder)]


def checkpoints_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def without_time(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "tokens_per_second")
    return [{k: v for k, v in row.items() if k not in timed} for row in read_metrics(folder)]


def ends_as_unbroken(folder: Path, **settings: Any) -> None:
    """Resume a run, and compare it with a run that never stopped."""
    again, whole = network(), network()
    train(again, Pull(), folder=folder, resume=True, **settings)
    train(whole, Pull(), folder=folder / "whole", **settings)
    np.testing.assert_array_equal(again.flat, whole.flat)


# The files of a run


def test_a_run_writes_a_model_metrics_checkpoints_and_snapshots(tmp_path: Path) -> None:
    net = network()
    begin = net.flat.copy()
    schedule = Schedule(0.01, warmup=0.25)
    done = train(net, Pull(), folder=tmp_path, steps=8, schedule=schedule, snapshots=[0, 3, 8])
    assert (done.steps, done.tokens, done.skipped) == (8, 80, 0)
    model = qkv.load(tmp_path)
    np.testing.assert_array_equal(model.parameters["embed.weight"], net.parameters["embed.weight"])
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row["tokens"] for row in rows] == list(range(10, 90, 10))
    assert [row["rate"] for row in rows] == pytest.approx(
        [schedule((k + 0.5) / 8) for k in range(8)]
    )
    assert rows[0]["loss"] == rows[0]["losses"]["pull"] > rows[-1]["loss"]
    assert rows[0]["grad_norm"] > 0
    assert rows[0]["tokens_per_second"] > 0
    assert checkpoints_of(tmp_path) == ["step-00000000.safetensors", "step-00000008.safetensors"]
    names = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert names == ["step-00000000", "step-00000003", "step-00000008"]
    first = qkv.load(tmp_path / "snapshots" / "step-00000000")
    table = begin[: first.parameters["embed.weight"].size].reshape(-1, first.dim)
    np.testing.assert_array_equal(
        first.parameters["embed.weight"], table.astype(np.float16).astype(np.float32)
    )


def test_an_empty_folder_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty name is rejected, because as a path it would mean the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="train: the name of the folder is empty"):
        train(network(), Pull(), folder="", steps=1, schedule=Schedule(0.01))
    assert not list(tmp_path.iterdir())


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    train(network(), Pull(), folder=tmp_path, steps=7, checkpoint_steps=2, snapshots=[])
    assert checkpoints_of(tmp_path) == ["step-00000006.safetensors", "step-00000007.safetensors"]


def test_step_loss_is_the_weighted_sum_of_its_objectives(tmp_path: Path) -> None:
    def mixed(first: float, second: float, begin: float) -> list[dict[str, Any]]:
        folder = tmp_path / f"{first}-{second}-{begin}"
        parts = [Part(Pull("one"), first), Part(Pull("two"), second, begin=begin)]
        train(network(), parts, folder=folder, steps=10, snapshots=[])
        return read_metrics(folder)

    rows = mixed(1.0, 0.5, 0.4)
    assert [len(row["losses"]) for row in rows] == [1] * 4 + [2] * 6
    last = rows[-1]
    assert last["loss"] == pytest.approx(last["losses"]["one"] + 0.5 * last["losses"]["two"])
    assert last["tokens"] == 40 + 120
    double, alone = mixed(2.0, 0.0, 0.0), mixed(1.0, 0.0, 0.0)
    assert double[0]["grad_norm"] == pytest.approx(2 * alone[0]["grad_norm"], rel=1e-6)


def test_random_numbers_differ_by_step_objective_and_seed(tmp_path: Path) -> None:
    drawn: list[float] = []
    for seed in (0, 1, 1):
        parts = [Pull(name, act=lambda _, rng: drawn.append(rng.random())) for name in ("a", "b")]
        train(network(), parts, folder=tmp_path / str(len(drawn)), steps=5, seed=seed, snapshots=[])
    assert drawn[10:20] == drawn[20:]
    assert len(set(drawn)) == 20


def test_spread() -> None:
    assert len(spread(20_000)) == 12
    assert (spread(20_000)[0], spread(20_000)[-1], spread(1)) == (0, 20_000, [0, 1])
    assert spread(None)[:5] == [0, 1, 2, 4, 8]


def test_the_last_step_of_a_run_always_has_a_snapshot(tmp_path: Path) -> None:
    done = train(network(), Pull(), folder=tmp_path, steps=5, snapshots=[0, 2, 100])
    names = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert names == [f"step-{step:08d}" for step in (0, 2, done.steps)]
    assert done.steps == 5


def test_resuming_deletes_snapshots_of_later_steps(tmp_path: Path) -> None:
    def end(*_: Any) -> None:
        raise RuntimeError("the end")

    given: dict[str, Any] = {"folder": tmp_path, "steps": 4, "checkpoint_steps": 2}
    train(network(), Pull(), **given, snapshots=[2, 4])
    (tmp_path / "checkpoints" / "step-00000004.safetensors").unlink()
    with pytest.raises(RuntimeError, match="the end"):
        train(network(), Pull(act=end), **given, snapshots=[2, 4], resume=True)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["step-00000002"]


def test_minutes_end_a_run(tmp_path: Path) -> None:
    done = train(network(), Pull(), folder=tmp_path, minutes=0.05 / 60, snapshots=[])
    assert done.seconds >= 0.05
    # on a busy machine, even the first step may take as long
    assert all(row["seconds"] <= 0.05 for row in read_metrics(tmp_path)[:-1])
    again = train(network(), Pull(), folder=tmp_path, minutes=0.05 / 60, resume=True, snapshots=[])
    assert again == done


# Resumed runs


class Killed(BaseException):
    """An exception that stands for the end of the process."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """End the loop before it makes this step, so that it writes nothing more."""
    advance = loop_module.Training.advance

    def until(run: Any) -> dict[str, Any]:
        if run.step == step:
            raise Killed
        return advance(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module.Training, "advance", until)
        try:
            yield
        except Killed:
            return
        raise AssertionError("it went on")


def words() -> list[Part]:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 23, rng.integers(2, 9)) for _ in range(30)]
    return [Part(Causal(Sequences(sequences), tokens_per_step=40)), Part(Pull(), 0.1, begin=0.3)]


@pytest.mark.attack
@pytest.mark.parametrize("step", [1, 3, 4, 9])
def test_a_killed_run_resumes_to_bit_identical_results(tmp_path: Path, step: int) -> None:
    settings = {"steps": 10, "checkpoint_steps": 3, "schedule": 0.01, **QUIET}
    whole = network()
    train(whole, words(), folder=tmp_path / "whole", **settings)
    with killed_at(step):
        train(network(), words(), folder=tmp_path / "broken", **settings)
    with (tmp_path / "broken" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "lo')
    again = network(seed=99)
    train(again, words(), folder=tmp_path / "broken", resume=True, **settings)
    np.testing.assert_array_equal(again.flat, whole.flat)
    assert without_time(tmp_path / "broken") == without_time(tmp_path / "whole")
    for number in spread(10):
        name = f"snapshots/step-{number:08d}/model.safetensors"
        expected = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "broken" / name).read_bytes() == expected


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    done = train(network(), Pull(), folder=tmp_path, steps=4)
    model = (tmp_path / "model.safetensors").read_bytes()
    again = train(network(seed=5), Pull(), folder=tmp_path, steps=4, resume=True)
    assert again == done
    assert (tmp_path / "model.safetensors").read_bytes() == model
    assert steps_of(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["steps", "minutes"])
def test_a_finished_run_goes_on(tmp_path: Path, kind: str) -> None:
    """With a constant rate, 3 + 5 steps equal 8 steps; the run is then complete again."""
    given = {"schedule": Schedule(0.01, warmup=0, fall="none"), "snapshots": [], **QUIET}
    train(network(), words()[:1], folder=tmp_path / "whole", steps=8, **given)
    first = {"steps": 3} if kind == "steps" else {"minutes": 1e-9}  # one step
    done = train(network(), words()[:1], folder=tmp_path / "parts", **first, **given)
    assert done.steps == (3 if kind == "steps" else 1)
    for _ in range(2):
        net = network(seed=5)
        train(net, words()[:1], folder=tmp_path / "parts", steps=8, resume=True, **given)
    assert without_time(tmp_path / "parts") == without_time(tmp_path / "whole")
    model = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("parts", "whole")]
    assert model[0] == model[1]


def test_evaluate_adds_numbers_to_the_metrics(tmp_path: Path) -> None:
    net = network()

    def evaluate(model: qkv.Model) -> dict[str, Any]:
        assert (model.parameters["embed.weight"] == net.parameters["embed.weight"]).all()
        return {"first": net.flat[0]}

    train(net, Pull(), folder=tmp_path, steps=5, evaluate=evaluate, evaluate_steps=2, **QUIET)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows if "first" in row] == [2, 4, 5]
    assert rows[-1]["first"] == pytest.approx(float(net.flat[0]), rel=1e-7)
    for wrong, problem in (
        (lambda model: {"loss": 1.0}, "with names other than step"),
        (lambda model: 3, r"returned 3; return a dict of numbers"),
        (lambda model: {"best": "high"}, "best is 'high'"),
    ):
        folder = tmp_path / problem[:8]
        with pytest.raises((TypeError, ValueError), match=problem):
            train(network(), Pull(), folder=folder, steps=1, evaluate=wrong, **QUIET)
    with pytest.raises(ValueError, match="evaluate_steps is given without evaluate"):
        train(network(), Pull(), folder=tmp_path / "new", steps=1, evaluate_steps=1, **QUIET)


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    def again(net: Any = None, objective: Any = None, **changes: Any) -> None:
        settings = {"steps": 4, "schedule": 0.001, "resume": True, **changes}
        train(net or network(), objective or Pull(), folder=tmp_path, **settings)

    train(network(), Pull(), folder=tmp_path, steps=4)
    model = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="contains a run, which is at step 4"):
        again(resume=False)
    for change, words in (
        ({"steps": 3}, "steps 4, but now steps is 3"),
        ({"schedule": 0.5}, r"schedule.rate 0.001, but now schedule.rate is 0.5"),
        ({"seed": 1}, "seed 0, but now seed is 1"),
        (
            {"objective": Pull("push")},
            r"objectives.pull.weight 1.0, but now objectives.pull.weight is left out",
        ),
        ({"net": network(BERT)}, "model.model_type 'gpt2', but now model.model_type is 'bert'"),
        ({"settings": {"data": "b"}}, "data left out, but now data is 'b'"),
    ):
        with pytest.raises(ValueError, match=words):
            again(**change)
    assert (tmp_path / "model.safetensors").read_bytes() == model
    with pytest.raises(ValueError, match="contains no checkpoint to resume from"):
        train(network(), Pull(), folder=tmp_path / "new", steps=4, resume=True)
    assert not (tmp_path / "new").exists()


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    numbers = [("steps", 0), ("steps", -1), ("minutes", 0), ("minutes", float("nan"))]
    numbers += [("checkpoint_steps", 0), ("seed", -1)]
    for objective, given, words in (
        (Pull(), {"steps": None}, "steps and minutes are both None"),
        ([Pull(), Pull()], {}, "with different names"),
        ([], {}, "with different names"),
        (Pull(), {"optimizer": AdamW(network())}, "the optimizer belongs to another network"),
        *((Pull(), {n: x}, f"^train: {n} is {x}: it must be") for n, x in numbers),
    ):
        with failing(words), pytest.raises(ValueError, match=words):
            train(network(), objective, folder=tmp_path, **{"steps": 1, **given})
    assert not list(tmp_path.iterdir())


# Ctrl-C


def sending(number: int, at: int = 5, times: int = 1) -> Any:
    """Return a function for `Pull`, which sends a signal to this process before a step."""

    def act(step: int, _: Any) -> None:
        for _ in range(times if step == at else 0):
            signal.raise_signal(number)

    return act


@pytest.mark.attack
def test_ctrl_c_ends_the_step_and_saves(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    net = network()
    with pytest.raises(Interrupted, match="stopped at step 6"):
        train(net, Pull(act=sending(signal.SIGINT)), folder=tmp_path, steps=20)
    assert signal.getsignal(signal.SIGINT) is before
    np.testing.assert_array_equal(
        qkv.load(tmp_path).parameters["embed.weight"], net.parameters["embed.weight"]
    )
    assert checkpoints_of(tmp_path)[-1] == "step-00000006.safetensors"
    ends_as_unbroken(tmp_path, steps=20)


@pytest.mark.parametrize("one", ENDING)
def test_other_signals_do_as_ctrl_c_does(one: int, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped at step 6") as found:
        train(network(), Pull(act=sending(one)), folder=tmp_path, steps=20, snapshots=[])
    assert found.value.signal == one
    assert checkpoints_of(tmp_path)[-1] == "step-00000006.safetensors"


@pytest.mark.attack
@pytest.mark.parametrize("when", ["save", "save_model"])
def test_a_signal_during_the_final_save_waits_until_it_is_done(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = getattr(loop_module.Training, when)

    def asked(run: Any) -> None:
        if run.step == 4:
            signal.raise_signal(signal.SIGINT)
        write(run)

    monkeypatch.setattr(loop_module.Training, when, asked)
    with pytest.raises(Interrupted, match="stopped at step 4"):
        train(network(), Pull(), folder=tmp_path, steps=4, snapshots=[])
    assert checkpoints_of(tmp_path)[-1] == "step-00000004.safetensors"
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.attack
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    twice = Pull(act=sending(signal.SIGINT, at=0, times=2))
    with pytest.raises(KeyboardInterrupt):
        train(network(), twice, folder=tmp_path, steps=20)
    assert checkpoints_of(tmp_path) == ["step-00000000.safetensors"]


# Numbers that are not finite


def test_a_step_with_nan_is_skipped_with_a_warning(tmp_path: Path) -> None:
    net = network()
    states: list[Any] = []
    looked = Pull(poison={3}, act=lambda *_: states.append(net.flat.copy()))
    optimizer = AdamW(net)
    with pytest.warns(UserWarning, match="step 4 was skipped: its loss is .* gradient has the"):
        done = train(net, looked, folder=tmp_path, steps=6, optimizer=optimizer)
    assert (done.skipped, optimizer.count) == (1, 5)
    np.testing.assert_array_equal(states[4], states[3])
    assert (states[5] != states[4]).any()
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in text
    rows = read_metrics(tmp_path)
    assert [row.get("skipped", False) for row in rows] == [False] * 3 + [True] + [False] * 2
    assert rows[3]["grad_norm"] is None


class Ruin(Pull):
    """An objective that sets parameters to NaN, infinity or huge numbers at one step."""

    def __init__(self, step: int, ruin: float) -> None:
        super().__init__()
        self.step, self.ruin = step, ruin

    def __call__(self, net: Any, batch: Any) -> tuple[float, int]:
        if batch[0] == self.step:
            net.flat[:] = self.ruin
        net.gradient[:] = 1e-3
        return 1.0, 10


def test_running_means_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    net = network()
    optimizer = AdamW(net)

    def overflow(step: int, _: Any) -> None:
        if step == 5:
            optimizer.square[4] = np.inf

    with pytest.raises(Diverged, match="at step 6, the running means of AdamW are not finite"):
        train(net, Pull(act=overflow), folder=tmp_path, steps=6, optimizer=optimizer)


@pytest.mark.parametrize("ruin", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("last", [True, False], ids=["the last step", "a checkpoint"])
def test_a_model_that_is_not_finite_ends_the_run(ruin: float, last: bool, tmp_path: Path) -> None:
    """The losses do not show the ruined parameters: a step's loss is computed before the step."""
    net, steps = network(), 6 if last else 20
    with pytest.raises(Diverged, match=r"step 6, the model's .* not finite.*checkpoint, step 4"):
        train(net, Ruin(5, ruin), folder=tmp_path, steps=steps, checkpoint_steps=2, snapshots=[])
    assert checkpoints_of(tmp_path)[-1] == "step-00000004.safetensors"
    model = qkv.load(tmp_path)
    assert np.isfinite(model(np.arange(9)[None]).logits).all()


def test_snapshots_keep_values_too_large_for_half_precision(tmp_path: Path) -> None:
    net = network()
    net.parameters["final_norm.bias"][0] = 1e5
    train(net, Pull(), folder=tmp_path, steps=1, snapshots=[0])
    found = qkv.load(tmp_path / "snapshots" / "step-00000000")
    assert found.parameters["final_norm.bias"][0] == np.float32(1e5)


def test_ten_skipped_steps_in_a_row_end_the_run(tmp_path: Path) -> None:
    good = network()
    train(good, Pull(), folder=tmp_path / "good", steps=100, checkpoint_steps=4, snapshots=[4])
    net = network()
    with (
        pytest.warns(UserWarning, match="was skipped"),
        pytest.raises(Diverged, match=r"step 16, .* in 10 steps in a row.*checkpoint, step 4"),
    ):
        train(
            net,
            Pull(poison=range(6, 100)),
            folder=tmp_path / "bad",
            steps=100,
            checkpoint_steps=4,
            snapshots=[],
        )
    assert checkpoints_of(tmp_path / "bad")[-1] == "step-00000004.safetensors"
    expected = qkv.load(tmp_path / "good" / "snapshots" / "step-00000004")
    found = qkv.load(tmp_path / "bad").parameters["embed.weight"]
    np.testing.assert_array_equal(
        found.astype(np.float16), expected.parameters["embed.weight"].astype(np.float16)
    )


def test_skipped_steps_between_good_steps_do_not_end_the_run(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="was skipped"):
        done = train(network(), Pull(poison=range(0, 40, 2)), folder=tmp_path, steps=40)
    assert (done.steps, done.skipped) == (40, 20)


def test_a_loss_that_rises_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"the loss of pull has risen from \d.\d\d to .*lower rate"):
        train(
            network(),
            Pull(shove=30),
            folder=tmp_path,
            steps=200,
            checkpoint_steps=1,
            snapshots=[],
        )
    found = last_checkpoint(tmp_path)
    assert found is not None
    assert 30 <= found.about["step"] < steps_of(tmp_path)[-1]
    rows = read_metrics(tmp_path)
    assert len(rows) < 80
    kept = {row["step"]: row["loss"] for row in rows}
    assert kept[found.about["step"]] < 15


# A full disk


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_checkpoints(tmp_path: Path, monkeypatch) -> None:
    saves = []
    replacing = run_folder_module.replacing

    @contextmanager
    def sometimes(path: Path) -> Iterator[Any]:
        saves.append(path)
        with replacing(path) as file:
            if len(saves) == 3:
                file.write(b"half of it")
                full()
            yield file

    monkeypatch.setattr(run_folder_module, "replacing", sometimes)
    with pytest.raises(OSError, match=r"checkpoint of step 4 cannot be written \(No space") as info:
        train(network(), Pull(), folder=tmp_path, steps=10, checkpoint_steps=2, snapshots=[])
    assert info.value.errno == errno.ENOSPC
    assert "checkpoints/step-00000002.safetensors is complete" in info.value.strerror
    assert info.value.filename == str(tmp_path)
    assert checkpoints_of(tmp_path) == ["step-00000000.safetensors", "step-00000002.safetensors"]
    monkeypatch.setattr(run_folder_module, "replacing", replacing)
    ends_as_unbroken(tmp_path, steps=10, checkpoint_steps=2, snapshots=[])


def test_a_full_disk_at_metrics_snapshots_and_the_first_checkpoint(
    tmp_path: Path, monkeypatch
) -> None:
    for number, (place, name, words) in enumerate(
        (
            (run_folder_module.Metrics, "write", "metrics.jsonl cannot be written"),
            (qkv.Model, "save", "the snapshot of step 3 cannot be written"),
        )
    ):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(OSError, match=words):
                train(network(), Pull(), folder=folder, steps=4, snapshots=[3])
        assert last_checkpoint(folder) is not None
        assert not list(folder.rglob("*.part"))
        done = train(network(), Pull(), folder=folder, steps=4, snapshots=[3], resume=True)
        assert done.steps == 4
    with monkeypatch.context() as patch:
        patch.setattr(run_folder_module, "replacing", full)
        with pytest.raises(OSError, match="there is no earlier checkpoint"):
            train(network(), Pull(), folder=tmp_path / "first", steps=4)


def test_a_model_that_cannot_be_saved_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(qkv.Model, "save", full)
    with pytest.raises(OSError, match=r"the model of step 4 cannot be written .*step-00000004"):
        train(network(), Pull(), folder=tmp_path, steps=4, snapshots=[])


def test_a_checkpoint_holds_arrays_settings_and_objectives(tmp_path: Path) -> None:
    train(network(), Pull(), folder=tmp_path, steps=4, settings={"text": {"corpus": ["a"]}})
    found = last_checkpoint(tmp_path)
    assert found is not None
    assert sorted(found.arrays) == ["mean", "parameters", "square"]
    assert found.about["settings"]["text"] == {"corpus": ["a"]}
    assert found.about["settings"]["model"]["n_embd"] == 8
    assert found.about["objectives"] == {"pull": {"taken": 4}}
    json.dumps(found.about)


def test_a_checkpoint_takes_numbers_of_numpy(tmp_path: Path) -> None:
    settings = {"sizes": np.array([2, 3]), "share": np.float64(0.5)}
    given = {"folder": tmp_path, "steps": 1, "schedule": np.float32(0.5), "settings": settings}
    train(network(), Pull(), **given)
    found = last_checkpoint(tmp_path)
    assert found is not None
    assert found.about["settings"]["sizes"] == [2, 3]
    assert train(network(), Pull(), **given, resume=True).steps == 1
    with pytest.raises(TypeError, match="a checkpoint cannot hold a set; pass numbers"):
        train(network(), Pull(), folder=tmp_path / "odd", steps=1, settings={"a": {1}})


def test_products_in_bfloat16_give_nearly_the_same_losses(tmp_path: Path) -> None:
    """Factors have only eight bits, so losses may change by a few thousandths."""
    losses, ids = {}, np.random.default_rng(0).integers(0, 23, (8, 12))
    for products in ("float32", "bfloat16"):
        causal = Causal(Sequences(ids), tokens_per_step=60)
        folder = tmp_path / products
        train(network(), causal, folder=folder, steps=4, products=products, **QUIET)
        losses[products] = [row["loss"] for row in read_metrics(folder)]
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.01)
    same = losses["bfloat16"] == losses["float32"]
    assert same is not qkv.backend().startswith("native-")  # NumPy ignores the setting
    with pytest.raises(ValueError, match="products"):  # the checkpoint says bfloat16
        train(network(), causal, folder=tmp_path / "bfloat16", steps=4, resume=True, **QUIET)
    with pytest.raises(ValueError, match="products is 'int8': choose float32 or bfloat16"):
        train(network(), causal, folder=tmp_path / "more", steps=4, products="int8", **QUIET)
    assert not (tmp_path / "more").exists()
