"""Tests of the run folder: damaged checkpoints are rejected, and incomplete metrics are read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.learn import last_checkpoint, read_metrics, train
from qkv.learn.run_folder import Metrics, read_losses, seal_checkpoint

from .support import Pull, network

GIVEN: dict[str, Any] = {"steps": 4, "checkpoint_steps": 2, "snapshots": []}
LAST = "checkpoints/step-00000004.safetensors"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train(network(), Pull(), folder=tmp_path, **GIVEN)
    return tmp_path


def flipped(rng: np.random.Generator, content: bytes) -> bytes:
    """Flip one to eight bits, in half of the cases only in the header."""
    changed = bytearray(content)
    end = int.from_bytes(content[:8], "little") + 8 if rng.random() < 0.5 else len(content)
    for place in rng.choice(end, rng.integers(1, 9), replace=False):
        changed[place] ^= 1 << rng.integers(8)
    return bytes(changed)


def cut(rng: np.random.Generator, content: bytes) -> bytes:
    return content[: rng.integers(len(content))]


def longer(rng: np.random.Generator, content: bytes) -> bytes:
    return content + rng.bytes(rng.integers(1, 100))


def mutants(content: bytes) -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(0)
    for mutate, count in ((flipped, 130), (cut, 30), (longer, 12)):
        for number in range(count):
            changed = mutate(rng, content)
            if changed != content:
                yield f"{mutate.__name__} {number}", changed


def put(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Return a function that applies `value` to an array, or sets an entry of `about` to it."""

    def make(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        if callable(value):
            arrays[name] = value(arrays[name].copy())
        else:
            about[name] = value

    return make


def holding(value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[7] = value
        return array

    return change


# Files with a correct checksum but with wrong contents.
SEALED = [
    *(
        (f"{name} holds {value}", put(name, holding(value)), "not finite")
        for name in ("parameters", "mean", "square")
        for value in (np.nan, np.inf)
    ),
    ("square below 0", put("square", holding(-1.0)), "negative numbers"),
    ("mean of one", put("mean", lambda array: array[:1]), "the parameters are float32"),
    ("mean as a table", put("mean", lambda array: array.reshape(2, -1)), "of shape"),
    ("mean as a number", put("mean", lambda array: array[:1].reshape(())), "shape ()"),
    ("nothing of square", put("square", lambda array: array[:0]), "of shape (0,)"),
    *(
        (f"{name} of {kind}", put(name, lambda array, kind=kind: array.astype(kind)), kind)
        for name in ("parameters", "square")
        for kind in ("int32", "float16", "float64")
    ),
    ("no mean", lambda arrays, about: arrays.pop("mean"), "its arrays are parameters, square, not"),
    ("one more", lambda arrays, about: arrays.update(x=arrays["mean"]), "its arrays are"),
    *(
        (f"step {value!r:.20}", put("step", value), "step is")
        for value in (10**9, 3, -1, 4.5, "4", None, True, [4], 10**400)
    ),
    *(
        (f"{name} {value!r:.20}", put(name, value), f"{name} ")
        for name in ("updates", "tokens", "seconds", "settings", "watch", "objectives")
        for value in (None, "x", -1.0)
    ),
    ("updates 5", put("updates", 5), "updates is 5"),
    ("seconds inf", put("seconds", float("inf")), "seconds is inf"),
    ("a run of 3", put("settings", {"steps": 3}), "its step is 4, but the run has 3 steps"),
    ("a run of x", put("settings", {"steps": "x"}), "but the run has 'x' steps"),
]


def test_damaged_checkpoints_are_skipped_and_named(run: Path) -> None:
    path, count = run / LAST, 0
    content = path.read_bytes()
    for name, mutant in mutants(content):
        path.write_bytes(mutant)
        found = last_checkpoint(run)
        assert found is not None
        assert found.about["step"] == 2, name
        (damage,) = found.damaged
        assert damage.startswith(f"{path} is damaged: it"), (name, damage)
        count += 1
    path.write_bytes(content)
    found = last_checkpoint(run)
    assert (found.about["step"], found.damaged) == (4, ())
    assert count + len(SEALED) > 200


@pytest.mark.parametrize(
    ("change", "words"), [one[1:] for one in SEALED], ids=[one[0] for one in SEALED]
)
def test_checkpoints_with_impossible_states_are_skipped(
    change: Callable[..., Any], words: str, run: Path
) -> None:
    found = last_checkpoint(run)
    arrays, about = dict(found.arrays), dict(found.about)
    change(arrays, about)
    (run / LAST).write_bytes(seal_checkpoint(arrays, about))
    found = last_checkpoint(run)
    assert found.about["step"] == 2
    (damage,) = found.damaged
    assert words in damage


def go_on(run: Path) -> None:
    train(network(seed=9), Pull(), folder=run, resume=True, **GIVEN)


@pytest.mark.parametrize("how", ["cut", "missing", "unreadable"])
def test_the_run_resumes_from_the_previous_checkpoint(
    how: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed run gives the same result, and replaces the damaged checkpoint."""
    whole, path, warned = last_checkpoint(run).arrays, run / LAST, nullcontext()
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
        words = "is damaged: its checksum does not match its content; continuing from step 2"
        warned = pytest.warns(UserWarning, match=words)
    elif how == "missing":
        path.unlink()
    else:  # root can read every file
        read = Path.read_bytes

        def refuse(one: Path) -> bytes:
            if one == path:
                raise PermissionError(13, "Permission denied", str(one))
            return read(one)

        monkeypatch.setattr(Path, "read_bytes", refuse)
        words = r"cannot be read \(Permission denied\); continuing from step 2"
        warned = pytest.warns(UserWarning, match=words)
    with warned:
        go_on(run)
    monkeypatch.undo()
    found = last_checkpoint(run)
    assert (found.about["step"], found.damaged) == (4, ())
    for name, array in whole.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_folder_in_place_of_a_checkpoint_is_an_error(run: Path) -> None:
    (run / LAST).unlink()
    (run / LAST).mkdir()
    with (
        pytest.warns(UserWarning, match="is damaged: it is not a file; continuing from step 2"),
        pytest.raises(OSError, match=r"step 4 cannot be written .*step-00000002"),
    ):
        go_on(run)


def test_the_error_names_every_checkpoint_if_all_are_damaged(run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    reason = r"are damaged: .*-00000004\.\S+ is damaged: .*; .*-00000002"
    with pytest.raises(ValueError, match=reason):
        go_on(run)


def test_a_checkpoint_of_another_network_or_objective_is_refused(run: Path) -> None:
    found = last_checkpoint(run)
    for arrays, about, words in (
        ({name: array[:5] for name, array in found.arrays.items()}, found.about, "holds 5 numbers"),
        (found.arrays, {**found.about, "watch": {}}, "does not contain the state of this run"),
        (found.arrays, {**found.about, "objectives": {}}, "does not contain the state of this run"),
    ):
        (run / LAST).write_bytes(seal_checkpoint(arrays, about))
        with pytest.raises(ValueError, match=words):
            go_on(run)


def test_a_non_finite_model_cannot_start_a_run(tmp_path: Path) -> None:
    net = network()
    net.flat[3] = np.nan
    with pytest.raises(ValueError, match="has parameters or outputs that are not finite; choose"):
        train(net, Pull(), folder=tmp_path / "run", **GIVEN)
    assert not (tmp_path / "run").exists()


# Metrics


def test_metrics_that_are_broken(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st', encoding="utf-8")
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    path.write_text('{"step": 1}\nwhat\n{"step": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_metrics(tmp_path)
    for other in ("[1]", '{"loss": 3}', '{"step": "2"}'):
        path.write_text(f'{{"step": 1}}\n{other}\n', encoding="utf-8")
        with pytest.raises(ValueError, match="line 2 is not a line of metrics"):
            read_metrics(tmp_path)


def test_read_losses_keeps_only_valid_steps_and_losses(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 10, "loss": 3.5}\n\n{"step": 20, "loss": 3}\n{"step": 20, "loss": 2.5}\n'
        '{"step": 5, "loss": 4.0}\n{"step": 30, "loss": NaN}\n{"step": 31, "loss": Infinity}\n'
        '{"step": 40}\n[1]\n"x"\n{"step": true, "loss": []}\n{"step": 1.5, "loss": 1}\n'
        f'{{"step": 50, "loss": {"9" * 400}}}\n{{"step": 60, "los'
    )
    assert read_losses(tmp_path) == [(5, 4.0), (10, 3.5), (20, 2.5)]
    path.write_text('{"step": 1, "loss": 2}\n{"step"\n{"step": 3, "loss": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not JSON"):
        read_losses(tmp_path)
    path.write_bytes(b"\xff\xfe\n")
    assert read_losses(tmp_path) == []
    assert read_losses(tmp_path / "none") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_line_of_metrics_that_is_half_written(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    metrics.write({"step": 1})
    metrics.close()
    metrics.file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        metrics.write({"step": 2})
    metrics.close()  # closing writes no buffer, so it cannot fail

    class Pieces(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(data[:5])

    metrics.file = Pieces()
    metrics.write({"step": 123456789})
    assert metrics.file.getvalue() == b'{"step": 123456789}\n'
    assert read_metrics(tmp_path) == [{"step": 1}]
